"""What became of the work that one handle does in the background, for `stats()` and the log.

It lives in the handle: it tells of this process's threads, and is empty again in a child of a fork.
A failure is logged once; again only after a success in between, or when the error is another one.
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
    """The jobs of one handle, and how each of them went last."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._jobs = {name: Job() for name in JOBS}
        self._told: dict[str, str] = {}  # the error of each job that was logged last
        self._guard = _core.Guard(again=True)

    def jobs(self) -> dict[str, Job]:
        """How each job went, as of now."""
        with self._guard:
            return dict(self._jobs)

    def succeeded(self, job: str) -> None:
        """The job has done something."""
        with self._guard:
            self._jobs[job] = replace(self._jobs[job], last_success_ns=_core.now_ns())
            self._told.pop(job, None)

    def failed(self, job: str, error: BaseException) -> None:
        """The job failed; a log message says so, unless the last one said the same."""
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
