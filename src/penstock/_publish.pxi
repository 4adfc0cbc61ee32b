# The publish protocol: how the frames of one append get into the file, and when readers may see them.

cdef struct Sink:
    # Where the frames of one append go. Pages that are populated are written through the map.
    # Others are put together in scratch and written with pwritev(2) in long runs, which spares a
    # page fault for every page. The commit word that publishes them is a store in the map always.
    char *base
    int fd
    char *scratch         # NULL: everything through the map
    uint64_t warm_end     # offset up to which the map's pages are populated
    uint64_t run_at       # offset of what is in scratch
    uint64_t run          # bytes in scratch
    const char *unsummed[4]  # what to sum of frames that still lack their checksums
    size_t unsummed_bytes[4]
    int unsummed_count


cdef inline void sink_sum(Sink *s) noexcept nogil:
    """Give the frames that lack one their checksums."""
    cdef uint32_t crcs[4]
    cdef int i
    if s.unsummed_count == 4:
        for i in range(4):
            crcs[i] = 0xFFFFFFFF
        psk_crc_four(crcs, s.unsummed, s.unsummed_bytes)
        for i in range(4):
            psk_put32(<char *>s.unsummed[i] - PSK_FRAME_SEQ + PSK_FRAME_CRC, ~crcs[i])
    else:
        for i in range(s.unsummed_count):
            psk_put32(
                <char *>s.unsummed[i] - PSK_FRAME_SEQ + PSK_FRAME_CRC,
                ~psk_crc(0xFFFFFFFF, s.unsummed[i], s.unsummed_bytes[i]))
    s.unsummed_count = 0


cdef inline void sink_sum_later(Sink *s, char *dst, uint64_t body) noexcept nogil:
    """Sum a filled frame together with three others."""
    s.unsummed[s.unsummed_count] = dst + PSK_FRAME_SEQ
    s.unsummed_bytes[s.unsummed_count] = PSK_FRAME_HEADER_BYTES - PSK_FRAME_SEQ + body
    s.unsummed_count += 1
    if s.unsummed_count == 4:
        sink_sum(s)


cdef void sink_write(Sink *s, uint64_t nbytes) noexcept nogil:
    """Write so much of what is in scratch to the file."""
    sink_sum(s)
    if not psk_write_all(s.fd, s.run_at, s.scratch, nbytes, NULL, 0, NULL, 0):
        memcpy(s.base + s.run_at, s.scratch, nbytes)
    s.run -= nbytes
    s.run_at += nbytes
    memmove(s.scratch, s.scratch + nbytes, s.run)


cdef inline void sink_flush(Sink *s) noexcept nogil:
    """Write all that is in scratch, and sum what is in the map."""
    if s.run:
        sink_write(s, s.run)
    elif s.unsummed_count:
        sink_sum(s)


cdef inline char *sink_room(Sink *s, uint64_t at, uint64_t total) noexcept nogil:
    """Where to put a frame together that belongs at ``at``."""
    if s.scratch == NULL or at + total <= s.warm_end:
        if s.run:
            sink_write(s, s.run)
        return s.base + at
    if s.run == 0:
        s.run_at = at
    elif s.run >= PSK_WRITE_RUN_BYTES - s.run_at % PSK_WRITE_RUN_BYTES:
        # Runs end where large folios do: the kernel takes such runs a quarter faster.
        sink_write(s, PSK_WRITE_RUN_BYTES - s.run_at % PSK_WRITE_RUN_BYTES)
    if s.run + total > PSK_WRITE_SCRATCH_BYTES:
        sink_write(s, s.run)
        s.run_at = at
    s.run += total
    return s.scratch + s.run - total


cdef void sink_add(
    Sink *s, uint64_t at, const Parts *p, const char *value, uint64_t value_len, uint64_t prefix,
    uint64_t total, bint commit, uint64_t seq, uint64_t append_ns, uint32_t back, uint32_t left,
) noexcept nogil:
    """Take one frame, which belongs at ``at``; with its commit word, if ``commit``."""
    cdef uint64_t body = prefix + value_len
    cdef char *dst
    if s.scratch != NULL and at + total > s.warm_end and total > PSK_WRITE_BYTES_MIN:
        sink_flush(s)
        if p.fixed:
            frame_write_big(
                s.base, at, s.scratch, s.fd, p, value, value_len, prefix, seq, append_ns, back, left)
            psk_fail(FP_BATCH_BODY if commit else FP_BODY)
            if commit:
                psk_store32(s.base + at, <uint32_t>body + 1)
            return
        if total > PSK_WRITE_SCRATCH_BYTES:
            dst = s.base + at
        else:
            dst = sink_room(s, at, total)
    else:
        dst = sink_room(s, at, total)
    psk_put32(dst, 0)
    if value_len > PSK_SUM_LATER_BYTES_MAX:
        frame_write(dst, p, value, value_len, prefix, seq, append_ns, back, left)
    else:
        frame_fill(dst, p, parts_shape(p), value, value_len, prefix, seq, append_ns, back, left)
        sink_sum_later(s, dst, body)
    psk_fail(FP_BATCH_BODY if commit else FP_BODY)
    if commit:
        psk_store32(dst, <uint32_t>body + 1)


