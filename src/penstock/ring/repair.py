"""Repair of a ring: a new file with every event that is still valid, under its own seq.

The valid frames are copied one after the other, so that the new ring has one lap, which begins
with the oldest. It never changes the file that it reads from. In place, under LOCK_EX:

1. Write the new ring beside the old one, and sync it.
2. Keep the old one as ``<name>.damaged-<time>.bin``.
3. Give the new one its name; sync the names.

A process that dies before 3 leaves the old ring as it was, and a file that the next repair deletes.
"""

from __future__ import annotations

import os
from dataclasses import replace

from penstock import _core
from penstock import layout as L
from penstock._core import RingMap, Walked
from penstock.errors import AlreadyExists, Busy, Corrupt, Internal, UnsupportedVersion, Usage
from penstock.report import Plan, Progress, Step
from penstock.ring.ending import Ends
from penstock.ring.file import UNFINISHED, Header, as_map, make_file, sweep, write_slot
from penstock.ring.verify import Findings, survey
from penstock.segments.check.rebuild import control_frame, mode_of
from penstock.settings import Settings
from penstock.system import files
from penstock.system.forks import Begun


def repair(path: str, to: str | None, in_place: bool, progress: Progress | None) -> Plan:
    """Plan the repair of the ring at ``path``, and do it if ``to`` or ``in_place`` is given."""
    if to is not None and in_place:
        raise Usage("repair works in place or to a new file, not both")
    if in_place:
        return _in_place(path, progress)
    begun = Begun("repair")
    found = survey(path, progress)
    begun.check()
    _refuse(found)
    if to is not None:
        _to_file(found, to)
    return _plan(found, to)


def _plan(found: Findings, target: str | None) -> Plan:
    kinds = sorted({p.kind for p in found.problems if p.severity == "damage"})
    steps: list[Step] = []
    if kinds:
        message = f"damaged: {', '.join(kinds)}; {found.count} events"
        steps.append(Step("rebuild", os.path.basename(found.path), message))
    lost = sorted(p.lost for p in found.problems if p.lost is not None)
    return Plan(found.path, target, tuple(steps), tuple(lost), found.count if kinds else 0)


def _refuse(found: Findings) -> None:
    """Raise if a repair would lose more than it saves."""
    for problem in found.problems:
        if problem.kind == "version":
            raise UnsupportedVersion(
                f"{problem.path}: {problem.message}; repair would lose it", path=problem.path
            )
    if found.header is None:
        why = found.problems[0].message
        raise Corrupt(f"{found.path}: {why}", path=found.path, offset=0)


def _new_header(found: Findings) -> Header:
    """The header of the repaired ring."""
    header = found.header
    assert header is not None
    first = found.walk.first_seq if found.count else found.next_seq
    # A control frame that is left may name an event after it that is lost.
    lost = any(problem.lost is not None for problem in found.problems)
    dense = not lost and (not found.count or found.next_seq - first == found.count)
    generation = header.generation
    if found.guessed:
        generation = 0 if dense else 1
    elif not dense:
        generation = min(generation + 1, L.GENERATION_MAX)
    if found.guessed or not found.count:
        header = replace(header, base_seq=first)
    return replace(header, generation=generation, settings=_settings_of(found, header))


def _settings_of(found: Findings, header: Header) -> bytes:
    """The settings for the new header: the old one's, else the newest frame's, else the defaults.

    A guessed header has no settings.
    """
    frame = None
    if found.map is not None and found.walk.settings_offset:
        frame = found.map.frame_at(found.walk.settings_offset, found.start, found.head)
    own = b"" if found.guessed else header.settings
    for data in (own, frame[3] if frame is not None else b""):
        try:
            Settings.from_json(data, found.path)
        except Corrupt:
            continue
        return data
    return Settings().to_json()


