"""What is set once in a Python worker that Spark uses for many tasks, and nowhere else."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.spark.read.source import TableReader, schema
from penstock.spark.workers import REUSED
from penstock.spark.write.sink import TableWriter

ARRIVE = "pickle.load(sys.stdin.buffer)"
PLAN = "pyspark_penstock.DefaultSource({'columns': 'value'}).schema()"


def frozen_objects(doing: str, given: bytes = b"", *, reused: bool) -> int:
    """How many objects garbage collection passes over in a new process that did something."""
    environment = {k: v for k, v in os.environ.items() if k != REUSED}
    if reused:
        environment[REUSED] = "1"
    code = f"import gc, pickle, pyspark_penstock, sys; {doing}; print(gc.get_freeze_count())"
    done = subprocess.run(
        [sys.executable, "-c", code], input=given, env=environment, stdout=-1, check=True
    )
    return int(done.stdout)


@pytest.fixture
def log(tmp_path: Path) -> str:
    """The path of a log."""
    penstock.open(tmp_path / "log").close()
    return str(tmp_path / "log")


def test_a_worker_that_gets_a_reader_does_not_go_through_all_modules_behind_each_task(
    log: str,
) -> None:
    """Spark collects garbage there behind every task, and what was imported is none."""
    given = {"paths": json.dumps([log])}
    reader = pickle.dumps(TableReader(given, schema(given)))
    assert frozen_objects(ARRIVE, reader, reused=True) > 10_000


def test_a_worker_that_gets_a_writer_does_not_either(log: str) -> None:
    """Tasks of a sink run in the same workers as tasks of a source."""
    writer = pickle.dumps(TableWriter({"path": log}, schema({"columns": "value"}), False))
    assert frozen_objects(ARRIVE, writer, reused=True) > 10_000


def test_nor_does_a_worker_that_plans() -> None:
    """Planning a read takes two such processes, each used again by the next read."""
    assert frozen_objects(PLAN, reused=True) > 10_000


def test_a_process_that_is_no_worker_is_left_as_it_is(log: str) -> None:
    """Its garbage is its own business."""
    given = {"paths": json.dumps([log])}
    reader = pickle.dumps(TableReader(given, schema(given)))
    assert frozen_objects(ARRIVE, reader, reused=False) == 0
    assert frozen_objects(PLAN, reused=False) == 0
