"""A device that fails: any call into the system, at any moment, costs no more than an exception.

What the processes do is in `faults`.

A process does a bit of everything while the n-th call of one function of libc on the log's files
fails, for every n that there is; other processes have the log open meanwhile. It may be told only
by typed errors, must find everything that was acknowledged, and go on as soon as the device does.
A failed sync is final: nobody appends or calls anything durable until all have closed the log.
"""

from __future__ import annotations

import errno
import itertools
import shutil
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

import penstock
from tests.process.faults import RING, SEGMENT, SYNCS
from tests.support import faulty
from tests.support.acks import Acks
from tests.support.attempts import Attempts, Refusal
from tests.support.fixtures import STORM
from tests.support.jobs import report, wait_file
from tests.support.rings import RingScene
from tests.support.scene import Scene
from tests.support.workers import Crew

pytestmark = pytest.mark.process

FAULTS = "tests.process.faults"

LOG_FUNCTIONS = [f for f in faulty.FUNCTIONS if f not in ("stat", "fstat", "ftruncate")]
RING_FUNCTIONS = [
    *("fsync", "fdatasync", "fallocate", "pread", "pwrite", "pwritev", "mmap", "open"),
    *("rename", "unlink", "flock", "fcntl"),
]
CUT = 0  # instead of an errno: a write that takes only half of what it was given

# How long the failure lasts: one call, until the log is closed, or beyond that.
LASTS = ["once", "until-close", "beyond-close"]


class Fault(NamedTuple):
    """What fails, and for how long."""

    function: str
    code: int
    lasts: str


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


def closed_ring(scene: Scene) -> None:
    """A ring that was closed in order."""
    scene.seed(RING)


def torn_ring(scene: Scene) -> None:
    """A ring whose last append a dead process left unfinished."""
    scene.seed(RING)
    scene.start("write", "torn", operations=[[9, 9, 9]], fail=["publish.batch_body", 2, 9]).died()


LOG_STATES = {"nothing": nothing, "closed": closed, "torn": torn, "beside": closed}
RING_STATES = {"closed": closed_ring, "torn": torn_ring, "beside": closed_ring}


def one_run(
    scene: Scene, faulty_crew: Crew, fault: Fault, nth: int, *, beside: bool, ring: bool
) -> bool:
    """One process, one fault; whether there was an n-th call to fail."""
    go = scene.file("go") if beside else ""
    witness = None
    if go:
        args = {"path": str(scene.path), "acks": str(scene.acks_of("witness")), "go": str(go)}
        witness = scene.run(
            "run_in_worker", module=FAULTS, function="watch", args=args | {"ring": ring}
        )
        witness.wait_report("ready")
    args = {"path": str(scene.path), "acks": str(scene.acks_of("faulty")), "go": str(go)}
    worker = faulty_crew.start(
        scene.directory,
        "run_in_worker",
        module=FAULTS,
        function="ring_amid_faults" if ring else "log_amid_faults",
        args=args | {"fault": list(fault), "nth": nth},
    )
    refusals: list[Refusal] = worker.wait_report("refused")
    for what, kind, code in refusals:
        expected = code == fault.code and kind in ("Io", "DiskFull")
        # A resize that finds no way back closes the handle.
        expected = expected or (ring and what != "open" and kind == "Closed")
        assert expected or kind == "Poisoned", f"{what}: {kind} with errno {code}"
    poisoned = worker.wait_report("poisoned")
    if witness is not None:
        Path(go).touch()
        witness.done()
        told = witness.wait_report("refused")
        if poisoned:
            assert {what for what, _, _ in told} >= {"append", "durable"}, told
            assert {kind for _, kind, _ in told} == {"Poisoned"}, told
        else:
            assert not told
    worker.done()
    scene.check_goes_on()
    return bool(worker.wait_report("hits"))


def faults_of(function: str) -> Iterator[Fault]:
    """Every way in which a function can fail."""
    if function == "fcntl":  # the locks of a local file fail at most for a moment
        yield Fault(function, errno.ENOLCK, "once")
        return
    for code in (errno.EIO, errno.ENOSPC):
        for lasts in LASTS:
            yield Fault(function, code, lasts)
    if function in ("pwrite", "pwritev"):
        yield Fault(function, CUT, "once")
        yield Fault(function, CUT, "beyond-close")


