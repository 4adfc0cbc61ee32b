"""How long one thing takes: a round trip between two processes, and the tail of append.

As a program: the partner that returns what it gets, over two logs or over two pipes.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
from array import array
from collections.abc import Callable, Iterator
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
    """Round trips over two logs, beside round trips over two pipes."""
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


def _each_timed(call: Callable[[bytes], object], value: bytes) -> array[int]:
    """How long each of two million calls takes, one after the other."""
    times = array("q", bytes(8 * 2_000_000))
    for j in range(len(times)):
        began = perf_counter_ns()
        call(value)
        times[j] = perf_counter_ns() - began
    return times


def tail(bench: Bench) -> Iterator[Row]:
    """Each append timed separately, over at least three rolls of 64 MiB segments.

    Beside it the same loop with a call that takes as long and touches nothing: the delays that the
    machine itself causes.
    """
    value = some_values(1)[0]
    quiet = bytes(150).count
    appends: list[array[int]] = []
    nothing: list[array[int]] = []
    for i in range(bench.pick(5, 1)):
        claim_memory(bench)
        with bench.scratch() as path, penstock.open(path / "log") as log, no_gc():
            appends.append(array("q", sorted(_each_timed(log.append, value))))
            rolls = log.stats().segments - 1
        if rolls < 3:
            raise RuntimeError(f"the log rolled {rolls} times; at least 3 were meant")
        with no_gc():
            nothing.append(array("q", sorted(_each_timed(quiet, b"x"))))
        shares = [_tail_of(times) for times in (appends[-1], nothing[-1])]
        bench.say(
            f"tail: round {i + 1}, p99.9 / p50 = {shares[0]:.1f}, {rolls} rolls; "
            f"of the loop without a log {shares[1]:.1f}"
        )
    yield _tail_row("append p99.9, across rolls", appends, bar=20, aim=5)
    yield _tail_row("the same loop without a log: what the machine does to it", nothing)


def _tail_of(ordered: array[int]) -> float:
    return percentile(ordered, 0.999) / percentile(ordered, 0.5)


def _tail_row(
    work: str, rounds: list[array[int]], bar: float | None = None, aim: float | None = None
) -> Row:
    shares = [_tail_of(ordered) for ordered in rounds]
    middles = [percentile(ordered, 0.5) for ordered in rounds]
    tails = [percentile(ordered, 0.999) for ordered in rounds]
    worst = max(ordered[-1] for ordered in rounds)
    return Row(
        work,
        "p50 of the same calls",
        statistics.median(shares),
        min(shares),
        max(shares),
        better="lower",
        bar=bar,
        aim=aim,
        ours=microseconds(statistics.median(tails)),
        theirs=microseconds(statistics.median(middles)),
        pages="cold: a fresh log each round" if bar else "",
        note=f"the clock's own cost is left in; slowest call {worst / 1e6:.1f} ms",
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
