"""Dead letters: events that were given up, moved to a log of their own, each exactly once.

A mover reads which letters are there already, from the last one that was known when the first of
its events was given up, and appends the others, each with ``expect=``: if another mover was
faster, it looks again. Only when they are on disk, a decision says so. Whoever dies in between
leaves letters that the next mover finds.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock import _core
from penstock.errors import Conflict, TooLarge, WrongType
from penstock.event import Event
from penstock.groups import decisions as d
from penstock.groups.folder import DEAD
from penstock.groups.lookahead import hash_of
from penstock.groups.terms import whole
from penstock.system.messages import logger

if TYPE_CHECKING:
    from penstock.groups.desk import Desk
    from penstock.groups.glance import Glance
    from penstock.log import Log

AT_ONCE = 500  # events of one move, letters of one redrive
LOG, SEQ, GROUP, DELIVERIES = "dead.log", "dead.seq", "dead.group", "dead.deliveries"
REASON, TIME, STAMP = "dead.reason", "dead.time", "dead.stamp"
_OWN = (LOG, SEQ, GROUP, DELIVERIES, REASON, TIME, STAMP)
_CODEC = "penstock.codec"


class _Dying(NamedTuple):
    """An event that was given up, and waits to be moved."""

    seq: int
    stamp: int
    deliveries: int
    reason: str
    letter: int


def bury(desk: Desk) -> None:
    """Move every event that was given up to the dead letters; not inside the guard."""
    while True:
        with desk.guard:
            state = desk.state()
            uuid = state.uuid.hex()
            dying = [
                _Dying(i.seq, i.dying, i.deliveries, i.reason, i.letter)
                for i in list(state.dying.values())[:AT_ONCE]
            ]
            known = min((state.dying[item.seq].after for item in dying), default=0)
        if not dying:
            return
        dead = desk.beside(DEAD)
        last = _move(desk, dead, dying, known, uuid)
        dead.sync()
        _core.fail_point("group.moved")
        with desk.guard:
            desk.state()
            desk.ledger.record(d.Buried([item.seq for item in dying], last))


def _move(desk: Desk, dead: Log[Any], dying: list[_Dying], known: int, uuid: str) -> int:
    """Append those that are not there yet; the last letter that was seen."""
    there: set[tuple[int, int]] = set()
    looked = min(known, dead.last_seq)
    while True:
        last = dead.last_seq
        for letter in dead.read(looked + 1, last + 1, on_gap="skip", on_damage="skip"):
            stamp = (letter.header(STAMP) or b"").decode(errors="replace")
            if stamp.startswith(uuid + ":"):
                there.add((_number(letter, SEQ), int(stamp.rpartition(":")[2] or 0)))
        looked = last
        try:
            for item in dying:
                if (item.seq, item.stamp) not in there:
                    last = _append(desk, dead, item, uuid, last)
            return int(last)
        except Conflict:
            continue


def _append(desk: Desk, dead: Log[Any], item: _Dying, uuid: str, last: int) -> int:
    """Append one letter after ``last``; its seq."""
    event = desk.fetch(item.seq, item.letter)
    about = {
        LOG: desk.log.path.encode("utf-8", "surrogateescape"),
        SEQ: b"%d" % item.seq,
        GROUP: desk.name.encode(),
        DELIVERIES: b"%d" % item.deliveries,
        REASON: item.reason.encode(),
        TIME: _iso(item.stamp),
        STAMP: f"{uuid}:{item.stamp}".encode(),
    }
    _core.fail_point("group.letter")
    if event is None:
        logger.warning(
            "%s: the log has the event with seq %s no more; its dead letter has no value",
            desk.path,
            item.seq,
        )
        return int(dead.append(b"", headers=about, expect=last))
    codec = None
    headers: list[tuple[str, Any]] = []
    for name, value in event.headers.items():
        if name == _CODEC:
            codec = value.decode()
        elif not name.startswith("penstock.") and name not in _OWN:
            headers.append((name, value))
    parts: dict[str, Any] = {"key": event.key, "topic": event.topic, "time": event.time_ns}
    parts |= {"expect": last, "codec": codec}
    try:
        whole_headers = [*headers, *about.items()]
        return int(dead.append(event.value, headers=whole_headers, tags=event.tags, **parts))
    except TooLarge:
        logger.warning("%s: the dead letter of seq %s leaves parts out", desk.path, item.seq)
    try:
        return int(dead.append(event.value, headers=about, **parts))
    except TooLarge:
        return int(dead.append(b"", headers=about, expect=last))


def _iso(ns: int) -> bytes:
    """A time in UTC, as ISO 8601."""
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=ns // 1000)
    return moment.isoformat().encode()


def _number(letter: Event[Any], name: str) -> int:
    text = letter.header(name) or b""
    return int(text) if text.isdigit() and len(text) < 20 else 0


def redrive(
    desk: Desk,
    where: Callable[[Event[Any]], object] | None,
    limit: object,
    dry_run: bool,
) -> int:
    """Have dead letters tried again; how many. They are read one after the other."""
    if where is not None and not callable(where):
        raise WrongType(f"where must be a function of a letter, got {type(where).__name__}")
    left = None if limit is None else whole(limit, "limit", 0)
    bury(desk)
    if not desk.has(DEAD):
        return 0
    total, some = 0, list[tuple[int, int, int | None]]()
    for letter in still_dead(desk):
        if left is not None and total + len(some) >= left:
            break
        if where is None or where(letter):
            some.append((letter.seq, _number(letter, SEQ), hash_of(letter.key)))
        if len(some) == AT_ONCE:
            total += _raise(desk, some, dry_run)
            some = []
    return total + _raise(desk, some, dry_run)


def _raise(desk: Desk, some: list[tuple[int, int, int | None]], dry_run: bool) -> int:
    if dry_run or not some:
        return len(some)
    _core.fail_point("group.raise")
    with desk.guard:
        desk.state()
        return int(desk.ledger.record(d.Raised(some)) or 0)


def still_dead(desk: Desk | Glance) -> Iterator[Event[Any]]:
    """The letters of this group that are not tried again."""
    with desk.guard:
        state = desk.state()
        raised, uuid = state.raised, state.uuid.hex().encode()
    dead = desk.beside(DEAD)
    for letter in dead.read(on_gap="skip", on_damage="skip"):
        if letter.seq not in raised and (letter.header(STAMP) or b"").startswith(uuid):
            yield letter
