"""Opening, creating, verifying and repairing logs: which kind of log there is at a path.

No argument of `open` is ever ignored: one that contradicts the log that is there, or that means
nothing for its kind, is an error that says which call changes the log.
"""

from __future__ import annotations

import copyreg
import os
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, fields
from types import UnionType
from typing import Any, Literal

from penstock import layout as L
from penstock.arguments import check_choice, check_progress
from penstock.data import codecs
from penstock.errors import AlreadyExists, Gone, NoSuchLog, Usage, WrongType
from penstock.log import Log, T
from penstock.report import Report
from penstock.ring import file as ring_file
from penstock.ring import repair as ring_mend
from penstock.ring import verify as ring_check
from penstock.ring.log import RingLog
from penstock.segments import segment
from penstock.segments.check.repair import Plan
from penstock.segments.check.repair import repair as repair_segments
from penstock.segments.check.verify import Progress
from penstock.segments.check.verify import verify as verify_segments
from penstock.segments.log import SegmentedLog
from penstock.settings import Options, Settings, WhenFull, parse_size
from penstock.system import files

OPEN_TIMEOUT = 10.0
FOR_EVER = 1e9  # seconds
LOOKS = 3  # a file that comes and goes may be missed once


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
    ring: int | str | None = None,
    index: int | None = None,
    segment_size: int | str | None = None,
    file_mode: int | None = None,
    when_full: WhenFull | None = None,
) -> Log[T]:
    """Open the log at ``path``, or create one there: a segmented log, or a ring if it has a size.

    What describes the log itself (``codec``, ``ring``, ``index``, ``segment_size``, ``file_mode``,
    ``when_full``) counts when the log is created. For a log that exists it must be what the log
    has, or it is `Usage`: to change it, call `Log.configure` or `Log.resize`.

    Parameters
    ----------
    path : str or path-like
        The log's directory; of a ring, its file. ``~`` is the home directory, and a ``file:`` URL
        stands for its path. A name that ends in ".ring" is that of a ring.
    mode : {"rw", "r"}
        "r" never writes and works on read-only media.
    create : bool, optional
        Whether to create a log where there is none; if not given, with mode "rw" only.
    timeout : float or None
        Seconds to wait for another process that is just opening the log, then `Busy`.
    any_file_system : bool
        Insist on a network or FUSE file system, where processes on different hosts would not see
        each other and a crash can lose what was acknowledged.
    sync_seconds, sync_events : float, int, optional
        Have a thread of this handle sync that long after its first append that is not durable
        yet, or once that many are not; whichever comes first. For mode "rw".
    codec : str, optional
        How the log turns values into bytes: "bytes" for a new log if not given, "json", "msgpack",
        "lite3" or one that was registered.
    schema : type, optional
        A msgspec struct, a dataclass or any type that msgspec takes: what this handle appends must
        fit it, and ``event.data`` is of it. It is not kept in the log.
    nan : {"raise", "null"}
        What becomes of NaN and infinity, which JSON does not have: `BadData`, or a null in their
        place. It is not kept in the log.
    ring : int or str, optional
        The size of a ring, such as "64MiB": one file that overwrites its oldest events.
    index : int, optional
        For how many events a ring knows where they are by their seq; others are searched for. One
        for every 128 bytes of the file if not given, 0 for none.
    segment_size : int or str, optional
        Bytes of one segment file, such as "64MiB", which is the default. Not for a ring.
    file_mode : int, optional
        Permission bits of the log's files; 0o600 by default.
    when_full : {"drop", "block", "error"}, optional
        Of a ring: what becomes of an append for which there is no room. See `Settings`.

    >>> log = penstock.open(path, segment_size="1MiB")
    >>> log.append(b"hello")
    1
    """
    text = files.path_text(path)
    check_choice(mode, "mode", "rw", "r")
    check_choice(nan, "nan", "raise", "null")
    _check_timeout(timeout)
    if timeout is not None:
        timeout = min(timeout, FOR_EVER)  # an int may be too large for a float
    _check_periods(sync_seconds, sync_events, mode)
    if create and mode == "r":
        raise Usage("create=True needs mode='rw': a log that is created is written to")
    if codec is not None:
        codecs.find(codec, schema)  # first, so that a misspelt name makes no log
    given = _Given.check(
        ring,
        index,
        {
            "segment_size": segment_size,
            "file_mode": file_mode,
            "when_full": when_full,
            "codec": codec,
        },
    )
    create = mode == "rw" if create is None else create
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
    )
    log: Log[T]
    if kind is RingLog:
        log = RingLog(os.path.realpath(text), options)
    else:
        log = SegmentedLog(files.hold_dir(text), options, given.wanted if create else None)
    try:
        given.check_same(log)
    except BaseException:
        log.close()
        raise
    return log


