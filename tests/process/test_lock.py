"""The write lock between processes: stopped holders, time-outs, Ctrl-C, equal PIDs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import penstock
from penstock import Busy
from tests.support.check import check_access, read_followed
from tests.support.scene import Scene
from tests.support.wait import wait_for
from tests.support.workers import Worker

pytestmark = pytest.mark.process

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a PID namespace takes root")


def stopped_holder(scene: Scene, point: str = "lock.taken") -> Worker:
    """A process that was stopped inside the write lock."""
    holder = scene.start(
        "write",
        "holder",
        warm=[[5]],
        operations=[[10, 20_000, 30], [20]],
        fail=[point, 1, signal.SIGSTOP],
    )
    holder.wait_stopped()
    return holder


@pytest.mark.parametrize("point", ["lock.taken", "publish.body", "publish.commit", "publish.head"])
def test_stopped_holder(any_scene: Scene, point: str) -> None:
    """While a holder is stopped others wait and readers read; when it goes on nothing is amiss."""
    any_scene.seed()
    others = [
        any_scene.start(
            "write", f"other{i}", warm=[[1]], operations=[[30], [5, 6]], go=any_scene.file("go")
        )
        for i in range(2)
    ]
    for other in others:
        other.wait_report("ready")
    holder = stopped_holder(any_scene, point)
    any_scene.file("go").touch()
    before = any_scene.check()
    reader = any_scene.run("read_all", path=any_scene.path)
    reader.done()
    assert len(reader.wait_report("events")) == len(before)
    assert all(other.alive for other in others)
    holder.send(signal.SIGCONT)
    for worker in (holder, *others):
        worker.done()
    with penstock.open(any_scene.path, mode="r") as log:
        assert log.stats().takeovers == 0
    any_scene.check_goes_on()


STOPPED_ROLLS = [
    *(("roll.reserved", 1), ("roll.committed", 1), ("segment.named", 1), ("segment.synced", 1)),
    *(("repair.word", times) for times in range(1, 15)),
    *(("repair.head", 1), ("roll.published", 1)),
]


@pytest.mark.parametrize(("point", "times"), STOPPED_ROLLS)
def test_stopped_roller(scene: Scene, point: str, times: int) -> None:
    """Between any two stores of a roll readers see the whole log, and new ones open it."""
    scene.seed()
    attached = scene.run("hold_open", path=scene.path, go=scene.file("go"), mode="r")
    attached.wait_report("ready")
    follower = scene.run("follow", path=scene.path, out=scene.file("followed"))
    standing = penstock.open(scene.path, mode="r")
    roller = scene.start("roll", "roller", rolls=2, fail=[point, times, signal.SIGSTOP])
    roller.wait_stopped()
    prints = scene.check()
    events = len(prints)
    check_access(standing, prints)
    scene.file("go").touch()
    attached.done()
    assert attached.wait_report("read") == events
    waiting = scene.start("write", "waiting", operations=[[10], [20, 30]])
    waiting.wait_report("ready")
    roller.send(signal.SIGCONT)
    roller.wait_report("rolled")
    waiting.done()
    roller.kill()
    scene.start("write", "stop", operations=[[0]]).done()
    follower.done()
    prints = scene.check()
    assert read_followed(scene.file("followed")) == list(enumerate(prints, start=1))
    check_access(standing, prints)
    standing.close()
    scene.check_goes_on()


@pytest.mark.parametrize("warm", [[], [[1]]], ids=["first-append", "later-append"])
def test_timeout_of_an_append(any_scene: Scene, warm: list[list[int]]) -> None:
    """An append with a timeout raises Busy while the holder is stopped, and writes nothing."""
    any_scene.seed()
    other = any_scene.start(
        "write", "other", warm=warm, operations=[[9]], go=any_scene.file("go"), timeout=0.2
    )
    other.wait_report("ready")
    holder = stopped_holder(any_scene)
    any_scene.file("go").touch()
    assert other.wait(seconds=8) == 1, "an open's time-out is 10 s; the append's was 0.2 s"
    assert other.wait_report("error") == "Busy"
    any_scene.check()
    holder.send(signal.SIGCONT)
    holder.done()
    any_scene.check_goes_on()


def test_append_without_timeout_waits_longer_than_an_open_would(any_scene: Scene) -> None:
    """The first append of a handle has no time limit of its own, whatever the open had."""
    any_scene.seed()
    holder = stopped_holder(any_scene)
    with penstock.open(any_scene.path, timeout=0.1) as log:
        with pytest.raises(Busy):
            log.append(b"", timeout=0.3)
        waiting = any_scene.run(
            "append_after_short_open", path=any_scene.path, go=any_scene.file("go")
        )
        waiting.wait_report("appending")
        with pytest.raises(Busy):  # outlasts the 0.1 s of the worker's open
            log.append(b"", timeout=1)
    assert waiting.alive
    holder.send(signal.SIGCONT)
    holder.done()
    waiting.done()


def test_close_beside_a_stopped_holder(scene: Scene) -> None:
    """Closing a handle does not wait for another process that is stopped inside the lock."""
    scene.seed(segment_size=64 << 20)
    other = scene.start("write", "other", warm=[[1]], operations=[], go=scene.file("go"))
    other.wait_report("ready")
    holder = scene.start(
        "write",
        "holder",
        operations=[[500_000] * 10, [20]],
        fail=["lock.taken", 3, signal.SIGSTOP],
    )
    holder.wait_stopped()
    scene.file("go").touch()
    other.done()
    holder.send(signal.SIGCONT)
    holder.done()
    scene.check_goes_on()


def test_interrupt_in_the_moment_of_taking_over(any_scene: Scene) -> None:
    """Ctrl-C right after the lock was taken does not leave it taken for as long as we live."""
    any_scene.seed()
    interrupted = any_scene.start(
        "interrupted_take_over",
        "interrupted",
        go=any_scene.file("go"),
        end=any_scene.file("end"),
    )
    assert interrupted.wait_report("ready")  # no other process has a thread that could take over
    any_scene.start(
        "write", "victim", warm=[[1]], operations=[[50]], fail=["publish.body", 1, signal.SIGKILL]
    ).died()
    any_scene.file("go").touch()
    assert interrupted.wait_report("interrupted")
    any_scene.start("write", "after", operations=[[1], [2], [3]]).done()
    any_scene.file("end").touch()
    interrupted.done()
    any_scene.check_goes_on()


def inner_pid(worker: Worker) -> int:
    """The PID, as we see it, of the process that a namespaced job runs in."""
    pid = worker.pid
    for _ in range(2):
        (pid,) = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return pid


def in_namespace(scene: Scene, name: str, **args: object) -> Worker:
    """Start a writer as process 2 of its own PID namespace."""
    acks = scene.acks_of(name)
    job_args = {"path": str(scene.path), "acks": str(acks), "writer": name, **args}
    return scene.run("namespaced", inner="write", args=job_args)


@needs_root
def test_equal_pids_at_work(any_scene: Scene) -> None:
    """Two writers with the same PID in two namespaces never take each other for dead."""
    any_scene.seed()
    with penstock.open(any_scene.path) as log:
        workers = [
            in_namespace(any_scene, f"n{i}", operations=[[100], [20, 30], [40_000]] * 150)
            for i in range(2)
        ]
        assert {w.wait_report("pid") for w in workers} == {2}
        for worker in workers:
            worker.done()
        assert log.stats().takeovers == 0
    any_scene.check_goes_on()


@needs_root
def test_equal_pids_and_a_death(any_scene: Scene) -> None:
    """A living, stopped holder with our own PID keeps the lock; once it is killed, we take over."""
    any_scene.seed()
    go = any_scene.file("go")
    patient = in_namespace(any_scene, "patient", warm=[[1]], operations=[[7], [8, 9]], go=str(go))
    hasty = in_namespace(any_scene, "hasty", warm=[[1]], operations=[[7]], go=str(go), timeout=0.5)
    for worker in (patient, hasty):
        worker.wait_report("ready")
    holder = in_namespace(
        any_scene,
        "holder",
        warm=[[5]],
        operations=[[10], [20]],
        fail=["lock.taken", 1, signal.SIGSTOP],
    )
    holder.wait_report("stopped")
    assert {w.wait_report("pid") for w in (patient, hasty, holder)} == {2}
    go.touch()
    assert hasty.wait() == 1
    assert hasty.wait_report("error") == "Busy"
    assert patient.alive
    os.kill(inner_pid(holder), signal.SIGKILL)
    assert holder.wait() == 128 + signal.SIGKILL
    patient.done()
    any_scene.check_goes_on()


def test_many_waiters_and_a_dead_holder(any_scene: Scene) -> None:
    """Of many that wait when the holder dies one takes over and all get their turn."""
    any_scene.seed()
    go = any_scene.file("go")
    holder = stopped_holder(any_scene, "publish.body")
    others = [
        any_scene.start("write", f"other{i}", operations=[[30], [5, 6], [9000]], go=go, threads=2)
        for i in range(4)
    ]
    for other in others:
        other.wait_report("ready")
    go.touch()
    wait_for(
        lambda: all(any_scene.file(f"other{i}.acks").stat().st_size for i in range(4)), "appends"
    )
    holder.kill()
    for other in others:
        other.done()
    any_scene.check_goes_on()
