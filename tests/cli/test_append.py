"""``penstock append``."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.cli.support import COMMAND, Shell, real_environment


def parts(event: Any) -> tuple[Any, ...]:
    """Everything of an event but its seq."""
    return (event.value, event.key, event.topic, tuple(event.headers), event.time_ns)


def test_values_are_one_batch(shell: Shell) -> None:
    """Values are appended with all parts that are given, and their seqs printed."""
    done = shell(
        *["append", "a", "x", "--create", "-k", "k", "-t", "t", "-H", "h=1=2", "--tag", "e"],
        *["--time", "2026-01-01T00:00Z", "--ttl", "1h", "--not-before", "+1h", "--durable", "y"],
    )
    assert done.lines == ["1", "2"]
    with penstock.open("a", "r") as log:
        one, two = log
        assert (one.value, two.value, one.batch_left) == (b"x", b"y", 1)
        assert (one.key, one.topic, one.tags, one.header("h")) == (b"k", "t", ("e",), b"1=2")
        assert one.time.isoformat() == "2026-01-01T00:00:00+00:00"
        assert one.expires is not None and one.not_before is not None


def test_lines(shell: Shell) -> None:
    """Each line is an event, byte for byte, the last one without an end as well."""
    lines = [b"a", b"", b"\xff\x00b\r", "ü".encode(), b"end"]
    done = shell("append", "a", "--create", "--json", stdin=b"\n".join(lines))
    assert done.values == [{"events": 5, "first_seq": 1, "last_seq": 5}]
    shell("append", "b", "--create", "-0", stdin=b"x\ny\0z\0")
    with penstock.open("a", "r") as a, penstock.open("b", "r") as b:
        assert [event.value for event in a] == lines
        assert [event.value for event in b] == [b"x\ny", b"z"]


def test_lines_longer_than_a_piece(shell: Shell) -> None:
    """A line may be larger than what is read at once, and than a batch of a small segment."""
    long = os.urandom(1).hex().encode() * 1_500_000
    shell("append", "a", "--create", stdin=b"x\n" + long + b"\ny\n")
    with penstock.open("a", "r") as log:
        assert [len(event.value) for event in log] == [1, len(long), 1]
    shell("create", "small", "--segment-size", "64KiB")
    shell("append", "small", stdin=b"%s\n" % (b"z" * 100) * 5000)
    with penstock.open("small", "r") as log:
        assert len(log) == 5000


def test_a_log_must_exist(shell: Shell) -> None:
    """Without --create a missing log is an error: the name may be misspelt."""
    shell("append", "a", "x", code=3)
    assert not penstock.exists("a")


def test_values_of_a_codec(shell: Shell) -> None:
    """Values must fit the codec; for msgpack and lite3 they are JSON."""
    shell("append", "j", '{"a":  1}', "--create", "--codec", "json")
    assert shell("append", "j", "{", code=2).error["type"] == "BadData"
    shell("append", "m", '{"a": 1}', "--create", "--codec", "msgpack")
    assert "must be JSON" in shell("append", "m", "{", code=2).error["message"]
    with penstock.open("j", "r") as j, penstock.open("m", "r") as m:
        assert (j[1].value, j.last_seq, m[1].data, m.last_seq) == (b'{"a":  1}', 1, {"a": 1}, 1)


def fill(path: str) -> None:
    """A log with everything that events can have."""
    with penstock.open(path) as log:
        log.append(b"plain")
        log.append(b"\xff\x00\x80", key=b"\xfe", topic="binär", headers={"h": b"\xff", "n": None})
        log.append('ü " \\ \n \x7f \u2028 \x01 😀'.encode(), key=b"", tags=["a", "b"])
        log.append(None, key=b"gone")
        log.append(b"", headers=[("x", b"1"), ("x", b"2")], time="1999-12-31T23:59:59.999999999Z")
        log.append(b"late", ttl=3600.5, not_before="2200-01-01T00:00:00.000000001Z", tags=["t"])
        log.extend([penstock.Entry(b"%d" % i, key=b"k%d" % i) for i in range(2000)])
        log.append(b"{}", codec="json")


@pytest.mark.parametrize("kind", ["segments", "ring"])
def test_what_cat_prints_is_taken_back(shell: Shell, kind: str) -> None:
    """`cat -o jsonl | append --jsonl` gives the same events, byte for byte."""
    fill("a")
    if kind == "ring":
        penstock.create("b", ring="1MiB").close()
    printed = shell("cat", "a", "-o", "jsonl").raw
    shell("append", "b", "--jsonl", "--create", stdin=printed)
    with penstock.open("a", "r") as a, penstock.open("b", "r") as b:
        assert list(map(parts, a)) == list(map(parts, b))
        assert [event.deletes for event in a] == [event.deletes for event in b]
        assert [event.tags for event in a] == [event.tags for event in b]
        assert [event.not_before for event in a] == [event.not_before for event in b]
    assert shell("cat", "b", "-o", "jsonl").raw == printed


@pytest.mark.parametrize("codec", ["json", "msgpack", "lite3"])
def test_values_of_a_codec_are_taken_back(shell: Shell, codec: str) -> None:
    """The bytes of encoded values stay as they are, however they were written."""
    with penstock.open("a", codec=codec) as log:
        log.extend([{"a": [1, 2.50, None], "ü": "\n\x00"}, {"b": {}}])
        if codec == "json":
            log.append(b'{"a" : 1.0, "a":\t1e2 }')
            log.append(b'{"a":\n1}')
            log.append(b" [1] ")
            log.append(b'"\\u00e4"')
            log.append(b"1")
    printed = shell("cat", "a", "-o", "jsonl").raw
    shell("append", "b", "--jsonl", "--create", "--codec", codec, stdin=printed)
    with penstock.open("a", "r") as a, penstock.open("b", "r") as b:
        assert list(map(parts, a)) == list(map(parts, b))
    if codec == "json":
        assert json.loads(printed.splitlines()[0])["data"] == {"a": [1, 2.5, None], "ü": "\n\x00"}
        assert (
            shell("cat", "a", "-o", "jsonl", "--from", "4", "--one").values[0]["value"]
            == '{"a":\n1}'
        )


def test_records_by_hand(shell: Shell) -> None:
    """Records may leave out what they lack; the options give it to those that have none."""
    shell("create", "a")
    data = b'{"value":"a"}\n\n{"value":"b","topic":"own","ttl":9,"headers":{"h":"1"}}\n{"data":[1]}'
    shell("append", "a", "--jsonl", "-t", "given", stdin=data)
    with penstock.open("a", "r") as log:
        assert [event.topic for event in log] == ["given", "own", "given"]
        assert log[2].header("h") == b"1" and log[3].value == b"[1]"


@pytest.mark.parametrize(
    ("line", "word"),
    [
        (b"{", "truncated"),
        (b'{"value":"a","topc":"x"}', "topc"),
        (b"{}", "value"),
        (b'{"value":"a","data":1}', "one of"),
        (b'{"value_base64":"%%%"}', "base64"),
        (b'{"value":"a","headers":[["h",{"base65":"x"}]]}', "base64"),
        (b'{"value":"a","time":"soon"}', "time"),
        (b'{"value":"a","ttl":-1}', "ttl"),
        (b'{"value":"a","ttl":1,"ttl_ns":1}', "ttl"),
        (b'{"value":null}', "key"),
        (b'{"value":"\xff"}', ""),
        (b'"text"', "object"),
    ],
)
def test_bad_records(shell: Shell, line: bytes, word: str) -> None:
    """A record that is no event is refused, and nothing after it is appended."""
    shell("create", "a")
    error = shell("append", "a", "--jsonl", stdin=b'{"value":"first"}\n' + line, code=2).error
    assert word in error["message"], error
    with penstock.open("a", "r") as log:
        assert log.last_seq <= 1


def test_bad_records_passed_over(shell: Shell) -> None:
    """--skip-bad appends the others, says which lines were bad, and exits with 12."""
    shell("create", "a")
    done = shell(
        *["append", "a", "--jsonl", "--skip-bad", "--json"],
        stdin=b'{"value":"1"}\nx\n{"value":"2"}\n{"topik":"3"}\n',
        code=12,
    )
    assert done.values[0]["events"] == 2
    assert [notice["message"].split(":")[0] for notice in done.notices] == ["line 2", "line 4"]


def test_once(shell: Shell) -> None:
    """With --producer a repeat appends nothing, also of stdin; --expect refuses what is late."""
    shell("create", "a")
    for _ in range(2):
        shell("append", "a", "--producer", "p:1", stdin=b"x\ny\n")
    for _ in range(2):
        shell("append", "a", "z", "--producer", "p:2")
    assert shell("append", "a", "q", "--expect", "2", code=11).error["kind"] == "Conflict"
    shell("append", "a", "q", "--expect", "3")
    with penstock.open("a", "r") as log:
        assert [event.value for event in log] == [b"x", b"y", b"z", b"q"]


def test_batches(shell: Shell) -> None:
    """--batch makes atomic batches of that size; --atomic makes one of everything."""
    shell("create", "a")
    shell("append", "a", "--batch", "2", stdin=b"1\n2\n3\n4\n5\n")
    shell("append", "a", "--atomic", stdin=b"6\n7\n8")
    with penstock.open("a", "r") as log:
        assert [event.batch_left for event in log] == [1, 0, 1, 0, 0, 2, 1, 0]


def test_files_and_deletions(shell: Shell) -> None:
    """A file is one value; --delete-key appends a deletion."""
    Path("v").write_bytes(b"a\nb\0\xff")
    shell("append", "a", "--create", "--value-file", "v", "--key", "k")
    shell("append", "a", "--value-file", "-", stdin=b"x\ny")
    shell("append", "a", "--delete-key", "--key", "k")
    with penstock.open("a", "r") as log:
        assert [event.value for event in log] == [b"a\nb\0\xff", b"x\ny", None]
    error = shell("append", "a", "--value-file", "none", code=3).error
    assert error["path"] == "none"


def test_options_that_do_not_go_together(shell: Shell) -> None:
    """No option is ignored: what does not apply is refused."""
    shell("create", "a")
    for words in (
        ["x", "--jsonl"],
        ["x", "--atomic"],
        ["x", "--value-file", "y"],
        ["--delete-key"],
        ["--jsonl", "-0"],
        ["--skip-bad"],
        ["--batch", "2", "--atomic"],
        ["--batch", "0"],
        ["x", "--codec", "json"],
        ["x", "--header", "h"],
        ["x", "--producer", "p"],
        ["x", "--producer", "p:x"],
        ["x", "--ttl", "-1"],
        ["x", "--time", "soon"],
    ):
        assert shell("append", "a", *words, code=2).error["kind"] == "Usage", words
    with penstock.open("a", "r") as log:
        assert log.last_seq == 0


def test_lines_are_appended_as_they_come(shell: Shell) -> None:
    """A line is in the log while its writer still has the pipe open."""
    shell("create", "a")
    process = subprocess.Popen(
        [*COMMAND, "append", "a"], stdin=subprocess.PIPE, env=real_environment()
    )
    assert process.stdin is not None
    with penstock.open("a", "r") as log:
        for count, line in enumerate((b"one\n", b"two\n"), 1):
            process.stdin.write(line)
            process.stdin.flush()
            assert log.wait(60, after=count - 1)
        process.stdin.close()
        assert process.wait(60) == 0
        assert log.last_seq == 2


def test_binary_arguments(shell: Shell) -> None:
    """Bytes in arguments that are no text are appended as they are."""
    shell("create", "a")
    subprocess.run(
        [*COMMAND, "append", "a", b"\xff\xfe", "--key", b"\xfd", "-H", b"h=\xfc"],
        env=real_environment(),
        check=True,
        stdout=subprocess.DEVNULL,
    )
    with penstock.open("a", "r") as log:
        assert (log[1].value, log[1].key, log[1].header("h")) == (b"\xff\xfe", b"\xfd", b"\xfc")
