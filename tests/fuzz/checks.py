"""What must hold of any directory whatever is in it: the way of a log through every call.

Nothing but a PenstockError may come out of a call, and no `Internal`; every event that comes out
has a right checksum, in the right order; verify calls ok what repair has written. If no checksum
was forged, then also: what verify calls ok reads without an error, whole and from every side,
appends to it lose nothing, and repair keeps every event that can be read.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal, cast

import penstock
from penstock import _core
from penstock import layout as L
from penstock.handle import control
from penstock.report import Report
from tests.fuzz.edits import Scene, scene_of, write, writer_in

DAMAGED: tuple[Literal["raise", "skip"], ...] = ("raise", "skip")

EVENTS_MAX = 5000
MEMORY = Path("/dev/shm")


class Broken(AssertionError):
    """A promise that did not hold."""


def demand(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)


def attempt(call: Callable[[], Any]) -> Any:
    """The call's result; None if it fails as it may."""
    try:
        return call()
    except penstock.Internal:
        raise
    except penstock.PenstockError:
        return None


def frame_of(event: penstock.Event) -> bytes:
    """The bytes of the event's frame."""
    _, (frame, *_) = cast("tuple[Any, tuple[bytes, ...]]", event.__reduce__())
    return frame


def identity(event: penstock.Event) -> tuple[Any, ...]:
    """What repair may not change of an event."""
    frame = frame_of(event)
    return (event.seq, event.append_ns, frame[L.FRAME_KEY_LEN :])


def look_at(event: penstock.Event) -> None:
    """An event's checksum is right, and its parts can be decoded or are Corrupt."""
    frame = frame_of(event)
    crc = int.from_bytes(frame[L.FRAME_CRC : L.FRAME_CRC + 4], "little")
    demand(crc == _core.crc32c(frame[L.FRAME_SEQ :]), f"seq {event.seq}: its checksum is wrong")
    attempt(lambda: repr(event))
    attempt(lambda: event.headers)
    attempt(lambda: event.tags)
    attempt(lambda: event.data)
    demand(event.deletes or bytes(event.view) == event.value, f"seq {event.seq}: its view differs")
    attempt(lambda: (event.time, event.batch_left, hash(event)))


def gather(
    read: Callable[[], Iterable[penstock.Event]], *, reverse: bool = False
) -> list[penstock.Event]:
    """The events up to the end or to an error that may be; they are in order."""
    found: list[penstock.Event] = []
    with suppress(penstock.Corrupt, penstock.Gap, penstock.NotFound, penstock.Io):
        for event in read():
            look_at(event)
            found.append(event)
            demand(len(found) <= EVENTS_MAX, "a read does not end")
    seqs = [e.seq for e in found]
    demand(seqs == sorted(set(seqs), reverse=reverse), f"seqs are not in order: {seqs}")
    return found


def read_all(log: penstock.Log) -> None:
    """Read in every way."""
    ways: tuple[dict[str, Any], ...] = (
        {},
        {"since": 1000, "until": 9000},
        {"topic": "a"},
        {"start": 5, "stop": 20, "key": b"k"},
    )
    for damaged, reverse, way in product(DAMAGED, (False, True), ways):
        read = partial(log.read, on_damage=damaged, reverse=reverse, **way)
        attempt(partial(gather, read, reverse=reverse))
    for damaged in DAMAGED:
        attempt(partial(gather, partial(log.follow, "start", timeout=0, on_damage=damaged)))
    attempt(lambda: [repr(event) for event in log.read(check=False)])
    for seq in (1, 4, 12, 16, 37, attempt(lambda: log.last_seq) or 1):
        event = attempt(partial(log.__getitem__, seq))
        if event is not None:
            look_at(event)
            demand(event.seq == seq, f"log[{seq}] gave seq {event.seq}")
    for call in (log.topics, log.stats, lambda: log.settings, lambda: log.first_seq, log.verify):
        attempt(call)


def read_only(path: Path) -> None:
    """Open without writing and read."""
    log = attempt(lambda: penstock.open(path, mode="r", timeout=0.2))
    if log is not None:
        with log:
            attempt(lambda: read_all(log))


