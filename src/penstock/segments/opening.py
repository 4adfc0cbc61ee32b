"""Open a log of segments: create it, recover it, or read its frames alone."""

from __future__ import annotations

import os

from penstock import layout as L
from penstock.consumers.folder import FOLDER, clamp_all
from penstock.errors import Io, NoSuchLog, gone_error
from penstock.groups.folder import FOLDER as GROUPS
from penstock.groups.folder import note_end
from penstock.handle import control, locks
from penstock.handle.control import ControlPlace, Words
from penstock.segments import ending, leftovers, recovery, syncing
from penstock.segments.ending import Active
from penstock.segments.segment import Header
from penstock.segments.store import Store
from penstock.settings import Settings
from penstock.system import files


def belong_to(store: Store, uuid: bytes) -> None:
    """Bind to the log with that uuid; a handle never switches to another."""
    if store.uuid not in (None, uuid):
        raise gone_error(store.path)
    store.uuid = uuid


def has_segments(known: Store, looking: Store, new: Settings | None) -> bool:
    """Whether there is a log; raises if there is none and none can be made."""
    if looking.bases():
        return True
    if known.uuid is not None:
        raise gone_error(known.path)
    recovery.check_is_free(known.directory)
    if new is None:
        raise NoSuchLog(f"{known.path}: there is no log here; create it first", filename=known.path)
    return False


def first_open(
    known: Store,
    place: ControlPlace,
    held_fd: int,
    new: Settings | None,
    lock_fd: int,
    private: Header | None,
) -> None:
    """No other handle has the log open: create it if needed, recover it, build control.

    ``known`` is the handle's state of the log; a handle that had it open before knows its uuid.
    """
    directory = known.directory
    store = Store(directory, None, [], lambda: 0)
    found = has_segments(known, store, new)
    names = store.names
    leftovers.sweep(directory, names)
    if not found and new is not None:
        if private is None:
            files.sync_way(known.path)
        recovery.create_first(directory, held_fd, new, private)
        store.forget()
    uuid, hint = _whose(known, store, place)
    # The bytes after the last checkpoint may not be on disk if the machine has booted since,
    # if a sync failed, or if a process died in one and may have been the only one to know.
    trusted = hint is not None and not hint[L.C_POISONED] and not hint[L.C_SYNCING]
    try:
        active = recovery.recover(store, held_fd, hint, fresh=False)
        words = active.words() | ending.vouched(store).words(active)
        if not trusted:
            words = syncing.settle(store, held_fd, words)
    except Io:
        files.unlink(place.file)  # so that the next opener does not trust it
        raise
    leftovers.sweep_loads(directory, names)
    if FOLDER in names:
        clamp_all(directory, uuid, words[L.C_NEXT_SEQ])
    if GROUPS in names and not trusted:
        note_end(directory, words[L.C_NEXT_SEQ])
    file_mode = active.settings.file_mode
    locks.keep_readers_out(lock_fd, directory, file_mode)
    words[L.C_LOCK_INO] = os.fstat(lock_fd).st_ino
    temporary = leftovers.free_name(directory, control.TEMPORARY)
    control.build(directory, temporary, uuid, words, file_mode)


def _whose(known: Store, store: Store, place: ControlPlace) -> tuple[bytes, Words | None]:
    """The uuid of the log in the directory, and the words of its last control, if of this boot.

    A handle that had the log open before knows it, and accepts no other.
    """
    left = control.peek(place)
    uuid = ending.decide_uuid(store, known.uuid or (left.uuid if left is not None else None))
    belong_to(known, uuid)
    return uuid, left.words if left is not None and left.uuid == uuid else None


def read_alone(store: Store, place: ControlPlace) -> Active:
    """Without live control: the end of the log."""
    if not store.bases(fresh=True):
        raise NoSuchLog(f"{store.path}: there is no log here", filename=store.path)
    _, hint = _whose(store, store, place)
    active = ending.find_end(store, hint=hint, write=False)
    store.keep(active.map)
    return active


def grown(store: Store, active: Active) -> Active:
    """Without live control: the end of the log; ``active`` is the last known one."""
    if not active.map.data_end:
        active.walk, _, _ = active.map.walk(active.map.grown(), resume=active.walk)
    if active.walk.rolled and files.exists(store.file(active.walk.next_seq)):
        return ending.find_end(store, hint=None, write=False)
    return active
