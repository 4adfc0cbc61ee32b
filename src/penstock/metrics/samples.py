"""What is measured: one `Sample` per number, from the public state of each log.

It opens logs for reading only, and never keeps one open between two calls. A log that fails is a
sample too, never an exception.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from penstock.consumers.listing import ConsumerInfo
from penstock.consumers.reading import Lag
from penstock.errors import Gone, PenstockError, Usage, WrongType
from penstock.groups.listing import GroupInfo
from penstock.layout import C_LAST_APPEND_NS
from penstock.log import Log
from penstock.opening import open as open_log
from penstock.places import exists, find
from penstock.stats import BackgroundJob, Disk, Ring, Stats
from penstock.system import files

PathOrLog: TypeAlias = "str | os.PathLike[str] | Log[Any]"
Logs: TypeAlias = "PathOrLog | Iterable[PathOrLog]"

OPEN_SECONDS = 2.0  # to wait for a process that is opening the log: scrapes have a time limit

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class Family:
    """A metric: its name, without ``_total`` for a counter, its type and what it means."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str


@dataclass(frozen=True, slots=True)
class Sample:
    """One number of a family, with its labels in the order in which they are written."""

    family: Family
    labels: tuple[tuple[str, str], ...]
    value: float


UP = Family("penstock_up", "gauge", "1 if the log can be opened and read, else 0.")
ERROR = Family("penstock_error", "gauge", "1 for the kind of error that keeps the log down.")
INFO = Family("penstock_log_info", "gauge", "Always 1; the labels describe the log.")
APPENDS = Family("penstock_appends", "counter", "Events appended since the log was created.")
FIRST_SEQ = Family("penstock_first_seq", "gauge", "Seq of the oldest event.")
EVENTS = Family("penstock_events", "gauge", "Events that are in the log now.")
DURABLE_SEQ = Family("penstock_durable_seq", "gauge", "Seq up to which events are on disk.")
LAST_APPEND = Family(
    "penstock_last_append_timestamp_seconds", "gauge", "When the last event was appended."
)
LIVE = Family("penstock_live", "gauge", "1 while a process has the log open for writing.")
POISONED = Family("penstock_poisoned", "gauge", "1 after a failed sync: appends are refused.")
SEGMENTS = Family("penstock_segments", "gauge", "Segment files; 1 for a ring.")
DISK = Family("penstock_disk_bytes", "gauge", "Bytes on disk that the log's files take.")
DISK_FREE = Family("penstock_disk_free_bytes", "gauge", "Free bytes of the log's file system.")
ALLOCATED = Family(
    "penstock_disk_allocated_bytes", "gauge", "Bytes on disk, with what was allocated ahead."
)
DEAD = Family(
    "penstock_disk_dead_bytes", "gauge", "Bytes that compaction would free, when last counted."
)
LIMIT = Family("penstock_disk_limit_bytes", "gauge", "max_bytes of the log, if it has one.")
RATE = Family("penstock_disk_growth_bytes_per_second", "gauge", "How fast it grew lately.")
FULL_AT = Family(
    "penstock_disk_full_timestamp_seconds", "gauge", "When it has no room left at that rate."
)
FOREIGN = Family("penstock_foreign_files", "gauge", "Files in the log that are not part of it.")
REPAIRS = Family("penstock_repairs", "counter", "Appends of dead writers that were repaired.")
TAKEOVERS = Family("penstock_takeovers", "counter", "Write locks taken over from dead writers.")
ROLLS = Family("penstock_rolls", "counter", "New segments that were begun.")
SYNCS = Family("penstock_syncs", "counter", "Syncs to disk.")

RING_BYTES = Family("penstock_ring_bytes", "gauge", "Bytes of the ring for frames.")
RING_USED = Family("penstock_ring_used_bytes", "gauge", "Bytes of the ring in use.")
RING_APPENDED = Family("penstock_ring_appended_bytes", "counter", "Bytes ever appended.")
RING_LOST = Family("penstock_ring_lost_bytes", "counter", "Damaged bytes that were dropped.")

CONSUMER_UP = Family("penstock_consumer_up", "gauge", "1 if the consumer can be read, else 0.")
CONSUMER_LIVE = Family("penstock_consumer_live", "gauge", "1 while a process owns the consumer.")
CONSUMER_SEQ = Family("penstock_consumer_committed_seq", "gauge", "Seq that it goes on at.")
LAG_EVENTS = Family("penstock_consumer_lag_events", "gauge", "Events that it has yet to commit.")
LAG_BYTES = Family("penstock_consumer_lag_bytes", "gauge", "Bytes of those events.")
LAG_SECONDS = Family("penstock_consumer_lag_seconds", "gauge", "Age of the oldest of them.")
LAST_SEEN = Family(
    "penstock_consumer_last_seen_timestamp_seconds", "gauge", "When its owner was last seen."
)

