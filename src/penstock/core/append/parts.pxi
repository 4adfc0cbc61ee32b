# Arguments of one event, checked, with pointers to their bytes: value, key, topic, headers, time and tags.

cdef object _to_ns = None
cdef object _due_ns = None
cdef object _span_ns = None
cdef type _Entry = None
cdef uint64_t TIME_NS_MAX = (<uint64_t>1 << 63) - 1  # the limit of Arrow's timestamps


cdef int load_above() except -1:
    """Load modules above this one, which the first append that is not plain bytes needs."""
    global _to_ns, _due_ns, _span_ns, _Entry
    times = _import_module("penstock.times")
    _to_ns, _due_ns, _span_ns = times.to_ns, times.due_ns, times.span_ns
    _Entry = _import_module("penstock.event").Entry
    return 0


cdef inline type entry_type():
    if _Entry is None:
        load_above()
    return _Entry


cdef inline void parts_plain(Parts *p, bytes value) noexcept:
    """Point at the bytes of an event that is only a value."""
    p.value = PyBytes_AS_STRING(value)
    p.value_len = <uint64_t>PyBytes_GET_SIZE(value)
    p.topic_len = 0
    p.headers_len = 0
    p.key_len = PSK_NO_KEY
    p.kind = PSK_KIND_DATA
    p.flags = 0
    p.fixed = True


cdef inline uint64_t parts_bytes(const Parts *p) noexcept nogil:
    """The length of the frame of an event."""
    return align8(PSK_FRAME_HEADER_BYTES + parts_prefix(p) + p.value_len)


cdef int parts_fill(
    Parts *p, list pins, object value, object key, object topic, object headers, object time,
    bytes marks=None, bytes lead=None,
) except -1:
    """Check one event and point at its bytes; ``pins`` keeps them there.

    ``marks`` are Penstock's own headers, which follow the caller's; ``lead`` are those before them.
    """
    memset(p, 0, sizeof(Parts))
    p.kind = PSK_KIND_DATA
    p.key_len = PSK_NO_KEY
    set_value(p, pins, value, False)
    if key is not None:
        set_key(p, pins, key)
    elif value is None:
        raise no_key()
    if topic is not None:
        set_topic(p, topic)
    if headers is not None or marks is not None or lead is not None:
        set_headers(p, pins, lead, b"" if headers is None else encode_headers(headers), marks)
    if time is not None:
        set_time(p, time)
    return 0


cdef object no_key():
    return Usage("an event with the value None must have a key, which it deletes")


cdef inline int set_value(Parts *p, list pins, object value, bint copies) except -1:
    """Point at a value; ``copies`` takes a copy of what its owner may change."""
    if PyBytes_CheckExact(value):
        p.fixed = True
        p.value = PyBytes_AS_STRING(value)
        p.value_len = <uint64_t>PyBytes_GET_SIZE(value)
        if p.value_len > PSK_VALUE_BYTES_MAX:
            raise too_long(p.value_len)
        return 0
    if value is None:
        p.kind = PSK_KIND_DELETE
        p.value_len = 0
        return 0
    return set_buffer(p, pins, flat(value, "value"), copies)


cdef int set_buffer(Parts *p, list pins, object view, bint copies) except -1:
    p.value_len = <uint64_t>view.nbytes
    if p.value_len > PSK_VALUE_BYTES_MAX:
        raise too_long(p.value_len)
    if copies:
        view = bytes(view)
    pins.append(view)
    p.value = <const char *>buffer_start(view)
    p.fixed = copies
    return 0


cdef object too_long(uint64_t nbytes):
    return TooLarge(f"value must be at most {PSK_VALUE_BYTES_MAX} bytes, got {nbytes}")


cdef inline int set_key(Parts *p, list pins, object key) except -1:
    cdef Py_ssize_t n
    if not PyBytes_CheckExact(key):
        key = bytes(flat(key, "key"))
        pins.append(key)
    n = PyBytes_GET_SIZE(key)
    if n > PSK_KEY_BYTES_MAX:
        raise TooLarge(f"key must be at most {PSK_KEY_BYTES_MAX} bytes, got {n}")
    p.key = PyBytes_AS_STRING(key)
    p.key_len = <uint16_t>n
    return 0


cdef inline int set_topic(Parts *p, object topic) except -1:
    """Point at a topic; the caller keeps the text alive."""
    cdef Py_ssize_t n = 0
    if not isinstance(topic, str):
        raise WrongType(f"topic must be str, got {type(topic).__name__}")
    try:
        p.topic = PyUnicode_AsUTF8AndSize(topic, &n)
    except UnicodeEncodeError as error:
        raise Usage(f"topic must be text that UTF-8 can encode: {error}") from None
    if n > PSK_TOPIC_BYTES_MAX:
        raise TooLarge(f"topic must be at most {PSK_TOPIC_BYTES_MAX} bytes, got {n}")
    p.topic_len = <uint16_t>n
    return 0


