"""A scan with a schema gives the fields of values as typed columns, and says which do not fit."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import errors
from penstock.data.fields import arrow_schema

SCHEMA = {"user": str, "amount": float, "n": int, "ok": bool, "tags": list[str]}


@pytest.fixture
def log(path: Path) -> Iterator[penstock.Log]:
    """An empty log of JSON."""
    with penstock.open(path, codec="json") as log:
        yield log


documents = st.fixed_dictionaries(
    {},
    optional={
        "user": st.none() | st.text(max_size=12),
        "amount": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "n": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
        "ok": st.none() | st.booleans(),
        "tags": st.none() | st.lists(st.text(max_size=5), max_size=3),
        "other": st.recursive(
            st.none() | st.text(max_size=5) | st.integers(0, 9),
            lambda c: st.lists(c, max_size=2) | st.dictionaries(st.text(max_size=3), c, max_size=2),
            max_leaves=5,
        ),
    },
)


@settings(deadline=None, max_examples=60)
@given(
    wanted=st.lists(st.none() | documents, max_size=40),
    codec=st.sampled_from(["json", "msgpack"]),
    rows=st.integers(1, 20),
    indent=st.none() | st.integers(0, 2),
)
def test_equals_the_documents(
    tmp_path_factory: pytest.TempPathFactory,
    wanted: list[dict[str, Any] | None],
    codec: str,
    rows: int,
    indent: int | None,
) -> None:
    """Whatever the documents are, their fields are the columns, and deletions are null."""
    with penstock.open(tmp_path_factory.mktemp("fields") / "log", codec=codec) as log:
        for doc in wanted:
            if codec == "json" and doc is not None:
                log.append(json.dumps(doc, indent=indent, ensure_ascii=False).encode())
            else:
                log.append(doc, key=b"k")
        table = log.scan(schema=SCHEMA, columns=["seq", *SCHEMA], batch_rows=rows).to_arrow()
        table.validate(full=True)
        assert table.schema.names == ["seq", *SCHEMA]
        assert table.drop_columns("seq").to_pylist() == [
            {name: (doc or {}).get(name) for name in SCHEMA} for doc in wanted
        ]


@dataclasses.dataclass
class Place:
    """A dataclass inside a struct."""

    city: str
    at: dt.datetime | None = None


class Order(msgspec.Struct):
    """A struct with everything."""

    id: Annotated[int, msgspec.Meta(ge=0)]
    place: Place
    lines: list[Place]
    day: dt.date | None = None


def test_schemas_of_every_kind() -> None:
    """A pyarrow schema, a mapping, a struct or a dataclass, nested or not."""
    place = pa.struct([("city", pa.string()), ("at", pa.timestamp("us", "UTC"))])
    assert arrow_schema(Order) == pa.schema(
        [("id", pa.int64()), ("place", place), ("lines", pa.list_(place)), ("day", pa.date32())]
    )
    assert arrow_schema(Place) == pa.schema(list(place))
    some = pa.schema([("a", pa.int8())])
    assert arrow_schema(some) is some
    assert arrow_schema({"a": "float32", "b": pa.int8()}) == pa.schema(
        [("a", pa.float32()), ("b", pa.int8())]
    )
    for wrong, words in (
        ({"a": "no such"}, "'no such' has no Arrow type"),
        ({"a": dict}, "dict'> has no Arrow type; give a pyarrow type"),
        ({"a": int | str}, "has no Arrow type; give a pyarrow type"),
        ({}, "schema must have fields"),
        (int, "schema must be a pyarrow schema"),
        ("a", "schema must be a pyarrow schema"),
    ):
        with pytest.raises(errors.Usage, match=words):
            arrow_schema(wrong)


def test_structs_and_times(log: penstock.Log) -> None:
    """Nested objects and ISO times come as structs and timestamps."""
    log.append({"id": 7, "place": {"city": "Ulm", "at": "2026-11-01T12:00:00Z"}, "lines": []})
    row = log.scan(schema=Order).to_arrow().to_pylist()[0]
    when = dt.datetime(2026, 11, 1, 12, tzinfo=dt.UTC)
    assert row["id"] == 7 and row["place"] == {"city": "Ulm", "at": when} and row["lines"] == []
    assert row["day"] is None and row["seq"] == 1


def test_names_that_meet(log: penstock.Log) -> None:
    """A field that is called as a column of the log is data.name, and any field may be."""
    log.append({"time": "noon", "user": "u"}, topic="t")
    scan = log.scan(schema={"time": str, "user": str})
    assert scan.schema.names == ["seq", "time", "topic", "key", "headers", "data.time", "user"]
    assert scan.to_arrow()["data.time"].to_pylist() == ["noon"]
    chosen = log.scan(
        schema={"time": str, "user": str}, columns=["data.user", "data.time", "value"]
    )
    assert chosen.to_arrow().to_pylist() == [
        {"data.user": "u", "data.time": "noon", "value": b'{"time":"noon","user":"u"}'}
    ]
    with pytest.raises(errors.Usage, match=r"must be one of seq, .*data\.time, user, got 'nope'"):
        log.scan(schema={"time": str, "user": str}, columns=["nope"])
    with pytest.raises(errors.Usage, match="column 'user' is named twice"):
        log.scan(schema={"user": str}, columns=["user", "user"])
    with pytest.raises(errors.Usage, match=r"'data\.time' is named twice"):
        log.scan(schema={"time": str, "data.time": str})
    log.append({"data.x": 3})
    dotted = log.scan(2, schema={"data.x": int}, columns=["data.x"])
    assert dotted.to_arrow().to_pylist() == [{"data.x": 3}]


BAD = {
    2: b'{"n": "text"}',
    5: b'{"n": 1.5}',
    6: b'{"n": 1',
    9: b"[1]",
    12: b'{"n": 1}{"n": 2}',
    13: b"",
    14: b" ",
    17: b'{"n": 12345678901234567890}',
    18: b'{"s": "\xff"}',
    19: b'{"n": 1,}',
    25: b'{"n":',
    26: b"1}",
    29: b'{"n": [}]',
}


@pytest.mark.parametrize("batch_rows", [1, 4, 100])
def test_malformed_values(path: Path, batch_rows: int) -> None:
    """One that does not fit raises with its seq, is null, or is left out; the others are right."""
    with penstock.open(path) as log:
        for seq in range(1, 31):
            log.append(BAD.get(seq, b'{"n": %d, "s": "x"}' % seq))
        options: dict[str, Any] = {"schema": {"n": int, "s": str}, "codec": "json"}
        options |= {"batch_rows": batch_rows, "columns": ["seq", "n"]}
        with pytest.raises(errors.BadData, match="the value of seq 2 does not fit") as caught:
            list(log.scan(**options).to_batches())
        assert caught.value.seq == 2
        null = pa.table(log.scan(**options, on_malformed="null"))
        assert null.to_pylist() == [{"seq": s, "n": None if s in BAD else s} for s in range(1, 31)]
        drop = pl.DataFrame(log.scan(**options, on_malformed="skip"))
        assert drop.to_dicts() == [{"seq": s, "n": s} for s in range(1, 31) if s not in BAD]


def test_events_with_a_codec_of_their_own(log: penstock.Log) -> None:
    """Values that were appended with another codec are decoded with that one."""
    log.append({"n": 1})
    log.append({"n": 2}, codec="msgpack")
    log.append(b"plain", codec="bytes")
    log.append({"n": 4}, headers={"h": b"1"}, tags=["t"])
    scan = log.scan(schema={"n": int}, columns=["n"], on_malformed="null")
    assert scan.to_arrow()["n"].to_pylist() == [1, 2, None, 4]
    with pytest.raises(errors.BadData, match=r"seq 3 .*plain bytes"):
        log.scan(schema={"n": int}).to_arrow()


def test_what_cannot_be_asked_for(path: Path) -> None:
    """A schema needs a codec that has fields; codec= and on_malformed= need a schema."""
    with penstock.open(path) as log:
        with pytest.raises(errors.Usage, match=r"its codec is 'bytes'.*codec='json'"):
            log.scan(schema={"n": int})
        with pytest.raises(errors.Usage, match="for a scan with a schema"):
            log.scan(codec="json")
        with pytest.raises(errors.Usage, match="'raise', 'null' or 'skip'"):
            log.scan(schema={"n": int}, codec="json", on_malformed="x")  # type: ignore[arg-type]
        with pytest.raises(errors.NoCodec):
            log.scan(schema={"n": int}, codec="nope")
        with pytest.raises(errors.WrongType, match="a field's name must be str, got int"):
            log.scan(schema={1: int}, codec="json")


def test_objects_of_lite3(path: Path) -> None:
    """Documents of lite3 have fields too."""
    with penstock.open(path, codec="lite3") as log:
        log.append({"n": 1, "s": "x"})
        log.append({"s": None})
        table = log.scan(schema={"n": int, "s": str}, columns=["n", "s"]).to_arrow()
        assert table.to_pylist() == [{"n": 1, "s": "x"}, {"n": None, "s": None}]


@pytest.mark.parametrize("codec", ["json", "msgpack"])
def test_types_are_not_converted(path: Path, codec: str) -> None:
    """What would change on its way into a column does not fit, whichever codec it comes from."""
    wrong: list[tuple[Any, Any]] = [
        (1.5, int),
        (1.0, int),
        (True, float),
        (True, int),
        ("12", int),
        (12, str),
        (5, dt.datetime),
        (5, dt.date),
        ([1, 2.5], list[int]),
        ({"b": 2.5}, pa.struct([("b", pa.int64())])),
    ]
    with penstock.open(path, codec=codec) as log:
        for value, kind in wrong:
            seq = log.append({"a": value})
            with pytest.raises(errors.BadData, match=f"seq {seq} does not fit"):
                log.scan(seq, schema={"a": kind}).to_arrow()


def test_days(log: penstock.Log) -> None:
    """A date is written to JSON as text, and comes back as a date, also from inside."""
    day = dt.date(2026, 11, 1)
    log.append({"day": day, "days": [day, None], "in": {"day": day}})
    log.append({"day": "soon"})
    log.append({"day": "2026-11-01T05:00:00Z"})
    schema = {"day": dt.date, "days": list[dt.date], "in": pa.struct([("day", pa.date32())])}
    scan = log.scan(schema=schema, columns=list(schema), on_malformed="skip")
    assert scan.to_arrow().to_pylist() == [{"day": day, "days": [day, None], "in": {"day": day}}]


def test_types_that_cannot_be_read(log: penstock.Log) -> None:
    """They are refused when the scan is made."""
    with pytest.raises(errors.Usage, match="cannot be read from JSON"):
        log.scan(schema={"a": pa.map_(pa.string(), pa.int64())})
