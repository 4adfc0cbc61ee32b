"""Turn the findings about a segment into problems, given its place in the log."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock import layout as L
from penstock._core import Walked
from penstock.errors import Corrupt
from penstock.report import Problem, Severity, many
from penstock.segments import segment
from penstock.segments.check.examine import Segment, newest_settings
from penstock.segments.check.frames import Hole, Tail
from penstock.segments.segment import Header, SegmentSummary
from penstock.settings import Settings

REPAIR = "run penstock.repair(path) to see what can be saved"
LOST_SETTINGS = "settings that no frame repeats, including the codec,"


@dataclass(slots=True)
class ChainLink:
    """A segment that is part of the log, and what its place in the log requires."""

    segment: Segment
    newest: bool = False
    next_base: int | None = None  # base of the segment that follows
    torn: Tail | None = None  # an unfinished append at its end
    problems: list[Problem] = field(default_factory=list)

    @property
    def walk(self) -> Walked:
        """The walk to the end of the frames that belong to the log."""
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


def without_path(found: Segment) -> str:
    """Why a header could not be read, without the name of the file."""
    return str(found.error).removeprefix(f"{found.path}: ")


def judge(place: ChainLink, before: ChainLink | None) -> None:
    """Say what is wrong with one segment, given its place in the log."""
    found = place.segment
    header, frames = found.header, found.frames
    assert header is not None and frames is not None
    if found.guessed:
        made_from = "its neighbouring segments"
        if found.alone:
            made_from = f"its frames; {LOST_SETTINGS} are then those of a new log"
        place.say(
            "header",
            "damage",
            f"its header cannot be read ({without_path(found)}); repair makes one from {made_from}",
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
    for rot in found.rots:
        if rot.offset - L.SLOT_BYTES not in found.slots_bad:  # else the page was being written
            message = f"{rot.message}; no event is lost, and repair writes it again"
            place.say("header", "damage", message, offset=rot.offset)
    if found.size > header.segment_bytes + _filter_room(found, header):
        place.say(
            "size",
            "damage",
            f"is {found.size} bytes long, its segment only {header.segment_bytes}: something was "
            "written after it; repair leaves that out",
            offset=header.segment_bytes,
        )
    elif found.size < header.data_offset:
        place.say(
            "size",
            "damage",
            f"is cut short at {found.size} bytes, before its frames begin; {REPAIR}",
            offset=found.size,
        )
    for at in found.unreadable[:1]:
        place.say(
            "unreadable",
            "damage",
            f"{many(len(found.unreadable), 'page')} of it cannot be read from the device, this one "
            f"first; copy what can be read to another device, then {REPAIR}",
            offset=at,
        )
    if found.producers_bad and not found.guessed:
        place.say(
            "producers",
            "damage",
            "the checksum of its table of producers does not match, so a repeated append may be "
            "appended twice; repair rebuilds it from the segment before it",
            offset=header.producers_offset,
        )
    _judge_slots(place)
    _judge_frames(place)
    _judge_settings(place)
    _judge_index(place)
    _judge_filter(place)
    _judge_footer(place)


def _judge_header(place: ChainLink, before: ChainLink | None) -> None:
    header = place.segment.header
    assert header is not None
    try:
        Settings.from_json(header.settings, place.segment.path)
    except Corrupt as error:
        place.say("settings", "damage", f"{_bare(error, place)}; {REPAIR}", offset=0)
    if before is None or before.damaged or before.segment.leads_to != header.base_seq:
        return
    walk = before.walk
    if (
        header.prior_append_ns < walk.last_append_ns
        or header.prior_event_max_ns < walk.event_max_ns
        or (header.monotone and not walk.monotone)
    ):
        place.say(
            "header",
            "damage",
            "its header does not cover all times of the frames before it, so "
            f"reads by time can miss events; {REPAIR}",
            offset=L.HEADER_PRIOR_APPEND_NS,
        )


def _bare(error: Exception, place: ChainLink) -> str:
    return str(error).removeprefix(f"{place.segment.path}: ")


def _judge_slots(place: ChainLink) -> None:
    found = place.segment
    frames, slot = found.frames, found.slot
    assert frames is not None
    if slot is None and found.footer is None:
        place.say(
            "checkpoint",
            "damage",
            "neither checkpoint is valid: an open must walk the whole segment and does not know "
            "what was on disk; repair writes a new one",
            offset=L.SLOT_A_OFFSET,
        )
        return
    other = "the footer" if found.footer is not None else "the other one"
    for at in found.slots_bad:
        place.say(
            "checkpoint",
            "normal",
            f"a checkpoint is not valid, so {other} is used; a crash while it was being written "
            "leaves this",
            offset=at,
        )
    if slot is None:
        return
    marked = frames.marked
    reached = frames.walk.offset >= slot.offset and not frames.damaged
    told = {
        "offset": slot.offset,
        "last_frame": slot.last_frame,
        "last_append_ns": slot.last_append_ns,
        "settings_offset": slot.settings_offset,
        "producer_offset": slot.producer_offset,
        "index_count": slot.index_count,
        "event_max_ns": slot.event_max_ns,
        "next_seq": slot.last_seq + 1,
    }
    if slot.monotone:  # not knowing is not wrong
        told["monotone"] = True
    if reached and not found.guessed and any(getattr(marked, k) != v for k, v in told.items()):
        at = L.SLOT_A_OFFSET if found.slots[0] is slot else L.SLOT_B_OFFSET
        place.say(
            "checkpoint",
            "damage",
            "its checkpoint does not match the frames; repair writes it again",
            offset=at,
        )


def _judge_frames(place: ChainLink) -> None:
    found = place.segment
    frames = found.frames
    assert frames is not None
    holes = list(frames.holes)
    tail = frames.tail
    if tail is not None:
        if found.cut:
            place.torn = tail
            if tail.dirty is not None or frames.frames > tail.frames:
                place.say(
                    "torn",
                    "normal",
                    "an append was not finished, as after a crash; the next open for writing "
                    "removes it",
                    offset=tail.start,
                    last_seq=tail.walk.next_seq - 1,
                )
        else:
            holes += [tail.hole, *tail.inner]
    for hole in holes:
        _say_hole(place, hole)
    if frames.holes_more:
        place.say("many", "damage", f"{frames.holes_more} more places of it are damaged; {REPAIR}")
    if frames.gave_up:
        place.say(
            "many",
            "damage",
            "has so much damage that the search for valid frames was stopped; restore it from a "
            f"copy, or {REPAIR}",
            last_seq=frames.walk.next_seq - 1,
        )
    short = not place.newest or frames.walk.offset < found.required
    in_batch = bool(holes) and holes[-1].batch and holes[-1].offset == frames.walk.offset
    if short and (in_batch or (not holes and frames.end == "limit")):
        _say_end(place, frames.walk.offset, frames.walk.next_seq)


def _judge_settings(place: ChainLink) -> None:
    """Check the newest settings frame, if no later header repeats it."""
    at = place.walk.settings_offset
    if not place.newest or not at:
        return
    try:
        settings_of(place)
    except Corrupt as error:
        place.say("settings", "damage", f"{_bare(error, place)}; {REPAIR}", offset=at)


def settings_of(place: ChainLink) -> Settings:
    """The settings at the end of a segment."""
    data = newest_settings(place.segment, place.walk.settings_offset)
    return Settings.from_json(data, place.segment.path)


def _say_hole(place: ChainLink, hole: Hole) -> None:
    if hole.batch:
        place.say(
            "batch",
            "damage",
            f"{hole.reason}; its events are read one by one; {REPAIR}",
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
        f"{hole.reason}; {what}, reading goes on at offset {hole.next_at}; {REPAIR}",
        offset=hole.offset,
        last_seq=hole.expected - 1,
        lost=lost,
    )


def _say_end(place: ChainLink, offset: int, expected: int, reason: str = "") -> None:
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
        f"{because}no valid frame follows: {what}; {REPAIR}",
        offset=offset,
        last_seq=expected - 1,
        lost=(expected, last) if last is not None and last >= expected else None,
    )


def _judge_index(place: ChainLink) -> None:
    found = place.segment
    if found.index_bad is not None and found.index_bad < found.index_wanted:
        place.say(
            "index",
            "damage",
            f"entry {found.index_bad} of its index does not match the frames; repair builds it "
            "again",
            offset=L.INDEX_OFFSET + found.index_bad * L.INDEX_ENTRY_BYTES,
        )


def _filter_room(found: Segment, header: Header) -> int:
    """Bytes that a key filter may take after the segment's own size."""
    if found.footer is not None:
        return found.footer.filter_bytes
    if header.version < L.KEY_FILTER_VERSION:
        return 0
    # A seal that was cut off wrote one, or allocated it, before the footer.
    return segment.pages(header.segment_bytes // L.FRAME_HEADER_BYTES * L.KEY_FILTER_BITS // 8)


def _judge_filter(place: ChainLink) -> None:
    found = place.segment
    frames = found.frames
    assert frames is not None
    if found.filter_bad is not None:
        place.say(
            "filter",
            "damage",
            "its key filter is not valid here, and reads by key pass over no event because of it; "
            "repair writes it again",
            offset=found.filter_bad,
        )
    elif frames.unfiltered:
        assert found.header is not None
        place.say(
            "filter",
            "damage",
            f"its key filter lacks the key of seq {frames.unfiltered}, which reads by key may pass "
            "over; repair writes it again",
            offset=found.header.segment_bytes,
        )


def _judge_footer(place: ChainLink) -> None:
    found = place.segment
    header, frames, footer = found.header, found.frames, found.footer
    assert header is not None and frames is not None
    if found.footer_bad and not found.guessed:
        place.say(
            "footer",
            "damage",
            "its footer is not valid; its events can still be read; repair writes it again",
            offset=header.footer_offset,
        )
    if footer is None or frames.damaged or frames.end != "rolled":
        return
    wanted = SegmentSummary.of(
        frames.walk,
        index_crc=footer.index_crc,
        topics=frames.topics,
        sealed_ns=footer.sealed_ns,
        filter_pages=footer.filter_pages,
    )
    if wanted != footer and not found.guessed:
        names = [n for n in SegmentSummary.__slots__ if getattr(wanted, n) != getattr(footer, n)]
        place.say(
            "footer",
            "damage",
            f"its footer does not match the frames in {', '.join(names)}; repair writes it again",
            offset=header.footer_offset,
        )
