"""Looking things up: from the end, slices, by time, and logs by their paths."""

from __future__ import annotations

import datetime as dt
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import _core, times

KINDS: dict[str, dict[str, Any]] = {
    "log": {"segment_size": "64KiB"},
    "ring": {"ring": "64KiB"},
}
HOUR = 3_600_000_000_000


@pytest.fixture(params=KINDS)
def some(request: pytest.FixtureRequest, path: Path) -> Iterator[penstock.Log[Any]]:
    """A log, or a ring, with five events."""
    with penstock.create(path, **KINDS[request.param]) as log:
        log.extend([b"a", b"b", b"c", b"d", b"e"])
        yield log


def seqs(events: Any) -> list[int]:
    return [event.seq for event in events]


def test_counting_from_the_end(some: penstock.Log[Any]) -> None:
    """log[-1] is the newest event, log[-n] the n-th newest; below the oldest there is none."""
    assert [some[n].seq for n in (-1, -2, -5)] == [5, 4, 1]
    assert some[np.int64(-1)].value == b"e"
    for n in (-6, -(2**63), -(2**2000)):
        with pytest.raises(penstock.NotFound, match="it has 5 events"):
            some[n]
    some.append(b"f")
    assert some[-1].value == b"f"


def test_an_empty_log_has_no_last_event(log: penstock.Log[Any]) -> None:
    """log[-1] of an empty log is NotFound and says that it is empty; slices and tail are empty."""
    with pytest.raises(penstock.NotFound, match="it is empty"):
        log[-1]
    assert log[:] == log[-3:] == log.tail(5) == []


@pytest.mark.parametrize(
    ("part", "found"),
    [
        (slice(2, 4), [2, 3]),
        (slice(None), [1, 2, 3, 4, 5]),
        (slice(0, 3), [1, 2]),
        (slice(4, None), [4, 5]),
        (slice(None, 3), [1, 2]),
        (slice(-2, None), [4, 5]),
        (slice(None, -2), [1, 2, 3]),
        (slice(-100, 100), [1, 2, 3, 4, 5]),
        (slice(4, 2), []),
        (slice(2**80, None), []),
        (slice(None, None, 1), [1, 2, 3, 4, 5]),
        (slice(None, None, -1), [5, 4, 3, 2, 1]),
        (slice(4, 2, -1), [4, 3]),
        (slice(-1, -3, -1), [5, 4]),
        (slice(np.uint64(2), np.int8(4)), [2, 3]),
    ],
    ids=str,
)
def test_slices(some: penstock.Log[Any], part: slice, found: list[int]) -> None:
    """log[a:b] is a list of the events with seqs from a to before b; negative ones count from the
    end; a step of -1 turns it around."""
    assert seqs(some[part]) == found


def test_slices_are_those_of_a_list(some: penstock.Log[Any]) -> None:
    """Every slice is that of a list in which the event with seq n is item n."""
    model = [None, *some]
    bounds = [None, *range(-5, 8)]
    for start in bounds:
        for stop in bounds:
            if start == 0 or stop == 0:
                continue  # there is no event 0
            expected = [event for event in model[slice(start, stop)] if event is not None]
            assert some[start:stop] == expected, (start, stop)


@pytest.mark.parametrize("part", [slice(1, 5, 2), slice(5, 1, -2), slice(None, None, 0)], ids=str)
def test_other_steps_are_refused(some: penstock.Log[Any], part: slice) -> None:
    """A step other than 1 and -1 is Usage."""
    with pytest.raises(penstock.Usage, match="step of a slice of a log must be 1 or -1"):
        some[part]


@pytest.mark.parametrize("wrong", ["x", 1.5, True, None, b"1", np.array([1, 2]), [1], (1, 2)])
def test_what_is_no_place_is_refused(some: penstock.Log[Any], wrong: Any) -> None:
    """log[x] and log[x:] of anything that is no whole number are WrongType."""
    with pytest.raises(penstock.WrongType):
        some[wrong]
    if wrong is not None:
        with pytest.raises(penstock.WrongType, match="start of a slice"):
            some[wrong:]


def test_slices_of_what_is_left(path: Path) -> None:
    """A slice of a ring gives those events that are still there, as a slice of a list would."""
    with penstock.create(path, ring="32KiB") as ring:
        for n in range(3000):
            ring.append(b"%d" % n)
        assert ring.first_seq > 10
        assert ring[1:10] == []
        first = ring.first_seq
        assert seqs(ring[1 : first + 2]) == [first, first + 1]
        assert ring[-1].value == b"2999"


