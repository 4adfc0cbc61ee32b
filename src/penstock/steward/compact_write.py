"""Write a new generation of a segment, or of several neighbours as one, and replace the old one.

1. Write it under a temporary name, read it back and check it, sync it.
2. If there are several: make a note which they are; sync the directory.
3. Rename it over the first of the old ones; sync the directory. Before and after that, count in
   control, so that every handle drops its old maps.
4. Delete the other ones, which it covers now; sync the directory; delete the note.

A reader that has an old one mapped goes on with it. A process that dies before 3 leaves a file that
is recognised by its content; one that dies before 4, segments inside the range of another one,
which nobody lists because of the note. Both are swept by the next job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock import _core, headers
from penstock import layout as L
from penstock._core import Control, LiveFrames, SegmentMap
from penstock.errors import Internal
from penstock.segments import producers, segment
from penstock.segments.check.rebuild import control_frame, finish, mode_of
from penstock.segments.leftovers import (
    COMPACT,
    MERGED,
    MERGED_START,
    is_leftover_name,
    is_ours,
    merged_into,
)
from penstock.segments.segment import Header
from penstock.segments.store import Store
from penstock.steward.compact_survey import Bits, Candidate
from penstock.system import files
from penstock.system.directory import Directory, Name
from penstock.tunables import SCAN_WINDOW_BYTES


@dataclass(slots=True)
class Replacer:
    """Replaces segments of one log; under the turn."""

    directory: Directory
    control: Control
    dir_fd: int
    file_mode: int

    def write(
        self, group: Sequence[Candidate], bits: Bits | None = None, key: bytes | None = None
    ) -> Name:
        """Make the new generation of some neighbours, under its temporary name, and sync it."""
        first, last = group[0], group[-1]
        target = self.directory.file(f"{COMPACT}{first.base:020d}.tmp")
        header, table = _header_of(group)
        fd = files.create_file(target, mode_of(first.path, self.file_mode))
        try:
            segment.mark_begun(fd, target)
            if table:
                padded = table.ljust(segment.pages(len(table)), b"\0")
                files.write_at(fd, padded, header.producers_offset, target)
            end, last_frame = header.data_offset, 0
            for one in group:
                end, last_frame = _copy(one, bits, key, fd, target, end, last_frame)
            frame = control_frame(
                L.KIND_ROLL,
                last.summary.next_seq,
                last.summary.last_append_ns,
                end - last_frame if last_frame else 0,
            )
            files.write_at(fd, frame, end, target)
            _core.fail_point("compact.copied")
            headers.put(fd, header.pack(), target)
            walk = finish(fd, header, end + len(frame), True, target)
            if walk.count != sum(one.events for one in group):
                raise Internal(f"{target}: {walk.count} events were written; please report it")
            files.sync_data(fd, target)
        except BaseException:
            files.close(fd)
            files.unlink(target)
            raise
        files.close(fd)
        _core.fail_point("compact.written")
        return target

    def put_in_place(self, target: Name, group: Sequence[Candidate]) -> None:
        """Replace the old ones."""
        note = self._note(group) if len(group) > 1 else None
        self.control.add(L.C_REWRITES)
        files.rename(target, group[0].path)
        _core.fail_point("compact.renamed")
        files.sync_dir(self.dir_fd, self.directory.path)
        self.control.add(L.C_REWRITES)
        _core.fail_point("compact.named")
        for one in group[1:]:
            files.unlink(one.path)
            _core.fail_point("compact.removed")
        if note is not None:
            files.sync_dir(self.dir_fd, self.directory.path)
            files.unlink(note)

    def _note(self, group: Sequence[Candidate]) -> Name:
        """Note which segments go into the first one: nobody lists them once that is replaced."""
        stop = group[-1].summary.next_seq
        note = self.directory.file(f"{MERGED}{group[0].base:020d}-{stop:020d}.tmp")
        fd = files.create_file(note, self.file_mode)
        try:
            files.write_at(fd, MERGED_START, 0, note)
        finally:
            files.close(fd)
        files.sync_dir(self.dir_fd, self.directory.path)
        _core.fail_point("compact.noted")
        return note


def _header_of(group: Sequence[Candidate]) -> tuple[Header, bytes]:
    """The header and the table of producers of a new generation.

    Both say how things stand at the end of the last one: no frame in between changes them.
    """
    first, last = group[0], group[-1]
    generation = max(one.header.generation for one in group) + 1
    if generation > L.GENERATION_MAX:
        raise Internal(f"{first.path}: was rewritten too often")
    settings, table = _state_at_end(last)
    header = replace(
        first.header,
        number=last.header.number,
        generation=generation,
        created_ns=_core.now_ns(),
        settings=settings,
        producers_bytes=len(table),
        producers_crc=_core.crc32c(table) if table else 0,
        compacted=any(one.dead or one.header.compacted for one in group),
        merged=last.header.number - first.header.number_first,
        version=L.FORMAT_VERSION,
    )
    frames = sum(one.nbytes for one in group)
    return replace(header, segment_bytes=segment.size_for(frames, len(table))), table


def _state_at_end(one: Candidate) -> tuple[bytes, bytes]:
    """Settings, and the table of producers, at the end of a segment."""
    m = one.open()
    settings = one.header.settings
    if one.settings_at:
        settings = m.frame_body(one.settings_at, L.KIND_SETTINGS)
    fd = files.open_file(one.path, write=False)
    try:
        data = segment.read_producers(fd, one.header, one.path)
    finally:
        files.close(fd)
    if not one.producer_at:
        return settings, data
    table = producers.table_from(data, m, one.producer_at)
    return settings, table.pack(one.header.segment_bytes // L.PRODUCERS_SHARE)


def _copy(
    one: Candidate,
    bits: Bits | None,
    key: bytes | None,
    fd: int,
    target: str,
    out_at: int,
    out_last: int,
) -> tuple[int, int]:
    """Copy the events of a segment that live; returns their end, and where the last one is."""
    m = one.open()
    area = None if bits is None else bits.area
    live = LiveFrames(m, one.summary.data_end, area, one.first_bit, key, out_at, out_last)
    while True:
        at = live.out_at
        data = live.run()
        if isinstance(data, tuple):
            _copy_long(m, data, fd, target, at)
        elif data:
            files.write_at(fd, data, at, target)
        else:
            return live.out_at, live.out_last


def _copy_long(m: SegmentMap, frame: tuple[bytes, int, int], fd: int, target: str, at: int) -> None:
    """Copy a long frame piece by piece."""
    head, start, nbytes = frame
    files.write_at(fd, head, at, target)
    at += len(head)
    for done in range(0, nbytes, SCAN_WINDOW_BYTES):
        step = min(SCAN_WINDOW_BYTES, nbytes - done)
        files.write_at(fd, m.bytes_at(start + done, step), at + done, target)
    files.write_at(fd, bytes(-nbytes % L.ALIGN), at + nbytes, target)


def sweep(directory: Directory, dir_fd: int, store: Store) -> None:
    """Delete what a killed compaction left."""
    for name in files.list_dir(directory):
        if is_leftover_name(name) and name.startswith(COMPACT) and is_ours(directory.file(name)):
            files.unlink(directory.file(name))
    for base in store.covered():
        files.unlink(store.file(base))
        store.readmit(base)
    notes = [n for n in files.list_dir(directory) if merged_into(n) and is_ours(directory.file(n))]
    if notes:
        files.sync_dir(dir_fd, directory.path)
        for name in notes:
            files.unlink(directory.file(name))
