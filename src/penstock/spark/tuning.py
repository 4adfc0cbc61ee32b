"""Settings of a Spark session: which Python it starts, and what makes logs faster.

They belong to the session, not to a query: other Python stages in it get the same batches. `tune`
changes speed and memory, never a result.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, cast

from penstock.errors import Usage, WrongType
from penstock.spark.quirks import builder_setting
from penstock.system.needs import needed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH_BYTES = 64 << 20  # Spark's default limits of a batch
BATCH_ROWS = 10_000
_NEVER_ASK = 2**31 - 1


def prepare(
    builder: SparkSession.Builder | None = None, *, row_bytes: int = 4096
) -> SparkSession.Builder:
    """A session builder that is set up for logs; call ``getOrCreate`` on it.

    Spark finds the source and the sink with the Python that it starts: by default the ``python3``
    of the PATH. In a virtual environment that is not activated, that is another Python, and Spark
    reports DATA_SOURCE_NOT_FOUND. This function makes Spark start the Python that runs now, for the
    driver and for workers on the same host; PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON win if they
    are set. A local Spark listens on loopback only, unless SPARK_LOCAL_IP is set. The settings of
    `tune` are set as well, with ``row_bytes``.

    Call it before the first session of the process starts.
    """
    pyspark = needed("pyspark.sql", "'penstock[spark]'")
    if pyspark.SparkSession.getActiveSession() is not None:
        raise Usage(
            "a Spark session is active, and it has chosen its Python already; stop it first, or "
            "call tune(spark) if it finds the source"
        )
    if builder is None:
        builder = cast("SparkSession.Builder", pyspark.SparkSession.builder)
    if not isinstance(builder, pyspark.SparkSession.Builder):
        raise WrongType(f"builder must be a SparkSession.Builder, got {type(builder).__name__}")
    chosen = _settings(row_bytes)
    python = os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    driver = os.environ.setdefault("PYSPARK_DRIVER_PYTHON", python)
    master = builder_setting(builder, "spark.master", "local")
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    chosen |= {"spark.pyspark.python": python, "spark.pyspark.driver.python": driver}
    for name, value in chosen.items():
        builder = builder.config(name, value)
    return builder


def tune(spark: SparkSession, *, row_bytes: int = 4096) -> dict[str, str]:
    """Set what makes logs faster in a session; returns the settings.

    Filters are pushed down to the source, which skips what they exclude. Rows go to the sink, and
    to every other Python stage of the session, in batches of a fixed number of rows, so that Spark
    does not measure the batch after every row. A batch is in memory as a whole: ``row_bytes`` is a
    size that few rows exceed, and a batch has as many rows as take 64 MiB, at most 10 000.
    """
    chosen = _settings(row_bytes)
    if not is_session(spark):
        raise WrongType(f"spark must be a SparkSession, got {type(spark).__name__}")
    for name, value in chosen.items():
        spark.conf.set(name, value)
    return chosen


def is_session(given: object) -> bool:
    """Whether it is a session of this process, or one of a client of Spark Connect."""
    classes: list[type] = [needed("pyspark.sql", "'penstock[spark]'").SparkSession]
    client = sys.modules.get("pyspark.sql.connect.session")  # loaded if there is such a session
    if client is not None:
        classes.append(client.SparkSession)
    return isinstance(given, tuple(classes))


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
