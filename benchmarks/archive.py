"""Archiving beside zstd itself, and reading an archive beside reading the files of a log."""

from __future__ import annotations

import json
import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import penstock
from benchmarks.harness import Bench, Pairs, Row, take_turns
from penstock.archive import zstd
from penstock.archive.depots import LocalDepot
from penstock.archive.naming import Stored
from penstock.archive.reading import opened

SEGMENT = 16 << 20
LEVEL = 3


def archive(bench: Bench) -> Iterator[Row]:
    """Archive a log of JSON events, scan it, look events up in it; append beside archiving."""
    segments = bench.pick(6, 3)
    with bench.scratch() as path:
        bench.say(f"archive: making {segments} segments of {SEGMENT >> 20} MiB")
        _make(path / "log", segments)
        plain = sorted((path / "log").glob("*.seg"))[:-1]
        yield _archiving(bench, path, plain)
        with penstock.open(path / "log") as log:
            log.backup(path / "raw")
            log.steward.archive()
        yield _size(path, plain_of(path / "raw"))
        yield from _reading(bench, path)
        yield _beside(bench, path)


def plain_of(path: Path) -> list[Path]:
    """The sealed segments of a log."""
    return sorted(path.glob("*.seg"))[:-1]


def _events(count: int, seed: int) -> list[bytes]:
    rng = random.Random(seed)
    return [
        json.dumps(
            {
                "user": f"user-{rng.randrange(9999)}",
                "action": rng.choice(["click", "view", "buy"]),
                "price": round(rng.random() * 100, 2),
                "url": f"/item/{rng.randrange(10**6)}",
                "n": i,
            }
        ).encode()
        for i in range(count)
    ]


def _make(path: Path, segments: int) -> None:
    with penstock.open(path, segment_size=SEGMENT) as log:
        turn = 0
        while log.stats().segments <= segments:
            turn += 1
            log.extend(_events(10_000, turn), topic="orders")


def _archiving(bench: Bench, path: Path, plain: list[Path]) -> Row:
    nbytes = sum(p.stat().st_size for p in plain)
    library = zstd.library()

    def ours() -> float:
        copy = path / "copy"
        shutil.copytree(path / "log", copy)
        with penstock.open(copy) as log:
            began = perf_counter()
            log.steward.archive(path / "archive")
            spent = perf_counter() - began
        shutil.rmtree(copy)
        shutil.rmtree(path / "archive")
        return nbytes / spent

    def theirs() -> float:
        began = perf_counter()
        for one in plain:
            target = path / "whole.zst"
            target.write_bytes(library.compress(one.read_bytes(), LEVEL))
        return nbytes / (perf_counter() - began)

    return take_turns(bench, "archive", ours, theirs).row(
        "archive segments of JSON events: check, compress, sync, read back, compare",
        f"zstd -{LEVEL} of the same bytes, one thread, no sync",
        lambda rate: f"{rate / 1e6:.0f} MB/s",
        bar=0.7,
        aim=1.0,
        pages="warm",
    )


def _size(path: Path, plain: list[Path]) -> Row:
    library = zstd.library()
    ours = sum(entry.nbytes for entry in LocalDepot(str(path / "log" / "archive")).entries())
    theirs = sum(len(library.compress(p.read_bytes(), LEVEL)) for p in plain)
    return Pairs([float(ours)], [float(theirs)]).row(
        "size of archived segments of JSON events",
        f"zstd -{LEVEL} of each whole segment",
        lambda nbytes: f"{nbytes / 1e6:.1f} MB",
        better="lower",
        bar=1.05,
        aim=1.0,
    )


