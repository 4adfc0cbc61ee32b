"""The power fails at every moment, and of each page any version since the last sync is left."""

from __future__ import annotations

import logging
import random
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import penstock
from penstock import _core
from penstock import layout as L
from tests.support import pages
from tests.support.fixtures import STORM
from tests.support.lives import Ledger, Life, Step, check_events, live, recorded
from tests.support.pages import History, Image
from tests.support.recorder import LOOSE, Recorder
from tests.support.workers import Crew
from tests.unit import oracle

pytestmark = [pytest.mark.crash, pytest.mark.process]

OPEN: Step = {"do": "open"}
SYNC: Step = {"do": "sync"}
ROLL: Step = {"do": "roll"}
KEEP: Step = {"do": "keep"}
CLOSE: Step = {"do": "close"}


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Repairs are told, and there are thousands."""
    caplog.set_level(logging.CRITICAL, "penstock")


def append(*sizes: int, **more: object) -> Step:
    """A step that appends."""
    return {"do": "append", "sizes": list(sizes), **more}


def durably(*sizes: int, **more: object) -> Step:
    """A step that appends and waits until that is on the device."""
    return append(*sizes, durable=True, **more)


def configure(kib: int) -> Step:
    """A step that changes a setting."""
    return {"do": "configure", "segment_size": kib << 10}


GO_ON = [append(50), append(0, 5000, 300), SYNC, ROLL, durably(7), KEEP, append(3000), CLOSE]

SCRIPTS: dict[str, list[list[Step]]] = {
    "creation": [[OPEN, durably(10), append(20), CLOSE]],
    "appends": [
        [OPEN, append(10), append(3000), append(5, 6000, 0), SYNC, append(100), durably(200)]
        + [append(1, 2, 3), append(9000), SYNC, append(4000, 4000, 4000), append(1), CLOSE]
    ],
    "long appends": [
        [OPEN, append(100), append(33_500), durably(10), ROLL, append(50, 33_500, 7), append(20)]
        + [append(*[900] * 40), durably(1), append(36_000)]
    ],
    "rolls": [
        [OPEN, append(9000), ROLL, append(3), ROLL, append(100, 200), SYNC, append(1), ROLL]
        + [append(20_000), append(20_000), append(20_000), KEEP, append(8), durably(9), CLOSE]
    ],
    "seals": [
        [OPEN, append(10), ROLL, append(10), KEEP, durably(10), ROLL, KEEP, append(10), ROLL]
        + [append(9), append(10), KEEP, durably(10), append(10)]
    ],
    "rolls behind syncs": [
        [OPEN, append(10), durably(10), ROLL, KEEP, durably(10), append(5), SYNC, ROLL, KEEP]
        + [append(3), ROLL, KEEP, SYNC, append(2), CLOSE]
    ],
    "settings": [
        [OPEN, append(10), SYNC, configure(128), SYNC, append(5), ROLL, configure(64), append(1)]
        + [durably(2), ROLL, configure(128), KEEP, append(7), configure(64), CLOSE]
    ],
    "producers": [
        [OPEN, append(10, producer=("a", 1)), durably(10, 20, producer=("b", 5))]
        + [append(300, producer=("a", 2)), ROLL, append(4, producer=("c", 1)), SYNC, KEEP]
        + [append(5, 6, producer=("b", 6)), durably(1), ROLL, append(7, producer=("c", 2)), KEEP]
        + [durably(2), append(3000, 3000, producer=("a", 3)), CLOSE]
    ],
    "closed and opened": [
        [OPEN, append(10), CLOSE],
        [OPEN, append(5000), append(1, 2), SYNC, append(9), CLOSE],
        [OPEN, ROLL, append(3), CLOSE],
        [OPEN, durably(1)],
    ],
    "a dead batch": [
        [OPEN, durably(10), append(4000, 3000, 400, dies="publish.written")],
        [OPEN, append(4000), append(3), durably(3), append(3001), append(10)],
    ],
    "a dead batch, a dead repairer": [
        [OPEN, durably(10), append(4000, 3000, 400, dies="publish.written")],
        [{**OPEN, "dies": "repair.zeroed"}],
        [OPEN, append(4000), append(10), durably(3)],
    ],
    "dead rolls": [
        [OPEN, durably(10), append(30), {**ROLL, "dies": "roll.committed"}],
        [OPEN, append(5), {**ROLL, "dies": "segment.named"}],
        [OPEN, append(6), {**ROLL, "dies": "segment.started"}],
        [OPEN, append(7), durably(8), CLOSE],
    ],
    "a dead sync": [
        [OPEN, append(10), append(5000), {**SYNC, "dies": "sync.synced"}],
        [OPEN, append(20), {**SYNC, "dies": "sync.begun"}],
        [OPEN, append(30), append(40), SYNC, append(5)],
    ],
}


def random_script(seed: int) -> list[list[Step]]:
    """A script of random steps in one or two lives."""
    rng = random.Random(seed)
    numbers = dict.fromkeys("ab", 0)
    lives = []
    for _ in range(rng.choice((1, 1, 2))):
        steps = [OPEN]
        for _ in range(rng.randrange(6, 20)):
            kind = rng.random()
            if kind < 0.6:
                sizes = [
                    rng.choice((0, 5, 200, 1000, 4056, 6000))
                    for _ in range(rng.choice((1, 1, 1, 2, 5)))
                ]
                if rng.random() < 0.08:
                    sizes = [rng.randrange(32_000, 36_000)]
                step = append(*sizes, durable=rng.random() < 0.3)
                if rng.random() < 0.2:
                    who = rng.choice("ab")
                    numbers[who] += 1
                    step["producer"] = [who, numbers[who]]
                steps.append(step)
            else:
                steps.append(
                    rng.choice((SYNC, ROLL, ROLL, KEEP, KEEP, configure(rng.choice((64, 128)))))
                )
        if rng.random() < 0.5:
            steps.append(CLOSE)
        lives.append(steps)
    return lives


@dataclass
class Budget:
    """How many disks are tried, and how many of those that a second loss of power can leave."""

    disks: int
    all_below: int
    samples: int
    second: int


def budget() -> Budget:
    """As much as there is time for."""
    return Budget(5000, 512, 12, 4) if STORM else Budget(40, 24, 4, 2)


def record(crew: Crew, directory: Path, script: list[list[Step]]) -> tuple[History, Ledger]:
    """Run the lives of a script, each in a process of its own."""
    file = directory / "record"
    for steps in script:
        worker = crew.start(
            directory,
            "run_in_worker",
            module="tests.support.lives",
            function="live",
            args={"path": str(directory / "log"), "record": str(file), "steps": steps},
        )
        if any("dies" in step for step in steps):
            worker.died()
        else:
            worker.done()
    return recorded(file)


def from_another_boot(control: Path) -> None:
    """Have nothing but its boot id tell that a control file is from before the power failed."""
    page = bytearray(control.read_bytes())
    if len(page) < L.PAGE or page[:8] != L.CONTROL_MAGIC:
        return
    stat = control.stat()
    page[L.C_BOOT_ID : L.C_BOOT_ID + 16] = b"\xee" * 16
    struct.pack_into("<QQ", page, L.C_DEV, stat.st_dev, stat.st_ino)
    struct.pack_into("<I", page, L.C_CRC, _core.crc32c(bytes(page[: L.C_CRC])))
    control.write_bytes(page)


class Trial:
    """Tries the disks that losses of power can leave."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.rng = random.Random(seed)
        self.tried: dict[int, int] = {}
        self.disks = 0
        self.losses = 0  # disks on which something was lost, which nobody had called durable

    def power_fails(self, history: History, ledger: Ledger, budget: Budget) -> None:
        """Have the power fail at the moments of a history, as far as the budget goes."""
        moments = list(range(history.moment + 1))
        self.rng.shuffle(moments)
        for left in range(len(moments), 0, -1):
            moment = moments[left - 1]
            label = f"the power failed at moment {moment}, {history.labels[moment]!r}"
            wanted = -(-budget.disks // left)
            for picks in pages.ways(
                history.options(moment),
                self.rng,
                all_below=budget.all_below,
                samples=budget.samples,
            ):
                if wanted == 0:
                    break
                image = history.image(moment, picks, self.rng)
                if self.is_new(image, ledger.must_hold(moment)):
                    wanted -= 1
                    budget.disks -= 1
                    self.try_disk(image, ledger.at(moment), label, budget.second)

    def is_new(self, image: Image, must: int) -> bool:
        """Whether the disk was not tried yet with as much that it must hold."""
        mark = hash(tuple(sorted(image.items())))
        if self.tried.get(mark, -1) >= must:
            return False
        self.tried[mark] = must
        return True

    def try_disk(self, image: Image, ledger: Ledger, label: str, second: int) -> None:
        """Open the log on that disk and use it; then the power may have failed meanwhile."""
        self.disks += 1
        place = self.directory / f"disk-{self.disks}"
        pages.write(image, place)
        if (place / "control").exists():
            from_another_boot(place / "control")
        appended = len(ledger.events)
        watched = second > 0 and self.rng.random() < 0.25
        recorder = Recorder(History.of(place, LOOSE), str(place)) if watched else None
        try:
            readable = read_only(place, ledger) if self.rng.random() < 0.3 else None
            life = Life(str(place), ledger, recorder)
            life.run([{"do": "open", "rebooted": True}])
            found = len(ledger.events)
            assert readable in (None, found), "who only reads finds another end"
            life.run(GO_ON)
            assert read_only(place, ledger) == len(ledger.events)
            if self.rng.random() < 0.05:
                segments = oracle.read_log(place)
                assert sum(len(s.events) for s in segments) == len(ledger.events)
            if recorder is not None:
                self.power_fails(recorder.history, ledger, Budget(second, 12, 2, 0))
        except BaseException as error:
            error.add_note(f"{label} ({place})")
            raise
        self.losses += found < appended
        shutil.rmtree(place)


def read_only(place: Path, ledger: Ledger) -> int | None:
    """How many events someone sees who only reads; None if there is no log yet."""
    try:
        with penstock.open(place, mode="r") as log:
            return check_events(log, ledger, ledger.must_hold(0))
    except penstock.NotFound:
        assert ledger.must_hold(0) == 0
        return None


@pytest.mark.parametrize("name", SCRIPTS)
def test_power_loss(crew: Crew, tmp_path: Path, name: str) -> None:
    """Whatever pages a loss of power leaves, durable events are there, and batches whole."""
    history, ledger = record(crew, tmp_path, SCRIPTS[name])
    trial = Trial(tmp_path, seed=len(name))
    trial.power_fails(history, ledger, budget())
    assert trial.losses


@pytest.mark.parametrize("seed", range(200 if STORM else 3))
def test_power_loss_amid_anything(crew: Crew, tmp_path: Path, seed: int) -> None:
    """The same holds for whatever a log is used for."""
    history, ledger = record(crew, tmp_path, random_script(seed))
    Trial(tmp_path, seed).power_fails(history, ledger, budget())
