"""What an append puts on disk, byte by byte, checked by a reader that shares no code with it."""

from __future__ import annotations

import array
import itertools
import random
import struct
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Entry, tunables
from penstock import layout as L
from tests.unit import oracle


def only_segment(path: Path) -> oracle.Segment:
    (segment,) = oracle.read_log(path)
    return segment


def test_a_frame_stands_where_the_layout_says(log: penstock.Log, path: Path) -> None:
    """Each field of a frame with all parts is at its offset in layout.py, and nothing else is."""
    log.append(b"before")
    log.append(b"value!", key=b"key", topic="tøpic", headers={"h": b"1"}, time=77)
    first, second = only_segment(path).frames
    raw = path.joinpath("00000000000000000001.seg").read_bytes()[second.at :]

    def at(offset: int, form: str) -> int:
        value: int = struct.unpack_from(form, raw, offset)[0]
        return value

    body = struct.pack("<Q", 77) + "tøpic".encode() + b"\x01\0\x01\0h1" + b"key" + b"value!"
    assert at(L.FRAME_COMMIT, "<I") == len(body) + 1
    assert at(L.FRAME_SEQ, "<Q") == 2
    assert at(L.FRAME_APPEND_NS, "<Q") == log[2].append_ns
    assert at(L.FRAME_BACK, "<I") == second.at - first.at
    assert at(L.FRAME_BATCH_LEFT, "<I") == 0
    assert at(L.FRAME_KEY_LEN, "<H") == 3
    assert at(L.FRAME_HEADERS_LEN, "<H") == 6
    assert at(L.FRAME_TOPIC_LEN, "<H") == 6
    assert at(L.FRAME_KIND, "<B") == L.KIND_DATA
    assert at(L.FRAME_FLAGS, "<B") == L.FLAG_EVENT_TIME
    assert raw[L.FRAME_HEADER_BYTES : L.FRAME_HEADER_BYTES + len(body)] == body
    assert at(L.FRAME_CRC, "<I") == oracle.crc32c(raw[8 : 40 + len(body)])
    assert not any(raw[40 + len(body) :][: 3 * 4096])


def test_value_lengths_around_padding_and_copying(log: penstock.Log, path: Path) -> None:
    """Values of every small length, and around the sizes where the copy changes, are kept whole."""
    lengths = [*range(20), 8191, 8192, 8193, 12287, 12288, 12289]
    for n in lengths:
        log.append(bytes(i % 251 for i in range(n)))
    events = [f for s in oracle.read_log(path) for f in s.events]
    assert [f.value for f in events] == [bytes(i % 251 for i in range(n)) for n in lengths]
    assert [e.value for e in log] == [f.value for f in events]


def test_a_large_value_in_a_large_segment(path: Path) -> None:
    """A value beyond every copy step arrives with the right checksum."""
    value = bytes(range(256)) * 4000
    with penstock.open(path, segment_size="4MiB") as log:
        log.append(value)
        assert log[1].value == value
    assert only_segment(path).events[0].value == value


def test_a_batch_counts_down(log: penstock.Log, path: Path) -> None:
    """The frames of a batch share one clock reading and say how many of them follow."""
    log.append(b"alone")
    assert log.extend([b"a", Entry(b"b", key=b"k"), b"c"]) == range(2, 5)
    frames = only_segment(path).frames
    assert [f.batch_left for f in frames] == [0, 2, 1, 0]
    assert len({f.append_ns for f in frames[1:]}) == 1
    assert [e.batch_left for e in log] == [0, 2, 1, 0]


def test_no_key_differs_from_an_empty_key(log: penstock.Log, path: Path) -> None:
    """No key is None and an empty key is b'', on disk and when read."""
    log.append(b"v")
    log.append(b"v", key=b"")
    assert [f.key for f in only_segment(path).frames] == [None, b""]
    assert [e.key for e in log] == [None, b""]


def test_none_deletes_a_key(log: penstock.Log, path: Path) -> None:
    """A value of None is a delete frame, which an empty value is not."""
    log.append(None, key=b"k")
    log.append(b"", key=b"k")
    assert [f.kind for f in only_segment(path).frames] == [L.KIND_DELETE, L.KIND_DATA]
    assert [(e.value, e.deletes) for e in log] == [(None, True), (b"", False)]


def test_none_without_a_key_is_refused(log: penstock.Log) -> None:
    """A delete that names no key is a mistake, alone and in a batch, and writes nothing."""
    items: list[Any] = [b"a", None]
    with pytest.raises(penstock.Usage, match="must have a key"):
        log.append(None)
    with pytest.raises(penstock.Usage, match="must have a key"):
        log.extend(items)
    assert len(log) == 0
    assert log.extend(items, key=b"k") == range(1, 3)


