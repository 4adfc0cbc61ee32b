"""Sync the segments of a log, and write the checkpoints that record how far it is on disk."""

from __future__ import annotations

from penstock import _core, headers
from penstock import layout as L
from penstock._core import Control, SegmentMap
from penstock.errors import NotFound, PenstockError
from penstock.handle.control import Words
from penstock.handle.durability import Snapshot, begin, end, poisoning
from penstock.layout import SegmentPosition
from penstock.segments import segment
from penstock.segments.segment import Header, Slot
from penstock.segments.store import Store
from penstock.system import files
from penstock.system.messages import logger


def sync(store: Store, control: Control, active: SegmentMap | None, words: Snapshot) -> None:
    """Sync everything up to the head in ``words`` to disk; under the sync lock."""
    base = words[L.C_ACTIVE_BASE]
    again = begin(control)
    _sync_finished(store, control, base, again)
    head = SegmentPosition.unpack(words[L.C_HEAD])
    if active is None or active.number != head.number or again:
        _sync_one(store, control, base, again)
    else:
        durable = SegmentPosition.unpack(control.get(L.C_DURABLE_POS))
        start = durable.offset if durable.number == active.number else active.data_offset
        active.let_go(start, head.offset)
        with poisoning(control):
            files.sync_data(active.fd, active.path)
    _core.fail_point("sync.synced")
    _checkpoint(store, control, active, words)
    _core.fail_point("sync.checkpointed")
    end(control, base, words[L.C_HEAD], words[L.C_NEXT_SEQ] - 1)


def sync_finished(store: Store, control: Control, words: Snapshot) -> None:
    """Sync every segment before the active one to disk; under the sync lock."""
    base = words[L.C_ACTIVE_BASE]
    _sync_finished(store, control, base, begin(control))
    start = SegmentPosition(SegmentPosition.unpack(words[L.C_HEAD]).number, 0)
    end(control, base, start.pack(), base - 1)


def _sync_finished(store: Store, control: Control, active_base: int, again: bool) -> None:
    since = control.get(L.C_DURABLE_BASE)
    if since != active_base:
        for base in store.bases(fresh=True):
            if since <= base < active_base:
                _sync_one(store, control, base, again)


def _sync_one(store: Store, control: Control, base_seq: int, again: bool) -> None:
    """Sync a segment by its name; ``again``: as if all of it were new."""
    try:
        m, header = segment.map_segment(store.file(base_seq), write=True)
    except NotFound:
        return  # deleted by retention, with its events
    if m.data_end:
        return  # sealed: it was on disk before the footer was written
    if again:
        m.redirty(header.data_offset, _written_end(m))
    with poisoning(control):
        files.sync_data(m.fd, m.path)


def _written_end(m: SegmentMap) -> int:
    """The end of the bytes that were ever written to a segment; there may be no blocks after it.

    The file system knows pages that were written back or are yet to be; the frames show pages that
    it may have dropped after a failed sync.
    """
    limit = m.grown()
    walk, _, _ = m.walk(limit, check_crc=False)
    frames: int = walk.offset
    return min(limit, max(frames, files.data_end(m.fd, m.data_offset, limit, m.path)))


def _checkpoint(store: Store, control: Control, active: SegmentMap | None, words: Snapshot) -> None:
    """Write the slot that records a sync. The sync is valid without it, too."""
    number = SegmentPosition.unpack(words[L.C_HEAD]).number
    slot = slot_of(words, _generation(control.get(L.C_SLOT), number) + 1)
    try:
        if active is not None and active.number == number:
            write_slot(active.fd, slot, active.path)
        else:
            path = store.file(words[L.C_ACTIVE_BASE])
            fd = files.open_file(path, write=True)
            try:
                write_slot(fd, slot, path)
            finally:
                files.close(fd)
        control.put(L.C_SLOT, SegmentPosition(number, slot.generation).pack())
    except PenstockError as error:
        logger.warning("%s: no checkpoint was written: %s", store.path, error)


def _generation(newest: int, number: int) -> int:
    """The newest checkpoint's generation, if control's word is about the segment of that number."""
    word = SegmentPosition.unpack(newest)
    return word.offset if word.number == number else 1


def slot_of(words: Snapshot | Words, generation: int) -> Slot:
    """The checkpoint for the state that ``words`` describe."""
    return Slot(
        generation=generation,
        offset=SegmentPosition.unpack(words[L.C_HEAD]).offset,
        last_frame=words[L.C_LAST_FRAME],
        last_seq=words[L.C_NEXT_SEQ] - 1,
        last_append_ns=words[L.C_LAST_APPEND_NS],
        settings_offset=SegmentPosition.unpack(words[L.C_SETTINGS_POS]).offset,
        index_count=words[L.C_INDEX_COUNT],
        event_max_ns=words[L.C_EVENT_MAX_NS],
        producer_offset=SegmentPosition.unpack(words[L.C_PRODUCER_POS]).offset,
        monotone=bool(words[L.C_FLAGS] & L.CONTROL_FLAG_MONOTONE),
    )


def write_slot(fd: int, slot: Slot, path: str) -> None:
    """Write a checkpoint over the older one; generations of one slot are all odd or all even."""
    headers.write_checkpoint(fd, slot.pack(), slot.generation, Header.unpack, L.COPY_VERSION, path)


def settle(store: Store, dir_fd: int, words: Words) -> Words:
    """Write the bytes after the last checkpoint again; at first open, if they may not be on disk.

    Returns the words of control for the log after that: all of it on disk.
    """
    head = words[L.C_HEAD]
    if words[L.C_DURABLE_POS] == head:
        return words
    bases = [b for b in store.bases() if words[L.C_DURABLE_BASE] <= b <= words[L.C_ACTIVE_BASE]]
    for base in bases:
        m, header = segment.map_segment(store.file(base), write=True)
        if m.data_end:
            continue
        number, offset = SegmentPosition.unpack(words[L.C_DURABLE_POS])
        start = max(offset if m.number == number else 0, header.data_offset)
        m.redirty(start, _written_end(m))
        files.sync_data(m.fd, m.path)
        _core.fail_point("open.settled")
    files.sync_dir(dir_fd, store.path)
    number = SegmentPosition.unpack(head).number
    slot = slot_of(words, _generation(words[L.C_SLOT], number) + 1)
    write_slot(m.fd, slot, m.path)
    return words | {
        L.C_DURABLE_SEQ: words[L.C_NEXT_SEQ] - 1,
        L.C_DURABLE_POS: head,
        L.C_DURABLE_BASE: words[L.C_ACTIVE_BASE],
        L.C_SLOT: SegmentPosition(number, slot.generation).pack(),
    }
