"""Penstock: the SQLite of event streams.

A crash-safe event log in a directory that many processes write and read at once, with no daemon.

>>> log = penstock.open(path)
>>> log.append(b"hello", topic="greetings")
1
>>> for event in log:
...     print(event.seq, event.topic, event.value)
1 greetings b'hello'
"""

import logging

from penstock.data.codecs import register_codec
from penstock.data.scan import Scan
from penstock.errors import (
    AlreadyExists,
    Backpressure,
    BadData,
    Busy,
    Closed,
    Conflict,
    Corrupt,
    DiskFull,
    Full,
    Gap,
    Gone,
    Internal,
    Io,
    NoCodec,
    NoSuchLog,
    NotFound,
    NotInstalled,
    PenstockError,
    Permission,
    Poisoned,
    TooLarge,
    UnsupportedVersion,
    Usage,
    WrongType,
)
from penstock.event import Entry, Event
from penstock.log import Log
from penstock.opening import create, open, repair, verify
from penstock.reader import Reader
from penstock.report import Problem, Report
from penstock.segments.check.repair import Plan
from penstock.settings import Settings
from penstock.stats import Stats

__version__ = "0.1.0.dev0"

__all__ = [
    "AlreadyExists",
    "Backpressure",
    "BadData",
    "Busy",
    "Closed",
    "Conflict",
    "Corrupt",
    "DiskFull",
    "Entry",
    "Event",
    "Full",
    "Gap",
    "Gone",
    "Internal",
    "Io",
    "Log",
    "NoCodec",
    "NoSuchLog",
    "NotFound",
    "NotInstalled",
    "PenstockError",
    "Permission",
    "Plan",
    "Poisoned",
    "Problem",
    "Reader",
    "Report",
    "Scan",
    "Settings",
    "Stats",
    "TooLarge",
    "UnsupportedVersion",
    "Usage",
    "WrongType",
    "create",
    "open",
    "register_codec",
    "repair",
    "verify",
]

logging.getLogger("penstock").addHandler(logging.NullHandler())


def __dir__() -> list[str]:
    """The public names, for tab completion; modules of the package can be imported all the same."""
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
