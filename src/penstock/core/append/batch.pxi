# Batches of events that differ only in their values: the most frequent kind.
#
# What they share is done once. A plan hands them out in stretches, which one thread builds and
# writes, or two at once: short frames go straight into pages that are populated, others into
# scratch, and with pwritev(2) to the file.

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


cdef struct BatchPlan:
    FrameSink *sink
    psk_aide *aide        # NULL: everything through the map
    Walk *w
    Slots *slots
    char *index
    uint64_t ahead        # in a ring: added to an offset it gives the position
    const Parts *p        # what they share
    const ByteSpan *spans
    uint64_t count
    uint64_t append_ns
    uint64_t end          # after the last one
    bint lead             # the commit word that publishes the batch is in a frame before them
    # Set up by `sink_values` from here on.
    uint64_t prefix, shape, event_ns, first_seq
    uint32_t topic
    uint32_t lock         # over what follows, and `at`
    uint64_t at, next     # offset and number of the next event
    uint64_t last         # offset of the event before it
    uint64_t next_block   # of the index
    uint64_t rest         # bytes of the previous frame that its stretch did not write
    bint dealt            # a stretch was handed out


cdef struct Stretch:
    uint64_t next, stop   # events
    uint64_t at, last     # offset of the first of them, and of the event before it
    uint64_t start, end   # range of the file to write; both 0: none, they are in the map


cdef inline bint is_short(const BatchPlan *plan, uint64_t i) noexcept nogil:
    return plan.prefix + plan.spans[i].length <= PSK_SUM_LATER_BYTES_MAX


cdef void plan_note(BatchPlan *plan) noexcept nogil:
    """Record in the walk and the index what the events from the next one on share."""
    cdef Walk *w = plan.w
    if plan.at >= plan.next_block:
        walk_block(w, plan.index, plan.at, plan.first_seq + plan.next, plan.append_ns)
        plan.next_block = plan.at + PSK_INDEX_STEP
    walk_event_time(w, plan.event_ns)
    w.block_topics |= plan.topic


cdef uint64_t plan_take(BatchPlan *plan, uint64_t until) noexcept nogil:
    """Move after the short frames that begin before ``until``; returns the offset of the last but one."""
    cdef uint64_t at = plan.at, last = plan.last, before = plan.last, i = plan.next, length
    cdef uint64_t prefix = plan.prefix, count = plan.count, next_block = plan.next_block
    cdef const ByteSpan *spans = plan.spans
    cdef bint slots = plan.slots.count > 0
    while at < until and i < count:
        length = prefix + spans[i].length
        if length > PSK_SUM_LATER_BYTES_MAX:
            break
        if at >= next_block or i == 0:
            plan.at = at
            plan.next = i
            plan_note(plan)
            next_block = plan.next_block
        if slots:
            slots_add(plan.slots, at + plan.ahead)
        before = last
        last = at
        at += align8(PSK_FRAME_HEADER_BYTES + length)
        i += 1
    plan.at = at
    plan.last = last
    plan.next = i
    return before


cdef inline void put_value(
    const BatchPlan *plan, FrameSink *sums, char *dst, uint64_t i, uint64_t at, uint64_t last
) noexcept nogil:
    """Build a short frame; it is summed with others."""
    cdef uint64_t length = plan.spans[i].length
    frame_fill(
        dst, plan.p, plan.shape, plan.spans[i].start, length, plan.prefix, plan.first_seq + i,
        plan.append_ns, <uint32_t>(at - last), <uint32_t>(plan.count - 1 - i))
    sink_sum_later(sums, dst, plan.prefix + length)
    psk_fail(FP_BATCH_BODY if plan.lead or i else FP_BODY)
    psk_put32(dst, <uint32_t>(plan.prefix + length + 1) if plan.lead or i else 0)


