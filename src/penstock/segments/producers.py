"""The last append of each producer to a log of segments.

Each producer frame names the one before it in its segment; each segment's header has the table
at the start of the segment.
"""

from __future__ import annotations

from penstock import layout as L
from penstock._core import SegmentMap
from penstock.handle.producers import Done, News, Table
from penstock.layout import SegmentPosition
from penstock.segments import segment
from penstock.segments.segment import Header


def table_of(m: SegmentMap, header: Header, newest: int) -> Table:
    """The table after the producer frame at ``newest``; 0: the one at the start of the segment."""
    return table_from(segment.read_producers(m.fd, header, m.path), m, newest)


def table_from(data: bytes, m: SegmentMap, newest: int) -> Table:
    """The same, with the table at the start of the segment in ``data``."""
    table = Table.unpack(data, m.path)
    for who, done in _chain(m, newest, 0):
        table.note(who, done)
    return table


def _chain(m: SegmentMap, newest: int, known: int) -> list[tuple[bytes, Done]]:
    """The appends of the producer frames after ``known`` up to ``newest``, oldest first."""
    found = []
    at = newest
    while at != known:
        seq, who, value = m.producer_frame(at)
        if not who or len(value) != L.PRODUCER_BYTES:
            raise m.damage(at, 2)
        n, count, previous = L.PRODUCER.form.unpack(value)
        found.append((who, Done(n, seq, count)))
        if previous >= at:
            raise m.damage(at, 2)
        at = previous
    return found[::-1]


class Follower:
    """One handle's copy of the table, updated with what other processes append."""

    def __init__(self) -> None:
        self._table = Table()
        self._number = 0
        self._offset = 0

    @property
    def position(self) -> int:
        """The position of the newest producer frame in the table."""
        return SegmentPosition(self._number, self._offset).pack()

    def learn(self, news: News | None) -> None:
        """Add what this handle itself appended since ``position``."""
        if news is None:
            return
        number, offset = SegmentPosition.unpack(news[0])
        if number == self._number:
            self._offset = offset
            self._table.learn(news[1])

    def up_to(self, m: SegmentMap, header: Header, newest: int) -> Table:
        """The table after the producer frame at ``newest`` of segment ``m``."""
        if self._number != m.number:
            self._table = table_of(m, header, newest)
        else:
            for who, done in _chain(m, newest, self._offset):
                self._table.note(who, done)
        self._number, self._offset = m.number, newest
        return self._table
