"""Erase a key: no byte of its values, or of the key, stays in a file of the log.

Every segment that has events of the key gets a new generation without them. The old file keeps a
temporary name until it is overwritten (`overwrite.py`): what cannot be in time keeps that name, and
the next erasure goes on with it.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING

from penstock import _core
from penstock.consumers import folder as folders
from penstock.errors import Busy, Corrupt, NotFound, PenstockError
from penstock.report import Progress
from penstock.segments import segment
from penstock.segments.leftovers import LOAD
from penstock.segments.recovery import LOST, STAGING
from penstock.steward.compact import (
    Maintenance,
    directory_path,
    job,
    look,
    note_holes,
    replacing,
    seal_all,
)
from penstock.steward.compact_report import ErasureReport, Remaining
from penstock.steward.compact_survey import Candidate, measure_key
from penstock.steward.compact_write import Replacer
from penstock.steward.overwrite import Overwriting, leftover, old_name
from penstock.system import files
from penstock.system.directory import Directory, Name
from penstock.system.forks import Begun
from penstock.system.needs import loading

if TYPE_CHECKING:
    from penstock.handle.handle import Handle

_KEPT = (LOST, "damaged-")  # files that recovery and repair keep


def erase(
    handle: Handle,
    directory: Directory,
    key: bytes,
    dry_run: bool,
    timeout: float | None,
    progress: Progress | None,
) -> ErasureReport:
    """Erase a key from a log of segments; `Steward.erase` documents it."""
    handle._ensure_open()
    if not dry_run:
        handle._check_writable()
    try:
        with job(handle, directory, timeout=timeout, only_look=dry_run) as found:
            if dry_run:
                return _look(found, key)
            deadline = None if timeout is None else monotonic() + timeout
            done = _erase(found, key, Overwriting(deadline), progress)
    except Busy:
        raise
    except PenstockError as error:
        if not dry_run:
            handle._record.failed("erase", error)
        raise
    handle._record.succeeded("erase")
    return done


def _look(found: Maintenance, key: bytes) -> ErasureReport:
    """What an erasure would do."""
    having = [one for one in _candidates(found) if _has(one, key)]
    events, nbytes = _totals(having)
    unsealed = [_unsealed_has(found, key)]
    return ErasureReport(
        directory_path(found),
        True,
        events + unsealed[0][0],
        nbytes + unsealed[0][1],
        tuple(one.base for one in having),
        unsealed[0][0] > 0,
        remaining=tuple(_elsewhere(found, key)),
    )


def _erase(
    found: Maintenance, key: bytes, overwriting: Overwriting, progress: Progress | None
) -> ErasureReport:
    handle, directory = found.handle, found.directory
    rolled = _unsealed_has(found, key)[0] > 0
    if rolled:
        handle._storage.roll(handle)
    seal_all(handle, found.store)
    having = [one for one in _candidates(found) if _has(one, key)]
    begun = Begun("erasure")
    total = sum(one.frames_bytes for one in having)
    done = 0
    olds = leftover(directory)
    if having:
        note_holes(handle)
    with replacing(found) as replacer:
        for one in having:
            olds.append(_replace(replacer, one, key))
            done += one.frames_bytes
            if progress is not None:
                progress(done, total)
                begun.check()
        if having:
            files.sync_dir(replacer.dir_fd, directory.path)
        _core.release_memory()
        handle._recent.clear()
        for old in olds:
            overwriting.take(old)
        if olds:
            files.sync_dir(replacer.dir_fd, directory.path)
    if progress is not None:
        progress(total, total)
    events, nbytes = _totals(having)
    return ErasureReport(
        directory_path(found),
        False,
        events,
        nbytes,
        tuple(one.base for one in having),
        rolled,
        overwriting.overwritten,
        (*overwriting.left, *_elsewhere(found, key)),
    )


def _replace(replacer: Replacer, one: Candidate, key: bytes) -> Name:
    """Replace a segment by one without the key; the name that its old file has until it goes."""
    old = old_name(replacer.directory, one.header)
    target = replacer.write([one], key=key)
    try:
        files.link(one.path, old)
    except BaseException:
        files.unlink(target)
        raise
    _core.fail_point("erase.kept")
    replacer.put_in_place(target, [one])
    return old


def _candidates(found: Maintenance) -> Iterator[Candidate]:
    """Every sealed segment of the log, also those below its first seq that still have a file."""
    assert found.store.uuid is not None
    for name in sorted(files.list_dir(found.directory)):
        if not segment.is_name(name):
            continue
        one = look(found.directory.file(name))
        if one is not None and one.header.uuid == found.store.uuid and one.base == int(name[:20]):
            yield one


def _has(one: Candidate, key: bytes) -> bool:
    """Whether a segment has events of the key; it notes how many."""
    m = one.open()
    if m.has_filter and m.rules_out(None, 0, (1 << 64) - 1, key):
        return False  # and not one that is damaged
    measure_key(one, key)
    return one.dead > 0


def _totals(having: list[Candidate]) -> tuple[int, int]:
    return sum(one.dead for one in having), sum(one.dead_bytes for one in having)


def _unsealed_has(found: Maintenance, key: bytes) -> tuple[int, int]:
    """How many events of the key are in segments that are not sealed, and their bytes."""
    candidates = found.candidates()
    sealed_end = candidates[-1].summary.next_seq if candidates else 0
    events = nbytes = 0
    for m, last, end in found.newer(sealed_end):
        if last:
            live = _core.LiveFrames(m, end, key=key).measure(check=True)
            events += live.dead
            nbytes += live.dead_bytes
    return events, nbytes


def _elsewhere(found: Maintenance, key: bytes) -> Iterator[Remaining]:
    """Files of the log besides its segments in which the key is, or may be."""
    directory = found.directory
    for name in sorted(files.list_dir(directory)):
        path = directory.file(name)
        if name.startswith(_KEPT) and _contains(path, key):
            yield Remaining(
                str(path),
                "bytes that recovery or repair has kept; delete it when you need it no more",
            )
        elif name == STAGING or name.startswith(LOAD):
            yield from _in_folder(path, key)
    yield from _archived(found, key)
    folder = folders.open_folder(directory)
    for name in [] if folder is None else folders.names_in(folder):
        assert folder is not None
        with suppress(PenstockError):
            if _contains(folder.file(name), key):
                yield Remaining(
                    str(folder.file(name)),
                    "a consumer that selects the key; log.consumers().delete() removes it",
                )


def _archived(found: Maintenance, key: bytes) -> Iterator[Remaining]:
    """Archived segments that have the key, also those that are in the log's directory as well."""
    settings = found.handle.settings
    if not settings.archive:
        return
    with loading(found.directory.path):
        from penstock.archive.history import past_of

    assert found.store.uuid is not None
    past = past_of(settings.archive, found.directory, found.store.uuid, [])
    for path, m in past.all_maps():
        if m.has_filter and m.rules_out(None, 0, (1 << 64) - 1, key):
            continue
        m.want(m.data_offset, m.data_end)
        if _core.LiveFrames(m, m.data_end, key=key).measure(check=True).dead:
            yield Remaining(path, "an archived segment, which erasures do not change")


def _in_folder(path: Name, key: bytes) -> Iterator[Remaining]:
    """Rows that are staged, or loaded right now, which are not part of the log yet."""
    try:
        inside = files.hold_dir(path)
        names = files.list_dir(inside)
    except PenstockError:
        return
    for name in sorted(names):
        file = inside.file(name)
        if files.is_dir(file):
            yield from _in_folder(file, key)
        elif _contains(file, key):
            yield Remaining(
                str(file),
                "rows that are to be appended later; erase again when they are in the log",
            )


def _contains(path: Name, key: bytes) -> bool:
    """Whether the bytes of a key are anywhere in a file; never those of the empty key."""
    if not key:
        return False
    try:
        fd = files.open_file(path, write=False)
    except (NotFound, Corrupt):
        return False
    try:
        if not files.size(fd, path):
            return False
        with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as data:
            return data.find(key) >= 0
    finally:
        files.close(fd)
