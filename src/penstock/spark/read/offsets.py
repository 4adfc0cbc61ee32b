"""Where a read begins and ends, by Kafka's options: offsets, timestamps, and JSON by log.

An offset is the seq of the next event to read, so a log read up to 10 has the offset 11.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import penstock
from penstock.errors import Gap, Usage
from penstock.spark.options import SourceOptions, json_object
from penstock.spark.read.logs import by_log
from penstock.times import NS_MAX, Ns

EARLIEST, LATEST = -2, -1
STARTING = (
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
)
ENDING = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")


@dataclass(frozen=True)
class Edge:
    """Where a read starts or ends, as the options say."""

    side: Literal["starting", "ending"]
    word: int = EARLIEST  # for all logs, if nothing else is given
    offsets: dict[str, Any] | None = None
    timestamp_ms: int | None = None
    timestamps_ms: dict[str, Any] | None = None
    or_latest: bool = False  # if no event has that time or a later one

    def of(self, logs: Iterable[tuple[str, penstock.Log]], ends: dict[str, int]) -> dict[str, int]:
        """The offset of this edge in each log; ``ends`` are those after the last events."""
        opened = dict(logs)
        if self.timestamp_ms is not None:
            times: dict[str, object] = dict.fromkeys(opened, self.timestamp_ms)
        elif self.timestamps_ms is not None:
            times = by_log(f"{self.side}OffsetsByTimestamp", self.timestamps_ms, opened)
        elif self.offsets is not None:
            given = by_log(f"{self.side}Offsets", self.offsets, opened)
            return {
                path: self._numbered(path, log, given[path], ends[path])
                for path, log in opened.items()
            }
        else:
            return {
                path: log.first_seq if self.word == EARLIEST else ends[path]
                for path, log in opened.items()
            }
        return {path: self._timed(path, opened[path], times[path], ends[path]) for path in opened}

    def _numbered(self, path: str, log: penstock.Log, given: object, end: int) -> int:
        if isinstance(given, bool) or not isinstance(given, int) or given < EARLIEST:
            raise Usage(
                f"option '{self.side}Offsets' must have an offset for {path}, got {given!r}"
            )
        if given == EARLIEST:
            return log.first_seq
        return end if given == LATEST else max(1, given)

    def _timed(self, path: str, log: penstock.Log, given: object, end: int) -> int:
        if isinstance(given, bool) or not isinstance(given, int) or given < 0:
            raise Usage(
                f"option '{self.side}OffsetsByTimestamp' must have milliseconds since 1970 for "
                f"{path}, got {given!r}"
            )
        for event in log.read(stop=end, since=Ns(min(given * 1_000_000, NS_MAX))):
            return event.seq
        if self.side == "starting" and not self.or_latest:
            raise Usage(
                f"{path}: no event has the time {given} ms or a later one, so there is nothing to "
                "start from; startingOffsetsByTimestampStrategy=latest starts at the end instead"
            )
        return end


def starting_edge(options: SourceOptions, *, stream: bool) -> Edge:
    """Where to start."""
    by_strategy = options.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
    edge = _edge(options, "starting", "latest" if stream else "earliest", by_strategy == "latest")
    if not stream and (edge.word == LATEST or _says(edge, LATEST)):
        raise Usage("option 'startingOffsets' must not be latest for a table: it would be empty")
    return edge


def ending_edge(options: SourceOptions) -> Edge:
    """Where to end."""
    edge = _edge(options, "ending", "latest", True)
    if edge.word == EARLIEST or _says(edge, EARLIEST):
        raise Usage("option 'endingOffsets' must not be earliest: the table would be empty")
    return edge


def _says(edge: Edge, word: int) -> bool:
    """Whether the JSON of offsets has that word for some log."""
    inner = [v for value in (edge.offsets or {}).values() for v in _leaves(value)]
    return word in inner


def _leaves(value: object) -> list[object]:
    return list(value.values()) if isinstance(value, dict) else [value]


def _edge(
    options: SourceOptions, side: Literal["starting", "ending"], default: str, or_latest: bool
) -> Edge:
    words = {"earliest": EARLIEST, "latest": LATEST}
    timestamp = options.whole(f"{side}Timestamp", least=0)
    if timestamp is not None:
        return Edge(side, words[default], timestamp_ms=timestamp, or_latest=or_latest)
    by_time = options.object(f"{side}OffsetsByTimestamp")
    if by_time is not None:
        return Edge(side, words[default], timestamps_ms=by_time, or_latest=or_latest)
    text = options.text(f"{side}Offsets", default) or ""
    if text.strip().lower() in words:
        return Edge(side, words[text.strip().lower()])
    if not text.lstrip().startswith("{"):
        raise Usage(
            f"option '{side}Offsets' must be earliest, latest or JSON such as "
            f'{{"path/of/log": 23}}, got {text!r}'
        )
    return Edge(side, words[default], offsets=json_object(f"{side}Offsets", text))


def check_there(
    path: str, log: penstock.Log, start: int, stop: int, *, fail: bool
) -> tuple[int, int]:
    """The part of a range that is there; `Gap` if some is not and ``fail``.

    Events that retention has removed are not there, nor are seqs after the end of a log that was
    replaced or has lost its tail.
    """
    first, end = log.first_seq, log.last_seq + 1
    if fail and start < min(first, stop):
        raise Gap(
            f"{path}: the events from seq {start} on are gone, the log starts at seq {first}; "
            f"{NOT_FAILING}",
            first_seq=first,
        )
    if fail and stop > end:
        raise Gap(
            f"{path}: the log ends at seq {end - 1}, but the read goes to seq {stop - 1}: it was "
            f"replaced or cut, or this host does not see all of it; {NOT_FAILING}",
            first_seq=first,
        )
    stop = min(stop, end)
    return min(max(start, first), stop), stop


NOT_FAILING = "failOnDataLoss=false reads what is there"
