"""lite3 documents: writing one, and checking one before it is read.

The package pylite3 reads them, field by field and without decoding the rest. It trusts
the bytes, so it gets nothing that was not checked here. Its writer is not used: it cuts text at a
zero and silently turns what it cannot hold into JSON.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any, TypeAlias

from penstock._core import lite3_check as check

__all__ = ["check", "encode"]

NESTED_MAX = 64  # as deep as `check` goes
_NODE = struct.Struct("<I7II7I8I")  # kind; hashes; size << 6 | count; entries; children
_FANOUT = 8
_NULL, _BOOL, _I64, _F64, _BYTES, _STRING, _OBJECT, _ARRAY = range(8)
_HASH_SEED = 5381

_Entries: TypeAlias = "list[tuple[int, int]]"  # hash and offset of each


def encode(value: Any) -> bytes:
    """``value``, a dict or a list, as a lite3 document.

    >>> data = encode({"name": "ada", "born": 1815})
    >>> check(data)
    """
    if not isinstance(value, dict | list | tuple):
        raise TypeError(f"a lite3 document must be a dict or a list, got {type(value).__name__}")
    out = bytearray()
    _write_tree(out, value, 1)
    return bytes(out)


def _write_tree(out: bytearray, value: Any, nested: int) -> None:
    """Write an object or an array at the end of ``out``, which is aligned."""
    if nested > NESTED_MAX:
        raise ValueError(f"the value must be nested at most {NESTED_MAX} deep")
    root = len(out)
    out += bytes(_NODE.size)
    entries: _Entries = []
    if isinstance(value, dict):
        kind = _OBJECT
        for key, item in value.items():
            head = _key(key)
            entries.append((_hash(key), _write_entry(out, head, item, nested)))
        entries.sort()
        for (one, _), (other, _) in pairwise(entries):
            if one == other:
                raise ValueError(
                    f"two keys have the same hash, {one:#x}, and lite3 can hold only one of them"
                )
    else:
        kind = _ARRAY
        entries = [(i, _write_entry(out, b"", item, nested)) for i, item in enumerate(value)]
    height, room = 0, _FANOUT
    while len(entries) >= room:
        height, room = height + 1, room * _FANOUT
    _write_node(out, root, kind, entries, height, len(entries))


def _key(key: object) -> bytes:
    """A key's length and text, as they are stored before the value."""
    if not isinstance(key, str):
        raise TypeError(f"a key of lite3 must be str, got {type(key).__name__}")
    text = key.encode()
    if b"\0" in text:
        raise ValueError(f"a key of lite3 must not contain a zero, got {key!r}")
    nbytes = len(text) + 1
    tag_bytes = 1 if nbytes < 64 else 2 if nbytes < 16384 else 4
    return (nbytes << 2 | tag_bytes - 1).to_bytes(tag_bytes, "little") + text + b"\0"


def _hash(key: str) -> int:
    found = _HASH_SEED
    for byte in key.encode():
        found = (found * 33 + byte) & 0xFFFFFFFF
    return found


def _write_entry(out: bytearray, head: bytes, item: Any, nested: int) -> int:
    """Write a key, if there is one, and its value; returns the offset of the two."""
    if isinstance(item, dict | list | tuple):
        out += bytes(-(len(out) + len(head)) % 4)  # the node after the key is aligned
        at = len(out)
        out += head
        _write_tree(out, item, nested + 1)
        return at
    at = len(out)
    out += head
    if item is None:
        out.append(_NULL)
        if len(out) - at == 3:
            out.append(0)  # readers read four bytes of a key
    elif isinstance(item, bool):
        out += bytes((_BOOL, item))
    elif isinstance(item, int):
        if not -(1 << 63) <= item < 1 << 63:
            raise ValueError(f"an integer of lite3 must fit 64 bits, got {item}")
        out += struct.pack("<Bq", _I64, item)
    elif isinstance(item, float):
        out += struct.pack("<Bd", _F64, item)
    elif isinstance(item, str):
        text = item.encode() + b"\0"
        out += struct.pack("<BI", _STRING, len(text)) + text
    elif isinstance(item, bytes | bytearray | memoryview):
        raw = bytes(item)
        out += struct.pack("<BI", _BYTES, len(raw)) + raw
    else:
        raise TypeError(f"lite3 has no type for {type(item).__name__}")
    return at


def _write_node(
    out: bytearray, at: int, kind: int, entries: _Entries, height: int, size: int
) -> None:
    """Fill the node at ``at``, and write those below it, which share its entries evenly."""
    children: list[int] = []
    own = entries
    if height:
        room = _FANOUT**height  # entries that a child takes, and the one that follows it here
        count = len(entries) // room + 1
        shares = [(len(entries) + 1) * i // count for i in range(count + 1)]
        own = [entries[share - 1] for share in shares[1:-1]]
        for start, stop in pairwise(shares):
            out += bytes(-len(out) % 4)
            children.append(len(out))
            out += bytes(_NODE.size)
            _write_node(out, children[-1], kind, entries[start : stop - 1], height - 1, 0)
    hashes, offsets = [h for h, _ in own], [o for _, o in own]
    gap = [0] * (_FANOUT - 1 - len(own))
    below = children or [0]
    _NODE.pack_into(
        out,
        at,
        kind,
        *hashes,
        *gap,
        size << 6 | len(own),
        *offsets,
        *gap,
        *below,
        *[0] * (_FANOUT - len(below)),
    )
