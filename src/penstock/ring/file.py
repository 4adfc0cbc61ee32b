"""The file of a ring: its header and checkpoints, making one and mapping one.

Everything read from disk is checked here before it is trusted. `ending` finds where the frames
begin and end.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass, field

from penstock import _core, headers, tunables
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
from penstock.handle.control import ControlPlace
from penstock.headers import is_good, seal, take_apart
from penstock.segments.leftovers import begins_as
from penstock.segments.segment import pages
from penstock.settings import Settings
from penstock.system import files

ROOM_MIN = 8 << 10  # minimum bytes for frames, besides the index
UNFINISHED = ".unfinished"  # ends the name of a ring that is being made
_VERSIONS = range(L.RING_VERSION_OLDEST, L.RING_VERSION + 1)


def is_ring(path: str) -> bool:
    """Whether a path is a file with the header of a ring, or with a copy of one."""
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


def place_of(path: str) -> ControlPlace:
    """The place of control: a page of the ring itself."""
    return ControlPlace(str(path), path, L.RING_CONTROL_OFFSET)


@dataclass(frozen=True, slots=True)
class Header:
    """The first page of a ring."""

    uuid: bytes
    base_seq: int  # seq of the first event of this file, appended or to come
    generation: int  # above 0: seqs may be missing between frames
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
        """Where the area for frames begins."""
        return L.RING_INDEX_OFFSET + pages(self.index_capacity * L.RING_SLOT_BYTES)

    @property
    def ring_bytes(self) -> int:
        """Bytes of one lap."""
        return (self.file_bytes - self.data_offset) // L.ALIGN * L.ALIGN

    @property
    def reserve(self) -> int:
        """Bytes that events leave for settings, unless the ring drops its oldest events."""
        share = self.ring_bytes // tunables.RING_RESERVE_SHARE
        share = max(tunables.RING_RESERVE_MIN, min(tunables.RING_RESERVE_MAX, share))
        return share // L.ALIGN * L.ALIGN

    def pack(self) -> bytes:
        """The page as it is on disk."""
        return seal(
            L.HEADER,
            magic=L.RING_MAGIC,
            version=L.RING_VERSION,
            byte_order=L.BYTE_ORDER_MARK,
            uuid=self.uuid,
            base_seq=self.base_seq,
            generation=self.generation,
            created_ns=self.created_ns,
            segment_bytes=self.file_bytes,
            data_offset=self.data_offset,
            index_offset=L.RING_INDEX_OFFSET,
            index_capacity=self.index_capacity,
            index_step=L.RING_SLOT_BYTES,
            prior_append_ns=self.prior_append_ns,
            prior_event_max_ns=self.prior_event_max_ns,
            flags=L.HEADER_FLAG_MONOTONE if self.monotone else 0,
            settings_len=len(self.settings),
            settings=self.settings,
        )

    @classmethod
    def unpack(cls, page: bytes, path: str) -> Header:
        """Check and unpack a header page, or a copy of one."""
        fields = take_apart(page, path, L.RING_MAGIC, "ring", _VERSIONS, "a ring of version")
        own = ("file_bytes", "monotone")
        header = cls(
            **{name: fields[name] for name in cls.__slots__ if name not in own},
            file_bytes=fields["segment_bytes"],
            monotone=bool(fields["flags"] & L.HEADER_FLAG_MONOTONE),
        )
        sane = (
            1 <= header.base_seq <= L.SEQ_MAX
            and L.RING_BYTES_MIN <= header.file_bytes <= L.RING_BYTES_MAX
            and fields["data_offset"] == header.data_offset
            and fields["index_offset"] == L.RING_INDEX_OFFSET
            and fields["index_step"] == L.RING_SLOT_BYTES
            and header.ring_bytes >= ROOM_MIN
            and fields["settings_len"] <= L.SETTINGS_BYTES_MAX
        )
        if not sane:
            raise Corrupt(f"{path}: its header is not consistent", path=path, offset=0)
        return header


def check_shape(file_bytes: int, index: int | None) -> int:
    """Refuse invalid sizes of a ring; returns the number of slots of its index."""
    if not L.RING_BYTES_MIN <= file_bytes <= L.RING_BYTES_MAX:
        raise Usage(
            f"ring must be from {L.RING_BYTES_MIN} to {L.RING_BYTES_MAX} bytes, got {file_bytes}"
        )
    capacity = file_bytes // tunables.RING_INDEX_SHARE if index is None else index
    room = file_bytes - L.RING_INDEX_OFFSET - pages(capacity * L.RING_SLOT_BYTES)
    if room < ROOM_MIN:
        raise Usage(
            f"an index of {capacity} slots leaves no room for events in a ring of {file_bytes} "
            "bytes; make the ring larger or the index smaller"
        )
    return capacity


@dataclass(frozen=True, slots=True)
class Slot:
    """A checkpoint: once its sync has returned, frames up to ``head`` are on disk."""

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
        """The 512 bytes at the start of a checkpoint page."""
        return seal(
            L.SLOT,
            magic=L.SLOT_MAGIC,
            generation=self.generation,
            offset=self.head,
            last_frame=self.last_frame,
            last_seq=self.last_seq,
            last_append_ns=self.last_append_ns,
            settings_offset=self.settings_position,
            index_count=self.tail,
            event_max_ns=self.event_max_ns,
            flags=(L.SLOT_FLAG_MONOTONE if self.monotone else 0)
            | (L.SLOT_FLAG_CLEAN if self.clean else 0),
            producer_offset=self.producer_position,
        )

    @classmethod
    def unpack(cls, data: bytes, header: Header | None) -> Slot | None:
        """The slot, or None if it is not valid for a ring with that header, if given."""
        if len(data) < L.SLOT_BYTES or data[: len(L.SLOT_MAGIC)] != L.SLOT_MAGIC:
            return None
        if not is_good(L.SLOT, data):
            return None
        fields = L.SLOT.unpack(data)
        slot = cls(
            generation=fields["generation"],
            head=fields["offset"],
            last_frame=fields["last_frame"],
            last_seq=fields["last_seq"],
            last_append_ns=fields["last_append_ns"],
            settings_position=fields["settings_offset"],
            tail=fields["index_count"],
            event_max_ns=fields["event_max_ns"],
            producer_position=fields["producer_offset"],
            monotone=bool(fields["flags"] & L.SLOT_FLAG_MONOTONE),
            clean=bool(fields["flags"] & L.SLOT_FLAG_CLEAN),
        )
        if header is None:
            return slot
        tail, head = slot.tail, slot.head
        frames = (slot.last_frame, slot.settings_position, slot.producer_position)
        inside = (
            0 < slot.generation < L.SEQ_MAX
            and header.ring_bytes <= tail <= head <= tail + header.ring_bytes
            and head < 1 << 62
            and (head | tail) % L.ALIGN == 0
            and slot.last_seq < L.SEQ_MAX
            and all(at % L.ALIGN == 0 and at < head for at in frames)
        )
        return slot if inside else None


def first_slot(header: Header) -> Slot:
    """The checkpoint of a ring without frames."""
    start = header.ring_bytes  # so that no frame is at position 0, which means no frame
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
    """Make an empty ring, complete and synced when it gets its name; False if one exists.

    It is made under a temporary name and locked by its process, so that a file of a dead process is
    recognised by its free lock, and deleted.
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
    """Delete files of processes that died while making this ring."""
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
        return  # not a file of Penstock
    try:
        fd = files.open_file(path, write=True)
    except PenstockError:
        return  # it is gone already
    try:
        # A process that died between linking the final name and deleting this one leaves it as a
        # second name of the ring, whose lock its users may hold.
        if files.same_file(fd, ring) or files.lock_exclusive(fd, path):
            files.unlink(path)
    finally:
        files.close(fd)


def read_header(fd: int, path: str) -> Header:
    """The checked header of an open ring, or the copy that is used."""
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
            # It may be a copy with holes; a store into a hole on a full disk raises SIGBUS.
            files.allocate(fd, 0, header.file_bytes, path)
    except BaseException:
        files.close(fd)
        raise
    return as_map(fd, path, header, write=write), header


def as_map(fd: int, path: str, header: Header, *, write: bool) -> RingMap:
    """The map of an open ring with that header; it then owns the descriptor."""
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
