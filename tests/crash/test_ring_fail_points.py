"""A process dies at each fail-point of a ring that overwrites, alone or beside others."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path

import pytest

import penstock
from tests.crash.test_fail_points import BATCH, DEAD_BATCH, PUBLISH, Case, victim, witness_of
from tests.support.rings import RING, RingScene
from tests.support.workers import Crew

pytestmark = [pytest.mark.crash, pytest.mark.process]

CLAIM = [*PUBLISH, "publish.tail"]
LONG = [[60_000]] * 5  # over the end of a lap


def _batch(name: str, times: int = 1, before: str = "") -> Case:
    return Case(name, operations=[BATCH], times=times, before=before)


# Deaths that can happen while other processes have the ring open.
BESIDE_OTHERS = [
    *(Case(name, times=2) for name in CLAIM),
    *(_batch(name) for name in CLAIM),
    *(Case(name, operations=LONG, times=times) for name in CLAIM for times in (1, 2, 3, 4)),
    *(Case(name, job="sweep") for name in (*CLAIM, "publish.wrap")),
    *(Case(name, job="produce", times=9) for name in CLAIM),
    Case("publish.wrap", job="produce"),
    *(_batch(DEAD_BATCH, times) for times in (1, 4)),
    Case("publish.wrap", operations=LONG),
    Case("lock.taken"),
    Case("lock.given"),
    *(
        Case(name, job="sync_ring", times=times)
        for name in ("sync.begun", "sync.synced")
        for times in (1, 2)
    ),
]

# Deaths of the process that repairs what an earlier death left, with the ring open elsewhere.
REPAIRING = [
    *(Case("lock.took_over", before=name) for name in ("lock.taken", *CLAIM)),
    *(Case("repair.walked", before=name) for name in (*CLAIM, DEAD_BATCH, "publish.wrap")),
    *(Case("repair.zeroing", times=times, before=DEAD_BATCH) for times in (1, 2, 7)),
    Case("repair.zeroed", before=DEAD_BATCH),
    *(Case("repair.word", times=times, before=DEAD_BATCH) for times in range(1, 12)),
    *(Case("repair.word", times=times, before="sweep") for times in range(1, 12)),
    *(Case("repair.head", before=name) for name in (DEAD_BATCH, "sweep", "publish.head")),
    *(Case(name, job="sync_ring", before="sync.begun") for name in ("sync.begun", "sync.synced")),
]

# Deaths of the first process to open the ring, whatever state the last one left it in.
FIRST_OPEN = [
    *(Case(name) for name in ("ring.epoch", "control.emptied", "control.filled", "open.locked")),
    *(Case(name) for name in ("repair.walked", "open.settled")),
    *(Case("repair.walked", before=name) for name in (DEAD_BATCH, "sweep")),
    *(Case("repair.zeroing", times=times, before=DEAD_BATCH) for times in (1, 2, 7)),
    Case("repair.zeroed", before=DEAD_BATCH),
    *(Case("control.filled", before=name) for name in (DEAD_BATCH, "sweep", "publish.reserved")),
    Case("open.settled", before="sync.begun"),
]

CREATION = ["ring.made", "ring.named", "open.settled", "control.emptied"]


@pytest.fixture
def scene(crew: Crew, tmp_path: Path) -> RingScene:
    """A place for one ring and its workers."""
    return RingScene(crew, tmp_path)


def kill_first(scene: RingScene, before: str) -> None:
    """The earlier death that a case is about the repair of."""
    if before == "sweep":
        case = Case("publish.commit", job="sweep")
    elif before.startswith("sync."):
        case = Case(before, job="sync_ring")
    elif before == "publish.wrap":
        case = Case(before, operations=LONG)
    else:
        operations = [BATCH] if before == DEAD_BATCH else [[300]]
        case = Case(before, operations=operations, times=4 if before == DEAD_BATCH else 1)
    victim(scene, "first", case).died()


@pytest.mark.parametrize("case", BESIDE_OTHERS, ids=lambda c: c.label)
def test_death_beside_others(scene: RingScene, case: Case) -> None:
    """A process that has the ring open takes over from one that dies anywhere."""
    scene.seed()
    go = scene.file("go")
    witness = witness_of(scene, go)
    victim(scene, "victim", case).died()
    scene.check()  # before anybody has repaired
    go.touch()
    witness.done()
    scene.check()
    scene.check_goes_on()


@pytest.mark.parametrize("case", BESIDE_OTHERS, ids=lambda c: c.label)
def test_death_alone(scene: RingScene, case: Case) -> None:
    """The next process to open the ring after a death anywhere finds what was acknowledged."""
    scene.seed()
    victim(scene, "victim", case).died()
    scene.check()
    scene.check_goes_on()


@pytest.mark.parametrize("case", REPAIRING, ids=lambda c: c.label)
@pytest.mark.parametrize("others", ["witness", "nobody"])
def test_death_of_the_repairer(scene: RingScene, case: Case, others: str) -> None:
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
def test_death_of_the_first_opener(scene: RingScene, case: Case) -> None:
    """A death during the first open, also one that repairs, leaves a ring that opens."""
    scene.seed()
    if case.before:
        kill_first(scene, case.before)
    victim(scene, "opener", case, at_open=True).died()
    scene.check()
    scene.check_goes_on()


@pytest.mark.parametrize("name", [*CLAIM, "publish.wrap", "publish.batch_body"])
def test_state_outlasts_a_death(scene: RingScene, name: str) -> None:
    """Settings and producers are known after a death in any append, also one that copies them."""
    for times in itertools.count(1):
        path = scene.file(f"ring-{times}")
        worker = scene.run("outlast", path=path, fail=[name, times, signal.SIGKILL])
        if worker.wait() == 0:
            break
        worker.died()
        with penstock.open(path, mode="r") as log:
            assert log.settings.file_mode == 0o640
        with penstock.open(path) as log:
            assert log.settings.file_mode == 0o640
            last = log.last_seq
            assert log.append(b"again", producer=("early", 7)) == 1
            assert log.append(b"again", producer=("late", 29)) == 60
            assert log.last_seq == last
    assert times > (2 if name == "publish.wrap" else 5), "it died too rarely for this to be a proof"


@pytest.mark.parametrize("name", CREATION)
def test_death_during_creation(scene: RingScene, name: str) -> None:
    """A death while a ring is being made leaves nothing that the next one does not sweep."""
    fail = [name, 1, signal.SIGKILL]
    scene.start("make_ring", "maker", ring=RING, fail=fail).died()
    scene.start("make_ring", "next", ring=RING).done()
    assert not list(scene.directory.glob("*.unfinished"))
    scene.check_goes_on()


@pytest.mark.parametrize("point", ["lock.taken", "publish.tail", "publish.body", "publish.commit"])
def test_stopped_holder(scene: RingScene, point: str) -> None:
    """While a holder is stopped, appends with a timeout are Busy, and readers read."""
    scene.seed()
    holder = scene.start(
        "write",
        "holder",
        warm=[[5]],
        operations=[[10, 20_000, 30]],
        fail=[point, 1, signal.SIGSTOP],
    )
    holder.wait_stopped()
    scene.check()
    with penstock.open(scene.path) as log, pytest.raises(penstock.Busy):
        log.append(b"", timeout=0.1)
    holder.send(signal.SIGCONT)
    holder.done()
    scene.check_goes_on()


def test_death_of_a_waiter(scene: RingScene) -> None:
    """A process that dies while it waits for the write lock harms neither the holder nor others."""
    scene.seed()
    go = scene.file("go")
    witness = witness_of(scene, go)
    holder = scene.start(
        "write", "holder", warm=[[5]], operations=[[10]], fail=["lock.taken", 1, signal.SIGSTOP]
    )
    holder.wait_stopped()
    victim(scene, "victim", Case("lock.waiting")).died()
    go.touch()
    holder.send(signal.SIGCONT)
    holder.done()
    witness.done()
    scene.check_goes_on()
