"""lite3 documents: written here, checked here, and only then read by pylite3."""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pylite3
import pytest

import penstock
from penstock.data import lite3
from tests.support.forged import forged

VALUE = {"name": "ada", "born": 1815, "tags": ["a", "b"], "more": {"x": None, "y": [1.5, True]}}
SIZES = [0, 1, 6, 7, 8, 9, 55, 56, 63, 64, 65, 500, 5000]


def plain(data: bytes) -> Any:
    lite3.check(data)
    return pylite3.loads(data).to_python()


def test_fields_without_decoding(path: Path) -> None:
    """data gives fields one by one, and all of them as dicts and lists when asked to."""
    with penstock.open(path, codec="lite3") as log:
        log.append(VALUE)
        data = log[1].data
        assert isinstance(log[1].data, pylite3.Lite3Object)
        assert (data["name"], data["tags"][1], data["more"]["y"][0]) == ("ada", "b", 1.5)
        assert (len(data), "born" in set(data), data["more"]["x"]) == (4, True, None)
        assert data.to_python() == VALUE
        with pytest.raises(KeyError):
            data["nobody"]
    assert data["born"] == 1815


@pytest.mark.parametrize("count", SIZES)
def test_trees_of_every_height(count: int) -> None:
    """Objects and arrays of any size are valid, and every entry is found and iterated."""
    names = {f"k{i}": i for i in range(count)}
    data = lite3.encode(names)
    lite3.check(data)
    found: Any = pylite3.loads(data)
    assert (len(found), found.to_python()) == (count, names)
    assert all(found[name] == i for name, i in names.items())
    numbers = list(range(count))
    again: Any = pylite3.loads(lite3.encode(numbers))
    assert (len(again), again.to_python(), [again[i] for i in numbers]) == (count, numbers, numbers)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 20, 100])
def test_what_pylite3_writes_is_valid(count: int) -> None:
    """Documents of the package's own writer pass the check, and read the same as ours."""
    value = {f"k{i}": [i, str(i), {"f": i / 2}, b"\xff", None, True] for i in range(count)}
    theirs = pylite3.dumps(value)
    assert isinstance(theirs, bytes)
    assert plain(theirs) == plain(lite3.encode(value)) == value


@pytest.mark.parametrize(
    "value",
    [
        {"": None},
        [{"": None}],
        {"": ""},
        {"zero": "a\0b"},
        {"b": b"\0\xff"},
        {"i": [2**63 - 1, -(2**63)]},
        {"x" * 62: 1, "x" * 63: 2, "x" * 16382: 3, "x" * 16383: 4},
        {"é": "日本語"},
        [[[[[]]]], {}],
        {"empty": {}, "none": []},
        {"float": [0.0, -0.0, float("inf")]},
    ],
    ids=lambda v: repr(v)[:30],
)
def test_edges(value: Any) -> None:
    """Empty keys, long keys, zeros in text and numbers at their bounds come back."""
    assert plain(lite3.encode(value)) == value


DEEP: Any = []
for _ in range(lite3.NESTED_MAX):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "value",
    [
        5,
        "text",
        None,
        {1: 2},
        {"a\0b": 1},
        {"a": 2**63},
        {"a": {1, 2}},
        {"a": "\ud800"},
        {"a": object()},
        DEEP,
        {"Ez": 1, "FY": 2},
    ],
    ids=str.split("number text none key zero long set surrogate object deep hash"),
)
def test_what_lite3_cannot_hold(path: Path, value: Any) -> None:
    """What has no place in lite3 is BadData and appends nothing, nor anything else."""
    with penstock.open(path, codec="lite3") as log:
        with pytest.raises(penstock.Usage):
            log.append(value)
        assert len(log) == 0


def node(kind: int, hashes: list[int], entries: list[int], children: list[int], size: int) -> bytes:
    """A node as it is on disk."""
    fill = [0] * 8
    count = len(hashes)
    return struct.pack(
        "<24I",
        kind,
        *(hashes + fill)[:7],
        size << 6 | count,
        *(entries + fill)[:7],
        *(children + fill)[:8],
    )


