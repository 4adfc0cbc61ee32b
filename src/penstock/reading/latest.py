"""The newest event of a key, and of every key: ``log.latest``.

A deletion is the newest event of its key, too: the key has no current event then. Segments whose
key filter says that they cannot have a key are never read for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from penstock._core import Event, newest_by_key
from penstock.errors import WrongType
from penstock.system import needs

if TYPE_CHECKING:
    import pyarrow

    from penstock.event import Buffer
    from penstock.log import Log


def latest_of(log: Log[Any], key: Buffer) -> Event[Any] | None:
    """The newest event of one key; None if there is none, or if it deletes the key."""
    with log.read(reverse=True, key=key, on_gap="skip", limit=1) as reader:
        found = reader.take(1)
    return found[0] if found and found[0].value is not None else None


def latest_by_key(log: Log[Any], keys: Iterable[Buffer] | None) -> dict[bytes, Event[Any]]:
    """The newest event of each key, without those that it deletes."""
    if keys is None:
        with log.read(on_gap="skip") as reader:
            return newest_by_key(reader)
    if isinstance(keys, str | bytes | bytearray | memoryview):
        raise WrongType(
            f"keys must be a list of keys, got {type(keys).__name__}; for one: latest(key)"
        )
    try:
        wanted = iter(keys)
    except TypeError:
        raise WrongType(f"keys must be a list of keys, got {type(keys).__name__}") from None
    found: dict[bytes, Event[Any]] = {}
    for key in wanted:
        if key is None:
            raise WrongType("keys must be a list of keys, got one that is None")
        event = latest_of(log, key)
        if event is not None and event.key is not None:
            found[event.key] = event
    return found


def latest_table(log: Log[Any], keys: Iterable[Buffer] | None) -> pyarrow.Table:
    """The same as a table with the columns of a scan, in the order of seqs.

    Values are copied into columns batch by batch; only the seqs of the events are kept between.
    """
    pa, pc = needs.pyarrow(), needs.needed("pyarrow.compute", "'penstock[arrow]'")
    seqs = sorted(event.seq for event in latest_by_key(log, keys).values())
    if not seqs:
        scan = log.scan("end", "end")
        return scan.schema.empty_table()
    wanted = pa.array(seqs, pa.int64())
    scan = log.scan(seqs[0], seqs[-1] + 1, on_gap="skip")
    kept = [
        batch.filter(pc.is_in(batch.column("seq"), value_set=wanted)) for batch in scan.to_batches()
    ]
    return pa.Table.from_batches(kept, scan.schema)
