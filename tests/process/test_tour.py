"""The short example without Spark runs, and its counts agree."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.workers import ROOT

pytestmark = pytest.mark.process


def test_the_tour_agrees() -> None:
    """Four writers, a follower and a killed writer agree on what the log holds."""
    words = [sys.executable, str(ROOT / "examples" / "tour.py"), "--events", "20000"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all counts agree" in done.stdout
