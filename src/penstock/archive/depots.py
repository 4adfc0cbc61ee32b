"""Depots: where archived segments lie. A directory, or a place in an object store.

A depot never replaces or deletes what is there: a name is made once, with all its bytes, or not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from time import sleep
from typing import Any, Protocol, TypeVar

from penstock import _core
from penstock.archive.naming import Stored, is_temporary, of_log
from penstock.errors import (
    AlreadyExists,
    Io,
    NotFound,
    PenstockError,
    Permission,
    Usage,
)
from penstock.system import files
from penstock.system.directory import Directory, Name
from penstock.system.needs import needed

T = TypeVar("T")

TRIES = 5
TIMEOUT_SECONDS = 60  # of one request
_FIRST_PAUSE = 0.1  # seconds; then twice as long each time


class Depot(Protocol):
    """Where archived segments lie."""

    where: str  # for messages

    def entries(self, uuid: bytes | None = None) -> list[Stored]:
        """The archived segments that are there, of one log or of all."""

    def read(self, name: str, start: int, nbytes: int) -> bytes:
        """Bytes of an archived segment, fewer at its end; `NotFound` if it is not there."""

    def put_new(self, name: str, parts: Iterable[bytes]) -> bool:
        """Store an archived segment for good, or nothing; False if the name is there already."""

    def sweep(self, uuid: bytes) -> None:
        """Delete what uploads of a log's segments left that did not end."""


def path_in(depot: Depot, name: str) -> str:
    """The path or URL of an archived segment, for messages."""
    return f"{depot.where.rstrip('/')}/{name}"


class LocalDepot:
    """A directory."""

    def __init__(self, path: str | Name, mode: int = 0o700, file_mode: int = 0o600) -> None:
        """Name the directory; it is made when the first segment is stored, with these modes."""
        self.where = str(path)
        self._path = path
        self._modes = (mode, file_mode)
        self._held: Directory | None = None

    def _directory(self, *, make: bool = False) -> Directory | None:
        """The directory, held; None if there is none."""
        if self._held is None or self._held.is_gone():
            if make:
                if files.make_dir(self._path, self._modes[0]) and isinstance(self._path, Name):
                    files.sync_name_in(self._path.directory, self._path)
                elif not isinstance(self._path, Name):
                    files.sync_way(self._path)
            try:
                self._held = files.hold_dir(self._path)
            except NotFound:
                return None
        return self._held

    def entries(self, uuid: bytes | None = None) -> list[Stored]:
        """The archived segments that are there, of one log or of all."""
        directory = self._directory()
        if directory is None:
            return []
        found = []
        for name in files.list_dir(directory):
            entry = Stored.parse(name, 0)
            if entry is None or (uuid is not None and entry.uuid != uuid):
                continue
            with suppress(NotFound):
                found.append(entry._replace(nbytes=files.status(directory.file(name)).st_size))
        return sorted(found)

    def read(self, name: str, start: int, nbytes: int) -> bytes:
        """Bytes of an archived segment, fewer at its end."""
        directory = self._directory()
        if directory is None:
            raise NotFound(f"{path_in(self, name)}: there is no such archived segment")
        path = directory.file(name)
        fd = files.open_file(path, write=False)
        try:
            return files.read_at(fd, nbytes, start, path)
        finally:
            files.close(fd)

    def put_new(self, name: str, parts: Iterable[bytes]) -> bool:
        """Write it under a temporary name, sync it, and name it; the directory is synced too."""
        directory = self._directory(make=True)
        assert directory is not None
        target = directory.file(name)
        if files.exists(target):
            self._sync(directory)  # another process may have died before it did
            return False
        partial = directory.file(f"{name}.{os.urandom(8).hex()}.tmp")
        fd = files.create_file(partial, self._modes[1])
        try:
            try:
                at = 0
                for part in parts:
                    files.write_at(fd, part, at, partial)
                    at += len(part)
                _core.fail_point("archive.filled")
                files.sync_data(fd, partial)
            finally:
                files.close(fd)
            _core.fail_point("archive.synced")
            made = True
            try:
                files.rename(partial, target, replace=False)
            except AlreadyExists:
                made = False
        except BaseException:
            files.unlink(partial)
            raise
        if not made:
            files.unlink(partial)
        _core.fail_point("archive.named")
        self._sync(directory)
        return made

    def _sync(self, directory: Directory) -> None:
        fd = files.open_dir(directory)
        try:
            files.sync_dir(fd, directory.path)
        finally:
            files.close(fd)

    def sweep(self, uuid: bytes) -> None:
        """Delete what uploads of a log's segments left that did not end."""
        directory = self._directory()
        if directory is None:
            return
        for name in files.list_dir(directory):
            if is_temporary(name) and of_log(name, uuid):
                files.unlink(directory.file(name))


