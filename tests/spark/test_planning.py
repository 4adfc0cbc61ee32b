"""What is read and how it is cut, without a Spark: readers are made and asked as Spark does."""

from __future__ import annotations

import datetime as dt
import json
import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
)
from pyspark.sql.pandas.types import to_arrow_schema

import penstock
from penstock import errors
from penstock.spark.read import splits
from penstock.spark.read.filters import take_filters
from penstock.spark.read.source import FilteringReader, TableReader, schema
from tests.support.spark import EPOCH, plain_rows, read_all

BASE_MS = 1_600_000_000_000


def make(path: Path, count: int = 1500, *, timed: bool = True) -> Path:
    """A log of several segments and topics, whose events have times of their own, or not."""
    with penstock.open(path, segment_size="64KiB") as log:
        for i in range(count):
            log.append(
                b"%d %s" % (i, b"." * 100),
                key=None if i % 3 == 0 else b"" if i % 3 == 1 else b"k%d" % (i % 7),
                topic=f"t{i * 4 // count}" if i % 2 else "",
                headers=[("a", b"1"), ("a", None), ("b", b"")] if i % 5 == 0 else None,
                time=(BASE_MS + i) * 1_000_000 if timed else None,
            )
    return path


def table(*paths: Path | str, **options: Any) -> FilteringReader:
    """A reader of these logs, which takes filters."""
    given = {name.lower(): str(value) for name, value in options.items()}
    given["paths"] = json.dumps([str(path) for path in paths])
    return FilteringReader(given, schema(given))


@pytest.fixture
def pair(tmp_path: Path) -> list[Path]:
    """Two logs, called as partitions are."""
    (tmp_path / "orders").mkdir()
    return [make(tmp_path / "orders" / "0"), make(tmp_path / "orders" / "1", 300, timed=False)]


def test_rows_are_the_events(pair: list[Path]) -> None:
    """All columns of all events, whatever their keys, headers and times, as a loop sees them."""
    assert read_all(table(*pair, includeHeaders="true")) == plain_rows(*pair)


def test_default_columns_are_kafkas_and_log(pair: list[Path]) -> None:
    """Without headers unless asked, and with the name of the log."""
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "log"]
    assert schema({"path": str(pair[0])}).fieldNames() == names
    expected = [{n: row[n] for n in names} for row in plain_rows(*pair)]
    assert read_all(table(*pair)) == expected


@pytest.mark.parametrize(
    "columns", ["offset", "value,key", "log,partition", "timestampType", "headers,topic"]
)
def test_chosen_columns(pair: list[Path], columns: str) -> None:
    """Only those that were asked for, in that order."""
    names = columns.split(",")
    found = read_all(table(*pair, columns=columns))
    assert found == [{n: row[n] for n in names} for row in plain_rows(*pair)]
    assert list(found[0]) == names


def test_batches_have_the_schema_that_spark_demands(pair: list[Path]) -> None:
    """Exactly, down to what may be null, or Spark refuses them."""
    reader = table(pair[0], includeHeaders="true")
    given = {"path": str(pair[0]), "includeheaders": "true"}
    batch = next(iter(reader.read(reader.partitions()[0])))
    assert batch.schema.equals(to_arrow_schema(schema(given), timezone="UTC"))


@pytest.mark.parametrize(
    "where",
    [
        "{0}/orders",
        "{0}/orders/*",
        "{0}/or*",
        "{0}/**/0",
        "file://{0}/orders/0",
        "{0}/orders/../orders/1",
    ],
)
def test_ways_to_name_logs(pair: list[Path], tmp_path: Path, where: str) -> None:
    """A log, the directory of several, a glob, an address."""
    expected = {"0": pair[:1], "1": pair[1:]}.get(where[-1], pair)
    assert read_all(table(where.format(tmp_path), columns="log,offset")) == [
        {"log": row["log"], "offset": row["offset"]} for row in plain_rows(*expected)
    ]


