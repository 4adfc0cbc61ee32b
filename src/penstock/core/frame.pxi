# Frames: writing one, checking one, and Event, the view of one that users get.

cdef struct Parts:
    # One event from a caller: pointers into pinned memory, lengths known.
    const char *value
    const char *topic
    const char *headers
    const char *key
    uint64_t value_len
    uint64_t event_ns
    uint16_t topic_len
    uint16_t headers_len
    uint16_t key_len
    uint8_t kind
    uint8_t flags
    bint fixed       # the value is a bytes object: it cannot change while it is copied


cdef struct ByteSpan:
    const char *start
    uint64_t length


cdef inline uint64_t parts_prefix(const Parts *p) noexcept nogil:
    cdef uint64_t n = <uint64_t>p.topic_len + p.headers_len
    if p.key_len != PSK_NO_KEY:
        n += p.key_len
    if p.flags & PSK_FLAG_EVENT_TIME:
        n += PSK_EVENT_TIME_BYTES
    return n


cdef inline uint64_t parts_shape(const Parts *p) noexcept nogil:
    """The last eight bytes of a frame's header: lengths, kind and flags."""
    return (
        <uint64_t>p.key_len | (<uint64_t>p.headers_len << PSK_HEADERS_LEN_SHIFT)
        | (<uint64_t>p.topic_len << PSK_TOPIC_LEN_SHIFT)
        | (<uint64_t>p.kind << PSK_KIND_SHIFT) | (<uint64_t>p.flags << PSK_FLAGS_SHIFT)
    )


cdef inline uint64_t frame_fill(
    char *dst, const Parts *p, uint64_t shape, const char *value, uint64_t value_len, uint64_t prefix,
    uint64_t seq, uint64_t append_ns, uint32_t back, uint32_t left,
) noexcept nogil:
    """Write all of a frame except its commit word and checksum; return the frame's length."""
    cdef uint64_t total = align8(PSK_FRAME_HEADER_BYTES + prefix + value_len)
    cdef char *at = dst + PSK_FRAME_HEADER_BYTES
    psk_put64(dst + total - 8, 0)
    psk_put64(dst + PSK_FRAME_SEQ, seq)
    psk_put64(dst + PSK_FRAME_APPEND_NS, append_ns)
    psk_put64(dst + PSK_FRAME_BACK, <uint64_t>back | (<uint64_t>left << PSK_BATCH_LEFT_SHIFT))
    psk_put64(dst + PSK_FRAME_KEY_LEN, shape)
    if prefix:
        if p.flags & PSK_FLAG_EVENT_TIME:
            psk_put64(at, p.event_ns)
            at += PSK_EVENT_TIME_BYTES
        if p.topic_len:
            memcpy(at, p.topic, p.topic_len)
            at += p.topic_len
        if p.headers_len:
            memcpy(at, p.headers, p.headers_len)
            at += p.headers_len
        if p.key_len != PSK_NO_KEY and p.key_len:
            memcpy(at, p.key, p.key_len)
            at += p.key_len
    if value_len:
        psk_copy(at, value, value_len)
    return total


cdef inline void frame_sum(char *dst, uint64_t body) noexcept nogil:
    """Set the checksum of a filled frame."""
    psk_put32(dst + PSK_FRAME_CRC, ~psk_crc(
        0xFFFFFFFF, dst + PSK_FRAME_SEQ, PSK_FRAME_HEADER_BYTES - PSK_FRAME_SEQ + body))


cdef inline uint64_t frame_write(
    char *dst, const Parts *p, const char *value, uint64_t value_len, uint64_t prefix,
    uint64_t seq, uint64_t append_ns, uint32_t back, uint32_t left,
) noexcept nogil:
    """Write all of a frame except its commit word; return the frame's length.

    The checksum is of the copy, so that it holds even if the caller's buffer changes meanwhile.
    """
    cdef uint64_t total
    cdef uint32_t crc
    if value_len <= PSK_SUM_LATER_BYTES_MAX:
        total = frame_fill(dst, p, parts_shape(p), value, value_len, prefix, seq, append_ns, back, left)
        frame_sum(dst, prefix + value_len)
        return total
    total = align8(PSK_FRAME_HEADER_BYTES + prefix + value_len)
    psk_put64(dst + total - 8, 0)
    frame_fill(dst, p, parts_shape(p), NULL, 0, prefix, seq, append_ns, back, left)
    crc = psk_crc(0xFFFFFFFF, dst + PSK_FRAME_SEQ, PSK_FRAME_HEADER_BYTES - PSK_FRAME_SEQ + prefix)
    crc = psk_crc_copy(crc, dst + PSK_FRAME_HEADER_BYTES + prefix, value, value_len)
    psk_put32(dst + PSK_FRAME_CRC, ~crc)
    return total


