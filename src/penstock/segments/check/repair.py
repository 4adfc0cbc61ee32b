"""Repair: remove the damage of a log, and keep every valid event under its seq.

It first makes a plan from what verify finds. Then it writes new files, either as a copy of the log
elsewhere or beside the damaged ones, which are kept. It never changes a file that it reads from.

In place, under LOCK_EX, as an algorithm; a second run finishes what a killed one began:

1. Write every new segment under a temporary name, and sync it.
2. Keep each file that will be replaced as ``damaged-<base>-<time>.bin``.
3. Delete control, which describes the files as they were.
4. Give the new files their names; sync the names.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from itertools import pairwise

from penstock import _core
from penstock import layout as L
from penstock.errors import Busy, Corrupt, UnsupportedVersion, Usage
from penstock.handle import locks
from penstock.handle.control import NAME as CONTROL
from penstock.report import Plan, Progress, Step
from penstock.segments import producers, segment
from penstock.segments.backup import copy_archive, new_directory
from penstock.segments.check import rebuild as R
from penstock.segments.check.examine import Segment
from penstock.segments.check.frames import FileSource
from penstock.segments.check.judge import LOST_SETTINGS, ChainLink, settings_of
from penstock.segments.check.verify import DAMAGED, Findings, check_has_segments, survey
from penstock.segments.leftovers import sweep, sweep_loads
from penstock.segments.segment import Header
from penstock.settings import Settings
from penstock.system import files
from penstock.system.directory import Directory, Name
from penstock.system.forks import Begun

_EMPTY_MAX = (
    1000  # segments that are made in place of missing ones; beyond that, segments are renumbered
)


@dataclass(slots=True)
class _Item:
    """A segment of the repaired log."""

    header: Header
    place: ChainLink | None = None  # the place of its frames now; None: it is new
    why: list[str] = field(default_factory=list)  # empty: it stays as it is
    roll_to: int | None = None
    rename: bool = False
    new_table: bool = False  # rebuild the table of producers
    table_from: _Item | None = None  # from the table at the end of this one
    built: tuple[str, Header, int] | None = None  # file, header and newest producer frame

    @property
    def name(self) -> str:
        return segment.file_name(self.header.base_seq)


def repair(
    directory: Directory,
    *,
    to: str | None = None,
    in_place: bool = False,
    progress: Progress | None = None,
) -> Plan:
    """Repair the log in ``directory``, or plan it; `penstock.repair` for a segmented log."""
    if to is not None and in_place:
        raise Usage("repair works in place or to a new directory, not both")
    if in_place:
        check_has_segments(directory)  # before the lock, which makes and moves files
        return _in_place(directory, progress)
    begun = Begun("repair")
    findings = survey(directory, progress, spare=True)
    begun.check()
    items = _design(findings)
    if to is not None:
        _to_directory(findings, items, to)
    return _plan(findings, items, to)


def _plan(findings: Findings, items: list[_Item], target: str | None) -> Plan:
    steps = []
    for item in items:
        if item.why:
            action = "add" if item.place is None else "rename" if item.rename else "rebuild"
            steps.append(Step(action, item.name, "; ".join(item.why)))
    for path in _in_the_way(findings, items):
        steps.append(Step("move", os.path.basename(path), "it cannot be read as a segment"))
    lost = sorted(p.lost for p in findings.all_problems() if p.lost is not None)
    salvaged = sum(
        i.place.walk.count for i in items if i.why and i.place is not None and not i.rename
    )
    return Plan(findings.path, target, tuple(steps), tuple(lost), salvaged)


def _in_the_way(findings: Findings, items: list[_Item]) -> list[str]:
    """Unreadable files with a segment's name that will not be replaced."""
    names = {item.name for item in items}
    unreadable = [s.path for s in findings.outside if s.header is None]
    return [path for path in unreadable if os.path.basename(path) not in names]


def _design(findings: Findings) -> list[_Item]:
    """The segments of the repaired log, in order."""
    if findings.undecided:
        raise Corrupt(findings.undecided, path=findings.path)
    for problem in findings.all_problems():
        if problem.kind == "version":
            raise UnsupportedVersion(
                f"{problem.path}: {problem.message}; repair would lose it", path=problem.path
            )
    if not findings.places:
        raise Corrupt(
            f"{findings.path}: no segment has a header that can be read, so the settings of the "
            "log are unknown; restore one segment from a copy",
            path=findings.path,
        )
    for place in findings.places:
        if place.next_base is not None and place.walk.next_seq > place.next_base:
            raise Corrupt(
                f"{place.segment.path}: it has events that belong to the next segment, seq "
                f"{place.next_base}; move the wrong one away",
                path=place.segment.path,
            )
    items: list[_Item] = []
    for place in findings.places:
        if items:
            _bridge(items, place)
        items.append(_item_for(place, items[-1] if items else None))
    _end(findings, items)
    return items


