"""What was read ahead in the log: which new events a group may have, and the events."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from penstock._core import Event, Query, Reader
from penstock.groups import decisions as d
from penstock.groups.decisions import Run
from penstock.reader import SEQ_MAX, tag_bytes

if TYPE_CHECKING:
    from penstock.log import Log

AHEAD = 256  # events that are read at once
SKIP = 16 * AHEAD  # others' events that are read over, not sought
SPARE = 6  # runs beyond those wanted that a claim names, in case others claim at the same time


def hash_of(key: bytes | None) -> int | None:
    """A number for a key; two keys with the same number merely wait for each other."""
    if key is None:
        return None
    return int(blake2b(key, digest_size=8).hexdigest(), 16)


class Lookahead:
    """New events of a log from a seq on, as runs that a claim can name."""

    def __init__(self, log: Log[Any], terms: d.GroupTerms) -> None:
        self._log = log
        self._terms = terms
        self._reader: Reader[Any] | None = None
        self._runs: list[Run] = []
        self._begin = 0  # the runs have every event from this seq on …
        self._end = 0  # … and before this one
        self._lost = 0
        self.events: dict[int, Event[Any]] = {}

    def start_at(self, cursor: int) -> None:
        """Forget everything, and read from there."""
        self.close()
        terms = self._terms
        query = Query(
            cursor,
            topic=terms.topic,
            tags=tag_bytes(terms.tags),
            follows=True,
            skip=True,
            pass_gaps=True,
        )
        self._reader = Reader(self._log, query, cursor, SEQ_MAX)
        self._begin = self._end = cursor
        self._lost = 0

    def close(self) -> None:
        """Release the log's files."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        self._runs, self.events = [], {}
        self._begin = self._end = 0

    def vouch(self, cursor: int, want: int, now: int) -> tuple[int, list[Run]]:
        """What is known from ``cursor`` on: up to which seq, and the runs before that."""
        if self._reader is None or cursor < self._begin:
            self.start_at(cursor)
        elif cursor > self._end:
            self._skip_to(cursor)
        self._drop(cursor)
        if not self._runs:
            self._read(now)
        most = 2 * want + SPARE
        if len(self._runs) <= most:
            return self._end, self._runs
        return self._runs[most][1], self._runs[:most]

    def _skip_to(self, cursor: int) -> None:
        """Others have come further: read on until there; seek, if that is far away."""
        reader = self._reader
        assert reader is not None
        if cursor > self._end + SKIP:
            self.start_at(cursor)
            return
        while reader.position < cursor:
            if not reader.take(min(AHEAD, cursor - reader.position)):
                break
        self._runs, self.events = [], {}
        self._begin = self._end = reader.position
        self._lost = reader.skipped
        if self._end != cursor:
            self.start_at(cursor)

    def _drop(self, cursor: int) -> None:
        """Forget what was examined already."""
        runs = self._runs
        self._begin = cursor
        passed = 0
        while passed < len(runs):
            run = runs[passed]
            stop = run[2] if run[0] in (d.PLAIN, d.GONE) else run[1] + 1
            if stop > cursor:
                break
            passed += 1
        if passed:
            del runs[:passed]
        if not runs:
            self.events.clear()

    def _read(self, now: int) -> None:
        """Read on; events that are passed over are no run."""
        reader = self._reader
        assert reader is not None
        before = reader.position
        events = reader.take(AHEAD)
        lost = reader.skipped - self._lost
        self._lost = reader.skipped
        self._end = reader.position
        runs: list[Run] = []
        if lost:
            first = events[0].seq if events else self._end
            runs.append((d.GONE, max(before, first - lost), first))
        keyed = bool(self._terms.order)
        start = stop = 0
        for event in events:
            seq, due = event.seq, event.not_before
            key = event.key if keyed else None
            if key is None and (due is None or due <= now):
                if seq == stop:
                    stop += 1
                    continue
                if start:
                    runs.append((d.PLAIN, start, stop))
                start, stop = seq, seq + 1
                continue
            if start:
                runs.append((d.PLAIN, start, stop))
                start = stop = 0
            if key is None:
                runs.append((d.DELAYED, seq, due or 0))
            else:
                hashed = hash_of(key)
                assert hashed is not None
                runs.append((d.KEYED, seq, hashed, due or 0))
        if start:
            runs.append((d.PLAIN, start, stop))
        self._runs = runs
        self.events = {event.seq: event for event in events}
