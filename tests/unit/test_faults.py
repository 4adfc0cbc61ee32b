"""One call to the system fails at a chosen moment: a typed error, nothing lost, and life goes on.

Every function of `files` that an operation uses is made to fail once, at each of its calls.
"""

from __future__ import annotations

import errno
import functools
import inspect
import itertools
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import errors
from penstock.system import files
from tests.support.attempts import Attempts
from tests.support.fixtures import STORM
from tests.unit import oracle

KINDS = {
    errno.ENOSPC: penstock.DiskFull,
    errno.EIO: penstock.Io,
    errno.EACCES: penstock.Permission,
}
CALLS = [
    "allocate",
    "rename",
    "sync_dir",
    "sync_data",
    "create_file",
    "open_file",
    "read_at",
    "write_at",
    "list_dir",
    "size",
    "unlink",
]


SYNCS = ["sync_dir", "sync_data"]


def poisoned(log: penstock.Log) -> bool:
    """Whether a failed sync has stopped this log, for every handle; if so, it says so again."""
    before = log.last_seq
    with penstock.open(log.path) as other:
        try:
            other.sync()
            return False
        except penstock.Poisoned:
            for handle in (log, other):
                for _ in range(2):
                    with pytest.raises(penstock.Poisoned):
                        handle.append(b"no more")
                    with pytest.raises(penstock.Poisoned):
                        handle.sync(wait=False)
            assert (log.last_seq, other.last_seq) == (before, before)
            return True