cdef int set_headers(Parts *p, list pins, bytes lead, bytes headers, bytes marks) except -1:
    """Point at headers that are encoded already: Penstock's ``lead``, the caller's, other marks."""
    if lead is not None:
        headers = lead + headers
    if marks is not None:
        headers = headers + marks
    if len(headers) > PSK_HEADERS_BYTES_MAX:
        raise TooLarge(
            f"headers and tags must take at most {PSK_HEADERS_BYTES_MAX} bytes, got {len(headers)}")
    pins.append(headers)
    p.headers = PyBytes_AS_STRING(headers)
    p.headers_len = <uint16_t>PyBytes_GET_SIZE(headers)
    return 0


cdef int set_time(Parts *p, object time) except -1:
    if _to_ns is None:
        load_above()
    ns = _to_ns(time, "time")
    if not 0 <= ns <= TIME_NS_MAX:
        raise Usage(f"time must be from 1970-01-01 to 2262-04-11, got {time!r}")
    p.event_ns = ns
    p.flags |= PSK_FLAG_EVENT_TIME
    return 0


# In the format of a buffer's items: names of fields, which are not types; characters of text; and
# references. Z before f, d or g is a complex number.
cdef object _FIELD_NAMES = _re.compile(":[^:]*:")
cdef object _TEXT_ITEMS = _re.compile("[uw]")
cdef object _ADDRESS_ITEMS = _re.compile("[OPz&X]|Z(?![fdg])")


cdef object flat(object data, str what):
    """A one-dimensional memoryview of bytes over ``data``."""
    if isinstance(data, (str, Event)) or not PyObject_CheckBuffer(data):
        raise WrongType(f"{what} must be bytes, got {type(data).__name__}{hint_for(data, what)}")
    try:
        view = memoryview(data)
        dimensions = view.ndim
        if not isinstance(data, bytes):  # numpy's bytes are; its other scalars may claim to be
            dimensions = min(dimensions, getattr(data, "ndim", 1))
    except (TypeError, ValueError, BufferError) as error:
        raise WrongType(f"{what} must be a readable buffer: {error}") from None
    check_items(data, view, dimensions, what)
    try:
        return view.cast("B")
    except TypeError as error:
        raise WrongType(f"{what} must be one contiguous buffer: {error}") from None


cdef int check_items(object data, object view, Py_ssize_t dimensions, str what) except -1:
    """Refuse a buffer whose memory has no meaning alone: one number, text, or addresses."""
    if dimensions == 0:
        raise WrongType(
            f"{what} must be bytes, got {type(data).__name__}, which is one number, not a buffer of bytes; "
            "encode it first")
    cdef str items = view.format
    if len(items) == 1 and items in "Bbc":
        return 0
    items = _FIELD_NAMES.sub("", items)
    if _TEXT_ITEMS.search(items):
        raise WrongType(f"{what} must be bytes, got {type(data).__name__} of text; encode it first")
    if _ADDRESS_ITEMS.search(items):
        raise WrongType(
            f"{what} must be bytes, got {type(data).__name__} of objects or pointers, whose memory holds only "
            "addresses; encode it first")
    return 0


cdef str hint_for(object data, str what):
    """A hint at what was probably meant where bytes are needed."""
    if isinstance(data, str):
        return "; encode it first"
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        return "; extend and load take Arrow data itself, not a list of it"
    if what != "value":
        return ""
    if isinstance(data, Event):
        return "; give the event itself, or its value"
    if isinstance(data, tuple):
        return "; to give a value a key or topic, use penstock.Entry(value, key=..., topic=...)"
    return "; to store objects, create the log with a codec, such as codec='json'"


cdef void *buffer_start(object view) except? NULL:
    cdef Py_buffer b
    cdef void *start
    PyObject_GetBuffer(view, &b, PyBUF_SIMPLE)
    start = b.buf
    PyBuffer_Release(&b)  # the memoryview itself stays pinned by the caller
    return start


cdef object whole_number(object given, str what):
    """A whole number that may be a seq: anything with ``__index__`` except a bool."""
    if type(given) is int:
        return given
    if isinstance(given, bool) or not PyIndex_Check(given):
        raise WrongType(f"{what} must be a whole number, got {type(given).__name__}")
    try:
        return PyNumber_Index(given)
    except TypeError:
        raise WrongType(f"{what} must be a whole number, got {type(given).__name__}") from None


def key_bytes(key):
    """The key to select by, as it is in frames; None for any key."""
    return None if key is None else bytes(flat(key, "key"))


def check_producer(given):
    """Id, as bytes, and number of a producer, checked."""
    try:
        who, n = given
    except (TypeError, ValueError, NotImplementedError):
        raise WrongType(f"producer must be a pair (id, n), got {given!r}") from None
    if not isinstance(who, str):
        raise WrongType(f"a producer's id must be str, got {type(who).__name__}")
    n = whole_number(n, "a producer's number")
    if n < 0 or n >> 64:
        raise Usage(f"a producer's number must be from 0 to 2**64 - 1, got {n}")
    try:
        raw = who.encode()
    except UnicodeEncodeError as error:
        raise Usage(f"a producer's id must be text that UTF-8 can encode: {error}") from None
    if not 0 < len(raw) <= PSK_PRODUCER_ID_BYTES_MAX:
        raise TooLarge(f"a producer's id must be 1 to {PSK_PRODUCER_ID_BYTES_MAX} bytes, got {len(raw)}")
    return raw, n
