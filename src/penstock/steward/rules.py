"""Which segments the rules of a log delete, and whom they wait for. Pure: it reads no file.

A segment goes if one of ``keep_seconds``, ``keep_bytes`` and ``keep_segments`` says so and nobody
holds it back. With ``keep_until_consumed`` alone it goes when everybody has committed it. Only the
oldest go, so that each rule is a number of segments.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock.settings import Settings
from penstock.steward.holders import Holder
from penstock.steward.plan import Judged, moment, moment_text, size_text


@dataclass(frozen=True, slots=True)
class Finished:
    """The segments of a log, oldest first; the last one takes appends.

    ``ends`` are the seqs after each finished one. ``nbytes`` and ``newest_ns`` are looked up when a
    rule needs them: what a segment takes on disk, and when its last event was appended, which never
    falls from one to the next.
    """

    bases: Sequence[int]
    next_seq: int
    tip_bytes: int  # of frames in the last one
    nbytes: Callable[[int], int]
    newest_ns: Callable[[int], int]

    @property
    def count(self) -> int:
        """The number of those that may go."""
        return len(self.bases) - 1

    def end(self, index: int) -> int:
        """The seq after a segment."""
        return self.bases[index + 1] if index < self.count else self.next_seq

    def below(self, seq: int) -> int:
        """How many finished segments have only events below ``seq``."""
        return min(self.count, max(0, bisect_right(self.bases, seq) - 1))


@dataclass(frozen=True, slots=True)
class Cut:
    """How many of the oldest segments go, by each rule and in all."""

    by_rule: dict[str, int]
    waits: bool  # whether holders hold segments back
    held_at: int  # from this index on they do
    held_by: tuple[Holder, ...]  # those who do, or would
    missing: tuple[str, ...]  # names in keep_until_consumed that nobody has
    count: int  # that go
    holders: tuple[Holder, ...] = field(default=())  # all of them


def has_rules(settings: Settings) -> bool:
    """Whether anything is ever deleted."""
    return bool(
        settings.keep_seconds
        or settings.keep_bytes
        or settings.keep_segments
        or settings.keep_until_consumed
    )


def decide(
    found: Finished, settings: Settings, holders: Callable[[], list[Holder]], now_ns: int
) -> Cut:
    """What goes now. ``holders`` is asked only if it matters."""
    by_rule: dict[str, int] = {}
    if settings.keep_seconds:
        by_rule["keep_seconds"] = _by_age(found, now_ns - int(settings.keep_seconds * 1e9))
    if settings.keep_bytes:
        by_rule["keep_bytes"] = _by_bytes(found, settings.keep_bytes)
    if settings.keep_segments:
        by_rule["keep_segments"] = min(
            found.count, max(0, len(found.bases) - settings.keep_segments)
        )
    wanted = max(by_rule.values(), default=0)
    if not settings.keep_until_consumed:
        known = tuple(holders()) if wanted else ()
        return Cut(by_rule, False, found.count, (), (), wanted, known)
    known = tuple(holders())
    named = settings.keep_until_consumed
    names = () if isinstance(named, bool) else named
    asked = tuple(one for one in known if one.name in names) if names else known
    missing = tuple(name for name in names if name not in {one.name for one in known})
    held_at, held_by = _held(found, settings, asked, missing, now_ns)
    if not by_rule:
        by_rule["keep_until_consumed"] = wanted = held_at if asked or missing else 0
    return Cut(by_rule, True, held_at, held_by, missing, min(wanted, held_at), known)


def _by_age(found: Finished, before_ns: int) -> int:
    low, high = 0, found.count
    while low < high:
        middle = (low + high) // 2
        if found.newest_ns(middle) < before_ns:
            low = middle + 1
        else:
            high = middle
    return low


def _by_bytes(found: Finished, most: int) -> int:
    total = sum(map(found.nbytes, range(len(found.bases))))
    for index in range(found.count):
        if total <= most:
            return index
        total -= found.nbytes(index)
    return found.count


def _held(
    found: Finished,
    settings: Settings,
    asked: tuple[Holder, ...],
    missing: tuple[str, ...],
    now_ns: int,
) -> tuple[int, tuple[Holder, ...]]:
    """From which segment on somebody holds them back, and who does."""
    counting = tuple(one for one in asked if not _is_given_up(one, settings, now_ns))
    held_at = min((found.below(one.seq) for one in counting), default=found.count)
    if missing:
        held_at = 0
    if settings.max_lag and held_at < found.count:
        held_at = max(held_at, _beyond(found, settings.max_lag))
    return held_at, counting


def _is_given_up(one: Holder, settings: Settings, now_ns: int) -> bool:
    """Whether nobody waits for it any more."""
    ttl_ns = int(settings.consumer_ttl * 1e9)
    return bool(ttl_ns and not one.live and one.seen_ns and now_ns - one.seen_ns > ttl_ns)


def _beyond(found: Finished, lag: int) -> int:
    """How many segments end more than ``lag`` bytes before the end of the log."""
    after = found.tip_bytes
    index = found.count
    while index > 0:
        if after >= lag:
            return index
        index -= 1
        after += found.nbytes(index)
    return 0


def judge(found: Finished, settings: Settings, cut: Cut, index: int, *, dated: bool) -> Judged:
    """What is said about one segment; if it is not ``dated``, without times, which cost a look."""
    end = found.end(index)
    newest = found.newest_ns(index) if dated else 0
    behind = tuple(one for one in cut.holders if one.seq < end)
    held_by = tuple(one for one in cut.held_by if one.seq < end) if cut.waits else ()
    names = (*(one.name for one in held_by), *(cut.missing if cut.waits else ()))
    rule = _rule_of(cut, index)
    goes_at = None
    verdict, why = "keep", "no rule is set: it stays for ever"
    if index >= found.count:
        verdict, why = "active", "takes the appends; only finished segments go"
    elif index < cut.count:
        verdict, why = "delete", _why_now(settings, rule)
        if behind:
            why += f"; not committed by {', '.join(map(str, behind))}"
    elif cut.waits and index >= cut.held_at and (rule is not None or not _others(cut)):
        verdict, why = "held", _whom(cut, held_by, settings)
    elif settings.keep_seconds:
        rule = rule or "keep_seconds"
        goes_at = moment(newest + int(settings.keep_seconds * 1e9)) if newest else None
        until = f"until {moment_text(goes_at)}" if goes_at else f"for {settings.keep_seconds:g} s"
        why = f"keep_seconds: {until}" + _or_sooner(settings)
    elif has_rules(settings):
        rule = rule or ("keep_bytes" if settings.keep_bytes else None)
        why = _why_later(settings)
    deletes = verdict == "delete"
    return Judged(
        first_seq=found.bases[index],
        last_seq=end - 1,
        bytes=found.nbytes(index),
        newest=moment(newest),
        verdict=verdict,  # type: ignore[arg-type]
        rule=rule if verdict != "active" else None,
        held_by=names if verdict == "held" else (),
        overtakes=tuple(one.name for one in behind) if deletes else (),
        goes_at=goes_at,
        why=why,
    )


def _others(cut: Cut) -> bool:
    """Whether there is a rule besides keep_until_consumed."""
    return any(name != "keep_until_consumed" for name in cut.by_rule)


def _rule_of(cut: Cut, index: int) -> str | None:
    return next((name for name, count in cut.by_rule.items() if index < count), None)


def _why_now(settings: Settings, rule: str | None) -> str:
    if rule == "keep_seconds":
        return f"keep_seconds: older than {settings.keep_seconds:g} s"
    if rule == "keep_bytes":
        return f"keep_bytes: the log takes more than {size_text(settings.keep_bytes)}"
    if rule == "keep_segments":
        return f"keep_segments: more than {settings.keep_segments} segments"
    return "keep_until_consumed: nobody who counts needs it any more"


def _why_later(settings: Settings) -> str:
    if settings.keep_bytes:
        return f"keep_bytes: once the log takes more than {size_text(settings.keep_bytes)}"
    if settings.keep_segments:
        return f"keep_segments: once there are more than {settings.keep_segments}"
    return "keep_until_consumed: the log has no consumer and no group yet"


def _or_sooner(settings: Settings) -> str:
    sooner = [name for name in ("keep_bytes", "keep_segments") if getattr(settings, name)]
    return f", or sooner by {' or '.join(sooner)}" if sooner else ""


def _whom(cut: Cut, held_by: tuple[Holder, ...], settings: Settings) -> str:
    """Who holds a segment back, and until when."""
    parts = []
    for one in held_by:
        text = f"{one} has committed only what is before seq {one.seq}"
        if one.problem is not None:
            text = f"{one} cannot be read ({one.problem})"
        elif not one.live and one.seen_ns and settings.consumer_ttl:
            until = moment(one.seen_ns + int(settings.consumer_ttl * 1e9))
            text += f", and counts until {moment_text(until)}"
        parts.append(text)
    parts += [f"{name!r} does not exist, so has committed nothing" for name in cut.missing]
    if not parts:
        return "keep_until_consumed: the log has no consumer and no group yet"
    return "keep_until_consumed: " + "; ".join(parts)
