"""Codecs and schemas: objects go in, objects come out, and what does not fit is refused by name."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import pytest

import penstock
from penstock.data import codecs
from penstock.documents import Document, document
from penstock.settings import Settings
from tests.golden.test_golden import VERSIONS, unpack
from tests.support.forged import forged
from tests.unit import oracle

CODECS = ["json", "msgpack", "lite3"]
VALUE = {"a": 1, "b": [1.5, None, True, "x"], "c": {"d": "é"}}


class User(msgspec.Struct):
    name: str
    age: int = 0


class Named(msgspec.Struct):
    name: str


@dataclass
class Point:
    x: int
    y: int = 0


class Row(TypedDict):
    x: int


def plain(data: Any) -> Any:
    """What a lite3 document decodes to; other data as it is."""
    return data.to_python() if hasattr(data, "to_python") else data


@pytest.fixture
def own_codec() -> Any:
    """A codec that the user brings, gone again afterwards."""
    penstock.register_codec("upper", lambda v: v.upper().encode(), lambda b: b.decode().lower())
    yield "upper"
    codecs._registered.pop("upper", None)


@pytest.mark.parametrize("codec", CODECS)
def test_objects_round_trip(path: Path, codec: str) -> None:
    """What is appended, extended and loaded as objects is read as objects, in every mode."""
    with penstock.open(path, codec=codec) as log:
        assert log.append(VALUE) == 1
        assert log.extend([VALUE, penstock.Entry([1, 2], key=b"k")]) == range(2, 4)
        assert log.load(VALUE for _ in range(3)) == range(4, 7)
        expected = [VALUE, VALUE, [1, 2], VALUE, VALUE, VALUE]
        assert [plain(e.data) for e in log] == expected
        assert plain(log[3].data) == [1, 2]
    with penstock.open(path, mode="r") as log:
        assert [plain(e.data) for e in reversed(log)] == expected[::-1]
        assert log.settings.codec == codec


def test_what_is_written_is_what_the_codec_says(path: Path) -> None:
    """The value on disk is the encoding itself, nothing around it, and no header beside it."""
    with penstock.open(path, codec="json") as log:
        log.append({"total": 12})
        assert log[1].value == b'{"total":12}'
        assert log[1].headers == ()
        assert bytes(log[1].view) == log[1].value


def test_bytes_stay_bytes(log: penstock.Log) -> None:
    """Without a codec, data is the value, and only bytes are taken."""
    log.append(b"v")
    assert log[1].data == b"v"
    assert log.settings.codec == "bytes"
    bad: Any = {"a": 1}
    with pytest.raises(penstock.WrongType):
        log.append(bad)


def test_data_is_decoded_when_asked_for(path: Path) -> None:
    """Reading an event decodes nothing; each access does, after the log is closed as well."""
    with penstock.open(path, codec="json") as log:
        log.append([1])
        (event,) = log
    gc.collect()
    assert event.data == [1]
    assert event.data is not event.data


@pytest.mark.parametrize("codec", CODECS)
def test_a_delete_has_no_data(path: Path, codec: str) -> None:
    """None deletes a key under every codec, and its data is None."""
    with penstock.open(path, codec=codec) as log:
        log.append(None, key=b"k")
        log.extend([penstock.Entry(None, key=b"k"), [1]])
        assert [e.deletes for e in log] == [True, True, False]
        assert log[1].data is log[2].data is None
        with pytest.raises(penstock.Usage, match="must have a key"):
            log.append(None)


@pytest.mark.parametrize("kind", [bytes, msgspec.Raw])
def test_encoded_values_are_taken_as_they_are(path: Path, kind: Callable[[bytes], Any]) -> None:
    """Bytes count as encoded already: they are checked, and written byte for byte."""
    with penstock.open(path, codec="json") as log:
        log.append(kind(b'{ "a" : 1 }'))
        log.extend([kind(b" [2] ")])
        assert [e.value for e in log] == [b'{ "a" : 1 }', b" [2] "]
        with pytest.raises(penstock.BadData, match="nothing was written"):
            log.append(kind(b"{"))
        with pytest.raises(penstock.BadData):
            log.extend([[1], kind(b"nope")])
        with pytest.raises(penstock.BadData):
            log.load([[1], kind(b"nope")])
        assert len(log) == 2


@pytest.mark.parametrize("codec", CODECS)
def test_what_cannot_be_encoded(path: Path, codec: str) -> None:
    """An object that the codec cannot hold is BadData, a ValueError, and appends nothing."""
    with penstock.open(path, codec=codec) as log:
        for bad in (object(), {"a": object()}, [{"b": lambda: 0}]):
            with pytest.raises(penstock.BadData, match=codec) as caught:
                log.append(bad)
            assert isinstance(caught.value, ValueError)
            assert caught.value.path == str(path)
            with pytest.raises(penstock.BadData):
                log.extend([[1], bad])
        assert len(log) == 0


@pytest.mark.parametrize("codec", CODECS)
def test_values_that_contain_themselves(path: Path, codec: str) -> None:
    """A value that is nested without end is BadData, not the end of the process."""
    loop: list[Any] = []
    loop.append(loop)
    with penstock.open(path, codec=codec) as log, pytest.raises(penstock.BadData):
        log.append(loop)


@pytest.mark.parametrize("one", ["text", b"[1]", bytearray(b"[1]"), {"a": 1}])
def test_one_value_is_not_many(path: Path, one: Any) -> None:
    """Text, bytes or a dict given to extend or load is a slip, not a batch of its parts."""
    with penstock.open(path, codec="json") as log:
        for call in (log.extend, log.load):
            with pytest.raises(
                penstock.WrongType, match="needs many values, such as a list, got one"
            ):
                call(one)
        assert len(log) == 0


def test_another_codec_for_one_append(path: Path) -> None:
    """An event can have a codec of its own: a header names it, and data goes by it."""
    with penstock.open(path, codec="json") as log:
        log.append({"a": b"raw"}, codec="msgpack", headers={"h": b"1"})
        log.append([1], codec="json")
        log.append(b"\xff", codec="bytes")
        log.extend([[1], penstock.Entry([2], headers={"x": None})], codec="msgpack")
        log.load(([i] for i in range(3)), codec="msgpack", headers={"h": b"2"})
        assert log[1].headers == (("h", b"1"), ("penstock.codec", b"msgpack"))
        assert [e.data for e in log] == [{"a": b"raw"}, [1], b"\xff", [1], [2], [0], [1], [2]]
        assert log[2].headers == ()
        assert log[5].headers == (("x", None), ("penstock.codec", b"msgpack"))
        assert log[8].headers == (("h", b"2"), ("penstock.codec", b"msgpack"))
    with penstock.open(path, mode="r") as log:
        assert log[1].data == {"a": b"raw"}


def test_a_codec_for_one_append_to_a_log_of_bytes(log: penstock.Log) -> None:
    """A log of bytes takes objects one by one, and goes on taking bytes."""
    log.append({"a": 1}, codec="json")
    log.append(b"plain")
    assert [e.data for e in log] == [{"a": 1}, b"plain"]
    with pytest.raises(penstock.BadData):
        log.append(b"{", codec="json")


def test_a_large_load_keeps_its_codec(path: Path) -> None:
    """Events that a load writes to segments of its own are decoded like all others."""
    with penstock.open(path, codec="json", segment_size="64KiB") as log:
        log.load(({"i": i} for i in range(5000)), tags=["big"])
        log.load(([i] for i in range(3000)), codec="msgpack", tags=["big"])
        assert [e.data for e in log] == [{"i": i} for i in range(5000)] + [[i] for i in range(3000)]
        assert all(e.tags == ("big",) for e in log)
        assert log.verify().ok


def test_the_codec_is_in_the_log(path: Path) -> None:
    """The codec is a setting in every segment; a log of bytes says nothing of it."""
    with penstock.open(path, codec="json") as log:
        log.append([1])
        log.steward.roll()
        log.configure(segment_size="1MiB")
        log.append([2])
        log.steward.roll()
        assert log.settings.codec == "json"
    assert {b'"codec":"json"' in s.settings for s in oracle.read_log(path)} == {True}
    assert b"codec" not in Settings().to_json()
    assert Settings.from_json(b"{}", "x").codec == "bytes"


def test_open_never_changes_the_codec(path: Path) -> None:
    """A codec given to open must be the log's own; the error says which that is."""
    penstock.open(path, codec="json").close()
    for mode in ("rw", "r"):
        with penstock.open(path, mode=mode, codec="json") as log:
            assert log.settings.codec == "json"
        with pytest.raises(penstock.Usage, match="the log's codec is 'json', not 'msgpack'"):
            penstock.open(path, mode=mode, codec="msgpack")
        with pytest.raises(penstock.Usage, match="not 'bytes'"):
            penstock.open(path, mode=mode, codec="bytes")
    with penstock.open(path) as log:
        with pytest.raises(penstock.Usage, match="cannot be changed"):
            log.configure(codec="bytes")
        assert log.configure(codec="json").codec == "json"


