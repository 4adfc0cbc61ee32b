"""A small ext4 of its own, whose power can be cut: a file, a loop device, a mount that nobody sees.

It lives in a mount namespace of the calling process. When that process ends, however it ends, the
kernel unmounts it and lets go of the loop device.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import subprocess
from pathlib import Path

from tests.support.wait import wait_for

# From the kernel's include/uapi/linux: ext4.h (_IOR('X', 125, __u32) and its flags), fs.h, mount.h.
EXT4_IOC_SHUTDOWN = 0x8004587D
LOGFLUSH = 1  # the journal reaches the device, data do not
NOLOGFLUSH = 2  # nothing more reaches the device
_CLONE_NEWNS = 0x00020000
_MS_REC, _MS_PRIVATE = 16384, 1 << 18
_SYNC_FILE_RANGE_WRITE = 2

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"{command[0]}: {done.stderr.strip()}")


class Ext4:
    """The file system; made once, mounted and cut off again and again."""

    def __init__(self, directory: Path, block_bytes: int, size: int = 24 << 20) -> None:
        self._image = directory / "image"
        with open(self._image, "wb") as file:
            file.truncate(size)
        self.root = directory / "mounted"
        self.root.mkdir()
        options = ["-q", "-F", "-b", str(block_bytes), "-E", "lazy_itable_init=0,nodiscard"]
        _run("mkfs.ext4", *options, str(self._image))
        _check(_libc.unshare(_CLONE_NEWNS), "unshare")
        _check(_libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "private mounts")
        self._fd = -1

    def mount(self) -> None:
        """Mount it; the journal is replayed.

        Each time on a new loop device: the cache of an old one would know what was never written.
        Without barriers, since what a loop device was given is as good as on disk.
        """
        _run("mount", "-t", "ext4", "-o", "loop,barrier=0", str(self._image), str(self.root))
        self._fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def sync(self) -> None:
        """Have everything in it on disk."""
        _check(_libc.syncfs(self._fd), "syncfs")

    def cut(self, flags: int) -> None:
        """Let nothing more reach the device, from this moment on."""
        # It must be the small one: whatever else stands at that place would be shut down as well.
        device = os.fstat(self._fd).st_dev
        sys = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/loop/backing_file"
        assert Path(sys).read_text().strip() == str(self._image)
        fcntl.ioctl(self._fd, EXT4_IOC_SHUTDOWN, struct.pack("<I", flags))

    def unmount(self) -> None:
        """Unmount it; everybody else must have let go of it."""
        os.close(self._fd)
        self._fd = -1

        def unmounted() -> bool:
            return bool(_libc.umount2(str(self.root).encode(), 0) == 0)

        wait_for(unmounted, f"{self.root} to be unmounted")


def write_back(path: Path, start: int, nbytes: int) -> None:
    """Have the kernel begin to write some pages, as it may at any time, with no promise."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        offset, length = ctypes.c_int64(start), ctypes.c_int64(nbytes)
        _libc.sync_file_range(fd, offset, length, _SYNC_FILE_RANGE_WRITE)
    finally:
        os.close(fd)
