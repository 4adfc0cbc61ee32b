"""The demo's writers: processes that append flights to logs as fast as they can.

    python -m examples.writers DIR WRITER [--dies-at EVENTS]

Each has its share of the flights, and notes after each batch how many events were acknowledged. The
replacement of a dead writer begins with the batch after the last one noted, under the same number:
if the dead one appended it and died before noting that, the log knows the number and appends
nothing.
"""

from __future__ import annotations

import argparse
import mmap
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa

import penstock
from examples import flights

WRITERS = 4
LOGS = 2
BATCH = 250


class Notes:
    """Counters that survive their writer: the acknowledged events of each writer."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        if create:
            path.write_bytes(bytes(8 * WRITERS))
        with path.open("r+b") as file:
            self._words = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")

    def __getitem__(self, writer: int) -> int:
        return self._words[writer]

    def __setitem__(self, writer: int, events: int) -> None:
        self._words[writer] = events

    def total(self) -> int:
        """Acknowledged events of all writers."""
        return sum(self._words)


def log_path(where: Path, number: int) -> Path:
    """The path of the log of that number."""
    return where / "flights" / str(number)


def share(table: pa.Table, writer: int) -> pa.Table:
    """The flights of one writer: every fourth, so that all progress through the year together."""
    return table.take(pa.array(range(writer, table.num_rows, WRITERS), pa.int64()))


def write(where: Path, writer: int, dies_at: int | None) -> None:
    """Append the writer's share, from the first batch that was not noted as acknowledged."""
    notes = Notes(where / "notes")
    death: threading.Thread | None = None
    mine = share(flights.load(where / "flights.arrow"), writer)
    with penstock.open(log_path(where, writer % LOGS), sync_seconds=0.2) as log:
        while (done := notes[writer]) < mine.num_rows:
            if death is None and dies_at is not None and done >= dies_at:
                death = threading.Thread(target=die)
                death.start()
            events = flights.entries(mine.slice(done, BATCH))
            log.extend(events, producer=(f"writer-{writer}", done // BATCH + 1))
            notes[writer] = done + len(events)
        if death is not None:
            death.join()  # it finished before it was killed, which happens now


def die() -> None:
    """Kill this process with SIGKILL: at once, whatever its other thread is doing."""
    os.kill(os.getpid(), signal.SIGKILL)


def start(where: Path, writer: int, dies_at: int | None = None) -> subprocess.Popen[bytes]:
    """Start a writer."""
    words = [sys.executable, "-m", "examples.writers", str(where), str(writer)]
    if dies_at is not None:
        words += ["--dies-at", str(dies_at)]
    # Ctrl-C reaches a whole process group, but only the demo needs it and ends its writers.
    return subprocess.Popen(words, cwd=Path(__file__).parents[1], process_group=0)


def main() -> None:
    """Run as a writer."""
    parser = argparse.ArgumentParser(description="A writer of the demo.")
    parser.add_argument("where", type=Path)
    parser.add_argument("writer", type=int)
    parser.add_argument("--dies-at", type=int)
    given = parser.parse_args()
    write(given.where, given.writer, given.dies_at)


if __name__ == "__main__":
    main()
