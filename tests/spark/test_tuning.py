"""Settings that make logs faster, in a real session: they take effect and change no result."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock.spark import tune

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")
ASKED = "spark.sql.execution.arrow.maxBytesPerBatch"


@pytest.fixture
def fresh(spark: SparkSession) -> SparkSession:
    """A session whose settings are its own."""
    return spark.newSession()


def batch_rows(spark: SparkSession, count: int, nbytes: int = 1000) -> list[int]:
    """How many rows have the batches in which Spark hands over ``count`` rows of ``nbytes``."""

    def counted(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            yield pa.record_batch({"n": pa.array([batch.num_rows], pa.int64())})

    frame = spark.range(0, count, 1, 1).selectExpr(f"rpad(cast(id as string), {nbytes}) value")
    return [row["n"] for row in frame.mapInArrow(counted, "n long").collect()]


def test_batches_are_numbers_of_rows(fresh: SparkSession) -> None:
    """Their size in bytes is not asked for any more."""
    fresh.conf.set(ASKED, "100k")
    assert max(batch_rows(fresh, 1000)) < 200
    tune(fresh)
    assert batch_rows(fresh, 12_000) == [10_000, 2000]
    assert batch_rows(fresh, 10_000, 8000) == [10_000], "more than Spark has in a batch by default"


@pytest.mark.parametrize(
    ("row_bytes", "rows"), [(1, 10_000), (6710, 10_000), (1 << 20, 64), (1 << 40, 1)]
)
def test_large_rows_come_in_small_batches(fresh: SparkSession, row_bytes: int, rows: int) -> None:
    """So that a batch takes no more memory than Spark would let it."""
    chosen = tune(fresh, row_bytes=row_bytes)
    assert chosen["spark.sql.execution.arrow.maxRecordsPerBatch"] == str(rows)
    assert {name: fresh.conf.get(name) for name in chosen} == chosen


def test_what_was_said_last_counts(fresh: SparkSession) -> None:
    """It may be called again, with larger rows or smaller ones."""
    for row_bytes, first in ((1 << 20, 64), (100, 500)):
        tune(fresh, row_bytes=row_bytes)
        assert batch_rows(fresh, 500)[0] == first


@pytest.mark.parametrize("row_bytes", [0, -1, 1.5, "1k", True, None])
def test_a_size_that_is_none(fresh: SparkSession, row_bytes: Any) -> None:
    """Nothing is set then."""
    with pytest.raises(penstock.Usage, match="row_bytes must"):
        tune(fresh, row_bytes=row_bytes)
    assert fresh.conf.get(ASKED, None) is None


def test_what_is_read_and_written_is_the_same(fresh: SparkSession, path: Path) -> None:
    """Filters go down, rows arrive, each once and in order."""

    def odd() -> DataFrame:
        table = fresh.read.format("penstock").load(str(path))
        return table.where("topic = 'odd' and offset > 24000")

    def plan() -> str:
        return str(odd()._jdf.queryExecution().executedPlan().toString())

    frame = fresh.range(0, 25_000, 1, 2).selectExpr(
        "cast(id as string) value", "if(id % 2 = 0, 'even', 'odd') topic"
    )
    frame.write.format("penstock").mode("append").save(str(path))
    with penstock.open(path, "r") as log:
        assert [event.value for event in log] == [b"%d" % n for n in range(25_000)]
    assert "Filter (" in plan()
    expected = sorted(row["value"] for row in odd().collect())
    tune(fresh)
    assert "Filter (" not in plan()
    assert sorted(row["value"] for row in odd().collect()) == expected
    assert [int(value) for value in expected] == list(range(24_001, 25_000, 2))
    frame.write.format("penstock").mode("append").save(str(path))
    with penstock.open(path, "r") as log:
        assert [event.value for event in log] == [b"%d" % n for n in range(25_000)] * 2
