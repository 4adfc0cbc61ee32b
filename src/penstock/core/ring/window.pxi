# Reading a ring that writers go over: windows of it, copied and checked; and what is where.

cdef class Window(SegmentMap):
    """Frames copied out of a ring, which nobody overwrites. They begin at offset 8."""

    cdef size_t room
    cdef RingMap ring
    cdef bint cut   # the last frame may be there in part: more of the lap follows

    def __cinit__(self, inside=None, *args, **kwargs):
        if inside is not INSIDE:
            raise only_inside(self)

    def __dealloc__(self):
        free(self.base)
        self.base = NULL

    cdef char *index_for(self, LogCore log, uint64_t *count) except NULL:
        count[0] = 0
        return self.base


cdef enum:
    WINDOW_START = 8


cdef enum Fetched:
    FETCHED = 0
    FETCHED_NONE = 1   # nothing is published there yet
    FETCHED_GONE = 2   # it is overwritten


cdef Window new_window(RingMap m, size_t nbytes, Window spare):
    """A window with room for ``nbytes``: ``spare``, which nobody else holds, if it is large enough."""
    cdef Window w = spare
    if w is None or w.room < nbytes + WINDOW_START:
        w = Window.__new__(Window, INSIDE)
        w.base = <char *>malloc(nbytes + WINDOW_START)
        if w.base == NULL:
            raise MemoryError
        w.room = nbytes + WINDOW_START
        w.ring = m
        w.path = m.path
        w.settings = m.settings
        w.coder = m.coder
        w.base_seq = 1
        w.generation = m.generation
    w.data_offset = WINDOW_START
    w.mapped = w.file_bytes = nbytes + WINDOW_START
    w.cut = False
    return w


