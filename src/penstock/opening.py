"""Opening, creating, verifying and repairing logs: which kind of log there is at a path.

No argument of `open` is ever ignored: one that contradicts the existing log, or that does not
apply to its kind, is an error that says which call changes the log.
"""

from __future__ import annotations

import copyreg
import os
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, fields
from types import UnionType
from typing import Any, Literal, SupportsIndex, TypeAlias, cast

from penstock import layout as L
from penstock.archive.naming import Stored, is_url
from penstock.arguments import check_choice, check_progress
from penstock.data import codecs
from penstock.errors import AlreadyExists, Gone, NoSuchLog, Usage, WrongType
from penstock.log import Log, T
from penstock.reader import to_seq
from penstock.report import Plan, Progress, Report
from penstock.ring import file as ring_file
from penstock.ring.storage import RingStorage
from penstock.segments import segment
from penstock.segments.storage import SegmentStorage
from penstock.settings import Options, Settings, WhenFull, parse_size
from penstock.system import files
from penstock.system.needs import loading
from penstock.times import Span, Time, is_time, to_ns

OPEN_TIMEOUT = 10.0
FOR_EVER = 1e9  # seconds
_MAPS_LIMIT = 60_000  # the kernel lets a process have about so many maps
LOOKS = 3  # a file that comes and goes may be missed once

Kind: TypeAlias = Literal["segments", "ring"]


def open(
    path: str | os.PathLike[str],
    mode: Literal["rw", "r"] = "rw",
    *,
    create: bool | None = None,
    timeout: float | None = OPEN_TIMEOUT,
    any_file_system: bool = False,
    sync_seconds: float | None = None,
    sync_events: int | None = None,
    codec: str | None = None,
    schema: type[T] | UnionType | None = None,
    nan: Literal["raise", "null"] = "raise",
    max_maps: int | None = None,
    ring: int | str | None = None,
    index: int | None = None,
    segment_size: int | str | None = None,
    file_mode: int | None = None,
    when_full: WhenFull | None = None,
    ttl: Span | None = None,
) -> Log[T]:
    """Open the log at ``path``, or create one there: a segmented log, or a ring if it has a size.

    What describes the log itself (``codec``, ``ring``, ``index``, ``segment_size``, ``file_mode``,
    ``when_full``, ``ttl``) is used when the log is created. For an existing log it must equal what
    the log has, else it is `Usage`: to change it, call `Log.configure` or `Log.resize`.

    Parameters
    ----------
    path : str or path-like
        The log's directory; of a ring, its file. ``~`` is the home directory, and a ``file:`` URL
        means its path. A name that ends in ".ring" is the name of a ring. With mode "r" also an
        archive alone: its directory, or its URL in an object store, such as ``s3://bucket/path``.
    mode : {"rw", "r"}
        "r" never writes and works on read-only media.
    create : bool, optional
        Whether to create a missing log; the default is yes for mode "rw" and no for "r".
    timeout : float or None
        Seconds to wait for another process that is opening the log; then `Busy` is raised.
    any_file_system : bool
        Allow a network or FUSE file system, where processes on different hosts would not see
        each other and a crash can lose acknowledged events.
    sync_seconds, sync_events : float, int, optional
        A thread of this handle syncs that long after the first append that is not durable yet, or
        once that many events are not durable; whichever comes first. For mode "rw".
    codec : str, optional
        How the log turns values into bytes: "bytes" (the default for a new log), "json",
        "msgpack", "lite3" or a registered codec.
    schema : type, optional
        A msgspec struct, a dataclass or any type that msgspec takes: what this handle appends must
        fit it, and ``event.data`` has this type. It is not stored in the log.
    nan : {"raise", "null"}
        What to do with NaN and infinity, which JSON does not have: raise `BadData`, or write null
        instead. It is not stored in the log. For mode "rw".
    max_maps : int, optional
        How many segments this handle keeps mapped for reads, 32 by default; those that were not
        used for the longest time go first. Readers keep the one that they are in. Not for a ring.
    ring : int or str, optional
        The size of a ring, such as "64MiB": one file that overwrites its oldest events.
    index : int, optional
        How many events of a ring its index can hold; others are searched for. The default is one
        for every 128 bytes of the file; 0 means no index.
    segment_size : int or str, optional
        Bytes of one segment file, such as "64MiB", which is the default. Not for a ring.
    file_mode : int, optional
        Permission bits of the log's files; 0o600 by default.
    when_full : {"drop", "block", "error"}, optional
        For a ring: what to do if there is no room for an append. See `Settings`.
    ttl : float or timedelta, optional
        How many seconds events live; 0, the default, for ever. See `Settings`.

    >>> log = penstock.open(path, segment_size="1MiB")
    >>> log.append(b"hello")
    1
    """
    archived = is_url(path)
    text = str(path) if archived else files.path_text(path)
    check_choice(mode, "mode", "rw", "r")
    _check_nan(nan, mode)
    _check_maps(max_maps)
    _check_timeout(timeout)
    if timeout is not None:
        timeout = min(timeout, FOR_EVER)  # an int may be too large for a float
    _check_periods(sync_seconds, sync_events, mode)
    if create and mode == "r":
        raise Usage("create=True needs mode='rw': creating a log writes to it")
    if codec is not None:
        codecs.find(codec, schema)  # first, so that a misspelt name makes no log
    given = _LogArguments.check(
        ring,
        index,
        {
            "segment_size": segment_size,
            "file_mode": file_mode,
            "when_full": when_full,
            "codec": codec,
            "ttl": ttl,
        },
    )
    create = mode == "rw" if create is None else create
    if archived:
        return _open_archive(text, mode, given, timeout, codec, schema, max_maps)
    kind = _kind_at(text)
    if kind is None:
        if not create:
            raise _nothing_at(text)
        if codec is None:
            codecs.find(given.wanted.codec, schema)
        kind = _create(text, given)
    else:
        given.check_kind(text, kind)
    options = Options(
        writable=mode == "rw",
        timeout=timeout,
        any_file_system=any_file_system,
        sync_seconds=sync_seconds,
        sync_events=sync_events,
        codec=codec,
        schema=schema,
        nan=nan,
        max_maps=max_maps,
    )
    if kind == "ring":
        if max_maps is not None:
            raise Usage(f"{text}: max_maps is for a log of segments, but this is a ring")
        file = RingStorage(os.path.realpath(text))
        return given.check_same(Log(file, options), file)
    segments = SegmentStorage(files.hold_dir(text))
    if max_maps is not None:
        segments.store.maps_max = max_maps
    try:
        return given.check_same(Log(segments, options, given.wanted if create else None), None)
    except (NoSuchLog, Usage):
        if not _holds_archive(text):
            raise
    return _open_archive(text, mode, given, timeout, codec, schema, max_maps)


