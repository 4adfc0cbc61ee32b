# Cursor: a position in a log. Below it is what differs between segments and rings for a reader.

cdef class Finder:
    """Finds a log's events: one object for each kind of log, or one for each handle."""

    def __reduce__(self):
        raise stays_here(self)

    cdef Event event_at(self, LogCore log, uint64_t want):
        """The event ``want``; None if the log has none."""
        raise only_inside(self)

    cdef Cursor cursor(self, Query query, Hold hold):
        """A new cursor without a place; with a ``hold``, writers wait for it."""
        raise only_inside(self)


cdef Finder NO_FINDER = Finder()  # of a handle that was never opened


cdef inline bint ends_map(const char *p) noexcept nogil:
    """Whether a frame ends a segment or a lap."""
    return p[PSK_FRAME_KIND] == PSK_KIND_ROLL or p[PSK_FRAME_KIND] == PSK_KIND_WRAP


cdef struct Outlook:
    # The expected size of a batch of rows, as far as it is known without reading the events.
    uint64_t rows    # in: how many are wanted at most; out: how many are likely
    uint64_t here    # how many of them come directly next
    uint64_t nbytes  # bytes of those


cdef class Cursor:
    """The next frame to read, in a map; what comes before and after it; and the expected seq.

    A frame may be read if it begins before ``edge`` and ends by ``limit``. A reader steps over frames
    itself. It calls these methods at an edge, at the limit, at a damaged frame, and at one that ends
    a segment or a lap. In reverse, ``at`` is the frame to return next, or 0.
    """

    # The fields that a reader needs for each event come first, in few cache lines.
    cdef const char *base
    cdef uint64_t at, limit
    cdef uint64_t next        # seq of the next expected event; in reverse: one above it
    cdef uint64_t stop        # first seq that is not returned; in reverse: the lowest one that is
    cdef uint64_t edge        # an offset where `at_edge` must be called first
    cdef uint64_t last_ns     # append_ns of the last frame returned from this map
    cdef LogCore log
    cdef SegmentMap map       # None: not placed yet
    cdef uint32_t mark_bytes  # an event with at least so many bytes of headers may have expired
    cdef bint plain           # forward, every event: most steps need no further check
    cdef bint check           # verify the checksum of each frame
    cdef bint holes           # seqs may be missing here without damage
    cdef bint held            # writers of a ring wait for it
    cdef bint edged           # it has edges
    cdef bint from_oldest     # nothing was read yet: if the first events are gone, begin with the oldest
    cdef bint to_end          # the same: if all requested events are gone, end where the log ends
    cdef uint64_t end         # the requested stop; `stop` may be below it for a while
    cdef uint64_t floor       # in reverse: events below it are gone
    cdef uint64_t log_ttl     # of every event of the log, in nanoseconds; 0: no limit
    cdef uint64_t skipped     # seqs passed over because they are damaged or gone
    cdef Query query

    def __reduce__(self):
        raise stays_here(self)

    cdef int enter(self, SegmentMap m, uint64_t at, uint64_t limit) except -1:
        """Move to an offset of a map."""
        self.map = m
        self.base = m.base
        self.at = at
        self.limit = limit
        self.edge = 0 if self.edged else U64_MAX
        self.holes = m.generation > 0
        self.last_ns = m.prior_append_ns
        return 0

    @cython.final
    cdef inline bint is_over(self, const char *p) noexcept nogil:
        """Whether the event at ``p`` has expired: most need no look at the clock."""
        return psk_get16(p + PSK_FRAME_HEADERS_LEN) >= self.mark_bytes and (
            frame_expired(p, self.log_ttl, psk_now_ns()))

    @cython.final
    cdef inline bint is_older(self, const char *p) noexcept nogil:
        """Whether the event at ``p`` is older than the log's ``ttl``."""
        cdef uint64_t now = psk_now_ns(), born = psk_get64(p + PSK_FRAME_APPEND_NS)
        return born <= now and now - born >= self.log_ttl

    @cython.final
    cdef int learn_ttl(self) except -1:
        """Take over the ``ttl`` that the log has now."""
        self.log_ttl = self.log.ttl_ns()
        self.mark_bytes = 0 if self.log_ttl else TTL_MARK_BYTES
        return 0

    @cython.final
    cdef inline Event quick_step(self):
        """The next event, if it is at the expected place and valid; else None, and the reader handles it."""
        cdef const char *p = self.base + self.at
        cdef uint64_t total = 0, seq
        if not self.plain or self.at >= self.limit or self.next >= self.stop or self.log._closed:
            return None
        if frame_check(p, self.limit - self.at, self.check, &total) != FRAME_GOOD or not is_event(p):
            return None
        seq = psk_get64(p + PSK_FRAME_SEQ)
        if (seq != self.next and not (self.holes and self.next < seq < self.stop)) or self.is_over(p):
            return None
        self.at += total
        self.next = seq + 1
        self.last_ns = psk_get64(p + PSK_FRAME_APPEND_NS)
        return make_event(self.map, p)

    # The methods that SegmentCursor and RingCursor implement.

    cdef bint more(self) except -1:
        """Forward, at the limit: find what comes next, even the first event; False if nothing is there yet."""
        raise only_inside(self)

    cdef bint has_more(self, uint64_t head) except -1:
        """Whether something was published after the limit."""
        raise only_inside(self)

    cdef int at_edge(self) except -1:
        """At the edge: set the next one, after ``at``, which may move past events that cannot match."""
        self.edge = U64_MAX
        return 0

    cdef int turn(self) except -1:
        """Continue where the roll or wrap frame at ``at`` leads."""
        raise only_inside(self)

    cdef bint is_cut(self, FrameState state) noexcept:
        """Whether the frame at ``at`` is not damaged, but continues after the limit, which is set to it."""
        return False

    cdef int pass_damage(self) except -1:
        """With skip, at a damaged frame: continue at the next valid one."""
        raise only_inside(self)

    cdef bint last(self) except -1:
        """In reverse: move to the last event to return; False if there is none."""
        raise only_inside(self)

    cdef int step_back(self) except -1:
        """In reverse: move to the frame before the one at ``at``; 0 if it is the map's first."""
        raise only_inside(self)

    cdef int pass_damage_back(self) except -1:
        """In reverse, with skip, at a damaged frame: move to the last valid one before it, or to 0."""
        raise only_inside(self)

    cdef bint before(self) except -1:
        """In reverse, at 0: move to the last frame of the map before this one; False if there is none."""
        return False

    cdef uint64_t first_seq(self) except? 0:
        """Seq of the oldest event in the log."""
        raise only_inside(self)

    cdef Event event(self, const char *p):
        """The event at ``p``."""
        return make_event(self.map, p)

    cdef object damage(self, FrameState state):
        """The error for the frame at ``at``."""
        return self.damage_in(self.map, self.at, state)

    cdef void tell(self) noexcept:
        """Tell writers that wait for it how far it is."""

    cdef int take_long(self) except -1:
        """Note that rows are read through it, thousands at a time."""
        return 0

    cdef int outlook(self, Outlook *o) except -1:
        """Guess how many events come next, and how long they are."""
        raise only_inside(self)

    cdef int rest(self, bint ended) except -1:
        """Release memory: nothing is read for a while, or any more."""
        return 0

    cdef void release(self) noexcept:
        """Stop holding events."""
        self.held = False

    cdef void let_go(self) noexcept:
        """Release all maps; no call is in progress."""
        self.plain = False
        self.at = self.limit = 0
        self.base = NULL
        self.map = None

    # Counts or errors for events that are damaged or gone.

    @cython.final
    cdef int pass_to(self, uint64_t seq) except -1:
        """Count the seqs up to ``seq`` as skipped, and expect that one next."""
        if seq > self.next:
            self.skipped += (seq if seq < self.stop else max(self.stop, self.next)) - self.next
            self.next = seq
        return 0

    @cython.final
    cdef int pass_down(self, uint64_t seq) except -1:
        """In reverse: count the seqs down to ``seq`` as skipped."""
        if seq < self.stop:
            seq = self.stop
        if seq < self.next:
            self.skipped += self.next - seq
            self.next = seq
        return 0

    @cython.final
    cdef int fall_behind(self, uint64_t first) except -1:
        """The events before ``first`` are gone: pass over them, or raise."""
        if not self.query.pass_gaps:
            raise self.gap(self.next, first)
        self.pass_to(first)
        return 0

    @cython.final
    cdef int check_start(self) except -1:
        """In reverse, at the oldest event: the first requested ones may be gone."""
        cdef uint64_t first
        if self.from_oldest or self.next <= self.stop:
            return 0
        first = self.first_seq()
        if first <= self.stop:
            return 0
        if not self.query.pass_gaps:
            raise self.gap(self.stop, first)
        self.skipped += min(self.next, first) - self.stop
        self.next = self.stop
        return 0

    @cython.final
    cdef object gap(self, uint64_t seq, uint64_t first):
        return Gap(
            f"{self.log.path}: the events from seq {seq} on are gone; "
            f"the first one still there is {first}: go on there (a consumer by seek({first})), or pass over "
            "what is gone with on_gap='skip'",
            first_seq=first,
        )

    @cython.final
    cdef object damage_in(self, SegmentMap m, uint64_t offset, FrameState state):
        if self.query.reverse:
            return m.damage(offset, state, None, self.next - 1)
        return m.damage(offset, state, self.next - 1)

    @cython.final
    cdef bint is_valid(self, uint64_t at) noexcept:
        cdef uint64_t total = 0
        return at < self.limit and (
            frame_check(self.base + at, self.limit - at, True, &total) == FRAME_GOOD)
