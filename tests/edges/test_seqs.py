"""Positions: what a seq is, and which words stand for one, is the same for every call."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import pytest

import penstock


@pytest.fixture(params=["log", "ring"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[penstock.Log]:
    """A log of three events, of either kind."""
    options: dict[str, Any] = {"ring": "64KiB"} if request.param == "ring" else {}
    with penstock.open(tmp_path / "x", **options) as opened:
        opened.extend([b"a", b"b", b"c"])
        yield opened


SEQ_CALLS: dict[str, Callable[[penstock.Log, Any], object]] = {
    "read": lambda log, n: log.read(n),
    "read stop": lambda log, n: log.read(1, n),
    "read reverse": lambda log, n: log.read(n, reverse=True),
    "scan": lambda log, n: log.scan(n),
    "scan stop": lambda log, n: log.scan(None, n),
    "follow": lambda log, n: log.follow(n, timeout=0),
    "item": operator.getitem,
    "wait": lambda log, n: log.wait(0, after=n),
    "wait_durable": lambda log, n: log.wait_durable(n),
    "append expect": lambda log, n: log.append(b"x", expect=n),
    "extend expect": lambda log, n: log.extend([b"x"], expect=n),
    "load expect": lambda log, n: log.load([b"x"], expect=n),
}
calls = pytest.mark.parametrize("call", SEQ_CALLS.values(), ids=list(SEQ_CALLS))


class Second:
    """Something that is no int, and has the number 2."""

    def __index__(self) -> int:
        return 2


@calls
@pytest.mark.parametrize("seq", [-1, -(2**63), -(2**63) - 1, -(2**70), np.int64(-3)], ids=str)
def test_a_negative_seq_is_refused(
    log: penstock.Log, call: Callable[[penstock.Log, Any], object], seq: int
) -> None:
    """A negative seq is Usage in every call: only log[-1] and slices count from the end."""
    if call is operator.getitem:
        pytest.skip("log[-1] is the newest event")
    with pytest.raises(penstock.Usage, match="must be 0 or more"):
        call(log, seq)
    assert log.last_seq == 3


@calls
@pytest.mark.parametrize("seq", [True, False, np.True_, 1.0, b"1", "1", "middle", [1]], ids=repr)
def test_what_is_no_seq_is_refused(
    log: penstock.Log, call: Callable[[penstock.Log, Any], object], seq: object
) -> None:
    """A bool, a float, text and the like are WrongType in every call that takes a seq."""
    with pytest.raises(penstock.WrongType, match="must be a seq"):
        call(log, seq)
    assert log.last_seq == 3


@pytest.mark.parametrize(
    "two", [2, np.int64(2), np.uint8(2), Second()], ids=lambda v: type(v).__name__
)
def test_whatever_has_an_index_is_a_seq(log: penstock.Log, two: SupportsIndex) -> None:
    """A number of any type with __index__ is a seq, in every call."""
    assert [e.seq for e in log.read(two)] == [2, 3]
    assert [e.seq for e in log.read(None, two)] == [1]
    assert log.scan(two).to_arrow()["seq"].to_pylist() == [2, 3]
    assert [e.seq for e in log.follow(two, timeout=0)] == [2, 3]
    assert log[two].value == b"b"
    assert log.wait(0, after=two) is True
    assert log.wait_durable(two) is True
    with pytest.raises(penstock.Conflict) as caught:
        log.append(b"x", expect=two)
    assert (caught.value.expected, caught.value.found) == (2, 3)


@pytest.mark.parametrize("start", [None, "start", 0, 1])
def test_every_read_begins_at_the_same_words(log: penstock.Log, start: Any) -> None:
    """read, scan and follow take None, "start", 0 and 1 alike: from the first event on."""
    assert [e.seq for e in log.read(start)] == [1, 2, 3]
    assert [e.seq for e in log.read(start, "end")] == [1, 2, 3]
    assert [e.seq for e in log.read(start, reverse=True)] == [3, 2, 1]
    assert log.scan(start).to_arrow()["seq"].to_pylist() == [1, 2, 3]
    assert [e.seq for e in log.follow(start, timeout=0)] == [1, 2, 3]


def test_every_read_knows_the_end(log: penstock.Log) -> None:
    """ "end" is after the newest event, in read, scan and follow alike."""
    assert list(log.read("end")) == []
    assert log.scan("end").to_arrow().num_rows == 0
    following = log.follow("end", timeout=0)
    assert list(following) == []
    log.append(b"d")
    assert [e.seq for e in log.follow(4, timeout=0)] == [4]
    assert [e.seq for e in log.read(2, "end")] == [2, 3, 4]
    assert list(log.read("start", "start")) == []


def test_waiting_says_whether_it_happened(log: penstock.Log) -> None:
    """wait and wait_durable return True if what they wait for is so, and False if time is up."""
    assert log.wait(0) is False
    assert log.wait(0, after=2) is True
    assert log.wait_durable(3) is True
    assert log.wait_durable(0) is True


def test_wait_durable_is_false_when_time_is_up(
    log: penstock.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """wait_durable is False after its timeout while another syncs; a durable append is Busy."""
    began, go_on = threading.Event(), threading.Event()
    storage = type(log._storage)
    run = storage.sync

    def slow(self: Any, *args: Any) -> None:
        began.set()
        go_on.wait(60)
        run(self, *args)

    monkeypatch.setattr(storage, "sync", slow)
    syncing = threading.Thread(target=log.sync)
    syncing.start()
    try:
        assert began.wait(60)
        assert log.wait_durable(3, timeout=0.01) is False
        with pytest.raises(penstock.Busy):
            log.append(b"d", durable=True, timeout=0.01)
    finally:
        go_on.set()
        syncing.join()
    assert log.wait_durable(4) is True
