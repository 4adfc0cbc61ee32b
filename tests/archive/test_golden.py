"""Archives of every released version of the format are readable, as they were made."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import layout as L
from tests.golden.make import contents, make_archive

HERE = Path(__file__).parents[1] / "golden"
VERSIONS = sorted(p.stem for p in HERE.glob("archive-v*.json"))


def unpack(version: str, target: Path) -> dict[str, Any]:
    """Put the golden archive into a directory; what is recorded of it."""
    target.mkdir()
    with tarfile.open(HERE / f"{version}.tar.xz") as packed:
        for member in packed.getmembers():
            source = packed.extractfile(member)
            assert source is not None
            (target / member.name).write_bytes(source.read())
    found: dict[str, Any] = json.loads((HERE / f"{version}.json").read_text())
    return found


def test_the_current_version_is_there() -> None:
    """There is a golden archive of the version that this package writes, and it is small."""
    assert f"archive-v{L.ARCHIVE_VERSION}" in VERSIONS
    assert all((HERE / f"{v}.tar.xz").stat().st_size < 100_000 for v in VERSIONS)


@pytest.mark.parametrize("version", VERSIONS)
def test_it_reads_as_recorded(version: str, tmp_path: Path) -> None:
    """It is what was made, reads to what was recorded, and makes a log that goes on."""
    record = unpack(version, tmp_path / "archive")
    files = {p.name: p.read_bytes() for p in (tmp_path / "archive").iterdir()}
    assert {n: hashlib.sha256(d).hexdigest() for n, d in files.items()} == record["files"]
    with penstock.open(tmp_path / "archive", mode="r") as log:
        assert contents(log) == record["events"]
        assert [e.seq for e in reversed(log)] == [e["seq"] for e in reversed(record["events"])]
        assert log.verify().ok
    assert penstock.restore(tmp_path / "archive", tmp_path / "log") == record["events"][-1]["seq"]
    with penstock.open(tmp_path / "log") as log:
        assert contents(log) == record["events"]
        assert log.append(b"goes on") == record["events"][-1]["seq"] + 1


def test_it_can_be_made(tmp_path: Path) -> None:
    """The golden archive of the next version can be made."""
    name = make_archive(tmp_path)
    assert json.loads((tmp_path / f"{name}.json").read_text())["events"]
