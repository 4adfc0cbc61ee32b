"""``penstock bench``."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import penstock
from penstock.cli.out import Out
from penstock.cli.paths import HOME
from penstock.cli.registry import Example
from penstock.cli.terminal import size_text
from penstock.cli.when import span, whole
from penstock.errors import TooLarge
from penstock.layout import VALUE_BYTES_MAX

ABOUT = """\
Measure how fast appends and reads are in a directory, with a log that is deleted afterwards. These
are figures of one process on this machine now; compare them with others of the same run only."""
EXAMPLES = (Example("penstock bench /data --size 1000", "with values of 1000 bytes"),)
BATCH = 1000
COLUMNS = ("work", "events_s", "bytes_s")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory", metavar="DIR", nargs="?", help="default: $PENSTOCK_DIR, else here"
    )
    parser.add_argument("--size", metavar="BYTES", default="100", help="of a value; default: 100")
    parser.add_argument("--seconds", metavar="SPAN", default="1", help="for each row; default: 1")


def run(given: argparse.Namespace, out: Out) -> None:
    size = whole(given.size, "--size")
    if size > VALUE_BYTES_MAX:
        raise TooLarge(f"--size must be at most {VALUE_BYTES_MAX}, got {size}")
    seconds = span(given.seconds, "--seconds")
    folder = given.directory or os.environ.get(HOME) or "."
    value = os.urandom(size)
    with (
        tempfile.TemporaryDirectory(prefix=".penstock-bench-", dir=folder) as scratch,
        penstock.create(os.path.join(scratch, "log")) as log,
    ):
        batch = [value] * max(1, min(BATCH, (8 << 20) // (size + 1)))
        works: list[tuple[str, Callable[[], int]]] = [
            ("append one by one", lambda: _many(lambda: log.append(value))),
            (f"extend by {len(batch)}", lambda: len(log.extend(batch))),
            ("append, durable", lambda: log.append(value, durable=True) and 1),
            ("read events", lambda: _drain(log)),
            ("scan columns", lambda: _scan(log)),
        ]
        rows: list[dict[str, Any]] = []
        for name, work in works:
            rate = _rate(work, seconds)
            rows.append({"work": name, "events_s": rate, "bytes_s": rate * size})
            if out.json:
                out.value(rows[-1])
                out.flush()
        if not out.json:
            shown = [
                {**row, "events_s": round(row["events_s"]), "bytes_s": size_text(row["bytes_s"])}
                for row in rows
            ]
            out.table(COLUMNS, shown)


def _rate(work: Callable[[], int], seconds: float) -> float:
    """Events a second."""
    count = 0
    began = time.perf_counter()
    while True:
        count += work()
        passed = time.perf_counter() - began
        if passed >= seconds:
            return count / passed


def _many(one: Callable[[], Any]) -> int:
    for _ in range(BATCH):
        one()
    return BATCH


def _drain(log: Any) -> int:
    reader = log.read(limit=200_000)
    count = 0
    while events := reader.take(BATCH):
        count += len(events)
    return count


def _scan(log: Any) -> int:
    from penstock.system.needs import pyarrow

    pyarrow()
    return sum(len(batch) for batch in log.scan(limit=1_000_000).to_batches())
