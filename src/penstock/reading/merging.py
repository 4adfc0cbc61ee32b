"""merge: the events of many logs as one sequence, by time.

Sources are read in batches, and the compiled `Merging` merges these. Nothing is returned while an
empty source may still have the next event.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, SupportsIndex, cast

from penstock import _core
from penstock._core import Event, Merging, Reader, Waits, iterates_as_base
from penstock.arguments import check_choice, seconds
from penstock.errors import Closed, Usage, WrongType
from penstock.event import Buffer
from penstock.log import Log
from penstock.reader import Topic, listed_topics
from penstock.reading.sources import Source, has_ended
from penstock.times import Time

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from penstock.reading.aio import Listener

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")

__all__ = ["Merged", "merge"]

BATCH = 256  # events of one source that are read ahead, unless there are many sources
BATCHES = 1 << 15  # events that are read ahead of all sources together
LOOK_AFTER = 1.0  # seconds between two checks whether a log was deleted


@iterates_as_base
class Merged(Merging, Generic[T]):
    """The events of many sources by time, from `penstock.merge`.

    It reads up to 256 events of each source ahead. ``take(n)`` returns available events
    without waiting. ``source`` is the source of the last event, and ``positions`` says where to
    continue each source. It is for one thread at a time; tasks of one loop may share it.
    """

    def __new__(
        cls,
        count: int = 0,
        reverse: bool = False,
        limit: int | None = None,
        *,
        sources: tuple[Source[T], ...] = (),
        **options: Any,
    ) -> Self:
        if not sources or not isinstance(sources, tuple) or len(sources) != count:
            raise Usage("a merged reader comes from penstock.merge(a, b)")
        return super().__new__(cls, count, reverse, limit)  # type: ignore[call-arg]

    def __init__(
        self,
        count: int = 0,
        reverse: bool = False,
        limit: int | None = None,
        *,
        given: tuple[Any, ...] = (),
        sources: tuple[Source[T], ...] = (),
        follow: bool = False,
        quiet: float | None = None,
        timeout: float | None = None,
    ) -> None:
        self._given_sources = given
        self._sources = sources
        self._reverse = reverse
        self._follow = follow
        self._quiet = quiet
        self._timeout = timeout
        self._batch = max(8, min(BATCH, BATCHES // count))
        if limit is not None:
            self._batch = max(1, min(self._batch, limit))
        self._starts = [source.position for source in sources]
        self._waits: Waits | Listener | None = None
        self._slots: dict[int, list[int]] = {}  # the sources of each slot that is watched
        self._slot_of: dict[int, int] = {}
        self._armed: set[int] = set()  # sources that are dry and not read before there is news
        self._silent: dict[int, float] = {}  # sources that hold others back: dry since when
        self._released: set[int] = set()  # sources that are dry and hold no others back
        self._over: set[int] = set()  # sources that have ended
        self._shaken = False  # an error or a signal ended a call amid its steps
        self._looked = 0.0

    if TYPE_CHECKING:

        def __next__(self) -> Event[T]: ...
        def take(self, count: int) -> list[Event[T]]: ...

    @property
    def source(self) -> Any:
        """The log or other source that the last event came from; None before that.

        >>> a, b = penstock.open(path), penstock.open(path.with_suffix(".b"))
        >>> a.append(b"1", time=10), b.append(b"2", time=20)
        (1, 1)
        >>> merged = penstock.merge(a, b)
        >>> [(event.value, merged.source is b) for event in merged]
        [(b'1', False), (b'2', True)]
        """
        return None if self._latest < 0 else self._given_sources[self._latest]

    @property
    def positions(self) -> tuple[int, ...]:
        """For each source, the position from which to continue after the returned events."""
        found = []
        for number, source in enumerate(self._sources):
            seq, all_of_it = self._given(number)
            if all_of_it:
                found.append(source.position)
            elif not seq:
                found.append(self._starts[number])
            else:
                found.append(seq if self._reverse else seq + 1)
        return tuple(found)

    @property
    def skipped(self) -> int:
        """The number of seqs that all sources passed over because they are damaged or gone."""
        return sum(int(getattr(source, "skipped", 0)) for source in self._sources)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return bool(self._shut)

    def commit(self, *, durable: bool = False) -> None:
        """Commit each consumer among the sources, exactly up to its last returned event.

        Events that were read ahead are not committed. Other sources are not affected.
        """
        if self._shut:
            raise self._closed_error()
        consumers = [n for n, source in enumerate(self._sources) if hasattr(source, "commit")]
        if not consumers:
            raise Usage("commit() needs a consumer among the sources of merge(), got none")
        for number in consumers:
            consumer = cast(Any, self._sources[number])
            seq, all_of_it = self._given(number)
            if all_of_it:
                consumer.commit(durable=durable)  # also what its filter passed over since
            elif seq:
                consumer.commit(seq, durable=durable)

    def close(self) -> None:
        """Release its resources; the sources of `merge` stay open. Closing twice is fine."""
        self._shut = True
        waits, self._waits = self._waits, None
        if waits is not None and not isinstance(waits, Waits):
            waits.close()
        for given, source in zip(self._given_sources, self._sources, strict=True):
            if given is not source and isinstance(source, Reader):
                source.close()

    def __del__(self) -> None:
        waits = getattr(self, "_waits", None)
        if waits is not None and not isinstance(waits, Waits):  # which the hub would keep
            waits.close()

    def __enter__(self) -> Self:
        if self._shut:
            raise self._closed_error()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    def __repr__(self) -> str:
        state = ", closed" if self._shut else ""
        return f"<penstock.Merged of {len(self._sources)} sources{state}>"

    def _closed_error(self) -> Closed:
        return Closed("the merged reader was closed; make another one with penstock.merge()")

    def _more(self, wait: bool) -> bool:
        """Make sure which event comes next, waiting if needed; False if there is none."""
        if self._ask(Waits) or not (wait and self._follow):
            return bool(self._ready)
        began = time.monotonic()
        while not self._ready:
            left = self._time_left(began)
            if not self._armed or (left is not None and left <= 0):
                return False
            assert isinstance(self._waits, Waits)
            self._shaken = True
            self._hear(self._waits.sleep(left))
            self._shaken = False
            if not self._ask(Waits):
                self._look_after()
        return True

    async def __anext__(self) -> Event[T]:
        import asyncio

        from penstock.reading.aio import Listener

        if self._shut:
            raise self._closed_error()
        event = self._pop()
        if event is not None:
            return event
        if self._done:
            raise StopAsyncIteration
        await asyncio.sleep(0)  # other tasks, and a cancellation, have their turn
        began = time.monotonic()
        while not self._ask(Listener) and self._follow:
            left = self._time_left(began)
            if not self._armed or (left is not None and left <= 0):
                break
            assert isinstance(self._waits, Listener)
            if not await self._waits.sleep(left):
                continue
            if not self._ask(Listener):
                self._look_after()
        if self._shut:
            raise self._closed_error()
        event = self._pop()
        if event is None:
            raise StopAsyncIteration
        return event

    def _time_left(self, began: float) -> float | None:
        """Seconds until ``timeout`` is up, or until a silent source stops holding others back."""
        now = time.monotonic()
        left = None if self._timeout is None else self._timeout - (now - began)
        if self._quiet is not None and self._silent and self._ready is False and self._has_some:
            until_quiet = next(iter(self._silent.values())) + self._quiet - now
            if left is None or until_quiet < left:
                return max(until_quiet, 0.000_001)  # time is not up then
        return left

    def _ask(self, kind: type[Waits | Listener]) -> bool:
        """Read the sources that may have events; returns whether the next event is certain now."""
        if self._shaken:
            self._mend()
        self._shaken = True
        if self._follow:
            self._hear(self._watch(kind).changed())
        while self.dry:
            number = self.dry[-1]
            seen = self._look(number)
            if self._draw(number, self._sources[number], self._batch):
                self.dry.pop()
                self._heard(number)
            elif not self._follow or has_ended(self._sources[number]):
                self._over.add(number)
                self.dry.pop()
                self._heard(number)
            elif self._arm(number, seen):
                self.dry.pop()
                if number not in self._released:
                    self._silent.setdefault(number, time.monotonic())
        if self._quiet is not None and self._silent:
            self._release(time.monotonic() - self._quiet)
        self._shaken = False
        return bool(self._ready)

    def _mend(self) -> None:
        """Find again which sources to read, after a call that was cut off between any two steps."""
        dry = [n for n in range(len(self._sources)) if self._is_dry(n) and n not in self._over]
        self.dry = dry
        self._armed.clear()
        self._released.intersection_update(dry)
        held = set(dry) - self._released
        self._silent = {n: since for n, since in self._silent.items() if n in held}
        self.held = len(held)

    def _heard(self, number: int) -> None:
        """A dry source has events again."""
        if number in self._released:
            self._released.remove(number)
        else:
            self._silent.pop(number, None)
            self.held -= 1

    def _release(self, until: float) -> None:
        """Release the sources that were dry since then, or before: they hold no others back."""
        while self._silent:
            number, since = next(iter(self._silent.items()))
            if since > until:
                return
            del self._silent[number]
            self._released.add(number)
            self.held -= 1

    def _watch(self, kind: type[Waits | Listener]) -> Waits | Listener:
        """The object to wait with: for a thread, or for a task of a loop."""
        waits = self._waits
        if isinstance(waits, kind) and (isinstance(waits, Waits) or waits.fits):
            return waits
        if waits is not None and not isinstance(waits, Waits):
            waits.close()
        if kind is Waits:
            waits = Waits()
        else:
            import asyncio

            waits = kind(asyncio.get_running_loop())
        self._waits = waits
        self.dry.extend(self._armed)
        self._armed.clear()
        self._slots, self._slot_of = {}, {}
        return waits

    def _look(self, number: int) -> tuple[int, int, int, int] | None:
        """The state of a source's log, to be read before the source."""
        if not self._follow:
            return None
        waits = self._waits
        assert waits is not None
        slot = self._slot_of.get(number)
        if slot is None:
            slot = self._slot_of[number] = waits.watch(self._sources[number].log)
            self._slots.setdefault(slot, []).append(number)
        return waits.look(slot)

    def _arm(self, number: int, seen: tuple[int, int, int, int] | None) -> bool:
        """Watch a source that had no events; False if it has some now."""
        assert self._waits is not None and seen is not None
        self._sources[number].wait(0)  # raises if no more can come
        if not self._waits.arm(self._slot_of[number], seen):
            return False
        self._armed.add(number)
        return True

    def _hear(self, slots: Iterable[int]) -> None:
        """There is news of those logs: read their sources."""
        for slot in slots:
            for number in self._slots.get(slot, ()):
                if number in self._armed:  # else it has events left, and is read after those
                    self._armed.remove(number)
                    self.dry.append(number)

    def _look_after(self) -> None:
        """Raise `Gone` if a log was deleted: no writer wakes its waiters."""
        now = time.monotonic()
        if now - self._looked >= LOOK_AFTER:
            self._looked = now
            for source in self._sources:
                source.log._storage.check_there(source.log)


