"""Logs as tables of a real Spark, against a loop over the same events."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from tests.support.spark import plain_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BASE_NS = 1_600_000_000_000_000_000
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two logs with all that events can have, the same for all tests here."""
    top = tmp_path_factory.mktemp("table") / "orders"
    top.mkdir()
    for number, count in (("0", 3000), ("1", 500)):
        with penstock.open(top / number, segment_size="64KiB") as log:
            for i in range(count):
                log.append(
                    b"%d " % i + bytes(i % 200),
                    key=None if i % 3 == 0 else b"" if i % 3 == 1 else b"k%d" % (i % 7),
                    topic=["", "a", "ä☃", "b"][i % 4],
                    headers=[("x", b"1"), ("x", None)] if i % 5 == 0 else None,
                    time=BASE_NS + i * 1_000_001 if i % 2 else None,
                )
    return [top / "0", top / "1"]


def load(spark: SparkSession, where: Any, **options: str) -> DataFrame:
    """The table of a path, or of several."""
    return spark.read.format("penstock").options(**options).load(where)


def as_rows(frame: DataFrame) -> list[dict[str, Any]]:
    """What Spark gives, as a loop over events would."""
    found = []
    for row in frame.collect():
        one = row.asDict(recursive=True)
        for name in ("key", "value"):
            if isinstance(one.get(name), bytearray):
                one[name] = bytes(one[name])
        for header in one.get("headers", ()):
            if header["value"] is not None:
                header["value"] = bytes(header["value"])
        if "timestamp" in one:
            one["timestamp"] = one["timestamp"].astimezone()
        found.append(one)
    return sorted(found, key=lambda r: (r["log"], r["offset"]))


def test_every_column_of_every_event(spark: SparkSession, orders: list[Path]) -> None:
    """It is found without registration, and gives what a loop gives."""
    frame = load(spark, str(orders[0].parent), includeHeaders="true")
    assert as_rows(frame) == plain_rows(*orders)


def test_a_list_of_paths(spark: SparkSession, orders: list[Path]) -> None:
    """Several logs, named one by one."""
    frame = load(spark, [str(path) for path in orders], columns="log,offset")
    assert frame.groupBy("log").count().collect()
    assert Counter(row["log"] for row in frame.collect()) == {
        str(orders[0]): 3000,
        str(orders[1]): 500,
    }


def test_sql(spark: SparkSession, orders: list[Path]) -> None:
    """A view in SQL keeps options, and a query agrees with plain Python."""
    spark.sql(
        "create or replace temporary view orders using penstock "
        f"options (path '{orders[0].parent}', columns 'topic,value', subscribe 'a,b')"
    )
    found = spark.sql("select topic, count(*), sum(length(value)) from orders group by topic")
    rows = [row for row in plain_rows(*orders) if row["topic"] in ("a", "b")]
    assert {(t, n, size) for t, n, size in found.collect()} == {
        (
            topic,
            sum(r["topic"] == topic for r in rows),
            sum(len(r["value"]) for r in rows if r["topic"] == topic),
        )
        for topic in ("a", "b")
    }


def test_options_reach_the_source(spark: SparkSession, orders: list[Path]) -> None:
    """Offsets, splits and columns, as the planning tests have them, through Spark."""
    frame = load(
        spark,
        str(orders[0]),
        columns="offset",
        startingOffsets=json.dumps({"0": 101}),
        endingOffsets=json.dumps({"0": 201}),
        minPartitions="4",
    )
    assert frame.rdd.getNumPartitions() == 4
    assert sorted(row["offset"] for row in frame.collect()) == list(range(101, 201))


QUESTIONS = [
    "topic = 'ä☃'",
    "topic in ('a', 'b') and offset > 100 and offset <= 2000",
    "timestamp >= '2020-09-13 12:26:41' and timestamp < '2020-09-13 12:26:42.5'",
    "key is null and partition = 1",
    "key = X'6B31' or offset = 7",
    "topic <> 'a' and offset between 10 and 20",
    "log like '%/0' and topic is not null and offset < 30",
    "offset > 9223372036854775806",
    "timestamp = '1960-01-01'",
    "topic = null",
]


