"""Verify: look at every byte of a log that matters and say what is wrong with it, in words.

It reads what is there into private memory, changes nothing, needs no control and trusts no length,
so it works on read-only media, on logs that cannot be opened, and beside writers: of a log in use,
what lies behind the published head is not looked at.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from penstock import control, files, segment
from penstock import layout as L
from penstock.control import Peek
from penstock.errors import Corrupt, NotFound
from penstock.examine import Hole, Segment, Tail, examine, guess_header, look
from penstock.recovery import LOST, is_leftover
from penstock.segment import Header, Summary
from penstock.settings import Settings

Progress = Callable[[int, int], None]
Severity = Literal["normal", "damage"]

DAMAGED = "damaged-"
_KEPT = re.compile(DAMAGED + r"([0-9]{20})-[0-9]+\.bin")
_STEP = 8 << 20  # bytes between calls of progress
_KNOWN = {control.NAME, "consumers", "archive"}
_REPAIR = "penstock.repair(path) says what can be saved"


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that verify found.

    Attributes
    ----------
    kind : str
        "frame", "batch", "end", "torn", "header", "checkpoint", "index", "footer", "settings",
        "producers", "missing", "chain", "name", "spurious", "roll", "size", "unreadable",
        "version", "left-over" or "many".
    severity : {"normal", "damage"}
        "normal" is what a crash, or somebody's copy, leaves behind and costs nothing.
    path : str
        The file, or the log's directory.
    message : str
        What is wrong and what to do, in a sentence.
    offset : int or None
        Where in the file.
    last_seq : int or None
        The last good event before it.
    lost : (int, int) or None
        First and last seq of the events that cannot be read, where that is known.
    """

    kind: str
    severity: Severity
    path: str
    message: str
    offset: int | None = None
    last_seq: int | None = None
    lost: tuple[int, int] | None = None

    def __str__(self) -> str:
        where = "" if self.offset is None else f" at offset {self.offset}"
        behind = "" if self.last_seq is None else f" behind seq {self.last_seq}"
        return f"{self.severity}: {self.path}{where}{behind}: {self.message}"


@dataclass(frozen=True, slots=True)
class Report:
    """What verify found out about a log.

    Attributes
    ----------
    path : str
        The log.
    segments, events, frames, bytes : int
        What was looked at and found good; the bytes are those of the frames.
    first_seq, last_seq : int or None
        Of the events that are good; None if there is none.
    live : bool
        Whether somebody was appending, so that only what was published was looked at.
    problems : tuple of Problem
        In the order of the log.

    >>> log = penstock.open(path)
    >>> log.extend([b"a", b"b"])
    range(1, 3)
    >>> report = log.verify()
    >>> report.ok, report.events, report.last_seq
    (True, 2, 2)
    >>> print(str(report).splitlines()[1])
    1 segment, 2 events (seq 1 to 2), 2 frames, 96 bytes of frames
    """

    path: str
    segments: int
    events: int
    frames: int
    bytes: int
    first_seq: int | None
    last_seq: int | None
    live: bool
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged."""
        return not any(p.severity == "damage" for p in self.problems)

    def __str__(self) -> str:
        damage = sum(p.severity == "damage" for p in self.problems)
        seqs = "" if self.first_seq is None else f" (seq {self.first_seq} to {self.last_seq})"
        lines = [
            f"{self.path}: {_many(damage, 'damaged place') if damage else 'ok'}",
            f"{_many(self.segments, 'segment')}, {_many(self.events, 'event')}{seqs}, "
            f"{_many(self.frames, 'frame')}, {self.bytes} bytes of frames",
        ]
        return "\n".join(lines + [str(p) for p in self.problems])


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


@dataclass(slots=True)
class Place:
    """A segment that is part of the log, and what its place in it asks for."""

    segment: Segment
    newest: bool = False
    next_base: int | None = None  # base of the segment that follows
    torn: Tail | None = None  # an unfinished append at its end
    problems: list[Problem] = field(default_factory=list)

    @property
    def walk(self) -> dict[str, Any]:
        """The walk to the end of what belongs to the log."""
        return self.torn.walk if self.torn is not None else self.segment.walk

    @property
    def frames(self) -> int:
        """How many frames that walk has."""
        if self.torn is not None:
            return self.torn.frames
        return self.segment.frames.frames if self.segment.frames is not None else 0

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
        self.problems.append(
            Problem(kind, severity, self.segment.path, message, offset, last_seq, lost)
        )

    @property
    def damaged(self) -> bool:
        """Whether a problem of it is damage."""
        return any(p.severity == "damage" for p in self.problems)


@dataclass(slots=True)
class Findings:
    """All that there is in a log's directory: what repair works from."""

    path: str
    uuid: bytes
    peek: Peek | None
    places: list[Place]
    outside: list[Segment]  # files with a segment's name that are not part of the log
    problems: list[Problem]  # of the log as a whole

    @property
    def live(self) -> bool:
        """Whether somebody may be appending."""
        return self.peek is not None and self.peek.live

    def all_problems(self) -> Iterator[Problem]:
        """In the order of the log, then those of the log as a whole."""
        for place in self.places:
            yield from place.problems
        yield from self.problems


