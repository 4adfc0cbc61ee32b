"""Names and types: what a newcomer's editor and type checker say is what there is."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mypy import api

import penstock


@dataclass
class Order:
    """What a value of the logs below is."""

    user: str
    total: int


def test_dir_shows_public_names_only() -> None:
    """dir(penstock), and so tab completion, has what is public and nothing else."""
    code = "import penstock, penstock.spark; print(*dir(penstock))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    shown = done.stdout.split()
    assert {name for name in shown if not name.startswith("__")} == set(penstock.__all__)
    assert "__version__" in shown
    for name in penstock.__all__:
        assert hasattr(penstock, name)


RIGHT = """
import penstock
from dataclasses import dataclass
from typing import Any

@dataclass
class Order:
    user: str
    total: int

with penstock.open("x", schema=Order, codec="json", segment_size="1MiB", create=True) as orders:
    typed: penstock.Log[Order] = orders
    for event in orders:
        number: int = event.data.total
        text: str = event.value.decode()
        source: bytes | None = event.headers["source"]
        if event.value is None or event.deletes:
            continue
    first: penstock.Event[Order] = orders[1]
    following: penstock.Reader[Order] = orders.follow("start", timeout=0)
    some: list[penstock.Event[Order]] = orders.read("start", "end").take(2)
    orders.configure(segment_size="1MiB", file_mode=0o660)
    done: bool = orders.wait_durable(1, timeout=1)

ring = penstock.create("y", ring="64MiB", when_full="drop", index=0)
plain: penstock.Log = ring
anything: Any = plain[1].data

def total(log: penstock.Log[Order]) -> int:
    return sum(event.data.total for event in log)

def lengths(log: penstock.Log) -> list[int]:
    return [len(event.value) for event in log]

total(orders)
lengths(orders)
penstock.create("z", schema=list[int], codec="json")[1].data.append(5)
either = penstock.open("u", schema=int | str, codec="json")
"""

WRONG = {
    'penstock.open("x", segment_sise="1MiB")': "call-arg",
    'penstock.create("x", rings="1MiB")': "call-arg",
    'penstock.open("x").configure(colour="red")': "call-arg",
    'penstock.open("x", when_full="wait")': "arg-type",
    'penstock.open("x", mode="w")': "arg-type",
    'penstock.open("x").configure(when_full="wait")': "arg-type",
    'penstock.open("x").read("middle")': "arg-type",
    'penstock.open("x", schema=Order)[1].data.colour': "union-attr",
    'n: int = penstock.open("x", schema=Order)[1].data': "assignment",
    's: str = penstock.open("x")[1].value': "assignment",
}


def test_a_type_checker_knows_the_api(tmp_path: Path) -> None:
    """mypy takes right programs as they are, and finds typos, wrong words and wrong types."""
    right, wrong = tmp_path / "right.py", tmp_path / "wrong.py"
    right.write_text(RIGHT)
    head = RIGHT[: RIGHT.index("with penstock")]
    wrong.write_text(head + "\n".join(WRONG) + "\n")
    out, err, _ = api.run(
        [
            *("--strict", "--no-error-summary", "--config-file="),
            *("--cache-dir", str(tmp_path / "cache"), str(right), str(wrong)),
        ]
    )
    assert not err, err
    lines = [line for line in out.splitlines() if ": error:" in line]
    assert not [line for line in lines if "right.py" in line], out
    first = head.count("\n") + 1
    for n, (code, kind) in enumerate(WRONG.items()):
        here = [line for line in lines if f"wrong.py:{first + n}:" in line]
        assert len(here) == 1 and f"[{kind}]" in here[0], (code, here, out)
    assert len(lines) == len(WRONG)


def test_a_typo_is_an_error_when_it_runs(tmp_path: Path) -> None:
    """An argument that does not exist is a TypeError, and makes nothing."""
    wrong: Any = penstock
    for call in (wrong.open, wrong.create):
        with pytest.raises(TypeError, match="colour"):
            call(tmp_path / "x", colour="red")
    with penstock.open(tmp_path / "y") as log, pytest.raises(TypeError, match="colour"):
        log.configure(colour="red")  # type: ignore[call-arg]
    assert [p.name for p in tmp_path.iterdir()] == ["y"]


def test_types_can_be_written_at_run_time(tmp_path: Path) -> None:
    """Log[T], Event[T] and Reader[T] work in annotations that are looked at when they run."""
    assert penstock.Log[Order] is not None
    assert penstock.Event[Order].__args__ == (Order,)  # type: ignore[attr-defined]
    assert penstock.Reader[Order].__args__ == (Order,)  # type: ignore[attr-defined]
    with penstock.open(tmp_path / "x", codec="json", schema=Order) as log:
        log.append(Order("u", 3))
        assert log[1].data == Order("u", 3)


@pytest.fixture(params=["log", "ring"])
def event(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[penstock.Event]:
    """An event with headers of which one has two values."""
    options: dict[str, Any] = {"ring": "64KiB"} if request.param == "ring" else {}
    with penstock.open(tmp_path / "x", **options) as log:
        log.append(b"x", headers=[("a", b"1"), ("b", None), ("a", b"2")])
        yield log[1]


def test_headers_read_like_a_mapping(event: penstock.Event) -> None:
    """event.headers has values by name; of a name that repeats, the last, as dict() has it."""
    headers = event.headers
    assert headers["a"] == b"2"
    assert headers["b"] is None
    with pytest.raises(KeyError, match="none"):
        headers["none"]
    assert headers.get("a") == b"2"
    assert headers.get("none") is None
    assert headers.get("none", b"?") == b"?"
    assert headers.get("b", b"?") is None
    assert headers.get_all("a") == [b"1", b"2"]
    names: list[Any] = ["a", "none"]
    assert [name in headers for name in names] == [True, False]
    assert dict(headers) == {"a": b"2", "b": None}
    assert headers.keys() == ["a", "b", "a"]
    assert headers.values() == [b"1", None, b"2"]


def test_headers_are_still_pairs(event: penstock.Event, tmp_path: Path) -> None:
    """event.headers is the tuple of pairs that it always was, and goes back into a log as it is."""
    pairs: Any = (("a", b"1"), ("b", None), ("a", b"2"))
    headers = event.headers
    assert headers == pairs and hash(headers) == hash(pairs)
    assert isinstance(headers, tuple) and len(headers) == 3
    assert list(headers) == list(pairs) == headers.items()
    assert headers[0] == ("a", b"1") and headers[-2:] == pairs[-2:]
    assert ("b", None) in headers and ("b", b"") not in headers
    for other in (pickle.loads(pickle.dumps(headers)), copy.copy(headers), copy.deepcopy(headers)):
        assert other == pairs and other["a"] == b"2"
    with penstock.open(tmp_path / "other") as log:
        log.append(b"x", headers=headers)
        log.append(b"x")
        assert log[1].headers == pairs
        assert not log[2].headers and log[2].headers.get("a") is None
