"""A second reader of the file format, in plain Python, written from the format's description.

It shares no code and no numbers with the package, so that a mistake in either shows. It believes
nothing: each frame's checksum, order and back pointer is checked as it is read.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

PAGE = 4096
DATA, DELETE, WRAP, ROLL, SETTINGS = 1, 2, 4, 5, 6
HAS_TIME = 1
NONE = 0xFFFF


def _table() -> list[int]:
    table = []
    for value in range(256):
        c = value
        for _ in range(8):
            c = c >> 1 ^ 0x82F63B78 if c & 1 else c >> 1
        table.append(c)
    return table


_TABLE = _table()


def crc32c(data: bytes | bytearray | memoryview) -> int:
    """CRC32C, a byte at a time."""
    c = 0xFFFFFFFF
    for byte in bytes(data):
        c = _TABLE[(c ^ byte) & 255] ^ c >> 8
    return c ^ 0xFFFFFFFF


@dataclass(frozen=True)
class Frame:
    """One frame, taken apart."""

    at: int
    length: int
    seq: int
    append_ns: int
    back: int
    batch_left: int
    kind: int
    flags: int
    given_ns: int | None
    topic: bytes
    headers: tuple[tuple[str, bytes | None], ...]
    key: bytes | None
    value: bytes

    @property
    def time_ns(self) -> int:
        return self.append_ns if self.given_ns is None else self.given_ns

    @property
    def is_event(self) -> bool:
        return self.kind in (DATA, DELETE)


def parse_frame(raw: bytes, at: int) -> Frame | None:
    """The frame at ``at``; None if nothing is published there."""
    if at + 40 > len(raw):
        return None
    commit, crc, seq, append_ns, back, left, key_len, headers_len, topic_len, kind, flags = (
        struct.unpack_from("<IIQQIIHHHBB", raw, at)
    )
    if commit == 0:
        return None
    body = raw[at + 40 : at + 40 + commit - 1]
    assert len(body) == commit - 1, f"frame at {at} runs past the file"
    assert crc == crc32c(raw[at + 8 : at + 40 + commit - 1]), f"checksum of the frame at {at}"
    length = (40 + commit - 1 + 7) // 8 * 8
    assert not any(raw[at + 40 + commit - 1 : at + length]), f"padding of the frame at {at}"
    given = None
    if flags & HAS_TIME:
        (given,) = struct.unpack_from("<Q", body)
        body = body[8:]
    topic, body = body[:topic_len], body[topic_len:]
    headers, body = body[:headers_len], body[headers_len:]
    key = None
    if key_len != NONE:
        key, body = body[:key_len], body[key_len:]
    return Frame(
        at,
        length,
        seq,
        append_ns,
        back,
        left,
        kind,
        flags,
        given,
        topic,
        parse_headers(headers),
        key,
        body,
    )


def parse_headers(raw: bytes) -> tuple[tuple[str, bytes | None], ...]:
    """Header pairs: two lengths, the name, the value."""
    found: list[tuple[str, bytes | None]] = []
    while raw:
        name_len, value_len = struct.unpack_from("<HH", raw)
        name = raw[4 : 4 + name_len].decode()
        raw = raw[4 + name_len :]
        if value_len == NONE:
            found.append((name, None))
        else:
            found.append((name, raw[:value_len]))
            raw = raw[value_len:]
    return tuple(found)


@dataclass(frozen=True)
class Segment:
    """One segment file, taken apart."""

    path: Path
    raw: bytes
    uuid: bytes
    base_seq: int
    number: int
    generation: int
    segment_bytes: int
    data_offset: int
    index_offset: int
    index_capacity: int
    index_step: int
    prior_append_ns: int
    prior_event_max_ns: int
    flags: int
    settings: bytes
    frames: tuple[Frame, ...]

    @property
    def events(self) -> list[Frame]:
        return [f for f in self.frames if f.is_event]

    @property
    def end(self) -> int:
        return self.frames[-1].at + self.frames[-1].length if self.frames else self.data_offset

    @property
    def rolled(self) -> bool:
        return bool(self.frames) and self.frames[-1].kind == ROLL


def check_copies(raw: bytes) -> None:
    """The rest of the page of each checkpoint is the start of the header, and a checksum."""
    for at in (PAGE, 2 * PAGE):
        copy = raw[at + 512 : at + PAGE]
        assert copy[:-4] == raw[: len(copy) - 4], "a copy of the header"
        assert struct.unpack_from("<I", copy, len(copy) - 4) == (crc32c(copy[:-4]),)


def read_segment(path: Path) -> Segment:
    """Read and check one segment file."""
    raw = path.read_bytes()
    assert raw[:8] == b"PENSTOCK"
    version, order, uuid, base, number, generation, _created, size, data, index = (
        struct.unpack_from("<II16sQIIQQQQ", raw, 8)
    )
    capacity, step, prior_append, prior_event, flags, settings_len = struct.unpack_from(
        "<IIQQII", raw, 80
    )
    assert version in (1, 2, 3, 4, 5)
    assert order == 0x01020304
    assert struct.unpack_from("<I", raw, PAGE - 4) == (crc32c(raw[: PAGE - 4]),)
    if version >= 4:
        check_copies(raw)
    assert path.name == f"{base:020d}.seg"
    frames: list[Frame] = []
    at, next_seq, last = data, base, 0
    while at < size - PAGE and (frame := parse_frame(raw, at)) is not None:
        dense = frame.seq == next_seq or (
            generation and frame.seq > next_seq
        )  # else holes are fine
        assert dense, f"{path}: seq at {at}"
        assert frame.back == (at - last if last else 0), f"{path}: back at {at}"
        next_seq = frame.seq + frame.is_event
        last, at = at, at + frame.length
        frames.append(frame)
        if frame.kind == ROLL:
            break
    return Segment(
        path,
        raw,
        uuid,
        base,
        number,
        generation,
        size,
        data,
        index,
        capacity,
        step,
        prior_append,
        prior_event,
        flags,
        raw[128 : 128 + settings_len],
        tuple(frames),
    )


def segment_paths(directory: Path) -> list[Path]:
    """The segment files of a log, oldest first."""
    return sorted(directory.glob("*.seg"))


def read_log(directory: Path) -> list[Segment]:
    """Read and check every segment of a log."""
    return [read_segment(p) for p in segment_paths(directory)]


def index_entries(segment: Segment) -> list[tuple[int, int, int, int, int, int]]:
    """What the sparse index must hold: a block begins with the first frame 4 KiB after the last.

    Each entry: offset of the first frame, a bit for each topic, seq and append time of the first
    frame, least and greatest event time.
    The last entry is the block that was open when the segment ended.
    """
    at, seq, append_ns = segment.data_offset, segment.base_seq, segment.prior_append_ns
    low, high, topics = (1 << 64) - 1, 0, 0
    entries = []
    for frame in segment.frames:
        if frame.at >= at + segment.index_step:
            entries.append((at, topics, seq, append_ns, low, high))
            at, seq, append_ns = frame.at, frame.seq, frame.append_ns
            low, high, topics = (1 << 64) - 1, 0, 0
        if frame.is_event:
            low, high = min(low, frame.time_ns), max(high, frame.time_ns)
            topics |= 1 << (crc32c(frame.topic) >> 27) if frame.topic else 1
    entries.append((at, topics, seq, append_ns, low, high))
    return entries


def read_ring(path: Path) -> list[Frame]:
    """The events of a ring that was closed, by its newest checkpoint, each frame checked."""
    raw = path.read_bytes()
    assert raw[:8] == b"PENSRING"
    version, order = struct.unpack_from("<II", raw, 8)
    assert version in (1, 2)
    assert order == 0x01020304
    assert struct.unpack_from("<I", raw, PAGE - 4) == (crc32c(raw[: PAGE - 4]),)
    if version >= 2:
        check_copies(raw)
    size, data = struct.unpack_from("<QQ", raw, 56)
    capacity, slot_bytes = struct.unpack_from("<II", raw, 80)
    assert size == len(raw)
    room = (size - data) // 8 * 8
    slots = []
    for at in (PAGE, 2 * PAGE):
        if raw[at : at + 8] == b"PSKCHECK":
            assert struct.unpack_from("<I", raw, at + 508) == (crc32c(raw[at : at + 508]),)
            slots.append(struct.unpack_from("<10Q", raw, at + 8))
    _, head, last_frame, last_seq, _, _, tail, _, flags, _ = max(slots)
    assert flags & 2, "it was not closed cleanly"
    assert room <= tail <= head <= tail + room
    found: list[Frame] = []
    position, last, seq = tail, 0, None
    while position < head:
        left = room - position % room
        if left < 40:
            position += left
            continue
        at = data + position % room
        frame = parse_frame(raw, at)
        assert frame is not None, f"nothing at {position}"
        assert seq is None or frame.seq == seq, f"seq at {position}"
        assert not last or frame.back == position - last, f"back at {position}"
        seq = frame.seq + frame.is_event
        if frame.is_event:
            found.append(frame)
        last, position = position, position + (left if frame.kind == WRAP else frame.length)
    assert (last, seq) == (last_frame, last_seq + 1)
    for frame in found[-capacity:] if capacity else []:
        (where,) = struct.unpack_from("<Q", raw, 4 * PAGE + frame.seq % capacity * slot_bytes)
        assert data + where % room == frame.at, f"index of {frame.seq}"
    return found
