"""The last append of each producer to a ring.

Each producer frame says how far back the one before it is. Before that chain could lead to
overwritten frames, a frame with the complete table is appended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from penstock import layout as L
from penstock.handle.producers import Done, News, Table

Frame: TypeAlias = tuple[int, int, bytes | None, bytes]
FrameAt: TypeAlias = Callable[[int], Frame | None]  # by its position; None if it is gone


class Follower:
    """One handle's copy of the table, updated with what other processes append."""

    def __init__(self) -> None:
        self._table = Table()
        self._newest = 0

    @property
    def position(self) -> int:
        """The position of the newest producer frame in the table."""
        return self._newest

    def learn(self, news: News | None) -> None:
        """Add what this handle itself appended since ``position``."""
        if news is not None:
            self._newest = news[0]
            self._table.learn(news[1])

    def up_to(self, frame_at: FrameAt, newest: int, tail: int) -> Table | None:
        """The table after the frame at ``newest``; None if frames on the way there are gone.

        Frames before ``tail`` were lost when the machine lost power; the table has the others.
        """
        chain: list[Frame] = []
        at = newest
        while at not in (self._newest, 0):
            if at < tail:
                at = 0
                break
            frame = frame_at(at)
            if frame is None:
                return None
            chain.append(frame)
            if frame[0] == L.KIND_PRODUCERS:
                break
            if frame[0] != L.KIND_PRODUCER or len(frame[3]) != L.PRODUCER_BYTES:
                return None
            back = L.PRODUCER.get(frame[3], "previous")
            if back > at:
                return None
            at = at - back if back else 0
        table = self._table
        if at == 0 and newest:
            table = Table()
        for kind, seq, who, value in reversed(chain):
            if kind == L.KIND_PRODUCERS:
                table = Table.unpack(value, "a ring")
            elif who:
                n, count, _ = L.PRODUCER.form.unpack(value)
                table.note(who, Done(n, seq, count))
        self._table, self._newest = table, newest
        return table
