"""Arrow data of any make is appended as its rows say, all of it or nothing."""

from __future__ import annotations

import ctypes
import datetime as dt
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import errors
from penstock import layout as L

Row = tuple[Any, ...]


@pytest.fixture
def log(path: Path) -> Iterator[penstock.Log]:
    """An empty log."""
    with penstock.open(path) as log:
        yield log


def rows(log: penstock.Log, start: int = 1) -> list[Row]:
    """Value, key, topic, given time and headers of each event."""
    return [
        (e.value, e.key, e.topic, e.time_ns if e.time_ns != e.append_ns else None, e.headers)
        for e in log.read(start)
    ]


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@settings(deadline=None, max_examples=60)
@given(
    wanted=st.lists(
        st.tuples(
            st.none() | st.binary(max_size=200),
            st.none() | st.binary(max_size=20),
            st.text(max_size=20),
            st.none() | st.integers(0, (1 << 63) - 1),
            st.lists(st.tuples(st.text(max_size=9), st.none() | st.binary(max_size=9)), max_size=3),
        ),
        max_size=60,
    ),
    cuts=st.lists(st.integers(0, 60), max_size=4),
    large=st.booleans(),
    load=st.booleans(),
)
def test_equals_the_rows(
    tmp_path_factory: pytest.TempPathFactory,
    wanted: list[Row],
    cuts: list[int],
    large: bool,
    load: bool,
) -> None:
    """Whatever the rows are, and however they are cut into chunks, the log has them in order."""
    wanted = [(b"" if v is None and k is None else v, k, *rest) for v, k, *rest in wanted]
    table = pa.table(
        {
            "value": pa.array([w[0] for w in wanted], pa.large_binary() if large else pa.binary()),
            "key": pa.array([w[1] for w in wanted], pa.binary()),
            "topic": pa.array([w[2] for w in wanted], pa.large_string() if large else pa.string()),
            "time": pa.array([w[3] for w in wanted], pa.timestamp("ns")),
            "headers": pa.array(
                [[{"key": k, "value": v} for k, v in w[4]] for w in wanted], HEADERS
            ),
        }
    )
    edges = sorted({0, len(wanted), *(c for c in cuts if c < len(wanted))})
    pieces = [table.slice(a, b - a) for a, b in itertools.pairwise(edges)]
    table = pa.concat_tables(pieces) if pieces else table
    with penstock.open(tmp_path_factory.mktemp("intake") / "log") as log:
        log.append(b"before")
        seqs = log.load(table) if load else log.extend(table)
        assert seqs == range(2, 2 + len(wanted))
        assert rows(log, 2) == [(*w[:4], tuple(w[4])) for w in wanted]
        if not load and wanted:
            assert [e.batch_left for e in log.read(2)] == list(reversed(range(len(wanted))))


def test_what_a_scan_gives(log: penstock.Log, tmp_path: Path) -> None:
    """A scan of one log goes into another as it is, but for seq and append time."""
    for i in range(3000):
        log.append(
            b"v%d" % i if i % 7 else None,
            key=None if i % 7 and i % 2 else b"k%d" % i,
            topic=f"t{i % 3}",
            headers=[("a", b"1"), ("a", None)][: i % 3],
            time=i,
        )
    for take in ("extend", "load"):
        with penstock.open(tmp_path / take, segment_size="64KiB") as other:
            if take == "extend":
                for batch in log.scan(batch_rows=200).to_batches():
                    other.extend(batch)
            else:
                other.load(log.scan(batch_rows=200))
            assert rows(other) == rows(log)


