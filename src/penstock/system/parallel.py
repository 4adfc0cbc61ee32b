"""Work that several threads share, and that the calling thread can do alone.

A process may lack the memory for a thread, or reach a limit of its container. A thread pool then
fails, or waits for ever for a thread that died before it began. Here the caller works as well, and
does all that no other thread has taken.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable, Generator, Sequence
from typing import Generic, TypeVar

from penstock.system.background import Background

T = TypeVar("T")
R = TypeVar("R")
Unwanted = Callable[[], bool]


def in_order(
    work: Callable[[T, Unwanted], R], items: Sequence[T], threads: int, name: str
) -> Generator[R, None, None]:
    """The results of ``work`` for each item, in order, by ``threads`` threads including this one.

    Items are begun in order. If one fails, its error is raised in its turn. A caller that stops
    early waits for the items in progress, and the rest is not begun: ``work`` may ask whether its
    result is still wanted. The system shows ``name`` for the threads.
    """
    shared = _Shared(work, items, min(threads, len(items)) - 1, name)
    try:
        shared.begin()
        for i in range(len(items)):
            yield shared.result(i)
    finally:
        shared.stop()


class _Shared(Generic[T, R]):
    """Items and their results."""

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
        self._awaited = 0
        self._helpers = [Background(name, self._help, start=False) for _ in range(helpers)]
        self._stopped = False

    def begin(self) -> None:
        """Start the other threads, as many as possible."""
        for helper in self._helpers:
            try:
                helper.start()
            except (RuntimeError, MemoryError):
                break

    def result(self, i: int) -> R:
        """The result of an item; until it is there, this thread works on the remaining ones."""
        self._awaited = i
        while self._pending[i].locked() and self._take(hurried=True):
            pass
        self._pending[i].acquire()
        error = self._errors[i]
        if error is not None:
            try:
                raise error
            finally:
                del error  # breaks the reference cycle with this frame
        found, self._results[i] = self._results[i], None
        return found  # type: ignore[return-value]

    def stop(self) -> None:
        """Wait for the other threads, which begin no more items."""
        self._stopped = True
        for helper in self._helpers:
            helper.join()  # a thread that starts only now does nothing
        self._results.clear()
        self._errors.clear()

    def _unwanted(self) -> bool:
        """Whether the items in progress are no longer wanted."""
        return self._stopped or self._errors[self._awaited] is not None

    def _help(self) -> bool:
        """Work on one more item in another thread; False if none is left or wanted."""
        return not self._unwanted() and self._take(hurried=False)

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
