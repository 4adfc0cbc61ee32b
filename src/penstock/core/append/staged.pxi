# Staged frames: events that wait outside of a log, as frames, until they are appended to it.
#
# They are complete frames, with seqs from 1 in each file and no append time yet, and each is a batch
# of one. Their writer says how many there are and gives their digest: the CRC32C over the first 8
# bytes of every frame, which hold its length and its checksum.

cdef enum:
    ADOPT_CHUNK_BYTES = 256 << 10
    WRITE_BEHIND_BYTES = 4 << 20


cdef inline void sum_four(char **frames, uint32_t *crcs, int n) noexcept nogil:
    """The checksums of up to four complete frames."""
    cdef const char *starts[4]
    cdef size_t lengths[4]
    cdef int i
    for i in range(n):
        crcs[i] = 0xFFFFFFFF
        starts[i] = frames[i] + PSK_FRAME_SEQ
        lengths[i] = PSK_FRAME_HEADER_BYTES - PSK_FRAME_SEQ + <size_t>psk_get32(frames[i]) - 1
    if n == 4:
        psk_crc_four(crcs, starts, lengths)
        for i in range(4):
            crcs[i] = ~crcs[i]
    else:
        for i in range(n):
            crcs[i] = ~psk_crc(0xFFFFFFFF, starts[i], lengths[i])


def rows_to_stage(source, path, value, key, topic, headers, time, uint64_t before):
    """A record batch as rows, by `extend`'s rules; ``before`` rows come before these.

    The caller that appends them checks whether the values fit a codec.
    """
    cdef Coder plain = Coder("bytes")
    cdef Intake intake = Intake(source, path, plain, plain, b"", b"", b"", b"", value, key, topic, headers, time)
    cdef Given given = intake.all()
    given.before = before
    return given


def stage_frames(Given given not None, uint64_t seq, uint64_t before, uint32_t digest):
    """The rows as staged frames, with seqs from ``seq`` on.

    ``before`` is the length of the frame before the first one, 0: none; ``digest`` is that of the
    frames before. Returns the frames as bytes, the length of the last one, and the digest with
    them.
    """
    cdef uint64_t count = given.count, nbytes, i, total, prefix
    cdef uint32_t crcs[4]
    cdef char *four[4]
    cdef char *at
    cdef int n = 0, k
    cdef list pins = []
    cdef Parts *parts
    if count == 0:
        return b"", before, digest
    parts = <Parts *>PyMem_Malloc(count * sizeof(Parts))
    if parts == NULL:
        raise MemoryError
    try:
        nbytes = given.parts(parts, pins)
        frames = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>nbytes)
        at = PyBytes_AS_STRING(frames)
        digest = ~digest
        with nogil:
            for i in range(count):
                prefix = parts_prefix(&parts[i])
                total = frame_fill(
                    at, &parts[i], parts_shape(&parts[i]), parts[i].value, parts[i].value_len, prefix,
                    seq + i, 0, <uint32_t>before, 0)
                psk_put32(at, <uint32_t>(prefix + parts[i].value_len) + 1)
                before = total
                four[n] = at
                n += 1
                at += total
                if n == 4 or i == count - 1:
                    sum_four(four, crcs, n)
                    for k in range(n):
                        psk_put32(four[k] + PSK_FRAME_CRC, crcs[k])
                        digest = psk_crc(digest, four[k], PSK_FRAME_SEQ)
                    n = 0
    finally:
        PyMem_Free(parts)
    return frames, before, <uint32_t>~digest


cdef inline FrameState staged_check(
    const char *p, uint64_t room, uint64_t seq, uint64_t before, uint64_t *total
) noexcept nogil:
    """Whether a staged frame is at ``p``, checksum aside. Sets its length if so."""
    cdef FrameState state = frame_check(p, room, False, total)
    if state == FRAME_GOOD and (
        not is_event(p)
        or psk_get64(p + PSK_FRAME_SEQ) != seq
        or psk_get64(p + PSK_FRAME_APPEND_NS) != 0
        or psk_get64(p + PSK_FRAME_BACK) != before
    ):
        return FRAME_ORDER
    return state


