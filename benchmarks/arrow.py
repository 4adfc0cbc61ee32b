"""Arrow: scans into columns, beside single events and Parquet; columns into a log, beside a list.

As a program: the process that reads a log in batches and watches its memory.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import pyarrow as pa
from pyarrow import parquet

import penstock
from benchmarks.harness import (
    Bench,
    Row,
    answer,
    child,
    million_per_s,
    own_bytes,
    some_values,
    take_turns,
)
from benchmarks.peers import fill_log

COLUMNS = ["topic", "key", "value", "seq", "time"]
WARM = "warm: both were read once before"
FRAME_BYTES = 144
SHARE = 100  # a selective scan keeps one row in this many


def _fill(log: penstock.Log, count: int) -> None:
    """Events with keys and topics, in batches of 10 000."""
    values = some_values(10_000)
    keys = [b"user-%d" % (i % 1000) for i in range(10_000)]
    topics = ["clicks", "orders", "views"]
    for start in range(0, count, 10_000):
        log.extend(
            pa.table(
                {
                    "value": values,
                    "key": keys,
                    "topic": [topics[i % 3] for i in range(10_000)],
                    "time": pa.array(range(start, start + 10_000), pa.timestamp("ms")),
                }
            )
        )


def _rate(count: int, work: Callable[[], object]) -> Callable[[], float]:
    def run() -> float:
        began = perf_counter()
        made = work()
        seconds = perf_counter() - began
        del made  # what was made is freed after the clock has stopped
        return count / seconds

    return run


def scan(bench: Bench) -> Iterator[Row]:
    """All events as a table of topic, key, value, seq and time."""
    count = bench.pick(1_000_000, 200_000)
    with bench.scratch() as path, penstock.open(path / "log") as log:
        _fill(log, count)

        def fields() -> None:
            for e in log:
                (e.topic, e.key, e.value, e.seq, e.time_ns)  # noqa: B018

        table = log.scan(columns=COLUMNS).to_arrow()
        parquet.write_table(table, path / "rows.parquet", compression="none")
        if not parquet.read_table(path / "rows.parquet").equals(table):
            raise RuntimeError("both sides do not read the same rows")
        del table
        ours = _rate(count, lambda: log.scan(columns=COLUMNS).to_arrow())
        fields()
        yield take_turns(bench, "scan", ours, _rate(count, fields)).row(
            "scan().to_arrow() of five columns",
            "for event in log, the same five fields",
            million_per_s,
            bar=4,
            pages=WARM,
        )
        yield take_turns(
            bench, "scan, bare loop", ours, _rate(count, lambda: deque(log, maxlen=0))
        ).row(
            "scan().to_arrow() of five columns",
            "for event in log, no field read",
            million_per_s,
            pages=WARM,
        )
        theirs = _rate(count, lambda: parquet.read_table(path / "rows.parquet"))
        yield take_turns(bench, "scan, parquet", ours, theirs).row(
            "scan().to_arrow() of five columns",
            "pyarrow.parquet.read_table, uncompressed, all cores",
            million_per_s,
            bar=0.5,
            pages=WARM,
        )


def extend_arrow(bench: Bench) -> Iterator[Row]:
    """Different events in batches of 10 000 and of 65 536, as Arrow arrays and as lists."""
    for rows in (10_000, 65_536):
        yield _extend_arrow(bench, rows)


def _extend_arrow(bench: Bench, rows: int) -> Row:
    batches = bench.pick(2_000_000, 400_000) // rows
    # No object comes twice: real programs do not append a list that the last call has left in
    # the cache.
    lists = [some_values(rows) for _ in range(batches)]
    arrays = [pa.array(values, pa.binary()) for values in lists]

    def run(given: list[Any]) -> float:
        with bench.scratch() as path, penstock.open(path / "log") as log:
            extend = log.extend
            began = perf_counter()
            for batch in given:
                extend(batch)
            return batches * rows / (perf_counter() - began)

    size = f"{rows:,}".replace(",", " ")
    return take_turns(bench, f"extend arrow, {size}", lambda: run(arrays), lambda: run(lists)).row(
        f"extend, Arrow arrays of {size}",
        f"extend, lists of {size}",
        million_per_s,
        bar=1.2,
        pages="cold: a fresh log each round",
    )


def select(bench: Bench) -> Iterator[Row]:
    """A hundredth of the events, by time and by topic, beside all of them."""
    count = bench.pick(2_000_000, 400_000)
    kept = count // SHARE
    values = some_values(1000)
    first = count // 2
    with bench.scratch() as path, penstock.open(path / "log") as log:
        for start in range(0, count, 1000):
            rare = first <= start < first + kept
            times = pa.array(range(start, start + 1000), pa.timestamp("ms"))
            table = pa.table({"value": values, "time": times})
            log.extend(table, topic="rare" if rare else "common")
        whole = _rate(1, lambda: log.scan(columns=COLUMNS).to_arrow())
        time: dict[str, Any] = {"since": first * 10**6, "until": (first + kept) * 10**6}
        for what, which in (("time", time), ("topic", {"topic": "rare"})):
            scan = log.scan(columns=COLUMNS, **which)
            if scan.to_arrow().num_rows != kept:
                raise RuntimeError(f"by {what} the scan keeps another number of rows")
            yield take_turns(bench, f"select by {what}", _rate(1, scan.to_arrow), whole).row(
                f"scan that keeps 1 % by {what}, in one stretch",
                "scan of the whole log",
                lambda rate: f"{1000 / rate:.2f} ms",
                bar=20,
                pages=WARM,
            )


def stream_memory(bench: Bench) -> Iterator[Row]:
    """Peak memory of a process that reads a log with to_batches()."""
    peaks = []
    for nbytes in (10_000_000, bench.pick(2_000_000_000, 300_000_000)):
        with bench.scratch() as path:
            bench.say(f"batches: making a log of {nbytes / 1e6:.0f} MB")
            with penstock.open(path / "log") as log:
                fill_log(log, some_values(10_000), nbytes // FRAME_BYTES // 10_000 * 10_000)
                count = len(log)
            with child("arrow", path / "log") as reader:
                peak, rows = reader.answer()
            if rows != count:
                raise RuntimeError(f"{rows} rows of {count}")
            peaks.append(int(peak))
    yield Row(
        f"to_batches(), peak memory of the process, log of {nbytes / 1e9:.1f} GB",
        "the same with a log of 10 MB",
        peaks[1] / peaks[0],
        better="lower",
        bar=1.2,
        ours=f"{peaks[1] / 1e6:.0f} MB",
        theirs=f"{peaks[0] / 1e6:.0f} MB",
        pages="warm",
        note="maximum resident set, pages of the log included",
        detail={"peaks": peaks},
    )


def _stream(path: Path) -> None:
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the parent
    rows = 0
    with penstock.open(path, mode="r") as log:
        for batch in log.scan(columns=COLUMNS).to_batches():
            rows += batch.num_rows
    answer([own_bytes("status", "VmHWM"), rows])


if __name__ == "__main__":
    _stream(Path(sys.argv[1]))
