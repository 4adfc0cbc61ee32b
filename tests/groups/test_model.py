"""A group against a plain model of what its users were promised."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

import penstock
from penstock import Conflict, Entry
from penstock.groups import ledger
from penstock.groups.job import Job
from tests.support.fixtures import STORM

DELIVERIES = 3


class GroupMachine(RuleBasedStateMachine):
    """Two handles with workers that claim, settle, die, close, are released, and open again."""

    held = Bundle("held")
    fresh = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.scratch = tempfile.TemporaryDirectory()
        ledger.SNAPSHOT_EVERY = 20
        self.keys: dict[int, bytes] = {}
        self.tries: dict[int, int] = {}  # of unfinished events
        self.holder: dict[int, Job] = {}  # who has which event
        self.acked: set[int] = set()
        self.dead: list[int] = []
        self.letters = 0
        self.raised: list[int] = []

    @initialize(ordered=st.booleans())
    def begin(self, ordered: bool) -> None:
        """Open the log twice."""
        self.ordered = ordered
        path = Path(self.scratch.name) / "log"
        self.logs = [penstock.open(path, segment_size=65536) for _ in range(2)]
        order: Any = "key" if ordered else None
        self.groups = [
            log.group("g", order=order, deliveries=DELIVERIES, backoff=(0,)) for log in self.logs
        ]
        self.workers = [group.worker(timeout=0) for group in self.groups]

    @rule(keys=st.lists(st.sampled_from([b"a", b"b", b"c"]), max_size=6))
    def append(self, keys: list[bytes]) -> None:
        """Append some events."""
        if keys:
            seqs = self.logs[0].extend([Entry(b"x", key=key) for key in keys])
            for seq, key in zip(seqs, keys, strict=True):
                self.keys[seq] = key
                self.tries[seq] = 0

    def free(self) -> set[int]:
        """What may be handed out now."""
        unfinished = [seq for seq in sorted(self.tries) if seq not in self.holder]
        if not self.ordered:
            return set(unfinished)
        busy = {self.keys[seq] for seq in self.holder}
        first: dict[bytes, int] = {}
        for seq in unfinished:
            first.setdefault(self.keys[seq], seq)
        return {seq for key, seq in first.items() if key not in busy}

    @rule(target=held, who=st.integers(0, 1), count=st.integers(1, 5))
    def claim(self, who: int, count: int) -> Any:
        """Each event that may come comes, until there are enough; no other does."""
        free = self.free()
        jobs = self.workers[who].poll(count)
        assert len(jobs) == min(count, len(free)), (jobs, free)
        for job in jobs:
            assert job.seq in free
            assert job.deliveries == self.tries[job.seq] + 1
            assert job.event.key == self.keys[job.seq]
            self.holder[job.seq] = job
        return multiple(*jobs)

    def settle(self, job: Job, call: Any, then: Any) -> None:
        """A call counts if the worker still has the event."""
        if self.holder.get(job.seq) is job:
            call()
            del self.holder[job.seq]
            then(job.seq)
        elif job._worker in self.workers:
            with pytest.raises(Conflict):
                call()
        else:
            with pytest.raises(penstock.Closed):
                call()

    def finish(self, seq: int) -> None:
        del self.tries[seq]
        self.acked.add(seq)

    def fail(self, seq: int) -> None:
        self.tries[seq] += 1
        if self.tries[seq] >= DELIVERIES:
            self.give_up(seq)

    def give_up(self, seq: int) -> None:
        del self.tries[seq]
        self.dead.append(seq)
        self.letters += 1

    @rule(job=consumes(held))
    def ack(self, job: Job) -> None:
        """Done."""
        self.settle(job, job.ack, self.finish)

    @rule(job=consumes(held))
    def nack(self, job: Job) -> None:
        """Failed."""
        self.settle(job, job.nack, self.fail)

    @rule(job=consumes(held))
    def let_be(self, job: Job) -> None:
        """Not its fault."""
        self.settle(job, lambda: job.nack(count=False), lambda _: None)

    @rule(job=consumes(held))
    def reject(self, job: Job) -> None:
        """Hopeless."""
        self.settle(job, job.reject, self.give_up)

    def returned(self, who: int, tried: bool) -> None:
        """What a worker had is free again."""
        for seq, job in list(self.holder.items()):
            if job._worker is self.workers[who]:
                del self.holder[seq]
                if tried:
                    self.fail(seq)

    @rule(who=st.integers(0, 1))
    def release(self, who: int) -> None:
        """Somebody takes everything from a worker."""
        self.groups[1 - who].release(self.workers[who].number)
        self.returned(who, tried=False)

    @rule(who=st.integers(0, 1), dies=st.booleans())
    def replace(self, who: int, dies: bool) -> None:
        """A worker closes or dies, and another one takes its place."""
        worker = self.workers[who]
        if dies:
            worker._closed = True
            worker._life.let_go()
        else:
            worker.close()
        self.returned(who, tried=dies)
        self.workers[who] = self.groups[who].worker(timeout=0)

    @rule(who=st.integers(0, 1))
    def reopen(self, who: int) -> None:
        """A handle closes with its worker, and opens again: from a snapshot, often."""
        self.groups[who].close()
        self.returned(who, tried=False)
        self.groups[who] = self.logs[who].group("g")
        self.workers[who] = self.groups[who].worker(timeout=0)

    @precondition(lambda self: self.dead)
    @rule(who=st.integers(0, 1), limit=st.integers(1, 3))
    def redrive(self, who: int, limit: int) -> None:
        """Dead letters come back, the oldest first."""
        assert self.groups[who].redrive(limit=limit) == min(limit, len(self.dead))
        for seq in self.dead[:limit]:
            self.tries[seq] = 0
        del self.dead[:limit]

    @invariant()
    def counts_agree(self) -> None:
        """Both handles say what the model says."""
        if not hasattr(self, "groups"):
            return
        for group in self.groups:
            stats = group.stats()
            assert stats.acked == len(self.acked)
            assert stats.dead == len(self.dead)
            assert stats.claimed == len(self.holder)
            assert stats.lost == 0

    def teardown(self) -> None:
        if hasattr(self, "groups"):
            assert len(self.groups[0].dead) == self.letters
            for group, log in zip(self.groups, self.logs, strict=True):
                group.close()
                log.close()
        ledger.SNAPSHOT_EVERY = 4096
        self.scratch.cleanup()


LENGTH = settings(max_examples=200 if STORM else 12, stateful_step_count=40, deadline=None)


def test_a_group_is_its_model() -> None:
    """Two handles do as the model says, whatever dies, closes and opens again."""
    run_state_machine_as_test(GroupMachine, settings=LENGTH)
