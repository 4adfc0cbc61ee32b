# Lines: events as text for pipes, one line each, written without an object per part.

cdef enum:
    JSON_DEPTH_MAX = 500    # a value nested deeper is written as a string
    SECOND_CHARS = 19       # 2026-11-19T12:30:00

cdef const char *_HEX_DIGITS = "0123456789abcdef"
cdef const char *_BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
cdef const char *_FIELD_SEQ = '{"seq":'
cdef const char *_REPLACED = "\\ufffd"  # for bytes that are not text where the format needs text


cdef class Lines:
    """Bytes that grow, with the parts of a line that can be added to them."""

    cdef char *start
    cdef uint64_t used, room
    cdef uint64_t second          # of the text in `moment`
    cdef char moment[SECOND_CHARS]
    cdef bytes end                # what ends each line

    def __cinit__(self, inside=None, *args, **kwargs):
        if inside is not INSIDE:
            raise only_inside(self)
        self.second = U64_MAX

    def __reduce__(self):
        raise stays_here(self)

    def __dealloc__(self):
        free(self.start)

    cdef int reserve(self, uint64_t n) except -1 nogil:
        """Make room for ``n`` more bytes."""
        cdef uint64_t to
        cdef char *found
        if self.used + n > self.room:
            to = max(self.room + self.room // 2, self.used + n + 65536)
            found = <char *>realloc(self.start, to)
            if found == NULL:
                with gil:
                    raise MemoryError
            self.start = found
            self.room = to
        return 0

    cdef int add(self, const char *at, uint64_t n) except -1 nogil:
        self.reserve(n)
        memcpy(self.start + self.used, at, n)
        self.used += n
        return 0

    cdef int add_number(self, uint64_t number) except -1 nogil:
        cdef char digits[20]
        cdef int i = 20
        while True:
            i -= 1
            digits[i] = <char>(c'0' + number % 10)
            number //= 10
            if number == 0:
                break
        return self.add(&digits[i], <uint64_t>(20 - i))

    cdef int add_time(self, uint64_t ns) except -1 nogil:
        """A moment in UTC as ISO 8601 with nanoseconds, quoted."""
        cdef uint64_t part = ns % 1000000000
        cdef char *to
        cdef int i
        if ns // 1000000000 != self.second:
            self.second = ns // 1000000000
            write_second(self.second, self.moment)
        self.reserve(40)
        to = self.start + self.used
        to[0] = c'"'
        memcpy(to + 1, self.moment, SECOND_CHARS)
        to[20] = c'.'
        for i in range(29, 20, -1):
            to[i] = <char>(c'0' + part % 10)
            part //= 10
        to[30] = c'Z'
        to[31] = c'"'
        self.used += 32
        return 0

    cdef int add_text(self, const char *at, uint64_t n, bint is_text) except -1 nogil:
        """A JSON string. Without ``is_text``, bytes above ASCII are replaced."""
        cdef const char *end = at + n
        cdef const char *clean
        cdef uint8_t c
        self.reserve(n + 2)
        self.start[self.used] = c'"'
        self.used += 1
        while at < end:
            clean = at
            while end - at >= 8 and is_clean(psk_get64(at)):
                at += 8
            while at < end and <uint8_t>at[0] >= 0x20 and at[0] != c'"' and at[0] != c'\\' and (
                is_text or <uint8_t>at[0] < 0x80
            ):
                at += 1
            self.reserve(<uint64_t>(end - clean) + 8)
            memcpy(self.start + self.used, clean, <size_t>(at - clean))
            self.used += <uint64_t>(at - clean)
            if at < end:
                if not is_text and <uint8_t>at[0] >= 0x80:
                    self.add(_REPLACED, 6)
                else:
                    self.used += escape(self.start + self.used, <uint8_t>at[0])
                at += 1
        self.reserve(1)
        self.start[self.used] = c'"'
        self.used += 1
        return 0

    cdef int add_base64(self, const char *at, uint64_t n) except -1 nogil:
        cdef const uint8_t *p = <const uint8_t *>at
        cdef char *to
        cdef uint32_t three
        self.reserve((n + 2) // 3 * 4 + 2)
        to = self.start + self.used
        to[0] = c'"'
        to += 1
        while n:
            three = <uint32_t>p[0] << 16
            if n > 1:
                three |= <uint32_t>p[1] << 8
            if n > 2:
                three |= p[2]
            to[0] = _BASE64[three >> 18]
            to[1] = _BASE64[three >> 12 & 63]
            to[2] = _BASE64[three >> 6 & 63] if n > 1 else c'='
            to[3] = _BASE64[three & 63] if n > 2 else c'='
            to += 4
            p += 3
            n -= min(n, <uint64_t>3)
        to[0] = c'"'
        self.used = <uint64_t>(to + 1 - self.start)
        return 0

    cdef int add_field(self, const char *name, uint64_t name_len, const char *at, uint64_t n) except -1 nogil:
        """A field with bytes: as text if they are, else named ``…_base64``."""
        cdef bint is_text = is_utf8(at, n)
        self.add(",\"", 2)
        self.add(name, name_len)
        if is_text:
            self.add("\":", 2)
            return self.add_text(at, n, True)
        self.add("_base64\":", 9)
        return self.add_base64(at, n)

    cdef int add_headers(self, const char *at, uint32_t left, uint64_t seq) except -1:
        """The headers of an event: its own as pairs, Penstock's as fields."""
        cdef OwnHeaders own
        cdef uint32_t n, rest, more = left
        cdef const char *p
        cdef bint first = True
        if not look_at_headers(at, left, &own):
            raise Corrupt(f"seq {seq}: its headers are not consistent", seq=seq)
        if own.users:
            self.add(",\"headers\":[", 12)
            p = at
            rest = left
            while rest:
                n = header_bytes(p)
                if not (
                    is_named(p, PSK_TAG_NAME, TAG_NAME_BYTES)
                    or is_mark(p, PSK_NOT_BEFORE_NAME, NOT_BEFORE_NAME_BYTES)
                    or is_mark(p, PSK_TTL_NAME, TTL_NAME_BYTES)
                    or is_named(p, PSK_CODEC_NAME, CODEC_NAME_BYTES)
                    and psk_get16(p + PSK_EVENT_HEADER_VALUE_LEN) != PSK_NULL_HEADER
                ):
                    if not first:
                        self.add(",", 1)
                    self.add_header(p)
                    first = False
                p += n
                rest -= n
            self.add("]", 1)
        if own.tags:
            self.add(",\"tags\":[", 9)
            first = True
        p = at
        while more:
            n = header_bytes(p)
            if is_named(p, PSK_TAG_NAME, TAG_NAME_BYTES):
                if not first:
                    self.add(",", 1)
                first = False
                self.add_tag(p)
            p += n
            more -= n
        if own.tags:
            self.add("]", 1)
        p = at
        while left:
            n = header_bytes(p)
            if is_mark(p, PSK_TTL_NAME, TTL_NAME_BYTES):
                self.add(",\"ttl_ns\":", 10)
                self.add_number(psk_get64(p + n - PSK_MARK_BYTES))
            elif is_mark(p, PSK_NOT_BEFORE_NAME, NOT_BEFORE_NAME_BYTES):
                self.add(",\"not_before\":", 14)
                self.add_time(psk_get64(p + n - PSK_MARK_BYTES))
            p += n
            left -= n
        if own.codec != NULL:
            self.add(",\"codec\":", 9)
            self.add_text(own.codec, own.codec_len, is_utf8(own.codec, own.codec_len))
        return 0

    cdef int add_header(self, const char *p) except -1 nogil:
        """One header as a pair; a value that is not text as an object."""
        cdef uint16_t name_len = psk_get16(p), value_len = psk_get16(p + PSK_EVENT_HEADER_VALUE_LEN)
        cdef const char *value = p + PSK_EVENT_HEADER_BYTES + name_len
        self.add("[", 1)
        self.add_text(p + PSK_EVENT_HEADER_BYTES, name_len, True)
        self.add(",", 1)
        if value_len == PSK_NULL_HEADER:
            self.add("null", 4)
        elif is_utf8(value, value_len):
            self.add_text(value, value_len, True)
        else:
            self.add("{\"base64\":", 10)
            self.add_base64(value, value_len)
            self.add("}", 1)
        return self.add("]", 1)

    cdef int add_tag(self, const char *p) except -1 nogil:
        cdef uint16_t value_len = psk_get16(p + PSK_EVENT_HEADER_VALUE_LEN)
        cdef const char *value = p + PSK_EVENT_HEADER_BYTES + TAG_NAME_BYTES
        if value_len == PSK_NULL_HEADER:
            return self.add("null", 4)
        return self.add_text(value, value_len, is_utf8(value, value_len))

    cdef int add_json(self, Event event, bint is_json) except -1:
        """One event as a JSON object."""
        cdef const char *p = event.p
        cdef uint64_t n
        cdef const char *at
        cdef uint16_t part
        self.add(_FIELD_SEQ, 7)
        self.add_number(psk_get64(p + PSK_FRAME_SEQ))
        self.add(",\"time\":", 8)
        self.add_time(frame_event_ns(p))
        part = psk_get16(p + PSK_FRAME_TOPIC_LEN)
        if part:
            self.add(",\"topic\":", 9)
            self.add_text(frame_topic(p), part, is_utf8(frame_topic(p), part))
        part = psk_get16(p + PSK_FRAME_KEY_LEN)
        if part != PSK_NO_KEY:
            self.add_field("key", 3, event.key_start(), part)
        if p[PSK_FRAME_KIND] == PSK_KIND_DELETE:
            self.add(",\"value\":null", 13)
        else:
            at = event.value_start(&n)
            if is_json and is_json_line(at, at + n):
                self.add(",\"data\":", 8)
                self.add(at, n)
            else:
                self.add_field("value", 5, at, n)
        part = psk_get16(p + PSK_FRAME_HEADERS_LEN)
        if part:
            self.add_headers(frame_topic(p) + psk_get16(p + PSK_FRAME_TOPIC_LEN), part, psk_get64(p + PSK_FRAME_SEQ))
        return self.add("}", 1)


cdef inline bint is_clean(uint64_t eight) noexcept nogil:
    """Whether a JSON string can have these eight bytes as they are; all of them are ASCII."""
    cdef uint64_t quotes = eight ^ <uint64_t>0x2222222222222222
    cdef uint64_t slashes = eight ^ <uint64_t>0x5C5C5C5C5C5C5C5C
    cdef uint64_t low = eight - <uint64_t>0x2020202020202020
    quotes = quotes - <uint64_t>0x0101010101010101
    slashes = slashes - <uint64_t>0x0101010101010101
    return not (eight | low | quotes | slashes) & <uint64_t>0x8080808080808080


cdef uint64_t escape(char *to, uint8_t c) noexcept nogil:
    """Write the escape of a character of a JSON string; how many bytes it takes."""
    cdef char short = 0
    if c == c'"' or c == c'\\':
        short = <char>c
    elif c == c'\n':
        short = c'n'
    elif c == c'\r':
        short = c'r'
    elif c == c'\t':
        short = c't'
    to[0] = c'\\'
    if short:
        to[1] = short
        return 2
    memcpy(to + 1, "u00", 3)
    to[4] = _HEX_DIGITS[c >> 4]
    to[5] = _HEX_DIGITS[c & 15]
    return 6


cdef void write_two(char *to, uint64_t number) noexcept nogil:
    to[0] = <char>(c'0' + number // 10)
    to[1] = <char>(c'0' + number % 10)


cdef void write_second(uint64_t second, char *to) noexcept nogil:
    """Write a second since 1970 as date and time, in the proleptic Gregorian calendar."""
    cdef uint64_t day = second // 86400 + 719468  # from 1 March of the year 0 on
    cdef uint64_t era = day // 146097
    cdef uint64_t of_era = day % 146097
    cdef uint64_t year = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    cdef uint64_t of_year = of_era - (365 * year + year // 4 - year // 100)
    cdef uint64_t month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    year += era * 400
    month += 3
    if month > 12:
        month -= 12
        year += 1
    second %= 86400
    write_two(to, year // 100)
    write_two(to + 2, year % 100)
    to[4] = to[7] = c'-'
    write_two(to + 5, month)
    write_two(to + 8, day)
    to[10] = c'T'
    write_two(to + 11, second // 3600)
    write_two(to + 14, second // 60 % 60)
    write_two(to + 17, second % 60)
    to[13] = to[16] = c':'


cdef inline bint is_digit(char c) noexcept nogil:
    return c'0' <= c <= c'9'


cdef const char *past_json_string(const char *at, const char *end) noexcept nogil:
    """The place after a string that begins at ``at``; NULL if it is none that can stand in a line."""
    cdef int i
    at += 1
    while at < end:
        if at[0] == c'"':
            return at + 1
        if <uint8_t>at[0] < 0x20:
            return NULL
        if at[0] == c'\\':
            at += 1
            if at == end:
                return NULL
            if at[0] == c'u':
                if end - at < 5:
                    return NULL
                for i in range(1, 5):
                    if not (is_digit(at[i]) or c'a' <= at[i] <= c'f' or c'A' <= at[i] <= c'F'):
                        return NULL
                if (at[1] == c'd' or at[1] == c'D') and at[2] >= c'8':
                    return NULL  # half of a pair: not every parser takes it
                at += 4
            elif memchr(b"\"\\/bfnrt", at[0], 8) == NULL:
                return NULL
        at += 1
    return NULL


cdef const char *past_json_number(const char *at, const char *end) noexcept nogil:
    """The place after a number; NULL if it is none."""
    if at < end and at[0] == c'-':
        at += 1
    if at == end or not is_digit(at[0]):
        return NULL
    if at[0] == c'0':
        at += 1
    else:
        while at < end and is_digit(at[0]):
            at += 1
    if at < end and at[0] == c'.':
        at += 1
        if at == end or not is_digit(at[0]):
            return NULL
        while at < end and is_digit(at[0]):
            at += 1
    if at < end and (at[0] == c'e' or at[0] == c'E'):
        at += 1
        if at < end and (at[0] == c'+' or at[0] == c'-'):
            at += 1
        if at == end or not is_digit(at[0]):
            return NULL
        while at < end and is_digit(at[0]):
            at += 1
    return at


cdef const char *past_json_word(const char *at, const char *end) noexcept nogil:
    """The place after true, false, null or a number; NULL if it is none of these."""
    if end - at >= 4 and (memcmp(at, b"true", 4) == 0 or memcmp(at, b"null", 4) == 0):
        return at + 4
    if end - at >= 5 and memcmp(at, b"false", 5) == 0:
        return at + 5
    return past_json_number(at, end)


cdef inline const char *past_blanks(const char *at, const char *end) noexcept nogil:
    while at < end and (at[0] == c' ' or at[0] == c'\t'):
        at += 1
    return at


cdef bint is_json_line(const char *at, const char *end) noexcept nogil:
    """Whether the bytes are one JSON value that can stand inside a line as it is.

    It begins and ends without blanks, which a parser would not give back.
    """
    cdef char open_[JSON_DEPTH_MAX]
    cdef int depth = 0
    if at == end or past_blanks(at, end) != at or (end - 1)[0] == c' ' or (end - 1)[0] == c'\t':
        return False
    if not is_utf8(at, <uint64_t>(end - at)):
        return False
    while True:
        # A value begins here.
        at = past_blanks(at, end)
        if at == end:
            return False
        if at[0] == c'{' or at[0] == c'[':
            if depth == JSON_DEPTH_MAX:
                return False
            open_[depth] = at[0]
            depth += 1
            at = past_blanks(at + 1, end)
            if at == end:
                return False
            if at[0] != open_[depth - 1] + 2:  # not empty; '}' is '{' + 2, and ']' is '[' + 2
                if open_[depth - 1] == c'{':
                    at = past_json_name(at, end)
                    if at == NULL:
                        return False
                continue
        elif at[0] == c'"':
            at = past_json_string(at, end)
        else:
            at = past_json_word(at, end)
        if at == NULL:
            return False
        # A value, or an empty bracket up to its end, was read: close what ends here.
        while True:
            if depth == 0:
                return at == end
            at = past_blanks(at, end)
            if at == end:
                return False
            if at[0] != open_[depth - 1] + 2:
                break
            depth -= 1
            at += 1
        if at[0] != c',':
            return False
        at = past_blanks(at + 1, end)
        if open_[depth - 1] == c'{':
            at = past_json_name(at, end)
            if at == NULL:
                return False


cdef const char *past_json_name(const char *at, const char *end) noexcept nogil:
    """The place after the name of a field and its colon; NULL if there is none."""
    if at == end or at[0] != c'"':
        return NULL
    at = past_json_string(at, end)
    if at == NULL:
        return NULL
    at = past_blanks(at, end)
    if at == end or at[0] != c':':
        return NULL
    return at + 1


def event_lines(list events not None, str form not None, bytes end not None, Py_ssize_t first=0, uint64_t most=1 << 20):
    """Events as lines, each with ``end``: of their values alone ("raw"), or of JSON objects ("json").

    Begins with the one at ``first`` and stops after ``most`` bytes; returns the text, and how many
    events of the list are done.
    """
    cdef Lines lines = Lines.__new__(Lines, INSIDE)
    cdef Event event
    cdef Coder coder
    cdef uint64_t n, end_len = <uint64_t>len(end)
    cdef const char *at
    cdef const char *ending = PyBytes_AS_STRING(end)
    cdef bint raw = form == "raw", is_json = False, has_headers
    cdef object owner = None
    if not raw and form != "json":
        raise Internal(f"lines must be 'raw' or 'json', got {form!r}")
    if first < 0:
        raise Internal(f"first must be an index, got {first}")
    while first < PyList_GET_SIZE(events) and lines.used < most:
        event = <Event?>(<object>PyList_GET_ITEM(events, first))
        first += 1
        if raw:
            if event.p[PSK_FRAME_KIND] != PSK_KIND_DELETE:
                at = event.value_start(&n)
                lines.add(at, n)
        else:
            has_headers = psk_get16(event.p + PSK_FRAME_HEADERS_LEN) > 0
            if has_headers or event.owner is not owner:
                coder = coder_of(event)
                is_json = coder is not None and coder.name == "json"
                owner = None if has_headers else event.owner
            lines.add_json(event, is_json)
        lines.add(ending, end_len)
    return PyBytes_FromStringAndSize(lines.start, <Py_ssize_t>lines.used) if lines.used else b"", first
