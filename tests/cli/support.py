"""Running commands: in this process for most tests, since a new one costs a tenth of a second."""

from __future__ import annotations

import io
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "penstock"]


@dataclass
class Result:
    """What a command printed, and its exit code."""

    code: int
    raw: bytes
    said: str

    @property
    def text(self) -> str:
        """What it printed."""
        return self.raw.decode()

    @property
    def lines(self) -> list[str]:
        """What it printed, by lines."""
        return self.text.splitlines()

    @property
    def values(self) -> list[Any]:
        """What it printed, as JSON lines."""
        return [json.loads(line) for line in self.raw.split(b"\n") if line]

    @property
    def error(self) -> dict[str, Any]:
        """The error on stderr."""
        found: dict[str, Any] = json.loads(self.said.splitlines()[-1])["error"]
        return found

    @property
    def notices(self) -> list[dict[str, Any]]:
        """The notices on stderr."""
        found = [json.loads(line) for line in self.said.splitlines()]
        return [line["notice"] for line in found if "notice" in line]


class Shell:
    """Runs commands."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def __call__(
        self, *arguments: object, stdin: bytes = b"", terminal: bool = False, code: int | None = 0
    ) -> Result:
        """Run one in this process; ``code`` is the exit code that it must have, None for any."""
        out, err = _stream(b"", terminal), _stream(b"", terminal)
        with self._monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", _stream(stdin, terminal))
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            found = main(list(map(str, arguments)))
            out.flush()
            err.flush()
        result = Result(found, out.buffer.getvalue(), err.buffer.getvalue().decode())  # type: ignore[attr-defined]
        assert code is None or found == code, (found, result.said, result.raw[:1000])
        return result

    def real(
        self, *arguments: object, stdin: bytes = b"", code: int | None = 0, **environment: str
    ) -> Result:
        """Run one as a process of its own."""
        done = subprocess.run(
            [*COMMAND, *map(str, arguments)],
            input=stdin,
            capture_output=True,
            check=False,
            env=real_environment(**environment),
            timeout=120,
        )
        result = Result(done.returncode, done.stdout, done.stderr.decode())
        assert code is None or done.returncode == code, (done.returncode, result.said)
        return result


@contextmanager
def started(*arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """A command that runs beside the test; nothing that it has started outlives the block."""
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=real_environment(),
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            _end_session(process.pid)


def _end_session(session: int) -> None:
    """Kill every process of a session, and wait for their ends."""
    while members := _members(session):
        for pid in members:
            with suppress(ProcessLookupError):
                fd = os.pidfd_open(pid)
                try:
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
                    assert select.select([fd], [], [], 60)[0], pid
                finally:
                    os.close(fd)


def _members(session: int) -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            state, _, _, of = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[:4]
            if int(of) == session and state not in "ZX":
                found.append(int(name))
    return found


def real_environment(**more: str) -> dict[str, str]:
    """The environment of a real process."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *sys.path]), **more}


class _Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def _stream(data: bytes, terminal: bool) -> io.TextIOWrapper:
    return (_Terminal if terminal else io.TextIOWrapper)(
        io.BytesIO(data), encoding="utf-8", errors="surrogateescape", write_through=True
    )


def picture(path: object) -> dict[str, tuple[int, int, bytes]]:
    """Everything that is in a directory: mode, time of change and bytes of each file."""
    top = Path(str(path))
    found = {}
    for file in sorted([top, *top.rglob("*")]):
        status = file.stat()
        found[str(file)] = (
            status.st_mode,
            status.st_mtime_ns,
            file.read_bytes() if file.is_file() else b"",
        )
    return found
