# Columns: Arrow buffers that are being filled, and the batches that are handed over.

cdef enum:
    COLUMN_SEQ, COLUMN_TIME, COLUMN_APPEND_TIME, COLUMN_TOPIC, COLUMN_KEY, COLUMN_VALUE, COLUMN_HEADERS
    COLUMNS_MAX = 7
    ROWS_START = 1024


cdef struct Text:
    # A column of bytes: offsets (one more than rows), bytes, and a bit for each row if one is null.
    int32_t *offsets
    uint8_t *valid
    char *data
    uint64_t used
    uint64_t room
    uint64_t warm             # up to here the memory has pages
    int64_t nulls


cdef struct ColumnRows:
    # A batch that is being filled. Columns that were not requested have no buffers.
    uint32_t wanted           # a bit for each column
    uint64_t time_step        # nanoseconds in the unit of times
    uint64_t count
    uint64_t room             # capacity of the fixed columns in rows
    uint64_t nbytes           # bytes of the frames, more than the columns take
    int64_t *seq
    int64_t *time
    int64_t *append_time
    Text topic
    Text key
    Text value
    int32_t *lists            # where each row's headers begin
    uint64_t pairs            # headers so far
    uint64_t pairs_room
    Text names
    Text values


cdef void text_free(Text *t) noexcept nogil:
    psk_column_free(t.offsets)
    psk_column_free(t.valid)
    psk_column_free(t.data)
    memset(t, 0, sizeof(Text))


cdef void rows_free(ColumnRows *r) noexcept nogil:
    psk_column_free(r.seq)
    psk_column_free(r.time)
    psk_column_free(r.append_time)
    psk_column_free(r.lists)
    r.seq = r.time = r.append_time = NULL
    r.lists = NULL
    text_free(&r.topic)
    text_free(&r.key)
    text_free(&r.value)
    text_free(&r.names)
    text_free(&r.values)


cdef bint grow(void **p, uint64_t before, uint64_t nbytes) noexcept nogil:
    """Resize the memory from ``before`` to ``nbytes`` bytes."""
    cdef void *to = psk_column_resize(p[0], nbytes)
    if to == NULL:
        return False
    p[0] = to
    if nbytes >= PSK_LONG_BYTES:
        psk_column_warm(to, before, nbytes)
    return True


