"""One writer goes round a small ring as fast as it can, over readers that check every byte."""

from __future__ import annotations

import itertools
import random
import struct
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

import penstock
from penstock import Entry, Event, Log, NotFound
from penstock.layout import FRAME_HEADER_BYTES
from tests.support.fixtures import STORM
from tests.support.jobs import report
from tests.support.rings import check_stats
from tests.support.workers import Crew, Worker

pytestmark = [pytest.mark.process, pytest.mark.slow]

SECONDS = 300.0 if STORM else 4.0  # for each of two modes
RING = 1 << 20
INDEX = 1024  # few enough that half of the ring takes the largest value
VALUE_BYTES_MAX = 500_000

_POOL = random.Random(20261116).randbytes(2 * VALUE_BYTES_MAX)
_SIZES = (
    *[10, 11, 17, 40, 90, 150, 300] * 6,
    *(4000, 4096, 8192, 9001, 20_000, 33_333),
    *(60_000, 150_000, VALUE_BYTES_MAX),
)


def mixed(seq: int) -> int:
    """A number that looks random, and is the same for the same seq in every process."""
    seq = (seq ^ (seq >> 15)) * 0x2C1B3C6D & 0xFFFFFFFF
    seq = (seq ^ (seq >> 12)) * 0x297A2D39 & 0xFFFFFFFF
    return seq ^ (seq >> 15)


def value_of(seq: int) -> bytes:
    """The value of the event with that seq: 10 bytes to 500 KB."""
    n = mixed(seq)
    size = _SIZES[n % len(_SIZES)]
    start = n % (len(_POOL) - size)
    return struct.pack("<Q", seq) + _POOL[start : start + size - 8]


def key_of(seq: int) -> bytes | None:
    """Its key, which every third has."""
    return b"%d" % seq if seq % 3 == 0 else None


def batch_of(seq: int) -> int:
    """How many events are appended at once, if that one is the first of them."""
    count = 1 + mixed(seq) % 5 if seq % 4 == 0 else 1
    while count > 1 and sum(len(value_of(seq + i)) for i in range(count)) > VALUE_BYTES_MAX:
        count -= 1
    return count


def check(event: Event) -> None:
    """The event is what was appended under its seq, to the last byte."""
    assert event.value == value_of(event.seq), f"seq {event.seq}: another value"
    assert event.key == key_of(event.seq), f"seq {event.seq}: another key"


class Keepsakes:
    """Events that were handed out a while ago, and must be what they were."""

    def __init__(self) -> None:
        self._events: deque[tuple[Event, memoryview]] = deque()

    def add(self, event: Event) -> None:
        """Keep an event, and look at one that is old enough for the ring to have gone over it."""
        view = event.view
        assert view is not None
        self._events.append((event, view))
        if len(self._events) > 16:
            old, view = self._events.popleft()
            check(old)
            assert bytes(view) == value_of(old.seq), f"seq {old.seq}: its view has changed"