GROUP_UP = Family("penstock_group_up", "gauge", "1 if the group can be read, else 0.")
GROUP_LIVE = Family("penstock_group_live", "gauge", "1 while a worker of the group is alive.")
GROUP_FRESH = Family("penstock_group_lag_events", "gauge", "Events that no worker has looked at.")
GROUP_AGE = Family("penstock_group_lag_seconds", "gauge", "Age of the oldest of them.")
GROUP_OPEN = Family(
    "penstock_group_unfinished_events", "gauge", "Events looked at that have no outcome yet."
)
GROUP_CLAIMED = Family("penstock_group_claimed_events", "gauge", "Events that a worker has now.")
GROUP_DEAD = Family("penstock_group_dead_letters", "gauge", "Dead letters not tried again.")
GROUP_STOPPED = Family("penstock_group_stopped", "gauge", "1 if its breaker has stopped it.")

JOB_FAILURES = Family(
    "penstock_background_failures", "counter", "Failures of a background job of this process."
)
JOB_FAILING = Family(
    "penstock_background_failing", "gauge", "1 if the job has failed since it last succeeded."
)
JOB_SUCCESSES = Family(
    "penstock_background_successes", "counter", "Successes of a background job of this process."
)
JOB_QUEUE = Family("penstock_background_queue", "gauge", "How much of the job waits to be done.")
JOB_SUCCESS = Family(
    "penstock_background_last_success_timestamp_seconds", "gauge", "When the job last succeeded."
)


def samples(logs: Logs) -> list[Sample]:
    """Everything that is known of the logs now, in a fixed order.

    ``logs`` is a path or an open log, or several of them. A directory that is not a log stands for
    all logs at or below it. The failures of background jobs are those of an open log's own process,
    so they are there only for logs that are given open.

    >>> log = penstock.open(path)
    >>> log.append(b"hello")
    1
    >>> [sample.value for sample in samples(log) if sample.family.name == "penstock_appends"]
    [1.0]
    """
    return [sample for one in _distinct(listed(logs)) for sample in _measured(one)]


def listed(logs: Logs) -> tuple[str | Log[Any], ...]:
    """What the caller gave, checked: absolute paths, and open logs."""
    if isinstance(logs, str | os.PathLike | Log):
        logs = [logs]
    try:
        given = None if isinstance(logs, bytes | bytearray | memoryview) else list(logs)
    except TypeError:
        given = None
    if given is None:
        raise WrongType(
            f"logs must be a path or a log, or several of them, got {type(logs).__name__}"
        )
    for one in given:
        if not isinstance(one, str | os.PathLike | Log):
            raise WrongType(f"logs must be paths or open logs, got {type(one).__name__} among them")
    return tuple(one if isinstance(one, Log) else files.path_text(one, "logs") for one in given)


def _distinct(given: Iterable[str | Log[Any]]) -> list[str | Log[Any]]:
    """Each log once, directories of logs replaced by what is in them now."""
    found: dict[str, str | Log[Any]] = {}
    for one in given:
        if isinstance(one, Log):
            found[one.path] = one  # rather than a path: it knows its background work
            continue
        for path in _at(one):
            found.setdefault(path, path)
    return list(found.values())


def _at(path: str) -> list[str]:
    """The log at the path, or else all logs below it; the path itself if there is none."""
    try:
        if not exists(path):
            return find(path) or [path]
    except (PenstockError, Usage, OSError):
        pass  # opening it says what is wrong, and that becomes a sample
    return [path]


def _measured(one: str | Log[Any]) -> list[Sample]:
    """The samples of one log; if it fails, that it is down and why."""
    path = one if isinstance(one, str) else one.path
    label = (("log", path),)
    try:
        opened = open_log(path, "r", timeout=OPEN_SECONDS) if isinstance(one, str) else None
        with opened if opened is not None else nullcontext(one) as log:
            assert isinstance(log, Log)
            found = [*_of_log(log, label)]
            if opened is None:
                found += _of_background(log.stats().background, label)
    except (PenstockError, OSError) as error:
        kind = ("kind", type(error).__name__)
        return [Sample(UP, label, 0.0), Sample(ERROR, (*label, kind), 1.0)]
    return [Sample(UP, label, 1.0), *found]


