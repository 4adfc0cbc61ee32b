"""The steward of one log: its maintenance, as ``log.steward``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import sleep
from typing import TYPE_CHECKING, Self, SupportsIndex, cast

from penstock._core import LogCore
from penstock.arguments import seconds
from penstock.errors import (
    Busy,
    Closed,
    Gone,
    PenstockError,
    Permission,
    Poisoned,
    Usage,
    WrongType,
)
from penstock.reader import to_seq
from penstock.steward.plan import Retention, Why
from penstock.times import Span, Time, is_time, span_ns, to_ns

if TYPE_CHECKING:
    from penstock.log import Log

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

    def run(self, interval: Span = 60.0, *, stop: threading.Event | None = None) -> None:
        """Call `retain` every ``interval`` seconds until ``stop`` is set, in a process or thread.

        An error is logged, and counted as failure of "retain" in ``stats().background``, and the
        next round tries again; but if the log was closed or deleted, may not be written, or a sync
        has failed, it is raised. Ctrl-C ends it between two steps that each leave the log whole.

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
        log = self._log
        log._check_writable()
        while stop is None or not stop.is_set():
            try:
                self.retain()
            except Busy:
                pass  # another one does it
            except (Usage, Closed, Gone, Permission, Poisoned):
                raise
            except PenstockError as error:
                log._record.failed("retain", error)
            else:
                log._record.succeeded("retain")
            if stop is None:
                sleep(min(pause, threading.TIMEOUT_MAX))
            else:
                stop.wait(min(pause, threading.TIMEOUT_MAX))


def _check_bool(given: object, what: str) -> bool:
    if not isinstance(given, bool):
        raise WrongType(f"{what} must be True or False, got {given!r}")
    return given
