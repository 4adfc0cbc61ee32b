"""A ring in a test's directory, and the proof that it holds what its writers were promised.

Of all that was acknowledged, what the ring still has room for is there once, under its seq; seqs go
on by ones from the first one there; none was invented; the newest batch is whole; every way of
reading agrees.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import penstock
from penstock import Log, NotFound
from penstock import layout as L
from penstock.stats import Ring
from tests.support.acks import Account, Acks, read_account
from tests.support.scene import Scene
from tests.support.values import Mark, fingerprint, read_mark

RING = 256 << 10

Prints = dict[int, int]  # seq -> fingerprint


def check_events(log: Log, account: Account) -> Prints:
    """Check a ring that nobody writes to against what its writers said."""
    prints: Prints = {}
    found: dict[tuple[str, int], int] = {}
    latest: dict[str, int] = {}
    batch: Mark | None = None
    first = log.first_seq
    seq = first - 1
    for event in log.read():
        assert event.seq == seq + 1, f"seq {event.seq} follows seq {seq}"
        seq = event.seq
        mark = read_mark(event)
        operation = (mark.writer, mark.counter)
        if mark.place == 0:
            assert batch is None, f"seq {seq}: the batch before it is not whole: {batch}"
            assert operation not in found, f"seq {seq}: {mark} is there twice"
            assert account.tried.get(operation) == mark.batch, f"nobody appended {mark}"
            before = latest.get(mark.writer, 0)
            assert mark.counter > before, f"{mark} comes behind operation {before}"
            latest[mark.writer] = mark.counter
            found[operation] = seq
        elif seq == first:  # the batch that the tail stands in
            found[operation] = seq - mark.place
        else:
            assert batch is not None, f"seq {seq}: the first events of its batch are missing"
            assert batch[:2] == mark[:2] and batch.place + 1 == mark.place, f"{mark} behind {batch}"
        batch = mark if mark.place + 1 < mark.batch else None
        prints[seq] = fingerprint(event)
    assert batch is None, f"the ring ends inside a batch: {batch}"
    for operation, at in account.acked.items():
        last = at + account.tried[operation] - 1
        there = found.get(operation)
        assert there == at if last >= first else there is None, (
            f"{operation} was acknowledged with seq {at}, but is at {there}; the first is {first}"
        )
        assert last <= seq, f"{operation} was acknowledged with seq {at}; the last one is {seq}"
    for operation in account.refused:
        assert operation not in found, f"{operation} raised, and is in the ring all the same"
    return prints


def check_stats(log: Log) -> Ring:
    """What stats() says is of one moment, even if a process writes, or died during a store."""
    found = log.stats()
    ring = found.ring
    assert ring is not None
    assert ring.tail <= ring.head <= ring.reserved
    assert ring.head - ring.tail == ring.used_bytes <= ring.ring_bytes
    count = found.last_seq + 1 - found.first_seq
    assert 0 <= count <= ring.used_bytes // L.FRAME_HEADER_BYTES, found
    assert found.durable_seq <= found.last_seq
    return ring


def check_access(log: Log, prints: Prints) -> None:
    """Other ways of reading give the same events."""
    seqs = list(prints)
    assert check_stats(log).lost_bytes == 0
    assert len(log) == len(seqs)
    if not seqs:  # whoever dropped them all died
        assert list(reversed(log)) == [] == list(log.follow("start", timeout=0))
        return
    assert (log.first_seq, log.last_seq) == (seqs[0], seqs[-1])
    assert {e.seq: fingerprint(e) for e in reversed(log)} == prints
    assert [e.seq for e in reversed(log)] == seqs[::-1]
    for seq in seqs[:: max(1, len(seqs) // 50)]:
        assert fingerprint(log[seq]) == prints[seq]
        assert next(log.read(seq)).seq == seq
    assert fingerprint(log[seqs[-1]]) == prints[seqs[-1]]
    try:
        gone = log[seqs[0] - 1]
    except NotFound:
        pass
    else:
        raise AssertionError(f"{gone} is before the first")
    assert [e.seq for e in log.follow("start", timeout=0)][: len(seqs)] == seqs
    assert log.topics() == {""}


def check_ring(path: Path, acks: list[Path]) -> Prints:
    """Open the ring for reading and check all of it."""
    with penstock.open(path, mode="r") as log:
        prints = check_events(log, read_account(acks))
        check_access(log, prints)
        report = penstock.verify(path)
        assert report.ok, report
        if prints:  # what nobody acknowledged may be there as well
            assert report.first_seq == min(prints), report
            assert report.last_seq is not None and report.last_seq >= max(prints), report
    return prints


def check_goes_on(path: Path, acks: list[Path]) -> None:
    """The ring opens for writing, holds what it must, and takes more, for a lap."""
    mine = path.parent / f"after-{len(acks)}.acks"
    with penstock.open(path) as log:
        check_events(log, read_account(acks))
        writer = Acks(str(mine), f"after-{len(acks)}")
        acks.append(mine)
        room = log.stats().ring.ring_bytes  # type: ignore[union-attr]
        for sizes in ([10], [0, 300, 5000], [40_000], [1]):
            writer.append(log, sizes)
        check_access(log, check_events(log, read_account(acks)))
        for sizes in ([room // 3], [room // 4, room // 5], [room // 3], [7]):
            writer.append(log, sizes)
        writer.close()
        check_access(log, check_events(log, read_account(acks)))
    check_ring(path, acks)


class Sighting(NamedTuple):
    """An event that a follower wrote down, and how many it passed over just before it."""

    seq: int
    skipped: int
    writer: str
    counter: int
    place: int
    print: int


def read_sightings(file: Path, start: int = 1) -> list[Sighting]:
    """What the followers that shared a file wrote down, each going on where the last one ended.

    Every seq from ``start`` on was either handed out, once, or said to be gone.
    """
    sightings = []
    expected = start
    for line in file.read_text().splitlines() if file.exists() else []:
        first, *words = line.split()
        if first == "gap":
            position, still_there = map(int, words)
            assert position == expected < still_there, f"{line!r}, where {expected} was expected"
            expected = still_there
            continue
        skipped, writer, counter, place, number = words
        seen = Sighting(int(first), int(skipped), writer, int(counter), int(place), int(number))
        assert seen.seq == expected + seen.skipped, f"{seen}, where {expected} was expected"
        expected = seen.seq + 1
        sightings.append(seen)
    return sightings


def check_sightings(followed: list[list[Sighting]], acks: list[Path], prints: Prints) -> None:
    """What followers saw is what was appended, under one seq for all of them and the ring."""
    account = read_account(acks)
    promised = {
        seq + place: (*operation, place)
        for operation, seq in account.acked.items()
        for place in range(account.tried[operation])
    }
    known: dict[int, Sighting] = {}
    firsts: dict[tuple[str, int], int] = {}
    for seen in (s for sightings in followed for s in sightings):
        operation = (seen.writer, seen.counter)
        assert seen.place < account.tried.get(operation, 0), f"nobody appended {seen}"
        assert operation not in account.refused, f"{seen} raised, and was seen all the same"
        wanted = promised.get(seen.seq, seen[2:5])
        assert wanted == seen[2:5], f"{seen}, where {wanted} was acknowledged"
        assert seen[2:] == known.setdefault(seen.seq, seen)[2:], f"{seen} and {known[seen.seq]}"
        first = firsts.setdefault(operation, seen.seq - seen.place)
        assert first == seen.seq - seen.place, f"{seen} was seen at {first + seen.place} as well"
        assert first == account.acked.get(operation, first), f"{seen} was acknowledged elsewhere"
        assert seen.print == prints.get(seen.seq, seen.print), f"{seen} is another in the ring"


class RingScene(Scene):
    """A ring, its workers and their acknowledgements."""

    def seed(self, ring: int = RING, more: list[list[int]] | None = None) -> None:
        """Make the ring, with more events than it keeps."""
        acks = self.acks_of("seed")
        with penstock.create(self.path, ring=ring) as log:
            mine = Acks(str(acks), "seed")
            sizes = [[100], [0, 10], [ring // 30], [200, 4000]]
            for n in range(45):
                mine.append(log, sizes[n % len(sizes)])
            for each in [[ring // 5], [ring // 4, 10], [ring // 4], [9], *(more or [])]:
                mine.append(log, each)
            mine.close()
            assert log.first_seq > 1

    def check(self) -> list[int]:
        """The ring is what its writers were promised; returns the events' fingerprints."""
        return list(check_ring(self.path, self.acks).values())

    def check_goes_on(self) -> None:
        """... and it opens for writing and takes more."""
        check_goes_on(self.path, self.acks)
