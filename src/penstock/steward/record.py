"""Results of the background work of one handle, for `stats()`, log messages and `Backpressure`.

It belongs to the handle: it is about this process's threads, and empty in a child of a fork. The
same failure of a job is logged at most once a minute.
"""

from __future__ import annotations

from dataclasses import replace
from time import monotonic

from penstock import _core
from penstock.stats import JOBS, BackgroundJob
from penstock.system.messages import logger

QUIET = 60.0  # seconds in which a failure is not logged again
PRESSING = ("seal", "retain", "compact")  # whose failures stop appends in the end
_MEANING = {
    "allocate": "allocating space ahead of appends",
    "prepare": "preparing the next segment",
    "seal": "sealing finished segments",
    "sync": "syncing in the background",
    "retain": "deleting old segments",
    "compact": "compacting",
    "erase": "erasing a key",
    "archive": "archiving",
}


class Record:
    """The jobs of one handle, with the last result of each."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._jobs = {name: BackgroundJob() for name in JOBS}
        self._told: dict[tuple[object, ...], float] = {}  # when each kind of failure was logged
        self._guard = _core.Guard(again=True)
        self.dead_bytes: int | None = None  # that compaction would free; None: nobody has counted

    def jobs(self) -> dict[str, BackgroundJob]:
        """The results of each job so far."""
        with self._guard:
            return dict(self._jobs)

    def is_failing(self, job: str) -> bool:
        """Whether the job failed the last time."""
        return self._jobs[job].in_a_row > 0

    def queued(self, job: str, count: int) -> None:
        """Record how much of the job waits to be done."""
        with self._guard:
            if self._jobs[job].queue != count:
                self._jobs[job] = replace(self._jobs[job], queue=count)

    def succeeded(self, job: str) -> None:
        """Record a success of the job."""
        with self._guard:
            before = self._jobs[job]
            self._jobs[job] = replace(
                before,
                last_success_ns=_core.now_ns(),
                successes=before.successes + 1,
                in_a_row=0,
            )

    def failed(self, job: str, error: BaseException) -> int:
        """Record a failure of the job and log it; returns how many there were in a row."""
        text = str(error) or type(error).__name__
        kind = (job, type(error), getattr(error, "errno", None))
        now = monotonic()
        with self._guard:
            before = self._jobs[job]
            self._jobs[job] = replace(
                before,
                last_error=text,
                last_error_ns=_core.now_ns(),
                failures=before.failures + 1,
                in_a_row=before.in_a_row + 1,
            )
            last = self._told.get(kind)
            if last is None or now - last >= QUIET:
                self._told[kind] = now
                logger.warning("%s: %s failed: %s", self._path, _MEANING[job], text)
        return before.in_a_row + 1
