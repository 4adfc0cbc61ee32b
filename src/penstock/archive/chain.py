"""Which archived segments hold the events of a log: the listing, without what was replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.archive.depots import Depot
from penstock.archive.naming import Stored
from penstock.archive.reading import opened
from penstock.archive.seekable import Archived
from penstock.errors import NoSuchLog, Usage


def only_log(depot: Depot) -> list[Stored]:
    """The archived segments at a place where one log has its archive."""
    found = depot.entries()
    uuids = sorted({entry.uuid.hex() for entry in found})
    if not found:
        raise NoSuchLog(f"{depot.where}: there is no archived log here", filename=depot.where)
    if len(uuids) > 1:
        raise Usage(
            f"{depot.where}: has archives of several logs, {', '.join(uuids)}; move each to a "
            "place of its own"
        )
    return found


def current(entries: Iterable[Stored], look: Callable[[Stored], Archived]) -> list[Stored]:
    """The segments that count, in order.

    Of one base the highest generation does. One that lies inside the range of another one was
    merged into that: only a lower generation can be.
    """
    newest = {entry.base_seq: entry for entry in sorted(entries)}
    found: list[Stored] = []
    for _, entry in sorted(newest.items()):
        before = found[-1] if found else None
        lower = before is not None and entry.generation < before.generation
        if lower and before is not None and look(before).next_seq > entry.base_seq:
            continue
        found.append(entry)
    return found


def looking_in(depot: Depot) -> Callable[[Stored], Archived]:
    """What opens archived segments of a depot, each once."""
    known: dict[str, Archived] = {}

    def look(entry: Stored) -> Archived:
        if entry.name not in known:
            known[entry.name] = opened(depot, entry)
        return known[entry.name]

    return look
