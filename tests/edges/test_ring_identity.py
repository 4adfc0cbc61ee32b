"""A handle belongs to the ring that it opened, not to a name: nothing is written elsewhere."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock import Gone

COUNT = 50


def filled(path: Path, word: bytes = b"mine") -> penstock.Log:
    """A ring with some events."""
    ring = penstock.create(path, ring="64KiB")
    for n in range(COUNT):
        ring.append(word + b"-%d" % n)
    return ring


def values(ring: penstock.Log) -> list[bytes | None]:
    """All values."""
    return [event.value for event in ring]


def fails(act: Callable[[], object], path: Path) -> None:
    """What the ring's handle does raises Gone, that names the ring."""
    with pytest.raises(Gone) as caught:
        act()
    assert caught.value.errno == errno.ESTALE
    assert caught.value.filename == str(path)


def in_child(work: Callable[[], bool]) -> None:
    """Have a child of a fork do something that is true."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if work() else 3)
        finally:
            os._exit(4)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("how", ["append", "resize", "fork", "verify", "backup", "hold"])
def test_chdir_does_not_redirect_a_ring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A ring that was opened by a relative path stays itself after chdir to where another is."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    filled(there / "a.ring", b"other").close()
    before = (there / "a.ring").read_bytes()
    filled(here / "a.ring").close()
    monkeypatch.chdir(here)
    with penstock.open("a.ring") as ring:
        os.chdir(there)
        assert ring.path == str(here / "a.ring")
        if how == "append":
            ring.append(b"new", durable=True)
        elif how == "resize":
            ring.resize("128KiB")
            ring.append(b"new")
        elif how == "fork":
            in_child(lambda: ring.append(b"new") == COUNT + 1)
        elif how == "verify":
            assert ring.verify().last_seq == ring.append(b"new") - 1
        elif how == "backup":
            ring.append(b"new")
            ring.backup(tmp_path / "copy.ring")
            with penstock.open(tmp_path / "copy.ring") as copy:
                assert len(copy) == COUNT + 1
        else:
            ring.configure(when_full="block")
            ring.follow("start", hold=True).take(1)
            ring.append(b"new")
        assert values(ring)[-1] == b"new"
    with penstock.open(here / "a.ring") as ring:
        assert ring.last_seq == COUNT + 1
    assert (there / "a.ring").read_bytes() == before


@pytest.mark.parametrize("what", ["file", "directory"])
def test_a_renamed_ring_goes_on(tmp_path: Path, what: str) -> None:
    """A ring that was renamed, or whose directory was, takes appends, syncs, forks and readers."""
    (tmp_path / "old").mkdir()
    with filled(tmp_path / "old" / "a.ring") as ring:
        if what == "file":
            new = tmp_path / "old" / "b.ring"
            os.rename(ring.path, new)
            filled(tmp_path / "old" / "a.ring", b"other").close()
        else:
            os.rename(tmp_path / "old", tmp_path / "new")
            new = tmp_path / "new" / "a.ring"
            (tmp_path / "old").mkdir()
            filled(tmp_path / "old" / "a.ring", b"other").close()
        before = (tmp_path / "old" / "a.ring").read_bytes()
        assert ring.append(b"one", durable=True) == COUNT + 1
        in_child(lambda: ring.append(b"two") == COUNT + 2)
        assert ring.verify().ok
        if what == "file":
            with pytest.raises(Gone):
                ring.resize("128KiB")
            assert sorted(os.listdir(tmp_path / "old")) == ["a.ring", "b.ring"]
        else:
            ring.resize("128KiB")
            assert os.listdir(tmp_path / "new") == ["a.ring"]
        assert ring.append(b"three") == COUNT + 3
        assert (tmp_path / "old" / "a.ring").read_bytes() == before
    with penstock.open(new) as ring:
        assert values(ring)[-3:] == [b"one", b"two", b"three"]


@pytest.mark.parametrize("what", ["deleted", "replaced", "made again", "directory"])
def test_a_ring_that_is_gone(tmp_path: Path, what: str) -> None:
    """Of a ring that was deleted or replaced, append, sync, resize and forks raise Gone."""
    (tmp_path / "dir").mkdir()
    path = tmp_path / "dir" / "a.ring"
    ring = filled(path)
    other = tmp_path / "other.ring"
    if what == "directory":
        shutil.rmtree(tmp_path / "dir")
        (tmp_path / "dir").mkdir()
    elif what == "replaced":
        filled(other, b"other").close()
        os.rename(other, path)
    else:
        path.unlink()
    if what in ("made again", "directory"):
        filled(path, b"other").close()
    before = path.read_bytes() if path.exists() else None
    fails(lambda: [ring.append(b"lost") for _ in range(100_000)], path)
    fails(lambda: ring.append(b"lost", durable=True), path)
    fails(ring.sync, path)
    fails(lambda: ring.sync(wait=False), path)
    fails(lambda: ring.resize("128KiB"), path)

    def child() -> bool:
        try:
            ring.append(b"lost")
        except Gone:
            return True
        return False

    in_child(child)
    assert values(ring)[:COUNT] == [b"mine-%d" % n for n in range(COUNT)]
    ring.close()
    assert (path.read_bytes() if path.exists() else None) == before
    assert os.listdir(tmp_path / "dir") == ([] if before is None else ["a.ring"])


def test_two_writers_of_one_name(tmp_path: Path) -> None:
    """Rings that take each other's name again and again keep their own events, every one."""
    path = tmp_path / "a.ring"
    handles = []
    for n in range(20):
        ring = filled(path, b"%d" % n)
        handles.append(ring)
        os.rename(path, tmp_path / f"{n}.ring")
        for handle in handles:
            handle.append(b"x", durable=True)
            with pytest.raises(Gone):
                handle.resize("128KiB")
    for n, ring in enumerate(handles):
        ring.close()
        with penstock.open(tmp_path / f"{n}.ring") as found:
            assert values(found) == [b"%d-%d" % (n, i) for i in range(COUNT)] + [b"x"] * (20 - n)
        assert penstock.verify(tmp_path / f"{n}.ring").ok


def test_a_reader_finds_a_ring_that_was_resized(tmp_path: Path) -> None:
    """A reader without a writer goes on in the new file of its ring, and in no other."""
    path = tmp_path / "a.ring"
    filled(path).close()
    with penstock.open(path, mode="r") as reading:
        with penstock.open(path) as ring:
            ring.resize("128KiB")
            ring.append(b"new")
        assert values(reading)[-1] == b"new"
        path.unlink()
        filled(path, b"other").close()
        assert values(reading)[-1] == b"new"


def test_a_child_finds_a_ring_that_was_resized(tmp_path: Path) -> None:
    """A child that was forked before its parent resized the ring opens the new file."""
    with filled(tmp_path / "a.ring") as ring:
        begins, go = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.read(begins, 1)
                os._exit(0 if ring.append(b"child") == COUNT + 2 else 3)
            finally:
                os._exit(4)
        ring.resize("128KiB")
        ring.append(b"parent")
        os.write(go, b"x")
        assert os.waitpid(pid, 0)[1] == 0
        assert values(ring)[-2:] == [b"parent", b"child"]
        os.close(begins)
        os.close(go)
