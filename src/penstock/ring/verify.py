"""Verify a ring: check every byte that matters, and report what is wrong.

The file is read into private memory, as large as the file, and never mapped; nothing is changed.
Both ends are found as by an opener, then every frame between them is checked. Beside writers, a
part that was overwritten before it could be read is left out: it is not damage.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

from penstock import _core
from penstock import layout as L
from penstock._core import RingMap, Walked
from penstock.errors import Corrupt, UnsupportedVersion, Usage
from penstock.handle import control
from penstock.handle.control import Peek, Words
from penstock.headers import COPIES, Rot, is_good, weigh
from penstock.report import Problem, Progress, Report, Severity, many
from penstock.ring import ending as ring_ends
from penstock.ring.ending import Ends
from penstock.ring.file import ROOM_MIN, Header, Slot, as_map, place_of, read_slots
from penstock.ring.producers import Follower
from penstock.segments.check.frames import FileSource
from penstock.segments.check.judge import LOST_SETTINGS, REPAIR
from penstock.settings import Settings
from penstock.system import files
from penstock.tunables import RING_INDEX_SHARE

SLOTS = (L.SLOT_A_OFFSET, L.SLOT_B_OFFSET)
ATTEMPTS = 3
LOOKS = 20
_STEP = 1 << 20

Hole = tuple[int, str, int, bool, bool, int | None, int | None]  # as `check_ring` returns it


@dataclass(slots=True)
class Findings:
    """All that was found in a ring's file; the input of repair."""

    path: str
    live: bool = False  # a writer may be appending
    header: Header | None = None  # as read, or as guessed
    guessed: bool = False
    map: RingMap | None = None  # the private copy
    start: int = 0  # frames were searched from here
    head: int = 0  # to here
    next_seq: int = 1  # the seq of the next append
    walk: Walked = field(default_factory=Walked)  # over the valid frames
    frames: int = 0
    bytes: int = 0
    holes: list[Hole] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def damaged(self) -> bool:
        """Whether a problem is damage."""
        return any(p.severity == "damage" for p in self.problems)

    @property
    def count(self) -> int:
        """The number of valid events."""
        return self.walk.count

    def say(
        self,
        kind: str,
        severity: Severity,
        message: str,
        *,
        offset: int | None = None,
        last_seq: int | None = None,
        lost: tuple[int, int] | None = None,
    ) -> None:
        """Note a problem."""
        self.problems.append(Problem(kind, severity, self.path, message, offset, last_seq, lost))


def verify(path: str, progress: Progress | None) -> Report:
    """Check the ring at ``path``."""
    found = survey(path, progress)
    some = found.count > 0
    return Report(
        path=path,
        segments=0,
        events=found.count,
        frames=found.frames,
        bytes=found.bytes,
        first_seq=found.walk.first_seq if some else None,
        last_seq=found.walk.last_seq if some else None,
        live=found.live,
        problems=tuple(found.problems),
        ring=True,
    )


def survey(path: str, progress: Progress | None = None) -> Findings:
    """Check the file; check again if a writer came meanwhile."""
    for _ in range(ATTEMPTS):
        look = _Look(path, progress)
        try:
            found = look.run()
        finally:
            look.source.close()
        if found.live or not found.damaged:
            break
        now = control.peek(place_of(path))
        if now is None or not now.live:
            break
    if progress is not None:
        progress(look.source.size, look.source.size)
    return found