def verify(path: str | os.PathLike[str], *, progress: Progress | None = None) -> Report:
    """Check every segment of the log at ``path``; it need not be open, nor fit to be opened.

    ``progress`` is called with bytes read and bytes in all. Nothing is changed, whatever is found.

    >>> penstock.open(path).append(b"hello")
    1
    >>> penstock.verify(path).ok
    True
    """
    findings = survey(files.path_text(path), progress)
    walks = [p.walk for p in findings.places]
    return Report(
        path=findings.path,
        segments=len(walks),
        events=sum(w["count"] for w in walks),
        frames=sum(p.frames for p in findings.places),
        bytes=sum(p.walk["offset"] - _data_offset(p) for p in findings.places),
        first_seq=next((w["first_seq"] for w in walks if w["count"]), None),
        last_seq=next((w["last_seq"] for w in reversed(walks) if w["count"]), None),
        live=findings.live,
        problems=tuple(findings.all_problems()),
    )


def _data_offset(place: Place) -> int:
    assert place.segment.header is not None
    return place.segment.header.data_offset


def survey(path: str, progress: Progress | None = None, *, spare: bool = False) -> Findings:
    """Look at everything in the directory, again if a writer came while this was at it.

    With ``spare``, files that an earlier repair kept may stand for segments that are missing.
    """
    for _ in range(3):
        peek = control.peek(path)
        findings = _Survey(path, peek, progress, spare).run()
        if findings.live or not any(p.severity == "damage" for p in findings.all_problems()):
            break
        now = control.peek(path)
        if now is None or not now.live:
            break
    return findings


