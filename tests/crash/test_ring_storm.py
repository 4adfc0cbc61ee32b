"""Four writers and two followers on a ring that goes round, killed again and again."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import penstock
from penstock import Full, Log, _core
from tests.support.acks import Acks
from tests.support.fixtures import STORM
from tests.support.rings import (
    Prints,
    Sighting,
    check_goes_on,
    check_ring,
    check_sightings,
    read_sightings,
)
from tests.support.storm import Slot, Storm, cut_torn_line
from tests.support.wait import wait_for
from tests.support.workers import Crew, Worker

pytestmark = [pytest.mark.crash, pytest.mark.process, pytest.mark.slow]

KILLS = 260 if STORM else 60  # per storm
SEEDS = range(8) if STORM else range(4)
LULL = 15  # kills after which the ring is looked at
RING = 1 << 20
APPEND_SECONDS = 30.0  # an append that takes longer hangs
HOLDER_KILLS = 100 if STORM else 8


class RingFollowerSlot(Slot):
    """A follower; a new one goes on after the last event that the dead one wrote down."""

    @property
    def file(self) -> Path:
        return self.storm.directory / f"f{self.number}.followed"

    def begin(self) -> Worker:
        cut_torn_line(self.file)
        return self.storm.crew.start(
            self.storm.directory,
            "follow_ring",
            path=self.storm.path,
            out=self.file,
            mode="r" if self.number else "rw",
            start=expected_next(self.file),
            on_gap="raise" if self.incarnation % 3 == 2 else "skip",
        )


def expected_next(file: Path) -> int:
    """The seq that the next follower with that file begins with."""
    lines = file.read_text().splitlines() if file.exists() else []
    if not lines:
        return 1
    first, *words = lines[-1].split()
    return int(words[1]) if first == "gap" else int(first) + 1


class RingStorm(Storm):
    """A storm over a ring; now and then the wind drops, and the ring is looked at."""

    points = (
        *_core._FAIL_NAMES,
        *("publish.tail", "publish.wrap") * 3,
        *("repair.word", "repair.head", "repair.walked", "repair.zeroed"),
        *("ring.epoch", "control.emptied", "control.filled", "open.locked", "open.settled"),
        *("sync.begun", "sync.synced"),
    )
    follower_slot = RingFollowerSlot

    def __init__(self, crew: Crew, directory: Path, seed: int) -> None:
        self.small = seed % 2 == 1  # then what a death may cost is known
        self.index = 0 if seed % 4 == 2 else 1024  # leaves room for 500 KB in half of the ring
        super().__init__(crew, directory, seed)

    def make(self) -> None:
        self.writing = {"limit": 20_000 if self.small else 500_000, "timeout": APPEND_SECONDS}
        penstock.create(self.path, ring=RING, index=self.index).close()

    def lull(self) -> None:
        """Nobody writes: what is in the ring is what was promised, before anybody repairs it."""
        for slot in self.writers:
            slot.kill()
        if self.rng.random() < 0.3:  # the next one to come is alone
            for follower in self.followers:
                follower.kill()
        self.check()
        for each in (*self.writers, *self.followers):
            if each.worker.code is not None:
                each.next_life()

    def check(self) -> Prints:
        """Check the ring, and that no more was dropped than had to be."""
        prints = check_ring(self.path, self.acks)
        with penstock.open(self.path, mode="r") as log:
            ring = log.stats().ring
            assert ring is not None
            if self.small and log.first_seq > 1:
                # A lap ends before an append that does not fit, and that may have died.
                spared = ring.ring_bytes - 4 * 20_000 - ring.ring_bytes // 8
                assert ring.used_bytes > spared, f"{ring.used_bytes} bytes are left"
        return prints

    def followed(self) -> list[list[Sighting]]:
        """What the followers have seen."""
        return [read_sightings(follower.file) for follower in self.followers]


def check_fills(path: Path) -> None:
    """With nobody dying, a ring keeps all that fits."""
    with penstock.open(path) as log:
        ring = log.stats().ring
        assert ring is not None
        first = log.last_seq + 1
        for n in range(3 * ring.ring_bytes // 1000):
            log.append(b"%d" % n * 200)
        ring = log.stats().ring
        assert ring is not None
        assert ring.used_bytes > ring.ring_bytes - 3000
        assert log.first_seq > first
        values = [b"%d" % n * 200 for n in range(log.first_seq - first, n + 1)]
        assert [event.value for event in log] == values


def test_storms_are_large_enough() -> None:
    """The storms together kill at least a hundred times, and thousands of times if asked to."""
    assert KILLS * len(SEEDS) >= (2000 if STORM else 100)


@pytest.mark.timeout(1800 if STORM else 300)
@pytest.mark.parametrize("seed", SEEDS)
def test_storm(crew: Crew, tmp_path: Path, seed: int) -> None:
    """Whatever dies, what fits the ring is there once, and followers see no other event."""
    storm = RingStorm(crew, tmp_path, seed)
    looked = 0
    while storm.kills < KILLS:
        storm.strike()
        storm.bury_the_dead()
        if storm.kills - looked >= LULL:
            storm.lull()
            looked = storm.kills
    storm.end()
    prints = storm.check()
    followed = storm.followed()
    check_sightings(followed, storm.acks, prints)
    last = max(prints)
    assert all(sightings[-1].seq == last for sightings in followed)
    assert storm.kills >= KILLS
    with penstock.open(storm.path, mode="r") as log:
        ring = log.stats().ring
        assert ring is not None
        laps = ring.head // ring.ring_bytes
    print(f"{storm.kills} kills, {laps} laps, {last} events, seen {[len(f) for f in followed]}")
    check_goes_on(storm.path, storm.acks)
    check_fills(storm.path)


class Hold:
    """A reader that writers wait for."""

    def __init__(self, crew: Crew, path: Path, name: str, *, on_gap: str = "raise") -> None:
        self.file = path.with_name(f"{name}.followed")
        cut_torn_line(self.file)
        self.worker = crew.start(
            path.parent,
            "follow_ring",
            path=path,
            out=self.file,
            mode="rw",
            start=expected_next(self.file),
            on_gap=on_gap,
            hold=True,
        )
        self.worker.wait_report("holds")


def append_until_full(log: Log, mine: Acks, reader: Hold) -> None:
    """Fill the ring until the reader, which is stopped, has everybody wait."""
    reader.worker.send(signal.SIGSTOP)
    reader.worker.wait_stopped()
    with pytest.raises(Full):
        while True:
            mine.append(log, [20_000], timeout=0.3)


@pytest.mark.timeout(900 if STORM else 300)
def test_holding_readers(crew: Crew, tmp_path: Path) -> None:
    """Writers wait for readers that hold the ring, until these are killed; no other one misses any.

    The reader that dies is stopped first, so that everybody waits for it.
    """
    path = tmp_path / "ring"
    penstock.create(path, ring=256 << 10, when_full="block").close()
    survivor = Hold(crew, path, "survivor")
    acks = [tmp_path / "mine.acks"]
    mine = Acks(str(acks[0]), "mine")

    def writer(number: int) -> Worker:
        acks.append(tmp_path / f"w{number}.acks")
        acks[-1].touch()
        return crew.start(
            tmp_path,
            "write_random",
            path=path,
            acks=acks[-1],
            writer=f"w{number}",
            seed=number,
            limit=30_000,
            timeout=APPEND_SECONDS,
        )

    writers = [writer(number) for number in range(2)]
    with penstock.open(path) as log:
        for number in range(2, HOLDER_KILLS + 2):
            mortal = Hold(crew, path, "mortal", on_gap="skip")
            append_until_full(log, mine, mortal)
            if number % 3 == 0:  # one that waits for room dies as well
                writers.pop(0).kill()
                writers.append(writer(number))
            mortal.worker.kill()
            goals = [(file, file.stat().st_size + 50) for file in acks[-2:]]
            mine.append(log, [20_000], timeout=APPEND_SECONDS)
            wait_for(lambda: all(f.stat().st_size > n for f, n in goals), "writers to go on")  # noqa: B023
        for worker in writers:
            worker.kill()
        acks.append(tmp_path / "stop.acks")
        Acks(str(acks[-1]), "stop").append(log, [0], timeout=APPEND_SECONDS)
    survivor.worker.done()
    seen = read_sightings(survivor.file)
    others = read_sightings(mortal.file)
    assert [s.seq for s in seen] == list(range(1, seen[-1].seq + 1)), "it missed some"
    assert len(others) > HOLDER_KILLS
    check_sightings([seen, others], acks, check_ring(path, acks))
    check_goes_on(path, acks)
