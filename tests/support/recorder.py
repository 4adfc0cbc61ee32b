"""Running a script of appends and syncs while a history watches every step of it.

The history looks at the files around every call of ``files`` that changes one and at every
fail-point, those between two stores of the compiled core too. Syncs never reach a device: here the
history is the disk. What the keeper's thread would do at a time of its own is a step of the script,
so that a run is the same each time.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from penstock import _core
from penstock.errors import from_os
from penstock.segments import segment
from penstock.segments import writing as segmented
from penstock.steward import ahead
from penstock.steward.keeper import LATER
from penstock.system import files
from tests.support.pages import PAGE, History

LOOSE = frozenset({"control", "control.tmp"})
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int)


class Keeper:
    """Stands in for the keeper's thread: works when the script says so, and at the end."""

    def __init__(self, work: Callable[[bool], float]) -> None:
        self._work = work

    def ask(self) -> None:
        """The script decides when."""

    def work(self) -> None:
        """Do all that there is to do in a pause."""
        with mock.patch.object(ahead, "PAUSE", 0):
            delay = self._work(False)
        assert delay != LATER or _is_failing(self._work), "nothing was put off"

    def stop(self) -> None:
        """Do what is done when the log is closed."""
        self._work(True)


def _is_failing(work: Any) -> bool:
    """Whether what is left is only what has failed, and is tried again."""
    return bool(work.__self__._again_at)


def _nothing(_: str) -> None:
    """What lies above the log's directory is not watched."""


@contextmanager
def without_a_device() -> Iterator[None]:
    """Let syncs do nothing, and the keeper only what it is told."""
    with ExitStack() as patches:
        for name in ("sync_data", "sync_dir"):
            patches.enter_context(mock.patch.object(files, name, lambda fd, path: os.fstat(fd)))
        patches.enter_context(mock.patch.object(files, "sync_way", _nothing))
        patches.enter_context(mock.patch.object(segmented, "Keeper", Keeper))
        yield


def _watched_map(recorder: Recorder) -> type[_core.SegmentMap]:
    class WatchedMap(_core.SegmentMap):
        """Tells the recorder which pages are marked as changed, since their bytes do not tell."""

        def redirty(self, start: int, stop: int) -> None:
            super().redirty(start, stop)
            recorder.mark(self.path, start, stop)

    return WatchedMap


