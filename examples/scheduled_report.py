"""A scheduled report: each tick once, however many processes run this program.

    python -m examples.scheduled_report DIRECTORY [SECONDS]

Start it twice: the reports do not double, and either may be killed.
"""

from __future__ import annotations

import sys
import time
from datetime import datetime

import penstock


def ask_for_report(at: datetime) -> bytes:
    """The event of a tick."""
    return f"sales up to {at:%H:%M:%S}".encode()


def main(path: str, seconds: float = 60.0, every: float | str = "1 second") -> int:
    """Append requests for reports and make them, for so long; how many this process made."""
    made = 0
    end = time.monotonic() + seconds
    with (
        penstock.open(path) as log,
        log.group("reports") as group,
        group.every(every, "sales", ask_for_report, topic="sales"),
        group.worker(timeout=0.1) as worker,
    ):
        while time.monotonic() < end:
            for job in worker.poll(timeout=0.1):
                with job:
                    print("report:", job.event.value.decode())
                    made += 1
    return made


if __name__ == "__main__":
    main(sys.argv[1], *map(float, sys.argv[2:]))
