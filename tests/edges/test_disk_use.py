"""Disk space: a log that nobody writes takes hardly more of it than its frames."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

import penstock
from penstock import layout as L
from tests.support.scene import Scene

pytestmark = pytest.mark.process

SLACK = 256 << 10


def disk_bytes(path: Path) -> int:
    """Bytes that all files of a log take on disk."""
    return sum(p.stat().st_blocks * 512 for p in path.rglob("*") if p.is_file())


def frame_bytes(values: Iterable[int]) -> int:
    """Bytes of the frames of plain values with these lengths."""
    return sum(-(-(L.FRAME_HEADER_BYTES + n) // L.ALIGN) * L.ALIGN for n in values)


def check_disk_use(path: Path) -> None:
    """The log takes at most 1.2 times its frames, and 256 KiB, on disk."""
    with penstock.open(path, mode="r") as log:
        frames = frame_bytes(len(e.value or b"") for e in log)
    assert disk_bytes(path) <= 1.2 * frames + SLACK


SHAPES = {
    "a-few-events": (3, 10, "64MiB"),
    "some-of-a-segment": (2000, 1000, "64MiB"),
    "small-events": (50_000, 20, "64MiB"),
    "several-segments": (20_000, 1000, "4MiB"),
    "nearly-full": (7300, 1000, "8MiB"),
    "small-segments": (900, 1000, "256KiB"),
    "smallest-segments": (400, 1000, "64KiB"),
}


def fill(log: penstock.Log, count: int, size: int) -> None:
    """Append so many values of that size, some at a time."""
    for at in range(0, count, 40):
        log.extend([b"x" * size] * min(40, count - at))


@pytest.mark.parametrize("shape", SHAPES)
def test_close_gives_back_what_was_allocated_ahead(path: Path, shape: str) -> None:
    """After the last writer has closed, a log takes at most 1.2 x its frames + 256 KiB on disk."""
    count, size, segment_size = SHAPES[shape]
    with penstock.open(path, segment_size=segment_size) as log:
        fill(log, count, size)
    check_disk_use(path)
    with penstock.open(path) as log:  # and so does one that is opened again, and appended to
        log.append(b"more")
    check_disk_use(path)
    with penstock.open(path) as log:
        assert len(log) == count + 1
    check_disk_use(path)
    assert penstock.verify(path).ok


def test_load_leaves_nothing_allocated(path: Path) -> None:
    """A load of several segments takes no more disk space than its frames once it is closed."""
    with penstock.open(path, segment_size="1MiB") as log:
        log.append(b"first")
        log.load(b"x" * 1000 for _ in range(10_000))
    check_disk_use(path)
    assert penstock.verify(path).ok


def test_copies_take_no_more_than_their_frames(path: Path, tmp_path: Path) -> None:
    """A backup and a repaired copy have no blocks where the log itself has none."""
    with penstock.open(path, segment_size="64MiB") as log:
        fill(log, 4000, 1000)
        log.steward.roll()
        fill(log, 100, 1000)
        log.append(bytes(3 << 20))  # zeros are data, too
        log.backup(tmp_path / "backup")
    penstock.repair(path, to=tmp_path / "repaired")
    for copied in (tmp_path / "backup", tmp_path / "repaired"):
        check_disk_use(copied)
        with penstock.open(copied) as log, penstock.open(path, "r") as source:
            assert [e.value for e in log] == [e.value for e in source]
            log.append(b"more")
        check_disk_use(copied)
        assert penstock.verify(copied).ok


def test_the_next_close_makes_up_for_a_handle_that_was_dropped(path: Path) -> None:
    """A handle that was not closed leaves space allocated until the next writer closes the log."""
    log = penstock.open(path)
    fill(log, 2000, 1000)
    del log
    penstock.open(path).close()
    check_disk_use(path)


def test_batches_of_short_lived_writers(path: Path) -> None:
    """A log that is opened for each batch, as by Spark's sink, does not grow beyond its frames."""
    for n in range(12):
        with penstock.open(path, segment_size="8MiB") as log:
            log.load((b"%1000d" % i for i in range(700)), producer=("sink", n + 1), durable=True)
        with penstock.open(path, mode="r") as log:
            assert (len(log), len(list(log))) == (700 * n + 700, 700 * n + 700)
        check_disk_use(path)


def test_staged_batches(path: Path, tmp_path: Path) -> None:
    """Files that tasks staged, and the log took over as segments, leave nothing allocated."""
    pyarrow = pytest.importorskip("pyarrow")
    from penstock._core import rows_to_stage
    from penstock.segments.staged import append_staged
    from penstock.segments.staging import Writer

    names = ("value", "key", "topic", "headers", "time")
    pair = pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())])
    plain = (pyarrow.binary(), pyarrow.binary(), pyarrow.string())
    types = (*plain, pyarrow.list_(pair), pyarrow.timestamp("ns"))
    with penstock.open(path, segment_size="1MiB") as log:
        for task in range(3):
            values = [b"x" * 1000, *[None] * 4]
            arrays = [pyarrow.array([v] * 800, t) for v, t in zip(values, types, strict=True)]
            rows = rows_to_stage(pyarrow.record_batch(arrays, names), "rows", *names, 0)
            staged = Writer(str(tmp_path / f"task-{task}"), 1 << 20, 0o600).write([rows])
            append_staged(log, list(staged), producer=("sink", task + 1), durable=True)
    with penstock.open(path, mode="r") as log:
        assert len(log) == 2400
    check_disk_use(path)


