"""Events that expire, and events that groups leave alone until a time: `ttl` and `not_before`."""

from __future__ import annotations

import asyncio
import datetime as dt
import math
import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Entry, NotFound, _core
from penstock import layout as L
from penstock.settings import Settings
from tests.unit import oracle

GONE = 1e-9  # seconds: such an event has expired before anybody can read it
LONG = 3600.0
HOUR_NS = 3600 * 10**9
TWICE: list[dict[str, Any]] = [{"ttl": 1}, {"not_before": 1}]


@pytest.fixture(params=["segments", "ring"])
def any_log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[penstock.Log]:
    """A new log of either kind."""
    if request.param == "ring":
        opened = penstock.create(tmp_path / "log.ring", ring="64KiB")
    else:
        opened = penstock.create(tmp_path / "log", segment_size="64KiB")
    with opened:
        yield opened


def seqs(reader: Any) -> list[int]:
    return [event.seq for event in reader]


def scanned(log: penstock.Log, **asked: Any) -> list[int]:
    return log.scan(**asked).to_arrow()["seq"].to_pylist()  # type: ignore[no-any-return]


def test_no_reader_returns_what_has_expired(any_log: penstock.Log) -> None:
    """Every way to read passes over expired events, and returns all others."""
    log = any_log
    log.append(b"1", key=b"k", topic="t", tags=["a"])
    log.append(b"2", key=b"k", topic="t", tags=["a"], ttl=GONE)
    log.append(b"3", key=b"k", topic="t", tags=["a"], ttl=LONG)
    log.append(b"4", ttl=GONE)
    assert seqs(log) == seqs(log.read(topic="t")) == seqs(log.read(key=b"k")) == [1, 3]
    assert seqs(log.read(tags=["a"])) == seqs(log.read(durable=False, limit=2)) == [1, 3]
    assert seqs(reversed(log)) == seqs(log.read(reverse=True, topic="t")) == [3, 1]
    assert seqs(log.read(limit=1, reverse=True)) == [3]
    assert seqs(log.follow("start", timeout=0)) == seqs(log[1:5]) == [1, 3]
    assert seqs(log.read().take(10)) == seqs(log.tail(3)) == [1, 3]
    assert seqs(penstock.merge(log)) == [1, 3]
    asked: list[dict[str, Any]] = [{}, {"topic": "t"}, {"key": b"k"}]
    for query in asked:
        assert scanned(log, **query) == [1, 3]
    with log.consumer("c", timeout=0) as consumer:
        assert seqs(consumer) == [1, 3]
        assert consumer.position == 5
        assert consumer.lag().events == 0

    async def followed() -> list[int]:
        return [event.seq async for event in log.afollow("start", timeout=0)]

    assert asyncio.run(followed()) == [1, 3]


def test_a_seq_that_has_expired(any_log: penstock.Log) -> None:
    """`log[seq]` says that the event has expired; its seq is not used again."""
    log = any_log
    log.append(b"1")
    log.append(b"2", ttl=GONE)
    with pytest.raises(NotFound, match="seq 2 has expired: its ttl is over"):
        log[2]
    with pytest.raises(NotFound, match="no event has seq 3"):
        log[3]
    assert (1 in log, 2 in log, 3 in log) == (True, False, False)
    assert log[-1].seq == 1
    assert log.last_seq == 2
    assert log.append(b"3") == 3
    event = log[3]
    assert event in log


def test_when_it_expires(any_log: penstock.Log) -> None:
    """The life of an event is counted from its append, whatever its own time is."""
    log = any_log
    log.append(b"1", ttl=LONG, time=5)
    log.append(b"2", ttl=dt.timedelta(hours=1), time="+2h")
    log.append(b"3", ttl=3600)
    log.append(b"4")
    for event in log.read(stop=4):
        assert event.expires == event.append_ns + HOUR_NS
        assert event.expires_time is not None
        assert abs(event.expires_time.timestamp() * 1e9 - event.expires) < 2000
    assert log[4].expires is None
    assert log[4].expires_time is None


def test_not_before(any_log: penstock.Log) -> None:
    """`not_before` takes what `time` takes, and counts forward from now; it hides nothing."""
    log = any_log
    moment = dt.datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC)
    before = _core.now_ns()
    for given in (7, moment, "2030-01-02T03:04:05.000006Z", "+10m", dt.timedelta(minutes=10)):
        log.append(b"x", not_before=given)
    log.append(b"x")
    after = _core.now_ns()
    assert seqs(log) == [1, 2, 3, 4, 5, 6]
    found = [event.not_before for event in log]
    assert found[0] == 7
    assert log[2].not_before_time == log[3].not_before_time == moment
    for due in found[3:5]:
        assert due is not None
        assert before <= due - 600 * 10**9 <= after
    assert (log[6].not_before, log[6].not_before_time) == (None, None)


