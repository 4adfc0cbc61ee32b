"""``log.groups()``: what is known of each group of a log, read without opening it for work."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from penstock._core import LogCore
from penstock.consumers.reading import Lag
from penstock.errors import Corrupt, NotFound, PenstockError, Permission, Usage
from penstock.groups import folder as folders
from penstock.groups import life
from penstock.groups.decisions import GroupTerms
from penstock.groups.desk import open_inner
from penstock.groups.inspecting import fresh_lag
from penstock.groups.ledger import Ledger
from penstock.groups.state import GroupState
from penstock.system import files
from penstock.system.directory import Directory

if TYPE_CHECKING:
    from penstock.log import Log

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True)
class GroupInfo:
    """What is known of one group.

    ``live`` says that a worker is alive: the kernel's word. ``position`` is the first seq that no
    worker has looked at, ``unfinished`` how many events before it have no outcome yet, ``claimed``
    how many of them a worker has. ``needed`` is the lowest seq that may yet be handed out.
    ``problem`` is why its decisions cannot be read; then everything else is empty.
    """

    name: str
    live: bool = False
    position: int = 0
    needed: int = 0
    unfinished: int = 0
    claimed: int = 0
    dead: int = 0
    created: dt.datetime = _EPOCH
    last_seen: dt.datetime = _EPOCH
    stopped: bool = False
    problem: str | None = None
    _log: Log[Any] | None = field(default=None, repr=False, compare=False)
    _terms: GroupTerms = field(default=GroupTerms(), repr=False, compare=False)

    @cached_property
    def lag(self) -> Lag:
        """What no worker has looked at yet, looked for when asked; see `Consumer.lag`."""
        if self._log is None or self.problem is not None:
            return Lag(0, 0, 0.0)
        return fresh_lag(self._log, self.position, self._terms)


class Groups:
    """The groups of a log, by name; each look is a fresh one.

    >>> log = penstock.open(path)
    >>> log.append(b"a")
    1
    >>> log.group("mail").close()
    >>> [(found.name, found.live, found.lag.events) for found in log.groups()]
    [('mail', False, 1)]
    >>> log.groups().delete("mail")
    >>> len(log.groups())
    0
    """

    def __new__(cls, log: object = None, *args: Any) -> Self:
        if not isinstance(log, LogCore):
            raise Usage("Groups come from log.groups(); open the log with penstock.open(path)")
        return super().__new__(cls)

    def __init__(self, log: Log[Any]) -> None:
        log._ensure_open()
        self._log = log

    def __repr__(self) -> str:
        return f"<penstock.Groups of {self._log.path!r}: {', '.join(self.names()) or 'none'}>"

    def names(self) -> list[str]:
        """Their names, in order."""
        self._log._storage.check_home(self._log)
        return folders.group_names(self._log._storage.home)

    def __len__(self) -> int:
        return len(self.names())

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def __iter__(self) -> Iterator[GroupInfo]:
        for name in self.names():
            with suppress(NotFound):  # deleted just now
                yield look(self._log, name)

    def __getitem__(self, name: str) -> GroupInfo:
        if folders.check_name(name) not in self.names():
            raise self._not_found(name)
        return look(self._log, name)

    def delete(self, name: str) -> None:
        """Delete a group with its dead letters; `Busy` while any process has it open.

        No event of the log is touched.
        """
        name = folders.check_name(name)
        if name not in self.names():
            raise self._not_found(name)
        groups = folders.open_groups(self._log._storage.home)
        assert groups is not None
        try:
            folders.delete_group(groups, name)
        except Permission as error:
            raise Permission(
                f"{groups.path}/{name}: the group cannot be deleted ({error.strerror})",
                errno=error.errno,
                filename=groups.path,
            ) from error
        except NotFound:
            raise self._not_found(name) from None

    def _not_found(self, name: str) -> NotFound:
        there = ", ".join(map(repr, self.names())) or "none"
        return NotFound(f"{self._log.path}: has no group {name!r}; it has {there}")


@contextmanager
def reading(log: Log[Any], name: str) -> Iterator[tuple[Directory, Ledger]]:
    """The folder and the decisions of a group, with the state now; nothing is changed.

    `NotFound` if there is no such group, or if it is being made just now.
    """
    folder = folders.open_group(log._storage.home, name)
    if folder is None or folders.STATE not in files.list_dir(folder):
        raise NotFound(f"{log.path}: has no group {name!r}")
    inside = files.hold_dir(folder.file(folders.STATE))
    sidecar = open_inner(log, inside, None, write=False)
    try:
        ledger = Ledger(sidecar)
        state = ledger.catch_up()
        if not state.uuid:
            raise NotFound(f"{folder.path}: this group is being made just now")
        if state.log_uuid != log._uuid():
            raise Corrupt(
                f"{folder.path}: is of another log, {state.log_uuid.hex()}", path=folder.path
            )
        yield folder, ledger
    finally:
        sidecar.close()


@contextmanager
def read_state(log: Log[Any], name: str) -> Iterator[tuple[Directory, GroupState, int]]:
    """The folder and the state of a group, and when the last decision was made; see `reading`."""
    with reading(log, name) as (folder, ledger):
        last = next(ledger.log.read(reverse=True, limit=1, on_damage="skip"), None)
        yield folder, ledger.state, 0 if last is None else last.append_ns


def look(log: Log[Any], name: str) -> GroupInfo:
    """What is known of one group."""
    try:
        with read_state(log, name) as (folder, state, seen):
            live = any(life.is_alive(folder, m.file) for m in state.members.values())
            return GroupInfo(
                name,
                live,
                state.cursor,
                state.needed_seq(),
                len(state.open),
                state.claimed,
                max(0, state.counts.dead - len(state.raised)),
                _moment(state.made),
                _moment(seen),
                bool(state.stopped),
                None,
                log,
                state.terms,
            )
    except NotFound:
        raise
    except PenstockError as error:
        return GroupInfo(name, problem=str(error), _log=log)


def _moment(ns: int) -> dt.datetime:
    return _EPOCH + dt.timedelta(microseconds=ns // 1000)
