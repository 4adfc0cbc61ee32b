"""``log.consumers()``: what is known of each consumer of a log, with any owner."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from penstock import _core
from penstock._core import LogCore
from penstock.consumers import folder as folders
from penstock.consumers.file import Filter, PlaceSlot
from penstock.consumers.reading import Lag, measure
from penstock.errors import Corrupt, NotFound, PenstockError, Permission, Usage
from penstock.reader import topics_bytes
from penstock.system import files
from penstock.system.directory import Directory

if TYPE_CHECKING:
    from penstock.log import Log

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True)
class ConsumerInfo:
    """What is known of one consumer.

    ``live`` is the kernel's word. ``position`` is how far its owner had been handed events when it
    was last seen, ``committed`` where it goes on. ``clamped`` is the position that a loss of
    power took, until its next commit. ``problem`` is why its file cannot be read; then everything
    else is empty.
    """

    name: str
    live: bool
    position: int = 0
    committed: int = 0
    clamped: int = 0
    created: dt.datetime = _EPOCH
    last_seen: dt.datetime = _EPOCH
    topic: str | tuple[str, ...] | None = None
    key: bytes | None = None
    tags: tuple[str, ...] | None = None
    problem: str | None = None
    _log: Log[Any] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def lag(self) -> Lag:
        """What it has yet to commit, looked for when asked; see `Consumer.lag`."""
        if self._log is None or self.problem is not None:
            return Lag(0, 0, 0.0)
        topic = None if self.topic is None else topics_bytes(self.topic)
        return measure(self._log, self.committed, Filter(topic, self.key, self.tags))


class Consumers:
    """The consumers of a log, by name; each look is a fresh one.

    >>> log = penstock.open(path)
    >>> log.append(b"a")
    1
    >>> log.consumer("billing").close()
    >>> [(found.name, found.live, found.lag.events) for found in log.consumers()]
    [('billing', False, 1)]
    >>> log.consumers().delete("billing")
    >>> len(log.consumers())
    0
    """

    def __new__(cls, log: object = None, *args: Any) -> Self:
        if not isinstance(log, LogCore):
            raise Usage(
                "Consumers come from log.consumers(); open the log with penstock.open(path)"
            )
        return super().__new__(cls)

    def __init__(self, log: Log[Any]) -> None:
        log._ensure_open()
        self._log = log

    def __repr__(self) -> str:
        return f"<penstock.Consumers of {self._log.path!r}: {', '.join(self.names()) or 'none'}>"

    def names(self) -> list[str]:
        """Their names, in order."""
        folder = self._folder()
        return [] if folder is None else folders.names_in(folder)

    def __len__(self) -> int:
        return len(self.names())

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def __iter__(self) -> Iterator[ConsumerInfo]:
        folder = self._folder()
        for name in [] if folder is None else folders.names_in(folder):
            with suppress(NotFound):  # deleted just now
                yield self._look(folder, name)  # type: ignore[arg-type]

    def __getitem__(self, name: str) -> ConsumerInfo:
        folder = self._folder()
        if folder is None or folders.check_name(name) not in folders.names_in(folder):
            raise self._not_found(name)
        return self._look(folder, name)

    def delete(self, name: str) -> None:
        """Delete a consumer and its place; `Busy` while it is live. No event is touched."""
        name = folders.check_name(name)
        folder = self._folder()
        if folder is None or name not in folders.names_in(folder):
            raise self._not_found(name)
        path = folder.file(name)
        try:
            fd = folders.try_own(path)
        except Permission as error:
            raise folders.not_writable(path, error) from error
        except NotFound:
            raise self._not_found(name) from None
        if fd is None:
            raise folders.live_error(path)
        try:
            self._log._storage.check_home(self._log)
            files.unlink(path)
            _core.fail_point("consumer.deleted")
            files.sync_name_in(folder, path)
        finally:
            _core.close_fd(fd)

    def _folder(self) -> Directory | None:
        self._log._storage.check_home(self._log)
        return folders.open_folder(self._log._storage.home)

    def _not_found(self, name: str) -> NotFound:
        there = ", ".join(map(repr, self.names())) or "none"
        return NotFound(f"{self._log.path}: has no consumer {name!r}; it has {there}")

    def _look(self, folder: Directory, name: str) -> ConsumerInfo:
        path = folder.file(name)
        live = False
        try:
            fd = folders.open_consumer_file(path, write=False)
            try:
                live = folders.is_live(fd, path)
                place = folders.read_place(fd, path, alone=False)
            finally:
                files.close(fd)
            if place.slot.uuid != self._log._uuid():
                raise Corrupt(f"{path}: is of another log, {place.slot.uuid.hex()}", path=path)
        except NotFound:
            raise
        except PenstockError as error:
            return ConsumerInfo(name, live, problem=str(error), _log=self._log)
        return _known(
            name, live, place.slot, place.profile.created_ns, place.profile.wants, self._log
        )


def _known(
    name: str, live: bool, slot: PlaceSlot, created_ns: int, wants: Filter, log: Log[Any]
) -> ConsumerInfo:
    return ConsumerInfo(
        name,
        live,
        slot.position,
        slot.next,
        slot.clamped,
        _moment(created_ns),
        _moment(slot.heartbeat_ns),
        wants.topics,
        wants.key,
        wants.tags,
        None,
        log,
    )


def _moment(ns: int) -> dt.datetime:
    return _EPOCH + dt.timedelta(microseconds=ns // 1000)
