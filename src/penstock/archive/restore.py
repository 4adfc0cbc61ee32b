"""Make a log of an archive: one that takes appends and can be archived again.

It is built under a temporary name, and gets its own when it is complete and on disk. Segments are
written as they were archived, byte for byte; only the last one is cut if not all is wanted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import pairwise

from penstock import _core
from penstock import layout as L
from penstock._core import SegmentMap, Walked
from penstock.archive import chain, location
from penstock.archive.depots import Depot, path_in
from penstock.archive.naming import Stored
from penstock.archive.reading import blocks_of
from penstock.archive.seekable import Archived
from penstock.errors import Corrupt, NotFound
from penstock.report import Progress
from penstock.segments import producers, recovery, segment
from penstock.segments.backup import new_directory
from penstock.segments.check.rebuild import copy_file
from penstock.segments.frames import first_event
from penstock.segments.segment import Header
from penstock.settings import Settings
from penstock.system import files
from penstock.system.directory import Directory
from penstock.system.forks import Begun

Wanted = tuple[int | None, int | None]  # the first seq, or the first event time, not restored


def restore(
    source: str | os.PathLike[str], target: str, until: Wanted, progress: Progress | None
) -> int:
    """Make the log at ``target``; returns its last seq."""
    where = location.checked(source, "source")
    depot = location.depot_at(where, None)
    look = chain.looking_in(depot)
    entries = chain.current(chain.only_log(depot), look)
    settings = look(entries[-1]).settings
    entries = [e for e in entries if look(e).next_seq > settings.first_seq] or entries[-1:]
    if until[0] is not None:
        entries = [e for e in entries if e.base_seq < until[0]]
    if not entries:
        raise NotFound(f"{depot.where}: has no event before seq {until[0]}")
    check_chain(depot, entries, look)
    return new_directory(
        target,
        settings.dir_mode,
        lambda partial: _Restoring(depot, look, settings, partial, progress).run(entries, until),
    )


def check_chain(
    depot: Depot, entries: Sequence[Stored], look: Callable[[Stored], Archived]
) -> None:
    """Raise if a segment is missing between others."""
    for before, after in pairwise(entries):
        leads_to = look(before).next_seq
        if leads_to != after.base_seq:
            raise Corrupt(
                f"{path_in(depot, before.name)}: the archived segment after it is missing: seq "
                f"{leads_to} to {after.base_seq - 1}; restore what is before it with until="
                f"{leads_to}",
                path=path_in(depot, before.name),
                seq=leads_to,
                last_seq=leads_to - 1,
            )


class _Restoring:
    """One run, into a directory that nobody else knows."""

    def __init__(
        self,
        depot: Depot,
        look: Callable[[Stored], Archived],
        settings: Settings,
        partial: str,
        progress: Progress | None,
    ) -> None:
        self._depot = depot
        self._look = look
        self._settings = settings.changed(archive="")
        self._partial = partial
        self._progress = progress
        self._begun = Begun("restoring")

    def run(self, entries: Sequence[Stored], until: Wanted) -> int:
        total, done = sum(self._look(e).file_bytes for e in entries), 0
        last, stop = entries[-1], None
        for entry in entries:
            archived = self._look(entry)
            path = self._write(entry, archived)
            done += archived.file_bytes
            if self._progress is not None:
                self._progress(done, total)
                self._begun.check()
            stop = self._stop_in(path, until)
            if stop is not None:
                last = entry
                break
        with closing(files.hold_dir(self._partial)) as directory:
            return self._end(directory, last, stop)

    def _write(self, entry: Stored, archived: Archived) -> str:
        """Write one segment as it was."""
        path = os.path.join(self._partial, segment.file_name(entry.base_seq))
        fd = files.create_file(path, self._settings.file_mode)
        try:
            for block, data in blocks_of(self._depot, entry.name, archived):
                at = archived.bounds[block]
                files.write_sparse(fd, archived.decompress(data, block), at, path)
            _core.fail_point("restore.filled")
            files.sync_data(fd, path)
        finally:
            files.close(fd)
        m, header = segment.map_segment(path)
        same = (header.uuid, header.base_seq, header.generation) == entry[:3]
        if not same or not m.data_end or m.next_seq != archived.next_seq:
            raise archived.damage("has another segment than its record says", 0)
        walk, state, bad_at = m.walk(m.data_end)
        if walk.offset != m.data_end or walk.digest ^ 0xFFFFFFFF != m.summary.data_crc:
            raise m.damage(bad_at or walk.offset, state, walk.next_seq - 1)
        return path

    def _stop_in(self, path: str, until: Wanted) -> tuple[int, int] | None:
        """Seq and offset of the first event of a segment that is not wanted; None: all are."""
        m, _ = segment.map_segment(path)
        seq, since_ns = until
        if seq is not None:
            found = None if seq >= m.next_seq else first_event(m, lambda e: e.seq >= seq, seq=seq)
            return found or ((seq, m.summary.last_frame) if seq < m.next_seq else None)
        if since_ns is None or m.summary.event_max_ns < since_ns or not m.summary.count:
            return None
        return first_event(m, lambda e: e.time_ns >= since_ns, since_ns=since_ns)

    def _end(self, directory: Directory, last: Stored, stop: tuple[int, int] | None) -> int:
        """Make the segment that takes appends."""
        path = directory.file(segment.file_name(last.base_seq))
        m, header = segment.map_segment(path)
        walk, _, _ = m.walk(stop[1] if stop else m.data_end)  # a batch as a whole, or not at all
        settings = self._settings
        if stop is not None:
            header = replace(header, settings=settings.to_json())
            kept = directory.file("next.tmp")
            copy_file(path, kept, settings.file_mode, header=header, end=walk.offset, whole=False)
            fd = files.open_file(kept, write=True)
            try:
                files.grow(fd, header.data_offset, kept)  # it may have no frame
                files.sync_data(fd, kept)
            finally:
                files.close(fd)
            files.rename(kept, path)
            return int(walk.next_seq) - 1
        following, table = self._successor(path, m, header, walk)
        started = recovery.start_segment(directory, following, table, settings)
        fd = files.open_dir(directory)
        try:
            recovery.name_segment(started, fd, following)
        finally:
            files.close(fd)
        return following.base_seq - 1

    def _successor(
        self, path: str, m: SegmentMap, header: Header, walk: Walked
    ) -> tuple[Header, bytes]:
        """Header and table of producers of the segment after the last one."""
        settings = self._settings
        fd = files.open_file(path, write=False)
        try:
            data = segment.read_producers(fd, header, path)
        finally:
            files.close(fd)
        table = producers.table_from(data, m, walk.producer_offset)
        packed = table.pack(settings.segment_size // L.PRODUCERS_SHARE)
        following = Header(
            uuid=header.uuid,
            base_seq=walk.next_seq,
            number=header.number + 1,
            generation=0,
            created_ns=_core.now_ns(),
            segment_bytes=settings.segment_size,
            prior_append_ns=walk.last_append_ns,
            prior_event_max_ns=walk.event_max_ns,
            monotone=walk.monotone,
            settings=settings.to_json(),
            producers_bytes=len(packed),
            producers_crc=_core.crc32c(packed) if packed else 0,
        )
        return following, packed
