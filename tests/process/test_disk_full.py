"""A full disk is an exception, not a signal, and costs nothing that was acknowledged."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.support.acks import Acks
from tests.support.attempts import Attempts
from tests.support.check import check_goes_on, check_log, read_followed
from tests.support.fixtures import STORM
from tests.support.jobs import report
from tests.support.scene import Scene
from tests.support.wait import wait_for
from tests.support.workers import Crew, Worker

pytestmark = pytest.mark.process

FILL = """
import os, sys
import penstock

where = sys.argv[1]
ballast = os.path.join(where, "ballast")
with open(ballast, "wb") as file:
    file.write(bytes(2 << 20))
acknowledged = []
log = penstock.open(os.path.join(where, "log"), segment_size="1MiB")
reader = log.follow("start", timeout=0)
try:
    for n in range(1 << 20):
        size = (n * 37) % 5000
        if n % 7 == 0:
            acknowledged += log.extend([b"%d" % n] * 3)
        else:
            acknowledged.append(log.append(b"." * size))
except penstock.DiskFull as error:
    assert "free some space" in str(error), error
else:
    sys.exit("the disk never became full")
for _ in range(50):
    try:
        acknowledged.append(log.append(b"." * 5000))
    except penstock.DiskFull:
        pass
assert [e.seq for e in log] == acknowledged == [e.seq for e in reader]
assert [e.seq for e in reversed(log)] == acknowledged[::-1]
with penstock.open(log.path, mode="r") as other:
    assert [e.seq for e in other] == acknowledged
os.unlink(ballast)
for n in range(100):
    acknowledged.append(log.append(b"room again" * 100))
assert [e.seq for e in log] == acknowledged
log.close()
with penstock.open(log.path) as log:
    assert [e.seq for e in log] == acknowledged
    log.append(b"and on")
print(len(acknowledged))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare(1)")
def test_a_full_disk(tmp_path: Path) -> None:
    """On a full tmpfs appends raise DiskFull, reads go on, and appends do once there is room."""
    where = tmp_path / "small"
    where.mkdir()
    script = f'mount -t tmpfs -o size=6m none "{where}" && exec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", sys.executable, "-c", FILL, str(where)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if "unshare failed" in done.stderr or "permission denied" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


IMAGE_BYTES = 24 << 20
SEGMENT = 256 << 10
STEP = 1 << 20  # bytes that are set free at a time
DISKS = {
    "tmpfs": 'mount -t tmpfs -o size=24m none "$0"',
    "ext4": 'mkfs.ext4 -q -F -m 0 -b 4096 "$0.image" && mount -o loop "$0.image" "$0"',
    "ext4-1k": 'mkfs.ext4 -q -F -m 0 -b 1024 "$0.image" && mount -o loop "$0.image" "$0"',
}


class Disk:
    """A small disk that only its own workers see by its name, and the test through /proc."""

    def __init__(self, directory: Path, kind: str) -> None:
        self.directory = directory
        self.where = directory / "disk"
        self.where.mkdir()
        with (directory / "disk.image").open("wb") as image:
            image.truncate(IMAGE_BYTES)
        under = ["unshare", "-m", "sh", "-c", f'{DISKS[kind]} && exec "$@"', str(self.where)]
        tried = subprocess.run([*under, "true"], capture_output=True, text=True, check=False)
        if tried.returncode != 0:
            pytest.skip(f"no {kind} can be mounted here: {tried.stderr.strip()}")
        self.crew = Crew(under=under)
        self.seen = Path(f"/proc/{self.crew.pid}/root{self.where}")
        self.scene = Scene(self.crew, directory)
        self.scene.path = self.where / "log"

    def run(self, function: str, **args: Any) -> Worker:
        """Run a function of this module in a process that sees the disk."""
        plain = {k: str(v) if isinstance(v, Path) else v for k, v in args.items()}
        return self.scene.run("run_in_worker", module=__name__, function=function, args=plain)

    def fill(self) -> None:
        """Take all the room that is left, to the last block."""
        with (self.seen / "ballast").open("ab") as ballast:
            for nbytes in (1 << 20, 1 << 16, 1 << 12, 512, 1):
                with contextlib.suppress(OSError):
                    while True:
                        os.write(ballast.fileno(), bytes(nbytes))

    def free(self, nbytes: int) -> bool:
        """Give some of it back; False if there was not so much."""
        ballast = self.seen / "ballast"
        left = ballast.stat().st_size - nbytes
        os.truncate(ballast, max(0, left))
        return left > 0