cdef enum:
    PREFETCH = 8


cdef struct Slots:
    # A ring's index: a place for each seq, modulo their number.
    char *base
    uint64_t count, next


cdef inline void slots_add(Slots *slots, uint64_t position) noexcept nogil:
    psk_put64(slots.base + slots.next * PSK_RING_SLOT_BYTES, position)
    slots.next += 1
    if slots.next == slots.count:
        slots.next = 0


cdef uint64_t sink_values(
    Sink *s, Walk *w, char *index, Slots *slots, uint64_t ahead, const Parts *p, const Span *spans,
    uint64_t count, uint64_t at, uint64_t append_ns, bint lead,
) noexcept nogil:
    """Take events that differ in nothing but their values, from ``at`` on; return where they end.

    What `publish` does for any other event, with all that they share done once: for the whole
    batch, or for a stretch of frames that lie side by side in one index block. ``lead``: a frame of
    the same batch is before them, and has the commit word that publishes it.
    """
    cdef uint64_t prefix = parts_prefix(p), shape = parts_shape(p)
    cdef uint64_t event_ns = p.event_ns if p.flags & PSK_FLAG_EVENT_TIME else append_ns
    cdef uint32_t topic = topic_bit(p.topic, p.topic_len)
    cdef uint64_t next_block = w.block_offset + PSK_INDEX_STEP
    cdef uint64_t last = w.last_frame - ahead if w.last_frame else at  # so that ``back`` is 0
    cdef uint64_t seq = w.next_seq
    cdef uint64_t i = 0, value_len, total, stretch, until
    cdef char *dst
    while i < count:
        if i == 0 or at >= next_block:
            if at >= next_block:
                walk_block(w, index, at, seq, append_ns)
                next_block = at + PSK_INDEX_STEP
            walk_event_time(w, event_ns)
            w.block_topics |= topic
        value_len = spans[i].length
        total = align8(PSK_FRAME_HEADER_BYTES + prefix + value_len)
        if prefix + value_len > PSK_SUM_LATER_BYTES_MAX or (s.scratch != NULL and at < s.warm_end):
            sink_add(
                s, at, p, spans[i].start, value_len, prefix, total, lead or i > 0, seq, append_ns,
                <uint32_t>(at - last), <uint32_t>(count - 1 - i))
            if slots.count:
                slots_add(slots, at + ahead)
            last = at
            at += total
            seq += 1
            i += 1
            continue
        dst = sink_room(s, at, total)
        stretch = at + total
        until = next_block
        if s.scratch != NULL:
            until = min(until, (at // PSK_WRITE_RUN_BYTES + 1) * PSK_WRITE_RUN_BYTES)
        while True:
            if i + PREFETCH < count:  # values lie wherever their objects do
                psk_prefetch(spans[i + PREFETCH].start)
                psk_prefetch(spans[i + PREFETCH].start + 64)
            frame_fill(
                dst, p, shape, spans[i].start, value_len, prefix, seq, append_ns,
                <uint32_t>(at - last), <uint32_t>(count - 1 - i))
            sink_sum_later(s, dst, prefix + value_len)
            psk_fail(FP_BATCH_BODY if lead or i else FP_BODY)
            psk_put32(dst, <uint32_t>(prefix + value_len + 1) if lead or i else 0)
            if slots.count:
                slots_add(slots, at + ahead)
            last = at
            at += total
            dst += total
            seq += 1
            i += 1
            if at >= until or i == count or prefix + spans[i].length > PSK_SUM_LATER_BYTES_MAX:
                break
            value_len = spans[i].length
            total = align8(PSK_FRAME_HEADER_BYTES + prefix + value_len)
        if s.scratch != NULL:
            s.run += at - stretch
    w.next_seq = seq
    w.last_frame = last + ahead
    return at


cdef struct Terms:
    # What must hold under the lock for an append to be made at all.
    bint expects
    uint64_t last_seq         # the log's, if it expects one
    Copies copies             # of a ring: whether these frames are a copy of its state
    const Parts *lead         # a producer frame that goes before the events, or NULL
    uint64_t producer_pos     # then: where the newest producer frame is
    char value[16]            # what the producer frame says


cdef int publish(
    char *words, SegmentMap m, int fd, Terms *terms, const Parts *parts, const Span *spans, uint64_t count,
    uint64_t nbytes, char *scratch, uint64_t warm_end, uint64_t *first_seq, uint64_t *end,
) noexcept nogil:
    """Write ``count`` events as one atomic batch; the caller holds the write lock.

    1. ``reserved`` says how far the bytes may be touched.
    2. Frames, each complete but the first one's commit word.
    3. The first frame's commit word, with release: now the batch is whole on its own.
    4. ``head``, with release: now readers may see it.
    5. The words that the next writer needs; a writer that takes over rebuilds them from frames.

    In a ring, the tail moves out of the way between 1 and 2. ``fd`` is control's, for its locks.
    With ``spans``, all events share ``parts[0]`` except for their values. ``terms`` may be NULL.
    """
    cdef uint64_t head = psk_get64(words + PSK_C_HEAD)
    cdef uint64_t at, i, total, prefix, body, append_ns
    cdef const Parts *p
    cdef const Parts *lead = NULL
    cdef char *first
    cdef char *index
    cdef uint64_t leads = 0
    cdef uint64_t ahead = 0  # of a ring: what to add to an offset to have the position
    cdef Slots slots
    cdef uint64_t producer_pos = 0
    cdef Copies copies = NO_COPY
    cdef int rc
    cdef Place place
    cdef Sink sink
    cdef Walk w
    psk_fail(FP_LOCKED)
    if psk_load32(words + PSK_C_SUSPECT) or psk_get64(words + PSK_C_RESERVED) != head:
        return REPAIR
    if psk_get64(words + PSK_C_POISONED):
        return POISONED
    if m.ring_bytes == 0:
        if head >> 32 != m.number:
            return REMAP
    elif psk_get64(words + PSK_C_EPOCH) & PSK_EPOCH_MOVED:
        return REMAP
    if terms != NULL:
        copies = terms.copies
        if terms.expects and psk_get64(words + PSK_C_NEXT_SEQ) - 1 != terms.last_seq:
            return CONFLICT
        lead = terms.lead
        if lead != NULL:
            leads = 1
            if psk_get64(words + PSK_C_PRODUCER_POS) != terms.producer_pos:
                return STALE
    if m.ring_bytes:
        rc = ring_place(words, m, fd, nbytes, head, copies, &place)
        if rc != OK:
            return rc
        at = ring_offset(m, place.position)
        ahead = place.position - at
        if leads and terms.producer_pos:  # a way back: after a recovery, positions are others
            psk_put32(terms.value + PSK_PRODUCER_PREVIOUS, <uint32_t>(place.position - terms.producer_pos))
    else:
        at = head & OFFSET_MASK
        if at + nbytes > m.frames_end or at + nbytes > psk_get64(words + PSK_C_ALLOC_END):
            return ROOM
        place.position = head
        place.end = head + nbytes
        place.tail = place.wraps = 0
    append_ns = psk_now_ns()
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
    if m.ring_bytes:
        w.block_offset = <uint64_t>1 << 62  # no blocks
        slots.count = m.index_capacity
        if slots.count:
            slots.next = w.next_seq % slots.count

    psk_store64(words + PSK_C_RESERVED, place.end)
    psk_release_fence()
    psk_fail(FP_RESERVED)

    first = m.base + at
    if m.ring_bytes:
        ring_claim(words, m, &place, head, &w, append_ns)
        psk_put32(first, 0)
    sink.base = m.base
    sink.fd = m.fd
    sink.scratch = scratch
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
        at = sink_values(
            &sink, &w, index, &slots, ahead, parts, spans, count, at, append_ns, leads > 0)

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
    if producer_pos:
        psk_put64(words + PSK_C_PRODUCER_POS, producer_pos)
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
    if m.ring_bytes == 0 and w.block_offset != psk_get32(words + PSK_C_BLOCK_OFFSET):
        psk_put32(words + PSK_C_BLOCK_OFFSET, <uint32_t>w.block_offset)
        psk_put64(words + PSK_C_BLOCK_SEQ, w.block_seq)
        psk_put64(words + PSK_C_BLOCK_APPEND_NS, w.block_append_ns)
        psk_store64(words + PSK_C_INDEX_COUNT, w.index_count)
    psk_store64(words + PSK_C_LAST_FRAME, w.last_frame)  # last: recovery of a ring goes on from it
    end[0] = at
    return OK
