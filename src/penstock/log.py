"""Log: what a user has open. Its :class:`Storage` does what differs by kind of log."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, SupportsIndex, overload

from penstock.arguments import check_progress
from penstock.errors import Busy, PenstockError, Usage, WrongType
from penstock.event import ArrowData, Buffer, Event, Headers
from penstock.handle.handle import Handle
from penstock.handle.load import load_into
from penstock.layout import C_DURABLE_SEQ, C_POISONED
from penstock.reader import SEQ_MAX, Position, Reader, Topic, bounds, make_query, to_count, to_seq
from penstock.report import Plan, Report
from penstock.settings import SEGMENTS_ONLY, Settings, WhenFull, parse_size
from penstock.stats import Stats, collect
from penstock.steward import Steward
from penstock.system import files
from penstock.system.needs import loading
from penstock.times import Due, Span, Time
from penstock.tunables import BATCH_ROWS

if TYPE_CHECKING:
    import pyarrow
    from typing_extensions import TypeVar

    from penstock.consumers.consumer import Consumer
    from penstock.consumers.listing import Consumers
    from penstock.consumers.reading import Start
    from penstock.data.scan import Scan
    from penstock.groups.group import Group
    from penstock.groups.listing import Groups
    from penstock.reading.aio import AsyncReader

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")

_ALL: Any = object()  # latest() of all keys
_STORED: Any = object()  # group() as it was made


class Log(Handle, Generic[T]):
    """A log: an ordered sequence of events under one path, shared by many processes.

    Open one with :func:`penstock.open`. It may be used from several threads, and in the children
    of a fork, each of which opens the log again when it first uses it.

    A log that is pickled or copied is opened again: the result is a separate handle with the
    mode and the options of this one, and must be closed like any other.

    ``Log[T]`` is a log that was opened with the schema T, the type of ``event.data``.
    """

    def __new__(cls, storage: object = None, *args: Any, **options: Any) -> Self:
        """Make a log of a storage; `penstock.open` chooses the storage."""
        if not hasattr(storage, "open_held"):
            raise Usage(
                "a Log comes from penstock.open(path), or from penstock.create(path) if it is new"
            )
        return super().__new__(cls)

    @property
    def first_seq(self) -> int:
        """Seq of the oldest event that is still there; ``last_seq + 1`` if there is none."""
        self._ensure_open()
        return self._storage.first_seq(self)

    @property
    def last_seq(self) -> int:
        """Seq of the newest event; ``first_seq - 1`` if there is none."""
        return self._next_seq() - 1

    def __len__(self) -> int:
        self._ensure_open()
        return min(self._storage.count(self), sys.maxsize)

    def __bool__(self) -> bool:
        return True

    if TYPE_CHECKING:

        @overload
        def __getitem__(self, seq: SupportsIndex) -> Event[T]: ...
        @overload
        def __getitem__(self, seq: slice) -> list[Event[T]]: ...
        def __getitem__(self, seq: SupportsIndex | slice) -> Event[T] | list[Event[T]]: ...

    def __iter__(self) -> Iterator[Event[T]]:
        return self.read()

    def __reversed__(self) -> Iterator[Event[T]]:
        return self.read(reverse=True)

    def read(
        self,
        start: Position | None = None,
        stop: Position | None = None,
        *,
        since: Time | None = None,
        until: Time | None = None,
        topic: Topic | None = None,
        key: Buffer | None = None,
        tags: Iterable[str] | None = None,
        reverse: bool = False,
        durable: bool = False,
        check: bool = True,
        on_damage: Literal["raise", "skip"] = "raise",
        on_gap: Literal["raise", "skip"] = "raise",
        limit: SupportsIndex | None = None,
    ) -> Reader[T]:
        """Events from seq ``start`` up to, not including, ``stop``, as the log is now.

        Both are seqs from 0, "start" for the oldest event or "end" for the place after the
        newest one. A negative one is an error: only ``log[-1]`` and slices count from the end.
        ``since`` and ``until`` bound the events' own times: since <= time < until. ``topic`` is
        one topic, or a list of topics of which an event must have one. ``tags`` selects events
        that have all of them. ``reverse`` returns the newest event first.
        ``durable`` leaves out events that are not on disk yet. ``check=False`` does not verify
        checksums. A damaged event raises `Corrupt`; ``on_damage="skip"`` goes on with the next
        valid one, and ``reader.skipped`` counts the seqs passed over.

        Without ``start`` reading begins with the oldest event. A ``start`` below that raises `Gap`
        when the first event is requested (in reverse, when the last one is), and so do events
        that are dropped before the reader reaches them. ``on_gap="skip"`` goes on with the first
        event still there, and ``reader.skipped`` counts the missing ones as well. ``limit`` is
        the maximum number of events.

        >>> log = penstock.open(path)
        >>> log.extend([b"a", b"b", b"c"])
        range(1, 4)
        >>> [event.value for event in log.read(2)]
        [b'b', b'c']
        >>> [event.seq for event in log.read(reverse=True)]
        [3, 2, 1]
        """
        flags = (check, on_damage, on_gap, durable, reverse, False)  # names would cost a tenth more
        query = make_query(start, stop, since, until, topic, key, tags, *flags, limit)
        return Reader(self, query, *bounds(self, query))

    def scan(
        self,
        start: Position | None = None,
        stop: Position | None = None,
        *,
        since: Time | None = None,
        until: Time | None = None,
        topic: Topic | None = None,
        key: Buffer | None = None,
        tags: Iterable[str] | None = None,
        columns: Iterable[str] | None = None,
        durable: bool = False,
        check: bool = True,
        on_damage: Literal["raise", "skip"] = "raise",
        time_unit: Literal["ns", "us"] = "ns",
        batch_rows: int = BATCH_ROWS,
        schema: Any = None,
        codec: str | None = None,
        on_malformed: Literal["raise", "null", "skip"] = "raise",
        on_gap: Literal["raise", "skip"] = "raise",
        limit: SupportsIndex | None = None,
    ) -> Scan:
        """Events as Arrow columns, for pyarrow, pandas, polars and DuckDB.

        Events are selected as in `read`; ``limit`` is the maximum number of rows. ``columns`` are
        some of seq, time, append_time, topic, key, value and headers, in the order wanted; all but
        append_time if not given. Nothing is read until one of the scan's methods is called.

        With a ``schema`` (a pyarrow schema, a mapping of names to types, a msgspec Struct or a
        dataclass) the fields of values are columns too: ``data.name``, or just ``name`` where no
        other column has that name. ``codec`` says how values are encoded if the log does not, and
        ``on_malformed`` what to do with values that do not fit: raise, return nulls, or skip.

        >>> log = penstock.open(path)
        >>> log.extend([b"a", b"b", b"c"], topic="letters")
        range(1, 4)
        >>> log.scan(2, columns=["value", "topic"]).to_arrow().to_pylist()
        [{'value': b'b', 'topic': 'letters'}, {'value': b'c', 'topic': 'letters'}]
        """
        self._ensure_open()
        query = make_query(
            start,
            stop,
            since,
            until,
            topic,
            key,
            tags,
            check,
            on_damage,
            on_gap,
            durable,
            limit=limit,
        )
        with loading(self.path):
            from penstock.data.scan import Scan

        return Scan(
            self,
            query,
            columns=columns,
            time_unit=time_unit,
            batch_rows=batch_rows,
            schema=schema,
            codec=codec,
            on_malformed=on_malformed,
        )

    if TYPE_CHECKING:

        @overload
        def latest(self, key: Buffer) -> Event[T] | None: ...
        @overload
        def latest(
            self, *, keys: Iterable[Buffer] | None = None, arrow: Literal[False] = False
        ) -> dict[bytes, Event[T]]: ...
        @overload
        def latest(
            self, *, keys: Iterable[Buffer] | None = None, arrow: Literal[True]
        ) -> pyarrow.Table: ...

    def latest(
        self, key: Any = _ALL, *, keys: Iterable[Buffer] | None = None, arrow: bool = False
    ) -> Any:
        """The newest event of a key; None if there is none, or if that event deletes the key.

        Without ``key``: a dict of the newest event of each key, or of those in ``keys``; deleted
        keys are left out. With ``arrow`` it is a table with the columns of `scan`, in the order of
        seqs. A sealed segment that cannot have the key is passed over, so one key costs little in a
        log of many segments. All keys cost one pass over the log, and one event in memory for each
        current key, which keeps its segment mapped.

        >>> log = penstock.open(path)
        >>> log.append(b"1 Elm Street", key=b"ann")
        1
        >>> log.append(b"2 Oak Street", key=b"ann")
        2
        >>> log.latest(b"ann").value, log.latest(b"bob")
        (b'2 Oak Street', None)
        >>> {key: event.seq for key, event in log.latest().items()}
        {b'ann': 2}
        """
        self._ensure_open()
        with loading(self.path):
            from penstock.reading import latest

        if key is not _ALL:
            if keys is not None or arrow:
                raise Usage("keys and arrow are for many keys: leave out key")
            if key is None:
                raise WrongType("key must be bytes, got None; for all keys leave it out")
            return latest.latest_of(self, key)
        return (latest.latest_table if arrow else latest.latest_by_key)(self, keys)

    def follow(
        self,
        start: Position | None = "end",
        *,
        since: Time | None = None,
        topic: Topic | None = None,
        key: Buffer | None = None,
        tags: Iterable[str] | None = None,
        timeout: float | None = None,
        spin: float = 0.0,
        durable: bool = False,
        check: bool = True,
        on_damage: Literal["raise", "skip"] = "raise",
        on_gap: Literal["raise", "skip"] = "raise",
        hold: bool = False,
        limit: SupportsIndex | None = None,
    ) -> Reader[T]:
        """Events from ``start`` on, waiting for more as they are appended.

        ``start`` is a seq from 0, "start" (or None) for the oldest event, or "end" for only
        events appended from now on, as in `read`. Iteration ends when no event has come for
        ``timeout`` seconds; never, if that is None. ``spin`` is how many seconds to poll for data
        before each sleep: 0 sleeps at once, `math.inf` never sleeps and keeps a core busy.
        ``durable`` returns an event only once it is on disk. ``topic``, ``tags``, ``on_damage``
        and ``on_gap`` are as in `read`, and so is ``since``: with it, and no other ``start``,
        existing events since that time come first. ``limit`` is the maximum number of events.

        With ``hold``, writers of a ring that blocks or raises when it is full (``when_full``) keep
        an event until this reader has asked for the next one. The reader holds the ring for as
        long as it exists, even if it is not iterated over; a dead reader never blocks writers.

        >>> log = penstock.open(path)
        >>> log.append(b"a")
        1
        >>> [event.value for event in log.follow("start", timeout=0)]
        [b'a']
        """
        self._ensure_open()
        flags = (check, on_damage, on_gap, durable, False, True)  # names would cost a tenth more
        if since is not None and start == "end":
            start = None
        query = make_query(start, None, since, None, topic, key, tags, *flags, limit)
        first = query.start
        if first is None:
            first = self.first_seq
        elif first == "end":
            first = self._next_seq()
        if query.since_ns is not None and first <= self.last_seq:
            first = max(first, self._storage.first_seq_since(self, query.since_ns))
        held = self._storage.take_hold(self, first) if hold else None
        return Reader(self, query, first, SEQ_MAX, timeout, spin, held)

    def wait(self, timeout: float | None = None, *, after: SupportsIndex | None = None) -> bool:
        """Wait until the log has an event with a seq above ``after``; False if time is up.

        ``after`` is ``last_seq`` at the time of the call if not given.

        >>> log = penstock.open(path)
        >>> log.append(b"a")
        1
        >>> log.wait(0), log.wait(0, after=0)
        (False, True)
        """
        last = self.last_seq if after is None else to_seq(after, "after")
        if self.last_seq > last:
            return True
        return self.follow(min(last + 1, SEQ_MAX)).wait(timeout)

    @property
    def durable_seq(self) -> int:
        """Seq up to which every event is on disk and survives power loss."""
        return self._durable_seq()

    def sync(self, *, wait: bool = True, timeout: float | None = None) -> int:
        """Sync everything appended so far to disk; returns the last seq of it.

        One sync serves all processes and threads that wait for one. ``wait=False`` only requests
        a sync in the background; `wait_durable` or ``durable_seq`` say when it is done.

        >>> log = penstock.open(path)
        >>> log.extend([b"a", b"b"])
        range(1, 3)
        >>> log.sync()
        2
        >>> log.durable_seq
        2
        """
        self._check_writable()
        if timeout is not None and not wait:
            raise Usage("timeout needs wait=True: wait=False returns at once")
        last = self.last_seq
        if wait:
            self._sync_all(timeout)
        else:
            if self._live().get(C_POISONED):
                raise self._poisoned_error()
            self._storage.check_there(self)
            self._sync_soon(now=True)
        return last

    def load(
        self,
        values: Iterable[Any] | ArrowData,
        *,
        value: str | None = None,
        key: Buffer | str | None = None,
        topic: str | None = None,
        headers: Headers | str | None = None,
        time: Time | None = None,
        expect: SupportsIndex | None = None,
        producer: tuple[str, int] | None = None,
        durable: bool = False,
        timeout: float | None = None,
        progress: Callable[[int], None] | None = None,
        codec: str | None = None,
        tags: Iterable[str] | None = None,
        not_before: Due | None = None,
        ttl: Span | None = None,
    ) -> range:
        """Append any amount of events as one atomic unit and return their seqs as a range.

        Like `extend`, for more than fits a segment or memory: ``values`` is iterated once and
        written to private segments, which become part of the log all at once, at the end. Others
        may append meanwhile; if they do, the events are renumbered under the write lock. With
        ``producer=(id, n)`` a repeat is a no-op: it returns the seqs of the first time and does
        not use ``values``. ``progress`` is called with the number of events written so far.
        Arrow data, best as a stream of batches, is taken as in `extend`.

        >>> log = penstock.open(path)
        >>> log.load((b"%d" % i for i in range(100_000)), producer=("import", 1))
        range(1, 100001)
        >>> log.load([], producer=("import", 1))
        range(1, 100001)
        """
        check_progress(progress)
        return load_into(
            self,
            values,
            {
                "key": key,
                "topic": topic,
                "headers": headers,
                "time": time,
                "tags": tags,
                "not_before": not_before,
                "ttl": ttl,
            },
            value=value,
            expect=expect,
            producer=producer,
            durable=bool(durable),
            timeout=timeout,
            progress=progress,
            codec=codec,
        )

    def wait_durable(self, seq: SupportsIndex, timeout: float | None = None) -> bool:
        """Wait until the event ``seq`` is on disk; sync unless another thread or process does.

        Returns True, or False if it is not after ``timeout`` seconds, as `wait` does.
        Raises `NotFound` if there is no such event yet, `Poisoned` if a sync has failed.

        >>> log = penstock.open(path)
        >>> log.wait_durable(log.append(b"a"))
        True
        """
        self._check_writable()
        want = to_seq(seq, "seq")
        if want > self.last_seq:
            raise self._no_such_seq(want)
        try:
            self._sync(C_DURABLE_SEQ, want, timeout)
        except Busy:
            return False
        return True

    def topics(self) -> set[str]:
        """The distinct topics of all events; an event without a topic has the empty one."""
        self._ensure_open()
        known = self._storage.topics(self)
        if known is None:
            return {event.topic for event in self.read(on_gap="skip")}
        return {topic.decode("utf-8", "replace") for topic in known}

    def configure(
        self,
        *,
        segment_size: int | str | None = None,
        file_mode: int | None = None,
        when_full: WhenFull | None = None,
        codec: str | None = None,
        ttl: Span | None = None,
        keep_seconds: Span | None = None,
        keep_bytes: int | str | None = None,
        keep_segments: int | None = None,
        keep_until_consumed: bool | Iterable[str] | None = None,
        consumer_ttl: Span | None = None,
        max_lag: int | str | None = None,
        max_bytes: int | str | None = None,
        prepare_at: float | None = None,
        max_unsealed: int | None = None,
        max_failures: int | None = None,
    ) -> Settings:
        """Change settings of the log, for every process; returns them all.

        What is not given stays as it is. ``segment_size`` is for a log of segments, ``when_full``
        for a ring. The ``codec`` of a log never changes, so only the same one can be given.
        A ``ttl`` applies to the events that the log has, too; 0 lets them live for ever. Readers
        obey it from the next segment, lap or change of settings that they come to.

        What a log of segments keeps: ``keep_seconds``, ``keep_bytes``, ``keep_segments`` and
        ``keep_until_consumed``, with ``consumer_ttl`` and ``max_lag`` for consumers that are dead
        or hopeless; 0 or False ends a rule. Nothing is ever deleted unless one is set.
        ``max_bytes`` is the most that it may take on disk. `Settings` says more about each.

        >>> log = penstock.open(path)
        >>> log.configure(segment_size="1MiB").segment_size
        1048576
        >>> log.configure(keep_bytes="10GiB", keep_seconds=7 * 86400).keep_bytes
        10737418240
        """
        given = {
            "segment_size": segment_size,
            "file_mode": file_mode,
            "when_full": when_full,
            "codec": codec,
            "ttl": ttl,
            "keep_seconds": keep_seconds,
            "keep_bytes": keep_bytes,
            "keep_segments": keep_segments,
            "keep_until_consumed": keep_until_consumed,
            "consumer_ttl": consumer_ttl,
            "max_lag": max_lag,
            "max_bytes": max_bytes,
            "prepare_at": prepare_at,
            "max_unsealed": max_unsealed,
            "max_failures": max_failures,
        }
        changes = {name: value for name, value in given.items() if value is not None}
        self._storage.check_there(self)
        self._check_changes(self.settings, changes)
        return self._change_settings(lambda now: now.changed(**changes))

    def _check_changes(self, now: Settings, changes: dict[str, Any]) -> None:
        """Refuse changes of settings that this log cannot have."""
        changed = now.changed(**changes)
        if changed.codec != now.codec:
            raise Usage(
                f"{self.path}: the log's codec is {now.codec!r} and cannot be changed; to "
                "encode one event differently give codec= with the append"
            )
        if not self._storage.is_ring:
            if "when_full" in changes:
                raise Usage(f"{self.path}: when_full is for a ring, but this is a log of segments")
            return
        if "segment_size" in changes:
            raise Usage(
                f"{self.path}: is a ring, which has no segment_size; resize() changes its size"
            )
        for name in changes.keys() & SEGMENTS_ONLY:
            raise Usage(
                f"{self.path}: {name} is for a log of segments, but this is a ring, which "
                "overwrites its oldest events; resize() changes how many it keeps"
            )

    def resize(self, size: int | str) -> None:
        """Give a ring another size; the newest events that fit are kept.

        Raises `Busy` if another handle has it open. If a process dies meanwhile, the ring has the
        old size or the new one.

        >>> recent = penstock.create(path.with_suffix(".ring"), ring="64KiB")
        >>> recent.append(b"a")
        1
        >>> recent.resize("1MiB")
        >>> recent.stats().ring.file_bytes, recent[1].value
        (1048576, b'a')
        """
        self._check_writable()
        self._storage.resize(self, parse_size(size, "size"))

    @property
    def steward(self) -> Steward:
        """Maintenance: ``log.steward.retain()``, ``trim``, ``roll``; see `Steward`."""
        return Steward(self)

    def stats(self) -> Stats:
        """Counts and sizes of the log, and what happened to it since control was built.

        ``background`` is about the threads of this handle; other handles have their own.

        >>> log = penstock.open(path)
        >>> log.stats().background["seal"].failures
        0
        """
        self._ensure_open()
        durable = self._durable_seq()  # before the last seq, so that it is not above that
        return collect(
            self.path, self._ctl, durable, self._storage.take_stock(self), self._record.jobs()
        )

    def verify(self, *, progress: Callable[[int, int], None] | None = None) -> Report:
        """Check every frame, index, footer and the chain from segment to segment.

        Writers may go on; what they append meanwhile is not checked. Nothing is changed. See
        :func:`penstock.verify`, which also takes logs that cannot be opened.
        """
        check_progress(progress)
        self._ensure_open()
        return self._storage.verify(progress)

    def repair(
        self,
        *,
        to: str | os.PathLike[str] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Plan:
        """Say how damage of the log can be repaired; with ``to``, write a repaired copy there.

        To repair the log in place, close it in every process: see :func:`penstock.repair`.
        """
        check_progress(progress)
        self._ensure_open()
        return self._storage.repair(files.path_text(to) if to is not None else None, progress)

    def backup(
        self, target: str | os.PathLike[str], *, progress: Callable[[int, int], None] | None = None
    ) -> int:
        """Copy the log as it is now to the new directory ``target``; returns the last seq copied.

        Writers may go on meanwhile. The copy is a separate log with the same uuid, completely on
        disk when this returns; it gets its name last. ``progress`` is called with the bytes copied
        and the total.
        """
        check_progress(progress)
        self._ensure_open()
        with loading(self.path):
            from penstock.groups.folder import group_names

        beside = self._copy_groups if group_names(self._storage.home) else None
        return self._storage.backup(self, files.path_text(target), progress, beside)

    def _copy_groups(self, home: str, next_seq: int) -> None:
        with loading(self.path):
            from penstock.groups.copying import copy_groups

        copy_groups(self, home, next_seq)

    def consumer(
        self,
        name: str,
        *,
        start: Start = "start",
        topic: Topic | None = None,
        key: Buffer | None = None,
        tags: Iterable[str] | None = None,
        standby: bool = False,
        auto_commit: float | None = None,
        timeout: float | None = None,
        hold: bool = False,
        durable: bool = False,
        check: bool = True,
        on_gap: Literal["raise", "skip"] = "raise",
        on_damage: Literal["raise", "skip"] = "raise",
    ) -> Consumer[T]:
        """The consumer ``name``: a reader that goes on where it, or one before it, committed.

        It is created if it does not exist. Then ``start`` says where it begins: a seq, a time,
        "start" or "end"; ``topic`` (one, or several), ``key`` and ``tags`` what it wants, which
        never changes. A consumer has one owner: while that lives, others get `Busy`, or with
        ``standby`` wait and take over.

        ``auto_commit=seconds`` commits, that often, what was handed out and passed: an event is
        passed once the next is asked for, or its ``with`` block ends. ``hold`` is for a ring that
        blocks when full: writers keep what is not committed, while this consumer lives.
        ``timeout``, ``durable``, ``check``, ``on_gap`` and ``on_damage`` are as for `follow`.

        >>> log = penstock.open(path)
        >>> log.extend([b"a", b"b", b"c"])
        range(1, 4)
        >>> with log.consumer("billing", timeout=0) as billing:
        ...     for event in billing:
        ...         billing.commit()
        >>> log.append(b"d")
        4
        >>> with log.consumer("billing", timeout=0) as billing:
        ...     [event.value for event in billing]
        [b'd']
        """
        with loading(self.path):
            from penstock.consumers.opening import open_consumer

        return open_consumer(
            self,
            name,
            start=start,
            topic=topic,
            key=key,
            tags=tags,
            standby=standby,
            auto_commit=auto_commit,
            timeout=timeout,
            hold=hold,
            durable=durable,
            check=check,
            on_gap=on_gap,
            on_damage=on_damage,
        )

    def consumers(self) -> Consumers:
        """The consumers of this log, with any owner: their positions, lags, and who is live."""
        with loading(self.path):
            from penstock.consumers.listing import Consumers

        return Consumers(self)

    def group(
        self,
        name: str,
        *,
        order: Literal["key"] | None = _STORED,
        deliveries: SupportsIndex = _STORED,
        backoff: Iterable[Span] = _STORED,
        lease: Span | None = _STORED,
        max_pending: SupportsIndex | None = _STORED,
        dead_per_minute: SupportsIndex | None = _STORED,
        topic: str | None = _STORED,
        tags: Iterable[str] | None = _STORED,
        start: Start = "start",
    ) -> Group[T]:
        """The group ``name``: a work queue whose workers, in any process, share this log's events.

        It is made if there is none. Then the terms are settled for good; a call that gives others
        later gets `Usage`, and what it leaves out is as the group has it. ``start`` says where a
        new group begins, as for `consumer`; ``topic`` and ``tags`` what it wants.

        With ``order="key"`` at most one event of a key is unfinished with a worker, in the order
        of the log. An event is tried ``deliveries`` times (5), with delays of ``backoff`` seconds
        (1, 5, 30, 120, 600) after failures; then it goes to the dead letters. A claim belongs to
        its worker while that lives; with ``lease`` it ends after so many seconds as well.
        ``max_pending`` is the most that all workers together may have claimed. If more than
        ``dead_per_minute`` events go to the dead letters in a minute, the group stops.

        >>> log = penstock.open(path)
        >>> log.extend([b"a", b"b", b"c"])
        range(1, 4)
        >>> with log.group("mail").worker(timeout=0) as worker:
        ...     for job in worker:
        ...         with job:
        ...             print(job.event.value, job.deliveries)
        b'a' 1
        b'b' 1
        b'c' 1
        """
        with loading(self.path):
            from penstock.groups.opening import open_group
            from penstock.groups.terms import Wanted

        given: dict[str, Any] = {
            "order": order,
            "deliveries": deliveries,
            "backoff": backoff,
            "lease": lease,
            "max_pending": max_pending,
            "dead_per_minute": dead_per_minute,
            "topic": topic,
            "tags": tags,
        }
        wanted = Wanted({what: term for what, term in given.items() if term is not _STORED})
        return open_group(self, name, start, wanted)

    def groups(self) -> Groups:
        """The groups of this log: their progress, and whether workers are live."""
        with loading(self.path):
            from penstock.groups.listing import Groups

        return Groups(self)

    def result(
        self, seq: SupportsIndex, timeout: float | None = 0, *, group: str | None = None
    ) -> bytes:
        """What a worker gave as the result of the event ``seq``; it waits ``timeout`` seconds.

        ``group`` says whose result, if several groups have some. `NotFound` if there is none yet.
        Results are kept in a log of 16 MiB, which forgets the oldest.

        >>> log = penstock.open(path)
        >>> seq = log.append(b"2 + 2")
        >>> with log.group("sums").worker(timeout=0) as worker:
        ...     next(worker).ack(result=b"4")
        >>> log.result(seq)
        b'4'
        """
        with loading(self.path):
            from penstock.groups import results

        found: bytes = results.find(self, seq, timeout, group)
        return found

    def _other_item(self, given: object, refused: PenstockError) -> Any:
        """``log[given]`` where that is no seq."""
        with loading(self.path):
            from penstock.reading import lookup

        return lookup.item(self, given, refused)

    def tail(
        self,
        count: SupportsIndex = 10,
        *,
        topic: Topic | None = None,
        key: Buffer | None = None,
        tags: Iterable[str] | None = None,
    ) -> list[Event[T]]:
        """The last ``count`` events, or the last that match, as a list with the newest at its end.

        >>> log = penstock.open(path)
        >>> log.extend([b"a", b"b", b"c"])
        range(1, 4)
        >>> [event.value for event in log.tail(2)]
        [b'b', b'c']
        """
        with loading(self.path):
            from penstock.reading import lookup

        wanted = to_count(count, "count")
        return lookup.tail(self, wanted, {"topic": topic, "key": key, "tags": tags})

    def seq_at(self, time: Time) -> int:
        """Seq of the first event of that time or later; ``last_seq + 1`` if there is none.

        >>> log = penstock.open(path)
        >>> log.append(b"a", time="2026-01-01T00:00Z"), log.append(b"b", time="2026-02-01T00:00Z")
        (1, 2)
        >>> log.seq_at("2026-01-15T00:00Z"), log.seq_at("2027-01-01T00:00Z")
        (2, 3)
        """
        with loading(self.path):
            from penstock.reading import lookup

        return lookup.seq_at(self, time)

    @property
    def codec(self) -> str:
        """The name of the codec by which the log turns values into bytes; it never changes."""
        return self._codec_name()

    @property
    def mode(self) -> Literal["rw", "r"]:
        """How this handle was opened."""
        return "rw" if self._writable else "r"

    @property
    def uuid(self) -> str:
        """The unique id of the log, as 32 hexadecimal digits; a backup has the same."""
        return self._uuid().hex()

    @property
    def kind(self) -> Literal["segments", "ring"]:
        """Whether the log is a directory of segments, or a ring."""
        return "ring" if self._storage.is_ring else "segments"

    def afollow(
        self,
        start: Position | None = "end",
        *,
        since: Time | None = None,
        topic: Topic | None = None,
        key: Buffer | None = None,
        tags: Iterable[str] | None = None,
        timeout: float | None = None,
        durable: bool = False,
        check: bool = True,
        on_damage: Literal["raise", "skip"] = "raise",
        on_gap: Literal["raise", "skip"] = "raise",
        hold: bool = False,
        limit: SupportsIndex | None = None,
    ) -> AsyncReader[T]:
        """`follow` for asyncio: ``async for event in log.afollow(): ...``.

        One thread of the process waits for all logs that tasks follow.

        >>> import asyncio
        >>> async def values(log):
        ...     return [event.value async for event in log.afollow("start", timeout=0)]
        >>> log = penstock.open(path)
        >>> log.append(b"a")
        1
        >>> asyncio.run(values(log))
        [b'a']
        """
        with loading(self.path):
            from penstock.reading import aio

        reader = self.follow(
            start,
            since=since,
            topic=topic,
            key=key,
            tags=tags,
            durable=durable,
            check=check,
            on_damage=on_damage,
            on_gap=on_gap,
            hold=hold,
            limit=limit,
        )
        return aio.AsyncReader(reader, timeout, 1 if hold else aio.BATCH)

    async def aappend(
        self,
        value: Any,
        *,
        key: Buffer | None = None,
        topic: str | None = None,
        headers: Headers | None = None,
        time: Time | None = None,
        expect: SupportsIndex | None = None,
        producer: tuple[str, int] | None = None,
        durable: bool = False,
        timeout: float | None = None,
        codec: str | None = None,
        tags: Iterable[str] | None = None,
        not_before: Due | None = None,
        ttl: Span | None = None,
    ) -> int:
        """`append` for asyncio: if it must wait, a thread of the loop's executor does it.

        One sync serves all tasks that append with ``durable=True`` meanwhile. A task that is
        cancelled does not know whether its event was appended, as after any `Busy` of a sync.

        >>> import asyncio
        >>> log = penstock.open(path)
        >>> asyncio.run(log.aappend(b"a", durable=True)), log.durable_seq
        (1, 1)
        """
        with loading(self.path):
            from penstock.reading import aio

        return await aio.append(
            self,
            value,
            durable,
            timeout,
            key=key,
            topic=topic,
            headers=headers,
            time=time,
            expect=expect,
            producer=producer,
            codec=codec,
            tags=tags,
            not_before=not_before,
            ttl=ttl,
        )

    async def await_event(
        self, timeout: float | None = None, *, after: SupportsIndex | None = None
    ) -> bool:
        """`wait` for asyncio.

        >>> import asyncio
        >>> log = penstock.open(path)
        >>> log.append(b"a")
        1
        >>> asyncio.run(log.await_event(after=0)), asyncio.run(log.await_event(0))
        (True, False)
        """
        with loading(self.path):
            from penstock.reading import aio

        return await aio.next_event(self, timeout, after)

    async def await_durable(self, seq: SupportsIndex, timeout: float | None = None) -> bool:
        """`wait_durable` for asyncio.

        >>> import asyncio
        >>> log = penstock.open(path)
        >>> asyncio.run(log.await_durable(log.append(b"a")))
        True
        """
        with loading(self.path):
            from penstock.reading import aio

        return await aio.wait_durable(self, seq, timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        import asyncio

        await asyncio.to_thread(self.close)  # the last to close a log syncs it
