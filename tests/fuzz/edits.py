"""What an input means: which seed log, and what is changed in it.

    byte 0      the seed
    byte 1      bit 0: without control; bit 1: control looks as if a writer had the log open;
                bits 2 and 3: what is done with the log
    then        edits, one behind the other, until the input ends

An edit is a byte that says what it is, and its operands. Behind most edits the checksum over what
was changed is made right, so that the change gets past it: a forgery, which no device and no crash
makes. Bit 7 of the edit's byte leaves the checksum as it was. An input of any bytes means
something, and a short change of an input changes little of what it means, as a fuzzer needs it.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock import _core
from penstock import layout as L
from penstock.handle import control
from penstock.segments import segment
from tests.fuzz.seeds import seeds

EDITS_MAX = 24
GROW_MAX = 8192
FRAMES_MAX = 400
RAW = 0x80

Span = tuple[int, int]


def _spans(prefix: str, end: int, last: int) -> list[Span]:
    """Offset and width of the fields of a structure, from the layout's names."""
    found = {
        value
        for name, value in vars(L).items()
        if name.startswith(prefix) and isinstance(value, int) and "FLAG_" not in name
    }
    offsets = sorted(v for v in found if v <= last)
    return [
        (a, min(8, b - a)) for a, b in zip(offsets, [*offsets[1:], end], strict=True) if b - a > 0
    ]


_HEADER = _spans("HEADER_", L.HEADER_SETTINGS + 8, L.HEADER_SETTINGS)
_SLOT = [(0, 8), *_spans("SLOT_", L.SLOT_PRODUCER_OFFSET + 8, L.SLOT_PRODUCER_OFFSET)]
_FOOTER = [(0, 8), *_spans("FOOTER_", L.FOOTER_TOPICS + 8, L.FOOTER_TOPICS)]
_FRAME = [
    (L.FRAME_COMMIT, 4),
    (L.FRAME_CRC, 4),
    (L.FRAME_SEQ, 8),
    (L.FRAME_APPEND_NS, 8),
    (L.FRAME_BACK, 4),
    (L.FRAME_BATCH_LEFT, 4),
    (L.FRAME_KEY_LEN, 2),
    (L.FRAME_HEADERS_LEN, 2),
    (L.FRAME_TOPIC_LEN, 2),
    (L.FRAME_KIND, 1),
    (L.FRAME_FLAGS, 1),
    (L.FRAME_HEADER_BYTES, 8),
]
_ENTRY = [(at, 8) for at in range(0, L.INDEX_ENTRY_BYTES, 8)]
_CONTROL = [(at, 8) for at in range(0, L.C_SYNCS + 8, 8)]

_NUMBERS = (
    0,
    1,
    2,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    1 << 32,
    (1 << 32) - 8,
    1 << 63,
    (1 << 63) - 1,
    (1 << 64) - 1,
    (1 << 64) - 8,
    0xFFFF,
    L.PAGE,
    L.SEGMENT_BYTES_MAX,
    L.INDEX_OFFSET,
)


