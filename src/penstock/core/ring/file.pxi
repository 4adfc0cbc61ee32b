# RingFile: a ring as one handle has it, and the places of its events while writers overwrite it.

cdef enum Fetched:
    FETCHED = 0
    FETCHED_NONE = 1   # nothing is published there yet
    FETCHED_GONE = 2   # it is overwritten


@cython.final
cdef class RingFile(Finder):
    """A ring's file and the bounds of its frames.

    A resize moves the handle to another file, so each caller says which one it reads: ``m``, and finds
    nothing once that is not ``map``. The handle is an argument of each call, and not stored: it has
    this object.
    """

    cdef readonly RingMap map  # None while it is closed
    cdef readonly uint64_t static_tail, static_epoch  # without control: as `_static_head` of the handle

    cdef RingMap map_now(self, HandleCore log):
        """The file as it is now."""
        cdef RingMap m
        log.follow_fork()
        m = self.map
        if m is None:
            raise log.calls.closed_error(log)
        return m

    cdef int bounds(self, HandleCore log, RingMap m, uint64_t *tail, uint64_t *head) except -1:
        """The positions that its frames are between; both are 0 if it is another file now.

        The tail is loaded after the head, so it may be ahead of that, if writers are quick.
        """
        cdef char *words
        while True:
            head[0] = log.head()
            if self.map is not m:
                head[0] = tail[0] = 0
                return 0
            words = log.words_or_null()
            if words == NULL:
                tail[0] = self.static_tail
                return 0
            tail[0] = psk_load64(words + PSK_C_TAIL)
            if is_ring_span(m, tail[0], head[0]):
                return 0
            if tail[0] <= head[0] or tail[0] > psk_load64(words + PSK_C_HEAD):
                raise m.nonsense()

    cdef bint still_there(self, HandleCore log, RingMap m, uint64_t position) except -1:
        """After a copy: whether no writer had begun to overwrite the frames from ``position`` on."""
        cdef char *words
        psk_acquire_fence()
        if self.map is not m:
            return False
        words = log.words_or_null()
        if words != NULL:
            return psk_load64(words + PSK_C_TAIL) <= position
        if psk_load64(m.base + PSK_RING_CONTROL_OFFSET + PSK_C_EPOCH) == self.static_epoch:
            return True
        log.calls.look_again(log)
        return False

    cdef uint64_t oldest(self, HandleCore log, RingMap m, uint64_t *position) except? 0:
        """Seq of the oldest event, or of the next one if there is none; and the position of its frame.

        0 if the log has moved to another file.
        """
        cdef uint64_t tail = 0, head = 0, seq, at
        while True:
            if self.map is not m:
                position[0] = 0
                return 0
            self.bounds(log, m, &tail, &head)
            at = past_slack(m, tail)
            if at >= head:
                at = head
                seq = log.calls.next_seq(log)
                if self.map is m and log.head() != head:
                    continue  # that may be the seq after an event that came meanwhile
            else:
                seq = m.borne_out(at, head, log.calls.next_seq(log))
                if seq == 0 and self.still_there(log, m, tail):  # damaged: a reader finds out where
                    seq = self.first_valid(log, m, at)
                    if seq == 0:
                        continue
            if not self.still_there(log, m, tail):
                continue
            if seq == 0:
                raise m.nonsense()
            position[0] = at
            return seq

    cdef uint64_t first_valid(self, HandleCore log, RingMap m, uint64_t at) except? 0:
        """Seq of the first valid frame from a position on, or of the next event; 0 if it is gone."""
        cdef uint64_t budget = 4 * m.ring_bytes, found, total = 0
        cdef Fetched why = FETCHED
        cdef Window w
        while True:
            w = self.window(log, m, &at, m.ring_bytes, None, &why)
            if w is None:
                return log.calls.next_seq(log) if why == FETCHED_NONE else 0
            if frame_check(w.base + WINDOW_START, w.mapped - WINDOW_START, True, &total) == FRAME_GOOD:
                return psk_get64(w.base + WINDOW_START + PSK_FRAME_SEQ)
            w.mapped = w.file_bytes
            found = w.next_valid(WINDOW_START, w.mapped, 0, U64_MAX, 0, True, &budget)
            if found:
                return psk_get64(w.base + found + PSK_FRAME_SEQ)
            at += lap_room(m, at)

    cdef Window window(
        self, HandleCore log, RingMap m, uint64_t *position, uint64_t most, Window spare, Fetched *why
    ):
        """Copy the frames from a position on, ``most`` bytes or so; 0: the frame there alone.

        The position moves past the end of a lap. The copy is only used once the tail shows that no
        writer has begun to overwrite the source. The first frame is complete; the window of a damaged
        one reaches to the end of the lap or of the ring.
        """
        cdef uint64_t tail = 0, head = 0, total, room, nbytes = most
        cdef uint32_t commit
        cdef const char *p
        cdef Window w
        while True:
            if self.map is not m:
                why[0] = FETCHED_GONE
                return None
            self.bounds(log, m, &tail, &head)
            if position[0] < tail:
                why[0] = FETCHED_GONE
                return None
            position[0] = past_slack(m, position[0])
            if position[0] >= head:
                why[0] = FETCHED_NONE
                return None
            room = min(lap_room(m, position[0]), head - position[0])
            p = m.base + ring_offset(m, position[0])
            if nbytes == 0 and room >= PSK_FRAME_HEADER_BYTES:  # a hint: it may be overwritten just now
                commit = psk_get32(p)
                nbytes = align8(PSK_FRAME_HEADER_BYTES + <uint64_t>commit - 1) if commit else 0
            if nbytes < PSK_FRAME_HEADER_BYTES:
                nbytes = PSK_FRAME_HEADER_BYTES
            if nbytes > room:
                nbytes = room
            w = new_window(m, nbytes, spare)
            if nbytes > 4096:
                with nogil:
                    memcpy(w.base + WINDOW_START, p, nbytes)
            else:
                memcpy(w.base + WINDOW_START, p, nbytes)
            if not self.still_there(log, m, position[0]):
                continue
            p = w.base + WINDOW_START
            commit = psk_get32(p) if nbytes >= PSK_FRAME_HEADER_BYTES else 0
            total = align8(PSK_FRAME_HEADER_BYTES + <uint64_t>commit - 1)
            if commit == 1 and p[PSK_FRAME_KIND] == PSK_KIND_WRAP and (
                frame_check(p, nbytes, True, &total) == FRAME_GOOD
            ):
                position[0] += lap_room(m, position[0])
                nbytes = most
                continue
            if commit and total <= nbytes:
                if most == 0:
                    w.mapped = w.file_bytes = WINDOW_START + total
                w.cut = nbytes < room
            elif commit and total <= room:
                nbytes = total
                continue
            elif nbytes < room:
                nbytes = room
                continue
            why[0] = FETCHED
            return w

    cdef Window window_up_to(self, HandleCore log, RingMap m, uint64_t frame, uint64_t most, uint64_t *start):
        """Copy the frame at a position and what is before it in its lap; None if it is gone.

        ``start`` becomes the position of the window's first byte, which need not begin a frame.
        """
        cdef uint64_t tail = 0, head = 0, total, room, low, begin
        cdef uint32_t commit
        cdef Window w
        while True:
            if self.map is not m:
                return None
            self.bounds(log, m, &tail, &head)
            if frame < tail or frame >= head:
                return None
            room = min(lap_room(m, frame), head - frame)
            total = 0
            if room >= PSK_FRAME_HEADER_BYTES:
                commit = psk_get32(m.base + ring_offset(m, frame))
                total = align8(PSK_FRAME_HEADER_BYTES + <uint64_t>commit - 1) if commit else 0
            if total == 0 or total > room:
                total = min(room, <uint64_t>PSK_FRAME_HEADER_BYTES)  # damaged, or being overwritten
            begin = frame - frame % m.ring_bytes
            if begin < tail:
                begin = tail
            low = begin
            if most < frame + total - begin:
                low = frame + total - max(most, total)
            w = new_window(m, frame + total - low, None)
            with nogil:
                memcpy(w.base + WINDOW_START, m.base + ring_offset(m, low), frame + total - low)
            if not self.still_there(log, m, low):
                continue
            start[0] = low
            return w

    cdef uint64_t indexed(self, HandleCore log, RingMap m, uint64_t seq) except? 0:
        """The position of the event ``seq``, if the index has it; else 0."""
        cdef uint64_t tail = 0, head = 0, at
        cdef const char *p
        if not m.index_capacity:
            return 0
        at = psk_load64(m.base + m.index_offset + seq % m.index_capacity * PSK_RING_SLOT_BYTES)
        self.bounds(log, m, &tail, &head)
        if at % 8 or not tail <= at < head or lap_room(m, at) < PSK_FRAME_HEADER_BYTES:
            return 0
        p = m.base + ring_offset(m, at)
        if psk_get64(p + PSK_FRAME_SEQ) != seq or not is_event(p) or not self.still_there(log, m, at):
            return 0
        return at

    cdef int pass_control_frames(self, HandleCore log, RingMap m, uint64_t *position) except -1:
        """Move to the next frame that is an event, or damaged."""
        cdef uint64_t total = 0
        cdef Fetched why = FETCHED
        cdef Window w = None
        while True:
            w = self.window(log, m, position, 0, w, &why)
            if w is None or is_event(w.base + WINDOW_START):
                return 0
            if frame_check(w.base + WINDOW_START, w.mapped - WINDOW_START, True, &total) != FRAME_GOOD:
                return 0
            position[0] += total

    cdef uint64_t position_of(self, HandleCore log, RingMap m, uint64_t seq, uint64_t *position) except? 0:
        """The position of the first event whose seq is ``seq`` or above; and its seq.

        If there is none, the seq of the next event, and ``head``. If damaged frames may be the event,
        their place is returned.
        """
        cdef uint64_t first, at = 0, budget = 4 * m.ring_bytes, here, total = 0, found, want, bad
        cdef Fetched why = FETCHED
        cdef FrameState state
        cdef Window w, spare
        cdef const char *p
        position[0] = self.indexed(log, m, seq)
        if position[0]:
            return seq
        while True:
            first = self.oldest(log, m, position)
            if seq == first:
                self.pass_control_frames(log, m, position)
            if seq <= first or first == 0:
                return first
            spare = None
            want = 0  # the seq after the passed frames; 0: any
            bad = 0   # start of the damage since the last valid frame
            while True:
                w = self.window(log, m, position, PSK_RING_SCAN_BYTES, spare, &why)
                if w is None:
                    break
                spare = w
                at = WINDOW_START
                while at < w.mapped:
                    p = w.base + at
                    state = frame_check(p, w.mapped - at, False, &total)
                    if state == FRAME_LENGTH and at > WINDOW_START and (
                        w.cut or lap_room(m, position[0] + at - WINDOW_START) < PSK_FRAME_HEADER_BYTES
                    ):
                        break
                    if state == FRAME_GOOD and p[PSK_FRAME_KIND] == PSK_KIND_WRAP:
                        at += lap_room(m, position[0] + at - WINDOW_START)
                        break
                    here = psk_get64(p + PSK_FRAME_SEQ)
                    if state == FRAME_GOOD and ((here != want and not m.generation) or here > seq):
                        state = frame_check(p, w.mapped - at, True, &total)
                    if state != FRAME_GOOD:
                        if bad == 0:
                            bad = position[0] + at - WINDOW_START
                        want = 0
                        if w.cut:  # the next frame may be after the window
                            position[0] += at - WINDOW_START
                            at = WINDOW_START
                            w = spare = self.window(log, m, position, m.ring_bytes, None, &why)
                            if w is None:
                                break
                        at = w.next_valid(at, w.mapped, 0, U64_MAX, 0, True, &budget)
                        if at == 0:
                            at = lap_room(m, position[0]) + WINDOW_START
                            break
                        continue
                    if bad and here > seq:
                        position[0] = bad
                        return seq
                    if is_event(p) and here >= seq:
                        position[0] += at - WINDOW_START
                        return here
                    bad = 0
                    want = here + is_event(p)
                    at += total
                if w is None:
                    break
                position[0] += at - WINDOW_START
                PyErr_CheckSignals()
            if why == FETCHED_NONE or self.map is not m:
                first = log.calls.next_seq(log)
                if bad and seq < first and self.still_there(log, m, bad):
                    position[0] = bad
                    return seq
                return first

    cdef Event event_at(self, LogCore log, uint64_t want):
        cdef RingMap m = None
        cdef uint64_t position = 0, total = 0
        cdef Fetched why = FETCHED
        cdef FrameState state
        cdef Window w = None
        while w is None:
            if m is not None and m is self.map:
                return None
            m = self.map_now(log)
            if self.position_of(log, m, want, &position) == want:
                w = self.window(log, m, &position, 0, None, &why)
        state = frame_check(w.base + WINDOW_START, w.mapped - WINDOW_START, True, &total)
        if state != FRAME_GOOD:
            raise m.damage(ring_offset(m, position), state, want - 1)
        if psk_get64(w.base + WINDOW_START + PSK_FRAME_SEQ) != want:
            return None
        return make_event(w, w.base + WINDOW_START)

    cdef Cursor cursor(self, Query query, Hold hold):
        cdef RingCursor cursor = RingCursor.__new__(RingCursor)
        cursor.file = self
        cursor.hold = hold
        cursor.held = hold is not None
        cursor.window_bytes = PSK_RING_WINDOW_BYTES
        return cursor

    def take_still(
        self, HandleCore log not None, RingMap m not None, uint64_t tail, uint64_t head, uint64_t epoch
    ):
        """Switch to that file, without control; no thread sees one without the other."""
        m.sound()
        self.map = m
        self.static_tail = tail
        log._static_head = head
        self.static_epoch = epoch

    def forget(self):
        """The ring was closed, or is a parent's: have no file until there is another one."""
        self.map = None

    cdef uint64_t first_seq(self, HandleCore log) except? 0:
        cdef uint64_t position = 0, seq = 0
        while seq == 0:
            seq = self.oldest(log, self.map_now(log), &position)
        return seq

    def oldest_seq(self, HandleCore log not None):
        """Seq of the oldest event; the next seq if there is none."""
        return self.first_seq(log)

    def position_from(self, HandleCore log not None, uint64_t seq):
        """The position of the first event from ``seq`` on."""
        cdef uint64_t position = 0
        while self.position_of(log, self.map_now(log), seq, &position) == 0:
            pass
        return position

    def now(self, HandleCore log not None):
        """Seq of the oldest event, next seq, tail and head, all at one moment.

        As long as the tail does not move, no more can be published than fits after it. The next seq
        is stored after the head, so it is loaded before that.
        """
        cdef uint64_t position = 0, first, after, before, tail = 0, head = 0
        cdef RingMap m
        cdef char *words
        while True:
            m = self.map_now(log)
            words = log.words_or_null()
            before = psk_load64(words + PSK_C_TAIL) if words != NULL else self.static_tail
            after = psk_load64(words + PSK_C_NEXT_SEQ) if words != NULL else log.calls.next_seq(log)
            self.bounds(log, m, &tail, &head)
            first = self.oldest(log, m, &position)
            if first and tail and tail == before and self.still_there(log, m, tail):
                return first, after, tail, head

    def seq_at(self, HandleCore log not None, uint64_t position):
        """Seq of the event at or after a position; 1 if that is no longer known."""
        cdef RingMap m = self.map_now(log)
        cdef Fetched why = FETCHED
        cdef uint64_t total = 0
        cdef Window w = self.window(log, m, &position, 0, None, &why)
        if w is None:
            return log.calls.next_seq(log) if why == FETCHED_NONE else 1
        if frame_check(w.base + WINDOW_START, w.mapped - WINDOW_START, True, &total) != FRAME_GOOD:
            return 1
        return psk_get64(w.base + WINDOW_START + PSK_FRAME_SEQ)

    def frame_at(self, HandleCore log not None, uint64_t position):
        """Kind, seq, key and value of the frame at a position; None if it is gone."""
        cdef uint64_t at = position, total = 0
        cdef Fetched why = FETCHED
        cdef Window w
        cdef Event event
        cdef RingMap m = self.map
        if m is None or position == 0 or position % 8:
            return None
        w = self.window(log, m, &at, 0, None, &why)
        if w is None or at != position or (
            frame_check(w.base + WINDOW_START, w.mapped - WINDOW_START, True, &total) != FRAME_GOOD
        ):
            return None
        event = make_event(w, w.base + WINDOW_START)
        return <int>w.base[WINDOW_START + PSK_FRAME_KIND], event.seq, event.key, event.value
