"""Logs that are moved, deleted and replaced under a sink, which opens them by path each time."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow
import pytest

import penstock
from penstock import Gone
from tests.support.wait import wait_for

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException
from pyspark.sql.types import BinaryType, StructField, StructType

from penstock.spark.write.bound import NOTE
from penstock.spark.write.sink import Message, StreamWriter
from penstock.spark.write.staging import name_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

QUERY = "6a1c6c0e-0000-4000-8000-000000000001"
VALUE = StructType([StructField("value", BinaryType())])


def values(path: Path) -> list[str]:
    """The values of a log, as text."""
    with penstock.open(path, "r") as log:
        assert log.verify().ok
        return [(e.value or b"").decode() for e in log]


def contents(path: Path) -> dict[str, bytes]:
    """All files of a log but the ones that each opening writes."""
    found = [p for p in path.rglob("*") if p.is_file() and p.suffix == ".seg"]
    return {str(p.relative_to(path)): p.read_bytes() for p in found}


class Scene:
    """A log that a query writes into, and what becomes of it."""

    def __init__(self, spark: SparkSession, where: Path) -> None:
        self.spark = spark
        self.where = where
        self.log = where / "log"
        self.kept = where / "kept"
        self.source = where / "in"
        self.source.mkdir()
        self.checkpoint = where / "checkpoint"

    def feed(self, n: int) -> list[str]:
        """One more file, which is one more batch."""
        lines = [f"{n}-{i}" for i in range(10)]
        (self.source / f"{n}.part").write_text("\n".join(lines))
        (self.source / f"{n}.part").rename(self.source / f"{n}.txt")
        return lines

    def rows(self) -> DataFrame:
        reader = self.spark.readStream.option("maxFilesPerTrigger", 1)
        return reader.text(str(self.source), pathGlobFilter="*.txt").repartition(2)

    def start(
        self, frame: DataFrame, trigger: dict[str, str | bool], **options: str
    ) -> StreamingQuery:
        return (
            frame.writeStream.format("penstock")
            .options(**options)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(**trigger)  # type: ignore[arg-type]
            .start(str(self.log))
        )

    def go_on(self, **options: str) -> None:
        """Start the query again, to the end of what there is."""
        assert self.start(self.rows(), {"availableNow": True}, **options).awaitTermination(60)

    def lose(self, how: str) -> None:
        """Have the log moved away, deleted (there is a copy) or replaced by another."""
        if how == "deleted":
            with penstock.open(self.log) as log:
                log.backup(self.kept)
            shutil.rmtree(self.log)
        else:
            self.log.rename(self.kept)
        if how == "replaced":
            with penstock.create(self.log) as log:
                log.append(b"of another")

    def check_others(self, how: str) -> None:
        """What is at the path is what was put there: nothing, or the other log as it was."""
        if how != "replaced":
            assert not self.log.exists()
            return
        assert values(self.log) == ["of another"]
        staging = self.log / "staging"
        assert not staging.exists() or os.listdir(staging) == []

    def restore(self) -> None:
        """Put the log back."""
        if self.log.exists():
            self.log.rename(self.where / "other")
        self.kept.rename(self.log)


@pytest.fixture
def scene(spark: SparkSession, tmp_path: Path) -> Scene:
    """A scene of one test."""
    return Scene(spark, tmp_path)


@pytest.mark.parametrize("how", ["moved", "deleted", "replaced"])
def test_a_log_that_goes_between_batches(scene: Scene, how: str) -> None:
    """A running query whose log goes fails with Gone; when it is back, all rows get there once."""
    lines = scene.feed(0)
    query = scene.start(scene.rows(), {"processingTime": "0 seconds"})
    wait_for((scene.checkpoint / "commits" / "0").exists, "the first batch")
    scene.lose(how)
    lines += scene.feed(1)
    with pytest.raises(StreamingQueryException, match=rf"errors.Gone: {scene.log}: the log that"):
        query.awaitTermination(60)
    scene.check_others(how)
    assert len(values(scene.kept)) == 10
    with pytest.raises(StreamingQueryException, match=r"errors.Gone"):
        scene.go_on()
    scene.check_others(how)
    scene.restore()
    scene.go_on()
    assert Counter(values(scene.log)) == Counter(lines)
    assert os.listdir(scene.log / "staging") == []


def test_another_log_on_purpose(scene: Scene, tmp_path: Path) -> None:
    """A query goes on in another log if it is told to: by another path, or without its note."""
    scene.feed(0)
    scene.go_on()
    scene.log = tmp_path / "second"
    second = scene.feed(1)
    scene.go_on()
    assert Counter(values(scene.log)) == Counter(second)
    scene.lose("replaced")
    (scene.checkpoint / NOTE).unlink()
    third = scene.feed(2)
    scene.go_on()
    assert Counter(values(scene.log)) == Counter(["of another", *third])
    assert Counter(values(scene.kept)) == Counter(second)


def waiting(
    begun: str, go: str
) -> Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    """Tasks that say when they have begun, and end when a file is there."""

    def stopping(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        yield from batches
        with open(begun, "w"):
            pass
        deadline = time.monotonic() + 60
        while not os.path.exists(go) and time.monotonic() < deadline:
            time.sleep(0.01)

    return stopping


class Loser(threading.Thread):
    """Loses the log while tasks are at work, then lets them end."""

    def __init__(self, scene: Scene, how: str) -> None:
        super().__init__()
        self.begun, self.go = scene.where / "begun", scene.where / "go"
        self.scene, self.how = scene, how
        self.start()

    def slow(self, frame: DataFrame) -> DataFrame:
        return frame.mapInArrow(waiting(str(self.begun), str(self.go)), frame.schema)

    def run(self) -> None:
        try:
            wait_for(self.begun.exists, "a task that stages")
            self.scene.lose(self.how)
        finally:
            self.go.touch()


@pytest.mark.parametrize(
    ("how", "staging"),
    [
        ("moved", "inside"),
        ("replaced", "inside"),
        ("moved", "elsewhere"),
        ("replaced", "elsewhere"),
    ],
)
def test_a_log_that_goes_within_a_batch(scene: Scene, how: str, staging: str) -> None:
    """A batch whose log goes while tasks stage it lands nowhere; later it lands once."""
    elsewhere = scene.where / "staged"
    options = {} if staging == "inside" else {"stagingPath": str(elsewhere)}
    lines = scene.feed(0)
    loser = Loser(scene, how)
    query = scene.start(loser.slow(scene.rows()), {"availableNow": True}, **options)
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(60)
    loser.join()
    assert str(scene.log) in str(caught.value)
    if staging == "elsewhere":  # else a task may be the first to find that its directory is gone
        assert f"errors.Gone: {scene.log}: " in str(caught.value)
        assert os.listdir(elsewhere) == []
    scene.check_others(how)
    assert values(scene.kept) == []
    scene.restore()
    scene.go_on(**options)
    assert Counter(values(scene.log)) == Counter(lines)


@pytest.mark.parametrize("how", ["moved", "replaced"])
def test_a_log_that_goes_within_a_write(scene: Scene, how: str) -> None:
    """A table is published in the log that it was planned for, or nowhere."""
    elsewhere = scene.where / "staged"
    loser = Loser(scene, how)
    frame = loser.slow(scene.spark.range(0, 10, 1, 2).selectExpr("cast(id as string) value"))
    writer = frame.write.format("penstock").mode("append").option("stagingPath", str(elsewhere))
    said = r"errors.Gone: " if how == "replaced" else r"errors.NoSuchLog: "
    with pytest.raises(Exception, match=said + str(scene.log)):
        writer.save(str(scene.log))
    loser.join()
    scene.check_others(how)
    assert values(scene.kept) == [] and os.listdir(elsewhere) == []


def test_a_commit_belongs_to_the_log_of_its_tasks(tmp_path: Path) -> None:
    """A writer that is made for the commit publishes by the tasks' plan, not by its own.

    The checkpoint is not on this host, so nothing but the plan says which log it was.
    """
    log, kept = tmp_path / "log", tmp_path / "kept"
    options = {
        **{"path": str(log), "stagingPath": str(tmp_path / "staged")},
        "checkpointLocation": "s3a://bucket/checkpoint",
    }
    sink = StreamWriter(options, VALUE, False)._sink
    directory = name_of(sink.producer(QUERY), 0, "run")
    sink.staging.begin(directory)
    batch = pyarrow.record_batch({"value": pyarrow.array([b"a"], pyarrow.binary())})
    staged = sink.staging.stage(directory, 0, sink.rows(iter([batch])))
    messages: list[Message | None] = [Message(sink, QUERY, 0, directory, 0, staged)]
    log.rename(kept)
    with penstock.create(log) as other:
        other.append(b"of another")
    before = contents(log)
    with pytest.raises(Gone) as caught:
        StreamWriter(options, VALUE, False).commit(messages, 0)  # type: ignore[arg-type]
    assert caught.value.filename == str(log)
    assert contents(log) == before and values(kept) == []
    shutil.rmtree(log)
    kept.rename(log)
    StreamWriter(options, VALUE, False).commit(messages, 0)  # type: ignore[arg-type]
    assert values(log) == ["a"]