MAKES: dict[str, Any] = {
    "binary": lambda v: pa.array(v, pa.binary()),
    "large binary": lambda v: pa.array(v, pa.large_binary()),
    "binary view": lambda v: pa.array(v, pa.binary_view()),
    "string": lambda v: pa.array([x.decode() for x in v], pa.string()),
    "large string": lambda v: pa.array([x.decode() for x in v], pa.large_string()),
    "string view": lambda v: pa.array([x.decode() for x in v], pa.string_view()),
    "fixed size": lambda v: pa.array([x[:3] for x in v], pa.binary(3)),
    "dictionary": lambda v: pa.array(v, pa.binary()).dictionary_encode(),
    "dictionary of int8": lambda v: pa.DictionaryArray.from_arrays(
        pa.array([i % 3 for i in range(len(v))], pa.int8()), pa.array(v[:3], pa.binary())
    ),
    "dictionary of uint64": lambda v: pa.DictionaryArray.from_arrays(
        pa.array([i % 3 for i in range(len(v))], pa.uint64()), pa.array(v[:3], pa.string())
    ),
}


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("cut", [0, 5])
def test_every_layout_of_bytes(log: penstock.Log, make: str, cut: int) -> None:
    """Bytes and text of every layout, whole and sliced, for value, key and topic."""
    source = [b"abc" + b"x" * (i % 40) for i in range(30)]
    array = MAKES[make](source).slice(cut)
    wanted = [v.encode() if isinstance(v, str) else v for v in array.to_pylist()]
    log.extend(array)
    log.extend(pa.record_batch({"value": array, "key": array, "topic": array}))
    assert [e.value for e in log.read(1, len(wanted) + 1)] == wanted
    late = list(log.read(len(wanted) + 1))
    assert [(e.value, e.key, e.topic.encode()) for e in late] == [(w, w, w) for w in wanted]


@pytest.mark.parametrize(
    ("kind", "step"),
    [("s", 10**9), ("ms", 10**6), ("us", 1000), ("ns", 1)],
)
def test_every_unit_of_time(log: penstock.Log, kind: str, step: int) -> None:
    """Timestamps of any unit and zone, with nulls, which take the time of the append."""
    times = pa.array([0, 5, None, 77], pa.timestamp(kind, "Europe/Berlin"))
    log.extend(pa.table({"value": [b"a"] * 4, "when": times}), time="when")
    assert [r[3] for r in rows(log)] == [0, 5 * step, None, 77 * step]
    log.extend(pa.table({"value": [b"a"], "when": pa.array([9], pa.int64())}), time="when")
    assert log[5].time_ns == 9


def test_headers_as_maps_and_lists(log: penstock.Log) -> None:
    """Headers come as a list of pairs or as a map, of any kind of text, sliced, null or empty."""
    pairs = [[("a", b"1"), ("b", None)], [], None, [("ü", b"")]]
    for kind in (
        pa.map_(pa.string(), pa.binary()),
        pa.list_(pa.struct([("name", pa.large_string()), ("data", pa.large_binary())])),
        pa.large_list(pa.struct([("k", pa.string()), ("v", pa.string())])),
    ):
        given_ = (
            pairs
            if pa.types.is_map(kind)
            else [
                None
                if p is None
                else [dict(zip([f.name for f in kind.value_type], kv, strict=True)) for kv in p]
                for p in pairs
            ]
        )
        array = pa.array([given_[0], *given_], kind).slice(1)
        first = log.extend(pa.table({"value": [b"x"] * 4, "meta": array}), headers="meta")[0]
        assert [e.headers for e in log.read(first)] == [
            (("a", b"1"), ("b", None)),
            (),
            (),
            (("ü", b""),),
        ]


def test_a_struct_that_is_sliced(log: penstock.Log) -> None:
    """The offset of a struct holds for its children."""
    struct = pa.array([{"value": b"%d" % i, "key": b"k%d" % i} for i in range(10)])
    log.extend(struct.slice(4, 3))
    assert [(e.value, e.key) for e in log] == [(b"%d" % i, b"k%d" % i) for i in (4, 5, 6)]


