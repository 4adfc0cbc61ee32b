"""Four writers and two followers on one log, killed again and again, at random and on purpose."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

import penstock
from penstock import _core
from tests.support.acks import Acks
from tests.support.check import check_goes_on, check_log, read_followed
from tests.support.fixtures import STORM
from tests.support.wait import wait_for
from tests.support.workers import Crew, Worker

pytestmark = [pytest.mark.crash, pytest.mark.process, pytest.mark.slow]

KILLS = 400 if STORM else 60  # per storm
SEEDS = range(12) if STORM else range(5)
SEGMENT = 1 << 20

POINTS = [
    *_core._FAIL_NAMES,
    *("roll.reserved", "roll.committed", "roll.published", "prepare.made", "prepare.named"),
    *("repair.word", "repair.head", "repair.walked", "repair.zeroed"),
    *("segment.started", "segment.named", "segment.synced", "open.locked"),
    *("seal.indexed", "seal.allocated", "seal.written", "repair.moved"),
    *("sync.begun", "sync.synced", "sync.checkpointed"),
    *("load.named", "load.reserved", "load.committed", "load.published"),
]


class Slot:
    """A place in the storm that is always taken: who dies here is replaced."""

    def __init__(self, storm: Storm, number: int) -> None:
        self.storm = storm
        self.number = number
        self.incarnation = 0
        self.worker = self.begin()

    def begin(self) -> Worker:
        """Start the next incarnation."""
        raise NotImplementedError

    def size(self) -> int:
        """How much the worker has written down about itself."""
        file = self.file
        return file.stat().st_size if file.exists() else 0

    @property
    def file(self) -> Path:
        """Where the worker writes that down."""
        raise NotImplementedError

    def next_life(self) -> None:
        """Replace the worker."""
        self.incarnation += 1
        self.worker = self.begin()


class WriterSlot(Slot):
    """A writer; about half of them have a fail-point armed."""

    @property
    def file(self) -> Path:
        return self.storm.directory / f"w{self.number}.{self.incarnation}.acks"

    def begin(self) -> Worker:
        rng = self.storm.rng
        fail = None
        if rng.random() < 0.5:
            fail = [rng.choice(POINTS), rng.randrange(1, 6), signal.SIGKILL]
        self.storm.acks.append(self.file)
        return self.storm.crew.start(
            self.storm.directory,
            "write_random",
            path=self.storm.path,
            acks=self.file,
            writer=f"w{self.number}.{self.incarnation}",
            seed=rng.randrange(1 << 30),
            fail=fail,
            threads=rng.choice((1, 1, 3)),
        )


class FollowerSlot(Slot):
    """A follower; a new one goes on behind the last event that the dead one wrote down."""

    @property
    def file(self) -> Path:
        return self.storm.directory / f"f{self.number}.followed"

    def begin(self) -> Worker:
        seen = read_followed(self.file)
        return self.storm.crew.start(
            self.storm.directory,
            "follow",
            path=self.storm.path,
            out=self.file,
            mode="r" if self.number else "rw",
            start=seen[-1][0] + 1 if seen else 1,
        )


class Storm:
    """The log, its writers and followers, and the random numbers behind it all."""

    def __init__(self, crew: Crew, directory: Path, seed: int) -> None:
        self.crew = crew
        self.directory = directory
        self.path = directory / "log"
        self.rng = random.Random(seed)
        self.acks: list[Path] = []
        self.kills = 0
        penstock.open(self.path, segment_size=SEGMENT).close()
        self.writers = [WriterSlot(self, i) for i in range(4)]
        self.followers = [FollowerSlot(self, i) for i in range(2)]

    def strike(self) -> None:
        """Let one worker get somewhere, then kill it, unless its fail-point was faster."""
        slots: list[Slot] = [*self.writers, *self.followers]
        weights = [4] * len(self.writers) + [1] * len(self.followers)
        (slot,) = self.rng.choices(slots, weights)
        goal = slot.size() + self.rng.randrange(0, 1500)
        stuck = sum(s.size() for s in self.writers)

        def reached() -> bool:
            others = sum(s.size() for s in self.writers) - stuck
            return slot.size() >= goal or not slot.worker.alive or others > 20_000

        wait_for(reached, f"progress of {slot.file.name}")
        if slot.worker.alive:
            slot.worker.send(signal.SIGKILL)
        slot.worker.died()
        self.kills += 1
        slot.next_life()

    def bury_the_dead(self) -> None:
        """Replace writers that died by their fail-points."""
        for slot in self.writers:
            if not slot.worker.alive:
                slot.worker.died()
                self.kills += 1
                slot.next_life()

    def end(self) -> None:
        """Kill the writers, append the last event, let the followers come to it."""
        for slot in self.writers:
            slot.worker.kill()
            self.kills += 1
        mine = self.directory / "stop.acks"
        self.acks.append(mine)
        writer = Acks(str(mine), "stop")
        with penstock.open(self.path) as log:
            writer.append(log, [0])
        writer.close()
        for follower in self.followers:
            follower.worker.done()


def test_storm_is_large_enough() -> None:
    """The storms together kill at least two hundred times, and thousands of times if asked to."""
    assert KILLS * len(SEEDS) >= (4000 if STORM else 200)


@pytest.mark.timeout(1800 if STORM else 300)
@pytest.mark.parametrize("seed", SEEDS)
def test_storm(crew: Crew, tmp_path: Path, seed: int) -> None:
    """Whatever dies, acknowledged events are there exactly once and followers see the whole log."""
    storm = Storm(crew, tmp_path, seed)
    while storm.kills < KILLS:
        storm.strike()
        storm.bury_the_dead()
    storm.end()
    prints = check_log(storm.path, storm.acks)
    for follower in storm.followers:
        assert read_followed(follower.file) == list(enumerate(prints, start=1))
    assert storm.kills >= KILLS
    assert len(list(storm.path.glob("*.seg"))) > 3
    check_goes_on(storm.path, storm.acks)
