"""Calls everything public with odd arguments, one at a time, and says what is not as it should be.

``python -m tests.support.oddly KIND DIRECTORY`` prints a JSON list: calls that raised something
that is no error of Penstock's, that took what means nothing, or that did not return. Callables and
their parameters are found by listing the package; what a parameter may be is said once per name.
The kind "spark" calls those of `penstock.spark` (`oddly_spark`), the others all the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import itertools
import json
import logging
import operator
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import penstock
from penstock import metrics
from penstock.consumers.listing import Consumers
from penstock.steward import Steward
from tests.support.odd import ODD

CALL_SECONDS = 20.0  # for a call that should not wait, on a busy machine
WAIT_SECONDS = 0.05  # for one that was told to wait for ever
FOR_EVER = "None", "inf", "2**31", "2**62", "2**63", "2**64", "2**64-1", "2**2000"
OWN = "no index", "no float", "no bytes", "no iterator", "no length", "no path", "broken off"


class Late(BaseException):
    """The call did not return."""


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_utf8(value: Any) -> bool:
    return isinstance(value, str) and all(not 0xD800 <= ord(c) < 0xE000 for c in value[:10])


def _is_flag(value: Any) -> bool:
    return True  # whatever has a truth, as anywhere in Python


def _is_number(value: Any) -> bool:
    return hasattr(type(value), "__index__") and not isinstance(value, bool)


def _is_seq(value: Any) -> bool:
    return _is_number(value) and operator.index(value) >= 0


def _is_timeout(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return value is None or (number and value >= 0)


def _is_bytes(value: Any) -> bool:
    if isinstance(value, memoryview):
        with contextlib.suppress(ValueError):
            return value.c_contiguous and value.ndim > 0
        return False
    return isinstance(value, bytes | bytearray) or (hasattr(value, "dtype") and value.ndim > 0)


def _is_path(value: Any) -> bool:
    return isinstance(value, str | Path) and str(value) != "" and "\0" not in str(value)


def _are_paths(value: Any) -> bool:
    if isinstance(value, str | Path):
        return _is_path(value)
    try:
        return all(_is_path(path) for path in value)
    except (TypeError, ValueError, RuntimeError):
        return False


READS = ("Log.read", "Log.scan", "Log.follow", "Log.afollow", "Log.tail", "Log.consumer", "merge")


def _are_topics(value: Any) -> bool:
    if isinstance(value, str | bytes | bytearray | memoryview):
        return False
    try:
        return all(_is_utf8(topic) for topic in value)
    except (TypeError, ValueError):
        return False


def are_words(value: Any) -> bool:
    if isinstance(value, str | bytes | bytearray | memoryview):
        return False
    try:
        return all(isinstance(word, str) and word for word in value)
    except (TypeError, ValueError):
        return False


def _are_keys(value: Any) -> bool:
    if isinstance(value, str | bytes | bytearray | memoryview):
        return False
    try:
        return all(_is_bytes(key) for key in value)
    except (TypeError, ValueError):
        return False


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**64


def _is_index(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and operator.index(value) < 2**31
    except (TypeError, RuntimeError):
        return False


def _are_spans(value: Any) -> bool:
    if isinstance(value, str | bytes | bytearray | memoryview | dict | set | frozenset):
        return False
    try:
        return all(_is_timeout(span) and span is not None for span in value)
    except (TypeError, ValueError):
        return False


def _are_headers(value: Any) -> bool:
    try:
        pairs = dict(value).items()
    except (TypeError, ValueError):
        return False
    return all(isinstance(k, str) and (v is None or isinstance(v, bytes)) for k, v in pairs)


def _is_time(value: Any) -> bool:
    return _is_number(value) and 0 <= operator.index(value) < 2**63


def _none_or(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


def _one_of(*words: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in words


ENDLESS = ("from_json", "close", "run")  # not called here: the last one never returns
SET_BY_JOBS = ("first_seq", "holes", "archive")  # settings that only maintenance changes
FLAGS = frozenset(
    (
        "durable",
        "check",
        "reverse",
        "create",
        "any_file_system",
        "wait",
        "hold",
        "in_place",
        "follow",
        "default",
        "standby",
        "arrow",
        "openmetrics",
        "dry_run",
    )
)
COUNTS = "keep_bytes", "keep_segments", "max_lag", "max_bytes", "max_unsealed", "max_failures"
# What a parameter of that name may be. A call that returns for anything else accepted it silently.
MAY_BE: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(FLAGS, _is_flag),
    "path": _is_path,
    "to": _none_or(_is_path),
    "target": _is_path,
    "mode": _one_of("r", "rw"),
    "timeout": _is_timeout,
    "spin": lambda v: v is not None and _is_timeout(v),
    "start": _none_or(lambda v: _is_seq(v) or v in ("start", "end")),
    "stop": _none_or(lambda v: _is_seq(v) or v == "end"),
    "seq": _is_seq,
    "logs": _are_paths,
    "source": lambda v: False,  # only a log, or a reader
    "item": lambda v: isinstance(v, slice) or _is_number(v),
    "directory": _is_path,
    "quiet": _is_timeout,
    "limit": _none_or(_is_seq),
    "after": _none_or(_is_seq),
    "expect": _none_or(_is_seq),
    "since": _none_or(_is_time),
    "until": _none_or(_is_time),
    "time": _none_or(_is_time),
    "topic": _none_or(_is_utf8),
    "key": _none_or(_is_bytes),
    "tags": _none_or(are_words),
    "headers": _none_or(_are_headers),
    "columns": _none_or(are_words),
    "batch_rows": lambda v: _is_number(v) and operator.index(v) > 0,
    "count": _is_seq,
    "progress": _none_or(callable),
    "codec": _none_or(_one_of("bytes", "json")),
    "schema": _none_or(lambda v: isinstance(v, type | dict)),
    "producer": _none_or(lambda v: isinstance(v, tuple) and len(v) == 2),
    "on_damage": _one_of("raise", "skip"),
    "on_gap": _one_of("raise", "skip"),
    "on_malformed": _one_of("raise", "null", "skip"),
    "time_unit": _one_of("ns", "us"),
    "sync_seconds": _none_or(lambda v: _is_timeout(v) and v > 0),
    "sync_events": _none_or(lambda v: _is_number(v) and operator.index(v) > 0),
    "ring": _none_or(_is_number),
    "index": _none_or(_is_seq),
    "segment_size": _none_or(_is_number),
    "file_mode": _none_or(_is_number),
    "when_full": _none_or(_one_of("drop", "block", "error")),
    "size": lambda v: _is_number(v) or _is_text(v),
    "values": lambda v: (
        hasattr(v, "__iter__") and not isinstance(v, str | bytes | bytearray | dict)
    ),
    "name": _is_text,
    "encode": callable,
    "decode": callable,
    "auto_commit": _none_or(lambda v: _is_timeout(v) and v != float("inf")),
    "n": lambda v: _is_number(v) and operator.index(v) > 0,
    "position": lambda v: _is_seq(v) or v in ("start", "end"),
    "table": _is_text,
    "out": lambda v: isinstance(v, penstock.Log),
    "connection": lambda v: isinstance(v, sqlite3.Connection),
    "requested_schema": _is_flag,
    "order": _none_or(_one_of("key")),
    "deliveries": lambda v: _is_index(v) and operator.index(v) > 0,
    "backoff": _are_spans,
    "lease": _none_or(lambda v: _is_timeout(v) and v > 0),
    **dict.fromkeys(
        ("max_pending", "dead_per_minute"),
        _none_or(lambda v: _is_index(v) and operator.index(v) > 0),
    ),
    "keys": _none_or(_are_keys),
    "not_before": _none_or(_is_time),
    "ttl": _none_or(lambda v: _is_timeout(v) and v is not None and v > 0),
    **dict.fromkeys(
        ("Log.configure(ttl)", "create(ttl)", "open(ttl)"),  # 0: for ever
        _none_or(_is_timeout),
    ),
    **dict.fromkeys(("keep_seconds", "consumer_ttl"), _none_or(_is_timeout)),
    **dict.fromkeys(COUNTS, _none_or(_is_count)),
    "keep_until_consumed": _none_or(lambda v: isinstance(v, bool) or are_words(v)),
    "prepare_at": _none_or(lambda v: _is_timeout(v) and v is not None and v <= 1),
    "before": lambda v: _is_seq(v) or (_is_text(v) and v.startswith(("now", "-"))),
    "max_maps": _none_or(lambda v: _is_number(v) and operator.index(v) > 0),
    "other": _is_flag,
    "what": _is_seq,
    "versions": lambda v: _is_number(v) and 0 < operator.index(v) < 1 << 16,
    "grace": lambda v: v is not None and _is_timeout(v),
    "keyless": _one_of("keep", "drop"),
    "keep_local": lambda v: _is_number(v) and operator.index(v) >= 0,
    "memory": _is_number,
    "Steward.erase(key)": _is_bytes,
}


def targets(log: Any, place: Path) -> Iterator[tuple[str, Callable[..., Any], dict[str, Any]]]:
    """Every public callable, by name, and what it is given where it must be given something."""
    numbers = itertools.count()
    fresh = [lambda: str(place / f"fresh{next(numbers)}")]
    needed: dict[str, Any] = {
        "path": fresh[0],
        "target": fresh[0],
        "value": lambda: b"1",
        "values": lambda: [b"1"],
        "seq": lambda: 1,
        "time": lambda: 1,
        "directory": fresh[0],
        "item": lambda: 1,
        "source": lambda: log,
        "what": lambda: 1,
        "logs": lambda: log,
        "before": lambda: 1,
        "count": lambda: 1,
        "size": lambda: "64KiB",
        "name": lambda: f"codec-{next(numbers)}",
        "encode": lambda: bytes,
        "decode": lambda: bytes,
        "position": lambda: 1,
        "out": lambda: log,
        "connection": lambda: sqlite3.connect(":memory:"),
        "key": lambda: b"no event has this key",
    }
    hosts: dict[str, Callable[[], Any]] = {
        "Log": lambda: log,
        "Reader": log.read,
        "Scan": log.scan,
        "Merged": lambda: penstock.merge(log),
        "Event": lambda: log[log.last_seq],
        "Steward": lambda: Steward(log),
        "Settings": lambda: log.settings,
        "Consumer": lambda: log.consumer(f"odd-{next(numbers)}"),
        "Consumers": log.consumers,
    }
    others = {"Steward": Steward, "Consumers": Consumers}
    for name in [*penstock.__all__, *others]:
        found = others[name] if name in others else getattr(penstock, name)
        if inspect.isfunction(found):
            yield name, found, needed
        if name not in hosts:
            continue
        for member in [m for m in dir(found) if not m.startswith("_")]:
            if callable(getattr(found, member, None)) and member not in ENDLESS:

                def call(*a: Any, _n: str = name, _m: str = member, **k: Any) -> Any:
                    return getattr(hosts[_n](), _m)(*a, **k)

                signature = inspect.signature(getattr(hosts[name](), member))
                call.__signature__ = signature  # type: ignore[attr-defined]
                yield f"{name}.{member}", call, needed
    for way in ("append", "extend", "load"):
        yield f"Entry to {way}", _entry_to(log, way), needed
    for name in metrics.__all__:
        found = getattr(metrics, name)
        if inspect.isfunction(found) or name == "Collector":
            yield f"metrics.{name}", found, needed
    yield "log[item]", lambda item: log[item], needed
    endings = {"follow", "quiet", "timeout"}
    yield "merge", *merging(log, follow=False, without=endings), needed
    without = {"follow", "until", "reverse"}
    yield "merge(follow=True)", *merging(log, follow=True, without=without), needed
    yield "merge(source)", merge_one, needed
    yield "what in log", lambda what: what in log, needed


def _entry_to(log: Any, way: str) -> Callable[..., Any]:
    """Append an entry, which holds whatever it is made of until then."""

    def call(**parts: Any) -> Any:
        entry = penstock.Entry(**parts)
        return log.append(entry) if way == "append" else getattr(log, way)([entry])

    call.__signature__ = inspect.signature(penstock.Entry)  # type: ignore[attr-defined]
    return call


def merging(log: Any, follow: bool, without: set[str]) -> tuple[Callable[..., Any]]:
    """`penstock.merge` of a log, with the parameters that go together."""

    def call(**given: Any) -> Any:
        return penstock.merge(log, log, follow=follow, **given)

    parameters = inspect.signature(penstock.merge).parameters.values()
    kept = [p for p in parameters if p.name not in {"sources", *without}]
    call.__signature__ = inspect.Signature(kept)  # type: ignore[attr-defined]
    return (call,)


def merge_one(source: Any) -> Any:
    """`penstock.merge` of whatever that is."""
    return penstock.merge(source)


async def in_time(work: Any, seconds: float) -> Any:
    """What a coroutine returns, or `Late`."""
    done, _ = await asyncio.wait([asyncio.ensure_future(work)], timeout=seconds)
    if not done:
        raise Late
    return done.pop().result()


async def some(events: Any) -> None:
    """A few events of an asynchronous reader."""
    events.timeout = 0
    async with events:
        await events.take(3, timeout=0)


def consume(result: Any) -> None:
    """Have lazy results do what they are for, and close what was opened."""
    if isinstance(result, penstock.Merged):
        with result:
            list(itertools.islice(result, 3))
    elif isinstance(result, penstock.AsyncReader):
        asyncio.run(some(result))
    elif isinstance(result, penstock.Log | penstock.Consumer):
        result.close()
    elif isinstance(result, penstock.Reader):
        result.timeout = 0
        with result:
            list(itertools.islice(result, 3))
    elif isinstance(result, penstock.Scan):
        list(itertools.islice(result.to_batches(), 2))
    elif inspect.isgenerator(result):
        list(itertools.islice(result, 2))


def _late(*_: object) -> None:
    raise Late


Targets = Callable[[Any, Path], Iterator[tuple[str, Callable[..., Any], dict[str, Any]]]]


class Trial:
    """One log, everything that is called on it, and what it acknowledged."""

    def __init__(
        self,
        kind: str,
        place: Path,
        targets: Targets = targets,
        may_be: Mapping[str, Callable[[Any], bool]] = MAY_BE,
    ) -> None:
        self.kind = kind
        self.place = place
        self.targets = targets
        self.may_be = may_be
        options: dict[str, Any] = {"ring": {"ring": "1MiB"}, "json": {"codec": "json"}}.get(
            kind, {}
        )
        self.log = penstock.create(place / f"log.{kind}", **options)
        self.log.extend([b"1", b"2", b"3"])
        self.acknowledged = 3
        self.expiring = 0  # of those: events with a time to live
        self.settings = self.log.settings
        self.wrong: list[str] = []

    def call(
        self, name: str, function: Callable[..., Any], odd: str, given: dict[str, Any]
    ) -> None:
        """Call it with one odd argument, and note if it goes wrong."""
        parameter, value = next(iter(given.items()))
        what = f"{self.kind}: {name}({parameter}={odd})"
        endless = parameter == "timeout" and odd in FOR_EVER
        before = self.log.last_seq
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, WAIT_SECONDS if endless else CALL_SECONDS)
                bound = inspect.signature(function)
                args, kwargs = [], {}
                for p in bound.parameters.values():
                    if p.name in given:
                        if p.kind is p.POSITIONAL_ONLY:
                            args.append(given[p.name])
                        else:
                            kwargs[p.name] = given[p.name]
                result = function(*args, **kwargs)
                if inspect.iscoroutine(result):
                    signal.setitimer(signal.ITIMER_REAL, 0)  # asyncio would swallow what it raises
                    result = asyncio.run(in_time(result, WAIT_SECONDS if endless else CALL_SECONDS))
                consume(result)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except penstock.Internal as error:
            self.wrong.append(f"{what}: {error!r}")
        except penstock.PenstockError:
            pass
        except Late:
            if not endless:
                self.wrong.append(f"{what}: did not return")
        except RuntimeError as error:
            if str(error) not in OWN:
                self.wrong.append(f"{what}: {error!r}")
        except BaseException as error:
            own = parameter in FLAGS and isinstance(error, ValueError)  # it has no truth
            own |= parameter == "progress" and callable(value)  # what it raises is the caller's
            if not own:
                self.wrong.append(f"{what}: {type(error).__name__}: {str(error)[:200]}")
        else:
            if not self._is_right(name, parameter, value):
                self.wrong.append(f"{what}: accepted, gave {str(result)[:80]}")
            if isinstance(result, range) and result.stop > before + 1:  # else a producer repeats
                self.acknowledged += len(result)
            elif name in ("Log.append", "Log.aappend", "Entry to append") and result > before:
                self.acknowledged += 1
            if name == "Steward.trim":
                self.expiring = self.acknowledged  # all may be gone
            elif name in ("Steward.compact", "Steward.erase"):
                self.expiring += result.dead if name == "Steward.compact" else result.events
            if parameter == "ttl":
                self.expiring += self.log.last_seq - before
            self._restore_settings()
        if self.log.last_seq != max(self.acknowledged, before):
            self.wrong.append(f"{what}: last_seq {self.log.last_seq}, {self.acknowledged} told")
            self.acknowledged = self.log.last_seq

    def _restore_settings(self) -> None:
        """Undo what a call has configured, so that no event goes."""
        now = self.log.settings
        names = [f.name for f in dataclasses.fields(now) if f.name not in SET_BY_JOBS]
        old = {n: getattr(self.settings, n) for n in names}
        changed = {n: value for n, value in old.items() if value != getattr(now, n)}
        if changed:
            self.log.configure(**changed)

    def _is_right(self, name: str, parameter: str, value: Any) -> bool:
        if parameter == "value" and (
            name in ("Log.append", "Log.aappend") or name.startswith("Entry to")
        ):
            return self.kind == "json" or _is_bytes(value)
        if name == "Consumer.commit" and value is None:
            return True  # everything that was handed out
        if parameter in ("key", "value", "topic", "headers") and name in ("Log.extend", "Log.load"):
            return value is None or MAY_BE["key" if parameter == "value" else parameter](value)
        if parameter == "topic" and name.startswith(READS) and value is not None:
            return _is_utf8(value) or (_are_topics(value) and len(list(value)) > 0)
        may_be = self.may_be.get(f"{name}({parameter})", self.may_be.get(parameter))
        return may_be is not None and bool(may_be(value))

    def run(self) -> None:
        """Call everything."""
        for name, function, needed in self.targets(self.log, self.place):
            signature = inspect.signature(function)
            for p in signature.parameters.values():
                if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                    continue
                for odd, make in ODD.items():
                    if odd == "2**31" and p.name in ("ring", "size"):
                        continue  # two gigabytes of disk, and right
                    given = {p.name: make()}
                    for other in signature.parameters.values():
                        many = other.kind in (other.VAR_POSITIONAL, other.VAR_KEYWORD)
                        if other.default is other.empty and other.name not in given and not many:
                            given[other.name] = needed[other.name]()
                    if "timeout" in signature.parameters and p.name != "timeout":
                        given["timeout"] = 0.05
                    self.call(name, function, odd, given)
            self.check(name)

    def run_closed(self) -> None:
        """Call everything that belongs to a log once more when it is closed."""
        reader, odd = self.log.read(), list(ODD.items())
        needed = next(n for *_, n in targets(self.log, self.place))
        self.log.close()
        reader.close()
        for host in (self.log, reader, Steward(self.log)):
            for member in [m for m in dir(host) if not m.startswith("_") and m not in ENDLESS]:
                function = getattr(type(host), member, None)
                if not callable(function):
                    continue
                names = [p.name for p in inspect.signature(function).parameters.values()][1:]
                for n, name in enumerate([*names, None]):
                    self.call_closed(host, member, name, odd[n::7], needed)

    def call_closed(
        self,
        host: Any,
        member: str,
        name: str | None,
        odd: list[tuple[str, Callable[[], Any]]],
        needed: dict[str, Callable[[], Any]],
    ) -> None:
        """Call a method of what is closed with several odd values of one parameter, or bare."""
        signature = inspect.signature(getattr(host, member))
        for said, make in odd:
            given = {
                p.name: make() if p.name == name else needed[p.name]()
                for p in signature.parameters.values()
                if p.name == name or (p.default is p.empty and p.name in needed)
            }
            what = f"{self.kind}: closed {type(host).__name__}.{member}({name}={said})"
            try:
                bound = signature.bind(**given)
                signal.setitimer(signal.ITIMER_REAL, CALL_SECONDS)
                result = getattr(host, member)(*bound.args, **bound.kwargs)
                if inspect.iscoroutine(result):
                    asyncio.run(result)
            except penstock.Internal as error:
                self.wrong.append(f"{what}: {error!r}")
            except (penstock.PenstockError, TypeError, ValueError, RuntimeError) as error:
                own = isinstance(error, penstock.PenstockError) or str(error) in OWN
                if not own and not (name in FLAGS and isinstance(error, ValueError)):
                    self.wrong.append(f"{what}: {error!r}")
            except Late:
                self.wrong.append(f"{what}: did not return")
            else:
                self.wrong.append(f"{what}: returned")
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)

    def check(self, name: str) -> None:
        """After all calls of one function: the log is whole, and has what it acknowledged."""
        if not self.log.verify().ok:
            self.wrong.append(f"{self.kind}: after {name}: verify finds damage")
        missing = self.acknowledged - len(list(self.log.read()))
        if self.kind != "ring" and not 0 <= missing <= self.expiring:
            self.wrong.append(f"{self.kind}: after {name}: the events are not what was told")


def main() -> None:
    """Try one kind of log."""
    kind, place = sys.argv[1], Path(sys.argv[2])
    elsewhere = place / "here"  # metrics of "." are those of all logs there
    elsewhere.mkdir()
    os.chdir(elsewhere)
    logging.disable()
    signal.signal(signal.SIGALRM, _late)
    if kind == "spark":
        from tests.support import oddly_spark

        trial = Trial(kind, place, oddly_spark.targets, oddly_spark.MAY_BE)
        trial.run()
    else:
        trial = Trial(kind, place)
        trial.run()
        trial.run_closed()
    print(json.dumps(trial.wrong))


if __name__ == "__main__":
    main()
