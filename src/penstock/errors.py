"""What can go wrong, as types. Each kind keeps one process exit code.

    PenstockError              1 to 11
    ├── Internal               1   a bug in Penstock: please report it
    ├── Usage                  2   the call itself is wrong          (ValueError)
    │   ├── WrongType          2   an argument of the wrong type     (TypeError)
    │   ├── TooLarge           2   over a limit; nothing was written
    │   ├── NotInstalled       2   a package that this needs         (ImportError)
    │   ├── BadData            2   a value does not fit its codec or schema
    │   ├── NoCodec            2   a codec that this process does not have
    │   └── Closed             2   the log was closed
    ├── NotFound               3   no event has that seq             (KeyError)
    │   └── NoSuchLog          3   no log, or no file of one, there  (FileNotFoundError)
    ├── AlreadyExists          4   create() found something there    (FileExistsError)
    ├── Busy                   5   another process holds it; timed out
    ├── Permission             6   not allowed                       (PermissionError)
    ├── Corrupt                7   bytes on disk that no writer committed
    │   └── UnsupportedVersion 7   written by a newer Penstock
    ├── Io                     8   a system call failed              (OSError)
    │   ├── DiskFull           8   no space; nothing was lost
    │   ├── Poisoned           8   an earlier sync failed
    │   └── Gone               8   the log was deleted or replaced while it was open
    ├── Gap                    9   events were dropped before they were read
    ├── Backpressure          10   the log takes no appends for now
    │   └── Full              10
    └── Conflict              11   expect= or producer= did not match

Messages name the path, the seq or offset, and the next step to take. What a program may need
is an attribute as well. Every error that is an OSError has ``errno``, ``strerror`` and
``filename``. Errors can be pickled and copied, attributes included.
"""

from __future__ import annotations

import errno as _errno
import os

TYPE_CHECKING = False  # what typing says; importing that takes longer than all of this
if TYPE_CHECKING:
    from typing import Any

_OS_PARTS = ("errno", "strerror", "filename", "filename2")
_IMPORT_PARTS = ("name", "path", "msg")


class PenstockError(Exception):
    """Base of every error that Penstock raises on purpose."""

    exit_code = 1

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else type(self).__name__

    def __reduce__(self) -> tuple[object, ...]:
        state = dict(self.__dict__)
        for kind, parts in ((OSError, _OS_PARTS), (ImportError, _IMPORT_PARTS)):
            if isinstance(self, kind):
                state |= {part: getattr(self, part) for part in parts}
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
    """The call needs a package that is not installed: ``name``."""

    def __init__(self, message: str = "", *, name: str | None = None) -> None:
        super().__init__(message)
        self.name = name


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
    """There is no event with that seq; as `NoSuchLog`, no log at that path."""

    exit_code = 3


class NoSuchLog(NotFound, FileNotFoundError):
    """There is no log, or no file or directory that a log needs, at the path ``filename``."""

    def __init__(
        self, message: str = "", *, errno: int | None = None, filename: str | None = None
    ) -> None:
        super().__init__(message)
        _tell_system(self, errno or _errno.ENOENT, filename)


class AlreadyExists(PenstockError, FileExistsError):
    """Something is already there: at the path ``filename``."""

    exit_code = 4

    def __init__(
        self, message: str = "", *, errno: int | None = None, filename: str | None = None
    ) -> None:
        super().__init__(message)
        _tell_system(self, errno or _errno.EEXIST, filename)


class Busy(PenstockError):
    """Another process holds what the call needs, and the timeout has passed."""

    exit_code = 5


class Permission(PenstockError, PermissionError):
    """The file system or the mode of the handle does not allow it."""

    exit_code = 6

    def __init__(
        self, message: str = "", *, errno: int | None = None, filename: str | None = None
    ) -> None:
        super().__init__(message)
        _tell_system(self, errno or _errno.EACCES, filename)


