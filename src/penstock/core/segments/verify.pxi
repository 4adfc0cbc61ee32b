# Verification: find the next valid frame after a damaged one; and FrameScan, which checks every frame of
# a segment in private memory. Nothing here maps a file or trusts a length.

cdef enum:
    FRAME_BYTES_MAX = (
        PSK_FRAME_HEADER_BYTES + 16 + PSK_TOPIC_BYTES_MAX + PSK_HEADERS_BYTES_MAX + PSK_KEY_BYTES_MAX
        + PSK_VALUE_BYTES_MAX)


cdef enum Find:
    FIND_NONE = 0
    FIND_HIT = 1     # the next valid frame is at `at`
    FIND_MORE = 2    # give the bytes from `at` on
    FIND_SUM = 3     # the frame at `at` is longer than the given bytes: say whether its checksum is right


cdef enum:
    SUM_UNKNOWN = 0
    SUM_RIGHT = 1
    SUM_WRONG = 2


cdef struct Search:
    # A search for the next valid frame after a damaged one.
    uint64_t bad_at      # offset of the damaged frame
    uint64_t limit       # no frame goes past it
    uint64_t batch_limit # nor a batch past that
    uint64_t at          # the next place to check
    uint64_t seq         # the seq that was expected at bad_at
    uint64_t seq_max     # no seq can be above it
    uint64_t append_ns   # of the last valid frame
    uint64_t later       # first valid frame whose `back` leads to after the damaged one; 0: none
    uint64_t dirty       # first place from bad_at on that is not zero
    uint64_t budget      # bytes of checksums, and of searching past `later`, that may still be spent
    int sum              # verdict on the long frame at `at`
    bint holes           # seqs need not go up by ones
    bint jumping         # `at` is the end that the damaged frame gives
    bint eager           # `later` is good enough


cdef void search_begin(
    Search *s, const char *p, uint64_t bad_at, uint64_t limit, uint64_t seq, uint64_t append_ns,
    bint holes, uint64_t budget,
) noexcept nogil:
    """Prepare a search after the damaged frame whose first 8 bytes are at ``p``."""
    cdef uint64_t commit = psk_get32(p)
    cdef uint64_t total = align8(PSK_FRAME_HEADER_BYTES + commit - 1)
    memset(s, 0, sizeof(Search))
    s.bad_at = bad_at
    s.limit = limit
    s.batch_limit = limit
    s.seq = seq
    s.seq_max = U64_MAX
    s.append_ns = append_ns
    s.holes = holes
    s.budget = budget
    s.dirty = bad_at if psk_get64(p) else U64_MAX
    s.jumping = commit != 0 and total < limit - bad_at
    s.at = bad_at + total if s.jumping else bad_at + 8


cdef inline uint64_t plausible(const Search *s, const char *p, uint64_t at) noexcept nogil:
    """The distance of the frame at ``p`` from the damaged place, as it says; 0 if it cannot be a frame.

    All that needs no checksum is checked, so that bytes inside a value, even complete frames of
    another log, are almost never taken for an event.
    """
    cdef uint64_t distance = at - s.bad_at
    cdef uint64_t back = psk_get32(p + PSK_FRAME_BACK)
    cdef uint64_t commit = psk_get32(p)
    cdef uint64_t seq, parts
    cdef uint16_t key_len
    cdef uint8_t kind = <uint8_t>p[PSK_FRAME_KIND]
    cdef uint8_t flags = <uint8_t>p[PSK_FRAME_FLAGS]
    if back > distance or back < PSK_FRAME_HEADER_BYTES or back & 7 or commit == 0:
        return 0
    if kind == 0 or kind > PSK_KIND_MAX or flags & ~PSK_FLAGS_KNOWN:
        return 0
    if align8(PSK_FRAME_HEADER_BYTES + commit - 1) > s.limit - at:
        return 0
    seq = psk_get64(p + PSK_FRAME_SEQ)
    if seq < s.seq or seq > s.seq_max or (
        not s.holes and seq - s.seq > distance // PSK_FRAME_HEADER_BYTES
    ):
        return 0
    if psk_get64(p + PSK_FRAME_APPEND_NS) < s.append_ns:
        return 0
    if psk_get32(p + PSK_FRAME_BATCH_LEFT) > (s.batch_limit - at) // PSK_FRAME_HEADER_BYTES:
        return 0
    key_len = psk_get16(p + PSK_FRAME_KEY_LEN)
    parts = <uint64_t>psk_get16(p + PSK_FRAME_HEADERS_LEN) + psk_get16(p + PSK_FRAME_TOPIC_LEN)
    if key_len != PSK_NO_KEY:
        parts += key_len
    if flags & PSK_FLAG_EVENT_TIME:
        parts += PSK_EVENT_TIME_BYTES
    return back if parts <= commit - 1 else 0


