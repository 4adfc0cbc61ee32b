"""An event that was read can be appended again, to any log, and loses nothing on the way."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock import Entry

Facts = tuple[Any, ...]
WAYS: dict[str, Callable[[penstock.Log, penstock.Log], Any]] = {
    "append": lambda a, b: [b.append(event) for event in a],
    "append of a pickled event": lambda a, b: [
        b.append(pickle.loads(pickle.dumps(event))) for event in a
    ],
    "extend of a log": lambda a, b: b.extend(a),
    "extend of a list": lambda a, b: b.extend(list(a)),
    "extend of a reader": lambda a, b: b.extend(a.read()),
    "extend of an iterator": lambda a, b: b.extend(event for event in a),
    "load of a log": lambda a, b: b.load(a),
    "load of a reader": lambda a, b: b.load(a.read()),
    "extend of a scan": lambda a, b: b.extend(a.scan()),
    "load of a scan": lambda a, b: b.load(a.scan()),
}


def facts(event: penstock.Event) -> Facts:
    """All that an event is, but for its place in a log."""
    return (
        event.value,
        event.key,
        event.topic,
        event.headers,
        event.tags,
        event.time_ns,
        event.deletes,
    )


def make(path: Path, kind: str, **options: Any) -> penstock.Log:
    if kind == "ring":
        return penstock.create(path.with_suffix(".ring"), ring="4MiB", **options)
    return penstock.create(path, **options)


def fill(log: penstock.Log) -> list[Facts]:
    """Events of every shape."""
    log.append(b"plain")
    log.append(b"", key=b"")
    log.append(b"all", key=b"k", topic="t", headers={"h": b"1", "n": None}, tags=["x"], time=5)
    log.append(None, key=b"k", topic="gone", tags=["deleted"])
    log.append(b"\x81\xa1a\x01", codec="msgpack", headers=[("h", b"1"), ("h", b"2")], tags=["m"])
    log.append(b"big" * 100_000, topic="große")
    return [facts(event) for event in log]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["log", "ring"])
def test_an_event_given_back_keeps_all_it_has(tmp_path: Path, kind: str, way: str) -> None:
    """Value, key, topic, headers, tags, time and deletion survive append, extend and load."""
    with make(tmp_path / "a", kind) as a, make(tmp_path / "b", kind) as b:
        expected = fill(a)
        WAYS[way](a, b)
        assert [facts(event) for event in b] == expected
        assert b[5].data == {"a": 1}
        assert b.verify().ok


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("pair", ["json bytes", "bytes json", "json msgpack", "json json"])
def test_data_is_the_same_in_a_log_with_another_codec(tmp_path: Path, pair: str, way: str) -> None:
    """The bytes stay as they are, and ``data`` decodes to the same, whatever codec the log has."""
    one, other = pair.split()
    values: list[Any] = [b"1", b"{"] if one == "bytes" else [{"a": 1}, [None, "x"]]
    with make(tmp_path / "a", "log", codec=one) as a, make(tmp_path / "b", "log", codec=other) as b:
        a.extend(values)
        a.append(None, key=b"k")
        a.append(b"\x81\xa1a\x01", codec="msgpack", tags=["m"])
        a.append(b"[1]", codec="json", tags=["j"])
        WAYS[way](a, b)
        assert [event.value for event in b] == [event.value for event in a]
        assert [event.data for event in b] == [event.data for event in a]
        assert [event.tags for event in b] == [event.tags for event in a]


@pytest.mark.parametrize("way", [way for way in WAYS if "scan" not in way])
def test_a_log_and_back_again_is_as_it_was(tmp_path: Path, way: str) -> None:
    """Events that go to a log with another codec and back have no header more than before."""
    with (
        make(tmp_path / "a", "log", codec="json") as a,
        make(tmp_path / "b", "log") as b,
        make(tmp_path / "c", "log", codec="json") as c,
    ):
        a.extend([{"a": 1}, Entry([2], topic="t", headers={"h": b"1"}, tags=["x"])])
        WAYS[way](a, b)
        WAYS[way](b, c)
        assert [facts(event) for event in c] == [facts(event) for event in a]


def test_a_codec_that_this_process_lacks_is_kept(tmp_path: Path) -> None:
    """An event keeps the name of its codec even where nobody can decode it."""
    penstock.register_codec("upper", lambda text: text.upper().encode(), lambda data: data)
    with make(tmp_path / "a", "log", codec="upper") as a, make(tmp_path / "b", "log") as b:
        a.append("x")
        event = pickle.loads(pickle.dumps(a[1]).replace(b"upper", b"lower"))
        b.append(event)
        assert (b[1].value, b[1].headers) == (b"X", (("penstock.codec", b"lower"),))
        with pytest.raises(penstock.NoCodec, match="lower"):
            assert b[1].data


def test_a_log_of_json_stays_one(tmp_path: Path) -> None:
    """An event that claims to be JSON and is not is refused by a log of JSON."""
    with make(tmp_path / "a", "log") as a, make(tmp_path / "b", "log", codec="json") as b:
        a.append(b"{")
        frame = pickle.loads(pickle.dumps(a[1])).__reduce__()[1][0]
        claims = penstock._core.event_from_frame(frame, "json")
        calls: list[Callable[[], Any]] = [lambda: b.append(claims), lambda: b.load([claims])]
        for call in calls:
            with pytest.raises(penstock.BadData, match=r"malformed|truncated|input"):
                call()
        assert len(b) == 0


def test_an_entry_can_be_appended_alone(tmp_path: Path) -> None:
    """``append`` takes an Entry as ``extend`` does, also in a log of JSON, where it is no list."""
    entry = Entry({"a": 1}, key=b"k", topic="t", headers={"h": b"1"}, time=7, tags=["x"])
    with make(tmp_path / "a", "log", codec="json") as log:
        log.append(entry)
        log.extend([entry])
        log.load([entry])
        log.append(Entry(None, key=b"k"))
        assert len({facts(log[seq]) for seq in (1, 2, 3)}) == 1
        assert (log[1].data, log[1].key, log[1].tags) == ({"a": 1}, b"k", ("x",))
        assert log[4].deletes


def test_arguments_hold_for_items_that_have_none(tmp_path: Path) -> None:
    """Of ``extend`` and ``load``, key, topic, headers, time and tags are for what lacks them."""
    with make(tmp_path / "a", "log") as a, make(tmp_path / "b", "log") as b:
        a.append(b"1", key=b"own", topic="own", headers={"own": b""}, tags=["own"], time=1)
        a.append(b"2")
        items: list[Any] = [*a, Entry(b"3", key=b"own"), b"4"]
        rest: dict[str, Any] = {
            "key": b"all",
            "topic": "all",
            "headers": {"all": b""},
            "tags": ["all"],
            "time": 2,
        }
        calls: Iterable[Callable[..., Any]] = (b.extend, b.load)
        for call in calls:
            call(items, **rest)
        found = [
            (e.key, e.topic, [n for n, _ in e.headers if n != "penstock.tag"], e.tags, e.time_ns)
            for e in b
        ]
        own = (b"own", "own", ["own"], ("own",), 1)
        every = (b"all", "all", ["all"], ("all",), 2)
        assert found == 2 * [own, every, (b"own", *every[1:]), every]


@pytest.mark.parametrize("name", ["key", "topic", "headers", "time", "tags", "codec"])
def test_nothing_is_given_twice(tmp_path: Path, name: str) -> None:
    """``append`` refuses an argument for what the item has itself, rather than ignore either."""
    given: dict[str, Any] = {
        "key": b"k",
        "topic": "t",
        "headers": {"h": b"1"},
        "time": 5,
        "tags": ["x"],
        "codec": "json",
    }
    with make(tmp_path / "a", "log") as log:
        own = {n: v for n, v in given.items() if n != "codec"}
        log.append(b"1", **own)
        items: list[Any] = [log[1]] if name == "codec" else [log[1], Entry(b"1", **own)]
        for item in items:
            with pytest.raises(penstock.Usage, match=f"{name} is given twice"):
                log.append(item, **{name: given[name]})
        log.append(b"2")
        log.append(log[2], **own)
        assert facts(log[3])[1:] == facts(log[1])[1:]
        assert len(log) == 3


def test_a_time_that_columns_cannot_hold_is_not_taken_over(tmp_path: Path) -> None:
    """An event of an older log whose time is after 2262 is refused, and nothing is written."""
    with make(tmp_path / "a", "log") as log:
        log.append(b"1", time=1)
        frame = bytearray(pickle.loads(pickle.dumps(log[1])).__reduce__()[1][0])
        frame[40:48] = (1 << 63).to_bytes(8, "little")
        frame[4:8] = penstock._core.crc32c(bytes(frame[8:])).to_bytes(4, "little")
        far = penstock._core.event_from_frame(bytes(frame))
        calls: list[Callable[[], Any]] = [
            lambda: log.append(far),
            lambda: log.extend([b"2", far]),
            lambda: log.load([b"2", far]),
        ]
        for call in calls:
            with pytest.raises(penstock.Usage, match="2262-04-11"):
                call()
        assert len(log) == 1


def test_headers_of_a_scan_come_back(tmp_path: Path) -> None:
    """Tags and codecs of events survive being columns, also through a table of pyarrow."""
    with make(tmp_path / "a", "log") as a, make(tmp_path / "b", "log") as b:
        expected = fill(a)
        table = pa.table(a.scan())
        b.extend(table)
        assert [facts(event) for event in b] == expected
        b.extend(a.scan(1, 4), tags=["more"])
        assert [event.tags for event in b.read(7)] == [("more",), ("more",), ("x",)]
