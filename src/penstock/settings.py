"""A log's settings: what they are, how they are checked, and their JSON form in the log itself.

Also the options of one handle, which the log does not store.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
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
    keep_seconds : float
        Retention deletes segments whose last event was appended longer ago; 0: no such rule.
    keep_bytes : int
        Retention deletes the oldest segments while the log takes more bytes on disk; 0: no such
        rule.
    keep_segments : int
        Retention deletes the oldest segments above this number; 0: no such rule.
    keep_until_consumed : bool or names
        Retention deletes a segment only when the consumers and groups with these names have
        committed all of it; True: all that the log has. If no other rule is set, it then goes.
    consumer_ttl : float
        A consumer that is not live, and was last seen longer ago, holds nothing back; 0: any.
    max_lag : int
        No reader holds back what is more than this many bytes before the end of the log; 0: any.
    max_bytes : int
        The log never takes more bytes on disk: appends raise `DiskFull` first; 0: no limit.
    prepare_at : float
        The share of a segment after which the next one is prepared in the background; 0: never.
    max_unsealed : int
        If more finished segments wait to be sealed, appends raise `Backpressure`; 0: no limit.
    max_failures : int
        If background work fails this often in a row, appends raise `Backpressure`; 0: no limit.
    first_seq : int
        Set by retention and trims only: events before it are gone, even if a file still has them.
    holes : bool
        Set by compaction and erasures only: seqs between events may be missing, so that counting
        events takes a look at every segment.
    archive : str
        Set by archiving only: where the segments are that the log's directory has no longer. A
        directory, a URL, or "archive" for the directory of that name in the log's own.
    """

    segment_size: int = layout.SEGMENT_BYTES_DEFAULT
    file_mode: int = 0o600
    codec: str = BYTES
    when_full: WhenFull = "drop"
    ttl: float = 0
    keep_seconds: float = 0
    keep_bytes: int = 0
    keep_segments: int = 0
    keep_until_consumed: bool | tuple[str, ...] = False
    consumer_ttl: float = 0
    max_lag: int = 0
    max_bytes: int = 0
    prepare_at: float = 0.8
    max_unsealed: int = 500
    max_failures: int = 100
    first_seq: int = 0
    holes: bool = False
    archive: str = ""

    def __post_init__(self) -> None:
        for name in ("segment_size", "file_mode", *_COUNTS):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise WrongType(f"{name} must be an int, got {type(value).__name__}")
            if name in _COUNTS and not 0 <= value < 1 << 64:
                raise Usage(f"{name} must be 0 or more, got {value}")
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
        for name in _SPANS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise WrongType(f"{name} must be a number of seconds, got {type(value).__name__}")
            if value:
                span_ns(value, name)
        share = self.prepare_at
        if isinstance(share, bool) or not isinstance(share, int | float):
            raise WrongType(f"prepare_at must be a number from 0 to 1, got {type(share).__name__}")
        if not 0 <= share <= 1:
            raise Usage(f"prepare_at must be a number from 0 to 1, got {share!r}")
        _check_names(self.keep_until_consumed)
        if not isinstance(self.holes, bool):
            raise WrongType(f"holes must be True or False, got {type(self.holes).__name__}")
        if not isinstance(self.archive, str):
            raise WrongType(f"archive must be text, got {type(self.archive).__name__}")

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
            if name in _SIZES:
                changes[name] = parse_size(value, name)
            elif name in _SPANS and isinstance(value, timedelta):
                changes[name] = span_ns(value, name) / 1e9 if value else 0
            elif name == "keep_until_consumed":
                changes[name] = names_of(value)
        return replace(self, **changes)

    def to_json(self) -> bytes:
        """The form that headers and settings frames store; defaults are left out."""
        said = {
            name: getattr(self, name)
            for name, default in _DEFAULTS.items()
            if name in ("segment_size", "file_mode") or getattr(self, name) != default
        }
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


_SPANS = ("ttl", "keep_seconds", "consumer_ttl")
_SIZES = ("segment_size", "keep_bytes", "max_lag", "max_bytes")
_COUNTS = (*_SIZES[1:], "keep_segments", "max_unsealed", "max_failures", "first_seq")
SEGMENTS_ONLY = frozenset(  # settings that a ring cannot have
    {*_COUNTS, "keep_seconds", "keep_until_consumed", "consumer_ttl", "prepare_at", "holes"}
    | {"archive"}
)
_DEFAULTS = {f.name: f.default for f in fields(Settings)}


def names_of(value: object) -> bool | tuple[str, ...]:
    """``keep_until_consumed`` in one form: whether by all, or names of consumers and groups."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str | bytes | bytearray | memoryview) or not isinstance(value, Iterable):
        raise WrongType(
            "keep_until_consumed must be True, False or a list of names of consumers and groups, "
            f"got {type(value).__name__}"
        )
    try:
        found = tuple(dict.fromkeys(value))
    except TypeError:
        raise WrongType(
            "keep_until_consumed must be a list of names, got one that is no text"
        ) from None
    _check_names(found)
    return found or False


def _check_names(names: object) -> None:
    """Refuse what is neither a bool nor names."""
    if isinstance(names, bool):
        return
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        raise WrongType("keep_until_consumed must be True, False or names, each of them a str")
    if not names or not all(names):
        raise Usage("keep_until_consumed must be True, False or names, got an empty one")


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
    max_maps: int | None = None
