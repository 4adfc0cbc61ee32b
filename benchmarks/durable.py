"""Durable appends beside a bare write and sync; group commit; periodic syncs.

As a program: a writer of durable appends that counts them within a window of time.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter

import penstock
from benchmarks.harness import (
    VALUE_BYTES,
    Bench,
    Row,
    answer,
    child,
    million_per_s,
    some_values,
    take_turns,
)
from penstock import layout as L

WRITERS = 8
HEADSTART_NS = 200_000_000
FRAME_BYTES = -(-(L.FRAME_HEADER_BYTES + VALUE_BYTES) // L.ALIGN) * L.ALIGN
PAGES = "cold: a fresh log and a fresh file each round"


def per_s(rate: float) -> str:
    """A rate as text."""
    return f"{rate:.0f} /s"


def durable(bench: Bench) -> Iterator[Row]:
    """One process that waits for the disk at each append."""
    count = bench.pick(3000, 500)
    value = some_values(1)[0]

    def ours() -> float:
        with bench.scratch() as path, penstock.open(path / "log") as log:
            log.append(value, durable=True)
            began = perf_counter()
            for _ in range(count):
                log.append(value, durable=True)
            return count / (perf_counter() - began)

    def growing() -> float:
        with bench.scratch() as path:
            return _write_and_sync(path / "file", count, 0)

    def allocated() -> float:
        with bench.scratch() as path:
            return _write_and_sync(path / "file", count, (count + 1) * FRAME_BYTES)

    yield take_turns(bench, "durable append", ours, growing).row(
        "append(durable=True), one process",
        "os.pwrite + os.fdatasync of as many bytes at the end of a file",
        per_s,
        bar=0.8,
        pages=PAGES,
    )
    yield take_turns(bench, "durable append, allocated", ours, allocated).row(
        "append(durable=True), beside a file with its blocks allocated",
        "os.pwrite + os.fdatasync into a file made with posix_fallocate",
        per_s,
        pages=PAGES,
    )


def _write_and_sync(path: Path, count: int, allocate: int) -> float:
    data = b"x" * FRAME_BYTES
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if allocate:
            os.posix_fallocate(fd, 0, allocate)
        os.pwrite(fd, data, 0)
        os.fsync(fd)
        began = perf_counter()
        for i in range(1, count + 1):
            os.pwrite(fd, data, i * FRAME_BYTES)
            os.fdatasync(fd)
        return count / (perf_counter() - began)
    finally:
        os.close(fd)


def group_commit(bench: Bench) -> Iterator[Row]:
    """Eight processes that share their syncs, beside a single one."""
    seconds = 0.7 if bench.quick else 2.0
    yield take_turns(
        bench,
        "group commit",
        lambda: _run(bench, WRITERS, seconds),
        lambda: _run(bench, 1, seconds),
    ).row(
        f"{WRITERS} processes with append(durable=True) on one log, in total",
        "one process, for the same time",
        per_s,
        bar=3,
        pages="cold: a fresh log each round",
    )


def _run(bench: Bench, count: int, seconds: float) -> float:
    with bench.scratch() as path, ExitStack() as stack:
        penstock.open(path / "log").close()
        running = [
            stack.enter_context(child("durable", path / "log", seconds)) for _ in range(count)
        ]
        for writer in running:
            writer.answer()  # it has the log open
        begin = time.monotonic_ns() + HEADSTART_NS
        for writer in running:
            writer.ask(str(begin))
        return sum(int(writer.answer()) for writer in running) / seconds


def periodic(bench: Bench) -> Iterator[Row]:
    """Appends while a thread syncs every 100 ms, beside appends without syncs."""
    count = bench.pick(2_000_000, 400_000)
    values = some_values(1000) * (count // 1000)

    def run(seconds: float | None) -> float:
        with bench.scratch() as path, penstock.open(path / "log", sync_seconds=seconds) as log:
            append = log.append
            append(values[0])
            began = perf_counter()
            for value in values:
                append(value)
            return count / (perf_counter() - began)

    yield take_turns(bench, "periodic sync", lambda: run(0.1), lambda: run(None)).row(
        "append, with sync_seconds=0.1",
        "append without any sync",
        million_per_s,
        bar=0.8,
        pages="cold: a fresh log each round",
    )


def _writer(path: str, seconds: float) -> None:
    gc.disable()
    value = some_values(1)[0]
    clock = time.monotonic_ns
    count = 0
    with penstock.open(path) as log:
        log.append(value, durable=True)
        answer("ready")
        begin = int(input())
        end = begin + int(seconds * 1e9)
        time.sleep(max(0, begin - clock()) / 1e9)
        while clock() < end:
            log.append(value, durable=True)
            count += 1
    answer(count)


if __name__ == "__main__":
    _writer(sys.argv[1], float(sys.argv[2]))
