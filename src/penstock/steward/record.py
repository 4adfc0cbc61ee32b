"""Results of the background work of one handle, for `stats()` and log messages.

It belongs to the handle: it is about this process's threads, and empty in a child of a fork. A
failure is logged once; again only after a success in between, or if the error is a different one.
"""

from __future__ import annotations

from dataclasses import replace

from penstock import _core
from penstock.stats import JOBS, Job
from penstock.system.messages import logger

_MEANING = {
    "allocate": "allocating space ahead of appends",
    "prepare": "preparing the next segment",
    "seal": "sealing finished segments",
    "sync": "syncing in the background",
}


class Record:
    """The jobs of one handle, with the last result of each."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._jobs = {name: Job() for name in JOBS}
        self._told: dict[str, str] = {}  # the last logged error of each job
        self._guard = _core.Guard(again=True)

    def jobs(self) -> dict[str, Job]:
        """The results of each job so far."""
        with self._guard:
            return dict(self._jobs)

    def succeeded(self, job: str) -> None:
        """Record a success of the job."""
        with self._guard:
            self._jobs[job] = replace(self._jobs[job], last_success_ns=_core.now_ns())
            self._told.pop(job, None)

    def failed(self, job: str, error: BaseException) -> None:
        """Record a failure of the job, and log it unless the last message said the same."""
        text = str(error) or type(error).__name__
        with self._guard:
            before = self._jobs[job]
            self._jobs[job] = replace(
                before,
                last_error=text,
                last_error_ns=_core.now_ns(),
                failures=before.failures + 1,
            )
            if self._told.get(job) != text:
                self._told[job] = text
                logger.warning("%s: %s failed: %s", self._path, _MEANING[job], text)
