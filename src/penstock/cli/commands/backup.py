"""``penstock backup``."""

from __future__ import annotations

import argparse

from penstock.cli import options
from penstock.cli.out import Out
from penstock.cli.paths import open_log, path_of
from penstock.cli.progress import Progress
from penstock.cli.registry import Example

ABOUT = (
    "Copy a log as it is now to a place where nothing is yet. Writers may go on. The copy is on "
    "disk when this returns; if it does not return, there is none."
)
EXAMPLES = (Example("penstock backup orders /backup/orders-today", "a log of its own, to open"),)


def arguments(parser: argparse.ArgumentParser) -> None:
    options.add_log(parser)
    parser.add_argument("target", metavar="TARGET", help="where the copy will be")


def run(given: argparse.Namespace, out: Out) -> None:
    with open_log(given.log) as log, Progress(out, "copying") as progress:
        target = path_of(given.target)
        last = log.backup(target, progress=progress.callback)
    if given.json:
        out.value({"path": target, "last_seq": last})
    out.note(f"copied {log.path} to {target}, up to seq {last}")
