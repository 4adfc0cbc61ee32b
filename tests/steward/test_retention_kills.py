"""Retention and trims that die, or are refused room, at every step; and two that meet."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import DiskFull, Log
from penstock.steward import retention
from penstock.system import files
from tests.consumers.processes import run, start
from tests.support.fixtures import STORM
from tests.support.wait import wait_for

pytestmark = [pytest.mark.crash, pytest.mark.process]

KILLED = -signal.SIGKILL
EVENTS = 42  # four to a segment
POINTS = [
    ("retain.moved", 1),
    ("retain.synced", 1),
    *(("retain.deleted", times) for times in (1, 2, 4)),
    ("retain.done", 1),
    ("publish.reserved", 1),
    ("publish.written", 1),
    ("publish.commit", 1),
    ("publish.head", 1),
    ("publish.words", 1),
    ("sync.begun", 1),
    ("sync.synced", 1),
    ("sync.checkpointed", 1),
]
JOBS = {
    "retain": lambda log: log.steward.retain(),
    "trim": lambda log: log.steward.trim(before=19),
}
FIRST = {"retain": 25, "trim": 19}


def bases(path: Path) -> list[int]:
    return sorted(int(file.stem) for file in path.glob("*.seg"))


def fill(log: Log, count: int) -> None:
    for n in range(count):
        log.append(b"%9000d" % n, key=b"%d" % n)


@pytest.fixture
def filled(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A closed log of eleven segments, with a rule that would delete the first six."""
    with monkeypatch.context() as patch:
        patch.setattr(retention, "keep_up", lambda *_: False)
        with penstock.open(path, segment_size="64KiB") as log:
            fill(log, EVENTS)
            log.configure(keep_segments=5)
    assert len(bases(path)) == 11
    return path


def check(path: Path, firsts: set[int]) -> int:
    """The log is whole from one of these seqs on, for writers and readers; its first seq."""
    with penstock.open(path, mode="r") as log:
        first = log.first_seq
        assert first in firsts
        assert [e.seq for e in log] == list(range(first, EVENTS + 1))
        assert log.verify().ok
    with penstock.open(path) as log:
        assert log.first_seq == first
        assert [e.seq for e in log] == list(range(first, EVENTS + 1))
        assert [e.seq for e in reversed(log)] == list(range(EVENTS, first - 1, -1))
    return first


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize(("point", "times"), POINTS)
@pytest.mark.parametrize("beside", [False, True])
def test_death_at_each_step(filled: Path, job: str, point: str, times: int, beside: bool) -> None:
    """Whoever dies in it leaves a log that is whole; the next run ends the work."""
    others = [penstock.open(filled)] if beside else []

    def work() -> None:
        with penstock.open(filled) as log:
            JOBS[job](log)

    assert run(work, point, times) == KILLED
    wanted = FIRST[job]
    first = check(filled, {1, wanted})
    if point.startswith(("retain", "sync")):
        assert first == wanted
    for log in others:
        assert [e.seq for e in log] == list(range(first, EVENTS + 1))
    with penstock.open(filled) as log:
        JOBS[job](log)
        assert log.first_seq == wanted
        left = bases(filled)
        assert left[0] <= wanted < left[1]
        assert log.append(b"on") == EVENTS + 1
    for log in others:
        log.close()


@pytest.mark.parametrize("job", ["retain", "trim"])
@pytest.mark.parametrize("point", ["", "retain.freed", "publish.head", "retain.deleted"])
def test_no_room_for_the_settings(
    filled: Path, monkeypatch: pytest.MonkeyPatch, job: str, point: str
) -> None:
    """With no room for settings the oldest segment makes some; a death meanwhile does no harm."""
    real = Log._change_settings
    full = filled.parent / "full"
    full.touch()

    def refused(self: Log, change: Any) -> Any:
        if full.exists() and len(bases(filled)) > 9:
            raise DiskFull("testing: no room")
        return real(self, change)

    monkeypatch.setattr(Log, "_change_settings", refused)

    def work() -> None:
        with penstock.open(filled) as log:
            JOBS[job](log)

    assert run(work, point or None) == (KILLED if point else 0)
    wanted = FIRST[job]
    first = check(filled, {1, 5, 9, wanted})
    if not point:
        assert first == wanted
    else:
        assert first == {"retain.freed": 5, "publish.head": wanted}.get(point, wanted)
    full.unlink()
    with penstock.open(filled) as log:
        JOBS[job](log)
        assert log.first_seq == wanted


