"""``penstock delete``."""

from __future__ import annotations

import argparse

from penstock.cli.options import add_logs, add_yes, confirm
from penstock.cli.out import Out
from penstock.cli.paths import path_of
from penstock.cli.registry import Example
from penstock.errors import NoSuchLog

ABOUT = (
    "Delete logs with their consumers. Refused while any process has one open, and if a file in it "
    "is not Penstock's."
)
EXAMPLES = (Example("penstock delete data/old --yes", "without asking"),)


def arguments(parser: argparse.ArgumentParser) -> None:
    add_logs(parser)
    add_yes(parser)
    parser.add_argument("--if-exists", action="store_true", help="succeed if there is none")


def run(given: argparse.Namespace, out: Out) -> None:
    from penstock.places import delete

    paths = [path_of(name) for name in given.logs]
    confirm(given, f"deleting {', '.join(paths)}")
    for path in paths:
        try:
            delete(path)
        except NoSuchLog:
            if not given.if_exists:
                raise
            continue
        out.note(f"deleted {path}")
