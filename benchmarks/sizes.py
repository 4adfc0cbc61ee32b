"""Larger values: appending and reading as a share of the speed of a plain copy in memory."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from time import perf_counter

import penstock
from benchmarks.harness import Bench, Row, gib_per_s, some_values, take_turns

SIZES = (1 << 10, 64 << 10, 1 << 20)


def sizes(bench: Bench) -> Iterator[Row]:
    """Values of 1 KiB, 64 KiB and 1 MiB."""
    for nbytes in SIZES:
        yield from _one_size(bench, nbytes)


def _one_size(bench: Bench, nbytes: int) -> Iterator[Row]:
    total = bench.pick(512 << 20, 128 << 20)
    count = total // nbytes
    values = some_values(min(count, max(4, (8 << 20) // nbytes)), nbytes)
    order = [values[i % len(values)] for i in range(count)]
    name = f"{nbytes >> 10} KiB" if nbytes < 1 << 20 else f"{nbytes >> 20} MiB"

    with mmap.mmap(-1, total) as area:
        for at in range(0, total, mmap.PAGESIZE):
            area[at] = 1  # the timed copies cause no page faults

        def append() -> float:
            with bench.scratch() as path, penstock.open(path / "log") as log:
                append_one = log.append
                append_one(b"")
                began = perf_counter()
                for value in order:
                    append_one(value)
                return total / (perf_counter() - began)

        def copy_in() -> float:
            at = 0
            began = perf_counter()
            for value in order:
                area[at : at + nbytes] = value
                at += nbytes
            return total / (perf_counter() - began)

        yield take_turns(bench, f"append {name}", append, copy_in).row(
            f"append values of {name}",
            "slice copies of the same values into memory that has its pages",
            gib_per_s,
            pages="the log's are cold, the copy's warm",
        )

        with bench.scratch() as path, penstock.open(path / "log") as log:
            for value in order:
                log.append(value)

            def read() -> float:
                began = perf_counter()
                for event in log:
                    event.value  # noqa: B018
                return total / (perf_counter() - began)

            def copy_out() -> float:
                began = perf_counter()
                for at in range(0, total, nbytes):
                    area[at : at + nbytes]
                return total / (perf_counter() - began)

            read()
            yield take_turns(bench, f"read {name}", read, copy_out).row(
                f"read values of {name}",
                "slices of as much memory that has its pages, each a new bytes object",
                gib_per_s,
                pages="warm",
            )