def test_marks_are_headers(any_log: penstock.Log) -> None:
    """`ttl` is the first header, `not_before` comes after the caller's and before tags."""
    log = any_log
    log.append(b"1", ttl=1e6, headers={"h": b"1"}, not_before=7, tags=["x"], codec="json")
    assert log[1].headers.keys() == [
        *("penstock.ttl", "h", "penstock.codec", "penstock.not_before", "penstock.tag")
    ]
    assert log[1].header("penstock.ttl") == (10**15).to_bytes(8, "little")
    assert log[1].header("penstock.not_before") == (7).to_bytes(8, "little")
    assert log[1].tags == ("x",)
    assert pickle.loads(pickle.dumps(log[1])).expires == log[1].expires


def test_batches_and_items(any_log: penstock.Log) -> None:
    """Arguments of a batch hold for the items that have none of their own."""
    log = any_log
    items = [b"1", Entry(b"2", ttl=7.0), Entry(b"3", not_before=9), Entry(b"4", tags=["own"])]
    for call in (log.extend, log.load):
        first = call(items, ttl=LONG, not_before=8, tags=["all"], headers={"h": b""}).start
        got = [
            (e.expires and (e.expires - e.append_ns) // 10**9, e.not_before, e.tags, e.header("h"))
            for e in log.read(first)
        ]
        assert got == [
            *((3600, 8, ("all",), b""), (7, 8, ("all",), b""), (3600, 9, ("all",), b"")),
            (3600, 8, ("own",), b""),
        ]
    log.extend([b"a", b"b"], ttl=LONG, not_before=3)
    assert [(e.expires is not None, e.not_before) for e in log.tail(2)] == [(True, 3)] * 2
    assert asyncio.run(log.aappend(b"c", ttl=LONG, not_before=4)) == log.last_seq
    assert (log[-1].not_before, log[-1].expires) == (4, log[-1].append_ns + HOUR_NS)


def test_given_back(any_log: penstock.Log, path: Path) -> None:
    """An event that is appended again keeps its marks, and lives as long again."""
    log = any_log
    log.append(b"1", ttl=LONG, not_before=5, headers={"h": b"1"}, tags=["x"])
    log.append(b"2")
    marked, plain = log
    with penstock.open(path.with_name("other"), codec="json", segment_size="64KiB") as other:
        for into in (log, other):
            into.append(marked)
            into.extend([marked, plain], ttl=7, not_before=8, tags=["y"])
            again, both, given = into.tail(3)
            for event in (again, both):
                assert event.expires == event.append_ns + HOUR_NS
                assert (event.not_before, event.tags, event.header("h")) == (5, ("x",), b"1")
                assert event.headers.keys()[0] == "penstock.ttl"
            assert given.expires == given.append_ns + 7 * 10**9
            assert (given.not_before, given.tags, given.value) == (8, ("y",), b"2")
            for twice in TWICE:
                (name,) = twice
                with pytest.raises(penstock.Usage, match=f"{name} is given twice: the Event has"):
                    into.append(marked, **twice)
                with pytest.raises(penstock.Usage, match=f"{name} is given twice: the Entry has"):
                    into.append(Entry(b"", **twice), **twice)


def test_arrow_data_keeps_marks(any_log: penstock.Log, path: Path) -> None:
    """A scan that is appended keeps its marks; arguments are for rows without them."""
    log = any_log
    log.append(b"1", ttl=LONG, not_before=5, headers={"h": b"1"})
    log.append(b"2", headers={"h": b"2"})
    log.append(b"3")
    table = log.scan().to_arrow()
    with penstock.open(path.with_name("other")) as other:
        other.extend(table)
        other.extend(table, ttl=7, not_before=8, tags=["y"])
        other.load(table.select(["value"]), ttl=7, not_before=8)
        got = [
            (
                e.expires and (e.expires - e.append_ns) // 10**9,
                *(e.not_before, e.header("h"), e.tags),
            )
            for e in other
        ]
    assert got == [
        *((3600, 5, b"1", ()), (None, None, b"2", ()), (None, None, None, ())),
        *((3600, 5, b"1", ("y",)), (7, 8, b"2", ("y",)), (7, 8, None, ("y",))),
        *[(7, 8, None, ())] * 3,
    ]


@pytest.mark.parametrize(
    "headers",
    [
        [("h", b""), ("penstock.ttl", (1).to_bytes(8, "little"))],
        [("penstock.ttl", b"1")],
        [("penstock.ttl", None)],
        [("penstock.ttl", bytes(8))],
        [("penstock.ttl", b"\xff" * 8)],
        [("penstock.not_before", b"")],
        [("penstock.not_before", b"\xff" * 8)],
    ],
    ids=repr,
)
def test_arrow_data_with_bad_marks(log: penstock.Log, headers: Any) -> None:
    """Headers of Arrow data that are no valid marks are refused, and nothing is written."""
    pa = pytest.importorskip("pyarrow")
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = pa.array([[{"key": name, "value": value} for name, value in headers]], kind)
    table = pa.table({"value": pa.array([b"x"]), "headers": rows})
    with pytest.raises(penstock.Usage, match=r"penstock\.ttl, which must be the first one"):
        log.extend(table)
    assert len(log) == 0


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        *(("1", penstock.WrongType), (True, penstock.WrongType), (b"", penstock.WrongType)),
        *(
            (0, penstock.Usage),
            (-1, penstock.Usage),
            (0.0, penstock.Usage),
            (1e-10, penstock.Usage),
        ),
        *((math.nan, penstock.Usage), (math.inf, penstock.Usage), (10**10, penstock.Usage)),
        *((dt.timedelta(0), penstock.Usage), (dt.timedelta(-1), penstock.Usage)),
    ],
)
def test_what_is_no_ttl(log: penstock.Log, given: Any, kind: type[Exception]) -> None:
    """A ttl is a span of time above zero; anything else is refused wherever it is given."""
    for call in (
        lambda: log.append(b"", ttl=given),
        lambda: log.extend([b""], ttl=given),
        lambda: log.extend([Entry(b"", ttl=given)]),
        lambda: log.load([b""], ttl=given),
        lambda: asyncio.run(log.aappend(b"", ttl=given)),
    ):
        with pytest.raises(kind, match="ttl must be"):
            call()
    assert len(log) == 0


