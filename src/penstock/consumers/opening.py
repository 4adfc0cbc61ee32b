"""How a consumer is opened, or made: who owns it, and whether its file fits log and call."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, cast

from penstock import _core
from penstock import layout as L
from penstock._core import ConsumerFile, key_bytes
from penstock.arguments import check_choice
from penstock.consumers import folder as folders
from penstock.consumers.consumer import Consumer
from penstock.consumers.file import ConsumerPlace, Filter, Profile, new_file
from penstock.consumers.reading import Start, check_start, find_start, means_start
from penstock.errors import Busy, Corrupt, NotFound, PenstockError, Permission, Usage, WrongType
from penstock.event import Buffer
from penstock.reader import Topic, tag_bytes, topics_bytes
from penstock.system import files
from penstock.system.directory import Directory, Name

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from penstock.log import Log

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")

_INSTANT = 0.05  # seconds for which the first opener of a log may own its consumers, to look
_NAP = 0.002  # seconds between a standby's looks at the lock, at first
_NAP_MAX = 0.02


def open_consumer(
    log: Log[T],
    name: str,
    *,
    start: Start,
    topic: Topic | None,
    key: Buffer | None,
    tags: Iterable[str] | None,
    standby: bool,
    auto_commit: float | None,
    timeout: float | None,
    hold: bool,
    durable: bool,
    check: bool,
    on_gap: Literal["raise", "skip"],
    on_damage: Literal["raise", "skip"],
) -> Consumer[T]:
    """Open the consumer, or make it; every argument is checked before anything is touched."""
    name = folders.check_name(name)
    wanted = Filter(_topics(topic), key_bytes(key), _tag_names(tags))
    check_choice(on_gap, "on_gap", "raise", "skip")
    check_choice(on_damage, "on_damage", "raise", "skip")
    _check_seconds(auto_commit, "auto_commit")
    _check_seconds(timeout, "timeout")
    check_start(start)
    standby, hold, durable, check = map(bool, (standby, hold, durable, check))
    log._ensure_open()  # in a child, opens the log again
    if hold:
        probe = log._storage.take_hold(log, log._next_seq())  # says so where that makes no sense
        if probe is not None:
            probe.close()
    try:
        fd, path, made = _Opener(log, name, wanted, start, standby=standby).own()
    except (OSError, PenstockError):
        if log.closed:  # by another thread, and with it the descriptors that were used here
            raise log._closed_error() from None
        raise
    hold_taken = None
    file: ConsumerFile | None = None
    try:
        place = folders.read_place(fd, path, alone=True)
        _check_place(log, name, path, place, wanted)
        file = folders.map_place(fd, path, place)
        end = log._next_seq()
        if file.next > end:
            folders.clamp(file, end)
        if hold:
            hold_taken = log._storage.take_hold(log, file.next)
        consumer = cast("Consumer[T]", Consumer.__new__(Consumer))
        consumer._filter = place.profile.wants
        consumer._options = {
            "durable": durable,
            "check": check,
            "on_gap": on_gap,
            "on_damage": on_damage,
            "hold": False,
        }
        consumer._own(log, name, file, hold_taken, auto_commit)
        consumer.timeout = timeout
        consumer._seek_to(file.next, oldest=made and means_start(start))
        consumer._options["hold"] = hold
    except BaseException:
        if hold_taken is not None:
            hold_taken.close()
        if file is not None:
            file.close()
        else:
            _core.close_fd(fd)
        raise
    return consumer


class _Opener:
    """Gets the owner's lock of a consumer's file, making the file if there is none."""

    def __init__(
        self, log: Log[Any], name: str, wanted: Filter, start: Start, *, standby: bool
    ) -> None:
        self._log = log
        self._name = name
        self._profile = Profile(_core.now_ns(), wanted)
        self._profile.pack()  # before anything is touched
        self._start = start
        self._standby = standby

    def own(self) -> tuple[int, Name, bool]:
        """A descriptor with the lock, the file's name, and whether it was made just now."""
        log = self._log
        log._storage.check_there(log)  # else a folder would be made where the log was
        mode = log.settings.dir_mode
        log._storage.check_home(log)
        folder = folders.make_folder(log._storage.home, mode)
        path = folder.file(self._name)
        nap = _NAP
        patience = time.monotonic() + _INSTANT
        while True:
            try:
                fd = folders.try_own(path)
            except NotFound:
                made = self._make(folder)
                if made is not None:
                    return self._still_at_home(made, path, made=True), path, True
                continue
            except Permission as error:
                raise folders.not_writable(path, error) from error
            if fd is not None:
                return self._still_at_home(fd, path, made=False), path, False
            if not self._standby and time.monotonic() > patience:
                raise self._busy(path)
            time.sleep(nap)  # in which Ctrl-C gets through
            nap = min(nap * 2, _NAP_MAX)
            log._ensure_open()  # raises if another thread has closed the log

    def _make(self, folder: Directory) -> int | None:
        log = self._log
        seq, _ = find_start(log, self._start, "start")
        data = new_file(log._uuid(), seq, self._profile, _core.now_ns())
        try:
            return folders.make(folder, self._name, data, log.settings.file_mode)
        except Permission as error:
            raise folders.not_writable(folder, error) from error

    def _still_at_home(self, fd: int, path: Name, *, made: bool) -> int:
        """``fd``, if the log was not deleted or replaced while its folder was looked for."""
        try:
            self._log._storage.check_home(self._log)
        except BaseException:
            if made:
                with suppress(PenstockError):
                    files.unlink(path)
            _core.close_fd(fd)
            raise
        return fd

    def _busy(self, path: Name) -> Busy:
        seen = ""
        fd = files.open_file(path, write=False)
        try:
            if not folders.is_live(fd, path):
                return folders.reader_error(path)
            slot = folders.read_place(fd, path, alone=False).slot
            ago = max(0, _core.now_ns() - slot.heartbeat_ns) / 1e9
            seen = f" and was seen {ago:.1f} s ago, at seq {slot.position}"
        except Corrupt:
            pass
        finally:
            files.close(fd)
        return Busy(
            f"{path}: the consumer {self._name!r} has an owner, which is alive{seen}; open it with "
            "standby=True to take over when that one ends, or use another name"
        )


