"""Verify: check every byte of a log that matters and report what is wrong.

It reads the files into private memory, changes nothing, needs no control and trusts no length, so
it works on read-only media, on logs that cannot be opened, and beside writers: in a log in use,
bytes after the published head are not checked.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import pairwise

from penstock import layout as L
from penstock.errors import Busy, Corrupt, NoSuchLog, NotFound, PenstockError
from penstock.handle import control, locks
from penstock.handle.control import Peek, Words
from penstock.layout import SegmentPosition
from penstock.report import Problem, Progress, Report, Severity
from penstock.segments import segment
from penstock.segments.check.examine import (
    Segment,
    SegmentReplaced,
    examine,
    guess_alone,
    guess_header,
    look,
    read_identity,
)
from penstock.segments.check.frames import FileSource
from penstock.segments.check.judge import REPAIR, ChainLink, judge, settings_of, without_path
from penstock.segments.ending import linked_uuids, two_logs
from penstock.segments.leftovers import is_leftover_name, is_ours
from penstock.segments.recovery import DIRECTORIES, LOST
from penstock.segments.segment import Header
from penstock.segments.store import MERGED
from penstock.system import files
from penstock.system.directory import Directory

DAMAGED = "damaged-"
_KEPT = re.compile(DAMAGED + r"([0-9]{20})-[0-9]+\.bin")
_REPLACED_MAX = 100  # passes that begin again because compaction replaces segments
_STEP = 8 << 20  # bytes between calls of progress
_KNOWN = {control.NAME, locks.NAME, *DIRECTORIES}


@dataclass(slots=True)
class Findings:
    """All that was found in a log's directory; the input of repair."""

    directory: Directory
    uuid: bytes
    peek: Peek | None
    places: list[ChainLink]
    outside: list[Segment]  # files with a segment's name that are not part of the log
    problems: list[Problem]  # of the log as a whole
    undecided: str  # not empty: why it is unknown which log this is
    floor: int  # events below this seq are deleted

    @property
    def path(self) -> str:
        """The log's, for messages."""
        return self.directory.path

    @property
    def live(self) -> bool:
        """Whether a writer may be appending."""
        return self.peek is not None and self.peek.live

    def all_problems(self) -> Iterator[Problem]:
        """Problems in the order of the log, then those of the log as a whole."""
        for place in self.places:
            yield from place.problems
        yield from self.problems


def verify(directory: Directory, *, progress: Progress | None = None) -> Report:
    """Check every segment of the log in ``directory``; `penstock.verify` for a segmented log."""
    findings = survey(directory, progress)
    walks = [p.walk for p in findings.places]
    return Report(
        path=findings.path,
        segments=len(walks),
        events=sum(w.count for w in walks),
        frames=sum(p.frames for p in findings.places),
        bytes=sum(p.walk.offset - _data_offset(p) for p in findings.places),
        first_seq=next((max(w.first_seq, findings.floor) for w in walks if w.count), None),
        last_seq=next((w.last_seq for w in reversed(walks) if w.count), None),
        live=findings.live,
        problems=tuple(findings.all_problems()),
    )


def _data_offset(place: ChainLink) -> int:
    assert place.segment.header is not None
    return place.segment.header.data_offset


def survey(
    directory: Directory, progress: Progress | None = None, *, spare: bool = False
) -> Findings:
    """Check everything in the directory; check again if a writer came meanwhile.

    With ``spare``, files that an earlier repair kept may replace missing segments.
    """
    place = control.ControlPlace.in_directory(directory)
    for _ in range(3):
        peek = control.peek(place)
        findings = _survey(directory, peek, progress, spare)
        if findings.live or not any(p.severity == "damage" for p in findings.all_problems()):
            break
        now = control.peek(place)
        if now is None or not now.live:
            break
    return findings


