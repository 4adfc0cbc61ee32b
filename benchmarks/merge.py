"""Many logs as one: merging them beside heapq.merge over lists of the same events."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from contextlib import ExitStack
from operator import attrgetter
from time import perf_counter

import penstock
from benchmarks.harness import Bench, Row, million_per_s, some_values, take_turns

LOGS = 4
BEGIN_NS = 1_700_000_000_000_000_000


def merge(bench: Bench) -> Iterator[Row]:
    """Four logs whose events interleave at random, merged by time."""
    each = bench.pick(500_000, 100_000)
    value = some_values(1)[0]
    source = random.Random(7)
    with bench.scratch() as path, ExitStack() as stack:
        logs = [stack.enter_context(penstock.open(path / f"{n}")) for n in range(LOGS)]
        for log in logs:
            times = sorted(BEGIN_NS + source.randrange(10**12) for _ in range(each))
            for at in range(0, each, 10_000):
                log.extend([penstock.Entry(value, time=ns) for ns in times[at : at + 10_000]])
        lists = [list(log) for log in logs]

        def merged() -> float:
            began = perf_counter()
            count = sum(1 for _ in penstock.merge(*logs))
            return _rate(count, each, perf_counter() - began)

        def by_heapq() -> float:
            began = perf_counter()
            count = sum(1 for _ in heapq.merge(*lists, key=attrgetter("time_ns")))
            return _rate(count, each, perf_counter() - began)

        yield take_turns(bench, "merge", merged, by_heapq).row(
            "merge of 4 logs",
            "heapq.merge over lists of the same events, which were read before",
            million_per_s,
            bar=0.5,
            aim=1,
            pages="warm",
        )


def _rate(count: int, each: int, seconds: float) -> float:
    if count != LOGS * each:
        raise RuntimeError(f"{count} events came of {LOGS * each}")
    return count / seconds
