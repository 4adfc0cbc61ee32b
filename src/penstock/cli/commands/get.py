"""``penstock get``."""

from __future__ import annotations

import argparse
import os

from penstock.cli import options
from penstock.cli.forms import form_of
from penstock.cli.out import Out
from penstock.cli.paths import open_log
from penstock.cli.registry import Example
from penstock.errors import NotFound, Usage

ABOUT = "Print events by their seqs; -1 is the newest. With --key the newest event of a key."
EXAMPLES = (
    Example("penstock get orders 7", "the event with seq 7"),
    Example("penstock get orders -1 -o raw > value", "the value of the newest one, byte for byte"),
    Example("penstock get users --key ann", "the newest event of a key"),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    options.add_log(parser)
    parser.add_argument("seqs", metavar="SEQ", nargs="*", help="seqs; -1 is the newest event")
    parser.add_argument("--key", "-k", metavar="KEY", help="the newest event of that key")
    options.add_output(parser, options.FORMS[:4])


def run(given: argparse.Namespace, out: Out) -> None:
    if (given.key is None) == (not given.seqs):
        raise Usage("give either seqs, or --key")
    numbers = [_seq(text) for text in given.seqs]
    form = form_of(given, out)
    with open_log(given.log) as log:
        if given.key is not None:
            event = log.latest(os.fsencode(given.key))
            if event is None:
                raise NotFound(f"{log.path}: no event has the key {given.key!r}")
            form.write([event])
        for number in numbers:
            form.write([log[number]])
        form.close()


def _seq(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise Usage(f"a seq must be a whole number, got {text[:40]!r}") from None
