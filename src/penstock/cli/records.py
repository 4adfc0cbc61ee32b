"""Events as JSON lines: as ``cat -o jsonl`` writes them, and as people write them by hand.

What a record has that no event has is refused. ``seq``, ``append_time`` and ``log`` say where an
event comes from; the log gives it a new seq.
"""

from __future__ import annotations

import base64
import binascii
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from penstock.cli.when import moment
from penstock.errors import BadData
from penstock.event import Entry
from penstock.times import Ns

_ISO_CHARACTERS = 30  # 2026-11-19T12:30:00.000000000Z

Header = str | dict[str, str] | None


class EventRecord(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """One event as JSON."""

    seq: int | None = None
    log: str | None = None
    time: str | int | None = None
    append_time: str | int | None = None
    topic: str | None = None
    key: str | None = None
    key_base64: str | None = None
    value: str | msgspec.UnsetType | None = msgspec.UNSET
    value_base64: str | None = None
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    headers: list[tuple[str, Header]] | dict[str, Header] | None = None
    tags: list[str] | None = None
    ttl: float | None = None
    ttl_ns: int | None = None
    not_before: str | int | None = None
    codec: str | None = None


_decoder = msgspec.json.Decoder(EventRecord)


def parse_lines(data: bytes, before: int, skipped: list[str] | None) -> Iterator[EventRecord]:
    """The records of complete lines; ``before`` lines came before them.

    With ``skipped`` a bad line is described there and passed over, else it raises `BadData`.
    """
    try:
        yield from _decoder.decode_lines(data)
        return
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass  # one of them is bad
    for number, line in enumerate(data.split(b"\n"), before + 1):
        if not line.strip():
            continue
        try:
            yield _decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            text = f"line {number}: must be an event as JSON: {error}"
            if skipped is None:
                raise BadData(text) from None
            skipped.append(text)


@functools.lru_cache(1024)
def _second_ns(text: str) -> int:
    return moment(text + "Z", "time")


def _time_of(given: str | int | None, what: str) -> Any:
    if given is None or isinstance(given, int):
        return given
    if len(given) == _ISO_CHARACTERS and given[19] == "." and given[29] == "Z":
        part = given[20:29]
        if part.isascii() and part.isdigit():
            return Ns(_second_ns(given[:19]) + int(part))
    return moment(given, what)


def _unbase64(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadData(f"{what} must be base64: {error}") from None


def _header(value: Header) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if set(value) != {"base64"}:
        raise BadData('the value of a header must be a text, null or {"base64": …}')
    return _unbase64(value["base64"], "a header")


def _value(record: EventRecord, as_object: bool) -> Any:
    given = [
        record.value is not msgspec.UNSET,
        record.value_base64 is not None,
        record.data is not msgspec.UNSET,
    ]
    if sum(given) != 1:
        raise BadData("an event must have one of value, value_base64 and data")
    if record.value_base64 is not None:
        return _unbase64(record.value_base64, "value_base64")
    if record.data is not msgspec.UNSET:
        raw = bytes(record.data)
        return msgspec.json.decode(raw) if as_object else raw
    return None if record.value is None else str(record.value).encode()


def entry_of(record: EventRecord, as_object: bool = False) -> Entry:
    """The record as an item for ``extend``; ``as_object``: the log encodes ``data`` itself."""
    headers: Any = record.headers
    if headers is not None:
        pairs: Iterable[Any] = headers.items() if isinstance(headers, dict) else headers
        headers = [(name, _header(value)) for name, value in pairs]
    key = None if record.key is None else record.key.encode()
    if record.key_base64 is not None:
        if key is not None:
            raise BadData("an event must have one of key and key_base64")
        key = _unbase64(record.key_base64, "key_base64")
    ttl: Any = record.ttl
    if record.ttl_ns is not None:
        if ttl is not None:
            raise BadData("an event must have one of ttl and ttl_ns")
        ttl = Ns(record.ttl_ns) if record.ttl_ns >= 0 else record.ttl_ns
    return Entry(
        _value(record, as_object),
        key,
        record.topic or None,
        headers,
        _time_of(record.time, "time"),
        record.tags,
        _time_of(record.not_before, "not_before"),
        ttl,
    )