def _reading(bench: Bench, path: Path) -> Iterator[Row]:
    with penstock.open(path / "log", "r") as log, penstock.open(path / "raw", "r") as raw:
        rows = len(raw)

        def scan(one: penstock.Log) -> float:
            one._recent.clear()
            began = perf_counter()
            found = sum(batch.num_rows for batch in one.scan().to_batches())
            assert found == rows
            return float(found) / (perf_counter() - began)

        yield take_turns(bench, "scan", lambda: scan(log), lambda: scan(raw)).row(
            "scan an archive in a directory, as batches",
            "scan the same events in files",
            lambda rate: f"{rate / 1e6:.2f} M events/s",
            bar=0.35,
            pages="warm",
        )

        def table(one: penstock.Log) -> float:
            one._recent.clear()
            began = perf_counter()
            assert one.scan().to_arrow().num_rows == rows
            return rows / (perf_counter() - began)

        yield take_turns(bench, "table", lambda: table(log), lambda: table(raw)).row(
            "read an archive in a directory, as one table, two threads",
            "read the same events in files",
            lambda rate: f"{rate / 1e6:.2f} M events/s",
            bar=0.35,
            pages="warm",
        )
        yield _look_up(bench, path, log)


def _look_up(bench: Bench, path: Path, log: penstock.Log) -> Row:
    """Events far from each other, each in a block that is not loaded; maps are known."""
    depot = LocalDepot(str(path / "log" / "archive"))
    entry: Stored = depot.entries()[0]
    archived = opened(depot, entry)
    step = 20
    per_block = max(1, (archived.next_seq - archived.base_seq) // (archived.blocks - 4))
    seqs = [archived.base_seq + (i * step + 7) * per_block % 60_000 for i in range(8)]
    blocks = [3 + i * 11 % (archived.blocks - 6) for i in range(8)]

    def ours() -> float:
        log._recent.clear()
        log[archived.base_seq]  # its header, footer and index
        spent = 0.0
        for seq in seqs:
            began = perf_counter()
            log[seq]
            spent += perf_counter() - began
        return spent / len(seqs)

    def theirs() -> float:
        stored = [depot.read(entry.name, *archived.place(b, b + 1)) for b in blocks]
        began = perf_counter()
        for block, data in zip(blocks, stored, strict=True):
            archived.decompress(data, block)
        return (perf_counter() - began) / len(blocks)

    return take_turns(bench, "look-up", ours, theirs).row(
        "log[seq] in an archive in a directory, in a block that is not loaded",
        "decompress one block",
        lambda seconds: f"{seconds * 1e6:.0f} us",
        better="lower",
        bar=3,
        pages="warm",
    )


def _beside(bench: Bench, path: Path) -> Row:
    """Appends while another thread archives again and again."""
    seconds = bench.pick(2, 1)
    values = _events(100, 2)

    def rate(log: penstock.Log) -> float:
        began, done = perf_counter(), 0
        while perf_counter() - began < seconds:
            for value in values:
                log.append(value)
            done += len(values)
        return done / (perf_counter() - began)

    def ours() -> float:
        copy = path / "busy"
        shutil.copytree(path / "raw", copy)
        over = threading.Event()

        def work() -> None:
            turn = 0
            while not over.is_set():
                turn += 1
                with penstock.open(copy) as other:
                    other.steward.archive(path / f"again-{turn}", keep_local=1000)
                    other._change_settings(lambda now: now.changed(archive=""))

        thread = threading.Thread(target=work)
        with penstock.open(path / "busy-log", segment_size=SEGMENT) as log:
            thread.start()
            found = rate(log)
            over.set()
            thread.join()
        shutil.rmtree(copy)
        shutil.rmtree(path / "busy-log")
        for again in path.glob("again-*"):
            shutil.rmtree(again)
        return found

    def theirs() -> float:
        with penstock.open(path / "idle-log", segment_size=SEGMENT) as log:
            found = rate(log)
        shutil.rmtree(path / "idle-log")
        return found

    return take_turns(bench, "appends", ours, theirs).row(
        "appends while another thread of the process archives",
        "appends alone",
        lambda rate: f"{rate / 1e3:.0f} k events/s",
        bar=0.85,
        pages="warm",
    )
