"""RingLog: a log in one file, which overwrites its oldest events.

What an append, a read or a sync needs of the file is done here, under the lock that the caller
says; the rest of a log is the same for every kind.
"""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from penstock import _core, control, durability, files
from penstock import layout as L
from penstock._core import Control, Hold, RingMap
from penstock.control import Words
from penstock.durability import Snapshot, poisoning
from penstock.errors import (
    AlreadyExists,
    Busy,
    Corrupt,
    Full,
    Io,
    NotFound,
    PenstockError,
    TooLarge,
    Usage,
)
from penstock.load import Parts, Private
from penstock.log import Log
from penstock.producers import Table
from penstock.repair import Plan
from penstock.report import Report
from penstock.ring import check as ring_check
from penstock.ring import ends as ring_ends
from penstock.ring import mend as ring_mend
from penstock.ring.ends import WHEN_FULL, Ends
from penstock.ring.file import (
    Header,
    Slot,
    check_shape,
    map_ring,
    place_of,
    read_slots,
    sweep,
    write_slot,
)
from penstock.ring.producers import Follower
from penstock.ring.rewrite import Source, name_copy, write_copy
from penstock.settings import Options, Settings
from penstock.stats import Ring, Stock
from penstock.verify import Progress

_T = TypeVar("_T")

logger = logging.getLogger("penstock")

RESIZED = ".resized"  # how the name ends of the file that a resize is making
OPEN_ATTEMPTS = 100
OVERWRITE_PATIENCE = 10.0  # seconds that a reader waits for a writer amid an append
BACKUP_ATTEMPTS = 3


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


