"""``penstock cat``."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from tests.cli.support import Shell, picture, real_environment


@pytest.fixture(params=["segments", "ring"])
def filled(request: pytest.FixtureRequest, shell: Shell) -> str:
    """A log, or a ring, of ten events."""
    options: Any = {"ring": "256KiB"} if request.param == "ring" else {"segment_size": "64KiB"}
    with penstock.create("a.ring" if request.param == "ring" else "a", **options) as log:
        for n in range(1, 11):
            log.append(
                b'{"n": %d}' % n,
                key=b"k%d" % (n % 3),
                topic="even" if n % 2 == 0 else "odd",
                tags=["t"] if n > 5 else None,
                time=f"2026-01-{n:02d}T00:00:00Z",
            )
        return str(log.path)


def seqs(shell: Shell, *words: object) -> list[int]:
    """The seqs of what is printed."""
    return [row["seq"] for row in shell("cat", *words).values]


def test_selects(shell: Shell, filled: str) -> None:
    """Each option selects what it says, together they select what fits all."""
    for words, wanted in (
        ([], range(1, 11)),
        (["--from", "3", "--to", "5"], [3, 4, 5]),
        (["--from", "-2"], [9, 10]),
        (["--since", "2026-01-03T00:00Z", "--until", "2026-01-05T00:00Z"], [3, 4]),
        (["--since", "@1767398400"], range(3, 11)),
        (["--topic", "even", "-n", "2"], [2, 4]),
        (["--topic", "even", "--topic", "odd", "-n", "2"], [1, 2]),
        (["--key", "k1"], [1, 4, 7, 10]),
        (["--tag", "t", "-r", "-n", "2"], [10, 9]),
        (["-r", "--one"], [10]),
        (["--grep", r"[2-4]\}"], [2, 3, 4]),
        (["--where", "data.n > 8 or seq == 1"], [1, 9, 10]),
        (["--where", "topic == 'even' and 't' in tags"], [6, 8, 10]),
        (["--grep", "1", "-n", "1", "-r"], [10]),
        (["--until", "yesterday", "--durable-only"], seqs(shell, filled, "--durable-only")),
        (["--since", "-1h"], []),
    ):
        assert seqs(shell, filled, *words) == list(wanted), words


def test_forms(shell: Shell, filled: str) -> None:
    """Each form has what it promises."""
    raw = shell("cat", filled, "-o", "raw", "-n", "2")
    assert raw.raw == b'{"n": 1}\n{"n": 2}\n'
    assert shell("cat", filled, "-o", "raw", "-0", "-n", "2").raw == b'{"n": 1}\0{"n": 2}\0'
    rows = list(csv.DictReader(io.StringIO(shell("cat", filled, "-o", "csv").text)))
    assert (rows[1]["seq"], rows[1]["topic"], rows[1]["value"]) == ("2", "even", '{"n": 2}')
    table = pa.ipc.open_stream(shell("cat", filled, "-o", "arrow").raw).read_all()
    assert table.column("seq").to_pylist() == list(range(1, 11))
    table = pq.read_table(io.BytesIO(shell("cat", filled, "-o", "parquet", "--topic", "odd").raw))
    assert table.column("value").to_pylist()[0] == b'{"n": 1}'
    first = shell("cat", filled, "-o", "jsonl", "-n", "1").values[0]
    assert first == {
        "seq": 1,
        "time": "2026-01-01T00:00:00.000000000Z",
        "topic": "odd",
        "key": "k1",
        "value": '{"n": 1}',
    }
    assert shell("cat", filled, "--format", r"%s|%k|%v{hex}|%p%%\t%S", "-n", "1").raw == (
        b"1|k1|" + b'{"n": 1}'.hex().encode() + b"|odd%\t8\n"
    )
    assert shell("cat", filled, "-o", "text", "--utc", "-n", "1").text == (
        '1  2026-01-01T00:00:00.000000000Z  odd  key=k1  {"n": 1}\n'
    )


def test_text_cannot_move_the_cursor(shell: Shell) -> None:
    """What a terminal would take as a command is escaped, wherever it is in an event."""
    with penstock.open("a") as log:
        bad = "\x1b[2J\u202e\r\n\x9b"
        log.append(
            bad.encode(), key=bad.encode(), topic=bad, headers={bad: bad.encode()}, tags=[bad]
        )
    text = shell("cat", "a", terminal=True, code=0).text
    assert "\u202e" not in text and "\r" not in text and "\x9b" not in text
    assert text.count("\n") == 1 and "[2J" in text.replace("\x1b[", "")
    plain = shell("cat", "a", "--color", "never", terminal=True).text
    assert "\x1b" not in plain


def test_colours(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are colours on a terminal only, and none if NO_COLOR is set."""
    with penstock.open("a") as log:
        log.append(b"x")
    assert b"\x1b[" in shell("cat", "a", terminal=True).raw
    assert b"\x1b[" in shell("cat", "a", "-o", "text", "--color", "always").raw
    assert b"\x1b[" not in shell("cat", "a", "-o", "text").raw
    monkeypatch.setenv("NO_COLOR", "1")
    assert b"\x1b[" not in shell("cat", "a", terminal=True).raw