class _Survey:
    """One look at a directory."""

    def __init__(
        self, path: str, peek: Peek | None, progress: Progress | None, spare: bool
    ) -> None:
        if not os.path.isdir(path):
            raise NotFound(f"{path}: there is no log here")
        self.path = path
        self.peek = peek
        self.problems: list[Problem] = []
        self.outside: list[Segment] = []
        self.names = sorted(files.list_dir(path))
        self.progress = progress
        self.spare = spare
        self.done = self.told = self.total = 0

    def run(self) -> Findings:
        """Which files are the log's, in what order, and what is wrong with each."""
        found = [
            s
            for n in self.names
            if segment.is_name(n)
            and (s := look(os.path.join(self.path, n), int(n[:20]))) is not None
        ]
        if not found:
            raise NotFound(f"{self.path}: there is no log here: it holds no segment")
        uuid = self._settle_uuid(found)
        if self.peek is not None and self.peek.uuid != uuid:
            self.peek = None
        own = self._own(found, uuid)
        self.total = sum(s.size for s in own)
        places = self._chain(own)
        for place, following in zip(places, [*places[1:], None], strict=False):  # there may be none
            place.newest = following is None
            place.next_base = following.segment.base if following is not None else None
        before = None
        for place in places:
            _judge(place, before, self._live_end(place.segment) is not None)
            before = place
        self._judge_chain(places)
        self._mention_rest()
        if self.progress is not None:
            self.progress(self.total, self.total)
        return Findings(self.path, uuid, self.peek, places, self.outside, self.problems)

    def _passed(self, nbytes: int) -> None:
        self.done += nbytes
        if self.progress is not None and self.done - self.told >= _STEP:
            self.told = self.done
            self.progress(min(self.done, self.total), self.total)

    def _settle_uuid(self, found: list[Segment]) -> bytes:
        """The uuid that most segments have; control's, if that does not settle it."""
        counts = Counter(s.header.uuid for s in found if s.header is not None).most_common(2)
        if not counts:
            return self.peek.uuid if self.peek is not None else b""
        if len(counts) > 1 and counts[0][1] == counts[1][1]:
            if self.peek is not None and self.peek.uuid in (counts[0][0], counts[1][0]):
                return self.peek.uuid
            self.problems.append(
                Problem(
                    "spurious",
                    "damage",
                    self.path,
                    "holds segments of two logs, as many of one as of the other; "
                    "move the foreign ones away",
                )
            )
        return counts[0][0]

    def _set_aside(
        self, found: Segment, why: str, todo: str, severity: Severity = "normal"
    ) -> None:
        self.outside.append(found)
        self.problems.append(
            Problem("spurious", severity, found.path, f"is not part of this log: {why}; {todo}")
        )

    def _own(self, found: list[Segment], uuid: bytes) -> list[Segment]:
        """The segments of this log, by the base that they say they have."""
        own: dict[int, Segment] = {}
        misnamed: list[Segment] = []
        for s in found:
            if s.header is None:
                own[s.name_base] = s
            elif s.header.uuid != uuid:
                self._set_aside(s, "it belongs to another log", "move it away")
            elif s.header.base_seq == s.name_base:
                own[s.name_base] = s
            else:
                misnamed.append(s)
        for s in misnamed:
            if s.base in own:
                self._set_aside(
                    s,
                    f"it is the segment of seq {s.base} under another name, and that one is there",
                    "move it away",
                )
            else:
                own[s.base] = s
        if self.spare and own:
            self._add_spare(own, uuid)
        return [own[base] for base in sorted(own)]

    def _add_spare(self, own: dict[int, Segment], uuid: bytes) -> None:
        """Take files that a repair kept for segments that are not there under their names."""
        for name in self.names:
            match = _KEPT.fullmatch(name)
            s = look(os.path.join(self.path, name), int(match[1])) if match else None
            if s is None or s.header is None or s.header.uuid != uuid:
                continue
            if min(own) < s.base and s.base not in own:
                own[s.base] = s

    def _live_end(self, found: Segment) -> int | None:
        """Where the published frames end, in the segment that a live head stands in."""
        if self.peek is None or not self.peek.live or found.header is None:
            return None
        head = self.peek.words[L.C_HEAD]
        return head & 0xFFFFFFFF if head >> 32 == found.header.number else None

    def _examine(self, found: Segment) -> None:
        head = index_sure = 0
        if self.peek is not None and found.header is not None:
            words = self.peek.words
            if words[L.C_HEAD] >> 32 == found.header.number:
                head = words[L.C_HEAD] & 0xFFFFFFFF
                index_sure = words[L.C_INDEX_COUNT]
        examine(
            found,
            head=head,
            live_end=self._live_end(found),
            index_sure=index_sure,
            passed=self._passed,
        )

    def _chain(self, own: list[Segment]) -> list[Place]:
        """Examine the segments in order, and leave out those that cannot be part of the log."""
        places: list[Place] = []
        for i, found in enumerate(own):
            before = places[-1].segment if places else None
            after = next((s for s in own[i + 1 :] if s.header is not None), None)
            leads_to = before.leads_to if before is not None else None
            if leads_to is not None and found.base < leads_to:
                assert before is not None
                why = f"it begins inside the segment of seq {before.base}"
                self._set_aside(found, why, "move it away")
                continue
            if found.header is None and not self._guess(found, before, after):
                continue
            assert found.header is not None
            if self._is_newer(found.header):
                continue
            if before is not None and not found.guessed and not _follows(before, found):
                why = f"its number {found.header.number} does not follow"
                self._set_aside(found, why, "move it away")
                continue
            try:
                self._examine(found)
            except NotFound:
                continue  # retained away just now
            if before is not None and leads_to is None and _is_stray(before, found):
                why = f"nothing leads to it: the segment of seq {before.base} has not rolled"
                self._set_aside(found, why, "a crash can leave it; the next open lets it be")
                continue
            places.append(Place(found))
        return places

    def _is_newer(self, header: Header) -> bool:
        """Whether a segment was made after this look at the log began."""
        if self.peek is None or not self.peek.live:
            return False
        return header.number > self.peek.words[L.C_HEAD] >> 32

    def _guess(self, found: Segment, before: Segment | None, after: Segment | None) -> bool:
        """Have a header for a segment whose own cannot be read."""
        if found.newer or (found.size == 0 and not files.exists(found.path)):
            self.outside.append(found)
            self.problems.append(
                Problem("version", "damage", found.path, f"{found.error}; use a newer Penstock")
            )
            return False
        found.header = guess_header(found, before, after) if found.size else None
        found.guessed = True
        if found.header is None:
            self.outside.append(found)
            self.problems.append(
                Problem(
                    "header",
                    "damage",
                    found.path,
                    f"its header cannot be read ({_without_path(found)}), and no segment beside "
                    "it says what it was; restore it from a copy",
                    offset=0,
                )
            )
        return found.header is not None

    def _judge_chain(self, places: list[Place]) -> None:
        for place, following in pairwise(places):
            header, next_header = place.segment.header, following.segment.header
            assert header is not None and next_header is not None
            leads_to = place.segment.leads_to
            if leads_to is None:
                continue  # said already: its end is lost
            if leads_to < next_header.base_seq:
                self._missing(place, leads_to, next_header.base_seq - 1)
            elif next_header.number != header.number + 1:
                following.say(
                    "chain",
                    "damage",
                    f"its number is {next_header.number}, and {header.number} comes before it; "
                    f"{_REPAIR}",
                    offset=0,
                )
        if places:
            self._judge_newest(places[-1])

    def _missing(self, place: Place, first: int, last: int | None) -> None:
        upto = f"to {last}" if last is not None else "on"
        place.problems.append(
            Problem(
                "missing",
                "damage",
                os.path.join(self.path, segment.file_name(first)),
                f"is missing: seq {first} {upto} cannot be read; restore it from a copy, or "
                f"{_REPAIR}",
                last_seq=first - 1,
                lost=None if last is None else (first, last),
            )
        )

    def _judge_newest(self, newest: Place) -> None:
        leads_to = newest.segment.leads_to
        header = newest.segment.header
        assert header is not None
        words = self.peek.words if self.peek is not None else None
        known = words is not None and words[L.C_HEAD] >> 32 > header.number
        if leads_to is not None and (newest.segment.footer is not None or known):
            last = words[L.C_NEXT_SEQ] - 1 if words is not None else None
            self._missing(newest, leads_to, last if last is not None and last >= leads_to else None)
        elif leads_to is not None:
            newest.say(
                "roll",
                "normal",
                "ends in a roll frame and the next segment is not there yet; the next open for "
                "writing makes it",
                offset=newest.walk["last_frame"],
                last_seq=leads_to - 1,
            )

    def _mention_rest(self) -> None:
        for name in self.names:
            if segment.is_name(name) or name in _KNOWN:
                continue
            if name.startswith(LOST):
                what = "bytes that recovery took out of a segment, kept for you to look at"
            elif name.startswith(DAMAGED):
                what = "a segment as it was before a repair; delete it when you are content"
            elif is_leftover(name):
                what = "unfinished work of a process that died, or of one that is at it"
            else:
                what = "not a file that Penstock knows; it is left alone"
            self.problems.append(
                Problem("left-over", "normal", os.path.join(self.path, name), what)
            )


