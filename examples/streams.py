"""The demo's two streams: flights into a lake, and delays by airport and hour.

This is ordinary Spark code. `penstock.spark.lake` makes the first result. The second is a streaming
aggregation, whose complete result replaces the table at each batch by one rename: a batch that
Spark repeats after a death writes the same table again.
"""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyarrow import parquet

from examples import flights
from penstock.spark import lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROWS_PER_BATCH = 40_000


def why_no_spark() -> str | None:
    """What is missing to run Spark, in one sentence, or None."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        return "The demo needs Spark: pip install 'penstock[spark]'."
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java") if home is None else shutil.which("java", path=f"{home}/bin")
    if java is None:
        return (
            "The demo needs Java 17 or newer for Spark: install it "
            "(Debian, Ubuntu: apt-get install openjdk-17-jre-headless)."
        )
    return None


def session(scratch: Path, log: Path) -> SparkSession:
    """A Spark on this machine's cores that keeps all its files in ``scratch``, and is quiet."""
    scratch.mkdir(parents=True)
    os.environ |= {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "TMPDIR": str(scratch),
    }
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": (
            f"-Djava.io.tmpdir={scratch} -XX:-UsePerfData "
            # It runs for a minute: fast compilation is better than good code.
            "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        ),
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
    }
    builder: Any = SparkSession.builder
    builder = builder.master("local[*]").appName("penstock demo")
    for name, value in settings.items():
        builder = builder.config(name, value)
    with _output_to(log), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made: SparkSession = builder.getOrCreate()
    return made


@contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Redirect the output of processes that are started in the block to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.dup2(file, 1)
        os.dup2(file, 2)
        yield
    finally:
        for fd, old in zip((1, 2), kept, strict=True):
            os.dup2(old, fd)
            os.close(old)
        os.close(file)


def end(spark: SparkSession) -> None:
    """Stop Spark, and wait until its Java is gone."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # it waits for that
    gateway.proc.wait()


class Delays:
    """The table of delays by airport and hour, as one Parquet file that is always complete."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.flights = 0

    def start(self, spark: SparkSession, logs: Path, checkpoint: Path) -> StreamingQuery:
        """Start the stream that keeps the table."""
        from pyspark.sql import functions as F

        events = (
            spark.readStream.format("penstock")
            .options(startingOffsets="earliest", maxOffsetsPerTrigger=ROWS_PER_BATCH)
            .options(columns="value")
            .load(str(logs))
        )
        flight = F.from_json(F.col("value").cast("string"), flights.SCHEMA)
        return (
            events.select(flight.alias("f"))
            .groupBy(F.col("f.origin").alias("airport"), F.col("f.time_hour").alias("hour"))
            .agg(
                F.count(F.lit(1)).alias("flights"),
                F.count("f.dep_delay").alias("departed"),
                F.sum("f.dep_delay").alias("delay_sum"),
                F.max("f.dep_delay").alias("delay_max"),
            )
            .writeStream.outputMode("complete")
            .foreachBatch(self._replace)
            .option("checkpointLocation", str(checkpoint))
            .queryName("delays")
            .start()
        )

    def _replace(self, table: DataFrame, _: int) -> None:
        rows = table.orderBy("airport", "hour").toArrow()
        partial = self.path.with_suffix(".tmp")
        parquet.write_table(rows, partial)
        partial.rename(self.path)
        self.flights = sum(rows["flights"].to_pylist())


class Lake:
    """The lake and its progress."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.batches: list[lake.Batch] = []

    def start(self, spark: SparkSession, logs: Path) -> StreamingQuery:
        """Start the stream that fills the lake."""
        return lake.start(
            spark,
            logs,
            self.path,
            schema=flights.SCHEMA,
            partition_by=("month",),
            rows_per_batch=ROWS_PER_BATCH,
            progress=self.batches.append,
            name="lake",
        )

    @property
    def rows(self) -> int:
        """Rows and bad records so far."""
        last = self.batches[-1:]
        return sum(batch.rows_total + batch.bad_rows_total for batch in last)
