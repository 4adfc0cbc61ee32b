"""The thread of a writing handle that allocates ahead, prepares segments and seals old ones.

It never holds the handle itself, so that a forgotten log can still be collected. What fails in it
is done (or reported) again by the append path, and recorded for `stats()` (`record.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from penstock.errors import Closed
from penstock.system.background import Background
from penstock.system.messages import logger

LATER = 0.05  # seconds; the least delay


class Keeper:
    """Runs ``work`` in the background each time it is requested, one run after the other.

    ``work`` is told whether the handle is being closed, and returns after how many seconds it wants
    to go on with what it left for later; 0 if it left nothing.
    """

    def __init__(self, work: Callable[[bool], float]) -> None:
        self._work = work
        self._wanted = threading.Event()
        self._later = 0.0
        self._stopping = False
        self._thread = Background("penstock-keeper", self._step)

    def ask(self) -> None:
        """Run ``work`` soon."""
        self._wanted.set()

    def stop(self) -> None:
        """Let a requested run finish, then end the thread."""
        self._stopping = True
        self._wanted.set()
        self._thread.finish()

    def _step(self) -> bool:
        if not self._stopping:
            self._wanted.wait(max(LATER, self._later) if self._later else None)
        self._wanted.clear()
        stopping = self._stopping
        self._later = 0.0
        try:
            self._later = self._work(stopping)
        except Closed:
            pass  # the handle, by a thread that could not wait for this one
        except Exception as error:
            logger.error("a bug in background work; appends go on without it", exc_info=error)
        return not stopping
