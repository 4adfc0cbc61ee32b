"""RingHandle: one opener's hold on a ring, from attaching to closing; its syncs; who holds it up.

The file is its own control. Nobody trusts what is in it before LOCK_EX has brought it into order,
and whoever has it open finds out when the name is another file's, of another size.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from contextlib import suppress

from penstock import _core
from penstock import layout as L
from penstock._core import Control, Hold, RingMap
from penstock.errors import (
    Busy,
    Corrupt,
    Gone,
    Io,
    NotFound,
    PenstockError,
    UnsupportedVersion,
    Usage,
)
from penstock.handle import control, durability
from penstock.handle.control import Words
from penstock.handle.durability import Snapshot, poisoning
from penstock.log import Log
from penstock.ring import ending as ring_ends
from penstock.ring.ending import Ends
from penstock.ring.file import (
    Header,
    Slot,
    map_ring,
    place_of,
    read_header,
    read_slots,
    sweep,
    write_slot,
)
from penstock.ring.producers import Follower
from penstock.segments.leftovers import begins_as
from penstock.settings import Options, Settings
from penstock.system import files
from penstock.system.directory import Held, Name
from penstock.system.messages import logger

RESIZED = ".resized"  # how the name ends of the file that a resize is making
OPEN_ATTEMPTS = 100

_SYNCED_POSITIONS = (L.C_DURABLE_POS, L.C_GUARD, L.C_GUARD_END)


class _Replaced(Exception):
    """The file that was opened does not have the log's name any more."""


class _Moved(Exception):
    """The handle has gone over to a file of another size."""


def _is_plausible(words: Words, slots: list[Slot]) -> bool:
    """Whether what control says of syncs can be."""
    return (
        words[L.C_SLOT] in [slot.generation for slot in slots]
        and words[L.C_DURABLE_SEQ] < words[L.C_NEXT_SEQ]
        and all(words[at] <= words[L.C_HEAD] for at in _SYNCED_POSITIONS)
    )


def _uuid_at(path: str) -> bytes | None:
    """The uuid of the ring that has a name; None if there is none."""
    fd = files.open_if_there(path)
    if fd is None:
        return None
    try:
        return read_header(fd, path).uuid
    except (Corrupt, UnsupportedVersion):
        return None
    finally:
        files.close(fd)


def remove_unfinished(path: Name) -> None:
    """Delete the copy that a resize left when it died; one that is locked is somebody's.

    For a moment it may be another ring, if that took the name while the old one was resized.
    """
    if not begins_as(path, L.RING_MAGIC):
        return
    try:
        fd = files.open_file(path, write=False)
    except NotFound:
        return
    try:
        if files.lock_exclusive(fd, path) and files.same_file(fd, path):
            files.unlink(path)
    finally:
        files.close(fd)


