"""Threads of a handle: they outlive a lack of memory, and nobody waits for one that never began."""

from __future__ import annotations

import _thread
import threading

import pytest

from penstock.system import background
from penstock.system.background import Background
from tests.support.threads import threads_of
from tests.support.wait import wait_for


def test_steps() -> None:
    """A step comes after the other until one says that nothing is left; the thread has its name."""
    left = [3, 2, 1]
    names: list[str] = []

    def step() -> bool:
        with open("/proc/thread-self/comm") as file:
            names.append(file.read().strip())
        left.pop()
        return bool(left)

    thread = Background("penstock-of-a-test", step)
    wait_for(lambda: not left, "the last step")
    thread.finish()
    assert names == ["penstock-of-a-t"] * 3
    assert not threads_of()


def test_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that had not enough memory is taken again."""
    monkeypatch.setattr(background, "AGAIN", 0.001)
    outcomes = [True, MemoryError(), MemoryError(), False]
    seen: list[object] = []

    def step() -> bool:
        seen.append(outcome := outcomes.pop(0))
        if isinstance(outcome, MemoryError):
            raise outcome
        return bool(outcome)

    Background("penstock-test", step).finish()
    assert len(seen) == 4


def test_one_that_never_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without memory for its first call a thread ends unseen; who waits for it does its steps."""
    late: list[object] = []

    def start(run: object, args: tuple[()]) -> int:
        late.append(run)
        return 0

    monkeypatch.setattr(_thread, "start_new_thread", start)
    left = [3, 1, 2]
    thread = Background("penstock-test", lambda: left.pop() > 1)
    thread.finish()
    thread.finish()
    assert left == [3]
    run = late.pop()
    assert callable(run)
    run()
    assert left == [3], "one that begins late leaves all as it is"


def test_joined_by_itself() -> None:
    """A thread that closes its own log does not wait for itself."""
    ready, done = threading.Event(), threading.Event()

    def step() -> bool:
        ready.wait()
        thread.finish()
        done.set()
        return False

    thread = Background("penstock-test", step)
    ready.set()
    assert done.wait(30)
    thread.finish()
