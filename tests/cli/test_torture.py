"""``penstock torture``."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.commands import torture
from tests.cli.support import COMMAND, Shell, real_environment


def test_a_round(shell: Shell, tmp_path: Path) -> None:
    """Writers are killed, nothing is lost, and nothing is left behind."""
    (report,) = shell("torture", ".", "--for", "1ms", "--writers", "2", "--seed", "7").values
    assert report["ok"] and report["seed"] == 7 and report["date"]
    tests = {row["test"]: row for row in report["tests"]}
    assert tests["kill"]["kills"] == 2 and tests["no room"]["ok"] and tests["sync"]["ok"]
    assert list(tmp_path.iterdir()) == []


def test_it_finds_what_is_lost(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """If an acknowledged event were missing, the exit code would be 7 and the report say which."""
    check = torture._Storm._check

    def forgetful(self: Any) -> None:
        for life in self._acked:
            self._acked[life] += 1_000_000
        check(self)

    monkeypatch.setattr(torture._Storm, "_check", forgetful)
    (report,) = shell("torture", ".", "--for", "1ms", "--writers", "1", code=7).values
    assert not report["ok"] and "acknowledged" in report["tests"][0]["problems"][0]
    shell("torture", "none", code=3)


def test_ctrl_c(shell: Shell, tmp_path: Path) -> None:
    """Ctrl-C stops the writers, and leaves nothing behind."""
    process = subprocess.Popen(
        [*COMMAND, "torture", ".", "--for", "1h"], stderr=subprocess.PIPE, env=real_environment()
    )
    while not list(tmp_path.glob(".penstock-torture-*/*.said")):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, b"")
    assert list(tmp_path.iterdir()) == []
