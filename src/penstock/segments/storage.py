"""SegmentStorage: a log as a directory of segments, which grows by one when one is full.

It has the state of the files in one handle; the modules beside it have the operations.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from penstock import layout as L
from penstock._core import Coder, Control, Given, Hold, SegmentFinder, SegmentMap
from penstock.errors import (
    Corrupt,
    Gap,
    Internal,
    Io,
    NotFound,
    PenstockError,
    TooLarge,
    Usage,
    gone_error,
)
from penstock.handle import locks
from penstock.handle.control import ControlPlace
from penstock.handle.durability import Snapshot
from penstock.handle.producers import Table
from penstock.handle.storage import Beside, SeenSettings
from penstock.layout import SegmentPosition
from penstock.report import Plan, Progress, Report
from penstock.segments import ending, finding, opening, segment, state, syncing, writing
from penstock.segments.backup import backup
from penstock.segments.ending import Active
from penstock.segments.load import Private
from penstock.segments.producers import Follower
from penstock.segments.segment import Header
from penstock.segments.store import Store
from penstock.settings import Settings
from penstock.stats import Stock
from penstock.steward import retention
from penstock.steward.ahead import Ahead
from penstock.steward.archive_report import ArchiveReport, ArchiveRequest
from penstock.steward.budget import Budget
from penstock.steward.compact_report import CompactionReport, CompactRequest, ErasureReport
from penstock.steward.plan import Retention, Why
from penstock.steward.slack import give_back_alone
from penstock.system import files
from penstock.system.directory import Directory
from penstock.system.forks import Begun
from penstock.system.needs import loading

if TYPE_CHECKING:
    from penstock.handle.handle import Handle

_T = TypeVar("_T")


class _Tip:
    """The segment that takes appends, by control or else by the frames alone; for the store."""

    def __init__(self) -> None:
        self.control: Control | None = None
        self.static: Active | None = None

    def base(self) -> int:
        """Its base seq; 0 while that is not known yet."""
        control, static = self.control, self.static
        if control is not None and not control.inherited:
            return control.get(L.C_ACTIVE_BASE)
        return static.header.base_seq if static is not None else 0


class SegmentStorage:
    """The segments of one log, as one handle has them.

    `handle/storage.py` documents each method.
    """

    is_ring = False
    follows_control = True
    finder = SegmentFinder()
    loads_apart = True

    def __init__(
        self,
        directory: Directory,
        private: Header | None = None,
        budget: Budget | None = None,
    ) -> None:
        """Take the log in ``directory``, which then belongs to this storage.

        ``private`` is the header of the first segment of a log that another will take over, and
        ``budget`` is that of the other.
        """
        self.directory = directory
        self.path = directory.path
        self.budget = Budget(directory) if budget is None else budget
        self.place = ControlPlace.in_directory(directory)
        self.coder = Coder()
        self.recent: list[SegmentMap] = []
        self.header: Header | None = None  # of the segment that is mapped for appends
        self.ahead: Ahead | None = None
        self.base_at_open = 0  # of the segment that took appends then
        self._tip = _Tip()
        self.store = Store(directory, None, self.recent, self._tip.base, self.coder)
        self._private = private
        self._begun = Begun("load")
        self._rewrites = 0  # what control said when the store was filled
        self._archive = ""  # where the log's archive is, as the settings say
        self._all: Store | None = None  # with the archive, if there is one: only for reading
        self.seen: SeenSettings | None = None
        self.producers = Follower()

    @property
    def home(self) -> Directory:
        return self.directory

    def segments_in(self, directory: Directory) -> SegmentStorage:
        return SegmentStorage(directory)

    @property
    def is_private(self) -> bool:
        """Whether another log will take this one over."""
        return self._private is not None

    @property
    def static(self) -> Active | None:
        return self._tip.static

    def open_held(self, *, write: bool) -> int:
        """A new descriptor of the directory, if the log is still in it."""
        files.check_there(self.directory)
        known = self.store.uuid
        if known is not None and not ending.has_segment_of(self.directory, known):
            raise gone_error(self.path)
        return files.open_dir(self.directory)

    def open_lock(self, new: Settings | None) -> int:
        try:
            return locks.open_lock(self.directory)
        except NotFound:
            opening.has_segments(self.store, Store(self.directory, None, [], lambda: 0), new)
            return locks.make_lock(self.directory, 0 if new is None else new.file_mode)

    def first_open(self, held_fd: int, new: Settings | None, lock_fd: int) -> None:
        opening.first_open(self.store, self.place, held_fd, new, lock_fd, self._private)

    def adopt(self, handle: Handle, attached: Control, held_fd: int) -> None:
        """Switch the handle to live control."""
        opening.belong_to(self.store, attached.uuid())
        attached.held_fd = held_fd
        self.base_at_open = attached.get(L.C_ACTIVE_BASE)
        handle._keep_held(-1)
        self._tip.control = attached
        handle._ctl = attached  # now other threads see it
        self._tip.static = None

    def read_alone(self, handle: Handle) -> None:
        """Find the end from the frames alone."""
        self._tip.control = None
        self._tip.static = static = opening.read_alone(self.store, self.place)
        self._learn_floor(static)
        handle._static_head = static.head

    def _learn_floor(self, static: Active) -> None:
        """Take over the first seq that the settings say, if these can be read."""
        with suppress(Corrupt):
            self.learn(static.settings)

    def learn(self, settings: Settings) -> None:
        """Note what the settings say about the segments."""
        self.store.raise_floor(settings.first_seq)
        if settings.archive != self._archive:
            self._archive, self._all = settings.archive, None
        if self._all is not None:
            self._all.raise_floor(settings.first_seq)

    def grow(self, handle: Handle) -> None:
        if self._tip.static is not None:
            self._tip.static = static = opening.grown(self.store, self._tip.static)
            self._learn_floor(static)
            handle._static_head = static.head

    def follow_name(self, handle: Handle) -> None:
        """The directory is held: a file with its name now is another log."""

    def check_child(self) -> None:
        """In a child of a fork: the segments of a load are those of the process that loads."""
        if self._private is not None:
            self._begun.check()

    def check_there(self, handle: Handle) -> None:
        """Raise `Gone` if the directory was deleted, or the segment that takes appends."""
        files.check_there(self.directory)
        m, attached = handle._active_map, handle._ctl
        if m is None or attached is None or attached.inherited or m.fd < 0:
            return
        head = SegmentPosition.unpack(attached.get(L.C_HEAD))
        if m.number == head.number and not files.is_linked(m.fd, m.path):
            raise gone_error(self.path)

    def check_home(self, handle: Handle) -> None:
        self.check_there(handle)

    def close_cleanly(self, handle: Handle, attached: Control) -> None:
        """The checkpoint is sufficient; but the keeper may have had no time to delete segments."""
        kept_up = attached.get(L.C_ACTIVE_BASE) == self.base_at_open
        if not (kept_up if self.ahead is None else self.ahead.is_kept_up()):
            retention.keep_up_at_close(handle, self)

    def give_back(self, handle: Handle) -> None:
        writing.give_back(handle, self)

    def give_back_alone(self) -> None:
        give_back_alone(self.store, self.place)

    def forget(self, handle: Handle) -> None:
        """Drop every map and the state of the files."""
        self.ahead = None
        self.header = None
        self.seen = None
        self._tip.control = self._tip.static = None
        self.store.forget()
        self._all = None
        self._archive = ""

    def release(self) -> None:
        self.directory.close()

    def make_ready(self, handle: Handle, nbytes: int, timeout: float | None) -> bool:
        return writing.make_ready(handle, self, nbytes, timeout)

    def make_ready_to_configure(self, handle: Handle, nbytes: int, when_full: int) -> None:
        """Refuse: nothing is ever overwritten, so no settings say what may be."""
        raise Internal(f"{self.path}: a segmented log is never full")

    def roll_for(self, handle: Handle, nbytes: int) -> bool:
        return writing.roll_for(handle, self, nbytes)

    def too_large(self, nbytes: int, most: int) -> PenstockError:
        """The error for an append of more bytes than fit a segment."""
        return TooLarge(
            f"an append must take at most {most} bytes, a segment, got {nbytes}; split it, or "
            "configure(segment_size=...) and append something smaller first"
        )

    def full(self, handle: Handle) -> PenstockError:
        """The error for an impossible case."""
        return Internal(f"{self.path}: a segmented log is never full")

    def confirm(self, handle: Handle, timeout: float | None) -> None:
        """Nothing is ever overwritten."""

    def take_hold(self, handle: Handle, seq: int) -> Hold:
        """Refuse: holds are for rings."""
        raise Usage(
            f"{self.path}: hold=True is for a ring; a log of segments never overwrites what a "
            "reader has not read yet"
        )

    def sync(self, handle: Handle, attached: Control, words: Snapshot) -> None:
        syncing.sync(self.store, attached, handle._active_map, words)

    def vouched_seq(self, handle: Handle) -> int:
        """Without live control: the last seq that a checkpoint or a footer says is on disk."""
        return ending.vouched(self.store).seq

    def settings(self, handle: Handle, attached: Control) -> Settings:
        return state.settings(handle, self, attached)

    def settings_seen(self, handle: Handle, attached: Control) -> Settings | None:
        return state.settings(handle, self, attached)

    def append_settings(self, handle: Handle, settings: Settings, at: int) -> bool:
        """Append a frame with other settings."""
        return handle._append_settings(settings.to_json(), at=at)

    def ask_producers(self, handle: Handle, question: Callable[[Table], _T]) -> tuple[_T, int]:
        return state.ask_producers(handle, self, question)

    def roll(self, handle: Handle) -> int:
        return writing.roll_unless_empty(handle, self)

    def ask_keeper(self, handle: Handle) -> None:
        writing.ask_keeper(handle, self)

    def room(self, handle: Handle) -> int:
        """Bytes of frames that fit a new segment."""
        return segment.room_in(handle.settings.segment_size)

    def load_apart(self, handle: Handle, first: Given) -> Private:
        """A private log for a load that begins with the event ``first``."""
        return Private(handle, self, first)

    def _everything(self) -> Store:
        """The store of all segments, archived ones too. Appends never use it, nor wait for it."""
        self._look()
        if not self._archive or self.store.uuid is None:
            return self.store
        if self._all is None:
            with loading(self.path):
                from penstock.archive.history import past_of

            past = past_of(self._archive, self.directory, self.store.uuid, self.recent)
            made = Store(
                self.directory, self.store.uuid, self.recent, self._tip.base, self.coder, past
            )
            made.spurious = self.store.spurious
            made.raise_floor(self.store.floor)
            self._all = made
        return self._all

    def _before_files(self, seq: int) -> bool:
        """Whether only the archive can have that seq."""
        if not self._archive:
            return False
        bases = self._look().bases()
        return bool(bases) and seq < bases[0]

    def _look(self) -> Store:
        """The store, without what it knows of segments that were replaced since the last look."""
        control = self._tip.control
        if control is not None and not control.inherited:
            rewrites = control.get(L.C_REWRITES)
            if rewrites != self._rewrites:
                self._rewrites = rewrites
                self.store.replaced()
                if self._all is not None:
                    self._all.replaced()
        return self.store

    def segment_for(self, handle: Handle, seq: int) -> SegmentMap | None:
        if seq >= handle._next_seq():
            return None
        m = self._look().covering(seq)
        if self._archive and (m is None or seq < m.base_seq):
            m = self._everything().covering(seq)
        return m

    def segment_at(self, handle: Handle, base_seq: int) -> SegmentMap:
        if not self._before_files(base_seq):
            try:
                return self._look().beginning_at(base_seq)
            except Gap:
                if not self._archive:
                    raise
        return self._everything().beginning_at(base_seq)

    def segment_before(self, later: SegmentMap) -> SegmentMap | None:
        m = None if self._before_files(later.base_seq) else self._look().before(later)
        return self._everything().before(later) if m is None and self._archive else m

    def segment_after(self, seq: int) -> SegmentMap | None:
        return (self._everything() if self._before_files(seq) else self.store).after(seq)

    def segment_below(self, seq: int) -> SegmentMap | None:
        m = None if self._before_files(seq) else self.store.below(seq)
        return self._everything().below(seq) if m is None and self._archive else m

    def lowest_base(self, handle: Handle) -> int:
        floor = handle._floor()
        return max(floor, min(self._everything().bases(), default=1))

    def first_seq(self, handle: Handle) -> int:
        handle._floor()  # it reads the settings, which say where the archive is
        return finding.first_seq(self._everything(), handle)

    def seqs(self, handle: Handle) -> tuple[int, int]:
        return self.first_seq(handle), handle._next_seq()

    def count(self, handle: Handle) -> int:
        """The number of events."""
        return self.events_between(handle, *self.seqs(handle))

    def events_between(self, handle: Handle, start: int, stop: int) -> int:
        """How many events have seqs from ``start`` to before ``stop``."""
        if start >= stop or not handle.settings.holes:
            return max(0, stop - start)
        store = self._everything() if self._before_files(start) else self.store
        return finding.events_between(store, handle, start, stop)

    def why_missing(self, seq: int) -> PenstockError | None:
        store = self._everything() if self._before_files(seq) else self.store
        return finding.why_missing(store, seq)

    def first_seq_since(self, handle: Handle, since_ns: int) -> int:
        return finding.first_seq_since(self._everything(), since_ns)

    def first_appended(self, since_ns: int) -> int:
        return finding.first_appended(self._everything(), since_ns)

    def seq_past(self, handle: Handle, until_ns: int, end: int) -> int:
        """Base of the first segment after all events before ``until_ns``, if times never fell."""
        if not handle._monotone():
            return end
        return self._everything().first_where(lambda m: m.prior_event_max_ns >= until_ns) or end

    def cuts(self, start: int, stop: int) -> list[int]:
        store = self._everything() if self._before_files(start) else self.store
        return finding.cuts(store, start, stop)

    def span_bytes(self, handle: Handle, first: int, stop: int) -> int:
        """Bytes of the events from ``first`` to before ``stop``, to a block."""
        m = self.segment_for(handle, first)
        return 0 if m is None else finding.span_bytes(self.store, handle, m, first, stop)

    def block_start(self, handle: Handle, seq: int) -> int:
        """The seq at which the block of frames with ``seq`` begins."""
        m = self.segment_for(handle, seq)
        return seq if m is None else m.seq_near(handle, m.offset_near(handle, seq))

    def span_stop(self, handle: Handle, first: int, stop: int, nbytes: int) -> int:
        """The seq up to which events from ``first`` take about ``nbytes``, or less."""
        m = self.segment_for(handle, first)
        return stop if m is None else m.seq_near(handle, m.offset_near(handle, first) + nbytes)

    def rules_out(
        self,
        handle: Handle,
        seq: int,
        topics: tuple[bytes, ...] | None,
        since_ns: int,
        until_ns: int,
    ) -> bool:
        """Whether no event of the piece from ``seq`` on has one of the topics and such a time."""
        m = self.segment_for(handle, seq)
        return m is not None and m.rules_out(topics, since_ns, until_ns)

    def topics(self, handle: Handle) -> set[bytes]:
        handle._floor()
        return finding.topics(self._everything(), handle)

    def uuid(self) -> bytes:
        """The unique id of the log."""
        assert self.store.uuid is not None
        return self.store.uuid

    def take_stock(self, handle: Handle) -> Stock:
        return finding.take_stock(self.store, handle, self.budget, self._first_seq_known(handle))

    def _first_seq_known(self, handle: Handle) -> int:
        """The first seq; while the archive is out of reach, that of the files."""
        try:
            return self.first_seq(handle)
        except Io:  # the state of the rest is wanted all the more
            return finding.first_seq(self.store, handle)

    def verify(self, progress: Progress | None) -> Report:
        with loading(self.directory.path):
            from penstock.segments.check.verify import verify

        report = verify(self.directory, progress=progress)
        if not self._archive:
            return report
        with loading(self.path):
            from penstock.archive.check import check_archive, joined
            from penstock.archive.history import past_of
            from penstock.archive.location import text_of

        assert self.store.uuid is not None
        past = past_of(self._archive, self.directory, self.store.uuid, [])
        where = text_of(self._archive, self.directory)
        first = min(self._look().bases(fresh=True), default=0)
        return joined(check_archive(past, where, progress, first), report)

    def repair(self, to: str | None, progress: Progress | None) -> Plan:
        with loading(self.directory.path):
            from penstock.segments.check.repair import repair

        return repair(self.directory, to=to, progress=progress)

    def backup(
        self, handle: Handle, target: str, progress: Progress | None, beside: Beside | None = None
    ) -> int:
        return backup(self.store, handle._head, handle.settings, target, progress, beside)

    def resize(self, handle: Handle, nbytes: int) -> None:
        """Refuse: the log has no fixed size."""
        raise Usage(f"{self.path}: a segmented log has no fixed size to change; only a ring has")

    def retain(self, handle: Handle, *, dry_run: bool, timeout: float | None) -> Retention:
        return retention.retain(handle, self, dry_run=dry_run, timeout=timeout)

    def trim(
        self, handle: Handle, find: Callable[[], int], *, dry_run: bool, timeout: float | None
    ) -> int:
        return retention.trim(handle, self, find, dry_run=dry_run, timeout=timeout)

    def why(self, handle: Handle, seq: int) -> Why:
        return retention.why(handle, self, seq)

    def seal_now(self, handle: Handle) -> None:
        """Seal all finished segments, which frees what was allocated ahead in them."""
        writing.seal_now(handle, self)

    def compact(self, handle: Handle, request: CompactRequest) -> CompactionReport:
        """Keep the last events of each key."""
        with loading(self.path):
            from penstock.steward.compact import compact

        return compact(handle, self.directory, request)

    def archive(self, handle: Handle, request: ArchiveRequest) -> ArchiveReport:
        """Store sealed segments elsewhere, and delete their files."""
        with loading(self.path):
            from penstock.steward.archive import archive

        return archive(handle, self.directory, request)

    def erase(
        self,
        handle: Handle,
        key: bytes,
        dry_run: bool,
        timeout: float | None,
        progress: Progress | None,
    ) -> ErasureReport:
        """Remove every trace of a key."""
        with loading(self.path):
            from penstock.steward.erase import erase

        return erase(handle, self.directory, key, dry_run, timeout, progress)
