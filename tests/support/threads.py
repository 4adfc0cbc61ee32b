"""The threads that this process has, as the system sees them."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

NAME_MAX = 15  # what the system keeps of a name
PATIENCE = 5.0  # seconds; behind its last word to others a thread of Python has still to end


def threads_of(name: str = "penstock-") -> list[str]:
    """The names of those that begin like this, and do not end by themselves in a while.

    The threads of logs do, as long as they are open.
    """
    deadline = time.monotonic() + PATIENCE
    while (found := _now(name[:NAME_MAX])) and time.monotonic() < deadline:
        time.sleep(0.001)
    return found


def _now(beginning: str) -> list[str]:
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            names.append((task / "comm").read_text().strip())
    return [name for name in names if name.startswith(beginning)]
