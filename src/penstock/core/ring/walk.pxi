# Walks over the frames of a ring without writers: they find and repair both ends.

cdef class RingWalk(SegmentMap):
    """The part of a ring's map for the exclusive owner of the ring, or the holder of the write lock."""

    cdef int sound(self) except -1:
        """Refuse a map whose ring or index is not inside the file."""
        if self.ring_bytes < PSK_FRAME_HEADER_BYTES or self.ring_bytes % 8 or self.index_capacity >> 48 or (
            not self.has(self.data_offset, self.data_offset + self.ring_bytes)
            or not self.has(self.index_offset, self.index_offset + self.index_capacity * PSK_RING_SLOT_BYTES)
        ):
            raise Internal(f"{self.path}: is not mapped as a ring")
        return 0

    cdef object nonsense(self):
        """The error for impossible control."""
        return Corrupt(
            f"{self.path}: its control is not consistent; close the log in every process and open it again",
            path=str(self.path), offset=PSK_RING_CONTROL_OFFSET,
        )

    def walk_ring(self, uint64_t limit, *, Walked resume not None, bint check=True):
        """Walk complete batches from a position up to ``limit``; (`Walked`, state, position of the bad frame).

        ``resume`` has the position as ``offset``, and the other fields there. For the exclusive
        owner of the ring, or callers that do not rely on the result.
        """
        cdef Walk w
        cdef uint64_t bad_at = 0
        cdef FrameState state
        self.sound()
        resume.give(&w)
        if w.offset % 8:
            raise Internal(f"{self.path}: cannot walk from {w.offset}")
        with nogil:
            state = self.walk_frames(limit, check, &w, &bad_at)
        return walked(&w), <int>state, (bad_at if state != FRAME_GOOD else 0)

    cdef FrameState walk_frames(self, uint64_t limit, bint check, Walk *w, uint64_t *bad_at) noexcept nogil:
        cdef uint64_t at, seq, want_seq, previous, total = 0, room
        cdef uint32_t left, want_left
        cdef FrameState state
        cdef const char *p
        cdef bint holes = self.generation > 0
        while True:
            at = past_slack(self, w.offset)
            if at >= limit:
                return FRAME_GOOD
            w.offset = at
            want_seq = w.next_seq
            previous = w.last_frame
            want_left = 0
            while True:
                p = self.base + ring_offset(self, at)
                room = min(lap_room(self, at), limit - at)
                state = frame_check(p, room, check, &total)
                if state == FRAME_GOOD:
                    seq = psk_get64(p + PSK_FRAME_SEQ)
                    left = psk_get32(p + PSK_FRAME_BATCH_LEFT)
                    if (
                        not is_seq(seq)
                        or (want_seq and (seq < want_seq or (seq > want_seq and not holes)))
                        or (at != w.offset and (left != want_left or p[PSK_FRAME_KIND] == PSK_KIND_WRAP))
                        or (previous and psk_get32(p + PSK_FRAME_BACK) != at - previous)
                        or psk_get64(p + PSK_FRAME_APPEND_NS) < w.last_append_ns
                        or p[PSK_FRAME_KIND] == PSK_KIND_ROLL
                    ):
                        state = FRAME_ORDER
                if state != FRAME_GOOD:
                    bad_at[0] = at
                    return state
                previous = at
                at += total
                want_seq = seq + is_event(p)
                if left == 0:
                    break
                want_left = left - 1
                if at >= limit or lap_room(self, at) == self.ring_bytes:
                    bad_at[0] = at
                    return FRAME_ZERO
            while w.offset < at:
                p = self.base + ring_offset(self, w.offset)
                total = align8(PSK_FRAME_HEADER_BYTES + <uint64_t>(psk_get32(p) - 1))
                if p[PSK_FRAME_KIND] == PSK_KIND_WRAP:
                    total = lap_room(self, w.offset)
                    at = w.offset + total
                if self.index_capacity and self.writable and is_event(p):
                    psk_put64(
                        self.base + self.index_offset
                        + psk_get64(p + PSK_FRAME_SEQ) % self.index_capacity * PSK_RING_SLOT_BYTES,
                        w.offset)
                walk_accept(w, p, total, NULL)
            if w.offset > limit:
                w.offset = limit

    def walk_back(self, uint64_t frame, uint64_t floor, uint64_t end):
        """From the frame at a position, go back as long as frames are valid and not below ``floor``.

        ``end`` is where that frame ends at most. Returns the position of the oldest valid frame and
        its seq; 0 and 0 if the first one is not valid.
        """
        cdef uint64_t at = frame, back, before, total = 0, room, found = 0, seq = 0, want_seq = 0, ns = U64_MAX
        cdef const char *p
        cdef bint holes = self.generation > 0, fits
        self.sound()
        with nogil:
            while at >= floor and at % 8 == 0 and lap_room(self, at) >= PSK_FRAME_HEADER_BYTES:
                p = self.base + ring_offset(self, at)
                room = lap_room(self, at)
                if found == 0:
                    room = min(room, end - at)
                if frame_check(p, room, True, &total) != FRAME_GOOD:
                    break
                seq = psk_get64(p + PSK_FRAME_SEQ)
                if not is_seq(seq):
                    break
                if found:
                    fits = at + total == found or (
                        (p[PSK_FRAME_KIND] == PSK_KIND_WRAP or past_slack(self, at + total) != at + total)
                        and at + lap_room(self, at) == found
                    )
                    if (
                        not fits
                        or seq + is_event(p) > want_seq
                        or (seq + is_event(p) < want_seq and not holes)
                        or psk_get64(p + PSK_FRAME_APPEND_NS) > ns
                    ):
                        break
                found = at
                want_seq = seq
                ns = psk_get64(p + PSK_FRAME_APPEND_NS)
                back = psk_get32(p + PSK_FRAME_BACK)
                if back == 0 or back > at:
                    break
                at -= back
        return found, want_seq

    cdef uint64_t any_frame(self, uint64_t at, uint64_t *budget) noexcept nogil:
        """The first valid frame from ``at`` on; ring_bytes if there is none, or the budget is spent.

        Both are relative to the data offset. It need not follow another one, or be followed: the oldest
        frame leads back to overwritten bytes, and the one after a last one is of an old lap.
        """
        cdef const char *p
        cdef uint64_t total = 0
        while at + PSK_FRAME_HEADER_BYTES <= self.ring_bytes:
            p = self.base + self.data_offset + at
            if (
                frame_check(p, self.ring_bytes - at, False, &total) == FRAME_GOOD
                and is_seq(psk_get64(p + PSK_FRAME_SEQ))
                and psk_get32(p + PSK_FRAME_BATCH_LEFT) <= (self.ring_bytes - at) // PSK_FRAME_HEADER_BYTES
            ):
                if total > budget[0]:
                    break
                budget[0] -= total
                if frame_check(p, self.ring_bytes - at, True, &total) == FRAME_GOOD:
                    return at
            at += 8
        return self.ring_bytes

    cdef uint64_t past_batch(self, uint64_t at) noexcept nogil:
        """The end of the batch of the valid frame at ``at``, or of its valid part."""
        cdef const char *p = self.base + self.data_offset + at
        cdef uint64_t total = 0
        cdef uint32_t left = 1
        while left and frame_check(p, self.ring_bytes - at, True, &total) == FRAME_GOOD:
            left = psk_get32(p + PSK_FRAME_BATCH_LEFT)
            at += total
            p += total
        return at

    def runs(self):
        """Every run of valid frames in the file, if the place of the newest one is unknown.

        Each is (offset relative to the data offset, same of its end, seq of its first frame, seq after
        its last, whether it reaches the end of the lap). If one begins with an event that does not
        start a lap, that batch is left out: the first frame of an append becomes valid last, and this
        one may never have. Also offset, seq and append_ns of the wrap frame that ends the lap, if there
        is one: bytes after it are from earlier laps.
        """
        cdef uint64_t at = 0, budget = 4 * self.ring_bytes, room = self.ring_bytes, bad_at
        cdef Walk w
        cdef const char *base = self.base + self.data_offset
        cdef const char *p
        self.sound()
        found = []
        wrap = None
        while True:
            with nogil:
                at = self.any_frame(at, &budget)
                if at and at < room and is_event(base + at):
                    at = self.past_batch(at)
                walk_start(&w, room + at, 0, 0, 0, True)
                bad_at = w.offset
                if at < room:
                    self.walk_frames(2 * room, True, &w, &bad_at)
            if at >= room:
                return found, wrap
            if w.last_frame:
                found.append((
                    at, w.offset - room, psk_get64(base + at + PSK_FRAME_SEQ), w.next_seq,
                    w.offset + PSK_FRAME_HEADER_BYTES > 2 * room))
                p = self.base + ring_offset(self, w.last_frame)
                if p[PSK_FRAME_KIND] == PSK_KIND_WRAP:
                    wrap = w.last_frame - room, psk_get64(p + PSK_FRAME_SEQ), psk_get64(p + PSK_FRAME_APPEND_NS)
                at = w.offset - room
            else:  # an incomplete batch, or no frame
                at = max(bad_at - room, at + 8)

    def zero_from(self, uint64_t start, uint64_t stop):
        """Zero the bytes from one position to another; returns whether any were not zero."""
        cdef uint64_t n, at
        cdef bint some = False
        self.sound()
        if start > stop or stop - start > self.ring_bytes or not self.writable:
            raise Internal(f"{self.path}: cannot zero from {start} to {stop}")
        with nogil:
            while start < stop:
                n = min(lap_room(self, start), stop - start, <uint64_t>PSK_PAGE)
                at = ring_offset(self, start)
                if self.base[at] or memcmp(self.base + at, self.base + at + 1, n - 1):
                    memset(self.base + at, 0, n)
                    some = True
                    psk_fail(FP_ZERO)
                start += n
        return bool(some)

    def frame_at(self, uint64_t position, uint64_t tail, uint64_t head):
        """Kind, seq, key and value of the valid frame at a position; None if there is none.

        For the holder of the write lock or the exclusive owner of the ring.
        """
        cdef uint64_t total = 0
        cdef const char *p
        self.sound()
        if not tail <= position < head or position % 8 or lap_room(self, position) < PSK_FRAME_HEADER_BYTES:
            return None
        p = self.base + ring_offset(self, position)
        if frame_check(p, min(lap_room(self, position), head - position), True, &total) != FRAME_GOOD:
            return None
        event = make_event(self, p)
        value = event.value
        return <int>p[PSK_FRAME_KIND], event.seq, event.key, value

    def skip_damage(self, uint64_t tail, uint64_t need, uint64_t head):
        """The first valid frame at or after ``need``, searched from ``tail``; ``head`` if there is none.

        Also the bytes of damaged frames before it. Under the write lock.
        """
        cdef uint64_t at = tail, after, next_at, stop, budget = 4 * self.ring_bytes, lost = 0
        self.sound()
        if not is_ring_span(self, tail, head) or need > head:
            raise self.nonsense()
        with nogil:
            while at < head:
                after = ring_after(self, at, head)
                if at >= need and after:
                    break
                if after:
                    if not is_whole(self, at, head):
                        lost += after - at
                    at = after
                    continue
                stop = ring_offset(self, at) + min(lap_room(self, at), head - at)
                next_at = self.next_valid(ring_offset(self, at), stop, 0, U64_MAX, 0, True, &budget)
                if next_at == 0:
                    next_at = stop
                next_at -= ring_offset(self, at)
                lost += next_at
                at += next_at
        return min(at, head), lost
