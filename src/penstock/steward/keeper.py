"""The thread of a writing handle that allocates ahead, prepares segments and seals old ones.

It never holds the handle itself, so that a forgotten log can still be collected, and it gives up
quietly what the append path will do (or report) again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from penstock.errors import PenstockError

logger = logging.getLogger("penstock")

LATER = 0.05  # seconds


class Keeper:
    """Runs ``work`` in the background each time it is asked to, one run after the other.

    ``work`` is told whether the handle is being closed, and says whether it left something for
    later; then it runs again after a while.
    """

    def __init__(self, name: str, work: Callable[[bool], bool]) -> None:
        self._work = work
        self._wanted = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(
            target=self._run, name=f"penstock-keeper {name}", daemon=True
        )
        self._thread.start()

    def ask(self) -> None:
        """Have ``work`` run soon."""
        self._wanted.set()

    def stop(self) -> None:
        """Let a run that was asked for finish, then end the thread."""
        self._stopping = True
        self._wanted.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        later = False
        while True:
            self._wanted.wait(LATER if later else None)
            self._wanted.clear()
            stopping = self._stopping
            later = False
            try:
                later = self._work(stopping)
            except PenstockError as error:
                logger.debug("maintenance put off: %s", error)
            except Exception:
                logger.exception("maintenance failed; appends go on without it")
            if stopping:
                return
