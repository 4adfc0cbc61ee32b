"""A wall clock that is set back and forth: order, searches and waits do not suffer by it."""

from __future__ import annotations

import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Busy, Event, Log
from penstock.times import Ns
from tests.support import faulty
from tests.support.fixtures import STORM
from tests.support.jobs import report, wait_file
from tests.support.scene import Scene
from tests.support.workers import Crew, Worker

pytestmark = pytest.mark.process

HOUR = 3600 * 10**9
SEGMENT = 64 << 10
JUMPS = {
    "back": [0, -HOUR, -24 * HOUR],
    "forward": [0, HOUR, 24 * HOUR],
    "to and fro": [0, 5 * HOUR, -5 * HOUR, 1, 365 * 24 * HOUR, -1, 0],
    "to the beginning": [0, -time.time_ns() + 9 * HOUR, 0],
}


def start(crew: Crew, directory: Path, function: str, **args: Any) -> Worker:
    """Run a function of this module in a process whose clock can be shifted."""
    plain = {k: str(v) if isinstance(v, Path) else v for k, v in args.items()}
    return crew.start(directory, "run_in_worker", module=__name__, function=function, args=plain)


def append_and_jump(path: str, jumps: list[int], seed: int, go: str = "") -> None:
    """Append, with the clock set before every few events; some events have their own times."""
    rng = random.Random(seed)
    log = penstock.open(path, segment_size=SEGMENT)
    report(ready=True)
    if go:
        wait_file(go)
    for jump in jumps:
        faulty.shift_clock(jump)
        for _ in range(25):
            kind = rng.randrange(8)
            if kind == 0:
                log.extend([b"batch"] * rng.randrange(2, 6))
            elif kind == 1:
                log.append(b"own time", time=Ns(time.time_ns() - rng.randrange(3 * HOUR)))
            elif kind == 2:
                log.append(b"long" * 10_000)
            else:
                log.append(b"x" * rng.randrange(2000))
        log.steward.roll()
        if rng.random() < 0.5:
            log.close()
            log = penstock.open(path)
    log.close()


def check_times(log: Log) -> list[Event]:
    """Append times never fall, and every search by time agrees with a plain list of the events."""
    events = list(log)
    stamps = [e.append_ns for e in events]
    assert stamps == sorted(stamps)
    edges = sorted({e.time_ns for e in events})
    rng = random.Random(len(events))
    bounds = {0, edges[0] - 1, edges[0], edges[-1], edges[-1] + 1}
    bounds |= {at + d for at in rng.sample(edges, min(12, len(edges))) for d in (-1, 0, 1)}
    for since in sorted(bounds):
        later = [e.seq for e in events if e.time_ns >= since]
        assert [e.seq for e in log.read(since=Ns(since))] == later
        assert [e.seq for e in log.read(since=Ns(since), reverse=True)] == later[::-1]
        until = rng.choice(edges)
        between = [e.seq for e in events if since <= e.time_ns < until]
        assert [e.seq for e in log.read(since=Ns(since), until=Ns(until))] == between
        earlier = [e.seq for e in events if e.time_ns < since]
        assert [e.seq for e in log.read(until=Ns(since))] == earlier
        assert [e.seq for e in log.read(until=Ns(since), reverse=True)] == earlier[::-1]
    return events


@pytest.mark.parametrize("jumps", JUMPS)
@pytest.mark.parametrize("seed", range(20 if STORM else 2))
def test_one_writer(faulty_crew: Crew, path: Path, jumps: str, seed: int) -> None:
    """A writer whose clock jumps stamps events in order, over rolls and over opening again."""
    start(
        faulty_crew, path.parent, "append_and_jump", path=path, jumps=JUMPS[jumps], seed=seed
    ).done()
    with penstock.open(path, mode="r") as log:
        check_times(log)
    with penstock.open(path) as log:
        events = check_times(log)
        log.append(b"now")
        assert log[log.last_seq].append_ns >= events[-1].append_ns
        log.steward.roll()
        check_times(log)


def test_writers_that_disagree(faulty_crew: Crew, path: Path) -> None:
    """Writers with clocks hours apart share one log whose append times never fall."""
    go = path.parent / "go"
    penstock.open(path, segment_size=SEGMENT).close()
    workers = [
        start(
            faulty_crew,
            path.parent,
            "append_and_jump",
            path=path,
            jumps=[off, off, -off],
            seed=n,
            go=go,
        )
        for n, off in enumerate((0, -2 * HOUR, 2 * HOUR))
    ]
    with penstock.open(path, mode="r") as log:
        for worker in workers:
            worker.wait_report("ready")
        follower = log.follow("start", timeout=0)
        go.touch()
        for worker in workers:
            worker.done()
        assert [e.append_ns for e in follower] == [e.append_ns for e in log]
        check_times(log)


def test_times_that_stand_still(faulty_crew: Crew, path: Path) -> None:
    """While the clock is behind the newest event, events get that one's time, and no later one."""
    start(faulty_crew, path.parent, "append_once", path=path, jump=2 * HOUR).done()
    now = time.time_ns()
    with penstock.open(path) as log:
        assert log[1].append_ns > now + HOUR
        log.append(b"behind")
        log.extend([b"behind"] * 3)
        assert {e.append_ns for e in log} == {log[1].append_ns}
        assert {e.time_ns for e in log} == {log[1].append_ns}
        assert [e.seq for e in log.read(since=log[1].time_ns)] == [1, 2, 3, 4, 5]
        assert not list(log.read(until=now))
        log.append(b"own time", time=now)
        assert [e.seq for e in log.read(until=now + 1)] == [6]
    start(faulty_crew, path.parent, "append_once", path=path, jump=3 * HOUR).done()
    with penstock.open(path) as log:
        assert log[7].append_ns > log[6].append_ns == log[1].append_ns


