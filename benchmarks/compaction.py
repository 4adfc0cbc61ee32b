"""Compaction beside a scan of the same log, its memory, and appends beside it; and `latest`."""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import penstock
from benchmarks.harness import (
    Bench,
    Pairs,
    Row,
    answer,
    child,
    claim_memory,
    million_per_s,
    no_gc,
    own_bytes,
    some_values,
    take_turns,
)
from penstock import Entry
from penstock.segments import segment

EVENTS, KEYS = 10_000_000, 1_000_000
MANY_KEYS = 50_000_000
MEMORY_BAR = 300 << 20
FILTER_SEGMENTS = 100
BATCH = 10_000
ALL_TIMES = (0, (1 << 64) - 1)


def fill(path: Path, events: int, keys: int, *, segment_size: str = "64MiB") -> None:
    """Sealed segments of 100-byte values with random keys."""
    rng, values = random.Random(7), some_values(1000)
    with penstock.open(path, segment_size=segment_size) as log:
        for _ in range(events // BATCH):
            log.extend(
                [
                    Entry(values[i % 1000], key=b"key %08d" % rng.randrange(keys))
                    for i in range(BATCH)
                ]
            )
        log.steward.roll()
        log.steward.compact(dry_run=True)  # seals all


def compaction(bench: Bench) -> Iterator[Row]:
    """Compaction beside a scan of the same log; appends beside one; its memory with many keys."""
    with bench.scratch() as path:
        events = bench.pick(EVENTS, EVENTS // 10)
        bench.say(f"compaction: making a log of {events} events")
        fill(path / "log", events, events * KEYS // EVENTS)
        yield _beside_scan(bench, path, events)
    with bench.scratch() as path:
        yield _beside_appends(bench, path)
    with bench.scratch() as path:
        yield _memory(bench, path)


def _beside_scan(bench: Bench, path: Path, events: int) -> Row:
    def ours() -> float:
        with penstock.open(path / "copy") as log:
            began = perf_counter()
            done = log.steward.compact()
            spent = perf_counter() - began
        if done.events != events or done.dead < events // 2:
            raise RuntimeError(str(done))
        return events / spent

    def theirs() -> float:
        with penstock.open(path / "copy", mode="r") as log:
            began = perf_counter()
            rows = sum(batch.num_rows for batch in log.scan().to_batches())
            spent = perf_counter() - began
        if rows != events:
            raise RuntimeError(f"{rows} rows were read")
        return events / spent

    pairs = Pairs([], [])
    with no_gc():
        for i in range(3):
            shutil.rmtree(path / "copy", ignore_errors=True)
            shutil.copytree(path / "log", path / "copy")
            claim_memory(bench)
            theirs()  # both find the files in the page cache
            pairs.theirs.append(theirs())
            pairs.ours.append(ours())
            bench.say(f"compaction: round {i + 1} of 3, ratio {pairs.ratios[-1]:.2f}")
    return pairs.row(
        f"compaction of {events // 10**6} M events with a tenth as many keys",
        "a scan of all columns of the same log",
        million_per_s,
        bar=0.3,
        pages="warm: the files are in the page cache",
    )


def _beside_appends(bench: Bench, path: Path) -> Row:
    values = some_values(1000)
    fill(path / "log", bench.pick(2_000_000, 500_000), 100_000)
    with child("compaction", path / "log") as other, penstock.open(path / "log") as log:
        other.answer()

        def append() -> float:
            began = perf_counter()
            for _ in range(bench.pick(200, 60)):
                for value in values:
                    log.append(value)
            return bench.pick(200, 60) * len(values) / (perf_counter() - began)

        def ours() -> float:
            other.ask("compact")
            try:
                return append()
            finally:
                other.ask("pause")
                other.answer()

        return take_turns(bench, "appends beside compaction", ours, append).row(
            "appends while another process compacts the log over and over",
            "the same without that",
            million_per_s,
            bar=0.8,
        )


def _memory(bench: Bench, path: Path) -> Row:
    keys = bench.pick(MANY_KEYS, MANY_KEYS // 25)
    bench.say(f"compaction: making a log of {keys} keys")
    with penstock.open(path / "log") as log:
        for start in range(0, keys, BATCH):
            log.extend([Entry(b"", key=b"%d" % i) for i in range(start, start + BATCH)])
        log.extend([Entry(b"", key=b"%d" % i) for i in range(0, keys, 1000)])
        log.steward.roll()
        log.steward.compact(dry_run=True, memory="1MiB")
    memory = bench.pick(128 << 20, 8 << 20)
    with child("compaction", path / "log", memory) as other:
        other.answer()
        other.ask("measure")
        peak, spilled, dead = other.answer()
    if not spilled or dead != keys // 1000:
        raise RuntimeError(f"{spilled} events were spilled, {dead} were dead")
    return Row(
        f"memory of compacting {keys // 10**6} M keys, memory={memory >> 20} MiB",
        "300 MB",
        peak / MEMORY_BAR,
        unit="x",
        better="lower",
        bar=1.0,
        ours=f"{peak >> 20} MiB",
        note=f"of {keys} keys, {spilled} were spilled",
    )


def latest(bench: Bench) -> Iterator[Row]:
    """`latest` of a key in a log of many segments, beside reading it all; and wrong answers."""
    segments = FILTER_SEGMENTS
    with bench.scratch() as path:
        with penstock.open(path / "log", segment_size="4MiB") as log:
            made = 0
            while log.stats().segments <= segments:
                log.extend([Entry(b"v" * 100, key=b"key %d" % i) for i in range(made, made + 1000)])
                made += 1000
            log.steward.roll()
            log.steward.compact(dry_run=True)
        shutil.copytree(path / "log", path / "unfiltered")
        checks = wrong = 0
        for file in sorted((path / "unfiltered").glob("*.seg")):
            m, header = segment.map_segment(str(file))
            if not m.filter_pages:
                continue
            answers = [m.rules_out(None, *ALL_TIMES, b"other %d" % i) for i in range(1000)]
            checks, wrong = checks + 1000, wrong + answers.count(False)
            with file.open("r+b") as raw:  # a damaged filter rules nothing out
                raw.seek(header.segment_bytes)
                raw.write(bytes(4096 * m.filter_pages))
        rng = random.Random(3)
        with penstock.open(path / "log") as log, penstock.open(path / "unfiltered") as plain:
            wanted = [b"key %d" % rng.randrange(made) for _ in range(20)]

            def ours() -> float:
                began = perf_counter()
                for key in wanted:
                    if log.latest(key) is None:
                        raise RuntimeError(f"{key!r} is not there")
                return len(wanted) / (perf_counter() - began)

            def theirs() -> float:
                began = perf_counter()
                if len(list(plain.read(key=wanted[0]))) != 1:
                    raise RuntimeError("the key is not there once")
                return 1 / (perf_counter() - began)

            yield take_turns(bench, "latest", ours, theirs).row(
                f"latest(key) in {segments} segments",
                "read(key=) of the same log without key filters",
                lambda rate: f"{1e3 / rate:.2f} ms",
                bar=20,
            )
        yield Row(
            "keys that a filter wrongly passes",
            "1 %",
            wrong / checks * 100,
            unit="%",
            better="lower",
            bar=1.0,
            ours=f"{wrong} of {checks}",
        )


def serve(path: str, memory: str | None = None) -> None:
    """In a child: compact when asked."""
    with penstock.open(path) as log:
        answer("ready")
        for line in sys.stdin:
            if line.strip() == "measure":
                done = log.steward.compact(memory=int(memory or 0))
                answer([own_bytes("status", "VmHWM"), done.spilled, done.dead])
            elif line.strip() == "compact":
                while not _asked():
                    log.steward.compact(dry_run=True)
                    log.steward.compact()
            else:
                answer("paused")


def _asked() -> bool:
    import select

    return bool(select.select([sys.stdin], [], [], 0)[0])


if __name__ == "__main__":
    serve(*sys.argv[1:])
