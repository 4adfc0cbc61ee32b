# Rings: where an append goes, the windows that readers copy, and the walks that find both ends.
#
# A place in a ring is a position, which only grows: offset = data offset + position % room. Frames
# lie between `tail` and `head`, one after the other, and none goes past the end of a lap: what is
# left there is skipped, behind a wrap frame if one fits.

cdef inline uint64_t ring_offset(SegmentMap m, uint64_t position) noexcept nogil:
    return m.data_offset + position % m.ring_bytes


cdef inline uint64_t lap_room(SegmentMap m, uint64_t position) noexcept nogil:
    """Bytes from a position to the end of its lap."""
    return m.ring_bytes - position % m.ring_bytes


cdef inline uint64_t past_slack(SegmentMap m, uint64_t position) noexcept nogil:
    """The position itself, or, where no header fits any more, the start of the next lap."""
    cdef uint64_t room = lap_room(m, position)
    return position if room >= PSK_FRAME_HEADER_BYTES else position + room


cdef uint64_t ring_behind(SegmentMap m, uint64_t position, uint64_t head) noexcept nogil:
    """Where the frame behind the one at ``position`` stands; 0 if their headers disagree.

    No checksum is looked at: the next header's way back confirms this one's length.
    """
    cdef uint64_t room = lap_room(m, position), total, behind
    cdef uint32_t commit
    cdef const char *p
    if room < PSK_FRAME_HEADER_BYTES:
        return position + room
    p = m.base + ring_offset(m, position)
    commit = psk_get32(p)
    total = align8(PSK_FRAME_HEADER_BYTES + <uint64_t>commit - 1)
    if commit == 0 or total > room:
        return 0
    behind = position + (room if p[PSK_FRAME_KIND] == PSK_KIND_WRAP else total)
    if behind >= head:
        return head if behind == head else 0
    behind = past_slack(m, behind)
    if behind > head:
        return 0
    if behind < head and psk_get32(m.base + ring_offset(m, behind) + PSK_FRAME_BACK) != behind - position:
        return 0
    return behind


cdef inline bint is_seq(uint64_t seq) noexcept nogil:
    """Whether an event can have that number, and there is one behind it."""
    return 0 < seq <= U64_MAX >> 1


cdef inline bint is_ring_span(SegmentMap m, uint64_t tail, uint64_t head) noexcept nogil:
    """Whether the frames of a ring can lie between two positions, which anybody may have written.

    None comes so far that a sum of two overflows.
    """
    return (tail | head) % 8 == 0 and tail <= head and head - tail <= m.ring_bytes and head >> 62 == 0


cdef struct Place:
    # Where an append goes in a ring.
    uint64_t position   # of its first frame
    uint64_t end        # behind its last
    uint64_t tail       # what the tail has to be before anything is overwritten
    bint wraps          # it begins a lap


cdef enum Copies:
    # Settings and producers are appended again before what they are known by is overwritten.
    NO_COPY = 0
    COPY_HERE = 1
    COPY_ANEW = 2   # at the start of a lap, whatever is left of this one


cdef void ring_put(SegmentMap m, uint64_t nbytes, uint64_t head, Copies copies, Place *place) noexcept nogil:
    cdef uint64_t room = lap_room(m, head)
    place.wraps = nbytes > room or (copies == COPY_ANEW and room < m.ring_bytes)
    place.position = head + room if place.wraps else head
    place.end = place.position + nbytes


cdef Copies copy_due(const char *words, SegmentMap m, const Place *place) noexcept nogil:
    """Whether settings and producers have to be appended again before an append that goes there.

    A copy that is being written overwrites what is there, and whoever writes it may die. So the one
    before it has to be out of the way of the next one, wherever that goes: no append ends farther
    than RING_STATE_REACH from it. Right behind a copy the way is only too far if a lap ends between.
    """
    cdef uint64_t state = psk_get64(words + PSK_C_STATE_POS), last = psk_get64(words + PSK_C_LAST_FRAME)
    cdef uint64_t settings = psk_get64(words + PSK_C_SETTINGS_POS)
    cdef uint64_t producers = psk_get64(words + PSK_C_PRODUCER_POS)
    if state == 0 or place.end - state <= m.ring_bytes // 16 * PSK_RING_STATE_REACH:
        return NO_COPY
    if (state != settings and state != producers) or (last != settings and last != producers):
        return COPY_HERE
    return COPY_ANEW if place.wraps else NO_COPY


