"""The file of an archived segment, in the seekable format of zstd.

Each block is one zstd frame with its own checksum, so that one event costs one block, and zstd
itself gives back the segment. A skippable frame with a record of ours follows, and then the seek
table. Record and table are read first, and nothing of a file is believed before it is checked.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from penstock import _core, headers
from penstock import layout as L
from penstock.archive import zstd
from penstock.errors import Corrupt, UnsupportedVersion
from penstock.segments import segment
from penstock.segments.segment import Header, SegmentSummary
from penstock.settings import Settings

BLOCK_BYTES = 128 << 10  # of frames in one block, at least; larger ones are hardly smaller
GAP_BYTES = 16 << 20  # of unused space in one block
LEVEL = 3

_END_MAGIC = L.SKIPPABLE.fields["magic"].pack(L.ZSTD_SEEK_MAGIC)
_SETTINGS_MAX = L.SETTINGS_BYTES_MAX
_BLOCKS_MAX = 1 << 20


class Piece(NamedTuple):
    """The part of a segment's file that becomes one block."""

    start: int
    stop: int


def cut(header: Header, summary: SegmentSummary, index: bytes) -> list[Piece]:
    """The pieces of a sealed segment: frames are cut where an index block begins."""
    entry = L.INDEX_ENTRY
    starts = [
        entry.get(index[at : at + entry.size], "offset") for at in range(0, len(index), entry.size)
    ]
    cuts = [0, L.INDEX_OFFSET, header.data_offset]
    for at in starts:
        if at >= cuts[-1] + BLOCK_BYTES and at < summary.data_end:
            cuts.append(at)
    cuts.append(summary.data_end)
    while header.footer_offset - cuts[-1] > GAP_BYTES:
        cuts.append(cuts[-1] + GAP_BYTES)
    cuts += [header.footer_offset, header.segment_bytes]
    if summary.filter_bytes:
        cuts.append(header.segment_bytes + summary.filter_bytes)
    return [Piece(start, stop) for start, stop in pairwise(cuts) if stop > start]


def compressor() -> Callable[[bytes], bytes]:
    """What makes one block of some bytes; for one thread."""
    library = zstd.library()
    parameter = library.CompressionParameter
    made = library.ZstdCompressor(
        options={parameter.compression_level: LEVEL, parameter.checksum_flag: 1}
    )
    return lambda data: bytes(made.compress(data, made.FLUSH_FRAME))


def tail(
    header: Header, next_seq: int, pieces: Sequence[Piece], blocks: Sequence[bytes], settings: bytes
) -> bytes:
    """What follows the blocks: the record, and the seek table."""
    entries = b"".join(
        _entry(len(block), stop - start, L.SEEK_ENTRY.fields["checksum"].unpack(block[-4:]))
        for (start, stop), block in zip(pieces, blocks, strict=True)
    )
    record = headers.seal(
        L.ARCHIVED,
        magic=L.ARCHIVED_MAGIC,
        version=L.ARCHIVE_VERSION,
        blocks=len(pieces),
        uuid=header.uuid,
        base_seq=header.base_seq,
        number=header.number,
        generation=header.generation,
        next_seq=next_seq,
        file_bytes=pieces[-1].stop,
        settings_len=len(settings),
        settings_crc=_core.crc32c(settings),
        table_crc=_core.crc32c(entries),
    )
    record += settings
    frame = _skippable(L.ZSTD_RECORD, len(record)) + record
    entries += _entry(len(frame), 0)
    end = L.SEEK_END.pack(count=len(pieces) + 1, flags=L.ZSTD_CHECKSUMS, magic=_END_MAGIC)
    return frame + _skippable(L.ZSTD_TABLE, len(entries) + len(end)) + entries + end


def _entry(compressed: int, nbytes: int, checksum: int = 0) -> bytes:
    return L.SEEK_ENTRY.pack(compressed=compressed, nbytes=nbytes, checksum=checksum)


