"""Group: a named set of workers that share the events of a log, each event to one of them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, SupportsIndex

from penstock import _core
from penstock.errors import Usage, WrongType
from penstock.event import Buffer, Event, Headers
from penstock.groups import decisions as d
from penstock.groups import inspecting, letters
from penstock.groups.desk import Desk
from penstock.groups.folder import DEAD
from penstock.groups.inspecting import GroupStats, Pending, WorkerInfo
from penstock.groups.terms import whole
from penstock.groups.worker import Worker
from penstock.system.needs import loading

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from penstock.groups.schedule import Schedule
    from penstock.log import Log

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")


class Group(Generic[T]):
    """A work queue on a log, shared by workers of any number of processes.

    It comes from `Log.group`. It may be used from several threads, and in the children of a fork.
    """

    _desk: Desk

    def __new__(cls, *_: object, **__: object) -> Self:
        raise Usage("a Group comes from log.group(name); open the log with penstock.open(path)")

    @property
    def log(self) -> Log[T]:
        """The log whose events it shares."""
        return self._desk.log

    @property
    def name(self) -> str:
        """Its name."""
        return self._desk.name

    @property
    def path(self) -> str:
        """Where its files are."""
        return self._desk.path

    @property
    def closed(self) -> bool:
        """Whether it was closed here."""
        return self._desk.closed

    @property
    def terms(self) -> d.GroupTerms:
        """What was settled when it was made; times in nanoseconds."""
        with self._desk.guard:
            return self._desk.state().terms

    def worker(
        self,
        *,
        batch: SupportsIndex = 1,
        prefetch: SupportsIndex | None = None,
        timeout: float | None = None,
        on_error: Literal["raise", "log"] = "raise",
    ) -> Worker[T]:
        """A worker of this process: iterate over its jobs, or ``poll`` for ``batch`` of them.

        ``prefetch`` is how many events iteration claims at once, ``batch`` if not given; those that
        were not handed out yet do not count as tried if the worker dies. Iteration ends when there
        was nothing for ``timeout`` seconds; never, if that is None.

        If the block of ``with job:`` raises, the event is tried again later and the exception goes
        on; with ``on_error="log"`` it is logged, and the worker goes on with the next job.

        >>> log = penstock.open(path)
        >>> log.extend([b"a", b"b"])
        range(1, 3)
        >>> with log.group("mail").worker(timeout=0) as worker:
        ...     for job in worker:
        ...         with job:
        ...             print(job.event.value)
        b'a'
        b'b'
        """
        return Worker(self, batch, prefetch, timeout, on_error)

    @property
    def dead(self) -> Log[T]:
        """The dead letters: an ordinary log. Reading it takes nothing away.

        >>> log = penstock.open(path)
        >>> log.append(b"a")
        1
        >>> group = log.group("mail", deliveries=1)
        >>> with group.worker(timeout=0) as worker:
        ...     next(worker).nack(reason="no such user")
        >>> [(letter.value, letter.header("dead.reason")) for letter in group.dead]
        [(b'a', b'no such user')]
        """
        letters.bury(self._desk)
        return self._desk.beside(DEAD)

    def redrive(
        self,
        where: Callable[[Event[T]], object] | None = None,
        *,
        limit: SupportsIndex | None = None,
        dry_run: bool = False,
    ) -> int:
        """Have dead letters tried again by this group, as if never tried; returns how many.

        ``where`` selects them, ``limit`` is the maximum. With ``dry_run`` they are only counted.
        No other group or reader sees the events again. A letter is tried again once; if it fails
        again, that is another letter.

        >>> log = penstock.open(path)
        >>> log.append(b"a")
        1
        >>> group = log.group("mail")
        >>> with group.worker(timeout=0) as worker:
        ...     next(worker).reject("no such user")
        ...     group.redrive(lambda letter: b"user" in letter.header("dead.reason"))
        ...     next(worker).event.value
        1
        b'a'
        """
        return letters.redrive(self._desk, where, limit, bool(dry_run))

    def resume(self) -> None:
        """Let a group go on that stopped because too many events went to the dead letters."""
        with self._desk.guard:
            if self._desk.state().stopped:
                self._desk.ledger.record(d.Resumed(_core.now_ns()))

    def stats(self) -> GroupStats:
        """Counts of events by their state, and what became of others.

        >>> log = penstock.open(path)
        >>> log.extend([b"a", b"b", b"c"])
        range(1, 4)
        >>> group = log.group("mail")
        >>> with group.worker(timeout=0) as worker:
        ...     next(worker).ack()
        ...     job = next(worker)
        ...     found = group.stats()
        >>> found.ready, found.claimed, found.acked
        (1, 1, 1)
        """
        return inspecting.stats(self._desk)

    def pending(self) -> list[Pending]:
        """Every event that is claimed, delayed or was given back, by its seq.

        >>> log = penstock.open(path)
        >>> log.append(b"a")
        1
        >>> group = log.group("mail")
        >>> with group.worker(timeout=0) as worker:
        ...     job = next(worker)
        ...     [(found.seq, found.state, found.deliveries) for found in group.pending()]
        [(1, 'claimed', 1)]
        """
        return inspecting.pending(self._desk)

    def workers(self) -> list[WorkerInfo]:
        """The workers of all processes; ``live`` is the kernel's word."""
        return inspecting.workers(self._desk)

    def release(self, worker: SupportsIndex) -> int:
        """Take all events from a worker, by its number, and let others have them; how many.

        It may go on with new ones. What it still does with the old ones raises `Conflict` there.

        >>> log = penstock.open(path)
        >>> log.append(b"a")
        1
        >>> group = log.group("mail")
        >>> worker = group.worker(timeout=0)
        >>> job = next(worker)
        >>> group.release(group.pending()[0].worker)
        1
        """
        number = whole(worker, "worker", 1, (1 << 63) - 1)
        with self._desk.guard:
            state = self._desk.state()
            if number not in state.members:
                there = ", ".join(map(str, state.members)) or "none"
                raise Usage(f"{self.path}: worker must be one of {there}, got {number}")
            released: int = self._desk.ledger.record(d.Released(number, _core.now_ns()))
            return released

    def every(
        self,
        when: str | float | dt.timedelta,
        name: str,
        value: Any = b"",
        *,
        topic: str | None = None,
        key: Buffer | None = None,
        headers: Headers | None = None,
        tz: str = "UTC",
    ) -> Schedule:
        """Append an event at each tick of a clock, once however many processes do the same.

        ``when`` is a number of seconds, text such as "5 minutes" or "1 hour", or five fields of
        cron (``penstock[schedule]``), in the time zone ``tz``. ``name`` says which schedule it is:
        the same in every process. ``value`` may be a function, which gets the time of the tick.
        A thread of this process does it until the schedule, the group or the log is closed.

        Of the ticks that were missed while no process ran, the last one is made up for.

        >>> log = penstock.open(path)
        >>> with log.group("reports").every("1 hour", "hourly", b"make the report") as hourly:
        ...     hourly.name
        'hourly'
        """
        with loading(self.path):
            from penstock.groups.schedule import Schedule

        return Schedule(self._desk, when, name, value, topic, key, headers, tz)

    def close(self) -> None:
        """Close the group in this process, and its workers. Closing twice is fine."""
        if not self._desk.closed:
            for worker in list(self._desk.workers):
                worker.close()
            self._desk.close()

    def __enter__(self) -> Self:
        if self._desk.closed:
            raise self._desk.closed_error()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = " closed" if self.closed else ""
        return f"<penstock.Group {self.name!r} of {self.log.path!r}{state}>"

    def __reduce__(self) -> tuple[object, ...]:
        raise WrongType(
            "a Group cannot be copied or pickled; pickle the log, and call "
            f"log.group({self.name!r}) where it is wanted"
        )
