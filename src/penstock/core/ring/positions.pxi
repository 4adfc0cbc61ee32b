# Rings: positions, and where an append goes.
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


cdef struct Rule:
    # What an append may do to make room.
    uint32_t when_full   # drop, block or error
    uint64_t reserve     # bytes that it has to leave free


cdef Copies copy_due(const char *words, SegmentMap m, const Place *place, uint64_t reserve) noexcept nogil:
    """Whether settings and producers have to be appended again before an append that goes there.

    A copy that is being written overwrites what is there, and whoever writes it may die. So the one
    before it has to be out of the way of the next one, wherever that goes: no append ends farther
    than RING_STATE_REACH from it. Right behind a copy, which is one frame, or one of settings and
    one of producers, the way is only too far if a lap ends between. What goes into the ``reserve``
    behind an append never needs a copy.
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
    """Whether the frame at a position has the right checksum; what is dropped damaged is reported."""
    cdef uint64_t total = 0, room = lap_room(m, position)
    return room < PSK_FRAME_HEADER_BYTES or (
        frame_check(m.base + ring_offset(m, position), min(room, head - position), True, &total) == FRAME_GOOD)


cdef uint64_t past_wraps(SegmentMap m, uint64_t position, uint64_t head) noexcept nogil:
    """The position, or that of the frame behind the wrap frame there: to drop that costs nobody anything."""
    cdef uint64_t at = past_slack(m, position), behind
    if at < head and m.base[ring_offset(m, at) + PSK_FRAME_KIND] == PSK_KIND_WRAP:
        behind = ring_behind(m, at, head)
        return behind if behind else at
    return at if at < head else position


cdef int ring_place(
    char *words, SegmentMap m, int fd, uint64_t nbytes, uint64_t head, Copies copies, const Rule *rule,
    Place *place,
) noexcept nogil:
    """Find room for ``nbytes`` bytes in one piece; nothing is stored yet."""
    cdef uint64_t tail = psk_get64(words + PSK_C_TAIL), start = tail, need, behind
    if not is_ring_span(m, tail, head):
        return TAIL
    ring_put(m, nbytes, head, copies, place)
    if copies == NO_COPY and copy_due(words, m, place, rule.reserve) != NO_COPY:
        return COPY
    if place.end + rule.reserve - tail > m.ring_bytes:
        need = min(place.end + rule.reserve - m.ring_bytes, head)
        while tail < need:
            behind = ring_behind(m, tail, head)
            if behind == 0 or not is_whole(m, tail, head):
                if rule.when_full == PSK_WHEN_FULL_DROP and place.end - tail <= m.ring_bytes:
                    break  # there is room, though not as much as it should leave
                return TAIL
            tail = behind
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
