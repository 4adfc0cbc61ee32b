"""A thread never waits for itself, and nothing is logged under a lock.

A signal handler, a logging handler or a finaliser runs in the middle of something else. Whatever it
does with the log that its own thread is busy with, it returns or raises at once, and all others go
on.
"""

from __future__ import annotations

import gc
import importlib.machinery
import logging
import os
import signal
import sys
import threading
import types
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import _core
from penstock.system import files
from tests.support import alone

Handler = Callable[..., None]


def signal_amid(patch: pytest.MonkeyPatch, owner: Any, name: str, handler: Handler) -> None:
    """Have the next call of ``owner.name`` interrupted by a signal that runs ``handler``."""
    real = getattr(owner, name)
    waiting = [True]

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        if waiting and threading.current_thread() is threading.main_thread():
            waiting.clear()
            signal.raise_signal(signal.SIGUSR1)
        return real(*args, **kwargs)

    signal.signal(signal.SIGUSR1, lambda *_: handler())
    patch.setattr(owner, name, interrupted)


def check_goes_on(path: Path, tmp_path: Path) -> None:
    """Another process can append."""

    def other() -> None:
        with penstock.open(path) as log:
            seq = log.append(b"other")
            assert log[seq].value == b"other"

    alone.run(other, tmp_path)


@pytest.mark.parametrize("through", ["the same handle", "another handle"])
def test_an_append_in_a_signal_handler_amid_a_roll(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, through: str
) -> None:
    """An append by the thread that is rolling the log is refused at once, and the roll goes on."""

    def work() -> None:
        with penstock.open(path, segment_size="64KiB") as log, penstock.open(path) as second:
            log.append(b"1")
            second.append(b"2")
            seen = []

            def handler() -> None:
                with pytest.raises(penstock.Usage, match="already holds the write lock"):
                    (log if through == "the same handle" else second).append(b"never")
                with pytest.raises(penstock.Usage, match="already holds the write lock"):
                    log.configure(segment_size="128KiB")
                with pytest.raises(penstock.Usage, match="already holds the write lock"):
                    second.steward.roll()
                with pytest.raises(penstock.Usage, match="already holds the write lock"):
                    second.sync()
                assert [e.value for e in log] == [b"1", b"2"]  # reading needs no lock
                seen.append(True)
                check_waits(path, tmp_path)

            signal_amid(monkeypatch, files, "rename", handler)
            assert log.steward.roll() == 3
            assert seen == [True]
            assert log.append(b"3") == 3 and second.append(b"4") == 4

    def check_waits(path: Path, tmp_path: Path) -> None:
        def other() -> None:
            with penstock.open(path) as log, pytest.raises(penstock.Busy):
                log.append(b"x", timeout=0.05)  # the lock is still held: nobody was let in

        alone.run(other, tmp_path)

    alone.run(work, tmp_path)
    check_goes_on(path, tmp_path)
    assert penstock.verify(path).ok


@pytest.mark.parametrize("kind", ["log", "ring"])
def test_a_sync_in_a_signal_handler_amid_a_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A sync by the thread that is syncing is refused at once; a plain append is taken."""
    path = tmp_path / "x"

    def work() -> None:
        size: dict[str, Any] = {"ring": "64KiB"} if kind == "ring" else {}
        with penstock.open(path, **size) as log, penstock.open(path) as second:
            log.append(b"1")
            seen = []

            def handler() -> None:
                seen.append(log.append(b"2"))
                for one in (log, second):
                    with pytest.raises(penstock.Usage, match="already syncs"):
                        one.sync()

            signal_amid(monkeypatch, files, "sync_data", handler)
            assert log.sync() == 1
            assert seen == [2]
            assert second.sync() == 2 == log.durable_seq

    alone.run(work, tmp_path)
    check_goes_on(path, tmp_path)


@pytest.mark.parametrize("kind", ["log", "ring"])
def test_an_open_in_a_signal_handler_amid_an_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Opening a log that this very thread is bringing in order is refused, not waited for."""
    path = tmp_path / "x"
    size: dict[str, Any] = {"ring": "64KiB"} if kind == "ring" else {}
    with penstock.open(path, **size) as log:
        log.append(b"1")

    def work() -> None:
        seen = []

        def handler() -> None:
            for mode in ("rw", "r"):
                with pytest.raises(penstock.Usage, match="is opening, closing or repairing"):
                    penstock.open(path, mode=mode, timeout=None)
            seen.append(True)

        signal_amid(monkeypatch, files, "write_at", handler)
        with penstock.open(path) as log:
            assert seen == [True]
            assert log.append(b"2") == 2

    alone.run(work, tmp_path)
    check_goes_on(path, tmp_path)


