"""Opening a log of many segments, beside one of few."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter

import penstock
from benchmarks.harness import Bench, Row, some_values, take_turns

MANY, FEW = 500, 5
EVENTS_PER_SEGMENT = 200
EVENTS_IN_THE_LAST = 100


def opening(bench: Bench) -> Iterator[Row]:
    """Open 500 segments and 5: alone, and while another handle keeps the log open."""
    repeats = bench.pick(50, 10)
    with bench.scratch() as path:
        bench.say(f"open: making {MANY} segments")
        _make(path / "many", MANY)
        _make(path / "few", FEW)
        for title, kept_open in (("first opener", False), ("another handle has it open", True)):
            with ExitStack() as keep:
                if kept_open:
                    keep.enter_context(penstock.open(path / "many"))
                    keep.enter_context(penstock.open(path / "few"))
                yield take_turns(
                    bench,
                    f"open, {title}",
                    lambda: _open(path / "many", repeats),
                    lambda: _open(path / "few", repeats),
                ).row(
                    f"open a log of {MANY} segments, {title}",
                    f"open a log of {FEW} segments, filled alike",
                    lambda seconds: f"{seconds * 1e3:.2f} ms",
                    better="lower",
                    bar=3,
                    aim=1.2,
                    pages="warm",
                )


def _make(path: Path, segments: int) -> None:
    values = some_values(EVENTS_PER_SEGMENT)
    with penstock.open(path, segment_size="64KiB") as log:
        for _ in range(segments - 1):
            log.extend(values)
            log.steward.roll()
        log.extend(values[:EVENTS_IN_THE_LAST])
        if (found := log.stats().segments) != segments:
            raise RuntimeError(f"{path} has {found} segments; {segments} were meant")


def _open(path: Path, repeats: int) -> float:
    """Median of the seconds until the log is open and its last seq known; closing is not timed."""
    spent = []
    for _ in range(repeats):
        began = perf_counter()
        log = penstock.open(path)
        log.last_seq  # noqa: B018
        spent.append(perf_counter() - began)
        log.close()
    return statistics.median(spent)
