"""What a log needs from its files: a :class:`Storage`, of segments or of a ring.

A handle has one storage, and a storage never refers to its handle, so that an unused log is
released at once: the handle is the first argument of the methods that need it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from penstock._core import Coder, Control, Finder, Given, Hold, SegmentMap
from penstock.errors import PenstockError
from penstock.handle.control import ControlPlace
from penstock.handle.durability import Snapshot
from penstock.handle.producers import Table
from penstock.report import Plan, Progress, Report
from penstock.settings import Settings
from penstock.stats import Stock
from penstock.steward.archive_report import ArchiveReport, ArchiveRequest
from penstock.steward.compact_report import CompactionReport, CompactRequest, ErasureReport
from penstock.steward.plan import Retention, Why
from penstock.system.directory import Directory, Name

if TYPE_CHECKING:
    from penstock.handle.handle import Handle

T = TypeVar("T")
Beside: TypeAlias = Callable[[str, int], None]


class Replaced(Exception):
    """The opened file no longer has the log's name: open the one that has it."""


class Moved(Exception):
    """The handle has switched to another file, in which everything of the old one is on disk."""


class Static(Protocol):
    """The end of a log according to its frames alone, for a reader without live control."""

    @property
    def next_seq(self) -> int: ...
    @property
    def monotone(self) -> bool: ...
    @property
    def settings(self) -> Settings: ...


class Apart(Protocol):
    """Where a load larger than one batch is written until it is part of the log."""

    count: int  # events so far

    def extend(self, batch: Given) -> None:
        """Add one batch."""

    def finish(self) -> None:
        """Sync all of it to disk."""

    def publish(self, expect: int | None, who: bytes, n: int, timeout: float | None) -> range:
        """Make it part of the log; returns its seqs."""

    def remove(self) -> None:
        """Delete what did not become part of the log."""


@dataclass(frozen=True, slots=True)
class SeenSettings:
    """Settings that were read, and the frame and control that led to them."""

    control: Control
    position: int
    settings: Settings


class Opening(Protocol):
    """Holding a log, from opening to releasing it."""

    @property
    def path(self) -> str:
        """The log's path, for messages."""

    @property
    def place(self) -> ControlPlace:
        """The place of its control."""

    @property
    def home(self) -> Directory | Name:
        """The directory in which the folder of consumers is; its name, if there may be none yet."""

    @property
    def is_ring(self) -> bool:
        """Whether it is one file, which overwrites its oldest events."""

    @property
    def follows_control(self) -> bool:
        """Whether a writer may have it open, whose control a reader then uses."""

    @property
    def finder(self) -> Finder:
        """What finds events and makes cursors for readers, in the compiled core."""

    @property
    def is_private(self) -> bool:
        """Whether another log will take it over, which then syncs it and needs its space."""

    @property
    def coder(self) -> Coder:
        """The object that encodes and decodes values, for every map too."""

    @property
    def recent(self) -> list[SegmentMap]:
        """Maps that were read recently, newest use last."""

    @property
    def static(self) -> Static | None:
        """Without live control: the end of the log; None with it."""

    def open_held(self, *, write: bool) -> int:
        """A new descriptor of the file that openers of the log lock with flock."""

    def open_lock(self, new: Settings | None) -> int:
        """A new descriptor of the file that writers of the log lock; -1 if openers lock it too."""

    def first_open(self, held_fd: int, new: Settings | None, lock_fd: int) -> None:
        """No other handle has the log open: create it if needed, recover it, build control."""

    def adopt(self, handle: Handle, attached: Control, held_fd: int) -> None:
        """Switch the handle to live control; `Replaced` if it is that of another file."""

    def read_alone(self, handle: Handle) -> None:
        """Without live control: find the end in the frames, and keep it as ``static``."""

    def grow(self, handle: Handle) -> None:
        """Without live control: have the frames grown?"""

    def follow_name(self, handle: Handle) -> None:
        """Without live control: switch to the file that has the log's name now."""

    def check_child(self) -> None:
        """In a child of a fork: refuse to open what belongs to the parent only."""

    def check_there(self, handle: Handle) -> None:
        """Raise `Gone` if the log was deleted since it was opened."""

    def segments_in(self, directory: Directory) -> Storage:
        """A storage for a log of segments in another directory, such as one in ``home``."""

    def check_home(self, handle: Handle) -> None:
        """Raise `Gone` if ``home`` is no longer this log's, so that its consumers are not there."""

    def close_cleanly(self, handle: Handle, attached: Control) -> None:
        """The last writer closes the log: note on disk that nothing comes after its checkpoint."""

    def give_back(self, handle: Handle) -> None:
        """Closing, with every thread of the handle ended: free what was allocated ahead."""

    def give_back_alone(self) -> None:
        """The same after control was closed: two writers closing at once may each see the other."""

    def forget(self, handle: Handle) -> None:
        """Drop every map and all state of the files: the log is closed, or in a fork's child."""

    def release(self) -> None:
        """Release the files finally."""