def test_tail(some: penstock.Log[Any]) -> None:
    """tail gives the last events, oldest first, and with a filter the last that match."""
    some.append(b"x", topic="t", key=b"k", tags=["y"])
    some.append(b"z")
    assert seqs(some.tail(2)) == [6, 7]
    assert seqs(some.tail(100)) == [1, 2, 3, 4, 5, 6, 7]
    assert seqs(some.tail()) == [1, 2, 3, 4, 5, 6, 7]
    assert some.tail(0) == []
    for asked in ({"topic": "t"}, {"key": b"k"}, {"tags": ["y"]}):
        assert seqs(some.tail(5, **asked)) == [6]
    with pytest.raises(penstock.Usage):
        some.tail(-1)


@pytest.mark.parametrize("limit", [0, 1, 3, 5, 100, 2**70])
def test_a_limit(some: penstock.Log[Any], limit: int) -> None:
    """read and follow end after ``limit`` events, of those that match; None is no limit."""
    expected = list(range(1, 6))
    assert seqs(some.read(limit=limit)) == expected[:limit]
    assert seqs(some.read(limit=limit).take(100)) == expected[:limit]
    assert seqs(some.read(reverse=True, limit=limit)) == expected[::-1][:limit]
    assert seqs(some.follow("start", timeout=0, limit=limit)) == expected[:limit]
    assert seqs(some.read(limit=None)) == expected
    for n in range(20):
        some.append(b"x", topic="even" if n % 2 == 0 else "odd")
    assert seqs(some.read(topic="odd", limit=limit)) == list(range(7, 27, 2))[:limit]
    if limit <= 25:  # it waits for nothing more
        assert len(list(some.follow("start", limit=limit))) == limit
    for wrong in (-1, 1.5, "1", True):
        with pytest.raises(penstock.Usage, match="limit must be"):
            some.read(limit=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_the_seq_at_a_time(path: Path, kind: str) -> None:
    """seq_at is the first seq of that time or later, of logs whose times go back as well."""
    with penstock.create(path, **KINDS[kind]) as log:
        assert log.seq_at(0) == 1
        given = [10, 20, 20, 50, 30, 60]
        log.extend([penstock.Entry(b"x", time=ns) for ns in given])
        for asked in range(0, 70):
            later = [n + 1 for n, ns in enumerate(given) if ns >= asked]
            assert log.seq_at(asked) == (later[0] if later else 7), asked
        assert log.seq_at("now") == 7
        assert seqs(log.read(log.seq_at(20))) == [2, 3, 4, 5, 6]


def test_the_seq_at_a_time_over_segments(log: penstock.Log[Any]) -> None:
    """Over many segments seq_at finds every event, and reads none of the segments before it."""
    for n in range(0, 600, 3):
        log.extend([penstock.Entry(b"x" * 1000, time=n + i) for i in range(3)])
    assert log.stats().segments > 5
    assert [log.seq_at(n) for n in range(600)] == list(range(1, 601))
    for name in sorted(Path(log.path).glob("*.seg"))[:2]:
        with name.open("r+b") as file:  # who reads it would raise Corrupt
            file.seek(30_000)
            file.write(b"\xff" * 8000)
    with penstock.open(log.path, "r") as fresh:
        assert fresh.seq_at(500) == 501


def test_following_since(some: penstock.Log[Any]) -> None:
    """follow(since=) gives what is of that time or later, there or yet to come."""
    some.append(b"old", time=5)
    some.append(b"new", time="+1h")
    follower = some.follow("start", since="+30m", timeout=0)
    assert [event.value for event in follower] == [b"new"]
    some.append(b"old", time=5)
    some.append(b"newer", time="+2h")
    assert [event.value for event in follower] == [b"newer"]


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("now", 0),
        ("-1h", -HOUR),
        ("-30m", -HOUR // 2),
        ("-2d", -48 * HOUR),
        ("-1w", -168 * HOUR),
        ("+90s", HOUR // 40),
        ("-1d12h", -36 * HOUR),
        ("-1.5h", -HOUR * 3 // 2),
        ("-250ms", -250_000_000),
        ("-3us", -3000),
        ("+7ns", 7),
        (dt.timedelta(hours=-1), -HOUR),
        (dt.timedelta(0), 0),
        (dt.timedelta(days=-1, hours=12, microseconds=1), -12 * HOUR + 1000),
    ],
    ids=str,
)
def test_times_that_count_from_now(monkeypatch: pytest.MonkeyPatch, text: Any, ns: int) -> None:
    """Text with a sign, "now" and a timedelta count from now, to the nanosecond."""
    monkeypatch.setattr(times, "now_ns", lambda: 1_700_000_000_000_000_001)
    assert times.to_ns(text) == 1_700_000_000_000_000_001 + ns


@pytest.mark.parametrize(
    "wrong",
    ["1h", "-h", "-1", "-1y", "- 1h", "-1h ", "now-1h", "-1e3s", "-٣h", "-" + "9" * 200 + "h"],
)
def test_what_only_looks_like_one(wrong: str) -> None:
    """Text that is nearly a time is Usage, and says what one looks like."""
    with pytest.raises(penstock.Usage, match=r"such as -1h|must lie within"):
        times.to_ns(wrong, "since")


def test_a_timedelta_above_zero_is_refused(some: penstock.Log[Any]) -> None:
    """since=timedelta(hours=1) means an hour ago to some and an hour ahead to others: refused."""
    with pytest.raises(penstock.Usage, match=r"-timedelta"):
        some.read(since=dt.timedelta(hours=1))
    assert seqs(some.read(since=dt.timedelta(hours=-1))) == [1, 2, 3, 4, 5]
    assert seqs(some.read(since="-1h", until="+1h")) == [1, 2, 3, 4, 5]
    assert seqs(some.read(until="-1h")) == []
    with pytest.raises(penstock.Usage, match="must lie within"):
        some.read(since="-99999w")


def test_one_header(some: penstock.Log[Any]) -> None:
    """event.header gives the last value of a name, None for a null, else the default."""
    some.append(b"x", headers=[("a", b"1"), ("b", None), ("a", b"2")])
    event = some[-1]
    assert event.header("a") == b"2"
    assert event.header("b", b"?") is None
    assert event.header("c") is None
    assert event.header("c", b"?") == b"?"
    wrong: Any
    for wrong in (None, 1, b"a"):
        with pytest.raises(penstock.WrongType, match="name of a header"):
            event.header(wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_log_says_of_itself(path: Path, kind: str) -> None:
    """codec, mode, uuid and kind say what the log, and this handle, are."""
    with penstock.create(path, codec="json", **KINDS[kind]) as log:
        assert (log.codec, log.mode) == ("json", "rw")
        assert log.kind == ("ring" if kind == "ring" else "segments")
        assert log.uuid == log.stats().uuid and len(log.uuid) == 32
        with penstock.open(path, "r") as reading:
            assert (reading.codec, reading.mode, reading.uuid) == ("json", "r", log.uuid)
    for name in ("codec", "uuid"):
        with pytest.raises(penstock.Closed):
            getattr(log, name)
    assert (log.mode, log.kind) == ("rw", "ring" if kind == "ring" else "segments")


@pytest.mark.parametrize("kind", KINDS)
def test_exists(tmp_path: Path, kind: str) -> None:
    """exists is true of a log and a ring, not of anything else that may be there."""
    path = tmp_path / "log"
    assert not penstock.exists(path)
    penstock.create(path, **KINDS[kind]).close()
    assert penstock.exists(path) and penstock.exists(str(path))
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_bytes(b"hello")
    (tmp_path / "nowhere").symlink_to("nothing")
    (tmp_path / "link").symlink_to("log")
    found = {name: penstock.exists(tmp_path / name) for name in ("empty", "file", "nowhere")}
    assert found == {"empty": False, "file": False, "nowhere": False}
    assert penstock.exists(tmp_path / "link")


def test_find(tmp_path: Path) -> None:
    """find gives the paths of all logs and rings below a directory, sorted, and looks into none."""
    for name in ("a", "b/c", "b/d/e"):
        penstock.create(tmp_path / name).close()
    penstock.create(tmp_path / "b/r.ring", ring="64KiB").close()
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "loop").symlink_to(tmp_path)
    found = [os.path.relpath(path, tmp_path) for path in penstock.find(tmp_path)]
    assert found == ["a", "b/c", "b/d/e", "b/r.ring"]
    assert penstock.find(tmp_path / "a") == [str(tmp_path / "a")]
    (tmp_path / "none").mkdir()
    assert penstock.find(tmp_path / "none") == []
    with pytest.raises(penstock.NoSuchLog):
        penstock.find(tmp_path / "missing")
    with pytest.raises(penstock.Usage, match="must be a directory"):
        penstock.find(tmp_path / "file")


def make_used(path: Path, kind: str) -> None:
    """A log with several segments, a reader that came by, and what recovery set aside."""
    with penstock.create(path, **KINDS[kind]) as log:
        for _ in range(200):
            log.append(b"x" * 1000)
        with penstock.open(path, "r") as reading:
            list(reading)


@pytest.mark.parametrize("kind", KINDS)
def test_delete(tmp_path: Path, kind: str) -> None:
    """delete removes the log and all that belongs to it, and nothing beside it."""
    path = tmp_path / "log"
    make_used(path, kind)
    beside = tmp_path / ("log.d" if kind == "ring" else "log") / "consumers"
    beside.mkdir(parents=True)
    (beside / "mail").write_bytes(b"PSKCONSM" + bytes(4088))
    (tmp_path / "neighbour").write_bytes(b"x")
    penstock.delete(path)
    assert os.listdir(tmp_path) == ["neighbour"]
    with pytest.raises(penstock.NoSuchLog, match="there is no log here"):
        penstock.delete(path)
    penstock.create(path, **KINDS[kind]).close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["rw", "r"])
def test_a_log_in_use_is_not_deleted(tmp_path: Path, kind: str, mode: Any) -> None:
    """delete is Busy while a handle has the log open, and leaves it as it is."""
    path = tmp_path / "log"
    make_used(path, kind)
    with penstock.open(path) as writing, penstock.open(path, mode) as log:
        if mode == "r":
            assert writing.last_seq == log.last_seq
        with pytest.raises(penstock.Busy, match="close it everywhere first"):
            penstock.delete(path)
        log.read().take(1)
        assert len(log) and penstock.verify(path).ok
    penstock.delete(path)


@pytest.mark.parametrize("where", ["", "consumers"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_ours_is_not_deleted(tmp_path: Path, kind: str, where: str) -> None:
    """If anything else is in the log's directory, or a ring's own, nothing at all is deleted."""
    path = tmp_path / "log"
    make_used(path, kind)
    place = (tmp_path / "log.d" if kind == "ring" else path) / where
    place.mkdir(exist_ok=True, parents=True)
    (place / "notes.txt").write_bytes(b"mine")
    with pytest.raises(penstock.Usage, match="is not part of the log"):
        penstock.delete(path)
    assert (place / "notes.txt").read_bytes() == b"mine"
    assert penstock.verify(path).ok
    (place / "notes.txt").unlink()
    penstock.delete(path)
    assert not list(tmp_path.iterdir())


def test_foreign_segments_are_not_deleted(tmp_path: Path) -> None:
    """A segment of another log, put among those of this one, keeps it from being deleted."""
    make_used(tmp_path / "log", "log")
    penstock.create(tmp_path / "other").close()
    segment = next((tmp_path / "other").glob("*.seg"))
    foreign = tmp_path / "log" / f"{10**9:020}.seg"
    segment.rename(foreign)
    with pytest.raises(penstock.Usage, match="is not part of the log"):
        penstock.delete(tmp_path / "log")
    assert foreign.exists() and len(list((tmp_path / "log").glob("*.seg"))) > 2


def test_what_is_no_log_is_not_deleted(tmp_path: Path) -> None:
    """A file, an empty directory, a full one and a link are refused and left alone."""
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "dir").mkdir()
    penstock.create(tmp_path / "log").close()
    (tmp_path / "link").symlink_to("log")
    for name in ("file", "dir"):
        with pytest.raises(penstock.NoSuchLog, match="this is not a log"):
            penstock.delete(tmp_path / name)
    with pytest.raises(penstock.Usage, match="is a link to"):
        penstock.delete(tmp_path / "link")
    assert sorted(os.listdir(tmp_path)) == ["dir", "file", "link", "log"]
    assert penstock.verify(tmp_path / "log").ok


def test_a_path_that_is_taken_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If another log takes the path just before the deletion, that one stays as it is."""
    path = tmp_path / "log"
    make_used(path, "log")
    original = _core.fail_point

    def swap(name: str) -> None:
        if name == "delete.locked":
            path.rename(tmp_path / "moved")
            penstock.create(path).close()
        original(name)

    monkeypatch.setattr(_core, "fail_point", swap)
    with pytest.raises(penstock.Gone, match="was replaced"):
        penstock.delete(path)
    assert penstock.verify(path).ok and penstock.verify(tmp_path / "moved").ok
    assert sorted(os.listdir(tmp_path)) == ["log", "moved"]


def test_an_opener_that_waits_for_a_deletion(tmp_path: Path) -> None:
    """Who opens the log while it is being deleted gets a new one, or none, never half of one."""
    path = tmp_path / "log"
    for _ in range(5):
        make_used(path, "log")
        results: list[int | Exception] = []

        def reopen(results: list[int | Exception] = results) -> None:
            try:
                with penstock.open(path, create=False) as log:
                    results.append(len(log))
            except penstock.PenstockError as error:
                results.append(error)

        opening = threading.Thread(target=reopen)
        opening.start()
        with suppress(penstock.Busy):
            penstock.delete(path)
        opening.join()
        (result,) = results
        if penstock.exists(path):
            assert result == 200
            penstock.delete(path)
        else:
            assert result == 200 or isinstance(result, penstock.NoSuchLog | penstock.Gone)
