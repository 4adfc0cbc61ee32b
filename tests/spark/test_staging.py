"""The sink without a Spark around it: columns, options, staged files, and what can go wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest

import penstock
from penstock.errors import Conflict, Corrupt, DiskFull, NotFound, TooLarge, Usage
from penstock.system import files

pytest.importorskip("pyspark")

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.spark.write.sink import Message, StreamWriter, TableWriter, check_columns
from penstock.spark.write.staging import ABANDONED_SECONDS, Staging, name_of
from penstock.system.files import path_text


def schema(*columns: tuple[str, DataType]) -> StructType:
    """A schema of some columns."""
    return StructType([StructField(name, kind) for name, kind in columns])


BINARY, STRING, LONG = BinaryType(), StringType(), LongType()
HEADERS = ArrayType(schema(("key", STRING), ("value", BINARY)))
TEXT = ("value", STRING)
VALUE = schema(("value", BINARY))
QUERY, OTHER_QUERY = "6a1c6c0e-0000-4000-8000-000000000001", "6a1c6c0e-0000-4000-8000-000000000002"


def batches_of(*values: bytes) -> Iterator[pyarrow.RecordBatch]:
    """One record batch of values, as a task gets it."""
    return iter([pyarrow.record_batch({"value": pyarrow.array(values, pyarrow.binary())})])


@pytest.fixture
def writer(path: Path) -> StreamWriter:
    """The sink of a stream, as planned."""
    return StreamWriter({"path": str(path)}, VALUE, False)


def stage(
    writer: StreamWriter,
    *parts: list[bytes],
    batch: int = 0,
    query: str = QUERY,
    run: str = "run",
) -> list[Any]:
    """What tasks do, without a Spark that runs them."""
    sink = writer._sink
    directory = name_of(sink.producer(query), batch, run)
    sink.staging.begin(directory)
    return [
        Message(
            *(sink, query, batch, directory, n),
            sink.staging.stage(directory, n, sink.rows(batches_of(*values))),
        )
        for n, values in enumerate(parts)
    ]


def values(path: Path) -> list[bytes | None]:
    """All values of a log."""
    with penstock.open(path, "r") as log:
        return [event.value for event in log]


def left(path: Path) -> list[str]:
    """What is staged in a log's directory."""
    return sorted(os.listdir(path / "staging"))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ([("key", STRING)], "column 'value' is missing; the columns are key"),
        ([], r"column 'value' is missing; the columns are \(none\)"),
        ([("value", IntegerType())], "column 'value' must be binary or string, got int"),
        ([TEXT, ("key", LONG)], "column 'key' must be binary or string, got bigint"),
        ([TEXT, ("topic", BINARY)], "column 'topic' must be string, got binary"),
        ([TEXT, ("timestamp", LONG)], "column 'timestamp' must be timestamp, got bigint"),
        ([TEXT, ("timestamp", TimestampNTZType())], "must be timestamp, got timestamp_ntz"),
        ([TEXT, ("partition", LONG)], "column 'partition' cannot be written: a path is one log"),
        ([TEXT, ("user", STRING)], "column 'user' must be one of value, key, headers, topic"),
        ([("Value", STRING)], "did you mean 'value'"),
        ([TEXT, TEXT], "column 'value' must be given once, got 2"),
        ([TEXT, ("headers", MapType(STRING, BINARY))], "column 'headers' must be array<struct<"),
        ([TEXT, ("headers", ArrayType(schema(("key", STRING), TEXT)))], "column 'headers' must be"),
        ([TEXT, ("headers", ArrayType(schema(("k", STRING), TEXT)))], "column 'headers' must be"),
    ],
)
def test_wrong_columns(columns: list[tuple[str, DataType]], said: str) -> None:
    """A column that is missing, unknown or of the wrong type is refused by its name."""
    with pytest.raises(Usage, match=said):
        check_columns(schema(*columns))


