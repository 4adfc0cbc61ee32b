"""``penstock info``."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from penstock.cli.options import add_log
from penstock.cli.out import Out
from penstock.cli.paths import open_log
from penstock.cli.registry import Example
from penstock.cli.when import iso

ABOUT = "Say what a log is, what it has, what it keeps, and who reads it. It only reads."
EXAMPLES = (
    Example("penstock info data/orders", "kind, seqs, times, size, settings, consumers"),
    Example("penstock info data/orders --json | jq .last_seq", "one of them, for a script"),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    add_log(parser)


def run(given: argparse.Namespace, out: Out) -> None:
    with open_log(given.log) as log:
        out.fields(about(log))


def about(log: Any) -> dict[str, Any]:
    """What is known of an open log."""
    stats = log.stats()
    found: dict[str, Any] = {
        "path": log.path,
        "kind": log.kind,
        "uuid": log.uuid,
        "codec": log.codec,
        "first_seq": stats.first_seq,
        "last_seq": stats.last_seq,
        "events": len(log),
        "durable_seq": stats.durable_seq,
        "oldest": _edge(log, reverse=False),
        "newest": _edge(log, reverse=True),
        "disk_bytes": stats.disk_bytes,
        "segments": stats.segments,
        "live": stats.live,
        "poisoned": stats.poisoned,
    }
    if stats.ring is not None:
        del found["segments"]
        ring = stats.ring
        found |= {
            "file_bytes": ring.file_bytes,
            "ring_bytes": ring.ring_bytes,
            "used_bytes": ring.used_bytes,
            "index_capacity": ring.index_capacity,
            "holds": ring.holds,
        }
    defaults = type(log.settings)()
    found["settings"] = {
        field.name: getattr(log.settings, field.name)
        for field in dataclasses.fields(log.settings)
        if field.name in ("segment_size", "file_mode")
        or getattr(log.settings, field.name) != getattr(defaults, field.name)
    }
    found["settings"]["file_mode"] = f"{log.settings.file_mode:o}"
    if stats.ring is not None:
        del found["settings"]["segment_size"]
    found["consumers"] = log.consumers().names()
    return found


def _edge(log: Any, *, reverse: bool) -> str | None:
    """The time of the oldest or the newest event."""
    for event in log.read(reverse=reverse, limit=1, on_gap="skip", on_damage="skip"):
        return iso(event.time_ns)
    return None
