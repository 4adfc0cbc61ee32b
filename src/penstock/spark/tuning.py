"""Settings of a Spark session that this source and sink are faster with.

They belong to the session, not to a query: other Python stages in it have the same batches. What
they change is how fast something is and how much memory it takes, never a result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import Usage, WrongType

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH_BYTES = 64 << 20  # what Spark holds a batch to if nothing is set
BATCH_ROWS = 10_000  # the same
_NEVER_ASK = 2**31 - 1


def tune(spark: SparkSession, *, row_bytes: int = 4096) -> dict[str, str]:
    """Set what makes logs faster in a session; returns the settings.

    Filters are handed down to the source, which skips what they exclude. And rows go to the sink,
    and to every other Python stage of the session, in batches of a fixed number, so that Spark need
    not ask behind every row how large its batch has become. A batch is in memory as a whole:
    ``row_bytes`` is what hardly any row exceeds, and a batch has as many as take 64 MiB with it, at
    most 10 000.
    """
    if isinstance(row_bytes, bool) or not isinstance(row_bytes, int):
        raise WrongType(f"row_bytes is a whole number, not {row_bytes!r}")
    if row_bytes < 1:
        raise Usage(f"row_bytes is from 1 on, not {row_bytes}")
    chosen = {
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(
            min(BATCH_ROWS, max(1, BATCH_BYTES // row_bytes))
        ),
        "spark.sql.execution.arrow.maxBytesPerBatch": str(_NEVER_ASK),
    }
    for name, value in chosen.items():
        spark.conf.set(name, value)
    return chosen