class _Look:
    """One pass over a ring."""

    def __init__(self, path: str, progress: Progress | None) -> None:
        self.path = path
        self.progress = progress
        self.done = 0
        self.found = Findings(path)
        self.rots: list[Rot] = []
        self.source = FileSource(path, self._passed)

    def _passed(self, nbytes: int) -> None:
        self.done += nbytes
        if self.progress is not None and self.done % (8 * _STEP) < nbytes:
            self.progress(min(self.done, self.source.size), self.source.size)

    def run(self) -> Findings:
        """Read the file, find its ends, and check what is between them."""
        found = self.found
        header = self._header()
        if header is None:
            return found
        found.header = header
        peek = control.peek(place_of(self.path))
        if peek is not None and not found.guessed and peek.uuid != header.uuid:
            peek = None
        self._judge_size(header)
        bounds = None
        fd = files.private_file(header.file_bytes, self.path)
        try:
            self._copy(fd, 0, header.data_offset)
            if peek is not None and peek.live:
                bounds = self._copy_live(fd, header, peek)
            if bounds is None:
                self._copy(fd, header.data_offset, header.file_bytes)
        except BaseException:
            files.close(fd)
            raise
        m = found.map = as_map(fd, self.path, header, write=True)
        index = m.bytes_at(L.RING_INDEX_OFFSET, header.index_capacity * L.RING_SLOT_BYTES)
        slots = read_slots(m.fd, header, self.path)
        if bounds is not None:
            found.live = True
            found.start, found.head, found.next_seq = bounds
        else:
            ends = self._ends(m, header, slots, peek)
        self._check(m, header)
        self._judge_headers(m, header)
        self._judge_slots(m, header, slots)
        if bounds is None and not found.holes:
            self._compare(ends, slots)
        self._judge_state(m, header)
        self._judge_index(m, index)
        self._judge_unreadable()
        return found

    def _header(self) -> Header | None:
        """The header, or one made from the rest of the file."""
        found = self.found
        page = self.source.read(0, L.PAGE)
        copies = [self.source.read(at, L.COPY_BYTES) for at in COPIES]
        try:
            header, self.rots = weigh(Header.unpack, L.RING_COPY_VERSION, page, copies, self.path)
            return header
        except UnsupportedVersion as error:
            if is_good(L.HEADER, page):
                found.say("version", "damage", f"{self._bare(error)}; use a newer Penstock")
                return None
            why = self._bare(error)
        except Corrupt as error:
            why = self._bare(error)
        marked = page[: len(L.RING_MAGIC)] == L.RING_MAGIC or self._has_marks()
        guessed = guess_header(self.source)
        if guessed is None and not marked and not self.source.unreadable:
            raise Usage(f"{self.path}: is not a log: neither a directory nor a ring")
        found.guessed = True
        message = "it cannot be rebuilt; restore it from a copy"
        if guessed is not None:
            message = (
                f"repair makes one from its frames; {LOST_SETTINGS} are then those of a new ring"
            )
        found.say("header", "damage", f"its header cannot be read ({why}); {message}", offset=0)
        return guessed

    def _bare(self, error: Exception) -> str:
        return str(error).removeprefix(f"{self.path}: ")

    def _has_marks(self) -> bool:
        """Whether a checkpoint or control is where a ring has them."""
        marks = [(at, L.SLOT_MAGIC) for at in SLOTS] + [(L.RING_CONTROL_OFFSET, L.CONTROL_MAGIC)]
        return any(self.source.read(at, len(mark)) == mark for at, mark in marks)

    def _copy(self, fd: int, start: int, stop: int) -> None:
        while start < stop:
            data = self.source.read(start, min(_STEP, stop - start))
            if not data:
                return
            files.write_at(fd, data, start, self.path)
            start += len(data)

    def _copy_live(self, fd: int, header: Header, peek: Peek) -> tuple[int, int, int] | None:
        """Copy the frames that are published now; returns their bounds, and the next seq.

        Writers store the tail before they overwrite. So what was read is right if the tail, read
        afterwards, has not passed the place that it was read from.
        """
        room = header.ring_bytes
        words = peek.words
        for _ in range(LOOKS):  # at a bad moment the words are those of two appends
            if is_sane(words, room):
                break
            words = (control.peek(place_of(self.path)) or peek).words
        else:
            return None
        at = start = words[L.C_TAIL]
        head = words[L.C_HEAD]
        while at < head:
            nbytes = min(_STEP, room - at % room, head - at)
            offset = header.data_offset + at % room
            data = self.source.read(offset, nbytes)
            tail = self._tail()
            if tail > at:
                at = start = min(tail, head)
                continue
            files.write_at(fd, data, offset, self.path)
            at += nbytes
        return start, head, words[L.C_NEXT_SEQ]

    def _tail(self) -> int:
        field = L.CONTROL.fields["tail"]
        return field.unpack(self.source.read(L.RING_CONTROL_OFFSET + field.at, field.nbytes))

    def _ends(self, m: RingMap, header: Header, slots: list[Slot], peek: Peek | None) -> Ends:
        """Find the ends of a ring without a writer.

        What was on disk once must still be there, even where an opener would find less. But frames
        of a checkpoint may have been dropped since, and overwritten: then they are only missing if
        there is nothing newer, or if nothing was written after the checkpoint.
        """
        found = self.found
        room = header.ring_bytes
        hint = peek.words if peek is not None else None
        ends = ring_ends.find(
            m, header, hint, control.stray_words(place_of(self.path), header.uuid)
        )
        claims = [(ends.tail, ends.head, ends.next_seq)]
        if hint is not None and is_sane(hint, room):
            if not ends.by_control:  # confirmed by frames, it needs no other source
                claims.append((hint[L.C_TAIL], hint[L.C_HEAD], hint[L.C_NEXT_SEQ]))
            if hint[L.C_RESERVED] > ends.head >= hint[L.C_HEAD]:
                found.say(
                    "torn",
                    "normal",
                    "an append was not finished, as after a crash; the next open for writing "
                    "removes it",
                    offset=self._offset(ends.head),
                    last_seq=ends.next_seq - 1,
                )
        elif hint is not None:
            found.say(
                "control",
                "normal",
                "its control is not consistent; the next open rebuilds it",
                offset=L.RING_CONTROL_OFFSET,
            )
        # The newer of two checkpoints may have reached the disk before its frames.
        clean = bool(slots) and slots[0].clean
        vouched = slots[:1] if clean else [s for s in slots[1:] if s.head > ends.head]
        if not ends.by_control:
            claims += [(s.tail, s.head, s.last_seq + 1) for s in vouched]
        found.head = max(head for _, head, _ in claims)
        found.start = min(tail for tail, _, _ in claims if tail >= found.head - room)
        found.next_seq = max(seq for _, _, seq in claims)
        return ends

    def _offset(self, position: int) -> int:
        header = self.found.header
        assert header is not None
        return header.data_offset + position % header.ring_bytes

    def _check(self, m: RingMap, header: Header) -> None:
        found = self.found
        walk, frames, nbytes, holes, more, gave_up = _core.check_ring(
            m, found.start, found.head, holes=header.generation > 0
        )
        found.walk, found.frames, found.bytes = walk, frames, nbytes
        found.holes = holes
        found.next_seq = max(found.next_seq, walk.next_seq)
        for hole in holes:
            self._say_hole(hole)
        if more:
            found.say("many", "damage", f"{more} more places of it are damaged; {REPAIR}")
        if gave_up:
            found.say(
                "many",
                "damage",
                "has so much damage that the search for valid frames was stopped; restore it from "
                f"a copy, or {REPAIR}",
                last_seq=walk.next_seq - 1,
            )

    def _say_hole(self, hole: Hole) -> None:
        found = self.found
        position, reason, expected, batch, newer, next_at, next_seq = hole
        offset = self._offset(position)
        before = expected - 1 if expected > 1 else None
        if batch:
            message = f"{reason}; its events are read one by one; {REPAIR}"
            found.say("batch", "damage", message, offset=offset, last_seq=before)
            return
        after = found.next_seq if next_seq is None else next_seq
        lost = (expected, after - 1) if 0 < expected < after else None
        if lost is not None:
            what = f"seq {lost[0]} to {lost[1]} cannot be read"
        elif expected:
            what = "no event is lost"
        else:
            what = f"events before seq {after} cannot be read"
        if next_at is None:
            what = f"no valid frame follows: {what}"
        else:
            what += f", reading goes on at offset {self._offset(next_at)}"
        kind = "version" if newer else "end" if next_at is None else "frame"
        message = f"{reason}; {what}; {REPAIR}"
        found.say(kind, "damage", message, offset=offset, last_seq=before, lost=lost)

    def _judge_size(self, header: Header) -> None:
        found, size = self.found, self.source.size
        if size > header.file_bytes:
            found.say(
                "size",
                "damage",
                f"is {size} bytes long, its ring only {header.file_bytes}: something was written "
                "after it; repair leaves that out",
                offset=header.file_bytes,
            )
        elif size < header.file_bytes:
            found.say(
                "size",
                "damage",
                f"is cut short: {size} bytes of {header.file_bytes}; {REPAIR}",
                offset=size,
            )

    def _judge_headers(self, m: RingMap, header: Header) -> None:
        for rot in self.rots:
            slot = m.bytes_at(rot.offset - L.SLOT_BYTES, L.SLOT_BYTES) if rot.offset else b""
            if any(slot) and Slot.unpack(slot, header) is None:
                continue  # the page was being written
            message = f"{rot.message}; no event is lost, and repair writes it again"
            self.found.say("header", "damage", message, offset=rot.offset)

    def _judge_slots(self, m: RingMap, header: Header, slots: list[Slot]) -> None:
        if not slots:
            self.found.say(
                "checkpoint",
                "damage",
                "neither checkpoint is valid: after a crash the bounds of its frames are "
                "unknown; repair writes a new one",
                offset=L.SLOT_A_OFFSET,
            )
            return
        for at in SLOTS:
            data = m.bytes_at(at, L.SLOT_BYTES)
            if any(data) and Slot.unpack(data, header) is None:
                self.found.say(
                    "checkpoint",
                    "normal",
                    "a checkpoint is not valid, so the other one is used; a crash while it was "
                    "being written leaves this",
                    offset=at,
                )

    def _compare(self, ends: Ends, slots: list[Slot]) -> None:
        """A checkpoint of a clean close is trusted without a check, so it must be right."""
        walk = self.found.walk
        if not slots or not slots[0].clean or slots[0].head != ends.head:
            return
        slot = slots[0]
        told = {
            "offset": slot.head,
            "settings_offset": slot.settings_position,
            "producer_offset": slot.producer_position,
        }
        if self.found.frames:
            told |= {
                "next_seq": slot.last_seq + 1,
                "last_frame": slot.last_frame,
                "last_append_ns": slot.last_append_ns,
            }
        if any(getattr(walk, name) != value for name, value in told.items()):
            self.found.say(
                "checkpoint",
                "damage",
                "its checkpoint does not match the frames; repair writes it again",
                offset=SLOTS[0] if slot.generation % 2 else SLOTS[1],
            )

    def _judge_state(self, m: RingMap, header: Header) -> None:
        """The newest settings and the table of producers."""
        found, walk = self.found, self.found.walk
        try:
            Settings.from_json(header.settings, self.path)
        except Corrupt as error:
            found.say("settings", "damage", f"{self._bare(error)}; {REPAIR}", offset=0)
        at = walk.settings_offset
        try:
            if at:
                frame = m.frame_at(at, found.start, found.head)
                Settings.from_json(frame[3] if frame is not None else b"", self.path)
        except Corrupt as error:
            where = self._offset(at)
            found.say("settings", "damage", f"{self._bare(error)}; {REPAIR}", offset=where)
        at = walk.producer_offset
        try:
            table = Follower().up_to(
                lambda p: m.frame_at(p, found.start, found.head), at, found.start
            )
        except Corrupt:
            table = None
        if table is None:
            found.say(
                "producers",
                "damage",
                "the last appends of producers cannot all be read, so a repeated append may be "
                "appended twice; repair keeps what can be read",
                offset=self._offset(at),
            )

    def _judge_index(self, m: RingMap, index: bytes) -> None:
        found = self.found
        strict = not found.live and not found.damaged
        astray, first = _core.compare_index(m, index, found.start, found.head, strict)
        if astray:
            found.say(
                "index",
                "normal",
                f"{many(astray, 'slot')} of its index point to wrong frames, {first} first, as "
                "after power loss; no event is lost: such events are searched for",
                offset=L.RING_INDEX_OFFSET + first * L.RING_SLOT_BYTES,
            )

    def _judge_unreadable(self) -> None:
        pages = self.source.unreadable
        for at in pages[:1]:
            self.found.say(
                "unreadable",
                "damage",
                f"{many(len(pages), 'page')} of it cannot be read from the device, this one "
                f"first; copy what can be read to another device, then {REPAIR}",
                offset=at,
            )