@pytest.mark.parametrize("topic", ["", "plain", "ünï/cødé", "日本語", "🚰" * 256, "a\0b", "\n"])
def test_topics_are_any_unicode_text(log: penstock.Log, path: Path, topic: str) -> None:
    """A topic comes back as given and is UTF-8 on disk."""
    log.append(b"v", topic=topic)
    assert log[1].topic == topic
    assert only_segment(path).frames[0].topic == topic.encode()
    assert log.topics() == {topic}


def test_lone_surrogates_are_refused(log: penstock.Log) -> None:
    """Text that UTF-8 cannot hold is Usage, in a topic, a header's name and a filter."""
    with pytest.raises(penstock.Usage, match="UTF-8"):
        log.append(b"v", topic="\ud800")
    with pytest.raises(penstock.Usage, match="UTF-8"):
        log.append(b"v", headers={"\udfff": b""})
    with pytest.raises(penstock.Usage, match="UTF-8"):
        log.read(topic="\ud800")
    with pytest.raises(penstock.Usage, match="UTF-8"):
        log.extend([Entry(b"v", topic="\ud800")])
    assert len(log) == 0


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ()),
        ([], ()),
        ({"a": b"1", "b": None, "c": b""}, (("a", b"1"), ("b", None), ("c", b""))),
        ([("n", b"1"), ("n", b"2"), ("n", None)], (("n", b"1"), ("n", b"2"), ("n", None))),
        ((("ü", bytearray(b"x")),), (("ü", b"x"),)),
        ([["list", memoryview(b"ab")]], (("list", b"ab"),)),
        ([("", b"")], (("", b""),)),
        (iter([("i", b"t")]), (("i", b"t"),)),
        ([("gaps", memoryview(b"abcdef")[::2])], (("gaps", b"ace"),)),
    ],
)
def test_headers_as_users_give_them(
    log: penstock.Log, path: Path, given: Any, expected: tuple[tuple[str, bytes | None], ...]
) -> None:
    """Headers given as a mapping or pairs come back as pairs, in order, nulls and repeats kept."""
    log.append(b"v", headers=given)
    assert log[1].headers == expected
    assert only_segment(path).frames[0].headers == expected


@pytest.mark.parametrize(
    "headers",
    [5, "ab", b"ab", {"a": "text"}, {"a": 5}, {5: b""}, [("a",)], [("a", b"", b"")], [5], ["ab"]],
)
def test_bad_headers_are_refused(log: penstock.Log, headers: Any) -> None:
    """Headers of a wrong shape are WrongType and nothing is written."""
    with pytest.raises(penstock.WrongType):
        log.append(b"v", headers=headers)
    assert len(log) == 0


BUFFERS = [
    bytearray(b"some bytes"),
    memoryview(b"some bytes"),
    memoryview(b"--some bytes--")[2:-2],
    array.array("B", b"some bytes"),
    memoryview(b"some bytes").cast("B", shape=[2, 5]),
    bytearray(),
    array.array("d", [1.5, -2.0]),
]


@pytest.mark.parametrize("value", BUFFERS, ids=lambda v: type(v).__name__)
def test_values_and_keys_may_be_any_buffer(log: penstock.Log, value: Any) -> None:
    """Anything with one contiguous buffer is stored as its bytes, alone, in a batch, as a key."""
    expected = bytes(memoryview(value).tobytes())
    log.append(value)
    log.extend([value, b"x"])
    log.append(b"", key=value)
    log.extend([Entry(value, key=value)])
    assert [e.value for e in log] == [expected, expected, b"x", b"", expected]
    assert log[4].key == log[5].key == expected
    assert [e.seq for e in log.read(key=value)] == [4, 5]


def test_an_events_own_buffer_can_be_appended(log: penstock.Log) -> None:
    """The zero-copy view of an event is a value like any other, even from the same log."""
    log.append(b"again")
    log.append(log[1].view)
    assert log[2].value == b"again"


@pytest.mark.parametrize("value", ["text", 5, 1.5, object(), [b"a"], memoryview(b"abcd")[::2]])
def test_bad_values_are_refused(log: penstock.Log, value: Any) -> None:
    """What is not one contiguous buffer is WrongType everywhere, and nothing is written."""
    for call in (
        lambda: log.append(value),
        lambda: log.append(b"", key=value),
        lambda: log.extend([b"first", value]),
        lambda: log.extend([b"first", Entry(value)]),
        lambda: log.extend([Entry(b"v", key=value)]),
    ):
        with pytest.raises(penstock.WrongType):
            call()
    assert len(log) == 0


