"""Rings that somebody changed: a typed error or the right data, never a crash, a hang or a lie.

The changed rings are used in a process of their own, because what this looks for would end pytest.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import layout as L
from tests.unit.ring_frames import picture

FLIPS, LIES = "tests.unit.ring_hostile", "tests.unit.ring_lies"
STORM = os.environ.get("PENSTOCK_STORM") == "1"


def build(path: Path, **options: Any) -> bytes:
    """A small ring in its third lap, with every kind of frame, closed; the bytes of its file."""
    with penstock.create(path, **{"ring": "32KiB", "index": 100, **options}) as log:
        log.append(b"p", producer=("sensor", 1))
        log.configure(file_mode=0o640)
        for i in range(62):
            log.append(b"y" * 520, time=i * 100)
        for i in range(24):
            parts: dict[str, Any] = {"time": 6000 + i * 100, "topic": f"t{i % 3}"}
            if i % 4 == 0:
                parts |= {"key": b"k%d" % i, "headers": {"h": b"v", "n": None}}
            log.append(b"x" * (i * 20), **parts)
        log.extend([b"a", b"bb", penstock.Entry(b"ccc", key=b"")], producer=("sensor", 2))
        log.append(None, key=b"gone")
        log.append(b"z" * 2000)
        log.append(b"last", producer=("other", 1))
    return path.read_bytes()


def attack(script: str, path: Path, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", script, str(path), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=3000 if STORM else 250,
    )
    tail = "\n".join(done.stdout.splitlines()[-1:])
    assert done.returncode == 0 and tail == "done", (
        f"exit {done.returncode} at {tail}\n{done.stderr[-3000:]}"
    )


def flips(start: int, stop: int, step: int) -> list[str]:
    """One flipped bit in every ``step`` bytes of a range; in a storm, every bit of every byte."""
    if STORM:
        return [f"{at}:{bit}" for at in range(start, stop) for bit in range(8)]
    return [f"{at}:{at * 5 % 8}" for at in range(start, stop, step)]


@pytest.mark.timeout(3000 if STORM else 300)
@pytest.mark.parametrize("where", ["own", "copy"])
def test_flips_in_frames(tmp_path: Path, where: str) -> None:
    """A flipped bit in a frame costs that frame's event, and no other, however one reads."""
    path = tmp_path / "a.ring"
    data = build(path)
    whole = picture(data)
    assert {f.kind for f in whole.frames} >= {
        L.KIND_DATA,
        L.KIND_DELETE,
        L.KIND_SETTINGS,
        L.KIND_PRODUCERS,
        L.KIND_PRODUCER,
        L.KIND_WRAP,
    }
    changes = []
    for i, frame in enumerate(whole.frames):
        ends = i < 2 or i > len(whole.frames) - 3
        last = min(frame.end, frame.offset + 64)
        changes += flips(frame.offset + (0 if ends else i % 17), last, 2 if ends else 17)
    attack(FLIPS, path, where, *changes)


@pytest.mark.timeout(3000 if STORM else 300)
@pytest.mark.parametrize("where", ["own", "copy"])
def test_flips_elsewhere(tmp_path: Path, where: str) -> None:
    """A flipped bit in a header, checkpoint, control or index, or between frames, costs nothing."""
    path = tmp_path / "a.ring"
    data = build(path)
    whole = picture(data)
    between = {at for f in whole.frames for at in range(f.end, f.padded)}
    between |= set(range(whole.data_offset, len(data), 61))
    between -= {at for f in whole.frames for at in range(f.offset, f.end)}
    changes = flips(0, L.HEADER_SETTINGS + 40, 5) + flips(L.HEADER_CRC, L.PAGE, 1)
    for slot in (L.SLOT_A_OFFSET, L.SLOT_B_OFFSET):
        changes += flips(slot, slot + L.SLOT_PRODUCER_OFFSET + 8, 3)
        changes += flips(slot + L.SLOT_CRC, slot + L.SLOT_BYTES, 1)
        changes += flips(slot + L.SLOT_BYTES, slot + L.SLOT_BYTES + L.HEADER_SETTINGS + 40, 11)
    changes += flips(L.RING_CONTROL_OFFSET, L.RING_CONTROL_OFFSET + L.C_ROOM_WAITING + 4, 5)
    changes += flips(L.RING_INDEX_OFFSET, L.RING_INDEX_OFFSET + 800, 7)
    changes += [f"{at}:{at % 8}" for at in sorted(between)[:: 1 if STORM else 9]]
    attack(FLIPS, path, where, *changes)


@pytest.mark.parametrize("seed", range(40 if STORM else 6))
def test_lies(tmp_path: Path, seed: int) -> None:
    """Whatever a ring says of itself, with right checksums, using it ends soon and in order."""
    attack(LIES, tmp_path, str(seed), str(250 if STORM else 60))


def test_repair_behind_a_control_frame(tmp_path: Path) -> None:
    """The event right after the settings that begin a ring may be the one that is lost."""
    path, mended = tmp_path / "a.ring", tmp_path / "mended.ring"
    with penstock.create(path, ring="32KiB") as log:
        log.configure(file_mode=0o640)
        for value in (b"first", b"second", b"third"):
            log.append(value)
    data = bytearray(path.read_bytes())
    data[data.index(b"first")] ^= 1
    path.write_bytes(data)
    assert penstock.repair(path, to=mended).lost == ((1, 1),)
    with penstock.open(mended) as log:
        assert [event.value for event in log] == [b"second", b"third"]
        assert log.settings.file_mode == 0o640
        assert log.append(b"more") == 4
    assert penstock.verify(mended).ok
