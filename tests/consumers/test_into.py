"""Exactly once from log to log: results and position are one batch in the output."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Conflict, Entry, Log, Permission, Usage, WrongType


@pytest.fixture
def out(tmp_path: Path) -> Any:
    with penstock.open(tmp_path / "out") as opened:
        yield opened


def values(log: Log) -> list[bytes]:
    return [event.value for event in log]


def test_a_step_appends_all_of_its_results(log: Log, out: Log) -> None:
    """Results get key, topic, headers, time and tags, and their seqs when the step ends."""
    log.extend([b"a", b"b"])
    with log.consumer("c") as consumer:
        with consumer.into(out) as step:
            for event in consumer.poll():
                step.append(
                    event.value.upper(), key=b"k", topic="t", headers={"h": b"1"}, tags=["g"]
                )
                assert len(out) == 0, "nothing is there before the step ends"
            step.extend([b"c", Entry(b"d", topic="u"), log[1]])
            step.append(log[2])
            with pytest.raises(Usage, match="topic is given twice"):
                step.append(log[2], topic="t")
        assert (step.seqs, consumer.committed) == (range(1, 7), 3)
    assert values(out) == [b"A", b"B", b"c", b"d", b"a", b"b"]
    assert (out[1].key, out[1].topic, out[1].headers[0]) == (b"k", "t", ("h", b"1"))


def test_what_was_done_is_passed_over(log: Log, out: Log) -> None:
    """The output says how far the input was processed, also if the consumer never committed."""
    log.extend([b"a", b"b", b"c"])
    with log.consumer("c") as consumer, consumer.into(out) as step:
        step.extend(consumer.poll(2))
    log.consumers().delete("c")
    with log.consumer("c") as consumer:
        with consumer.into(out) as step:
            step.extend(consumer.poll())
        assert values(out) == [b"a", b"b", b"c"]
        with consumer.into(out) as step:
            assert consumer.poll() == []


def test_event_by_event(log: Log, out: Log) -> None:
    """A step about an event that was handed out before: it appends nothing if that was done."""
    log.extend([b"a", b"b", b"c"])
    for _ in range(3):
        with log.consumer("c", timeout=0) as consumer:
            for event in consumer:
                with consumer.into(out) as step:
                    step.append(event.value)
        log.consumers().delete("c")
    assert values(out) == [b"a", b"b", b"c"]


def test_a_batch_that_was_done_in_part(log: Log, out: Log) -> None:
    """Events of which some were processed are no step: it raises, and the rest comes next."""
    log.extend([b"a", b"b", b"c"])
    with log.consumer("c") as consumer, consumer.into(out) as step:
        step.extend(consumer.poll(2))
    log.consumers().delete("c")
    with log.consumer("c") as consumer:
        consumer.poll(3)
        with pytest.raises(Conflict, match="goes on at seq 3"), consumer.into(out):
            raise AssertionError("the block does not run")
        with consumer.into(out) as step:
            step.extend(consumer.poll())
    assert values(out) == [b"a", b"b", b"c"]


def test_events_of_before_and_of_the_step(log: Log, out: Log) -> None:
    """A step about an event that was done, which takes others too, passes over none of those."""
    log.extend([b"a", b"b", b"c"])
    with log.consumer("c") as consumer, consumer.into(out) as step:
        step.extend(consumer.poll(1))
    log.consumers().delete("c")
    with log.consumer("c") as consumer:
        first = next(consumer)
        with pytest.raises(Conflict, match="goes on at seq 2"), consumer.into(out) as step:
            step.extend([first, *consumer.poll(1)])
        assert (values(out), consumer.committed) == ([b"a"], 2)
        with consumer.into(out) as step:
            step.extend(consumer.poll())
    assert values(out) == [b"a", b"b", b"c"]


def test_a_step_that_has_ended_takes_nothing(log: Log, out: Log) -> None:
    """Results that come too late are refused, not dropped; also of a step that was undone."""
    log.extend([b"a", b"b"])
    with log.consumer("c") as consumer:
        with consumer.into(out) as done:
            done.extend(consumer.poll(1))
        with pytest.raises(RuntimeError), consumer.into(out) as undone:
            raise RuntimeError
        for step in (done, undone):
            with pytest.raises(Usage, match="has ended"):
                step.append(b"late")
            with pytest.raises(Usage, match="has ended"):
                step.extend([b"late"])
    assert values(out) == [b"a"]


def test_an_exception_undoes_the_step(log: Log, out: Log) -> None:
    """Nothing is appended, and the events of the step are handed out again."""
    log.extend([b"a", b"b"])
    with log.consumer("c") as consumer:
        with pytest.raises(RuntimeError), consumer.into(out) as step:
            step.extend(consumer.poll())
            raise RuntimeError
        assert (len(out), consumer.position, consumer.committed) == (0, 1, 1)
        with pytest.raises(WrongType), consumer.into(out) as step:
            step.append(consumer.poll(1)[0])
            step.append(7)
        assert (len(out), consumer.position) == (0, 1)
        with consumer.into(out) as step:
            step.extend(consumer.poll())
    assert values(out) == [b"a", b"b"]


def test_a_step_without_results_moves_on(log: Log, out: Log) -> None:
    """A filter that drops everything still gets somewhere."""
    log.extend([b"a", b"b"])
    with log.consumer("c") as consumer:
        with consumer.into(out):
            consumer.poll()
        assert consumer.committed == 3
    with log.consumer("c") as consumer, consumer.into(out):
        assert consumer.poll() == []


def test_results_of_nothing(log: Log, out: Log) -> None:
    """Results without an event could not be told from a repeat: an error, and nothing is lost."""
    log.append(b"a")
    with log.consumer("c") as consumer:
        with consumer.into(out) as step:
            step.extend(consumer.poll())
        with pytest.raises(Usage, match="must have taken events"), consumer.into(out) as step:
            step.append(b"tick")
        log.append(b"b")
        with consumer.into(out) as step:
            step.extend(consumer.poll())
    assert values(out) == [b"a", b"b"]


def test_several_inputs_into_one_output(log: Log, out: Log, tmp_path: Path) -> None:
    """Each input has its own position in the output."""
    with penstock.open(tmp_path / "two") as two:
        log.extend([b"a1", b"a2"])
        two.extend([b"b1", b"b2", b"b3"])
        for again in range(2):
            for source in (log, two):
                with source.consumer("merge") as consumer, consumer.into(out) as step:
                    step.extend(consumer.poll(2))
                source.consumers().delete("merge")
            assert len(out) == 4 + again
    assert values(out) == [b"a1", b"a2", b"b1", b"b2", b"b3"]


def test_many_other_producers_do_not_push_it_out(log: Log, out: Log) -> None:
    """The output remembers as many producers as one segment has room for; a pipeline stays."""
    log.extend([b"%d" % i for i in range(40)])
    for i in range(40):
        for other in range(100):
            out.append(b"x", producer=(f"other-{i}-{other}", 1), topic="x")
        with log.consumer("c") as consumer, consumer.into(out) as step:
            step.extend(consumer.poll(1))
        log.consumers().delete("c")
    assert [e.value for e in out.read(topic="")] == [b"%d" % i for i in range(40)]


def test_odd_outputs(log: Log, out: Log, tmp_path: Path) -> None:
    """What takes no appends is refused before a step begins; so is a step within a step."""
    with log.consumer("c") as consumer:
        for odd in (None, str(tmp_path), log.consumers()):
            with pytest.raises(WrongType, match="out must be a log"):
                consumer.into(odd)  # type: ignore[arg-type]
        with penstock.open(tmp_path / "out", mode="r") as reading, pytest.raises(Permission):
            consumer.into(reading)
        with consumer.into(out), pytest.raises(Usage, match="step under way"), consumer.into(out):
            pass


def test_an_input_that_lost_events(log: Log, out: Log, tmp_path: Path) -> None:
    """If the input ends before what was processed, its next events are not passed over silently."""
    log.append(b"a")
    copy = tmp_path / "copy"
    log.backup(copy)
    log.append(b"b")
    with log.consumer("c") as consumer, consumer.into(out) as step:
        step.extend(consumer.poll())
    with (
        penstock.open(copy) as older,
        older.consumer("c") as consumer,
        pytest.raises(Conflict, match="lost events"),
    ):
        consumer.into(out)


def test_only_the_step_stores_the_position(log: Log, out: Log) -> None:
    """A commit or a seek during a step, or a consumer that commits by itself, is an error."""
    log.extend([b"a", b"b"])
    with log.consumer("c") as consumer:
        with consumer.into(out) as step:
            step.extend(consumer.poll(1))
            with pytest.raises(Usage, match="step"):
                consumer.commit()
            with pytest.raises(Usage, match="step"):
                consumer.seek("end")
        assert consumer.committed == 2
    with log.consumer("c", auto_commit=0) as consumer:
        with pytest.raises(Usage, match="without auto_commit"):
            consumer.into(out)
        with pytest.raises(Usage, match="without auto_commit"):
            consumer.track(sqlite3.connect(":memory:"))
