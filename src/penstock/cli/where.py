"""``--where``: a small expression over the fields of an event.

It has the words of Python and none of its powers: names of fields, numbers, texts, comparisons,
``and or not in``, ``+ - * / %``, ``data.total``, ``headers["x"]``, and a few functions. It is
compiled to closures; nothing is evaluated as code. What an event lacks is None, and a comparison of
things that cannot be compared is false.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from typing import Any, TypeAlias

from penstock.errors import PenstockError, Usage

Getter: TypeAlias = Callable[[Any], Any]

CHARACTERS_MAX = 10_000


def compile_where(text: str) -> Callable[[Any], bool]:
    """A function that says whether an event fits.

    >>> log = penstock.open(path)
    >>> log.extend([b"1", b"22"], topic="numbers")
    range(1, 3)
    >>> fits = compile_where("topic == 'numbers' and size > 1")
    >>> [event.seq for event in log if fits(event)]
    [2]
    """
    if len(text) > CHARACTERS_MAX:
        raise Usage(f"--where must be at most {CHARACTERS_MAX} characters, got {len(text)}")
    try:
        tree = ast.parse(text.strip(), mode="eval")
        getter = _compiled(tree.body)
    except (SyntaxError, ValueError) as error:
        if isinstance(error, PenstockError):
            raise
        raise Usage(f"--where must be an expression like 'topic == \"a\"', got {text!r}") from None
    except (RecursionError, MemoryError):
        raise Usage("--where is nested too deeply") from None
    return lambda event: bool(getter(event))


def _time(event: Any) -> Any:
    return event.time_ns


def _value(event: Any) -> Any:
    value = event.value
    return None if value is None else value.decode("utf-8", "replace")


def _key(event: Any) -> Any:
    key = event.key
    return None if key is None else key.decode("utf-8", "replace")


def _data(event: Any) -> Any:
    """The value as an object: of the log's codec, or JSON if it has none."""
    try:
        found = event.data
    except PenstockError:
        return None
    if isinstance(found, bytes):
        import msgspec

        try:
            return msgspec.json.decode(found)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
    return found


def _headers(event: Any) -> Any:
    return {
        name: None if value is None else value.decode("utf-8", "replace")
        for name, value in event.headers
        if not name.startswith("penstock.")
    }


FIELDS: dict[str, Getter] = {
    "seq": lambda event: event.seq,
    "time": _time,
    "append_time": lambda event: event.append_ns,
    "topic": lambda event: event.topic,
    "key": _key,
    "value": _value,
    "data": _data,
    "size": lambda event: len(event.view) if not event.deletes else 0,
    "tags": lambda event: event.tags,
    "headers": _headers,
    "deletes": lambda event: event.deletes,
}
_WORDS = {"true": True, "false": False, "null": None, "none": None}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "len": len,
    "lower": lambda text: text.lower(),
    "upper": lambda text: text.upper(),
    "int": int,
    "float": float,
    "str": str,
    "abs": abs,
    "startswith": lambda text, start: text.startswith(start),
    "endswith": lambda text, end: text.endswith(end),
    "matches": lambda text, pattern: re.search(pattern, text) is not None,
}
_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}
_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
    ast.Is: lambda a, b: a is b,
    ast.IsNot: lambda a, b: a is not b,
}
_TIMES = ("time", "append_time")


def _compiled(node: ast.expr) -> Getter:
    """The function of one part of the expression."""
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return lambda _: value
        case ast.Constant(value=bytes() as raw):
            text = raw.decode("utf-8", "replace")
            return lambda _: text
        case ast.Name(id=name):
            if name in FIELDS:
                return FIELDS[name]
            if name in _WORDS:
                word = _WORDS[name]
                return lambda _: word
            raise Usage(f"--where: {name!r} is no field; the fields are {', '.join(FIELDS)}")
        case ast.Attribute(value=base, attr=name):
            return _item(_compiled(base), lambda _: name)
        case ast.Subscript(value=base, slice=which):
            return _item(_compiled(base), _compiled(which))
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            getters = [_compiled(part) for part in parts]
            return lambda event: [getter(event) for getter in getters]
        case ast.BoolOp(op=op, values=parts):
            return _all_or_any([_compiled(part) for part in parts], isinstance(op, ast.And))
        case ast.UnaryOp(op=ast.Not(), operand=part):
            inner = _compiled(part)
            return lambda event: not inner(event)
        case ast.UnaryOp(op=ast.USub(), operand=part):
            return _apply(operator.neg, [_compiled(part)])
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _apply(_plain_numbers(_BINARY[type(op)]), [_compiled(left), _compiled(right)])
        case ast.Compare():
            return _comparison(node)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
            return _apply(FUNCTIONS[name], [_compiled(arg) for arg in args])
        case ast.Call(func=ast.Attribute(value=base, attr=name), args=args, keywords=[]) if (
            name in FUNCTIONS
        ):
            return _apply(FUNCTIONS[name], [_compiled(base), *map(_compiled, args)])
    raise Usage(
        f"--where cannot have {ast.unparse(node)!r}; it has fields ({', '.join(FIELDS)}), "
        f"comparisons, and, or, not, in, + - * / % and {', '.join(FUNCTIONS)}"
    )


def _plain_numbers(apply: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Arithmetic on numbers, and + on texts: nothing that makes much of little."""

    def applied(a: Any, b: Any) -> Any:
        if isinstance(a, str) and isinstance(b, str) and apply is operator.add:
            return a + b
        if not isinstance(a, int | float) or not isinstance(b, int | float):
            return None
        return apply(a, b)

    return applied


def _apply(function: Callable[..., Any], getters: list[Getter]) -> Getter:
    def applied(event: Any) -> Any:
        try:
            return function(*(getter(event) for getter in getters))
        except (TypeError, ValueError, AttributeError, ArithmeticError, re.error):
            return None

    return applied


def _all_or_any(getters: list[Getter], need_all: bool) -> Getter:
    def applied(event: Any) -> Any:
        found: Any = None
        for getter in getters:
            found = getter(event)
            if bool(found) != need_all:
                break
        return found

    return applied


def _item(base: Getter, which: Getter) -> Getter:
    def applied(event: Any) -> Any:
        try:
            return base(event)[which(event)]
        except (TypeError, KeyError, IndexError):
            return None

    return applied


def _comparison(node: ast.Compare) -> Getter:
    """One comparison, or a chain of them. A text beside a time is read as one."""
    parts = [node.left, *node.comparators]
    is_time = any(isinstance(part, ast.Name) and part.id in _TIMES for part in parts)
    getters = [_moment_of(part) if is_time else _compiled(part) for part in parts]
    compares = []
    for op in node.ops:
        compares.append(_COMPARE[type(op)])

    def applied(event: Any) -> Any:
        left = getters[0](event)
        for compare, getter in zip(compares, getters[1:], strict=True):
            right = getter(event)
            try:
                if not compare(left, right):
                    return False
            except TypeError:
                return False
            left = right
        return True

    return applied


def _moment_of(node: ast.expr) -> Getter:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        from penstock.cli.when import moment

        ns = moment(node.value, "a time in --where")
        return lambda _: ns
    return _compiled(node)
