"""The state of a log of segments in frames: its settings, and the last append of each producer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from penstock import layout as L
from penstock._core import Control, SegmentMap
from penstock.errors import NotFound
from penstock.handle.producers import Table
from penstock.handle.storage import SeenSettings
from penstock.layout import SegmentPosition
from penstock.segments import segment
from penstock.segments.segment import Header
from penstock.settings import Settings

if TYPE_CHECKING:
    from penstock.handle.handle import Handle
    from penstock.segments.storage import SegmentStorage

_T = TypeVar("_T")


def settings(handle: Handle, storage: SegmentStorage, attached: Control) -> Settings:
    """The log's settings, found through live control."""
    at = attached.get(L.C_SETTINGS_POS)
    seen = storage.seen
    if seen is not None and seen.control is attached and seen.position == at:
        return seen.settings
    m, header = handle._active_map, storage.header
    number, offset = SegmentPosition.unpack(at)
    if m is None or header is None or header.number != number or m.number != header.number:
        m, header = _map_active(storage, attached)
    frame = offset if header.number == number else 0  # 0: it has rolled since; use the header
    data = m.frame_body(frame, L.KIND_SETTINGS) if frame else header.settings
    found = Settings.from_json(data, m.path)
    storage.learn(found)
    if header.number == number:
        storage.seen = SeenSettings(attached, at, found)
    return found


def _map_active(storage: SegmentStorage, attached: Control) -> tuple[SegmentMap, Header]:
    """The segment that takes appends; the log may roll meanwhile, and retention delete it."""
    while True:
        base = attached.get(L.C_ACTIVE_BASE)
        try:
            return segment.map_segment(storage.store.file(base))
        except NotFound:
            if attached.get(L.C_ACTIVE_BASE) == base:
                raise


def ask_producers(
    handle: Handle, storage: SegmentStorage, question: Callable[[Table], _T]
) -> tuple[_T, int]:
    """The answer of the current table of producers, and its place."""
    handle._check_writable()
    handle._ensure_open()
    attached = handle._live()
    while True:
        with handle._guard:
            storage.producers.learn(handle._produced_since(storage.producers.position))
            pos = attached.get(L.C_PRODUCER_POS)  # after that, so that the table is not ahead of it
            m, header = handle._active_map, storage.header
            number, newest = SegmentPosition.unpack(pos)
            if m is not None and header is not None and m.number == number:
                return question(storage.producers.up_to(m, header, newest)), pos
        storage.make_ready(handle, 0, None)