def _survey(
    directory: Directory,
    peek: Peek | None,
    progress: Progress | None,
    spare: bool,
) -> Findings:
    """One pass; from the start if segments were replaced. What was examined is not read again."""
    known: dict[int, Segment] = {}
    for _ in range(_REPLACED_MAX):
        with suppress(SegmentReplaced):
            return _Survey(directory, peek, progress, spare, known).run()
    raise Busy(
        f"{directory.path}: its segments are replaced faster than they can be checked; try again "
        "when compaction is done"
    )


class _Survey:
    """One pass over a directory."""

    def __init__(
        self,
        directory: Directory,
        peek: Peek | None,
        progress: Progress | None,
        spare: bool,
        known: dict[int, Segment],
    ) -> None:
        self.known = known  # sealed segments that were examined, by inode
        self.directory = directory
        self.path = directory.path  # for messages
        self.peek = peek
        self.uuid = b""
        self.problems: list[Problem] = []
        self.outside: list[Segment] = []
        self.undecided = ""
        self.names = sorted(files.list_dir(directory))
        self.progress = progress
        self.spare = spare
        self.done = self.told = self.total = self.floor = 0

    def run(self) -> Findings:
        """Find the files of the log, their order, and what is wrong with each."""
        found = [
            s
            for n in self.names
            if segment.is_name(n) and (s := look(self.directory.file(n), int(n[:20]))) is not None
        ]
        if not found:
            raise _no_segment(self.path)
        uuid = self.uuid = self._settle_uuid(found)
        if self.peek is not None and self.peek.uuid != uuid:
            self.peek = None
        own = self._own(found, uuid)
        self.total = sum(s.size for s in own)
        places = self._without_gone(self._chain(own))
        for place, following in zip(places, [*places[1:], None], strict=False):  # there may be none
            place.newest = following is None
            place.next_base = following.segment.base if following is not None else None
        self._check_same(places)
        before = None
        for place in places:
            judge(place, before)
            before = place
        self._judge_chain(places)
        self._mention_rest()
        if self.progress is not None:
            self.progress(self.total, self.total)
        return Findings(
            self.directory,
            uuid,
            self.peek,
            places,
            self.outside,
            self.problems,
            self.undecided,
            self.floor,
        )

    def _passed(self, nbytes: int) -> None:
        self.done += nbytes
        if self.progress is not None and self.done - self.told >= _STEP:
            self.told = self.done
            self.progress(min(self.done, self.total), self.total)

    def _settle_uuid(self, found: list[Segment]) -> bytes:
        """The log's uuid, as an opener would find it.

        If it is unknown, that is a problem, and the rest is about the log with most segments.
        """
        named = {s.name_base: s for s in found if s.header and s.header.base_seq == s.name_base}
        headers = [s.header for s in (named.values() or found) if s.header is not None]
        counts = Counter(h.uuid for h in headers).most_common()
        if not counts:
            return self._uuid_without_headers(found)
        if self.peek is not None and self.peek.uuid in dict(counts):
            return self.peek.uuid
        if len(counts) == 1:
            return counts[0][0]
        linked = linked_uuids(headers, lambda base: self._leads_to(named.get(base)))
        if len(linked) == 1:
            return linked.pop()
        self.undecided = two_logs(self.path, dict(counts))
        why = self.undecided.removeprefix(f"{self.path}: ")
        self.problems.append(Problem("spurious", "damage", self.path, why))
        return counts[0][0]

    def _leads_to(self, found: Segment | None) -> int:
        """The base seq that a segment leads to; 0 if it leads nowhere."""
        if found is None:
            return 0
        if found.footer is None:
            examine(found)
        return found.leads_to or 0

    def _uuid_without_headers(self, found: list[Segment]) -> bytes:
        """The uuid in control or in a footer; a new one if neither is there."""
        uuid = control.uuid_of(control.ControlPlace.in_directory(self.directory))
        for s in found if uuid is None else []:
            with suppress(PenstockError), closing(FileSource(s.path)) as source:
                identity = read_identity(source)
                if identity is not None:
                    return identity[0]
        return uuid or os.urandom(16)

    def _set_aside(
        self, found: Segment, why: str, todo: str, severity: Severity = "normal"
    ) -> None:
        self.outside.append(found)
        self.problems.append(
            Problem("spurious", severity, found.path, f"is not part of this log: {why}; {todo}")
        )

    def _own(self, found: list[Segment], uuid: bytes) -> list[Segment]:
        """The segments of this log, by the base in their headers."""
        own: dict[int, Segment] = {}
        misnamed: list[Segment] = []
        for s in found:
            if s.header is None:
                own[s.name_base] = s
            elif s.header.uuid != uuid:
                self._set_aside(s, f"it belongs to the log {s.header.uuid.hex()}", "move it away")
            elif s.header.base_seq == s.name_base:
                own[s.name_base] = s
            else:
                misnamed.append(s)
        for s in misnamed:
            if s.base in own:
                self._set_aside(
                    s,
                    f"it is the segment of seq {s.base} under another name, which is there too",
                    "move it away",
                )
            else:
                own[s.base] = s
        if self.spare and own:
            self._add_spare(own, uuid)
        return [own[base] for base in sorted(own)]

    def _add_spare(self, own: dict[int, Segment], uuid: bytes) -> None:
        """Use files that a repair kept for segments that are missing."""
        for name in self.names:
            match = _KEPT.fullmatch(name)
            s = look(self.directory.file(name), int(match[1])) if match else None
            if s is None or s.header is None or s.header.uuid != uuid:
                continue
            if min(own) < s.base and s.base not in own:
                own[s.base] = s

    def _live_end(self, found: Segment) -> int | None:
        """Where the published frames end, in the segment of a live head."""
        if self.peek is None or not self.peek.live or found.header is None:
            return None
        number, end = SegmentPosition.unpack(self.peek.words[L.C_HEAD])
        return end if number == found.header.number else None

    def _check_same(self, places: list[ChainLink]) -> None:
        """Raise `SegmentReplaced` if a segment that was examined has another file by now.

        Then others may have been merged into it, and be gone.
        """
        for place in places:
            found = place.segment
            if found.inode and files.inode(found.path) not in (0, found.inode):
                raise SegmentReplaced

    def _examine(self, found: Segment) -> Segment:
        """Check a segment, unless an earlier pass has; returns what was found."""
        known = self.known.get(found.inode)
        if known is not None and known.header == found.header:
            self._passed(known.size)
            return known
        head = index_sure = 0
        if self.peek is not None and found.header is not None:
            words = self.peek.words
            number, end = SegmentPosition.unpack(words[L.C_HEAD])
            if number == found.header.number:
                head = end
                index_sure = words[L.C_INDEX_COUNT]
        examine(
            found,
            head=head,
            live_end=self._live_end(found),
            index_sure=index_sure,
            passed=self._passed,
        )
        if found.footer is not None:
            self.known[found.inode] = found
        return found

    def _chain(self, own: list[Segment]) -> list[ChainLink]:
        """Examine the segments in order, and leave out those that cannot be part of the log."""
        places: list[ChainLink] = []
        for i, found in enumerate(own):
            before = places[-1].segment if places else None
            leads_to = before.leads_to if before is not None else None
            if leads_to is not None and found.base < leads_to:
                assert before is not None
                why, todo = f"it begins inside the segment of seq {before.base}", "move it away"
                if _was_merged(before, found):
                    why, todo = f"{MERGED} {before.base}", "the next compaction deletes it"
                # Readers pass over a foreign segment, but not over one that may belong to the log.
                severity: Severity = "damage" if found.header is None else "normal"
                self._set_aside(found, why, todo, severity)
                continue
            if found.header is None and not self._guess(found, before, own[i:]):
                continue
            assert found.header is not None
            if self._is_newer(found.header):
                continue
            if before is not None and not _follows(before, found):
                why = f"its number {found.header.number} does not follow"
                self._set_aside(found, why, "move it away")
                continue
            try:
                examined = self._examine(found)
            except NotFound:
                continue  # just deleted by retention, or merged into the one before
            places.append(ChainLink(examined))
            later = own[i + 1 :]
            examined.cut = self._ends_in(examined, later)
            if examined.cut:
                for stray in later:
                    self._set_apart(stray, examined)
                break
        return places

    def _without_gone(self, places: list[ChainLink]) -> list[ChainLink]:
        """The log without segments below its first seq: no reader returns them."""
        floor = 0
        with suppress(Corrupt):
            floor = settings_of(places[-1]).first_seq if places else 0
        while len(places) > 1 and places[1].segment.base <= floor:
            gone = places.pop(0).segment
            why = f"its events are deleted, the log begins with seq {floor}"
            self._set_aside(gone, why, "the next retention or trim removes it")
        self.floor = floor
        return places

    def _ends_in(self, found: Segment, later: list[Segment]) -> bool:
        """Whether the log ends in a segment that has not rolled.

        If so, segments after it are not part of the log, unless one of them says that all before
        it was on disk once: in that case the end of this one is lost. Segments that were made
        after this pass began do not count.
        """
        later = [s for s in later if s.header is None or not self._is_newer(s.header)]
        frames, header = found.frames, found.header
        assert frames is not None and header is not None
        if frames.tail is None and (
            frames.end != "limit" or frames.damaged or frames.walk.offset < found.required
        ):
            return False
        walk = frames.tail.walk if frames.tail is not None else frames.walk
        active = _active(self.peek.words) if self.peek is not None else 0
        if any(s.header is not None and s.header.number == active for s in later):
            return False
        return not any(
            s.claims
            and s.base >= walk.next_seq
            and (s.header is None or s.header.number > header.number)
            for s in later
        )

    def _set_apart(self, stray: Segment, end: Segment) -> None:
        """Note a segment after the end of the log."""
        assert end.frames is not None
        if stray.header is not None and self._is_newer(stray.header):
            return
        walk = end.frames.tail.walk if end.frames.tail is not None else end.frames.walk
        if stray.header is None:
            why = f"it cannot be read as a segment ({without_path(stray)})"
            self._set_aside(stray, why, "move it away, or let repair do it", "damage")
            return
        if stray.base < walk.next_seq:
            why, todo = f"it begins inside the segment of seq {end.base}", "move it away"
        else:
            why = f"nothing leads to it: the segment of seq {end.base} has not rolled"
            todo = (
                "an interrupted load or a power failure leaves this, and the next open for "
                "writing moves it aside"
            )
        self._set_aside(stray, why, todo)

    def _is_newer(self, header: Header) -> bool:
        """Whether a segment was made after this pass began."""
        if self.peek is None or not self.peek.live:
            return False
        return header.number > _active(self.peek.words)

    def _guess(self, found: Segment, before: Segment | None, rest: list[Segment]) -> bool:
        """Make a header for a segment whose header cannot be read; ``rest`` begins with it."""
        if found.newer or (found.size == 0 and not files.exists(found.path)):
            self.outside.append(found)
            self.problems.append(
                Problem("version", "damage", found.path, f"{found.error}; use a newer Penstock")
            )
            return False
        distance = next((i for i, s in enumerate(rest) if s.header is not None), 0)
        after = rest[distance] if distance else None
        found.header = guess_header(found, before, after, distance) if found.size else None
        if found.header is None and found.size:
            found.header = guess_alone(found, self.uuid, self._number_of(found))
            found.alone = True
        found.guessed = True
        if found.header is None:
            self.outside.append(found)
            self.problems.append(
                Problem(
                    "header",
                    "damage",
                    found.path,
                    f"its header cannot be read ({without_path(found)}), and it cannot be "
                    "rebuilt; restore it from a copy",
                    offset=0,
                )
            )
        return found.header is not None

    def _number_of(self, found: Segment) -> int:
        """The number of the oldest segment, if it does not contain it: control may know it."""
        words = self.peek.words if self.peek is not None else {}
        active = words.get(L.C_ACTIVE_BASE) == found.name_base
        return _active(words) or 1 if active else 1

    def _judge_chain(self, places: list[ChainLink]) -> None:
        for place, following in pairwise(places):
            header, next_header = place.segment.header, following.segment.header
            assert header is not None and next_header is not None
            leads_to = place.segment.leads_to
            if place.walk.next_seq > next_header.base_seq:
                place.say(
                    "chain",
                    "damage",
                    f"it has events up to seq {place.walk.next_seq - 1}, and the next segment "
                    f"begins with {next_header.base_seq}; move the wrong one away",
                )
            if leads_to is None:
                continue  # reported already: its end is lost
            if leads_to < next_header.base_seq:
                self._missing(place, leads_to, next_header.base_seq - 1)
            elif next_header.number_first != header.number + 1:
                following.say(
                    "chain",
                    "damage",
                    f"its number is {next_header.number}, and {header.number} comes before it; "
                    f"{REPAIR}",
                    offset=0,
                )
        if places:
            self._judge_newest(places[-1])

    def _missing(self, place: ChainLink, first: int, last: int | None) -> None:
        upto = f"to {last}" if last is not None else "on"
        place.problems.append(
            Problem(
                "missing",
                "damage",
                os.path.join(self.path, segment.file_name(first)),
                f"is missing: seq {first} {upto} cannot be read; restore it from a copy, or "
                f"{REPAIR}",
                last_seq=first - 1,
                lost=None if last is None else (first, last),
            )
        )

    def _judge_newest(self, newest: ChainLink) -> None:
        leads_to = newest.segment.leads_to
        header = newest.segment.header
        assert header is not None
        words = self.peek.words if self.peek is not None else None
        known = words is not None and _active(words) > header.number
        if leads_to is not None and (newest.segment.footer is not None or known):
            last = words[L.C_NEXT_SEQ] - 1 if words is not None else None
            self._missing(newest, leads_to, last if last is not None and last >= leads_to else None)
        elif leads_to is not None:
            newest.say(
                "roll",
                "normal",
                "ends in a roll frame and the next segment is not there yet; the next open for "
                "writing makes it",
                offset=newest.walk.last_frame,
                last_seq=leads_to - 1,
            )

    def _mention_rest(self) -> None:
        for name in self.names:
            if segment.is_name(name) or name in _KNOWN:
                continue
            if name.startswith(LOST):
                what = "bytes that recovery took out of a segment, kept for inspection"
            elif name.startswith(DAMAGED):
                what = "a segment as it was before a repair; delete it when it is no longer needed"
            elif is_leftover_name(name) and is_ours(self.directory.file(name)):
                what = "unfinished work of a process, dead or still running"
            else:
                what = "not a file of Penstock; it is left alone"
            self.problems.append(
                Problem("left-over", "normal", os.path.join(self.path, name), what)
            )


def check_has_segments(directory: Directory) -> None:
    """Raise `NoSuchLog` if a directory holds no segment."""
    if not any(segment.is_name(name) for name in files.list_dir(directory)):
        raise _no_segment(directory.path)


def _no_segment(path: str) -> NoSuchLog:
    return NoSuchLog(f"{path}: there is no log here: it holds no segment", filename=path)


def _active(words: Words) -> int:
    """The number of the segment that takes appends."""
    return SegmentPosition.unpack(words[L.C_HEAD]).number


def _was_merged(before: Segment, found: Segment) -> bool:
    """Whether a segment is one of those that were merged into the one before it."""
    merged, own = before.header, found.header
    if merged is None or own is None or not merged.merged:
        return False
    return merged.number_first < own.number <= merged.number


def _follows(before: Segment, found: Segment) -> bool:
    """Whether the numbers go up; a guessed number does not contradict one that was read."""
    assert before.header is not None and found.header is not None
    if before.guessed or found.guessed:
        return True
    return found.header.number > before.header.number
