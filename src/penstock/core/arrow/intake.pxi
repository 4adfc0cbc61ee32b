# Intake: Arrow columns given to extend or load, turned into events without an object per row.

cdef enum Layout:
    LAYOUT_TEXT32, LAYOUT_TEXT64, LAYOUT_VIEW, LAYOUT_FIXED, LAYOUT_DICTIONARY
    LAYOUT_TIME, LAYOUT_LIST32, LAYOUT_LIST64, LAYOUT_NULL


cdef struct Column:
    # One column of one batch: what is needed to find the bytes of a row.
    Layout layout
    const ArrowArray *array
    const uint8_t *valid      # NULL: no row is null
    uint64_t width            # LAYOUT_FIXED: bytes of a row; LAYOUT_DICTIONARY: bytes of an index
    bint signed_index
    int64_t scale             # LAYOUT_TIME: nanoseconds in its unit
    bint whole                # LAYOUT_TIME: whole numbers without a unit
    bint given                # whether there is such a column


_INDEX_BYTES = {b"c": 1, b"C": 1, b"s": 2, b"S": 2, b"i": 4, b"I": 4, b"l": 8, b"L": 8}


cdef str layout_of(const ArrowSchema *s, Column *c):
    """Note how a column of text or bytes is laid out; returns what is wrong with it, or None."""
    cdef bytes form = <bytes>s.format
    memset(c, 0, sizeof(Column))
    c.given = True
    if s.dictionary != NULL:
        c.layout = LAYOUT_DICTIONARY
        c.width = _INDEX_BYTES.get(form, 0)
        c.signed_index = form in (b"c", b"s", b"i", b"l")
        return None if c.width else "has indexes of an unknown type"
    if form in (b"z", b"u"):
        c.layout = LAYOUT_TEXT32
    elif form in (b"Z", b"U"):
        c.layout = LAYOUT_TEXT64
    elif form in (b"vz", b"vu"):
        c.layout = LAYOUT_VIEW
    elif form == b"n":  # the type that a frame gives a column of None only
        c.layout = LAYOUT_NULL
    elif form.startswith(b"w:") and form[2:].isdigit():
        c.layout = LAYOUT_FIXED
        c.width = int(form[2:])
    else:
        return "is neither text nor bytes"
    return None


cdef void column_bind(Column *c, const ArrowArray *a) noexcept nogil:
    """Point a column at the buffers of one batch."""
    c.array = a
    c.valid = <const uint8_t *>a.buffers[0] if a.null_count != 0 and a.n_buffers else NULL


cdef inline bint bit_clear(const uint8_t *bits, int64_t at) noexcept nogil:
    return bits != NULL and not bits[at >> 3] >> (at & 7) & 1


cdef inline bint column_null(const Column *c, int64_t row) noexcept nogil:
    return c.layout == LAYOUT_NULL or bit_clear(c.valid, row + c.array.offset)


cdef inline int64_t index_at(const Column *c, int64_t row) noexcept nogil:
    """The index of a row in its dictionary; one beyond 63 bits becomes negative."""
    cdef const char *index = <const char *>c.array.buffers[1] + (row + c.array.offset) * <int64_t>c.width
    if c.width == 1:
        return (<const int8_t *>index)[0] if c.signed_index else (<const uint8_t *>index)[0]
    if c.width == 2:
        return (<const int16_t *>index)[0] if c.signed_index else (<const uint16_t *>index)[0]
    if c.width == 4:
        return (<const int32_t *>index)[0] if c.signed_index else (<const uint32_t *>index)[0]
    return (<const int64_t *>index)[0]


cdef inline bint row_null(const Column *c, const Column *words, int64_t row) noexcept nogil:
    """Whether a row is null, by itself or because its dictionary entry is."""
    cdef int64_t i
    if c.layout != LAYOUT_DICTIONARY or column_null(c, row):
        return column_null(c, row)
    i = index_at(c, row)
    return 0 <= i < words.array.length and column_null(words, i)


cdef bint bytes_at(const Column *c, const Column *words, int64_t row, const char **at, uint64_t *n) noexcept nogil:
    """Find the bytes of a row that is not null; False if the column is not consistent.

    ``words`` is the dictionary, if the column has one.
    """
    cdef int64_t i = row + c.array.offset, first, last
    cdef const int32_t *o32
    cdef const int64_t *o64
    cdef const char *view
    at[0] = b""  # an empty column may have no buffer
    if c.layout == LAYOUT_TEXT32:
        o32 = <const int32_t *>c.array.buffers[1]
        first = o32[i]
        last = o32[i + 1]
    elif c.layout == LAYOUT_TEXT64:
        o64 = <const int64_t *>c.array.buffers[1]
        first = o64[i]
        last = o64[i + 1]
    elif c.layout == LAYOUT_FIXED:
        first = i * <int64_t>c.width
        if c.width:
            at[0] = <const char *>c.array.buffers[1] + first
        n[0] = c.width
        return True
    elif c.layout == LAYOUT_VIEW:
        view = <const char *>c.array.buffers[1] + 16 * i
        n[0] = psk_get32(view)
        if n[0] <= 12:
            at[0] = view + 4
            return True
        first = psk_get32(view + 8)
        if first + 3 >= c.array.n_buffers:  # the last buffer has the lengths of the others
            return False
        at[0] = <const char *>c.array.buffers[2 + first] + psk_get32(view + 12)
        last = (<const int64_t *>c.array.buffers[c.array.n_buffers - 1])[first]
        return n[0] >> 31 == 0 and <int64_t>(psk_get32(view + 12) + n[0]) <= last
    elif c.layout != LAYOUT_DICTIONARY:
        return False
    else:
        first = index_at(c, row)
        if first < 0 or first >= words.array.length:
            return False
        return bytes_at(words, NULL, first, at, n)
    if first < 0 or last < first:
        return False
    n[0] = <uint64_t>(last - first)
    if n[0]:
        at[0] = <const char *>c.array.buffers[2] + first
    return n[0] == 0 or c.array.buffers[2] != NULL