class Corrupt(PenstockError):
    """Bytes on disk are not what a writer committed.

    ``path`` and ``offset`` say where. ``seq`` is the first seq that cannot be read, or the
    last one for a read in reverse. ``last_seq`` is the last seq before the damage. Each is None if
    it is not known.
    """

    exit_code = 7

    def __init__(
        self,
        message: str = "",
        *,
        path: str | None = None,
        offset: int | None = None,
        seq: int | None = None,
        last_seq: int | None = None,
    ) -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset
        self.seq = seq
        self.last_seq = last_seq


class UnsupportedVersion(Corrupt):
    """The file was written by a newer Penstock, or with a feature that this one lacks."""


class Io(PenstockError, OSError):
    """The operating system refused: ``errno`` and ``strerror`` say how, ``filename`` where."""

    exit_code = 8
    _errno = _errno.EIO

    def __init__(
        self, message: str = "", *, errno: int | None = None, filename: str | None = None
    ) -> None:
        super().__init__(message)
        _tell_system(self, errno or self._errno, filename)


class DiskFull(Io):
    """No space left. Acknowledged events stay; appends work again once there is room."""

    _errno = _errno.ENOSPC


class Poisoned(Io):
    """A sync failed earlier; no process may append until all have closed the log."""


class Gone(Io):
    """The log was deleted, or replaced by another, while this handle had it open.

    Nothing was written anywhere. ``filename`` is the path that the log was opened by, and ``errno``
    is ESTALE. Open the path again to use what is there now.
    """

    _errno = _errno.ESTALE


class Gap(PenstockError):
    """Events were deleted or overwritten before they were read.

    ``first_seq`` is the first seq that is still there.
    """

    exit_code = 9

    def __init__(self, message: str = "", *, first_seq: int = 0) -> None:
        super().__init__(message)
        self.first_seq = first_seq


class Backpressure(PenstockError):
    """The log takes no appends for now."""

    exit_code = 10


class Full(Backpressure):
    """The ring is full, and its settings forbid to overwrite."""


class Conflict(PenstockError):
    """The log is not in the state that the call requires. Nothing was written.

    ``expected`` is what the call gave: the last seq in ``expect=``, or the number in ``producer=``.
    ``found`` is what the log at ``path`` has instead.
    """

    exit_code = 11

    def __init__(
        self,
        message: str = "",
        *,
        path: str | None = None,
        expected: int | None = None,
        found: int | None = None,
    ) -> None:
        super().__init__(message)
        self.path = path
        self.expected = expected
        self.found = found


_DISK_FULL = {_errno.ENOSPC, _errno.EDQUOT}
_DENIED = {_errno.EACCES, _errno.EPERM, _errno.EROFS}
_NO_DESCRIPTORS = {_errno.EMFILE, _errno.ENFILE}


def from_os(error: OSError, doing: str, path: str) -> PenstockError:
    """Turn an OSError into its typed kind, with what was being done and where."""
    code = error.errno or 0
    text = f"{doing} {path}: {os.strerror(code) if code else error}"
    where: Any = {"errno": code, "filename": path}
    if code in _DISK_FULL:
        return DiskFull(f"{text}; free some space and try again; nothing was lost", **where)
    if code in _DENIED:
        return Permission(f"{text}; check its owner and mode", **where)
    if code == _errno.ENOENT:
        return NoSuchLog(text, **where)
    if code == _errno.EEXIST:
        return AlreadyExists(text, **where)
    if code in _NO_DESCRIPTORS:
        return Io(f"{text}; close unused files or raise the limit (ulimit -n)", **where)
    return Io(text, **where)


def gone_error(path: str) -> Gone:
    """The error for a handle whose log is gone."""
    return Gone(
        f"{path}: the log was deleted, or replaced by another, while it was open; nothing was "
        "written. Open the path again to use what is there now",
        filename=path,
    )


def _tell_system(error: OSError, code: int, filename: str | None) -> None:
    """Set the attributes of every OSError; one made from a message alone lacks them."""
    error.errno = code
    error.strerror = os.strerror(code)
    error.filename = filename