def _without_path(found: Segment) -> str:
    return str(found.error).removeprefix(f"{found.path}: ")


def _follows(before: Segment, found: Segment) -> bool:
    assert before.header is not None and found.header is not None
    return found.header.number > before.header.number


def _is_stray(before: Segment, found: Segment) -> bool:
    """Whether power loss can have left ``found`` behind: empty, and not yet led to."""
    slot = found.slot
    return (
        not found.guessed
        and found.frames is not None
        and found.frames.frames == 0
        and not found.frames.holes
        and (slot is None or slot.generation < 2)
        and found.footer is None
        and before.frames is not None
        and before.frames.tail is not None
        and before.frames.end == "lost"
    )


def _judge(place: Place, before: Place | None, live: bool) -> None:
    """Say what is wrong with one segment, given its place in the log."""
    found = place.segment
    header, frames = found.header, found.frames
    assert header is not None and frames is not None
    if found.guessed:
        place.say(
            "header",
            "damage",
            f"its header cannot be read ({_without_path(found)}); repair makes one from what the "
            "segments beside it say",
            offset=0,
        )
    elif header.base_seq != found.name_base:
        place.say(
            "name",
            "damage",
            f"is the segment of seq {header.base_seq} under another name; rename it to "
            f"{segment.file_name(header.base_seq)}, or let repair do it",
        )
    if not found.guessed:
        _judge_header(place, before)
    if found.size > header.segment_bytes:
        place.say(
            "size",
            "damage",
            f"is {found.size} bytes long, and its segment {header.segment_bytes}: something was "
            "written behind it; repair leaves that out",
            offset=header.segment_bytes,
        )
    elif found.size < header.data_offset:
        place.say(
            "size",
            "damage",
            f"is cut short at {found.size} bytes, before its frames begin; {_REPAIR}",
            offset=found.size,
        )
    for at in found.unreadable[:1]:
        place.say(
            "unreadable",
            "damage",
            f"the device does not give {_many(len(found.unreadable), 'page')} of it, this one "
            f"first; copy what can be read to another device, then {_REPAIR}",
            offset=at,
        )
    if found.producers_bad and not found.guessed:
        place.say(
            "producers",
            "damage",
            "the checksum of its table of producers does not match, so a repeated append may go "
            "unnoticed; repair makes it anew from the segment before it",
            offset=header.producers_offset,
        )
    _judge_slots(place)
    _judge_frames(place, live)
    _judge_index(place, live)
    _judge_footer(place)


