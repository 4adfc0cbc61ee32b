"""Calls that cannot be right: each gets Usage or WrongType, never a bare error of Python's."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.settings import Settings, parse_size

Call = Callable[[Any, Path], Any]

WRONG_TYPE: dict[str, Call] = {
    "append topic": lambda log, _: log.append(b"", topic=b"bytes"),
    "append codec": lambda log, _: log.append(b"", codec=5),
    "append tags": lambda log, _: log.append(b"", tags="ok"),
    "extend codec": lambda log, _: log.extend([b""], codec=b"json"),
    "load codec": lambda log, _: log.load([b""], codec=5),
    "read tags": lambda log, _: log.read(tags="ok"),
    "configure codec": lambda log, _: log.configure(codec=5),
    "open codec": lambda _, p: penstock.open(p / "x", codec=5),  # type: ignore[arg-type]
    "open schema": lambda _, p: penstock.open(p / "x", codec="json", schema=5),  # type: ignore[arg-type]
    "append timeout": lambda log, _: log.append(b"", timeout="1"),
    "extend of None": lambda log, _: log.extend(None),
    "extend of a number": lambda log, _: log.extend(5),
    "extend of text": lambda log, _: log.extend("abc"),
    "extend of bytes": lambda log, _: log.extend(b"abc"),
    "extend timeout": lambda log, _: log.extend([b"a"], timeout="1"),
    "log[str]": lambda log, _: log["1"],
    "log[float]": lambda log, _: log[1.0],
    "log[slice]": lambda log, _: log["1":2],
    "log[None]": lambda log, _: log[None],
    "log[bool]": lambda log, _: log[True],
    "read start": lambda log, _: log.read("1"),
    "read start bool": lambda log, _: log.read(True),
    "read start float": lambda log, _: log.read(1.5),
    "read stop": lambda log, _: log.read(1, "2"),
    "read topic": lambda log, _: log.read(topic=b"t"),
    "read key text": lambda log, _: log.read(key="k"),
    "read key number": lambda log, _: log.read(key=5),
    "follow topic": lambda log, _: log.follow(topic=5),
    "follow key text": lambda log, _: log.follow(key="k"),
    "follow key number": lambda log, _: log.follow(key=5),
    "follow timeout": lambda log, _: log.follow(timeout="1"),
    "follow spin": lambda log, _: log.follow(spin="1"),
    "reader.wait": lambda log, _: log.follow().wait("1"),
    "reader.take": lambda log, _: log.read().take("1"),
    "wait": lambda log, _: log.wait("1"),
    "wait after": lambda log, _: log.wait(0, after="1"),
    "configure size": lambda log, _: log.configure(segment_size=1.5),
    "configure size bool": lambda log, _: log.configure(segment_size=True),
    "configure mode": lambda log, _: log.configure(file_mode="660"),
    "Settings": lambda *_: Settings(segment_size="64MiB"),  # type: ignore[arg-type]
    "backup to bytes": lambda log, p: log.backup(bytes(p / "copy")),
    "backup to a number": lambda log, _: log.backup(5),
    "open a number": lambda *_: penstock.open(5),  # type: ignore[arg-type]
    "open bytes": lambda _, p: penstock.open(bytes(p / "x")),  # type: ignore[arg-type]
    "open None": lambda *_: penstock.open(None),  # type: ignore[arg-type]
    "open timeout": lambda _, p: penstock.open(p / "x", timeout="1"),  # type: ignore[arg-type]
    "create a number": lambda *_: penstock.create(5),  # type: ignore[arg-type]
    "create bytes": lambda _, p: penstock.create(bytes(p / "x")),  # type: ignore[arg-type]
    "Event": lambda *_: penstock.Event(),
    "parse_size": lambda *_: parse_size(1.5, "x"),  # type: ignore[arg-type]
}

USAGE: dict[str, Call] = {
    "append timeout": lambda log, _: log.append(b"", timeout=-1),
    "append timeout nan": lambda log, _: log.append(b"", timeout=math.nan),
    "follow timeout": lambda log, _: log.follow(timeout=-1),
    "follow start": lambda log, _: log.follow("middle"),
    "follow start bool": lambda log, _: log.follow(True),
    "follow start float": lambda log, _: log.follow(1.5),
    "follow spin": lambda log, _: log.follow(spin=-1),
    "wait": lambda log, _: log.wait(-1),
    "setting of open": lambda _, p: penstock.open(p / "x", segment_size="much"),
    "codec": lambda _, p: penstock.open(p / "x", codec="nobody's"),
    "unknown codec": lambda _, p: penstock.open(p / "x", codec="nobodys"),
    "append unknown codec": lambda log, _: log.append(b"", codec="nobodys"),
    "configure codec": lambda log, _: log.configure(codec="json"),
    "schema of bytes": lambda _, p: penstock.open(p / "x", schema=int),
    "mode": lambda _, p: penstock.open(p / "x", mode="w"),  # type: ignore[arg-type]
    "a NUL in the path": lambda _, p: penstock.open(f"{p}/a\0b"),
    "open timeout": lambda _, p: penstock.open(p / "x", timeout=-1),
    "a size of 5000 digits": lambda *_: parse_size("9" * 5000, "x"),
}


@pytest.mark.parametrize("name", WRONG_TYPE)
def test_wrong_types(log: penstock.Log, tmp_path: Path, name: str) -> None:
    """An argument of a wrong type is WrongType, which is a TypeError, and changes nothing."""
    log.append(b"there")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(penstock.WrongType) as caught:
        WRONG_TYPE[name](log, tmp_path)
    assert isinstance(caught.value, TypeError)
    assert (len(log), sorted(tmp_path.rglob("*"))) == (1, before)


@pytest.mark.parametrize("name", USAGE)
def test_wrong_values(log: penstock.Log, tmp_path: Path, name: str) -> None:
    """An argument of a wrong value is Usage, which is a ValueError, and changes nothing."""
    log.append(b"there")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(penstock.Usage) as caught:
        USAGE[name](log, tmp_path)
    assert isinstance(caught.value, ValueError)
    assert (len(log), sorted(tmp_path.rglob("*"))) == (1, before)


@pytest.mark.parametrize("seq", [1 << 63, (1 << 64) - 1, 1 << 64, 1 << 200])
def test_seqs_beyond_all_seqs(log: penstock.Log, seq: int) -> None:
    """A seq that cannot exist finds nothing; it is no overflow."""
    log.append(b"a")
    assert list(log.read(seq)) == []
    assert list(log.read(seq, reverse=True)) == []
    assert [e.seq for e in log.read(1, seq)] == [1]
    assert [e.seq for e in log.read(stop=seq, reverse=True)] == [1]
    assert list(log.follow(seq, timeout=0)) == []
    assert log.wait(0, after=seq) is False
    with pytest.raises(penstock.NotFound):
        log[seq]


def test_seq_zero(log: penstock.Log) -> None:
    """Seq 0 lies before the first event: as a start it is the same as 1."""
    log.append(b"a")
    assert [e.seq for e in log.read(0)] == [1]
    assert list(log.read(stop=0)) == []
    assert [e.seq for e in log.read(0, reverse=True)] == [1]
    assert [e.seq for e in log.follow(0, timeout=0)] == [1]
    assert log.wait(0, after=0) is True
    with pytest.raises(penstock.NotFound):
        log[0]


def test_append_looks_like_any_other_method(log: penstock.Log) -> None:
    """The quick way into append has its name, signature, help and errors of arguments."""
    assert str(inspect.signature(penstock.Log.append)).startswith("(self, /, value, *, key=None,")
    assert next(iter(inspect.signature(log.append).parameters)) == "value"
    assert (penstock.Log.append.__doc__ or "").startswith("Append one event and return its seq.")
    assert log.append(value=b"x") == 1
    assert penstock.Log.append(log, b"y") == 2
    bad: list[tuple[list[Any], dict[str, Any]]] = [
        ([log], {}),
        ([log, b"a", b"b"], {}),
        ([log, b"a"], {"colour": 1}),
        ([log, *[b"a"] * 40], {}),
        ([5, b"a"], {}),
    ]
    for args, named in bad:
        with pytest.raises(TypeError, match="append"):
            penstock.Log.append(*args, **named)
    assert log.last_seq == 2
