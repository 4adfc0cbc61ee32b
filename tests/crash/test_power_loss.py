"""The power fails at every moment, and of each page any version since the last sync is left."""

from __future__ import annotations

import logging
import random
import re
import shutil
import signal
import struct
from dataclasses import dataclass
from pathlib import Path

import pytest

import penstock
from penstock import _core
from penstock import layout as L
from tests.support import pages
from tests.support.fixtures import STORM
from tests.support.lives import Ledger, Life, Step, check_events, recorded
from tests.support.pages import History, Image
from tests.support.recorder import LOOSE, Recorder
from tests.support.workers import Crew
from tests.unit import oracle

pytestmark = [pytest.mark.crash, pytest.mark.process]


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Repairs are told, and there are thousands."""
    caplog.set_level(logging.CRITICAL, "penstock")


# A script is a line of words, with a slash where another process goes on. A word is open, sync,
# roll, keep (what the keeper's thread does in a pause) or close; set=128 changes a setting; sizes,
# 10 or 5,6000,0 for a batch, are appended: 10! durably, x3=10 by the producer x as number 3; 5*9000
# loads five events of that size, 5^9000 has them staged and taken over. "b:" before a word has a
# second handle do it; "@" and a fail-point after it has the process die there, "?" has the sync in
# it fail.
SCRIPTS = {
    "creation": "open 10! 20 close",
    "appends": "open 10 3000 5,6000,0 sync 100 200! 1,2,3 9000 sync 4000,4000,4000 1 close",
    "long appends": "open 100 33500 10! roll 50,33500,7 20 " + ",".join(["900"] * 40) + " 1! 36000",
    "rolls": "open 9000 roll 3 roll 100,200 sync 1 roll 20000 20000 20000 keep 8 9! close",
    "seals": "open 10 roll 10 keep 10! roll keep 10 roll 9 10 keep 10! 10",
    "rolls behind syncs": "open 10 10! roll keep 10! 5 sync roll keep 3 roll keep sync 2 close",
    "settings": "open 10 sync set=128 sync 5 roll set=64 1 2! roll set=128 keep 7 set=64 close",
    "producers": "open x1=10 y5=10,20! x2=300 roll z1=4 sync keep y6=5,6 1! roll z2=7 keep 2! "
    "x3=3000,3000 close",
    "closed and opened": "open 10 close / open 5000 1,2 sync 9 close / open roll 3 close / open 1!",
    "two handles": "open b:open 10 b:5! 9000 b:roll 7 b:sync b:3 roll 8 sync b:keep b:1 2! keep 40 "
    "close b:5,6 b:close",
    "loads": "open 10 12*5000 20 keep x1=9*9001! 30 roll 8*6000 40 b:open b:9*6000 50 b:60 keep 9! "
    "12*5000 7! close b:close",
    "dead loads": "open 10! 9*6000@load.named / open 20 9*6000@load.reserved / open 30 "
    "9*6000@load.committed / open 40! x1=9*6000@load.published / open 5 6! close",
    "staged": "open 14^6001 20 keep x1=9^9001! 30 roll 8^6000 sync set=128 b:open b:30^6000! 50 "
    "keep 9! 30^5000 7! close b:close / open 12^5001! 3",
    "dead staged": "open 10! 9^6000@load.named / open 20 9^6000@load.reserved / open 30 "
    "9^6000@load.committed / open 40! x1=9^6000@load.published / open 9^6000!@seal.indexed / "
    "open 9^6000!@seal.written / open 5 6! close",
    "a dead batch": "open 10! 4000,3000,400@publish.written / open 4000 3 3! 3001 10",
    "a dead repairer": "open 10! 4000,3000,400@publish.written / open@repair.zeroed / "
    "open 4000 10 3!",
    "dead rolls": "open 10! 30 roll@roll.committed / open 5 roll@segment.named / "
    "open 6 roll@segment.started / open 7 8! close",
    "failed syncs": "open 10! 5000 20 sync? close / open 30 40! 7000 50!? close / open 60! 5 close",
    "a dead failed sync": "open 10! 5000 20 sync?@failed.sync / open 30 40! 5 sync?@failed.sync / "
    "open 5 6! close",
    "a dead sync": "open 10 5000 sync@sync.synced / open 20 sync@sync.begun / open 30 40 sync 5",
}
GO_ON = "50 0,5000,300 sync roll 7! keep 3000 close"


def steps_of(line: str) -> list[Step]:
    """The steps that the words of a line stand for."""
    return [_step_of(word) for word in line.split()]


def _step_of(word: str) -> Step:
    parts = r"(?:(b):)?(?:([a-z]+)(\d*)(?:=|$|(?=[@?])))?([\d,*^]*)(!?)(\??)(?:@(.+))?"
    match = re.fullmatch(parts, word)
    assert match is not None, word
    by, name, number, sizes, durable, fails, dies = match.groups()
    more = ({"by": by} if by else {}) | ({"dies": dies} if dies else {})
    more |= {"fails": True} if fails else {}
    step: Step = {"do": name or "append"}
    if name == "set":
        step = {"do": "configure", "segment_size": int(sizes) << 10}
    elif sizes:
        count, how, size = re.fullmatch(r"([\d,]*)([*^]?)(\d*)", sizes).groups()  # type: ignore[union-attr]
        if how:
            do = "load" if how == "*" else "adopt"
            step = {"do": do, "count": int(count), "size": int(size)}
        else:
            step = {"do": "append", "sizes": [int(size) for size in sizes.split(",")]}
        step |= {"producer": [name, int(number)]} if name else {}
        step |= {"durable": True} if durable else {}
    return step | more


DEATHS = {
    "open": ["repair.walked", "repair.zeroed", "control.written", "open.settled"],
    "load": ["prepare.made", "load.named", "load.reserved", "load.committed", "load.published"],
    "adopt": ["load.named", "load.reserved", "load.committed", "load.published"],
    "append": ["publish.body", "publish.batch_body", "publish.written", "publish.commit"],
    "configure": ["publish.written", "publish.commit"],
    "sync": ["sync.begun", "sync.synced", "sync.checkpointed"],
    "roll": ["segment.started", "roll.reserved", "roll.committed", "segment.named", "repair.head"],
    "keep": ["sync.begun", "seal.indexed", "seal.allocated", "seal.written"],
    "close": ["sync.begun", "sync.synced", "seal.written"],
}


def random_script(seed: int) -> str:
    """A script of random words in some lives, each of which may end by a death."""
    rng = random.Random(seed)
    numbers = dict.fromkeys("xy", 0)
    lives = []
    for _ in range(rng.choice((1, 2, 3))):
        handles = ["", "b:"][: rng.choice((1, 2))]
        words = [f"{by}open" for by in handles]
        words += [
            rng.choice(handles) + random_word(rng, numbers) for _ in range(rng.randrange(4, 20))
        ]
        if rng.random() < 0.6:
            words += [f"{by}close" for by in handles]
        if rng.random() < 0.4:
            del words[rng.randrange(1, len(words) + 1) :]
            words[-1] += "@" + rng.choice(DEATHS[_step_of(words[-1])["do"]])
        lives.append(" ".join(words))
    return " / ".join(lives)


def random_word(rng: random.Random, numbers: dict[str, int]) -> str:
    """Mostly appends; ``numbers`` are what the producers have come to."""
    if rng.random() < 0.4:
        return rng.choice(("sync", "roll", "roll", "keep", "keep", "set=64", "set=128"))
    few = rng.choice((1, 1, 1, 2, 5))
    sizes = [rng.choice((0, 5, 200, 1001, 4056, 6000)) for _ in range(few)]
    if rng.random() < 0.08:
        sizes = [rng.randrange(32_000, 36_000)]
    word = ",".join(map(str, sizes))
    if rng.random() < 0.05:
        word = f"{rng.choice((6, 14))}{rng.choice('*^')}{rng.choice((5000, 9001))}"
    word += rng.choice(("!", "", ""))
    if rng.random() < 0.2:
        who = rng.choice("xy")
        numbers[who] += 1
        word = f"{who}{numbers[who]}={word}"
    return word


@dataclass
class Budget:
    """How many disks are tried, and how many of those that a second loss of power can leave."""

    disks: int
    all_below: int
    samples: int
    second: int


def run_lives(crew: Crew, directory: Path, script: str, module: str) -> Path:
    """Run the lives of a script, each in a process of its own that runs ``live`` of a module."""
    file = directory / "record"
    for line in script.split("/"):
        steps = steps_of(line)
        worker = crew.start(
            directory,
            "run_in_worker",
            module=module,
            function="live",
            args={"path": str(directory / "log"), "record": str(file), "steps": steps},
        )
        code = worker.wait()
        assert code == 0 or (code == -signal.SIGKILL and "dies" in steps[-1]), worker.errors()
    return file


def record(crew: Crew, directory: Path, script: str) -> tuple[History, Ledger]:
    """The history of the pages of a log through the lives of a script."""
    return recorded(run_lives(crew, directory, script, "tests.support.lives"))


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

    def power_fails(
        self,
        history: History,
        ledger: Ledger,
        budget: Budget,
        aside: frozenset[bytes] = frozenset(),
    ) -> None:
        """Have the power fail at the moments of a history, as far as the budget goes.

        ``aside`` are the bytes that were taken out of the log before; they are still there.
        """
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
                    self.try_disk(image, ledger.at(moment), label, budget.second, aside)

    def is_new(self, image: Image, must: int) -> bool:
        """Whether the disk was not tried yet with as much that it must hold."""
        mark = hash(tuple(sorted(image.items())))
        if self.tried.get(mark, -1) >= must:
            return False
        self.tried[mark] = must
        return True

    def try_disk(
        self, image: Image, ledger: Ledger, label: str, second: int, aside: frozenset[bytes]
    ) -> None:
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
            taken_out = bytes_aside(place)
            assert aside <= taken_out, "bytes that were taken out of the log are gone"
            life.run(steps_of(GO_ON))
            assert read_only(place, ledger) == len(ledger.events)
            if self.rng.random() < 0.05:
                segments = oracle.read_log(place)
                assert sum(len(s.events) for s in segments) == len(ledger.events)
            if recorder is not None:
                self.power_fails(recorder.history, ledger, Budget(second, 12, 2, 0), taken_out)
        except BaseException as error:
            error.add_note(f"{label} ({place})")
            raise
        self.losses += found < appended
        shutil.rmtree(place)


def bytes_aside(place: Path) -> frozenset[bytes]:
    """What recovery has kept of frames and segments that nothing leads to."""
    return frozenset(file.read_bytes().rstrip(b"\0") for file in place.glob("lost-*"))


def read_only(place: Path, ledger: Ledger) -> int | None:
    """How many events someone sees who only reads; None if there is no log yet."""
    try:
        with penstock.open(place, mode="r") as log:
            return check_events(log, ledger, ledger.must_hold(0))
    except penstock.NotFound:
        assert ledger.must_hold(0) == 0
        return None


@pytest.mark.timeout(3600 if STORM else 300)
@pytest.mark.parametrize("name", SCRIPTS)
def test_power_loss(crew: Crew, tmp_path: Path, name: str) -> None:
    """Whatever pages a loss of power leaves, durable events are there, and batches whole."""
    history, ledger = record(crew, tmp_path, SCRIPTS[name])
    trial = Trial(tmp_path, seed=len(name))
    few = 100 if "dead" in name else 40
    trial.power_fails(history, ledger, Budget(2000, 512, 12, 4) if STORM else Budget(few, 48, 2, 2))
    assert trial.losses


@pytest.mark.timeout(3600 if STORM else 300)
@pytest.mark.parametrize("seed", range(100 if STORM else 3))
def test_power_loss_amid_anything(crew: Crew, tmp_path: Path, seed: int) -> None:
    """The same holds for whatever a log is used for."""
    history, ledger = record(crew, tmp_path, random_script(seed))
    budget = Budget(400, 128, 8, 4) if STORM else Budget(40, 24, 4, 2)
    Trial(tmp_path, seed).power_fails(history, ledger, budget)


def test_power_loss_again(crew: Crew, tmp_path: Path) -> None:
    """If it fails during a recovery that takes bytes out of the log, none of them is lost."""
    history, ledger = record(
        crew, tmp_path, "open 10! 1000 1000 1000 1000 1000 1000 1000 1000 1000"
    )
    moment = history.moment
    page = min(key for key in history.options(moment) if key[0] == "page" and key[2] > 4)
    place = tmp_path / "disk"
    pages.write(history.image(moment, {page: 0}, random.Random(0)), place)
    recorder = Recorder(History.of(place, LOOSE), str(place))
    ledger = ledger.at(moment)
    Life(str(place), ledger, recorder).run([{"do": "open", "rebooted": True}])
    taken_out = bytes_aside(place)
    assert len(taken_out) == 1
    Trial(tmp_path, seed=1).power_fails(
        recorder.history, ledger, Budget(10_000, 1000, 10, 0), taken_out
    )
