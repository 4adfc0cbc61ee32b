"""``--format``: one event as text with its parts in it, as kcat and rpk have it."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import Any

from penstock.cli.when import iso
from penstock.errors import Usage

_PART = re.compile(r"%(?:(%)|([a-zA-Z])(?:\{(\w*)\})?)|\\(x[0-9a-fA-F]{2}|.)|%", re.DOTALL)
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\", "e": b"\x1b"}


def _headers(event: Any) -> bytes:
    return b",".join(
        name.encode() + b"=" + (b"" if value is None else value)
        for name, value in event.headers
        if not name.startswith("penstock.")
    )


_PARTS: dict[str, Callable[[Any], bytes]] = {
    "s": lambda event: b"%d" % event.seq,
    "t": lambda event: iso(event.time_ns).encode(),
    "T": lambda event: b"%d.%09d" % divmod(event.time_ns, 1_000_000_000),
    "p": lambda event: event.topic.encode(),
    "k": lambda event: event.key or b"",
    "v": lambda event: event.value or b"",
    "h": _headers,
    "g": lambda event: ",".join(event.tags).encode(),
    "S": lambda event: b"%d" % (0 if event.deletes else len(event.view)),
}


def _as_json(data: bytes) -> bytes:
    import json

    return json.dumps(data.decode("utf-8", "backslashreplace")).encode()


_SHOWN: dict[str, Callable[[bytes], bytes]] = {
    "hex": lambda data: data.hex().encode(),
    "base64": base64.b64encode,
    "json": _as_json,
}


def compile_format(text: str) -> Callable[[Any], bytes]:
    r"""A function that writes an event like this. The text says itself where lines end.

    >>> log = penstock.open(path)
    >>> log.append(b"\xff", key=b"k")
    1
    >>> compile_format(r"%s %k %v{hex}\n")(log[1])
    b'1 k ff\n'
    """
    parts: list[bytes | Callable[[Any], bytes]] = []
    at = 0
    for found in _PART.finditer(text):
        parts.append(text[at : found.start()].encode("utf-8", "surrogateescape"))
        at = found.end()
        percent, name, shown, escape = found.groups()
        if percent:
            parts.append(b"%")
        elif escape:
            parts.append(_escaped(escape))
        else:
            parts.append(_part(name, shown, found[0]))
    parts.append(text[at:].encode("utf-8", "surrogateescape"))
    kept = [part for part in parts if part != b""]
    return lambda event: b"".join(part if isinstance(part, bytes) else part(event) for part in kept)


def _part(name: str | None, shown: str | None, text: str) -> Callable[[Any], bytes]:
    if name not in _PARTS:
        known = ", ".join(f"%{part}" for part in _PARTS)
        raise Usage(f"--format has {known} and %%, got {text!r}")
    get = _PARTS[name]
    if shown is None:
        return get
    if shown not in _SHOWN:
        raise Usage(f"--format: %{name} may have {{hex}}, {{base64}} or {{json}}, got {text!r}")
    change = _SHOWN[shown]
    return lambda event: change(get(event))


def _escaped(text: str) -> bytes:
    if text[0] == "x" and len(text) == 3:
        return bytes([int(text[1:], 16)])
    if text not in _ESCAPES:
        raise Usage(rf"--format has \n, \t, \r, \0, \e, \\ and \xHH, got '\{text}'")
    return _ESCAPES[text]