@pytest.mark.parametrize("given", ["soon", 1.5, b"", -1, 1 << 63, dt.timedelta(days=10**8)])
def test_what_is_no_time_to_wait_for(log: penstock.Log, given: Any) -> None:
    """What is no time is refused wherever `not_before` is given."""
    for call in (
        lambda: log.append(b"", not_before=given),
        lambda: log.extend([b""], not_before=given),
        lambda: log.extend([Entry(b"", not_before=given)]),
        lambda: log.load([b""], not_before=given),
    ):
        with pytest.raises(penstock.Usage, match="not_before must"):
            call()
    assert len(log) == 0


def test_ttl_of_a_log(any_log: penstock.Log) -> None:
    """A log's ttl is for the events that it has, too; the lower one counts; 0 takes it away."""
    log = any_log
    log.append(b"1")
    log.append(b"2", ttl=LONG)
    log.append(b"3", ttl=GONE)
    assert seqs(log) == [1, 2]
    assert log.configure(ttl=dt.timedelta(hours=2)).ttl == 7200
    assert seqs(log) == [1, 2]
    log.configure(ttl=GONE)
    assert log.append(b"4", ttl=LONG) == 4
    assert seqs(log) == seqs(reversed(log)) == seqs(log.follow("start", timeout=0)) == []
    assert log.scan().to_arrow().num_rows == 0
    for seq in (1, 2, 3, 4):
        assert seq not in log
        with pytest.raises(NotFound, match="has expired"):
            log[seq]
    with log.consumer("c", timeout=0) as consumer:
        assert consumer.lag().events == 0
        assert seqs(consumer) == []
    assert log.configure(ttl=0).ttl == 0
    assert seqs(log) == [1, 2, 4]


