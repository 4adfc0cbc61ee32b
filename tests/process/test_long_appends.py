"""Appends so long that two threads do them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock import Closed, tunables
from tests.support.fixtures import STORM
from tests.support.scene import Scene

pytestmark = pytest.mark.process

SIZES = [100, 0, 7, 200, 61] * 2000


def batch(mark: int) -> list[bytes]:
    return [bytes([mark % 256]) * n for n in SIZES]


def test_so_long_are_they() -> None:
    """The batch of these tests is one that two threads do, in several parts."""
    nbytes = sum(map(len, batch(1))) + 40 * len(SIZES)
    assert nbytes > max(tunables.WRITE_TOGETHER_BYTES, 4 * tunables.WRITE_RUN_BYTES)


def whole_batches(path: str) -> list[int]:
    """The marks of the batches in a log, each of which must be whole."""
    marks: list[int] = []
    with penstock.open(path, mode="r") as log:
        values = [bytes(event.view) for event in log]
    for start in range(0, len(values), len(SIZES)):
        mark = values[start][0]
        assert values[start : start + len(SIZES)] == batch(mark)
        marks.append(mark)
    return marks


def in_worker(scene: Scene, function: Callable[..., None], **args: object) -> None:
    scene.run(
        "run_in_worker",
        module=__name__,
        function=function.__name__,
        args={"path": str(scene.path)} | args,
    ).done()


def on_one_processor(path: str) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with penstock.open(path) as log:
        for mark in range(5):
            log.extend(batch(mark))
    assert whole_batches(path) == list(range(5))


def test_on_one_processor(scene: Scene) -> None:
    """Where a thread would do no good there is none, and batches are the same."""
    in_worker(scene, on_one_processor)


def close_under(path: str) -> None:
    log = penstock.open(path)
    acked: list[int] = []
    ends: list[BaseException] = []
    enough = threading.Event()

    def run() -> None:
        try:
            while True:
                acked.append(log.extend(batch(len(acked))).stop)
                if len(acked) > 4:
                    enough.set()
        except BaseException as error:
            ends.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert enough.wait(60)
    log.close()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert [type(error) for error in ends] == [Closed] * 2, ends
    assert len(whole_batches(path)) >= len(acked)


def test_close_under_them(scene: Scene) -> None:
    """Closing the log during a long append leaves whole batches, and Closed for the threads."""
    for number in range(40 if STORM else 5):
        scene.path = scene.file(f"log{number}")
        in_worker(scene, close_under)


def fork_under(path: str) -> None:
    """Fork while a thread appends, and have the children append as well."""
    children = 10
    log = penstock.open(path)
    stop = threading.Event()
    acked: list[int] = []

    def run() -> None:
        while not stop.is_set():
            log.extend(batch(100 + len(acked) % 100))
            acked.append(1)

    thread = threading.Thread(target=run)
    thread.start()
    for child in range(children):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                log.extend(batch(child))
                log.extend(batch(child))
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
    stop.set()
    thread.join(60)
    assert not thread.is_alive()
    log.close()
    marks = whole_batches(path)
    assert sorted(m for m in marks if m < 100) == sorted([*range(children)] * 2)
    assert len(marks) == len(acked) + 2 * children


def test_fork_under_them(scene: Scene) -> None:
    """A child forked during a long append has a thread of its own, and waits for nobody else's."""
    in_worker(scene, fork_under)


PLAIN = [100, 61, 200, 90] * 2500  # each has room for its mark, so that all are values and no more


@pytest.mark.parametrize("sizes", [SIZES, PLAIN], ids=["any", "plain"])
@pytest.mark.parametrize(
    ("point", "times"),
    [("publish.batch_body", 4000), ("publish.batch_body", 9900), ("publish.written", 1)],
)
def test_death_amid_one(any_scene: Scene, point: str, times: int, sizes: list[int]) -> None:
    """If a process dies while parts of its batch are being written, none of it is there."""
    any_scene.seed(4 << 20)
    victim = any_scene.start(
        "write", "victim", operations=[sizes, sizes], fail=[point, times, signal.SIGKILL]
    )
    other = any_scene.start("write", "other", operations=[[10], sizes, [20]])
    victim.died()
    other.done()
    any_scene.check_goes_on()


def test_the_way_that_they_take(tmp_path: Path) -> None:
    """Short and long frames of one batch, in any order, come out as they went in."""
    values = [bytes([n % 256]) * (n % 50) for n in range(9000)]
    for at, n in ((0, 40_000), (3000, 700_000), (6000, 300_000), (9002, 33_000)):
        values.insert(at, b"L" * n)
    with penstock.open(tmp_path / "log") as log:
        log.append(b"before")
        for _ in range(3):
            log.extend(values)
            log.extend([penstock.Entry(value, key=b"k") for value in values])
        assert [event.value for event in log] == [b"before", *values * 6]
    report = penstock.verify(tmp_path / "log")
    assert report.ok and not report.problems, report


def test_runs_end_anywhere(tmp_path: Path) -> None:
    """Frames that end just where a run does, or go over it by any part of themselves, are whole."""
    for size in (24, 25, 32, 88, 4056, 8000):
        values = [n.to_bytes(8, "little") * (size // 8) for n in range((2 << 20) // (size + 40))]
        path = tmp_path / f"log{size}"
        with penstock.open(path) as log:
            log.extend(values)
            log.extend(values, topic="t", time=1)
            assert [event.value for event in log] == values * 2
        report = penstock.verify(path)
        assert report.ok and not report.problems, report
