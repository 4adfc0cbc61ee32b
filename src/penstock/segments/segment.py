"""One segment file: its header, checkpoint slots and footer, making one and mapping one.

Everything read from disk is checked here before it is trusted. The store knows which segments there
are, and the steward when to make or seal one.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field

from penstock import _core, headers
from penstock import layout as L
from penstock._core import SegmentMap, Walked
from penstock.errors import Corrupt
from penstock.headers import is_good, seal, take_apart
from penstock.system import files
from penstock.tunables import ALLOCATE_STEP_MIN

SUFFIX = ".seg"
BEGUN = b"PSKBEGUN"  # the start of a file that has no header yet
_VERSIONS = range(L.FORMAT_VERSION_OLDEST, L.FORMAT_VERSION + 1)
_IN_FLAGS = ("monotone", "compacted", "merged")  # of a header
_IDENTITY = ("uuid", "base_seq", "number", "generation")  # in header and footer
_NAME = re.compile(r"(?!0{20})[0-9]{20}\.seg")


def file_name(base_seq: int) -> str:
    """The name of the segment that begins with ``base_seq``."""
    return f"{base_seq:020d}{SUFFIX}"


def is_name(name: str) -> bool:
    """Whether a file name is a segment's: the base seq in 20 digits, and the suffix."""
    return _NAME.fullmatch(name) is not None


def bases_in(names: list[str]) -> list[int]:
    """The base seqs of all segments among some names, in order; quickly for very many.

    >>> bases_in(["00000000000000000007.seg", "control", "00000000000000000001.seg"])
    [1, 7]
    """
    found = [int(n[:20]) for n in names if n[20:] == SUFFIX and n[:20].isdecimal() and n.isascii()]
    found.sort()
    return found[bisect_right(found, 0) :]


def index_capacity(segment_bytes: int) -> int:
    """The number of index entries that a segment of that size can need."""
    return segment_bytes // L.INDEX_STEP + 2


def index_bytes_for(data_bytes: int) -> int:
    """Bytes of index that frames of ``data_bytes`` in all can need, in full pages."""
    return pages(index_capacity(data_bytes) * L.INDEX_ENTRY_BYTES)


