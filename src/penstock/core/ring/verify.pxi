# Verification of rings: check every frame of a private copy, continue after damage, and copy valid frames.

cdef struct Check:
    # The state of a check.
    Walk w                # over all valid frames; its offsets are positions
    uint64_t frames
    uint64_t nbytes       # of those frames
    bint free             # what is before is not known: any `back`, any seq from next_seq on
    bint in_batch, broken # `broken`: the frame at w.offset is valid, but the batch before it is incomplete
    uint32_t want_left
    # Copying: positions in the other ring.
    uint64_t out_at, out_last, out_batch, out_producer
    bint flatten          # the batch has lost its beginning: its frames become single ones


cdef FrameState check_order(RingMap m, Check *c, const char *p, uint64_t head, bint holes) noexcept nogil:
    """Whether a valid frame is the expected one."""
    cdef Walk *w = &c.w
    cdef uint64_t at = w.offset, seq = psk_get64(p + PSK_FRAME_SEQ)
    cdef uint8_t kind = <uint8_t>p[PSK_FRAME_KIND]
    if (
        not is_seq(seq) or seq < w.next_seq
        or (seq > w.next_seq and not holes and not c.free)
        or (not c.free and psk_get32(p + PSK_FRAME_BACK) != at - w.last_frame)
        or psk_get64(p + PSK_FRAME_APPEND_NS) < w.last_append_ns
        or kind == PSK_KIND_ROLL
        or (kind == PSK_KIND_WRAP and at + lap_room(m, at) > head)
    ):
        return FRAME_ORDER
    if kind == PSK_KIND_PRODUCER and (
        psk_get32(p) - 1 != <uint64_t>psk_get16(p + PSK_FRAME_KEY_LEN) + PSK_PRODUCER_BYTES
    ):
        return FRAME_LENGTH
    return FRAME_GOOD


cdef void check_copy(RingMap out, Check *c, const char *p, uint64_t total, uint32_t left) noexcept nogil:
    """Copy a valid frame to its place in the other ring."""
    cdef char *dst = out.base + ring_offset(out, c.out_at)
    cdef uint64_t body = psk_get32(p) - 1
    cdef uint8_t kind = <uint8_t>p[PSK_FRAME_KIND]
    psk_put64(dst + total - 8, 0)
    memcpy(dst, p, PSK_FRAME_HEADER_BYTES + body)
    psk_put32(dst + PSK_FRAME_BACK, <uint32_t>(c.out_at - c.out_last) if c.out_last else 0)
    if c.flatten:
        psk_put32(dst + PSK_FRAME_BATCH_LEFT, 0)
    if kind == PSK_KIND_PRODUCER:
        psk_put32(
            dst + PSK_FRAME_HEADER_BYTES + body - PSK_PRODUCER_BYTES + PSK_PRODUCER_PREVIOUS,
            <uint32_t>c.out_producer | 1 if c.out_producer else 0)
    if kind == PSK_KIND_PRODUCER or kind == PSK_KIND_PRODUCERS:
        c.out_producer = c.out_at
    frame_sum(dst, body)
    c.out_last = c.out_at
    c.out_at += total
    if left == 0:
        c.flatten = False


cdef void check_break(RingMap out, Check *c) noexcept nogil:
    """The current batch is incomplete: make the frames that were copied of it single ones."""
    cdef char *dst
    cdef uint64_t at = c.out_batch
    if out is not None:
        while at < c.out_at:
            dst = out.base + ring_offset(out, at)
            psk_put32(dst + PSK_FRAME_BATCH_LEFT, 0)
            frame_sum(dst, psk_get32(dst) - 1)
            at += align8(PSK_FRAME_HEADER_BYTES + <uint64_t>psk_get32(dst) - 1)
    c.in_batch = False


cdef FrameState check_run(RingMap m, RingMap out, uint64_t head, bint holes, Check *c) noexcept nogil:
    """Take consecutive valid frames; the state of the first invalid one, or FRAME_GOOD at the end."""
    cdef Walk *w = &c.w
    cdef uint64_t at, room, total = 0
    cdef uint32_t left
    cdef const char *p
    cdef FrameState state
    c.broken = False
    while w.offset < head:
        at = w.offset
        room = lap_room(m, at)
        if room < PSK_FRAME_HEADER_BYTES or (room == m.ring_bytes and c.in_batch):
            if c.in_batch:
                c.broken = True
                return FRAME_ORDER
            w.offset = min(at + room, head)
            continue
        p = m.base + ring_offset(m, at)
        state = frame_check(p, min(room, head - at), True, &total)
        if state == FRAME_GOOD:
            state = check_order(m, c, p, head, holes)
        if state != FRAME_GOOD:
            return state
        left = psk_get32(p + PSK_FRAME_BATCH_LEFT)
        if c.in_batch and (left != c.want_left or p[PSK_FRAME_KIND] == PSK_KIND_WRAP):
            c.broken = True
            return FRAME_ORDER
        if left and not c.in_batch:
            c.out_batch = c.out_at
        c.in_batch = left != 0
        c.want_left = left - 1
        if out is not None and p[PSK_FRAME_KIND] != PSK_KIND_WRAP:
            check_copy(out, c, p, total, left)
        if m.index_capacity and is_event(p):
            psk_put64(
                m.base + m.index_offset
                + psk_get64(p + PSK_FRAME_SEQ) % m.index_capacity * PSK_RING_SLOT_BYTES, at)
        walk_accept(w, p, room if p[PSK_FRAME_KIND] == PSK_KIND_WRAP else total, NULL)
        c.free = False
        c.frames += 1
        c.nbytes += total
    return FRAME_GOOD


