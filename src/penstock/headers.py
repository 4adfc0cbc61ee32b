"""The header page of a segment or of a ring, and the two copies of it.

A header never changes once its file has a name. Copies of it, settings included, are in the pages
of the two checkpoints, behind the checkpoint. Each has a checksum of its own, so the file can be
read as long as one of the three pages is whole. Each checkpoint writes its whole page: a page that
a loss of power left torn is whole again after the next checkpoint there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol, TypeVar

from penstock import _core, files
from penstock import layout as L
from penstock.errors import Corrupt, UnsupportedVersion

COPIES = (L.COPY_A_OFFSET, L.COPY_B_OFFSET)


class Rot(NamedTuple):
    """What is wrong with a header page or with a copy of it, while another one counts."""

    offset: int
    message: str


class _Header(Protocol):
    @property
    def version(self) -> int: ...


H = TypeVar("H", bound=_Header)
Unpack = Callable[[bytes, str], H]


def seal_page(page: bytearray, crc_at: int) -> None:
    """Put in the checksum of what stands before it."""
    struct.pack_into("<I", page, crc_at, _core.crc32c(memoryview(page)[:crc_at]))


def page_is_good(page: bytes, crc_at: int) -> bool:
    """Whether the checksum matches what stands before it."""
    crc: int = struct.unpack_from("<I", page, crc_at)[0]
    return crc == _core.crc32c(memoryview(page)[:crc_at])


def copy_of(page: bytes) -> bytes:
    """The copy of a header page, with a checksum of its own."""
    copy = bytearray(page[: L.COPY_BYTES])
    seal_page(copy, L.COPY_BYTES - 4)
    return bytes(copy)


def put(fd: int, page: bytes, path: str) -> None:
    """Write a header page and its copies into a file that is still private."""
    copy = copy_of(page)
    for at in COPIES:
        files.write_at(fd, copy, at, path)
    files.write_at(fd, page, 0, path)


def write_checkpoint(fd: int, slot: bytes, generation: int, path: str) -> None:
    """Write a checkpoint over the older one, and behind it the copy of the header.

    Generations of one slot are all odd or all even. A damaged header is not copied.
    """
    page = files.read_at(fd, L.PAGE, 0, path)
    if len(page) == L.PAGE and page_is_good(page, L.HEADER_CRC):
        slot += copy_of(page)
    files.write_at(fd, slot, L.SLOT_A_OFFSET if generation % 2 else L.SLOT_B_OFFSET, path)


def read(fd: int, unpack: Unpack[H], path: str) -> H:
    """The checked header of an open file, or a copy of it if the header page is damaged."""
    page = files.read_at(fd, L.PAGE, 0, path)
    try:
        return unpack(page, path)
    except (Corrupt, UnsupportedVersion):
        copies = [files.read_at(fd, L.COPY_BYTES, at, path) for at in COPIES]
        return settle(unpack, 0, page, copies, path)[0]


def settle(
    unpack: Unpack[H], since: int, page: bytes, copies: Sequence[bytes], path: str
) -> tuple[H, list[Rot]]:
    """The header that counts, and what is wrong with the others.

    The header page counts if it is valid, even where a valid copy differs from it; else the first
    valid copy. Copies may be missing in files that are older than the version ``since``. If none is
    valid, this raises what is wrong with the header page.
    """
    rots = []
    try:
        counts = unpack(page, path)
    except (Corrupt, UnsupportedVersion) as error:
        if isinstance(error, UnsupportedVersion) and page_is_good(page, len(page) - 4):
            raise  # it is whole, and not for this version
        valid = [header for copy in copies if (header := _valid(unpack, copy, path)) is not None]
        if not valid:
            raise
        counts = valid[0]
        why = str(error).removeprefix(f"{path}: ")
        rots.append(Rot(0, f"its header cannot be read ({why}), and a copy of it counts"))
    if counts.version >= since:
        for at, copy in zip(COPIES, copies, strict=True):
            header = _valid(unpack, copy, path)
            if header is None:
                rots.append(Rot(at, "a copy of its header cannot be read, and another one counts"))
            elif header != counts:
                rots.append(Rot(at, "a copy of its header differs from the one that counts"))
    return counts, rots


def _valid(unpack: Unpack[H], copy: bytes, path: str) -> H | None:
    with suppress(Corrupt, UnsupportedVersion):
        return unpack(copy, path)
    return None
