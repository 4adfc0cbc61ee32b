"""Getting events onto the device: one sync serves all who wait for it, in every process.

A sync, as an algorithm:

1. Hold the sync lock. Whoever does not get it sleeps until the one that has it is done, and looks
   whether that was enough. So many waiting appends share one sync, and none waits for two.
2. Take head and the words beside it, under the write lock; give that up.
3. fdatasync every segment from the one that the last sync ended in to the active one. Their names
   are on the device already: a roll sees to that.
4. Write what is now on the device into the older of the active segment's two checkpoint slots, and
   into control. Wake everybody.

A failed fdatasync or fsync is final: the kernel may have dropped the pages, so that a second try
would succeed and prove nothing. A word in control stops appends and syncs in every process, until
all have closed the log and the next opener has written everything behind the last checkpoint again.
A process that died in the middle of a sync may have been the only one to learn that it failed; so
whoever finds its mark also writes that again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from penstock import _core, headers
from penstock import layout as L
from penstock._core import Control, SegmentMap
from penstock.errors import Busy, NotFound, PenstockError, Poisoned
from penstock.handle.control import Words, position
from penstock.segments import segment
from penstock.segments.segment import Header, Slot
from penstock.segments.store import Store
from penstock.system import files
from penstock.system.messages import logger

_WORDS = struct.Struct(f"<{(L.C_NOTIFY - L.C_HEAD) // 8}Q")


def poisoned_error(path: str) -> Poisoned:
    """The error for who wants to append or sync behind a failed sync."""
    return Poisoned(
        f"{path}: a sync failed, so what was appended since the last good one may be lost if the "
        "machine loses power; close the log in every process and open it again",
        filename=path,
    )


class poisoning:
    """Has a failed sync inside the block stop appends and syncs in every process.

    Without control nobody else has the log open, and the error alone is enough.
    """

    __slots__ = ("_control",)

    def __init__(self, control: Control | None) -> None:
        self._control = control

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, PenstockError) and self._control is not None:
            self._control.put(L.C_POISONED, 1)
            self._control.wake_all()
            logger.error("a sync failed, so nothing more is appended: %s", error)


class Snapshot:
    """Control's words of one moment, by their offsets."""

    __slots__ = ("_words", "in_order")

    def __init__(self, page: bytes) -> None:
        self._words = _WORDS.unpack_from(page, L.C_HEAD)
        suspect = int.from_bytes(page[L.C_SUSPECT : L.C_SUSPECT + 4], "little")
        # Whether no dead writer has left something to repair.
        self.in_order = not suspect and self[L.C_HEAD] == self[L.C_RESERVED]

    def __getitem__(self, at: int) -> int:
        word: int = self._words[(at - L.C_HEAD) >> 3]
        return word


def sync_to(
    path: str,
    control: Control,
    word: int,
    goal: int,
    timeout: float | None,
    run: Callable[[], None],
) -> None:
    """Return when ``word`` has come to ``goal``; ``run`` does one sync.

    The word is durable_seq; or durable_pos, for who also wants the frames on the device that take
    no seq; or durable_base, for who wants all segments before one, with their roll frames.
    """
    while True:
        turn = control.sync_turn(word, goal, timeout, run)
        if turn == "done":
            return
        if turn == "poisoned":
            raise poisoned_error(path)
        if turn == "late":
            raise Busy(
                f"{path}: another process has been syncing for {timeout} s; what was appended "
                "is committed, and durable once wait_durable says so"
            )


def sync(store: Store, control: Control, active: SegmentMap | None, words: Snapshot) -> None:
    """Have everything up to the head in ``words`` on the device; under the sync lock."""
    base = words[L.C_ACTIVE_BASE]
    again = begin(control)
    _sync_finished(store, control, base, again)
    if active is None or active.number != words[L.C_HEAD] >> 32 or again:
        _sync_one(store, control, base, again)
    else:
        durable = control.get(L.C_DURABLE_POS)
        start = durable & 0xFFFFFFFF if durable >> 32 == active.number else active.data_offset
        active.let_go(start, words[L.C_HEAD] & 0xFFFFFFFF)
        with poisoning(control):
            files.sync_data(active.fd, active.path)
    _core.fail_point("sync.synced")
    _checkpoint(store, control, active, words)
    _core.fail_point("sync.checkpointed")
    end(control, base, words[L.C_HEAD], words[L.C_NEXT_SEQ] - 1)


def sync_finished(store: Store, control: Control, words: Snapshot) -> None:
    """Have every segment before the active one on the device; under the sync lock."""
    base = words[L.C_ACTIVE_BASE]
    _sync_finished(store, control, base, begin(control))
    start = position(words[L.C_HEAD] >> 32, 0)
    end(control, base, start, base - 1)