def _item_for(place: ChainLink, before: _Item | None) -> _Item:
    """Plan one segment, except where it leads to."""
    found = place.segment
    header = found.header
    assert header is not None and found.frames is not None
    item = _Item(header, place)
    if place.next_base is not None:
        item.roll_to = place.next_base
    kinds = {p.kind for p in place.problems if p.severity == "damage"} - {"missing"}
    item.rename = kinds == {"name"}
    if kinds:
        item.why.append(f"damaged: {', '.join(sorted(kinds))}; {place.walk.count} events")
    if found.alone:
        item.why.append(
            f"its header is made from its frames, and {LOST_SETTINGS} are those of a new log"
        )
    if item.rename:
        item.why = ["it has a wrong name"]
    if before is not None and header.number_first != before.header.number + 1:
        number = min(before.header.number + 1 + header.merged, L.SEGMENT_NUMBER_MAX)
        item.header = replace(item.header, number=number)
        item.why.append("its number does not follow the one before it")
        item.rename = False
    if {"settings", "header"} & kinds:
        item.header = _with_settings(item.header, place, before)
    if before is not None and (timed := _with_times(item.header, before)) != item.header:
        if place.walk.count and timed.prior_append_ns > place.walk.first_append_ns:
            raise Corrupt(
                f"{found.path}: its events are older than those of the segment before it; move "
                "the wrong one away",
                path=found.path,
            )
        item.header = timed
        item.why.append("its header does not cover all times of the frames before it")
        item.rename = False
    if found.guessed or found.producers_bad:
        item.new_table = True
        item.table_from = before
    if found.guessed and found.footer is None:
        item.header = replace(item.header, generation=0 if _is_dense(place) else 1)
    elif kinds & {"frame", "batch", "end", "many"}:
        item.header = _of_next_generation(item.header)
    elif any(p.kind == "settings" and p.offset for p in place.problems):
        item.header = _of_next_generation(item.header)  # the next segment has other ones
    return item


def _of_next_generation(header: Header) -> Header:
    """The header of a segment that is written again, and may have holes in its seqs."""
    return replace(header, generation=min(header.generation + 1, L.GENERATION_MAX))


def _is_dense(place: ChainLink) -> bool:
    """Whether the seqs of a segment go up by ones, to where it leads."""
    walk = place.walk
    wanted = walk.next_seq if place.next_base is None else place.next_base
    return bool(walk.count == wanted - place.segment.base == walk.next_seq - place.segment.base)


def _with_settings(header: Header, place: ChainLink, before: _Item | None) -> Header:
    """The header with settings that can be read."""
    try:
        Settings.from_json(header.settings, place.segment.path)
    except Corrupt:
        near = before.header.settings if before is not None else Settings().to_json()
        header = replace(header, settings=near)
    return header


def _with_times(header: Header, before: _Item) -> Header:
    """The header, covering the times of everything before it."""
    append_ns, event_max_ns = before.header.prior_append_ns, before.header.prior_event_max_ns
    monotone = before.header.monotone
    if before.place is not None:
        walk = before.place.walk
        monotone = monotone and walk.monotone
        if walk.count:
            monotone = monotone and walk.event_min_ns >= event_max_ns
        append_ns = max(append_ns, walk.last_append_ns)
        event_max_ns = max(event_max_ns, walk.event_max_ns)
    return replace(
        header,
        prior_append_ns=max(header.prior_append_ns, append_ns),
        prior_event_max_ns=max(header.prior_event_max_ns, event_max_ns),
        monotone=header.monotone and monotone,
    )


def _bridge(items: list[_Item], place: ChainLink) -> None:
    """Make the last item lead to ``place``, over empty segments in place of missing ones."""
    last = items[-1]
    assert last.place is not None and place.segment.header is not None
    base = place.segment.base
    leads_to = last.place.segment.leads_to
    ends = last.place.walk.next_seq if leads_to is None else leads_to
    ends = max(ends, last.header.base_seq + 1)
    missing = place.segment.header.number_first - last.header.number - 1
    missing = min(missing, base - ends, _EMPTY_MAX)
    bases = [ends + i for i in range(max(0, missing))] + [base]
    _lead(last, bases[0])
    for first, following in pairwise(bases):
        items.append(_empty(items[-1], last.place, first, following))


