"""Files that somebody changed: a typed error or the right data, never a crash, a hang or a lie.

The changed logs are opened in a process of their own, because what this looks for would end pytest.
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
from tests.unit import oracle

SCRIPT = Path(__file__).with_name("hostile.py")
FIRST, SECOND = f"{1:020d}.seg", f"{31:020d}.seg"


def build(path: Path, *, control: bool) -> list[oracle.Segment]:
    """A small log with a sealed and an active segment, and every kind of frame."""
    with penstock.open(path, segment_size="64KiB") as log:
        for i in range(30):
            parts: dict[str, Any] = {"time": i * 100, "topic": f"t{i % 3}"}
            if i % 4 == 0:
                parts |= {"key": b"k%d" % i, "headers": {"h": b"v", "n": None}}
            log.append(b"x" * (i * 40), **parts)
        log.steward.roll()
        log.extend([b"a", b"bb", penstock.Entry(b"ccc", key=b"", time=5)])
        log.configure(segment_size="128KiB")
        log.append(None, key=b"gone")
        log.append(b"y" * 5000)
    if not control:
        path.joinpath("control").unlink()
    return oracle.read_log(path)


def attack(path: Path, name: str, changes: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(path), name, *changes],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    tail = "\n".join(done.stdout.splitlines()[-1:])
    assert done.returncode == 0 and tail == "done", (
        f"exit {done.returncode} at {tail}\n{done.stderr[-3000:]}"
    )


def flips(start: int, stop: int) -> list[str]:
    """One flipped bit in every third byte of a range, or in every byte under PENSTOCK_STORM=1."""
    step = 1 if os.environ.get("PENSTOCK_STORM") == "1" else 3
    return [f"{at}:{at * 5 % 8}" for at in range(start, stop, step)]


@pytest.mark.parametrize("control", [True, False])
@pytest.mark.parametrize("name", [FIRST, SECOND])
def test_flips_in_the_header(path: Path, name: str, control: bool) -> None:
    """A flipped bit in any field of a segment's header is found."""
    build(path, control=control)
    changes = flips(0, L.HEADER_SETTINGS + 50) + flips(L.HEADER_CRC, L.PAGE) + ["1000:3", "0:0"]
    attack(path, name, changes)


@pytest.mark.parametrize("name", [FIRST, SECOND])
def test_flips_in_the_slots(path: Path, name: str) -> None:
    """A flipped bit in a checkpoint slot costs at most that slot."""
    build(path, control=False)
    at = L.SLOT_A_OFFSET
    attack(path, name, flips(at, at + L.SLOT_FLAGS + 8) + flips(at + L.SLOT_CRC, at + L.SLOT_BYTES))


@pytest.mark.parametrize("name", [FIRST, SECOND])
def test_flips_in_the_index(path: Path, name: str) -> None:
    """A flipped bit in the index changes no answer."""
    build(path, control=name == SECOND)
    attack(path, name, flips(L.INDEX_OFFSET, L.INDEX_OFFSET + 5 * L.INDEX_ENTRY_BYTES))


def test_flips_in_the_footer(path: Path) -> None:
    """A flipped bit in the footer makes the segment an unsealed one."""
    segment = build(path, control=False)[0]
    at = segment.segment_bytes - L.PAGE
    attack(
        path, FIRST, flips(at, at + L.FOOTER_TOPICS + 16) + flips(at + L.FOOTER_CRC, at + L.PAGE)
    )


@pytest.mark.parametrize("control", [True, False])
@pytest.mark.parametrize("name", [FIRST, SECOND])
def test_flips_in_frames(path: Path, name: str, control: bool) -> None:
    """A flipped bit in a frame never comes out as an event that nobody appended."""
    sealed, active = build(path, control=control)
    segment = sealed if name == FIRST else active
    frames = [*segment.frames[:2], *segment.frames[-3:]]
    changes = []
    for frame in frames:
        changes += flips(frame.at, frame.at + min(56, frame.length))
    attack(path, name, changes)


def test_flips_in_the_zeros(path: Path) -> None:
    """Bytes that appear after the last frame are no frame."""
    active = build(path, control=False)[1]
    attack(path, SECOND, [*flips(active.end, active.end + 48), f"{active.end + 4096}:1"])


def test_flips_in_control(path: Path) -> None:
    """A flipped bit in a control page that nobody holds costs nothing."""
    build(path, control=True)
    attack(path, "control", flips(0, L.C_ALLOCATIONS + 8))


@pytest.mark.parametrize("control", [True, False])
@pytest.mark.parametrize("name", [FIRST, SECOND])
def test_truncation(path: Path, name: str, control: bool) -> None:
    """A file cut off anywhere is an error or a shorter log, never a crash."""
    sealed, active = build(path, control=control)
    segment = sealed if name == FIRST else active
    last = segment.frames[-1]
    lengths = {0, 1, 8, 100, L.PAGE - 1, L.PAGE, L.PAGE + 100, L.SLOT_B_OFFSET, L.INDEX_OFFSET}
    lengths |= {L.INDEX_OFFSET + 100, segment.data_offset - 1, segment.data_offset}
    for frame in segment.frames[1:3]:
        lengths |= {frame.at, frame.at + 1, frame.at + 39, frame.at + 40, frame.at + 41}
    lengths |= {last.at - 8, last.at + 4, segment.end - 1, segment.end, segment.end + 1}
    size = len(segment.raw)
    lengths |= {size - 1, size - L.PAGE, size - L.PAGE - 1, size + 1, size + L.PAGE, size * 3}
    attack(path, name, [f"t{n}" for n in sorted(lengths)])


def test_truncated_control(path: Path) -> None:
    """A control page of any length but its own is rebuilt."""
    build(path, control=True)
    attack(path, "control", [f"t{n}" for n in (0, 1, 75, 76, 200, 4095, 4096, 4097, 8192)])
