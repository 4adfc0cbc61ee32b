"""A load of any size is there at once or not at all, and a repeat of it is a no-op."""

from __future__ import annotations

import errno
import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Entry, errors
from penstock.segments.leftovers import is_leftover_name
from penstock.system import files
from tests.unit import oracle


def many(count: int, size: int = 1000) -> Iterator[bytes]:
    return (b"%d " % i + b"x" * size for i in range(count))


def leftovers(path: Path) -> list[str]:
    return [n for n in os.listdir(path) if is_leftover_name(n) or n.startswith("lost-")]


def whole(path: Path) -> list[bytes]:
    """All values, as every way of reading and the oracle agree on them."""
    with penstock.open(path) as log:
        values = [e.value for e in log]
        assert [e.value for e in reversed(log)] == values[::-1]
        assert [e.seq for e in log] == list(range(1, len(values) + 1))
        times = [e.append_ns for e in log]
        assert times == sorted(times)
        for seq in range(1, len(values) + 1, 97):
            assert log[seq].value == values[seq - 1]
        assert log.stats().spurious == {}
    assert [f.value for s in oracle.read_log(path) for f in s.events] == values
    numbers = [s.number for s in oracle.read_log(path)]
    assert numbers == list(range(1, len(numbers) + 1))
    return [v or b"" for v in values]


@pytest.mark.parametrize("count", [0, 1, 10, 50, 500])
@pytest.mark.parametrize("before", [0, 3])
def test_a_load_is_appended_in_order(path: Path, count: int, before: int) -> None:
    """Few events and many, in an empty log and after others, come out as they went in."""
    with penstock.open(path, segment_size="64KiB") as log:
        start = [b"before"] * before
        log.extend(start)
        assert log.load(many(count)) == range(before + 1, before + 1 + count)
        assert log.append(b"after") == before + count + 1
        assert leftovers(path) == []
    assert whole(path) == [*start, *many(count), b"after"]


def test_parts_and_entries(path: Path) -> None:
    """Keys, topics, headers and times hold for all, or for the entries that have their own."""
    entries: list[Any] = [
        Entry(b"x" * 900, key=b"own", topic="mine", headers={"h": b"1"}, time=5) if i % 3 else b"y"
        for i in range(900)
    ]
    with penstock.open(path, segment_size="64KiB") as log:
        log.load(entries, key=b"all", topic="ours", time=7)
        for i, event in enumerate(log):
            own = bool(i % 3)
            assert event.key == (b"own" if own else b"all")
            assert event.topic == ("mine" if own else "ours")
            assert event.headers == ((("h", b"1"),) if own else ())
            assert event.time_ns == (5 if own else 7)
        assert log.topics() == {"mine", "ours"}
        assert [e.seq for e in log.read(since=6)] == list(range(1, 901, 3))


def test_headers_larger_than_values(path: Path) -> None:
    """What is small in values and large in headers is loaded like any other."""
    with penstock.open(path, segment_size="64KiB") as log:
        assert log.load([b""] * 300, headers={"h": b"x" * 1000}, topic="t" * 900) == range(1, 301)
        assert {(e.topic, e.headers) for e in log} == {("t" * 900, (("h", b"x" * 1000),))}
        with pytest.raises(penstock.TooLarge):
            log.load([b"x" * 60_000])
    assert whole(path) == [b""] * 300


def test_others_append_meanwhile(path: Path) -> None:
    """What others appended, rolled and configured while a load was written comes before it."""
    with penstock.open(path, segment_size="64KiB") as log, penstock.open(path) as other:

        def values() -> Iterator[bytes]:
            for i, value in enumerate(many(600)):
                if i == 100:
                    other.append(b"other", producer=("o", 1))
                if i == 300:
                    other.steward.roll()
                    other.configure(segment_size="128KiB")
                if i == 599:
                    other.append(b"another")
                assert other.last_seq < 3, "a load shows before it is whole"
                yield value

        assert log.load(values(), producer=("l", 4)) == range(3, 603)
        assert other.load([], producer=("l", 4)) == range(3, 603)
        assert other.append(b"", producer=("o", 1)) == 1
        assert log.settings.segment_size == 128 << 10
    assert whole(path) == [b"other", b"another", *many(600)]


def test_a_repeat_is_a_no_op(path: Path) -> None:
    """The same producer and number again returns the same seqs and touches nothing."""
    with penstock.open(path, segment_size="64KiB") as log:
        for count in (3, 300):
            first = log.load(many(count), producer=("job", count))
            assert len(first) == count

            def refuse() -> Iterator[bytes]:
                raise AssertionError("a repeat looked at its values")
                yield b""

            assert log.load(refuse(), producer=("job", count)) == first
            with pytest.raises(penstock.Conflict):
                log.load(refuse(), producer=("job", count - 1))
    path.joinpath("control").unlink()
    with penstock.open(path) as log:
        assert log.load([], producer=("job", 300)) == range(4, 304)
        with pytest.raises(penstock.Usage, match="must have at least one event"):
            log.load([], producer=("job", 301))
        assert log.last_seq == 303