def read_strictly(path: Path, report: Report) -> None:
    """Read what verify called ok: everything is there, from both ends and by seq and time."""
    with penstock.open(path, mode="r", timeout=0.2) as log:
        events = list(iter(log))  # a list of a log is given room for as many events as seqs
        seqs = [e.seq for e in events]
        demand(len(events) == report.events, f"{len(events)} events, verify says {report.events}")
        demand([e.seq for e in reversed(log)] == seqs[::-1], "reading backwards differs")
        for event in events[:: max(1, len(events) // 8)]:
            demand(log[event.seq] == event, f"log[{event.seq}] differs")
        times = sorted(e.time_ns for e in events)
        times = [t for t in times if t < 10**8 or 10**17 <= t < 2**63]  # others are refused
        for since in times[:: max(1, len(times) // 4)]:
            wanted = [e.seq for e in events if e.time_ns >= since]
            demand([e.seq for e in log.read(since=since)] == wanted, f"since={since} differs")
            wanted = [e.seq for e in events if e.time_ns < since]
            demand([e.seq for e in log.read(until=since)] == wanted, f"until={since} differs")


def past_damage(path: Path) -> list[penstock.Event]:
    """The events that reading past damage gives."""
    with penstock.open(path, mode="r", timeout=0.2) as log:
        return gather(partial(log.read, on_damage="skip"))


def append_to(path: Path, *, must: bool) -> None:
    """Open for writing, append, roll, read and close."""

    def use() -> bool:
        with penstock.open(path, timeout=0.2, create=False) as log:
            seq = log.append(b"more", topic="a", time=5000, producer=("p", 1 << 60))
            demand(log[seq].value == b"more", "what was appended is not there")
            log.extend([b"x", b"y"])
            attempt(lambda: read_all(log))
            log.steward.roll()
            demand(log.append(b"z", durable=True) == seq + 3, "seqs are given out twice")
        return True

    if must:
        use()
    else:
        attempt(use)
    attempt(lambda: penstock.verify(path))


def append_and_compare(path: Path, copy: Path, ok: bool) -> None:
    """Appending to a log that was ok loses nothing and leaves it ok."""
    shutil.copytree(path, copy)
    if not ok:
        append_to(copy, must=False)
        return
    with penstock.open(copy, mode="r") as log:
        before = [identity(e) for e in log]
    append_to(copy, must=False)
    report = penstock.verify(copy)
    demand(report.ok, f"it was ok before an append, and is not now: {report}")
    with penstock.open(copy, mode="r") as log:
        after = [identity(e) for e in log]
    demand(after[: len(before)] == before, "an append lost events")


def reading(path: Path, copy: Path, scene: Scene) -> None:
    """Verify, and read in every way, beside a writer, with control and without."""
    if scene.live and path.joinpath(control.NAME).is_file():
        with writer_in(path):
            attempt(lambda: penstock.verify(path))
            read_only(path)
            if attempt(lambda: penstock.repair(path, to=copy)) is not None:
                shutil.rmtree(copy)
    report = attempt(lambda: penstock.verify(path))
    read_only(path)
    if report is not None and str(report) and report.ok and not scene.forged:
        read_strictly(path, report)
    if path.joinpath(control.NAME).is_file():
        path.joinpath(control.NAME).unlink()
        read_only(path)


def appending(path: Path, copy: Path, scene: Scene) -> None:
    """Append; to a log that was ok, that loses nothing and leaves it ok."""
    report = attempt(lambda: penstock.verify(path))
    if report is None or not report.ok or scene.forged:
        append_to(path, must=False)
        return
    with penstock.open(path, mode="r") as log:
        before = [identity(e) for e in log]
    append_to(path, must=False)
    report = penstock.verify(path)
    demand(report.ok, f"it was ok before an append, and is not now: {report}")
    with penstock.open(path, mode="r") as log:
        after = [identity(e) for e in log]
    demand(after[: len(before)] == before, "an append lost events")


def mending(path: Path, copy: Path, scene: Scene) -> None:
    """Repair to a new directory: that is a whole log, with every event that could be read."""
    known = attempt(lambda: past_damage(path)) or []
    plan = attempt(lambda: penstock.repair(path, to=copy))
    if plan is None:
        return
    report = penstock.verify(copy)
    demand(report.ok, f"verify of what was repaired: {report}")
    if scene.forged:
        append_to(copy, must=False)
        return
    read_strictly(copy, report)
    with penstock.open(copy, mode="r") as log:
        saved = {identity(e) for e in log}
    gone = [e.seq for e in known if identity(e) not in saved]
    demand(not gone, f"repair lost seqs that can be read: {gone}\n{plan}")
    append_to(copy, must=True)


def mending_in_place(path: Path, copy: Path, scene: Scene) -> None:
    """Repair where it is, twice: the second time there is nothing to do."""
    plan = attempt(lambda: penstock.repair(path))
    if attempt(lambda: penstock.repair(path, in_place=True)) is None:
        return
    demand(plan is not None, "there is no plan for a repair that works")
    report = penstock.verify(path)
    demand(report.ok, f"verify of what was repaired in place: {report}")
    if not scene.forged:
        read_strictly(path, report)
    again = penstock.repair(path, in_place=True)
    demand(not again.steps, f"a repaired log wants repair: {again}")


COURSES = (reading, appending, mending, mending_in_place)


def check(data: bytes) -> None:
    """Run one input: make its log, and take it through one course."""
    scene = scene_of(data)
    place = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="penstock-fuzz-", dir=place) as scratch:
        path = Path(scratch, "log")
        write(scene, path)
        COURSES[scene.course](path, Path(scratch, "copy"), scene)
