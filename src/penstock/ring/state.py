"""The state of a ring in frames: its settings, and the last append of each producer.

Such a frame is overwritten like any other, so a copy of it is appended before that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from penstock import layout as L
from penstock._core import Control, RingMap
from penstock.errors import Busy, Corrupt
from penstock.handle.producers import Table
from penstock.handle.storage import SeenSettings
from penstock.ring.ending import WHEN_FULL
from penstock.settings import Settings
from penstock.system.messages import logger

if TYPE_CHECKING:
    from penstock.handle.handle import Handle
    from penstock.ring.storage import RingStorage

_T = TypeVar("_T")

OVERWRITE_PATIENCE = 10.0  # seconds that a reader waits for a writer during an append


def settings(handle: Handle, storage: RingStorage, attached: Control) -> Settings:
    """The settings that control leads to, even while their frame is being overwritten."""
    deadline = time.monotonic() + OVERWRITE_PATIENCE
    while True:
        found = read_settings(handle, storage, attached)
        if found is not None:
            return found
        if attached is not handle._ctl:
            attached = handle._live()
        # A new lap with a copy of the state is just beginning; or its writer is dead.
        elif handle._writable:
            storage.make_ready(handle, 0, None)
            with attached.locked():
                found = read_settings(handle, storage, attached, still=True)
            if found is not None:
                return found
        elif time.monotonic() > deadline:
            raise Busy(f"{storage.path}: a writer died or was stopped during an append; try again")
        else:
            time.sleep(0.001)


def read_settings(
    handle: Handle, storage: RingStorage, attached: Control, *, still: bool = False
) -> Settings | None:
    """The settings that control leads to; None if their frame is being overwritten.

    ``still``: under the write lock it cannot be overwritten; then the frame is damaged.
    """
    at, header = attached.get(L.C_SETTINGS_POS), storage.known_header(handle)
    seen = storage.seen
    if seen is None or seen.control is not attached or seen.position != at:
        data = header.settings
        frame = storage.finder.frame_at(handle, at) if at else None
        if attached is not handle._ctl:
            return None  # that control was of another file
        if frame is not None and frame[0] == L.KIND_SETTINGS:
            data = frame[3]
        elif (
            at
            and not still
            and (attached.get(L.C_SETTINGS_POS) != at or attached.get(L.C_TAIL) > at)
        ):
            return None
        found = Settings.from_json(data, storage.path)
        if at and data is header.settings:
            found = _without_frame(storage.path, attached, found)
        seen = storage.seen = SeenSettings(attached, at, found)
    return seen.settings


def _without_frame(path: str, attached: Control, began_with: Settings) -> Settings:
    """The settings as far as they are known if their frame is damaged."""
    names = {number: name for name, number in WHEN_FULL.items()}
    when_full = names.get(attached.get32(L.C_WHEN_FULL), began_with.when_full)
    logger.warning(
        "%s: the frame with its newest settings is damaged; file_mode is that of its header", path
    )
    return replace(began_with, when_full=when_full)


def append_settings(handle: Handle, storage: RingStorage, changed: Settings, at: int) -> bool:
    """Append settings; writers obey them from then on, under the same lock.

    False if those at ``at``, which they were made of, are not the newest any more.
    """
    handle._check_writable()
    handle._ensure_open()
    storage.make_ready(handle, 0, None)  # so that only room can be lacking
    done = handle._append_settings(changed.to_json(), WHEN_FULL[changed.when_full], at)
    handle._live().wake_all()
    return done


def state_frames(
    handle: Handle, storage: RingStorage, attached: Control, m: RingMap
) -> list[tuple[int, bytes]]:
    """Under the write lock: the parts of a copy of the ring's state."""
    frames: list[tuple[int, bytes]] = []
    now = read_settings(handle, storage, attached, still=True)
    if attached.get(L.C_SETTINGS_POS) and now is not None:
        frames.append((L.KIND_SETTINGS, now.to_json()))
    newest = attached.get(L.C_PRODUCER_POS)
    if newest:
        with handle._guard:
            table = storage.producers.up_to(
                storage.frame_at(handle), newest, attached.get(L.C_TAIL)
            )
            packed = (table or Table()).pack(m.ring_bytes // L.PRODUCERS_SHARE)
        frames.append((L.KIND_PRODUCERS, packed))
    return frames


def ask_producers(
    handle: Handle, storage: RingStorage, question: Callable[[Table], _T]
) -> tuple[_T, int]:
    """The answer of the current table of producers, and its place."""
    handle._check_writable()
    handle._ensure_open()
    while True:
        attached = handle._live()
        with handle._guard:
            storage.producers.learn(handle._produced_since(storage.producers.position))
            tail, newest = attached.get(L.C_TAIL), attached.get(L.C_PRODUCER_POS)
            table = storage.producers.up_to(storage.frame_at(handle), newest, tail)
            if table is not None:
                return question(table), newest
        if newest >= attached.get(L.C_TAIL) and attached is handle._ctl:
            if attached.get(L.C_PRODUCER_POS) == newest:
                raise Corrupt(f"{storage.path}: its producers cannot be read", path=storage.path)
        else:
            storage.make_ready(handle, 0, None)  # a lap is just beginning; or its writer is dead
