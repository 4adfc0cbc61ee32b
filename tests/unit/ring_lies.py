"""Opens rings that lie, with every checksum right, and uses them; run as a process of its own.

Usage: ring_lies.py DIRECTORY SEED CASES

Header, checkpoints, control, index and frames get numbers that make no sense, and the file may be
cut. Of each case is printed what was changed, before it is tried, so that whoever reads the output
of a process that died knows the last one. Any answer is fine that comes soon: a value, or a
PenstockError that is no bug of Penstock's.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import random
import struct
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import penstock
from penstock import _core
from penstock import layout as L
from tests.unit.ring_frames import Picture, picture

HANG_SECONDS = 60
KINDS = ("header", "slots", "control", "positions", "index", "frames", "cut")
NUMBERS = (0, 1, 7, 8, L.PAGE, 1 << 31, 1 << 32, 1 << 62, (1 << 62) - 8, 1 << 63)


Image = tuple[bytes, Picture]


def build(path: Path, rng: random.Random) -> tuple[Image, Image]:
    """A ring after a clean close, and after the death of a process that had it open."""
    sizes: list[int | str] = ["32KiB", 40_000, "64KiB"]
    indexes = [0, 1, 7, 100, None]
    with penstock.create(path, ring=rng.choice(sizes), index=rng.choice(indexes)) as log:
        log.append(b"p", producer=("a", 1))
        log.configure(file_mode=0o640)
        for i in range(rng.randrange(300)):
            log.append(bytes([i % 256]) * rng.randrange(900), key=b"k%d" % i, time=i)
        if rng.random() < 0.5:
            log.extend([b"b"] * 5, producer=("a", 2))
    clean = path.read_bytes()
    if os.fork() == 0:
        log = penstock.open(path)
        for i in range(rng.randrange(100)):
            log.append(bytes([i]) * rng.randrange(900), durable=i % 20 == 0)
        os._exit(0)
    os.wait()
    dead = path.read_bytes()
    closed = path.with_name("closed")
    closed.write_bytes(dead)
    penstock.open(closed).close()
    return (clean, picture(clean)), (dead, picture(closed.read_bytes()))


class Liar:
    """Changes the bytes of a ring."""

    def __init__(self, image: Image, rng: random.Random) -> None:
        self.data, self.whole = bytearray(image[0]), image[1]
        self.rng = rng

    def number(self, size: int) -> int:
        """One that is likely to do harm."""
        mask = (1 << 8 * size) - 1
        ways = (
            self.rng.randrange(1 << 16),
            mask - self.rng.randrange(64),
            (1 << (8 * size - 1)) + self.rng.randrange(-8, 8),
            self.rng.choice(NUMBERS),
            self.rng.randrange(mask + 1),
        )
        return self.rng.choice(ways) & mask

    def change(self, start: int, stop: int) -> None:
        """Put other numbers somewhere into a part of the file, or such as are nearly right."""
        for _ in range(self.rng.choice([1, 1, 2, 3])):
            size = self.rng.choice([1, 2, 4, 8])
            at = self.rng.randrange(start, stop - size + 1) // size * size
            number = self.number(size)
            if self.rng.random() < 0.5:
                was = int.from_bytes(self.data[at : at + size], "little")
                step = self.rng.choice([-8, 8, -1, 1, 40, -40, L.PAGE, -L.PAGE, 1 << 20])
                number = (was + step) & ((1 << 8 * size) - 1)
            self.data[at : at + size] = number.to_bytes(size, "little")

    def sum(self, start: int, stop: int, at: int) -> None:
        """Bring a checksum up to date."""
        struct.pack_into("<I", self.data, at, _core.crc32c(bytes(self.data[start:stop])))

    def header(self) -> None:
        self.change(8, 200)
        self.sum(0, L.HEADER_CRC, L.HEADER_CRC)

    def slots(self) -> None:
        for slot in self.rng.sample([L.SLOT_A_OFFSET, L.SLOT_B_OFFSET], self.rng.choice([1, 2])):
            self.change(slot, slot + L.SLOT_PRODUCER_OFFSET + 8)
            self.sum(slot, slot + L.SLOT_CRC, slot + L.SLOT_CRC)

    def control(self) -> None:
        self.change(L.RING_CONTROL_OFFSET + L.C_LOCK, L.RING_CONTROL_OFFSET + L.C_ROOM_WAITING + 4)

    def positions(self) -> None:
        self.change(L.RING_CONTROL_OFFSET + L.C_HEAD, L.RING_CONTROL_OFFSET + L.C_GUARD_END + 8)

    def index(self) -> None:
        if self.whole.data_offset > L.RING_INDEX_OFFSET:
            self.change(L.RING_INDEX_OFFSET, self.whole.data_offset)

    def frames(self) -> None:
        for frame in self.rng.choices(self.whole.frames, k=self.rng.choice([1, 2, 5])):
            at = frame.offset
            self.change(at, at + L.FRAME_HEADER_BYTES)
            end = at + L.FRAME_HEADER_BYTES + struct.unpack_from("<I", self.data, at)[0] - 1
            if end <= len(self.data):
                self.sum(at + L.FRAME_SEQ, end, at + L.FRAME_CRC)

    def cut(self) -> None:
        del self.data[self.rng.randrange(len(self.data)) :]


class Trial:
    """One lie, and everything that somebody does who believes it."""

    def __init__(self, path: Path, rng: random.Random) -> None:
        self.path = path
        self.rng = rng
        self.failures = 0

    def attempt(self, action: Callable[[], Any]) -> Any:
        """Do something; None if that is a typed error."""
        try:
            return action()
        except penstock.PenstockError as error:
            if isinstance(error, penstock.Internal):
                self.fail(error)
        except Exception as error:
            self.fail(error)
        return None

    def fail(self, error: Exception) -> None:
        self.failures += 1
        traceback.print_exception(error, limit=-6)

    def mend(self) -> None:
        target = self.path.with_name("mended")
        target.unlink(missing_ok=True)
        penstock.repair(self.path, to=target)
        if target.exists():
            with penstock.open(target) as log:
                list(log)
                log.append(b"x")

    def read(self, log: penstock.Log) -> None:
        loose: dict[str, Any] = {"on_damage": "skip", "on_gap": "skip"}
        ways: list[Callable[[], Iterable[Any]]] = [
            lambda: log,
            lambda: reversed(log),
            lambda: log.read(**loose),
            lambda: log.read(since=50, **loose),
            lambda: log.follow("start", timeout=0, **loose),
            lambda: log.scan(**loose).to_arrow().to_batches(),
            lambda: [log.stats(), len(log), log.topics()],
            *(
                lambda seq=seq: [log[seq]]
                for seq in (1, log.first_seq, self.rng.randrange(1 << 64))
            ),
        ]
        for way in ways:
            self.attempt(lambda way=way: sum(1 for _ in way()))  # type: ignore[misc]

    def write(self, log: penstock.Log) -> None:
        ways: list[Callable[[], Any]] = [
            lambda: log.append(b"z" * self.rng.randrange(3000), timeout=0.2),
            lambda: log.extend([b"z" * 300] * 10, timeout=0.2),
            lambda: log.append(b"q", producer=("a", self.rng.randrange(9)), timeout=0.2),
            lambda: [log.append(b"w" * 2000, timeout=0.2) for _ in range(40)],
            lambda: sum(1 for _ in log.read(on_damage="skip", on_gap="skip")),
            log.sync,
        ]
        if self.rng.random() < 0.2:
            ways.append(lambda: log.resize(self.rng.choice([32768, 50_000, 65_536])))
        for way in ways:
            self.attempt(way)

    def run(self) -> None:
        self.attempt(lambda: penstock.verify(self.path))
        if self.rng.random() < 0.3:
            self.attempt(self.mend)
        for mode in ("r", "rw"):
            log = self.attempt(lambda mode=mode: penstock.open(self.path, mode=mode, timeout=0.2))  # type: ignore[misc]
            if log is None:
                continue
            self.attempt(lambda log=log: self.read(log))  # type: ignore[misc]
            if mode == "rw":
                self.write(log)
            self.attempt(log.close)


def main() -> None:
    logging.disable()
    directory, seed, cases = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(seed)
    own, copy = directory / "own", directory / "copy"
    images = build(own, rng)
    failures = 0
    for number in range(cases):
        liar = Liar(rng.choice(images), rng)
        kinds = sorted(rng.sample(KINDS, rng.choice([1, 1, 2, 3])), key=KINDS.index)
        for kind in kinds:
            getattr(liar, kind)()
        path = rng.choice([own, copy])  # control is trusted in the file that it was made in alone
        print(number, path.name, *kinds, flush=True)
        with path.open("r+b" if path.exists() else "w+b") as file:
            file.write(liar.data)
            file.truncate()
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        trial = Trial(path, rng)
        trial.run()
        faulthandler.cancel_dump_traceback_later()
        if trial.failures:
            print(f"case {number} of seed {seed}: {path.name}, {kinds}", file=sys.stderr)
            failures += trial.failures
    if failures:
        sys.exit(f"{failures} failures")
    print("done", flush=True)


if __name__ == "__main__":
    main()