cdef inline void frame_to_pad(char *p, uint64_t total) noexcept nogil:
    """Turn an event into a pad frame of the same length."""
    memset(p + PSK_FRAME_HEADER_BYTES, 0, total - PSK_FRAME_HEADER_BYTES)
    psk_put64(p + PSK_FRAME_KEY_LEN, PSK_NO_KEY | (<uint64_t>PSK_KIND_PAD << PSK_KIND_SHIFT))


cdef struct Adoption:
    # Staged frames that become those of a segment: read in chunks, changed, and written back.
    # The kernel writes a long run of bytes several times faster than a map page by page.
    int fd
    char *chunk
    uint64_t room          # size of chunk
    uint64_t end           # of the frames, in the file
    uint64_t append_ns
    uint64_t staged_seq    # of the next frame, as it was staged
    uint64_t next_seq      # the same in the segment
    uint64_t before        # length of the frame before it
    uint32_t digest        # register of the frames so far, as they were staged
    bint lead              # the next frame becomes a pad
    char *index
    Walk walk


cdef FrameState adopt_chunk(Adoption *a, uint64_t nbytes, uint64_t *taken) noexcept nogil:
    """Take the complete frames of the chunk, which is at the walk's offset."""
    cdef uint64_t at = 0, total = 0
    cdef uint64_t lengths[4]
    cdef uint32_t crcs[4]
    cdef char *four[4]
    cdef FrameState state = FRAME_GOOD
    cdef bint more = a.walk.offset + nbytes < a.end
    cdef int n, k
    while at < nbytes and state == FRAME_GOOD:
        n = 0
        while n < 4 and at < nbytes:
            four[n] = a.chunk + at
            state = staged_check(four[n], nbytes - at, a.staged_seq, a.before, &total)
            if state != FRAME_GOOD:
                break
            lengths[n] = a.before = total
            at += total
            a.staged_seq += 1
            n += 1
        sum_four(four, crcs, n)
        for k in range(n):
            if psk_get32(four[k] + PSK_FRAME_CRC) != crcs[k]:
                return FRAME_CRC
            a.digest = psk_crc(a.digest, four[k], PSK_FRAME_SEQ)
            psk_put64(four[k] + PSK_FRAME_APPEND_NS, a.append_ns)
            psk_put64(four[k] + PSK_FRAME_SEQ, a.next_seq)
            if a.lead:
                frame_to_pad(four[k], lengths[k])
                a.lead = False
            else:
                a.next_seq += 1
        sum_four(four, crcs, n)
        for k in range(n):
            psk_put32(four[k] + PSK_FRAME_CRC, crcs[k])
            walk_accept(&a.walk, four[k], lengths[k], a.index)
        if state == FRAME_LENGTH and more:  # the rest of it is in the next chunk
            state = FRAME_GOOD
            break
    taken[0] = at
    return state


cdef int adopt_all(Adoption *a, FrameState *state) noexcept nogil:
    """Take all frames; returns errno, or -1 if a frame is longer than the chunk.

    The device writes finished bytes meanwhile, since the caller syncs afterwards.
    """
    cdef uint64_t nbytes, taken, start, begun = a.walk.offset
    cdef int64_t found
    state[0] = FRAME_GOOD
    while a.walk.offset < a.end and state[0] == FRAME_GOOD:
        start = a.walk.offset
        nbytes = a.end - start if a.end - start < a.room else a.room
        found = psk_read_all(a.fd, start, a.chunk, nbytes)
        if found < 0:
            return <int>-found
        if <uint64_t>found != nbytes:
            state[0] = FRAME_LENGTH
            break
        taken = 0
        state[0] = adopt_chunk(a, nbytes, &taken)
        if state[0] == FRAME_GOOD and taken == 0:
            return -1
        if taken and not psk_write_all(a.fd, start, a.chunk, taken, NULL, 0, NULL, 0):
            return errno
        if a.walk.offset - begun >= WRITE_BEHIND_BYTES:
            psk_write_behind(a.fd, begun, a.walk.offset - begun)
            begun = a.walk.offset
    return 0


