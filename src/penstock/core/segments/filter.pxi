# The key filter of a sealed segment: built from its frames, and asked by readers; see filter.h.

cdef inline const char *frame_key(const char *p, uint16_t *nbytes) noexcept nogil:
    """The key of the event at ``p``, and its length; `PSK_NO_KEY` if it has none."""
    nbytes[0] = psk_get16(p + PSK_FRAME_KEY_LEN)
    return frame_topic(p) + psk_get16(p + PSK_FRAME_TOPIC_LEN) + psk_get16(p + PSK_FRAME_HEADERS_LEN)


cdef FrameState filter_walk(
    const char *base, uint64_t at, uint64_t limit, uint8_t *counters, char *pages_at, uint64_t pages,
    uint64_t *bad_at,
) noexcept nogil:
    """Count the distinct keys of the events from ``at`` to ``limit``, or add them to a filter."""
    cdef uint64_t total = 0, hash
    cdef uint16_t n = 0
    cdef const char *key
    cdef FrameState state
    while at < limit:
        state = frame_check(base + at, limit - at, False, &total)
        if state != FRAME_GOOD:
            bad_at[0] = at
            return state
        if is_event(base + at):
            key = frame_key(base + at, &n)
            if n != PSK_NO_KEY:
                hash = psk_key_hash(key, n)
                if counters != NULL:
                    psk_count_hash(counters, hash)
                else:
                    psk_filter_add(pages_at, pages, hash)
        at += total
    return FRAME_GOOD


cdef bytes filter_of(SegmentMap m, uint64_t limit):
    """The key filter of the segment whose frames end at ``limit``; empty if no event has a key."""
    cdef uint8_t counters[PSK_COUNTERS]
    cdef uint64_t pages, i, bad_at = 0
    cdef FrameState state
    cdef bytes made
    cdef char *at
    if len(m.uuid) != 16 or not m.has(m.data_offset, limit):
        raise Internal(f"{m.path}: cannot make a key filter up to {limit}")
    need_range(m, m.data_offset, limit, False)
    memset(counters, 0, sizeof(counters))
    with nogil:
        state = filter_walk(m.base, m.data_offset, limit, counters, NULL, 0, &bad_at)
        pages = psk_filter_pages(psk_counted(counters))
    if state != FRAME_GOOD:
        raise m.damage(bad_at, state)
    made = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(pages * PSK_PAGE))
    at = PyBytes_AS_STRING(made)
    memset(at, 0, <size_t>(pages * PSK_PAGE))
    if pages:
        with nogil:
            state = filter_walk(m.base, m.data_offset, limit, NULL, at, pages, &bad_at)
        if state != FRAME_GOOD:
            raise m.damage(bad_at, state)
    for i in range(pages):
        psk_filter_seal(
            at + i * PSK_PAGE, PyBytes_AS_STRING(m.uuid), m.base_seq, <uint32_t>m.generation, <uint32_t>i,
            <uint32_t>pages)
    return made


cdef bint filter_lacks(SegmentMap m, bytes key):
    """Whether the filter of a sealed segment says that no event has the key; a damaged page never does."""
    cdef uint64_t hash, number, at
    if not m.has_filter:
        return False
    if m.filter_pages == 0:
        return True
    hash = psk_key_hash(PyBytes_AS_STRING(key), <size_t>PyBytes_GET_SIZE(key))
    number = psk_filter_page(hash, m.filter_pages)
    at = m.filter_at + number * PSK_PAGE
    if m.has(at, at + PSK_PAGE):
        need_range(m, at, at + PSK_PAGE, True)
    return (
        m.has(at, at + PSK_PAGE)
        and psk_filter_is_good(
            m.base + at, PyBytes_AS_STRING(m.uuid), m.base_seq, <uint32_t>m.generation, <uint32_t>number,
            <uint32_t>m.filter_pages)
        and not psk_filter_has(m.base + at, m.filter_pages, hash)
    )


def bad_filter_page(bytes pages not None, bytes uuid not None, uint64_t base_seq, uint32_t generation):
    """The number of the first page of a key filter that is not valid; None if all are."""
    cdef uint32_t count = <uint32_t>(PyBytes_GET_SIZE(pages) // PSK_PAGE), i
    if PyBytes_GET_SIZE(pages) % PSK_PAGE or PyBytes_GET_SIZE(uuid) != 16:
        raise Internal("a key filter has full pages, and a log's uuid 16 bytes")
    for i in range(count):
        if not psk_filter_is_good(
            PyBytes_AS_STRING(pages) + i * <uint64_t>PSK_PAGE, PyBytes_AS_STRING(uuid), base_seq, generation, i, count
        ):
            return i
    return None