def merge(
    *sources: Log[T] | Source[T],
    start: Literal["start", "end"] | None = None,
    since: Time | None = None,
    until: Time | None = None,
    topic: Topic | None = None,
    key: Buffer | None = None,
    tags: Iterable[str] | None = None,
    reverse: bool = False,
    follow: bool = False,
    quiet: float | None = None,
    timeout: float | None = None,
    limit: SupportsIndex | None = None,
    durable: bool = False,
    check: bool = True,
    on_damage: Literal["raise", "skip"] = "raise",
    on_gap: Literal["raise", "skip"] = "raise",
) -> Merged[T]:
    """The events of all sources as one sequence: by time, then by place in the argument list.

    Sources are logs, and readers or consumers of logs. Each keeps its own order: where a log's
    event times go back, its events still come in the order of their seqs. Without
    ``follow`` it returns what `Log.read` would return of each log now; ``since`` to ``on_gap`` mean
    the same as there, and are for logs only: a reader has its own. With ``reverse`` the newest
    comes first; readers among the sources must be in reverse as well, and consumers are refused.
    ``limit`` is the maximum number of events.

    ``follow=True`` goes on as events are appended, from the oldest ones, or with ``start="end"``
    from now. An event is returned once each other source has one that comes after it, so a
    silent source holds all others back. With ``quiet=seconds`` it does so only until it has had no
    new event for that long; its later events are returned as soon as they come, and may be older
    than events returned before. ``timeout`` ends it when no event was returned for that many
    seconds. A reader among the sources that does not follow ends, and then holds no others back.

    >>> a, b = penstock.open(path), penstock.open(path.with_suffix(".b"))
    >>> a.append(b"1", time=10), b.append(b"2", time=20), a.append(b"3", time=30)
    (1, 1, 2)
    >>> [event.value for event in penstock.merge(a, b)]
    [b'1', b'2', b'3']
    >>> [event.value for event in penstock.merge(a, b, reverse=True, limit=2)]
    [b'3', b'2']
    """
    _check_sources(sources, bool(reverse))
    if reverse and follow:
        raise Usage("reverse=True needs follow=False: future events have no last one")
    if quiet is not None and not follow:
        raise Usage("quiet needs follow=True: a merge that ends does not wait")
    if timeout is not None and not follow:
        raise Usage("timeout needs follow=True: a merge that ends does not wait")
    if until is not None and follow:
        raise Usage("until needs follow=False: following has no end")
    if start is not None:
        check_choice(start, "start", "start", "end")
    if start == "end" and not follow:
        raise Usage("start='end' needs follow=True: no existing event comes after the end")
    if limit is not None:
        limit = _core.to_count(limit, "limit")
    asked: dict[str, Any] = {
        "since": since,
        "topic": topic if topic is None or isinstance(topic, str) else listed_topics(topic),
        "key": key,
        "tags": _kept(tags),
        "durable": durable,
        "check": check,
        "on_damage": on_damage,
        "on_gap": on_gap,
    }
    if not all(isinstance(source, Log) for source in sources):
        _check_unasked(asked | {"until": until, "start": start})

    def reader(source: Log[T] | Source[T]) -> Source[T]:
        if not isinstance(source, Log):
            return source
        if follow:
            return source.follow("start" if start is None else start, timeout=0, **asked)
        return source.read(until=until, reverse=reverse, **asked)

    return Merged(
        len(sources),
        bool(reverse),
        limit,
        given=sources,
        sources=tuple(map(reader, sources)),
        follow=bool(follow),
        quiet=seconds(quiet, "quiet"),
        timeout=seconds(timeout),
    )


