"""The only home of every record, number and name of the disk format and of control.

A record is declared once, field by field: each begins where the one before it ends. Offsets,
packers, the C side (by setup.py) and the tables of ``docs/format.md`` (by tools/format_tables.py)
are made from that. A change here changes the format and raises ``FORMAT_VERSION``; numbers that
are not part of the format are in ``tunables.py``. This module imports nothing of Penstock: the
build runs it alone.
"""

import struct
from typing import Any, NamedTuple

FORMAT_VERSION = 5
FORMAT_VERSION_OLDEST = 1  # that this version still reads
RING_VERSION = 2  # of the file of a ring
RING_VERSION_OLDEST = 1  # that this version still reads
CONTROL_VERSION = 5
BYTE_ORDER_MARK = 0x01020304
PAGE = 4096
SECTOR = 512  # the device writes at least this much atomically
CACHE_LINE = 64
ALIGN = 8

_CODES = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q"}


class Field:
    """The offset of a field in a record, and its meaning."""

    __slots__ = ("at", "nbytes", "note", "type")

    def __init__(self, at: int, nbytes: int, kind: str, note: str) -> None:
        self.at = at  # bytes from the start of the record
        self.nbytes = nbytes  # 0: all up to the next field
        self.type = kind  # u8 to u64; "16 bytes" for that many; "bytes" for any number
        self.note = note

    def pack(self, value: int) -> bytes:
        """The bytes of a number in this field."""
        return value.to_bytes(self.nbytes, "little")

    def unpack(self, raw: bytes | bytearray) -> int:
        """The number in the bytes of this field."""
        return int.from_bytes(raw[: self.nbytes], "little")


class RecordType:
    """Consecutive fields, little-endian and unsigned.

    A method with the name of a type adds a field and returns its offset.
    """

    __slots__ = ("_struct", "fields", "prefix", "size", "then")

    def __init__(self, prefix: str, then: str = "") -> None:
        self.prefix = prefix  # of the names of the offsets
        self.then = then  # what follows the record in the file
        self.fields: dict[str, Field] = {}
        self.size = 0  # bytes, so far
        self._struct: struct.Struct | None = None

    def u8(self, name: str, note: str) -> int:
        """Add a byte."""
        return self._add(name, 1, "u8", note)

    def u16(self, name: str, note: str) -> int:
        """Add a number of two bytes."""
        return self._add(name, 2, "u16", note)

    def u32(self, name: str, note: str) -> int:
        """Add a number of four bytes."""
        return self._add(name, 4, "u32", note)

    def u64(self, name: str, note: str) -> int:
        """Add a number of eight bytes."""
        return self._add(name, 8, "u64", note)

    def raw(self, name: str, nbytes: int, note: str) -> int:
        """Add a field of that many bytes."""
        return self._add(name, nbytes, f"{nbytes} bytes", note)

    def rest(self, name: str, note: str) -> int:
        """Add a field that takes all bytes up to the checksum at the end."""
        return self._add(name, 0, "bytes", note)

    def crc(self, size: int, note: str) -> int:
        """Add the checksum of all bytes before it, as the last field of ``size`` bytes."""
        self.size = size - 4
        return self.u32("crc", note)

    def align(self, nbytes: int) -> None:
        """Make the next field begin at a multiple of ``nbytes``."""
        self.size += -self.size % nbytes

    def _add(self, name: str, nbytes: int, kind: str, note: str) -> int:
        at = self.size
        self.fields[name] = Field(at, nbytes, kind, note)
        self.size = at + nbytes
        return at

    def pack(self, **values: int | bytes) -> bytes:
        """The bytes of a record with these values; fields without one are zero."""
        if unknown := values.keys() - self.fields:
            raise TypeError(f"{self.prefix} has no such fields: {sorted(unknown)}")
        blank = ((name, 0 if f.type in _CODES else b"") for name, f in self.fields.items())
        return self.form.pack(*(values.get(name, zero) for name, zero in blank))

    def unpack(self, data: bytes | bytearray, at: int = 0) -> dict[str, Any]:
        """The values of all fields of the record at ``at``."""
        return dict(zip(self.fields, self.form.unpack_from(data, at), strict=True))

    def numbers(self, data: bytes | bytearray) -> dict[int, int]:
        """The numbers of a record, or of the start of one, by their offsets."""
        values = self.form.unpack_from(data.ljust(self.size, b"\0"))
        return {
            field.at: value
            for field, value in zip(self.fields.values(), values, strict=True)
            if field.type in _CODES and field.at + field.nbytes <= len(data)
        }

    def get(self, data: bytes | bytearray, name: str) -> int:
        """The number in one field; missing bytes count as zeros."""
        field = self.fields[name]
        return field.unpack(data[field.at : field.at + field.nbytes])

    def put(self, data: bytearray, **values: int) -> None:
        """Change numbers in a record."""
        for name, value in values.items():
            field = self.fields[name]
            data[field.at : field.at + field.nbytes] = field.pack(value)

    @property
    def form(self) -> struct.Struct:
        """The struct of all fields in their order; made when it is first needed."""
        if self._struct is None:
            form, end = "<", 0
            ends = [*(field.at for field in self.fields.values()), self.size][1:]
            for field, stop in zip(self.fields.values(), ends, strict=True):
                nbytes = field.nbytes or stop - field.at
                form += f"{field.at - end}x" + _CODES.get(field.type, f"{nbytes}s")
                end = field.at + nbytes
            self._struct = struct.Struct(f"{form}{self.size - end}x")
        return self._struct


