"""The stream that fills a lake: Spark reads and writes, the book decides what counts.

The algorithm is in the package's docstring. Spark calls `Filler.__call__` for each batch, and again
after a death; it must publish only through the book.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.arguments import check_progress
from penstock.errors import Closed, Corrupt, PenstockError, Usage, WrongType
from penstock.spark import quirks
from penstock.spark.lake.book import (
    HOLD_TIMEOUT,
    Book,
    Journal,
    LakeLock,
    Move,
    parquet_files,
)
from penstock.spark.lake.compaction import ROWS_PER_FILE
from penstock.spark.lake.shape import REASON, Shape, spread
from penstock.spark.read.logs import find_logs
from penstock.system import files
from penstock.system.needs import needed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

logger = logging.getLogger("penstock.lake")

ROWS_PER_BATCH = 1_000_000
EARLIEST = -2

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True, slots=True)
class Batch:
    """The result of one batch, for ``progress``: its own counts, and those of the lake."""

    number: int
    rows: int
    bad_rows: int
    files: int
    seconds: float
    rows_total: int
    bad_rows_total: int


Progress = Callable[[Batch], None]


@dataclass(frozen=True, slots=True)
class LakeSettings:
    """How to fill a lake, whichever trigger runs it."""

    schema: str | StructType | None = None
    partition_by: Sequence[str] = ("date",)
    keep: Sequence[str] | Mapping[str, str] | None = None
    bad: str | os.PathLike[str] | None = None
    checkpoint: str | os.PathLike[str] | None = None
    rows_per_batch: int = ROWS_PER_BATCH
    rows_per_file: int = ROWS_PER_FILE
    options: Mapping[str, Any] | None = None
    progress: Progress | None = None
    name: str | None = None


class Filler:
    """Publishes each batch that Spark brings, once."""

    def __init__(
        self,
        book: Book,
        hold: LakeLock,
        journal: Journal,
        shape: Shape,
        checkpoint: str,
        how: LakeSettings,
    ) -> None:
        self.batches: list[Batch] = []
        self.error: PenstockError | None = None
        self._book = book
        self._hold = hold
        self.journal = journal
        self._shape = shape
        self._checkpoint = checkpoint
        self._how = how
        self._query: str | None = None
        self._closed = False
        self._publishing = threading.Lock()

    def __call__(self, events: DataFrame, number: int) -> None:
        """Take one batch; if Spark brings it again after a death, it is recognised."""
        try:
            self._take(events, number)
        except PenstockError as error:
            self.error = error
            raise

    def _take(self, events: DataFrame, number: int) -> None:
        began = time.monotonic()
        ends = quirks.ends_of(self._checkpoint, number)
        if self._is_published(number, ends):
            logger.info("%s: has batch %d already", self._book.target, self.journal.batch)
            return
        batch = self.journal.batch + 1
        staged = self._book.stage("batch")
        some = number == 0 or ends != self.journal.ends
        moves, rows, bad_rows = self._stage(events, staged, batch) if some else ([], 0, 0)
        journal = replace(
            self.journal,
            batch=batch,
            query=self._query,
            query_batch=number,
            ends=ends,
            rows=self.journal.rows + rows,
            bad_rows=self.journal.bad_rows + bad_rows,
            moves=tuple(moves),
        )
        with self._publishing:
            if self._closed:
                raise Closed(
                    f"{self._book.target}: the query was stopped before this batch was published"
                )
            self.journal = self._book.publish(journal)
        files.remove_tree(staged)
        self._report(
            Batch(
                number=batch,
                rows=rows,
                bad_rows=bad_rows,
                files=len(moves),
                seconds=time.monotonic() - began,
                rows_total=journal.rows,
                bad_rows_total=journal.bad_rows,
            )
        )

    def _report(self, batch: Batch) -> None:
        self.batches.append(batch)
        logger.info(
            "%s: batch %d: %d rows, %d bad, in %d files; %.2f s",
            *(self._book.target, batch.number, batch.rows, batch.bad_rows, batch.files),
            batch.seconds,
        )
        if self._how.progress is not None:
            self._how.progress(batch)

    def _is_published(self, number: int, ends: Mapping[str, int]) -> bool:
        """Whether Spark brings the last batch again; any but that and the next is an error."""
        if self._query is None:
            self._query = quirks.query_of(self._checkpoint)
        journal = self.journal
        if journal.query not in (None, self._query):
            raise Corrupt(
                f"{self._book.path}: the lake was filled by the query {journal.query}, but "
                f"{self._checkpoint} is the checkpoint of the query {self._query}",
                path=self._book.journal_path,
            )
        if number == journal.query_batch and journal.query is not None:
            if ends == journal.ends:
                return True
            why = f"batch {number} ends at {ends}, but ended at {dict(journal.ends)} before"
        elif number == journal.query_batch + 1:
            return False
        else:
            why = f"batch {number} comes after batch {journal.query_batch}"
        raise Corrupt(
            f"{self._checkpoint}: this checkpoint does not belong to the lake: {why}. Delete the "
            "checkpoint: the lake knows where to go on",
            path=self._checkpoint,
        )

    def _stage(self, events: DataFrame, staged: str, batch: int) -> tuple[list[Move], int, int]:
        """Write a batch into staging; returns its files with their final names, and counts."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        shape = self._shape
        # Each query has a session of its own (quirks). Other tools read INT96, the default, as a
        # time without a zone.
        events.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        parsed = shape.parsed(events)
        seen = Observation()
        good = shape.good(parsed.observe(seen, F.count(REASON).alias("bad")))
        moves, rows = self._write(good, staged, "rows", batch, shape.partition_by)
        bad_rows = 0
        # For a batch without events, which is a plan without a source, Spark observes nothing.
        if shape.schema is not None and (rows == 0 or seen.get["bad"]):
            more, bad_rows = self._write(shape.bad(parsed), staged, "bad", batch, ())
            moves += more
        return moves, rows, bad_rows

    def _write(
        self, table: DataFrame, staged: str, place: Any, batch: int, by: Sequence[str]
    ) -> tuple[list[Move], int]:
        from pyarrow import parquet

        order = self._shape.order if place == "rows" else ("log", "offset")
        directory = os.path.join(staged, place)
        (
            spread(table, by, order)
            .write.option("maxRecordsPerFile", self._how.rows_per_file)
            # With the other algorithm, a failed task may leave files.
            .option("mapreduce.fileoutputcommitter.algorithm.version", "1")
            .partitionBy(*by)
            .parquet(directory)
        )
        moves: list[Move] = []
        total = 0
        for found in parquet_files(directory):
            rows = parquet.read_metadata(os.path.join(directory, found)).num_rows
            if rows:
                where = os.path.dirname(found)
                name = os.path.join(where, f"{batch:09d}-{len(moves)}.parquet")
                source = os.path.relpath(os.path.join(directory, found), self._book.staging)
                moves.append(Move(source, place, name))
                total += rows
        return moves, total

    def close(self) -> None:
        """Publish nothing from now on, and allow another query to fill the lake."""
        with self._publishing:
            self._closed = True
            self._hold.release()

    def close_after(self, query: StreamingQuery) -> None:
        """Close as soon as the query has ended, however it ends."""

        def wait() -> None:
            try:
                query.awaitTermination()
            except Exception as error:  # of any kind: the query failed, or Spark itself is gone
                logger.info("%s: the query ended: %s", self._book.target, type(error).__name__)
            finally:
                self.close()

        threading.Thread(target=wait, name="penstock-lake", daemon=True).start()


