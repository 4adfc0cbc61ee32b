"""A ring against a plain list, of which it must have the newest part, whatever happens to it.

A crash is a copy of the file at that moment, opened elsewhere: with control as a process of this
boot left it, with control of another file, or with none.
"""

from __future__ import annotations

import shutil
import struct
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

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
from penstock.settings import WhenFull
from tests.property.rows import KEYS, TIMES, TOPICS, Row, repeated, rows, same_event
from tests.support.fixtures import STORM
from tests.unit import oracle

Control = Literal["of this boot", "of another file", "none"]
CONTROLS: list[Control] = ["of this boot", "of another file", "none"]
CONTROL_AT = 3 * oracle.PAGE
DEV_AT, CRC_AT = 48, 72

SIZES = st.sampled_from([32768, 32769, 40000, 65548, 100003, 131072])
INDEXES = st.sampled_from([None, None, 0, 1, 7, 400])
NAMES = st.sampled_from(["p", "q", "a longer name"])


class Machine(RuleBasedStateMachine):
    """The moves. ``model`` has every event there ever was; the ring, the newest of them."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="penstock-ring-"))
        self.path = self.root / "log.ring"
        self.model: list[Row] = []
        self.bytes_of: list[int] = []  # of each event's frame, and of what went before it
        self.batch_of: list[int] = []  # the last seq of each event's batch
        self.largest_append = 0
        self.largest_frame = 0
        self.copies = 0
        self.done: dict[str, tuple[int, range]] = {}
        self.when_full = "drop"
        self.configured = 0  # bytes of settings frames since the beginning
        self.settled = 0  # settings frames since the last event
        self.log: penstock.Log
        self.other: penstock.Log | None = None
        self.follower: penstock.Reader | None = None
        self.followed: penstock.Log | None = None
        self.expected = 1  # seq that the follower comes to next
        self.holder: penstock.Reader | None = None
        self.held = 1  # seq that nobody may overwrite

    @initialize(size=SIZES, index=INDEXES, given=st.lists(rows(most=200), max_size=20))
    def begin(self, size: int, index: int | None, given: list[Row]) -> None:
        self.log = penstock.create(self.path, ring=size, index=index)
        self.size = size
        ring = self.ring()
        self.room = ring.ring_bytes
        self.most = self.room // 2 // 8 * 8
        for row in given:
            self.append(row, False)

    def ring(self) -> Any:
        found = self.log.stats().ring
        assert found is not None
        return found

    def teardown(self) -> None:
        try:
            if self.handles():
                self.same(self.log)
                self.follower = self.holder = None
                self.log.close()
                if self.other is not None:
                    self.other.close()
                with penstock.open(self.path, mode="r") as log:
                    self.same(log)
                with penstock.open(self.path) as log:
                    self.same(log)
        finally:
            shutil.rmtree(self.root)

    def same(self, log: penstock.Log, first: int = 0) -> None:
        """The log holds the newest part of the model, from ``first`` on or at least from there."""
        assert log.last_seq == len(self.model)
        start = log.first_seq
        assert 1 <= start <= (first or start) <= len(self.model) + 1
        last_append = 0
        events = list(log)
        assert [e.seq for e in events] == list(range(start, len(self.model) + 1))
        for event, row in zip(events, self.model[start - 1 :], strict=True):
            same_event(event, row)
            assert event.append_ns >= last_append
            last_append = event.append_ns

    def writer(self, second: bool) -> penstock.Log:
        if not second:
            return self.log
        if self.other is None:
            self.other = penstock.open(self.path)
        return self.other

    def put(self, made: list[Row], act: Callable[[dict[str, Any]], range], lead: int = 0) -> bool:
        """Append what the model gets, if the ring takes it; whether it did."""
        sizes = [self.frame_bytes(row) for row in made]
        options = {} if self.when_full == "drop" else {"timeout": 0.001}
        before = (self.log.first_seq, self.log.last_seq)
        if sum(sizes) + lead > self.most:
            with pytest.raises(penstock.TooLarge):
                act(options)
            assert (self.log.first_seq, self.log.last_seq) == before
            return False
        try:
            seqs = act(options)
        except penstock.Full:
            assert self.when_full == "error" or self.holder is not None
            assert self.log.last_seq == before[1]
            # Before it found no room, it may have ended a lap, with a copy of the ring's state.
            self.largest_append = max(self.largest_append, sum(sizes) + lead)
            return False
        assert seqs == range(len(self.model) + 1, len(self.model) + 1 + len(made))
        self.settled = 0
        self.model += made
        self.largest_frame = max([self.largest_frame, lead, *sizes])
        self.largest_append = max(self.largest_append, sum(sizes) + lead)
        if sizes:
            sizes[0] += lead
        self.bytes_of += sizes
        self.batch_of += [len(self.model)] * len(made)
        return True

    def frame_bytes(self, row: Row) -> int:
        entry = penstock.Entry(row.value, row.key, row.topic, row.headers, row.time)
        gathered = self.log._gathering([entry], 1 << 40, 1, *[None] * 8)
        return self.log._frame_bytes(next(gathered))

    @rule(row=rows(), second=st.booleans())
    def append(self, row: Row, second: bool) -> None:
        def act(options: dict[str, Any]) -> range:
            seq = self.writer(second).append(
                row.value,
                key=row.key,
                topic=row.topic,
                headers=row.headers,
                time=row.time,
                **options,
            )
            return range(seq, seq + 1)

        self.put([row], act)

    @rule(part=st.floats(0, 1.05), count=st.integers(1, 3))
    def append_much(self, part: float, count: int) -> None:
        """Values of up to all that the ring takes at once, and a little more."""
        for _ in range(count):
            self.append(Row(b"m" * int((self.most - 40) * part), None, "", (), None), False)

    @rule(slack=st.sampled_from([0, 8, 32, 40, 48, 800]), short=st.integers(0, 7))
    def end_lap(self, slack: int, short: int) -> None:
        """A frame that leaves just so much at the end of its lap."""
        left = self.room - self.ring().head % self.room - slack
        while left > self.most:
            self.append(Row(b"e" * 4000, None, "", (), None), False)
            now = self.room - self.ring().head % self.room - slack
            if now >= left:
                return
            left = now
        if left - 40 >= short:
            self.append(Row(b"e" * (left - 40 - short), None, "", (), None), False)

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
        self.put(made, lambda o: self.writer(second).extend(items, topic="shared", **o))

    @rule(count=st.integers(1, 200), value=repeated(150), topic=TOPICS, time=TIMES)
    def extend_plain(self, count: int, value: bytes, topic: str, time: int | None) -> None:
        made = [Row(value, None, topic, (), time)] * count
        self.put(made, lambda o: self.log.extend([value] * count, topic=topic, time=time, **o))

    @rule(laps=st.integers(1, 3), size=st.sampled_from([0, 100, 1000]))
    def overwrite(self, laps: int, size: int) -> None:
        """As much as the ring has room for, and more."""
        batch = min(200, self.most // (40 + size + 8))
        made = [Row(b"o" * size, None, "", (), None)] * batch
        for _ in range(laps * self.room // ((40 + size) * batch) + 1):
            if not self.put(made, lambda o: self.log.extend([b"o" * size] * batch, **o)):
                return

    @rule(who=NAMES, row=rows(most=500), count=st.integers(1, 3), second=st.booleans())
    def produce(self, who: str, row: Row, count: int, second: bool) -> None:
        n = self.done[who][0] + 1 if who in self.done else 1
        value = row.value or b""
        made = [Row(value, None, "", (), None)] * count
        lead = 40 + (len(who) + 16 + 7) // 8 * 8
        if self.put(
            made,
            lambda o: self.writer(second).extend([value] * count, producer=(who, n), **o),
            lead,
        ):
            self.done[who] = (n, range(len(self.model) + 1 - count, len(self.model) + 1))

    @rule(second=st.booleans())
    def repeat(self, second: bool) -> None:
        """What a producer appended last is known, however many laps ago."""
        self.repeats(self.writer(second))

    def repeats(self, log: penstock.Log) -> None:
        for who, (n, seqs) in self.done.items():
            assert log.extend([b"again"] * len(seqs), producer=(who, n)) == seqs
            with pytest.raises(penstock.Conflict):
                log.append(b"before", producer=(who, n - 1))

    @rule(row=rows(most=100), off=st.sampled_from([0, 0, 1, 7]))
    def expect(self, row: Row, off: int) -> None:
        if off:
            with pytest.raises(penstock.Conflict):
                self.log.append(b"x", expect=len(self.model) + off)
        else:
            value = row.value or b""
            made = [Row(value, None, "", (), None)]
            last = len(self.model)
            self.put(made, lambda o: self.log.extend([value], expect=last, **o))

    @rule(when_full=st.sampled_from(["drop", "block", "error"]), second=st.booleans())
    def configure(self, when_full: WhenFull, second: bool) -> None:
        if when_full != "drop":
            self.holder = None  # it would have to wait
        try:
            found = self.writer(second).configure(when_full=when_full)
        except penstock.Full:
            # What events leave free is used up by settings that came after the last event.
            assert self.when_full == when_full == "error"
            assert self.settled > 2
        else:
            assert found.when_full == when_full
            self.when_full = when_full
            self.configured += 200
            self.settled += 1
            self.largest_append = max(self.largest_append, 200)
        self.holder = None
        assert self.log.settings.when_full == self.when_full

    @rule(wait=st.booleans())
    def sync(self, wait: bool) -> None:
        last = self.log.sync(wait=wait)
        assert last == len(self.model)
        if wait:
            assert self.log.durable_seq == last
            assert [e.seq for e in self.log.read(durable=True)] == [e.seq for e in self.log]

    @rule()
    def reopen(self) -> None:
        self.follower = self.holder = None
        self.log.close()
        self.log = penstock.open(self.path)

    @rule()
    def reopen_alone(self) -> None:
        """Between two openers, a reader finds it as it was."""
        first = self.log.first_seq
        self.follower = self.holder = None
        self.log.close()
        if self.other is not None:
            self.other.close()
            self.other = None
        with penstock.open(self.path, mode="r") as reading:
            self.same(reading)
            assert reading.first_seq == first
            assert not reading.stats().live
            self.log = penstock.open(self.path)
            assert self.log.first_seq == first
            self.same(reading)
            self.append(Row(b"for the reader", None, "", (), None), False)
            self.same(reading)
            assert reading.stats().live
        assert self.log.settings.when_full == self.when_full
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
        assert [e.seq for e in events] == list(range(len(self.model), self.log.first_seq - 1, -1))
        for event in events:
            same_event(event, self.model[event.seq - 1])

    @rule(data=st.data())
    def seek(self, data: st.DataObject) -> None:
        first, last = self.log.first_seq, len(self.model)
        seq = data.draw(st.integers(1, last + 1))
        if first <= seq <= last:
            same_event(self.log[seq], self.model[seq - 1])
        else:
            with pytest.raises(penstock.NotFound):
                self.log[seq]
        start = data.draw(st.integers(0, last + 1))
        stop = data.draw(st.integers(0, last + 2))
        wanted = [i for i in range(first, last + 1) if start <= i < stop]
        missing = max(0, min(first, stop) - max(1, start))
        if missing:
            with pytest.raises(penstock.Gap):
                list(self.log.read(start, stop))
        for reverse in (False, True):
            reader = self.log.read(start, stop, reverse=reverse, on_gap="skip")
            assert [e.seq for e in reader] == (wanted[::-1] if reverse else wanted)
            assert reader.skipped == missing
        scan = self.log.scan(start, stop, columns=["seq"], on_gap="skip")
        assert scan.to_arrow().column("seq").to_pylist() == wanted
        assert scan.skipped == missing

    @rule(
        since=TIMES,
        until=TIMES,
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
        wanted = [
            e.seq
            for e in self.log
            if (since is None or e.time_ns >= since)
            and (until is None or e.time_ns < until)
            and (topic is None or self.model[e.seq - 1].topic == topic)
            and (key is None or self.model[e.seq - 1].key == key)
        ]
        found = self.log.read(since=since, until=until, topic=topic, key=key, reverse=reverse)
        assert [e.seq for e in found] == (wanted[::-1] if reverse else wanted)
        scan = self.log.scan(since=since, until=until, topic=topic, key=key, columns=["seq"])
        assert scan.to_arrow().column("seq").to_pylist() == wanted

    @rule(batch_rows=st.sampled_from([1, 3, 64, 10_000]))
    def scan(self, batch_rows: int) -> None:
        events = list(self.log)
        table = self.log.scan(columns=["seq", "topic", "key", "value"]).to_arrow()
        assert table.to_pylist() == [
            {"seq": e.seq, "topic": e.topic, "key": e.key, "value": e.value} for e in events
        ]
        batches = list(self.log.scan(columns=["seq"], batch_rows=batch_rows).to_batches())
        assert [s for b in batches for s in b.column("seq").to_pylist()] == [e.seq for e in events]

    @rule()
    def topics(self) -> None:
        assert self.log.topics() == {r.topic for r in self.model[self.log.first_seq - 1 :]}

    @rule(on_gap=st.sampled_from(["raise", "skip"]), second=st.booleans())
    def follow(self, on_gap: Literal["raise", "skip"], second: bool) -> None:
        log = self.followed = self.writer(second)
        self.follower = log.follow("start", on_gap=on_gap)
        self.follows_to = on_gap
        self.began = False  # it begins with what is oldest when it first looks
        self.skipped = 0

    @precondition(lambda self: self.follower is not None)
    @rule(count=st.integers(0, 300))
    def take(self, count: int) -> None:
        """A follower comes to every event, but for those that were overwritten before."""
        assert self.follower is not None
        first = self.log.first_seq
        if not self.began:
            self.expected = first
            self.began = count > 0 and first <= len(self.model)
        try:
            events = self.follower.take(count)
        except penstock.Closed:
            assert all(log is not self.followed for log in self.handles())
            self.follower = None
            return
        except penstock.Gap as gap:
            assert self.follows_to == "raise"
            assert gap.first_seq == first > self.follower.position
            self.follower = None
            return
        for event in events:
            same_event(event, self.model[event.seq - 1])
            self.skipped += event.seq - self.expected
            assert event.seq >= self.expected
            self.expected = event.seq + 1
        if not self.began:
            return
        assert self.follower.position >= self.expected
        assert self.skipped + self.follower.position - self.expected == self.follower.skipped
        if self.follows_to == "raise":
            assert self.follower.skipped == 0
        if len(events) < count:
            assert self.follower.position == len(self.model) + 1

    @precondition(lambda self: self.when_full != "drop" and self.holder is None)
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        first = self.log.first_seq
        start = data.draw(st.integers(first, len(self.model) + 1))
        self.holder = self.log.follow(start, hold=True)
        self.held = start

    @precondition(lambda self: self.holder is not None)
    @rule(count=st.integers(1, 300))
    def move_on(self, count: int) -> None:
        assert self.holder is not None
        events = self.holder.take(count)
        there = len(self.model) + 1 - self.held
        assert [e.seq for e in events] == list(range(self.held, self.held + min(count, there)))
        self.held += len(events)

    @precondition(lambda self: self.holder is not None)
    @rule()
    def let_go(self) -> None:
        self.holder = None

    def copy_of_now(self, control: Control) -> Path:
        """The file as it is at this moment."""
        self.copies += 1
        target = self.root / f"copy{self.copies}"
        shutil.copy(self.path, target)
        stat = target.stat()
        with target.open("r+b") as file:
            file.seek(CONTROL_AT)
            page = bytearray(file.read(oracle.PAGE))
            if control == "none":
                page = bytearray(oracle.PAGE)
            elif control == "of this boot":
                struct.pack_into("<QQ", page, DEV_AT, stat.st_dev, stat.st_ino)
                struct.pack_into("<I", page, CRC_AT, oracle.crc32c(page[:CRC_AT]))
            file.seek(CONTROL_AT)
            file.write(page)
        return target

    def survives(self, path: Path, first: int) -> None:
        """A copy reads as the model, read-only and opened for writing, and goes on from there."""
        before = path.read_bytes()
        with penstock.open(path, mode="r") as log:
            self.same(log, first)
        assert path.read_bytes() == before
        with penstock.open(path) as log:
            self.same(log, first)
            assert log.settings.when_full == self.when_full
            self.repeats(log)
            log.configure(when_full="drop")
            for size in (0, 1000, self.most - 40):
                assert log.append(b"s" * size) == log.last_seq
            assert [e.value for e in log.read(len(self.model) + 2, on_gap="skip")][-1] == b"s" * (
                self.most - 40
            )
            kept = list(log)
            assert [e.seq for e in kept] == list(range(log.first_seq, len(self.model) + 4))
            for event in kept[:-3]:
                same_event(event, self.model[event.seq - 1])
        path.unlink()

    def found_from(self, first: int, control: Control) -> int:
        """The first seq that must be found: without control, only whole batches are."""
        if control != "none" or first > len(self.model):
            return first
        return self.batch_of[first - 1] + 1

    @rule(control=st.sampled_from(CONTROLS))
    def crash(self, control: Control) -> None:
        first = self.found_from(self.log.first_seq, control)
        self.survives(self.copy_of_now(control), first)

    @rule(
        values=st.lists(st.integers(1, 2000), min_size=1, max_size=5),
        part=st.floats(0, 1, exclude_max=True),
        committed=st.booleans(),
        control=st.sampled_from(["of another file", "none"]),
    )
    def crash_in_an_append(
        self, values: list[int], part: float, committed: bool, control: Control
    ) -> None:
        """The first part of what an append writes is there, its first commit word or not."""
        target = self.copy_of_now(control)
        ahead = self.copy_of_now("of this boot")
        with penstock.open(ahead) as log:
            stats = log.stats().ring
            assert stats is not None
            log.configure(when_full="drop")
            begin = log.stats().ring
            assert begin is not None
            try:
                log.extend([b"\xff" * n for n in values])
            except penstock.TooLarge:
                assert sum(n + 47 for n in values) > self.most
                ahead.unlink()
                target.unlink()
                return
            end = log.stats().ring
            assert end is not None
            first = min(log.first_seq, len(self.model) + 1)
        old, new = target.read_bytes(), ahead.read_bytes()
        ahead.unlink()
        at = stats.ring_offset + stats.head % self.room
        upto = stats.ring_offset + end.head % self.room
        if upto <= at:  # it begins another lap
            target.unlink()
            return
        written = new[at:upto]
        padding = len(written) - len(written.rstrip(b"\0"))
        torn = bytearray(written[: int((len(written) - padding) * part)])
        settings = len(new[at : at + begin.head - stats.head].rstrip(b"\0"))
        if len(torn) >= settings or not committed:
            torn[:4] = bytes(len(torn[:4]))
        target.write_bytes(old[:at] + torn + old[at + len(torn) :])
        self.survives(target, self.found_from(first, control))

    @invariant()
    def counts_agree(self) -> None:
        for log in self.handles():
            first, last = log.first_seq, log.last_seq
            assert last == len(self.model)
            assert len(log) == last - first + 1
        assert self.path.stat().st_size == self.size if self.handles() else True

    @invariant()
    def the_newest_are_kept(self) -> None:
        if not self.handles():
            return
        ring = self.ring()
        first = self.log.first_seq
        assert ring.head - ring.tail == ring.used_bytes <= ring.ring_bytes == self.room
        assert (ring.file_bytes, ring.lost_bytes) == (self.size, 0)
        if self.holder is not None:
            assert first <= self.held
        if ring.tail == self.room:
            assert first == 1
            return
        # What is dropped ends in one frame, and one lap ends in slack and begins with state.
        state = 240 + (self.room // 8 + 40 if self.done else 0)
        kept = sum(self.bytes_of[first - 1 :])
        assert kept <= ring.used_bytes + max(self.bytes_of)
        slack = max(self.largest_append, state)
        least = self.room - max(self.largest_frame, state) - slack - state - self.configured
        reserve = max(512, min(2048, self.room // 32))
        assert kept >= least - reserve

    def handles(self) -> Iterable[penstock.Log]:
        return [log for log in (getattr(self, "log", None), self.other) if log is not None]


def test_a_checkpoint_whose_frame_a_lap_left_behind() -> None:
    """A wrap frame that stands alone tells that what is after it was left there a lap ago."""
    machine = Machine()
    try:
        machine.begin(size=32768, index=None, given=[])
        machine.overwrite(laps=1, size=0)
        machine.overwrite(laps=1, size=0)
        machine.reopen()
        machine.append_much(count=3, part=0.75)
        machine.append_much(count=1, part=0.0)
        machine.crash(control="none")
    finally:
        machine.teardown()


def test_a_checkpoint_whose_frame_two_laps_left_behind() -> None:
    """... and if that wrap frame is overwritten, the start of the newest lap tells."""
    machine = Machine()
    try:
        machine.begin(size=32768, index=None, given=[])

        def append(total: int) -> None:
            machine.append(Row(b"a" * (total - 40), None, "", (), None), False)

        machine.end_lap(short=0, slack=48)
        append(48)
        machine.sync(wait=True)
        append(machine.most)
        append(1000)
        append(machine.most)  # there is no room for it in this lap
        append(2000)
        assert machine.ring().head % machine.room > machine.most + 1040
        machine.crash(control="none")
        machine.crash(control="of another file")
    finally:
        machine.teardown()


def test_producers_of_a_lap_without_events_that_are_left() -> None:
    """A producer's last append is known also if only control frames are left of its lap."""
    machine = Machine()
    try:
        machine.begin(size=32768, index=None, given=[])
        machine.produce(count=1, row=Row(b"", None, "", (), None), second=False, who="p")
        machine.end_lap(short=0, slack=0)
        machine.crash_in_an_append(committed=False, control="none", part=0.0, values=[1])
        machine.crash(control="none")
    finally:
        machine.teardown()


def test_producers_when_settings_change_far_behind_them() -> None:
    """A settings frame is no copy of the producers, though it may be the last frame of all."""
    machine = Machine()
    try:
        machine.begin(size=32768, index=None, given=[])
        machine.produce(count=1, row=Row(b"", None, "", (), None), second=False, who="p")
        machine.end_lap(short=0, slack=0)
        machine.configure(second=False, when_full="drop")
        machine.overwrite(laps=2, size=0)
        machine.repeat(second=False)
        machine.crash(control="of this boot")
    finally:
        machine.teardown()


def test_settings_that_begin_a_lap() -> None:
    """Settings are known also if theirs is the only frame of the newest lap."""
    machine = Machine()
    try:
        machine.begin(size=32768, index=None, given=[])
        machine.end_lap(short=0, slack=0)
        machine.configure(second=True, when_full="block")
        machine.crash(control="of another file")
        machine.crash(control="none")
    finally:
        machine.teardown()


@pytest.mark.timeout(1800 if STORM else 900)  # Hypothesis shrinks what fails for five minutes
def test_a_ring_has_the_newest_events() -> None:
    """Whatever is done to a ring, and whenever it crashes, it holds the newest events, in order."""
    run_state_machine_as_test(Machine)
