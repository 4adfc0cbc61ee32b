"""A snapshot: the state of a group as bytes, so that its older decisions can be deleted."""

from __future__ import annotations

from collections import deque

import msgspec
from msgspec import Struct

from penstock.errors import Corrupt
from penstock.groups import decisions as d
from penstock.groups.decisions import Number
from penstock.groups.ranges import Ranges
from penstock.groups.state import Counts, GroupState, Member, Unfinished


class StoredEvent(Struct, array_like=True):
    """An unfinished event."""

    seq: Number
    key: Number | None
    due: Number
    letter: Number
    deliveries: Number
    worker: Number
    claim: Number
    since: Number
    until: Number
    dying: Number
    after: Number
    reason: str


class StoredMember(Struct, array_like=True):
    """A worker; its claims are in the events."""

    number: Number
    file: str
    host: str
    pid: Number
    joined: Number
    next_claim: Number


class StoredState(Struct, array_like=True):
    """All of it."""

    uuid: bytes
    log: bytes
    made: Number
    terms: d.GroupTerms
    cursor: Number
    letters: Number
    raised: list[Number]
    counts: Counts
    deaths: list[Number]
    stopped: Number
    ticks: dict[str, Number]
    notes: list[str]
    members: list[StoredMember]
    open: list[StoredEvent]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StoredState).decode


def pack(state: GroupState) -> bytes:
    """The bytes of a state."""
    return _encode(
        StoredState(
            state.uuid,
            state.log_uuid,
            state.made,
            state.terms,
            state.cursor,
            state.letters,
            state.raised.bounds,
            state.counts,
            list(state.deaths),
            state.stopped,
            state.ticks,
            state.notes,
            [
                StoredMember(m.number, m.file, m.host, m.pid, m.joined, m.next_claim)
                for m in state.members.values()
            ],
            [
                StoredEvent(
                    i.seq,
                    i.key,
                    i.due,
                    i.letter,
                    i.deliveries,
                    i.worker,
                    i.claim,
                    i.since,
                    i.until,
                    i.dying,
                    i.after,
                    i.reason,
                )
                for i in state.open.values()
            ],
        )
    )


def unpack(data: bytes, at: int, path: str) -> GroupState:
    """The state after decision ``at``, from its bytes; `Corrupt` if they do not fit together."""
    try:
        stored = _decode(data)
        return _restored(stored, at)
    except (msgspec.DecodeError, KeyError, ValueError) as error:
        raise Corrupt(
            f"{path}: the snapshot after seq {at} cannot be read ({error}); if this file was "
            "written by a newer Penstock, use that one",
            path=path,
            seq=at,
        ) from None


def _restored(stored: StoredState, at: int) -> GroupState:
    state = GroupState()
    state.at = at
    state.uuid, state.log_uuid, state.made = stored.uuid, stored.log, stored.made
    state.terms, state.cursor, state.letters = stored.terms, stored.cursor, stored.letters
    state.raised = Ranges(stored.raised)
    state.counts, state.deaths = stored.counts, deque(stored.deaths)
    state.stopped, state.ticks, state.notes = stored.stopped, stored.ticks, stored.notes
    for m in stored.members:
        member = Member(m.number, m.file, m.host, m.pid, m.joined)
        member.next_claim = m.next_claim
        state.members[m.number] = member
    for e in stored.open:
        item = Unfinished(e.seq, e.key, e.due, e.letter)
        item.deliveries, item.worker, item.claim = e.deliveries, e.worker, e.claim
        item.since, item.until, item.reason = e.since, e.until, e.reason
        item.dying, item.after = e.dying, e.after
        state.open[e.seq] = item
    for item in sorted(state.open.values(), key=lambda item: item.claim):
        if item.worker:
            state.members[item.worker].claims[item.claim] = item.seq
    dying = [item for item in state.open.values() if item.dying]
    state.dying = {item.seq: item for item in sorted(dying, key=lambda item: item.dying)}
    state.rebuild()
    return state
