"""What is stored is what was given: no text as bytes, no NaN as null, nothing in its place."""

from __future__ import annotations

import array
import ctypes
import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock import Entry


class Text(str):
    """Text of a class of its own."""


@pytest.fixture(params=["log", "ring"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[penstock.Log]:
    """A log of bytes, of either kind."""
    options: dict[str, Any] = {"ring": "4MiB"} if request.param == "ring" else {}
    name = "a.ring" if request.param == "ring" else "a"
    with penstock.create(tmp_path / name, **options) as opened:
        yield opened


@pytest.mark.parametrize("text", ["x", np.str_("x"), Text("x")], ids=["str", "numpy", "subclass"])
def test_text_is_never_bytes(log: penstock.Log, text: Any) -> None:
    """Text in any guise is refused where bytes are needed, with the advice to encode it."""
    calls: list[Callable[[], Any]] = [
        lambda: log.append(text),
        lambda: log.extend([text]),
        lambda: log.load(iter([text])),
        lambda: log.append(Entry(text)),
        lambda: log.append(b"", key=text),
        lambda: log.extend([Entry(b"", key=text)]),
    ]
    for call in calls:
        with pytest.raises(penstock.WrongType, match=r"must be bytes, got .*encode it first"):
            call()
    assert len(log) == 0


@pytest.mark.parametrize("number", [np.float64(1.5), np.int64(3), np.bool_(True), np.array(7)])
def test_a_number_is_not_a_buffer(log: penstock.Log, number: Any) -> None:
    """A buffer without dimensions, such as a numpy scalar, is refused: its memory is no value."""
    calls: list[Callable[[], Any]] = [
        lambda: log.append(number),
        lambda: log.extend([b"", number]),
        lambda: log.load([number]),
        lambda: log.append(b"", key=number),
    ]
    for call in calls:
        with pytest.raises(penstock.WrongType, match="must be bytes, got"):
            call()
    assert len(log) == 0


class Pointers(ctypes.Structure):
    """A structure that refers to other memory."""

    _fields_: ClassVar = [("length", ctypes.c_int), ("start", ctypes.c_void_p)]


class Words(ctypes.Structure):
    """A structure with text in it."""

    _fields_: ClassVar = [("length", ctypes.c_int), ("word", ctypes.c_wchar * 4)]


TEXTS: Any = np.array(["a", "b"])
OBJECTS: Any = ctypes.py_object * 1
BUFFERS_WITHOUT_VALUES: dict[str, Any] = {
    "array of text": TEXTS,
    "array.array of text": array.array("u", "ab"),
    "ctypes text": ctypes.create_unicode_buffer("ab"),
    "view of text": memoryview(TEXTS),
    "field of text": np.zeros(2, [("a", "i4"), ("b", "U3")]),
    "structures of text": (Words * 2)(),
    "array of objects": np.array([object(), None]),
    "field of objects": np.zeros(2, [("a", "i4"), ("b", "O")]),
    "ctypes objects": OBJECTS(5),
    "pointers": (ctypes.c_void_p * 1)(5),
    "pointers to bytes": (ctypes.c_char_p * 1)(b"x"),
    "pointers to text": (ctypes.c_wchar_p * 1)("x"),
    "structures with pointers": (Pointers * 2)(),
}


@pytest.mark.parametrize("name", BUFFERS_WITHOUT_VALUES)
def test_a_buffer_of_text_or_addresses_is_not_bytes(log: penstock.Log, name: str) -> None:
    """A buffer of characters is text, and one of references holds addresses: both are refused."""
    given = BUFFERS_WITHOUT_VALUES[name]
    calls: list[Callable[[], Any]] = [
        lambda: log.append(given),
        lambda: log.extend([b"", given]),
        lambda: log.load([given]),
        lambda: log.append(b"", key=given),
        lambda: log.append(b"", headers={"a": memoryview(given)}),
        lambda: log.read(key=given),
    ]
    for call in calls:
        with pytest.raises(penstock.WrongType, match=r"must be bytes, got .* of .*encode it first"):
            call()
    assert len(log) == 0


def test_a_header_without_dimensions_is_refused(log: penstock.Log) -> None:
    """A header's value follows the same rule: a buffer without dimensions is one number."""
    with pytest.raises(penstock.WrongType, match="one number"):
        log.append(b"", headers={"a": memoryview(b"x").cast("B", ())})
    assert len(log) == 0


def test_buffers_of_numbers_are_bytes(log: penstock.Log) -> None:
    """Numbers of any width are their bytes; a field may have any name, also that of a type."""
    numbers: list[Any] = [
        np.array([1.5, 2.5]),
        np.array([1 + 2j]),
        np.zeros(2, [("Ow", "i4"), ("u", "f8")]),
        array.array("q", [1, 2]),
        memoryview(b"abcd").cast("I"),
        (ctypes.c_int * 2)(1, 2),
    ]
    for value in numbers:
        seq = log.append(value)
        assert log[seq].value == memoryview(value).tobytes()


def test_buffers_are_bytes(log: penstock.Log) -> None:
    """Any buffer of one dimension or more is its bytes, and so is numpy's own type of bytes."""
    for value in (bytearray(b"12"), memoryview(b"12"), np.array([49, 50], "u1"), np.bytes_(b"12")):
        log.append(value)
        log.extend([value])
        log.load([value])
    assert {event.value for event in log} == {b"12"}


@pytest.mark.parametrize("codec", ["json", "msgpack"])
def test_only_bytes_are_encoded_already(tmp_path: Path, codec: str) -> None:
    """In a log with a codec, whatever is not bytes goes to the codec, which may refuse it."""
    encoded = msgspec.json.encode([1]) if codec == "json" else msgspec.msgpack.encode([1])
    with penstock.create(tmp_path / "a", codec=codec) as log:
        for odd in (np.array([49, 50], "u1"), np.float64(1.5), np.str_("x"), np.int64(1)):
            for call in (log.append, lambda value: log.extend([value])):
                with pytest.raises(penstock.BadData, match="nothing was written"):
                    call(odd)
        log.append(encoded)
        log.append(np.bytes_(encoded))
        log.append(bytearray(encoded))
        as_object = msgspec.msgpack.decode(msgspec.msgpack.encode(bytearray(encoded)))
        assert [event.data for event in log.read(1, 3)] == [[1], [1]]
        if codec == "msgpack":
            assert log[3].data == as_object


def test_a_seq_is_anything_that_is_a_whole_number(log: penstock.Log) -> None:
    """``np.int64`` and anything else with ``__index__`` is a seq or a number; a bool is not."""

    class One:
        def __index__(self) -> int:
            return 1

    log.append(b"a", expect=np.int64(0))
    log.extend([b"b"], expect=One())
    log.load([b"c"], expect=np.uint8(2))
    assert log[np.int64(1)].value == log[One()].value == b"a"
    log.append(b"p", producer=("p", np.int64(7)))  # type: ignore[arg-type]
    assert log.append(b"p", producer=("p", 7)) == 4
    odd: Any
    for odd in (True, np.bool_(True), 1.0, "1", None):
        with pytest.raises(penstock.WrongType, match=r"whole number.*got"):
            log[odd]
        with pytest.raises(penstock.WrongType, match=r"whole number.*got"):
            log.append(b"x", producer=("p", odd))
        if odd is not None:
            with pytest.raises(penstock.WrongType, match=r"whole number.*got"):
                log.append(b"x", expect=odd)
    assert log[np.int64(-1)].value == b"p"  # only here a number counts from the end
    with pytest.raises(penstock.Usage, match="got -1"):
        log.read(-1)


class Size(enum.Enum):
    """An enum with a value that JSON cannot hold."""

    ENDLESS = float("inf")


class Struct(msgspec.Struct):
    """A value with a number."""

    total: float | None = None


@dataclass
class Data:
    """A value with a number."""

    total: float


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_json_has_no_nan(tmp_path: Path, bad: float) -> None:
    """NaN and infinity in a log of JSON are refused, and the error says where they are."""
    shapes: list[tuple[Any, str]] = [
        (bad, "`$`"),
        ({"a": None, "b": [1, {"total": bad}]}, r"`\$\.b\[1\]\.total`"),
        ((1, bad), r"`\$\[1\]`"),
        (Struct(bad), r"`\$\.total`"),
        ([Data(bad)], r"`\$\[0\]\.total`"),
        ({"size": Size.ENDLESS}, r"`\$\.size`"),
    ]
    with penstock.create(tmp_path / "a", codec="json") as log:
        for value, where in shapes:
            calls: list[Callable[[Any], Any]] = [
                log.append,
                lambda v: log.append(v, key=b"k"),
                lambda v: log.extend([{"ok": None}, v]),
                lambda v: log.extend([Entry(v)]),
                lambda v: log.load([v]),
            ]
            for call in calls:
                with pytest.raises(penstock.BadData, match=where.replace("`$`", r"`\$`")):
                    call(value)
        assert len(log) == 0
        log.append({"null": None, "text": "null NaN", "number": 1.5})
        assert log[1].data == {"null": None, "text": "null NaN", "number": 1.5}


def test_nan_can_be_null(tmp_path: Path) -> None:
    """``nan="null"`` stores null for NaN, for one handle; other codecs keep the number."""
    nan = float("nan")
    with penstock.open(tmp_path / "a", codec="json", nan="null") as log:
        log.append({"a": nan})
        log.extend([[nan]])
        log.append([nan], codec="msgpack")
        assert [log[1].data, log[2].data] == [{"a": None}, [None]]
        assert str(log[3].data) == "[nan]"
    with penstock.open(tmp_path / "a") as log, pytest.raises(penstock.BadData, match="nan='null'"):
        log.append({"a": nan})
    with pytest.raises(penstock.Usage, match="nan must be 'raise' or 'null', got 'drop'"):
        penstock.open(tmp_path / "a", nan="drop")  # type: ignore[arg-type]
    with pytest.raises(penstock.Usage, match="nan='null' needs mode='rw'"):
        penstock.open(tmp_path / "a", "r", nan="null")


def test_a_schema_lets_no_nan_through(tmp_path: Path) -> None:
    """A number that may be None is not made None because it is NaN."""
    with penstock.create(tmp_path / "a", codec="json", schema=Struct) as log:
        for value in ({"total": float("nan")}, Struct(float("nan"))):
            with pytest.raises(penstock.BadData, match=r"nan at `\$\.total`"):
                log.append(value)
        log.append({"total": None})
        assert len(log) == 1


@pytest.mark.parametrize("name", ["penstock.tag", "penstock.codec", "penstock.", "penstock.new"])
def test_names_of_our_own_are_refused(log: penstock.Log, name: str) -> None:
    """A header whose name begins with ``penstock.`` cannot be given by a user."""
    calls: list[Callable[[Any], Any]] = [
        lambda headers: log.append(b"", headers=headers),
        lambda headers: log.extend([b""], headers=headers),
        lambda headers: log.extend([Entry(b"", headers=headers)]),
        lambda headers: log.load([b""], headers=headers),
        lambda headers: log.load([Entry(b"", headers=headers)]),
        lambda headers: log.extend(pa.table({"value": [b""]}), headers=headers),
    ]
    headers: Any
    for call in calls:
        for headers in ({name: b"x"}, [(name, None)]):
            with pytest.raises(penstock.Usage, match=r"must not begin with 'penstock\."):
                call(headers)
    assert len(log) == 0
    log.append(b"", headers={"penstock": b"", "Penstock.x": b""})


def test_names_of_our_own_in_columns(log: penstock.Log) -> None:
    """Headers in Arrow data may hold tags and codecs, as a scan has them, and no other such."""
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    bad = [
        ("penstock.new", b"x"),
        ("penstock.", b"x"),
        ("penstock.tag", b""),
        ("penstock.tag", b"\xff"),
        ("penstock.tag", None),
        ("penstock.codec", b"no name"),
        ("penstock.codec", None),
    ]
    for name, value in bad:
        rows = [[], [{"key": name, "value": value}]]
        table = pa.table({"value": [b"", b""], "headers": pa.array(rows, kind)})
        for call in (log.extend, log.load):
            with pytest.raises(penstock.Usage, match=r"row 1: .*penstock"):
                call(table)
    assert len(log) == 0


def test_one_bytearray_again_and_again(log: penstock.Log) -> None:
    """A generator may fill the same memory for each value: each is stored as it was yielded."""
    memory = bytearray(4)

    def values() -> Iterator[Any]:
        for i in range(300):
            memory[:] = b"%04d" % i
            yield (memory, memoryview(memory), Entry(memory, key=memory, headers={"h": memory}))[
                i % 3
            ]

    expected = [b"%04d" % i for i in range(300)]
    log.extend(values())
    log.load(values())
    assert [event.value for event in log] == 2 * expected
    assert [event.key for event in log.read(3, 301)][::3] == expected[2::3]
    assert dict(log[300].headers)["h"] == b"0299"


def test_one_bytearray_of_several_bytes_values(log: penstock.Log) -> None:
    """That holds as well where most values are bytes, and for numpy arrays."""
    array = np.zeros(2, "u1")

    def values() -> Iterator[Any]:
        for i in range(100):
            yield b"bytes"
            array[:] = i
            yield array

    log.extend(values())
    assert [event.value for event in log.read(2)][::2] == [bytes([i, i]) for i in range(100)]


@pytest.mark.parametrize("far", [1 << 63, (1 << 64) - 1])
def test_no_time_beyond_what_columns_hold(log: penstock.Log, far: int) -> None:
    """No event time above 2**63 - 1 nanoseconds is stored, however it is given."""
    seconds = pa.array([0, (1 << 63) // 10**9 + 1], pa.timestamp("s", "UTC"))
    calls: list[Callable[[], Any]] = [
        lambda: log.append(b"", time=far),
        lambda: log.extend([b""], time=far),
        lambda: log.extend([Entry(b"", time=far)]),
        lambda: log.load([Entry(b"", time=far)]),
        lambda: log.extend(pa.table({"value": [b"", b""], "time": seconds})),
        lambda: log.load(pa.table({"value": [b"", b""], "time": seconds})),
    ]
    for call in calls:
        with pytest.raises(penstock.Usage):
            call()
    assert len(log) == 0
    log.extend(pa.table({"value": [b""], "time": pa.array([(1 << 63) - 1], pa.int64())}))
    assert log.scan().to_arrow().num_rows == 1


@pytest.mark.parametrize("now", [1_780_000_000, 1_780_000_000_000, 1_780_000_000_000_000])
def test_columns_of_seconds_are_not_nanoseconds(log: penstock.Log, now: int) -> None:
    """Whole numbers that look like s, ms or us are refused; a timestamp says its unit."""
    table = pa.table({"value": [b"", b""], "time": pa.array([1, now], pa.int64())})
    for call in (log.extend, log.load):
        with pytest.raises(penstock.Usage, match=r"row 1: .*must be nanoseconds"):
            call(table)
    unit = {10: "s", 13: "ms", 16: "us"}[len(str(now))]
    log.extend(table.set_column(1, "time", table["time"].cast(pa.timestamp(unit))))
    assert log[2].time.year == 2026


def test_errors_name_the_item(log: penstock.Log, tmp_path: Path) -> None:
    """An error of a bulk call says which item it is about, also far into a load."""
    bad: list[tuple[Any, str]] = [
        ("text", "item 3: value must be bytes, got str; encode it first"),
        (Entry(b"", topic=1), "item 3: topic must be str, got int"),  # type: ignore[arg-type]
        (Entry(None), "item 3: an event with the value None must have a key"),
        (Entry(b"", headers={"penstock.x": b""}), "item 3: header 'penstock.x'"),
        (Entry(b"", tags=[""]), "item 3: a tag must not be empty"),
        (Entry(b"", time="noon"), "item 3: "),
    ]
    for item, words in bad:
        calls: list[Callable[[Any], Any]] = [
            log.extend,
            lambda items: log.extend(iter(items)),
            log.load,
        ]
        for call in calls:
            with pytest.raises(penstock.Usage, match=words):
                call([b"0", b"1", b"2", item])
    with pytest.raises(penstock.WrongType, match=r"^item 30000: value must be bytes, got int"):
        log.load([b"x"] * 30_000 + [1])
    assert len(log) == 0
    with penstock.create(tmp_path / "json", codec="json") as objects:
        for call in (objects.extend, objects.load):
            with pytest.raises(penstock.BadData, match=r"^item 1: ") as caught:
                call([{}, object()])
            assert caught.value.path == objects.path


def test_an_event_that_fits_no_segment_is_named(tmp_path: Path) -> None:
    """A load says which of its events is too large for a segment, wherever it is."""
    with penstock.create(tmp_path / "a", segment_size="64KiB") as small:
        large = bytes(100_000)
        for before in (0, 1, 7, 3000):
            values = [*[b"x" * 100] * before, large, b"y"]
            for given in (values, iter(values), [Entry(v, key=b"k") for v in values]):
                with pytest.raises(penstock.TooLarge, match=rf"^item {before}: .*segment_size"):
                    small.load(given)
        assert len(small) == 0


def test_an_error_of_the_generator_is_its_own(log: penstock.Log) -> None:
    """What a generator raises goes to the caller as it is, and nothing is written."""

    def values() -> Iterator[bytes]:
        yield b"1"
        raise penstock.Gap("of another log")

    for call in (log.extend, log.load):
        with pytest.raises(penstock.Gap, match=r"^of another log"):
            call(values())
    assert len(log) == 0


def test_hints_at_what_was_meant(log: penstock.Log, tmp_path: Path) -> None:
    """One value for a bulk call, a tuple or an object for bytes: the error says what to do."""
    log.append(b"1", key=b"k")
    one: Any
    for one in (b"abc", bytearray(b"abc"), "abc", {"a": 1}, Entry(b"1", b"k"), log[1]):
        for call in (log.extend, log.load):
            with pytest.raises(penstock.WrongType, match=r"needs many values.*use append"):
                call(one)
    with pytest.raises(penstock.WrongType, match="codec='json'"):
        log.extend({"a": 1})
    hints: list[tuple[Any, str]] = [
        ((b"value", b"key"), r"item 0: .*got tuple; .*penstock.Entry\(value, key=..., topic=...\)"),
        ({"a": 1}, "item 0: .*got dict; .*codec='json'"),
        (Entry(log[1]), "item 0: .*got Event; give the event itself"),
    ]
    for item, words in hints:
        for call in (log.extend, log.load):
            with pytest.raises(penstock.WrongType, match=words):
                call([item])
    with pytest.raises(penstock.WrongType, match=r"got tuple; .*penstock.Entry"):
        log.append((b"value", b"key"))
    with pytest.raises(penstock.WrongType, match="needs many values, such as a list, or a table"):
        log.extend(7)  # type: ignore[arg-type]
    with pytest.raises(penstock.WrongType, match=r"needs many values, .* got type"):
        log.extend(Entry)  # type: ignore[arg-type]
    assert len(log) == 1
    with penstock.create(tmp_path / "json", codec="json") as objects:
        objects.extend([(1, 2), {"a": 1}])
        assert [event.data for event in objects] == [[1, 2], {"a": 1}]


def test_producers_of_one_handle_and_of_others(log: penstock.Log, tmp_path: Path) -> None:
    """However many producers take turns, in one handle or two, each number is appended once."""
    with penstock.open(log.path) as other:
        for n in range(300):
            for who in ("a", "b", "c"):
                seq = log.append(b"%d" % n, producer=(who, n))
                if n % 7 == 0:
                    assert other.append(b"again", producer=(who, n)) == seq
                    assert other.append(b"other", producer=("other", n * 3 + ord(who))) > seq
                if n % 11 == 0:
                    assert log.append(b"again", producer=(who, n)) == seq
                if n % 50 == 0 and n:
                    with pytest.raises(penstock.Conflict):
                        log.append(b"late", producer=(who, n - 1))
    with penstock.open(log.path) as again:
        for who in ("a", "b", "c"):
            with pytest.raises(penstock.Conflict):
                again.append(b"late", producer=(who, 298))
            assert again.append(b"x", producer=(who, 299)) <= log.last_seq
    values = [event.value for event in log if event.value not in (b"again", b"other")]
    assert values == [b"%d" % n for n in range(300) for _ in range(3)]


def test_producers_across_segments(tmp_path: Path) -> None:
    """What a handle remembers of its producers stays right from one segment to the next."""
    with penstock.create(tmp_path / "a", segment_size="64KiB") as log:
        for n in range(3000):
            log.append(bytes(30), producer=("a", n))
            if n % 100 == 0:
                log.append(bytes(30), producer=("b", n))
                assert log.append(bytes(30), producer=("a", n)) == log.last_seq - 1
        assert log.last_seq == 3030
        assert len(list((tmp_path / "a").glob("*.seg"))) > 3
    with penstock.open(tmp_path / "a") as log:
        assert log.append(b"", producer=("a", 2999)) == 3030
        with pytest.raises(penstock.Conflict):
            log.append(b"", producer=("b", 2800))


class Named(Entry):
    """An entry of a class of its own."""


def test_a_list_of_everything_in_a_log_of_json(tmp_path: Path) -> None:
    """Objects, bytes, entries, events and deletions in one list are each stored as themselves."""
    with penstock.create(tmp_path / "a", codec="json") as log:
        log.append({"first": 1})
        items: list[Any] = [
            {"n": 1},
            b'{"n": 2}',
            Entry({"n": 3}, key=b"3"),
            Named({"n": 4}, topic="4"),
            log[1],
            Entry(None, key=b"5"),
            Entry(b" 6 ", key=b"6"),
            "text\nof two lines, null",
            [None, 1.5],
            {"raw": msgspec.Raw(b"[1,\n2]")},
            {"n": 7},
        ]
        expected = [
            *({"n": 1}, {"n": 2}, {"n": 3}, {"n": 4}, {"first": 1}, None, 6),
            *("text\nof two lines, null", [None, 1.5], {"raw": [1, 2]}, {"n": 7}),
        ]
        log.extend(items)
        log.extend([item for item in items if not (type(item) is dict and "raw" in item)])
        log.load(items)
        found = [event.data for event in log.read(2)]
        without = [data for data in expected if data != {"raw": [1, 2]}]
        assert found == [*expected, *without, *expected]
        assert (log[4].key, log[5].topic, log[7].deletes) == (b"3", "4", True)
