"""Scripts of what processes do to a log, run on a real log, and what the log must hold then.

A script is a list of lives, each a list of steps; a life is one process and may end by its death in
the middle of a step. A ledger knows what was appended and what was said to be on disk.
"""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pyarrow
import pytest

import penstock
from penstock import Conflict, Entry, Event, Io, Log
from penstock._core import Given, rows_to_stage
from penstock.segments import adopted
from penstock.segments.recovery import STAGING
from penstock.segments.segment import is_name
from penstock.segments.staged import append_staged
from penstock.segments.staging import Writer
from penstock.system import files
from tests.support.pages import History
from tests.support.recorder import LOOSE, Keeper, Recorder, without_a_device

SEGMENT = 64 << 10
LONG_AGO = -1  # before the first moment

Step = dict[str, Any]  # what to "do", and with what; plain enough for JSON


class Item(NamedTuple):
    """All that a reader must get to see of an event, and who appended it."""

    value: bytes | None
    key: bytes | None
    topic: str
    headers: tuple[tuple[str, bytes | None], ...]
    batch_left: int | None  # None: whatever it is


def item_of(event: Event) -> Item:
    """What a reader sees of an event."""
    return Item(event.value, event.key, event.topic, event.headers, event.batch_left)


def make_items(number: int, sizes: list[int]) -> list[Item]:
    """The events of one append: bytes that occur nowhere else; with all the trimmings if odd."""
    items = []
    for place, size in enumerate(sizes):
        rng = random.Random(number * 1000 + place)
        rich = size % 2 == 1
        items.append(
            Item(
                rng.randbytes(size),
                b"key %d" % number if rich else None,
                f"topic {number % 2}" if rich else "",
                (("name", b"%d" % place), ("null", None)) if rich else (),
                len(sizes) - 1 - place,
            )
        )
    return items


def entry_of(item: Item) -> Entry:
    """What to give to a log that is to take that event."""
    return Entry(item.value, key=item.key, topic=item.topic or None, headers=item.headers or None)


def _rows_of(items: list[Item]) -> Given:
    """Events as rows that can be staged."""
    pair = pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())])
    batch = pyarrow.record_batch(
        {
            "value": pyarrow.array([i.value for i in items], pyarrow.binary()),
            "key": pyarrow.array([i.key for i in items], pyarrow.binary()),
            "topic": [i.topic for i in items],
            "headers": pyarrow.array(
                [[{"key": k, "value": v} for k, v in i.headers] for i in items],
                pyarrow.list_(pair),
            ),
        }
    )
    return rows_to_stage(batch, "rows", "value", "key", "topic", "headers", None, 0)


@dataclass(frozen=True)
class Produced:
    """A producer's append: its number, and the seqs that it got."""

    who: str
    n: int
    seqs: range


@dataclass
class Ledger:
    """What was appended, and what of it was said to be on disk, and when."""

    events: list[tuple[int, Item]] = field(default_factory=list)
    told: list[tuple[int, int]] = field(default_factory=list)  # seqs up to which it was said
    produced: list[Produced] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=lambda: [(LONG_AGO, SEGMENT)])
    sizes_told: list[tuple[int, int]] = field(default_factory=lambda: [(LONG_AGO, 0)])
    units: list[range] = field(default_factory=list)  # seqs that are there all or not at all
    begun: int = 0  # appends, lost ones too: no two are of the same bytes

    def must_hold(self, moment: int) -> int:
        """Seq up to which events had been said to be on disk."""
        return max((seq for when, seq in self.told if when <= moment), default=0)

    def at(self, moment: int) -> Ledger:
        """What is left of it when the power fails at ``moment``."""
        least = max(place for when, place in self.sizes_told if when <= moment)
        return Ledger(
            [(LONG_AGO, item) for when, item in self.events if when <= moment],
            [(LONG_AGO, self.must_hold(moment))],
            list(self.produced),
            [(LONG_AGO, size) for when, size in self.sizes[least:] if when <= moment],
            units=list(self.units),
            begun=self.begun,
        )

    def keep(self, count: int, size: int) -> None:
        """Whoever opened the log found so many events, and this setting: so it stays."""
        del self.events[count:]
        self.units = [seqs for seqs in self.units if seqs[-1] <= count]
        self.produced = [p for p in self.produced if p.seqs[-1] <= count]
        if self.sizes[-1][1] != size:
            self.sizes = [(LONG_AGO, size)]
            self.sizes_told = [(LONG_AGO, 0)]


