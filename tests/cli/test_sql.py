"""``penstock sql``."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from tests.cli.support import Shell, picture
from tests.cli.test_cat import damage


@pytest.fixture(autouse=True)
def filled(shell: Shell) -> None:
    """A log of JSON, one of bytes."""
    with penstock.open("o", codec="json") as log:
        for n in range(1, 11):
            topic = "even" if n % 2 == 0 else "odd"
            log.append({"total": n}, topic=topic, key=b"k", time=f"2026-01-{n:02d}T12:00Z")
    with penstock.open("dir/b") as log:
        log.extend([b"\xff", b"text"])


def test_queries(shell: Shell) -> None:
    """Tables are logs, by name or path; columns are parts of events, data is JSON."""
    assert shell("sql", "select topic, count(*) n from o group by 1 order by 1").values == [
        {"topic": "even", "n": 5},
        {"topic": "odd", "n": 5},
    ]
    before = picture("o")
    assert shell("sql", "select sum((data->>'total')::int) s from o where seq > 8").values == [
        {"s": 19}
    ]
    assert picture("o") == before
    rows = shell("sql", 'select * from "dir/b" order by seq').values
    assert rows[0]["value"] == {"base64": "/w=="} and rows[1]["value"] == "text"
    assert rows[0]["time"].endswith("Z")
    join = "select a.seq from o a join o b on a.seq = b.seq + 1 where b.seq > 8"
    assert shell("sql", join).values == [{"seq": 10}]
    assert shell("sql", "-", stdin=b"select 1 as one").values == [{"one": 1}]
    with_common = "with o2 as (select * from o where topic = 'even') select count(*) n from o2"
    assert shell("sql", with_common).values == [{"n": 5}]
    assert shell("sql", "select count(*) n from o where data->>'o' is null").values == [{"n": 10}]


def test_forms(shell: Shell) -> None:
    """A table on a terminal, and each form elsewhere."""
    query = "select seq, topic from o where seq < 3 order by seq"
    assert shell("sql", query, "-o", "csv").text == "seq,topic\n1,odd\n2,even\n"
    assert pa.ipc.open_stream(shell("sql", query, "-o", "arrow").raw).read_all().num_rows == 2
    assert pq.read_table(io.BytesIO(shell("sql", query, "-o", "parquet").raw)).num_rows == 2
    lines = shell("sql", query, terminal=True).lines
    assert "seq" in lines[0] and len(lines) == 3
    shell("sql", query, "-o", "parquet", terminal=True, code=2)


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ("seq > 3 and seq <= 5", {"start": 4, "stop": 6}),
        ("seq between 3 and 5", {"start": 3, "stop": 6}),
        ("5 = seq", {"start": 5, "stop": 6}),
        ("topic = 'odd' and seq < 4", {"stop": 4, "topic": ["odd"]}),
        ("topic in ('odd', 'x')", {"topic": ["odd", "x"]}),
        ("topic = 'a' and topic = 'b'", {"topic": ["a"]}),
        ("seq > 3 or seq < 2", {}),
        ("not seq > 3", {}),
        ("seq + 1 > 3", {}),
        ("seq > 99999999999999999999", None),
        ("seq >= -5", {}),
    ],
)
def test_what_is_read(shell: Shell, where: str, wanted: dict[str, object] | None) -> None:
    """Limits on seq, time and topic reach the scan, and the result is what SQL says."""
    query = f"select seq from o where {where} order by seq"
    told = shell("sql", query, "--explain").values[0]
    if wanted is not None:
        assert {k: v for k, v in told.items() if k not in ("log", "columns")} == wanted
    assert "value" not in told["columns"]
    seqs = [row["seq"] for row in shell("sql", query).values]
    everything = shell("sql", "select seq, topic from o order by seq").values
    import duckdb

    o = pa.Table.from_pylist(everything)  # noqa: F841 (DuckDB finds it by its name)
    assert seqs == [row[0] for row in duckdb.execute(query).fetchall()]


def test_times_are_limits(shell: Shell) -> None:
    """A condition on time reads a day more at most, and returns exactly what it says."""
    query = "select seq from o where time >= '2026-01-05 00:00:00Z' order by seq"
    assert "since" in shell("sql", query, "--explain").values[0]
    assert [row["seq"] for row in shell("sql", query).values] == list(range(5, 11))


def test_failures(shell: Shell) -> None:
    """A wrong query is 2, a missing log 3, damage 7, or 12 if it may be passed over."""
    shell("sql", "selec", code=2)
    shell("sql", "", code=2)
    shell("sql", "select nothing from o", code=2)
    assert shell("sql", "select * from none", code=3).error["type"] == "NoSuchLog"
    with penstock.open("a") as log:
        log.extend([b'"value-%d"' % n for n in range(1, 6)])
    damage("a")
    assert shell("sql", "select value from a", code=7).error["kind"] == "Corrupt"
    done = shell("sql", "select count(*) n from a", "--skip-damage", code=12)
    assert done.values == [{"n": 4}]
    assert Path("a").exists()
