"""What an append to a ring needs besides the frames, under the write lock.

It repairs what a dead writer left, makes room in front of the head, and copies settings and
producers before they are overwritten. It never drops what a reader holds.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from penstock import _core
from penstock import layout as L
from penstock._core import Control, RingMap
from penstock.errors import Corrupt, Full
from penstock.handle import control
from penstock.ring import ending, state
from penstock.ring.file import Header
from penstock.ring.holds import held_positions
from penstock.ring.syncing import nonsense_error
from penstock.system.messages import logger

if TYPE_CHECKING:
    from penstock.handle.handle import Handle
    from penstock.ring.storage import RingStorage


def make_ready(handle: Handle, storage: RingStorage, nbytes: int, timeout: float | None) -> bool:
    """Repair, or make room for ``nbytes``; returns whether it waited because the ring is full."""
    attached = handle._live()
    seen = attached.get32(L.C_ROOM_NOTIFY)
    code = _bring_in_order(handle, storage, attached, nbytes, timeout, None)
    if code == _core.RING_IS_FULL:
        _core.await_room(handle, attached, timeout, seen)
    elif code == _core.RING_IS_UNSURE:
        confirm(handle, timeout)
    return code == _core.RING_IS_FULL


def make_ready_to_configure(
    handle: Handle, storage: RingStorage, nbytes: int, when_full: int
) -> None:
    """Repair, or make room for new settings of ``nbytes``, which say ``when_full``.

    What is in their way is dropped if the old settings or the new ones allow it: else a ring that
    is full to the last byte could not be told to drop. `Full` at once, as there is more to do for
    settings than to wait.
    """
    code = _bring_in_order(handle, storage, handle._live(), nbytes, None, when_full)
    if code == _core.RING_IS_FULL:
        raise full(handle, storage)
    if code == _core.RING_IS_UNSURE:
        confirm(handle, None)


def _bring_in_order(
    handle: Handle,
    storage: RingStorage,
    attached: Control,
    nbytes: int,
    timeout: float | None,
    when_full: int | None,
) -> int:
    """Repair, or make room for ``nbytes``, of settings that say ``when_full`` if it is not None.

    Returns whether that was done, and why not, as ``_copy_state`` does.
    """
    with attached.locked(timeout):
        leaves, m = storage.leaving is attached, storage.finder.map
        if leaves or attached is not handle._ctl or m is None:
            time.sleep(0.001)  # another thread is about to attach to another file, or did
            return 0
        if attached.get(L.C_EPOCH) & L.EPOCH_MOVED:  # the process that was moving it is dead
            attached.put(L.C_EPOCH, attached.get(L.C_EPOCH) & ~L.EPOCH_MOVED)
        repair_if_needed(m, storage.known_header(handle), attached)
        if not ending.is_span(attached.get(L.C_TAIL), attached.get(L.C_HEAD), m.ring_bytes):
            raise nonsense_error(storage.path)
        return _make_room(handle, storage, attached, m, nbytes, when_full)


def confirm(handle: Handle, timeout: float | None) -> None:
    """Make the newest checkpoint safe: an append has to drop frames before it."""
    attached = handle._live()
    goal = min(attached.get(L.C_GUARD_END), attached.get(L.C_HEAD))
    handle._sync(L.C_GUARD, goal, timeout, attached)


def _make_room(
    handle: Handle,
    storage: RingStorage,
    attached: Control,
    m: RingMap,
    nbytes: int,
    when_full: int | None,
) -> int:
    """Under the write lock: clear the way of an append, except for frames that it may drop itself.

    Returns whether that was done, and why not, as ``copy_state`` does.
    """
    head, size = attached.get(L.C_HEAD), m.ring_bytes
    left = size - head % size
    wraps = nbytes > left
    due, new_lap, reserve = (
        _core.copy_state_due(attached, m, nbytes, when_full) if nbytes else (False, False, 0)
    )
    if not due:
        need = head + left * wraps + nbytes + reserve - size
        return _pass_damage(attached, m, min(need, head), when_full)
    frames = state.state_frames(handle, storage, attached, m)
    if not frames:
        attached.put(L.C_STATE_POS, 0)
        return 0
    wanted = sum(_core.frame_bytes(len(body)) for _, body in frames)
    # Not over the previous copy: with much to skip, there is one on each side.
    fits = head + left + wanted - attached.get(L.C_STATE_POS) <= size
    new_lap = new_lap or (wraps and fits)
    start = head + left if new_lap or wanted > left else head
    code = _pass_damage(attached, m, start + wanted - size, when_full)
    return code or _core.copy_state(attached, m, frames, new_lap, when_full)


def repair_if_needed(m: RingMap, header: Header, attached: Control) -> None:
    """Under the write lock: repair what a dead holder left."""
    head = attached.get(L.C_HEAD)
    reserved = attached.get(L.C_RESERVED)
    if not attached.get32(L.C_SUSPECT) and head == reserved:
        return
    words = control.words_of_log(attached)
    found = ending.from_control(m, header, words)
    _core.fail_point("repair.walked")
    if found is None:
        raise Corrupt(
            f"{m.path}: the frames before position {head} do not match control; close "
            "the log in every process and open it again",
            path=m.path,
        )
    ending.clear_rest(found, attached, due=True)
    words = {L.C_HEAD: found.head} | found.words()
    for at in (L.C_LAST_FRAME, L.C_RESERVED):  # last, as in an append: the next repair
        words[at] = words.pop(at)  # walks from there, and does not rely on what is between
    for at, value in words.items():
        control.store(attached, at, value)
        _core.fail_point("repair.head" if at == L.C_HEAD else "repair.word")
    attached.put32(L.C_SUSPECT, 0)
    attached.add(L.C_REPAIRS)
    attached.wake_all()


def _pass_damage(attached: Control, m: RingMap, need: int, when_full: int | None) -> int:
    """Under the write lock: if a damaged frame is in the way of the tail, move past it.

    Returns whether that may be, and why not, as ``may_drop`` does.
    """
    tail = attached.get(L.C_TAIL)
    if need <= tail:
        return 0
    passed, nbytes = m.skip_damage(tail, need, attached.get(L.C_HEAD))
    if not nbytes:
        return 0
    code = _core.may_drop(attached, passed, when_full)
    if code:
        return code
    logger.warning(
        "%s: dropped %d bytes of damaged frames, which an append had to overwrite",
        m.path,
        nbytes,
    )
    attached.put(L.C_TAIL, passed)
    attached.add(L.C_LOST, nbytes)
    for word in (L.C_SETTINGS_POS, L.C_PRODUCER_POS):
        if attached.get(word) < passed:
            attached.put(word, 0)  # its frame is lost
    if attached.get(L.C_STATE_POS):
        attached.put(L.C_STATE_POS, max(passed, attached.get(L.C_STATE_POS)))
    return 0


def full(handle: Handle, storage: RingStorage) -> Full:
    """The error for an append that would overwrite events that are still needed."""
    return Full(
        f"{handle.path}: the ring is full, and the events to overwrite have not been read yet "
        f"({_who_holds(handle, storage)}); nothing was written: "
        "try again when a reader has moved on"
    )


def _who_holds(handle: Handle, storage: RingStorage) -> str:
    """How many readers hold the ring, and from which seq on."""
    held = held_positions(handle._live())
    if not held:
        return "there is no reader with hold=True"
    many = "1 reader holds it" if len(held) == 1 else f"{len(held)} readers hold it"
    return f"{many}, the slowest from seq {storage.finder.seq_at(handle, min(held))} on"