def _check_place(
    log: Log[Any], name: str, path: Name, place: ConsumerPlace, wanted: Filter
) -> None:
    """Refuse the place of another log, or of a consumer that wants something else."""
    if place.slot.uuid != log._uuid():
        raise Corrupt(
            f"{path}: this consumer is of another log, {place.slot.uuid.hex()}, and this one is "
            f"{log._uuid().hex()}; delete it with log.consumers().delete({name!r}), or open the "
            "log that it belongs to",
            path=str(path),
            offset=L.PLACE_UUID,
        )
    has = place.profile.wants
    if wanted and wanted != has:
        raise Usage(
            f"{path}: the consumer {name!r} was made with {has}, and got {wanted}; what a consumer "
            "wants is settled when it is made: use another name, or leave it out"
        )


def _topics(topic: Topic | None) -> bytes | tuple[bytes, ...] | None:
    """The topic of a consumer, or several in an order of their own; None if any event will do."""
    found = None if topic is None else topics_bytes(topic)
    if not isinstance(found, tuple):
        return found
    several = tuple(sorted(set(found)))
    return several if len(several) > 1 else several[0]


def _tag_names(tags: Iterable[str] | None) -> tuple[str, ...] | None:
    """The tags of a consumer, in an order of their own; None if any event will do."""
    if isinstance(tags, Iterator):
        tags = list(tags)  # it is iterated twice
    return tuple(sorted(set(tags))) if tags is not None and tag_bytes(tags) else None


def _check_seconds(given: object, what: str) -> None:
    if given is None:
        return
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise WrongType(f"{what} must be a number of seconds or None, got {type(given).__name__}")
    if not given >= 0 or (given == math.inf and what == "auto_commit"):
        raise Usage(f"{what} must be a number of seconds from 0, or None, got {given!r}")
