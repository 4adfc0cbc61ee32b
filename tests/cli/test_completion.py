"""``penstock completion``."""

from __future__ import annotations

import subprocess

import pytest

from penstock.cli.registry import COMMANDS
from tests.cli.support import Shell


@pytest.mark.parametrize("shell_name", ["bash", "zsh", "fish", "tcsh"])
def test_scripts(shell: Shell, shell_name: str) -> None:
    """Each script knows every command, and some of their options."""
    text = shell("completion", shell_name).text
    for name in COMMANDS:
        assert name in text, name
    if shell_name != "tcsh":
        assert "durable-only" in text and "segment-size" in text


def test_bash_takes_it(shell: Shell) -> None:
    """Bash completes a command and an option with it."""
    shell_script = shell("completion", "bash").text
    program = (
        shell_script
        + "\nCOMP_WORDS=(penstock appe); COMP_CWORD=1; _shtab_penstock penstock appe penstock"
        + '\nprintf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["append"]
    shell("completion", "powershell", code=2)
