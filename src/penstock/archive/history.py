"""The archived segments of a log, as its readers see them: which there are, and maps of them.

A map is private memory. Blocks are decompressed into it before a reader goes there, and all that
the maps of one handle have loaded is bounded: the oldest map is let go, and lives on only as long
as a reader or an event points into it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator

from penstock import _core
from penstock import layout as L
from penstock._core import SegmentMap
from penstock.archive import chain, location, seekable
from penstock.archive.depots import Depot
from penstock.archive.naming import Stored
from penstock.archive.seekable import Archived
from penstock.errors import Corrupt, NotFound
from penstock.segments import segment
from penstock.segments.segment import SegmentSummary
from penstock.settings import Settings
from penstock.system.directory import Directory

CACHE_BYTES = 128 << 20  # decompressed bytes that the maps of one handle keep
MAP_BYTES = 32 << 20  # a reader that goes through a segment begins a new map after that
AHEAD_BYTES = 1 << 20  # compressed bytes that are read at once by a reader that goes through it


class History:
    """What a log has in its archive."""

    def __init__(self, depot: Depot, uuid: bytes | None, recent: list[SegmentMap]) -> None:
        """``uuid`` is the log's; None: that of the only log that is there."""
        self._depot = depot
        self._uuid = uuid
        self._recent = recent
        self._look = chain.looking_in(depot)
        self._entries: dict[int, Stored] | None = None
        self._first_local = 0  # the archive counts below this seq; 0: all of it
        self._bases: list[int] = []

    def bases(self, first_local: int) -> list[int]:
        """The bases of the archived segments before the first one in the log's directory."""
        if self._entries is None or first_local != self._first_local:
            self.list_again()
            self._first_local = first_local
        assert self._entries is not None
        bases = self._bases
        return bases[: bisect_left(bases, first_local)] if first_local else list(bases)

    def list_again(self) -> None:
        """Look which archived segments there are now."""
        if self._uuid is None:
            found = chain.only_log(self._depot)
        else:
            found = self._depot.entries(self._uuid)
        entries = chain.current(found, self._look)
        self._entries = {entry.base_seq: entry for entry in entries}
        self._bases = list(self._entries)

    def all_maps(self) -> Iterator[tuple[str, SegmentMap]]:
        """Every archived segment of the log, also those that do not count."""
        for entry in self._depot.entries(self.uuid()):
            archived = self._look(entry)
            yield archived.path, _map(Blocks(self._depot, entry, archived, []))

    def forget(self) -> None:
        """Drop the listing: segments were archived since."""
        self._entries = None

    def has(self, base_seq: int) -> bool:
        """Whether a segment is in the archive, as last listed, and counts."""
        counts = not self._first_local or base_seq < self._first_local
        return counts and self._entries is not None and base_seq in self._entries

    def entry(self, base_seq: int) -> Stored:
        """The archived segment with that base."""
        assert self._entries is not None
        return self._entries[base_seq]

    def archived(self, base_seq: int) -> Archived:
        """What the end of that archived segment says."""
        return self._look(self.entry(base_seq))

    def uuid(self) -> bytes:
        """The uuid of the log."""
        if self._uuid is None:
            self.list_again()
            assert self._entries
            self._uuid = next(iter(self._entries.values())).uuid
        return self._uuid

    def settings(self) -> Settings:
        """The settings that the log had when the last segment was archived."""
        assert self._entries is not None
        found = self._look(self._entries[self._bases[-1]]).settings
        entries = self._entries.values()
        return found.changed(archive="", holes=found.holes or any(e.generation for e in entries))

    def open(self, base_seq: int) -> SegmentMap:
        """A map of an archived segment."""
        entry = self.entry(base_seq)
        archived = self._look(entry)
        if archived.next_seq <= base_seq and not archived.generation:
            raise archived.damage("its record is not consistent", 0)
        return _map(Blocks(self._depot, entry, archived, self._recent))


def _map(blocks: Blocks) -> SegmentMap:
    archived = blocks.archived
    m = _core.archived_map(blocks, archived.path, array("Q", archived.bounds).tobytes())
    header = seekable.header_of(archived, m.bytes_at(0, L.INDEX_OFFSET))
    summary = SegmentSummary.unpack(m.bytes_at(header.footer_offset, L.PAGE), header)
    if (
        summary is None
        or summary.next_seq != archived.next_seq
        or archived.file_bytes != header.segment_bytes + summary.filter_bytes
    ):
        raise archived.damage("its footer is not that of this segment", 0)
    segment.describe(m, header, summary)
    return m


class Blocks:
    """Loads the blocks of one archived segment."""

    def __init__(
        self, depot: Depot, entry: Stored, archived: Archived, recent: list[SegmentMap]
    ) -> None:
        self.archived = archived
        self._depot = depot
        self._entry = entry
        self._recent = recent
        self._last = -1  # the block that was loaded last
        self._ahead: dict[int, memoryview] = {}  # blocks that were read, and not asked for yet

    def load(self, number: int) -> bytes:
        """The bytes of a block."""
        archived = self.archived
        data = self._ahead.pop(number, None)
        if data is None:
            after = number + 1
            if number == self._last + 1:
                while (
                    after < archived.blocks and archived.place(number, after + 1)[1] <= AHEAD_BYTES
                ):
                    after += 1
            found = self._read(number, after)
            data = found.pop(number)
            self._ahead = found
        self._last = number
        return archived.decompress(data, number)

    def _read(self, first: int, after: int) -> dict[int, memoryview]:
        archived = self.archived
        try:
            data = self._depot.read(self._entry.name, *archived.place(first, after))
        except NotFound as error:
            raise Corrupt(
                f"{archived.path}: this archived segment is gone; put it back from a copy",
                path=archived.path,
            ) from error
        return dict(zip(range(first, after), archived.split(data, first, after), strict=True))

    def loaded(self, m: SegmentMap) -> None:
        """Keep what the maps of the handle have loaded within its bound."""
        total = sum(kept.loaded for kept in self._recent if kept.blocks is not None)
        while total > CACHE_BYTES:
            oldest = next(kept for kept in self._recent if kept.blocks is not None)
            total -= oldest.loaded
            self._recent[:] = [kept for kept in self._recent if kept is not oldest]

    def fresh(self, m: SegmentMap) -> SegmentMap:
        """The map to go on with: another one if this has become large."""
        if m.loaded <= MAP_BYTES:
            return m
        made = _map(Blocks(self._depot, self._entry, self.archived, self._recent))
        made.coder = m.coder
        if m in self._recent:
            self._recent[:] = [kept for kept in self._recent if kept is not m]
            self._recent.append(made)
        return made


def past_of(
    where: str, directory: Directory | None, uuid: bytes | None, recent: list[SegmentMap]
) -> History:
    """The archived segments of the log in ``directory``, whose settings say where they are."""
    return History(location.depot_at(where, directory), uuid, recent)
