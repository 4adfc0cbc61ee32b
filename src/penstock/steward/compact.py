"""Compaction: keep the last events of each key, and remove what is dead, segment by segment.

`compact_survey.py` finds the dead events, `compact_write.py` writes new generations. Only sealed
segments are changed, the oldest first: so what a deletion deletes is gone before the deletion is.
Newer events count only if they are on disk, or a loss of power could take both versions of a key.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from penstock import _core
from penstock import layout as L
from penstock._core import SegmentMap
from penstock.errors import Busy, NotFound, PenstockError
from penstock.layout import SegmentPosition
from penstock.segments import segment
from penstock.segments.store import Store
from penstock.steward import turn
from penstock.steward.compact_report import CompactedSegment, CompactionReport, CompactRequest
from penstock.steward.compact_survey import Candidate, Rules, find_dead
from penstock.steward.compact_write import Replacer, sweep
from penstock.steward.seal import seal_finished
from penstock.system import files
from penstock.system.directory import Directory, Name
from penstock.system.forks import Begun

if TYPE_CHECKING:
    from penstock.handle.handle import Handle

_TRIES = 20
_FOR_EVER = 1 << 62  # deletions stay: what they delete may be archived, where it is not removed
SMALL_SHARE = 2  # a segment that has nothing dead is merged if it takes at most this part of one


@dataclass(slots=True)
class Maintenance:
    """One maintenance job on the sealed segments of a log, and what it works with."""

    handle: Handle
    directory: Directory
    store: Store

    def candidates(self) -> list[Candidate]:
        """The sealed segments, oldest first, none of which is missing.

        A deletion must not go while what it deletes may come back in a restored segment.
        """
        for _ in range(_TRIES):  # another job may replace some while a dry run lists them
            found = self._sealed()
            ends = [(one.summary.next_seq, other.base) for one, other in pairwise(found)]
            gap = next(((end, base) for end, base in ends if end != base), None)
            if gap is None:
                return found
        assert gap is not None
        raise self.store.missing(*gap)

    def _sealed(self) -> list[Candidate]:
        """The sealed segments that are there."""
        found: list[Candidate] = []
        active = SegmentPosition.unpack(self.handle._head()).number
        for base in list(self.store.bases(fresh=True)):
            one = look(self.store.file(base))
            if one is None or self.store.why_foreign(one.header, base):
                continue
            if one.header.number >= active:
                break
            if found and base < found[-1].summary.next_seq:
                continue  # it was merged into the one before
            found.append(one)
        return found

    def newer(self, sealed_end: int) -> Iterator[tuple[SegmentMap, int, int]]:
        """What follows the sealed segments, the newest first, as far as it is on disk."""
        attached = self.handle._ctl
        if attached is None:
            durable = SegmentPosition.unpack(self.handle._head())
        else:
            durable = SegmentPosition.unpack(attached.get(L.C_DURABLE_POS))
        for base in reversed([b for b in self.store.bases(fresh=True) if b >= sealed_end]):
            try:
                m, _ = segment.map_segment(self.store.file(base))
            except NotFound:
                continue
            if m.number > durable.number or m.uuid != self.store.uuid:
                continue
            limit = durable.offset if m.number == durable.number else m.data_end or m.grown()
            walk, state, bad_at = m.walk(max(limit, m.data_offset))
            if walk.offset < limit and m.number == durable.number:
                raise m.damage(bad_at, state, walk.next_seq - 1)
            yield m, walk.last_frame, walk.offset


def look(path: Name) -> Candidate | None:
    """A sealed segment; None if it is gone, or not sealed."""
    try:
        fd = files.open_file(path, write=False)
    except NotFound:
        return None
    try:
        header = segment.read_header(fd, path)
        summary = segment.read_footer(fd, header, path)
    finally:
        files.close(fd)
    return None if summary is None else Candidate(path, header, summary)


@contextmanager
def job(
    handle: Handle, directory: Directory, *, timeout: float | None, only_look: bool
) -> Iterator[Maintenance]:
    """Have the turn, with all finished segments sealed; with ``only_look``, replace nothing."""
    store = Store(directory, handle._uuid(), [], lambda: 0)
    found = Maintenance(handle, directory, store)
    store.raise_floor(handle._floor())
    if only_look:
        if handle._writable:
            seal_all(handle, store)
        yield found
        return
    with turn.taken(directory, timeout):
        begun = Begun("maintenance")
        seal_all(handle, store)
        dir_fd = files.open_dir(directory)
        try:
            sweep(directory, dir_fd, store)
        finally:
            files.close(dir_fd)
        yield found
        begun.check()


def seal_all(handle: Handle, store: Store) -> None:
    """Sync the log, and seal every segment that has ended."""
    handle._storage.check_there(handle)
    handle._sync_all(None)
    seal_finished(store, handle._live().get(L.C_ACTIVE_BASE), {})


@contextmanager
def replacing(found: Maintenance) -> Iterator[Replacer]:
    """What replaces segments of the log."""
    handle = found.handle
    fd = files.open_dir(found.directory)
    try:
        yield Replacer(found.directory, handle._live(), fd, handle.settings.file_mode)
    finally:
        files.close(fd)
        handle._recent.clear()


def note_holes(handle: Handle) -> None:
    """Store, before the first event goes, that seqs may be missing between events."""
    if not handle.settings.holes:
        handle._change_settings(lambda now: now.changed(holes=True))
        handle._sync_all(None)


def compact(handle: Handle, directory: Directory, request: CompactRequest) -> CompactionReport:
    """Compact a log of segments; `Steward.compact` documents it."""
    only_look = request.dry_run
    handle._ensure_open()
    if not only_look:
        handle._check_writable()
    try:
        with job(handle, directory, timeout=request.timeout, only_look=only_look) as found:
            done = _compact(found, request)
    except Busy:
        raise
    except PenstockError as error:
        handle._record.failed("compact", error)
        raise
    handle._record.dead_bytes = done.dead_bytes if only_look else 0
    if not only_look:
        handle._record.succeeded("compact")
    return done


def _compact(found: Maintenance, request: CompactRequest) -> CompactionReport:
    handle, progress, begun = found.handle, request.progress, Begun("compaction")
    candidates = found.candidates()
    total = 2 * sum(one.frames_bytes for one in candidates)
    done = 0

    def passed(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        if progress is not None:
            progress(done, total)
            begun.check()

    rules = Rules(
        versions=request.versions,
        grace_ns=_FOR_EVER if handle.settings.archive else request.grace_ns,
        drop_keyless=request.drop_keyless,
        memory=request.memory,
        now_ns=_core.now_ns(),
        ttl_ns=handle.settings.ttl_ns,
        first_seq=handle._floor(),
    )
    if not candidates:
        return CompactionReport(directory_path(found), request.dry_run, ())
    newer = found.newer(candidates[-1].summary.next_seq)
    bits, spilled = find_dead(found.directory, candidates, newer, rules, passed)
    groups = plan(candidates, segment.room_in(handle.settings.segment_size))
    if not request.dry_run and groups:
        if any(one.dead for one in candidates):
            note_holes(handle)
        with replacing(found) as replacer:
            for group in groups:
                replacer.put_in_place(replacer.write(group, bits), group)
                passed(sum(one.frames_bytes for one in group))
    if progress is not None:
        progress(total, total)
    return CompactionReport(
        directory_path(found), request.dry_run, _figures(candidates, groups), spilled
    )


def directory_path(found: Maintenance) -> str:
    """The log's path, for reports."""
    return os.fspath(found.handle.path)