def test_a_misspelt_codec_makes_no_log(path: Path) -> None:
    """An unknown codec is NoCodec before anything is made; a name that is none is Usage."""
    with pytest.raises(penstock.NoCodec, match="register_codec"):
        penstock.open(path, codec="jsno")
    for bad in ("", "a b", "x" * 65, "-", "é"):
        with pytest.raises(penstock.Usage):
            penstock.open(path, codec=bad)
    not_a_name: Any = 5
    with pytest.raises(penstock.WrongType):
        penstock.open(path, codec=not_a_name)
    assert not path.exists()
    with penstock.open(path) as log:
        with pytest.raises(penstock.NoCodec):
            log.append([1], codec="jsno")
        with pytest.raises(penstock.WrongType):
            log.append([1], codec=not_a_name)
        assert len(log) == 0


def test_a_codec_of_ones_own(path: Path, own_codec: str) -> None:
    """A registered codec works like a built-in one, with a schema too."""
    with penstock.open(path, codec=own_codec) as log:
        log.append("hello")
        assert (log[1].value, log[1].data) == (b"HELLO", "hello")
    with penstock.open(path, schema=str) as log:
        assert log[1].data == "hello"
    with penstock.open(path, schema=int) as log, pytest.raises(penstock.BadData, match="seq 1"):
        assert log[1].data


