"""Rot in the first pages of a log or a ring: nothing is lost, verify names it, repair mends it."""

from __future__ import annotations

import errno
import os
import pickle
import random
import shutil
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import headers
from penstock import layout as L
from penstock.ring import file as ring_file
from penstock.segments import segment
from penstock.settings import Settings
from tests.golden.test_golden import unpack

STORM = os.environ.get("PENSTOCK_STORM") == "1"
KINDS = ["one segment", "several segments", "ring"]
FIRST_PAGES = {"one segment": 4, "several segments": 4, "ring": 5}

Facts = tuple[Any, ...]
Place = tuple[str, int]  # a file's name, and an offset or a page in it


class Subject:
    """A closed log, what is in it, and its files, which can be put back as they were."""

    def __init__(self, path: Path, kind: str) -> None:
        self.kind = kind
        self.path = path / "a.ring" if kind == "ring" else path / "log"
        {"one segment": one_segment, "several segments": several_segments, "ring": ring}[kind](
            self.path
        )
        self.truth = events(self.path)
        self.files = {p.name: p.read_bytes() for p in self.all_files()}

    def all_files(self) -> list[Path]:
        return [self.path] if self.kind == "ring" else sorted(self.path.iterdir())

    def file(self, name: str) -> Path:
        return self.path if self.kind == "ring" else self.path / name

    def segments(self) -> list[str]:
        """The files that have headers."""
        return [self.path.name] if self.kind == "ring" else [n for n in self.files if ".seg" in n]

    def flip(self, place: Place, bit: int) -> None:
        name, at = place
        self.put(place, bytes([self.files[name][at] ^ 1 << bit]))

    def put(self, place: Place, data: bytes) -> None:
        with self.file(place[0]).open("r+b") as file:
            file.seek(place[1])
            file.write(data)

    def put_back(self, name: str, at: int, nbytes: int) -> None:
        self.put((name, at), self.files[name][at : at + nbytes])

    def restore(self) -> None:
        """Put every file back as it was; the same inodes, so that control is still valid."""
        if self.kind != "ring":
            for found in self.all_files():
                if found.name not in self.files:
                    found.unlink()
        for name, data in self.files.items():
            self.file(name).write_bytes(data)


def one_segment(path: Path) -> None:
    with penstock.create(path, segment_size="64KiB", file_mode=0o640) as log:
        fill(log, 40)


def several_segments(path: Path) -> None:
    with penstock.create(path, segment_size="64KiB") as log:
        fill(log, 30)
        log.steward.roll()
        fill(log, 30)
        log.configure(file_mode=0o640)
        log.steward.roll()
        fill(log, 20)


def ring(path: Path) -> None:
    with penstock.create(path, ring="40KiB", index=300) as log:
        log.configure(file_mode=0o640)
        fill(log, 200)


