"""Opening never deletes, renames or overwrites what is not Penstock's; what is left over goes."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import _core
from penstock import layout as L
from penstock.segments.segment import BEGUN
from tests.support import alone

TEXT = b"Package: penstock\nVersion: 1\n"


def content(path: Path) -> dict[str, bytes]:
    """Every file below a directory, and what is in it."""
    found = {}
    for file in sorted(path.rglob("*")):
        found[str(file.relative_to(path))] = file.read_bytes() if file.is_file() else b""
    return found


def put(path: Path, data: bytes = TEXT) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


FOREIGN = [
    "control",
    "control.tmp",
    "next.tmp",
    "next.5.tmp",
    "next.week.tmp",
    "load.1-1.tmp/photo.jpg",
    "load.1-1.tmp/00000000000000000001.seg",
    "load.balance.tmp/readme",
    "load.1-1.tmp/deep/control",
    "load.1-1.tmp",
    "notes.txt",
]


def repair_in_place(path: Path) -> penstock.Plan:
    return penstock.repair(path, in_place=True)


@pytest.mark.parametrize("name", [*FOREIGN, "consumers/billing"])
@pytest.mark.parametrize("call", [repair_in_place, penstock.verify, penstock.delete])
def test_no_other_call_touches_a_directory_that_is_not_a_log(
    path: Path, name: str, call: Callable[..., Any]
) -> None:
    """Without segments there is nothing to repair, verify or delete, and no file is changed."""
    put(path / "control")
    put(path / name)
    before = content(path)
    with pytest.raises(penstock.NoSuchLog):
        call(path)
    assert content(path) == before


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("call", [penstock.open, penstock.create], ids=["open", "create"])
def test_a_directory_that_is_not_a_log_is_left_alone(
    path: Path, name: str, call: Callable[..., Any]
) -> None:
    """A directory that holds a file of somebody else's is refused by its name, and untouched."""
    put(path / name)
    before = content(path)
    with pytest.raises(penstock.Usage) as told:
        call(path)
    assert repr(name.split("/", maxsplit=1)[0]) in str(told.value)
    assert content(path) == before


@pytest.mark.parametrize("name", ["next.tmp", "control.tmp"])
def test_a_file_of_others_that_stands_in_the_way(path: Path, name: str) -> None:
    """A log goes on beside somebody else's file that has the name of one it needs."""
    with penstock.open(path, segment_size="64KiB") as log:
        log.append(b"1")
    put(path / name)

    with penstock.open(path) as log:
        assert log.append(b"2") == 2
        assert log.steward.roll() == 3
        log.load([b"y" * 1000] * 300)
    assert (path / name).read_bytes() == TEXT
    assert len(penstock.open(path)) == 302
    put(path / name.replace(".tmp", ".0.tmp"))
    with (
        pytest.raises(penstock.AlreadyExists, match=r"0\.tmp.*move it away"),
        penstock.open(path) as log,
    ):
        log.append(b"3")
        log.steward.roll()
    assert (path / name).read_bytes() == TEXT


@pytest.mark.parametrize("name", FOREIGN)
def test_files_of_others_in_a_log_are_kept(path: Path, name: str) -> None:
    """In a log, a file that is called like one of ours keeps its content, and the log goes on."""
    with penstock.open(path, segment_size="64KiB") as log:
        log.append(b"1")
    (path / "control").unlink()
    put(path / name)
    for _ in range(2):
        with penstock.open(path) as log:
            log.steward.roll()
            log.append(b"x" * 44_000)  # has the next segment prepared
            log.load([b"y" * 1000] * 300)
    assert TEXT in content(path).values()
    assert penstock.verify(path).ok
    with penstock.open(path) as log:
        assert len(log) == 603


@pytest.mark.parametrize("kept", ["control", "next.tmp", "load.1-1.tmp"])
def test_links_are_not_followed(path: Path, tmp_path: Path, kept: str) -> None:
    """A link that is called like a leftover is not deleted, and nothing at its end is."""
    put(tmp_path / "target" / "precious")
    path.mkdir()
    (path / kept).symlink_to(tmp_path / "target" / ("precious" if kept != "load.1-1.tmp" else ""))
    with pytest.raises(penstock.Usage, match="is neither a log nor empty"):
        penstock.open(path)
    assert (path / kept).is_symlink()
    assert (tmp_path / "target" / "precious").read_bytes() == TEXT


def test_what_dead_processes_left_is_swept(path: Path) -> None:
    """Leftovers begin as our files do, or hold nothing but zeros; the next open deletes them."""
    put(path / "control", L.CONTROL_MAGIC + bytes(4088))
    put(path / "control.tmp", b"")
    put(path / "next.tmp", BEGUN + bytes(10_000))
    put(path / "next.3.tmp", bytes(8192))
    put(path / "load.2-0.tmp" / "control", L.CONTROL_MAGIC)
    put(path / "load.2-0.tmp" / f"{1:020d}.seg", L.SEGMENT_MAGIC + b"rest")
    put(path / "load.2-0.tmp" / f"{9:020d}.seg", BEGUN + bytes(100) + b"frames")
    put(path / "load.2-0.tmp" / "next.tmp", bytes(10))
    put(path / "load.2-0.tmp" / "writers.lock", b"")
    (path / "load.2-1.tmp").mkdir()
    with penstock.open(path) as log:
        assert log.append(b"1") == 1
    assert sorted(os.listdir(path)) == [f"{1:020d}.seg", "control", "writers.lock"]


