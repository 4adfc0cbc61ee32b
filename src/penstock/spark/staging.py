"""Staged rows: what the tasks of a write have put aside until the driver publishes all of it.

Each write has a directory of its own, and each attempt of a task a file of its own in it: an Arrow
file, which gets its name when it is whole and on the device. A file that has no name yet, or whose
write is over, is garbage. Nothing here touches the log.

A directory is called ``<producer>.<number>.<run>``: what the write is remembered by in the log, and
which run of it this is. What has a number that the log has gone past can never be published.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import re
import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pyarrow

from penstock import files
from penstock.errors import Corrupt, NotFound, PenstockError, from_os

logger = logging.getLogger("penstock")

ABANDONED_SECONDS = 7 * 24 * 3600
REMOVE_TRIES = 5
_NAME = re.compile(r"([\w-]+)\.(\d+)\.([\w-]+)")


@dataclass(frozen=True)
class Staged:
    """The rows of one task."""

    path: str
    partition: int
    rows: int
    nbytes: int


@dataclass(frozen=True)
class Staging:
    """A directory for staged rows, and the modes of what is made in it."""

    root: str
    dir_mode: int
    file_mode: int

    def make(self) -> None:
        """Have the directory, in a directory that is there."""
        parent = os.path.dirname(self.root)
        if not files.is_dir(parent):
            raise NotFound(f"{self.root}: cannot be made, since there is no directory {parent}")
        files.make_dir(self.root, self.dir_mode)

    def begin(self, name: str) -> None:
        """Have a directory for the write ``name``."""
        if not files.is_dir(self.root):
            raise self._not_here(self.root)
        files.make_dir(os.path.join(self.root, name), self.dir_mode)

    def stage(
        self, name: str, partition: int, batches: Iterator[pyarrow.RecordBatch]
    ) -> Staged | None:
        """Put the rows of a task into a file of the write ``name``; None if there are none."""
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return None
        directory = os.path.join(self.root, name)
        if not files.is_dir(directory):
            raise self._not_here(directory)
        path = os.path.join(directory, f"{partition:06d}-{uuid.uuid4().hex}.arrow")
        temporary = f"{path}.tmp"
        try:
            rows, nbytes = self._write(temporary, itertools.chain((first,), batches))
            files.rename(temporary, path)
        except BaseException:
            with suppress(PenstockError):
                files.unlink(temporary)
            raise
        return Staged(path, partition, rows, nbytes)

    def _not_here(self, directory: str) -> NotFound:
        return NotFound(
            f"{directory}: there is no such directory on the host {socket.gethostname()}; rows are "
            "staged in one that every host of the cluster sees: give it as stagingPath (or the "
            "write that this task is part of is over)"
        )

    def _write(self, path: str, batches: Iterator[pyarrow.RecordBatch]) -> tuple[int, int]:
        rows = 0
        writer: pyarrow.RecordBatchFileWriter | None = None
        out = _Out(path, self.file_mode)
        try:
            for batch in batches:
                if writer is None:
                    writer = pyarrow.ipc.new_file(out, batch.schema)
                writer.write_batch(batch)
                rows += batch.num_rows
            assert writer is not None
            writer.close()
            files.sync_data(out.fd, path)
        finally:
            out.close()
        return rows, out.nbytes

    def remove(self, name: str) -> None:
        """Delete what a write has staged."""
        path = os.path.join(self.root, name)
        for _ in range(REMOVE_TRIES):  # a task may begin a file in it meanwhile
            with _tidying():
                files.remove_tree(path)
            if not files.exists(path):
                break

    def sweep(self, done: str) -> None:
        """Delete what other runs left of the write ``done``, now published, and of earlier ones.

        A run of the same write that began later than this one is left alone: it is somebody's who
        took this one for dead, and who will find out by himself that there is nothing to do.
        """
        own = _NAME.fullmatch(done)
        assert own is not None
        with _tidying():
            began_ns = self._began_ns(done)
            for name in files.list_dir(self.root):
                other = _NAME.fullmatch(name)
                if other is None or other[1] != own[1] or name == done:
                    continue
                if int(other[2]) < int(own[2]) or (
                    int(other[2]) == int(own[2]) and self._touched_ns(name) < began_ns
                ):
                    self.remove(name)

    def sweep_abandoned(self) -> None:
        """Delete what nobody has touched for a week: its driver died, and was not started again."""
        before_ns = time.time_ns() - ABANDONED_SECONDS * 10**9
        with _tidying():
            for name in files.list_dir(self.root):
                if _NAME.fullmatch(name) and self._touched_ns(name) < before_ns:
                    logger.warning("%s: staged a week ago and never published; deleted", name)
                    self.remove(name)

    def _began_ns(self, name: str) -> int:
        """When the first of its files was finished."""
        directory = os.path.join(self.root, name)
        found = [os.stat(os.path.join(directory, n)).st_mtime_ns for n in files.list_dir(directory)]
        return min(found, default=0)

    def _touched_ns(self, name: str) -> int:
        """When a file of it was begun or finished last; now, if it is gone."""
        try:
            return os.stat(os.path.join(self.root, name)).st_mtime_ns
        except FileNotFoundError:
            return time.time_ns()


@contextmanager
def _tidying() -> Iterator[None]:
    """What goes wrong in tidying up is not worth failing for: rows may be published already."""
    try:
        yield
    except (OSError, PenstockError) as error:
        logger.warning("not all that was staged could be deleted; it is left for later: %s", error)


def name_of(producer: str | None, number: int, run: str) -> str:
    """The directory of one run of a write; no producer: the log will not remember it."""
    if producer is None:
        return f"once.{number}.{_plain(run)}"
    digest = hashlib.sha256(producer.encode()).hexdigest()[:16]
    return f"{_plain(producer)[:60]}-{digest}.{number}.{_plain(run)}"


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", text)


class _Out:
    """A new file, as pyarrow wants it; what goes wrong is a typed error."""

    def __init__(self, path: str, mode: int) -> None:
        self.fd = files.create_file(path, mode)
        self.closed = False
        self._path = path
        self.nbytes = 0

    def write(self, data: bytes) -> int:
        files.write_at(self.fd, data, self.nbytes, self._path)
        self.nbytes += len(data)
        return len(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            files.close(self.fd)


class Stream:
    """Staged files one after the other as a stream of record batches, one of them in memory.

    Arrow turns an exception inside a stream into words of its own; ``failure`` has the real one.
    """

    def __init__(self, staged: Sequence[Staged], prefix: str = "") -> None:
        self.failure: PenstockError | None = None
        self._staged = staged
        self._prefix = prefix  # of the names of columns
        self._schema = self._named(self._schema_of(staged[0]))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        reader = pyarrow.RecordBatchReader.from_batches(self._schema, self._batches())
        return reader.__arrow_c_stream__(requested_schema)

    def _named(self, schema: pyarrow.Schema) -> pyarrow.Schema:
        return pyarrow.schema([f.with_name(self._prefix + f.name) for f in schema])

    def _schema_of(self, staged: Staged) -> pyarrow.Schema:
        with _reading(staged), pyarrow.OSFile(staged.path) as file:
            return pyarrow.ipc.open_file(file).schema

    def _batches(self) -> Iterator[pyarrow.RecordBatch]:
        try:
            for staged in self._staged:
                yield from self._batches_of(staged)
        except PenstockError as error:
            self.failure = error
            raise

    def _batches_of(self, staged: Staged) -> Iterator[pyarrow.RecordBatch]:
        rows = 0
        with _reading(staged), pyarrow.OSFile(staged.path) as file:
            reader = pyarrow.ipc.open_file(file)
            if self._named(reader.schema) != self._schema:
                raise Corrupt(f"{staged.path}: other columns than its siblings", path=staged.path)
            for at in range(reader.num_record_batches):
                batch = reader.get_batch(at)
                batch.validate(full=True)
                rows += batch.num_rows
                yield pyarrow.RecordBatch.from_arrays(batch.columns, schema=self._schema)
        if rows != staged.rows:
            raise Corrupt(
                f"{staged.path}: {rows} rows where {staged.rows} were staged", path=staged.path
            )


class _reading:
    """Gives what goes wrong while reading a staged file the type and the words that it deserves."""

    def __init__(self, staged: Staged) -> None:
        self._path = staged.path

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, FileNotFoundError):
            raise NotFound(
                f"{self._path}: a task staged this file, and it is not here on the driver's host "
                f"{socket.gethostname()}; stagingPath has to be a directory that every host of the "
                "cluster sees. Nothing was written"
            ) from error
        if isinstance(error, OSError) and not isinstance(error, PenstockError):
            raise from_os(error, "reading", self._path) from error
        if isinstance(error, pyarrow.ArrowInvalid):
            raise Corrupt(
                f"{self._path}: what a task staged is damaged: {error}. Nothing was written; run "
                "the write again",
                path=self._path,
            ) from error