def test_frames_of_others(log: penstock.Log) -> None:
    """polars and pandas frames, and a stream of batches, are taken as they are."""
    log.extend(pl.DataFrame({"value": ["a", "b"], "topic": ["t", None], "other": [1, 2]}))
    log.extend(pd.DataFrame({"value": [b"c"], "key": ["k"], "topic": pd.Categorical(["cat"])}))
    log.extend(pl.Series([b"d"]))
    batches = [pa.record_batch({"value": [b"e"]}), pa.record_batch({"value": [b"f"]})]
    log.extend(pa.RecordBatchReader.from_batches(batches[0].schema, iter(batches)))
    assert [(e.value, e.key, e.topic) for e in log] == [
        (b"a", None, "t"),
        (b"b", None, ""),
        (b"c", b"k", "cat"),
        (b"d", None, ""),
        (b"e", None, ""),
        (b"f", None, ""),
    ]


def test_columns_and_constants(log: penstock.Log) -> None:
    """Names choose columns; what is no column holds for all rows."""
    table = pa.table({"body": [b"1", b"2"], "user": ["u", None], "kind": ["x", "y"]})
    log.extend(table, value="body", key="user", topic="kind")
    log.extend(
        table, value="body", key=b"const", topic="all", headers={"h": b"1"}, time="2026-11-01"
    )
    assert rows(log, 1)[:2] == [(b"1", b"u", "x", None, ()), (b"2", None, "y", None, ())]
    when = int(dt.datetime(2026, 11, 1, tzinfo=dt.UTC).timestamp()) * 10**9
    assert rows(log, 3) == [(v, b"const", "all", when, (("h", b"1"),)) for v in (b"1", b"2")]
    one = log.extend(pa.table({"whatever": [b"3"]}))
    assert log[one[0]].value == b"3"


@pytest.mark.parametrize(
    ("table", "options", "kind", "words"),
    [
        (
            {"a": [b"1"], "b": [b"2"]},
            {},
            errors.Usage,
            r"value= must be one of the columns 'a', 'b', got None",
        ),
        (
            {"a": [b"1"]},
            {"value": "z"},
            errors.Usage,
            "value= must be one of the columns 'a', got 'z'",
        ),
        (
            {"value": [b"1"]},
            {"key": "z"},
            errors.Usage,
            "key= must be one of the columns 'value', got 'z'",
        ),
        (
            {"value": [b"1"]},
            {"headers": "z"},
            errors.Usage,
            "headers= must be one of the columns 'value', got 'z'",
        ),
        ({"value": [b"1"]}, {"time": "z"}, errors.Usage, "'z' must be a column"),
        ({"value": [1]}, {}, errors.Usage, "'value' cannot be the value: it is neither text"),
        ({"value": [{"a": 1}]}, {}, errors.Usage, "neither text nor bytes"),
        ({"value": [b"1"], "key": [1]}, {}, errors.Usage, "'key' cannot be the key"),
        ({"value": [b"1"], "time": ["now"]}, {}, errors.Usage, "'time' cannot be the time"),
        ({"value": [b"1"], "headers": ["x"]}, {}, errors.Usage, "'headers' cannot be the headers"),
        ({"value": [b"1", None]}, {}, errors.Usage, "row 1: its value is null and it has no key"),
        ({"value": [b"1"], "key": [b"k" * 1025]}, {}, errors.TooLarge, "row 0: its key is longer"),
        ({"value": [b"1"], "topic": ["t" * 1025]}, {}, errors.TooLarge, "row 0: its topic"),
        ({"value": [b"1"], "topic": [b"\xff"]}, {}, errors.Usage, "row 0: .*not UTF-8"),
        (
            {"value": [b"1"] * 3, "time": pa.array([1, 2, -1], pa.timestamp("us"))},
            {},
            errors.Usage,
            "row 2: its time must be from 1970-01-01",
        ),
        (
            {"value": [b"1"], "time": pa.array([1 << 62], pa.timestamp("s"))},
            {},
            errors.Usage,
            "to 2262-04-11",
        ),
        (
            {"value": [b"1"], "headers": pa.array([[{"k": "a", "v": b"x" * 65535}]])},
            {},
            errors.TooLarge,
            "row 0: its headers take more",
        ),
        (
            {"value": [b"1"], "headers": pa.array([[{"k": None, "v": b"x"}]], HEADERS)},
            {},
            errors.Usage,
            "a header has no name",
        ),
        ({"value": [b"1"], "topic": ["a"]}, {"topic": 7}, errors.WrongType, "topic must be str"),
    ],
)
@pytest.mark.parametrize("take", ["extend", "load"])
def test_what_cannot_be_taken(
    log: penstock.Log,
    table: dict[str, Any],
    options: dict[str, Any],
    kind: type[Exception],
    words: str,
    take: str,
) -> None:
    """A column or row that is not fit raises an error that names it, and nothing is written."""
    with pytest.raises(kind, match=words):
        getattr(log, take)(pa.table(table), **options)
    assert log.last_seq == 0


