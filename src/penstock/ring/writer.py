"""RingWriter: what an append to a ring needs beyond itself, under the write lock.

Repair of what a dead writer left, room in front of the head, and copies of settings and producers
before they are overwritten. It never drops what a reader holds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from penstock import _core
from penstock import layout as L
from penstock._core import Control, Given, RingMap
from penstock.errors import Busy, Corrupt, Full, TooLarge, Usage
from penstock.handle.producers import Table
from penstock.ring import ending as ring_ends
from penstock.ring.ending import WHEN_FULL
from penstock.ring.handle import RingHandle
from penstock.segments.load import Private
from penstock.settings import Settings
from penstock.system.messages import logger

_T = TypeVar("_T")

OVERWRITE_PATIENCE = 10.0  # seconds that a reader waits for a writer amid an append


class RingWriter(RingHandle):
    """Makes a ring ready for appends, and keeps what it says of itself."""

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
        due, anew, reserve = self._copy_due(attached, m, nbytes) if nbytes else (False, False, 0)
        if not due:
            need = head + left * wraps + nbytes + reserve - size
            return self._pass_damage(attached, m, min(need, head))
        frames = self._state_frames(attached, m)
        if not frames:
            attached.put(L.C_STATE_POS, 0)
            return 0
        wanted = sum(_core.frame_bytes(len(body)) for _, body in frames)
        # Not over the copy before this one: with much to skip, there is one here and one there.
        fits = head + left + wanted - attached.get(L.C_STATE_POS) <= size
        anew = anew or (wraps and fits)
        start = head + left if anew or wanted > left else head
        code = self._pass_damage(attached, m, start + wanted - size)
        return code or self._copy_state(attached, m, frames, anew)

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

    def _pass_damage(self, attached: Control, m: RingMap, need: int) -> int:
        """Under the write lock: if a damaged frame is in the way of the tail, move past it.

        Returns whether that may be, and why not, as ``_may_drop`` does.
        """
        tail = attached.get(L.C_TAIL)
        if need <= tail:
            return 0
        passed, nbytes = m.skip_damage(tail, need, attached.get(L.C_HEAD))
        if not nbytes:
            return 0
        code = self._may_drop(attached, passed)
        if code:
            return code
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
        return 0

    def _room(self) -> int:
        return self._ring.append_max if self._ring is not None else 0

    def _too_large(self, nbytes: int, most: int) -> TooLarge:
        return TooLarge(
            f"{self.path}: {nbytes} bytes do not fit: an append takes at most {most}, half of the "
            "ring; split the batch, or resize() the ring"
        )

    def _full_error(self) -> Full:
        return Full(
            f"{self.path}: the ring is full, and what would be overwritten has not been read yet "
            f"({self._who_holds()}); nothing was written: try again when a reader has moved on"
        )

    def _who_holds(self) -> str:
        """How many readers hold the ring, and from where on."""
        attached = self._live()
        words = range(L.C_HOLDS, L.C_HOLDS + L.HOLDS_MAX * L.HOLD_BYTES, L.HOLD_BYTES)
        held = [at for at in map(attached.get, words) if at]
        if not held:
            return "no reader with hold=True is there"
        many = "1 reader holds it" if len(held) == 1 else f"{len(held)} readers hold it"
        return f"{many}, the slowest from seq {self._seq_at(min(held))} on"

    def _roll_for(self, nbytes: int) -> bool:
        return False

    def _roll_now(self) -> int:
        self._check_writable()
        raise Usage(f"{self.path}: a ring has no segments, so there is nothing to roll")

    def _ask_keeper(self) -> None:
        """A ring has all its blocks from the start, and nothing is ever sealed."""

    def _give_back(self) -> None:
        """A ring has no more blocks than it was made with."""

    def _load_apart(self, first: Given) -> Private:
        raise TooLarge(
            f"{self.path}: a ring takes what fits half of it at once, {self._room()} bytes; "
            "append less at a time, or resize() the ring"
        )

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
                raise Busy(f"{self.path}: a writer died or was stopped during an append; try again")
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

    def _append_settings(self, body: bytes, when_full: int | None = None) -> None:
        """Append settings; what writers obey changes with them, under the same lock."""
        self._check_writable()
        settings = Settings.from_json(body, self.path)
        self._head()  # opens the log anew in a child
        self._make_ready(0, None)  # so that only room can be missing
        super()._append_settings(body, WHEN_FULL[settings.when_full])
        self._live().wake_all()

    def _ask_producers(self, question: Callable[[Table], _T]) -> tuple[_T, int]:
        self._check_writable()
        self._head()  # opens the log anew in a child
        while True:
            attached = self._live()
            with self._guard:
                self._producers.learn(self._produced_since(self._producers.position))
                tail, newest = attached.get(L.C_TAIL), attached.get(L.C_PRODUCER_POS)
                table = self._producers.up_to(self._frame_at, newest, tail)
                if table is not None:
                    return question(table), newest
            if newest >= attached.get(L.C_TAIL) and attached is self._ctl:
                if attached.get(L.C_PRODUCER_POS) == newest:
                    raise Corrupt(f"{self.path}: its producers cannot be read", path=self.path)
            else:
                self._make_ready(0, None)  # a lap is just beginning; or who was at it is dead