cdef int64_t spans_of_text(
    const Column *c, int64_t row, int64_t last, uint64_t prefix, ByteSpan *spans, uint64_t *nbytes
) noexcept nogil:
    """Find the bytes of rows in the usual layout; returns how many rows, up to the first exception."""
    cdef const int32_t *offsets = <const int32_t *>c.array.buffers[1] + row + c.array.offset
    cdef const char *data = <const char *>c.array.buffers[2]
    cdef int64_t i, n = last - row
    cdef int64_t length
    cdef uint64_t total = 0
    if data == NULL:
        return 0
    for i in range(n):
        length = <int64_t>offsets[i + 1] - offsets[i]
        if offsets[i] < 0 or length < 0 or length > PSK_VALUE_BYTES_MAX:
            n = i
            break
        spans[i].start = data + offsets[i]
        spans[i].length = <uint64_t>length
        total += align8(PSK_FRAME_HEADER_BYTES + prefix + <uint64_t>length)
    nbytes[0] += total
    return n


cdef enum Refusal:
    TAKEN = 0
    REFUSED_VALUE       # too long
    REFUSED_KEY
    REFUSED_TOPIC
    REFUSED_HEADERS
    REFUSED_TEXT        # a topic or a header's name is not UTF-8, or the name is null
    REFUSED_NAME        # a header has a name that is reserved for Penstock
    REFUSED_MARK        # a header of Penstock has an invalid value
    REFUSED_TIME        # before 1970 or after what 63 bits hold
    REFUSED_UNIT        # a time that looks like seconds, milliseconds or microseconds
    REFUSED_NOTHING     # neither value nor key
    REFUSED_LAYOUT


cdef struct Columned:
    # The columns of one batch, by purpose. A dictionary is next to its column.
    Column value
    Column value_words
    Column key
    Column key_words
    Column topic
    Column topic_words
    Column time
    Column headers
    Column names
    Column names_words
    Column values
    Column values_words
    uint16_t ttl_len            # of the part that all rows share: the header with a time to live,
    uint16_t codec_len          # the one that names a codec,
    uint16_t due_len            # a time to wait for,
    uint16_t tags_len           # and tags
    const ArrowArray *pairs
    const uint8_t *pairs_valid  # NULL: no pair is null


cdef Refusal headers_span(const Columned *c, int64_t row, int64_t *first, int64_t *last) noexcept nogil:
    """The range of pairs of a row."""
    cdef int64_t at = row + c.headers.array.offset
    if column_null(&c.headers, row):
        first[0] = last[0] = 0
        return TAKEN
    if c.headers.layout == LAYOUT_LIST32:
        first[0] = (<const int32_t *>c.headers.array.buffers[1])[at]
        last[0] = (<const int32_t *>c.headers.array.buffers[1])[at + 1]
    else:
        first[0] = (<const int64_t *>c.headers.array.buffers[1])[at]
        last[0] = (<const int64_t *>c.headers.array.buffers[1])[at + 1]
    if first[0] < 0 or last[0] < first[0] or last[0] > c.pairs.length:
        return REFUSED_LAYOUT
    first[0] += c.pairs.offset
    last[0] += c.pairs.offset
    return TAKEN


cdef enum:
    FOUND_CODEC = 1
    FOUND_TAGS = 2
    FOUND_DUE = 4


cdef Refusal own_header(
    const char *name, uint64_t name_len, const char *value, uint64_t value_len, bint null, bint first,
    int *found,
) noexcept nogil:
    """Check a header, the ``first`` or not: a scan of a log has names that are reserved for Penstock."""
    cdef uint64_t i
    if name_len < 9 or memcmp(name, b"penstock.", 9) != 0:
        return TAKEN
    if name_len == TAG_NAME_BYTES and memcmp(name, PSK_TAG_NAME, name_len) == 0:
        found[0] |= FOUND_TAGS
        return TAKEN if not null and value_len and is_utf8(value, value_len) else REFUSED_MARK
    if name_len == CODEC_NAME_BYTES and memcmp(name, PSK_CODEC_NAME, name_len) == 0:
        found[0] |= FOUND_CODEC
        if null or not 0 < value_len <= 64:
            return REFUSED_MARK
        for i in range(value_len):
            if not (
                b"0" <= value[i] <= b"9" or b"A" <= value[i] <= b"Z" or b"a" <= value[i] <= b"z"
                or (i and value[i] in (b".", b"_", b"+", b"-"))
            ):
                return REFUSED_MARK
        return TAKEN
    if name_len == NOT_BEFORE_NAME_BYTES and memcmp(name, PSK_NOT_BEFORE_NAME, name_len) == 0:
        found[0] |= FOUND_DUE
        return TAKEN if value_len == PSK_MARK_BYTES and psk_get64(value) <= TIME_NS_MAX else REFUSED_MARK
    if name_len == TTL_NAME_BYTES and memcmp(name, PSK_TTL_NAME, name_len) == 0:
        return TAKEN if first and value_len == PSK_MARK_BYTES and 0 < psk_get64(value) <= TIME_NS_MAX else REFUSED_MARK
    return REFUSED_NAME


