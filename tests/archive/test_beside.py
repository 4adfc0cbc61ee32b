"""Archiving beside everything else that is done to a log."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Closed, Conflict, NotFound, Usage, WrongType
from tests.archive import logs


@pytest.mark.parametrize("place", ["inside", "elsewhere"])
def test_backups_and_repaired_copies(path: Path, tmp_path: Path, place: str) -> None:
    """A backup, and a repaired copy, have the archived events too."""
    events = logs.made(path)
    with penstock.open(path) as log:
        log.steward.archive(None if place == "inside" else tmp_path / "elsewhere")
        log.backup(tmp_path / "backup")
        log.append(b"x" * 1000)
    newest = max(path.glob("*.seg"))
    data = bytearray(newest.read_bytes())
    data[data.index(b"x" * 1000) + 5] ^= 1
    newest.write_bytes(data)
    (path / "control").unlink()
    penstock.repair(path, to=tmp_path / "mended")
    if place == "inside":
        shutil.rmtree(path)
    for copy in ("backup", "mended"):
        with penstock.open(tmp_path / copy) as log:
            assert logs.contents(log)[: len(events)] == events
            assert log.first_seq == 1


def test_a_deletion_outlives_what_it_deletes(path: Path) -> None:
    """Compaction drops no deletion of a key whose older values are in the archive."""
    with penstock.open(path) as log:
        log.append(b"old", key=b"k")
        log.steward.roll()
        log.steward.archive()
        log.append(None, key=b"k")
        log.append(b"other", key=b"o")
        log.steward.roll()
        log.steward.compact(grace=0)
        assert log[2].value is None
        latest = log.latest(b"k")
        assert latest is None or latest.value is None


@pytest.mark.parametrize("keep_local", [0, 10])
def test_an_erasure_names_what_is_archived(path: Path, keep_local: int) -> None:
    """An erasure does not claim to be complete while an archived segment has the key."""
    with penstock.open(path) as log:
        log.append(b"secret", key=b"ann")
        log.steward.roll()
        log.append(b"b", key=b"bob")
        log.steward.roll()
        log.steward.archive(keep_local=keep_local)
        for dry_run in (True, False):
            report = log.steward.erase(b"ann", dry_run=dry_run)
            assert [r.path for r in report.remaining if "archived" in r.why] == [
                str(min((path / "archive").iterdir(), key=lambda p: p.name))
            ]
        assert not report.complete
        assert log.steward.erase(b"nobody").complete


def test_why(path: Path) -> None:
    """Why an archived event is there can be asked."""
    logs.made(path, 2)
    with penstock.open(path) as log:
        log.steward.archive()
        found = log.steward.why(3)
        assert found.state == "there" and "archived" in str(found)


def test_forks_and_renames(path: Path) -> None:
    """A child of a fork, and a handle whose log was renamed, read on in the archive inside."""
    events = logs.made(path)
    with penstock.open(path) as log:
        log.steward.archive()
        assert log[3].value == events[2][5]
        kept = log[5]
        os.rename(path, path.with_name("moved"))
        assert log[100].value == events[99][5]
        child = os.fork()
        if child == 0:
            code = 1
            try:
                assert logs.contents(log) == events and kept.value == events[4][5]
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert logs.contents(log) == events
    assert kept.value == events[4][5]


def test_a_forking_progress(path: Path) -> None:
    """A child that is forked inside archiving gets an error, and the parent goes on."""
    logs.made(path)
    parent = os.getpid()
    children: list[int] = []

    def fork(done: int, total: int) -> None:
        if not children:
            children.append(os.fork())

    with penstock.open(path) as log:
        try:
            report = log.steward.archive(progress=fork)
        except Usage as error:
            os._exit(0 if os.getpid() != parent and "parent" in str(error) else 1)
        except BaseException:
            os._exit(2)
        if os.getpid() != parent:
            os._exit(3)
        assert os.waitpid(children[0], 0)[1] == 0
        assert report.moved == 4


def test_deleting_a_log_deletes_its_archive_inside(path: Path) -> None:
    """The archive inside a log's directory is part of it, and a foreign file in it is not."""
    logs.made(path, 2)
    with penstock.open(path) as log:
        log.steward.archive()
    (path / "archive" / "mine.txt").write_text("not of the log")
    with pytest.raises(Usage, match="archive"):
        penstock.delete(path)
    (path / "archive" / "mine.txt").unlink()
    penstock.delete(path)
    assert not path.exists()


