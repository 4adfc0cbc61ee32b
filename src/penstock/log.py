"""Log: what a user has open. What differs by kind of log is asked of :class:`Handle`'s hooks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, SupportsIndex

from penstock.arguments import check_progress
from penstock.data.scan import BATCH_ROWS, Scan
from penstock.errors import Busy, NotFound, PenstockError, Usage
from penstock.event import ArrowData, Buffer, Event, Headers
from penstock.handle.handle import Handle
from penstock.layout import C_DURABLE_SEQ, C_POISONED
from penstock.reader import (
    SEQ_MAX,
    Position,
    Reader,
    bounds,
    key_bytes,
    means_oldest,
    position,
    tag_bytes,
    to_seq,
    topic_bytes,
)
from penstock.report import Report
from penstock.segments.check.repair import Plan
from penstock.segments.load import load_into
from penstock.settings import Settings, WhenFull, parse_size
from penstock.stats import Stats, collect
from penstock.steward import Steward
from penstock.system import files
from penstock.times import Time

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")


class Log(Handle, Generic[T]):
    """A log: an ordered sequence of events under one path, shared by many processes.

    Open one with :func:`penstock.open`. It may be used from several threads, and in the children
    of a fork, each of which opens the log anew the first time it uses it.

    To pickle or copy a log is to open it again: what comes out is a handle of its own, with the
    mode and the options of this one, and has to be closed like any other.

    ``Log[T]`` is a log that was opened with the schema T, which is what ``event.data`` is then.
    """

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Make a log of one kind, which `penstock.open` knows."""
        if cls._open_held is Handle._open_held:
            raise Usage(
                "a Log comes from penstock.open(path), or from penstock.create(path) if it is new"
            )
        return super().__new__(cls, *args, **options)

    @property
    def first_seq(self) -> int:
        """Seq of the oldest event that is still there; ``last_seq + 1`` if there is none."""
        self._head()
        return self._first_seq()

    @property
    def last_seq(self) -> int:
        """Seq of the newest event; one below ``first_seq`` if there is none."""
        return self._next_seq() - 1

    def __len__(self) -> int:
        self._head()
        first, after = self._seqs()
        return min(max(0, after - first), sys.maxsize)

    def __bool__(self) -> bool:
        return True

    def _no_such_seq(self, seq: int) -> PenstockError:
        self._head()
        first, after = self._seqs()
        if first <= seq < after:
            missing = self._why_missing(seq)
            if missing is not None:
                return missing
        there = f"it has seq {first} to {after - 1}" if after > first else "it is empty"
        return NotFound(f"{self.path}: no event has seq {seq}; {there}")

    if TYPE_CHECKING:

        def __getitem__(self, seq: SupportsIndex) -> Event[T]: ...

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
        topic: str | None = None,
        key: Buffer | None = None,
        tags: Iterable[str] | None = None,
        reverse: bool = False,
        durable: bool = False,
        check: bool = True,
        on_damage: Literal["raise", "skip"] = "raise",
        on_gap: Literal["raise", "skip"] = "raise",
    ) -> Reader[T]:
        """Events from seq ``start`` up to, not including, ``stop``, as the log stands now.

        Both are seqs from 0, "start" for the oldest event or "end" for what will come after the
        newest one. Seqs never count from the end: a negative one is an error. ``since`` and
        ``until`` bound the events' own times likewise: since <= time < until. With ``tags``, only
        events that have all of them. With ``reverse`` the newest comes first.
        ``durable`` leaves out what is not on the device yet. ``check=False`` leaves the checksums
        unchecked. An event that is damaged raises `Corrupt`; ``on_damage="skip"`` goes on with the
        next one that is not, and ``reader.skipped`` counts the seqs passed over.

        Without ``start`` this begins with the oldest event there is. A ``start`` below that is a
        `Gap` when the first event is asked for (in reverse, when the last one is), and so are
        events that go away while this reads, before it comes to them. ``on_gap="skip"`` goes on
        with the first one still there, and ``reader.skipped`` counts the missing ones likewise.

        >>> log = penstock.open(path)
        >>> log.extend([b"a", b"b", b"c"])
        range(1, 4)
        >>> [event.value for event in log.read(2)]
        [b'b', b'c']
        >>> [event.seq for event in log.read(reverse=True)]
        [3, 2, 1]
        """
        lowest, end, since_ns, until_ns = bounds(
            self, start, stop, since, until, durable, skip=on_damage == "skip"
        )
        return Reader(
            self,
            end if reverse else lowest,
            lowest if reverse else end,
            reverse=reverse,
            check=check,
            on_damage=on_damage,
            on_gap=on_gap,
            from_oldest=means_oldest(start),
            to_end=stop is None and until is None and not durable,
            topic=topic_bytes(topic),
            key=key_bytes(key),
            tags=tag_bytes(tags),
            since_ns=since_ns,
            until_ns=until_ns,
        )

    def scan(
        self,
        start: Position | None = None,
        stop: Position | None = None,
        *,
        since: Time | None = None,
        until: Time | None = None,
        topic: str | None = None,
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
    ) -> Scan:
        """Events as Arrow columns, for pyarrow, pandas, polars and DuckDB.

        Which events is said as in `read`. ``columns`` are some of seq, time, append_time, topic,
        key, value and headers, in the order wanted; all but append_time if not given. Nothing is
        read until one of the scan's methods asks for it.

        With a ``schema``, be it a pyarrow schema, a mapping of names to types, a msgspec Struct or
        a dataclass, the fields of values are columns too: ``data.name``, or just ``name`` where no
        other column is called so. ``codec`` says how values are encoded if the log does not, and
        ``on_malformed`` what becomes of those that do not fit: an error, nulls, or nothing.

        >>> log = penstock.open(path)
        >>> log.extend([b"a", b"b", b"c"], topic="letters")
        range(1, 4)
        >>> log.scan(2, columns=["value", "topic"]).to_arrow().to_pylist()
        [{'value': b'b', 'topic': 'letters'}, {'value': b'c', 'topic': 'letters'}]
        """
        self._head()
        return Scan(
            self,
            start,
            stop,
            since=since,
            until=until,
            topic=topic,
            key=key,
            tags=tags,
            columns=columns,
            durable=durable,
            check=check,
            on_damage=on_damage,
            time_unit=time_unit,
            batch_rows=batch_rows,
            schema=schema,
            codec=codec,
            on_malformed=on_malformed,
            on_gap=on_gap,
        )

    def follow(
        self,
        start: Position | None = "end",
        *,
        topic: str | None = None,
        key: Buffer | None = None,
        tags: Iterable[str] | None = None,
        timeout: float | None = None,
        spin: float = 0.0,
        durable: bool = False,
        check: bool = True,
        on_damage: Literal["raise", "skip"] = "raise",
        on_gap: Literal["raise", "skip"] = "raise",
        hold: bool = False,
    ) -> Reader[T]:
        """Events from ``start`` on, waiting for more as they are appended.

        ``start`` is a seq from 0, "start" (or None) for the oldest event, or "end" for only what
        comes from now on, as in `read`.
        Iteration ends when none has come for ``timeout`` seconds; never, if that is None. ``spin``
        is how many seconds to look for data without sleeping before each sleep: 0 sleeps at once,
        `math.inf` never sleeps and keeps a core busy. ``durable`` hands out an event only once it
        is on the device. ``tags``, ``on_damage`` and ``on_gap`` are as in `read`.

        With ``hold``, writers of a ring that blocks or raises when it is full (``when_full``) leave
        an event alone until this reader has asked for the one behind it. It holds them up for as
        long as it exists, even if nobody iterates over it; a reader whose process dies does not.

        >>> log = penstock.open(path)
        >>> log.append(b"a")
        1
        >>> [event.value for event in log.follow("start", timeout=0)]
        [b'a']
        """
        first, oldest = position(self, start, "start")
        if oldest:
            first = self.first_seq
        held = self._take_hold(first) if hold else None
        return Reader(
            self,
            first,
            SEQ_MAX,
            check=check,
            on_damage=on_damage,
            topic=topic_bytes(topic),
            key=key_bytes(key),
            tags=tag_bytes(tags),
            follows=True,
            durable=durable,
            timeout=timeout,
            spin=spin,
            on_gap=on_gap,
            from_oldest=oldest,
            hold=held,
        )

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
        """Seq up to which every event is on the device, and survives power loss."""
        return self._durable_seq()

    def sync(self, *, wait: bool = True, timeout: float | None = None) -> int:
        """Have everything appended so far on the device; returns the last seq of it.

        One sync serves all processes and threads that wait for one. ``wait=False`` only asks for
        a sync in the background; `wait_durable` or ``durable_seq`` tell when it is done.

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
            raise Usage("timeout needs wait=True: a sync that nobody waits for has no time limit")
        last = self.last_seq
        if wait:
            self._sync_all(timeout)
        else:
            if self._live().get(C_POISONED):
                raise self._poisoned_error()
            self._check_there()
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
    ) -> range:
        """Append any amount of events as one atomic unit and return their seqs as a range.

        Like `extend`, for more than fits a segment or memory: ``values`` is gone through once, and
        written to private segments that become part of the log all at once, at the end. Others
        append meanwhile; if they do, the events are numbered anew under the write lock. With
        ``producer=(id, n)`` a repeat is a no-op: it returns the seqs of the first time, without
        looking at ``values``. ``progress`` is called with the number of events written so far.
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
            {"key": key, "topic": topic, "headers": headers, "time": time, "tags": tags},
            value=value,
            expect=expect,
            producer=producer,
            durable=bool(durable),
            timeout=timeout,
            progress=progress,
            codec=codec,
        )

    def wait_durable(self, seq: SupportsIndex, timeout: float | None = None) -> bool:
        """Wait until the event ``seq`` is on disk, syncing if nobody else does.

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
        return {t.decode("utf-8", "replace") for t in self._topics()}

    def configure(
        self,
        *,
        segment_size: int | str | None = None,
        file_mode: int | None = None,
        when_full: WhenFull | None = None,
        codec: str | None = None,
    ) -> Settings:
        """Change settings of the log, for every process; returns them all.

        What is not given stays as it is. ``segment_size`` is for a log of segments, ``when_full``
        for a ring. A log keeps its ``codec`` for good, so only its own can be given.

        >>> log = penstock.open(path)
        >>> log.configure(segment_size="1MiB").segment_size
        1048576
        """
        given = {
            "segment_size": segment_size,
            "file_mode": file_mode,
            "when_full": when_full,
            "codec": codec,
        }
        changes = {name: value for name, value in given.items() if value is not None}
        now = self.settings
        self._check_there()
        changed = now.changed(**changes)
        if changed.codec != now.codec:
            raise Usage(
                f"{self.path}: the log's codec is {now.codec!r} for good; to append something else "
                "give codec= with the append"
            )
        if segment_size is not None and self._is_ring:
            raise Usage(
                f"{self.path}: is a ring, which has no segment_size; resize() changes its size"
            )
        if when_full is not None and not self._is_ring:
            raise Usage(f"{self.path}: when_full is for a ring, and this is a log of segments")
        self._append_settings(changed.to_json())
        return changed

    def resize(self, size: int | str) -> None:
        """Give a ring another size; the newest events that fit are kept.

        Nobody else may have it open, or it is `Busy`. It has the new size or the old one, whatever
        dies meanwhile.

        >>> recent = penstock.create(path.with_suffix(".ring"), ring="64KiB")
        >>> recent.append(b"a")
        1
        >>> recent.resize("1MiB")
        >>> recent.stats().ring.file_bytes, recent[1].value
        (1048576, b'a')
        """
        self._check_writable()
        self._resize(parse_size(size, "size"))

    @property
    def steward(self) -> Steward:
        """Maintenance: ``log.steward.roll()``."""
        return Steward(self)

    def stats(self) -> Stats:
        """Counts and sizes of the log, and what happened to it since control was built.

        ``background`` tells how the threads of this handle get on; other handles have their own.

        >>> log = penstock.open(path)
        >>> log.stats().background["seal"].failures
        0
        """
        self._head()
        durable = self._durable_seq()  # before the last seq, lest it be above that
        return collect(self.path, self._ctl, durable, self._take_stock(), self._record.jobs())

    def verify(self, *, progress: Callable[[int, int], None] | None = None) -> Report:
        """Check every frame of the log, index and footer, and what leads from segment to segment.

        Writers may go on; what they append meanwhile is not looked at. Nothing is changed. See
        :func:`penstock.verify`, which also takes logs that cannot be opened.
        """
        check_progress(progress)
        self._head()
        return self._verify(progress)

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
        self._head()
        return self._repair(to, progress)

    def backup(
        self, target: str | os.PathLike[str], *, progress: Callable[[int, int], None] | None = None
    ) -> int:
        """Copy the log as it stands to the new directory ``target``; returns the last seq copied.

        Writers go on meanwhile. The copy is a log of its own, with the same uuid, complete on the
        device when this returns; it gets its name last. ``progress`` is called with bytes copied
        and bytes in all.
        """
        check_progress(progress)
        self._head()
        return self._backup(files.path_text(target), progress)
