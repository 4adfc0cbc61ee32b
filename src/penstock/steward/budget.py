"""What a log takes on disk, and how much more it may: the budget ``max_bytes`` of its settings.

It is looked at when space is allocated, never by an append that finds room. Far from the limit an
estimate is enough: the last count, and the segments begun since. Near it everything is counted.
"""

from __future__ import annotations

from time import monotonic

from penstock import layout as L
from penstock.errors import DiskFull, NoSuchLog, NotFound
from penstock.segments import segment
from penstock.settings import Settings
from penstock.steward.plan import size_text
from penstock.system import files
from penstock.system.directory import Directory, Name

_VALID = 1.0  # seconds that a count is good for an estimate, at least: a load may be under way
_SHARE = 50  # or this many times as long as it took
_SEAL_SHARE = 32  # what sealing adds to a segment, its key filter above all, is less than this part


class Budget:
    """The files in a log's directory, counted when need be."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._total = 0
        self._number = 0  # of the active segment when they were counted
        self._good_until = 0.0

    def used(self) -> int:
        """What every file of the log takes on disk now."""
        return _used_in(self._directory)

    def room(self, settings: Settings, number: int, wanted: int) -> int | None:
        """How many bytes may still be allocated, if that matters for ``wanted``; None: it does not.

        ``number`` is that of the active segment.
        """
        if not settings.max_bytes:
            return None
        most = settings.max_bytes - _reserve(settings)
        begun = max(0, number - self._number) + 1
        if (
            monotonic() < self._good_until
            and self._total + begun * 2 * settings.segment_size + wanted <= most
        ):
            return None
        began = monotonic()
        self._total, self._number = self.used(), number
        now = monotonic()
        self._good_until = now + max(_VALID, _SHARE * (now - began))
        return most - self._total

    def check(self, settings: Settings, number: int, wanted: int) -> None:
        """Raise `DiskFull` if ``wanted`` more bytes would be too many."""
        room = self.room(settings, number, wanted)
        if room is not None and wanted > room:
            raise self.full(settings)

    def full(self, settings: Settings) -> DiskFull:
        """The error for an append that needs more space than the log may take."""
        return DiskFull(
            f"{self._directory.path}: the log may take {size_text(settings.max_bytes)} on disk "
            f"(max_bytes), has {size_text(self._total)}, and keeps "
            f"{size_text(_reserve(settings))} to seal its segment; let it keep less "
            "(configure(keep_bytes=...), steward.trim) or raise max_bytes, and append again; "
            "nothing was lost",
            filename=self._directory.path,
        )


def _reserve(settings: Settings) -> int:
    """Bytes that sealing the active segment may add to it."""
    size = settings.segment_size
    return segment.index_bytes_for(size) + L.PAGE + size // _SEAL_SHARE


def _used_in(directory: Directory, depth: int = 2) -> int:
    total = 0
    for name in files.list_dir(directory):
        total += _used_by(directory.file(name), depth)
    return total


def _used_by(path: Name, depth: int) -> int:
    try:
        found = files.status(path)
        if depth > 1 and files.is_directory(found):  # consumers, and loads under way
            inner = files.hold_dir(path)
            try:
                return found.st_blocks * 512 + _used_in(inner, depth - 1)
            finally:
                inner.close()
    except (NotFound, NoSuchLog):
        return 0  # just deleted
    return found.st_blocks * 512