class Numbers:
    """Numbers with a meaning: the values of a field, or limits."""

    __slots__ = ("prefix", "rows")

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.rows: list[tuple[int, str, str]] = []

    def add(self, value: int, name: str, note: str) -> int:
        """Add one, and return it."""
        self.rows.append((value, name, note))
        return value


class SegmentPosition(NamedTuple):
    """A place in a log of segments. In files and in control it is one word, so it cannot tear."""

    number: int  # of the segment
    offset: int  # in the segment; in the word that names a checkpoint, the checkpoint's generation

    def pack(self) -> int:
        """The word."""
        return self.number << 32 | self.offset

    @classmethod
    def unpack(cls, word: int) -> "SegmentPosition":
        """The place in a word."""
        return cls(word >> 32, word & 0xFFFFFFFF)


# Limits a caller can meet. Units last: bytes unless the name says otherwise.

LIMITS = Numbers()
TOPIC_BYTES_MAX = LIMITS.add(1024, "TOPIC_BYTES_MAX", "a topic as UTF-8")
KEY_BYTES_MAX = LIMITS.add(1024, "KEY_BYTES_MAX", "a key")
HEADERS_BYTES_MAX = LIMITS.add(65535, "HEADERS_BYTES_MAX", "all headers of an event")
VALUE_BYTES_MAX = LIMITS.add(256 << 20, "VALUE_BYTES_MAX", "a value, which must also fit a segment")
SETTINGS_BYTES_MAX = LIMITS.add(2048, "SETTINGS_BYTES_MAX", "settings as JSON")
PRODUCER_ID_BYTES_MAX = LIMITS.add(1024, "PRODUCER_ID_BYTES_MAX", "a producer's id as UTF-8")
PRODUCERS_MAX = LIMITS.add(4096, "PRODUCERS_MAX", "producers that are remembered")
PRODUCERS_SHARE = LIMITS.add(
    8,
    "PRODUCERS_SHARE",
    "the table of producers takes at most this part of a segment or ring: an eighth",
)
RING_BYTES_MIN = LIMITS.add(32 << 10, "RING_BYTES_MIN", "the smallest ring")
RING_BYTES_MAX = LIMITS.add(2 << 30, "RING_BYTES_MAX", "the largest ring")
RING_SHARE = LIMITS.add(2, "RING_SHARE", "an append takes at most this part of a ring: one half")
SEGMENT_BYTES_MIN = LIMITS.add(64 << 10, "SEGMENT_BYTES_MIN", "the smallest segment")
SEGMENT_BYTES_MAX = LIMITS.add(2 << 30, "SEGMENT_BYTES_MAX", "the largest segment")
SEGMENT_NUMBER_MAX = LIMITS.add(
    0x7FFFFFFF, "SEGMENT_NUMBER_MAX", "segments that a log can ever have"
)
SEQ_MAX = LIMITS.add((1 << 63) - 1, "SEQ_MAX", "a segment's first seq")
GENERATION_MAX = LIMITS.add(0xFFFFFFFF, "GENERATION_MAX", "times that a segment is rewritten")
BATCH_EVENTS_MAX = LIMITS.add(0xFFFFFFFF, "BATCH_EVENTS_MAX", "events of one batch")
SEGMENT_BYTES_DEFAULT = LIMITS.add(
    64 << 20, "SEGMENT_BYTES_DEFAULT", "the default size of a segment"
)
CONSUMER_NAME_BYTES_MAX = LIMITS.add(
    200, "CONSUMER_NAME_BYTES_MAX", "the name of a consumer as UTF-8"
)

# The header of a frame, and the parts after it.

FRAME = RecordType("FRAME_", then="[event time 8] topic … headers … key … value … zeros to 8")
FRAME_COMMIT = FRAME.u32("commit", "0: not published; else the length of the body plus 1")
FRAME_CRC = FRAME.u32("crc", "of the bytes from 8 to the end of the body")
FRAME_SEQ = FRAME.u64("seq", "the event's number; a control frame carries the next event's")
FRAME_APPEND_NS = FRAME.u64("append_ns", "time of the append")
FRAME_BACK = FRAME.u32("back", "distance to the frame before it in this file, 0: none")
FRAME_BATCH_LEFT = FRAME.u32("batch_left", "frames of the same batch that follow")
FRAME_KEY_LEN = FRAME.u16("key_len", "0xFFFF: no key")
FRAME_HEADERS_LEN = FRAME.u16("headers_len", "bytes of all headers")
FRAME_TOPIC_LEN = FRAME.u16("topic_len", "bytes of the topic")
FRAME_KIND = FRAME.u8("kind", "see below")
FRAME_FLAGS = FRAME.u8("flags", "see below")
FRAME_HEADER_BYTES = FRAME.size
EVENT_TIME_BYTES = 8

