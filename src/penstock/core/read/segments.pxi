# Finds and reads events in a log of segments.

cdef enum:
    PAGES_BYTES = 4194304  # bytes of a segment that a scan has mapped at a time


@cython.final
cdef class SegmentFinder(Finder):
    """Segments are found through their log, so that one of these is enough for all logs."""

    cdef Event event_at(self, LogCore log, uint64_t want):
        cdef uint64_t limit, at, head, total = 0
        cdef SegmentMap m, candidate
        cdef uint64_t active_base
        cdef char *words
        cdef Py_ssize_t i
        cdef FrameState state
        head = log.head()
        if want < log.floor():
            return None
        log.drop_replaced()
        words = log.words_or_null()
        active_base = psk_load64(words + PSK_C_ACTIVE_BASE) if words != NULL else 0
        m = None
        for i in range(PyList_GET_SIZE(log._recent) - 1, -1, -1):
            candidate = <SegmentMap>PyList_GET_ITEM(log._recent, i)
            if candidate.base_seq <= want and (
                candidate.next_seq > want
                or (candidate.base_seq == active_base and candidate.number == position_unpack(head).number)
            ):
                m = candidate
                if i + 1 < PyList_GET_SIZE(log._recent):  # those not used for the longest time go first
                    del log._recent[i]
                    log._recent.append(m)
                break
        if m is None:
            m = log.calls.segment_for(log, want)
            if m is None:
                return None
            head = log.head()
        limit = m.published(head)
        at = m.seek(log, want, limit)
        if at < limit and is_event(m.base + at) and psk_get64(m.base + at + PSK_FRAME_SEQ) == want:
            state = frame_check(m.base + at, limit - at, True, &total)
            if state != FRAME_GOOD:
                raise m.damage(at, state, want - 1)
            return make_event(m, m.base + at)
        return None

    cdef Cursor cursor(self, Query query, Hold hold):
        cdef SegmentCursor cursor = SegmentCursor.__new__(SegmentCursor)
        cursor.edged = cursor.by_blocks = query.by_index and not query.reverse
        return cursor


