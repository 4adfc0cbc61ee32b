"""Reading from one process: in order, and by seq at random, beside LMDB."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import lmdb

import penstock
from benchmarks.harness import Bench, Row, million_per_s, some_values, take_turns
from benchmarks.peers import fill_lmdb, fill_log, open_lmdb

PAGES = "warm: both were read once before"


@contextmanager
def _filled(bench: Bench, count: int) -> Iterator[tuple[penstock.Log, lmdb.Environment]]:
    """A log and an environment that hold the same values."""
    values = some_values(10_000)
    with (
        bench.scratch() as path,
        penstock.open(path / "log") as log,
        open_lmdb(path / "lmdb") as environment,
    ):
        fill_log(log, values, count)
        fill_lmdb(environment, values, count)
        yield log, environment


def iterate(bench: Bench) -> Iterator[Row]:
    """Every event in order, its value as bytes."""
    count = bench.pick(2_000_000, 300_000)
    with _filled(bench, count) as (log, environment):

        def ours() -> float:
            began = perf_counter()
            for event in log:
                event.value  # noqa: B018
            return count / (perf_counter() - began)

        def theirs() -> float:
            with environment.begin() as txn:
                began = perf_counter()
                for _ in txn.cursor().iternext(keys=False, values=True):
                    pass
                return count / (perf_counter() - began)

        deque(log, maxlen=0)
        theirs()
        yield take_turns(bench, "iterate", ours, theirs).row(
            "for event in log, value read",
            "lmdb cursor, iternext(keys=False, values=True)",
            million_per_s,
            bar=1.5,
            aim=2.5,
            pages=PAGES,
        )


def lookup(bench: Bench) -> Iterator[Row]:
    """Events by seq, at random, value as bytes."""
    count = bench.pick(2_000_000, 300_000)
    seqs = random.Random(7).choices(range(1, count + 1), k=bench.pick(400_000, 100_000))
    encoded = [seq.to_bytes(8, "big") for seq in seqs]
    with _filled(bench, count) as (log, environment):

        def ours() -> float:
            began = perf_counter()
            for seq in seqs:
                log[seq].value  # noqa: B018
            return len(seqs) / (perf_counter() - began)

        with environment.begin() as txn:

            def theirs() -> float:
                get = txn.get
                began = perf_counter()
                for key in encoded:
                    get(key)
                return len(seqs) / (perf_counter() - began)

            ours()
            theirs()
            yield take_turns(bench, "lookup", ours, theirs).row(
                "log[seq], random, value read",
                "lmdb get, one read transaction kept open",
                million_per_s,
                bar=1,
                aim=2,
                pages=PAGES,
            )
