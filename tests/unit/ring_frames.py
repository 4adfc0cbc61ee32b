"""Where the frames of a closed ring are, read without the package's own code."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from penstock import layout as L


@dataclass(frozen=True)
class Frame:
    """One frame: its place in the file, and what it is."""

    offset: int
    end: int  # of what its checksum covers
    padded: int
    position: int
    seq: int
    kind: int

    @property
    def is_event(self) -> bool:
        return self.kind in (L.KIND_DATA, L.KIND_DELETE)


@dataclass(frozen=True)
class Picture:
    """A ring that was closed: its shape, and its frames from the oldest to the newest."""

    data_offset: int
    ring_bytes: int
    tail: int
    head: int
    clean_slot: int  # offset of the newest checkpoint
    frames: list[Frame]


def u64(data: bytes, at: int) -> int:
    (value,) = struct.unpack_from("<Q", data, at)
    return int(value)


def picture(data: bytes) -> Picture:
    """What the newest checkpoint, and the frames that it names, say."""
    data_offset = u64(data, L.HEADER_DATA_OFFSET)
    room = (u64(data, L.HEADER_SEGMENT_BYTES) - data_offset) // L.ALIGN * L.ALIGN
    slot = max((L.SLOT_A_OFFSET, L.SLOT_B_OFFSET), key=lambda at: u64(data, at + L.SLOT_GENERATION))
    assert u64(data, slot + L.SLOT_FLAGS) & L.SLOT_FLAG_CLEAN
    tail, head = u64(data, slot + L.SLOT_TAIL), u64(data, slot + L.SLOT_OFFSET)
    frames: list[Frame] = []
    at = tail
    while at < head:
        left = room - at % room
        if left < L.FRAME_HEADER_BYTES:
            at += left
            continue
        offset = data_offset + at % room
        commit, _, seq = struct.unpack_from("<IIQ", data, offset)
        kind = data[offset + L.FRAME_KIND]
        end = offset + L.FRAME_HEADER_BYTES + commit - 1
        padded = -(-end // L.ALIGN) * L.ALIGN
        frames.append(Frame(offset, end, padded, at, seq, kind))
        at += left if kind == L.KIND_WRAP else padded - offset
    assert at == head
    return Picture(data_offset, room, tail, head, slot, frames)
