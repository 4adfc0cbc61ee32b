"""What retention would do, or has done, with each segment of a log, and why; and as a table.

It only describes: `rules` decides, and `retention` reads and deletes.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from penstock.report import many

Verdict = Literal["delete", "keep", "held", "active"]
State = Literal["there", "gone", "expired", "missing", "to come"]

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")
_COLUMNS = ("segments", "seqs", "size", "newest", "verdict", "why")
_LINES_MAX = 60  # of a printed plan; all segments are in `segments`


@dataclass(frozen=True, slots=True)
class Judged:
    """What retention says about one segment.

    Attributes
    ----------
    first_seq, last_seq : int
        Its events; of the segment that takes appends, those that it has so far.
    bytes : int
        What its file takes on disk.
    newest : datetime or None
        When its last event was appended, in UTC; None if that is not known.
    verdict : {"delete", "keep", "held", "active"}
        "held": a rule would delete it, but a consumer or group still needs it.
    rule : str or None
        The setting that deletes it now or later, such as "keep_seconds".
    held_by : tuple of str
        Consumers and groups that hold it back.
    overtakes : tuple of str
        Consumers and groups that have not committed all of it and lose it if it is deleted.
    goes_at : datetime or None
        When ``keep_seconds`` deletes it, in UTC.
    why : str
        All of this in one sentence.
    """

    first_seq: int
    last_seq: int
    bytes: int
    newest: dt.datetime | None
    verdict: Verdict
    rule: str | None
    held_by: tuple[str, ...]
    overtakes: tuple[str, ...]
    goes_at: dt.datetime | None
    why: str

    def __str__(self) -> str:
        return f"{self.verdict} seq {self.first_seq} to {self.last_seq}: {self.why}"


@dataclass(frozen=True, slots=True)
class Retention:
    """What `Steward.retain` would do, or has done.

    Attributes
    ----------
    path : str
        The log.
    dry_run : bool
        Whether nothing was changed.
    first_seq : int
        The first seq before; ``new_first_seq`` is the one after.
    segments : tuple of Judged
        Every segment, oldest first. Only a dry run looks up the times of those that stay.
    leftovers : tuple of str
        Files of segments that were gone before: an earlier run could not delete them, or a loss of
        power brought them back. They are deleted as well.
    left_alone : tuple of str
        Files with the names of such segments that are not known to be this log's.

    >>> log = penstock.open(path)
    >>> log.append(b"old")
    1
    >>> plan = log.steward.retain(dry_run=True)
    >>> plan.deleted, plan.new_first_seq
    ((), 1)
    >>> [found.verdict for found in plan.segments]
    ['active']
    """

    path: str
    dry_run: bool
    first_seq: int
    new_first_seq: int
    segments: tuple[Judged, ...]
    leftovers: tuple[str, ...] = ()
    left_alone: tuple[str, ...] = ()

    @property
    def deleted(self) -> tuple[Judged, ...]:
        """The segments that go, or have gone."""
        return tuple(found for found in self.segments if found.verdict == "delete")

    @property
    def freed_bytes(self) -> int:
        """What they take on disk."""
        return sum(found.bytes for found in self.deleted)

    def __str__(self) -> str:
        gone, total = self.deleted, sum(found.bytes for found in self.segments)
        verb = "would delete" if self.dry_run else "deleted"
        lines = [
            f"{self.path}: {verb} {len(gone)} of {many(len(self.segments), 'segment')}, "
            f"{size_text(self.freed_bytes)} of {size_text(total)}; "
            + (
                f"first_seq {'would go' if self.dry_run else 'went'} from {self.first_seq} "
                f"to {self.new_first_seq}"
                if self.new_first_seq != self.first_seq
                else f"first_seq stays {self.first_seq}"
            )
        ]
        lines += _table(self.segments)
        if self.leftovers:
            verb = "to delete" if self.dry_run else "deleted"
            lines.append(f"{many(len(self.leftovers), 'file')} left over {verb}")
        lines += [f"left alone, not known to be of this log: {path}" for path in self.left_alone]
        lost = sorted({name for found in gone for name in found.overtakes})
        if lost:
            verb = "would get" if self.dry_run else "get"
            lines.append(f"{', '.join(lost)}: {verb} Gap, with events that were not committed")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Why:
    """Why an event is there, or is not.

    Attributes
    ----------
    seq : int
        The event.
    state : {"there", "gone", "expired", "missing", "to come"}
        "gone": retention or a trim; "expired": its ttl is over; "missing": it lies in a hole, which
        compaction leaves; "to come": nothing was appended with that seq yet.
    segment : Judged or None
        What retention says about its segment; None also if that is archived.
    text : str
        All of this in words.
    """

    seq: int
    state: State
    segment: Judged | None
    text: str

    def __str__(self) -> str:
        return self.text


def size_text(nbytes: int) -> str:
    """A number of bytes for people.

    >>> size_text(700), size_text(3 << 20)
    ('700 B', '3.0 MiB')
    """
    if nbytes < 1024:
        return f"{nbytes} B"
    amount = float(nbytes)
    for unit in _UNITS:
        amount /= 1024
        if amount < 1024 or unit == _UNITS[-1]:
            break
    return f"{amount:.1f} {unit}"


def moment(ns: int) -> dt.datetime | None:
    """A time in UTC; None for 0, and for one that no datetime can hold."""
    if not ns:
        return None
    try:
        return dt.datetime.fromtimestamp(ns / 1e9, dt.UTC)
    except (OverflowError, ValueError):
        return None


def moment_text(found: dt.datetime | None) -> str:
    """A time to the second."""
    return "-" if found is None else f"{found:%Y-%m-%d %H:%M:%SZ}"


def _table(segments: tuple[Judged, ...]) -> list[str]:
    """One line for each run of segments of which the same is said."""
    rows = [_COLUMNS, *_rows(segments)]
    if len(rows) > _LINES_MAX:
        more = len(rows) - _LINES_MAX
        rows = rows[: _LINES_MAX // 2] + rows[-_LINES_MAX // 2 :]
        rows.insert(_LINES_MAX // 2, ("...", f"{more} more lines", "", "", "", ""))
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    right = (0, 2)
    return [
        "  "
        + "  ".join(
            cell.rjust(widths[i]) if i in right else cell.ljust(widths[i])
            for i, cell in enumerate(row)
        ).rstrip()
        for row in rows
    ]


def _rows(segments: tuple[Judged, ...]) -> Iterator[tuple[str, ...]]:
    def said(found: Judged) -> tuple[object, ...]:
        return found.verdict, found.rule, found.held_by, found.overtakes, _short(found)

    for _, run in groupby(segments, said):
        found = list(run)
        first, last = found[0], found[-1]
        seqs = f"{first.first_seq} to {last.last_seq}" if last.last_seq >= first.first_seq else "-"
        yield (
            str(len(found)),
            seqs,
            size_text(sum(one.bytes for one in found)),
            moment_text(last.newest),
            first.verdict,
            first.why if len(found) == 1 else _short(first),
        )


def _short(found: Judged) -> str:
    """What is said of every segment of a run: without the times of one of them."""
    if found.verdict == "keep" and found.goes_at is not None:
        return f"{found.rule}: from {found.goes_at:%Y-%m-%d %H}h on"
    return found.why