class RingLog(Log):
    """A log in one file of fixed size."""

    _static: Ends | None
    _loads_apart = False

    def __init__(self, path: str, options: Options) -> None:
        self._header: Header | None = None
        self._settings_seen: tuple[tuple[int, int], Settings] | None = None
        self._producers = Follower()
        self._holds: weakref.WeakSet[Hold] = weakref.WeakSet()
        self._leaving: Control | None = None  # what a resize, under way in this handle, goes from
        self._is_ring = True
        super().__init__(path, place_of(path), options, None)

    def _open_held(self) -> int:
        return files.open_file(self.path, write=self._writable)

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
        m, header = map_ring(self.path, write=self._writable)
        if not files.same_file(held_fd, self.path) or not files.same_file(m.fd, self.path):
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
        self._header = header
        self._settings_seen = None
        self._producers = Follower()

    def _first_open(self, held_fd: int, new: Settings | None) -> None:
        if not files.same_file(held_fd, self.path):
            raise _Replaced
        files.unlink(self.path + RESIZED)
        if os.fstat(held_fd).st_nlink > 1:
            sweep(self.path)
        m, header = map_ring(self.path, write=True)
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
            ring_ends.clear_rest(ends, None, due=due)
            if not trusted:
                for start, end in ring_ends.pieces(ends):
                    m.redirty(start, end)
            if not trusted or (slots and slots[0].clean):
                words |= self._settle(m, ends, slots, words.get(L.C_SLOT))
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
            m, header = map_ring(self.path)
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
            if self._static is not None and not files.same_file(self._held_fd, self.path):
                if not files.exists(self.path):
                    return  # deleted; what was opened is still there
                fd = self._open_held()
                _core.own_fd(fd)
                old, self._held_fd = self._held_fd, fd
                _core.close_fd(old)
            with suppress(_Replaced):  # just now: next time
                super()._look_again()

    def _grow_static(self) -> None:
        m = self._ring
        if m is not None and (
            m.epoch() != self._static_epoch or not files.same_file(m.fd, self.path)
        ):
            self._read_frames_alone()

    def _forget(self) -> None:
        for hold in list(self._holds):
            hold.close()  # its reader will never move on
        self._header = None
        self._ring = None

    def _checkpoint(self) -> PenstockError | None:
        failed = super()._checkpoint()
        attached, m = self._ctl, self._ring
        if failed is None and self._writable and attached is not None and m is not None:
            try:
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

    def _make_ready(self, nbytes: int, timeout: float | None) -> bool:
        attached = self._live()
        seen = attached.get32(L.C_ROOM_NOTIFY)
        with attached.locked(timeout):
            leaves, m = self._leaving is attached, self._ring
            if leaves or attached is not self._ctl or m is None:
                time.sleep(0.001)  # another thread is about to attach to another file, or did
                return False
            if attached.get(L.C_EPOCH) & L.EPOCH_MOVED:  # whoever was about to is dead
                attached.put(L.C_EPOCH, attached.get(L.C_EPOCH) & ~L.EPOCH_MOVED)
            self._repair_if_needed(attached, m)
            if not ring_ends.is_span(attached.get(L.C_TAIL), attached.get(L.C_HEAD), m.ring_bytes):
                raise self._nonsense_error()
            code = self._make_room(attached, m, nbytes)
        if code == _core.RING_IS_FULL:
            self._await_room(attached, timeout, seen)
        elif code == _core.RING_IS_UNSURE:
            self._confirm(timeout)
        return code == _core.RING_IS_FULL

    def _make_room(self, attached: Control, m: RingMap, nbytes: int) -> int:
        """Under the write lock: have nothing in the way of an append but what it may drop itself.

        Returns whether that was done, and why not, as ``_copy_state`` does.
        """
        head, size = attached.get(L.C_HEAD), m.ring_bytes
        left = size - head % size
        wraps = nbytes > left
        due, anew = self._copy_due(attached, m, nbytes) if nbytes else (False, False)
        if not due:
            self._pass_damage(attached, m, head + left * wraps + nbytes - size)
            return 0
        frames = self._state_frames(attached, m)
        if not frames:
            attached.put(L.C_STATE_POS, 0)
            return 0
        wanted = sum(_core.frame_bytes(len(body)) for _, body in frames)
        # Not over the copy before this one: with much to skip, there is one here and one there.
        fits = head + left + wanted - attached.get(L.C_STATE_POS) <= size
        anew = anew or (wraps and fits)
        start = head + left if anew or wanted > left else head
        self._pass_damage(attached, m, start + wanted - size)
        return self._copy_state(attached, m, frames, anew)

    def _repair_if_needed(self, attached: Control, m: RingMap) -> None:
        """Under the write lock: bring in order what a dead holder left."""
        head = attached.get(L.C_HEAD)
        reserved = attached.get(L.C_RESERVED)
        if not attached.get32(L.C_SUSPECT) and head == reserved:
            return
        assert self._header is not None
        words = {at: attached.get(at) for at in range(L.C_HEAD, L.C_NOTIFY, 8)}
        found = ring_ends.from_control(m, self._header, words)
        _core.fail_point("repair.walked")
        if found is None:
            raise Corrupt(
                f"{self.path}: the frames before position {head} are not what control says; close "
                "the log in every process and open it again",
                path=self.path,
            )
        ring_ends.clear_rest(found, attached, due=True)
        words = {L.C_HEAD: found.head} | found.words()
        for at in (L.C_LAST_FRAME, L.C_RESERVED):  # last, as in an append: whoever comes next
            words[at] = words.pop(at)  # walks from there, and does not rely on what lies between
        for at, value in words.items():
            attached.put(at, value)
            _core.fail_point("repair.head" if at == L.C_HEAD else "repair.word")
        attached.put32(L.C_SUSPECT, 0)
        attached.add(L.C_REPAIRS)
        attached.wake_all()

    def _state_frames(self, attached: Control, m: RingMap) -> list[tuple[int, bytes]]:
        """What a copy of the ring's state is made of."""
        frames: list[tuple[int, bytes]] = []
        settings = self._read_settings(attached, still=True)
        if attached.get(L.C_SETTINGS_POS) and settings is not None:
            frames.append((L.KIND_SETTINGS, settings.to_json()))
        newest = attached.get(L.C_PRODUCER_POS)
        if newest:
            with self._guard:
                table = self._producers.up_to(self._frame_at, newest, attached.get(L.C_TAIL))
                packed = (table or Table()).pack(m.ring_bytes // L.PRODUCERS_SHARE)
            frames.append((L.KIND_PRODUCERS, packed))
        return frames

    def _pass_damage(self, attached: Control, m: RingMap, need: int) -> None:
        """Under the write lock: if a damaged frame is in the way of the tail, move past it."""
        tail = attached.get(L.C_TAIL)
        if need <= tail:
            return
        passed, nbytes = m.skip_damage(tail, need, attached.get(L.C_HEAD))
        if not nbytes:
            return
        logger.warning(
            "%s: dropped %d bytes of damaged frames, which were in the way of an append",
            self.path,
            nbytes,
        )
        attached.put(L.C_TAIL, passed)
        attached.add(L.C_LOST, nbytes)
        for word in (L.C_SETTINGS_POS, L.C_PRODUCER_POS):
            if attached.get(word) < passed:
                attached.put(word, 0)  # what it leads to is lost
        if attached.get(L.C_STATE_POS):
            attached.put(L.C_STATE_POS, max(passed, attached.get(L.C_STATE_POS)))

    def _roll_for(self, nbytes: int) -> bool:
        return False

    def _too_large(self, nbytes: int, most: int) -> TooLarge:
        return TooLarge(
            f"{self.path}: {nbytes} bytes do not fit: an append takes at most {most}, half of the "
            "ring; split the batch, or resize() the ring"
        )

    def _full_error(self) -> Full:
        return Full(
            f"{self.path}: the ring is full, and what would be overwritten has not been read yet; "
            "nothing was written: try again when a reader has moved on"
        )

    def _roll_now(self) -> int:
        self._check_writable()
        raise Usage(f"{self.path}: a ring has no segments, so there is nothing to roll")

    def _ask_keeper(self) -> None:
        """A ring has all its blocks from the start, and nothing is ever sealed."""

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

    def _live_settings(self, attached: Control) -> Settings:
        deadline = time.monotonic() + OVERWRITE_PATIENCE
        while True:
            settings = self._read_settings(attached)
            if settings is not None:
                return settings
            if attached is not self._ctl:
                attached = self._live()
            # A lap is just beginning, with a frame of its own; or who was at it is dead.
            elif self._writable:
                self._make_ready(0, None)
                with attached.locked():
                    settings = self._read_settings(attached, still=True)
                if settings is not None:
                    return settings
            elif time.monotonic() > deadline:
                raise Busy(f"{self.path}: a writer died or was stopped amid an append; try again")
            else:
                time.sleep(0.001)

    def _read_settings(self, attached: Control, *, still: bool = False) -> Settings | None:
        """The settings that control leads to; None if their frame is being overwritten.

        ``still``: under the write lock, with everything in order, it is not; then it is damaged.
        """
        at, header = attached.get(L.C_SETTINGS_POS), self._header
        if header is None:
            raise self._closed_error()
        seen = self._settings_seen
        if seen is None or seen[0] != (id(attached), at):
            data = header.settings
            frame = self._frame_at(at) if at else None
            if attached is not self._ctl:
                return None  # that was of another file
            if frame is not None and frame[0] == L.KIND_SETTINGS:
                data = frame[3]
            elif (
                at
                and not still
                and (attached.get(L.C_SETTINGS_POS) != at or attached.get(L.C_TAIL) > at)
            ):
                return None
            settings = Settings.from_json(data, self.path)
            if at and data is header.settings:
                settings = self._without_frame(attached, settings)
            seen = self._settings_seen = ((id(attached), at), settings)
        return seen[1]

    def _without_frame(self, attached: Control, began_with: Settings) -> Settings:
        """The settings, as far as they are known where the frame that has them is damaged."""
        names = {number: name for name, number in WHEN_FULL.items()}
        when_full = names.get(attached.get32(L.C_WHEN_FULL), began_with.when_full)
        logger.warning(
            "%s: the frame with its newest settings is damaged; file_mode is that of its header",
            self.path,
        )
        return replace(began_with, when_full=when_full)

    def _append_settings(self, body: bytes) -> None:
        self._check_writable()
        if Settings.from_json(body, self.path).when_full == "drop":
            self._live().put32(L.C_WHEN_FULL, L.WHEN_FULL_DROP)  # lest there be no room for this
        try:
            super()._append_settings(body)
        finally:
            self._tell_when_full()

    def _tell_when_full(self) -> None:
        """Have control say what the newest settings do with an append that finds no room."""
        attached = self._live()
        settings = self._live_settings(attached)
        with attached.locked():
            settings = self._read_settings(attached) or settings
            attached.put32(L.C_WHEN_FULL, WHEN_FULL[settings.when_full])
        attached.wake_all()

    def _ask_producers(self, question: Callable[[Table], _T]) -> tuple[_T, int]:
        self._check_writable()
        self._head()  # opens the log anew in a child
        while True:
            attached = self._live()
            with self._guard:
                tail, newest = attached.get(L.C_TAIL), attached.get(L.C_PRODUCER_POS)
                table = self._producers.up_to(self._frame_at, newest, tail)
                if table is not None:
                    return question(table), newest
            if newest >= attached.get(L.C_TAIL) and attached is self._ctl:
                if attached.get(L.C_PRODUCER_POS) == newest:
                    raise Corrupt(f"{self.path}: its producers cannot be read", path=self.path)
            else:
                self._make_ready(0, None)  # a lap is just beginning; or who was at it is dead

    def _take_hold(self, seq: int) -> Hold | None:
        """Have writers wait for a reader that stands at ``seq``; None where they never would."""
        self._head()  # opens the log anew in a child
        if self.settings.when_full == "drop":
            raise Usage(
                f"{self.path}: the ring drops its oldest events whoever reads them; "
                "configure(when_full='block') has writers wait"
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
        fd = files.open_file(self.path, write=True)
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

    def _first_seq(self) -> int:
        return self._oldest_seq()

    def _seqs(self) -> tuple[int, int]:
        first, after, _, _ = self._ring_now()
        return first, after

    def __len__(self) -> int:
        first, after, tail, head = self._ring_now()
        # A repair may have left out any number of seqs; whoever makes a list relies on this.
        return max(0, min(after - first, (head - tail) // L.FRAME_HEADER_BYTES))

    def _lowest_base(self) -> int:
        return self._oldest_seq()

    def _why_missing(self, seq: int) -> PenstockError | None:
        return None

    def _first_seq_since(self, since_ns: int) -> int:
        """By halving, if times never went back."""
        first = self._oldest_seq()
        found = self._by_time(since_ns, first, self._next_seq()) or first
        return found if found > first else 1  # the oldest frame may be damaged, and say so

    def _seq_past(self, until_ns: int, end: int) -> int:
        return self._by_time(until_ns, self._oldest_seq(), end) or end

    def _by_time(self, ns: int, low: int, high: int) -> int | None:
        """The first seq between the two of that time or later; None if halving cannot tell."""
        header = self._known_header()
        if not self._monotone() or not header.index_capacity or header.generation:
            return None
        while low < high:
            middle = (low + high) // 2
            try:
                event = self[middle]
            except NotFound:
                low = max(low, self._oldest_seq())  # overwritten meanwhile
                if middle >= low:
                    return None
                continue
            if event.time_ns >= ns:
                high = middle
            else:
                low = middle + 1
        return low

    def _cuts(self, start: int, stop: int) -> list[int]:
        return []

    def _span_bytes(self, first: int, behind: int) -> int:
        return max(0, self._position_of(behind) - self._position_of(first))

    def _span_stop(self, first: int, behind: int, nbytes: int) -> int:
        room = max(1, self._span_bytes(first, behind))
        return min(behind, first + max(1, (behind - first) * nbytes // room))

    def _rules_out(
        self, seq: int, topics: Sequence[bytes | None], since_ns: int, until_ns: int
    ) -> bool:
        return False

    def _topics(self) -> set[bytes]:
        return {event.topic.encode() for event in self.read()}

    def _room(self) -> int:
        return self._ring.append_max if self._ring is not None else 0

    def _load_apart(self, first: Any, parts: Parts) -> Private:
        raise TooLarge(
            f"{self.path}: a ring takes what fits half of it at once, {self._room()} bytes; "
            "append less at a time, or resize() the ring"
        )

    def _known_header(self) -> Header:
        header = self._header
        if header is None:
            raise self._closed_error()
        return header

    def _resize(self, nbytes: int) -> None:
        self._head()  # opens the log anew in a child
        while not self._resize_from(self._live(), nbytes):
            time.sleep(0.001)  # another thread is at it

    def _resize_from(self, attached: Control, nbytes: int) -> bool:
        header = self._known_header()
        index: int | None = header.index_capacity
        if index == header.file_bytes // L.RING_INDEX_SHARE:
            index = None  # as many as by default, for the new size
        capacity = check_shape(nbytes, index)
        header = replace(header, file_bytes=nbytes, index_capacity=capacity)
        failed: BaseException | None = None
        holds = False
        with attached.locked():
            leaves, m = self._leaving is attached, self._ring
            if leaves or attached is not self._ctl or m is None:
                return False
            self._repair_if_needed(attached, m)
            busy = Busy(
                f"{self.path}: others have the ring open; resize it when they have closed it"
            )
            if attached.has_writers():
                raise busy
            epoch = attached.get(L.C_EPOCH) & ~L.EPOCH_MOVED
            self._leaving = attached  # other threads wait, whatever comes
            attached.put(L.C_EPOCH, epoch | L.EPOCH_MOVED)
            try:
                if not files.lock_exclusive(attached.held_fd, self.path):
                    raise busy
                self._move(attached, header)
            except BaseException as error:
                failed = error
                holds = self._hold_on(attached, epoch)
            attached.wake_all()
        try:
            if not holds:
                self._go_over(attached, failed)
        finally:
            self._leaving = None
        if failed is not None:
            raise failed
        return True

    def _hold_on(self, attached: Control, epoch: int) -> bool:
        """Go on as before; False if that cannot be: trying to be alone may give up the hold.

        Whoever came meanwhile, and was alone, has made control anew or closed the ring cleanly.
        """
        files.lock_shared(attached.held_fd, self.path, None)
        if attached.get(L.C_EPOCH) != epoch | L.EPOCH_MOVED:
            return False
        slots = read_slots(attached.fd, self._header, self.path) if self._header else []
        if slots and slots[0].clean:
            return False
        attached.put(L.C_EPOCH, epoch)
        return True

    def _go_over(self, before: Control, failed: BaseException | None) -> None:
        """Attach to the ring anew. Other threads may still look at the control that this leaves."""
        try:
            if failed is not None:
                before.close()  # its token may be given to another by now
            self._attach(None)
        except BaseException:
            self._release()
            raise

    def _move(self, attached: Control, header: Header) -> None:
        """Under LOCK_EX and the write lock: put a copy of another shape in the file's place."""
        settings = self._read_settings(attached, still=True)
        assert settings is not None
        temporary = self.path + RESIZED
        files.unlink(temporary)
        header = replace(header, settings=settings.to_json(), created_ns=_core.now_ns())
        write_copy(self._source(), temporary, header, settings.file_mode)
        name_copy(temporary, self.path, replace=True)
        attached.put(L.C_DURABLE_SEQ, attached.get(L.C_NEXT_SEQ) - 1)
        attached.put(L.C_DURABLE_POS, attached.get(L.C_HEAD))

    def _source(self) -> Source:
        """Everything that is in the ring now."""
        attached, static = self._ctl, self._static
        if attached is not None:
            words = {at: attached.get(at) for at in range(L.C_HEAD, L.C_NOTIFY, 8)}
        elif static is not None:
            words = static.words()
        else:
            raise self._closed_error()
        newest = words[L.C_PRODUCER_POS]
        return Source(
            log=self,
            tail=words[L.C_TAIL],
            head=words[L.C_HEAD],
            next_seq=words[L.C_NEXT_SEQ],
            last_append_ns=words[L.C_LAST_APPEND_NS],
            producers=Follower().up_to(self._frame_at, newest, words[L.C_TAIL]) if newest else None,
        )

    def _backup(self, target: str, progress: Progress | None) -> int:
        if files.exists(target):
            raise AlreadyExists(f"{target}: something is there already; give another path")
        self._head()
        header = self._known_header()
        settings = self.settings
        header = replace(header, settings=settings.to_json(), created_ns=_core.now_ns())
        partial = f"{target}.partial-{_core.now_ns()}"
        for _ in range(BACKUP_ATTEMPTS):
            source = self._source()
            behind = write_copy(source, partial, header, settings.file_mode)
            if behind is not None:
                break
        else:
            with self._live().locked():  # writers lap whoever copies; so they wait
                behind = write_copy(self._source(), partial, header, settings.file_mode)
        assert behind is not None
        name_copy(partial, target, replace=False)
        if progress is not None:
            progress(header.file_bytes, header.file_bytes)
        return behind - 1

    def _take_stock(self) -> Stock:
        self._head()
        settings = self.settings
        m = None
        while m is None or m is not self._ring:  # another thread may resize it meanwhile
            m, header, attached = self._ring, self._known_header(), self._ctl
            first, after, tail, head = self._ring_now()
        reserved, lost, holds = head, 0, 0
        if attached is not None:
            reserved, lost = max(head, attached.get(L.C_RESERVED)), attached.get(L.C_LOST)
            words = range(L.C_HOLDS, L.C_HOLDS + L.HOLDS_MAX * L.HOLD_BYTES, L.HOLD_BYTES)
            holds = sum(attached.get(at) != 0 for at in words)
        return Stock(
            uuid=header.uuid,
            first_seq=first,
            next_seq=after,
            segments=0,
            disk_bytes=os.stat(self.path).st_blocks * 512,
            ring=Ring(
                file_bytes=header.file_bytes,
                ring_offset=header.data_offset,
                ring_bytes=header.ring_bytes,
                index_capacity=header.index_capacity,
                format_version=L.RING_VERSION,
                generation=header.generation,
                tail=tail,
                head=head,
                reserved=reserved,
                used_bytes=head - tail,
                lost_bytes=lost,
                when_full=settings.when_full,
                holds=holds,
                monotone=self._monotone(),
            ),
        )

    def _verify(self, progress: Progress | None) -> Report:
        return ring_check.verify(self.path, progress)

    def _repair(self, to: str | os.PathLike[str] | None, progress: Progress | None) -> Plan:
        target = files.path_text(to) if to is not None else None
        return ring_mend.repair(self.path, target, False, progress)