class Life:
    """One process that opens a log and acts on it, step by step."""

    def __init__(self, path: str, ledger: Ledger, recorder: Recorder | None = None) -> None:
        self.path = path
        self.ledger = ledger
        self.recorder = recorder
        self.logs: dict[str, Log] = {}
        self.poisoned = False

    @property
    def moment(self) -> int:
        """The moment that the history has come to."""
        return self.recorder.history.moment if self.recorder is not None else 0

    def run(self, steps: list[Step]) -> None:
        """Do what the script says."""
        watching: AbstractContextManager[None] = (
            self.recorder.recording() if self.recorder is not None else without_a_device()
        )
        with watching:
            for step in steps:
                if self.recorder is not None:
                    self.recorder.dies_at = step.get("dies")
                    self.recorder.fails = "fails" in step
                arguments = {k: v for k, v in step.items() if k not in ("do", "dies", "fails")}
                with pytest.raises(Io) if "fails" in step else nullcontext():
                    getattr(self, step["do"])(**arguments)
                self.poisoned |= "fails" in step
                if self.recorder is not None:
                    self.recorder.look(f"behind {step['do']}")
                for log in self.logs.values():
                    self.ledger.told.append((self.moment, log.durable_seq))

    def open(self, *, by: str = "", rebooted: bool = False) -> None:
        """Open the log and check that it holds what it must, and nothing else."""
        if self.recorder is not None:
            self.recorder.expect_repair()
        new = not os.path.isdir(self.path) or not any(map(is_name, os.listdir(self.path)))
        self.logs[by] = log = penstock.open(self.path, segment_size=SEGMENT if new else None)
        count = check_events(log, self.ledger, self.ledger.must_hold(self.moment))
        self.ledger.keep(count, log.settings.segment_size)
        if rebooted:
            assert log.durable_seq == count, "what was found is not said to be on the device"
            self.ledger.told.append((LONG_AGO, count))  # it was there before, so it is for good
        check_producers(log, self.ledger)
        assert log.stats().spurious == {}

    def append(
        self,
        sizes: list[int],
        *,
        by: str = "",
        durable: bool = False,
        producer: tuple[str, int] | None = None,
    ) -> None:
        """Append one event, or a batch."""
        log = self.logs[by]
        items = self._make(sizes)
        seqs = self._note(items, producer)
        if producer is not None:
            producer = (producer[0], producer[1])
        if self.recorder is not None:
            self.recorder.expect_publish(([0] if producer is not None else []) + sizes)
        got: range
        if len(items) == 1:
            item = items[0]
            seq = log.append(
                item.value,
                key=item.key,
                topic=item.topic or None,
                headers=item.headers or None,
                durable=durable,
                producer=producer,
            )
            got = range(seq, seq + 1)
        else:
            got = log.extend(map(entry_of, items), durable=durable, producer=producer)
        assert got == seqs
        if durable:
            assert log.durable_seq >= seqs[-1]

    def load(
        self,
        count: int,
        size: int,
        *,
        by: str = "",
        durable: bool = False,
        producer: tuple[str, int] | None = None,
    ) -> None:
        """Load more than a segment takes; if there is another handle, it appends meanwhile."""
        items = [item._replace(batch_left=None) for item in self._make([size] * count)]
        seqs = range(0)

        def entries() -> Iterator[Entry]:
            nonlocal seqs
            yield from map(entry_of, items[:-1])
            for other in self.logs.keys() - {by}:
                self.append([10], by=other)
            seqs = self._note(items, producer)
            yield entry_of(items[-1])

        if producer is not None:
            producer = (producer[0], producer[1])
        got = self.logs[by].load(entries(), durable=durable, producer=producer)
        assert got == seqs

    def adopt(
        self,
        count: int,
        size: int,
        *,
        by: str = "",
        durable: bool = False,
        producer: tuple[str, int] | None = None,
    ) -> None:
        """Stage more than a part of a segment, and have the files become segments."""
        log = self.logs[by]
        items = [item._replace(batch_left=None) for item in self._make([size] * count)]
        directory = os.path.join(self.path, STAGING)
        files.make_dir(directory, 0o700)
        stem = os.path.join(directory, f"{self.ledger.begun}")
        staged = Writer(stem, log.settings.segment_size, 0o600).write([_rows_of(items)])
        seqs = self._note(items, producer)
        if producer is not None:
            producer = (producer[0], producer[1])
        with mock.patch.object(adopted, "THREADS_MAX", 1):  # one thread is watched
            assert append_staged(log, staged, durable=durable, producer=producer) == seqs

    def _make(self, sizes: list[int]) -> list[Item]:
        self.ledger.begun += 1
        return make_items(self.ledger.begun, sizes)

    def _note(self, items: list[Item], producer: tuple[str, int] | None) -> range:
        """Put events into the ledger that are about to be appended as one unit; their seqs."""
        ledger = self.ledger
        seqs = range(len(ledger.events) + 1, len(ledger.events) + len(items) + 1)
        ledger.events += [(self.moment, item) for item in items]
        ledger.units.append(seqs)
        if producer is not None:
            ledger.produced.append(Produced(producer[0], producer[1], seqs))
        return seqs

    def configure(self, segment_size: int, *, by: str = "") -> None:
        """Change a setting."""
        self.ledger.sizes.append((self.moment, segment_size))
        if self.recorder is not None:
            self.recorder.expect_publish([0])
        self.logs[by].configure(segment_size=segment_size)

    def sync(self, *, by: str = "") -> None:
        """Sync; then everything is on disk, settings too."""
        assert self.logs[by].sync() == len(self.ledger.events) == self.logs[by].durable_seq
        self._all_told()

    def roll(self, *, by: str = "") -> None:
        """Begin a new segment."""
        self.logs[by].steward.roll()

    def keep(self, *, by: str = "") -> None:
        """Do what the keeper's thread would do in a pause."""
        self.logs[by]._look_ahead()
        keeper: Any = self.logs[by]._keeper
        if isinstance(keeper, Keeper):
            keeper.work()

    def close(self, *, by: str = "") -> None:
        """Close the log; who does so last has everything on disk, unless a sync failed."""
        self.logs.pop(by).close()
        if not self.logs:
            if not self.poisoned:
                self._all_told()
            self.poisoned = False

    def _all_told(self) -> None:
        self.ledger.told.append((self.moment, len(self.ledger.events)))
        self.ledger.sizes_told.append((self.moment, len(self.ledger.sizes) - 1))