def begin(
    spark: SparkSession,
    logs: Paths,
    target: str | os.PathLike[str],
    how: LakeSettings,
    trigger: Any,
) -> tuple[StreamingQuery, Filler]:
    """Start the query that fills the lake."""
    needed("pyarrow.parquet", "'penstock[spark]'")
    _check(spark, how)
    paths = _paths(logs)
    book = Book(target, how.bad)
    shape = Shape(how.schema, how.keep, how.partition_by)
    checkpoint = book.checkpoint
    if how.checkpoint is not None:
        checkpoint = files.path_text(how.checkpoint, "checkpoint")
    if not how.options:
        find_logs(paths, missing="globs")  # Spark would bury the error of its own in a long trace
    book.make()
    hold = book.hold("stream", HOLD_TIMEOUT)
    try:
        journal = book.recover() or Journal(shape.partition_by)
        book.sweep("batch")
        if journal.partition_by != shape.partition_by:
            raise Usage(
                f"{book.target}: the lake is partitioned by {', '.join(journal.partition_by)}, got "
                f"partition_by {', '.join(shape.partition_by)}; choose another target"
            )
        options = dict(how.options or {})
        if quirks.query_of(checkpoint) is None and journal.batch >= 0:
            options = {k: v for k, v in options.items() if not k.lower().startswith("starting")}
            options["startingOffsets"] = _resume(book, journal, paths)
            journal = replace(journal, query=None, query_batch=-1, moves=())
            files.replace_text(book.journal_path, journal.to_json())
        filler = Filler(book, hold, journal, shape, checkpoint, how)
        reader = spark.readStream.format("penstock").options(
            paths=json.dumps(paths),
            startingOffsets="earliest",
            maxOffsetsPerTrigger=how.rows_per_batch,
            columns=",".join(name for name in shape.event_columns if name != "headers"),
            includeHeaders="headers" in shape.event_columns,
        )
        events = reader.options(**options).load()
        writer = events.writeStream.foreachBatch(filler).option("checkpointLocation", checkpoint)
        if how.name is not None:
            writer = writer.queryName(how.name)
        query = writer.trigger(**trigger).start()
    except BaseException:
        hold.release()
        raise
    filler.close_after(query)
    return query, filler