@pytest.fixture(params=list(DISKS) if STORM else ["tmpfs", "ext4"])
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Disk]:
    """A small disk."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("mounting a small disk needs root and unshare(1)")
    made = Disk(tmp_path, request.param)
    yield made
    made.crew.clear()
    made.crew.close()


def write_at_the_edge(path: str, acks: str, writer: str, end: str) -> None:
    """Append and roll for ever, again and again refused for want of room."""
    log = penstock.open(path, timeout=60)
    mine = Acks(acks, writer)
    rng = random.Random(writer)
    while not os.path.exists(end):
        try:
            if rng.random() < 0.05:
                log.steward.roll()
            else:
                mine.append_random(log, rng, 60_000)
        except penstock.DiskFull:
            time.sleep(0.001)
    log.close()


def come_and_go(path: str, acks: str, end: str) -> None:
    """Open the log for writing, append and close, over and over."""
    mine = Acks(acks, "guest")
    while not os.path.exists(end):
        try:
            with penstock.open(path, timeout=60) as log:
                mine.append(log, [3000])
        except penstock.DiskFull:
            pass


def check_all(path: str, acks: list[str]) -> None:
    """The checks that need to see the disk."""
    files = [Path(file) for file in acks]
    report(prints=check_log(Path(path), files))
    check_goes_on(Path(path), files)


def count(file: Path, kind: str) -> int:
    """How many lines of a kind a writer has written down."""
    return file.read_bytes().count(f"{kind} ".encode()) if file.exists() else 0


def test_processes_on_a_full_disk(disk: Disk) -> None:
    """While a disk is filled and freed, writers are refused and go on, and readers read it all."""
    rounds = 12 if STORM else 5
    disk.run("make_log", path=disk.scene.path).done()
    end = disk.directory / "end"
    names = ["one", "two", "three"]
    acks = [disk.scene.acks_of(name) for name in names]
    disk.fill()
    disk.free(STEP)
    writers = [
        disk.run("write_at_the_edge", path=disk.scene.path, acks=a, writer=n, end=end)
        for n, a in zip(names, acks, strict=True)
    ]
    guest = disk.run("come_and_go", path=disk.scene.path, acks=disk.scene.acks_of("guest"), end=end)
    followed = [disk.directory / "followed-r", disk.directory / "followed-rw"]
    followers = [
        disk.scene.run("follow", path=disk.scene.path, out=out, mode=mode)
        for out, mode in zip(followed, ("r", "rw"), strict=True)
    ]
    for _ in range(rounds):
        refused = [count(a, "r") for a in acks]
        wait_for(partial(grown, acks, "r", refused), "every writer to find the disk full")
        appended = [count(a, "a") for a in acks]
        assert disk.free(STEP)
        wait_for(partial(grown, acks, "a", appended), "every writer to find room again")
    disk.free(IMAGE_BYTES)
    end.touch()
    for worker in (*writers, guest):
        worker.done()
    disk.scene.start("write", "stop", operations=[[0]]).done()
    for follower in followers:
        follower.done()
    checker = disk.run("check_all", path=disk.scene.path, acks=[str(a) for a in disk.scene.acks])
    checker.done()
    prints = checker.wait_report("prints")
    for out in followed:
        assert read_followed(out) == list(enumerate(prints, start=1))


def grown(files: list[Path], kind: str, before: list[int]) -> bool:
    """Whether each of the files has more lines of that kind than before."""
    return all(count(f, kind) > b for f, b in zip(files, before, strict=True))


def make_log(path: str) -> None:
    """A new log."""
    penstock.open(path, segment_size=SEGMENT).close()


def fill_segments(path: str, acks: str) -> None:
    """Append to several segments and die before any of them is sealed."""
    log = penstock.open(path, segment_size=SEGMENT)
    mine = Acks(acks, "filler")
    for _ in range(20):
        mine.append(log, [55_000])
    os.kill(os.getpid(), signal.SIGKILL)


def copy_with_holes(path: str, copy: str, newest: bool) -> None:
    """Copy a log as tools do that leave out zeros, and without its control."""
    os.mkdir(copy, 0o700)
    *older, last = sorted(name for name in os.listdir(path) if name.endswith(".seg"))
    for name in (*older, last):
        sparse = "always" if newest or name != last else "never"
        source, target = f"{path}/{name}", f"{copy}/{name}"
        subprocess.run(["cp", f"--sparse={sparse}", source, target], check=True)


def open_in_each_mode(path: str, acks: str) -> None:
    """Read it, then open it for writing and append; report how that ends."""
    with penstock.open(path, mode="r") as log:
        report(read=sum(1 for _ in log))
    mine = Acks(acks, os.path.basename(acks))
    attempt = Attempts()

    def write() -> None:
        with penstock.open(path) as log:
            mine.append(log, [3000], durable=True)

    attempt("write", write)
    report(refused=attempt.refusals)


@pytest.mark.parametrize("state", ["control", "no-control", "holes", "holes-before-the-end"])
def test_opening_on_a_full_disk(disk: Disk, state: str) -> None:
    """A log that must be repaired on a full disk is read, is DiskFull or opens, never a signal."""
    path = disk.scene.path
    disk.run("fill_segments", path=path, acks=disk.scene.acks_of("filler")).died()
    if state == "no-control":
        (disk.seen / "log" / "control").unlink()
    elif state.startswith("holes"):
        copy = disk.where / "copy"
        disk.run("copy_with_holes", path=path, copy=copy, newest=state == "holes").done()
        disk.scene.path = path = copy
    disk.fill()
    present = 20
    for turn in ("first", "second"):
        acks = disk.scene.acks_of(turn)
        opener = disk.run("open_in_each_mode", path=path, acks=acks)
        opener.done()
        assert opener.wait_report("read") == present
        assert {kind for _, kind, _ in opener.wait_report("refused")} <= {"DiskFull"}
        present += count(acks, "a")
    disk.free(IMAGE_BYTES)
    disk.run("check_all", path=path, acks=[str(a) for a in disk.scene.acks]).done()
