"""``penstock list``."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from tests.cli.support import Shell


def test_logs_below(shell: Shell, tmp_path: Path) -> None:
    """It finds segments and rings, sorted, with their seqs."""
    penstock.open("b/x").close()
    with penstock.create("a.ring", ring="64KiB") as ring:
        ring.append(b"1")
    rows = shell("list", ".").values
    assert [(Path(row["path"]).name, row["kind"], row["last_seq"]) for row in rows] == [
        ("a.ring", "ring", 1),
        ("x", "segments", 0),
    ]
    assert shell("list", "-n").lines == [str(tmp_path / "a.ring"), str(tmp_path / "b/x")]
    assert shell("list", "-0").raw.count(b"\0") == 2
    table = shell("list", terminal=True).lines
    assert "last seq" in table[0] and len(table) == 3


def test_one_that_cannot_be_read(shell: Shell) -> None:
    """A damaged log is listed with its error, and the others are as well."""
    penstock.open("good").close()
    penstock.open("bad").close()
    (segment,) = Path("bad").glob("*.seg")
    segment.write_bytes(b"\xff" * 8192)
    bad, good = shell("list").values
    assert bad["error"]["kind"] == "Corrupt" and good["kind"] == "segments"
    assert "error" in shell("list", terminal=True).lines[0]


def test_the_default_directory(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a directory it lists $PENSTOCK_DIR, if that is set."""
    penstock.open("there/a").close()
    penstock.open("b").close()
    monkeypatch.setenv("PENSTOCK_DIR", "there")
    assert [Path(line).name for line in shell("list", "-n").lines] == ["a"]


def test_nothing(shell: Shell) -> None:
    """No log is no error; no directory is one."""
    assert shell("list").raw == b""
    shell("list", "none", code=3)
