"""Tags: words kept in an event's headers, by which events are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import _core
from penstock import layout as L
from tests.unit import oracle


def seqs(reader: Any) -> list[int]:
    return [event.seq for event in reader]


def test_tags_are_read_by(log: penstock.Log) -> None:
    """A read gives the events that have all the tags asked for, in either direction."""
    log.append(b"1", tags=["ok", "eu"])
    log.append(b"2", tags=["ok"])
    log.append(b"3")
    log.append(b"4", tags=["eu", "ok", "late"])
    assert seqs(log.read(tags=["ok"])) == [1, 2, 4]
    assert seqs(log.read(tags=["ok", "eu"])) == [1, 4]
    assert seqs(log.read(tags=["eu", "ok"], reverse=True)) == [4, 1]
    assert seqs(log.read(tags=["o"])) == seqs(log.read(tags=["ok "])) == []
    assert seqs(log.read(tags=["late", "nobody"])) == []
    assert seqs(log.read(tags=[])) == seqs(log.read(tags=None)) == [1, 2, 3, 4]
    assert seqs(log.read(2, 4, tags=["ok"])) == [2]
    assert seqs(log.follow("start", tags=["eu"], timeout=0)) == [1, 4]


def test_tags_go_with_other_filters(log: penstock.Log) -> None:
    """Tags, topic, key and times all have to fit."""
    log.append(b"1", topic="t", key=b"k", time=10, tags=["a"])
    log.append(b"2", topic="t", key=b"K", time=10, tags=["a"])
    log.append(b"3", topic="u", key=b"k", time=20, tags=["a"])
    log.append(b"4", topic="t", key=b"k", time=10, tags=["b"])
    assert seqs(log.read(topic="t", key=b"k", since=5, until=15, tags=["a"])) == [1]
    assert seqs(log.read(topic="u", tags=["a"])) == [3]


def test_tags_are_headers(log: penstock.Log) -> None:
    """Each tag is a header after the caller's own, and the event given back keeps it."""
    log.append(b"1", headers=[("h", b"1")], tags=["ok", "tøg"])
    assert log[1].tags == ("ok", "tøg")
    assert log[1].headers == (
        *(("h", b"1"), ("penstock.tag", b"ok"), ("penstock.tag", "tøg".encode())),
    )
    log.append(log[1])
    assert log[2].tags == ("ok", "tøg")
    assert seqs(log.read(tags=["tøg"])) == [1, 2]
    log.append(b"3", headers={"tag": b"ok"})
    assert log[3].tags == ()
    log.append(b"4")
    assert log[4].tags == ()


def test_batches_have_tags(log: penstock.Log) -> None:
    """Tags of a batch hold for the items that have none of their own."""
    items = [b"1", penstock.Entry(b"2", tags=["own"]), penstock.Entry(b"3", tags=[])]
    log.extend(items, tags=["all"])
    log.extend([b"4", b"5"], tags=["all"])
    log.load([*items, b"x"], tags=(t for t in ["all"]))
    expected = [("all",), ("own",), (), ("all",), ("all",), ("all",), ("own",), (), ("all",)]
    assert [e.tags for e in log] == expected
    log.extend([b"6"], tags=["a"], headers={"h": b""}, topic="t", key=b"k")
    assert (log[10].tags, log[10].key, log[10].topic, log[10].value) == (("a",), b"k", "t", b"6")


def test_tags_over_segments(path: Path) -> None:
    """Events are found by tag in sealed and active segments alike, after reopening too."""
    with penstock.open(path, segment_size="64KiB") as log:
        for i in range(3000):
            log.append(b"x" * 50, tags=["third"] if i % 3 == 0 else ["other"])
        assert len(oracle.segment_paths(path)) > 2
    with penstock.open(path, mode="r") as log:
        assert seqs(log.read(tags=["third"])) == list(range(1, 3001, 3))


@pytest.mark.parametrize(
    ("tags", "kind"),
    [
        ("ok", penstock.WrongType),
        (b"ok", penstock.WrongType),
        (5, penstock.WrongType),
        ([b"ok"], penstock.WrongType),
        ([None], penstock.WrongType),
        (["ok", 5], penstock.WrongType),
        ([""], penstock.Usage),
        (["\ud800"], penstock.Usage),
        (["x" * 65536], penstock.TooLarge),
        (["x" * 100] * 600, penstock.TooLarge),
    ],
)
def test_tags_that_are_none(log: penstock.Log, tags: Any, kind: type[Exception]) -> None:
    """What cannot be tags is refused with a typed error wherever tags are given."""
    for call in (
        lambda: log.append(b"", tags=tags),
        lambda: log.extend([b""], tags=tags),
        lambda: log.extend([penstock.Entry(b"", tags=tags)]),
        lambda: log.load([b""], tags=tags),
        lambda: log.read(tags=tags),
        lambda: log.follow(tags=tags),
    ):
        with pytest.raises(kind):
            call()
    assert len(log) == 0


def test_tags_share_the_room_of_headers(path: Path) -> None:
    """Tags and headers together take what headers may take, and not a byte more."""
    room = L.HEADERS_BYTES_MAX - 4 - len(L.TAG_NAME)
    with penstock.open(path, segment_size="256KiB") as log:
        log.append(b"", tags=["x" * room])
        assert log[1].tags == ("x" * room,)
        assert seqs(log.read(tags=["x" * room])) == [1]
        with pytest.raises(penstock.TooLarge, match="headers and tags"):
            log.append(b"", tags=["x" * room], headers={"": b""})


@pytest.mark.parametrize(
    "headers",
    [
        b"\xff",
        b"\xff\xff\xff\xff",
        b"\x0d\0\xff\xffpenstock.tag",
        b"\x0c\0\x02\0penstock.tago",
        b"\xff\xff\x02\0penstock.tagok",
        b"\x0c\0\xfe\xffpenstock.tagok",
        b"\0\0\0\0\x0c\0\x02\0penstock.tag",
    ],
    ids=repr,
)
def test_headers_that_lie(path: Path, headers: bytes) -> None:
    """Headers with lengths that run past their end match nothing."""
    with penstock.open(path) as log:
        log.append(
            b"ok", headers={"": b"x" * (len(headers) - 4)} if len(headers) >= 4 else {"": b""}
        )
    (name,) = oracle.segment_paths(path)
    (frame,) = oracle.read_log(path)[0].frames
    data = bytearray(name.read_bytes())
    start = frame.at + L.FRAME_HEADER_BYTES
    data[start : start + len(headers)] = headers
    end = start + max(len(headers), 4) + len(b"ok")
    crc = _core.crc32c(data[frame.at + L.FRAME_SEQ : end])
    data[frame.at + L.FRAME_CRC : frame.at + L.FRAME_CRC + 4] = crc.to_bytes(4, "little")
    name.write_bytes(data)
    path.joinpath("control").unlink()
    with penstock.open(path, mode="r") as log:
        assert seqs(log) == [1]
        assert seqs(log.read(tags=["ok"])) == []
        with pytest.raises(penstock.Corrupt):
            assert log[1].headers
        with pytest.raises(penstock.Corrupt):
            assert log[1].tags
        with pytest.raises(penstock.Corrupt):
            assert log[1].data
