"""``penstock group``."""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from penstock.cli import options
from penstock.cli.out import Out
from penstock.cli.paths import open_log
from penstock.cli.registry import Example
from penstock.cli.when import moment, span, whole
from penstock.errors import Usage

ABOUT = """\
Groups of a log: work queues whose workers, in any number of processes, share its events. ACTION is
one of

  list      all groups, and how far they are
  stats     counts of one
  pending   its events that are not done yet: who has them, how often they were tried
  work      run COMMAND once for each event; makes the group if there is none
  dead      print its dead letters
  redrive   have dead letters tried again
  release   take all events from the worker --worker, and let others have them
  resume    let it go on after --dead-per-minute has stopped it
  delete    delete it with its dead letters; asks

work gives COMMAND the value on its stdin, and PENSTOCK_SEQ, PENSTOCK_TOPIC, PENSTOCK_KEY (or
PENSTOCK_KEY_BASE64 if there is a NUL in it) and PENSTOCK_DELIVERIES, which try it is, in its
environment. If it exits with 0, the event is done. If it exits with 100, the event goes to the dead
letters. After anything else it is tried again later, and goes there after --deliveries tries.
Ctrl-C and SIGTERM go to COMMAND as well, and end work when that has ended; if it did not exit with
0, another worker gets the event, and the try does not count. A second one kills COMMAND. For more
workers, run it several times.

list, stats, pending, dead and redrive --dry-run write nothing."""
EXAMPLES = (
    Example("penstock group work mails send -- ./send-mail", "a worker; run several of them"),
    Example("penstock group work jobs build --timeout 0 -- make -s", "what is there, then end"),
    Example("penstock group list mails", "who is where, and what is dead"),
    Example("penstock group dead mails send -o text", "what could not be done, and why"),
    Example("penstock group redrive mails send --dry-run", "how many would be tried again"),
)
ACTIONS = (
    "list",
    "stats",
    "pending",
    "work",
    "dead",
    "redrive",
    "release",
    "resume",
    "delete",
)
COLUMNS = ("name", "live", "position", "unfinished", "claimed", "dead", "lag_events", "last_seen")
PENDING = ("seq", "state", "worker", "host", "pid", "since", "deliveries", "next_try", "reason")
TERMS = ("order", "deliveries", "backoff", "lease", "max_pending", "dead_per_minute", "topic")
TAKES = {
    **dict.fromkeys((*TERMS, "tag", "start", "timeout"), ("work",)),
    "limit": ("work", "dead", "redrive"),
    "where": ("dead", "redrive"),
    **dict.fromkeys(("output", "format", "null", "utc"), ("dead",)),
    "dry_run": ("redrive",),
    "worker": ("release",),
    "yes": ("delete",),
}
OPTIONS = {"limit": "-n", "null": "-0"}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(rest=[])
    parser.usage = (
        "penstock group ACTION LOG [NAME] [options]\n"
        "       penstock group work LOG NAME [options] -- COMMAND [ARGUMENT ...]"
    )
    parser.add_argument("action", metavar="ACTION", choices=ACTIONS, help=", ".join(ACTIONS))
    options.add_log(parser)
    parser.add_argument("name", metavar="NAME", nargs="?", help="the group; not for list")
    parser.add_argument(
        "-n", "--limit", metavar="N", help="for work, dead and redrive: at most that many"
    )
    parser.add_argument(
        "--where", "-w", metavar="EXPR", help="for dead and redrive: letters for which it is true"
    )
    parser.add_argument("--dry-run", action="store_true", help="for redrive: only count")
    parser.add_argument("--worker", metavar="NUMBER", help="for release; pending has the numbers")
    options.add_yes(parser)
    work = parser.add_argument_group("work")
    work.add_argument("--timeout", metavar="SPAN", help="end if nothing comes; 0: take what is due")
    work.add_argument("--topic", "-t", metavar="TOPIC", help="only events of that topic")
    work.add_argument("--tag", action="append", metavar="TAG", help="with that tag; repeated: all")
    work.add_argument("--start", metavar="PLACE", help="where a new group begins: start, end, a "
                      "seq, or a time such as -1h; default: start")  # fmt: skip
    work.add_argument("--order", choices=("key",), help="one event of a key at a time")
    work.add_argument("--deliveries", metavar="N", help="tries of an event; default: 5")
    work.add_argument(
        "--backoff", metavar="SPANS", help="delays after failures; default: 1s,5s,30s,2m,10m"
    )
    work.add_argument("--lease", metavar="SPAN", help="a job that takes longer goes to another")
    work.add_argument("--max-pending", metavar="N", help="jobs of all workers together")
    work.add_argument(
        "--dead-per-minute", metavar="N", help="more dead letters in a minute stop the group"
    )
    options.add_output(parser, options.FORMS[:4])


