"""What the groups of a log still need of it, for retention. It only reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import NotFound, PenstockError
from penstock.groups import folder as folders
from penstock.groups import life
from penstock.groups.listing import read_state

if TYPE_CHECKING:
    from penstock.log import Log


@dataclass(frozen=True, slots=True)
class Needed:
    """The lowest seq that a group may yet hand out, and when it last decided anything.

    ``problem`` is why its decisions cannot be read: then it may need everything.
    """

    name: str
    seq: int
    live: bool
    seen_ns: int
    problem: str | None = None


def needed(log: Log[Any]) -> list[Needed]:
    """What each group of a log still needs.

    Events that were sent back from the dead letters are not needed in the log, since their letters
    have copies.

    >>> log = penstock.open(path)
    >>> log.extend([b"a", b"b"])
    range(1, 3)
    >>> with log.group("mail").worker(timeout=0) as worker:
    ...     next(worker).ack()
    >>> [(found.name, found.seq) for found in needed(log)]
    [('mail', 2)]
    """
    found = []
    for name in folders.group_names(log._storage.home):
        try:
            with read_state(log, name) as (folder, state, seen):
                live = any(life.is_alive(folder, m.file) for m in state.members.values())
                found.append(Needed(name, state.needed_seq(), live, seen))
        except NotFound:  # deleted, or not made yet, just now
            continue
        except PenstockError as error:
            found.append(Needed(name, 0, False, 0, str(error)))
    return found
