"""The arguments of ``read``, ``scan`` and ``follow``, turned into the query of a reader."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, SupportsIndex, TypeAlias

from penstock import layout as L
from penstock._core import Query, Reader, encode_tags, key_bytes, to_count, to_seq
from penstock.arguments import check_choice
from penstock.errors import Corrupt, TooLarge, Usage, WrongType
from penstock.event import Buffer
from penstock.times import Time, to_ns

if TYPE_CHECKING:
    from penstock.log import Log


__all__ = [
    "SEQ_MAX",
    "Position",
    "Query",
    "Reader",
    "Topic",
    "bounds",
    "check_position",
    "key_bytes",
    "make_query",
    "position",
    "tag_bytes",
    "to_count",
    "to_seq",
    "topics_bytes",
]

Position: TypeAlias = "SupportsIndex | Literal['start', 'end']"
Topic: TypeAlias = "str | Iterable[str]"  # one, or several of which any will do

SEQ_MAX = (1 << 64) - 1
_CHOICES = ("raise", "skip")  # what to do about events that are damaged or gone


def tag_bytes(tags: Iterable[str] | None) -> bytes | None:
    """The tags as in frames; None for all events."""
    return None if tags is None else encode_tags(tags) or None


def topics_bytes(topic: Topic) -> bytes | tuple[bytes, ...]:
    """The topic as in frames, or all of several."""
    if isinstance(topic, str):
        return topic_bytes(topic)
    found = tuple(topic_bytes(one) for one in listed_topics(topic))
    if not found:
        raise Usage(
            "topic must name at least one topic, got an empty list; leave it out for all events"
        )
    return found


def listed_topics(topic: Iterable[str]) -> list[str]:
    """Several topics, which may be iterated only once."""
    if not isinstance(topic, bytes | bytearray | memoryview):
        try:
            found = list(topic)
        except (TypeError, ValueError, NotImplementedError):
            pass
        else:
            for one in found:
                if not isinstance(one, str):
                    raise WrongType(
                        f"topic must be str or a list of str, got {type(one).__name__} in it"
                    )
            return found
    raise WrongType(f"topic must be str or a list of str, got {type(topic).__name__}")


def topic_bytes(topic: str) -> bytes:
    """The topic as in frames."""
    if not isinstance(topic, str):
        raise WrongType(f"topic must be str, got {type(topic).__name__}")
    try:
        raw = topic.encode()
    except UnicodeEncodeError as error:
        raise Usage(f"topic must be text that UTF-8 can encode: {error}") from None
    if len(raw) > L.TOPIC_BYTES_MAX:
        raise TooLarge(f"topic must be at most {L.TOPIC_BYTES_MAX} bytes, got {len(raw)}")
    return raw


def check_position(given: Position | None, what: str) -> int | Literal["end"] | None:
    """A position in one form: a seq from 1, "end", or None for the oldest event."""
    if given is None:
        return None
    if not isinstance(given, str):
        return to_seq(given, what) or 1
    if given == "start":
        return None
    if given != "end":
        raise WrongType(f"{what} must be a seq, 'start' or 'end', got {given[:40]!r}")
    return "end"


def position(log: Log, given: Position | None, what: str) -> tuple[int, bool]:
    """The seq of a position in a log, and whether it means the oldest event at any time.

    "start", or None, is the oldest event that is still there; "end" is the next event to be
    appended. A seq means itself, even if its event is gone; 0 is the same as 1.
    """
    found = check_position(given, what)
    if found is None:
        return 1, True
    return (log._next_seq() if found == "end" else found), False


def make_query(
    start: Position | None = None,
    stop: Position | None = None,
    since: Time | None = None,
    until: Time | None = None,
    topic: Topic | None = None,
    key: Buffer | None = None,
    tags: Iterable[str] | None = None,
    check: bool = True,
    on_damage: str = "raise",
    on_gap: str = "raise",
    durable: bool = False,
    reverse: bool = False,
    follows: bool = False,
    limit: SupportsIndex | None = None,
) -> Query:
    """Check the arguments of a read and make a `Query` of them; nothing else does."""
    if type(on_damage) is not str or on_damage not in _CHOICES:
        check_choice(on_damage, "on_damage", *_CHOICES)
    if type(on_gap) is not str or on_gap not in _CHOICES:
        check_choice(on_gap, "on_gap", *_CHOICES)
    return Query(
        check_position(start, "start"),
        None if stop is None else check_position(stop, "stop") or 1,
        None if since is None else to_ns(since, "since"),
        None if until is None else to_ns(until, "until"),
        None if topic is None else topics_bytes(topic),
        None if key is None else key_bytes(key),
        None if tags is None else tag_bytes(tags),
        reverse,
        follows,
        durable,
        check,
        on_damage == "skip",
        on_gap == "skip",
        None if limit is None else to_count(limit, "limit"),
    )


def bounds(log: Log, query: Query) -> tuple[int, int]:
    """First seq and the one after the last: the range of a read as the log is now."""
    lowest, _ = position(log, query.start, "start")
    end = log._next_seq()
    if query.durable:
        end = min(end, log._durable_seq() + 1)
    if query.stop is not None:
        end = min(end, position(log, query.stop, "stop")[0])
    since_ns, until_ns = query.since_ns, query.until_ns
    try:
        if since_ns is not None and lowest < end:
            lowest = max(lowest, log._storage.first_seq_since(log, since_ns))
        if until_ns is not None and lowest < end:
            end = min(end, log._storage.seq_past(log, until_ns, end))
    except Corrupt:
        if not query.skip:
            raise  # else the read itself reaches the unreadable segment and passes over it
    return lowest, max(lowest, end)
