"""Work in the background never fails unseen: it is logged once, and `stats()` keeps the error."""

from __future__ import annotations

import _thread
import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import penstock
from penstock import errors
from penstock import layout as L
from penstock.stats import BackgroundJob
from penstock.steward import ahead, record
from penstock.system import files
from tests.support import alone
from tests.support.wait import wait_for

JOBS = {"allocate", "prepare", "seal", "sync", "retain", "compact", "erase", "archive"}


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged at WARNING or above."""
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def job(log: penstock.Log, name: str) -> BackgroundJob:
    return log.stats().background[name]


def failing(
    patch: pytest.MonkeyPatch, name: str, wanted: Callable[..., bool], why: list[int]
) -> None:
    """Have ``files.name`` fail with the error number that ``why`` holds, if any."""
    real = getattr(files, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        if why and wanted(*args):
            raise errors.from_os(OSError(why[0], os.strerror(why[0])), "testing", "the disk")
        return real(*args, **kwargs)

    patch.setattr(files, name, call)


def ask(log: penstock.Log) -> None:
    """Have the background thread of a handle look at its work again."""
    log._look_ahead()


def failures_become(log: penstock.Log, name: str, least: int) -> None:
    def look() -> bool:
        ask(log)
        return job(log, name).failures >= least

    wait_for(look, f"{least} failures of {name}")


def test_a_new_handle_has_a_clean_record(path: Path) -> None:
    """Each job is listed from the start, in a log and in a ring, for writers and for readers."""
    kinds: list[dict[str, Any]] = [{}, {"ring": "64KiB"}]
    for kind in kinds:
        where = path.with_suffix(".ring") if kind else path
        with penstock.open(where, **kind) as log, penstock.open(where, mode="r") as reader:
            for handle in (log, reader):
                assert handle.stats().background == {name: BackgroundJob() for name in JOBS}


@pytest.mark.parametrize(
    ("name", "call", "wanted"),
    [
        ("prepare", "create_file", lambda path, mode: os.path.basename(path)[5:-4].isdigit()),
        ("seal", "write_at", lambda fd, data, at, path: data[:8] == L.FOOTER_MAGIC[:8]),
    ],
)
def test_a_failure_is_logged_once_and_kept(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    call: str,
    wanted: Callable[..., bool],
) -> None:
    """The same failure again is counted, and logged once a minute; another one at once."""
    why = [errno.ENOSPC]
    with penstock.open(path, segment_size="64KiB") as log:
        failing(monkeypatch, call, wanted, why)

        def fill() -> None:
            if name == "seal":
                log.steward.roll()
            log.append(b"x" * 44_000)  # from here on the next segment is prepared

        log.append(b"first")
        fill()
        failures_become(log, name, 3)
        found = job(log, name)
        assert found.last_error is not None and "No space left" in found.last_error
        assert found.last_error_ns is not None and found.last_error_ns > 10**18
        assert found.last_success_ns is None
        assert [w for w in warnings(caplog) if "No space left" in w] == warnings(caplog)
        assert len(warnings(caplog)) == 1
        assert str(path) in warnings(caplog)[0]

        why[0] = errno.EIO
        failures_become(log, name, found.failures + 2)
        assert len(warnings(caplog)) == 2 and "Input/output" in warnings(caplog)[1]

        why.clear()

        def succeeded() -> bool:
            ask(log)
            return job(log, name).last_success_ns is not None

        wait_for(succeeded, f"a success of {name}")
        after = job(log, name)
        assert after.last_error is not None and "Input/output" in after.last_error
        assert after.last_success_ns is not None and after.last_error_ns is not None
        assert after.last_success_ns >= after.last_error_ns

        assert after.in_a_row == 0 and after.successes > 0
        monkeypatch.setattr(record, "monotonic", lambda: monotonic() + record.QUIET)
        why.append(errno.EIO)
        fill()
        log.steward.roll()
        log.append(b"x" * 44_000)
        failures_become(log, name, after.failures + 2)
        assert len(warnings(caplog)) == 3
        assert len(log) >= 4
        why.clear()


def test_a_failed_allocation_is_kept(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Allocating ahead that fails is told before an append runs into it; the append is taken."""
    with penstock.open(path, segment_size="64MiB") as log:
        why = [errno.ENOSPC]
        failing(monkeypatch, "allocate", lambda *_: True, why)
        log.append(b"x" * 1000)
        failures_become(log, "allocate", 2)
        assert len(warnings(caplog)) == 1 and "allocating space ahead" in warnings(caplog)[0]
        why.clear()
        ask(log)
        wait_for(lambda: job(log, "allocate").last_success_ns is not None, "space")
        assert log.append(b"y") == 2


