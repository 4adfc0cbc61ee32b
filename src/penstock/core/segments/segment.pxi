# Segments: the map of one file, its index, and the walk over its frames.

cdef struct Walk:
    # The state of a walk over frames. All up to `offset` belongs to complete, valid batches.
    uint64_t offset
    uint64_t next_seq
    uint64_t last_append_ns
    uint64_t last_frame        # 0: none yet in this segment
    uint64_t event_max_ns      # over the whole log up to here
    uint64_t settings_offset   # newest settings frame in this segment, 0: none
    uint64_t producer_offset   # newest producer frame in this segment, 0: none
    uint64_t block_offset
    uint64_t block_seq
    uint64_t block_append_ns
    uint64_t block_event_min_ns
    uint64_t block_event_max_ns
    uint32_t block_topics      # a bit for each topic; 0: none yet
    uint64_t index_count
    uint64_t count             # events seen by this walk
    uint64_t first_seq         # of those, 0: none
    uint64_t last_seq
    uint64_t event_min_ns
    uint64_t event_seen_max_ns
    uint64_t first_append_ns
    uint32_t digest            # register of CRC32C over the first 8 bytes of every frame walked
    bint monotone              # event times never went back in the log up to here
    bint monotone_here         # ... nor among the events seen by this walk
    bint rolled                # the last frame is a roll frame; next_seq names the successor


cdef void walk_start(
    Walk *w, uint64_t data_offset, uint64_t base_seq, uint64_t append_ns, uint64_t event_max_ns, bint monotone
) noexcept nogil:
    """Start at the start of a segment; the times are those of the log before it."""
    memset(w, 0, sizeof(Walk))
    w.offset = data_offset
    w.next_seq = base_seq
    w.last_append_ns = append_ns
    w.event_max_ns = event_max_ns
    w.monotone = monotone
    w.monotone_here = True
    w.digest = 0xFFFFFFFF
    w.block_offset = data_offset
    w.block_seq = base_seq
    w.block_append_ns = append_ns
    w.block_event_min_ns = U64_MAX
    w.event_min_ns = U64_MAX


@cython.final
cdef class Walked:
    """The state of a walk over frames, for Python; the fields are those of the struct `Walk`.

    By default it is at offset 0 before seq 1; in a ring, offsets are positions.
    """

    cdef public uint64_t offset, next_seq, last_append_ns, last_frame, event_max_ns, settings_offset, producer_offset
    cdef public uint64_t block_offset, block_seq, block_append_ns, block_event_min_ns, block_event_max_ns, index_count
    cdef public uint64_t count, first_seq, last_seq, event_min_ns, event_seen_max_ns, first_append_ns
    cdef public uint32_t block_topics, digest
    cdef public bint monotone, monotone_here, rolled

    def __init__(self, **fields):
        cdef Walk w
        walk_start(&w, 0, 1, 0, 0, True)
        self.take(&w)
        for name, value in fields.items():
            setattr(self, name, value)

    def changed(self, **fields):
        """A copy with other values of some fields."""
        cdef Walk w
        cdef Walked copy
        self.give(&w)
        copy = walked(&w)
        for name, value in fields.items():
            setattr(copy, name, value)
        return copy

    def __reduce__(self):
        raise stays_here(self)

    cdef void take(self, const Walk *w) noexcept:
        self.offset = w.offset
        self.next_seq = w.next_seq
        self.last_append_ns = w.last_append_ns
        self.last_frame = w.last_frame
        self.event_max_ns = w.event_max_ns
        self.settings_offset = w.settings_offset
        self.producer_offset = w.producer_offset
        self.block_offset = w.block_offset
        self.block_seq = w.block_seq
        self.block_append_ns = w.block_append_ns
        self.block_event_min_ns = w.block_event_min_ns
        self.block_event_max_ns = w.block_event_max_ns
        self.block_topics = w.block_topics
        self.index_count = w.index_count
        self.count = w.count
        self.first_seq = w.first_seq
        self.last_seq = w.last_seq
        self.event_min_ns = w.event_min_ns
        self.event_seen_max_ns = w.event_seen_max_ns
        self.first_append_ns = w.first_append_ns
        self.digest = w.digest
        self.monotone = w.monotone
        self.monotone_here = w.monotone_here
        self.rolled = w.rolled

    cdef void give(self, Walk *w) noexcept:
        w.offset = self.offset
        w.next_seq = self.next_seq
        w.last_append_ns = self.last_append_ns
        w.last_frame = self.last_frame
        w.event_max_ns = self.event_max_ns
        w.settings_offset = self.settings_offset
        w.producer_offset = self.producer_offset
        w.block_offset = self.block_offset
        w.block_seq = self.block_seq
        w.block_append_ns = self.block_append_ns
        w.block_event_min_ns = self.block_event_min_ns
        w.block_event_max_ns = self.block_event_max_ns
        w.block_topics = self.block_topics
        w.index_count = self.index_count
        w.count = self.count
        w.first_seq = self.first_seq
        w.last_seq = self.last_seq
        w.event_min_ns = self.event_min_ns
        w.event_seen_max_ns = self.event_seen_max_ns
        w.first_append_ns = self.first_append_ns
        w.digest = self.digest
        w.monotone = self.monotone
        w.monotone_here = self.monotone_here
        w.rolled = self.rolled


cdef Walked walked(const Walk *w):
    cdef Walked found = Walked.__new__(Walked)
    found.take(w)
    return found


