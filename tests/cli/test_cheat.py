"""``penstock cheat``."""

from __future__ import annotations

import re
import shlex

from penstock.cli.commands.cheat import TASKS
from penstock.cli.parser import command_parser
from penstock.cli.registry import COMMANDS, load
from tests.cli.support import Shell


def test_examples_are_valid() -> None:
    """Every command line in help and cheat sheet is one that penstock takes."""
    examples = [example for task in TASKS.values() for example in task]
    examples += [example for name in COMMANDS for example in load(name).EXAMPLES]
    for example in examples:
        found = re.findall(r"penstock (\w+)((?:'[^']*'|\"[^\"]*\"|[^|<>)'\"])*)", example.line)
        assert found, example.line
        for name, words in found:
            if "xargs" in example.line.partition(f"penstock {name}")[0].rpartition("|")[2]:
                continue  # xargs gives it the rest
            command_parser(name).parse(shlex.split(words))
        assert example.about, example.line


def test_tasks(shell: Shell) -> None:
    """All tasks, one of them, or the examples of a command."""
    text = shell("cheat", "--color", "never", terminal=True).text
    assert all(f"# {task}" in text for task in TASKS)
    assert {row["task"] for row in shell("cheat", "copy", "--json").values} == {"copy and convert"}
    assert "penstock cat" in shell("cheat", "cat").text
    shell("cheat", "nothing like it", code=2)
