"""Sealed segments move to the archive, and nothing is deleted before it is safe there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Conflict, Corrupt, Io, Permission, Usage, WrongType
from penstock.archive import depots, location, seekable, zstd
from penstock.archive.naming import Stored
from penstock.archive.reading import opened
from tests.archive import logs
from tests.archive.faulty_proxy import FAULTS, FaultyProxy


def depot_of(path: Path, place: str | None) -> depots.Depot:
    """The depot of a log's archive."""
    return location.depot_at(str(place or path / "archive"), None)


def test_segments_move(path: Path, place: str | None, tmp_path: Path) -> None:
    """Sealed segments are in the archive afterwards, and no longer in the log's directory."""
    events = logs.made(path)
    bases = logs.local(path)
    with penstock.open(path) as log:
        report = log.steward.archive(place)
        assert (
            [s.base_seq for s in report.segments]
            == bases[:-1]
            == [e.base_seq for e in depot_of(path, place).entries()]
        )
        assert report.moved == 4 and report.archived_bytes < report.bytes
        assert "archived 4 segments" in str(report)
        assert logs.local(path) == bases[-1:]
        again = log.steward.archive()
        assert again.segments == ()
        assert log.stats().background["archive"].successes == 2
    assert penstock.restore(place or path / "archive", tmp_path / "again") == events[-2][0]
    with penstock.open(tmp_path / "again") as log:
        assert logs.contents(log) == events[:-1]
        assert log.append(b"goes on") == len(events)
        known = max(e[0] for e in events if e[5] == b"by a producer")
        assert log.append(b"x", producer=("p1", 4)) == known  # the log still knows it
        assert log.settings.ttl == 10**9
        log.steward.roll()
        assert log.steward.archive(place).moved == 5
    assert penstock.verify(tmp_path / "again").ok


def test_plain_zstd_gives_the_segment_back(path: Path, tmp_path: Path) -> None:
    """What zstd makes of an archived file is the segment, byte for byte."""
    logs.made(path)
    with penstock.open(path) as log:
        log.steward.archive(keep_local=4)
    for entry in depot_of(path, None).entries():
        source = path / "archive" / entry.name
        plain = (path / f"{entry.base_seq:020d}.seg").read_bytes()
        with zstd.library().open(source) as file:
            assert file.read() == plain
        if shutil.which("zstd"):  # the tool itself, where there is one
            target = tmp_path / "plain.seg"
            subprocess.run(["zstd", "-d", "-q", "-f", source, "-o", target], check=True)
            assert target.read_bytes() == plain


def test_keep_local(path: Path) -> None:
    """The newest segments stay in the log's directory, and are in the archive as well."""
    logs.made(path)
    bases = logs.local(path)
    with penstock.open(path) as log:
        report = log.steward.archive(keep_local=3)
        assert [s.action for s in report.segments] == ["move", "store", "store", "store"]
        assert logs.local(path) == bases[1:]
        assert len(depot_of(path, None).entries()) == 4
        plan = log.steward.archive(keep_local=2, dry_run=True)
        assert [s.action for s in plan.segments] == ["move", "keep", "keep"]
        assert log.steward.archive(keep_local=2).moved == 1
        assert logs.local(path) == bases[2:]


def test_dry_run_changes_nothing(path: Path, tmp_path: Path) -> None:
    """A dry run says what would move, and makes not even the directory."""
    logs.made(path)
    with penstock.open(path, mode="r") as log:
        before = logs.local(path)
        plan = log.steward.archive(tmp_path / "elsewhere", dry_run=True)
    assert plan.dry_run and len(plan.segments) == 4 and "would archive" in str(plan)
    assert logs.local(path) == before and not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("to", "error"),
    [
        (7, WrongType),
        (b"x", WrongType),
        ("", Usage),
        ("ftp://host/x", Usage),
        ("s3:///path", Usage),
        ("s3://user:secret@bucket/x", Usage),
        ("s3://bucket/x?versionId=1", Usage),
        ("https://host/x", Usage),
    ],
)
def test_places_that_are_refused(path: Path, to: Any, error: type[Exception]) -> None:
    """A place that cannot be an archive, or would put a secret into the log, is refused."""
    logs.made(path, 1)
    with penstock.open(path) as log:
        with pytest.raises(error) as caught:
            log.steward.archive(to)
        assert "secret" not in str(caught.value)
        assert log.settings.archive == ""


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"keep_local": -1}, Usage),
        ({"keep_local": True}, WrongType),
        ({"keep_local": "1"}, WrongType),
        ({"dry_run": 1}, WrongType),
        ({"timeout": "1"}, WrongType),
        ({"progress": 1}, WrongType),
    ],
)
def test_arguments_that_are_refused(path: Path, arguments: Any, error: type[Exception]) -> None:
    """Wrong arguments are errors of their own, and nothing is done."""
    logs.made(path, 1)
    with penstock.open(path) as log:
        with pytest.raises(error):
            log.steward.archive(**arguments)
        assert len(logs.local(path)) == 2