cdef class RingMap(RingWalk):
    """A ring's file in memory. The checked header fields are given by the ring modules."""

    def epoch(self):
        """What changes before anything else does in the file, except while control is live."""
        if not self.has(0, PSK_RING_CONTROL_OFFSET + PSK_CONTROL_BYTES):
            raise Internal(f"{self.path}: has no control")
        return psk_load64(self.base + PSK_RING_CONTROL_OFFSET + PSK_C_EPOCH)

    cdef uint64_t oldest(self, RingCore log, uint64_t *position) except? 0:
        """Seq of the oldest event, or of the next one if there is none; and where its frame stands.

        0 if the log has gone over to another file.
        """
        cdef uint64_t tail = 0, head = 0, seq, at
        while True:
            if log._ring is not self:
                position[0] = 0
                return 0
            log.ring_bounds(self, &tail, &head)
            at = past_slack(self, tail)
            if at >= head:
                at = head
                seq = log._next_seq()
                if log._ring is self and log.head() != head:
                    continue  # that may be the seq behind an event that came meanwhile
            else:
                seq = self.borne_out(at, head, log._next_seq())
                if seq == 0 and log.still_there(self, tail):  # damaged: let a reader find out where
                    seq = self.first_valid(log, at)
                    if seq == 0:
                        continue
            if not log.still_there(self, tail):
                continue
            if seq == 0:
                raise self.nonsense()
            position[0] = at
            return seq

    cdef uint64_t borne_out(self, uint64_t at, uint64_t head, uint64_t next_seq) noexcept:
        """Seq of the frame at a position, if what follows it says the same; else 0."""
        cdef const char *p = self.base + ring_offset(self, at)
        cdef uint64_t seq = psk_get64(p + PSK_FRAME_SEQ), behind = ring_behind(self, at, head), follows
        if behind == 0:
            return 0
        follows = next_seq
        if behind < head:
            follows = psk_get64(self.base + ring_offset(self, behind) + PSK_FRAME_SEQ)
        if seq + is_event(p) == follows or (self.generation and seq + is_event(p) < follows <= next_seq):
            return seq
        return 0

    cdef uint64_t first_valid(self, RingCore log, uint64_t at) except? 0:
        """Seq of the first valid frame from a position on, or of the next event; 0 if it is gone."""
        cdef uint64_t budget = 4 * self.ring_bytes, found, total = 0
        cdef Fetched why = FETCHED
        cdef Window w
        while True:
            w = self.window(log, &at, self.ring_bytes, None, &why)
            if w is None:
                return log._next_seq() if why == FETCHED_NONE else 0
            if frame_check(w.base + WINDOW_START, w.mapped - WINDOW_START, True, &total) == FRAME_GOOD:
                return psk_get64(w.base + WINDOW_START + PSK_FRAME_SEQ)
            w.mapped = w.file_bytes
            found = w.next_valid(WINDOW_START, w.mapped, 0, U64_MAX, 0, True, &budget)
            if found:
                return psk_get64(w.base + found + PSK_FRAME_SEQ)
            at += lap_room(self, at)

    cdef Window window(
        self, RingCore log, uint64_t *position, uint64_t most, Window spare, Fetched *why
    ):
        """Copy the frames from a position on, ``most`` bytes or so; 0: the frame there alone.

        The position moves past the end of a lap. What was copied is only looked at once the tail
        says that nobody has begun to overwrite it. The first frame is whole; the window of one that
        is damaged goes on to where the lap or the ring ends.
        """
        cdef uint64_t tail = 0, head = 0, total, room, nbytes = most
        cdef uint32_t commit
        cdef const char *p
        cdef Window w
        while True:
            if log._ring is not self:
                why[0] = FETCHED_GONE
                return None
            log.ring_bounds(self, &tail, &head)
            if position[0] < tail:
                why[0] = FETCHED_GONE
                return None
            position[0] = past_slack(self, position[0])
            if position[0] >= head:
                why[0] = FETCHED_NONE
                return None
            room = min(lap_room(self, position[0]), head - position[0])
            if nbytes < PSK_FRAME_HEADER_BYTES:
                nbytes = PSK_FRAME_HEADER_BYTES
            if nbytes > room:
                nbytes = room
            w = new_window(self, nbytes, spare)
            p = self.base + ring_offset(self, position[0])
            if nbytes > 4096:
                with nogil:
                    memcpy(w.base + WINDOW_START, p, nbytes)
            else:
                memcpy(w.base + WINDOW_START, p, nbytes)
            if not log.still_there(self, position[0]):
                continue
            p = w.base + WINDOW_START
            commit = psk_get32(p) if nbytes >= PSK_FRAME_HEADER_BYTES else 0
            total = align8(PSK_FRAME_HEADER_BYTES + <uint64_t>commit - 1)
            if commit == 1 and p[PSK_FRAME_KIND] == PSK_KIND_WRAP and (
                frame_check(p, nbytes, True, &total) == FRAME_GOOD
            ):
                position[0] += lap_room(self, position[0])
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

    cdef Window window_up_to(self, RingCore log, uint64_t frame, uint64_t most, uint64_t *start):
        """Copy the frame at a position and what lies before it in its lap; None if it is gone.

        ``start`` becomes the position of the window's first byte, which need not begin a frame.
        """
        cdef uint64_t tail = 0, head = 0, total, room, low, begin
        cdef uint32_t commit
        cdef Window w
        while True:
            if log._ring is not self:
                return None
            log.ring_bounds(self, &tail, &head)
            if frame < tail or frame >= head:
                return None
            room = min(lap_room(self, frame), head - frame)
            total = 0
            if room >= PSK_FRAME_HEADER_BYTES:
                commit = psk_get32(self.base + ring_offset(self, frame))
                total = align8(PSK_FRAME_HEADER_BYTES + <uint64_t>commit - 1) if commit else 0
            if total == 0 or total > room:
                total = min(room, <uint64_t>PSK_FRAME_HEADER_BYTES)  # damaged, or just being overwritten
            begin = frame - frame % self.ring_bytes
            if begin < tail:
                begin = tail
            low = begin
            if most < frame + total - begin:
                low = frame + total - max(most, total)
            w = new_window(self, frame + total - low, None)
            with nogil:
                memcpy(w.base + WINDOW_START, self.base + ring_offset(self, low), frame + total - low)
            if not log.still_there(self, low):
                continue
            start[0] = low
            return w

    cdef uint64_t indexed(self, RingCore log, uint64_t seq) except? 0:
        """Where the event ``seq`` stands, if the index knows; else 0."""
        cdef uint64_t tail = 0, head = 0, at
        cdef const char *p
        if not self.index_capacity:
            return 0
        at = psk_load64(self.base + self.index_offset + seq % self.index_capacity * PSK_RING_SLOT_BYTES)
        log.ring_bounds(self, &tail, &head)
        if at % 8 or not tail <= at < head or lap_room(self, at) < PSK_FRAME_HEADER_BYTES:
            return 0
        p = self.base + ring_offset(self, at)
        if psk_get64(p + PSK_FRAME_SEQ) != seq or not is_event(p) or not log.still_there(self, at):
            return 0
        return at

    cdef int pass_control_frames(self, RingCore log, uint64_t *position) except -1:
        """Go on to the next frame that is an event, or damaged."""
        cdef uint64_t total = 0
        cdef Fetched why = FETCHED
        cdef Window w = None
        while True:
            w = self.window(log, position, 0, w, &why)
            if w is None or is_event(w.base + WINDOW_START):
                return 0
            if frame_check(w.base + WINDOW_START, w.mapped - WINDOW_START, True, &total) != FRAME_GOOD:
                return 0
            position[0] += total

    cdef uint64_t position_of(self, RingCore log, uint64_t seq, uint64_t *position) except? 0:
        """Where the first event stands whose seq is ``seq`` or above; and its seq.

        That of the next event to come, and ``head``, if there is none. Where frames are damaged that
        may be the event, their place counts as its own.
        """
        cdef uint64_t first, at = 0, budget = 4 * self.ring_bytes, here, total = 0, found, want, bad
        cdef Fetched why = FETCHED
        cdef FrameState state
        cdef Window w, spare
        cdef const char *p
        position[0] = self.indexed(log, seq)
        if position[0]:
            return seq
        while True:
            first = self.oldest(log, position)
            if seq == first:
                self.pass_control_frames(log, position)
            if seq <= first or first == 0:
                return first
            spare = None
            want = 0  # the seq that follows what was passed; 0: any
            bad = 0   # where the damage begins that was passed since the last valid frame
            while True:
                w = self.window(log, position, PSK_RING_SCAN_BYTES, spare, &why)
                if w is None:
                    break
                spare = w
                at = WINDOW_START
                while at < w.mapped:
                    p = w.base + at
                    state = frame_check(p, w.mapped - at, False, &total)
                    if state == FRAME_LENGTH and at > WINDOW_START and (
                        w.cut or lap_room(self, position[0] + at - WINDOW_START) < PSK_FRAME_HEADER_BYTES
                    ):
                        break
                    if state == FRAME_GOOD and p[PSK_FRAME_KIND] == PSK_KIND_WRAP:
                        at += lap_room(self, position[0] + at - WINDOW_START)
                        break
                    here = psk_get64(p + PSK_FRAME_SEQ)
                    if state == FRAME_GOOD and ((here != want and not self.generation) or here > seq):
                        state = frame_check(p, w.mapped - at, True, &total)
                    if state != FRAME_GOOD:
                        if bad == 0:
                            bad = position[0] + at - WINDOW_START
                        want = 0
                        if w.cut:  # what comes next may lie behind the window
                            position[0] += at - WINDOW_START
                            at = WINDOW_START
                            w = spare = self.window(log, position, self.ring_bytes, None, &why)
                            if w is None:
                                break
                        at = w.next_valid(at, w.mapped, 0, U64_MAX, 0, True, &budget)
                        if at == 0:
                            at = lap_room(self, position[0]) + WINDOW_START
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
            if why == FETCHED_NONE or log._ring is not self:
                first = log._next_seq()
                if bad and seq < first and log.still_there(self, bad):
                    position[0] = bad
                    return seq
                return first
