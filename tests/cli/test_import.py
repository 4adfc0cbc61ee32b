"""``penstock import``."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from tests.cli.support import Shell
from tests.cli.test_append import fill, parts


def values(path: str) -> list[bytes]:
    """The values of a log."""
    with penstock.open(path, "r") as log:
        return [event.value for event in log]


@pytest.mark.parametrize("form", ["jsonl", "arrow", "parquet", "log"])
def test_what_export_writes(shell: Shell, form: str) -> None:
    """Events come back with all their parts, from a file or from the log itself."""
    fill("a")
    name = "a"
    if form != "log":
        name = f"x.{form}"
        shell("export", "a", name)
    if form == "jsonl":  # its last event has a codec of its own
        shell("import", "b", name, "--create", code=2)
        shell("export", "a", name, "--to", "-2", "--force")
    shell("import", "b", name, "--create")
    with penstock.open("a", "r") as a, penstock.open("b", "r") as b:
        wanted = list(a)[:-1] if form == "jsonl" else list(a)
        assert [parts(e) for e in wanted] == [parts(e) for e in b]


def test_csv(shell: Shell) -> None:
    """The column value is the value, else the row is a JSON object; --columns names others."""
    Path("a.csv").write_text('n,name\n1,x\n2,"a,b"\n')
    shell("import", "a", "a.csv", "--create", "--topic", "t")
    assert [json.loads(v) for v in values("a")] == [
        {"n": "1", "name": "x"},
        {"n": "2", "name": "a,b"},
    ]
    shell("import", "b", "a.csv", "--create", "--columns", "value=name,key=n")
    with penstock.open("b", "r") as log:
        assert [(e.key, e.value) for e in log] == [(b"1", b"x"), (b"2", b"a,b")]
    fill("c")
    shell("export", "c", "c.csv", "--where", "not deletes")
    shell("import", "d", "c.csv", "--create")
    with penstock.open("c", "r") as c, penstock.open("d", "r") as d:
        for one, two in zip((e for e in c if not e.deletes), d, strict=True):
            assert (one.value, one.key or None, one.topic, one.time_ns) == (
                two.value,
                two.key,
                two.topic,
                two.time_ns,
            )
    for text in ("value\n1,2\n", "a,b\n1\n", "value\nbase64:%\n", "value,time\nx,soon\n"):
        Path("bad.csv").write_text(text)
        assert shell("import", "a", "bad.csv", code=2).error["kind"] == "Usage"
    shell("import", "a", "a.csv", "--columns", "value=none", code=2)
    assert len(values("a")) == 2


def test_columns(shell: Shell) -> None:
    """Arrow and Parquet without a column value become JSON objects; --columns names parts."""
    table = pa.table({"body": ["x", "y"], "user": ["u", None], "n": [1, 2]})
    pq.write_table(table, "t.parquet")
    shell("import", "a", "t.parquet", "--create")
    assert [json.loads(v)["n"] for v in values("a")] == [1, 2]
    shell("import", "b", "t.parquet", "--create", "--columns", "value=body,key=user")
    with penstock.open("b", "r") as log:
        assert [(e.key, e.value) for e in log] == [(b"u", b"x"), (None, b"y")]
    shell("import", "a", "t.parquet", "--columns", "value=none", code=2)
    Path("bad.parquet").write_bytes(b"x")
    Path("bad.arrow").write_bytes(b"x")
    shell("import", "a", "bad.parquet", code=2)
    shell("import", "a", "bad.arrow", code=2)
    shell("import", "a", "none.parquet", code=3)


def test_sqlite(shell: Shell) -> None:
    """A table, or a query, of a database that is only read."""
    base = sqlite3.connect("x.db")
    base.execute('create table "o""dd" (id integer, value blob, key text)')
    base.executemany('insert into "o""dd" values (?, ?, ?)', [(1, b"\xff", "k"), (2, "t", None)])
    base.commit()
    base.close()
    before = Path("x.db").read_bytes()
    shell("import", "a", "x.db", "--table", 'o"dd', "--create")
    with penstock.open("a", "r") as log:
        assert [(e.key, e.value) for e in log] == [(b"k", b"\xff"), (None, b"t")]
    shell("import", "a", "x.db", "--table", 'select id from "o""dd"')
    assert values("a")[2:] == [b'{"id":1}', b'{"id":2}']
    assert Path("x.db").read_bytes() == before
    for words in ([], ["--table", "none"], ["--table", "select"]):
        shell("import", "a", "x.db", *words, code=2)
    shell("import", "a", "none.db", "--table", "t", code=3)
    assert not Path("none.db").exists()


def test_kcat(shell: Shell) -> None:
    """Messages as kcat -J prints them keep topic, key, time, headers and their place in Kafka."""
    message = {
        "topic": "orders",
        "partition": 3,
        "offset": 17,
        "tstype": "create",
        "ts": 1767225600123,
        "broker": 0,
        "headers": ["h", "v", "n", None],
        "key": "k",
        "payload": '{"a": 1}',
    }
    gone = {**message, "payload": None, "headers": []}
    lines = "".join(json.dumps(line) + "\n" for line in (message, gone))
    shell("import", "a", "-", "--as", "kcat", "--create", stdin=lines.encode())
    with penstock.open("a", "r") as log:
        one, two = log
        assert (one.topic, one.key, one.value, one.time_ns) == (
            "orders",
            b"k",
            b'{"a": 1}',
            1767225600123 * 10**6,
        )
        assert list(one.headers)[:2] == [("h", b"v"), ("n", None)]
        assert one.header("kafka.offset") == b"17" and two.deletes
    assert (
        "line 2"
        in shell(*["import", "a", "-", "--as", "kcat"], stdin=lines.encode()[:-20], code=2).error[
            "message"
        ]
    )


def test_redis(shell: Shell) -> None:
    """A stream as redis-cli --json prints it: fields as an object, the time from the id."""
    entries = [["1767225600123-0", ["a", "1", "b", "ü"]], ["1767225600123-1", ["value", "x"]]]
    data = json.dumps(entries).encode()
    shell("import", "a", "-", "--as", "redis", "--create", stdin=data)
    with penstock.open("a", "r") as log:
        assert json.loads(log[1].value) == {"a": "1", "b": "ü"} and log[2].value == b"x"
        assert (
            log[1].time_ns == 1767225600123 * 10**6
            and log[2].header("redis.id") == b"1767225600123-1"
        )
    for bad in (
        b"{}",
        b"[[1, []]]",
        b'[["x-0", []]]',
        data[:-1],
        b"[" + data,
        b'[["1-0",["a"]]]',
        b"\xff",
    ):
        shell("import", "a", "-", "--as", "redis", stdin=bad, code=2)
    shell("import", "a", "-", "--as", "redis", stdin=b"[]")
    with penstock.open("a", "r") as log:
        assert log.last_seq == 2


def test_all_or_nothing(shell: Shell) -> None:
    """A file with a bad line appends nothing, --skip-bad passes over it, --producer is once."""
    Path("x.jsonl").write_text('{"value":"1"}\n' * 2000 + "bad\n")
    shell("create", "a")
    assert "line 2001" in shell("import", "a", "x.jsonl", code=2).error["message"]
    assert values("a") == []
    for _ in range(2):
        shell("import", "a", "x.jsonl", "--skip-bad", "--producer", "p:1", code=None)
    assert len(values("a")) == 2000


def test_what_does_not_go_together(shell: Shell) -> None:
    """No option is ignored."""
    shell("create", "a")
    Path("x.jsonl").write_text('{"value":"1"}\n')
    Path("x").write_text("1")
    for words in (
        ["x"],
        ["-"],
        ["x.jsonl", "--table", "t"],
        ["x.jsonl", "--columns", "value=x"],
        ["x.jsonl", "x.jsonl", "--producer", "p:1"],
        ["x.jsonl", "--codec", "json"],
        ["x", "--as", "csv", "--skip-bad"],
        ["x", "--as", "csv", "--columns", "vale=x"],
    ):
        shell("import", "a", *words, code=2)
    shell("import", "a", "none.jsonl", code=3)
    assert values("a") == []
