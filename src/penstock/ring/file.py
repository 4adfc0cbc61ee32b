"""The file of a ring: its header and checkpoints, making one and mapping one.

Everything read from disk is checked here before anyone trusts it. Where the frames begin and end
is the business of `ends`.
"""

from __future__ import annotations

import os
import re
import struct
from contextlib import suppress
from dataclasses import dataclass, field

from penstock import _core, headers
from penstock import layout as L
from penstock._core import RingMap
from penstock.errors import (
    AlreadyExists,
    Corrupt,
    Io,
    PenstockError,
    UnsupportedVersion,
    Usage,
    from_os,
)
from penstock.handle.control import Place
from penstock.headers import page_is_good, seal_page
from penstock.segments.leftovers import begins_as
from penstock.segments.segment import pages
from penstock.settings import Settings
from penstock.system import files

ROOM_MIN = 8 << 10  # bytes for frames, whatever the index takes
UNFINISHED = ".unfinished"  # how the name ends of a ring that is being made
_HEADER = struct.Struct("<16sQIIQQQQIIQQII")
_SLOT = struct.Struct("<8s10Q")


def is_ring(path: str) -> bool:
    """Whether a path leads to a file with the header of a ring, or with a copy of one."""
    if not files.is_file(path):
        return False
    path = os.path.realpath(path)
    fd = files.open_file(path, write=False)
    try:
        with suppress(Io):  # a copy may be readable
            if files.read_at(fd, len(L.RING_MAGIC), 0, path) == L.RING_MAGIC:
                return True
        with suppress(Corrupt, UnsupportedVersion):
            read_header(fd, path)
            return True
        return False
    finally:
        files.close(fd)


def place_of(path: str) -> Place:
    """Where control is: in a page of the ring itself."""
    return Place(str(path), path, L.RING_CONTROL_OFFSET)


@dataclass(frozen=True, slots=True)
class Header:
    """The first page of a ring."""

    uuid: bytes
    base_seq: int  # of the first event that was appended to this file, or is yet to be
    generation: int  # above 0: seqs may be missing between the frames
    created_ns: int
    file_bytes: int
    index_capacity: int
    prior_append_ns: int
    prior_event_max_ns: int
    monotone: bool
    settings: bytes
    version: int = field(default=L.RING_VERSION, compare=False)  # as read; the newest is written

    @property
    def data_offset(self) -> int:
        """Where the room for frames begins."""
        return L.RING_INDEX_OFFSET + pages(self.index_capacity * L.RING_SLOT_BYTES)

    @property
    def ring_bytes(self) -> int:
        """Bytes of one lap."""
        return (self.file_bytes - self.data_offset) // L.ALIGN * L.ALIGN

    @property
    def reserve(self) -> int:
        """Bytes that events leave for settings, unless the ring drops its oldest ones."""
        share = self.ring_bytes // L.RING_RESERVE_SHARE
        return max(L.RING_RESERVE_MIN, min(L.RING_RESERVE_MAX, share)) // L.ALIGN * L.ALIGN

    def pack(self) -> bytes:
        """The page as it is on disk."""
        page = bytearray(L.PAGE)
        page[: len(L.RING_MAGIC)] = L.RING_MAGIC
        struct.pack_into("<II", page, L.HEADER_VERSION, L.RING_VERSION, L.BYTE_ORDER_MARK)
        _HEADER.pack_into(
            page,
            L.HEADER_UUID,
            self.uuid,
            self.base_seq,
            0,
            self.generation,
            self.created_ns,
            self.file_bytes,
            self.data_offset,
            L.RING_INDEX_OFFSET,
            self.index_capacity,
            L.RING_SLOT_BYTES,
            self.prior_append_ns,
            self.prior_event_max_ns,
            L.HEADER_FLAG_MONOTONE if self.monotone else 0,
            len(self.settings),
        )
        page[L.HEADER_SETTINGS : L.HEADER_SETTINGS + len(self.settings)] = self.settings
        seal_page(page, L.HEADER_CRC)
        return bytes(page)

    @classmethod
    def unpack(cls, page: bytes, path: str) -> Header:
        """Check and take apart a header page, or a copy of one."""
        if len(page) not in (L.PAGE, L.COPY_BYTES) or not page.startswith(L.RING_MAGIC):
            raise Corrupt(f"{path}: this is not a ring: it does not begin as one", path=path)
        version, order = struct.unpack_from("<II", page, L.HEADER_VERSION)
        if order != L.BYTE_ORDER_MARK:
            raise UnsupportedVersion(
                f"{path}: written in another byte order ({order:#x})", path=path
            )
        if not L.RING_VERSION_OLDEST <= version <= L.RING_VERSION:
            raise UnsupportedVersion(
                f"{path}: a ring of version {version}; this Penstock reads versions "
                f"{L.RING_VERSION_OLDEST} to {L.RING_VERSION}",
                path=path,
            )
        if not page_is_good(page, len(page) - 4):
            raise Corrupt(f"{path}: the checksum of its header does not match", path=path, offset=0)
        fields = _HEADER.unpack_from(page, L.HEADER_UUID)
        uuid, base, _, generation, created, size, data, index, capacity, slot = fields[:10]
        prior_append, prior_event, flags, settings_len = fields[10:]
        header = cls(
            uuid=uuid,
            base_seq=base,
            generation=generation,
            created_ns=created,
            file_bytes=size,
            index_capacity=capacity,
            prior_append_ns=prior_append,
            prior_event_max_ns=prior_event,
            monotone=bool(flags & L.HEADER_FLAG_MONOTONE),
            settings=page[L.HEADER_SETTINGS : L.HEADER_SETTINGS + settings_len],
            version=version,
        )
        sane = (
            1 <= base <= L.SEQ_MAX
            and L.RING_BYTES_MIN <= size <= L.RING_BYTES_MAX
            and (data, index, slot) == (header.data_offset, L.RING_INDEX_OFFSET, L.RING_SLOT_BYTES)
            and header.ring_bytes >= ROOM_MIN
            and settings_len <= L.SETTINGS_BYTES_MAX
        )
        if not sane:
            raise Corrupt(f"{path}: its header contradicts itself", path=path, offset=0)
        return header


