"""stats(): counts, sizes, counters, and whether the handle is live."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

import penstock
from penstock import layout as L
from tests.unit import oracle


def test_stats_of_a_live_log(log: penstock.Log, path: Path) -> None:
    """Every field agrees with the files and the log itself."""
    for _ in range(150):
        log.append(b"x" * 1000)
    stats = log.stats()
    segments = oracle.read_log(path)
    assert stats.path == str(path)
    assert stats.uuid == segments[0].uuid.hex()
    assert (stats.first_seq, stats.last_seq) == (1, 150)
    assert stats.segments == len(segments)
    assert stats.rolls == len(segments) - 1
    assert stats.live
    assert (stats.repairs, stats.takeovers, stats.spurious) == (0, 0, {})
    assert stats.lock in ("futex", "polling")
    log.close()
    with penstock.open(path, mode="r") as reading:
        used = sum(p.stat().st_blocks * 512 for p in oracle.segment_paths(path))
        assert reading.stats().disk_bytes == used


def test_stats_without_control(path: Path) -> None:
    """A handle that reads frames alone says so, and has no counters."""
    with penstock.open(path) as log:
        log.append(b"a")
    path.joinpath("control").unlink()
    with penstock.open(path, mode="r") as log:
        stats = log.stats()
    assert (stats.live, stats.last_seq, stats.segments) == (False, 1, 1)
    assert (stats.repairs, stats.takeovers, stats.rolls) == (0, 0, 0)


def test_a_repair_is_counted(log: penstock.Log) -> None:
    """A reservation that its writer left open is repaired by the next append, and counted."""
    log.append(b"a")
    attached = log._live()
    attached.put(L.C_RESERVED, attached.get(L.C_HEAD) + 480)
    assert log.append(b"b") == 2
    assert log.stats().repairs == 1
    assert [e.value for e in log] == [b"a", b"b"]


def test_stats_cannot_be_changed(log: penstock.Log) -> None:
    """Stats is a snapshot."""
    stats = log.stats()
    log.append(b"a")
    assert stats.last_seq == 0
    with pytest.raises(FrozenInstanceError):
        stats.last_seq = 5  # type: ignore[misc]


def test_stats_of_durability(log: penstock.Log) -> None:
    """How far the log is on disk, how many syncs it took, and whether one failed."""
    log.append(b"a", durable=True)
    log.append(b"b", durable=True)
    log.append(b"c")
    stats = log.stats()
    assert (stats.durable_seq, stats.syncs, stats.poisoned) == (2, 2, False)
    log._live().put(L.C_POISONED, 1)
    assert log.stats().poisoned
