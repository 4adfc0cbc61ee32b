"""What read, scan and follow are asked for is one query, and one cursor of each kind answers it."""

from __future__ import annotations

import asyncio
import copy
import itertools
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock import Entry, _core
from penstock import layout as L
from penstock.reader import Query, make_query
from tests.unit import broken


@pytest.fixture(params=["log", "ring"])
def closed(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A closed log of each kind, with a settings frame between events."""
    path = tmp_path / f"a.{request.param}"
    with penstock.create(path, ring="64KiB" if request.param == "ring" else None) as log:
        log.extend([b"%d" % i for i in range(1, 11)])
        if log.stats().ring:
            log.configure(when_full="block")
        else:
            log.configure(segment_size="1MiB")
        log.extend([b"%d" % i for i in range(11, 21)])
    return path


def change_settings_frame(path: Path, kind: int) -> None:
    """Make the settings frame one of another kind, with the right checksum."""
    file = path if path.is_file() else next(path.glob("*.seg"))
    data = bytearray(file.read_bytes())
    [at] = [
        at
        for at in range(L.PAGE, len(data) - L.FRAME_HEADER_BYTES, L.ALIGN)
        if data[at + L.FRAME_KIND] == L.KIND_SETTINGS
        and data[at + L.FRAME_HEADER_BYTES] == ord("{")
    ]
    data[at + L.FRAME_KIND] = kind
    body = int.from_bytes(data[at : at + 4], "little") - 1
    summed = bytes(data[at + L.FRAME_SEQ : at + L.FRAME_HEADER_BYTES + body])
    data[at + L.FRAME_CRC : at + L.FRAME_CRC + 4] = _core.crc32c(summed).to_bytes(4, "little")
    file.write_bytes(data)


def test_frames_of_the_other_kind_of_log_are_stepped_over(closed: Path) -> None:
    """A roll frame in a ring and a wrap frame in a segment lead nowhere: events after them are
    read, one by one, in reverse and as rows."""
    change_settings_frame(closed, L.KIND_WRAP if closed.is_dir() else L.KIND_ROLL)
    with penstock.open(closed, "r") as log:
        wanted = list(range(1, 21))
        assert [e.seq for e in log] == wanted
        assert [e.seq for e in log.read(reverse=True)] == wanted[::-1]
        assert log.scan(columns=["seq"]).to_arrow().column("seq").to_pylist() == wanted


def test_a_query_can_be_copied_and_pickled() -> None:
    """A query goes to another process as it is: every field of it."""
    query = make_query(3, "end", 5, 7, "topic", b"key", ["tag"], False, "skip", "skip", True, True)
    names = [n for n, kind in vars(Query).items() if type(kind).__name__ == "getset_descriptor"]
    assert len(names) == len(make_query.__code__.co_varnames) + 1  # and by_index
    wanted = {name: getattr(query, name) for name in names}
    assert wanted["start"] == 3
    for again in (pickle.loads(pickle.dumps(query)), copy.deepcopy(query)):
        assert {name: getattr(again, name) for name in names} == wanted


CALLS: dict[str, Callable[..., object]] = {
    "read": lambda log, **given: log.read(**given),
    "scan": lambda log, **given: log.scan(**given),
    "follow": lambda log, **given: log.follow(**given),
}

WRONG: list[tuple[str, Any]] = [
    ("start", "middle"),
    ("start", -1),
    ("start", 1.5),
    ("topic", b"bytes"),
    ("topic", "t" * 2000),
    ("topic", []),
    ("topic", ["a", None]),
    ("topic", ["a", ["b"]]),
    ("key", "text"),
    ("tags", "one"),
    ("tags", [1]),
    ("on_damage", "ignore"),
    ("on_damage", None),
    ("on_gap", "ignore"),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_every_read_checks_its_arguments_alike(log: penstock.Log, name: str, value: object) -> None:
    """A wrong argument is the same error from read, scan and follow, when the call is made."""
    said = set()
    for call in CALLS.values():
        with pytest.raises(penstock.PenstockError) as caught:
            call(log, **{name: value})
        said.add((type(caught.value), str(caught.value)))
    assert len(said) == 1


def test_a_reverse_read_of_what_is_gone_is_a_gap_also_beside_damage(tmp_path: Path) -> None:
    """In reverse, told to skip damage, a read whose events are all gone is still a `Gap`."""
    with penstock.create(tmp_path / "log") as log:
        for _ in range(3):
            log.extend([b"v"] * 10)
            log.steward.roll()
    segments = sorted((tmp_path / "log").glob("*.seg"))
    segments[0].unlink()
    segments[1].write_bytes(bytes(L.PAGE) + segments[1].read_bytes()[L.PAGE :])
    with penstock.open(tmp_path / "log", "r") as log:
        reader = log.read(1, 5, reverse=True, on_damage="skip")
        with pytest.raises(penstock.Gap):
            next(reader)
        assert list(log.read(1, 5, reverse=True, on_damage="skip", on_gap="skip")) == []


Some = tuple[penstock.Log[Any], list[str]]  # a log, and the topic of each event


@pytest.fixture(params=["log", "ring"])
def topical(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Some]:
    """A log of each kind with topics of which some begin like others, and one event without any."""
    names = ["a", "ab", "abc", "b", "", "a\x00", "ü", "a" * 300]
    topics = [names[i * i % len(names)] if i % 7 else names[i % 8] for i in range(1, 201)]
    options: Any = {"ring": "256KiB"} if request.param == "ring" else {"segment_size": "64KiB"}
    with penstock.create(tmp_path / f"t.{request.param}", **options) as log:
        for i, topic in enumerate(topics, 1):
            log.append(b"%0600d" % i, topic=topic)
        yield log, topics


def damage(log: penstock.Log[Any], seq: int) -> None:
    """Flip a bit in the value of an event, which lies in the oldest file."""
    path = Path(log.path)
    file = path if path.is_file() else min(path.glob("*.seg"))
    place = file.read_bytes().find(b"%0600d" % seq)
    assert place > 0
    broken.flip(file, place + 10, 1)


@pytest.mark.parametrize(
    "wanted",
    [["a"], ["abc", "a"], ["a", "a"], ["", "ü", "none"], ["none", "a\x00"], ["a" * 300, "b", "ab"]],
)
def test_several_topics(topical: Some, wanted: list[str]) -> None:
    """Events of any of the topics come, in whatever way and order they are asked for."""
    log, topics = topical
    seqs = [seq for seq, topic in enumerate(topics, 1) if topic in wanted]
    assert [e.seq for e in log.read(topic=wanted)] == seqs
    assert [e.seq for e in log.read(topic=tuple(wanted[::-1]))] == seqs
    assert [e.seq for e in log.read(topic=iter(wanted), reverse=True)] == seqs[::-1]
    assert [e.seq for e in log.follow("start", topic=set(wanted), timeout=0)] == seqs
    assert log.scan(topic=wanted).to_arrow()["seq"].to_pylist() == seqs
    assert [e.seq for e in log.tail(3, topic=wanted)] == seqs[-3:]
    assert [e.seq for e in penstock.merge(log, topic=iter(wanted))] == seqs

    async def followed() -> list[int]:
        return [e.seq async for e in log.afollow("start", topic=wanted, timeout=0)]

    assert asyncio.run(followed()) == seqs


def test_very_many_topics(tmp_path: Path) -> None:
    """A thousand topics are looked up as exactly as one."""
    with penstock.create(tmp_path / "log") as log:
        log.extend([Entry(b"", topic=f"t{i * 7919 % 2000}") for i in range(2000)])
        wanted = [f"t{i}" for i in range(0, 2000, 2)]
        seqs = [e.seq for e in log if int(e.topic[1:]) % 2 == 0]
        assert len(seqs) == 1000
        assert [e.seq for e in log.read(topic=wanted)] == seqs
        assert log.scan(topic=wanted).to_arrow()["seq"].to_pylist() == seqs


def test_several_topics_past_damage(topical: Some) -> None:
    """A damaged event is damage to a reader of several topics, and passed over when told to."""
    log, topics = topical
    damage(log, 30)
    seqs = [seq for seq, topic in enumerate(topics, 1) if topic in ("a", "b", "ab") and seq != 30]
    wanted = ["b", "a", "ab"]
    assert seqs[0] < 30 < seqs[-1]
    reader = log.read(topic=wanted, on_damage="skip")
    assert [e.seq for e in reader] == seqs
    assert reader.skipped == 1
    back = log.read(topic=wanted, on_damage="skip", reverse=True)
    assert [e.seq for e in back] == seqs[::-1]
    scan = log.scan(topic=wanted, on_damage="skip")
    assert scan.to_arrow()["seq"].to_pylist() == seqs
    with pytest.raises(penstock.Corrupt):
        list(log.read(topic=wanted))
    with pytest.raises(penstock.Corrupt):
        log.scan(topic=wanted).to_arrow()


@pytest.mark.parametrize("reverse", [False, True])
def test_take_loses_nothing_to_damage(topical: Some, reverse: bool) -> None:
    """take() gives the events before a damaged one, and raises when it is asked again."""
    log, _ = topical
    damage(log, 20)
    reader = log.read(reverse=reverse)
    whole = list(range(200, 20, -1)) if reverse else list(range(1, 20))
    assert [e.seq for e in reader.take(200)] == whole
    for _ in range(2):
        with pytest.raises(penstock.Corrupt):
            reader.take(200)
    assert reader.take(0) == []


def test_a_limit_of_a_scan(topical: Some) -> None:
    """A scan has at most so many rows, over all its batches, with and without a filter."""
    log, _ = topical
    for options in ({}, {"topic": "a"}, {"topic": ["a", "b"]}, {"start": 7, "stop": 150}):
        which: Any = options
        seqs = [e.seq for e in log.read(**which)]
        for limit in (0, 1, 5, 64, 65, len(seqs) - 1, len(seqs), len(seqs) + 1):
            scan = log.scan(limit=limit, batch_rows=5, columns=["seq"], **which)
            assert scan.to_arrow()["seq"].to_pylist() == seqs[:limit]
            batches = [batch["seq"].to_pylist() for batch in scan.to_batches()]
            assert list(itertools.chain(*batches)) == seqs[:limit]
            assert all(len(batch) <= 5 for batch in batches)
            assert pa.table(scan)["seq"].to_pylist() == seqs[:limit]
            again = pickle.loads(pickle.dumps(scan))
            assert again.to_arrow()["seq"].to_pylist() == seqs[:limit]


def test_what_comes_after_the_limit_of_a_scan_may_be_damaged(topical: Some) -> None:
    """A scan that has its rows looks no further."""
    log, _ = topical
    damage(log, 20)
    assert log.scan(limit=19).to_arrow()["seq"].to_pylist() == list(range(1, 20))
    with pytest.raises(penstock.Corrupt):
        log.scan(limit=20).to_arrow()
    scan = log.scan(limit=20, on_damage="skip")
    assert scan.to_arrow()["seq"].to_pylist() == [*range(1, 20), 21]
    assert scan.skipped == 1


def test_a_limit_counts_the_rows_that_are_left(tmp_path: Path) -> None:
    """With on_malformed="skip", values that do not fit are no rows."""
    with penstock.create(tmp_path / "log", codec="json") as log:
        log.extend([{"n": i} if i % 3 else {"n": "x"} for i in range(30)])
        for rows in (1, 4, 100):
            scan = log.scan(
                schema={"n": "int64"}, columns=["n"], on_malformed="skip", limit=10, batch_rows=rows
            )
            assert scan.to_arrow()["n"].to_pylist() == [1, 2, 4, 5, 7, 8, 10, 11, 13, 14]
