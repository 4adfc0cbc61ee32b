"""Streaming queries write into a log that is moved, deleted, replaced and renamed under them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import penstock
from penstock import PenstockError
from penstock.spark.write.bound import NOTE
from tests.edges.test_identity_storm import QUERY, Director, check, enough, path_in, storm
from tests.support.fixtures import STORM

pytestmark = [pytest.mark.process, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
SECONDS = 120.0 if STORM else 0.0
PATIENCE = 400.0  # seconds; with Spark's start, on a machine with other things to do
BATCHES = 12  # of a query, if its log stays: so many that it seldom does
ROWS = 30  # of a batch

# One query after the other, each with files and a checkpoint of its own; it ends when all its rows
# are written, or when its log is gone.
DRIVER = """
import ctypes
import itertools
import os
import sys
from pathlib import Path

ctypes.CDLL(None).prctl(1, 9)  # nobody outlives the test

from pyspark.errors import StreamingQueryException
from tests.support.spark import local_session

place, log, name, batches, rows = Path(sys.argv[1]), *sys.argv[2:4], *map(int, sys.argv[4:])
spark = local_session(place / "scratch")
for n in itertools.count():
    if (place / "stop").exists():
        break
    given = place / f"in-{n}"
    given.mkdir()
    for batch in range(batches):
        lines = [f"{name}{n}|{batch}:{row}|" for row in range(rows)]
        (given / f"{batch}.txt").write_text("\\n".join(lines))
        os.utime(given / f"{batch}.txt", (1_700_000_000 + batch,) * 2)
    query = (
        spark.readStream.option("maxFilesPerTrigger", 1).text(str(given))
        .repartition(2)
        .writeStream.format("penstock")
        .option("checkpointLocation", str(place / f"checkpoint-{n}"))
        .trigger(availableNow=True)
        .start(log)
    )
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        (place / f"failed-{n}").write_text(str(error))
"""


def bound_logs(place: Path) -> dict[int, str]:
    """The uuid of the log that each query began with, by the query's number."""
    notes = place.glob(f"checkpoint-*/{NOTE}")
    return {
        int(note.parent.name.removeprefix("checkpoint-")): json.loads(note.read_text())["uuid"]
        for note in notes
    }


def kept_batches(place: Path) -> int:
    """How many batches are done whose log was moved away and is there to look at."""
    kept = set()
    for path in place.glob("kept-*"):
        with suppress(PenstockError), penstock.open(path, "r") as log:
            kept.add(log.stats().uuid)
    bound = bound_logs(place)
    return sum(bound.get(n) in kept for n, _ in committed(place))


def committed(place: Path) -> list[tuple[int, int]]:
    """The batches that Spark knows to be done, each with the number of its query."""
    names = place.glob("checkpoint-*/commits/[0-9]*")
    return [(int(name.parts[-3].removeprefix("checkpoint-")), int(name.name)) for name in names]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", ["log", "ring"] if STORM else ["log"])
def test_queries_whose_logs_come_and_go(tmp_path: Path, kind: str) -> None:
    """The batches of a query are all in the log that it began with, each once, and in no other."""
    args = (str(tmp_path), str(path_in(tmp_path, kind)), QUERY.decode(), str(BATCHES), str(ROWS))
    with (tmp_path / "output").open("wb") as output:
        spark = subprocess.Popen(
            [sys.executable, "-c", DRIVER, *args],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    began = time.monotonic()

    def done(director: Director) -> bool:
        assert spark.poll() is None, (tmp_path / "output").read_text()[-3000:]
        waited = time.monotonic() - began
        failed = list(tmp_path.glob("failed-*"))
        assert waited < PATIENCE, (director.done, committed(tmp_path), failed)
        if waited < SECONDS or len(failed) < 4 or not enough(tmp_path, director):
            return False
        return kept_batches(tmp_path) >= 3

    try:
        storm(tmp_path, kind, 0, (0.1, 2.0), done)
        assert spark.wait(PATIENCE) == 0, (tmp_path / "output").read_text()[-3000:]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(spark.pid, signal.SIGKILL)
        spark.wait()

    logs = bound_logs(tmp_path)
    found = check(tmp_path, kind, {f"{QUERY.decode()}{n}": uuid for n, uuid in logs.items()})
    known = set(committed(tmp_path))
    for n, uuid in logs.items():
        for batch in range(BATCHES):
            rows = found[f"{QUERY.decode()}{n} {batch}"]
            if kind == "ring":  # which drops its oldest
                assert rows <= ROWS, f"query {n}: {rows} rows of batch {batch}"
                continue
            assert rows in (0, ROWS), f"query {n}: {rows} rows of batch {batch}"
            if (n, batch) in known and found[uuid]:  # the log is still there
                assert rows == ROWS, f"query {n}: batch {batch} is done and lost"
