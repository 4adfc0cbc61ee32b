# The publish protocol: how the frames of one append are written, and when readers may see them.

cdef struct Terms:
    # The conditions of an append, checked under the lock.
    bint expects
    uint64_t last_seq         # the expected last seq of the log, if any
    Copies copies             # of a ring: whether these frames are a copy of its state
    bint configures              # of a ring: they are new settings, which say what it does when it is full
    bint clears               # of a ring: they are a copy of its state, to make room for new settings
    uint32_t when_full        # in both cases: what the new settings say of that
    bint settles              # settings that were made of those at `settings_pos`
    uint64_t settings_pos
    const Parts *lead         # a producer frame that goes before the events, or NULL
    uint64_t producer_pos     # then: position of the newest producer frame
    char value[16]            # the value of the producer frame


cdef inline uint32_t loosest(uint32_t when_full, const Terms *terms) noexcept nogil:
    """What may be dropped for an append: what the ring's settings allow, or new ones that are coming."""
    if terms != NULL and (terms.configures or terms.clears):
        return min(when_full, terms.when_full)
    return when_full


cdef void rule_for(const char *words, SegmentMap m, const Terms *terms, Rule *rule) noexcept nogil:
    """What an append to a ring may drop, and how much it must leave free.

    Settings must fit, as they may be the way out of a full ring: they may use the room that events
    leave free, and follow their own ``when_full`` if that drops more.
    """
    cdef bint drops = psk_get32(words + PSK_C_WHEN_FULL) == PSK_WHEN_FULL_DROP
    rule.when_full = loosest(psk_get32(words + PSK_C_WHEN_FULL), terms)
    rule.reserve = 0 if drops else m.reserve
    if terms != NULL and terms.copies != NO_COPY:
        rule.reserve = 0
    elif terms != NULL and terms.configures:
        rule.reserve = m.reserve if drops and terms.when_full != PSK_WHEN_FULL_DROP else 0