def test_value_is_for_arrow_data(log: penstock.Log) -> None:
    """value= with a list is a mistake; so is value= with one bare array."""
    for values in ([b"a"], pa.array([b"a"])):
        for take in (log.extend, log.load):
            with pytest.raises(errors.Usage, match="value= names a column"):
                take(values, value="x")


def test_none_at_all(log: penstock.Log) -> None:
    """No rows append nothing."""
    empty = pa.table({"value": pa.array([], pa.binary())})
    assert log.extend(empty) == range(1, 1) and log.load(empty) == range(1, 1)


def test_more_than_a_segment(path: Path) -> None:
    """extend refuses what no segment takes and says what to do; load takes it as one unit."""
    with penstock.open(path, segment_size="64KiB") as log:
        table = pa.table({"value": [b"%0200d" % i for i in range(2000)], "topic": ["t"] * 2000})
        with pytest.raises(
            errors.TooLarge, match=r"must take at most [0-9]+ bytes, a segment, got"
        ):
            log.extend(table)
        seen: list[int] = []
        seqs = log.load(table, producer=("import", 1), durable=True, progress=seen.append)
        assert seqs == range(1, 2001) and seen[-1] == 2000
        assert log.load(table, producer=("import", 1)) == seqs
        assert [e.value for e in log] == table["value"].to_pylist()
        assert log.stats().segments > 5 and log.verify().ok


def test_terms_hold_for_arrow_too(log: penstock.Log) -> None:
    """expect= and producer= are honoured, and durable= waits."""
    table = pa.table({"value": [b"a", b"b"]})
    assert log.extend(table, producer=("p", 1), durable=True) == range(1, 3)
    assert log.durable_seq == 2
    assert log.extend(table, producer=("p", 1)) == range(1, 3)
    with pytest.raises(errors.Conflict):
        log.extend(table, expect=9)
    assert log.extend(table, expect=2) == range(3, 5)


def test_a_stream_that_fails(log: penstock.Log) -> None:
    """An error of whoever gives the data is told, and nothing is written."""

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"value": [b"a"]})
        raise RuntimeError("the source broke")

    schema = pa.schema([("value", pa.binary())])
    for take in (log.extend, log.load):
        with pytest.raises(errors.Usage, match="the source broke"):
            take(pa.RecordBatchReader.from_batches(schema, batches()))
    assert log.last_seq == 0 and L.FORMAT_VERSION


def test_what_is_null_in_other_ways(log: penstock.Log) -> None:
    """A column of the type null is null in each row; so is a row whose word in a dictionary is."""
    words = pa.DictionaryArray.from_arrays(pa.array([1, 0, 1], pa.int8()), pa.array([b"x", None]))
    nothing = pa.nulls(3)
    log.extend(pa.table({"value": words, "key": [b"k"] * 3, "topic": nothing, "time": nothing}))
    log.load(pa.table({"value": [b"v"] * 3, "key": words, "headers": nothing}))
    empty = pa.array([[]] * 3, pa.list_(pa.null()))
    log.extend(pa.table({"value": nothing, "key": [b"k"] * 3, "headers": empty}))
    assert [(e.value, e.key) for e in log] == [
        *((None, b"k"), (b"x", b"k"), (None, b"k")),
        *((b"v", None), (b"v", b"x"), (b"v", None)),
        *((None, b"k"),) * 3,
    ]
    assert all(e.topic == "" and e.headers == () and e.time_ns == e.append_ns for e in log)
    with pytest.raises(errors.Usage, match="a header has no name"):
        log.extend(pa.table({"value": [b"v"], "headers": pa.array([[None]], pa.list_(pa.null()))}))
    with pytest.raises(errors.Usage, match="row 0: its value is null and it has no key"):
        log.extend(pa.nulls(1))


