"""Consumers of several topics, and what is said of arguments that are none."""

from __future__ import annotations

import enum
import os
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Gap, Io, Log, TooLarge, Usage, WrongType
from penstock import layout as L


@pytest.fixture
def four(log: Log) -> Log:
    """A log with three events of each of four topics."""
    for number in range(12):
        log.append(b"%d" % number, topic=("", "a", "b", "ü")[number % 4])
    return log


def test_several_topics(four: Log) -> None:
    """A consumer of several topics is handed the events that have any of them."""
    with four.consumer("c", topic=["b", "a", "a"]) as consumer:
        assert consumer.lag().events == 6
        assert [e.topic for e in consumer.poll()] == ["a", "b"] * 3
        assert consumer.caught_up and consumer.topic == ("a", "b")
        consumer.commit()
    four.append(b"more", topic="b")
    info = four.consumers()["c"]
    assert (info.topic, info.lag.events) == (("a", "b"), 1)
    for again in ({}, {"topic": ("a", "b")}, {"topic": iter("bba")}):
        with four.consumer("c", **again) as consumer:
            assert (consumer.topic, consumer.committed) == (("a", "b"), 13)
    for other in ("a", ["a"], ["a", "b", ""], ["a", "ü"]):
        with pytest.raises(Usage, match=r"made with topic=\['a', 'b'\]"):
            four.consumer("c", topic=other)


def test_one_topic_in_a_list(four: Log, folder: Path) -> None:
    """A list of one topic means that topic; only several need the newer version of the file."""
    with four.consumer("one", topic=["ü"]) as consumer:
        assert consumer.topic == "ü"
    four.consumer("one", topic="ü").close()
    four.consumer("two", topic=["ü", ""]).close()
    at = L.PLACE_DURABLE_BYTES + L.PLACE_VERSION
    assert [(folder / name).read_bytes()[at] for name in ("one", "two")] == [1, 2]
    with four.consumer("two") as consumer:
        consumer.poll()
        consumer.commit()
    assert (folder / "two").read_bytes()[L.PLACE_VERSION] == 2
    assert four.consumers()["two"].committed == 13


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        ([], Usage),
        ([b"a"], WrongType),
        (b"a", WrongType),
        (5, WrongType),
        ([None], WrongType),
        ([f"topic {i}" for i in range(1000)], TooLarge),
    ],
)
def test_no_topics(four: Log, topic: Any, error: type[Exception]) -> None:
    """What is no topic raises, and makes nothing."""
    with pytest.raises(error, match="topic"):
        four.consumer("c", topic=topic)
    assert len(four.consumers()) == 0


def test_a_backup_keeps_them(four: Log, tmp_path: Path) -> None:
    """The topics of a consumer are the same in a copy of its log."""
    four.consumer("c", topic=["a", "b"]).close()
    target = tmp_path / ("copy.ring" if four.kind == "ring" else "copy")
    four.backup(target)
    with penstock.open(target) as copy, copy.consumer("c") as consumer:
        assert consumer.topic == ("a", "b")


@pytest.mark.parametrize("start", ["earliest", "latest", "$", "", 2.5, b"start", object()])
def test_a_start_that_is_none(log: Log, start: Any) -> None:
    """The error for a start or a position names every form of them."""
    with pytest.raises(Usage, match=r"start must be .*a seq, 'start' or 'end' will do"):
        log.consumer("c", start=start)
    assert len(log.consumers()) == 0
    with (
        log.consumer("c") as consumer,
        pytest.raises(Usage, match=r"position must be .*a seq, 'start' or 'end' will do"),
    ):
        consumer.seek(start)


def test_a_name_is_what_the_text_is(log: Log) -> None:
    """A member of an enum that is a str names the consumer that its text names."""

    class Name(str, enum.Enum):  # noqa: UP042 - StrEnum shows its text; this one does not
        BILLING = "billing"

    log.consumer(Name.BILLING).close()
    assert log.consumers().names() == ["billing"]
    assert log.consumers()[Name.BILLING].name == "billing"


@pytest.mark.parametrize("name", ["standby", "hold", "durable", "check"])
def test_a_switch_that_is_neither_makes_nothing(log: Log, name: str) -> None:
    """A value that is neither true nor false is refused by itself, before anything is made."""

    class Neither:
        def __bool__(self) -> bool:
            raise ValueError("neither")

    switch: dict[str, Any] = {name: Neither()}
    with pytest.raises(ValueError, match="neither"):
        log.consumer("c", **switch)
    assert len(log.consumers()) == 0


@pytest.mark.parametrize("what", ["directory", "link", "dangling link", "pipe"])
def test_what_is_no_file_says_so(log: Log, folder: Path, what: str) -> None:
    """The error says that it is no file, and what to do; the listing says it too."""
    log.consumer("other").close()
    if what == "directory":
        (folder / "c").mkdir()
    elif what == "pipe":
        os.mkfifo(folder / "c")
    else:
        (folder / "c").symlink_to(folder / ("other" if what == "link" else "nothing"))
    for call in (log.consumer, log.consumers().delete):
        with pytest.raises(Io, match=r"must be a regular file.*move it away"):
            call("c")
    problem = log.consumers()["c"].problem
    assert problem is not None and "move it away" in problem


def test_a_gap_says_what_to_do(log: Log) -> None:
    """Whoever is overtaken is told where to go on, and doing that helps."""
    for value in (b"a", b"b", b"c"):
        log.append(value)
        if log.kind == "segments":
            log.steward.roll()
    with log.consumer("c") as consumer:
        consumer.poll(1)
        if log.kind == "ring":
            for _ in range(300):
                log.append(bytes(1000))
        else:
            log._change_settings(lambda now: now.changed(first_seq=3))
        with pytest.raises(Gap, match=r"by seek\(\d+\).*on_gap='skip'") as gap:
            while consumer.poll(1):
                pass
        assert gap.value.first_seq is not None
        consumer.seek(gap.value.first_seq)
        assert consumer.poll(1)[0].seq == gap.value.first_seq
