"""Find the end of a log: how far it is known to be on disk, and what was published after that.

Frames are the only truth. A control file of this boot is a hint that saves time and is checked
against them; a checkpoint or a footer says what a sync has covered. Nothing here changes a log,
except for the index of a segment that is walked to be appended to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from penstock import layout as L
from penstock._core import SegmentMap, Walked
from penstock.errors import Corrupt, DiskFull, NotFound, gone_error
from penstock.handle.control import Words
from penstock.layout import SegmentPosition
from penstock.segments import segment
from penstock.segments.segment import Header, Slot
from penstock.segments.store import Store
from penstock.settings import Settings
from penstock.system import files
from penstock.system.directory import Directory
from penstock.tunables import ALLOCATE_STEP_MIN

LOOK_BACK = 8  # segments to search for the roll frame that leads to the newest


@dataclass(slots=True)
class Active:
    """The segment that takes appends, and the end of its frames."""

    map: SegmentMap
    header: Header
    walk: Walked
    apart: list[int] = field(default_factory=list)  # segments after it that nothing leads to
    blocks_end: int = 0  # blocks are known to exist up to this offset; 0: up to the file's end

    @property
    def settings(self) -> Settings:
        """The current settings: the newest settings frame's, else the header's."""
        at = self.walk.settings_offset
        data = self.map.frame_body(at, L.KIND_SETTINGS) if at else self.header.settings
        return Settings.from_json(data, self.map.path)

    @property
    def next_seq(self) -> int:
        """The seq of the next event."""
        seq: int = self.walk.next_seq
        return seq

    @property
    def monotone(self) -> bool:
        """Whether event times never went back in the log."""
        return bool(self.walk.monotone)

    @property
    def head(self) -> int:
        """The published end; before a roll frame whose successor does not exist yet."""
        end = self.walk.last_frame if self.walk.rolled else self.walk.offset
        return SegmentPosition(self.map.number, end).pack()

    @property
    def allocated(self) -> int:
        """The offset up to which stores find blocks, even on a full disk."""
        return self.blocks_end or min(self.map.file_bytes, self.header.footer_offset)

    def words(self) -> Words:
        """The words of control for this state."""
        w = self.walk
        return {
            L.C_NEXT_SEQ: w.next_seq,
            L.C_LAST_APPEND_NS: w.last_append_ns,
            L.C_LAST_FRAME: w.last_frame,
            L.C_ALLOC_END: self.allocated,
            L.C_BLOCK_OFFSET: w.block_offset,
            L.C_BLOCK_TOPICS: w.block_topics,
            L.C_EVENT_MAX_NS: w.event_max_ns,
            L.C_BLOCK_SEQ: w.block_seq,
            L.C_BLOCK_APPEND_NS: w.block_append_ns,
            L.C_BLOCK_EVENT_MIN_NS: w.block_event_min_ns,
            L.C_BLOCK_EVENT_MAX_NS: w.block_event_max_ns,
            L.C_INDEX_COUNT: w.index_count,
            L.C_FLAGS: L.CONTROL_FLAG_MONOTONE if w.monotone else 0,
            L.C_ACTIVE_BASE: self.header.base_seq,
            L.C_SETTINGS_POS: SegmentPosition(self.map.number, w.settings_offset).pack(),
            L.C_PRODUCER_POS: SegmentPosition(self.map.number, w.producer_offset).pack(),
            L.C_HEAD: self.head,
            L.C_RESERVED: self.head,
        }


def decide_uuid(store: Store, known: bytes | None) -> bytes:
    """The uuid of the log whose segments these are. Normally the newest two and the oldest agree.

    ``known`` comes from control, or from a handle that had the log open: it decides if any segment
    has it. Else the roll frames decide, see `linked_uuids`; the number of segments of each log
    proves nothing. The newest must be readable.
    """
    bases = store.bases()
    if not bases:
        raise gone_error(store.path)  # deleted since it was just found or made
    newest = _header_of(store, bases[-1])
    uuids = {h.uuid for h in _headers(store, {*bases[-2:], bases[0]})} or {newest.uuid}
    if known is not None and (known in uuids or known in {h.uuid for h in _headers(store, bases)}):
        uuids = {known}
    elif len(uuids) > 1:
        linked = linked_uuids(_headers(store, bases), lambda base: _leads_to(store, base))
        if len(linked) != 1:
            raise Corrupt(two_logs(store.path, uuids), path=store.path)
        uuids = linked
    (store.uuid,) = uuids
    return store.uuid


def has_segment_of(directory: Directory, uuid: bytes) -> bool:
    """Whether a log that was open before still has a segment in its directory."""
    store = Store(directory, None, [], lambda: 0)
    return any(h.uuid == uuid for b in reversed(store.bases()) for h in _headers(store, [b]))


def linked_uuids(headers: list[Header], leads_to: Callable[[int], int]) -> set[bytes]:
    """Of the logs that have segments in one directory, those with a segment that leads to another.

    ``headers`` are of segments with the right names. A segment that was moved into the directory of
    another log has neither its predecessor nor its successor there.
    """
    owner = {h.base_seq: h.uuid for h in headers}
    return {h.uuid for h in headers if owner.get(leads_to(h.base_seq)) == h.uuid}


def two_logs(path: str, uuids: Iterable[bytes]) -> str:
    """The message for a directory with segments of several logs, if its log is unknown."""
    names = " and ".join(sorted(uuid.hex() for uuid in uuids))
    return (
        f"{path}: holds segments of several logs, {names}, and it is unknown which log this is; "
        "find out with penstock.verify() which files are foreign, and move them away"
    )


def _leads_to(store: Store, base_seq: int) -> int:
    """The base seq after a segment; 0 if it has none or cannot be read."""
    with suppress(Corrupt, NotFound):
        m, _ = segment.map_segment(store.file(base_seq))
        return store.leads_to(m)
    return 0


def _headers(store: Store, bases: Iterable[int]) -> list[Header]:
    """The headers of the readable segments with the right names."""
    found = []
    for base in bases:
        with suppress(Corrupt, NotFound):
            header = _header_of(store, base)
            if header.base_seq == base:
                found.append(header)
    return found


def _header_of(store: Store, base_seq: int) -> Header:
    path = store.file(base_seq)
    fd = files.open_file(path, write=False)
    try:
        return segment.read_header(fd, path)
    finally:
        files.close(fd)


@dataclass(frozen=True, slots=True)
class Vouched:
    """How far a log is known to be on disk, by its newest checkpoint or footer."""

    seq: int  # the last one
    base_seq: int  # of the segment to continue from
    number: int
    offset: int  # in that segment; 0: its start
    generation: int  # of that segment's newest checkpoint

    def words(self, active: Active) -> Words:
        """The words of control for it, in a log with that active segment."""
        offset = self.offset
        if not offset and self.number == active.map.number:
            offset = active.header.data_offset
        return {
            L.C_DURABLE_SEQ: self.seq,
            L.C_DURABLE_POS: SegmentPosition(self.number, offset).pack(),
            L.C_DURABLE_BASE: self.base_seq,
            L.C_SLOT: SegmentPosition(self.number, self.generation).pack(),
        }


def vouched(store: Store) -> Vouched:
    """Find the newest checkpoint or footer of a finished sync.

    A sync covers everything before its place, so segments before that one are on disk
    too. A first checkpoint (generation 1) was written before any frame.
    """
    oldest = None
    bases = list(store.bases())
    while bases:
        base = bases.pop()
        if base not in store.bases():
            continue  # it was found to be foreign
        path = store.file(base)
        fd = files.open_file(path, write=False)
        try:
            header = segment.read_header(fd, path)
            summary = segment.read_footer(fd, header, path)
            slot = segment.newest_slot(fd, header, path)
        finally:
            files.close(fd)
        why = store.why_foreign(header, base)
        claims = summary is not None or (slot is not None and slot.generation > 1)
        if why is None and claims and bases:
            why = _why_not_newest(store, bases, header)
        if why is not None:
            store.set_aside(base, why)
            continue
        if summary is not None:
            return Vouched(summary.next_seq - 1, summary.next_seq, header.number + 1, 0, 1)
        if slot is not None and slot.generation > 1:
            return Vouched(slot.last_seq, base, header.number, slot.offset, slot.generation)
        oldest = Vouched(base - 1, base, header.number, 0, 1)
    if oldest is not None:
        return oldest
    raise Corrupt(f"{store.path}: no segment of this log is left", path=store.path)


def _why_not_newest(store: Store, earlier: list[int], header: Header) -> str | None:
    """Why ``header``, of a segment that claims to be on disk, is not this log's.

    A roll frame that leads to it decides, even if there are foreign segments between the two.
    """
    for base in reversed(earlier[-LOOK_BACK:]):
        before = _open(store, base)
        if before is None:
            continue
        leads_to = store.leads_to(before)
        if leads_to == header.base_seq and before.number < header.number:
            for foreign in (b for b in earlier if b > base):
                store.set_aside(foreign, f"it begins inside the segment of seq {base}")
            return None
    before = _open(store, earlier[-1])
    if before is None:
        return None
    leads_to = store.leads_to(before)
    if 0 < leads_to <= header.base_seq and before.number < header.number:
        return None  # the segments between them are missing
    walk, state, bad_at = before.walk(before.grown(), check_crc=False)
    if header.base_seq < walk.next_seq or before.number >= header.number:
        return store.why_inside(before, header)
    raise before.damage(bad_at, state, walk.next_seq - 1)


def _open(store: Store, base_seq: int) -> SegmentMap | None:
    """The segment named ``base_seq``; None if it is foreign, gone, or its header is damaged."""
    with suppress(Corrupt):
        return store.open(base_seq)
    return None


def find_end(store: Store, *, hint: Words | None, write: bool, fresh: bool = True) -> Active:
    """Follow the segments to the end of what was published.

    ``hint`` are the words of a control of this boot, if there is one: then the walk begins in its
    active segment, else in the one after the newest checkpoint or footer. Every frame after that
    is checked, because after power loss any page may be missing.
    """
    if not store.bases(fresh=fresh):
        raise Corrupt(f"{store.path}: no segment of this log is left", path=store.path)
    active = None
    if hint is not None and hint[L.C_ACTIVE_BASE] in store.bases():
        active = enter(store, hint[L.C_ACTIVE_BASE], hint, write=write)
    if active is None:
        known = vouched(store)
        active = enter(store, known.base_seq, hint, write=write)
        if active is None:  # a footer leads to a missing segment
            active = enter(store, _before(store, known.base_seq), hint, write=write)
    while active is not None:
        last = active
        active = _next(store, last, hint, write=write)
    if write and last.map.data_end:
        # Its successor had its name before the footer was written: seqs that were assigned
        # would be assigned again.
        raise store.missing(last.map.next_seq, None)
    return last


def _before(store: Store, base_seq: int) -> int:
    return max(b for b in store.bases() if b < base_seq)


def enter(
    store: Store, base_seq: int, hint: Words | None, *, write: bool, after: Active | None = None
) -> Active | None:
    """Walk the segment named ``base_seq`` to its end; None if it is missing or foreign."""
    if base_seq not in store.bases():
        return None
    m, header = segment.map_segment(store.file(base_seq), write=write)
    why = store.why_foreign(header, base_seq)
    if why is None and after is not None and header.number <= after.header.number:
        why = f"it begins inside the segment of seq {after.header.base_seq}"
    if why is not None:
        store.set_aside(base_seq, why)
        return None
    return _walk(m, header, hint, write=write)


def _next(store: Store, active: Active, hint: Words | None, *, write: bool) -> Active | None:
    """The segment after ``active``; None if that is the last one of the log.

    After a segment that has not rolled, others are not part of the log: they were being written
    when the power failed, and the frame that leads to them never reached the disk.
    """
    later = [b for b in store.bases() if b > active.header.base_seq]
    if not active.walk.rolled:
        for base in later:
            _set_apart(store, base, active)
        return None
    for base in later:  # the first is the successor, unless that is missing
        if base < active.walk.next_seq:
            store.set_aside(base, f"it begins inside the segment of seq {active.header.base_seq}")
            continue
        found = enter(store, base, hint, write=write, after=active)
        if found is not None:
            return found
    return None


def _set_apart(store: Store, base_seq: int, end: Active) -> None:
    """Note a segment after the end of the log; recovery moves those in ``end.apart``."""
    path = store.file(base_seq)
    fd = files.open_file(path, write=False)
    try:
        header = segment.read_header(fd, path)
    finally:
        files.close(fd)
    why = store.why_foreign(header, base_seq)
    if why is None and (header.number <= end.header.number or base_seq < end.walk.next_seq):
        why = f"it begins inside the segment of seq {end.header.base_seq}"
    if why is None:
        end.apart.append(base_seq)
        why = f"nothing leads to it: the segment of seq {end.header.base_seq} has not rolled"
        store.set_aside(base_seq, why, quietly=True)  # recovery reports what it does with it
    else:
        store.set_aside(base_seq, why)


def _walk(m: SegmentMap, header: Header, hint: Words | None, *, write: bool) -> Active:
    """Walk one segment to the end of its complete, valid batches."""
    limit = m.grown()
    if m.data_end:
        walk, _, _ = m.walk(header.data_offset)
        walk = walk.changed(
            offset=m.data_end,
            last_frame=m.summary.last_frame,
            next_seq=m.next_seq,
            monotone=m.summary.log_monotone,
            rolled=True,
        )
        return Active(m, header, walk)
    blocks_end = ensure_blocks(m, header) if write else 0
    known_head = 0
    if hint is not None and SegmentPosition.unpack(hint[L.C_HEAD]).number == m.number:
        known_head = SegmentPosition.unpack(hint[L.C_HEAD]).offset
        active = _from_hint(m, header, hint, limit, known_head)
        if active is not None:
            active.blocks_end = blocks_end
            return active
    slot = segment.newest_slot(m.fd, header, m.path)
    known = None
    if slot is not None and slot.generation > 1:
        known = _up_to_checkpoint(m, slot, write=write)
    walk, state, bad_at = m.walk(limit, resume=known, write_index=write)
    end = walk.offset
    lost_checkpoint = slot is not None and end < slot.offset
    # Control is only a hint: if it claims frames where there are only zeros, control is
    # wrong. If there are other bytes, they are a damaged frame.
    lost_head = end < known_head and not m.is_zero(end, min(known_head, limit))
    if lost_checkpoint or lost_head:
        told = _known_end(walk, slot, hint if lost_head else None, limit)
        if write or told is None:
            raise m.damage(bad_at or end, state, walk.next_seq - 1)
        # A read raises at the damage, or passes over it.
        walk, _, _ = m.walk(limit, resume=told)
    return Active(m, header, walk, blocks_end=blocks_end)


def _up_to_checkpoint(m: SegmentMap, slot: Slot, *, write: bool) -> Walked | None:
    """The walk up to the checkpoint; None if the segment must be walked from the start.

    Its statements about all frames before it are used, since the index has no checksum.
    """
    try:
        walk, _, _ = m.walk(
            min(slot.offset, m.grown()), index_from=slot.index_count, write_index=write
        )
    except Corrupt:
        return None
    ended = (walk.offset, walk.next_seq, walk.last_frame)
    if ended != (slot.offset, slot.last_seq + 1, slot.last_frame):
        return None
    return walk.changed(
        settings_offset=slot.settings_offset,
        producer_offset=slot.producer_offset,
        event_max_ns=slot.event_max_ns,
        monotone=slot.monotone,
    )


def _known_end(walk: Walked, slot: Slot | None, hint: Words | None, limit: int) -> Walked | None:
    """The end of the frames of a damaged segment, by control or else by its checkpoint.

    ``walk`` is before the damage.
    """
    if hint is not None:
        known = walk.changed(
            offset=SegmentPosition.unpack(hint[L.C_HEAD]).offset,
            next_seq=hint[L.C_NEXT_SEQ],
            last_append_ns=hint[L.C_LAST_APPEND_NS],
            last_frame=hint[L.C_LAST_FRAME],
            event_max_ns=hint[L.C_EVENT_MAX_NS],
            settings_offset=SegmentPosition.unpack(hint[L.C_SETTINGS_POS]).offset,
            producer_offset=SegmentPosition.unpack(hint[L.C_PRODUCER_POS]).offset,
            monotone=False,
            rolled=False,
        )
    elif slot is not None:
        known = walk.changed(
            offset=slot.offset,
            next_seq=slot.last_seq + 1,
            last_append_ns=slot.last_append_ns,
            last_frame=slot.last_frame,
            event_max_ns=slot.event_max_ns,
            settings_offset=slot.settings_offset,
            producer_offset=slot.producer_offset,
            monotone=False,
            rolled=False,
        )
    else:
        return None
    return known if known.offset <= limit else None


def _from_hint(
    m: SegmentMap, header: Header, hint: Words, limit: int, known_head: int
) -> Active | None:
    """Begin at the last index entry that the old control knew, if the frames confirm it."""
    resume = m.at_start().changed(
        settings_offset=SegmentPosition.unpack(hint[L.C_SETTINGS_POS]).offset,
        producer_offset=SegmentPosition.unpack(hint[L.C_PRODUCER_POS]).offset,
        monotone=bool(hint[L.C_FLAGS] & L.CONTROL_FLAG_MONOTONE),
    )
    if known_head > limit:
        return None
    try:
        if resume.settings_offset:
            m.frame_body(resume.settings_offset, L.KIND_SETTINGS)
        if resume.producer_offset:
            m.frame_body(resume.producer_offset, L.KIND_PRODUCER)
        walk, _, _ = m.walk(
            limit, resume=resume, index_from=hint[L.C_INDEX_COUNT], write_index=m.writable
        )
    except Corrupt:
        return None
    return Active(m, header, walk) if walk.offset >= known_head else None


def ensure_blocks(m: SegmentMap, header: Header) -> int:
    """Allocate blocks for every mapped byte that recovery may write; returns where they end.

    The file may be a copy with holes; a store into a hole on a full disk raises SIGBUS. After the
    last written byte there is nothing to recover: the last writer to close freed that space, and
    only a little of it is allocated again, for the first appends.
    """
    stop = min(m.grown(), header.footer_offset)
    end = min(segment.pages(files.data_end(m.fd, header.data_offset, stop, m.path)), stop)
    _allocate(m, header, header.data_offset, end)
    more = min(end + ALLOCATE_STEP_MIN, stop)
    with suppress(DiskFull):
        _allocate(m, header, end, more)
        end = more
    return end


def _allocate(m: SegmentMap, header: Header, start: int, end: int) -> None:
    """Allocate blocks for the frames from ``start`` to ``end``, and for their index."""
    index = segment.index_bytes_for(end - header.data_offset)
    files.allocate(m.fd, L.INDEX_OFFSET, L.INDEX_OFFSET + index, m.path)
    files.allocate(m.fd, start, end, m.path)