def check_ring(
    RingMap m not None, uint64_t start, uint64_t head, *, bint holes, Py_ssize_t holes_max=1000, RingMap out=None
):
    """Check every frame between two positions of a private copy, whose index is rebuilt meanwhile.

    Returns the walk over all valid frames, their number, their bytes, the damaged
    places and how many more there are. A place is (position, reason, expected seq, whether only a
    batch is incomplete, whether the frame is of a newer version, position of the next valid frame and
    its seq, or None and None). With ``out``, an empty ring of the same size, valid frames are copied
    there, one after the other.
    """
    cdef Check c
    cdef FrameState state
    cdef uint64_t at, begin, stop, found, expected, budget = 4 * m.ring_bytes + PSK_PAGE
    cdef size_t more = 0
    cdef list places = []
    m.sound()
    if out is not None:
        out.sound()
    if head < start or head - start > m.ring_bytes or (start | head) % 8 or not m.writable:
        raise Internal(f"{m.path}: cannot check positions {start} to {head}")
    if out is not None and (out.ring_bytes < m.ring_bytes or not out.writable):
        raise Internal(f"{out.path}: cannot take the frames of {m.path}")
    memset(&c, 0, sizeof(Check))
    walk_start(&c.w, start, 0, 0, 0, True)
    c.free = True
    if out is not None:
        c.out_at = out.ring_bytes
    if m.index_capacity:
        memset(m.base + m.index_offset, 0, m.index_capacity * PSK_RING_SLOT_BYTES)
    opened = None
    while True:
        found = c.frames
        begin = past_slack(m, c.w.offset)
        with nogil:
            state = check_run(m, out, head, holes, &c)
        if opened is not None and c.frames > found:
            if not more:
                places[len(places) - 1] = (*opened, begin, psk_get64(m.base + ring_offset(m, begin) + PSK_FRAME_SEQ))
            opened = None
        at = c.w.offset
        if state == FRAME_GOOD and not (c.in_batch and at >= head):
            break
        if state == FRAME_GOOD or c.broken:
            check_break(out, &c)
            if len(places) < holes_max:
                places.append((at, "an incomplete batch before it", c.w.next_seq, True, False, None, None))
            else:
                more += 1
            continue
        expected = c.w.next_seq
        if c.in_batch:
            check_break(out, &c)
        stop = ring_offset(m, at) + min(lap_room(m, at), head - at)
        found = m.next_valid(
            ring_offset(m, at), stop, expected, U64_MAX >> 1, c.w.last_append_ns,
            holes or c.free or expected == 0, &budget)
        c.free = True
        c.w.offset = at + (found if found else stop) - ring_offset(m, at)
        c.flatten = bool(found) and m.base[found + PSK_FRAME_KIND] != PSK_KIND_PRODUCER
        if opened is None:
            opened = (at, _FRAME_STATES[state], expected, False, state == FRAME_KIND)
            if len(places) < holes_max:
                places.append((*opened, None, None))
            else:
                more += 1
    return walked(&c.w), c.frames, c.nbytes, places, more, budget < PSK_FRAME_HEADER_BYTES


def compare_index(RingMap m not None, bytes was not None, uint64_t start, uint64_t head, bint strict):
    """How many slots of an index are wrong, and the first of them; the index of ``m`` is right.

    ``strict``: every frame is known, and there was no write meanwhile.
    """
    cdef uint64_t i, told, wanted, astray = 0, first = 0
    cdef const char *told_at = PyBytes_AS_STRING(was)
    m.sound()
    if <uint64_t>PyBytes_GET_SIZE(was) < m.index_capacity * PSK_RING_SLOT_BYTES:
        raise Internal(f"{m.path}: an index of {len(was)} bytes")
    for i in range(m.index_capacity):
        told = psk_get64(told_at + i * PSK_RING_SLOT_BYTES)
        wanted = psk_get64(m.base + m.index_offset + i * PSK_RING_SLOT_BYTES)
        if told == wanted or (told % 8 == 0 and (told < start and wanted == 0)):
            continue
        if not strict and told % 8 == 0 and (told == 0 or told >= head or wanted == 0):
            continue
        if astray == 0:
            first = i
        astray += 1
    return astray, first