def plan(candidates: list[Candidate], room: int) -> list[list[Candidate]]:
    """Which segments are replaced, and which neighbours become one.

    A segment without a dead event is left alone, unless it is small and a neighbour fits beside it:
    a large one is not written again and again because small ones follow.
    """
    groups: list[list[Candidate]] = []
    for one in candidates:
        table = segment.pages(one.header.producers_bytes)
        small = one.nbytes + table <= room // SMALL_SHARE
        joins = (
            bool(groups)
            and (small or one.dead > 0)
            and _may_grow(groups[-1], room)
            and sum(g.nbytes for g in groups[-1]) + one.nbytes + table <= room
            and groups[-1][-1].summary.next_seq == one.base
            and one.header.number - groups[-1][0].header.number_first <= L.HEADER_FLAG_MERGED_MAX
        )
        if joins:
            groups[-1].append(one)
        else:
            groups.append([one])
    return [group for group in groups if len(group) > 1 or group[0].dead]


def _may_grow(group: list[Candidate], room: int) -> bool:
    """Whether a group can take one more: it is written anyway, or small."""
    if len(group) > 1 or group[0].dead:
        return True
    return group[0].nbytes <= room // SMALL_SHARE


def _figures(
    candidates: list[Candidate], groups: list[list[Candidate]]
) -> tuple[CompactedSegment, ...]:
    into = {one.base: group[0].base for group in groups for one in group}
    merged = {one.base for group in groups for one in group if len(group) > 1}
    return tuple(
        CompactedSegment(
            base_seq=one.base,
            next_seq=one.summary.next_seq,
            events=one.events + one.dead,
            bytes=one.nbytes + one.dead_bytes,
            dead=one.dead,
            dead_bytes=one.dead_bytes,
            action="keep" if one.base not in into else "merge" if one.base in merged else "rewrite",
            into=into.get(one.base, one.base),
        )
        for one in candidates
    )
