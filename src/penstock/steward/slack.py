"""Free disk space that was allocated ahead of appends that never came.

It frees blocks and never cuts a file short: readers map segments up to the size that they
saw, and read zeros where a block was freed. A store into such a hole may fail on a full disk, so
control first says that nothing is allocated there; the next append allocates what it needs.
"""

from __future__ import annotations

import re

from penstock import _core
from penstock import layout as L
from penstock._core import Control
from penstock.errors import Busy, PenstockError
from penstock.handle import control, locks
from penstock.handle.control import ControlPlace, Words
from penstock.layout import SegmentPosition
from penstock.segments import segment
from penstock.segments.leftovers import NEXT, is_ours
from penstock.segments.segment import Header
from penstock.segments.store import Store
from penstock.system import files
from penstock.system.messages import logger

PATIENCE = 0.2  # seconds to wait for the write lock; the next close frees what this one left

_WORDS = (L.C_HEAD, L.C_RESERVED, L.C_POISONED, L.C_ACTIVE_BASE, L.C_ALLOC_END)
_PREPARED = re.compile(r"next\.([1-9][0-9]{0,9})\.tmp")


def free_slack(fd: int, header: Header, end: int, index_bytes: int, path: str) -> None:
    """Free the blocks of a segment from ``end`` to its footer, and those of its index."""
    files.punch(fd, end, header.footer_offset, path)
    files.punch(fd, L.INDEX_OFFSET + index_bytes, header.producers_offset, path)


def give_back(store: Store, attached: Control) -> None:
    """Free what was allocated ahead in the active segment, unless another writer has the log open.

    All of it happens under the write lock. A writer that opens the log meanwhile appends only
    afterwards, and finds in control how far blocks reach. A process that dies here leaves
    space allocated, which the next close frees.
    """
    try:
        with attached.locked(PATIENCE):
            if attached.has_writers() or attached.get32(L.C_SUSPECT):
                return
            words = {at: attached.get(at) for at in _WORDS}
            if not _in_order(words):
                return
            end = _end_of(words)
            attached.put(L.C_ALLOC_END, min(end, words[L.C_ALLOC_END]))
            _core.fail_point("slack.told")
            _free(store, words[L.C_ACTIVE_BASE], end)
            for name in files.list_dir(store.directory):
                if name == NEXT or _is_of_dead(name, attached):
                    _remove(store, name)
                    _core.fail_point("slack.removed")
    except Busy:
        return  # a writer has just opened the log


def give_back_alone(store: Store, place: ControlPlace) -> None:
    """Free it after the handle was closed: two writers that close at once may each see the other.

    No other handle has the log open, so the next opener rebuilds control.
    """
    found = control.peek(place)
    if found is None or found.live or not _is_worth_it(found.words):
        return
    try:
        _give_back_if_alone(store, place)
    except PenstockError as error:
        logger.warning("%s: unused disk space was not given back: %s", store.path, error)


def _give_back_if_alone(store: Store, place: ControlPlace) -> None:
    lock_fd = locks.open_lock(store.directory)
    fd = -1
    try:
        fd = files.open_dir(store.directory)
        _core.own_fd(fd)  # before it is locked: a child of a fork must not keep the lock
        with _core.FlockBlock(fd):
            if files.lock_exclusive(lock_fd, store.path) and files.lock_exclusive(fd, store.path):
                _give_back_locked(store, place)
    finally:
        _core.close_fd(lock_fd)
        if fd >= 0:
            _core.close_fd(fd)


def _give_back_locked(store: Store, place: ControlPlace) -> None:
    """Under LOCK_EX."""
    found = control.peek(place)
    if found is None or found.uuid != store.uuid or not _is_worth_it(found.words):
        return
    _free(store, found.words[L.C_ACTIVE_BASE], _end_of(found.words))
    for name in files.list_dir(store.directory):
        if name == NEXT or _PREPARED.fullmatch(name):
            _remove(store, name)


def _remove(store: Store, name: str) -> None:
    path = store.directory.file(name)
    if is_ours(path):
        files.unlink(path)


def _end_of(words: Words) -> int:
    """The end of the last page with a frame in it."""
    return segment.pages(SegmentPosition.unpack(words[L.C_HEAD]).offset)


def _in_order(words: Words) -> bool:
    return words[L.C_HEAD] == words[L.C_RESERVED] and not words[L.C_POISONED]


def _is_worth_it(words: Words) -> bool:
    return _in_order(words) and not words[L.C_SUSPECT] and words[L.C_ALLOC_END] > _end_of(words)


def _free(store: Store, base_seq: int, end: int) -> None:
    path = store.file(base_seq)
    fd = files.open_file(path, write=True)
    try:
        header = segment.read_header(fd, path)
        free_slack(fd, header, end, segment.index_bytes_for(end - header.data_offset), path)
        _core.fail_point("slack.freed")
    finally:
        files.close(fd)


def _is_of_dead(name: str, attached: Control) -> bool:
    """Whether a file was being prepared by a dead writer, or by this one, which has finished."""
    found = _PREPARED.fullmatch(name) if name.endswith(".tmp") else None
    token = int(found[1]) if found is not None else 0
    if not 0 < token <= L.TOKEN_MAX:
        return False
    return token == attached.token or not attached.is_alive(token)
