"""Who appended what last to a ring.

Each producer frame tells how far back the one before it is. Before going back could lead to what
is overwritten, a frame is appended that holds the whole table.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from penstock import layout as L
from penstock.handle.producers import Done, News, Table

Frame = tuple[int, int, bytes | None, bytes]

_FRAME = struct.Struct("<QII")


class Follower:
    """One handle's copy of the table, kept up to date with what other processes append."""

    def __init__(self) -> None:
        self._table = Table()
        self._newest = 0

    @property
    def position(self) -> int:
        """Where the newest producer frame is that the table knows of."""
        return self._newest

    def learn(self, news: News | None) -> None:
        """Take in what this handle itself appended since ``position``."""
        if news is not None:
            self._newest = news[0]
            self._table.learn(news[1])

    def up_to(
        self, frame_at: Callable[[int], Frame | None], newest: int, tail: int
    ) -> Table | None:
        """The table behind the frame at ``newest``; None if frames are gone on the way there.

        What leads to before ``tail`` was lost with the power, and the table is what was not.
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
            if frame[0] != L.KIND_PRODUCER or len(frame[3]) != _FRAME.size:
                return None
            back = _FRAME.unpack(frame[3])[2]
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
                n, count, _ = _FRAME.unpack(value)
                table.note(who, Done(n, seq, count))
        self._table, self._newest = table, newest
        return table