class Fault:
    """Makes the nth call of one function in penstock.system.files fail, once."""

    def __init__(self, name: str, nth: int, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.hit = False
        self._real: Callable[..., Any] = getattr(files, name)
        self._signature = inspect.signature(self._real)
        self._nth = nth
        self._code = code
        monkeypatch.setattr(files, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.calls == self._nth:
            self.hit = True
            bound = self._signature.bind(*args, **kwargs).arguments
            where = str(bound.get("path", bound.get("target", "")))
            raise errors.from_os(OSError(self._code, os.strerror(self._code)), "testing", where)
        return self._real(*args, **kwargs)


def check(path: Path, acknowledged: list[bytes]) -> None:
    """The log holds what was acknowledged, for this package and the oracle, and goes on."""
    with penstock.open(path, mode="r") as log:
        assert [e.value for e in log] == acknowledged
    with penstock.open(path) as log:
        assert [e.value for e in log] == acknowledged
        log.append(b"still alive")
        log.steward.roll()
        log.append(b"and rolling")
        assert len(log) == len(acknowledged) + 2
    events = [f.value for s in oracle.read_log(path) for f in s.events]
    assert events == [*acknowledged, b"still alive", b"and rolling"]


def appending(log: penstock.Log, done: list[bytes]) -> None:
    """Appends that allocate, prepare and roll several times; each success is noted."""
    for _ in range(130):
        value = b"%d" % len(done) + b"x" * 1000
        log.append(value)
        done.append(value)
    log.extend([b"batch"] * 3)
    done.extend([b"batch"] * 3)


@pytest.mark.parametrize("code", KINDS)
@pytest.mark.parametrize("name", CALLS)
def test_a_failing_call_while_appending(
    path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    """Whichever call fails during appends and rolls, the error is typed and the handle goes on."""
    for nth in (1, 2, 4, 7):
        shutil.rmtree(path, ignore_errors=True)
        done: list[bytes] = []
        with penstock.open(path, segment_size="64KiB") as log:
            with monkeypatch.context() as patch:
                fault = Fault(name, nth, code, patch)
                try:
                    appending(log, done)
                except KINDS[code]:
                    pass
                except penstock.Poisoned:
                    assert name in SYNCS  # the keeper's sync was the one to fail
            assert log.last_seq == len(done), f"{name} {nth}: raised, yet the event is there"
            if name not in SYNCS:
                appending(log, done)
            elif not fault.hit or not poisoned(log):
                with suppress(penstock.Poisoned):
                    appending(log, done)
            assert [e.value for e in log] == done
        if not fault.hit:
            break
        check(path, done)


@pytest.mark.parametrize("code", KINDS)
@pytest.mark.parametrize("name", CALLS)
def test_a_failing_call_while_rolling(
    path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    """Whichever call fails in a roll, no event is lost and the roll can be done again."""
    for nth in range(1, 7):
        shutil.rmtree(path, ignore_errors=True)
        done = [b"a", b"b"]
        with penstock.open(path, segment_size="64KiB") as log:
            log.extend(done)
            with monkeypatch.context() as patch:
                fault = Fault(name, nth, code, patch)
                try:
                    log.steward.roll()
                except KINDS[code]:
                    assert log.last_seq == 2
            if not (name in SYNCS and fault.hit and poisoned(log)):
                log.append(b"c")
                done = [*done, b"c"]
                log.steward.roll()
            assert [e.value for e in log] == done
        if not fault.hit:
            break
        check(path, done)


def prepared_states(path: Path) -> dict[str, Callable[[], None]]:
    """Ways to leave a log from which the next open has different work to do."""

    def clean() -> None:
        with penstock.open(path, segment_size="64KiB") as log:
            log.extend([b"a", b"b"])

    def without_control() -> None:
        clean()
        path.joinpath("control").unlink()

    def torn() -> None:
        without_control()
        segment = oracle.read_log(path)[0]
        with segment.path.open("r+b") as file:
            file.seek(segment.end + 4)
            file.write(b"torn" * 30)

    return {"clean": clean, "without control": without_control, "torn": torn}


@pytest.mark.parametrize("state", ["clean", "without control", "torn"])
@pytest.mark.parametrize("name", CALLS)
def test_a_failing_call_while_opening(
    path: Path, monkeypatch: pytest.MonkeyPatch, name: str, state: str
) -> None:
    """Whichever call fails while a log is opened, the next open finds everything."""
    code = errno.EIO
    for nth in range(1, 9):
        shutil.rmtree(path, ignore_errors=True)
        prepared_states(path)[state]()
        with monkeypatch.context() as patch:
            fault = Fault(name, nth, code, patch)
            try:
                penstock.open(path).close()
            except penstock.PenstockError as error:
                assert isinstance(error, penstock.Io | penstock.Corrupt)
        if not fault.hit:
            break
        check(path, [b"a", b"b"])


@pytest.mark.parametrize("code", KINDS)
@pytest.mark.parametrize("name", CALLS)
def test_a_failing_call_while_creating(
    path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    """Whichever call fails while a log is created, a second try creates it."""
    for nth in range(1, 7):
        shutil.rmtree(path, ignore_errors=True)
        with monkeypatch.context() as patch:
            fault = Fault(name, nth, code, patch)
            try:
                penstock.open(path, segment_size="64KiB").close()
            except KINDS[code]:
                pass
        if not fault.hit:
            break
        with penstock.open(path, segment_size="64KiB") as log:
            assert log.append(b"a") == 1
        check(path, [b"a"])


def test_a_disk_that_stays_full(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While no block can be had, appends are DiskFull and events readable; with room they go on."""
    with penstock.open(path, segment_size="1MiB") as log:
        done: list[bytes] = []
        with monkeypatch.context() as patch:

            def full(fd: int, start: int, stop: int, where: str) -> None:
                raise errors.from_os(OSError(errno.ENOSPC, ""), "allocating", where)

            patch.setattr(files, "allocate", full)
            refused = 0
            while refused < 3:
                try:
                    log.append(b"x" * 4000)
                    done.append(b"x" * 4000)
                except penstock.DiskFull as error:
                    assert error.errno == errno.ENOSPC
                    refused += 1
            assert done
            assert [e.value for e in log] == done
            with pytest.raises(penstock.DiskFull):
                log.steward.roll()
            assert log.append(b"small") == len(done) + 1
            done.append(b"small")
        for _ in range(300):
            log.append(b"x" * 5000)
            done.append(b"x" * 5000)
        assert [e.value for e in log] == done
    check(path, done)


@pytest.mark.parametrize(
    "failure", [errors.from_os(OSError(errno.EMFILE, ""), "", ""), MemoryError()]
)
def test_a_committed_event_is_never_reported_as_failed(
    path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """What is done ahead of need, behind the commit, cannot make an append raise."""
    with penstock.open(path) as log:
        log.append(b"first")
        log.configure(segment_size="2MiB")

        def refuse(name: str, *, write: bool) -> int:
            raise failure

        with monkeypatch.context() as patch:
            patch.setattr(files, "open_file", refuse)
            for i in range(2, 3000):
                assert log.append(b"x" * 1000) == i
        assert len(log) == 2999


def test_a_dead_end_is_no_dead_handle(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rename that is refused for a while, in the middle of a roll, loses nothing."""
    with penstock.open(path, segment_size="64KiB") as log, penstock.open(path) as other:
        log.extend([b"a", b"b"])
        with monkeypatch.context() as patch:

            def refuse(source: str, target: str, *, replace: bool = True) -> None:
                raise errors.from_os(OSError(errno.EACCES, ""), "renaming to", target)

            patch.setattr(files, "rename", refuse)
            for handle in (log, other, log):
                with pytest.raises(penstock.Permission):
                    handle.steward.roll()
                assert [e.value for e in handle] == [b"a", b"b"]
                assert handle.last_seq == 2
        assert other.append(b"c") == 3
        assert log.append(b"d") == 4
        assert [e.value for e in log] == [b"a", b"b", b"c", b"d"]
    assert [s.base_seq for s in oracle.read_log(path)] == [1, 3]


class AnyFault:
    """Makes the nth call fail, all functions of `files` counted together; or all from it on.

    Closing a descriptor is left alone, and so is what cannot fail.
    """

    LEFT_ALONE = ("close", "exists")

    def __init__(self, nth: int, code: int, lasting: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = itertools.count(1)
        self.failed: list[str] = []
        self._nth = nth
        self._code = code
        self._lasting = lasting
        for name, function in inspect.getmembers(files, inspect.isfunction):
            own = function.__module__ == files.__name__ and not name.startswith("_")
            if own and name not in self.LEFT_ALONE:
                monkeypatch.setattr(files, name, functools.partial(self._call, name, function))

    def _call(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        count = next(self.calls)
        if count == self._nth or (self._lasting and count > self._nth):
            self.failed.append(name)
            error = OSError(self._code, os.strerror(self._code))
            raise errors.from_os(error, name, str(args[0]))
        return function(*args, **kwargs)


def everything(path: Path, done: list[bytes], attempt: Attempts) -> None:
    """Create, append, roll, sync, read, back up, close and open again; successes are noted."""

    def append(
        log: penstock.Log, values: list[bytes], *, durable: bool = False, load: bool = False
    ) -> None:
        try:
            (log.load if load else log.extend)(values, durable=durable)
        except penstock.PenstockError:
            committed = log.last_seq > len(done)
            assert durable or not committed, "raised, yet the events are there"
            if committed:
                done.extend(values)
            raise
        done.extend(values)

    log = attempt("open", lambda: penstock.open(path, segment_size="64KiB"))
    if log is None:
        return
    attempt("append", lambda: append(log, [b"first"]))
    for _ in range(4):
        attempt("append", lambda: append(log, [b"x" * 9000] * 2))
    attempt("append", lambda: append(log, [b"long" * 10_000]))
    attempt("roll", log.steward.roll)
    attempt("durable", lambda: append(log, [b"durable"], durable=True))
    attempt("configure", lambda: log.configure(segment_size="128KiB"))
    attempt("append", lambda: append(log, [b"a", b"b"]))
    attempt("sync", log.sync)
    attempt("load", lambda: append(log, [b"load" * 3000] * 12, load=True))
    attempt("verify", log.verify)
    attempt("read", lambda: [list(log), list(reversed(log)), log.topics()])
    attempt("backup", lambda: log.backup(path.with_name("backup")))
    attempt("close", log.close)
    assert log.closed


@pytest.mark.timeout(1800 if STORM else 300)
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from-then-on"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_any_call_fails(
    path: Path, monkeypatch: pytest.MonkeyPatch, code: int, lasting: bool
) -> None:
    """Whichever call of all that a log's life takes fails: typed errors, and nothing is lost."""
    begin, step = (1, 1) if STORM else (1 + 20 * lasting + 10 * (code == errno.EIO), 41)
    for nth in itertools.count(begin, step):
        for each in (path, path.with_name("backup")):
            shutil.rmtree(each, ignore_errors=True)
        done: list[bytes] = []
        attempt = Attempts()
        with monkeypatch.context() as patch:
            fault = AnyFault(nth, code, lasting, patch)
            everything(path, done, attempt)
        if not fault.failed:
            assert not attempt.refusals
            break
        kinds = {"Poisoned", KINDS[code].__name__}
        assert attempt.kinds() <= kinds, f"call {nth}, {fault.failed[0]}: {attempt.refusals}"
        if done:
            check(path, done)
    assert nth > 100
