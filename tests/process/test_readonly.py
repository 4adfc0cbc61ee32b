"""mode="r": before, beside and without writers, and where nothing can be written at all."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import pytest

import penstock
from penstock import Busy, NotFound, Permission
from tests.support.acks import Acks
from tests.support.check import read_followed
from tests.support.scene import Scene
from tests.support.wait import wait_for
from tests.support.workers import Worker

pytestmark = pytest.mark.process

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")


def on_read_only_mount(scene: Scene, inner: str, **args: object) -> Worker:
    """Run a job that sees the log's directory mounted read-only."""
    plain = {"path": str(scene.path), **args}
    return scene.run("read_only_mount", path=scene.path, inner=inner, args=plain)


def followed_to(out: Path, seq: int) -> bool:
    """Whether a follower has written down the event ``seq``."""
    return [s for s, _ in read_followed(out)[-1:]] == [seq]


def snapshot(path: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything about the files of a directory that a reader must not change."""
    return {
        p.name: (p.stat().st_mtime_ns, p.stat().st_ino, p.read_bytes())
        for p in sorted(path.iterdir())
    }


@pytest.mark.parametrize("control", [True, False], ids=["control", "no-control"])
def test_reading_changes_nothing(scene: Scene, control: bool) -> None:
    """A reader without writers leaves every file as it is, also behind a dead writer."""
    scene.seed(more=[[60_000]] * 6)
    scene.start(
        "write", "victim", operations=[[9, 9, 9]], fail=["publish.batch_body", 2, signal.SIGKILL]
    ).died()
    if not control:
        (scene.path / "control").unlink()
    before = snapshot(scene.path)
    scene.check()
    with penstock.open(scene.path, mode="r") as log, pytest.raises(Permission):
        log.append(b"x")
    after = snapshot(scene.path)
    if control:  # a follower may say in control that it waits; the file stays the same one
        assert before.pop("control")[1] == after.pop("control")[1]
    assert before == after


def test_reader_before_any_writer(scene: Scene) -> None:
    """Where there is no log yet a reader gets NotFound and makes none."""
    with pytest.raises(NotFound):
        penstock.open(scene.path, mode="r")
    assert not scene.path.exists()
    scene.path.mkdir()
    with pytest.raises(NotFound):
        penstock.open(scene.path, mode="r")
    assert not list(scene.path.iterdir())


@pytest.mark.parametrize("control", [True, False], ids=["control", "no-control"])
def test_reader_that_was_first(scene: Scene, control: bool) -> None:
    """A reader that opened first keeps no writer out, and follows what that writer appends."""
    scene.seed()
    if not control:
        (scene.path / "control").unlink()
    out = scene.file("followed")
    follower = scene.run("follow", path=scene.path, out=out)
    follower.wait_report("ready")
    wait_for(lambda: len(read_followed(out)) == 4, "the follower to come to the end")
    scene.start("write", "writer", operations=[[10], [20, 30], [60_000]] * 4).done()
    scene.start("write", "stop", operations=[[0]]).done()
    follower.done()
    assert read_followed(out) == list(enumerate(scene.check(), start=1))
    scene.check_goes_on()


def test_reader_without_control_while_a_writer_opens(scene: Scene) -> None:
    """A follower that found no control waits on, however long the first writer takes to open."""
    scene.seed()
    (scene.path / "control").unlink()
    out = scene.file("followed")
    follower = scene.run("follow", path=scene.path, out=out)
    follower.wait_report("ready")
    wait_for(lambda: len(read_followed(out)) == 4, "the follower to come to the end")
    opener = scene.start(
        "write",
        "stop",
        operations=[[0]],
        fail=["control.created", 1, signal.SIGSTOP],
        fail_at_open=True,
    )
    opener.wait_stopped()
    with pytest.raises(Busy):  # which takes long enough for the follower to have looked again
        penstock.open(scene.path, mode="r", timeout=0.2)
    assert follower.alive, follower.errors()
    opener.send(signal.SIGCONT)
    opener.done()
    follower.done()
    assert read_followed(out) == list(enumerate(scene.check(), start=1))


@needs_root
@pytest.mark.parametrize("state", ["control", "no-control", "dead-writer"])
def test_read_only_mount(scene: Scene, state: str) -> None:
    """A log on a read-only mount is read in full, whatever state it was left in."""
    scene.seed(more=[[60_000]] * 6)
    if state == "no-control":
        (scene.path / "control").unlink()
    elif state == "dead-writer":
        scene.start(
            "write",
            "victim",
            operations=[[9, 9, 9]],
            fail=["publish.batch_body", 2, signal.SIGKILL],
        ).died()
    reader = on_read_only_mount(scene, "read_all")
    reader.done()
    assert reader.wait_report("events") == [list(p) for p in enumerate(scene.check(), start=1)]
    assert (scene.path / "control").exists() == (state != "no-control")
    scene.check_goes_on()


@needs_root
def test_follower_on_a_read_only_mount(scene: Scene) -> None:
    """A follower that may not write control follows a live writer all the same."""
    scene.seed()
    out = scene.file("followed")
    with penstock.open(scene.path) as log:
        follower = on_read_only_mount(scene, "follow", out=str(out))
        follower.wait_report("ready")
        mine = Acks(str(scene.acks_of("writer")), "writer")
        for i in range(30):
            seq = mine.append(log, [i * 1000])
            wait_for(partial(followed_to, out, seq), "the follower")
        mine.close()
        stop = Acks(str(scene.acks_of("stop")), "stop")
        stop.append(log, [0])
        stop.close()
        follower.done()
    assert read_followed(out) == list(enumerate(scene.check(), start=1))


@needs_root
def test_writer_on_a_read_only_mount(scene: Scene) -> None:
    """A writer on a read-only mount is told so, and harms nothing."""
    scene.seed()
    (scene.path / "control").unlink()
    writer = on_read_only_mount(
        scene, "write", acks=str(scene.acks_of("none")), writer="none", operations=[[1]]
    )
    assert writer.wait() == 1
    assert "Permission" in writer.errors(), writer.errors()
    scene.check_goes_on()
