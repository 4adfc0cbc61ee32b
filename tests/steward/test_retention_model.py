"""Whatever is appended, rolled, trimmed, retained and consumed, the log is what a list says."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

import penstock
from penstock import Gap
from penstock.steward import retention
from tests.consumers.processes import run
from tests.support.fixtures import STORM

pytestmark = [pytest.mark.process, pytest.mark.timeout(3000 if STORM else 300)]

SIZES = st.sampled_from([10, 3000, 9000, 9000, 15_000])
NAMES = ["a", "b"]
POINTS = [
    *("retain.moved", "retain.synced", "retain.deleted", "retain.done"),
    *("publish.head", "sync.synced", "roll.committed", "segment.named"),
]


class Retained(RuleBasedStateMachine):
    """A log with rules and consumers beside a plain model of both."""

    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="penstock-retained-"))
        self.patch = mock.patch.object(retention, "keep_up", lambda *_: False)
        self.patch.start()
        self.log = penstock.open(self.directory / "log", segment_size="64KiB")
        self.next = 1  # the seq to come
        self.first = 1
        self.kept_by: dict[str, Any] = {}
        self.committed: dict[str, int] = {}  # of consumers, dead or alive
        self.live: dict[str, Any] = {}
        self.follower = self.log.follow("start", timeout=0, on_gap="skip")
        self.followed = 1

    def teardown(self) -> None:
        if hasattr(self, "log"):
            for consumer in self.live.values():
                consumer.close()
            self.log.close()
            self.patch.stop()
            shutil.rmtree(self.directory)

    @rule(sizes=st.lists(SIZES, min_size=1, max_size=6))
    def append(self, sizes: list[int]) -> None:
        for size in sizes:
            assert self.log.append(bytes(size), key=b"%d" % self.next) == self.next
            self.next += 1

    @rule()
    def roll(self) -> None:
        self.log.steward.roll()

    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        before = data.draw(st.integers(0, self.next))
        assert self.log.steward.trim(before=before) == max(self.first, before)
        self.first = max(self.first, before)

    @rule(
        segments=st.sampled_from([0, 1, 3]),
        nbytes=st.sampled_from([0, 200_000]),
        consumed=st.sampled_from([False, True, ("a",), ("b", "a")]),
        lag=st.sampled_from([0, 0, 100_000]),
    )
    def configure(self, segments: int, nbytes: int, consumed: Any, lag: int) -> None:
        self.kept_by = {
            "keep_segments": segments,
            "keep_bytes": nbytes,
            "keep_until_consumed": consumed,
            "max_lag": lag,
        }
        self.log.configure(**self.kept_by)

    @rule(dry_run=st.booleans())
    def retain(self, dry_run: bool) -> None:
        bases = self.bases()
        plan = self.log.steward.retain(dry_run=dry_run)
        assert str(plan).startswith(str(self.log.path))
        assert plan.first_seq == self.first
        wanted = plan.new_first_seq
        assert wanted == self.first or wanted in bases
        deleted = [p.first_seq for p in plan.deleted]
        assert deleted == [b for b in bases if b < wanted and b >= bases[0]][: len(deleted)]
        assert wanted <= self.bound(bases)
        if not any(self.kept_by.get(r) for r in ("keep_bytes", "keep_until_consumed")):
            keep = self.kept_by.get("keep_segments", 0)
            assert wanted == max(self.first, bases[max(0, len(bases) - keep)] if keep else 1)
        if not dry_run:
            self.first = wanted
            if self.first in self.bases():
                assert self.bases()[0] == self.first

    def bound(self, bases: list[int]) -> int:
        """The highest first seq that the rules allow; max_lag can let go of more."""
        if not any(self.kept_by.get(r) for r in ("keep_segments", "keep_bytes")) and not (
            self.kept_by.get("keep_until_consumed")
        ):
            return self.first
        consumed = self.kept_by.get("keep_until_consumed")
        if not consumed or self.kept_by["max_lag"]:
            return max(self.first, bases[-1])
        names = self.committed if consumed is True else consumed
        if consumed is True and not names:
            alone = not self.kept_by["keep_segments"] and not self.kept_by["keep_bytes"]
            return self.first if alone else max(self.first, bases[-1])
        return max(self.first, min(self.committed.get(name, 0) for name in names))

    @rule(name=st.sampled_from(NAMES))
    def open_consumer(self, name: str) -> None:
        if name not in self.live:
            self.live[name] = self.log.consumer(name, on_gap="skip")
            self.committed.setdefault(name, self.first)

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 9))
    def consume(self, name: str, count: int) -> None:
        if name in self.live:
            consumer = self.live[name]
            at = max(self.committed[name], self.first)
            seqs = [e.seq for e in consumer.poll(count, timeout=0)]
            assert seqs == list(range(at, min(at + count, self.next)))
            consumer.commit()
            if seqs:
                self.committed[name] = seqs[-1] + 1
            self.committed[name] = max(self.committed[name], consumer.committed)
            assert consumer.committed == self.committed[name]

    @rule(name=st.sampled_from(NAMES))
    def leave(self, name: str) -> None:
        if name in self.live:
            self.live.pop(name).close()
            found = self.log.consumers()[name]
            assert (found.live, found.committed) == (False, self.committed[name])

    @precondition(lambda self: not self.live)
    @rule()
    def reopen(self) -> None:
        self.log.close()
        self.log = penstock.open(self.directory / "log")
        self.follower = self.log.follow("start", timeout=0, on_gap="skip")
        self.followed = self.first

    @precondition(lambda self: self.next > 1)
    @rule(point=st.sampled_from(POINTS), times=st.integers(1, 3), data=st.data())
    def die(self, point: str, times: int, data: st.DataObject) -> None:
        """Another process trims, and may be killed in it."""
        before = data.draw(st.integers(1, self.next))
        path = self.directory / "log"

        def work() -> None:
            with penstock.open(path) as log:
                log.steward.trim(before=before)
            os._exit(0)

        assert run(work, point, times) in (0, -signal.SIGKILL)
        self.append([10])  # until somebody repairs what it left, its settings may be unseen
        assert self.log.first_seq in (self.first, max(self.first, before))
        self.first = self.log.first_seq

    @rule()
    def follow(self) -> None:
        """A follower that passes over gaps returns each event once, and counts the others."""
        before = self.follower.skipped
        seqs = [e.seq for e in self.follower]
        missed = self.follower.skipped - before
        expected = list(range(self.followed, self.next))
        assert seqs == [s for s in expected if s in set(seqs)]
        assert [s for s in expected if s >= self.first] == [s for s in seqs if s >= self.first]
        assert len(seqs) + missed in (len(expected), len(seqs))
        self.followed = self.next

    @rule(data=st.data())
    def read_from(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(1, self.next))
        if start < self.first:
            with pytest.raises(Gap) as caught:
                list(self.log.read(start))
            assert caught.value.first_seq == self.first
        else:
            assert [e.seq for e in self.log.read(start)] == list(range(start, self.next))

    @invariant()
    def is_the_model(self) -> None:
        if not hasattr(self, "log"):
            return
        wanted = list(range(self.first, self.next))
        assert (self.log.first_seq, self.log.last_seq) == (self.first, self.next - 1)
        assert [(e.seq, e.key) for e in self.log] == [(s, b"%d" % s) for s in wanted]
        assert len(self.log) == len(wanted)
        with penstock.open(self.directory / "log", mode="r") as other:
            assert [e.seq for e in reversed(other)] == wanted[::-1]

    def bases(self) -> list[int]:
        """First seqs of the segments that count."""
        found = sorted(int(f.stem) for f in (self.directory / "log").glob("*.seg"))
        at = max((n for n, base in enumerate(found) if base <= self.first), default=0)
        return found[at:]


TestRetained = Retained.TestCase
TestRetained.settings = settings(
    max_examples=150 if STORM else 12,
    stateful_step_count=60 if STORM else 25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
