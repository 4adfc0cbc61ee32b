# Rings: positions, and where an append goes.
#
# A place in a ring is a position, which only grows: offset = data offset + position % room. Frames
# are between `tail` and `head`, one after the other, and none crosses the end of a lap: the rest of
# the lap is skipped, after a wrap frame if one fits.

cdef inline uint64_t ring_offset(SegmentMap m, uint64_t position) noexcept nogil:
    return m.data_offset + position % m.ring_bytes


cdef inline uint64_t lap_room(SegmentMap m, uint64_t position) noexcept nogil:
    """Bytes from a position to the end of its lap."""
    return m.ring_bytes - position % m.ring_bytes


cdef inline uint64_t past_slack(SegmentMap m, uint64_t position) noexcept nogil:
    """The position itself or, if no header fits there, the start of the next lap."""
    cdef uint64_t room = lap_room(m, position)
    return position if room >= PSK_FRAME_HEADER_BYTES else position + room


cdef uint64_t ring_after(SegmentMap m, uint64_t position, uint64_t head) noexcept nogil:
    """The position of the frame after the one at ``position``; 0 if their headers disagree.

    No checksum is verified: the next header's ``back`` confirms this one's length.
    """
    cdef uint64_t room = lap_room(m, position), total, after
    cdef uint32_t commit
    cdef const char *p
    if room < PSK_FRAME_HEADER_BYTES:
        return position + room
    p = m.base + ring_offset(m, position)
    commit = psk_get32(p)
    total = align8(PSK_FRAME_HEADER_BYTES + <uint64_t>commit - 1)
    if commit == 0 or total > room:
        return 0
    after = position + (room if p[PSK_FRAME_KIND] == PSK_KIND_WRAP else total)
    if after >= head:
        return head if after == head else 0
    after = past_slack(m, after)
    if after > head:
        return 0
    if after < head and psk_get32(m.base + ring_offset(m, after) + PSK_FRAME_BACK) != after - position:
        return 0
    return after


cdef inline bint is_seq(uint64_t seq) noexcept nogil:
    """Whether an event can have that number, and one after it exists."""
    return 0 < seq <= U64_MAX >> 1


cdef inline bint is_ring_span(SegmentMap m, uint64_t tail, uint64_t head) noexcept nogil:
    """Whether the frames of a ring can be between two positions, which are not trusted.

    None is so large that a sum of two overflows.
    """
    return (tail | head) % 8 == 0 and tail <= head and head - tail <= m.ring_bytes and head >> 62 == 0


cdef struct RingPlace:
    # Where an append goes in a ring.
    uint64_t position   # of its first frame
    uint64_t end        # after its last
    uint64_t tail       # the tail must be here before anything is overwritten
    bint wraps          # it begins a lap


cdef enum Copies:
    # Settings and producers are appended again before their frames are overwritten.
    NO_COPY = 0
    COPY_HERE = 1
    COPY_ANEW = 2   # at the start of a lap, regardless of the rest of this one


cdef void ring_put(SegmentMap m, uint64_t nbytes, uint64_t head, Copies copies, RingPlace *place) noexcept nogil:
    cdef uint64_t room = lap_room(m, head)
    place.wraps = nbytes > room or (copies == COPY_ANEW and room < m.ring_bytes)
    place.position = head + room if place.wraps else head
    place.end = place.position + nbytes


cdef struct Rule:
    # What an append may do to make room.
    uint32_t when_full   # drop, block or error
    uint64_t reserve     # bytes that it must leave free


cdef Copies copy_due(const char *words, SegmentMap m, const RingPlace *place, uint64_t reserve) noexcept nogil:
    """Whether settings and producers must be appended again before an append at that place.

    A copy that is being written overwrites what is there, and its writer may die. So the previous copy
    must not be where the next one is written, wherever that is: no append ends farther than
    RING_STATE_REACH from it. Directly after a copy, which is one frame, or one of settings and one of
    producers, the distance is only too large if a lap ends between. An append into the ``reserve``
    never needs a copy.
    """
    cdef uint64_t state = psk_get64(words + PSK_C_STATE_POS), last = psk_get64(words + PSK_C_LAST_FRAME)
    cdef uint64_t settings = psk_get64(words + PSK_C_SETTINGS_POS)
    cdef uint64_t producers = psk_get64(words + PSK_C_PRODUCER_POS)
    if state == 0 or place.end + reserve - state <= m.ring_bytes // 16 * PSK_RING_STATE_REACH:
        return NO_COPY
    if last != state and (state != settings or last != producers):
        return COPY_HERE
    return COPY_ANEW if place.wraps else NO_COPY


cdef bint is_whole(SegmentMap m, uint64_t position, uint64_t head) noexcept nogil:
    """Whether the frame at a position has the right checksum; damaged frames that are dropped are reported."""
    cdef uint64_t total = 0, room = lap_room(m, position)
    return room < PSK_FRAME_HEADER_BYTES or (
        frame_check(m.base + ring_offset(m, position), min(room, head - position), True, &total) == FRAME_GOOD)


cdef uint64_t past_wraps(SegmentMap m, uint64_t position, uint64_t head) noexcept nogil:
    """The position, or that of the frame after the wrap frame there: dropping a wrap frame loses nothing."""
    cdef uint64_t at = past_slack(m, position), after
    if at < head and m.base[ring_offset(m, at) + PSK_FRAME_KIND] == PSK_KIND_WRAP:
        after = ring_after(m, at, head)
        return after if after else at
    return at if at < head else position


cdef int ring_place(
    char *words, SegmentMap m, int fd, uint64_t nbytes, uint64_t head, Copies copies, const Rule *rule,
    RingPlace *place,
) noexcept nogil:
    """Find room for ``nbytes`` contiguous bytes; nothing is stored yet."""
    cdef uint64_t tail = psk_get64(words + PSK_C_TAIL), start = tail, need, after
    if not is_ring_span(m, tail, head):
        return TAIL
    ring_put(m, nbytes, head, copies, place)
    if copies == NO_COPY and copy_due(words, m, place, rule.reserve) != NO_COPY:
        return COPY
    if place.end + rule.reserve - tail > m.ring_bytes:
        need = min(place.end + rule.reserve - m.ring_bytes, head)
        while tail < need:
            after = ring_after(m, tail, head)
            if after == 0 or not is_whole(m, tail, head):
                if rule.when_full == PSK_WHEN_FULL_DROP and place.end - tail <= m.ring_bytes:
                    break  # there is room, but less than it should leave free
                return TAIL
            tail = after
        if (
            rule.when_full != PSK_WHEN_FULL_DROP
            and tail > past_wraps(m, start, head)
            and ring_is_held(words, fd, tail, rule.when_full)
        ):
            return FULL
        if tail > start and psk_load64(words + PSK_C_GUARD) < tail < psk_load64(words + PSK_C_GUARD_END):
            return UNSURE
    place.tail = tail
    return OK


cdef void ring_claim(
    char *words, SegmentMap m, const RingPlace *place, uint64_t head, Walk *w, uint64_t append_ns
) noexcept nogil:
    """Prepare the place for writing: move the tail first, then end the lap if it ends here."""
    cdef Parts p
    cdef char *at
    if place.tail != psk_get64(words + PSK_C_TAIL):
        psk_store64(words + PSK_C_TAIL, place.tail)
    psk_full_fence()  # a reader that sees any later byte also sees this tail
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
