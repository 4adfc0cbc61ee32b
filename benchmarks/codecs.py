"""Objects in a log of JSON, beside msgspec and a log of bytes, each doing its part alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import msgspec

import penstock
from benchmarks.harness import Bench, Row, take_turns


def json(bench: Bench) -> Iterator[Row]:
    """Append and read objects of about 100 bytes, beside the two halves of the work alone."""
    count = bench.pick(500_000, 100_000)
    objects = [
        {"id": i, "user": f"user-{i % 97}", "kind": "click", "total": i / 8, "tags": ["eu", "ok"]}
        for i in range(1_000_000, 1_001_000)
    ] * (count // 1000)
    encode, decode = msgspec.json.Encoder().encode, msgspec.json.Decoder().decode

    def ours() -> float:
        with bench.scratch() as path, penstock.open(path / "log", codec="json") as log:
            log.append(objects[0])
            return _each(objects, log.append) + _read(log, objects=True)

    def theirs() -> float:
        values = [encode(value) for value in objects]
        with bench.scratch() as path, penstock.open(path / "log") as log:
            log.append(values[0])
            return (
                _each(objects, encode)
                + _each(values, log.append)
                + _read(log, objects=False)
                + _each(values, decode)
            )

    def per_event(seconds: float) -> str:
        return f"{seconds / count * 1e9:.0f} ns"

    yield take_turns(bench, "json", ours, theirs).row(
        "append and read of objects as JSON",
        "msgspec encode and decode, and append and read of bytes, one after the other",
        per_event,
        better="lower",
        bar=1.3,
        pages="cold to append, warm to read",
    )


def _each(values: list[Any], call: Callable[[Any], Any]) -> float:
    began = perf_counter()
    for value in values:
        call(value)
    return perf_counter() - began


def _read(log: penstock.Log, *, objects: bool) -> float:
    began = perf_counter()
    if objects:
        for event in log:
            event.data  # noqa: B018
    else:
        for event in log:
            event.value  # noqa: B018
    return perf_counter() - began
