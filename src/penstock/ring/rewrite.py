"""A ring's events in a new file: how a ring gets another size, and how it is copied.

The copy has one producers frame, if the ring knows of any, and behind it the events, from the start
of its first lap on. It ends in a checkpoint that says so; when that is on the device, with all it
speaks of, the file gets its name.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from penstock import _core, files
from penstock import layout as L
from penstock._core import LogCore, RingMap
from penstock.producers import Table
from penstock.ring.file import Header, Slot, make_file, map_ring, write_slot


@dataclass(frozen=True, slots=True)
class Source:
    """What to copy: events between two positions of an open ring, and what it says of itself."""

    log: LogCore
    tail: int
    head: int
    next_seq: int
    last_append_ns: int
    producers: Table | None  # None: there are none


def write_copy(source: Source, path: str, header: Header, mode: int) -> int | None:
    """Make the file of a ring with the newest events that fit it; the seq behind the last one.

    It is on the device when this returns, but not its name. None, and no file, if events were
    overwritten before they were copied.
    """
    files.close(make_file(path, header, mode))
    try:
        target, _ = map_ring(path, write=True)
        written = _fill(source, target, header)
        if written is None:
            files.unlink(path)
            return None
        header, slot = written
        files.write_at(target.fd, header.pack(), 0, path)
        write_slot(target.fd, slot, path)
        files.sync_data(target.fd, path)
        _core.fail_point("ring.copied")
    except BaseException:
        files.unlink(path)
        raise
    return slot.last_seq + 1


def _fill(source: Source, target: RingMap, header: Header) -> tuple[Header, Slot] | None:
    """Copy the events; the header and the checkpoint that go with them."""
    start = target.ring_bytes
    events_at, before, table = start, 0, b""
    if source.producers is not None:
        table = source.producers.pack(start // L.PRODUCERS_SHARE)
        events_at += _core.frame_bytes(len(table))
        before = start
    measured = source.log._copy_events(None, source.tail, source.head, 0, 0, 0, False)
    if measured is None:
        return None
    _, nbytes, lost = measured
    drop = max(0, nbytes - (2 * start - events_at))
    copied = source.log._copy_events(
        target, source.tail, source.head, events_at, before, drop, lost
    )
    if copied is None:
        return None
    walk = copied[0]
    some = walk["count"] > 0
    first = walk["first_seq"] if some else source.next_seq
    ns = walk["first_append_ns"] if some else source.last_append_ns
    if source.producers is not None:
        target.write_frame(target.data_offset, L.KIND_PRODUCERS, table, first, ns, 0)
    header = replace(header, base_seq=first, generation=header.generation + lost)
    slot = Slot(
        generation=1,
        head=walk["offset"],
        last_frame=walk["last_frame"],
        last_seq=walk["next_seq"] - 1 if some else source.next_seq - 1,
        last_append_ns=walk["last_append_ns"] if some else source.last_append_ns,
        settings_position=0,
        tail=start,
        event_max_ns=walk["event_max_ns"],
        producer_position=before,
        monotone=walk["monotone"],
        clean=True,
    )
    return header, slot


def name_copy(temporary: str, path: str, *, replace: bool) -> None:
    """Give a finished copy its name, on the device; never over another file unless told to."""
    if replace:
        files.rename(temporary, path)
    else:
        try:
            files.link(temporary, path)
        finally:
            files.unlink(temporary)
    _core.fail_point("ring.replaced")
    files.sync_name(os.path.dirname(path) or ".")
