"""asyncio: what tasks that follow logs cost while nothing happens, and how soon they wake.

As a program: appends the time to a log, whenever it is told to.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from array import array
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import penstock
from benchmarks.harness import (
    Bench,
    Child,
    Row,
    answer,
    child,
    microseconds,
    percentile,
    take_turns,
)

LOGS, TASKS = 100, 1000
SEGMENT = "1MiB"


def idle(bench: Bench) -> Iterator[Row]:
    """Processor time of 1 000 tasks that follow 100 logs without appends."""
    seconds = bench.pick(10, 3)

    def followed() -> float:
        with bench.scratch() as path, ExitStack() as stack:
            return asyncio.run(_idle(_logs(path, stack), seconds))

    shares = [followed() for _ in range(bench.rounds)]
    yield Row(
        f"{TASKS} tasks following {LOGS} logs, idle",
        "one core",
        statistics.median(shares) * 100,
        min(shares) * 100,
        max(shares) * 100,
        unit="%",
        better="lower",
        bar=2,
        ours=f"{statistics.median(shares) * 1000:.2f} ms of processor time a second",
        note="one thread sleeps on the words of all logs",
    )


def wake_up(bench: Bench) -> Iterator[Row]:
    """From an append of another process until a task, one of 1 000, has it; beside a thread."""
    count = bench.pick(2_000, 300)

    def by_task() -> float:
        with (
            bench.scratch() as path,
            ExitStack() as stack,
            child("aio", path / "0", count) as partner,
        ):
            partner.answer()
            return asyncio.run(_woken(_logs(path, stack), partner, count))

    def by_thread() -> float:
        with (
            bench.scratch() as path,
            penstock.open(path / "0", segment_size=SEGMENT) as log,
            child("aio", path / "0", count) as partner,
        ):
            partner.answer()
            events = log.follow()
            times = array("q")
            for _ in range(count):
                partner.ask("go")
                event = next(events)
                times.append(time.monotonic_ns() - int(event.value))
            return percentile(sorted(times), 0.5)

    yield take_turns(bench, "wake-up", by_task, by_thread).row(
        f"wake-up of a task among {TASKS} on {LOGS} logs, p50",
        "follow() in a thread, the same appends of another process",
        microseconds,
        better="lower",
        bar=3,
        pages="warm",
    )


def _logs(path: Path, stack: ExitStack) -> list[penstock.Log[Any]]:
    return [
        stack.enter_context(penstock.open(path / f"{n}", segment_size=SEGMENT)) for n in range(LOGS)
    ]


async def _idle(logs: list[penstock.Log[Any]], seconds: float) -> float:
    tasks = [
        asyncio.create_task(_next(log.afollow())) for log in logs for _ in range(TASKS // LOGS)
    ]
    await asyncio.sleep(1)
    began, used = time.monotonic(), time.process_time()
    await asyncio.sleep(seconds)
    share = (time.process_time() - used) / (time.monotonic() - began)
    for task in tasks:
        task.cancel()
    return share


async def _woken(logs: list[penstock.Log[Any]], partner: Child, count: int) -> float:
    """All tasks wait, each alone for a log or with nine others; the first log gets events."""
    tasks = [
        asyncio.create_task(_next(log.afollow()))
        for log in logs[1:]
        for _ in range((TASKS - 1) // (LOGS - 1))
    ]
    times = array("q")
    await asyncio.sleep(0.1)
    events = logs[0].afollow()
    partner.ask("go")
    async for event in events:
        times.append(time.monotonic_ns() - int(event.value))
        if len(times) == count:
            break
        partner.ask("go")
    for task in tasks:
        task.cancel()
    return percentile(sorted(times), 0.5)


async def _next(events: AsyncIterator[penstock.Event[Any]]) -> penstock.Event[Any]:
    return await anext(events)


def _append(path: str, count: int) -> None:
    with penstock.open(path, segment_size=SEGMENT) as log:
        answer("ready")
        for _ in range(count):
            sys.stdin.readline()
            time.sleep(0.0005)  # until the waiters sleep
            log.append(b"%d" % time.monotonic_ns())


if __name__ == "__main__":
    _append(sys.argv[1], int(sys.argv[2]))
