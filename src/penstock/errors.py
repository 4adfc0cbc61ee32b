"""What can go wrong, as types. Each kind keeps one process exit code.

    PenstockError              1 to 11
    ├── Internal               1   a bug in Penstock: please report it
    ├── Usage                  2   the call itself is wrong          (ValueError)
    │   ├── WrongType          2   an argument of the wrong type     (TypeError)
    │   ├── TooLarge           2   over a limit; nothing was written
    │   ├── NotInstalled       2   a package that this needs           (ImportError)
    │   ├── BadData            2   a value does not fit its codec or schema
    │   ├── NoCodec            2   a codec that this process does not have
    │   └── Closed             2   the log was closed
    ├── NotFound               3   no such log, or no such seq       (KeyError)
    ├── AlreadyExists          4   create() found something there    (FileExistsError)
    ├── Busy                   5   somebody else holds it, time is up
    ├── Permission             6   not allowed                       (PermissionError)
    ├── Corrupt                7   bytes on disk that nobody committed
    │   └── UnsupportedVersion 7   written by a newer Penstock
    ├── Io                     8   the system said no                (OSError)
    │   ├── DiskFull           8   no space; nothing was lost
    │   ├── Poisoned           8   an earlier sync failed
    │   └── Gone               8   the log was deleted or replaced while it was open
    ├── Gap                    9   events went away before they were read
    ├── Backpressure          10   the log takes no more just now
    │   └── Full              10
    └── Conflict              11   expect= did not hold

Messages name the path, the seq or offset, and the next step to take.
"""

from __future__ import annotations

import errno
import os
from typing import TypeVar

_OSErrorT = TypeVar("_OSErrorT", bound=OSError)


class PenstockError(Exception):
    """Base of every error that Penstock raises on purpose."""

    exit_code = 1

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else type(self).__name__

    def __reduce__(self) -> tuple[object, ...]:
        state = dict(self.__dict__)
        if isinstance(self, OSError):
            state["errno"] = self.errno
            state["filename"] = self.filename
        return type(self), self.args, state


class Internal(PenstockError):
    """An invariant of Penstock itself does not hold: a bug, please report it."""

    exit_code = 1


class Usage(PenstockError, ValueError):
    """The call cannot be right as written. Nothing was changed."""

    exit_code = 2


class WrongType(Usage, TypeError):
    """An argument has a type that the call does not take."""


class TooLarge(Usage):
    """A topic, key, headers, value or batch exceeds its limit. Nothing was written."""


class NotInstalled(Usage, ImportError):
    """The call needs a package that is not installed; the message names it."""


class BadData(Usage):
    """A value does not fit the codec or the schema.

    Appending, nothing was written. Reading, ``path`` and ``seq`` say which event it is, and its
    ``value`` still has the bytes.
    """

    def __init__(
        self, message: str = "", *, path: str | None = None, seq: int | None = None
    ) -> None:
        super().__init__(message)
        self.path = path
        self.seq = seq


class NoCodec(Usage):
    """The codec is not registered in this process, or a package that it needs is not installed."""


class Closed(Usage):
    """The handle was closed; open the log again."""


class NotFound(PenstockError, KeyError):
    """There is no log at that path, or no event with that seq."""

    exit_code = 3


class AlreadyExists(PenstockError, FileExistsError):
    """Something is already there."""

    exit_code = 4


class Busy(PenstockError):
    """Another process holds what the call needs, and the time given is up."""

    exit_code = 5


class Permission(PenstockError, PermissionError):
    """The file system or the mode of the handle does not allow it."""

    exit_code = 6


class Corrupt(PenstockError):
    """Bytes on disk are not what a writer committed.

    ``path``, ``offset`` and ``seq`` say where, as far as they are known.
    """

    exit_code = 7

    def __init__(
        self,
        message: str = "",
        *,
        path: str | None = None,
        offset: int | None = None,
        seq: int | None = None,
    ) -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset
        self.seq = seq


class UnsupportedVersion(Corrupt):
    """The file was written by a newer Penstock, or with a feature that this one lacks."""


class Io(PenstockError, OSError):
    """The operating system refused; ``errno`` says how."""

    exit_code = 8


class DiskFull(Io):
    """No space left. What was acknowledged stays; appends go on once there is room."""


class Poisoned(Io):
    """A sync failed earlier; no process may append until the log is opened afresh."""


class Gone(Io):
    """The log was deleted, or another took its place, while this handle had it open.

    Nothing was written anywhere. ``filename`` is the path that the log was opened by, and ``errno``
    is ESTALE. Open the path again to use what is there now.
    """

    def __init__(self, message: str = "", *, filename: str | None = None) -> None:
        super().__init__(message)
        self.errno = errno.ESTALE
        self.filename = filename


class Gap(PenstockError):
    """Events were retained away or overwritten before they were read.

    ``first_seq`` is the first seq that is still there.
    """

    exit_code = 9

    def __init__(self, message: str = "", *, first_seq: int = 0) -> None:
        super().__init__(message)
        self.first_seq = first_seq


class Backpressure(PenstockError):
    """The log does not take more just now."""

    exit_code = 10


class Full(Backpressure):
    """The ring is full and was told not to overwrite."""


class Conflict(PenstockError):
    """``expect=`` named another last seq than the log has."""

    exit_code = 11


_DISK_FULL = {errno.ENOSPC, errno.EDQUOT}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}


def from_os(error: OSError, doing: str, path: str) -> PenstockError:
    """Turn an OSError into its typed kind, with what was being done and where."""
    code = error.errno or 0
    text = f"{doing} {path}: {os.strerror(code) if code else error}"
    if code in _DISK_FULL:
        return _with_errno(
            DiskFull(f"{text}; free some space and try again, nothing was lost"), code
        )
    if code in _DENIED:
        return _with_errno(Permission(f"{text}; check who owns it and its mode"), code)
    if code == errno.ENOENT:
        return NotFound(text)
    if code == errno.EEXIST:
        return _with_errno(AlreadyExists(text), code)
    return _with_errno(Io(text), code)


def _with_errno(error: _OSErrorT, code: int) -> _OSErrorT:
    error.errno = code
    return error