@pytest.mark.parametrize("name", ["next.7.tmp", "load.1-1.tmp/precious", "next.tmp"])
def test_zeros_before_data_are_not_zeros(path: Path, name: str) -> None:
    """A file that begins with some zeros, but not a whole sector of them, is somebody's data."""
    put(path / name, bytes(511) + b"data")
    with pytest.raises(penstock.Usage, match="is neither a log nor empty"):
        penstock.open(path)
    assert (path / name).stat().st_size == 515


@pytest.mark.parametrize(
    "name",
    ["x.ring.unfinished", "x.ring.0badcafe.unfinished", "x.ring.resized", "x.ring.a.unfinished"],
)
def test_files_beside_a_ring_are_kept(tmp_path: Path, name: str) -> None:
    """A file beside a ring that is called like a leftover of it keeps its place and content."""
    put(tmp_path / name)
    for _ in range(2):
        with penstock.open(tmp_path / "x.ring", ring="64KiB") as ring:
            ring.append(b"1")
            if name == "x.ring.resized":
                with pytest.raises(penstock.AlreadyExists, match="resized"):
                    ring.resize("128KiB")
            else:
                ring.resize("128KiB")
                ring.resize("64KiB")
    assert (tmp_path / name).read_bytes() == TEXT
    with penstock.open(tmp_path / "x.ring") as ring:
        assert len(ring) == 2


def test_leftovers_beside_a_ring_are_swept(tmp_path: Path) -> None:
    """What a process left that died while it made or resized a ring goes."""
    for name in ("x.ring.0badcafe.unfinished", "x.ring.1badcafe.unfinished", "x.ring.resized"):
        put(tmp_path / name, b"" if "1bad" in name else L.RING_MAGIC + bytes(5000))
    with penstock.open(tmp_path / "x.ring", ring="64KiB") as ring:
        ring.append(b"1")
    assert os.listdir(tmp_path) == ["x.ring"]


def values(count: int) -> Iterator[bytes]:
    return (b"%d " % i + b"x" * 1000 for i in range(count))


def kill_a_load(path: Path, tmp_path: Path, point: str, times: int) -> None:
    """Have a process die in the middle of a load."""

    def victim() -> None:
        with penstock.open(path) as log:
            _core.fail_arm(point, times, signal.SIGKILL)
            log.load(values(300))

    child = alone.start(victim, tmp_path / "victim-errors")
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1]), (tmp_path / "victim-errors").read_text()


@pytest.mark.parametrize(
    ("point", "times"),
    [("load.named", 1), ("load.named", 3), ("load.named", 7), ("load.reserved", 1)],
)
@pytest.mark.parametrize("live", [False, True], ids=["alone", "beside a writer"])
def test_a_killed_load_leaves_nothing(
    path: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    point: str,
    times: int,
    live: bool,
) -> None:
    """The segments of a load that was killed before it was whole are removed, without an alarm."""
    caplog.set_level(logging.INFO)
    with penstock.open(path, segment_size="64KiB") as log:
        log.append(b"first")
        if live:
            kill_a_load(path, tmp_path, point, times)
            assert log.append(b"second") == 2
    if not live:
        kill_a_load(path, tmp_path, point, times)
        with penstock.open(path) as log:
            assert log.append(b"second") == 2
    with penstock.open(path) as log:
        assert [e.value for e in log] == [b"first", b"second"]
        assert log.stats().spurious == {}
        assert log.load(values(300)) == range(3, 303)
    left = [n for n in os.listdir(path) if not n.endswith((".seg", ".lock")) and n != "control"]
    assert left == []
    assert penstock.verify(path).ok
    said = [r.getMessage() for r in caplog.records]
    assert any("load that was killed" in text for text in said)
    assert not any("power" in text for text in said)
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("why", ["another boot", "no note"])
def test_what_a_loss_of_power_may_have_cut_off_is_kept(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, why: str
) -> None:
    """Segments that nothing leads to are kept if pages may be lost, or no killed load had them."""
    with penstock.open(path, segment_size="64KiB") as log:
        log.append(b"first")
    kill_a_load(path, tmp_path, "load.named", 3)
    if why == "another boot":
        (path / "control").unlink()  # as after a boot: nobody vouches for anything
    else:
        for note in path.glob("load.*.tmp/named"):
            note.unlink()
    with penstock.open(path) as log:
        assert log.append(b"second") == 2
    assert len(list(path.glob("lost-*.bin"))) == 3
    said = [r.getMessage() for r in caplog.records if "kept as" in r.getMessage()]
    assert len(said) == 3
    assert all(("lost power" in text) == (why == "another boot") for text in said)


def test_a_roll_reuses_the_seqs_of_a_killed_load(path: Path, tmp_path: Path) -> None:
    """What comes after a killed load takes the seqs that it would have had."""
    with penstock.open(path, segment_size="64KiB") as log:
        log.append(b"first")
        for times in (1, 2, 5):
            kill_a_load(path, tmp_path, "load.named", times)
        assert log.load(values(300)) == range(2, 302)
        assert [e.value for e in log][1:] == list(values(300))
    assert penstock.verify(path).ok
    assert list(path.glob("lost-*")) == []