def _open_archive(
    text: str,
    mode: str,
    given: _LogArguments,
    timeout: float | None,
    codec: str | None,
    schema: type[T] | UnionType | None,
    max_maps: int | None,
) -> Log[T]:
    """Open the archive at a path or URL."""
    with loading(text):
        from penstock.archive.alone import storage_of

    given.check_kind(text, "segments")
    options = Options(False, timeout, codec=codec, schema=schema, max_maps=max_maps)
    storage = storage_of(text, mode)
    if max_maps is not None:
        storage.store.maps_max = max_maps
    return given.check_same(Log(storage, options), None)


def _holds_archive(path: str) -> bool:
    """Whether a directory has archived segments, and no log."""
    names = files.list_dir(path)
    return any(Stored.parse(n, 0) for n in names) and not any(segment.is_name(n) for n in names)


def _nothing_at(path: str) -> NoSuchLog:
    return NoSuchLog(f"{path}: there is no log here", filename=path)


def _create(path: str, given: _LogArguments) -> Kind:
    """Create what is missing; returns the kind of log that it will be, or already is."""
    given.check_new(path)
    if given.size is None:
        files.make_dir(path, given.wanted.dir_mode)
        return "segments"
    wanted = given.wanted
    ring_file.create(path, ring_file.new_header(wanted, given.size, given.index), wanted.file_mode)
    kind = _kind_at(path)
    return "ring" if kind is None else kind


