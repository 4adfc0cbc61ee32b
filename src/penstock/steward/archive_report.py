"""What archiving says that it did, or would do."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from penstock.report import Progress, many

_LINES_MAX = 60  # segments that are printed one by one


@dataclass(frozen=True, slots=True)
class ArchiveRequest:
    """What a caller asks of archiving, checked."""

    to: str | os.PathLike[str] | None
    keep_local: int
    dry_run: bool
    timeout: float | None
    progress: Progress | None


@dataclass(frozen=True, slots=True)
class ArchivedSegment:
    """One segment of an archiving.

    Attributes
    ----------
    base_seq, next_seq : int
        The range of seqs that it covers, up to before ``next_seq``.
    bytes : int
        What it took in the log: the bytes up to the end of its frames.
    archived_bytes : int
        Size of the archived file; 0 if a dry run does not know it.
    action : {"move", "store", "keep"}
        "move": it is in the archive only. "store": it is there, and in the log's directory too.
        "keep": of a dry run, it is in both already.
    """

    base_seq: int
    next_seq: int
    bytes: int
    archived_bytes: int
    action: Literal["move", "store", "keep"]


@dataclass(frozen=True, slots=True)
class ArchiveReport:
    """What an archiving did, or, as a dry run, would do; ``print`` shows it as a table.

    Attributes
    ----------
    path : str
        The log.
    to : str
        Where the archive is: a directory or a URL.
    dry_run : bool
        Whether nothing was changed.
    segments : tuple of ArchivedSegment
        The segments, oldest first.
    """

    path: str
    to: str
    dry_run: bool
    segments: tuple[ArchivedSegment, ...]

    @property
    def moved(self) -> int:
        """Segments that are in the archive only."""
        return sum(s.action == "move" for s in self.segments)

    @property
    def bytes(self) -> int:
        """What the segments took in the log's directory."""
        return sum(s.bytes for s in self.segments)

    @property
    def archived_bytes(self) -> int:
        """What they take in the archive."""
        return sum(s.archived_bytes for s in self.segments)

    def __str__(self) -> str:
        what = "would archive" if self.dry_run else "archived"
        lines = [
            f"{self.path}: {what} {many(len(self.segments), 'segment')} to {self.to}: "
            f"{self.bytes} bytes" + ("" if self.dry_run else f" as {self.archived_bytes}")
        ]
        for one in self.segments[:_LINES_MAX]:
            size = f"{one.archived_bytes:>12}" if one.archived_bytes else f"{'':>12}"
            lines.append(
                f"  {one.action:<6} seq {one.base_seq} to {one.next_seq - 1}: "
                f"{one.bytes:>12} {size}"
            )
        if len(self.segments) > _LINES_MAX:
            lines.append(f"  and {len(self.segments) - _LINES_MAX} more")
        return "\n".join(lines)
