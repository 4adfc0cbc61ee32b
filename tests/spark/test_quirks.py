"""Canaries: Spark still does what it does not document and we rely on.

A test that fails here with a new version of Spark says which part of ``spark/quirks.py`` to change.
Probes are classes inside functions, which Spark pickles by value: its workers need no tests.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import struct
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import types as T
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    InputPartition,
    WriterCommitMessage,
)

import penstock
from penstock.errors import Corrupt
from penstock.spark import quirks
from penstock.spark.read.source import TableReader, schema
from penstock.spark.read.stream import StreamReader
from penstock.spark.write.sink import TableWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
PLAN = "pyspark_penstock.DefaultSource({'columns': 'value'}).schema()"
ARRIVE = "pickle.load(sys.stdin.buffer)"
UNACKNOWLEDGED = slice(24, 28)  # tcpi_unacked in Linux's struct tcp_info


def test_the_version() -> None:
    """All of it was seen in this version; look at each item again before another is allowed."""
    assert pyspark.__version__.split(".")[:2] == quirks.SEEN.split(".")[:2]


def probing_source() -> type[DataSource]:
    """A source with one row: what its reader was told, where it was made and where it arrived."""

    class Reader(DataSourceReader):
        def __init__(self, options: dict[str, str]) -> None:
            self.planned = {"options": options, "filters": quirks.pushes_filters()}

        def __setstate__(self, state: dict[str, Any]) -> None:
            self.__dict__.update(state)
            kinds = []
            for name in os.listdir("/proc/self/fd"):
                try:
                    borrowed = socket.socket(fileno=os.dup(int(name)))
                except OSError:
                    continue  # not a socket
                with borrowed:
                    kinds.append((int(borrowed.family), int(borrowed.type)))
            self.arrived = {
                "pid": os.getpid(),
                "sockets": kinds,
                "reused": quirks.REUSED in os.environ,
            }

        def partitions(self) -> list[InputPartition]:
            return []

        def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
            told = {**self.planned, **self.arrived, "pid_of_read": os.getpid()}
            told["split"] = [type(partition).__name__, partition.value]
            yield (json.dumps(told),)

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "probe"

        def schema(self) -> str:
            return "told string"

        def reader(self, schema: T.StructType) -> DataSourceReader:
            return Reader(dict(self.options))

    return Source


@pytest.fixture(scope="module")
def probed(spark: SparkSession) -> SparkSession:
    """A session in which the probing source and sink are known."""
    spark.dataSource.register(probing_source())
    spark.dataSource.register(probing_sink())
    return spark


def asked(spark: SparkSession, paths: Any = "/a", where: str = "true", **options: Any) -> Any:
    """What a reader of Spark is told."""
    frame = spark.read.format("probe").options(**options).load(paths).where(where)
    return json.loads(frame.collect()[0]["told"])


def test_options_of_a_read(probed: SparkSession) -> None:
    """Several paths are a JSON array in one option, a single path is an option as it is."""
    given = asked(probed, ["/a", "/b,c"])["options"]
    assert json.loads(given[quirks.PATHS]) == ["/a", "/b,c"]
    assert asked(probed, "/a")["options"]["path"] == "/a"


def test_a_read_without_splits(probed: SparkSession) -> None:
    """Spark makes one split, of its own class and without a value."""
    assert asked(probed)["split"] == ["InputPartition", None]


def test_the_worker_in_which_filters_are_pushed_down(probed: SparkSession) -> None:
    """It is told from the one in which a class with pushFilters is an error."""
    try:
        for setting, condition, expected in (
            ("true", "told is not null", True),
            ("true", "true", False),
            ("false", "told is not null", False),
        ):
            probed.conf.set(PUSHDOWN, setting)
            told = asked(probed, where=condition)
            assert told["filters"] is expected, (setting, condition)
    finally:
        probed.conf.unset(PUSHDOWN)
    assert not quirks.pushes_filters()


@pytest.mark.parametrize("setting", ["true", "false"])
def test_filters_reach_the_log_if_spark_pushes_them_down(
    spark: SparkSession, tmp_path: Path, setting: str
) -> None:
    """Both readers work where Spark uses them."""
    with penstock.open(tmp_path / "log") as log:
        log.extend([b"a", b"b", b"c"])
    session = spark.newSession()
    session.conf.set(PUSHDOWN, setting)
    frame = session.read.format("penstock").load(str(tmp_path / "log")).where("offset > 1")
    plan = str(frame._jdf.queryExecution().executedPlan().toString())
    assert ("Filter (" in plan) is (setting == "false")
    assert sorted(row["offset"] for row in frame.collect()) == [2, 3]


def test_where_a_reader_arrives(probed: SparkSession) -> None:
    """In a worker that is used again and talks TCP to Spark; it reads where it was unpickled."""
    told = asked(probed)
    assert told["reused"]
    assert [int(socket.AF_INET), int(socket.SOCK_STREAM)] in told["sockets"]
    assert told["pid"] == told["pid_of_read"] != os.getpid()


def test_workers_collect_garbage_after_each_task() -> None:
    """Otherwise there is no reason to freeze anything."""
    daemon = Path(pyspark.__file__).with_name("daemon.py").read_text()
    assert "gc.collect()" in daemon


def test_the_arrow_schema_of_columns() -> None:
    """Microseconds in UTC, plain binary, and what may be null as declared."""
    given = T.StructType(
        [
            T.StructField("at", T.TimestampType(), False),
            T.StructField("value", T.BinaryType()),
            T.StructField("words", T.ArrayType(T.StringType(), False), False),
        ]
    )
    words = pa.list_(pa.field("element", pa.string(), False))
    assert quirks.arrow_schema(given) == pa.schema(
        [
            pa.field("at", pa.timestamp("us", "UTC"), False),
            pa.field("value", pa.binary()),
            pa.field("words", words, False),
        ]
    )


def test_settings_of_a_builder() -> None:
    """They can be read before there is a session."""
    from pyspark.sql import SparkSession

    builder = SparkSession.Builder().master("local[3]")
    assert quirks.builder_setting(builder, "spark.master", "") == "local[3]"
    assert quirks.builder_setting(builder, "spark.app.name", "none") == "none"


def probing_sink() -> type[DataSource]:
    """A sink that adds a line to the file at its path for each commit: what everyone was told."""

    class Writer(DataSourceStreamArrowWriter):
        def __init__(self, options: dict[str, str]) -> None:
            self.options = options
            self.made = uuid.uuid4().hex
            self.started = quirks.is_checkpoint(options.get("checkpointlocation", ""))

        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            message: Any = WriterCommitMessage()
            message.told = {
                "rows": sum(batch.num_rows for batch in iterator),
                "partition": pyspark.TaskContext.get().partitionId(),  # type: ignore[union-attr]
                "query": quirks.query_id(),
                "run": quirks.run_id(),
                "batch": quirks.batch_number(),
                "made": self.made,
                "started": self.started,
            }
            return message  # type: ignore[no-any-return]

        def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
            told = [m.told for m in messages]  # type: ignore[union-attr]
            with open(self.options["path"], "a") as file:
                file.write(json.dumps({"batch": batchId, "made": self.made, "told": told}) + "\n")

    class Sink(DataSource):
        @classmethod
        def name(cls) -> str:
            return "probing_sink"

        def streamWriter(self, schema: T.StructType, overwrite: bool) -> Any:
            return Writer(dict(self.options))

    return Sink


def test_what_a_streaming_sink_is_told(probed: SparkSession, tmp_path: Path) -> None:
    """Tasks: query, run and batch. The driver: the checkpoint, and a message of each task."""
    path, checkpoint = str(tmp_path / "log"), str(tmp_path / "checkpoint")
    with penstock.open(path) as log:
        log.extend([b"%d" % n for n in range(10)])
    source = probed.readStream.format("penstock").option("startingOffsets", "earliest")
    query = (
        source.option("maxOffsetsPerTrigger", 6)
        .load(path)
        .repartition(3)
        .writeStream.format("probing_sink")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(str(tmp_path / "told"))
    )
    assert query.awaitTermination(120)

    commits = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    assert [commit["batch"] for commit in commits] == [0, 1]
    for commit in commits:
        assert sorted(told["partition"] for told in commit["told"]) == [0, 1, 2]
        for told in commit["told"]:
            assert told["query"] == str(query.id)
            assert told["run"] == str(query.runId)
            assert told["batch"] == commit["batch"]
            assert told["started"], "the checkpoint has its metadata when a batch is planned"
            assert told["made"] != commit["made"], "the tasks' writer is not the one that commits"
    assert [sum(told["rows"] for told in commit["told"]) for commit in commits] == [6, 4]

    assert quirks.is_checkpoint(checkpoint)
    assert quirks.query_of(checkpoint) == str(query.id)
    assert [quirks.ends_of(checkpoint, batch) for batch in (0, 1)] == [{path: 7}, {path: 11}]


def test_what_foreach_batch_has(spark: SparkSession, tmp_path: Path) -> None:
    """A session of its own, and tasks that know their query and batch."""
    with penstock.open(tmp_path / "log") as log:
        log.append(b"a")
    name = "spark.sql.parquet.outputTimestampType"
    found: list[str] = []

    def ask(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            told = f"{quirks.query_id()} {quirks.batch_number()}"
            yield pa.record_batch({"told": pa.array([told])})

    def each(frame: DataFrame, batch: int) -> None:
        frame.sparkSession.conf.set(name, "TIMESTAMP_MILLIS")
        found.extend(row["told"] for row in frame.mapInArrow(ask, "told string").collect())

    source = spark.readStream.format("penstock").option("startingOffsets", "earliest")
    query = (
        source.load(str(tmp_path / "log"))
        .writeStream.foreachBatch(each)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert found == [f"{query.id} 0"]
    assert spark.conf.get(name) != "TIMESTAMP_MILLIS"


def test_a_checkpoint_that_is_not_one(tmp_path: Path) -> None:
    """Nothing is there, or something else than Spark writes: that is said with the file's name."""
    where = str(tmp_path)
    assert not quirks.is_checkpoint(where)
    assert quirks.query_of(where) is None
    assert quirks.ends_of(where, 0) == {}
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("v1\n{}\n{}")
    assert quirks.ends_of(where, 0) == {}
    (tmp_path / "metadata").write_text("[]")
    with pytest.raises(Corrupt, match="metadata: must be the metadata of a streaming query"):
        quirks.query_of(where)
    for text in ("-", "[1]", '{"a": "b"}', '{"a": null}'):
        (tmp_path / "offsets" / "0").write_text(f"v1\n{{}}\n{text}")
        with pytest.raises(Corrupt, match="the last line must be offsets of logs"):
            quirks.ends_of(where, 0)