def _of_log(log: Log[Any], label: tuple[tuple[str, str], ...]) -> Iterator[Sample]:
    stats = log.stats()
    about = (("uuid", stats.uuid), ("kind", log.kind), ("codec", log.codec))
    yield Sample(INFO, (*label, *about), 1.0)
    plain: tuple[tuple[Family, float], ...] = (
        (APPENDS, stats.last_seq),
        (FIRST_SEQ, stats.first_seq),
        (EVENTS, len(log)),
        (DURABLE_SEQ, stats.durable_seq),
        (LIVE, stats.live),
        (POISONED, stats.poisoned),
        (SEGMENTS, stats.segments),
        (DISK, stats.disk_bytes),
        (DISK_FREE, files.free_bytes(log._held(), log.path)),
        (FOREIGN, len(stats.spurious)),
        *_of_disk(stats.disk),
        *_counted(log, stats),
        *(_of_ring(stats.ring) if stats.ring is not None else ()),
    )
    for family, value in plain:
        yield Sample(family, label, float(value))
    with suppress(Gone):  # a ring that was renamed has left its consumers beside its old name
        for consumer in log.consumers():
            yield from _of_consumer(consumer, (*label, ("consumer", consumer.name)))
        for group in log.groups():
            yield from _of_group(group, (*label, ("group", group.name)))


def _counted(log: Log[Any], stats: Stats) -> Iterator[tuple[Family, float]]:
    """Counters of control; without it there are none, and zeros would look like a reset."""
    if not stats.live:
        return
    yield from (
        (REPAIRS, stats.repairs),
        (TAKEOVERS, stats.takeovers),
        (ROLLS, stats.rolls),
        (SYNCS, stats.syncs),
    )
    control = log._ctl
    last_ns = 0 if control is None else control.get(C_LAST_APPEND_NS)
    if last_ns:
        yield LAST_APPEND, last_ns / 1e9


def _of_disk(disk: Disk) -> Iterator[tuple[Family, float]]:
    """A limit that there is none of, and a day that never comes, are left out."""
    yield from ((ALLOCATED, disk.allocated), (RATE, disk.rate))
    if disk.dead is not None:
        yield DEAD, disk.dead
    if disk.limit:
        yield LIMIT, disk.limit
    if disk.full_at is not None:
        yield FULL_AT, disk.full_at.timestamp()


def _of_ring(ring: Ring) -> Iterator[tuple[Family, float]]:
    yield from (
        (RING_BYTES, ring.ring_bytes),
        (RING_USED, ring.used_bytes),
        (RING_APPENDED, ring.head),
        (RING_LOST, ring.lost_bytes),
    )


def _lag_of(one: ConsumerInfo | GroupInfo) -> Lag | None:
    """Its lag; None if it cannot be read."""
    if one.problem is not None:
        return None
    try:
        return one.lag
    except PenstockError:
        return None


def _of_consumer(consumer: ConsumerInfo, labels: tuple[tuple[str, str], ...]) -> Iterator[Sample]:
    live = Sample(CONSUMER_LIVE, labels, float(consumer.live))
    lag = _lag_of(consumer)
    if lag is None:
        yield from (Sample(CONSUMER_UP, labels, 0.0), live)
        return
    yield from (
        Sample(CONSUMER_UP, labels, 1.0),
        live,
        Sample(CONSUMER_SEQ, labels, float(consumer.committed)),
        Sample(LAG_EVENTS, labels, float(lag.events)),
        Sample(LAG_BYTES, labels, float(lag.bytes)),
        Sample(LAG_SECONDS, labels, lag.seconds),
    )
    if consumer.last_seen > _EPOCH:
        yield Sample(LAST_SEEN, labels, consumer.last_seen.timestamp())


def _of_group(group: GroupInfo, labels: tuple[tuple[str, str], ...]) -> Iterator[Sample]:
    live = Sample(GROUP_LIVE, labels, float(group.live))
    lag = _lag_of(group)
    if lag is None:
        yield from (Sample(GROUP_UP, labels, 0.0), live)
        return
    yield from (
        Sample(GROUP_UP, labels, 1.0),
        live,
        Sample(GROUP_FRESH, labels, float(lag.events)),
        Sample(GROUP_AGE, labels, lag.seconds),
        Sample(GROUP_OPEN, labels, float(group.unfinished)),
        Sample(GROUP_CLAIMED, labels, float(group.claimed)),
        Sample(GROUP_DEAD, labels, float(group.dead)),
        Sample(GROUP_STOPPED, labels, float(group.stopped)),
    )


def _of_background(
    background: dict[str, BackgroundJob], label: tuple[tuple[str, str], ...]
) -> Iterator[Sample]:
    for name, job in background.items():
        labels = (*label, ("job", name))
        failing = job.in_a_row > 0
        yield Sample(JOB_FAILURES, labels, float(job.failures))
        yield Sample(JOB_FAILING, labels, float(failing))
        yield Sample(JOB_SUCCESSES, labels, float(job.successes))
        yield Sample(JOB_QUEUE, labels, float(job.queue))
        if job.last_success_ns is not None:
            yield Sample(JOB_SUCCESS, labels, job.last_success_ns / 1e9)
