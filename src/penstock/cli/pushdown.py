"""What a query needs of each log: which columns, and which range of seqs, times and topics.

It only makes a scan read less: DuckDB applies the whole query to what the scan returns. So whatever
is not understood limits nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock.cli.when import moment
from penstock.errors import PenstockError

_FLIPPED = {">": "<", "<": ">", ">=": "<=", "<=": ">=", "=": "="}
_COMPARES = {
    "COMPARE_EQUAL": "=",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_LESSTHANOREQUALTO": "<=",
}
SEQ_MAX = (1 << 63) - 2
DAY_NS = 86_400 * 1_000_000_000  # a time without a zone may be up to a day off ours


@dataclass
class Need:
    """What is needed of one log."""

    columns: set[str] | None = None  # None: all
    start: int = 0
    stop: int | None = None
    since: int | None = None
    until: int | None = None
    topics: set[str] | None = None

    def options(self) -> dict[str, Any]:
        """As arguments of `Log.scan`."""
        from penstock.times import Ns

        found: dict[str, Any] = {}
        if self.start:
            found["start"] = self.start
        if self.stop is not None:
            found["stop"] = max(self.stop, self.start)
        if self.since is not None:
            found["since"] = Ns(max(self.since, 0))
        if self.until is not None:
            found["until"] = Ns(max(self.until, self.since or 0, 0))
        if self.topics:
            found["topic"] = sorted(self.topics)
        return found


def needs(connection: Any, query: str, tables: set[str]) -> dict[str, Need]:
    """What the query needs of each table."""
    found = {table: Need() for table in tables}
    try:
        rows = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchall()
        text = rows[0][0]
        tree = json.loads(text)
        if tree.get("error"):
            return found
        nodes = list(_nodes(tree))
    except Exception:  # another version of DuckDB: everything is read
        return found
    names = {n["column_names"][-1].lower() for n in nodes if n.get("type") == "COLUMN_REF"}
    whole = any(n.get("type") in ("STAR", "COLUMNS") or n.get("class") == "STAR" for n in nodes)
    counts: dict[str, int] = {}
    for node in nodes:
        if node.get("type") == "BASE_TABLE":
            name = node.get("table_name", "")
            counts[name] = counts.get(name, 0) + 1
    for table, need in found.items():
        need.columns = None if whole else names
        for node in nodes:
            source = node.get("from_table") or {}
            if node.get("type") != "SELECT_NODE" or source.get("type") != "BASE_TABLE":
                continue
            if source.get("table_name") == table and counts.get(table) == 1:
                for part in _parts(node.get("where_clause")):
                    _limit(need, part)
    return found


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """All objects of a JSON value."""
    stack = [tree]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            yield item
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)


def _parts(clause: Any) -> Iterator[dict[str, Any]]:
    """The conditions that must all hold."""
    if not isinstance(clause, dict):
        return
    if clause.get("type") == "CONJUNCTION_AND":
        for part in clause.get("children", ()):
            yield from _parts(part)
    else:
        yield clause


def _column(node: Any) -> str | None:
    if isinstance(node, dict) and node.get("type") == "COLUMN_REF":
        return str(node["column_names"][-1]).lower()
    return None


def _constant(node: Any) -> str | None:
    """The text of a constant, also of one with a type around it."""
    if not isinstance(node, dict):
        return None
    if node.get("type") in ("OPERATOR_CAST", "CAST_EXPRESSION") or node.get("class") == "CAST":
        return _constant(node.get("child"))
    if node.get("type") != "VALUE_CONSTANT":
        return None
    literal = node.get("literal") or node.get("value") or {}
    text = literal.get("text", literal.get("value"))
    return None if text is None or isinstance(text, bool | dict) else str(text)


def _limit(need: Need, part: dict[str, Any]) -> None:
    """Narrow what is needed by one condition, if it is one of those that help."""
    kind = str(part.get("type"))
    if kind == "COMPARE_IN":
        children = part.get("children") or []
        values = [_constant(child) for child in children[1:]]
        if children and _column(children[0]) == "topic" and None not in values:
            _topics(need, {str(value) for value in values})
        return
    if kind == "COMPARE_BETWEEN":
        column = _column(part.get("input"))
        _compare(need, column, ">=", _constant(part.get("lower")))
        _compare(need, column, "<=", _constant(part.get("upper")))
        return
    how = _COMPARES.get(kind)
    if how is None:
        return
    left, right = part.get("left"), part.get("right")
    if _column(left) is not None:
        _compare(need, _column(left), how, _constant(right))
    else:
        _compare(need, _column(right), _FLIPPED[how], _constant(left))


def _topics(need: Need, topics: set[str]) -> None:
    kept = topics if need.topics is None else need.topics & topics
    need.topics = kept or need.topics  # no topic at all would mean all of them


def _compare(need: Need, column: str | None, how: str, text: str | None) -> None:
    if text is None:
        return
    if column == "topic" and how == "=":
        _topics(need, {text})
    elif column == "seq" and text.lstrip("-").isdigit():
        seq = min(max(int(text), 0), SEQ_MAX)
        if how in (">", ">=", "="):
            need.start = max(need.start, seq + (how == ">"))
        if how in ("<", "<=", "="):
            stop = seq + (how != "<")
            need.stop = stop if need.stop is None else min(need.stop, stop)
    elif column == "time":
        try:
            ns = moment(text, "time")
        except PenstockError:
            return
        if how in (">", ">=", "="):
            need.since = max(need.since or 0, ns - DAY_NS)
        if how in ("<", "<=", "="):
            until = ns + DAY_NS
            need.until = until if need.until is None else min(need.until, until)
