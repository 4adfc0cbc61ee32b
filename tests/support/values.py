"""Events that describe themselves, so that a checker can tell what a log must and may hold.

An event names its writer, the writer's count of operations, and its place in its batch; its value
is made from these alone. Values with room for it carry the description themselves (that is the
append path without a key), the others have it in their key.
"""

from __future__ import annotations

import random
import struct
import zlib
from typing import NamedTuple

from penstock import Entry, Event

_POOL = random.Random(20261101).randbytes(1 << 20)
_PREFIX = struct.Struct("<4s16sIIHHI")
_MAGIC = b"WORK"
VALUE_BYTES_MAX = 500_000
LOADED_MIN = 100  # operations of so many events are loads, which are made of many batches


class Mark(NamedTuple):
    """Which event of which operation of which writer."""

    writer: str
    counter: int
    place: int
    batch: int
    size: int


def _body(mark: Mark, size: int) -> bytes:
    start = zlib.crc32(repr(mark).encode()) % (len(_POOL) - size) if size else 0
    return _POOL[start : start + size]


def make(mark: Mark) -> Entry | bytes:
    """The event that ``mark`` stands for: a bare value, or an entry with a key."""
    if mark.size < _PREFIX.size:
        return Entry(_body(mark, mark.size), key=repr(tuple(mark)).encode())
    prefix = _PREFIX.pack(
        _MAGIC, mark.writer.encode(), mark.counter, mark.size, mark.place, mark.batch, 0
    )
    return prefix + _body(mark, mark.size - _PREFIX.size)


def read_mark(event: Event) -> Mark:
    """The mark of an event that a worker appended; fails if the event is not exactly as made."""
    key, value = event.key, event.value
    assert value is not None, f"seq {event.seq}: nobody appended a deletion"
    if key is not None:
        text = key.decode().strip("()").replace("'", "").split(", ")
        mark = Mark(text[0], *(int(part) for part in text[1:]))
    else:
        assert len(value) >= _PREFIX.size and value[:4] == _MAGIC, f"seq {event.seq}: unknown bytes"
        _, writer, counter, size, place, batch, _ = _PREFIX.unpack_from(value)
        mark = Mark(writer.rstrip(b"\0").decode(), counter, place, batch, size)
    made = make(mark)
    wanted = made.value if isinstance(made, Entry) else made
    assert value == wanted, f"seq {event.seq}: the value differs from what {mark} appended"
    if mark.batch < LOADED_MIN:
        left = mark.batch - 1 - mark.place
        assert event.batch_left == left, f"seq {event.seq}: batch_left is off"
    return mark


def fingerprint(event: Event) -> int:
    """A checksum over all that a reader gets to see of an event, without its seq."""
    return zlib.crc32(event.value or b"", zlib.crc32(event.key or b"", event.batch_left))


def random_size(rng: random.Random, limit: int = VALUE_BYTES_MAX) -> int:
    """A size from 0 B to 500 KB: mostly small, with the borders that matter and some giants."""
    kind = rng.random()
    if kind < 0.10:
        return 0
    if kind < 0.70:
        return rng.randrange(1, 300)
    if kind < 0.90:
        return min(limit, rng.choice((4000, 4096, 8192, 8193)) + rng.randrange(-40, 40))
    if kind < 0.97:
        return min(limit, rng.randrange(20_000, 40_000))
    return min(limit, rng.randrange(100_000, VALUE_BYTES_MAX + 1))
