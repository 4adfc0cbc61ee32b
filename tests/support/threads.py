"""The threads that this process has, as the system sees them."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

NAME_MAX = 15  # what the system keeps of a name
PATIENCE = 5.0  # seconds; after its last word to others a thread of Python has still to end


def threads_of(name: str = "penstock-") -> list[str]:
    """The names that begin like this, by default those of open logs, of threads that do not end.

    They are given a while for that.
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
