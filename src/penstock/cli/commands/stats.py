"""``penstock stats``."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from penstock.cli import options
from penstock.cli.out import Out
from penstock.cli.paths import open_log
from penstock.cli.registry import Example

ABOUT = """\
Counts and sizes of logs, and what happened since control was built: repairs, rolls, syncs. With
--by topic or key, events and bytes of values of each, which reads the log."""
EXAMPLES = (
    Example("penstock stats orders", "all counters"),
    Example("penstock stats orders --by topic", "events and bytes of each topic"),
)
GROUPS_MAX = 1_000_000


def arguments(parser: argparse.ArgumentParser) -> None:
    options.add_logs(parser)
    parser.add_argument("--by", choices=("topic", "key"), help="count events and bytes by it")


def run(given: argparse.Namespace, out: Out) -> None:
    for number, name in enumerate(given.logs):
        with open_log(name) as log:
            if given.by is not None:
                out.table(("log", given.by, "events", "value_bytes"), _counts(log, given.by, out))
                continue
            if number and not out.json:
                out.line()
            found = dataclasses.asdict(log.stats())
            out.fields({key: value for key, value in found.items() if value is not None})


def _counts(log: Any, by: str, out: Out) -> list[dict[str, Any]]:
    """Events and bytes by topic or key, the most first."""
    events: dict[Any, int] = {}
    nbytes: dict[Any, int] = {}
    reader = log.read(on_gap="skip", on_damage="skip")
    while some := reader.take(1000):
        for event in some:
            name = event.topic if by == "topic" else event.key
            if name not in events and len(events) >= GROUPS_MAX:
                name = None  # as many as fit memory; the others are counted together
            events[name] = events.get(name, 0) + 1
            nbytes[name] = nbytes.get(name, 0) + (0 if event.deletes else len(event.view))
    out.skip(reader.skipped, "events that are damaged or gone")
    return [
        {"log": log.path, by: name, "events": events[name], "value_bytes": nbytes[name]}
        for name in sorted(events, key=lambda name: -events[name])
    ]
