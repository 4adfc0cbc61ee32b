"""What this process has of a log in its page tables."""

from __future__ import annotations

from pathlib import Path


def mapped_bytes(path: Path) -> int:
    """How much of the segments under ``path`` this process has in its page tables."""
    held = 0
    ours = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            ours = bool(rest) and rest[-1].startswith(str(path)) and rest[-1].endswith(".seg")
        elif ours and first == "Rss:":
            held += int(rest[0]) << 10
    return held