def _check_sources(sources: tuple[Any, ...], reverse: bool) -> None:
    if not sources:
        raise Usage("merge() needs at least one log, reader or consumer, got none")
    for source in sources:
        if isinstance(source, Log):
            continue
        if not isinstance(source, Source) or not isinstance(source.log, Log):
            hint = "; to merge the logs of a list, write merge(*logs)" * isinstance(
                source, list | tuple
            )
            raise WrongType(
                f"merge() takes logs, readers and consumers, got {type(source).__name__}{hint}"
            )
        if reverse and hasattr(source, "commit"):
            raise Usage("reverse=True is for logs and readers: a consumer only goes forward")
        if isinstance(source, Reader) and source._reverse != reverse:
            raise Usage(
                f"{source.log.path}: readers among the sources of merge() must be read with "
                f"reverse={reverse}, as it is, got one with reverse={not reverse}"
            )
        if getattr(source, "_commits_alone", False):
            raise Usage(
                f"{source.log.path}: a consumer with auto_commit would commit events that merge() "
                "has read ahead and not handed out; open it without, and call commit() of what "
                "merge() returns"
            )
    readers = [id(source) for source in sources if not isinstance(source, Log)]
    if len(set(readers)) < len(readers):
        raise Usage("merge() takes a reader only once: it gives each event only once")


def _kept(tags: Iterable[str] | None) -> Iterable[str] | None:
    """Tags that can be iterated over once for each log."""
    if tags is None or isinstance(
        tags, str | bytes | bytearray | memoryview | list | tuple | set | frozenset
    ):
        return tags
    try:
        return list(tags)
    except (TypeError, ValueError, NotImplementedError):
        raise WrongType(f"tags must be words, got {type(tags).__name__}") from None


def _check_unasked(asked: dict[str, Any]) -> None:
    """Refuse what a reader among the sources would ignore."""
    as_ever = {"durable": False, "check": True, "on_damage": "raise", "on_gap": "raise"}
    for name, value in asked.items():
        usual = as_ever.get(name)
        if value is not usual and not (type(value) is type(usual) and value == usual):
            raise Usage(
                f"{name} is for logs, but there is a reader or consumer among the sources of "
                f"merge(), which has its own: give {name} when you make it"
            )