def test_inside_the_log_is_refused(path: Path) -> None:
    """Only the directory `archive` of a log's own can be its archive."""
    logs.made(path, 1)
    with penstock.open(path) as log:
        for to in (path, path / "consumers", path / "archive" / "below"):
            with pytest.raises(Usage, match="inside the log's directory"):
                log.steward.archive(to)
        assert log.steward.archive(path / "archive").moved == 1
        assert log.settings.archive == "archive"


def test_rings_and_readers_are_refused(path: Path, tmp_path: Path) -> None:
    """A ring has nothing to archive, and a log open for reading changes nothing."""
    ring = penstock.create(tmp_path / "x.ring", ring="64KiB")
    with ring, pytest.raises(Usage, match="ring"):
        ring.steward.archive()
    logs.made(path, 1)
    with penstock.open(path, mode="r") as log, pytest.raises(Permission):
        log.steward.archive()


def test_another_place_is_refused_while_the_first_is_needed(path: Path, tmp_path: Path) -> None:
    """A log has one archive."""
    logs.made(path, 2)
    with penstock.open(path) as log:
        log.steward.archive(tmp_path / "a")
        log.steward.roll()
        with pytest.raises(Usage, match="leave out to="):
            log.steward.archive(tmp_path / "b")
        assert log.steward.archive().moved == 1


