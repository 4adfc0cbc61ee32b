"""The disk budget, pressure from background work, the forecast, and the cache of maps."""

from __future__ import annotations

import datetime as dt
import errno
import os
import pickle
import random
from pathlib import Path
from typing import Any

import numpy
import pytest

import penstock
from penstock import Backpressure, DiskFull, Log, Usage
from penstock.segments.storage import SegmentStorage
from penstock.stats import Disk
from penstock.steward import ahead, retention, seal
from penstock.system import files
from tests.support.wait import wait_for

MIB = 1 << 20


def disk_bytes(path: Path) -> int:
    """Bytes that all files of a log take on disk."""
    return sum(p.stat().st_blocks * 512 for p in path.rglob("*") if p.is_file())


def append_until_full(log: Log, value: bytes = bytes(5000)) -> int:
    """How many appends were taken until the first refusal."""
    for count in range(100_000):
        try:
            log.append(value)
        except DiskFull as error:
            assert error.errno == errno.ENOSPC and error.filename == log.path
            assert "max_bytes" in str(error)
            return count
    raise AssertionError("the budget was never used up")


@pytest.mark.parametrize("segment_size", ["64KiB", "1MiB"])
def test_a_log_never_takes_more(path: Path, segment_size: str) -> None:
    """Appends raise DiskFull before the log takes more; once it keeps less, they go on."""
    with penstock.open(path, segment_size=segment_size) as log:
        log.configure(max_bytes="4MiB")
        taken = append_until_full(log)
        assert taken > 500
        assert disk_bytes(path) <= 4 * MIB
        for _ in range(3):
            with pytest.raises(DiskFull):
                log.append(bytes(60_000 if segment_size == "1MiB" else 20_000))
        with pytest.raises(DiskFull):
            log.load(bytes(5000) for _ in range(1000))
        assert disk_bytes(path) <= 4 * MIB
        assert [e.seq for e in log] == list(range(1, taken + 1))
        log.configure(keep_bytes="3MiB")  # there is no room for its frame, perhaps
        log.steward.retain()
        assert log.append(b"on") == taken + 1
        assert append_until_full(log) > 10
        log.configure(max_bytes="5MiB")
        assert append_until_full(log) > 10
        assert disk_bytes(path) <= 5 * MIB
        last = log.last_seq
    assert disk_bytes(path) <= 5 * MIB
    with penstock.open(path) as log:
        assert [e.seq for e in log] == list(range(log.first_seq, last + 1))


def test_settings_that_give_room_need_none(path: Path) -> None:
    """On a log whose budget is used up to the last page, retain and trim work all the same."""
    with penstock.open(path, segment_size="64KiB") as log:
        log.configure(max_bytes="2MiB")
        append_until_full(log, bytes(3000))
        for size in (1000, 100, 0):
            append_until_full(log, bytes(size))
        first = log.steward.trim(before=100)
        assert first == log.first_seq == 100
        log.append(b"on")
        append_until_full(log, b"")
        log.configure(max_bytes=0)
        for _ in range(1000):
            log.append(bytes(3000))


def test_a_budget_with_retention_never_stops_appends(path: Path) -> None:
    """With a rule below the budget, a writer that is not too fast is never refused."""
    with penstock.open(path, segment_size="64KiB") as log:
        log.configure(max_bytes="4MiB", keep_bytes="2MiB")
        for n in range(1500):
            log.append(bytes(5000))
            if n % 50 == 49:
                log.steward.retain()
        assert log.first_seq > 1000
        assert disk_bytes(path) <= 4 * MIB


def test_two_processes_share_a_budget(path: Path) -> None:
    """What other handles take counts."""
    with penstock.open(path, segment_size="64KiB") as one, penstock.open(path) as other:
        one.configure(max_bytes="2MiB")
        full = [False, False]
        while not all(full):
            for number, log in enumerate((one, other)):
                try:
                    log.append(bytes(5000))
                except DiskFull:
                    full[number] = True
        assert disk_bytes(path) <= 2 * MIB


