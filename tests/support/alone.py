"""Runs a piece of a test in a process of its own, which may hang or die without taking the test."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path

PATIENCE = 30.0  # seconds; what takes longer hangs


def start(work: Callable[[], object], errors: Path) -> int:
    """Fork, and do ``work`` in the child, which ends without going back into the test."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        # What a signal that kills it says, and where it hangs, is wanted in the same file.
        told = errors.open("w")
        faulthandler.enable(told)
        work()
        code = 0
    except BaseException:
        signal.setitimer(signal.ITIMER_REAL, 0)
        with errors.open("a") as told:
            told.write(traceback.format_exc())
    finally:
        os._exit(code)


def finish(child: int, errors: Path) -> None:
    """Wait for the child's end; it must not hang, die or raise."""
    deadline = time.monotonic() + PATIENCE
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGABRT)  # faulthandler writes where every thread is
            os.kill(child, signal.SIGCONT)
            os.waitpid(child, 0)
            raise AssertionError(
                f"the process hangs; it has been at it for {PATIENCE:.0f} s: {said(errors)}"
            )
        time.sleep(0.001)
    told = said(errors)
    assert os.waitstatus_to_exitcode(status) == 0, f"ended with status {status:#x}: {told}"


def said(errors: Path) -> str:
    """What a child wrote about its end."""
    return errors.read_text() if errors.exists() else ""


def run(work: Callable[[], object], directory: Path) -> None:
    """Do ``work`` in a process of its own, to its end."""
    errors = directory / f"errors-{time.monotonic_ns()}"
    finish(start(work, errors), errors)
