"""Log messages that never run under a lock.

A logging handler is somebody else's code: it may append to the very log that has something to say,
or wait for a thread that does. So what is said while this thread holds a lock of a log is kept, and
said when the thread has given up the last one, also if an exception passes. Other threads are not
affected.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable

from penstock import _core

_logging = logging.getLogger("penstock")


class _Kept(threading.local):
    def __init__(self) -> None:
        self.calls: deque[Callable[[], object]] = deque()


_kept = _Kept()


def afterwards(call: Callable[[], object]) -> None:
    """Make a call at once, or as soon as this thread holds no lock of a log."""
    if _core.say_later():
        _kept.calls.append(call)
    else:
        call()


def _make_calls() -> None:
    """Make the calls that were put off. If one raises, the others are made after the next lock."""
    calls = _kept.calls
    while calls:
        calls.popleft()()


def _forget() -> None:
    """In a child of a fork: what was put off is the parent's to do."""
    _kept.calls.clear()


class Sayings:
    """The package's logger, as far as it is used, for code that may run under a lock."""

    def debug(self, text: str, *args: object) -> None:
        """Log at DEBUG."""
        afterwards(lambda: _logging.debug(text, *args))

    def info(self, text: str, *args: object) -> None:
        """Log at INFO."""
        afterwards(lambda: _logging.info(text, *args))

    def warning(self, text: str, *args: object) -> None:
        """Log at WARNING."""
        afterwards(lambda: _logging.warning(text, *args))

    def error(self, text: str, *args: object, exc_info: BaseException | None = None) -> None:
        """Log at ERROR."""
        afterwards(lambda: _logging.error(text, *args, exc_info=exc_info))


logger = Sayings()

_core.when_nothing_is_held(_make_calls)
os.register_at_fork(after_in_child=_forget)
