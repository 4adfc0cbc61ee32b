"""Backup: a complete prefix of a live log, under its name only when it is whole."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import errors
from penstock.system import files
from tests.unit import oracle


def fill(log: penstock.Log, count: int) -> None:
    for _ in range(count):
        log.append(b"%d" % (log.last_seq + 1) + b"x" * 700, topic="t", time=log.last_seq + 1)


@pytest.mark.parametrize("mode", ["rw", "r", "frames alone"])
@pytest.mark.parametrize("count", [0, 1, 250])
def test_the_copy_is_the_log(path: Path, tmp_path: Path, mode: str, count: int) -> None:
    """The copy has the same events, uuid and settings, opens for writing and goes on on its own."""
    log = penstock.open(path, segment_size="64KiB")
    fill(log, count)
    log.configure(segment_size="128KiB")
    if mode != "rw":
        log.close()
        if mode == "frames alone":
            path.joinpath("control").unlink()
        log = penstock.open(path, mode="r")
    target = tmp_path / "copy"
    assert log.backup(target) == count
    assert {p.name for p in tmp_path.iterdir()} == {"log", "copy"}
    with penstock.open(target, mode="r") as copy:
        assert list(copy) == list(log)
    with penstock.open(target) as copy:
        assert list(copy) == list(log)
        assert list(reversed(copy)) == list(reversed(log))
        assert copy.settings == log.settings
        assert copy.stats().uuid == log.stats().uuid
        assert copy.append(b"own") == count + 1
        fill(copy, 100)
    with penstock.open(target) as copy:
        assert len(list(copy)) == count + 101
    assert len(log) == count
    log.close()
    oracle.read_log(target)


@pytest.mark.parametrize("how", ["roll", "load"])
def test_producers_are_remembered(log: penstock.Log, tmp_path: Path, how: str) -> None:
    """The copy knows what its producers did, also what they did before the active segment."""
    assert log.append(b"once", producer=("sensor", 1)) == 1
    if how == "roll":
        log.steward.roll()
    else:
        log.load([b"x" * 700] * 300)
    log.append(b"behind")
    log.backup(tmp_path / "copy")
    with penstock.open(tmp_path / "copy") as copy:
        assert copy.verify().ok
        assert copy.append(b"once", producer=("sensor", 1)) == 1
        assert list(copy) == list(log)


def test_just_after_a_roll(log: penstock.Log, tmp_path: Path) -> None:
    """An active segment without events is copied as one, and takes appends."""
    fill(log, 3)
    log.steward.roll()
    assert log.backup(tmp_path / "copy") == 3
    with penstock.open(tmp_path / "copy") as copy:
        assert copy.append(b"next") == 4
        assert [e.seq for e in copy] == [1, 2, 3, 4]


def test_while_a_thread_appends(path: Path, tmp_path: Path) -> None:
    """A copy made while another thread appends is a complete prefix of the log."""
    with penstock.open(path, segment_size="64KiB") as log:
        stop = threading.Event()

        def write() -> None:
            while not stop.is_set():
                log.extend([b"x" * 500] * 3)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            lasts = []
            for i in range(5):
                log.wait(after=log.last_seq + 20)
                before = log.last_seq
                lasts.append(log.backup(tmp_path / f"copy{i}"))
                assert lasts[-1] >= before
        finally:
            stop.set()
            thread.join()
        for i, last in enumerate(lasts):
            assert last % 3 == 0
            with penstock.open(tmp_path / f"copy{i}") as copy:
                assert copy.last_seq == last
                assert list(copy) == log.read().take(last)
                assert copy.append(b"more") == last + 1


def test_the_target_must_be_new(log: penstock.Log, tmp_path: Path) -> None:
    """Anything under the target's name is AlreadyExists and stays as it is, a broken link too."""
    log.append(b"a")
    tmp_path.joinpath("dir").mkdir()
    tmp_path.joinpath("file").write_bytes(b"mine")
    tmp_path.joinpath("link").symlink_to("nowhere")
    before = sorted(tmp_path.iterdir())
    for name in ("dir", "file", "link"):
        with pytest.raises(penstock.AlreadyExists):
            log.backup(tmp_path / name)
    assert sorted(tmp_path.iterdir()) == before
    assert tmp_path.joinpath("file").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("name", "nth"),
    [
        ("create_file", 1),
        ("create_file", 2),
        ("write_at", 1),
        ("write_at", 7),
        ("sync_data", 2),
        ("sync_dir", 1),
        ("rename", 1),
        ("read_at", 6),
        ("read_at", 8),
    ],
)
def test_a_failure_leaves_nothing(
    log: penstock.Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, nth: int
) -> None:
    """A call that fails half-way is a typed error and leaves nothing; the next try works."""
    fill(log, 150)
    before = sorted(tmp_path.iterdir())
    real = getattr(files, name)
    calls = 0

    def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        if threading.current_thread() is not threading.main_thread():
            return real(*args, **kwargs)  # the keeper's calls are not the copy's
        calls += any("copy" in str(a) for a in args) or name == "read_at"
        if calls == nth:
            calls += 1
            raise errors.from_os(OSError(errno.ENOSPC, ""), name, str(args[-1]))
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(files, name, failing)
        with pytest.raises(penstock.DiskFull):
            log.backup(tmp_path / "copy")
    assert sorted(tmp_path.iterdir()) == before
    assert log.backup(tmp_path / "copy") == 150
    assert log.append(b"more") == 151
    assert not [n for n in os.listdir("/proc/self/fd") if _leads_to(n, str(tmp_path / "copy"))]


def _leads_to(descriptor: str, prefix: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith(prefix)
    except FileNotFoundError:
        return False


def test_progress(log: penstock.Log, tmp_path: Path) -> None:
    """progress is told bytes done and bytes in all, ending with all of them."""
    fill(log, 150)
    told: list[tuple[int, int]] = []
    log.backup(tmp_path / "copy", progress=lambda done, total: told.append((done, total)))
    assert len(told) >= len(oracle.segment_paths(Path(log.path)))
    assert [d for d, _ in told] == sorted(d for d, _ in told)
    assert told[-1][0] == told[-1][1]


def test_a_spurious_segment_is_not_copied(path: Path, tmp_path: Path) -> None:
    """What is not part of the log does not get into its copy."""
    with penstock.open(tmp_path / "other") as other:
        other.append(b"foreign")
    with penstock.open(path) as log:
        log.append(b"a")
        foreign = tmp_path.joinpath("other", "00000000000000000001.seg").read_bytes()
        path.joinpath(f"{777:020d}.seg").write_bytes(foreign)
        log.backup(tmp_path / "copy")
    assert len(oracle.segment_paths(tmp_path / "copy")) == 1


def test_a_path_with_a_slash(log: penstock.Log, tmp_path: Path) -> None:
    """A target written with a slash at its end, in a directory that is not there, works."""
    log.append(b"a")
    assert log.backup(f"{tmp_path}/new/copy/") == 1
    with penstock.open(tmp_path / "new" / "copy") as copy:
        assert len(copy) == 1