def test_a_frame_of_pandas_there_and_back(log: penstock.Log, tmp_path: Path) -> None:
    """What to_pandas gives can be appended, though its columns of None have lost their types."""
    log.extend([b"a", b"b"], topic="t")
    with penstock.open(tmp_path / "copy") as copy:
        copy.extend(log.scan().to_pandas())
        assert [e.value for e in copy] == [b"a", b"b"] and copy[2].topic == "t"


def test_a_pair_that_is_null(log: penstock.Log) -> None:
    """A null pair among headers has no name, whatever lies below it."""
    pairs = pa.StructArray.from_arrays(
        [pa.array(["hidden", "seen"]), pa.array([b"1", b"2"])],
        names=["key", "value"],
        mask=pa.array([True, False]),
    )
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pairs)
    table = pa.table({"value": [b"a", b"b"], "headers": lists})
    with pytest.raises(errors.Usage, match=r"row 0: .*a header has no name"):
        log.extend(table)
    log.extend(table.slice(1))
    assert [e.headers for e in log] == [(("seen", b"2"),)]


def test_times_that_are_words_of_a_dictionary(log: penstock.Log) -> None:
    """Places in a dictionary are not taken for nanoseconds."""
    times = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int64()), pa.array([10**18, 10**18]))
    with pytest.raises(errors.Usage, match="'time' cannot be the time"):
        log.extend(pa.table({"value": [b"a", b"b"], "time": times}))


@pytest.mark.parametrize("take", ["extend", "load"])
def test_rows_are_numbered_over_all_batches(path: Path, take: str) -> None:
    """An error names the row of the data as it was given, however it comes in batches."""
    table = pa.table({"value": pa.chunked_array([[b"1"] * 30_000, [b"1"] * 30_000, [b"1", b"{"]])})
    with penstock.open(path, codec="json") as log:
        with pytest.raises(errors.BadData, match=r"^row 60001: "):
            getattr(log, take)(table)
        hurt = pa.table({"value": pa.chunked_array([[b"1"] * 30_000, [b"1"] * 30_001, [None]])})
        with pytest.raises(errors.Usage, match=r"^row 60001: its value is null"):
            getattr(log, take)(hurt)
        assert log.last_seq == 0


def test_names_that_stand_for_two(log: penstock.Log) -> None:
    """Two columns of one name are refused if it is one that counts."""
    for name in ("value", "key", "topic", "time", "headers"):
        column = pa.array([b"a"])
        names = [*dict.fromkeys(["value", name]), name]
        table = pa.Table.from_arrays([column] * len(names), names=names)
        with pytest.raises(errors.Usage, match=f"two columns are called '{name}'"):
            log.extend(table)
    log.extend(pa.Table.from_arrays([pa.array([b"a"])] * 3, names=["value", "x", "x"]))


def test_lists_of_arrow_data(log: penstock.Log) -> None:
    """Record batches in a list are no values; what is not in memory is not taken either."""
    batches = pa.table({"value": [b"a"]}).to_batches()
    for take in (log.extend, log.load):
        for given_ in (batches, iter(batches)):
            with pytest.raises(errors.WrongType, match="take Arrow data itself"):
                take(given_)
        with pytest.raises(errors.WrongType, match="frame or stream in memory, got LazyFrame"):
            take(pl.LazyFrame({"value": ["a"]}))  # type: ignore[arg-type]


