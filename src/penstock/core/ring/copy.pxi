# Copies the events of a ring to another file.

def copy_events(
    HandleCore log not None, RingMap target, uint64_t position, uint64_t stop, uint64_t start, uint64_t last_frame,
    uint64_t drop, bint apart,
):
    """Copy the events between two positions to another ring, which no other process has.

    They are written from the position ``start`` on, after the frame at ``last_frame``, without their
    first ``drop`` bytes. With ``apart`` each becomes a batch of one. Damaged frames are left out.
    Returns where the copy ends, as the fields of a walk, how many bytes the events take, and whether
    some were left out; None if some were overwritten meanwhile. Without ``target`` nothing is copied.
    """
    cdef RingFile file = log.ring_file()
    cdef RingMap m = file.map_now(log)
    cdef Window w = None
    cdef Fetched why = FETCHED
    cdef Walk walk
    cdef uint64_t at, total = 0, budget = 4 * m.ring_bytes, nbytes = 0, found, limit
    cdef bint lost = False
    cdef FrameState state
    cdef char *to
    if target is not None:
        target.sound()
        if not target.writable or start % 8:
            raise Internal(f"{target.path}: cannot be copied to")
    walk_start(&walk, start, 0, 0, 0, True)
    walk.last_frame = last_frame
    while position < stop:
        w = file.window(log, m, &position, PSK_RING_SCAN_BYTES, w, &why)
        if w is None:
            if why == FETCHED_GONE:
                return None
            break
        if position >= stop:
            break
        at = WINDOW_START
        limit = min(w.mapped, WINDOW_START + stop - position)
        while at < limit:
            state = frame_check(w.base + at, limit - at, True, &total)
            if state == FRAME_LENGTH and at > WINDOW_START and (
                w.cut or lap_room(m, position + at - WINDOW_START) < PSK_FRAME_HEADER_BYTES
            ):
                break
            if state != FRAME_GOOD:
                lost = True
                position += at - WINDOW_START
                w = file.window(log, m, &position, m.ring_bytes, None, &why)
                if w is None:
                    return None
                at = WINDOW_START
                limit = min(w.mapped, WINDOW_START + stop - position)
                found = w.next_valid(WINDOW_START, limit, 0, U64_MAX, walk.last_append_ns, True, &budget)
                if found == 0:
                    at = lap_room(m, position) + WINDOW_START
                    break
                at = found
                continue
            if w.base[at + PSK_FRAME_KIND] == PSK_KIND_WRAP:
                at += lap_room(m, position + at - WINDOW_START)
                break
            if is_event(w.base + at):
                nbytes += total
                if drop:
                    drop -= min(drop, total)
                elif target is not None:
                    if walk.offset + total > 2 * target.ring_bytes:
                        raise Internal(f"{target.path}: there is no room for the events")
                    to = target.base + ring_offset(target, walk.offset)
                    memcpy(to, w.base + at, total)
                    psk_put32(
                        to + PSK_FRAME_BACK,
                        <uint32_t>(walk.offset - walk.last_frame) if walk.last_frame else 0)
                    if apart:
                        psk_put32(to + PSK_FRAME_BATCH_LEFT, 0)
                    frame_sum(to, psk_get32(to) - 1)
                    if target.index_capacity:
                        psk_put64(
                            target.base + target.index_offset
                            + psk_get64(to + PSK_FRAME_SEQ) % target.index_capacity * PSK_RING_SLOT_BYTES,
                            walk.offset)
                    walk_accept(&walk, to, total, NULL)
            at += total
        position += at - WINDOW_START
        PyErr_CheckSignals()
    return walked(&walk), nbytes, bool(lost)