def failing_seals(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Let no segment be sealed while the list is not empty."""
    why = [True]
    real = seal.seal_finished

    def refused(*args: Any) -> int:
        if why:
            raise penstock.Io("the disk is ill")
        return real(*args)

    monkeypatch.setattr(ahead, "seal_finished", refused)
    monkeypatch.setattr(ahead, "AGAIN_MAX", 0.1)
    return why


def fill_until_pressure(log: Log, most: int = 10_000) -> str:
    for _ in range(most):
        try:
            log.append(bytes(9000))
        except Backpressure as error:
            return str(error)
    raise AssertionError("no pressure")


def test_unsealed_segments_press(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above max_unsealed appends raise Backpressure; once seals succeed they go on."""
    why = failing_seals(monkeypatch)
    with penstock.open(path, segment_size="64KiB") as log:
        log.configure(max_unsealed=12)
        said = fill_until_pressure(log)
        assert "max_unsealed is 12" in said
        last = log.last_seq
        assert 12 * 4 <= last <= 15 * 4
        wait_for(lambda: log.stats().background["seal"].queue > 12, "the queue to be told")
        assert log.stats().background["seal"].in_a_row > 0
        assert log.configure(ttl=1000).ttl == 1000  # settings may be the way out
        why.clear()

        def taken() -> bool:
            try:
                log.append(bytes(9000))
            except Backpressure:
                return False
            return True

        wait_for(taken, "appends to go on")
        assert [e.seq for e in log] == list(range(1, last + 2))
        wait_for(lambda: log.stats().background["seal"].queue == 0, "all to be sealed")
        why.append(True)
        fill_until_pressure(log)
        log.configure(max_unsealed=0)
        log.append(bytes(9000))
        why.clear()


def test_failures_press(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above max_failures in a row appends raise Backpressure, and a handle without any does not."""
    why = failing_seals(monkeypatch)
    with penstock.open(path, segment_size="64KiB") as log:
        log.configure(max_failures=3, max_unsealed=0)
        log.append(b"x")
        log.steward.roll()
        log.append(b"x")
        wait_for(lambda: log.stats().background["seal"].in_a_row > 3, "failures")
        said = fill_until_pressure(log, 20)
        assert "seal has failed" in said and "the disk is ill" in said
        with pytest.raises(Backpressure):
            log.extend([bytes(9000)] * 4)
        why.clear()
        wait_for(lambda: log.stats().background["seal"].in_a_row == 0, "a success")
        for _ in range(20):
            log.append(bytes(9000))


def test_prepare_at(path: Path) -> None:
    """The next segment is prepared after that share of one; with 0 it never is."""
    with penstock.open(path, segment_size="1MiB") as log:
        log.configure(prepare_at=0.25)
        log.append(bytes(200_000))
        log._look_ahead()
        log.append(bytes(100_000))

        def prepared() -> bool:
            log._look_ahead()
            return (path / "next.tmp").exists()

        wait_for(prepared, "the next segment")
    with penstock.open(path) as log:
        log.configure(prepare_at=0)
        log.append(bytes(600_000))
        before = log.stats().background["allocate"].successes
        log._keeper.stop()  # type: ignore[union-attr]
        assert not (path / "next.tmp").exists()
        assert log.stats().background["prepare"] == penstock.stats.BackgroundJob()
        assert before >= 0


def test_disk(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """stats().disk counts what the files take, and says when there is no room left."""
    monkeypatch.setattr(retention, "keep_up", lambda *_: False)
    with penstock.open(path, segment_size="64KiB") as log:
        new = log.stats().disk
        assert (new.limit, new.rate, new.full_at, new.dead) == (0, 0.0, None, None)
        for _ in range(60):
            log.append(bytes(9000))
        found = log.stats().disk
        assert found.allocated == disk_bytes(path) + folder_bytes(path)
        assert 0 < found.live <= found.allocated
        assert found.free > 0

        class Later(dt.datetime):
            pass

        from penstock import _core
        from penstock.segments import disk

        real = _core.now_ns

        class Clock:
            def now_ns(self) -> int:
                return real() + 1000 * 10**9

        monkeypatch.setattr(disk, "_core", Clock())
        found = log.stats().disk
        assert 300 < found.rate < 1000
        log.configure(max_bytes=found.allocated + 10 * MIB)
        found = log.stats().disk
        assert found.limit > 0 and found.full_at is not None
        left = (found.full_at - dt.datetime.now(dt.UTC)).total_seconds()
        assert left == pytest.approx((found.limit - found.allocated) / found.rate, rel=0.05)
        log.configure(keep_bytes=2 * MIB)
        assert log.stats().disk.full_at is None  # retention keeps it below
        log.configure(keep_until_consumed=True)
        assert log.stats().disk.full_at is not None  # but consumers may hold it
    with penstock.create(tmp_path / "x.ring", ring="64KiB") as ring:
        ring.append(bytes(100))
        assert ring.stats().disk.live >= 100
        assert ring.stats().disk.allocated == ring.stats().disk_bytes


def folder_bytes(path: Path) -> int:
    return sum(p.stat().st_blocks * 512 for p in path.rglob("*") if p.is_dir())


def test_max_maps(path: Path, tmp_path: Path) -> None:
    """A handle keeps that many segments mapped; those used longest ago go first."""
    with penstock.open(path, segment_size="64KiB") as log:
        for n in range(80):
            log.append(b"%9000d" % n)
    with penstock.open(path, mode="r", max_maps=3) as log:
        storage = log._storage
        assert isinstance(storage, SegmentStorage)
        for seq in (1, 5, 9):
            assert log[seq].seq == seq
        assert log[1].seq == 1
        log[13]
        assert sorted(m.base_seq for m in storage.recent) == [1, 9, 13]
        rng = random.Random(1)
        for _ in range(300):
            seq = rng.randrange(1, 81)
            assert log[seq].value == b"%9000d" % (seq - 1)
            assert len(storage.recent) <= 3
        assert [e.seq for e in log] == list(range(1, 81))
        again = pickle.loads(pickle.dumps(log))
        assert again._storage.store.maps_max == 3
        again.close()
    for wrong in (0, -1, 1.5, True, "3", 10**9, numpy.float64(3)):
        with pytest.raises(Usage, match="max_maps must be"):
            penstock.open(path, max_maps=wrong)  # type: ignore[arg-type]
    with pytest.raises(Usage, match="max_maps is for a log of segments"):
        penstock.create(tmp_path / "x.ring", ring="64KiB", max_maps=3)


def test_a_deletion_that_fails_in_the_background_is_tried_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that cannot be deleted is counted as a failure, and goes without another roll."""
    real, why = files.unlink, [True]

    def unlink(name: str) -> bool:
        if why and os.path.basename(name).endswith(".seg"):
            raise penstock.Io("the disk is ill")
        return real(name)

    monkeypatch.setattr(files, "unlink", unlink)
    with penstock.open(path, segment_size="64KiB") as log:
        log.configure(keep_segments=2)
        for _ in range(30):
            log.append(bytes(9000))
        wait_for(lambda: log.stats().background["retain"].failures > 1, "failures")
        found = log.stats().background["retain"]
        assert found.last_error == "the disk is ill"
        assert found.queue > 0
        assert [e.seq for e in log] == list(range(log.first_seq, 31))
        why.clear()
        wait_for(lambda: len(list(path.glob("*.seg"))) <= 3, "the files to go")
        assert log.stats().background["retain"].queue == 0
        wait_for(lambda: log.stats().background["retain"].in_a_row == 0, "a success")


def test_disk_is_a_plain_value() -> None:
    """A Disk without figures has none of them, for logs that cannot say."""
    assert Disk() == Disk(0, 0, None, 0, 0, 0.0, None)