cdef bint first_is_ttl(const Columned *c, int64_t i, int64_t last) noexcept nogil:
    """Whether the first of a row's pairs gives it a time to live."""
    cdef const char *name = NULL
    cdef uint64_t n = 0
    return (
        i < last and not bit_clear(c.pairs_valid, i) and not row_null(&c.names, &c.names_words, i)
        and bytes_at(&c.names, &c.names_words, i, &name, &n) and n == TTL_NAME_BYTES
        and memcmp(name, PSK_TTL_NAME, n) == 0
    )


cdef Refusal headers_write(
    const Columned *c, const Parts *shared, int64_t row, char *to, uint64_t room, uint64_t *nbytes, int *found
) noexcept nogil:
    """Lay out the headers of a row as frames have them; with ``to`` NULL, only measure them.

    They may not take more than ``room``, even if they have changed since they were measured.
    ``found`` says which headers of Penstock are among them.
    """
    cdef int64_t i = 0, last = 0
    cdef const char *name = NULL
    cdef const char *value = NULL
    cdef uint64_t name_len = 0, value_len = 0
    cdef bint null
    cdef Refusal rc = headers_span(c, row, &i, &last)
    nbytes[0] = 0
    found[0] = 0
    if rc == TAKEN and c.ttl_len and not first_is_ttl(c, i, last):
        if room < c.ttl_len:
            return REFUSED_HEADERS
        if to != NULL:
            memcpy(to, shared.headers, c.ttl_len)
            to += c.ttl_len
        nbytes[0] = c.ttl_len
    while rc == TAKEN and i < last:
        if bit_clear(c.pairs_valid, i) or row_null(&c.names, &c.names_words, i):
            return REFUSED_TEXT
        null = row_null(&c.values, &c.values_words, i)
        value = b""
        value_len = 0
        if not bytes_at(&c.names, &c.names_words, i, &name, &name_len) or (
            not null and not bytes_at(&c.values, &c.values_words, i, &value, &value_len)
        ):
            return REFUSED_LAYOUT
        if nbytes[0] + PSK_EVENT_HEADER_BYTES + name_len + value_len > room:
            return REFUSED_HEADERS
        if to != NULL:
            if not is_utf8(name, name_len):
                return REFUSED_TEXT
            psk_put16(to, <uint16_t>name_len)
            psk_put16(to + PSK_EVENT_HEADER_VALUE_LEN, <uint16_t>(PSK_NULL_HEADER if null else value_len))
            if name_len:
                memcpy(to + PSK_EVENT_HEADER_BYTES, name, name_len)
            if value_len:
                memcpy(to + PSK_EVENT_HEADER_BYTES + name_len, value, value_len)
            name = to + PSK_EVENT_HEADER_BYTES  # check the bytes that were written
            value = name + name_len
            to += PSK_EVENT_HEADER_BYTES + name_len + value_len
        rc = own_header(name, name_len, value, value_len, null, nbytes[0] == 0, found)
        nbytes[0] += PSK_EVENT_HEADER_BYTES + name_len + value_len
        i += 1
    return rc


cdef uint64_t marks_write(const Columned *c, const Parts *shared, int found, char *to) noexcept nogil:
    """Lay out the headers that all rows share, unless a row has its own; with ``to`` NULL, only measure."""
    cdef uint64_t nbytes = 0, at = c.ttl_len
    cdef uint16_t lengths[3]
    cdef int i
    lengths[0] = 0 if found & FOUND_CODEC else c.codec_len
    lengths[1] = 0 if found & FOUND_DUE else c.due_len
    lengths[2] = 0 if found & FOUND_TAGS else c.tags_len
    for i in range(3):
        if to != NULL and lengths[i]:  # if it is 0, there are no headers to copy from
            memcpy(to + nbytes, shared.headers + at, lengths[i])
        nbytes += lengths[i]
        at += c.codec_len if i == 0 else c.due_len
    return nbytes


cdef Refusal time_at(const Column *c, int64_t row, uint64_t *ns) noexcept nogil:
    cdef int64_t t = (<const int64_t *>c.array.buffers[1])[row + c.array.offset]
    if t < 0 or <uint64_t>t > TIME_NS_MAX // <uint64_t>c.scale:
        return REFUSED_TIME
    if c.whole and TIME_TOO_SMALL_MIN <= t < TIME_TOO_SMALL_MAX:
        return REFUSED_UNIT
    ns[0] = <uint64_t>t * <uint64_t>c.scale
    return TAKEN


