"""Where a read begins and ends, by Kafka's options: offsets, timestamps, and JSON by log.

An offset is the seq of the next event to read, so a log read up to 10 has the offset 11.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import penstock
from penstock.errors import Gap, Usage
from penstock.spark.options import Options, json_object
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
    """One end of what is read, as the user said it."""

    side: Literal["starting", "ending"]
    word: int = EARLIEST  # for all logs, if nothing else is said
    offsets: dict[str, Any] | None = None
    timestamp_ms: int | None = None
    timestamps_ms: dict[str, Any] | None = None
    or_latest: bool = False  # if no event is as young as that

    def of(self, logs: Iterable[tuple[str, penstock.Log]], ends: dict[str, int]) -> dict[str, int]:
        """The offset of this edge in each log; ``ends`` are those behind their last events."""
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
            raise Usage(f"option '{self.side}Offsets': {given!r} is no offset of {path}")
        if given == EARLIEST:
            return log.first_seq
        return end if given == LATEST else max(1, given)

    def _timed(self, path: str, log: penstock.Log, given: object, end: int) -> int:
        if isinstance(given, bool) or not isinstance(given, int) or given < 0:
            raise Usage(f"{given!r} is no timestamp in milliseconds, for {path}")
        for event in log.read(stop=end, since=Ns(min(given * 1_000_000, NS_MAX))):
            return event.seq
        if self.side == "starting" and not self.or_latest:
            raise Usage(
                f"{path}: no event is as young as {given} ms, where the read was to start; "
                "startingOffsetsByTimestampStrategy=latest starts behind the last one then"
            )
        return end


def starting_edge(options: Options, *, stream: bool) -> Edge:
    """Where to start."""
    by_strategy = options.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
    edge = _edge(options, "starting", "latest" if stream else "earliest", by_strategy == "latest")
    if not stream and (edge.word == LATEST or _says(edge, LATEST)):
        raise Usage("option 'startingOffsets': a table that starts at the latest offset is empty")
    return edge


def ending_edge(options: Options) -> Edge:
    """Where to end."""
    edge = _edge(options, "ending", "latest", True)
    if edge.word == EARLIEST or _says(edge, EARLIEST):
        raise Usage("option 'endingOffsets': a table that ends at the earliest offset is empty")
    return edge


def _says(edge: Edge, word: int) -> bool:
    """Whether the JSON of offsets says that of some log."""
    inner = [v for value in (edge.offsets or {}).values() for v in _leaves(value)]
    return word in inner


def _leaves(value: object) -> list[object]:
    return list(value.values()) if isinstance(value, dict) else [value]


def _edge(
    options: Options, side: Literal["starting", "ending"], default: str, or_latest: bool
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
            f"option '{side}Offsets' is earliest, latest or JSON such as "
            f'{{"path/of/log": 23}}; not {text!r}'
        )
    return Edge(side, words[default], offsets=json_object(f"{side}Offsets", text))


def check_there(
    path: str, log: penstock.Log, start: int, stop: int, *, fail: bool
) -> tuple[int, int]:
    """The part of a range that is there; `Gap` if some is not and ``fail``.

    What retention has removed is not there, nor is what lies behind the end of a log that was made
    anew or lost its tail.
    """
    first, end = log.first_seq, log.last_seq + 1
    if fail and start < min(first, stop):
        raise Gap(
            f"{path}: the events from seq {start} on are gone; the first one still there is {first}"
            f"; {NOT_FAILING}",
            first_seq=first,
        )
    if fail and stop > end:
        raise Gap(
            f"{path}: the log ends at seq {end - 1}, but it is to be read up to {stop - 1}: it was "
            f"made anew, or cut, or is not seen from here; {NOT_FAILING}",
            first_seq=first,
        )
    stop = min(stop, end)
    return min(max(start, first), stop), stop


NOT_FAILING = "failOnDataLoss=false goes on with what is there"