class RingHandle(Log):
    """The ring's file as one handle has it."""

    _static: Ends | None
    _loads_apart = False

    def __init__(self, path: str, options: Options) -> None:
        self._header: Header | None = None
        self._settings_seen: tuple[tuple[int, int], Settings] | None = None
        self._producers = Follower()
        self._holds: weakref.WeakSet[Hold] = weakref.WeakSet()
        self._leaving: Control | None = None  # what a resize, under way in this handle, goes from
        self._moving = threading.RLock()  # who has it goes over to another file, or closes
        self._is_ring = True
        self._parent = files.hold_dir(os.path.dirname(path))
        self._name = self._parent.file(os.path.basename(path))
        self._known_uuid: bytes | None = None  # not known yet
        self._file = files.hold_file(self._name)  # the ring, whatever its name is by now
        super().__init__(path, place_of(self._file), options, None)

    def _hold_named(self) -> None:
        """Go on with the file that has the ring's name."""
        self._file = files.hold_file(self._name)
        self._place = place_of(self._file)

    def _is_replaced(self) -> bool:
        """Whether the ring is another file by now, of another size.

        `Gone` if it was deleted, or another ring took its place. One that was renamed is itself.
        """
        if files.same_file(self._file.anchor().fd, self._name):
            return False
        if self._known_uuid is None or _uuid_at(self._name) == self._known_uuid:
            return True
        if not files.is_linked(self._file.anchor().fd, self.path):
            raise self._gone_error()
        return False

    def _check_there(self) -> None:
        m = self._ring
        if m is None or self._inherited or self._leaving is not None or m.fd < 0:
            return
        if not files.is_linked(m.fd, self.path) and m is self._ring and self._leaving is None:
            raise self._gone_error()

    def _open_held(self) -> int:
        if self._is_replaced():
            self._hold_named()
        return files.open_file(self._file, write=self._writable)

    def _attach(self, new: Settings | None) -> None:
        for _ in range(OPEN_ATTEMPTS):
            with suppress(_Replaced):  # another size by now, and another file
                super()._attach(new)
                return
        raise Busy(f"{self.path}: the file is being replaced all the time; try again")

    def _adopt(self, attached: Control | None, held_fd: int) -> None:
        if attached is None:
            super()._adopt(None, held_fd)
            return
        m, header = map_ring(self._file, write=self._writable)
        if not files.same_file(held_fd, self._file) or self._is_replaced():
            raise _Replaced
        if self._writable and attached.get(L.C_EPOCH) & L.EPOCH_MOVED:
            with attached.locked(self._timeout):  # whoever was about to move it died before it did
                attached.put(L.C_EPOCH, attached.get(L.C_EPOCH) & ~L.EPOCH_MOVED)
        attached.held_fd = held_fd
        held = self._held_seqs()
        self._know(m, header)
        self._held_fd = -1
        self._held_generation = _core.fork_generation()
        if held:
            with attached.locked(self._timeout):  # lest somebody drops what they wait for
                self._take_ring(m, attached, self._writable)
                for hold, seq in held:
                    hold.move_over(self._new_hold(attached, self._position_of(seq)))
        else:
            self._take_ring(m, attached, self._writable)  # now other threads see it
        self._static = None

    def _held_seqs(self) -> list[tuple[Hold, int]]:
        """Before the handle goes over to another file: where the readers that hold this one are."""
        found = []
        for hold in list(self._holds):
            position = hold.position
            if position:
                found.append((hold, self._seq_at(position)))
        return found

    def _know(self, m: RingMap, header: Header) -> None:
        """Forget what was known of another file."""
        m.coder = self._coder
        m.home_fd = m.fd if self._writable else -1  # appends look whether it was deleted
        self._known_uuid = header.uuid
        self._header = header
        self._settings_seen = None
        self._producers = Follower()

    def _first_open(self, held_fd: int, new: Settings | None, lock_fd: int) -> None:
        if not files.same_file(held_fd, self._file) or self._is_replaced():
            raise _Replaced
        if files.same_file(held_fd, self._name):
            remove_unfinished(self._parent.file(self._name.base + RESIZED))
            if os.fstat(held_fd).st_nlink > 1 and files.same_file(held_fd, self.path):
                sweep(self.path)
        m, header = map_ring(self._file, write=True)
        hint = control.old_words(self._place, header.uuid)
        stray = control.stray_words(self._place, header.uuid)
        epoch = self._begin_epoch(held_fd)
        try:
            ends = ring_ends.find(m, header, hint, stray)
            slots = read_slots(m.fd, header, self.path)
            _core.fail_point("repair.walked")
            words = ends.words()
            due = not ends.by_control
            trusted = False
            if hint is not None and ends.by_control:
                due = hint[L.C_RESERVED] != hint[L.C_HEAD]
                # Nobody vouches for what lies behind the last checkpoint if a sync failed, or if a
                # process died in one and may have been the only one to know that it failed.
                trusted = not hint[L.C_POISONED] and not hint[L.C_SYNCING] & 0xFFFFFFFF
                trusted = trusted and _is_plausible(hint, slots)
                for at in (L.C_DURABLE_SEQ, L.C_SLOT, *_SYNCED_POSITIONS):
                    words[at] = hint[at]
            if not trusted:
                with suppress(PermissionError):  # who may not look there has resized nothing
                    self._sync_parent()
                for start, end in ring_ends.pieces(ends):
                    m.redirty(start, end)
            if not trusted or (slots and slots[0].clean):
                words |= self._settle(m, ends, slots, words.get(L.C_SLOT))
            # Only now: if the power fails again, the checkpoint leads to what was found.
            ring_ends.clear_rest(ends, None, due=due)
        except Io:
            with suppress(PenstockError):  # so that the next one trusts it not
                files.write_at(held_fd, bytes(8), L.RING_CONTROL_OFFSET, self.path)
            raise
        # Once more: who looked meanwhile may have seen what is not there any more.
        control.build_in_place(self._place, held_fd, header.uuid, words | {L.C_EPOCH: epoch + 1})

    def _settle(self, m: RingMap, ends: Ends, slots: list[Slot], sure: int | None) -> Words:
        """Have the ring on the device as it was found; the words that tell so.

        The checkpoint that it was found by stays, or the one that control is ``sure`` of.
        """
        kept = ends.anchor
        if sure is not None:
            kept = next((s for s in slots if s.generation == sure), None)
        newest = kept or (slots[0] if slots else None)
        slot = ends.slot(newest.generation + 1 if newest is not None else 1)
        write_slot(m.fd, slot, self.path)
        files.sync_data(m.fd, self.path)
        _core.fail_point("open.settled")
        leads = kept is not None and kept.last_frame >= slot.tail
        return {
            L.C_DURABLE_SEQ: slot.last_seq,
            L.C_DURABLE_POS: slot.head,
            L.C_SLOT: slot.generation,
            L.C_GUARD: kept.head if kept is not None and leads else slot.head,
            L.C_GUARD_END: slot.head,
        }

    def _sync_parent(self) -> None:
        """Have the name of the ring on disk."""
        files.sync_name_in(self._parent, self.path)

    def _begin_epoch(self, held_fd: int) -> int:
        """Under LOCK_EX: have readers without control know that the file is about to change."""
        at = L.RING_CONTROL_OFFSET + L.C_EPOCH
        epoch = int.from_bytes(files.read_at(held_fd, 8, at, self.path), "little")
        epoch = (epoch + 1) & ~L.EPOCH_MOVED
        files.write_at(held_fd, epoch.to_bytes(8, "little"), at, self.path)
        _core.fail_point("ring.epoch")
        return epoch

    def _read_frames_alone(self) -> None:
        while True:
            m, header = map_ring(self._file)
            hint = control.old_words(self._place, header.uuid)
            stray = control.stray_words(self._place, header.uuid)
            epoch = m.epoch()
            found = ring_ends.find(m, header, hint, stray)
            if m.epoch() == epoch:
                break
        self._know(m, header)
        self._static = found
        self._take_still(m, found.tail, found.head, epoch)

    def _look_again(self) -> None:
        with self._looking:
            if self._static is not None and self._is_moved():
                self._hold_named()
                fd = self._open_held()
                _core.own_fd(fd)
                old, self._held_fd = self._held_fd, fd
                _core.close_fd(old)
            with suppress(_Replaced):  # just now: next time
                super()._look_again()

    def _is_moved(self) -> bool:
        """For a reader: whether to go on in another file. What was opened can still be read."""
        try:
            return self._is_replaced()
        except Gone:
            return False

    def _grow_static(self) -> None:
        m = self._ring
        if m is not None and (
            m.epoch() != self._static_epoch or not files.same_file(m.fd, self._file)
        ):
            self._read_frames_alone()

    def close(self) -> None:
        """As for any log; a resize that is under way in another thread ends first."""
        with self._moving if not self._inherited else threading.RLock():
            super().close()

    def _release(self, *, give_back: bool = False) -> None:
        super()._release(give_back=give_back)
        self._parent.close()
        self._file = Held(None, self.path)
        self._place = place_of(self._file)

    def _forget(self) -> None:
        if self._inherited:  # in a child: whoever had it stayed with the parent
            self._moving = threading.RLock()
            self._leaving = None
        for hold in list(self._holds):
            hold.close()  # its reader will never move on
        self._header = None
        self._ring = None

    def _known_header(self) -> Header:
        header = self._header
        if header is None:
            raise self._closed_error()
        return header

    def _checkpoint(self) -> PenstockError | None:
        failed = super()._checkpoint()
        attached, m = self._ctl, self._ring
        if failed is None and self._writable and attached is not None and m is not None:
            try:
                with _core.Opening(attached.held_fd):
                    self._close_cleanly(attached, m)
            except PenstockError as error:
                logger.warning("%s: was closed without a clean checkpoint: %s", self.path, error)
        return failed

    def _close_cleanly(self, attached: Control, m: RingMap) -> None:
        """If nobody else has the ring open: say in a checkpoint that nothing lies behind it."""
        if self._inherited or attached.has_writers():
            return
        if not files.lock_exclusive(attached.held_fd, self.path):
            return
        words = {at: attached.get(at) for at in range(L.C_HEAD, L.C_NOTIFY, 8)}
        in_order = words[L.C_HEAD] == words[L.C_RESERVED] and not attached.get32(L.C_SUSPECT)
        if attached.get(L.C_EPOCH) & L.EPOCH_MOVED:
            return
        if not in_order or attached.get(L.C_POISONED) or attached.get32(L.C_SYNCING):
            return
        if attached.get(L.C_DURABLE_POS) != words[L.C_HEAD]:
            return
        generation = self._next_generation(attached)
        write_slot(m.fd, ring_ends.slot_of(words, generation, clean=True), self.path)
        attached.put(L.C_SLOT, generation)
        files.sync_data(m.fd, self.path)

    def _run_sync(self, attached: Control, words: Snapshot) -> None:
        m = self._ring
        if m is None:
            raise self._closed_error()
        if attached.get(L.C_EPOCH) & L.EPOCH_MOVED:
            if attached is not self._ctl:
                raise _Moved
            self._make_ready(0, None)  # waits for who goes over; or that one is dead
            return
        again = durability.begin(attached)
        said = {at: words[at] for at in range(L.C_HEAD, L.C_NOTIFY, 8)}
        generation = self._next_generation(attached)
        # The checkpoint goes with what it speaks of: recovery checks every frame, and does not
        # believe one that the device got before these.
        write_slot(m.fd, ring_ends.slot_of(said, generation), self.path)
        if again:
            m.redirty(m.data_offset, m.data_offset + m.ring_bytes)
        with poisoning(attached):
            files.sync_data(m.fd, self.path)
        _core.fail_point("sync.synced")
        attached.put(L.C_SLOT, generation)
        # The checkpoint before this one is sure now.
        sure = max(attached.get(L.C_GUARD), attached.get(L.C_DURABLE_POS))
        attached.put(L.C_GUARD, min(sure, words[L.C_HEAD]))
        durability.end(attached, 0, words[L.C_HEAD], words[L.C_NEXT_SEQ] - 1)

    def _next_generation(self, attached: Control) -> int:
        """The generation of the next checkpoint."""
        generation = attached.get(L.C_SLOT) + 1
        if generation >= L.SEQ_MAX:
            raise self._nonsense_error()
        return generation

    def _nonsense_error(self) -> Corrupt:
        return Corrupt(
            f"{self.path}: its control contradicts itself; close the log in every process and "
            "open it again",
            path=self.path,
            offset=L.RING_CONTROL_OFFSET,
        )

    def _sync(
        self, word: int, goal: int, timeout: float | None, attached: Control | None = None
    ) -> None:
        while True:
            try:
                super()._sync(word, goal, timeout, attached)
                return
            except _Moved:  # the new file has everything on the device that the old one had
                if word != L.C_DURABLE_SEQ:
                    return
                attached = None

    def _confirm(self, timeout: float | None) -> None:
        """Have the newest checkpoint made sure: an append wants to drop what stands before it."""
        attached = self._live()
        goal = min(attached.get(L.C_GUARD_END), attached.get(L.C_HEAD))
        self._sync(L.C_GUARD, goal, timeout, attached)

    def _vouched_seq(self) -> int:
        m, header = self._ring, self._header
        if m is None or header is None:
            raise self._closed_error()
        hint = control.old_words(self._place, header.uuid)
        if hint is not None:
            return hint[L.C_DURABLE_SEQ]
        slots = read_slots(m.fd, header, self.path)
        if slots and not slots[0].clean:
            slots = slots[1:] or slots
        return slots[0].last_seq if slots else 0

    def _take_hold(self, seq: int) -> Hold | None:
        """Have writers wait for a reader that stands at ``seq``; None where they never would."""
        self._head()  # opens the log anew in a child
        if self.settings.when_full == "drop":
            raise Usage(
                f"{self.path}: the ring drops its oldest events even if a reader wants them; "
                "configure(when_full='block') makes writers wait"
            )
        while True:
            attached = self._live()
            if not attached.writable:
                raise Usage(f"{self.path}: a reader that may not write cannot have writers wait")
            with attached.locked():  # under it writers forget dead readers, and move the tail
                if attached is self._ctl and self._leaving is not attached:
                    hold = self._new_hold(attached, self._position_of(max(seq, self._oldest_seq())))
                    self._holds.add(hold)
                    return hold
            time.sleep(0.001)  # the ring is about to be another file

    def _new_hold(self, attached: Control, position: int) -> Hold:
        """Under the write lock: have writers wait for a reader that stands there."""
        fd = files.open_file(self._file, write=True)
        try:
            slot = next(
                (i for i in range(L.HOLDS_MAX) if _core.try_lock_byte(fd, L.HOLD_BYTE + i)), None
            )
        except OSError:
            files.close(fd)
            raise
        if slot is None:
            files.close(fd)
            raise Busy(f"{self.path}: {L.HOLDS_MAX} readers hold the ring already")
        hold = Hold(attached, fd, slot)
        attached.put(L.C_HOLDS + slot * L.HOLD_BYTES, position)
        return hold
