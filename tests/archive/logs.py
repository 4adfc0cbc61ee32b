"""Logs of every kind of event, to archive; and what they read to."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import penstock
from penstock import Entry


def fill(log: penstock.Log[Any], segments: int = 4, seed: int = 7, events: int = 60) -> None:
    """Append that many sealed segments, with events of every kind."""
    rng = random.Random(seed)
    for number in range(segments):
        for i in range(events):
            log.append(
                rng.randbytes(rng.randrange(200)) + b"text " * 30,
                key=b"key %d" % rng.randrange(9) if i % 3 else None,
                topic=f"t{i % 4}" if i % 5 else "",
                headers={"h": b"%d" % i} if i % 7 == 0 else {},
                tags=["a"] if i % 2 else [],
            )
        log.extend([Entry(b"batch %d" % i, time=10**18 + i) for i in range(20)])
        log.append(b"by a producer", producer=(f"p{number % 2}", number + 1))
        if number == 1:
            log.append(os.urandom(200_000), topic="long")
            log.configure(ttl=10**9)
        log.append(None, key=b"key 1")
        log.steward.roll()
    log.append(b"active")


def made(path: Path, segments: int = 4, **settings: Any) -> list[Any]:
    """A closed log with that many sealed segments; what it reads to."""
    settings = {"segment_size": "512KiB", **settings}
    with penstock.open(path, **settings) as log:
        fill(log, segments)
        return contents(log)


def contents(log: penstock.Log[Any]) -> list[Any]:
    """Every field of every event."""
    return [
        (e.seq, e.append_ns, e.time_ns, e.topic, e.key, e.value, tuple(e.headers), e.batch_left)
        for e in log
    ]


def local(path: Path) -> list[int]:
    """The base seqs of the segments in the log's directory."""
    return sorted(int(name[:20]) for name in os.listdir(path) if name.endswith(".seg"))
