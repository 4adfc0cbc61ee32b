"""How a consumer looks at its log: from where, what it wants, and how far it is behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from penstock import _core
from penstock._core import Query, Reader
from penstock.consumers.file import Filter
from penstock.data.spans import spans
from penstock.errors import Usage, WrongType
from penstock.reader import SEQ_MAX, Position, check_position, position
from penstock.times import Ns, Time, is_time, to_ns

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from penstock.log import Log

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")

Start: TypeAlias = "Position | Time"


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a consumer is behind: what it has yet to be handed, of the events that it wants.

    ``bytes`` is what they take in the log; without a filter, with the few entries of the log's own
    among them. ``seconds`` is the age of the oldest, by the time when the log took it. Expired
    events before the oldest do not count; later ones do, unless the consumer has a filter.
    """

    events: int
    bytes: int
    seconds: float


def measure(log: Log[Any], at: int, wants: Filter) -> Lag:
    """The lag of a consumer that stands at seq ``at``."""
    first, end = log._storage.seqs(log)
    at = max(at, first)
    if at >= end:
        return Lag(0, 0, 0.0)
    if wants:
        events, nbytes, since = _core.count_events(reader_of(log, at, wants, stop=end))
        return Lag(events, nbytes, _age(since) if events else 0.0)
    oldest = next(reader_of(log, at, wants, stop=end), None)
    if oldest is None:  # all of them have expired, or are damaged
        return Lag(0, 0, 0.0)
    at = oldest.seq
    nbytes = sum(span.nbytes for span in spans(log, at, end))
    block = log._storage.block_start(log, at)
    if block < at:  # which the first span counts from
        nbytes -= _core.count_events(reader_of(log, block, wants, stop=at))[1]
    events = log._storage.events_between(log, at, end)
    return Lag(events, nbytes, _age(oldest.append_ns))


def _age(ns: int) -> float:
    return max(0, _core.now_ns() - ns) / 1e9


def reader_of(
    log: Log[T],
    start: int,
    wants: Filter,
    *,
    stop: int = SEQ_MAX,
    follows: bool = False,
    from_oldest: bool = True,
    durable: bool = False,
    check: bool = True,
    on_gap: Literal["raise", "skip"] = "skip",
    on_damage: Literal["raise", "skip"] = "skip",
) -> Reader[T]:
    query = Query(
        None if from_oldest else start,
        topic=wants.topic,
        key=wants.key,
        tags=wants.tag_bytes(),
        follows=follows,
        durable=durable,
        check=check,
        skip=on_damage == "skip",
        pass_gaps=on_gap == "skip",
    )
    return Reader(log, query, start, stop)


def check_start(start: Start) -> None:
    """Refuse what is neither a position nor a time, before anything is touched."""
    if is_time(start):
        _time_ns(start, "start")
    else:
        check_position(cast(Position, start), "start")


def _time_ns(given: Start, what: str) -> Ns:
    """`to_ns`, whose errors name only times."""
    try:
        return to_ns(cast(Any, given), what)
    except (Usage, WrongType) as error:
        raise type(error)(f"{error}; a seq, 'start' or 'end' will do as well") from None


def means_start(start: Start) -> bool:
    return isinstance(start, str) and start == "start"


def find_start(log: Log[Any], to: Start, what: str) -> tuple[int, bool]:
    """The seq that a consumer is to go on at, and whether it means the oldest event there is."""
    if to is None:
        raise WrongType(f"{what} must be a seq, a time, 'start' or 'end', got None")
    end = log._next_seq()
    if is_time(to):
        since = _time_ns(to, what)
        found = next(log.read(stop=end, since=since, on_gap="skip", on_damage="skip"), None)
        return (end if found is None else found.seq), False
    seq, oldest = position(log, cast(Position, to), what)
    if oldest:
        return log.first_seq, True
    if seq > end and not isinstance(to, str):
        raise Usage(
            f"{log.path}: {what} must be a seq up to the next one to come, which is {end}, got {to}"
        )
    return seq, False
