"""Open a ring: recover it under LOCK_EX, or read its frames alone.

The file is its own control. Nothing in it is trusted before it was recovered under LOCK_EX, and
handles that have it open notice when its name belongs to another file, of another size.
"""

from __future__ import annotations

import os
from contextlib import suppress

from penstock import _core
from penstock import layout as L
from penstock._core import RingMap
from penstock.consumers.folder import clamp_all
from penstock.errors import Io, PenstockError
from penstock.groups.folder import note_end
from penstock.handle import control
from penstock.handle.control import Words
from penstock.handle.storage import Replaced
from penstock.ring import ending
from penstock.ring.ending import Ends
from penstock.ring.file import Header, Slot, map_ring, read_slots, sweep, write_slot
from penstock.ring.named import NamedFile, remove_unfinished
from penstock.system import files

_SYNCED_POSITIONS = (L.C_DURABLE_POS, L.C_GUARD, L.C_GUARD_END)


def open_held(file: NamedFile, *, write: bool) -> int:
    """A new descriptor of the ring, which may be another file now."""
    if file.is_replaced():
        file.hold_named()
    return files.open_file(file.held, write=write)


def check_named(file: NamedFile, held_fd: int) -> None:
    """Raise `Replaced` unless that descriptor is of the file that has the ring's name."""
    if not files.same_file(held_fd, file.held) or file.is_replaced():
        raise Replaced


def first_open(file: NamedFile, held_fd: int) -> None:
    """No other handle has the ring open: recover it, build control."""
    check_named(file, held_fd)
    if files.same_file(held_fd, file.name):
        remove_unfinished(file.resized)
        if os.fstat(held_fd).st_nlink > 1 and files.same_file(held_fd, file.path):
            sweep(file.path)
    m, header = map_ring(file.held, write=True)
    hint = control.old_words(file.place, header.uuid)
    stray = control.stray_words(file.place, header.uuid)
    epoch = _begin_epoch(held_fd, file.path)
    try:
        ends = ending.find(m, header, hint, stray)
        slots = read_slots(m.fd, header, file.path)
        _core.fail_point("repair.walked")
        words = ends.words()
        due = not ends.by_control
        trusted = False
        if hint is not None and ends.by_control:
            due = hint[L.C_RESERVED] != hint[L.C_HEAD]
            # The bytes after the last checkpoint may not be on disk if a sync failed, or if a
            # process died in one and may have been the only one to know that it failed.
            trusted = not hint[L.C_POISONED] and not hint[L.C_SYNCING]
            trusted = trusted and _is_plausible(hint, slots)
            for at in (L.C_DURABLE_SEQ, L.C_SLOT, *_SYNCED_POSITIONS):
                words[at] = hint[at]
        if not trusted:
            with suppress(
                PermissionError
            ):  # without permission to look there, this user has resized nothing
                file.sync_name()
            for start, end in ending.pieces(ends):
                m.redirty(start, end)
        if not trusted or (slots and slots[0].clean):
            words |= _settle(m, ends, slots, words.get(L.C_SLOT), file.path)
        # Only now: if the power fails again, the old checkpoint still leads to the frames.
        ending.clear_rest(ends, None, due=due)
        if files.exists(file.home):
            clamp_all(file.home, header.uuid, words[L.C_NEXT_SEQ])
            if not trusted:
                note_end(file.home, words[L.C_NEXT_SEQ])
    except Io:
        with suppress(PenstockError):  # so that the next opener does not trust it
            files.write_at(held_fd, bytes(8), L.RING_CONTROL_OFFSET, file.path)
        raise
    # Once more: a reader may meanwhile have seen bytes that are gone now.
    words |= {L.C_EPOCH: epoch + 1}
    control.build_in_place(file.place, held_fd, header.uuid, words)


def _is_plausible(words: Words, slots: list[Slot]) -> bool:
    """Whether the words of control about syncs are possible."""
    return (
        words[L.C_SLOT] in [slot.generation for slot in slots]
        and words[L.C_DURABLE_SEQ] < words[L.C_NEXT_SEQ]
        and all(words[at] <= words[L.C_HEAD] for at in _SYNCED_POSITIONS)
    )


def _settle(m: RingMap, ends: Ends, slots: list[Slot], sure: int | None, path: str) -> Words:
    """Sync the ring as it was found; returns the words that record it.

    The checkpoint that led to it stays, or the one that control is ``sure`` of.
    """
    kept = ends.anchor
    if sure is not None:
        kept = next((s for s in slots if s.generation == sure), None)
    newest = kept or (slots[0] if slots else None)
    slot = ends.slot(newest.generation + 1 if newest is not None else 1)
    write_slot(m.fd, slot, path)
    files.sync_data(m.fd, path)
    _core.fail_point("open.settled")
    leads = kept is not None and kept.last_frame >= slot.tail
    return {
        L.C_DURABLE_SEQ: slot.last_seq,
        L.C_DURABLE_POS: slot.head,
        L.C_SLOT: slot.generation,
        L.C_GUARD: kept.head if kept is not None and leads else slot.head,
        L.C_GUARD_END: slot.head,
    }


def _begin_epoch(held_fd: int, path: str) -> int:
    """Under LOCK_EX: tell readers without control that the file is about to change."""
    field = L.CONTROL.fields["epoch"]
    at = L.RING_CONTROL_OFFSET + field.at
    epoch = field.unpack(files.read_at(held_fd, field.nbytes, at, path))
    epoch = (epoch + 1) & ~L.EPOCH_MOVED
    files.write_at(held_fd, field.pack(epoch), at, path)
    _core.fail_point("ring.epoch")
    return epoch


def read_alone(file: NamedFile) -> tuple[RingMap, Header, Ends, int]:
    """Without live control: the ring, its ends, and their epoch."""
    while True:
        m, header = map_ring(file.held)
        hint = control.old_words(file.place, header.uuid)
        stray = control.stray_words(file.place, header.uuid)
        epoch = m.epoch()
        found = ending.find(m, header, hint, stray)
        if m.epoch() == epoch:
            return m, header, found, epoch
