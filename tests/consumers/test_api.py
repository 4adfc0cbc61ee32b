"""What a consumer promises its caller."""

from __future__ import annotations

import datetime as dt
import os
import pickle
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Busy, Closed, Corrupt, Gap, Gone, Log, NotFound, TooLarge, Usage, WrongType
from penstock import layout as L
from penstock.consumers import folder as folders
from penstock.system.directory import Directory
from tests.support.wait import wait_for


def values(events: list[penstock.Event]) -> list[bytes]:
    return [event.value for event in events]


def test_it_goes_on_where_it_committed(log: Log) -> None:
    """What was committed is not handed out again; what was not is."""
    log.extend([b"a", b"b", b"c"])
    with log.consumer("c", timeout=0) as consumer:
        assert next(consumer).value == b"a"
        consumer.commit()
        assert next(consumer).value == b"b"
    with log.consumer("c", timeout=0) as consumer:
        assert (consumer.position, consumer.committed) == (2, 2)
        assert [event.value for event in consumer] == [b"b", b"c"]


def test_it_outlives_the_handle_and_the_log(log: Log, path: Path) -> None:
    """The place is in a file of the log."""
    log.extend([b"a", b"b"])
    with log.consumer("c") as consumer:
        consumer.poll(1)
        consumer.commit(durable=True)
    log.close()
    with penstock.open(path) as again, again.consumer("c") as consumer:
        assert values(consumer.poll()) == [b"b"]


def test_start_counts_only_when_it_is_made(log: Log) -> None:
    """A consumer that is there goes on where it was, whatever start says."""
    log.extend([b"a", b"b"])
    log.consumer("end", start="end").close()
    log.consumer("two", start=2).close()
    log.append(b"c")
    with log.consumer("end", start="start") as consumer:
        assert values(consumer.poll()) == [b"c"]
    with log.consumer("two", start="end") as consumer:
        assert values(consumer.poll()) == [b"b", b"c"]


def test_start_and_seek_by_time(log: Log) -> None:
    """A time means the first event that is not older; text, datetime and date will do."""
    day = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    for i in range(5):
        log.append(b"%d" % i, time=day + dt.timedelta(hours=i))
    with log.consumer("c", start=day + dt.timedelta(hours=2)) as consumer:
        assert values(consumer.poll()) == [b"2", b"3", b"4"]
        consumer.seek("2026-01-01T03:30:00+00:00")
        assert values(consumer.poll()) == [b"4"]
        consumer.seek(dt.date(2020, 1, 1))
        assert len(consumer.poll()) == 5
        consumer.seek(dt.date(2027, 1, 1))
        assert consumer.position == 6


def test_seek(log: Log) -> None:
    """A seek is where the next event comes from; a commit makes it last."""
    log.extend([b"a", b"b", b"c"])
    with log.consumer("c") as consumer:
        assert len(consumer.poll()) == 3
        consumer.commit()
        consumer.seek("start")
        assert next(consumer).value == b"a"
    with log.consumer("c") as consumer:
        assert consumer.position == 4
        consumer.seek(2)
        consumer.commit()
    with log.consumer("c") as consumer:
        assert consumer.position == 2
        consumer.seek("end")
        assert consumer.poll() == []
        assert consumer.position == 4


@pytest.mark.parametrize("to", [None, True, -1, 1.5, "yesterday-ish", b"start", [], 99, 1 << 70])
def test_odd_seeks(log: Log, to: Any) -> None:
    """What is no position raises, and nothing moves; nothing is made with such a start."""
    log.extend([b"a", b"b"])
    with log.consumer("c") as consumer:
        with pytest.raises(Usage):
            consumer.seek(to)
        assert consumer.position == 1
    with pytest.raises(Usage):
        log.consumer("other", start=to)
    assert log.consumers().names() == ["c"]


