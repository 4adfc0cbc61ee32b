"""Followers that wait are woken by what is appended, in other processes and whatever dies."""

from __future__ import annotations

import signal
import statistics
import time
from pathlib import Path

import pytest

import penstock
from penstock import _core
from tests.support.fixtures import STORM
from tests.support.scene import Scene
from tests.support.wait import wait_for
from tests.support.workers import Crew, Worker

pytestmark = pytest.mark.process

TRIPS = 5_000_000 if STORM else 100_000  # about one in five finds its follower really asleep
SLICE = 1.0  # seconds after which a sleeping follower looks by itself: what a lost wake-up costs


def asleep(worker: Worker) -> bool:
    """Whether the kernel says that the process sleeps."""
    stat = Path(f"/proc/{worker.pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "S"


def sleeping_follower(scene: Scene, job: str = "wait_once", **args: object) -> Worker:
    """A follower that has seen all there is and has gone to sleep."""
    follower = scene.run(job, path=scene.path, **args)
    follower.wait_report("ready")
    wait_for(lambda: asleep(follower), "the follower to sleep")
    return follower


@pytest.mark.timeout(1800 if STORM else 300)
def test_ping_pong(crew: Crew, tmp_path: Path) -> None:
    """Over many round trips between two processes no wake-up is lost."""
    there, back = tmp_path / "there", tmp_path / "back"
    with (
        penstock.open(there, segment_size=256 << 10) as a,
        penstock.open(back, segment_size=256 << 10) as b,
    ):
        worker = crew.start(tmp_path, "echo", there=there, back=back, trips=TRIPS)
        worker.wait_report("ready")
        follower = b.follow(1, timeout=60)
        overslept = 0
        for i in range(TRIPS):
            value = b"%d" % i
            began = time.monotonic()
            a.append(value)
            assert next(follower).value == value
            # Not a measure of speed: a follower that was not woken wakes by itself after a whole
            # slice. A few such pauses may be the machine's.
            overslept += time.monotonic() - began > 0.9 * SLICE
            assert overslept <= max(2, TRIPS // 100_000), f"in {i + 1} round trips"
        worker.done()


@pytest.mark.parametrize("how", ["append", "extend", "roll"])
def test_every_append_wakes(scene: Scene, how: str) -> None:
    """A follower that sleeps is woken by an append, a batch, and an append that rolls."""
    scene.seed(segment_size=64 << 10)
    overslept = 0
    with penstock.open(scene.path) as log:
        for _ in range(10):
            follower = sleeping_follower(scene)
            began = time.monotonic()
            if how == "append":
                seq = log.append(b"x")
            elif how == "extend":
                seq = log.extend([b"x", b"y"])[0]
            else:
                log.steward.roll()
                seq = log.append(b"x")
            assert follower.wait_report("seq") == seq
            overslept += time.monotonic() - began > 0.9 * SLICE
            follower.done()
    if not _core.PORTABLE:
        assert overslept <= 2


def test_death_of_a_waiting_follower(scene: Scene) -> None:
    """A follower killed in its sleep takes no wake-up away from the others."""
    scene.seed()
    with penstock.open(scene.path) as log:
        for _ in range(10):
            first, second, third = (sleeping_follower(scene) for _ in range(3))
            second.kill()
            seq = log.append(b"x")
            for follower in (first, third):
                assert follower.wait_report("seq") == seq
                follower.done()


def test_death_before_the_wake_up(scene: Scene) -> None:
    """Followers wake all the same if the writer dies after unlocking and before waking them."""
    scene.seed()
    go = scene.file("go")
    victim = scene.start(
        "write",
        "victim",
        warm=[[5]],
        operations=[[10]],
        go=go,
        fail=["lock.given", 1, signal.SIGKILL],
    )
    last = victim.wait_report("ready")
    follower = sleeping_follower(scene)
    go.touch()
    victim.died()
    assert follower.wait_report("seq") == last + 1
    follower.done()


def test_interrupt_ends_the_wait(scene: Scene) -> None:
    """Ctrl-C ends a waiting follower at once, not at the end of its slice of sleep."""
    scene.seed()
    took = []
    for _ in range(5):
        follower = sleeping_follower(scene)
        began = time.monotonic()
        follower.send(signal.SIGINT)
        assert follower.wait_report("interrupted")
        took.append(time.monotonic() - began)
        follower.done()
    assert statistics.median(took) < SLICE / 2


def test_interrupt_ends_the_wait_for_the_lock(scene: Scene) -> None:
    """Ctrl-C ends an append that waits for a stopped holder, and the log goes on afterwards."""
    scene.seed()
    holder = scene.start(
        "write", "holder", warm=[[5]], operations=[[10]], fail=["lock.taken", 1, signal.SIGSTOP]
    )
    holder.wait_stopped()
    waiter = scene.start("write", "waiter", operations=[[10]], timeout=60)
    waiter.wait_report("ready")
    wait_for(lambda: scene.file("waiter.acks").read_text().startswith("i "), "the append to begin")
    waiter.send(signal.SIGINT)
    assert waiter.wait() == 1
    assert waiter.wait_report("error") == "KeyboardInterrupt"
    holder.send(signal.SIGCONT)
    holder.done()
    scene.check_goes_on()
