"""Counts and sizes of a log, as ``log.stats()``."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field

from penstock import _core
from penstock import layout as L
from penstock._core import Control

JOBS = ("allocate", "prepare", "seal", "sync", "retain", "compact", "erase", "archive")


@dataclass(frozen=True, slots=True)
class BackgroundJob:
    """Results of one kind of background work of this handle. Times are UTC nanoseconds since 1970.

    Waiting for a lock is not a failure; the work is done later. ``queue`` is how much waits to be
    done: finished segments to seal, files to delete.
    """

    last_success_ns: int | None = None  # None: it never had anything to do
    last_error: str | None = None
    last_error_ns: int | None = None
    failures: int = 0
    successes: int = 0
    in_a_row: int = 0  # failures since the last success
    queue: int = 0


@dataclass(frozen=True, slots=True)
class Disk:
    """What a log takes on disk, and when there is no room left.

    Attributes
    ----------
    allocated : int
        Bytes that all its files take, with what was allocated ahead of appends.
    live : int
        Of those, the bytes of segments with events that readers can get; of a ring, of its events.
    dead : int or None
        Bytes that compaction would free, as its last run or dry run by this handle counted them;
        None if there was none. To count them takes reading the whole log.
    limit : int
        ``max_bytes`` of the settings; 0 if there is no limit.
    free : int
        Bytes that the file system has left for it.
    rate : float
        By how many bytes a second it grew lately, before retention.
    full_at : datetime or None
        When it has no room left at that rate, in UTC, by its limit or on its file system. None if
        that never comes: it does not grow, or retention keeps it small enough.
    """

    allocated: int = 0
    live: int = 0
    dead: int | None = None
    limit: int = 0
    free: int = 0
    rate: float = 0.0
    full_at: dt.datetime | None = None


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts and sizes of a log. Counters start when control is built.

    ``background`` is what the threads of this handle, in this process, have done: for each of the
    jobs "allocate", "prepare", "seal", "sync", "retain", "compact", "erase" and "archive" when it
    last succeeded, its last error, how often it did and did not, and how much of it waits.
    """

    path: str
    uuid: str
    first_seq: int
    last_seq: int
    segments: int
    disk_bytes: int
    live: bool  # whether control is attached
    durable_seq: int = 0
    poisoned: bool = False  # a sync failed; nothing more is appended
    repairs: int = 0
    takeovers: int = 0
    rolls: int = 0
    syncs: int = 0
    lock: str = "polling" if _core.POLLING else "futex"
    spurious: dict[str, str] = field(default_factory=dict)
    ring: Ring | None = None  # only for a ring
    background: dict[str, BackgroundJob] = field(default_factory=dict)
    disk: Disk = field(default_factory=Disk)


@dataclass(frozen=True, slots=True)
class Ring:
    """The file of a ring, and what is in it. Positions only grow; see docs/format.md."""

    file_bytes: int
    ring_offset: int  # where the area for frames begins
    ring_bytes: int  # size of that area
    index_capacity: int  # events that the index can hold
    format_version: int
    generation: int  # above 0: a repair has left seqs out
    tail: int  # position of the oldest frame
    head: int  # position after the newest one
    reserved: int  # end of what an append in progress may write; head if there is none
    used_bytes: int
    lost_bytes: int  # of damaged frames that were dropped since control was built
    when_full: str
    holds: int  # readers with hold=True, including dead ones that were not removed yet
    monotone: bool  # event times never went back


@dataclass(frozen=True, slots=True)
class Stock:
    """Totals of a log's files, and the seqs in them, at one moment."""

    uuid: bytes
    first_seq: int
    next_seq: int
    segments: int
    disk_bytes: int
    spurious: dict[str, str] = field(default_factory=dict)
    ring: Ring | None = None
    disk: Disk = field(default_factory=Disk)


def collect(
    path: str,
    control: Control | None,
    durable: int,
    stock: Stock,
    background: dict[str, BackgroundJob],
) -> Stats:
    """Combine the totals of the files with the counters."""

    def counted(at: int) -> int:
        return control.get(at) if control is not None else 0

    return Stats(
        path=path,
        uuid=stock.uuid.hex(),
        first_seq=stock.first_seq,
        last_seq=stock.next_seq - 1,
        segments=stock.segments,
        disk_bytes=stock.disk_bytes,
        live=control is not None,
        durable_seq=durable,
        poisoned=bool(counted(L.C_POISONED)),
        repairs=counted(L.C_REPAIRS),
        takeovers=counted(L.C_TAKEOVERS),
        rolls=counted(L.C_ROLLS),
        syncs=counted(L.C_SYNCS),
        spurious=stock.spurious,
        ring=stock.ring,
        background=background,
        disk=stock.disk,
    )
