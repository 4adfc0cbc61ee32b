"""Names of archived segments, and which of them hold a log's events.

A name has the log's uuid, the segment's base seq and its generation. There is no list of them
anywhere: what is there counts.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Self

from penstock import layout as L

INSIDE = "archive"  # the directory inside the log's own; as a location it has no slash
SUFFIX = ".seg.zst"
TEMPORARY = ".tmp"
_NAME = re.compile(r"([0-9a-f]{32})-([0-9]{20})-([0-9]{10})\.seg\.zst")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?=/)")
_TEMPORARY = re.compile(rf"({_NAME.pattern})\.[0-9a-f]{{16}}\.tmp")


class Stored(NamedTuple):
    """One archived segment, as its name says."""

    uuid: bytes
    base_seq: int
    generation: int
    nbytes: int = 0  # of the archived file

    @property
    def name(self) -> str:
        """The name of the file or object."""
        return f"{self.uuid.hex()}-{self.base_seq:020d}-{self.generation:010d}{SUFFIX}"

    @classmethod
    def parse(cls, name: str, nbytes: int) -> Self | None:
        """What a name says; None if it is not that of an archived segment."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        base, generation = int(match[2]), int(match[3])
        if not 1 <= base <= L.SEQ_MAX or generation > L.GENERATION_MAX:
            return None
        return cls(bytes.fromhex(match[1]), base, generation, nbytes)


def is_temporary(name: str) -> bool:
    """Whether a file is, by its name, an upload that did not end."""
    return _TEMPORARY.fullmatch(name) is not None


def of_log(name: str, uuid: bytes) -> bool:
    """Whether a name begins with that log's uuid."""
    return name.startswith(uuid.hex() + "-")


def is_url(text: object) -> bool:
    """Whether a user means an object store."""
    match = _SCHEME.match(text) if isinstance(text, str) else None
    return match is not None and match[1].lower() != "file"