def _lead(item: _Item, base: int) -> None:
    """End an item in a roll frame to ``base``."""
    item.roll_to = base
    assert item.place is not None
    found = item.place.segment
    if found.leads_to != base or found.frames is None or found.frames.end != "rolled":
        if item.rename or not item.why:
            item.rename = False
            item.why = ["it must lead to the next existing segment"]
            item.header = _of_next_generation(item.header)
        elif item.place.walk.next_seq != base and item.header.generation == 0:
            item.header = replace(item.header, generation=1)


def _empty(before: _Item, place: ChainLink, base: int, following: int) -> _Item:
    """An empty segment in place of a missing one."""
    walk = place.walk
    header = replace(
        before.header,
        base_seq=base,
        number=before.header.number + 1,
        generation=1,
        created_ns=_core.now_ns(),
        prior_append_ns=max(before.header.prior_append_ns, walk.last_append_ns),
        prior_event_max_ns=max(before.header.prior_event_max_ns, walk.event_max_ns),
        monotone=before.header.monotone and walk.monotone,
        producers_bytes=0,
        producers_crc=0,
        merged=0,
    )
    lost = f"seq {base} to {following - 1}" if following - 1 > base else f"seq {base}"
    return _Item(header, None, [f"{lost} is missing; it leads to {following}"], following)


def _end(findings: Findings, items: list[_Item]) -> None:
    """Make the log end in a segment that takes appends."""
    newest = items[-1]
    place = newest.place
    assert place is not None
    leads_to = place.segment.leads_to
    gone = any(p.kind == "missing" for p in place.problems)
    rebuilt = bool(newest.why) and newest.header.generation > 0
    if leads_to is not None and not gone and not newest.why:
        return  # an unfinished roll: the next open finishes it
    if leads_to is None and not rebuilt:
        return
    first = place.walk.next_seq if leads_to is None else leads_to
    ends = [p.lost[1] + 1 for p in place.problems if p.lost is not None and p.kind == "end"]
    first = max([first, *ends, newest.header.base_seq + 1])
    after = [p.lost[1] + 1 for p in place.problems if p.lost is not None and p.kind == "missing"]
    _lead(newest, first)
    for following in after:
        if following > first:
            items.append(_empty(items[-1], place, first, following))
            first = following
    items.append(_fresh(items[-1], place, first))
    items[-1].table_from = newest


def _fresh(before: _Item, place: ChainLink, base: int) -> _Item:
    """A new segment at the end of the log, to take appends."""
    walk = place.walk
    settings = _settings_of(place)
    header = replace(
        before.header,
        base_seq=base,
        number=before.header.number + 1,
        generation=0,
        created_ns=_core.now_ns(),
        segment_bytes=settings.segment_size,
        prior_append_ns=max(before.header.prior_append_ns, walk.last_append_ns),
        prior_event_max_ns=max(before.header.prior_event_max_ns, walk.event_max_ns),
        monotone=before.header.monotone and walk.monotone,
        settings=settings.to_json(),
        producers_bytes=0,
        producers_crc=0,
        compacted=False,
        merged=0,
    )
    why = [f"it takes appends from seq {base} on"]
    return _Item(header, None, why, new_table=True)


def _settings_of(place: ChainLink) -> Settings:
    """The settings at the end of a segment, or else those that can be read."""
    assert place.segment.header is not None
    try:
        return settings_of(place)
    except Corrupt:
        pass
    try:
        return Settings.from_json(place.segment.header.settings, place.segment.path)
    except Corrupt:
        return Settings()


def _table_of(item: _Item) -> bytes:
    """The table of producers at the start of a segment: that at the end of the one before it."""
    room = item.header.segment_bytes // L.PRODUCERS_SHARE
    if item.place is not None:
        room = min(room, item.header.producers_bytes)  # frames must not move up
    before = item.table_from
    if before is None or before.built is None:
        return b""
    path, header, newest = before.built
    source = FileSource(path)
    try:
        data = source.read(header.producers_offset, header.producers_bytes)
    finally:
        source.close()
    m, _ = segment.map_segment(path)
    try:
        return producers.table_from(data, m, newest).pack(room)
    except Corrupt:
        return b""