def is_sane(words: Words, room: int) -> bool:
    """Whether the ends in control are possible for a ring of that size."""
    tail, head, reserved = words[L.C_TAIL], words[L.C_HEAD], words[L.C_RESERVED]
    return (
        ring_ends.is_span(tail, head, room)
        and head <= reserved <= head + room
        and reserved % L.ALIGN == 0
        and 0 < words[L.C_NEXT_SEQ] <= L.SEQ_MAX
    )


def guess_header(source: FileSource) -> Header | None:
    """A header for a ring that lost its own; None if the place of its frames is unknown.

    The size is the file's. The size of the index follows from the offset of the last frame, whose
    position a checkpoint or control has; or from the first frame, as every lap begins where the
    index ends; or, in a ring without frames, from its first checkpoint.
    """
    size = source.size
    if not L.RING_BYTES_MIN <= size <= L.RING_BYTES_MAX:
        return None
    page = source.read(L.RING_CONTROL_OFFSET, L.CONTROL_BYTES)
    has_control = page[: len(L.CONTROL_MAGIC)] == L.CONTROL_MAGIC
    slots = [
        slot
        for at in SLOTS
        if (slot := Slot.unpack(source.read(at, L.SLOT_BYTES), None)) is not None
    ]
    witnesses = [(slot.last_frame, slot.last_seq) for slot in slots]
    if has_control:
        last, next_seq = (L.CONTROL.get(page, name) for name in ("last_frame", "next_seq"))
        witnesses.append((last, next_seq - 1))
    header = Header(
        uuid=control.uuid_in(page) or os.urandom(16),
        base_seq=1,
        generation=1,
        created_ns=_core.now_ns(),
        file_bytes=size,
        index_capacity=0,
        prior_append_ns=0,
        prior_event_max_ns=0,
        monotone=True,
        settings=Settings().to_json(),
    )
    step = L.PAGE // L.RING_SLOT_BYTES
    usual = size // RING_INDEX_SHARE
    most = (size - ROOM_MIN - L.RING_INDEX_OFFSET) // L.RING_SLOT_BYTES
    capacities = (usual, *range(0, most + 1, step))
    candidates = [replace(header, index_capacity=capacity) for capacity in capacities]
    candidates = [c for c in candidates if c.ring_bytes >= ROOM_MIN]
    for candidate in candidates:
        if any(_is_frame(source, candidate, *witness) for witness in witnesses if witness[0]):
            return candidate
    for candidate in candidates:
        if _is_frame(source, candidate, candidate.ring_bytes, None):
            return candidate
    empty = {slot.head for slot in slots if not slot.last_frame and slot.head == slot.tail}
    return next((c for c in candidates if c.ring_bytes in empty), None)


def _is_frame(source: FileSource, header: Header, position: int, seq: int | None) -> bool:
    """Whether a frame is at a position, and ends with ``seq`` if that is known."""
    room = header.ring_bytes
    if position % L.ALIGN or room - position % room < L.FRAME_HEADER_BYTES:
        return False
    offset = header.data_offset + position % room
    head = source.read(offset, L.FRAME_HEADER_BYTES)
    if len(head) < L.FRAME_HEADER_BYTES:
        return False
    commit, found = L.FRAME.get(head, "commit"), L.FRAME.get(head, "seq")
    end = L.FRAME_HEADER_BYTES + commit - 1
    if not commit or end > room - position % room:
        return False
    if seq is not None and found not in (seq, seq + 1):
        return False
    return source.frame_is_valid(offset, commit)