def test_commit_of_a_seq(log: Log) -> None:
    """commit(seq) is for the last event handled; what was not handed out cannot be committed."""
    log.extend([b"a", b"b", b"c"])
    with log.consumer("c") as consumer:
        events = consumer.poll(2)
        consumer.commit(events[0].seq)
        assert (consumer.committed, consumer.position) == (2, 3)
        consumer.commit(2)
        consumer.commit(1)
        assert consumer.committed == 2
        consumer.commit(0)
        assert consumer.committed == 1
        for wrong in (3, 4, 1 << 80):
            with pytest.raises(Usage, match="handed out"):
                consumer.commit(wrong)
        for odd in (True, "1", 1.0, -1):
            with pytest.raises(Usage):
                consumer.commit(odd)  # type: ignore[arg-type]
        consumer.commit()
    with log.consumer("c") as consumer, pytest.raises(Usage, match="seek"):
        consumer.commit(1)


def test_poll(log: Log) -> None:
    """Up to n events; with a timeout it waits for the first one, and wakes for it."""
    log.extend([b"%d" % i for i in range(10)])
    with log.consumer("c") as consumer:
        assert values(consumer.poll(3)) == [b"0", b"1", b"2"]
        assert len(consumer.poll(100, timeout=5)) == 7
        assert consumer.poll(100, timeout=0) == []
        late = threading.Thread(target=log.append, args=(b"late",))
        late.start()
        assert values(consumer.poll(5, timeout=None)) == [b"late"]
        late.join()


@pytest.mark.parametrize(
    "arguments", [(0,), (-1,), ("2",), (2.0,), (True,), (1, -1), (1, "1"), (1, float("nan"))]
)
def test_odd_polls(log: Log, arguments: tuple[Any, ...]) -> None:
    """What is no number of events or of seconds raises, and hands out nothing."""
    log.append(b"a")
    with log.consumer("c") as consumer:
        with pytest.raises(Usage):
            consumer.poll(*arguments)
        assert consumer.position == 1


def test_iterating_waits_like_follow(log: Log) -> None:
    """Iteration goes on with what is appended, and ends when nothing comes for timeout."""
    with log.consumer("c", timeout=30) as consumer:
        late = threading.Thread(target=log.append, args=(b"late",))
        late.start()
        assert next(consumer).value == b"late"
        late.join()
        consumer.timeout = 0
        assert list(consumer) == []


def test_a_filter_is_kept(log: Log) -> None:
    """Who opens it without a filter gets the one it was made with; another one is an error."""
    log.append(b"1", topic="a", key=b"k", tags=["x", "y"])
    log.append(b"2", topic="b")
    log.append(b"3", topic="a", key=b"k", tags=["y", "x"])
    log.append(b"4", topic="a")
    log.consumer("c", topic="a", key=b"k", tags=["y", "x"]).close()
    with log.consumer("c") as consumer:
        assert (consumer.topic, consumer.key, consumer.tags) == ("a", b"k", ("x", "y"))
        assert values(consumer.poll()) == [b"1", b"3"]
    log.consumer("c", topic="a", key=b"k", tags=["x", "y"]).close()
    for other in ({"topic": "a"}, {"key": b"k"}, {"topic": "b", "key": b"k", "tags": ["x", "y"]}):
        with pytest.raises(Usage, match="made with topic='a', key=b'k', tags="):
            log.consumer("c", **other)


def test_an_empty_topic_or_key_is_a_filter(log: Log) -> None:
    """Events without a topic have the empty one; an empty key is a key."""
    log.append(b"1")
    log.append(b"2", topic="a", key=b"")
    with log.consumer("topic", topic="") as consumer:
        assert values(consumer.poll()) == [b"1"]
    with log.consumer("key", key=b"") as consumer:
        assert values(consumer.poll()) == [b"2"]
    assert log.consumers()["key"].key == b""


def test_a_filter_that_is_too_long(log: Log) -> None:
    """Nothing is made of a filter that its file has no room for."""
    with pytest.raises(TooLarge):
        log.consumer("c", topic="t" * 1024, key=b"k" * 1024, tags=["g" * 500, "h" * 600])
    assert "c" not in log.consumers()


