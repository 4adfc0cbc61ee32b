"""Copy a ring's events to a new file, for a resize or a backup.

The copy has the events, from the start of its first lap on, and after them one producers frame, if
there are producers: there it does not obstruct the next one. It ends in a checkpoint; when that and
all that it covers is on disk, the file gets its name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock import _core, headers
from penstock import layout as L
from penstock._core import LogCore, RingMap
from penstock.errors import Full
from penstock.handle import control
from penstock.handle.producers import Table
from penstock.ring.file import Header, Slot, make_file, map_ring, write_slot
from penstock.ring.producers import Follower
from penstock.settings import Settings
from penstock.system import files
from penstock.system.messages import logger

if TYPE_CHECKING:
    from penstock.handle.handle import Handle
    from penstock.ring.storage import RingStorage


@dataclass(frozen=True, slots=True)
class CopySource:
    """What to copy: events between two positions of an open ring, and its state."""

    log: LogCore
    tail: int
    head: int
    next_seq: int
    last_append_ns: int
    producers: Table | None  # None: no producers
    keep_all: bool = False  # refuse a copy without room for all events


def source_of(handle: Handle, storage: RingStorage) -> CopySource:
    """Everything that is in the ring now."""
    attached, static = handle._ctl, storage.static
    if attached is not None:
        words = control.words_of_log(attached)
    elif static is not None:
        words = static.words()
    else:
        raise handle._closed_error()
    newest, tail = words[L.C_PRODUCER_POS], words[L.C_TAIL]
    return CopySource(
        log=handle,
        tail=tail,
        head=words[L.C_HEAD],
        next_seq=words[L.C_NEXT_SEQ],
        last_append_ns=words[L.C_LAST_APPEND_NS],
        producers=Follower().up_to(storage.frame_at(handle), newest, tail) if newest else None,
    )


def write_copy(source: CopySource, path: str, header: Header, mode: int) -> int | None:
    """Make the file of a ring with the newest events that fit; the seq after the last one.

    The file is synced when this returns, but not its name. None, and no file, if events were
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


def _fill(source: CopySource, target: RingMap, header: Header) -> tuple[Header, Slot] | None:
    """Copy the events; returns the header and the checkpoint for them."""
    start = target.ring_bytes
    room, table = start, b""
    if Settings.from_json(header.settings, target.path).when_full != "drop":
        room -= header.reserve
    if source.producers is not None:
        table = source.producers.pack(start // L.PRODUCERS_SHARE)
        room -= _core.frame_bytes(len(table))
    measured = _core.copy_events(source.log, None, source.tail, source.head, 0, 0, 0, False)
    if measured is None:
        return None
    _, nbytes, lost = measured
    drop = max(0, nbytes - room)
    if drop and source.keep_all:
        raise Full(f"{target.path}: a copy of this size does not fit all events of the ring")
    copied = _core.copy_events(source.log, target, source.tail, source.head, start, 0, drop, lost)
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