@pytest.fixture
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A JVM's and a worker's end of a connection over which a task has been answered."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        jvm = socket.create_connection(server.getsockname())
        worker, _ = server.accept()
    with jvm, worker:
        for _ in range(20):  # both kernels take it for a conversation, and delay what they can
            jvm.sendall(b"task")
            worker.recv(100)
            worker.sendall(b"answer")
            jvm.recv(100)
        yield jvm, worker


def unacknowledged(end: socket.socket) -> int:
    """How many segments that were sent the other side has not acknowledged."""
    info = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    return int(struct.unpack("=I", info[UNACKNOWLEDGED])[0])


@pytest.fixture
def log(tmp_path: Path) -> str:
    """The path of a log."""
    penstock.open(tmp_path / "log").close()
    return str(tmp_path / "log")


@pytest.mark.parametrize("kind", [TableReader, StreamReader])
def test_a_reader_has_the_message_acknowledged_in_which_it_came(
    log: str, connection: tuple[socket.socket, socket.socket], kind: Any
) -> None:
    """Otherwise the JVM keeps the split back for 40 ms, in every task."""
    given = {"paths": json.dumps([log])}
    message = pickle.dumps(kind(given, schema(given)))
    jvm, worker = connection
    jvm.sendall(message)
    received = b""
    while len(received) < len(message):
        received += worker.recv(1 << 16)
    reader = pickle.loads(received)
    assert unacknowledged(jvm) == 0
    assert isinstance(reader, kind)