def test_right_columns() -> None:
    """Every column that an event has a part for is taken, in any order."""
    columns = schema(
        *(("timestamp", TimestampType()), ("topic", STRING), ("headers", HEADERS)),
        *(("key", BINARY), ("value", STRING)),
    )
    assert check_columns(columns) == tuple(columns.fieldNames())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"path": ""}, "the path of a log is missing"),
        ({"path": "s3a://bucket/log"}, "s3a: has neither"),
        ({"path": "file://elsewhere/log"}, "must be on this host, got 'elsewhere'"),
        ({"topik": "x"}, "Did you mean 'topic'"),
        ({"kafka.bootstrap.servers": "h:1"}, "there is no server"),
        ({"durable": "perhaps"}, "'durable' must be one of true, false"),
        ({"batchId": "1"}, "must be given together"),
        ({"applicationId": "a"}, "must be given together"),
        ({"applicationId": "a", "batchId": "-1"}, "'batchId' must be 0 or more, got -1"),
        ({"applicationId": "", "batchId": "1"}, "'applicationId' must be 1 to"),
        ({"applicationId": "a" * 1000, "batchId": "1"}, "'applicationId' must be 1 to 960 bytes"),
        ({"stagingPath": "hdfs://name/x"}, "hdfs: has neither"),
        ({"checkpointLocation": "x"}, "no option 'checkpointlocation'"),
    ],
)
def test_wrong_options(path: Path, options: dict[str, str], said: str) -> None:
    """An option that is unknown or makes no sense is refused when the write is planned."""
    with pytest.raises(Usage, match=said):
        TableWriter({"path": str(path), **options}, VALUE, False)
    assert not path.exists()


def test_plans_that_cannot_work(path: Path) -> None:
    """What would fail on the driver fails before any task has run."""
    with pytest.raises(NotFound, match="there is no directory"):
        TableWriter({"path": str(path / "deep" / "log")}, VALUE, False)
    with pytest.raises(NotFound, match="there is no directory"):
        TableWriter({"path": str(path), "stagingPath": str(path / "a" / "b")}, VALUE, False)
    with pytest.raises(TooLarge, match="'topic'"):
        TableWriter({"path": str(path), "topic": "t" * 1025}, VALUE, False)
    with pytest.raises(Usage, match="Spark counts the batches"):
        StreamWriter({"path": str(path), "batchId": "1"}, VALUE, False)
    for kind in (TableWriter, StreamWriter):
        with pytest.raises(Usage, match="never overwritten"):
            kind({"path": str(path)}, VALUE, True)
    path.with_name("file").write_text("")
    with pytest.raises(Usage, match="is not a directory"):
        TableWriter({"path": str(path.with_name("file"))}, VALUE, False)
    path.with_name("full").mkdir()
    path.with_name("full").joinpath("x").write_text("")
    with pytest.raises(Usage, match="is neither a log nor empty"):
        TableWriter({"path": str(path.with_name("full"))}, VALUE, False)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/a/b", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("file:///a/b%20c/", "/a/b c"),
        ("FILE://localhost/a", "/a"),
        ("a:b", f"{os.getcwd()}/a:b"),
    ],
)
def test_paths(text: str, path: str) -> None:
    """A path is taken as it is, and a file: URI as the path that it names."""
    assert path_text(text, "path") == path


def test_staging_is_no_part_of_the_log(path: Path, tmp_path: Path, writer: StreamWriter) -> None:
    """Whoever opens, verifies, repairs or copies a log passes over what is staged in it."""
    messages = stage(writer, [b"staged"])
    with penstock.open(path) as log:
        log.append(b"event")
        assert log.verify().problems == ()
        log.backup(tmp_path / "copy")
    assert sorted(os.listdir(tmp_path / "copy")) == ["00000000000000000001.seg"]
    (path / "control").unlink()
    penstock.repair(path)
    assert values(path) == [b"event"]
    writer.commit(messages, 0)
    assert values(path) == [b"event", b"staged"]

    for name in os.listdir(path):
        if name != "staging":
            (path / name).unlink()
    with penstock.create(path) as log:
        assert log.last_seq == 0


def test_a_batch_is_published_once(path: Path, writer: StreamWriter) -> None:
    """The same batch again, with other rows in another order, changes nothing."""
    writer.commit(stage(writer, [b"a", b"b"], [b"c"]), 0)
    writer.commit(stage(writer, [b"c", b"d"], [b"a"], run="again"), 0)
    writer.commit(stage(writer, [], [b"e"], [], batch=1), 1)
    writer.commit(stage(writer, [], [], batch=2), 2)
    writer.commit(stage(writer, [b"f"], batch=3), 3)
    assert values(path) == [b"a", b"b", b"c", b"e", b"f"]
    assert left(path) == []