cdef bint plan_deal(BatchPlan *plan, char *scratch, Stretch *s) noexcept nogil:
    """Hand out short frames up to the end of a large folio; False if the next frame is long.

    One thread builds the frame that crosses that place in one go: its sources may change
    meanwhile. Its other part is left to the next stretch.
    """
    cdef uint64_t before, run
    cdef FrameSink sums
    cdef bint some = False
    while not psk_cas32(&plan.lock, 0, 1):
        psk_pause()
    if plan.rest or (plan.next < plan.count and is_short(plan, plan.next)):
        some = True
        s.next = plan.next
        s.at = plan.at
        s.last = plan.last
        s.start = plan.at - plan.rest
        memcpy(scratch, plan.aide.rest, plan.rest)
        plan.rest = 0
        # The first one is short: the kernel takes one write at a time and should begin soon.
        run = PSK_WRITE_RUN_BYTES if plan.dealt else PSK_WRITE_RUN_BYTES // 4
        plan.dealt = True
        s.end = (s.start // run + 1) * run
        before = plan_take(plan, s.end)
        s.stop = plan.next
        if plan.at < s.end:
            s.end = plan.at
        elif plan.at > s.end:
            s.stop -= 1
            sums.unsummed_count = 0
            put_value(plan, &sums, scratch + (plan.last - s.start), s.stop, plan.last, before)
            sink_sum(&sums)
            plan.rest = plan.at - s.end
            memcpy(plan.aide.rest, scratch + (s.end - s.start), plan.rest)
    psk_store32(&plan.lock, 0)
    return some


cdef void put_stretch(const BatchPlan *plan, const Stretch *s, char *dst) noexcept nogil:
    """Build the frames of a stretch, the first of them at ``dst``."""
    cdef uint64_t i = s.next, at = s.at, last = s.last
    cdef FrameSink sums
    sums.unsummed_count = 0
    while i < s.stop:
        if i and plan.prefix == 0 and psk_fail_armed == 0 and (
            put_fours(plan, &i, s.stop, &at, &last, dst - s.at)
        ):
            continue
        if i + PREFETCH < plan.count:
            psk_prefetch(plan.spans[i + PREFETCH].start)
            psk_prefetch(plan.spans[i + PREFETCH].start + 64)
        put_value(plan, &sums, dst + (at - s.at), i, at, last)
        last = at
        at += align8(PSK_FRAME_HEADER_BYTES + plan.prefix + plan.spans[i].length)
        i += 1
    sink_sum(&sums)


cdef bint put_fours(
    const BatchPlan *plan, uint64_t *next, uint64_t stop, uint64_t *at, uint64_t *last, char *base
) noexcept nogil:
    """Build frames of only a header and a value, four by four while they have one length.

    False if no frame could be built that way.
    """
    cdef uint64_t i = next[0], here = at[0], before = last[0], length, total
    cdef uint64_t ahead = plan.count - PREFETCH if plan.count > PREFETCH else 0
    cdef const ByteSpan *spans = plan.spans
    cdef const char *values[4]
    cdef char *frames[4]
    cdef uint64_t links[4]
    cdef uint64_t k
    while i + 4 <= stop:
        length = spans[i].length
        if length < 8 or spans[i + 1].length != length or spans[i + 2].length != length or (
            spans[i + 3].length != length
        ):
            break
        total = align8(PSK_FRAME_HEADER_BYTES + length)
        for k in range(4):
            if i + k < ahead:  # values are wherever their objects are
                psk_prefetch(spans[i + k + PREFETCH].start)
                psk_prefetch(spans[i + k + PREFETCH].start + 64)
            values[k] = spans[i + k].start
            frames[k] = base + here + k * total
            links[k] = ((plan.count - 1 - i - k) << PSK_BATCH_LEFT_SHIFT) | (total if k else <uint32_t>(here - before))
        if not psk_put_four(frames, values, length, plan.first_seq + i, plan.append_ns, links, plan.shape):
            break
        here += 4 * total
        before = here - total
        i += 4
    if i == next[0]:
        return False
    next[0] = i
    at[0] = here
    last[0] = before
    return True


cdef void plan_work(void *job, char *scratch) noexcept nogil:
    """Build and write the stretches that the plan hands out, until there are no more."""
    cdef BatchPlan *plan = <BatchPlan *>job
    cdef Stretch s
    while plan_deal(plan, scratch, &s):
        put_stretch(plan, &s, scratch + (s.at - s.start))
        file_write(plan.sink.fd, plan.sink.base, s.start, scratch, s.end - s.start)


cdef void plan_fill(BatchPlan *plan, uint64_t until) noexcept nogil:
    """Put short frames into the map, those that begin before ``until``."""
    cdef Stretch s
    s.next = plan.next
    s.at = plan.at
    s.last = plan.last
    plan_take(plan, until)
    s.stop = plan.next
    put_stretch(plan, &s, plan.sink.base + s.at)


cdef void sink_long(FrameSink *sink, BatchPlan *plan) noexcept nogil:
    """Take the next event, a long one."""
    cdef uint64_t i = plan.next, at = plan.at
    cdef const ByteSpan *span = plan.spans + i
    cdef uint64_t total = align8(PSK_FRAME_HEADER_BYTES + plan.prefix + span.length)
    if at >= plan.next_block or i == 0:
        plan_note(plan)
    if plan.slots.count:
        slots_add(plan.slots, at + plan.ahead)
    sink_add(
        sink, at, plan.p, span.start, span.length, plan.prefix, total, plan.lead or i > 0,
        plan.first_seq + i, plan.append_ns, <uint32_t>(at - plan.last), <uint32_t>(plan.count - 1 - i))
    plan.last = at
    plan.at = at + total
    plan.next = i + 1


cdef void sink_values(BatchPlan *plan) noexcept nogil:
    """Take all events of a plan."""
    cdef Walk *w = plan.w
    cdef FrameSink *sink = plan.sink
    cdef uint64_t warm = sink.warm_end if plan.aide != NULL else U64_MAX
    plan.prefix = parts_prefix(plan.p)
    plan.shape = parts_shape(plan.p)
    plan.event_ns = plan.p.event_ns if plan.p.flags & PSK_FLAG_EVENT_TIME else plan.append_ns
    plan.topic = topic_bit(plan.p.topic, plan.p.topic_len)
    plan.first_seq = w.next_seq
    plan.next_block = w.block_offset + PSK_INDEX_STEP
    plan.last = w.last_frame - plan.ahead if w.last_frame else plan.at  # so that `back` is 0
    plan.lock = plan.next = plan.rest = 0
    plan.dealt = False
    while plan.next < plan.count:
        if not is_short(plan, plan.next):
            sink_long(sink, plan)
            continue
        sink_flush(sink)  # what it still has to write comes before, and it shares the scratch
        if plan.at < warm:
            plan_fill(plan, warm)
        elif plan.end - plan.at >= PSK_WRITE_TOGETHER_BYTES:
            psk_aide_share(plan.aide, plan_work, plan)
        else:
            plan_work(plan, sink.scratch)
    w.next_seq = plan.first_seq + plan.count
    w.last_frame = plan.last + plan.ahead
