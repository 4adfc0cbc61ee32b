"""Opens changed copies of a log in every way and reads them; run as a process of its own.

Usage: hostile.py DIRECTORY FILE OFFSET:BIT|tLENGTH ...

Each mutation is made on a copy of DIRECTORY and printed before it is tried, so that whoever reads
the output of a process that died knows the last one. A mutation is fine if every call either gives
the events that the untouched log has, or a part of them, or raises a PenstockError.
"""

from __future__ import annotations

import faulthandler
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import penstock

HANG_SECONDS = 60


def facts(event: Any) -> tuple[Any, ...]:
    return (event.seq, event.time_ns, event.topic, event.key, event.value, event.headers)


def use(log: penstock.Log, truth: dict[int, tuple[Any, ...]]) -> None:
    """Read in every way; whatever comes out must be true."""

    def reading(reader: Any) -> None:
        for event in reader:
            if truth.get(event.seq) != facts(event):
                raise AssertionError(f"seq {event.seq} is not what was appended: {facts(event)}")

    ways: list[Callable[[], Any]] = [
        lambda: reading(log),
        lambda: reading(reversed(log)),
        lambda: reading(log.read(since=500, until=3000)),
        lambda: reading(log.read(topic="t1", reverse=True)),
        lambda: reading(log.follow("start", timeout=0)),
        lambda: reading([log[1]]),
        lambda: reading([log[len(truth)]]),
        lambda: reading([log[len(truth) // 2]]),
        log.topics,
        lambda: log.settings,
        log.stats,
        lambda: (log.first_seq, log.last_seq, len(log)),
    ]
    for way in ways:
        try:
            way()
        except penstock.PenstockError as error:
            if isinstance(error, penstock.Internal):
                raise


def mutate(name: Path, change: str) -> None:
    if change.startswith("t"):
        os.truncate(name, int(change[1:]))
        return
    offset, bit = map(int, change.split(":"))
    with name.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1 << bit]))


def main() -> None:
    source, name, changes = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    with penstock.open(source, mode="r") as log:
        truth = {e.seq: facts(e) for e in log}
    with tempfile.TemporaryDirectory(dir=source.parent) as scratch:
        for change in changes:
            print(name, change, flush=True)
            faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
            for mode in ("r", "rw"):
                copy = Path(scratch, mode)
                shutil.copytree(source, copy)
                mutate(copy / name, change)
                try:
                    with penstock.open(copy, mode=mode) as log:
                        use(log, truth)
                        if mode == "rw":
                            more = log.append(b"more", time=1)
                            truth_and = {**truth, more: facts(log[more])}
                            use(log, truth_and)
                            log.steward.roll()
                            use(log, truth_and)
                except penstock.Internal:
                    raise
                except penstock.PenstockError:
                    pass
                shutil.rmtree(copy)
            faulthandler.cancel_dump_traceback_later()
    print("done", flush=True)


if __name__ == "__main__":
    main()
