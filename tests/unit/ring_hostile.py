"""Opens changed copies of a ring in every way and uses them; run as a process of its own.

Usage: ring_hostile.py FILE own|copy OFFSET:BIT ...

FILE is a ring that was closed. Each mutation is made in FILE itself, so that its control is still
trusted, or in a copy of it, and printed before it is tried, so that whoever reads the output of a
process that died knows the last one. Every call gives what the untouched ring has, or raises a
PenstockError that says where; events whose frames were not touched are never lost.
"""

from __future__ import annotations

import faulthandler
import logging
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import penstock
from penstock import layout as L
from tests.unit.ring_frames import Frame, Picture, picture

HANG_SECONDS = 60
FAILURES_MAX = 20
LAP = 40  # appends of LAP_BYTES that fill the ring more than once
LAP_BYTES = 400

Facts = tuple[Any, ...]


def facts(event: Any) -> Facts:
    return (event.seq, event.time_ns, event.topic, event.key, event.value, event.headers)


class Case:
    """One mutation, and what is true of the ring in spite of it."""

    def __init__(self, path: Path, image: bytes, whole: Picture, truth: dict[int, Facts]) -> None:
        self.path = path
        self.image = image
        self.whole = whole
        self.truth = truth
        self.hit: Frame | None = None
        self.padding = False

    def mutate(self, change: str) -> None:
        offset, bit = map(int, change.split(":"))
        data = bytearray(self.image)
        data[offset] ^= 1 << bit
        with self.path.open("r+b") as file:
            file.write(data)
        self.offset = offset
        self.hit = next((f for f in self.whole.frames if f.offset <= offset < f.end), None)
        self.padding = self.hit is None and any(
            f.end <= offset < f.padded for f in self.whole.frames
        )

    @property
    def in_header(self) -> bool:
        copies = (range(at, at + L.COPY_BYTES) for at in (L.COPY_A_OFFSET, L.COPY_B_OFFSET))
        return self.offset < L.PAGE or any(self.offset in copy for copy in copies)

    @property
    def left(self) -> dict[int, Facts]:
        """The events whose frames are as they were."""
        lost = self.hit.seq if self.hit is not None and self.hit.is_event else None
        return {seq: facts for seq, facts in self.truth.items() if seq != lost}

    def same(self, events: Iterable[Any], wanted: dict[int, Facts], what: str) -> None:
        found = {e.seq: facts(e) for e in events}
        if found != wanted:
            missing = sorted(wanted.keys() - found.keys())
            more = sorted(found.keys() - wanted.keys())
            raise AssertionError(f"{what}: missing {missing}, more {more}, or others differ")

    def named(self, error: penstock.Corrupt) -> None:
        """The error says which file, and where in it."""
        assert error.path == str(self.path), error
        assert str(self.path) in str(error)
        assert error.offset is not None, error

    def read(self, log: penstock.Log) -> None:
        left = self.left
        strict: dict[str, Callable[[], Iterable[Any]]] = {
            "forward": lambda: log,
            "backward": lambda: reversed(log),
            "following": lambda: log.follow("start", timeout=0),
            "by time": lambda: log.read(since=0),
        }
        for name, way in strict.items():
            try:
                self.same(way(), self.truth, name)
            except penstock.Corrupt as error:
                assert self.hit is not None, error
                self.named(error)
        skipping = {
            "forward": log.read(on_damage="skip"),
            "backward": log.read(on_damage="skip", reverse=True),
            "following": log.follow("start", timeout=0, on_damage="skip"),
        }
        for name, reader in skipping.items():
            self.same(reader, left, f"{name}, past damage")
            self.counted(name, reader.skipped)
        table = log.scan(on_damage="skip").to_arrow()
        assert table.column("seq").to_pylist() == sorted(left), "a scan past damage"
        assert table.column("value").to_pylist() == [left[seq][4] for seq in sorted(left)]
        for seq in self.truth:
            try:
                self.same([log[seq]], {seq: self.truth[seq]}, f"log[{seq}]")
            except (penstock.Corrupt, penstock.NotFound):
                assert seq not in left, f"log[{seq}] is there, and was not found"
        assert log.last_seq == max(self.truth)
        assert log.first_seq in (min(self.truth), min(left))
        log.stats()

    def counted(self, name: str, skipped: int) -> None:
        """What was passed over is counted, as far as it can be known."""
        lost = len(self.truth) - len(self.left)
        may = {lost}
        if self.hit is not None and self.hit.seq == min(self.truth):
            may.add(0)  # which seq the oldest frame had may not be known any more
        if self.hit is not None and self.hit.seq == max(self.truth) and name == "following":
            may = {0}  # until something valid follows
        assert skipped in may, f"{name}: skipped {skipped}, not {lost}"

    def append(self, log: penstock.Log) -> None:
        """A lap of appends succeeds, and leaves nothing of the damage."""
        first = log.append(b"more", time=1)
        assert first == max(self.truth) + 1
        assert log[first].value == b"more"
        for i in range(LAP):
            log.append(b"%03d" % i + bytes(LAP_BYTES))
        last = log.extend([b"the", b"end"])[-1]
        assert [e.value for e in log.read(start=last - 1)] == [b"the", b"end"]
        assert [e.seq for e in log] == list(range(log.first_seq, last + 1))
        assert [e.seq for e in reversed(log)] == list(range(last, log.first_seq - 1, -1))

    def check(self, scratch: Path) -> None:
        """Verify finds what was done, and repair saves the rest."""
        report = penstock.verify(self.path)
        said = [p for p in report.problems if p.severity == "damage"]
        if self.hit is not None:
            assert not report.ok
            assert all(p.offset is not None and p.path == str(self.path) for p in said)
            assert self.hit.offset in [p.offset for p in said], (self.hit, report)
            if self.hit.is_event and self.hit is not self.whole.frames[0]:
                assert any(p.lost == (self.hit.seq, self.hit.seq) for p in said), report
        elif self.in_header:
            assert [p.kind for p in said] == ["header"], report
        else:
            assert report.ok, report
        assert report.events == len(self.left), report
        target = scratch / "mended"
        plan = penstock.repair(self.path, to=target)
        assert bool(plan.steps) == (not report.ok)
        again = penstock.verify(target)
        assert again.ok and not again.problems, again
        with penstock.open(target) as log:
            self.same(log, self.left, "a repaired copy")
            self.same(reversed(log), self.left, "a repaired copy, backwards")
            for seq in self.left:
                assert log[seq].seq == seq
            assert log.append(b"goes on") == max(self.truth) + 1
        target.unlink()

    def run(self, mode: Any, scratch: Path) -> None:
        if mode == "r":
            self.check(scratch)
        with penstock.open(self.path, mode=mode) as log:
            self.read(log)
            if mode == "rw":
                self.append(log)
        if mode == "rw":
            # A damaged copy of the header is written again with the next checkpoint there.
            assert penstock.verify(self.path).ok or self.in_header


def main() -> None:
    logging.disable()
    own, where, changes = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    image = own.read_bytes()
    copy = own.with_name("copy")
    copy.write_bytes(image)
    with penstock.open(copy) as log:
        truth = {e.seq: facts(e) for e in log}
    path = own
    if where == "copy":
        path = copy
    failures = 0
    case = Case(path, image, picture(image), truth)
    assert {f.seq for f in case.whole.frames if f.is_event} == truth.keys()
    with tempfile.TemporaryDirectory(dir=own.parent) as scratch:
        for change in changes:
            print(change, flush=True)
            faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
            for mode in ("r", "rw"):
                case.mutate(change)
                try:
                    case.run(mode, Path(scratch))
                except Exception as error:
                    failures += 1
                    if failures <= FAILURES_MAX:
                        print(f"{change} {case.hit} {mode}", file=sys.stderr)
                        traceback.print_exception(error, limit=-3)
                    Path(scratch, "mended").unlink(missing_ok=True)
            faulthandler.cancel_dump_traceback_later()
    copy.unlink()
    if failures:
        sys.exit(f"{failures} failures")
    print("done", flush=True)


if __name__ == "__main__":
    main()
