"""Consumers: what a commit costs, and batches beside Redis Streams and litequeue.

As a program: one that reads and commits so many events, for counting its system calls; or the
partner that appends, for wake-ups.
"""

from __future__ import annotations

import importlib.util
import shutil
import socket
import subprocess
import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, perf_counter_ns, sleep
from typing import Any

import penstock
from benchmarks.harness import (
    Bench,
    Row,
    ToolRefused,
    answer,
    child,
    microseconds,
    million_per_s,
    percentile,
    run_under,
    some_values,
    take_turns,
)
from benchmarks.peers import fill_log
from benchmarks.syscalls import _calls

BATCH = 100
WARM = "warm: both were read once before"


def commit(bench: Bench) -> Iterator[Row]:
    """A commit for each event, beside reading without commits."""
    count = bench.pick(2_000_000, 300_000)
    with bench.scratch() as path, penstock.open(path / "log") as log:
        fill_log(log, some_values(10_000), count)

        def committing() -> float:
            with log.consumer("bench", timeout=0) as consumer:
                consumer.seek("start")
                began = perf_counter()
                for event in consumer:
                    event.value  # noqa: B018
                    consumer.commit()
                return count / (perf_counter() - began)

        def reading() -> float:
            began = perf_counter()
            for event in log.follow("start", timeout=0):
                event.value  # noqa: B018
            return count / (perf_counter() - began)

        def reading_on() -> float:
            with log.consumer("bench", timeout=0) as consumer:
                consumer.seek("start")
                began = perf_counter()
                for event in consumer:
                    event.value  # noqa: B018
                return count / (perf_counter() - began)

        deque(log, maxlen=0)
        yield take_turns(bench, "commit", committing, reading).row(
            "commit() per event, value read",
            "log.follow without commits, value read",
            million_per_s,
            bar=0.5,
            pages=WARM,
        )
        yield take_turns(bench, "commit", committing, reading_on).row(
            "commit() per event, value read",
            "the same consumer without commits",
            million_per_s,
            bar=0.5,
            pages=WARM,
        )
    yield from _commit_calls(bench)


def _commit_calls(bench: Bench) -> Iterator[Row]:
    work, beside = "system calls per commit", "the commits of the same run"
    strace = shutil.which("strace")
    if strace is None:
        yield Row(work, beside, problem="skipped", note="strace is not installed")
        return
    few, many = 20_000, 220_000
    counted = []
    for count in (few, many):
        with bench.scratch() as path:
            with penstock.open(path / "log") as log:
                fill_log(log, some_values(1000), many)
            table = path / "strace"
            try:
                run_under(
                    [strace, "-f", "-c", "-o", str(table)],
                    "consumers",
                    "commit",
                    path / "log",
                    count,
                )
            except ToolRefused as refused:
                yield Row(work, beside, problem="skipped", note=str(refused))
                return
            counted.append(_calls(table)["total"])
    more = counted[1] - counted[0]
    yield Row(
        work,
        beside,
        max(more, 0) / (many - few),
        unit="calls",
        better="lower",
        bar=0.01,
        ours=f"{more} calls",
        theirs=f"{many - few} commits",
        pages="warm",
    )


def batches(bench: Bench) -> Iterator[Row]:
    """poll(100) and commit, beside XREADGROUP COUNT 100 and XACK, and beside litequeue."""
    count = bench.pick(200_000, 30_000)
    values = some_values(1000)
    with bench.scratch() as path, penstock.open(path / "log") as log:
        fill_log(log, values, count)

        def ours() -> float:
            with log.consumer("bench") as consumer:
                consumer.seek("start")
                began = perf_counter()
                while events := consumer.poll(BATCH):
                    for event in events:
                        event.value  # noqa: B018
                    consumer.commit()
                return count / (perf_counter() - began)

        for name, beside, bar, side in (
            ("redis", "Redis Streams, XREADGROUP COUNT 100 and XACK", 5, _redis),
            ("litequeue", "litequeue, pop() and done()", 20, _litequeue),
        ):
            work = "poll(100) and commit(), values read"
            missing = _missing(name)
            if missing:
                yield Row(work, beside, problem="skipped", note=missing)
                continue
            fewer = count if name == "redis" else count // 20
            with side(path, values, fewer) as theirs:
                yield take_turns(bench, name, ours, theirs).row(
                    work, beside, million_per_s, bar=bar, pages="warm"
                )


