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


class Keeper:
    """Runs ``work`` in the background each time it is asked to, one run after the other."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
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
        while True:
            self._wanted.wait()
            self._wanted.clear()
            stopping = self._stopping
            try:
                self._work()
            except PenstockError as error:
                logger.debug("maintenance put off: %s", error)
            except Exception:
                logger.exception("maintenance failed; appends go on without it")
            if stopping:
                return
