"""Odd arguments get a typed error or a right result; never a crash, a hang or silent acceptance."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.process
@pytest.mark.parametrize("kind", ["log", "ring", "json", "spark"])
def test_every_public_callable_refuses_what_it_cannot_take(kind: str, tmp_path: Path) -> None:
    """Each parameter of each public function and method, listed from the package, is given each of
    a table of odd values: the call raises an error of Penstock's, or takes what the parameter may
    be; it returns; and the log is whole and has what was acknowledged, no more and no less."""
    run = [sys.executable, "-m", "tests.support.oddly", kind, str(tmp_path)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == []
