"""``penstock completion``."""

from __future__ import annotations

import argparse
from typing import Any

from penstock.cli.out import Out
from penstock.cli.registry import Example
from penstock.system.needs import needed

ABOUT = "Print the script by which a shell completes commands, options and paths."
EXAMPLES = (
    Example('eval "$(penstock completion bash)"', "bash: in ~/.bashrc"),
    Example("penstock completion zsh > ~/.zfunc/_penstock", "zsh: in a directory of $fpath"),
    Example("penstock completion fish > ~/.config/fish/completions/penstock.fish", "fish"),
)
PATHS = ("LOG", "FILE", "TARGET", "DIR", "LOG|DIR", "PATH")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish", "tcsh"))


def run(given: argparse.Namespace, out: Out) -> None:
    from penstock.cli.parser import whole_parser

    if given.shell == "fish":
        out.write(_fish().encode())
        return
    shtab = needed("shtab", "'penstock[cli]'")
    parser = whole_parser()
    for command in _parsers(parser):
        for action in command._actions:
            if action.metavar in PATHS:
                action.complete = shtab.FILE
    out.write(shtab.complete(parser, given.shell).encode() + b"\n")


def _parsers(parser: Any) -> list[Any]:
    """The parser, and those of the commands."""
    found = [parser]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found += action.choices.values()
    return found


def _fish() -> str:
    """The script for fish, which shtab does not write."""
    from penstock.cli.parser import command_parser
    from penstock.cli.registry import COMMANDS

    def quoted(text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    lines = ["# fish completion for penstock", "complete -c penstock -n __fish_use_subcommand -f"]
    for name, about in COMMANDS.items():
        lines.append(f"complete -c penstock -n __fish_use_subcommand -a {name} -d {quoted(about)}")
        for action in command_parser(name)._actions:
            if not action.option_strings:
                continue
            words = [f"complete -c penstock -n '__fish_seen_subcommand_from {name}'"]
            for option in action.option_strings:
                words.append(f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}")
            if action.nargs != 0:
                words.append("-r")
            if action.choices:
                words.append(f"-f -a {quoted(' '.join(map(str, action.choices)))}")
            words.append(f"-d {quoted((action.help or '').replace('%%', '%'))}")
            lines.append(" ".join(words))
    return "\n".join(lines) + "\n"
