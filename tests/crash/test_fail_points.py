"""A process dies at each fail-point, alone or beside others; the log then holds what it must."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from penstock import _core
from tests.support.scene import SEGMENT, Scene
from tests.support.workers import ROOT, Worker

pytestmark = [pytest.mark.crash, pytest.mark.process]

BATCH = [30, 0, 5000, 200, 20_000]


@dataclass
class Case:
    """One way to die: what the victim does, which fail-point ends it, at which pass."""

    name: str
    job: str = "write"
    operations: list[list[int]] = field(default_factory=lambda: [[200]] * 3)
    times: int = 1
    before: str = ""  # a fail-point at which an earlier victim has died already

    @property
    def segment_size(self) -> int:
        """Next segments are prepared ahead only in logs whose segments are worth it."""
        return 8 << 20 if self.job == "fill" else SEGMENT

    @property
    def label(self) -> str:
        """For the test's id."""
        shape = "batch" if self.operations == [BATCH] else self.job
        after = f"-after-{self.before}" if self.before else ""
        return f"{self.name}-{shape}-{self.times}{after}"


def _batch(name: str, times: int = 1, before: str = "") -> Case:
    return Case(name, operations=[BATCH], times=times, before=before)


PUBLISH = [
    *("publish.reserved", "publish.written", "publish.body", "publish.commit"),
    *("publish.head", "publish.words"),
]
ROLL = ["segment.started", "roll.reserved", "roll.committed", "segment.named", "segment.synced"]
DEAD_BATCH = "publish.batch_body"

# Deaths that can happen while other processes have the log open.
BESIDE_OTHERS = [
    *(Case(name) for name in PUBLISH),
    *(Case(name, times=3) for name in ("publish.body", "publish.commit")),
    *(_batch(name) for name in PUBLISH),
    *(_batch(DEAD_BATCH, times) for times in (1, 2, 4)),
    Case("lock.taken"),
    Case("lock.given"),
    *(Case(name, job="roll") for name in ROLL),
    *(Case("repair.word", job="roll", times=times) for times in range(1, 15)),
    Case("repair.head", job="roll"),
    Case("roll.published", job="roll"),
    Case("roll.committed", operations=[[60_000]] * 5),
    Case("segment.named", operations=[[60_000]] * 5),
    Case("prepare.made", job="fill"),
    Case("prepare.named", job="fill"),
    *(Case(name, job="roll") for name in ("seal.indexed", "seal.allocated", "seal.written")),
    *(
        Case(name, job="sync", times=times)
        for name in ("sync.begun", "sync.synced", "sync.checkpointed")
        for times in (1, 2)
    ),
    *(Case("load.named", job="load", times=times) for times in (1, 2, 5)),
    *(Case(name, job="load") for name in ("load.reserved", "load.committed", "load.published")),
]

# Deaths of the process that repairs what an earlier death left, with the log open elsewhere.
REPAIRING = [
    *(Case("lock.took_over", before=name) for name in ("lock.taken", *PUBLISH)),
    *(Case("repair.walked", before=name) for name in (*PUBLISH, DEAD_BATCH)),
    *(Case("repair.zeroing", times=times, before=DEAD_BATCH) for times in (1, 2, 7)),
    Case("repair.zeroed", before=DEAD_BATCH),
    *(Case("repair.word", times=times, before=DEAD_BATCH) for times in range(1, 15)),
    Case("repair.head", before=DEAD_BATCH),
    *(Case("repair.head", before=name) for name in ("publish.commit", "publish.head")),
    *(Case(name, before="roll.committed") for name in ("segment.started", "segment.named")),
    *(Case("repair.head", before=name) for name in ("roll.committed", "segment.synced")),
    *(Case("repair.moved", before="load.named", times=times) for times in (1, 2)),
    Case("repair.head", before="load.committed"),
    *(Case(name, job="sync", before="sync.begun") for name in ("sync.begun", "sync.synced")),
]

# Deaths of the first process to open the log, whatever state the last one left it in.
FIRST_OPEN = [
    *(Case(name) for name in ("control.created", "control.written", "control.renamed")),
    Case("open.locked"),
    Case("repair.walked", before=DEAD_BATCH),
    *(Case("repair.zeroing", times=times, before=DEAD_BATCH) for times in (1, 2, 7)),
    Case("repair.zeroed", before=DEAD_BATCH),
    *(Case(name, before="roll.committed") for name in ("segment.started", "segment.named")),
    Case("segment.synced", before="roll.committed"),
    Case("control.renamed", before=DEAD_BATCH),
    Case("repair.moved", before="load.named"),
    Case("open.settled", before="sync.begun"),
]