def test_it_writes_nothing(shell: Shell, filled: str) -> None:
    """Reading leaves every file as it was, with its times."""
    before = picture(filled)
    shell("cat", filled)
    shell("cat", filled, "-o", "arrow")
    assert picture(filled) == before


def test_one_of_none(shell: Shell, filled: str) -> None:
    """--one exits with 3 if there is none; without it nothing is no error."""
    assert shell("cat", filled, "--key", "none", "--one", code=3).raw == b""
    assert shell("cat", filled, "--key", "none").raw == b""


def test_a_consumer_goes_on(shell: Shell, filled: str) -> None:
    """With --consumer each run prints what the ones before did not."""
    assert seqs(shell, filled, "--consumer", "c", "-n", "3") == [1, 2, 3]
    assert seqs(shell, filled, "--consumer", "c", "--where", "seq in [5, 6, 9]", "-n", "2") == [
        5,
        6,
    ]
    assert seqs(shell, filled, "--consumer", "c") == [7, 8, 9, 10]
    assert seqs(shell, filled, "--consumer", "c") == []


def damage(path: str) -> None:
    """Change a byte of the value of seq 3."""
    (segment,) = Path(path).glob("*.seg")
    data = bytearray(segment.read_bytes())
    data[data.index(b'"value-3"') + 2] ^= 1
    segment.write_bytes(data)


def test_damage(shell: Shell) -> None:
    """Damage is exit code 7 after the events before it, 12 if it may be passed over."""
    with penstock.open("a") as log:
        log.extend([b'"value-%d"' % n for n in range(1, 6)])
    damage("a")
    done = shell("cat", "a", code=7)
    assert [row["seq"] for row in done.values] == [1, 2]
    assert done.error["kind"] == "Corrupt" and done.error["seq"] == 3
    assert done.error["path"].endswith(".seg") and done.error["offset"] > 0
    done = shell("cat", "a", "--skip-damage", code=12)
    assert [row["seq"] for row in done.values] == [1, 2, 4, 5]
    assert done.notices[0]["count"] == 1
    done = shell("cat", "a", "-o", "arrow", "--skip-damage", code=12)
    assert pa.ipc.open_stream(done.raw).read_all().num_rows == 4


def test_gaps(shell: Shell) -> None:
    """What a ring has overwritten is exit code 9, 12 if it may be passed over."""
    with penstock.create("a.ring", ring="64KiB") as ring:
        ring.extend([b"x" * 100] * 100)
        for _ in range(20):
            ring.extend([b"x" * 100] * 100)
        first = ring.first_seq
    error = shell("cat", "a.ring", "--from", "1", code=9).error
    assert (error["kind"], error["first_seq"]) == ("Gap", first)
    done = shell("cat", "a.ring", "--from", "1", "--skip-gaps", code=12)
    assert done.values[0]["seq"] == first


