"""What compaction and erasures say that they did, or would do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.report import Progress, many

_LINES_MAX = 60  # segments that are printed one by one


@dataclass(frozen=True, slots=True)
class CompactRequest:
    """What a caller asks of a compaction, checked."""

    versions: int
    grace_ns: int
    drop_keyless: bool
    memory: int  # bytes for the table of keys
    dry_run: bool
    timeout: float | None
    progress: Progress | None


@dataclass(frozen=True, slots=True)
class CompactedSegment:
    """One segment that compaction looked at.

    Attributes
    ----------
    base_seq, next_seq : int
        The range of seqs that it covers, up to before ``next_seq``.
    events, bytes : int
        Events that it had, and the bytes of their frames.
    dead, dead_bytes : int
        Those that compaction removes.
    action : {"keep", "rewrite", "merge"}
        "keep": it stays as it is. "rewrite": a new generation replaces it. "merge": its events go
        into the segment that begins at ``into``.
    into : int
        First seq of the segment that has its events afterwards.
    """

    base_seq: int
    next_seq: int
    events: int
    bytes: int
    dead: int
    dead_bytes: int
    action: Literal["keep", "rewrite", "merge"]
    into: int


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """What a compaction did, or, as a dry run, would do; ``print`` shows it as a table.

    Attributes
    ----------
    path : str
        The log.
    dry_run : bool
        Whether nothing was changed.
    segments : tuple of CompactedSegment
        Every sealed segment, oldest first.
    spilled : int
        Events whose keys found no room in memory and were written to a temporary file meanwhile.

    >>> log = penstock.open(path)
    >>> log.extend([penstock.Entry(b"%d" % i, key=b"k") for i in range(100)])
    range(1, 101)
    >>> log.steward.roll()
    101
    >>> plan = log.steward.compact(dry_run=True)
    >>> plan.events, plan.dead, plan.share > 0.9
    (100, 99, True)
    >>> log.steward.compact().dead, len(log), log[100].value
    (99, 1, b'99')
    """

    path: str
    dry_run: bool
    segments: tuple[CompactedSegment, ...]
    spilled: int = 0

    @property
    def events(self) -> int:
        """Events in sealed segments, before."""
        return sum(s.events for s in self.segments)

    @property
    def dead(self) -> int:
        """Events that were removed."""
        return sum(s.dead for s in self.segments)

    @property
    def bytes(self) -> int:
        """Bytes of the events in sealed segments, before."""
        return sum(s.bytes for s in self.segments)

    @property
    def dead_bytes(self) -> int:
        """Bytes of the events that were removed."""
        return sum(s.dead_bytes for s in self.segments)

    @property
    def share(self) -> float:
        """The share of the bytes that was dead, from 0 to 1."""
        return self.dead_bytes / self.bytes if self.bytes else 0.0

    @property
    def rewritten(self) -> int:
        """Segments that were replaced, merged ones included."""
        return sum(s.action != "keep" for s in self.segments)

    def __str__(self) -> str:
        what = "would remove" if self.dry_run else "removed"
        lines = [
            f"{self.path}: compaction {what} {self.dead} of {many(self.events, 'event')} "
            f"({_size(self.dead_bytes)} of {_size(self.bytes)}, {self.share:.0%}) in "
            f"{many(self.rewritten, 'segment')} of {len(self.segments)}"
        ]
        if not self.segments:
            return lines[0]
        lines.append(f"{'first seq':>20}  {'events':>10}  {'dead':>10}  {'dead bytes':>10}  action")
        for s in self.segments[:_LINES_MAX]:
            action = f"merge into {s.into}" if s.action == "merge" else s.action
            dead = f"{s.dead:>10}  {_size(s.dead_bytes):>10}"
            lines.append(f"{s.base_seq:>20}  {s.events:>10}  {dead}  {action}")
        if len(self.segments) > _LINES_MAX:
            lines.append(f"... and {len(self.segments) - _LINES_MAX} more segments")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Remaining:
    """A file of the log in which bytes of an erased key are, or may be, left.

    Attributes
    ----------
    path : str
        The file.
    why : str
        Why the bytes are still there, and what to do.
    """

    path: str
    why: str

    def __str__(self) -> str:
        return f"{self.path}: {self.why}"


@dataclass(frozen=True, slots=True)
class ErasureReport:
    """What an erasure of a key did, or would do.

    Attributes
    ----------
    path : str
        The log.
    dry_run : bool
        Whether nothing was changed.
    events, bytes : int
        Events of the key, expired ones and deletions too, and the bytes of their frames.
    segments : tuple of int
        First seqs of the segments that had some, each of which was replaced.
    rolled : bool
        Whether the segment that takes appends had some, and was ended for that.
    overwritten : int
        Bytes of old files that were overwritten with zeros before they were deleted.
    remaining : tuple of Remaining
        Files that still have bytes of the key, or may have some.

    >>> log = penstock.open(path)
    >>> log.append(b"1 Elm Street", key=b"ann"), log.append(b"5 High Street", key=b"bob")
    (1, 2)
    >>> done = log.steward.erase(b"ann")
    >>> done.events, done.complete, [event.seq for event in log]
    (1, True, [2])
    """

    path: str
    dry_run: bool
    events: int
    bytes: int
    segments: tuple[int, ...]
    rolled: bool
    overwritten: int = 0
    remaining: tuple[Remaining, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether no file of the log has bytes of the key any more."""
        return not self.remaining and not (self.dry_run and self.events)

    def __str__(self) -> str:
        what = "would erase" if self.dry_run else "erased"
        lines = [
            f"{self.path}: {what} {many(self.events, 'event')} ({_size(self.bytes)}) in "
            f"{many(len(self.segments), 'segment')}"
        ]
        return "\n".join(lines + [str(r) for r in self.remaining])


def _size(nbytes: int) -> str:
    """Bytes for people."""
    amount, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{nbytes} B" if unit == "B" else f"{amount:.1f} {unit}"
