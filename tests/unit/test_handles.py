"""Handles: closed ones, read-only ones, several on one log."""

from __future__ import annotations

import asyncio
import gc
import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import _core
from penstock.handle import handle
from tests.unit import oracle

USES: dict[str, Callable[[penstock.Log], Any]] = {
    "append": lambda log: log.append(b"x"),
    "append long": lambda log: log.append(b"x" * 40000),
    "extend": lambda log: log.extend([b"x"]),
    "extend nothing": lambda log: log.extend([]),
    "getitem": lambda log: log[1],
    "iter": list,
    "reversed": lambda log: list(reversed(log)),
    "read": lambda log: log.read(),
    "scan": lambda log: log.scan(),
    "scan run": lambda log: list(log.scan().to_batches()),
    "follow": lambda log: log.follow(),
    "follow start": lambda log: log.follow("start"),
    "follow seq": lambda log: list(log.follow(1, timeout=0)),
    "wait": lambda log: log.wait(0),
    "wait after": lambda log: log.wait(0, after=0),
    "len": len,
    "first_seq": lambda log: log.first_seq,
    "last_seq": lambda log: log.last_seq,
    "topics": penstock.Log.topics,
    "settings": lambda log: log.settings,
    "configure": lambda log: log.configure(file_mode=0o660),
    "roll": lambda log: log.steward.roll(),
    "stats": lambda log: log.stats(),
    "backup": lambda log: log.backup(f"{log.path}-copy"),
    "verify": lambda log: log.verify(),
    "repair": lambda log: log.repair(),
    "resize": lambda log: log.resize("64KiB"),
    "append durable": lambda log: log.append(b"x", durable=True),
    "append of a producer": lambda log: log.append(b"x", producer=("p", 1)),
    "load": lambda log: log.load([b"x"] * 10),
    "sync": lambda log: log.sync(),
    "sync soon": lambda log: log.sync(wait=False),
    "wait_durable": lambda log: log.wait_durable(1),
    "durable_seq": lambda log: log.durable_seq,
    "read durable": lambda log: list(log.read(durable=True)),
    "follow durable": lambda log: list(log.follow("start", durable=True, timeout=0)),
    "tail": lambda log: log.tail(1),
    "latest": lambda log: log.latest(b"k"),
    "latest of all": lambda log: log.latest(),
    "seq_at": lambda log: log.seq_at("2026-01-01"),
    "codec": lambda log: log.codec,
    "uuid": lambda log: log.uuid,
    "consumer": lambda log: log.consumer("c").close(),
    "consumers": lambda log: list(log.consumers()),
    "group": lambda log: log.group("g").close(),
    "groups": lambda log: list(log.groups()),
    "result": lambda log: log.result(1),
    "afollow": lambda log: log.afollow("start", timeout=0),
    "aappend": lambda log: asyncio.run(log.aappend(b"x")),
    "await_event": lambda log: asyncio.run(log.await_event(0, after=0)),
    "await_durable": lambda log: asyncio.run(log.await_durable(1)),
}
MAKES = ("backup", "consumer", "group", "result")  # files beside those of the log, or needs them
KINDS: dict[str, dict[str, Any]] = {"segments": {}, "ring": {"ring": "128KiB"}}
WRITES = [
    *("append", "append long", "extend", "configure", "roll", "append durable", "resize"),
    *("append of a producer", "load", "sync", "sync soon", "wait_durable"),
    *("aappend", "await_durable"),
]


@pytest.mark.parametrize("mode", ["rw", "r"])
@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_closed_log_says_so(path: Path, kind: str, name: str, mode: Any) -> None:
    """Every use of a closed handle is Closed, and names the path."""
    with penstock.open(path, **KINDS[kind]) as log:
        log.append(b"a")
    log = penstock.open(path, mode=mode)
    log.close()
    log.close()
    assert log.closed
    with pytest.raises(penstock.Closed, match=str(path)):
        USES[name](log)
    assert len(penstock.open(path, mode="r")) == 1


