"""The machine loses power at any moment of a retention or a trim; any file may come back."""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import DiskFull, Log
from penstock.steward import retention
from tests.crash.test_power_loss import from_another_boot
from tests.support import pages
from tests.support.fixtures import STORM
from tests.support.pages import History
from tests.support.recorder import LOOSE, Recorder

pytestmark = [pytest.mark.crash]

EVENTS = 26  # four to a segment
DISKS = 1500 if STORM else 60


def full_at_first(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first two tries to store settings find no room."""
    real = Log._change_settings
    left = [2]

    def change(self: Log, how: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise DiskFull("testing: no room")
        return real(self, how)

    monkeypatch.setattr(Log, "_change_settings", change)


JOBS: dict[str, tuple[Callable[[Log], object], int]] = {
    "trim": (lambda log: log.steward.trim(before=14), 14),
    "trim all": (lambda log: log.steward.trim(before=log.last_seq + 1), EVENTS + 1),
    "retain": (lambda log: log.steward.retain(), 17),
    "no room": (lambda log: log.steward.retain(), 17),
}


@pytest.mark.parametrize("job", JOBS)
def test_power_loss(
    path: Path, job: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log is whole from the old first seq or the new one; from the new one once it was told."""
    caplog.set_level(logging.CRITICAL, "penstock")
    work, wanted = JOBS[job]
    with monkeypatch.context() as patch:
        patch.setattr(retention, "keep_up", lambda *_: False)
        with penstock.open(path, segment_size="64KiB") as log:
            for n in range(EVENTS):
                log.append(b"%9000d" % n)
            log.configure(keep_segments=3)
    firsts = {1, wanted} | ({5, 9} if job == "no room" else set())
    recorder = Recorder(History.of(path, LOOSE), str(path))
    with recorder.recording():
        log = penstock.open(path)
        if job == "no room":
            full_at_first(log, monkeypatch)
        work(log)
        assert log.first_seq == wanted
        told = recorder.history.moment
        monkeypatch.undo()
        caplog.set_level(logging.CRITICAL, "penstock")
        seq = log.append(b"later", durable=True)
        durable = recorder.history.moment
        log.close()
    rng = random.Random(len(job))
    history = recorder.history
    seen: set[int] = set()
    for number in range(DISKS):
        moment = rng.randrange(history.moment + 1)
        picks = next(iter(pages.ways(history.options(moment), rng, all_below=1, samples=1)), {})
        place = path.parent / f"disk-{number}"
        pages.write(history.image(moment, picks, rng), place)
        if (place / "control").exists():
            from_another_boot(place / "control")
        where = f"at moment {moment} of {told}, {history.labels[moment]}, {place}"
        with penstock.open(place) as log:
            first, last = log.first_seq, log.last_seq
            seen.add(first)
            assert first in firsts, where
            assert moment < told or first == wanted, where
            assert last in ((EVENTS, seq) if moment < durable else (seq,)), where
            assert [e.seq for e in log] == list(range(first, last + 1)), where
            assert log.verify().ok, where
            log.steward.retain()
            assert log.append(b"on") == last + 1
            left = sorted(int(file.stem) for file in place.glob("*.seg"))
            assert len(left) == 1 or left[1] > log.first_seq, where
        with penstock.open(place, mode="r") as log:
            assert [e.seq for e in log] == list(range(log.first_seq, last + 2)), where
        shutil.rmtree(place)
    assert seen >= {1, wanted}
