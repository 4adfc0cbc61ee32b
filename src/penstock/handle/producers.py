"""The last append of each producer: the table that makes a repeated append a no-op.

Each append of a producer begins with a producer frame, which leads to the one before it. So the
current table is a complete one that the log stores, updated along that chain. Every process derives
its own, and all get the same.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeAlias

from penstock import layout as L
from penstock.errors import Conflict, Corrupt


@dataclass(frozen=True, slots=True)
class Done:
    """A producer's last append."""

    n: int
    first_seq: int
    count: int


Appended: TypeAlias = tuple[bytes, int, int, int]  # id, number, first seq and count
News: TypeAlias = tuple[int, list[Appended]]  # with the position of the newest


class Table:
    """The last append of each producer, the oldest append first."""

    def __init__(self) -> None:
        self.entries: OrderedDict[bytes, Done] = OrderedDict()

    def note(self, who: bytes, done: Done) -> None:
        """Add an append to the table; the least recently used producer may be dropped."""
        self.entries[who] = done
        self.entries.move_to_end(who)
        while len(self.entries) > L.PRODUCERS_MAX:
            self.entries.popitem(last=False)

    def learn(self, appended: list[Appended]) -> None:
        """Add the appends of several producers, the latest at the end."""
        for who, n, first_seq, count in appended:
            self.note(who, Done(n, first_seq, count))

    def done(self, path: str, who: bytes, n: int) -> range | None:
        """The seqs that ``who`` appended under ``n``; None if it did not yet."""
        done = self.entries.get(who)
        if done is None or n > done.n:
            return None
        if n < done.n:
            raise Conflict(
                f"{path}: producer {who.decode()!r} has already appended number {done.n}; the next "
                f"must be higher, got {n}; nothing was written",
                path=path,
                expected=n,
                found=done.n,
            )
        return range(done.first_seq, done.first_seq + done.count)

    def pack(self, bytes_max: int) -> bytes:
        """The table for a segment's header, without the oldest entries if they do not fit."""
        packed: list[bytes] = []
        room, pack = bytes_max, L.PRODUCER_ENTRY.form.pack
        for who, done in reversed(self.entries.items()):
            entry = pack(len(who), done.n, done.first_seq, done.count) + who
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
            start = at + L.PRODUCER_ENTRY_BYTES
            head = data[at:start].ljust(L.PRODUCER_ENTRY_BYTES, b"\0")
            who_len, n, first_seq, count = L.PRODUCER_ENTRY.form.unpack(head)
            at = start + who_len
            if not 0 < who_len <= L.PRODUCER_ID_BYTES_MAX or at > len(data):
                raise Corrupt(f"{path}: its table of producers is not consistent", path=path)
            table.note(data[start:at], Done(n, first_seq, count))
        return table
