"""The turn: one maintenance job at a time per log, whoever asks."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock import Busy
from penstock.steward import turn
from penstock.system import files


@pytest.fixture
def log(tmp_path: Path) -> Iterator[penstock.Log]:
    """A log."""
    with penstock.open(tmp_path / "log") as log:
        log.append(b"a")
        yield log


def test_a_second_one_is_busy(log: penstock.Log) -> None:
    """While one has the turn, another gets `Busy`; afterwards it is free."""
    directory = files.hold_dir(log.path)
    with turn.taken(directory):
        with pytest.raises(Busy, match="another maintenance job"), turn.taken(directory, 0):
            pass
        with pytest.raises(Busy), turn.taken(directory, 0.005):
            pass
        assert log.append(b"b") == 2  # appends never wait for it
    with turn.taken(directory):
        pass


def test_threads_exclude_each_other(log: penstock.Log) -> None:
    """Of many threads with one handle, one at a time is inside."""
    directory = files.hold_dir(log.path)
    inside, most = [], []

    def work() -> None:
        for _ in range(10):
            with turn.taken(directory, None):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert len(most) == 40


def test_the_kernel_ends_the_turn_of_the_dead(log: penstock.Log) -> None:
    """A process that is killed with the turn blocks no process; a child of its fork has no turn."""
    directory = files.hold_dir(log.path)
    told, tell = os.pipe()
    held, hold = os.pipe()  # the child of the child lives until nobody can write there
    child = os.fork()
    if child == 0:
        with turn.taken(directory):
            os.close(hold)
            if os.fork() == 0:
                os.write(tell, b"2")
                os.read(held, 1)
                os._exit(0)
            os.write(tell, b"1")
            signal.pause()
    assert len(os.read(told, 1) + os.read(told, 1)) == 2
    with pytest.raises(Busy), turn.taken(directory):
        pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with turn.taken(directory, 10):
        pass
    for fd in (told, tell, held, hold):
        os.close(fd)
