"""Segments that are deleted under readers: the oldest are a gap, one in the middle is damage."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from penstock import Corrupt, Gap, Log, NotFound

pytestmark = pytest.mark.process

EVENTS = 60


def segments(path: Path) -> list[Path]:
    """The segment files, oldest first."""
    return sorted(path.glob("*.seg"))


def base(segment: Path) -> int:
    """The first seq of a segment file."""
    return int(segment.stem)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """A log of many segments."""
    with penstock.open(tmp_path / "log", segment_size=64 << 10) as log:
        for i in range(EVENTS):
            log.append(bytes(9000) + b"%d" % i)
    assert len(segments(tmp_path / "log")) > 8
    return penstock.open(tmp_path / "log")


def test_oldest_deleted_under_a_reader(log: Log) -> None:
    """A reader finishes the segment it has mapped, then gets Gap with the first seq left."""
    with log:
        path = Path(log.path)
        readers = [log.read(), log.follow("start", timeout=1)]
        for reader in readers:
            next(reader)
        gone = segments(path)[:3]
        left = base(segments(path)[3])
        for segment in gone:
            segment.unlink()
        for reader in readers:
            seen = 1
            with pytest.raises(Gap) as caught:
                for event in reader:
                    seen += 1
                    assert event.seq == seen
            assert seen == base(gone[1]) - 1
            assert caught.value.first_seq == left


def test_oldest_deleted_before_a_read(log: Log) -> None:
    """Iteration begins with the first event that is left; asking for a lost one is told apart."""
    with log:
        path = Path(log.path)
        for segment in segments(path)[:3]:
            segment.unlink()
        left = base(segments(path)[0])
        rest = list(range(left, EVENTS + 1))
        assert log.first_seq == left
        assert len(log) == len(rest)
        assert [e.seq for e in log] == rest
        assert [e.seq for e in reversed(log)] == rest[::-1]
        assert [e.seq for e in log.follow("start", timeout=0)] == rest
        assert log[left].seq == left
        with pytest.raises((Gap, NotFound)):
            log[left - 1]
        with pytest.raises(Gap) as caught:
            list(log.follow(1, timeout=0))
        assert caught.value.first_seq == left
        assert log.append(b"on") == EVENTS + 1


@pytest.mark.parametrize("mode", ["rw", "r"])
@pytest.mark.parametrize("control", [True, False], ids=["control", "no-control"])
def test_oldest_deleted_before_an_open(log: Log, mode: str, control: bool) -> None:
    """A log whose oldest segments are gone opens, reads from there, and knows its first seq."""
    path = Path(log.path)
    log.close()
    for segment in segments(path)[:3]:
        segment.unlink()
    if not control:
        (path / "control").unlink()
    left = base(segments(path)[0])
    with penstock.open(path, mode="rw" if mode == "rw" else "r") as again:
        assert again.first_seq == left
        assert [e.seq for e in again] == list(range(left, EVENTS + 1))


def test_middle_deleted(log: Log) -> None:
    """A missing middle segment is Corrupt, naming its range; what follows stays readable."""
    with log:
        path = Path(log.path)
        files = segments(path)
        files[4].unlink()
        first, last = base(files[4]), base(files[5]) - 1
        seen = []
        with pytest.raises(Corrupt) as caught:
            for event in log:
                seen.append(event.seq)
        assert seen == list(range(1, first))
        assert str(first) in str(caught.value) and str(last) in str(caught.value)
        assert [e.seq for e in log.read(last + 1)] == list(range(last + 1, EVENTS + 1))
        for seq in (first, last):
            with pytest.raises(Corrupt) as caught:
                log[seq]
            assert str(first) in str(caught.value) and str(last) in str(caught.value)
        assert log[last + 1].seq == last + 1
        assert log[first - 1].seq == first - 1
        seen.clear()
        with pytest.raises(Corrupt):
            for event in reversed(log):
                seen.append(event.seq)
        assert seen == list(range(EVENTS, last, -1))
        assert log.append(b"on") == EVENTS + 1


def test_middle_deleted_before_an_open(log: Log) -> None:
    """... and it is found as well by a process that opens the log afterwards."""
    path = Path(log.path)
    log.close()
    files = segments(path)
    files[4].unlink()
    (path / "control").unlink()
    first, last = base(files[4]), base(files[5]) - 1
    with penstock.open(path) as again:
        with pytest.raises(Corrupt) as caught:
            list(again)
        assert str(first) in str(caught.value) and str(last) in str(caught.value)
        assert [e.seq for e in again.read(last + 1)] == list(range(last + 1, EVENTS + 1))
        assert again.append(b"on") == EVENTS + 1


def test_newest_sealed_is_not_taken_for_the_end(log: Log) -> None:
    """If the active segment is deleted, no writer gives its seqs out a second time."""
    path = Path(log.path)
    log.steward.roll()
    log.append(b"x")
    log.close()
    segments(path)[-1].unlink()
    (path / "control").unlink()
    with pytest.raises(Corrupt):
        penstock.open(path)