def check_shape(file_bytes: int, index: int | None) -> int:
    """Refuse sizes that make no ring; how many slots its index has."""
    if not L.RING_BYTES_MIN <= file_bytes <= L.RING_BYTES_MAX:
        raise Usage(
            f"a ring of {file_bytes} bytes; it has from {L.RING_BYTES_MIN} to {L.RING_BYTES_MAX}"
        )
    capacity = file_bytes // L.RING_INDEX_SHARE if index is None else index
    room = file_bytes - L.RING_INDEX_OFFSET - pages(capacity * L.RING_SLOT_BYTES)
    if room < ROOM_MIN:
        raise Usage(
            f"an index of {capacity} slots leaves no room for events in a ring of {file_bytes} "
            "bytes; make the ring larger or the index smaller"
        )
    return capacity


@dataclass(frozen=True, slots=True)
class Slot:
    """A checkpoint: once its sync has returned, frames up to ``head`` are on the device."""

    generation: int
    head: int
    last_frame: int
    last_seq: int
    last_append_ns: int
    settings_position: int
    tail: int
    event_max_ns: int
    producer_position: int
    monotone: bool
    clean: bool

    def pack(self) -> bytes:
        """The 512 bytes that stand at the start of a checkpoint page."""
        data = bytearray(L.SLOT_BYTES)
        _SLOT.pack_into(
            data,
            0,
            L.SLOT_MAGIC,
            self.generation,
            self.head,
            self.last_frame,
            self.last_seq,
            self.last_append_ns,
            self.settings_position,
            self.tail,
            self.event_max_ns,
            (L.SLOT_FLAG_MONOTONE if self.monotone else 0)
            | (L.SLOT_FLAG_CLEAN if self.clean else 0),
            self.producer_position,
        )
        seal_page(data, L.SLOT_CRC)
        return bytes(data)

    @classmethod
    def unpack(cls, data: bytes, header: Header | None) -> Slot | None:
        """The slot, or None if it is not valid for a ring with that header, where there is one."""
        if len(data) < L.SLOT_BYTES or data[: len(L.SLOT_MAGIC)] != L.SLOT_MAGIC:
            return None
        if not page_is_good(data, L.SLOT_CRC):
            return None
        generation, head, last_frame, last_seq, append_ns, settings, tail, event_max, flags, who = (
            _SLOT.unpack_from(data)[1:]
        )
        slot = cls(
            generation=generation,
            head=head,
            last_frame=last_frame,
            last_seq=last_seq,
            last_append_ns=append_ns,
            settings_position=settings,
            tail=tail,
            event_max_ns=event_max,
            producer_position=who,
            monotone=bool(flags & L.SLOT_FLAG_MONOTONE),
            clean=bool(flags & L.SLOT_FLAG_CLEAN),
        )
        if header is None:
            return slot
        frames = (last_frame, settings, who)
        inside = (
            0 < generation < L.SEQ_MAX
            and header.ring_bytes <= tail <= head <= tail + header.ring_bytes
            and head < 1 << 62
            and (head | tail) % L.ALIGN == 0
            and last_seq < L.SEQ_MAX
            and all(at % L.ALIGN == 0 and at < head for at in frames)
        )
        return slot if inside else None


def first_slot(header: Header) -> Slot:
    """The checkpoint of a ring without frames."""
    start = header.ring_bytes  # so that no frame is at position 0, which means none
    return Slot(
        generation=1,
        head=start,
        last_frame=0,
        last_seq=header.base_seq - 1,
        last_append_ns=header.prior_append_ns,
        settings_position=0,
        tail=start,
        event_max_ns=header.prior_event_max_ns,
        producer_position=0,
        monotone=header.monotone,
        clean=True,
    )


