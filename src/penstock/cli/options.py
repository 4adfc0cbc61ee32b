"""Options that several commands share: which events, and how to print them."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable
from typing import Any

from penstock.cli.when import moment, span, whole
from penstock.errors import Usage

FORMS = ("text", "jsonl", "csv", "raw", "arrow", "parquet")


def add_log(parser: argparse.ArgumentParser, about: str = "the log") -> None:
    """The log that a command works with."""
    parser.add_argument("log", metavar="LOG", help=f"{about}: a path, or a name in $PENSTOCK_DIR")


def add_logs(parser: argparse.ArgumentParser, count: str = "+") -> None:
    """The logs that a command works with."""
    parser.add_argument(
        "logs", metavar="LOG", nargs=count, help="logs: paths, or names in $PENSTOCK_DIR"
    )


def add_yes(parser: argparse.ArgumentParser) -> None:
    """The option that confirms what cannot be undone."""
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask")


def confirm(given: argparse.Namespace, question: str) -> None:
    """Ask on a terminal; elsewhere --yes is needed."""
    import sys

    if given.yes:
        return
    if sys.stdin is None or not sys.stdin.isatty() or not sys.stderr.isatty():
        raise Usage(f"{question} needs --yes where nobody can be asked")
    print(f"{question}? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Usage("not confirmed; nothing was changed")


def add_selection(
    parser: argparse.ArgumentParser, *, ends: bool = True, starts: bool = True, limit: bool = True
) -> None:
    """Which events are wanted."""
    group = parser.add_argument_group("which events")
    if starts:
        group.add_argument("--since", "-S", metavar="TIME", help="events of that time or later")
    if ends:
        group.add_argument("--until", "-U", metavar="TIME", help="events before that time")
    if starts:
        group.add_argument(
            "--from", dest="first", metavar="SEQ", help="the first seq; -10: ten back"
        )
    if ends:
        group.add_argument(
            "--to", dest="last", metavar="SEQ", help="the last seq, which is included"
        )
    group.add_argument(
        "--topic", "-t", action="append", metavar="TOPIC", help="of that topic; may be repeated"
    )
    group.add_argument("--key", "-k", metavar="KEY", help="with that key")
    group.add_argument("--tag", action="append", metavar="TAG", help="with that tag; repeated: all")
    group.add_argument("--grep", "-g", metavar="REGEX", help="whose value matches it")
    group.add_argument(
        "--where", "-w", metavar="EXPR", help="for which it is true, such as 'data.total > 9'"
    )
    if limit:
        group.add_argument("-n", "--limit", metavar="N", help="at most that many")
        group.add_argument(
            "--one", action="store_true", help="only one; exit code 3 if there is none"
        )
    group.add_argument("--durable-only", action="store_true", help="only what is on disk")
    group.add_argument(
        "--skip-damage",
        action="store_true",
        help="pass over damage, and exit with 12 if there is any",
    )
    group.add_argument(
        "--skip-gaps", action="store_true", help="pass over what is gone, and exit with 12"
    )


def add_output(parser: argparse.ArgumentParser, forms: tuple[str, ...] = FORMS) -> None:
    """How to print events."""
    group = parser.add_argument_group("output")
    group.add_argument(
        "-o", "--output", choices=forms, help="default: text on a terminal, else jsonl"
    )
    group.add_argument(
        "--format",
        metavar="FORMAT",
        help="each event like this: %%s seq, %%t time, %%T seconds, %%p topic, %%k key, %%v "
        "value, %%h headers, %%g tags, %%S size; {hex}, {base64} or {json} may follow; "
        "\\n, \\t, \\0, %%%%",
    )
    group.add_argument("-0", "--null", action="store_true", help="end each event with NUL")
    group.add_argument("--utc", action="store_true", help="times of text in UTC, not in local time")


def raw_key(text: str | None) -> bytes | None:
    """A key, as the bytes that the shell gave."""
    return None if text is None else os.fsencode(text)


def read_options(given: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `Log.read` and of the others that select events."""
    topics = given.topic
    return {
        "topic": topics[0] if topics and len(topics) == 1 else topics or None,
        "key": raw_key(given.key),
        "tags": given.tag or None,
        "durable": given.durable_only,
        "on_damage": "skip" if given.skip_damage else "raise",
        "on_gap": "skip" if given.skip_gaps else "raise",
    }


def time_options(given: argparse.Namespace) -> dict[str, Any]:
    """``since`` and ``until``, as far as they are given."""
    return {
        name: moment(text, f"--{name}")
        for name in ("since", "until")
        if (text := getattr(given, name, None)) is not None
    }


def seq_range(given: argparse.Namespace, log: Any) -> dict[str, Any]:
    """``start`` and ``stop``; a negative seq counts from the end."""

    def seq(text: str, what: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise Usage(f"{what} must be a seq, got {text[:40]!r}") from None
        return number if number >= 0 else max(log.last_seq + 1 + number, 1)

    found: dict[str, Any] = {}
    if getattr(given, "first", None) is not None:
        found["start"] = seq(given.first, "--from")
    if getattr(given, "last", None) is not None:
        found["stop"] = seq(given.last, "--to") + 1
    return found


def limit_of(given: argparse.Namespace) -> int | None:
    """How many events at most; None for all."""
    if getattr(given, "one", False):
        if given.limit is not None:
            raise Usage("--one means -n 1; leave out one of the two")
        return 1
    return None if getattr(given, "limit", None) is None else whole(given.limit, "-n")


def timeout_of(given: argparse.Namespace) -> float | None:
    """``--timeout`` in seconds; None for ever."""
    return None if given.timeout is None else span(given.timeout, "--timeout")


def wanted(given: argparse.Namespace) -> Callable[[Any], bool] | None:
    """The filter of --grep and --where; None if neither is given."""
    tests: list[Callable[[Any], bool]] = []
    if given.grep is not None:
        try:
            found = re.compile(os.fsencode(given.grep)).search
        except (re.error, OverflowError, RecursionError) as error:
            raise Usage(
                f"--grep must be a regular expression, got {given.grep!r}: {error}"
            ) from None
        tests.append(lambda event: not event.deletes and found(event.view) is not None)
    if given.where is not None:
        from penstock.cli.where import compile_where

        tests.append(compile_where(given.where))
    if not tests:
        return None
    return tests[0] if len(tests) == 1 else lambda event: all(test(event) for test in tests)
