"""A full ring does what its settings say, can be told otherwise, and reports what it loses."""

from __future__ import annotations

import logging
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import _core
from penstock import layout as L
from penstock.ring.ending import WHEN_FULL
from penstock.settings import WhenFull
from tests.unit.ring_shape import fill, shape

STORM = bool(os.environ.get("PENSTOCK_STORM"))

MODES: list[WhenFull] = ["drop", "block", "error"]
POINTS = [
    "lock.taken",
    "publish.reserved",
    "publish.tail",
    "publish.body",
    "publish.written",
    "publish.commit",
    "publish.head",
    "publish.settled",
    "publish.words",
    "lock.given",
]


def fill_to_the_brim(ring: penstock.Log) -> None:
    """Append until not even the smallest event finds room."""
    for size in (500, 50, 0):
        while True:
            try:
                ring.append(bytes(size), timeout=0)
            except penstock.Full:
                break


@pytest.mark.parametrize("held", ["held", "not held"])
@pytest.mark.parametrize("wanted", MODES)
@pytest.mark.parametrize("size", ["32KiB", "256KiB"])
def test_a_full_ring_can_be_configured(
    tmp_path: Path, wanted: WhenFull, held: str, size: str
) -> None:
    """A full ring that raises takes new settings, drops nothing for them, and obeys them."""
    with penstock.create(tmp_path / "full.ring", ring=size, when_full="error") as ring:
        ring.append(b"first", producer=("p", 1))
        reader = ring.follow("start", hold=True) if held == "held" else None
        fill_to_the_brim(ring)
        last = ring.last_seq
        for mode in (0o640, 0o660):
            assert ring.configure(file_mode=mode).file_mode == mode
        assert ring.configure(when_full=wanted).when_full == wanted
        assert (ring.first_seq, ring.last_seq) == (1, last)
        assert shape(ring).when_full == wanted
        takes = wanted == "drop" or (wanted == "block" and reader is None)
        if takes:
            assert ring.append(bytes(500), timeout=0) == last + 1
        else:
            with pytest.raises(penstock.Full):
                ring.append(bytes(500), timeout=0)
    with penstock.open(tmp_path / "full.ring") as ring:
        assert ring.settings.when_full == wanted
        assert ring.settings.file_mode == 0o660


@pytest.mark.parametrize("size", ["32KiB", "64KiB", "256KiB"])
@pytest.mark.parametrize("when_full", ["block", "error"])
def test_a_full_ring_can_be_configured_again_and_again(
    tmp_path: Path, when_full: WhenFull, size: str
) -> None:
    """However often a full ring is configured, it obeys, keeps all events and never waits."""
    path = tmp_path / "often.ring"
    with penstock.create(path, ring=size, when_full=when_full) as ring:
        ring.append(b"first", producer=("p", 1))
        reader = ring.follow("start", hold=True, timeout=0)
        fill_to_the_brim(ring)
        last = ring.last_seq
        for n in range(60):
            mode = 0o640 if n % 2 else 0o660
            assert ring.configure(file_mode=mode).file_mode == mode
            assert ring.settings.file_mode == mode
        assert [event.seq for event in reader] == list(range(1, last + 1))
        assert ring.append(b"again", producer=("p", 1)) == 1
        assert ring.verify().ok


@pytest.mark.parametrize("when_full", ["block", "error"])
def test_a_full_ring_beside_another_handle_says_why_it_cannot_be_configured(
    tmp_path: Path, when_full: WhenFull
) -> None:
    """Where the ring cannot be rewritten, a change too many is `Full`; dropping can be chosen."""
    with (
        penstock.create(tmp_path / "two.ring", ring="32KiB", when_full=when_full) as ring,
        penstock.open(tmp_path / "two.ring") as other,
    ):
        reader = ring.follow("start", hold=True, timeout=0)
        fill_to_the_brim(ring)
        last = ring.last_seq
        with pytest.raises(penstock.Full, match="no other handle has the ring open"):
            for n in range(60):
                ring.configure(file_mode=0o640 if n % 2 else 0o660)
        kept = ring.settings
        assert ring.configure(file_mode=kept.file_mode) == other.settings == kept
        assert (ring.first_seq, ring.last_seq) == (1, last)
        assert next(reader).seq == 1
        assert other.configure(when_full="drop").when_full == "drop"
        assert ring.append(bytes(500)) == last + 1