def _nothing_at(path: str) -> NoSuchLog:
    return NoSuchLog(f"{path}: there is no log here", filename=path)


def _create(path: str, given: _Given) -> type[Log[Any]]:
    """Have something where nothing was; the kind of log that it will be, or is by now."""
    given.check_new(path)
    if given.size is None:
        files.make_dir(path, given.wanted.dir_mode)
        return SegmentedLog
    wanted = given.wanted
    ring_file.create(path, ring_file.new_header(wanted, given.size, given.index), wanted.file_mode)
    kind = _kind_at(path)
    return RingLog if kind is None else kind


def _kind_at(path: str) -> type[Log[Any]] | None:
    """The kind of log that ``path`` can be; None if nothing is there."""
    for _ in range(LOOKS):
        there = files.is_dir(path)
        if there is None:
            return None
        if there:
            return SegmentedLog
        with suppress(NoSuchLog):  # it was a file just now
            if ring_file.is_ring(path):
                return RingLog
    raise Usage(f"{path}: is not a directory and not a ring, so it is not a log")


@dataclass(frozen=True, slots=True)
class _Given:
    """What an opener says of the log itself."""

    settings: dict[str, Any]  # by name, as the log would have them
    wanted: Settings  # all of them, for a log that is created
    size: int | None
    index: int | None

    @classmethod
    def check(cls, ring: int | str | None, index: int | None, settings: dict[str, Any]) -> _Given:
        """What was given, with sizes as numbers."""
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
        """Refuse what makes no new log."""
        if self.size is not None:
            return
        if path.endswith(".ring"):
            raise Usage(
                f"{path}: the name says ring, and a ring needs a size: give it as in "
                f"open({os.path.basename(path)!r}, ring='64MiB'), or choose another name for a log "
                "of segments"
            )
        for name in self._for_rings():
            raise Usage(f"{name} is for a ring: give its size as well, such as ring='64MiB'")

    def check_kind(self, path: str, kind: type[Log[Any]]) -> None:
        """Refuse what means nothing for the kind of log that is there."""
        if kind is RingLog and "segment_size" in self.settings:
            raise Usage(f"{path}: is a ring, which is one file and has no segment_size")
        if kind is SegmentedLog and self.size is not None:
            raise Usage(f"{path}: is a directory; a ring is one file, so ring= does not apply")
        if kind is SegmentedLog:
            for name in self._for_rings():
                raise Usage(f"{path}: {name} is for a ring, and this is a log of segments")

    def _for_rings(self) -> list[str]:
        given = {"index": self.index, "when_full": self.settings.get("when_full")}
        return [name for name, value in given.items() if value is not None]

    def check_same(self, log: Log[Any]) -> None:
        """Refuse what contradicts the log."""
        for name, value in self.settings.items():
            has = getattr(log.settings, name)
            if value != has and name != "codec":  # whose mismatch has an error of its own
                said = (oct(value), oct(has)) if name == "file_mode" else (repr(value), repr(has))
                raise Usage(
                    f"{log.path}: {name}={said[0]} was given, and the log has {said[1]}; leave it "
                    f"out, or change the log with log.configure({name}={said[0]})"
                )
        if not isinstance(log, RingLog):
            return
        header = log._known_header()
        if self.size is not None and self.size != header.file_bytes:
            raise Usage(
                f"{log.path}: ring={self.size} was given, and the ring has {header.file_bytes} "
                f"bytes; leave it out, or change the ring with log.resize({self.size})"
            )
        if self.index is not None and self.index != header.index_capacity:
            raise Usage(
                f"{log.path}: index={self.index} was given, and the ring has "
                f"{header.index_capacity}, for good; leave it out"
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


def _pickled(log: Log[Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """How a log is pickled and copied: by its path, its uuid, and the options of this handle."""
    log._head()  # it must be open; in a child this opens it
    held = log._held_fd if log._ctl is None else log._ctl.held_fd
    try:
        there = os.path.samestat(os.stat(log.path), os.fstat(held))
    except OSError:
        there = False
    if not there:
        raise Gone(
            f"{log.path}: the log was moved or deleted, so it cannot be opened again by its path",
            filename=log.path,
        )
    return _opened_again, (log.path, log.stats().uuid, log._options)


def _opened_again(path: str, uuid: object, options: Options) -> Log[Any]:
    """The log that was pickled, opened again."""
    given = {f.name: getattr(options, f.name) for f in fields(options) if f.name != "writable"}
    log: Log[Any] = open(path, "rw" if options.writable else "r", create=False, **given)
    if log.stats().uuid != uuid:
        log.close()
        raise Gone(f"{path}: another log is here than the one that was pickled", filename=path)
    return log


copyreg.pickle(SegmentedLog, _pickled)
copyreg.pickle(RingLog, _pickled)


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
    ring: int | str | None = None,
    index: int | None = None,
    segment_size: int | str | None = None,
    file_mode: int | None = None,
    when_full: WhenFull | None = None,
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
        ring=ring,
        index=index,
        segment_size=segment_size,
        file_mode=file_mode,
        when_full=when_full,
    )


def verify(path: str | os.PathLike[str], *, progress: Progress | None = None) -> Report:
    """Check every byte that matters of the log at ``path``, which need not be fit to be opened.

    It reads into private memory, of a ring as much as the file is large. Writers may go on; what
    they append meanwhile is not looked at. ``progress`` is called with bytes read and bytes in all.
    Nothing is changed, whatever is found.

    >>> penstock.open(path).append(b"hello")
    1
    >>> penstock.verify(path).ok
    True
    """
    check_progress(progress)
    text = files.path_text(path)
    there = files.is_dir(text)
    if there is None:
        raise _nothing_at(text)
    if not there:
        return ring_check.verify(os.path.realpath(text), progress)
    with closing(files.hold_dir(text)) as directory:
        return verify_segments(directory, progress=progress)


def repair(
    path: str | os.PathLike[str],
    *,
    to: str | os.PathLike[str] | None = None,
    in_place: bool = False,
    progress: Progress | None = None,
) -> Plan:
    """Say how the log at ``path`` can be repaired, and do it if told where.

    With ``to`` a repaired copy is made there, in a new directory or, of a ring, a new file, and the
    log is left as it is. With ``in_place`` damaged segments, or the ring, are replaced, for which
    nobody may have the log open (`Busy`); each original is kept as ``damaged-…bin``, that of a ring
    as ``<name>.damaged-…bin``. With neither, only the plan is made.

    Every valid event is kept, with its seq, times and parts. What was lost is named in the plan.
    ``progress`` is called with bytes read and bytes in all while the log is looked at.

    >>> penstock.open(path).append(b"hello")
    1
    >>> penstock.repair(path, to=f"{path}-mended").target == f"{path}-mended"
    True
    """
    check_progress(progress)
    text = files.path_text(path)
    there = files.is_dir(text)
    if there is None:
        raise _nothing_at(text)
    if not there:
        target = files.path_text(to) if to is not None else None
        return ring_mend.repair(os.path.realpath(text), target, in_place, progress)
    with closing(files.hold_dir(text)) as directory:
        return repair_segments(directory, to=to, in_place=in_place, progress=progress)
