"""What users give to ``read`` and ``follow``, turned into what the compiled Reader takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock import layout as L
from penstock._core import Reader, encode_tags
from penstock.errors import Corrupt, TooLarge, Usage, WrongType
from penstock.event import Buffer
from penstock.times import Time, to_ns

if TYPE_CHECKING:
    from penstock.log import Log


__all__ = ["SEQ_MAX", "Reader", "bounds", "key_bytes", "tag_bytes", "topic_bytes"]

SEQ_MAX = (1 << 64) - 1


def key_bytes(key: Buffer | None) -> bytes | None:
    """The key as it stands in frames."""
    if key is None:
        return None
    try:
        return bytes(memoryview(key))
    except TypeError:
        raise WrongType(f"key is bytes, not {type(key).__name__}") from None


def tag_bytes(tags: Iterable[str] | None) -> bytes | None:
    """The tags as they stand in frames; None if any event will do."""
    return None if tags is None else encode_tags(tags) or None


def topic_bytes(topic: str | None) -> bytes | None:
    """The topic as it stands in frames."""
    if topic is None:
        return None
    if not isinstance(topic, str):
        raise WrongType(f"topic is str, not {type(topic).__name__}")
    try:
        raw = topic.encode()
    except UnicodeEncodeError as error:
        raise Usage(f"the topic cannot be written as UTF-8: {error}") from None
    if len(raw) > L.TOPIC_BYTES_MAX:
        raise TooLarge(f"a topic of {len(raw)} bytes; the limit is {L.TOPIC_BYTES_MAX}")
    return raw


def check_seqs(start: int | None, stop: int | None) -> None:
    """Refuse what is no seq."""
    for name, value in (("start", start), ("stop", stop)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise WrongType(f"{name} is a seq, not {type(value).__name__}")


def bounds(
    log: Log,
    start: int | None,
    stop: int | None,
    since: Time | None,
    until: Time | None,
    durable: bool,
    *,
    skip: bool,
) -> tuple[int, int, int | None, int | None]:
    """First seq, seq behind the last, and times: what a read has to look at, and no more."""
    check_seqs(start, stop)
    end = log._next_seq()
    if durable:
        end = min(end, log._durable_seq() + 1)
    lowest = 1 if start is None else min(max(1, start), SEQ_MAX)
    if stop is not None:
        end = min(end, max(0, stop))
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
