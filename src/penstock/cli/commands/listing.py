"""``penstock list``."""

from __future__ import annotations

import argparse
import os
from typing import Any

from penstock.cli import outcome
from penstock.cli.out import Out
from penstock.cli.paths import HOME, open_log
from penstock.cli.registry import Example
from penstock.errors import PenstockError

ABOUT = "List the logs at or below a directory. One that cannot be read is listed with its error."
EXAMPLES = (
    Example("penstock list data", "the logs below data"),
    Example("penstock list data -n | xargs -n 1 penstock verify", "their paths alone"),
)
COLUMNS = ("path", "kind", "first_seq", "last_seq", "disk_bytes", "error")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory", nargs="?", metavar="DIR", help="default: $PENSTOCK_DIR, else here"
    )
    parser.add_argument("--names", "-n", action="store_true", help="paths only, one on each line")
    parser.add_argument("--null", "-0", action="store_true", help="paths only, each ended with NUL")


def run(given: argparse.Namespace, out: Out) -> None:
    from penstock.places import find

    found = find(given.directory or os.environ.get(HOME) or ".")
    if given.names or given.null:
        for path in found:
            out.write(os.fsencode(path) + (b"\0" if given.null else b"\n"))
        return
    rows = [_row(path) for path in found]
    columns = COLUMNS if any("error" in row for row in rows) else COLUMNS[:-1]  # for people
    if not out.json:
        for row in rows:
            row["path"] = min(row["path"], os.path.relpath(row["path"]), key=len)
            row["error"] = row.get("error", {}).get("kind")
    out.table(columns, rows)
    if not rows:
        out.note("there are no logs")


def _row(path: str) -> dict[str, Any]:
    try:
        with open_log(path, timeout=1) as log:
            stats = log.stats()
            return {
                "path": path,
                "kind": log.kind,
                "first_seq": stats.first_seq,
                "last_seq": stats.last_seq,
                "disk_bytes": stats.disk_bytes,
            }
    except PenstockError as error:
        return {"path": path, "error": outcome.told(error)}
