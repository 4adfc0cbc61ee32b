"""docs/cli.md and the man page have what the commands' help has, and what they promise holds."""

from __future__ import annotations

import re
import runpy
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
