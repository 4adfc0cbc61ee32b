"""Deaths that only a ring can die: while it copies its state, or is made; and a stopped holder."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path

import pytest

import penstock
from tests.crash.cases import CLAIM, RING_CREATION
from tests.support.rings import RING, RingScene
from tests.support.workers import Crew

pytestmark = [pytest.mark.crash, pytest.mark.process]


@pytest.fixture
def scene(crew: Crew, tmp_path: Path) -> RingScene:
    """A place for one ring and its workers."""
    return RingScene(crew, tmp_path)


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


@pytest.mark.parametrize("name", RING_CREATION)
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
