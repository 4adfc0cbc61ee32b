"""A lake's book: what has been published, what is being staged, and who may do either.

The book is beside the lake, not in it, so that the lake holds nothing but rows: polars and DuckDB
read every file below a directory, also in directories whose names begin with ``_``.

    lake/flights/                    the lake
      month=1/000000007-0.parquet
    lake/_flights/                   its book
      journal.json                   the last batch published, and the sums of all
      checkpoint/                    Spark's
      staging/                       files that are not yet, or no longer, rows of the lake
      bad/                           records that could not be parsed
      stream.lock  compact.lock      held while a stream, or a compaction, runs
      publish.lock                   held for the moments in which names in the lake change

Nothing here needs Spark.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Literal

from penstock.errors import Busy, Corrupt, Usage
from penstock.system import files

VERSION = 1
HOLD_TIMEOUT = 10.0  # longer than a driver takes to notice that its other half is dead
PUBLISH_TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class Move:
    """A staged file and its name among the rows or among the bad records."""

    staged: str
    place: Literal["rows", "bad"]
    name: str


@dataclass(frozen=True, slots=True)
class Journal:
    """What the lake holds: every batch up to ``batch``, of which the last has these files.

    ``query`` and ``query_batch`` are Spark's names for that batch; ``query`` is None if the next
    query is a new one, which begins at ``ends``, the next seq of each log.
    """

    partition_by: tuple[str, ...]
    batch: int = -1
    query: str | None = None
    query_batch: int = -1
    ends: Mapping[str, int] = field(default_factory=dict)
    rows: int = 0
    bad_rows: int = 0
    bad: str | None = None
    moves: tuple[Move, ...] = ()

    def to_json(self) -> str:
        """As text, for the book."""
        return json.dumps({"version": VERSION, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, path: str) -> Journal:
        """From the text in the book."""
        try:
            found = json.loads(text)
            version = found.pop("version")
            if version != VERSION:
                raise Corrupt(
                    f"{path}: the version must be {VERSION}, got {version!r}: use the version of "
                    "Penstock that wrote it",
                    path=path,
                )
            found["partition_by"] = tuple(found["partition_by"])
            found["moves"] = tuple(Move(**move) for move in found["moves"])
            return cls(**{each.name: found[each.name] for each in fields(cls)})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Corrupt(
                f"{path}: must be the journal of a lake ({error!r})", path=path
            ) from error


class LakeLock:
    """A lock that is held until it is released, or until the process dies."""

    def __init__(self, path: str, timeout: float, why: str) -> None:
        self._fd = files.open_lock(path)
        deadline = time.monotonic() + timeout
        nap = 0.001
        while not files.lock_exclusive(self._fd, path):
            if time.monotonic() >= deadline:
                files.close(self._fd)
                raise Busy(f"{path}: {why}")
            time.sleep(nap)
            nap = min(0.05, nap * 2)

    def release(self) -> None:
        """Release the lock."""
        if self._fd >= 0:
            files.close(self._fd)
            self._fd = -1


class Book:
    """The book of one lake."""

    def __init__(self, target: str | os.PathLike[str], bad: str | os.PathLike[str] | None = None):
        self.target = files.path_text(target, "the lake")
        above, name = os.path.split(self.target)
        if not name:
            raise Usage(f"the lake must be a directory with a name, got {self.target}")
        self.path = os.path.join(above, f"_{name}")
        self.staging = os.path.join(self.path, "staging")
        self.checkpoint = os.path.join(self.path, "checkpoint")
        self.journal_path = os.path.join(self.path, "journal.json")
        self._bad_given = None if bad is None else files.path_text(bad, "bad")
        self.bad = self._bad_given or os.path.join(self.path, "bad")

    def make(self) -> None:
        """Create the directories; rows without a journal are refused."""
        journal = self.journal()
        if journal is not None:
            self._check_rows(journal)
        elif _has_parquet(self.target):
            raise Usage(
                f"{self.target}: has rows already, but {self.path} has no journal for them; choose "
                "another target, or move the rows away"
            )
        for path in (self.target, self.path, self.staging, self.bad):
            files.make_dirs(path)
        device = os.stat(self.staging).st_dev
        for path in (self.target, self.bad):
            if os.stat(path).st_dev != device:
                raise Usage(
                    f"{path}: must be on the same file system as {self.path}, so that files can be "
                    "renamed from one to the other"
                )

    def hold(self, what: Literal["stream", "compact"], timeout: float) -> LakeLock:
        """Become the only stream that fills the lake, or the only compaction of it."""
        verb = {"stream": "fills", "compact": "compacts"}[what]
        why = f"another process {verb} {self.target}; stop it first"
        return LakeLock(os.path.join(self.path, f"{what}.lock"), timeout, why)

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """Be the only process that changes names in the lake."""
        why = f"another process has been changing {self.target} for {PUBLISH_TIMEOUT:.0f} s"
        hold = LakeLock(os.path.join(self.path, "publish.lock"), PUBLISH_TIMEOUT, why)
        try:
            yield
        finally:
            hold.release()

    def journal(self) -> Journal | None:
        """The journal as it is now; None if nothing was published."""
        text = files.read_text(self.journal_path)
        return None if text is None else Journal.from_json(text, self.journal_path)

    def recover(self) -> Journal | None:
        """Finish the batch that was being published when its process died, if there is one."""
        with self.publishing():
            journal = self.journal()
            if journal is not None:
                self._check_rows(journal)
                self._move(journal)
            return journal

    def _check_rows(self, journal: Journal) -> None:
        if journal.rows and not files.exists(self.target):
            raise Usage(
                f"{self.target}: the rows are gone, but {self.path} has their journal; restore the "
                f"rows, or delete {self.path} as well to start a new lake"
            )

    def publish(self, journal: Journal) -> Journal:
        """Make a staged batch part of the lake: it is, as soon as the journal names it."""
        journal = replace(journal, bad=self._bad_given)
        for move in journal.moves:
            files.sync_name(os.path.join(self.staging, move.staged))
        for directory in {os.path.dirname(move.staged) for move in journal.moves}:
            files.sync_name(os.path.join(self.staging, directory))
        with self.publishing():
            files.replace_text(self.journal_path, journal.to_json())
            self._move(journal)
        return journal

    def _move(self, journal: Journal) -> None:
        places = {"rows": self.target, "bad": journal.bad or os.path.join(self.path, "bad")}
        changed = set()
        for move in journal.moves:
            staged = os.path.join(self.staging, move.staged)
            if files.exists(staged):
                name = os.path.join(places[move.place], move.name)
                directory = os.path.dirname(name)
                if files.make_dirs(directory):
                    changed.add(os.path.dirname(directory))
                files.rename(staged, name)
                changed.add(directory)
        for directory in changed:
            files.sync_name(directory)

    def stage(self, what: Literal["batch", "compact"]) -> str:
        """A new path in staging, which no other attempt has used."""
        return os.path.join(self.staging, f"{what}-{uuid.uuid4().hex}")

    def sweep(self, what: Literal["batch", "compact"]) -> None:
        """Delete what dead attempts left in staging."""
        if not files.exists(self.staging):
            return
        for name in files.list_dir(self.staging):
            if name.startswith(f"{what}-"):
                files.remove_tree(os.path.join(self.staging, name))


def parquet_files(directory: str) -> Iterator[str]:
    """Paths of the Parquet files below a directory, relative to it, in order."""
    for here, below, names in os.walk(directory):
        below[:] = sorted(name for name in below if name[0] not in "_.")
        for name in sorted(names):
            if name.endswith(".parquet") and name[0] not in "_.":
                yield os.path.relpath(os.path.join(here, name), directory)


def _has_parquet(directory: str) -> bool:
    return next(parquet_files(directory), None) is not None
