"""Staged rows: files in which the tasks of a write keep rows until the driver publishes them all.

Each write has its own directory, and each attempt of a task its own files in it (`staged`), which
get their names when they are complete. A file without a name, or whose write is over, is garbage.
Files need not be durable: if they get lost, Spark stages the rows again. Each task reports the
digest of its files, and the driver publishes only files with that digest. Nothing here touches the
log.

A directory has the name ``<producer>.<number>.<run>``: what the log remembers of the write, and
which run of it this is. Rows with a number that the log has passed can never be published.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from penstock._core import Given
from penstock.errors import NoSuchLog, PenstockError
from penstock.segments.staging import Staged, Writer
from penstock.system import files

logger = logging.getLogger("penstock")

ABANDONED_SECONDS = 7 * 24 * 3600
REMOVE_TRIES = 5
_NAME = re.compile(r"([\w-]+)\.(\d+)\.([\w-]+)")


@dataclass(frozen=True)
class Staging:
    """The directory of staged rows, and the modes of files and directories in it."""

    root: str
    dir_mode: int
    file_mode: int
    segment_bytes: int

    def make(self) -> None:
        """Create the directory; its parent must exist."""
        parent = os.path.dirname(self.root)
        if not files.is_dir(parent):
            raise NoSuchLog(
                f"{self.root}: cannot be created, because there is no directory {parent}",
                filename=parent,
            )
        files.make_dir(self.root, self.dir_mode)

    def begin(self, name: str) -> None:
        """Create the directory of the write ``name``."""
        if not files.is_dir(self.root):
            raise self._not_here(self.root)
        files.make_dir(os.path.join(self.root, name), self.dir_mode)

    def stage(self, name: str, partition: int, rows: Iterator[Given]) -> tuple[Staged, ...]:
        """Put the rows of a task into files of the write ``name``."""
        directory = os.path.join(self.root, name)
        if not files.is_dir(directory):
            raise self._not_here(directory)
        stem = os.path.join(directory, f"{partition:06d}-{uuid.uuid4().hex}")
        return Writer(stem, self.segment_bytes, self.file_mode).write(rows)

    def _not_here(self, directory: str) -> NoSuchLog:
        return NoSuchLog(
            f"{directory}: there is no such directory on the host {socket.gethostname()}. On a "
            "cluster, rows must be staged in a directory that every host sees: give it as "
            "stagingPath. (Or the write that this task is part of is over)",
            filename=directory,
        )

    def remove(self, name: str) -> None:
        """Delete what a write has staged."""
        path = os.path.join(self.root, name)
        for _ in range(REMOVE_TRIES):  # a task may create a file in it at the same time
            with _tidying():
                files.remove_tree(path)
            if not files.exists(path):
                break

    def sweep(self, done: str, began_ns: int) -> None:
        """Delete what other runs left of the write ``done``, now published, and of earlier ones.

        A run of the same write that began later than ``began_ns`` is left alone: its driver took
        this one for dead, and will find that there is nothing left to do.
        """
        own = _NAME.fullmatch(done)
        assert own is not None
        with _tidying():
            for name in files.list_dir(self.root):
                other = _NAME.fullmatch(name)
                if other is None or other[1] != own[1] or name == done:
                    continue
                if int(other[2]) < int(own[2]) or (
                    int(other[2]) == int(own[2]) and self._touched_ns(name) < began_ns
                ):
                    self.remove(name)

    def sweep_abandoned(self) -> None:
        """Delete what was not touched for a week: its driver died and was not restarted."""
        before_ns = time.time_ns() - ABANDONED_SECONDS * 10**9
        with _tidying():
            for name in files.list_dir(self.root):
                if _NAME.fullmatch(name) and self._touched_ns(name) < before_ns:
                    logger.warning("%s: staged a week ago, never published; deleted", name)
                    self.remove(name)

    def began_ns(self, name: str) -> int:
        """When the first of its files was finished; call it before they are published."""
        directory = os.path.join(self.root, name)
        with _tidying():
            found = [os.stat(os.path.join(directory, n)) for n in files.list_dir(directory)]
            return min((status.st_mtime_ns for status in found), default=0)
        return 0

    def _touched_ns(self, name: str) -> int:
        """When a file in it was last created or finished; now, if it is gone."""
        try:
            return os.stat(os.path.join(self.root, name)).st_mtime_ns
        except FileNotFoundError:
            return time.time_ns()


@contextmanager
def _tidying() -> Iterator[None]:
    """Log errors of tidying up: they must not fail a write that may be published already."""
    try:
        yield
    except (OSError, PenstockError) as error:
        logger.warning("could not delete all staged files; they are left for later: %s", error)


def name_of(producer: str | None, number: int, run: str) -> str:
    """The directory of one run of a write; without a producer, the log does not remember it."""
    if producer is None:
        return f"once.{number}.{_plain(run)}"
    digest = hashlib.sha256(producer.encode()).hexdigest()[:16]
    return f"{_plain(producer)[:60]}-{digest}.{number}.{_plain(run)}"


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", text)


@contextmanager
def reading() -> Iterator[None]:
    """Explain why a staged file may be missing."""
    try:
        yield
    except NoSuchLog as error:
        raise NoSuchLog(
            f"{error}; tasks staged rows in a file that the driver's host "
            f"{socket.gethostname()} does not see: stagingPath must be a directory that every host "
            "of the cluster sees. Nothing was written",
            filename=error.filename,
        ) from error
