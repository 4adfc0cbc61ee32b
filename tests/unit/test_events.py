"""Event: a lazy, read-only view of one frame that compares, hashes, prints and travels."""

from __future__ import annotations

import copy
import gc
import pickle
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import _core


def test_fields(log: penstock.Log) -> None:
    """Each field is what was appended; what was not given has its documented absence."""
    log.append(b"v")
    log.append(b"v", key=b"k", topic="t", headers=[("a", b"1"), ("a", None)], time=7)
    bare, full = log
    assert (bare.seq, bare.topic, bare.key, bare.headers, bare.value) == (1, "", None, (), b"v")
    assert (full.seq, full.topic, full.key, full.value) == (2, "t", b"k", b"v")
    assert full.headers == (("a", b"1"), ("a", None))
    assert (full.time_ns, full.deletes, full.batch_left) == (7, False, 0)


def test_events_cannot_be_changed(log: penstock.Log) -> None:
    """No field can be set, and the view cannot be written through."""
    log.append(b"value")
    event = log[1]
    for name in ("seq", "value", "topic", "key", "time_ns", "headers"):
        with pytest.raises(AttributeError):
            setattr(event, name, None)
    assert event.view.readonly
    with pytest.raises(TypeError):
        event.view[0] = 0


def test_the_view_is_no_copy(log: penstock.Log) -> None:
    """The view is the mapped frame itself: its buffer belongs to the event, not to new bytes."""
    log.append(b"value", key=b"k", topic="t", time=3)
    event: Any = log[1]
    assert event.view.obj is event
    assert (event.view.tobytes(), event.view.nbytes, event.view.format) == (b"value", 5, "B")
    assert memoryview(event).tobytes() == b"value"


def test_the_view_of_a_delete_is_empty(log: penstock.Log) -> None:
    """A delete has no value, and its view has no bytes."""
    log.append(None, key=b"k")
    assert log[1].view.tobytes() == b""


def test_fields_are_decoded_when_asked_for(log: penstock.Log) -> None:
    """Reading an event decodes nothing: each access makes the field from the frame again."""
    log.append(b"x" * 100, topic="topic" * 20)
    event = log[1]
    assert event.value is not event.value
    assert event.topic is not event.topic
    assert event.value == event.value


def test_equality_and_hash(log: penstock.Log) -> None:
    """Two readings of one event are equal and hash alike; different events differ."""
    log.extend([b"same", b"same"])
    first: Any = log[1]
    again, second = next(iter(log)), log[2]
    assert first is not again
    assert first == again
    assert hash(first) == hash(again)
    assert first != second
    assert len({first, again, second}) == 2
    assert first != b"same"
    assert (first == 1) is False


def test_equality_looks_at_every_part(path: Path, tmp_path: Path) -> None:
    """Events of two logs with the same seq and value are not equal if another part differs."""
    with penstock.open(path) as one, penstock.open(tmp_path / "two") as two:
        one.append(b"v", key=b"k", time=1)
        two.append(b"v", key=b"K", time=1)
        assert one[1] != two[1]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"value": b"v"}, "Event(seq=1, value=b'v')"),
        (
            {"value": b"v", "topic": "t", "key": b"k"},
            "Event(seq=1, topic='t', key=b'k', value=b'v')",
        ),
        ({"value": None, "key": b""}, "Event(seq=1, key=b'', value=None)"),
        ({"value": b"x" * 41}, f"Event(seq=1, value={b'x' * 40 + b'...'!r})"),
    ],
)
def test_repr(log: penstock.Log, parts: dict[str, Any], expected: str) -> None:
    """repr() shows seq, topic, key and the beginning of the value."""
    log.append(parts.pop("value"), **parts)
    assert repr(log[1]) == expected


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_keeps_everything(log: penstock.Log, protocol: int) -> None:
    """An event that went through pickle is equal in every field, without its log."""
    log.append(b"v" * 13, key=b"", topic="tøpic", headers={"h": None}, time=5)
    log.extend([b"", b"b"])
    log.append(None, key=b"k")
    events = list(log)
    copies = pickle.loads(pickle.dumps(events, protocol))
    log.close()
    assert copies == events
    for one, other in zip(events, copies, strict=True):
        for name in ("seq", "time_ns", "append_ns", "topic", "key", "value", "headers", "deletes"):
            assert getattr(one, name) == getattr(other, name)
        assert hash(one) == hash(other)


