"""What a log of segments takes on disk, how fast it grows, and when there is no room left."""

from __future__ import annotations

import datetime as dt
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock import _core
from penstock.errors import Corrupt, NotFound
from penstock.segments import segment
from penstock.segments.store import Store
from penstock.settings import Settings
from penstock.stats import Disk
from penstock.system import files

if TYPE_CHECKING:
    from penstock.handle.handle import Handle

_LATELY = 16  # segments, the newest ones, from which the rate is taken
_LEAST_NS = 1_000_000_000  # of time that a rate needs
_FAR = 10_000 * 365.25 * 86400  # seconds: never, for those who plan


def disk_of(store: Store, handle: Handle, sizes: list[int], allocated: int) -> Disk:
    """The figures for a log with segments of these sizes, and files that take ``allocated``."""
    settings = _settings_of(handle)
    bases = store.bases()
    free = files.free_bytes(store.directory.anchor().fd, store.path)
    rate = _rate(store, bases[-_LATELY:], sizes[-_LATELY:])
    room = free
    if settings.max_bytes:
        room = min(free, max(0, settings.max_bytes - allocated))
    return Disk(
        allocated=allocated,
        live=sum(sizes),
        dead=handle._record.dead_bytes,
        limit=settings.max_bytes,
        free=free,
        rate=rate,
        full_at=_full_at(settings, rate, room, allocated),
    )


def _settings_of(handle: Handle) -> Settings:
    try:
        return handle.settings
    except Corrupt:
        return Settings()


def _rate(store: Store, bases: list[int], sizes: list[int]) -> float:
    """Bytes a second since the oldest of these segments was begun; 0 if it is too new to say."""
    for since, base in enumerate(bases):
        with suppress(Corrupt, NotFound):
            header = segment.map_segment(store.file(base))[1]
            # What was allocated ahead of appends in the last one is no growth.
            passed = _core.now_ns() - header.created_ns
            ahead = sizes[-1] - min(sizes[-1], _written(store, bases[-1]))
            return (sum(sizes[since:]) - ahead) * 1e9 / passed if passed >= _LEAST_NS else 0.0
    return 0.0


def _written(store: Store, base: int) -> int:
    """Bytes of a segment up to the end of its frames."""
    with suppress(Corrupt, NotFound):
        m, _ = segment.map_segment(store.file(base))
        if m.data_end:
            return int(m.data_end)
        walk, _, _ = m.walk(m.grown(), check_crc=False)
        return int(walk.offset)
    return 0


def _full_at(settings: Settings, rate: float, room: int, allocated: int) -> dt.datetime | None:
    if rate <= 0:
        return None
    most = [settings.keep_bytes] if settings.keep_bytes else []
    if settings.keep_seconds:
        most.append(int(rate * settings.keep_seconds))
    if settings.keep_segments:
        most.append(settings.keep_segments * settings.segment_size)
    waits = bool(settings.keep_until_consumed) and not settings.max_lag
    if most and not waits and min(most) + settings.segment_size <= allocated + room:
        return None  # retention keeps it below that
    seconds = room / rate
    if seconds > _FAR:
        return None
    with suppress(OverflowError):
        return dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds)
    return None
