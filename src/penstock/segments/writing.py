"""What an append to a log of segments needs besides the frames: repair, room, the next segment.

All of it happens under the write lock. The keeper does what can be done ahead of time.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from penstock import layout as L
from penstock._core import Control, SegmentMap
from penstock.errors import Backpressure, Corrupt, PenstockError
from penstock.handle import control
from penstock.layout import SegmentPosition
from penstock.segments import recovery, segment
from penstock.segments.ending import Active
from penstock.segments.segment import Header
from penstock.segments.store import Store
from penstock.settings import Settings
from penstock.steward import retention, slack
from penstock.steward.ahead import Ahead
from penstock.steward.keeper import Keeper
from penstock.steward.record import PRESSING
from penstock.steward.roll import allocate_to, roll, start_bytes, store_words
from penstock.steward.seal import seal_finished

if TYPE_CHECKING:
    from penstock.handle.handle import Handle
    from penstock.segments.storage import SegmentStorage


def make_ready(handle: Handle, storage: SegmentStorage, nbytes: int, timeout: float | None) -> bool:
    """Repair, map, roll or allocate, as an append of ``nbytes`` bytes needs."""
    attached = handle._live()
    with attached.locked(timeout):
        m, header = in_order(handle, storage, attached)
        end = SegmentPosition.unpack(attached.get(L.C_HEAD)).offset + nbytes
        if end > header.frames_end:
            _check_pressure(handle, storage)
            roll_now(handle, storage, attached)
        elif end > attached.get(L.C_ALLOC_END):
            _check_pressure(handle, storage)
            allocate_to(attached, m, header, end, (storage.budget, limits_of(handle)))
    return False


def limits_of(handle: Handle) -> Settings:
    """The settings that limit an append; those that it appends, if they may let the log go on."""
    coming = handle._coming.get(threading.get_ident())
    if coming is not None:
        return coming
    try:
        return handle.settings
    except Corrupt:  # verify reports them
        return Settings()


def _check_pressure(handle: Handle, storage: SegmentStorage) -> None:
    """Refuse to take more while background work is too far behind; but never settings."""
    if threading.get_ident() in handle._coming:
        return
    settings = limits_of(handle)
    waiting = 0 if storage.ahead is None else storage.ahead.unsealed()
    if settings.max_unsealed and waiting > settings.max_unsealed:
        jobs = handle._record.jobs()
        raise Backpressure(
            f"{handle.path}: {waiting} finished segments wait to be sealed, and max_unsealed is "
            f"{settings.max_unsealed}; appends go on once they are sealed"
            + (f"; the last error was: {jobs['seal'].last_error}" if jobs["seal"].in_a_row else "")
        )
    for name, job in handle._record.jobs().items():
        if name in PRESSING and settings.max_failures and job.in_a_row > settings.max_failures:
            raise Backpressure(
                f"{handle.path}: {name} has failed {job.in_a_row} times in a row, and max_failures "
                f"is {settings.max_failures}; appends go on once it succeeds; the last error was: "
                f"{job.last_error}"
            )


def in_order(
    handle: Handle, storage: SegmentStorage, attached: Control
) -> tuple[SegmentMap, Header]:
    """Under the write lock: the active segment, mapped and repaired."""
    _repair_if_needed(handle, storage, attached)
    return map_active(handle, storage, attached)


def _repair_if_needed(handle: Handle, storage: SegmentStorage, attached: Control) -> None:
    """Under the write lock: repair what a dead holder left, if the log is there."""
    storage.check_there(handle)
    head = attached.get(L.C_HEAD)
    reserved = attached.get(L.C_RESERVED)
    if not attached.get32(L.C_SUSPECT) and head == reserved:
        return
    hint = control.words_of_log(attached)
    number, end = SegmentPosition.unpack(reserved)
    limit = end if number == SegmentPosition.unpack(head).number else None
    active = recovery.recover(storage.store, attached.held_fd, hint, live=attached, limit=limit)
    store_words(attached, active)
    attached.put32(L.C_SUSPECT, 0)
    attached.add(L.C_REPAIRS)
    attached.wake_all()


def map_active(
    handle: Handle, storage: SegmentStorage, attached: Control
) -> tuple[SegmentMap, Header]:
    """Under the write lock: map the active segment for writing."""
    m, header = handle._active_map, storage.header
    number = SegmentPosition.unpack(attached.get(L.C_HEAD)).number
    if m is None or header is None or m.number != number:
        name = storage.store.file(attached.get(L.C_ACTIVE_BASE))
        m, header = segment.map_segment(name, write=True)
        _take_active(handle, storage, m, header)
    return m, header


def _take_active(handle: Handle, storage: SegmentStorage, m: SegmentMap, header: Header) -> None:
    """Make that segment the one to append to."""
    if handle._closed:
        raise handle._closed_error()
    storage.header = header
    m.home_fd = handle._live().held_fd
    handle._active_map = m
    if os.path.basename(m.path) in storage.store.spurious:
        storage.store.readmit(header.base_seq)
    storage.store.keep(m)


def roll_now(handle: Handle, storage: SegmentStorage, attached: Control) -> None:
    """Under the write lock, with the log repaired: make a new segment active."""
    end = end_of(handle, storage, attached)
    storage.budget.check(limits_of(handle), end.header.number, start_bytes())
    fresh = roll(storage.directory, attached.held_fd, attached, end)
    _take_active(handle, storage, fresh.map, fresh.header)


def end_of(handle: Handle, storage: SegmentStorage, attached: Control) -> Active:
    """Under the write lock, with the log repaired: the active segment and its end."""
    m, header = map_active(handle, storage, attached)
    walk, _, _ = m.walk(header.data_offset)
    walk = walk.changed(
        offset=SegmentPosition.unpack(attached.get(L.C_HEAD)).offset,
        next_seq=attached.get(L.C_NEXT_SEQ),
        last_append_ns=attached.get(L.C_LAST_APPEND_NS),
        last_frame=attached.get(L.C_LAST_FRAME),
        event_max_ns=attached.get(L.C_EVENT_MAX_NS),
        monotone=bool(attached.get(L.C_FLAGS) & L.CONTROL_FLAG_MONOTONE),
        settings_offset=SegmentPosition.unpack(attached.get(L.C_SETTINGS_POS)).offset,
        producer_offset=SegmentPosition.unpack(attached.get(L.C_PRODUCER_POS)).offset,
    )
    return Active(m, header, walk)


def roll_for(handle: Handle, storage: SegmentStorage, nbytes: int) -> bool:
    """Roll to a larger segment if the settings' size fits ``nbytes`` bytes."""
    attached = handle._live()
    if nbytes > storage.room(handle):
        return False
    with attached.locked():
        _, header = in_order(handle, storage, attached)
        fits = nbytes <= header.frames_end - header.data_offset
        if not fits and attached.get(L.C_NEXT_SEQ) > header.base_seq:
            roll_now(handle, storage, attached)
            fits = True
    return fits


