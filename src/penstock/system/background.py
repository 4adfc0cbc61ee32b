"""A thread that Penstock itself starts, beside the threads of the program.

`threading.Thread.start` waits for the thread to say that it has begun, and waits for ever if it
dies of a lack of memory before that. Here the caller does not wait for the start, and a lack of
memory does not end the thread. `threading` does not know the thread: code that runs in it must not
call `threading.current_thread`.
"""

from __future__ import annotations

import _thread
import sys
import time
from collections.abc import Callable

from penstock import _core

AGAIN = 0.05  # seconds


class Background:
    """Runs ``step`` repeatedly in a separate thread until it returns that nothing is left.

    The thread ends with the process. The system shows 15 characters of ``name``.
    """

    def __init__(self, name: str, step: Callable[[], bool], *, start: bool = True) -> None:
        self._name = name
        self._step = step
        self._begun = _thread.allocate_lock()  # the thread that takes it does the steps
        self._alive = _thread.allocate_lock()
        self._alive.acquire()
        self._ident: int | None = None
        if start:
            self.start()

    def start(self) -> None:
        """Start the thread: RuntimeError or MemoryError if none can be started."""
        self._ident = _thread.start_new_thread(self._run, ())

    def finish(self) -> None:
        """Wait for its end, which must have been requested; never in a child of its process."""
        if _thread.get_ident() == self._ident or sys.is_finalizing():
            return
        if _core.holds_anything():
            return  # a finaliser or a signal handler closes a log: the steps may need what it holds
        self.join()

    def join(self) -> None:
        """Wait for its end even if this thread has a lock; do the steps here if it never began."""
        if not self._do_steps():  # a thread that has not begun may have died of lack of memory
            self._alive.acquire()
            self._alive.release()

    def _run(self) -> None:
        self._do_steps(self._name)

    def _do_steps(self, name: str | None = None) -> bool:
        """Do all steps, unless another thread does."""
        if not self._begun.acquire(blocking=False):
            return False
        try:
            if name is not None:
                _core.name_thread(name)
            step = self._step
            del self._step  # breaks the cycle of an object that owns this and whose method it runs
            going = True
            while going:
                try:
                    going = step()
                except MemoryError:
                    time.sleep(AGAIN)
        finally:
            self._alive.release()
        return True