def test_a_thread_that_cannot_start_is_told(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the system allows no more threads, appends go on and the record says why."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with penstock.open(path, sync_events=1) as log:
        monkeypatch.setattr(_thread, "start_new_thread", refuse)
        assert log.append(b"1") == 1
        ask(log)
        for name in ("sync", "allocate"):
            assert job(log, name).last_error == "can't start new thread"
        assert len(warnings(caplog)) == 2
        monkeypatch.undo()


@pytest.mark.parametrize("kind", ["log", "ring"])
def test_a_failed_sync_is_logged_once_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """A sync in the background that fails is kept, and not logged again by each one after it."""
    size: dict[str, Any] = {"ring": "64KiB"} if kind == "ring" else {}
    with penstock.open(tmp_path / "x", sync_events=2, **size) as log:
        log.extend([b"1", b"2"])
        wait_for(lambda: job(log, "sync").last_success_ns is not None, "a sync")
        failing(monkeypatch, "sync_data", lambda *_: True, [errno.EIO])
        log.extend([b"3", b"4"])
        wait_for(lambda: job(log, "sync").failures == 1, "a failed sync")
        wait_for(lambda: any("syncing in the background" in w for w in warnings(caplog)), "a word")
        for _ in range(3):
            with pytest.raises(penstock.Poisoned):
                log.sync(wait=False)
        assert sum("syncing in the background" in w for w in warnings(caplog)) == 1
        assert "Input/output" in (job(log, "sync").last_error or "")
        monkeypatch.undo()


def test_a_damaged_segment_is_told_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A segment that cannot be sealed is named in the record; those after it are sealed."""
    with penstock.open(path, segment_size="64KiB") as log:
        log.extend([b"x" * 1000] * 20)
        log.sync()
        with open(path / f"{1:020d}.seg", "r+b") as file:
            at = file.read().index(b"x" * 1000)
            file.seek(at - L.FRAME_HEADER_BYTES)
            file.write(b"\xff" * 4)
        for _ in range(3):
            log.steward.roll()
            log.append(b"y")
            failures_become(log, "seal", 1)
        assert f"{1:020d}.seg" in (job(log, "seal").last_error or "")
        assert sum("sealing" in w for w in warnings(caplog)) == 1


def test_to_wait_for_a_lock_is_no_failure(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Work that finds the lock taken is done later, without a word."""
    put_off: list[bool] = []
    real = ahead.Ahead.work

    def work(self: ahead.Ahead, closing: bool) -> float:
        delay = real(self, closing)
        put_off.append(delay > 0)
        return delay

    monkeypatch.setattr(ahead, "PATIENCE", 0.001)
    monkeypatch.setattr(ahead.Ahead, "work", work)
    with penstock.open(path, segment_size="64MiB") as log:
        log._storage.make_ready(log, 0, None)
        with log._live().locked():
            ask(log)
            wait_for(lambda: put_off.count(True) > 3, "the lock to be missed")
            assert job(log, "allocate").last_success_ns is None
        wait_for(lambda: job(log, "allocate").last_success_ns is not None, "it to be done later")
        assert job(log, "allocate").failures == 0 and warnings(caplog) == []


def test_a_child_begins_its_own_record(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is that of this process's threads: a child of a fork starts with a clean one."""
    with penstock.open(path, segment_size="64MiB") as log:
        why = [errno.ENOSPC]
        failing(monkeypatch, "allocate", lambda *_: True, why)
        log.append(b"x" * 1000)
        failures_become(log, "allocate", 1)
        why.clear()

        def child() -> None:
            log.append(b"child")
            assert log.stats().background["allocate"].failures == 0

        alone.run(child, tmp_path)