def _resume(book: Book, journal: Journal, paths: list[str]) -> str:
    """Where a query without a checkpoint goes on, as the source's ``startingOffsets``."""
    logger.warning("%s: there is no checkpoint; going on where the journal ends", book.target)
    return json.dumps({log: journal.ends.get(log, EARLIEST) for log in find_logs(paths)})


def _check(spark: SparkSession, how: LakeSettings) -> None:
    from pyspark.sql import SparkSession

    if not isinstance(spark, SparkSession):
        raise WrongType(
            f"spark must be a SparkSession of this process, got {type(spark).__module__}."
            f"{type(spark).__name__}: the driver must see the lake's files, and a client of Spark "
            "Connect may not"
        )
    for name in ("rows_per_batch", "rows_per_file"):
        value = getattr(how, name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise WrongType(f"{name} must be a whole number, got {type(value).__name__}")
        if value < 1:
            raise Usage(f"{name} must be 1 or more, got {value}")
    check_progress(how.progress)
    check_text(how.name, "name")
    options = {} if how.options is None else how.options
    if not isinstance(options, Mapping):
        raise WrongType(f"options must be a mapping or None, got {type(options).__name__}")
    for name in options:
        if not isinstance(name, str):
            raise WrongType(f"options must have names that are text, got {name!r}")
        if name.lower() in ("path", "paths", "columns", "codec"):
            raise Usage(f"option {name!r} is set by the lake and cannot be given")


def check_text(given: object, what: str) -> None:
    """Refuse what is neither a text nor None."""
    if given is not None and not isinstance(given, str):
        raise WrongType(f"{what} must be text or None, got {type(given).__name__}")
    if given == "":
        raise Usage(f"{what} must not be empty")


def _paths(logs: Paths) -> list[str]:
    wrong = f"logs must be a path, a glob or a list of them, got {type(logs).__name__}"
    if isinstance(logs, bytes | bytearray | memoryview | Mapping):
        raise WrongType(wrong)
    try:
        given = [logs] if isinstance(logs, str | os.PathLike) else list(logs)
    except TypeError as error:
        raise WrongType(wrong) from error
    if not given:
        raise Usage("logs must be a path, a glob or a list of them, got an empty list")
    return [files.path_text(path, "log") for path in given]


def await_end(query: StreamingQuery, filler: Filler, stop: threading.Event | None = None) -> None:
    """Wait for the end of the query; ``stop`` or an interruption stops it first."""
    from pyspark.errors import StreamingQueryException

    try:
        while not query.awaitTermination(1):
            if stop is not None and stop.is_set():
                raise KeyboardInterrupt
    except StreamingQueryException:
        if filler.error is not None:
            raise filler.error from None
        raise
    except BaseException:
        query.stop()
        raise
    finally:
        filler.close()
