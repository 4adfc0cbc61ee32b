"""The steward of one log: its maintenance, as ``log.steward``."""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from time import sleep
from typing import TYPE_CHECKING, Literal, Self, SupportsIndex, cast

from penstock._core import LogCore, key_bytes
from penstock.arguments import check_choice, check_progress, seconds
from penstock.errors import (
    Busy,
    Closed,
    Gone,
    PenstockError,
    Permission,
    Poisoned,
    TooLarge,
    Usage,
    WrongType,
)
from penstock.layout import KEY_BYTES_MAX
from penstock.reader import to_seq
from penstock.settings import parse_size
from penstock.steward.archive_report import ArchiveReport, ArchiveRequest
from penstock.steward.compact_report import CompactionReport, CompactRequest, ErasureReport
from penstock.steward.plan import Retention, Why
from penstock.times import Span, Time, is_time, span_ns, to_ns

if TYPE_CHECKING:
    from penstock.event import Buffer
    from penstock.log import Log
    from penstock.report import Progress


_VERSIONS_MAX = 65535
_MEMORY_MIN = 1 << 20

PATIENCE = 10.0  # seconds that a call waits for another maintenance job


class Steward:
    """Maintenance that a user requests explicitly."""

    def __new__(cls, log: object = None, *args: object, **others: object) -> Self:
        if args or others or not isinstance(log, LogCore):
            raise Usage("a Steward comes from log.steward; open the log with penstock.open(path)")
        return super().__new__(cls)

    def __init__(self, log: Log) -> None:
        self._log = log

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._log,)

    def roll(self) -> int:
        """End the active segment and begin a new one; returns the new segment's first seq.

        A segment without events is left as it is.

        >>> log = penstock.open(path)
        >>> log.append(b"old")
        1
        >>> log.steward.roll()
        2
        """
        return self._log._storage.roll(self._log)

    def compact(
        self,
        *,
        versions: SupportsIndex = 1,
        grace: Span = 86400,
        keyless: Literal["keep", "drop"] = "keep",
        dry_run: bool = False,
        timeout: float | None = PATIENCE,
        memory: int | str = "128MiB",
        progress: Progress | None = None,
    ) -> CompactionReport:
        """Keep the last ``versions`` events of each key, and remove what is dead; says what it did.

        Dead are older events of a key, everything that a deletion deletes, the deletion itself once
        it is older than ``grace`` (seconds or a timedelta), expired events, and with
        ``keyless="drop"`` events without a key. All other events keep their seqs, so seqs are
        missing between them. Events of the segment that takes appends count, but stay until it is
        sealed.

        It goes from segment to segment, beside writers and readers: a new generation of a segment
        replaces the old one, and small neighbours become one. ``memory`` bounds the table of keys;
        what finds no room goes to a temporary file in the log's directory. Another maintenance job
        under way is `Busy` after ``timeout`` seconds. ``dry_run`` changes nothing, and says what
        would be done. ``progress`` is called with the bytes done and the total.

        Archived segments are not compacted. In a log that has an archive, deletions stay for ever.

        >>> log = penstock.open(path)
        >>> for city in (b"Rome", b"Oslo", b"Lima"):
        ...     seq = log.append(city, key=b"ann")
        >>> log.steward.roll()
        4
        >>> log.steward.compact().dead, [event.value for event in log]
        (2, [b'Lima'])
        """
        log = self._log
        request = CompactRequest(
            versions=_versions(versions),
            grace_ns=_grace_ns(grace),
            drop_keyless=_choice(keyless, "keyless", "keep", "drop") == "drop",
            memory=_memory(memory),
            dry_run=_check_bool(dry_run, "dry_run"),
            timeout=seconds(timeout),
            progress=progress,
        )
        check_progress(progress)
        return log._storage.compact(log, request)

    def erase(
        self,
        key: Buffer,
        *,
        dry_run: bool = False,
        timeout: float | None = PATIENCE,
        progress: Progress | None = None,
    ) -> ErasureReport:
        """Remove every event of ``key`` from the log's files, for good; says what it did.

        No byte of their values, or of the key, is left in a file of the log; all other events keep
        their seqs. The segment that takes appends is ended first if it has some. Old files are
        overwritten with zeros before they are deleted, as soon as no reader has them mapped: it
        waits ``timeout`` seconds for another maintenance job, and as long for readers. Look at
        ``complete``, and at ``remaining``, which names the files that still have such bytes:
        old files that a reader has mapped (erase again), rows that are staged, bytes that recovery
        or repair has kept, and consumers that select the key.

        Backups and copies of the log are not touched, nor are archived segments, but ``remaining``
        names those that have the key. Neither are blocks that the file
        system freed before: of segments deleted by retention, or replaced by a compaction.

        >>> log = penstock.open(path)
        >>> log.extend([penstock.Entry(b"secret", key=b"ann"), penstock.Entry(b"b", key=b"bob")])
        range(1, 3)
        >>> log.steward.erase(b"ann").complete, log.latest(b"ann"), [e.seq for e in log]
        (True, None, [2])
        """
        log = self._log
        if key is None:
            raise WrongType("key must be bytes, got None")
        raw = key_bytes(key)
        assert raw is not None
        if len(raw) > KEY_BYTES_MAX:
            raise TooLarge(f"key must be at most {KEY_BYTES_MAX} bytes, got {len(raw)}")
        check_progress(progress)
        return log._storage.erase(
            log, raw, _check_bool(dry_run, "dry_run"), seconds(timeout), progress
        )

    def archive(
        self,
        to: str | os.PathLike[str] | None = None,
        *,
        keep_local: SupportsIndex = 0,
        dry_run: bool = False,
        timeout: float | None = PATIENCE,
        progress: Progress | None = None,
    ) -> ArchiveReport:
        """Move sealed segments to the log's archive, compressed; says what it did.

        ``to`` is a directory, or the URL of a place in an object store: ``s3://bucket/path``,
        ``gs://…`` or ``az://…``. Without it the archive is where it was, at first the directory
        ``archive`` inside the log's own. Credentials come from the environment and are never
        stored. The ``keep_local`` newest of the segments are archived, and stay in the log's
        directory as well.

        A local file is deleted only when the archived one has been read back and is the same, byte
        by byte. It goes on beside writers and readers. Another maintenance job under way is `Busy`
        after ``timeout`` seconds. If a copy of this log has archived other events to that place,
        it is `Conflict`. ``dry_run`` changes nothing, and says what would be done. ``progress`` is
        called with the bytes done and the total.

        >>> log = penstock.open(path)
        >>> log.extend([b"a", b"b"]), log.steward.roll()
        (range(1, 3), 3)
        >>> log.steward.archive().moved
        1
        """
        log = self._log
        request = ArchiveRequest(
            to=to,
            keep_local=_count(keep_local, "keep_local"),
            dry_run=_check_bool(dry_run, "dry_run"),
            timeout=seconds(timeout),
            progress=progress,
        )
        check_progress(progress)
        return log._storage.archive(log, request)

    def retain(self, *, dry_run: bool = False, timeout: float | None = PATIENCE) -> Retention:
        """Delete the oldest segments as the log's rules say; returns what went, and why.

        The rules are settings: ``keep_seconds``, ``keep_bytes``, ``keep_segments`` and
        ``keep_until_consumed``; see `Log.configure`. Writers do the same in the background after
        each roll. ``dry_run`` changes nothing and tells the plan, in which each segment has its
        verdict; printed, it is a table. `Busy` if another maintenance job is still under way after
        ``timeout`` seconds.

        When this returns, what was deleted is gone for good, also after a loss of power. With
        ``keep_seconds`` it ends the active segment if that is older, so that a slow log forgets.

        >>> log = penstock.open(path)
        >>> log.configure(keep_segments=1).keep_segments
        1
        >>> log.append(b"old"), log.steward.roll(), log.append(b"new")
        (1, 2, 2)
        >>> log.steward.retain().new_first_seq
        2
        >>> [event.value for event in log]
        [b'new']
        """
        self._log._ensure_open()
        return self._log._storage.retain(
            self._log, dry_run=_check_bool(dry_run, "dry_run"), timeout=seconds(timeout)
        )

    def trim(
        self,
        *,
        before: SupportsIndex | Time,
        dry_run: bool = False,
        timeout: float | None = PATIENCE,
    ) -> int:
        """Delete all events before a seq, or before the first event of that time or later.

        Whoever needs them: neither rules nor consumers count. Returns the new first seq, from
        which every reader goes on; the files of segments before it are deleted. ``dry_run`` only
        returns it. The seq may be the next one to come: then no event is left.

        >>> log = penstock.open(path)
        >>> log.extend([b"a", b"b", b"c"])
        range(1, 4)
        >>> log.steward.trim(before=3), log.first_seq
        (3, 3)
        """
        log = self._log
        log._ensure_open()
        return log._storage.trim(
            log,
            self._finder(before),
            dry_run=_check_bool(dry_run, "dry_run"),
            timeout=seconds(timeout),
        )

    def _finder(self, before: SupportsIndex | Time) -> Callable[[], int]:
        """What finds the seq, once it is known that the argument is right."""
        log = self._log
        if is_time(before):
            since = to_ns(before, "before")
            return lambda: log.seq_at(since)
        if before is None or isinstance(before, str):
            raise WrongType(f"before must be a seq or a time, got {before!r}")
        seq = to_seq(cast(SupportsIndex, before), "before")

        def find() -> int:
            if seq > log._next_seq():
                raise Usage(
                    f"{log.path}: before must be a seq up to the next one to come, which is "
                    f"{log._next_seq()}, got {seq}"
                )
            return seq

        return find

    def why(self, seq: SupportsIndex) -> Why:
        """Why the event ``seq`` is there, or is not; printed, it is one sentence.

        >>> log = penstock.open(path)
        >>> log.extend([b"a", b"b"])
        range(1, 3)
        >>> log.steward.trim(before=2)
        2
        >>> log.steward.why(1).state, log.steward.why(2).state, log.steward.why(3).state
        ('gone', 'there', 'to come')
        """
        self._log._ensure_open()
        return self._log._storage.why(self._log, to_seq(seq, "seq"))

    def run(
        self,
        interval: Span = 60.0,
        *,
        stop: threading.Event | None = None,
        compact_at: float | None = None,
        versions: SupportsIndex = 1,
        grace: Span = 86400,
        keyless: Literal["keep", "drop"] = "keep",
    ) -> None:
        """Call `retain` every ``interval`` seconds until ``stop`` is set, in a process or thread.

        With ``compact_at``, a share from 0 to 1, it calls `compact` as well: in the first round,
        and whenever so large a share of the log's events was appended since the last time. What of
        them is dead is not known before all keys are compared.

        An error is logged, and counted as failure of "retain" or "compact" in
        ``stats().background``, and the next round tries again; but if the log was closed or
        deleted, may not be written, or a sync has failed, it is raised. Ctrl-C ends it between two
        steps that each leave the log whole.

        >>> log = penstock.open(path)
        >>> stop = threading.Event()
        >>> worker = threading.Thread(target=log.steward.run, kwargs={"stop": stop})
        >>> worker.start()
        >>> stop.set()
        >>> worker.join()
        """
        pause = span_ns(interval, "interval") / 1e9
        if stop is not None and not isinstance(stop, threading.Event):
            raise WrongType(f"stop must be a threading.Event or None, got {type(stop).__name__}")
        share = _share(compact_at)
        _versions(versions), _grace_ns(grace), _choice(keyless, "keyless", "keep", "drop")
        log = self._log
        log._check_writable()
        seen = 0
        while stop is None or not stop.is_set():
            error = _attempt(self.retain)
            if error is not None:
                log._record.failed("retain", error)
            else:
                log._record.succeeded("retain")
            if share is not None and self._grown(seen) >= share:
                upto = log._next_seq()
                if _attempt(lambda: self.compact(versions=versions, grace=grace, keyless=keyless)):
                    upto = seen  # it has recorded the error itself
                seen = upto
            if stop is None:
                sleep(min(pause, threading.TIMEOUT_MAX))
            else:
                stop.wait(min(pause, threading.TIMEOUT_MAX))

    def _grown(self, seen: int) -> float:
        """The share of the log's events that was appended from seq ``seen`` on."""
        storage = self._log._storage
        first, after = storage.seqs(self._log)
        total = storage.events_between(self._log, first, after)
        new = storage.events_between(self._log, max(first, seen), after)
        return new / total if total else 0.0


