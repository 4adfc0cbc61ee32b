# Compaction: which events of a log live, and the frames of a segment with only these; see compact.h.

cdef enum:
    SURVEY_FRAMES = 64        # frames whose checksums are verified before any of them is used
    SURVEY_PAUSE = 1048576    # frames after which Ctrl-C is heard
    COPY_BYTES = 1048576      # of frames that a copy gives at a time
    SURVEY_AHEAD = 2048
    SLOTS_MIN = 16384


cdef uint64_t map_pages_below(SegmentMap m, uint64_t at, uint64_t end) noexcept nogil:
    """Map pages before ``end``, at least from ``at`` on, in one go; returns where they begin.

    A fault every few pages would cost more.
    """
    cdef uint64_t start = (end - 1) & ~<uint64_t>(PSK_PAGE - 1)
    start -= min(start, <uint64_t>PAGES_BYTES)
    start = min(start, at & ~<uint64_t>(PSK_PAGE - 1))
    psk_populate_read(m.base + start, end - start)
    return start


cdef class KeySurvey:
    """Marks the events of a log that live; the log is given from its newest segment to the oldest.

    A bit for every 8 bytes of frames says that the frame that begins there lives. ``memory`` bounds
    the table of keys; ``spill(part, records)`` is called with events of keys that find no room in it.
    """

    cdef psk_survey s
    cdef uint64_t secret[2]
    cdef uint64_t now_ns, ttl_ns, grace_ns, first_seq
    cdef bint drop_keyless
    cdef object spill
    cdef const unsigned char[:] held   # keeps the bits where they are
    cdef readonly uint64_t settings_at  # newest settings frame of the segment taken last; 0: none
    cdef readonly uint64_t producer_at  # the same for producer frames
    cdef readonly uint64_t events, nbytes  # in that segment, and of their frames

    def __cinit__(
        self, uint64_t memory, bits, bytes secret not None, spill, *, uint64_t versions=1, uint64_t now_ns=0,
        uint64_t ttl_ns=0, uint64_t grace_ns=0, uint64_t first_seq=0, bint drop_keyless=False,
    ):
        cdef unsigned char[:] view = bits
        if len(secret) != 16 or not 1 <= versions <= PSK_COUNT_MASK or view.shape[0] == 0:
            raise Internal("a survey must have bits, a secret of 16 bytes, and versions that fit")
        self.held = view
        self.s.bits = &view[0]
        self.s.bits_count = <uint64_t>view.shape[0] * 8
        self.s.versions = versions
        self.s.slots_max = max(memory // (sizeof(psk_slot) * 3 // 2), <uint64_t>SLOTS_MIN)
        memcpy(self.secret, PyBytes_AS_STRING(secret), 16)
        self.now_ns = now_ns
        self.ttl_ns = ttl_ns
        self.grace_ns = grace_ns
        self.first_seq = first_seq
        self.drop_keyless = drop_keyless
        self.spill = spill
        self.s.buffers = <psk_record *>PyMem_Malloc(PSK_SPILL_PARTS * PSK_SPILL_ROOM * sizeof(psk_record))
        if self.s.buffers == NULL:
            raise MemoryError
        self.clear()

    def __dealloc__(self):
        free(self.s.slots)
        PyMem_Free(self.s.buffers)

    def __reduce__(self):
        raise stays_here(self)

    cdef int clear(self) except -1:
        free(self.s.slots)
        self.s.slots = <psk_slot *>calloc(SLOTS_MIN, sizeof(psk_slot))
        if self.s.slots == NULL:
            self.s.count = 0
            raise MemoryError
        self.s.count = SLOTS_MIN
        self.s.used = 0
        self.s.full = self.s.crowded = 0
        return 0

    @property
    def spilled(self):
        """How many events were given to ``spill``, all in all."""
        return self.s.spilled

    def begin(self, int depth, spill):
        """Forget all keys, for a part of the spilled ones: ``depth`` times spilled."""
        if not 0 < depth <= 6:
            raise Internal(f"keys were spilled {depth} times")
        self.clear()
        self.s.depth = depth
        self.spill = spill

    def empty(self):
        """Give all that is in the buffers to ``spill``."""
        cdef uint32_t part
        for part in range(<uint32_t>PSK_SPILL_PARTS):
            if self.s.filled[part]:
                data = PyBytes_FromStringAndSize(
                    <char *>(self.s.buffers + part * PSK_SPILL_ROOM), self.s.filled[part] * sizeof(psk_record))
                self.s.filled[part] = 0
                self.spill(part, data)
        self.s.crowded = 0

    def take_records(self, bytes data not None):
        """Take events that were spilled, in their order."""
        cdef uint64_t count = <uint64_t>PyBytes_GET_SIZE(data) // sizeof(psk_record), i = 0, stop
        cdef const psk_record *records = <const psk_record *>PyBytes_AS_STRING(data)
        cdef bint there = True
        while i < count:
            if self.s.crowded:
                self.empty()
            stop = min(i + SURVEY_FRAMES, count)
            with nogil:
                there = psk_survey_room(&self.s, SURVEY_FRAMES)
                while there and i < stop:
                    psk_survey_take(&self.s, records + i)
                    i += 1
            if not there:
                raise MemoryError

    def take(self, SegmentMap m not None, uint64_t last_frame, uint64_t end, uint64_t first_bit, bint stays=False):
        """Take the frames of a segment, the last of which begins at ``last_frame`` and ends at ``end``.

        ``first_bit`` is the bit of its first frame; if it ``stays``, no frame of it is marked. Each
        frame is checked: `Corrupt` if one is damaged.
        """
        cdef uint64_t at = last_frame, upper = end, bad_at = 0, seq = U64_MAX
        cdef FrameState state = FRAME_GOOD
        cdef bint there = True
        cdef uint64_t mapped = U64_MAX  # pages from here on are mapped
        self.settings_at = self.producer_at = self.events = self.nbytes = 0
        if last_frame and not (m.data_offset <= last_frame < end and m.has(m.data_offset, end)):
            raise m.damage(last_frame, FRAME_LENGTH)
        while at:
            if self.s.crowded:
                self.empty()
            with nogil:
                if at < mapped:
                    mapped = map_pages_below(m, at, upper)
                state = self.take_frames(m, &at, &upper, &seq, first_bit, stays, mapped, &bad_at, &there)
            if not there:
                raise MemoryError
            if state != FRAME_GOOD:
                raise m.damage(bad_at, state)
            PyErr_CheckSignals()

    cdef FrameState take_frames(
        self, SegmentMap m, uint64_t *at_, uint64_t *upper_, uint64_t *seq_, uint64_t first_bit, bint stays,
        uint64_t mapped, uint64_t *bad_at, bint *there,
    ) noexcept nogil:
        """Take frames until there are none above ``mapped``, a buffer is crowded, or a pause is due."""
        cdef const char *frames[SURVEY_FRAMES]
        cdef psk_record records[SURVEY_FRAMES]
        cdef const char *p
        cdef const char *key
        cdef uint64_t at = at_[0], upper = upper_[0], seq = seq_[0], here, total = 0, good, bit
        cdef uint64_t passed = 0
        cdef uint32_t n, i, k, back
        cdef uint16_t key_len = 0
        cdef FrameState state
        while at and at >= mapped and not self.s.crowded and passed < SURVEY_PAUSE:
            n = 0
            while at and n < SURVEY_FRAMES:
                p = m.base + at
                state = frame_check(p, upper - at, False, &total)
                here = psk_get64(p + PSK_FRAME_SEQ) if state == FRAME_GOOD else 0
                back = psk_get32(p + PSK_FRAME_BACK) if state == FRAME_GOOD else 0
                if state == FRAME_GOOD and (
                    total != upper - at or here > seq or (here == seq and is_event(p)) or back & 7
                    or back > at - m.data_offset or (back == 0) != (at == m.data_offset)
                ):
                    state = FRAME_ORDER
                if state != FRAME_GOOD:
                    bad_at[0] = at
                    return state
                psk_prefetch(p - SURVEY_AHEAD)
                psk_prefetch(p - SURVEY_AHEAD + 64)
                seq = here
                frames[n] = p
                n += 1
                upper = at
                at = at - back if back else 0
            good = summed_right(frames, n)
            if good < n:
                bad_at[0] = <uint64_t>(frames[good] - m.base)
                return FRAME_CRC
            k = 0
            for i in range(n):
                p = frames[i]
                if not is_event(p):
                    here = <uint64_t>(p - m.base)
                    if p[PSK_FRAME_KIND] == PSK_KIND_SETTINGS and not self.settings_at:
                        self.settings_at = here
                    elif p[PSK_FRAME_KIND] == PSK_KIND_PRODUCER and not self.producer_at:
                        self.producer_at = here
                    continue
                self.events += 1
                self.nbytes += align8(PSK_FRAME_HEADER_BYTES + <uint64_t>psk_get32(p) - 1)
                bit = first_bit + (<uint64_t>(p - m.base) - m.data_offset) // 8
                if stays:
                    bit = PSK_STAYS
                if psk_get64(p + PSK_FRAME_SEQ) < self.first_seq or frame_expired(p, self.ttl_ns, self.now_ns):
                    continue
                key = frame_key(p, &key_len)
                if key_len == PSK_NO_KEY:
                    if not self.drop_keyless:
                        psk_survey_mark(&self.s, bit, True)
                    continue
                psk_secret_hash(self.secret, key, key_len, &records[k].hash, &records[k].rest)
                here = psk_get64(p + PSK_FRAME_APPEND_NS)
                if p[PSK_FRAME_KIND] == PSK_KIND_DELETE and here <= self.now_ns and (
                    self.now_ns - here >= self.grace_ns
                ):
                    bit |= PSK_ENDS_KEY
                records[k].where = bit
                psk_prefetch(<const char *>psk_survey_slot(&self.s, records[k].hash))
                k += 1
            there[0] = psk_survey_room(&self.s, SURVEY_FRAMES)
            if not there[0]:
                return FRAME_GOOD
            for i in range(k):
                psk_survey_take(&self.s, &records[i])
            passed += n
        at_[0] = at
        upper_[0] = upper
        seq_[0] = seq
        return FRAME_GOOD


cdef class LiveFrames:
    """The events of a segment that live, as frames for another one, which begins at ``out_at``.

    They keep seq, time, kind, flags and body; each becomes a batch of its own. Frames of other kinds
    are left out. Those live that a `KeySurvey` has marked in ``bits``, or that do not have the ``key``.
    """

    cdef SegmentMap m
    cdef const unsigned char[:] held
    cdef uint64_t first_bit, at, end
    cdef const unsigned char *bits   # NULL: the key says it
    cdef bytes key
    cdef const char *key_at
    cdef uint16_t key_len
    cdef char *out
    cdef uint64_t out_used
    cdef readonly uint64_t out_at, out_last   # where the next frame goes, and where the last one went; 0: none
    cdef readonly uint64_t events, nbytes     # that live
    cdef readonly uint64_t dead, dead_bytes   # that have the key

    def __cinit__(
        self, SegmentMap m not None, uint64_t end, bits=None, uint64_t first_bit=0, bytes key=None,
        uint64_t out_at=0, uint64_t out_last=0,
    ):
        if not m.has(m.data_offset, end):
            raise m.damage(m.data_offset, FRAME_LENGTH)
        if bits is not None:
            self.held = bits
            if first_bit + (end - m.data_offset) // 8 + 64 > <uint64_t>self.held.shape[0] * 8:
                raise Internal(f"{m.path}: has more frames than bits")
            self.bits = &self.held[0]
        elif key is None:
            raise Internal("frames live by bits or by a key")
        else:
            self.key_at = PyBytes_AS_STRING(key)
            self.key_len = <uint16_t>PyBytes_GET_SIZE(key)
        self.m = m
        self.at = m.data_offset
        self.end = end
        self.first_bit = first_bit
        self.key = key
        self.out_at = out_at
        self.out_last = out_last

    def __dealloc__(self):
        PyMem_Free(self.out)

    def __reduce__(self):
        raise stays_here(self)

    cdef inline bint is_dead(self, const char *p) noexcept nogil:
        """Whether an event is dead; by bits, only those that live are looked at."""
        cdef uint16_t n = 0
        cdef const char *key
        if self.bits != NULL:
            return False
        key = frame_key(p, &n)
        return n == self.key_len and memcmp(key, self.key_at, n) == 0

    cdef inline bint seek(self) noexcept nogil:
        """Move on to the next frame that may live; False at the end."""
        cdef uint64_t end = self.first_bit + (self.end - self.m.data_offset) // 8, bit
        if self.bits != NULL:
            bit = psk_next_bit(self.bits, self.first_bit + (self.at - self.m.data_offset) // 8, end)
            self.at = self.end if bit == end else self.m.data_offset + (bit - self.first_bit) * 8
        return self.at < self.end

    def measure(self, bint check=False):
        """Count the events that live and that are dead, and their bytes; with ``check``, check each frame."""
        cdef uint64_t total = 0, passed = 1
        cdef FrameState state = FRAME_GOOD
        cdef const char *p
        while passed and state == FRAME_GOOD:
            with nogil:
                passed = 0
                while passed < PAGES_BYTES and self.seek():
                    p = self.m.base + self.at
                    state = frame_check(p, self.end - self.at, check, &total)
                    if state != FRAME_GOOD:
                        break
                    if is_event(p):
                        if self.is_dead(p):
                            self.dead += 1
                            self.dead_bytes += total
                        else:
                            self.events += 1
                            self.nbytes += total
                    self.at += total
                    passed += total
            PyErr_CheckSignals()
        if state != FRAME_GOOD:
            raise self.m.damage(self.at, state)
        return self

    def run(self):
        """The next frames, which belong at ``out_at``; empty at the end.

        For a frame that is longer than one turn: a tuple of its header, and offset and length of its
        body, to be copied by the caller.
        """
        cdef uint64_t total = 0, body
        cdef FrameState state = FRAME_GOOD
        cdef const char *p = NULL
        cdef bint long_one = False
        cdef char head[PSK_FRAME_HEADER_BYTES]
        if self.out == NULL:
            self.out = <char *>PyMem_Malloc(COPY_BYTES)
            if self.out == NULL:
                raise MemoryError
        self.out_used = 0
        with nogil:
            while self.seek():
                p = self.m.base + self.at
                state = frame_check(p, self.end - self.at, False, &total)
                if state != FRAME_GOOD:
                    break
                if not is_event(p) or self.is_dead(p):
                    self.at += total
                    continue
                if self.out_used + total > COPY_BYTES:
                    long_one = self.out_used == 0
                    break
                state = frame_check(p, self.end - self.at, True, &total)
                if state != FRAME_GOOD:
                    break
                self.copy(p, total)
        if state != FRAME_GOOD:
            raise self.m.damage(self.at, state)
        PyErr_CheckSignals()
        if not long_one:
            return PyBytes_FromStringAndSize(self.out, <Py_ssize_t>self.out_used)
        body = psk_get32(p) - 1
        with nogil:
            state = frame_check(p, self.end - self.at, True, &total)
            memcpy(head, p, PSK_FRAME_HEADER_BYTES)
            self.place(head)
            psk_put32(head + PSK_FRAME_CRC, ~psk_crc(
                psk_crc(0xFFFFFFFF, head + PSK_FRAME_SEQ, PSK_FRAME_HEADER_BYTES - PSK_FRAME_SEQ),
                p + PSK_FRAME_HEADER_BYTES, body))
        if state != FRAME_GOOD:
            raise self.m.damage(self.at, state)
        start = self.at + PSK_FRAME_HEADER_BYTES
        self.pass_on(total)
        return PyBytes_FromStringAndSize(head, PSK_FRAME_HEADER_BYTES), start, body

    cdef inline void place(self, char *p) noexcept nogil:
        """Give a copied frame its place, as a batch of its own."""
        psk_put32(p + PSK_FRAME_BACK, <uint32_t>(self.out_at - self.out_last) if self.out_last else 0)
        psk_put32(p + PSK_FRAME_BATCH_LEFT, 0)

    cdef inline void copy(self, const char *p, uint64_t total) noexcept nogil:
        cdef char *dst = self.out + self.out_used
        cdef uint64_t body = psk_get32(p) - 1
        psk_put64(dst + total - 8, 0)
        memcpy(dst, p, PSK_FRAME_HEADER_BYTES + body)
        self.place(dst)
        frame_sum(dst, body)
        self.out_used += total
        self.pass_on(total)

    cdef inline void pass_on(self, uint64_t total) noexcept nogil:
        self.events += 1
        self.nbytes += total
        self.out_last = self.out_at
        self.out_at += total
        self.at += total
