"""A ring beside a segmented log: the same calls, the same values, in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter

import penstock
from benchmarks.harness import Bench, Row, million_per_s, some_values, take_turns

SIZE = "64MiB"
BATCH = 10_000


def ring(bench: Bench) -> Iterator[Row]:
    """Appends, reads and scans of a ring beside those of a segmented log."""
    count = bench.pick(1_000_000, 200_000)
    kept = bench.pick(400_000, 100_000)  # what a ring of that size can hold for sure
    values = some_values(1000) * (count // 1000)

    def fresh(work: Callable[[penstock.Log], float], size: str | None) -> Callable[[], float]:
        def run() -> float:
            with bench.scratch() as path, penstock.create(path / "log", ring=size) as log:
                log.append(values[0])
                return work(log)

        return run

    def append_all(log: penstock.Log) -> float:
        append_one = log.append
        began = perf_counter()
        for value in values:
            append_one(value)
        return len(values) / (perf_counter() - began)

    def extend_all(log: penstock.Log) -> float:
        began = perf_counter()
        for start in range(0, len(values), BATCH):
            log.extend(values[start : start + BATCH])
        return len(values) / (perf_counter() - began)

    def rows(name: str, work: Callable[[penstock.Log], float], pages: str) -> Row:
        return take_turns(bench, f"ring {name}", fresh(work, SIZE), fresh(work, None)).row(
            f"ring of 64 MiB, {name}",
            f"a segmented log, {name}",
            million_per_s,
            bar=0.8,
            aim=1,
            pages=pages,
        )

    cold = "cold: a fresh ring and a fresh log each round; the ring goes round twice"
    yield rows("append", append_all, cold)
    yield rows("extend", extend_all, cold)

    with bench.scratch() as path:
        with (
            penstock.create(path / "recent.ring", ring=SIZE) as ours,
            penstock.create(path / "log") as theirs,
        ):
            for log in (ours, theirs):
                extend_all(log)

            def iterate(log: penstock.Log) -> Callable[[], float]:
                def run() -> float:
                    began = perf_counter()
                    for event in log.read(count + 1 - kept):
                        event.value  # noqa: B018
                    return kept / (perf_counter() - began)

                return run

            def scan(log: penstock.Log) -> Callable[[], float]:
                def run() -> float:
                    began = perf_counter()
                    for batch in log.scan(count + 1 - kept).to_batches():
                        assert batch.num_rows
                    return kept / (perf_counter() - began)

                return run

            for name, work in (("read", iterate), ("scan", scan)):
                yield take_turns(bench, f"ring {name}", work(ours), work(theirs)).row(
                    f"ring of 64 MiB, {name}",
                    f"a segmented log, {name}",
                    million_per_s,
                    bar=0.8,
                    aim=1,
                    pages="warm: both were written and read before",
                )
        size = (path / "recent.ring").stat().st_size
    assert size == 64 << 20, f"a ring of 64 MiB has {size} bytes"