def _missing(name: str) -> str:
    """Why the other side cannot run here; empty if it can."""
    if importlib.util.find_spec(name) is None:
        return f"the package {name} is not installed"
    if name == "redis" and shutil.which("redis-server") is None:
        return "redis-server is not installed"
    return ""


@contextmanager
def _redis(
    path: Path, values: list[bytes], count: int, batch: int = BATCH
) -> Iterator[Callable[[], float]]:
    """A server of its own on a free loopback port, and a full stream.

    What it acknowledges is with the kernel (appendonly, no fsync), so that it survives the death of
    any process, as a commit does: the same durability on both sides.
    """
    import redis  # type: ignore[import-not-found,unused-ignore]

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [
            *("redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""),
            *("--appendonly", "yes", "--appendfsync", "no", "--dir", str(path)),
        ],
        stdout=subprocess.DEVNULL,
    )
    try:
        client: Any = redis.Redis(port=port)
        while True:
            try:
                client.ping()
                break
            except redis.ConnectionError:
                sleep(0.01)
        for first in range(0, count, len(values)):
            pipe = client.pipeline(transaction=False)
            for value in values[: count - first]:
                pipe.xadd("stream", {"v": value})
            pipe.execute()

        def theirs() -> float:
            client.execute_command("XGROUP", "DESTROY", "stream", "g")
            client.execute_command("XGROUP", "CREATE", "stream", "g", "0")
            began = perf_counter()
            while found := client.xreadgroup("g", "c", {"stream": ">"}, count=batch):
                entries = found[b"stream"][0] if isinstance(found, dict) else found[0][1]
                for _, fields in entries:
                    fields[b"v"]
                client.xack("stream", "g", *[seq for seq, _ in entries])
            return count / (perf_counter() - began)

        yield theirs
    finally:
        server.kill()
        server.wait()


@contextmanager
def _litequeue(path: Path, values: list[bytes], count: int) -> Iterator[Callable[[], float]]:
    """A queue in a file, filled again each time, since it forgets what was done."""
    from litequeue import LiteQueue  # type: ignore[import-not-found,unused-ignore]

    texts = [value.hex() for value in values]

    def theirs() -> float:
        file = path / "queue.db"
        file.unlink(missing_ok=True)
        queue = LiteQueue(str(file))
        for i in range(count):
            queue.put(texts[i % len(texts)])
        began = perf_counter()
        while (message := queue.pop()) is not None:
            message.data  # noqa: B018
            queue.done(message.message_id)
        return count / (perf_counter() - began)

    yield theirs


def wake_up(bench: Bench) -> Iterator[Row]:
    """From an append in another process to the event: a consumer beside follow, both asleep."""
    count = bench.pick(2_000, 300)

    def timed(reader_of: Callable[[penstock.Log], Any]) -> float:
        with (
            bench.scratch() as path,
            penstock.open(path / "log") as log,
            child("consumers", "append", path / "log", count) as partner,
        ):
            partner.answer()
            reader = reader_of(log)
            partner.ask("go")
            times = array("q")
            for _ in range(count):
                sent = int(next(reader).value)
                times.append(perf_counter_ns() - sent)
            reader.close()
        return percentile(sorted(times), 0.5)

    yield take_turns(
        bench,
        "wake-up",
        lambda: timed(lambda log: log.consumer("bench")),
        lambda: timed(lambda log: log.follow("start")),
    ).row(
        "wake-up of a waiting consumer, p50",
        "wake-up of follow, p50",
        microseconds,
        better="lower",
        bar=1.3,
        pages="warm",
    )


def _commit(path: str, count: int) -> None:
    with penstock.open(path) as log, log.consumer("strace") as consumer:
        for _ in range(count):
            next(consumer)
            consumer.commit()


def _append(path: str, count: int) -> None:
    with penstock.open(path) as log:
        answer("ready")
        sys.stdin.readline()
        for _ in range(count):
            sleep(0.0005)  # until the reader sleeps again
            log.append(b"%d" % perf_counter_ns())


if __name__ == "__main__":
    if sys.argv[1] == "commit":
        _commit(sys.argv[2], int(sys.argv[3]))
    else:
        _append(sys.argv[2], int(sys.argv[3]))
