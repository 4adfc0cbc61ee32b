"""Archiving or restoring is killed, loses power, or its calls fail: no event is lost."""

from __future__ import annotations

import errno
import logging
import os
import random
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import penstock
from penstock import DiskFull, PenstockError, _core
from penstock.archive.naming import Stored
from penstock.errors import from_os
from penstock.system import files
from tests.archive import logs
from tests.crash.test_power_loss import from_another_boot
from tests.support import pages
from tests.support.fixtures import STORM
from tests.support.pages import History
from tests.support.recorder import LOOSE, Recorder

STEPS = [
    *("archive.filled", "archive.synced", "archive.named", "archive.stored", "archive.compared"),
    *("archive.told", "archive.deleted"),
]


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "penstock")


def in_child(work: Callable[[], object], fail: str, times: int) -> bool:
    """Do the work in a process that is killed at a fail-point; whether it was."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _core.fail_arm(fail, times, signal.SIGKILL)
            work()
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0


def check(path: Path, events: list[Any]) -> None:
    """The log has all its events, for a reader and for a writer, and goes on."""
    with penstock.open(path, mode="r") as log:
        assert logs.contents(log) == events
        assert [e.seq for e in reversed(log)] == [e[0] for e in events][::-1]
    with penstock.open(path) as log:
        assert logs.contents(log) == events
        assert log.verify().ok, str(log.verify())


@pytest.mark.parametrize("witness", [True, False])
@pytest.mark.parametrize("name", STEPS)
def test_killed_while_archiving(path: Path, name: str, witness: bool) -> None:
    """Killed at any step, it leaves a log with all its events; the next run finishes."""
    events = logs.made(path, 3, segment_size="256KiB")
    for times in range(1, 9):
        copy = path.with_name(f"copy-{times}")
        shutil.copytree(path, copy)

        def archive_copy(at: Path = copy) -> None:
            with penstock.open(at) as log:
                log.steward.archive()

        other = penstock.open(copy) if witness else None
        reader = None if other is None else other.read()
        began = [] if reader is None else [e.seq for e in reader.take(20)]
        killed = in_child(archive_copy, name, times)
        if reader is not None and other is not None:
            assert began + [e.seq for e in reader] == [e[0] for e in events]
            assert logs.contents(other) == events
        check(copy, events)
        with penstock.open(copy) as log:
            log.steward.archive()
            assert len(logs.local(copy)) == 1
            assert all(Stored.parse(n, 0) for n in os.listdir(copy / "archive"))
            assert len(os.listdir(copy / "archive")) == 3
        check(copy, events)
        if other is not None:
            assert logs.contents(other) == events
            other.close()
        penstock.restore(copy / "archive", path.with_name("again"))
        shutil.rmtree(path.with_name("again"))
        shutil.rmtree(copy)
        if not killed:
            assert times > 1, "the fail-point was never reached"
            return
    raise AssertionError("it was killed each time")


def test_killed_while_restoring(path: Path, tmp_path: Path) -> None:
    """A restoring that is killed leaves nothing at the path, and can be done again."""
    events = logs.made(path, 3)
    with penstock.open(path) as log:
        log.steward.archive()
    target = tmp_path / "again"
    for times in (1, 3):
        assert in_child(lambda: penstock.restore(path / "archive", target), "restore.filled", times)
        assert not target.exists()
    assert penstock.restore(path / "archive", target) == events[-2][0]
    check(target, events[:-1])


@pytest.mark.parametrize("place", ["inside", "shared"])
def test_two_archivers(path: Path, tmp_path: Path, place: str) -> None:
    """Two processes and two threads that archive at once move each segment once."""
    events = logs.made(path, 4)
    to = None if place == "inside" else tmp_path / "shared"

    def archive() -> None:
        with penstock.open(path) as log:
            log.steward.archive(to, timeout=60)

    child = os.fork()
    if child == 0:
        code = 1
        try:
            archive()
            code = 0
        finally:
            os._exit(code)
    threads = [threading.Thread(target=archive) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert os.waitpid(child, 0)[1] == 0
    assert len(logs.local(path)) == 1
    assert len(os.listdir(to or path / "archive")) == 4
    check(path, events)


CALLS = ("create_file", "write_at", "sync_data", "sync_dir", "rename", "unlink", "make_dir")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_failing_calls(path: Path, tmp_path: Path, call: str, code: int) -> None:
    """If any call on a file of the archive fails, it is a typed error and nothing is lost."""
    events = logs.made(path, 2, segment_size="256KiB")
    place = tmp_path / "elsewhere"
    real = getattr(files, call)
    for number in range(1, 40):
        copy = tmp_path / f"copy-{number}"
        shutil.copytree(path, copy)
        count = 0

        def failing(*args: Any, number: int = number, **others: Any) -> Any:
            nonlocal count
            if any(str(a).startswith(str(place)) for a in args):
                count += 1
                if count == number:
                    raise from_os(OSError(code, "injected"), call, str(place))
            return real(*args, **others)

        failed = False
        with penstock.open(copy) as log, mock.patch.object(files, call, failing):
            try:
                log.steward.archive(place)
            except PenstockError as error:
                failed = True
                assert not isinstance(error, DiskFull) or code == errno.ENOSPC
                there = os.listdir(place) if place.exists() else []
                assert not [name for name in there if name.endswith(".tmp")]
        check(copy, events)
        with penstock.open(copy) as log:
            log.steward.archive(place)
        check(copy, events)
        assert len(os.listdir(place)) == 2
        shutil.rmtree(copy)
        shutil.rmtree(place)
        if not failed:
            return
    raise AssertionError("it failed each time")


@pytest.mark.timeout(1800 if STORM else 300)
def test_power_loss_while_archiving(tmp_path: Path) -> None:
    """Whatever a loss of power leaves while a log is archived, every event is there."""
    place = tmp_path / "log"
    events = small(place)
    recorder = Recorder(History.of(place, LOOSE), str(place))
    with recorder.recording():
        log = penstock.open(place)
        log.steward.archive()
        recorder.look("archived")
        log.close()
    history, rng = recorder.history, random.Random(3)
    moments = list(range(history.moment + 1))
    rng.shuffle(moments)
    tried: set[int] = set()
    moved = stayed = 0
    for moment in moments[: len(moments) if STORM else 60]:
        for picks in pages.ways(history.options(moment), rng, all_below=8, samples=2):
            image = history.image(moment, picks, rng)
            mark = hash(tuple(sorted(image.items())))
            if mark in tried or (len(tried) > 120 and not STORM):
                continue
            tried.add(mark)
            disk = tmp_path / f"disk-{len(tried)}"
            pages.write(image, disk)
            if (disk / "control").exists():
                from_another_boot(disk / "control")
            try:
                check(disk, events)
                with penstock.open(disk) as log:
                    files_left = len(logs.local(disk))
                    moved += files_left < 4
                    stayed += files_left == 4
                    assert log.append(b"goes on") == len(events) + 1
                    log.steward.archive()
                    assert len(list(log)) == len(events) + 1
            except BaseException as error:
                error.add_note(f"power loss at {moment}, {history.labels[moment]!r} ({disk})")
                raise
            shutil.rmtree(disk)
    assert moved > 5 and stayed > 5


def small(path: Path) -> list[Any]:
    """A closed log of three small sealed segments; what it reads to."""
    rng = random.Random(7)
    with penstock.open(path, segment_size="64KiB") as log:
        for number in range(3):
            for i in range(10):
                log.append(rng.randbytes(500), key=b"k%d" % (i % 3))
            log.append(b"end of %d" % number, producer=("p", number + 1))
            log.steward.roll()
        log.append(b"active")
        return logs.contents(log)


@pytest.mark.timeout(1800 if STORM else 300)
def test_power_loss_while_restoring(tmp_path: Path) -> None:
    """A log that restoring has named is complete, whatever a loss of power leaves."""
    events = small(tmp_path / "log")
    with penstock.open(tmp_path / "log") as log:
        log.steward.archive(tmp_path / "archive")
    synced: list[str] = []
    real_data, real_dir, real_rename = files.sync_data, files.sync_dir, files.rename

    def sync_data(fd: int, path: str) -> None:
        real_data(fd, path)
        synced.append(os.path.realpath(f"/proc/self/fd/{fd}"))

    def sync_dir(fd: int, path: str) -> None:
        real_dir(fd, path)
        synced.append(os.path.realpath(f"/proc/self/fd/{fd}"))

    def rename(source: str, target: str, *, replace: bool = True) -> None:
        if str(target) == str(tmp_path / "again"):
            for name in os.listdir(source):
                path = os.path.join(os.path.realpath(source), name)
                made = os.path.join(os.path.dirname(path), "next.tmp")
                assert path in synced or made in synced, name
            assert os.path.realpath(source) in synced
        real_rename(source, target, replace=replace)

    with (
        mock.patch.object(files, "sync_data", sync_data),
        mock.patch.object(files, "sync_dir", sync_dir),
        mock.patch.object(files, "rename", rename),
    ):
        penstock.restore(tmp_path / "archive", tmp_path / "again")
    assert os.path.realpath(tmp_path) in synced
    check(tmp_path / "again", events[:-1])