NULL = b"\x00"
HOSTILE = {
    "a node that is its own child": node(7, [0], [96], [0, 0], 1)[:64]
    + struct.pack("<8I", 4, 4, 0, 0, 0, 0, 0, 0)
    + bytes(96),
    "two parents of one child": node(7, [1], [192], [96, 96], 3)
    + node(7, [0], [192], [], 0)
    + NULL,
    "a child that is not aligned": node(7, [1], [192], [97, 98], 3) + bytes(200),
    "a child past the end": node(7, [0], [96], [2**32 - 1, 2**32 - 1], 1) + NULL,
    "an entry past the end": node(7, [0], [97], [], 1) + NULL,
    "an entry far past the end": node(7, [0], [2**32 - 1], [], 1) + NULL,
    "a size that lies": node(7, [0], [96], [], 2**26 - 1) + NULL,
    "elements out of order": node(7, [1, 0], [96, 97], [], 2) + NULL * 2,
    "an array that holds itself": node(7, [0], [0], [], 1),
    "an unknown type": node(7, [0], [96], [], 1) + b"\x08",
    "text without an end": node(7, [0], [96], [], 1) + b"\x05\x02\0\0\0ab",
    "text of no bytes at all": node(7, [0], [96], [], 1) + b"\x05\0\0\0\0",
    "text past the end": node(7, [0], [96], [], 1) + b"\x05\xff\xff\xff\xffa\0",
    "text that is not UTF-8": node(7, [0], [96], [], 1) + b"\x05\x02\0\0\0\xff\0",
    "bytes past the end": node(7, [0], [96], [], 1) + b"\x04\xff\xff\xff\xff",
    "a number cut short": node(7, [0], [96], [], 1) + b"\x02\0\0\0",
    "a boolean cut short": node(7, [0], [96], [], 1) + b"\x01",
    "a key past the end": node(6, [177670], [96], [], 1) + b"\xfca\0\0",
    "a key without an end": node(6, [177670], [96], [], 1) + b"\x08ab\0",
    "a key with a zero inside": node(6, [177670], [96], [], 1) + b"\x0ca\0\0\0",
    "a key of another hash": node(6, [177671], [96], [], 1) + b"\x08a\0\0",
    "a key cut short": node(6, [5381], [96], [], 1) + b"\x04\0\0",
    "an empty node below": node(7, [0], [192], [96, 96], 1) + node(7, [], [], [], 0) + NULL,
    "an array in an object's tree": node(6, [177670], [96], [100, 100], 1)
    + b"\x08a\0\0"
    + node(7, [], [], [], 0),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_documents(what: str) -> None:
    """Each way in which offsets and lengths can lie is refused before anybody follows them."""
    with pytest.raises(ValueError, match=r".+"):
        lite3.check(HOSTILE[what])


def test_work_is_bounded_by_size() -> None:
    """Parts that many others share are refused, so that few bytes cannot ask for much work."""
    text = b"\x05" + struct.pack("<I", 90_001) + b"x" * 90_000 + b"\0"
    nodes = [node(7, [7 * i + j for j in range(7)], [0] * 7, [], 0) for i in range(8)]
    data = b"".join(nodes) + text
    with pytest.raises(ValueError, match=r".+"):
        lite3.check(data)
    levels = 9
    shared = [
        node(7, [0], [96 * levels], [96 * (i + 1)] * 2 if i < levels - 1 else [], 2**levels - 1)
        for i in range(levels)
    ]
    with pytest.raises(ValueError, match=r"overlaps|place"):
        lite3.check(b"".join(shared) + NULL)


CHILD = """
import faulthandler, json, random, sys
import pylite3
from penstock.data import lite3
from tests.support.forged import forged

faulthandler.dump_traceback_later(100, exit=True)
rng = random.Random(int(sys.argv[1]))
seeds = [bytes.fromhex(h) for h in json.load(sys.stdin)]
refused = 0


def use(data):
    found = pylite3.loads(data)
    whole = found.to_python()
    assert len(found) == len(whole)
    if isinstance(whole, dict):
        for key, value in found.items():
            assert key in whole
            found[key]
    else:
        for i in range(len(found)):
            found[i]
        list(found.values())


for turn in range(int(sys.argv[2])):
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        way = rng.randrange(5)
        at = rng.randrange(len(data))
        if way == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif way == 1:
            data[at] = rng.choice((0, 1, 4, 5, 6, 7, 96, 127, 255))
        elif way == 2:
            at -= at % 4
            some = rng.randrange(2**32)
            word = rng.choice((0, 4, 96, len(data), len(data) - 96, 2**32 - 1, some))
            data[at : at + 4] = (word % 2**32).to_bytes(4, "little")
        elif way == 3:
            del data[at:]
            data = data or bytearray(1)
        else:
            other = rng.randrange(len(data))
            data[at : at + 8] = data[other : other + 8]
    data = bytes(data)
    print(data.hex(), file=sys.stderr)
    try:
        lite3.check(data)
    except ValueError:
        refused += 1
        continue
    use(data)
print(refused)
"""


@pytest.mark.parametrize("seed", range(2))
def test_changed_documents_never_crash(seed: int) -> None:
    """Of thousands of documents changed at random, each is refused or can be read to the end."""
    rng = random.Random(seed)
    seeds = [
        lite3.encode(VALUE),
        lite3.encode({f"k{i}": i for i in range(100)}),
        lite3.encode([{"a": [1, "x", b"y"]}] * 9),
        pylite3.dumps({f"k{rng.randrange(999)}": ["t", {"u": None}] for _ in range(12)}),
    ]
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(seed), "4000"],
        input=json.dumps([s.hex() for s in seeds if isinstance(s, bytes)]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert 100 < int(done.stdout) < 4000


def test_hostile_values_of_a_log(path: Path) -> None:
    """A log takes no hostile document, and one that is there already is BadData to read."""
    with penstock.open(path, codec="lite3") as log:
        for data in HOSTILE.values():
            with pytest.raises(penstock.BadData, match="lite3"):
                log.append(data)
        assert len(log) == 0
        for data in HOSTILE.values():
            log.append(data, codec="bytes", headers={"x": b""})
    with penstock.open(path.with_name("bytes")) as log:
        for data in HOSTILE.values():
            seq = log.append(forged(log.path, data, b"lite3"))
            with pytest.raises(penstock.BadData, match=f"seq {seq}"):
                assert log[seq].data
