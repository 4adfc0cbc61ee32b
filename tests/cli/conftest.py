"""Fixtures to run commands, in this process or in one of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.support import Shell


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Runs commands in an empty directory, with nothing of the caller's environment."""
    for name in ("PENSTOCK_DIR", "NO_COLOR", "PENSTOCK_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return Shell(monkeypatch)
