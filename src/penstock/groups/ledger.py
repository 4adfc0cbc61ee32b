"""A group's sidecar log, and the state that this process derives from it.

A decision is appended without asking anybody: where it does not hold any more, all who read it,
its own author among them, find it void. Snapshots bound what an opener reads; what is older is
deleted once the snapshot is on disk.
"""

from __future__ import annotations

import os
from typing import Any

from penstock import _core
from penstock import layout as L
from penstock._core import Query, Reader
from penstock.errors import Corrupt, Gap, NotFound, PenstockError
from penstock.groups import decisions as d
from penstock.groups import snapshot
from penstock.groups.state import GroupState
from penstock.groups.trimming import trim
from penstock.handle.handle import Handle
from penstock.reader import SEQ_MAX

SNAPSHOT_EVERY = 4096  # decisions, at least
PART_BYTES = 256 << 10  # of a snapshot
SNAPSHOT = "snapshot"  # the topic of its parts
READ = 512
JUMP = 4096  # decisions of its own that a reader steps over


class Ledger:
    """The decisions of one group, and what they have come to. One thread at a time uses it."""

    def __init__(self, log: Any) -> None:
        self.log: Any = log  # a Log: names of that class lie above
        self.path: str = log.path
        self.state = GroupState()
        self.snapped = 0  # the seq of the newest complete snapshot
        self._kept = 0  # the first decision that it needs
        self._reader: Reader[Any] | None = None
        self._sound = False  # whether `state` is what the decisions say

    def load(self) -> None:
        """Derive the state again: from the newest snapshot, and the decisions after it."""
        self._sound = False
        for _ in range(10):
            try:
                self.state = self._newest_snapshot()
                self._read_from(self.state.at + 1)
                self._catch_up(SEQ_MAX)
            except Gap:  # it was trimmed meanwhile, so there is a newer snapshot
                continue
            self._sound = True
            return
        raise Corrupt(
            f"{self.path}: decisions before seq {self.log.first_seq} are gone, and no complete "
            "snapshot replaces them; delete the group with log.groups().delete(), or put back a "
            "backup of the log",
            path=self.path,
            seq=self.log.first_seq,
        )

    def _newest_snapshot(self) -> GroupState:
        parts: dict[bytes, list[bytes]] = {}
        for event in self.log.read(topic=SNAPSHOT, reverse=True, on_gap="skip"):
            part = d.decode(event.value, self.path, event.seq)
            if not isinstance(part, d.SnapshotPart):
                continue
            if part.part == part.parts - 1:
                parts[part.id] = []
                self.snapped = max(self.snapped, event.seq)
            found = parts.get(part.id)
            if found is None or len(found) != part.parts - 1 - part.part:
                continue  # it has lost its end
            found.append(part.data)
            if part.part == 0:
                self._kept = part.after + 1
                return snapshot.unpack(b"".join(reversed(found)), part.after, self.path)
        return GroupState()

    def catch_up(self) -> GroupState:
        """The state with everything that was decided until now."""
        if not self._sound:
            self.load()
        elif self.log._next_seq() - 1 > self.state.at:
            try:
                self._catch_up(SEQ_MAX)
            except Gap:  # it was stopped for long
                self.load()
        return self.state

    def is_current(self) -> bool:
        """Whether the state has everything that was decided until now."""
        return self._sound and bool(self.log._next_seq() == self.state.at + 1)

    def record(self, decision: d.Decision, *, durable: bool = False) -> Any:
        """Append a decision; returns what came of it."""
        if not self._sound or self.log._next_seq() - self.state.at > JUMP // 4:
            self.catch_up()  # so that what comes of it is read, and not a newer snapshot
        state = self.state
        data = d.encode(decision)
        _core.fail_point("group.before")
        seq = self.log.append(data)
        _core.fail_point("group.recorded")
        if seq == state.at + 1:
            self._sound = False  # after an interrupt in the next call it is loaded again
            done = state.apply(decision, seq)
            self._sound = True
        else:
            try:
                done = self._catch_up(seq)
            except Gap:
                self.load()
                done = None
        if durable:
            self.sync(seq)
        if seq - max(self.snapped, self._kept) >= SNAPSHOT_EVERY:
            self._snap_if_due(seq)
        return done

    def sync(self, seq: int | None = None) -> None:
        """Have the decisions up to ``seq`` on disk."""
        handle: Handle = self.log
        handle._sync(L.C_DURABLE_SEQ, seq if seq is not None else self.state.at, None)

    def _catch_up(self, until: int) -> Any:
        """Apply what comes next, up to seq ``until``; returns what came of that one."""
        state, path = self.state, self.path
        reader = self._reader
        if reader is None or not state.at - JUMP <= reader.position <= state.at + 1:
            reader = self._read_from(state.at + 1)
        done = None
        while state.at < until:
            events = reader.take(min(READ, until - reader.position + 1))
            if not events:
                break
            for event in events:
                seq = event.seq
                if seq <= state.at:
                    continue
                decision = d.decode(event.value, path, seq)
                if type(decision) is d.SnapshotPart:
                    self._saw(decision, seq)
                try:
                    self._sound = False
                    done = state.apply(decision, seq)
                    self._sound = True
                except (KeyError, IndexError, TypeError, ValueError, AssertionError) as error:
                    raise Corrupt(
                        f"{path}: the decision with seq {seq} does not fit those before it "
                        f"({type(error).__name__}: {error}); put back a backup of the log, or "
                        "delete the group",
                        path=path,
                        seq=seq,
                    ) from error
        return done

    def _read_from(self, seq: int) -> Reader[Any]:
        if self._reader is not None:
            self._reader.close()
        self._reader = Reader(self.log, Query(seq, follows=True), seq, SEQ_MAX)
        return self._reader

    def _saw(self, part: d.SnapshotPart, seq: int) -> None:
        if part.part == part.parts - 1:
            self.snapped = seq
            self._kept = max(self._kept, part.after + 1)

    def _snap_if_due(self, seq: int) -> None:
        if seq - max(self.snapped, self._kept) >= max(SNAPSHOT_EVERY, 4 * len(self.state.open)):
            self.snap()

    def snap(self) -> None:
        """Append a snapshot, and delete what the one before it made superfluous."""
        if self.log.durable_seq >= self.snapped > 0:
            trim(self.log, self._kept)
        data, after = snapshot.pack(self.state), self.state.at
        pieces = [data[i : i + PART_BYTES] for i in range(0, len(data), PART_BYTES)]
        name = os.urandom(8)
        for i, piece in enumerate(pieces):
            part = d.SnapshotPart(after, name, i, len(pieces), piece)
            _core.fail_point("group.snapshot")
            self.log.append(d.encode(part), topic=SNAPSHOT)
        self.catch_up()
        self.log.sync(wait=False)

    def close(self) -> None:
        """Close the sidecar log, with a snapshot if an opener would have much to read."""
        try:
            if self._sound and self.state.at - max(self.snapped, self._kept) >= SNAPSHOT_EVERY // 8:
                self.snap()
        except (PenstockError, NotFound):
            pass  # the next opener reads more
        finally:
            if self._reader is not None:
                self._reader.close()
            self.log.close()