cdef inline void walk_block(Walk *w, char *index, uint64_t at, uint64_t seq, uint64_t append_ns) noexcept nogil:
    """Close the open index block and begin the next one at ``at``."""
    cdef char *entry = index + w.index_count * PSK_INDEX_ENTRY_BYTES
    psk_put32(entry + PSK_INDEX_ENTRY_OFFSET, <uint32_t>w.block_offset)
    psk_put32(entry + PSK_INDEX_ENTRY_TOPICS, w.block_topics)
    psk_put64(entry + PSK_INDEX_ENTRY_SEQ, w.block_seq)
    psk_put64(entry + PSK_INDEX_ENTRY_APPEND_NS, w.block_append_ns)
    psk_put64(entry + PSK_INDEX_ENTRY_EVENT_MIN_NS, w.block_event_min_ns)
    psk_put64(entry + PSK_INDEX_ENTRY_EVENT_MAX_NS, w.block_event_max_ns)
    w.index_count += 1
    w.block_offset = at
    w.block_seq = seq
    w.block_append_ns = append_ns
    w.block_event_min_ns = U64_MAX
    w.block_event_max_ns = 0
    w.block_topics = 0


cdef inline uint32_t topic_bit(const char *topic, uint16_t n) noexcept nogil:
    """The bit of a topic in index entries; other topics may have the same."""
    return <uint32_t>1 << (<uint32_t>~psk_crc(0xFFFFFFFF, topic, n) >> 27) if n else 1


cdef inline void walk_event_time(Walk *w, uint64_t event_ns) noexcept nogil:
    if event_ns < w.event_max_ns:
        w.monotone = False
    else:
        w.event_max_ns = event_ns
    if event_ns < w.block_event_min_ns:
        w.block_event_min_ns = event_ns
    if event_ns > w.block_event_max_ns:
        w.block_event_max_ns = event_ns


cdef inline void walk_accept(Walk *w, const char *p, uint64_t total, char *index) noexcept nogil:
    """Add one valid frame to the walk; ``index`` may be NULL."""
    w.digest = psk_crc(w.digest, p, PSK_FRAME_SEQ)
    walk_take(w, p, total, index)


cdef inline void walk_take(Walk *w, const char *p, uint64_t total, char *index) noexcept nogil:
    """Add one valid frame to the walk, except to the digest."""
    cdef uint64_t seq = psk_get64(p + PSK_FRAME_SEQ)
    cdef uint64_t append_ns = psk_get64(p + PSK_FRAME_APPEND_NS)
    cdef uint64_t event_ns
    if index != NULL and w.offset >= w.block_offset + PSK_INDEX_STEP:
        walk_block(w, index, w.offset, seq, append_ns)
    if is_event(p):
        event_ns = frame_event_ns(p)
        if w.count == 0:
            w.first_append_ns = append_ns
            w.first_seq = seq
        w.last_seq = seq
        if event_ns < w.event_seen_max_ns:
            w.monotone_here = False
        else:
            w.event_seen_max_ns = event_ns
        if event_ns < w.event_min_ns:
            w.event_min_ns = event_ns
        walk_event_time(w, event_ns)
        w.block_topics |= topic_bit(frame_topic(p), psk_get16(p + PSK_FRAME_TOPIC_LEN))
        w.count += 1
        w.next_seq = seq + 1
    else:
        w.next_seq = seq
        if p[PSK_FRAME_KIND] == PSK_KIND_SETTINGS:
            w.settings_offset = w.offset
        elif p[PSK_FRAME_KIND] == PSK_KIND_PRODUCER or p[PSK_FRAME_KIND] == PSK_KIND_PRODUCERS:
            w.producer_offset = w.offset
        elif p[PSK_FRAME_KIND] == PSK_KIND_ROLL:
            w.rolled = True
    w.last_append_ns = append_ns
    w.last_frame = w.offset
    w.offset += total


cdef FrameState walk_frames(
    const char *base, uint64_t limit, bint holes, bint check_crc, Walk *w, char *index, uint64_t *bad_at
) noexcept nogil:
    """Walk complete batches from ``w.offset`` while they are valid, at most to ``limit``.

    Returns FRAME_GOOD at the limit or after a roll frame, else the state of the first invalid frame,
    with its offset in ``bad_at``. A batch is walked completely or not at all; without
    ``check_crc``, which is for segments that have rolled, frame by frame.
    """
    cdef uint64_t at, total = 0, seq, want_seq, previous, batch_end
    cdef uint32_t left, want_left
    cdef FrameState state
    while w.offset < limit and not w.rolled:
        at = w.offset
        want_seq = w.next_seq
        previous = w.last_frame
        want_left = 0
        while True:
            state = frame_check(base + at, limit - at, check_crc, &total)
            if state == FRAME_GOOD:
                seq = psk_get64(base + at + PSK_FRAME_SEQ)
                left = psk_get32(base + at + PSK_FRAME_BATCH_LEFT)
                if (
                    seq < want_seq
                    or (seq > want_seq and not holes)
                    or (at != w.offset and left != want_left)
                    or psk_get32(base + at + PSK_FRAME_BACK) != (at - previous if previous else 0)
                ):
                    state = FRAME_ORDER
            if state != FRAME_GOOD:
                bad_at[0] = at
                return state
            previous = at
            at += total
            want_seq = seq + is_event(base + previous)
            if left == 0 or not check_crc:
                break
            want_left = left - 1
            if at >= limit:
                bad_at[0] = at
                return FRAME_ZERO
        batch_end = at
        if previous == w.offset:
            walk_accept(w, base + w.offset, total, index)
        while w.offset < batch_end:
            total = align8(PSK_FRAME_HEADER_BYTES + <uint64_t>(psk_get32(base + w.offset) - 1))
            walk_accept(w, base + w.offset, total, index)
    return FRAME_GOOD


