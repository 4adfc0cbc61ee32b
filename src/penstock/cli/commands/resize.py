"""``penstock resize``."""

from __future__ import annotations

import argparse

from penstock.cli import options
from penstock.cli.out import Out
from penstock.cli.paths import open_log
from penstock.cli.registry import Example
from penstock.errors import Usage
from penstock.settings import parse_size

ABOUT = (
    "Give a ring another size; the newest events that fit are kept. Refused while another process "
    "has it open. A smaller ring asks, since it may drop events."
)
EXAMPLES = (Example("penstock resize data/recent.ring 128MiB", "a larger ring"),)


def arguments(parser: argparse.ArgumentParser) -> None:
    options.add_log(parser, "the ring")
    parser.add_argument("size", metavar="SIZE", help="the new size, such as 128MiB")
    options.add_yes(parser)


def run(given: argparse.Namespace, out: Out) -> None:
    size = parse_size(given.size, "SIZE")
    with open_log(given.log, "rw") as log:
        ring = log.stats().ring
        if ring is None:
            raise Usage(f"{log.path}: is a log of segments; only a ring has a size")
        if size < ring.file_bytes:
            options.confirm(given, f"making {log.path} smaller, which drops what does not fit,")
        before = len(log)
        log.resize(size)
        dropped = before - len(log)
        if given.json:
            out.value({"path": log.path, "file_bytes": size, "dropped_events": dropped})
        out.note(f"{log.path} has {size:,} bytes now; {dropped:,} events were dropped")
