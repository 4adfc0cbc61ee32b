"""``penstock steward``."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from penstock.cli import options, outcome
from penstock.cli.out import Out
from penstock.cli.paths import open_log
from penstock.cli.registry import Example
from penstock.cli.when import moment, span, whole
from penstock.errors import Usage

ABOUT = """\
Maintenance of a log. ACTION is one of

  retain   delete the oldest segments as the log's rules say (see penstock configure)
  trim     delete all events before --before, whoever needs them; asks
  why      why the event --seq is there, or is not
  roll     end the active segment and begin a new one
  run      retain again and again, until Ctrl-C

With --dry-run retain and trim say what they would do, and write nothing."""
EXAMPLES = (
    Example("penstock steward retain orders --dry-run", "what would go, what stays, and why"),
    Example("penstock steward trim orders --before -30d --yes", "forget what is older"),
    Example("penstock steward why orders --seq 7", "where seq 7 went"),
    Example("penstock steward run orders --every 10m", "as a service"),
)
ACTIONS = ("retain", "trim", "why", "roll", "run")
TAKES = {"dry_run": ("retain", "trim"), "before": ("trim",), "seq": ("why",), "every": ("run",)}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", metavar="ACTION", choices=ACTIONS, help=", ".join(ACTIONS))
    options.add_log(parser)
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")
    parser.add_argument("--before", metavar="SEQ|TIME", help="for trim: the first that stays")
    parser.add_argument("--seq", metavar="SEQ", help="for why")
    parser.add_argument("--every", metavar="SPAN", help="for run; default: 1m")
    options.add_yes(parser)


def run(given: argparse.Namespace, out: Out) -> None:
    for name, actions in TAKES.items():
        if getattr(given, name) and given.action not in actions:
            raise Usage(f"--{name.replace('_', '-')} is for {' and '.join(actions)}")
    if given.action == "trim" and given.before is None:
        raise Usage("trim needs --before")
    if given.action == "why" and given.seq is None:
        raise Usage("why needs --seq")
    reads = given.action == "why" or given.dry_run
    with open_log(given.log, "r" if reads else "rw") as log:
        if given.action == "retain":
            _show(log.steward.retain(dry_run=given.dry_run), out)
        elif given.action == "trim":
            _trim(log, given, out)
        elif given.action == "why":
            _show(log.steward.why(whole(given.seq, "--seq")), out)
        elif given.action == "roll":
            first = log.steward.roll()
            if out.json:
                out.value({"active_first_seq": first})
            else:
                out.line(f"the active segment begins at seq {first}")
        else:
            out.note(f"looking after {log.path}")
            log.steward.run(span(given.every or "1m", "--every"))


def _trim(log: Any, given: argparse.Namespace, out: Out) -> None:
    text = given.before
    before: Any = int(text) if text.isascii() and text.isdigit() else moment(text, "--before")
    if not isinstance(before, int) or not text.isdigit():
        before = log.seq_at(before)
    first = log.steward.trim(before=before, dry_run=True)
    gone = max(first - log.first_seq, 0)
    if not given.dry_run:
        options.confirm(given, f"deleting {gone:,} events of {log.path} before seq {first}")
        first = log.steward.trim(before=before)
    if out.json:
        out.value({"dry_run": given.dry_run, "first_seq": first, "deleted_seqs": gone})
    else:
        would = "would be" if given.dry_run else "is"
        out.line(f"{log.path}: the first seq {would} {first}; {gone:,} events before it")


def _show(found: Any, out: Out) -> None:
    """A plan or an answer: as JSON, or as it prints itself."""
    if out.json:
        out.value(dataclasses.asdict(found))
        return
    for line in str(found).splitlines():
        out.line(outcome.one_line(line))