def pages(nbytes: int) -> int:
    """A number of bytes, rounded up to full pages."""
    return -(-nbytes // L.PAGE) * L.PAGE


def size_for(frames_bytes: int, producers_bytes: int) -> int:
    """The smallest size of a sealed segment with that many bytes of frames, and such a table."""
    table = pages(producers_bytes)
    size = max(L.SEGMENT_BYTES_MIN, pages(producers_bytes * L.PRODUCERS_SHARE))
    while room_in(size) < frames_bytes + table:
        size += max(L.PAGE, pages((frames_bytes + table - room_in(size)) // 2))
    return size


def room_in(segment_bytes: int) -> int:
    """Bytes of frames that fit a segment of that size."""
    header = L.INDEX_OFFSET + index_bytes_for(segment_bytes)
    return segment_bytes - L.PAGE - L.FRAME_HEADER_BYTES - header


@dataclass(frozen=True, slots=True)
class Header:
    """The first page of a segment, of which there are copies in other pages."""

    uuid: bytes
    base_seq: int
    number: int
    generation: int
    created_ns: int
    segment_bytes: int
    prior_append_ns: int
    prior_event_max_ns: int
    monotone: bool
    settings: bytes
    producers_bytes: int = 0
    producers_crc: int = 0
    compacted: bool = False  # events were taken out of it
    merged: int = 0  # how many segments before it were merged into it
    version: int = field(default=L.FORMAT_VERSION, compare=False)  # as read; the newest is written

    @property
    def producers_offset(self) -> int:
        """The offset of the table of producers, if there is one."""
        return L.INDEX_OFFSET + index_bytes_for(self.segment_bytes)

    @property
    def data_offset(self) -> int:
        """Where the frames begin."""
        return self.producers_offset + pages(self.producers_bytes)

    @property
    def number_first(self) -> int:
        """The number of the first segment whose range it covers."""
        return self.number - self.merged

    @property
    def footer_offset(self) -> int:
        """The offset of the footer once the segment is sealed."""
        return self.segment_bytes - L.PAGE

    @property
    def frames_end(self) -> int:
        """Where appends stop: the roll frame still fits after it."""
        return self.footer_offset - L.FRAME_HEADER_BYTES

    def pack(self) -> bytes:
        """The page as it is on disk."""
        return seal(
            L.HEADER,
            magic=L.SEGMENT_MAGIC,
            version=L.FORMAT_VERSION,
            byte_order=L.BYTE_ORDER_MARK,
            uuid=self.uuid,
            base_seq=self.base_seq,
            number=self.number,
            generation=self.generation,
            created_ns=self.created_ns,
            segment_bytes=self.segment_bytes,
            data_offset=self.data_offset,
            index_offset=L.INDEX_OFFSET,
            index_capacity=index_capacity(self.segment_bytes),
            index_step=L.INDEX_STEP,
            prior_append_ns=self.prior_append_ns,
            prior_event_max_ns=self.prior_event_max_ns,
            flags=(L.HEADER_FLAG_MONOTONE if self.monotone else 0)
            | (L.HEADER_FLAG_COMPACTED if self.compacted else 0)
            | self.merged << L.HEADER_FLAG_MERGED_SHIFT,
            settings_len=len(self.settings),
            producers_offset=self.producers_offset if self.producers_bytes else 0,
            producers_bytes=self.producers_bytes,
            producers_crc=self.producers_crc,
            settings=self.settings,
        )

    @classmethod
    def unpack(cls, page: bytes, path: str) -> Header:
        """Check and unpack a header page, or a copy of one."""
        fields = take_apart(page, path, L.SEGMENT_MAGIC, "segment", _VERSIONS, "format version")
        flags = fields["flags"]
        header = cls(
            **{name: fields[name] for name in cls.__slots__ if name not in _IN_FLAGS},
            monotone=bool(flags & L.HEADER_FLAG_MONOTONE),
            compacted=bool(flags & L.HEADER_FLAG_COMPACTED),
            merged=flags >> L.HEADER_FLAG_MERGED_SHIFT,
        )
        size, table = header.segment_bytes, header.producers_bytes
        sane = (
            1 <= header.base_seq <= L.SEQ_MAX
            and 1 <= header.number <= L.SEGMENT_NUMBER_MAX
            and header.merged < header.number
            and L.SEGMENT_BYTES_MIN <= size <= L.SEGMENT_BYTES_MAX
            and size % L.PAGE == 0
            and fields["data_offset"] == header.data_offset
            and fields["index_offset"] == L.INDEX_OFFSET
            and fields["index_capacity"] == index_capacity(size)
            and fields["index_step"] == L.INDEX_STEP
            and fields["settings_len"] <= L.SETTINGS_BYTES_MAX
            and fields["producers_offset"] == (header.producers_offset if table else 0)
            and table <= size // L.PRODUCERS_SHARE
        )
        if not sane:
            raise Corrupt(f"{path}: its header is not consistent", path=path, offset=0)
        return header


@dataclass(frozen=True, slots=True)
class Slot:
    """A checkpoint: frames up to ``offset`` were on disk when it was written."""

    generation: int
    offset: int
    last_frame: int
    last_seq: int
    last_append_ns: int
    settings_offset: int
    index_count: int
    event_max_ns: int
    producer_offset: int
    monotone: bool

    def pack(self) -> bytes:
        """The 512 bytes at the start of a checkpoint page."""
        return seal(
            L.SLOT,
            magic=L.SLOT_MAGIC,
            generation=self.generation,
            offset=self.offset,
            last_frame=self.last_frame,
            last_seq=self.last_seq,
            last_append_ns=self.last_append_ns,
            settings_offset=self.settings_offset,
            index_count=self.index_count,
            event_max_ns=self.event_max_ns,
            flags=L.SLOT_FLAG_MONOTONE if self.monotone else 0,
            producer_offset=self.producer_offset,
        )

    @classmethod
    def unpack(cls, data: bytes, header: Header | None) -> Slot | None:
        """The slot, or None if it is not valid for a segment with that header, if one is known."""
        if len(data) < L.SLOT_BYTES or data[: len(L.SLOT_MAGIC)] != L.SLOT_MAGIC:
            return None
        if not is_good(L.SLOT, data):
            return None
        fields = L.SLOT.unpack(data)
        slot = cls(
            **{name: fields[name] for name in cls.__slots__ if name != "monotone"},
            monotone=bool(fields["flags"] & L.SLOT_FLAG_MONOTONE),
        )
        if header is None:
            return slot
        frames = (slot.last_frame, slot.settings_offset, slot.producer_offset)
        inside = (
            header.data_offset <= slot.offset <= header.footer_offset
            and slot.offset % L.ALIGN == 0
            and all(at == 0 or header.data_offset <= at < slot.offset for at in frames)
        )
        return slot if inside and slot.index_count <= index_capacity(header.segment_bytes) else None


def first_slot(header: Header) -> Slot:
    """The checkpoint of a segment without frames."""
    return Slot(
        generation=1,
        offset=header.data_offset,
        last_frame=0,
        last_seq=header.base_seq - 1,
        last_append_ns=header.prior_append_ns,
        settings_offset=0,
        index_count=0,
        event_max_ns=header.prior_event_max_ns,
        producer_offset=0,
        monotone=header.monotone,
    )


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """The footer of a sealed segment, which summarises it."""

    data_end: int
    last_frame: int
    count: int
    first_seq: int
    last_seq: int
    next_seq: int
    first_append_ns: int
    last_append_ns: int
    event_min_ns: int
    event_max_ns: int
    log_event_max_ns: int
    sealed_ns: int
    index_count: int
    index_crc: int
    data_crc: int
    monotone: bool
    log_monotone: bool
    topics: frozenset[bytes] | None  # None: too many to keep
    filter_pages: int | None = None  # of the key filter after the footer; None: there is none

    @classmethod
    def of(
        cls,
        walk: Walked,
        *,
        index_crc: int,
        topics: frozenset[bytes] | None,
        sealed_ns: int,
        filter_pages: int | None = None,
    ) -> SegmentSummary:
        """The result of a walk over all frames of a segment that has rolled."""
        return cls(
            data_end=walk.offset,
            last_frame=walk.last_frame,
            count=walk.count,
            first_seq=walk.first_seq,
            last_seq=walk.last_seq,
            next_seq=walk.next_seq,
            first_append_ns=walk.first_append_ns,
            last_append_ns=walk.last_append_ns,
            event_min_ns=walk.event_min_ns if walk.count else 0,
            event_max_ns=walk.event_seen_max_ns,
            log_event_max_ns=walk.event_max_ns,
            sealed_ns=sealed_ns,
            index_count=walk.index_count + 1,
            index_crc=index_crc,
            data_crc=walk.digest ^ 0xFFFFFFFF,
            monotone=walk.monotone_here,
            log_monotone=walk.monotone,
            topics=topics,
            filter_pages=filter_pages,
        )

    def pack(self, header: Header) -> bytes:
        """The page as it is on disk."""
        topics = b"".join(L.TOPIC_ENTRY.pack(len=len(t)) + t for t in sorted(self.topics or ()))
        flags = (
            (L.FOOTER_FLAG_MONOTONE if self.monotone else 0)
            | (L.FOOTER_FLAG_LOG_MONOTONE if self.log_monotone else 0)
            | (L.FOOTER_FLAG_TOPICS_COMPLETE if self.topics is not None else 0)
            | (L.FOOTER_FLAG_KEYS if self.filter_pages is not None else 0)
        )
        return seal(
            L.FOOTER,
            magic=L.FOOTER_MAGIC,
            version=L.FORMAT_VERSION,
            flags=flags,
            uuid=header.uuid,
            base_seq=header.base_seq,
            number=header.number,
            generation=header.generation,
            data_end=self.data_end,
            last_frame=self.last_frame,
            count=self.count,
            first_seq=self.first_seq,
            last_seq=self.last_seq,
            next_seq=self.next_seq,
            first_append_ns=self.first_append_ns,
            last_append_ns=self.last_append_ns,
            event_min_ns=self.event_min_ns,
            event_max_ns=self.event_max_ns,
            log_event_max_ns=self.log_event_max_ns,
            sealed_ns=self.sealed_ns,
            index_count=self.index_count,
            index_crc=self.index_crc,
            data_crc=self.data_crc,
            topics_count=len(self.topics or ()),
            topics_len=len(topics),
            filter_pages=self.filter_pages or 0,
            topics=topics,
        )

    @classmethod
    def unpack(cls, page: bytes, header: Header) -> SegmentSummary | None:
        """The summary, or None if the page is not a valid footer of that segment."""
        if len(page) < L.PAGE or page[: len(L.FOOTER_MAGIC)] != L.FOOTER_MAGIC:
            return None
        if not is_good(L.FOOTER, page):
            return None
        fields = L.FOOTER.unpack(page)
        same = all(fields[name] == getattr(header, name) for name in _IDENTITY)
        if not same or fields["version"] not in _VERSIONS:
            return None
        flags = fields["flags"]
        topics = None
        if flags & L.FOOTER_FLAG_TOPICS_COMPLETE:
            topics = _unpack_topics(fields["topics"], fields["topics_count"], fields["topics_len"])
        data_end, last_frame = fields["data_end"], fields["last_frame"]
        inside = header.data_offset <= last_frame < data_end <= header.footer_offset
        if not inside or fields["index_count"] > index_capacity(header.segment_bytes):
            return None
        own = ("monotone", "log_monotone", "topics", "filter_pages")
        return cls(
            **{name: fields[name] for name in cls.__slots__ if name not in own},
            monotone=bool(flags & L.FOOTER_FLAG_MONOTONE),
            log_monotone=bool(flags & L.FOOTER_FLAG_LOG_MONOTONE),
            topics=topics,
            filter_pages=fields["filter_pages"] if flags & L.FOOTER_FLAG_KEYS else None,
        )

    @property
    def filter_bytes(self) -> int:
        """Bytes of the key filter after the footer."""
        return (self.filter_pages or 0) * L.PAGE


def open_block(walk: Walked) -> bytes:
    """The index entry of the current block of a walk."""
    return L.INDEX_ENTRY.pack(
        offset=walk.block_offset,
        topics=walk.block_topics,
        seq=walk.block_seq,
        append_ns=walk.block_append_ns,
        event_min_ns=walk.block_event_min_ns,
        event_max_ns=walk.block_event_max_ns,
    )


def _unpack_topics(data: bytes, count: int, nbytes: int) -> frozenset[bytes] | None:
    if nbytes > L.TOPICS_BYTES_MAX:
        return None
    at, found = 0, []
    while at < nbytes:
        start = at + L.TOPIC_ENTRY_BYTES
        at = start + L.TOPIC_ENTRY.get(data[at:start], "len")
        found.append(data[start:at])
    return frozenset(found) if len(found) == count and at == nbytes else None


def read_header(fd: int, path: str) -> Header:
    """The checked header of an open segment file, or the copy that is used."""
    return headers.read(fd, Header.unpack, L.COPY_VERSION, path)


def read_footer(fd: int, header: Header, path: str) -> SegmentSummary | None:
    """The checked footer; None if the segment is not sealed."""
    if files.size(fd, path) < header.segment_bytes:
        return None
    return SegmentSummary.unpack(files.read_at(fd, L.PAGE, header.footer_offset, path), header)


def write_start(fd: int, header: Header, producers: bytes, path: str) -> None:
    """Write and sync the header and first checkpoint of an allocated, still private file."""
    if producers:
        padded = producers.ljust(pages(len(producers)), b"\0")
        files.write_at(fd, padded, header.producers_offset, path)
    put_start(fd, header, path)
    files.sync_data(fd, path)


def put_start(fd: int, header: Header, path: str) -> None:
    """Write the header, its copies and the first checkpoint; the caller syncs them."""
    files.write_at(fd, first_slot(header).pack(), L.SLOT_A_OFFSET, path)
    headers.put(fd, header.pack(), path)


def mark_begun(fd: int, path: str) -> None:
    """Mark a new file as a future segment. The header replaces this mark."""
    files.write_at(fd, BEGUN, 0, path)


def prepare_file(
    path: str,
    segment_bytes: int,
    mode: int,
    producers_bytes: int = 0,
    frames_bytes: int = ALLOCATE_STEP_MIN,
) -> int:
    """Make a private file with blocks for the start of a segment; returns its descriptor."""
    fd = files.create_file(path, mode)
    try:
        mark_begun(fd, path)
        data_offset = L.INDEX_OFFSET + index_bytes_for(segment_bytes) + pages(producers_bytes)
        step = min(frames_bytes, segment_bytes - L.PAGE - data_offset)
        files.allocate(fd, 0, L.INDEX_OFFSET + index_bytes_for(step), path)
        files.allocate(fd, data_offset - pages(producers_bytes), data_offset + step, path)
    except BaseException:
        files.close(fd)
        files.unlink(path)
        raise
    return fd


def read_producers(fd: int, header: Header, path: str) -> bytes:
    """The checked bytes of the table of producers at the start of the segment."""
    if not header.producers_bytes:
        return b""
    data = files.read_at(fd, header.producers_bytes, header.producers_offset, path)
    if len(data) < header.producers_bytes or _core.crc32c(data) != header.producers_crc:
        raise Corrupt(
            f"{path}: the checksum of its table of producers does not match; run repair",
            path=path,
            offset=header.producers_offset,
        )
    return data


def newest_slot(fd: int, header: Header, path: str) -> Slot | None:
    """The newer valid checkpoint, if any."""
    slots = [
        Slot.unpack(files.read_at(fd, L.SLOT_BYTES, at, path), header)
        for at in (L.SLOT_A_OFFSET, L.SLOT_B_OFFSET)
    ]
    return max((s for s in slots if s), key=lambda s: s.generation, default=None)


def map_segment(path: str, *, write: bool = False) -> tuple[SegmentMap, Header]:
    """Open, check and map a segment. The descriptor stays open only while it is not sealed."""
    fd = files.open_file(path, write=write)
    try:
        header = read_header(fd, path)
        if files.size(fd, path) < header.data_offset:
            raise Corrupt(
                f"{path}: is cut short: {files.size(fd, path)} bytes, its frames begin at "
                f"{header.data_offset}",
                path=path,
                offset=files.size(fd, path),
            )
        summary = read_footer(fd, header, path)
    except BaseException:
        files.close(fd)
        raise
    filter_bytes = 0 if summary is None else summary.filter_bytes
    whole = files.size(fd, path) >= header.segment_bytes + filter_bytes
    m = SegmentMap(fd, str(path), header.segment_bytes + (filter_bytes if whole else 0), write)
    describe(m, header, summary)
    if summary is not None:
        m.close_fd()
    elif write:
        m.touch_singly(L.INDEX_OFFSET, header.data_offset)
    return m, header


def describe(m: SegmentMap, header: Header, summary: SegmentSummary | None) -> None:
    """Tell a map what the checked header says, and the footer if there is one."""
    m.uuid = header.uuid
    m.settings = header.settings
    m.base_seq = header.base_seq
    m.number = header.number
    m.generation = header.generation
    m.compacted = header.compacted
    m.merged = header.merged
    m.data_offset = header.data_offset
    m.frames_end = header.frames_end
    m.append_max = header.frames_end - header.data_offset
    m.index_offset = L.INDEX_OFFSET
    m.index_capacity = index_capacity(header.segment_bytes)
    m.prior_append_ns = header.prior_append_ns
    m.prior_event_max_ns = header.prior_event_max_ns
    m.prior_monotone = header.monotone
    if summary is not None:
        m.summary = summary
        m.data_end = summary.data_end
        m.index_count = summary.index_count
        m.index_crc = summary.index_crc
        m.next_seq = summary.next_seq
        m.has_filter = summary.filter_pages is not None
        m.filter_at = header.segment_bytes
        m.filter_pages = summary.filter_pages or 0


def disk_bytes(path: str) -> int:
    """Bytes that the file takes on disk."""
    return files.status(path).st_blocks * 512