def test_every_method_is_among_the_uses() -> None:
    """No public method or property of Log is left out of the list above."""
    public = {n for n in dir(penstock.Log) if not n.startswith("_")}
    exempt = {"close", "closed", "steward", "path", "kind", "mode"}
    tried = " ".join(USES)
    assert {n for n in public - exempt if n not in tried} == set()


def test_a_reader_of_a_closed_log(log: penstock.Log) -> None:
    """A reader that outlives its log says that the log is closed, whatever it is asked for."""
    log.extend([b"a", b"b"])
    reader, follower = log.read(), log.follow("start")
    next(reader)
    log.close()
    for use in (lambda: next(reader), lambda: reader.take(1), lambda: follower.wait(0)):
        with pytest.raises(penstock.Closed):
            use()
    assert repr(reader)


def test_events_outlive_their_log(path: Path) -> None:
    """Events, and views of them, are whole after the log is closed and its files are gone."""
    with penstock.open(path, segment_size="64KiB") as log:
        log.append(b"v" * 1000, key=b"k", topic="t", headers={"a": b"1"})
        event = log[1]
        view = event.view
    for name in oracle.segment_paths(path):
        name.unlink()
    del log
    gc.collect()
    assert bytes(view) == event.value == b"v" * 1000
    assert (event.key, event.topic, event.headers) == (b"k", "t", (("a", b"1"),))
    del event
    gc.collect()
    assert bytes(view) == b"v" * 1000


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_read_only_log_refuses_writes(path: Path, kind: str, name: str, live: bool) -> None:
    """A handle with mode='r' refuses every write as Permission, with and without live control."""
    with penstock.open(path, **KINDS[kind]) as log:
        log.append(b"a")
    if not live and kind == "segments":
        path.joinpath("control").unlink()
    writer = penstock.open(path) if live else None
    with penstock.open(path, mode="r") as log:
        assert log.stats().live is live
        with pytest.raises(penstock.Permission, match="mode='r'"):
            USES[name](log)
        assert [e.value for e in log] == [b"a"]
    if writer is not None:
        writer.close()


@pytest.mark.parametrize("live", [True, False])
def test_a_read_only_log_changes_no_file(path: Path, live: bool) -> None:
    """Reading through mode='r' leaves every name and every byte but control's as it was."""
    with penstock.open(path, segment_size="64KiB") as log:
        for i in range(200):
            log.append(b"x" * 1000, time=i)
    if not live:
        path.joinpath("control").unlink()

    def state() -> dict[str, bytes]:
        return {p.name: b"" if p.name == "control" else p.read_bytes() for p in path.iterdir()}

    before = state()
    with penstock.open(path, mode="r") as log:
        for name, use in USES.items():
            if name not in (*WRITES, *MAKES):
                use(log)
        assert len(list(log.read(since=10, until=100))) == 90
    assert state() == before


def test_a_read_only_ring_changes_no_byte(path: Path) -> None:
    """Reading a ring through mode='r' leaves every byte of it as it was, control's included."""
    with penstock.create(path, ring="64KiB") as log:
        for i in range(200):
            log.append(b"x" * 1000, time=i)
    before = path.read_bytes()
    with penstock.open(path, mode="r") as log:
        for name, use in USES.items():
            if name not in (*WRITES, *MAKES):
                with suppress(penstock.NotFound, penstock.Gap):  # seq 1 is not there any more
                    use(log)
        assert len(list(log.read(since=170, until=190))) == 20
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


SMALL: dict[str, dict[str, Any]] = {
    "segments": {"segment_size": "64KiB"},
    "ring": {"ring": "64KiB"},
}


@pytest.mark.parametrize("kind", SMALL)
def test_a_read_only_log_sees_appends(path: Path, kind: str) -> None:
    """With a writer there, a reading handle sees each append at once, across rolls and laps."""
    with penstock.open(path, **SMALL[kind]) as log, penstock.open(path, mode="r") as reading:
        for i in range(1, 150):
            log.append(b"x" * 1000)
            assert reading.last_seq == i
            assert reading[i].value == b"x" * 1000
        assert len(list(reading)) == len(log)


