"""The lake from the command line, and under spark-submit.

python -m penstock.spark.lake LOG... TARGET [options]
spark-submit [options] .../penstock/spark/lake/__main__.py LOG... TARGET [options]
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError
from penstock.spark import lake
from penstock.spark.lake.compaction import ROWS_PER_FILE
from penstock.spark.lake.stream import ROWS_PER_BATCH, LakeSettings, await_end, begin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EPILOG = """\
examples:
  %(prog)s data/clicks lake/clicks --schema 'user string, total double'
  %(prog)s 'data/orders/*' lake/orders --partition-by date,topic --follow --every '10 seconds'
  %(prog)s --compact lake/orders

TARGET holds only Parquet files, which any tool reads. Beside it is the lake's book, _NAME for
a lake NAME: checkpoint, journal, and the records that did not parse.
"""


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m penstock.spark.lake",
        usage="%(prog)s LOG... TARGET [options]",
        description="Copy events from logs into partitioned Parquet, each exactly once.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "paths",
        nargs="+",
        metavar="LOG... TARGET",
        help="logs or globs, then the lake's directory; TARGET alone with --compact",
    )
    made.add_argument("--schema", help="fields of the JSON object in each value, as 'name type, …'")
    made.add_argument(
        "--partition-by",
        metavar="NAMES",
        default="date",
        help="columns, or date, year, month, day, hour of the event in UTC (default: date)",
    )
    made.add_argument(
        "--keep",
        metavar="NAMES",
        help="columns of the event to keep, as log,offset,timestamp:event_time",
    )
    made.add_argument("--bad", metavar="PATH", help="where records go that do not parse")
    made.add_argument("--checkpoint", metavar="PATH", help="Spark's checkpoint")
    made.add_argument(
        "--rows-per-batch",
        type=int,
        metavar="N",
        default=ROWS_PER_BATCH,
        help="at most this many (default: %(default)s)",
    )
    made.add_argument(
        "--rows-per-file",
        type=int,
        metavar="N",
        default=ROWS_PER_FILE,
        help="at most this many (default: %(default)s)",
    )
    made.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the source, such as failOnDataLoss=false",
    )
    made.add_argument(
        "--follow",
        action="store_true",
        help="go on with events that are appended later; without it, stop at the end",
    )
    made.add_argument(
        "--every", metavar="TIME", help="with --follow: time between batches, as '10 seconds'"
    )
    made.add_argument(
        "--compact", action="store_true", help="merge small files at the end, or of a lake as it is"
    )
    made.add_argument("--quiet", action="store_true", help="print nothing but errors")
    return made


def settings(given: argparse.Namespace) -> LakeSettings:
    """The settings of a lake, as given on the command line."""
    keep = None
    if given.keep is not None:
        pairs = (part.partition(":") for part in _names(given.keep))
        keep = {event: name or event for event, _, name in pairs}
    options = dict(part.partition("=")[::2] for part in given.option)
    return LakeSettings(
        schema=given.schema,
        partition_by=_names(given.partition_by),
        keep=keep,
        bad=given.bad,
        checkpoint=given.checkpoint,
        rows_per_batch=given.rows_per_batch,
        rows_per_file=given.rows_per_file,
        options=options,
        progress=None if given.quiet else show,
        name="penstock-lake",
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def show(batch: lake.Batch) -> None:
    """One line for each batch."""
    if batch.rows or batch.bad_rows:
        rate = (batch.rows + batch.bad_rows) / batch.seconds
        print(
            f"batch {batch.number}: {batch.rows:,} rows, {batch.bad_rows:,} bad, "
            f"{batch.files} files, {rate:,.0f}/s; {batch.rows_total:,} rows in the lake",
            flush=True,
        )


def session() -> SparkSession:
    """The session of spark-submit, or a local one."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    made: SparkSession = builder.appName("penstock-lake").getOrCreate()
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    made = parser()
    given = made.parse_args(arguments)
    *logs, target = given.paths
    if not logs and not given.compact:
        made.error("LOG... and TARGET must be given; only --compact takes TARGET alone")
    if given.every and not given.follow:
        made.error("--every needs --follow")
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        if logs:
            fill(logs, target, given)
        if given.compact:
            done = lake.compact(target, rows_per_file=given.rows_per_file, bad=given.bad)
            if not given.quiet:
                merged = f"compacted {done.files_before} files into {done.files_after}"
                print(merged if done.directories else "there is nothing to compact")
    except PenstockError as error:
        print(f"{made.prog}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped; the next run goes on from here", file=sys.stderr)
        return 130
    return 0


def stop_on_signals() -> threading.Event:
    """An event that Ctrl-C and SIGTERM set, so that neither interrupts a call to Java."""
    stop = threading.Event()

    def handler(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)  # a second signal ends the process at once
        logging.disable(logging.ERROR)  # what follows is only that something was stopped
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)
    return stop


def fill(logs: list[str], target: str, given: argparse.Namespace) -> None:
    """Fill the lake, to the end or until interrupted."""
    how = settings(given)
    trigger = (
        {"processingTime": given.every or "0 seconds"} if given.follow else {"availableNow": True}
    )
    spark = session()
    stop = stop_on_signals()
    try:
        query, filler = begin(spark, logs, target, how, trigger)
        await_end(query, filler, stop)
        if not given.quiet:
            journal = filler.journal
            print(f"{target}: {journal.rows:,} rows; {journal.bad_rows:,} bad records")
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(main())