def _attempt(work: Callable[[], object]) -> PenstockError | None:
    """Do a job of a round; the error, if the next round may have more luck."""
    try:
        work()
    except Busy:
        pass  # another one does it
    except (Usage, Closed, Gone, Permission, Poisoned):
        raise
    except PenstockError as error:
        return error
    return None


def _share(given: float | None) -> float | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise WrongType(
            f"compact_at must be a number from 0 to 1, or None, got {type(given).__name__}"
        )
    if not 0 < given <= 1:
        raise Usage(f"compact_at must be above 0 and at most 1, or None, got {given!r}")
    return given


def _index(given: SupportsIndex, what: str) -> int:
    if isinstance(given, bool) or not hasattr(type(given), "__index__"):
        raise WrongType(f"{what} must be an int, got {type(given).__name__}")
    try:
        return operator.index(given)
    except TypeError:  # every array has the method, but it fails for most
        raise WrongType(f"{what} must be an int, got {type(given).__name__}") from None


def _count(given: SupportsIndex, what: str) -> int:
    found = _index(given, what)
    if found < 0:
        raise Usage(f"{what} must be 0 or more, got {found}")
    return found


def _versions(given: SupportsIndex) -> int:
    found = _index(given, "versions")
    if not 1 <= found <= _VERSIONS_MAX:
        raise Usage(f"versions must be from 1 to {_VERSIONS_MAX}, got {found}")
    return found


def _grace_ns(given: Span) -> int:
    number = isinstance(given, int | float) and not isinstance(given, bool)
    if (number or isinstance(given, timedelta)) and not given:
        return 0
    return span_ns(given, "grace")


def _memory(given: int | str) -> int:
    found = parse_size(given, "memory")
    if not _MEMORY_MIN <= found < 1 << 48:
        raise Usage(f"memory must be at least {_MEMORY_MIN} bytes, got {found}")
    return found


def _choice(given: str, what: str, *choices: str) -> str:
    check_choice(given, what, *choices)
    return given


def _check_bool(given: object, what: str) -> bool:
    if not isinstance(given, bool):
        raise WrongType(f"{what} must be True or False, got {given!r}")
    return given
