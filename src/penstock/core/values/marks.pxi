# Marks: headers of Penstock's own. Their order: how long the event lives, so that readers look at no
# other header for that; then the caller's headers; then codec, time to wait for, and tags.

cdef str NOT_BEFORE_NAME = PSK_NOT_BEFORE_NAME.decode()
cdef str TTL_NAME = PSK_TTL_NAME.decode()
cdef uint32_t NOT_BEFORE_NAME_BYTES = <uint32_t>len(NOT_BEFORE_NAME)


cdef bytes marks_of(object codec, object not_before, object tags):
    """The headers after the caller's own; None if there are none. ``codec`` is one that is not the log's."""
    marks = b"" if codec is None else codec_mark(codec)
    if not_before is not None:
        marks += due_mark(not_before)
    if tags is not None:
        marks += encode_tags(tags)
    return marks or None


cdef bytes due_mark(object not_before):
    """The header that says from when on groups hand an event out."""
    if _due_ns is None:
        load_above()
    return mark_of(NOT_BEFORE_NAME, _due_ns(not_before, "not_before"))


cdef bytes ttl_mark(object ttl):
    """The header that says how long an event lives."""
    if _span_ns is None:
        load_above()
    return mark_of(TTL_NAME, _span_ns(ttl, "ttl"))


cdef bytes mark_of(str name, object ns):
    return pack_headers([(name, (<object>int(ns)).to_bytes(PSK_MARK_BYTES, "little"))])


cdef object not_before_of(const char *p):
    """The value of the last such header of a frame; None without one. The frame has passed `frame_check`."""
    cdef const char *at = frame_topic(p) + psk_get16(p + PSK_FRAME_TOPIC_LEN)
    cdef uint32_t left = psk_get16(p + PSK_FRAME_HEADERS_LEN), n
    cdef object found = None
    while left >= PSK_EVENT_HEADER_BYTES:
        n = header_bytes(at)
        if n > left:
            break
        if is_mark(at, PSK_NOT_BEFORE_NAME, NOT_BEFORE_NAME_BYTES):
            found = psk_get64(at + n - PSK_MARK_BYTES)
        at += n
        left -= n
    return found


cdef inline bint is_mark(const char *header, const char *name, uint32_t nbytes) noexcept nogil:
    """Whether a header has that name, and a number of nanoseconds as its value."""
    return (
        psk_get16(header) == nbytes and psk_get16(header + PSK_EVENT_HEADER_VALUE_LEN) == PSK_MARK_BYTES
        and memcmp(header + PSK_EVENT_HEADER_BYTES, name, nbytes) == 0
    )


cdef object moment(object ns):
    """Nanoseconds since 1970 as an aware datetime, rounded down to microseconds."""
    if ns is None:
        return None
    us = ns // 1000
    try:
        return _EPOCH + _datetime.timedelta(seconds=us // 1000000, microseconds=us % 1000000)
    except OverflowError:
        return _datetime.datetime.max.replace(tzinfo=_datetime.timezone.utc)
