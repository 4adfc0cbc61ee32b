"""The results of a run: a table to read, JSON for tools, and a description of the machine."""

from __future__ import annotations

import json
import os
import platform
import sys
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import lmdb

import penstock
from benchmarks.harness import Row


def machine(directory: Path) -> dict[str, Any]:
    """The processor, the kernel, the file system of the working directory."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "file_system": file_system(directory),
    }


def versions() -> dict[str, str]:
    """The versions of all software that takes part."""
    library = ".".join(map(str, lmdb.version()))
    return {
        "python": platform.python_version(),
        "penstock": penstock.__version__,
        "lmdb": f"{lmdb.__version__} (library {library})",
        "cython": _installed("cython"),
    }


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def file_system(directory: Path) -> str:
    """The type of the file system that ``directory`` is on."""
    device = directory.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    found = "unknown"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[2] == wanted:
            found = after.split()[0]
    return found


def number(value: float | None, unit: str) -> str:
    """A value with a sensible number of digits."""
    if value is None:
        return "-"
    digits = 4 if unit == "calls" else 1 if value >= 100 else 2
    return f"{value:.{digits}f} {unit}"


def mark(row: Row) -> str:
    """The bar and the aim, with their direction."""
    if row.bar is None:
        return "-"
    sign = "≥" if row.better == "higher" else "≤"
    aim = "" if row.aim is None else f" (aim {row.aim:g})"
    return f"{sign} {row.bar:.2g}{aim}" if row.bar < 1 else f"{sign} {row.bar:g}{aim}"


def spread(row: Row) -> str:
    """The lowest and the highest of the rounds."""
    if row.low is None or row.high is None:
        return "-"
    return f"{row.low:.2f}..{row.high:.2f}"


def print_table(rows: list[Row]) -> None:
    """The rows, aligned; what each is compared with is below it."""
    head = ("work", "ours", "beside", "ratio", "range", "bar", "verdict")
    lines = [
        (r.work, r.ours, r.theirs, number(r.value, r.unit), spread(r), mark(r), r.verdict)
        for r in rows
    ]
    widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]

    def show(line: tuple[str, ...]) -> str:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        return "  ".join(padded).rstrip()

    print(show(head))
    print("  ".join("-" * width for width in widths))
    for row, line in zip(rows, lines, strict=True):
        print(show(line))
        for label, text in (("beside", row.beside), ("pages", row.pages), ("note", row.note)):
            if text:
                print(f"    {label}: {text}")


def print_markdown(rows: list[Row]) -> None:
    """The rows as docs/benchmarks.md shows them."""
    print("| work | Penstock | beside | ratio | range | bar | |\n|---|---|---|---|---|---|---|")
    for row in rows:
        cells = (
            row.work,
            row.ours or "-",
            row.theirs or "-",
            number(row.value, row.unit),
            spread(row),
            mark(row),
            row.note if row.problem else "" if row.verdict == "info" else row.verdict,
        )
        print(f"| {' | '.join(cells)} |")


def print_setting(about: dict[str, Any], used: dict[str, str]) -> None:
    """The lines above the table."""
    print(
        f"{about['cpu']}, {about['cores']} cores, Linux {about['kernel']}, {about['file_system']}, "
        f"load average {about['load_average']} during the run"
    )
    print(", ".join(f"{name} {version}" for name, version in used.items()))
    print()


def write_json(
    path: Path, rows: list[Row], about: dict[str, Any], used: dict[str, str], *, quick: bool
) -> None:
    """Everything that was measured, round by round."""
    path.parent.mkdir(parents=True, exist_ok=True)
    report = {
        "machine": about,
        "versions": used,
        "quick": quick,
        "rows": [asdict(row) | {"verdict": row.verdict} for row in rows],
    }
    path.write_text(json.dumps(report, indent=2) + "\n")
    print(f"\nwritten to {path}", file=sys.stderr)