def read_slots(fd: int, header: Header, path: str) -> list[Slot]:
    """The valid checkpoints, the newest first."""
    found = []
    for at in (L.SLOT_A_OFFSET, L.SLOT_B_OFFSET):
        slot = Slot.unpack(files.read_at(fd, L.SLOT_BYTES, at, path), header)
        if slot is not None:
            found.append(slot)
    return sorted(found, key=lambda slot: -slot.generation)


def write_slot(fd: int, slot: Slot, path: str) -> None:
    """Write a checkpoint over the older one; generations of one slot are all odd or all even."""
    headers.write_checkpoint(
        fd, slot.pack(), slot.generation, Header.unpack, L.RING_COPY_VERSION, path
    )


def new_header(settings: Settings, file_bytes: int, index: int | None) -> Header:
    """The header of a new ring."""
    return Header(
        uuid=os.urandom(16),
        base_seq=1,
        generation=0,
        created_ns=_core.now_ns(),
        file_bytes=file_bytes,
        index_capacity=check_shape(file_bytes, index),
        prior_append_ns=0,
        prior_event_max_ns=0,
        monotone=True,
        settings=settings.to_json(),
    )


def make_file(path: str, header: Header, mode: int) -> int:
    """Make the file of an empty ring and return it open; every block of it is allocated."""
    fd = files.create_file(path, mode)
    try:
        files.allocate(fd, 0, header.file_bytes, path)
        headers.put(fd, header.pack(), path)
        write_slot(fd, first_slot(header), path)
    except BaseException:
        files.close(fd)
        files.unlink(path)
        raise
    return fd


def create(path: str, header: Header, mode: int) -> bool:
    """Make an empty ring, whole and on the device when it gets its name; False if one was there.

    It is made under a name of its own. Whoever makes one holds a lock on it, so that what a dead
    process left is known by its lock being free, and swept.
    """
    sweep(path)
    temporary = f"{path}.{os.urandom(4).hex()}{UNFINISHED}"
    fd = make_file(temporary, header, mode)
    try:
        files.lock_exclusive(fd, temporary)
        files.sync_data(fd, temporary)
        _core.fail_point("ring.made")
        try:
            files.link(temporary, path)
        except AlreadyExists:
            return False
        _core.fail_point("ring.named")
    finally:
        files.unlink(temporary)
        files.close(fd)
    files.sync_way(path)
    return True


def sweep(path: str) -> None:
    """Delete what processes left that died making this ring."""
    directory, name = os.path.split(path)
    try:
        names = files.list_dir(directory or ".")
    except Io as error:
        raise from_os(error, "looking for unfinished copies of", path) from error
    for found in names:
        if _is_unfinished(found, name):
            _sweep_one(os.path.join(directory, found), path)


def _is_unfinished(name: str, ring: str) -> bool:
    middle = name[len(ring) + 1 : -len(UNFINISHED)]
    return (
        name == f"{ring}.{middle}{UNFINISHED}" and re.fullmatch(r"[0-9a-f]{8}", middle) is not None
    )


def _sweep_one(path: str, ring: str) -> None:
    if not begins_as(path, L.RING_MAGIC):
        return  # not ours
    try:
        fd = files.open_file(path, write=True)
    except PenstockError:
        return  # gone by now
    try:
        # A second name of the ring itself is of one who died between giving it its own and taking
        # this one away; its lock may be held by those who use the ring.
        if files.same_file(fd, ring) or files.lock_exclusive(fd, path):
            files.unlink(path)
    finally:
        files.close(fd)


def read_header(fd: int, path: str) -> Header:
    """The checked header of an open ring, or the copy of it that counts."""
    return headers.read(fd, Header.unpack, L.RING_COPY_VERSION, path)


def map_ring(path: str, *, write: bool = False) -> tuple[RingMap, Header]:
    """Open, check and map a ring."""
    fd = files.open_file(path, write=write)
    try:
        header = read_header(fd, path)
        if files.size(fd, path) < header.file_bytes:
            raise Corrupt(
                f"{path}: is cut short: {files.size(fd, path)} bytes of {header.file_bytes}",
                path=path,
                offset=files.size(fd, path),
            )
        if write:
            # It may be a copy with holes in it; a store into a hole of a full disk is a SIGBUS.
            files.allocate(fd, 0, header.file_bytes, path)
    except BaseException:
        files.close(fd)
        raise
    return as_map(fd, path, header, write=write), header


def as_map(fd: int, path: str, header: Header, *, write: bool) -> RingMap:
    """The map of an open ring with that header; it owns the descriptor from now on."""
    m = RingMap(fd, str(path), header.file_bytes, write)
    m.settings = header.settings
    m.base_seq = header.base_seq
    m.generation = header.generation
    m.data_offset = header.data_offset
    m.ring_bytes = header.ring_bytes
    m.reserve = header.reserve
    m.append_max = header.ring_bytes // L.RING_SHARE // L.ALIGN * L.ALIGN
    m.frames_end = header.data_offset + header.ring_bytes
    m.index_offset = L.RING_INDEX_OFFSET
    m.index_capacity = header.index_capacity
    return m
