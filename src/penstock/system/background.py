"""A thread of a handle, beside the threads of the program.

`threading.Thread.start` waits for the thread to say that it has begun, and waits for ever if it
dies of a lack of memory before that. Here nobody waits for a beginning, and a lack of memory ends
nothing.
"""

from __future__ import annotations

import _thread
import sys
import time
from collections.abc import Callable

from penstock import _core

AGAIN = 0.05  # seconds


class Background:
    """Runs ``step`` again and again, in a thread of its own, until it says that nothing is left.

    The thread ends with the process. ``name`` is what the system shows, 15 characters of it.
    """

    def __init__(self, name: str, step: Callable[[], bool]) -> None:
        self._name = name
        self._step = step
        self._begun = _thread.allocate_lock()  # whoever takes it does the steps
        self._alive = _thread.allocate_lock()
        self._alive.acquire()
        self._ident = _thread.start_new_thread(self._run, ())

    def finish(self) -> None:
        """Wait for its end, which the steps must know is due; never in a child of its process."""
        if _thread.get_ident() == self._ident or sys.is_finalizing():
            return
        if _core.holds_anything():
            return  # a finaliser or a signal handler closes a log: the steps may want what it holds
        if not self._do_steps():  # a thread that has not begun may have died of lack of memory
            self._alive.acquire()
            self._alive.release()

    def _run(self) -> None:
        self._do_steps(self._name)

    def _do_steps(self, name: str | None = None) -> bool:
        """Do all of them, unless somebody else does."""
        if not self._begun.acquire(blocking=False):
            return False
        try:
            if name is not None:
                _core.name_thread(name)
            step = self._step
            del self._step  # or whoever has this, and is what it does, would hold itself
            going = True
            while going:
                try:
                    going = step()
                except MemoryError:
                    time.sleep(AGAIN)
        finally:
            self._alive.release()
        return True
