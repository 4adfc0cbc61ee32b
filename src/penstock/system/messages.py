"""Log messages that never run under a lock.

A logging handler is foreign code: it may append to the very log that the message is about, or wait
for a thread that does. So a message from a thread that holds a lock of a log is deferred until the
thread has released its last lock, also if an exception passes. Other threads are not affected.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from penstock import _core

if TYPE_CHECKING:
    from logging import Logger


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


def make_calls() -> None:
    """Make the deferred calls. If one raises, the others are made after the next lock.

    The compiled core calls this when a thread that put some off holds nothing more.
    """
    calls = _kept.calls
    while calls:
        calls.popleft()()


def _forget() -> None:
    """In a child of a fork: the parent makes the deferred calls."""
    _kept.calls.clear()


@cache
def _package_logger() -> Logger:
    import logging

    found = logging.getLogger("penstock")
    found.addHandler(logging.NullHandler())
    return found


def _say(level: str, text: str, *args: object, exc_info: BaseException | None = None) -> None:
    """Log a message, unless the program has not loaded `logging` and so uses no messages.

    Loading it takes as long as most of `import penstock`.
    """
    if "logging" in sys.modules:
        afterwards(lambda: getattr(_package_logger(), level)(text, *args, exc_info=exc_info))


class Sayings:
    """The package's logger, with the methods that are used, for code that may run under a lock."""

    def debug(self, text: str, *args: object) -> None:
        """Log at DEBUG."""
        _say("debug", text, *args)

    def info(self, text: str, *args: object) -> None:
        """Log at INFO."""
        _say("info", text, *args)

    def warning(self, text: str, *args: object) -> None:
        """Log at WARNING."""
        _say("warning", text, *args)

    def error(self, text: str, *args: object, exc_info: BaseException | None = None) -> None:
        """Log at ERROR."""
        _say("error", text, *args, exc_info=exc_info)


logger = Sayings()

os.register_at_fork(after_in_child=_forget)