def test_copies_are_equal(log: penstock.Log) -> None:
    """copy and deepcopy give an equal event."""
    log.append(b"v", key=b"k")
    event = log[1]
    assert copy.copy(event) == copy.deepcopy(event) == event


@pytest.mark.parametrize("cut", range(0, 46, 7))
def test_pickles_are_checked(log: penstock.Log, cut: int) -> None:
    """A frame that was cut short or changed on its way is Corrupt, not an event."""
    log.append(b"value", key=b"k")
    reduced: Any = log[1].__reduce__()
    frame: bytes = reduced[1][0]
    assert _core.event_from_frame(frame) == log[1]
    with pytest.raises(penstock.Corrupt):
        _core.event_from_frame(frame[:cut])
    changed = bytearray(frame)
    changed[min(cut, len(frame) - 1)] ^= 0x40
    with pytest.raises(penstock.Corrupt):
        _core.event_from_frame(bytes(changed))


def test_only_bytes_are_frames() -> None:
    """What is not bytes is WrongType."""
    bad: Any = "text"
    with pytest.raises(penstock.WrongType):
        _core.event_from_frame(bad)


def test_an_event_has_no_constructor() -> None:
    """Calling Event says where events come from."""
    with pytest.raises(penstock.WrongType, match="comes from a log"):
        penstock.Event()


def test_entries_are_tuples() -> None:
    """Entry has a value and, by name or place, what may go with it."""
    entry = penstock.Entry(b"v", b"k", "t", {"h": None}, 5, ["ok"])
    assert entry == (b"v", b"k", "t", {"h": None}, 5, ["ok"], None, None)
    assert penstock.Entry(b"v") == (b"v", None, None, None, None, None, None, None)


def test_a_value_is_found_by_any_string_that_says_so(log: penstock.Log) -> None:
    """Its name need not be the very object that the interpreter uses for names."""
    log.append(b"v")
    event = log[1]
    assert getattr(event, "".join(["va", "lue"])) == getattr(event, "value") == b"v"  # noqa: B009
    assert type(event).value.__get__(event) == b"v"
    assert not hasattr(event, "values")
    with pytest.raises(AttributeError, match="nonsense"):
        event.nonsense  # type: ignore[attr-defined]  # noqa: B018


def test_events_are_no_work_for_the_garbage_collector(log: penstock.Log) -> None:
    """A list of a million events is iterated as one object; none of them can be in a cycle."""
    log.append(b"v")
    assert not gc.is_tracked(log[1])


@pytest.mark.parametrize("kind", ["log", "ring"])
def test_every_way_to_give_a_key_and_a_topic(tmp_path: Path, kind: str) -> None:
    """However a key and a topic are given, the event has them, and wrong ones are refused."""
    ring = "64KiB" if kind == "ring" else None
    with penstock.create(tmp_path / f"a.{kind}", ring=ring) as log:
        ways: list[dict[str, Any]] = [
            {"key": b"k", "topic": "t"},
            {"topic": "t", "key": b"k"},
            {"".join(("ke", "y")): b"k", "".join(("top", "ic")): "t"},  # not interned
            {"key": bytearray(b"k"), "topic": "t"},
            {"key": b"k", "topic": "t", "headers": None, "time": None},
            {"key": b"k", "topic": type("Text", (str,), {})("t")},
        ]
        for way in ways:
            log.append(b"v", **way)
        log.append(penstock.Entry(b"v", key=b"k", topic="t"))
        assert {(e.value, e.key, e.topic) for e in log} == {(b"v", b"k", "t")}
        log.append(b"v", key=b"")
        log.append(b"v", topic="")
        log.append(b"v", key=None, topic=None)
        assert [(e.key, e.topic) for e in log.tail(3)] == [(b"", ""), (None, ""), (None, "")]
        assert log.append(None, key=b"k") == log.last_seq
        last = log.last_seq
        for wrong in ({"key": "k"}, {"topic": b"t"}, {"key": 1, "topic": "t"}):
            with pytest.raises(penstock.WrongType):
                log.append(b"v", **wrong)
        for long in ({"key": bytes(1025)}, {"key": b"k", "topic": "t" * 1025}):
            with pytest.raises(penstock.TooLarge):
                log.append(b"v", **long)
        with pytest.raises(penstock.Usage, match="UTF-8"):
            log.append(b"v", topic="\ud800")
        with pytest.raises(TypeError, match=r"append\(\) got an unexpected keyword argument 'kay'"):
            log.append(b"v", kay=b"k")  # type: ignore[call-arg]
        assert log.last_seq == last
        assert log.verify().ok
