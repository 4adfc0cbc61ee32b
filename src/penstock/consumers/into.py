"""Exactly once from log to log: results and how far the input was processed, as one batch.

The output remembers, for each producer, the number of its last append, and that number is atomic
with the append. Here the producer is the consumer, and the number the last seq of its input that
was looked at. So the output says what was processed, and the consumer's own place only helps:

1. A step begins. If the output has results of events that the consumer has yet to hand out, they
   are passed over; if it has those of all that were handed out, this step appends nothing.
2. The step ends: its results are appended as one batch, under the last seq that was looked at.
3. The consumer commits. Who dies before that begins again at 1, and finds what 2 has stored.

A step never ends with results of events that are in the output already, and never passes over an
event whose results are not: one that was about events of both kinds raises `Conflict`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from penstock import _core
from penstock._core import LogCore, key_bytes
from penstock.errors import Conflict, Usage, WrongType
from penstock.event import Buffer, Entry, Event, Headers
from penstock.times import Due, Span, Time

if TYPE_CHECKING:
    from penstock.consumers.consumer import Consumer
    from penstock.log import Log


class ConsumerStep:
    """What one step appends to the output, all of it or nothing."""

    def __init__(self, out: Log[Any], *, ignored: bool) -> None:
        self.ignored = ignored
        self.ended = False
        self.seqs = range(0)
        self._out = out
        self._entries: list[Any] = []

    def __repr__(self) -> str:
        return f"<penstock.Step of {len(self._entries)} results>"

    def append(
        self,
        value: Any,
        *,
        key: Buffer | None = None,
        topic: str | None = None,
        headers: Headers | None = None,
        time: Time | None = None,
        tags: Iterable[str] | None = None,
        not_before: Due | None = None,
        ttl: Span | None = None,
    ) -> None:
        """Add one result, as for `Log.append`; it gets its seq when the step ends.

        It is stored as it is now, whatever becomes of the value until then. A `penstock.Entry` or
        an event keeps everything it has, and takes no other arguments.
        """
        self._check_open()
        rest: dict[str, Any] = {
            "key": key,
            "topic": topic,
            "headers": headers,
            "time": time,
            "tags": tags,
            "not_before": not_before,
            "ttl": ttl,
        }
        if not isinstance(value, Entry | Event):
            value = Entry(value, **rest)
        else:
            kind = type(value).__name__
            for name, given in rest.items():
                if given is not None:
                    raise Usage(f"{name} is given twice: the {kind} has its own; leave {name}= out")
        self._entries.append(self._now(value))

    def extend(self, values: Iterable[Any]) -> None:
        """Add results: values, `penstock.Entry` or events, each as it is now."""
        self._check_open()
        self._out._check_many(values)
        self._entries += [self._now(value) for value in values]

    def _now(self, item: Any) -> Any:
        """The same, with nothing in it that its owner may change before the step ends."""
        value_now = self._out._value_now
        if not isinstance(item, Entry):
            return value_now(item)
        headers, tags = item.headers, item.tags
        if isinstance(headers, Mapping):
            headers = list(headers.items())
        if isinstance(headers, Iterable):
            headers = [pair_now(pair) for pair in headers]
        if isinstance(tags, Iterable) and not isinstance(tags, str):
            tags = tuple(tags)
        value, key = value_now(item.value), key_bytes(item.key)
        return item._replace(value=value, key=key, headers=headers, tags=tags)

    def _check_open(self) -> None:
        if self.ended:
            raise Usage("the step has ended, so nothing more can be appended to it; begin another")


def buffer_now(given: Any) -> Any:
    """A buffer as bytes; anything else as it is, for ``extend`` to take or to refuse."""
    if isinstance(given, bytearray) or (isinstance(given, memoryview) and given.ndim):
        return bytes(given)
    return given


def pair_now(pair: Any) -> Any:
    """A header, with its value as bytes."""
    return tuple(map(buffer_now, pair)) if isinstance(pair, tuple | list) else pair


class Into:
    """Steps of one consumer whose results go to one log. ``with`` it: one step."""

    def __init__(self, consumer: Consumer[Any], out: Log[Any], *, durable: bool) -> None:
        if not isinstance(out, LogCore):
            raise WrongType(f"out must be a log, got {type(out).__name__}")
        out._check_writable()
        check_commits(consumer)
        self._consumer = consumer
        self._out = out
        self._durable = bool(durable)
        self._who = identity(consumer)
        self._done = 0
        self._step: ConsumerStep | None = None
        consumer._open_file()
        if not consumer._outstanding:
            self._catch_up()

    def _catch_up(self) -> None:
        """Pass over the events whose results are in the output already."""
        consumer, log = self._consumer, self._consumer.log
        found = self._out._storage.ask_producers(
            self._out, lambda table: table.entries.get(self._who.encode())
        )[0]
        self._done = 0 if found is None else found.n
        if self._done > log.last_seq:
            raise Conflict(
                f"{self._out.path}: has results of {log.path} up to seq {self._done}, and that "
                f"ends at seq {log.last_seq}: it lost events when the machine lost power, or "
                "is another copy. Process it under another name; a consumer with durable=True is "
                "handed only events that survive power loss",
                path=self._out.path,
                expected=log.last_seq,
                found=self._done,
            )
        if not consumer._outstanding and consumer.position <= self._done:
            consumer._seek_to(self._done + 1)

    def __enter__(self) -> ConsumerStep:
        consumer = self._consumer
        consumer._open_file()
        if consumer._stepping:
            raise Usage(
                f"{consumer.log.path}: the consumer {consumer.name!r} has a step under way; end it "
                "first, for a step has one output"
            )
        self._catch_up()
        ignored = consumer._outstanding and consumer.position - 1 <= self._done
        if consumer._outstanding and not ignored and consumer._since <= self._done:
            raise self._done_in_part(consumer._since)
        consumer._stepping = True
        self._step = ConsumerStep(self._out, ignored=ignored)
        return self._step

    def __exit__(self, kind: object, *_: object) -> None:
        consumer, step = self._consumer, self._step
        assert step is not None
        self._step = None
        step.ended = True
        consumer._stepping = False
        if kind is not None:
            if not consumer.closed:
                consumer._seek_to(consumer._since)
            return
        consumer._open_file()
        try:
            self._finish(step)
        except BaseException:
            if not consumer.closed:
                consumer._seek_to(consumer._since)
            raise
        _core.fail_point("consumer.appended")
        consumer.commit()

    def _done_in_part(self, first: int) -> Conflict:
        """The error for a step of which the output has results in part; the rest comes next."""
        consumer, last = self._consumer, self._consumer.position - 1
        consumer._seek_to(self._done + 1)
        consumer.commit()
        return Conflict(
            f"{self._out.path}: has the results of {consumer.log.path} up to seq {self._done}, and "
            f"this step is about seq {first} to {last}; nothing was appended, and the consumer "
            f"goes on at seq {self._done + 1}: ask it again. Take events inside the step, or call "
            "into() before taking any, and this cannot happen",
            path=self._out.path,
            expected=last,
            found=self._done,
        )

    def _finish(self, step: ConsumerStep) -> None:
        """Append the results under the last seq of the input that was looked at."""
        n = self._consumer.position - 1
        if step.ignored and n > self._done:  # events were taken inside the step as well
            raise self._done_in_part(self._consumer._since)
        if not step._entries or step.ignored:
            return
        if n <= self._done:
            raise Usage(
                f"{self._out.path}: a step that appends must have taken events, and this one took "
                f"none of {self._consumer.log.path} after seq {self._done}; nothing was appended"
            )
        step.seqs = self._out.extend(step._entries, producer=(self._who, n), durable=self._durable)


def check_commits(consumer: Consumer[Any]) -> None:
    """Refuse a consumer that commits by itself, perhaps before results are stored."""
    if consumer._commits_alone:
        raise Usage(
            f"{consumer.log.path}: a step stores the position of its consumer {consumer.name!r} "
            "when it ends; open that without auto_commit"
        )


def identity(consumer: Consumer[Any]) -> str:
    """What tells a consumer from every other, wherever its log lies."""
    uuid: bytes = consumer.log._uuid()
    return f"{uuid.hex()}/{consumer.name}"
