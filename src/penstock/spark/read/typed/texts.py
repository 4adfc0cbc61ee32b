"""Texts: values of any codec as JSON, which is what typed columns are read from.

Values that are JSON stay as they are. Others are decoded and written as JSON: bytes in base64,
times in ISO form, NaN and infinities as words.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from penstock.data import codecs
from penstock.data.fields import codecs_of, one_array
from penstock.errors import BadData, Usage

MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
CORRUPT_COLUMN = "_corrupt_record"


class Texts:
    """Values of one log, most of them of its codec, as JSON."""

    def __init__(self, codec: str) -> None:
        self.codec = codec
        self._decoders: dict[str, Callable[[bytes], Any] | None] = {}
        if self._decoder(codec) is None:
            raise Usage(
                "a schema needs a codec that decodes bytes to objects, such as json; this log's "
                f"codec is {codec!r}"
            )

    def of(self, values: Any, headers: Any) -> tuple[Any, dict[int, str]]:
        """The texts; and for values that have none, which stay as they are, the reasons."""
        names = None if headers is None else codecs_of(one_array(headers), self.codec)
        if self.codec == "json" and names is None:
            return values, {}
        why: dict[int, str] = {}
        texts: list[bytes | None] = values.to_pylist()
        for i, value in enumerate(texts):
            if value is not None:
                try:
                    texts[i] = self.text(value, self.codec if names is None else names[i])
                except BadData as error:
                    why[i] = str(error)
        return pa.array(texts, pa.binary()), why

    def text(self, value: bytes, name: str) -> bytes:
        """One value as JSON."""
        if name == "json":
            return value
        try:
            decode = self._decoder(name)
        except Usage as error:  # of one event; the log's own codec was found before
            raise BadData(str(error)) from None
        if decode is None:
            raise BadData("it is plain bytes, without fields")
        try:
            found = decode(value)
            return _as_json(found.to_python() if hasattr(found, "to_python") else found)
        except Exception as error:
            raise BadData(f"it must be {name}: {error}") from None

    def _decoder(self, name: str) -> Callable[[bytes], Any] | None:
        if name not in self._decoders:
            self._decoders[name] = codecs.find(name)[1]
        return self._decoders[name]


def check_mode(mode: str) -> str:
    """One of Spark's three modes, in upper or lower case."""
    if mode.upper() not in MODES:
        raise Usage(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
    return mode.upper()


def _as_json(value: Any) -> bytes:
    """An object as JSON, with NaN and infinities as the words that Spark takes."""
    import msgspec

    text = msgspec.json.encode(value)
    if b"null" in text:
        plain = msgspec.to_builtins(value, str_keys=True)
        if _has_words(plain):
            return json.dumps(plain, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return text


def _has_words(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_words, value.values()))
    return isinstance(value, list) and any(map(_has_words, value))
