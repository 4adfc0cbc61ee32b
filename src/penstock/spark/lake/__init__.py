"""Logs into a lake: a plain directory of partitioned Parquet that holds each event once.

>>> from penstock.spark import lake                                         # doctest: +SKIP
>>> lake.run(spark, "data/clicks", "lake/clicks", schema="user string, total double")
Summary(batches=1, rows=99, bad_rows=1, files=1, seconds=2.1, rows_total=99, bad_rows_total=1)

Spark runs a batch again after a death, perhaps cut into other files, and a move of several files is
not one step; so Spark's own record of what was done is not enough. The lake's journal says which
batches are in the lake, and it decides:

1.  `start` takes the lock of the lake's stream, which the kernel frees when its holder dies.
2.  If the journal names staged files that are still in staging, it moves them into place: the
    batch before was published, and its process died on the way. All else in staging is deleted.
3.  Spark decides what batch N is, and writes that down in its checkpoint before anything runs.
4.  If the journal has batch N, the batch was published before Spark could note that: done.
5.  Spark writes batch N into a directory in staging that no other attempt uses; rows that parse
    below ``rows``, the others below ``bad``. The driver syncs the files.
6.  The journal is replaced, by one rename, by one that says: the lake has batch N, and these are
    its files and their names, which carry N; so many rows and bad rows; and each log is read up to
    here. This publishes the batch. Before this moment nothing of it is in the lake, and a death
    leaves only files in staging; from this moment on it will be there whole, and is never redone.
7.  The staged files are renamed into place, one by one. A death leaves the rest to step 2.
8.  Spark notes that batch N is done. A death before that leads to step 4.

Batches follow each other without a gap, or the checkpoint is not the lake's and is refused. If the
checkpoint is lost, a new one begins where the journal says. A process that outlives its query
publishes nothing after another may have taken over: step 6 checks under a mutex that the lock of
step 1 is still its own.

`compact` merges small files. It builds a new directory for a partition in staging, with links to
the files that stay, and exchanges it with the old one in one step of the file system; so there is
no moment at which an event is missing or there twice, and a death at any moment leaves only files
in staging. It runs beside a stream: each takes ``publish.lock`` while it changes names.

Readers need no Spark and no lock. They see a batch file by file while step 7 runs, for some
milliseconds, and after a death in it, until the stream is started again. One that has listed a
directory before `compact` exchanges it and opens a file after that is told that the file is gone;
it must list again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.spark.lake.compaction import ROWS_PER_FILE, Compaction, compact
from penstock.spark.lake.stream import (
    ROWS_PER_BATCH,
    Batch,
    Paths,
    Progress,
    Settings,
    await_end,
    begin,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

__all__ = ["Batch", "Compaction", "Summary", "compact", "run", "start"]


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run did, and what the lake has now."""

    batches: int
    rows: int
    bad_rows: int
    files: int
    seconds: float
    rows_total: int
    bad_rows_total: int


def start(
    spark: SparkSession,
    logs: Paths,
    target: str | os.PathLike[str],
    *,
    schema: str | StructType | None = None,
    partition_by: Sequence[str] = ("date",),
    keep: Sequence[str] | Mapping[str, str] | None = None,
    bad: str | os.PathLike[str] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    rows_per_batch: int = ROWS_PER_BATCH,
    rows_per_file: int = ROWS_PER_FILE,
    options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    name: str | None = None,
    every: str | None = None,
) -> StreamingQuery:
    """Start a stream that fills the lake at ``target`` from logs, each event once.

    Parameters
    ----------
    spark : SparkSession
        Of this process; its executors must see the logs and the target under the same paths.
    logs : path, glob, or a list of them
        A directory that is no log stands for the logs in it. Logs that come later are found.
    target : path
        The lake's directory. Its book is beside it: ``_clicks`` for ``clicks``.
    schema : str or StructType, optional
        Fields of the JSON object that each value is, which become columns: ``"user string, total
        double"``. What does not parse is put aside. Without it, values are kept as they are.
    partition_by : sequence of str
        Columns that name the directories: columns of the lake or, if it has none of that name,
        ``date``, ``year``, ``month``, ``day`` and ``hour`` of the event's timestamp in UTC. With
        ``()`` all files are in one directory.
    keep : sequence or mapping, optional
        Columns of the event that the lake has: log, offset, timestamp, topic and key, and value if
        there is no schema. A mapping gives them names, as ``{"timestamp": "event_time", …}``.
    bad : path, optional
        Where records go that do not parse; ``bad`` in the book.
    checkpoint : path, optional
        Spark's checkpoint; ``checkpoint`` in the book.
    rows_per_batch, rows_per_file : int
        Limits. A batch has one file per directory, or more if it has more rows for it than that.
    options : mapping, optional
        More options of the source, such as ``{"failOnDataLoss": "false"}``.
    progress : callable, optional
        Called with a `Batch` after each one, in another thread.
    name : str, optional
        The query's name.
    every : str, optional
        Time between batches, such as "10 seconds"; one follows the other if not given.
    """
    how = Settings(
        schema=schema,
        partition_by=partition_by,
        keep=keep,
        bad=bad,
        checkpoint=checkpoint,
        rows_per_batch=rows_per_batch,
        rows_per_file=rows_per_file,
        options=options,
        progress=progress,
        name=name,
    )
    query, _ = begin(spark, logs, target, how, {"processingTime": every or "0 seconds"})
    return query


def run(
    spark: SparkSession, logs: Paths, target: str | os.PathLike[str], **settings: Any
) -> Summary:
    """Take what the logs hold now into the lake at ``target``, and return when it is there.

    Takes the settings of `start`, but for ``every``. Interrupted, it stops the query first; the
    next run goes on from there.
    """
    began = time.monotonic()
    query, filler = begin(spark, logs, target, Settings(**settings), {"availableNow": True})
    await_end(query, filler)
    done = filler.batches
    return Summary(
        batches=len(done),
        rows=sum(batch.rows for batch in done),
        bad_rows=sum(batch.bad_rows for batch in done),
        files=sum(batch.files for batch in done),
        seconds=time.monotonic() - began,
        rows_total=filler.journal.rows,
        bad_rows_total=filler.journal.bad_rows,
    )
