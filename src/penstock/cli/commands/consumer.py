"""``penstock consumer``."""

from __future__ import annotations

import argparse
import datetime as dt
from typing import Any

from penstock.cli import options
from penstock.cli.out import Out
from penstock.cli.paths import open_log
from penstock.cli.registry import Example
from penstock.cli.when import moment
from penstock.errors import Usage

ABOUT = """\
Named readers of a log: list them, show one, set its place, or delete it. To read as one, use
penstock cat LOG --consumer NAME or penstock follow LOG --consumer NAME."""
EXAMPLES = (
    Example("penstock consumer list orders", "who is where, and how far behind"),
    Example("penstock consumer reset orders billing --to start --yes", "read everything again"),
    Example("penstock consumer delete orders billing --yes", "forget its place"),
)
COLUMNS = ("name", "live", "committed", "lag_events", "lag_bytes", "lag_seconds", "last_seen")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("list", "show", "reset", "delete"), help="what to do")
    options.add_log(parser)
    parser.add_argument("name", metavar="NAME", nargs="?", help="the consumer; not for list")
    parser.add_argument(
        "--to", metavar="PLACE", help="for reset: start, end, a seq, or a time such as -1h"
    )
    parser.add_argument("--create", action="store_true", help="for reset: make it if it is missing")
    options.add_yes(parser)


def run(given: argparse.Namespace, out: Out) -> None:
    if (given.name is None) != (given.action == "list"):
        raise Usage(
            f"{given.action} takes {'no' if given.action == 'list' else 'the'} NAME of a consumer"
        )
    if (given.to is not None) != (given.action == "reset"):
        raise Usage("reset needs --to, and nothing else takes it")
    if given.create and given.action != "reset":
        raise Usage("--create is for reset")
    with open_log(given.log) as log:
        if given.action == "list":
            rows = [about(found) for found in log.consumers()]
            if not out.json:
                for row in rows:
                    row["last_seen"] = row["last_seen"][:19].replace("T", " ")
            out.table(
                COLUMNS if not any("problem" in r for r in rows) else (*COLUMNS, "problem"), rows
            )
        elif given.action == "show":
            out.fields(about(log.consumers()[given.name]))
        elif given.action == "delete":
            log.consumers()[given.name]
            options.confirm(given, f"deleting the consumer {given.name!r} of {log.path}")
            log.consumers().delete(given.name)
            out.note(f"deleted the consumer {given.name!r} of {log.path}")
        else:
            _reset(log, given, out)


def _reset(log: Any, given: argparse.Namespace, out: Out) -> None:
    place = _place(given.to)
    if not given.create:
        log.consumers()[given.name]  # raises if there is none
    options.confirm(given, f"moving the consumer {given.name!r} of {log.path} to {given.to}")
    with log.consumer(given.name) as consumer:
        consumer.seek(place)
        consumer.commit()
        out.note(f"{given.name!r} goes on at seq {consumer.committed}")


def _place(text: str) -> Any:
    """A place as `Consumer.seek` takes it."""
    if text in ("start", "end"):
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    ns = moment(text, "--to")
    return dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=ns // 1000)


def about(found: Any) -> dict[str, Any]:
    """What is known of one consumer."""
    row: dict[str, Any] = {"name": found.name, "live": found.live}
    if found.problem is not None:
        return {**row, "last_seen": "", "problem": found.problem}
    lag = found.lag
    row |= {
        "committed": found.committed,
        "position": found.position,
        "lag_events": lag.events,
        "lag_bytes": lag.bytes,
        "lag_seconds": lag.seconds,
        "created": found.created.isoformat(),
        "last_seen": found.last_seen.isoformat(),
    }
    if found.clamped:
        row["clamped"] = found.clamped
    for name in ("topic", "key", "tags"):
        if getattr(found, name) is not None:
            row[name] = getattr(found, name)
    return row