class Cursor:
    """The bytes of an input, taken from the front; zeros once they are used up."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def ended(self) -> bool:
        return self._at >= len(self._data)

    def take(self, count: int) -> bytes:
        data = self._data[self._at : self._at + count]
        self._at += count
        return data.ljust(count, b"\0")

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "little")


@dataclass(slots=True)
class Scene:
    """The files of a log, while they are being changed."""

    files: dict[str, bytearray]
    directories: list[str]
    live: bool
    course: int
    forged: bool = False  # something is wrong under a right checksum

    def segments(self) -> list[str]:
        return sorted(n for n in self.files if segment.is_name(n))


def _u(data: bytearray, at: int, width: int) -> int:
    return int.from_bytes(data[at : at + width], "little")


def _data_offset(data: bytearray) -> int:
    at = _u(data, L.HEADER_DATA_OFFSET, 8)
    return at if at < len(data) else L.INDEX_OFFSET + L.PAGE


def _frames(data: bytearray) -> list[int]:
    """Where frames seem to begin, by their commit words alone."""
    found: list[int] = []
    at = _data_offset(data)
    while at + L.FRAME_HEADER_BYTES <= len(data) and len(found) < FRAMES_MAX:
        commit = _u(data, at, 4)
        if commit == 0:
            break
        found.append(at)
        at += -(-(L.FRAME_HEADER_BYTES + commit - 1) // L.ALIGN) * L.ALIGN
    return found


def _frames_end(data: bytearray) -> int:
    frames = _frames(data)
    if not frames:
        return _data_offset(data)
    last = frames[-1]
    total = L.FRAME_HEADER_BYTES + _u(data, last, 4) - 1
    return min(last - (-total // L.ALIGN) * L.ALIGN, len(data))


def _footer_at(data: bytearray) -> int:
    size = _u(data, L.HEADER_SEGMENT_BYTES, 8)
    return size - L.PAGE if L.PAGE <= size <= len(data) else max(0, len(data) - L.PAGE)


def _seal(data: bytearray, start: int, crc_at: int) -> None:
    """Make the checksum of the structure at ``start`` right."""
    if start + crc_at + 4 <= len(data):
        crc = _core.crc32c(memoryview(data)[start : start + crc_at])
        struct.pack_into("<I", data, start + crc_at, crc)


def _seal_frame(data: bytearray, at: int) -> None:
    end = at + L.FRAME_HEADER_BYTES + _u(data, at, 4) - 1
    if at + L.FRAME_HEADER_BYTES <= end <= len(data):
        crc = _core.crc32c(memoryview(data)[at + L.FRAME_SEQ : end])
        struct.pack_into("<I", data, at + L.FRAME_CRC, crc)


def _value(cursor: Cursor, data: bytearray, at: int, width: int) -> bytes:
    """A new value for a field: given, near the old one, one bit of it changed, or a known one."""
    old = _u(data, at, width)
    way = cursor.number(1)
    if way % 5 == 0:
        return cursor.take(width)
    if way % 5 == 1:
        new = old + cursor.number(1) - 128
    elif way % 5 == 2:
        new = old ^ 1 << cursor.number(1) % (8 * width)
    elif way % 5 == 3:
        new = _NUMBERS[cursor.number(1) % len(_NUMBERS)]
    else:
        frames = [*_frames(data), _frames_end(data), len(data)]
        new = frames[cursor.number(1) % len(frames)]
    return (new % (1 << 8 * width)).to_bytes(width, "little")


def _set_field(cursor: Cursor, data: bytearray, start: int, spans: list[Span]) -> None:
    at, width = spans[cursor.number(1) % len(spans)]
    if start + at + width <= len(data):
        data[start + at : start + at + width] = _value(cursor, data, start + at, width)


def _pick(scene: Scene, cursor: Cursor) -> str | None:
    names = scene.segments()
    return names[cursor.number(1) % len(names)] if names else None


def _pick_frame(data: bytearray, cursor: Cursor) -> int | None:
    frames = _frames(data)
    return frames[cursor.number(1) % len(frames)] if frames else None


def edit_header(scene: Scene, cursor: Cursor, fix: bool) -> None:
    """Change a field of a header."""
    if (name := _pick(scene, cursor)) is not None:
        data = scene.files[name]
        _set_field(cursor, data, 0, _HEADER)
        if fix:
            _seal(data, 0, L.HEADER_CRC)


def edit_slot(scene: Scene, cursor: Cursor, fix: bool) -> None:
    """Change a field of a checkpoint."""
    if (name := _pick(scene, cursor)) is not None:
        data = scene.files[name]
        start = (L.SLOT_A_OFFSET, L.SLOT_B_OFFSET)[cursor.number(1) % 2]
        _set_field(cursor, data, start, _SLOT)
        if fix:
            _seal(data, start, L.SLOT_CRC)


def edit_footer(scene: Scene, cursor: Cursor, fix: bool) -> None:
    """Change a field of a footer."""
    if (name := _pick(scene, cursor)) is not None:
        data = scene.files[name]
        start = _footer_at(data)
        _set_field(cursor, data, start, _FOOTER)
        if fix:
            _seal(data, start, L.FOOTER_CRC)


def edit_frame(scene: Scene, cursor: Cursor, fix: bool) -> None:
    """Change a field of a frame."""
    if (name := _pick(scene, cursor)) is not None:
        data = scene.files[name]
        if (at := _pick_frame(data, cursor)) is not None:
            _set_field(cursor, data, at, _FRAME)
            if fix:
                _seal_frame(data, at)


def edit_body(scene: Scene, cursor: Cursor, fix: bool) -> None:
    """Change bytes in a frame's body."""
    if (name := _pick(scene, cursor)) is not None:
        data = scene.files[name]
        at = _pick_frame(data, cursor)
        offset = L.FRAME_HEADER_BYTES + cursor.number(1)
        new = cursor.take(cursor.number(1) % 33)
        if at is not None and at + offset + len(new) <= len(data):
            data[at + offset : at + offset + len(new)] = new
            if fix:
                _seal_frame(data, at)