@pytest.mark.parametrize(
    "words",
    [
        ["--where", "open('x')"],
        ["--where", "seq ="],
        ["--where", "(" * 3000],
        ["--where", "x == 1"],
        ["--where", "[x for x in tags]"],
        ["--where", "seq ** 9"],
        ["--grep", "("],
        ["--format", "%q"],
        ["--format", r"\q"],
        ["--format", "%v{no}"],
        ["--format", "%v", "-o", "raw"],
        ["--from", "x"],
        ["--since", "soon"],
        ["-n", "-1"],
        ["-n", "1", "--one"],
        ["-o", "arrow", "--grep", "x"],
        ["-o", "parquet", "-r"],
        ["-o", "csv", "-0"],
        ["--consumer", "c", "--from", "1"],
        ["--consumer", "c", "-r"],
        ["--topic"],
        ["--tpic", "x"],
        ["more"],
    ],
)
def test_bad_options(shell: Shell, filled: str, words: list[str]) -> None:
    """What cannot be is refused with exit code 2, and nothing is printed."""
    done = shell("cat", filled, *words, code=2)
    assert done.error["kind"] == "Usage" and done.raw == b""


def test_where_never_fails_on_an_event(shell: Shell) -> None:
    """An event that lacks what the expression asks for does not fit; it is no error."""
    with penstock.open("a") as log:
        log.append(b"not json")
        log.append(b'{"a": {"b": [1, "x"]}, "t": "2026"}')
        log.append(None, key=b"k")
    for text, wanted in (
        ("data.a.b[1] == 'x'", [2]),
        ("data.a.b[7] == 'x'", []),
        ("data.t + 1 > 0", []),
        ("len(data.a.b) == 2", [2]),
        ("value.startswith('not')", [1]),
        ("startswith(value, 'not')", [1]),
        ("matches(value, '^n')", [1]),
        ("matches(value, '(')", []),
        ("deletes", [3]),
        ("key == b'k'", [3]),
        ("value is None", [3]),
        ("1 < seq <= 3", [2, 3]),
        ("not (seq == 1)", [2, 3]),
        ("seq % 0 == 1", []),
        ("time > '2020-01-01T00:00Z' and time > '-1h'", [1, 2, 3]),
        ("headers['x'] == 'y'", []),
        ("tags.__class__ is not None", []),
        ("data['a']['b'][0] * 2 == 2", [2]),
        ("'x' * 1000000000 == 'y'", []),
        ("upper('a') == 'A' and seq - 1 == 0", [1]),
    ):
        assert seqs(shell, "a", "--where", text) == wanted, text


@pytest.mark.parametrize("form", ["raw", "jsonl"])
def test_bounded_memory(shell: Shell, form: str) -> None:
    """A log of 320 MiB is printed by a process that may not have that much memory."""
    with penstock.open("a", segment_size="64MiB") as log:
        for _ in range(10):
            log.extend([bytes(1 << 20)] * 32)
    program = (
        "import resource, sys\n"
        "from penstock.cli import main\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (100 << 20, 100 << 20))\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.Popen(
        [sys.executable, "-c", program, "cat", "a", "-o", form, "-0"],
        stdout=subprocess.PIPE,
        env=real_environment(),
    )
    assert done.stdout is not None
    count = 0
    while data := done.stdout.read(1 << 20):
        count += len(data)
    assert done.wait(60) == 0
    assert count > 320 << 20


def test_json_of_what_json_has(shell: Shell) -> None:
    """Lines parse as JSON, whatever the bytes are."""
    with penstock.open("a", codec="json") as log:
        log.append({"a": 1})
    with penstock.open("b") as log:
        for n in range(256):
            log.append(bytes([n]), key=bytes([n]), headers={"h": bytes([n])})
    assert shell("cat", "a").values[0]["data"] == {"a": 1}
    rows = shell("cat", "b").raw.split(b"\n")[:-1]
    assert len(rows) == 256
    for row in rows:
        json.loads(row)
