"""Logs as streams of a real Spark: restarts, deaths, logs that come and go."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

import penstock
from penstock.spark import lag
from tests.support.fixtures import STORM
from tests.support.spark import holders
from tests.support.wait import wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROOT = Path(__file__).parents[2]


def fill(path: Path, count: int) -> Path:
    """A log with that many events more, in batches."""
    with penstock.open(path, segment_size="256KiB") as log:
        for start in range(0, count, 500):
            log.extend([b"%d" % i for i in range(start, min(count, start + 500))])
    return path


def read(spark: SparkSession, where: Any, **options: str) -> DataFrame:
    """A stream of the logs there, from their beginnings."""
    given = {"startingOffsets": "earliest", **options}
    return spark.readStream.format("penstock").options(**given).load(where)


def into_parquet(frame: DataFrame, top: Path, **trigger: Any) -> StreamingQuery:
    """Start a query that writes what it reads to Parquet, each row once."""
    trigger = trigger or {"availableNow": True}
    return (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(top / "checkpoint"))
        .option("path", str(top / "out"))
        .trigger(**trigger)
        .start()
    )


def offsets(spark: SparkSession, top: Path) -> list[tuple[str, int]]:
    """What has arrived, sorted."""
    found = spark.read.parquet(str(top / "out")).select("log", "offset").collect()
    return sorted((os.path.basename(row["log"]), row["offset"]) for row in found)


def test_all_of_it_in_batches_and_what_comes_later(spark: SparkSession, tmp_path: Path) -> None:
    """AvailableNow takes what is there, in batches of the size that was asked for; a restart from
    the checkpoint goes on after it; a log that is new is taken from its beginning."""
    logs = tmp_path / "logs"
    logs.mkdir()
    fill(logs / "0", 3000)
    frame = read(spark, str(logs / "*"), maxOffsetsPerTrigger="1200", columns="log,offset")
    query = into_parquet(frame, tmp_path)
    query.awaitTermination()
    rows = [p["numInputRows"] for p in query.recentProgress]
    assert [n for n in rows if n] == [1200, 1200, 600]
    assert lag(query.recentProgress[0]) == {str(logs / "0"): 1800}
    assert lag(query.recentProgress[-1]) == {str(logs / "0"): 0}
    assert offsets(spark, tmp_path) == [("0", n) for n in range(1, 3001)]

    fill(logs / "0", 10)
    fill(logs / "1", 5)
    into_parquet(frame, tmp_path).awaitTermination()
    expected = [*(("0", n) for n in range(1, 3011)), *(("1", n) for n in range(1, 6))]
    assert offsets(spark, tmp_path) == expected


def test_logs_that_come_while_it_runs(spark: SparkSession, tmp_path: Path) -> None:
    """A running query sees events, and logs that match its glob, as they come."""
    logs = tmp_path / "logs"
    logs.mkdir()
    query = into_parquet(
        read(spark, str(logs / "*"), columns="log,offset"), tmp_path, processingTime="0 seconds"
    )

    def seen() -> dict[str, int]:
        progress = query.lastProgress
        if query.exception() is not None:
            raise AssertionError(str(query.exception()))
        end = progress["sources"][0]["endOffset"] if progress else None
        found = json.loads(end) if isinstance(end, str) else end or {}
        return {os.path.basename(path): n for path, n in found.items()}

    try:
        fill(logs / "b", 700)
        wait_for(lambda: seen() == {"b": 701}, "the first log")
        fill(logs / "a", 300)
        wait_for(lambda: seen() == {"a": 301, "b": 701}, "the second log")
        fill(logs / "b", 50)
        wait_for(lambda: seen() == {"a": 301, "b": 751}, "more of the first")
    finally:
        query.stop()
    expected = [*(("a", n) for n in range(1, 301)), *(("b", n) for n in range(1, 751))]
    assert offsets(spark, tmp_path) == expected


def test_the_reader_process_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    """The query fails at once, and a restart loses nothing and repeats nothing."""
    path = fill(tmp_path / "log", 2000)
    frame = read(spark, str(path), columns="log,offset", maxOffsetsPerTrigger="300")
    query = into_parquet(frame, tmp_path, processingTime="0 seconds")
    wait_for(lambda: query.lastProgress and holders(path), "a first batch")
    for pid in holders(path):
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(StreamingQueryException):
        query.awaitTermination(60)
        fill(path, 1)  # a worker was meant: the reader is asked again only if something is new
        query.awaitTermination(60)
    fill(path, 100)
    into_parquet(frame, tmp_path).awaitTermination()
    with penstock.open(path, mode="r") as log:
        assert offsets(spark, tmp_path) == [("log", n) for n in range(1, log.last_seq + 1)]


def test_workers_are_killed(spark: SparkSession, tmp_path: Path) -> None:
    """Workers are killed while they read; after restarts each event is there once."""
    path = fill(tmp_path / "log", 400_000)
    frame = read(spark, str(path), maxOffsetsPerTrigger="150000", columns="log,offset,value")
    killed = 0
    for _ in range(20):
        query = into_parquet(frame, tmp_path)
        wait_for(functools.partial(holders, path), "the reader")
        reader = holders(path)[:1]
        while query.isActive:
            workers = [pid for pid in holders(path) if pid not in reader]
            if workers and killed < 3:
                os.kill(workers[0], signal.SIGKILL)
                killed += 1
                break
        try:
            query.awaitTermination()
        except StreamingQueryException:
            continue
        break
    assert killed
    assert offsets(spark, tmp_path) == [("log", n) for n in range(1, 400_001)]


DRIVER = """
import sys
from pathlib import Path
from tests.support.spark import local_session
from tests.spark.test_stream import into_parquet, read
log, top, scratch = map(Path, sys.argv[1:])
spark = local_session(scratch)
frame = read(spark, str(log), maxOffsetsPerTrigger="700", columns="log,offset")
into_parquet(frame, top).awaitTermination()
"""


def _there_or_over(file: Path, process: subprocess.Popen[bytes]) -> bool:
    return file.exists() or process.poll() is not None


def test_the_driver_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    """A driver killed in the middle of batches goes on from its checkpoint, each event once."""
    path = fill(tmp_path / "log", 4000)
    for kills in range(10 if STORM else 1):
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(path), str(tmp_path), str(tmp_path / "scratch")],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            planned = tmp_path / "checkpoint" / "offsets" / str(2 * kills + 1)
            wait_for(functools.partial(_there_or_over, planned, driver), "a planned batch", 180)
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    frame = read(spark, str(path), maxOffsetsPerTrigger="700", columns="log,offset")
    into_parquet(frame, tmp_path).awaitTermination()
    assert offsets(spark, tmp_path) == [("log", n) for n in range(1, 4001)]
