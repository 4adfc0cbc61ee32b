"""Append staged files to a log, all of them as one unit.

Files that fill a good part of a segment become segments as they are (`adopted`), several at a time,
if they are on the log's own file system: their frames get their seqs and times in place, and
nothing is copied. Others are appended event by event, as any batch or load.

Every frame is checked before anything is published. A file that was given to a log is then deleted,
even if that fails.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from penstock._core import Given, StagedFrames
from penstock.errors import Io
from penstock.handle.load import Ready, acknowledge, begin, load_into
from penstock.layout import SegmentPosition
from penstock.segments.adopted import Adopted
from penstock.segments.staging import Staged, check_size, cut_short
from penstock.segments.storage import SegmentStorage
from penstock.settings import BYTES
from penstock.system import files

if TYPE_CHECKING:
    from penstock.handle.handle import Handle

SHARE = 4  # a file below this part of a segment does not become a segment


def append_staged(
    log: Handle, staged: Sequence[Staged], *, producer: tuple[str, int] | None, durable: bool
) -> range:
    """Append the events of all files, in order, as one unit."""
    storage = log._storage
    size = log.settings.segment_size
    nbytes = sum(s.nbytes for s in staged)
    # What fits the active segment easily is appended there, as one batch: a load makes new
    # segments, and a stream of small ones would add two files every few seconds.
    if nbytes <= size // SHARE or not isinstance(storage, SegmentStorage):
        frames = StagedFrames()
        for one in staged:
            _read(one, frames)
        return log.extend(_checked(log, frames, 0), producer=producer, durable=durable)
    if (
        nbytes >= len(staged) * (size // SHARE)
        and all(s.segment_bytes == size for s in staged)
        and staged[0].rows > 1
        and log.settings.codec == BYTES
        and _movable(staged[0], storage)
    ):
        try:
            return _adopt(log, storage, staged, producer, durable)
        except Io as error:
            if error.errno != errno.EXDEV:  # it is on another mount after all
                raise
    return load_into(
        log,
        Ready(_copied(log, staged)),
        {},
        value=None,
        expect=None,
        producer=producer,
        durable=durable,
        timeout=None,
        progress=None,
        codec=None,
    )


def _copied(log: Handle, staged: Sequence[Staged]) -> Iterator[Given]:
    """The rows of all files, one file in memory at a time."""
    before = 0
    for one in staged:
        frames = StagedFrames()
        _read(one, frames)
        yield _checked(log, frames, before)
        before += one.rows


def _checked(log: Handle, frames: StagedFrames, before: int) -> Given:
    """The rows, with values that fit the log's codec."""
    rows = frames.rows(before)
    if log._encodes():
        rows.check(log._coder, log.path)
    return rows


def _read(staged: Staged, into: StagedFrames) -> None:
    """Read the frames of a file into memory and check them."""
    parts = []
    fd = files.open_file(staged.path, write=False)
    try:
        check_size(fd, staged)
        at = staged.start
        while at < staged.end:
            part = files.read_at(fd, staged.end - at, at, staged.path)
            if not part:
                raise cut_short(staged)
            parts.append(part)
            at += len(part)
    finally:
        files.close(fd)
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    into.add(data, staged.rows, staged.digest, staged.path)


def _movable(staged: Staged, storage: SegmentStorage) -> bool:
    """Whether the file could have been made in the log's directory by this user."""
    there, here = files.status(staged.path), files.status(storage.directory)
    return there.st_dev == here.st_dev and there.st_uid == os.geteuid()


def _adopt(
    log: Handle,
    storage: SegmentStorage,
    staged: Sequence[Staged],
    producer: tuple[str, int] | None,
    durable: bool,
) -> range:
    """Make the files segments of the log."""
    who, n, done = begin(log, producer)
    if done is not None:
        return acknowledge(log, done, durable, None)
    number = SegmentPosition.unpack(log._head()).number
    storage.budget.check(log.settings, number, sum(one.nbytes for one in staged))
    private = Adopted(log, storage, staged)
    try:
        private.finish()
        seqs = private.publish(None, who, n, None)
    finally:
        private.remove()
    acknowledge(log, seqs, durable, None)
    if durable:
        private.seal()
    return seqs