def edit_index(scene: Scene, cursor: Cursor, fix: bool) -> None:
    """Change a field of an index entry; a footer's checksum over the index is made right."""
    if (name := _pick(scene, cursor)) is not None:
        data = scene.files[name]
        start = L.INDEX_OFFSET + cursor.number(1) % 18 * L.INDEX_ENTRY_BYTES
        _set_field(cursor, data, start, _ENTRY)
        if fix:
            _reseal(data)


def edit_control(scene: Scene, cursor: Cursor, fix: bool) -> None:
    """Change a word of control."""
    data = scene.files.get(control.NAME)
    if data is not None:
        _set_field(cursor, data, 0, _CONTROL)
        if fix:
            _seal(data, 0, L.C_CRC)


def edit_bytes(scene: Scene, cursor: Cursor, fix: bool) -> None:
    """Put bytes at any place of a segment."""
    if (name := _pick(scene, cursor)) is not None:
        data = scene.files[name]
        at = cursor.number(3) % (len(data) + 1)
        new = cursor.take(cursor.number(1) % 65)
        data[at : at + len(new)] = new
        if fix:
            for frame in _frames(data):
                if frame <= at < frame + L.FRAME_HEADER_BYTES + _u(data, frame, 4):
                    _seal_frame(data, frame)


def add_frame(scene: Scene, cursor: Cursor, fix: bool) -> None:
    """Put a frame after the last one, with the seq and the way back that belong there."""
    if (name := _pick(scene, cursor)) is None:
        return
    data = scene.files[name]
    frames = _frames(data)
    at = _frames_end(data)
    kind, flags, left, step = cursor.take(4)
    body = cursor.take(cursor.number(1))
    key_len, headers_len, topic_len = cursor.take(3)
    seq, append_ns = _u(data, L.HEADER_BASE_SEQ, 8), 0
    if frames:
        last = frames[-1]
        append_ns = _u(data, last + L.FRAME_APPEND_NS, 8)
        is_event = data[last + L.FRAME_KIND] in (L.KIND_DATA, L.KIND_DELETE)
        seq = _u(data, last + L.FRAME_SEQ, 8) + is_event
    frame = bytearray(
        struct.pack(
            "<IIQQIIHHHBB",
            len(body) + 1,
            0,
            (seq + step) % (1 << 64),
            append_ns,
            at - frames[-1] if frames else 0,
            left,
            L.NO_KEY if key_len == 255 else key_len,
            headers_len,
            topic_len,
            kind % 9,
            flags,
        )
    )
    frame += body
    frame += bytes(-len(frame) % L.ALIGN)
    if fix:
        _seal_frame(frame, 0)
    if at + len(frame) <= len(data):
        data[at : at + len(frame)] = frame