def test_relative_path(pair: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path is the driver's, and absolute in rows."""
    monkeypatch.chdir(tmp_path)
    found = read_all(table("orders/1", columns="log"))
    assert found == [{"log": str(pair[1])}] * 300


def test_a_log_with_a_glob_for_a_name(tmp_path: Path) -> None:
    """What is there under the very name counts before what the pattern matches."""
    made = make(tmp_path / "a[1]", 10)
    assert len(read_all(table(made))) == 10


@pytest.mark.parametrize(
    ("where", "what"),
    [
        ("nothing", "there is no log here"),
        ("no*", "no log matches"),
        ("s3://bucket/x", "s3://"),
    ],
)
def test_no_log(tmp_path: Path, where: str, what: str) -> None:
    """What is not there is an error that says so."""
    path = where if "://" in where else str(tmp_path / where)
    with pytest.raises(errors.PenstockError, match=what):
        table(path).partitions()


def test_no_path() -> None:
    """Forgotten, the path is asked for."""
    with pytest.raises(errors.Usage, match="load"):
        TableReader({}, schema({}))


STARTS_AND_ENDS: list[tuple[dict[str, Any], int, int]] = [
    ({}, 1, 1500),
    ({"startingOffsets": "earliest", "endingOffsets": "latest"}, 1, 1500),
    ({"startingOffsets": '{"0": 700}'}, 700, 1500),
    ({"startingOffsets": '{"orders": {"0": 700}}'}, 700, 1500),
    ({"startingOffsets": '{"0": -2}', "endingOffsets": '{"0": -1}'}, 1, 1500),
    ({"startingOffsets": '{"0": 0}', "endingOffsets": '{"orders/0": 5}'}, 1, 4),
    ({"startingTimestamp": BASE_MS + 99}, 100, 1500),
    ({"startingTimestamp": BASE_MS + 99, "startingOffsets": '{"0": 700}'}, 100, 1500),
    (
        {"startingOffsetsByTimestamp": f'{{"0": {BASE_MS + 9}}}', "startingOffsets": "earliest"},
        10,
        1500,
    ),
    ({"startingTimestamp": BASE_MS + 9, "startingOffsetsByTimestamp": '{"0": 5}'}, 10, 1500),
    ({"endingTimestamp": BASE_MS + 99}, 1, 99),
    ({"endingOffsetsByTimestamp": f'{{"0": {BASE_MS + 99}}}'}, 1, 99),
    ({"endingTimestamp": BASE_MS + 9999}, 1, 1500),
    (
        {"startingTimestamp": BASE_MS + 9999, "startingOffsetsByTimestampStrategy": "latest"},
        1501,
        1500,
    ),
    ({"startingOffsets": '{"0": 20}', "endingOffsets": '{"0": 10}'}, 20, 10),
]


@pytest.mark.parametrize(("options", "first", "last"), STARTS_AND_ENDS)
def test_where_it_starts_and_ends(
    pair: list[Path], options: dict[str, Any], first: int, last: int
) -> None:
    """Every way to say it; timestamps of one count for all come before those by log, and these
    before offsets, as for Kafka."""
    found = [row["offset"] for row in read_all(table(pair[0], columns="offset", **options))]
    assert found == list(range(first, last + 1))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"startingOffsets": "latest"}, "must not be latest for a table"),
    ({"startingOffsets": '{"0": -1}'}, "must not be latest for a table"),
    ({"endingOffsets": "earliest"}, "must not be earliest"),
    ({"endingOffsets": '{"0": -2}'}, "must not be earliest"),
    ({"startingOffsets": "first"}, "earliest, latest or JSON"),
    ({"startingOffsets": '{"0": "x"}'}, "must have an offset for"),
    ({"startingOffsets": '{"0": -3}'}, "must have an offset for"),
    ({"startingOffsets": '{"0": true}'}, "must have an offset for"),
    ({"startingOffsets": '{"9": 1}'}, "got '9', which is no log"),
    ({"startingOffsets": "{}"}, "must name each log, and .* is missing"),
    ({"startingOffsets": '{"0": 1'}, "must be JSON, got"),
    ({"startingTimestamp": "yesterday"}, "whole number"),
    ({"startingTimestamp": BASE_MS + 9999}, "startingOffsetsByTimestampStrategy=latest"),
    ({"startingOffsetsByTimestamp": '{"0": -4}'}, "must have milliseconds since 1970 for"),
    ({"startingOffsetsByTimestampStrategy": "maybe"}, "one of error, latest"),
    ({"subscribe": "a,,b"}, "a list"),
    ({"subscribe": "a", "subscribePattern": "b"}, "give one of them"),
    ({"subscribePattern": "("}, "subscribePattern"),
    ({"assign": "[]"}, "JSON object"),
    ({"assign": '{"a": 1}'}, "partitions of topics"),
    ({"columns": "offset,nope"}, "must name some of .*, got 'nope'"),
    ({"columns": "offset,offset"}, "twice"),
    ({"minPartitions": "0"}, "must be 1 or more, got 0"),
    ({"maxRecordsPerPartition": "many"}, "whole number"),
    ({"failOnDataLoss": "perhaps"}, "one of true, false"),
    ({"maxOffsetsPerTrigger": "5"}, "readStream"),
    ({"startingOffset": "earliest"}, "Did you mean 'startingOffsets'"),
    ({"kafka.bootstrap.servers": "x:9092"}, "there is no server"),
    ({"kafka.security.protocol": "SSL"}, "Kafka client"),
    ({"groupIdPrefix": "x"}, "there is no consumer group"),
    ({"mode": "FAILFAST"}, "codec=json"),
    ({"onDamage": "ignore"}, "one of raise, skip"),
    ({"onGap": "skip"}, "failOnDataLoss"),
    ({"onMalformed": "skip"}, "mode"),
]


