"""Examine one segment file without trusting a byte of it: what is valid, and what is not.

It reads into private memory, a piece at a time, and changes nothing. verify decides what the
findings mean for the log, and repair what to do about them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from penstock import _core
from penstock import layout as L
from penstock._core import Walked
from penstock.errors import Corrupt, NotFound, PenstockError, UnsupportedVersion
from penstock.headers import COPIES, Rot, is_good, weigh
from penstock.segments import segment
from penstock.segments.check.frames import FileSource, Frames, scan_frames
from penstock.segments.segment import Header, SegmentSummary, Slot
from penstock.settings import Settings
from penstock.system import files

SLOTS = (L.SLOT_A_OFFSET, L.SLOT_B_OFFSET)
_TABLE_MAX = segment.pages(L.PRODUCERS_MAX * (L.PRODUCER_ID_BYTES_MAX + L.PRODUCER_ENTRY_BYTES))


class SegmentReplaced(Exception):
    """Another file has the name of a segment now: compaction replaced it while it was looked at."""


@dataclass(slots=True)
class Segment:
    """One file with a segment's name."""

    path: str
    name_base: int
    inode: int = 0
    size: int = 0
    limit: int = 0  # frames were searched up to here
    required: int = 0  # and must exist up to here
    header: Header | None = None  # as read, or as guessed
    guessed: bool = False
    alone: bool = False  # guessed from this file only
    error: PenstockError | None = None  # why the header could not be read
    rots: list[Rot] = field(default_factory=list)  # damaged headers, where another copy is used
    newer: bool = False  # the header is valid, but of another version
    claims: bool = False  # it says that all before it is on disk
    cut: bool = False  # the log ends in it, where its tail begins
    slots: list[Slot | None] = field(default_factory=list)
    slots_bad: list[int] = field(default_factory=list)  # offsets of slots that hold other bytes
    footer: SegmentSummary | None = None
    footer_bad: bool = False
    index_bad: int | None = None  # first entry that does not match the frames
    index_wanted: int = 0  # entries that were compared
    producers_bad: bool = False
    filter_bad: int | None = None  # offset of the first damaged page of its key filter
    frames: Frames | None = None
    unreadable: list[int] = field(default_factory=list)

    @property
    def base(self) -> int:
        """The first seq that it covers."""
        return self.header.base_seq if self.header is not None else self.name_base

    @property
    def slot(self) -> Slot | None:
        """The newer valid checkpoint."""
        return max((s for s in self.slots if s), key=lambda s: s.generation, default=None)

    @property
    def sure(self) -> int:
        """Frames up to here were on disk once."""
        slot = self.slot
        if self.footer is not None:
            return self.footer.data_end
        return slot.offset if slot is not None and slot.generation > 1 else 0

    @property
    def walk(self) -> Walked:
        """The walk over its valid frames."""
        assert self.frames is not None
        return self.frames.walk

    @property
    def leads_to(self) -> int | None:
        """The base of its successor, if it has rolled."""
        if self.cut:
            return None
        if self.frames is not None and self.frames.end == "rolled":
            return int(self.walk.next_seq)
        return self.footer.next_seq if self.footer is not None else None


def look(path: str, base: int) -> Segment | None:
    """Read the header of a file named for seq ``base``; None if it is gone."""
    found = Segment(path, base)
    try:
        source = FileSource(path)
    except NotFound:
        return None
    except PenstockError as error:
        found.error = error
        return found
    try:
        found.size, found.inode = source.size, source.inode
        page = source.read(0, L.PAGE)
        found.unreadable = source.unreadable
        copies = [source.read(at, L.COPY_BYTES) for at in COPIES]
        found.header, found.rots = weigh(Header.unpack, L.COPY_VERSION, page, copies, path)
        _read_slots(found, source, found.header)
        _read_footer(found, source, found.header)
        found.claims = found.sure > 0
    except UnsupportedVersion as error:
        found.error = error
        found.newer = is_good(L.HEADER, page)
    except Corrupt as error:
        found.error = error
    finally:
        source.close()
    return found