cdef bint text_rows(Text *t, uint64_t before, uint64_t rows) noexcept nogil:
    """Resize from ``before`` to ``rows`` rows."""
    if not grow(<void **>&t.offsets, (before + 1) * 4 if before else 0, (rows + 1) * 4):
        return False
    if before == 0:
        t.offsets[0] = 0
    if t.valid != NULL:
        if not grow(<void **>&t.valid, (before + 7) // 8, (rows + 7) // 8):
            return False
        memset(t.valid + (before + 7) // 8, 0xFF, (rows + 7) // 8 - (before + 7) // 8)
    return True


cdef bint rows_grow(ColumnRows *r, uint64_t to) noexcept nogil:
    """Make room for ``to`` rows."""
    cdef uint32_t w = r.wanted
    to = (to + 7) & ~<uint64_t>7  # full bytes of bits
    if (w >> COLUMN_SEQ & 1 and not grow(<void **>&r.seq, r.room * 8, to * 8)) or (
        w >> COLUMN_TIME & 1 and not grow(<void **>&r.time, r.room * 8, to * 8)) or (
        w >> COLUMN_APPEND_TIME & 1 and not grow(<void **>&r.append_time, r.room * 8, to * 8)) or (
        w >> COLUMN_TOPIC & 1 and not text_rows(&r.topic, r.room, to)) or (
        w >> COLUMN_KEY & 1 and not text_rows(&r.key, r.room, to)) or (
        w >> COLUMN_VALUE & 1 and not text_rows(&r.value, r.room, to)) or (
        w >> COLUMN_HEADERS & 1
        and not grow(<void **>&r.lists, (r.room + 1) * 4 if r.room else 0, (to + 1) * 4)
    ):
        return False
    if r.room == 0 and w >> COLUMN_HEADERS & 1:
        r.lists[0] = 0
    r.room = to
    return True


cdef bint text_grow(Text *t, uint64_t nbytes, uint64_t to) noexcept nogil:
    """Make room for ``nbytes`` more, and some reserve; for ``to`` in all, if that is more."""
    cdef void *data
    to = max(to, t.room * 2, t.used + nbytes + 65536)
    data = psk_column_resize(t.data, to)
    if data == NULL:
        return False
    t.data = <char *>data
    t.room = to
    return True


cdef inline bint text_reserve(Text *t, uint64_t nbytes) noexcept nogil:
    return t.used + nbytes + 16 <= t.room or text_grow(t, nbytes + 16, 0)


cdef inline bint text_ready(Text *t, uint64_t nbytes, uint64_t rows, uint64_t room) noexcept nogil:
    """Make room for ``nbytes`` more, which are about to be written: then it has ``rows`` rows of ``room``."""
    cdef uint64_t end
    if t.used + nbytes + 16 > t.room and not text_grow(
        t, nbytes + 16, <uint64_t>(<double>(t.used + nbytes) / <double>rows * <double>room * 1.05)
    ):
        return False
    if t.used + nbytes > t.warm and t.room >= PSK_LONG_BYTES:
        end = min(t.room, t.used + nbytes + PSK_LONG_BYTES)
        psk_column_warm(t.data, t.used, end)
        t.warm = end
    return True


cdef inline bint text_add(Text *t, uint64_t row, const char *data, uint64_t nbytes) noexcept nogil:
    if not text_reserve(t, nbytes):
        return False
    memcpy(t.data + t.used, data, nbytes)
    t.used += nbytes
    t.offsets[row + 1] = <int32_t>t.used
    return True


cdef bint text_null(Text *t, uint64_t row, uint64_t rows) noexcept nogil:
    """Make a row null; ``rows`` is the capacity."""
    if t.valid == NULL:
        t.valid = <uint8_t *>psk_column_resize(NULL, (rows + 7) // 8)
        if t.valid == NULL:
            return False
        memset(t.valid, 0xFF, (rows + 7) // 8)
    t.valid[row >> 3] &= <uint8_t>~(1 << (row & 7))
    t.nulls += 1
    return True


cdef bint is_utf8(const char *text, uint64_t n) noexcept nogil:
    """Whether the bytes are UTF-8 as Unicode defines it: no overlong form, no surrogate."""
    cdef const uint8_t *p = <const uint8_t *>text
    cdef const uint8_t *end = p + n
    cdef uint8_t c, low, high
    cdef int more
    while end - p >= 8 and not psk_get64(p) & <uint64_t>0x8080808080808080:
        p += 8
    while p < end:
        c = p[0]
        p += 1
        if c < 0x80:
            continue
        low = 0x80
        high = 0xBF
        if 0xC2 <= c <= 0xDF:
            more = 1
        elif 0xE0 <= c <= 0xEF:
            more = 2
            if c == 0xE0:
                low = 0xA0
            elif c == 0xED:
                high = 0x9F
        elif 0xF0 <= c <= 0xF4:
            more = 3
            if c == 0xF0:
                low = 0x90
            elif c == 0xF4:
                high = 0x8F
        else:
            return False
        if end - p < more or p[0] < low or p[0] > high:
            return False
        p += 1
        more -= 1
        while more:
            if p[0] < 0x80 or p[0] > 0xBF:
                return False
            p += 1
            more -= 1
    return True


cdef bint are_headers(const char *at, uint32_t left) noexcept nogil:
    """Whether the bytes are pairs of a name, which is text, and a value."""
    cdef uint16_t name_len, value_len
    cdef uint32_t nbytes
    while left:
        if left < PSK_EVENT_HEADER_BYTES:
            return False
        name_len = psk_get16(at)
        value_len = psk_get16(at + PSK_EVENT_HEADER_VALUE_LEN)
        nbytes = <uint32_t>PSK_EVENT_HEADER_BYTES + name_len + (0 if value_len == PSK_NULL_HEADER else value_len)
        if nbytes > left or not is_utf8(at + PSK_EVENT_HEADER_BYTES, name_len):
            return False
        at += nbytes
        left -= nbytes
    return True


cdef struct Pick:
    # An event that the batch takes: pointers to its parts.
    const char *p
    const char *topic
    const char *key
    const char *value
    uint32_t value_len
    uint16_t topic_len
    uint16_t headers_len
    uint16_t key_len


cdef inline void pick(Pick *e, const char *p, uint64_t lengths, uint32_t commit) noexcept nogil:
    e.p = p
    e.topic = frame_topic(p)
    e.topic_len = <uint16_t>(lengths >> PSK_TOPIC_LEN_SHIFT)
    e.headers_len = <uint16_t>(lengths >> PSK_HEADERS_LEN_SHIFT)
    e.key_len = <uint16_t>lengths
    e.key = e.topic + e.topic_len + e.headers_len
    e.value = e.key + (0 if e.key_len == PSK_NO_KEY else e.key_len)
    e.value_len = <uint32_t>(p + PSK_FRAME_HEADER_BYTES + commit - 1 - e.value)


cdef inline bint is_short_ascii(const Pick *e) noexcept nogil:
    """Whether the topic is short enough to be checked for ASCII at once, and is ASCII."""
    return e.topic_len <= 8 and e.value + e.value_len - e.topic >= 8 and (
        psk_get64(e.topic) & (<uint64_t>0x8080808080808080 >> (64 - 8 * e.topic_len))) == 0


cdef inline void copy_part(char *to, const char *at, uint64_t n, const char *end) noexcept nogil:
    """Copy ``n`` bytes, the short way if 16 can be read; 16 can always be written."""
    if n <= 16 and end - at >= 16:
        psk_copy16(to, at)
    else:
        memcpy(to, at, n)


cdef bint take_topics(Text *t, uint64_t row, uint64_t room, const Pick *picks, uint64_t n) noexcept nogil:
    cdef uint64_t i, used, total = 0
    cdef int32_t *offsets = t.offsets + row + 1
    cdef char *data
    for i in range(n):
        total += picks[i].topic_len
    if not text_ready(t, total, row + n, room):
        return False
    used = t.used
    data = t.data
    for i in range(n):
        copy_part(
            data + used, picks[i].topic, picks[i].topic_len, picks[i].value + picks[i].value_len)
        used += picks[i].topic_len
        offsets[i] = <int32_t>used
    t.used = used
    return True


cdef bint take_keys(Text *t, uint64_t row, uint64_t room, const Pick *picks, uint64_t n) noexcept nogil:
    cdef uint64_t i, used, total = 0
    cdef int32_t *offsets = t.offsets + row + 1
    cdef char *data
    for i in range(n):
        total += <uint64_t>(picks[i].value - picks[i].key)
    if not text_ready(t, total, row + n, room):
        return False
    used = t.used
    data = t.data
    for i in range(n):
        if picks[i].key_len != PSK_NO_KEY:
            copy_part(data + used, picks[i].key, picks[i].key_len, picks[i].value + picks[i].value_len)
            used += picks[i].key_len
        elif not text_null(t, row + i, room):
            return False
        offsets[i] = <int32_t>used
    t.used = used
    return True


cdef bint take_values(Text *t, uint64_t row, uint64_t room, const Pick *picks, uint64_t n) noexcept nogil:
    cdef uint64_t i, used, total = 0
    cdef int32_t *offsets = t.offsets + row + 1
    cdef char *data
    for i in range(n):
        total += picks[i].value_len
    if not text_ready(t, total, row + n, room):
        return False
    used = t.used
    data = t.data
    for i in range(n):
        if picks[i].p[PSK_FRAME_KIND] != PSK_KIND_DELETE:
            memcpy(data + used, picks[i].value, picks[i].value_len)
            used += picks[i].value_len
        elif not text_null(t, row + i, room):
            return False
        offsets[i] = <int32_t>used
    t.used = used
    return True


cdef bint take_pairs(ColumnRows *r, const char *at, uint32_t left) noexcept nogil:
    """Take the headers of one event, which has at least one."""
    cdef uint16_t name_len, value_len
    cdef uint32_t value_bytes
    cdef uint64_t to
    while left:
        name_len = psk_get16(at)
        value_len = psk_get16(at + PSK_EVENT_HEADER_VALUE_LEN)
        value_bytes = 0 if value_len == PSK_NULL_HEADER else value_len
        if r.pairs == r.pairs_room:
            to = r.pairs_room * 2 if r.pairs_room else ROWS_START
            if not text_rows(&r.names, r.pairs_room, to) or not text_rows(&r.values, r.pairs_room, to):
                return False
            r.pairs_room = to
        if not text_add(&r.names, r.pairs, at + PSK_EVENT_HEADER_BYTES, name_len):
            return False
        if value_len == PSK_NULL_HEADER:
            if not text_null(&r.values, r.pairs, r.pairs_room):
                return False
            r.values.offsets[r.pairs + 1] = <int32_t>r.values.used
        elif not text_add(&r.values, r.pairs, at + PSK_EVENT_HEADER_BYTES + name_len, value_len):
            return False
        r.pairs += 1
        at += PSK_EVENT_HEADER_BYTES + name_len + value_bytes
        left -= PSK_EVENT_HEADER_BYTES + name_len + value_bytes
    return True


cdef bint rows_take(ColumnRows *r, const Pick *picks, uint64_t n) noexcept nogil:
    """Take events that are known to fit, column by column; False: no memory."""
    cdef uint64_t i, row = r.count
    if row + n > r.room and not rows_grow(r, max(2 * r.room, <uint64_t>ROWS_START)):
        return False
    if r.wanted >> COLUMN_SEQ & 1:
        for i in range(n):
            r.seq[row + i] = <int64_t>psk_get64(picks[i].p + PSK_FRAME_SEQ)
    if r.wanted >> COLUMN_TIME & 1:
        for i in range(n):
            r.time[row + i] = <int64_t>frame_event_ns(picks[i].p)
        if r.time_step != 1:
            for i in range(n):
                r.time[row + i] = <int64_t>(<uint64_t>r.time[row + i] // r.time_step)
    if r.wanted >> COLUMN_APPEND_TIME & 1:
        for i in range(n):
            r.append_time[row + i] = <int64_t>(
                psk_get64(picks[i].p + PSK_FRAME_APPEND_NS) // r.time_step)
    if (
        (r.wanted >> COLUMN_TOPIC & 1 and not take_topics(&r.topic, row, r.room, picks, n))
        or (r.wanted >> COLUMN_KEY & 1 and not take_keys(&r.key, row, r.room, picks, n))
        or (r.wanted >> COLUMN_VALUE & 1 and not take_values(&r.value, row, r.room, picks, n))
    ):
        return False
    if r.wanted >> COLUMN_HEADERS & 1:
        for i in range(n):
            if not take_pairs(r, picks[i].topic + picks[i].topic_len, picks[i].headers_len):
                return False
            r.lists[row + i + 1] = <int32_t>r.pairs
    r.count = row + n
    return True


cdef void text_export(Text *t, ArrowArray *a, uint64_t rows) noexcept nogil:
    """Move a column's buffers to ``a``, which was made with three."""
    a.null_count = t.nulls
    a.buffers[0] = t.valid
    a.buffers[1] = t.offsets
    a.buffers[2] = t.data
    memset(t, 0, sizeof(Text))


cdef void text_fit(Text *t) noexcept nogil:
    """Free memory of which little is used: the caller may keep many batches."""
    cdef void *to
    if t.room - t.used >= 65536:
        to = psk_column_resize(t.data, t.used + 16)
        if to != NULL:
            t.data = <char *>to


cdef bint text_array(Text *t, ArrowArray *a, uint64_t rows) noexcept nogil:
    if t.data == NULL and not text_reserve(t, 1):  # some consumers need an address, even of no bytes
        return False
    if t.offsets == NULL:
        t.offsets = <int32_t *>psk_column_resize(NULL, 4)
        if t.offsets == NULL:
            return False
        t.offsets[0] = 0
    if not array_make(a, <int64_t>rows, 0, 3, 0):
        return False
    text_fit(t)
    text_export(t, a, rows)
    return True


cdef bint numbers_array(int64_t **numbers, ArrowArray *a, uint64_t rows) noexcept nogil:
    if not array_make(a, <int64_t>rows, 0, 2, 0):
        return False
    a.buffers[1] = numbers[0]
    numbers[0] = NULL
    return True


cdef bint headers_array(ColumnRows *r, ArrowArray *a) noexcept nogil:
    cdef ArrowArray *pairs
    if not array_make(a, <int64_t>r.count, 0, 2, 1):
        return False
    a.buffers[1] = r.lists
    r.lists = NULL
    pairs = a.children[0]
    if not array_make(pairs, <int64_t>r.pairs, 0, 1, 2):
        return False
    return text_array(&r.names, pairs.children[0], r.pairs) and (
        text_array(&r.values, pairs.children[1], r.pairs))


cdef bint rows_export(ColumnRows *r, const int *columns, int n, ArrowArray *a) noexcept nogil:
    """Move the batch to ``a``; the rows have no buffers after that. False: no memory, nothing was moved."""
    cdef int i
    cdef bint made = True
    if r.room == 0 and not rows_grow(r, ROWS_START):
        return False
    if not array_make(a, <int64_t>r.count, 0, 1, n):
        return False
    for i in range(n):
        if columns[i] == COLUMN_SEQ:
            made = numbers_array(&r.seq, a.children[i], r.count)
        elif columns[i] == COLUMN_TIME:
            made = numbers_array(&r.time, a.children[i], r.count)
        elif columns[i] == COLUMN_APPEND_TIME:
            made = numbers_array(&r.append_time, a.children[i], r.count)
        elif columns[i] == COLUMN_TOPIC:
            made = text_array(&r.topic, a.children[i], r.count)
        elif columns[i] == COLUMN_KEY:
            made = text_array(&r.key, a.children[i], r.count)
        elif columns[i] == COLUMN_VALUE:
            made = text_array(&r.value, a.children[i], r.count)
        else:
            made = headers_array(r, a.children[i])
        if not made:
            array_release(a)
            return False
    return True


COLUMNS = ("seq", "time", "append_time", "topic", "key", "value", "headers")


cdef class Columns:
    """The columns of a scan, their names, and the unit of time."""

    cdef int ids[COLUMNS_MAX]
    cdef int count
    cdef list names
    cdef uint32_t wanted
    cdef uint64_t time_step

    def __cinit__(self, columns, unit="ns"):
        """``columns`` are pairs of a column and its name in the batch."""
        self.names = []
        for column, name in columns:
            if column not in COLUMNS or not isinstance(name, str):
                raise Usage(f"there is no column {column!r} that can be called {name!r}")
            i = COLUMNS.index(column)
            if self.wanted >> i & 1:
                raise Usage(f"column {column!r} is named twice")
            self.ids[self.count] = i
            self.wanted |= <uint32_t>1 << i
            self.count += 1
            self.names.append(str.encode(name))
        self.time_step = {"ns": 1, "us": 1000}[unit]

    def __reduce__(self):
        raise stays_here(self)

    cdef bint export_schema(self, ArrowSchema *s) except -1:
        cdef int i, column
        cdef bint made = schema_make(s, "+s", "", False, self.count)
        cdef ArrowSchema *child
        for i in range(self.count):
            if not made:
                break
            column = self.ids[i]
            name = <bytes>self.names[i]
            child = s.children[i]
            if column == COLUMN_SEQ:
                made = schema_make(child, "l", name, False, 0)
            elif column == COLUMN_TIME or column == COLUMN_APPEND_TIME:
                made = schema_make(child, "tsn:UTC" if self.time_step == 1 else "tsu:UTC", name, False, 0)
            elif column == COLUMN_TOPIC:
                made = schema_make(child, "u", name, False, 0)
            elif column == COLUMN_KEY or column == COLUMN_VALUE:
                made = schema_make(child, "z", name, True, 0)
            else:
                made = schema_make(child, "+l", name, False, 1) and (
                    schema_make(child.children[0], "+s", "element", False, 2)
                    and schema_make(child.children[0].children[0], "u", "key", False, 0)
                    and schema_make(child.children[0].children[1], "z", "value", True, 0))
        if not made:
            if s.release != NULL:
                s.release(s)
            raise MemoryError
        return True

    def __arrow_c_schema__(self):
        cdef ArrowSchema *s = <ArrowSchema *>calloc(1, sizeof(ArrowSchema))
        if s == NULL:
            raise MemoryError
        capsule = PyCapsule_New(s, "arrow_schema", schema_capsule_free)
        self.export_schema(s)
        return capsule


cdef class ColumnBatch:
    """Some events as columns, for any library with Arrow's C data interface."""

    cdef ArrowArray array
    cdef Columns columns

    def __cinit__(self, inside=None, *args, **kwargs):
        if inside is not INSIDE:
            raise only_inside(self)

    def __reduce__(self):
        raise stays_here(self)

    def __dealloc__(self):
        if self.array.release != NULL:
            self.array.release(&self.array)

    def __len__(self):
        return self.array.length

    def __arrow_c_schema__(self):
        return self.columns.__arrow_c_schema__()

    def __arrow_c_array__(self, requested_schema=None):
        cdef ArrowArray *a
        if self.array.release == NULL:
            raise Usage("this batch was taken over already")
        schema = self.columns.__arrow_c_schema__()
        a = <ArrowArray *>calloc(1, sizeof(ArrowArray))
        if a == NULL:
            raise MemoryError
        a[0] = self.array
        self.array.release = NULL
        return schema, PyCapsule_New(a, "arrow_array", array_capsule_free)
