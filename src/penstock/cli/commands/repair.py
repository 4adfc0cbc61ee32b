"""``penstock repair``."""

from __future__ import annotations

import argparse
import dataclasses

from penstock.cli import options, outcome
from penstock.cli.out import Out
from penstock.cli.paths import path_of
from penstock.cli.progress import Progress
from penstock.cli.registry import Example
from penstock.errors import Usage

ABOUT = """\
Say how a damaged log can be mended; with --to make a mended copy, with --in-place replace what
is damaged, and keep the originals beside it. Every valid event keeps its seq, times and parts."""
EXAMPLES = (
    Example("penstock repair orders", "the plan: what is lost, what is written again"),
    Example("penstock repair orders --to orders-mended", "a mended copy; the log stays as it is"),
    Example("penstock repair orders --in-place --yes", "mend it where it is"),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    options.add_log(parser)
    parser.add_argument("--to", metavar="PATH", help="make a mended copy there")
    parser.add_argument("--in-place", action="store_true", help="replace what is damaged")
    parser.add_argument("--dry-run", action="store_true", help="only the plan, as without options")
    options.add_yes(parser)


def run(given: argparse.Namespace, out: Out) -> None:
    from penstock.opening import repair

    path = path_of(given.log)
    if given.to is not None and given.in_place:
        raise Usage("give --to or --in-place, not both")
    if given.dry_run and (given.to is not None or given.in_place):
        raise Usage("--dry-run writes nothing; leave out --to and --in-place")
    if given.in_place:
        options.confirm(given, f"replacing the damaged parts of {path}")
    target = None if given.to is None else path_of(given.to)
    with Progress(out, f"checking {path}") as progress:
        plan = repair(path, to=target, in_place=given.in_place, progress=progress.callback)
    if out.json:
        out.value(dataclasses.asdict(plan))
        return
    for line in str(plan).splitlines():
        out.line(outcome.one_line(line))
