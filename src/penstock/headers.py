"""The header page of a segment or of a ring, and the two copies of it.

A header never changes once its file has a name. Copies of it, settings included, are in the pages
of the two checkpoints, after the checkpoint. Each has its own checksum, so the file can be read as
long as one of the three pages is valid. Each checkpoint writes its full page: a page that power
loss left torn is valid again after the next checkpoint there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeVar

from penstock import _core
from penstock import layout as L
from penstock.errors import Corrupt, Io, UnsupportedVersion
from penstock.system import files

COPIES = (L.COPY_A_OFFSET, L.COPY_B_OFFSET)
_PAGES_END = L.COPY_B_OFFSET + L.COPY_BYTES


class Rot(NamedTuple):
    """What is wrong with a header page or with a copy of it, if another one is used."""

    offset: int
    message: str


class _Header(Protocol):
    @property
    def version(self) -> int: ...


H = TypeVar("H", bound=_Header)
Unpack = Callable[[bytes, str], H]


def seal(record: L.RecordType, **values: int | bytes) -> bytes:
    """The bytes of a record with these values, and with the checksum of the bytes before it."""
    page = bytearray(record.pack(**values))
    record.put(page, crc=_sum(record, page))
    return bytes(page)


def is_good(record: L.RecordType, page: bytes | bytearray) -> bool:
    """Whether the checksum of a record matches the bytes before it."""
    return record.get(page, "crc") == _sum(record, page)


def _sum(record: L.RecordType, page: bytes | bytearray) -> int:
    return _core.crc32c(memoryview(page)[: record.fields["crc"].at])


def _record_of(page: bytes) -> L.RecordType:
    """The kind of such a page: a header page, or a copy of one."""
    return L.HEADER if len(page) == L.PAGE else L.COPY


def copy_of(page: bytes) -> bytes:
    """The copy of a header page, with its own checksum."""
    return seal(L.COPY, header=page[: L.COPY_CRC])


def take_apart(
    page: bytes, path: str, magic: bytes, what: str, versions: range, version_of: str
) -> dict[str, Any]:
    """The fields of a header page, or of a copy of one, if it is valid and of a known version."""
    if len(page) not in (L.PAGE, L.COPY_BYTES) or not page.startswith(magic):
        raise Corrupt(f"{path}: this is not a {what}: it does not begin like one", path=path)
    fields = L.HEADER.unpack(page.ljust(L.PAGE, b"\0"))
    version, order = fields["version"], fields["byte_order"]
    if order != L.BYTE_ORDER_MARK:
        raise UnsupportedVersion(f"{path}: written in another byte order ({order:#x})", path=path)
    if version not in versions:
        raise UnsupportedVersion(
            f"{path}: {version_of} {version}; this Penstock reads versions {versions[0]} to "
            f"{versions[-1]}",
            path=path,
        )
    if not is_good(_record_of(page), page):
        raise Corrupt(f"{path}: the checksum of its header does not match", path=path, offset=0)
    fields["settings"] = fields["settings"][: fields["settings_len"]]
    return fields


def put(fd: int, page: bytes, path: str) -> None:
    """Write a header page and its copies into a file that is still private."""
    copy = copy_of(page)
    for at in COPIES:
        files.write_at(fd, copy, at, path)
    files.write_at(fd, page, 0, path)


def write_checkpoint(
    fd: int, slot: bytes, generation: int, unpack: Unpack[H], since: int, path: str
) -> None:
    """Write a checkpoint over the older one, and after it a copy of the header in use.

    Generations of one slot are all odd or all even. A damaged header is not copied.
    """
    page, copies = _read_pages(fd, path)
    with suppress(Corrupt, UnsupportedVersion):
        _, place = choose(unpack, since, page, copies, path)
        slot += copies[place - 1] if place else copy_of(page)
    files.write_at(fd, slot, L.SLOT_A_OFFSET if generation % 2 else L.SLOT_B_OFFSET, path)


def read(fd: int, unpack: Unpack[H], since: int, path: str) -> H:
    """The header of an open file; raises a read error if that is why no copy is valid."""
    page, copies = _read_pages(fd, path)
    try:
        return choose(unpack, since, page, copies, path)[0]
    except Corrupt:
        files.read_at(fd, L.PAGE, 0, path)  # if it cannot be read, that is the reason
        raise


def choose(
    unpack: Unpack[H], since: int, page: bytes, copies: Sequence[bytes], path: str
) -> tuple[H, int]:
    """The header to use, and its place: 0 for the header page, 1 and 2 for the copies.

    The header page is used if it is valid; but two valid copies that agree with each other, and not
    with it, have priority. Without a valid header page, the first valid copy is used. Copies in
    files that are older than the version ``since`` do not outvote their header page. If none is
    valid, this raises what is wrong with the header page.
    """
    try:
        header = unpack(page, path)
    except (Corrupt, UnsupportedVersion) as error:
        if isinstance(error, UnsupportedVersion) and is_good(_record_of(page), page):
            raise  # it is valid, but not for this version
        for place, copy in enumerate(copies, 1):
            if (other := _valid(unpack, copy, path)) is not None:
                return other, place
        raise
    body = page[: L.COPY_CRC]
    if not any(
        copy.startswith(body) for copy in copies
    ):  # a copy that matches is valid, or is ignored
        first, second = (_valid(unpack, copy, path) for copy in copies)
        if first is not None and first == second != header and first.version >= since:
            return first, 1
    return header, 0


def weigh(
    unpack: Unpack[H], since: int, page: bytes, copies: Sequence[bytes], path: str
) -> tuple[H, list[Rot]]:
    """The header that `choose` selects, and what is wrong with the others.

    Copies may be missing in files that are older than the version ``since``.
    """
    counts, place = choose(unpack, since, page, copies, path)
    rots = []
    if place:
        try:
            unpack(page, path)
            message = "its header differs from its two copies, which agree and are used"
        except (Corrupt, UnsupportedVersion) as error:
            why = str(error).removeprefix(f"{path}: ")
            message = f"its header cannot be read ({why}), so a copy of it is used"
        rots.append(Rot(0, message))
    if counts.version >= since:
        for at, copy in zip(COPIES, copies, strict=True):
            header = _valid(unpack, copy, path)
            if header is None:
                rots.append(Rot(at, "a copy of its header cannot be read, so another one is used"))
            elif header != counts:
                rots.append(Rot(at, "a copy of its header differs from the one in use"))
    return counts, rots


def _read_pages(fd: int, path: str) -> tuple[bytes, list[bytes]]:
    """The header page and its copies, without bytes that cannot be read."""
    data = b""
    with suppress(Io):
        data = files.read_at(fd, _PAGES_END, 0, path)
    if len(data) == _PAGES_END:
        return data[: L.PAGE], [data[at : at + L.COPY_BYTES] for at in COPIES]
    parts = []  # the file is short, or a page cannot be read
    for at, nbytes in ((0, L.PAGE), *((at, L.COPY_BYTES) for at in COPIES)):
        parts.append(b"")
        with suppress(Io):
            parts[-1] = files.read_at(fd, nbytes, at, path)
    return parts[0], parts[1:]


def _valid(unpack: Unpack[H], copy: bytes, path: str) -> H | None:
    with suppress(Corrupt, UnsupportedVersion):
        return unpack(copy, path)
    return None