@pytest.mark.parametrize(("options", "what"), REFUSED)
def test_refused(pair: list[Path], options: dict[str, Any], what: str) -> None:
    """What cannot be meant is refused before anything is read, and the reason is given."""
    with pytest.raises(errors.Usage, match=what):
        table(pair[0], **options).partitions()


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"subscribe": "t1"}, lambda topic, number: topic == "t1"),
        ({"subscribe": "t1, t3"}, lambda topic, number: topic in ("t1", "t3")),
        ({"subscribe": "never"}, lambda topic, number: False),
        ({"subscribePattern": "t[12]"}, lambda topic, number: topic in ("t1", "t2")),
        ({"subscribePattern": "t"}, lambda topic, number: False),
        ({"subscribePattern": ""}, lambda topic, number: topic == ""),
        (
            {"assign": '{"t1": [0], "t2": [1, 7]}'},
            lambda topic, number: (topic, number) in [("t1", 0), ("t2", 1)],
        ),
    ],
)
def test_topics(pair: list[Path], options: dict[str, Any], wanted: Any) -> None:
    """Only the topics that were subscribed to, matched whole, or assigned by partition."""
    found = read_all(table(*pair, columns="topic,partition,offset", **options))
    rows = [row for row in plain_rows(*pair) if wanted(row["topic"], row["partition"])]
    assert [(r["partition"], r["offset"]) for r in found] == [
        (r["partition"], r["offset"]) for r in rows
    ]


def seqs(found: list[splits.Split]) -> list[int]:
    """All seqs of splits of one log, in their order."""
    return [seq for split in found for seq in range(split.start, split.stop)]


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 1),
        ({"minPartitions": 7}, 7),
        ({"minPartitions": 5000}, 1500),
        ({"maxRecordsPerPartition": 400}, 4),
        ({"maxRecordsPerPartition": 400, "minPartitions": 6}, 6),
        ({"maxRecordsPerPartition": 100, "minPartitions": 3}, 15),
    ],
)
def test_splits(pair: list[Path], options: dict[str, Any], count: int) -> None:
    """Small segments are one split; each way to have more gives that many, and no seq twice."""
    found: Any = table(pair[0], **options).partitions()
    assert len(found) == count
    assert seqs(found) == list(range(1, 1501))
    sizes = [split.stop - split.start for split in found]
    assert max(sizes) <= int(options.get("maxRecordsPerPartition", 1500))
    if "minPartitions" in options:
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_splits_are_even_and_as_many_as_keep_all_cores_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    """Their number is a multiple of the cores', and each has about as many bytes, not events."""
    with penstock.open(tmp_path / "log", segment_size="64KiB") as log:
        for i in range(1200):
            log.append(b"." * (100 if i < 800 else 700))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(splits, "SPLIT_BYTES", 60 << 10)
    found: Any = table(tmp_path / "log").partitions()
    assert len(found) % cores == 0
    assert seqs(found) == list(range(1, 1201))
    sizes = [sum(140 if seq <= 800 else 740 for seq in range(s.start, s.stop)) for s in found]
    assert max(sizes) < 2 * (60 << 10)
    assert max(sizes) < 1.5 * min(sizes)
    monkeypatch.setattr(splits, "SMALL_BYTES", 1 << 30)
    monkeypatch.setattr(splits, "SPLIT_BYTES", 1 << 30)
    assert len(table(tmp_path / "log").partitions()) == 1  # which a task would cost more than


