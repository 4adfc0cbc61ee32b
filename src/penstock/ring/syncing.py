"""Checkpoints of a ring: each sync writes one, and so does the last writer that closes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import _core
from penstock import layout as L
from penstock._core import Control, RingMap
from penstock.errors import Corrupt
from penstock.handle import control, durability
from penstock.handle.durability import Snapshot, poisoning
from penstock.ring import ending
from penstock.ring.file import Header, read_slots, write_slot
from penstock.system import files

if TYPE_CHECKING:
    from penstock.handle.control import ControlPlace


def sync(m: RingMap, attached: Control, words: Snapshot) -> None:
    """Sync everything up to the head in ``words`` to disk; under the sync lock."""
    again = durability.begin(attached)
    generation = _next_generation(attached, m.path)
    # The checkpoint is synced together with its frames: recovery checks every frame, and does not
    # trust one that reached the disk before them.
    write_slot(m.fd, ending.slot_of(words, generation), m.path)
    if again:
        m.redirty(m.data_offset, m.data_offset + m.ring_bytes)
    with poisoning(attached):
        files.sync_data(m.fd, m.path)
    _core.fail_point("sync.synced")
    attached.put(L.C_SLOT, generation)
    # The checkpoint before this one is on disk now.
    sure = max(attached.get(L.C_GUARD), attached.get(L.C_DURABLE_POS))
    attached.put(L.C_GUARD, min(sure, words[L.C_HEAD]))
    durability.end(attached, 0, words[L.C_HEAD], words[L.C_NEXT_SEQ] - 1)


def close_cleanly(m: RingMap, attached: Control) -> None:
    """If no other handle has the ring open: note in a checkpoint that nothing follows it."""
    if attached.has_writers() or not files.lock_exclusive(attached.held_fd, m.path):
        return
    words = control.words_of_log(attached)
    in_order = words[L.C_HEAD] == words[L.C_RESERVED] and not attached.get32(L.C_SUSPECT)
    if attached.get(L.C_EPOCH) & L.EPOCH_MOVED:
        return
    if not in_order or attached.get(L.C_POISONED) or attached.get32(L.C_SYNCING):
        return
    if attached.get(L.C_DURABLE_POS) != words[L.C_HEAD]:
        return
    generation = _next_generation(attached, m.path)
    write_slot(m.fd, ending.slot_of(words, generation, clean=True), m.path)
    attached.put(L.C_SLOT, generation)
    files.sync_data(m.fd, m.path)


def _next_generation(attached: Control, path: str) -> int:
    """The generation of the next checkpoint."""
    generation = attached.get(L.C_SLOT) + 1
    if generation >= L.SEQ_MAX:
        raise nonsense_error(path)
    return generation


def nonsense_error(path: str) -> Corrupt:
    """The error for impossible words of control."""
    return Corrupt(
        f"{path}: its control is not consistent; close the log in every process and open it again",
        path=path,
        offset=L.RING_CONTROL_OFFSET,
    )


def vouched_seq(m: RingMap, header: Header, place: ControlPlace) -> int:
    """Without live control: the last seq that a checkpoint says is on disk."""
    hint = control.old_words(place, header.uuid)
    if hint is not None:
        return hint[L.C_DURABLE_SEQ]
    slots = read_slots(m.fd, header, m.path)
    if slots and not slots[0].clean:
        slots = slots[1:] or slots
    return slots[0].last_seq if slots else 0
