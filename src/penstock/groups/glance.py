"""A group that is only looked at: of a log that is open for reading, and nothing is ever written.

It has what `inspecting` and `letters` need of a group's desk. What only a worker may do, such as
moving events that were given up to the dead letters, is not done.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from penstock.errors import NotFound, PenstockError
from penstock.event import Event
from penstock.groups import inspecting, letters
from penstock.groups.desk import open_inner
from penstock.groups.folder import DEAD, check_name
from penstock.groups.inspecting import GroupStats, Pending
from penstock.groups.ledger import Ledger
from penstock.groups.listing import reading
from penstock.groups.state import GroupState
from penstock.system import files
from penstock.system.directory import Directory

if TYPE_CHECKING:
    from penstock.log import Log


class Glance:
    """What is known of a group, from its files."""

    def __init__(self, log: Log[Any], folder: Directory, ledger: Ledger, stack: ExitStack) -> None:
        self.log = log
        self.folder = folder
        self.ledger = ledger
        self._stack = stack
        self._dead: Log[Any] | None = None

    @property
    def guard(self) -> nullcontext[None]:
        """One thread uses it, so nothing has to be held."""
        return nullcontext()

    def state(self) -> GroupState:
        """The state when it was opened, so that all that is said fits together."""
        return self.ledger.state

    def stats(self) -> GroupStats:
        """`Group.stats`."""
        return inspecting.stats(self)

    def pending(self) -> list[Pending]:
        """`Group.pending`."""
        return inspecting.pending(self)

    def letters(self) -> Iterator[Event[Any]]:
        """The dead letters that are not tried again; those that are yet to be moved are not there.

        See `dying`.
        """
        if DEAD in files.list_dir(self.folder):
            yield from letters.still_dead(self)

    @property
    def dying(self) -> int:
        """How many events were given up, and are yet to be moved to the dead letters."""
        return len(self.state().dying)

    def beside(self, part: str) -> Log[Any]:
        """The group's log of dead letters."""
        if self._dead is None:
            inside = files.hold_dir(self.folder.file(part))
            schema = self.log._options.schema
            self._dead = open_inner(self.log, inside, None, write=False, schema=schema)
            self._stack.callback(self._dead.close)
        return self._dead

    def fetch(self, seq: int, letter: int) -> Any:
        """An event, or the letter that has its copy; None if it is gone or damaged."""
        for log, at in ((self.log, seq), (None, letter)):
            if not at:
                continue
            try:
                return (self.beside(DEAD) if log is None else log)[at]
            except NotFound:
                continue
            except PenstockError as error:
                if not getattr(error, "seq", None):
                    raise
        return None


@contextmanager
def glance(log: Log[Any], name: str) -> Iterator[Glance]:
    """Look at a group of a log, in whatever mode that is open; `NotFound` if there is none."""
    name = check_name(name)
    with ExitStack() as stack:
        folder, ledger = stack.enter_context(reading(log, name))
        yield Glance(log, folder, ledger, stack)
