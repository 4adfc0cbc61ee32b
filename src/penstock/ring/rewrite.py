"""A ring's events in a new file: how a ring gets another size, and how it is copied.

The copy has the events, from the start of its first lap on, and behind them one producers frame, if
the ring knows of any: there it is not in the way of the next one. It ends in a checkpoint that says
so; when that is on the device, with all it speaks of, the file gets its name.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from penstock import _core, headers
from penstock import layout as L
from penstock._core import LogCore, RingMap
from penstock.errors import Full
from penstock.handle.producers import Table
from penstock.ring.file import Header, Slot, make_file, map_ring, write_slot
from penstock.settings import Settings
from penstock.system import files

logger = logging.getLogger("penstock")


@dataclass(frozen=True, slots=True)
class Source:
    """What to copy: events between two positions of an open ring, and what it says of itself."""

    log: LogCore
    tail: int
    head: int
    next_seq: int
    last_append_ns: int
    producers: Table | None  # None: there are none
    keep_all: bool = False  # refuse a copy that has not room for all events


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
        headers.put(target.fd, header.pack(), path)
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
    room, table = start, b""
    if Settings.from_json(header.settings, target.path).when_full != "drop":
        room -= header.reserve
    if source.producers is not None:
        table = source.producers.pack(start // L.PRODUCERS_SHARE)
        room -= _core.frame_bytes(len(table))
    measured = source.log._copy_events(None, source.tail, source.head, 0, 0, 0, False)
    if measured is None:
        return None
    _, nbytes, lost = measured
    drop = max(0, nbytes - room)
    if drop and source.keep_all:
        raise Full(f"{target.path}: a copy of this size has no room for all events of the ring")
    copied = source.log._copy_events(target, source.tail, source.head, start, 0, drop, lost)
    if copied is None:
        return None
    walk = copied[0]
    if lost:
        logger.warning("%s: damaged frames of the ring are not in this copy", target.path)
    some = walk.count > 0
    next_seq = walk.next_seq if some else source.next_seq
    ns = walk.last_append_ns if some else source.last_append_ns
    head, last, producers = walk.offset, walk.last_frame, 0
    if source.producers is not None:
        at = target.data_offset - start
        producers = head
        head = target.write_frame(
            at + head, L.KIND_PRODUCERS, table, next_seq, ns, at + last if last else 0
        )
        head, last = head - at, producers
    first = walk.first_seq if some else source.next_seq
    header = replace(header, base_seq=first, generation=header.generation + lost)
    slot = Slot(
        generation=1,
        head=head,
        last_frame=last,
        last_seq=next_seq - 1,
        last_append_ns=ns,
        settings_position=0,
        tail=start,
        event_max_ns=walk.event_max_ns,
        producer_position=producers,
        monotone=walk.monotone,
        clean=True,
    )
    return header, slot


def name_copy(temporary: str, path: str) -> None:
    """Give a finished copy its name, on disk; never over another file."""
    try:
        files.link(temporary, path)
    finally:
        files.unlink(temporary)
    files.sync_parent(path)
