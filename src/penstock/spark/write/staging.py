"""Staged rows: what the tasks of a write have put aside until the driver publishes all of it.

Each write has a directory of its own, and each attempt of a task files of its own in it (`staged`),
which get their names when they are whole. A file that has no name yet, or whose write is over, is
garbage. Files need not reach the device, since Spark stages all of it again if they get lost; the
task says their digest, and the driver publishes nothing that has another. Nothing here touches
the log.

A directory is called ``<producer>.<number>.<run>``: what the write is remembered by in the log, and
which run of it this is. What has a number that the log has gone past can never be published.
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
from penstock.segments.staged import Staged, Writer
from penstock.system import files

logger = logging.getLogger("penstock")

ABANDONED_SECONDS = 7 * 24 * 3600
REMOVE_TRIES = 5
_NAME = re.compile(r"([\w-]+)\.(\d+)\.([\w-]+)")


@dataclass(frozen=True)
class Staging:
    """A directory for staged rows, and the modes of what is made in it."""

    root: str
    dir_mode: int
    file_mode: int
    segment_bytes: int

    def make(self) -> None:
        """Have the directory, in a directory that is there."""
        parent = os.path.dirname(self.root)
        if not files.is_dir(parent):
            raise NoSuchLog(
                f"{self.root}: cannot be made, since there is no directory {parent}",
                filename=parent,
            )
        files.make_dir(self.root, self.dir_mode)

    def begin(self, name: str) -> None:
        """Have a directory for the write ``name``."""
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
            f"{directory}: there is no such directory on the host {socket.gethostname()}; rows are "
            "staged in one that every host of the cluster sees: give it as stagingPath (or the "
            "write that this task is part of is over)",
            filename=directory,
        )

    def remove(self, name: str) -> None:
        """Delete what a write has staged."""
        path = os.path.join(self.root, name)
        for _ in range(REMOVE_TRIES):  # a task may begin a file in it meanwhile
            with _tidying():
                files.remove_tree(path)
            if not files.exists(path):
                break

    def sweep(self, done: str, began_ns: int) -> None:
        """Delete what other runs left of the write ``done``, now published, and of earlier ones.

        A run of the same write that began later than ``began_ns`` is left alone: it is somebody's
        who took this one for dead, and who will find out by himself that there is nothing to do.
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
        """Delete what nobody has touched for a week: its driver died, and was not started again."""
        before_ns = time.time_ns() - ABANDONED_SECONDS * 10**9
        with _tidying():
            for name in files.list_dir(self.root):
                if _NAME.fullmatch(name) and self._touched_ns(name) < before_ns:
                    logger.warning("%s: staged a week ago and never published; deleted", name)
                    self.remove(name)

    def began_ns(self, name: str) -> int:
        """When the first of its files was finished; asked before they are published."""
        directory = os.path.join(self.root, name)
        with _tidying():
            found = [os.stat(os.path.join(directory, n)) for n in files.list_dir(directory)]
            return min((status.st_mtime_ns for status in found), default=0)
        return 0

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


@contextmanager
def reading() -> Iterator[None]:
    """Says of a staged file that is not there what may be the reason."""
    try:
        yield
    except NoSuchLog as error:
        raise NoSuchLog(
            f"{error}; tasks staged rows in a file that is not here on the driver's host "
            f"{socket.gethostname()}: stagingPath has to be a directory that every host of the "
            "cluster sees. Nothing was written",
            filename=error.filename,
        ) from error
