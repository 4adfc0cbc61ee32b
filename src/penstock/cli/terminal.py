"""What only people see: tables, sizes and times for them. rich is used if it is installed."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.cli.out import Out

_NUMBER = set("0123456789,.-")


def table_lines(columns: Sequence[str], rows: Sequence[Sequence[str]], out: Out) -> list[str]:
    """A table as lines, cut to the width of the terminal if there is one."""
    if not rows:
        return []
    widths = [max(len(row[i]) for row in [columns, *rows]) for i in range(len(columns))]
    right = [all(set(row[i]) <= _NUMBER for row in rows) for i in range(len(columns))]
    limit = shutil.get_terminal_size().columns if out.terminal else 0

    def laid_out(cells: Sequence[str]) -> str:
        parts = [
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(cells, widths, right, strict=True)
        ]
        line = "  ".join(parts).rstrip()
        return line[: limit - 1] + "…" if limit and len(line) > limit else line

    heading = out.paint(laid_out([name.replace("_", " ") for name in columns]), "bold")
    return [heading, *map(laid_out, rows)]


def size_text(count: int | float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"


def time_text(ns: int) -> str:
    """A moment in local time, to the millisecond, for people."""
    import datetime as dt

    moment = dt.datetime.fromtimestamp(ns // 1_000_000_000)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{ns // 1_000_000 % 1000:03d}"


def span_text(seconds: float) -> str:
    """A time span for people."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"
