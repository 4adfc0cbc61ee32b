"""Results: what acks left for whoever appended an event, in a small log that forgets the oldest."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from penstock.arguments import seconds
from penstock.errors import NotFound, Usage
from penstock.groups.desk import open_inner
from penstock.groups.folder import RESULTS, check_name, group_names, open_group
from penstock.groups.trimming import first_seqs, trim
from penstock.reader import to_seq
from penstock.system import files

if TYPE_CHECKING:
    from penstock.groups.desk import Desk
    from penstock.log import Log

SEGMENTS_KEPT = 4
_LOOK_BYTES = 1 << 20  # of results, between two looks whether old ones are to go
_EACH_BYTES = 64
_LOOK_S = 0.2  # between two looks for a group, or results, that are not there yet


def keep(desk: Desk, seq: int, result: Any, *, durable: bool) -> None:
    """Store the result of an event, before it is acked."""
    log = desk.beside(RESULTS)
    log.append(result, key=_key(seq), durable=durable)
    desk.result_bytes += len(result) + _EACH_BYTES
    if desk.result_bytes > _LOOK_BYTES:
        desk.result_bytes = 0
        trim(log, first_seqs(log)[-SEGMENTS_KEPT:][0])


def _key(seq: int) -> bytes:
    return b"%d" % seq


def find(log: Log[Any], seq: Any, timeout: float | None, group: str | None) -> Any:
    """`Log.result`."""
    number, patience = to_seq(seq, "seq"), seconds(timeout)
    if group is not None:
        group = check_name(group)
    log._ensure_open()
    began, looked, opened = time.monotonic(), 0, None
    try:
        while True:
            log._storage.check_home(log)
            if opened is None:
                opened = _open(log, group)
            if opened is not None:
                last = opened.last_seq
                newest = opened.read(
                    max(looked + 1, opened.first_seq),
                    last + 1,
                    key=_key(number),
                    reverse=True,
                    limit=1,
                    on_gap="skip",
                )
                for event in newest:
                    return event.value
                looked = last
            left = _LOOK_S if patience is None else began + patience - time.monotonic()
            if left <= 0:
                raise NotFound(
                    f"{log.path}: there is no result of seq {number}"
                    + ("" if group is None else f" in the group {group!r}")
                    + ": it is not done yet, was acked without result=, or its result is too old"
                )
            if opened is None:
                time.sleep(min(left, _LOOK_S / 10))
            else:
                opened.wait(min(left, _LOOK_S), after=looked)
    finally:
        if opened is not None:
            opened.close()


def _open(log: Log[Any], group: str | None) -> Any:
    """The results of the group, or of the only one that has some; None if there are none yet."""
    home = log._storage.home
    found = []
    for name in group_names(home) if group is None else [group]:
        folder = open_group(home, name)
        if folder is not None and RESULTS in files.list_dir(folder):
            found.append((name, folder))
    if len(found) > 1:
        names = ", ".join(repr(name) for name, _ in found)
        raise Usage(f"{log.path}: the groups {names} have results: say which with group=")
    if not found:
        return None
    try:
        return open_inner(log, files.hold_dir(found[0][1].file(RESULTS)), None, write=False)
    except NotFound:  # it is being made just now
        return None