cdef Find find_frame(Search *s, const char *data, uint64_t start, uint64_t length) noexcept nogil:
    """Find the next valid frame after a damaged one.

    1. Check where the damaged frame itself says that it ends.
    2. Else check every multiple of 8 after it. A plausible frame with the right checksum whose
       ``back`` leads to the damaged place is the one.
    3. One whose ``back`` leads to a later place may follow more damaged frames, or be part of a
       value: it is used if no frame after it leads to the damaged place.

    ``data`` has the ``length`` bytes of the file from ``start`` on; a caller that does not have all
    of them is told what to give next. The budget bounds checksums, so hostile bytes cost no more
    than a few times their length.
    """
    cdef uint64_t end = start + length
    cdef uint64_t need, back, body, total
    cdef const char *p
    cdef bint right
    while s.at + 8 <= s.limit:
        need = PSK_FRAME_HEADER_BYTES if s.limit - s.at >= PSK_FRAME_HEADER_BYTES else 8
        if s.at < start or s.at + need > end:
            return FIND_MORE
        p = data + (s.at - start)
        if s.dirty == U64_MAX and psk_get64(p):
            s.dirty = s.at
        back = plausible(s, p, s.at) if need == PSK_FRAME_HEADER_BYTES else 0
        if back and (back == s.at - s.bad_at or (s.later == 0 and not s.jumping)):
            body = psk_get32(p) - 1
            total = align8(PSK_FRAME_HEADER_BYTES + body)
            if total > s.budget:
                s.budget = 0
                break
            if total > end - s.at and s.sum == SUM_UNKNOWN:
                return FIND_SUM if start == s.at else FIND_MORE
            s.budget -= total
            if s.sum == SUM_UNKNOWN:
                right = psk_get32(p + PSK_FRAME_CRC) == <uint32_t>~psk_crc(
                    0xFFFFFFFF, p + PSK_FRAME_SEQ, PSK_FRAME_HEADER_BYTES - PSK_FRAME_SEQ + body)
            else:
                right = s.sum == SUM_RIGHT
                s.sum = SUM_UNKNOWN
            if right and (s.eager or back == s.at - s.bad_at):
                return FIND_HIT
            if right:
                s.later = s.at
        if s.jumping:
            s.jumping = False
            s.at = s.bad_at + 8
            continue
        if s.later:
            if s.budget < 8 or s.at - s.bad_at > FRAME_BYTES_MAX:
                break
            s.budget -= 8
        s.at += 8
    if s.later:
        s.at = s.later
        return FIND_HIT
    return FIND_NONE


cdef enum:
    TOPIC_TABLE = 4096
    DIGEST_WORDS = 64


cdef enum ScanMode:
    MODE_FRAMES = 0
    MODE_SEARCH = 1
    MODE_LAND = 2    # found; the header must be in the window


cdef enum ScanStatus:
    SCAN_MORE = 0
    SCAN_SUM = 1
    SCAN_DAMAGED = 2
    SCAN_BATCH = 3
    SCAN_FOUND = 4
    SCAN_LOST = 5
    SCAN_LONG = 6
    SCAN_END = 7


