"""Importing Penstock, and a first log, in fresh interpreters; beside them the standard library.

It compares processor time, which is the same on a busy machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import ROOT, Bench, Row, take_turns

STANDARD = "import sqlite3, json, dataclasses, logging"
FIRST_LOG = """import penstock
with penstock.open(sys.argv[1]) as log:
    log.append(b"x")
    [event.value for event in log]"""
FIRST_TABLE = """import sqlite3
db = sqlite3.connect(sys.argv[1])
db.execute("create table event (value blob)")
with db:
    db.execute("insert into event values (?)", (b"x",))
db.execute("select value from event").fetchall()
db.close()"""
_TIMED = """import sys
from time import process_time
began = process_time()
{}
print(process_time() - began)"""


def imports(bench: Bench) -> Iterator[Row]:
    """`import penstock` beside four standard modules; a first log beside a first SQLite table."""
    turns = bench.pick(9, 3)
    with bench.scratch() as path:

        def seconds(program: str) -> float:
            return min(_seconds(path, program) for _ in range(turns))

        for program in (FIRST_LOG, FIRST_TABLE, STANDARD):
            _seconds(path, program)  # the first run writes the compiled bytecode
        yield take_turns(
            bench, "import", lambda: seconds("import penstock"), lambda: seconds(STANDARD)
        ).row(
            "import penstock", f"`{STANDARD}`", _milliseconds, better="lower", bar=1.6, pages="warm"
        )
        yield take_turns(
            bench, "first log", lambda: seconds(FIRST_LOG), lambda: seconds(FIRST_TABLE)
        ).row(
            "import, create a log, append one event, read it, close",
            "the same with sqlite3 and a table",
            _milliseconds,
            better="lower",
            pages="warm",
        )


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def _seconds(path: Path, program: str) -> float:
    """Processor time of a program in a fresh interpreter, without the time to start it."""
    made = path / "made"
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "src"),
        "PYTHONPYCACHEPREFIX": str(path / "bytecode"),
        "PYTHONDONTWRITEBYTECODE": "",
    }
    found = subprocess.run(
        [sys.executable, "-c", _TIMED.format(program), str(made)],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    if made.is_dir():
        shutil.rmtree(made)
    else:
        made.unlink(missing_ok=True)
    return float(found.stdout)
