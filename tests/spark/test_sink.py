"""What a real Spark writes into a log, as a table and as a stream, read back without Spark."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from tests.support.wait import wait_for

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException, StreamingQueryException

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SCHEMA = (
    "value {value}, key {key}, headers array<struct<key:string,value:binary>>, topic string, "
    "timestamp timestamp"
)
WHEN = datetime.datetime(2026, 11, 16, 12, 30, 0, 123456, tzinfo=datetime.UTC)
WHEN_NS = int(WHEN.timestamp()) * 10**9 + 123456000
PAIRS = [("a", b"1"), ("b", None), ("a", b""), ("", b"\xff")]
ROWS: list[tuple[Any, ...]] = [
    ("plain", "k", None, "t", None),
    ("", "", [], "", WHEN),
    ("ü", None, PAIRS, None, datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)),
    (None, "gone", [("why", None)], "t", WHEN),
    ("x" * 100_000, "k" * 1024, None, "t" * 1024, WHEN),
]


def rows_of(path: Path) -> list[tuple[Any, ...]]:
    """The events of a log, as plain values."""
    with penstock.open(path, "r") as log:
        return [(e.value, e.key, e.headers, e.topic, e.time_ns) for e in log]


def values(path: Path) -> list[str]:
    """The values of a log, as text."""
    with penstock.open(path, "r") as log:
        return [(e.value or b"").decode() for e in log]


def left(path: Path) -> list[str]:
    """What is staged in a log's directory."""
    return os.listdir(path / "staging")


def write(frame: DataFrame, path: Path | str, **options: object) -> None:
    """Append a table to a log."""
    writer = frame.write.format("penstock").mode("append")
    for name, value in options.items():
        writer = writer.option(name, str(value))
    writer.save(str(path))


def numbers(spark: SparkSession, count: int, parts: int = 2) -> DataFrame:
    """Rows with the values 0 to ``count``, in that order."""
    return spark.range(0, count, 1, parts).selectExpr("cast(id as string) value")


def as_bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


@pytest.mark.parametrize("value", ["string", "binary"])
@pytest.mark.parametrize("key", ["string", "binary"])
def test_every_column(spark: SparkSession, path: Path, value: str, key: str) -> None:
    """Every column arrives as it is, nulls and empty values apart, whether text or bytes."""
    frame = spark.createDataFrame(ROWS, SCHEMA.format(value="string", key="string"))
    frame = frame.selectExpr(
        f"cast(value as {value}) value", f"cast(key as {key}) key", "headers", "topic", "timestamp"
    )
    before_ns = time.time_ns()
    write(frame.coalesce(1), path)
    after_ns = time.time_ns()
    found = rows_of(path)
    assert before_ns <= found[0][-1] <= after_ns  # a row without a time has that of its append
    assert found == [
        (b"plain", b"k", (), "t", found[0][-1]),
        (b"", b"", (), "", WHEN_NS),
        ("ü".encode(), None, tuple(PAIRS), "", 0),
        (None, b"gone", (("why", None),), "t", WHEN_NS),
        (b"x" * 100_000, b"k" * 1024, (), "t" * 1024, WHEN_NS),
    ]
    assert left(path) == []


def test_any_columns_in_any_order(spark: SparkSession, path: Path) -> None:
    """A table may have any of the columns beside the value, in any order."""
    row = ("v", "k", [("h", b"1")], "t", WHEN)
    frame = spark.createDataFrame([row], SCHEMA.format(value="string", key="string")).coalesce(1)
    parts = {"key": b"k", "headers": (("h", b"1"),), "topic": "t", "timestamp": WHEN_NS}
    none = {"key": None, "headers": (), "topic": ""}
    chosen = [(), *((name,) for name in parts), tuple(parts), ("topic", "key")]
    for names in chosen:
        write(frame.select(*reversed(names), "value"), path)
    for names, (value, *others, when) in zip(chosen, rows_of(path), strict=True):
        wanted = {**none, **{name: parts[name] for name in names}}
        assert value == b"v"
        assert others == [wanted["key"], wanted["headers"], wanted["topic"]]
        assert (when == WHEN_NS) == ("timestamp" in names)


def test_topics(spark: SparkSession, path: Path) -> None:
    """The option overrides the column, and a log may have rows with, without and of many."""
    frame = spark.createDataFrame([("a", "x"), ("b", None)], "value string, topic string")
    frame = frame.coalesce(1)
    write(frame, path)
    write(frame, path, topic="all")
    write(frame.select("value"), path, topic="all")
    write(frame.select("value"), path)
    with penstock.open(path, "r") as log:
        assert [e.topic for e in log] == ["x", "", "all", "all", "all", "all", "", ""]


