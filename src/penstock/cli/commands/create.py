"""``penstock create``."""

from __future__ import annotations

import argparse

from penstock.cli.options import add_log
from penstock.cli.out import Out
from penstock.cli.paths import path_of
from penstock.cli.registry import Example
from penstock.cli.when import span, whole
from penstock.errors import Usage

ABOUT = "Create a log where there is none: a directory of segments, or with --ring one file."
EXAMPLES = (
    Example("penstock create data/orders --codec json", "a log of JSON values"),
    Example("penstock create data/recent.ring --ring 64MiB", "a file that keeps the newest 64 MiB"),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    add_log(parser, "where to create it")
    parser.add_argument("--codec", help="bytes (the default), json, msgpack or lite3")
    parser.add_argument("--segment-size", metavar="SIZE", help="of one file; default: 64MiB")
    parser.add_argument("--ring", metavar="SIZE", help="make a ring of that size")
    parser.add_argument("--index", metavar="N", help="events that a ring's index holds")
    parser.add_argument(
        "--when-full",
        choices=("drop", "block", "error"),
        help="what appends do if a ring is full; default: drop the oldest events",
    )
    parser.add_argument("--ttl", metavar="SPAN", help="how long events live, such as 7d")
    parser.add_argument("--file-mode", metavar="MODE", help="permissions in octal; default: 600")
    parser.add_argument(
        "--if-missing", action="store_true", help="succeed if there is such a log already"
    )
    parser.add_argument("--any-file-system", action="store_true", help="allow network file systems")


def run(given: argparse.Namespace, out: Out) -> None:
    from penstock import opening

    make = opening.open if given.if_missing else opening.create
    with make(
        path_of(given.log),
        codec=given.codec,
        segment_size=given.segment_size,
        ring=given.ring,
        index=None if given.index is None else whole(given.index, "--index"),
        when_full=given.when_full,
        ttl=None if given.ttl is None else span(given.ttl, "--ttl"),
        file_mode=_mode(given.file_mode),
        any_file_system=given.any_file_system,
    ) as log:
        if given.json:
            out.value({"path": log.path, "uuid": log.uuid, "kind": log.kind, "codec": log.codec})
        else:
            out.note(f"created {log.path}")


def _mode(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return int(text, 8)
    except ValueError:
        raise Usage(
            f"--file-mode must be permissions in octal, such as 660, got {text!r}"
        ) from None