cdef uint64_t frame_write_big(
    char *base, uint64_t offset, char *scratch, int fd, const Parts *p, const char *value,
    uint64_t value_len, uint64_t prefix, uint64_t seq, uint64_t append_ns, uint32_t back, uint32_t left,
) noexcept nogil:
    """Like ``frame_write``, but the value goes from the caller's memory to the file in one write.

    The value must be immutable, since its checksum is computed first. The kernel writes a long run
    of bytes several times faster than a map page by page.
    ``scratch`` has room for a header, the parts before the value, and padding.
    """
    cdef uint64_t start = PSK_FRAME_HEADER_BYTES + prefix
    cdef uint64_t total = align8(start + value_len)
    cdef uint32_t crc
    frame_fill(scratch, p, parts_shape(p), NULL, 0, prefix, seq, append_ns, back, left)
    crc = psk_crc(0xFFFFFFFF, scratch + PSK_FRAME_SEQ, start - PSK_FRAME_SEQ)
    psk_put32(scratch + PSK_FRAME_CRC, ~psk_crc(crc, value, value_len))
    psk_put32(scratch, 0)
    psk_put64(scratch + align8(start), 0)
    if not psk_write_all(
        fd, offset, scratch, start, value, value_len, scratch + align8(start), total - start - value_len
    ):
        memcpy(base + offset, scratch, start)
        memcpy(base + offset + start, value, value_len)
        memset(base + offset + start + value_len, 0, total - start - value_len)
    return total


cdef enum FrameState:
    FRAME_GOOD = 0
    FRAME_ZERO = 1     # commit is 0: not published
    FRAME_LENGTH = 2   # runs past its bound, or its parts do not fit its body
    FRAME_CRC = 3
    FRAME_KIND = 4     # intact, but of a kind or with flags that this version does not know
    FRAME_ORDER = 5    # intact, but not the expected frame


cdef inline FrameState frame_check(
    const char *p, uint64_t room, bint check_crc, uint64_t *total
) noexcept nogil:
    """Check the frame in the ``room`` bytes at ``p``. Sets its length if it is good."""
    cdef uint32_t commit
    cdef uint64_t body, parts
    cdef uint16_t key_len
    cdef uint8_t kind, flags
    if room < PSK_FRAME_HEADER_BYTES:
        return FRAME_LENGTH
    commit = psk_load32(p)
    if commit == 0:
        return FRAME_ZERO
    body = commit - 1
    total[0] = align8(PSK_FRAME_HEADER_BYTES + body)
    if total[0] > room:
        return FRAME_LENGTH
    if check_crc and psk_get32(p + PSK_FRAME_CRC) != <uint32_t>~psk_crc(
        0xFFFFFFFF, p + PSK_FRAME_SEQ, PSK_FRAME_HEADER_BYTES - PSK_FRAME_SEQ + body
    ):
        return FRAME_CRC
    kind = <uint8_t>p[PSK_FRAME_KIND]
    flags = <uint8_t>p[PSK_FRAME_FLAGS]
    if kind == 0 or kind > PSK_KIND_MAX or flags & ~PSK_FLAGS_KNOWN:
        return FRAME_KIND
    key_len = psk_get16(p + PSK_FRAME_KEY_LEN)
    parts = <uint64_t>psk_get16(p + PSK_FRAME_HEADERS_LEN) + psk_get16(p + PSK_FRAME_TOPIC_LEN)
    if key_len != PSK_NO_KEY:
        parts += key_len
    if flags & PSK_FLAG_EVENT_TIME:
        parts += PSK_EVENT_TIME_BYTES
    if parts > body:
        return FRAME_LENGTH
    return FRAME_GOOD


cdef inline bint is_event(const char *p) noexcept nogil:
    return p[PSK_FRAME_KIND] == PSK_KIND_DATA or p[PSK_FRAME_KIND] == PSK_KIND_DELETE


cdef inline uint64_t frame_event_ns(const char *p) noexcept nogil:
    if p[PSK_FRAME_FLAGS] & PSK_FLAG_EVENT_TIME:
        return psk_get64(p + PSK_FRAME_HEADER_BYTES)
    return psk_get64(p + PSK_FRAME_APPEND_NS)


