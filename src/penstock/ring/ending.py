"""Find both ends of a ring, and recover it: at first open, and when a writer died.

Frames are the only truth. Their ends are found from these sources, the best first:

1. Control of this boot. It is right except for the last append, whose bytes end before
   ``reserved``.
2. A checkpoint of a clean close, after which nothing was written, if its last frame confirms it.
3. Anchors: both checkpoints, and control of another boot or file. Each names a frame. If that
   frame is still there, it was published, and the frames around it are found by walking; unless it
   is where a later lap ended early and it was not overwritten yet.
4. Every valid frame in the file: the run of them that has the highest seq.

When the machine loses power, any page may be as it was at the last sync. Of two checkpoints the
newer one may be of a sync that never returned, so that frames are lost before the one that it
names; the older one is from a sync that did. So the walk begins at the older one, unless its frame
was dropped already when the newer one was written. What is missing between the two was never
synced, as long as the tail is not between them. Appends ensure that: one that would move it there
first syncs, which writes another checkpoint and makes the one before it safe (``C_GUARD``).
Recovery overwrites the checkpoint that did not lead to the end, so that the other one is left if
the power fails again.

A control of another boot is only a hint, and a checkpoint has priority over it, unless all frames
that control names are there and those of the checkpoints were dropped by then.

Then everything outside the frames that were found is zeroed: remains of lost appends would
otherwise follow the next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock import _core
from penstock import layout as L
from penstock._core import Control, RingMap, Walked
from penstock.handle.control import Words
from penstock.handle.durability import Snapshot, poisoning
from penstock.ring.file import Header, Slot, read_slots
from penstock.settings import Settings, WhenFull
from penstock.system import files
from penstock.system.messages import logger

WHEN_FULL: dict[WhenFull, int] = {
    "drop": L.WHEN_FULL_DROP,
    "block": L.WHEN_FULL_BLOCK,
    "error": L.WHEN_FULL_ERROR,
}


Run = tuple[int, int, int, int, bool]
Wrap = tuple[int, int, int]


@dataclass(slots=True)
class Ends:
    """A ring, and the bounds of its frames."""

    map: RingMap
    header: Header
    tail: int
    walk: Walked  # the walk to the end; its offsets are positions
    stop: int  # where bytes of an unfinished append end at the latest
    anchor: Slot | None = None  # the checkpoint that led here, if any
    by_control: bool = False
    state: int = 0  # frames from there on contain settings and producers; 0: any frames

    @property
    def next_seq(self) -> int:
        """Seq of the event that will be appended next."""
        return int(self.walk.next_seq)

    @property
    def monotone(self) -> bool:
        """Whether event times never went back in the ring."""
        return bool(self.walk.monotone)

    @property
    def head(self) -> int:
        """The published end."""
        return int(self.walk.offset)

    @property
    def settings(self) -> Settings:
        """The current settings: the newest settings frame's, else the header's."""
        found = self.map.frame_at(self.walk.settings_offset, self.tail, self.head)
        data = found[3] if found is not None else self.header.settings
        return Settings.from_json(data, self.map.path)

    def words(self) -> Words:
        """The words of control for this state."""
        w = self.walk
        return {
            L.C_TAIL: self.tail,
            L.C_NEXT_SEQ: w.next_seq,
            L.C_LAST_APPEND_NS: w.last_append_ns,
            L.C_LAST_FRAME: w.last_frame,
            L.C_ALLOC_END: self.header.file_bytes,
            L.C_EVENT_MAX_NS: w.event_max_ns,
            L.C_FLAGS: L.CONTROL_FLAG_MONOTONE if w.monotone else 0,
            L.C_SETTINGS_POS: w.settings_offset,
            L.C_PRODUCER_POS: w.producer_offset,
            L.C_STATE_POS: self._state_pos(),
            L.C_WHEN_FULL: WHEN_FULL[self.settings.when_full],
            L.C_HEAD: self.head,
            L.C_RESERVED: self.head,
        }

    def _state_pos(self) -> int:
        known = self.walk.settings_offset or self.walk.producer_offset
        return max(self.state, self.tail) if known else 0

    def slot(self, generation: int, *, clean: bool = False) -> Slot:
        """The checkpoint for this state."""
        return slot_of(self.words(), generation, clean=clean)


def slot_of(words: Words | Snapshot, generation: int, *, clean: bool = False) -> Slot:
    """The checkpoint for the state that ``words`` describe."""
    return Slot(
        generation=generation,
        head=words[L.C_HEAD],
        last_frame=words[L.C_LAST_FRAME],
        last_seq=words[L.C_NEXT_SEQ] - 1,
        last_append_ns=words[L.C_LAST_APPEND_NS],
        settings_position=words[L.C_SETTINGS_POS],
        tail=words[L.C_TAIL],
        event_max_ns=words[L.C_EVENT_MAX_NS],
        producer_position=words[L.C_PRODUCER_POS],
        monotone=bool(words[L.C_FLAGS] & L.CONTROL_FLAG_MONOTONE),
        clean=clean,
    )


def find(m: RingMap, header: Header, hint: Words | None, foreign: Words | None) -> Ends:
    """Both ends of a ring without a writer.

    ``hint`` are the words of a control of this boot, ``foreign`` those of one that is not.
    """
    slots = read_slots(m.fd, header, m.path)
    clean = slots[0] if slots and slots[0].clean and _is_credible(m, slots[0]) else None
    found = from_control(m, header, _corrected(hint, clean)) if hint is not None else None
    if found is not None:
        return found
    if clean is not None:
        return _at(m, header, clean)
    witness = _as_slot(foreign or hint, header)
    runs, wrap = m.runs()
    first = next((r for r in runs if r[0] == 0), None)

    def leads(slot: Slot) -> bool:
        return _is_intact(m, slot) and not _is_left_over(m, slot, wrap, first)

    anchors = [slot for slot in slots if leads(slot)]
    hinted = witness if witness is not None and leads(witness) else None
    found = _from_anchors(m, header, anchors, hinted)
    return found or _from_runs(m, header, slots, witness, runs)


def _at(m: RingMap, header: Header, slot: Slot) -> Ends:
    walk = Walked(
        offset=slot.head,
        next_seq=slot.last_seq + 1,
        last_append_ns=slot.last_append_ns,
        last_frame=slot.last_frame,
        event_max_ns=slot.event_max_ns,
        settings_offset=slot.settings_position,
        producer_offset=slot.producer_position,
        monotone=slot.monotone,
    )
    return Ends(m, header, slot.tail, walk, slot.tail + header.ring_bytes, anchor=slot)


def from_control(m: RingMap, header: Header, words: Words) -> Ends | None:
    """The ends from control of this boot; None if the frames do not confirm it.

    A writer may have died anywhere in an append. Its earlier appends end with the last frame that
    control names, and the bytes of this one end before ``reserved``.
    """
    tail, head = words[L.C_TAIL], words[L.C_HEAD]
    room = header.ring_bytes
    # One that had not moved the tail yet has written nothing.
    reserved = min(words[L.C_RESERVED], tail + room)
    if not is_span(tail, head, room) or head > reserved or reserved % L.ALIGN:
        return None
    last = words[L.C_LAST_FRAME]
    if tail <= last < head:
        start = Walked(offset=last, next_seq=0)
    elif _past_slack(tail, room) >= head:
        start = Walked(
            offset=head,
            next_seq=words[L.C_NEXT_SEQ],
            last_append_ns=words[L.C_LAST_APPEND_NS],
            last_frame=last,
        )
    else:  # the unfinished append dropped everything before it
        start = Walked(offset=tail, next_seq=0)
    start.event_max_ns = words[L.C_EVENT_MAX_NS]
    start.monotone = bool(words[L.C_FLAGS] & L.CONTROL_FLAG_MONOTONE)
    start.settings_offset = words[L.C_SETTINGS_POS] if words[L.C_SETTINGS_POS] >= tail else 0
    start.producer_offset = words[L.C_PRODUCER_POS] if words[L.C_PRODUCER_POS] >= tail else 0
    walk, _, _ = m.walk_ring(reserved, resume=start)
    if walk.offset < head or not 0 < walk.next_seq <= L.SEQ_MAX:
        return None
    return Ends(m, header, tail, walk, reserved, by_control=True, state=words[L.C_STATE_POS])


def _corrected(words: Words, clean: Slot | None) -> Words:
    """The words of control, replaced by the checkpoint's if both are from the same clean close.

    The checkpoint has a checksum, and these words have none.
    """
    if clean is None or not words[L.C_HEAD] == words[L.C_RESERVED] == clean.head:
        return words
    return words | {
        L.C_NEXT_SEQ: clean.last_seq + 1,
        L.C_LAST_APPEND_NS: clean.last_append_ns,
        L.C_LAST_FRAME: clean.last_frame,
        L.C_EVENT_MAX_NS: clean.event_max_ns,
        L.C_FLAGS: L.CONTROL_FLAG_MONOTONE if clean.monotone else 0,
        L.C_SETTINGS_POS: clean.settings_position,
        L.C_PRODUCER_POS: clean.producer_position,
        L.C_TAIL: clean.tail,
    }


def is_span(tail: int, head: int, room: int) -> bool:
    """Whether a ring's frames can be between two positions, which are not trusted."""
    return room <= tail <= head <= tail + room and head < 1 << 62 and (tail | head) % L.ALIGN == 0


