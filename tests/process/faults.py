"""What processes do with a log or a ring while calls into the system fail, and after that."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import penstock
from tests.support import faulty
from tests.support.acks import Acks
from tests.support.attempts import Attempts
from tests.support.jobs import report, wait_file

SEGMENT = 64 << 10
RING = 192 << 10
LOG_OPERATIONS = [[10], [0, 300, 5000], [34_000], [1], [4000], [18_000, 18_000], [7]]
RING_OPERATIONS = [[10], [0, 300, 5000], [34_000], [1], [60_000], [18_000, 18_000], [50_000], [7]]
SYNCS = {"fsync", "fdatasync"}


def work_on_log(log: penstock.Log, mine: Acks, attempt: Attempts, *, alone: bool = False) -> None:
    """A bit of everything that a process does with a log; ``alone``: no other syncs it."""
    for sizes in LOG_OPERATIONS:
        attempt("append", partial(mine.append, log, sizes))
    attempt("durable", partial(append_durably, log, mine, [50], alone))
    attempt("roll", log.steward.roll)
    attempt("append", partial(mine.append, log, [30, 40]))
    if alone:
        attempt("load", partial(mine.load, log, [800] * 100))
    attempt("sync", partial(sync, log))
    attempt("durable", partial(append_durably, log, mine, [50, 9000], alone))
    attempt("read", lambda: sum(1 for _ in log))
    attempt("read back", lambda: sum(1 for _ in reversed(log)))
    attempt("get", lambda: log[log.first_seq])
    attempt("stats", log.stats)
    attempt("verify", log.verify)


def work_on_ring(log: penstock.Log, mine: Acks, attempt: Attempts) -> None:
    """A bit of everything that a process does with a ring, over the end of a lap."""
    for sizes in RING_OPERATIONS:
        attempt("append", partial(mine.append, log, sizes))
    attempt("durable", partial(append_durably, log, mine, [50], False))
    attempt("sync", partial(sync, log))
    attempt("configure", partial(log.configure, file_mode=0o600))
    attempt("durable", partial(append_durably, log, mine, [50, 9000], False))
    # Another process may go over what is being read.
    attempt("read", lambda: sum(1 for _ in log.read(on_gap="skip")))
    attempt("read back", lambda: sum(1 for _ in log.read(reverse=True, on_gap="skip")))
    attempt("get", lambda: newest(log))
    attempt("stats", log.stats)
    attempt("verify", log.verify)


def newest(log: penstock.Log) -> penstock.Event:
    """The newest event, unless others go over it before it is read: then a newer one."""
    while True:
        seq = log.last_seq
        try:
            return log[seq]
        except penstock.NotFound:
            if log.first_seq <= seq:
                raise


def append_durably(log: penstock.Log, mine: Acks, sizes: list[int], alone: bool) -> None:
    """Append; when it returns, the events are durable, by every sign that there is."""
    before, syncs = log.durable_seq, faulty.count_syncs() if alone else 0
    seq = mine.append(log, sizes, durable=True)
    assert log.durable_seq >= seq + len(sizes) - 1 > before
    assert not alone or faulty.count_syncs() > syncs


def sync(log: penstock.Log) -> None:
    """Sync; when it returns, everything is durable."""
    last = log.sync()
    assert log.durable_seq >= last


def work_well(log: penstock.Log, mine: Acks, *, poisoned: bool, ring: bool) -> None:
    """Work without a fault: nothing is refused, or, after a failed sync, all that writes."""
    attempt = Attempts()
    durable = log.durable_seq
    work = work_on_ring if ring else work_on_log
    work(log, mine, attempt)
    if poisoned:
        assert {kind for _, kind, _ in attempt.refusals} == {"Poisoned"}, attempt.refusals
        refused = [what for what, _, _ in attempt.refusals]
        appends = len(RING_OPERATIONS) if ring else len(LOG_OPERATIONS) + 1
        assert refused.count("append") == appends, refused
        assert refused.count("durable") == 2, refused
        assert log.durable_seq == durable
    else:
        assert not attempt.refusals, attempt.refusals


def log_amid_faults(path: str, acks: str, go: str, fault: list[Any], nth: int) -> None:
    """Open, work, close and open again while calls fail; then, with others at it, without."""
    function, code, lasts = fault
    mine = Acks(acks, "faulty")
    attempt = Attempts()
    faulty.arm(path, [function], nth, code, lasting=lasts != "once")

    def opened() -> penstock.Log | None:
        return attempt("open", lambda: penstock.open(path, segment_size=SEGMENT, timeout=10))

    log = opened() or opened()
    poisoned = False
    if log is not None:
        before = faulty.count_hits_in_use()
        work_on_log(log, mine, attempt, alone=True)
        poisoned = function in SYNCS and faulty.count_hits_in_use() > before
        if poisoned or lasts == "until-close":
            faulty.disarm()
            work_well(log, mine, poisoned=poisoned, ring=False)
        attempt("close", log.close)
        poisoned = function in SYNCS and faulty.count_hits_in_use() > before
    log = opened()
    faulty.disarm()
    report(refused=attempt.refusals, hits=faulty.count_hits(), poisoned=poisoned)
    if go:
        wait_file(go)
    if log is None:
        log = penstock.open(path, segment_size=SEGMENT)
    work_well(log, mine, poisoned=poisoned and bool(go), ring=False)
    log.close()


def ring_amid_faults(path: str, acks: str, go: str, fault: list[Any], nth: int) -> None:
    """Open, work, resize, close and open again while calls fail; then without."""
    function, code, lasts = fault
    mine = Acks(acks, "faulty")
    attempt = Attempts()
    faulty.arm(str(Path(path).parent), [function], nth, code, lasting=lasts != "once")

    def opened() -> penstock.Log | None:
        return attempt("open", lambda: penstock.open(path, timeout=10, create=False))

    log = opened() or opened()
    poisoned = False
    if log is not None:
        before = faulty.count_hits_in_use()
        work_on_ring(log, mine, attempt)
        # Told by what failed, not by the log, which might not have noticed.
        poisoned = function in SYNCS and faulty.count_hits_in_use() > before
        assert log.stats().poisoned == poisoned
        if not go:  # else others have it open
            attempt("resize", partial(log.resize, 2 * RING))
            attempt("resize", partial(log.resize, RING))
        if not log._closed:  # a resize that finds no way back closes the handle
            poisoned = poisoned or log.stats().poisoned  # of a resize, the sync of the new name
            if poisoned or lasts == "until-close":
                faulty.disarm()
                work_well(log, mine, poisoned=poisoned, ring=True)
        attempt("close", log.close)
    log = opened()
    faulty.disarm()
    report(refused=attempt.refusals, hits=faulty.count_hits(), poisoned=poisoned)
    if go:
        wait_file(go)
    if log is None:
        log = penstock.open(path, create=False)
    work_well(log, mine, poisoned=poisoned and bool(go), ring=True)
    log.close()


def watch(path: str, acks: str, go: str, ring: bool) -> None:
    """Another process: it has the log open all along, and works when the faults are over."""
    log = penstock.open(path)
    mine = Acks(acks, "witness")
    mine.append(log, [50])
    report(ready=True)
    wait_file(go)
    attempt = Attempts()
    work = work_on_ring if ring else work_on_log
    work(log, mine, attempt)
    log.close()
    report(refused=attempt.refusals)
