"""The log as a stream: ``spark.readStream.format("penstock").load(path)``.

Spark keeps one `StreamReader` in a process beside the driver, and asks it again and again for the
latest offset. That must be cheap: logs stay open, and new ones are looked for only now and then. An
offset is a JSON object: for each log, by its path, the seq of the next event to read.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

import penstock
from penstock.data.spans import spans, stop_within
from penstock.errors import Gap, NoSuchLog, Usage
from penstock.spark.quirks import Shipped
from penstock.spark.read.logs import find_logs, is_log, open_log
from penstock.spark.read.offsets import NOT_FAILING, check_there, starting_edge
from penstock.spark.read.source import read_options, request
from penstock.spark.read.splits import Split, read_split

logger = logging.getLogger("penstock")

LOOK_SECONDS = 0.5  # between two looks for new logs

Offset = dict[str, int]


class StreamReader(Shipped, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The latest offsets of logs, and what to read next."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        options = read_options(given, stream=True)
        self._request = request(options, schema)
        self._start = starting_edge(options, stream=True)
        self._rows_max = options.whole("maxOffsetsPerTrigger")
        self._bytes_max = options.nbytes("maxBytesPerTrigger")
        self._rows_min = options.whole("minOffsetsPerTrigger")
        self._delay = options.seconds("maxTriggerDelay", "15m")
        if options.given("maxTriggerDelay") and self._rows_min is None:
            raise Usage("option 'maxTriggerDelay' needs minOffsetsPerTrigger, which it limits")
        if self._rows_max and self._rows_min and self._rows_min > self._rows_max:
            raise Usage(
                f"option 'minOffsetsPerTrigger' must be at most maxOffsetsPerTrigger, got "
                f"{self._rows_min} and {self._rows_max}"
            )
        self._logs: dict[str, penstock.Log] = {}
        self._looked: float | None = None
        self._since: float | None = None  # when the wait for minOffsetsPerTrigger began
        self._target: Offset | None = None  # with AvailableNow: the end when the query started
        self._places: dict[str, tuple[int, int] | None] = {}
        self._remade: set[str] = set()
        self._reported: set[tuple[str, str]] = set()

    def __getstate__(self) -> dict[str, object]:
        """What is pickled to the tasks, which open logs themselves."""
        return {**self.__dict__, "_logs": {}, "_looked": None}

    def _look(self, *, now: bool = False) -> dict[str, penstock.Log]:
        """The logs that exist, open."""
        since = time.monotonic()
        if now or self._looked is None or since - self._looked >= LOOK_SECONDS:
            first = self._looked is None and self._request.care.fail_on_loss
            for path in find_logs(self._request.paths, missing="globs" if first else "any"):
                self._open(path)
            for path in list(self._logs):
                self._open(path)
            self._looked = since
        return self._logs

    def _open(self, path: str) -> penstock.Log | None:
        """One log; None if it does not exist."""
        log = self._logs.get(path)
        place = _place(path)
        if log is not None and place != self._places[path]:
            self._logs.pop(path).close()
            self._remade.add(path)
            log = None
        if log is None and place is not None:
            log = open_log(path)
            self._logs[path] = log
            self._places[path] = place
        return log

    def _ends(self) -> Offset:
        """The seq after the last event of each log."""
        return {path: self._request.end_of(log) for path, log in self._look().items()}

    def initialOffset(self) -> Offset:
        """Where a query without a checkpoint starts."""
        logs = self._look(now=True)
        return _sorted(self._start.of(logs.items(), self._ends()))

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit that Spark shows; `latestOffset` obeys all that were given."""
        if self._rows_max is not None:
            return ReadMaxRows(self._rows_max)
        if self._bytes_max is not None:
            return ReadMaxBytes(self._bytes_max)
        if self._rows_min is not None:
            return ReadMinRows(self._rows_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Ignore what is appended from now on."""
        self._look(now=True)
        self._target = self._ends()

    def reportLatestOffset(self) -> Offset:
        """The latest offset without limits, for the query's progress."""
        return _sorted(self._ends())

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """How far to read next, from ``start``."""
        ends = self._ends() if self._target is None else self._target
        self._check_lost(start)
        ends = {**start, **{path: max(end, start.get(path, 0)) for path, end in ends.items()}}
        begins = {path: start.get(path, self._first(path)) for path in ends}
        if isinstance(limit, ReadAllAvailable):
            return _sorted(ends)
        if self._waits_for_more(sum(ends[p] - begins[p] for p in ends)):
            return _sorted(start)
        if self._rows_max is not None:
            ends = _shared(begins, ends, {p: ends[p] - begins[p] for p in ends}, self._rows_max)
        if self._bytes_max is not None:
            ends = self._within_bytes(begins, ends, self._bytes_max)
        if any(ends[path] > begins[path] for path in ends):
            self._since = None
        return _sorted(ends)

    def _first(self, path: str) -> int:
        log = self._logs.get(path)
        return 1 if log is None else log.first_seq

    def _check_lost(self, start: Offset) -> None:
        """Report a log that is gone, was replaced, or has fewer events than were read."""
        for path, offset in start.items():
            log = self._logs.get(path)
            if log is None:
                what = "is gone"
            elif path in self._remade and offset > 1:
                what = "was replaced"
            elif log.last_seq + 1 < offset:
                what = "has fewer events than were read"
            else:
                continue
            if self._request.care.fail_on_loss:
                raise Gap(f"{path}: the log {what}, at offset {offset}; {NOT_FAILING}")
            if (path, what) not in self._reported:
                self._reported.add((path, what))
                logger.warning("%s: the log %s, at offset %d", path, what, offset)

    def _waits_for_more(self, available: int) -> bool:
        """Whether to wait for ``minOffsetsPerTrigger``."""
        if self._rows_min is None or self._target is not None or available >= self._rows_min:
            return False
        now = time.monotonic()
        if self._since is None:
            self._since = now
        return now - self._since < self._delay

    def _within_bytes(self, begins: Offset, ends: Offset, nbytes: int) -> Offset:
        sizes = {
            path: sum(s.nbytes for s in spans(log, begins[path], ends[path]))
            for path, log in self._logs.items()
            if path in ends
        }
        if sum(sizes.values()) <= nbytes:
            return ends
        found = dict(ends)
        for path, share in _shares(sizes, nbytes).items():
            found[path] = stop_within(self._logs[path], begins[path], ends[path], share)
        return found

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """The splits of a batch. After a restart, Spark asks again for the same batch."""
        asked = self._request
        ranges = []
        for path, stop in sorted(end.items()):
            log = self._open(path)
            first = start.get(path)
            if log is None:
                if first != stop and asked.care.fail_on_loss:
                    raise NoSuchLog(f"{path}: the log is gone; {NOT_FAILING}", filename=path)
                continue
            begin = log.first_seq if first is None else first
            if begin < stop:
                there = check_there(path, log, begin, stop, fail=asked.care.fail_on_loss)
                ranges.append((path, log, *there))
        return asked.splits(ranges, asked.picks)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one split."""
        if isinstance(partition, Split):
            asked = self._request
            yield from read_split(partition, asked.rows, asked.picks, asked.care)

    def commit(self, end: Offset) -> None:
        """Do nothing: the position is in the checkpoint, and reading removes nothing."""

    def stop(self) -> None:
        """Close the logs."""
        while self._logs:
            self._logs.popitem()[1].close()


def _place(path: str) -> tuple[int, int] | None:
    """Which directory or ring file is at a path; None if there is no log."""
    if not is_log(path):
        return None
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _sorted(offset: Offset) -> Offset:
    """Sorted, because Spark compares offsets as text."""
    return dict(sorted(offset.items()))


def _shared(begins: Offset, ends: Offset, sizes: Mapping[str, int], most: int) -> Offset:
    """Ends that leave at most that many events, shared in proportion to what each log has."""
    if sum(sizes.values()) <= most:
        return ends
    shares = _shares(sizes, most)
    return {path: begins[path] + shares.get(path, 0) for path in ends}


def _shares(sizes: Mapping[str, int], most: int) -> dict[str, int]:
    """``most`` shared out in proportion, so that they add up to it."""
    total = sum(sizes.values())
    shares = {path: size * most // total for path, size in sizes.items()}
    left = most - sum(shares.values())
    for path in sorted(sizes, key=lambda p: shares[p] - sizes[p] * most / total):
        if left and shares[path] < sizes[path]:
            shares[path] += 1
            left -= 1
    return shares
