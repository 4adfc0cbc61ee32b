"""Parsers: one per command, made when it is run; all of them for help, completion and docs."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from penstock.cli.registry import COMMANDS, GROUPS, load
from penstock.errors import Usage

_BEGINS_AS_NUMBER = re.compile(r"-\.?\d")
WIDTH = 100


class Help(Exception):
    """Help was asked for: the text."""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Help that looks the same in every terminal, so that docs can have it."""

    def __init__(self, prog: str, **rest: Any) -> None:
        super().__init__(prog, max_help_position=28, width=WIDTH)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are ours, and which suggests what may have been meant."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", _Formatter)
        options["allow_abbrev"] = False
        super().__init__(**options)

    def error(self, message: str) -> NoReturn:
        """Refuse the arguments."""
        raise Usage(message)

    def print_help(self, file: Any = None) -> None:
        """Hand the help text to the caller, which knows where to print."""
        raise Help(self.format_help())

    def parse(self, given: Sequence[str]) -> argparse.Namespace:
        """The arguments, with options anywhere among them; unknown ones are refused."""
        rest: list[str] | None = None
        if self.get_default("rest") is not None and "--" in given:  # a command line of its own
            at = list(given).index("--")
            given, rest = given[:at], list(given[at + 1 :])
        self._has_negative_number_optionals.clear()  # -0 is an option, but -1 is a seq
        joined = list(self._joined(given))
        if "-h" in joined or "--help" in joined:
            before = joined[: joined.index("--")] if "--" in joined else joined
            if "-h" in before or "--help" in before:
                self.print_help()
        try:
            found, unknown = self.parse_known_intermixed_args(joined)
        except TypeError:  # a parser with sub-commands cannot do that
            found, unknown = self.parse_known_args(joined)
        if unknown:
            self.refuse(unknown[0])
        if rest is not None:
            found.rest = rest
        return found

    def _joined(self, given: Sequence[str]) -> Iterable[str]:
        """``--since -1h`` as ``--since=-1h``: argparse would take -1h for an option."""
        options = self._option_string_actions
        values = {name for name, action in options.items() if action.nargs != 0}
        at = 0
        while at < len(given):
            word = given[at]
            if word == "--":
                yield from given[at:]
                return
            after = given[at + 1] if at + 1 < len(given) else ""
            if word in values and _BEGINS_AS_NUMBER.match(after):
                yield f"{word}={after}" if word.startswith("--") else f"{word}{after}"
                at += 1
            else:
                yield word
            at += 1

    def refuse(self, word: str) -> NoReturn:
        """The error for an argument that is one too many, or an option that does not exist."""
        if not word.startswith("-") or word == "-":
            raise Usage(f"unexpected argument {word!r}; see {self.prog} --help")
        name = word.partition("=")[0]
        names = sorted(n for n in self._option_string_actions if n != "-h")
        raise Usage(f"unknown option {name}{nearest(name, names)}; see {self.prog} --help")


def nearest(word: str, known: Iterable[str]) -> str:
    """A question whether another word was meant; empty if none is like it."""
    from difflib import get_close_matches

    names = list(known)
    found = [name for name in names if len(word) > 4 and name.startswith(word)][:1]
    found = found or get_close_matches(word, names, 1, 0.6)
    return f"; did you mean {found[0]}?" if found else ""


def command_parser(name: str, into: Parser | None = None) -> Parser:
    """The parser of one command."""
    command = load(name)
    parser = Parser(prog=f"penstock {name}") if into is None else into
    parser.description = command.ABOUT
    parser.epilog = "examples:\n" + "\n".join(
        f"  {example.line}\n      {example.about}" for example in command.EXAMPLES
    )
    command.arguments(parser)
    common = parser.add_argument_group("common options")
    common.add_argument(
        "--json", action="store_true", help="print JSON, and errors as JSON, on a terminal as well"
    )
    common.add_argument(
        "--quiet", "-q", action="store_true", help="no progress, notes or confirmations"
    )
    common.add_argument(
        "--color", choices=("auto", "always", "never"), default="auto", help="default: auto"
    )
    return parser


def whole_parser() -> Parser:
    """The parser of everything, for completion and docs."""
    parser = Parser(prog="penstock", description=DESCRIPTION, epilog=_overview())
    parser.add_argument("--version", "-V", action="store_true", help="print the version")
    below = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for name, about in COMMANDS.items():
        command_parser(name, below.add_parser(name, help=about, prog=f"penstock {name}"))
    return parser


DESCRIPTION = "Append to, read and look after Penstock logs."


def _overview() -> str:
    lines = []
    for group, commands in GROUPS.items():
        lines.append(f"{group}:")
        lines += [f"  {name:<12}{about}" for name, about in commands.items()]
    return "\n".join(lines)


def help_text() -> str:
    """What ``penstock --help`` prints. It loads no command."""
    return f"""usage: penstock COMMAND [options]
       penstock --version

{DESCRIPTION}

{_overview()}

penstock COMMAND --help has the options of a command, penstock cheat examples by task.
"""


def unknown_command(word: str) -> Usage:
    """The error for a word that is no command."""
    if word.startswith("-"):
        return Usage(
            f"options come after the command: penstock COMMAND {word}; see penstock --help"
        )
    return Usage(f"there is no command {word!r}{nearest(word, COMMANDS)}; see penstock --help")
