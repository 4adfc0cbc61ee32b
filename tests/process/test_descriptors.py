"""A log that is closed, left or forgotten leaves no descriptor and no map behind."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock import Busy, Event, NotFound
from tests.support.scene import Scene
from tests.support.threads import threads_of
from tests.support.workers import Crew

pytestmark = pytest.mark.process

SEGMENT = 64 << 10


def _make(path: str) -> None:
    with penstock.open(path, segment_size=SEGMENT) as log:
        for i in range(40):
            log.append(bytes(9000) + b"%d" % i)


def held(path: str) -> list[str]:
    """What this process still has of the log."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(f"/proc/self/fd/{fd}")
            if target.startswith(path):
                found.append(f"fd {fd}: {target}")
    maps = Path("/proc/self/maps").read_text().splitlines()
    found += [line for line in maps if path in line]
    return found or threads_of()


def _with(path: str) -> None:
    with penstock.open(path) as log:
        log.append(b"x")
        assert held(path)


def _close(path: str) -> None:
    log = penstock.open(path)
    log.append(b"x")
    log.close()
    log.close()
    assert not held(path), "close() alone, before anything is collected"


def _forget(path: str) -> None:
    log = penstock.open(path)
    log.append(b"x")
    del log


def _forget_at_once(path: str) -> None:
    penstock.open(path).append(b"x")


def _read_much(path: str) -> None:
    with penstock.open(path) as log:
        assert sum(1 for _ in log) >= 40
        assert sum(1 for _ in reversed(log)) >= 40
        for seq in range(1, 41):
            assert log[seq].seq == seq
        log.topics()
        log.stats()


def _leave_half_way(path: str) -> None:
    log = penstock.open(path)
    readers = [
        log.read(),
        log.read(reverse=True),
        log.follow("start"),
        log.follow("end", timeout=0),
    ]
    for reader in readers[:3]:
        for _ in range(15):
            next(reader)
    log.close()
    del reader, readers


def _keep_events(path: str) -> None:
    kept: list[Event] = []
    views: list[memoryview] = []
    with penstock.open(path) as log:
        kept.extend(log.read(stop=20))
        views.extend(e.view for e in kept[::5])
    assert [e.seq for e in kept] == list(range(1, 20)), "events outlive the log"
    assert bytes(views[1]).startswith(bytes(9000))
    kept.clear()
    views.clear()


def _roll_much(path: str) -> None:
    with penstock.open(path) as log:
        for i in range(60):
            log.append(bytes(9000) + b"%d" % i)
        log.steward.roll()
        log.append(b"x")


def _only_read(path: str) -> None:
    with penstock.open(path, mode="r") as log:
        assert sum(1 for _ in log) >= 40


def _only_read_without_control(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(path, "control"))
    with penstock.open(path, mode="r") as log:
        assert sum(1 for _ in log) >= 40
        assert not list(log.follow("end", timeout=0.05))


def _fail_to_open(path: str) -> None:
    with pytest.raises(NotFound):
        penstock.open(path + "-not-there", mode="r")
    os.mkdir(path + "-empty")
    with pytest.raises(NotFound):
        penstock.open(path + "-empty", create=False)
    with pytest.raises(NotFound):
        penstock.open(path + "-empty", mode="r")
    with penstock.open(path):
        os.unlink(os.path.join(path, "control"))
        with pytest.raises(Busy):
            penstock.open(path, timeout=0)


def _threads(path: str) -> None:
    with penstock.open(path) as log:
        threads = [threading.Thread(target=log.append, args=(bytes(9000),)) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _fork(path: str) -> None:
    log = penstock.open(path)
    log.append(b"x")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            log.append(b"y")
            log.close()
            gc.collect()
            code = len([h for h in held(path) if h.startswith("fd ") or "control" in h])
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    log.close()


USES: list[Callable[[str], None]] = [
    *(_with, _close, _forget, _forget_at_once, _read_much, _leave_half_way, _keep_events),
    *(_roll_much, _only_read, _only_read_without_control, _fail_to_open, _threads, _fork),
]


def use_and_look(use: str, path: str) -> None:
    """The worker's part: use a log in one way, then look what is left of it."""
    _make(path)
    for _ in range(2):
        globals()[use](path)
        gc.collect()
        assert held(path) == [], use


@pytest.mark.parametrize("use", [use.__name__ for use in USES])
def test_nothing_is_left(crew: Crew, tmp_path: Path, use: str) -> None:
    """Neither /proc/self/fd nor /proc/self/maps nor a thread tells of a log that is over."""
    if use == "_fail_to_open":
        _make(str(tmp_path / "log"))
        _fail_to_open(str(tmp_path / "log"))
        gc.collect()
        assert held(str(tmp_path / "log")) == []
        return
    worker = crew.start(
        tmp_path,
        "run_in_worker",
        module="tests.process.test_descriptors",
        function="use_and_look",
        args={"use": use, "path": str(tmp_path / "log")},
    )
    worker.done()


def test_descriptors_are_closed_on_exec(scene: Scene) -> None:
    """A program that a process with an open log starts inherits nothing of it."""
    scene.seed()
    with penstock.open(scene.path) as log:
        log.append(b"x")
        assert held(str(scene.path))
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{fd}").startswith(str(scene.path)):
                    assert not os.get_inheritable(int(fd))