def cases(function: str, state: str, *, ring: bool) -> Iterator[tuple[Fault, Iterator[int]]]:
    """What to try: everything in a storm, else a part that is different for each state."""
    faults = list(faults_of(function))
    turn = list(RING_STATES if ring else LOG_STATES).index(state)
    if STORM:
        for fault in faults:
            yield fault, itertools.count(1)
    elif ring:
        yield faults[turn % len(faults)], iter([1, 2, 3, 4, 6, 9, 13])
    elif function in SYNCS:
        yield faults[turn % len(LASTS)], itertools.chain(range(1, 5), itertools.count(5, 6))
    else:
        begin = LOG_FUNCTIONS.index(function) + turn
        for n in (1 + turn, 6 + 5 * turn):
            yield faults[(begin + n) % len(faults)], iter([n])


def run_all(
    cases: Iterable[tuple[Fault, Iterator[int]]],
    directory: Path,
    run: Callable[[Path, Fault, int], bool],
) -> None:
    """Try each fault at each place, in a directory of its own, until there is no such place."""
    for number, (fault, places) in enumerate(cases):
        for nth in places:
            here = directory / f"{number}-{nth}"
            here.mkdir()
            try:
                there_was = run(here, fault, nth)
            except AssertionError as error:
                raise AssertionError(f"call {nth} of {fault}: {error}") from error
            shutil.rmtree(here)
            if not there_was:
                break
        if not (STORM or there_was):
            break


@pytest.mark.parametrize(
    ("kind", "function", "state"),
    [
        *itertools.product(["log"], LOG_FUNCTIONS, LOG_STATES),
        *itertools.product(["ring"], RING_FUNCTIONS, RING_STATES),
    ],
)
@pytest.mark.timeout(3000 if STORM else 300)
def test_call_that_fails(
    crew: Crew, faulty_crew: Crew, tmp_path: Path, kind: str, function: str, state: str
) -> None:
    """Whichever call fails, the errors are typed, nothing is lost, and all processes go on."""
    ring = kind == "ring"

    def run(directory: Path, fault: Fault, nth: int) -> bool:
        scene = RingScene(crew, directory) if ring else Scene(crew, directory)
        if ring:  # alone in its directory, all of which fails
            scene.path = directory / "device" / "ring"
            scene.path.parent.mkdir()
        (RING_STATES if ring else LOG_STATES)[state](scene)
        return one_run(scene, faulty_crew, fault, nth, beside=state == "beside", ring=ring)

    run_all(cases(function, state, ring=ring), tmp_path, run)


def append_until_poisoned(path: str, acks: str, nth: int, go: str, end: str) -> None:
    """Append durably until somebody's sync fails; here it does at the nth, if that is not 0."""
    log = penstock.open(path)
    name = Path(acks).stem
    mine = Acks(acks, name)
    report(ready=True)
    wait_file(go)
    faulty.arm(path, ["fdatasync"], nth, errno.EIO)
    last, attempt = 0, Attempts()
    while not attempt.refusals:
        last = attempt("append", partial(mine.append, log, [100], durable=True)) or last
    for _ in range(3):
        attempt("append", partial(mine.append, log, [100]))
        attempt("durable", partial(mine.append, log, [100], durable=True))
        attempt("sync", lambda: log.sync(wait=False))
    assert len(attempt.refusals) == 10
    report(refusals=attempt.refusals, last=last)
    wait_file(end)
    handed_out = [e.seq for e in log.read(durable=True)]
    report(durable_seq=log.durable_seq, read=len(list(log)), handed_out=len(handed_out))
    log.close()


@pytest.mark.parametrize("nth", range(1, 40) if STORM else [1, 2, 5])
def test_failed_sync_among_many(crew: Crew, faulty_crew: Crew, tmp_path: Path, nth: int) -> None:
    """One process's failed sync stops all; none was told of a durable event that is not."""
    scene = Scene(crew, tmp_path)
    scene.seed()
    go, end = scene.file("go"), scene.file("end")
    workers = [
        faulty_crew.start(
            tmp_path,
            "run_in_worker",
            module=__name__,
            function="append_until_poisoned",
            args={
                "path": str(scene.path),
                "acks": str(scene.acks_of(name)),
                "nth": nth if name == "unlucky" else 0,
                "go": str(go),
                "end": str(end),
            },
        )
        for name in ("unlucky", "one", "two")
    ]
    for worker in workers:
        worker.wait_report("ready")
    go.touch()
    for worker in workers:
        (_, first, _), *later = worker.wait_report("refusals")
        assert first == ("Io" if worker is workers[0] else "Poisoned")
        assert {kind for _, kind, _ in later} == {"Poisoned"}
    end.touch()
    for worker in workers:
        worker.done()
    durable = {worker.wait_report("durable_seq") for worker in workers}
    assert len(durable) == 1
    assert all(worker.wait_report("last") <= max(durable) for worker in workers)
    assert {worker.wait_report("handed_out") for worker in workers} == durable
    assert len({worker.wait_report("read") for worker in workers}) == 1
    scene.check_goes_on()