@pytest.mark.parametrize(("job", "name"), [("keeper", "ask"), ("syncer", "ask")])
def test_an_append_in_a_signal_handler_amid_asking_for_background_work(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str, name: str
) -> None:
    """An append that interrupts an append's request for a sync, or for blocks, is taken."""
    from penstock.steward import keeper, syncer

    def work() -> None:
        with penstock.open(path, segment_size="1MiB", sync_events=1) as log:
            log.append(b"1")
            log.sync()
            owner = keeper.Keeper if job == "keeper" else syncer.Syncer
            seen: list[int] = []
            signal_amid(monkeypatch, owner, name, lambda: seen.append(log.append(b"x" * 200_000)))
            while not seen:
                log.append(b"y" * 50_000)
            log.wait_durable(log.last_seq, timeout=alone.PATIENCE)
            assert log[seen[0]].value == b"x" * 200_000

    alone.run(work, tmp_path)
    check_goes_on(path, tmp_path)


@pytest.mark.parametrize("kind", ["log", "ring"])
def test_signals_amid_everything(tmp_path: Path, kind: str) -> None:
    """A timer's handler appends during thousands of appends, rolls and syncs; all is there."""
    path = tmp_path / "x"
    size: dict[str, Any] = {"ring": "16MiB"} if kind == "ring" else {"segment_size": "64KiB"}
    penstock.create(path, **size).close()
    acknowledged = tmp_path / "acknowledged"

    def work() -> None:
        with penstock.open(path, sync_events=50) as log, penstock.open(path) as second:
            acks: dict[int, bytes] = {}
            refused = 0

            def handler(*_: object) -> None:
                nonlocal refused
                one = second if len(acks) % 2 else log
                value = b"signal-%d" % len(acks)
                try:
                    acks[one.append(value)] = value
                except penstock.Usage:
                    refused += 1
                finally:  # not a timer that repeats: on a slow machine, that interrupts the handler
                    signal.setitimer(signal.ITIMER_REAL, 0.0003 if going else 0)

            going = [True]
            signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, 0.0003)
            for i in range(1500):
                value = b"main-%d-" % i + b"x" * 1500
                acks[log.append(value)] = value
                if kind == "log" and i % 40 == 0:
                    second.steward.roll()
                if i % 100 == 0:
                    log.sync()
            going.clear()
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert any(v.startswith(b"signal") for v in acks.values())
            lines = [b"%d %s\n" % (seq, value[:40]) for seq, value in acks.items()]
            acknowledged.write_bytes(b"".join(lines))

    def beside() -> None:
        with penstock.open(path) as log:
            for _ in range(500):
                log.append(b"beside", timeout=alone.PATIENCE)

    errors = tmp_path / "beside-errors"
    other = alone.start(beside, errors)
    alone.run(work, tmp_path)
    alone.finish(other, errors)
    with penstock.open(path, mode="r") as log:
        for line in acknowledged.read_bytes().splitlines():
            seq, value = line.split(b" ", 1)
            found = log[int(seq)].value
            assert found is not None and found[:40] == value
        assert sum(e.value == b"beside" for e in log) == 500
    assert penstock.verify(path).ok


