"""Appending from one process: one call per event, and batches, beside LMDB."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any

import lmdb

import penstock
from benchmarks.harness import Bench, Row, microseconds, million_per_s, some_values, take_turns
from benchmarks.peers import keys, open_lmdb

PAGES = "cold: a fresh log and a fresh environment each round"
BATCH = 10_000


def append(bench: Bench) -> Iterator[Row]:
    """One call per event, and one LMDB transaction per event."""
    count = bench.pick(1_000_000, 200_000)
    values = some_values(1000) * (count // 1000)
    ordered = keys(1, count)

    def ours() -> float:
        with bench.scratch() as path, penstock.open(path / "log") as log:
            log.append(values[0])
            return _append_all(log, values)

    def theirs() -> float:
        with bench.scratch() as path, open_lmdb(path) as environment:
            return _put_as_documented(environment, ordered, values)

    def leanest() -> float:
        with bench.scratch() as path, open_lmdb(path) as environment:
            return _put_leanest(environment, ordered, values)

    yield take_turns(bench, "append", ours, theirs).row(
        "append, one call per event",
        "lmdb put, one per transaction (`with env.begin(write=True) as txn`)",
        million_per_s,
        bar=8,
        aim=12,
        pages=PAGES,
    )
    yield take_turns(bench, "append, leanest lmdb", ours, leanest).row(
        "append, beside lmdb at its leanest",
        "lmdb put, one per transaction, begin and commit called with positional arguments",
        million_per_s,
        pages=PAGES,
    )


def _append_all(log: penstock.Log, values: list[bytes]) -> float:
    append_one = log.append
    began = perf_counter()
    for value in values:
        append_one(value)
    return len(values) / (perf_counter() - began)


def _put_as_documented(
    environment: lmdb.Environment, ordered: list[bytes], values: list[bytes]
) -> float:
    begin = environment.begin
    began = perf_counter()
    for key, value in zip(ordered, values, strict=True):
        with begin(write=True) as txn:
            txn.put(key, value, append=True)
    return len(values) / (perf_counter() - began)


def _put_leanest(environment: lmdb.Environment, ordered: list[bytes], values: list[bytes]) -> float:
    begin = environment.begin
    began = perf_counter()
    for key, value in zip(ordered, values, strict=True):
        txn = begin(None, None, True)
        txn.put(key, value, True, True, True)
        txn.commit()
    return len(values) / (perf_counter() - began)


def extend(bench: Bench) -> Iterator[Row]:
    """Lists of 10 000 values, and one LMDB transaction for each list."""
    batches = bench.pick(200, 40)
    values = some_values(BATCH)

    def ours() -> float:
        with bench.scratch() as path, penstock.open(path / "log") as log:
            log.append(values[0])
            began = perf_counter()
            for _ in range(batches):
                log.extend(values)
            return batches * BATCH / (perf_counter() - began)

    def theirs() -> float:
        spent = 0.0
        with bench.scratch() as path, open_lmdb(path) as environment:
            for batch in range(batches):
                pairs = list(zip(keys(1 + batch * BATCH, BATCH), values, strict=True))
                began = perf_counter()
                with environment.begin(write=True) as txn:
                    txn.cursor().putmulti(pairs, append=True)
                spent += perf_counter() - began
        return batches * BATCH / spent

    yield take_turns(bench, "extend", ours, theirs).row(
        "extend, lists of 10 000",
        "lmdb putmulti(append=True), one transaction per 10 000",
        million_per_s,
        bar=6,
        aim=9,
        pages=PAGES,
    )


def entries(bench: Bench) -> Iterator[Row]:
    """Entries with a key and a topic each, beside the same number of single appends."""
    count = bench.pick(300_000, 60_000)
    objects = [{"id": i, "user": f"user-{i % 97}", "total": i / 8} for i in range(BATCH)]
    for codec, values in (("bytes", some_values(BATCH)), ("json", objects)):
        yield _entries(bench, codec, values, count)


def _entries(bench: Bench, codec: str, values: Sequence[Any], count: int) -> Row:
    made = [penstock.Entry(value, key=b"key", topic="topic") for value in values]

    def ours() -> float:
        with bench.scratch() as path, penstock.open(path / "log", codec=codec) as log:
            log.append(values[0])
            began = perf_counter()
            for _ in range(count // BATCH):
                log.extend(made)
            return count / (perf_counter() - began)

    def theirs() -> float:
        with bench.scratch() as path, penstock.open(path / "log", codec=codec) as log:
            append_one = log.append
            append_one(values[0])
            began = perf_counter()
            for _ in range(count // BATCH):
                for value in values:
                    append_one(value, key=b"key", topic="topic")
            return count / (perf_counter() - began)

    return take_turns(bench, f"entries, {codec}", ours, theirs).row(
        f"extend of entries with a key and a topic, codec {codec}",
        "append(key=, topic=), one call per event",
        million_per_s,
        bar=2,
        pages=PAGES,
    )


def producers(bench: Bench) -> Iterator[Row]:
    """Appends with a producer, which makes a repeat a no-op, beside plain ones."""
    count = bench.pick(300_000, 60_000)
    values = some_values(1000) * (count // 1000)

    def ours() -> float:
        with bench.scratch() as path, penstock.open(path / "log") as log:
            append_one = log.append
            append_one(values[0])
            began = perf_counter()
            for n, value in enumerate(values):
                append_one(value, producer=("p", n))
            return (perf_counter() - began) / count * 1e9

    def theirs() -> float:
        with bench.scratch() as path, penstock.open(path / "log") as log:
            log.append(values[0])
            return 1e9 / _append_all(log, values)

    yield take_turns(bench, "producers", ours, theirs).row(
        "append(producer=)",
        "append, one call per event",
        microseconds,
        better="lower",
        bar=4,
        pages=PAGES,
    )


def given_back(bench: Bench) -> Iterator[Row]:
    """Events of one log appended to another, beside the same with values only."""
    count = bench.pick(500_000, 100_000)

    def side(source: penstock.Log, target: penstock.Log, *, whole: bool) -> float:
        began = perf_counter()
        for start in range(1, count, BATCH):
            events = source.read(start, start + BATCH)
            target.extend(events if whole else [event.value for event in events])
        return count / (perf_counter() - began)

    def turn(*, whole: bool) -> float:
        with (
            bench.scratch() as path,
            penstock.open(path / "a") as source,
            penstock.open(path / "b") as target,
        ):
            source.load(some_values(1000) * (count // 1000), topic="topic")
            return side(source, target, whole=whole)

    yield take_turns(bench, "given back", lambda: turn(whole=True), lambda: turn(whole=False)).row(
        "extend(a.read()): events with all they have",
        "extend([event.value for event in a.read()])",
        million_per_s,
        pages=PAGES,
    )
