"""The stream that fills a lake: Spark reads and writes, the book decides what counts.

The algorithm is in the package's docstring. What Spark runs here, again after every death, is
`Filler.__call__`; it must never publish anything but through the book.
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

from penstock.errors import Closed, Corrupt, PenstockError, Usage, WrongType
from penstock.spark.lake.book import (
    HOLD_TIMEOUT,
    Book,
    Hold,
    Journal,
    Move,
    as_record,
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
    """What became of one batch, for those who watch: its own counts, and those of the lake."""

    number: int
    rows: int
    bad_rows: int
    files: int
    seconds: float
    rows_total: int
    bad_rows_total: int


Progress = Callable[[Batch], None]


@dataclass(frozen=True, slots=True)
class Settings:
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
        self, book: Book, hold: Hold, journal: Journal, shape: Shape, checkpoint: str, how: Settings
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
        """Take one batch; Spark may bring it again after a death, and then it is known."""
        try:
            self._take(events, number)
        except PenstockError as error:
            self.error = error
            raise

    def _take(self, events: DataFrame, number: int) -> None:
        began = time.monotonic()
        ends = self._ends(number)
        if self._is_published(number, ends):
            logger.info("%s: batch %d is there already", self._book.target, self.journal.batch)
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
                raise Closed(f"{self._book.target}: the query was stopped before this batch")
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
        """Whether Spark brings the last batch again; anything but that or the next is an error."""
        if self._query is None:
            self._query = query_id(self._checkpoint)
        journal = self.journal
        if journal.query not in (None, self._query):
            raise Corrupt(
                f"{self._book.path}: the lake was filled by the query {journal.query}, and "
                f"{self._checkpoint} is the checkpoint of {self._query}",
                path=self._book.journal_path,
            )
        if number == journal.query_batch and journal.query is not None:
            if ends == journal.ends:
                return True
            why = f"batch {number} ends at {ends} now, and ended at {dict(journal.ends)}"
        elif number == journal.query_batch + 1:
            return False
        else:
            why = f"batch {number} comes after batch {journal.query_batch}"
        raise Corrupt(
            f"{self._checkpoint}: this checkpoint and the lake do not belong together: {why}. "
            "Delete the checkpoint: the lake knows where to go on",
            path=self._checkpoint,
        )

    def _ends(self, number: int) -> dict[str, int]:
        """Where a batch ends in each log, from Spark's own note of it."""
        path = os.path.join(self._checkpoint, "offsets", str(number))
        last = (files.read_text(path) or "").strip().rpartition("\n")[2]
        try:
            ends = as_record(json.loads(last))
        except ValueError:
            ends = {}
        if not ends and last not in ("", "{}"):
            raise Corrupt(f"{path}: these are not offsets of logs: {last!r}", path=path)
        return ends

    def _stage(self, events: DataFrame, staged: str, batch: int) -> tuple[list[Move], int, int]:
        """Write a batch where nobody looks; returns how its files will be called, and counts."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        shape = self._shape
        # Of this query alone: Spark gives each one a session of its own. INT96, the default, is
        # read as a time without zone by others.
        events.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        parsed = shape.parsed(events)
        seen = Observation()
        good = shape.good(parsed.observe(seen, F.count(REASON).alias("bad")))
        moves, rows = self._write(good, staged, "rows", batch, shape.partition_by)
        bad_rows = 0
        # Of a batch without events, which is a plan without a source, Spark observes nothing.
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
            # The other algorithm lets a task that failed leave files behind.
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
        """Publish nothing from now on, and let another query fill the lake."""
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


def query_id(checkpoint: str) -> str | None:
    """The name that Spark gave the query of a checkpoint; None if there is no checkpoint."""
    path = os.path.join(checkpoint, "metadata")
    text = files.read_text(path)
    if text is None:
        return None
    try:
        return str(json.loads(text)["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"{path}: this is no metadata of a query ({error!r})", path=path) from error


def begin(
    spark: SparkSession, logs: Paths, target: str | os.PathLike[str], how: Settings, trigger: Any
) -> tuple[StreamingQuery, Filler]:
    """Start the query that fills the lake."""
    needed("pyarrow.parquet", "'penstock[spark]'")
    _check(spark, how)
    paths = _paths(logs)
    book = Book(target, how.bad)
    shape = Shape(how.schema, how.keep, how.partition_by)
    checkpoint = files.path_text(how.checkpoint or book.checkpoint, "checkpoint")
    if not how.options:
        find_logs(paths, missing="globs")  # Spark would bury the error of its own in a long trace
    book.make()
    hold = book.hold("stream", HOLD_TIMEOUT)
    try:
        journal = book.recover() or Journal(shape.partition_by)
        book.sweep("batch")
        if journal.partition_by != shape.partition_by:
            raise Usage(
                f"{book.target}: the lake is partitioned by {', '.join(journal.partition_by)}, "
                f"not by {', '.join(shape.partition_by)}; choose another target"
            )
        options = dict(how.options or {})
        if query_id(checkpoint) is None and journal.batch >= 0:
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
    """Where a query without checkpoint goes on, as the source's ``startingOffsets``."""
    logger.warning("%s: there is no checkpoint; the journal tells where to go on", book.target)
    return json.dumps({log: journal.ends.get(log, EARLIEST) for log in find_logs(paths)})


def _check(spark: SparkSession, how: Settings) -> None:
    from pyspark.sql import SparkSession

    if not isinstance(spark, SparkSession):
        raise WrongType(
            f"spark is a SparkSession of this process, not {type(spark).__module__}."
            f"{type(spark).__name__}: a lake's driver must see its files, which Spark Connect's "
            "client may not"
        )
    for name in ("rows_per_batch", "rows_per_file"):
        value = getattr(how, name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise WrongType(f"{name} is a whole number, not {type(value).__name__}")
        if value < 1:
            raise Usage(f"{name} is a number of rows from 1, not {value}")
    for name in how.options or {}:
        if name.lower() in ("path", "paths", "columns", "codec"):
            raise Usage(f"options: {name!r} is not yours to give; a lake sets it itself")


def _paths(logs: Paths) -> list[str]:
    given = [logs] if isinstance(logs, str | os.PathLike) else list(logs)
    if not given:
        raise Usage("which logs? Give a path, a glob, or a list of them")
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
