"""Work that several threads share, and that whoever asks for it can do alone.

A process may have no memory for a thread, or be allowed no more of them: containers count. A thread
pool fails then, or waits for ever for a thread that died before it began. Here the caller works as
well, and whatever nobody else has taken up is done by him.
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
    shared = _Shared(work, items, threads - 1, name)
    try:
        for i in range(len(items)):
            yield shared.result(i)
    finally:
        shared.stop()


class _Shared(Generic[T, R]):
    """Items, and what has become of them."""

    def __init__(
        self, work: Callable[[T, Unwanted], R], items: Sequence[T], helpers: int, name: str
    ) -> None:
        self._work = work
        self._items = items
        self._untaken = list(reversed(range(len(items))))
        self._pending = [_thread.allocate_lock() for _ in items]
        for lock in self._pending:
            lock.acquire()
        self._results: list[R | None] = [None] * len(items)
        self._errors: list[BaseException | None] = [None] * len(items)
        self._busy = [_thread.allocate_lock() for _ in range(helpers)]
        self._stopped = False
        for busy in self._busy:
            try:
                _thread.start_new_thread(self._help, (busy, name))
            except (RuntimeError, MemoryError):  # then there are as many as there are
                break

    def result(self, i: int) -> R:
        """What became of an item; meanwhile this thread works on what is left."""
        while self._pending[i].locked() and self._take(hurried=True):
            pass
        self._pending[i].acquire()
        if (error := self._errors[i]) is not None:
            raise error
        found, self._results[i] = self._results[i], None
        return found  # type: ignore[return-value]

    def stop(self) -> None:
        """Wait for the other threads, which begin nothing more."""
        self._stopped = True
        for busy in self._busy:
            busy.acquire()  # and whoever begins only now finds it taken

    def _unwanted(self) -> bool:
        return self._stopped

    def _help(self, busy: _thread.LockType, name: str) -> None:
        if not busy.acquire(blocking=False):
            return
        try:
            _core.name_thread(name)
            while not self._stopped and self._take(hurried=False):
                pass
        finally:
            busy.release()

    def _take(self, *, hurried: bool) -> bool:
        """Work on the next item; False if there is none left. ``hurried``: Ctrl-C ends it all."""
        if not self._untaken:
            return False
        try:
            i = self._untaken.pop()
        except IndexError:  # somebody else was faster
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