class CArray(ctypes.Structure):
    """An array as Arrow's C data interface has it."""

    _fields_ = (
        ("length", ctypes.c_int64),
        ("null_count", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("n_buffers", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("buffers", ctypes.POINTER(ctypes.c_void_p)),
        ("children", ctypes.POINTER(ctypes.c_void_p)),
        ("dictionary", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    )


class Forged:
    """An array of pyarrow's whose struct is changed before it is given away."""

    def __init__(self, array: pa.Array, change: Callable[[CArray], None]) -> None:
        point = ctypes.pythonapi.PyCapsule_GetPointer
        point.restype, point.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        self.capsules: tuple[object, object] = array.__arrow_c_array__()
        self.struct = CArray.from_address(point(self.capsules[1], b"arrow_array"))
        change(self.struct)

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self.capsules


def test_data_that_was_taken_already(log: penstock.Log) -> None:
    """Capsules that are empty are refused, not looked into."""
    once = Forged(pa.array([b"a"]), lambda a: None)
    log.extend(once)
    with pytest.raises(errors.Usage, match="taken over already"):
        log.extend(once)

    class Stream:
        capsule = pa.table({"value": [b"b"]}).__arrow_c_stream__()

        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return self.capsule

    log.extend(Stream())
    with pytest.raises(errors.Usage, match="taken over already"):
        log.extend(Stream())
    assert [e.value for e in log] == [b"a", b"b"]


def test_nulls_that_nobody_counted(log: penstock.Log) -> None:
    """A count of -1 means that the bits tell, those of a struct as well."""

    def uncount(a: CArray) -> None:
        a.null_count = -1

    log.extend(Forged(pa.array([b"a", b"b"]), uncount))
    with pytest.raises(errors.Usage, match="row 1: its value is null"):
        log.extend(Forged(pa.array([b"a", None]), uncount))
    struct = pa.StructArray.from_arrays(
        [pa.array([b"x", b"y", b"z"])], names=["value"], mask=pa.array([True, False, False])
    )
    log.extend(Forged(struct[1:], uncount))
    with pytest.raises(errors.Usage, match="must not have null rows"):
        log.extend(Forged(struct, uncount))
    assert [e.value for e in log] == [b"a", b"b", b"y", b"z"]


def test_arrays_without_bytes(log: penstock.Log) -> None:
    """Where there is nothing, there need be no buffer: no rows, or rows of no bytes."""

    def bare(*which: int) -> Callable[[CArray], None]:
        def change(a: CArray) -> None:
            for i in which:
                a.buffers[i] = None

        return change

    assert log.extend(Forged(pa.array([], pa.binary()), bare(0, 1, 2))) == range(1, 1)
    assert log.load(Forged(pa.array([], pa.binary()), bare(0, 1, 2))) == range(1, 1)
    log.extend(Forged(pa.array([b"", b""]), bare(2)))
    log.extend(Forged(pa.array([b"", b""], pa.large_binary()), bare(2)))
    log.extend(Forged(pa.array([b"", b""], pa.binary(0)), bare(1)))
    assert [e.value for e in log] == [b""] * 6


def test_arrays_that_contradict_their_type(log: penstock.Log) -> None:
    """An array without what its type has is refused before anything is read."""

    def lack(name: str, value: object) -> Callable[[CArray], None]:
        return lambda a: setattr(a, name, value)

    def no_offsets(a: CArray) -> None:
        a.buffers[1] = None

    words = pa.array(["a", "b"]).dictionary_encode()
    for forged in (
        Forged(pa.array([b"a"]), lack("n_buffers", 2)),
        Forged(pa.array([b"a"]), no_offsets),
        Forged(words, no_offsets),
        Forged(pa.array([b"a"], pa.binary(1)), lack("n_buffers", 1)),
    ):
        with pytest.raises(errors.Usage, match="lacks a part that its type has"):
            log.extend(forged)
    view = pa.array([b"long enough for a buffer"], pa.binary_view())

    def shorten(a: CArray) -> None:
        ctypes.cast(a.buffers[3], ctypes.POINTER(ctypes.c_int64))[0] = 9

    with pytest.raises(errors.Usage, match="points outside"):
        log.extend(Forged(view, shorten))
    assert log.last_seq == 0
