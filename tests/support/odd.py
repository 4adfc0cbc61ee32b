"""Odd values: what a caller may pass by mistake, of every kind that Python code can get hold of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np


class Text(str):
    """A str that is not exactly one."""


class Number(int):
    """An int that is not exactly one."""


class Raw(bytes):
    """A bytes that is not exactly one."""


class Refuses:
    """Raises from whatever it is asked for."""

    def __index__(self) -> int:
        raise RuntimeError("no index")

    def __float__(self) -> float:
        raise RuntimeError("no float")

    def __bytes__(self) -> bytes:
        raise RuntimeError("no bytes")

    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("no iterator")

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __fspath__(self) -> str:
        raise RuntimeError("no path")


class Breaks:
    """Gives one item, then raises."""

    def __iter__(self) -> Iterator[Any]:
        yield b"one"
        raise RuntimeError("broken off")


class Index:
    """Has ``__index__`` and nothing else."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


def _generator() -> Iterator[Any]:
    yield from (b"a", "b", None)


def _released() -> memoryview:
    view = memoryview(b"abc")
    view.release()
    return view


def _function(*args: Any, **kwargs: Any) -> None:
    """Takes anything."""


# Each is made for every call: some can be used up.
ODD: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "False": lambda: False,
    "-1": lambda: -1,
    "0": lambda: 0,
    "1": lambda: 1,
    "2**31": lambda: 2**31,
    "2**62": lambda: 2**62,
    "2**63": lambda: 2**63,
    "2**64": lambda: 2**64,
    "2**64-1": lambda: 2**64 - 1,
    "-2**63": lambda: -(2**63),
    "2**2000": lambda: 2**2000,
    "0.5": lambda: 0.5,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "-inf": lambda: -math.inf,
    "1j": lambda: 1j,
    "''": lambda: "",
    "'x'": lambda: "x",
    "'x\\0y'": lambda: "x\0y",
    "surrogate": lambda: "\ud800",
    "huge str": lambda: "s" * 2_000_000,
    "b''": lambda: b"",
    "b'x'": lambda: b"x",
    "huge bytes": lambda: bytes(2_000_000),
    "bytearray": lambda: bytearray(b"ab"),
    "memoryview": lambda: memoryview(b"abcd"),
    "memoryview 2d": lambda: memoryview(b"abcdef").cast("B", (2, 3)),
    "memoryview of ints": lambda: memoryview(b"abcdefgh").cast("i"),
    "memoryview strided": lambda: memoryview(b"abcdef")[::2],
    "memoryview 0d": lambda: memoryview(b"a").cast("B", ()),
    "released memoryview": _released,
    "np.int64": lambda: np.int64(3),
    "np.int64 negative": lambda: np.int64(-3),
    "np.uint64 max": lambda: np.uint64(2**64 - 1),
    "np.float64": lambda: np.float64(0.25),
    "np.nan": lambda: np.float64("nan"),
    "np.bool_": lambda: np.bool_(True),
    "np.str_": lambda: np.str_("x"),
    "np.bytes_": lambda: np.bytes_(b"x"),
    "np 0d": lambda: np.array(3),
    "np 1d": lambda: np.array([49, 50], "u1"),
    "np 2d": lambda: np.zeros((2, 2)),
    "np objects": lambda: np.array([None, "x"], dtype=object),
    "np datetime": lambda: np.datetime64("NaT"),
    "str subclass": lambda: Text("x"),
    "int subclass": lambda: Number(2),
    "bytes subclass": lambda: Raw(b"x"),
    "index": lambda: Index(2),
    "index negative": lambda: Index(-2),
    "refuses": Refuses,
    "breaks": Breaks,
    "[]": list,
    "[None]": lambda: [None],
    "[b'a', 'b']": lambda: [b"a", "b"],
    "['x']": lambda: ["x"],
    "nested": lambda: [[[]]],
    "()": tuple,
    "('a', 1)": lambda: ("a", 1),
    "('a', -1)": lambda: ("a", -1),
    "{}": dict,
    "{'a': 1}": lambda: {"a": 1},
    "{1: b'a'}": lambda: {1: b"a"},
    "set": lambda: {"x"},
    "frozenset": frozenset,
    "generator": _generator,
    "range": lambda: range(3),
    "slice": lambda: slice(1, 2),
    "object": object,
    "class": lambda: int,
    "function": lambda: _function,
    "module": lambda: math,
    "exception": lambda: ValueError("x"),
    "Ellipsis": lambda: ...,
    "Path": lambda: Path("some-path"),
}
