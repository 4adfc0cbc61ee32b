"""The segments of a log as maintenance sees them: a listing, and what files and headers say.

It reads as little as it can: a listing each time, the size of a file and one header only if asked.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from penstock.errors import Corrupt, NotFound
from penstock.segments import segment
from penstock.segments.segment import Header
from penstock.segments.store import Store
from penstock.steward.rules import Finished
from penstock.system import files
from penstock.system.directory import Directory


class Shelf:
    """The segments up to the active one, whose base is ``active_base``."""

    def __init__(self, directory: Directory, uuid: bytes, active_base: int, floor: int) -> None:
        self.directory = directory
        self._uuid = uuid
        self._store = Store(directory, uuid, [], lambda: active_base)
        self._store.raise_floor(floor)
        listed = [base for base in self._store.bases(fresh=True) if base <= active_base]
        self.named = segment.bases_in(self._store.names)  # also of files that are not the log's
        self.bases = self._ours(listed, active_base)
        self._sizes: dict[int, int] = {}
        self._headers: dict[int, Header | None] = {}

    def _ours(self, listed: list[int], active_base: int) -> list[int]:
        """Without files of another log; their headers are read only if the numbers say so.

        Segments of one log are numbered by ones. As many files as numbers are all of this log.
        """
        first, last = self.header_of(listed[0]), self.header_of(active_base)
        count = last.number - first.number + 1 if first is not None and last is not None else 0
        if first is not None and self._is_ours(first, listed[0]) and count == len(listed):
            return listed
        self._store.survey()
        return [base for base in self._store.bases() if base <= active_base]

    def _is_ours(self, header: Header, base: int) -> bool:
        return header.uuid == self._uuid and header.base_seq == base

    def header_of(self, base: int) -> Header | None:
        """The header of a segment; None if it is damaged or gone."""
        path = self._store.file(base)
        try:
            fd = files.open_file(path, write=False)
        except NotFound:
            return None
        try:
            return segment.read_header(fd, path)
        except Corrupt:
            return None
        finally:
            files.close(fd)

    def finished(self, next_seq: int, tip_bytes: int) -> Finished:
        """The segments, for the rules."""
        return Finished(self.bases, next_seq, tip_bytes, self._nbytes, self._newest_ns)

    def _nbytes(self, index: int) -> int:
        base = self.bases[index]
        found = self._sizes.get(base)
        if found is None:
            try:
                found = segment.disk_bytes(self._store.file(base))
            except NotFound:
                found = 0  # just deleted
            self._sizes[base] = found
        return found

    def _newest_ns(self, index: int) -> int:
        """When the last event of a segment was appended, or one soon after it; 0: not known.

        The header of the next segment says so, even if this one is damaged.
        """
        for later in self.bases[index + 1 :]:
            header = self._header(later)
            if header is not None:
                return header.prior_append_ns
        return 0

    def _header(self, base: int) -> Header | None:
        if base not in self._headers:
            self._headers[base] = self.header_of(base)
        return self._headers[base]

    def leftovers(self, seq: int) -> tuple[list[int], list[int]]:
        """Segments with no event from ``seq`` on, oldest first; and files that only look so.

        Those of the log are deleted, also if an earlier run, or a loss of power, left them. A file
        counts if its header says that it is of this log and before the segment with ``seq``.
        """
        at = bisect_right(self.bases, seq) - 1
        if at < 0:
            return [], []
        first = self.bases[at]
        boundary = self._header(first)
        ours: list[int] = []
        others: list[int] = []
        for base in self.named[: bisect_left(self.named, first)]:
            header = self.header_of(base)
            good = (
                header is not None
                and boundary is not None
                and self._is_ours(header, base)
                and header.number < boundary.number
            )
            (ours if good else others).append(base)
        return ours, others

    def file(self, base: int) -> str:
        """The path of a segment."""
        return self._store.file(base)
