"""The state of a group, derived from its decisions, one after the other. It does no I/O.

Every process derives the same, whatever its clock says: a decision carries the only time that
counts. What a decision assumes is checked here, and nowhere else: one that is too late is void.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any

from msgspec import Struct

from penstock.groups import decisions as d
from penstock.groups.ranges import Ranges

MINUTE_NS = 60_000_000_000
REASON_CHARACTERS_MAX = 500
NOTES_MAX = 16
CLAIM_MAX = 1 << 16  # events of one claim
DIED = "its worker died"
LAPSED = "its lease ran out"


class Unfinished:
    """An event that workers have looked at and that has no final outcome yet."""

    __slots__ = (
        "after",
        "claim",
        "deliveries",
        "due",
        "dying",
        "key",
        "letter",
        "reason",
        "seq",
        "since",
        "until",
        "worker",
    )

    def __init__(self, seq: int, key: int | None = None, due: int = 0, letter: int = 0) -> None:
        self.seq = seq
        self.key = key  # its hash, if the group keeps the order of keys
        self.due = due  # from when on it may be claimed
        self.letter = letter  # the dead letter that it came from; 0: none
        self.deliveries = 0  # tries that ended and count
        self.worker = 0  # who has it; 0: nobody
        self.claim = 0
        self.since = 0  # when it was claimed
        self.until = 0  # when the lease ends; 0: never
        self.dying = 0  # when it was given up, while it waits to be buried
        self.after = 0  # the last dead letter that was known then: its own comes later
        self.reason = ""  # of its last failure


class Member:
    """A worker as its group sees it."""

    __slots__ = ("claims", "file", "host", "joined", "next_claim", "number", "pid")

    def __init__(self, number: int, file: str, host: str, pid: int, joined: int) -> None:
        self.number = number
        self.file = file
        self.host = host
        self.pid = pid
        self.joined = joined
        self.next_claim = 0
        self.claims: dict[int, int] = {}  # seqs by number of the claim, in order


class Counts(Struct, array_like=True):
    """How often what happened since the group was made."""

    acked: int = 0
    nacked: int = 0
    rejected: int = 0
    returned: int = 0  # claims of workers that died, closed or were released
    lapsed: int = 0
    dead: int = 0
    raised: int = 0
    lost: int = 0  # events that were gone before they could be finished


class GroupState:
    """What the decisions up to ``at`` have come to."""

    def __init__(self) -> None:
        self.at = 0
        self.uuid = b""
        self.log_uuid = b""
        self.made = 0
        self.terms = d.GroupTerms()
        self.cursor = 1  # the first seq that was not looked at
        self.open: dict[int, Unfinished] = {}
        self.members: dict[int, Member] = {}
        self.claimed = 0
        self.dying: dict[int, Unfinished] = {}  # in the order in which they were given up
        self.letters = 0  # the last of the dead letters that a decision knows
        self.raised = Ranges()  # dead letters that are tried again
        self.counts = Counts()
        self.deaths: deque[int] = deque()  # when; of the last minute
        self.stopped = 0  # when the breaker stopped the group; 0: it goes on
        self.ticks: dict[str, int] = {}
        self.notes: list[str] = []  # of the last cuts
        # Derived from `open`, and cleaned up late: an item counts only if `open` agrees.
        self.ready: list[int] = []
        self.delayed: list[tuple[int, int]] = []
        self.leases: list[tuple[int, int, int]] = []
        self.queues: dict[int, list[int]] = {}  # unfinished seqs of each key
        self.held: dict[int, int] = {}  # the claimed seq of each key that has one

    # What an opened state is asked.

    def is_free(self, item: Unfinished, now: int) -> bool:
        """Whether a worker may claim it."""
        if item.worker or item.dying or item.due > now:
            return False
        return item.key is None or self._leads(item)

    def choose(self, want: int, now: int) -> list[int]:
        """Up to ``want`` open events that can be claimed; give them back with `offer_again`."""
        found: dict[int, None] = {}  # a seq may have been offered twice
        while self.delayed and self.delayed[0][0] <= now:
            heappush(self.ready, heappop(self.delayed)[1])
        while self.ready and len(found) < want:
            seq = heappop(self.ready)
            item = self.open.get(seq)
            if item is None:
                continue
            if self.is_free(item, now):
                found[seq] = None
            elif item.due > now:
                self._offer(item)
        return list(found)

    def offer_again(self, seqs: list[int]) -> None:
        """What was chosen and not claimed can be chosen again."""
        for seq in seqs:
            item = self.open.get(seq)
            if item is not None and not item.worker:
                self._offer(item)

    def next_due(self) -> int:
        """When the next delayed event is due; 0 if none is known."""
        while self.delayed:
            due, seq = self.delayed[0]
            item = self.open.get(seq)
            if item is not None and item.due == due and not item.worker and not item.dying:
                return due
            heappop(self.delayed)
        return 0

    def next_lapse(self) -> tuple[int, int, int] | None:
        """When the next lease ends, and whose claim it is."""
        while self.leases:
            until, worker, claim = self.leases[0]
            item = self.item_of(worker, claim)
            if item is not None and item.until == until:
                return self.leases[0]
            heappop(self.leases)
        return None

    def item_of(self, worker: int, claim: int) -> Unfinished | None:
        """The event of a claim; None if the claim has ended."""
        member = self.members.get(worker)
        seq = None if member is None else member.claims.get(claim)
        return None if seq is None else self.open[seq]

    @property
    def is_open_wide(self) -> bool:
        """Whether nothing limits claims, as for most groups."""
        return not (self.stopped or self.terms.max_pending)

    @property
    def room(self) -> int:
        """How many more claims there may be now."""
        if self.stopped:
            return 0
        most = self.terms.max_pending
        return max(0, most - self.claimed) if most else CLAIM_MAX

    @property
    def waiting(self) -> int:
        """Unfinished events that nobody has, for whatever reason."""
        return len(self.open) - self.claimed

    def needed_seq(self) -> int:
        """The lowest seq of the log that the group may yet hand out."""
        kept = (item.seq for item in self.open.values() if not item.letter)
        return min(kept, default=self.cursor)

    # What decisions do. Each returns what its decider wants to know.

    def apply(self, decision: d.Decision, seq: int) -> Any:
        """Take the decision with that seq into account."""
        done = _APPLY[type(decision)](self, decision, seq)
        self.at = seq
        return done

    def _made(self, made: d.Made, _: int) -> None:
        if not self.uuid:
            self.uuid, self.log_uuid, self.made = made.uuid, made.log, made.now
            self.terms, self.cursor = made.terms, made.start

    def _joined(self, joined: d.Joined, seq: int) -> None:
        self.members[seq] = Member(seq, joined.file, joined.host, joined.pid, joined.now)

    def _claimed(self, claimed: d.Claimed, _: int) -> None:
        member = self.members.get(claimed.worker)
        if member is None:
            return
        want, now = min(claimed.want, CLAIM_MAX), claimed.now
        if not self.is_open_wide:
            want = min(want, self.room)
        for seq in claimed.known:
            if want <= 0:
                break
            item = self.open.get(seq)
            if item is not None and self.is_free(item, now):
                self._assign(member, item, now)
                want -= 1
        if claimed.base <= self.cursor < claimed.end:
            self._examine(member, claimed, want)

    def _examine(self, member: Member, claimed: d.Claimed, want: int) -> None:
        """Go over new events, up to the first that nobody may have yet."""
        now, cursor = claimed.now, self.cursor
        for run in claimed.runs:
            kind, first, rest = run[0], run[1], run[2:]
            if kind in (PLAIN, GONE):
                stop = min(rest[0], claimed.end)
                first = max(first, cursor)
                if kind == GONE:
                    self.counts.lost += max(0, stop - first)
                    continue
                while first < stop and want > 0:
                    if first not in self.open:
                        self._assign(member, Unfinished(first), now)
                        want -= 1
                    first += 1
                if first < stop:
                    self.cursor = first
                    return
            elif first >= cursor and first not in self.open:
                key = rest[0] if kind == KEYED else None
                due = rest[-1]
                free = due <= now and (key is None or key not in self.queues)
                if free and want <= 0:
                    self.cursor = first
                    return
                item = Unfinished(first, key, due)
                if free:
                    if key is not None:
                        self.queues[key] = [first]
                    self._assign(member, item, now)
                    want -= 1
                else:
                    self._enter(item)
        self.cursor = claimed.end

    def _acked(self, acked: d.Acked, _: int) -> list[int]:
        worker, spans = acked.worker, acked.claims
        if len(spans) == 2 and spans[1] == 1:  # the quick way of the same
            item = self._end_claim(worker, spans[0])
            if item is None:
                return []
            self._finish(item)
            self.counts.acked += 1
            return [item.claim]
        ended = list(self._take(worker, spans))
        for item in ended:
            self._finish(item)
        self.counts.acked += len(ended)
        return [item.claim for item in ended]

    def _nacked(self, nacked: d.Nacked, _: int) -> bool:
        item = self._end_claim(nacked.worker, nacked.claim)
        if item is None:
            return False
        self.counts.nacked += 1
        self._retry(item, nacked.now, nacked.due, nacked.reason if nacked.counts else None)
        return True

    def _rejected(self, rejected: d.Rejected, _: int) -> bool:
        item = self._end_claim(rejected.worker, rejected.claim)
        if item is None:
            return False
        self.counts.rejected += 1
        item.deliveries += 1
        self._give_up(item, rejected.now, rejected.reason)
        return True

    def _extended(self, extended: d.Extended, _: int) -> int:
        found = 0
        for claim in self._claims(extended.worker, extended.claims):
            item = self.item_of(extended.worker, claim)
            assert item is not None
            item.until = extended.until
            heappush(self.leases, (item.until, extended.worker, claim))
            found += 1
        return found

    def _lapsed(self, lapsed: d.Lapsed, _: int) -> None:
        for worker, claim in lapsed.claims:
            item = self.item_of(worker, claim)
            if item is not None and item.until and item.until <= lapsed.now:
                self._end_claim(worker, claim)
                self.counts.lapsed += 1
                self._retry(item, lapsed.now, 0, LAPSED)

    def _ended(self, ended: d.Ended, _: int) -> bool:
        member = self.members.get(ended.worker)
        if member is None:
            return False
        self._return_all(member, ended.now, ended.handed, ended.reason)
        del self.members[ended.worker]
        return True

    def _released(self, released: d.Released, _: int) -> int:
        member = self.members.get(released.worker)
        if member is None:
            return 0
        count = len(member.claims)
        self._return_all(member, released.now, 0, "")
        return count

    def _missing(self, missing: d.Missing, _: int) -> None:
        for item in list(self._take(missing.worker, missing.claims)):
            self._finish(item)
            self.counts.lost += 1

    def _buried(self, buried: d.Buried, _: int) -> None:
        self.letters = max(self.letters, buried.letters)
        for seq in buried.seqs:
            item = self.dying.pop(seq, None)
            if item is not None:
                self._finish(item)

    def _raised(self, raised: d.Raised, _: int) -> int:
        found = 0
        for letter, seq, key in raised.letters:
            if letter in self.raised or seq in self.open or not seq:
                continue
            self.raised.add(letter)
            found += 1
            if seq < self.cursor:  # else it comes anyway
                self._enter(Unfinished(seq, key if self.terms.order else None, 0, letter))
        self.counts.raised += found
        return found

    def _cut(self, cut: d.CutOff, _: int) -> int:
        if cut.note in self.notes:
            return 0
        self.notes = [*self.notes[-NOTES_MAX:], cut.note]
        before, self.cursor = self.cursor, min(self.cursor, cut.end)
        for item in [item for item in self.open.values() if item.seq >= cut.end]:
            if item.worker:
                self._end_claim(item.worker, item.claim)
            self.dying.pop(item.seq, None)
            self._finish(item)
        return before - self.cursor

    def _ticked(self, ticked: d.Ticked, _: int) -> None:
        self.ticks[ticked.name] = max(ticked.tick, self.ticks.get(ticked.name, 0))

    def _resumed(self, _: d.Resumed, __: int) -> None:
        self.stopped = 0
        self.deaths.clear()

    def _snapshot_part(self, _: d.SnapshotPart, __: int) -> None:
        """A snapshot changes nothing."""

    # Steps of these.

    def _assign(self, member: Member, item: Unfinished, now: int) -> None:
        claim = member.next_claim
        member.next_claim = claim + 1
        member.claims[claim] = item.seq
        item.worker, item.claim, item.since = member.number, claim, now
        self.open[item.seq] = item
        self.claimed += 1
        if item.key is not None:
            self.held[item.key] = item.seq
        if self.terms.lease:
            item.until = now + self.terms.lease
            heappush(self.leases, (item.until, member.number, claim))

    def _claims(self, worker: int, spans: d.Spans) -> Iterator[int]:
        """The claims of a worker among those, which may be any numbers."""
        member = self.members.get(worker)
        if member is None:
            return
        for first, count in zip(spans[::2], spans[1::2], strict=False):
            if count == 1:
                if first in member.claims:
                    yield first
            elif count <= len(member.claims):
                yield from (n for n in range(first, first + count) if n in member.claims)
            else:
                yield from [n for n in member.claims if first <= n < first + count]

    def _take(self, worker: int, spans: d.Spans) -> Iterator[Unfinished]:
        """End claims; their events, without those of claims that had ended."""
        for claim in self._claims(worker, spans):
            item = self._end_claim(worker, claim)
            assert item is not None
            yield item

    def _end_claim(self, worker: int, claim: int) -> Unfinished | None:
        """The event of a claim, which nobody has now; None if the claim had ended."""
        member = self.members.get(worker)
        seq = None if member is None else member.claims.pop(claim, None)
        if seq is None:
            return None
        item = self.open[seq]
        item.worker = item.until = 0
        self.claimed -= 1
        if item.key is not None:
            del self.held[item.key]
        return item

    def _retry(self, item: Unfinished, now: int, due: int, reason: str | None) -> None:
        """Have an event tried again; a ``reason`` says that this try counts."""
        if reason is not None:
            item.deliveries += 1
            item.reason = reason[:REASON_CHARACTERS_MAX]
            if item.deliveries >= self.terms.deliveries:
                self._give_up(item, now, reason)
                return
        item.due = due
        self._offer_key(item)

    def _return_all(self, member: Member, now: int, handed: int, reason: str) -> None:
        for claim in list(member.claims):
            item = self._end_claim(member.number, claim)
            assert item is not None
            self.counts.returned += 1
            self._retry(item, now, 0, reason if claim < handed else None)

    def _give_up(self, item: Unfinished, now: int, reason: str) -> None:
        item.dying, item.after = max(1, now), self.letters
        item.reason = reason[:REASON_CHARACTERS_MAX]
        self.dying[item.seq] = item
        self.counts.dead += 1
        self.deaths.append(now)
        while self.deaths and self.deaths[0] <= now - MINUTE_NS:
            self.deaths.popleft()
        if 0 < self.terms.dead_per_minute < len(self.deaths) and not self.stopped:
            self.stopped = max(1, now)

    def _finish(self, item: Unfinished) -> None:
        """The event needs no more attention."""
        del self.open[item.seq]
        if item.key is not None:
            queue = self.queues[item.key]
            while queue and queue[0] not in self.open:
                heappop(queue)
            if queue:
                self._offer(self.open[queue[0]])
            else:
                del self.queues[item.key]

    def _enter(self, item: Unfinished) -> None:
        """The event waits until a worker can have it."""
        self.open[item.seq] = item
        if item.key is not None:
            heappush(self.queues.setdefault(item.key, []), item.seq)
        self._offer(item)

    def _offer_key(self, item: Unfinished) -> None:
        """Have the event, or the one of its key that comes first, claimed when it is due."""
        if item.key is not None:
            item = self.open[self._head(item.key)]
        self._offer(item)

    def _offer(self, item: Unfinished) -> None:
        """Have the event claimed when it is due, if nothing else stands before it."""
        if item.worker or item.dying or (item.key is not None and not self._leads(item)):
            return
        if item.due:
            heappush(self.delayed, (item.due, item.seq))
        else:
            heappush(self.ready, item.seq)

    def _head(self, key: int) -> int:
        """The first unfinished seq of a key that has one."""
        queue = self.queues[key]
        while queue[0] not in self.open:
            heappop(queue)
        return queue[0]

    def _leads(self, item: Unfinished) -> bool:
        """Whether the event is the one of its key to be handed out next."""
        assert item.key is not None
        return item.key not in self.held and self._head(item.key) == item.seq

    def rebuild(self) -> None:
        """Derive what is not stored from what is."""
        self.claimed = 0
        for item in self.open.values():
            if item.key is not None:
                self.queues.setdefault(item.key, []).append(item.seq)
                if item.worker:
                    self.held[item.key] = item.seq
            if item.worker:
                self.claimed += 1
                if item.until:
                    self.leases.append((item.until, item.worker, item.claim))
        for queue in self.queues.values():
            heapify(queue)
        heapify(self.leases)
        for item in self.open.values():
            self._offer(item)


PLAIN, GONE, KEYED = d.PLAIN, d.GONE, d.KEYED

_APPLY: dict[type, Callable[[GroupState, Any, int], Any]] = {
    d.Made: GroupState._made,
    d.Joined: GroupState._joined,
    d.Claimed: GroupState._claimed,
    d.Acked: GroupState._acked,
    d.Nacked: GroupState._nacked,
    d.Rejected: GroupState._rejected,
    d.Extended: GroupState._extended,
    d.Lapsed: GroupState._lapsed,
    d.Ended: GroupState._ended,
    d.Released: GroupState._released,
    d.Missing: GroupState._missing,
    d.Buried: GroupState._buried,
    d.Raised: GroupState._raised,
    d.CutOff: GroupState._cut,
    d.Ticked: GroupState._ticked,
    d.Resumed: GroupState._resumed,
    d.SnapshotPart: GroupState._snapshot_part,
}
