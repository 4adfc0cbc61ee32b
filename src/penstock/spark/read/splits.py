"""Splits: the pieces of logs that Spark's tasks read, and reading them.

The driver cuts logs into splits and fixes where each ends; a task opens the log again wherever it
runs, and reads its split through the compiled scan.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

import penstock
from penstock.data.scan import Scan
from penstock.data.spans import Span, spans
from penstock.errors import Gap, gone_error
from penstock.reader import Query, make_query
from penstock.spark.read.logs import open_log, partition_of
from penstock.spark.read.offsets import NOT_FAILING, check_there
from penstock.spark.read.rows import Rows
from penstock.times import Ns

logger = logging.getLogger("penstock")

SPLIT_BYTES = 128 << 20  # about as large as Spark cuts files
SMALL_BYTES = 16 << 20  # takes a core about as long as starting and ending a task
BATCH_BYTES = 2 << 20  # of frames; less costs both sides more, more is memory for nothing
NS_MAX = (1 << 64) - 1


@dataclass(frozen=True)
class Topics:
    """Which topics are read: all, some, those that match, or some of some partitions."""

    names: frozenset[str] | None = None
    pattern: str | None = None
    assigned: dict[str, frozenset[int]] | None = None

    def in_partition(self, partition: int) -> Topics | None:
        """Which topics of one log are read; None if none of them."""
        if self.assigned is None:
            return self
        names = frozenset(t for t, numbers in self.assigned.items() if partition in numbers)
        return Topics(names) if names else None

    def only(self, names: frozenset[str]) -> Topics:
        """Those of these topics that are in ``names`` as well."""
        if self.assigned is not None:
            kept = {t: numbers for t, numbers in self.assigned.items() if t in names}
            return Topics(assigned=kept)
        if self.pattern is not None:
            return Topics(frozenset(t for t in names if re.fullmatch(self.pattern, t)))
        return Topics(names if self.names is None else names & self.names)


@dataclass(frozen=True)
class Picks:
    """Which events of a range are read."""

    topics: Topics = field(default_factory=Topics)
    since_ns: int = 0
    until_ns: int = NS_MAX  # exclusive

    @property
    def nothing(self) -> bool:
        """Whether no event can match."""
        return self.since_ns >= self.until_ns or self.topics.names == frozenset()


@dataclass(frozen=True)
class Care:
    """How a read treats loss and damage."""

    fail_on_loss: bool = True
    skip_damaged: bool = False


Range = tuple[str, penstock.Log, int, int]  # path, log, first seq, seq after the last


class Split(InputPartition):
    """A range of seqs of the log with that uuid, which a task must find at that path."""

    def __init__(self, log: str, start: int, stop: int, uuid: bytes | None = None) -> None:
        self.log = log
        self.start = start
        self.stop = stop
        self.uuid = uuid

    def __repr__(self) -> str:
        return f"Split({self.log!r}, {self.start}, {self.stop})"


def cut(
    ranges: list[Range],
    picks: Picks,
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[Split]:
    """Cut ranges of logs into splits.

    1. Segments in which no event can match are left out. The rest is cut into even splits of about
       SPLIT_BYTES, and never twice that, so many that all cores are busy to the end.
    2. No split has more events than ``max_records``.
    3. If there are fewer splits than ``min_partitions``, the largest are cut further.
    """
    found: dict[str, list[Span]] = {}
    uuids = {path: log._uuid() for path, log, _, _ in ranges}
    for path, log, start, stop in ranges:
        topics = picks.topics.in_partition(partition_of(path))
        if topics is None or picks.nothing:
            continue
        found[path] = spans(
            log,
            start,
            stop,
            topics=topics.names,
            since_ns=picks.since_ns,
            until_ns=picks.until_ns - 1,
        )
    most = _even_bytes(sum(span.nbytes for some in found.values() for span in some))
    pieces = [(path, span) for path, some in found.items() for span in _pieces(some, most)]
    counts = [1] * len(pieces)
    if max_records is not None:
        counts = [-(-(span.stop - span.start) // max_records) for _, span in pieces]
    if min_partitions is not None:
        counts = _raised([span for _, span in pieces], counts, min_partitions)
    return [
        Split(path, start, stop, uuids[path])
        for (path, span), n in zip(pieces, counts, strict=True)
        for start, stop in _even(span, n)
    ]


def _even_bytes(total: int) -> int:
    """The size of splits that leaves no core idle while another core reads the last split.

    Spark does not tell a source how many cores it has. In local mode it has those of this machine.
    A cluster may have more: there, splits stay below twice SPLIT_BYTES, and ``minPartitions`` asks
    for more of them.
    """
    cores = len(os.sched_getaffinity(0))
    rounds = max(1, round(total / (SPLIT_BYTES * cores)))
    return max(-(-total // (rounds * cores)), min(SMALL_BYTES, SPLIT_BYTES))


def _pieces(found: list[Span], most: int) -> Iterator[Span]:
    """Neighbours joined, then cut into pieces of equal bytes, each at most ``most``."""
    for run in _runs(found):
        total = sum(span.nbytes for span in run)
        n = max(1, min(-(-total // most), run[-1].stop - run[0].start))
        cuts = [run[0].start]
        before = 0
        for span in run:
            while len(cuts) < n and total * len(cuts) <= n * (before + span.nbytes):
                inside = total * len(cuts) - n * before
                cuts.append(span.start + (span.stop - span.start) * inside // (n * span.nbytes))
            before += span.nbytes
        for start, stop in itertools.pairwise([*cuts, run[-1].stop]):
            if start < stop:
                yield Span(start, stop, total // n)


def _runs(found: list[Span]) -> list[list[Span]]:
    """Spans that follow each other without a hole."""
    runs: list[list[Span]] = []
    for span in found:
        if runs and runs[-1][-1].stop == span.start:
            runs[-1].append(span)
        else:
            runs.append([span])
    return runs


def _raised(found: list[Span], counts: list[int], least: int) -> list[int]:
    """How many pieces to cut each span into, for ``least`` pieces in all, or one per event."""
    counts = list(counts)
    largest = [
        (-(s.stop - s.start) / n, i) for i, (s, n) in enumerate(zip(found, counts, strict=True))
    ]
    heapq.heapify(largest)
    for _ in range(least - sum(counts)):
        if not largest or largest[0][0] >= -1:
            break
        _, i = heapq.heappop(largest)
        counts[i] += 1
        heapq.heappush(largest, (-(found[i].stop - found[i].start) / counts[i], i))
    return counts


def _even(span: Span, n: int) -> Iterator[tuple[int, int]]:
    """A range cut into ``n`` about equal ranges."""
    count = span.stop - span.start
    n = max(1, min(n, count))
    for i in range(n):
        yield span.start + count * i // n, span.start + count * (i + 1) // n


def query_of(start: int, stop: int, topics: Topics, picks: Picks, care: Care) -> Query:
    """What a scan of a range of one log is asked for."""
    return make_query(
        start=start,
        stop=stop,
        since=Ns(picks.since_ns) if picks.since_ns else None,
        until=None if picks.until_ns == NS_MAX else Ns(picks.until_ns),
        topic=topics.names,
        on_damage="skip" if care.skip_damaged else "raise",
    )


def read_split(split: Split, rows: Rows, picks: Picks, care: Care) -> Iterator[pa.RecordBatch]:
    """The rows of a split, in batches."""
    partition = partition_of(split.log)
    topics = picks.topics.in_partition(partition)
    if topics is None or picks.nothing:
        return
    with open_log(split.log) as log:
        if split.uuid not in (None, log._uuid()):
            raise gone_error(split.log)
        start, stop = check_there(split.log, log, split.start, split.stop, fail=care.fail_on_loss)
        while start < stop:
            scan = Scan(
                log,
                query_of(start, stop, topics, picks, care),
                columns=rows.scanned(with_topic=topics.pattern is not None),
                time_unit="us",
                batch_bytes=BATCH_BYTES,
            )
            try:
                for batch in scan.to_batches():
                    chosen = batch if topics.pattern is None else _matching(batch, topics.pattern)
                    if chosen.num_rows:
                        yield rows.record(chosen, split.log, partition)
                start = stop
            except Gap as gap:
                if care.fail_on_loss:
                    raise Gap(f"{gap}; {NOT_FAILING}", first_seq=gap.first_seq) from None
                logger.warning("%s; reading on from there, since failOnDataLoss is false", gap)
                start = gap.first_seq if gap.first_seq > start else stop
            if scan.skipped:
                logger.warning("%s: skipped %d damaged events", split.log, scan.skipped)


def _matching(batch: pa.RecordBatch, pattern: str) -> pa.RecordBatch:
    """The rows of a batch whose topics match."""
    import pyarrow.compute as pc  # large, and most reads do not need it

    column = batch.column("topic")
    names = [t for t in pc.unique(column).to_pylist() if re.fullmatch(pattern, t)]
    wanted = pc.is_in(column, value_set=pa.array(names, column.type))
    return batch.filter(wanted)