def test_many_partitions(spark: SparkSession, path: Path) -> None:
    """Partitions come in their order and rows in theirs, also those of many Arrow batches."""
    write(numbers(spark, 200, parts=50), path)
    write(numbers(spark, 60_000, parts=3), path)
    assert values(path) == [*map(str, range(200)), *map(str, range(60_000))]
    with penstock.open(path, "r") as log:
        assert log.verify().ok
    assert left(path) == []


def test_nothing_to_write(spark: SparkSession, path: Path) -> None:
    """A table without rows makes an empty log, and adds nothing to one that is not empty."""
    write(numbers(spark, 0), path)
    assert values(path) == [] and left(path) == []
    write(numbers(spark, 3), path)
    write(numbers(spark, 3).where("value = 'none'"), path)
    assert values(path) == ["0", "1", "2"]


def test_uris_and_other_places(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    """A log may be named by a file: URI, its rows staged elsewhere, and its sync left to others."""
    staging = tmp_path / "staged"
    write(numbers(spark, 2), path.as_uri(), stagingPath=staging, durable="false")
    assert values(path) == ["0", "1"]
    assert os.listdir(staging) == [] and not (path / "staging").exists()


def test_a_group_may_share_the_log(spark: SparkSession, path: Path) -> None:
    """What is made for staging has the mode of the log's own files."""
    penstock.create(path, file_mode=0o660).close()
    write(numbers(spark, 2), path)
    assert (path / "staging").stat().st_mode & 0o777 == 0o770


@pytest.mark.parametrize(
    ("select", "options", "said"),
    [
        ("id", {}, "column 'id' must be one of value"),
        ("id value", {}, "column 'value' must be binary or string, got bigint"),
        ("'v' value, 0 partition", {}, "a path is one log, which has no partitions"),
        ("'v' value", {"topik": "t"}, "Did you mean 'topic'"),
        ("'v' value", {"batchId": "7"}, "'applicationId' and 'batchId' must be given together"),
    ],
)
def test_wrong_tables(
    spark: SparkSession, path: Path, select: str, options: dict[str, str], said: str
) -> None:
    """What cannot be written is refused when the write is planned, and leaves nothing behind."""
    frame = spark.range(1).selectExpr(*select.split(", "))
    with pytest.raises(PySparkException, match=f"penstock.errors.Usage: .*{said}"):
        write(frame, path, **options)
    assert not path.exists()


def test_overwriting_is_refused(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    """Neither a table nor a stream may overwrite a log."""
    write(numbers(spark, 2), path)
    with pytest.raises(PySparkException, match=r"errors.Usage: a log is never overwritten"):
        numbers(spark, 2).write.format("penstock").mode("overwrite").save(str(path))
    feed(tmp_path / "in", 1)
    counts = spark.readStream.text(str(tmp_path / "in")).groupBy("value").count().select("value")
    query = (
        counts.writeStream.format("penstock")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .outputMode("complete")
        .trigger(availableNow=True)
    )
    with pytest.raises(PySparkException, match=r"errors.Usage: a log is never overwritten"):
        query.start(str(path)).awaitTermination()
    assert values(path) == ["0", "1"]


def failing(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """A task that fails at the value 900."""
    for batch in batches:
        yield batch
        if "900" in batch.column("value").to_pylist():
            raise ValueError("this task fails")


def test_a_failing_task(spark: SparkSession, path: Path) -> None:
    """If one task fails, nothing of the others is visible, and nothing is left staged."""
    write(numbers(spark, 1), path)
    frame = numbers(spark, 1000, parts=4)
    with pytest.raises(PySparkException, match="this task fails"):
        write(frame.mapInArrow(failing, frame.schema), path)
    assert values(path) == ["0"]
    assert left(path) == []


def test_a_bad_row(spark: SparkSession, path: Path) -> None:
    """A row that no event can be made of fails the write as a whole, with the reason."""
    frame = spark.range(10).selectExpr("nullif(cast(id as string), '7') value")
    with pytest.raises(PySparkException, match="value is null and it has no key"):
        write(frame, path)
    assert values(path) == [] and left(path) == []


def holder_of(path: Path) -> int | None:
    """A process that has a file open which it stages for the log at ``path``."""
    for fd in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            target = os.readlink(fd)
        except OSError:
            continue
        if target.startswith(f"{path}/staging/"):
            return int(fd.parts[2])
    return None


def slow(go: str) -> Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    """Tasks that stop before their fourth batch until a file is there."""

    def stopping(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for n, batch in enumerate(batches):
            deadline = time.monotonic() + 60
            while n == 3 and not os.path.exists(go) and time.monotonic() < deadline:
                time.sleep(0.01)
            yield batch

    return stopping


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Has Spark hand rows over by the hundred, so that tasks stage some before they have all."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


class Killer(threading.Thread):
    """Kills a Python worker of Spark in the middle of staging below a path, then says go."""

    def __init__(self, path: Path, go: Path) -> None:
        super().__init__()
        self.killed: int | None = None
        self._path = path
        self._go = go
        self.start()

    def run(self) -> None:
        try:
            wait_for(self._kill, "a task that stages")
        finally:
            self._go.touch()

    def _kill(self) -> bool:
        self.killed = holder_of(self._path)
        if self.killed is not None:
            os.kill(self.killed, signal.SIGKILL)
        return self.killed is not None


@pytest.mark.usefixtures("small_batches")
def test_a_worker_dies_in_a_write(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    """If the worker of a task is killed, nothing is visible and nothing is left."""
    frame = numbers(spark, 800).selectExpr("rpad(value, 5000, '.') value")  # more than buffers hold
    slowed = frame.mapInArrow(slow(str(tmp_path / "go")), frame.schema)
    killer = Killer(path, tmp_path / "go")
    with pytest.raises(Exception, match="Python worker exited unexpectedly"):
        write(slowed, path)
    killer.join()
    assert killer.killed
    assert values(path) == [] and left(path) == []
    write(frame, path)
    assert [v.rstrip(".") for v in values(path)] == [*map(str, range(800))]


def test_a_batch_write_can_be_repeated(spark: SparkSession, path: Path) -> None:
    """With applicationId and batchId the log takes each write once, and none that comes late."""
    write(numbers(spark, 3), path, applicationId="job", batchId=0)
    write(numbers(spark, 9), path, applicationId="job", batchId=0)
    write(numbers(spark, 2), path, applicationId="other", batchId=0)
    write(numbers(spark, 1), path, applicationId="job", batchId=20261116)
    with pytest.raises(PySparkException, match=r"errors.Conflict: .* has batch 20261116 of 'job'"):
        write(numbers(spark, 1), path, applicationId="job", batchId=20261115)
    assert values(path) == ["0", "1", "2", "0", "1", "0"]
    assert left(path) == []


def feed(directory: Path, files: int, rows: int = 10, first: int = 0, width: int = 0) -> set[str]:
    """Files of text for a stream to read one by one; returns all their lines."""
    directory.mkdir(exist_ok=True)
    lines: set[str] = set()
    for n in range(first, first + files):
        these = [f"{n}-{i}".ljust(width, ".") for i in range(rows)]
        file = directory / f"{n}.txt"
        file.with_suffix(".part").write_text("\n".join(these))
        os.utime(file.with_suffix(".part"), (1_700_000_000 + n,) * 2)
        file.with_suffix(".part").rename(file)
        lines |= set(these)
    return lines


class Streams:
    """Runs queries that read files of text, shuffle them, and append them to a log."""

    def __init__(self, spark: SparkSession, where: Path) -> None:
        self.spark = spark
        self.source = where / "in"
        self.log = where / "log"
        self.checkpoint = where / "checkpoint"

    def rows(self) -> DataFrame:
        reader = self.spark.readStream.option("maxFilesPerTrigger", 1)
        return reader.text(str(self.source), pathGlobFilter="*.txt")

    def start(
        self, frame: DataFrame, checkpoint: Path | None = None, **options: str
    ) -> StreamingQuery:
        """Start a query that ends when it has seen all files."""
        return (
            frame.writeStream.format("penstock")
            .options(**options)
            .option("checkpointLocation", str(checkpoint or self.checkpoint))
            .trigger(availableNow=True)
            .start(str(self.log))
        )

    def run(
        self, checkpoint: Path | None = None, select: str = "value", **options: str
    ) -> list[int]:
        """Run a query to its end, with a shuffle in it; the batches that it ran."""
        query = self.start(self.rows().repartition(3).selectExpr(select), checkpoint, **options)
        assert query.awaitTermination(120)
        return [progress.batchId for progress in query.recentProgress]

    def forget_commit(self, batch: int) -> None:
        """Have the checkpoint as it is if Spark dies after the sink's commit and before its own."""
        for name in (f"{batch}", f".{batch}.crc"):
            (self.checkpoint / "commits" / name).unlink()

    @property
    def query_id(self) -> str:
        found: str = json.loads((self.checkpoint / "metadata").read_text())["id"]
        return found


@pytest.fixture
def streams(spark: SparkSession, tmp_path: Path) -> Streams:
    """A stream of one test."""
    return Streams(spark, tmp_path)


def test_a_stream(streams: Streams) -> None:
    """Each row is there once, batches in order, over a restart and a batch that is run again."""
    lines = feed(streams.source, 2)
    assert streams.run() == [0, 1]
    found = values(streams.log)
    assert Counter(found) == Counter(lines)
    assert [v.split("-")[0] for v in found] == ["0"] * 10 + ["1"] * 10

    streams.forget_commit(1)
    lines |= feed(streams.source, 1, first=2)
    # Run again, the batch has other values, and other rows than before.
    select = "explode(array(concat('again ', value), value)) value"
    assert 1 in streams.run(select=select, queryName="again", durable="false")
    assert values(streams.log)[:20] == found
    assert Counter(v.removeprefix("again ") for v in values(streams.log)[20:]) == Counter(
        [f"2-{n}" for n in range(10)] * 2
    )
    assert left(streams.log) == []
    with penstock.open(streams.log, "r") as log:
        assert log.durable_seq >= 20
        assert log.verify().ok


def test_a_new_checkpoint(streams: Streams, tmp_path: Path) -> None:
    """A new checkpoint begins at the start; with an application's name it is an error, not a loss.

    The only batch so far and the first one of the new query have the same number.
    """
    lines = feed(streams.source, 1)
    streams.run(applicationId="orders")
    feed(streams.source, 1, first=1)
    with pytest.raises(StreamingQueryException, match=r"errors.Conflict: .*another applicationId"):
        streams.run(tmp_path / "other", applicationId="orders")
    assert Counter(values(streams.log)) == Counter(lines)
    assert left(streams.log) == []
    streams.run(tmp_path / "third")
    assert Counter(values(streams.log)) == Counter([*lines, *lines, *(f"1-{n}" for n in range(10))])


def test_a_checkpoint_that_went_back(streams: Streams, tmp_path: Path) -> None:
    """A checkpoint restored from a copy that is too old is an error, and so is found out."""
    lines = feed(streams.source, 1)
    streams.run()
    shutil.copytree(streams.checkpoint, tmp_path / "copy")
    lines |= feed(streams.source, 2, first=1)
    streams.run()
    shutil.rmtree(streams.checkpoint)
    (tmp_path / "copy").rename(streams.checkpoint)
    with pytest.raises(StreamingQueryException, match=r"errors.Conflict: .* has batch 2 of"):
        streams.run()
    assert Counter(values(streams.log)) == Counter(lines)


def test_for_each_batch(streams: Streams) -> None:
    """Inside foreachBatch a batch write with its number is exactly-once too."""
    lines = feed(streams.source, 2)

    def each(frame: DataFrame, batch: int) -> None:
        write(frame.repartition(2), streams.log, applicationId="each", batchId=batch)
        write(frame, streams.log, applicationId="topic", batchId=batch, topic="second")

    def run() -> None:
        query = (
            streams.rows()
            .writeStream.foreachBatch(each)
            .option("checkpointLocation", str(streams.checkpoint))
            .trigger(availableNow=True)
        )
        assert query.start().awaitTermination(120)

    run()
    streams.forget_commit(1)
    run()
    with penstock.open(streams.log, "r") as log:
        found = Counter((e.topic, (e.value or b"").decode()) for e in log)
        assert found == Counter((topic, line) for topic in ("", "second") for line in lines)
    with penstock.open(streams.log) as log:
        known = log._last_of_producers()
    assert known.keys() == {f"each@{streams.query_id}", f"topic@{streams.query_id}"}
    assert left(streams.log) == []


@pytest.mark.usefixtures("small_batches")
def test_a_worker_dies_in_a_stream(streams: Streams, tmp_path: Path) -> None:
    """If a worker is killed, the query fails, and started again has each row in the log once."""
    lines = feed(streams.source, 2, rows=800, width=5000)
    rows = streams.rows().repartition(2)
    slowed = rows.mapInArrow(slow(str(tmp_path / "go")), rows.schema)
    killer = Killer(streams.log, tmp_path / "go")
    query = streams.start(slowed)
    with pytest.raises(StreamingQueryException, match="Python worker exited unexpectedly"):
        query.awaitTermination(120)
    killer.join()
    assert killer.killed
    assert values(streams.log) == []
    streams.run()
    assert Counter(values(streams.log)) == Counter(lines)
    assert left(streams.log) == []
