"""Worker: claims events of a group for this process, and settles them.

A worker is alive while it holds the kernel's lock on its file; when it dies, its claims return.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Self, SupportsIndex

from penstock import _core
from penstock._core import Event, Waits
from penstock.arguments import check_choice, seconds
from penstock.errors import Backpressure, Closed, Conflict, PenstockError, Usage, WrongType
from penstock.groups import decisions as d
from penstock.groups import letters, results
from penstock.groups.desk import Desk
from penstock.groups.job import Job
from penstock.groups.life import WATCH_S
from penstock.groups.state import CLAIM_MAX, GroupState, Member, Unfinished
from penstock.groups.terms import whole
from penstock.system.messages import logger
from penstock.system.needs import loading
from penstock.times import NS_MAX, span_ns

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from penstock.groups.awaiting import AwaitedJobs
    from penstock.groups.group import Group

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")

IDLE_S = 1.0
_new_job = object.__new__


class Worker(Generic[T]):
    """Claims events of a group: iterate over it, or `poll`. It comes from `Group.worker`.

    One thread at a time uses it; `close` may be called from any. In a child of a fork it is closed.
    """

    _closed = True

    def __init__(
        self,
        group: Group[T],
        batch: SupportsIndex = 1,
        prefetch: SupportsIndex | None = None,
        timeout: float | None = None,
        on_error: str = "raise",
    ) -> None:
        desk = getattr(group, "_desk", None)
        if not isinstance(desk, Desk):
            raise Usage("a Worker comes from group.worker(); get the group with log.group(name)")
        self._batch = _count(batch, "batch")
        self._prefetch = self._batch if prefetch is None else _count(prefetch, "prefetch")
        self.timeout = seconds(timeout)
        check_choice(on_error, "on_error", "raise", "log")
        self._logs_errors = on_error == "log"
        self.group = group
        self._desk = desk
        self._path = desk.path
        self._queue: deque[tuple[int, int, Event[T] | None]] = deque()  # claims not handed out
        self._next = 0  # the first claim that was not seen yet
        self._handed = 0
        self._waits: tuple[Waits, int, int] | None = None
        self._life, self.number = desk.join()
        self._closed = False
        desk.workers.add(self)

    @property
    def closed(self) -> bool:
        """Whether it was closed here."""
        return self._closed or self._life.fork != _core.fork_generation()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Job[T]:
        if self._queue and (job := self._next_queued()) is not None:
            return job
        found = self._get(1, self._prefetch, self.timeout)
        if not found:
            raise StopIteration
        return found[0]

    def poll(self, n: SupportsIndex | None = None, timeout: float | None = 0) -> list[Job[T]]:
        """Up to ``n`` jobs, or ``batch``, as a list; it waits ``timeout`` seconds for the first.

        All of them are handed out: if this worker dies, each counts as tried.

        >>> log = penstock.open(path)
        >>> log.extend([b"a", b"b", b"c"])
        range(1, 4)
        >>> with log.group("mail").worker() as worker:
        ...     jobs = worker.poll(2)
        ...     [job.event.value for job in jobs]
        ...     worker.ack(jobs)
        [b'a', b'b']
        """
        want = self._batch if n is None else _count(n, "n")
        return self._get(want, 1, seconds(timeout))

    def ack(self, jobs: Iterable[Job[T]], *, durable: bool = False) -> None:
        """`Job.ack` for many jobs with one decision.

        `Conflict` names those that this worker had lost; all others are done.
        """
        given = self._own(jobs)
        if not given:
            return
        spans = d.spans_of([job._number for job in given])
        kept = set(self._record(d.Acked(self.number, spans), durable) or ())
        lost = []
        for job in given:
            job._done = True
            if job._number not in kept:
                lost.append(job)
        if lost:
            raise self._lost_error(lost)

    def nack(
        self,
        jobs: Iterable[Job[T]],
        *,
        delay: float | dt.timedelta | None = None,
        reason: str = "",
        count: bool = True,
    ) -> None:
        """`Job.nack` for many jobs; `Conflict` names those that this worker had lost."""
        lost = []
        for job in self._own(jobs):
            try:
                job.nack(delay=delay, reason=reason, count=count)
            except Conflict:
                job._done = True
                lost.append(job)
        if lost:
            raise self._lost_error(lost)

    def close(self) -> None:
        """End the worker: what it has returns to the group at once, and does not count as tried.

        Closing twice is fine.
        """
        self._end(0)

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # An exception that ends the worker may be the fault of a job: else it would come for ever.
        failed = kind is not None and issubclass(kind, Exception)
        self._end(self._handed if failed else 0)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.__exit__(kind)

    def __aiter__(self) -> AwaitedJobs[T]:
        with loading(self._path):
            from penstock.groups.awaiting import AwaitedJobs

        return AwaitedJobs(self)

    async def apoll(
        self, n: SupportsIndex | None = None, timeout: float | None = 0
    ) -> list[Job[T]]:
        """`poll` for asyncio.

        >>> import asyncio
        >>> log = penstock.open(path)
        >>> log.append(b"a")
        1
        >>> async def work():
        ...     async with log.group("mail").worker() as worker:
        ...         for job in await worker.apoll(10, timeout=1):
        ...             async with job:
        ...                 return job.event.value
        >>> asyncio.run(work())
        b'a'
        """
        with loading(self._path):
            from penstock.groups import awaiting

        want = self._batch if n is None else _count(n, "n")
        return await awaiting.poll(self, want, seconds(timeout))

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"number {self.number}"
        return f"<penstock.Worker of {self._desk.name!r} of {self._desk.log.path!r} {state}>"

    def __reduce__(self) -> tuple[object, ...]:
        raise WrongType(
            "a Worker belongs to the process that opened it and cannot be copied or pickled; make "
            "one with group.worker() where it is wanted"
        )

    def __del__(self) -> None:
        if not self._closed:
            self._closed = True
            self._life.let_go()  # then it is found dead

    # Getting jobs.

    def _get(self, want: int, ahead: int, timeout: float | None) -> list[Job[T]]:
        """Up to ``want`` jobs; claims ``ahead`` if it has none."""
        found = self._try(want, ahead, idle=False)
        if found or timeout == 0:
            return found
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            seen = self._look()
            found = self._try(want, ahead, idle=True)
            if found:
                return found
            left = math.inf if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return found
            self._sleep(seen, min(left, self._idle_seconds()))

    def _next_queued(self) -> Job[T] | None:
        """The first job of the queue, if nothing was decided meanwhile: the quick way of `_try`."""
        if self.closed:
            return None
        desk = self._desk
        claim, seq, event = self._queue[0]
        with desk.guard:
            item = desk.ledger.state.open.get(seq)
            if (
                event is None
                or not desk.ledger.is_current()
                or item is None
                or item.claim != claim
                or item.worker != self.number
                or item.until
            ):
                return None
            self._handed = claim + 1
            self._life.hand(claim)
            job: Job[T] = _new_job(Job)
            job.event, job.seq, job.deliveries = event, seq, item.deliveries + 1
            job._worker, job._number, job._done = self, claim, False
            self._queue.popleft()
        _core.fail_point("group.handed")
        return job

    def _try(self, want: int, ahead: int, *, idle: bool, buries: bool = True) -> list[Job[T]]:
        """What can be handed out now, without waiting."""
        self._check_open()
        found: list[Job[T]] = []
        desk = self._desk
        while True:
            try:
                with desk.guard:
                    went_on = self._step(found, want, ahead, idle=idle)
                    state = desk.ledger.state
                _core.fail_point("group.handed")
                if state.dying and buries:
                    letters.bury(desk)
                    went_on = True  # others of their keys are free now
                if state.stopped and not found:
                    raise stopped_error(desk, state)
            except PenstockError:
                if found:
                    return found  # it comes again
                raise
            if len(found) == want or not went_on:
                return found

    def _step(self, found: list[Job[T]], want: int, ahead: int, *, idle: bool) -> bool:
        """Hand out, claim, hand out; False if there is nothing more to do for now."""
        desk = self._desk
        state = desk.ledger.catch_up()
        if self._queue:
            self._hand_out(found, want, state)
        missing = want - len(found)
        if not missing:
            return True
        went_on = desk.claim(self.number, missing if missing > ahead else ahead, state, idle=idle)
        state = desk.ledger.state
        me = state.members.get(self.number)
        if me is None:
            raise self._evicted_error()
        if self._next < me.next_claim:
            self._take_up(me)
            self._hand_out(found, want, state)
        return went_on

    def _take_up(self, me: Member) -> None:
        """Have in the queue what was claimed for this worker, by whatever call of it."""
        ahead, queue, claims = self._desk.ahead, self._queue, me.claims
        events: dict[int, Event[Any]] = ahead.events if ahead is not None else {}
        for claim in range(self._next, me.next_claim):
            seq = claims.get(claim)
            if seq is not None:
                queue.append((claim, seq, events.pop(seq, None)))
        self._next = me.next_claim

    def _hand_out(self, found: list[Job[T]], want: int, state: GroupState) -> None:
        """Add jobs from the queue to ``found``, counted as handed out before they are."""
        queue, number = self._queue, self.number
        while queue and len(found) < want:
            claim, seq, event = queue[0]
            item = state.open.get(seq)
            if item is None or item.worker != number or item.claim != claim:
                queue.popleft()  # it was released, or its lease has ended
                continue
            if event is None or item.until:
                event = self._prepare(claim, item, event)
                state = self._desk.ledger.state
                if event is None:
                    queue.popleft()
                    continue
            self._handed = claim + 1
            self._life.hand(claim)
            job: Job[T] = _new_job(Job)
            job.event, job.seq, job.deliveries = event, seq, item.deliveries + 1
            job._worker, job._number, job._done = self, claim, False
            found.append(job)
            queue.popleft()

    def _prepare(self, claim: int, item: Unfinished, event: Event[T] | None) -> Event[T] | None:
        """The event of a claim, whose lease begins now; None if it is gone."""
        ledger = self._desk.ledger
        if event is None:
            event = self._desk.fetch(item.seq, item.letter)
            if event is None:
                ledger.record(d.Missing(self.number, [claim, 1]))
                return None
        lease = ledger.state.terms.lease
        now = _core.now_ns()
        if not item.until or item.until - now >= lease // 2:
            return event
        kept = ledger.record(d.Extended(self.number, [claim, 1], now + lease))
        return event if kept else None

    # Waiting.

    def _look(self) -> tuple[Any, Any]:
        """What the two logs are like, before they are read."""
        if self._waits is None:
            waits = Waits()
            self._waits = waits, waits.watch(self._desk.log), waits.watch(self._desk.ledger.log)
        waits, log, book = self._waits
        return waits.look(log), waits.look(book)

    def _sleep(self, seen: tuple[Any, Any], timeout: float) -> None:
        """Sleep until one of them has something new, or time is up."""
        assert self._waits is not None
        waits, log, book = self._waits
        if waits.arm(log, seen[0]) and waits.arm(book, seen[1]):
            with self._desk.watching(self.number) as others:
                end = time.monotonic() + timeout
                left = timeout
                while left > 0 and not waits.sleep(min(left, WATCH_S if others else left)):
                    if others and others.has_death():
                        break
                    left = end - time.monotonic()
        self._desk.log._storage.check_there(self._desk.log)

    def _idle_seconds(self) -> float:
        """How long nothing can happen that neither a log nor a lock tells."""
        desk, wait = self._desk, IDLE_S
        with desk.guard:
            state = desk.ledger.state
            due = state.next_due() if state.room else 0
            lapse = state.next_lapse()
        for moment in (due, lapse[0] if lapse is not None else 0):
            if moment:
                wait = min(wait, max(0.001, (moment - _core.now_ns()) / 1e9))
        return wait

    # Settling.

    def _record(self, decision: d.Decision, durable: bool) -> Any:
        desk = self._desk
        if self._closed or self._life.fork != _core.fork_generation():
            raise self._closed_error()
        with desk.guard:
            done = desk.ledger.record(decision)
            at = desk.ledger.state.at
        if durable:
            desk.ledger.sync(at)
        return done

    def _ack_one(self, job: Job[T], result: Any, durable: bool) -> None:
        if result is not None:
            self._check_has(job)
            results.keep(self._desk, job.seq, result, durable=durable)
            _core.fail_point("group.result")
        if not self._record(d.Acked(self.number, [job._number, 1]), durable):
            job._done = True
            raise self._lost_error([job])

    def _nack_one(
        self, job: Job[T], delay: float | dt.timedelta | None, reason: str, count: bool
    ) -> None:
        now = _core.now_ns()
        if delay is not None:
            wait = 0 if delay == 0 and not isinstance(delay, bool) else span_ns(delay, "delay")
        elif count:
            steps = self._desk.ledger.state.terms.backoff
            wait = steps[min(job.deliveries, len(steps)) - 1] if steps else 0
        else:
            wait = 0
        due = min(now + wait, NS_MAX) if wait else 0
        nacked = d.Nacked(self.number, job._number, now, due, count, reason)
        if not self._record(nacked, False):
            job._done = True
            raise self._lost_error([job])

    def _reject_one(self, job: Job[T], reason: str) -> None:
        rejected = d.Rejected(self.number, job._number, _core.now_ns(), reason)
        if not self._record(rejected, False):
            job._done = True
            raise self._lost_error([job])

    def _extend_one(self, job: Job[T], more: float | dt.timedelta) -> None:
        if not self._desk.ledger.state.terms.lease:
            raise Usage(
                f"{self._path}: the group {self._desk.name!r} has no lease to extend: a job "
                "belongs to its worker for as long as that lives"
            )
        until = min(_core.now_ns() + span_ns(more, "seconds"), NS_MAX)
        if not self._record(d.Extended(self.number, [job._number, 1], until), False):
            job._done = True
            raise self._lost_error([job])

    def _check_has(self, job: Job[T]) -> None:
        """Raise `Conflict` if this worker has lost the event."""
        with self._desk.guard:
            has = self._desk.state().item_of(self.number, job._number) is not None
        if not has:
            job._done = True
            raise self._lost_error([job])

    def _own(self, jobs: Iterable[Job[T]]) -> list[Job[T]]:
        """Jobs of this worker that are not settled yet, in the order of their claims."""
        if isinstance(jobs, Job):
            raise WrongType("jobs must be several jobs, got one Job; call job.ack() itself")
        given = list(jobs)
        for job in given:
            if not isinstance(job, Job):
                raise WrongType(f"jobs must be jobs of this worker, got {type(job).__name__}")
            if job._worker is not self:
                raise Usage(f"{self._path}: the job of seq {job.seq} is of another worker")
            job._check()
        given.sort(key=lambda job: job._number)
        for one, other in itertools.pairwise(given):
            if one is other:
                raise Usage(f"{self._path}: the job of seq {one.seq} was given twice")
        return given

    def _swallows(self, job: Job[T], error: object) -> bool:
        """Whether an exception of a job ends with it."""
        if self._logs_errors:
            logger.error(
                "%s: the job of seq %s failed, delivery %s",
                self._path,
                job.seq,
                job.deliveries,
                exc_info=error if isinstance(error, BaseException) else None,
            )
        return self._logs_errors

    def _say(self, job: Job[T], error: Exception) -> None:
        logger.warning("%s", error)

    def _end(self, handed: int) -> None:
        if self.closed:
            return
        self._closed = True
        self._queue.clear()
        desk = self._desk
        waits, self._waits = self._waits, None
        if waits is not None:
            waits[0].forget(waits[1])
            waits[0].forget(waits[2])
        try:
            if not desk.closed:
                with desk.guard:
                    state = desk.state()
                    if self.number in state.members:
                        reason = "its worker ended with an exception"
                        desk.ledger.record(d.Ended(self.number, _core.now_ns(), handed, reason))
                    dying = desk.ledger.state.dying
                if dying:
                    letters.bury(desk)
        finally:
            with suppress(PenstockError):
                self._life.remove()

    def _check_open(self) -> None:
        if self.closed:
            raise self._closed_error()

    def _closed_error(self) -> Closed:
        if not self._closed:
            return Closed(
                f"{self._path}: this worker belongs to the process that forked; make one here with "
                "group.worker()"
            )
        return Closed(f"{self._path}: this worker is closed; make another with group.worker()")

    def _evicted_error(self) -> Closed:
        return Closed(
            f"{self._path}: worker {self.number} was taken for dead, because its file was deleted; "
            "its claims have returned: close it and make another with group.worker()"
        )

    def _lost_error(self, jobs: list[Job[T]]) -> Conflict:
        seqs = ", ".join(str(job.seq) for job in jobs[:10]) + (" …" if len(jobs) > 10 else "")
        return Conflict(
            f"{self._path}: worker {self.number} has lost the event with seq {seqs}: its lease had "
            "ended, or it was released; another worker has it, had it, or gets it. Nothing was "
            "changed",
            path=self._path,
            expected=jobs[0].seq,
        )


def stopped_error(desk: Desk, state: GroupState) -> Backpressure:
    """The error for a group whose breaker has stopped it."""
    return Backpressure(
        f"{desk.path}: the group {desk.name!r} has stopped: more than "
        f"{state.terms.dead_per_minute} events went to the dead letters within a minute; look at "
        "group.dead, and call group.resume() to go on"
    )


def _count(given: SupportsIndex, what: str) -> int:
    return whole(given, what, 1, CLAIM_MAX)
