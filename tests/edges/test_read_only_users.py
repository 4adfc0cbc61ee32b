"""Users who may only read a log: whatever they lock, writers go on."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import layout as L
from tests.support import jobs
from tests.support.acks import Acks
from tests.support.rings import RingScene
from tests.support.scene import Scene
from tests.support.workers import Crew, Worker

pytestmark = pytest.mark.process

READER = 65534
F_OFD_GETLK, F_OFD_SETLK = 36, 37
TO_THE_END = 0  # as the length of a lock


@pytest.fixture(params=[Scene, RingScene], ids=["segmented", "ring"])
def shared(request: pytest.FixtureRequest, crew: Crew) -> Iterator[Scene]:
    """A log that everybody may read and its owner alone may write."""
    yield from _shared(request.param, crew)


@pytest.fixture
def directory(crew: Crew) -> Iterator[Scene]:
    """Likewise, always a segmented one."""
    yield from _shared(Scene, crew)


def _shared(kind: type[Scene], crew: Crew) -> Iterator[Scene]:
    if os.geteuid() != 0:
        pytest.skip("taking another user's place needs root")
    place = Path(tempfile.mkdtemp(prefix="penstock-"))
    place.chmod(0o755)
    scene = kind(crew, place)
    scene.seed()
    publish(scene)
    yield scene
    crew.clear()
    shutil.rmtree(place)


def publish(scene: Scene) -> None:
    """Let everybody read the files that are there by now, as file_mode=0o644 would."""
    if scene.path.is_dir():
        scene.path.chmod(0o755)
        for file in scene.path.iterdir():
            if file.name != "writers.lock":
                file.chmod(0o644)
    else:
        scene.path.chmod(0o644)


def lock_as_reader(path: str, ranges: list[list[int]], whole: list[str]) -> None:
    """The reader's part: lock every file that can be opened, in every way, and stay."""
    os.setgroups([])
    os.setresgid(READER, READER, READER)
    os.setresuid(READER, READER, READER)
    files = [os.path.join(path, n) for n in os.listdir(path)] if os.path.isdir(path) else [path]
    held = []
    for file in files:
        try:
            fd = os.open(file, os.O_RDONLY)
        except PermissionError:
            continue
        held.append(fd)
        for start, length in ranges:
            lock_what_is_free(fd, start, length)
    for how in whole:
        fd = os.open(path, os.O_RDONLY)
        held.append(fd)
        fcntl.flock(fd, fcntl.LOCK_SH if how == "shared" else fcntl.LOCK_EX)
    jobs.report(locked=len(held))
    signal.pause()


def lock_what_is_free(fd: int, start: int, length: int) -> None:
    """Take read locks on a range of bytes, but for those on which a writer has a lock."""
    end = start + length if length else 1 << 62
    while start < end:
        wanted = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, start, end - start, 0)
        kind, _, taken, count, _ = struct.unpack("hhqqi4x", fcntl.fcntl(fd, F_OFD_GETLK, wanted))
        stop = end if kind == fcntl.F_UNLCK else taken
        if stop > start:
            free = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, start, stop - start, 0)
            fcntl.fcntl(fd, F_OFD_SETLK, free)
        start = end if kind == fcntl.F_UNLCK else taken + count


def attack(scene: Scene, *ranges: tuple[int, int], whole: tuple[str, ...] = ()) -> Worker:
    """Start a reader that locks ranges of bytes of every file, and the log as a whole."""
    args: dict[str, Any] = {"path": str(scene.path), "ranges": ranges, "whole": whole}
    reader = scene.run("run_in_worker", module=__name__, function="lock_as_reader", args=args)
    assert reader.wait_report("locked")
    return reader


def append(log: penstock.Log, scene: Scene, name: str, count: int = 3) -> None:
    """Append, each event on disk before the next one, and acknowledge."""
    mine = Acks(str(scene.acks_of(name)), name)
    for _ in range(count):
        mine.append(log, [300], timeout=20, durable=True)
    mine.close()


@pytest.mark.parametrize("start", [1 << 31, (1 << 31) + 1, 0], ids=["sync", "write", "all"])
def test_open_writers_go_on(shared: Scene, start: int) -> None:
    """Read locks on any byte, also all of them, do not stop writers that have the log open."""
    with penstock.open(shared.path) as log:
        publish(shared)
        attack(shared, (start, TO_THE_END if start == 0 else 1))
        append(log, shared, "writer")
        log.sync(timeout=20)
    shared.check()


