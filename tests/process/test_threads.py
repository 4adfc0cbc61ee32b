"""Many threads on one handle, many handles in one process, beside other processes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import penstock
from penstock import Closed
from tests.support.scene import Scene
from tests.support.threads import threads_of

pytestmark = pytest.mark.process

MIXED = [[100], [0], [20, 3000, 30], [33_000], [7], [200_000], [10, 10]] * 12


def test_threads_beside_a_process(any_scene: Scene) -> None:
    """Six threads of one handle and another process append at once, over many rolls."""
    any_scene.seed(1 << 20)
    workers = [
        any_scene.start("write", "threads", operations=MIXED, threads=6),
        any_scene.start("write", "process", operations=MIXED),
    ]
    for worker in workers:
        worker.done()
    any_scene.check_goes_on()


def test_two_handles_in_one_process(any_scene: Scene) -> None:
    """Handles of one process on the same log are as strangers to each other."""
    any_scene.seed(1 << 20)
    workers = [
        any_scene.start("write", "handles", operations=MIXED, threads=4, handles=2),
        any_scene.start("write", "process", operations=MIXED),
    ]
    for worker in workers:
        worker.done()
    with penstock.open(any_scene.path, mode="r") as log:
        assert log.stats().takeovers == 0
    any_scene.check_goes_on()


def test_two_handles_take_turns(tmp_path: Path) -> None:
    """What one handle appends the other reads at once, and closing one leaves the other."""
    first = penstock.open(tmp_path / "log", segment_size=1 << 20)
    second = penstock.open(tmp_path / "log")
    for i in range(200):
        log = first if i % 2 else second
        other = second if i % 2 else first
        seq = log.append(bytes(20_000) + b"%d" % i)
        assert bytes(other[seq].view[20_000:]) == b"%d" % i
        assert other.last_seq == seq
    first.close()
    assert second.append(b"on") == 201
    with pytest.raises(Closed):
        first.append(b"off")
    second.close()


def test_first_appends_at_once(tmp_path: Path) -> None:
    """Threads that append first at the same moment leave no thread behind when the log closes."""
    for number in range(10):
        log = penstock.open(tmp_path / f"log{number}")
        barrier = threading.Barrier(8)

        def run(log: penstock.Log = log, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            log.append(b"x")

        threads = [threading.Thread(target=run) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(log) == 8
        log.close()
        assert not threads_of()


def close_under_appends(path: str) -> None:
    """The worker's part of the test below: a crash would end the process."""
    log = penstock.open(path, segment_size=1 << 20)
    acked: list[int] = []
    ends: list[BaseException] = []
    enough = threading.Event()

    def run() -> None:
        try:
            while True:
                acked.append(log.append(bytes(40_000)))
                if len(acked) > 60:
                    enough.set()
        except BaseException as error:
            ends.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert enough.wait(60)
    log.close()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert [type(error) for error in ends] == [Closed] * 4, ends
    with penstock.open(path, timeout=1) as again:
        seqs = [event.seq for event in again]
        assert seqs == list(range(1, len(seqs) + 1))
        assert set(acked) <= set(seqs)
        again.append(b"on")


def test_close_under_appends(scene: Scene) -> None:
    """Closing a handle that other threads append on ends them with Closed and nothing worse."""
    for number in range(25):
        scene.run(
            "run_in_worker",
            module="tests.process.test_threads",
            function="close_under_appends",
            args={"path": str(scene.file(f"log{number}"))},
        ).done()
