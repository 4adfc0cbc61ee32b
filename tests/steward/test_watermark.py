"""The first seq that a log stores: what is below it is gone for every reader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Gap, Log, NotFound
from penstock.reader import Reader
from penstock.steward import retention

EVENTS = 60
FIRST = 23  # in the middle of a segment


def bases(path: Path) -> list[int]:
    """The first seqs of the segment files."""
    return sorted(int(file.stem) for file in path.glob("*.seg"))


def raise_to(log: Log, seq: int) -> None:
    """Store a first seq, as retention and trims do."""
    log._change_settings(lambda now: now.changed(first_seq=max(now.first_seq, seq)))


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log of many segments, whose first seq is in the middle of one; no file is deleted."""
    path = tmp_path / "log"
    monkeypatch.setattr(retention, "keep_up", lambda *_: False)  # closing would delete them
    with penstock.open(path, segment_size=64 << 10) as log:
        for i in range(EVENTS):
            log.append(bytes(9000), topic=f"t{i + 1}", key=b"%d" % i)
        raise_to(log, FIRST)
    assert len(bases(path)) > 8
    assert FIRST not in bases(path)
    return path


@pytest.fixture(params=["rw", "r", "alone", "beside"])
def log(path: Path, request: pytest.FixtureRequest) -> Log:
    """The log, opened for writing, for reading, without control, and beside a writer."""
    if request.param == "alone":
        (path / "control").unlink()
    others = [penstock.open(path)] if request.param == "beside" else []
    log = penstock.open(path, mode="rw" if request.param == "rw" else "r")
    request.addfinalizer(log.close)
    for other in others:
        request.addfinalizer(other.close)
    return log


def test_every_reader_begins_there(log: Log) -> None:
    """No reader returns an event below the first seq; all others come once."""
    left = list(range(FIRST, EVENTS + 1))
    assert log.first_seq == FIRST
    assert len(log) == len(left)
    assert [e.seq for e in log] == left
    assert [e.seq for e in reversed(log)] == left[::-1]
    assert [e.seq for e in log.follow("start", timeout=0)] == left
    assert log.scan(columns=["seq"]).to_arrow()["seq"].to_pylist() == left
    assert log.topics() == {f"t{i}" for i in left}
    assert {e.seq for e in log.latest().values()} == set(left)
    assert log.latest(b"0") is None
    newest = log.latest(b"%d" % (FIRST - 1))
    assert newest is not None and newest.seq == FIRST
    assert [e.seq for e in log.read(topic=["t3", f"t{FIRST}"])] == [FIRST]
    assert [e.seq for e in log.read(key=b"%d" % (FIRST - 1))] == [FIRST]
    assert [e.seq for e in log.read(since="1970-01-02")] == left
    assert [e.seq for e in log.tail(100)] == left
    assert log.seq_at("1970-01-02") == FIRST
    assert log.stats().first_seq == FIRST
    assert log[FIRST].seq == FIRST
    assert log[: FIRST + 2] == [log[FIRST], log[FIRST + 1]]
    assert (FIRST in log, FIRST - 1 in log, 1 in log) == (True, False, False)
    for seq in (1, FIRST - 1):
        with pytest.raises(NotFound, match=f"seq {FIRST} to {EVENTS}"):
            log[seq]
    assert [e.seq for e in penstock.merge(log, start="start")] == left


@pytest.mark.parametrize("start", [1, 8, FIRST - 1])
def test_asking_for_less_is_a_gap(log: Log, start: int) -> None:
    """A read from below raises `Gap` with the first seq; with on_gap="skip" it counts them."""
    reads: list[Callable[[Any], Reader[Any]]] = [
        lambda how: log.read(start, on_gap=how),
        lambda how: log.follow(start, on_gap=how, timeout=0),
        lambda how: log.read(start, reverse=True, on_gap=how),
    ]
    for read in reads:
        reader = read("raise")
        with pytest.raises(Gap) as caught:
            list(reader)
        assert caught.value.first_seq == FIRST
        reader = read("skip")
        assert sorted(e.seq for e in reader) == list(range(FIRST, EVENTS + 1))
        assert reader.skipped == FIRST - start
    with pytest.raises(Gap):
        log.scan(start).to_arrow()
    assert log.scan(start, on_gap="skip").to_arrow().num_rows == EVENTS + 1 - FIRST


