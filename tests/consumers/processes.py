"""Children of the test that do one thing, and die where a test wants them to."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from penstock import _core


@dataclass
class Child:
    """A process that runs; it ends with the test at the latest."""

    pid: int

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """How it ended: 0, or minus the signal, or the exit code of one that raised."""
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)


def start(work: Callable[[], object], die_at: str | None = None, times: int = 1) -> Child:
    """Run ``work`` in a child; passing the fail-point ``die_at`` that often kills it."""
    pid = os.fork()
    if pid:
        return Child(pid)
    code = 1
    try:
        if die_at is not None:
            _core.fail_arm(die_at, times)
        work()
        code = 0
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(code)


def run(work: Callable[[], object], die_at: str | None = None, times: int = 1) -> int:
    """Likewise, and wait for its end."""
    return start(work, die_at, times).wait()
