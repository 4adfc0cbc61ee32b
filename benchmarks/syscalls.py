"""System calls per append, counted by strace, in all threads of the process.

As a program: a process that appends some events. Two runs of different length are compared, so
that starting and stopping cancel out.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import penstock
from benchmarks.harness import Bench, Row, ToolRefused, run_under, some_values

WORK = "system calls per append"
BESIDE = "the appends of the same run"


def syscalls(bench: Bench) -> Iterator[Row]:
    """The additional calls of a longer run, per additional append."""
    strace = shutil.which("strace")
    if strace is None:
        yield Row(WORK, BESIDE, problem="skipped", note="strace is not installed")
        return
    few, many = 100_000, 100_000 + bench.pick(1_000_000, 500_000)
    counted: dict[int, dict[str, int]] = {}
    for count in (few, many):
        bench.say(f"system calls: {count} appends under strace")
        with bench.scratch() as path:
            table = path / "strace"
            try:
                run_under([strace, "-f", "-c", "-o", str(table)], "syscalls", path / "log", count)
            except ToolRefused as refused:
                yield Row(WORK, BESIDE, problem="skipped", note=str(refused))
                return
            counted[count] = _calls(table)
    more = {
        name: calls - counted[few].get(name, 0)
        for name, calls in counted[many].items()
        if name != "total"
    }
    busiest = sorted(more.items(), key=lambda item: -item[1])[:4]
    per_append = sum(more.values()) / (many - few)
    yield Row(
        WORK,
        BESIDE,
        per_append,
        unit="calls",
        better="lower",
        bar=0.01,
        ours=f"{sum(more.values())} calls",
        theirs=f"{many - few} appends",
        pages="cold: fresh logs",
        note="mostly " + ", ".join(f"{name} {calls}" for name, calls in busiest),
        detail={"more_calls": more},
    )


def _calls(table: Path) -> dict[str, int]:
    """Calls by name from strace's summary: % time, seconds, usecs/call, calls, [errors], name."""
    calls: dict[str, int] = {}
    for line in table.read_text().splitlines():
        words = line.split()
        if len(words) >= 5 and words[3].isdigit():
            calls[words[-1]] = int(words[3])
    return calls


def _append(path: str, count: int) -> None:
    value = some_values(1)[0]
    with penstock.open(path) as log:
        for _ in range(count):
            log.append(value)


if __name__ == "__main__":
    _append(sys.argv[1], int(sys.argv[2]))
