"""docs/cli.md and the man page have what the commands' help has, and what they promise holds."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import penstock
from penstock.cli import outcome

ROOT = Path(__file__).parents[2]
TOOL: dict[str, Any] = runpy.run_path(str(ROOT / "tools" / "cli_docs.py"))


def test_docs_are_what_help_says() -> None:
    """The generated part of docs/cli.md, and the man page, are those that the tool writes."""
    page = (ROOT / "docs" / "cli.md").read_text()
    assert page == TOOL["page"](), "run python tools/cli_docs.py"
    assert (ROOT / "docs" / "penstock.1").read_text() == TOOL["manual"]()


def test_every_exit_code_is_documented() -> None:
    """The table has the code of each error by its kind, and those of the command line."""
    codes = "\n".join(TOOL["exit_codes"]())
    for name in penstock.__all__:
        found = getattr(penstock, name)
        if isinstance(found, type) and issubclass(found, penstock.PenstockError):
            kind = outcome.kind_of(found("x"))
            if found is not penstock.PenstockError:
                assert re.search(rf"^ *{found.exit_code} .*`{kind}`", codes, re.MULTILINE), name
    for code in (outcome.SKIPPED, outcome.TIMEOUT, outcome.INTERRUPTED, outcome.BROKEN_PIPE):
        assert re.search(rf"^ *{code} ", codes, re.MULTILINE)


def test_the_transcript_of_the_readme(tmp_path: Path) -> None:
    """The commands in README print what it shows."""
    (block,) = re.findall(r"```console\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    script = tmp_path / "bin" / "penstock"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m penstock "$@"\n')
    script.chmod(0o755)
    lines = block.splitlines()
    commands = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    done = subprocess.run(
        ["bash", "-ec", "\n".join(commands)],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{script.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [line for line in lines if not line.startswith("$ ")]
