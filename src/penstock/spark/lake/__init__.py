"""Logs into a lake: a directory of partitioned Parquet that holds each event once.

>>> from penstock.spark import lake                                         # doctest: +SKIP
>>> lake.run(spark, "data/clicks", "lake/clicks", schema="user string, total double")
Summary(batches=1, rows=99, bad_rows=1, files=1, seconds=2.1, rows_total=99, bad_rows_total=1)

After a death, Spark runs a batch again, maybe cut into other files, and moving several files is not
one step. So Spark's record of what was done is not enough. The lake's journal says which batches
are in the lake, and it decides:

1.  `start` takes the lock of the lake's stream, which the kernel frees when its holder dies.
2.  If the journal names files that are still in staging, it moves them into place: the last batch
    was published, and its process died in step 7. Everything else in staging is deleted.
3.  Spark decides what batch N is, and writes it into its checkpoint before anything runs.
4.  If the journal has batch N, the batch was published before Spark could note it: done.
5.  Spark writes batch N into a directory in staging that no other attempt uses: rows that parse
    below ``rows``, the others below ``bad``. The driver syncs the files.
6.  One rename replaces the journal by one that says: the lake has batch N, with these files and
    their names, which contain N; so many rows and bad rows; and each log is read up to here. This
    publishes the batch. Before this step, nothing of the batch is in the lake, and a death leaves
    only files in staging; after it, the whole batch will be there, and is never redone.
7.  The staged files are renamed into place, one by one. After a death, step 2 does the rest.
8.  Spark notes that batch N is done. A death before that leads to step 4.

Batches must follow each other without a gap; otherwise the checkpoint is not the lake's and is
refused. If the checkpoint is lost, a new one starts where the journal ends. A process that outlives
its query publishes nothing after another may have taken over: step 6 checks under a mutex that it
still holds the lock of step 1.

`compact` merges small files. It builds a new directory for a partition in staging, with links to
the files that stay, and exchanges it with the old one in one step of the file system. So at no
moment is an event missing or there twice, and a death leaves only files in staging. It runs beside
a stream: each takes ``publish.lock`` while it changes names.

Readers need no Spark and no lock. While step 7 runs, for some milliseconds, they see a batch file
by file; after a death in step 7, until the stream is started again. A reader that lists a directory
before `compact` exchanges it, and opens a file afterwards, is told that the file is gone; it must
list again.
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
    LakeSettings,
    Paths,
    Progress,
    await_end,
    begin,
    check_text,
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
        A directory that is not a log stands for the logs in it. New logs are found.
    target : path
        The directory of the lake. Its book is beside it: ``_clicks`` for ``clicks``.
    schema : str or StructType, optional
        Fields of the JSON object that each value is, which become columns: ``"user string, total
        double"``. Values that do not parse go to ``bad``. Without it, values are kept as they are.
    partition_by : sequence of str
        Columns that name the directories: columns of the lake or, if it has none of that name,
        ``date``, ``year``, ``month``, ``day`` and ``hour`` of the event's timestamp in UTC. With
        ``()`` all files are in one directory.
    keep : sequence or mapping, optional
        Columns of the event that the lake has: log, offset, timestamp, topic and key, and value if
        there is no schema. A mapping gives them names, as ``{"timestamp": "event_time", …}``.
    bad : path, optional
        Where records go that do not parse. Default: ``bad`` in the book.
    checkpoint : path, optional
        Spark's checkpoint. Default: ``checkpoint`` in the book.
    rows_per_batch, rows_per_file : int
        Limits. A batch has one file per directory, or more if there are more rows than that.
    options : mapping, optional
        More options of the source, such as ``{"failOnDataLoss": "false"}``.
    progress : callable, optional
        Called with a `Batch` after each one, in another thread.
    name : str, optional
        The query's name.
    every : str, optional
        Time between batches, such as "10 seconds". Default: no pause.
    """
    check_text(every, "every")
    how = LakeSettings(
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
    """Copy what the logs hold now into the lake at ``target``, and return when it is there.

    Takes the arguments of `start`, except ``every``. If it is interrupted, it stops the query; the
    next run goes on from there.
    """
    began = time.monotonic()
    query, filler = begin(spark, logs, target, LakeSettings(**settings), {"availableNow": True})
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