def test_filters_give_the_same_with_and_without_pushdown(
    spark: SparkSession, orders: list[Path]
) -> None:
    """Where Spark hands filters down, and where it does not."""
    where = str(orders[0].parent)
    answers: dict[str, list[list[Any]]] = {"true": [], "false": []}
    try:
        for setting, found in answers.items():
            spark.conf.set(PUSHDOWN, setting)
            for question in QUESTIONS:
                frame = load(spark, where).where(question).select("partition", "offset")
                found.append(sorted(tuple(row) for row in frame.collect()))
        spark.conf.set(PUSHDOWN, "true")
        plan = load(spark, where).where("topic = 'a' and offset > 7")._jdf.queryExecution()
        assert "Filter (" not in plan.executedPlan().toString()
        rest = load(spark, where).where("key = X'41'")._jdf.queryExecution()
        assert "Filter (" in rest.executedPlan().toString()
    finally:
        spark.conf.set(PUSHDOWN, "false")
    assert answers["true"] == answers["false"]
    assert sum(map(bool, answers["true"])) == 7


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of JSON objects, some of which are not what they should be."""
    path = tmp_path_factory.mktemp("json") / "flights"
    with penstock.open(path) as log:
        log.extend([b'{"carrier": "UA", "delay": %d}' % n for n in range(1000)], topic="ok")
        log.append(b'{"carrier": "AA", "delay": "late"}', topic="odd")
        log.append(b'{"carrier": "DL", "delay"', topic="odd")
        log.append(b'{"carrier": "B6"}', topic="ok")
        log.append(None, key=b"gone")
    return path


SCHEMA = "carrier string, delay int, _corrupt_record string"


def test_json_as_typed_columns(spark: SparkSession, flights: Path) -> None:
    """Fields are columns, beside those of the log that are asked for; what does not fit is null,
    and its text is kept."""
    frame = (
        spark.read.format("penstock")
        .options(codec="json", columns="offset,topic")
        .schema(f"offset bigint, {SCHEMA}, topic string")
        .load(str(flights))
    )
    rows = [tuple(row) for row in frame.orderBy("offset").collect()]
    assert rows[:1000] == [(n + 1, "UA", n, None, "ok") for n in range(1000)]
    assert rows[1000:] == [
        (1001, "AA", None, '{"carrier": "AA", "delay": "late"}', "odd"),
        (1002, None, None, '{"carrier": "DL", "delay"', "odd"),
        (1003, "B6", None, None, "ok"),
        (1004, None, None, None, ""),
    ]


def test_modes_are_those_of_sparks_json_source(
    spark: SparkSession, flights: Path, tmp_path: Path
) -> None:
    """The same values as lines of a file, read by Spark itself, give the same rows."""
    with penstock.open(flights, mode="r") as log:
        lines = [event.value for event in log if event.value is not None]
    (tmp_path / "lines.json").write_bytes(b"\n".join(lines))
    for mode in ("PERMISSIVE", "DROPMALFORMED"):
        theirs = spark.read.schema(SCHEMA).option("mode", mode).json(str(tmp_path / "lines.json"))
        ours = (
            spark.read.format("penstock")
            .options(codec="json", mode=mode, subscribe="ok,odd")
            .schema(SCHEMA)
            .load(str(flights))
        )
        assert sorted(map(str, ours.collect())) == sorted(map(str, theirs.collect()))
    failing = spark.read.format("penstock").options(codec="json", mode="FAILFAST").schema(SCHEMA)
    with pytest.raises(Exception, match="the value of seq 1001 does not fit the schema"):
        failing.load(str(flights)).collect()


def test_the_schema_is_inferred(spark: SparkSession, flights: Path) -> None:
    """From a sample of the beginnings and the ends; columns of the log come first."""
    frame = load(spark, str(flights), codec="json", columns="offset")
    assert frame.dtypes == [
        ("offset", "bigint"),
        ("_corrupt_record", "string"),
        ("carrier", "string"),
        ("delay", "string"),
    ]
    head = load(spark, str(flights), codec="json", sampleRows="1")
    assert head.dtypes == [("carrier", "string"), ("delay", "bigint")]
    assert head.where("delay = 999").count() == 1
    with pytest.raises(Exception, match="no value to infer a schema from"):
        penstock.open(flights.parent / "empty").close()
        load(spark, str(flights.parent / "empty"), codec="json")


def test_a_stream_of_typed_columns(spark: SparkSession, flights: Path) -> None:
    """Streams have them as well."""
    frame = (
        spark.readStream.format("penstock")
        .options(codec="json", startingOffsets="earliest", subscribe="ok")
        .schema("carrier string, delay int")
        .load(str(flights))
    )
    query = (
        frame.groupBy("carrier")
        .sum("delay")
        .writeStream.format("memory")
        .queryName("delays")
        .outputMode("complete")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = {tuple(row) for row in spark.table("delays").collect()}
    assert found == {("UA", sum(range(1000))), ("B6", None)}


def test_writers_go_on_meanwhile(spark: SparkSession, tmp_path: Path) -> None:
    """Tables planned while a writer appends and rolls are each a whole beginning of the log."""
    path = tmp_path / "log"
    log = penstock.open(path, segment_size="64KiB")
    log.append(b"0")
    done = threading.Event()

    def write() -> None:
        n = 1
        while not done.is_set():
            log.append(b"%d" % n, topic="x" * (n % 50))
            n += 1
            time.sleep(0.0002)  # it is to roll now and then, not to make as many rows as it can

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            before = log.last_seq
            found = sorted(
                (row["offset"], int(row["value"]))
                for row in load(
                    spark, str(path), columns="offset,value", minPartitions="3"
                ).collect()
            )
            assert found == [(n + 1, n) for n in range(len(found))]
            assert len(found) >= before
    finally:
        done.set()
        writer.join()
        log.close()


def test_errors_say_what_to_do(spark: SparkSession, orders: list[Path]) -> None:
    """What the source objects to is in Spark's own error, word by word."""
    for options, what in (
        ({"startingOffset": "earliest"}, "Did you mean 'startingOffsets'"),
        ({"kafka.bootstrap.servers": "x"}, "there is no server: give the path"),
        ({"columns": "nope"}, "must name some of key, value, topic, .*, got 'nope'"),
    ):
        with pytest.raises(Exception, match=what):
            load(spark, str(orders[0]), **options).collect()
    with pytest.raises(Exception, match="there is no log here"):
        load(spark, str(orders[0]) + "-not").collect()


def test_large_values_and_many_rows(spark: SparkSession, tmp_path: Path) -> None:
    """A worker holds a few batches, not the log: values of a megabyte, and half a million rows."""
    with penstock.open(tmp_path / "large") as log:
        for i in range(60):
            log.append(bytes([i]) * 1_000_000)
    with penstock.open(tmp_path / "many") as log:
        for _ in range(10):
            log.extend([b"x" * 20] * 50_000)
    total = load(spark, str(tmp_path / "large"), columns="value").selectExpr("sum(length(value))")
    assert total.collect()[0][0] == 60_000_000
    assert load(spark, str(tmp_path / "many"), columns="offset").count() == 500_000


def test_the_module_that_spark_finds_imports_almost_nothing() -> None:
    """One that fails to import would take every other data source with it."""
    code = (
        "import sys, pyspark.sql.datasource; before = set(sys.modules); import pyspark_penstock; "
        "print(*(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["pyspark_penstock"]