def test_tokens_to_come(shared: Scene) -> None:
    """Read locks on the tokens that the next writers would take do not keep these out."""
    with penstock.open(shared.path) as log:
        publish(shared)
        attack(shared, (L.TOKEN_BYTE, 40))
        with penstock.open(shared.path, timeout=20) as other:
            append(other, shared, "other")
        append(log, shared, "writer")
    with penstock.open(shared.path, timeout=20) as log:
        append(log, shared, "later")
    shared.check()


def test_every_token_of_a_segmented_log(directory: Scene) -> None:
    """A reader that locks all it can keeps no writer of a segmented log out, now or later."""
    attack(directory, (0, TO_THE_END))
    for name in ("first", "second"):
        with penstock.open(directory.path, timeout=20) as log:
            publish(directory)
            attack(directory, (0, TO_THE_END))
            with penstock.open(directory.path, timeout=20) as other:
                append(other, directory, f"other-{name}")
            append(log, directory, name)
    directory.check()


def test_every_token_of_a_ring(crew: Crew) -> None:
    """A ring is one file: who reads it can keep new writers out, who are told how to find out."""
    for ring in _shared(RingScene, crew):
        with penstock.open(ring.path) as log:
            publish(ring)
            reader = attack(ring, (0, TO_THE_END))
            with pytest.raises(penstock.Busy, match="/proc/locks"):
                penstock.open(ring.path, timeout=0.1)
            append(log, ring, "writer")
            reader.kill()
            penstock.open(ring.path, timeout=20).close()


@pytest.mark.parametrize("locked", ["before", "after"])
def test_token_of_a_dead_holder(shared: Scene, locked: str) -> None:
    """A reader's lock on the token of a writer that died with the lock makes it no live one."""
    with penstock.open(shared.path) as log:
        publish(shared)
        append(log, shared, "writer")
        if locked == "before":
            attack(shared, (L.TOKEN_BYTE, 2))  # not yet the next one's
        victim = shared.start(
            "write", "victim", operations=[[50]] * 3, fail=["publish.body", 2, int(signal.SIGKILL)]
        )
        victim.died()
        attack(shared, (L.TOKEN_BYTE, TO_THE_END))
        append(log, shared, "after")
    shared.check()


def test_turn_of_a_dead_syncer(shared: Scene) -> None:
    """Nor does it keep the turn to sync with a writer that died in a sync."""
    with penstock.open(shared.path) as log:
        publish(shared)
        job = "sync" if shared.path.is_dir() else "sync_ring"
        shared.start(job, "victim", fail=["sync.begun", 1, int(signal.SIGKILL)]).died()
        attack(shared, (0, TO_THE_END))
        append(log, shared, "after")
    shared.check()


@pytest.mark.parametrize("whole", ["shared", "exclusive"])
def test_directory_locked_as_a_whole(directory: Scene, whole: str) -> None:
    """flock(2) on the directory by a reader keeps no writer out, first or later ones."""
    attack(directory, (0, TO_THE_END), whole=(whole,))
    with penstock.open(directory.path, timeout=20) as log:
        with penstock.open(directory.path, timeout=20) as other:
            append(other, directory, "other")
        append(log, directory, "writer")
    with penstock.open(directory.path, timeout=20) as log:
        append(log, directory, "later")
        log.steward.roll()
        append(log, directory, "rolled")
    assert penstock.verify(directory.path).ok


@pytest.mark.parametrize("whole", ["shared", "exclusive"])
def test_control_of_another_boot_behind_a_lock(directory: Scene, whole: str) -> None:
    """After a reboot, the first writer gets in although a reader has the directory locked."""
    control = directory.path / "control"
    page = bytearray(control.read_bytes())
    page[L.C_BOOT_ID] ^= 0xFF
    struct.pack_into("<I", page, L.C_CRC, penstock._core.crc32c(bytes(page[: L.C_CRC])))
    control.write_bytes(page)
    attack(directory, whole=(whole,))
    with penstock.open(directory.path, timeout=20) as log:
        append(log, directory, "writer")
    assert penstock.verify(directory.path).ok


