"""A device that fails under a ring: as `test_io_errors`, with rings, and with resizes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.process.test_io_errors import Fault, append_durably, faults_of, one_run, run_all, sync
from tests.support import faulty
from tests.support.acks import Acks
from tests.support.attempts import Attempts
from tests.support.fixtures import STORM
from tests.support.jobs import report, wait_file
from tests.support.rings import RingScene
from tests.support.workers import Crew

pytestmark = pytest.mark.process

RING = 192 << 10
OPERATIONS = [[10], [0, 300, 5000], [34_000], [1], [60_000], [18_000, 18_000], [50_000], [7]]
FUNCTIONS = [
    *("fsync", "fdatasync", "fallocate", "pread", "pwrite", "pwritev", "mmap", "open"),
    *("rename", "unlink", "flock", "fcntl"),
]


def work(log: penstock.Log, mine: Acks, attempt: Attempts) -> None:
    """A bit of everything that a process does with a ring, over the end of a lap."""
    for sizes in OPERATIONS:
        attempt("append", partial(mine.append, log, sizes))
    attempt("durable", partial(append_durably, log, mine, [50], False))
    attempt("sync", partial(sync, log))
    attempt("configure", partial(log.configure, file_mode=0o600))
    attempt("durable", partial(append_durably, log, mine, [50, 9000], False))
    # Another process may go over what is being read.
    attempt("read", lambda: sum(1 for _ in log.read(on_gap="skip")))
    attempt("read back", lambda: sum(1 for _ in log.read(reverse=True, on_gap="skip")))
    attempt("get", lambda: newest(log))
    attempt("stats", log.stats)
    attempt("verify", log.verify)


def newest(log: penstock.Log) -> penstock.Event:
    """The newest event, unless others go over it before it is read: then a newer one."""
    while True:
        seq = log.last_seq
        try:
            return log[seq]
        except penstock.NotFound:
            if log.first_seq <= seq:
                raise


def work_well(log: penstock.Log, mine: Acks, *, poisoned: bool) -> None:
    """Work without a fault: nothing is refused, or, behind a failed sync, all that writes."""
    attempt = Attempts()
    durable = log.durable_seq
    work(log, mine, attempt)
    if poisoned:
        assert {kind for _, kind, _ in attempt.refusals} == {"Poisoned"}, attempt.refusals
        refused = [what for what, _, _ in attempt.refusals]
        assert refused.count("append") == len(OPERATIONS), refused
        assert refused.count("durable") == 2, refused
        assert log.durable_seq == durable
    else:
        assert not attempt.refusals, attempt.refusals


def work_amid_faults(path: str, acks: str, go: str, fault: list[Any], nth: int) -> None:
    """Open, work, resize, close and open again while calls fail; then without."""
    function, code, lasts = fault
    mine = Acks(acks, "faulty")
    attempt = Attempts()
    faulty.arm(str(Path(path).parent), [function], nth, code, lasting=lasts != "once")

    def opened() -> penstock.Log | None:
        return attempt("open", lambda: penstock.open(path, timeout=10, create=False))

    log = opened() or opened()
    poisoned = False
    if log is not None:
        work(log, mine, attempt)
        poisoned = log.stats().poisoned
        if not go:  # else others have it open
            attempt("resize", partial(log.resize, 2 * RING))
            attempt("resize", partial(log.resize, RING))
        if not log._closed:  # a resize that finds no way back closes the handle
            poisoned = log.stats().poisoned
            if poisoned or lasts == "until-close":
                faulty.disarm()
                work_well(log, mine, poisoned=poisoned)
        attempt("close", log.close)
    log = opened()
    faulty.disarm()
    report(refused=attempt.refusals, hits=faulty.count_hits(), poisoned=poisoned)
    if go:
        wait_file(go)
    if log is None:
        log = penstock.open(path, create=False)
    work_well(log, mine, poisoned=log.stats().poisoned)
    log.close()


def watch(path: str, acks: str, go: str) -> None:
    """Another process: it has the ring open all along, and works when the faults are over."""
    log = penstock.open(path)
    mine = Acks(acks, "witness")
    mine.append(log, [50])
    report(ready=True)
    wait_file(go)
    attempt = Attempts()
    work(log, mine, attempt)
    log.close()
    report(refused=attempt.refusals)


def closed(scene: RingScene) -> None:
    """A ring that was closed in order."""
    scene.seed(RING)


def torn(scene: RingScene) -> None:
    """A ring whose last append a dead process left unfinished."""
    scene.seed(RING)
    scene.start("write", "torn", operations=[[9, 9, 9]], fail=["publish.batch_body", 2, 9]).died()


STATES = {"closed": closed, "torn": torn, "beside": closed}


def cases(function: str, state: str) -> Iterator[tuple[Fault, Iterator[int]]]:
    """What to try: everything in a storm, else a part that is different for each state."""
    faults = list(faults_of(function))
    turn = list(STATES).index(state)
    if STORM:
        for fault in faults:
            yield fault, itertools.count(1)
    else:
        yield faults[turn % len(faults)], iter([1, 2, 3, 4, 6, 9, 13])


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.timeout(3000 if STORM else 300)
def test_call_that_fails(
    crew: Crew, faulty_crew: Crew, tmp_path: Path, function: str, state: str
) -> None:
    """Whichever call fails, the errors are typed, nothing is lost, and all processes go on."""

    def run(directory: Path, fault: Fault, nth: int) -> bool:
        scene = RingScene(crew, directory)
        scene.path = directory / "device" / "ring"
        scene.path.parent.mkdir()
        STATES[state](scene)
        beside = state == "beside"
        return one_run(scene, faulty_crew, __name__, fault, nth, beside=beside, closes=True)

    run_all(cases(function, state), tmp_path, run)
