"""The decisions of a group, as its sidecar log stores them: one MessagePack array each.

The first item of an array is the tag of its kind. A decision says what it assumes, and is void
where that does not hold any more at its place in the log: so nobody needs a lock to append one.
Times are nanoseconds since 1970, of the wall clock of whoever decided.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from penstock.errors import Corrupt

Number = Annotated[int, Meta(ge=0)]
Spans = list[Number]  # first, count, first, count, ...
Run = tuple[Number, ...]  # one of the four below

PLAIN = 0  # (PLAIN, first, stop): events that any worker may have now
GONE = 1  # (GONE, first, stop): the log has them no more
DELAYED = 2  # (DELAYED, seq, due)
KEYED = 3  # (KEYED, seq, hash of its key, due or 0)


class GroupTerms(Struct, frozen=True, array_like=True):
    """What was settled when the group was made."""

    order: str = ""  # or "key"
    deliveries: Number = 5
    backoff: tuple[Number, ...] = ()
    lease: Number = 0
    max_pending: Number = 0
    dead_per_minute: Number = 0
    topic: bytes | None = None
    tags: tuple[str, ...] | None = None


class Made(Struct, array_like=True, tag=0):
    """The group was made; the first decision."""

    uuid: bytes
    log: bytes
    now: Number
    start: Number
    terms: GroupTerms


class Joined(Struct, array_like=True, tag=1):
    """A worker began; its number is the seq of this decision."""

    file: str
    host: str
    pid: Number
    now: Number


class Claimed(Struct, array_like=True, tag=2):
    """A worker wants so many events: of ``known`` open ones, then new ones from ``base`` on.

    ``runs`` are the new events before ``end`` that it found; others are not for the group.
    """

    worker: Number
    now: Number
    want: Number
    known: list[Number]
    base: Number
    end: Number
    runs: list[Run]


class Acked(Struct, array_like=True, tag=3):
    """Claims are done."""

    worker: Number
    claims: Spans


class Nacked(Struct, array_like=True, tag=4):
    """A claim is to be tried again from ``due`` on; it counts as a try if ``counts``."""

    worker: Number
    claim: Number
    now: Number
    due: Number
    counts: bool
    reason: str


class Rejected(Struct, array_like=True, tag=5):
    """A claim is to be tried no more."""

    worker: Number
    claim: Number
    now: Number
    reason: str


class Extended(Struct, array_like=True, tag=6):
    """Leases of claims run until then."""

    worker: Number
    claims: Spans
    until: Number


class Lapsed(Struct, array_like=True, tag=7):
    """Leases have run out: pairs of worker and claim; void for those that were extended."""

    now: Number
    claims: list[tuple[Number, Number]]


class Ended(Struct, array_like=True, tag=8):
    """A worker is gone. Its claims return; those below ``handed`` count as tries if it died."""

    worker: Number
    now: Number
    handed: Number
    reason: str


class Released(Struct, array_like=True, tag=9):
    """All claims of a worker return, though it may still be there."""

    worker: Number
    now: Number


class Missing(Struct, array_like=True, tag=10):
    """The log has the events of these claims no more."""

    worker: Number
    claims: Spans


class Buried(Struct, array_like=True, tag=11):
    """Events are in the dead letters, on disk: their seqs, and the last letter that was seen."""

    seqs: list[Number]
    letters: Number


class Raised(Struct, array_like=True, tag=12):
    """Dead letters are tried again: letter, seq and hash of the key of each."""

    letters: list[tuple[Number, Number, Number | None]]


class CutOff(Struct, array_like=True, tag=13):
    """The log was found to end before ``end``, after a loss of power; ``note`` told so."""

    end: Number
    note: str


class Ticked(Struct, array_like=True, tag=14):
    """A schedule appended what was due then."""

    name: str
    tick: Number


class Resumed(Struct, array_like=True, tag=15):
    """Somebody lets a group that had stopped go on."""

    now: Number


class SnapshotPart(Struct, array_like=True, tag=16):
    """A part of a snapshot: the state after decision ``after``."""

    after: Number
    id: bytes
    part: Number
    parts: Number
    data: bytes


Decision = (
    Made
    | Joined
    | Claimed
    | Acked
    | Nacked
    | Rejected
    | Extended
    | Lapsed
    | Ended
    | Released
    | Missing
    | Buried
    | Raised
    | CutOff
    | Ticked
    | Resumed
    | SnapshotPart
)

encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Decision).decode


def decode(data: bytes, path: str, seq: int) -> Decision:
    """The decision that was stored under ``seq``; `Corrupt` if it is none."""
    try:
        found: Decision = _decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise Corrupt(
            f"{path}: the decision with seq {seq} cannot be read ({error}); nothing was changed. "
            "If this file was written by a newer Penstock, use that one",
            path=path,
            seq=seq,
        ) from None
    return found


def spans_of(numbers: list[int]) -> Spans:
    """Numbers as first and count of each run of them.

    >>> spans_of([3, 4, 5, 9])
    [3, 3, 9, 1]
    """
    spans: list[int] = []
    for number in numbers:
        if spans and spans[-2] + spans[-1] == number:
            spans[-1] += 1
        else:
            spans += (number, 1)
    return spans
