"""Logs of every released format version: always readable, byte for byte as they were made."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import layout as L
from tests.golden.make import KINDS, contents, data_of, digest, known, make, short
from tests.unit import oracle

HERE = Path(__file__).parent
VERSIONS = sorted(p.stem for p in HERE.glob("v*.json"))


def unpack(version: str, path: Path, source_dir: Path = HERE) -> dict[str, Any]:
    """Put the golden log at ``path``; returns what is recorded of it."""
    path.mkdir()
    with tarfile.open(source_dir / f"{version}.tar.xz") as archive:
        for member in archive.getmembers():
            source = archive.extractfile(member)
            assert source is not None
            path.joinpath(member.name).write_bytes(source.read())
    record: dict[str, Any] = json.loads((source_dir / f"{version}.json").read_text())
    return record


def hashes(path: Path) -> dict[str, str]:
    return {p.name: digest(p.read_bytes()) for p in path.glob("*.seg")}


def test_the_current_version_is_there() -> None:
    """There is a golden log of the version that this package writes, and it is small."""
    wanted = {f"v{L.FORMAT_VERSION}{kind}" for kind in ("", "-data", "-compacted")}
    assert wanted <= set(VERSIONS)
    assert all((HERE / f"{v}.tar.xz").stat().st_size < 100_000 for v in VERSIONS)


@pytest.mark.parametrize("version", VERSIONS)
def test_it_is_what_was_made(version: str, path: Path) -> None:
    """The files are those that were recorded, and reading changes none of them."""
    record = unpack(version, path)
    assert hashes(path) == record["files"]
    with penstock.open(path, mode="r") as log:
        list(log)
    assert hashes(path) == record["files"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("mode", ["r", "rw"])
def test_it_reads_as_recorded(version: str, mode: Any, path: Path) -> None:
    """Every field of every event is as recorded; so are settings, topics and uuid."""
    record = unpack(version, path)
    with penstock.open(path, mode=mode) as log:
        assert contents(log) == record["events"]
        assert [e.seq for e in reversed(log)] == [e["seq"] for e in reversed(record["events"])]
        assert log.settings.segment_size == record["segment_size"]
        assert sorted(log.topics()) == record["topics"]
        assert log.stats().uuid == record["uuid"]
        for event in record["events"]:
            assert log[event["seq"]].time_ns == event["time_ns"]


@pytest.mark.parametrize("version", [v for v in VERSIONS if v.endswith("-data")])
def test_its_data_is_as_recorded(version: str, path: Path) -> None:
    """Every event decodes to what was recorded, by its own codec, and is found by its tags."""
    record = unpack(version, path)
    with penstock.open(path, mode="r", codec=record["codec"]) as log:
        assert data_of(log) == record["data"]
        tagged = {event.seq for event in log if "ok" in event.tags}
        assert {event.seq for event in log.read(tags=["ok"])} == tagged == {1, 2, 4}


@pytest.mark.parametrize("version", VERSIONS)
def test_it_takes_appends(version: str, path: Path) -> None:
    """A writer goes on after the last event, and the sealed segments stay as they were."""
    record = unpack(version, path)
    count = len(record["events"])
    with penstock.open(path) as log:
        assert log.append(b'"new"') == record["events"][-1]["seq"] + 1
        log.steward.roll()
        log.append(b'"newer"')
        assert contents(log)[:count] == record["events"]
    kept = list(record["files"])[:-1]
    assert {n: h for n, h in hashes(path).items() if n in kept} == {
        n: record["files"][n] for n in kept
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_the_oracle_reads_it_too(version: str, path: Path) -> None:
    """The reader in plain Python, written from the format's description, agrees."""
    record = unpack(version, path)
    events = [f for s in oracle.read_log(path) for f in s.events]
    assert [(f.seq, f.time_ns, short(f.value)) for f in events] == [
        (e["seq"], e["time_ns"], e["value"] or "") for e in record["events"]
    ]


RINGS = sorted(p.stem for p in HERE.glob("ring-v*.json"))