def _kind_at(path: str) -> Kind | None:
    """The kind of log that ``path`` can be; None if nothing is there."""
    for _ in range(LOOKS):
        there = files.is_dir(path)
        if there is None:
            return None
        if there:
            return "segments"
        with suppress(NoSuchLog):  # it was a file just now
            if ring_file.is_ring(path):
                return "ring"
    raise Usage(f"{path}: is not a directory and not a ring, so it is not a log")


@dataclass(frozen=True, slots=True)
class _LogArguments:
    """The arguments of `open` that describe the log itself."""

    settings: dict[str, Any]  # by name, as the log would have them
    wanted: Settings  # all settings, for a log that is created
    size: int | None
    index: int | None

    @classmethod
    def check(
        cls, ring: int | str | None, index: int | None, settings: dict[str, Any]
    ) -> _LogArguments:
        """The given values, with sizes as numbers."""
        names = [name for name, value in settings.items() if value is not None]
        wanted = Settings().changed(**{name: settings[name] for name in names})
        if index is not None and (isinstance(index, bool) or not isinstance(index, int)):
            raise WrongType(f"index must be a number of events, got {type(index).__name__}")
        if index is not None and index < 0:
            raise Usage(f"index must be a number of events from 0, got {index}")
        size = None if ring is None else parse_size(ring, "ring")
        if size is not None:
            ring_file.check_shape(size, index)
            if settings["segment_size"] is not None:
                raise Usage("segment_size is for a log of segments; a ring is one file")
        return cls({name: getattr(wanted, name) for name in names}, wanted, size, index)

    def check_new(self, path: str) -> None:
        """Refuse arguments that cannot create a log."""
        if self.size is not None:
            return
        if path.lower().endswith(".ring"):
            raise Usage(
                f"{path}: a name ending in .ring needs the size of the ring, as in "
                f"open({os.path.basename(path)!r}, ring='64MiB'), or choose another name for a log "
                "of segments"
            )
        for name in self._for_rings():
            raise Usage(f"{name} is for a ring: give its size as well, such as ring='64MiB'")

    def check_kind(self, path: str, kind: Kind) -> None:
        """Refuse arguments that do not apply to the kind of the existing log."""
        if kind == "ring" and "segment_size" in self.settings:
            raise Usage(f"{path}: is a ring, which is one file and has no segment_size")
        if kind == "segments" and self.size is not None:
            raise Usage(f"{path}: is a directory; a ring is one file, so ring= does not apply")
        if kind == "segments":
            for name in self._for_rings():
                raise Usage(f"{path}: {name} is for a ring, but this is a log of segments")

    def _for_rings(self) -> list[str]:
        given = {"index": self.index, "when_full": self.settings.get("when_full")}
        return [name for name, value in given.items() if value is not None]

    def check_same(self, log: Log[T], ring: RingStorage | None) -> Log[T]:
        """Return the log, or raise if an argument contradicts it."""
        try:
            self._check_settings(log)
            if ring is not None:
                self._check_shape(log.path, ring.known_header(log))
        except BaseException:
            log.close()
            raise
        return log

    def _check_settings(self, log: Log[T]) -> None:
        for name, value in self.settings.items():
            has = getattr(log.settings, name)
            if value != has and name != "codec":  # its mismatch has a separate error
                said = (oct(value), oct(has)) if name == "file_mode" else (repr(value), repr(has))
                raise Usage(
                    f"{log.path}: {name}={said[0]} was given, but the log has {said[1]}; leave it "
                    f"out, or change the log with log.configure({name}={said[0]})"
                )

    def _check_shape(self, path: str, header: ring_file.Header) -> None:
        if self.size is not None and self.size != header.file_bytes:
            raise Usage(
                f"{path}: ring={self.size} was given, but the ring has {header.file_bytes} "
                f"bytes; leave it out, or change the ring with log.resize({self.size})"
            )
        if self.index is not None and self.index != header.index_capacity:
            raise Usage(
                f"{path}: index={self.index} was given, but the ring has "
                f"{header.index_capacity}, which cannot be changed; leave it out"
            )


def _check_timeout(timeout: object) -> None:
    if timeout is None:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise WrongType(
            f"timeout must be a number of seconds or None, got {type(timeout).__name__}"
        )
    if not timeout >= 0:
        raise Usage(f"timeout must be a number of seconds from 0, or None, got {timeout!r}")


