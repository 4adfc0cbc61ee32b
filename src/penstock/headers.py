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

from penstock import _core
from penstock import layout as L
from penstock.errors import Corrupt, Io, UnsupportedVersion
from penstock.system import files

COPIES = (L.COPY_A_OFFSET, L.COPY_B_OFFSET)
_PAGES_END = L.COPY_B_OFFSET + L.COPY_BYTES


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


def write_checkpoint(
    fd: int, slot: bytes, generation: int, unpack: Unpack[H], since: int, path: str
) -> None:
    """Write a checkpoint over the older one, and behind it a copy of the header that counts.

    Generations of one slot are all odd or all even. A damaged header is not copied.
    """
    page, copies = _read_pages(fd, path)
    with suppress(Corrupt, UnsupportedVersion):
        _, place = choose(unpack, since, page, copies, path)
        slot += copies[place - 1] if place else copy_of(page)
    files.write_at(fd, slot, L.SLOT_A_OFFSET if generation % 2 else L.SLOT_B_OFFSET, path)


def read(fd: int, unpack: Unpack[H], since: int, path: str) -> H:
    """The header of an open file that counts; an error of reading if that is why none is valid."""
    page, copies = _read_pages(fd, path)
    try:
        return choose(unpack, since, page, copies, path)[0]
    except Corrupt:
        files.read_at(fd, L.PAGE, 0, path)  # if the device does not give it, that is the reason
        raise


def choose(
    unpack: Unpack[H], since: int, page: bytes, copies: Sequence[bytes], path: str
) -> tuple[H, int]:
    """The header that counts, and where it is: 0 for the header page, 1 and 2 for the copies.

    The header page counts if it is valid; but two valid copies that agree with each other, and not
    with it, count before it. Without a valid header page, the first valid copy counts. Copies in
    files that are older than the version ``since`` do not outvote their header page. If none is
    valid, this raises what is wrong with the header page.
    """
    try:
        header = unpack(page, path)
    except (Corrupt, UnsupportedVersion) as error:
        if isinstance(error, UnsupportedVersion) and page_is_good(page, len(page) - 4):
            raise  # it is whole, and not for this version
        for place, copy in enumerate(copies, 1):
            if (other := _valid(unpack, copy, path)) is not None:
                return other, place
        raise
    body = page[: L.COPY_BYTES - 4]
    if not any(copy.startswith(body) for copy in copies):  # a copy that does is valid, or no voice
        first, second = (_valid(unpack, copy, path) for copy in copies)
        if first is not None and first == second != header and first.version >= since:
            return first, 1
    return header, 0


def settle(
    unpack: Unpack[H], since: int, page: bytes, copies: Sequence[bytes], path: str
) -> tuple[H, list[Rot]]:
    """The header that counts, as `choose` says, and what is wrong with the others.

    Copies may be missing in files that are older than the version ``since``.
    """
    counts, place = choose(unpack, since, page, copies, path)
    rots = []
    if place:
        try:
            unpack(page, path)
            message = "its header differs from the two copies of it, which agree and count"
        except (Corrupt, UnsupportedVersion) as error:
            why = str(error).removeprefix(f"{path}: ")
            message = f"its header cannot be read ({why}), and a copy of it counts"
        rots.append(Rot(0, message))
    if counts.version >= since:
        for at, copy in zip(COPIES, copies, strict=True):
            header = _valid(unpack, copy, path)
            if header is None:
                rots.append(Rot(at, "a copy of its header cannot be read, and another one counts"))
            elif header != counts:
                rots.append(Rot(at, "a copy of its header differs from the one that counts"))
    return counts, rots


def _read_pages(fd: int, path: str) -> tuple[bytes, list[bytes]]:
    """The header page and its copies; none of the bytes that the device does not give."""
    data = b""
    with suppress(Io):
        data = files.read_at(fd, _PAGES_END, 0, path)
    if len(data) == _PAGES_END:
        return data[: L.PAGE], [data[at : at + L.COPY_BYTES] for at in COPIES]
    parts = []  # the file is short, or there is a page that cannot be read
    for at, nbytes in ((0, L.PAGE), *((at, L.COPY_BYTES) for at in COPIES)):
        parts.append(b"")
        with suppress(Io):
            parts[-1] = files.read_at(fd, nbytes, at, path)
    return parts[0], parts[1:]


def _valid(unpack: Unpack[H], copy: bytes, path: str) -> H | None:
    with suppress(Corrupt, UnsupportedVersion):
        return unpack(copy, path)
    return None
