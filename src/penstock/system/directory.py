"""Directories that are held by a descriptor, and the names of files in them.

A log belongs to the directory that was opened, not to its path: neither chdir(2) nor a rename
redirects a call on one of its files. The calls themselves are in `files`; nothing is opened here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Self

from penstock.errors import Closed


class Anchor:
    """A descriptor of a directory, closed when its last user is gone.

    It is never locked, so a child of a fork may keep it. In a child that closed every descriptor,
    the number may belong to another file, so it is closed only if it is still the directory.
    """

    __slots__ = ("_identity", "fd")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._identity = _identity(os.fstat(fd))

    def status(self) -> os.stat_result | None:
        """The directory's stat result; None if the descriptor is another file by now."""
        try:
            found = os.fstat(self.fd)
        except OSError:
            return None
        return found if _identity(found) == self._identity else None

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if getattr(self, "_identity", None) is not None and self.status() is not None:
            close(self.fd)


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


class Directory:
    """A directory that is held by a descriptor. Its path is only for messages."""

    __slots__ = ("_anchor", "path")

    def __init__(self, fd: int, path: str) -> None:
        self.path = path
        self._anchor: Anchor | None = Anchor(fd)

    def __str__(self) -> str:
        return self.path

    def file(self, name: str) -> Name:
        """The path of the file ``name`` in this directory."""
        return Name(self, name)

    def anchor(self) -> Anchor:
        """An object to keep while its descriptor is used."""
        anchor = self._anchor
        if anchor is None:
            raise Closed(f"{self.path}: the log is closed; open it again")
        return anchor

    def is_gone(self) -> bool:
        """Whether it was deleted, or its descriptor closed by other code."""
        found = self.anchor().status()
        return found is None or found.st_nlink == 0

    def close(self) -> None:
        """Close the directory, at once or when a call that uses it is done."""
        self._anchor = None


class Name(str):
    """The path of a file in a held directory, as text for messages; calls use the descriptor."""

    __slots__ = ("base", "directory")

    directory: Directory
    base: str

    def __new__(cls, directory: Directory, base: str) -> Self:
        self = super().__new__(cls, os.path.join(directory.path, base))
        self.directory = directory
        self.base = base
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return str, (str(self),)


class Held(str):
    """The path of a file that is held by a descriptor; calls use that, not the name."""

    __slots__ = ("_anchor",)

    _anchor: Anchor | None

    def __new__(cls, fd: int | None, path: str) -> Self:
        """Take over ``fd``; None: the file was closed."""
        self = super().__new__(cls, path)
        self._anchor = None if fd is None else Anchor(fd)
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return str, (str(self),)

    def anchor(self) -> Anchor:
        """An object to keep while its descriptor is used."""
        if self._anchor is None or self._anchor.status() is None:
            raise Closed(f"{self}: the log is closed; open it again")
        return self._anchor


class Anywhere:
    """No directory: the path alone says where a file is."""

    fd = None


_anywhere = Anywhere()


def locate(path: str | Directory) -> tuple[str, Anchor | Anywhere]:
    """The path for a system call, and the object whose descriptor it is relative to."""
    if isinstance(path, Name):
        return path.base, path.directory.anchor()
    if isinstance(path, Directory):
        return ".", path.anchor()
    return path, _anywhere
