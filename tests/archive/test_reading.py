"""Archived segments are read like any others, with the log or without it."""

from __future__ import annotations

import gc
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

import penstock
from penstock import Corrupt, Gap, Io, NoSuchLog, NotFound, Permission, Usage
from penstock.archive import alone, depots, history, location
from tests.archive import logs
from tests.archive.faulty_proxy import FaultyProxy

Way = Literal["rw", "r", "alone"]


class Read:
    """A log that was archived but for its tail, opened in one way; and what it must read to."""

    def __init__(self, log: penstock.Log[Any], events: list[Any], plain: penstock.Log[Any]) -> None:
        self.log = log
        self.events = events
        self.plain = plain  # the same, of files only


@pytest.fixture(params=["rw", "r", "alone"])
def read(
    request: pytest.FixtureRequest, path: Path, place: str | None, tmp_path: Path
) -> Iterator[Read]:
    """Each way to open it, in each kind of place."""
    events = logs.made(path)
    with penstock.open(path) as log:
        log.backup(tmp_path / "plain")
        log.steward.archive(place)
    way: Way = request.param
    if way == "alone":
        events = events[:-1]
    at = (place or path / "archive") if way == "alone" else path
    mode: Literal["rw", "r"] = "rw" if way == "rw" else "r"
    with penstock.open(at, mode=mode) as log, penstock.open(tmp_path / "plain", "r") as plain:
        yield Read(log, events, plain)


def seq_of(event: penstock.Event[Any] | None) -> int:
    """The seq of an event that must be there."""
    assert event is not None
    return event.seq


def test_all_ways_to_read(read: Read) -> None:
    """Forwards, backwards, by seq, by time, by filters and as a table: all as from files."""
    log, events, plain = read.log, read.events, read.plain
    seqs = [e[0] for e in events]
    last = seqs[-1]
    assert logs.contents(log) == events
    assert [e.seq for e in reversed(log)] == seqs[::-1]
    assert (log.first_seq, log.last_seq, len(log)) == (1, last, len(events))
    assert [e.seq for e in log.tail(7)] == seqs[-7:]
    for seq in (1, 2, seqs[70], seqs[150], seqs[-2], last):
        assert log[seq].value == plain[seq].value
    with pytest.raises(NotFound):
        log[last + 1]
    for start, stop in ((5, 9), (80, 170), (150, None), (1, last)):
        assert [e.seq for e in log.read(start, stop)] == [
            s for s in seqs if s >= start and (stop is None or s < stop)
        ]
    for query in (
        {"topic": "t1"},
        {"topic": "long"},
        {"topic": ""},
        {"key": b"key 3"},
        {"tags": ["a"]},
        {"since": 10**18, "until": 10**18 + 5},
        {"topic": "no such"},
    ):
        for reverse in (False, True):
            wanted = [e.seq for e in plain.read(**query, reverse=reverse) if e.seq <= last]
            assert [e.seq for e in log.read(**query, reverse=reverse)] == wanted, query
        assert log.scan(**query).to_arrow()["seq"].to_pylist() == sorted(
            e.seq for e in plain.read(**query) if e.seq <= last
        )
    for time_ns in (events[100][2], events[3][2], 10**18 + 3, 0):
        assert log.seq_at(penstock.times.Ns(time_ns)) == plain.seq_at(penstock.times.Ns(time_ns))
    assert seq_of(log.latest(b"key 3")) == seq_of(plain.latest(b"key 3"))
    assert log.topics() == {e[3] for e in events}
    assert log.scan().to_arrow()["value"].to_pylist() == [e[5] for e in events]
    report = log.verify()
    assert report.ok and report.events == len(events) and report.first_seq == 1
    assert log.stats().first_seq == 1 and log.stats().last_seq == last