def move_frame(scene: Scene, cursor: Cursor, fix: bool) -> None:
    """Copy a frame over the place of another, of the same or of another segment."""
    source, target = _pick(scene, cursor), _pick(scene, cursor)
    if source is None or target is None:
        return
    start = _pick_frame(scene.files[source], cursor)
    at = _pick_frame(scene.files[target], cursor)
    if start is None or at is None:
        return
    data = scene.files[source]
    total = L.FRAME_HEADER_BYTES + _u(data, start, 4) - 1
    frame = data[start : start - (-total // L.ALIGN) * L.ALIGN]
    into = scene.files[target]
    if at + len(frame) <= len(into):
        back = into[at + L.FRAME_BACK : at + L.FRAME_BACK + 4]
        into[at : at + len(frame)] = frame
        if fix:
            into[at + L.FRAME_BACK : at + L.FRAME_BACK + 4] = back
            _seal_frame(into, at)


def cut(scene: Scene, cursor: Cursor, _: bool) -> None:
    """Cut a file short, or make it longer."""
    names = sorted(scene.files)
    if names:
        data = scene.files[names[cursor.number(1) % len(names)]]
        length = cursor.number(3) % (len(data) + GROW_MAX)
        del data[length:]
        data.extend(bytes(length - len(data)))


def clear(scene: Scene, cursor: Cursor, _: bool) -> None:
    """Zero a range of a segment, in steps of 8 bytes."""
    if (name := _pick(scene, cursor)) is not None:
        data = scene.files[name]
        at = cursor.number(2) * 8 % (len(data) + 1)
        count = min(cursor.number(2) * 8, len(data) - at)
        data[at : at + count] = bytes(count)


def rename(scene: Scene, cursor: Cursor, fix: bool) -> None:
    """Give a segment, or a copy of it, the name of another base seq."""
    if (name := _pick(scene, cursor)) is None:
        return
    base, how = cursor.number(1), cursor.number(1)
    data = bytearray(scene.files[name])
    if how & 1:
        del scene.files[name]
    if how & 2:
        data[L.HEADER_BASE_SEQ : L.HEADER_BASE_SEQ + 8] = base.to_bytes(8, "little")
        if fix:
            _seal(data, 0, L.HEADER_CRC)
    if base:
        scene.files[segment.file_name(base)] = data


def remove(scene: Scene, cursor: Cursor, _: bool) -> None:
    """Delete a file, or put a directory in its place."""
    names = sorted(scene.files)
    if names:
        name = names[cursor.number(1) % len(names)]
        del scene.files[name]
        if cursor.number(1) % 4 == 3 and name != control.NAME:
            scene.directories.append(name)


def reseal(scene: Scene, cursor: Cursor, _: bool) -> None:
    """Bring the checksums of a footer up to date with what was changed since."""
    if (name := _pick(scene, cursor)) is not None:
        _reseal(scene.files[name])


def _reseal(data: bytearray) -> None:
    start = _footer_at(data)
    if len(data) < start + L.PAGE or data[start : start + 8] != L.FOOTER_MAGIC:
        return
    words = b"".join(bytes(data[at : at + L.FRAME_SEQ]) for at in _frames(data))
    struct.pack_into("<I", data, start + L.FOOTER_DATA_CRC, _core.crc32c(words))
    count = _u(data, start + L.FOOTER_INDEX_COUNT, 4)
    end = L.INDEX_OFFSET + count * L.INDEX_ENTRY_BYTES
    if end <= len(data):
        crc = _core.crc32c(memoryview(data)[L.INDEX_OFFSET : end])
        struct.pack_into("<I", data, start + L.FOOTER_INDEX_CRC, crc)
    _seal(data, start, L.FOOTER_CRC)


EDITS: tuple[Callable[[Scene, Cursor, bool], None], ...] = (
    edit_frame,
    edit_header,
    edit_slot,
    edit_footer,
    edit_body,
    edit_index,
    edit_control,
    edit_bytes,
    add_frame,
    move_frame,
    cut,
    clear,
    rename,
    remove,
    reseal,
)


# Control is a hint; whatever it says, it costs nothing.
FORGERIES = set(EDITS) - {edit_control, cut, clear, remove}


def scene_of(data: bytes) -> Scene:
    """The log that an input asks for."""
    cursor = Cursor(data)
    known = seeds()
    files = {n: bytearray(d) for n, d in known[cursor.number(1) % len(known)].items()}
    flags = cursor.number(1)
    if flags & 1:
        files.pop(control.NAME, None)
    scene = Scene(files, [], live=bool(flags & 2), course=flags >> 2 & 3)
    for _ in range(EDITS_MAX):
        if cursor.ended:
            break
        what = cursor.number(1)
        edit = EDITS[(what & ~RAW) % len(EDITS)]
        scene.forged |= edit in FORGERIES and not what & RAW
        edit(scene, cursor, not what & RAW)
    return scene


def write(scene: Scene, directory: Path) -> None:
    """Make the directory of the log. Control becomes one of this boot and of the file it is in."""
    directory.mkdir()
    for name in set(scene.directories) - set(scene.files):
        directory.joinpath(name).mkdir()
    for name, data in scene.files.items():
        with directory.joinpath(name).open("wb") as file:
            if name == control.NAME and len(data) >= L.CONTROL_BYTES:
                _adopt(data, os.fstat(file.fileno()))
            file.write(data)


def _adopt(data: bytearray, stat: os.stat_result) -> None:
    right = data[L.C_CRC : L.C_CRC + 4] == _core.crc32c(data[: L.C_CRC]).to_bytes(4, "little")
    data[L.C_BOOT_ID : L.C_BOOT_ID + 16] = control.boot_id()
    struct.pack_into("<QQ", data, L.C_DEV, stat.st_dev, stat.st_ino)
    if right:
        _seal(data, 0, L.C_CRC)


@contextmanager
def writer_in(directory: Path) -> Iterator[None]:
    """Let it look as if a process that may append had the log open."""
    fd = os.open(directory / control.NAME, os.O_RDWR)
    try:
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, L.TOKEN_BYTE + 1, 1, 0)
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, lock)
        yield
    finally:
        os.close(fd)
