"""The fork registry: a child closes what it inherited, and each handle notices."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import penstock
from penstock import _core


def in_child(work: Callable[[], bool]) -> bool:
    """Fork, run ``work`` in the child, and tell whether it returned True there."""
    pid = os.fork()
    if pid == 0:
        ok = False
        try:
            ok = work()
        except BaseException as error:
            print(f"in the child: {error!r}", file=sys.stderr)
        finally:
            os._exit(0 if ok else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_generations_count_forks() -> None:
    """Each fork is one generation more, in the child only."""
    here = _core.fork_generation()
    assert in_child(lambda: _core.fork_generation() == here + 1)
    assert in_child(lambda: in_child(lambda: _core.fork_generation() == here + 2))
    assert _core.fork_generation() == here


def test_a_child_closes_what_it_inherited(log: penstock.Log, path: Path) -> None:
    """A child that does not use the log has none of its files open, only the directory itself.

    By that it can open the log again wherever the log has moved; it is not locked.
    """
    log.append(b"a")

    def leftover() -> list[str]:
        found = []
        for name in os.listdir("/proc/self/fd"):
            try:
                found.append(os.readlink(f"/proc/self/fd/{name}"))
            except FileNotFoundError:
                continue
        return [f for f in found if f.startswith(str(path))]

    assert leftover() != [str(path)]
    assert in_child(lambda: leftover() == [str(path)])
    assert log.append(b"b") == 2


def test_a_registered_descriptor_is_closed_once() -> None:
    """own_fd and close_fd: closed here on demand, in a child by itself."""
    fd = os.open(os.devnull, os.O_RDONLY)
    _core.own_fd(fd)
    there = os.fstat(fd)

    def gone() -> bool:
        try:
            now = os.fstat(fd)
        except OSError:
            _core.close_fd(fd)
            return True
        return not os.path.samestat(now, there)  # what else runs after a fork may use the number

    assert in_child(gone)
    os.fstat(fd)
    _core.close_fd(fd)
    other = os.open(os.devnull, os.O_RDONLY)
    assert other == fd
    _core.close_fd(fd)
    os.fstat(other)
    os.close(other)


def test_a_child_uses_the_log_anew(log: penstock.Log) -> None:
    """A handle, a reader and an event made before the fork work in the child and in the parent."""
    log.append(b"parent")
    event, reader = log[1], log.follow("start", timeout=0)

    def child() -> bool:
        assert event.value == b"parent"
        assert [e.seq for e in reader] == [1]
        assert log.append(b"child") == 2
        log.close()
        return True

    assert in_child(child)
    assert log.append(b"parent again") == 3
    assert [e.value for e in reader] == [b"parent", b"child", b"parent again"]


def test_closing_in_the_child_leaves_the_parent(log: penstock.Log) -> None:
    """A child that closes or drops the inherited handle takes nothing from its parent."""
    log.append(b"a")

    def child() -> bool:
        log.close()
        return log.closed

    assert in_child(child)
    assert log.append(b"b") == 2
    assert [e.seq for e in log] == [1, 2]


def test_a_closed_log_stays_closed_in_a_child(path: Path) -> None:
    """A handle closed before the fork does not come back to life."""
    log = penstock.open(path)
    log.close()

    def child() -> bool:
        try:
            log.append(b"x")
        except penstock.Closed:
            return True
        return False

    assert in_child(child)