@pytest.mark.parametrize("kind", SMALL)
def test_two_writers_in_one_process(path: Path, kind: str) -> None:
    """Two handles on one log give out seqs in turn and see each other's events."""
    with penstock.open(path, **SMALL[kind]) as one, penstock.open(path) as two:
        for i in range(100):
            assert one.append(b"x" * 1000) == 2 * i + 1
            assert two.append(b"y" * 1000) == 2 * i + 2
        seqs = list(range(one.first_seq, 201))
        assert [e.seq for e in one] == [e.seq for e in two] == seqs
    if kind == "segments":
        assert sum(len(s.events) for s in oracle.read_log(path)) == 200


@pytest.mark.parametrize("kind", SMALL)
def test_a_handle_left_behind_closes_itself(path: Path, kind: str) -> None:
    """A log that nobody refers to any more gives its descriptors back."""

    def open_descriptors() -> set[str]:
        found = set()
        for name in os.listdir("/proc/self/fd"):
            try:
                found.add(os.readlink(f"/proc/self/fd/{name}"))
            except FileNotFoundError:
                continue
        return {f for f in found if f.startswith(str(path))}

    log = penstock.open(path, **SMALL[kind])
    for _ in range(100):
        log.append(b"x" * 1000)
    assert open_descriptors()
    del log
    gc.collect()
    assert open_descriptors() == set()


@pytest.mark.parametrize("mode", ["rw", "r"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_forgotten_log_is_released_at_once(path: Path, kind: str, mode: Any) -> None:
    """No storage refers to its log, nor does anything else: the last reference releases both."""
    with penstock.create(path, **KINDS[kind]) as log:
        log.append(b"a", topic="t", producer=("p", 1))
    gc.collect()
    gc.disable()
    try:
        log = penstock.open(path, mode=mode)
        if mode == "rw":
            log.append(b"b", producer=("p", 2), durable=True)
            log.configure(file_mode=0o640)
        assert [e.value for e in log.read(since=0)][:1] == [b"a"]
        assert log.topics() and log.stats() and log.scan().to_arrow().num_rows
        held = weakref.ref(log), weakref.ref(log._storage)
        fds = len(os.listdir("/proc/self/fd"))
        del log
        assert [ref() for ref in held] == [None, None]
        assert len(os.listdir("/proc/self/fd")) < fds
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", KINDS)
def test_the_callbacks_of_a_log(path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is given, by its name, once; and none is bound to the log, which refers to them."""
    given: dict[str, Any] = {}
    make: Any = _core.Calls
    monkeypatch.setattr(handle, "Calls", lambda **calls: given.update(calls) or make(**calls))
    log = penstock.open(path, **KINDS[kind])
    owners = {getattr(call, "__self__", None) for call in given.values()}
    assert owners == {None, log._storage}
    for name in given:
        with pytest.raises(TypeError, match=name):
            make(**{other: given[other] for other in given if other != name})
    with pytest.raises(TypeError, match="make_redy"):
        make(**given, make_redy=given["make_ready"])
    with pytest.raises(penstock.Internal, match="has its callbacks already"):
        log._connect(make(**given), log._storage.finder)


def test_a_log_is_one_class(path: Path) -> None:
    """Whatever its files, a log is a Log, which nothing subclasses, with few classes above it."""
    with (
        penstock.open(path) as log,
        penstock.open(path.with_suffix(".ring"), ring="64KiB") as ring,
    ):
        assert type(log) is type(ring) is penstock.Log
    assert not penstock.Log.__subclasses__()
    mine = [c for c in penstock.Log.__mro__ if c.__module__.startswith("penstock")]
    assert [c.__name__ for c in mine] == ["Log", "Handle", "LogCore", "HandleCore"]


def test_repr_tells_path_and_state(path: Path) -> None:
    """repr() names the path and says whether the handle writes, reads or is closed."""
    with penstock.open(path) as log:
        assert repr(log) == f"<penstock.Log {str(path)!r} rw>"
        with penstock.open(path, mode="r") as reading:
            assert repr(reading).endswith(" r>")
    assert repr(log).endswith(" closed>")


def test_an_empty_log_is_true(log: penstock.Log) -> None:
    """`if log:` asks whether there is a log, not whether it has events."""
    assert log
    assert len(log) == 0