_memories: dict[str, Any] = {}  # stores of this process, by URL
_runtime: list[int] = []  # in which process obstore has its threads: a call in a child never ends


def _runtime_is_ours() -> bool:
    """Whether obstore can be used in this process; from now on, it is used."""
    if not _runtime:
        _runtime.append(_core.fork_generation())
    return _runtime[0] == _core.fork_generation()


class ObjectDepot:
    """A place in an object store, by its URL. Credentials come from the environment."""

    def __init__(self, url: str) -> None:
        self.where = url
        self._obstore = needed("obstore", "'penstock[archive]'")
        stores = needed("obstore.store", "'penstock[archive]'")
        try:
            if url.startswith("memory:"):
                self._store = _memories.setdefault(url, stores.MemoryStore())
            else:
                self._store = stores.from_url(url, **_options())
        except self._obstore.exceptions.BaseError as error:
            raise Usage(f"{url}: cannot be used as an archive: {first_line(error)}") from None
        except (ValueError, TypeError) as error:
            raise Usage(f"{url}: cannot be used as an archive: {error}") from None

    def _run(self, what: str, name: str, call: Callable[[], T]) -> T:
        """One call, again if it fails for a reason that may pass."""
        if not _runtime_is_ours():
            raise Usage(
                f"{self.where}: this process was forked from one that had used an object store, "
                "whose threads a child does not have; spawn the process instead of forking it"
            )
        exceptions = self._obstore.exceptions
        path = path_in(self, name) if name else self.where
        pause = _FIRST_PAUSE
        for last in [False] * (TRIES - 1) + [True]:
            try:
                return call()
            except (exceptions.NotFoundError, FileNotFoundError):
                raise NotFound(f"{what} {path}: it is not there") from None
            except exceptions.AlreadyExistsError:
                raise AlreadyExists(f"{what} {path}: it is there already") from None
            except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
                raise Permission(
                    f"{what} {path}: {first_line(error)}; check the credentials in the environment"
                ) from None
            except (
                exceptions.NotSupportedError,
                exceptions.InvalidPathError,
                exceptions.UnknownConfigurationKeyError,
            ) as error:
                raise Usage(f"{what} {path}: {first_line(error)}") from None
            except (exceptions.BaseError, OSError) as error:
                if last:
                    raise Io(
                        f"{what} {path}: {first_line(error)}; tried {TRIES} times; nothing was lost"
                    ) from None
            sleep(pause)
            pause *= 2
        raise AssertionError

    def entries(self, uuid: bytes | None = None) -> list[Stored]:
        """The archived segments that are there, of one log or of all."""
        prefix = None if uuid is None else uuid.hex()
        found = []
        for one in self._run("listing", "", self._listed):
            entry = Stored.parse(one["path"], one["size"])
            if entry is not None and (prefix is None or entry.uuid == uuid):
                found.append(entry)
        return sorted(found)

    def _listed(self) -> list[Any]:
        found: list[Any] = self._obstore.list_with_delimiter(self._store)["objects"]
        return found

    def read(self, name: str, start: int, nbytes: int) -> bytes:
        """Bytes of an archived segment, fewer at its end."""

        def get() -> bytes:
            return bytes(self._obstore.get_range(self._store, name, start=start, length=nbytes))

        return self._run("reading", name, get) if nbytes else b""

    def put_new(self, name: str, parts: Iterable[bytes]) -> bool:
        """Upload it, unless the name is there: the store makes objects as a whole.

        If an answer was lost, the second try finds what the first one stored; so the caller
        compares in any case.
        """
        data = b"".join(parts)
        try:
            self._run("uploading", name, lambda: self._put(name, data))
        except AlreadyExists:
            return False
        return True

    def _put(self, name: str, data: bytes) -> None:
        self._obstore.put(self._store, name, data, mode="create", use_multipart=False)

    def sweep(self, uuid: bytes) -> None:
        """Nothing to do: an upload that does not end leaves no object."""


def _options() -> dict[str, Any]:
    """Requests are tried again by `ObjectDepot`, not below it, where nobody learns of it."""
    plain = any(
        os.environ.get(f"{maker}_ALLOW_HTTP", "").lower() in ("1", "true", "yes")
        for maker in ("AWS", "AZURE", "GOOGLE")
    )
    return {
        "retry_config": {"max_retries": 0},
        "client_options": {"timeout": f"{TIMEOUT_SECONDS}s", "allow_http": plain},
    }


def first_line(error: BaseException) -> str:
    """What an error says, without the trace that some add."""
    return str(error).strip().split("\n", 1)[0] or type(error).__name__


def is_lasting(error: PenstockError) -> bool:
    """Whether an error will come again if nothing changes."""
    return isinstance(error, Usage | Permission)
