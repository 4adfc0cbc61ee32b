"""Events that no log would take from a user, as one that comes from elsewhere may be."""

from __future__ import annotations

import os
import tempfile

import penstock
from penstock import _core, layout


def forged(beside: str | os.PathLike[str], value: bytes, codec: bytes | None) -> penstock.Event:
    """An event whose header says that its value was encoded with ``codec``, whatever that is."""
    stand_in = "penstock_codec"
    with (
        tempfile.TemporaryDirectory(dir=os.path.dirname(beside)) as path,
        penstock.open(os.path.join(path, "log")) as log,
    ):
        log.append(value, headers={stand_in: codec})
        frame = bytearray(log[1].__reduce__()[1][0])  # type: ignore[arg-type]
    at = frame.index(stand_in.encode())
    frame[at : at + len(stand_in)] = layout.CODEC_NAME
    crc = _core.crc32c(bytes(frame[layout.FRAME_SEQ :]))
    frame[layout.FRAME_CRC : layout.FRAME_SEQ] = crc.to_bytes(4, "little")
    return _core.event_from_frame(bytes(frame))
