"""Delete the oldest segments of a log: by its rules, or before a seq.

1. Take the turn: one maintenance job at a time.
2. Decide, under the turn, how many of the oldest finished segments go.
3. Append settings with the new first seq, and sync the log. From then on, also after a loss of
   power, what is below is gone for every reader, whatever files are there. All finished segments
   are on disk now.
4. Delete the files that end below the first seq, oldest first; sync the directory.

A process that dies in between leaves files that the next run deletes by 4. If the disk, or the
budget of the log, is too full for the settings of 3, the oldest segment alone is deleted first:
of one file, a loss of power leaves a log either with it or without it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock import _core
from penstock.errors import Busy, DiskFull, NotFound, PenstockError
from penstock.layout import SegmentPosition
from penstock.settings import Settings
from penstock.steward import turn
from penstock.steward.holders import holders_of
from penstock.steward.plan import Retention, Why
from penstock.steward.rules import Cut, Finished, decide, has_rules, judge
from penstock.steward.shelf import Shelf
from penstock.system import files
from penstock.system.messages import logger

if TYPE_CHECKING:
    from penstock.handle.handle import Handle
    from penstock.segments.storage import SegmentStorage


def retain(
    handle: Handle, storage: SegmentStorage, *, dry_run: bool, timeout: float | None
) -> Retention:
    """Delete what the rules say, or only say what they would delete."""
    if dry_run:
        return _plan(handle, storage)[2]
    handle._check_writable()
    storage.check_there(handle)
    with turn.taken(storage.directory, timeout):
        _end_old(handle, storage)
        return _retain(handle, storage)


def keep_up(handle: Handle, storage: SegmentStorage) -> bool:
    """The same in the background, after a roll; whether there was anything to delete.

    `Busy` if another job has the turn.
    """
    settings = handle.settings
    if not has_rules(settings) and not settings.first_seq:
        return False
    with turn.taken(storage.directory, 0):
        shelf, found = _look(handle, storage, settings)
        cut = decide(found, settings, lambda: holders_of(handle), _core.now_ns())
        first = max(settings.first_seq, shelf.bases[cut.count] if cut.count else 0)
        _tell_overtaken(handle, cut, found, first)
        return bool(_delete(handle, storage, shelf, first, cut.count))


def keep_up_at_close(handle: Handle, storage: SegmentStorage) -> None:
    """The same by the last writer, when it closes the log; a failure is recorded, not raised."""
    try:
        if keep_up(handle, storage):
            handle._record.succeeded("retain")
    except Busy:
        pass  # another process does it
    except PenstockError as error:
        handle._record.failed("retain", error)


def trim(
    handle: Handle,
    storage: SegmentStorage,
    find: Callable[[], int],
    *,
    dry_run: bool,
    timeout: float | None,
) -> int:
    """Delete all events below the seq that ``find`` finds; returns the new first seq."""
    if dry_run:
        return max(find(), storage.first_seq(handle))
    handle._check_writable()
    storage.check_there(handle)
    with turn.taken(storage.directory, timeout):
        seq = find()
        if seq > storage.first_seq(handle):
            if seq == handle._next_seq():
                with suppress(DiskFull):
                    storage.roll(handle)  # so that its file goes, too
            settings = handle.settings
            shelf, found = _look(handle, storage, settings)
            cut = Cut({}, False, found.count, (), (), found.below(seq), tuple(holders_of(handle)))
            _tell_overtaken(handle, cut, found, seq)
            _delete(handle, storage, shelf, seq, cut.count)
        else:
            settings = handle.settings
            _delete(handle, storage, _look(handle, storage, settings)[0], settings.first_seq, 0)
        return storage.first_seq(handle)


def why(handle: Handle, storage: SegmentStorage, seq: int) -> Why:
    """Why an event is there, or is not."""
    plan = _plan(handle, storage)[2]
    first, after = storage.seqs(handle)
    if seq >= after:
        text = f"seq {seq} was not appended yet; the next one is {after}"
        return Why(seq, "to come", None, text)
    if handle._floor() <= seq < first and handle.settings.holes:
        return Why(seq, "missing", None, f"seq {seq} is not there any more: compaction removed it")
    if seq < first:
        text = f"seq {seq} is gone: retention or a trim deleted everything before seq {first}"
        return Why(seq, "gone", None, text)
    found = next((one for one in reversed(plan.segments) if one.first_seq <= seq), None)
    state, text = "there", f"seq {seq} is there"
    try:
        handle[seq]
    except NotFound as error:
        state = "expired" if "expired" in str(error) else "missing"
        text = f"seq {seq} is not returned any more: " + (
            "its ttl is over" if state == "expired" else "compaction removed it"
        )
    except PenstockError as error:
        text += f", but cannot be read: {error}"
    its = "Its segment is archived" if found is None else f"Its segment: {found}"
    return Why(seq, state, found, f"{text}. {its}")  # type: ignore[arg-type]


def _end_old(handle: Handle, storage: SegmentStorage) -> None:
    """End the active segment if it is older than events may be, so that a slow log forgets too."""
    keep = handle.settings.keep_seconds
    shelf = _look(handle, storage, handle.settings)[0]
    header = shelf.header_of(shelf.bases[-1])
    if keep and header is not None and _core.now_ns() - header.created_ns > int(keep * 1e9):
        with suppress(DiskFull):
            storage.roll(handle)


def _retain(handle: Handle, storage: SegmentStorage) -> Retention:
    """Under the turn: delete what the rules say."""
    storage.seal_now(handle)
    shelf, cut, plan = _plan(handle, storage, dry_run=False)
    first = plan.new_first_seq
    if plan.deleted:
        _tell_overtaken(handle, cut, shelf.finished(handle._next_seq(), 0), first)
    _delete(handle, storage, shelf, first, cut.count)
    return plan


def _plan(
    handle: Handle, storage: SegmentStorage, *, dry_run: bool = True
) -> tuple[Shelf, Cut, Retention]:
    settings = handle.settings
    shelf, found = _look(handle, storage, settings)
    cut = decide(found, settings, lambda: holders_of(handle), _core.now_ns())
    before = storage.first_seq(handle)
    first = max(before, shelf.bases[cut.count] if cut.count else 0)
    ours, others = shelf.leftovers(settings.first_seq)
    plan = Retention(
        handle.path,
        dry_run,
        before,
        first,
        tuple(
            judge(found, settings, cut, index, dated=dry_run or index < cut.count)
            for index in range(len(shelf.bases))
        ),
        tuple(shelf.file(base) for base in ours),
        tuple(shelf.file(base) for base in others),
    )
    return shelf, cut, plan


def _look(handle: Handle, storage: SegmentStorage, settings: Settings) -> tuple[Shelf, Finished]:
    """The segments as they are now."""
    head = SegmentPosition.unpack(handle._head())
    uuid = storage.uuid()
    while True:
        active = storage.store.active()
        shelf = Shelf(storage.directory, uuid, active, settings.first_seq)
        if shelf.bases and shelf.bases[-1] == active:
            return shelf, shelf.finished(handle._next_seq(), head.offset)
        storage.check_there(handle)  # it rolled between the two, and was deleted since


def _delete(
    handle: Handle, storage: SegmentStorage, shelf: Shelf, first: int, count: int
) -> list[int]:
    """Under the turn: make ``first`` the first seq, then delete the files below it."""
    if first > handle.settings.first_seq:
        while True:
            try:
                _move_first_seq(handle, first)
                break
            except DiskFull:
                if not count:
                    raise
                _delete_oldest(handle, storage, shelf)
                count -= 1
        _core.fail_point("retain.moved")
    ours, _ = shelf.leftovers(first)
    if not ours:
        return []
    handle._sync_all(None)
    _core.fail_point("retain.synced")
    left = len(ours)
    try:
        for base in ours:
            files.unlink(shelf.file(base))
            left -= 1
            _core.fail_point("retain.deleted")
    finally:
        handle._record.queued("retain", left)
        _sync_directory(handle, storage)
    _core.fail_point("retain.done")
    return ours


def _move_first_seq(handle: Handle, first: int) -> None:
    """Store the first seq; it never goes back."""

    def change(now: Settings) -> Settings:
        return now.changed(first_seq=max(now.first_seq, first))

    handle._change_settings(change)


def _delete_oldest(handle: Handle, storage: SegmentStorage, shelf: Shelf) -> None:
    """Delete the oldest segment alone, to make room for settings; the others are on disk."""
    handle._sync_all(None)
    base = shelf.bases.pop(0)
    shelf.named.remove(base)
    files.unlink(shelf.file(base))
    _core.fail_point("retain.freed")
    _sync_directory(handle, storage)


def _sync_directory(handle: Handle, storage: SegmentStorage) -> None:
    files.sync_dir(handle._live().held_fd, storage.path)


def _tell_overtaken(handle: Handle, cut: Cut, found: Finished, first: int) -> None:
    """Say which consumers and groups lose events that they had not committed."""
    start = max(found.bases[0], handle.settings.first_seq)
    for one in cut.holders:
        if one.seq < first and one.problem is None and first > start:
            logger.warning(
                "%s: deleting seq %d to %d, which %s has not committed: it gets Gap",
                handle.path,
                max(one.seq, start),
                first - 1,
                one,
            )
