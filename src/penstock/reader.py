"""What users give to ``read`` and ``follow``, turned into what the compiled Reader takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, SupportsIndex, TypeAlias

from penstock import layout as L
from penstock._core import Reader, encode_tags, key_bytes, to_seq
from penstock.errors import Corrupt, TooLarge, Usage, WrongType
from penstock.times import Time, to_ns

if TYPE_CHECKING:
    from penstock.log import Log


__all__ = [
    "SEQ_MAX",
    "Position",
    "Reader",
    "bounds",
    "check_position",
    "key_bytes",
    "position",
    "tag_bytes",
    "to_seq",
    "topic_bytes",
]

Position: TypeAlias = "SupportsIndex | Literal['start', 'end']"

SEQ_MAX = (1 << 64) - 1


def tag_bytes(tags: Iterable[str] | None) -> bytes | None:
    """The tags as they stand in frames; None if any event will do."""
    return None if tags is None else encode_tags(tags) or None


def topic_bytes(topic: str | None) -> bytes | None:
    """The topic as it stands in frames."""
    if topic is None:
        return None
    if not isinstance(topic, str):
        raise WrongType(f"topic must be str, got {type(topic).__name__}")
    try:
        raw = topic.encode()
    except UnicodeEncodeError as error:
        raise Usage(f"the topic cannot be written as UTF-8: {error}") from None
    if len(raw) > L.TOPIC_BYTES_MAX:
        raise TooLarge(f"a topic of {len(raw)} bytes; the limit is {L.TOPIC_BYTES_MAX}")
    return raw


def check_position(given: Position | None, what: str) -> None:
    """Refuse what is not a position in any log."""
    if isinstance(given, str):
        if given not in ("start", "end"):
            raise WrongType(f"{what} must be a seq, 'start' or 'end', got {given[:40]!r}")
    elif given is not None:
        to_seq(given, what)


def means_oldest(start: Position | None) -> bool:
    """Whether a start means the oldest event there is, so that nothing before it is missing."""
    return start is None or (isinstance(start, str) and start == "start")


def position(log: Log, given: Position | None, what: str) -> tuple[int, bool]:
    """The seq of a position in a log, and whether it means the oldest event, whichever that is.

    "start", or None, is the oldest event that is still there; "end" is what will be appended next.
    A seq means itself, also if its event is gone; 0 is the same as 1.
    """
    check_position(given, what)
    if given is None or isinstance(given, str):
        return (1, True) if means_oldest(given) else (log._next_seq(), False)
    return max(1, to_seq(given, what)), False


def bounds(
    log: Log,
    start: Position | None,
    stop: Position | None,
    since: Time | None,
    until: Time | None,
    durable: bool,
    *,
    skip: bool,
) -> tuple[int, int, int | None, int | None]:
    """First seq, seq after the last, and times: what a read has to look at, and no more."""
    lowest, _ = position(log, start, "start")
    end = log._next_seq()
    if durable:
        end = min(end, log._durable_seq() + 1)
    if stop is not None:
        end = min(end, position(log, stop, "stop")[0])
    since_ns = None if since is None else to_ns(since, "since")
    until_ns = None if until is None else to_ns(until, "until")
    try:
        if since_ns is not None and lowest < end:
            lowest = max(lowest, log._first_seq_since(since_ns))
        if until_ns is not None and lowest < end:
            end = min(end, log._seq_past(until_ns, end))
    except Corrupt:
        if not skip:
            raise  # else the read comes by the segment that cannot be asked, and passes over it
    return lowest, max(lowest, end), since_ns, until_ns