def _check_periods(seconds: float | None, events: int | None, mode: str) -> None:
    if seconds is not None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise WrongType(f"sync_seconds must be a number, got {type(seconds).__name__}")
        if not 0 < seconds < threading.TIMEOUT_MAX:
            raise Usage(f"sync_seconds must be a number of seconds above 0, got {seconds!r}")
    if events is not None:
        if isinstance(events, bool) or not isinstance(events, int):
            raise WrongType(f"sync_events must be a whole number, got {type(events).__name__}")
        if not 1 <= events <= L.SEQ_MAX:
            raise Usage(f"sync_events must be a number of events from 1, got {events}")
    if mode == "r" and (seconds is not None or events is not None):
        name = "sync_seconds" if seconds is not None else "sync_events"
        raise Usage(f"{name} needs mode='rw': a log that is only read has nothing to sync")


def _check_nan(nan: str, mode: str) -> None:
    check_choice(nan, "nan", "raise", "null")
    if mode == "r" and nan != "raise":
        raise Usage(f"nan={nan!r} needs mode='rw': a log that is only read encodes no values")


def _check_maps(count: object) -> None:
    if count is None:
        return
    if isinstance(count, bool) or not isinstance(count, int):
        raise WrongType(f"max_maps must be a number of segments, got {type(count).__name__}")
    if not 1 <= count <= _MAPS_LIMIT:
        raise Usage(f"max_maps must be a number of segments from 1 to {_MAPS_LIMIT}, got {count}")


