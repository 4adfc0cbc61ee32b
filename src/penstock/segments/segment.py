"""One segment file: its header, checkpoint slots and footer, making one and mapping one.

Everything read from disk is checked here before anyone trusts it. Which segments there are is the
store's business, and when to make or seal one is the steward's.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field

from penstock import _core, headers
from penstock import layout as L
from penstock._core import SegmentMap, Walked
from penstock.errors import Corrupt, UnsupportedVersion
from penstock.headers import page_is_good, seal_page
from penstock.system import files

SUFFIX = ".seg"
BEGUN = b"PSKBEGUN"  # how a file begins that has no header yet
_SLOT = struct.Struct("<8s10Q")
_NAME = re.compile(r"(?!0{20})[0-9]{20}\.seg")


def file_name(base_seq: int) -> str:
    """The name of the segment that begins with ``base_seq``."""
    return f"{base_seq:020d}{SUFFIX}"


def is_name(name: str) -> bool:
    """Whether a file name is a segment's: the base seq in 20 digits, and the suffix."""
    return _NAME.fullmatch(name) is not None


def index_capacity(segment_bytes: int) -> int:
    """How many index entries a segment of that size can need."""
    return segment_bytes // L.INDEX_STEP + 2


def index_bytes_for(data_bytes: int) -> int:
    """Bytes of index that frames of ``data_bytes`` in all can need, in whole pages."""
    return pages(index_capacity(data_bytes) * L.INDEX_ENTRY_BYTES)


