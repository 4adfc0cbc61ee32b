"""Who appended what last: the table that makes a repeated append a no-op.

Each append of a producer begins with a producer frame, which names the one before it in its
segment; each segment's header carries the table as it stood when the segment began. So the table at
any moment is the header's, brought forward along that chain. Every process derives its own, and all
of them get the same.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeAlias

from penstock import layout as L
from penstock._core import SegmentMap
from penstock.errors import Conflict, Corrupt
from penstock.segments import segment
from penstock.segments.segment import Header

_FRAME = struct.Struct("<QII")
_ENTRY = struct.Struct("<HQQQ")


@dataclass(frozen=True, slots=True)
class Done:
    """A producer's last append."""

    n: int
    first_seq: int
    count: int


Appended: TypeAlias = tuple[bytes, int, int, int]  # id, number, first seq and count
News: TypeAlias = tuple[int, list[Appended]]  # with the position of the newest


class Table:
    """The last append of each producer, the one that appended longest ago first."""

    def __init__(self) -> None:
        self.entries: OrderedDict[bytes, Done] = OrderedDict()

    def note(self, who: bytes, done: Done) -> None:
        """Take an append into the table; the least recently used producer may leave it."""
        self.entries[who] = done
        self.entries.move_to_end(who)
        while len(self.entries) > L.PRODUCERS_MAX:
            self.entries.popitem(last=False)

    def learn(self, appended: list[Appended]) -> None:
        """Take in what several producers appended, the latest at the end."""
        for who, n, first_seq, count in appended:
            self.note(who, Done(n, first_seq, count))

    def done(self, path: str, who: bytes, n: int) -> range | None:
        """The seqs of what ``who`` appended under ``n``; None if it has yet to."""
        done = self.entries.get(who)
        if done is None or n > done.n:
            return None
        if n < done.n:
            raise Conflict(
                f"{path}: producer {who.decode()!r} has appended number {done.n} already, and {n} "
                "comes before it; nothing was written",
                path=path,
                expected=n,
                found=done.n,
            )
        return range(done.first_seq, done.first_seq + done.count)

    def pack(self, bytes_max: int) -> bytes:
        """The table for a segment's header, without the oldest entries if they do not fit."""
        packed: list[bytes] = []
        room = bytes_max
        for who, done in reversed(self.entries.items()):
            entry = _ENTRY.pack(len(who), done.n, done.first_seq, done.count) + who
            room -= len(entry)
            if room < 0:
                break
            packed.append(entry)
        return b"".join(reversed(packed))

    @classmethod
    def unpack(cls, data: bytes, path: str) -> Table:
        """The table from a segment's header."""
        table = cls()
        at = 0
        while at < len(data):
            who_len = int.from_bytes(data[at : at + 2], "little")
            end = at + _ENTRY.size + who_len
            if not 0 < who_len <= L.PRODUCER_ID_BYTES_MAX or end > len(data):
                raise Corrupt(f"{path}: its table of producers contradicts itself", path=path)
            _, n, first_seq, count = _ENTRY.unpack_from(data, at)
            table.note(data[at + _ENTRY.size : end], Done(n, first_seq, count))
            at = end
        return table


def table_of(m: SegmentMap, header: Header, newest: int) -> Table:
    """The table behind the producer frame at ``newest``; 0: as the segment began with it."""
    return table_from(segment.read_producers(m.fd, header, m.path), m, newest)


def table_from(data: bytes, m: SegmentMap, newest: int) -> Table:
    """Likewise, with the table that the segment began with in ``data``."""
    table = Table.unpack(data, m.path)
    for who, done in _chain(m, newest, 0):
        table.note(who, done)
    return table


def _chain(m: SegmentMap, newest: int, known: int) -> list[tuple[bytes, Done]]:
    """What the producer frames from behind ``known`` up to ``newest`` say, oldest first."""
    found = []
    at = newest
    while at != known:
        seq, who, value = m.producer_frame(at)
        if not who or len(value) != _FRAME.size:
            raise m.damage(at, 2)
        n, count, previous = _FRAME.unpack(value)
        found.append((who, Done(n, seq, count)))
        if previous >= at:
            raise m.damage(at, 2)
        at = previous
    return found[::-1]


class Follower:
    """One handle's copy of the table, kept up to date with what other processes append."""

    def __init__(self) -> None:
        self._table = Table()
        self._number = 0
        self._offset = 0

    @property
    def position(self) -> int:
        """Where the newest producer frame is that the table knows of."""
        return self._number << 32 | self._offset

    def learn(self, news: News | None) -> None:
        """Take in what this handle itself appended since ``position``."""
        if news is not None and news[0] >> 32 == self._number:
            self._offset = news[0] & 0xFFFFFFFF
            self._table.learn(news[1])

    def up_to(self, m: SegmentMap, header: Header, newest: int) -> Table:
        """The table as it stands behind the producer frame at ``newest`` of segment ``m``."""
        if self._number != m.number:
            self._table = table_of(m, header, newest)
        else:
            for who, done in _chain(m, newest, self._offset):
                self._table.note(who, done)
        self._number, self._offset = m.number, newest
        return self._table