cdef int ring_place(
    char *words, SegmentMap m, int fd, uint64_t nbytes, uint64_t head, Copies copies, Place *place
) noexcept nogil:
    """Find room for ``nbytes`` bytes in one piece; nothing is stored yet."""
    cdef uint64_t tail = psk_get64(words + PSK_C_TAIL), need
    if not is_ring_span(m, tail, head):
        return TAIL
    ring_put(m, nbytes, head, copies, place)
    if copies == NO_COPY and copy_due(words, m, place) != NO_COPY:
        return COPY
    if place.end - tail > m.ring_bytes:
        need = place.end - m.ring_bytes
        while tail < need:
            tail = ring_behind(m, tail, head)
            if tail == 0:
                return TAIL
        if psk_get32(words + PSK_C_WHEN_FULL) != PSK_WHEN_FULL_DROP and ring_is_held(words, fd, tail):
            return FULL
        if psk_load64(words + PSK_C_GUARD) < tail < psk_load64(words + PSK_C_GUARD_END):
            return UNSURE
    place.tail = tail
    return OK


cdef bint ring_is_held(char *words, int fd, uint64_t tail) noexcept nogil:
    """Whether frames before ``tail`` are still wanted; readers that died are forgotten."""
    cdef char *hold
    cdef uint64_t position
    cdef int i
    cdef bint some = False
    for i in range(PSK_HOLDS_MAX):
        hold = words + PSK_C_HOLDS + i * PSK_HOLD_BYTES
        position = psk_load64(hold)
        if position == 0:
            continue
        if position < tail:
            if psk_ofd_held(fd, PSK_HOLD_BYTE + <uint64_t>i) != 0:
                return True
            psk_store64(hold, 0)
        else:
            some = True
    return not some and psk_get32(words + PSK_C_WHEN_FULL) == PSK_WHEN_FULL_ERROR


cdef void ring_claim(
    char *words, SegmentMap m, const Place *place, uint64_t head, Walk *w, uint64_t append_ns
) noexcept nogil:
    """Make the place ready to be written: move the tail first, then end the lap if it ends here."""
    cdef Parts p
    cdef char *at
    if place.tail != psk_get64(words + PSK_C_TAIL):
        psk_store64(words + PSK_C_TAIL, place.tail)
    psk_full_fence()  # whoever sees a byte of what follows sees this tail
    psk_fail(FP_TAIL)
    if place.wraps and place.position - head >= PSK_FRAME_HEADER_BYTES:
        memset(&p, 0, sizeof(p))
        p.kind = PSK_KIND_WRAP
        p.key_len = PSK_NO_KEY
        at = m.base + ring_offset(m, head)
        psk_put32(at, 0)
        frame_write(
            at, &p, NULL, 0, 0, w.next_seq, append_ns,
            <uint32_t>(head - w.last_frame) if w.last_frame else 0, 0)
        psk_store32(at, 1)
        w.last_frame = head
        psk_fail(FP_WRAP)


cdef class Window(SegmentMap):
    """Frames copied out of a ring, which nobody overwrites. They begin at offset 8."""

    cdef size_t room
    cdef RingMap ring
    cdef bint cut   # the last frame may be there in part: more of the lap follows

    def __init__(self):
        raise WrongType("a window comes from a ring")

    def __dealloc__(self):
        free(self.base)
        self.base = NULL

    def settings(self):
        """The settings that the ring began with, as JSON."""
        return self.ring.settings()

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
        w = Window.__new__(Window)
        w.base = <char *>malloc(nbytes + WINDOW_START)
        if w.base == NULL:
            raise MemoryError
        w.room = nbytes + WINDOW_START
        w.ring = m
        w.path = m.path
        w.coder = m.coder
        w.base_seq = 1
        w.generation = m.generation
    w.data_offset = WINDOW_START
    w.mapped = w.file_bytes = nbytes + WINDOW_START
    w.cut = False
    return w


