"""The file systems for a live log: only those whose mapped pages all processes share."""

from __future__ import annotations

from penstock import _core
from penstock.errors import Usage

# Numbers of statfs(2), from the kernel's magic.h.
_REMOTE = {
    0x6969: "NFS",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB",
    0x517B: "SMB",
    0x01021997: "9p",
    0x65735546: "FUSE",
    0x6A656A63: "virtiofs",
    0x00C36400: "Ceph",
    0x0BD00BD0: "Lustre",
    0x5346414F: "AFS",
    0x47504653: "GPFS",
}


def check_file_system(fd: int, path: str, *, insist: bool, write: bool) -> bool:
    """Whether processes can share control there; else a writer needs any_file_system=True."""
    name = _REMOTE.get(_core.file_system_magic(fd))
    if name is None or insist:
        return True
    if write:
        raise Usage(
            f"{path}: is on {name}, where a live log is not safe: a process may not see "
            "the appends of another. Use a local directory, or any_file_system=True "
            "if only one host has it open"
        )
    return False
