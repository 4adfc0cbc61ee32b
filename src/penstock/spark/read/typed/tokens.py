"""Tokens: JSON text as the stream of tokens that Spark's JSON source sees.

It takes what Jackson takes under Spark's defaults (single quotes, NaN and Infinity as words, a byte
order mark) and refuses what Jackson refuses, at the same token: a reader that goes on after a wrong
value must be at the same place. Strings are examined only when they are asked for or skipped. It is
for single texts that the vectorised parser does not take.
"""

from __future__ import annotations

import re
from typing import NoReturn

OBJECT, OBJECT_END, ARRAY, ARRAY_END, NAME, STRING, INT, FLOAT, TRUE, FALSE, NULL = range(11)

DEPTH_MAX = 1000
NUMBER_DIGITS_MAX = 1000
NAME_CHARS_MAX = 50_000

_ROOT = -1
_SPACE = re.compile(r"[ \t\n\r]*")
_FIELD = re.compile(
    r'[ \t\n\r]*(,?)[ \t\n\r]*"([^"\\\x00-\x1f\udc80-\udcff]*)"[ \t\n\r]*:[ \t\n\r]*(?=.)',
    re.DOTALL,
)  # most names are like this
_NUMBER = re.compile(r"-?(?:0(?![0-9])|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_CUT_SHORT = re.compile(r"\.|[eE][+-]?")  # after a number: a fraction or an exponent without digits
_WORD = re.compile(r"[\w$]*")
_PLAIN = {
    '"': re.compile(r'[^"\\\x00-\x1f\udc80-\udcff]*'),
    "'": re.compile(r"[^'\\\x00-\x1f\udc80-\udcff]*"),
}
_BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_HEX = re.compile(r"[0-9a-fA-F]{0,4}")
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_LONE = re.compile("[\ud800-\udfff]")
_ESCAPES = {
    '"': '"',
    "\\": "\\",
    "/": "/",
    "'": "'",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
}
_LITERALS = {"t": ("true", TRUE), "f": ("false", FALSE), "n": ("null", NULL)}
_WORDS = {"N": ("NaN",), "I": ("Infinity",)}


class Wrong(Exception):
    """The text is not JSON from here on, or a value does not fit its type."""


class Tokens:
    """The tokens of one text, in order. ``token`` is the last one that was read."""

    __slots__ = (
        "_ahead",
        "_count",
        "_kind",
        "_outer",
        "_unread",
        "at",
        "found",
        "key",
        "start",
        "text",
        "token",
    )

    def __init__(self, data: bytes) -> None:
        # bytes that are not UTF-8 become lone surrogates, which are found when they are read
        self.text = data.decode("utf-8", "surrogateescape")
        # Jackson looks for a mark only where four bytes are
        self.at = 1 if len(data) > 3 and self.text.startswith("\ufeff") else 0
        self.start = 0
        self.token: int | None = None
        self.found = ""  # the text of a name, a number or a string that was read
        self._unread = False
        self._ahead: int | None = None  # the value after a name
        self._kind, self._count, self.key = _ROOT, -1, ""
        self._outer: list[tuple[int, int, str | None]] = []

    @property
    def name(self) -> str | None:
        """The name that the current token belongs to; None in an array."""
        if self.token in (OBJECT, ARRAY):
            kind, _, name = self._outer[-1]
        else:
            kind, name = self._kind, self.key
        return name if kind == OBJECT else None

    def next(self) -> int | None:
        """Go to the next token and return it; None after the last."""
        if self.token == NAME:
            self.token, self._ahead = self._ahead, None
            if self.token in (OBJECT, ARRAY):
                self._open(self.token)
            return self.token
        if self._unread:
            self.string()
        if self._kind == OBJECT:
            field = _FIELD.match(self.text, self.at)
            short = field and field.end() - self.at <= NAME_CHARS_MAX
            if field and short and (field[1] == ",") == (self._count >= 0):
                self._count += 1
                return self._named(field[2], field.end())
        at = _SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]
        if at == len(self.text):
            self.at = at
            if self._kind != _ROOT:
                raise Wrong("it ends within an object or an array")
            self.token = None
            return None
        c = self.text[at]
        self.start, self.at = at, at + 1
        if c in {"}", "]"}:
            return self._close(c)
        self._count += 1
        if self._kind != _ROOT and self._count:
            if c != ",":
                self._unexpected(c)
            c = self._char()
        if self._kind != OBJECT:
            self.token = token = self._value(c)
            if token in (OBJECT, ARRAY):
                self._open(token)
            return token
        if c not in {'"', "'"}:
            self._unexpected(c)
        name = _paired(self._rest(c))
        if _LONE.search(name):
            raise Wrong("it has a name with half of a surrogate pair")
        if len(name) > NAME_CHARS_MAX:
            raise Wrong(f"it has a name of more than {NAME_CHARS_MAX} characters")
        self.key, self.token = name, NAME
        c = self._char()
        if c != ":":
            self._unexpected(c)
        self._char()
        return self._named(name, self.at - 1)

    def _named(self, name: str, at: int) -> int:
        """A name whose value begins at a place."""
        self.key, self.token, self.at = name, NAME, at + 1
        self._ahead = self._value(self.text[at])
        return NAME

    def string(self) -> str:
        """The text of a string, of which the stream has seen only the beginning so far."""
        if self._unread:
            self._unread = False
            self.found = _whole(self._rest('"'))
        return self.found

    def binary(self) -> bytes:
        """The bytes of a string in base64; what follows a wrong character is skipped later."""
        if not self._unread:
            return Tokens.of_string(self.found).binary()
        found = bytearray()
        while True:
            c = self._raw()
            if c == '"':
                self._unread = False
                return bytes(found)
            if c == "\\":
                c = self._escaped()
            if c <= " ":
                continue
            bits = self._sextet(c) << 6 | self._sextet(self._raw_escaped())
            c = self._raw_escaped(quote=True)
            if c == "=":
                if self._raw_escaped() != "=":
                    raise Wrong("it has base64 that is not padded")
                found.append(bits >> 4)
                continue
            bits = bits << 6 | self._sextet(c)
            c = self._raw_escaped(quote=True)
            if c == "=":
                found += (bits >> 2).to_bytes(2, "big")
            else:
                found += (bits << 6 | self._sextet(c)).to_bytes(3, "big")

    @classmethod
    def of_string(cls, text: str) -> Tokens:
        """The tokens of a string that was read already."""
        tokens = cls(b"")
        tokens.text, tokens.token, tokens._unread = text + '"', STRING, True
        return tokens

    def _raw(self) -> str:
        if self.at >= len(self.text):
            raise Wrong("it ends within a string")
        self.at += 1
        return self.text[self.at - 1]

    def _raw_escaped(self, *, quote: bool = False) -> str:
        c = self._raw()
        if c == '"' and quote:
            self.at -= 1
            raise Wrong("it has base64 that is not padded")
        return self._escaped() if c == "\\" else c

    def _sextet(self, c: str) -> int:
        found = _BASE64.find(c)
        if found < 0:
            if self.text[self.at - 1] > "\x7f":  # Jackson goes on in the middle of its bytes
                self.text = f"{self.text[: self.at]}\udc80"
            raise Wrong(f"{c!r} is not a character of base64")
        return found

    def skip(self) -> None:
        """Go to the end of the object or array that begins here, if one does."""
        if self.token not in (OBJECT, ARRAY):
            return
        depth = 1
        while depth:
            token = self.next()
            if token is None:
                raise Wrong("it ends within an object or an array")
            if token in (OBJECT, ARRAY):
                depth += 1
            elif token in (OBJECT_END, ARRAY_END):
                depth -= 1

    def _char(self) -> str:
        """The next character that is not a space; the text must not end here."""
        at = _SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]
        self.at = at + 1
        if at == len(self.text):
            self.at = at
            raise Wrong("it ends within an object or an array")
        return self.text[at]

    def _unexpected(self, c: str) -> NoReturn:
        raise Wrong(f"it has an unexpected {c!r} at character {self.at - 1}")

    def _open(self, kind: int) -> None:
        self._outer.append((self._kind, self._count, self.key))
        self._kind, self._count, self.key = kind, -1, ""
        if len(self._outer) > DEPTH_MAX:
            raise Wrong(f"it is nested more than {DEPTH_MAX} deep")

    def _close(self, c: str) -> int:
        kind, token = (OBJECT, OBJECT_END) if c == "}" else (ARRAY, ARRAY_END)
        if self._kind != kind:
            self._unexpected(c)
        self._kind, self._count, name = self._outer.pop()
        self.key = name or ""
        self.token = token
        return token

    def _value(self, c: str) -> int:
        """The token that begins with ``c``, which was read."""
        self.start = self.at - 1
        if c == '"':
            self._unread = True
            return STRING
        if c == "{":
            return OBJECT
        if c == "[":
            return ARRAY
        if c in "-0123456789":
            return self._number(c)
        if c in _LITERALS:
            word, token = _LITERALS[c]
            self._match((word,), self.start)
            return token
        if c == "'":
            self.found = _whole(self._rest("'"))
            return STRING
        if c in _WORDS:
            self.found = self._match(_WORDS[c], self.start)
            return FLOAT
        if c == "+":
            return self._signed()
        if c.isalpha() or c in "_$":
            self._match((), self.start)
        self._unexpected(c)

    def _match(self, words: tuple[str, ...], start: int) -> str:
        """One of some words; otherwise the place is after the word that is there instead."""
        end = _WORD.match(self.text, start).end()  # type: ignore[union-attr]
        for word in words:
            if self.text[self.start : end] == word:
                self.at = end
                return word
        self.at = min(end + 1, len(self.text))
        raise Wrong(f"it has the unknown word {self.text[self.start : end]!r}")

    def _signed(self) -> int:
        """A word with a sign."""
        sign = self.text[self.start]
        for at, letters in ((self.start + 1, "I"), (self.start + 2, "Nn")):
            if self.text[at : at + 1] not in (*letters,):
                self._number_ends(at)
        self.found = self._match((f"{sign}INF", f"{sign}Infinity"), self.start + 1)
        return FLOAT

    def _number(self, c: str) -> int:
        found = _NUMBER.match(self.text, self.start)
        if found is None:
            if c == "-" and self.text.startswith("I", self.at):
                return self._signed()
            self._number_ends(self.start + (c == "-"))
        self.at = found.end()
        more = _CUT_SHORT.match(self.text, self.at)
        if more and found[2] is None and (found[1] is None or more[0] != "."):
            self._number_ends(more.end())
        self.found = found[0]
        if len(self.found) > NUMBER_DIGITS_MAX and _digits(self.found) > NUMBER_DIGITS_MAX:
            raise Wrong(f"it has a number of more than {NUMBER_DIGITS_MAX} digits")
        return INT if found[1] is None and found[2] is None else FLOAT

    def _number_ends(self, at: int) -> NoReturn:
        """Refuse a number; the character that ended it too soon was read as well."""
        self.at = min(at + 1, len(self.text))
        raise Wrong(f"it has a malformed number at character {self.start}")

    def _rest(self, quote: str) -> str:
        """The text up to the closing quote, unescaped."""
        text, plain = self.text, _PLAIN[quote]
        end = plain.match(text, self.at).end()  # type: ignore[union-attr]
        if text.startswith(quote, end):
            found = text[self.at : end]
            self.at = end + 1
            return found
        parts = []
        while True:
            parts.append(text[self.at : end])
            self.at = end + 1
            if end >= len(text):
                self.at = end
                raise Wrong("it ends within a string")
            c = text[end]
            if c == quote:
                return "".join(parts)
            if c != "\\":
                raise Wrong(f"character {end} is a control character or not UTF-8")
            parts.append(self._escaped())
            end = plain.match(text, self.at).end()  # type: ignore[union-attr]

    def _escaped(self) -> str:
        c = self.text[self.at : self.at + 1]
        self.at += len(c)
        if c == "u":
            digits = _HEX.match(self.text, self.at)[0]  # type: ignore[index]
            self.at += len(digits)
            if len(digits) < 4:
                self.at = min(self.at + 1, len(self.text))
                raise Wrong(f"the escape before character {self.at} must have four digits")
            return chr(int(digits, 16))
        if c not in _ESCAPES:
            raise Wrong(f"it has the unknown escape \\{c}")
        return _ESCAPES[c]


def _paired(text: str) -> str:
    """The text with pairs of surrogates, which came from escapes, as one character each."""
    if _LONE.search(text) is None:
        return text
    return _PAIR.sub(lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), text)


def _whole(text: str) -> str:
    """The same, with a question mark for half of a surrogate pair."""
    return _LONE.sub("?", _paired(text))


def _digits(number: str) -> int:
    return sum(map(str.isdigit, number))
