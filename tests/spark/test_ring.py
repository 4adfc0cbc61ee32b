"""Rings as tables, streams and sinks of a real Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

import penstock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def make(path: Path, count: int = 20_000) -> Path:
    """A ring that has dropped most of these events."""
    with penstock.create(path, ring="1MiB") as ring:
        for start in range(0, count, 500):
            ring.extend([b"%d" % i * 20 for i in range(start, start + 500)], topic="t")
    return path


def test_a_ring_as_a_table(spark: SparkSession, tmp_path: Path) -> None:
    """Every event that is still there is a row."""
    path = make(tmp_path / "recent.ring")
    with penstock.open(path, "r") as ring:
        wanted = {e.seq: e.value for e in ring}
    rows = spark.read.format("penstock").option("minPartitions", "3").load(str(path)).collect()
    assert {r["offset"]: bytes(r["value"]) for r in rows} == wanted
    assert len(rows) == len(wanted) < 20_000


def test_a_ring_as_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    """A query that comes back before it is lapped reads each event once; later, it fails."""
    path = make(tmp_path / "recent.ring", 4_000)

    def run(**options: str) -> None:
        query = (
            spark.readStream.format("penstock")
            .options(startingOffsets="earliest", **options)
            .load(str(path))
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .option("path", str(tmp_path / "out"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(60)

    def offsets() -> list[int]:
        return sorted(r["offset"] for r in spark.read.parquet(str(tmp_path / "out")).collect())

    with penstock.open(path) as ring:
        first = ring.first_seq
        run()
        ring.extend([b"more"] * 1000)
        run()
        assert offsets() == list(range(first, 5001))
        for _ in range(20):
            ring.extend([b"x" * 100] * 1000)
        with pytest.raises(PySparkException, match="failOnDataLoss"):
            run()
        run(failOnDataLoss="false")
        assert offsets() == [*range(first, 5001), *range(ring.first_seq, ring.last_seq + 1)]


def test_a_ring_as_a_sink(spark: SparkSession, tmp_path: Path) -> None:
    """Rows are appended, the staging directory stands beside the file, and too much is refused."""
    path = tmp_path / "recent.ring"
    penstock.create(path, ring="256KiB").close()
    frame = spark.range(500).selectExpr("cast(id as string) as value")
    frame.write.format("penstock").mode("append").save(str(path))
    with penstock.open(path, "r") as ring:
        assert sorted(int(e.value or b"") for e in ring) == list(range(500))
    with pytest.raises(PySparkException, match="half of the ring"):
        spark.range(50_000).selectExpr("cast(id as string) as value").write.format("penstock").mode(
            "append"
        ).save(str(path))
    with penstock.open(path, "r") as ring:
        assert len(ring) == 500
    assert {p.name for p in tmp_path.iterdir()} <= {"recent.ring", "recent.ring-staging"}