def test_partitions_are_in_order(path: Path, writer: StreamWriter) -> None:
    """Rows come in the order of partitions, in whatever order Spark hands over the messages."""
    messages = stage(writer, *([b"%d" % n, b"%d'" % n] for n in range(11)))
    writer.commit(messages[::-1], 0)
    assert values(path) == [b"%d%s" % (n, mark) for n in range(11) for mark in (b"", b"'")]


def test_an_application_belongs_to_one_query(path: Path) -> None:
    """Batches of another checkpoint under the same application are refused, whatever their number.

    Their numbers are those of other rows. To take them for repeats would lose them.
    """
    options = {"path": str(path), "applicationId": "orders"}
    writer = StreamWriter(options, VALUE, False)
    with penstock.open(path) as log:
        log.append(b"of somebody else", producer=("orders@till", 1))
    writer.commit(stage(writer, [b"a"], batch=4), 4)
    for batch in (3, 4, 5):
        messages = stage(writer, [b"b"], batch=batch, query=OTHER_QUERY)
        with pytest.raises(Conflict, match="give another applicationId") as caught:
            writer.commit(messages, batch)
        assert QUERY in str(caught.value) and OTHER_QUERY in str(caught.value)
        writer.abort(messages, batch)
    with pytest.raises(Conflict, match=r"has batch 4 of .* and this is batch 3"):
        writer.commit(stage(writer, [b"b"], batch=3), 3)
    renamed = StreamWriter({**options, "applicationId": "orders2"}, VALUE, False)
    renamed.commit(stage(renamed, [b"b"], query=OTHER_QUERY), 0)
    assert values(path) == [b"of somebody else", b"a", b"b"]


def test_a_query_may_get_a_name_later(path: Path, writer: StreamWriter) -> None:
    """A batch that is run again under another application than before is still the same one."""
    writer.commit(stage(writer, [b"a"]), 0)
    for name in ("first", "second"):
        named = StreamWriter({"path": str(path), "applicationId": name}, VALUE, False)
        named.commit(stage(named, [b"x"]), 0)
    named.commit(stage(named, [b"b"], batch=1), 1)
    writer.commit(stage(writer, [b"x"], batch=1), 1)
    assert values(path) == [b"a", b"b"]


@pytest.mark.parametrize("topic", ["value", "topic", "key", "value.value", "", "ü t"])
def test_a_topic_is_no_column(path: Path, topic: str) -> None:
    """The option topic is the topic, even if a column is called so."""
    columns = schema(TEXT, ("key", STRING), ("topic", STRING))
    writer = StreamWriter({"path": str(path), "topic": topic}, columns, False)
    directory = name_of(QUERY, 0, "run")
    sink = writer._sink
    sink.staging.begin(directory)
    batch = pyarrow.record_batch({"value": ["v"], "key": [""]})
    staged = sink.staging.stage(directory, 0, sink.rows(iter([batch])))
    writer.commit([Message(sink, QUERY, 0, directory, 0, staged)], 0)
    with penstock.open(path, "r") as log:
        assert [(e.topic, e.key, e.value) for e in log] == [(topic, b"", b"v")]


def test_sweeping(path: Path, writer: StreamWriter) -> None:
    """A commit deletes what dead runs left of its batch and of earlier ones, and nothing else."""
    stage(writer, [b"dead"], batch=1, run="dead")
    dead = stage(writer, [b"dead"], batch=2, run="dead")
    mine = stage(writer, [b"a"], batch=2, run="mine")
    for message in mine:
        os.utime(message.staged[0].path, ns=(time.time_ns() + 10**9,) * 2)
    later = stage(writer, [b"later"], batch=2, run="later")
    directory = path / "staging" / later[0].directory
    os.utime(directory, ns=(time.time_ns() + 2 * 10**9,) * 2)
    ahead = stage(writer, [b"ahead"], batch=3, run="ahead")
    other = stage(writer, [b"other"], batch=0, query=OTHER_QUERY)
    (path / "staging" / "notes").mkdir()
    assert dead[0].directory in left(path)
    writer.commit(mine, 2)
    kept = {m[0].directory for m in (later, ahead, other)}
    assert set(left(path)) == {*kept, "notes"}

    old = time.time() - ABANDONED_SECONDS - 10
    for name in left(path):
        os.utime(path / "staging" / name, (old, old))
    young = stage(writer, [b"b"], batch=0, query=OTHER_QUERY, run="young")
    writer.commit(stage(writer, [b"b"], batch=4), 4)
    assert left(path) == sorted({young[0].directory, "notes"})


