"""Followers that wait are woken by what is appended, in other processes and whatever dies."""

from __future__ import annotations

import signal
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import _core
from tests.support.fixtures import STORM
from tests.support.scene import Scene
from tests.support.wait import wait_for
from tests.support.workers import Crew, Worker

pytestmark = pytest.mark.process

TRIPS = 5_000_000 if STORM else 100_000  # about one in five finds its follower really asleep
WAKE_UPS = 200
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


KINDS: dict[str, dict[str, Any]] = {
    "segmented": {"segment_size": 256 << 10},
    "ring": {"ring": 256 << 10},
}


@pytest.mark.timeout(1800 if STORM else 300)
@pytest.mark.parametrize(("kind", "trips"), [("segmented", TRIPS), ("ring", TRIPS // 4)])
def test_ping_pong(crew: Crew, tmp_path: Path, kind: str, trips: int) -> None:
    """Over many round trips between two processes no wake-up is lost."""
    if _core.POLLING:  # nobody is woken there, and each trip takes longer
        trips //= 20
    there, back = tmp_path / "there", tmp_path / "back"
    with penstock.open(there, **KINDS[kind]) as a, penstock.open(back, **KINDS[kind]) as b:
        worker = crew.start(tmp_path, "echo", there=there, back=back, trips=trips)
        worker.wait_report("ready")
        follower = b.follow(1, timeout=60)
        overslept = 0
        for i in range(trips):
            value = b"%d" % i
            began = time.monotonic()
            a.append(value)
            assert next(follower).value == value
            # Not a measure of speed: a follower that was not woken wakes by itself after a whole
            # slice. A few such pauses may be the machine's.
            overslept += time.monotonic() - began > 0.9 * SLICE
            assert overslept <= max(2, trips // 100_000), f"in {i + 1} round trips"
        worker.done()


@pytest.mark.parametrize("how", ["append", "extend", "roll"])
def test_every_append_wakes(any_scene: Scene, how: str) -> None:
    """A follower that sleeps is woken by an append, a batch, and an append that rolls or wraps."""
    any_scene.seed(64 << 10)
    overslept = 0
    with penstock.open(any_scene.path) as log:
        for _ in range(10):
            ring = log.stats().ring
            if how == "roll" and ring is not None:  # to where the next append begins a lap
                log.append(bytes(ring.ring_bytes // 3))
                while log.stats().ring.head % ring.ring_bytes < ring.ring_bytes - 3000:  # type: ignore[union-attr]
                    log.append(bytes(2000))
            follower = sleeping_follower(any_scene)
            began = time.monotonic()
            if how == "append":
                seq = log.append(b"x")
            elif how == "extend":
                seq = log.extend([b"x", b"y"])[0]
            elif ring is not None:
                seq = log.append(bytes(4000))
            else:
                log.steward.roll()
                seq = log.append(b"x")
            assert follower.wait_report("seq") == seq
            overslept += time.monotonic() - began > 0.9 * SLICE
            follower.done()
    if not _core.POLLING:
        assert overslept <= 2


def seconds_to_wake(crew: Crew, directory: Path, kind: str, mode: str) -> float:
    """Median of the seconds from an append to the return of a follower that slept elsewhere."""
    path = directory / f"{kind}-{mode}"
    with penstock.open(path, **KINDS[kind]) as log:
        worker = crew.start(directory, "note_arrivals", path=path, mode=mode, count=WAKE_UPS)
        worker.wait_report("ready")
        for _ in range(WAKE_UPS):
            wait_for(lambda: asleep(worker), "the follower to sleep")
            log.append(b"%d" % time.monotonic_ns())
            time.sleep(0.003)  # so that the next one finds it asleep
        worker.done()
        return float(statistics.median(worker.wait_report("seconds")))


@pytest.mark.parametrize("mode", ["rw", "r"])
def test_followers_wake_soon(crew: Crew, tmp_path: Path, mode: str) -> None:
    """A follower of a ring is woken as soon as one of segments is, and not by a timer."""
    segmented, ring = (seconds_to_wake(crew, tmp_path, kind, mode) for kind in KINDS)
    print(f"{mode}: segmented {segmented * 1e6:.0f} µs, ring {ring * 1e6:.0f} µs")
    # Not a measure of speed, so with much to spare: naps and time slices are longer than this.
    assert ring < (0.012 if _core.POLLING else 0.005)
    assert ring < 10 * segmented + 0.001


def test_death_of_a_waiting_follower(any_scene: Scene) -> None:
    """A follower killed in its sleep takes no wake-up away from the others."""
    any_scene.seed()
    with penstock.open(any_scene.path) as log:
        for _ in range(10):
            first, second, third = (sleeping_follower(any_scene) for _ in range(3))
            second.kill()
            seq = log.append(b"x")
            for follower in (first, third):
                assert follower.wait_report("seq") == seq
                follower.done()


def test_death_before_the_wake_up(any_scene: Scene) -> None:
    """Followers wake all the same if the writer dies after unlocking and before waking them."""
    any_scene.seed()
    go = any_scene.file("go")
    victim = any_scene.start(
        "write",
        "victim",
        warm=[[5]],
        operations=[[10]],
        go=go,
        fail=["lock.given", 1, signal.SIGKILL],
    )
    last = victim.wait_report("ready")
    follower = sleeping_follower(any_scene)
    go.touch()
    victim.died()
    assert follower.wait_report("seq") == last + 1
    follower.done()


def test_interrupt_ends_the_wait(any_scene: Scene) -> None:
    """Ctrl-C ends a waiting follower at once, not at the end of its slice of sleep."""
    any_scene.seed()
    took = []
    for _ in range(5):
        follower = sleeping_follower(any_scene)
        began = time.monotonic()
        follower.send(signal.SIGINT)
        assert follower.wait_report("interrupted")
        took.append(time.monotonic() - began)
        follower.done()
    assert statistics.median(took) < SLICE / 2


def test_interrupt_ends_the_wait_for_the_lock(any_scene: Scene) -> None:
    """Ctrl-C ends an append that waits for a stopped holder, and the log goes on afterwards."""
    any_scene.seed()
    holder = any_scene.start(
        "write", "holder", warm=[[5]], operations=[[10]], fail=["lock.taken", 1, signal.SIGSTOP]
    )
    holder.wait_stopped()
    waiter = any_scene.start("write", "waiter", operations=[[10]], timeout=60)
    waiter.wait_report("ready")
    wait_for(
        lambda: any_scene.file("waiter.acks").read_text().startswith("i "), "the append to begin"
    )
    waiter.send(signal.SIGINT)
    assert waiter.wait() == 1
    assert waiter.wait_report("error") == "KeyboardInterrupt"
    holder.send(signal.SIGCONT)
    holder.done()
    any_scene.check_goes_on()