def test_a_filter_that_matches_nothing_moves_on(log: Log) -> None:
    """The position is the next seq to look at: it moves on, and is committed, without a match."""
    log.extend([b"a"] * 50, topic="other")
    with log.consumer("c", topic="rare") as consumer:
        assert consumer.poll() == []
        assert (consumer.position, consumer.committed) == (51, 51)
        log.append(b"!", topic="rare")
        log.extend([b"a"] * 5, topic="other")
        assert values(consumer.poll()) == [b"!"]
        assert consumer.poll() == []
        assert (consumer.position, consumer.committed) == (57, 51), "one event awaits its commit"
    with log.consumer("c") as consumer:
        assert values(consumer.poll()) == [b"!"]


def test_lag(log: Log) -> None:
    """Events, bytes and seconds that it is behind; under a filter, of those that match."""
    log.extend([b"a" * 10] * 4, topic="a")
    log.extend([b"b" * 1000] * 3, topic="b")
    with log.consumer("all") as everything, log.consumer("some", topic="a") as some:
        lag = some.lag()
        assert lag.events == 4
        assert 4 * 50 <= lag.bytes <= 4 * 80
        assert 0 < lag.seconds < 60
        assert everything.lag().events == 7
        assert everything.lag().bytes > 3000
        next(everything), next(some), next(some)
        assert (everything.lag().events, some.lag().events) == (6, 2)
        some.poll(), everything.poll()
        some.poll(), everything.poll()
        assert some.lag() == everything.lag() == penstock.Lag(0, 0, 0.0)
        log.append(b"b", topic="b")
        assert (everything.lag().events, some.lag().events) == (1, 0)
        assert some.lag().seconds == 0
        assert (everything.caught_up, some.caught_up) == (False, True)


def test_auto_commit_never_runs_ahead(log: Log) -> None:
    """It commits what was passed: never the event that the caller is still working on."""
    log.extend([b"%d" % i for i in range(6)])
    with pytest.raises(RuntimeError), log.consumer("c", auto_commit=0) as consumer:
        next(consumer), next(consumer)
        assert consumer.committed == 2
        consumer.poll(2)
        assert consumer.committed == 3
        raise RuntimeError
    with log.consumer("c", auto_commit=0) as consumer:
        assert consumer.position == 3, "the batch under work was not passed"
        consumer.poll(2)
        consumer.poll(1)
        assert consumer.committed == 5
    with log.consumer("c", auto_commit=1000) as consumer:
        assert consumer.position == 6, "a block that ends well has passed what it was handed"
        next(consumer)
        assert consumer.committed == 6
    with log.consumer("c") as consumer:
        assert consumer.position == 7


def test_an_exception_leaves_the_last_event_uncommitted(log: Log) -> None:
    """A block that ends with an exception has passed all but the event that it was at."""
    log.extend([b"a", b"b", b"c"])
    with pytest.raises(RuntimeError), log.consumer("c", auto_commit=1000) as consumer:
        next(consumer), next(consumer)
        raise RuntimeError
    assert log.consumers()["c"].committed == 2


def test_waiting_commits_and_says_that_it_lives(log: Log) -> None:
    """While it waits for more, what was passed is committed in time, and it is seen alive."""
    log.append(b"a")
    consumer = log.consumer("c", auto_commit=0.3)

    ends: list[BaseException] = []

    def iterate() -> None:
        try:
            for _ in consumer:
                pass
        except Closed as error:
            ends.append(error)

    waiting = threading.Thread(target=iterate)
    waiting.start()
    wait_for(lambda: log.consumers()["c"].committed == 2, "the commit of what was passed")
    seen = log.consumers()["c"].last_seen
    wait_for(lambda: log.consumers()["c"].last_seen > seen, "another heartbeat")
    consumer.close()
    waiting.join()
    assert len(ends) == 1