class Writing(Protocol):
    """What appends and syncs need from the files."""

    @property
    def loads_apart(self) -> bool:
        """Whether a load larger than one batch is written elsewhere first."""

    def make_ready(self, handle: Handle, nbytes: int, timeout: float | None) -> bool:
        """Repair, map, roll or allocate, as an append of ``nbytes`` bytes needs.

        Returns whether it waited for room in a full ring.
        """

    def make_ready_to_configure(self, handle: Handle, nbytes: int, when_full: int) -> None:
        """Likewise for new settings of a ring, which say ``when_full``; `Full` at once."""

    def roll_for(self, handle: Handle, nbytes: int) -> bool:
        """Make room for an append that the active map can never take; False if there is none."""

    def too_large(self, nbytes: int, most: int) -> PenstockError:
        """The error for an append of more bytes than the log can take at once."""

    def full(self, handle: Handle) -> PenstockError:
        """The error for an append that would overwrite events that are still needed."""

    def confirm(self, handle: Handle, timeout: float | None) -> None:
        """Make the newest checkpoint safe, so that an append may drop frames that lead to it."""

    def take_hold(self, handle: Handle, seq: int) -> Hold:
        """Make writers wait for a reader at ``seq``."""

    def sync(self, handle: Handle, attached: Control, words: Snapshot) -> None:
        """Sync everything up to the head in ``words`` to disk; under the sync lock.

        Raises `Moved` if the log is another file now.
        """

    def vouched_seq(self, handle: Handle) -> int:
        """Without live control: the last seq that a checkpoint says is on disk."""

    def settings(self, handle: Handle, attached: Control) -> Settings:
        """The log's settings, found through live control."""

    def settings_seen(self, handle: Handle, attached: Control) -> Settings | None:
        """The same without waiting; None while their frame is being overwritten."""

    def append_settings(self, handle: Handle, settings: Settings, at: int) -> bool:
        """Append other settings, made of those at ``at``; False if they are not the newest now."""

    def ask_producers(self, handle: Handle, question: Callable[[Table], T]) -> tuple[T, int]:
        """The answer of the current table of producers, and its place."""

    def roll(self, handle: Handle) -> int:
        """Begin a new segment, as the user requests; returns its first seq."""

    def ask_keeper(self, handle: Handle) -> None:
        """Do ahead of time what appends will need next. It may fail."""

    def room(self, handle: Handle) -> int:
        """Bytes of frames in the largest possible batch."""

    def load_apart(self, handle: Handle, first: Given) -> Apart:
        """Where a load larger than one batch is written, which begins with the event ``first``."""


