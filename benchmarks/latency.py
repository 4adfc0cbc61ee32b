"""How long one thing takes: a round trip between two processes, and the tail of append.

As a program: the partner that sends back what it gets, over two logs or over two pipes.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
from array import array
from collections.abc import Iterator
from time import perf_counter_ns

import penstock
from benchmarks.harness import (
    Bench,
    Row,
    answer,
    child,
    claim_memory,
    microseconds,
    no_gc,
    percentile,
    some_values,
    take_turns,
)

WARM_UP = 200


def round_trip(bench: Bench) -> Iterator[Row]:
    """There and back over two logs, beside there and back over two pipes."""
    trips = bench.pick(10_000, 2_000)
    value = some_values(1)[0]

    def over_logs() -> float:
        with (
            bench.scratch() as path,
            penstock.open(path / "there") as there,
            penstock.open(path / "back") as back,
            child("latency", "logs", path) as partner,
        ):
            replies = back.follow("start")
            partner.answer()
            times = array("q")
            for _ in range(WARM_UP + trips):
                began = perf_counter_ns()
                there.append(value)
                next(replies).value  # noqa: B018
                times.append(perf_counter_ns() - began)
            if replies.position != len(times) + 1:
                raise RuntimeError(f"{len(times)} trips, but the replies are at {replies.position}")
        return percentile(sorted(times[WARM_UP:]), 0.5)

    def over_pipes() -> float:
        their_in, our_out = os.pipe()
        our_in, their_out = os.pipe()
        inherited = (their_in, their_out)
        try:
            with child("latency", "pipes", *inherited, fds=inherited) as partner:
                partner.answer()
                times = array("q")
                for _ in range(WARM_UP + trips):
                    began = perf_counter_ns()
                    os.write(our_out, value)
                    os.read(our_in, len(value))
                    times.append(perf_counter_ns() - began)
        finally:
            for fd in (*inherited, our_in, our_out):
                os.close(fd)
        return percentile(sorted(times[WARM_UP:]), 0.5)

    yield take_turns(bench, "round trip", over_logs, over_pipes).row(
        "round trip over two logs, p50",
        "ping-pong over two pipes, p50, the same 100 bytes",
        microseconds,
        better="lower",
        bar=1.5,
        aim=1,
        pages="warm",
        note="follow() as it is by default: it sleeps, it does not spin",
    )


def tail(bench: Bench) -> Iterator[Row]:
    """Each append timed by itself, over at least three rolls of 64 MiB segments."""
    value = some_values(1)[0]
    shares: list[float] = []
    middles: list[float] = []
    tails: list[float] = []
    worst = 0
    for i in range(bench.pick(5, 1)):
        claim_memory(bench)
        with bench.scratch() as path, penstock.open(path / "log") as log, no_gc():
            times = array("q", bytes(8 * 2_000_000))
            append = log.append
            for j in range(len(times)):
                began = perf_counter_ns()
                append(value)
                times[j] = perf_counter_ns() - began
            rolls = log.stats().segments - 1
        if rolls < 3:
            raise RuntimeError(f"the log rolled {rolls} times; at least 3 were meant")
        ordered = sorted(times)
        middles.append(percentile(ordered, 0.5))
        tails.append(percentile(ordered, 0.999))
        shares.append(tails[-1] / middles[-1])
        worst = max(worst, ordered[-1])
        bench.say(f"tail: round {i + 1}, p99.9 / p50 = {shares[-1]:.1f}, {rolls} rolls")
    yield Row(
        "append p99.9, across rolls",
        "p50 of the same appends",
        statistics.median(shares),
        min(shares),
        max(shares),
        better="lower",
        bar=20,
        aim=5,
        ours=microseconds(statistics.median(tails)),
        theirs=microseconds(statistics.median(middles)),
        pages="cold: a fresh log each round",
        note=f"the clock's own cost is left in; slowest append {worst / 1e6:.1f} ms",
        detail={"p50_ns": middles, "p999_ns": tails, "max_ns": worst},
    )


def _echo_logs(path: str) -> None:
    with penstock.open(f"{path}/there") as there, penstock.open(f"{path}/back") as back:
        requests = there.follow("start")
        answer("ready")
        for event in requests:
            back.append(event.value)


def _echo_pipes(their_in: int, their_out: int) -> None:
    answer("ready")
    while data := os.read(their_in, 100):
        os.write(their_out, data)


if __name__ == "__main__":
    gc.disable()
    if sys.argv[1] == "logs":
        _echo_logs(sys.argv[2])
    else:
        _echo_pipes(int(sys.argv[2]), int(sys.argv[3]))
