"""``penstock follow``."""

from __future__ import annotations

import argparse
from typing import Any

from penstock.cli import options
from penstock.cli.forms import form_of
from penstock.cli.out import Out
from penstock.cli.paths import open_log
from penstock.cli.registry import Example
from penstock.cli.selecting import followed_lists
from penstock.errors import Usage

ABOUT = (
    "Print events as they are appended, from now on, or from --from or --since on. It sleeps "
    "until there is one."
)
EXAMPLES = (
    Example("penstock follow orders", "until Ctrl-C"),
    Example("penstock follow orders --one --timeout 5s", "wait for one event; 124 if none comes"),
    Example("penstock follow orders --consumer billing", "go on where it stopped last time"),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    options.add_log(parser)
    options.add_selection(parser, ends=False)
    parser.add_argument("--timeout", metavar="SPAN", help="stop if nothing comes; exit code 124")
    parser.add_argument(
        "--consumer",
        metavar="NAME",
        help="go on where that consumer is, and commit what was printed",
    )
    parser.add_argument(
        "--standby", action="store_true", help="with --consumer: wait until it is free"
    )
    options.add_output(parser, options.FORMS[:4])


def run(given: argparse.Namespace, out: Out) -> None:
    timeout = options.timeout_of(given)
    form = form_of(given, out)
    test = options.wanted(given)
    limit = options.limit_of(given)
    if given.standby and given.consumer is None:
        raise Usage("--standby is for --consumer")
    with open_log(given.log) as log:
        source = _source(log, given)
        for events in followed_lists(source, test, limit, timeout):
            form.write(events)
            out.flush()
            if given.consumer is not None:
                source.commit(events[-1].seq)
        form.close()
        out.skip(source.skipped, "events that are damaged or gone")


def _source(log: Any, given: argparse.Namespace) -> Any:
    """The reader, or the consumer."""
    how = options.read_options(given)
    if given.consumer is not None:
        if given.first is not None or given.since is not None:
            raise Usage("--consumer goes on where it is; leave out --from and --since")
        return log.consumer(given.consumer, standby=given.standby, **how)
    start = options.seq_range(given, log).get("start")
    times = options.time_options(given)
    if start is not None:
        return log.follow(start, **times, **how)
    return log.follow(**times, **how)