def _judge_header(place: Place, before: Place | None) -> None:
    header = place.segment.header
    assert header is not None
    try:
        Settings.from_json(header.settings, place.segment.path)
    except Corrupt as error:
        place.say("settings", "damage", f"{_bare(error, place)}; {_REPAIR}", offset=0)
    if before is None or before.damaged or before.segment.leads_to != header.base_seq:
        return
    walk = before.walk
    if (
        header.prior_append_ns < walk["last_append_ns"]
        or header.prior_event_max_ns < walk["event_max_ns"]
        or (header.monotone and not walk["monotone"])
    ):
        place.say(
            "header",
            "damage",
            "its header says less about the times before it than the frames before it do, so "
            f"reads by time can miss events; {_REPAIR}",
            offset=L.HEADER_PRIOR_APPEND_NS,
        )


def _bare(error: Exception, place: Place) -> str:
    return str(error).removeprefix(f"{place.segment.path}: ")


def _judge_slots(place: Place) -> None:
    found = place.segment
    frames, slot = found.frames, found.slot
    assert frames is not None
    if slot is None and found.footer is None:
        place.say(
            "checkpoint",
            "damage",
            "neither checkpoint is valid: an open has to walk the whole segment and cannot tell "
            "what was on the device; repair writes one anew",
            offset=L.SLOT_A_OFFSET,
        )
        return
    other = "the footer" if found.footer is not None else "the other one"
    for at in found.slots_bad:
        place.say(
            "checkpoint",
            "normal",
            f"a checkpoint is not valid, and {other} counts; a crash while it was being written "
            "leaves that",
            offset=at,
        )
    if slot is None:
        return
    marked = frames.marked
    reached = frames.walk["offset"] >= slot.offset and not frames.damaged
    told = {
        "offset": slot.offset,
        "last_frame": slot.last_frame,
        "last_append_ns": slot.last_append_ns,
        "settings_offset": slot.settings_offset,
        "producer_offset": slot.producer_offset,
        "index_count": slot.index_count,
        "event_max_ns": slot.event_max_ns,
        "monotone": slot.monotone,
        "next_seq": slot.last_seq + 1,
    }
    if reached and not found.guessed and any(marked[k] != v for k, v in told.items()):
        at = L.SLOT_A_OFFSET if found.slots[0] is slot else L.SLOT_B_OFFSET
        place.say(
            "checkpoint",
            "damage",
            "its checkpoint says something else than the frames; repair writes it anew",
            offset=at,
        )