def test_two_loads_of_one_number(path: Path) -> None:
    """Of two loads under one number that run at the same time, one is taken."""
    with penstock.open(path, segment_size="64KiB") as log, penstock.open(path) as other:

        def values() -> Iterator[bytes]:
            for i, value in enumerate(many(300)):
                if i == 200:
                    assert other.load(many(300), producer=("job", 1)) == range(1, 301)
                yield value

        assert log.load(values(), producer=("job", 1)) == range(1, 301)
        assert leftovers(path) == []
    assert whole(path) == list(many(300))


def test_values_that_fail_halfway(path: Path) -> None:
    """If the values raise, or one is too large or no value, nothing of the load is there."""
    with penstock.open(path, segment_size="64KiB") as log:
        log.append(b"first")

        def broken(last: Any) -> Iterator[Any]:
            yield from many(300)
            if isinstance(last, BaseException):
                raise last
            yield last

        for last, error in (
            (KeyError("mine"), KeyError),
            (KeyboardInterrupt(), KeyboardInterrupt),
            (b"x" * 70_000, penstock.TooLarge),
            ("text", penstock.WrongType),
            (None, penstock.Usage),
        ):
            with pytest.raises(error):
                log.load(broken(last))
            assert leftovers(path) == []
            assert log.last_seq == 1
        with pytest.raises(penstock.WrongType):
            log.load(7)  # type: ignore[arg-type]
    assert whole(path) == [b"first"]


def test_progress_and_durability(path: Path) -> None:
    """Progress counts up to all events; a durable load is on disk when it returns."""
    seen: list[int] = []
    with penstock.open(path, segment_size="64KiB") as log:
        seqs = log.load(many(300), durable=True, progress=seen.append)
        assert log.durable_seq == seqs[-1]
        assert seen == sorted(seen) and seen[-1] == 300 and len(seen) > 5
        assert log.load([b"a"], durable=True) == range(301, 302)
        assert log.durable_seq == 301


CALLS = [
    *("allocate", "rename", "sync_dir", "sync_data", "create_file", "open_file", "read_at"),
    *("write_at", "list_dir", "size", "unlink", "make_dir", "remove_tree"),
]


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_a_failing_call(
    path: Path, monkeypatch: pytest.MonkeyPatch, name: str, moved: bool, code: int
) -> None:
    """Whichever call fails in a load, it is whole or absent, and told so; the log goes on."""
    real = getattr(files, name)
    signature = inspect.signature(real)
    for nth in range(1, 60, 1 if name in ("rename", "sync_dir", "make_dir", "unlink") else 6):
        where = path.with_name(f"{name}-{nth}")
        calls = 0

        def faulty(*args: Any, nth: int = nth, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == nth:
                bound = signature.bind(*args, **kwargs).arguments
                at = str(bound.get("path", bound.get("target", "")))
                raise errors.from_os(OSError(code, os.strerror(code)), "testing", at)
            return real(*args, **kwargs)

        with penstock.open(where, segment_size="64KiB") as log, penstock.open(where) as other:
            log.append(b"first")
            expected = [b"first"]

            def values() -> Iterator[bytes]:
                for i, value in enumerate(many(250)):
                    if moved and i == 200:
                        with monkeypatch.context() as calm:
                            calm.setattr(files, name, real)
                            other.append(b"between")
                    yield value

            loaded = True
            with monkeypatch.context() as patch:
                patch.setattr(files, name, faulty)
                try:
                    log.load(values(), producer=("l", 1))
                except penstock.PenstockError:
                    loaded = False
            if other.last_seq > 1 and other[2].value == b"between":
                expected.append(b"between")
            there = other.last_seq > len(expected)
            assert there or not loaded, "acknowledged and not there"
            if there:
                expected += list(many(250))
            assert [e.value for e in other] == expected
            try:
                log.append(b"after")
                expected.append(b"after")
            except penstock.Poisoned:
                assert name in ("sync_dir", "sync_data")
        assert whole(where) == expected
        if calls < nth:
            break


def test_a_child_loads(path: Path) -> None:
    """A load works in a child of a fork as anywhere else."""
    with penstock.open(path, segment_size="64KiB") as log:
        log.append(b"parent")
        child = os.fork()
        if child == 0:
            try:
                ok = log.load(many(300)) == range(2, 302)
                os._exit(0 if ok else 1)
            except BaseException:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert log.append(b"after") == 302
    assert whole(path) == [b"parent", *many(300), b"after"]