def test_ttl_is_stored(tmp_path: Path) -> None:
    """The ttl is part of the log: other handles and later ones obey it, and open checks it."""
    for name, ring in (("log", None), ("log.ring", "64KiB")):
        path = tmp_path / name
        with penstock.create(path, ttl=LONG, ring=ring) as log:
            log.append(b"1")
            assert log.settings.ttl == LONG
        with penstock.open(path, ttl=LONG) as log, penstock.open(path, mode="r") as reader:
            follower = reader.follow("start", timeout=0)
            assert seqs(log) == seqs(reader) == seqs(follower) == [1]
            log.configure(ttl=GONE)
            log.append(b"2")
            assert seqs(log) == seqs(reader) == seqs(follower) == []
        with pytest.raises(penstock.Usage, match=r"log\.configure\(ttl="):
            penstock.open(path, ttl=LONG)
        with penstock.open(path, mode="r") as log:
            assert (log.settings.ttl, seqs(log), 1 in log) == (GONE, [], False)
    assert b"ttl" not in Settings().to_json()


@pytest.mark.parametrize("given", [True, "1h", -1, math.inf, math.nan, dt.timedelta(-1)])
def test_what_is_no_ttl_of_a_log(log: penstock.Log, given: Any) -> None:
    """A setting that is no span of time is refused."""
    with pytest.raises(penstock.Usage, match="ttl must be"):
        log.configure(ttl=given)
    assert log.settings.ttl == 0


def test_old_events_are_passed_over(path: Path) -> None:
    """Over many segments a reader returns exactly the events that are young enough."""
    with penstock.open(path, segment_size="64KiB") as log:
        for _ in range(4):
            log.extend([b"x" * 100] * 300)
            time.sleep(0.05)  # the events differ in age
        assert len(oracle.segment_paths(path)) > 2
        born = {event.seq: event.append_ns for event in log}
        for share in (0.1, 0.5, 0.9):
            oldest, newest = min(born.values()), max(born.values())
            ttl = (_core.now_ns() - oldest - share * (newest - oldest)) / 1e9
            log.configure(ttl=ttl)
            ways: list[Callable[[], list[int]]] = [
                lambda: seqs(log),
                lambda: seqs(reversed(log))[::-1],
                lambda: seqs(log.read(5)),
                lambda: scanned(log),
                lambda: [seq for seq in born if seq in log],
            ]
            for way in ways:
                before = _core.now_ns()
                got = way()
                after = _core.now_ns()
                at_most = [seq for seq, ns in born.items() if ns + log.settings.ttl_ns > before]
                at_least = [seq for seq, ns in born.items() if ns + log.settings.ttl_ns > after]
                assert set(at_least) <= set(got) <= set(at_most)
                assert got == sorted(got)
            log.configure(ttl=0)
            assert seqs(log) == list(born)


@pytest.mark.parametrize(
    "headers",
    [
        b"\x0c\0\x07\0penstock.ttl" + bytes(8),
        b"\x0b\0\x08\0penstock.ttl" + b"\1" + bytes(7),
        b"\0\0\0\0\x0c\0\x08\0penstock.ttl" + b"\1" + bytes(7),
        b"\x0c\0\xff\xffpenstock.ttl" + b"\1" + bytes(7),
        b"\x13\0\x08\0penstock.not_before" + bytes(7),
    ],
    ids=repr,
)
def test_headers_that_are_no_marks(path: Path, headers: bytes) -> None:
    """Headers that only look like marks, or run past their end, limit nothing."""
    with penstock.open(path) as log:
        log.append(b"ok", headers={"": b"x" * (len(headers) - 4)})
    (name,) = oracle.segment_paths(path)
    (frame,) = oracle.read_log(path)[0].frames
    data = bytearray(name.read_bytes())
    start = frame.at + L.FRAME_HEADER_BYTES
    data[start : start + len(headers)] = headers
    crc = _core.crc32c(data[frame.at + L.FRAME_SEQ : start + len(headers) + len(b"ok")])
    data[frame.at + L.FRAME_CRC : frame.at + L.FRAME_CRC + 4] = crc.to_bytes(4, "little")
    name.write_bytes(data)
    path.joinpath("control").unlink()
    with penstock.open(path, mode="r") as log:
        assert seqs(log) == [1]
        assert (log[1].expires, log[1].not_before) == (None, None)


def test_no_room_for_marks(path: Path) -> None:
    """Marks and headers together take what headers may take, and not a byte more."""
    with penstock.open(path, segment_size="256KiB") as log:
        log.append(b"", headers={"": b"x" * (L.HEADERS_BYTES_MAX - 4 - 24)}, ttl=LONG)
        assert log[1].expires is not None
        with pytest.raises(penstock.TooLarge, match="headers and tags"):
            log.append(b"", headers={"": b"x" * (L.HEADERS_BYTES_MAX - 4 - 23)}, ttl=LONG)
