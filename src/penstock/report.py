"""Results of verify and repair: problems that say what to do, a report, and a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

Severity = Literal["normal", "damage"]
Progress: TypeAlias = Callable[[int, int], None]  # called with the amount done and the total


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that verify found.

    Attributes
    ----------
    kind : str
        "frame", "batch", "end", "torn", "header", "checkpoint", "control", "index", "filter",
        "footer", "settings", "producers", "missing", "chain", "name", "spurious", "roll", "size",
        "unreadable", "version", "left-over" or "many".
    severity : {"normal", "damage"}
        "normal" is what a crash or a copy of the files leaves; no event is lost by it.
    path : str
        The file, or the log's directory.
    message : str
        What is wrong and what to do, in one sentence.
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
        after = "" if self.last_seq is None else f", after seq {self.last_seq}"
        return f"{self.severity}: {self.path}{where}{after}: {self.message}"


@dataclass(frozen=True, slots=True)
class Report:
    """What verify found in a log.

    Attributes
    ----------
    path : str
        The log.
    segments, events, frames, bytes : int
        What was checked and is valid; the bytes are those of the frames.
    first_seq, last_seq : int or None
        Of the valid events; None if there are none.
    live : bool
        Whether a writer had the log open, so that only published events were checked.
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


@dataclass(frozen=True, slots=True)
class Step:
    """One segment that repair writes.

    Attributes
    ----------
    action : str
        "rebuild": written again from its valid frames; "rename": given its right name; "add": a
        missing segment; "move": moved aside, as it cannot be read and nothing in it is needed.
    name : str
        The file's name.
    message : str
        Why, and what it will hold.
    """

    action: str
    name: str
    message: str

    def __str__(self) -> str:
        return f"{self.action} {self.name}: {self.message}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What repair would do, or has done.

    Attributes
    ----------
    path : str
        The log.
    target : str or None
        Where the repaired log is; None: nowhere, nothing was done.
    steps : tuple of Step
        Empty if nothing needs repair.
    lost : tuple of (int, int)
        First and last seq of each range of events that cannot be saved.
    salvaged : int
        Events in segments that are written again.

    >>> penstock.open(path).append(b"hello")
    1
    >>> str(penstock.repair(path)).endswith("nothing to repair")
    True
    """

    path: str
    target: str | None
    steps: tuple[Step, ...]
    lost: tuple[tuple[int, int], ...]
    salvaged: int

    def __str__(self) -> str:
        if not self.steps:
            return f"{self.path}: nothing to repair"
        done = f"repaired as {self.target}" if self.target is not None else "can be repaired"
        lines = [f"{self.path}: {done}, {self.salvaged} events salvaged"]
        lines += [f"lost: seq {a} to {b}" if b > a else f"lost: seq {a}" for a, b in self.lost]
        if not self.lost:
            lines.append("no event is lost, as far as is known")
        return "\n".join(lines + [str(s) for s in self.steps])