def test_a_trim_inside_the_oldest_segment_needs_room(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no segment can make room, the error says so and nothing has changed."""

    def refused(*_: Any) -> Any:
        raise DiskFull("testing: no room")

    with penstock.open(filled) as log:
        monkeypatch.setattr(Log, "_change_settings", refused)
        with pytest.raises(DiskFull):
            log.steward.trim(before=3)
        assert log.first_seq == 1
        monkeypatch.undo()
        assert log.steward.trim(before=3) == 3


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("call", ["unlink", "fsync", "fdatasync", "listdir"])
def test_calls_that_fail(
    filled: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    """Whichever call fails, the error is typed and the log whole; the next run ends the work."""
    real = getattr(os, call)
    failed: list[bool] = []

    def fails(*args: Any, **kwargs: Any) -> Any:
        name = str(args[0])
        if not failed and (call != "unlink" or name.endswith(".seg")):
            failed.append(True)
            raise OSError(code, os.strerror(code))
        return real(*args, **kwargs)

    with penstock.open(filled) as log:
        with monkeypatch.context() as patch:
            patch.setattr(os, call, fails)
            with pytest.raises(penstock.PenstockError) as caught:
                log.steward.retain()
        assert isinstance(caught.value, OSError)
        assert log.first_seq in (1, 25)
    check(filled, {1, 25})
    with penstock.open(filled) as log:
        log.steward.retain()
        assert (log.first_seq, bases(filled)[0]) == (25, 25)


def test_a_poisoned_log_deletes_nothing(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed sync nothing is deleted, since it is unknown what is on disk."""
    with penstock.open(filled) as log:
        log.append(b"x")
        with monkeypatch.context() as patch:
            patch.setattr(files, "sync_data", lambda *_: (_ for _ in ()).throw(penstock.Io("ill")))
            with pytest.raises(penstock.Io):
                log.sync()
        for _ in range(2):
            with pytest.raises(penstock.Poisoned):
                log.steward.retain()
            with pytest.raises(penstock.Poisoned):
                log.steward.trim(before=9)
        assert len(bases(filled)) == 11


def test_many_retainers_and_a_killer(path: Path) -> None:
    """Processes that append and retain, and are killed at any moment, never lose an event above."""
    said = path.parent / "said"
    with penstock.open(path, segment_size="64KiB") as log:
        log.configure(keep_segments=4)

    def work() -> None:
        with penstock.open(path) as log, said.open("ab", buffering=0) as out:
            while True:
                seq = log.append(b"%9000d" % os.getpid())
                out.write(b"%d\n" % seq)
                if seq % 7 == 0:
                    log.steward.retain(timeout=None)

    for _ in range(40 if STORM else 8):
        children = [start(work) for _ in range(3)]
        least = said.stat().st_size + 200 if said.exists() else 200
        wait_for(lambda n=least: said.exists() and said.stat().st_size > n, "appends")  # type: ignore[misc]
        for child in children:
            child.kill()
            child.wait()
        told = {int(line) for line in said.read_text().split("\n")[:-1]}
        with penstock.open(path, mode="r") as log:
            first, seqs = log.first_seq, [e.seq for e in log]
            assert seqs == list(range(first, log.last_seq + 1))
            assert {seq for seq in told if seq >= first} <= set(seqs)
            assert max(told) <= log.last_seq
            assert log.verify().ok
