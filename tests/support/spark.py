"""Real Sparks for tests."""

from __future__ import annotations

import datetime as dt
import os
import pickle
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import penstock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def why_no_spark() -> str | None:
    """Why there can be no Spark on this machine; None if there can."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        return "PySpark is not installed"
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java") if home is None else os.path.join(home, "bin", "java")
    if java is None or not os.path.exists(java):
        return "there is no Java, which Spark needs"
    return None


def settings(scratch: Path) -> dict[str, str]:
    """What every Spark of a test is started with: all on loopback, all below ``scratch``."""
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # A test takes seconds: to compile fast is better than to compile well.
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "ERROR",
    }


def local_session(scratch: Path, **more: str) -> SparkSession:
    """A Spark in this process, on two cores."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("penstock tests")
    for name, value in {**settings(scratch), **more}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def plain_rows(*logs: Path) -> list[dict[str, Any]]:
    """What the source should give for whole logs, by a loop over their events."""
    found = []
    for path in sorted(logs):
        name = path.name
        with penstock.open(path, mode="r") as log:
            for event in log:
                headers = event.headers or ()
                found.append(
                    {
                        "key": event.key,
                        "value": event.value,
                        "topic": event.topic,
                        "partition": int(name) if name.isdigit() else 0,
                        "offset": event.seq,
                        "timestamp": EPOCH + dt.timedelta(microseconds=event.time_ns // 1000),
                        "timestampType": int(event.time_ns // 1000 == event.append_ns // 1000),
                        "headers": [{"key": k, "value": v} for k, v in headers],
                        "log": str(path),
                    }
                )
    return found


def read_all(reader: Any, splits: Iterable[Any] | None = None) -> list[dict[str, Any]]:
    """What a reader of the source gives, split by split, as tasks would be sent it."""
    found: list[dict[str, Any]] = []
    for split in reader.partitions() if splits is None else splits:
        task = pickle.loads(pickle.dumps(reader))
        for batch in task.read(pickle.loads(pickle.dumps(split))):
            found += batch.to_pylist()
    return found


def holders(log: Path) -> list[int]:
    """The processes, other than this one, that have a log open."""
    found = []
    for pid in os.listdir("/proc"):
        if not pid.isdigit() or int(pid) == os.getpid():
            continue
        try:
            names = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            continue  # it is gone
        if any(name == str(log) or name.startswith(f"{log}/") for name in names):
            found.append(int(pid))
    return sorted(found)
