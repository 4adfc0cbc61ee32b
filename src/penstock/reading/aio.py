"""The asyncio side: follow, append and wait without blocking the loop.

One thread of the process waits for all logs of all tasks and loops (`Hub`) and rings a bell, an
eventfd, in each loop; the loop then checks itself which logs have news, so that no two threads need
the GIL at that moment. The thread begins with the first wait and ends with the last loop. This
module is imported on first use, so that Penstock alone does not import asyncio.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, SupportsIndex, TypeVar

from penstock import _core
from penstock._core import Event, Reader, Waits
from penstock.arguments import seconds
from penstock.errors import Busy, Closed, Full, PenstockError, Usage, WrongType
from penstock.reading.sources import Source, has_ended, take_from
from penstock.system.background import Background

if TYPE_CHECKING:
    from penstock.handle.handle import Handle
    from penstock.log import Log

_T = TypeVar("_T")

SLICE = 1.0  # seconds after which the thread checks for deleted logs and ended loops
BATCH = 64  # events that are read ahead, or appended, and after which other tasks may run
LONG_BYTES = 1 << 20  # values that are too long to be copied in the loop's own thread


class Hub:
    """The only thread that waits, and the listeners of each log."""

    def __init__(self) -> None:
        self.waits = Waits()
        self.lock = threading.RLock()
        self.generation = _core.fork_generation()
        self._slots: dict[int, tuple[int, int]] = {}  # by id of the log: slot, how many watch it
        self._logs: dict[int, Handle] = {}  # by slot
        self._waiting: dict[int, list[Listener]] = {}  # by slot
        self._loops: dict[asyncio.AbstractEventLoop, AsyncGenerator[None, None]] = {}
        self._bells: dict[asyncio.AbstractEventLoop, int] = {}
        self._thread: Background | None = None
        self._turn: object = None  # identifies the current or last thread
        self._looked = 0.0

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Keep the thread running until that loop, which runs now, has ended."""
        if loop in self._loops:
            return
        if not isinstance(loop, asyncio.AbstractEventLoop):
            raise WrongType(f"loop must be an event loop, got {type(loop).__name__}")
        # asyncio closes generators that were begun in a loop when it shuts the loop down.
        sentinel = self._until_the_end(loop)
        with suppress(StopIteration):
            sentinel.__anext__().__await__().send(None)
        bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        _core.own_fd(bell)
        with self.lock:
            self._loops[loop] = sentinel
            self._bells[loop] = bell
            loop.add_reader(bell, self._rung, bell)
            self.waits.bell(bell)
            if self._thread is None:
                self._turn = object()
                self._thread = Background("penstock-wait", partial(self._step, self._turn))

    async def _until_the_end(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            if loop in self._loops:
                self._detach(loop)

    def _detach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Remove an ending loop; after the last one the thread has ended when this returns."""
        if self.generation != _core.fork_generation():
            return
        with self.lock:
            self._drop(loop)
            thread = None if self._loops else self._thread
            if thread is not None:
                self._thread = None
                self.waits.kick()
        if thread is not None:
            thread.finish()

    def _drop(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loops.pop(loop, None)
        bell = self._bells.pop(loop, None)
        if bell is not None:
            if not loop.is_closed():
                loop.remove_reader(bell)
            self.waits.silence(bell)
        for listeners in list(self._waiting.values()):
            listeners[:] = [other for other in listeners if other.loop is not loop]

    def watch(self, log: Handle) -> int:
        """The slot of that log, until ``forget``."""
        with self.lock:
            slot, count = self._slots.get(id(log), (-1, 0))
            if not count:
                slot = self.waits.watch(log)
                self._logs[slot] = log
            self._slots[id(log)] = (slot, count + 1)
            return slot

    def forget(self, slot: int, listener: Listener) -> None:
        """Remove one watcher of that log."""
        with self.lock:
            waiting = self._waiting.get(slot, [])
            if listener in waiting:
                waiting.remove(listener)
            log = self._logs[slot]
            _, count = self._slots[id(log)]
            if count > 1:
                self._slots[id(log)] = (slot, count - 1)
                return
            del self._slots[id(log)], self._logs[slot]
            self._waiting.pop(slot, None)
            self.waits.forget(slot)

    def arm(self, slot: int, seen: tuple[int, ...], listener: Listener) -> bool:
        """Notify a listener of news since ``seen``; False if there is some already."""
        with self.lock:
            if not self.waits.arm(slot, seen):
                return False
            waiting = self._waiting.setdefault(slot, [])
            if listener not in waiting:
                waiting.append(listener)
            return True

    def _step(self, turn: object) -> bool:
        """One step of the thread, repeated until no listener is left."""
        slots = self.waits.sleep(SLICE)
        with self.lock:
            if time.monotonic() - self._looked > SLICE / 2:
                self._looked = time.monotonic()
                slots += self._look_after()
            if self._thread is None or self._turn is not turn:
                return False
            if not self._loops:
                self._thread = None
                return False
        self._deliver(slots)
        return True

    def _rung(self, bell: int) -> None:
        """In a loop's thread: the bell says that there is news."""
        with suppress(BlockingIOError):
            os.eventfd_read(bell)
        self._deliver(self.waits.changed())

    def _deliver(self, slots: list[int]) -> None:
        """Notify the listeners of the logs in these slots."""
        if not slots:
            return
        told: dict[asyncio.AbstractEventLoop, list[tuple[Listener, int]]] = {}
        with self.lock:
            for slot in slots:
                for listener in self._waiting.pop(slot, ()):
                    told.setdefault(listener.loop, []).append((listener, slot))
        here = asyncio._get_running_loop()
        for loop, news in told.items():
            if loop is here:
                _tell(news)
                continue
            try:
                loop.call_soon_threadsafe(_tell, news)
            except RuntimeError:  # it was closed without a shutdown
                with self.lock:
                    self._drop(loop)

    def _look_after(self) -> list[int]:
        """Remove closed loops; returns the slots of deleted logs."""
        for loop in [loop for loop in self._loops if loop.is_closed()]:
            self._drop(loop)
        gone = []
        for slot, log in list(self._logs.items()):
            try:
                log._storage.check_there(log)
            except PenstockError:  # the task that waits for it gets the error
                gone.append(slot)
        return gone


def _tell(news: list[tuple[Listener, int]]) -> None:
    """In the loop's thread: wake the waiters."""
    for listener, slot in news:
        listener.tell(slot)


class Listener:
    """The waiting of one reader in one loop, for one log or for many."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.hub = _hub()
        self.hub.attach(loop)
        self._watched: dict[int, int] = {}  # slot by id of the log, which the hub keeps alive
        self._news: list[int] = []
        self._awaited: list[asyncio.Future[None]] = []  # of each task that waits

    @property
    def fits(self) -> bool:
        """Whether this is the loop, and the process, that it was made in."""
        return (
            self.hub.generation == _core.fork_generation()
            and self.loop is asyncio.get_running_loop()
        )

    def watch(self, log: Handle) -> int:
        """The slot of that log."""
        slot = self._watched.get(id(log))
        if slot is None:
            slot = self._watched[id(log)] = self.hub.watch(log)
        return slot

    def look(self, slot: int) -> tuple[int, int, int, int]:
        """The current state of that log, to be read before the log is."""
        return self.hub.waits.look(slot)

    def arm(self, slot: int, seen: tuple[int, int, int, int]) -> bool:
        """End ``sleep`` with news of that log since then; False if there is some already."""
        return self.hub.arm(slot, seen, self)

    def changed(self) -> list[int]:
        """The slots with news since the last call."""
        news, self._news = self._news, []
        return news

    def tell(self, slot: int) -> None:
        """There is news of that log."""
        self._news.append(slot)
        for future in self._awaited:
            _end(future)

    async def sleep(self, timeout: float | None = None) -> bool:
        """Wait for news; False if time is up first."""
        if self._news:
            return True
        future = self.loop.create_future()
        self._awaited.append(future)
        timer = None
        if timeout is not None:
            timer = self.loop.call_later(timeout, _end, future)
        try:
            await future
        finally:
            self._awaited.remove(future)
            if timer is not None:
                timer.cancel()
        return bool(self._news)

    def close(self) -> None:
        """Stop watching, and end all waits."""
        for future in self._awaited:
            _end(future)
        watched, self._watched = self._watched, {}
        if self.hub.generation == _core.fork_generation():
            for slot in watched.values():
                self.hub.forget(slot, self)


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class _Hubs:
    """The hub of this process; a child of a fork gets its own."""

    now: Hub | None = None
    old: Hub | None = None  # of the parent: its content is not for this process

    @classmethod
    def renew(cls) -> None:
        cls.old, cls.now = cls.now, None


os.register_at_fork(after_in_child=_Hubs.renew)


def _hub() -> Hub:
    hub = _Hubs.now
    if hub is None:
        hub = _Hubs.now = Hub()
    return hub


async def until(
    log: Handle, ask: Callable[[], _T | None], timeout: float | None = None
) -> _T | None:
    """The result of ``ask``, called again whenever the log has news; None if time is up first."""
    timeout = seconds(timeout)
    found = ask()
    if found is not None or timeout == 0:
        return found
    loop = asyncio.get_running_loop()
    deadline = None if timeout is None else loop.time() + timeout
    listener = Listener(loop)
    try:
        slot = listener.watch(log)
        while True:
            seen = listener.look(slot)
            found = ask()
            if found is not None:
                return found
            if listener.arm(slot, seen):
                left = None if deadline is None else deadline - loop.time()
                if left is not None and left <= 0:
                    return None
                await listener.sleep(left)
                listener.changed()
                log._storage.check_there(log)
    finally:
        listener.close()


async def take(source: Source[_T], count: int = 1, timeout: float | None = None) -> list[Event[_T]]:
    """Up to ``count`` events of a source, at least one; none if time is up first."""

    def ask() -> list[Event[_T]] | None:
        found = source.take(count)
        if not found:
            source.wait(0)  # raises if no more can come
        return found or None

    return await until(source.log, ask, timeout) or []


async def next_event(log: Log[Any], timeout: float | None, after: SupportsIndex | None) -> bool:
    """`Log.await_event`."""
    last = log.last_seq if after is None else _core.to_seq(after, "after")
    return bool(await until(log, lambda: log.last_seq > last or None, timeout))


class AsyncReader(Generic[_T]):
    """Events of a log as they are appended, for ``async for``; from ``log.afollow()``.

    It reads up to 64 events ahead, except from a ring that it holds. ``position`` is that of the
    next event. Tasks of one loop may share it: each event goes to one of them.

    >>> import asyncio
    >>> async def first(log):
    ...     async with log.afollow("start") as events:
    ...         async for event in events:
    ...             return event.value
    >>> log = penstock.open(path)
    >>> log.append(b"a")
    1
    >>> asyncio.run(first(log))
    b'a'
    """

    def __new__(cls, source: object = None, *args: Any, **options: Any) -> Self:
        if not isinstance(source, Source):
            raise Usage("an AsyncReader comes from log.afollow()")
        return super().__new__(cls)

    def __init__(
        self,
        source: Source[_T],
        timeout: float | None = None,
        ahead: int = BATCH,
        follows: bool = True,
    ) -> None:
        self.timeout = seconds(timeout)
        self._source = source
        self._ahead = ahead
        self._follows = follows
        self._buffer: deque[Event[_T]] = deque()
        self._given = 0
        self._listener: Listener | None = None
        self._slot = 0
        self._shut = False

    @property
    def log(self) -> Handle:
        """The log that it reads."""
        return self._source.log

    @property
    def position(self) -> int:
        """Seq of the next event."""
        return self._buffer[0].seq if self._buffer else self._source.position

    @property
    def skipped(self) -> int:
        """The number of seqs passed over because they are damaged or gone, if it skips those."""
        return int(getattr(self._source, "skipped", 0))

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._shut

    def close(self) -> None:
        """Release its resources. Closing twice is fine."""
        self._shut = True
        self._buffer.clear()
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        if isinstance(self._source, Reader):
            self._source.close()

    def __del__(self) -> None:
        listener = getattr(self, "_listener", None)
        if listener is not None:  # which the hub knows, and would keep
            listener.close()

    async def aclose(self) -> None:
        """`close`, for `contextlib.aclosing`."""
        self.close()

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    def __repr__(self) -> str:
        state = ", closed" if self._shut else ""
        return f"<penstock.AsyncReader of {self.log.path!r} at seq {self.position}{state}>"

    def __reduce__(self) -> tuple[object, ...]:
        raise WrongType(
            "an AsyncReader belongs to the process that made it and cannot be copied or pickled; "
            f"send the log, which can be, and continue from position {self.position}"
        )

    def _check_open(self) -> None:
        if self._shut:
            raise Closed(
                f"{self.log.path}: the reader was closed; make another one with "
                f"log.afollow({self.position})"
            )

    def _fill(self) -> bool:
        """Read available events, unless another task has done so; False if there are none."""
        if self._buffer:
            return True
        events, interrupt = take_from(self._source, self._ahead)
        self._buffer.extend(events)
        if interrupt is not None:
            raise interrupt
        return bool(events)

    async def __anext__(self) -> Event[_T]:
        if not self._buffer:
            await self._more(seconds(self.timeout))
        self._check_open()
        if not self._buffer:
            raise StopAsyncIteration
        self._given += 1
        return self._buffer.popleft()

    async def take(self, count: SupportsIndex, timeout: float | None = None) -> list[Event[_T]]:
        """Up to ``count`` events, at least one; none if none has come for ``timeout`` seconds.

        >>> import asyncio
        >>> log = penstock.open(path)
        >>> log.extend([b"a", b"b"])
        range(1, 3)
        >>> len(asyncio.run(log.afollow("start").take(10)))
        2
        """
        timeout = seconds(timeout)
        wanted = _core.to_count(count, "count")
        if wanted and not self._buffer:
            await self._more(timeout)
        self._check_open()
        found: list[Event[_T]] = []
        while len(found) < wanted and (self._buffer or self._fill()):
            found.append(self._buffer.popleft())
        return found

    async def _more(self, timeout: float | None) -> None:
        """Fill the buffer with at least one event, unless time is up."""
        self._check_open()
        if self._given >= BATCH:
            self._given = 0
            await asyncio.sleep(0)  # lets other tasks, and a cancellation, run
        if self._fill() or not self._follows or has_ended(self._source):
            return
        listener = self._listen()
        deadline = None if timeout is None else self._loop_time() + timeout
        while True:
            seen = listener.look(self._slot)
            if self._fill() or has_ended(self._source):
                return
            self._source.wait(0)  # raises if no more can come
            if not listener.arm(self._slot, seen):
                continue
            left = None if deadline is None else deadline - self._loop_time()
            if left is not None and left <= 0:
                return
            await listener.sleep(left)
            listener.changed()
            if self._shut or self._fill() or has_ended(self._source):
                return
            self.log._storage.check_there(self.log)

    @staticmethod
    def _loop_time() -> float:
        return asyncio.get_running_loop().time()

    def _listen(self) -> Listener:
        listener = self._listener
        if listener is None or not listener.fits:
            if listener is not None:
                listener.close()
            listener = self._listener = Listener(asyncio.get_running_loop())
            self._slot = listener.watch(self.log)
        return listener


_appends = itertools.count(1)  # of the process: each append that need not wait is one


async def append(
    log: Log[Any], value: Any, durable: bool, timeout: float | None, **rest: Any
) -> int:
    """`Log.aappend`: at once if it need not wait, else in a thread of the loop's executor."""
    seconds(timeout)
    durable = bool(durable)
    loop = asyncio.get_running_loop()
    if not durable and next(_appends) % BATCH == 0:
        await asyncio.sleep(0)  # lets other tasks, and a cancellation, run
    if isinstance(value, bytes | bytearray) and len(value) > LONG_BYTES:
        seq = await loop.run_in_executor(None, partial(log.append, value, timeout=timeout, **rest))
    else:
        try:
            seq = log.append(value, timeout=0, **rest)
        except (Busy, Full):
            if timeout == 0:
                raise
            seq = await loop.run_in_executor(
                None, partial(log.append, value, timeout=timeout, **rest)
            )
    if durable and not await wait_durable(log, seq, timeout):
        raise Busy(f"{log.path}: seq {seq} was appended, but not synced within {timeout:.3g} s")
    return seq


class _Syncs:
    """Tasks of one loop that wait for events of one log to be durable: one thread syncs for all."""

    def __init__(self, log: Log[Any], loop: asyncio.AbstractEventLoop) -> None:
        self.log = log
        self.loop = loop
        self.waiting: list[tuple[int, asyncio.Future[bool]]] = []
        self.running: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Sync until no task waits."""
        while self.waiting:
            batch, self.waiting = self.waiting, []
            goal = max(seq for seq, _ in batch)
            try:
                await self.loop.run_in_executor(None, self.log.wait_durable, goal)
            except BaseException as error:
                for _, future in batch + self.waiting:
                    if future.done():
                        continue
                    if isinstance(error, Exception):
                        future.set_exception(error)
                    else:
                        future.cancel()
                self.waiting = []
                if not isinstance(error, Exception):
                    raise
                return
            for _, future in batch:
                if not future.done():
                    future.set_result(True)


_syncs: dict[tuple[int, int], _Syncs] = {}


async def wait_durable(log: Log[Any], seq: SupportsIndex, timeout: float | None) -> bool:
    """`Log.await_durable`."""
    timeout = seconds(timeout)
    log._check_writable()
    want = _core.to_seq(seq, "seq")
    if want > log.last_seq:
        raise log._no_such_seq(want)
    if log.durable_seq >= want:
        return True
    loop = asyncio.get_running_loop()
    key = (id(loop), id(log))
    syncs = _syncs.get(key)
    if syncs is None or syncs.loop is not loop or syncs.log is not log:
        syncs = _syncs[key] = _Syncs(log, loop)
    future: asyncio.Future[bool] = loop.create_future()
    syncs.waiting.append((want, future))
    if syncs.running is None or syncs.running.done():
        syncs.running = loop.create_task(syncs.run())
        syncs.running.add_done_callback(lambda _: _syncs.pop(key, None))
    try:
        return await asyncio.wait_for(future, timeout)
    except TimeoutError:
        return False
