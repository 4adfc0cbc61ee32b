"""Writes the part of docs/cli.md that ``penstock COMMAND --help`` has, and the man page.

    python tools/cli_docs.py

The generated part of docs/cli.md is after the line ``<!-- commands -->``. Neither it nor
docs/penstock.1 is edited by hand; a test fails if they differ from what this writes.
"""

import re
from pathlib import Path

from penstock.cli.parser import DESCRIPTION, command_parser
from penstock.cli.registry import COMMANDS, GROUPS, load

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "cli.md"
MANUAL = DOCS / "penstock.1"
MARK = "<!-- commands -->\n"


def commands() -> str:
    """The generated part of docs/cli.md."""
    parts = []
    for group, names in GROUPS.items():
        parts.append(f"\n## Commands: {group}\n\n| command | what it does |\n|---|---|\n")
        parts += [f"| [{name}](#penstock-{name}) | {about} |\n" for name, about in names.items()]
    for name in COMMANDS:
        text = command_parser(name).format_help().rstrip()
        parts.append(f"\n## penstock {name}\n\n```text\n{text}\n```\n")
    return "".join(parts)


def page() -> str:
    """docs/cli.md as it should be."""
    return PAGE.read_text().partition(MARK)[0] + MARK + commands()


def manual() -> str:
    """The man page."""
    lines = [
        '.TH PENSTOCK 1 "" "Penstock" "User Commands"',
        ".SH NAME",
        r"penstock \- append to, read and look after event logs",
        ".SH SYNOPSIS",
        ".B penstock",
        r"\fICOMMAND\fR [\fIoptions\fR]",
        ".SH DESCRIPTION",
        escaped(
            DESCRIPTION + " A LOG is a path; a bare name lies in $PENSTOCK_DIR if that is set."
        ),
        ".SH COMMANDS",
    ]
    for name in COMMANDS:
        command = load(name)
        parser = command_parser(name)
        lines += [f".SS penstock {name}", escaped(command.ABOUT), ".PP", ".nf"]
        lines += [escaped(line) for line in parser.format_usage().rstrip().splitlines()]
        lines.append(".fi")
        for action in parser._actions:
            if action.help and action.dest != "help":
                words = ", ".join(action.option_strings) or str(action.metavar or action.dest)
                if action.option_strings and action.nargs != 0:
                    words += f" {action.metavar or '|'.join(map(str, action.choices or ()))}"
                lines += [
                    ".TP",
                    rf"\fB{escaped(words)}\fR",
                    escaped(action.help.replace("%%", "%")),
                ]
        for example in command.EXAMPLES:
            lines += [
                ".PP",
                escaped(example.about) + ":",
                ".PP",
                ".nf",
                escaped(example.line),
                ".fi",
            ]
    lines += [".SH EXIT STATUS", ".nf"]
    lines += [escaped(line) for line in exit_codes()]
    lines += [".fi", ".SH ENVIRONMENT", "PENSTOCK_DIR, NO_COLOR, PENSTOCK_TRACEBACK"]
    return "\n".join(lines) + "\n"


def exit_codes() -> list[str]:
    """The table of exit codes of docs/cli.md, as lines of text."""
    table = PAGE.read_text().partition("## Exit codes\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d[^|]*) \| ([^|]*) \|", table, re.MULTILINE)
    return [f"{code.strip():>10}  {about.strip()}" for code, about in rows]


def escaped(text: str) -> str:
    """Text for roff."""
    text = text.replace("\\", r"\e").replace("-", r"\-").replace("`", "")
    return "\n".join("\\&" + line if line[:1] in (".", "'") else line for line in text.split("\n"))


if __name__ == "__main__":
    PAGE.write_text(page())
    MANUAL.write_text(manual())
