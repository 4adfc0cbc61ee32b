"""An archive without its log: all that is in it, for reading only.

There is no directory with segments, no control and no consumers. The end is that of the last
archived segment, and moves when another one is archived.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

from penstock import layout as L
from penstock.archive import location, seekable
from penstock.archive.check import check_archive
from penstock.archive.depots import Depot, LocalDepot
from penstock.archive.history import History
from penstock.archive.naming import is_url
from penstock.errors import Usage
from penstock.handle.handle import Handle
from penstock.handle.storage import Beside
from penstock.report import Plan, Progress, Report
from penstock.segments.ending import Active
from penstock.segments.storage import SegmentStorage
from penstock.segments.store import Store
from penstock.settings import Settings
from penstock.stats import Stock
from penstock.steward.archive_report import ArchiveReport, ArchiveRequest
from penstock.steward.compact_report import CompactionReport, CompactRequest, ErasureReport
from penstock.steward.plan import Retention, Why
from penstock.system import files
from penstock.system.directory import Directory

REFRESH_SECONDS = 5.0  # how often a reader looks for segments that were archived meanwhile


class _ArchivedStore(Store):
    """The archived segments are all there are."""

    def bases(self, *, fresh: bool = False) -> list[int]:
        assert self.past is not None
        if self._bases is None or fresh:
            self._bases = self._at_floor(self.past.bases(0))
        return self._bases


@dataclass(slots=True)
class _End(Active):
    """The end of the last archived segment, with the settings of the log when that was archived."""

    said: Settings = field(default_factory=Settings)

    @property
    def settings(self) -> Settings:
        return self.said


class ArchiveStorage(SegmentStorage):
    """The archive of a log, as one handle has it."""

    follows_control = False

    def __init__(self, directory: Directory, where: str, depot: Depot) -> None:
        super().__init__(directory)
        self.path = where
        self._depot = depot
        self._past = History(depot, None, self.recent)
        self.store = _ArchivedStore(
            directory, None, self.recent, self._tip.base, self.coder, self._past
        )
        self.store.path = where
        self._listed = 0.0

    @property
    def home(self) -> Directory:
        raise Usage(
            f"{self.path}: an archive has no consumers or groups; open the log, or restore the "
            "archive to a log of its own"
        )

    def open_held(self, *, write: bool) -> int:
        if write:
            raise _reading_only(self.path)
        return files.open_dir(self.directory)

    def check_there(self, handle: Handle) -> None:
        """There is nothing that could be deleted or replaced as a whole."""

    def check_home(self, handle: Handle) -> None:
        """There is none; `home` says so."""

    def learn(self, settings: Settings) -> None:
        self.store.raise_floor(settings.first_seq)

    def read_alone(self, handle: Handle) -> None:
        """Find the last archived segment."""
        uuid = self._past.uuid()
        self.store.uuid = uuid
        self._listed = monotonic()
        self._take_end(handle)

    def grow(self, handle: Handle) -> None:
        """Look from time to time whether there are more."""
        if monotonic() - self._listed < REFRESH_SECONDS:
            return
        self._listed = monotonic()
        self._past.forget()
        self.store.bases(fresh=True)
        self._take_end(handle)

    def _take_end(self, handle: Handle) -> None:
        base = self.store.bases(fresh=True)[-1]
        static = self._tip.static
        if static is not None and static.header.base_seq == base:
            return
        m = self.store.open(base)
        assert m is not None
        archived = self._past.archived(base)
        header = seekable.header_of(archived, m.bytes_at(0, L.INDEX_OFFSET))
        walk = m.at_start().changed(
            offset=m.data_end,
            last_frame=m.summary.last_frame,
            next_seq=m.next_seq,
            monotone=m.summary.log_monotone,
            rolled=True,
        )
        self._tip.static = end = _End(m, header, walk, said=self._past.settings())
        self.learn(end.said)
        handle._static_head = end.head

    def forget(self, handle: Handle) -> None:
        super().forget(handle)
        self._past.forget()

    def vouched_seq(self, handle: Handle) -> int:
        """All of it: it was synced before it was archived."""
        return handle._next_seq() - 1

    def take_stock(self, handle: Handle) -> Stock:
        entries = [self._past.entry(base) for base in self._past.bases(0)]
        first, after = self.seqs(handle)
        return Stock(
            uuid=self.store.uuid or b"",
            first_seq=first,
            next_seq=after,
            segments=len(entries),
            disk_bytes=sum(entry.nbytes for entry in entries),
            spurious={},
        )

    def verify(self, progress: Progress | None) -> Report:
        past = History(self._depot, None, [])
        past.uuid()
        return check_archive(past, self.path, progress)

    def retain(self, handle: Handle, *, dry_run: bool, timeout: float | None) -> Retention:
        raise self._no_job()

    def trim(
        self, handle: Handle, find: Callable[[], int], *, dry_run: bool, timeout: float | None
    ) -> int:
        raise self._no_job()

    def why(self, handle: Handle, seq: int) -> Why:
        raise self._no_job()

    def compact(self, handle: Handle, request: CompactRequest) -> CompactionReport:
        raise self._no_job()

    def archive(self, handle: Handle, request: ArchiveRequest) -> ArchiveReport:
        raise self._no_job()

    def erase(
        self,
        handle: Handle,
        key: bytes,
        dry_run: bool,
        timeout: float | None,
        progress: Progress | None,
    ) -> ErasureReport:
        raise self._no_job()

    def _no_job(self) -> Usage:
        return Usage(
            f"{self.path}: this is an archive, which no maintenance changes; call it on the log"
        )

    def repair(self, to: str | None, progress: Progress | None) -> Plan:
        raise Usage(f"{self.path}: an archive cannot be repaired; restore it, and repair that")

    def backup(
        self, handle: Handle, target: str, progress: Progress | None, beside: Beside | None = None
    ) -> int:
        raise Usage(f"{self.path}: this is an archive; penstock.restore makes a log of it")


def _reading_only(path: str) -> Usage:
    return Usage(
        f"{path}: is an archive, which can only be read: open it with mode='r', or make a log of "
        "it with penstock.restore()"
    )


def storage_of(given: str, mode: str) -> ArchiveStorage:
    """The storage of the archive at a path or URL."""
    where = location.checked(given, "path")
    if mode != "r":
        raise _reading_only(where)
    if is_url(where):
        # What is never used: everything is read through the depot.
        return ArchiveStorage(files.hold_dir("/"), where, location.depot_at(where, None))
    directory = files.hold_dir(where)
    return ArchiveStorage(directory, where, LocalDepot(where))