def _past_slack(at: int, room: int) -> int:
    """The position itself or, if no header fits there, the start of the next lap."""
    left = room - at % room
    return at if left >= L.FRAME_HEADER_BYTES else at + left


def _as_slot(words: Words | None, header: Header) -> Slot | None:
    """An untrusted control as a checkpoint; None if it makes no sense."""
    if words is None:
        return None
    slot = slot_of(words, 0)
    fits = is_span(slot.tail, slot.head, header.ring_bytes)
    return slot if fits and 0 <= slot.last_seq < L.SEQ_MAX else None


def _is_intact(m: RingMap, slot: Slot) -> bool:
    """Whether the last frame that a checkpoint names is still there."""
    found = m.frame_at(slot.last_frame, slot.tail, slot.head)
    if found is None:
        return False
    walk, _, _ = m.walk_ring(
        slot.head,
        resume=Walked(offset=slot.last_frame, next_seq=0, last_append_ns=slot.last_append_ns),
    )
    return bool(walk.offset == slot.head and walk.next_seq == slot.last_seq + 1)


def _is_credible(m: RingMap, slot: Slot) -> bool:
    """Whether no valid frame contradicts the checkpoint of a clean close.

    If the last one is damaged, readers must report it, and it must not be dropped.
    """
    if _past_slack(slot.tail, m.ring_bytes) >= slot.head:
        return True  # there is no frame
    if m.frame_at(slot.last_frame, slot.tail, slot.head) is None:
        return slot.tail <= slot.last_frame
    return _is_intact(m, slot)


