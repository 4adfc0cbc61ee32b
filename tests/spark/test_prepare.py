"""A session that `penstock.spark.prepare` sets up finds the source, whatever the PATH says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.spark import prepare
from tests.support.spark import settings

WORK = """
import sys
import penstock.spark
from pyspark.sql import SparkSession
builder = penstock.spark.prepare(SparkSession.builder.master("local[1]"), row_bytes=100)
for given in sys.argv[2:]:
    builder = builder.config(*given.split("=", 1))
spark = builder.getOrCreate()
frame = spark.read.format("penstock").load(sys.argv[1])
print("rows", frame.count(), spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch"))
frame.select("value").write.format("penstock").mode("append").save(sys.argv[1])
spark.stop()
"""


def test_an_environment_that_is_not_activated(tmp_path: Path) -> None:
    """Spark finds source and sink though the PATH leads to another Python, or to none."""
    with penstock.open(tmp_path / "log") as log:
        log.extend([b"a", b"b", b"c"])
    java = os.path.realpath(shutil.which("java") or "")
    home = os.environ.get("JAVA_HOME") or os.path.dirname(os.path.dirname(java))
    unset = ("PYSPARK", "SPARK_", "VIRTUAL")
    found = {name: value for name, value in os.environ.items() if not name.startswith(unset)}
    done = subprocess.run(
        [sys.executable, "-c", WORK, str(tmp_path / "log")]
        + [f"{name}={value}" for name, value in settings(tmp_path).items()],
        env={**found, "PATH": "/usr/bin:/bin", "JAVA_HOME": home},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["rows", "3", "10000"]
    with penstock.open(tmp_path / "log", "r") as log:
        assert sorted(event.value for event in log) == [b"a", b"a", b"b", b"b", b"c", b"c"]


def test_what_prepare_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no builder, or no number of bytes, is refused before anything is set."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    wrong: Any = "local[2]"
    with pytest.raises(penstock.Usage):
        prepare(wrong)
    with pytest.raises(penstock.Usage):
        prepare(row_bytes=0)
    assert "PYSPARK_PYTHON" not in os.environ
