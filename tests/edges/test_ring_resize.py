"""Resizing a ring leaves it usable, or closed if that was asked for, whatever happens meanwhile."""

from __future__ import annotations

import functools
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import penstock
from penstock import Closed
from penstock.ring import resize
from penstock.system import files

STORM = bool(os.environ.get("PENSTOCK_STORM"))
SIZES = ["2MiB", "3MiB", "4MiB", "2500KiB"]


class Oracle:
    """What was acknowledged, by seq."""

    def __init__(self) -> None:
        self.told: dict[int, bytes] = {}
        self.twice: list[int] = []
        self.errors: list[BaseException] = []
        self._lock = threading.Lock()

    def note(self, seq: int, value: bytes) -> None:
        """An append of ``value`` returned ``seq``."""
        with self._lock:
            if seq in self.told:
                self.twice.append(seq)
            self.told[seq] = value

    def check(self, path: Path, unsure: int = 0) -> None:
        """Nothing was told twice, all that was told is there; ``unsure``: appends that failed."""
        assert self.twice == []
        assert self.errors == []
        with penstock.open(path) as ring:
            found = {event.seq: event.value for event in ring}
            assert list(found) == list(range(1, ring.last_seq + 1))  # it was never full
            assert self.told.items() <= found.items()
            assert len(found) - len(self.told) <= unsure
        assert penstock.verify(path).ok


def started(*work: Callable[[], None], oracle: Oracle) -> list[threading.Thread]:
    """Threads that note what they raise, unless it is that the ring was closed."""

    def run(one: Callable[[], None]) -> None:
        try:
            one()
        except Closed:
            pass
        except BaseException as error:
            oracle.errors.append(error)

    threads = [threading.Thread(target=run, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    return threads


def appender(ring: penstock.Log, oracle: Oracle, name: str, most: int) -> Callable[[], None]:
    """Appends until there is enough, the ring is closed, or somebody says stop."""

    def work() -> None:
        for n in range(most):
            value = f"{name}-{n}".encode()
            oracle.note(ring.append(value, durable=n % 100 == 0), value)

    return work


def test_threads_resize_one_handle(tmp_path: Path) -> None:
    """Threads resize a ring while others append: each event is acknowledged once and is there."""
    for round_ in range(20 if STORM else 3):
        path = tmp_path / f"{round_}.ring"
        oracle = Oracle()
        with penstock.create(path, ring="2MiB") as ring:

            def resize(seed: int, ring: penstock.Log = ring) -> Callable[[], None]:
                rng = random.Random(seed)

                def work() -> None:
                    for _ in range(12):
                        ring.resize(rng.choice(SIZES))

                return work

            threads = started(
                resize(1),
                resize(2),
                *(appender(ring, oracle, name, 2000) for name in "abc"),
                oracle=oracle,
            )
            for thread in threads:
                thread.join()
            assert ring.append(b"after") == len(oracle.told) + 1
            oracle.note(ring.last_seq, b"after")
        oracle.check(path)


def resize_through(ring: penstock.Log) -> None:
    """One size after the other."""
    for size in SIZES:
        ring.resize(size)


def test_close_during_resize(tmp_path: Path) -> None:
    """close() in one thread while another resizes: the handle is closed, and nothing is lost."""
    rng = random.Random(3)
    for round_ in range(300 if STORM else 25):
        path = tmp_path / f"{round_}.ring"
        oracle = Oracle()
        ring = penstock.create(path, ring="2MiB")
        threads = started(
            functools.partial(resize_through, ring),
            appender(ring, oracle, "a", 100_000),
            oracle=oracle,
        )
        while not oracle.told:
            time.sleep(0)
        time.sleep(rng.random() * 0.02)
        ring.close()
        assert ring.closed
        for thread in threads:
            thread.join()
        assert ring.closed
        with pytest.raises(Closed):
            ring.append(b"x")
        oracle.check(path, unsure=1)  # a durable append that was committed, and not synced
        path.unlink()


class Interrupting:
    """Raises KeyboardInterrupt at the n-th line that the main thread executes below this."""

    def __init__(self, n: int) -> None:
        self.left = n

    def __call__(self, frame: FrameType, event: str, _: object) -> Interrupting:
        if event in ("line", "call", "return"):
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(signal.SIGINT)
        return self


@pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="signals need the main thread"
)
def test_ctrl_c_in_resize(tmp_path: Path) -> None:
    """Interrupted at any line of resize, the handle goes on, at the old size or the new one."""
    path = tmp_path / "c.ring"
    oracle = Oracle()
    with penstock.create(path, ring="2MiB") as ring:
        n, done, tracing = 0, False, sys.gettrace()
        while not done:
            n += 1
            oracle.note(ring.append(b"%d" % n), b"%d" % n)
            interrupting = Interrupting(n)
            try:
                sys.settrace(interrupting)
                try:
                    ring.resize(SIZES[n % 4])
                    done = interrupting.left > 0  # it may have hit a finaliser, which swallows it
                finally:
                    sys.settrace(tracing)
            except KeyboardInterrupt:
                done = False
            assert not ring.closed
            oracle.note(ring.append(b"-%d" % n, durable=True), b"-%d" % n)
        assert n > 10
    oracle.check(path)


def test_ctrl_c_at_any_time_in_resize(tmp_path: Path) -> None:
    """Interrupted at any moment of resize, by a timer, the handle goes on and has every event."""
    path = tmp_path / "t.ring"
    oracle = Oracle()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    rng = random.Random(5)
    interrupted = 0
    try:
        with penstock.create(path, ring="2MiB") as ring:
            for n in range(1, 2000 if STORM else 200):
                oracle.note(ring.append(b"%d" % n), b"%d" % n)
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.00001 + rng.random() * 0.006)
                    try:
                        ring.resize(SIZES[n % 4])
                    finally:
                        signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    interrupted += 1
                assert not ring.closed
                oracle.note(ring.append(b"-%d" % n), b"-%d" % n)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert interrupted
    oracle.check(path)


