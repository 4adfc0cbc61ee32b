"""A process dies at each fail-point, alone or beside others; the log or ring holds what it must."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from penstock import _core
from tests.crash.cases import (
    BESIDE_OTHERS,
    CLOSING,
    CREATION,
    FIRST_OPEN,
    REPAIRING,
    RING_CREATION,
    Case,
)
from tests.support.scene import Scene
from tests.support.workers import ROOT, Crew, Worker

pytestmark = [pytest.mark.crash, pytest.mark.process]

# Those have tests of their own: below, and in tests/unit/test_repair.py.
ELSEWHERE = {
    *("lock.waiting", "mend.built", "mend.kept", "mend.named"),
    *("ring.copied", "ring.replaced"),  # test_ring_resize.py
    "publish.settled",  # tests/edges/test_ring_full.py
    # tests/steward/test_retention_kills.py
    *("retain.moved", "retain.synced", "retain.deleted", "retain.done", "retain.freed"),
    *("consumer.made", "consumer.named", "consumer.deleted"),  # tests/consumers/test_kills.py
    *("consumer.fields", "consumer.summed", "consumer.stored"),
    *("consumer.appended", "consumer.saved", "consumer.tracked"),
    # tests/steward/test_compaction_deaths.py
    *("compact.surveyed", "compact.copied", "compact.written", "compact.noted"),
    *("compact.renamed", "compact.named", "compact.removed"),
    *("erase.kept", "erase.zeroed", "erase.deleted"),
    # tests/groups, where a test looks for each of them
    *("group.made", "group.locked", "group.before", "group.recorded", "group.handed"),
    *("group.snapshot", "group.trim", "group.letter", "group.moved", "group.raise"),
    *("group.result", "group.found-dead", "group.note", "group.cut", "group.ticked"),
    "group.deleted",
    # tests/archive/test_deaths.py
    *("archive.filled", "archive.synced", "archive.named", "archive.stored", "archive.compared"),
    *("archive.told", "archive.deleted", "restore.filled"),
    # tests/process/test_many_logs.py
    *("delete.locked", "delete.renamed", "delete.emptied", "delete.ring"),
}


def victim(
    scene: Scene, name: str, case: Case, *, go: Path | None = None, at_open: bool = False
) -> Worker:
    """Start a process that will die."""
    args: dict[str, object] = {"fail": [case.name, case.times, signal.SIGKILL]}
    if case.job == "write":
        args |= {"operations": case.operations, "fail_at_open": at_open}
    if go is not None:
        args["go"] = go
    return scene.start(case.job, name, **args)


def witness_of(scene: Scene, go: Path) -> Worker:
    """Start a process that has the log open and appended, and appends more when told."""
    worker = scene.start(
        "write",
        "witness",
        warm=[[50]],
        operations=[[70], [0, 400, 6000], [100_000], [1]],
        go=go,
        rested=True,
    )
    worker.wait_report("ready")
    return worker


@pytest.mark.parametrize("case", BESIDE_OTHERS, ids=lambda c: c.label)
def test_death_beside_others(crew: Crew, tmp_path: Path, case: Case) -> None:
    """A process that has the log open takes over from one that dies anywhere, and loses nothing."""
    scene = case.scene(crew, tmp_path)
    go = scene.file("go")
    witness = witness_of(scene, go)
    victim(scene, "victim", case).died()
    scene.check()  # before anybody has repaired
    go.touch()
    witness.done()
    scene.check()
    scene.check_goes_on()


@pytest.mark.parametrize("case", BESIDE_OTHERS, ids=lambda c: c.label)
def test_death_alone(crew: Crew, tmp_path: Path, case: Case) -> None:
    """The next process to open the log after a death anywhere finds all that was acknowledged."""
    scene = case.scene(crew, tmp_path)
    victim(scene, "victim", case).died()
    scene.check()
    scene.check_goes_on()


@pytest.mark.parametrize("case", REPAIRING, ids=lambda c: c.label)
@pytest.mark.parametrize("others", ["witness", "nobody"])
def test_death_of_the_repairer(crew: Crew, tmp_path: Path, case: Case, others: str) -> None:
    """A death during the repair of a death is repaired in turn, with and without others there."""
    scene = case.scene(crew, tmp_path)
    go, go_second = scene.file("go"), scene.file("go-second")
    witness = witness_of(scene, go) if others == "witness" else None
    second = victim(scene, "second", case, go=go_second)
    second.wait_report("ready")
    victim(scene, "first", case.earlier()).died()
    go_second.touch()
    second.died()
    scene.check()  # before anybody has repaired
    if witness is not None:
        go.touch()
        witness.done()
        scene.check()
    scene.check_goes_on()


@pytest.mark.parametrize("case", FIRST_OPEN, ids=lambda c: c.label)
def test_death_of_the_first_opener(crew: Crew, tmp_path: Path, case: Case) -> None:
    """A death during the first open, also one that repairs, leaves a log that opens."""
    scene = case.scene(crew, tmp_path)
    if case.before:
        victim(scene, "first", case.earlier()).died()
    victim(scene, "opener", case, at_open=True).died()
    scene.check()
    scene.check_goes_on()


@pytest.mark.parametrize("name", CLOSING)
def test_death_of_the_last_writer(scene: Scene, name: str) -> None:
    """A death while the last writer gives disk space back leaves a log that goes on."""
    scene.seed(8 << 20)
    filling = [[800_000]] * 9  # so much that the next segment is prepared
    victim(scene, "closing", Case(name, operations=filling)).died()
    scene.check_goes_on()


@pytest.mark.parametrize("name", CREATION)
def test_death_during_creation(scene: Scene, name: str) -> None:
    """A death while a log is being made leaves a place where the log can be made."""
    victim(scene, "maker", Case(name), at_open=True).died()
    scene.check_goes_on()


@pytest.mark.parametrize("name", ["control.created", "control.written", "repair.walked"])
def test_opener_that_waits_for_a_dying_one(scene: Scene, name: str) -> None:
    """Whoever waits for another process to finish opening goes on by itself when that one dies."""
    scene.seed()
    opener = scene.start(
        "write",
        "opener",
        operations=[[10]],
        fail=[name, 1, signal.SIGSTOP],
        fail_at_open=True,
    )
    opener.wait_stopped()
    waiting = scene.start(
        "write",
        "waiting",
        operations=[[10], [20, 30]],
    )
    assert not waiting.reports()
    opener.kill()
    waiting.done()
    scene.check_goes_on()


@pytest.mark.parametrize("others", ["witness", "nobody"])
def test_dead_batch_stays_dead(scene: Scene, others: str) -> None:
    """The rest of a dead batch does not come back to life after an append of the same length."""
    scene.seed()
    go = scene.file("go")
    if others == "witness":
        again = scene.start("write", "again", warm=[[9]], operations=[[200]], go=go)
        again.wait_report("ready")
    victim(scene, "victim", Case("publish.written", operations=[[200, 10, 300, 0]])).died()
    go.touch()
    if others == "nobody":
        again = scene.start("write", "again", operations=[[200]])
    again.done()
    scene.check()
    (scene.path / "control").unlink()  # so that the end is found in the frames
    scene.check_goes_on()


def test_death_of_a_waiter(any_scene: Scene) -> None:
    """A process that dies while it waits for the write lock harms neither the holder nor others."""
    scene = any_scene
    scene.seed()
    go = scene.file("go")
    witness = witness_of(scene, go)
    holder = scene.start(
        "write",
        "holder",
        warm=[[5]],
        operations=[[10], [20]],
        fail=["lock.taken", 1, signal.SIGSTOP],
    )
    holder.wait_stopped()
    victim(scene, "victim", Case("lock.waiting")).died()
    go.touch()
    holder.send(signal.SIGCONT)
    holder.done()
    witness.done()
    scene.check_goes_on()


def test_every_fail_point_is_covered() -> None:
    """No fail-point of the source is without a death in the tests of this folder, or ELSEWHERE."""
    named = set(_core._FAIL_NAMES)
    for file in (ROOT / "src" / "penstock").rglob("*.py"):
        named |= set(re.findall(r"fail_point\(\s*['\"]([^'\"]+)['\"]", file.read_text()))
    covered = {case.name for case in [*BESIDE_OTHERS, *REPAIRING, *FIRST_OPEN]}
    assert named == covered | {*CREATION, *RING_CREATION, *CLOSING, *ELSEWHERE}