@pytest.mark.parametrize("call", ["list_dir", "remove_tree"])
def test_tidying_up_fails_nothing(
    path: Path, writer: StreamWriter, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """What is published is published, even if staged files cannot be deleted then."""
    messages = stage(writer, [b"a"])
    real = getattr(files, call)

    def denied(where: Any) -> Any:
        if "staging" in str(where):
            raise penstock.Permission(f"not allowed: {where}")
        return real(where)

    with monkeypatch.context() as patched:
        patched.setattr(files, call, denied)
        writer.commit(messages, 0)
        writer.abort(messages, 0)
    writer.commit(stage(writer, [b"b"], batch=1), 1)
    assert values(path) == [b"a", b"b"]
    assert left(path) == []


def test_a_batch_write_leaves_nothing(path: Path) -> None:
    """A write that is published, aborted or empty leaves nothing staged, and late tasks cannot."""
    for end in ("commit", "abort", "empty"):
        writer = TableWriter({"path": str(path)}, VALUE, False)
        directory, sink = writer._directory, writer._sink
        rows = batches_of(*([] if end == "empty" else [b"a"]))
        staged = sink.staging.stage(directory, 0, sink.rows(rows))
        message = Message(sink, None, None, directory, 0, staged)
        if end == "abort":
            lost = batches_of(b"of a task whose message is lost")
            sink.staging.stage(directory, 1, sink.rows(lost))
            writer.abort([message, None])
        else:
            writer.commit([message])
        assert left(path) == []
        with pytest.raises(NotFound, match="is over"):
            sink.staging.stage(directory, 0, sink.rows(batches_of(b"late")))
        assert left(path) == []
    assert values(path) == [b"a"]


def test_a_full_disk_while_staging(
    path: Path, writer: StreamWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that finds the disk full says so, by its type, and leaves no file behind."""
    write_at = files.write_at

    def full(fd: int, data: bytes, offset: int, path: str) -> None:
        if offset > 100:
            raise DiskFull("no space left")
        write_at(fd, data, offset, path)

    monkeypatch.setattr(files, "write_at", full)
    with pytest.raises(DiskFull):
        stage(writer, [b"a" * 1000])
    (directory,) = left(path)
    assert os.listdir(path / "staging" / directory) == []


def test_a_full_disk_in_a_commit(
    path: Path, writer: StreamWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that finds the disk full writes nothing, and the batch can be run again."""
    parts = [[b"%4d" % n * 1000 for n in range(3000)] for _ in range(2)]
    messages = stage(writer, *parts)

    def full(*_: object) -> None:
        raise DiskFull("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(files, "allocate", full)
        with pytest.raises(DiskFull):
            writer.commit(messages, 0)
        # For an abort Spark plans the sink again, while the disk is still full.
        StreamWriter({"path": str(path)}, VALUE, False).abort([*messages, None], 0)
        with pytest.raises(DiskFull):
            StreamWriter({"path": f"{path}-new"}, VALUE, False)
    assert values(path) == [] and left(path) == []
    assert not [n for n in os.listdir(path) if n.startswith("load.")]
    writer.commit(stage(writer, *parts), 0)
    assert values(path) == parts[0] + parts[1]


FORBIDDEN = """
import os, sys
from pyspark.sql.types import BinaryType, StructField, StructType
import penstock
from penstock.spark.write.sink import TableWriter

path = sys.argv[1]
penstock.create(path).close()
os.chmod(path, 0o755)
os.chmod(os.path.dirname(path), 0o755)
if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)
else:
    os.chmod(path, 0o555)
try:
    TableWriter({"path": path}, StructType([StructField("value", BinaryType())]), False)
except penstock.Permission as error:
    assert path in str(error)
else:
    sys.exit("it was planned all the same")
"""


def test_a_log_that_is_not_ours() -> None:
    """A log that the driver may not append to is refused before any task has run."""
    with tempfile.TemporaryDirectory(prefix="penstock-") as directory:
        subprocess.run([sys.executable, "-c", FORBIDDEN, f"{directory}/log"], check=True)


@pytest.mark.parametrize("which", [0, 1])
def test_staged_files_that_are_gone(path: Path, writer: StreamWriter, which: int) -> None:
    """A staged file that the driver cannot see is an error that explains it; nothing is written."""
    messages = stage(writer, [b"a"], [b"b"])
    os.unlink(messages[which].staged[0].path)
    with pytest.raises(NotFound, match="stagingPath must be a directory that every host"):
        writer.commit(messages, 0)
    assert values(path) == []
    writer.abort(messages, 0)
    assert left(path) == []


def test_a_task_on_another_host(tmp_path: Path) -> None:
    """A task that does not see the directory says on which host, and makes none of its own."""
    staging = Staging(str(tmp_path / "staging"), 0o700, 0o600, 64 << 20)
    with pytest.raises(NotFound, match=r"no such directory on the host .* stagingPath"):
        staging.begin("once.0.run")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("damage", ["cut", "text", "flipped"])
def test_staged_files_that_are_damaged(path: Path, writer: StreamWriter, damage: str) -> None:
    """A staged file that is not what a task wrote is never published, nor is its sibling."""
    messages = stage(writer, [b"a"], [b"b"] * 1000)
    [staged] = messages[1].staged
    bad = Path(staged.path)
    data = bytearray(bad.read_bytes())
    if damage == "cut":
        bad.write_bytes(data[: staged.end - 1])
    elif damage == "text":
        bad.write_text("nothing of ours")
    else:
        data[staged.end - 20] ^= 1
        bad.write_bytes(data)
    with pytest.raises(Corrupt, match=bad.name):
        writer.commit(messages, 0)
    assert values(path) == []


def test_bad_rows(path: Path) -> None:
    """A row that no event can be made of is refused with what is wrong; nothing is staged."""
    columns = schema(("value", BINARY), ("key", BINARY))
    writer = StreamWriter({"path": str(path)}, columns, False)
    sink = writer._sink
    directory = name_of(QUERY, 0, "run")
    sink.staging.begin(directory)
    for value, key, kind, said in [
        (None, None, Usage, "row 3: .*value is null and it has no key"),
        (b"v", b"k" * 1025, TooLarge, "row 3: .*key is longer than 1024 bytes"),
        (b"v" * (64 << 20), b"k", TooLarge, "must fit a segment of"),
    ]:
        batch = pyarrow.record_batch(
            {
                "value": pyarrow.array([b"good", value], pyarrow.binary()),
                "key": pyarrow.array([b"good", key], pyarrow.binary()),
            }
        )
        with pytest.raises(kind, match=said):
            sink.staging.stage(directory, 0, sink.rows(iter([batch[:1], batch[:1], batch])))
    assert left(path) == [directory] and os.listdir(path / "staging" / directory) == []
    assert values(path) == []


def test_small_batches_share_segments(path: Path, writer: StreamWriter) -> None:
    """Micro-batches of many partitions do not cost the log a segment each."""
    for batch in range(20):
        writer.commit(stage(writer, *([b"%d" % n] for n in range(10)), batch=batch), batch)
    writer.commit(stage(writer, [b"large"] * 60_000, [b"x" * 1000] * 4000, batch=20), 20)
    assert len(values(path)) == 64_200
    assert [n for n in os.listdir(path) if n.endswith(".seg")] == ["00000000000000000001.seg"]


def test_large_batches_become_segments(path: Path, writer: StreamWriter) -> None:
    """What fills segments is not copied: the files that tasks staged are the log's then."""
    rows = [[b"%d-%d" % (n, i) + b"x" * 1000 for i in range(20_000 + n)] for n in range(3)]
    messages = stage(writer, *rows)
    staged = {os.stat(s.path).st_ino for m in messages for s in m.staged}
    stage(writer, [b"of a dead run"], run="dead")
    dead = path / "staging" / name_of(QUERY, 0, "dead")
    os.utime(dead, ns=(time.time_ns() - 10**9,) * 2)
    writer.commit(messages, 0)
    assert values(path) == [value for part in rows for value in part]
    assert staged <= {entry.stat().st_ino for entry in os.scandir(path)}
    assert left(path) == []


def test_a_staging_path_elsewhere(tmp_path: Path) -> None:
    """Files of another file system are copied, one in memory at a time."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        options = {"path": str(tmp_path / "log"), "stagingPath": elsewhere}
        writer = StreamWriter(options, VALUE, False)
        rows = [[b"%d-%d" % (n, i) + b"x" * 1000 for i in range(70_000)] for n in range(2)]
        writer.commit(stage(writer, *rows), 0)
        assert values(tmp_path / "log") == [value for part in rows for value in part]
        assert os.listdir(elsewhere) == []
