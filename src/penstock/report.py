"""What verify hands out: problems, in words that say what to do, and the report that holds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["normal", "damage"]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that verify found.

    Attributes
    ----------
    kind : str
        "frame", "batch", "end", "torn", "header", "checkpoint", "control", "index", "footer",
        "settings", "producers", "missing", "chain", "name", "spurious", "roll", "size",
        "unreadable", "version", "left-over" or "many".
    severity : {"normal", "damage"}
        "normal" is what a crash, or somebody's copy, leaves behind and costs nothing.
    path : str
        The file, or the log's directory.
    message : str
        What is wrong and what to do, in a sentence.
    offset : int or None
        Where in the file.
    last_seq : int or None
        The last good event before it.
    lost : (int, int) or None
        First and last seq of the events that cannot be read, where that is known.
    """

    kind: str
    severity: Severity
    path: str
    message: str
    offset: int | None = None
    last_seq: int | None = None
    lost: tuple[int, int] | None = None

    def __str__(self) -> str:
        where = "" if self.offset is None else f" at offset {self.offset}"
        behind = "" if self.last_seq is None else f" behind seq {self.last_seq}"
        return f"{self.severity}: {self.path}{where}{behind}: {self.message}"


@dataclass(frozen=True, slots=True)
class Report:
    """What verify found out about a log.

    Attributes
    ----------
    path : str
        The log.
    segments, events, frames, bytes : int
        What was looked at and found good; the bytes are those of the frames.
    first_seq, last_seq : int or None
        Of the events that are good; None if there is none.
    live : bool
        Whether somebody was appending, so that only what was published was looked at.
    problems : tuple of Problem
        In the order of the log.
    ring : bool
        Whether the log is a ring, which has no segments.

    >>> log = penstock.open(path)
    >>> log.extend([b"a", b"b"])
    range(1, 3)
    >>> report = log.verify()
    >>> report.ok, report.events, report.last_seq
    (True, 2, 2)
    >>> print(str(report).splitlines()[1])
    1 segment, 2 events (seq 1 to 2), 2 frames, 96 bytes of frames
    """

    path: str
    segments: int
    events: int
    frames: int
    bytes: int
    first_seq: int | None
    last_seq: int | None
    live: bool
    problems: tuple[Problem, ...]
    ring: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged."""
        return not any(p.severity == "damage" for p in self.problems)

    def __str__(self) -> str:
        damage = sum(p.severity == "damage" for p in self.problems)
        seqs = "" if self.first_seq is None else f" (seq {self.first_seq} to {self.last_seq})"
        what = "a ring" if self.ring else many(self.segments, "segment")
        lines = [
            f"{self.path}: {many(damage, 'damaged place') if damage else 'ok'}",
            f"{what}, {many(self.events, 'event')}{seqs}, "
            f"{many(self.frames, 'frame')}, {self.bytes} bytes of frames",
        ]
        return "\n".join(lines + [str(p) for p in self.problems])


def many(count: int, what: str) -> str:
    """A count and what it counts."""
    return f"{count} {what}{'' if count == 1 else 's'}"