class Recorder:
    """Has a history look at a directory at every step that the package takes there."""

    def __init__(self, history: History, directory: str) -> None:
        self.history = history
        self.directory = directory
        self.dies_at: str | None = None
        self.fails = False  # whether the next sync of a file does
        self.last_words: Callable[[], None] = lambda: None
        self._points: Iterator[str] = iter(())
        self._armed = ""
        self._failure: BaseException | None = None

    def look(self, label: str) -> None:
        """Look at the files, and die here if that is what the script says."""
        if os.path.isdir(self.directory):
            self.history.look(self.directory, label)
        if label == self.dies_at:
            self.last_words()
            os.kill(os.getpid(), signal.SIGKILL)

    def expect_publish(self, lengths: list[int]) -> None:
        """Look at each fail-point of an append of frames whose values have these lengths."""
        bodies = sum(n < 32_000 for n in lengths[1:])  # longer ones are written without a stop
        batch = ["publish.batch_body"] * bodies
        self._arm(iter(["publish.body", *batch, "publish.written", "publish.commit"]))

    def expect_repair(self) -> None:
        """Look each time that a page was zeroed."""
        self._arm(itertools.repeat("repair.zeroing"))

    def _arm(self, points: Iterator[str]) -> None:
        self._points = points
        self._armed = next(points, "")
        _core.fail_arm(self._armed, 1, signal.SIGUSR1)

    def _stopped(self, _: int) -> None:
        """Run at a fail-point of the compiled core, before it goes on."""
        try:
            self.look(self._armed)
            self._arm(self._points)
        except BaseException as error:
            self._failure = error

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Watch, while the block runs."""
        libc = ctypes.CDLL(None)
        libc.signal.restype = ctypes.c_void_p
        libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
        stopped = _CALLBACK(self._stopped)
        old = libc.signal(signal.SIGUSR1, ctypes.cast(stopped, ctypes.c_void_p))
        with ExitStack() as patches:
            for name in ("write_at", "allocate", "punch"):
                patches.enter_context(mock.patch.object(files, name, self._around(name)))
            for name in (
                *("create_file", "rename", "unlink", "make_dir", "remove_tree"),
                *("sync_data", "sync_dir"),
            ):
                patches.enter_context(mock.patch.object(files, name, getattr(self, f"_{name}")))
            patches.enter_context(mock.patch.object(files, "sync_way", _nothing))
            patches.enter_context(mock.patch.object(_core, "fail_point", self.look))
            patches.enter_context(mock.patch.object(segment, "SegmentMap", _watched_map(self)))
            patches.enter_context(mock.patch.object(segmented, "Keeper", Keeper))
            try:
                yield
            finally:
                self._arm(iter(()))
                libc.signal(signal.SIGUSR1, old)
        if self._failure is not None:
            raise self._failure

    def _around(self, name: str) -> Callable[..., Any]:
        call = getattr(files, name)

        def watched(*args: Any) -> Any:
            self.look(f"before {name}")
            result = call(*args)
            self.look(f"behind {name}")
            return result

        return watched

    _create = staticmethod(files.create_file)
    _move = staticmethod(files.rename)
    _delete = staticmethod(files.unlink)
    _add_dir = staticmethod(files.make_dir)

    def _create_file(self, path: str, mode: int) -> int:
        self.look("before create_file")
        fd = self._create(path, mode)
        self.history.change(f"created {self._name(path)}", None, self._name(path))
        return fd

    def _rename(self, source: str, target: str, *, replace: bool = True) -> None:
        self.look("before rename")
        self._move(source, target, replace=replace)
        self.history.change(
            f"renamed to {self._name(target)}", self._name(source), self._name(target)
        )

    def _unlink(self, path: str) -> bool:
        self.look("before unlink")
        there = self._delete(path)
        if there:
            self.history.change(f"deleted {self._name(path)}", self._name(path), None)
        return there

    def _make_dir(self, path: str, mode: int) -> bool:
        if path == self.directory:
            return self._add_dir(path, mode)
        self.look("before make_dir")
        made = self._add_dir(path, mode)
        if made:
            self.history.change(f"made {self._name(path)}", None, f"{self._name(path)}/")
        return made

    def _remove_tree(self, path: str) -> None:
        if os.path.isdir(path):
            for name in os.listdir(path):
                self._remove_tree(os.path.join(path, name))
            os.rmdir(path)
            self.history.change(f"deleted {self._name(path)}", f"{self._name(path)}/", None)
        elif os.path.lexists(path):
            self._unlink(path)

    def _sync_data(self, fd: int, path: str) -> None:
        assert os.path.samestat(os.fstat(fd), os.stat(path))
        name = self._name(path)
        self.look(f"before sync of {name}")
        began = self.history.moment
        file = self.history.files[self.history.names[name]]
        self.history.pass_moment(f"{'failed to sync' if self.fails else 'synced'} {name}")
        if self.fails:
            self.fails = False
            file.failed.append(began)
            self.look("failed.sync")
            raise from_os(OSError(errno.EIO, "a failing device"), "syncing", path)
        file.syncs.append((self.history.moment, began))

    def mark(self, path: str, start: int, stop: int) -> None:
        """Note that pages are marked as changed."""
        self.history.pass_moment(f"marked {self._name(path)}")
        file = self.history.files[self.history.names[self._name(path)]]
        file.marked.append((self.history.moment, range(start // PAGE, -(-stop // PAGE))))

    def _sync_dir(self, fd: int, path: str) -> None:
        assert os.path.samestat(os.fstat(fd), os.stat(path))
        name = "" if path == self.directory else self._name(path)
        self.look("before sync of a directory")
        began = self.history.moment
        self.history.pass_moment(f"synced the directory {name}")
        self.history.dir_syncs.setdefault(name, []).append((self.history.moment, began))

    def _name(self, path: str) -> str:
        assert path.startswith(f"{self.directory}/"), path
        return path[len(self.directory) + 1 :]
