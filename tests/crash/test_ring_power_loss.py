"""The power fails at every moment of a ring's laps, and any version of each page is left."""

from __future__ import annotations

import logging
import random
import shutil
import struct
from pathlib import Path

import pytest

import penstock
from penstock import _core
from penstock import layout as L
from tests.crash.test_power_loss import Budget, Trial, run_lives, steps_of
from tests.support import pages
from tests.support.fixtures import STORM
from tests.support.lives import Ledger
from tests.support.pages import History, Image
from tests.support.ring_lives import (
    NAME,
    RingLedger,
    RingLife,
    RingRecorder,
    check_events,
    recorded,
)
from tests.support.workers import Crew

pytestmark = [pytest.mark.crash, pytest.mark.process]


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Repairs are told, and there are thousands."""
    caplog.set_level(logging.CRITICAL, "penstock")


# In the language of test_power_loss.py. Five pages of frames make a lap.
LAP = "3000 4000 1,2,3 2000 3000 500,600 4000 1000 30 2000 "
SCRIPTS = {
    "first lap": "open 10 3000 5,6000,0 sync 100 200! 1,2,3 close",
    "laps": f"open {LAP} sync {LAP} 10! {LAP} 4000! 3000 close",
    "laps without a sync": f"open {LAP} {LAP} {LAP} 7",
    "syncs all the time": "open " + "3000! 10! 900,900 sync 4000! 2000 " * 4,
    "rare syncs": f"open 10! {LAP} sync 3000 4000 sync 3000 3000 3000 2000 2000 2000 3000 9",
    "tail between syncs": "open 9000 sync 2000 2000 2000 sync 4000 4000 4000 2000 9 9 9 9 4000",
    "tail and sync": "open 9000 9000 sync 2000 4000 sync 9000 300 300 300 9000 9000! 10 5000",
    "large ones": "open 9000 9000! 9500 8000 9500! 9700 9700 9700 sync 9700 9700",
    "closed and opened": f"open {LAP} close / open 4000 5000 2000 9 close / open {LAP} 3! 9000",
    "two handles": f"open b:open {LAP} b:5! 4000 b:sync b:{LAP}close b:5,6 3000 b:close".replace(
        " 3000 b:close", " b:close"
    ),
    "producers": "open x1=10 y5=10,20! x2=3000 4000 4000 4000 4000 4000 x3=10 4000 4000 y6=3! 9000 "
    "4000 x4=10 4000 4000 4000 9 sync 5000 5000",
    "a dead batch": "open 9000! 9000 4000,3000,400@publish.written / open 4000 3 3! 3001 9000 10",
    "dead in laps": f"open {LAP} 10! {LAP} 9000@publish.body / open 9000 sync {LAP} "
    f"8000@publish.tail / open {LAP} 9000@publish.commit / open 3! 10",
    "a dead repairer": "open 9000 9000! 4000,3000,400@publish.written / open@repair.zeroed / "
    "open 4000 10 3! 9000",
    "dead openers": f"open {LAP} sync close / open@open.settled / open@ring.epoch / open "
    "4000 9000 / open@control.emptied / open 9000 9000 9!",
    "failed syncs": f"open {LAP} 10! 5000 20 sync? close / open 3000 40! 7000 50!? close / open 9!",
    "a dead failed sync": f"open {LAP} 10! 5000 20 sync?@failed.sync / open 3000 40! 5 "
    "sync?@failed.sync / open 5 6! close",
    "dead syncs": f"open {LAP} sync 9000 5000 sync@sync.synced / open 9000 sync@sync.begun / open "
    "4000 40 sync 5",
}
GO_ON = "50 0,5000,300 sync 4000 9000 3000 7! 4000 4000,3000 3000 sync 5000 30 close"

DEATHS = {
    "open": ["repair.walked", "repair.zeroed", "control.filled", "open.settled"],
    "append": [
        *("publish.tail", "publish.body", "publish.batch_body", "publish.written"),
        "publish.commit",
    ],
    "sync": ["sync.begun", "sync.synced"],
    "close": ["sync.begun", "sync.synced"],
}


def random_script(seed: int) -> str:
    """A script of random words in some lives, each of which may end by a death."""
    rng = random.Random(seed)
    lives = []
    for _ in range(rng.choice((1, 2, 3))):
        handles = ["", "b:"][: rng.choice((1, 2))]
        words = [f"{by}open" for by in handles]
        syncs = rng.choice((0.02, 0.1, 0.3))
        for _ in range(rng.randrange(6, 30)):
            few = rng.choice((1, 1, 1, 2, 4))
            sizes = [rng.choice((0, 5, 200, 1001, 2400, 4056)) for _ in range(few)]
            if rng.random() < 0.15:
                sizes = [rng.randrange(7000, 9900)]
            word = ",".join(map(str, sizes)) if sum(sizes) < 9800 else str(max(sizes))
            if rng.random() < syncs:
                word = rng.choice(("sync", word + "!"))
            words.append(rng.choice(handles) + word)
        if rng.random() < 0.6:
            words += [f"{by}close" for by in handles]
        if rng.random() < 0.4:
            del words[rng.randrange(1, len(words) + 1) :]
            words[-1] += "@" + rng.choice(DEATHS[steps_of(words[-1])[0]["do"]])
        lives.append(" ".join(words))
    return " / ".join(lives)


def record(crew: Crew, directory: Path, script: str) -> tuple[History, RingLedger]:
    """The history of the pages of a ring through the lives of a script."""
    return recorded(run_lives(crew, directory, script, "tests.support.ring_lives"))


def from_another_boot(ring: Path) -> None:
    """Have nothing but its boot id tell that the control page is from before the power failed."""
    data = bytearray(ring.read_bytes())
    page = data[L.RING_CONTROL_OFFSET : L.RING_CONTROL_OFFSET + L.PAGE]
    stat = ring.stat()
    good = struct.unpack_from("<I", page, L.C_CRC)[0] == _core.crc32c(bytes(page[: L.C_CRC]))
    page[L.C_BOOT_ID : L.C_BOOT_ID + 16] = b"\xee" * 16
    struct.pack_into("<QQ", page, L.C_DEV, stat.st_dev, stat.st_ino)
    if good:
        struct.pack_into("<I", page, L.C_CRC, _core.crc32c(bytes(page[: L.C_CRC])))
    data[L.RING_CONTROL_OFFSET : L.RING_CONTROL_OFFSET + L.PAGE] = page
    ring.write_bytes(data)


class RingTrial(Trial):
    """Tries the disks that losses of power can leave of a ring."""

    def try_disk(
        self, image: Image, ledger: Ledger, label: str, second: int, aside: frozenset[bytes]
    ) -> None:
        """Open the ring on that disk and use it; then the power may have failed meanwhile."""
        assert isinstance(ledger, RingLedger)
        self.disks += 1
        place = self.directory / f"disk-{self.disks}"
        pages.write(image, place)
        from_another_boot(place / NAME)
        appended = len(ledger.events)
        watched = second > 0 and self.rng.random() < 0.25
        recorder = RingRecorder(History.of(place), str(place)) if watched else None
        if recorder is not None:
            recorder.ledger = ledger
        try:
            readable = read_only(place, ledger) if self.rng.random() < 0.3 else None
            life = RingLife(str(place), ledger, recorder)
            life.run([{"do": "open", "rebooted": True}])
            found = len(ledger.events)
            assert readable in (None, found), "who only reads finds another end"
            life.run(steps_of(GO_ON))
            assert read_only(place, ledger) == len(ledger.events)
            if recorder is not None:
                self.power_fails(recorder.history, ledger, Budget(second, 12, 2, 0))
        except BaseException as error:
            error.add_note(f"{label} ({place})")
            raise
        self.losses += found < appended
        shutil.rmtree(place)


def read_only(place: Path, ledger: RingLedger) -> int:
    """The last seq that someone sees who only reads."""
    with penstock.open(place / NAME, mode="r") as log:
        return check_events(log, ledger, 1 << 62)


@pytest.mark.timeout(3600 if STORM else 300)
@pytest.mark.parametrize("name", SCRIPTS)
def test_power_loss(crew: Crew, tmp_path: Path, name: str) -> None:
    """Whatever pages a loss of power leaves, durable events that were not dropped are there."""
    history, ledger = record(crew, tmp_path, SCRIPTS[name])
    trial = RingTrial(tmp_path, seed=len(name))
    budget = Budget(4000, 512, 12, 4) if STORM else Budget(60, 48, 2, 2)
    trial.power_fails(history, ledger, budget)
    assert trial.losses


@pytest.mark.timeout(3600 if STORM else 300)
@pytest.mark.parametrize("seed", range(200 if STORM else 6))
def test_power_loss_amid_anything(crew: Crew, tmp_path: Path, seed: int) -> None:
    """The same holds for whatever a ring is used for."""
    history, ledger = record(crew, tmp_path, random_script(seed))
    budget = Budget(600, 128, 8, 4) if STORM else Budget(60, 24, 4, 2)
    RingTrial(tmp_path, seed).power_fails(history, ledger, budget)