cdef inline uint64_t index_find(const char *index, uint64_t count, uint64_t seq) noexcept nogil:
    """How many entries begin at or before ``seq``."""
    cdef uint64_t low = 0, high = count, middle, low_seq, high_seq, seen
    cdef int guesses = 0
    if count == 0 or psk_get64(index + PSK_INDEX_ENTRY_SEQ) > seq:
        return 0
    if psk_get64(index + (count - 1) * PSK_INDEX_ENTRY_BYTES + PSK_INDEX_ENTRY_SEQ) <= seq:
        return count
    # Here entry `low` <= seq < entry `high`. Seqs grow almost evenly, so guess first, then halve.
    high = count - 1
    while high - low > 1:
        middle = (low + high) >> 1
        if guesses < 3 and high - low > 8:
            guesses += 1
            low_seq = psk_get64(index + low * PSK_INDEX_ENTRY_BYTES + PSK_INDEX_ENTRY_SEQ)
            high_seq = psk_get64(index + high * PSK_INDEX_ENTRY_BYTES + PSK_INDEX_ENTRY_SEQ)
            if low_seq <= seq < high_seq:
                middle = low + <uint64_t>(
                    <double>(seq - low_seq) / <double>(high_seq - low_seq) * <double>(high - low))
                if middle <= low:
                    middle = low + 1
                elif middle >= high:
                    middle = high - 1
        seen = psk_get64(index + middle * PSK_INDEX_ENTRY_BYTES + PSK_INDEX_ENTRY_SEQ)
        if seen <= seq:
            low = middle
        else:
            high = middle
    return low + 1


cdef inline void prefetch_frames(
    const char *base, uint64_t at, uint64_t end, uint64_t frames, uint64_t steps
) noexcept nogil:
    """Prefetch the headers for a walk of ``steps`` frames, as if all had one size, and the last one."""
    cdef uint64_t size, i
    if frames == 0 or steps > frames:
        return
    size = (end - at) // frames
    for i in range(64, size if size < 256 else 256, 64):
        psk_prefetch(base + at + steps * size + i)
    for i in range(1, steps + 1 if steps < 40 else 40):
        psk_prefetch(base + at + i * size)


_FRAME_STATES = {
    FRAME_ZERO: "not published",
    FRAME_LENGTH: "a length that does not fit",
    FRAME_CRC: "a checksum that does not match",
    FRAME_KIND: "an unknown kind or flag",
    FRAME_ORDER: "a frame that does not belong there",
}


cdef enum:
    TOPIC_SLOTS = 1024