def test_a_ring_that_was_full_when_it_was_told_to_raise(tmp_path: Path) -> None:
    """A ring that dropped, was full and is told to raise can be configured again."""
    with penstock.create(tmp_path / "was.ring", ring="32KiB") as ring:
        fill(ring, 3)
        ring.configure(when_full="error")
        with pytest.raises(penstock.Full):
            fill(ring, 2)
        first = ring.first_seq
        ring.configure(file_mode=0o640)
        assert ring.first_seq == first
        ring.resize("48KiB")
        ring.resize("32KiB")
        fill_to_the_brim(ring)
        ring.configure(file_mode=0o660)
        ring.configure(when_full="drop")
        fill(ring, 1)


def without_control(path: Path, copy: Path) -> Path:
    """A copy of a ring as it is, of which only the frames are left to say where they begin."""
    copy.write_bytes(path.read_bytes())
    with copy.open("r+b") as file:
        file.seek(L.RING_CONTROL_OFFSET)
        file.write(bytes(L.PAGE))
    return copy


def raising_and_used_up(path: Path, when_full: WhenFull, lost: str) -> Path:
    """A full ring with no room for settings, whose opener must copy them before anything else.

    Without control, what is known of settings may be as old as the oldest frame. The room that is
    kept is taken by other settings, or after a crash by events that were dropped already.
    """
    with penstock.create(path, ring="32KiB") as ring, penstock.open(path) as other:
        ring.append(b"first", producer=("p", 1))
        fill(ring, 1.5, size=0)
        ring.configure(when_full=when_full)
        if lost == "crash":
            return without_control(path, path.with_name("crashed.ring"))
        reader = other.follow("start", hold=True)
        fill_to_the_brim(ring)
        with pytest.raises(penstock.Full, match="no other handle has the ring open"):
            for n in range(60):
                ring.configure(file_mode=0o640 if n % 2 else 0o660)
        reader.close()
    return without_control(path, path.with_name("restarted.ring"))


@pytest.mark.parametrize("lost", ["crash", "restart"])
@pytest.mark.parametrize("when_full", ["block", "error"])
def test_a_ring_that_must_copy_its_settings_first_can_be_told_to_drop(
    tmp_path: Path, when_full: WhenFull, lost: str
) -> None:
    """A full ring that has no room even for a copy of its old settings takes ``drop``."""
    path = raising_and_used_up(tmp_path / "used.ring", when_full, lost)
    with penstock.open(path) as ring, penstock.open(path) as other:
        reader = other.follow("start", hold=True, timeout=0)
        first, last = ring.first_seq, ring.last_seq
        assert other.configure(when_full="drop").when_full == "drop"
        assert obeyed(path) == ring.settings.when_full == "drop"
        assert first <= ring.first_seq <= last == ring.last_seq
        assert ring.append(b"first", producer=("p", 1)) == 1
        assert ring.append(bytes(500), timeout=0) == last + 1
        assert ring.first_seq > first
        reader.close()
        assert ring.verify().ok
    with penstock.open(path, mode="r") as ring:
        assert ring.settings.when_full == "drop"
        assert ring.last_seq == last + 1