@pytest.mark.parametrize("seconds", [-1, "1", True, float("nan"), float("inf")])
def test_odd_auto_commit(log: Log, seconds: Any) -> None:
    """What is no number of seconds raises, and makes nothing."""
    with pytest.raises(Usage, match="auto_commit must be"):
        log.consumer("c", auto_commit=seconds)
    assert len(log.consumers()) == 0


NAMES = ["billing", "a b", "büro", "発注", "🛒", "a.b", "con", "-x", "a" * 200, "%s", "\u202eabc"]


@pytest.mark.parametrize("name", NAMES)
def test_names(log: Log, folder: Path, name: str) -> None:
    """Any name that can be a file's is fine, in any script."""
    log.append(b"a")
    with log.consumer(name) as consumer:
        assert consumer.name == name
        consumer.poll()
        consumer.commit()
    assert log.consumers().names() == [name] == os.listdir(folder)
    assert log.consumers()[name].committed == 2
    log.consumers().delete(name)
    assert os.listdir(folder) == []


ODD_NAMES: list[Any] = [
    *("", ".", "..", "../x", "/etc/passwd", "a/b", "a\0b", ".hidden", "a\nb", "a" * 201, "é" * 101),
    *(" ", "\x85", "a\u2028b", "\ud800", b"billing", None, 7, True, Path("x")),
]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names(log: Log, path: Path, name: Any) -> None:
    """No name leads out of the folder, and what is no name makes nothing."""
    before = sorted(path.parent.rglob("*"))
    for call in (log.consumer, log.consumers().delete):
        with pytest.raises(Usage, match="the name of a consumer must"):
            call(name)
    assert sorted(path.parent.rglob("*")) == before


def test_one_owner(log: Log) -> None:
    """A second opener is told that there is an owner, and when it was last seen."""
    log.append(b"a")
    with log.consumer("c") as consumer:
        consumer.poll()
        consumer.commit()
        with pytest.raises(Busy, match=r"has an owner, which is alive and was seen \d+\.\d s ago"):
            log.consumer("c")
        assert log.consumers()["c"].live
    assert not log.consumers()["c"].live
    log.consumer("c").close()


def test_standby_takes_over(log: Log) -> None:
    """A standby waits until the owner is done, and goes on where that one committed."""
    log.extend([b"a", b"b"])
    first = log.consumer("c")
    first.poll(1)
    first.commit()
    found: list[bytes] = []

    def stand_by() -> None:
        with log.consumer("c", standby=True) as second:
            found.extend(values(second.poll()))

    waiting = threading.Thread(target=stand_by)
    waiting.start()
    assert found == []
    first.close()
    waiting.join()
    assert found == [b"b"]


def test_closing_the_log_ends_a_standby(log: Log, path: Path) -> None:
    """Whoever waits for a consumer of a log that is closed elsewhere is told so."""
    other = penstock.open(path)
    with log.consumer("c"):
        errors: list[BaseException] = []

        def stand_by() -> None:
            try:
                other.consumer("c", standby=True)
            except Closed as error:
                errors.append(error)

        waiting = threading.Thread(target=stand_by)
        waiting.start()
        other.close()
        waiting.join()
        assert len(errors) == 1


