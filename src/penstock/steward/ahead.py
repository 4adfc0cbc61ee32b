"""Work of a writing handle off the append path: blocks, the next segment, seals, retention."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from penstock import layout as L
from penstock._core import Control, SegmentMap
from penstock.errors import Busy, Closed, Corrupt, PenstockError
from penstock.handle import durability
from penstock.handle.durability import Snapshot
from penstock.layout import SegmentPosition
from penstock.segments import syncing
from penstock.segments.segment import Header
from penstock.segments.store import Store
from penstock.settings import Settings
from penstock.steward.budget import Budget
from penstock.steward.keeper import LATER
from penstock.steward.record import Record
from penstock.steward.roll import PATIENCE, allocate_to, prepare
from penstock.steward.seal import seal_finished
from penstock.system.directory import Directory
from penstock.tunables import ALLOCATE_AHEAD_BYTES

UNSEALED_MAX = 8  # segments that may wait for a pause in the appends
PAUSE = 0.04  # seconds without an append; less than a keeper's LATER, so that one look is enough
AGAIN = 0.05  # seconds until work that failed is tried again; twice as long each time
AGAIN_MAX = 30.0
_TRIED_AGAIN = ("seal", "retain")  # appends themselves do what else fails


class Ahead:
    """The keeper's work for one handle. It holds the handle's parts, never the handle."""

    def __init__(
        self,
        record: Record,
        directory: Directory,
        uuid: bytes,
        control: Control,
        *,
        seals: bool,
        budget: Budget | None = None,
        maintain: Callable[[], bool] = lambda: False,
        maintained_at: int = 0,
    ) -> None:
        """``maintain`` deletes what the log's rules say, and whether there was anything.

        ``maintained_at`` is the active segment after whose end it is to be done first.
        """
        self._record = record
        self._directory = directory
        self._control = control
        self._seals = seals
        self._budget = budget
        self._maintain = maintain
        self._maintained_at = maintained_at  # the active segment when it was last done
        self._again_at: dict[str, float] = {}  # when to try again what failed
        self._store = Store(directory, uuid, [], lambda: 0)
        self._sealed_below = 0
        self._sealed_number = SegmentPosition.unpack(control.get(L.C_HEAD)).number
        self._head_seen = 0
        self._moved_at = 0.0
        self._maps: dict[int, SegmentMap] = {}  # of segments that this handle has appended to
        self.active: tuple[SegmentMap, Header, Settings] | None = None

    def work(self, closing: bool) -> float:
        """One round; after how many seconds to go on. Each part is safe to do twice."""
        if self.active is None:
            return 0
        m, header, settings = self.active
        self._maps[m.base_seq] = m
        number, end = SegmentPosition.unpack(self._control.get(L.C_HEAD))
        offset = end if number == m.number else 0  # 0: the log has rolled
        late = bool(offset) and self._do(
            "allocate", lambda: self._allocate(m, header, settings, offset)
        )
        if settings.prepare_at and offset > header.frames_end * settings.prepare_at:
            late |= self._do("prepare", lambda: self._prepare(settings))
        late |= self._do_seal(closing, m) or self._do_maintain(closing)
        return LATER if late else self._delay()

    def _prepare(self, settings: Settings) -> bool:
        return prepare(self._directory, self._control, settings, self._budget)

    def _delay(self) -> float:
        """Seconds until the first of what failed is tried again; 0 if nothing has."""
        times = self._again_at.values()
        return max(LATER, min(times) - monotonic()) if times else 0

    def _is_put_off(self, job: str) -> bool:
        """Whether a job has failed so short a time ago that it waits."""
        return monotonic() < self._again_at.get(job, 0)

    def unsealed(self) -> int:
        """How many finished segments wait to be sealed, as far as this handle knows."""
        if not self._seals or self._control.get(L.C_ACTIVE_BASE) == self._sealed_below:
            return 0
        return SegmentPosition.unpack(self._control.get(L.C_HEAD)).number - self._sealed_number

    def is_kept_up(self) -> bool:
        """Whether nothing was rolled since the log's rules were last followed."""
        return self._control.get(L.C_ACTIVE_BASE) == self._maintained_at

    def _do_maintain(self, closing: bool) -> bool:
        """Let the log's rules delete segments, once after each roll; True to look again later."""
        base = self._control.get(L.C_ACTIVE_BASE)
        if closing or not self._seals or base == self._maintained_at or self._is_put_off("retain"):
            return False
        if self._do("retain", self._maintain):
            return True
        if "retain" not in self._again_at:
            self._maintained_at = base
        return False

    def _do(self, job: str, work: Callable[[], bool]) -> bool:
        """Do a job and record the result; True if it must be done later, for lack of a lock."""
        try:
            done = work()
            self._again_at.pop(job, None)
            if done or self._record.is_failing(job):
                self._record.succeeded(job)
        except Busy:
            return True
        except Closed:
            pass  # the handle was closed meanwhile
        except MemoryError:
            raise  # the thread tries again
        except Exception as error:
            in_a_row = self._record.failed(job, error)
            if job in _TRIED_AGAIN:
                delay = AGAIN * 2 ** min(in_a_row - 1, 20)
                self._again_at[job] = monotonic() + min(delay, AGAIN_MAX)
            if not isinstance(error, PenstockError):
                raise
        return False

    def _do_seal(self, closing: bool, m: SegmentMap) -> bool:
        """Seal finished segments, if there are any and appends pause; True to look again later."""
        base = self._control.get(L.C_ACTIVE_BASE)
        self._record.queued("seal", self.unsealed())
        if base == self._sealed_below or not self._seals:
            self._again_at.pop("seal", None)  # what failed is damaged, and stays as it is
            return False
        if self._is_put_off("seal") and not closing:
            return False
        if closing and self._control.has_writers():
            return False  # another handle does it
        head = self._control.get(L.C_HEAD)
        if head != self._head_seen:
            self._head_seen, self._moved_at = head, monotonic()
        number = SegmentPosition.unpack(head).number
        many = number - self._sealed_number > UNSEALED_MAX
        if monotonic() - self._moved_at < PAUSE and not many and not closing:
            return True  # appends need the cores; a segment that is not sealed is complete too
        if self._do("seal", lambda: self._seal(base)):
            return True
        if self._sealed_below != base:
            return False  # it failed, and is tried again after a while
        self._sealed_number = number
        self._record.queued("seal", 0)
        self._maps = {m.base_seq: m}
        return False

    def _seal(self, base: int) -> bool:
        """Seal the segments before ``base``. One that is damaged is not looked at every time."""
        self._sync_finished(base)
        try:
            sealed = bool(seal_finished(self._store, base, self._maps))
        except Corrupt:
            self._sealed_below = base
            raise
        self._sealed_below = base
        return sealed

    def _sync_finished(self, base: int) -> None:
        """Sync all segments before ``base`` to disk, so that they can be sealed."""
        control = self._control

        def run() -> None:
            words = Snapshot(control.words_when_still(PATIENCE))
            syncing.sync_finished(self._store, control, words)

        durability.sync_to(self._directory.path, control, L.C_DURABLE_BASE, base, None, run)

    def _allocate(self, m: SegmentMap, header: Header, settings: Settings, offset: int) -> bool:
        """Allocate a window ahead of head, which is at ``offset``; False if there is enough."""
        control = self._control
        wanted = offset + ALLOCATE_AHEAD_BYTES
        if control.get(L.C_ALLOC_END) >= min(wanted, header.footer_offset):
            return False
        with control.locked(PATIENCE):
            head = control.get(L.C_HEAD)
            in_order = head == control.get(L.C_RESERVED) and not control.get32(L.C_SUSPECT)
            if not in_order or SegmentPosition.unpack(head).number != m.number or m.fd < 0:
                return False
            limit = None if self._budget is None else (self._budget, settings)
            allocate_to(control, m, header, offset, limit)
        return True
