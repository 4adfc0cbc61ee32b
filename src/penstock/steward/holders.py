"""Who still needs old events: the consumers of a log, and its groups. The only place that asks."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from penstock.handle.handle import Handle
    from penstock.log import Log

_GROUPS = "penstock.groups.holding"


@dataclass(frozen=True, slots=True)
class Holder:
    """A consumer or a group, and the first event that it still needs.

    ``seen_ns`` is when its owner was last seen; 0 if that is not known. ``problem`` is why its
    place cannot be read: then it needs everything.
    """

    name: str
    seq: int
    live: bool
    seen_ns: int
    problem: str | None = None

    def __str__(self) -> str:
        return f"{self.name!r} ({'live' if self.live else 'not live'})"


def holders_of(handle: Handle) -> list[Holder]:
    """Everybody who has a place in the log, whoever owns it."""
    log = cast("Log[Any]", handle)
    found = [
        Holder(
            one.name,
            0 if one.problem is not None else one.committed,
            one.live,
            0 if one.problem is not None else int(one.last_seen.timestamp() * 1e9),
            one.problem,
        )
        for one in log.consumers()
    ]
    if log.groups().names():
        needed = importlib.import_module(_GROUPS).needed(log)
        found += [Holder(one.name, one.seq, one.live, one.seen_ns, one.problem) for one in needed]
    return found
