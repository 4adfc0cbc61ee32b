"""Consumer: a named reader whose place survives restarts.

What happens for each event is in the compiled `ConsumerCore`; `opening` makes and opens one. A
consumer never writes to the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Self, SupportsIndex

from penstock._core import ConsumerCore, ConsumerFile, Event, iterates_as_base
from penstock.consumers.file import Filter
from penstock.consumers.reading import Lag, Start, find_start, measure, reader_of
from penstock.errors import Closed, Gone, Poisoned, Usage
from penstock.system import files
from penstock.system.needs import loading

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from penstock.consumers.awaiting import Awaited
    from penstock.consumers.into import Into
    from penstock.consumers.track import Tracker
    from penstock.log import Log

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")

__all__ = ["Consumer", "Lag"]


@iterates_as_base
class Consumer(ConsumerCore, Generic[T]):
    """A named reader whose place survives restarts; it has one owner at a time.

    It comes from `Log.consumer`. Iterate over it, or `poll`; `commit` stores how far you are. One
    thread at a time uses it; `close` may be called from any. In a child of a fork it is closed.
    """

    # Without a dict, Python finds `commit` and `poll` faster.
    __slots__ = ("__weakref__", "_filter", "_options")

    def __init__(self, *_: object, **__: object) -> None:
        raise Usage(
            "a Consumer comes from log.consumer(name); open the log with penstock.open(path)"
        )

    _filter: Filter
    _options: dict[str, Any]

    if TYPE_CHECKING:

        def __iter__(self) -> Self: ...
        def __next__(self) -> Event[T]: ...
        def poll(self, n: SupportsIndex = 100, timeout: float | None = 0) -> list[Event[T]]: ...
        def take(self, count: SupportsIndex) -> list[Event[T]]: ...

    @property
    def closed(self) -> bool:
        """Whether the consumer was closed here."""
        file = self._file
        return file is None or not file.here

    @property
    def topic(self) -> str | tuple[str, ...] | None:
        """The topic that it wants, or several, of which any will do; None for all."""
        return self._filter.topics

    @property
    def key(self) -> bytes | None:
        """The key that it wants; None for all."""
        return self._filter.key

    @property
    def tags(self) -> tuple[str, ...] | None:
        """The tags that it wants; None for all."""
        return self._filter.tags

    @property
    def clamped(self) -> int:
        """The position that a loss of power took, until the next commit; 0 if there is none."""
        return self._open_file().clamped

    @property
    def caught_up(self) -> bool:
        """Whether everything that the log holds for it was handed out.

        >>> log = penstock.open(path)
        >>> log.append(b"a")
        1
        >>> with log.consumer("billing") as billing:
        ...     before = billing.caught_up
        ...     events = billing.poll()
        ...     before, billing.caught_up
        (False, True)
        """
        at = self.position
        last = self.log.durable_seq if self._options["durable"] else self.log.last_seq
        if at > last or not self._filter:
            return bool(at > last)
        return next(reader_of(self.log, at, self._filter, stop=last + 1), None) is None

    def lag(self) -> Lag:
        """How many events it has yet to be handed, their bytes, and the age of the oldest.

        With a filter only events that match count, and so they are looked for: that takes as long
        as it takes to read them.

        >>> log = penstock.open(path)
        >>> log.extend([b"a", b"b", b"c"], topic="letters")
        range(1, 4)
        >>> with log.consumer("billing", topic="letters") as billing:
        ...     event = next(billing)
        ...     billing.lag().events
        2
        """
        return measure(self.log, self.position, self._filter)

    def seek(self, position: Start) -> None:
        """Go on at a seq, a time, "start" or "end"; `commit` makes it last.

        A time is a datetime, a date or a text, as for ``read(since=)``: the first event that is not
        older comes next.

        >>> log = penstock.open(path)
        >>> log.extend([b"a", b"b", b"c"])
        range(1, 4)
        >>> with log.consumer("billing", start="end") as billing:
        ...     billing.seek(2)
        ...     [event.value for event in billing.poll()]
        [b'b', b'c']
        """
        file = self._open_file()
        if self._stepping:
            raise Usage(f"{file.path}: end the step that is under way before you seek")
        if self._busy:
            raise Usage(
                f"{file.path}: another thread waits for events just now; a consumer is for one "
                "thread at a time"
            )
        seq, oldest = find_start(self.log, position, "position")
        self._seek_to(seq, oldest=oldest)
        self._sought = True

    def into(self, out: Log[Any], *, durable: bool = False) -> Into:
        """Steps whose results go to another log, exactly once: see docs/consuming.md.

        >>> log, out = penstock.open(path / "in"), penstock.open(path / "out")
        >>> log.extend([b"a", b"b"])
        range(1, 3)
        >>> with log.consumer("shout") as shout:
        ...     with shout.into(out) as step:
        ...         for event in shout.poll():
        ...             step.append(event.value.upper())
        >>> [event.value for event in out]
        [b'A', b'B']
        """
        with loading(self.log.path):
            from penstock.consumers.into import Into

        return Into(self, out, durable=durable)

    def track(self, connection: Any, table: str = "penstock_positions") -> Tracker:
        """Keep the position in the transactions of a database: see docs/consuming.md.

        >>> import sqlite3
        >>> log = penstock.open(path)
        >>> log.extend([b"a", b"b"])
        range(1, 3)
        >>> rows = sqlite3.connect(":memory:")
        >>> cursor = rows.execute("CREATE TABLE letters (letter BLOB)")
        >>> with log.consumer("letters") as letters:
        ...     with letters.track(rows):
        ...         for event in letters.poll():
        ...             cursor = rows.execute("INSERT INTO letters VALUES (?)", [event.value])
        >>> rows.execute("SELECT * FROM letters").fetchall()
        [(b'a',), (b'b',)]
        """
        with loading(self.log.path):
            from penstock.consumers.track import Tracker

        return Tracker(self, connection, table)

    def close(self) -> None:
        """Give it up, so that another process can own it. Closing twice is fine."""
        self._release(False)

    async def apoll(self, n: SupportsIndex = 100, timeout: float | None = 0) -> list[Event[T]]:
        """`poll` for asyncio.

        >>> import asyncio
        >>> log = penstock.open(path)
        >>> log.extend([b"a", b"b"])
        range(1, 3)
        >>> async def values():
        ...     async with log.consumer("billing") as billing:
        ...         found = [event.value for event in await billing.apoll(10, timeout=1)]
        ...         billing.commit()
        ...         return found
        >>> asyncio.run(values())
        [b'a', b'b']
        """
        with loading(self.log.path):
            from penstock.consumers import awaiting

        return await awaiting.poll(self, n, timeout)

    def __aiter__(self) -> Awaited[T]:
        with loading(self.log.path):
            from penstock.consumers.awaiting import Awaited

        return Awaited(self)

    def __enter__(self) -> Self:
        self._open_file()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._release(kind is None)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: object, *_: object) -> None:
        self.__exit__(kind)

    def __repr__(self) -> str:
        file = self._file
        state = f"at seq {self.position}" if file is not None and file.here else "closed"
        return f"<penstock.Consumer {self.name!r} of {self.log.path!r} {state}>"

    def _open_file(self) -> ConsumerFile:
        """The file, if this process owns it."""
        file = self._file
        if file is None or not file.here:
            raise self._closed_error()
        return file

    def _closed_error(self) -> Closed:
        if self._file is not None and self._file.fd >= 0:
            return Closed(
                f"{self.log.path}: the consumer {self.name!r} belongs to the process that forked; "
                "open it here with log.consumer() when that one has closed it"
            )
        return Closed(
            f"{self.log.path}: the consumer {self.name!r} is closed; open it again with "
            "log.consumer()"
        )

    def _poisoned_error(self) -> Poisoned:
        return Poisoned(
            f"{self._open_file().path}: an earlier sync of it failed, so it is not known what is "
            "on disk; open the consumer again"
        )

    def _check_file(self, fd: int, path: str) -> None:
        """Refuse a durable commit to a file that was deleted, with the log or alone."""
        if not files.is_linked(fd, path):
            raise Gone(
                f"{path}: the consumer's file was deleted, or its log was, while it was open, so "
                "no commit to it can last; open the log and the consumer again",
                filename=path,
            )

    def _sync_file(self, fd: int, path: str) -> None:
        """Have the file on disk, for a durable commit."""
        files.sync_data(fd, path)
        self._check_file(fd, path)  # it may have been deleted meanwhile

    def _seek_to(self, seq: int, *, oldest: bool = False) -> None:
        """Go on at ``seq``; with ``oldest``, whatever was overwritten before it is no gap."""
        if self._options["hold"]:
            least = min(seq, self.committed)  # writers keep what is not committed
            self._take_over(self.log._storage.take_hold(self.log, least))
        durable, check = self._options["durable"], self._options["check"]
        self._go_to(
            reader_of(
                self.log,
                seq,
                self._filter,
                follows=True,
                from_oldest=oldest,
                durable=durable,
                check=check,
                on_gap=self._options["on_gap"],
                on_damage=self._options["on_damage"],
            )
        )
