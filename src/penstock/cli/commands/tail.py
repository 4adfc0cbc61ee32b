"""``penstock tail``."""

from __future__ import annotations

import argparse

from penstock.cli import options
from penstock.cli.forms import form_of
from penstock.cli.out import Out
from penstock.cli.paths import open_log
from penstock.cli.registry import Example
from penstock.cli.selecting import followed_lists, lists_of
from penstock.cli.when import whole
from penstock.errors import NotFound, Usage

ABOUT = "Print the last events of a log, the newest at the end; with -f also those that follow."
EXAMPLES = (
    Example("penstock tail orders", "the last ten"),
    Example("penstock tail orders -n 3 -f --topic eu", "the last three of a topic, and more"),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    options.add_log(parser)
    parser.add_argument("-n", "--limit", metavar="N", default="10", help="how many; default: 10")
    parser.add_argument("-f", "--follow", action="store_true", help="go on as events are appended")
    parser.add_argument(
        "--timeout", metavar="SPAN", help="with -f: stop if nothing comes, and exit with 124"
    )
    options.add_selection(parser, ends=False, starts=False, limit=False)
    options.add_output(parser, options.FORMS[:4])


def run(given: argparse.Namespace, out: Out) -> int | None:
    timeout = options.timeout_of(given)
    if timeout is not None and not given.follow:
        raise Usage("--timeout is for -f")
    count = whole(given.limit, "-n")
    form = form_of(given, out)
    test = options.wanted(given)
    how = options.read_options(given)
    with open_log(given.log) as log:
        last = log.durable_seq if given.durable_only else log.last_seq
        reader = log.read(None, last + 1, reverse=True, **how)
        newest = [event for events in lists_of(reader, test, count) for event in events]
        if newest:
            form.write(newest[::-1])
        elif not given.follow:
            form.close()
            return NotFound.exit_code if count else None
        out.skip(reader.skipped, "events that are damaged or gone")
        if given.follow:
            out.flush()
            follower = log.follow(last + 1, **how)
            for events in followed_lists(follower, test, None, timeout):
                form.write(events)
                out.flush()
        form.close()
    return None
