"""Events that are gone are never passed over in silence: a start below them is a gap."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Gap

KINDS = ["ring", "segments"]


def overtaken(path: Path, kind: str, *, times: bool = False) -> penstock.Log:
    """A log whose first events are gone, and that has some hundred left."""
    options: dict[str, Any] = {"ring": "64KiB"} if kind == "ring" else {"segment_size": "64KiB"}
    log = penstock.create(path, **options)
    for n in range(1, 1001):
        log.append(b"%d" % n + bytes(300), time=n if times else None, topic="t")
    if kind == "segments":
        log.close()
        for file in sorted(path.glob("*.seg"))[:2]:
            file.unlink()
        log = penstock.open(path)
    assert log.first_seq > 101
    return log


@pytest.fixture(params=KINDS)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[penstock.Log]:
    """A log whose first events are gone, of either kind."""
    with overtaken(tmp_path / "log", request.param) as log:
        yield log


def polars_rows(scan: penstock.Scan) -> list[int]:
    """The seqs that polars gets."""
    pytest.importorskip("polars")
    found: list[int] = scan.to_polars()["seq"].to_list()
    return found


READS: dict[str, Callable[[penstock.Log, tuple[Any, ...], Any], tuple[list[int], Any]]] = {}


def way(
    run: Callable[..., tuple[list[int], Any]],
) -> Callable[..., tuple[list[int], Any]]:
    """Have a way to read take part in the tests below."""
    READS[run.__name__] = run
    return run


@way
def read(log: penstock.Log, bounds: tuple[Any, ...], on_gap: Any) -> tuple[list[int], Any]:
    """Event by event."""
    reader = log.read(*bounds, on_gap=on_gap)
    return [event.seq for event in reader], reader


@way
def take(log: penstock.Log, bounds: tuple[Any, ...], on_gap: Any) -> tuple[list[int], Any]:
    """Many events at a time."""
    reader = log.read(*bounds, on_gap=on_gap)
    return [event.seq for event in reader.take(10_000)], reader


@way
def backwards(log: penstock.Log, bounds: tuple[Any, ...], on_gap: Any) -> tuple[list[int], Any]:
    """The newest first."""
    reader = log.read(*bounds, on_gap=on_gap, reverse=True)
    return [event.seq for event in reader][::-1], reader


@way
def by_topic(log: penstock.Log, bounds: tuple[Any, ...], on_gap: Any) -> tuple[list[int], Any]:
    """Through a filter."""
    reader = log.read(*bounds, on_gap=on_gap, topic="t")
    return [event.seq for event in reader], reader


@way
def to_arrow(log: penstock.Log, bounds: tuple[Any, ...], on_gap: Any) -> tuple[list[int], Any]:
    """As a table."""
    scan = log.scan(*bounds, on_gap=on_gap)
    return scan.to_arrow()["seq"].to_pylist(), scan


@way
def to_batches(log: penstock.Log, bounds: tuple[Any, ...], on_gap: Any) -> tuple[list[int], Any]:
    """As batches."""
    scan = log.scan(*bounds, on_gap=on_gap, batch_rows=7)
    return [s for batch in scan.to_batches() for s in batch["seq"].to_pylist()], scan


@way
def to_polars(log: penstock.Log, bounds: tuple[Any, ...], on_gap: Any) -> tuple[list[int], Any]:
    """As a frame."""
    scan = log.scan(*bounds, on_gap=on_gap)
    return polars_rows(scan), scan


def there(log: penstock.Log, bounds: tuple[Any, ...]) -> tuple[int, int]:
    """The part of a range that is still in the log."""
    start, stop = (*bounds, None, None)[:2]
    end = log.last_seq + 1 if stop is None else min(stop, log.last_seq + 1)
    first = 1 if start in (None, "start") else start
    return max(log.first_seq, first), max(end, log.first_seq)


@pytest.mark.parametrize("bounds", [(1,), (0,), (1, 100), (50, 990), (1, None)], ids=str)
@pytest.mark.parametrize("how", READS)
def test_a_start_that_is_gone_is_a_gap(
    log: penstock.Log, how: str, bounds: tuple[Any, ...]
) -> None:
    """An explicit start below the first seq raises Gap, whichever way the log is read."""
    with pytest.raises(Gap) as caught:
        READS[how](log, bounds, "raise")
    assert caught.value.first_seq == log.first_seq


@pytest.mark.parametrize("bounds", [(1,), (0,), (1, 100), (50, 990), (1, None)], ids=str)
@pytest.mark.parametrize("how", READS)
def test_missing_events_are_counted_when_skipped(
    log: penstock.Log, how: str, bounds: tuple[Any, ...]
) -> None:
    """With on_gap="skip" a read begins with the first event there and counts the missing ones."""
    seqs, reader = READS[how](log, bounds, "skip")
    first, stop = there(log, bounds)
    assert seqs == list(range(first, stop))
    asked = (bounds[1] if len(bounds) > 1 else None) or 1001
    assert reader.skipped == min(log.first_seq, asked) - max(1, bounds[0])


@pytest.mark.parametrize(
    "bounds",
    [(), (None, 100), (None, 990), ("start",), ("start", 100), ("start", 990)],
    ids=str,
)
@pytest.mark.parametrize("how", READS)
def test_no_start_means_the_oldest(log: penstock.Log, how: str, bounds: tuple[Any, ...]) -> None:
    """Without a start, or with "start", there is no gap: a read begins with the oldest event."""
    seqs, reader = READS[how](log, bounds, "raise")
    assert seqs == list(range(*there(log, bounds)))
    assert reader.skipped == 0


@pytest.mark.parametrize("how", READS)
def test_a_start_that_is_there_is_no_gap(log: penstock.Log, how: str) -> None:
    """The first seq itself, one in the middle, the end, an empty range: none of them is a gap."""
    for start in (log.first_seq, log.first_seq + 9, log.last_seq, log.last_seq + 1):
        assert READS[how](log, (start,), "raise")[0] == list(range(start, 1001))
    assert READS[how](log, (5, 5), "raise")[0] == []
    assert READS[how](log, (9, 5), "raise")[0] == []


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_times_bound_what_can_be_missing(tmp_path: Path, kind: str, reverse: bool) -> None:
    """With since=, a start that is gone is a gap only if an event of that time may be gone too."""
    with overtaken(tmp_path / "log", kind, times=True) as log:
        first = log.first_seq
        late = log.read(1, since=first + 40, reverse=reverse)
        assert sorted(e.seq for e in late) == list(range(first + 40, 1001))
        with pytest.raises(Gap) as caught:
            list(log.read(1, since=10, reverse=reverse))
        assert caught.value.first_seq == first
        early = log.read(since=10, reverse=reverse)
        assert sorted(e.seq for e in early) == list(range(first, 1001))


def test_a_poller_misses_nothing_in_silence(tmp_path: Path) -> None:
    """Polling a ring with read(next) accounts for every event: read, or counted as skipped."""
    with penstock.create(tmp_path / "poll.ring", ring="32KiB") as ring:
        following, got, skipped = 1, 0, 0
        for _ in range(100):
            for _ in range(40):
                ring.append(bytes(500))
            reader = ring.read(following, on_gap="skip")
            events = list(reader)
            got += len(events)
            skipped += reader.skipped
            following = events[-1].seq + 1
        assert got + skipped == ring.last_seq == 4000
        assert skipped > 0
        for _ in range(60):
            ring.append(bytes(500))
        with pytest.raises(Gap):
            ring.read(following).take(1)


def test_a_reader_is_overtaken_before_its_first_event(tmp_path: Path) -> None:
    """read() and follow("start") that were not asked yet begin with what is there then."""
    with penstock.create(tmp_path / "late.ring", ring="32KiB") as ring:
        ring.extend([b"old"] * 10)
        readers = [ring.read(), ring.follow("start", timeout=0), ring.read(stop=5)]
        for _ in range(50):
            ring.extend([bytes(900)] * 5)
        first, last = ring.first_seq, ring.last_seq
        assert [e.seq for e in readers[0]] == list(range(first, last + 1))
        assert [e.seq for e in readers[1]] == list(range(first, last + 1))
        assert list(readers[2]) == []
        assert [r.skipped for r in readers] == [0, 0, 0]


def test_a_reverse_read_that_is_overtaken(tmp_path: Path) -> None:
    """Reading backwards, what goes away before it is reached is a gap, if a start asked for it."""
    with penstock.create(tmp_path / "back.ring", ring="256KiB") as ring:
        for _ in range(8):
            ring.extend([bytes(100)] * 100)
        exact, open_ended = ring.read(1, reverse=True), ring.read(reverse=True)
        counted = ring.read(1, reverse=True, on_gap="skip")
        for reader in (exact, open_ended, counted):
            next(reader)
        for _ in range(60):
            ring.extend([bytes(900)] * 5)
        seen = 800
        with pytest.raises(Gap) as caught:
            for event in exact:
                seen = event.seq
        assert caught.value.first_seq == ring.first_seq > 800 > seen > 1
        assert [e.seq for e in open_ended][-1] == seen
        assert len(list(counted)) + 1 + counted.skipped == 800


def test_topics_beside_busy_writers(tmp_path: Path) -> None:
    """topics() of a ring never raises Gap, however fast the ring is written."""
    with penstock.create(tmp_path / "busy.ring", ring="1MiB") as ring:
        done = threading.Event()

        def write() -> None:
            for n in itertools.count():
                ring.extend([bytes(1000)] * 200, topic=f"t{n % 3}")
                if done.is_set():
                    return

        writers = [threading.Thread(target=write) for _ in range(2)]
        ring.append(b"x", topic="t0")
        for thread in writers:
            thread.start()
        try:
            for _ in range(150):
                assert ring.topics() <= {"t0", "t1", "t2"}
                for _ in ring.read():
                    break
        finally:
            done.set()
            for thread in writers:
                thread.join()
