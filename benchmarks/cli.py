"""The command line in processes of its own, beside bare Python, SQLite's shell and a pipe.

Both sides are whole processes, their start included, and print to /dev/null.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import penstock
from benchmarks.harness import ROOT, Bench, Row, microseconds, some_values, take_turns

EVENTS, EVENTS_QUICK = 1_000_000, 200_000
BATCH = 10_000
ROUND_TRIPS, ROUND_TRIPS_QUICK = 2000, 300
COMMAND = [sys.executable, "-m", "penstock"]
NO_SHELL = "the sqlite3 shell is not installed (Debian: apt-get install sqlite3)"


def cli(bench: Bench) -> Iterator[Row]:
    """Commands beside `python -c pass`, `sqlite3` and a pipe."""
    with bench.scratch() as path:
        environment = os.environ | {
            "PYTHONPATH": str(ROOT / "src"),
            "PYTHONPYCACHEPREFIX": str(path / "bytecode"),
            "PYTHONDONTWRITEBYTECODE": "",
        }
        log = path / "log"
        _fill(bench, log, path / "lines.txt", path / "e.db")
        for words in (
            ["--version"],
            ["get", str(log), "5"],
            ["append", str(path / "w"), "--create"],
        ):
            _seconds([*COMMAND, *words], environment)  # the first run writes the compiled bytecode
        yield from _start_up(bench, log, environment)
        yield from _prints(bench, log, path / "e.db", environment)
        yield from _appends(bench, path, environment)
        yield _follows(bench, path / "followed", environment)


def _fill(bench: Bench, log: Path, lines: Path, base: Path) -> None:
    """The same lines as a log, as text and as a table."""
    values = [value.hex().encode() for value in some_values(bench.pick(EVENTS, EVENTS_QUICK), 50)]
    lines.write_bytes(b"\n".join(values) + b"\n")
    with penstock.create(log) as made:
        for at in range(0, len(values), BATCH):
            made.extend(values[at : at + BATCH])
    with closing(sqlite3.connect(base)) as table:
        table.execute("create table e (v text)")
        table.executemany("insert into e values (?)", ((value.decode(),) for value in values))
        table.commit()


def _seconds(
    command: Sequence[str], environment: dict[str, str], stdin: Path | None = None
) -> float:
    """How long a process takes, from its start to its end."""
    with open(stdin or os.devnull, "rb") as source:
        began = time.perf_counter()
        subprocess.run(
            command, stdin=source, stdout=subprocess.DEVNULL, check=True, env=environment
        )
        return time.perf_counter() - began


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"


def _start_up(bench: Bench, log: Path, environment: dict[str, str]) -> Iterator[Row]:
    """The least of some starts, since a start is short and everything disturbs it."""
    turns = bench.pick(9, 5)

    def least(command: Sequence[str]) -> float:
        return min(_seconds(command, environment) for _ in range(turns))

    for words, bar in ((["--version"], 2.0), (["get", str(log), "5"], 3.0)):
        yield take_turns(
            bench,
            words[0],
            lambda words=words: least([*COMMAND, *words]),  # type: ignore[misc]
            lambda: least([sys.executable, "-c", "pass"]),
        ).row(
            f"`penstock {' '.join(['get', 'LOG', '5'] if words[0] == 'get' else words)}`",
            "`python -c pass`",
            _milliseconds,
            better="lower",
            bar=bar,
            pages="warm",
        )


def _prints(bench: Bench, log: Path, base: Path, environment: dict[str, str]) -> Iterator[Row]:
    count = bench.pick(EVENTS, EVENTS_QUICK)
    for form, bar in (("raw", 5.0), ("jsonl", 1.0)):
        work = f"`penstock cat -o {form}` of {count:,} events"
        beside = '`sqlite3 db "select v from e"`'
        if shutil.which("sqlite3") is None:
            yield Row(work, beside, bar=bar, problem="skipped", note=NO_SHELL)
            continue
        ours = [*COMMAND, "cat", str(log), "-o", form]
        theirs = ["sqlite3", str(base), "select v from e"]
        yield take_turns(
            bench,
            f"cat {form}",
            lambda ours=ours: 1 / _seconds(ours, environment),  # type: ignore[misc]
            lambda theirs=theirs: 1 / _seconds(theirs, environment),  # type: ignore[misc]
        ).row(work, beside, lambda rate: _milliseconds(1 / rate), bar=bar, pages="warm")


def _appends(bench: Bench, path: Path, environment: dict[str, str]) -> Iterator[Row]:
    count = bench.pick(EVENTS, EVENTS_QUICK)
    work, beside = f"`penstock append` of {count:,} lines from stdin", "`sqlite3 .import`"
    if shutil.which("sqlite3") is None:
        yield Row(work, beside, bar=4.0, problem="skipped", note=NO_SHELL)
        return
    made, table, lines = path / "made", path / "made.db", path / "lines.txt"

    def ours() -> float:
        shutil.rmtree(made, ignore_errors=True)
        return 1 / _seconds([*COMMAND, "append", str(made), "--create"], environment, lines)

    def theirs() -> float:
        table.unlink(missing_ok=True)
        load = ["create table e (v text)", f".import {lines} e"]
        return 1 / _seconds(["sqlite3", str(table), *load], environment)

    yield take_turns(bench, "append", ours, theirs).row(
        work, beside, lambda rate: _milliseconds(1 / rate), bar=4.0, pages="warm"
    )


def _follows(bench: Bench, path: Path, environment: dict[str, str]) -> Row:
    """Half of the time from an append to its line, beside a line through cat(1)."""
    count = bench.pick(ROUND_TRIPS, ROUND_TRIPS_QUICK)
    with penstock.create(path) as log:
        follower = subprocess.Popen(
            [*COMMAND, "follow", str(path), "--from", "1", "-o", "raw"],
            stdout=subprocess.PIPE,
            env=environment,
        )
        piped = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            lines, back, into = follower.stdout, piped.stdout, piped.stdin
            assert lines is not None and back is not None and into is not None
            log.append(b"begin")
            lines.readline()

            def ours() -> float:
                return _median_ns(lambda: (log.append(b"x"), lines.readline()), count)

            def theirs() -> float:
                return _median_ns(
                    lambda: (into.write(b"x\n"), into.flush(), back.readline()), count
                )

            return take_turns(bench, "follow", ours, theirs).row(
                "an append until its line is printed by `penstock follow`, median",
                "a line through `cat`",
                microseconds,
                better="lower",
                bar=3.0,
                pages="warm",
            )
        finally:
            for process in (follower, piped):
                process.kill()
                process.communicate()


def _median_ns(once: object, count: int) -> float:
    assert callable(once)
    times = []
    for _ in range(count):
        began = time.perf_counter_ns()
        once()
        times.append(time.perf_counter_ns() - began)
    return sorted(times)[count // 2]