@pytest.mark.parametrize("when_full", ["block", "error"])
def test_a_ring_that_is_full_of_damage_can_be_told_to_drop(
    tmp_path: Path, when_full: WhenFull, caplog: pytest.LogCaptureFixture
) -> None:
    """Damaged frames in the way of new settings are dropped, and told, once these allow it."""
    path = tmp_path / "damaged.ring"
    with penstock.create(path, ring="32KiB", when_full=when_full) as ring:
        reader = ring.follow("start", hold=True, on_damage="skip", timeout=0)
        with pytest.raises(penstock.Full):
            for n in range(1000):
                ring.append(value_of(n), timeout=0)
        with penstock.open(path) as other:
            with pytest.raises(penstock.Full, match="no other handle has the ring open"):
                for n in range(60):
                    ring.configure(file_mode=0o640 if n % 2 else 0o660)
            lost, last = damage(path, ring, 2, skip=0), ring.last_seq
            assert other.configure(when_full="drop").when_full == "drop"
            assert ring.append(value_of(n)) == last + 1
        assert 0 < shape(ring).lost_bytes <= lost
        assert "damaged" in caplog.text
        reader.close()


def obeyed(path: Path) -> str:
    """What the writers of a ring obey, by control's word."""
    with path.open("rb") as file:
        file.seek(L.RING_CONTROL_OFFSET + L.C_WHEN_FULL)
        word = int.from_bytes(file.read(4), "little")
    return next(name for name, number in WHEN_FULL.items() if number == word)


def behaviour(ring: penstock.Log) -> str:
    """What a ring does when it is full, by trying."""
    try:
        for _ in range(200):
            ring.append(bytes(1000), timeout=0)
    except penstock.Full:
        return "error"
    if ring.settings.when_full == "drop":
        return "drop"
    reader = ring.follow("start", hold=True)
    try:
        for _ in range(200):
            ring.append(bytes(1000), timeout=0)
    except penstock.Full:
        return "block" if reader.take(1)[0].seq == ring.first_seq else "overwritten"
    return "drop"


def configure(path: Path, when_full: WhenFull, point: str, times: int = 1) -> tuple[int, int]:
    """A process that configures a ring, and dies at a point; its pid, and a pipe that says go."""
    begins, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            ring = penstock.open(path)
            _core.fail_arm(point, times)
            os.write(go, b"go")
            ring.configure(when_full=when_full)
            code = 0
        finally:
            os.kill(os.getpid(), signal.SIGKILL) if code == 0 and point == "-" else os._exit(code)
    os.close(go)
    assert os.read(begins, 2) == b"go"
    os.close(begins)
    return pid, os.waitpid(pid, 0)[1] if point != "-" else 0


@pytest.mark.parametrize("beside", ["alone", "beside"])
@pytest.mark.parametrize("point", POINTS)
def test_death_in_configure(tmp_path: Path, point: str, beside: str) -> None:
    """Wherever configure is killed, the ring does what its settings say: the old or the new."""
    changes: list[tuple[WhenFull, WhenFull]] = [
        ("drop", "block"),
        ("block", "drop"),
        ("error", "block"),
    ]
    for before, after in changes:
        path = tmp_path / f"{before}.ring"
        with penstock.create(path, ring="32KiB", when_full=before) as ring:
            if before != "error":
                fill(ring, 1.5)
        witness = penstock.open(path) if beside == "beside" else None
        _, status = configure(path, after, point, 2 if point == "lock.given" else 1)
        assert status == 0 or os.WTERMSIG(status) == signal.SIGKILL
        ring = witness or penstock.open(path)
        with ring:
            does = behaviour(ring)
            assert ring.settings.when_full == obeyed(path) == does
            done = status == 0 or POINTS.index(point) > POINTS.index("publish.commit")
            assert does == after if done else does in (before, after)


def storm_once(path: Path, rng: random.Random) -> None:
    """One kill of configure at a random moment, beside a reader whose events must stay."""
    before, after = rng.sample(MODES, 2)
    with penstock.create(path, ring="32KiB", when_full=before) as ring:
        if before != "error":
            fill(ring, 1.2)
        pid, _ = configure(path, after, "-")
        time.sleep(rng.random() * 0.0005)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        ring.append(b"x") if before == "drop" else ring._storage.make_ready(ring, 0, None)
        now = ring.settings.when_full
        assert now == obeyed(path)
        assert now in (before, after)
        if now == "drop":
            return
        reader = ring.follow("start", hold=True, timeout=0)
        first = ring.first_seq
        with pytest.raises(penstock.Full):
            for _ in range(100):
                ring.append(bytes(1000), timeout=0)
        seqs = [event.seq for event in reader]
        assert seqs == list(range(first, ring.last_seq + 1))
    path.unlink()


