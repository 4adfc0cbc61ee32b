"""Work that several threads share, and that whoever asks for it can do alone.

A process may have no memory for a thread, or be allowed no more of them: containers count. A thread
pool fails then, or waits for ever for a thread that died before it began. Here the caller works as
well, and does whatever nobody else has taken up. The threads are unknown to `threading`: what they
do must not ask it who they are.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable, Generator, Sequence
from typing import Generic, TypeVar

from penstock import _core

T = TypeVar("T")
R = TypeVar("R")
Unwanted = Callable[[], bool]


def in_order(
    work: Callable[[T, Unwanted], R], items: Sequence[T], threads: int, name: str
) -> Generator[R, None, None]:
    """What ``work`` makes of each item, one after the other; ``threads`` are at it, with this one.

    Items are begun in order. If one fails, its error is raised in its turn. Who goes on no further
    waits for what is being worked on, and the rest is not begun: ``work`` may ask whether it is
    unwanted by now. ``name`` is what the system shows of the threads.
    """
    shared = _Shared(work, items, min(threads, len(items)) - 1)
    try:
        shared.begin(name)
        for i in range(len(items)):
            yield shared.result(i)
    finally:
        shared.stop()


class _Shared(Generic[T, R]):
    """Items, and what has become of them."""

    def __init__(self, work: Callable[[T, Unwanted], R], items: Sequence[T], helpers: int) -> None:
        self._work = work
        self._items = items
        self._untaken = list(reversed(range(len(items))))
        self._pending = [_thread.allocate_lock() for _ in items]
        for lock in self._pending:
            lock.acquire()
        self._results: list[R | None] = [None] * len(items)
        self._errors: list[BaseException | None] = [None] * len(items)
        self._awaited = 0
        self._busy = [_thread.allocate_lock() for _ in range(helpers)]
        self._stopped = False

    def begin(self, name: str) -> None:
        """Start the other threads, as many as can be had."""
        for busy in self._busy:
            try:
                _thread.start_new_thread(self._help, (busy, name))
            except (RuntimeError, MemoryError):
                break

    def result(self, i: int) -> R:
        """What became of an item; meanwhile this thread works on what is left."""
        self._awaited = i
        while self._pending[i].locked() and self._take(hurried=True):
            pass
        self._pending[i].acquire()
        error = self._errors[i]
        if error is not None:
            try:
                raise error
            finally:
                del error  # or it would hold this frame, which holds it
        found, self._results[i] = self._results[i], None
        return found  # type: ignore[return-value]

    def stop(self) -> None:
        """Wait for the other threads, which begin nothing more."""
        self._stopped = True
        for busy in self._busy:
            busy.acquire()  # and whoever begins only now finds it taken
        self._results.clear()
        self._errors.clear()

    def _unwanted(self) -> bool:
        """Whether nobody will get what is being worked on."""
        return self._stopped or self._errors[self._awaited] is not None

    def _help(self, busy: _thread.LockType, name: str) -> None:
        if not busy.acquire(blocking=False):
            return
        try:
            _core.name_thread(name)
            while not self._unwanted() and self._take(hurried=False):
                pass
        finally:
            busy.release()

    def _take(self, *, hurried: bool) -> bool:
        """Work on the next item; False if there is none left. ``hurried``: Ctrl-C ends it all."""
        try:
            i = self._untaken.pop()
        except IndexError:
            return False
        try:
            self._results[i] = self._work(self._items[i], self._unwanted)
        except BaseException as error:
            self._errors[i] = error
            if hurried and not isinstance(error, Exception):
                raise
        finally:
            self._pending[i].release()
        return True