def test_entries_override_what_the_batch_shares(log: penstock.Log) -> None:
    """Keyword arguments of extend hold for the items that have nothing of their own."""
    log.extend(
        [
            b"plain",
            Entry(b"own", key=b"k2", topic="t2", headers={"b": None}, time=9),
            Entry(b"bare"),
        ],
        key=b"k1",
        topic="t1",
        headers={"a": b"1"},
        time=5,
    )
    seen = [(e.value, e.key, e.topic, e.headers, e.time_ns) for e in log]
    shared = (b"k1", "t1", (("a", b"1"),), 5)
    assert seen == [
        (b"plain", *shared),
        (b"own", b"k2", "t2", (("b", None),), 9),
        (b"bare", *shared),
    ]


def test_plain_batches_share_all_parts_too(log: penstock.Log, path: Path) -> None:
    """The quick path of extend, values only, writes the shared parts into each frame."""
    log.extend([b"a", b"bb"], key=b"k", topic="t", headers={"h": b"1"}, time=3)
    seen = [(f.value, f.key, f.topic, f.headers, f.given_ns) for f in only_segment(path).frames]
    rest = (b"k", b"t", (("h", b"1"),), 3)
    assert seen == [(b"a", *rest), (b"bb", *rest)]


def test_an_empty_batch_writes_nothing(log: penstock.Log, path: Path) -> None:
    """extend of nothing returns an empty range at the end of the log."""
    log.append(b"a")
    assert log.extend([]) == range(2, 2)
    assert len(only_segment(path).frames) == 1


def test_a_batch_may_come_from_a_generator(log: penstock.Log) -> None:
    """extend takes any iterable once."""
    assert log.extend(b"%d" % i for i in range(5)) == range(1, 6)
    assert log[5].value == b"4"


def test_an_error_in_the_iterable_leaves_nothing(log: penstock.Log) -> None:
    """An exception out of the caller's iterable passes through and nothing is written."""

    def values() -> Any:
        yield b"a"
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        log.extend(values())
    assert len(log) == 0


def test_back_pointers_lead_over_control_frames(log: penstock.Log, path: Path) -> None:
    """A settings frame takes no seq and stands in the chain of frames like any other."""
    log.append(b"a")
    log.configure(segment_size="128KiB")
    log.append(b"b")
    segment = only_segment(path)
    assert [(f.kind, f.seq) for f in segment.frames] == [(1, 1), (6, 2), (1, 2)]
    assert [e.seq for e in reversed(log)] == [2, 1]


def test_long_appends_take_another_way_to_the_same_bytes(path: Path) -> None:
    """Around the sizes where an append goes by pwritev, frames are the same as ever."""
    edge, run = tunables.WRITE_BYTES_MIN, tunables.WRITE_SCRATCH_BYTES
    sizes = [n + d for n in (edge, run) for d in (-49, -48, -41, -40, -39, -8, -1, 0, 1, 9)]
    chance = random.Random(5)
    values = [chance.randbytes(n) for n in sizes]
    batches: list[list[bytes]] = [
        values[:12],
        [b"small", values[11], b"small"],
        [values[0], values[15]],
        [chance.randbytes(5000) for _ in range(120)],
        [b"", b"x", values[12], b""],
    ]
    with penstock.open(path, segment_size="16MiB") as log:
        for value in values:
            log.append(value, key=b"k", topic="t")
        for batch in batches:
            log.extend(batch)
            log.extend([Entry(v, key=b"own", headers={"h": v[:9]}) for v in batch], time=7)
        expected = [*values, *(v for batch in batches for v in batch + batch)]
        assert [e.value for e in log] == expected
        assert [e.value for e in reversed(log)] == expected[::-1]
    assert [f.value for f in only_segment(path).events] == expected


@pytest.mark.parametrize("nbytes", [1000, 40_000, 300_000])
def test_a_buffer_that_changes_meanwhile(path: Path, nbytes: int) -> None:
    """Whatever another thread does to a bytearray while it is appended, the frame is whole."""
    buffer = bytearray(nbytes)
    stop = threading.Event()

    def change() -> None:
        for i in itertools.count():
            if stop.is_set():
                return
            memoryview(buffer)[:] = bytes([i % 251]) * nbytes

    thread = threading.Thread(target=change)
    thread.start()
    try:
        with penstock.open(path, segment_size="16MiB") as log:
            for _ in range(40):
                log.append(buffer)
                log.extend([buffer, b"x", Entry(buffer)])
            stop.set()
            assert len(list(log)) == 160
    finally:
        stop.set()
        thread.join()


def values_of_all_lengths() -> list[bytes]:
    """Every length up to where copies change, and those around every limit of a batch's writer."""
    lengths = [*range(600), *range(8000, 8300, 7), 8191, 8192, 8193, 32 << 10, 100_000, 300_000]
    source = random.Random(5)
    source.shuffle(lengths)
    return [source.randbytes(n) for n in lengths]