NO_KEY = 0xFFFF
NULL_HEADER = 0xFFFF
CODEC_NAME = b"penstock.codec"  # header: the codec of an event, if it is not the log's
TAG_NAME = b"penstock.tag"  # header, one for each tag
NOT_BEFORE_NAME = b"penstock.not_before"  # header: when groups may have the event
TTL_NAME = b"penstock.ttl"  # header, the first one: how long the event lives, from its append on
MARK_BYTES = 8  # of the value of either: nanoseconds, a u64

KINDS = Numbers("KIND_")
KIND_DATA = KINDS.add(1, "data", "an event")
KIND_DELETE = KINDS.add(2, "delete", "an event that deletes its key: it has no value")
KIND_PAD = KINDS.add(3, "pad", "fills space and has no meaning; its body is zeros")
KIND_WRAP = KINDS.add(4, "wrap", "of a ring: the lap ends here")
KIND_ROLL = KINDS.add(5, "roll", "the segment ends here; seq names the successor")
KIND_SETTINGS = KINDS.add(
    6, "settings", "the value is the log's settings as JSON; they apply from here on"
)
KIND_PRODUCER = KINDS.add(
    7, "producer", "the events that follow in its batch are a producer's; see below"
)
KIND_PRODUCERS = KINDS.add(8, "producers", "of a ring: the current table of producers")
KIND_MAX = KIND_PRODUCERS

FLAGS = Numbers("FLAG_")
FLAG_EVENT_TIME = FLAGS.add(1, "event_time", "the body begins with a time that the caller gave")
FLAG_COMPRESSED = FLAGS.add(2, "compressed", "reserved")
FLAG_ENCRYPTED = FLAGS.add(4, "encrypted", "reserved")
FLAGS_KNOWN = FLAG_EVENT_TIME

# One header of an event.

EVENT_HEADER = RecordType("EVENT_HEADER_", then="name, value")
EVENT_HEADER_NAME_LEN = EVENT_HEADER.u16("name_len", "bytes of the name")
EVENT_HEADER_VALUE_LEN = EVENT_HEADER.u16("value_len", "bytes of the value; 0xFFFF: null")
EVENT_HEADER_BYTES = EVENT_HEADER.size

# The value of a producer frame, whose key is the producer's id.

PRODUCER = RecordType("PRODUCER_")
PRODUCER_N = PRODUCER.u64("n", "the producer's number for this append")
PRODUCER_COUNT = PRODUCER.u32("count", "events that follow in the batch")
PRODUCER_PREVIOUS = PRODUCER.u32(
    "previous",
    "offset of the producer frame before it in this segment, 0: none; of a ring see below",
)
PRODUCER_BYTES = PRODUCER.size

# Segment file: header page, two checkpoint pages (each with a copy of the header), index, table of
# producers, frames; the last page is the footer once the segment is sealed.

SEGMENT_MAGIC = b"PENSTOCK"
HEADER = RecordType("HEADER_")
HEADER_MAGIC = HEADER.raw("magic", 8, "`PENSTOCK`; of a ring `PENSRING`")
HEADER_VERSION = HEADER.u32("version", "of this format")
HEADER_BYTE_ORDER = HEADER.u32("byte_order", "0x01020304")
HEADER_UUID = HEADER.raw("uuid", 16, "of the log; random")
HEADER_BASE_SEQ = HEADER.u64("base_seq", "first seq that the segment covers; also its name")
HEADER_NUMBER = HEADER.u32(
    "number", "1 for the first segment of the log, then by ones; of merged ones the last one's"
)
HEADER_GENERATION = HEADER.u32("generation", "0; compaction writes a higher one of the same range")
HEADER_CREATED_NS = HEADER.u64("created_ns", "when the header was written")
HEADER_SEGMENT_BYTES = HEADER.u64("segment_bytes", "size of the file once sealed")
HEADER_DATA_OFFSET = HEADER.u64("data_offset", "where frames begin")
HEADER_INDEX_OFFSET = HEADER.u64("index_offset", "where the index begins")
HEADER_INDEX_CAPACITY = HEADER.u32("index_capacity", "entries that fit it")
HEADER_INDEX_STEP = HEADER.u32("index_step", "minimum bytes of frames for one entry")
HEADER_PRIOR_APPEND_NS = HEADER.u64(
    "prior_append_ns", "append_ns of the last frame before this segment"
)
HEADER_PRIOR_EVENT_MAX_NS = HEADER.u64(
    "prior_event_max_ns", "greatest event time before this segment"
)
HEADER_FLAGS = HEADER.u32(
    "flags",
    "bit 0: event times never went back before this segment; 1: events were taken out of it; "
    "8 to 31: how many segments before it were merged into it",
)
HEADER_SETTINGS_LEN = HEADER.u32("settings_len", "bytes of the settings")
HEADER_PRODUCERS_OFFSET = HEADER.u64(
    "producers_offset", "where the table of producers begins, after the index; 0: none"
)
HEADER_PRODUCERS_BYTES = HEADER.u32(
    "producers_bytes", "of the table; at most an eighth of the segment"
)
HEADER_PRODUCERS_CRC = HEADER.u32("producers_crc", "of the table")
HEADER_SETTINGS = HEADER.rest("settings", "the log's settings as JSON at the start of the segment")
HEADER_CRC = HEADER.crc(PAGE, "of the page up to here")

