"""A log that is compacted and erased against a plain list, with rolls, reopenings and crashes.

A crash is a copy of the directory's files at that moment, opened elsewhere.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import penstock
from tests.steward import plain
from tests.steward.plain import Plain
from tests.support.fixtures import STORM

KEYS = [b"", b"a", b"b", b"k" * 40, b"\xff\x00"]


class Machine(RuleBasedStateMachine):
    """The moves. ``model`` is the truth; ``log`` must never differ from it."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="penstock-compaction-"))
        self.path = self.root / "log"
        self.model: list[Plain] = []
        self.log = penstock.open(self.path, segment_size="64KiB")
        self.reader: penstock.Reader | None = None
        self.read: list[int] = []  # what the reader was given
        self.began = 0

    def teardown(self) -> None:
        try:
            self.finish_reader()
            plain.check(self.log, self.model)
            self.log.close()
            with penstock.open(self.path, mode="r") as log:
                plain.check(log, self.model)
        finally:
            self.log.close()
            shutil.rmtree(self.root)

    @rule(
        key=st.sampled_from([*KEYS, None]),
        size=st.sampled_from([0, 1, 100, 5000, 30_000]),
        deletes=st.booleans(),
        expired=st.integers(0, 9),
        count=st.integers(1, 4),
    )
    def append(self, key: bytes | None, size: int, deletes: bool, expired: int, count: int) -> None:
        value = None if deletes and key is not None else b"v" * size
        ttl = 1e-9 if expired == 0 else plain.HOUR if expired == 1 else None
        for _ in range(count):
            seq = self.log.append(value, key=key, ttl=ttl)
            self.model.append(Plain(seq, key, value, expired == 0))
            assert seq == len(self.model)

    @rule(keys=st.lists(st.sampled_from([*KEYS, None]), min_size=2, max_size=30))
    def extend(self, keys: list[bytes | None]) -> None:
        given = [penstock.Entry(b"%d" % i, key=key) for i, key in enumerate(keys)]
        for seq, (i, key) in zip(self.log.extend(given), enumerate(keys), strict=True):
            self.model.append(Plain(seq, key, b"%d" % i))

    @rule()
    def roll(self) -> None:
        self.log.steward.roll()

    @rule(
        versions=st.sampled_from([1, 1, 1, 2, 5]),
        grace_over=st.booleans(),
        drop_keyless=st.booleans(),
        memory=st.sampled_from(["128MiB", "1MiB"]),
    )
    def compact(self, versions: int, grace_over: bool, drop_keyless: bool, memory: str) -> None:
        base = plain.active_base(self.path)
        asked: dict[str, Any] = {
            "versions": versions,
            "grace": 0 if grace_over else plain.HOUR,
            "keyless": "drop" if drop_keyless else "keep",
            "memory": memory,
        }
        expected = self.log.steward.compact(dry_run=True, **asked)
        done = self.log.steward.compact(**asked)
        removed = plain.compact(self.model, base, versions, grace_over, drop_keyless)
        assert done.dead == expected.dead == len(removed)
        assert [s.dead for s in done.segments] == [s.dead for s in expected.segments]
        assert self.log.steward.compact(**asked).dead == 0

    @rule(key=st.sampled_from(KEYS))
    def erase(self, key: bytes) -> None:
        self.drop_reader()
        done = self.log.steward.erase(key)
        mine = [e for e in self.model if e.key == key and not e.gone]
        for event in mine:
            event.gone = True
        assert done.events == len(mine)
        assert done.complete, str(done)

    @rule()
    def reopen(self) -> None:
        self.drop_reader()
        self.log.close()
        self.log = penstock.open(self.path)

    @rule(with_control=st.booleans())
    def crash(self, with_control: bool) -> None:
        copy = self.root / "copy"
        shutil.copytree(self.path, copy)
        if not with_control:
            (copy / "control").unlink(missing_ok=True)
        with penstock.open(copy) as log:
            plain.check(log, self.model)
            log.append(b"goes on", key=b"a")
        shutil.rmtree(copy)

    @rule()
    def backup(self) -> None:
        self.log.backup(self.root / "backup")
        with penstock.open(self.root / "backup", mode="r") as log:
            plain.check(log, self.model)
        shutil.rmtree(self.root / "backup")

    @rule(start=st.integers(1, 60))
    @precondition(lambda self: self.reader is None)
    def begin_reader(self, start: int) -> None:
        """A reader that goes on later, whatever is replaced under it."""
        self.reader = self.log.follow(min(start, len(self.model) + 1), timeout=0, on_gap="skip")
        self.began, self.read = min(start, len(self.model) + 1), []

    @rule(count=st.integers(1, 20))
    @precondition(lambda self: self.reader is not None)
    def go_on(self, count: int) -> None:
        assert self.reader is not None
        self.read += [event.seq for event in self.reader.take(count)]

    @invariant()
    def reader_is_in_order(self) -> None:
        assert all(a < b for a, b in zip(self.read, self.read[1:], strict=False))

    def finish_reader(self) -> None:
        """It had each surviving event once, and none that was not there when it began or later."""
        if self.reader is None:
            return
        self.go_on(100_000)
        alive = {e.seq for e in self.model if e.read and e.seq >= self.began}
        assert alive <= set(self.read)
        self.drop_reader()

    def drop_reader(self) -> None:
        if self.reader is not None:
            self.reader.close()
        self.reader, self.read = None, []


@pytest.mark.timeout(3600 if STORM else 300)
def test_compaction_against_a_list() -> None:
    """Whatever is appended, compacted and erased: each surviving event, once, in order."""
    from hypothesis import settings

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=400 if STORM else 8,
            stateful_step_count=40 if STORM else 25,
            deadline=None,
        ),
    )
