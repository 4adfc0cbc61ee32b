"""A device that fails: any call into the system, at any moment, costs no more than an exception.

A process does a bit of everything while the n-th call of one function of libc on the log's files
fails, for every n that there is; other processes have the log open meanwhile.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.support import faulty
from tests.support.acks import Acks
from tests.support.attempts import Attempts
from tests.support.fixtures import STORM
from tests.support.jobs import report, wait_file
from tests.support.scene import Scene
from tests.support.workers import Crew, Worker

pytestmark = pytest.mark.process

SEGMENT = 256 << 10
CODES = [errno.EIO, errno.ENOSPC]
OPERATIONS = [[10], [0, 300, 5000], [60_000], [1], [100_000], [20_000, 50_000], [7], [90_000]]

# How long the failure lasts: one call, until the log is closed, or beyond that.
LASTS = ["once", "until-close", "beyond-close"]


def work(log: penstock.Log, mine: Acks, attempt: Attempts) -> None:
    """A bit of everything that a process does with a log."""
    for sizes in OPERATIONS:
        attempt("append", partial(mine.append, log, sizes))
    attempt("roll", log.steward.roll)
    attempt("append", partial(mine.append, log, [30, 40]))
    attempt("read", lambda: sum(1 for _ in log))
    attempt("read back", lambda: sum(1 for _ in reversed(log)))
    attempt("get", lambda: log[1])
    attempt("stats", log.stats)


def work_amid_faults(
    path: str, acks: str, function: str, nth: int, code: int, lasts: str, go: str
) -> None:
    """Open, work, close and open again while calls fail; then, with others at it, without."""
    mine = Acks(acks, "faulty")
    attempt = Attempts()
    faulty.arm(path, [function], nth, code, lasting=lasts != "once")

    def opened() -> penstock.Log | None:
        return attempt("open", lambda: penstock.open(path, segment_size=SEGMENT, timeout=0.2))

    log = opened() or opened()
    if log is not None:
        work(log, mine, attempt)
        if lasts == "until-close":
            faulty.disarm()
            work_well(log, mine)
        attempt("close", log.close)
    log = opened()
    faulty.disarm()
    report(refused=attempt.refusals, hits=faulty.count_hits(), calls=faulty.count_calls())
    if go:
        wait_file(go)
    if log is None:
        log = penstock.open(path, segment_size=SEGMENT)
    work_well(log, mine)
    log.close()
    report(closed=True)


def work_well(log: penstock.Log, mine: Acks) -> None:
    """Work without a fault: nothing is refused."""
    attempt = Attempts()
    work(log, mine, attempt)
    assert not attempt.refusals, attempt.refusals


def nothing(_: Scene) -> None:
    """There is no log yet."""


def closed(scene: Scene) -> None:
    """A log that was closed in order."""
    scene.seed(SEGMENT)


def torn(scene: Scene) -> None:
    """A log whose control is lost and whose last append a dead process left unfinished."""
    scene.seed(SEGMENT)
    scene.start("write", "torn", operations=[[9, 9, 9]], fail=["publish.batch_body", 2, 9]).died()
    (scene.path / "control").unlink()


STATES = {"nothing": nothing, "closed": closed, "torn": torn, "beside": closed}


def one_run(
    crew: Crew, faulty_crew: Crew, directory: Path, state: str, **fault: Any
) -> tuple[int, list[Any]]:
    """One process, one fault; returns how many calls it hit and what was refused."""
    directory.mkdir()
    scene = Scene(crew, directory)
    STATES[state](scene)
    go = scene.file("go") if state == "beside" else None
    witness = None
    if go is not None:
        witness = scene.start("write", "witness", warm=[[50]], operations=OPERATIONS, go=go)
        witness.wait_report("ready")
    args = {"path": str(scene.path), "acks": str(scene.acks_of("faulty")), "go": str(go or "")}
    worker = faulty_crew.start(
        directory,
        "run_in_worker",
        module=__name__,
        function="work_amid_faults",
        args=args | fault,
    )
    refused = worker.wait_report("refused")
    if witness is not None and go is not None:
        go.touch()
        witness.done()
    worker.done()
    scene.check_goes_on()
    return worker.wait_report("hits"), refused


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("function", faulty.FUNCTIONS)
def test_play(crew, faulty_crew, tmp_path, state, function):
    out = []
    for code in CODES:
        for lasts in LASTS:
            for n in itertools.count(1):
                try:
                    hits, refused = one_run(
                        crew,
                        faulty_crew,
                        tmp_path / f"{code}-{lasts}-{n}",
                        state,
                        function=function,
                        nth=n,
                        code=code,
                        lasts=lasts,
                    )
                except AssertionError as e:
                    out.append((code, lasts, n, str(e)[-1500:]))
                    continue
                bad = [r for r in refused if r[1] not in ("Io", "DiskFull") or r[2] != code]
                if bad:
                    out.append((code, lasts, n, bad))
                if not hits:
                    break
    print("CALLS", function, state, n - 1)
    for o in out:
        print("OUT", function, state, *o)
    assert not out