HEADER_FLAG_MONOTONE = 1  # event times never went back in the log before this segment
HEADER_FLAG_COMPACTED = 2  # events were taken out of it, so that seqs are missing
HEADER_FLAG_MERGED_SHIFT = 8  # from here on: how many segments before it were merged into it
HEADER_FLAG_MERGED_MAX = (1 << 24) - 1

# One entry of the table of producers.

PRODUCER_ENTRY = RecordType("PRODUCER_ENTRY_", then="id")
PRODUCER_ENTRY_ID_LEN = PRODUCER_ENTRY.u16("id_len", "bytes of the id")
PRODUCER_ENTRY_N = PRODUCER_ENTRY.u64("n", "number of its last append")
PRODUCER_ENTRY_FIRST_SEQ = PRODUCER_ENTRY.u64("first_seq", "of that append")
PRODUCER_ENTRY_COUNT = PRODUCER_ENTRY.u64("count", "events of that append")
PRODUCER_ENTRY_BYTES = PRODUCER_ENTRY.size

SLOT_A_OFFSET = PAGE
SLOT_B_OFFSET = SLOT_A_OFFSET + PAGE
SLOT_MAGIC = b"PSKCHECK"
SLOT = RecordType("SLOT_")
SLOT.raw("magic", 8, "`PSKCHECK`")
SLOT_GENERATION = SLOT.u64("generation", "the higher valid one is used")
SLOT_OFFSET = SLOT.u64("offset", "frames are complete and on disk up to here")
SLOT_LAST_FRAME = SLOT.u64("last_frame", "offset of the last frame below that, 0: none")
SLOT_LAST_SEQ = SLOT.u64("last_seq", "seq of the last event below that")
SLOT_LAST_APPEND_NS = SLOT.u64("last_append_ns", "append_ns of the last frame")
SLOT_SETTINGS_OFFSET = SLOT.u64("settings_offset", "newest settings frame in this segment, 0: none")
SLOT_INDEX_COUNT = SLOT.u64(
    "index_count", "index entries that are complete; of a ring: position of the oldest frame"
)
SLOT_EVENT_MAX_NS = SLOT.u64("event_max_ns", "greatest event time in the log up to here")
SLOT_FLAGS = SLOT.u64("flags", "bit 0: event times never went back in the log up to here")
SLOT_PRODUCER_OFFSET = SLOT.u64("producer_offset", "newest producer frame in this segment, 0: none")
SLOT_CRC = SLOT.crc(SECTOR, "of the slot up to here")
SLOT_BYTES = SLOT.size
SLOT_TAIL = SLOT_INDEX_COUNT  # of a ring, where positions replace offsets

SLOT_FLAG_MONOTONE = 1
SLOT_FLAG_CLEAN = 2  # of a ring: nothing was written after this checkpoint

# Copies of the header: the rest of the page of each slot, in segments and in rings.

COPY_A_OFFSET = SLOT_A_OFFSET + SLOT_BYTES
COPY_B_OFFSET = SLOT_B_OFFSET + SLOT_BYTES
COPY = RecordType("COPY_")
COPY_HEADER = COPY.rest("header", "the start of the header page, settings included")
COPY_CRC = COPY.crc(PAGE - SLOT_BYTES, "of the copy up to here")
COPY_BYTES = COPY.size
COPY_VERSION = 4  # segments have them since this version
RING_COPY_VERSION = 2  # rings have them since this version

INDEX_OFFSET = SLOT_B_OFFSET + PAGE
INDEX_STEP = 4096
INDEX_ENTRY = RecordType("INDEX_ENTRY_")
INDEX_ENTRY_OFFSET = INDEX_ENTRY.u32("offset", "offset of the block's first frame")
INDEX_ENTRY_TOPICS = INDEX_ENTRY.u32("topics", "a bit for each topic in the block; 0: not known")
INDEX_ENTRY_SEQ = INDEX_ENTRY.u64("seq", "that frame's seq")
INDEX_ENTRY_APPEND_NS = INDEX_ENTRY.u64(
    "append_ns", "that frame's append_ns; of the first block, prior_append_ns"
)
INDEX_ENTRY_EVENT_MIN_NS = INDEX_ENTRY.u64(
    "event_min_ns", "least event time in the block; all ones if it has no event"
)
INDEX_ENTRY_EVENT_MAX_NS = INDEX_ENTRY.u64(
    "event_max_ns", "greatest event time in the block; 0 if it has no event"
)
INDEX_ENTRY_BYTES = INDEX_ENTRY.size

