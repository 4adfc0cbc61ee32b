"""Penstock: the SQLite of event streams.

A crash-safe event log in a directory that many processes write and read at once, with no daemon.

>>> log = penstock.open(path)
>>> log.append(b"hello", topic="greetings")
1
>>> for event in log:
...     print(event.seq, event.topic, event.value)
1 greetings b'hello'
"""

from penstock import errors
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

TYPE_CHECKING = False  # what typing says; importing that takes longer than all of this
if TYPE_CHECKING:
    from penstock._core import Reader, release_memory
    from penstock.consumers.consumer import Consumer
    from penstock.consumers.reading import Lag
    from penstock.data.codecs import register_codec
    from penstock.data.scan import Scan
    from penstock.event import Entry, Event
    from penstock.groups.group import Group
    from penstock.groups.job import Job
    from penstock.groups.worker import Worker
    from penstock.log import Log
    from penstock.opening import create, open, repair, restore, verify
    from penstock.places import delete, exists, find
    from penstock.reading.aio import AsyncReader
    from penstock.reading.merging import Merged, merge
    from penstock.report import Plan, Problem, Report
    from penstock.settings import Settings
    from penstock.stats import Stats

__version__ = "0.1.0.dev0"

__all__ = [
    "AlreadyExists",
    "AsyncReader",
    "Backpressure",
    "BadData",
    "Busy",
    "Closed",
    "Conflict",
    "Consumer",
    "Corrupt",
    "DiskFull",
    "Entry",
    "Event",
    "Full",
    "Gap",
    "Gone",
    "Group",
    "Internal",
    "Io",
    "Job",
    "Lag",
    "Log",
    "Merged",
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
    "Worker",
    "WrongType",
    "create",
    "delete",
    "exists",
    "find",
    "merge",
    "open",
    "register_codec",
    "release_memory",
    "repair",
    "restore",
    "verify",
]

# The module of each name that is loaded on first use: `import penstock` must be fast, and many
# programs that import it, such as the command line that prints its version, never open a log.
_LATER = {
    "AsyncReader": "penstock.reading.aio",
    "Consumer": "penstock.consumers.consumer",
    "Entry": "penstock.event",
    "Event": "penstock.event",
    "Group": "penstock.groups.group",
    "Job": "penstock.groups.job",
    "Lag": "penstock.consumers.reading",
    "Log": "penstock.log",
    "Merged": "penstock.reading.merging",
    "Plan": "penstock.report",
    "Problem": "penstock.report",
    "Reader": "penstock._core",
    "Report": "penstock.report",
    "Scan": "penstock.data.scan",
    "Settings": "penstock.settings",
    "Stats": "penstock.stats",
    "Worker": "penstock.groups.worker",
    "create": "penstock.opening",
    "delete": "penstock.places",
    "exists": "penstock.places",
    "find": "penstock.places",
    "merge": "penstock.reading.merging",
    "open": "penstock.opening",
    "register_codec": "penstock.data.codecs",
    "release_memory": "penstock._core",
    "repair": "penstock.opening",
    "restore": "penstock.opening",
    "verify": "penstock.opening",
}

if not TYPE_CHECKING:  # a type checker would take any name then

    def __getattr__(name: str) -> object:
        """Load the module that has the name, and keep the value for the next lookup."""
        home = _LATER.get(name)
        if home is None:
            raise AttributeError(f"module 'penstock' has no attribute {name!r}")
        try:
            from importlib import import_module

            found = globals()[name] = getattr(import_module(home), name)
        except OSError as error:  # for example, no descriptor is left; a later call loads it
            raise errors.from_os(error, "loading", error.filename or home) from error
        return found


def __dir__() -> list[str]:
    """The public names, for tab completion; modules of the package can still be imported."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
