"""Storms: workers that die, stop, fail and lie, and every event still has one outcome."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

import penstock
from penstock import Entry
from tests.consumers.processes import Child, start
from tests.groups import crew, judge
from tests.support.fixtures import STORM

WORKERS = 6
SECONDS = 60.0 if STORM else 2.5
EVENTS = 60_000 if STORM else 1_500


@pytest.mark.process
@pytest.mark.parametrize("order", [None, "key"])
def test_storm(path: Path, kind: str, tmp_path: Path, order: Literal["key"] | None) -> None:
    """Each event ends acked or in the dead letters, once, whatever happens to six workers."""
    rng = random.Random(17)
    notes = tmp_path / "notes"
    notes.mkdir()
    made: dict[str, Any] = {"ring": "64MiB"} if kind == "ring" else {"segment_size": "1MiB"}
    keys: dict[int, bytes] = {}
    with penstock.open(path, **made) as log:
        log.group("storm", order=order, backoff=(0, 0.001), deliveries=3).close()
        crew_: dict[int, Child] = {}
        born = 0

        def fill() -> None:
            nonlocal born
            while len(crew_) < WORKERS:
                born += 1
                crew_[born] = start(worker_of(path, notes, born))

        began = time.monotonic()
        appended = 0
        try:
            while time.monotonic() < began + SECONDS or appended < EVENTS:
                fill()
                some = min(rng.randrange(60), EVENTS - appended)
                keyed = [b"%d" % rng.randrange(20) for _ in range(some)]
                if some:
                    log.extend([Entry(b"x", key=key) for key in keyed])
                    keys |= dict(enumerate(keyed, appended + 1))
                    appended += some
                time.sleep(0.02)
                if rng.random() < 0.3:
                    harm(crew_, rng)
            (notes / "stop").touch()
            for child in crew_.values():
                os.kill(child.pid, signal.SIGCONT)
                assert child.wait() == 0
            crew_.clear()
        finally:
            for child in crew_.values():
                child.kill()
                child.wait()
        judge.drain(log)
        dead = judge.outcomes(log, "storm", range(1, appended + 1))
        judge.check_notes(notes, dead)
        if order == "key":
            judge.check_order(notes, keys)
        for file in notes.glob("notes-*"):
            assert "Traceback" not in file.read_text()
        state = Path(log.group("storm").path) / "state"
    kinds = judge.replay(state)
    assert kinds["Ended"] > 0


def worker_of(path: Path, notes: Path, number: int) -> Callable[[], None]:
    """The work of one process."""
    return lambda: crew.work(path, notes / f"notes-{number}", number)


def harm(crew_: dict[int, Child], rng: random.Random) -> None:
    """Kill a worker, or stop it for a moment."""
    number = rng.choice(list(crew_))
    child = crew_[number]
    if rng.random() < 0.6:
        child.kill()
        child.wait()
        del crew_[number]
    else:
        os.kill(child.pid, signal.SIGSTOP)
        time.sleep(rng.random() * 0.05)
        os.kill(child.pid, signal.SIGCONT)