def append_once(path: str, jump: int) -> None:
    """Append one event with the clock off."""
    faulty.shift_clock(jump)
    with penstock.open(path) as log:
        log.append(b"x")


@pytest.mark.parametrize("ending", ["closed", "killed", "without control"])
def test_opening_a_log_of_the_future(faulty_crew: Crew, path: Path, ending: str) -> None:
    """A log whose newest event lies in the future opens, is repaired, rolls and is searched."""
    fail = ["publish.batch_body", 2, int(signal.SIGKILL)] if ending == "killed" else None
    worker = start(faulty_crew, path.parent, "append_in_future", path=path, fail=fail)
    worker.died() if fail else worker.done()
    if ending == "without control":
        (path / "control").unlink()
    with penstock.open(path, mode="r") as log:
        assert len(check_times(log)) == 40
    with penstock.open(path) as log:
        future = log[40].append_ns
        assert future > time.time_ns() + HOUR
        for _ in range(30):
            log.append(b"x" * 5000)
        log.steward.roll()
        log.append(b"y")
        assert {e.append_ns for e in log.read(41)} == {future}
        check_times(log)


def append_in_future(path: str, fail: list[Any] | None) -> None:
    """Append with the clock days ahead, and perhaps die inside a batch."""
    from penstock import _core

    log = penstock.open(path, segment_size=SEGMENT)
    for n in range(40):
        faulty.shift_clock(n * HOUR)
        log.append(b"x" * 3000)
    if fail is not None:
        _core.fail_arm(*fail)
        log.extend([b"dead"] * 3)
    log.close()


def wait_while_it_jumps(path: str, jump: int, spin: float) -> None:
    """Let every kind of wait run out of time while the clock jumps; report how long each took."""
    log = penstock.open(path)
    reader = penstock.open(path, mode="r")

    def took(call: Any, *args: Any) -> float:
        began = time.monotonic()
        faulty.shift_clock(0)
        later = threading.Timer(0.05, faulty.shift_clock, [jump])
        later.start()
        call(*args)
        later.join()
        return time.monotonic() - began

    for one in (log, reader):
        report(
            follow=took(list, one.follow(timeout=0.2, spin=spin)),
            wait=took(one.wait, 0.2),
            reader_wait=took(one.follow(spin=spin).wait, 0.2),
        )
    report(done=True)


@pytest.mark.parametrize("spin", [0.0, 0.05])
@pytest.mark.parametrize("jump", [-5 * HOUR, 5 * HOUR], ids=["back", "forward"])
def test_waits_that_run_out(faulty_crew: Crew, path: Path, jump: int, spin: float) -> None:
    """A wait lasts as long as it was told to, however the clock is set meanwhile."""
    with penstock.open(path) as log:
        log.append(b"x")
        worker = start(
            faulty_crew, path.parent, "wait_while_it_jumps", path=path, jump=jump, spin=spin
        )
        worker.done()
    for each in worker.reports():
        assert "done" in each or min(each.values()) >= 0.2, each


def wait_for_one(path: str, jump: int) -> None:
    """Wait, with the clock off, for an event."""
    with penstock.open(path, mode="r") as log:
        faulty.shift_clock(jump)
        report(ready=True)
        report(seq=next(log.follow("end", timeout=60)).seq)


@pytest.mark.parametrize("jump", [-5 * HOUR, 5 * HOUR], ids=["back", "forward"])
def test_waits_that_end(faulty_crew: Crew, path: Path, jump: int) -> None:
    """A follower whose clock is hours off gets what another process appends."""
    with penstock.open(path) as log:
        log.append(b"x")
        worker = start(faulty_crew, path.parent, "wait_for_one", path=path, jump=jump)
        worker.wait_report("ready")
        while worker.alive:
            log.append(b"y")
        assert worker.wait_report("seq") >= 2
        worker.done()


def be_refused(path: str, jump: int) -> None:
    """Wait for the write lock that another process holds, while the clock jumps."""
    log = penstock.open(path)
    report(ready=True)
    wait_file(f"{path}-held")
    later = threading.Timer(0.05, faulty.shift_clock, [jump])
    later.start()
    began = time.monotonic()
    try:
        log.append(b"x", timeout=0.2)
    except Busy:
        report(took=time.monotonic() - began)
    later.join()


@pytest.mark.parametrize("jump", [-5 * HOUR, 5 * HOUR], ids=["back", "forward"])
def test_wait_for_the_lock(faulty_crew: Crew, scene: Scene, jump: int) -> None:
    """An append gives up the write lock's wait in its own time, however the clock is set."""
    scene.seed()
    worker = start(faulty_crew, scene.directory, "be_refused", path=scene.path, jump=jump)
    worker.wait_report("ready")
    holder = scene.start(
        "write", "holder", operations=[[10]], fail=["lock.taken", 1, int(signal.SIGSTOP)]
    )
    holder.wait_stopped()
    scene.file("log-held").touch()
    assert worker.wait_report("took") >= 0.2
    worker.done()
    holder.send(signal.SIGCONT)
    holder.done()
    scene.check_goes_on()