cdef int publish(
    char *words, SegmentMap m, int fd, Terms *terms, const Parts *parts, const ByteSpan *spans, uint64_t count,
    uint64_t nbytes, psk_aide *aide, uint64_t warm_end, uint64_t *first_seq, uint64_t *end,
) noexcept nogil:
    """Write ``count`` events as one atomic batch; the caller holds the write lock.

    1. ``reserved`` says up to where bytes may be written.
    2. Frames, each complete except the first one's commit word.
    3. The first frame's commit word, with release: now the batch is complete by itself.
    4. ``head``, with release: now readers may see it.
    5. The words that the next writer needs; a writer that takes over rebuilds them from frames.

    In a ring, the tail moves out of the way between 1 and 2. ``fd`` is control's, for its locks.
    With ``spans``, all events share ``parts[0]`` except for their values. ``terms`` may be NULL, and
    so may be ``aide``: then everything goes through the map.
    """
    cdef uint64_t head = psk_get64(words + PSK_C_HEAD)
    cdef uint64_t at, i, total, prefix, body, append_ns, end_at, block_before
    cdef const Parts *p
    cdef const Parts *lead = NULL
    cdef char *first
    cdef char *index
    cdef uint64_t leads = 0
    cdef uint64_t ahead = 0  # in a ring: added to an offset it gives the position
    cdef Slots slots
    cdef uint64_t producer_pos = 0
    cdef Copies copies = NO_COPY
    cdef int rc
    cdef RingPlace place
    cdef Rule rule
    cdef FrameSink sink
    cdef BatchPlan plan
    cdef Walk w
    psk_fail(FP_LOCKED)
    if psk_load32(words + PSK_C_SUSPECT) or psk_get64(words + PSK_C_RESERVED) != head:
        return REPAIR
    if psk_get64(words + PSK_C_POISONED):
        return POISONED
    if m.ring_bytes == 0:
        if position_unpack(head).number != m.number:
            return REMAP
    elif psk_get64(words + PSK_C_EPOCH) & PSK_EPOCH_MOVED:
        return REMAP
    if terms != NULL:
        copies = terms.copies
        if terms.expects and psk_get64(words + PSK_C_NEXT_SEQ) - 1 != terms.last_seq:
            return CONFLICT
        if terms.settles and psk_get64(words + PSK_C_SETTINGS_POS) != terms.settings_pos:
            return STALE
        lead = terms.lead
        if lead != NULL:
            leads = 1
            if psk_get64(words + PSK_C_PRODUCER_POS) != terms.producer_pos:
                return STALE
    if m.ring_bytes:
        rule_for(words, m, terms, &rule)
        rc = ring_place(words, m, fd, nbytes, head, copies, &rule, &place)
        if rc != OK:
            return rc
        at = ring_offset(m, place.position)
        ahead = place.position - at
        if leads and terms.producer_pos:  # a link back: after a recovery, positions are different
            psk_put32(terms.value + PSK_PRODUCER_PREVIOUS, <uint32_t>(place.position - terms.producer_pos))
    else:
        at = position_unpack(head).offset
        if at + nbytes > m.frames_end or at + nbytes > psk_get64(words + PSK_C_ALLOC_END):
            return ROOM
        place.position = head
        place.end = head + nbytes
        place.tail = place.wraps = 0
    end_at = at + nbytes
    append_ns = psk_now_ns()
    if m.home_fd >= 0 and append_ns - m.looked_ns > PSK_LOOK_NS:
        if not psk_is_linked(m.fd) or not psk_is_linked(m.home_fd):
            return GONE
        m.looked_ns = append_ns
    w.last_append_ns = psk_get64(words + PSK_C_LAST_APPEND_NS)
    if append_ns < w.last_append_ns:
        append_ns = w.last_append_ns
    w.next_seq = psk_get64(words + PSK_C_NEXT_SEQ)
    w.last_frame = psk_get64(words + PSK_C_LAST_FRAME)
    w.event_max_ns = psk_get64(words + PSK_C_EVENT_MAX_NS)
    w.block_offset = psk_get32(words + PSK_C_BLOCK_OFFSET)
    w.block_topics = psk_get32(words + PSK_C_BLOCK_TOPICS)
    w.block_seq = psk_get64(words + PSK_C_BLOCK_SEQ)
    w.block_append_ns = psk_get64(words + PSK_C_BLOCK_APPEND_NS)
    w.block_event_min_ns = psk_get64(words + PSK_C_BLOCK_EVENT_MIN_NS)
    w.block_event_max_ns = psk_get64(words + PSK_C_BLOCK_EVENT_MAX_NS)
    w.index_count = psk_get64(words + PSK_C_INDEX_COUNT)
    w.monotone = psk_get64(words + PSK_C_FLAGS) & PSK_CONTROL_FLAG_MONOTONE
    index = m.base + m.index_offset
    first_seq[0] = w.next_seq
    slots.base = index
    slots.count = slots.next = 0

    psk_store64(words + PSK_C_RESERVED, place.end)
    psk_release_fence()
    psk_fail(FP_RESERVED)

    first = m.base + at
    if m.ring_bytes:
        w.block_offset = <uint64_t>1 << 62  # no blocks
        slots.count = m.index_capacity
        if slots.count:
            slots.next = w.next_seq % slots.count
        ring_claim(words, m, &place, head, &w, append_ns)
        psk_put32(first, 0)
    block_before = w.block_offset
    sink.base = m.base
    sink.fd = m.fd
    sink.scratch = aide.scratch if aide != NULL else NULL
    sink.warm_end = warm_end
    sink.run = 0
    sink.unsummed_count = 0
    for i in range(leads if spans != NULL else leads + count):
        p = lead if i < leads else parts + (i - leads)
        prefix = parts_prefix(p)
        total = align8(PSK_FRAME_HEADER_BYTES + prefix + p.value_len)
        sink_add(
            &sink, at, p, p.value, p.value_len, prefix, total, i > 0, w.next_seq, append_ns,
            <uint32_t>(at + ahead - w.last_frame) if w.last_frame else 0, <uint32_t>(leads + count - 1 - i))
        if at >= w.block_offset + PSK_INDEX_STEP:
            walk_block(&w, index, at, w.next_seq, append_ns)
        if p.kind == PSK_KIND_DATA or p.kind == PSK_KIND_DELETE:
            walk_event_time(&w, p.event_ns if p.flags & PSK_FLAG_EVENT_TIME else append_ns)
            w.block_topics |= topic_bit(p.topic, p.topic_len)
            w.next_seq += 1
            if slots.count:
                slots_add(&slots, at + ahead)
        elif p.kind == PSK_KIND_PRODUCER or p.kind == PSK_KIND_PRODUCERS:
            producer_pos = place.position if i == 0 else at + ahead
        w.last_frame = at + ahead
        at += total
    if spans != NULL:
        plan.sink = &sink
        plan.aide = aide
        plan.w = &w
        plan.slots = &slots
        plan.index = index
        plan.ahead = ahead
        plan.p = parts
        plan.spans = spans
        plan.count = count
        plan.at = at
        plan.append_ns = append_ns
        plan.end = end_at
        plan.lead = leads > 0
        sink_values(&plan)
        at = plan.at

    sink_flush(&sink)
    psk_fail(FP_WRITTEN)
    p = lead if leads else parts
    body = parts_prefix(p) + (spans[0].length if spans != NULL and leads == 0 else p.value_len)
    psk_store32(first, <uint32_t>body + 1)
    psk_fail(FP_COMMIT)
    psk_store64(words + PSK_C_HEAD, place.end)
    psk_fail(FP_HEAD)
    psk_put64(words + PSK_C_NEXT_SEQ, w.next_seq)
    psk_put64(words + PSK_C_LAST_APPEND_NS, append_ns)
    if parts.kind == PSK_KIND_SETTINGS:
        psk_put64(words + PSK_C_SETTINGS_POS, place.position)
        if terms != NULL and terms.configures:
            psk_fail(FP_SETTLED)
            psk_store32(words + PSK_C_WHEN_FULL, terms.when_full)
    if producer_pos:
        psk_put64(words + PSK_C_PRODUCER_POS, producer_pos)
        if leads:
            terms.producer_pos = producer_pos
    if copies != NO_COPY or (
        (producer_pos or parts.kind == PSK_KIND_SETTINGS) and psk_get64(words + PSK_C_STATE_POS) == 0
    ):
        psk_put64(words + PSK_C_STATE_POS, place.position)
    psk_fail(FP_WORDS)
    psk_put64(words + PSK_C_EVENT_MAX_NS, w.event_max_ns)
    psk_put64(words + PSK_C_BLOCK_EVENT_MIN_NS, w.block_event_min_ns)
    psk_put64(words + PSK_C_BLOCK_EVENT_MAX_NS, w.block_event_max_ns)
    if not w.monotone:
        psk_put64(words + PSK_C_FLAGS, psk_get64(words + PSK_C_FLAGS) & ~<uint64_t>PSK_CONTROL_FLAG_MONOTONE)
    psk_put32(words + PSK_C_BLOCK_TOPICS, w.block_topics)
    if w.block_offset != block_before:
        psk_put32(words + PSK_C_BLOCK_OFFSET, <uint32_t>w.block_offset)
        psk_put64(words + PSK_C_BLOCK_SEQ, w.block_seq)
        psk_put64(words + PSK_C_BLOCK_APPEND_NS, w.block_append_ns)
        psk_store64(words + PSK_C_INDEX_COUNT, w.index_count)
    psk_store64(words + PSK_C_LAST_FRAME, w.last_frame)  # last: recovery of a ring continues from it
    end[0] = at
    return OK
