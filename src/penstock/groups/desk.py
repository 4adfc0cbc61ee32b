"""What the workers of a group in one process share: its decisions, and what was read ahead."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from penstock import _core
from penstock._core import Guard
from penstock.errors import Closed, NotFound, PenstockError
from penstock.groups import decisions as d
from penstock.groups import life
from penstock.groups.folder import DEAD, make_below
from penstock.groups.ledger import Ledger
from penstock.groups.lookahead import Lookahead
from penstock.groups.state import DIED, GroupState
from penstock.settings import Options, Settings
from penstock.system import files
from penstock.system.directory import Directory
from penstock.system.messages import logger

if TYPE_CHECKING:
    from penstock.log import Log

LOOK_NS = 10_000_000  # between two looks for workers that died, and leases that ended
BLOCKED_MAX = 100_000  # events that wait for others of their keys; then no more are read ahead
SKIPPED_MAX = 1000  # events that are not for the group and that nobody stored as looked at, …
SKIP_NS = 1_000_000_000  # … or for as long as that, if nothing else is to be stored
STATE_SEGMENT_BYTES = 4 << 20


class Desk:
    """A group in this process. Whoever uses ``ledger`` or ``ahead`` is inside ``guard``."""

    def __init__(self, log: Log[Any], name: str, folder: Directory, sidecar: Log[Any]) -> None:
        self.log = log
        self.name = name
        self.folder = folder
        self.ledger = Ledger(sidecar)
        self.closed = False
        self.result_bytes = 0  # that this process stored since it last looked for old ones
        self.workers: WeakSet[Any] = WeakSet()  # of this process
        self._beside: dict[str, Log[Any]] = {}  # the other logs of the group that are open
        self._begin()

    def _begin(self) -> None:
        self._generation = _core.fork_generation()
        self._guard = Guard()
        self._opening = Guard()
        self._looked = self._skipped = 0
        self.ahead: Lookahead | None = None

    @property
    def guard(self) -> Guard:
        """The lock of the threads of this process; a child of a fork gets its own."""
        if self._generation != _core.fork_generation():
            self._begin()
            self.ledger = Ledger(self.ledger.log)
        if self.closed:
            raise self.closed_error()
        return self._guard

    def closed_error(self) -> Closed:
        """The error for a group that was closed here."""
        return Closed(
            f"{self.log.path}: the group {self.name!r} is closed; open it again with log.group()"
        )

    @property
    def path(self) -> str:
        """Where the group is, for messages."""
        return self.folder.path

    def state(self) -> GroupState:
        """The state now; inside ``guard``."""
        return self.ledger.catch_up()

    def join(self) -> tuple[life.Life, int]:
        """A new worker: its file, and its number."""
        settings = self.log.settings
        with self.guard:
            state = self.state()
            self.look_after(state, _core.now_ns(), every=True)
            life.sweep(self.folder, {member.file for member in state.members.values()})
        alive = life.Life(self.folder, settings.dir_mode, settings.file_mode)
        _core.fail_point("group.locked")
        try:
            with self.guard:
                self.state()
                joined = d.Joined(alive.name, socket.gethostname(), os.getpid(), _core.now_ns())
                self.ledger.record(joined)
                members = self.ledger.state.members.values()
                number = next(m.number for m in members if m.file == alive.name)
        except BaseException:
            alive.remove()
            raise
        return alive, number

    def claim(self, worker: int, want: int, state: GroupState, *, idle: bool) -> bool:
        """Claim up to so many events; False if there is nothing to do for now. Inside ``guard``."""
        now = _core.now_ns()
        if now - self._looked > LOOK_NS or now < self._looked:
            self.look_after(state, now)
            state = self.ledger.state
        room = want if state.is_open_wide else min(want, state.room)
        base = end = state.cursor
        runs: list[d.Run] = []
        known = state.choose(room, now) if room and (state.ready or state.delayed) else []
        try:
            if room > len(known) and not (state.queues and self._is_blocked(state)):
                if self.ahead is None:
                    self.ahead = Lookahead(self.log, state.terms)
                end, runs = self.ahead.vouch(base, room - len(known), now)
            if not known and not runs and not self._must_skip(end - base, now, idle=idle):
                return False
            before = state.at
            self.ledger.record(d.Claimed(worker, now, room, known, base, end, runs))
        finally:
            if known:
                state.offer_again(known)
        state = self.ledger.state
        return state.cursor != base or state.at != before + 1 or bool(known)

    def _must_skip(self, count: int, now: int, *, idle: bool) -> bool:
        """Whether it is time to store that so many events are not for the group."""
        due = count > SKIPPED_MAX
        due |= idle and count > 0 and not 0 <= now - self._skipped < SKIP_NS
        if due:
            self._skipped = now
        return due

    @staticmethod
    def _is_blocked(state: GroupState) -> bool:
        return bool(state.terms.order) and state.waiting - len(state.delayed) >= BLOCKED_MAX

    def look_after(self, state: GroupState, now: int, *, every: bool = False) -> None:
        """Return the claims of workers that died, and those whose leases have ended."""
        self._looked = now
        for member in list(state.members.values()):
            if not (member.claims or every):
                continue
            handed = life.handed_by_dead(self.folder, member.file)
            if handed is not None:
                _core.fail_point("group.found-dead")
                self.ledger.record(d.Ended(member.number, now, handed, DIED))
                life.delete_file(self.folder, member.file)
                state = self.ledger.state
        lapse = state.next_lapse()
        if lapse is not None and lapse[0] <= now:
            gone = sorted(lease[1:] for lease in state.leases if lease[0] <= now)
            self.ledger.record(d.Lapsed(now, gone))

    def watching(self, worker: int) -> life.Others:
        """The other workers that have claims, to be watched for deaths during a sleep."""
        with self.guard:
            members = self.ledger.state.members.values()
            files = [m.file for m in members if m.claims and m.number != worker]
        return life.Others(self.folder, files)

    def fetch(self, seq: int, letter: int) -> Any:
        """The event of a claim; None if it is gone."""
        try:
            return self.log[seq]
        except NotFound:
            pass
        except PenstockError as error:
            if not getattr(error, "seq", None):
                raise
            logger.warning(
                "%s: the group %r passes over seq %s: %s", self.path, self.name, seq, error
            )
        if letter:
            try:
                return self.beside(DEAD)[letter]
            except NotFound:
                pass
        return None

    def beside(self, part: str) -> Log[Any]:
        """The group's log of dead letters or of results, made if need be."""
        if self.closed:
            raise self.closed_error()
        found = self._beside.get(part)
        if found is None:
            with self._opening:
                found = self._beside.get(part)
                if found is None:
                    found = self._beside[part] = self._open(part)
        return found

    def has(self, part: str) -> bool:
        """Whether that log was made."""
        return part in self._beside or part in files.list_dir(self.folder)

    def _open(self, part: str) -> Log[Any]:
        settings = self.log.settings
        big = max(settings.segment_size, Settings().segment_size) if part == DEAD else 4 << 20
        new = Settings(
            segment_size=big,
            file_mode=settings.file_mode,
            codec=settings.codec if part == DEAD else "bytes",
        )
        directory = make_below(self.folder, part, settings.dir_mode)
        schema = self.log._options.schema if part == DEAD else None
        return open_inner(self.log, directory, new, schema=schema)

    def close(self) -> None:
        """Close the group's logs."""
        self.closed = True
        if self.ahead is not None:
            self.ahead.close()
        beside, self._beside = self._beside, {}
        for log in beside.values():
            log.close()
        self.ledger.close()


def open_inner(
    log: Log[Any],
    directory: Directory,
    new: Settings | None,
    *,
    write: bool = True,
    schema: Any = None,
) -> Log[Any]:
    """Open a log in the folder of a group of ``log``, which may be a ring."""
    if new is not None:  # the log may have been renamed since it was opened
        directory.path = os.readlink(f"/proc/self/fd/{directory.anchor().fd}")
    options = Options(
        writable=write,
        timeout=log._timeout,
        any_file_system=log._options.any_file_system,
        schema=schema,
    )
    kind = next(kind for kind in type(log).__mro__ if kind.__module__ == "penstock.log")
    opened: Log[Any] = kind(log._storage.segments_in(directory), options, new)
    return opened