def check_events(log: Log, ledger: Ledger, must: int) -> int:
    """What the log holds is a beginning of what was appended, as long as was promised."""
    found = list(log)
    count = len(found)
    wanted = [item for _, item in ledger.events]
    assert [e.seq for e in found] == list(range(1, count + 1))
    assert count <= len(wanted), f"{count} events are there, {len(wanted)} were appended"
    for event, item in zip(found, wanted, strict=False):
        left = event.batch_left if item.batch_left is None else item.batch_left
        assert item_of(event) == item._replace(batch_left=left), f"seq {event.seq} is another event"
    assert count >= must, f"the events up to {must} were on the device, those up to {count} are"
    parted = [seqs for seqs in ledger.units if seqs[0] <= count < seqs[-1]]
    assert not parted, f"the log ends at {count}, inside of what was appended as one"
    assert log.last_seq == count and log.first_seq == 1
    assert [e.seq for e in reversed(log)] == list(range(count, 0, -1))
    assert all(log[seq].seq == seq for seq in range(1, count + 1))
    sizes = {size for _, size in ledger.sizes}
    assert log.settings.segment_size in sizes, "a setting is not what it was set to"
    return count


def check_producers(log: Log, ledger: Ledger) -> None:
    """To repeat what a producer appended last appends nothing and tells the same seqs."""
    before = log.last_seq
    for done in {p.who: p for p in ledger.produced}.values():
        values = [log[seq].value or b"" for seq in done.seqs]
        assert log.load(values, producer=(done.who, done.n)) == done.seqs
        if done.n:
            with pytest.raises(Conflict):
                log.append(b"", producer=(done.who, done.n - 1))
    assert log.last_seq == before


def live(path: str, record: str, steps: list[Step]) -> None:
    """One recorded life, in a process of its own, which ends here without closing anything."""
    file = Path(record)
    history, ledger = (
        pickle.loads(file.read_bytes()) if file.exists() else (History(loose=LOOSE), Ledger())
    )
    recorder = Recorder(history, path)
    life = Life(path, ledger, recorder)

    def write_down() -> None:
        file.write_bytes(pickle.dumps((history, ledger)))

    recorder.last_words = write_down
    os.makedirs(path, exist_ok=True)
    life.run(steps)
    write_down()
    os._exit(0)


def recorded(record: Path) -> tuple[History, Ledger]:
    """What lives have left of themselves."""
    history, ledger = pickle.loads(record.read_bytes())
    return history, ledger