def _pickled(log: Log[Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """How a log is pickled and copied: by its path, its uuid, and the options of this handle."""
    log._ensure_open()
    if is_url(log.path):
        return _opened_again, (log.path, log.stats().uuid, log._options)
    try:
        there = os.path.samestat(os.stat(log.path), os.fstat(log._held()))
    except OSError:
        there = False
    if not there:
        raise Gone(
            f"{log.path}: the log was moved or deleted, so it cannot be opened again at its path",
            filename=log.path,
        )
    return _opened_again, (log.path, log.stats().uuid, log._options)


def _opened_again(path: str, uuid: object, options: Options) -> Log[Any]:
    """The log that was pickled, opened again."""
    given = {f.name: getattr(options, f.name) for f in fields(options) if f.name != "writable"}
    log: Log[Any] = open(path, "rw" if options.writable else "r", create=False, **given)
    if log.stats().uuid != uuid:
        log.close()
        raise Gone(f"{path}: this is not the log that was pickled", filename=path)
    return log


copyreg.pickle(Log, _pickled)


def create(
    path: str | os.PathLike[str],
    *,
    timeout: float | None = OPEN_TIMEOUT,
    any_file_system: bool = False,
    sync_seconds: float | None = None,
    sync_events: int | None = None,
    codec: str | None = None,
    schema: type[T] | UnionType | None = None,
    nan: Literal["raise", "null"] = "raise",
    max_maps: int | None = None,
    ring: int | str | None = None,
    index: int | None = None,
    segment_size: int | str | None = None,
    file_mode: int | None = None,
    when_full: WhenFull | None = None,
    ttl: Span | None = None,
) -> Log[T]:
    """Create a log at ``path``, where there must be none, and open it.

    Takes the settings and options of :func:`penstock.open`.

    >>> penstock.create(path, segment_size="256KiB").append(b"first")
    1
    >>> penstock.create(path.with_suffix(".ring"), ring="64KiB").append(b"first")
    1
    """
    text = files.path_text(path)
    if os.path.lexists(text):
        names = files.list_dir(text) if os.path.isdir(text) else [text]
        if not os.path.isdir(text) or any(segment.is_name(n) for n in names):
            raise AlreadyExists(
                f"{text}: something is there already; open it instead", filename=text
            )
    return open(
        text,
        timeout=timeout,
        any_file_system=any_file_system,
        sync_seconds=sync_seconds,
        sync_events=sync_events,
        codec=codec,
        schema=schema,
        nan=nan,
        max_maps=max_maps,
        ring=ring,
        index=index,
        segment_size=segment_size,
        file_mode=file_mode,
        when_full=when_full,
        ttl=ttl,
    )


def verify(path: str | os.PathLike[str], *, progress: Progress | None = None) -> Report:
    """Check every byte that matters of the log at ``path``, even if it can no longer be opened.

    It reads into private memory; a ring needs as much memory as its file is large. Writers may go
    on; what they append meanwhile is not checked. ``progress`` is called with the bytes read and
    the total. Nothing is changed, whatever is found.

    >>> penstock.open(path).append(b"hello")
    1
    >>> penstock.verify(path).ok
    True
    """
    check_progress(progress)
    if is_url(path):
        with open(path, "r") as log:
            return log.verify(progress=progress)
    text = files.path_text(path)
    there = files.is_dir(text)
    if there is None:
        raise _nothing_at(text)
    if not there:
        with loading(text):
            from penstock.ring.verify import verify as verify_ring

        return verify_ring(os.path.realpath(text), progress)
    with loading(text):
        from penstock.segments.check.verify import verify as verify_segments

    try:
        with closing(files.hold_dir(text)) as directory:
            return verify_segments(directory, progress=progress)
    except (NoSuchLog, Usage):
        if not _holds_archive(text):
            raise
    with open(text, "r") as log:
        return log.verify(progress=progress)


def repair(
    path: str | os.PathLike[str],
    *,
    to: str | os.PathLike[str] | None = None,
    in_place: bool = False,
    progress: Progress | None = None,
) -> Plan:
    """Plan the repair of the log at ``path``, and do it if ``to`` or ``in_place`` is given.

    With ``to`` a repaired copy is made there, in a new directory or, of a ring, a new file, and the
    log is left as it is. With ``in_place`` damaged segments, or the ring, are replaced; `Busy` is
    raised if a process has the log open. Each original is kept as ``damaged-…bin``, that of a ring
    as ``<name>.damaged-…bin``. With neither, only the plan is made.

    Every valid event is kept, with its seq, times and parts. The plan names what was lost.
    ``progress`` is called with the bytes read and the total while the log is checked.

    >>> penstock.open(path).append(b"hello")
    1
    >>> penstock.repair(path, to=f"{path}-mended").target == f"{path}-mended"
    True
    """
    check_progress(progress)
    text = files.path_text(path)
    target = files.path_text(to) if to is not None else None  # before `progress` can chdir
    there = files.is_dir(text)
    if there is None:
        raise _nothing_at(text)
    if not there:
        with loading(text):
            from penstock.ring.repair import repair as repair_ring

        return repair_ring(os.path.realpath(text), target, in_place, progress)
    with loading(text):
        from penstock.segments.check.repair import repair as repair_segments

    with closing(files.hold_dir(text)) as directory:
        return repair_segments(directory, to=target, in_place=in_place, progress=progress)


def restore(
    source: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    until: SupportsIndex | Time | None = None,
    progress: Progress | None = None,
) -> int:
    """Make a log at ``path`` of the archive at ``source``; returns its last seq.

    ``source`` is a directory or a URL. The log has the archived events with their seqs, times and
    parts, takes appends after them, and can be archived again. What was not archived yet, consumers
    and groups are not in an archive. With ``until`` it has the events before that seq, or before
    the first event of that time or later; what was appended as a unit is restored as a whole or
    not at all. Such a log and the original differ from there on, so they cannot have one archive:
    give the new one another place.

    ``path`` gets its name when everything is there and on disk. ``progress`` is called with the
    bytes done and the total.

    >>> log = penstock.open(path)
    >>> log.extend([b"a", b"b"]), log.steward.roll(), log.steward.archive().moved
    (range(1, 3), 3, 1)
    >>> penstock.restore(path / "archive", f"{path}-again")
    2
    >>> [event.value for event in penstock.open(f"{path}-again")]
    [b'a', b'b']
    """
    check_progress(progress)
    target = files.path_text(path)
    seq, since_ns = None, None
    if until is not None and is_time(until):
        since_ns = to_ns(until, "until")
    elif until is not None:
        if isinstance(until, str):
            raise WrongType(f"until must be a seq or a time, got {until!r}")
        seq = to_seq(cast(SupportsIndex, until), "until")
    with loading(target):
        from penstock.archive.restore import restore as restore_log

    return restore_log(source, target, (seq, since_ns), progress)
