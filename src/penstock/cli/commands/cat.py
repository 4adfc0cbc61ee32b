"""``penstock cat``."""

from __future__ import annotations

import argparse

from penstock.cli import options
from penstock.cli.forms import form_of
from penstock.cli.out import Out
from penstock.cli.paths import open_log
from penstock.cli.registry import Example
from penstock.cli.selecting import LIST_EVENTS, read_lists
from penstock.errors import NotFound, Usage

ABOUT = "Print the events that a log has now, the oldest first."
EXAMPLES = (
    Example("penstock cat orders --since -1h --topic eu", "the last hour of a topic"),
    Example("penstock cat orders -o jsonl | penstock append copy --jsonl --create", "a copy"),
    Example("penstock cat orders -w 'data.total > 100' --format '%s %k %v'", "select and lay out"),
    Example("penstock cat orders -o parquet > orders.parquet", "as a Parquet file"),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    options.add_log(parser)
    options.add_selection(parser)
    parser.add_argument("-r", "--reverse", action="store_true", help="the newest first")
    parser.add_argument(
        "--consumer",
        metavar="NAME",
        help="go on where that consumer is, and commit what was printed",
    )
    options.add_output(parser)


def run(given: argparse.Namespace, out: Out) -> int | None:
    if given.consumer is not None:
        return _consume(given, out)
    form = form_of(given, out)
    with open_log(given.log) as log:
        if getattr(form, "takes_scan", False):
            return form.write_scan(log, given)  # type: ignore[attr-defined, no-any-return]
        reader, lists = read_lists(log, given, reverse=given.reverse)
        found = False
        for events in lists:
            found = True
            form.write(events)
        form.close()
        out.skip(reader.skipped, "events that are damaged or gone")
    return NotFound.exit_code if given.one and not found else None


def _consume(given: argparse.Namespace, out: Out) -> int | None:
    """Print what a consumer has not seen, and commit it once it is printed."""
    for name in ("since", "until", "first", "last"):
        if getattr(given, name) is not None:
            raise Usage("--consumer goes on where it is; leave out --since, --until, --from, --to")
    if given.reverse:
        raise Usage("--consumer reads forwards; leave out -r")
    form = form_of(given, out)
    if getattr(form, "takes_scan", False):
        raise Usage("--consumer prints text, jsonl, csv or raw")
    test = options.wanted(given)
    left = options.limit_of(given)
    found = False
    with (
        open_log(given.log) as log,
        log.consumer(given.consumer, timeout=0, **options.read_options(given)) as consumer,
    ):
        while left is None or left > 0:
            events = consumer.poll(LIST_EVENTS if left is None or test else min(LIST_EVENTS, left))
            if not events:
                break
            place = events[-1].seq
            if test is not None:
                events = list(filter(test, events))
            if left is not None:
                if len(events) > left:
                    events = events[:left]
                    place = events[-1].seq
                left -= len(events)
            if events:
                found = True
                form.write(events)
            out.flush()
            consumer.commit(place)
        form.close()
        out.skip(consumer.skipped, "events that are damaged or gone")
    return NotFound.exit_code if given.one and not found else None
