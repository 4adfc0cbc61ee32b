"""Compaction as a plain list would do it; and ways to look at a log from every side."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import penstock
from penstock import NotFound

HOUR = 3600


@dataclass
class Plain:
    """One event of the model."""

    seq: int
    key: bytes | None
    value: bytes | None  # None: it deletes its key
    expired: bool = False
    gone: bool = False

    @property
    def read(self) -> bool:
        """Whether readers return it."""
        return not self.gone and not self.expired


def active_base(path: Path) -> int:
    """The first seq of the segment that takes appends."""
    return max(int(p.name[:20]) for p in path.glob("*.seg"))


def compact(
    model: list[Plain],
    sealed_end: int,
    versions: int = 1,
    grace_over: bool = False,
    drop_keyless: bool = False,
) -> list[int]:
    """Compact the events below ``sealed_end``; returns the seqs that it removes."""
    seen: dict[bytes, int] = {}
    closed: set[bytes] = set()
    removed = []
    for event in reversed([e for e in model if not e.gone]):
        dead = event.expired
        if not dead and event.key is None:
            dead = drop_keyless
        elif not dead:
            assert event.key is not None
            if event.key in closed or seen.get(event.key, 0) >= versions:
                dead = True
            elif event.value is None and grace_over:
                dead = True
                closed.add(event.key)
            else:
                seen[event.key] = seen.get(event.key, 0) + 1
        if dead and event.seq < sealed_end:
            event.gone = True
            removed.append(event.seq)
    return removed


def check(log: penstock.Log, model: list[Plain]) -> None:
    """The log holds the model, however it is read."""
    wanted = [(e.seq, e.key, e.value) for e in model if e.read]
    seqs = [seq for seq, _, _ in wanted]
    assert [(e.seq, e.key, e.value) for e in log.read()] == wanted
    assert [e.seq for e in log.read(reverse=True)] == seqs[::-1]
    assert [e.seq for e in log.follow("start", timeout=0)] == seqs
    table = log.scan(columns=["seq", "key", "value"]).to_arrow()
    assert table["seq"].to_pylist() == seqs
    assert table["value"].to_pylist() == [value for _, _, value in wanted]
    assert len(log) == sum(not e.gone for e in model)
    assert log.last_seq == (model[-1].seq if model else 0)
    there = {seq: (key, value) for seq, key, value in wanted}
    for event in model:
        if event.gone:
            assert event.seq not in there
            try:
                found = log[event.seq]
            except NotFound:
                continue
            raise AssertionError(f"seq {event.seq} came back: {found}")
        if event.read:
            assert (log[event.seq].key, log[event.seq].value) == there[event.seq]
    latest: dict[bytes, int] = {key: seq for seq, key, _ in wanted if key is not None}
    deleted = {key for seq, key, value in wanted if value is None and latest[key or b""] == seq}
    expected = {key: seq for key, seq in latest.items() if key not in deleted}
    assert {key: e.seq for key, e in log.latest().items()} == expected
    for key in latest:
        one = log.latest(key)
        assert (None if one is None else one.seq) == expected.get(key)
        assert [e.seq for e in log.read(key=key)] == [s for s, k, _ in wanted if k == key]
    report = log.verify()
    assert report.ok, str(report)
    assert report.events == len(log)
