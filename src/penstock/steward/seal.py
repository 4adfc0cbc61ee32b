"""Seal a segment that has rolled: last index entry, summary, footer; and free its unused space.

It needs no lock: every process that seals a segment writes the same bytes to the same places, and
the footer comes last. A segment that is not sealed is complete, too. A footer also
guarantees that the segment's frames, and all before them, are on disk.
"""

from __future__ import annotations

from penstock import _core
from penstock import layout as L
from penstock._core import SegmentMap, Walked
from penstock.errors import Corrupt, NotFound
from penstock.segments import segment
from penstock.segments.segment import Header, SegmentSummary
from penstock.segments.store import Store
from penstock.steward.slack import free_slack
from penstock.system import files


def seal_finished(store: Store, active_base: int, maps: dict[int, SegmentMap]) -> int:
    """Seal the segments after the last sealed one, oldest first; returns how many.

    A damaged one is left as it is: the error is raised when all others are sealed.

    The caller has synced them all: recovery relies on a footer for that.
    ``maps`` are existing maps for writing: mapping a segment again costs more than sealing it.
    """
    unsealed: list[tuple[int, Header]] = []
    damage: Corrupt | None = None
    for base in reversed([b for b in store.bases(fresh=True) if b < active_base]):
        try:
            header = _unsealed(store, base)
        except NotFound:
            continue  # deleted by retention
        except Corrupt as error:
            damage = error
            continue
        if header is None:
            break
        if not store.why_foreign(header, base):
            unsealed.append((base, header))
    sealed = 0
    for base, header in reversed(unsealed):
        try:
            known = maps.get(base)
            m, own = (known, header) if known else segment.map_segment(store.file(base), write=True)
            if not m.data_end:  # else it was sealed just now, and may even be compacted
                seal(m, own)
                sealed += 1
        except NotFound:
            continue
        except Corrupt as error:
            damage = damage or error
    if damage is not None:
        raise damage
    return sealed


def _unsealed(store: Store, base: int) -> Header | None:
    """The header of a segment that has no footer yet."""
    path = store.file(base)
    fd = files.open_file(path, write=False)
    try:
        header = segment.read_header(fd, path)
        return None if segment.read_footer(fd, header, path) else header
    finally:
        files.close(fd)


def seal(m: SegmentMap, header: Header) -> None:
    """Seal one segment that ends in a roll frame; without one it is damaged: `Corrupt`."""
    index_space = segment.index_bytes_for(header.footer_offset - header.data_offset)
    files.allocate(m.fd, L.INDEX_OFFSET, L.INDEX_OFFSET + index_space, m.path)
    walk, state, bad_at = m.walk(m.grown(), check_crc=False, write_index=True)
    if not walk.rolled:
        raise m.damage(bad_at or walk.offset, state, walk.next_seq - 1)
    seal_walked(m, header, walk, topics_of(m, header, walk))


def seal_walked(
    m: SegmentMap, header: Header, walk: Walked, topics: frozenset[bytes] | None
) -> None:
    """Seal a segment with an index that a walk to its roll frame has written."""
    entry_at = L.INDEX_OFFSET + walk.index_count * L.INDEX_ENTRY_BYTES
    m.write(entry_at, segment.open_block(walk))
    index_count = walk.index_count + 1
    _core.fail_point("seal.indexed")
    key_filter = m.key_filter(walk.offset) if header.version >= L.KEY_FILTER_VERSION else None
    summary = SegmentSummary.of(
        walk,
        index_crc=m.crc_of(L.INDEX_OFFSET, index_count * L.INDEX_ENTRY_BYTES),
        topics=topics,
        sealed_ns=walk.last_append_ns,  # the same in every process that seals it
        filter_pages=None if key_filter is None else len(key_filter) // L.PAGE,
    )
    end = header.segment_bytes + summary.filter_bytes
    files.allocate(m.fd, header.footer_offset, end, m.path)
    _core.fail_point("seal.allocated")
    if key_filter:
        files.write_at(m.fd, key_filter, header.segment_bytes, m.path)
        _core.fail_point("seal.filtered")
    files.write_at(m.fd, summary.pack(header), header.footer_offset, m.path)
    _core.fail_point("seal.written")
    index_bytes = segment.pages(index_count * L.INDEX_ENTRY_BYTES)
    free_slack(m.fd, header, segment.pages(summary.data_end), index_bytes, m.path)


def topics_of(m: SegmentMap, header: Header, walk: Walked) -> frozenset[bytes] | None:
    """The topics of a walked segment; None if they are too many to keep."""
    topics = m.topics(header.data_offset, walk.offset)
    fits = sum(2 + len(t) for t in topics) <= L.TOPICS_BYTES_MAX
    return frozenset(topics) if fits else None