class Finding(Protocol):
    """Finding events."""

    def segment_for(self, handle: Handle, seq: int) -> SegmentMap | None:
        """The map that holds ``seq`` or the place for it; None if that is beyond the log."""

    def segment_at(self, handle: Handle, base_seq: int) -> SegmentMap:
        """The map that a roll frame leads to."""

    def segment_before(self, later: SegmentMap) -> SegmentMap | None:
        """The map before another; None if there is none."""

    def segment_after(self, seq: int) -> SegmentMap | None:
        """The first readable map that begins above ``seq``, even if nothing leads to it."""

    def segment_below(self, seq: int) -> SegmentMap | None:
        """The last map that begins at ``seq`` or below and can be read."""

    def lowest_base(self, handle: Handle) -> int:
        """Base seq of the oldest map, readable or not."""

    def first_seq(self, handle: Handle) -> int:
        """Seq of the oldest event; the next seq if there is none."""

    def seqs(self, handle: Handle) -> tuple[int, int]:
        """Seq of the oldest event and the next seq, both at one moment."""

    def count(self, handle: Handle) -> int:
        """The number of events, or a little more if a repair left some out."""

    def events_between(self, handle: Handle, start: int, stop: int) -> int:
        """How many events have seqs from ``start`` to before ``stop``, in the same sense."""

    def why_missing(self, seq: int) -> PenstockError | None:
        """The error for a seq in the log's range whose file is missing."""

    def first_seq_since(self, handle: Handle, since_ns: int) -> int:
        """A seq with no event of that time or later before it, as high as can be found quickly."""

    def first_appended(self, since_ns: int) -> int:
        """A seq with no event appended at that time or later before it, as high as known."""

    def seq_past(self, handle: Handle, until_ns: int, end: int) -> int:
        """A seq from which on all events have that time or later, or ``end``; as low as can be
        found quickly."""

    def cuts(self, start: int, stop: int) -> list[int]:
        """Seqs between the two, in order, where the log can be cut at no extra cost of reading."""

    def span_bytes(self, handle: Handle, first: int, stop: int) -> int:
        """Bytes of the events from where the block of ``first`` begins to before ``stop``."""

    def block_start(self, handle: Handle, seq: int) -> int:
        """The seq from which `span_bytes` counts, if asked for a span that begins at ``seq``."""

    def span_stop(self, handle: Handle, first: int, stop: int, nbytes: int) -> int:
        """The seq up to which events from ``first`` take about ``nbytes``, or less."""

    def rules_out(
        self,
        handle: Handle,
        seq: int,
        topics: tuple[bytes, ...] | None,
        since_ns: int,
        until_ns: int,
    ) -> bool:
        """Whether no event of the piece from ``seq`` on has one of the topics and such a time."""

    def topics(self, handle: Handle) -> set[bytes] | None:
        """The distinct topics of all events; None if only the events themselves say."""

    def uuid(self) -> bytes:
        """The unique id of the log, wherever it is stored."""


class Storage(Opening, Writing, Finding, Protocol):
    """The files of one log, as one handle has them, and operations on all of them."""

    def take_stock(self, handle: Handle) -> Stock:
        """Totals of the files."""

    def verify(self, progress: Progress | None) -> Report:
        """Check every byte that matters; change nothing."""

    def repair(self, to: str | None, progress: Progress | None) -> Plan:
        """Plan a repair; with ``to``, write a repaired copy there."""

    def backup(
        self, handle: Handle, target: str, progress: Progress | None, beside: Beside | None = None
    ) -> int:
        """Copy the log as it is now to ``target``; returns the last seq copied.

        Before the copy gets its name, ``beside`` is called with its home, and the next seq.
        """

    def resize(self, handle: Handle, nbytes: int) -> None:
        """Give the log another size."""

    def retain(self, handle: Handle, *, dry_run: bool, timeout: float | None) -> Retention:
        """Delete the oldest segments as the log's rules say, or say what they would delete."""

    def trim(
        self, handle: Handle, find: Callable[[], int], *, dry_run: bool, timeout: float | None
    ) -> int:
        """Delete all events before the seq that ``find`` finds; returns the new first seq."""

    def why(self, handle: Handle, seq: int) -> Why:
        """Why an event is there, or is not."""

    def compact(self, handle: Handle, request: CompactRequest) -> CompactionReport:
        """Remove events that are dead."""

    def archive(self, handle: Handle, request: ArchiveRequest) -> ArchiveReport:
        """Store finished pieces elsewhere, and delete their files."""

    def erase(
        self,
        handle: Handle,
        key: bytes,
        dry_run: bool,
        timeout: float | None,
        progress: Progress | None,
    ) -> ErasureReport:
        """Remove every trace of a key."""