FOOTER_MAGIC = b"PSKSEALD"
FOOTER = RecordType("FOOTER_")
FOOTER.raw("magic", 8, "`PSKSEALD`")
FOOTER_VERSION = FOOTER.u32("version", "of this format")
FOOTER_FLAGS = FOOTER.u32(
    "flags",
    "bit 0: times never go back in the segment; 1: topics complete; 2: nor in the log; "
    "3: there is a key filter",
)
FOOTER_UUID = FOOTER.raw("uuid", 16, "as in the header")
FOOTER_BASE_SEQ = FOOTER.u64("base_seq", "as in the header")
FOOTER_NUMBER = FOOTER.u32("number", "as in the header")
FOOTER_GENERATION = FOOTER.u32("generation", "as in the header")
FOOTER_DATA_END = FOOTER.u64("data_end", "end of the frames, the roll frame included")
FOOTER_LAST_FRAME = FOOTER.u64("last_frame", "offset of the roll frame")
FOOTER_COUNT = FOOTER.u64("count", "events")
FOOTER_FIRST_SEQ = FOOTER.u64("first_seq", "seq of the first event, 0: none")
FOOTER_LAST_SEQ = FOOTER.u64("last_seq", "seq of the last event, 0: none")
FOOTER_NEXT_SEQ = FOOTER.u64("next_seq", "base_seq of the successor")
FOOTER_FIRST_APPEND_NS = FOOTER.u64("first_append_ns", "of the first event")
FOOTER_LAST_APPEND_NS = FOOTER.u64("last_append_ns", "of the last frame")
FOOTER_EVENT_MIN_NS = FOOTER.u64("event_min_ns", "least event time, 0 if there is no event")
FOOTER_EVENT_MAX_NS = FOOTER.u64("event_max_ns", "greatest event time")
FOOTER_LOG_EVENT_MAX_NS = FOOTER.u64(
    "log_event_max_ns", "greatest event time in the log up to the end of the segment"
)
FOOTER_SEALED_NS = FOOTER.u64(
    "sealed_ns",
    "append_ns of the roll frame; if repair or compaction made the segment, the time of that",
)
FOOTER_INDEX_COUNT = FOOTER.u32("index_count", "entries of the index, the last block's included")
FOOTER_INDEX_CRC = FOOTER.u32("index_crc", "of those entries")
FOOTER_DATA_CRC = FOOTER.u32(
    "data_crc", "of the first 8 bytes (commit, crc) of every frame, one after the other"
)
FOOTER_TOPICS_COUNT = FOOTER.u32("topics_count", "distinct topics, if they are complete")
FOOTER_TOPICS_LEN = FOOTER.u32("topics_len", "bytes of the list")
FOOTER_FILTER_PAGES = FOOTER.u32(
    "filter_pages", "pages of the key filter; 0, if flag bit 3 is set: no event has a key"
)
FOOTER_TOPICS = FOOTER.rest("topics", "each as u16 length and UTF-8, in byte order")
FOOTER_CRC = FOOTER.crc(PAGE, "of the page up to here")
TOPICS_BYTES_MAX = FOOTER_CRC - FOOTER_TOPICS

FOOTER_FLAG_MONOTONE = 1  # event times never go back within the segment
FOOTER_FLAG_TOPICS_COMPLETE = 2
FOOTER_FLAG_LOG_MONOTONE = 4  # ... nor from the log's first segment to the end of this one
FOOTER_FLAG_KEYS = 8

# One topic of a footer.

TOPIC_ENTRY = RecordType("TOPIC_ENTRY_", then="topic")
TOPIC_ENTRY_LEN = TOPIC_ENTRY.u16("len", "bytes of the topic")
TOPIC_ENTRY_BYTES = TOPIC_ENTRY.size

# One page of the key filter, which follows the footer.

FILTER = RecordType("FILTER_")
FILTER_BLOCKS = FILTER.raw("blocks", 4064, "127 blocks of 32 bytes")
FILTER_UUID = FILTER.raw("uuid", 8, "the first half of the log's uuid")
FILTER_BASE_SEQ = FILTER.u64("base_seq", "as in the header")
FILTER_GENERATION = FILTER.u32("generation", "as in the header")
FILTER_PAGE = FILTER.u32("page", "the number of this page, from 0")
FILTER_PAGES = FILTER.u32("pages", "of the filter, as in the footer")
FILTER_CRC = FILTER.crc(PAGE, "of the page up to here")
KEY_FILTER_VERSION = 5  # segments have one since this version
KEY_FILTER_BITS = 12  # for each distinct key: less than 1 % of the other keys pass

# Ring file: header page, two checkpoint pages, control page, index, frames. The header page has the
# layout of a segment's, with HEADER_SEGMENT_BYTES the size of the file and HEADER_INDEX_STEP that
# of a slot of the index. Places are positions, which only grow: offset = data offset + position %
# room.

RING_MAGIC = b"PENSRING"
RING_CONTROL_OFFSET = SLOT_B_OFFSET + PAGE
RING_INDEX_OFFSET = RING_CONTROL_OFFSET + PAGE
RING_SLOT = RecordType("RING_SLOT_")
RING_SLOT_POSITION = RING_SLOT.u64("position", "of event seq, in slot seq % index_capacity")
RING_SLOT_BYTES = RING_SLOT.size