cdef class SegmentMap:
    """One segment file in memory. The checked header fields are given by the segment module."""

    cdef char *base
    cdef size_t mapped
    cdef char *own_index           # built here if the one in the file cannot be trusted
    cdef uint64_t own_index_count
    cdef uint32_t fork_generation
    cdef public int fd
    cdef public object path
    cdef public object summary     # the footer's fields, once sealed
    cdef public bytes settings     # from its checked header: the settings at its start, as JSON
    cdef public uint64_t file_bytes
    cdef public uint64_t base_seq
    cdef public uint64_t number
    cdef public uint64_t generation
    cdef public bint compacted       # events were taken out of it
    cdef public uint64_t merged      # how many segments before it were merged into it
    cdef public uint64_t data_offset
    cdef public uint64_t data_end    # sealed: end of frames; else 0
    cdef public uint64_t frames_end  # appends stop here: the roll frame and the footer come after
    cdef public uint64_t append_max  # bytes of the largest append
    cdef public uint64_t ring_bytes  # of a ring: bytes of one lap; else 0
    cdef public uint64_t reserve     # of a ring that does not drop: bytes that stay free for settings
    cdef public uint64_t index_offset
    cdef public uint64_t index_capacity
    cdef public uint64_t index_count  # sealed: entries in the file
    cdef public uint32_t index_crc
    cdef public uint64_t next_seq     # sealed: base of the successor
    cdef public bytes uuid            # of the log; empty if it is not known here
    cdef public bint has_filter       # sealed: it has a key filter
    cdef public uint64_t filter_at    # where that begins
    cdef public uint64_t filter_pages # its length; 0: no event has a key
    cdef bint index_checked, index_trusted
    cdef public uint64_t prior_append_ns
    cdef public uint64_t prior_event_max_ns
    cdef public bint prior_monotone
    cdef public bint writable
    cdef public int home_fd          # of its directory, while appends are made here; -1: none is checked
    cdef uint64_t looked_ns          # when an append last checked whether both still have a name
    cdef public Coder coder          # of the handle that reads through this map
    cdef public object blocks        # of an archived segment: what loads its blocks; else None
    cdef bytes bounds                # ... where each begins, and the last one ends, as u64
    cdef bytearray states            # ... of each block
    cdef uint64_t have_from, have_to # ... the block that was asked for last
    cdef readonly uint64_t loaded    # ... bytes of the blocks that are loaded

    def __cinit__(self, given_fd, path=None, uint64_t mapped=0, bint writable=False):
        """Map ``mapped`` bytes of ``given_fd``, which this object then owns."""
        cdef void *at
        cdef int failed, fd
        self.base = NULL
        self.own_index = NULL
        self.fd = -1
        self.settings = self.uuid = b""
        self.home_fd = -1
        if given_fd is INSIDE:  # its memory does not belong to a file
            return
        fd = given_fd
        if fd < 0 or mapped == 0 or not isinstance(path, str):
            raise Usage(f"a map must have an open file, its path and a length, got {given_fd!r}, {path!r}, {mapped}")
        self.fork_generation = psk_fork_generation
        self.path = path
        self.writable = writable
        if not psk_fd_register(fd):
            _os.close(fd)
            raise MemoryError
        self.fd = fd
        at = mmap(NULL, mapped, PROT_READ | (PROT_WRITE if writable else 0), MAP_SHARED, fd, 0)
        if at == MAP_FAILED:
            failed = errno
            self.close_fd()
            raise from_os(OSError(failed, ""), f"mapping {mapped} bytes of", path)
        self.base = <char *>at
        self.mapped = mapped
        self.file_bytes = <uint64_t>_os.fstat(fd).st_size

    def __dealloc__(self):
        if self.base != NULL:
            munmap(self.base, self.mapped)
        self.close_fd()
        PyMem_Free(self.own_index)

    def __reduce__(self):
        raise stays_here(self)

    cdef bint has(self, uint64_t start, uint64_t stop) noexcept:
        """Whether the bytes from ``start`` to ``stop`` are mapped and in the file."""
        return start <= stop <= self.mapped and stop <= self.file_bytes

    cpdef close_fd(self):
        """Close the descriptor; the map stays."""
        if self.fd >= 0 and self.fork_generation == psk_fork_generation:
            psk_fd_close(self.fd)
        self.fd = -1

    def grown(self):
        """Read the file's size again; returns the mapped part of it.

        The GIL is held from reading the size to storing it: a thread that read it before the file grew
        must not store it after a thread that read it later, and has begun to write there.
        """
        cdef bytes name = b""
        cdef int64_t found
        if self.fd >= 0:
            if self.fork_generation != psk_fork_generation:
                name = _os.fsencode(self.path)
            found = psk_file_bytes(-1 if name else self.fd, PyBytes_AS_STRING(name))
            if found < 0:
                raise OSError(<int>-found, _os.strerror(<int>-found), self.path)
            self.file_bytes = <uint64_t>found
        return self.readable_end()

    cdef inline uint64_t readable_end(self) noexcept nogil:
        cdef uint64_t end = self.data_end if self.data_end else self.file_bytes
        return end if end < self.mapped else self.mapped

    cpdef uint64_t published(self, uint64_t head) except? 0:
        """Where the published frames of this segment end, at most, given the log's head."""
        cdef uint64_t end
        if self.number != position_unpack(head).number:
            return self.grown()
        end = position_unpack(head).offset
        if end > self.readable_end():
            self.grown()
            if end > self.readable_end():
                raise Corrupt(
                    f"{self.path}: is cut short at {self.file_bytes} bytes, but control says {end}; "
                    "close the log in every process and open it again, or run verify",
                    path=str(self.path), offset=self.file_bytes,
                )
        return end

    def bytes_at(self, uint64_t offset, uint64_t nbytes):
        """A copy of ``nbytes`` bytes at ``offset``."""
        if nbytes > self.mapped or offset > self.mapped - nbytes or offset + nbytes > self.file_bytes:
            raise Internal(f"{self.path}: bytes {offset} to {offset + nbytes} are not mapped")
        need_range(self, offset, offset + nbytes, False)
        return PyBytes_FromStringAndSize(self.base + offset, <Py_ssize_t>nbytes)

    def crc_of(self, uint64_t offset, uint64_t nbytes):
        """CRC32C of ``nbytes`` bytes at ``offset``."""
        cdef uint32_t c
        if nbytes > self.mapped or offset > self.mapped - nbytes or offset + nbytes > self.file_bytes:
            raise Internal(f"{self.path}: bytes {offset} to {offset + nbytes} are not mapped")
        need_range(self, offset, offset + nbytes, False)
        with nogil:
            c = psk_crc(0xFFFFFFFF, self.base + offset, nbytes)
        return <uint32_t>~c

    def is_zero(self, uint64_t start, uint64_t stop):
        """Whether the bytes from ``start`` to ``stop`` are all zero."""
        cdef bint zero
        if stop > self.mapped or start > stop or stop > self.file_bytes:
            raise Internal(f"{self.path}: bytes {start} to {stop} are not mapped")
        if start == stop:
            return True
        need_range(self, start, stop, False)
        with nogil:
            zero = self.base[start] == 0 and (
                memcmp(self.base + start, self.base + start + 1, stop - start - 1) == 0)
        return bool(zero)

    def zero(self, uint64_t start, uint64_t stop):
        """Zero the bytes from ``start`` to ``stop``; under the write lock."""
        cdef uint64_t step
        if stop > self.mapped or start > stop or stop > self.file_bytes or not self.writable:
            raise Internal(f"{self.path}: cannot zero bytes {start} to {stop}")
        with nogil:
            while start < stop:
                step = stop - start if stop - start < PSK_PAGE else PSK_PAGE
                memset(self.base + start, 0, step)
                psk_fail(FP_ZERO)
                start += step

    def let_go(self, uint64_t start, uint64_t stop):
        """Unmap the full pages from ``start`` to ``stop`` until they are used again."""
        if self.blocks is not None:
            return  # nothing could bring them back
        start = (start + PSK_PAGE - 1) // PSK_PAGE * PSK_PAGE
        stop = stop // PSK_PAGE * PSK_PAGE
        if start < stop <= self.mapped:
            with nogil:
                psk_let_go(self.base + start, stop - start)

    def touch_singly(self, uint64_t start, uint64_t stop):
        """Make pages from ``start`` to ``stop`` fault one by one, without reading ahead.

        The kernel reads ahead at a missing page, and that may be megabytes: writing into a new index
        would make it create pages for all frames that are still to come.
        """
        if start % PSK_PAGE == 0 and start < stop <= self.mapped:
            psk_touch_singly(self.base + start, stop - start)

    def redirty(self, uint64_t start, uint64_t stop):
        """Mark the pages from ``start`` to ``stop`` as changed, so that the next sync writes them.

        It changes no byte, even while others append: the store is an atomic "or" with 0.
        """
        if stop > self.mapped or stop > self.file_bytes or not self.writable:
            raise Internal(f"{self.path}: cannot mark bytes {start} to {stop}")
        with nogil:
            psk_redirty(self.base, start, stop)

    def write(self, uint64_t offset, data):
        """Store ``data`` at ``offset``; under the write lock."""
        cdef const unsigned char[:] view = data
        if view.shape[0] == 0:
            return
        if not self.writable or not self.has(offset, offset + <uint64_t>view.shape[0]):
            raise Internal(f"{self.path}: cannot write at {offset}")
        memcpy(self.base + offset, &view[0], <size_t>view.shape[0])

    def restamp(self, uint64_t limit, uint64_t seq_shift, uint64_t append_ns):
        """Give all frames up to ``limit`` other seqs and another time; only for a private segment."""
        cdef uint64_t at = self.data_offset, total = 0
        cdef FrameState state = FRAME_GOOD
        cdef char *p
        if limit > self.mapped or limit > self.file_bytes or not self.writable:
            raise Internal(f"{self.path}: cannot restamp up to {limit}")
        with nogil:
            while at < limit:
                p = self.base + at
                state = frame_check(p, limit - at, False, &total)
                if state != FRAME_GOOD:
                    break
                psk_put64(p + PSK_FRAME_SEQ, psk_get64(p + PSK_FRAME_SEQ) + seq_shift)
                psk_put64(p + PSK_FRAME_APPEND_NS, append_ns)
                frame_sum(p, psk_get32(p) - 1)
                at += total
        if state != FRAME_GOOD:
            raise self.damage(at, state)

    def write_frame(self, uint64_t offset, kind, body, uint64_t seq, uint64_t append_ns, uint64_t last_frame):
        """Write and commit a control frame; under the write lock. Returns the offset after it."""
        cdef Parts p
        cdef bytes raw = bytes(body)
        cdef uint64_t n = <uint64_t>len(raw)
        memset(&p, 0, sizeof(p))
        p.kind = kind
        p.key_len = PSK_NO_KEY
        if not self.writable or not self.has(offset, offset + align8(PSK_FRAME_HEADER_BYTES + n)):
            raise Internal(f"{self.path}: no room for a control frame at {offset}")
        n = frame_write(
            self.base + offset, &p, PyBytes_AS_STRING(raw), n, 0, seq, append_ns,
            <uint32_t>(offset - last_frame) if last_frame else 0, 0,
        )
        psk_store32(self.base + offset, <uint32_t>len(raw) + 1)
        return offset + n

    def producer_frame(self, uint64_t offset):
        """Seq, key and value of the producer frame at ``offset``."""
        cdef Event event
        self.frame_body(offset, PSK_KIND_PRODUCER)
        event = make_event(self, self.base + offset)
        return event.seq, event.key, event.value

    def frame_body(self, uint64_t offset, int kind):
        """The body of the valid frame of that kind at ``offset``."""
        cdef uint64_t total = 0
        cdef uint64_t end = self.grown()  # another process may have made it longer
        cdef FrameState state = FRAME_LENGTH
        if self.data_offset <= offset < end and offset % 8 == 0:
            need(self, offset, False)
            state = frame_check(self.base + offset, end - offset, True, &total)
        if state == FRAME_GOOD and self.base[offset + PSK_FRAME_KIND] != kind:
            state = FRAME_ORDER
        if state != FRAME_GOOD:
            raise self.damage(offset, state)
        return PyBytes_FromStringAndSize(
            self.base + offset + PSK_FRAME_HEADER_BYTES, <Py_ssize_t>(psk_get32(self.base + offset) - 1))

    def damage(self, uint64_t offset, int state, last_seq=None, seq=None):
        """The error for a frame at ``offset`` that is not the expected one.

        ``last_seq`` is the last one before it, or ``seq`` its own, if known.
        """
        kind = UnsupportedVersion if state == FRAME_KIND else Corrupt
        after = f", after seq {last_seq}" if last_seq is not None else (
            f", before seq {seq + 1}" if seq is not None else "")
        return kind(
            f"{self.path}: at offset {offset}{after}: {_FRAME_STATES.get(state, 'damage')}; "
            "run verify to see what is affected",
            path=str(self.path), offset=offset,
            seq=last_seq + 1 if last_seq is not None else seq, last_seq=last_seq,
        )

    cdef void walk_begin(self, Walk *w) noexcept:
        walk_start(
            w, self.data_offset, self.base_seq, self.prior_append_ns, self.prior_event_max_ns,
            self.prior_monotone)

    def at_start(self):
        """A walk at the start of the segment."""
        cdef Walk w
        self.walk_begin(&w)
        return walked(&w)

    def walk(
        self, uint64_t limit, *, Walked resume=None, uint64_t index_from=0, bint check_crc=True,
        bint write_index=False,
    ):
        """Walk valid batches up to ``limit``; return (`Walked`, state, offset of the bad frame).

        ``resume`` is the state of an earlier walk. With ``index_from`` the walk begins at that many
        published index entries instead of at the segment's start, and continues from the frames.
        """
        cdef Walk w
        cdef uint64_t bad_at = 0, total = 0, i, index_end
        cdef FrameState state
        cdef char *entry
        cdef bint holes = self.generation > 0
        if limit > self.mapped or limit > self.file_bytes:
            raise Internal(f"{self.path}: cannot walk to {limit}")
        self.walk_begin(&w)
        if resume is not None:
            resume.give(&w)
            if w.offset < self.data_offset or w.offset % 8:
                raise Internal(f"{self.path}: cannot walk from {w.offset}")
        index_end = self.index_offset + self.index_capacity * PSK_INDEX_ENTRY_BYTES
        if write_index and (
            not self.writable or index_end > self.data_offset or not self.has(self.index_offset, index_end)
            or w.index_count > (w.offset - self.data_offset) // PSK_INDEX_STEP + 1
        ):
            raise Internal(f"{self.path}: cannot write an index")
        if index_from:
            if index_from > self.index_capacity or not self.has(self.index_offset, index_end):
                raise self.damage(self.index_offset, FRAME_LENGTH)
            for i in range(index_from - 1):
                entry = self.base + self.index_offset + i * PSK_INDEX_ENTRY_BYTES
                if psk_get64(entry + PSK_INDEX_ENTRY_EVENT_MAX_NS) > w.event_max_ns:
                    w.event_max_ns = psk_get64(entry + PSK_INDEX_ENTRY_EVENT_MAX_NS)
            entry = self.base + self.index_offset + (index_from - 1) * PSK_INDEX_ENTRY_BYTES
            w.index_count = index_from - 1
            w.offset = psk_get32(entry + PSK_INDEX_ENTRY_OFFSET)
            w.next_seq = psk_get64(entry + PSK_INDEX_ENTRY_SEQ)
            w.block_offset = w.offset
            w.block_seq = w.next_seq
            w.block_append_ns = psk_get64(entry + PSK_INDEX_ENTRY_APPEND_NS)
            if w.offset < self.data_offset or w.offset >= limit or w.offset % 8:
                raise self.damage(w.offset, FRAME_LENGTH)
            state = frame_check(self.base + w.offset, limit - w.offset, True, &total)
            if state != FRAME_GOOD or psk_get64(self.base + w.offset + PSK_FRAME_SEQ) != w.next_seq:
                raise self.damage(w.offset, FRAME_ORDER if state == FRAME_GOOD else state)
            bad_at = psk_get32(self.base + w.offset + PSK_FRAME_BACK)
            w.last_frame = w.offset - bad_at if bad_at else 0
        need_range(self, w.offset, limit, False)
        with nogil:
            state = walk_frames(
                self.base, limit, holes, check_crc, &w,
                self.base + self.index_offset if write_index else NULL, &bad_at)
        return walked(&w), <int>state, (bad_at if state != FRAME_GOOD else 0)

    cdef int build_index(self) except -1:
        """Index the frames in private memory: for a segment whose index cannot be used."""
        cdef uint64_t limit = self.grown()
        cdef uint64_t capacity = limit // PSK_INDEX_STEP + 2
        cdef uint64_t bad_at = 0
        cdef char *index = <char *>PyMem_Malloc(capacity * PSK_INDEX_ENTRY_BYTES)
        cdef bint holes = self.generation > 0
        cdef Walk w
        if index == NULL:
            raise MemoryError
        self.walk_begin(&w)
        try:
            need_range(self, self.data_offset, limit, True)
        except BaseException:
            PyMem_Free(index)
            raise
        with nogil:
            walk_frames(self.base, limit, holes, True, &w, index, &bad_at)
        PyMem_Free(self.own_index)
        self.own_index = index
        self.own_index_count = w.index_count
        return 0

    cdef char *index_for(self, LogCore log, uint64_t *count) except NULL:
        """The index to use for this segment now, and how many entries of it are valid."""
        cdef char *words
        if self.data_end:
            if not self.index_checked:
                if self.blocks is not None:
                    need_range(
                        self, self.index_offset, self.index_offset + self.index_count * PSK_INDEX_ENTRY_BYTES, True)
                self.index_checked = True
                self.index_trusted = self.index_count <= self.index_capacity and self.has(
                    self.index_offset, self.index_offset + self.index_count * PSK_INDEX_ENTRY_BYTES
                ) and self.index_crc == (
                    <uint32_t>~psk_crc(
                        0xFFFFFFFF, self.base + self.index_offset, self.index_count * PSK_INDEX_ENTRY_BYTES))
            if self.index_trusted:
                count[0] = self.index_count
                return self.base + self.index_offset
            if self.own_index == NULL:
                self.build_index()
        else:
            words = log.words_or_null()
            if words != NULL and position_unpack(psk_load64(words + PSK_C_HEAD)).number == self.number:
                count[0] = psk_load64(words + PSK_C_INDEX_COUNT)
                if position_unpack(psk_load64(words + PSK_C_HEAD)).number == self.number and count[0] <= self.index_capacity:
                    return self.base + self.index_offset
            if self.own_index == NULL:
                self.build_index()
        count[0] = self.own_index_count
        return self.own_index

    cpdef bint rules_out(self, object topics, object since_ns, object until_ns, bytes key=None) except -1:
        """Whether the summary of a sealed segment tells that no event has one of the topics, such a time and the key."""
        cdef object s = self.summary
        return s is not None and (
            s.count == 0
            or s.event_max_ns < since_ns
            or s.event_min_ns > until_ns
            or (topics is not None and s.topics is not None and s.topics.isdisjoint(topics))
            or (key is not None and filter_lacks(self, key))
        )

    def key_filter(self, uint64_t limit):
        """The pages of the key filter for the frames up to ``limit``; empty if no event has a key."""
        return filter_of(self, limit)

    def offset_near(self, LogCore log not None, uint64_t seq):
        """Offset of the block of frames that contains ``seq``, according to the index."""
        return self.block_near(log, seq)

    def offset_of(self, LogCore log not None, uint64_t seq, uint64_t limit):
        """Offset of the first event with a seq of at least ``seq``, below ``limit``."""
        return self.seek(log, seq, limit)

    def want(self, uint64_t start, uint64_t stop):
        """Load the blocks of an archived segment from ``start`` to ``stop``."""
        if not self.has(start, stop):
            raise Internal(f"{self.path}: bytes {start} to {stop} are not mapped")
        need_range(self, start, stop, False)

    cdef uint64_t block_near(self, LogCore log, uint64_t seq) except? 0:
        cdef uint64_t count = 0
        cdef char *index = self.index_for(log, &count)
        return self.block_in(index, count, seq)

    cdef inline uint64_t block_in(self, const char *index, uint64_t count, uint64_t seq) noexcept:
        cdef uint64_t block = index_find(index, count, seq)
        if not block:
            return self.data_offset
        return psk_get32(index + (block - 1) * PSK_INDEX_ENTRY_BYTES + PSK_INDEX_ENTRY_OFFSET)

    cdef uint64_t block_about(self, LogCore log, uint64_t seq) noexcept:
        """The result of ``block_near`` if it is known without much reading; else U64_MAX.

        It is not checked, so it is only an estimate.
        """
        cdef char *index = self.base + self.index_offset
        cdef char *words = log.words_or_null()
        cdef uint64_t count = 0
        if self.own_index != NULL:
            index = self.own_index
            count = self.own_index_count
        elif self.data_end:
            count = self.index_count if self.blocks is None or self.index_checked else 0
        elif words != NULL and position_unpack(psk_load64(words + PSK_C_HEAD)).number == self.number:
            count = psk_load64(words + PSK_C_INDEX_COUNT)
        if count == 0 or (index != self.own_index and count > self.index_capacity):
            return U64_MAX
        return self.block_in(index, count, seq)

    def seq_near(self, LogCore log not None, uint64_t offset):
        """The first seq of the last block of frames that begins at ``offset`` or before it."""
        cdef uint64_t low = 0, high = 0, middle
        cdef char *index = self.index_for(log, &high)
        while low < high:
            middle = (low + high) // 2
            if psk_get32(index + middle * PSK_INDEX_ENTRY_BYTES + PSK_INDEX_ENTRY_OFFSET) <= offset:
                low = middle + 1
            else:
                high = middle
        if not low:
            return self.base_seq
        return psk_get64(index + (low - 1) * PSK_INDEX_ENTRY_BYTES + PSK_INDEX_ENTRY_SEQ)

    cdef uint64_t next_valid(
        self, uint64_t bad_at, uint64_t limit, uint64_t seq, uint64_t seq_max, uint64_t append_ns,
        bint holes, uint64_t *budget,
    ) noexcept nogil:
        """Offset of the next valid frame after the damaged one at ``bad_at``; 0 if there is none."""
        cdef Search s
        cdef Find found
        if limit - bad_at < PSK_FRAME_HEADER_BYTES:
            return 0
        search_begin(&s, self.base + bad_at, bad_at, limit, seq, append_ns, holes, budget[0])
        s.seq_max = seq_max
        s.batch_limit = self.readable_end()
        found = find_frame(&s, self.base, 0, limit)
        budget[0] = s.budget
        return s.at if found == FIND_HIT else 0

    cdef uint64_t seek(self, LogCore log, uint64_t seq, uint64_t limit, bint skip=False) except? 0:
        """Offset of the first event with a seq of at least ``seq``.

        If there is none: of the roll frame, or ``limit`` in a segment that has not rolled. Damage
        on the way there is passed over. Damage where the event should be is an error; with
        ``skip`` the next valid event is used.
        """
        cdef uint64_t count = 0, block = 0, at, next_at, found = 0
        cdef char *index = NULL
        cdef char *entry
        if seq > self.base_seq:  # the first event is near, but an index may have to be built
            index = self.index_for(log, &count)
            block = index_find(index, count, seq)
        while block:
            entry = index + (block - 1) * PSK_INDEX_ENTRY_BYTES
            at = psk_get32(entry + PSK_INDEX_ENTRY_OFFSET)
            if self.data_offset <= at < limit and at % 8 == 0:
                if block < count:
                    next_at = psk_get32(entry + PSK_INDEX_ENTRY_BYTES + PSK_INDEX_ENTRY_OFFSET)
                    if next_at > at and next_at < limit:
                        prefetch_frames(
                            self.base, at, next_at,
                            psk_get64(entry + PSK_INDEX_ENTRY_BYTES + PSK_INDEX_ENTRY_SEQ)
                            - psk_get64(entry + PSK_INDEX_ENTRY_SEQ),
                            seq - psk_get64(entry + PSK_INDEX_ENTRY_SEQ))
                if self.seek_from(at, True, seq, limit, skip, &found):
                    return found
            block -= 1  # the entry, or the frame that it names, is damaged: begin earlier
        self.seek_from(self.data_offset, False, seq, limit, skip, &found)
        return found

    cdef bint seek_from(
        self, uint64_t at, bint indexed, uint64_t seq, uint64_t limit, bint skip, uint64_t *found
    ) except -1:
        """``seek`` from one frame on; False if an index entry led to what cannot be that frame."""
        cdef uint64_t total = 0, here, previous = 0, want = 0, want_before = 0, bad_at, next_at
        cdef uint64_t budget = 4 * (limit - at) if limit > at else 0
        cdef bint holes = self.generation > 0
        cdef FrameState state
        cdef const char *p
        if not indexed:
            want = self.base_seq
        while at < limit:
            need(self, at, skip)
            p = self.base + at
            state = frame_check(p, limit - at, False, &total)
            if state == FRAME_GOOD:
                here = psk_get64(p + PSK_FRAME_SEQ)
                if (
                    (want and here != want and (here < want or not holes))
                    or (previous and psk_get32(p + PSK_FRAME_BACK) != at - previous)
                    or (indexed and here > seq)
                ):
                    state = FRAME_ORDER
                elif p[PSK_FRAME_KIND] == PSK_KIND_ROLL or here > seq:  # the search ends before it
                    state = frame_check(p, limit - at, True, &total)
            if state != FRAME_GOOD:
                if indexed:
                    return False
                bad_at = at
                need_range(self, previous or at, limit, skip)
                if previous and frame_check(self.base + previous, limit - previous, True, &total) != FRAME_GOOD:
                    bad_at = previous  # its length may be wrong
                    want = want_before
                next_at = self.next_valid(bad_at, limit, want, U64_MAX, 0, holes, &budget)
                if next_at == 0 and not skip:
                    raise self.damage(bad_at, state, want - 1)
                if next_at == 0:
                    break
                want = psk_get64(self.base + next_at + PSK_FRAME_SEQ)
                if seq < want and not skip:
                    raise self.damage(bad_at, state)
                at = next_at
                previous = 0
                continue
            if is_event(p):
                if here >= seq:
                    found[0] = at
                    return True
                here += 1
            elif p[PSK_FRAME_KIND] == PSK_KIND_ROLL:
                found[0] = at
                return True
            indexed = False
            want_before = here - 1 if is_event(p) else here
            want = here
            previous = at
            at += total
        found[0] = limit
        return True

    cdef uint64_t last_valid(
        self, LogCore log, uint64_t end, uint64_t seq_max, uint64_t *budget
    ) except? 0:
        """Offset of the last valid frame that ends at or before ``end``; 0 if there is none."""
        cdef uint64_t low = 0, high, middle, start, at, total = 0, found = 0, count = 0
        cdef char *index = self.index_for(log, &count)
        high = count
        while low < high:  # blocks that begin before `end`
            middle = (low + high) >> 1
            if psk_get32(index + middle * PSK_INDEX_ENTRY_BYTES + PSK_INDEX_ENTRY_OFFSET) < end:
                low = middle + 1
            else:
                high = middle
        while True:
            start = self.data_offset
            if low:
                start = psk_get32(index + (low - 1) * PSK_INDEX_ENTRY_BYTES + PSK_INDEX_ENTRY_OFFSET)
                if start < self.data_offset or start % 8 or start >= end:
                    start = self.data_offset
            at = start
            need_range(self, start, end, True)
            with nogil:
                while at and at < end:
                    if frame_check(self.base + at, end - at, True, &total) == FRAME_GOOD:
                        found = at
                        at += total
                    else:
                        at = self.next_valid(at, end, self.base_seq, seq_max, 0, True, budget)
            if found or start == self.data_offset:
                return found
            low -= 1

    cdef uint64_t last_offset(self, LogCore log, uint64_t limit) except? 0:
        """Offset of the last frame below ``limit``, or 0."""
        cdef uint64_t count = 0, at, total = 0, found = 0
        cdef char *index = self.index_for(log, &count)
        cdef FrameState state
        at = self.data_offset
        while count:
            at = psk_get32(index + (count - 1) * PSK_INDEX_ENTRY_BYTES + PSK_INDEX_ENTRY_OFFSET)
            if at < limit:
                break
            count -= 1
            at = self.data_offset
        if at < self.data_offset or at % 8:
            raise self.damage(at, FRAME_LENGTH)
        while at < limit:
            need(self, at, False)
            state = frame_check(self.base + at, limit - at, False, &total)
            if state != FRAME_GOOD:
                if state == FRAME_ZERO and not self.data_end:
                    break
                raise self.damage(at, state)
            found = at
            if self.base[at + PSK_FRAME_KIND] == PSK_KIND_ROLL:
                break
            at += total
        return found

    def end_of_frames(self, LogCore log not None):
        """Offset after the last frame of a closed segment that is not sealed."""
        cdef uint64_t at = self.last_offset(log, self.grown())
        if at == 0:
            return self.data_offset
        return at + align8(PSK_FRAME_HEADER_BYTES + <uint64_t>(psk_get32(self.base + at) - 1))

    cdef uint64_t step_back(self, uint64_t at) except? 0:
        """Offset of the frame before the one at ``at``, 0 if that is the first."""
        cdef uint64_t back = psk_get32(self.base + at + PSK_FRAME_BACK)
        cdef uint64_t total = 0
        if back == 0:
            return 0
        if back % 8 or back > at - self.data_offset:
            raise self.damage(at, FRAME_LENGTH)
        need(self, at - back, False)
        if frame_check(self.base + at - back, back, False, &total) != FRAME_GOOD or total != back:
            raise self.damage(at - back, FRAME_ORDER)
        return at - back

    def stranded(self, uint64_t start, uint64_t limit, uint64_t seq):
        """Whether valid events with a seq from ``seq`` on are anywhere between ``start`` and ``limit``.

        The frames of one batch whose first frame was never published do not count: a writer
        that died inside a batch leaves those.
        """
        cdef Search s
        cdef uint64_t back
        cdef bint found = False
        if limit > self.mapped or limit > self.file_bytes:
            raise Internal(f"{self.path}: cannot look up to {limit}")
        if start > limit or limit - start < PSK_FRAME_HEADER_BYTES:
            return False
        need_range(self, start, limit, False)
        with nogil:
            search_begin(
                &s, self.base + start, start, limit, seq, 0, self.generation > 0, 4 * (limit - start))
            s.eager = True
            while not found and find_frame(&s, self.base, 0, limit) == FIND_HIT:
                back = psk_get32(self.base + s.at + PSK_FRAME_BACK)
                found = (
                    is_event(self.base + s.at)
                    and psk_get32(self.base + s.at + PSK_FRAME_BATCH_LEFT) == 0
                    and psk_get32(self.base + s.at - back + PSK_FRAME_BATCH_LEFT) != 1
                )
                s.jumping = False
                s.at += align8(PSK_FRAME_HEADER_BYTES + <uint64_t>psk_get32(self.base + s.at) - 1)
        return bool(found or s.budget == 0)

    def count_events(self, uint64_t start, uint64_t limit, uint64_t stop):
        """How many events with a seq below ``stop`` there are from ``start`` to ``limit``."""
        cdef uint64_t at = start, total = 0, count = 0
        cdef FrameState state = FRAME_GOOD
        if not self.has(start, limit) or start < self.data_offset:
            raise Internal(f"{self.path}: cannot read from {start} to {limit}")
        need_range(self, start, limit, False)
        with nogil:
            while at < limit:
                state = frame_check(self.base + at, limit - at, False, &total)
                if state != FRAME_GOOD or psk_get64(self.base + at + PSK_FRAME_SEQ) >= stop:
                    break
                count += is_event(self.base + at)
                at += total
        if state != FRAME_GOOD:
            raise self.damage(at, state)
        return count

    def topics(self, uint64_t start, uint64_t limit):
        """The distinct topics of the events from ``start`` to ``limit``, as a set of bytes."""
        cdef uint64_t at = start, total = 0
        cdef const char *seen[TOPIC_SLOTS]  # frames with the topics found so far, by hash of the topic
        cdef uint32_t slot
        cdef uint16_t n
        cdef FrameState state = FRAME_GOOD
        if not self.has(start, limit) and start < limit:
            raise Internal(f"{self.path}: cannot read from {start} to {limit}")
        need_range(self, start, limit, False)
        memset(seen, 0, sizeof(seen))
        found = set()
        while at < limit:
            with nogil:
                while at < limit:
                    state = frame_check(self.base + at, limit - at, False, &total)
                    if state != FRAME_GOOD:
                        break
                    if is_event(self.base + at):
                        n = psk_get16(self.base + at + PSK_FRAME_TOPIC_LEN)
                        slot = psk_crc(0, frame_topic(self.base + at), n) % TOPIC_SLOTS
                        if (
                            seen[slot] == NULL
                            or psk_get16(seen[slot] + PSK_FRAME_TOPIC_LEN) != n
                            or memcmp(frame_topic(seen[slot]), frame_topic(self.base + at), n) != 0
                        ):
                            seen[slot] = self.base + at
                            break
                    at += total
            if state != FRAME_GOOD:
                raise self.damage(at, state)
            if at < limit:
                n = psk_get16(self.base + at + PSK_FRAME_TOPIC_LEN)
                found.add(PyBytes_FromStringAndSize(frame_topic(self.base + at), n))
                at += total
        return found
