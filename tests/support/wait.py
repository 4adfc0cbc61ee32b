"""Waiting for conditions: nothing in the tests sleeps and hopes, and no wait is without limit."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 60.0  # seconds; a guard against hangs on a loaded machine, never a measure of speed


def wait_for(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Return once ``condition()`` is true; fail the test, naming ``what``, when time is up."""
    deadline = time.monotonic() + seconds
    nap = 0.0005
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"after {seconds} s still waiting for: {what}")
        time.sleep(nap)
        nap = min(0.01, nap * 1.5)
