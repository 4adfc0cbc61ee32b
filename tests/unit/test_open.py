"""Opening and creating: what may be there, what must not, and the permissions of what is made."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.layout import CONTROL_MAGIC
from penstock.segments.segment import BEGUN
from tests.unit import oracle


def snapshot(path: Path) -> dict[str, bytes | None]:
    return {str(p): p.read_bytes() if p.is_file() else None for p in sorted(path.rglob("*"))}


def test_open_creates_a_log(path: Path) -> None:
    """open makes the directory, its parents and the first segment, and control beside it."""
    deep = path / "a" / "b"
    with penstock.open(deep) as log:
        assert (len(log), log.first_seq, log.last_seq) == (0, 1, 0)
    files = {"00000000000000000001.seg", "control", "writers.lock"}
    assert {p.name for p in deep.iterdir()} == files


def test_open_opens_what_is_there(path: Path) -> None:
    """A second open finds the same log, by str or by path-like, relative or not."""
    with penstock.open(path) as log:
        log.append(b"a")
        uuid = log.stats().uuid
    with penstock.open(str(path)) as log:
        assert log.append(b"b") == 2
        assert log.stats().uuid == uuid
    relative = os.path.relpath(path)
    with penstock.open(relative) as log:
        assert len(log) == 2


@pytest.mark.parametrize("mode", ["rw", "r"])
def test_without_create_a_log_must_be_there(path: Path, mode: Any) -> None:
    """create=False on nothing, and on an empty directory, is NotFound and makes nothing."""
    with pytest.raises(penstock.NotFound, match=str(path)):
        penstock.open(path, mode=mode, create=False)
    assert not path.exists()
    path.mkdir()
    with pytest.raises(penstock.NotFound, match=str(path)):
        penstock.open(path, mode=mode, create=False)
    assert list(path.iterdir()) == []


def test_reading_never_creates(path: Path) -> None:
    """mode='r' on nothing, and on an empty directory, is NotFound and makes nothing."""
    with pytest.raises(penstock.NotFound):
        penstock.open(path, mode="r")
    assert not path.exists()
    path.mkdir()
    with pytest.raises(penstock.NotFound):
        penstock.open(path, mode="r")
    assert list(path.iterdir()) == []


@pytest.mark.parametrize("mode", ["rw", "r"])
def test_a_file_is_not_a_segmented_log(path: Path, mode: Any) -> None:
    """A path that is a file is refused and the file stays as it is."""
    path.write_bytes(b"mine")
    with pytest.raises(penstock.Usage, match="not a directory"):
        penstock.open(path, mode=mode)
    with pytest.raises(penstock.AlreadyExists):
        penstock.create(path)
    assert path.read_bytes() == b"mine"


@pytest.mark.parametrize(
    "name", ["notes.txt", "next.draft.tmp", "1.seg", "00000000000000000000.seg", ".hidden", "sub/x"]
)
def test_a_foreign_directory_is_left_alone(path: Path, name: str) -> None:
    """A directory that holds something else is refused, and not one file in it is touched."""
    for each in ("readme", "control.tmp", name):
        path.joinpath(each).parent.mkdir(parents=True, exist_ok=True)
        path.joinpath(each).write_bytes(b"mine")
    before = snapshot(path)
    for call in (penstock.open, penstock.create):
        with pytest.raises(penstock.Usage, match="is neither a log nor empty"):
            call(path)
    with pytest.raises(penstock.NotFound):
        penstock.open(path, mode="r")
    assert snapshot(path) == before


def test_an_empty_directory_becomes_a_log(path: Path) -> None:
    """A directory that was made beforehand is used, and keeps its own mode."""
    path.mkdir(mode=0o755)
    path.chmod(0o755)
    with penstock.create(path) as log:
        assert log.append(b"a") == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o755


def test_create_refuses_a_log(path: Path) -> None:
    """create on an existing log is AlreadyExists and leaves it as it was, open or closed."""
    with penstock.create(path, segment_size="64KiB") as log:
        log.append(b"a")
        with pytest.raises(penstock.AlreadyExists) as caught:
            penstock.create(path)
        assert isinstance(caught.value, FileExistsError)
    before = snapshot(path)
    with pytest.raises(penstock.AlreadyExists):
        penstock.create(path)
    assert snapshot(path) == before


def test_leftovers_of_a_dead_creator(path: Path) -> None:
    """What a process left that died while it made the log does not stand in the way."""
    path.mkdir()
    for name, start in (("next.tmp", BEGUN), ("next.7.tmp", b""), ("control.tmp", CONTROL_MAGIC)):
        path.joinpath(name).write_bytes(start)
    with penstock.open(path) as log:
        log.append(b"a")
    files = {"00000000000000000001.seg", "control", "writers.lock"}
    assert {p.name for p in path.iterdir()} == files


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    ("options", "mask", "file_mode", "dir_mode"),
    [
        ({}, 0o022, 0o600, 0o700),
        ({}, 0, 0o600, 0o700),
        ({"file_mode": 0o660}, 0o077, 0o660, 0o770),
        ({"file_mode": 0o640}, 0o077, 0o640, 0o750),
        ({"file_mode": 0o666}, 0o022, 0o666, 0o777),
    ],
)
def test_permissions(
    path: Path, options: dict[str, Any], mask: int, file_mode: int, dir_mode: int
) -> None:
    """Every file, also a later one, has exactly the mode of the settings, whatever the umask."""
    with umask(mask):
        with penstock.open(path, segment_size="64KiB", **options) as log:
            log.append(b"a")
            log.steward.roll()
            log.append(b"b")
            log.backup(f"{path}-copy")
        path.joinpath("control").unlink()
        penstock.open(path).close()
    for directory in (path, Path(f"{path}-copy")):
        assert stat.S_IMODE(directory.stat().st_mode) == dir_mode
        names = [p for p in directory.iterdir() if p.name != "writers.lock"]
        assert len(names) >= 2
        assert {stat.S_IMODE(p.stat().st_mode) for p in names} == {file_mode}


def test_a_changed_mode_holds_for_new_files(path: Path) -> None:
    """After configure(file_mode=) the next segment has the new mode."""
    with penstock.open(path) as log:
        log.append(b"a")
        log.configure(file_mode=0o640)
        log.steward.roll()
    modes = [stat.S_IMODE(p.stat().st_mode) for p in oracle.segment_paths(path)]
    assert modes == [0o600, 0o640]


def test_a_symbolic_link_to_a_log(path: Path, tmp_path: Path) -> None:
    """A link to the directory opens the log; a link in place of a segment is refused."""
    with penstock.open(path) as log:
        log.append(b"a")
    link = tmp_path / "link"
    link.symlink_to(path)
    with penstock.open(link) as log:
        assert len(log) == 1
    (name,) = oracle.segment_paths(path)
    name.rename(tmp_path / "moved")
    name.symlink_to(tmp_path / "moved")
    with pytest.raises(penstock.PenstockError):
        penstock.open(path)


def test_every_descriptor_is_close_on_exec(log: penstock.Log, path: Path) -> None:
    """No descriptor of a log leaks into programs that this process starts."""
    log.append(b"a")
    seen = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        if target.startswith(str(path)):
            seen += 1
            assert not os.get_inheritable(int(name)), target
    assert seen >= 3


def test_control_is_disposable(path: Path) -> None:
    """Control that is missing, empty or of garbage costs nothing."""
    with penstock.open(path) as log:
        log.append(b"a")
    control = path / "control"
    for n, data in enumerate([None, b"", b"garbage", bytes(4096), b"\xff" * 4096], start=2):
        control.unlink()
        if data is not None:
            control.write_bytes(data)
        with penstock.open(path, mode="r") as log:
            assert len(log) == n - 1
        with penstock.open(path) as log:
            assert log.append(b"b") == n


@pytest.mark.parametrize("mode", ["r", "rw"])
def test_an_old_control_is_only_a_hint(path: Path, mode: Any) -> None:
    """A control page from an earlier moment, put back in place, hides nothing that came later."""
    with penstock.open(path) as log:
        log.append(b"a")
    old = path.joinpath("control").read_bytes()
    with penstock.open(path) as log:
        log.append(b"b")
    with path.joinpath("control").open("r+b") as file:
        inode = path.joinpath("control").read_bytes()[48:76]
        file.write(old[:48] + inode + old[76:])
    with penstock.open(path, mode=mode) as log:
        assert [e.value for e in log] == [b"a", b"b"]


def test_busy_when_control_vanished_under_a_live_log(path: Path) -> None:
    """Control deleted while the log is open cannot split it: the next writer is told Busy."""
    with penstock.open(path) as log:
        log.append(b"a")
        path.joinpath("control").unlink()
        with pytest.raises(penstock.Busy):
            penstock.open(path, timeout=0.05)
        assert log.append(b"b") == 2
    with penstock.open(path, timeout=1) as log:
        assert log.append(b"c") == 3
