"""Write one segment again from the valid frames of another; nothing valid is left out.

Frames keep their seq, time, kind, flags and body. What depends on their place (back, checksum, a
producer's chain) is computed again, and frames of a batch that lost some of its frames become
single ones. The new file is read back and checked before it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock import _core, headers
from penstock import layout as L
from penstock._core import FrameScan, Walked
from penstock.errors import Internal, PenstockError
from penstock.segments import segment, syncing
from penstock.segments.check.frames import FileSource, Frames, pump, scan_frames, scan_of
from penstock.segments.segment import Header, SegmentSummary, Slot
from penstock.system import files
from penstock.tunables import ALLOCATE_STEP_MIN, SCAN_WINDOW_BYTES


def control_frame(kind: int, seq: int, append_ns: int, back: int) -> bytes:
    """A frame of that kind, alone in its batch and without a body; ``seq`` is the next event's."""
    frame = bytearray(
        L.FRAME.pack(commit=1, seq=seq, append_ns=append_ns, back=back, key_len=L.NO_KEY, kind=kind)
    )
    L.FRAME.put(frame, crc=_core.crc32c(memoryview(frame)[L.FRAME_SEQ :]))
    return bytes(frame)


def write_segment(
    target: str,
    header: Header,
    mode: int,
    *,
    table: bytes = b"",
    source: tuple[FileSource, Header, int] | None = None,
    roll_to: int | None = None,
) -> Walked:
    """Make and sync the file ``target``; returns the walk over its frames.

    ``source`` is the file of the frames, its header, and the offset up to which to read. With
    ``roll_to`` the segment ends in a roll frame to that seq, and is sealed.
    """
    fd = files.create_file(target, mode)
    try:
        segment.mark_begun(fd, target)
        if table:
            files.write_at(fd, table, header.producers_offset, target)
        end, last, append_ns = header.data_offset, 0, header.prior_append_ns
        if source is not None:
            end, last, found_ns = _copy_frames(*source, fd, header, target)
            append_ns = max(append_ns, found_ns)
        if roll_to is not None:
            frame = control_frame(L.KIND_ROLL, roll_to, append_ns, end - last if last else 0)
            files.write_at(fd, frame, end, target)
            end += len(frame)
        else:
            stop = min(end + ALLOCATE_STEP_MIN, header.footer_offset)
            files.allocate(fd, header.data_offset, stop, target)
        headers.put(fd, header.pack(), target)
        walk = finish(fd, header, end, roll_to is not None, target)
        files.sync_data(fd, target)
    except BaseException:
        files.close(fd)
        files.unlink(target)
        raise
    files.close(fd)
    return walk


def _copy_frames(
    source: FileSource, old: Header, limit: int, fd: int, header: Header, target: str
) -> tuple[int, int, int]:
    """Copy the valid frames except roll frames; returns their end, the last one, and its time."""
    scan = scan_of(old, limit, copy_to=header.data_offset)
    broken: list[tuple[int, int]] = []
    for status in pump(scan, source):
        data = scan.drain()
        files.write_at(fd, data, scan.out_at - len(data), target)
        if status in ("damaged", "batch") and scan.batch_start is not None:
            broken.append((scan.out_batch, scan.out_at))
        elif status == "long":
            _copy_long(scan, source, fd, target)
            scan.long_copied()
    if scan.batch_start is not None:  # the file ends inside a batch
        broken.append((scan.out_batch, scan.out_at))
    for start, stop in broken:
        _make_single(fd, start, stop, target)
    return scan.out_at, scan.out_last, scan.walked().last_append_ns


def _copy_long(scan: FrameScan, source: FileSource, fd: int, target: str) -> None:
    commit, back, left = scan.long_frame()
    _place_frame(source, scan.at, fd, scan.out_at, commit, back, left, target)