def test_closed_handles(path: Path) -> None:
    """A closed log is not archived."""
    logs.made(path, 1)
    log = penstock.open(path)
    log.close()
    with pytest.raises(Closed):
        log.steward.archive()


@pytest.mark.parametrize(
    ("until", "last"), [(83, 82), (84, 82 + 1), (2, 1), (10**6, None), ("2100-01-01", None)]
)
def test_restore_until(path: Path, until: Any, last: int | None) -> None:
    """A log is restored up to a seq or a time, goes on there, and is refused the same archive."""
    with penstock.open(path, segment_size="64KiB") as log:
        for number in range(3):
            for i in range(82):
                log.append(b"%d %d" % (number, i), time=penstock.times.Ns(82 * number + i))
            log.steward.roll()
        log.steward.archive()
    target = path.with_name("again")
    found = penstock.restore(path / "archive", target, until=until)
    assert found == (246 if last is None else last)
    with penstock.open(target) as log:
        assert [e.seq for e in log] == list(range(1, found + 1))
        assert log.append(b"another way") == found + 1
        assert log.verify().ok
        log.steward.roll()
        if last is not None:
            with pytest.raises(Conflict):
                log.steward.archive(path / "archive")
        assert log.steward.archive().moved >= 1
        assert len(log) == found + 1


def test_restore_until_a_time(path: Path) -> None:
    """Restoring ends before the first event of a time or later."""
    with penstock.open(path, segment_size="64KiB") as log:
        for i in range(100):
            log.append(b"%d" % i, time=penstock.times.Ns(10**18 + i))
            if i % 40 == 39:
                log.steward.roll()
        log.steward.roll()
        log.steward.archive()
    for at in (0, 1, 39, 40, 41, 99, 100):
        target = path.with_name(f"again-{at}")
        until = penstock.times.Ns(10**18 + at)
        assert penstock.restore(path / "archive", target, until=until) == at
        with penstock.open(target) as log:
            assert len(log) == at and log.append(b"x") == at + 1


def test_a_unit_is_restored_whole(path: Path) -> None:
    """A batch is restored completely or not at all."""
    with penstock.open(path) as log:
        log.append(b"first")
        log.extend([b"a", b"b", b"c"], producer=("p", 1))
        log.steward.roll()
        log.steward.archive()
    assert penstock.restore(path / "archive", path.with_name("again"), until=3) == 1
    with penstock.open(path.with_name("again")) as log:
        assert log.extend([b"a", b"b", b"c"], producer=("p", 1)) == range(2, 5)


@pytest.mark.parametrize(
    ("until", "error"),
    [(0, Exception), (-1, Exception), (1, NotFound), ("end", WrongType), (1.5, WrongType)],
)
def test_restore_refuses(path: Path, until: Any, error: type[Exception]) -> None:
    """A place to end that makes no sense is an error, and nothing is made."""
    logs.made(path, 1)
    with penstock.open(path) as log:
        log.steward.archive()
    with pytest.raises((error, Usage) if error is Exception else error):
        penstock.restore(path / "archive", path.with_name("again"), until=until)
    assert sorted(os.listdir(path.parent)) == ["log"]


def test_restore_into_what_is_there(path: Path) -> None:
    """A path that exists is left alone."""
    logs.made(path, 1)
    with penstock.open(path) as log:
        log.steward.archive()
        with pytest.raises(penstock.AlreadyExists):
            penstock.restore(path / "archive", path)
        with pytest.raises(penstock.NoSuchLog):
            penstock.restore(path.with_name("nothing"), path.with_name("again"))
