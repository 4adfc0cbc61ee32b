"""``penstock top``."""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

from penstock.cli import outcome
from penstock.cli.out import Out
from penstock.cli.paths import HOME, open_log, path_of
from penstock.cli.registry import Example
from penstock.cli.terminal import size_text, span_text, table_lines
from penstock.cli.when import span, whole
from penstock.errors import PenstockError

ABOUT = """\
Watch logs: events and bytes a second, size on disk, what is not durable yet, whether a writer is
there, and the consumer that is furthest behind. In a pipe it prints JSON lines. It only reads."""
EXAMPLES = (
    Example("penstock top data", "all logs below data, until Ctrl-C"),
    Example("penstock top orders --rounds 1", "once"),
)
COLUMNS = (
    "log",
    "last_seq",
    "events_s",
    "bytes_s",
    "disk",
    "not_durable",
    "live",
    "consumers",
    "lag",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "logs", metavar="LOG|DIR", nargs="*", help="default: $PENSTOCK_DIR, else here"
    )
    parser.add_argument("--interval", metavar="SPAN", default="1s", help="default: 1s")
    parser.add_argument("--rounds", metavar="N", help="stop after that many")


def run(given: argparse.Namespace, out: Out) -> None:
    from penstock.places import find

    interval = span(given.interval, "--interval")
    rounds = None if given.rounds is None else whole(given.rounds, "--rounds", 1)
    places = [path_of(name) for name in given.logs] or [os.environ.get(HOME) or "."]
    before: dict[str, tuple[float, int, int]] = {}
    done = 0
    while True:
        paths = [path for place in places for path in find(place)]
        rows = [_row(path, before) for path in paths]
        if out.json:
            out.table(COLUMNS, [{"time": round(time.time(), 3), **row} for row in rows])
        else:
            _draw(rows, out, clear=out.terminal and rounds != 1)
        out.flush()
        done += 1
        if done == rounds:
            return
        time.sleep(interval)


def _row(path: str, before: dict[str, tuple[float, int, int]]) -> dict[str, Any]:
    """What one log does now; rates since the last look."""
    try:
        with open_log(path, timeout=1) as log:
            stats = log.stats()
            consumers = list(log.consumers())
            lags = [found.lag for found in consumers if found.problem is None]
    except PenstockError as error:
        before.pop(path, None)
        return {"log": path, "error": outcome.told(error)}
    now = time.monotonic()
    written = stats.ring.head if stats.ring is not None else stats.disk_bytes
    seconds = bytes_s = events_s = None
    if path in before:
        then, seq, nbytes = before[path]
        seconds = max(now - then, 1e-6)
        events_s = (stats.last_seq - seq) / seconds
        bytes_s = (written - nbytes) / seconds
    before[path] = (now, stats.last_seq, written)
    worst = max(lags, key=lambda lag: lag.events, default=None)
    return {
        "log": path,
        "last_seq": stats.last_seq,
        "events_s": events_s,
        "bytes_s": bytes_s,
        "disk_bytes": stats.disk_bytes,
        "not_durable": stats.last_seq - stats.durable_seq,
        "live": stats.live,
        "poisoned": stats.poisoned,
        "consumers": len(consumers),
        "lag_events": None if worst is None else worst.events,
        "lag_seconds": None if worst is None else worst.seconds,
    }


def _draw(rows: list[dict[str, Any]], out: Out, *, clear: bool) -> None:
    """The table, over the last one."""
    cells = []
    for row in rows:
        if "error" in row:
            name = min(row["log"], os.path.relpath(row["log"]), key=len)
            cells.append([name, row["error"]["kind"], *[""] * 7])
            continue
        lag = "-"
        if row["lag_events"] is not None:
            lag = f"{row['lag_events']:,} ({span_text(row['lag_seconds'])})"
        cells.append(
            [
                min(row["log"], os.path.relpath(row["log"]), key=len),
                f"{row['last_seq']:,}",
                "-" if row["events_s"] is None else f"{row['events_s']:,.0f}",
                "-" if row["bytes_s"] is None else size_text(row["bytes_s"]),
                size_text(row["disk_bytes"]),
                f"{row['not_durable']:,}",
                "poisoned" if row["poisoned"] else "yes" if row["live"] else "no",
                str(row["consumers"]),
                lag,
            ]
        )
    lines = table_lines(
        [c.replace("_s", "/s") if c.endswith("_s") else c for c in COLUMNS], cells, out
    )
    if clear:
        out.write(b"\x1b[H\x1b[J")
    out.line(f"{time.strftime('%H:%M:%S')}  {len(rows)} logs")
    for line in lines:
        out.line(line)
