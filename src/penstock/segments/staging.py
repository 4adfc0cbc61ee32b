"""Files of staged events: frames that are stored outside a log until they are appended to it.

Such a file looks like a segment that has frames but no header: space for that and for the index,
then the frames (`staged.pxi`). It is not trusted: its writer gives the number of its events and
their digest.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from penstock import _core
from penstock import layout as L
from penstock._core import Given
from penstock.errors import Corrupt, PenstockError, TooLarge
from penstock.segments import segment
from penstock.system import files
from penstock.system.forks import Begun

SUFFIX = ".frames"


@dataclass(frozen=True)
class Staged:
    """One file of staged events, with the data that its writer gives about them."""

    path: str
    rows: int
    segment_bytes: int
    end: int
    digest: int

    @property
    def start(self) -> int:
        """The offset of its frames."""
        return _start(self.segment_bytes)

    @property
    def nbytes(self) -> int:
        """Bytes of all its frames."""
        return self.end - self.start


def _start(segment_bytes: int) -> int:
    return L.INDEX_OFFSET + segment.index_bytes_for(segment_bytes)


def check_size(fd: int, staged: Staged) -> None:
    room = segment.room_in(staged.segment_bytes)
    if not 0 < staged.nbytes <= room or files.size(fd, staged.path) < staged.end:
        raise cut_short(staged)


def cut_short(staged: Staged) -> Corrupt:
    return Corrupt(
        f"{staged.path}: the staged rows are damaged: its frames "
        f"do not reach {staged.end}. Nothing was published; run the write again",
        path=staged.path,
    )


class Writer:
    """Stages rows in files ``stem-0``, ``stem-1``, …; each gets its name when it is complete."""

    def __init__(self, stem: str, segment_bytes: int, mode: int) -> None:
        self._stem = stem
        self._segment_bytes = segment_bytes
        self._mode = mode
        self._start = _start(segment_bytes)
        self._stop = self._start + segment.room_in(segment_bytes)
        self._done: list[Staged] = []
        self._begun = Begun("write of staged rows")
        self._fd = -1
        self._at = self._rows = self._last = self._digest = 0

    def write(self, given: Iterable[Given]) -> tuple[Staged, ...]:
        """Stage all rows; if that fails, nothing is left."""
        try:
            for rows in given:
                self._begun.check()
                self._add(rows)
            self._begun.check()
            self._finish()
        except BaseException:
            self._clear()
            raise
        finally:
            if self._fd >= 0:
                files.close(self._fd)
        return tuple(self._done)

    def _clear(self) -> None:
        """Delete what was written; in a child of a fork it belongs to the parent."""
        if self._begun.here:
            with suppress(PenstockError):
                for staged in self._done:
                    files.unlink(staged.path)
                if self._fd >= 0:
                    files.unlink(self._temporary)

    @property
    def _path(self) -> str:
        return f"{self._stem}-{len(self._done)}{SUFFIX}"

    @property
    def _temporary(self) -> str:
        return f"{self._path}.tmp"

    def _add(self, rows: Given) -> None:
        while len(rows):
            if self._fd < 0:
                self._begin()
            room = self._stop - self._at
            taken = len(rows)
            frames, last, digest = self._frames(rows)
            if len(frames) > room:
                taken = rows.fitting(room, taken)
                frames, last, digest = self._frames(rows[:taken])
            if len(frames) <= room:
                files.write_at(self._fd, frames, self._at, self._temporary)
                self._rows += taken
                self._at += len(frames)
                self._last, self._digest = last, digest
                rows = rows[taken:]
            elif self._rows:
                self._finish()
            else:
                raise TooLarge(
                    f"a row must fit a segment of {self._segment_bytes} bytes, got {len(frames)}; "
                    "nothing was written"
                )

    def _frames(self, rows: Given) -> tuple[bytes, int, int]:
        return _core.stage_frames(rows, self._rows + 1, self._last, self._digest)

    def _begin(self) -> None:
        self._fd = files.create_file(self._temporary, self._mode)
        segment.mark_begun(self._fd, self._temporary)
        files.allocate(self._fd, 0, self._start, self._temporary)
        self._at = self._start
        self._rows = self._last = self._digest = 0

    def _finish(self) -> None:
        """Give the file its name, if there is one; the roll frame will fit in it."""
        if self._fd < 0:
            return
        end = segment.pages(self._at + L.FRAME_HEADER_BYTES)
        files.allocate(self._fd, self._at, end, self._temporary)
        files.rename(self._temporary, self._path)
        self._done.append(
            Staged(self._path, self._rows, self._segment_bytes, self._at, self._digest)
        )
        files.close(self._fd)
        self._fd = -1
