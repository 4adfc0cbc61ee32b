"""How a group is opened, or made: its terms, and the end of its log after a loss of power."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

from penstock import _core
from penstock.consumers.folder import make_folder
from penstock.consumers.reading import Start, check_start, find_start
from penstock.errors import Conflict, Corrupt, Permission
from penstock.groups import decisions as d
from penstock.groups.desk import STATE_SEGMENT_BYTES, Desk, open_inner
from penstock.groups.folder import FOLDER, STATE, check_name, make_below, notes_in
from penstock.groups.group import Group
from penstock.groups.terms import Wanted
from penstock.settings import Settings
from penstock.system import files
from penstock.system.messages import logger

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from penstock.log import Log

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")


def open_group(log: Log[T], name: str, start: Start, wanted: Wanted) -> Group[T]:
    """Open the group, or make it; every argument was checked but these."""
    name = check_name(name)
    check_start(start)
    log._ensure_open()
    if not log._writable:
        raise Permission(
            f"{log.path}: the log was opened with mode='r', and a group stores what its workers "
            "do: open the log with mode='rw'",
            filename=log.path,
        )
    new = wanted.new()
    log._storage.check_there(log)  # else a folder would be made where the log was
    log._storage.check_home(log)
    settings = log.settings
    groups = make_folder(log._storage.home, settings.dir_mode, FOLDER)
    folder = make_below(groups, name, settings.dir_mode)
    directory = make_below(folder, STATE, settings.dir_mode)
    inner = Settings(segment_size=STATE_SEGMENT_BYTES, file_mode=settings.file_mode)
    sidecar = open_inner(log, directory, inner)
    desk = Desk(log, name, folder, sidecar)
    try:
        with desk.guard:
            _agree(desk, wanted, new, start)
            _cut(desk)
    except BaseException:
        desk.closed = True
        sidecar.close()
        raise
    group = cast("Group[T]", object.__new__(Group))
    group._desk = desk
    return group


def _agree(desk: Desk, wanted: Wanted, new: d.GroupTerms, start: Start) -> None:
    """Have the group made, by whoever is first; refuse one that differs."""
    log, sidecar = desk.log, desk.ledger.log
    if sidecar.last_seq == 0:
        begins, _ = find_start(log, start, "start")
        made = d.Made(os.urandom(16), log._uuid(), _core.now_ns(), max(1, begins), new)
        try:
            sidecar.append(d.encode(made), expect=0)
            _core.fail_point("group.made")
            sidecar.sync()
        except Conflict:
            pass  # another process has just made it
    state = desk.state()
    if not state.uuid:
        raise Corrupt(
            f"{desk.path}: its first decision does not make a group; delete it with "
            f"log.groups().delete({desk.name!r}), or put back a backup of the log",
            path=desk.path,
            seq=1,
        )
    if state.log_uuid != log._uuid():
        raise Corrupt(
            f"{desk.path}: this group is of another log, {state.log_uuid.hex()}, and this one is "
            f"{log._uuid().hex()}; delete it with log.groups().delete({desk.name!r}), or open the "
            "log that it belongs to",
            path=desk.path,
        )
    wanted.check(desk.path, desk.name, state.terms)


def _cut(desk: Desk) -> None:
    """After a loss of power: forget what was decided about events that the log has lost."""
    notes = notes_in(desk.folder)
    cursor = desk.state().cursor  # first: others append and claim meanwhile
    end = desk.log._next_seq()
    if cursor > end:  # nobody told, as for a copy that somebody made by hand
        notes.setdefault(f"end-{os.urandom(8).hex()}", end)
    for note, stop in notes.items():
        state = desk.state()
        if state.cursor > stop or any(seq >= stop for seq in state.open):
            before = state.cursor
            desk.ledger.record(d.CutOff(stop, note), durable=True)
            logger.warning(
                "%s: the group had come to seq %s, and the log ended before seq %s: it lost events "
                "with the power, or is an older copy. The group goes on at seq %s, so that none of "
                "the events to come is passed over",
                desk.path,
                before,
                stop,
                stop,
            )
        _core.fail_point("group.cut")
        files.unlink(desk.folder.file(note))