def begin(control: Control) -> bool:
    """Leave the mark of a sync under way; whether a sync that died had left it already."""
    again = bool(control.get32(L.C_SYNCING))
    control.put32(L.C_SYNCING, 1)
    _core.fail_point("sync.begun")
    return again


def end(control: Control, base: int, durable_pos: int, durable_seq: int) -> None:
    """A sync is over: tell everybody how far it came."""
    control.put(L.C_DURABLE_BASE, base)
    control.put(L.C_DURABLE_SEQ, durable_seq)
    control.put(L.C_DURABLE_POS, durable_pos)  # last: who waited for it reads durable_seq
    control.put32(L.C_SYNCING, 0)
    control.add(L.C_SYNCS)
    control.wake()


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
        return  # retained away, and with it what it held
    if m.data_end:
        return  # sealed: it was on the device before the footer was written
    if again:
        m.redirty(header.data_offset, _written_end(m))
    with poisoning(control):
        files.sync_data(m.fd, m.path)


def _written_end(m: SegmentMap) -> int:
    """Where the bytes end that were ever written to a segment; behind it may be no blocks.

    The file system says it of pages that were written back or are yet to be; the frames, of pages
    that it may have dropped after a failed sync.
    """
    limit = m.grown()
    walk, _, _ = m.walk(limit, check_crc=False)
    frames: int = walk.offset
    return min(limit, max(frames, files.data_end(m.fd, m.data_offset, limit, m.path)))


def _checkpoint(store: Store, control: Control, active: SegmentMap | None, words: Snapshot) -> None:
    """Write the slot that speaks of a sync. Without it the sync holds all the same."""
    head = words[L.C_HEAD]
    newest = control.get(L.C_SLOT)
    generation = newest & 0xFFFFFFFF if newest >> 32 == head >> 32 else 1
    slot = slot_of(words, generation + 1)
    try:
        if active is not None and active.number == head >> 32:
            write_slot(active.fd, slot, active.path)
        else:
            path = store.file(words[L.C_ACTIVE_BASE])
            fd = files.open_file(path, write=True)
            try:
                write_slot(fd, slot, path)
            finally:
                files.close(fd)
        control.put(L.C_SLOT, position(head >> 32, slot.generation))
    except PenstockError as error:
        logger.warning("%s: no checkpoint was written: %s", store.path, error)


def slot_of(words: Snapshot | Words, generation: int) -> Slot:
    """The checkpoint for the state that ``words`` describe."""
    return Slot(
        generation=generation,
        offset=words[L.C_HEAD] & 0xFFFFFFFF,
        last_frame=words[L.C_LAST_FRAME],
        last_seq=words[L.C_NEXT_SEQ] - 1,
        last_append_ns=words[L.C_LAST_APPEND_NS],
        settings_offset=words[L.C_SETTINGS_POS] & 0xFFFFFFFF,
        index_count=words[L.C_INDEX_COUNT],
        event_max_ns=words[L.C_EVENT_MAX_NS],
        producer_offset=words[L.C_PRODUCER_POS] & 0xFFFFFFFF,
        monotone=bool(words[L.C_FLAGS] & L.CONTROL_FLAG_MONOTONE),
    )


def write_slot(fd: int, slot: Slot, path: str) -> None:
    """Write a checkpoint over the older one; generations of one slot are all odd or all even."""
    headers.write_checkpoint(fd, slot.pack(), slot.generation, Header.unpack, L.COPY_VERSION, path)


def settle(store: Store, dir_fd: int, words: Words) -> Words:
    """Write again what lies behind the last checkpoint; at first open, if nobody vouches for it.

    Returns control's words for the log as it then is: all of it on the device.
    """
    head = words[L.C_HEAD]
    if words[L.C_DURABLE_POS] == head:
        return words
    bases = [b for b in store.bases() if words[L.C_DURABLE_BASE] <= b <= words[L.C_ACTIVE_BASE]]
    for base in bases:
        m, header = segment.map_segment(store.file(base), write=True)
        if m.data_end:
            continue
        start = words[L.C_DURABLE_POS] if m.number == words[L.C_DURABLE_POS] >> 32 else 0
        m.redirty(max(start & 0xFFFFFFFF, header.data_offset), _written_end(m))
        files.sync_data(m.fd, m.path)
        _core.fail_point("open.settled")
    files.sync_dir(dir_fd, store.path)
    same = words[L.C_SLOT] >> 32 == head >> 32
    generation = words[L.C_SLOT] & 0xFFFFFFFF if same else 1
    write_slot(m.fd, slot_of(words, generation + 1), m.path)
    return words | {
        L.C_DURABLE_SEQ: words[L.C_NEXT_SEQ] - 1,
        L.C_DURABLE_POS: head,
        L.C_DURABLE_BASE: words[L.C_ACTIVE_BASE],
        L.C_SLOT: position(head >> 32, generation + 1),
    }
