"""Several writing processes on one log, beside one; and how evenly they share it.

As a program: a writer that counts its appends within a given window of time.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

import penstock
from benchmarks.harness import Bench, Row, answer, child, million_per_s, some_values, take_turns

WRITERS = 4
HEADSTART_NS = 200_000_000
PAGES = "cold: a fresh log each round"


def writers(bench: Bench) -> Iterator[Row]:
    """Four writers in total beside one; the slowest beside the fastest."""
    seconds = 0.7 if bench.quick else 2.0
    shares: list[float] = []

    def four() -> float:
        counts = _run(bench, WRITERS, seconds)
        shares.append(min(counts) / max(counts))
        return sum(counts) / seconds

    def one() -> float:
        return sum(_run(bench, 1, seconds)) / seconds

    yield take_turns(bench, "writers", four, one).row(
        f"{WRITERS} writer processes on one log, in total",
        "one writer process, for the same time",
        million_per_s,
        bar=0.5,
        aim=0.8,
        pages=PAGES,
    )
    yield Row(
        f"{WRITERS} writer processes: the slowest",
        "the fastest of them, in the same window",
        statistics.median(shares),
        min(shares),
        max(shares),
        bar=1 / 3,
        pages=PAGES,
        detail={"shares": shares},
    )


def _run(bench: Bench, count: int, seconds: float) -> list[int]:
    """Appends of each of ``count`` writers within one common window."""
    with bench.scratch() as path, ExitStack() as stack:
        penstock.open(path / "log").close()
        running = [
            stack.enter_context(child("processes", path / "log", seconds)) for _ in range(count)
        ]
        for writer in running:
            writer.answer()  # it has the log open
        begin = time.monotonic_ns() + HEADSTART_NS
        for writer in running:
            writer.ask(str(begin))
        return [int(writer.answer()) for writer in running]


def _writer(path: str, seconds: float) -> None:
    gc.disable()
    value = some_values(1)[0]
    clock = time.monotonic_ns
    count = 0
    with penstock.open(path) as log:
        append = log.append
        append(value)
        answer("ready")
        begin = int(input())
        end = begin + int(seconds * 1e9)
        time.sleep(max(0, begin - clock()) / 1e9)
        while clock() < end:
            for _ in range(32):
                append(value)
            count += 32
    answer(count)


if __name__ == "__main__":
    _writer(sys.argv[1], float(sys.argv[2]))
