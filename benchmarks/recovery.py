"""Opening a log after its writer was killed, beside sqlite3 recovering a WAL with the same rows.

As a program: appends or inserts a number of events, reports it, and waits to be killed.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter

import penstock
from benchmarks.harness import Bench, Row, answer, child, some_values, take_turns

UNSYNCED_BYTES = 64 << 20
FRAME_BYTES = 144
SMALL, LARGE = 64, 1024  # MiB of log that were there before, synced


def milliseconds(seconds: float) -> str:
    """A duration as text."""
    return f"{seconds * 1e3:.2f} ms"


def recovery(bench: Bench) -> Iterator[Row]:
    """Kill a writer that has synced nothing of its last 64 MiB; open its log."""
    count = bench.pick(UNSYNCED_BYTES, UNSYNCED_BYTES // 8) // FRAME_BYTES

    def after(kind: str, open_it: Callable[[Path], float], *, forget: bool = False) -> float:
        with bench.scratch() as path:
            with child("recovery", kind, path, count) as victim:
                victim.answer()
                victim.process.kill()
                victim.process.wait()
            if forget:
                (path / "log" / "control").unlink()
            return open_it(path)

    def open_log(path: Path) -> float:
        began = perf_counter()
        with penstock.open(path / "log") as log:
            log.append(b"on")
            spent = perf_counter() - began
            if log.last_seq != count + 1:
                raise RuntimeError(f"{log.last_seq} events; {count + 1} were meant")
        return spent

    def open_sqlite(path: Path) -> float:
        began = perf_counter()
        database = sqlite3.connect(path / "db")
        with database:
            database.execute("insert into events(value) values (?)", (b"on",))
        spent = perf_counter() - began
        (found,) = database.execute("select count(*) from events").fetchone()
        if found != count + 1:
            raise RuntimeError(f"{found} rows; {count + 1} were meant")
        database.close()
        return spent

    def theirs() -> float:
        return after("sqlite", open_sqlite)

    yield take_turns(bench, "recovery", lambda: after("log", open_log), theirs).row(
        "open and append after a kill, 64 MiB not synced",
        "sqlite3 open and insert after a kill, the same rows in its WAL",
        milliseconds,
        better="lower",
        bar=0.3,
        pages="warm",
    )
    yield take_turns(
        bench, "recovery without control", lambda: after("log", open_log, forget=True), theirs
    ).row(
        "the same without control, as after a loss of power: every frame is checked, and synced",
        "sqlite3 open and insert after a kill, the same rows in its WAL",
        milliseconds,
        better="lower",
        pages="warm",
    )
    yield from _flat(bench)


def _flat(bench: Bench) -> Iterator[Row]:
    """Recovery of the same unsynced tail in a small log and in a large one."""
    large = bench.pick(LARGE, SMALL * 4)
    count = (8 << 20) // FRAME_BYTES
    with bench.scratch() as path:
        for name, size in (("small", SMALL), ("large", large)):
            bench.say(f"recovery: making a log of {size} MiB")
            values = some_values(1000) * 10
            with penstock.open(path / name) as log:
                while log.last_seq * FRAME_BYTES < size << 20:
                    log.extend(values)

        def after(name: str) -> float:
            with child("recovery", "more", path / name, count) as victim:
                victim.answer()
                victim.process.kill()
                victim.process.wait()
            began = perf_counter()
            with penstock.open(path / name) as log:
                log.append(b"on")
                return perf_counter() - began

        yield take_turns(
            bench, "recovery, large", lambda: after("large"), lambda: after("small")
        ).row(
            f"open and append after a kill, log of {large} MiB",
            f"the same with a log of {SMALL} MiB",
            milliseconds,
            better="lower",
            bar=1.5,
            pages="warm",
        )


def _victim(kind: str, path: Path, count: int) -> None:
    values = some_values(1000)
    if kind == "sqlite":
        database = sqlite3.connect(path / "db", isolation_level=None)
        database.execute("pragma journal_mode=wal")
        database.execute("pragma wal_autocheckpoint=0")
        database.execute("pragma synchronous=normal")
        database.execute("create table events(seq integer primary key, value blob)")
        for start in range(0, count, 10_000):
            rows = [(values[i % 1000],) for i in range(start, min(count, start + 10_000))]
            database.execute("begin")
            database.executemany("insert into events(value) values (?)", rows)
            database.execute("commit")
    else:
        log = penstock.open(path if kind == "more" else path / "log", segment_size="128MiB")
        for i in range(count):
            log.append(values[i % 1000])
    answer("done")
    os.read(0, 1)


if __name__ == "__main__":
    _victim(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