def test_a_codec_that_must_give_bytes(path: Path) -> None:
    """A codec that encodes to something else is told so, and nothing is appended."""
    wrong: Any = str
    penstock.register_codec("wrong", wrong, lambda b: b)
    with (
        penstock.open(path, codec="wrong") as log,
        pytest.raises(penstock.BadData, match="must encode to bytes, got str"),
    ):
        log.append(5)
    codecs._registered.pop("wrong")


def test_what_cannot_be_registered() -> None:
    """The names of built-in codecs are taken, and functions are functions."""
    for name in ("bytes", *CODECS):
        with pytest.raises(penstock.Usage, match="built in"):
            penstock.register_codec(name, bytes, bytes)
    none: Any = None
    with pytest.raises(penstock.WrongType, match="decode must be a function"):
        penstock.register_codec("mine", bytes, none)


def test_a_log_of_an_unknown_codec_still_opens(path: Path, own_codec: str) -> None:
    """Without the codec a log opens, reads and verifies; objects are NoCodec until it comes."""
    with penstock.open(path, codec=own_codec) as log:
        log.append("hello")
    known = codecs._registered.pop(own_codec)
    for mode in ("r", "rw"):
        with penstock.open(path, mode=mode) as log:
            assert log[1].value == b"HELLO"
            with pytest.raises(penstock.NoCodec, match="upper"):
                assert log[1].data
            assert log.verify().ok
            if mode == "rw":
                with pytest.raises(penstock.NoCodec):
                    log.append("more")
            again = pickle.loads(pickle.dumps(log[1]))
            assert again == log[1]
            codecs._registered[own_codec] = known
            assert log[1].data == again.data == "hello"
            del codecs._registered[own_codec]


