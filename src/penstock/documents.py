"""Documents of the shape that Plasmite writes: ``{"meta": {"descrips": [...]}, "data": {...}}``.

`Document` is a schema for any codec that has objects. What is read must have all of it; an
appended document may leave out ``meta`` or ``descrips``, which are then written empty.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from msgspec import Struct, field

__all__ = ["Document", "Meta", "document"]


class Meta(Struct, forbid_unknown_fields=True):
    """The description of a document."""

    descrips: list[str]


class _DraftMeta(Struct, forbid_unknown_fields=True):
    descrips: list[str] = field(default_factory=list)


class _Draft(Struct, forbid_unknown_fields=True):
    data: dict[str, Any]
    meta: _DraftMeta = field(default_factory=_DraftMeta)


class Document(Struct, forbid_unknown_fields=True):
    """An object and the words that describe it.

    >>> from penstock.documents import Document
    >>> log = penstock.open(path, codec="json", schema=Document)
    >>> log.append({"data": {"x": 1}})
    1
    >>> log[1].data
    Document(data={'x': 1}, meta=Meta(descrips=[]))
    """

    data: dict[str, Any]
    meta: Meta

    __penstock_draft__: ClassVar[type] = _Draft


def document(data: dict[str, Any], descrips: Iterable[str] = ()) -> Document:
    """A document, to append.

    >>> document({"x": 1}, ["ping"]).meta.descrips
    ['ping']
    """
    return Document(data, Meta(list(descrips)))
