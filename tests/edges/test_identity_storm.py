"""Logs and rings that are moved, deleted, replaced and renamed under writers and readers."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import AlreadyExists, Busy, Corrupt, Gone, NoSuchLog, NotFound, Usage
from tests.support import alone
from tests.support.fixtures import STORM

pytestmark = [pytest.mark.process, pytest.mark.slow]

SECONDS = 60.0 if STORM else 5.0
SEEDS = range(6) if STORM else range(1)
SIZE = "64KiB"
OTHER_SIZES = ["64KiB", "96KiB", "256KiB"]  # of a ring
WRITERS = 4
READERS = 2
QUERY = b"query-"  # how values begin that a streaming query writes, which knows no uuid


def path_in(place: Path, kind: str) -> Path:
    """Where the log or the ring is that all of it is about."""
    return place / ("a.ring" if kind == "ring" else "log")


def open_in(path: Path, kind: str, timeout: float | None = None) -> penstock.Log:
    """Open what is there, which may have any size, or make one."""
    options: dict[str, Any] = {"ring" if kind == "ring" else "segment_size": SIZE}
    try:
        return penstock.open(path, create=False, timeout=timeout)
    except NoSuchLog:
        try:
            return penstock.create(path, timeout=timeout, **options)
        except Usage:  # somebody else was quicker, and it has another size by now
            raise AlreadyExists(f"{path}: is there by now", filename=str(path)) from None


def value_of(uuid: str, tag: str, nbytes: int) -> bytes:
    """A value that says of which log it is, and who appended it."""
    return f"{uuid}|{tag}|".encode().ljust(nbytes, b".")


class Writer:
    """Opens what is at the path, appends, and notes each event that was acknowledged as durable."""

    def __init__(self, place: Path, kind: str, name: str, seed: int) -> None:
        self.kind = kind
        self.path = path_in(place, kind)
        self.stop = place / "stop"
        self.name = name
        self.random = random.Random(seed)
        self.count = 0
        self.acks = os.open(place / f"acks-{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.ends = place / f"gone-{name}"
        self.resized = place / f"resized-{name}"

    def run(self) -> None:
        """Until told to stop."""
        while not self.stop.exists():
            try:
                with open_in(self.path, self.kind, timeout=0.1) as log:
                    uuid = log.stats().uuid
                    for _ in range(self.random.randrange(1, 60)):
                        self.append(log, uuid)
            except Gone:
                self.ends.touch()
            except (NotFound, Busy, Corrupt, AlreadyExists):
                pass  # it is being deleted, or made, just now

    def append(self, log: penstock.Log, uuid: str) -> None:
        """Append in one of several ways."""
        way = self.random.randrange(20)
        if way == 0:
            self.note(uuid, *self.load(log, uuid))
        elif way == 1:
            self.append_in_child(log, uuid)
        elif way <= 4 and self.kind == "ring":
            try:
                log.resize(self.random.choice(OTHER_SIZES))
                self.resized.touch()
            except Busy:  # others have it open
                if log._closed:  # and did not let it go on within the timeout
                    raise
        else:
            tag, value = self.next(uuid, self.random.choice([50, 500, 9000]))
            self.note(uuid, range(seq := log.append(value, durable=True), seq + 1), [tag])

    def next(self, uuid: str, nbytes: int) -> tuple[str, bytes]:
        self.count += 1
        tag = f"{self.name}-{os.getpid()}-{self.count}"
        return tag, value_of(uuid, tag, nbytes)

    def load(self, log: penstock.Log, uuid: str) -> tuple[range, list[str]]:
        nbytes = 9000 if self.kind == "log" else 500  # all of them fit a ring
        made = [self.next(uuid, nbytes) for _ in range(20)]
        return log.load([value for _, value in made], durable=True), [tag for tag, _ in made]

    def append_in_child(self, log: penstock.Log, uuid: str) -> None:
        """Append by an inherited handle; a child that finds the log gone just ends."""
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            return
        try:
            tag, value = self.next(uuid, 500)
            self.note(uuid, range(seq := log.append(value, durable=True), seq + 1), [tag])
        finally:
            os._exit(0)

    def note(self, uuid: str, seqs: range, tags: list[str]) -> None:
        lines = [f"{uuid} {seq} {tag}\n" for seq, tag in zip(seqs, tags, strict=True)]
        os.write(self.acks, "".join(lines).encode())


def read(place: Path, kind: str, seed: int) -> None:
    """Read what is at the path: a handle returns only events of the log that it opened."""
    chance = random.Random(seed)
    while not (place / "stop").exists():
        try:
            with penstock.open(path_in(place, kind), mode="r", timeout=0.1) as log:
                own = log.stats().uuid.encode()
                for _ in range(chance.randrange(1, 5)):
                    follows = chance.random() < 0.5
                    events = log.follow("start", timeout=0.02, on_gap="skip") if follows else log
                    for event in events:
                        assert event.value is not None
                        right = event.value.startswith((own, QUERY))
                        assert right, f"{event!r} in {own!r}"
        except (Gone, NotFound, Busy, Corrupt, penstock.Gap):
            pass


class Director:
    """Moves, deletes, replaces and renames the log, and kills a writer now and then."""

    def __init__(self, place: Path, kind: str, seed: int) -> None:
        self.place = place
        self.kind = kind
        self.path = path_in(place, kind)
        self.random = random.Random(seed)
        self.made = 0
        self.done = dict.fromkeys(("move", "delete", "trash", "replace", "rename"), 0)

    def act(self) -> None:
        """Do one of these to what is at the path."""
        action = self.random.choice(list(self.done))
        try:
            getattr(self, action)()
            self.done[action] += 1
        except FileNotFoundError:
            pass  # nobody has made a log yet

    def fresh(self, what: str) -> Path:
        self.made += 1
        return self.place / f"{what}-{self.made}{self.path.suffix}"

    def remove(self, path: Path) -> None:
        if self.kind == "ring":
            path.unlink()
        else:
            shutil.rmtree(path, ignore_errors=True)

    def move(self) -> None:
        self.path.rename(self.fresh("kept"))

    def delete(self) -> None:
        os.stat(self.path)
        self.remove(self.path)
        for _ in range(19 if self.kind == "log" else 0):
            self.remove(self.path)

    def trash(self) -> None:
        trash = self.fresh("trash")
        self.path.rename(trash)
        while trash.exists():
            self.remove(trash)

    def replace(self) -> None:
        other, kept = self.fresh("new"), self.fresh("kept")
        with open_in(other, self.kind) as log:
            log.append(value_of(log.stats().uuid, "replaced", 50))
        self.path.rename(kept)
        try:
            self.put(other)
        except OSError:  # a writer was quicker, and has made one
            other.rename(self.fresh("kept"))

    def rename(self) -> None:
        away = self.fresh("kept")
        self.path.rename(away)
        with suppress(OSError):  # likewise
            self.put(away)

    def put(self, there: Path) -> None:
        """Have it at the path, if nothing is there."""
        if self.kind == "ring":
            os.link(there, self.path)  # a rename would delete the ring that it replaces
            there.unlink()
        else:
            there.rename(self.path)


def enough(place: Path, director: Director) -> bool:
    """Whether everything has happened that the storm is about."""
    acked = sum(file.stat().st_size for file in place.glob("acks-*"))
    resized = director.kind != "ring" or any(place.glob("resized-*"))
    done = min(director.done.values()) >= 3 and acked > 5000 and any(place.glob("gone-*"))
    return done and resized


def acknowledged(place: Path) -> dict[str, dict[int, str]]:
    """What the writers have noted: of each log, who was told which seq."""
    acked: dict[str, dict[int, str]] = defaultdict(dict)
    for file in place.glob("acks-*"):
        for line in file.read_text().splitlines():
            uuid, seq, tag = line.split()
            assert int(seq) not in acked[uuid], f"seq {seq} of {uuid} was given out twice"
            acked[uuid][int(seq)] = tag
    return acked


def check(place: Path, kind: str, bound: Mapping[str, str] | None = None) -> Counter[str]:
    """Every log that is left has what was acknowledged in it, at its seq, and nothing else.

    A ring has the newest of it, without holes. ``bound`` says to which log a query belongs. What is
    counted of a query is by its name and by the first part of the tag.
    """
    bound = bound or {}
    acked = acknowledged(place)
    found: Counter[str] = Counter(logs=0, events=0, acknowledged=0)
    seen: dict[str, Path] = {}
    for path in [*place.glob("kept-*"), path_in(place, kind)]:
        if not (path.exists() if kind == "ring" else list(path.glob("*.seg"))):
            continue
        report = penstock.verify(path)
        assert report.ok, str(report)
        assert not [p for p in report.problems if "belongs to the log" in p.message], str(report)
        with penstock.open(path) as log:
            uuid = log.stats().uuid
            assert uuid not in seen, f"{path} and {seen[uuid]} are the same log"
            seen[uuid] = path
            tags = {}
            for event in log:
                assert event.value is not None
                own, tag, _ = event.value.decode().split("|", 2)
                assert bound.get(own, own) == uuid, f"{path}: seq {event.seq} is of another log"
                tags[event.seq] = tag
                if own in bound:
                    found[f"{own} {tag.split(':')[0]}"] += 1
            first = min(tags, default=log.last_seq + 1) if kind == "ring" else 1
            assert list(tags) == list(range(first, log.last_seq + 1)), f"{path}: there are holes"
            for at, tag in acked[uuid].items():
                assert at <= log.last_seq, f"{path}: seq {at} was acknowledged and is lost"
                assert at < first or tags[at] == tag, f"{path}: seq {at} is another event"
            found.update({uuid: 1}, logs=1, events=len(tags), acknowledged=len(acked[uuid]))
    return found


def storm(
    place: Path, kind: str, seed: int, pause: tuple[float, float], done: Callable[[Director], bool]
) -> None:
    """Have writers and readers at work while logs come and go, until ``done``."""
    director = Director(place, kind, seed)
    errors = [place / f"errors-{i}" for i in range(WRITERS + READERS)]

    def start(i: int, generation: int) -> int:
        if i < WRITERS:
            name, own_seed = f"{i}-{generation}", seed * 1000 + generation * 10 + i
            return alone.start(Writer(place, kind, name, own_seed).run, errors[i])
        return alone.start(lambda: read(place, kind, seed * 1000 + i), errors[i])

    children = [start(i, 0) for i in range(WRITERS + READERS)]
    try:
        generation = 0
        while not done(director):
            time.sleep(director.random.uniform(*pause))
            director.act()
            if director.random.random() < 0.05:
                generation += 1
                victim = director.random.randrange(WRITERS)
                os.kill(children[victim], signal.SIGKILL)
                os.waitpid(children[victim], 0)
                children[victim] = start(victim, generation)
    finally:
        (place / "stop").touch()
        failures = []
        for child, told in zip(children, errors, strict=True):
            try:
                alone.finish(child, told)
            except AssertionError as error:
                failures.append(f"{told.name}: {error}")
    assert not failures, "\n".join(failures)  # a text: pytest cuts the repr of a list short


@pytest.mark.timeout(600 if STORM else 120)
@pytest.mark.parametrize("kind", ["log", "ring"])
@pytest.mark.parametrize("seed", SEEDS)
def test_logs_that_come_and_go(tmp_path: Path, seed: int, kind: str) -> None:
    """Whatever happens to the path, a durable event is in the log that acknowledged it, once."""
    end = time.monotonic() + SECONDS

    def done(director: Director) -> bool:
        return time.monotonic() >= end and enough(tmp_path, director)

    storm(tmp_path, kind, seed, (0.005, 0.08), done)
    found = check(tmp_path, kind)
    assert found["logs"] > 2 and found["acknowledged"], found