def write_laps(path: str, seconds: float) -> None:
    """Append as fast as possible."""
    end = time.monotonic() + seconds
    with penstock.open(path, timeout=60) as log:
        report(ready=True)
        seq = log.last_seq + 1
        while time.monotonic() < end:
            for _ in range(50):
                count = batch_of(seq)
                if count == 1:
                    got = log.append(value_of(seq), key=key_of(seq), timeout=30)
                else:
                    entries = [Entry(value_of(s), key=key_of(s)) for s in range(seq, seq + count)]
                    got = log.extend(entries, timeout=30)[0]
                assert got == seq
                seq += count
        ring = log.stats().ring
        assert ring is not None and ring.lost_bytes == 0
        report(events=seq - 1, laps=ring.head // ring.ring_bytes - 1)


class Tally:
    """What a reader got, and how often it came too late."""

    def __init__(self) -> None:
        self.events = 0
        self.lapped = 0
        self.kept = Keepsakes()

    def take(self, event: Event) -> None:
        """Check an event."""
        check(event)
        self.events += 1
        if self.events % 7 == 0:
            self.kept.add(event)


def iterate(log: Log, tally: Tally, end: float) -> None:
    """Read what is there, forward, from the oldest event on, where the writer comes next."""
    for n in itertools.count():
        if time.monotonic() > end:
            return
        wanted = 1
        reader = log.read(on_gap="skip")
        skipped, begun = 0, False
        for event in reader:
            if begun:
                assert event.seq == wanted + reader.skipped - skipped, "a gap that was not counted"
                tally.lapped += reader.skipped > skipped
            assert event.seq >= wanted  # a read begins with what is there when it does
            wanted, skipped, begun = event.seq + 1, reader.skipped, True
            tally.take(event)
            if n % 10 == 0:  # let the writer pass, but not by more than it has to
                while log.first_seq < wanted and time.monotonic() < end:
                    pass
        assert reader.skipped >= skipped
        tally.lapped += reader.skipped > skipped


def follow(log: Log, tally: Tally, end: float) -> None:
    """Follow the writer."""
    reader = log.follow("end", on_gap="skip", timeout=30)
    wanted, skipped = reader.position, 0
    while time.monotonic() < end:
        event = next(reader)
        assert event.seq == wanted + reader.skipped - skipped, "a gap that was not counted"
        tally.lapped += reader.skipped > skipped
        wanted, skipped = event.seq + 1, reader.skipped
        tally.take(event)


def roam(log: Log, tally: Tally, end: float) -> None:
    """Go backward, look events up, scan, and ask what there is, in turns."""
    ways = (backward, look_up, scan, ask)
    rng = random.Random(1)
    while time.monotonic() < end:
        rng.choice(ways)(log, tally, rng)


def backward(log: Log, tally: Tally, rng: random.Random) -> None:
    """From the newest event to the oldest one that is left when the reader comes to it."""
    seq = None
    for event in reversed(log):
        assert seq is None or event.seq == seq - 1, f"seq {event.seq} comes before seq {seq}"
        seq = event.seq
        tally.take(event)
    if seq is not None:
        assert log.first_seq >= seq, "it ended before the oldest event"
        tally.lapped += log.first_seq > seq


def look_up(log: Log, tally: Tally, rng: random.Random) -> None:
    """Events by their seqs."""
    for _ in range(100):
        first, last = log.first_seq, log.last_seq
        if first > last:
            continue  # a long event is just taking the place of all others
        seq = rng.randrange(first, last + 1)
        try:
            event = log[seq]
        except NotFound:
            assert log.first_seq > seq, f"seq {seq} is not found, but was not dropped"
            tally.lapped += 1
            continue
        assert event.seq == seq
        tally.take(event)


def scan(log: Log, tally: Tally, rng: random.Random) -> None:
    """Rows of a table."""
    rows = log.scan(columns=["seq", "key", "value"], on_gap="skip", **rng.choice(SCANS))
    before, skipped = None, 0
    for batch in rows.to_batches():
        columns = (batch[name].to_pylist() for name in batch.schema.names)
        for seq, key, value in zip(*columns, strict=True):
            assert before is None or seq > before, f"seq {seq} behind {before}"
            assert value == value_of(seq) and key == key_of(seq), f"seq {seq}: another event"
            skipped += seq - before - 1 if before is not None else 0
            before = seq
            tally.events += 1
    assert skipped <= rows.skipped, "a gap that was not counted"
    tally.lapped += rows.skipped > 0


def ask(log: Log, tally: Tally, rng: random.Random) -> None:
    """What the ring says of itself, again and again."""
    for _ in range(300):
        check_stats(log)
        assert len(log) <= RING // FRAME_HEADER_BYTES


SCANS: list[dict[str, Any]] = [{}, {"batch_rows": 5}]

READERS: dict[str, Callable[[Log, Tally, float], None]] = {
    "iterate": iterate,
    "follow": follow,
    "roam": roam,
}


def read_laps(path: str, how: str, mode: Literal["r", "rw"], seconds: float) -> None:
    """Read in one of the ways until the time is up."""
    tally = Tally()
    with penstock.open(path, mode=mode, timeout=60) as log:
        report(ready=True)
        READERS[how](log, tally, time.monotonic() + seconds)
    report(events=tally.events, lapped=tally.lapped)


def start(crew: Crew, directory: Path, function: str, **args: Any) -> Worker:
    """Start a function of this module in a process of its own."""
    worker = crew.start(directory, "run_in_worker", module=__name__, function=function, args=args)
    worker.wait_report("ready")
    return worker


@pytest.mark.timeout(SECONDS * 3 + 300)
@pytest.mark.parametrize("mode", ["rw", "r"])
def test_lapped_readers(crew: Crew, tmp_path: Path, mode: str) -> None:
    """Readers that are lapped all the time get whole events, and know what they missed."""
    path = str(tmp_path / "ring")
    penstock.create(path, ring=RING, index=INDEX).close()
    writer = start(crew, tmp_path, "write_laps", path=path, seconds=SECONDS + 1)
    readers = {
        how: start(crew, tmp_path, "read_laps", path=path, how=how, mode=mode, seconds=SECONDS)
        for how in READERS
    }
    for worker in (writer, *readers.values()):
        worker.wait(SECONDS * 2 + 120)
        worker.done()
    laps = writer.wait_report("laps")
    tallies = {how: worker.reports()[-1] for how, worker in readers.items()}
    print(f"{laps} laps, {writer.wait_report('events')} events; {tallies}")
    assert laps > 40 * SECONDS
    for how, tally in tallies.items():
        assert tally["events"] > 200 * SECONDS, (how, tally)
        assert tally["lapped"] > 2 * SECONDS, (how, tally)