def adopt_frames(
    SegmentMap m not None, uint64_t end, uint64_t count, uint32_t digest, uint64_t append_ns, bint lead, path
):
    """Make the ``count`` staged frames from the map's start to ``end`` frames of its segment.

    They get seqs from the segment's base on and ``append_ns``, and the index its entries. With
    ``lead``, the first event is one that the log has already: a pad replaces it. Returns the walk's
    fields; `Corrupt` if these are not the frames that were staged, and then the file cannot be used
    any more.
    """
    cdef Adoption a
    cdef FrameState state = FRAME_GOOD
    cdef int failed = -1
    if not m.writable or not m.data_offset <= end <= m.frames_end or end > m.file_bytes:
        raise Internal(f"{m.path}: has no frames up to {end}")
    memset(&a, 0, sizeof(a))
    a.fd = m.fd
    a.end = end
    a.append_ns = append_ns
    a.staged_seq = 1
    a.next_seq = m.base_seq
    a.digest = 0xFFFFFFFF
    a.lead = lead
    a.index = m.base + m.index_offset
    m.walk_begin(&a.walk)
    a.room = ADOPT_CHUNK_BYTES
    try:
        while failed == -1:
            PyMem_Free(a.chunk)
            a.chunk = <char *>PyMem_Malloc(a.room)
            if a.chunk == NULL:
                raise MemoryError
            with nogil:
                failed = adopt_all(&a, &state)
            a.room *= 4
    finally:
        PyMem_Free(a.chunk)
    if failed:
        raise from_os(OSError(failed, ""), "renumbering", m.path)
    if state != FRAME_GOOD or a.staged_seq - 1 != count or <uint32_t>~a.digest != digest:
        raise staged_damage(path, a.staged_seq - 1, count, state)
    return walked(&a.walk)


cdef object staged_damage(object path, uint64_t found, uint64_t count, FrameState state):
    what = f"{found} events of {count}" if state == FRAME_GOOD and found != count else (
        f"{_FRAME_STATES.get(state, 'other events')} after {found} events of {count}")
    return Corrupt(
        f"{path}: the staged rows are damaged: {what}. Nothing was "
        "published; run the write again", path=path)


cdef class StagedFrames:
    """Staged frames in memory, checked: the source of `StagedRows`."""

    cdef list buffers
    cdef const char **starts
    cdef uint64_t count, room

    def __dealloc__(self):
        PyMem_Free(self.starts)

    def __cinit__(self):
        self.buffers = []

    def __reduce__(self):
        raise stays_here(self)

    def add(self, bytes data not None, uint64_t count, uint32_t digest, path):
        """Add the frames of one file; `Corrupt` if they are not what was staged."""
        cdef uint64_t seq = 1, at = 0, before = 0, total = 0, end = <uint64_t>len(data)
        cdef const char *base = PyBytes_AS_STRING(data)
        cdef const char **starts
        cdef uint32_t found = 0xFFFFFFFF
        cdef FrameState state = FRAME_GOOD
        if count > end // PSK_FRAME_HEADER_BYTES:
            raise staged_damage(path, 0, count, FRAME_LENGTH)
        if self.count + count > self.room:
            self.room = self.count + count
            starts = <const char **>PyMem_Realloc(<void *>self.starts, self.room * sizeof(char *))
            if starts == NULL:
                raise MemoryError
            self.starts = starts
        with nogil:
            while at < end and seq <= count:
                state = staged_check(base + at, end - at, seq, before, &total)
                if state == FRAME_GOOD:
                    state = frame_check(base + at, end - at, True, &total)
                if state != FRAME_GOOD:
                    break
                found = psk_crc(found, base + at, PSK_FRAME_SEQ)
                self.starts[self.count + seq - 1] = base + at
                before = total
                at += total
                seq += 1
        if state != FRAME_GOOD or seq - 1 != count or at != end or <uint32_t>~found != digest:
            raise staged_damage(path, seq - 1, count, state)
        self.buffers.append(data)
        self.count += count

    def rows(self, uint64_t before=0):
        """All of them, as rows to append; ``before`` rows come before these."""
        return new_staged_rows(self, 0, self.count, before)


