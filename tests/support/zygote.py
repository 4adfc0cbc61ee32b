"""A server that has imported everything, opened nothing, and forks a worker on request.

A worker so made is a real process of its own, and costs a few milliseconds instead of a whole
interpreter's start. Requests and answers are JSON lines on stdin and stdout. When stdin ends, so do
the server and, by the kernel's hand, every worker.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import select
import signal
import sys
import traceback
from typing import Any

from tests.support import jobs

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    """Serve until stdin ends."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    gc.collect()
    gc.freeze()
    alive: set[int] = set()
    pending = b""
    while True:
        ready, _, _ = select.select([0, wake_read], [], [])
        if wake_read in ready:
            os.read(wake_read, 4096)
            _reap(alive)
        if 0 in ready:
            data = os.read(0, 1 << 16)
            if not data:
                break
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                _serve(json.loads(line), alive)
    _sweep()


def _answer(**fields: Any) -> None:
    os.write(1, json.dumps(fields).encode() + b"\n")


def _reap(alive: set[int]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid not in alive:
            continue  # an orphan: a worker's child that outlived it
        if os.WIFSTOPPED(status):
            _answer(stopped=pid)
        else:
            alive.discard(pid)
            _answer(ended=pid, code=os.waitstatus_to_exitcode(status))


def _sweep() -> None:
    """Kill every child, orphans of workers included."""
    me = os.getpid()
    with open(f"/proc/{me}/task/{me}/children") as file:
        for pid in file.read().split():
            os.kill(int(pid), signal.SIGKILL)


def _serve(request: dict[str, Any], alive: set[int]) -> None:
    if "signal" in request:
        if request["pid"] in alive:
            os.kill(request["pid"], request["signal"])
        return
    if "sweep" in request:
        _sweep()
        return
    if "module" in request["args"]:  # once here instead of in every worker
        importlib.import_module(request["args"]["module"])
    pid = os.fork()
    if pid == 0:
        _work(request)
    alive.add(pid)
    _answer(started=pid)


def _work(request: dict[str, Any]) -> None:
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        null = os.open(os.devnull, os.O_RDONLY)
        out = os.open(request["out"], flags, 0o600)
        err = os.open(request["err"], flags, 0o600)
        os.dup2(null, 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.closerange(3, 64)
        getattr(jobs, request["job"])(**request["args"])
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
