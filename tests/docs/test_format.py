"""docs/format.md, layout.py and the compiled module say the same, number by number.

The tables follow a convention: the heading above a table of fields ends in the prefix of their
names in layout.py, as in "Frame: `FRAME_`"; its rows are ``| at | type | field | note |``. A table
of values has rows ``| value | name | note |``; under a heading without prefix the name is whole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock import _core
from penstock import layout as L

FORMAT = Path(__file__).parents[2] / "docs" / "format.md"
SIZES = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "8 bytes": 8, "16 bytes": 16, "bytes": 0}
CONSTANTS: Mapping[str, int | bytes] = {n: v for n, v in vars(L).items() if n.isupper()}
# Names with a field's prefix that are sizes, places of whole pages, or bits in a field.
NOT_FIELDS = re.compile(
    r"_(BYTES|MAX)$|_FLAG_|^SLOT_TAIL$|^SLOT_[AB]_|^SLOT_BYTES|^C_(?=$)|^FRAME_HEADER_BYTES|^HEADER_FLAG_"
)


class Row(NamedTuple):
    prefix: str
    at: int
    type: str
    field: str

    @property
    def name(self) -> str:
        return self.prefix + self.field.upper()


def tables(first: str) -> list[tuple[str, list[str]]]:
    """Prefix of the heading, and cells, of each row of the tables that begin with ``first``."""
    found: list[tuple[str, list[str]]] = []
    prefix, inside = "", False
    for line in FORMAT.read_text().splitlines():
        if line.startswith("#"):
            match = re.search(r"`([A-Z_]+_)`$", line)
            prefix, inside = match[1] if match else "", False
        elif line.startswith("|"):
            cells = [c.strip() for c in line.strip("|").split("|")]
            if not set(cells[0]) <= set("-"):
                if inside:
                    found.append((prefix, cells))
                inside = inside or cells[0] == first
        else:
            inside = False
    return found


FIELDS = [Row(prefix, int(c[0], 0), c[1], c[2]) for prefix, c in tables("at")]
VALUES = [
    (prefix + (c[1].upper() if prefix else c[1]), int(c[0], 0)) for prefix, c in tables("value")
]
PREFIXES = sorted({row.prefix for row in FIELDS})


def test_the_tables_are_found() -> None:
    """Every part of the format has its table."""
    assert set(PREFIXES) == {
        *("FRAME_", "HEADER_", "SLOT_", "INDEX_ENTRY_", "FOOTER_", "C_", "PRODUCER_")
    }
    assert len(FIELDS) > 90
    assert len(VALUES) >= 18


@pytest.mark.parametrize("row", FIELDS, ids=lambda r: r.name)
def test_fields_stand_where_layout_says(row: Row) -> None:
    """The documented offset is layout.py's; a magic that has none there stands at 0."""
    constant = CONSTANTS[row.name]
    assert row.at == (0 if isinstance(constant, bytes) else constant)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_every_field_is_documented(prefix: str) -> None:
    """layout.py has no field that the page leaves out."""
    documented = {row.name for row in FIELDS if row.prefix == prefix}
    there = {n for n in CONSTANTS if n.startswith(prefix) and not NOT_FIELDS.search(n)}
    assert there - documented == set()


@pytest.mark.parametrize("prefix", PREFIXES)
def test_fields_do_not_overlap(prefix: str) -> None:
    """Fields stand in order, aligned to their size, and each ends before the next begins."""
    rows = [row for row in FIELDS if row.prefix == prefix]
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        size = SIZES[row.type]
        if row.type.startswith("u"):
            assert row.at % size == 0, row
        if following is not None:
            assert row.at + size <= following.at, row


@pytest.mark.parametrize(("name", "value"), VALUES, ids=[n for n, _ in VALUES])
def test_values(name: str, value: int) -> None:
    """Each documented kind, flag and limit has the value that layout.py gives it."""
    assert CONSTANTS[name] == value


@pytest.mark.parametrize("prefix", ["KIND_", "FLAG_"])
def test_every_value_is_documented(prefix: str) -> None:
    """No kind and no flag is left out."""
    there = {n for n in CONSTANTS if n.startswith(prefix) and n != "KIND_MAX"}
    assert there == {n for n, _ in VALUES if n.startswith(prefix)}


def test_limits_are_documented() -> None:
    """Every limit that a caller can meet is in the table of limits."""
    wanted = {n for n in CONSTANTS if re.fullmatch(r"(TOPIC|KEY|HEADERS|VALUE)_BYTES_MAX", n)}
    wanted |= {n for n in CONSTANTS if n.startswith("SEGMENT_BYTES_")}
    assert wanted <= {n for n, _ in VALUES}


@pytest.mark.parametrize("name", sorted(_core.LAYOUT))
def test_the_compiled_module_agrees(name: str) -> None:
    """The compiled module was built from this very layout.py."""
    assert _core.LAYOUT[name] == CONSTANTS[name]


def test_the_drawings_name_every_field() -> None:
    """Each field of a table is in the drawing above it; control draws its words in groups."""
    text = FORMAT.read_text()
    for prefix in PREFIXES:
        if prefix in ("C_", "PRODUCER_"):
            continue
        part = text.split(f"`{prefix}`\n", 1)[1].split("\n## ", 1)[0]
        drawing = "\n".join(line for line in part.splitlines() if line.startswith("    |"))
        for row in FIELDS:
            if row.prefix == prefix:
                assert re.search(rf"\b{row.field}\b", drawing), row.name


def test_the_magics_are_documented() -> None:
    """Each magic is shown as it is in the file."""
    text = FORMAT.read_text()
    for name, value in CONSTANTS.items():
        if isinstance(value, bytes):
            assert f"`{value.decode()}`" in text, name


def test_the_page_is_about_this_version() -> None:
    """The title names the version that the package writes."""
    assert FORMAT.read_text().startswith(f"# File format, version {L.FORMAT_VERSION}\n")