def test_ring_locked_as_a_whole(crew: Crew) -> None:
    """flock(2) on a ring's file keeps openers out; they are told where to look for the cause."""
    for ring in _shared(RingScene, crew):
        with penstock.open(ring.path) as log:
            publish(ring)
            log.append(b"x")
        reader = attack(ring, whole=("exclusive",))
        with pytest.raises(penstock.Busy, match="/proc/locks"):
            penstock.open(ring.path, timeout=0.1)
        reader.kill()
        with penstock.open(ring.path, timeout=20) as log:
            append(log, ring, "writer")


def test_dead_reader_of_a_ring_that_was_held(crew: Crew) -> None:
    """A read lock does not make a dead reader that held a ring look alive."""
    for ring in _shared(RingScene, crew):
        with penstock.open(ring.path) as log:
            log.configure(when_full="block")
            publish(ring)
            holder = ring.run(
                "run_in_worker", module=__name__, function="hold", args={"path": str(ring.path)}
            )
            holder.wait_report("holding")
            attack(ring, (L.HOLD_BYTE + 1, L.HOLDS_MAX))
            holder.kill()
            attack(ring, (0, TO_THE_END))
            for _ in range(200):
                log.append(b"x" * 5000, timeout=20)


def hold(path: str) -> None:
    """Hold a ring at its oldest event, and stay."""
    log = penstock.open(path)
    reader = log.follow("start", hold=True)
    jobs.report(holding=next(reader).seq)
    signal.pause()


def test_only_writers_can_open_the_lock(directory: Scene) -> None:
    """The file that writers lock has bits for those only who may write, whatever file_mode is."""
    lock = directory.path / "writers.lock"
    assert lock.stat().st_mode & 0o777 == 0o600
    lock.chmod(0o644)  # as a recursive chmod would
    penstock.open(directory.path).close()
    assert lock.stat().st_mode & 0o777 == 0o600
    assert lock.stat().st_size == 0


def test_lock_that_was_replaced(path: Path) -> None:
    """A writer that finds another lock file than open writers have is refused, and harms none."""
    with penstock.open(path) as log:
        log.append(b"a")
        (path / "writers.lock").unlink()
        with pytest.raises(penstock.Busy, match=r"writers\.lock"):
            penstock.open(path, timeout=0.1)
        assert log.append(b"b") == 2
    with penstock.open(path) as log:
        assert log.append(b"c") == 3


def attack_consumers(scene: Scene) -> Worker:
    """Start a reader that locks all bytes of every consumer's file."""
    folder = scene.path / "consumers"
    folder.chmod(0o755)
    for file in folder.iterdir():
        file.chmod(0o644)
    args: dict[str, Any] = {"path": str(folder), "ranges": [(0, TO_THE_END)], "whole": []}
    reader = scene.run("run_in_worker", module=__name__, function="lock_as_reader", args=args)
    assert reader.wait_report("locked")
    return reader


def test_consumers_that_a_reader_locks(directory: Scene) -> None:
    """A reader keeps a consumer from being opened while it lives, and says where to look; a
    consumer that is open goes on, and so does the log."""
    with penstock.open(directory.path) as log:
        publish(directory)
        with log.consumer("open", timeout=0) as consumer:
            log.consumer("closed").close()
            reader = attack_consumers(directory)
            append(log, directory, "writer")
            consumer.poll()
            consumer.commit(durable=True)
            for call in (log.consumer, log.consumers().delete):
                with pytest.raises(penstock.Busy, match=r"only read the file .*/proc/locks"):
                    call("closed")
                with pytest.raises(penstock.Busy, match="has an owner, which is alive"):
                    call("open")
        reader.kill()
        log.consumer("closed").close()
    directory.check()


def test_a_lock_hides_no_consumer_from_the_first_opener(directory: Scene) -> None:
    """A consumer of a log that lost events passes over none of those to come, also if a reader had
    its file locked when the log was opened."""
    older = directory.path.with_name("older")
    with penstock.open(directory.path) as log:
        log.backup(older)
        log.extend([b"lost"] * 10)
        with log.consumer("billing", start="end") as consumer:
            consumer.commit(durable=True)
    shutil.copytree(directory.path / "consumers", older / "consumers")
    shutil.rmtree(directory.path)
    older.rename(directory.path)  # as after a loss of power: the consumer is ahead of its log
    publish(directory)
    reader = attack_consumers(directory)
    with penstock.open(directory.path) as log:
        log.extend([b"new"] * 20)
        reader.kill()
        with log.consumer("billing", timeout=0) as consumer:
            assert [event.value for event in consumer.poll(100)] == [b"new"] * 20