cdef inline const char *frame_topic(const char *p) noexcept nogil:
    if p[PSK_FRAME_FLAGS] & PSK_FLAG_EVENT_TIME:
        return p + PSK_FRAME_HEADER_BYTES + PSK_EVENT_TIME_BYTES
    return p + PSK_FRAME_HEADER_BYTES


cdef enum:
    TTL_MARK_BYTES = 24  # of the header that limits the life of an event, which is its first one
    TTL_NAME_BYTES = 12


cdef inline bint leads_with_ttl(const char *headers, uint32_t nbytes) noexcept nogil:
    """Whether headers begin with the one that limits the life of their event."""
    return (
        nbytes >= TTL_MARK_BYTES
        and psk_get32(headers) == (TTL_NAME_BYTES | <uint32_t>PSK_MARK_BYTES << 16)
        and memcmp(headers + PSK_EVENT_HEADER_BYTES, PSK_TTL_NAME, TTL_NAME_BYTES) == 0
    )


cdef inline uint64_t frame_ttl(const char *p) noexcept nogil:
    """How many nanoseconds an event lives; U64_MAX without a limit of its own."""
    cdef const char *headers = frame_topic(p) + psk_get16(p + PSK_FRAME_TOPIC_LEN)
    if not leads_with_ttl(headers, psk_get16(p + PSK_FRAME_HEADERS_LEN)):
        return U64_MAX
    return psk_get64(headers + TTL_MARK_BYTES - PSK_MARK_BYTES)


cdef bint frame_expired(const char *p, uint64_t log_ttl, uint64_t now) noexcept nogil:
    """Whether the life of an event is over; ``log_ttl`` limits that of every event of its log, 0: not."""
    cdef uint64_t ttl = frame_ttl(p), born = psk_get64(p + PSK_FRAME_APPEND_NS)
    if log_ttl and log_ttl < ttl:
        ttl = log_ttl
    return born <= now and now - born >= ttl


cdef bint frame_has_tags(const char *p, const char *tags, uint32_t tags_len) noexcept nogil:
    """Whether the frame has every header in ``tags``, a result of `encode_tags`.

    The frame has passed `frame_check`; its headers may have any content.
    """
    cdef const char *start = frame_topic(p) + psk_get16(p + PSK_FRAME_TOPIC_LEN)
    cdef uint32_t headers_len = psk_get16(p + PSK_FRAME_HEADERS_LEN)
    cdef uint32_t want, left, n
    cdef const char *at
    while tags_len:
        want = header_bytes(tags)
        at = start
        left = headers_len
        while True:
            if left < want:
                return False
            n = header_bytes(at)
            if n == want and memcmp(at, tags, n) == 0:
                break
            if n > left:
                return False
            at += n
            left -= n
        tags += want
        tags_len -= want
    return True


cdef inline uint32_t header_bytes(const char *at) noexcept nogil:
    """The length of the header at ``at``, as it says itself."""
    cdef uint16_t value_len = psk_get16(at + PSK_EVENT_HEADER_VALUE_LEN)
    return <uint32_t>PSK_EVENT_HEADER_BYTES + psk_get16(at) + (0 if value_len == PSK_NULL_HEADER else value_len)


_EPOCH = _datetime.datetime(1970, 1, 1, tzinfo=_datetime.timezone.utc)


cdef str _VALUE = _sys.intern("value")
cdef str _DATA = _sys.intern("data")
cdef char NO_FRAME[48]
memset(NO_FRAME, 0, sizeof(NO_FRAME))
psk_put32(NO_FRAME, 1)
psk_put64(NO_FRAME + PSK_FRAME_KEY_LEN, PSK_NO_KEY | (<uint64_t>PSK_KIND_DATA << PSK_KIND_SHIFT))


class EventHeaders(tuple):
    """The headers of an event: a tuple of ``(name, value)`` pairs, in order, and a mapping by name.

    Iteration, ``len`` and a number as index work on pairs. A name as index gives the value of the last
    pair of that name, as for ``dict(headers)``; `get_all` gives all of them.
    """

    __slots__ = ()

    def __getitem__(self, key):
        if not isinstance(key, str):
            return tuple.__getitem__(self, key)
        for name, value in reversed(self):
            if name == key:
                return value
        raise KeyError(key)

    def __contains__(self, key):
        if isinstance(key, str):
            return any(name == key for name, _ in self)
        return tuple.__contains__(self, key)

    def get(self, name, default=None):
        """The value of the last header of that name; ``default`` if there is none."""
        return self[name] if name in self else default

    def get_all(self, name):
        """The values of all headers of that name, in order."""
        return [value for own, value in self if own == name]

    def keys(self):
        """The names, in order; one that repeats is listed each time."""
        return [name for name, _ in self]

    def values(self):
        """The values, in order."""
        return [value for _, value in self]

    def items(self):
        """The pairs, in order."""
        return list(self)

    def __reduce__(self):
        return EventHeaders, (tuple(self),)


