"""Codecs: how values become bytes and back, by name, and with a schema.

A codec is loaded when it is first needed, so that a log of plain bytes imports none.
Errors that a codec raises become `BadData` in the compiled core, which knows the log and the event.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from penstock._core import Coder
from penstock.data import lite3
from penstock.errors import NoCodec, Usage, WrongType
from penstock.settings import BYTES, Settings, check_codec_name

Encode: TypeAlias = Callable[[Any], bytes]
Decode: TypeAlias = Callable[[bytes], Any]


class Codec(NamedTuple):
    """The two functions of a codec. ``typed`` makes both for a schema."""

    encode: Encode
    decode: Decode
    typed: Callable[[Any], tuple[Encode, Decode]]


_registered: dict[str, Codec] = {}


def register_codec(name: str, encode: Encode, decode: Decode) -> None:
    """Register a custom codec for this process.

    ``encode`` takes an object and returns bytes, ``decode`` takes those bytes and returns the
    object; what they raise becomes `BadData`. Each process that needs the objects registers it;
    the others still read ``event.value``. Registering a name again replaces the codec.

    >>> import pickle
    >>> penstock.register_codec("pickle", pickle.dumps, pickle.loads)
    >>> log = penstock.open(path, codec="pickle")
    >>> log[log.append({1, 2, 3})].data
    {1, 2, 3}
    """
    check_codec_name(name)
    if name == BYTES or name in _BUILT_IN:
        raise Usage(f"the codec {name!r} is built in; choose another name")
    for what, function in (("encode", encode), ("decode", decode)):
        if not callable(function):
            raise WrongType(f"{what} must be a function, got {type(function).__name__}")
    _registered[name] = Codec(encode, decode, lambda schema: _converting(encode, decode, schema))


def find(name: str, schema: Any = None) -> tuple[Encode | None, Decode | None]:
    """The functions that encode and decode; None for both if values are left as they are."""
    check_codec_name(name)
    if name == BYTES:
        if schema is not None:
            raise Usage(
                "a schema needs a codec that decodes bytes to objects, such as codec='json'"
            )
        return None, None
    codec = _registered.get(name)
    if codec is None:
        make = _BUILT_IN.get(name)
        if make is None:
            raise NoCodec(
                f"no codec {name!r} is registered in this process: call penstock.register_codec "
                "before you append or read objects; event.value still has the bytes"
            )
        codec = _registered[name] = make()
    if schema is None:
        return codec.encode, codec.decode
    try:
        return codec.typed(schema)
    except (TypeError, NameError) as error:
        raise WrongType(f"schema must be a type that msgspec takes: {error}") from error


def name_in(settings: bytes, path: str) -> str:
    """The codec of the log that has these settings, for an event that was read without a handle."""
    return Settings.from_json(settings, path).codec


def use_codec(coder: Coder, name: str, wanted: str | None, path: str) -> None:
    """Set the log's codec in a handle; a codec= given to `open` must be the same."""
    if wanted is not None and wanted != name:
        raise Usage(
            f"{path}: the log's codec is {name!r}, not {wanted!r}: open it without codec=, "
            "and give codec= with the appends that need it"
        )
    coder.name = name
    coder.find()


def _need(package: str, codec: str, install: str) -> Any:
    try:
        return __import__(package)
    except ImportError as error:
        raise NoCodec(
            f"the codec {codec!r} needs the package {package}, which cannot be imported ({error}): "
            f"pip install {install}"
        ) from None


def _of_msgspec(name: str) -> Codec:
    """A codec of msgspec: the module ``json`` or ``msgpack``."""
    module = getattr(_need("msgspec", name, "msgspec"), name)
    encode = module.Encoder().encode
    return Codec(
        encode,
        module.Decoder().decode,
        lambda schema: _typed(encode, schema, lambda kind: module.Decoder(kind).decode),
    )


def _lite3() -> Codec:
    load = _need("pylite3", "lite3", "'penstock[lite3]'").loads

    def decode(data: bytes) -> Any:
        lite3.check(data)
        return load(data)

    def decode_all(data: bytes) -> Any:
        return decode(data).to_python()

    return Codec(lite3.encode, decode, lambda schema: _converting(lite3.encode, decode_all, schema))


def _typed(encode: Encode, schema: Any, decoder: Callable[[Any], Decode]) -> tuple[Encode, Decode]:
    """Both functions for a schema, where the codec itself decodes to one.

    The schema converts what is written and fills in defaults. An instance of the schema is decoded
    again as well, since its fields were not checked.
    """
    decode, draft = decoder(schema), decoder(_draft_of(schema))
    exact = _instances_of(schema)

    def checked(value: Any) -> bytes:
        data = encode(value)
        if type(value) is not exact:
            return encode(draft(data))
        decode(data)
        return data

    return checked, decode


def _converting(encode: Encode, decode: Decode, schema: Any) -> tuple[Encode, Decode]:
    """Both functions for a schema, where the codec has only plain types such as dicts and lists."""
    msgspec = _need("msgspec", "schema", "msgspec")
    msgspec.msgpack.Decoder(schema)  # raises now if the schema is invalid
    draft = _draft_of(schema)

    def to_plain(value: Any) -> Any:
        return msgspec.to_builtins(value, builtin_types=(bytes, bytearray, memoryview))

    def checked(value: Any) -> bytes:
        return encode(to_plain(msgspec.convert(to_plain(value), draft)))

    def converted(data: bytes) -> Any:
        return msgspec.convert(decode(data), schema)

    return checked, converted


def _draft_of(schema: Any) -> Any:
    """The type of an object that ``schema`` accepts for an append."""
    return getattr(schema, "__penstock_draft__", schema)


def _instances_of(schema: Any) -> type | None:
    """The type whose instances need no defaults filled in; None if there is none."""
    is_struct = hasattr(schema, "__struct_fields__")
    known = isinstance(schema, type) and (is_struct or dataclasses.is_dataclass(schema))
    return schema if known else None


_BUILT_IN: dict[str, Callable[[], Codec]] = {
    "json": lambda: _of_msgspec("json"),
    "msgpack": lambda: _of_msgspec("msgpack"),
    "lite3": _lite3,
}
