"""``penstock dump``."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from penstock import layout
from tests.cli.support import Shell, picture
from tests.cli.test_cat import damage


@pytest.fixture(params=["segments", "ring"])
def filled(request: pytest.FixtureRequest, shell: Shell) -> str:
    """A log of a few events, of either kind."""
    path = "a.ring" if request.param == "ring" else "a"
    kind = {"ring": "64KiB"} if request.param == "ring" else {}
    with penstock.create(path, **kind) as log:  # type: ignore[arg-type]
        log.append(b"one", key=b"k", topic="t", headers={"h": b"v"}, time="2026-01-01T00:00Z")
        log.append(None, key=b"k")
        log.consumer("c").close()
    return path


def test_files(shell: Shell, filled: str) -> None:
    """Each file of the log, and what it is."""
    rows = {row["what"]: row for row in shell("dump", filled).values}
    assert {"consumer", "ring" if filled.endswith("ring") else "segment"} <= set(rows)


def test_records(shell: Shell, filled: str) -> None:
    """The fields of header, checkpoints and control with their meanings; nothing is written."""
    before = picture(".")
    for what, record in (
        ("header", layout.HEADER),
        ("checkpoints", layout.SLOT),
        ("control", layout.CONTROL),
    ):
        rows = shell("dump", filled, what, "--hex").values
        assert [row["field"] for row in rows][: len(record.fields)] == list(record.fields)
        assert all({"offset", "value", "meaning", "bytes"} <= set(row) for row in rows)
        crc = [row for row in rows if row["field"] == "crc"]
        assert what == "control" or any("right" in row["value"] for row in crc)
    assert picture(".") == before
    shell("dump", filled, "footer", code=3)


def test_frames(shell: Shell, filled: str) -> None:
    """Each frame with its place, kind and checksum; --hex has its parts."""
    rows = [
        row
        for row in shell("dump", filled, "frames", "--hex").values
        if row["kind"] in ("data", "delete")
    ]
    assert [(row["kind"], row["seq"], row["crc"]) for row in rows] == [
        ("data", 1, "right"),
        ("delete", 2, "right"),
    ]
    assert bytes.fromhex(rows[0]["parts"]["value"]) == b"one"
    assert set(rows[0]["parts"]) == {"event_time", "topic", "headers", "key", "value"}
    text = shell("dump", filled, "frames", "--hex", "-n", "1", terminal=True).text
    assert "6f 6e 65" in text and "batch_left" in text
    assert [
        row["seq"] for row in shell("dump", filled, "frames", "--from", "2", "-n", "1").values
    ] == [2]
    assert shell("dump", filled, "index").values or filled == "a"  # none of a block is complete


def test_a_footer(shell: Shell) -> None:
    """Of a sealed segment."""
    with penstock.open("a", segment_size="64KiB") as log:
        log.append(b"x")
        log.steward.roll()
    with penstock.open("a") as log:
        names = sorted(path.name for path in Path("a").glob("*.seg"))
        while not any(
            row["field"] == "magic"
            for row in shell("dump", "a", "footer", "--file", names[0], code=None).values
        ):
            log.wait(0.01)  # it is sealed in the background
    rows = {r["field"]: r["value"] for r in shell("dump", "a", "footer", "--file", names[0]).values}
    assert rows["magic"] == "PSKSEALD" and "right" in rows["crc"] and rows["last_seq"] == "1"


def test_damage(shell: Shell) -> None:
    """A damaged frame is shown as one, with those after it; a file that is cut is an error."""
    with penstock.open("a") as log:
        log.extend([b'"value-%d"' % n for n in range(1, 6)])
    damage("a")
    rows = shell("dump", "a", "frames").values
    assert [row["crc"] for row in rows if row["kind"] == "data"] == [
        "right",
        "right",
        "WRONG checksum",
        "right",
        "right",
    ]
    (segment,) = Path("a").glob("*.seg")
    data = segment.read_bytes()
    for junk in (b"", b"x" * 100, b"\xff" * 20000, data[:5000], bytes(100_000)):
        segment.write_bytes(junk)
        for what in ("header", "checkpoints", "index", "frames", "footer"):
            shell("dump", "a", what, code=None)
    segment.write_bytes(b"short")
    assert shell("dump", "a", "header", code=7).error["kind"] == "Corrupt"


def test_what_does_not_go_together(shell: Shell, filled: str) -> None:
    """No option is ignored."""
    for words in (
        ["none"],
        ["header", "--from", "1"],
        ["files", "--hex"],
        ["frames", "--from", "x"],
    ):
        shell("dump", filled, *words, code=2)
    shell("dump", "nothing", code=3)
    shell("dump", filled, "frames", "--file", "x.seg", code=2 if filled == "a.ring" else 3)
