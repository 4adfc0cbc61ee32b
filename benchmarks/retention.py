"""Retention: what it does to appends, and how it and open grow with the number of segments.

As a program: one that deletes what the rules of a log say, when it is told.
"""

from __future__ import annotations

import shutil
import statistics
import sys
from array import array
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from time import perf_counter, perf_counter_ns

import penstock
from benchmarks.harness import (
    Bench,
    Row,
    answer,
    child,
    claim_memory,
    microseconds,
    no_gc,
    percentile,
    some_values,
)

SEGMENT = "64KiB"
SEGMENTS = 1000
TIMES = 5.0  # the p99.9 without


def retention(bench: Bench) -> Iterator[Row]:
    """The slowest append while 1000 segments are deleted, beside the p99.9 while none is."""
    appends = bench.pick(200_000, 60_000)
    with bench.scratch() as path:
        source = path / "source"
        _fill(source, SEGMENTS)
        yield from _beside(bench, path, source, appends, "by its own thread", _by_itself)
        yield from _beside(bench, path, source, appends, "by another process", _by_another)
        yield from _growth(bench, path)


def _fill(path: Path, segments: int, value_bytes: int = 1 << 20) -> None:
    """A closed log of so many small segments, all of them sealed."""
    with penstock.open(path, segment_size=SEGMENT) as log:
        room = log._storage.room(log)
        value = bytes(min(room - 200, value_bytes))
        for _ in range(segments):
            log.append(value)
            log.steward.roll()
        log.sync()


Delete = Callable[[penstock.Log], AbstractContextManager[None]]


@contextmanager
def _by_itself(log: penstock.Log) -> Iterator[None]:
    log.configure(keep_segments=3)
    log.append(b"x")
    log.steward.roll()  # after which the background thread of the handle deletes them
    yield


@contextmanager
def _by_another(log: penstock.Log) -> Iterator[None]:
    log.configure(keep_segments=3)
    with child("retention", log.path) as other:
        other.answer()
        other.ask("go")
        yield
        other.answer()


def _beside(
    bench: Bench, path: Path, source: Path, appends: int, who: str, delete: Delete
) -> Iterator[Row]:
    slowest, usual, alone, left = [], [], [], []
    with no_gc():
        for number in range(bench.rounds):
            for deletes in (True, False):
                target = path / "log"
                shutil.copytree(source, target)
                claim_memory(bench)
                with penstock.open(target) as log:
                    with delete(log) if deletes else nullcontext():
                        found = _append(log, appends)
                    if deletes:
                        slowest.append(found[-1])
                        left.append(len(list(target.glob("*.seg"))))
                    else:
                        usual.append(percentile(found, 0.999))
                        alone.append(found[-1])
                shutil.rmtree(target)
            bench.say(
                f"{who}: round {number + 1} of {bench.rounds}, slowest {slowest[-1] / 1e3:.0f} µs, "
                f"alone {alone[-1] / 1e3:.0f} µs, p99.9 {usual[-1] / 1e3:.1f} µs, {left[-1]} left"
            )
    ratios = [a / b for a, b in zip(slowest, usual, strict=True)]
    quiet = [a / b for a, b in zip(alone, usual, strict=True)]
    yield Row(
        f"slowest append while 1000 segments are deleted {who}",
        "p99.9 of the same appends while none is",
        statistics.median(ratios),
        min(ratios),
        max(ratios),
        better="lower",
        bar=TIMES,
        ours=microseconds(statistics.median(slowest)),
        theirs=microseconds(statistics.median(usual)),
        note=f"without retention the slowest is {statistics.median(quiet):.1f} times it",
        detail={"slowest": slowest, "usual": usual, "alone": alone, "left": left},
    )


def _append(log: penstock.Log, count: int) -> list[int]:
    """How long each of so many appends took, in ns, the slowest one last."""
    took = array("q", bytes(8 * count))
    values = some_values(1000)
    append, clock = log.append, perf_counter_ns
    for i in range(count):
        value = values[i % 1000]
        before = clock()
        append(value)
        took[i] = clock() - before
    return sorted(took)


def _growth(bench: Bench, path: Path) -> Iterator[Row]:
    """Open, and one deletion, in a log of many segments beside one of a few."""
    many, few = bench.pick(100_000, 10_000), 1000
    logs = {}
    for count in (few, many):
        logs[count] = path / f"log-{count}"
        bench.say(f"making {count} segments")
        _fill(logs[count], count, 10)
    for what, measure, bar in (
        ("open and close for writing", _open, 3.0),
        ("first_seq and the first event", _first, None),
        ("retain() that deletes one segment", _retain, None),
        ("retain(dry_run=True)", _plan, None),
    ):
        took: dict[int, list[float]] = {count: [] for count in logs}
        for _ in range(bench.rounds):
            for count, log in logs.items():
                took[count].append(measure(log, count))
        ratios = [a / b for a, b in zip(took[many], took[few], strict=True)]
        yield Row(
            f"{what}: {many} segments",
            f"the same: {few} segments",
            statistics.median(ratios),
            min(ratios),
            max(ratios),
            better="lower",
            bar=bar,
            ours=f"{statistics.median(took[many]) * 1e3:.1f} ms",
            theirs=f"{statistics.median(took[few]) * 1e3:.1f} ms",
        )


def _open(path: Path, _: int) -> float:
    began = perf_counter()
    with penstock.open(path) as log:
        log.append(b"x")
    return perf_counter() - began


def _first(path: Path, _: int) -> float:
    with penstock.open(path, mode="r") as log:
        began = perf_counter()
        assert next(log.read()).seq == log.first_seq
        return perf_counter() - began


def _retain(path: Path, _: int) -> float:
    with penstock.open(path) as log:
        log.steward.roll()
        log.append(b"x")
        log.configure(keep_segments=len(list(path.glob("*.seg"))) - 1)
        began = perf_counter()
        done = log.steward.retain()
        took = perf_counter() - began
        assert len(done.deleted) == 1
        log.configure(keep_segments=0)
        return took


def _plan(path: Path, _: int) -> float:
    with penstock.open(path, mode="r") as log:
        began = perf_counter()
        str(log.steward.retain(dry_run=True))
        return perf_counter() - began


def _delete_when_told(path: str) -> None:
    with penstock.open(path) as log:
        answer("ready")
        sys.stdin.readline()
        log.steward.retain()
        answer("done")


if __name__ == "__main__":
    _delete_when_told(sys.argv[1])