def test_the_current_version_of_rings_is_there() -> None:
    """There is a golden ring of the version that this package writes."""
    assert f"ring-v{L.RING_VERSION}" in RINGS


@pytest.mark.parametrize("version", RINGS)
@pytest.mark.parametrize("mode", ["r", "rw"])
def test_a_ring_reads_as_recorded(version: str, mode: Any, path: Path) -> None:
    """Every field of every event is as recorded, and reading changes nothing."""
    record = unpack(version, path)
    file = path / "log.ring"
    with penstock.open(file, mode=mode) as ring:
        assert contents(ring) == record["events"]
        assert [e.seq for e in reversed(ring)] == [e["seq"] for e in reversed(record["events"])]
        assert sorted(ring.topics()) == record["topics"]
        assert ring.stats().uuid == record["uuid"]
        assert ring.stats().ring == ring._storage.take_stock(ring).ring
        for event in record["events"]:
            assert ring[event["seq"]].time_ns == event["time_ns"]
        if mode == "rw":
            last = record["events"][-1]["seq"]
            assert ring.append(b"again", producer=("sensor-7", 1)) == 1
            assert ring.append(b"new", producer=("sensor-7", 2)) == last + 1
            assert contents(ring)[:-1][-20:] == record["events"][-20:]
    if mode == "r":
        assert {"log.ring": digest(file.read_bytes())} == record["files"]


@pytest.mark.parametrize("version", RINGS)
def test_the_oracle_reads_a_ring_too(version: str, path: Path) -> None:
    """The reader in plain Python, written from the format's description, agrees."""
    record = unpack(version, path)
    assert [(f.seq, f.time_ns, short(f.value)) for f in oracle.read_ring(path / "log.ring")] == [
        (e["seq"], e["time_ns"], e["value"] or "") for e in record["events"]
    ]


@pytest.mark.parametrize("what", KINDS)
def test_golden_logs_can_be_made(what: str, tmp_path: Path) -> None:
    """Golden logs of this version can be made, are as the stored ones, and are not made again."""
    name = make(what, tmp_path)
    made = unpack(name, tmp_path / "made", tmp_path)
    path = tmp_path / "made" / "log.ring" if what == "ring" else tmp_path / "made"
    with penstock.open(path, mode="r") as log:
        assert contents(log) == made["events"]
    stored = json.loads((HERE / f"{name}.json").read_text())
    assert made.keys() == stored.keys()
    assert made["topics"] == stored["topics"]
    assert made["files"].keys() == stored["files"].keys()
    with pytest.raises(FileExistsError):
        make(what, tmp_path)


CONSUMERS = sorted(p.stem for p in HERE.glob("consumers-v*.json"))


def test_consumers_of_the_current_version_are_there() -> None:
    """There are golden consumers of the version that this package writes."""
    assert f"consumers-v{L.CONSUMER_VERSION}" in CONSUMERS


@pytest.mark.parametrize("version", CONSUMERS)
def test_consumers_read_as_recorded(version: str, path: Path) -> None:
    """Consumers of every version are known, and go on where they were."""
    record = json.loads((HERE / f"{version}.json").read_text())
    unpack(record["log"], path)
    (path / "consumers").mkdir()
    unpacked = unpack_files(version)
    assert {name: digest(raw) for name, raw in unpacked.items()} == record["files"]
    for name, raw in unpacked.items():
        (path / "consumers" / name).write_bytes(raw)
    with penstock.open(path) as log:
        assert known(log) == record["consumers"]
        for one in record["consumers"]:
            with log.consumer(one["name"]) as consumer:
                assert consumer.committed == one["committed"]
                events = consumer.poll(1000)
                assert len(events) == one["events"]
                assert all(event.seq >= one["committed"] for event in events)
                consumer.commit()
                assert consumer.caught_up


def unpack_files(version: str) -> dict[str, bytes]:
    """The files in an archive, by name."""
    files = {}
    with tarfile.open(HERE / f"{version}.tar.xz") as archive:
        for member in archive.getmembers():
            source = archive.extractfile(member)
            assert source is not None
            files[member.name] = source.read()
    return files