_NO_HEADERS = EventHeaders()


@cython.freelist(256)
@cython.final
@cython.no_gc  # its owner refers to no event, so there is no cycle
cdef class Event:
    """One event, read from the log.

    It points at the frame and decodes a field when it is requested. It stays valid after the log is
    closed and after the segment is deleted.
    """

    cdef object owner
    cdef const char *p

    def __cinit__(self, *args, **kwargs):
        self.p = NO_FRAME

    def __init__(self, *args, **kwargs):
        raise WrongType(
            "an Event comes from a log: use log[seq] or log.read(); to append one use log.append(), or "
            "log.extend() with penstock.Entry")

    @classmethod
    def __class_getitem__(cls, data):
        """``Event[T]``, for annotations: an event whose ``data`` is a T."""
        return _GenericAlias(cls, data)

    @property
    def seq(self):
        """The event's number in its log, from 1."""
        return psk_get64(self.p + PSK_FRAME_SEQ)

    @property
    def append_ns(self):
        """The time of the append: UTC nanoseconds since 1970, never going back within a log."""
        return psk_get64(self.p + PSK_FRAME_APPEND_NS)

    @property
    def time_ns(self):
        """The event's own time, else ``append_ns``."""
        return frame_event_ns(self.p)

    @property
    def time(self):
        """``time_ns`` as an aware datetime, rounded down to microseconds."""
        cdef uint64_t us = frame_event_ns(self.p) // 1000
        return _EPOCH + _datetime.timedelta(seconds=us // 1000000, microseconds=us % 1000000)

    @property
    def topic(self):
        """The topic; an empty string if none was given."""
        cdef uint16_t n = psk_get16(self.p + PSK_FRAME_TOPIC_LEN)
        if n == 0:
            return ""
        try:
            return PyUnicode_DecodeUTF8(frame_topic(self.p), n, NULL)
        except UnicodeDecodeError as error:
            raise Corrupt(f"seq {self.seq}: the topic is not UTF-8: {error}", seq=self.seq) from None

    @property
    def key(self):
        """The key as bytes, or None. An empty key is a key."""
        cdef uint16_t n = psk_get16(self.p + PSK_FRAME_KEY_LEN)
        if n == PSK_NO_KEY:
            return None
        return PyBytes_FromStringAndSize(self.key_start(), n)

    def __getattribute__(self, name):
        if name is _VALUE:  # avoids the type's dictionary, half of the cost of a value
            return self.get_value()
        if name is _DATA:
            return data_of(self)
        return PyObject_GenericGetAttr(self, name)

    @property
    def value(self):
        """The value as bytes; None if the event deletes its key."""
        return self.get_value()

    cdef inline object get_value(self):
        cdef uint64_t n
        cdef const char *at = self.value_start(&n)
        if self.p[PSK_FRAME_KIND] == PSK_KIND_DELETE:
            return None
        return PyBytes_FromStringAndSize(at, <Py_ssize_t>n)

    @property
    def view(self):
        """The value as a read-only memoryview of the log's bytes, without a copy."""
        return PyMemoryView_FromObject(self)

    @property
    def headers(self):
        """The headers: a tuple of ``(name, value)`` pairs, in order, which is also a mapping.

        A value may be None, and names may repeat. See `EventHeaders`.

        >>> log = penstock.open(path)
        >>> log.append(b"x", headers={"source": b"web"})
        1
        >>> log[1].headers, log[1].headers["source"], "lost" in log[1].headers
        ((('source', b'web'),), b'web', False)
        """
        cdef uint16_t n = psk_get16(self.p + PSK_FRAME_HEADERS_LEN)
        if n == 0:
            return _NO_HEADERS
        return decode_headers(frame_topic(self.p) + psk_get16(self.p + PSK_FRAME_TOPIC_LEN), n, self.seq)

    def header(self, name, default=None):
        """The value of the last header called ``name``; ``default`` if there is none.

        >>> log = penstock.open(path)
        >>> log.append(b"x", headers={"source": b"web"})
        1
        >>> log[1].header("source"), log[1].header("lost", b"?")
        (b'web', b'?')
        """
        if not isinstance(name, str):
            raise WrongType(f"name must be the name of a header, got {type(name).__name__}")
        return self.headers.get(name, default)

    @property
    def data(self):
        """The value as an object, decoded at each access: by the codec that the event names, else the log's.

        It has the type of the log's schema, if the log was opened with one. None if the event deletes its
        key. A value that does not fit raises `BadData`, an unknown codec `NoCodec`.

        >>> log = penstock.open(path, codec="json")
        >>> log.append({"total": 12})
        1
        >>> log[1].data["total"], log[1].value
        (12, b'{"total":12}')
        """
        return data_of(self)

    @property
    def tags(self):
        """The tags that the event was appended with, in order."""
        return tags_of(self)

    @property
    def not_before(self):
        """From when on groups hand the event out, in nanoseconds since 1970; None: at once."""
        return not_before_of(self.p)

    @property
    def not_before_time(self):
        """``not_before`` as an aware datetime, or None."""
        return moment(not_before_of(self.p))

    @property
    def expires(self):
        """When its own ``ttl`` ends: the time of its append plus that, in nanoseconds since 1970; or None.

        A ``ttl`` of the log, which may end its life sooner, does not count.
        """
        cdef uint64_t ttl = frame_ttl(self.p), born = psk_get64(self.p + PSK_FRAME_APPEND_NS)
        return None if ttl == U64_MAX else min(born, U64_MAX - ttl) + ttl

    @property
    def expires_time(self):
        """``expires`` as an aware datetime, or None."""
        return moment(self.expires)

    @property
    def deletes(self):
        """Whether the event deletes its key."""
        return self.p[PSK_FRAME_KIND] == PSK_KIND_DELETE

    @property
    def batch_left(self):
        """How many frames of the same atomic batch follow this one."""
        return psk_get32(self.p + PSK_FRAME_BATCH_LEFT)

    cdef inline const char *key_start(self) noexcept:
        return (
            frame_topic(self.p)
            + psk_get16(self.p + PSK_FRAME_TOPIC_LEN)
            + psk_get16(self.p + PSK_FRAME_HEADERS_LEN)
        )

    cdef inline const char *value_start(self, uint64_t *n) noexcept:
        cdef const char *at = self.key_start()
        cdef uint16_t key_len = psk_get16(self.p + PSK_FRAME_KEY_LEN)
        if key_len != PSK_NO_KEY:
            at += key_len
        n[0] = <uint64_t>(psk_get32(self.p) - 1) - <uint64_t>(at - self.p - PSK_FRAME_HEADER_BYTES)
        return at

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        cdef uint64_t n
        cdef const char *at = self.value_start(&n)
        PyBuffer_FillInfo(buffer, self, <void *>at, <Py_ssize_t>n, 1, flags)

    def __eq__(self, other):
        if not isinstance(other, Event):
            return NotImplemented
        cdef Event o = <Event>other
        cdef uint64_t n = PSK_FRAME_HEADER_BYTES + psk_get32(self.p) - 1
        return psk_get32(self.p) == psk_get32(o.p) and memcmp(
            self.p + PSK_FRAME_SEQ, o.p + PSK_FRAME_SEQ, n - PSK_FRAME_SEQ) == 0

    def __hash__(self):
        return hash((self.seq, psk_get32(self.p + PSK_FRAME_CRC)))

    def __repr__(self):
        value = self.value
        if value is not None and len(value) > 40:
            value = value[:40] + b"..."
        parts = [f"seq={self.seq}"]
        if self.topic:
            parts.append(f"topic={self.topic!r}")
        if self.key is not None:
            parts.append(f"key={self.key!r}")
        parts.append(f"value={value!r}")
        return f"Event({', '.join(parts)})"

    def __reduce__(self):
        cdef uint64_t n = PSK_FRAME_HEADER_BYTES + psk_get32(self.p) - 1
        cdef Coder coder
        frame = PyBytes_FromStringAndSize(self.p, <Py_ssize_t>n)
        try:
            coder = log_coder(self)  # the event's own codec, if it has one, is in its headers
        except Corrupt:
            coder = None  # unreadable settings give no codec, but the event is still usable
        if coder is None or coder.name == "bytes":
            return event_from_frame, (frame,)
        return event_from_frame, (frame, coder.name)


cdef inline Event make_event(object owner, const char *p):
    cdef Event e = Event.__new__(Event)
    e.owner = owner
    e.p = p
    return e


def event_from_frame(frame, codec=None):
    """The event in ``frame``, the bytes of one whole frame; how events are unpickled."""
    cdef uint64_t total = 0
    cdef FrameState state
    if not PyBytes_CheckExact(frame):
        raise WrongType(f"a frame must be bytes, got {type(frame).__name__}")
    padded = frame + bytes((8 - len(frame) % 8) % 8)
    state = frame_check(PyBytes_AS_STRING(padded), <uint64_t>PyBytes_GET_SIZE(padded), True, &total)
    if state != FRAME_GOOD or not is_event(PyBytes_AS_STRING(padded)):
        raise Corrupt("these bytes are not the frame of an event")
    owner = padded if codec is None else (padded, Coder(codec))
    return make_event(owner, PyBytes_AS_STRING(padded))


cdef object decode_headers(const char *at, uint16_t n, object seq):
    cdef uint32_t left = n
    cdef uint16_t name_len, value_len
    cdef uint32_t value_bytes
    pairs = []
    while left:
        if left < PSK_EVENT_HEADER_BYTES:
            raise Corrupt(f"seq {seq}: the headers end in the middle of a pair", seq=seq)
        name_len = psk_get16(at)
        value_len = psk_get16(at + PSK_EVENT_HEADER_VALUE_LEN)
        value_bytes = 0 if value_len == PSK_NULL_HEADER else value_len
        if <uint32_t>PSK_EVENT_HEADER_BYTES + name_len + value_bytes > left:
            raise Corrupt(f"seq {seq}: a header runs past the headers' end", seq=seq)
        try:
            name = PyUnicode_DecodeUTF8(at + PSK_EVENT_HEADER_BYTES, name_len, NULL)
        except UnicodeDecodeError as error:
            raise Corrupt(f"seq {seq}: a header's name is not UTF-8: {error}", seq=seq) from None
        value = None
        if value_len != PSK_NULL_HEADER:
            value = PyBytes_FromStringAndSize(at + PSK_EVENT_HEADER_BYTES + name_len, value_len)
        pairs.append((name, value))
        at += PSK_EVENT_HEADER_BYTES + name_len + value_bytes
        left -= PSK_EVENT_HEADER_BYTES + name_len + value_bytes
    return EventHeaders(pairs)


def encode_headers(headers):
    """The bytes of a caller's headers: a mapping or pairs of ``(str, bytes or None)``."""
    return pack_headers(headers, True)


cdef bytes pack_headers(object headers, bint users=False):
    """The same; those of ``users`` must not have names that are reserved for Penstock."""
    if hasattr(headers, "items"):
        headers = headers.items()
    out = bytearray()
    try:
        for name, value in headers:
            if not isinstance(name, str):
                raise WrongType(f"a header's name must be str, got {type(name).__name__}")
            if users and name.startswith("penstock."):
                raise Usage(
                    f"header {name[:80]!r} must not begin with 'penstock.', which is reserved for Penstock: "
                    "use tags=, codec=, not_before= or ttl=, or give the event itself to append it again")
            if value is not None and not isinstance(value, (bytes, bytearray, memoryview)):
                raise WrongType(
                    f"the value of header {name!r} must be bytes or None, got {type(value).__name__}"
                )
            if isinstance(value, memoryview):
                check_items(value, value, value.ndim, f"the value of header {name!r}")
            raw = name.encode()
            data = b"" if value is None else bytes(value)
            if len(raw) + len(data) + PSK_EVENT_HEADER_BYTES > PSK_HEADERS_BYTES_MAX:
                raise TooLarge(
                    f"header {name[:40]!r} takes {len(raw) + len(data) + PSK_EVENT_HEADER_BYTES} bytes; "
                    f"all headers together must take at most {PSK_HEADERS_BYTES_MAX}"
                )
            out += len(raw).to_bytes(2, "little")
            out += (PSK_NULL_HEADER if value is None else len(data)).to_bytes(2, "little")
            out += raw
            out += data
    except UnicodeEncodeError as error:
        raise Usage(f"a header's name must be text that UTF-8 can encode: {error}") from None
    except (TypeError, ValueError, NotImplementedError) as error:
        if isinstance(error, Usage):
            raise
        raise WrongType(f"headers must be a mapping or pairs of (str, bytes or None): {error}") from None
    if len(out) > PSK_HEADERS_BYTES_MAX:
        raise TooLarge(f"headers must take at most {PSK_HEADERS_BYTES_MAX} bytes, got {len(out)}")
    return bytes(out)