def test_long_appends_are_not_broken_by_signals(path: Path, tmp_path: Path) -> None:
    """A handler that appends while its thread writes a long batch comes before it or after it."""

    def work() -> None:
        with penstock.open(path, segment_size="64MiB") as log:
            inner: list[int] = []

            def handler(*_: object) -> None:
                with suppress(penstock.Usage):  # the segment was just being allocated further
                    inner.append(log.append(b"signal"))

            signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
            batches = [log.extend([b"b" * 4000] * 400) for _ in range(20)]
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert inner
            for seqs in batches:
                assert {log[seq].value for seq in (seqs[0], seqs[-1])} == {b"b" * 4000}
                assert not set(inner) & set(seqs)
            assert len(log) == len(inner) + 20 * 400

    alone.run(work, tmp_path)


class Appending(logging.Handler):
    """A logging handler that appends each message to a log."""

    def __init__(self, log: penstock.Log | None = None) -> None:
        super().__init__()
        self.log = log
        self.path: Path | None = None
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if self.log is None and self.path is not None:
            self.log = penstock.open(self.path)
        self.said.append(record.getMessage())
        if self.log is not None:
            self.log.append(record.getMessage().encode())


def listen(handler: Appending) -> None:
    logger = logging.getLogger("penstock")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)


def test_a_roll_that_is_refused_gives_up_the_lock(path: Path, tmp_path: Path) -> None:
    """A roll that finds a foreign file in its way raises, and other handles append at once."""
    with penstock.open(tmp_path / "foreign") as foreign:
        foreign.append(b"foreign")

    def work() -> None:
        with penstock.open(path, segment_size="64KiB") as log, penstock.open(path) as second:
            listen(Appending(second))
            log.append(b"1")
            stray = path / f"{2:020d}.seg"
            (tmp_path / "foreign" / f"{1:020d}.seg").rename(stray)
            with pytest.raises(penstock.AlreadyExists, match="move it away"):
                log.steward.roll()
            assert second.append(b"2", timeout=0) >= 2
            stray.unlink()
            assert log.steward.roll() > 2

    alone.run(work, tmp_path)
    check_goes_on(path, tmp_path)


@pytest.mark.parametrize("kind", ["log", "ring"])
def test_a_logging_handler_that_appends_amid_a_repair(tmp_path: Path, kind: str) -> None:
    """What the repair after a dead writer has to say is said when the lock is free again."""
    path = tmp_path / "x"

    def work() -> None:
        size: dict[str, Any] = {"ring": "64KiB"} if kind == "ring" else {}
        with penstock.open(path, **size) as log:
            log.append(b"1")

            def victim() -> None:
                _core.fail_arm("publish.body", 1, signal.SIGKILL)
                with penstock.open(path) as mine:
                    mine.extend([b"torn"] * 3)

            child = alone.start(victim, tmp_path / "victim")
            assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
            listen(handler := Appending(log))
            log.append(b"2")
            assert log.stats().takeovers == 1
            values = [e.value for e in log]
            assert b"2" in values and values[0] == b"1"
            assert values[1:] and set(values[1:]) >= {t.encode() for t in handler.said}

    alone.run(work, tmp_path)
    check_goes_on(path, tmp_path)


def test_a_logging_handler_that_opens_the_log_amid_its_opening(path: Path, tmp_path: Path) -> None:
    """What opening a log has to say is said when it is open: the handler can open it as well."""
    with penstock.open(path, segment_size="64KiB") as log:
        log.append(b"1")
        log.steward.roll()
        log.append(b"2")
    with penstock.open(tmp_path / "foreign") as foreign:
        foreign.append(b"foreign")
    (tmp_path / "foreign" / f"{1:020d}.seg").rename(path / f"{77:020d}.seg")

    def work() -> None:
        listen(handler := Appending())
        handler.path = path
        with penstock.open(path) as log:
            assert any("not part of this log" in text for text in handler.said)
            assert [e.value for e in log][2:] == [t.encode() for t in handler.said]

    alone.run(work, tmp_path)
    check_goes_on(path, tmp_path)


