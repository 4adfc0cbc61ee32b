"""A small log with every kind of frame, its truth, and ways to break a copy of it."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import penstock
from penstock import layout as L
from tests.unit import oracle

Facts = tuple[Any, ...]
STORM = os.environ.get("PENSTOCK_STORM") == "1"


def facts(event: Any) -> Facts:
    """Everything that a user sees of an event."""
    return (event.seq, event.time_ns, event.topic, event.key, event.value, event.headers)


@dataclass(frozen=True)
class Built:
    """A log, what is in it, and its segments as the oracle reads them."""

    path: Path
    truth: dict[int, Facts]
    segments: list[oracle.Segment]

    def copy(self, target: Path) -> Path:
        """A copy to break; whatever was there is replaced."""
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self.path, target)
        return target

    def seqs_of(self, number: int) -> set[int]:
        """Seqs of the events in one segment."""
        return {f.seq for f in self.segments[number].events}


def build(path: Path, *, control: bool = False) -> Built:
    """Three segments, the last one active: single events, batches, every kind of frame and part."""
    with penstock.open(path, segment_size="64KiB") as log:
        for i in range(12):
            parts: dict[str, Any] = {"time": i * 100, "topic": f"t{i % 3}"}
            if i % 4 == 0:
                parts |= {"key": b"k%d" % i, "headers": {"h": b"v", "n": None}}
            log.append(b"x" * (i * 130), **parts)
        log.extend([b"b1", b"b2" * 20, b"b3"], topic="batch")
        log.steward.roll()
        log.append(b"p", producer=("sensor", 1))
        log.extend([b"a", b"bb", penstock.Entry(b"ccc", key=b"", time=5)], producer=("sensor", 2))
        log.configure(file_mode=0o640)
        log.append(None, key=b"gone")
        log.append(b"y" * 3000)
        log.extend([b"%d" % i * 30 for i in range(8)])
        log.steward.roll()
        for i in range(6):
            log.append(b"z%d" % i * 9)
        log.extend([b"tail", b"of", b"the log"], producer=("sensor", 3))
        log.append(b"last")
        truth = {e.seq: facts(e) for e in log}
    if not control:
        path.joinpath("control").unlink()
    return Built(path, truth, oracle.read_log(path))


def flip(name: Path, offset: int, bit: int) -> None:
    """Turn one bit of a file over."""
    with name.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1 << bit]))


def put(name: Path, offset: int, data: bytes) -> None:
    """Overwrite some bytes of a file."""
    with name.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def resum(name: Path, offset: int) -> None:
    """Give the frame at ``offset`` the checksum that its bytes want."""
    commit = int.from_bytes(read_at(name, offset + L.FRAME_COMMIT, 4), "little")
    nbytes = L.FRAME_HEADER_BYTES - L.FRAME_SEQ + commit - 1
    crc = oracle.crc32c(read_at(name, offset + L.FRAME_SEQ, nbytes))
    put(name, offset + L.FRAME_CRC, crc.to_bytes(4, "little"))


def read_at(name: Path, offset: int, nbytes: int) -> bytes:
    """Some bytes of a file."""
    with name.open("rb") as file:
        file.seek(offset)
        return file.read(nbytes)


def places(seg: oracle.Segment) -> dict[str, range]:
    """The ranges of a segment's bytes that mean something, by what they are."""
    found = {
        "header": range(L.PAGE),
        "slot A": range(L.SLOT_A_OFFSET, L.SLOT_A_OFFSET + L.SLOT_BYTES),
        "index": range(
            L.INDEX_OFFSET,
            L.INDEX_OFFSET
            + (len(oracle.index_entries(seg)) - (not seg.rolled)) * L.INDEX_ENTRY_BYTES,
        ),
        "frames": range(seg.data_offset, seg.end),
    }
    if any(seg.raw[L.SLOT_B_OFFSET : L.SLOT_B_OFFSET + L.SLOT_BYTES]):
        found["slot B"] = range(L.SLOT_B_OFFSET, L.SLOT_B_OFFSET + L.SLOT_BYTES)
    if seg.rolled:
        found["footer"] = range(seg.segment_bytes - L.PAGE, seg.segment_bytes)
    return found