_SCAN_STATUS = ("more", "sum", "damaged", "batch", "found", "lost", "long", "end")


cdef class FrameScan:
    """Checks the frames of one segment, given piece by piece; for repair it also copies them.

    ``run()`` continues until it needs something, and returns what:

    "more"      ``feed`` the bytes of the file from ``at`` on
    "sum"       the frame at ``at`` is longer than the bytes fed: say with ``summed`` whether its
                checksum is right
    "long"      copying: the frame at ``at`` is valid and too long to copy here
    "damaged"   the frame at ``at`` is not valid; run again to search for the next one
    "batch"     the frame at ``at`` is valid, but the batch before it is incomplete
    "found"     the next valid frame is at ``at``
    "lost"      there is none
    "end"       after a roll frame, or at the limit
    """

    cdef Walk w
    cdef Walk before           # as it was before the batch that is being walked
    cdef Walk marked           # as it was when the walk passed `mark`
    cdef Search search
    cdef ScanMode mode
    cdef bytes window
    cdef const char *data
    cdef uint64_t start, length
    cdef readonly uint64_t limit
    cdef readonly uint64_t frames
    cdef uint64_t before_frames
    cdef uint64_t mark
    cdef uint64_t base_seq
    cdef bint holes, in_batch, broken, holed
    cdef uint32_t want_left
    cdef uint64_t summed_at, budget
    cdef int sum
    cdef FrameState state
    cdef char *index
    cdef uint64_t index_room
    cdef char *topic_bytes
    cdef uint16_t *topic_slots   # place in topic_bytes, plus 1
    cdef uint32_t topic_used
    cdef uint32_t topic_last
    cdef bint topics_overflow
    cdef uint64_t words[DIGEST_WORDS]  # first 8 bytes of frames that are not in the digest yet
    cdef int words_count
    # What valid frames after `watch` share: those of one batch share all of it.
    cdef uint64_t watch, watch_ns, watch_sum
    cdef bint watch_any, watch_mixed
    # Copying.
    cdef char *out
    cdef uint64_t out_room, out_used
    cdef readonly uint64_t out_at, out_last, out_batch
    cdef uint64_t out_producer
    cdef bint flatten, long_done
    # The key filter that must have the keys of all events.
    cdef bytes key_filter
    cdef const char *filter_pages_at   # NULL: none is checked
    cdef uint64_t filter_pages
    cdef readonly uint64_t unfiltered_seq  # first event whose key it lacks; 0: none

    def __cinit__(
        self, uint64_t data_offset, uint64_t base_seq, uint64_t limit, *, bint holes=False,
        uint64_t prior_append_ns=0, uint64_t prior_event_max_ns=0, bint monotone=True,
        uint64_t mark=0, uint64_t copy_to=0, bytes key_filter=None,
    ):
        self.index = NULL
        self.out = NULL
        self.topic_bytes = NULL
        self.topic_slots = NULL
        limit &= ~<uint64_t>7
        if data_offset % 8 or limit < data_offset:
            raise Internal(f"frames from {data_offset} to {limit} cannot be scanned")
        walk_start(&self.w, data_offset, base_seq, prior_append_ns, prior_event_max_ns, monotone)
        self.before = self.marked = self.w
        self.limit = limit
        self.holes = holes
        self.mark = mark
        self.base_seq = base_seq
        self.budget = 4 * (limit - data_offset) + PSK_PAGE
        self.index_room = (limit - data_offset) // PSK_INDEX_STEP + 2
        self.index = <char *>PyMem_Malloc(self.index_room * PSK_INDEX_ENTRY_BYTES)
        self.topic_bytes = <char *>PyMem_Malloc(PSK_TOPICS_BYTES_MAX)
        self.topic_slots = <uint16_t *>PyMem_Malloc(TOPIC_TABLE * sizeof(uint16_t))
        if self.index == NULL or self.topic_bytes == NULL or self.topic_slots == NULL:
            raise MemoryError
        memset(self.topic_slots, 0, TOPIC_TABLE * sizeof(uint16_t))
        self.key_filter = key_filter
        if key_filter is not None:
            self.filter_pages_at = PyBytes_AS_STRING(key_filter)
            self.filter_pages = <uint64_t>PyBytes_GET_SIZE(key_filter) // PSK_PAGE
        if copy_to:
            self.out_room = PSK_SCAN_WINDOW_BYTES
            self.out = <char *>PyMem_Malloc(self.out_room)
            if self.out == NULL:
                raise MemoryError
            self.out_at = copy_to

    def __reduce__(self):
        raise stays_here(self)

    def __dealloc__(self):
        PyMem_Free(self.index)
        PyMem_Free(self.topic_bytes)
        PyMem_Free(self.topic_slots)
        PyMem_Free(self.out)

    @property
    def at(self):
        """The place of the last answer of ``run``."""
        return self.search.at if self.mode != MODE_FRAMES else self.w.offset

    @property
    def reason(self):
        """What is wrong with the damaged frame."""
        return _FRAME_STATES[self.state]

    @property
    def unknown_kind(self):
        """Whether the damaged frame is intact, but of a newer Penstock."""
        return self.state == FRAME_KIND

    @property
    def batch_start(self):
        """The start of the incomplete batch; None between batches."""
        return self.before.offset if self.in_batch else None

    @property
    def batch_sum(self):
        """seq + batch_left of the events of the incomplete batch."""
        return self.w.next_seq + self.want_left

    @property
    def dirty(self):
        """After a search: the first place that is not zero; None if there is none."""
        return None if self.search.dirty == U64_MAX else self.search.dirty

    @property
    def exhausted(self):
        """Whether a search stopped because it would have taken too long."""
        return self.budget < PSK_FRAME_HEADER_BYTES

    def walked(self):
        """The fields of the walk over all valid frames so far."""
        return walked(&self.w)

    def walked_before(self):
        """The fields before the incomplete batch, if there is one; else the current ones."""
        if self.in_batch:
            return walked(&self.before), self.before_frames
        return walked(&self.w), self.frames

    def walked_at_mark(self):
        """The fields when the walk reached ``mark``."""
        return walked(&self.marked)

    def index_bytes(self):
        """The index for the frames, without the open block."""
        return PyBytes_FromStringAndSize(
            self.index, <Py_ssize_t>(self.w.index_count * PSK_INDEX_ENTRY_BYTES))

    def topics(self):
        """The distinct topics as a frozenset of bytes; None if there are too many for a footer."""
        cdef uint32_t at = 0
        cdef uint16_t n
        if self.topics_overflow:
            return None
        found = []
        while at < self.topic_used:
            n = psk_get16(self.topic_bytes + at)
            found.append(PyBytes_FromStringAndSize(self.topic_bytes + at + PSK_TOPIC_ENTRY_BYTES, n))
            at += PSK_TOPIC_ENTRY_BYTES + n
        return frozenset(found)

    def watch_from(self):
        """From here on, record whether valid frames could be of one batch."""
        self.watch = self.w.offset
        self.watch_any = self.watch_mixed = False

    @property
    def watched(self):
        """None if no valid frame was seen since ``watch_from``, else (all of one batch?, seq + left)."""
        return (not self.watch_mixed, self.watch_sum) if self.watch_any else None

    def feed(self, bytes data not None):
        """Give the bytes from ``at`` on."""
        self.start = self.search.at if self.mode != MODE_FRAMES else self.w.offset
        self.window = data
        self.data = PyBytes_AS_STRING(data)
        self.length = <uint64_t>PyBytes_GET_SIZE(data)

    def shorten(self, uint64_t limit):
        """The file ends at ``limit``."""
        limit &= ~<uint64_t>7
        if limit < self.limit:
            self.limit = limit if limit > self.w.offset else self.w.offset
            self.search.limit = self.limit

    def summed(self, bint right):
        """The verdict on the long frame at ``at``."""
        if self.mode == MODE_SEARCH:
            self.search.sum = SUM_RIGHT if right else SUM_WRONG
        else:
            self.summed_at = self.w.offset
            self.sum = SUM_RIGHT if right else SUM_WRONG

    def long_frame(self):
        """Commit word, and ``back`` and ``batch_left`` that a copy of the frame at ``at`` gets."""
        cdef const char *p = self.data + (self.w.offset - self.start)
        if self.w.offset < self.start or self.w.offset - self.start + PSK_FRAME_HEADER_BYTES > self.length:
            raise Internal(f"no frame at {self.w.offset} was fed")
        left = 0 if self.flatten else psk_get32(p + PSK_FRAME_BATCH_LEFT)
        return psk_get32(p), (self.out_at - self.out_last if self.out_last else 0), left

    def long_copied(self):
        """The long frame at ``at`` was copied."""
        self.long_done = True

    def drain(self):
        """The bytes copied since the last call; they end at ``out_at``."""
        data = PyBytes_FromStringAndSize(self.out, <Py_ssize_t>self.out_used)
        self.out_used = 0
        return data

    def run(self):
        """Continue until something is needed or found; see the class."""
        cdef ScanStatus status
        with nogil:
            status = self.step()
            self.digest()
        return _SCAN_STATUS[status]

    cdef ScanStatus step(self) noexcept nogil:
        cdef Find found
        cdef const char *p
        if self.broken:
            self.broken = self.in_batch = False
        if self.state != FRAME_GOOD and self.mode == MODE_FRAMES:
            p = self.data + (self.w.offset - self.start)
            search_begin(
                &self.search, p, self.w.offset, self.limit, self.w.next_seq, self.w.last_append_ns,
                self.holes, self.budget)
            self.mode = MODE_SEARCH
        if self.mode == MODE_SEARCH:
            found = find_frame(&self.search, self.data, self.start, self.length)
            self.budget = self.search.budget
            if found == FIND_MORE:
                return SCAN_MORE
            if found == FIND_SUM:
                return SCAN_SUM
            if found == FIND_NONE:
                self.limit = self.w.offset
                self.in_batch = False
                self.state = FRAME_GOOD
                self.mode = MODE_FRAMES
                return SCAN_LOST
            self.mode = MODE_LAND
        if self.mode == MODE_LAND:
            if self.search.at < self.start or (
                self.search.at + PSK_FRAME_HEADER_BYTES > self.start + self.length
            ):
                return SCAN_MORE
            p = self.data + (self.search.at - self.start)
            self.w.offset = self.search.at
            self.w.last_frame = self.search.at - psk_get32(p + PSK_FRAME_BACK)
            self.w.next_seq = psk_get64(p + PSK_FRAME_SEQ)
            self.in_batch = False
            self.holed = True
            self.flatten = p[PSK_FRAME_KIND] != PSK_KIND_PRODUCER
            self.state = FRAME_GOOD
            self.mode = MODE_FRAMES
            return SCAN_FOUND
        return self.walk()

    cdef ScanStatus walk(self) noexcept nogil:
        """Take consecutive valid frames one by one."""
        cdef Walk *w = &self.w
        cdef uint64_t at, room, have, total = 0, seq, append_ns, commit
        cdef uint32_t left
        cdef const char *p
        cdef FrameState state
        cdef bint known
        while w.offset < self.limit and not w.rolled:
            at = w.offset
            room = self.limit - at
            have = self.start + self.length - at if self.start <= at < self.start + self.length else 0
            if have > room:
                have = room
            if have < room and have < PSK_FRAME_HEADER_BYTES:
                return SCAN_MORE
            p = self.data + (at - self.start)
            if have >= 4 * PSK_FRAME_HEADER_BYTES and self.take_four(p, at, have):
                continue
            known = self.summed_at == at and self.sum != SUM_UNKNOWN
            if room < PSK_FRAME_HEADER_BYTES:
                state = FRAME_ZERO if psk_get64(p) == 0 else FRAME_LENGTH
            else:
                commit = psk_get32(p)
                total = align8(PSK_FRAME_HEADER_BYTES + commit - 1)
                if commit and have < total <= room and not known:
                    return SCAN_SUM if self.start == at else SCAN_MORE
                if known:
                    state = FRAME_GOOD if self.sum == SUM_RIGHT else FRAME_CRC
                elif commit == 0:
                    state = FRAME_ZERO
                elif total > room:
                    state = FRAME_LENGTH
                else:
                    state = FRAME_GOOD
                if state == FRAME_GOOD:
                    state = frame_check(p, room, not known, &total)
            if state == FRAME_GOOD:
                seq = psk_get64(p + PSK_FRAME_SEQ)
                append_ns = psk_get64(p + PSK_FRAME_APPEND_NS)
                if (
                    seq < w.next_seq
                    or (seq > w.next_seq and not self.holes)
                    or append_ns < w.last_append_ns
                    or (p[PSK_FRAME_KIND] == PSK_KIND_ROLL and seq <= self.base_seq)
                    or psk_get32(p + PSK_FRAME_BACK) != (at - w.last_frame if w.last_frame else 0)
                ):
                    state = FRAME_ORDER
                elif p[PSK_FRAME_KIND] == PSK_KIND_PRODUCER:
                    state = self.check_producer(p)
            if state != FRAME_GOOD:
                self.state = state
                if state == FRAME_CRC:
                    self.budget -= total if total < self.budget else self.budget
                return SCAN_DAMAGED
            left = psk_get32(p + PSK_FRAME_BATCH_LEFT)
            if self.in_batch:
                if left != self.want_left:
                    self.broken = True
                    return SCAN_BATCH
            elif left:
                self.before = w[0]
                self.before_frames = self.frames
                self.out_batch = self.out_at
            if self.out != NULL and p[PSK_FRAME_KIND] != PSK_KIND_ROLL:
                if have < total and not self.long_done:
                    return SCAN_LONG
                if not self.long_done and self.out_used + total > self.out_room:
                    return SCAN_MORE
                self.copy(p, total, left)
            self.in_batch = left != 0
            self.want_left = left - 1
            if self.watch:
                if self.watch_any and (self.watch_ns != append_ns or self.watch_sum != seq + left):
                    self.watch_mixed = True
                self.watch_any = True
                self.watch_ns = append_ns
                self.watch_sum = seq + left
            if is_event(p) and self.filter_pages_at != NULL:
                self.check_key(p)
            if is_event(p) and not self.topics_overflow:
                self.take_topic(frame_topic(p), psk_get16(p + PSK_FRAME_TOPIC_LEN))
            if self.words_count + 4 > DIGEST_WORDS:
                self.digest()
            self.words[self.words_count] = psk_get64(p)
            self.words_count += 1
            walk_take(w, p, total, self.index)
            self.frames += 1
            if known:
                self.summed_at = 0
                self.sum = SUM_UNKNOWN
            if w.offset == self.mark:
                self.marked = w[0]
        return SCAN_END

    cdef inline void digest(self) noexcept nogil:
        """Add the frames taken to the digest."""
        self.w.digest = psk_crc(self.w.digest, self.words, 8 * <size_t>self.words_count)
        self.words_count = 0

    cdef inline bint take_four(self, const char *p, uint64_t at, uint64_t have) noexcept nogil:
        """Take four similar frames at once; False if they are not similar, or not valid.

        Most frames of most logs are similar, and this takes a third of the time.
        """
        cdef Walk *w = &self.w
        cdef uint64_t commit = psk_get32(p)
        cdef uint64_t total = align8(PSK_FRAME_HEADER_BYTES + commit - 1)
        cdef uint64_t lengths = psk_get64(p + PSK_FRAME_KEY_LEN)
        cdef uint64_t append_ns = w.last_append_ns, first_ns, ns
        cdef uint64_t back = at - w.last_frame
        cdef uint32_t left = 0
        cdef uint16_t key_len = <uint16_t>lengths
        cdef uint16_t topic_len = <uint16_t>(lengths >> PSK_TOPIC_LEN_SHIFT)
        cdef const char *q
        cdef const char *starts[4]
        cdef size_t sizes[4]
        cdef uint32_t crcs[4]
        cdef int i
        if (
            commit == 0 or 4 * total > have or commit > 1024
            or lengths >> PSK_KIND_SHIFT != PSK_KIND_DATA  # and no flag
            or self.out != NULL or self.watch or w.last_frame == 0
            or at + 3 * total >= w.block_offset + PSK_INDEX_STEP
            or (at < self.mark <= at + 4 * total)
            or self.topics_overflow or self.topic_used == 0
            or psk_get16(self.topic_bytes + self.topic_last) != topic_len
            or <uint16_t>(lengths >> PSK_HEADERS_LEN_SHIFT) + <uint64_t>topic_len + (0 if key_len == PSK_NO_KEY else key_len) >= commit
        ):
            return False
        first_ns = psk_get64(p + PSK_FRAME_APPEND_NS)
        if first_ns < w.event_max_ns or first_ns < w.event_seen_max_ns:
            return False
        for i in range(4):
            q = p + i * total
            ns = psk_get64(q + PSK_FRAME_APPEND_NS)
            left = psk_get32(q + PSK_FRAME_BATCH_LEFT)
            if (
                psk_get32(q) != commit
                or psk_get64(q + PSK_FRAME_KEY_LEN) != lengths
                or psk_get64(q + PSK_FRAME_SEQ) != w.next_seq + <uint64_t>i
                or psk_get32(q + PSK_FRAME_BACK) != back
                or left != (self.want_left - <uint32_t>i if self.in_batch else 0)
                or ns < append_ns
                or (topic_len and memcmp(
                    q + PSK_FRAME_HEADER_BYTES, self.topic_bytes + self.topic_last + PSK_TOPIC_ENTRY_BYTES, topic_len) != 0)
            ):
                return False
            append_ns = ns
            back = total
            starts[i] = q + PSK_FRAME_SEQ
            sizes[i] = PSK_FRAME_HEADER_BYTES - PSK_FRAME_SEQ + commit - 1
            crcs[i] = 0xFFFFFFFF
        if self.in_batch and self.want_left < 3:
            return False
        psk_crc_four(crcs, starts, sizes)
        for i in range(4):
            if psk_get32(starts[i] - PSK_FRAME_SEQ + PSK_FRAME_CRC) != <uint32_t>~crcs[i]:
                return False
        if self.words_count + 4 > DIGEST_WORDS:
            self.digest()
        for i in range(4):
            if self.filter_pages_at != NULL:
                self.check_key(starts[i] - PSK_FRAME_SEQ)
            self.words[self.words_count + i] = psk_get64(starts[i] - PSK_FRAME_SEQ)
        self.words_count += 4
        self.in_batch = left != 0
        self.want_left = left - 1
        self.frames += 4
        if w.count == 0:
            w.first_seq = w.next_seq
            w.first_append_ns = first_ns
        w.count += 4
        w.next_seq += 4
        w.last_seq = w.next_seq - 1
        w.event_max_ns = w.event_seen_max_ns = append_ns
        if first_ns < w.event_min_ns:
            w.event_min_ns = first_ns
        if first_ns < w.block_event_min_ns:
            w.block_event_min_ns = first_ns
        if append_ns > w.block_event_max_ns:
            w.block_event_max_ns = append_ns
        w.block_topics |= topic_bit(p + PSK_FRAME_HEADER_BYTES, topic_len)
        w.last_append_ns = append_ns
        w.last_frame = at + 3 * total
        w.offset = at + 4 * total
        return True

    cdef void check_key(self, const char *p) noexcept nogil:
        """Note the first event whose key the filter lacks."""
        cdef uint16_t n = 0
        cdef const char *key = frame_key(p, &n)
        cdef uint64_t hash
        if n == PSK_NO_KEY or self.unfiltered_seq:
            return
        if self.filter_pages:
            hash = psk_key_hash(key, n)
            if psk_filter_has(
                self.filter_pages_at + psk_filter_page(hash, self.filter_pages) * PSK_PAGE, self.filter_pages, hash
            ):
                return
        self.unfiltered_seq = psk_get64(p + PSK_FRAME_SEQ)

    cdef FrameState check_producer(self, const char *p) noexcept nogil:
        """A producer frame names the one before it, which may be lost if there was damage."""
        cdef uint64_t body = psk_get32(p) - 1
        if body != <uint64_t>psk_get16(p + PSK_FRAME_KEY_LEN) + PSK_PRODUCER_BYTES:
            return FRAME_LENGTH
        if not self.holed and (
            psk_get32(p + PSK_FRAME_HEADER_BYTES + body - PSK_PRODUCER_BYTES + PSK_PRODUCER_PREVIOUS)
            != self.w.producer_offset
        ):
            return FRAME_ORDER
        return FRAME_GOOD

    cdef void copy(self, const char *p, uint64_t total, uint32_t left) noexcept nogil:
        """Copy a valid frame to its new place."""
        cdef char *dst = self.out + self.out_used
        cdef uint64_t body = psk_get32(p) - 1
        if not self.long_done:
            psk_put64(dst + total - 8, 0)
            memcpy(dst, p, PSK_FRAME_HEADER_BYTES + body)
            psk_put32(dst + PSK_FRAME_BACK, <uint32_t>(self.out_at - self.out_last) if self.out_last else 0)
            if self.flatten:
                psk_put32(dst + PSK_FRAME_BATCH_LEFT, 0)
            if p[PSK_FRAME_KIND] == PSK_KIND_PRODUCER:
                psk_put32(
                    dst + PSK_FRAME_HEADER_BYTES + body - PSK_PRODUCER_BYTES + PSK_PRODUCER_PREVIOUS,
                    <uint32_t>self.out_producer)
                self.out_producer = self.out_at
            frame_sum(dst, body)
            self.out_used += total
        self.long_done = False
        self.out_last = self.out_at
        self.out_at += total
        if left == 0:
            self.flatten = False

    cdef void take_topic(self, const char *topic, uint16_t n) noexcept nogil:
        """Note a topic, once."""
        cdef uint32_t slot, at
        if self.topic_used and psk_get16(self.topic_bytes + self.topic_last) == n and (
            n == 0 or memcmp(self.topic_bytes + self.topic_last + PSK_TOPIC_ENTRY_BYTES, topic, n) == 0
        ):
            return
        slot = psk_crc(0xFFFFFFFF, topic, n) % TOPIC_TABLE
        while self.topic_slots[slot]:
            at = self.topic_slots[slot] - 1
            if psk_get16(self.topic_bytes + at) == n and (
                memcmp(self.topic_bytes + at + PSK_TOPIC_ENTRY_BYTES, topic, n) == 0
            ):
                self.topic_last = at
                return
            slot = (slot + 1) % TOPIC_TABLE
        if self.topic_used + PSK_TOPIC_ENTRY_BYTES + n > PSK_TOPICS_BYTES_MAX:
            self.topics_overflow = True
            return
        psk_put16(self.topic_bytes + self.topic_used, n)
        memcpy(self.topic_bytes + self.topic_used + PSK_TOPIC_ENTRY_BYTES, topic, n)
        self.topic_last = self.topic_used
        self.topic_slots[slot] = <uint16_t>(self.topic_used + 1)
        self.topic_used += PSK_TOPIC_ENTRY_BYTES + n
