"""Read an archived segment from its depot: its end first, then blocks."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.archive import seekable
from penstock.archive.depots import Depot, path_in
from penstock.archive.naming import Stored
from penstock.archive.seekable import TAIL_GUESS, Archived
from penstock.errors import Corrupt

READ_BYTES = 1 << 20  # of an archived file, at a time


def opened(depot: Depot, entry: Stored) -> Archived:
    """What the end of an archived segment says; it must be the one of that name."""
    path = path_in(depot, entry.name)
    guess = min(entry.nbytes, TAIL_GUESS)
    end = depot.read(entry.name, entry.nbytes - guess, guess)
    needed = seekable.tail_bytes(end, entry.nbytes, path)
    if needed > len(end):
        end = depot.read(entry.name, entry.nbytes - needed, needed)
    found = seekable.parse(end, entry.nbytes, path)
    if (found.uuid, found.base_seq, found.generation) != entry[:3]:
        raise Corrupt(f"{path}: has another segment than its name says", path=path, offset=0)
    return found


def blocks_of(
    depot: Depot, name: str, archived: Archived, first: int = 0, after: int | None = None
) -> Iterator[tuple[int, memoryview]]:
    """Blocks as they are stored, with their numbers; neighbours are read together."""
    stop = archived.blocks if after is None else after
    while first < stop:
        upto = first + 1
        while upto < stop and archived.place(first, upto + 1)[1] <= READ_BYTES:
            upto += 1
        data = depot.read(name, *archived.place(first, upto))
        yield from zip(range(first, upto), archived.split(data, first, upto), strict=True)
        first = upto