def _judge_frames(place: Place, live: bool) -> None:
    found = place.segment
    frames = found.frames
    assert frames is not None
    holes = list(frames.holes)
    tail = frames.tail
    if tail is not None:
        if place.newest and found.footer is None and not live:
            place.torn = tail
            if tail.dirty is not None or frames.frames > tail.frames:
                place.say(
                    "torn",
                    "normal",
                    "an append was not finished, as a crash leaves it; the next open for writing "
                    "removes it",
                    offset=tail.start,
                    last_seq=tail.walk["next_seq"] - 1,
                )
        else:
            holes += [tail.hole, *tail.inner]
    for hole in holes:
        _say_hole(place, hole)
    if frames.holes_more:
        place.say("many", "damage", f"{frames.holes_more} more places of it are damaged; {_REPAIR}")
    if frames.gave_up:
        place.say(
            "many",
            "damage",
            "is so full of damage that looking for valid frames was given up; restore it from a "
            f"copy, or {_REPAIR}",
            last_seq=frames.walk["next_seq"] - 1,
        )
    short = not place.newest or frames.walk["offset"] < found.required
    if not holes and frames.end == "limit" and short:
        _say_end(place, frames.walk["offset"], frames.walk["next_seq"])


def _say_hole(place: Place, hole: Hole) -> None:
    if hole.batch:
        place.say(
            "batch",
            "damage",
            f"{hole.reason}; its events are read one by one; {_REPAIR}",
            offset=hole.offset,
            last_seq=hole.expected - 1,
        )
        return
    if hole.next_seq is None:
        _say_end(place, hole.offset, hole.expected, hole.reason)
        return
    lost = (hole.expected, hole.next_seq - 1) if hole.next_seq > hole.expected else None
    what = f"seq {lost[0]} to {lost[1]} cannot be read" if lost else "no event is lost"
    place.say(
        "version" if hole.newer else "frame",
        "damage",
        f"{hole.reason}; {what}, reading goes on at offset {hole.next_at}; {_REPAIR}",
        offset=hole.offset,
        last_seq=hole.expected - 1,
        lost=lost,
    )


def _say_end(place: Place, offset: int, expected: int, reason: str = "") -> None:
    """The rest of the segment has no valid frame."""
    found = place.segment
    last = None
    if place.next_base is not None:
        last = place.next_base - 1
    elif found.footer is not None:
        last = found.footer.next_seq - 1
    elif found.slot is not None and found.slot.last_seq >= expected:
        last = found.slot.last_seq
    because = f"{reason}; " if reason else ""
    if last is not None and last < expected:
        what = f"the frame that leads to seq {expected} is lost, and no event"
    elif last is not None:
        what = f"seq {expected} to {last} cannot be read"
    else:
        what = f"events from seq {expected} on are lost"
    place.say(
        "end",
        "damage",
        f"{because}no valid frame follows: {what}; {_REPAIR}",
        offset=offset,
        last_seq=expected - 1,
        lost=(expected, last) if last is not None and last >= expected else None,
    )


def _judge_index(place: Place, live: bool) -> None:
    found = place.segment
    if found.index_bad is None:
        return
    used = found.index_bad < found.index_wanted
    if used or not live:
        place.say(
            "index",
            "damage" if used else "normal",
            f"entry {found.index_bad} of its index is not what the frames say; "
            + ("repair builds it anew" if used else "nobody uses it, and it is built anew"),
            offset=L.INDEX_OFFSET + found.index_bad * L.INDEX_ENTRY_BYTES,
        )


def _judge_footer(place: Place) -> None:
    found = place.segment
    header, frames, footer = found.header, found.frames, found.footer
    assert header is not None and frames is not None
    if found.footer_bad and not found.guessed:
        place.say(
            "footer",
            "damage",
            "its footer is not valid; its events can be read all the same; repair writes it anew",
            offset=header.footer_offset,
        )
    if footer is None or frames.damaged or frames.end != "rolled":
        return
    wanted = Summary.of(
        frames.walk,
        index_crc=footer.index_crc,
        topics=frames.topics,
        sealed_ns=footer.sealed_ns,
    )
    if wanted != footer and not found.guessed:
        names = [n for n in Summary.__slots__ if getattr(wanted, n) != getattr(footer, n)]
        place.say(
            "footer",
            "damage",
            f"its footer says something else than the frames about {', '.join(names)}; repair "
            "writes it anew",
            offset=header.footer_offset,
        )


__all__ = ["Findings", "Place", "Problem", "Progress", "Report", "survey", "verify"]