# The record of an archived segment: in a skippable frame of zstd, before the seek table. Settings
# follow it.

ARCHIVE_VERSION = 1
ARCHIVED_MAGIC = b"PSKARCHV"
ARCHIVED = RecordType("ARCHIVED_", then="settings")
ARCHIVED.raw("magic", 8, "`PSKARCHV`")
ARCHIVED_VERSION = ARCHIVED.u32("version", "of this record: 1")
ARCHIVED_BLOCKS = ARCHIVED.u32("blocks", "zstd frames before it")
ARCHIVED_UUID = ARCHIVED.raw("uuid", 16, "as in the segment's header")
ARCHIVED_BASE_SEQ = ARCHIVED.u64("base_seq", "as in the header")
ARCHIVED_NUMBER = ARCHIVED.u32("number", "as in the header")
ARCHIVED_GENERATION = ARCHIVED.u32("generation", "as in the header")
ARCHIVED_NEXT_SEQ = ARCHIVED.u64("next_seq", "as in the footer")
ARCHIVED_FILE_BYTES = ARCHIVED.u64("file_bytes", "size of the segment's file")
ARCHIVED_SETTINGS_LEN = ARCHIVED.u32("settings_len", "bytes of the settings")
ARCHIVED_SETTINGS_CRC = ARCHIVED.u32("settings_crc", "of the settings")
ARCHIVED_TABLE_CRC = ARCHIVED.u32("table_crc", "of the entries of the seek table")
ARCHIVED_CRC = ARCHIVED.crc(80, "of the record up to here")

# Of the seekable format of zstd.

SKIPPABLE = RecordType("SKIPPABLE_", then="content")
SKIPPABLE_MAGIC = SKIPPABLE.u32("magic", "0x184D2A50: the record; 0x184D2A5E: the seek table")
SKIPPABLE_NBYTES = SKIPPABLE.u32("nbytes", "bytes that follow")
ZSTD_RECORD = 0x184D2A50
ZSTD_TABLE = 0x184D2A5E
SEEK_ENTRY = RecordType("SEEK_ENTRY_")
SEEK_ENTRY_COMPRESSED = SEEK_ENTRY.u32("compressed", "bytes of the frame")
SEEK_ENTRY_NBYTES = SEEK_ENTRY.u32("nbytes", "bytes of its content; 0 if it is skippable")
SEEK_ENTRY_CHECKSUM = SEEK_ENTRY.u32("checksum", "the frame's last word; 0 if it is skippable")
SEEK_END = RecordType("SEEK_END_")
SEEK_END_COUNT = SEEK_END.u32("count", "entries")
SEEK_END_FLAGS = SEEK_END.u8("flags", "0x80: entries have checksums")
SEEK_END_MAGIC = SEEK_END.raw("magic", 4, "0x8F92EAB1")
ZSTD_SEEK_MAGIC = 0x8F92EAB1
ZSTD_CHECKSUMS = 0x80

# Control: one page of shared memory. Fields that different processes write at different moments
# are on different cache lines. A place in a log of segments is one word, see SegmentPosition.

