"""Options of the source and of the sink: each is known and checked, or refused with the reason.

Spark hands options over as text, with names in lower case. An unknown option is an error: a
misspelt option must never be ignored.

An option that Spark's own sources have (Kafka's, and JSON's for values) keeps its name there. Any
other option is the argument of the same name in Python, in camel case: ``onDamage``, ``durable``.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from penstock.errors import Usage

_UNITS_SECONDS = {
    "ms": 0.001,
    "s": 1,
    "sec": 1,
    "second": 1,
    "seconds": 1,
    "m": 60,
    "min": 60,
    "minute": 60,
    "minutes": 60,
    "h": 3600,
    "hour": 3600,
    "hours": 3600,
    "d": 86400,
    "day": 86400,
    "days": 86400,
}
_UNITS_BYTES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_KAFKA = {
    "kafka.bootstrap.servers": "there is no server: give the path of the log to load()",
    "kafkaconsumer.polltimeoutms": "nothing is polled over a network",
    "kafkaconsumer.consumercachetimeoutms": "there is no consumer to cache",
    "kafkaconsumer.useconsumercache": "there is no consumer to cache",
    "fetchoffset.numretries": "offsets come from shared memory; there is nothing to retry",
    "fetchoffset.retryintervalms": "offsets come from shared memory; there is nothing to retry",
    "groupidprefix": "Spark keeps the position in its checkpoint; there is no consumer group",
    "includetimestamp": "the column timestamp is always there",
}


class SourceOptions:
    """The options of one source or sink."""

    def __init__(
        self,
        given: Mapping[str, str],
        known: Iterable[str],
        *,
        what: str,
        refused: Mapping[str, str] | None = None,
    ) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        self._known = {name.lower(): name for name in known}
        refusals = {**_KAFKA, **(refused or {})}
        for name in sorted(self._given):
            if name in refusals:
                raise Usage(f"option {name!r} cannot be given to {what}: {refusals[name]}")
            if name.startswith("kafka."):
                raise Usage(f"option {name!r} is for a Kafka client; {what} has no Kafka client")
            if name not in self._known:
                near = difflib.get_close_matches(name, self._known, 1)
                hint = f" Did you mean {self._known[near[0]]!r}?" if near else ""
                there = ", ".join(sorted(self._known.values(), key=str.lower))
                raise Usage(f"{what} has no option {name!r}.{hint} Its options are {there}")

    def given(self, name: str) -> bool:
        """Whether the user gave the option."""
        return name.lower() in self._given

    def text(self, name: str, default: str | None = None) -> str | None:
        """The text that was given."""
        return self._given.get(name.lower(), default)

    def choice(self, name: str, choices: Iterable[str], default: str) -> str:
        """One of some words, in upper or lower case."""
        among = list(choices)
        found = self._given.get(name.lower(), default)
        for word in among:
            if found.strip().lower() == word.lower():
                return word
        raise Usage(f"option {name!r} must be one of {', '.join(among)}, got {found!r}")

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def whole(self, name: str, default: int | None = None, *, least: int = 1) -> int | None:
        """A whole number."""
        text = self._given.get(name.lower())
        if text is None:
            return default
        if not re.fullmatch(r"\s*[+-]?\d{1,18}\s*", text):
            raise Usage(f"option {name!r} must be a whole number, got {text!r}")
        if int(text) < least:
            raise Usage(f"option {name!r} must be {least} or more, got {int(text)}")
        return int(text)

    def nbytes(self, name: str) -> int | None:
        """A number of bytes, such as "64m"."""
        text = self._given.get(name.lower())
        if text is None:
            return None
        found = re.fullmatch(r"(\d{1,18})\s*([kmgt]?)(?:i?b)?", text.strip().lower())
        nbytes = int(found[1]) * _UNITS_BYTES[found[2]] if found else 0
        if not nbytes:
            raise Usage(f"option {name!r} must be a number of bytes, such as 64m, got {text!r}")
        return nbytes

    def seconds(self, name: str, default: str) -> float:
        """A duration, such as "15m" or "90 seconds"; milliseconds if no unit is given."""
        text = self._given.get(name.lower(), default)
        found = re.fullmatch(r"(\d{1,12})\s*([a-z]*)", text.strip().lower())
        unit = (found[2] or "ms") if found else ""
        if found is None or unit not in _UNITS_SECONDS:
            raise Usage(f"option {name!r} must be a duration, such as 15m or 90s, got {text!r}")
        return int(found[1]) * _UNITS_SECONDS[unit]

    def names(self, name: str) -> list[str] | None:
        """A list of names, with commas between them."""
        text = self._given.get(name.lower())
        if text is None:
            return None
        found = [part.strip() for part in text.split(",")]
        if not all(found):
            raise Usage(f"option {name!r} must be a list such as a,b, got {text!r}")
        return found

    def object(self, name: str) -> dict[str, Any] | None:
        """A JSON object."""
        text = self._given.get(name.lower())
        return None if text is None else json_object(name, text)


def json_object(name: str, text: str) -> dict[str, Any]:
    """The JSON object that an option holds."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise Usage(f"option {name!r} must be JSON, got {text!r} ({error})") from None
    if not isinstance(found, dict):
        raise Usage(f"option {name!r} must be a JSON object, got {text!r}")
    return found