def run(given: argparse.Namespace, out: Out) -> int | None:
    action = given.action
    _check(given)
    if action == "work":
        return _work(given, out)
    writes = action in ("release", "resume", "delete") or (
        action == "redrive" and not given.dry_run
    )
    with open_log(given.log, "rw" if writes else "r") as log:
        if action == "list":
            _list(log, out)
        elif action == "delete":
            log.groups()[given.name]
            options.confirm(given, f"deleting the group {given.name!r} of {log.path}")
            log.groups().delete(given.name)
            out.note(f"deleted the group {given.name!r} of {log.path}")
        elif writes:
            _change(log, given, out)
        else:
            _look(log, given, out)
    return None


def _check(given: argparse.Namespace) -> None:
    """Refuse what does not go together."""
    action = given.action
    if (given.name is None) != (action == "list"):
        raise Usage(f"{action} takes {'no' if action == 'list' else 'the'} NAME of a group")
    for name, actions in TAKES.items():
        if getattr(given, name) not in (None, False) and action not in actions:
            option = OPTIONS.get(name, f"--{name.replace('_', '-')}")
            raise Usage(f"{option} is for {' and '.join(actions)}")
    if bool(given.rest) != (action == "work"):
        if action == "work":
            raise Usage("the program comes after --: penstock group work LOG NAME -- COMMAND")
        raise Usage(f"{action} runs no program; only work takes one after --")
    if action == "release":
        if given.worker is None:
            raise Usage("release needs --worker; penstock group pending shows who has what")
        given.worker = whole(given.worker, "--worker", 1)
    if given.limit is not None:
        given.limit = whole(given.limit, "-n", 1 if action == "work" else 0)


def _list(log: Any, out: Out) -> None:
    rows = [about(found) for found in log.groups()]
    if not out.json:
        for row in rows:
            row["last_seen"] = (row["last_seen"] or "")[:19].replace("T", " ")
    more = [name for name in ("stopped", "problem") if any(row.get(name) for row in rows)]
    out.table((*COLUMNS, *more), rows)


def about(found: Any) -> dict[str, Any]:
    """What is known of one group."""
    row: dict[str, Any] = {"name": found.name, "live": found.live}
    if found.problem is not None:
        return {**row, "last_seen": None, "problem": found.problem}
    lag = found.lag
    return row | {
        "position": found.position,
        "needed": found.needed,
        "unfinished": found.unfinished,
        "claimed": found.claimed,
        "dead": found.dead,
        "lag_events": lag.events,
        "lag_bytes": lag.bytes,
        "lag_seconds": lag.seconds,
        "created": found.created.isoformat(),
        "last_seen": found.last_seen.isoformat(),
        "stopped": found.stopped,
    }


