"""The source and the sink on a cluster of separate processes, and through Spark Connect.

Each has its own servers, on loopback and on ports that were free. What runs there is the same
script, which compares with a loop over the events and says so at its end.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import penstock
from tests.support.spark import QUICK_JAVA
from tests.support.wait import wait_for

ROOT = Path(__file__).parents[2]
LOOPBACK = "127.0.0.1"

SCRIPT = """
import json, os, sys
import penstock
import penstock.spark
from pyspark.sql import SparkSession

where, top = sys.argv[1:3]
builder = SparkSession.builder
if where.startswith("sc:"):
    builder = builder.remote(where)
else:
    builder = builder.master(where)
    for name, value in json.loads(sys.argv[3]).items():
        builder = builder.config(name, value)
spark = builder.getOrCreate()
penstock.spark.tune(spark)

logs = os.path.join(top, "logs")
expected = {}
for name in ("0", "1"):
    with penstock.open(os.path.join(logs, name), mode="r") as log:
        for event in log:
            expected[(int(name), event.seq)] = (event.topic, event.value)

table = spark.read.format("penstock").option("minPartitions", "4").load(logs)
found = {(r["partition"], r["offset"]): (r["topic"], bytes(r["value"])) for r in table.collect()}
assert found == expected, len(found)
by_topic = {r["topic"]: r["count"] for r in table.groupBy("topic").count().collect()}
assert by_topic == {t: sum(e[0] == t for e in expected.values()) for t in ("a", "b")}, by_topic

stream = (
    spark.readStream.format("penstock").option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", "1500").load(logs)
)
target = os.path.join(top, "copy")
query = (
    stream.select("key", "value", "topic").repartition(3).writeStream.format("penstock")
    .option("checkpointLocation", os.path.join(top, "checkpoint"))
    .trigger(availableNow=True).start(target)
)
query.awaitTermination()
with penstock.open(target, mode="r") as log:
    copied = sorted((event.topic, event.value) for event in log)
assert copied == sorted(expected.values()), len(copied)

some = table.where("topic = 'a'").select("value", "topic")
some.write.format("penstock").mode("append").save(target)
with penstock.open(target, mode="r") as log:
    assert len(log) == len(expected) + by_topic["a"]
print("all as it should be")
spark.stop()
"""


def environment(scratch: Path) -> dict[str, str]:
    """For every process of a Spark that is started here."""
    import pyspark

    return {
        **os.environ,
        "JAVA_TOOL_OPTIONS": QUICK_JAVA,
        "SPARK_HOME": os.path.dirname(pyspark.__file__),
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_DAEMON_MEMORY": "512m",
        "SPARK_LOG_DIR": str(scratch),
        "SPARK_WORKER_DIR": str(scratch / "work"),
        "SPARK_NO_DAEMONIZE": "1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def free_port() -> int:
    """A port of loopback that nobody has just now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


@contextmanager
def server(scratch: Path, name: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of Spark's, killed with all its children afterwards."""
    with (scratch / f"{name}.log").open("wb") as out:
        process = subprocess.Popen(
            words,
            env=environment(scratch),
            cwd=scratch,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def says(scratch: Path, name: str, words: str) -> bool:
    """Whether a server has said that."""
    return words in (scratch / f"{name}.log").read_text(errors="replace")


def run_script(where: str, top: Path, settings: str = "{}") -> None:
    """Run the script against a Spark, and have it say that all is well."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, where, str(top), settings],
        env=environment(top),
        cwd=top,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.stdout.endswith("all as it should be\n"), done.stderr[-6000:]


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A directory with two logs."""
    (tmp_path / "logs").mkdir()
    for name, count in (("0", 3000), ("1", 700)):
        with penstock.open(tmp_path / "logs" / name, segment_size="64KiB") as log:
            for i in range(count):
                log.append(b"%s-%d" % (name.encode(), i), topic="ab"[i % 2], key=b"k")
    return tmp_path


def spark_bin(name: str) -> str:
    """A command of the installed Spark."""
    import pyspark

    return os.path.join(os.path.dirname(pyspark.__file__), "bin", name)


def test_standalone_cluster(top: Path) -> None:
    """A master and two workers, each with an executor of its own process."""
    port = free_port()
    master = f"spark://{LOOPBACK}:{port}"
    deploy = "org.apache.spark.deploy"
    common = ("--host", LOOPBACK, "--webui-port", "0")
    run = spark_bin("spark-class")
    with server(top, "master", run, f"{deploy}.master.Master", *common, "--port", str(port)):
        wait_for(lambda: says(top, "master", "elected leader"), "the master", 120)
        worker = (run, f"{deploy}.worker.Worker", *common, "-c", "1", "-m", "1g", master)
        with server(top, "worker-0", *worker), server(top, "worker-1", *worker):
            for name in ("worker-0", "worker-1"):
                wait_for(lambda n=name: says(top, n, "registered with master"), name, 120)  # type: ignore[misc]
            run_script(
                master,
                top,
                '{"spark.executor.memory": "512m", "spark.ui.enabled": "false",'
                ' "spark.sql.shuffle.partitions": "2", "spark.driver.host": "127.0.0.1"}',
            )
            assert len(list((top / "work").glob("app-*/*"))) == 2


def test_connect(top: Path) -> None:
    """A client that has no JVM, and a server that has the package installed."""
    port = free_port()
    words = (
        spark_bin("spark-submit"),
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
        "--master",
        "local[2]",
        "--conf",
        f"spark.connect.grpc.binding.port={port}",
        "--conf",
        f"spark.connect.grpc.binding.address={LOOPBACK}",
        "--conf",
        "spark.ui.enabled=false",
        "--conf",
        "spark.sql.shuffle.partitions=2",
    )

    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((LOOPBACK, port)) == 0

    with server(top, "connect", *words, "spark-internal"):
        wait_for(answers, "the server", 120)
        run_script(f"sc://{LOOPBACK}:{port}", top)