def pages(nbytes: int) -> int:
    """So many bytes, rounded up to whole pages."""
    return -(-nbytes // L.PAGE) * L.PAGE


def room_in(segment_bytes: int) -> int:
    """Bytes of frames that a segment of that size takes."""
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
    version: int = field(default=L.FORMAT_VERSION, compare=False)  # as read; the newest is written

    @property
    def producers_offset(self) -> int:
        """Where the table of producers stands, if there is one."""
        return L.INDEX_OFFSET + index_bytes_for(self.segment_bytes)

    @property
    def data_offset(self) -> int:
        """Where the frames begin."""
        return self.producers_offset + pages(self.producers_bytes)

    @property
    def footer_offset(self) -> int:
        """Where the footer stands once the segment is sealed."""
        return self.segment_bytes - L.PAGE

    @property
    def frames_end(self) -> int:
        """Where appends stop: the roll frame still fits behind it."""
        return self.footer_offset - L.FRAME_HEADER_BYTES

    def pack(self) -> bytes:
        """The page as it is on disk."""
        page = bytearray(L.PAGE)
        page[: len(L.SEGMENT_MAGIC)] = L.SEGMENT_MAGIC
        struct.pack_into(
            "<II16sQIIQQQQIIQQIIQII",
            page,
            L.HEADER_VERSION,
            L.FORMAT_VERSION,
            L.BYTE_ORDER_MARK,
            self.uuid,
            self.base_seq,
            self.number,
            self.generation,
            self.created_ns,
            self.segment_bytes,
            self.data_offset,
            L.INDEX_OFFSET,
            index_capacity(self.segment_bytes),
            L.INDEX_STEP,
            self.prior_append_ns,
            self.prior_event_max_ns,
            L.HEADER_FLAG_MONOTONE if self.monotone else 0,
            len(self.settings),
            self.producers_offset if self.producers_bytes else 0,
            self.producers_bytes,
            self.producers_crc,
        )
        page[L.HEADER_SETTINGS : L.HEADER_SETTINGS + len(self.settings)] = self.settings
        seal_page(page, L.HEADER_CRC)
        return bytes(page)

    @classmethod
    def unpack(cls, page: bytes, path: str) -> Header:
        """Check and take apart a header page, or a copy of one."""
        if len(page) not in (L.PAGE, L.COPY_BYTES) or not page.startswith(L.SEGMENT_MAGIC):
            raise Corrupt(f"{path}: this is not a segment: it does not begin as one", path=path)
        version, order = struct.unpack_from("<II", page, L.HEADER_VERSION)
        if order != L.BYTE_ORDER_MARK:
            raise UnsupportedVersion(
                f"{path}: written in another byte order ({order:#x})", path=path
            )
        if not L.FORMAT_VERSION_OLDEST <= version <= L.FORMAT_VERSION:
            raise UnsupportedVersion(
                f"{path}: format version {version}; this Penstock reads versions "
                f"{L.FORMAT_VERSION_OLDEST} to {L.FORMAT_VERSION}",
                path=path,
            )
        if not page_is_good(page, len(page) - 4):
            raise Corrupt(f"{path}: the checksum of its header does not match", path=path, offset=0)
        fields = struct.unpack_from("<16sQIIQQQQIIQQIIQII", page, L.HEADER_UUID)
        (uuid, base, number, generation, created, size, data, index, capacity, step) = fields[:10]
        prior_append, prior_event, flags, settings_len = fields[10:14]
        producers, producers_bytes, producers_crc = fields[14:]
        header = cls(
            uuid=uuid,
            base_seq=base,
            number=number,
            generation=generation,
            created_ns=created,
            segment_bytes=size,
            prior_append_ns=prior_append,
            prior_event_max_ns=prior_event,
            monotone=bool(flags & L.HEADER_FLAG_MONOTONE),
            settings=page[L.HEADER_SETTINGS : L.HEADER_SETTINGS + settings_len],
            producers_bytes=producers_bytes,
            producers_crc=producers_crc,
            version=version,
        )
        sane = (
            1 <= base <= L.SEQ_MAX
            and 1 <= number <= L.SEGMENT_NUMBER_MAX
            and L.SEGMENT_BYTES_MIN <= size <= L.SEGMENT_BYTES_MAX
            and size % L.PAGE == 0
            and (data, index) == (header.data_offset, L.INDEX_OFFSET)
            and (capacity, step) == (index_capacity(size), L.INDEX_STEP)
            and settings_len <= L.SETTINGS_BYTES_MAX
            and producers == (header.producers_offset if producers_bytes else 0)
            and producers_bytes <= size // L.PRODUCERS_SHARE
        )
        if not sane:
            raise Corrupt(f"{path}: its header contradicts itself", path=path, offset=0)
        return header


@dataclass(frozen=True, slots=True)
class Slot:
    """A checkpoint: frames up to ``offset`` were on the device when it was written."""

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
        """The 512 bytes that stand at the start of a checkpoint page."""
        data = bytearray(L.SLOT_BYTES)
        _SLOT.pack_into(
            data,
            0,
            L.SLOT_MAGIC,
            self.generation,
            self.offset,
            self.last_frame,
            self.last_seq,
            self.last_append_ns,
            self.settings_offset,
            self.index_count,
            self.event_max_ns,
            L.SLOT_FLAG_MONOTONE if self.monotone else 0,
            self.producer_offset,
        )
        seal_page(data, L.SLOT_CRC)
        return bytes(data)

    @classmethod
    def unpack(cls, data: bytes, header: Header | None) -> Slot | None:
        """The slot, or None if it is not valid for a segment with that header, if one is known."""
        if len(data) < L.SLOT_BYTES or data[: len(L.SLOT_MAGIC)] != L.SLOT_MAGIC:
            return None
        if not page_is_good(data, L.SLOT_CRC):
            return None
        fields = _SLOT.unpack_from(data)
        generation, offset, last_frame, last_seq, last_append_ns, settings_offset = fields[1:7]
        index_count, event_max_ns, flags, producer_offset = fields[7:]
        slot = cls(
            generation=generation,
            offset=offset,
            last_frame=last_frame,
            last_seq=last_seq,
            last_append_ns=last_append_ns,
            settings_offset=settings_offset,
            index_count=index_count,
            event_max_ns=event_max_ns,
            producer_offset=producer_offset,
            monotone=bool(flags & L.SLOT_FLAG_MONOTONE),
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
class Summary:
    """What the footer of a sealed segment says about it."""

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

    @classmethod
    def of(
        cls,
        walk: Walked,
        *,
        index_crc: int,
        topics: frozenset[bytes] | None,
        sealed_ns: int,
    ) -> Summary:
        """What a walk over all frames of a segment that has rolled says about it."""
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
        )

    def pack(self, header: Header) -> bytes:
        """The page as it is on disk."""
        page = bytearray(L.PAGE)
        page[: len(L.FOOTER_MAGIC)] = L.FOOTER_MAGIC
        topics = b""
        if self.topics is not None:
            topics = b"".join(len(t).to_bytes(2, "little") + t for t in sorted(self.topics))
        flags = (
            (L.FOOTER_FLAG_MONOTONE if self.monotone else 0)
            | (L.FOOTER_FLAG_LOG_MONOTONE if self.log_monotone else 0)
            | (L.FOOTER_FLAG_TOPICS_COMPLETE if self.topics is not None else 0)
        )
        struct.pack_into(
            "<II16sQIIQQQQQQQQQQQQIIIII",
            page,
            L.FOOTER_VERSION,
            L.FORMAT_VERSION,
            flags,
            header.uuid,
            header.base_seq,
            header.number,
            header.generation,
            self.data_end,
            self.last_frame,
            self.count,
            self.first_seq,
            self.last_seq,
            self.next_seq,
            self.first_append_ns,
            self.last_append_ns,
            self.event_min_ns,
            self.event_max_ns,
            self.log_event_max_ns,
            self.sealed_ns,
            self.index_count,
            self.index_crc,
            self.data_crc,
            len(self.topics or ()),
            len(topics),
        )
        page[L.FOOTER_TOPICS : L.FOOTER_TOPICS + len(topics)] = topics
        seal_page(page, L.FOOTER_CRC)
        return bytes(page)

    @classmethod
    def unpack(cls, page: bytes, header: Header) -> Summary | None:
        """The summary, or None if the page is not a valid footer of that segment."""
        if len(page) < L.PAGE or page[: len(L.FOOTER_MAGIC)] != L.FOOTER_MAGIC:
            return None
        if not page_is_good(page, L.FOOTER_CRC):
            return None
        fields = struct.unpack_from("<II16sQIIQQQQQQQQQQQQIIIII", page, L.FOOTER_VERSION)
        version, flags, *identity = fields[:6]
        if not L.FORMAT_VERSION_OLDEST <= version <= L.FORMAT_VERSION or identity != [
            header.uuid,
            header.base_seq,
            header.number,
            header.generation,
        ]:
            return None
        data_end, last_frame, *middle = fields[6:21]
        topics_count, topics_len = fields[21:]
        topics = None
        if flags & L.FOOTER_FLAG_TOPICS_COMPLETE:
            topics = _unpack_topics(page, topics_count, topics_len)
        inside = header.data_offset <= last_frame < data_end <= header.footer_offset
        if not inside or middle[10] > index_capacity(header.segment_bytes):
            return None
        return cls(
            **dict(zip(cls.__slots__, (data_end, last_frame, *middle), strict=False)),
            monotone=bool(flags & L.FOOTER_FLAG_MONOTONE),
            log_monotone=bool(flags & L.FOOTER_FLAG_LOG_MONOTONE),
            topics=topics,
        )


def open_block(walk: Walked) -> bytes:
    """The index entry of the block that a walk stands in."""
    return struct.pack(
        "<IIQQQQ",
        walk.block_offset,
        walk.block_topics,
        walk.block_seq,
        walk.block_append_ns,
        walk.block_event_min_ns,
        walk.block_event_max_ns,
    )


def _unpack_topics(page: bytes, count: int, nbytes: int) -> frozenset[bytes] | None:
    if nbytes > L.TOPICS_BYTES_MAX:
        return None
    at = L.FOOTER_TOPICS
    end = at + nbytes
    found = []
    while at < end:
        n = int.from_bytes(page[at : at + 2], "little")
        found.append(page[at + 2 : at + 2 + n])
        at += 2 + n
    return frozenset(found) if len(found) == count and at == end else None


def read_header(fd: int, path: str) -> Header:
    """The checked header of an open segment file, or the copy of it that counts."""
    return headers.read(fd, Header.unpack, L.COPY_VERSION, path)


def read_footer(fd: int, header: Header, path: str) -> Summary | None:
    """The checked footer; None if the segment is not sealed."""
    if files.size(fd, path) != header.segment_bytes:
        return None
    return Summary.unpack(files.read_at(fd, L.PAGE, header.footer_offset, path), header)


def write_start(fd: int, header: Header, producers: bytes, path: str) -> None:
    """Give an allocated, still private file its header and first checkpoint, on the device."""
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
    """Have a new file say that it will be a segment. The header takes the place of this."""
    files.write_at(fd, BEGUN, 0, path)


def prepare_file(
    path: str,
    segment_bytes: int,
    mode: int,
    producers_bytes: int = 0,
    frames_bytes: int = L.ALLOCATE_STEP_MIN,
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
    """The checked bytes of the table of producers as it was when the segment began."""
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
    m = SegmentMap(fd, str(path), header.segment_bytes, write)
    m.settings = header.settings
    m.base_seq = header.base_seq
    m.number = header.number
    m.generation = header.generation
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
        m.close_fd()
    elif write:
        m.touch_singly(L.INDEX_OFFSET, header.data_offset)
    return m, header


def disk_bytes(path: str) -> int:
    """Bytes that the file takes on the device."""
    return files.status(path).st_blocks * 512
