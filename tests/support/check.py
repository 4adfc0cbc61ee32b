"""The proof that a log holds exactly what its writers were promised.

Every acknowledged event is there once, under the seq that was acknowledged; none was invented; of a
writer that died at most its last operation is there without an acknowledgement; each writer's
order holds; batches are whole; seqs go from 1 by ones; every way of reading agrees.
"""

from __future__ import annotations

from pathlib import Path

import penstock
from penstock import Log
from tests.support.acks import Account, read_account
from tests.support.values import Mark, fingerprint, read_mark


def check_events(log: Log, account: Account) -> list[int]:
    """Check the log against what its writers said; returns the fingerprints in order of seq."""
    prints: list[int] = []
    found: dict[tuple[str, int], int] = {}
    latest: dict[str, int] = {}
    batch: Mark | None = None
    for event in log.read():
        assert event.seq == len(prints) + 1, f"seq {event.seq} follows seq {len(prints)}"
        mark = read_mark(event)
        operation = (mark.writer, mark.counter)
        if mark.place == 0:
            assert batch is None, f"seq {event.seq}: the batch before it is not whole: {batch}"
            assert operation not in found, f"seq {event.seq}: {mark} is there twice"
            assert account.tried.get(operation) == mark.batch, f"nobody appended {mark}"
            before = latest.get(mark.writer, 0)
            assert mark.counter > before, f"{mark} comes behind operation {before}"
            latest[mark.writer] = mark.counter
            found[operation] = event.seq
        else:
            assert batch is not None, f"seq {event.seq}: the first events of its batch are missing"
            assert batch[:2] == mark[:2] and batch.place + 1 == mark.place, f"{mark} behind {batch}"
        batch = mark if mark.place + 1 < mark.batch else None
        prints.append(fingerprint(event))
    assert batch is None, f"the log ends inside a batch: {batch}"
    for operation, seq in account.acked.items():
        assert found.get(operation) == seq, (
            f"{operation} was acknowledged with seq {seq}, but is at {found.get(operation)}"
        )
    for operation in account.refused:
        assert operation not in found, f"{operation} raised, and is in the log all the same"
    for writer, counter in account.unknown:
        later = account.tried.keys() & {(writer, counter + 1)}
        assert not later, (
            f"{writer} went on behind operation {counter}, which it never acknowledged"
        )
    return prints


def check_access(log: Log, prints: list[int]) -> None:
    """Other ways of reading give the same events."""
    assert log.last_seq == len(prints)
    assert len(log) == len(prints)
    backwards = [fingerprint(e) for e in reversed(log)]
    assert backwards[::-1] == prints
    for seq in range(1, len(prints) + 1, max(1, len(prints) // 50)):
        assert fingerprint(log[seq]) == prints[seq - 1]
        assert next(log.read(seq)).seq == seq
    if prints:
        assert fingerprint(log[len(prints)]) == prints[-1]
    followed = [e.seq for e in log.follow("start", timeout=0)]  # may be a publish ahead of last_seq
    assert followed[: len(prints)] == list(range(1, len(prints) + 1))
    assert log.first_seq == 1
    assert log.topics() == ({""} if prints else set())
    assert log.settings.file_mode == 0o600
    stats = log.stats()
    assert (stats.first_seq, stats.last_seq) == (1, len(prints))
    unpublished = "nothing leads to it"  # segments of a load that died before it was committed
    assert all(why.startswith(unpublished) for why in stats.spurious.values()), stats.spurious


def check_log(path: Path, acks: list[Path]) -> list[int]:
    """Verify the log as it is, then open it for reading and check all of it."""
    report = penstock.verify(path)
    assert report.ok, str(report)
    with penstock.open(path, mode="r") as log:
        prints = check_events(log, read_account(acks))
        check_access(log, prints)
    return prints


def check_goes_on(path: Path, acks: list[Path]) -> None:
    """The log opens for writing, holds what it must, and takes more."""
    from tests.support.acks import Acks

    mine = path.parent / f"after-{len(acks)}.acks"
    if list(path.glob("*.seg")):  # else its creator died before there was one
        report = penstock.verify(path)
        assert report.ok, str(report)
    with penstock.open(path) as log:
        prints = check_events(log, read_account(acks))
        writer = Acks(str(mine), f"after-{len(acks)}")
        for sizes in ([10], [0, 300, 5000], [40_000], [1]):
            writer.append(log, sizes)
        writer.close()
        assert len(log) == len(prints) + 6
        check_access(log, check_events(log, read_account([*acks, mine])))
    acks.append(mine)
    check_log(path, acks)


def read_followed(file: Path) -> list[tuple[int, int]]:
    """What a follower wrote down: seq and fingerprint of each event."""
    lines = file.read_text().split("\n") if file.exists() else [""]
    return [(int(a), int(b)) for a, b in (line.split() for line in lines[:-1])]
