"""Spark: logs as tables, streams and sinks, beside Spark's own Parquet, rate source and rows.

One local Spark of two cores serves all of them. Its JVM is warm when the clock runs.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

import penstock
import penstock.spark
from benchmarks.harness import ROOT, VALUE_BYTES, Bench, Pairs, Row, Side, million_per_s, take_turns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WARM = "warm: both were read once before"
COLUMNS = "topic,offset,value"
TOPICS = ["clicks", "orders", "views"]
QUESTION = ["count(*)", "sum(length(value))", "max(offset)"]
NOT_SYNCED = "into Parquet, default compression, not synced"
WARM_UPS = 3  # of both sides, after which Java has compiled the important code
BATCHES = 10  # of a stream; the median is used


@cache
def session() -> SparkSession:
    """The Spark of this process."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(ROOT)  # workers find the row-by-row source there
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    spark.dataSource.register(RowByRow)
    return spark


def fill(path: Path, count: int) -> None:
    """A log of distinct values that do not compress, with keys, topics and times."""
    step = 100_000
    source = np.random.default_rng(7)
    ends = pa.py_buffer(np.arange(0, (step + 1) * VALUE_BYTES, VALUE_BYTES, dtype=np.int32))
    topics = pa.array([TOPICS[i % 3] for i in range(step)])
    keys = pa.array([b"user-%d" % (i % 1000) for i in range(step)])
    with penstock.open(path) as log:
        for start in range(0, count, step):
            data = pa.py_buffer(source.bytes(step * VALUE_BYTES))
            values = pa.Array.from_buffers(pa.binary(), step, [None, ends, data])
            times = pa.array(np.arange(start, start + step), pa.timestamp("ms"))
            table = pa.table({"value": values, "topic": topics, "key": keys, "time": times})
            log.load(table)


class RowByRow(DataSource):
    """A Python source that yields one tuple for each event."""

    @classmethod
    def name(cls) -> str:
        """For ``format()``."""
        return "row-by-row"

    def schema(self) -> str:
        """The same columns that our source is asked for."""
        if "columns" in self.options:
            return "topic string, offset long, value binary"
        return (
            "key binary, value binary, topic string, partition int, offset long, "
            "timestamp timestamp, timestampType int, log string"
        )

    def reader(self, schema: Any) -> DataSourceReader:
        """Of the same log, in as many splits."""
        kind = _NarrowRows if "columns" in self.options else _Rows
        return kind(self.options["path"], int(self.options["splits"]))


