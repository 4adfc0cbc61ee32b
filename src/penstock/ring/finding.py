"""Find events of a ring by time, and totals of its file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from penstock import layout as L
from penstock.errors import NotFound
from penstock.ring.holds import held_positions
from penstock.stats import Disk, Ring, Stock
from penstock.system import files

if TYPE_CHECKING:
    from penstock.handle.handle import Handle
    from penstock.ring.storage import RingStorage


def by_time(handle: Handle, storage: RingStorage, ns: int, low: int, high: int) -> int | None:
    """The first seq between the two of that time or later; None if halving cannot find it.

    Halving works if times never went back.
    """
    header = storage.known_header(handle)
    if not handle._monotone() or not header.index_capacity or header.generation:
        return None
    while low < high:
        middle = (low + high) // 2
        try:
            event = handle[middle]
        except NotFound:
            low = max(low, storage.finder.oldest_seq(handle))  # it was overwritten meanwhile
            if middle >= low:
                return None
            continue
        if event.time_ns >= ns:
            high = middle
        else:
            low = middle + 1
    return low


def take_stock(handle: Handle, storage: RingStorage) -> Stock:
    """Totals of the file."""
    handle._ensure_open()
    settings = handle.settings
    m = None
    while m is None or m is not storage.finder.map:  # another thread may resize it meanwhile
        m, header, attached = storage.finder.map, storage.known_header(handle), handle._ctl
        first, after, tail, head = storage.finder.now(handle)
    reserved, lost, holds = head, 0, 0
    if attached is not None:
        reserved, lost = max(head, attached.get(L.C_RESERVED)), attached.get(L.C_LOST)
        holds = len(held_positions(attached))
    return Stock(
        uuid=header.uuid,
        first_seq=first,
        next_seq=after,
        segments=0,
        disk_bytes=os.fstat(m.fd).st_blocks * 512,
        disk=Disk(
            allocated=os.fstat(m.fd).st_blocks * 512,
            live=head - tail,
            free=files.free_bytes(m.fd, handle.path),
        ),
        ring=Ring(
            file_bytes=header.file_bytes,
            ring_offset=header.data_offset,
            ring_bytes=header.ring_bytes,
            index_capacity=header.index_capacity,
            format_version=header.version,
            generation=header.generation,
            tail=tail,
            head=head,
            reserved=reserved,
            used_bytes=head - tail,
            lost_bytes=lost,
            when_full=settings.when_full,
            holds=holds,
            monotone=handle._monotone(),
        ),
    )
