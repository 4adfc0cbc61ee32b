"""Opening, creating, verifying and repairing logs: which kind of log there is at a path."""

from __future__ import annotations

import copyreg
import os
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any, Literal

from penstock import codecs, files, segment
from penstock.errors import AlreadyExists, Gone, NoSuchLog, Usage, WrongType
from penstock.log import Log
from penstock.repair import Plan
from penstock.repair import repair as repair_segments
from penstock.report import Report
from penstock.ring import check as ring_check
from penstock.ring import file as ring_file
from penstock.ring import mend as ring_mend
from penstock.ring.log import RingLog
from penstock.segmented import SegmentedLog
from penstock.settings import Options, Settings, parse_size
from penstock.verify import Progress
from penstock.verify import verify as verify_segments

OPEN_TIMEOUT = 10.0


def open(
    path: str | os.PathLike[str],
    mode: Literal["rw", "r"] = "rw",
    *,
    create: bool = True,
    timeout: float | None = OPEN_TIMEOUT,
    any_file_system: bool = False,
    sync_seconds: float | None = None,
    sync_events: int | None = None,
    codec: str | None = None,
    schema: Any = None,
    nan: Literal["raise", "null"] = "raise",
    ring: int | str | None = None,
    index: int | None = None,
    **settings: Any,
) -> Log:
    """Open the log at ``path``, or create one there: a segmented log, or a ring if it has a size.

    Parameters
    ----------
    path : str or path-like
        The log's directory; of a ring, its file.
    mode : {"rw", "r"}
        "r" never writes and works on read-only media.
    create : bool
        Whether to create a log where there is none.
    timeout : float or None
        Seconds to wait for another process that is just opening the log, then `Busy`.
    any_file_system : bool
        Insist on a network or FUSE file system, where processes on different hosts would not see
        each other and a crash can lose what was acknowledged.
    sync_seconds, sync_events : float, int, optional
        Have a thread of this handle sync that long after its first append that is not durable
        yet, or once that many are not; whichever comes first.
    codec : str, optional
        How a log that is created turns values into bytes: "bytes" if not given, "json", "msgpack",
        "lite3" or one that was registered. For a log that exists it must be the log's own.
    schema : type, optional
        A msgspec struct, a dataclass or any type that msgspec takes: what this handle appends must
        fit it, and ``event.data`` is of it. It is not kept in the log.
    nan : {"raise", "null"}
        What becomes of NaN and infinity, which JSON does not have: `BadData`, or a null in their
        place. It is not kept in the log.
    ring : int or str, optional
        The size of a ring that is created, such as "64MiB": one file that overwrites its oldest
        events. A ring that exists keeps its size: use `Log.resize`.
    index : int, optional
        For how many events a ring that is created knows where they are by their seq; others are
        searched for. One for every 128 bytes of the file if not given, 0 for none.
    **settings
        ``segment_size``, ``file_mode`` and, of a ring, ``when_full`` of a log that is created. They
        never change a log that exists: use `Log.configure`.

    >>> log = penstock.open(path, segment_size="1MiB")
    >>> log.append(b"hello")
    1
    """
    text = files.path_text(path)
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float)):
        raise WrongType(f"timeout is a number of seconds, or None; not {type(timeout).__name__}")
    if timeout is not None and not timeout >= 0:
        raise Usage(f"timeout is a number of seconds from 0, or None; not {timeout!r}")
    if mode not in ("rw", "r"):
        raise Usage(f"mode is 'rw' or 'r', not {mode!r}")
    if nan not in ("raise", "null"):
        raise Usage(f"nan must be 'raise' or 'null', got {nan!r}")
    _check_periods(sync_seconds, sync_events)
    if codec is not None:
        codecs.find(codec, schema)  # first, so that a misspelt name makes no log
        settings["codec"] = codec
    wanted = Settings().changed(**settings)
    size = _check_ring(ring, index, settings)
    kind = _kind_at(text)
    if kind is None and codec is None:
        codecs.find(wanted.codec, schema)
    if kind is SegmentedLog and size is not None:
        raise Usage(f"{text}: is a directory; a ring is one file")
    if kind is None and (mode == "r" or not create):
        raise NoSuchLog(f"{text}: there is no log here", filename=text)
    if kind is None and size is not None:
        ring_file.create(text, ring_file.new_header(wanted, size, index), wanted.file_mode)
        kind = _kind_at(text)
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
    if kind is RingLog:
        return RingLog(os.path.realpath(text), options)
    if mode == "rw" and create:
        files.make_dir(text, wanted.dir_mode)
    return SegmentedLog(files.hold_dir(text), options, wanted if create else None)


def _kind_at(path: str) -> type[Log] | None:
    """The kind of log that ``path`` can be; None if nothing is there."""
    there = files.is_dir(path)
    if there is None:
        return None
    if there:
        return SegmentedLog
    if not ring_file.is_ring(path):
        raise Usage(f"{path}: is not a directory and not a ring, so it is not a log")
    return RingLog


def _check_ring(ring: int | str | None, index: int | None, settings: dict[str, Any]) -> int | None:
    """The size of a ring to create, if any; with it goes what only rings have."""
    if ring is None:
        for name, given in (("index", index), ("when_full", settings.get("when_full"))):
            if given is not None:
                raise Usage(f"{name} is for a ring: give its size as well, such as ring='64MiB'")
        return None
    if index is not None and (isinstance(index, bool) or not isinstance(index, int)):
        raise WrongType(f"index is a number of events, not {type(index).__name__}")
    if index is not None and index < 0:
        raise Usage(f"index is a number of events from 0, not {index}")
    size = parse_size(ring, "ring")
    ring_file.check_shape(size, index)
    return size


def _check_periods(seconds: float | None, events: int | None) -> None:
    if seconds is not None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise WrongType(f"sync_seconds is a number, not {type(seconds).__name__}")
        if not 0 < seconds < threading.TIMEOUT_MAX:
            raise Usage(f"sync_seconds is a number of seconds above 0, not {seconds!r}")
    if events is not None:
        if isinstance(events, bool) or not isinstance(events, int):
            raise WrongType(f"sync_events is a whole number, not {type(events).__name__}")
        if events < 1:
            raise Usage(f"sync_events is a number of events from 1, not {events}")


def _pickled(log: Log) -> tuple[Callable[..., Any], tuple[Any, ...]]:
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


def _opened_again(path: str, uuid: object, options: Options) -> Log:
    """The log that was pickled, opened again."""
    log = open(
        path,
        "rw" if options.writable else "r",
        create=False,
        timeout=options.timeout,
        any_file_system=options.any_file_system,
        sync_seconds=options.sync_seconds,
        sync_events=options.sync_events,
        codec=options.codec,
        schema=options.schema,
    )
    if log.stats().uuid != uuid:
        log.close()
        raise Gone(f"{path}: another log is here than the one that was pickled", filename=path)
    return log


copyreg.pickle(SegmentedLog, _pickled)
copyreg.pickle(RingLog, _pickled)


def create(path: str | os.PathLike[str], **options: Any) -> Log:
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
    return open(path, **options)


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
    text = files.path_text(path)
    if files.is_dir(text) is False:
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
    text = files.path_text(path)
    if files.is_dir(text) is False:
        target = files.path_text(to) if to is not None else None
        return ring_mend.repair(os.path.realpath(text), target, in_place, progress)
    with closing(files.hold_dir(text)) as directory:
        return repair_segments(directory, to=to, in_place=in_place, progress=progress)
