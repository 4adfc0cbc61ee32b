"""Make events durable: one sync serves all that wait for it, in every process.

A sync, as an algorithm:

1. Take the sync lock. If another thread has it, sleep until that one is done, and check whether
   that was enough. So many waiting appends share one sync, and none waits for two.
2. Copy head and the words beside it, under the write lock; release that.
3. fdatasync every segment from the one that the last sync ended in to the active one. Their names
   are on disk already: a roll syncs them.
4. Record how far the log is on disk in the older of the active segment's two checkpoint slots, and
   in control. Wake all that wait.

A failed fdatasync or fsync is final: the kernel may have dropped the pages, so that a second try
could succeed without writing them. A word in control stops appends and syncs in every process,
until all have closed the log and the next opener has written everything after the last checkpoint
again. A process that died during a sync may have been the only one to know that it failed; so the
next process that finds its mark also writes that part again.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock import _core
from penstock import layout as L
from penstock._core import Control
from penstock.errors import Busy, PenstockError, Poisoned
from penstock.system.messages import logger


def poisoned_error(path: str) -> Poisoned:
    """The error for an append or sync after a failed sync."""
    return Poisoned(
        f"{path}: a sync failed, so events appended since the last good one may be lost if the "
        "machine loses power; close the log in every process and open it again",
        filename=path,
    )


class poisoning:
    """Makes a failed sync inside the block stop appends and syncs in every process.

    Without control no other handle has the log open, and the error alone is enough.
    """

    __slots__ = ("_control",)

    def __init__(self, control: Control | None) -> None:
        self._control = control

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, PenstockError) and self._control is not None:
            self._control.put(L.C_POISONED, 1)
            self._control.wake_all()
            logger.error("a sync failed, so no more appends are accepted: %s", error)


class Snapshot:
    """The words of control at one moment, by their offsets."""

    __slots__ = ("_words", "in_order")

    def __init__(self, page: bytes) -> None:
        self._words = L.CONTROL.numbers(page)
        # Whether a dead writer has left nothing to repair.
        self.in_order = not self[L.C_SUSPECT] and self[L.C_HEAD] == self[L.C_RESERVED]

    def __getitem__(self, at: int) -> int:
        return self._words[at]


def sync_to(
    path: str,
    control: Control,
    word: int,
    goal: int,
    timeout: float | None,
    run: Callable[[], None],
) -> None:
    """Return when ``word`` has reached ``goal``; ``run`` does one sync.

    The word is durable_seq; or durable_pos, to include frames without a seq; or
    durable_base, for all segments before one, with their roll frames.
    """
    while True:
        turn = control.sync_turn(word, goal, timeout, run)
        if turn == "done":
            return
        if turn == "poisoned":
            raise poisoned_error(path)
        if turn == "late":
            raise Busy(
                f"{path}: another process has been syncing for {timeout} s; the events are "
                "committed, and durable once wait_durable returns True"
            )


def begin(control: Control) -> bool:
    """Set the mark of a sync in progress; returns whether a dead sync had left it already."""
    again = bool(control.get32(L.C_SYNCING))
    control.put32(L.C_SYNCING, 1)
    _core.fail_point("sync.begun")
    return again


def end(control: Control, base: int, durable_pos: int, durable_seq: int) -> None:
    """A sync is over: publish how far it reached."""
    control.put(L.C_DURABLE_BASE, base)
    control.put(L.C_DURABLE_SEQ, durable_seq)
    control.put(L.C_DURABLE_POS, durable_pos)  # last: those that waited for it read durable_seq
    control.put32(L.C_SYNCING, 0)
    control.add(L.C_SYNCS)
    control.wake()