def test_segments_of_other_topics_and_times_are_no_splits(
    pair: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sealed segment that holds nothing that is wanted costs no task."""
    monkeypatch.setattr(splits, "SPLIT_BYTES", 1)
    whole: Any = table(pair[0], maxRecordsPerPartition=10**9).partitions()
    bases = len(list(pair[0].glob("*.seg")))
    monkeypatch.setattr(splits, "SPLIT_BYTES", 60 << 10)
    some: Any = table(pair[0], subscribe="t0").partitions()
    assert len(some) < bases <= len(whole)
    reader = table(pair[0])
    limit = EPOCH + dt.timedelta(milliseconds=BASE_MS + 20)
    assert reader.pushFilters([LessThan(("timestamp",), limit)]) == []
    assert len(reader.partitions()) < bases
    assert [row["offset"] for row in read_all(reader)] == list(range(1, 21))


def test_the_end_is_fixed_when_it_is_planned(pair: list[Path]) -> None:
    """What is appended behind that is not read, nor does a roll disturb."""
    reader = table(pair[0], columns="offset", minPartitions=3)
    planned = reader.partitions()
    with penstock.open(pair[0]) as log:
        for _ in range(2000):
            log.append(b"more")
    assert [r["offset"] for r in read_all(reader, planned)] == list(range(1, 1501))


def test_durable_only(tmp_path: Path) -> None:
    """Only what is on disk, if that is asked for."""
    with penstock.open(tmp_path / "log") as log:
        log.extend([b"a", b"b"])
        log.sync()
        log.append(b"c")
        assert len(read_all(table(tmp_path / "log", durable="true"))) == 2
        assert len(read_all(table(tmp_path / "log"))) == 3
        log.sync()
        assert len(read_all(table(tmp_path / "log", durable="true"))) == 3


def segment_files(path: Path) -> list[Path]:
    """The files of a log's segments, in order."""
    return sorted(path.glob("*.seg"))


def test_events_that_retention_removed(pair: list[Path]) -> None:
    """Read from the earliest, a log begins where it begins; from a lost offset it is data loss."""
    gone, kept = segment_files(pair[0])[:2]
    os.unlink(gone)
    first = int(kept.name[:20])
    assert read_all(table(pair[0], columns="offset"))[0]["offset"] == first
    lossy = {"startingOffsets": '{"0": 5}', "columns": "offset"}
    with pytest.raises(errors.Gap, match="failOnDataLoss=false") as caught:
        table(pair[0], **lossy).partitions()
    assert caught.value.first_seq == first
    found = read_all(table(pair[0], failOnDataLoss="false", **lossy))
    assert [r["offset"] for r in found] == list(range(first, 1501))


@pytest.mark.parametrize("fail", [True, False])
def test_events_that_go_while_they_are_read(pair: list[Path], fail: bool) -> None:
    """Segments deleted between the plan and the task, and under the task, obey failOnDataLoss."""
    reader = table(pair[0], columns="offset", minPartitions=3, failOnDataLoss=str(fail).lower())
    planned: Any = reader.partitions()
    os.unlink(segment_files(pair[0])[0])
    first = int(segment_files(pair[0])[0].name[:20])
    if fail:
        with pytest.raises(errors.Gap, match="failOnDataLoss=false"):
            read_all(reader, planned)
    else:
        found = [r["offset"] for r in read_all(reader, planned)]
        assert found == list(range(first, 1501))


def test_a_log_that_ends_before_it_should(pair: list[Path]) -> None:
    """A task that finds fewer events than the driver saw says so."""
    reader = table(pair[0], columns="offset")
    forged = [splits.Split(str(pair[0]), 1400, 1600)]
    with pytest.raises(errors.Gap, match="ends at seq 1500"):
        read_all(reader, forged)
    lenient = table(pair[0], columns="offset", failOnDataLoss="false")
    assert [r["offset"] for r in read_all(lenient, forged)] == list(range(1400, 1501))


def test_another_log_at_the_path(pair: list[Path]) -> None:
    """A task that finds another log at the path than the driver planned reads nothing of it."""
    reader = table(pair[0], columns="offset", minPartitions=2)
    planned: Any = reader.partitions()
    moved = pair[0].with_name("moved")
    pair[0].rename(moved)
    make(pair[0])
    with pytest.raises(errors.Gone) as caught:
        read_all(reader, planned)
    assert caught.value.filename == str(pair[0])


def test_damage(pair: list[Path]) -> None:
    """A damaged event is an error, and skipped with onDamage=skip."""
    file = segment_files(pair[0])[1]
    with penstock.open(pair[0], mode="r") as log:
        victim = int(file.name[:20]) + 3
        value = log[victim].value
        assert value is not None
    raw = bytearray(file.read_bytes())
    at = raw.index(value, 16384)
    raw[at] ^= 1
    file.write_bytes(raw)
    with pytest.raises(errors.Corrupt):
        read_all(table(pair[0], columns="offset"))
    found = [r["offset"] for r in read_all(table(pair[0], columns="offset", onDamage="skip"))]
    assert found == [seq for seq in range(1, 1501) if seq != victim]


def test_an_empty_log(tmp_path: Path) -> None:
    """No events, no rows, no splits."""
    penstock.open(tmp_path / "log").close()
    reader = table(tmp_path / "log")
    assert reader.partitions() == []
    assert list(reader.read(None)) == []  # type: ignore[arg-type]


FILTERS: list[Any] = [
    *(
        kind(("offset",), n)
        for kind in (
            EqualTo,
            EqualNullSafe,
            GreaterThan,
            GreaterThanOrEqual,
            LessThan,
            LessThanOrEqual,
        )
        for n in (-5, 0, 1, 700, 1500, 2**62)
    ),
    *(
        kind(("timestamp",), EPOCH + dt.timedelta(microseconds=BASE_MS * 1000 + us))
        for kind in (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
        for us in (-1, 0, 1, 700_000, 700_001, 10**15)
    ),
    EqualTo(("timestamp",), EPOCH - dt.timedelta(days=1)),
    LessThan(("timestamp",), EPOCH - dt.timedelta(days=1)),
    GreaterThan(("timestamp",), EPOCH - dt.timedelta(days=1)),
    EqualTo(("topic",), "t1"),
    EqualNullSafe(("topic",), ""),
    In(("topic",), ("t1", "t2", "nope")),
    EqualTo(("partition",), 1),
    In(("partition",), (0, 5)),
    IsNotNull(("offset",)),
    IsNotNull(("topic",)),
]
LEFT_TO_SPARK: list[Any] = [
    Not(EqualTo(("topic",), "t1")),
    IsNull(("key",)),
    IsNotNull(("key",)),
    EqualTo(("key",), b"k1"),
    StringContains(("topic",), "t"),
    GreaterThan(("topic",), "t"),
    In(("offset",), (1, 2)),
    EqualTo(("offset",), None),
    EqualTo(("headers", "key"), "a"),
]


def holds(one: Any, row: dict[str, Any]) -> bool:
    """Spark's answer to a filter, for columns that are never null."""
    value = row[one.attribute[0]]
    if isinstance(one, IsNotNull):
        return True
    if isinstance(one, In):
        return value in one.value
    if isinstance(one, GreaterThan):
        return bool(value > one.value)
    if isinstance(one, GreaterThanOrEqual):
        return bool(value >= one.value)
    if isinstance(one, LessThan):
        return bool(value < one.value)
    if isinstance(one, LessThanOrEqual):
        return bool(value <= one.value)
    return bool(value == one.value)


def test_filters_that_are_taken_give_sparks_answer(pair: list[Path]) -> None:
    """Each alone, and many at random together."""
    rows = plain_rows(*pair)
    chooser = random.Random(7)
    together = [chooser.sample(FILTERS, chooser.randint(2, 4)) for _ in range(60)]
    for filters in [*([one] for one in FILTERS), *together]:
        reader = table(*pair, columns="topic,partition,offset,timestamp")
        assert reader.pushFilters(filters) == []
        found = [(r["partition"], r["offset"]) for r in read_all(reader)]
        expected = [r for r in rows if all(holds(one, r) for one in filters)]
        assert found == [(r["partition"], r["offset"]) for r in expected], filters


def test_filters_that_are_left_to_spark() -> None:
    """What a log cannot answer exactly is handed back."""
    limits, left = take_filters([*LEFT_TO_SPARK, GreaterThan(("offset",), 7)])
    assert left == LEFT_TO_SPARK
    assert limits.start == 8


def test_filters_and_subscriptions_meet(pair: list[Path]) -> None:
    """A filter by topic narrows each way to choose topics."""
    for options in (
        {"subscribe": "t1,t2"},
        {"subscribePattern": "t[12]"},
        {"assign": '{"t1": [0], "t2": [0]}'},
    ):
        reader = table(*pair, columns="topic,partition", **options)
        reader.pushFilters([In(("topic",), ("t2", "t3"))])
        found = read_all(reader)
        wanted = [r for r in plain_rows(*pair) if r["topic"] == "t2"]
        if "assign" in options:
            wanted = [r for r in wanted if r["partition"] == 0]
        assert len(found) == len(wanted) > 0


def test_a_users_schema(pair: list[Path]) -> None:
    """Columns given with schema() are those of the source, by name and type."""
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    given = {"path": str(pair[0])}
    narrow = StructType([StructField("offset", LongType()), StructField("topic", StringType())])
    found = read_all(TableReader(given, narrow))
    assert found == [{n: r[n] for n in ("offset", "topic")} for r in plain_rows(pair[0])]
    for wrong, what in (
        (StructField("offset", StringType()), "must be bigint, got string"),
        (StructField("x", LongType()), "no column 'x'"),
    ):
        with pytest.raises(errors.Usage, match=what):
            TableReader(given, StructType([wrong]))


def test_batches_are_of_bounded_size(tmp_path: Path) -> None:
    """Large values come few at a time, however many rows there are."""
    with penstock.open(tmp_path / "log") as log:
        for _ in range(40):
            log.append(b"x" * 1_000_000)
    reader = table(tmp_path / "log", columns="value")
    found = reader.partitions()
    sizes = [batch.nbytes for split in found for batch in reader.read(split)]
    assert sum(sizes) > 40_000_000
    assert max(sizes) < splits.BATCH_BYTES + 1_000_100  # the value that makes it full goes in whole
    assert pa.total_allocated_bytes() < 30_000_000


def make_ring(path: Path, count: int = 3000) -> Path:
    """A ring that has dropped most of these events."""
    with penstock.create(path, ring="128KiB") as ring:
        for i in range(count):
            ring.append(b"%d %s" % (i, b"." * 100), topic=f"t{i % 3}", time=BASE_MS * 1_000_000 + i)
    return path


def test_a_ring_is_a_log_like_any_other(tmp_path: Path) -> None:
    """Its rows are its events, whatever names it, beside logs in directories."""
    path = make_ring(tmp_path / "recent.ring")
    with penstock.open(path, mode="r") as ring:
        wanted = [(e.seq, e.value) for e in ring]
        topics = [e.seq for e in ring.read(topic="t1")]
    make(tmp_path / "orders", 10)
    for named in (path, tmp_path / "*.ring"):
        rows = read_all(table(named))
        assert [(r["offset"], r["value"]) for r in rows] == wanted
    both = read_all(table(tmp_path))
    assert {r["log"] for r in both} == {str(path), str(tmp_path / "orders")}
    found = read_all(table(path, subscribe="t1", minPartitions=4))
    assert sorted(r["offset"] for r in found) == topics


@pytest.mark.parametrize("fail", [True, False])
def test_events_that_a_ring_drops_before_they_are_read(tmp_path: Path, fail: bool) -> None:
    """They are data loss: an error, or the rest of the split."""
    path = make_ring(tmp_path / "recent.ring")
    reader = table(path, failOnDataLoss=fail, minPartitions=2)
    found = [s for s in reader.partitions() if isinstance(s, splits.Split)]
    with penstock.open(path) as ring:
        for i in range(500):
            ring.append(b"%d" % i * 30)
        first = ring.first_seq
    assert found[0].start < first < found[-1].stop
    if fail:
        with pytest.raises(errors.Gap, match="failOnDataLoss"):
            list(reader.read(found[0]))
    else:
        rows = [r for split in found for b in reader.read(split) for r in b.to_pylist()]
        assert [r["offset"] for r in rows] == list(range(first, found[-1].stop))