cdef Refusal row_parts(const Columned *c, const Parts *shared, int64_t row, Parts *p) noexcept nogil:
    """Find the parts of one row, except its headers if they have a column."""
    cdef uint64_t n = 0
    p[0] = shared[0]
    if c.key.given:
        p.key_len = PSK_NO_KEY
        if not row_null(&c.key, &c.key_words, row):
            if not bytes_at(&c.key, &c.key_words, row, &p.key, &n):
                return REFUSED_LAYOUT
            if n > PSK_KEY_BYTES_MAX:
                return REFUSED_KEY
            p.key_len = <uint16_t>n
    if row_null(&c.value, &c.value_words, row):
        if p.key_len == PSK_NO_KEY:
            return REFUSED_NOTHING
        p.kind = PSK_KIND_DELETE
        p.value_len = 0
    else:
        if not bytes_at(&c.value, &c.value_words, row, &p.value, &p.value_len):
            return REFUSED_LAYOUT
        if p.value_len > PSK_VALUE_BYTES_MAX:
            return REFUSED_VALUE
    if c.topic.given:
        p.topic_len = 0
        if not row_null(&c.topic, &c.topic_words, row):
            if not bytes_at(&c.topic, &c.topic_words, row, &p.topic, &n):
                return REFUSED_LAYOUT
            if n > PSK_TOPIC_BYTES_MAX:
                return REFUSED_TOPIC
            p.topic_len = <uint16_t>n
            if not is_utf8(p.topic, n):
                return REFUSED_TEXT
    if c.time.given:
        p.flags &= <uint8_t>~PSK_FLAG_EVENT_TIME
        if not column_null(&c.time, row):
            p.flags |= PSK_FLAG_EVENT_TIME
            return time_at(&c.time, row, &p.event_ns)
    return TAKEN


cdef Refusal row_bytes(const Columned *c, const Parts *shared, int64_t row, Parts *p, uint64_t *nbytes) noexcept nogil:
    """The length of the frame of a row."""
    cdef uint64_t headers = 0
    cdef int found = 0
    cdef Refusal rc = row_parts(c, shared, row, p)
    if rc == TAKEN and c.headers.given:
        rc = headers_write(c, shared, row, NULL, PSK_HEADERS_BYTES_MAX, &headers, &found)
        headers += marks_write(c, shared, found, NULL)
        if rc == TAKEN and headers > PSK_HEADERS_BYTES_MAX:
            return REFUSED_HEADERS
        p.headers_len = <uint16_t>headers
    nbytes[0] = parts_bytes(p)
    return rc


cdef Refusal row_headers(const Columned *c, const Parts *shared, int64_t row, Parts *p, char *to) noexcept nogil:
    """Lay out the headers of a row, where `row_bytes` found room for them."""
    cdef uint64_t n = 0
    cdef int found = 0
    cdef Refusal rc = headers_write(c, shared, row, to, p.headers_len, &n, &found)
    if rc == TAKEN and n + marks_write(c, shared, found, NULL) != p.headers_len:
        return REFUSED_LAYOUT  # they were changed meanwhile
    if rc == TAKEN:
        marks_write(c, shared, found, to + n)
        p.headers = to
    return rc


cdef int64_t TIME_TOO_SMALL_MIN = 10**8, TIME_TOO_SMALL_MAX = 10**17  # no sensible nanoseconds

_REFUSALS = {
    REFUSED_VALUE: f"its value is longer than {PSK_VALUE_BYTES_MAX} bytes",
    REFUSED_KEY: f"its key is longer than {PSK_KEY_BYTES_MAX} bytes",
    REFUSED_TOPIC: f"its topic is longer than {PSK_TOPIC_BYTES_MAX} bytes",
    REFUSED_HEADERS: f"its headers take more than {PSK_HEADERS_BYTES_MAX} bytes",
    REFUSED_TEXT: "its topic or a header's name is not UTF-8, or a header has no name",
    REFUSED_NAME: "a header's name begins with 'penstock.', which is reserved for Penstock",
    REFUSED_MARK: (
        "its header penstock.tag must be a tag, penstock.codec the name of a codec, penstock.not_before 8 bytes "
        "with a time, and penstock.ttl, which must be the first one, 8 bytes with a duration"),
    REFUSED_TIME: "its time must be from 1970-01-01 to 2262-04-11",
    REFUSED_UNIT: "its time is a whole number that looks like seconds, milliseconds or microseconds; "
    "it must be nanoseconds, or a timestamp: cast the column",
    REFUSED_NOTHING: "its value is null and it has no key; null deletes a key",
    REFUSED_LAYOUT: "its column is not consistent: an offset or index points outside",
}


cdef class Chunk:
    """One batch of Arrow columns, held as long as its bytes are needed."""

    cdef ArrowArray array
    cdef Columned columns

    def __cinit__(self, inside=None, *args, **kwargs):
        if inside is not INSIDE:
            raise only_inside(self)

    def __reduce__(self):
        raise stays_here(self)

    def __dealloc__(self):
        if self.array.release != NULL:
            with nogil:
                self.array.release(&self.array)


