"""Verifying a log, beside a bare checksum over as many bytes."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

import penstock
from benchmarks.harness import Bench, Row, gib_per_s, some_values, take_turns
from penstock import _core

LOG_BYTES = 512 << 20
FRAME_BYTES = 144
BUFFER_BYTES = 256 << 20


def verify(bench: Bench) -> Iterator[Row]:
    """Every frame, index entry and footer; and CRC32C over memory larger than any cache."""
    size = bench.pick(LOG_BYTES, LOG_BYTES // 4)
    values = some_values(1000) * 10
    with bench.scratch() as path:
        bench.say(f"verify: making a log of {size >> 20} MiB")
        with penstock.open(path / "log") as log:
            while log.last_seq * FRAME_BYTES < size:
                log.extend(values)
        memory = b"".join(some_values(1 << 10, BUFFER_BYTES >> 10))

        def ours() -> float:
            began = perf_counter()
            report = penstock.verify(path / "log")
            spent = perf_counter() - began
            if not report.ok:
                raise RuntimeError(str(report))
            return report.bytes / spent

        def theirs() -> float:
            began = perf_counter()
            _core.crc32c(memory)
            return len(memory) / (perf_counter() - began)

        yield take_turns(bench, "verify", ours, theirs).row(
            "verify, frames of 100-byte values",
            "CRC32C over 256 MiB of memory, in one call",
            gib_per_s,
            bar=0.5,
            pages="warm: the files are in the page cache",
        )