def examine(
    found: Segment,
    *,
    head: int = 0,
    live_end: int | None = None,
    index_sure: int = 0,
    passed: Callable[[int], None] | None = None,
) -> None:
    """Check everything that a segment holds; the header is known or guessed.

    ``head`` is where control says that the frames end, ``live_end`` the same for a log with
    writers: bytes after that are not checked. Index entries up to ``index_sure`` are in use.
    """
    header = found.header
    assert header is not None
    source = FileSource(found.path, passed)
    if found.inode and found.inode != source.inode:
        source.close()
        raise SegmentReplaced
    try:
        found.size = source.size
        _read_slots(found, source, header)
        if live_end is None:
            _read_footer(found, source, header)
        else:  # one that exists now was written after head was read, and covers more
            found.footer, found.footer_bad = None, False
        table = source.read(header.producers_offset, header.producers_bytes)
        wanted = (header.producers_bytes, header.producers_crc)
        found.producers_bad = bool(header.producers_bytes) and (
            (len(table), _core.crc32c(table)) != wanted
        )
        limit = min(found.size, header.footer_offset)
        sure = found.sure
        if live_end is not None:
            limit = min(limit, live_end)
            sure = live_end
        found.limit, found.required = limit, sure
        slot = found.slot
        found.frames = scan_frames(
            source,
            header,
            limit,
            sure=sure,
            head=head,
            mark=slot.offset if slot else 0,
            key_filter=_read_filter(found, source, header),
        )
        if found.footer is None and found.footer_bad:
            _read_footer(found, source, header)  # it may have just been written
        _check_index(found, source, max(index_sure, slot.index_count if slot else 0))
        found.unreadable = source.unreadable
    finally:
        source.close()


def _read_slots(found: Segment, source: FileSource, header: Header) -> None:
    found.slots, found.slots_bad = [], []
    for at in SLOTS:
        data = source.read(at, L.SLOT_BYTES)
        slot = Slot.unpack(data, header)
        if slot is None and any(data):
            slot = Slot.unpack(source.read(at, L.SLOT_BYTES), header)  # one is being written
            if slot is None:
                found.slots_bad.append(at)
        found.slots.append(slot)


def _read_footer(found: Segment, source: FileSource, header: Header) -> None:
    page = source.read(header.footer_offset, L.PAGE)
    if source.look_again() >= header.segment_bytes:  # the file has that size before it is sealed
        found.footer = SegmentSummary.unpack(page, header)
    found.footer_bad = found.footer is None and any(page)


def _read_filter(found: Segment, source: FileSource, header: Header) -> bytes | None:
    """The key filter of a sealed segment, if it has a valid one."""
    footer = found.footer
    if footer is None or footer.filter_pages is None:
        return None
    pages = source.read(header.segment_bytes, footer.filter_bytes)
    bad: int | None = len(pages) // L.PAGE
    if len(pages) == footer.filter_bytes:
        bad = _core.bad_filter_page(pages, header.uuid, header.base_seq, header.generation)
    found.filter_bad = None if bad is None else header.segment_bytes + bad * L.PAGE
    return pages if bad is None else None


def _check_index(found: Segment, source: FileSource, sure: int) -> None:
    """Compare the index with the frames, as far as it is in use."""
    frames, footer = found.frames, found.footer
    assert frames is not None
    if footer is not None:
        there = source.read(L.INDEX_OFFSET, footer.index_count * L.INDEX_ENTRY_BYTES)
        found.index_wanted = footer.index_count
        wanted = frames.index + segment.open_block(frames.walk)
        if frames.damaged or frames.end != "rolled" or len(wanted) != len(there):
            if _core.crc32c(there) != footer.index_crc:
                found.index_bad = 0
            return
    else:
        walk = frames.tail.walk if frames.tail is not None else frames.walk
        if frames.damaged:
            return
        wanted = frames.index[: walk.index_count * L.INDEX_ENTRY_BYTES]
        there = source.read(L.INDEX_OFFSET, len(wanted))
        found.index_wanted = min(sure, walk.index_count)
    wanted = _without_topics(wanted, there)
    if there != wanted:
        size = L.INDEX_ENTRY_BYTES
        found.index_bad = next(
            i for i in range(len(wanted)) if there[i * size :][:size] != wanted[i * size :][:size]
        )