def _place_frame(
    source: FileSource,
    at: int,
    fd: int,
    out_at: int,
    commit: int,
    back: int,
    left: int,
    target: str,
) -> None:
    """Copy one valid frame, piece by piece, with another ``back`` and ``batch_left``."""
    start = bytearray(source.read(at, L.FRAME_HEADER_BYTES))
    L.FRAME.put(start, back=back, batch_left=left)
    crc = _core.crc32c(memoryview(start)[L.FRAME_SEQ :])
    done, end = L.FRAME_HEADER_BYTES, L.FRAME_HEADER_BYTES + commit - 1
    while done < end:
        data = source.read(at + done, min(SCAN_WINDOW_BYTES, end - done))
        if not data:
            raise Internal(f"{source.path}: the frame at {at} is gone")
        crc = _core.crc32c(data, crc)
        files.write_at(fd, data, out_at + done, target)
        done += len(data)
    files.write_at(fd, bytes(-end % L.ALIGN), out_at + end, target)
    L.FRAME.put(start, crc=crc)
    files.write_at(fd, bytes(start), out_at, target)


def _make_single(fd: int, start: int, stop: int, target: str) -> None:
    """Make each frame from ``start`` to ``stop`` of the new file a batch of one."""
    source = FileSource(target)
    try:
        while start < stop:
            frame = L.FRAME.unpack(source.read(start, L.FRAME_HEADER_BYTES))
            commit = frame["commit"]
            _place_frame(source, start, fd, start, commit, frame["back"], 0, target)
            start += -(-(L.FRAME_HEADER_BYTES + commit - 1) // L.ALIGN) * L.ALIGN
    finally:
        source.close()


def finish(fd: int, header: Header, end: int, rolled: bool, target: str) -> Walked:
    """Check the frames that were written, then write index, footer and checkpoint for them."""
    source = FileSource(target)
    try:
        frames = scan_frames(source, header, end, sure=end, head=0, mark=0)
    finally:
        source.close()
    if frames.holes or frames.walk.offset != end or (frames.end == "rolled") != rolled:
        raise Internal(
            f"{target}: the written frames do not match those that were read; please report it"
        )
    index = frames.index + (segment.open_block(frames.walk) if rolled else b"")
    files.write_at(fd, index, L.INDEX_OFFSET, target)
    if rolled:
        key_filter = segment.map_segment(target)[0].key_filter(end)
        summary = SegmentSummary.of(
            frames.walk,
            index_crc=_core.crc32c(index),
            topics=frames.topics,
            sealed_ns=_core.now_ns(),
            filter_pages=len(key_filter) // L.PAGE,
        )
        files.write_at(fd, key_filter, header.segment_bytes, target)
        files.write_at(fd, summary.pack(header), header.footer_offset, target)
    files.sync_data(fd, target)  # a checkpoint must only cover frames that are on disk
    files.write_at(fd, segment.first_slot(header).pack(), L.SLOT_A_OFFSET, target)
    syncing.write_slot(fd, _slot(header, frames), target)
    return frames.walk


def _slot(header: Header, frames: Frames) -> Slot:
    walk = frames.walk
    return replace(
        segment.first_slot(header),
        generation=2,
        offset=walk.offset,
        last_frame=walk.last_frame,
        last_seq=walk.next_seq - 1,
        last_append_ns=walk.last_append_ns,
        settings_offset=walk.settings_offset,
        producer_offset=walk.producer_offset,
        index_count=walk.index_count,
        event_max_ns=walk.event_max_ns,
        monotone=walk.monotone,
    )


def copy_file(
    source: str, target: str, mode: int, *, header: Header, end: int, whole: bool
) -> None:
    """Copy a segment whose frames reach to ``end``, ``whole`` or only these, and sync it."""
    reading = FileSource(source)
    try:
        fd = files.create_file(target, mode)
        try:
            if whole:
                _copy_range(reading, fd, 0, header.producers_offset, target, files.write_sparse)
            else:
                segment.put_start(fd, header, target)
            _copy_range(reading, fd, header.producers_offset, end, target)
            if whole:
                _copy_range(reading, fd, end, reading.size, target, files.write_sparse)
            files.sync_data(fd, target)
        finally:
            files.close(fd)
    finally:
        reading.close()


def _copy_range(
    source: FileSource,
    fd: int,
    start: int,
    stop: int,
    target: str,
    write: Callable[[int, bytes, int, str], None] = files.write_at,
) -> None:
    while start < stop:
        data = source.read(start, min(SCAN_WINDOW_BYTES - start % L.PAGE, stop - start))
        if not data:
            return
        write(fd, data, start, target)
        start += len(data)


def mode_of(path: str, fallback: int) -> int:
    """The permission bits of a file if it exists; else ``fallback``."""
    try:
        return files.status(path).st_mode & 0o666
    except PenstockError:
        return fallback
