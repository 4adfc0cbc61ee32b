"""The thread of a handle that syncs on request: after some time, after some events, or at once.

It holds the handle only while it syncs, so that a forgotten log can still be collected. A sync that
fails poisons the log, which the next append or sync reports; here it is logged, and recorded
for `stats()`.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from penstock.errors import Closed, PenstockError
from penstock.system.background import Background

if TYPE_CHECKING:
    from penstock.handle.handle import Handle


class Syncer:
    """Runs one sync after the other, as requested.

    It sleeps until the handle appends something after ``_sync_next``, then waits up to ``seconds``
    for more to come, or for ``events`` of them, and syncs.
    """

    def __init__(self, log: Handle, seconds: float | None, events: int | None) -> None:
        self._log = weakref.ref(log)
        self._seconds = seconds
        self._events = events
        self._wanted = threading.Event()
        self._now = threading.Event()
        self._again = False
        self._stopping = False
        self._thread = Background("penstock-sync", self._step)

    def ask(self, *, now: bool) -> None:
        """Run a sync soon, or at once."""
        if now or self._seconds is None or self._wanted.is_set():
            self._now.set()
        elif self._events is not None:
            log = self._log()
            if log is not None:
                log._sync_next = log._durable_seq() + self._events
        self._wanted.set()

    def stop(self) -> None:
        """End the thread; a sync that was requested and has not begun is left to ``close``."""
        self._stopping = True
        self._now.set()
        self._wanted.set()
        self._thread.finish()

    def _step(self) -> bool:
        if not self._again:
            self._wanted.wait()
            if self._seconds is not None:
                self._now.wait(self._seconds)
        if self._stopping:
            return False
        log = self._log()
        if log is None:
            return False
        self._again = True  # if this ends for lack of memory
        self._now.clear()
        self._wanted.clear()
        try:
            self._sync(log)
        except Closed:
            pass  # between the request and now; closing syncs
        except PenstockError as error:
            log._record.failed("sync", error)
        self._again = False
        return True

    def _sync(self, log: Handle) -> None:
        log._sync_all(None)
        log._record.succeeded("sync")
        durable = log._durable_seq()
        if self._seconds is not None:
            log._sync_next = durable + 1
        elif self._events is not None:
            log._sync_next = durable + self._events
        if log._next_seq() > log._sync_next:  # appended before _sync_next was set
            self.ask(now=False)