@cython.final
cdef class SegmentCursor(Cursor):
    """A position in a log of segments, read through the maps of their files."""

    cdef bint by_blocks       # an edge is the end of an index block, which may be skipped
    cdef bint by_pages        # an edge is the end of the pages that were mapped in one go
    cdef bint crossing        # the size of the file was checked since the log continued elsewhere
    cdef bint rejoin          # frames published after `at` are lost; the next frame starts afresh
    cdef uint64_t budget      # bytes of checksums that the search for valid frames may still cost here
    cdef SegmentMap pages     # the map whose pages are held, from `pages_start` on
    cdef uint64_t pages_start, pages_end

    cdef int enter(self, SegmentMap m, uint64_t at, uint64_t limit) except -1:
        if m.blocks is not None and at and not self.query.reverse:
            limit = loaded_end(m, at, limit, self.query.skip)
        Cursor.enter(self, m, at, limit)
        self.crossing = self.rejoin = False
        self.budget = 4 * m.file_bytes
        return 0

    cdef bint locate(self) except -1:
        """Find the place of the first event to return; False if there is none (yet)."""
        cdef SegmentMap m
        cdef uint64_t limit, head, at
        cdef bint skip = self.query.skip
        self.log.drop_replaced()
        at = self.log.floor()
        if self.next < at:
            if not self.from_oldest:
                self.fall_behind(at)
            self.next = at
            if self.next >= self.stop:
                return True
        try:
            m = self.log.calls.segment_for(self.log, self.next)
        except Corrupt:
            m = self.log.calls.segment_after(self.next) if skip else None
            if m is None:
                raise
            self.pass_to(m.base_seq)
        if m is None:
            return False
        if m.base_seq > self.next:
            if not self.from_oldest:
                self.fall_behind(m.base_seq)
            self.next = m.base_seq
        self.from_oldest = False  # from here on whatever goes before it is read is a gap
        if self.log_ttl and not skip:
            m = self.pass_expired(m)
            if m is None:
                return True
        if m.next_seq and (m.next_seq < self.stop or not self.query.follows) and self.ruled_out(m):
            self.enter(m, m.data_offset, m.data_offset)
            if m.next_seq < self.stop:
                self.cross(m.next_seq)
            else:
                self.next = self.stop
            return True
        head = self.log.head()
        limit = m.published(head)
        at = m.seek(self.log, self.next, limit, skip)
        self.enter(m, at, limit)
        if skip and at < limit and is_event(m.base + at):
            if psk_get64(m.base + at + PSK_FRAME_SEQ) > self.next and not self.holes:
                self.pass_to(psk_get64(m.base + at + PSK_FRAME_SEQ))
        self.rejoin = at == limit
        if self.rejoin and skip and not self.query.follows and position_unpack(head).number == m.number:
            self.pass_to(self.stop)  # no event after it can be read
        return True

    cdef SegmentMap pass_expired(self, SegmentMap m):
        """Move on to the first block that may have an event younger than the log's ``ttl``; its segment.

        Times of appends never go back, so every event before that block has expired.
        """
        cdef uint64_t now = psk_now_ns(), since, count = 0, low = 0, high, middle, first
        cdef char *index
        if self.log_ttl >= now:
            return m
        since = now - self.log_ttl
        first = min(<uint64_t>self.log.calls.first_appended(since), self.stop)
        if first > m.base_seq and first > self.next:
            self.next = first
            m = self.segment_at(first)
            if m is None:
                return None
        index = m.index_for(self.log, &count)
        high = count
        while low < high:  # the first block that begins with a younger event
            middle = (low + high) >> 1
            if psk_get64(index + middle * PSK_INDEX_ENTRY_BYTES + PSK_INDEX_ENTRY_APPEND_NS) < since:
                low = middle + 1
            else:
                high = middle
        if low:  # the one before it may end with some
            first = psk_get64(index + (low - 1) * PSK_INDEX_ENTRY_BYTES + PSK_INDEX_ENTRY_SEQ)
            self.next = max(self.next, min(first, self.stop))
        return m

    cdef bint more(self) except -1:
        cdef uint64_t head = self.log.head()
        cdef uint64_t number = position_unpack(head).number, end
        if self.map is None:
            return self.locate()
        if self.map.blocks is not None and self.limit < self.map.published(head):
            return self.load_more(head)
        if number == self.map.number:
            end = self.map.published(head)
            if end > self.limit:
                self.limit = end
                return True
            return False
        if number < self.map.number:
            return False
        if not self.crossing:
            self.crossing = True
            end = self.map.grown()
            if end > self.limit:
                self.limit = end
                return True
        if self.query.skip:
            self.leave()
            return True
        raise Corrupt(
            f"{self.map.path}: ends at offset {self.at} without leading to the next segment, "
            f"after seq {self.next - 1}; run verify",
            path=str(self.map.path), offset=self.at, seq=self.next, last_seq=self.next - 1,
        )

    cdef bint load_more(self, uint64_t head) except -1:
        """At the end of what is loaded of an archived segment: load the next block that is asked for.

        A map that has become large is left to the events that point into it.
        """
        cdef SegmentMap fresh = self.map.blocks.fresh(self.map)
        cdef uint64_t end = self.map.published(head)
        if fresh is not self.map:
            self.map = fresh
            self.base = fresh.base
        if self.by_blocks:
            self.limit = end
            self.jump_blocks()
        self.limit = loaded_end(self.map, self.at, end, self.query.skip)
        return True

    cdef bint has_more(self, uint64_t head) except -1:
        if self.map.blocks is not None and self.at < self.map.published(head):
            return True
        return position_unpack(head).number > self.map.number or (
            position_unpack(head).number == self.map.number and position_unpack(head).offset > self.at)

    cdef int turn(self) except -1:
        """Cross into the segment that a roll frame leads to. A wrap frame has no meaning here."""
        cdef const char *p = self.base + self.at
        cdef uint64_t seq = psk_get64(p + PSK_FRAME_SEQ)
        if p[PSK_FRAME_KIND] != PSK_KIND_ROLL:
            self.at += align8(PSK_FRAME_HEADER_BYTES + <uint64_t>psk_get32(p) - 1)
        elif seq == self.next or (seq > self.next and self.holes):
            self.cross(seq)
        elif self.query.skip:
            self.pass_damage()
        else:
            raise self.damage(FRAME_ORDER)
        return 0

    cdef int cross(self, uint64_t base_seq) except -1:
        """Continue in the segment that begins with ``base_seq``."""
        cdef SegmentMap m
        if base_seq <= self.map.base_seq:
            raise self.damage(FRAME_ORDER)
        self.log.drop_replaced()
        self.next = base_seq
        m = self.segment_at(base_seq)
        if m is None:
            return 0
        if m.base_seq < base_seq:  # merged into the one before: find the place inside it
            return self.let_go_here()
        base_seq = m.base_seq
        while base_seq < self.stop and self.ruled_out(m):
            if m.next_seq <= base_seq:
                raise m.damage(m.data_offset, FRAME_ORDER, self.next - 1)
            self.next = m.next_seq
            m = self.segment_at(self.next)
            if m is None:
                return 0
            if m.base_seq < self.next:
                return self.let_go_here()
            base_seq = m.base_seq
        self.next = base_seq
        self.enter(m, m.data_offset, m.data_offset)
        return 0

    cdef bint ruled_out(self, SegmentMap m) except -1:
        """Whether a sealed segment, but for the last one of an archive, has no event that is asked for."""
        cdef Query query = self.query
        return query.filtered and position_unpack(self.log.head()).number != m.number and m.rules_out(
            query.topics, query.sieve.since_ns, query.sieve.until_ns, query.key)

    cdef SegmentMap segment_at(self, uint64_t base_seq):
        """The segment that begins with ``base_seq``, or the next one if that cannot be read.

        None if it is gone: `locate` finds the place of the first event that is still there.
        """
        cdef SegmentMap m
        cdef uint64_t first = self.log.floor()
        try:
            if base_seq >= first:
                return self.log.calls.segment_at(self.log, base_seq)
        except Gap as gap:
            first = gap.first_seq
        except Corrupt:
            m = self.log.calls.segment_after(base_seq) if self.query.skip else None
            if m is None:
                raise
            self.pass_to(m.base_seq)
            return m
        self.fall_behind(first)
        self.let_go_here()
        return None

    cdef int let_go_here(self) except -1:
        """Forget the place in the map, so that it is looked for again by `next`."""
        self.map = None
        self.base = NULL
        self.at = self.limit = 0
        return 0

    cdef int leave(self) except -1:
        """Continue in the next existing segment: the rest of this one is lost."""
        cdef SegmentMap m = self.log.calls.segment_after(max(self.map.base_seq, self.next - 1))
        if m is None:
            raise self.damage(FRAME_ORDER)
        self.pass_to(m.base_seq)
        self.enter(m, m.data_offset, m.data_offset)
        return 0

    cdef int pass_damage(self) except -1:
        cdef uint64_t at
        if self.rejoin:  # the frame here follows others that are lost
            self.rejoin = False
            if self.is_valid(self.at) and psk_get64(self.base + self.at + PSK_FRAME_SEQ) >= self.next:
                self.pass_to(psk_get64(self.base + self.at + PSK_FRAME_SEQ))
                return 0
        if self.map.blocks is not None:
            self.limit = self.map.published(self.log.head())
            need_range(self.map, self.at, self.limit, True)
        at = self.map.next_valid(
            self.at, self.limit, self.next, U64_MAX, self.last_ns, self.holes, &self.budget)
        if at:
            self.at = at
            self.pass_to(psk_get64(self.base + at + PSK_FRAME_SEQ))
        elif position_unpack(self.log.head()).number != self.map.number:
            self.leave()
        else:
            self.at = self.limit
            self.rejoin = True
            if not self.query.follows:
                self.pass_to(self.stop)
        return 0

    cdef bint last(self) except -1:
        cdef SegmentMap m
        cdef uint64_t limit, head
        self.log.drop_replaced()
        self.floor = self.log.floor()
        if self.next <= self.stop or self.next <= self.floor:
            return False
        try:
            m = self.log.calls.segment_for(self.log, self.next - 1)
        except Corrupt:
            if not self.query.skip:
                raise
            m = self.log.calls.segment_below(self.next - 1)
        if m is None:
            return False
        if self.ruled_out(m):
            self.enter(m, 0, m.grown())
            self.next = m.base_seq
            return True
        head = self.log.head()
        limit = m.published(head)
        self.enter(m, m.seek(self.log, self.next, limit, self.query.skip), limit)
        if self.at == limit and not self.query.skip:
            self.at = m.last_offset(self.log, limit)
        else:
            self.step_back()
        return True

    cdef int step_back(self) except -1:
        cdef uint64_t back, total = 0
        if not self.query.skip:
            self.at = self.map.step_back(self.at)
            return 0
        need(self.map, self.at, True)
        if self.is_valid(self.at):
            back = psk_get32(self.base + self.at + PSK_FRAME_BACK)
            if back == 0:
                self.at = 0
                return 0
            need(self.map, self.at - min(back, self.at), True)
            if back % 8 == 0 and back <= self.at - self.map.data_offset and (
                frame_check(self.base + self.at - back, back, True, &total) == FRAME_GOOD and total == back
            ):
                self.at -= back
                return 0
        return self.pass_damage_back()

    cdef int pass_damage_back(self) except -1:
        self.at = self.map.last_valid(self.log, self.at, self.next - 1, &self.budget)
        return 0

    cdef bint before(self) except -1:
        cdef SegmentMap m
        self.log.drop_replaced()
        while True:
            self.floor = self.log.floor()
            if self.next <= self.stop or self.next <= self.floor:
                return False
            try:
                m = self.log.calls.segment_before(self.map)
            except Corrupt:
                if not self.query.skip:
                    raise
                m = self.log.calls.segment_below(self.map.base_seq - 1)
            if m is None:
                return False
            self.enter(m, 0, m.grown())
            if not self.ruled_out(m):
                break
            self.next = min(self.next, m.base_seq)
        if self.query.skip:
            self.at = m.last_valid(self.log, self.limit, self.next, &self.budget)
        else:
            self.at = m.last_offset(self.log, self.limit)
        return True

    cdef uint64_t first_seq(self) except? 0:
        return self.log.calls.lowest_base(self.log)

    cdef int at_edge(self) except -1:
        return self.jump_blocks() if self.by_blocks else self.move_pages()

    cdef int jump_blocks(self) except -1:
        """Skip index blocks without an event of the requested times and topics."""
        cdef uint64_t count = 0, low = 0, high, middle, to = self.at
        cdef char *index = self.map.index_for(self.log, &count)
        cdef char *entry
        cdef uint32_t topics
        cdef const Sieve *f = &self.query.sieve
        cdef uint64_t end = self.limit
        if self.map.blocks is not None:
            end = self.map.published(self.log.head())
        high = count
        while low < high:  # the last block that begins at or before `at`
            middle = (low + high) >> 1
            if psk_get32(index + middle * PSK_INDEX_ENTRY_BYTES + PSK_INDEX_ENTRY_OFFSET) <= self.at:
                low = middle + 1
            else:
                high = middle
        self.edge = end
        while 0 < low < count:  # block low - 1 ends where block low begins
            entry = index + (low - 1) * PSK_INDEX_ENTRY_BYTES
            self.edge = psk_get32(entry + PSK_INDEX_ENTRY_BYTES + PSK_INDEX_ENTRY_OFFSET)
            if self.edge >= end:
                self.edge = end
                break
            topics = psk_get32(entry + PSK_INDEX_ENTRY_TOPICS)
            if (
                psk_get64(entry + PSK_INDEX_ENTRY_EVENT_MAX_NS) >= f.since_ns
                and psk_get64(entry + PSK_INDEX_ENTRY_EVENT_MIN_NS) <= f.until_ns
                and (topics == 0 or f.topic_bits == 0 or topics & f.topic_bits)
            ):
                break
            to = self.edge
            low += 1
            self.edge = end
        if to > self.at:
            if to % 8 or to < self.map.data_offset:
                raise self.map.damage(to, FRAME_LENGTH)
            self.at = to
            self.next = psk_get64(
                index + (low - 1) * PSK_INDEX_ENTRY_BYTES + PSK_INDEX_ENTRY_SEQ)
        if self.edge <= self.at:  # the index is not consistent
            self.edge = end
        self.limit = loaded_end(self.map, self.at, end, self.query.skip)
        return 0

    cdef int take_long(self) except -1:
        self.by_pages = not self.by_blocks
        self.edged = True
        self.edge = 0
        return 0

    cdef int move_pages(self) except -1:
        """Map the next pages, and release those that were read.

        A scan of any length then has a few megabytes of a log in its memory, and the kernel maps
        them in one go instead of by a fault every few pages.
        """
        cdef uint64_t stop
        self.rest(False)
        if self.map.blocks is not None:
            self.edge = U64_MAX
            return 0
        self.pages = self.map
        self.pages_start = self.at & ~<uint64_t>(PSK_PAGE - 1)
        self.pages_end = self.edge = self.pages_start + PAGES_BYTES
        stop = min(self.pages_end, (self.limit + PSK_PAGE - 1) & ~<uint64_t>(PSK_PAGE - 1))
        with nogil:
            psk_populate_read(self.base + self.pages_start, stop - self.pages_start)
        return 0

    cdef int rest(self, bint ended) except -1:
        """Release the pages that were read last; other readers may use other pages of the segment."""
        cdef SegmentMap m = self.pages
        if m is not None:
            m.let_go(self.pages_start, min(self.pages_end, m.mapped))
            if m is not self.map or ended:
                m.let_go(0, m.data_offset)  # its index
            self.pages = None
            self.edge = 0
        return 0

    cdef int outlook(self, Outlook *o) except -1:
        """The index gives the length of the next frames of this segment, to a block or two; those of
        later segments are assumed to be similar."""
        cdef uint64_t end, most = o.rows
        o.nbytes = self.map.readable_end() - self.at if self.map.blocks is not None else self.limit - self.at
        o.rows = o.here = min(most, o.nbytes // 48 + 64)
        if self.map.next_seq > self.next:
            o.rows = most
            o.here = min(most, self.map.next_seq - self.next)
        end = self.map.block_about(self.log, self.next + o.here)
        if end != U64_MAX:
            o.nbytes = min(o.nbytes, max(end + 4 * PSK_INDEX_STEP, self.at) - self.at)
        return 0

    cdef void let_go(self) noexcept:
        self.pages = None
        Cursor.let_go(self)
