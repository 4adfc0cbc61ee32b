"""The test's side of the zygote: start workers, wait for them, stop and kill them."""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.wait import PATIENCE, wait_for

ROOT = Path(__file__).resolve().parents[2]


class Worker:
    """One worker process."""

    def __init__(self, crew: Crew, pid: int, out: Path, err: Path) -> None:
        self._crew = crew
        self.pid = pid
        self.out = out
        self.err = err
        self.code: int | None = None  # negative: the signal that ended it
        self.stops = 0

    def reports(self) -> list[dict[str, Any]]:
        """What it has reported up to now."""
        text = self.out.read_text() if self.out.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def wait_report(self, name: str) -> Any:
        """Wait for the report called ``name`` and return its content."""

        def look() -> bool:
            self._crew.listen(0)
            return any(name in r for r in self.reports()) or self.code is not None

        wait_for(look, f"report {name!r} of worker {self.pid}")
        for report in self.reports():
            if name in report:
                return report[name]
        raise AssertionError(f"the worker ended ({self.code}) without {name!r}: {self.errors()}")

    def wait_report_of_orphan(self, name: str) -> Any:
        """Wait for a report of a child that has outlived the worker."""
        wait_for(lambda: any(name in r for r in self.reports()), f"report {name!r} of an orphan")
        return next(r[name] for r in self.reports() if name in r)

    def errors(self) -> str:
        """What it wrote to stderr."""
        return self.err.read_text() if self.err.exists() else ""

    @property
    def alive(self) -> bool:
        """Whether it has not ended yet."""
        self._crew.listen(0)
        return self.code is None

    def send(self, number: int) -> None:
        """Send a signal."""
        self._crew.request(pid=self.pid, signal=int(number))

    def wait(self, seconds: float = PATIENCE) -> int:
        """Wait for its end; returns its exit code, negative for a signal."""
        deadline = time.monotonic() + seconds
        while self.code is None:
            left = deadline - time.monotonic()
            assert left > 0, f"worker {self.pid} has not ended after {seconds} s: {self.errors()}"
            self._crew.listen(left)
        return self.code

    def wait_stopped(self) -> None:
        """Wait until a SIGSTOP has stopped it."""
        deadline = time.monotonic() + PATIENCE
        while not self.stops:
            assert self.code is None, f"worker {self.pid} ended ({self.code}): {self.errors()}"
            assert time.monotonic() < deadline, f"worker {self.pid} was never stopped"
            self._crew.listen(1)

    def done(self) -> None:
        """It ends by itself and in order."""
        code = self.wait()
        assert code == 0, f"worker ended with {code}: {self.errors()}"

    def died(self) -> None:
        """It ends by SIGKILL, such as a fail-point sends."""
        code = self.wait()
        assert code == -signal.SIGKILL, f"worker ended with {code}, not SIGKILL: {self.errors()}"
        self._crew.kills += 1

    def kill(self) -> None:
        """Kill it, wherever it is."""
        self.send(signal.SIGKILL)
        self.died()


class Crew:
    """A zygote and the workers that it made.

    All of them have ``preload`` loaded before libc, if given, and are started by the program
    ``under``, which is given the zygote's command line.
    """

    def __init__(self, preload: Path | None = None, under: Sequence[str] = ()) -> None:
        loaded = [] if preload is None else [os.environ.get("LD_PRELOAD", ""), str(preload)]
        self._process = subprocess.Popen(
            [*under, sys.executable, "-m", "tests.support.zygote"],
            cwd=ROOT,
            env=os.environ | ({"LD_PRELOAD": " ".join(loaded).strip()} if loaded else {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._pending = b""
        self._starting: tuple[Path, Path] | None = None
        self._newest: Worker | None = None
        self._workers: dict[int, Worker] = {}
        self._numbers = itertools.count(1)
        self._kind = "" if preload is None else f"{preload.stem}-"
        self.kills = 0

    @property
    def pid(self) -> int:
        """The zygote's."""
        return self._process.pid

    def request(self, **fields: Any) -> None:
        """Send one request to the zygote."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(fields).encode() + b"\n")

    def listen(self, seconds: float) -> None:
        """Take in what the zygote has to say, waiting at most so long for it to say something."""
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        ready, _, _ = select.select([fd], [], [], max(0, seconds))
        if not ready:
            return
        data = os.read(fd, 1 << 16)
        assert data, "the zygote has died"
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            self._take(json.loads(line))

    def _take(self, answer: dict[str, int]) -> None:
        if "started" in answer:
            assert self._starting is not None
            pid = answer["started"]
            self._newest = self._workers[pid] = Worker(self, pid, *self._starting)
            self._starting = None
        elif "stopped" in answer:
            self._workers[answer["stopped"]].stops += 1
        else:
            self._workers.pop(answer["ended"]).code = answer["code"]

    def start(self, directory: Path, job: str, **args: Any) -> Worker:
        """Start a worker that runs ``tests.support.jobs.<job>(**args)``."""
        number = next(self._numbers)
        out = directory / f"{self._kind}{job}-{number}.out"
        err = directory / f"{self._kind}{job}-{number}.err"
        self._starting = (out, err)
        plain = {k: str(v) if isinstance(v, Path) else v for k, v in args.items()}
        self.request(job=job, args=plain, out=str(out), err=str(err))
        deadline = time.monotonic() + PATIENCE
        while self._starting is not None:
            assert time.monotonic() < deadline, "the zygote does not answer"
            self.listen(1)
        assert self._newest is not None
        return self._newest

    def clear(self) -> None:
        """Kill every worker that is left, and what workers left behind."""
        self.request(sweep=True)
        for worker in list(self._workers.values()):
            worker.wait()

    def close(self) -> None:
        """End the zygote, and with it everything."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE)
        self._process.stdout.close()
