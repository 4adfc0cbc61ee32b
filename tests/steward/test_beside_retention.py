"""Readers, followers, scans, consumers and backups beside a writer that deletes what is old."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Gap, Log
from tests.consumers.processes import start
from tests.support.fixtures import STORM

pytestmark = pytest.mark.process

EVENTS = 20_000 if STORM else 1500
KEEP = 4


def write(path: Path) -> None:
    """Append, and delete all but a few segments again and again; then say that it is done."""
    with penstock.open(path) as log:
        for n in range(EVENTS):
            log.append(b"%6000d" % n, key=b"%d" % (n % 50), topic="odd" if n % 2 else "even")
            if n % 16 == 15:
                log.steward.retain(timeout=None)
        log.append(b"stop", key=b"stop")


def check(log: Log, seq: int, value: bytes | None) -> None:
    assert value == (b"%6000d" % (seq - 1) if seq <= EVENTS else b"stop")


def follows_gaps(log: Log) -> None:
    """A follower that raises: what it returned and what it was told is missing are everything."""
    at = 1
    while at <= EVENTS + 1:
        try:
            for event in log.follow(at, timeout=60):
                assert event.seq == at
                check(log, event.seq, event.value)
                at += 1
                if at > EVENTS + 1:
                    break
        except Gap as gap:
            assert gap.first_seq > at
            at = gap.first_seq


def follows_skipping(log: Log) -> None:
    """A follower that skips: each event once, and every missing one counted."""
    reader = log.follow("start", timeout=60, on_gap="skip")
    seen, first, last = 0, 0, 0
    for event in reader:
        check(log, event.seq, event.value)
        first = first or event.seq
        assert event.seq > last
        last = event.seq
        seen += 1
        if last == EVENTS + 1:
            break
    assert seen + reader.skipped in (last, last - first + 1)


def scans(log: Log) -> None:
    """Scans: a run of seqs without a hole, each with its value."""
    while True:
        table = log.scan(columns=["seq", "value"], on_gap="skip").to_arrow()
        seqs = table["seq"].to_pylist()
        assert seqs == sorted(set(seqs))
        for seq, value in zip(seqs[::50], table["value"].to_pylist()[::50], strict=True):
            check(log, seq, value)
        if seqs and seqs[-1] == EVENTS + 1:
            return


def consumes(log: Log) -> None:
    """A consumer, by hand over its gaps: what it was handed and what it missed are everything."""
    with log.consumer("c", timeout=60, on_gap="skip") as consumer:
        last = 0
        for event in consumer:
            check(log, event.seq, event.value)
            assert event.seq > last
            last = event.seq
            consumer.commit()
            if last == EVENTS + 1:
                return


def looks_up(log: Log) -> None:
    """Reads by time, in reverse, by key, and of single events."""
    while log.last_seq <= EVENTS:
        first = log.first_seq
        seqs = [e.seq for e in log.read(reverse=True, limit=40)]
        assert seqs == list(range(seqs[0], seqs[0] - len(seqs), -1)) if seqs else True
        for event in log.read(since="-1h", on_gap="skip", limit=20):
            assert event.seq >= first
        for event in log.read(key=b"7", on_gap="skip"):
            assert event.seq % 50 == 8
        newest = log.latest(b"7")
        assert newest is None or newest.seq % 50 == 8
        try:
            event = log[first]
            check(log, event.seq, event.value)
        except penstock.NotFound:
            assert log.first_seq > first or log.last_seq < 100


def backs_up(log: Log) -> None:
    """Backups: each a whole log of a run of seqs."""
    number = 0
    while log.last_seq <= EVENTS:
        number += 1
        target = Path(f"{log.path}-copy-{number}")
        last = log.backup(target)
        with penstock.open(target) as copy:
            seqs = [e.seq for e in copy]
            assert seqs == list(range(copy.first_seq, last + 1))
            assert copy.verify().ok


JOBS: list[Callable[[Log], None]] = [
    follows_gaps,
    follows_skipping,
    scans,
    consumes,
    looks_up,
    backs_up,
]


@pytest.mark.parametrize("mode", ["r", "rw"])
def test_beside(path: Path, mode: Any) -> None:
    """Each surviving event comes once, with its bytes, and gaps are told exactly."""
    with penstock.open(path, segment_size="64KiB") as log:
        log.configure(keep_segments=KEEP)
    errors: list[BaseException] = []

    def work(job: Callable[[Log], None]) -> None:
        try:
            with penstock.open(path, mode="rw" if job is consumes else mode) as mine:
                job(mine)
        except BaseException as error:
            error.add_note(job.__name__)
            errors.append(error)

    threads = [threading.Thread(target=work, args=(job,)) for job in JOBS]
    writer = start(lambda: write(path))
    for thread in threads:
        thread.start()
    assert writer.wait() == 0
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    with penstock.open(path) as log:
        assert log.first_seq > EVENTS // 2
        assert [e.seq for e in log] == list(range(log.first_seq, EVENTS + 2))
        assert log.verify().ok
