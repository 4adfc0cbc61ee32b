"""Settings of a Spark session: which Python it starts, and what logs are faster with.

They belong to the session, not to a query: other Python stages in it have the same batches. What
`tune` changes is how fast something is and how much memory it takes, never a result.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, cast

from penstock.errors import Usage, WrongType
from penstock.system.needs import needed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH_BYTES = 64 << 20  # what Spark holds a batch to if nothing is set
BATCH_ROWS = 10_000  # the same
_NEVER_ASK = 2**31 - 1


def prepare(
    builder: SparkSession.Builder | None = None, *, row_bytes: int = 4096
) -> SparkSession.Builder:
    """A session builder that is set up for logs; call ``getOrCreate`` on it.

    Spark finds the source and the sink with the Python that it starts, which is the ``python3`` of
    the PATH unless it is told otherwise. In an environment that is not activated that is another
    Python, and Spark says DATA_SOURCE_NOT_FOUND. This has Spark start the Python that runs now, for
    the driver and for workers on the same host; PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON go before
    it where they are set. A local Spark listens on loopback only, unless SPARK_LOCAL_IP says where.
    The settings of `tune` are set as well; ``row_bytes`` is for them.

    It has to come before the first session of the process.
    """
    pyspark = needed("pyspark.sql", "'penstock[spark]'")
    if pyspark.SparkSession.getActiveSession() is not None:
        raise Usage(
            "a Spark session is active, and the Python that it starts was settled with it; stop it "
            "first, or call tune(spark) if it finds the source"
        )
    if builder is None:
        builder = cast("SparkSession.Builder", pyspark.SparkSession.builder)
    if not isinstance(builder, pyspark.SparkSession.Builder):
        raise WrongType(f"builder must be a SparkSession.Builder, got {type(builder).__name__}")
    chosen = _settings(row_bytes)
    python = os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    driver = os.environ.setdefault("PYSPARK_DRIVER_PYTHON", python)
    master = builder._options.get("spark.master", "local")
    if str(master).startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    chosen |= {"spark.pyspark.python": python, "spark.pyspark.driver.python": driver}
    for name, value in chosen.items():
        builder = builder.config(name, value)
    return builder


def tune(spark: SparkSession, *, row_bytes: int = 4096) -> dict[str, str]:
    """Set what makes logs faster in a session; returns the settings.

    Filters are handed down to the source, which skips what they exclude. And rows go to the sink,
    and to every other Python stage of the session, in batches of a fixed number, so that Spark need
    not ask behind every row how large its batch has become. A batch is in memory as a whole:
    ``row_bytes`` is what hardly any row exceeds, and a batch has as many as take 64 MiB with it, at
    most 10 000.
    """
    chosen = _settings(row_bytes)
    for name, value in chosen.items():
        spark.conf.set(name, value)
    return chosen


def _settings(row_bytes: int) -> dict[str, str]:
    if isinstance(row_bytes, bool) or not isinstance(row_bytes, int):
        raise WrongType(f"row_bytes must be a whole number, got {row_bytes!r}")
    if row_bytes < 1:
        raise Usage(f"row_bytes must be 1 or more, got {row_bytes}")
    return {
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(
            min(BATCH_ROWS, max(1, BATCH_BYTES // row_bytes))
        ),
        "spark.sql.execution.arrow.maxBytesPerBatch": str(_NEVER_ASK),
    }