def test_a_finaliser_that_appends_amid_a_roll(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector may run finalisers under the lock: one that appends is told so, at once."""

    def work() -> None:
        with penstock.open(path, segment_size="64KiB") as log:
            log.append(b"1")
            told: list[type] = []

            class Late:
                def __del__(self) -> None:
                    try:
                        log.append(b"never")
                    except penstock.Usage as error:
                        told.append(type(error))

            real = files.rename

            def collecting(source: str, target: str, *, replace: bool = True) -> None:
                late: list[Any] = [Late()]
                late.append(late)
                del late
                gc.collect()
                real(source, target, replace=replace)

            monkeypatch.setattr(files, "rename", collecting)
            log.steward.roll()
            assert told and log.append(b"2") == 2

    alone.run(work, tmp_path)
    check_goes_on(path, tmp_path)


def test_a_forgotten_handle_is_collected_amid_a_sync(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handle that is collected by a thread that syncs does not wait for that sync to end."""

    def work() -> None:
        with penstock.open(path, segment_size="64KiB") as log:
            forgotten: list[Any] = [penstock.open(path)]
            forgotten.append(forgotten)
            for _ in range(40):  # it has segments to seal, for which they must be synced first
                forgotten[0].append(b"x" * 5000)
            real = files.sync_data

            def collecting(fd: int, name: str) -> None:
                forgotten.clear()
                gc.collect()
                real(fd, name)

            monkeypatch.setattr(files, "sync_data", collecting)
            assert log.sync() == 40

    alone.run(work, tmp_path)
    check_goes_on(path, tmp_path)


def test_a_child_forked_amid_a_roll(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the parent holds is not held by a child: one forked under the lock can append."""

    def work() -> None:
        with penstock.open(path, segment_size="64KiB") as log:
            log.append(b"1")
            children: list[int] = []

            def handler() -> None:
                children.append(alone.start(lambda: log.append(b"child"), tmp_path / "child"))

            signal_amid(monkeypatch, files, "rename", handler)
            assert log.steward.roll() == 2
            alone.finish(children[0], tmp_path / "child")
            assert [e.value for e in log] == [b"1", b"child"]

    alone.run(work, tmp_path)
    check_goes_on(path, tmp_path)


@pytest.mark.parametrize("amid", ["a repair", "a close"])
def test_a_resize_in_a_signal_handler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, amid: str
) -> None:
    """A resize, which another thread does, never waits for what the thread that asks for it has."""
    path = tmp_path / "a.ring"

    def victim() -> None:
        _core.fail_arm("publish.body", 1, signal.SIGKILL)
        with penstock.open(path) as mine:
            mine.extend([b"torn"] * 3)

    def work() -> None:
        with penstock.create(path, ring="64KiB") as ring:
            ring.append(b"1")
            told: list[str] = []

            def handler() -> None:
                with pytest.raises(penstock.Usage) as caught:
                    ring.resize("128KiB")
                told.append(str(caught.value))

            if amid == "a repair":
                child = alone.start(victim, tmp_path / "victim")
                assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
                signal_amid(monkeypatch, files, "sync_data", handler)
                assert ring.append(b"2") == 2
                assert "this thread already holds a lock of a log" in told[0]
                ring.resize("128KiB")
                assert [event.value for event in ring] == [b"1", b"2"]
            else:
                signal_amid(monkeypatch, files, "sync_data", handler)
                ring.close()
                assert "this thread already closes this log" in told[0]

    alone.run(work, tmp_path)
    check_goes_on(path, tmp_path)


def test_a_call_that_interrupts_the_loading_of_its_own_code(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler's call whose code its thread is just loading is refused, and works afterwards."""
    name = "penstock.consumers.listing"
    unfinished = types.ModuleType(name)
    unfinished.__file__ = "listing.py"
    unfinished.__spec__ = importlib.machinery.ModuleSpec(name, None)
    unfinished.__spec__._initializing = True  # type: ignore[attr-defined]
    with penstock.open(path) as log:
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, unfinished)
            with pytest.raises(penstock.Usage, match="code is still being loaded"):
                log.consumers()
        assert log.consumers().names() == []
