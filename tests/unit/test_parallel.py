"""Work that threads share: in order, to its end or broken off, with all of them or with none."""

from __future__ import annotations

import _thread
import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.system.parallel import Unwanted, _Shared, in_order
from tests.support.threads import threads_of
from tests.support.wait import wait_for

NAME = "penstock-of-a-test"


def square(n: int, unwanted: Unwanted) -> int:
    """Something to do."""
    return n * n


@pytest.mark.parametrize("threads", [1, 2, 5, 40])
@pytest.mark.parametrize("count", [0, 1, 2, 300])
def test_in_order(threads: int, count: int) -> None:
    """Every item once, whatever the number of threads; none of them is left."""
    done: list[int] = []

    def work(n: int, unwanted: Unwanted) -> int:
        done.append(n)
        return square(n, unwanted)

    found = list(in_order(work, range(count), threads, NAME))
    assert found == [n * n for n in range(count)]
    assert sorted(done) == list(range(count))
    assert not threads_of(NAME)


def test_several_at_once() -> None:
    """As many items are worked on at the same time as there are threads, this one among them."""
    together = threading.Barrier(3, timeout=30)
    names: set[str] = set()

    def work(_: int, unwanted: Unwanted) -> int:
        with open("/proc/thread-self/comm") as file:
            names.add(file.read().strip())
        return together.wait()

    assert sorted(in_order(work, range(3), 3, NAME)) == [0, 1, 2]
    assert NAME[:15] in names


def test_an_error_comes_in_its_turn() -> None:
    """What came before it is there; what comes after it is not asked for."""
    found = []
    with pytest.raises(ZeroDivisionError):
        for one in in_order(lambda n, _: 1 // (n - 3), range(10), 2, NAME):
            found.append(one)
    assert found == [-1, -1, -1]
    assert not threads_of(NAME)


@pytest.fixture(params=["caller", "helper"])
def first(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which of two threads gets the first item."""
    begin, help_ = _Shared.begin, _Shared._help

    def until_one_is_taken(shared: _Shared[Any, Any]) -> None:
        count = len(shared._items)
        wait_for(lambda: len(shared._untaken) < count, "somebody to take the first item")

    def begin_late(shared: _Shared[Any, Any]) -> None:
        begin(shared)
        until_one_is_taken(shared)

    def help_late(shared: _Shared[Any, Any]) -> bool:
        until_one_is_taken(shared)
        return help_(shared)

    if request.param == "helper":
        monkeypatch.setattr(_Shared, "begin", begin_late)
    else:
        monkeypatch.setattr(_Shared, "_help", help_late)
    return str(request.param)


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_failed(first: str, error: type[BaseException]) -> None:
    """Who works on something after it hears of it, caller or not; the rest is not begun."""
    begun = threading.Event()
    ended: list[int] = []

    def work(n: int, unwanted: Unwanted) -> int:
        if n == 0:
            assert begun.wait(30)
            raise error
        begun.set()
        wait_for(unwanted, "word that nobody wants it")
        ended.append(n)
        return n

    with pytest.raises(error):
        list(in_order(work, range(100), 2, NAME))
    assert ended == [1]
    assert not threads_of(NAME)


def test_broken_off(first: str) -> None:
    """The same if he who asked goes on no further."""
    caller = threading.get_ident()
    begun = threading.Event()
    ended: list[int] = []

    def work(n: int, unwanted: Unwanted) -> int:
        if n > 0 and threading.get_ident() != caller:
            begun.set()
            wait_for(unwanted, "word that nobody wants it")
            ended.append(n)
        return n

    results = in_order(work, range(1_000_000), 2, NAME)
    assert next(results) == 0
    assert begun.wait(30)
    results.close()
    assert len(ended) == 1
    assert not threads_of(NAME)


def test_ctrl_c_is_not_put_off(first: str) -> None:
    """It ends what the caller waits for at once, whichever item he was at."""
    caller = threading.get_ident()
    held = threading.Event()

    def work(n: int, unwanted: Unwanted) -> None:
        if threading.get_ident() == caller:
            assert held.wait(30)
            raise KeyboardInterrupt
        held.set()
        wait_for(unwanted, "word that nobody wants it")

    with pytest.raises(KeyboardInterrupt):
        next(in_order(work, range(10), 2, NAME))


def test_ctrl_c_at_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread goes on that was started before it."""
    start = _thread.start_new_thread

    def interrupted(run: Any, args: Any) -> int:
        start(run, args)
        raise KeyboardInterrupt

    monkeypatch.setattr(_thread, "start_new_thread", interrupted)
    done: list[int] = []

    def work(n: int, unwanted: Unwanted) -> None:
        wait_for(unwanted, "word that nobody wants it")
        done.append(n)

    with pytest.raises(KeyboardInterrupt):
        list(in_order(work, range(100), 2, NAME))
    assert len(done) <= 1
    assert not threads_of(NAME)


@pytest.mark.parametrize("first", ["caller"], indirect=True)
def test_waits_under_a_lock(first: str, path: Path) -> None:
    """Who breaks off under the write lock of a log waits for the others, to clean up after them."""
    begun = threading.Event()
    ended: list[int] = []

    def work(n: int, unwanted: Unwanted) -> int:
        if n == 0:
            assert begun.wait(30)
        else:
            begun.set()
            wait_for(unwanted, "word that nobody wants it")
            ended.append(n)
        return n

    with penstock.open(path) as log:
        log.append(b"x")
        control = log._ctl
        assert control is not None
        with control.locked():
            shared = in_order(work, range(9), 2, NAME)
            assert next(shared) == 0
            shared.close()
            assert ended == [1]


def test_what_is_not_wanted_is_let_go() -> None:
    """An error that is kept holds nothing but its own place; once it is gone, nothing is held."""
    made: dict[int, weakref.ref[object]] = {}

    def work(n: int, unwanted: Unwanted) -> set[int]:
        made[n] = weakref.ref(found := {n})
        if n == 20:
            wait_for(lambda: 22 in made, "a result behind the error")
            raise OSError
        return found

    def held() -> list[int]:
        return [n for n, ref in made.items() if ref() is not None]

    gc.disable()
    try:
        with pytest.raises(OSError) as caught:
            list(in_order(work, range(40), 2, NAME))
        assert held() == [20]
        del caught
        assert held() == []
    finally:
        gc.enable()


@pytest.mark.parametrize("allowed", [0, 1])
@pytest.mark.parametrize("error", [RuntimeError, MemoryError])
def test_no_thread_to_be_had(
    monkeypatch: pytest.MonkeyPatch, allowed: int, error: type[Exception]
) -> None:
    """Those that there are do it all."""
    left = [0] * allowed
    start = _thread.start_new_thread

    def refuse(run: Any, args: Any) -> int:
        if not left:
            raise error
        left.pop()
        return start(run, args)

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    assert list(in_order(square, range(50), 4, NAME)) == [n * n for n in range(50)]


def test_threads_that_never_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for them, and one that begins when all is over does nothing."""
    late: list[tuple[Any, Any]] = []

    def start(run: Any, args: Any) -> int:
        late.append((run, args))
        return 0

    monkeypatch.setattr(_thread, "start_new_thread", start)
    done: list[int] = []

    def work(n: int, unwanted: Unwanted) -> None:
        done.append(n)

    assert len(list(in_order(work, range(5), 3, NAME))) == 5
    assert len(late) == 2
    for run, args in late:
        run(*args)
    assert done == [0, 1, 2, 3, 4]
