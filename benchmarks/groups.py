"""Groups: claims and acks beside Redis Streams, litequeue and SQLite; workers together; deaths.

As a program: a worker that drains a group, or one that claims and waits to be killed.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter, perf_counter_ns, process_time, sleep

import penstock
from benchmarks.consumers import _litequeue, _missing, _redis
from benchmarks.harness import (
    Bench,
    Row,
    answer,
    child,
    percentile,
    some_values,
    take_turns,
)
from benchmarks.peers import fill_log

BATCH = 100
WORKERS = 4


def per_s(rate: float) -> str:
    """A rate of jobs, as text."""
    return f"{rate:,.0f} /s"


def milliseconds(ns: float) -> str:
    """A duration given in nanoseconds, as text."""
    return f"{ns / 1e6:.1f} ms"


def groups(bench: Bench) -> Iterator[Row]:
    """Claim and ack, one at a time and in batches, beside other queues; four workers together."""
    values = some_values(1000)
    count = bench.pick(60_000, 10_000)
    with bench.scratch() as path, penstock.open(path / "log") as log:
        fill_log(log, values, 10 * count)
        one, many = _ours(log, count, 1), _ours(log, 10 * count, BATCH)
        ahead = _ours(log, count, 1, prefetch=32)
        single = "claim and ack, one at a time"
        for name, beside, bar, aim, fewer, side in (
            ("redis", "Redis Streams, XREADGROUP COUNT 1 and XACK", 20, 40, 40, _redis_one),
            ("litequeue", "litequeue, pop() and done()", 20, 40, 40, _litequeue),
            ("sqlite", "SQLite, WAL, UPDATE … RETURNING", 20, None, 40, _sqlite),
        ):
            missing = "" if name == "sqlite" else _missing(name)
            if missing:
                yield Row(single, beside, problem="skipped", note=missing)
                continue
            with side(path, values, count // fewer) as theirs:
                yield take_turns(bench, f"{name}, one", one, theirs).row(
                    single, beside, per_s, bar=bar, aim=aim, pages="warm"
                )
        yield take_turns(bench, "prefetch", ahead, one).row(
            "ack one at a time, prefetch=32", "claim and ack, one at a time", per_s, pages="warm"
        )
        work, beside = "poll(100) and ack", "Redis Streams, XREADGROUP COUNT 100 and XACK"
        if missing := _missing("redis"):
            yield Row(work, beside, problem="skipped", note=missing)
        else:
            with _redis(path, values, 2 * count) as theirs:
                yield take_turns(bench, "redis, 100", many, theirs).row(
                    work, beside, per_s, bar=5, aim=10, pages="warm"
                )
    yield from _together(bench)
    yield _idle(bench)


def _ours(
    log: penstock.Log, count: int, batch: int, prefetch: int | None = None
) -> Callable[[], float]:
    """Drain so many jobs of a new group."""

    def run() -> float:
        if "bench" in log.groups():
            log.groups().delete("bench")
        with (
            log.group("bench") as group,
            group.worker(batch=batch, prefetch=prefetch, timeout=0) as worker,
        ):
            done = 0
            began = perf_counter()
            if batch == 1:
                for job in worker:
                    job.event.value  # noqa: B018
                    job.ack()
                    done += 1
                    if done == count:
                        break
            else:
                while done < count and (jobs := worker.poll()):
                    for job in jobs:
                        job.event.value  # noqa: B018
                    worker.ack(jobs)
                    done += len(jobs)
            return done / (perf_counter() - began)

    return run


@contextmanager
def _redis_one(path: Path, values: list[bytes], count: int) -> Iterator[Callable[[], float]]:
    with _redis(path, values, count, 1) as theirs:
        yield theirs


@contextmanager
def _sqlite(path: Path, values: list[bytes], count: int) -> Iterator[Callable[[], float]]:
    """A queue as people write it by hand; a claim and an ack are a transaction each."""

    def theirs() -> float:
        file = path / "hand.db"
        for name in ("hand.db", "hand.db-wal", "hand.db-shm"):
            (path / name).unlink(missing_ok=True)
        rows = sqlite3.connect(file, isolation_level=None)
        rows.execute("PRAGMA journal_mode=WAL")
        rows.execute("PRAGMA synchronous=NORMAL")
        rows.execute("CREATE TABLE jobs (id INTEGER PRIMARY KEY, value BLOB, state INTEGER)")
        rows.execute("CREATE INDEX by_state ON jobs (state, id)")
        rows.execute("BEGIN")
        rows.executemany(
            "INSERT INTO jobs (value, state) VALUES (?, 0)",
            ((values[i % len(values)],) for i in range(count)),
        )
        rows.execute("COMMIT")
        began = perf_counter()
        while True:
            found = rows.execute(
                "UPDATE jobs SET state = 1 WHERE id = "
                "(SELECT id FROM jobs WHERE state = 0 ORDER BY id LIMIT 1) RETURNING id, value"
            ).fetchall()
            if not found:
                break
            rows.execute("DELETE FROM jobs WHERE id = ?", (found[0][0],))
        took = perf_counter() - began
        rows.close()
        return count / took

    yield theirs


def _together(bench: Bench) -> Iterator[Row]:
    """Four processes drain one group, beside one process."""
    for label, batch, order, count in (
        ("one at a time", 1, "", bench.pick(120_000, 20_000)),
        ("batches of 100", BATCH, "", bench.pick(1_000_000, 200_000)),
        ('one at a time, order="key"', 1, "key", bench.pick(60_000, 10_000)),
    ):
        with bench.scratch() as path:
            with penstock.open(path / "log") as log:
                for first in range(0, count, 1000):
                    log.extend(
                        [
                            penstock.Entry(b"x" * 100, key=b"%d" % (i % 997))
                            for i in range(first, first + 1000)
                        ]
                    )
            shares: list[float] = []

            def drain(workers: int) -> float:
                with penstock.open(path / "log") as log:
                    if "bench" in log.groups():
                        log.groups().delete("bench")
                    log.group("bench", order=order or None).close()  # type: ignore[arg-type]  # noqa: B023
                    with ExitStack() as ends:
                        crew = [
                            ends.enter_context(
                                child("groups", "drain", path / "log", batch)  # noqa: B023
                            )
                            for _ in range(workers)
                        ]
                        for one in crew:
                            one.answer()
                        for one in crew:
                            one.ask("go")
                        told = [one.answer() for one in crew]
                done = [jobs for jobs, _, _ in told]
                assert sum(done) == count, (done, count)  # noqa: B023
                if workers > 1:
                    rates = [jobs / max(1e-9, end - began) for jobs, began, end in told]
                    shares.append(min(rates) / max(rates))  # noqa: B023
                first: float = min(began for _, began, _ in told)
                last: float = max(end for _, _, end in told)
                return count / (last - first)  # noqa: B023

            yield take_turns(
                bench, f"4 workers, {label}", lambda: drain(WORKERS), lambda: drain(1)
            ).row(
                f"{WORKERS} workers together, {label}",
                "one worker",
                per_s,
                bar=0.8,
                aim=1.5,
                pages="warm",
            )
            shares.sort()
            yield Row(
                f"the slowest of {WORKERS} workers, {label}",
                "the fastest of them",
                shares[len(shares) // 2],
                shares[0],
                shares[-1],
                bar=0.33,
                ours="",
                theirs="",
                pages="warm",
            )


def _idle(bench: Bench) -> Row:
    """What waiting costs while another worker has a job."""
    with bench.scratch() as path, penstock.open(path / "log") as log:
        log.append(b"long")
        group = log.group("bench")
        busy, idle = group.worker(), group.worker()
        job = next(busy)
        wait = bench.pick(10, 3)
        began = process_time()
        idle.poll(timeout=wait)
        share = (process_time() - began) / wait
        job.ack()
        group.close()
    return Row(
        "CPU of a waiting worker while another has a job",
        "one core",
        share * 100,
        unit="%",
        better="lower",
        bar=2.0,
        ours=f"{share * 100:.2f} %",
        theirs="",
        pages="warm",
    )


def redelivery(bench: Bench) -> Iterator[Row]:
    """From the SIGKILL of a worker to its job in another worker, with default settings."""
    count = bench.pick(100, 20)
    times = array("q")
    with bench.scratch() as path, penstock.open(path / "log") as log:
        group = log.group("bench", deliveries=1000)
        with group.worker() as worker:
            for _ in range(count):
                log.append(b"x")
                with child("groups", "hold", path / "log") as victim:
                    pid = victim.answer()
                    worker.poll(timeout=0.02)
                    began = perf_counter_ns()
                    os.kill(pid, signal.SIGKILL)
                    [job] = worker.poll(timeout=30)
                    times.append(perf_counter_ns() - began)
                    assert job.deliveries == 2
                    job.ack()
        group.close()
    ordered = sorted(times)
    for name, share, bar, aim in (("p50", 0.5, 50, 15), ("p99", 0.99, None, None)):
        found = percentile(ordered, share)
        yield Row(
            f"redelivery after SIGKILL, {name}",
            "default settings, no timeout",
            found / 1e6,
            ordered[0] / 1e6,
            ordered[-1] / 1e6,
            unit="ms",
            better="lower",
            bar=bar,
            aim=aim,
            ours=milliseconds(found),
            theirs="",
            pages="warm",
        )


def _drain(path: str, batch: int) -> None:
    with (
        penstock.open(path) as log,
        log.group("bench") as group,
        group.worker(batch=batch, timeout=0.3) as worker,
    ):
        answer("ready")
        sys.stdin.readline()
        done, began = 0, perf_counter()
        end = began
        if batch == 1:
            for job in worker:
                job.event.value  # noqa: B018
                job.ack()
                done += 1
                end = perf_counter()
        else:
            while jobs := worker.poll(timeout=0.3):
                worker.ack(jobs)
                done += len(jobs)
                end = perf_counter()
        answer((done, began, end))


def _hold(path: str) -> None:
    with penstock.open(path) as log:
        worker = log.group("bench").worker()
        next(worker)
        answer(os.getpid())
        sleep(60)


if __name__ == "__main__":
    if sys.argv[1] == "drain":
        _drain(sys.argv[2], int(sys.argv[3]))
    else:
        _hold(sys.argv[2])
