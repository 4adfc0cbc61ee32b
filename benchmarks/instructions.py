"""Instructions of one append and one read, counted by callgrind, beside LMDB's.

As a program: a process that does one of four things many times. Two runs of different length
are compared, so that starting and stopping cancel out; the Python loop itself stays in.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import penstock
from benchmarks.harness import Bench, Row, ToolRefused, run_under, some_values
from benchmarks.peers import fill_lmdb, fill_log, keys, open_lmdb

FEW, MANY = 1_000, 6_000
TASKS = {
    "append": ("instructions of one append", "of one lmdb put in its own transaction"),
    "read": ("instructions of one event read", "of one step of an lmdb cursor"),
}
_COLLECTED = re.compile(r"Collected : (\d+)")


def instructions(bench: Bench) -> Iterator[Row]:
    """Append and read, each beside the same thing in LMDB."""
    valgrind = shutil.which("valgrind")
    for task, (work, beside) in TASKS.items():
        if valgrind is None:
            yield Row(work, beside, problem="skipped", note="valgrind is not installed")
            continue
        try:
            ours, theirs = (_per_event(bench, valgrind, side, task) for side in ("log", "lmdb"))
        except ToolRefused as refused:
            yield Row(work, beside, problem="skipped", note=str(refused))
            continue
        yield Row(
            work,
            beside,
            ours / theirs,
            better="lower",
            ours=f"{ours:.0f}",
            theirs=f"{theirs:.0f}",
            note="with the Python loop around it; the kernel's are not counted",
            detail={"ours": ours, "theirs": theirs},
        )


def _per_event(bench: Bench, valgrind: str, side: str, task: str) -> float:
    bench.say(f"instructions: {task}, {side}, under callgrind")
    tool = [valgrind, "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    totals = []
    for count in (FEW, MANY):
        with bench.scratch() as path:
            stderr = run_under(tool, "instructions", side, task, count, path)
        match = _COLLECTED.search(stderr)
        if match is None:
            raise ToolRefused("valgrind did not say how many instructions it saw")
        totals.append(int(match[1]))
    return (totals[1] - totals[0]) / (MANY - FEW)


def _run(side: str, task: str, count: int, path: Path) -> None:
    """Reading always fills MANY events first, so that only the number of reads differs."""
    values = some_values(1) * MANY
    if side == "log":
        with penstock.open(path / "log") as log:
            if task == "append":
                for value in values[:count]:
                    log.append(value)
            else:
                fill_log(log, values, MANY)
                for event in log.read(stop=count + 1):
                    event.value  # noqa: B018
        return
    with open_lmdb(path / "lmdb") as environment:
        ordered = keys(1, MANY)
        if task == "append":
            for i in range(count):
                with environment.begin(write=True) as txn:
                    txn.put(ordered[i], values[i], append=True)
        else:
            fill_lmdb(environment, values, MANY)
            with environment.begin() as txn:
                cursor = txn.cursor().iternext(keys=False, values=True)
                for _ in zip(range(count), cursor, strict=False):
                    pass


if __name__ == "__main__":
    _run(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