CONTROL_MAGIC = b"PSKCNTRL"
CONTROL_KIND_FUTEX = 1
CONTROL_KIND_POLLING = 2
HOLDS_MAX = 64
HOLD_BYTES = 8
CONTROL = RecordType("C_")
C_MAGIC = CONTROL.raw("magic", 8, "`PSKCNTRL`")
C_VERSION = CONTROL.u32("version", "of control")
C_KIND = CONTROL.u32("kind", "1: futex, 2: polling; builds cannot mix")
C_BOOT_ID = CONTROL.raw("boot_id", 16, "of the boot that made it")
C_UUID = CONTROL.raw("uuid", 16, "of the log")
C_DEV = CONTROL.u64("dev", "device of the control file")
C_INO = CONTROL.u64("ino", "inode of the control file")
C_CREATED_NS = CONTROL.u64("created_ns", "when it was built")
C_CRC = CONTROL.u32("crc", "of the page up to here; the rest changes all the time")
CONTROL.align(8)
C_EPOCH = CONTROL.u64(
    "epoch", "of a ring: changes before the file does; top bit: the ring has another file"
)
C_LOCK_INO = CONTROL.u64("lock_ino", "inode of `writers.lock`; 0 in a ring, which has none")
CONTROL.align(CACHE_LINE)
C_LOCK = CONTROL.u32("lock", "token of the holder, 0: free; top bit: a thread sleeps")
C_NEXT_TOKEN = CONTROL.u32("next_token", "the next handle's token; never used twice")
C_SUSPECT = CONTROL.u32("suspect", "the last holder died: repair first")
CONTROL.align(CACHE_LINE)
C_HEAD = CONTROL.u64("head", "published end: number << 32, offset")
C_RESERVED = CONTROL.u64("reserved", "end of what the holder may have written")
C_NEXT_SEQ = CONTROL.u64("next_seq", "the next event's seq")
C_LAST_APPEND_NS = CONTROL.u64("last_append_ns", "append_ns of the last frame")
C_LAST_FRAME = CONTROL.u64("last_frame", "offset of the last frame, 0: none")
C_ALLOC_END = CONTROL.u64("alloc_end", "blocks are allocated up to here")
C_BLOCK_OFFSET = CONTROL.u32("block_offset", "the open index block: where it begins")
C_BLOCK_TOPICS = CONTROL.u32("block_topics", "the open block's topics")
C_EVENT_MAX_NS = CONTROL.u64("event_max_ns", "greatest event time in the log")
C_BLOCK_SEQ = CONTROL.u64("block_seq", "the open block's seq")
C_BLOCK_APPEND_NS = CONTROL.u64("block_append_ns", "the open block's append_ns")
C_BLOCK_EVENT_MIN_NS = CONTROL.u64("block_event_min_ns", "the open block's least event time")
C_BLOCK_EVENT_MAX_NS = CONTROL.u64("block_event_max_ns", "the open block's greatest event time")
C_INDEX_COUNT = CONTROL.u64("index_count", "index entries that are complete")
C_FLAGS = CONTROL.u64("flags", "bit 0: event times never went back in the log")
C_ACTIVE_BASE = CONTROL.u64("active_base", "base_seq of the active segment")
C_SETTINGS_POS = CONTROL.u64(
    "settings_pos", "newest settings frame: number << 32, offset; offset 0: the header's"
)
C_PRODUCER_POS = CONTROL.u64("producer_pos", "newest producer frame, in the same form")
C_TAIL = CONTROL.u64("tail", "of a ring: position of the oldest frame")
C_WHEN_FULL = CONTROL.u32(
    "when_full", "of a ring: 0 drops the oldest events, 1 waits for readers, 2 refuses"
)
CONTROL.align(8)
C_GUARD = CONTROL.u64("guard", "of a ring: the tail must not move to after this position …")
C_GUARD_END = CONTROL.u64("guard_end", "… and before this one")
C_STATE_POS = CONTROL.u64(
    "state_pos",
    "of a ring: frames from this position on contain settings and producers; 0: none",
)
CONTROL.align(CACHE_LINE)
C_NOTIFY = CONTROL.u32("notify", "futex word that readers sleep on; counts wake-ups")
C_WAITING = CONTROL.u32("waiting", "a reader sleeps, or is about to")
CONTROL.align(CACHE_LINE)
C_POISONED = CONTROL.u64("poisoned", "not 0: a sync failed, and appends and syncs are refused")
C_DURABLE_SEQ = CONTROL.u64("durable_seq", "seq up to which events are on disk")
C_DURABLE_POS = CONTROL.u64(
    "durable_pos", "place up to which frames are on disk: number << 32, offset"
)
C_DURABLE_BASE = CONTROL.u64("durable_base", "base_seq of the segment of that place")
C_SLOT = CONTROL.u64("slot", "newest checkpoint: number << 32, generation")
C_SYNCING = CONTROL.u32("syncing", "a sync is in progress, or its process died in it")
C_SYNC_NOTIFY = CONTROL.u32("sync_notify", "futex word for waiting for a sync; counts syncs")
C_SYNC_TURN = CONTROL.u32("sync_turn", "token of the handle that syncs, 0: none")
CONTROL.align(CACHE_LINE)
C_REPAIRS = CONTROL.u64("repairs", "counter")
C_TAKEOVERS = CONTROL.u64("takeovers", "counter")
C_ROLLS = CONTROL.u64("rolls", "counter")
C_ALLOCATIONS = CONTROL.u64("allocations", "counter")
C_SYNCS = CONTROL.u64("syncs", "counter")
C_LOST = CONTROL.u64("lost", "of a ring: bytes of damaged frames that the tail has passed")
C_REWRITES = CONTROL.u64("rewrites", "segments that were replaced: counter; handles drop old maps")
CONTROL.align(CACHE_LINE)
C_ROOM_NOTIFY = CONTROL.u32(
    "room_notify", "of a ring: futex word that writers sleep on; counts how often readers made room"
)
C_ROOM_WAITING = CONTROL.u32("room_waiting", "of a ring: a writer sleeps, or is about to")
CONTROL.align(1024)
C_HOLDS = CONTROL.raw(
    "holds",
    HOLDS_MAX * HOLD_BYTES,
    "of a ring: 64 u64, positions of readers that writers wait for; 0: free",
)
CONTROL.align(PAGE)
CONTROL_BYTES = CONTROL.size

CONTROL_FLAG_MONOTONE = 1  # event times never went back in the log up to head

EPOCH_MOVED = 1 << 63  # the ring has another file now

WHEN_FULL_DROP = 0
WHEN_FULL_BLOCK = 1
WHEN_FULL_ERROR = 2

