"""``penstock export``."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from tests.cli.support import Shell, picture


@pytest.fixture(autouse=True)
def filled(shell: Shell) -> None:
    """A log of ten events."""
    with penstock.open("a") as log:
        log.extend([b"%d" % n for n in range(10)], topic="t")


def test_forms(shell: Shell) -> None:
    """The name says the form; the file has what cat prints."""
    before = picture("a")
    for name in ("x.jsonl", "x.csv", "x.parquet", "x.arrow"):
        assert shell("export", "a", name, "--json").values[0] == {"files": [name], "events": 10}
    assert Path("x.jsonl").read_bytes() == shell("cat", "a", "-o", "jsonl").raw
    assert Path("x.csv").read_bytes() == shell("cat", "a", "-o", "csv").raw
    assert pq.read_table("x.parquet").num_rows == 10
    with pa.OSFile("x.arrow") as file:
        assert pa.ipc.open_stream(file).read_all().num_rows == 10
    assert picture("a") == before
    shell("export", "a", "x.txt", code=2)
    shell("export", "a", "x.txt", "--as", "csv")


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_parts(shell: Shell, form: str) -> None:
    """--rows splits it, and an empty selection is one empty file."""
    told = shell("export", "a", f"p.{form}", "--rows", "4", "--json").values[0]
    assert told == {"files": [f"p-{n}.{form}" for n in range(3)], "events": 10}
    if form == "jsonl":
        assert [len(Path(f"p-{n}.jsonl").read_bytes().splitlines()) for n in range(3)] == [4, 4, 2]
    else:
        assert [pq.read_table(f"p-{n}.parquet").num_rows for n in range(3)] == [4, 4, 2]
    assert shell("export", "a", f"none.{form}", "--topic", "x", "--json").values[0]["events"] == 0
    assert Path(f"none.{form}").exists()


def test_nothing_is_replaced(shell: Shell) -> None:
    """A file that is there stays, unless --force is given; a failed export leaves none."""
    Path("x.jsonl").write_text("mine")
    assert shell("export", "a", "x.jsonl", code=4).error["path"] == "x.jsonl"
    assert Path("x.jsonl").read_text() == "mine"
    shell("export", "a", "x.jsonl", "--force")
    assert Path("x.jsonl").read_text() != "mine"
    shell("export", "a", "none/x.jsonl", code=3)
    shell("export", "a", "y.jsonl", "--grep", "(", code=2)
    (segment,) = Path("a").glob("*.seg")
    data = bytearray(segment.read_bytes())
    data[data.index(b"t5")] ^= 1
    segment.write_bytes(data)
    for form in ("jsonl", "parquet"):
        shell("export", "a", f"z.{form}", code=7)
        shell("export", "a", f"s.{form}", "--skip-damage", code=12)
    assert [path.name for path in Path().glob("*z*")] == [] and not list(Path().glob(".*part"))
