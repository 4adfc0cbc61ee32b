"""The thread of a writing handle that allocates ahead, prepares segments and seals old ones.

It never holds the handle itself, so that a forgotten log can still be collected. What fails in it
the append path does (or reports) again; it is kept for `stats()` as well (`record.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from penstock.errors import Closed
from penstock.system.background import Background
from penstock.system.messages import logger

LATER = 0.05  # seconds


class Keeper:
    """Runs ``work`` in the background each time it is asked to, one run after the other.

    ``work`` is told whether the handle is being closed, and says whether it left something for
    later; then it runs again after a while.
    """

    def __init__(self, work: Callable[[bool], bool]) -> None:
        self._work = work
        self._wanted = threading.Event()
        self._later = False
        self._stopping = False
        self._thread = Background("penstock-keeper", self._step)

    def ask(self) -> None:
        """Have ``work`` run soon."""
        self._wanted.set()

    def stop(self) -> None:
        """Let a run that was asked for finish, then end the thread."""
        self._stopping = True
        self._wanted.set()
        self._thread.finish()

    def _step(self) -> bool:
        if not self._stopping:
            self._wanted.wait(LATER if self._later else None)
        self._wanted.clear()
        stopping = self._stopping
        self._later = False
        try:
            self._later = self._work(stopping)
        except Closed:
            pass  # the handle, by somebody who could not wait for this thread
        except Exception as error:
            logger.error("a bug in background work; appends go on without it", exc_info=error)
        return not stopping