def _skippable(magic: int, nbytes: int) -> bytes:
    return L.SKIPPABLE.pack(magic=magic, nbytes=nbytes)


TAIL_GUESS = 64 << 10  # bytes from the end that have record and table of most files


@dataclass(frozen=True)
class Archived:
    """What the end of an archived segment says, checked."""

    path: str
    uuid: bytes
    base_seq: int
    number: int
    generation: int
    next_seq: int
    file_bytes: int
    settings_json: bytes
    compressed: tuple[int, ...]  # where each block begins in the archived file, and the last ends
    bounds: tuple[int, ...]  # where each block begins in the segment, and the last one ends

    @cached_property
    def settings(self) -> Settings:
        """The settings that the log had when this was archived."""
        return Settings.from_json(self.settings_json, self.path)

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return len(self.bounds) - 1

    def block_at(self, offset: int) -> int:
        """The block with the byte at ``offset`` of the segment."""
        return bisect_right(self.bounds, offset) - 1

    def place(self, first: int, after: int) -> tuple[int, int]:
        """Where blocks begin in the archived file, and how many bytes they have there."""
        start = self.compressed[first]
        return start, self.compressed[after] - start

    def split(self, data: bytes, first: int, after: int) -> Iterator[memoryview]:
        """The blocks in bytes that were read from their `place`."""
        start, nbytes = self.place(first, after)
        if len(data) != nbytes:
            raise self.damage(f"is cut short: {len(data)} of {nbytes} bytes", start)
        view = memoryview(data)
        for block in range(first, after):
            yield view[self.compressed[block] - start : self.compressed[block + 1] - start]

    def decompress(self, data: Any, block: int) -> bytes:
        """The bytes of the segment in one block."""
        wanted = self.bounds[block + 1] - self.bounds[block]
        library = zstd.library()
        made = library.ZstdDecompressor()
        try:
            found = bytes(made.decompress(data, wanted + 1))
            # The end of a frame is only seen when there is room for more output.
            whole = made.eof and len(found) == wanted and not made.unused_data
        except library.ZstdError as error:
            raise self.damage(f"a block cannot be decompressed ({error})", block=block) from None
        if not whole:
            raise self.damage("a block has another size than its file says", block=block)
        return found

    def damage(self, what: str, offset: int | None = None, block: int | None = None) -> Corrupt:
        """The error for a file that is not as it was written."""
        if block is not None:
            offset = self.compressed[block]
        return Corrupt(
            f"{self.path}: at offset {offset}: {what}; restore this file from a copy",
            path=self.path,
            offset=offset,
        )


def tail_bytes(end: bytes, nbytes: int, path: str) -> int:
    """How many of the last bytes of a file are record and table, by those that were read."""
    if len(end) < L.SEEK_END.size:
        raise _not_one(path, "it is too short")
    entries: int
    entries, flags, magic = L.SEEK_END.form.unpack_from(end, len(end) - L.SEEK_END.size)
    if magic != _END_MAGIC or flags != L.ZSTD_CHECKSUMS:
        raise _not_one(path, "it does not end like one")
    if not 1 < entries <= _BLOCKS_MAX:
        raise _not_one(path, f"it says that it has {entries} blocks")
    table = L.SKIPPABLE.size + entries * L.SEEK_ENTRY.size + L.SEEK_END.size
    record_max = L.SKIPPABLE.size + L.ARCHIVED.size + _SETTINGS_MAX
    return min(nbytes, table + record_max)