def _fill(found: Findings, out: RingMap, header: Header) -> Ends:
    """Copy the valid frames into an empty ring, and walk over them; they are not synced yet."""
    source = found.map
    assert source is not None and found.header is not None
    _core.check_ring(source, found.start, found.head, holes=found.header.generation > 0, out=out)
    ends = _walk(out, header)
    if ends.walk.count != found.count:
        raise Internal(
            f"{out.path}: the written frames do not match those that were read; please report it"
        )
    if found.count and ends.next_seq < found.next_seq:
        # The newest events are lost. Their seqs are not used again: a pad frame
        # carries the next one.
        back = ends.head - ends.walk.last_frame
        frame = control_frame(L.KIND_PAD, found.next_seq, ends.walk.last_append_ns, back)
        offset = header.data_offset + ends.head % header.ring_bytes
        files.write_at(out.fd, frame, offset, out.path)
        ends = _walk(out, header)
    return ends


def _walk(out: RingMap, header: Header) -> Ends:
    room = header.ring_bytes
    start = Walked(
        offset=room, next_seq=0, event_max_ns=header.prior_event_max_ns, monotone=header.monotone
    )
    walk, _, _ = out.walk_ring(2 * room, resume=start)
    if walk.offset == room:
        walk.next_seq = header.base_seq
        walk.last_append_ns = header.prior_append_ns
    return Ends(out, header, room, walk, 2 * room)


def _write(found: Findings, temporary: str, mode: int) -> int:
    """Make and sync the repaired ring under a temporary name; a descriptor that locks it."""
    header = _new_header(found)
    fd = make_file(temporary, header, mode)
    held = -1
    try:
        try:
            held = files.open_file(temporary, write=True)
            files.lock_exclusive(held, temporary)
            out = as_map(fd, temporary, header, write=True)
        except BaseException:
            files.close(fd)
            raise
        ends = _fill(found, out, header)
        files.sync_data(held, temporary)  # a checkpoint must only cover frames that are on disk
        write_slot(held, ends.slot(2, clean=True), temporary)
        files.sync_data(held, temporary)
    except BaseException:
        if held >= 0:
            files.close(held)
        files.unlink(temporary)
        raise
    return held


def _temporary(path: str) -> str:
    return f"{path}.{os.urandom(4).hex()}{UNFINISHED}"


def _to_file(found: Findings, target: str) -> None:
    """Write the repaired ring to a new file, which gets its name last."""
    if files.exists(target):
        raise AlreadyExists(
            f"{target}: this path exists already; give that of a new file", filename=target
        )
    temporary = _temporary(target)
    held = _write(found, temporary, mode_of(found.path, 0o600))
    try:
        _core.fail_point("mend.built")
        files.link(temporary, target)
    finally:
        files.unlink(temporary)
        files.close(held)
    files.sync_way(target)


def _in_place(path: str, progress: Progress | None) -> Plan:
    fd = files.open_file(path, write=False)
    try:
        with _core.FlockBlock(fd):
            return _alone(path, fd, progress)
    finally:
        files.close(fd)


def _alone(path: str, fd: int, progress: Progress | None) -> Plan:
    if not files.lock_exclusive(fd, path) or not files.same_file(fd, path):
        raise Busy(
            f"{path}: another process has the log open; close it in every process, or repair it to "
            "a new file"
        )
    sweep(path)
    begun = Begun("repair")
    found = survey(path, progress)
    begun.check()
    _refuse(found)
    if found.damaged:
        _replace(found)
    return _plan(found, path)


def _replace(found: Findings) -> None:
    path = found.path
    temporary = _temporary(path)
    held = _write(found, temporary, mode_of(path, 0o600))
    try:
        _core.fail_point("mend.built")
        files.keep_as(path, f"{path}.damaged-{_core.now_ns()}.bin")
        _core.fail_point("mend.kept")
        files.rename(temporary, path)
        _core.fail_point("mend.named")
        files.sync_parent(path)
    finally:
        files.unlink(temporary)
        files.close(held)
