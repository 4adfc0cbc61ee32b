"""Private memory while a large log is read, beside the size of that log.

As a program: the process that reads it and watches its memory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import penstock
from benchmarks.harness import VALUE_BYTES, Bench, Row, answer, child, own_bytes, some_values
from benchmarks.peers import fill_log

FRAME_BYTES = 144
LOOK_EVERY = 50_000


def memory(bench: Bench) -> Iterator[Row]:
    """Growth of anonymous memory over what the process has after its imports."""
    log_bytes = bench.pick(2 << 30, 256 << 20)
    count = log_bytes // FRAME_BYTES
    with bench.scratch() as path:
        bench.say(f"memory: making a log of {log_bytes >> 20} MiB")
        with penstock.open(path / "log") as log:
            fill_log(log, some_values(10_000), count)
            disk_bytes = log.stats().disk_bytes
        bench.say("memory: reading it")
        with child("memory", path / "log") as reader:
            grown, value_bytes = reader.answer()
    if value_bytes != count * VALUE_BYTES:
        raise RuntimeError(f"read {value_bytes} bytes of values; {count * VALUE_BYTES} were meant")
    yield Row(
        f"private memory, growth while reading {log_bytes / 2**30:.2g} GiB",
        "the process after its imports",
        grown / 1e6,
        unit="MB",
        better="lower",
        bar=100,
        aim=30,
        ours=f"{grown / 1e6:.1f} MB",
        theirs=f"log of {disk_bytes / 1e6:.0f} MB",
        pages="warm",
        note="peak of Anonymous in smaps_rollup; pages of the log itself are shared, not counted",
        detail={"log_bytes": disk_bytes, "growth_bytes": grown},
    )


def _anonymous_bytes() -> int:
    return own_bytes("smaps_rollup", "Anonymous")


def _reader(path: str) -> None:
    before = peak = _anonymous_bytes()
    value_bytes = 0
    with penstock.open(path, mode="r") as log:
        for event in log:
            value_bytes += len(event.value or b"")
            if event.seq % LOOK_EVERY == 0:
                peak = max(peak, _anonymous_bytes())
        peak = max(peak, _anonymous_bytes())
    answer([peak - before, value_bytes])


if __name__ == "__main__":
    _reader(sys.argv[1])