def _is_left_over(m: RingMap, slot: Slot, wrap: Wrap | None, first: Run | None) -> bool:
    """Whether the last frame of ``slot`` is only left because later laps ended before it.

    The wrap frame of such a lap shows it; or, if that is overwritten, the frame that begins the
    newest lap, if there is more between the two than the end of one lap.
    """
    room = m.ring_bytes
    if wrap is not None:
        at, seq, append_ns = wrap
        if (seq, append_ns) > (slot.last_seq + 1, slot.last_append_ns) and (
            slot.last_frame % room > at
        ):
            return True
    if first is None:
        return False
    end = (slot.last_frame // room + 1) * room
    walk, _, _ = m.walk_ring(end, resume=Walked(offset=slot.last_frame, next_seq=0))
    return bool(_past_slack(walk.offset, room) >= end and first[2] > walk.next_seq)


def _is_whole(m: RingMap, slot: Slot) -> bool:
    """Whether every frame that a checkpoint names is there."""
    walk, _, _ = m.walk_ring(slot.head, resume=Walked(offset=slot.tail, next_seq=0))
    return bool(walk.offset == slot.head and walk.next_seq == slot.last_seq + 1)


def _from_anchors(
    m: RingMap, header: Header, slots: list[Slot], witness: Slot | None
) -> Ends | None:
    """The ends by walking from an anchor; None if there is none."""
    if witness is not None:
        dropped = all(s.last_frame < witness.tail for s in slots)
        if not slots or (dropped and _is_whole(m, witness)):
            return _around(m, header, witness, None)
    if not slots:
        return None
    anchor = slots[-1] if slots[-1].last_frame >= slots[0].tail else slots[0]
    return _around(m, header, anchor, anchor)


def _around(m: RingMap, header: Header, at: Slot, anchor: Slot | None) -> Ends | None:
    """The ends of the run of frames that contains the last one of ``at``."""
    room, frame = header.ring_bytes, at.last_frame
    walk, _, _ = m.walk_ring(frame + room, resume=Walked(offset=frame, next_seq=0))
    floor = max(room, walk.offset - room)
    tail, _ = m.walk_back(frame, floor, at.head)
    return _run(m, header, tail, tail + room, anchor)


def _run(m: RingMap, header: Header, tail: int, limit: int, anchor: Slot | None) -> Ends | None:
    """The ends of the run of frames that begins at ``tail``; None if there is no complete batch."""
    walk, _, _ = m.walk_ring(limit, resume=Walked(offset=tail, next_seq=0))
    if not walk.next_seq:
        return None
    return Ends(m, header, tail, walk, tail + header.ring_bytes, anchor)


def _from_runs(
    m: RingMap, header: Header, slots: list[Slot], witness: Slot | None, runs: list[Run]
) -> Ends:
    """The ends of the newest run of valid frames; of an empty ring if there is none.

    Its lap is no longer known, so it becomes one after all laps that are named anywhere.
    """
    room = header.ring_bytes
    said = slots if witness is None else [*slots, witness]
    lap = max([room, *(-(-s.head // room) * room for s in said)])
    begun: list[tuple[int, int, int]] = []  # seq after it, its length, position of its start
    first = next((r for r in runs if r[0] == 0), None)
    for start, end, _, next_seq, to_the_end in runs:
        begun.append((next_seq, end - start, lap + start))
        if to_the_end and first is not None and first[2] == next_seq:
            begun.append((first[3], room - start + first[1], lap + start))
    for next_seq, length, start in sorted(begun, reverse=True):
        found = _run(m, header, start, start + length, None)
        if found is not None and found.next_seq == next_seq:
            return found
    walk = Walked(
        offset=lap,
        next_seq=max([header.base_seq, *(s.last_seq + 1 for s in slots)]),
        last_append_ns=max([header.prior_append_ns, *(s.last_append_ns for s in slots)]),
        last_frame=0,
        event_max_ns=header.prior_event_max_ns,
        settings_offset=0,
        producer_offset=0,
        monotone=header.monotone,
    )
    return Ends(m, header, lap, walk, lap + room)


def clear_rest(ends: Ends, live: Control | None, *, due: bool) -> None:
    """Zero the bytes after the head, and sync.

    The caller holds LOCK_EX or the write lock. If a repair is ``due``, even zeros are synced:
    the process that wrote them may have died before its sync.
    """
    dirty = ends.map.zero_from(ends.head, ends.stop)
    if dirty:
        _core.fail_point("repair.zeroed")
        logger.info(
            "%s: removed an unfinished append after seq %d",
            ends.map.path,
            ends.walk.next_seq - 1,
        )
    if dirty or due:
        with poisoning(live):
            files.sync_data(ends.map.fd, ends.map.path)


def pieces(ends: Ends) -> Iterator[tuple[int, int]]:
    """The ranges of the file that contain the frames, as offsets."""
    start, room, at = ends.tail, ends.header.ring_bytes, ends.header.data_offset
    while start < ends.head:
        n = min(room - start % room, ends.head - start)
        yield at + start % room, at + start % room + n
        start += n
