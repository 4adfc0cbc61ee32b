"""``penstock merge``."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import Any

from penstock.cli import options
from penstock.cli.forms import form_of
from penstock.cli.out import Out
from penstock.cli.paths import open_log
from penstock.cli.registry import Example
from penstock.cli.selecting import LIST_EVENTS, followed_lists
from penstock.cli.when import span
from penstock.errors import NotFound, Usage

ABOUT = "Print the events of many logs as one sequence, by time. Each is printed with its log."
EXAMPLES = (
    Example("penstock merge web api db --since -10m", "what happened in the last ten minutes"),
    Example(
        "penstock merge web api -f --quiet-after 1s", "live; a silent log delays by 1 s at most"
    ),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    options.add_logs(parser)
    options.add_selection(parser)
    parser.add_argument("-r", "--reverse", action="store_true", help="the newest first")
    parser.add_argument("-f", "--follow", action="store_true", help="go on as events are appended")
    parser.add_argument(
        "--from-now", action="store_true", help="with -f: only what comes from now on"
    )
    parser.add_argument(
        "--quiet-after",
        metavar="SPAN",
        help="with -f: do not wait for a log that has had nothing for that long",
    )
    parser.add_argument("--timeout", metavar="SPAN", help="with -f: stop if nothing comes; 124")
    options.add_output(parser, options.FORMS[:4])


def run(given: argparse.Namespace, out: Out) -> int | None:
    from penstock.reading.merging import merge

    timeout = options.timeout_of(given)
    if not given.follow:
        for name in ("from_now", "quiet_after", "timeout"):
            if getattr(given, name):
                raise Usage(f"--{name.replace('_', '-')} is for -f")
    if given.first is not None or given.last is not None:
        raise Usage("seqs are of one log; merge takes --since and --until")
    form = form_of(given, out)
    test = options.wanted(given)
    limit = options.limit_of(given)
    with ExitStack() as stack:
        names = {}
        logs: list[Any] = []
        for name in given.logs:
            logs.append(stack.enter_context(open_log(name)))
            names[id(logs[-1])] = name
        how = {**options.time_options(given), **options.read_options(given)}
        if given.follow:
            how |= {
                "follow": True,
                "start": "end" if given.from_now else None,
                "quiet": None
                if given.quiet_after is None
                else span(given.quiet_after, "--quiet-after"),
            }
        merged = merge(*logs, reverse=given.reverse, **how)
        found = _print(merged, given, out, form, test, limit, timeout, names)
        form.close()
    return NotFound.exit_code if given.one and not found else None


def _print(
    merged: Any,
    given: argparse.Namespace,
    out: Out,
    form: Any,
    test: Any,
    limit: int | None,
    timeout: float | None,
    names: dict[int, str],
) -> bool:
    """Print what comes, each event with its log; whether there was any."""
    if given.follow:
        one_by_one = (
            [event]
            for events in followed_lists(_Single(merged), test, limit, timeout)
            for event in events
        )
        found = False
        for events in one_by_one:
            found = True
            form.write(events, names[id(merged.source)])
            out.flush()
        return found
    left = limit
    found = False
    run: list[Any] = []
    source = None
    for event in merged:
        if test is not None and not test(event):
            continue
        if left == 0:
            break
        if merged.source is not source or len(run) >= LIST_EVENTS:
            if run:
                form.write(run, names[id(source)])
            run, source = [], merged.source
        run.append(event)
        found = True
        left = None if left is None else left - 1
    if run:
        form.write(run, names[id(source)])
    return found


class _Single:
    """A merge that hands out one event at a time, so that its source is known."""

    def __init__(self, merged: Any) -> None:
        self._merged = merged

    @property
    def timeout(self) -> Any:
        return self._merged._timeout

    @timeout.setter
    def timeout(self, seconds: float | None) -> None:
        self._merged._timeout = seconds

    def __next__(self) -> Any:
        return next(self._merged)

    def take(self, count: int) -> list[Any]:
        return []
