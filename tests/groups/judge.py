"""What must hold of a group, and of the notes of its workers, when everything is settled."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import penstock
from penstock import Log
from penstock.groups import decisions as d
from penstock.groups.ledger import Ledger


def drain(log: Log, name: str = "storm") -> None:
    """Settle whatever is left, and wait for what is delayed."""
    with log.group(name) as group:
        with group.worker(timeout=0.5) as worker:
            for job in worker:
                job.ack()
        assert group.pending() == []


def outcomes(log: Log, name: str, seqs: range) -> Counter[int]:
    """How often each event had a final outcome: acked, or in the dead letters."""
    with log.group(name) as group:
        dead = Counter(int(letter.header("dead.seq") or 0) for letter in group.dead)
        acked = group.stats().acked
        assert acked + sum(dead.values()) == len(seqs), (acked, len(dead), len(seqs))
        assert max(dead.values(), default=0) <= 1, dead.most_common(3)
    return dead


def replay(path: Path) -> Counter[str]:
    """Derive the state from all decisions again: nothing may be void by mistake."""
    kinds: Counter[str] = Counter()
    with penstock.open(path, mode="r") as sidecar:
        book = Ledger(sidecar)
        book.load()
        for event in sidecar.read(on_gap="skip"):
            kinds[type(d.decode(event.value, str(path), event.seq)).__name__] += 1
        assert not book.state.open, book.state.open
    return kinds


def lines_of(path: Path) -> list[tuple[int, str, int]]:
    """All notes in the order of time: when, what, which event."""
    found = []
    for file in path.glob("notes-*"):
        for line in file.read_text().splitlines():
            words = line.split()
            found.append((int(words[-1]), words[0], int(words[2])))
    return sorted(found)


def check_notes(path: Path, dead: Counter[int]) -> None:
    """No event was acked twice, or acked and dead; nothing was handed out after its ack."""
    acked: dict[int, int] = {}
    for when, kind, seq in lines_of(path):
        if kind == "acked":
            assert seq not in acked, f"{seq} was acked twice"
            assert seq not in dead, f"{seq} was acked and is dead"
            acked[seq] = when
        elif kind == "got":
            assert seq not in acked, f"{seq} was handed out after its ack"


def check_order(path: Path, keys: dict[int, bytes]) -> None:
    """Of a key, an event was handed out only after the ones before it."""
    highest: dict[bytes, int] = {}
    for _, kind, seq in lines_of(path):
        if kind == "got":
            key = keys[seq]
            assert seq >= highest.get(key, 0), f"{seq} came after {highest[key]} of {key!r}"
            highest[key] = seq
