"""``penstock tap``."""

from __future__ import annotations

import argparse
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import IO, Any

from penstock.cli import options, outcome
from penstock.cli.out import Out
from penstock.cli.paths import open_log
from penstock.cli.registry import Example
from penstock.errors import PenstockError, TooLarge, Usage
from penstock.layout import VALUE_BYTES_MAX

ABOUT = """\
Run a program and append each line that it prints, to stdout or stderr, with the topic "stdout" or
"stderr". What it prints is passed on as well, and its exit code is that of tap."""
EXAMPLES = (
    Example("penstock tap build --create -- make test", "a build, to watch from elsewhere"),
    Example("penstock tap jobs -t nightly --silent -- ./nightly.sh", "one topic, nothing printed"),
)
READ_BYTES = 1 << 16
NOT_FOUND, NOT_RUN = 127, 126


def arguments(parser: argparse.ArgumentParser) -> None:
    options.add_log(parser)
    parser.set_defaults(rest=[])
    parser.usage = "penstock tap LOG [options] -- COMMAND [ARGUMENT ...]"
    parser.add_argument("--topic", "-t", metavar="TOPIC", help="the topic of all lines")
    parser.add_argument("--key", "-k", metavar="KEY", help="the key of all lines")
    parser.add_argument("--tag", action="append", metavar="TAG", help="may be repeated")
    parser.add_argument("--silent", action="store_true", help="do not pass on what it prints")
    parser.add_argument("--create", action="store_true", help="create the log if there is none")


def run(given: argparse.Namespace, out: Out) -> int:
    if not given.rest:
        raise Usage("the program comes after --: penstock tap LOG -- COMMAND")
    with open_log(given.log, "rw", create=given.create) as log:
        how = {
            "key": options.raw_key(given.key),
            "tags": given.tag,
        }
        return _Tap(log, given, out, {k: v for k, v in how.items() if v is not None}).run()


class _Tap:
    """One run of a program, and what it has printed without an end of line."""

    def __init__(self, log: Any, given: argparse.Namespace, out: Out, how: dict[str, Any]) -> None:
        self._log = log
        self._given = given
        self._out = out
        self._how = how
        self._held: dict[str, bytes] = {"stdout": b"", "stderr": b""}
        self._failure: PenstockError | None = None

    def run(self) -> int:
        """Run the program to its end; returns its exit code."""
        try:
            process = subprocess.Popen(
                self._given.rest, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except OSError as error:
            code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_RUN
            self._out.notice("not run", f"{self._given.rest[0]}: {error.strerror}")
            return code
        with ExitStack() as stack:
            stack.callback(_stop, process)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                _pass_on(stack, number, process)
            self._copy(process)
            process.wait()
        for stream, rest in self._held.items():
            if rest:
                self._append(stream, [rest])
        code = process.returncode
        if self._failure is not None:
            outcome.report(self._failure, self._out.command, self._out.json_errors)
            return code or self._failure.exit_code
        return code if code >= 0 else 128 - code

    def _copy(self, process: subprocess.Popen[bytes]) -> None:
        """Take what it prints until it ends; what its own children print later is not awaited."""
        assert process.stdout is not None and process.stderr is not None
        end = os.pidfd_open(process.pid)
        with selectors.DefaultSelector() as selector, ExitStack() as stack:
            stack.callback(os.close, end)
            woken, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            stack.callback(os.close, woken)
            stack.callback(os.close, wakes)
            _wake_on_signals(
                stack, wakes
            )  # else one that comes just before the wait would wait, too
            selector.register(woken, selectors.EVENT_READ, "signal")
            for name, pipe in (("stdout", process.stdout), ("stderr", process.stderr)):
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, selectors.EVENT_READ, name)
            selector.register(end, selectors.EVENT_READ, "end")
            while len(selector.get_map()) > 2:
                ready = selector.select()
                some = False
                for key, _ in ready:
                    if key.data == "signal":
                        os.read(woken, READ_BYTES)
                        some = True
                    elif key.data != "end":
                        some = self._take(key, selector) or some
                if not some and any(key.data == "end" for key, _ in ready):
                    return

    def _take(self, key: Any, selector: selectors.BaseSelector) -> bool:
        pipe: IO[bytes] = key.fileobj
        try:
            data = os.read(pipe.fileno(), READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            selector.unregister(pipe)
            return False
        stream: str = key.data
        self._print(stream, data)
        *lines, self._held[stream] = (self._held[stream] + data).split(b"\n")
        if len(self._held[stream]) > VALUE_BYTES_MAX:
            self._held[stream] = b""
            self._fail(TooLarge(f"a line must be at most {VALUE_BYTES_MAX} bytes"))
        if lines:
            self._append(stream, lines)
        return True

    def _append(self, stream: str, lines: list[bytes]) -> None:
        """Append lines. If that fails, the program goes on, and the failure is told at the end."""
        topic = stream if self._given.topic is None else self._given.topic
        for at in range(0, len(lines), 100):
            try:
                self._log.extend(lines[at : at + 100], topic=topic, **self._how)
            except PenstockError as error:
                self._fail(error)

    def _fail(self, error: PenstockError) -> None:
        self._failure = self._failure or error

    def _print(self, stream: str, data: bytes) -> None:
        if self._given.silent:
            return
        if stream == "stdout":
            self._out.write(data)
            self._out.flush()
        elif sys.stderr is not None:
            sys.stderr.buffer.write(data)
            sys.stderr.buffer.flush()


def _pass_on(stack: ExitStack, number: int, process: subprocess.Popen[bytes]) -> None:
    """Send a signal on to the program, which decides what it does about it."""

    def handler(_: int, __: object) -> None:
        if process.poll() is None:
            process.send_signal(number)

    try:
        before: Callable[..., Any] | int | None = signal.signal(number, handler)
    except ValueError:  # not the main thread
        return
    stack.callback(signal.signal, number, before)


def _wake_on_signals(stack: ExitStack, fd: int) -> None:
    """Have a signal write to a pipe, which ends a wait."""
    try:
        before = signal.set_wakeup_fd(fd, warn_on_full_buffer=False)
    except ValueError:  # not the main thread
        return
    stack.callback(signal.set_wakeup_fd, before)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a program whose output nobody takes any more."""
    if process.poll() is None:
        process.terminate()
        process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
