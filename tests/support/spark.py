"""Real Sparks for tests."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
