"""Counts and sizes of a log, as ``log.stats()``."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from penstock import _core, segment
from penstock import layout as L
from penstock._core import Control
from penstock.store import Store


@dataclass(frozen=True, slots=True)
class Stats:
    """What a log looks like from outside. Counters count since control was built."""

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
    lock: str = "portable" if _core.PORTABLE else "futex"
    spurious: dict[str, str] = field(default_factory=dict)


def collect(
    path: str, store: Store, control: Control | None, first: int, after: int, durable: int
) -> Stats:
    """Look at the files and the counters."""
    store.survey()
    names = [segment.file_name(base) for base in store.bases()]

    def counted(at: int) -> int:
        return control.get(at) if control is not None else 0

    return Stats(
        path=path,
        uuid=(store.uuid or b"").hex(),
        first_seq=first,
        last_seq=after - 1,
        segments=len(names),
        disk_bytes=sum(_disk_bytes(os.path.join(path, n)) for n in names),
        live=control is not None,
        durable_seq=durable,
        poisoned=bool(counted(L.C_POISONED)),
        repairs=counted(L.C_REPAIRS),
        takeovers=counted(L.C_TAKEOVERS),
        rolls=counted(L.C_ROLLS),
        syncs=counted(L.C_SYNCS),
        spurious=dict(store.spurious),
    )


def _disk_bytes(path: str) -> int:
    try:
        return segment.disk_bytes(path)
    except FileNotFoundError:
        return 0  # retained away just now
