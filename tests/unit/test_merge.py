"""merge: many logs as one sequence, by time, then by place in the argument list."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import Entry
from penstock._core import Event

Logs = list[penstock.Log[Any]]


@pytest.fixture(params=["log", "ring"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Logs]]:
    """Makes logs of one kind, with events of the given times."""
    with ExitStack() as stack:
        made: Logs = []

        def some(*times: list[int]) -> Logs:
            for own in times:
                options: Any = (
                    {"ring": "256KiB"} if request.param == "ring" else {"segment_size": "64KiB"}
                )
                log = stack.enter_context(penstock.create(tmp_path / f"{len(made)}", **options))
                if own:
                    log.extend([Entry(b"%d" % ns, time=ns) for ns in own])
                made.append(log)
            return made

        yield some


def times(events: Any) -> list[int]:
    return [event.time_ns for event in events]


def test_by_time_then_by_place(make: Callable[..., Logs]) -> None:
    """Events come by time; of the same time, the one of the log that was given first."""
    a, b, c = make([10, 30, 30], [20, 30], [])
    merged = penstock.merge(a, b, c)
    found = [(event.time_ns, merged.source) for event in merged]
    assert found == [(10, a), (20, b), (30, a), (30, a), (30, b)]
    assert times(penstock.merge(a, b, c, reverse=True)) == [30, 30, 30, 20, 10]
    backward = penstock.merge(a, b, c, reverse=True)
    assert [(event.time_ns, backward.source) for event in backward] == found[::-1]


def test_each_log_keeps_its_own_order(make: Callable[..., Logs]) -> None:
    """Where a log's times go back, its events come in the order of their seqs, none is lost."""
    a, b = make([10, 50, 20], [30, 40])
    merged = penstock.merge(a, b)
    found = [(event.time_ns, merged.source is a) for event in merged]
    assert found == [(10, True), (30, False), (40, False), (50, True), (20, True)]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 30), max_size=12).map(sorted), min_size=1, max_size=6),
    st.booleans(),
    st.integers(0, 40),
)
def test_it_is_sorted(
    tmp_path_factory: pytest.TempPathFactory, times: list[list[int]], reverse: bool, limit: int
) -> None:
    """Merged logs are what sorted() makes of all their events, whole and up to a limit."""
    place = tmp_path_factory.mktemp("logs")
    with ExitStack() as stack:
        logs = [
            stack.enter_context(penstock.create(place / f"{n}", segment_size="64KiB"))
            for n in range(len(times))
        ]
        for log, own in zip(logs, times, strict=True):
            if own:
                log.extend([Entry(b"x", time=ns) for ns in own])
        model = sorted((event.time_ns, n, event.seq) for n, log in enumerate(logs) for event in log)
        if reverse:
            model.reverse()
        merged = penstock.merge(*logs, reverse=reverse)
        found = [(e.time_ns, logs.index(merged.source), e.seq) for e in merged]
        assert found == model
        short = penstock.merge(*logs, reverse=reverse, limit=limit)
        assert [(e.time_ns, logs.index(short.source), e.seq) for e in short] == model[:limit]


def test_more_than_it_reads_ahead(make: Callable[..., Logs]) -> None:
    """Logs longer than what is read ahead, over several segments, are merged whole."""
    a, b = make(list(range(0, 1200, 2)), list(range(1, 1200, 2)))
    assert times(penstock.merge(a, b)) == list(range(1200))
    merged = penstock.merge(a, b)
    assert times(merged.take(700)) == list(range(700))
    assert merged.positions == (351, 351)
    assert times(merged.take(10_000)) == list(range(700, 1200))
    assert merged.take(1) == []
    assert merged.positions == (601, 601)


