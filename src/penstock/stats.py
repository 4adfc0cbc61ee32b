"""Counts and sizes of a log, as ``log.stats()``."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock import _core
from penstock import layout as L
from penstock._core import Control
from penstock.errors import NotFound
from penstock.segments import segment
from penstock.segments.store import Store

JOBS = ("allocate", "prepare", "seal", "sync")


@dataclass(frozen=True, slots=True)
class Job:
    """How one kind of background work of this handle went. Times are UTC nanoseconds since 1970.

    To wait for a lock is no failure; the work is done later.
    """

    last_success_ns: int | None = None  # None: it never had anything to do
    last_error: str | None = None
    last_error_ns: int | None = None
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Stats:
    """What a log looks like from outside. Counters count since control was built.

    ``background`` is what the threads of this handle, in this process, have done: for each of the
    jobs "allocate", "prepare", "seal" and "sync" when it last succeeded, its last error, and how
    often it failed.
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
    ring: Ring | None = None  # what a ring has besides
    background: dict[str, Job] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ring:
    """The file of a ring, and what is in it. Positions only grow; see docs/format.md."""

    file_bytes: int
    ring_offset: int  # where the room for frames begins
    ring_bytes: int  # how much that is
    index_capacity: int  # events that are found at once by their seq
    format_version: int
    generation: int  # above 0: a repair has left seqs out
    tail: int  # position of the oldest frame
    head: int  # position behind the newest one
    reserved: int  # position behind what an append that is under way may touch; head if none is
    used_bytes: int
    lost_bytes: int  # of damaged frames that were dropped since control was built
    when_full: str
    holds: int  # readers with hold=True, also those that died and are not forgotten yet
    monotone: bool  # event times never went back


@dataclass(frozen=True, slots=True)
class Stock:
    """What the files of a log come to, and the seqs that were in them at that moment."""

    uuid: bytes
    first_seq: int
    next_seq: int
    segments: int
    disk_bytes: int
    spurious: dict[str, str] = field(default_factory=dict)
    ring: Ring | None = None


def take_stock(store: Store, first_seq: int, next_seq: int) -> Stock:
    """Look at the files of a segmented log."""
    store.survey()
    found = [store.file(base) for base in store.bases()]
    return Stock(
        uuid=store.uuid or b"",
        first_seq=first_seq,
        next_seq=next_seq,
        segments=len(found),
        disk_bytes=sum(_disk_bytes(name) for name in found),
        spurious=dict(store.spurious),
    )


def collect(
    path: str, control: Control | None, durable: int, stock: Stock, background: dict[str, Job]
) -> Stats:
    """Put together what the files and the counters say."""

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
    )


def _disk_bytes(path: str) -> int:
    try:
        return segment.disk_bytes(path)
    except NotFound:
        return 0  # retained away just now