def test_a_resize_that_does_not_get_back_says_that_the_handle_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If another opener has the ring for longer than the handle's timeout, `Busy` says so."""
    path = tmp_path / "a.ring"
    penstock.create(path, ring="64KiB").close()
    log = penstock.open(path, timeout=0.01)
    other = os.open(path, os.O_RDWR)
    lock = files.lock_exclusive

    def comes_between(resizing: Any, attached: Any, epoch: int) -> bool:
        files.unlock(attached.held_fd, str(path))
        assert lock(other, str(path))
        return False

    monkeypatch.setattr(resize._Resize, "_hold_on", comes_between)
    monkeypatch.setattr(files, "lock_exclusive", lambda fd, path: False)
    with pytest.raises(penstock.Busy, match="the handle is closed: open the ring again"):
        log.resize("96KiB")
    monkeypatch.undo()
    with pytest.raises(penstock.Closed):
        log.append(b"x")
    os.close(other)
    with penstock.open(path) as log:
        assert log.append(b"x") == 1


def left_open(name: str) -> list[str]:
    """The descriptors of this process that lead to a deleted file of that name."""
    links = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed just now
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
    return [link for link in links if name in link and link.endswith("(deleted)")]


@pytest.mark.parametrize("use", ["read", "look up", "producer", "latest"])
def test_a_resize_lets_go_of_the_old_file(tmp_path: Path, use: str) -> None:
    """Whatever the handle did before, a resize closes the ring's old file, with its lock."""
    path = tmp_path / "old-name.ring"
    with penstock.create(path, ring="64KiB") as ring:
        ring.append(b"a", key=b"k", producer=("p", 1) if use == "producer" else None)
        if use == "read":
            assert len(list(ring)) == 1
        elif use == "look up":
            assert ring[1].value == b"a"
        elif use == "latest":
            assert ring.latest(b"k") is not None
        os.link(path, tmp_path / "other.ring")
        ring.resize("128KiB")
        assert left_open("old-name.ring") == []
        with penstock.open(tmp_path / "other.ring", timeout=0) as other:
            assert other[1].value == b"a"
        assert ring.append(b"b", producer=("p", 2)) == 2
