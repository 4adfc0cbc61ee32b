"""Making room: allocating more of the active segment, preparing the next one, rolling to it.

Everything here but ``prepare`` runs under the write lock, with the log already repaired.
"""

from __future__ import annotations

from penstock import _core
from penstock import layout as L
from penstock._core import Control, SegmentMap
from penstock.errors import AlreadyExists, Busy
from penstock.handle.control import store
from penstock.layout import SegmentPosition
from penstock.segments import segment
from penstock.segments.ending import Active
from penstock.segments.leftovers import NEXT
from penstock.segments.recovery import check_way, name_segment, start_segment, successor_of
from penstock.settings import Settings
from penstock.steward.budget import Budget
from penstock.system import files
from penstock.system.directory import Directory
from penstock.tunables import ALLOCATE_AHEAD_BYTES, ALLOCATE_STEP_MAX, ALLOCATE_STEP_MIN

PATIENCE = 0.2  # seconds that maintenance waits; an append does what was postponed


def allocate_to(
    control: Control,
    m: SegmentMap,
    header: segment.Header,
    end: int,
    limit: tuple[Budget, Settings] | None = None,
) -> None:
    """Allocate blocks of the segment up to ``end``, and of its index, in growing steps.

    `DiskFull` if the log's budget has no room up to ``end``.
    """
    allocated = control.get(L.C_ALLOC_END)
    step = min(max(allocated - header.data_offset, ALLOCATE_STEP_MIN), ALLOCATE_STEP_MAX)
    target = _to_page(max(end, allocated + step), header)
    if limit is not None and target > allocated:
        target = _within(limit, header, allocated, _to_page(end, header), target)
    m.grown()
    if target <= allocated:
        return
    index = segment.index_bytes_for(target - header.data_offset)
    files.allocate(m.fd, L.INDEX_OFFSET, L.INDEX_OFFSET + index, m.path)
    files.allocate(m.fd, allocated, target, m.path)
    m.grown()
    control.put(L.C_ALLOC_END, target)
    control.add(L.C_ALLOCATIONS)


def _to_page(end: int, header: segment.Header) -> int:
    return min(segment.pages(min(end, header.footer_offset)), header.footer_offset)


def _within(
    limit: tuple[Budget, Settings], header: segment.Header, allocated: int, least: int, target: int
) -> int:
    """How far the budget lets a segment be allocated: at least to ``least``, or `DiskFull`."""
    budget, settings = limit

    def cost(to: int) -> int:
        start = header.data_offset
        index = segment.index_bytes_for(to - start) - segment.index_bytes_for(allocated - start)
        return to - allocated + index

    room = budget.room(settings, header.number, cost(target))
    if room is None or cost(target) <= room:
        return target
    if least <= allocated:
        return allocated  # ahead of appends: the next one says what is wrong
    if cost(least) > room:
        raise budget.full(settings)
    return least


def start_bytes(frames_bytes: int = ALLOCATE_STEP_MIN) -> int:
    """Bytes that a new segment takes on disk, with room for so many bytes of frames."""
    index = L.INDEX_OFFSET + segment.index_bytes_for(frames_bytes)
    return index + frames_bytes


def prepare(
    directory: Directory, control: Control, settings: Settings, budget: Budget | None = None
) -> bool:
    """Prepare ``next.tmp``, off the append path; False if it exists, or the budget has no room.

    A log that fills a segment is likely to fill the next one: that gets enough blocks to last
    until they are allocated ahead there, too.
    """
    if files.exists(directory.file(NEXT)):
        return False
    own = directory.file(f"next.{control.token}.tmp")
    blocks = min(ALLOCATE_AHEAD_BYTES, settings.segment_size // 8)
    blocks = max(blocks // L.PAGE * L.PAGE, ALLOCATE_STEP_MIN)
    wanted = start_bytes(blocks)
    number = SegmentPosition.unpack(control.get(L.C_HEAD)).number
    room = None if budget is None else budget.room(settings, number, wanted)
    if room is not None and wanted > room:
        return False  # the roll says what is wrong
    try:
        files.close(
            segment.prepare_file(
                own, settings.segment_size, settings.file_mode, frames_bytes=blocks
            )
        )
    except AlreadyExists:
        return False  # another thread of this handle does it
    _core.fail_point("prepare.made")
    try:
        with control.locked(PATIENCE):
            if files.exists(directory.file(NEXT)):
                files.unlink(own)
            else:
                files.rename(own, directory.file(NEXT))
    except Busy:
        files.unlink(own)
        raise
    _core.fail_point("prepare.named")
    return True


def roll(directory: Directory, dir_fd: int, control: Control, active: Active) -> Active:
    """End the active segment with a roll frame and make a new one active, which is returned.

    1. The successor's header is on disk, without a name yet; its name is free.
    2. Reserve the roll frame, commit it.
    3. The successor gets its name, and the name is on disk.
    4. Publish the new place.

    A process that dies after 2 leaves ``reserved != head``, and the next lock holder finishes the
    roll that the frames say was begun.
    """
    m = active.map
    offset = active.walk.offset
    allocate_to(control, m, active.header, offset + L.FRAME_HEADER_BYTES)
    now = max(_core.now_ns(), active.walk.last_append_ns)
    last = active.walk.last_frame
    active.walk.last_append_ns = now
    header, table = successor_of(active)
    check_way(directory, header)
    started = start_segment(directory, header, table, active.settings)
    control.put(L.C_RESERVED, active.head + L.FRAME_HEADER_BYTES)
    _core.fail_point("roll.reserved")
    m.write_frame(offset, L.KIND_ROLL, b"", header.base_seq, now, last)
    _core.fail_point("roll.committed")
    name_segment(started, dir_fd, header, control)
    fresh = enter_empty(directory, header)
    go_on_in(control, fresh)
    _core.fail_point("roll.published")
    return fresh


def enter_empty(directory: Directory, header: segment.Header) -> Active:
    """The empty segment with that header, which already has its name."""
    name = directory.file(segment.file_name(header.base_seq))
    fresh, header = segment.map_segment(name, write=True)
    walk, _, _ = fresh.walk(header.data_offset)
    return Active(fresh, header, walk)


def go_on_in(control: Control, active: Active) -> None:
    """Publish the empty segment that a roll frame leads to as the active one."""
    store_words(control, active)
    control.add(L.C_ROLLS)


def store_words(control: Control, active: Active) -> None:
    """Store what recovery or a roll found; ``head`` next to last and ``reserved`` last."""
    words = active.words()
    head = words.pop(L.C_HEAD)
    reserved = words.pop(L.C_RESERVED)
    for at, value in words.items():
        store(control, at, value)
        _core.fail_point("repair.word")
    control.put(L.C_HEAD, head)
    _core.fail_point("repair.head")
    control.put(L.C_RESERVED, reserved)