def test_other_descriptors_are_left_alone(
    tmp_path: Path, connection: tuple[socket.socket, socket.socket]
) -> None:
    """Files, datagrams and Unix sockets stay open and as they are, and so does the connection."""
    jvm, worker = connection
    left, right = socket.socketpair()
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with left, right, datagrams, (tmp_path / "file").open("w") as file:
        quirks.acknowledge()
        left.sendall(b"still")
        assert right.recv(10) == b"still"
        datagrams.bind(("127.0.0.1", 0))
        file.write("there")
        file.flush()
    jvm.sendall(b"here")
    assert worker.recv(10) == b"here"


def frozen_objects(doing: str, given: bytes = b"", *, reused: bool) -> int:
    """How many objects garbage collection passes over in a new process that did something."""
    environment = {k: v for k, v in os.environ.items() if k != quirks.REUSED}
    if reused:
        environment[quirks.REUSED] = "1"
    code = f"import gc, pickle, pyspark_penstock, sys; {doing}; print(gc.get_freeze_count())"
    done = subprocess.run(
        [sys.executable, "-c", code], input=given, env=environment, stdout=-1, check=True
    )
    return int(done.stdout)


def test_a_worker_that_gets_a_reader_or_a_writer_freezes_what_it_has_imported(log: str) -> None:
    """Spark collects garbage there after every task, and modules are none. So when it plans."""
    given = {"paths": json.dumps([log])}
    reader = pickle.dumps(TableReader(given, schema(given)))
    writer = pickle.dumps(TableWriter({"path": log}, schema({"columns": "value"}), False))
    assert frozen_objects(ARRIVE, reader, reused=True) > 10_000
    assert frozen_objects(ARRIVE, writer, reused=True) > 10_000
    assert frozen_objects(PLAN, reused=True) > 10_000


def test_a_process_that_is_not_a_worker_is_left_as_it_is(log: str) -> None:
    """Its garbage is its own business."""
    given = {"paths": json.dumps([log])}
    reader = pickle.dumps(TableReader(given, schema(given)))
    assert frozen_objects(ARRIVE, reader, reused=False) == 0
    assert frozen_objects(PLAN, reused=False) == 0
