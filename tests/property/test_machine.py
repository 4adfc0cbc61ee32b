"""A log against a plain list, with rolls, reopenings, crashes and torn tails among the moves.

A crash is a copy of the directory's files at that moment, opened elsewhere: what a machine finds
that lost its processes (with control) or its memory (without).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import penstock
from penstock import Entry
from tests.property.rows import KEYS, TIMES, TOPICS, Row, repeated, rows, same_event
from tests.support.fixtures import STORM
from tests.unit import oracle


class Machine(RuleBasedStateMachine):
    """The moves. ``model`` is the truth; ``log`` must never differ from it."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="penstock-machine-"))
        self.path = self.root / "log"
        self.model: list[Row] = []
        self.copies = 0
        self.log = penstock.open(self.path, segment_size="64KiB")
        self.other: penstock.Log | None = None

    def teardown(self) -> None:
        try:
            self.same(self.log)
            self.log.close()
            if self.other is not None:
                self.other.close()
            with penstock.open(self.path, mode="r") as log:
                self.same(log)
            events = [f for s in oracle.read_log(self.path) for f in s.events]
            assert [f.seq for f in events] == list(range(1, len(self.model) + 1))
        finally:
            self.log.close()
            shutil.rmtree(self.root)

    def same(self, log: penstock.Log, model: list[Row] | None = None) -> None:
        """The log holds the model, no more and no less."""
        model = self.model if model is None else model
        assert log.last_seq == len(model)
        last_append = 0
        for seq, (event, row) in enumerate(zip(log, model, strict=True), start=1):
            assert event.seq == seq
            same_event(event, row)
            assert event.append_ns >= last_append
            last_append = event.append_ns

    def fresh_path(self) -> Path:
        self.copies += 1
        return self.root / f"copy{self.copies}"

    def writer(self, second: bool) -> penstock.Log:
        if not second:
            return self.log
        if self.other is None:
            self.other = penstock.open(self.path)
        return self.other

    @initialize(given=st.lists(rows(most=200), max_size=20))
    def begin(self, given: list[Row]) -> None:
        for row in given:
            self.append(row, False)

    @rule(row=rows(), second=st.booleans())
    def append(self, row: Row, second: bool) -> None:
        seq = self.writer(second).append(
            row.value, key=row.key, topic=row.topic, headers=row.headers, time=row.time
        )
        self.model.append(row)
        assert seq == len(self.model)

    @rule(value=repeated(40000), count=st.integers(1, 3))
    def append_much(self, value: bytes, count: int) -> None:
        for _ in range(count):
            self.append(Row(value, None, "", (), None), False)

    @rule(
        batch=st.lists(st.tuples(rows(most=3000), st.booleans()), max_size=12), second=st.booleans()
    )
    def extend(self, batch: list[tuple[Row, bool]], second: bool) -> None:
        items: list[Any] = []
        made: list[Row] = []
        for row, plain in batch:
            if plain:
                items.append(row.value or b"")
                made.append(Row(row.value or b"", None, "shared", (), None))
            else:
                items.append(Entry(row.value, row.key, row.topic, row.headers, row.time))
                made.append(row)
        seqs = self.writer(second).extend(items, topic="shared")
        assert seqs == range(len(self.model) + 1, len(self.model) + 1 + len(made))
        self.model += made

    @rule(count=st.integers(1, 200), value=repeated(150), topic=TOPICS, time=TIMES)
    def extend_plain(self, count: int, value: bytes, topic: str, time: int | None) -> None:
        self.log.extend([value] * count, topic=topic, time=time)
        self.model += [Row(value, None, topic, (), time)] * count

    @rule(second=st.booleans())
    def roll(self, second: bool) -> None:
        base = self.writer(second).steward.roll()
        assert base == len(self.model) + 1

    @rule(size=st.sampled_from([64 << 10, 96 << 10, 256 << 10]), second=st.booleans())
    def configure(self, size: int, second: bool) -> None:
        self.writer(second).configure(segment_size=size)
        assert self.log.settings.segment_size == size

    @rule()
    def reopen(self) -> None:
        self.log.close()
        self.log = penstock.open(self.path)

    @rule(control=st.booleans())
    def reopen_alone(self, control: bool) -> None:
        self.log.close()
        if self.other is not None:
            self.other.close()
            self.other = None
        if not control:
            self.path.joinpath("control").unlink()
        self.log = penstock.open(self.path)
        self.same(self.log)

    @precondition(lambda self: self.other is not None)
    @rule()
    def close_other(self) -> None:
        assert self.other is not None
        self.same(self.other)
        self.other.close()
        self.other = None

    @rule()
    def read_only(self) -> None:
        with penstock.open(self.path, mode="r") as log:
            self.same(log)

    @rule()
    def read_backwards(self) -> None:
        events = list(reversed(self.log))
        assert [e.seq for e in events] == list(range(len(self.model), 0, -1))
        for event, row in zip(events, reversed(self.model), strict=True):
            same_event(event, row)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def seek(self, data: st.DataObject) -> None:
        seq = data.draw(st.integers(1, len(self.model)))
        same_event(self.log[seq], self.model[seq - 1])
        start = data.draw(st.integers(0, len(self.model) + 1))
        stop = data.draw(st.integers(0, len(self.model) + 2))
        wanted = [i for i in range(1, len(self.model) + 1) if start <= i < stop]
        assert [e.seq for e in self.log.read(start, stop)] == wanted
        assert [e.seq for e in self.log.read(start, stop, reverse=True)] == wanted[::-1]

    @rule(
        since=st.one_of(st.none(), TIMES),
        until=st.one_of(st.none(), TIMES),
        topic=st.one_of(st.none(), TOPICS),
        key=st.one_of(st.none(), KEYS),
        reverse=st.booleans(),
    )
    def filter(
        self,
        since: int | None,
        until: int | None,
        topic: str | None,
        key: bytes | None,
        reverse: bool,
    ) -> None:
        stamps = [e.time_ns for e in self.log]
        wanted = [
            seq
            for seq, (row, time) in enumerate(zip(self.model, stamps, strict=True), start=1)
            if (since is None or time >= since)
            and (until is None or time < until)
            and (topic is None or row.topic == topic)
            and (key is None or row.key == key)
        ]
        found = self.log.read(since=since, until=until, topic=topic, key=key, reverse=reverse)
        assert [e.seq for e in found] == (wanted[::-1] if reverse else wanted)

    @rule()
    def topics(self) -> None:
        assert self.log.topics() == {r.topic for r in self.model}

    @rule()
    def backup(self) -> None:
        target = self.fresh_path()
        assert self.log.backup(target) == len(self.model)
        self.survives(target)

    def survives(self, path: Path) -> None:
        """A copy reads as the model, read-only and opened for writing, and goes on from there."""
        with penstock.open(path, mode="r") as log:
            self.same(log)
        with penstock.open(path) as log:
            self.same(log)
            log.append(b"after")
            log.steward.roll()
            log.append(b"the end")
            more = [Row(v, None, "", (), None) for v in (b"after", b"the end")]
            self.same(log, self.model + more)
        shutil.rmtree(path)

    def copy_of_now(self, *, control: bool) -> Path:
        """The directory's files as they are at this moment."""
        target = self.fresh_path()
        target.mkdir()
        for name in sorted(p.name for p in self.path.iterdir()):
            if name == "control" and not control:
                continue
            with suppress(FileNotFoundError):  # the keeper renames what it prepared
                shutil.copy(self.path / name, target / name)
        return target

    @rule(control=st.booleans())
    def crash(self, control: bool) -> None:
        self.survives(self.copy_of_now(control=control))

    @rule(garbage=st.binary(min_size=1, max_size=300), gap=st.sampled_from([0, 0, 8, 40, 5000]))
    def crash_with_garbage(self, garbage: bytes, gap: int) -> None:
        target = self.copy_of_now(control=False)
        self.spoil(target, garbage, gap)
        self.survives(target)

    @rule(
        values=st.lists(st.integers(1, 2000), min_size=1, max_size=5),
        part=st.floats(0, 1, exclude_max=True),
        committed=st.booleans(),
    )
    def crash_in_an_append(self, values: list[int], part: float, committed: bool) -> None:
        """The first part of what an append writes is there, its first commit word or not."""
        target = self.copy_of_now(control=False)
        ahead = self.fresh_path()
        shutil.copytree(target, ahead)
        with penstock.open(ahead) as log:
            log.extend([b"\xff" * n for n in values])
        before = oracle.read_log(target)[-1]
        after = oracle.read_segment(ahead / before.path.name)
        shutil.rmtree(ahead)
        written = after.raw[before.end : after.end]
        if after.rolled or not written:
            shutil.rmtree(target)
            return
        padding = len(written) - len(written.rstrip(b"\0"))
        torn = bytearray(written[: int((len(written) - padding) * part)])
        if not committed:
            torn[:4] = bytes(len(torn[:4]))
        self.spoil(target, bytes(torn), 0)
        self.survives(target)

    def spoil(self, path: Path, data: bytes, gap: int) -> None:
        """Write bytes after the last frame of the newest segment, inside what is allocated."""
        segment = oracle.read_log(path)[-1]
        at = segment.end + gap
        room = min(len(segment.raw), segment.segment_bytes - oracle.PAGE) - at
        if room <= 0:
            return
        with segment.path.open("r+b") as file:
            file.seek(at)
            file.write(data[:room])

    @invariant()
    def counts_agree(self) -> None:
        for log in self.handles():
            assert (log.first_seq, log.last_seq, len(log)) == (1, len(self.model), len(self.model))

    def handles(self) -> Iterable[penstock.Log]:
        yield self.log
        if self.other is not None:
            yield self.other


@pytest.mark.timeout(1800 if STORM else 300)
def test_a_log_is_a_list() -> None:
    """Whatever is done to a log, and whenever it crashes, it holds what was acknowledged."""
    run_state_machine_as_test(Machine)
