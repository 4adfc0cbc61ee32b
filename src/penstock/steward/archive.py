"""Archive sealed segments: store them compressed elsewhere, prove it, and delete the local files.

For each segment, the oldest first, under the turn:

1. Check every frame of the local file, so that rot is never archived.
2. Store the archived one, unless it is there already. A name is made with all its bytes, or not.
3. Read it back, decompress it and compare it with the local file, byte for byte.
4. Before the first local file goes: store in the log's settings where the archive is, and sync.
5. Delete the local file and sync the directory, so that local segments are always the last ones.

A process that dies in between leaves either the local file, or both; the next run goes on. A
reader that has the old file mapped goes on with it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock import _core
from penstock import layout as L
from penstock.archive import location, seekable
from penstock.archive.depots import Depot, path_in
from penstock.archive.naming import INSIDE, Stored
from penstock.archive.reading import blocks_of, opened
from penstock.archive.seekable import Piece
from penstock.errors import Busy, Conflict, Corrupt, PenstockError, Usage
from penstock.segments import segment
from penstock.settings import Settings
from penstock.steward.archive_report import ArchivedSegment, ArchiveReport, ArchiveRequest
from penstock.steward.compact import Maintenance, job
from penstock.steward.compact_survey import Candidate
from penstock.system import files
from penstock.system.directory import Directory
from penstock.system.forks import Begun
from penstock.system.parallel import in_order

if TYPE_CHECKING:
    from penstock.handle.handle import Handle

THREADS = 2


def archive(handle: Handle, directory: Directory, request: ArchiveRequest) -> ArchiveReport:
    """Archive the segments of a log; `Steward.archive` documents it."""
    handle._ensure_open()
    if not request.dry_run:
        handle._check_writable()
    settings = handle.settings
    where = (
        settings.archive or INSIDE
        if request.to is None
        else location.given_for(directory, request.to)
    )
    depot = location.depot_at(where, directory, settings.dir_mode, settings.file_mode)
    try:
        with job(handle, directory, timeout=request.timeout, only_look=request.dry_run) as found:
            done = _Archiver(found, depot, where, request).run()
    except Busy:
        raise
    except PenstockError as error:
        if not request.dry_run:
            handle._record.failed("archive", error)
        raise
    if not request.dry_run:
        handle._record.succeeded("archive")
    return done


@dataclass(slots=True)
class _Archiver:
    """One run."""

    job: Maintenance
    depot: Depot
    where: str
    request: ArchiveRequest
    there: Sequence[Stored] = ()

    def run(self) -> ArchiveReport:
        handle, progress = self.job.handle, self.request.progress
        begun = Begun("archiving")
        self._check_place()
        self.there = self.depot.entries(handle._uuid())
        candidates = self.job.candidates()
        self._check_end()
        keep_from = len(candidates) - self.request.keep_local
        total = sum(one.summary.data_end for one in candidates)
        done, report = 0, []
        if not self.request.dry_run:
            self.depot.sweep(handle._uuid())
        for index, one in enumerate(candidates):
            stays = index >= keep_from
            if self.request.dry_run:
                report.append(self._planned(one, stays))
            else:
                report.append(self._one(one, stays))
                begun.check()
            done += one.summary.data_end
            if progress is not None:
                progress(done, total)
                begun.check()
        text = location.text_of(self.where, self.job.directory)
        return ArchiveReport(os.fspath(handle.path), text, self.request.dry_run, tuple(report))

    def _check_place(self) -> None:
        """Refuse another place than that of segments which are only there."""
        known = self.job.handle.settings.archive
        if not known or known == self.where:
            return
        bases = self.job.store.bases(fresh=True)
        old = location.depot_at(known, self.job.directory)
        first = max(self.job.handle.settings.first_seq, 1)
        needed = [e for e in old.entries(self.job.handle._uuid()) if e.base_seq < bases[0]]
        if bases[0] > first and needed:
            text = location.text_of(known, self.job.directory)
            raise Usage(
                f"{self.job.handle.path}: its archive is {text}, and has segments that the log "
                "needs; leave out to="
            )

    def _check_end(self) -> None:
        """Refuse an archive that goes on where this log ends: a copy of the log has written it."""
        if self.there and self.there[-1].base_seq >= self.job.handle._next_seq():
            raise self._split(self.there[-1], "is beyond the end of this log")

    def _split(self, entry: Stored, why: str) -> Conflict:
        return Conflict(
            f"{self.job.handle.path}: {path_in(self.depot, entry.name)} {why}: a copy of this log "
            "has gone another way and archives to the same place; nothing was deleted. Give "
            "another place with to=, or stop the other one and move its files away"
        )

    def _planned(self, one: Candidate, stays: bool) -> ArchivedSegment:
        entry = _entry_of(one)
        known = [e for e in self.there if e[:3] == entry[:3]]
        return ArchivedSegment(
            one.base,
            one.summary.next_seq,
            one.summary.data_end,
            known[0].nbytes if known else 0,
            "keep" if stays and known else "store" if stays else "move",
        )

    def _one(self, one: Candidate, stays: bool) -> ArchivedSegment:
        """Archive one segment, and delete its local file unless it stays."""
        entry = _entry_of(one)
        fd = files.open_file(one.path, write=False)
        try:
            pieces = check(one, fd)
            known = [e for e in self.there if e[:3] == entry[:3]]
            self._check_older(one, entry)
            if not known:
                parts = pack(one, fd, pieces, self.job.handle.settings)
                self.depot.put_new(entry.name, parts)
                _core.fail_point("archive.stored")
                known = [e for e in self.depot.entries(entry.uuid) if e[:3] == entry[:3]]
            if not known:
                raise Corrupt(
                    f"{path_in(self.depot, entry.name)}: was stored, and is not there; the local "
                    "segment was kept",
                    path=path_in(self.depot, entry.name),
                )
            self._compare(one, known[0], fd, pieces)
        finally:
            files.close(fd)
        _core.fail_point("archive.compared")
        self._tell()
        if not stays:
            self._let_go(one)
        return ArchivedSegment(
            one.base,
            one.summary.next_seq,
            one.summary.data_end,
            known[0].nbytes,
            "store" if stays else "move",
        )

    def _check_older(self, one: Candidate, entry: Stored) -> None:
        """Refuse if an older generation that is there covers what this one does not."""
        stop = one.summary.next_seq
        for other in self.there:
            inside = one.base <= other.base_seq < max(stop, one.base + 1)
            older = other[:3] != entry[:3] and other.generation <= entry.generation
            if inside and older and opened(self.depot, other).next_seq > stop:
                raise self._split(other, f"ends after the segment of seq {one.base}")

    def _compare(self, one: Candidate, entry: Stored, fd: int, pieces: list[Piece]) -> None:
        """Read the archived segment back, and compare it with the local file."""
        try:
            archived = opened(self.depot, entry)
            if archived.next_seq != one.summary.next_seq or archived.file_bytes != pieces[-1].stop:
                raise self._split(entry, "has other events than this log")
            for block, data in blocks_of(self.depot, entry.name, archived):
                found = archived.decompress(data, block)
                start = archived.bounds[block]
                if found != _read(fd, Piece(start, start + len(found)), one.path):
                    raise self._split(entry, "has other events than this log")
        except Corrupt as error:
            raise Corrupt(
                f"{error}. The local segment was kept; move the damaged file away, and archive "
                "again",
                path=error.path,
                offset=error.offset,
            ) from error

    def _tell(self) -> None:
        """Store in the log where its archive is, before a reader needs to know."""
        handle = self.job.handle
        if handle.settings.archive != self.where:
            handle._change_settings(lambda now: now.changed(archive=self.where))
            handle._sync_all(None)
            _core.fail_point("archive.told")

    def _let_go(self, one: Candidate) -> None:
        """Delete the local file of an archived segment."""
        control = self.job.handle._live()
        files.unlink(one.path)
        _core.fail_point("archive.deleted")
        files.sync_dir(control.held_fd, self.job.directory.path)
        control.add(L.C_REWRITES)


def _entry_of(one: Candidate) -> Stored:
    return Stored(one.header.uuid, one.base, one.header.generation)


def _read(fd: int, piece: Piece, path: str) -> bytes:
    data = files.read_at(fd, piece.stop - piece.start, piece.start, path)
    if len(data) < piece.stop - piece.start:
        raise Corrupt(f"{path}: is cut short; run verify", path=path, offset=piece.start)
    return data


def check(one: Candidate, fd: int) -> list[Piece]:
    """Check a local segment as a whole; the pieces that are to become blocks."""
    m, header = segment.map_segment(one.path)
    summary = one.summary
    walk, state, bad_at = m.walk(summary.data_end)
    if walk.offset != summary.data_end or not walk.rolled:
        raise m.damage(bad_at or walk.offset, state, walk.next_seq - 1)
    same = (walk.digest ^ 0xFFFFFFFF, walk.count) == (summary.data_crc, summary.count)
    index = m.bytes_at(L.INDEX_OFFSET, summary.index_count * L.INDEX_ENTRY_BYTES)
    if not same or _core.crc32c(index) != summary.index_crc:
        what = "index" if same else "frames"
        raise Corrupt(
            f"{one.path}: its {what} and its footer differ; run verify, and repair before it is "
            "archived",
            path=one.path,
            offset=L.INDEX_OFFSET if same else one.header.data_offset,
        )
    segment.read_producers(fd, header, one.path)
    return seekable.cut(header, summary, index)


def pack(one: Candidate, fd: int, pieces: list[Piece], settings: Settings) -> Iterator[bytes]:
    """The bytes of the archived segment, in order."""

    def work(batch: list[Piece], unwanted: object) -> list[bytes]:
        compress = seekable.compressor()
        return [compress(_read(fd, piece, one.path)) for piece in batch]

    step = 8
    batches = [pieces[at : at + step] for at in range(0, len(pieces), step)]
    blocks: list[bytes] = []
    for found in in_order(work, batches, THREADS, "penstock-pack"):
        for block in found:
            blocks.append(block)
            yield block
    yield seekable.tail(one.header, one.summary.next_seq, pieces, blocks, settings.to_json())