LOCK_WAITERS = 0x80000000
TOKEN_MAX = 0x7FFFFFFF
TOKEN_BYTE = 1 << 32  # the OFD lock of token t is on byte TOKEN_BYTE + t of the file of locks
TURN_BYTE = 1 << 31  # of `writers.lock`: the OFD lock of the process that does maintenance
HOLD_BYTE = (
    1 << 31
) + 4096  # the OFD lock of the reader in slot i of C_HOLDS is on byte HOLD_BYTE + i

# File of a consumer: two pages, each with a slot for plain commits, a slot for durable ones, and a
# copy of the profile, which says what was settled when the consumer was made. Of the four slots the
# valid one with the highest generation counts.

CONSUMER_VERSION = 2
CONSUMER_BYTES = 2 * PAGE
CONSUMER_OWNER_BYTE = 1 << 32  # the OFD lock on this byte makes the owner
PLACE_MAGIC = b"PSKPLACE"
PLACE = RecordType("PLACE_")
PLACE.raw("magic", 8, "`PSKPLACE`")
PLACE_VERSION = PLACE.u32("version", "1, or 2 if the consumer wants several topics")
PLACE_PROFILE_LEN = PLACE.u32("profile_len", "bytes of the profile")
PLACE_UUID = PLACE.raw("uuid", 16, "of the log")
PLACE_PROFILE_CRC = PLACE.u32("profile_crc", "of the profile")
PLACE_FLAGS = PLACE.u32("flags", "0")
PLACE_CLAMPED = PLACE.u64(
    "clamped", "what `next` was before the log turned out to end sooner; 0: nothing"
)
PLACE_GENERATION = PLACE.u64(  # from here on it changes with each commit
    "generation", "from 1, one more with each store"
)
PLACE_NEXT = PLACE.u64("next", "the next seq to look at: what was committed")
PLACE_POSITION = PLACE.u64("position", "what was handed out, up to this seq; for listings")
PLACE_HINT = PLACE.u64(
    "hint",
    "where `next` stands: number << 32, offset; in a ring its position; 0: not known. "
    "Nothing relies on it",
)
PLACE_HEARTBEAT_NS = PLACE.u64("heartbeat_ns", "when the slot was stored")
PLACE_CRC = PLACE.crc(92, "of the slot up to here")
PLACE_BYTES = PLACE.size
PLACE_DURABLE_BYTES = 512  # from the slot for plain commits to that for durable ones

PROFILE_OFFSET_BYTES = 1024  # in either page
PROFILE_BYTES_MAX = PAGE - PROFILE_OFFSET_BYTES
PROFILE = RecordType("PROFILE_", then="topic, key, tags")
PROFILE_CREATED_NS = PROFILE.u64("created_ns", "when the consumer was made")
PROFILE_TOPIC_LEN = PROFILE.u16("topic_len", "bytes of the topic, or of the list of topics")
PROFILE_KEY_LEN = PROFILE.u16("key_len", "bytes of the key")
PROFILE_TAGS_LEN = PROFILE.u16("tags_len", "bytes of the list of tags")
PROFILE_FLAGS = PROFILE.u16("flags", "see below")
PROFILE_HEADER_BYTES = PROFILE.size

PROFILE_FILTER = Numbers("PROFILE_FLAG_")
PROFILE_FLAG_TOPIC = PROFILE_FILTER.add(1, "topic", "it wants one topic, be it the empty one")
PROFILE_FLAG_KEY = PROFILE_FILTER.add(2, "key", "it wants one key")
PROFILE_FLAG_TAGS = PROFILE_FILTER.add(4, "tags", "it wants events that have all of its tags")
PROFILE_FLAG_TOPICS = PROFILE_FILTER.add(
    8, "topics", "it wants any of several topics: `topic` is a list of them; since version 2"
)

# One tag of a profile, or one of several topics.

PROFILE_TAG = RecordType("PROFILE_TAG_", then="tag, or topic")
PROFILE_TAG_LEN = PROFILE_TAG.u16("len", "bytes of the tag, or topic")
PROFILE_TAG_BYTES = PROFILE_TAG.size

# File of a worker of a group: one page. Its worker has the OFD lock on its first byte.

WORKER_FILE_VERSION = 1
WORKER_BYTES = PAGE
ALIVE_BYTE = 0
WORKER_MAGIC = b"PSKWORKR"
WORKER = RecordType("WORKER_")
WORKER.raw("magic", 8, "`PSKWORKR`")
WORKER_VERSION = WORKER.u32("version", "1")
WORKER.align(8)
WORKER_HANDED = WORKER.u64(
    "handed", "claims with lower numbers were handed out: if the worker dies, they count as tries"
)
WORKER_RECORD_BYTES = WORKER.size

# A note for a group: where its log ended when it may have lost events with the power.

GROUP_NOTE_MAGIC = b"PSKENDED"
GROUP_NOTE = RecordType("GROUP_NOTE_")
GROUP_NOTE.raw("magic", 8, "`PSKENDED`")
GROUP_NOTE_END = GROUP_NOTE.u64("end", "the log had no event with this seq, or a higher one")
GROUP_NOTE_CRC = GROUP_NOTE.crc(20, "of the note up to here")
GROUP_NOTE_BYTES = GROUP_NOTE.size
