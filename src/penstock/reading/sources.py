"""The sources of merging and asyncio: a `Reader`, and other objects with the same few methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from penstock._core import Event, Reader

if TYPE_CHECKING:
    from penstock.handle.handle import Handle

_T = TypeVar("_T")


@runtime_checkable
class Source(Protocol[_T]):
    """An object that returns the events of one log, in order, and knows its position.

    ``take`` returns available events and never waits. If an error comes after some events, it
    returns those, and raises the error in the next call: no event may be lost. ``wait(0)`` raises
    if no more can come. ``log`` is the log to wait for.

    A source with ``commit(seq=None, *, durable=False)`` can be committed by a merged reader: up to
    and including the event ``seq`` or, without one, all that it returned.
    """

    @property
    def log(self) -> Handle: ...
    @property
    def position(self) -> int: ...
    def take(self, count: int, /) -> list[Event[_T]]: ...
    def wait(self, timeout: float | None = None, /) -> bool: ...


def take_from(source: Source[_T], count: int) -> tuple[list[Event[_T]], BaseException | None]:
    """Up to ``count`` available events; and what interrupted it, to be raised later."""
    if isinstance(source, Reader):
        return source._take(count)
    return source.take(count), None


def has_ended(source: Source[Any]) -> bool:
    """Whether a source has ended: a reader at its limit, or its end."""
    return isinstance(source, Reader) and source._ended