def test_closing_the_log_while_a_consumer_opens(
    log: Log, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that loses its descriptors to another thread's close raises `Closed`."""
    other = penstock.open(path)
    make_folder = folders.make_folder

    def close_first(home: Directory, mode: int) -> Directory:
        other.close()
        return make_folder(home, mode)

    monkeypatch.setattr(folders, "make_folder", close_first)
    with pytest.raises(Closed):
        other.consumer("c")


def test_closing_a_consumer_from_another_thread(log: Log) -> None:
    """Whoever waits for events gets `Closed`."""
    consumer = log.consumer("c")
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            consumer.poll(1, timeout=None)
        except Closed as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    consumer.close()
    log.append(b"a")
    waiting.join()
    assert "consumer 'c' is closed" in str(errors[0])
    assert consumer.closed
    for call in (consumer.poll, consumer.commit, consumer.lag, lambda: next(consumer)):
        with pytest.raises(Closed):
            call()
    consumer.close()


def test_it_cannot_be_pickled_or_made_by_hand(log: Log) -> None:
    """A consumer belongs to its process, and comes from a log."""
    with log.consumer("c") as consumer, pytest.raises(WrongType, match=r"log\.consumer"):
        pickle.dumps(consumer)
    with pytest.raises(Usage, match=r"log\.consumer"):
        penstock.Consumer()


def test_consumers(log: Log) -> None:
    """Each is listed with its place, its lag, who is live and when it was last seen."""
    assert list(log.consumers()) == []
    assert repr(log.consumers()).endswith(": none>")
    log.extend([b"a", b"b", b"c"], topic="t")
    before = dt.datetime.now(dt.UTC)
    with log.consumer("one", topic="t", key=b"k") as one, log.consumer("two") as two:
        two.poll(2)
        two.commit(1)
        first, second = log.consumers()
        assert (first.name, first.topic, first.key, first.live) == ("one", "t", b"k", True)
        assert (second.committed, second.position, second.lag.events) == (2, 3, 2)
        assert abs((second.last_seen - before).total_seconds()) < 60
        assert abs((second.created - before).total_seconds()) < 60
        assert first.lag.events == 0
        with pytest.raises(Busy, match="alive"):
            log.consumers().delete("one")
        assert one.position == 1
    log.consumers().delete("one")
    assert log.consumers().names() == ["two"]
    for call in (log.consumers().delete, log.consumers().__getitem__):
        with pytest.raises(NotFound, match="it has 'two'"):
            call("one")


def test_a_gap(tmp_path: Path) -> None:
    """A consumer that a ring has overtaken is told, or passes over what is gone and counts it."""
    with penstock.create(tmp_path / "r", ring="32KiB") as ring:
        ring.append(b"first")
        ring.consumer("a").close()
        for _ in range(3000):
            ring.append(b"x" * 50)
        with ring.consumer("a") as consumer:
            with pytest.raises(Gap) as caught:
                consumer.poll()
            with pytest.raises(Gap):
                next(consumer)
            consumer.seek(caught.value.first_seq)
            assert len(consumer.poll(5)) == 5
        with ring.consumer("a", on_gap="skip") as consumer:
            event = next(consumer)
            assert event.seq == ring.first_seq
            assert consumer.skipped == event.seq - 1


def test_damage_costs_no_event_before_it(tmp_path: Path) -> None:
    """A poll that meets damage hands out what it has first; the next one raises."""
    path = tmp_path / "log"
    with penstock.open(path) as log:
        log.extend([b"good", b"good", b"rotten", b"good"])
        log.steward.roll()
    segment = min(path.glob("*.seg"))
    raw = segment.read_bytes()
    segment.write_bytes(raw.replace(b"rotten", b"rotteN"))
    with penstock.open(path) as log, log.consumer("c") as consumer:
        assert len(consumer.poll(100)) == 2
        with pytest.raises(Corrupt):
            consumer.poll(100)
        assert consumer.position == 3
    with penstock.open(path) as log, log.consumer("c", on_damage="skip") as consumer:
        assert len(consumer.poll(100)) == 3
        assert consumer.skipped == 1


def test_a_child_of_a_fork_does_not_own_it(log: Log) -> None:
    """In a child it is closed; the parent goes on, and keeps the lock when the child ends."""
    log.extend([b"a", b"b"])
    consumer = log.consumer("c")
    next(consumer)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            consumer.commit()
        except Closed as error:
            code = 0 if "belongs to the process that forked" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(Busy):
        log.consumer("c")
    consumer.commit()
    assert consumer.committed == 2
    consumer.close()


def test_a_reader_of_the_log_can_be_a_consumer(log: Log, path: Path) -> None:
    """A consumer writes no event: mode="r" is enough, where its file can be written."""
    log.extend([b"a", b"b"])
    with penstock.open(path, mode="r") as reading, reading.consumer("c") as consumer:
        assert len(consumer.poll()) == 2
        consumer.commit()
    assert log.consumers()["c"].committed == 3


def test_commit_takes_no_more_than_the_file(log: Log, folder: Path) -> None:
    """A hundred thousand commits leave one file of two pages."""
    log.append(b"a")
    with log.consumer("c") as consumer:
        next(consumer)
        for _ in range(100_000):
            consumer.commit()
    (file,) = folder.iterdir()
    assert file.stat().st_size == L.CONSUMER_BYTES == 8192


def test_durable_hands_out_what_is_on_disk(log: Log) -> None:
    """With durable=True an event is handed out once it survives power loss."""
    log.append(b"a")
    with log.consumer("c", durable=True) as consumer:
        assert consumer.poll() == []
        assert consumer.caught_up
        log.sync()
        assert not consumer.caught_up
        assert values(consumer.poll()) == [b"a"]


def test_lag_in_bytes(log: Log) -> None:
    """Lag in bytes is what the events to come take, to the frame, in whatever segment they are."""
    for n in range(900):
        log.append(b"x" * (n % 90))
    with log.consumer("all") as consumer, log.consumer("none", topic="") as likewise:
        for at in (log.first_seq, 700, 701, 899, 900, 901):
            consumer.seek(at)
            likewise.seek(at)
            exact = likewise.lag()  # reads each event
            assert consumer.lag().events == exact.events == 901 - at
            own = 200 * (1 + len(list(Path(log.path).glob("*.seg"))))  # for entries of its own
            assert exact.bytes <= consumer.lag().bytes <= exact.bytes + own


def test_a_log_that_is_deleted(log: Log, path: Path, folder: Path) -> None:
    """Nothing is made where a deleted log was, and no durable commit is promised there."""
    log.extend([b"a", b"b"])
    with log.consumer("c") as consumer:
        consumer.poll(1)
        consumer.commit(durable=True)
        shutil.rmtree(folder)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            folder.parent.rmdir()
            path.unlink()
        consumer.commit()
        with pytest.raises(Gone, match="file was deleted"):
            consumer.commit(durable=True)
        with pytest.raises(Gone):
            log.consumer("d")
    assert os.listdir(path.parent) == []


def test_only_a_commit_makes_a_seek_last(log: Log) -> None:
    """Looking elsewhere, and finding nothing there, passes over no event that was not committed."""
    log.extend([b"a", b"b", b"c"])
    with log.consumer("c", topic="") as consumer:
        consumer.poll(2)
        consumer.seek("end")
        assert consumer.poll(timeout=0.01) == []
        assert consumer.wait(0.01) is False
        assert consumer.committed == 1
    with log.consumer("c") as consumer:
        assert consumer.position == 1
        consumer.seek("end")
        consumer.commit()
        assert consumer.committed == 4
    with log.consumer("c", auto_commit=0) as consumer:
        consumer.seek(2)
        assert consumer.committed == 4
        assert values(consumer.poll()) == [b"b", b"c"]
        assert consumer.committed in (2, 4)
        assert consumer.poll() == []
        assert consumer.committed == 4


def test_two_threads_at_once(log: Log) -> None:
    """A second thread is refused while one waits, and loses that one nothing."""
    found: list[penstock.Event] = []
    with log.consumer("c", timeout=30) as consumer:
        waiting = threading.Thread(target=lambda: found.extend(consumer.poll(timeout=30)))
        waiting.start()
        wait_for(lambda: consumer._busy, "the thread to wait")
        for call in (
            consumer.poll,
            consumer.wait,
            lambda: next(consumer),
            lambda: consumer.take(1),
            lambda: consumer.seek(1),
        ):
            with pytest.raises(Usage, match="one thread at a time"):
                call()
        log.append(b"a")
        waiting.join()
        assert values(found) == [b"a"]
        log.append(b"b")
        assert next(consumer).value == b"b"