def test_a_reader_on_its_way_gets_the_gap(tmp_path: Path) -> None:
    """A reader finishes the segment that it has, then gets `Gap`; skipping, it counts exactly."""
    with penstock.open(tmp_path / "log", segment_size=64 << 10) as log:
        for _ in range(EVENTS):
            log.append(bytes(9000))
        second = bases(tmp_path / "log")[1]
        strict, skipping = log.read(), log.read(on_gap="skip")
        back = log.read(reverse=True)
        assert (next(strict).seq, next(skipping).seq, next(back).seq) == (1, 1, EVENTS)
        raise_to(log, FIRST)
        seen = []
        with pytest.raises(Gap) as caught:
            for event in strict:
                seen.append(event.seq)
        assert caught.value.first_seq == FIRST
        assert seen == list(range(2, second))
        assert [e.seq for e in skipping] == [*range(2, second), *range(FIRST, EVENTS + 1)]
        assert skipping.skipped == FIRST - second
        assert [e.seq for e in back] == list(range(EVENTS - 1, FIRST - 1, -1))


def test_everything_can_be_gone(path: Path) -> None:
    """A log whose first seq is the next one is empty, and goes on with that seq."""
    with penstock.open(path) as log:
        raise_to(log, EVENTS + 1)
        assert (log.first_seq, log.last_seq, len(log)) == (EVENTS + 1, EVENTS, 0)
        assert (list(log), list(reversed(log)), list(log.read("start"))) == ([], [], [])
        follower = log.follow("start", timeout=0)
        assert list(follower) == []
        assert log.append(b"on") == EVENTS + 1
        assert [e.seq for e in log] == [EVENTS + 1]
        assert next(follower).seq == EVENTS + 1
    with penstock.open(path) as log:
        assert log.first_seq == EVENTS + 1


def test_files_below_it_are_not_read(path: Path) -> None:
    """Files below it may be missing or damaged in any order: nobody reads them, verify says so."""
    below = [base for base in bases(path) if base < FIRST][:-1]
    assert len(below) > 2
    (path / f"{below[1]:020d}.seg").unlink()
    damaged = path / f"{below[2]:020d}.seg"
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    for mode in ("r", "rw"):
        with penstock.open(path, mode=mode) as log:
            assert [e.seq for e in log] == list(range(FIRST, EVENTS + 1))
            assert [e.seq for e in reversed(log)] == list(range(EVENTS, FIRST - 1, -1))
            report = log.verify()
            assert report.ok
            assert report.first_seq == FIRST
            assert len(report.problems) == len(below) - 1
            assert all("the log begins with seq 23" in p.message for p in report.problems)
            log.backup(path.parent / f"copy-{mode}")
        with penstock.open(path.parent / f"copy-{mode}") as copy:
            assert [e.seq for e in copy] == list(range(FIRST, EVENTS + 1))
            assert not copy.verify().problems
    assert not penstock.repair(path, to=path.parent / "repaired").steps
    with penstock.open(path.parent / "repaired") as repaired:
        assert [e.seq for e in repaired] == list(range(FIRST, EVENTS + 1))


def test_changes_of_settings_keep_it(path: Path) -> None:
    """Two that change settings at once lose nothing of each other, and it survives rolls."""
    with penstock.open(path) as log, penstock.open(path) as other:

        def meanwhile(now: penstock.Settings) -> penstock.Settings:
            if now.ttl == 0:
                other.configure(ttl=1000)
            return now.changed(first_seq=FIRST + 1)

        log._change_settings(meanwhile)
        assert (log.settings.ttl, log.first_seq, other.first_seq) == (1000, FIRST + 1, FIRST + 1)
        log.steward.roll()
        log.append(b"x")
        assert (log.settings.ttl, other.first_seq) == (1000, FIRST + 1)
    with penstock.open(path) as log:
        assert (log.settings.ttl, log.first_seq) == (1000, FIRST + 1)
