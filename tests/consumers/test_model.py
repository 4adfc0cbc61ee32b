"""Consumers against a plain model: any order of appends, polls, commits, seeks, deaths and laps."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, ClassVar

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import penstock
from penstock import Consumer, Gap, Log, Usage
from tests.support.fixtures import STORM

TOPICS = ["a", "b", "c"]


class Model:
    """One consumer, as its users think of it."""

    def __init__(self, at: int, topic: str | None) -> None:
        self.topic = topic
        self.position = self.committed = self.began = at
        self.oldest = False  # nothing was read yet: it begins with what is there then
        self.waiting = False  # whether an event that was handed out awaits its commit
        self.sought = False  # whether a seek does

    def go_to(self, at: int, *, oldest: bool = False, sought: bool = False) -> None:
        self.position = self.began = at
        self.sought = sought
        self.oldest = oldest
        self.waiting = False


class Machine(RuleBasedStateMachine):
    """A log of one kind and its consumers; `kind` is set below."""

    options: ClassVar[dict[str, Any]]

    @initialize()
    def make(self) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.path = Path(self.directory.name) / "log"
        self.log: Log = penstock.create(self.path, **self.options)
        self.topics: list[str] = []  # of each event, from seq 1
        self.models: dict[str, Model] = {}
        self.open: dict[str, Consumer] = {}

    def teardown(self) -> None:
        if hasattr(self, "log"):
            for consumer in self.open.values():
                consumer.close()
            self.log.close()
            self.directory.cleanup()

    def matching(self, model: Model, start: int) -> list[int]:
        return [
            seq
            for seq in range(start, len(self.topics) + 1)
            if model.topic in (None, self.topics[seq - 1])
        ]

    @rule(
        topics=st.lists(st.sampled_from(TOPICS), min_size=1, max_size=8), nbytes=st.integers(0, 900)
    )
    def append(self, topics: list[str], nbytes: int) -> None:
        for topic in topics:
            self.log.append(b"x" * nbytes, topic=topic)
            self.topics.append(topic)

    @rule(topic=st.sampled_from(TOPICS), count=st.integers(30, 60))
    def lap(self, topic: str, count: int) -> None:
        """Of a ring, about one lap."""
        for _ in range(count):
            self.log.append(b"x" * 900, topic=topic)
            self.topics.append(topic)

    @rule(
        name=st.sampled_from("xyz"),
        topic=st.sampled_from([None, "a", "b"]),
        start=st.sampled_from(["start", "end"]),
    )
    def open_one(self, name: str, topic: str | None, start: str) -> None:
        if name in self.open:
            with pytest.raises(penstock.Busy):
                self.log.consumer(name)
            return
        model = self.models.get(name)
        if model is None:
            at = self.log.first_seq if start == "start" else self.log.last_seq + 1
            model = self.models[name] = Model(at, topic)
            model.oldest = start == "start"
        elif topic not in (None, model.topic):
            with pytest.raises(Usage):
                self.log.consumer(name, topic=topic)
            return
        self.open[name] = self.log.consumer(name, topic=topic, start=start)
        model.go_to(model.committed, oldest=model.oldest)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), count=st.integers(1, 40))
    def poll(self, data: st.DataObject, count: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.open)))
        consumer, model = self.open[name], self.models[name]
        if model.oldest and model.position <= len(self.topics):
            model.position = max(model.position, self.log.first_seq)
            model.oldest = False
        expected = self.matching(model, model.position)[:count]
        try:
            found = [event.seq for event in consumer.poll(count)]
        except Gap as gap:
            assert gap.first_seq == self.log.first_seq > model.position
            to: Any = data.draw(st.sampled_from(["start", gap.first_seq]))
            consumer.seek(to)
            model.go_to(gap.first_seq, oldest=to == "start", sought=True)
            return
        if found:
            model.position = found[-1] + 1
            model.waiting = True
        if found != expected:  # what follows was overwritten: the next call says so
            assert found and found == expected[: len(found)]
            assert self.log.first_seq > consumer.position >= model.position
            assert consumer.position <= expected[len(found)]
            model.position = consumer.position
        if len(found) < count and found == expected:
            model.position = len(self.topics) + 1
        if not found and not model.waiting and not model.sought:
            model.committed = model.position

    @precondition(lambda self: self.open)
    @rule(data=st.data(), durable=st.booleans())
    def commit(self, data: st.DataObject, durable: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.open)))
        self.open[name].commit(durable=durable)
        model = self.models[name]
        model.committed = model.position
        model.waiting = model.sought = False

    @precondition(lambda self: self.open)
    @rule(data=st.data(), seq=st.integers(0, 200))
    def commit_one(self, data: st.DataObject, seq: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.open)))
        model = self.models[name]
        if model.began - 1 <= seq < model.position:
            self.open[name].commit(seq)
            model.committed = seq + 1
            model.waiting = model.committed < model.position
            model.sought = False
        else:
            with pytest.raises(Usage):
                self.open[name].commit(seq)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), to=st.one_of(st.sampled_from(["start", "end"]), st.integers(1, 100)))
    def seek(self, data: st.DataObject, to: Any) -> None:
        name = data.draw(st.sampled_from(sorted(self.open)))
        model, end = self.models[name], self.log.last_seq + 1
        if isinstance(to, int) and to > end:
            with pytest.raises(Usage):
                self.open[name].seek(to)
            return
        self.open[name].seek(to)
        at = {"start": self.log.first_seq, "end": end}.get(to, to)
        model.go_to(at, oldest=to == "start", sought=True)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def close_one(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.open)))
        self.open.pop(name).close()
        self.models[name].oldest = False

    @rule()
    def reopen(self) -> None:
        for name, consumer in self.open.items():
            consumer.close()
            self.models[name].oldest = False
        self.open.clear()
        self.log.close()
        self.log = penstock.open(self.path)

    @precondition(lambda self: self.models)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.models)))
        if name in self.open:
            with pytest.raises(penstock.Busy):
                self.log.consumers().delete(name)
        else:
            self.log.consumers().delete(name)
            del self.models[name]

    @invariant()
    def places_agree(self) -> None:
        if not hasattr(self, "log"):
            return
        listed = {info.name: info for info in self.log.consumers()}
        assert sorted(listed) == sorted(self.models)
        for name, model in self.models.items():
            info = listed[name]
            assert (info.committed, info.topic) == (model.committed, model.topic)
            assert info.live == (name in self.open)
            behind = self.matching(model, max(model.committed, self.log.first_seq))
            assert info.lag.events == len(behind)
        for name, consumer in self.open.items():
            model = self.models[name]
            if self.log.first_seq <= model.position:
                assert consumer.position == model.position
                behind = self.matching(model, model.position)
                assert consumer.lag().events == len(behind)
                assert consumer.caught_up == (not behind)


class LogMachine(Machine):
    options: ClassVar = {"segment_size": "64KiB"}


class RingMachine(Machine):
    options: ClassVar = {"ring": "32KiB"}


LENGTH = settings(
    max_examples=400 if STORM else 25,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def test_log() -> None:
    """Consumers of a log of segments do as the model says."""
    run_state_machine_as_test(LogMachine, settings=LENGTH)


def test_ring() -> None:
    """Consumers of a ring do as the model says, laps included."""
    run_state_machine_as_test(RingMachine, settings=LENGTH)