def test_rot_is_not_archived(path: Path) -> None:
    """A damaged segment stays where it is, and so do those after it."""
    logs.made(path)
    second = sorted(path.glob("*.seg"))[1]
    with second.open("r+b") as file:
        file.seek(second.stat().st_size // 3)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    with penstock.open(path) as log:
        with pytest.raises(Corrupt):
            log.steward.archive()
        assert log.stats().background["archive"].in_a_row == 1
    assert len(logs.local(path)) == 4 and len(depot_of(path, None).entries()) == 1


def test_other_bytes_in_the_archive_are_no_reason_to_delete(path: Path, place: str | None) -> None:
    """If the archive has something else under the name, the local segment stays."""
    logs.made(path, 2)
    with penstock.open(path) as log:
        log.steward.archive(place, keep_local=2)
        depot = depot_of(path, place)
        first = depot.entries()[0]
        data = depot.read(first.name, 0, first.nbytes)
        bad = bytearray(data)
        bad[first.nbytes // 2] ^= 1
        overwrite(depot, first.name, bytes(bad))
        with pytest.raises((Corrupt, Conflict)):
            log.steward.archive()
        assert len(logs.local(path)) == 3
        overwrite(depot, first.name, data)
        assert log.steward.archive().moved == 2


def overwrite(depot: depots.Depot, name: str, data: bytes) -> None:
    """Change what a depot has, which it never does itself."""
    if isinstance(depot, depots.LocalDepot):
        Path(depot.where, name).write_bytes(data)
    else:
        assert isinstance(depot, depots.ObjectDepot)
        depot._obstore.put(depot._store, name, data)


def test_two_copies_of_one_log(path: Path, tmp_path: Path, place: str | None) -> None:
    """Of two copies of a log that went on apart, the second one to archive is refused."""
    place = place or str(tmp_path / "shared")
    logs.made(path, 1)
    shutil.copytree(path, tmp_path / "other")
    for at, value in ((path, b"one"), (tmp_path / "other", b"two")):
        with penstock.open(at) as log:
            log.append(value)
            log.steward.roll()
    with penstock.open(path) as log:
        assert log.steward.archive(place).moved == 2
    with penstock.open(tmp_path / "other") as log:
        with pytest.raises(Conflict, match="copy of this log"):
            log.steward.archive(place)
        assert len(logs.local(tmp_path / "other")) >= 2
        assert list(log)[-1].value == b"two"


def test_logs_share_a_place(tmp_path: Path) -> None:
    """Two logs can archive to one place; it cannot be opened as the archive of one of them."""
    for name in ("a", "b"):
        logs.made(tmp_path / name, 1)
        with penstock.open(tmp_path / name) as log:
            assert log.steward.archive(tmp_path / "shared").moved == 1
    with pytest.raises(Usage, match="several logs"):
        penstock.restore(tmp_path / "shared", tmp_path / "c")


def test_beside_readers_and_writers(path: Path) -> None:
    """A reader that began before goes on; appends go on in between."""
    events = logs.made(path)
    with penstock.open(path) as log, penstock.open(path) as other:
        reader = log.read()
        began = reader.take(30)
        first = other[1]

        def append(done: int, total: int) -> None:
            other.append(b"meanwhile")

        log.steward.archive(progress=append)
        seqs = [e.seq for e in began] + [e.seq for e in reader]
        assert seqs == [e[0] for e in events]
        assert len(other) == len(events) + 4
        assert first.value == events[0][5]


@pytest.mark.parametrize(
    ("method", "fault"),
    [
        *[(method, fault) for method in ("PUT", "GET") for fault in FAULTS if fault != "slow"],
        ("PUT", "slow"),
    ],
)
def test_faults_that_pass(
    path: Path, tmp_path: Path, s3: str, proxy: FaultyProxy, method: str, fault: str
) -> None:
    """Errors that pass are tried again; what is archived is right, and there once."""
    events = logs.made(path, 2)
    proxy.fail(method, *[fault] * (1 if fault == "slow" else 3))
    with penstock.open(path) as log:
        assert log.steward.archive(s3).moved == 2
    assert (method, fault) in proxy.requests
    assert len(depots.ObjectDepot(s3).entries()) == 2
    penstock.restore(s3, tmp_path / "again")
    with penstock.open(tmp_path / "again") as log:
        assert logs.contents(log) == events[:-1]


def test_faults_that_last(path: Path, s3: str, proxy: FaultyProxy) -> None:
    """If the server stays away, the error says so, is counted, and nothing is deleted."""
    logs.made(path, 2)
    before = logs.local(path)
    with penstock.open(path) as log:
        proxy.fail("PUT", *["500"] * depots.TRIES)
        with pytest.raises(Io, match="tried 5 times"):
            log.steward.archive(s3)
        assert log.stats().background["archive"].in_a_row == 1
        assert logs.local(path) == before and log.settings.archive == ""
        assert log.append(b"goes on")
        assert log.steward.archive(s3).moved == 2
        assert log.stats().background["archive"].in_a_row == 0
        assert "secret-of-the-tests" not in (path / "control").read_bytes().decode("latin1")
        assert log.settings.archive == s3


def test_a_file_that_is_cut_short(path: Path, place: str | None) -> None:
    """A file with a right name that is not complete counts for nothing: the error names it."""
    logs.made(path, 1)
    with penstock.open(path) as log:
        log.steward.archive(place, keep_local=1)
        depot = depot_of(path, place)
        entry = depot.entries()[0]
        data = depot.read(entry.name, 0, entry.nbytes)
        for length in (0, 5, 100, len(data) // 2, len(data) - 1):
            overwrite(depot, entry.name, data[:length])
            with pytest.raises(Corrupt, match="local segment was kept"):
                log.steward.archive()
            assert len(logs.local(path)) == 2


def test_every_bit(path: Path, tmp_path: Path) -> None:
    """With any bit of an archived file flipped, it is an error or the right bytes."""
    with penstock.open(path, segment_size="64KiB") as log:
        log.extend([b"a", b"b"], topic="t")
        log.append(b"key", key=b"k")
        log.steward.roll()
        log.steward.archive(keep_local=1)
    plain = (path / f"{1:020d}.seg").read_bytes()
    depot = depot_of(path, None)
    (entry,) = depot.entries()
    data = depot.read(entry.name, 0, entry.nbytes)
    file = Path(depot.where, entry.name)
    wrong = right = 0
    for at in range(len(data)):
        for bit in range(0, 8):
            bad = bytearray(data)
            bad[at] ^= 1 << bit
            file.write_bytes(bad)
            try:
                archived = opened(depot, entry)
                found = b"".join(
                    archived.decompress(depot.read(entry.name, *archived.place(i, i + 1)), i)
                    for i in range(archived.blocks)
                )
            except Corrupt as error:
                assert error.path == str(file)
                wrong += 1
            else:
                assert found == plain and archived.settings.segment_size == 65536
                right += 1
    assert wrong > 6 * len(data) and right < len(data)


def test_names(path: Path) -> None:
    """Only complete names are those of archived segments."""
    entry = Stored(uuid.uuid4().bytes, 7, 3)
    assert Stored.parse(entry.name, 0) == entry
    for name in (f"{entry.name}.tmp", entry.name.upper(), "x" + entry.name, entry.name[:-1], ""):
        assert Stored.parse(name, 0) is None
    assert Stored.parse(Stored(entry.uuid, 0, 0).name, 0) is None


def test_a_child_of_a_fork_is_told(path: Path, s3: str) -> None:
    """A child cannot use connections of its parent: it gets an error, and does not hang."""
    logs.made(path, 1)
    with penstock.open(path) as log:
        log.steward.archive(s3, keep_local=1)
        code = (
            "import os, sys, penstock\n"
            "from penstock.archive.depots import ObjectDepot\n"
            "depot = ObjectDepot(sys.argv[1])\n"
            "depot.entries()\n"
            "child = os.fork()\n"
            "if child == 0:\n"
            "    try:\n"
            "        ObjectDepot(sys.argv[1]).entries()\n"
            "    except penstock.Usage as error:\n"
            "        os._exit(0 if 'forked' in str(error) else 2)\n"
            "    os._exit(1)\n"
            "assert os.waitpid(child, 0)[1] == 0\n"
        )
        subprocess.run([sys.executable, "-c", code, s3], check=True, timeout=60)


def test_constants_of_the_seekable_format() -> None:
    """A frame's own checksum is what its entry in the seek table repeats."""
    compress = seekable.compressor()
    block = compress(b"abc" * 1000)
    assert zstd.library().decompress(block) == b"abc" * 1000
    assert block != compress(b"abx" * 1000) and len(block) < 100