def _look(log: Any, given: argparse.Namespace, out: Out) -> None:
    """What writes nothing: stats, pending, dead, and redrive --dry-run."""
    from penstock.groups.glance import glance

    with glance(log, given.name) as group:
        if given.action == "stats":
            out.fields(_plain(group.stats()))
            return
        if given.action == "pending":
            rows = [_plain(found) for found in group.pending()]
            if not out.json:
                for row in rows:
                    for name in ("since", "next_try"):
                        row[name] = (row[name] or "")[:19].replace("T", " ")
            out.table(PENDING, rows)
            return
        wanted = _letters(group.letters(), given)
        if given.action == "redrive":
            _redriven(sum(1 for _ in wanted), given, out)
        else:
            _print(wanted, given, out)
        if group.dying:
            out.notice(
                "dying",
                f"{group.dying} more events were given up and are not moved to the dead letters "
                "yet; the next worker does that",
                count=group.dying,
            )


def _letters(letters: Iterator[Any], given: argparse.Namespace) -> Iterator[Any]:
    return islice(filter(_test(given), letters), given.limit)


def _test(given: argparse.Namespace) -> Callable[[Any], bool] | None:
    if given.where is None:
        return None
    from penstock.cli.where import compile_where

    return compile_where(given.where)


def _print(letters: Iterator[Any], given: argparse.Namespace, out: Out) -> None:
    from penstock.cli.forms import form_of

    form = form_of(given, out)
    while some := list(islice(letters, 100)):
        form.write(some)
    form.close()


def _change(log: Any, given: argparse.Namespace, out: Out) -> None:
    """redrive, release and resume, of a group that exists."""
    log.groups()[given.name]  # raises if there is none, where log.group would make it
    with log.group(given.name) as group:
        if given.action == "redrive":
            _redriven(group.redrive(_test(given), limit=given.limit), given, out)
        elif given.action == "resume":
            group.resume()
            out.note(f"the group {given.name!r} of {log.path} goes on")
        else:
            count = group.release(given.worker)
            if out.json:
                out.value({"released": count})
            else:
                out.line(f"took {count:,} events from worker {given.worker}")


def _redriven(count: int, given: argparse.Namespace, out: Out) -> None:
    if out.json:
        out.value({"dry_run": given.dry_run, "redriven": count})
    else:
        out.line(f"{count:,} dead letters {'would be' if given.dry_run else 'are'} tried again")


def _work(given: argparse.Namespace, out: Out) -> int:
    from penstock.cli.working import Work

    terms = _terms(given)
    timeout = options.timeout_of(given)
    with (
        open_log(given.log, "rw") as log,
        log.group(given.name, **terms) as group,
        group.worker() as worker,
    ):
        out.note(f"working on {log.path} as worker {worker.number} of {given.name!r}")
        work = Work(worker, given.rest, out)
        code = work.run(given.limit, timeout)
        out.note(f"{work.acked:,} done, {work.nacked:,} failed, {work.rejected:,} rejected")
        return code


def _terms(given: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `Log.group`, as far as they are given."""
    found: dict[str, Any] = {}
    for name in ("deliveries", "max_pending", "dead_per_minute"):
        text = getattr(given, name)
        if text is not None:
            found[name] = whole(text, f"--{name.replace('_', '-')}", 1)
    if given.backoff is not None:
        found["backoff"] = [span(text.strip(), "--backoff") for text in given.backoff.split(",")]
    if given.lease is not None:
        found["lease"] = span(given.lease, "--lease")
    for name in ("order", "topic"):
        if getattr(given, name) is not None:
            found[name] = getattr(given, name)
    if given.tag is not None:
        found["tags"] = given.tag
    if given.start is not None:
        found["start"] = _place(given.start)
    return found


def _place(text: str) -> Any:
    """A place as `Log.group` takes it."""
    if text in ("start", "end"):
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    ns = moment(text, "--start")
    return dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=ns // 1000)


def _plain(found: Any) -> dict[str, Any]:
    """A dataclass as JSON has it."""
    return {
        name: value.isoformat() if isinstance(value, dt.datetime) else value
        for name, value in dataclasses.asdict(found).items()
    }
