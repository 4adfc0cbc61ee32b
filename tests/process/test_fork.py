"""Forks: in the middle of appends, under a lock, with handles and readers that are inherited."""

from __future__ import annotations

import signal

import pytest

import penstock
from tests.support.acks import Acks
from tests.support.scene import Scene

pytestmark = pytest.mark.process


def test_fork_amid_appends(any_scene: Scene) -> None:
    """Children of a process whose threads append append too, and nobody harms anybody."""
    any_scene.seed(1 << 20)
    worker = any_scene.start("fork_amid_appends", "f", children=12, count=15)
    worker.done()
    assert worker.wait_report("codes") == [0] * 12, worker.errors()
    assert worker.wait_report("failures") == []
    with penstock.open(any_scene.path, mode="r") as log:
        assert log.stats().takeovers == 0
    any_scene.check_goes_on()


@pytest.mark.parametrize("point", ["lock.taken", "publish.body", "publish.batch_body"])
def test_child_of_a_dead_holder(any_scene: Scene, point: str) -> None:
    """A living child does not make its dead parent look alive: others take over the lock."""
    any_scene.seed()
    go, go_child = any_scene.file("go"), any_scene.file("go-child")
    other = any_scene.start("write", "other", warm=[[1]], operations=[[10], [20, 30]], go=go)
    other.wait_report("ready")
    parent = any_scene.start("parent_dies", "parent", go=go_child, fail=[point, 1, signal.SIGKILL])
    parent.died()
    assert parent.wait_report_of_orphan("child")
    go.touch()
    other.done()
    any_scene.check()
    go_child.touch()
    assert parent.wait_report_of_orphan("appended"), parent.errors()
    any_scene.check_goes_on()


def test_fork_while_another_thread_opens(any_scene: Scene) -> None:
    """A child forked in the middle of an open does not hold the log when the opener dies."""
    any_scene.seed()
    opener = any_scene.run("fork_while_opening", path=any_scene.path)
    opener.died()
    assert opener.wait_report_of_orphan("child")
    any_scene.check_goes_on()


def test_child_closes_what_it_inherited(scene: Scene) -> None:
    """Closing an inherited handle does not touch the handle that the child opened itself."""
    acks = scene.acks_of("first")
    acks.write_text("i first 1 1\na first 1 1\n")
    own = scene.acks_of("own")
    go = scene.file("go")
    worker = scene.run("closes_inherited", path=scene.path, acks=own, go=go)
    worker.wait_report("own")
    control = scene.path / "control"
    inode = control.stat().st_ino
    with penstock.open(scene.path) as log:
        assert control.stat().st_ino == inode, "control was rebuilt under a living handle"
        mine = Acks(str(scene.acks_of("beside")), "beside")
        mine.append(log, [10])
        go.touch()
        worker.done()
        mine.append(log, [10])
        mine.close()
    scene.check_goes_on()


def test_threads_of_a_child(any_scene: Scene) -> None:
    """Threads that use an inherited handle at the same time all get it opened again."""
    any_scene.seed()
    for number in range(5):
        any_scene.start("threads_in_child", f"p{number}", threads=8).done()
    any_scene.check_goes_on()


def test_multiprocessing(any_scene: Scene) -> None:
    """Processes of multiprocessing's fork method use the log that they inherit."""
    any_scene.seed(1 << 20)
    worker = any_scene.start("multiprocess", "m", children=3)
    worker.done()
    assert worker.wait_report("codes") == [0, 0, 0], worker.errors()
    any_scene.check_goes_on()


def test_inherited_reader(scene: Scene) -> None:
    """A follower that is inherited goes on in the child where it stood, and waits there."""
    scene.seed(more=[[60_000]] * 6)
    worker = scene.run("inherited_reader", path=scene.path, out=scene.file("out"))
    assert worker.wait_report("first") == 1
    with penstock.open(scene.path) as log:
        mine = Acks(str(scene.acks_of("later")), "later")
        mine.append(log, [100_000])
        mine.append(log, [100_000])
        mine.close()
        stop = Acks(str(scene.acks_of("stop")), "stop")
        last = stop.append(log, [0])
        stop.close()
    worker.done()
    assert [r["seq"] for r in worker.reports() if "seq" in r] == list(range(2, last + 1))
    scene.check_goes_on()