# Deaths of the last writer, while it closes the log.
CLOSING = ["slack.told", "slack.freed", "slack.removed"]

CREATION = [
    *("segment.started", "segment.named", "segment.synced", "repair.walked"),
    *("control.created", "control.written", "control.renamed", "open.locked"),
]

# Those have tests of their own: below, and in tests/unit/test_repair.py.
ELSEWHERE = {
    *("lock.waiting", "mend.built", "mend.kept", "mend.named"),
    *("ring.copied", "ring.replaced"),  # test_ring_resize.py
    "publish.settled",  # tests/edges/test_ring_full.py
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


def kill_first(scene: Scene, before: str) -> None:
    """The earlier death that a case is about the repair of."""
    operations = [BATCH] if before == DEAD_BATCH else [[300]]
    kind = before.partition(".")[0]
    job = {"roll": "roll", "segment": "roll", "sync": "sync", "load": "load"}.get(kind, "write")
    times = {DEAD_BATCH: 4, "load.named": 3}.get(before, 1)
    victim(scene, "first", Case(before, job, operations, times)).died()


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
def test_death_beside_others(scene: Scene, case: Case) -> None:
    """A process that has the log open takes over from one that dies anywhere, and loses nothing."""
    scene.seed(case.segment_size)
    go = scene.file("go")
    witness = witness_of(scene, go)
    victim(scene, "victim", case).died()
    scene.check()  # before anybody has repaired
    go.touch()
    witness.done()
    scene.check()
    scene.check_goes_on()


@pytest.mark.parametrize("case", BESIDE_OTHERS, ids=lambda c: c.label)
def test_death_alone(scene: Scene, case: Case) -> None:
    """The next process to open the log after a death anywhere finds all that was acknowledged."""
    scene.seed(case.segment_size)
    victim(scene, "victim", case).died()
    scene.check_goes_on()


@pytest.mark.parametrize("case", REPAIRING, ids=lambda c: c.label)
@pytest.mark.parametrize("others", ["witness", "nobody"])
def test_death_of_the_repairer(scene: Scene, case: Case, others: str) -> None:
    """A death during the repair of a death is repaired in turn, with and without others there."""
    scene.seed()
    go, go_second = scene.file("go"), scene.file("go-second")
    witness = witness_of(scene, go) if others == "witness" else None
    second = victim(scene, "second", case, go=go_second)
    second.wait_report("ready")
    kill_first(scene, case.before)
    go_second.touch()
    second.died()
    scene.check()  # before anybody has repaired
    if witness is not None:
        go.touch()
        witness.done()
        scene.check()
    scene.check_goes_on()


@pytest.mark.parametrize("case", FIRST_OPEN, ids=lambda c: c.label)
def test_death_of_the_first_opener(scene: Scene, case: Case) -> None:
    """A death during the first open, also one that repairs, leaves a log that opens."""
    scene.seed()
    if case.before:
        kill_first(scene, case.before)
    victim(scene, "opener", case, at_open=True).died()
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
    """The rest of a dead batch does not come back to life behind an append of the same length."""
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


def test_death_of_a_waiter(scene: Scene) -> None:
    """A process that dies while it waits for the write lock harms neither the holder nor others."""
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
    """No fail-point of the source is without a death in the tests above, or in those of rings."""
    from tests.crash import test_ring_fail_points as rings  # which makes use of this module

    of_rings = {c.name for c in [*rings.BESIDE_OTHERS, *rings.REPAIRING, *rings.FIRST_OPEN]}
    of_rings |= set(rings.CREATION)
    named = set(_core._FAIL_NAMES)
    for file in (ROOT / "src" / "penstock").rglob("*.py"):
        named |= set(re.findall(r"fail_point\(\s*['\"]([^'\"]+)['\"]", file.read_text()))
    covered = {c.name for c in [*BESIDE_OTHERS, *REPAIRING, *FIRST_OPEN]} | {
        *CREATION,
        *CLOSING,
        *ELSEWHERE,
    }
    assert named == covered | of_rings
