"""A log's settings: what they are, how they are checked, and their JSON form in the log itself.

Also the options of one handle, which the log does not store.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields, replace
from datetime import timedelta
from typing import Any, Literal, TypeAlias

from penstock import layout
from penstock.arguments import check_choice
from penstock.errors import Corrupt, TooLarge, UnsupportedVersion, Usage, WrongType
from penstock.times import span_ns

_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_SIZE = re.compile(r"\s*(\d+)\s*([A-Za-z]*)\s*")
_CODEC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
WhenFull: TypeAlias = Literal["drop", "block", "error"]
BYTES = "bytes"  # the codec that leaves values as they are


def parse_size(value: int | str, what: str) -> int:
    """A number of bytes, given as an int or as text with B, KiB, MiB or GiB.

    >>> parse_size("64MiB", "segment_size")
    67108864
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise WrongType(
            f"{what} must be a number of bytes or text like '64MiB', got {type(value).__name__}"
        )
    if isinstance(value, int):
        return value
    match = _SIZE.fullmatch(value) if len(value) <= 40 else None
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise Usage(
            f"{what} must be a size like 65536, '64KiB', '64MiB' or '1GiB', got {value[:40]!r}"
        )
    return int(match[1]) * unit


def check_codec_name(name: object) -> None:
    """Refuse an invalid name of a codec."""
    if not isinstance(name, str):
        raise WrongType(f"codec must be the name of a codec, got {type(name).__name__}")
    if not _CODEC.fullmatch(name):
        raise Usage(
            f"codec must be 1 to 64 letters, digits, dots, dashes, + and _, got {name[:70]!r}"
        )


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a log. They are stored in the log, never in a file beside it.

    Attributes
    ----------
    segment_size : int
        Bytes of one segment file. A change applies from the next segment on.
    file_mode : int
        Permission bits of the log's files; the directory gets the matching x bits. A change
        applies to files created later, for a ring from the next `Log.resize` on; existing files
        keep their bits until you change them with chmod.
    codec : str
        How values become bytes: "bytes", "json", "msgpack", "lite3" or a registered codec.
        It is chosen when the log is created and never changes.
    when_full : str
        For a ring: what to do if there is no room for an append. "drop" drops the oldest events.
        "block" waits for readers with a hold (`Log.follow` with ``hold``) and drops what they have
        read. "error" raises `Full` where "block" would wait, and also if there is no such reader:
        only what was read is dropped.
    ttl : float
        How many seconds an event lives, counted from its append; 0 for ever. Older events are not
        returned by any reader. An event whose own ``ttl`` is shorter lives for that.
    """

    segment_size: int = layout.SEGMENT_BYTES_DEFAULT
    file_mode: int = 0o600
    codec: str = BYTES
    when_full: WhenFull = "drop"
    ttl: float = 0

    def __post_init__(self) -> None:
        for name in ("segment_size", "file_mode"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise WrongType(f"{name} must be an int, got {type(value).__name__}")
        size = self.segment_size
        if not layout.SEGMENT_BYTES_MIN <= size <= layout.SEGMENT_BYTES_MAX or size % layout.PAGE:
            raise Usage(
                f"segment_size must be a multiple of {layout.PAGE} "
                f"from {layout.SEGMENT_BYTES_MIN} to {layout.SEGMENT_BYTES_MAX}, got {size}"
            )
        if self.file_mode & ~0o666 or self.file_mode & 0o600 != 0o600:
            raise Usage(
                f"file_mode must let the owner read and write, and may let group and others do so, "
                f"such as 0o660, got {self.file_mode:#o}"
            )
        check_codec_name(self.codec)
        check_choice(self.when_full, "when_full", "drop", "block", "error")
        if isinstance(self.ttl, bool) or not isinstance(self.ttl, int | float):
            raise WrongType(f"ttl must be a number of seconds, got {type(self.ttl).__name__}")
        if self.ttl:
            span_ns(self.ttl, "ttl")

    @property
    def dir_mode(self) -> int:
        """The directory's permission bits: file_mode, with x wherever there is r."""
        return self.file_mode | (self.file_mode & 0o444) >> 2

    @property
    def ttl_ns(self) -> int:
        """``ttl`` in nanoseconds; 0 for ever."""
        return span_ns(self.ttl, "ttl") if self.ttl else 0

    def changed(self, **changes: Any) -> Settings:
        """A copy of these settings with some of them changed, checked."""
        known = {f.name for f in fields(self)}
        for name, value in list(changes.items()):
            if name not in known:
                raise Usage(f"a setting must be one of {', '.join(sorted(known))}, got {name!r}")
            if name == "segment_size":
                changes[name] = parse_size(value, name)
            elif name == "ttl" and isinstance(value, timedelta):
                changes[name] = span_ns(value, name) / 1e9 if value else 0
        return replace(self, **changes)

    def to_json(self) -> bytes:
        """The form that headers and settings frames store; defaults are left out."""
        said = asdict(self)
        if self.codec == BYTES:
            del said["codec"]
        if self.when_full == "drop":
            del said["when_full"]
        if not self.ttl:
            del said["ttl"]
        data = json.dumps(said, sort_keys=True, separators=(",", ":")).encode()
        if len(data) > layout.SETTINGS_BYTES_MAX:
            raise TooLarge(
                f"settings must take at most {layout.SETTINGS_BYTES_MAX} bytes, got {len(data)}"
            )
        return data

    @classmethod
    def from_json(cls, data: bytes, path: str) -> Settings:
        """Settings from a header or frame; an unknown name is an error."""
        known = _SEEN.get(data)
        if known is not None:
            return known
        try:
            loaded = json.loads(data)
            unknown = set(loaded) - {f.name for f in fields(cls)}
            if unknown:
                raise UnsupportedVersion(
                    f"{path}: has a setting unknown to this Penstock: {sorted(unknown)[0]}",
                    path=path,
                )
            settings = cls().changed(**loaded)
        except (ValueError, TypeError, RecursionError) as error:
            raise Corrupt(f"{path}: its settings cannot be read: {error}", path=path) from None
        if len(_SEEN) < _SEEN_MAX:
            _SEEN[data] = settings
        return settings


# Every roll reads the settings several times, and under the write lock; they rarely change.
_SEEN: dict[bytes, Settings] = {}
_SEEN_MAX = 100


@dataclass(frozen=True, slots=True)
class Options:
    """How one handle opens a log of any kind; `penstock.open` documents them."""

    writable: bool
    timeout: float | None
    any_file_system: bool = False
    sync_seconds: float | None = None
    sync_events: int | None = None
    codec: str | None = None
    schema: Any = None
    nan: Literal["raise", "null"] = "raise"