def parse(end: bytes, nbytes: int, path: str) -> Archived:
    """Check the end of a file of ``nbytes``; ``end`` has at least its `tail_bytes`."""
    entries: int = L.SEEK_END.form.unpack_from(end, len(end) - L.SEEK_END.size)[0]
    at = len(end) - L.SEEK_END.size - entries * L.SEEK_ENTRY.size - L.SKIPPABLE.size
    if at < 0:
        raise _not_one(path, "its seek table is cut short")
    expected = (L.ZSTD_TABLE, entries * L.SEEK_ENTRY.size + L.SEEK_END.size)
    if L.SKIPPABLE.form.unpack_from(end, at) != expected:
        raise _not_one(path, "its seek table does not begin like one")
    table = end[at + L.SKIPPABLE.size : -L.SEEK_END.size]
    rows = list(L.SEEK_ENTRY.form.iter_unpack(table))
    frame_bytes, zero, _ = rows.pop()
    begin = at - frame_bytes
    if begin < 0 or zero or frame_bytes < L.SKIPPABLE.size + L.ARCHIVED.size:
        raise _not_one(path, "its record is not where the seek table says")
    fields, settings = _record(end[begin:at], path)
    sum_here = _core.crc32c(table[: -L.SEEK_ENTRY.size])
    if fields["blocks"] != len(rows) or fields["table_crc"] != sum_here:
        raise _not_one(path, "the checksum of its seek table does not match")
    compressed = tuple(accumulate((row[0] for row in rows), initial=0))
    bounds = tuple(accumulate((row[1] for row in rows), initial=0))
    if (
        compressed[-1] + len(end) - begin != nbytes
        or bounds[-1] != fields["file_bytes"]
        or not L.SEGMENT_BYTES_MIN <= bounds[-1] <= 2 * L.SEGMENT_BYTES_MAX
        or not fields["base_seq"] < fields["next_seq"] + (fields["generation"] > 0)
        or 0 in (row[1] for row in rows)
    ):
        raise _not_one(path, "its record is not consistent")
    kept = ("uuid", "base_seq", "number", "generation", "next_seq", "file_bytes")
    return Archived(
        path=path,
        settings_json=settings,
        compressed=compressed,
        bounds=bounds,
        **{name: fields[name] for name in kept},
    )


def _record(frame: bytes, path: str) -> tuple[dict[str, Any], bytes]:
    """The fields of the record, and the settings after it."""
    if L.SKIPPABLE.form.unpack_from(frame) != (L.ZSTD_RECORD, len(frame) - L.SKIPPABLE.size):
        raise _not_one(path, "its record does not begin like one")
    raw = frame[L.SKIPPABLE.size : L.SKIPPABLE.size + L.ARCHIVED.size]
    settings = frame[L.SKIPPABLE.size + L.ARCHIVED.size :]
    fields = L.ARCHIVED.unpack(raw)
    if fields["magic"] != L.ARCHIVED_MAGIC or not headers.is_good(L.ARCHIVED, raw):
        raise _not_one(path, "the checksum of its record does not match")
    if fields["version"] != L.ARCHIVE_VERSION:
        raise UnsupportedVersion(
            f"{path}: archived in version {fields['version']}; this Penstock reads version "
            f"{L.ARCHIVE_VERSION}",
            path=path,
        )
    good = fields["settings_len"] == len(settings) <= _SETTINGS_MAX
    if not good or fields["settings_crc"] != _core.crc32c(settings):
        raise _not_one(path, "the checksum of its settings does not match")
    return fields, settings


def _not_one(path: str, why: str) -> Corrupt:
    return Corrupt(f"{path}: is not a complete archived segment: {why}", path=path, offset=0)


def header_of(archived: Archived, page: bytes) -> Header:
    """The header of the segment, from its first pages; it must be the one that was archived."""
    copies = [page[at : at + L.COPY_BYTES] for at in headers.COPIES]
    header, _ = headers.choose(
        segment.Header.unpack, L.COPY_VERSION, page[: L.PAGE], copies, archived.path
    )
    same = all(
        getattr(header, name) == getattr(archived, name)
        for name in ("uuid", "base_seq", "number", "generation")
    )
    if not same or header.segment_bytes > archived.file_bytes:
        raise _not_one(archived.path, "its header is that of another segment")
    return header