def parts(f: oracle.Frame) -> tuple[Any, ...]:
    return f.length, f.batch_left, f.flags, f.given_ns, f.topic, f.headers, f.key, f.value


@pytest.mark.parametrize("shared", [{}, {"key": b"k", "topic": "tøpic", "time": 77}], ids=str)
@pytest.mark.parametrize("given", [list, tuple])
def test_a_batch_of_values_is_like_one_of_entries(
    path: Path, shared: dict[str, Any], given: type
) -> None:
    """The frames of values with shared parts are those of entries, index and links included."""
    values = values_of_all_lengths()
    with penstock.open(path, segment_size="8MiB") as log:
        log.append(b"first")
        for _ in range(3):
            log.extend(given(values), **shared)
            log.extend([Entry(value, **shared) for value in values])
            log.extend(given(values[:5]), producer=("p", len(log)))
        assert log.verify().ok
        read = [e.value for e in log]
    frames = [f for f in only_segment(path).frames if f.kind == L.KIND_DATA]
    assert read == [f.value for f in frames] == [b"first", *(values * 2 + values[:5]) * 3]
    n = len(values)
    for start in range(1, len(frames), 2 * n + 5):
        plain, entries = frames[start : start + n], frames[start + n : start + 2 * n]
        assert [parts(f) for f in plain] == [parts(f) for f in entries]
        assert [f.batch_left for f in plain] == list(range(n - 1, -1, -1))


def test_a_batch_that_is_written_where_pages_are_there_already(path: Path) -> None:
    """A batch goes partly through the map, partly through writes, and its frames are the same."""
    values = [bytes([n % 251]) * (n % 200) for n in range(40_000)]
    with penstock.open(path) as log:
        for _ in range(3):
            for value in values[:10_000]:
                log.append(value)  # has pages populated ahead, as long appends do not
            log.extend(values)
        assert log.verify().ok
        assert [e.value for e in log] == (values[:10_000] + values) * 3


@pytest.mark.parametrize(
    "bad", [bytes(L.VALUE_BYTES_MAX + 1), "text", None], ids=["long", "str", "none"]
)
def test_the_items_of_a_list_are_let_go(log: penstock.Log, bad: Any) -> None:
    """An extend holds the items of a list while it runs and no longer, also when it fails."""
    items: list[Any] = [b"%d" % n * 20 for n in range(100)]
    before = [sys.getrefcount(item) for item in items]
    log.extend(items)
    assert [sys.getrefcount(item) for item in items] == before
    with pytest.raises(penstock.PenstockError):
        log.extend([*items, bad])
    assert [sys.getrefcount(item) for item in items] == before
    assert log.last_seq == 100


def test_a_list_that_is_emptied_meanwhile(path: Path) -> None:
    """A batch has the items that its list had at the start, whatever others do to the list."""
    with penstock.open(path) as log:
        items: list[bytes] = []
        done = threading.Event()

        def meddle() -> None:
            while not done.is_set():
                items.clear()
                items.extend(bytes([n % 7]) * 300 for n in range(20_000))

        meddler = threading.Thread(target=meddle)
        meddler.start()
        try:
            while len(log) < 200_000:
                log.extend(items)
        finally:
            done.set()
            meddler.join()
        assert log.verify().ok
        assert {e.value for e in log} <= {bytes([n]) * 300 for n in range(7)}


def test_empty_values_with_long_headers(path: Path) -> None:
    """A batch whose headers are longer than its scratch has room after a run is kept whole."""
    headers = {"h": b"x" * 60_000}
    with penstock.open(path) as log:
        for _ in range(5):
            log.extend([b""] * 40, headers=headers)
        assert log.verify().ok
        assert [(e.value, e.headers) for e in log] == [(b"", (("h", b"x" * 60_000),))] * 200


@pytest.mark.parametrize("kind", ["segments", "ring"])
@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 12, 14, 15, 16, 100, 101, 103, 107, 511, 4095])
def test_batches_of_one_size(tmp_path: Path, size: int, kind: str) -> None:
    """Values of one length, also with others between, come back and have their checksums."""
    if kind == "ring":
        log = penstock.create(tmp_path / "x.ring", ring="16MiB")
    else:
        log = penstock.open(tmp_path / "log", segment_size="4MiB")
    with log:
        wanted: list[bytes] = []
        for count in (1, 3, 4, 5, 9, 400):
            same = [bytes([i % 251]) * size for i in range(count)]
            mixed = [v + b"+" if i % 6 == 5 else v for i, v in enumerate(same)]
            for values in (same, mixed):
                log.extend(values)
                wanted += values
        assert [event.value for event in log.read(1, len(wanted) + 1)] == wanted
        assert log.verify().ok