cdef StagedRows new_staged_rows(StagedFrames frames, uint64_t first, uint64_t stop, uint64_t before):
    """Some of the frames, whose bounds the caller has checked."""
    cdef StagedRows rows = StagedRows.__new__(StagedRows, INSIDE)
    rows.frames = frames
    rows.first = first
    rows.count = stop - first
    rows.before = before
    return rows


cdef class StagedRows(Given):
    """Rows to append that are staged frames."""

    cdef StagedFrames frames
    cdef uint64_t first

    def __getitem__(self, which):
        start, stop, _ = which.indices(self.count)
        return new_staged_rows(self.frames, self.first + start, self.first + max(start, stop), self.before + start)

    def check(self, Coder coder not None, path):
        """Check that every value fits the codec; that takes an object per row."""
        cdef uint64_t i
        cdef Event event
        for i in range(self.count):
            event = make_event(self.frames, self.frames.starts[self.first + i])
            if psk_get16(event.p + PSK_FRAME_HEADERS_LEN):
                name = codec_header(event)
                if name is not None and name != coder.name:
                    continue  # its header names another codec
            try:
                coder.to_bytes(event.value, path)
            except BadData as error:
                raise BadData(f"row {self.before + i}: {error}", path=path) from error

    def fitting(self, uint64_t room, uint64_t rows):
        """How many of the first ``rows`` rows fit ``room`` bytes of frames; at least one."""
        cdef uint64_t taken = 0, total
        while taken < rows and taken < self.count:
            total = align8(PSK_FRAME_HEADER_BYTES + <uint64_t>psk_get32(self.frames.starts[self.first + taken]) - 1)
            if total > room:
                break
            room -= total
            taken += 1
        return taken if taken else 1

    cdef bint plain(self) except -1:
        return False

    cdef uint64_t parts(self, Parts *parts, list pins) except 0:
        cdef uint64_t i, nbytes = 0
        pins.append(self.frames)
        with nogil:
            for i in range(self.count):
                nbytes += frame_parts(self.frames.starts[self.first + i], &parts[i])
        return nbytes


cdef inline uint64_t frame_parts(const char *p, Parts *parts) noexcept nogil:
    """Split a checked frame of an event into its parts; returns its length."""
    cdef uint64_t body = psk_get32(p) - 1
    cdef const char *at = p + PSK_FRAME_HEADER_BYTES
    parts.kind = <uint8_t>p[PSK_FRAME_KIND]
    parts.flags = <uint8_t>p[PSK_FRAME_FLAGS]
    parts.fixed = True
    parts.event_ns = 0
    if parts.flags & PSK_FLAG_EVENT_TIME:
        parts.event_ns = psk_get64(at)
        at += PSK_EVENT_TIME_BYTES
    parts.topic = at
    parts.topic_len = psk_get16(p + PSK_FRAME_TOPIC_LEN)
    at += parts.topic_len
    parts.headers = at
    parts.headers_len = psk_get16(p + PSK_FRAME_HEADERS_LEN)
    at += parts.headers_len
    parts.key = at
    parts.key_len = psk_get16(p + PSK_FRAME_KEY_LEN)
    if parts.key_len != PSK_NO_KEY:
        at += parts.key_len
    parts.value = at
    parts.value_len = body - <uint64_t>(at - p - PSK_FRAME_HEADER_BYTES)
    return align8(PSK_FRAME_HEADER_BYTES + body)