def test_filters_are_those_of_read(make: Callable[..., Logs]) -> None:
    """since, until, topic, key and tags mean what they mean for read, for every log."""
    a, b = make([10, 20], [15, 25])
    for log in (a, b):
        log.append(b"t", time=30, topic="t", key=b"k", tags=["x"])
    assert times(penstock.merge(a, b, since=15, until=25)) == [15, 20]
    for asked in ({"topic": "t"}, {"key": b"k"}, {"tags": iter(["x"])}):
        assert times(penstock.merge(a, b, **asked)) == [30, 30]


def test_readers_are_sources(make: Callable[..., Logs]) -> None:
    """Readers are merged from where they stand, and stay open; their filters are their own."""
    a, b = make([10, 20, 30], [15, 25])
    first, second = a.read(2), b.read(since=20)
    with penstock.merge(first, second) as merged:
        assert times(merged) == [20, 25, 30]
    assert not first.closed and not second.closed
    assert times(penstock.merge(a.read(3), b)) == [15, 25, 30]


def test_the_same_log_twice(make: Callable[..., Logs]) -> None:
    """A log may be given twice, and each event comes twice; a reader may not."""
    (a,) = make([10, 20])
    assert times(penstock.merge(a, a)) == [10, 10, 20, 20]
    reader = a.read()
    with pytest.raises(penstock.Usage, match="only once"):
        penstock.merge(reader, reader)


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ({"quiet": 1}, "quiet needs follow=True"),
        ({"timeout": 1}, "timeout needs follow=True"),
        ({"start": "end"}, "start='end' needs follow=True"),
        ({"follow": True, "reverse": True}, "reverse=True needs follow=False"),
        ({"follow": True, "until": 5}, "until needs follow=False"),
        ({"start": 5}, "start must be"),
        ({"limit": -1}, "limit must be"),
        ({"follow": True, "quiet": -1}, "quiet must be"),
        ({"on_gap": "never"}, "on_gap must be"),
    ],
)
def test_what_makes_no_sense_is_refused(
    make: Callable[..., Logs], wrong: dict[str, Any], names: str
) -> None:
    """Arguments that contradict each other are Usage, and say which."""
    (a,) = make([10])
    with pytest.raises(penstock.Usage, match=names):
        penstock.merge(a, **wrong)


def test_sources_are_checked(make: Callable[..., Logs]) -> None:
    """No source, a list of logs, or anything else is refused; so is a filter that a reader has."""
    (a,) = make([10])
    with pytest.raises(penstock.Usage, match="at least one"):
        penstock.merge()
    nonsense: Any
    for nonsense in ([a], "a", None, a[1], iter(a.read().take(1))):
        with pytest.raises(penstock.WrongType, match="takes logs, readers and consumers"):
            penstock.merge(nonsense)
    with pytest.raises(penstock.Usage, match="topic is for logs"):
        penstock.merge(a, a.read(), topic="t")
    with pytest.raises(penstock.Usage, match=r"penstock\.merge"):
        penstock.Merged()
    with pytest.raises(penstock.Usage, match=r"penstock\.merge"):
        penstock.Merged(3)


def test_closing(make: Callable[..., Logs]) -> None:
    """A merged reader that was closed says so; its logs stay open."""
    a, b = make([10, 20], [15])
    with penstock.merge(a, b) as merged:
        event = next(merged)
    assert merged.closed and event.value == b"10"
    for use in (lambda: next(merged), lambda: merged.take(1), merged.__enter__, merged.commit):
        with pytest.raises(penstock.Closed):
            use()
    merged.close()
    assert len(a) == 2
    with pytest.raises(penstock.Closed), penstock.merge(a, b) as merged:
        a.close()
        list(merged)


def test_it_cannot_be_copied(make: Callable[..., Logs]) -> None:
    """Copying and pickling are refused, and say what can be sent instead."""
    merged = penstock.merge(*make([10]))
    for use in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(penstock.WrongType, match="send the logs"):
            use(merged)
    assert times(merged) == [10]