def _without_topics(wanted: bytes, there: bytes) -> bytes:
    """The expected index without topics in entries that have none: older versions wrote none."""
    if wanted == there:
        return wanted
    entries = bytearray(wanted)
    for i in range(0, min(len(wanted), len(there)), L.INDEX_ENTRY_BYTES):
        at = slice(i + L.INDEX_ENTRY_TOPICS, i + L.INDEX_ENTRY_SEQ)
        if not any(there[at]):
            entries[at] = there[at]
    return bytes(entries)


def newest_settings(found: Segment, at: int) -> bytes:
    """The settings in the frame at an offset of a segment; its header's if that is 0."""
    assert found.header is not None
    if not at:
        return found.header.settings
    source = FileSource(found.path)
    try:
        commit = L.FRAME.get(source.read(at, L.FRAME_HEADER_BYTES), "commit")
        return source.read(at + L.FRAME_HEADER_BYTES, max(0, commit - 1))
    finally:
        source.close()


def guess_header(
    found: Segment, before: Segment | None, after: Segment | None, distance: int
) -> Header | None:
    """A header for a segment that lost its own, from what its neighbours say; None if neither can.

    ``after`` is the next one that has a header, ``distance`` segments later.
    The candidate sizes are the neighbours'; the one whose first frame is valid is taken.
    """
    near = before if before is not None and before.header is not None else after
    if near is None or near.header is None:
        return None
    number = near.header.number + 1 if near is before else near.header.number_first - distance
    if number < 1:
        return None
    guess = replace(
        near.header,
        base_seq=found.name_base,
        number=number,
        generation=1,  # seqs may have holes, as far as is known
        prior_append_ns=0,
        prior_event_max_ns=0,
        monotone=number == 1 or near.header.monotone,  # times before it cannot have been worse
        producers_bytes=0,
        producers_crc=0,
        compacted=False,
        merged=0,
    )
    if near is before and before is not None and before.frames is not None:
        walk = before.walk
        guess = replace(
            guess,
            prior_append_ns=walk.last_append_ns,
            prior_event_max_ns=walk.event_max_ns,
            monotone=walk.monotone,
            created_ns=walk.last_append_ns,
            settings=newest_settings(before, walk.settings_offset),
        )
    sizes = {n.header.segment_bytes for n in (before, after) if n is not None and n.header}
    if found.size % L.PAGE == 0 and L.SEGMENT_BYTES_MIN <= found.size <= L.SEGMENT_BYTES_MAX:
        sizes.add(found.size)
    guesses = [replace(guess, segment_bytes=n) for n in sorted(sizes)]
    guesses.sort(key=lambda h: h.segment_bytes != near.header.segment_bytes)  # type: ignore[union-attr]
    source = FileSource(found.path)
    try:
        told = [footer for header in guesses if (footer := _footer_for(source, header)) is not None]
        if not told:  # a compacted segment has a size of its own
            own = replace(guess, segment_bytes=_footer_at(source) + L.PAGE)
            told = [footer] if (footer := _footer_for(source, own)) is not None else []
        if near is before:  # it may have been merged with some before it
            told = [replace(h, merged=max(0, h.number - number)) for h in told]
        guesses = told or guesses
        for header in guesses:
            for nbytes in range(0, header.segment_bytes // L.PRODUCERS_SHARE + 1, L.PAGE):
                with_table = replace(header, producers_bytes=nbytes)
                if _first_frame_fits(source, with_table):
                    return with_table
    finally:
        source.close()
    return guesses[0]


def _footer_for(source: FileSource, header: Header) -> Header | None:
    """The header with what a valid footer says about it."""
    if source.size < header.segment_bytes:
        return None
    page = source.read(header.footer_offset, L.PAGE)
    if len(page) < L.PAGE:
        return None
    fields = L.FOOTER.unpack(page)
    told = replace(header, number=fields["number"], generation=fields["generation"])
    return told if SegmentSummary.unpack(page, told) is not None else None


def guess_alone(found: Segment, uuid: bytes, number: int) -> Header | None:
    """A header for a segment that lost its own and has no neighbour that could tell.

    The offset of the first frame gives the size of the index, and that the approximate size of the
    segment. A footer gives the rest. None if nothing in the file looks like a segment's.
    """
    source = FileSource(found.path)
    try:
        footer = read_identity(source)
        footer_at = _footer_at(source)
        start = _frames_start(source, found.name_base)
    finally:
        source.close()
    mode = files.status(found.path).st_mode & 0o066 | 0o600
    sealed = footer is not None and footer[1] == found.name_base
    if start is None:
        if not sealed:
            return None
        start = L.INDEX_OFFSET + segment.index_bytes_for(footer_at + L.PAGE)
    size = footer_at + L.PAGE if sealed else _size_for(start, found.size)
    if footer is not None and sealed:
        uuid, _, number, generation = footer
    else:
        generation = 1  # seqs may have holes, as far as is known
    return Header(
        uuid=uuid,
        base_seq=found.name_base,
        number=number,
        generation=generation,
        created_ns=_core.now_ns(),
        segment_bytes=size,
        prior_append_ns=0,
        prior_event_max_ns=0,
        monotone=True,
        settings=Settings(segment_size=size, file_mode=mode).to_json(),
        producers_bytes=max(0, start - L.INDEX_OFFSET - segment.index_bytes_for(size)),
    )


def read_identity(source: FileSource) -> tuple[bytes, int, int, int] | None:
    """The uuid, base, number and generation in the footer of a sealed segment; None: no footer."""
    page = source.read(_footer_at(source), L.PAGE) if source.size > L.PAGE else b""
    good = len(page) == L.PAGE and page.startswith(L.FOOTER_MAGIC)
    if not good or not is_good(L.FOOTER, page):
        return None
    fields = L.FOOTER.unpack(page)
    return fields["uuid"], fields["base_seq"], fields["number"], fields["generation"]


def _footer_at(source: FileSource) -> int:
    """Where the footer of a sealed segment is, by the size of the file and its key filter."""
    last = source.size - L.PAGE
    page = source.read(last, L.PAGE)
    if len(page) < L.PAGE or not is_good(L.FILTER, page):
        return last
    pages = L.FILTER.get(page, "pages")
    return max(0, last - pages * L.PAGE)


def _frames_start(source: FileSource, base_seq: int) -> int | None:
    """Where the frames of a segment without a header begin: at the first page that has one."""
    last = L.INDEX_OFFSET + segment.index_bytes_for(L.SEGMENT_BYTES_MAX) + _TABLE_MAX
    for at in range(L.INDEX_OFFSET + L.PAGE, min(source.size, last + 1), L.PAGE):
        if _is_first_frame(source, at, source.size, base_seq):
            return at
    starts = [
        slot.offset
        for at in SLOTS
        if (slot := Slot.unpack(source.read(at, L.SLOT_BYTES), None)) is not None
        and slot.last_frame == 0  # it has no frames, and the offset is where they begin
        and L.INDEX_OFFSET < slot.offset <= last
        and slot.offset % L.PAGE == 0
    ]
    return starts[0] if starts else None


def _size_for(start: int, file_bytes: int) -> int:
    """The size of a segment whose frames begin at ``start``: a common one, if one fits."""
    usual = [L.SEGMENT_BYTES_MIN << i for i in range(16)]
    for size in (n for n in usual if n >= file_bytes):
        if L.INDEX_OFFSET + segment.index_bytes_for(size) == start:
            return size
    size = ((start - L.INDEX_OFFSET) // L.INDEX_ENTRY_BYTES - 2) * L.INDEX_STEP
    return min(size, L.SEGMENT_BYTES_MAX)


def _first_frame_fits(source: FileSource, header: Header) -> bool:
    """Whether the first frame is where that header says that frames begin."""
    limit = min(source.size, header.footer_offset)
    return _is_first_frame(source, header.data_offset, limit, header.base_seq)


def _is_first_frame(source: FileSource, at: int, limit: int, base_seq: int) -> bool:
    """Whether the first frame of the segment of ``base_seq`` is at an offset."""
    start = source.read(at, L.FRAME_HEADER_BYTES) if at + L.FRAME_HEADER_BYTES <= limit else b""
    if len(start) < L.FRAME_HEADER_BYTES or not any(start):
        return False
    frame = L.FRAME.unpack(start)
    commit = frame["commit"]
    fits = frame["back"] == 0 and frame["seq"] >= base_seq and 0 < commit <= limit - at
    return fits and source.frame_is_valid(at, commit)