def _build(item: _Item, target: str, findings: Findings, fallback: int) -> None:
    """Write the file of one item."""
    header, place = item.header, item.place
    mode = fallback if place is None else R.mode_of(place.segment.path, fallback)
    if place is not None and (item.rename or not item.why):
        whole = not (findings.live and place.newest)
        end = place.walk.offset
        R.copy_file(place.segment.path, target, mode, header=header, end=end, whole=whole)
        item.built = (target, header, place.walk.producer_offset)
        return
    table = b""
    if item.new_table:
        table = _table_of(item)
        crc = _core.crc32c(table) if table else 0
        header = replace(header, producers_bytes=len(table), producers_crc=crc)
    elif place is not None:
        table = _read(place.segment, header.producers_offset, header.producers_bytes)
    source = FileSource(place.segment.path) if place is not None else None
    frames = None
    if place is not None and source is not None:
        assert place.segment.header is not None
        limit = place.segment.limit if place.torn is None else place.torn.start
        frames = (source, place.segment.header, limit)
    try:
        walk = R.write_segment(
            target, header, mode, table=table, source=frames, roll_to=item.roll_to
        )
    finally:
        if source is not None:
            source.close()
    item.built = (target, header, walk.producer_offset)


def _read(found: Segment, offset: int, nbytes: int) -> bytes:
    if not nbytes:
        return b""
    source = FileSource(found.path)
    try:
        return source.read(offset, nbytes)
    finally:
        source.close()


def _file_mode(findings: Findings) -> int:
    return _settings_of(findings.places[-1]).file_mode


def _to_directory(findings: Findings, items: list[_Item], target: str) -> None:
    """Write the repaired log to a new directory, which gets its name last."""
    mode = _file_mode(findings)

    def fill(partial: str) -> None:
        for item in items:
            _build(item, os.path.join(partial, item.name), findings, mode)
        copy_archive(findings.directory, partial, mode)

    new_directory(target, Settings(file_mode=mode).dir_mode, fill)


def _in_place(directory: Directory, progress: Progress | None) -> Plan:
    lock_fd = locks.make_lock(directory, 0)
    try:
        dir_fd = files.open_dir(directory)
        try:
            with _core.FlockBlock(dir_fd):
                return _alone(directory, dir_fd, lock_fd, progress)
        finally:
            files.close(dir_fd)
    finally:
        _core.close_fd(lock_fd)


def _alone(directory: Directory, dir_fd: int, lock_fd: int, progress: Progress | None) -> Plan:
    path = directory.path
    if not files.lock_exclusive(lock_fd, path) or not files.lock_exclusive(dir_fd, path):
        raise Busy(
            f"{path}: another process has the log open; close it in every process, or repair it to "
            "a new directory"
        )
    names = files.list_dir(directory)
    sweep(directory, names)
    sweep_loads(directory, names)
    begun = Begun("repair")
    findings = survey(directory, progress, spare=True)
    begun.check()
    items = _design(findings)
    in_the_way = _in_the_way(findings, items)
    if in_the_way or any(i.why for i in items):
        _replace(findings, items, dir_fd)
    for name in in_the_way:
        files.rename(name, _kept_name(directory, name))
    files.sync_dir(dir_fd, path)
    return _plan(findings, items, path)


def _replace(findings: Findings, items: list[_Item], dir_fd: int) -> None:
    """Replace damaged segments by new ones."""
    directory = findings.directory
    mode = _file_mode(findings)
    ready: list[tuple[Name, Name]] = []
    for item in items:
        if not item.why:
            assert item.place is not None
            source = item.place.segment.path
            item.built = (source, item.header, item.place.walk.producer_offset)
            continue
        new = directory.file(f"next.repair-{item.header.base_seq:020d}.tmp")
        _build(item, new, findings, mode)
        ready.append((new, directory.file(item.name)))
    _core.fail_point("mend.built")
    for _, name in ready:
        if files.exists(name):
            files.keep_as(name, _kept_name(directory, name))
            _core.fail_point("mend.kept")
    files.sync_dir(dir_fd, directory.path)
    files.unlink(directory.file(CONTROL))
    for new, name in ready:
        files.rename(new, name)
        _core.fail_point("mend.named")
    names = {item.name for item in items}
    for item in items:
        if item.place is not None:
            was = item.place.segment.path
            if segment.is_name(os.path.basename(was)) and os.path.basename(was) not in names:
                files.rename(was, _kept_name(directory, was))
    files.sync_dir(dir_fd, directory.path)


def _kept_name(directory: Directory, name: str) -> Name:
    base = os.path.basename(name)[: -len(segment.SUFFIX)]
    return directory.file(f"{DAMAGED}{base}-{_core.now_ns()}.bin")


__all__ = ["Plan", "Step", "repair"]