@pytest.mark.parametrize(("codec", "package"), [("json", "msgspec"), ("lite3", "pylite3")])
def test_a_missing_package_is_named(path: Path, codec: str, package: str) -> None:
    """Where a package is not installed, NoCodec says what to install; bytes need none."""
    code = (
        "import sys, penstock\n"
        f"sys.modules[{package!r}] = None\n"
        "log = penstock.open(sys.argv[1])\n"
        "log.append(b'x')\n"
        f"try: log.append([1], codec={codec!r})\n"
        "except penstock.NoCodec as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    assert f"needs the package {package}" in done.stdout
    assert "pip install" in done.stdout


def test_bytes_import_nothing(path: Path) -> None:
    """A log of bytes is opened, written and read without importing a codec's package."""
    code = (
        "import sys, penstock\n"
        "log = penstock.open(sys.argv[1])\n"
        "log.append(b'x', tags=['t'])\n"
        "assert log[1].data == b'x'\n"
        "assert not {'msgspec', 'pylite3'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)


@pytest.mark.parametrize("codec", CODECS)
def test_a_value_that_does_not_fit_its_codec(path: Path, codec: str) -> None:
    """Bytes that the codec cannot decode are BadData with file and seq; the value is there."""
    with penstock.open(path) as log:
        log.append(b"[1]")
        log.append(forged(path, b"\xc1 no", codec.encode()))
        with pytest.raises(penstock.BadData, match="seq 2") as caught:
            assert log[2].data
        assert (caught.value.seq, caught.value.path) == (2, str(oracle.segment_paths(path)[0]))
        assert log[2].value == b"\xc1 no"
        again = pickle.loads(pickle.dumps(caught.value))
        assert (again.seq, again.path) == (caught.value.seq, caught.value.path)
        with pytest.raises(penstock.BadData, match="seq 2"):
            assert pickle.loads(pickle.dumps(log[2])).data


def test_a_header_that_names_no_codec(log: penstock.Log) -> None:
    """A header may name anything: data is then a typed error, never a crash."""
    for name in (b"", b"\xff", b"nobody", b"x" * 1000):
        seq = log.append(forged(log.path, b"v", name))
        with pytest.raises(penstock.Usage):
            assert log[seq].data
    log.append(forged(log.path, b"v", None))
    assert log[log.last_seq].data == b"v"


@pytest.mark.parametrize("codec", CODECS)
def test_a_schema_checks_what_is_appended(path: Path, codec: str) -> None:
    """With a schema, instances and dicts are checked field by field before anything is written."""
    with penstock.open(path, codec=codec, schema=User) as log:
        log.append(User("ada", 36))
        log.append({"name": "bob"})
        log.extend([User("eve"), {"name": "dan", "age": 4, "more": "left out"}])
        log.load([{"name": "joe"}])
        people = [User("ada", 36), User("bob"), User("eve"), User("dan", 4), User("joe")]
        assert [e.data for e in log] == people
        untyped: Any = "old"
        bad: list[Any] = [User("eve", untyped), {"name": "eve", "age": "old"}]
        for value in bad:
            with pytest.raises(penstock.BadData, match=r"User.*\$\.age"):
                log.append(value)
            with pytest.raises(penstock.BadData, match=r"\$\.age"):
                log.extend([{"name": "x"}, value])
        for value in ({}, 5, None, b"{}"):
            with pytest.raises(penstock.Usage):
                log.append(value)
        assert len(log) == 5
    with penstock.open(path) as log:
        assert plain(log[2].data) == {"name": "bob", "age": 0}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("schema", "given", "data"),
    [
        (Point, {"x": 1}, Point(1, 0)),
        (Point, Point(1, 2), Point(1, 2)),
        (Row, {"x": 1}, {"x": 1}),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (list[User], [User("a"), {"name": "b"}], [User("a"), User("b")]),
        (dict[str, datetime], {"t": datetime(2026, 1, 2, tzinfo=UTC)}, None),
        (dict[str, bytes], {"b": b"\x00\xff"}, {"b": b"\x00\xff"}),
    ],
)
def test_kinds_of_schemas(path: Path, codec: str, schema: Any, given: Any, data: Any) -> None:
    """Structs, dataclasses, typed dicts, containers and times come back as they were."""
    with penstock.open(path, codec=codec, schema=schema) as log:
        log.append(given)
        assert log[1].data == (given if data is None else data)


def test_a_value_that_does_not_fit_the_schema(path: Path) -> None:
    """Reading through a schema that an older event does not fit is BadData with seq and field."""
    with penstock.open(path, codec="json") as log:
        log.append({"name": "ada", "age": "many"})
        log.append({"name": "bob"})
    with penstock.open(path, schema=User) as log:
        with pytest.raises(penstock.BadData, match=r"seq 1 .*User.*\$\.age"):
            assert log[1].data
        assert log[2].data == User("bob")


def test_schemas_belong_to_handles(path: Path) -> None:
    """Two handles of one process decode the same events, each by its own schema."""
    with (
        penstock.open(path, codec="json", schema=User) as one,
        penstock.open(path, schema=Named) as two,
        penstock.open(path, mode="r") as three,
    ):
        one.append(User("ada", 36))
        assert one[1].data == User("ada", 36)
        assert two[1].data == Named("ada")
        assert three[1].data == {"name": "ada", "age": 36}
        assert next(iter(one)).data == User("ada", 36)
        two.append({"name": "bob"})
        with pytest.raises(penstock.BadData):
            assert one.append({"no": "name"})
        assert [e.data for e in one] == [User("ada", 36), User("bob")]


def test_a_schema_holds_for_other_codecs_too(path: Path) -> None:
    """An event with a codec of its own is checked and decoded by the schema all the same."""
    with penstock.open(path, codec="json", schema=User) as log:
        log.append(User("ada"), codec="msgpack")
        with pytest.raises(penstock.BadData):
            log.append({"age": 1}, codec="msgpack")
        log.append(b"raw", codec="bytes")
        assert [e.data for e in log] == [User("ada"), b"raw"]


def test_a_schema_needs_objects(path: Path) -> None:
    """A schema for bytes, or one that msgspec cannot take, is a wrong call and leaves no handle."""
    with pytest.raises(penstock.Usage, match="codec"):
        penstock.open(path, schema=User)
    with pytest.raises(penstock.Usage, match="codec"):
        penstock.open(path, codec="bytes", schema=User)
    assert not path.exists()
    penstock.open(path.with_name("bytes")).close()
    with pytest.raises(penstock.Usage, match="codec"):
        penstock.open(path.with_name("bytes"), schema=User)
    with pytest.raises(penstock.WrongType, match="schema"):
        penstock.open(path, codec="json", schema=5)  # type: ignore[arg-type]
    with pytest.raises(penstock.WrongType, match="schema"):
        penstock.open(path, codec="lite3", schema=5)  # type: ignore[arg-type]


def test_pickles_keep_the_codec(path: Path) -> None:
    """An event that went through pickle decodes without its log, though without its schema."""
    with penstock.open(path, codec="json", schema=User) as log:
        log.append(User("ada"))
        log.append(b"\x93\x01\x02\x03", codec="bytes")
        events = list(log)
    copies = pickle.loads(pickle.dumps(events))
    assert copies == events
    assert [e.data for e in copies] == [{"name": "ada", "age": 0}, b"\x93\x01\x02\x03"]
    assert [e.data for e in pickle.loads(pickle.dumps(copies))] == [e.data for e in copies]


def test_a_child_keeps_codec_and_schema(path: Path) -> None:
    """After a fork the child appends and decodes through the handle that it inherited."""
    with penstock.open(path, codec="json", schema=User) as log:
        log.append(User("ada"))
        pid = os.fork()
        if pid == 0:
            good = log.append({"name": "bob"}) == 2 and log[1].data == User("ada")
            os._exit(0 if good else 1)
        assert os.waitpid(pid, 0)[1] == 0
        assert log[2].data == User("bob")


def test_copies_keep_the_codec(path: Path, tmp_path: Path) -> None:
    """Backup and repair leave the codec as it was."""
    with penstock.open(path, codec="json", segment_size="64KiB") as log:
        log.append([1])
        log.steward.roll()
        log.append([2], tags=["t"])
        log.backup(tmp_path / "backup")
        log.repair(to=tmp_path / "repaired")
    for name in ("backup", "repaired"):
        with penstock.open(tmp_path / name, codec="json") as log:
            assert [e.data for e in log] == [[1], [2]]
            assert log[2].tags == ("t",)


@pytest.mark.parametrize("version", [v for v in VERSIONS if "-" not in v])
def test_old_logs_are_logs_of_bytes(version: str, path: Path) -> None:
    """A log that was written before there were codecs has the codec bytes."""
    unpack(version, path)
    with penstock.open(path, codec="bytes") as log:
        assert log.settings.codec == "bytes"
        assert log[1].data == log[1].value == b"first"
        log.append({"a": 1}, codec="json")
        assert log[log.last_seq].data == {"a": 1}


@pytest.mark.parametrize("codec", CODECS)
def test_documents(path: Path, codec: str) -> None:
    """Documents get their descrips when they are appended and must have them when they are read."""
    with penstock.open(path, codec=codec, schema=Document) as log:
        log.append(document({"x": 1}, ["ping", "eu"]))
        log.append({"data": {"x": [1, {"y": None}]}})
        log.append({"data": {}, "meta": {}})
        log.append({"meta": {"descrips": ["a"]}, "data": {"x": "é"}})
        assert log[1].data == document({"x": 1}, ["ping", "eu"])
        assert [e.data.meta.descrips for e in log] == [["ping", "eu"], [], [], ["a"]]
        bad: list[Any] = [
            {"data": 1},
            {"data": [1]},
            {"data": None},
            {"meta": {"descrips": []}},
            {"data": {}, "meta": {"descrips": "ping"}},
            {"data": {}, "meta": {"descrips": [1]}},
            {"data": {}, "meta": None},
            {"data": {}, "more": 1},
            [],
        ]
        for value in bad:
            with pytest.raises(penstock.BadData) as caught:
                log.append(value)
            assert isinstance(caught.value, penstock.Usage)
        assert len(log) == 4
    with penstock.open(path) as log:
        assert plain(log[2].data) == {"data": {"x": [1, {"y": None}]}, "meta": {"descrips": []}}
        log.append({"data": {}})
        log.append({"data": {}, "meta": {}})
    with penstock.open(path, schema=Document) as log:
        for seq in (5, 6):
            with pytest.raises(penstock.BadData, match=f"seq {seq}"):
                assert log[seq].data