def fill(log: penstock.Log, count: int) -> None:
    """Events of many sizes, with two checkpoints after some of them."""
    for i in range(count):
        log.append(b"%d" % i * (i * 7 % 97), key=b"k%d" % i, topic=f"t{i % 3}", time=10**18 + i)
        if i in (count // 3, count // 2):
            log.sync()
    log.append(b"of a producer", producer=("sensor", log.last_seq))


def facts(event: penstock.Event) -> Facts:
    return (event.seq, event.time_ns, event.topic, event.key, event.value, event.headers)


def events(path: Path) -> list[Facts]:
    with penstock.open(path, mode="r") as log:
        return [facts(event) for event in log]


@pytest.fixture(params=KINDS)
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Subject:
    return Subject(tmp_path, request.param)


def ranges(subject: Subject) -> Iterator[tuple[str, str, int, int]]:
    """What, file, start and stop of every part of the first pages that means something."""
    header_end = L.HEADER_SETTINGS + 80
    for name in subject.segments():
        yield "header", name, 0, header_end
        yield "header", name, L.HEADER_CRC, L.PAGE
        for at in (L.SLOT_A_OFFSET, L.SLOT_B_OFFSET):
            yield "checkpoint", name, at, at + L.SLOT_PRODUCER_OFFSET + 8
            yield "checkpoint", name, at + L.SLOT_CRC, at + L.SLOT_BYTES
            yield "header", name, at + L.SLOT_BYTES, at + L.SLOT_BYTES + header_end
            yield "header", name, at + L.PAGE - 4, at + L.PAGE
        if subject.kind == "ring":
            start = L.RING_CONTROL_OFFSET
            yield "control", name, start, start + L.C_ROOM_WAITING + 4
            yield "control", name, start + L.C_HOLDS, start + L.C_HOLDS + 16
            yield "index", name, L.RING_INDEX_OFFSET, L.RING_INDEX_OFFSET + 200 * 8
        else:
            yield "index", name, L.INDEX_OFFSET, L.INDEX_OFFSET + 2 * L.INDEX_ENTRY_BYTES


def flips(subject: Subject) -> Iterator[tuple[str, Place, int]]:
    """Every bit of the first pages; by default a bit of every byte of a header's fields, or so."""
    if STORM:
        means = {
            (name, at): what
            for what, name, start, stop in ranges(subject)
            for at in range(start, stop)
        }
        for name in subject.segments():
            for at in range(FIRST_PAGES[subject.kind] * L.PAGE):
                for bit in range(8):
                    yield means.get((name, at), "unused"), (name, at), bit
        return
    steps = {"header": 1, "checkpoint": 2, "control": 7, "index": 13}
    for what, name, start, stop in ranges(subject):
        for at in range(start, stop, steps[what]):
            yield what, (name, at), at * 5 % 8
    rng = random.Random(14)
    for name in subject.segments():
        for at in rng.sample(range(FIRST_PAGES[subject.kind] * L.PAGE), 40):
            yield "unused", (name, at), rng.randrange(8)


@pytest.mark.timeout(20_000 if STORM else 300)
def test_a_flipped_bit_costs_nothing(subject: Subject, tmp_path: Path) -> None:
    """A flipped bit in the first pages hides no event; verify names it, and a repair mends it."""
    mended = tmp_path / "mended"
    for number, (what, place, bit) in enumerate(flips(subject)):
        name, at = place
        case = f"bit {bit} of {at} in {name} ({what})"
        subject.flip(place, bit)
        assert events(subject.path) == subject.truth, case
        if what in ("header", "checkpoint") and (STORM or number % 4 == 0):
            found = [p for p in penstock.verify(subject.path).problems if p.kind == what]
            start = at // L.PAGE * L.PAGE
            assert any(start <= (p.offset or 0) < start + L.PAGE for p in found), case
        if number % (8 if STORM else 40) == 0:
            penstock.repair(subject.path, to=mended)
            assert penstock.verify(mended).ok, case
            assert events(mended) == subject.truth, case
            (shutil.rmtree if mended.is_dir() else os.unlink)(mended)
        subject.put_back(name, at, 1)


def page_sets(subject: Subject) -> list[tuple[Place, ...]]:
    """Every first page, and every pair of them, of different files too."""
    pages = [(n, p) for n in subject.segments() for p in range(FIRST_PAGES[subject.kind])]
    return [*((p,) for p in pages), *combinations(pages, 2)]


@pytest.mark.timeout(300)
def test_lost_pages_cost_nothing(subject: Subject) -> None:
    """With any one or two of the first pages zeroed, all is read and appended, and repair mends."""
    last = subject.truth[-1][0]
    for number, pages in enumerate(page_sets(subject)):
        for name, page in pages:
            subject.put((name, page * L.PAGE), bytes(L.PAGE))
        assert events(subject.path) == subject.truth, pages
        if any(page < 3 for _, page in pages):
            assert not penstock.verify(subject.path).ok, pages
        if number % 2:
            with penstock.open(subject.path) as log:
                assert log.append(b"more", durable=True) == last + 1, pages
        penstock.repair(subject.path, in_place=True)
        assert penstock.verify(subject.path).ok, pages
        with penstock.open(subject.path) as log:
            assert log.append(b"next") == last + 1 + number % 2, pages
            kept = {event.seq: facts(event) for event in log}
        lost = [f for f in subject.truth if kept.get(f[0]) != f]
        # A full ring drops its oldest events for new ones.
        assert not lost or (subject.kind == "ring" and lost[-1][0] < min(kept)), pages
        subject.restore()


@pytest.mark.parametrize("control", [True, False])
def test_a_log_without_any_header_is_repaired(subject: Subject, control: bool) -> None:
    """If every header and copy is gone, repair makes new ones from the frames, and says so."""
    for name in subject.segments():
        subject.put((name, 0), bytes(3 * L.PAGE))
    if not control and subject.kind == "ring":  # then checkpoints alone tell where the frames are
        name = subject.path.name
        subject.put((name, L.RING_CONTROL_OFFSET), bytes(L.PAGE))
        for at in (L.SLOT_A_OFFSET, L.SLOT_B_OFFSET):
            subject.put_back(name, at, L.SLOT_BYTES)
    elif not control:
        subject.file("control").unlink()
    with pytest.raises((penstock.Corrupt, penstock.Usage)):
        events(subject.path)
    uuid = subject.files[subject.segments()[0]][L.HEADER_UUID : L.HEADER_UUID + 16].hex()
    told = str(penstock.verify(subject.path)) + str(penstock.repair(subject.path))
    assert "settings that no frame repeats, including the codec" in told
    assert "no event is lost" in str(penstock.repair(subject.path, in_place=True))
    assert penstock.verify(subject.path).ok
    assert events(subject.path) == subject.truth
    with penstock.open(subject.path) as log:
        assert log.append(b"next", producer=("sensor", 10**6)) == subject.truth[-1][0] + 1
        assert log.settings.file_mode == 0o640
        if control or subject.kind == "several segments":  # control or a footer has it
            assert log.stats().uuid == uuid


@pytest.mark.parametrize("size", ["64KiB", "1MiB", "5000KiB", "64MiB"])
def test_an_empty_log_without_any_header_is_repaired(tmp_path: Path, size: str) -> None:
    """A log without events that lost its header and one of the copies' pages is a log again."""
    path = tmp_path / "log"
    penstock.create(path, segment_size=size).close()
    name = path / segment.file_name(1)
    for at in (0, L.COPY_A_OFFSET, L.COPY_B_OFFSET):
        with name.open("r+b") as file:
            file.seek(at)
            file.write(bytes(L.COPY_BYTES))
    penstock.repair(path, in_place=True)
    assert penstock.verify(path).ok
    with penstock.open(path) as log:
        assert list(log) == [] and log.append(b"first") == 1


def test_an_empty_ring_without_any_header_is_repaired(tmp_path: Path) -> None:
    """A ring without events that lost its header and the copies is a ring again."""
    path = tmp_path / "a.ring"
    penstock.create(path, ring="256KiB", index=1000).close()
    with path.open("r+b") as file:
        for at in (0, L.COPY_A_OFFSET, L.COPY_B_OFFSET):
            file.seek(at)
            file.write(bytes(L.COPY_BYTES))
    penstock.repair(path, in_place=True)
    assert penstock.verify(path).ok
    with penstock.open(path) as log:
        assert list(log) == [] and log.append(b"first") == 1


def test_writing_goes_on_with_a_copy(subject: Subject, tmp_path: Path) -> None:
    """A log whose header rotted is written, synced, configured, rolled and copied as any other."""
    for name in subject.segments():
        subject.flip((name, L.HEADER_UUID), 3)
    first = subject.truth[-1][0] + 1
    with penstock.open(subject.path) as log:
        assert log.append(b"a", durable=True) == first
        log.configure(file_mode=0o600)
        if subject.kind != "ring":
            log.steward.roll()
        assert log.append(b"b", durable=True) == first + 1
        log.backup(tmp_path / "copy")
        after = [facts(event) for event in log]
    assert events(subject.path) == events(tmp_path / "copy") == after
    assert after[-2][4:] == (b"a", ()) and after[-1][4:] == (b"b", ())
    assert penstock.verify(tmp_path / "copy").ok
    bad = [p for p in penstock.verify(subject.path).problems if p.severity == "damage"]
    assert [p.kind for p in bad] == ["header"] * len(subject.segments())
    penstock.repair(subject.path, in_place=True)
    assert penstock.verify(subject.path).ok
    assert events(subject.path) == after


@pytest.mark.parametrize("options", [{}, {"ring": "64KiB"}], ids=["log", "ring"])
@pytest.mark.parametrize("at", [L.HEADER_SETTINGS_LEN, L.HEADER_SETTINGS + 12])
def test_values_are_decoded_by_a_copy(options: dict[str, Any], at: int, tmp_path: Path) -> None:
    """A log whose header rotted has its codec from a copy, also for events that are pickled."""
    path = tmp_path / ("a.ring" if options else "log")
    with penstock.create(path, codec="json", **options) as log:
        log.append({"total": 12})
    name = path / segment.file_name(1) if path.is_dir() else path
    with name.open("r+b") as file:
        file.seek(at)
        file.write(b"\xff\xff\xff\xff")
    with penstock.open(path, mode="r", codec="json") as log:
        [event] = log
        assert event.data == pickle.loads(pickle.dumps(event)).data == {"total": 12}


def forged(subject: Subject, name: str, steps: int) -> bytes:
    """The header page of a file with another generation, and a right checksum."""
    page = bytearray(subject.files[name][: L.PAGE])
    page[L.HEADER_GENERATION] += steps
    return headers.seal(L.HEADER, **L.HEADER.unpack(page))


VOTES = {  # how far the header page and its copies are from what they were; which of them counts
    "a copy": ((0, 1, 0), 0),
    "the other copy": ((0, 0, 1), 0),
    "the header page": ((1, 0, 0), 1),
    "two copies": ((1, 2, 2), 1),
    "all": ((1, 2, 3), 0),
}


@pytest.mark.parametrize("vote", VOTES)
def test_two_headers_that_agree_count(subject: Subject, vote: str) -> None:
    """Of valid headers that differ, two that agree count, or else the first page; readers,
    checkpoints, verify and repair are of one mind, and verify names the others."""
    steps, winner = VOTES[vote]
    name = subject.segments()[-1]
    pages = [forged(subject, name, step) for step in steps]
    places = (0, *headers.COPIES)
    subject.put((name, 0), pages[0])
    for at, page in zip(headers.COPIES, pages[1:], strict=True):
        subject.put((name, at), headers.copy_of(page))
    counts = pages[winner][L.HEADER_GENERATION]
    module = ring_file if subject.kind == "ring" else segment
    with subject.file(name).open("rb") as file:
        assert module.read_header(file.fileno(), str(file.name)).generation == counts
    assert events(subject.path) == subject.truth
    found = penstock.verify(subject.path).problems
    wrong = [at for at, page in zip(places, pages, strict=True) if page != pages[winner]]
    assert [p.offset for p in found if "differs" in p.message] == wrong
    with penstock.open(subject.path) as log:
        for _ in range(2):
            log.append(b"more", durable=True)
    raw = subject.file(name).read_bytes()
    assert raw[: L.PAGE] == pages[0]
    assert all(
        raw[at : at + L.COPY_BYTES] == headers.copy_of(pages[winner]) for at in headers.COPIES
    )
    penstock.repair(subject.path, in_place=True)
    assert penstock.verify(subject.path).ok
    raw = subject.file(name).read_bytes()
    assert raw[L.HEADER_GENERATION] == counts
    assert all(raw[at : at + L.COPY_BYTES] == headers.copy_of(raw) for at in headers.COPIES)


@pytest.mark.parametrize("gone", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)])
def test_a_device_that_does_not_give_headers(
    subject: Subject, gone: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A header page that the device does not give costs nothing while a copy can be read; without
    one, the error is the device's."""
    real = os.pread

    def pread(fd: int, nbytes: int, offset: int) -> bytes:
        where = os.readlink(f"/proc/self/fd/{fd}")
        if where.endswith((".seg", ".ring")):
            for page in gone:
                start = page * L.PAGE + (L.SLOT_BYTES if page else 0)  # checkpoints are there
                if offset < (page + 1) * L.PAGE and offset + nbytes > start:
                    if offset >= start:
                        raise OSError(errno.EIO, os.strerror(errno.EIO))
                    return real(fd, start - offset, offset)  # as the kernel does: what it has
        return real(fd, nbytes, offset)

    monkeypatch.setattr(os, "pread", pread)
    if len(gone) == 3:
        with pytest.raises(penstock.Io) as caught:
            events(subject.path)
        assert caught.value.errno == errno.EIO
        return
    assert events(subject.path) == subject.truth
    with penstock.open(subject.path) as log:
        assert log.append(b"more", durable=True) == subject.truth[-1][0] + 1


def test_a_torn_checkpoint_page_is_no_damage(subject: Subject) -> None:
    """A loss of power that garbles the page of a checkpoint is no damage, and syncs mend it."""
    name = subject.segments()[-1]
    for at in (L.SLOT_A_OFFSET, L.SLOT_B_OFFSET):
        subject.put((name, at), random.Random(1).randbytes(L.PAGE))
        assert events(subject.path) == subject.truth
        assert penstock.verify(subject.path).ok
        with penstock.open(subject.path) as log:
            for _ in range(3):
                log.append(b"more", durable=True)
        raw = subject.file(name).read_bytes()
        assert raw[at + L.SLOT_BYTES : at + L.PAGE] == headers.copy_of(raw)
        assert not [p for p in penstock.verify(subject.path).problems if p.offset]
        subject.restore()


def old_log(version: str, path: Path) -> Path:
    """A golden log, or the ring in it."""
    unpack(version, path)
    return path / "log.ring" if version.startswith("ring") else path


@pytest.mark.parametrize("version", ["v1", "v2", "v3", "ring-v1"])
def test_old_logs_get_copies(version: str, tmp_path: Path) -> None:
    """A log of an older version has no copies, and is not damaged; checkpoints add them."""
    path = old_log(version, tmp_path / "old")
    assert penstock.verify(path).ok
    with penstock.open(path) as log:
        for _ in range(3):
            log.append(b"more", durable=True)
        wanted = [facts(event) for event in log]
    newest = max(path.glob("*.seg")) if path.is_dir() else path
    with newest.open("r+b") as file:
        file.write(bytes(L.PAGE))
    assert events(path) == wanted
    assert not penstock.verify(path).ok
    penstock.repair(path, in_place=True)
    assert penstock.verify(path).ok
    assert events(path) == wanted
    raw = newest.read_bytes()
    new = L.RING_VERSION if raw.startswith(L.RING_MAGIC) else L.FORMAT_VERSION
    assert int.from_bytes(raw[L.HEADER_VERSION : L.HEADER_VERSION + 4], "little") == new
    assert raw[L.COPY_A_OFFSET : L.SLOT_B_OFFSET] == headers.copy_of(raw)


@pytest.mark.parametrize("version", ["v1", "v2", "v3", "ring-v1"])
def test_old_logs_without_headers_are_repaired(version: str, tmp_path: Path) -> None:
    """A log of an older version whose headers are all gone is made whole from its frames."""
    path = old_log(version, tmp_path / "old")
    wanted = events(path)
    for name in path.glob("*.seg") if path.is_dir() else [path]:
        with name.open("r+b") as file:
            file.write(bytes(L.PAGE))
    penstock.repair(path, in_place=True)
    assert penstock.verify(path).ok
    assert events(path) == wanted


def test_the_next_segment_of_an_old_log_is_new(tmp_path: Path) -> None:
    """A log of an older version goes on with segments of this one, which have copies."""
    path = old_log("v3", tmp_path / "old")
    with penstock.open(path) as log:
        log.steward.roll()
        log.append(b"new")
    raw = max(path.glob("*.seg")).read_bytes()
    version = int.from_bytes(raw[L.HEADER_VERSION : L.HEADER_VERSION + 4], "little")
    assert version == L.FORMAT_VERSION
    assert all(raw[at : at + L.COPY_BYTES] == headers.copy_of(raw) for at in headers.COPIES)


def test_every_setting_fits_the_copy() -> None:
    """Settings as long as they may be are in the copy as a whole."""
    assert L.HEADER_SETTINGS + L.SETTINGS_BYTES_MAX <= L.COPY_BYTES - 4
    header = ring_file.new_header(Settings(), 1 << 20, None)
    long = header.__class__(
        **{n: getattr(header, n) for n in header.__slots__}
        | {"settings": b"x" * L.SETTINGS_BYTES_MAX}
    )
    assert ring_file.Header.unpack(headers.copy_of(long.pack()), "x") == long