def test_last_of_several_writers(path: Path) -> None:
    """While another writer is there, nothing is taken from it; the last one gives it back."""
    first = penstock.open(path)
    fill(first, 2000, 1000)
    second = penstock.open(path)
    second.append(b"second")
    before = disk_bytes(path)
    first.close()
    assert disk_bytes(path) >= before
    fill(second, 2000, 1000)
    second.close()
    check_disk_use(path)


def test_close_beside_readers(path: Path) -> None:
    """Readers that have the log mapped, with and without control, go on after space was freed."""
    writer = penstock.open(path)
    fill(writer, 1000, 1000)
    attached = penstock.open(path, mode="r")
    behind = attached.follow("start", timeout=0)
    assert len(behind.take(10)) == 10
    alone = penstock.open(path, mode="r", timeout=0)
    writer.close()
    check_disk_use(path)
    assert len(behind.take(5000)) == 990
    assert len(list(alone)) == 1000
    with penstock.open(path) as writer:
        fill(writer, 1000, 1000)
    assert len(behind.take(5000)) == 1000
    assert len(list(alone)) == 2000
    attached.close()
    alone.close()


def test_killed_writer_leaves_it_to_the_next(scene: Scene) -> None:
    """What a killed writer had allocated or prepared is given back by the next writer's close."""
    scene.seed(segment_size=8 << 20)
    filler = scene.start("fill", "filler")
    filler.wait_report("filled")
    filler.kill()
    (scene.path / "next.77.tmp").write_bytes(bytes(4 << 20))
    with penstock.open(scene.path):
        (scene.path / "next.78.tmp").write_bytes(bytes(4 << 20))  # of one that died since
    check_disk_use(scene.path)
    assert not list(scene.path.glob("next.*"))
    scene.check_goes_on()


def test_unsealed_segments_of_a_killed_writer(scene: Scene) -> None:
    """Segments that a killed writer left unsealed are sealed, and their slack freed, at a close."""
    scene.seed(segment_size=8 << 20)
    roller = scene.run(
        "run_in_worker", module=__name__, function="roll_and_die", args={"path": str(scene.path)}
    )
    roller.died()
    with penstock.open(scene.path):
        pass
    check_disk_use(scene.path)
    assert penstock.verify(scene.path).ok


def roll_and_die(path: str) -> None:
    """Leave three segments that were rolled early and never sealed."""
    log = penstock.open(path)
    for _ in range(3):
        log.append(b"x" * 3_000_000)
        log.steward.roll()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("end", ["goes on", "dies"])
@pytest.mark.parametrize("point", ["slack.told", "slack.freed"])
def test_writer_that_opens_during_the_close(scene: Scene, point: str, end: str) -> None:
    """A writer that opens the log while another one frees space appends, whoever dies then."""
    scene.seed(segment_size=8 << 20)
    closing = scene.start(
        "write", "closing", operations=[[100_000]] * 9, fail=[point, 1, int(signal.SIGSTOP)]
    )
    closing.wait_stopped()
    coming = scene.start("write", "coming", operations=[[200_000]] * 9)
    coming.wait_report("ready")
    if end == "goes on":
        closing.send(signal.SIGCONT)
        closing.done()
    else:
        closing.kill()
    coming.done()
    scene.check()
    check_disk_use(scene.path)
    scene.check_goes_on()


FULL = """
import os, sys
import penstock

where = sys.argv[1]
path = os.path.join(where, "log")
with penstock.open(path, segment_size="8MiB") as log:
    log.extend([b"x" * 1000] * 1000)
with open(os.path.join(where, "ballast"), "wb", buffering=0) as ballast:
    try:
        while True:
            ballast.write(bytes(4096))
    except OSError:
        ballast.truncate(ballast.tell() - 8192)  # for control
with penstock.open(path) as log:
    assert len(log) == 1000
    appended = 0
    try:
        while True:
            log.append(b"y" * 1000)
            appended += 1
    except penstock.DiskFull:
        pass
    os.unlink(os.path.join(where, "ballast"))
    log.extend([b"z" * 1000] * 1000)
    assert len(list(log)) == 2000 + appended
print("done")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare(1)")
def test_disk_that_became_full_meanwhile(tmp_path: Path) -> None:
    """A log whose disk is full by now opens for writing, and an append is DiskFull, not SIGBUS."""
    where = tmp_path / "small"
    where.mkdir()
    script = f'mount -t tmpfs -o size=12m none "{where}" && exec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", sys.executable, "-c", FULL, str(where)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if "unshare failed" in done.stderr or "permission denied" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr.strip()}")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
