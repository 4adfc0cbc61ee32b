"""``penstock configure``."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
from typing import Any

from penstock.cli import options
from penstock.cli.out import Out
from penstock.cli.paths import open_log
from penstock.cli.registry import Example
from penstock.cli.when import span, whole
from penstock.errors import Usage

ABOUT = """\
Change settings of a log, for every process; without SETTING, show them all. Sizes are like 64MiB,
spans like 7d, keep_until_consumed is yes, no or names with commas; 0 ends a rule."""
EXAMPLES = (
    Example("penstock configure orders keep_seconds=30d keep_bytes=10GiB", "what to keep"),
    Example("penstock configure orders ttl=7d", "events live for a week"),
    Example("penstock configure orders", "the settings it has"),
)
SPANS = ("ttl", "keep_seconds", "consumer_ttl")
SIZES = ("segment_size", "keep_bytes", "max_lag", "max_bytes")


def arguments(parser: argparse.ArgumentParser) -> None:
    options.add_log(parser)
    parser.add_argument("settings", metavar="SETTING=VALUE", nargs="*", help="the changes")


def run(given: argparse.Namespace, out: Out) -> None:
    changes: dict[str, Any] = {}
    with open_log(given.log, "rw" if given.settings else "r") as log:
        known = list(inspect.signature(log.configure).parameters)
        for pair in given.settings:
            name, equals, text = pair.partition("=")
            if name not in known or not equals:
                from penstock.cli.parser import nearest

                raise Usage(
                    f"SETTING must be one of {', '.join(known)} with =VALUE, got {pair!r}"
                    + nearest(name, known)
                )
            if name in changes:
                raise Usage(f"{name} is given twice")
            changes[name] = _value(name, text)
        settings = log.configure(**changes) if changes else log.settings
        found = dataclasses.asdict(settings)
        found["file_mode"] = f"{settings.file_mode:o}"
        out.fields(found)


def _value(name: str, text: str) -> Any:
    """The text as `Log.configure` takes it."""
    if name in SPANS:
        return span(text, name)
    if name in SIZES or name in ("when_full", "codec"):
        return text
    if name == "file_mode":
        try:
            return int(text, 8)
        except ValueError:
            raise Usage(f"file_mode must be permissions in octal, got {text!r}") from None
    if name == "keep_until_consumed":
        words = {"yes": True, "true": True, "no": False, "false": False, "0": False}
        return words.get(text.lower(), text.split(","))
    if name == "prepare_at":
        try:
            return float(text)
        except ValueError:
            raise Usage(f"prepare_at must be a number from 0 to 1, got {text!r}") from None
    return whole(text, name)