def test_storm_of_deaths_in_configure(tmp_path: Path) -> None:
    """Killed at any moment of configure, a ring never overwrites what a reader holds."""
    rng = random.Random(7)
    for n in range(2000 if STORM else 60):
        storm_once(tmp_path / f"{n}.ring", rng)


def damage(path: Path, ring: penstock.Log, count: int, skip: int = 3) -> int:
    """Flip a bit in the values of some of the oldest events; how many bytes their frames take."""
    data, frame = path.read_bytes(), 0
    seqs = range(ring.first_seq + skip, ring.first_seq + skip + 2 * count, 2)
    with path.open("r+b") as file:
        for seq in seqs:
            value = ring[seq].value
            assert value is not None
            frame = _core.frame_bytes(len(value))
            file.seek(data.index(value) + 50)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 4]))
    return count * frame


def value_of(n: int) -> bytes:
    """A value that no other event has."""
    return b"%08d" % n + bytes(92)


@pytest.mark.parametrize("how", ["append", "extend", "produce"])
def test_a_damaged_frame_is_not_overwritten_in_silence(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Damaged frames that a ring overwrites are counted in lost_bytes and told in a warning."""
    path = tmp_path / "damaged.ring"
    with penstock.create(path, ring="32KiB") as ring:
        for n in range(300):
            ring.append(value_of(n))
        lost = damage(path, ring, 5)
        assert shape(ring).lost_bytes == 0
        last = ring.last_seq
        with caplog.at_level(logging.WARNING, logger="penstock"):
            for n in range(300, 600):
                options: dict[str, Any] = {"producer": ("p", n)} if how == "produce" else {}
                ring.extend([value_of(n)] * (4 if how == "extend" else 1), **options)
        assert shape(ring).lost_bytes == lost
        assert "damaged" in caplog.text
        assert ring.first_seq > last
        assert ring.verify().ok


@pytest.mark.parametrize("when_full", ["block", "error"])
def test_damage_does_not_free_what_a_reader_holds(tmp_path: Path, when_full: WhenFull) -> None:
    """A damaged frame in the way of an append is no reason to drop what a reader holds."""
    path = tmp_path / "held.ring"
    with penstock.create(path, ring="32KiB", when_full=when_full) as ring:
        reader = ring.follow("start", hold=True, on_damage="skip", timeout=0)
        n = 0
        with pytest.raises(penstock.Full):
            for n in range(1000):
                ring.append(value_of(n), timeout=0)
        lost = damage(path, ring, 2)
        for _ in range(3):
            with pytest.raises(penstock.Full):
                ring.append(value_of(n), timeout=0)
        assert ring.first_seq == 1
        assert len(list(reader)) + reader.skipped == ring.last_seq
        for _ in range(50):
            ring.append(value_of(n), timeout=0)
        assert shape(ring).lost_bytes == lost


@pytest.mark.parametrize("wanted", ["block", "error"])
def test_settings_never_wait_for_a_copy_that_nobody_makes(tmp_path: Path, wanted: WhenFull) -> None:
    """A ring that drops takes settings that do not, wherever its newest copy of them stands."""

    def late(*_: object) -> None:
        raise TimeoutError("configure() goes round for ever")

    before = signal.signal(signal.SIGALRM, late)
    try:
        for count in range(1, 120):
            with penstock.create(tmp_path / f"{count}.ring", ring="32KiB") as ring:
                ring.append(b"first", producer=("p", 1))
                for _ in range(count):
                    ring.append(bytes(96))
                signal.setitimer(signal.ITIMER_REAL, 20, 1)
                assert ring.configure(when_full=wanted).when_full == wanted
                signal.setitimer(signal.ITIMER_REAL, 0)
                assert ring.settings.when_full == wanted
                assert ring.append(b"first", producer=("p", 1)) == 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