class _Rows(DataSourceReader):
    """All columns that the source has by default."""

    def __init__(self, path: str, splits: int) -> None:
        self._path = path
        self._splits = splits

    def partitions(self) -> list[InputPartition]:
        with penstock.open(self._path, mode="r") as log:
            end = log.last_seq + 1
        cuts = [1 + (end - 1) * i // self._splits for i in range(self._splits + 1)]
        return [InputPartition((cuts[i], cuts[i + 1])) for i in range(self._splits)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        path = self._path
        with penstock.open(path, mode="r") as log:
            for event in log.read(*partition.value):
                yield (
                    event.key,
                    event.value,
                    event.topic,
                    0,
                    event.seq,
                    event.time,
                    1 if event.time_ns == event.append_ns else 0,
                    path,
                )


class _NarrowRows(_Rows):
    """Three columns."""

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        with penstock.open(self._path, mode="r") as log:
            for event in log.read(*partition.value):
                yield event.topic, event.seq, event.value


def _load(path: Path, **options: str) -> DataFrame:
    given = {"columns": COLUMNS, **options}
    return session().read.format("penstock").options(**given).load(str(path))


def _asked(frame: DataFrame) -> list[Any]:
    return sorted(frame.groupBy("topic").agg(*map(_expr, QUESTION)).collect())


def _expr(text: str) -> Any:
    from pyspark.sql import functions

    return functions.expr(text)


def table(bench: Bench) -> Iterator[Row]:
    """An aggregation over a log and over Parquet; a count by batches and by rows."""
    count = bench.pick(2_000_000, 400_000)
    with bench.scratch() as path:
        fill(path / "log", count)
        _load(path / "log").write.parquet(str(path / "parquet"))

        def ours() -> list[Any]:
            return _asked(_load(path / "log"))

        def theirs() -> list[Any]:
            return _asked(session().read.parquet(str(path / "parquet")))

        if ours() != theirs():
            raise RuntimeError("both sides do not read the same rows")
        yield _warm_turns(bench, "spark aggregate", _rate(count, ours), _rate(count, theirs)).row(
            f"Spark: group by, {count / 1e6:.1f} M rows of a log",
            "spark.read.parquet, default compression",
            million_per_s,
            bar=0.7,
            pages=WARM,
        )
        yield from _counts(bench, path / "log", count)


def _counts(bench: Bench, log: Path, count: int) -> Iterator[Row]:
    """``load(path).count()``, and the same of three columns, by batches and by rows."""

    def counted(kind: str, **given: str) -> int:
        return session().read.format(kind).options(**given).load(str(log)).count()

    for what, given, bar in (
        ("all columns", {}, 4),
        (f"columns {COLUMNS.replace(',', ', ')}", {"columns": COLUMNS}, None),
    ):
        ours = partial(counted, "penstock", **given)
        theirs = partial(counted, "row-by-row", splits="2", **given)
        for _ in range(WARM_UPS):
            if ours() != theirs():
                raise RuntimeError("both sides do not count the same rows")
        yield take_turns(
            bench, f"spark count, {what}", _rate(count, ours), _rate(count, theirs)
        ).row(
            f"Spark: count, {what}",
            "a Python source that yields tuples",
            million_per_s,
            bar=bar,
            pages=WARM,
        )


def _warm_turns(bench: Bench, what: str, ours: Side, theirs: Side) -> Pairs:
    """Both sides in turn, after Java has compiled them."""
    for _ in range(WARM_UPS):
        ours(), theirs()
    return take_turns(bench, what, ours, theirs)


def _rate(count: int, work: Any) -> Any:
    def run() -> float:
        began = perf_counter()
        work()
        return count / (perf_counter() - began)

    return run


def _noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _streamed(path: Path, columns: str = COLUMNS) -> DataFrame:
    reader = session().readStream.format("penstock").option("startingOffsets", "earliest")
    return reader.option("columns", columns).load(str(path))


def _into_noop(frame: DataFrame, scratch: Path, **trigger: Any) -> Any:
    shutil.rmtree(scratch, ignore_errors=True)
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(scratch))
    return writer.trigger(**trigger).start()


def stream(bench: Bench) -> Iterator[Row]:
    """All of a log as one batch of a stream, beside the same as a table."""
    count = bench.pick(2_000_000, 400_000)
    with bench.scratch() as path:
        fill(path / "log", count)

        def available_now() -> float:
            query = _into_noop(_streamed(path / "log"), path / "checkpoint", availableNow=True)
            query.awaitTermination()
            [batch] = [p for p in query.recentProgress if p["numInputRows"]]
            if batch["numInputRows"] != count:
                raise RuntimeError("there must be one batch")
            return float(count / (batch["durationMs"]["triggerExecution"] / 1000))

        as_table = _rate(count, lambda: _noop(_load(path / "log")))
        yield _warm_turns(bench, "spark stream", available_now, as_table).row(
            f"Spark: AvailableNow, {count / 1e6:.1f} M rows in one batch",
            "the same rows as a table",
            million_per_s,
            bar=0.6,
            pages=WARM,
            note="the batch as its progress has it; starting a query takes Spark a second more",
        )


def micro_batch(bench: Bench) -> Iterator[Row]:
    """A small batch of a stream, beside one of Spark's rate source."""
    batches = bench.pick(BATCHES, 4)

    def small_batches(query: Any, feed: Any) -> float:
        seen: dict[int, int] = {}
        deadline = monotonic() + 120
        while len(seen) < batches + 2 and monotonic() < deadline:
            feed()
            for p in query.recentProgress:
                if p["numInputRows"]:
                    seen[p["batchId"]] = p["durationMs"]["triggerExecution"]
            sleep(0.5)
        query.stop()
        return statistics.median(list(seen.values())[2:])

    with bench.scratch() as path, penstock.open(path / "log") as log:
        log.append(b"first")

        def ours() -> float:
            query = _into_noop(
                _streamed(path / "log"), path / "checkpoint", processingTime="0 seconds"
            )
            return small_batches(query, lambda: log.extend([b"x" * VALUE_BYTES] * 10))

        def theirs() -> float:
            frame = session().readStream.format("rate").option("rowsPerSecond", "20").load()
            query = _into_noop(frame, path / "checkpoint", processingTime="0 seconds")
            return small_batches(query, lambda: None)

        ours(), theirs()
        yield take_turns(bench, "spark micro-batch", ours, theirs).row(
            "Spark: a micro-batch of a few rows, median",
            "the rate source",
            lambda ms: f"{ms:.0f} ms",
            better="lower",
            bar=1.5,
        )


def sink(bench: Bench) -> Iterator[Row]:
    """Rows of a log into another one and into Parquet, as a stream; and from Spark's memory."""
    count = bench.pick(2_000_000, 400_000)
    with bench.scratch() as path:
        fill(path / "log", count)

        def copy(kind: str) -> float:
            for name in ("copy", "checkpoint"):
                shutil.rmtree(path / name, ignore_errors=True)
            frame = _streamed(path / "log", "key,value,topic")
            writer = frame.writeStream.format(kind).option(
                "checkpointLocation", str(path / "checkpoint")
            )
            began = perf_counter()
            writer.trigger(availableNow=True).start(str(path / "copy")).awaitTermination()
            return count / (perf_counter() - began)

        copy("penstock")
        with penstock.open(path / "copy", mode="r") as log:
            if len(log) != count:
                raise RuntimeError("not all rows arrived")

        sides = partial(copy, "penstock"), partial(copy, "parquet")
        with _tuned():
            yield _warm_turns(bench, "spark sink, tuned", *sides).row(
                f"Spark, tuned: {count / 1e6:.1f} M rows of a log as a stream into a log, synced",
                NOT_SYNCED,
                million_per_s,
                bar=1,
                note="reading the rows, and starting the query, counts on both sides",
            )
        yield _warm_turns(bench, "spark sink, not tuned", *sides).row(
            "Spark, not tuned: the same", NOT_SYNCED, million_per_s
        )
        frame = _load(path / "log", columns="key,value,topic").persist()
        frame.count()

        def write(kind: str) -> float:
            shutil.rmtree(path / "copy", ignore_errors=True)
            began = perf_counter()
            frame.write.format(kind).mode("append").save(str(path / "copy"))
            return count / (perf_counter() - began)

        with _tuned():
            yield _warm_turns(
                bench, "spark table sink", partial(write, "penstock"), partial(write, "parquet")
            ).row(
                "Spark, tuned: the same rows from its memory as one table into a log, synced",
                NOT_SYNCED,
                million_per_s,
            )
        frame.unpersist()


@contextmanager
def _tuned() -> Iterator[None]:
    """Use the settings that docs/spark.md advises for the length of the block."""
    chosen = penstock.spark.tune(session())
    try:
        yield
    finally:
        for name in chosen:
            session().conf.unset(name)


def memory(bench: Bench) -> Iterator[Row]:
    """The largest Python worker while Spark reads a log."""
    peaks = []
    for count in (100_000, bench.pick(14_000_000, 2_000_000)):
        with bench.scratch() as path:
            bench.say(f"worker memory: making a log of {count / 1e6:.1f} M events")
            fill(path / "log", count)
            with _watched() as peak:
                _noop(_load(path / "log", columns="key,value,topic,offset,timestamp,log"))
            peaks.append(peak[0])
    yield Row(
        f"Spark: largest Python worker, log of {count * 160 / 1e9:.1f} GB",
        "the same with a log of 16 MB",
        peaks[1] / 1e6,
        unit="MB",
        better="lower",
        bar=300,
        ours=f"{peaks[1] / 1e6:.0f} MB",
        theirs=f"{peaks[0] / 1e6:.0f} MB",
        note="maximum resident set, pages of the log included",
        detail={"peaks": peaks},
    )


@contextmanager
def _watched() -> Iterator[list[int]]:
    """Measure the peak of the largest Python worker of this process's Spark during the block."""
    peak = [0]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            peak[0] = max([peak[0], *map(_resident_bytes, _workers())])

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def _workers() -> list[int]:
    """Processes below this one that are Spark's Python workers."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = Path(f"/proc/{name}/stat").read_text()
                words = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            is_worker = b"pyspark" in words and b"python" in words.split(b"\0")[0]
            parents[int(name)] = (int(stat.rpartition(")")[2].split()[1]), is_worker)

    def below(pid: int) -> bool:
        while pid in parents:
            pid = parents[pid][0]
            if pid == os.getpid():
                return True
        return False

    return [pid for pid, (_, is_worker) in parents.items() if is_worker and below(pid)]


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    except OSError:
        return 0
