"""Four writers and two followers on one log, killed again and again, at random and on purpose."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from penstock import _core
from tests.support.check import check_goes_on, check_log, read_followed
from tests.support.fixtures import STORM
from tests.support.storm import Storm
from tests.support.workers import Crew

pytestmark = [pytest.mark.crash, pytest.mark.process, pytest.mark.slow]

KILLS = 400 if STORM else 60  # per storm
SEEDS = range(12) if STORM else range(4)
SEGMENT = 1 << 20


class SegmentedStorm(Storm):
    """A storm over a log of small segments."""

    points = (
        *_core._FAIL_NAMES,
        *("roll.reserved", "roll.committed", "roll.published", "prepare.made", "prepare.named"),
        *("repair.word", "repair.head", "repair.walked", "repair.zeroed"),
        *("segment.started", "segment.named", "segment.synced", "open.locked"),
        *("seal.indexed", "seal.allocated", "seal.written", "repair.moved"),
        *("sync.begun", "sync.synced", "sync.checkpointed"),
        *("load.named", "load.reserved", "load.committed", "load.published"),
    )

    def make(self) -> None:
        penstock.open(self.path, segment_size=SEGMENT).close()


def test_storm_is_large_enough() -> None:
    """The storms together kill at least two hundred times, and thousands of times if asked to."""
    assert KILLS * len(SEEDS) >= (4000 if STORM else 200)


@pytest.mark.timeout(1800 if STORM else 300)
@pytest.mark.parametrize("seed", SEEDS)
def test_storm(crew: Crew, tmp_path: Path, seed: int) -> None:
    """Whatever dies, acknowledged events are there exactly once and followers see the whole log."""
    storm = SegmentedStorm(crew, tmp_path, seed)
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
