"""Runs jobs on a lake's files, which die with SIGKILL just before a chosen file operation.

    python -m tests.support.dying

Each line of the input is a job: "LAKE publish NTH" or "LAKE compact NTH". Every function of
`files` that changes a name or a file counts as an operation. With NTH 0 the job lives, and
the answer is how many operations there were; else it is "killed". Jobs run in forks of a process
that has imported all it needs and done nothing yet.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pandas  # noqa: F401 - pyarrow imports it at the first array, which each fork would have to
import pyarrow as pa
from pyarrow import parquet

from penstock.spark.lake import compact
from penstock.spark.lake.book import Book, Journal, Move
from penstock.system import files

CHANGES = (
    *("rename", "unlink", "remove_tree", "link", "exchange", "replace_text"),
    *("make_dirs", "sync_name"),
)
PARTS = 3
ROWS = 10


def die_before(nth: int | None) -> Callable[[], int]:
    """Die before the ``nth`` operation; returns a function that tells how many there were."""
    count = 0

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any) -> Any:
            nonlocal count
            count += 1
            if count == nth:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments)

        return wrapper

    for name in CHANGES:
        setattr(files, name, counted(getattr(files, name)))
    return lambda: count


def stage(book: Book, batch: int) -> Journal:
    """Stage a batch as Spark does: a file for each of some directories, and one of bad records."""
    place = book.stage("batch")
    first = random.randrange(100_000)  # another attempt may cut the batch into other files
    moves = []
    for part in range(PARTS + 1):
        offsets = [(batch * (PARTS + 1) + part) * ROWS + n for n in range(ROWS)]
        kind: Literal["rows", "bad"] = "bad" if part == PARTS else "rows"
        where = "" if kind == "bad" else f"part={part}"
        directory = os.path.join(place, kind, where)
        os.makedirs(directory)
        path = os.path.join(directory, "part-00000.parquet")
        parquet.write_table(pa.table({"log": ["a"] * ROWS, "offset": offsets}), path)
        name = os.path.join(where, f"{batch:09d}-{first + part}.parquet")
        moves.append(Move(os.path.relpath(path, book.staging), kind, name))
    return Journal(
        partition_by=("part",),
        batch=batch,
        query="q",
        query_batch=batch,
        rows=(batch + 1) * PARTS * ROWS,
        bad_rows=(batch + 1) * ROWS,
        moves=tuple(moves),
    )


def publish(lake: Path) -> None:
    """Publish the next batch, as a stream that starts again does."""
    book = Book(lake)
    book.make()
    hold = book.hold("stream", 10)
    journal = book.recover()
    book.sweep("batch")
    book.publish(stage(book, journal.batch + 1 if journal is not None else 0))
    book.sweep("batch")
    hold.release()


def do(lake: str, job: str, nth: int) -> None:
    """Do one job, to the end or to the death."""
    told = die_before(nth or None)
    if job == "publish":
        publish(Path(lake))
    else:
        compact(lake, rows_per_file=10 * ROWS)
    print(told(), flush=True)


def main() -> None:
    """Do the jobs of the input."""
    for line in sys.stdin:
        lake, job, nth = line.split()
        child = os.fork()
        if child == 0:
            try:
                do(lake, job, int(nth))
            except BaseException:
                traceback.print_exc(file=sys.stdout)
                sys.stdout.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            print("killed", flush=True)


if __name__ == "__main__":
    main()