cdef class Intake:
    """Arrow data of a caller: which of its columns are which parts of an event.

    ``chunks()`` iterates over its batches, once.
    """

    cdef ArrowSchema schema
    cdef ArrowStream stream
    cdef object first          # the only batch, if there is no stream
    cdef bint bare            # its one column is the value itself, without a struct around it
    cdef int places[5]         # of value, key, topic, time and headers; -1: no such column
    cdef Parts shared          # for all rows, if there is no column
    cdef list pins
    cdef object path
    cdef Coder own             # the log's codec
    cdef Coder coder           # the codec that the values must fit
    cdef uint16_t codec_len    # of the part that all rows share: the header that names a codec,
    cdef uint16_t due_len      # a time to wait for,
    cdef uint16_t tags_len     # and tags
    cdef uint16_t ttl_len      # before them: of a time to live
    cdef uint64_t seen         # rows of the batches so far

    def __dealloc__(self):
        if self.schema.release != NULL:
            self.schema.release(&self.schema)
        if self.stream.release != NULL:
            with nogil:  # its producer may wait for a thread that needs the GIL
                self.stream.release(&self.stream)

    def __cinit__(
        self, source, path, Coder own not None, Coder coder not None, bytes codec not None, bytes due not None,
        bytes tags not None, bytes ttl not None, value, key, topic, headers, time
    ):
        cdef ArrowStream *s
        cdef ArrowSchema *schema
        cdef ArrowArray *a
        cdef Chunk chunk
        cdef int rc
        self.pins = []
        self.path = path
        self.own = own
        self.coder = coder
        self.codec_len = <uint16_t>len(codec)
        self.due_len = <uint16_t>len(due)
        self.tags_len = <uint16_t>len(tags)
        self.ttl_len = <uint16_t>len(ttl)
        if hasattr(source, "__arrow_c_stream__"):
            capsule = source.__arrow_c_stream__()
            s = <ArrowStream *>PyCapsule_GetPointer(capsule, "arrow_array_stream")
            if s.release == NULL:
                raise Usage("this Arrow data was taken over already")
            self.stream = s[0]
            s.release = NULL
            with nogil:
                rc = self.stream.get_schema(&self.stream, &self.schema)
            if rc:
                raise self.stream_error(rc)
        else:
            schema_capsule, array_capsule = source.__arrow_c_array__()
            schema = <ArrowSchema *>PyCapsule_GetPointer(schema_capsule, "arrow_schema")
            self.schema = schema[0]
            schema.release = NULL
            a = <ArrowArray *>PyCapsule_GetPointer(array_capsule, "arrow_array")
            if self.schema.release == NULL or a.release == NULL:
                raise Usage("this Arrow data was taken over already")
            chunk = Chunk.__new__(Chunk, INSIDE)
            chunk.array = a[0]
            a.release = NULL
            self.first = chunk
        self.choose(value, key, topic, headers, time, codec + due + tags, ttl)

    def __reduce__(self):
        raise stays_here(self)

    cdef object stream_error(self, int rc):
        cdef const char *text = NULL
        if self.stream.get_last_error != NULL:
            text = self.stream.get_last_error(&self.stream)
        said = (<bytes>text).decode(errors="replace") if text != NULL else _os.strerror(rc)
        return Usage(f"the Arrow data cannot be read: {said}")

    cdef int choose(self, value, key, topic, headers, time, bytes marks, bytes ttl) except -1:
        """Assign the columns; the other arguments apply to all rows."""
        cdef Columned c
        cdef int i
        cdef list names = []
        self.bare = strcmp(self.schema.format, "+s") != 0
        if not self.bare:
            names = [
                (<bytes>self.schema.children[i].name).decode() if self.schema.children[i].name != NULL else ""
                for i in range(self.schema.n_children)
            ]
        parts = (("value", value), ("key", key), ("topic", topic), ("time", time), ("headers", headers))
        for what, given in parts:
            name = what if given is None else given
            if isinstance(name, str) and names.count(name) > 1:
                raise Usage(f"two columns are called {name!r}")
        there = ", ".join(repr(n) for n in names) or "none"
        for i in range(5):
            self.places[i] = -1
        if self.bare:
            if value is not None:
                raise Usage("value= names a column, but this Arrow data is one array")
            self.places[0] = 0
        elif value is not None:
            if value not in names:
                raise Usage(f"value= must be one of the columns {there}, got {value!r}")
            self.places[0] = names.index(value)
        elif "value" in names:
            self.places[0] = names.index("value")
        elif len(names) == 1:
            self.places[0] = 0
        else:
            raise Usage(f"value= must be one of the columns {there}, got None")
        for i, (what, given) in enumerate(parts[1:], 1):
            if given is None:
                if what in names and names.index(what) != self.places[0]:
                    self.places[i] = names.index(what)
            elif isinstance(given, str) and given in names:
                self.places[i] = names.index(given)
            elif isinstance(given, str) and what in ("key", "headers"):
                raise Usage(f"{what}= must be one of the columns {there}, got {given!r}")
        try:
            parts_fill(
                &self.shared, self.pins, b"",
                None if self.places[1] >= 0 else key,
                None if self.places[2] >= 0 else topic,
                None if self.places[4] >= 0 else headers,
                None if self.places[3] >= 0 else time,
                marks or None,
                ttl or None,
            )
        except Usage as error:
            if isinstance(time, str) and self.places[3] < 0:
                raise Usage(f"time={time!r} must be a column ({there}) or a time: {error}") from None
            raise
        self.shared.fixed = False  # other code may change the memory of Arrow data
        self.lay_out(&c)
        return 0

    cdef object misfit(self, str what, const ArrowSchema *s, str why):
        name = (<bytes>s.name).decode(errors="replace") if s.name != NULL else ""
        return Usage(
            f"column {name!r} cannot be the {what}: it {why} (Arrow format "
            f"{(<bytes>s.format).decode(errors='replace')!r}); cast it, or name another with {what}="
        )

    cdef int lay_out_bytes(self, str what, const ArrowSchema *s, Column *c, Column *words) except -1:
        why = layout_of(s, c)
        if why is None and c.layout == LAYOUT_DICTIONARY:
            why = layout_of(s.dictionary, words)
            if why is None and words.layout == LAYOUT_DICTIONARY:
                why = "is a dictionary of dictionaries"
        if why is not None:
            raise self.misfit(what, s, why)
        return 0

    cdef const ArrowSchema *place(self, int i) noexcept:
        return &self.schema if self.bare else self.schema.children[self.places[i]]

    cdef int lay_out(self, Columned *c) except -1:
        """Check the types of the columns and note how they are laid out."""
        cdef const ArrowSchema *s
        cdef const ArrowSchema *pair
        memset(c, 0, sizeof(Columned))
        c.codec_len = self.codec_len
        c.due_len = self.due_len
        c.tags_len = self.tags_len
        c.ttl_len = self.ttl_len
        self.lay_out_bytes("value", self.place(0), &c.value, &c.value_words)
        if self.places[1] >= 0:
            self.lay_out_bytes("key", self.place(1), &c.key, &c.key_words)
        if self.places[2] >= 0:
            self.lay_out_bytes("topic", self.place(2), &c.topic, &c.topic_words)
        if self.places[3] >= 0:
            s = self.place(3)
            c.time.given = True
            c.time.layout = LAYOUT_TIME
            form = <bytes>s.format
            c.time.whole = form == b"l"
            c.time.scale = {b"tss": 10**9, b"tsm": 10**6, b"tsu": 1000, b"tsn": 1, b"l": 1}.get(form[:3], 0)
            if form == b"n":
                c.time.layout = LAYOUT_NULL
            elif c.time.scale == 0 or s.dictionary != NULL:
                raise self.misfit("time", s, "is neither a timestamp nor a whole number of nanoseconds")
        if self.places[4] >= 0:
            s = self.place(4)
            c.headers.given = True
            if strcmp(s.format, "n") == 0:
                c.headers.layout = LAYOUT_NULL
                return 0
            pair = s.children[0] if s.n_children == 1 else NULL
            if strcmp(s.format, "+l") == 0 or strcmp(s.format, "+m") == 0:
                c.headers.layout = LAYOUT_LIST32
            elif strcmp(s.format, "+L") == 0:
                c.headers.layout = LAYOUT_LIST64
            else:
                pair = NULL
            if pair != NULL and strcmp(pair.format, "n") == 0:  # no row has headers
                c.names.layout = c.values.layout = LAYOUT_NULL
                return 0
            if pair == NULL or strcmp(pair.format, "+s") != 0 or pair.n_children != 2:
                raise self.misfit("headers", s, "is neither a list of pairs of a name and a value nor a map")
            self.lay_out_bytes("headers", pair.children[0], &c.names, &c.names_words)
            self.lay_out_bytes("headers", pair.children[1], &c.values, &c.values_words)
        return 0

    cdef int bind(self, Chunk chunk) except -1:
        """Point the columns at the buffers of one batch."""
        cdef Columned *c = &chunk.columns
        cdef int64_t i
        cdef const ArrowArray *a = &chunk.array
        cdef const ArrowArray *pair
        self.lay_out(c)
        if not self.bare and a.n_children != self.schema.n_children:
            raise Usage("the Arrow data is not consistent: a batch has other columns than its schema")
        if not self.bare and a.null_count and a.n_buffers and a.buffers[0] != NULL:
            for i in range(a.offset, a.offset + a.length):
                if bit_clear(<const uint8_t *>a.buffers[0], i):
                    raise Usage("the Arrow data must not have null rows; drop them first")
        self.bind_one(a, 0, &c.value, &c.value_words)
        self.bind_one(a, 1, &c.key, &c.key_words)
        self.bind_one(a, 2, &c.topic, &c.topic_words)
        self.bind_one(a, 3, &c.time, NULL)
        self.bind_one(a, 4, &c.headers, NULL)
        if c.headers.given and c.headers.layout != LAYOUT_NULL:
            pair = c.pairs = c.headers.array.children[0]
            if c.names.layout == LAYOUT_NULL and c.values.layout == LAYOUT_NULL and pair.n_children == 0:
                return 0
            if pair.n_children != 2:
                raise Usage("the Arrow data is not consistent: headers have other parts than their schema")
            if pair.null_count and pair.n_buffers:
                c.pairs_valid = <const uint8_t *>pair.buffers[0]
            self.bind_bytes(pair.children[0], pair.offset + pair.length, &c.names, &c.names_words)
            self.bind_bytes(pair.children[1], pair.offset + pair.length, &c.values, &c.values_words)
        return 0

    cdef int bind_one(self, const ArrowArray *a, int i, Column *c, Column *words) except -1:
        if self.places[i] < 0:
            return 0
        if self.bare:
            return self.bind_bytes(a, a.length, c, words)
        return self.bind_bytes(a.children[self.places[i]], a.offset + a.length, c, words)

    cdef int bind_bytes(self, const ArrowArray *a, int64_t rows, Column *c, Column *words) except -1:
        """Point one column at its buffers, and its dictionary, if any, at those of the dictionary."""
        cdef int64_t buffers = 0 if c.layout == LAYOUT_NULL else 2
        if a.length < rows:
            raise Usage("the Arrow data is not consistent: a column is shorter than its batch")
        if c.layout in (LAYOUT_TEXT32, LAYOUT_TEXT64, LAYOUT_VIEW):
            buffers = 3
        if (
            a.n_buffers < buffers
            or (buffers and a.null_count < a.length and a.buffers[1] == NULL and not (
                c.layout == LAYOUT_FIXED and c.width == 0))
            or (c.layout in (LAYOUT_LIST32, LAYOUT_LIST64) and a.n_children != 1)
            or (c.layout == LAYOUT_DICTIONARY and a.dictionary == NULL)
        ):
            raise Usage("the Arrow data is not consistent: a column lacks a part that its type has")
        column_bind(c, a)
        if c.layout == LAYOUT_DICTIONARY:
            self.bind_bytes(a.dictionary, 0, words, NULL)
        return 0

    def __iter__(self):
        return self

    def __next__(self):
        """The next batch, as `Given`."""
        cdef Chunk chunk
        cdef int rc
        if self.stream.release != NULL:
            chunk = Chunk.__new__(Chunk, INSIDE)
            with nogil:
                rc = self.stream.get_next(&self.stream, &chunk.array)
            if rc:
                raise self.stream_error(rc)
            if chunk.array.release == NULL:
                raise StopIteration
        else:
            chunk = self.first
            self.first = None
            if chunk is None:
                raise StopIteration
        self.bind(chunk)
        first = 0 if self.bare else chunk.array.offset
        given = new_given(self, [(chunk, first, first + chunk.array.length)], self.seen)
        self.seen += given.count
        if self.coder.encode is not None or self.own.encode is not None:
            given.check()
        return given

    def all(self):
        """All batches as one."""
        pieces = []
        for given in self:
            pieces += (<Given>given).pieces
        return new_given(self, pieces, 0)


