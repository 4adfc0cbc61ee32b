"""One log in a test's directory, the workers that act on it, and what they say they did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import penstock
from tests.support.acks import Acks
from tests.support.check import check_goes_on, check_log
from tests.support.workers import Crew, Worker

SEGMENT = 256 << 10


class Scene:
    """A log, its workers and their acknowledgements."""

    def __init__(self, crew: Crew, directory: Path) -> None:
        self.crew = crew
        self.directory = directory
        self.path = directory / "log"
        self.acks: list[Path] = []

    def file(self, name: str) -> Path:
        """A file beside the log."""
        return self.directory / name

    def acks_of(self, name: str) -> Path:
        """The file in which the writer ``name`` acknowledges; it counts in every check."""
        file = self.directory / f"{name}.acks"
        self.acks.append(file)
        return file

    def seed(self, segment_size: int = SEGMENT, more: list[list[int]] | None = None) -> None:
        """Make the log, with a few events."""
        acks = self.acks_of("seed")
        with penstock.open(self.path, segment_size=segment_size) as log:
            mine = Acks(str(acks), "seed")
            for sizes in [[100], [0, 10], [9000], *(more or [])]:
                mine.append(log, sizes)
            mine.close()

    def start(self, job: str, name: str, **args: Any) -> Worker:
        """Start a worker that appends under that name."""
        acks = self.acks_of(name)
        return self.crew.start(self.directory, job, path=self.path, acks=acks, writer=name, **args)

    def run(self, job: str, **args: Any) -> Worker:
        """Start a worker that acknowledges nothing."""
        return self.crew.start(self.directory, job, **args)

    def check(self) -> list[int]:
        """The log is what its writers were promised; returns the events' fingerprints."""
        return check_log(self.path, self.acks)

    def check_goes_on(self) -> None:
        """... and it opens for writing and takes more."""
        check_goes_on(self.path, self.acks)
