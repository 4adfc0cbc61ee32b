"""A process dies before each file operation of a lake's publishing and compacting, one by one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset
import pytest

from penstock.spark.lake.book import Book
from tests.support.dying import PARTS, ROWS, publish
from tests.support.workers import ROOT

pytestmark = [pytest.mark.crash, pytest.mark.process]


class Mortals:
    """A process whose forks do jobs, and die in them."""

    def __init__(self) -> None:
        words = [sys.executable, "-m", "tests.support.dying"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(words, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)

    def run(self, lake: Path, job: str, nth: int = 0) -> int:
        """Do a job; with ``nth`` it dies there, else it tells how many operations it has."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(f"{lake} {job} {nth}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        assert answer == "killed" if nth else answer.isdigit(), answer
        return 0 if nth else int(answer)

    def close(self) -> None:
        """End it."""
        assert self._process.stdin
        self._process.stdin.close()
        assert self._process.wait() == 0


@pytest.fixture
def mortals() -> Iterator[Mortals]:
    """Processes that can be killed."""
    made = Mortals()
    yield made
    made.close()


def offsets(path: Path) -> list[int]:
    """The offsets of all rows, as anybody reads them."""
    found = pyarrow.dataset.dataset(path, format="parquet", partitioning="hive")
    return sorted(found.to_table(columns=["offset"])["offset"].to_pylist())


def expected(batches: int, parts: range) -> list[int]:
    """The offsets that some batches have in some parts."""
    return [
        (batch * (PARTS + 1) + part) * ROWS + n
        for batch in range(batches)
        for part in parts
        for n in range(ROWS)
    ]


def assert_whole(lake: Path, batches: int) -> None:
    """The lake has these batches, each row once, and nothing is left in staging."""
    assert offsets(lake) == expected(batches, range(PARTS))
    assert offsets(lake.parent / "_lake" / "bad") == expected(batches, range(PARTS, PARTS + 1))
    assert list((lake.parent / "_lake" / "staging").iterdir()) == []


def filled(tmp_path: Path, batches: int) -> Path:
    """A lake of some batches."""
    lake = tmp_path / "lake"
    for _ in range(batches):
        publish(lake)
    return lake


def test_death_while_publishing(tmp_path: Path, mortals: Mortals) -> None:
    """Wherever a publisher dies, its batch is not there, or will be whole; no event comes twice."""
    first = filled(tmp_path / "first", 1)
    shutil.copytree(first.parent, tmp_path / "counted")
    operations = mortals.run(tmp_path / "counted" / "lake", "publish")
    assert operations > 2 * PARTS
    outcomes = set()
    for nth in range(1, operations + 1):
        lake = tmp_path / str(nth) / "lake"
        shutil.copytree(first.parent, lake.parent)
        mortals.run(lake, "publish", nth)
        there = offsets(lake)
        assert len(there) == len(set(there))  # nobody sees an event twice, not even now
        assert set(there) <= set(expected(2, range(PARTS)))
        journal = Book(lake).journal()
        assert journal is not None
        outcomes.add(journal.batch)
        publish(lake)
        assert_whole(lake, journal.batch + 2)
    assert outcomes == {0, 1}


def test_death_while_compacting(tmp_path: Path, mortals: Mortals) -> None:
    """Wherever the compactor dies, every event is there once, at once and after the next one."""
    first = filled(tmp_path / "first", 3)
    shutil.copytree(first.parent, tmp_path / "counted")
    operations = mortals.run(tmp_path / "counted" / "lake", "compact")
    assert operations > 2 * PARTS
    assert len(list((tmp_path / "counted" / "lake").rglob("*.parquet"))) == PARTS
    for nth in range(1, operations + 1):
        lake = tmp_path / str(nth) / "lake"
        shutil.copytree(first.parent, lake.parent)
        mortals.run(lake, "compact", nth)
        assert offsets(lake) == expected(3, range(PARTS))
        mortals.run(lake, "compact")
        assert_whole(lake, 3)
        assert len(list(lake.rglob("*.parquet"))) == PARTS
        publish(lake)
        assert_whole(lake, 4)


def test_compaction_finishes_a_batch(tmp_path: Path, mortals: Mortals) -> None:
    """A batch of which half is in place is whole after a compaction, and after the next stream."""
    first = filled(tmp_path / "first", 2)
    whole = PARTS * ROWS
    nth = 0
    while True:
        nth += 1
        lake = tmp_path / str(nth) / "lake"
        shutil.copytree(first.parent, lake.parent)
        mortals.run(lake, "publish", nth)
        if 2 * whole < len(offsets(lake)) < 3 * whole:
            break
    mortals.run(lake, "compact")
    assert offsets(lake) == expected(3, range(PARTS))
    publish(lake)
    assert_whole(lake, 4)
