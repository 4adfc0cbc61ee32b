"""Where a ring stands, and filling it, for tests."""

from __future__ import annotations

from typing import Any

import penstock
from penstock.stats import Ring

HEADER = 40  # bytes of a frame without a value


def shape(log: penstock.Log) -> Ring:
    found = log.stats().ring
    assert found is not None
    return found


def fill(log: penstock.Log, laps: float = 1.0, size: int = 100) -> None:
    """Append events of one size until the head has gone so many laps on."""
    goal = shape(log).head + laps * shape(log).ring_bytes
    while shape(log).head < goal:
        log.append(b"f" * size)


def fill_up(log: penstock.Log) -> int:
    """Append until there is no room; how often that was possible."""
    count = 0
    while True:
        try:
            log.append(b"h" * 500, timeout=0)
        except penstock.Full:
            return count
        count += 1


def left_in_lap(log: penstock.Log) -> int:
    found = shape(log)
    return found.ring_bytes - found.head % found.ring_bytes


def values(events: Any) -> list[bytes | None]:
    return [e.value for e in events]
