"""Which commands there are. Each is one module of `penstock.cli.commands`, loaded when it is run.

A module has ABOUT and EXAMPLES for its help, `arguments(parser)`, and `run(given, out)`, which
returns the exit code, or None for success.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

if TYPE_CHECKING:
    import argparse

    from penstock.cli.out import Out


class Example(NamedTuple):
    """A command line that works, and what it does."""

    line: str
    about: str


class Command(Protocol):
    """What a module of `penstock.cli.commands` has."""

    ABOUT: str
    EXAMPLES: tuple[Example, ...]

    @staticmethod
    def arguments(parser: argparse.ArgumentParser) -> None:
        """Add the arguments of the command to its parser."""

    @staticmethod
    def run(given: argparse.Namespace, out: Out) -> int | None:
        """Run the command."""


GROUPS: dict[str, dict[str, str]] = {
    "logs": {
        "create": "create a log, or a ring",
        "info": "what a log is, has and keeps",
        "list": "the logs below a directory",
        "delete": "delete logs with their consumers",
        "configure": "change or show settings of a log",
        "resize": "give a ring another size",
    },
    "events": {
        "append": "append events from arguments, lines, JSON or a file",
        "cat": "print the events of a log",
        "tail": "print the last events of a log",
        "follow": "print events as they are appended",
        "get": "print events by their seqs",
        "tap": "run a program and append its output, line by line",
        "merge": "print the events of many logs as one, by time",
        "sql": "query logs with SQL",
        "consumer": "named readers: where they are, reset, delete",
        "group": "work queues: run a program for each event, dead letters",
    },
    "files": {
        "import": "append events from JSON, CSV, Arrow, Parquet, SQLite, kcat, Redis or logs",
        "export": "write events to JSON, CSV, Arrow or Parquet files",
        "backup": "copy a log while it is written to",
    },
    "health": {
        "verify": "check every byte of logs",
        "repair": "mend a damaged log, or make a mended copy",
        "dump": "the bytes of a log's files, explained",
        "steward": "retain, trim, compact, erase, why: what to keep, and what went",
        "stats": "counts and sizes of logs",
        "top": "watch rates, sizes and lags of logs",
        "doctor": "what is fine here, what is not, and what to do",
        "bench": "how fast appends and reads are here",
        "torture": "kill writers, fill and sync the disk here, and report",
    },
    "help": {
        "cheat": "examples by task",
        "completion": "completion for bash, zsh, fish or tcsh",
    },
}
COMMANDS = {name: about for group in GROUPS.values() for name, about in group.items()}
_MODULES = {"import": "importing", "list": "listing"}  # a module cannot have a name of the language


def load(name: str) -> Command:
    """The module of a command."""
    from importlib import import_module

    return cast(Command, import_module(f"penstock.cli.commands.{_MODULES.get(name, name)}"))
