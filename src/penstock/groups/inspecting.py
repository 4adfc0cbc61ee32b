"""What is known of a group: counts, unfinished events, workers. It changes nothing."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from penstock import _core
from penstock.consumers.file import Filter
from penstock.consumers.reading import Lag, measure
from penstock.groups import decisions as d
from penstock.groups import life

if TYPE_CHECKING:
    from penstock.groups.desk import Desk
    from penstock.groups.glance import Glance
    from penstock.groups.state import GroupState, Unfinished
    from penstock.log import Log

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_RATE_S = 60.0
_RATE_DECISIONS = 10_000
State = Literal["claimed", "ready", "delayed", "waiting", "dying"]


@dataclass(frozen=True)
class GroupStats:
    """The events of a group by their state, and counts since it was made.

    ``ready`` are those that a worker could have now, ``delayed`` those whose time has not come,
    ``waiting`` those behind another event of their key. ``dead`` is how many dead letters are not
    tried again, ``lost`` how many events the log had no more when their turn came. Rates are per
    second, over the last minute or less. ``oldest_seconds`` is the age of the oldest unfinished
    event. ``stopped`` says since when the breaker has stopped the group.
    """

    ready: int
    claimed: int
    delayed: int
    waiting: int
    dead: int
    acked: int
    nacked: int
    rejected: int
    returned: int
    lapsed: int
    raised: int
    lost: int
    workers: int
    acked_per_s: float
    nacked_per_s: float
    dead_per_s: float
    oldest_seconds: float
    stopped: dt.datetime | None


@dataclass(frozen=True)
class Pending:
    """An unfinished event. ``host`` and ``pid`` of its worker are for display only.

    ``deliveries`` counts the tries, with the present one; ``next_try`` is when a delayed event
    is due, ``reason`` why it failed the last time.
    """

    seq: int
    state: State
    worker: int | None
    host: str | None
    pid: int | None
    since: dt.datetime | None
    deliveries: int
    next_try: dt.datetime | None
    lease_until: dt.datetime | None
    reason: str


@dataclass(frozen=True)
class WorkerInfo:
    """A worker of a group, in whatever process."""

    number: int
    host: str
    pid: int
    live: bool
    joined: dt.datetime
    claims: int


def stats(desk: Desk | Glance) -> GroupStats:
    """`Group.stats`."""
    now = _core.now_ns()
    with desk.guard:
        state = desk.state()
        kinds = [_kind(state, item, now) for item in state.open.values()]
        first = min(state.open, default=0)
        ends = [m.file for m in state.members.values()]
        counts, cursor, terms = state.counts, state.cursor, state.terms
        raised, stopped = len(state.raised), state.stopped
        rates = _rates(desk.ledger.log, now)
    lag = fresh_lag(desk.log, cursor, terms)
    oldest = lag.seconds
    if first:
        event = desk.fetch(first, 0)
        if event is not None:
            oldest = max(oldest, (now - event.append_ns) / 1e9)
    return GroupStats(
        ready=kinds.count("ready") + lag.events,
        claimed=kinds.count("claimed"),
        delayed=kinds.count("delayed"),
        waiting=kinds.count("waiting"),
        dead=max(0, counts.dead - raised),
        acked=counts.acked,
        nacked=counts.nacked,
        rejected=counts.rejected,
        returned=counts.returned,
        lapsed=counts.lapsed,
        raised=counts.raised,
        lost=counts.lost,
        workers=sum(life.is_alive(desk.folder, file) for file in ends),
        acked_per_s=rates[0],
        nacked_per_s=rates[1],
        dead_per_s=len([death for death in state.deaths if now - death < _RATE_S * 1e9]) / _RATE_S,
        oldest_seconds=max(0.0, oldest),
        stopped=_moment(stopped) if stopped else None,
    )


def fresh_lag(log: Log[Any], cursor: int, terms: d.GroupTerms) -> Lag:
    """What no worker has looked at yet."""
    return measure(log, cursor, Filter(terms.topic, None, terms.tags))


def _rates(sidecar: Log[Any], now: int) -> tuple[float, float]:
    """Acks and nacks per second, from the last decisions."""
    acked = nacked = 0
    since = now
    for event in sidecar.read(reverse=True, limit=_RATE_DECISIONS, on_gap="skip"):
        if now - event.append_ns > _RATE_S * 1e9:
            since = now - int(_RATE_S * 1e9)
            break
        since = event.append_ns
        decision = d.decode(event.value, sidecar.path, event.seq)
        if isinstance(decision, d.Acked):
            acked += sum(decision.claims[1::2])
        elif isinstance(decision, d.Nacked):
            nacked += 1
    span = max(1.0, (now - since) / 1e9)
    return acked / span, nacked / span


def _kind(state: GroupState, item: Unfinished, now: int) -> State:
    if item.worker:
        return "claimed"
    if item.dying:
        return "dying"
    if item.due > now:
        return "delayed"
    return "ready" if state.is_free(item, now) else "waiting"


def pending(desk: Desk | Glance) -> list[Pending]:
    """`Group.pending`."""
    now = _core.now_ns()
    with desk.guard:
        state = desk.state()
        return [_told(state, state.open[seq], now) for seq in sorted(state.open)]


def _told(state: GroupState, item: Unfinished, now: int) -> Pending:
    kind = _kind(state, item, now)
    member = state.members.get(item.worker)
    return Pending(
        seq=item.seq,
        state=kind,
        worker=member.number if member is not None else None,
        host=member.host if member is not None else None,
        pid=member.pid if member is not None else None,
        since=_moment(item.since) if member is not None else None,
        deliveries=item.deliveries + (member is not None),
        next_try=_moment(item.due) if kind == "delayed" else None,
        lease_until=_moment(item.until) if item.until else None,
        reason=item.reason,
    )


def workers(desk: Desk) -> list[WorkerInfo]:
    """`Group.workers`."""
    with desk.guard:
        members = list(desk.state().members.values())
        return [
            WorkerInfo(
                m.number,
                m.host,
                m.pid,
                life.is_alive(desk.folder, m.file),
                _moment(m.joined),
                len(m.claims),
            )
            for m in members
        ]


def _moment(ns: int) -> dt.datetime:
    try:
        return _EPOCH + dt.timedelta(microseconds=ns // 1000)
    except OverflowError:
        return dt.datetime.max.replace(tzinfo=dt.UTC)
