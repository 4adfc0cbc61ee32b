"""RingStorage: a log as one file of fixed size, which overwrites its oldest events.

It has the state of the file in one handle; the modules beside it have the operations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from penstock import _core
from penstock import layout as L
from penstock._core import Coder, Control, Given, Hold, RingFile, RingMap, SegmentMap
from penstock.errors import Gone, PenstockError, TooLarge, Usage, gone_error
from penstock.handle.control import ControlPlace
from penstock.handle.durability import Snapshot
from penstock.handle.producers import Table
from penstock.handle.storage import Apart, Beside, Moved, SeenSettings
from penstock.report import Plan, Progress, Report
from penstock.ring import finding, opening, resize, state, syncing, writing
from penstock.ring.backup import backup
from penstock.ring.ending import Ends
from penstock.ring.file import Header, map_ring
from penstock.ring.holds import Holds, new_hold
from penstock.ring.named import NamedFile
from penstock.ring.producers import Follower, FrameAt
from penstock.segments.storage import SegmentStorage
from penstock.settings import Settings
from penstock.stats import Stock
from penstock.steward.archive_report import ArchiveReport, ArchiveRequest
from penstock.steward.compact_report import CompactionReport, CompactRequest, ErasureReport
from penstock.steward.plan import Retention, Why
from penstock.system import files
from penstock.system.directory import Directory, Name
from penstock.system.messages import logger
from penstock.system.needs import loading

if TYPE_CHECKING:
    from penstock.handle.handle import Handle

_T = TypeVar("_T")


class RingStorage:
    """The file of one ring, as one handle has it.

    `handle/storage.py` documents each method.
    """

    is_ring = True
    follows_control = True
    is_private = False
    loads_apart = False

    def __init__(self, path: str) -> None:
        self.path = path
        self.file = NamedFile(path)
        self.finder = RingFile()
        self.coder = Coder()
        self.recent: list[SegmentMap] = []  # the handle has the only map
        self.static: Ends | None = None
        self.header: Header | None = None
        self.seen: SeenSettings | None = None
        self.producers = Follower()
        self.holds = Holds()
        self.leaving: Control | None = (
            None  # the control that a resize in this handle moves away from
        )

    def known_header(self, handle: Handle) -> Header:
        """The header of the file; `Closed` if it was released."""
        header = self.header
        if header is None:
            raise handle._closed_error()
        return header

    def frame_at(self, handle: Handle) -> FrameAt:
        """What reads the frame at a position; None if that is gone."""
        return partial(self.finder.frame_at, handle)

    @property
    def place(self) -> ControlPlace:
        return self.file.place

    @property
    def home(self) -> Name:
        return self.file.home

    def open_held(self, *, write: bool) -> int:
        return opening.open_held(self.file, write=write)

    def open_lock(self, new: Settings | None) -> int:
        """-1: writers lock the ring itself."""
        return -1

    def first_open(self, held_fd: int, new: Settings | None, lock_fd: int) -> None:
        opening.first_open(self.file, held_fd)

    def adopt(self, handle: Handle, attached: Control, held_fd: int) -> None:
        """Switch the handle to the ring's control, and its readers to new holds."""
        m, header = map_ring(self.file.held, write=handle._writable)
        opening.check_named(self.file, held_fd)
        if handle._writable and attached.get(L.C_EPOCH) & L.EPOCH_MOVED:
            with attached.locked(handle._timeout):  # the process that was about to move it is dead
                attached.put(L.C_EPOCH, attached.get(L.C_EPOCH) & ~L.EPOCH_MOVED)
        attached.held_fd = held_fd
        held = self.holds.seqs(handle, self)
        self._know(handle, m, header)
        handle._keep_held(-1)
        if held:
            with attached.locked(handle._timeout):  # so that no append drops what they hold
                handle._take_ring(m, attached, handle._writable)
                for hold, seq in held:
                    position = self.finder.position_from(handle, seq)
                    hold.move_over(new_hold(self.file.held, attached, position))
        else:
            handle._take_ring(m, attached, handle._writable)  # now other threads see it
        self.static = None

    def _know(self, handle: Handle, m: RingMap, header: Header) -> None:
        """Drop the state of another file."""
        m.coder = self.coder
        m.home_fd = m.fd if handle._writable else -1  # appends check whether it was deleted
        self.file.uuid = header.uuid
        self.header = header
        self.seen = None
        self.producers = Follower()

    def read_alone(self, handle: Handle) -> None:
        """Find both ends from the frames alone."""
        m, header, ends, epoch = opening.read_alone(self.file)
        self._know(handle, m, header)
        self.static = ends
        self.finder.take_still(handle, m, ends.tail, ends.head, epoch)

    def grow(self, handle: Handle) -> None:
        """Without live control: has the file changed?"""
        m = self.finder.map
        if m is not None and (
            m.epoch() != self.finder.static_epoch or not files.same_file(m.fd, self.file.held)
        ):
            self.read_alone(handle)

    def follow_name(self, handle: Handle) -> None:
        if self.file.is_moved():
            self.file.hold_named()
            fd = self.open_held(write=False)
            _core.own_fd(fd)
            old = handle._held_fd
            handle._held_fd = fd
            _core.close_fd(old)

    def check_child(self) -> None:
        """A child of a fork may open any ring."""

    def check_there(self, handle: Handle) -> None:
        """Raise `Gone` if the file was deleted, except by a resize of this handle."""
        m = self.finder.map
        if m is None or handle._inherited or self.leaving is not None or m.fd < 0:
            return
        if not files.is_linked(m.fd, self.path) and m is self.finder.map and self.leaving is None:
            raise gone_error(self.path)

    def segments_in(self, directory: Directory) -> SegmentStorage:
        return SegmentStorage(directory)

    def check_home(self, handle: Handle) -> None:
        """The consumers of a ring are found by its name, which another ring may have by now."""
        self.check_there(handle)
        if not self.file.has_name():
            raise Gone(
                f"{self.path}: the ring was deleted, renamed or replaced since it was opened, and "
                "its consumers are beside it, by its name; nothing was changed: open it by its "
                "name to use them",
                filename=self.path,
            )

    def close_cleanly(self, handle: Handle, attached: Control) -> None:
        """If no other handle has the ring open: note in a checkpoint that nothing follows it."""
        m = self.finder.map
        if m is None:
            return
        try:
            with _core.FlockBlock(attached.held_fd):
                if not handle._inherited:
                    syncing.close_cleanly(m, attached)
        except PenstockError as error:
            logger.warning("%s: was closed without a clean checkpoint: %s", self.path, error)

    def give_back(self, handle: Handle) -> None:
        """A ring allocates no blocks ahead."""

    def give_back_alone(self) -> None:
        """The same."""

    def forget(self, handle: Handle) -> None:
        """Drop the map and the state of the file."""
        if handle._inherited:  # in a child: a thread that was resizing it stayed in the parent
            self.leaving = None
        self.holds.close()
        self.header = None
        self.seen = None
        self.static = None
        self.finder.forget()

    def release(self) -> None:
        self.file.release()

    def make_ready(self, handle: Handle, nbytes: int, timeout: float | None) -> bool:
        return writing.make_ready(handle, self, nbytes, timeout)

    def make_ready_to_configure(self, handle: Handle, nbytes: int, when_full: int) -> None:
        writing.make_ready_to_configure(handle, self, nbytes, when_full)

    def roll_for(self, handle: Handle, nbytes: int) -> bool:
        """No map can be larger."""
        return False

    def too_large(self, nbytes: int, most: int) -> TooLarge:
        """The error for an append of more bytes than half of the ring."""
        return TooLarge(
            f"{self.path}: an append must take at most {most} bytes, half of the ring, got "
            f"{nbytes}; split the batch, or resize() the ring"
        )

    def full(self, handle: Handle) -> PenstockError:
        return writing.full(handle, self)

    def confirm(self, handle: Handle, timeout: float | None) -> None:
        writing.confirm(handle, timeout)

    def take_hold(self, handle: Handle, seq: int) -> Hold:
        return self.holds.take(handle, self, seq)

    def sync(self, handle: Handle, attached: Control, words: Snapshot) -> None:
        """Sync everything up to the head in ``words`` to disk; under the sync lock."""
        m = self.finder.map
        if m is None:
            raise handle._closed_error()
        if attached.get(L.C_EPOCH) & L.EPOCH_MOVED:
            if attached is not handle._ctl:
                raise Moved
            self.make_ready(
                handle, 0, None
            )  # waits for the thread that switches, unless its process is dead
            return
        syncing.sync(m, attached, words)

    def vouched_seq(self, handle: Handle) -> int:
        """Without live control: the last seq that a checkpoint says is on disk."""
        m, header = self.finder.map, self.header
        if m is None or header is None:
            raise handle._closed_error()
        return syncing.vouched_seq(m, header, self.place)

    def settings(self, handle: Handle, attached: Control) -> Settings:
        return state.settings(handle, self, attached)

    def settings_seen(self, handle: Handle, attached: Control) -> Settings | None:
        return state.read_settings(handle, self, attached)

    def append_settings(self, handle: Handle, settings: Settings, at: int) -> bool:
        return resize.append_settings(handle, self, settings, at)

    def ask_producers(self, handle: Handle, question: Callable[[Table], _T]) -> tuple[_T, int]:
        return state.ask_producers(handle, self, question)

    def roll(self, handle: Handle) -> int:
        """Refuse: there are no segments."""
        handle._check_writable()
        raise Usage(f"{self.path}: a ring has no segments, so it cannot roll")

    def ask_keeper(self, handle: Handle) -> None:
        """A ring has all its blocks from the start, and nothing is ever sealed."""

    def room(self, handle: Handle) -> int:
        """Bytes of frames in the largest possible batch: half of the ring."""
        return self.finder.map.append_max if self.finder.map is not None else 0

    def load_apart(self, handle: Handle, first: Given) -> Apart:
        """Refuse: more than half of the ring does not fit."""
        raise TooLarge(
            f"{self.path}: a load into a ring must fit half of it, {self.room(handle)} bytes; "
            "append less at a time, or resize() the ring"
        )

    # A ring is one map, for every seq.

    def segment_for(self, handle: Handle, seq: int) -> SegmentMap | None:
        """The map of the file."""
        return self.finder.map

    def segment_at(self, handle: Handle, base_seq: int) -> SegmentMap:
        """The map of the file."""
        if self.finder.map is None:
            raise handle._closed_error()
        return self.finder.map

    def segment_before(self, later: SegmentMap) -> SegmentMap | None:
        """None: there is one map."""
        return None

    def segment_after(self, seq: int) -> SegmentMap | None:
        """None: there is one map."""
        return None

    def segment_below(self, seq: int) -> SegmentMap | None:
        """None: there is one map."""
        return None

    def lowest_base(self, handle: Handle) -> int:
        """Seq of the oldest event."""
        return self.finder.oldest_seq(handle)

    def first_seq(self, handle: Handle) -> int:
        return self.finder.oldest_seq(handle)

    def seqs(self, handle: Handle) -> tuple[int, int]:
        """Seq of the oldest event and the next seq, both at one moment."""
        first, after, _, _ = self.finder.now(handle)
        return first, after

    def count(self, handle: Handle) -> int:
        """The number of events, or a little more if seqs are missing."""
        first, after, tail, head = self.finder.now(handle)
        # A repair may have left out any number of seqs; ``list`` relies on this number.
        return max(0, min(after - first, (head - tail) // L.FRAME_HEADER_BYTES))

    def events_between(self, handle: Handle, start: int, stop: int) -> int:
        """How many events have seqs from ``start`` to before ``stop``."""
        return max(0, stop - start)

    def why_missing(self, seq: int) -> PenstockError | None:
        """No file can be missing."""
        return None

    def first_appended(self, since_ns: int) -> int:
        """A ring has no index of times; it is one file, whose oldest events go by themselves."""
        return 1

    def first_seq_since(self, handle: Handle, since_ns: int) -> int:
        """By halving, if times never went back."""
        first = self.finder.oldest_seq(handle)
        found = finding.by_time(handle, self, since_ns, first, handle._next_seq()) or first
        return (
            found if found > first else 1
        )  # the oldest frame may be damaged, and must be reported

    def seq_past(self, handle: Handle, until_ns: int, end: int) -> int:
        return finding.by_time(handle, self, until_ns, self.finder.oldest_seq(handle), end) or end

    def cuts(self, start: int, stop: int) -> list[int]:
        """One file is read in one piece."""
        return []

    def span_bytes(self, handle: Handle, first: int, stop: int) -> int:
        """How many bytes the events from ``first`` to before ``stop`` take."""
        return max(
            0, self.finder.position_from(handle, stop) - self.finder.position_from(handle, first)
        )

    def block_start(self, handle: Handle, seq: int) -> int:
        """The seq itself: the sizes of a ring's spans are exact."""
        return seq

    def span_stop(self, handle: Handle, first: int, stop: int, nbytes: int) -> int:
        """The seq up to which events from ``first`` take about ``nbytes``, or less."""
        room = max(1, self.span_bytes(handle, first, stop))
        return min(stop, first + max(1, (stop - first) * nbytes // room))

    def rules_out(
        self,
        handle: Handle,
        seq: int,
        topics: tuple[bytes, ...] | None,
        since_ns: int,
        until_ns: int,
    ) -> bool:
        """False: a ring has no summaries."""
        return False

    def topics(self, handle: Handle) -> None:
        """None: only the events themselves say."""

    def uuid(self) -> bytes:
        """The unique id of the log."""
        assert self.file.uuid is not None
        return self.file.uuid

    def take_stock(self, handle: Handle) -> Stock:
        return finding.take_stock(handle, self)

    def verify(self, progress: Progress | None) -> Report:
        with loading(self.path):
            from penstock.ring.verify import verify

        return verify(self.file.held, progress)

    def repair(self, to: str | None, progress: Progress | None) -> Plan:
        """Plan a repair; with ``to``, write a repaired copy there."""
        with loading(self.path):
            from penstock.ring.repair import repair

        return repair(self.file.held, to, False, progress)

    def backup(
        self, handle: Handle, target: str, progress: Progress | None, beside: Beside | None = None
    ) -> int:
        """Copy the ring as it is now to ``target``; returns the last seq copied."""
        return backup(handle, self, target, progress, beside)

    def resize(self, handle: Handle, nbytes: int) -> None:
        resize.resize(handle, self, nbytes)

    def retain(self, handle: Handle, *, dry_run: bool, timeout: float | None) -> Retention:
        """Refuse: a ring overwrites its oldest events."""
        raise self._not_for_rings("retain")

    def trim(
        self, handle: Handle, find: Callable[[], int], *, dry_run: bool, timeout: float | None
    ) -> int:
        """Refuse: a ring overwrites its oldest events."""
        raise self._not_for_rings("trim")

    def why(self, handle: Handle, seq: int) -> Why:
        """Refuse: a ring overwrites its oldest events."""
        raise self._not_for_rings("why")

    def _not_for_rings(self, call: str) -> Usage:
        return Usage(
            f"{self.path}: steward.{call}() is for a log of segments, but this is a ring, which "
            "overwrites its oldest events; resize() changes how many it keeps"
        )

    def compact(self, handle: Handle, request: CompactRequest) -> CompactionReport:
        """Refuse: the oldest events are overwritten anyway."""
        raise Usage(
            f"{self.path}: a ring cannot be compacted: it overwrites its oldest events; only a log "
            "of segments can"
        )

    def archive(self, handle: Handle, request: ArchiveRequest) -> ArchiveReport:
        """Refuse: a ring has no finished segments."""
        raise Usage(
            f"{self.path}: a ring cannot be archived: it is one file; only a log of segments can"
        )

    def erase(
        self,
        handle: Handle,
        key: bytes,
        dry_run: bool,
        timeout: float | None,
        progress: Progress | None,
    ) -> ErasureReport:
        """Refuse: events cannot be taken out of the middle of a ring."""
        raise Usage(
            f"{self.path}: no key can be erased from a ring; copy the other events to a new one, "
            "and delete it"
        )