cdef Given new_given(Intake intake, list pieces, uint64_t before):
    """The rows of the chunks in ``pieces``, whose bounds the caller has checked."""
    cdef Given given = Given.__new__(Given, INSIDE)
    given.intake = intake
    given.before = before
    given.pieces = pieces
    given.count = sum([stop - start for _, start, stop in pieces])
    return given


cdef class Given:
    """Rows of Arrow data, to be appended: like a list of entries, without the objects."""

    cdef Intake intake
    cdef list pieces           # (chunk, first row, row after the last)
    cdef readonly uint64_t count
    cdef uint64_t before       # rows of the data that come before these

    def __cinit__(self, inside=None, *args, **kwargs):
        if inside is not INSIDE:
            raise only_inside(self)

    def __reduce__(self):
        raise stays_here(self)

    def __len__(self):
        return self.count

    def __getitem__(self, which):
        """A slice of the rows."""
        start, stop, _ = which.indices(self.count)
        pieces = []
        at = 0
        for chunk, first, last in self.pieces:
            low = max(first, first + start - at)
            high = min(last, first + stop - at)
            if low < high:
                pieces.append((chunk, low, high))
            at += last - first
        return new_given(self.intake, pieces, self.before + start)

    cdef object refuse(self, Refusal why, uint64_t row):
        kind = TooLarge if why in (REFUSED_VALUE, REFUSED_KEY, REFUSED_TOPIC, REFUSED_HEADERS) else Usage
        return kind(f"row {self.before + row}: {_REFUSALS[why]}; nothing was written")

    def first_ns(self):
        """The time of the first row; None if it has none."""
        cdef Parts p
        cdef list pins = []
        (<Given>self[:1]).only(&p, pins)
        return p.event_ns if p.flags & PSK_FLAG_EVENT_TIME else None

    cdef int only(self, Parts *p, list pins) except -1:
        """Find the parts of the only row."""
        if self.count != 1:
            raise Internal(f"one row is needed, got {self.count}")
        self.parts(p, pins)
        return 0

    def check(self):
        """Check that every value fits the codec; that takes an object per row."""
        cdef Chunk chunk
        cdef int64_t row
        cdef const char *value = NULL
        cdef uint64_t n = 0, at = self.before
        for chunk, first, stop in self.pieces:
            for row in range(first, stop):
                at += 1
                if row_null(&chunk.columns.value, &chunk.columns.value_words, row):
                    continue
                if not bytes_at(&chunk.columns.value, &chunk.columns.value_words, row, &value, &n):
                    raise self.refuse(REFUSED_LAYOUT, at - 1 - self.before)
                coder = self.coder_of(chunk, row)
                if coder is None:
                    continue
                try:
                    (<Coder>coder).to_bytes(PyBytes_FromStringAndSize(value, <Py_ssize_t>n), self.intake.path)
                except BadData as error:
                    raise BadData(f"row {at - 1}: {error}", path=self.intake.path) from error

    cdef object coder_of(self, Chunk chunk, int64_t row):
        """The codec that the value of a row must fit; None if its header names another one."""
        cdef OwnHeaders own
        cdef Parts p
        cdef uint64_t nbytes = 0
        if not chunk.columns.headers.given or row_bytes(
            &chunk.columns, &self.intake.shared, row, &p, &nbytes
        ) != TAKEN or p.headers_len == 0:
            return self.intake.coder  # errors are found in order
        laid = PyBytes_FromStringAndSize(NULL, p.headers_len)
        if row_headers(&chunk.columns, &self.intake.shared, row, &p, PyBytes_AS_STRING(laid)) != TAKEN or (
            not look_at_headers(p.headers, p.headers_len, &own) or own.codec == NULL
        ):
            return self.intake.coder
        name = PyBytes_FromStringAndSize(own.codec, own.codec_len).decode()
        if name == self.intake.coder.name:
            return self.intake.coder
        return self.intake.own if name == self.intake.own.name else None

    def fitting(self, uint64_t room, uint64_t rows):
        """How many of the first ``rows`` rows fit ``room`` bytes of frames; at least one."""
        cdef Chunk chunk
        cdef Parts p
        cdef uint64_t nbytes = 0, taken = 0
        cdef int64_t row, last
        cdef Refusal rc = TAKEN
        cdef bint full = False
        for chunk, first, stop in self.pieces:
            row = first
            last = stop
            with nogil:
                while row < last and taken < rows:
                    rc = row_bytes(&chunk.columns, &self.intake.shared, row, &p, &nbytes)
                    if rc != TAKEN:
                        break
                    if nbytes > room:
                        full = True
                        break
                    room -= nbytes
                    taken += 1
                    row += 1
            if rc != TAKEN:
                raise self.refuse(rc, taken)
            if full:
                break
        return taken if taken else 1

    cdef const Parts *same(self) noexcept:
        """The parts that plain rows share."""
        return &self.intake.shared

    cdef const Parts *laid_out(self, uint64_t *nbytes) noexcept:
        """The parts of all rows, if they were found already; else NULL."""
        return NULL

    cdef bint plain(self) except -1:
        """Whether rows differ only in their values, and none is null."""
        cdef Chunk chunk
        cdef int i
        for i in range(1, 5):
            if self.intake.places[i] >= 0:
                return False
        for chunk, _, _ in self.pieces:
            if chunk.columns.value.valid != NULL or (
                chunk.columns.value.layout in (LAYOUT_DICTIONARY, LAYOUT_NULL)
            ):
                return False
        return True

    cdef uint64_t spans(self, ByteSpan *spans) except 0:
        """Find the values; returns the bytes of all frames."""
        cdef Chunk chunk
        cdef uint64_t at = 0, nbytes = 0, prefix = parts_prefix(&self.intake.shared)
        cdef int64_t row, last, taken
        cdef Refusal rc = TAKEN
        for chunk, first, stop in self.pieces:
            row = first
            last = stop
            with nogil:
                if chunk.columns.value.layout == LAYOUT_TEXT32:
                    taken = spans_of_text(&chunk.columns.value, row, last, prefix, spans + at, &nbytes)
                    at += <uint64_t>taken
                    row += taken
                while row < last:
                    if not bytes_at(&chunk.columns.value, NULL, row, &spans[at].start, &spans[at].length):
                        rc = REFUSED_LAYOUT
                        break
                    if spans[at].length > PSK_VALUE_BYTES_MAX:
                        rc = REFUSED_VALUE
                        break
                    nbytes += align8(PSK_FRAME_HEADER_BYTES + prefix + spans[at].length)
                    at += 1
                    row += 1
            if rc != TAKEN:
                raise self.refuse(rc, at)
        return nbytes

    cdef uint64_t parts(self, Parts *parts, list pins) except 0:
        """Find the parts of all rows; returns the bytes of all frames."""
        cdef Chunk chunk
        cdef uint64_t at, n = 0, nbytes = 0, headers = 0
        cdef int64_t row, last
        cdef char *to = NULL
        cdef Refusal rc = TAKEN
        cdef bint with_headers = self.intake.places[4] >= 0
        cdef const Parts *shared = &self.intake.shared
        at = 0
        for chunk, first, stop in self.pieces:
            row = first
            last = stop
            with nogil:
                while row < last:
                    rc = row_bytes(&chunk.columns, &self.intake.shared, row, &parts[at], &n)
                    if rc != TAKEN:
                        break
                    nbytes += n
                    headers += parts[at].headers_len
                    at += 1
                    row += 1
            if rc != TAKEN:
                raise self.refuse(rc, at)
        if with_headers and headers:
            laid = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>headers)
            pins.append(laid)
            to = PyBytes_AS_STRING(laid)
            at = 0
            for chunk, first, stop in self.pieces:
                row = first
                last = stop
                with nogil:
                    while row < last:
                        rc = row_headers(&chunk.columns, shared, row, &parts[at], to)
                        if rc != TAKEN:
                            break
                        to += parts[at].headers_len
                        at += 1
                        row += 1
                if rc != TAKEN:
                    raise self.refuse(rc, at)
        return nbytes