def roll_unless_empty(handle: Handle, storage: SegmentStorage) -> int:
    """Roll unless the active segment is empty; the active segment's base seq."""
    handle._check_writable()
    handle._ensure_open()
    attached = handle._live()
    with attached.locked():
        _, header = in_order(handle, storage, attached)
        if attached.get(L.C_NEXT_SEQ) > header.base_seq:
            roll_now(handle, storage, attached)
        base = attached.get(L.C_ACTIVE_BASE)
    handle._look_ahead()
    return base


def ask_keeper(handle: Handle, storage: SegmentStorage) -> None:
    """Make the keeper allocate, prepare and seal."""
    attached, m, header = handle._ctl, handle._active_map, storage.header
    if attached is None or m is None or header is None:
        return
    settings = handle.settings
    with handle._guard:
        if handle._closed:
            return
        if storage.ahead is None or handle._keeper is None:
            assert storage.store.uuid is not None
            storage.ahead = Ahead(
                handle._record,
                storage.directory,
                storage.store.uuid,
                attached,
                seals=not storage.is_private,
                budget=storage.budget,
                maintain=_maintenance_of(handle),
                maintained_at=storage.base_at_open,
            )
            handle._keeper = Keeper(storage.ahead.work)
        storage.ahead.active = (m, header, settings)
        handle._keeper.ask()


def _maintenance_of(handle: Handle) -> Callable[[], bool]:
    """What lets the log's rules delete segments in the background; it holds no handle."""
    known = weakref.ref(handle)

    def maintain() -> bool:
        log = known()
        if log is None or log._closed or log._inherited:
            return False
        return retention.keep_up(log, cast("SegmentStorage", log._storage))

    return maintain


def seal_now(handle: Handle, storage: SegmentStorage) -> None:
    """Sync the log and seal its finished segments. That some cannot be sealed stops nothing."""
    attached = handle._live()
    base = attached.get(L.C_ACTIVE_BASE)
    handle._sync(L.C_DURABLE_BASE, base, None, attached)
    assert storage.store.uuid is not None
    try:
        seal_finished(Store(storage.directory, storage.store.uuid, [], lambda: base), base, {})
    except PenstockError as error:
        handle._record.failed("seal", error)


def give_back(handle: Handle, storage: SegmentStorage) -> None:
    """Closing: seal what a dead writer left unsealed, and free what was allocated ahead."""
    attached = handle._ctl
    if attached is None or attached.has_writers():
        return
    base = attached.get(L.C_ACTIVE_BASE)
    number = SegmentPosition.unpack(attached.get(L.C_HEAD)).number
    if attached.get(L.C_DURABLE_BASE) == base and number > 1:
        try:
            seal_finished(storage.store, base, {})
        except Corrupt as error:
            handle._record.failed("seal", error)
    slack.give_back(storage.store, attached)
