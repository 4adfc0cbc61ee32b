"""Event, as read, and Entry, as given to ``extend``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

from penstock._core import Event
from penstock.times import Due, Span, Time

Buffer: TypeAlias = "bytes | bytearray | memoryview"
Headers: TypeAlias = "Mapping[str, Buffer | None] | Iterable[tuple[str, Buffer | None]]"


class _ArrowStream(Protocol):
    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...


class _ArrowArray(Protocol):
    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]: ...


ArrowData: TypeAlias = "_ArrowStream | _ArrowArray"


class Entry(NamedTuple):
    """One event to append in a batch, where the batch's items differ in more than their values.

    >>> log = penstock.open(path)
    >>> log.extend([Entry(b"1", key=b"a"), Entry(b"2", key=b"b", topic="odd")])
    range(1, 3)
    """

    value: Any
    key: Buffer | None = None
    topic: str | None = None
    headers: Headers | None = None
    time: Time | None = None
    tags: Iterable[str] | None = None
    not_before: Due | None = None
    ttl: Span | None = None


__all__ = ["ArrowData", "Buffer", "Entry", "Event", "Headers"]
