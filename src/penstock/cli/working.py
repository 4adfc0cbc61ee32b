"""Run a program once for each job of a group. Its exit code settles the job.

The program gets the value on its stdin and the rest in its environment, and is the leader of a
process group of its own: a signal reaches it once, from here, on a terminal as well.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from penstock.errors import Conflict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.cli.out import Out
    from penstock.groups.job import Job
    from penstock.groups.worker import Worker

REJECTS = 100  # the exit code by which the program says that trying again makes no sense
NOT_FOUND, NOT_RUN = 127, 126
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
NAMES = (
    "PENSTOCK_SEQ",
    "PENSTOCK_TOPIC",
    "PENSTOCK_KEY",
    "PENSTOCK_KEY_BASE64",
    "PENSTOCK_DELIVERIES",
)


class _Stopped(BaseException):
    """A signal came while there was no program to pass it on to."""


class _NotRun(Exception):
    """The program cannot be run at all, whatever the job: the exit code for that."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class Work:
    """Takes jobs of a worker, one after the other, until it is told to stop."""

    def __init__(self, worker: Worker[Any], command: Sequence[str], out: Out) -> None:
        self._worker = worker
        self._command = list(command)
        self._out = out
        self._process: subprocess.Popen[bytes] | None = None
        self._signals: list[int] = []
        self._waits = False
        self.acked = self.nacked = self.rejected = 0

    @property
    def done(self) -> int:
        """How many jobs it has had."""
        return self.acked + self.nacked + self.rejected

    def run(self, limit: int | None, timeout: float | None) -> int:
        """Work until ``limit`` jobs are settled, or none comes in time; returns the exit code."""
        with ExitStack() as stack:
            woken = _take_signals(stack, self._on_signal)
            try:
                while not self._signals and (limit is None or self.done < limit):
                    job = self._next(timeout)
                    if job is None:
                        return 0
                    self._do(job, woken)
            except _Stopped:
                pass
            except _NotRun as error:
                self._out.notice("not run", f"{self._command[0]}: {error}")
                return error.code
        return 128 + self._signals[0] if self._signals else 0

    def _next(self, timeout: float | None) -> Job[Any] | None:
        """The next job; a signal ends the wait, and what was claimed returns with the worker."""
        self._waits = True
        try:
            if self._signals:
                raise _Stopped
            jobs = self._worker.poll(1, timeout)
        finally:
            self._waits = False
        return jobs[0] if jobs else None

    def _do(self, job: Job[Any], woken: int) -> None:
        """Run the program for one job, and settle it."""
        try:
            code = self._run_program(job, woken)
        except (FileNotFoundError, PermissionError) as error:
            job.nack(count=False)
            code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_RUN
            raise _NotRun(code, error.strerror or "cannot be run") from None
        except OSError as error:  # this job's: too long an environment, or no memory now
            self._settle(job, None, f"the program could not be run: {error.strerror}")
            return
        self._settle(job, code, told(code))

    def _settle(self, job: Job[Any], code: int | None, why: str) -> None:
        try:
            if code == 0:
                job.ack()
                self.acked += 1
            elif code == REJECTS:
                job.reject(why)
                self.rejected += 1
                self._say("rejected", job, why)
            elif self._signals:
                job.nack(reason=why, count=False)
            else:
                job.nack(reason=why)
                self.nacked += 1
                self._say("failed", job, why)
        except Conflict as lost:
            self.nacked += 1
            self._out.notice("lost", str(lost), seq=job.seq)

    def _say(self, what: str, job: Job[Any], why: str) -> None:
        self._out.notice(
            what,
            f"seq {job.seq}, try {job.deliveries}: {why}",
            seq=job.seq,
            deliveries=job.deliveries,
            reason=why,
        )

    def _run_program(self, job: Job[Any], woken: int) -> int:
        """Run the program to its end; its exit code, below 0 if a signal has ended it."""
        with _value_file(job.event.value or b"") as stdin:
            process = subprocess.Popen(
                self._command, stdin=stdin, env=environment(job), process_group=0
            )
        end = -1
        try:
            end = os.pidfd_open(process.pid)
            self._process = process
            for number in self._signals[:1]:  # it came while the program was being started
                _send(process, number)
            ready = select.poll()
            ready.register(end, select.POLLIN)
            ready.register(woken, select.POLLIN)
            while process.poll() is None:
                if any(fd == woken for fd, _ in ready.poll()):
                    os.read(woken, 1 << 10)
            return process.returncode
        finally:
            self._process = None
            if process.poll() is None:  # only after an error of ours
                _send(process, signal.SIGKILL)
                process.wait()
            if end >= 0:
                os.close(end)

    def _on_signal(self, number: int, _: object) -> None:
        """Pass a signal on; the second one kills a program that did not heed the first."""
        self._signals.append(number)
        if self._process is not None:
            _send(self._process, number if len(self._signals) == 1 else signal.SIGKILL)
        elif self._waits:
            self._waits = False
            raise _Stopped


def environment(job: Job[Any]) -> dict[bytes, bytes]:
    """The environment of the program. A key with a NUL, which it cannot have, is base64."""
    found = dict(os.environb)
    for name in NAMES:
        found.pop(name.encode(), None)
    event = job.event
    found[b"PENSTOCK_SEQ"] = b"%d" % job.seq
    found[b"PENSTOCK_DELIVERIES"] = b"%d" % job.deliveries
    found[b"PENSTOCK_TOPIC"] = (event.topic or "").replace("\0", "\\0").encode()
    if event.key is not None and b"\0" not in event.key:
        found[b"PENSTOCK_KEY"] = bytes(event.key)
    elif event.key is not None:
        import base64

        found[b"PENSTOCK_KEY_BASE64"] = base64.b64encode(event.key)
    return found


def told(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return f"ended by {signal.Signals(-code).name}"
    return f"ended by signal {-code}"


@contextmanager
def _value_file(value: bytes) -> Iterator[int]:
    """A file in memory with the value: a program that does not read it all does not matter."""
    fd = os.memfd_create("value")
    try:
        left = memoryview(value)
        while left:
            left = left[os.write(fd, left) :]
        reads = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(fd)
    try:
        yield reads
    finally:
        os.close(reads)


def _take_signals(stack: ExitStack, handler: Callable[[int, object], None]) -> int:
    """Have signals handled until the stack ends; what can be waited for to see that one came.

    Without it, a signal that comes just before a wait would wait, too.
    """
    woken, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    stack.callback(os.close, woken)
    stack.callback(os.close, wakes)
    with suppress(ValueError):  # not the main thread, which gets no signals
        before = signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        stack.callback(signal.set_wakeup_fd, before)
        for number in SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # nohup wants it to go on
            stack.callback(signal.signal, number, signal.signal(number, handler))
    return woken


def _send(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to the program and its children; nothing if it has ended."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