cdef class RingMap(SegmentMap):
    """A ring's file in memory. The checked header fields are given by the ring modules."""

    def epoch(self):
        """What changes before anything else does in the file, except while control is live."""
        return psk_load64(self.base + PSK_RING_CONTROL_OFFSET + PSK_C_EPOCH)

    cdef object nonsense(self):
        """The error for control that cannot be right."""
        return Corrupt(
            f"{self.path}: its control contradicts itself; close the log in every process and open it again",
            path=str(self.path), offset=PSK_RING_CONTROL_OFFSET,
        )

    cdef uint64_t oldest(self, LogCore log, uint64_t *position) except? 0:
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

    cdef uint64_t first_valid(self, LogCore log, uint64_t at) except? 0:
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
        self, LogCore log, uint64_t *position, uint64_t most, Window spare, Fetched *why
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

    cdef Window window_up_to(self, LogCore log, uint64_t frame, uint64_t most, uint64_t *start):
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

    cdef uint64_t indexed(self, LogCore log, uint64_t seq) except? 0:
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

    cdef int pass_control_frames(self, LogCore log, uint64_t *position) except -1:
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

    cdef uint64_t position_of(self, LogCore log, uint64_t seq, uint64_t *position) except? 0:
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

    def walk_ring(self, uint64_t limit, *, resume, bint check=True):
        """Walk whole batches from a position up to ``limit``; (fields, state, position of the bad frame).

        ``resume`` has the position as ``offset``, and what else is known there. For whoever has the
        ring for itself, or does not rely on what it finds.
        """
        cdef Walk w
        cdef uint64_t bad_at = 0
        cdef FrameState state
        walk_start(&w, 0, 1, 0, 0, True)
        w = {**w, **resume}
        with nogil:
            state = self.walk_frames(limit, check, &w, &bad_at)
        return w, <int>state, (bad_at if state != FRAME_GOOD else 0)

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

    def runs(self):
        """Every run of valid frames in the file, for when nothing tells where the newest one is.

        Each is (offset behind the data offset, same of its end, first seq, seq behind the last,
        whether it reaches the end of the lap). Its first frames are left out up to the end of a
        batch, since the rest of that may be lost. Also offset, seq and append_ns of the wrap frame
        that ends the lap, if there is one: what lies behind it was left there laps ago.
        """
        cdef uint64_t at = 0, total = 0, budget = 4 * self.ring_bytes, next_at, floor, back
        cdef Walk w
        cdef uint64_t bad_at = 0
        cdef const char *base = self.base + self.data_offset
        cdef const char *p
        found = []
        wrap = None
        while at + PSK_FRAME_HEADER_BYTES <= self.ring_bytes:
            if frame_check(base + at, self.ring_bytes - at, True, &total) != FRAME_GOOD:
                next_at = self.next_valid(
                    self.data_offset + at, self.data_offset + self.ring_bytes, 0, U64_MAX, 0, True, &budget)
                if next_at == 0:
                    break
                floor = at
                at = next_at - self.data_offset
                # The oldest frame leads back to one that is overwritten, so the one behind it was found.
                back = psk_get32(base + at + PSK_FRAME_BACK)
                while back and back % 8 == 0 and back <= at - floor and (
                    frame_check(base + at - back, back, True, &total) == FRAME_GOOD and total == back
                ):
                    at -= back
                    back = psk_get32(base + at + PSK_FRAME_BACK)
                continue
            while psk_get32(base + at + PSK_FRAME_BATCH_LEFT) and at:
                at += total
                if frame_check(base + at, self.ring_bytes - at, True, &total) != FRAME_GOOD:
                    break
            else:
                if at and base[at + PSK_FRAME_KIND] != PSK_KIND_WRAP:
                    at += total
            walk_start(&w, self.ring_bytes + at, 0, 0, 0, True)
            with nogil:
                self.walk_frames(2 * self.ring_bytes, True, &w, &bad_at)
            if w.count:
                found.append((
                    at, w.offset - self.ring_bytes, w.first_seq, w.next_seq,
                    w.offset + PSK_FRAME_HEADER_BYTES > 2 * self.ring_bytes))
            if w.last_frame:
                p = self.base + ring_offset(self, w.last_frame)
                if p[PSK_FRAME_KIND] == PSK_KIND_WRAP:
                    wrap = (
                        w.last_frame - self.ring_bytes, psk_get64(p + PSK_FRAME_SEQ),
                        psk_get64(p + PSK_FRAME_APPEND_NS))
            if w.offset - self.ring_bytes > at:
                at = w.offset - self.ring_bytes
            else:
                at += 8
        return found, wrap

    def zero_from(self, uint64_t start, uint64_t stop):
        """Zero the bytes from one position to another that are not zero; whether there were any."""
        cdef uint64_t n, at
        cdef bint some = False
        if stop - start > self.ring_bytes or not self.writable:
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

        For whoever holds the write lock or has the ring for itself.
        """
        cdef uint64_t total = 0
        cdef const char *p
        if not tail <= position < head or position % 8 or lap_room(self, position) < PSK_FRAME_HEADER_BYTES:
            return None
        p = self.base + ring_offset(self, position)
        if frame_check(p, min(lap_room(self, position), head - position), True, &total) != FRAME_GOOD:
            return None
        event = make_event(self, p)
        value = event.value
        return <int>p[PSK_FRAME_KIND], event.seq, event.key, value

    def skip_damage(self, uint64_t tail, uint64_t need, uint64_t head):
        """Where the first valid frame at or behind ``need`` stands, going on from ``tail``; ``head`` if none.

        And how many bytes of damaged frames lie before it. Under the write lock.
        """
        cdef uint64_t at = tail, behind, next_at, stop, budget = 4 * self.ring_bytes, lost = 0
        if not is_ring_span(self, tail, head) or need > head:
            raise self.nonsense()
        with nogil:
            while at < head:
                behind = ring_behind(self, at, head)
                if at >= need and behind:
                    break
                if behind:
                    at = behind
                    continue
                stop = ring_offset(self, at) + min(lap_room(self, at), head - at)
                next_at = self.next_valid(ring_offset(self, at), stop, 0, U64_MAX, 0, True, &budget)
                if next_at == 0:
                    next_at = stop
                next_at -= ring_offset(self, at)
                lost += next_at
                at += next_at
        return min(at, head), lost


@cython.no_gc_clear  # it gives its slot back when it ends
cdef class Hold:
    """Has writers of a ring wait for a reader, as long as this lives.

    A word in control says where the reader stands. A lock on a byte of the file, by a descriptor of
    its own, says that it is alive; the kernel drops that with the process.
    """

    cdef object __weakref__
    cdef Control control
    cdef int fd, slot

    def __cinit__(self):
        self.fd = -1

    def __init__(self, Control control, int fd, int slot):
        """Take over ``fd``, which holds the lock of ``slot``."""
        if not psk_fd_register(fd):
            _os.close(fd)
            raise MemoryError
        self.fd = fd
        self.slot = slot
        self.control = control

    def __dealloc__(self):
        self.release()

    def close(self):
        """Hold nobody up any more."""
        self.release()

    @property
    def position(self):
        """Where the reader stands; 0 if it holds nobody up."""
        cdef Control control = self.control
        if self.fd < 0 or control.words == NULL or control.generation != psk_fork_generation:
            return 0
        return psk_load64(control.words + PSK_C_HOLDS + self.slot * PSK_HOLD_BYTES)

    def move_over(self, Hold other not None):
        """Be what ``other`` was, which is nothing any more: the ring is another file now."""
        self.release()
        self.control = other.control
        self.fd = other.fd
        self.slot = other.slot
        other.fd = -1

    cdef void move(self, uint64_t position) noexcept:
        """Tell writers where the reader stands now."""
        cdef Control control = self.control
        cdef char *at
        if control.words == NULL or control.generation != psk_fork_generation:
            return
        at = control.words + PSK_C_HOLDS + self.slot * PSK_HOLD_BYTES
        if psk_load64(at) == position:
            return
        psk_store64(at, position)
        psk_full_fence()
        if psk_load32(control.words + PSK_C_ROOM_WAITING):
            if psk_exchange32(control.words + PSK_C_ROOM_WAITING, 0):
                psk_add32(control.words + PSK_C_ROOM_NOTIFY, 1)
                psk_futex_wake(control.words + PSK_C_ROOM_NOTIFY, 0x7FFFFFFF)

    cdef void release(self) noexcept:
        if self.fd >= 0 and self.control.generation == psk_fork_generation:
            self.move(0)
            psk_fd_close(self.fd)
        self.fd = -1


def try_lock_byte(int fd, uint64_t byte):
    """Lock a byte of a file for the open file description of ``fd``; whether nobody else has."""
    cdef int failed = psk_ofd_lock(fd, byte)
    if failed == EAGAIN or failed == EACCES:
        return False
    if failed:
        raise OSError(failed, _os.strerror(failed))
    return True