def damage(log: penstock.Log[Any], value: bytes, path: Path) -> None:
    """Change one byte of a value on disk."""
    name = path if path.is_file() else sorted(path.glob("*.seg"))[0]
    at = name.read_bytes().index(value)
    with name.open("r+b") as file:
        file.seek(at)
        file.write(b"!")


def test_damage(make: Callable[..., Logs]) -> None:
    """What comes before damage is handed out first, then Corrupt again and again, or it is
    passed over, as for read."""
    a, b = make([10, 40], [20, 30])
    a.append(b"damaged!", time=50)
    a.append(b"last", time=60)
    damage(a, b"damaged!", Path(a.path))
    merged = penstock.merge(a, b)
    assert times(merged.take(10)) == [10, 20, 30, 40]
    for _ in range(2):
        with pytest.raises(penstock.Corrupt):
            next(merged)
    skipping = penstock.merge(a, b, on_damage="skip")
    assert times(skipping) == [10, 20, 30, 40, 60]
    assert skipping.skipped == 1


def test_gaps(tmp_path: Path) -> None:
    """A ring that has overwritten what a reader stands at raises Gap, or is passed over."""
    with (
        penstock.create(tmp_path / "a.ring", ring="32KiB") as ring,
        penstock.create(tmp_path / "b") as log,
    ):
        ring.append(b"x", time=1)
        log.append(b"y", time=2)
        raising, passing = ring.read(1), ring.read(1, on_gap="skip")
        for n in range(3000):
            ring.append(b"x" * 50, time=10 + n)
        with pytest.raises(penstock.Gap):
            list(penstock.merge(raising, log))
        merged = penstock.merge(passing, log)
        list(merged)
        assert merged.skipped > 0


def test_following_waits_for_every_source(make: Callable[..., Logs]) -> None:
    """With follow, an event is held back until each other source has shown a later one."""
    a, b = make([10, 30], [20])
    merged = penstock.merge(a, b, follow=True, timeout=0)
    assert times(merged) == [10, 20]  # a's 30 may not come before what b has next
    b.append(b"x", time=40)
    assert times(merged) == [30]
    a.extend([Entry(b"x", time=35), Entry(b"x", time=50)])
    assert times(merged) == [35, 40]


def test_a_quiet_source_holds_nobody_back(make: Callable[..., Logs]) -> None:
    """After quiet seconds without anything, a source holds others back no longer; what it has
    later comes at once, late as it is, and nothing is lost or twice."""
    a, b = make([10, 30], [20])
    merged = penstock.merge(a, b, follow=True, quiet=0, timeout=0)
    assert times(merged) == [10, 20, 30]
    a.append(b"x", time=50)
    assert times(merged) == [50]
    b.append(b"x", time=40)
    assert times(merged) == [40]
    merged = penstock.merge(a, b, follow=True, quiet=0.01)
    assert [next(merged).time_ns for _ in range(5)] == [10, 20, 30, 40, 50]


def test_a_source_that_has_ended_holds_nobody_back(make: Callable[..., Logs]) -> None:
    """A reader that has given all that was asked of it is waited for no longer."""
    a, b = make([10, 30], [20])
    limited = b.follow("start", limit=1)
    merged = penstock.merge(a.follow("start"), limited, follow=True)
    assert times(merged.take(9)) == [10, 20, 30]
    ended = penstock.merge(a.read(), b.follow("start", limit=1), follow=True)
    assert times(ended) == [10, 20, 30]


def test_following_from_the_end(make: Callable[..., Logs]) -> None:
    """start="end" gives only what comes from now on; since gives what there is since then."""
    a, b = make([10, 20], [15])
    ended = penstock.merge(a, b, follow=True, start="end", quiet=0, timeout=0)
    since = penstock.merge(a, b, follow=True, since=15, quiet=0, timeout=0)
    assert times(ended) == []
    assert times(since) == [15, 20]
    b.append(b"x", time=18)
    a.append(b"x", time=12)
    assert sorted(times(ended)) == [12, 18]
    assert times(since) == [18]


