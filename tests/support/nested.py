"""Texts for columns that are nested, most of which the vectorised parser takes."""

from __future__ import annotations

import random
from typing import Any

from tests.support.texts import fragments, schema_of

NESTED = (
    "at array<timestamp>, ay array<array<date>>, ad array<double>, ac array<decimal(10,2)>, "
    "o struct<t:timestamp,n:timestamp_ntz,y:date,x:binary,d:double,f:float,c:decimal(38,0)>, "
    "ao array<struct<t:timestamp,ay:array<date>,o:struct<d:double,s:string>>>, x binary, s string"
)


PLAIN = {
    "timestamp": [
        '"2020-01-02T03:04:05Z"',
        '"1969-12-31 23:59:59.5"',
        '"2020-02-29T00:00:00.123456+05:30"',
        '"0001-01-01T00:00:00-17:59"',
        '"9999-12-31T23:59:59.999999Z"',
        '"2020-01-02"',
        '"2020-1-2 3:4"',
        '"2020-07-02T03:04:05 Europe/Berlin"',
    ],
    "timestamp_ntz": ['"2020-01-02T03:04:05"', '"1969-12-31 23:59:59.123"', '"2020"'],
    "date": ['"2020-01-02"', '"0001-01-01"', '"9999-12-31"', '"2020-1"', '"-0044-03-15"'],
    "binary": ['"YWJj"', '"YQ=="', '""', '"+/+/"', '"YWI="'],
    "double": ["1.5", "0", "0.0", "-1e-7", "12345678901234567890", "0.1", "1e308", "5e-324"],
    "float": ["1.5", "16777217", "0.1", "3.4028234e38", "1e-45", "1.00000017881393432617187499"],
    "decimal(10,2)": ["1", "1.25", "-12345678.99", '"7.5"', "1e3", "0"],
    "decimal(38,0)": ["1", "9" * 38, "-" + "9" * 38, '"5"'],
    "string": ['"x"', '""', '"\\u00e9"', '"\\ud83d\\ude00"', '"a\\nb"', '"{[,"', '"é"'],
}


class Maker:
    """Makes texts of a type: such as the vectorised parser takes, but for a few."""

    def __init__(self, seed: int, spoilt: float) -> None:
        self.rng = random.Random(seed)
        self.spoilt = spoilt

    def text(self, kind: Any) -> str:
        """The text of a value."""
        if self.rng.random() < 0.08:
            return "null"
        if self.rng.random() < self.spoilt:
            return self.rng.choice(fragments())
        if hasattr(kind, "elementType"):
            parts = (self.text(kind.elementType) for _ in range(self.rng.randint(0, 3)))
            return f"[{','.join(parts)}]"
        if hasattr(kind, "fields"):
            fields = [field for field in kind if self.rng.random() < 0.8]
            self.rng.shuffle(fields)
            return "{" + ",".join(f'"{f.name}":{self.text(f.dataType)}' for f in fields) + "}"
        return self.rng.choice(PLAIN[kind.simpleString()])


def nested(count: int, spoilt: float) -> list[bytes]:
    """Objects with the columns of ``NESTED``, of whose values a share is anything at all."""
    maker = Maker(20261116, spoilt)
    schema = schema_of(NESTED)
    found = (maker.text(schema).encode() for _ in range(count))
    return [text for text in found if text.startswith(b"{")]


def plainly(table: Any) -> list[str]:
    """Rows as text, in which times are numbers: Python has none that are as far away."""
    import pyarrow as pa

    plain = pa.schema([(field.name, plain_type(field.type)) for field in table.schema])
    return [repr(row) for row in table.cast(plain).to_pylist()]


def plain_type(kind: Any) -> Any:
    """The type with numbers for times."""
    import pyarrow as pa

    if pa.types.is_list(kind):
        return pa.list_(plain_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, plain_type(field.type)) for field in kind])
    if pa.types.is_temporal(kind):
        return pa.int32() if pa.types.is_date(kind) else pa.int64()
    return kind
