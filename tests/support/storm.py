"""Writers and followers of one log that are killed again and again, and replaced."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import penstock
from tests.support.acks import Acks
from tests.support.check import read_followed
from tests.support.wait import wait_for
from tests.support.workers import Crew, Worker


def cut_torn_line(file: Path) -> None:
    """Remove what a kill has left of a line: the kernel writes one that crosses pages in parts."""
    data = file.read_bytes() if file.exists() else b"\n"
    if data and not data.endswith(b"\n"):
        os.truncate(file, data.rfind(b"\n") + 1)


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

    def kill(self) -> None:
        """Kill the worker, unless its fail-point was faster."""
        if self.worker.alive:
            self.worker.send(signal.SIGKILL)
        self.worker.died()
        self.storm.kills += 1


class WriterSlot(Slot):
    """A writer; about half of them have a fail-point armed."""

    @property
    def file(self) -> Path:
        return self.storm.directory / f"w{self.number}.{self.incarnation}.acks"

    def begin(self) -> Worker:
        rng = self.storm.rng
        fail = None
        if rng.random() < 0.5:
            fail = [rng.choice(self.storm.points), rng.randrange(1, 6), signal.SIGKILL]
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
            **self.storm.writing,
        )


class FollowerSlot(Slot):
    """A follower; a new one goes on after the last event that the dead one wrote down."""

    @property
    def file(self) -> Path:
        return self.storm.directory / f"f{self.number}.followed"

    def begin(self) -> Worker:
        cut_torn_line(self.file)
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

    points: tuple[str, ...]
    follower_slot: type[Slot] = FollowerSlot

    def __init__(self, crew: Crew, directory: Path, seed: int) -> None:
        self.crew = crew
        self.directory = directory
        self.path = directory / "log"
        self.rng = random.Random(seed)
        self.acks: list[Path] = []
        self.kills = 0
        self.writing: dict[str, Any] = {}  # how else writers write
        self.make()
        self.writers = [WriterSlot(self, i) for i in range(4)]
        self.followers = [self.follower_slot(self, i) for i in range(2)]

    def make(self) -> None:
        """Make the log."""
        raise NotImplementedError

    def strike(self) -> None:
        """Let one worker get somewhere, then kill it, unless its fail-point was faster.

        A follower gets nowhere once every writer has died of its own fail-point.
        """
        slots: list[Slot] = [*self.writers, *self.followers]
        weights = [4] * len(self.writers) + [1] * len(self.followers)
        (slot,) = self.rng.choices(slots, weights)
        goal = slot.size() + self.rng.randrange(0, 1500)
        stuck = sum(s.size() for s in self.writers)

        def reached() -> bool:
            others = sum(s.size() for s in self.writers) - stuck
            if slot.size() >= goal or not slot.worker.alive or others > 20_000:
                return True
            return not any(writer.worker.alive for writer in self.writers)

        wait_for(reached, f"progress of {slot.file.name}")
        slot.kill()
        slot.next_life()

    def bury_the_dead(self) -> None:
        """Replace writers that died by their fail-points."""
        for slot in self.writers:
            if not slot.worker.alive:
                slot.kill()
                slot.next_life()

    def end(self) -> None:
        """Kill the writers, append the last event, let the followers come to it."""
        for slot in self.writers:
            slot.kill()
        mine = self.directory / "stop.acks"
        self.acks.append(mine)
        writer = Acks(str(mine), "stop")
        with penstock.open(self.path) as log:
            writer.append(log, [0])
        writer.close()
        for follower in self.followers:
            follower.worker.done()
