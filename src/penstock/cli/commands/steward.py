"""``penstock steward``."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from penstock.cli import options, outcome
from penstock.cli.out import Out
from penstock.cli.paths import open_log
from penstock.cli.progress import Progress
from penstock.cli.registry import Example
from penstock.cli.when import moment, span, whole
from penstock.errors import Usage

ABOUT = """\
Maintenance of a log. ACTION is one of

  retain   delete the oldest segments as the log's rules say (see penstock configure)
  trim     delete all events before --before, whoever needs them; asks
  compact  keep the last --versions events of each key, and remove what is dead; asks
  erase    remove every event of --key, and its bytes, from the log's files; asks
  why      why the event --seq is there, or is not
  roll     end the active segment and begin a new one
  run      retain again and again, until Ctrl-C; with --compact-at compact as well

With --dry-run retain, trim, compact and erase say what they would do, and write nothing to the log.
compact changes sealed segments only: roll first if the newest events are to be compacted, too.
erase exits with 12 if files still have bytes of the key, and says which, and what to do."""
EXAMPLES = (
    Example("penstock steward retain orders --dry-run", "what would go, what stays, and why"),
    Example("penstock steward trim orders --before -30d --yes", "forget what is older"),
    Example("penstock steward compact accounts --dry-run", "how much is dead, by segment"),
    Example("penstock steward erase accounts --key ann --yes", "forget a person"),
    Example("penstock steward why orders --seq 7", "where seq 7 went"),
    Example("penstock steward run orders --every 10m", "as a service"),
)
ACTIONS = ("retain", "trim", "compact", "erase", "why", "roll", "run")
TAKES = {
    "dry_run": ("retain", "trim", "compact", "erase"),
    "before": ("trim",),
    "key": ("erase",),
    "versions": ("compact", "run"),
    "grace": ("compact", "run"),
    "drop_keyless": ("compact", "run"),
    "memory": ("compact",),
    "timeout": ("compact", "erase"),
    "seq": ("why",),
    "every": ("run",),
    "compact_at": ("run",),
}
NEEDS = (("trim", "before"), ("erase", "key"), ("why", "seq"))


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", metavar="ACTION", choices=ACTIONS, help=", ".join(ACTIONS))
    options.add_log(parser)
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")
    parser.add_argument("--before", metavar="SEQ|TIME", help="for trim: the first that stays")
    parser.add_argument("--key", "-k", metavar="KEY", help="for erase: the key")
    parser.add_argument("--seq", metavar="SEQ", help="for why")
    parser.add_argument("--every", metavar="SPAN", help="for run; default: 1m")
    parser.add_argument(
        "--compact-at",
        metavar="SHARE",
        help="for run: compact when that share of the events is new, such as 0.5",
    )
    parser.add_argument(
        "--timeout",
        metavar="SPAN",
        help="for compact and erase: how long to wait for other maintenance and for readers",
    )
    compact = parser.add_argument_group("compact")
    compact.add_argument("--versions", metavar="N", help="events of each key that stay; default: 1")
    compact.add_argument("--grace", metavar="SPAN", help="how long deletions stay; default: 1d")
    compact.add_argument("--drop-keyless", action="store_true", help="remove events without a key")
    compact.add_argument("--memory", metavar="SIZE", help="for the table of keys; default: 128MiB")
    options.add_yes(parser)


def run(given: argparse.Namespace, out: Out) -> None:
    _check(given)
    reads = given.action == "why" or given.dry_run
    with open_log(given.log, "r" if reads else "rw") as log:
        if given.action == "retain":
            _show(log.steward.retain(dry_run=given.dry_run), out)
        elif given.action == "trim":
            _trim(log, given, out)
        elif given.action == "compact":
            _compact(log, given, out)
        elif given.action == "erase":
            _erase(log, given, out)
        elif given.action == "why":
            _show(log.steward.why(whole(given.seq, "--seq")), out)
        elif given.action == "roll":
            first = log.steward.roll()
            if out.json:
                out.value({"active_first_seq": first})
            else:
                out.line(f"the active segment begins at seq {first}")
        else:
            how = _what_is_dead(given)
            if given.compact_at is not None:
                how["compact_at"] = _share(given.compact_at)
            out.note(f"looking after {log.path}")
            log.steward.run(span(given.every or "1m", "--every"), **how)


def _check(given: argparse.Namespace) -> None:
    """Refuse what does not go together."""
    action = given.action
    for name, actions in TAKES.items():
        if getattr(given, name) not in (None, False) and action not in actions:
            raise Usage(f"--{name.replace('_', '-')} is for {' and '.join(actions)}")
    for needs, name in NEEDS:
        if action == needs and getattr(given, name) is None:
            raise Usage(f"{action} needs --{name}")
    if action == "run" and given.compact_at is None and _what_is_dead(given):
        raise Usage("--versions, --grace and --drop-keyless are for run with --compact-at")


def _what_is_dead(given: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `Steward.compact` that say what it removes, as far as they are given."""
    found: dict[str, Any] = {}
    if given.versions is not None:
        found["versions"] = whole(given.versions, "--versions", 1)
    if given.grace is not None:
        found["grace"] = span(given.grace, "--grace")
    if given.drop_keyless:
        found["keyless"] = "drop"
    return found


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise Usage(f"--compact-at must be a share from 0 to 1, got {text[:40]!r}")
    return share


def _compact(log: Any, given: argparse.Namespace, out: Out) -> None:
    how = _what_is_dead(given)
    if given.memory is not None:
        how["memory"] = given.memory
    if given.timeout is not None:
        how["timeout"] = options.timeout_of(given)
    if not given.dry_run:
        versions = how.get("versions", 1)
        what = "the last event" if versions == 1 else f"the last {versions:,} events"
        options.confirm(given, f"removing all but {what} of each key from {log.path}")
    with Progress(out, "compacting") as progress:
        report = log.steward.compact(dry_run=given.dry_run, progress=progress.callback, **how)
    if not out.json:
        _show(report, out)
        return
    found = {name: getattr(report, name) for name in ("path", "dry_run", "events", "dead")}
    found |= {name: getattr(report, name) for name in ("bytes", "dead_bytes", "share", "rewritten")}
    found |= {"spilled": report.spilled}
    out.value(found | {"segments": [dataclasses.asdict(one) for one in report.segments]})


def _erase(log: Any, given: argparse.Namespace, out: Out) -> None:
    key = options.raw_key(given.key)
    how = {} if given.timeout is None else {"timeout": options.timeout_of(given)}
    if not given.dry_run:
        options.confirm(given, f"erasing the key {given.key!r} from {log.path} for good")
    with Progress(out, "erasing") as progress:
        callback = progress.callback
        report = log.steward.erase(key, dry_run=given.dry_run, progress=callback, **how)
    if out.json:
        out.value({**dataclasses.asdict(report), "complete": report.complete})
    else:
        _show(report, out)
    if not given.dry_run:
        out.skip(len(report.remaining), "files that have, or may have, bytes of the key")


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