def test_events_outlive_the_cache(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a cache for almost nothing, every event that was read keeps its bytes."""
    monkeypatch.setattr(history, "CACHE_BYTES", 100_000)
    monkeypatch.setattr(history, "MAP_BYTES", 100_000)
    kept = list(read.log)
    again = [read.log[e.seq] for e in kept[::-3]]
    assert [e.value for e in read.log.read(reverse=True)] == [e[5] for e in read.events][::-1]
    gc.collect()
    assert [e.value for e in kept] == [e[5] for e in read.events]
    assert [e.value for e in again] == [e.value for e in kept[::-3]]
    maps = [m for m in read.log._recent if m.blocks is not None]
    assert sum(m.loaded for m in maps) <= 100_000


def test_one_event_costs_one_block(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a segment is known, an event elsewhere in it decompresses one block."""
    with penstock.open(path, segment_size="4MiB") as log:
        for i in range(400):
            log.append(b"%d " % i * 1000)
        log.steward.roll()
        log.steward.archive()
        assert log[1].value.startswith(b"0 ") and log[390].value.startswith(b"389 ")
        loads: list[int] = []
        load = history.Blocks.load

        def watched(self: history.Blocks, number: int) -> bytes:
            loads.append(number)
            return load(self, number)

        monkeypatch.setattr(history.Blocks, "load", watched)
        assert log[200].value.startswith(b"199 ")
        assert len(loads) == 1
        assert log[201].value.startswith(b"200 ")
        assert len(loads) <= 2


def test_a_consumer_goes_through_the_archive(path: Path, place: str | None) -> None:
    """A consumer begins in the archive, and goes on in the log's files."""
    events = logs.made(path)
    with penstock.open(path) as log:
        log.steward.archive(place)
        with log.consumer("slow", start=1) as consumer:
            found = [e.seq for e in consumer.poll(10_000, timeout=0)]
            consumer.commit()
            assert found == [e[0] for e in events]
        log.append(b"more")
        with log.consumer("slow") as consumer:
            assert [e.value for e in consumer.poll(10, timeout=0)] == [b"more"]
            assert consumer.lag().events == 0


def test_another_handle_learns(path: Path, place: str | None) -> None:
    """A handle that was open before reads on in the archive, and so does a new reader of it."""
    events = logs.made(path)
    with penstock.open(path) as other, penstock.open(path, mode="r") as third:
        assert other[100].value == events[99][5]
        began = third.read().take(3)
        with penstock.open(path) as log:
            log.steward.archive(place)
        for one in (other, third):
            assert logs.contents(one) == events
            assert one[2].value == events[1][5]
        assert [e.seq for e in began] == [1, 2, 3]


def test_retention_hides_what_it_let_go(path: Path) -> None:
    """What a trim deleted is gone, also if it was archived before."""
    events = logs.made(path)
    with penstock.open(path) as log:
        log.steward.archive()
        middle = events[len(events) // 2][0]
        assert log.steward.trim(before=middle) == middle == log.first_seq
        assert [e.seq for e in log] == [e[0] for e in events if e[0] >= middle]
        with pytest.raises(Gap):
            list(log.read(1))
        with pytest.raises(NotFound):
            log[1]


def test_compacted_segments(path: Path) -> None:
    """An archive of compacted segments has the log's holes; older generations do not count."""
    with penstock.open(path, segment_size="64KiB") as log:
        for i in range(400):
            log.append(b"%d" % i * 100, key=b"k%d" % (i % 11))
            if i % 50 == 49:
                log.steward.roll()
        log.steward.archive(keep_local=100)
        log.steward.compact()
        kept = [(e.seq, e.value) for e in log]
        assert log.steward.archive().moved >= 1
        assert [(e.seq, e.value) for e in log] == kept and len(log) == len(kept)
        assert [e.seq for e in reversed(log)] == [seq for seq, _ in kept][::-1]
        assert seq_of(log.latest(b"k3")) in dict(kept)
    with penstock.open(path / "archive", mode="r") as log:
        assert [(e.seq, e.value) for e in log] == [one for one in kept if one[0] in log]
        assert len(log) == len(list(log)) and log.verify().ok
    penstock.restore(path / "archive", path.with_name("again"))
    with penstock.open(path.with_name("again")) as log:
        assert [(e.seq, e.value) for e in log] == kept


@pytest.mark.parametrize("skip", [False, True])
def test_damage(path: Path, skip: bool) -> None:
    """A damaged block is an error that names its file, or its events are passed over."""
    with penstock.open(path, segment_size="4MiB") as log:
        for i in range(400):
            log.append(b"%d " % i * 1000)
        log.steward.roll()
        log.append(b"last")
        log.steward.archive()
    depot = depots.LocalDepot(str(path / "archive"))
    (entry,) = depot.entries()
    file = Path(depot.where, entry.name)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)
    for at, last in ((path, [401]), (path / "archive", [])):
        with penstock.open(at, mode="r") as log:
            if not skip:
                with pytest.raises(Corrupt) as caught:
                    list(log)
                assert caught.value.path == str(file)
                with pytest.raises(Corrupt):
                    list(log.read(reverse=True))
            else:
                found = [e.seq for e in log.read(on_damage="skip")]
                assert 300 < len(found) < 400 + len(last) and found[0] == 1
                assert found[-1] == (last or [400])[0]
                back = [e.seq for e in log.read(on_damage="skip", reverse=True)]
                assert back[::-1] == found
                assert all(log[seq].seq == seq for seq in found[::37])
            assert log[1].value.startswith(b"0 ")
            report = log.verify()
            assert not report.ok and report.problems[0].path == str(file)


def test_a_segment_is_missing(path: Path) -> None:
    """If an archived segment was taken away, that is damage, and the rest can be read."""
    events = logs.made(path)
    with penstock.open(path) as log:
        log.steward.archive()
        second = depots.LocalDepot(str(path / "archive")).entries()[1]
        Path(path / "archive" / second.name).unlink()
    with penstock.open(path) as log:
        with pytest.raises(Corrupt, match="missing"):
            list(log)
        assert log[1].value == events[0][5] and log[len(events)].value == b"active"
        assert not log.verify().ok
    with pytest.raises(Corrupt, match="missing"):
        penstock.restore(path / "archive", path.with_name("again"))
    assert not path.with_name("again").exists()
    assert penstock.restore(path / "archive", path.with_name("again"), until=second.base_seq) > 0


def test_without_the_server(path: Path, s3: str, proxy: FaultyProxy) -> None:
    """If the object store is away, appends and what is in files go on; the rest says why not."""
    events = logs.made(path)
    with penstock.open(path) as log:
        log.steward.archive(s3)
    proxy.stop()
    with penstock.open(path) as log:
        last = log.append(b"goes on", durable=True)
        assert log[last].value == b"goes on"
        assert [e.value for e in log.tail(2)] == [b"active", b"goes on"]
        log.steward.roll()
        assert log.append(b"further") == last + 1
        with pytest.raises(Io):
            log[1]
        for _ in range(2):
            with pytest.raises(Io):
                list(log)
            with pytest.raises(Io):
                log.read(1).take(1)
        assert log.stats().last_seq == last + 1
        assert len(events) == last - 1


def test_an_archive_alone_is_only_read(path: Path, place: str | None) -> None:
    """Everything that would change an archive is refused, with what to do instead."""
    logs.made(path)
    with penstock.open(path) as log:
        log.steward.archive(place)
    at = place or path / "archive"
    with pytest.raises(Usage, match="mode='r'"):
        penstock.open(at)
    with penstock.open(at, mode="r") as log:
        assert log.settings.archive == ""
        calls: list[Any] = [
            lambda: log.consumer("x"),
            lambda: log.backup(path.with_name("b")),
            log.repair,
            lambda: log.steward.archive(dry_run=True),
            lambda: log.steward.retain(dry_run=True),
            lambda: log.steward.why(1),
            lambda: log.steward.compact(dry_run=True),
            lambda: log.steward.erase(b"k", dry_run=True),
            lambda: log.steward.trim(before=2, dry_run=True),
        ]
        for call in calls:
            with pytest.raises(Usage):
                call()
        with pytest.raises(Permission):
            log.append(b"x")
        assert log.wait(timeout=0) is False
        if place is None or not place.startswith("memory"):
            again = pickle.loads(pickle.dumps(log))
            assert len(again) == len(log)
            again.close()
    event = log_event(at)
    assert event.value is not None


def log_event(at: Any) -> Any:
    """An event of a log that is closed."""
    with penstock.open(at, mode="r") as log:
        return log[1]


def test_it_sees_what_is_archived_later(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive that is open sees segments that are archived meanwhile."""
    monkeypatch.setattr(alone, "REFRESH_SECONDS", 0.0)
    events = logs.made(path, 2)
    with penstock.open(path) as log:
        log.steward.archive()
        with penstock.open(path / "archive", mode="r") as archive:
            reader = archive.follow(1)
            assert [e.seq for e in reader.take(len(events) - 1)] == [e[0] for e in events[:-1]]
            log.append(b"later")
            log.steward.roll()
            log.steward.archive()
            assert [next(reader).value, next(reader).value] == [b"active", b"later"]
            assert len(archive) == len(events) + 1


def test_nothing_there(tmp_path: Path, s3: str) -> None:
    """A place without an archive is no log."""
    for at in (s3, "memory:///nothing-here"):
        with pytest.raises(NoSuchLog):
            penstock.open(at, mode="r")
    with pytest.raises(Usage):
        penstock.open("ftp://host/x", mode="r")


def test_threads_share_a_log(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that read one archived log at once all read the same."""
    monkeypatch.setattr(history, "CACHE_BYTES", 200_000)
    events = logs.made(path)
    with penstock.open(path) as log:
        log.steward.archive()
        found: list[list[Any]] = []
        threads = [
            threading.Thread(target=lambda: found.append(logs.contents(log))) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [events] * 4


def test_places_as_they_are_given() -> None:
    """A URL is stored without a slash at its end; a directory as an absolute path."""
    assert location.checked("s3://bucket/a/b/", "to") == "s3://bucket/a/b"
    assert location.checked("file:///data/x", "to") == "/data/x"
