"""Writes the drawings and tables of docs/format.md from the records in penstock/layout.py.

    python tools/format_tables.py

Each is between ``<!-- FRAME -->``, with the name of a record or of numbers in layout.py, and
``<!-- end -->``. What is between them is never edited by hand; a test fails if it differs.
"""

import re
from pathlib import Path
from typing import NamedTuple

from penstock import layout as L

PAGE = Path(__file__).parents[1] / "docs" / "format.md"
MARKED = re.compile(r"(<!-- ([A-Z_]+) -->\n)(.*?)(<!-- end -->\n)", re.DOTALL)
WIDE = 8  # bytes in a row of a drawing, and characters for a byte


class Row(NamedTuple):
    """One row of a drawing."""

    at: int
    cells: list[tuple[int, str]]  # the bytes that each takes, and its text
    follows: str  # the line above: "-", "=" if rows are left out there, " " if a field goes on


def drawing(record: L.RecordType) -> list[str]:
    """The record, eight bytes wide."""
    lines, edges = ["     0       1       2       3       4       5       6       7"], {0, WIDE}
    for row in rows(record):
        ends = {sum(nbytes for nbytes, _ in row.cells[:i]) for i in range(len(row.cells) + 1)}
        if row.follows != " ":
            lines.append(border(edges | ends, row.follows))
        lines.append("    " + "".join(cell(*c) for c in row.cells) + f"| {row.at:>4}")
        edges = ends
    if record.then:
        lines += [border(edges, "-"), f"    | {record.then:<62}| {record.size:>4}"]
        edges = {0, WIDE}
    return [*lines, border(edges, "-")]


def rows(record: L.RecordType) -> list[Row]:
    """The rows of a drawing, without those that have nothing new."""
    spans, end = [], 0
    following = [*(field.at for field in record.fields.values()), record.size][1:]
    for (name, field), stop in zip(record.fields.items(), following, strict=True):
        if field.at > end:
            spans.append((end, field.at, ""))
        end = field.at + (field.nbytes or stop - field.at)
        spans.append((field.at, end, name))
    if end < record.size:
        spans.append((end, record.size, ""))
    found: list[Row] = []
    follows = "-"
    for at in range(0, record.size, WIDE):
        here = [s for s in spans if s[0] < at + WIDE and s[1] > at]
        start, stop, name = here[0]
        if start <= at and stop >= at + WIDE and (not name or start < at):
            if name and stop - start <= 2 * WIDE:
                found.append(Row(at, [(WIDE, "")], " "))
            else:
                follows = "="
            continue
        cells = []
        for start, stop, name in here:
            nbytes = min(stop, at + WIDE) - max(start, at)
            more = " …" if name and stop - start > 2 * WIDE else ""
            cells.append((nbytes, name + more if name and start >= at else more.strip()))
        found.append(Row(at, cells, follows))
        follows = "-"
    return found


def cell(nbytes: int, text: str) -> str:
    """A cell with its left edge."""
    return "|" + text.center(WIDE * nbytes - 1)


def border(edges: set[int], line: str) -> str:
    """The line between two rows that have cells with these edges."""
    marks = (("+" if i in edges else line) + line * (WIDE - 1) for i in range(WIDE))
    return "    " + "".join(marks) + "+"


def table(head: str, cells: list[tuple[object, ...]]) -> list[str]:
    """A table in Markdown."""
    columns = head.split()
    body = ["| " + " | ".join(str(c) for c in row) + " |" for row in cells]
    return ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns), *body]


def lines_of(name: str) -> list[str]:
    """What belongs between the marks for ``name``."""
    found = getattr(L, name)
    if isinstance(found, L.Numbers):
        return table("value name note", list(found.rows))
    fields = table(
        "at type field note",
        [(f.at, f.type, name, f.note) for name, f in found.fields.items()],
    )
    aligned = all(f.at % f.nbytes == 0 for f in found.fields.values() if f.type[0] == "u")
    if found.size <= WIDE or not aligned:
        return fields
    return [*drawing(found), "", *fields]


def rewritten(text: str) -> str:
    """The page with everything between marks generated again."""
    return MARKED.sub(lambda m: "\n".join([m[1], *lines_of(m[2]), "", m[4]]), text)


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
