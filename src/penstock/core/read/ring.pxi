# Reads events of a ring while writers overwrite it.

@cython.final
cdef class RingCursor(Cursor):
    """A position in a ring. ``map`` is a window: a copy of frames, used once it is certain that none of
    them was being overwritten."""

    cdef RingFile file
    cdef RingMap ring         # the ring of `place`
    cdef uint64_t place       # position of the start of the window
    cdef uint64_t window_bytes
    cdef Hold hold            # makes writers wait for it

    cdef inline uint64_t position(self) noexcept:
        """The position of the frame at ``at`` in the ring."""
        return self.place + self.at - WINDOW_START

    cdef void stand_before(self, uint64_t position) noexcept:
        """Move to a position without a window."""
        self.place = position
        self.at = self.limit = WINDOW_START

    cdef bint is_replaced(self) noexcept:
        """Whether the ring has another size, and is another file, now."""
        return self.ring is not self.file.map

    cdef bint find_place(self) except -1:
        """Find the position of the next event; False if there is none yet."""
        cdef uint64_t found = 0, position = 0, seq
        cdef RingMap ring
        while found == 0:
            if self.next >= self.log.calls.next_seq(self.log):
                return False
            ring = self.file.map_now(self.log)
            seq = self.next
            if self.query.follows and self.from_oldest and seq <= self.first_seq():
                seq = 1  # wherever the ring begins, even with damage
            found = self.file.position_of(self.log, ring, seq, &position)
        if found > self.next:
            if self.from_oldest:
                self.begin_at(found)
            elif not ring.generation or self.next < self.first_seq():
                self.fall_behind(found)
            self.next = found
        if self.held and self.hold.control is not self.log._control:  # in a child
            self.hold = self.log.calls.take_hold(self.log, self.next)
        self.ring = ring
        self.stand_before(position)
        return True

    cdef int begin_at(self, uint64_t first) except -1:
        """Nothing was read yet, and the log begins at ``first`` now: begin there too."""
        self.next = first
        if self.to_end and first >= self.stop:
            self.stop = self.end = self.log.calls.next_seq(self.log)
        return 0

    cdef bint more(self) except -1:
        """Copy the next frames; False if no more are published."""
        cdef uint64_t position, first
        cdef Window w
        cdef Fetched why = FETCHED
        if self.map is None and not self.find_place():
            return False
        position = self.position()
        while True:
            w = self.file.window(self.log, self.ring, &position, self.window_bytes, None, &why)
            if w is not None:
                self.enter(w, WINDOW_START, w.mapped)
                self.place = position
                self.from_oldest = False
                return True
            if self.is_replaced():
                self.map = None
                if not self.find_place():
                    return False
                position = self.place
                continue
            if why == FETCHED_NONE:
                self.stand_before(position)
                if self.map is None:
                    self.map = self.ring
                return False
            first = self.file.oldest(self.log, self.ring, &position)
            if first > self.next:
                if self.from_oldest:
                    self.begin_at(first)
                else:
                    self.fall_behind(first)
                if self.next >= self.stop:
                    self.stand_before(position)
                    self.map = self.ring
                    return False

    cdef bint has_more(self, uint64_t head) except -1:
        return self.is_replaced() or head > self.position()

    cdef int turn(self) except -1:
        """At a wrap frame: move to the start of the next lap. A roll frame has no meaning here."""
        cdef const char *p = self.base + self.at
        if p[PSK_FRAME_KIND] == PSK_KIND_WRAP:
            self.at += lap_room(self.ring, self.position())
            self.limit = self.at
        else:
            self.at += align8(PSK_FRAME_HEADER_BYTES + <uint64_t>psk_get32(p) - 1)
        return 0

    cdef bint is_cut(self, FrameState state) noexcept:
        """Whether the window ends here, in a frame that the next one has, or with the lap."""
        if state != FRAME_LENGTH or self.at == WINDOW_START:
            return False
        if not (<Window>self.map).cut and lap_room(self.ring, self.position()) >= PSK_FRAME_HEADER_BYTES:
            return False
        self.limit = self.at
        return True

    cdef int pass_damage(self) except -1:
        cdef uint64_t position = self.position(), at, tail = 0, head = 0
        cdef uint64_t budget = 4 * self.ring.ring_bytes
        cdef Fetched why = FETCHED
        cdef Window w
        if self.is_valid(self.at) and psk_get64(self.base + self.at + PSK_FRAME_SEQ) > self.next:
            self.pass_to(psk_get64(self.base + self.at + PSK_FRAME_SEQ))  # the events before it are lost
            return 0
        w = self.file.window(self.log, self.ring, &position, self.ring.ring_bytes, None, &why)
        if w is None:
            self.at = self.limit  # overwritten meanwhile: the next window shows it
            return 0
        self.enter(w, WINDOW_START, w.mapped)
        self.place = position
        at = w.next_valid(
            WINDOW_START, self.limit, self.next, U64_MAX, self.last_ns, self.holes, &budget)
        if at:
            self.at = at
            self.pass_to(psk_get64(self.base + at + PSK_FRAME_SEQ))
            return 0
        self.file.bounds(self.log, self.ring, &tail, &head)
        if self.is_replaced():
            self.at = self.limit
            return 0
        self.stand_before(min(head, position + lap_room(self.ring, position)))
        if self.place == head and not self.query.follows:
            self.pass_to(self.stop)
        return 0

    cdef bint last(self) except -1:
        cdef uint64_t position = 0, found = 0
        while found == 0:
            if self.next <= self.stop or self.next <= 1:
                return False
            self.ring = self.file.map_now(self.log)
            self.holes = self.ring.generation > 0
            found = self.file.position_of(self.log, self.ring, self.next - 1, &position)
        if found >= self.next:  # gone, damaged, or in a hole: use the event before it, if any
            return self.find_before(position)
        return self.window_before(position)

    cdef bint window_before(self, uint64_t frame) except -1:
        """Copy the frame at a position into the window, with what is before it."""
        cdef uint64_t start = 0
        cdef Window w = self.file.window_up_to(self.log, self.ring, frame, self.window_bytes, &start)
        self.at = 0
        if w is None:
            return self.is_replaced() and self.last()
        self.enter(w, WINDOW_START + frame - start, w.mapped)
        self.place = start
        return True

    cdef bint find_before(self, uint64_t position) except -1:
        """Find the last frame before a position; False if there is none."""
        cdef uint64_t total = 0, end
        cdef const char *p
        self.place = position
        self.at = WINDOW_START
        self.pass_damage_back()
        if not self.at:
            return False
        if self.query.skip or self.is_replaced():
            return True
        p = self.base + self.at
        frame_check(p, self.limit - self.at, False, &total)
        end = self.position()
        end += lap_room(self.ring, end) if p[PSK_FRAME_KIND] == PSK_KIND_WRAP else total
        if past_slack(self.ring, end) < past_slack(self.ring, position):
            self.at += total
            raise self.damage(FRAME_LENGTH)
        return True

    cdef int step_back(self) except -1:
        cdef uint64_t back = psk_get32(self.base + self.at + PSK_FRAME_BACK), total = 0
        cdef uint64_t position = self.position()
        if back == 0:
            self.at = 0
            return 0
        if back % 8 == 0 and back <= self.at - WINDOW_START:
            if frame_check(self.base + self.at - back, back, False, &total) == FRAME_GOOD and total == back:
                self.at -= back
                return 0
        elif back % 8 == 0 and back <= position:
            self.window_before(position - back)
            return 0
        if not self.query.skip:
            raise self.damage(FRAME_LENGTH)
        return self.pass_damage_back()

    cdef int pass_damage_back(self) except -1:
        cdef uint64_t end = self.position(), tail = 0, head = 0, start
        cdef uint64_t budget
        cdef Window w
        self.at = 0
        while True:
            if self.is_replaced():
                self.last()
                return 0
            self.file.bounds(self.log, self.ring, &tail, &head)
            if end <= tail:
                return 0
            start = max(tail, (end - 1) - (end - 1) % self.ring.ring_bytes)
            w = new_window(self.ring, end - start, None)
            with nogil:
                memcpy(w.base + WINDOW_START, self.ring.base + ring_offset(self.ring, start), end - start)
            if not self.file.still_there(self.log, self.ring, start):
                continue
            budget = 4 * self.ring.ring_bytes
            self.enter(w, 0, w.mapped)
            self.place = start
            self.at = w.last_valid(self.log, w.mapped, self.next - 1, &budget)
            if self.at:
                return 0
            end = start

    cdef uint64_t first_seq(self) except? 0:
        return self.file.first_seq(self.log)

    cdef Event event(self, const char *p):
        """The event at ``p``; a separate copy if it would keep a large window in memory."""
        cdef Window w
        cdef uint64_t total
        if not self.query.filtered:
            return make_event(self.map, p)
        total = align8(PSK_FRAME_HEADER_BYTES + <uint64_t>psk_get32(p) - 1)
        w = new_window(self.ring, total, None)
        memcpy(w.base + WINDOW_START, p, total)
        return make_event(w, w.base + WINDOW_START)

    cdef object damage(self, FrameState state):
        return self.damage_in(self.ring, ring_offset(self.ring, self.position()), state)

    cdef void tell(self) noexcept:
        if self.map is not None and not self.is_replaced():
            self.hold.move(self.position())

    cdef int take_long(self) except -1:
        self.window_bytes = PSK_RING_SCAN_BYTES
        return 0

    cdef int outlook(self, Outlook *o) except -1:
        o.nbytes = max(self.limit - self.at, self.log.head() - self.place)
        o.rows = o.here = min(o.rows, o.nbytes // 48 + 64)
        return 0

    cdef void release(self) noexcept:
        self.held = False
        if self.hold is not None:
            self.hold.release()

    cdef void let_go(self) noexcept:
        self.ring = None
        self.hold = None
        Cursor.let_go(self)