def test_it_is_woken(make: Callable[..., Logs]) -> None:
    """A merged reader that sleeps is woken by whichever log is appended to, in any order."""
    logs = make([], [], [])
    merged = penstock.merge(*logs, follow=True, quiet=0, timeout=60)
    found: list[Event[Any]] = []

    def read() -> None:
        found.extend(next(merged) for _ in range(90))

    reading = threading.Thread(target=read)
    reading.start()
    for n in range(30):
        for log in logs:
            log.append(b"%d" % n)
    reading.join(60)
    assert not reading.is_alive()
    assert len(found) == 90


def test_many_sources_need_no_threads(tmp_path: Path) -> None:
    """More logs than one futex call takes are followed in the caller's own thread."""
    with ExitStack() as stack:
        logs = [
            stack.enter_context(penstock.create(tmp_path / f"{n}", ring="32KiB"))
            for n in range(200)
        ]
        before = set(threading.enumerate())
        merged = penstock.merge(*logs, follow=True, quiet=0, timeout=60)
        assert merged.take(1) == []
        for n in (0, 199, 50, 128):
            late = threading.Timer(0.01, logs[n].append, (b"%d" % n,))
            late.start()
            assert next(merged).value == b"%d" % n
            late.join()
        assert set(threading.enumerate()) <= before


def test_a_log_that_is_deleted(make: Callable[..., Logs]) -> None:
    """Waiting for a log that is deleted ends with Gone, within about a second."""
    import shutil

    a, b = make([10], [20])
    merged = penstock.merge(a, b, follow=True, timeout=60)
    assert next(merged).time_ns == 10
    shutil.rmtree(a.path) if Path(a.path).is_dir() else Path(a.path).unlink()
    with pytest.raises(penstock.Gone):
        next(merged)


class Remembering:
    """A consumer, as merge sees it: it notes what was committed."""

    def __init__(self, log: penstock.Log[Any]) -> None:
        self.log = log
        self.reader = log.follow("start")
        self.committed: list[tuple[int | None, bool]] = []

    @property
    def position(self) -> int:
        return self.reader.position

    def take(self, count: int) -> list[Event[Any]]:
        return self.reader.take(count)

    def wait(self, timeout: float | None = None) -> bool:
        return self.reader.wait(timeout)

    def commit(self, seq: int | None = None, *, durable: bool = False) -> None:
        self.committed.append((seq, durable))


def test_commit_is_what_was_handed_out(make: Callable[..., Logs]) -> None:
    """commit() commits each consumer up to the event that was handed out last, not what was read
    ahead; with nothing left, up to where the consumer stands."""
    a, b = make([10, 30, 50], [20, 40])
    one, two = Remembering(a), Remembering(b)
    merged = penstock.merge(one, two)
    next(merged)
    merged.commit()
    assert one.committed == [(1, False)] and two.committed == []
    assert times(merged.take(2)) == [20, 30]
    merged.commit(durable=True)
    assert one.committed[-1] == (2, True) and two.committed == [(1, True)]
    assert times(merged) == [40, 50]
    merged.commit()
    assert one.committed[-1] == two.committed[-1] == (None, False)
    with pytest.raises(penstock.Usage, match="needs a consumer"):
        penstock.merge(a, b).commit()


def test_an_interrupt_loses_nothing(make: Callable[..., Logs]) -> None:
    """What was read before Ctrl-C came in the middle of a batch is handed out afterwards."""
    (a,) = make(list(range(10, 20)))

    class Interrupted(Remembering):
        tries = 0

        def take(self, count: int) -> list[Event[Any]]:
            self.tries += 1
            if self.tries == 2:
                raise KeyboardInterrupt
            return self.reader.take(3)

    merged = penstock.merge(Interrupted(a))
    assert [next(merged).time_ns for _ in range(3)] == [10, 11, 12]
    with pytest.raises(KeyboardInterrupt):
        next(merged)
    assert times(merged) == list(range(13, 20))
