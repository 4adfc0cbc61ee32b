"""Following: waiting for what comes, from any start, and waking when it comes."""

from __future__ import annotations

import fcntl
import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import penstock


@contextmanager
def in_thread(work: Any) -> Iterator[None]:
    """Run ``work`` in a thread beside the block, and raise what it raised."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    if failed:
        raise failed[0]


@pytest.mark.parametrize(
    ("start", "seqs"),
    [("start", [1, 2, 3]), ("end", []), (1, [1, 2, 3]), (3, [3]), (4, []), (0, [1, 2, 3])],
)
def test_starts(log: penstock.Log, start: Any, seqs: list[int]) -> None:
    """follow begins at a seq, at the oldest event or after the newest; timeout=0 never waits."""
    log.extend([b"a", b"b", b"c"])
    assert [e.seq for e in log.follow(start, timeout=0)] == seqs


def test_the_end_is_where_the_log_was(log: penstock.Log) -> None:
    """follow("end") gives only what was appended after the call."""
    log.append(b"old")
    follower = log.follow("end", timeout=0)
    log.append(b"new")
    assert [e.value for e in follower] == [b"new"]


def test_following_goes_on_after_a_timeout(log: penstock.Log) -> None:
    """A follower that ran out of time can be asked again and misses nothing, across rolls."""
    follower = log.follow("start", timeout=0)
    seen = []
    for i in range(200):
        log.append(b"x" * 1000)
        if i % 3 == 0:
            seen += [e.seq for e in follower]
    seen += [e.seq for e in follower]
    assert seen == list(range(1, 201))


def test_a_start_in_the_future(log: penstock.Log) -> None:
    """A follower of a seq that does not exist yet waits for exactly that one."""
    log.append(b"a")
    follower = log.follow(4, timeout=0)
    log.extend([b"b", b"c"])
    assert list(follower) == []
    log.extend([b"d", b"e"])
    assert [e.seq for e in follower] == [4, 5]


def test_filters(log: penstock.Log) -> None:
    """A follower with filters gives only what matches, and moves past the rest."""
    follower = log.follow(topic="t", key=b"k", timeout=0)
    log.extend([penstock.Entry(b"1"), penstock.Entry(b"2", topic="t", key=b"k")])
    log.steward.roll()
    log.append(b"3", topic="t")
    log.append(b"4", topic="t", key=b"k")
    assert [e.value for e in follower] == [b"2", b"4"]
    assert follower.position == 5


@pytest.mark.parametrize("spin", [0, 0.001, math.inf])
@pytest.mark.parametrize("mode", ["rw", "r"])
def test_a_sleeping_follower_wakes(path: Path, spin: float, mode: Any) -> None:
    """Events appended by another handle while a follower waits reach it, however it waits."""
    with (
        penstock.open(path, segment_size="64KiB") as log,
        penstock.open(path, mode=mode) as following,
    ):
        follower = following.follow("start", spin=spin)
        seen: list[int] = []

        def read() -> None:
            for event in follower:
                seen.append(event.seq)
                if event.value == b"stop":
                    return

        with in_thread(read):
            for _ in range(200):
                log.append(b"x" * 500)
            log.append(b"stop")
        assert seen == list(range(1, 202))


def test_wait(log: penstock.Log) -> None:
    """wait is False when time is up, True when there is, or comes, a later event."""
    assert log.wait(0) is False
    log.append(b"a")
    assert log.wait(0) is False
    assert log.wait(0, after=0) is True
    assert log.wait(after=0) is True
    assert log.wait(0, after=1) is False
    last = log.last_seq
    with in_thread(lambda: log.append(b"b")):
        assert log.wait(after=last) is True


def test_a_readers_wait(log: penstock.Log) -> None:
    """reader.wait says whether something lies after its position, and take then gets it."""
    follower = log.follow("start")
    assert follower.wait(0) is False
    log.append(b"a")
    assert follower.wait(0) is True
    assert [e.seq for e in follower.take(10)] == [1]
    assert follower.wait(0) is False
    log.steward.roll()
    log.append(b"b")
    assert follower.wait(0) is True
    assert [e.seq for e in follower.take(10)] == [2]


def test_closing_ends_a_wait(path: Path) -> None:
    """A follower that sleeps in another thread is told when its log is closed."""
    log = penstock.open(path)
    log.append(b"a")
    follower = log.follow("start", timeout=30)
    next(follower)
    began = threading.Event()
    caught: list[BaseException] = []

    def sleep() -> None:
        began.set()
        try:
            next(follower)
        except penstock.Closed as error:
            caught.append(error)

    with in_thread(sleep):
        began.wait()
        log.close()
    assert len(caught) == 1


def frames_alone(path: Path) -> penstock.Log:
    """A read-only handle without control, as on read-only media."""
    path.joinpath("control").unlink()
    return penstock.open(path, mode="r")


def test_following_without_control(path: Path) -> None:
    """A reader that found no control sees a writer that comes later, and follows it over rolls."""
    with penstock.open(path, segment_size="64KiB") as log:
        log.append(b"a")
    with frames_alone(path) as reading:
        assert not reading.stats().live
        follower = reading.follow("start", timeout=0)
        assert [e.seq for e in follower] == [1]
        with penstock.open(path) as log:
            for _ in range(150):
                log.append(b"x" * 1000)
            assert [e.seq for e in follower] == list(range(2, 152))
        with penstock.open(path) as log:
            log.append(b"z")
            assert [e.seq for e in follower] == [152]


def test_an_opening_writer_does_not_disturb(path: Path) -> None:
    """While somebody holds the directory to open the log, a follower without control just waits."""
    with penstock.open(path) as log:
        log.append(b"a")
    with frames_alone(path) as reading:
        follower = reading.follow("end")
        fd = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            assert follower.wait(0.02) is False
            assert reading.wait(0.02) is False
        finally:
            os.close(fd)


def test_threads_share_a_handle(path: Path) -> None:
    """Several threads append through one handle while another follows: each event comes once."""
    with penstock.open(path, segment_size="64KiB") as log:
        follower = log.follow("start", timeout=30)
        per_thread, threads = 300, 3

        def write(name: int) -> None:
            for i in range(per_thread):
                if i % 10 == 0:
                    log.extend([b"%d:%d" % (name, i)] * 1)
                else:
                    log.append(b"%d:%d" % (name, i))

        writers = [threading.Thread(target=write, args=(n,)) for n in range(threads)]
        for thread in writers:
            thread.start()
        seen = [next(follower).value for _ in range(per_thread * threads)]
        for thread in writers:
            thread.join()
        for name in range(threads):
            mine = [v for v in seen if v is not None and v.startswith(b"%d:" % name)]
            assert mine == [b"%d:%d" % (name, i) for i in range(per_thread)]
