# Many events at once: the items of extend and load, and an Entry or Event of append, as parts of frames.

@cython.final
cdef class Values:
    """The values of a batch: bytes objects, which it keeps alive meanwhile."""

    cdef ByteSpan *spans
    cdef uint64_t nbytes  # of their frames
    cdef tuple held       # the items of a list may be removed while they are written

    cdef bint take(self, object items, uint64_t prefix) except -1:
        """Note the items of a list or tuple; false if they are not all bytes objects."""
        cdef tuple held = tuple(items)
        cdef Py_ssize_t count = len(held), i
        cdef PyObject *item
        cdef uint64_t length
        self.held = held
        self.spans = <ByteSpan *>PyMem_Malloc(<size_t>count * sizeof(ByteSpan))
        if self.spans == NULL:
            raise MemoryError
        for i in range(count):
            item = PyTuple_GET_ITEM(held, i)
            if not PyBytes_CheckExact(<object>item):
                return False
            length = <uint64_t>PyBytes_GET_SIZE(<object>item)
            if length > PSK_VALUE_BYTES_MAX:
                raise TooLarge(f"item {i}: value must be at most {PSK_VALUE_BYTES_MAX} bytes, got {length}")
            self.spans[i].start = PyBytes_AS_STRING(<object>item)
            self.spans[i].length = length
            self.nbytes += align8(PSK_FRAME_HEADER_BYTES + prefix + length)
        return True

    def __cinit__(self, inside=None, *args, **kwargs):
        if inside is not INSIDE:
            raise only_inside(self)

    def __reduce__(self):
        raise stays_here(self)

    def __dealloc__(self):
        PyMem_Free(self.spans)


cdef int refuse_one(object values, str call, bint encodes) except -1:
    """Refuse a single value, even if it can be iterated over."""
    if isinstance(values, (str, bytes, bytearray, memoryview, dict, Event, entry_type())):
        hint = "append"
        if not encodes and isinstance(values, dict):
            hint = "append in a log that was created with a codec, such as codec='json'"
        elif not encodes and isinstance(values, str):
            hint = "append, and encode it first"
        raise WrongType(
            f"{call} needs many values, such as a list, got one {type(values).__name__}; "
            f"to append one event use {hint}")
    if isinstance(values, type) or not hasattr(values, "__iter__") or getattr(values, "ndim", 1) == 0:
        raise WrongType(
            f"{call} needs many values, such as a list, or a table, frame or stream in memory, "
            f"got {type(values).__name__}")
    return 0


cdef inline bint is_object(object value):
    """Whether a value is an object for a codec, and not encoded already or an Entry or Event."""
    return PyDict_CheckExact(value) or not (
        value is None or PyObject_CheckBuffer(value) or psk_is_a(value, entry_type()))


cdef enum:
    ENTRY_PARTS = 8


cdef int refuse_twice(object item, dict given) except -1:
    """Refuse an argument for a part that the item has itself: one of the two would be ignored."""
    cdef Event event
    cdef Coder coder
    cdef OwnHeaders own
    for name, value in given.items():
        if value is None:
            continue
        has = getattr(item, name, None) is not None
        if type(item) is Event:
            event = item
            look_at_headers(
                frame_topic(event.p) + psk_get16(event.p + PSK_FRAME_TOPIC_LEN),
                psk_get16(event.p + PSK_FRAME_HEADERS_LEN), &own)
            if name == "topic":
                has = psk_get16(event.p + PSK_FRAME_TOPIC_LEN) > 0
            elif name == "headers":
                has = own.users > 0
            elif name == "tags":
                has = own.tags > 0
            elif name == "not_before":
                has = own.due > 0
            elif name == "ttl":
                has = own.ttl > 0
            elif name == "time":
                has = event.p[PSK_FRAME_FLAGS] & PSK_FLAG_EVENT_TIME
            elif name == "codec":
                coder = log_coder(event)
                has = value != (codec_header(event) or ("bytes" if coder is None else coder.name))
        if has:
            raise Usage(f"{name} is given twice: the {type(item).__name__} has its own; leave {name}= out")
    return 0


cdef inline bint is_item(object value):
    """Whether it is more than a value: it has its own key, topic and so on."""
    return type(value) is Event or psk_is_a(value, entry_type())


cdef class Gathered(Given):
    """Checked items of a call, with pointers to their bytes."""

    cdef Parts *at           # the first one
    cdef Parts *mine         # memory to free; NULL for a slice
    cdef uint64_t room       # how many fit the memory
    cdef uint64_t nbytes     # of all frames
    cdef list pins           # objects that keep the bytes in place
    cdef bint alike          # they differ only in their values, which are bytes objects

    def __cinit__(self, *args, **kwargs):
        self.pins = []
        self.alike = True

    def __dealloc__(self):
        PyMem_Free(self.mine)

    cdef int grow(self) except -1:
        cdef uint64_t room = self.room * 2 if self.room else 16
        cdef Parts *parts = <Parts *>PyMem_Realloc(self.mine, room * sizeof(Parts))
        if parts == NULL:
            raise MemoryError
        self.at = self.mine = parts
        self.room = room
        return 0

    def __getitem__(self, which):
        """A slice of them."""
        cdef Gathered some = Gathered.__new__(Gathered, INSIDE)
        cdef uint64_t i
        start, stop, _ = which.indices(self.count)
        some.at = self.at + <uint64_t>start
        some.count = <uint64_t>max(0, stop - start)
        some.before = self.before + <uint64_t>start
        some.alike = self.alike
        some.pins.append(self)
        for i in range(some.count):
            some.nbytes += parts_bytes(some.at + i)
        return some

    cdef bint plain(self) except -1:
        return self.alike

    cdef const Parts *same(self) noexcept:
        return self.at

    cdef const Parts *laid_out(self, uint64_t *nbytes) noexcept:
        nbytes[0] = self.nbytes
        return self.at

    cdef uint64_t spans(self, ByteSpan *spans) except 0:
        cdef uint64_t i
        for i in range(self.count):
            spans[i].start = self.at[i].value
            spans[i].length = self.at[i].value_len
        return self.nbytes

    cdef uint64_t parts(self, Parts *parts, list pins) except 0:
        pins.append(self)
        memcpy(parts, self.at, self.count * sizeof(Parts))
        return self.nbytes


cdef struct OwnHeaders:
    # Penstock's own headers among those of an event.
    uint32_t users           # bytes of the others
    uint32_t tags            # bytes of its tags,
    uint32_t due             # of its time to wait for,
    uint32_t ttl             # and of its time to live
    const char *codec        # NULL: none
    uint16_t codec_len


cdef bint look_at_headers(const char *at, uint32_t left, OwnHeaders *own) noexcept:
    """Find Penstock's own headers; False if the headers are not consistent."""
    cdef uint32_t n
    memset(own, 0, sizeof(OwnHeaders))
    while left:
        if left < PSK_EVENT_HEADER_BYTES:
            return False
        n = header_bytes(at)
        if n > left or not is_utf8(at + PSK_EVENT_HEADER_BYTES, psk_get16(at)):
            return False
        if is_named(at, PSK_TAG_NAME, TAG_NAME_BYTES):
            own.tags += n
        elif is_mark(at, PSK_NOT_BEFORE_NAME, NOT_BEFORE_NAME_BYTES):
            own.due += n
        elif is_mark(at, PSK_TTL_NAME, TTL_NAME_BYTES):
            own.ttl += n
        elif is_named(at, PSK_CODEC_NAME, CODEC_NAME_BYTES) and psk_get16(at + PSK_EVENT_HEADER_VALUE_LEN) != PSK_NULL_HEADER:
            own.codec = at + PSK_EVENT_HEADER_BYTES + CODEC_NAME_BYTES
            own.codec_len = psk_get16(at + PSK_EVENT_HEADER_VALUE_LEN)
        else:
            own.users += n
        at += n
        left -= n
    return True


cdef inline bint is_named(const char *header, const char *name, uint32_t nbytes) noexcept nogil:
    return psk_get16(header) == nbytes and memcmp(header + PSK_EVENT_HEADER_BYTES, name, nbytes) == 0


cdef class Gatherer:
    """Turns the items of one call into parts of frames.

    An item's own key, topic, headers, time and tags are used; the call gives those that it lacks. An
    event of another log keeps its bytes, and the name of the codec they were written with.
    """

    cdef Coder own             # the log's codec
    cdef Coder coder           # the call's; the same if it names none
    cdef object path
    cdef Parts shared          # the parts of an item that is only a value, without that value
    cdef bytes ttl             # the headers in there: a time to live,
    cdef bytes users           # the caller's,
    cdef bytes codec           # the codec's name if it is not the log's,
    cdef bytes due             # a time to wait for,
    cdef bytes tags            # and tags
    cdef list pins
    cdef Gathered into
    cdef type entry            # `penstock.Entry`
    cdef bint copies           # copy what may change before the call ends
    cdef bint single           # errors do not say which item
    cdef bint held             # a tuple keeps the items alive
    cdef const char *line      # the next of the values that were encoded ahead; NULL: none
    cdef const char *lines_end
    cdef bint taking           # processing an item, not asking for the next one
    cdef Coder seen            # coder of the last event that was an item
    cdef bint seen_same        # whether that is the log's codec
    cdef bytes seen_headers    # its headers if it has none itself

    def __cinit__(
        self, path, Coder own not None, Coder coder not None, key, topic, headers, time, tags,
        not_before, ttl,
    ):
        self.path = path
        self.own = own
        self.coder = coder
        self.entry = entry_type()
        self.pins = [key, topic]
        self.users = b"" if headers is None else encode_headers(headers)
        self.codec = b"" if coder is own else codec_mark(coder.name)
        self.due = b"" if not_before is None else due_mark(not_before)
        self.tags = b"" if tags is None else encode_tags(tags)
        self.ttl = b"" if ttl is None else ttl_mark(ttl)
        parts_fill(&self.shared, self.pins, b"", key, topic, None, time, None)
        if self.users or self.codec or self.due or self.tags or self.ttl:
            set_headers(&self.shared, self.pins, self.ttl, self.users, self.codec + self.due + self.tags)

    def __reduce__(self):
        raise stays_here(self)

    cdef int begin(self, uint64_t before) except -1:
        """Gather into another batch from now on; ``before`` items come before it."""
        self.into = Gathered.__new__(Gathered, INSIDE)
        self.into.before = before
        self.into.pins.append(self.pins)  # for what its items share
        return 0

    cdef int add_all(self, object items) except -1:
        """Take all items; errors of their iterator are passed on as they are."""
        cdef Gathered into = self.into
        if type(items) is tuple:
            self.held = True
            into.pins.append(items)
            if self.coder.lines is not None:
                self.encode_ahead(<tuple>items)
        self.taking = False
        try:
            for item in items:
                self.taking = True
                self.take(into, item)
                self.taking = False
        except PenstockError as error:
            if self.taking:
                self.name_item(error)
            raise
        return 0

    cdef int add(self, object item) except -1:
        try:
            return self.take(self.into, item)
        except PenstockError as error:
            self.name_item(error)
            raise

    cdef int name_item(self, object error) except -1:
        """Add to an error which item it is about."""
        if not self.single:
            error.args = (f"item {self.into.before + self.into.count}: {error}", *error.args[1:])
        return 0

    cdef int take(self, Gathered into, object item) except -1:
        cdef Parts *p
        if into.count == into.room:
            into.grow()
        p = into.at + into.count
        p[0] = self.shared
        if type(item) is self.entry:
            self.take_entry(p, <tuple>item)
        elif type(item) is Event:
            into.alike = False
            if not self.held:
                into.pins.append(item)
            self.take_event(p, <Event>item)
        elif psk_is_a(item, self.entry):
            entry = tuple(item)
            into.pins.append(entry)
            self.take_entry(p, entry)
        else:
            self.take_value(p, item)
            into.alike = into.alike and p.fixed and p.kind == PSK_KIND_DATA
            if p.kind == PSK_KIND_DELETE and p.key_len == PSK_NO_KEY:
                raise no_key()
        into.nbytes += parts_bytes(p)
        into.count += 1
        return 0

    cdef int encode_ahead(self, tuple items) except -1:
        """Encode the values of all items at once, if possible: it takes half the time."""
        cdef list values = []
        for item in items:
            if type(item) is self.entry and PyTuple_GET_SIZE(item) == ENTRY_PARTS:
                item = <object>PyTuple_GET_ITEM(item, 0)  # item[0] goes through a slow slot
            elif psk_is_a(item, self.entry):
                item = item[0]
            if is_object(item):
                values.append(item)
        try:
            data = self.coder.lines(values)
        except Exception:
            return 0  # encoding them one by one finds out which it is
        if type(data) is bytes and data.count(b"\n") == len(values):
            self.into.pins.append(data)
            self.line = PyBytes_AS_STRING(data)
            self.lines_end = self.line + PyBytes_GET_SIZE(data)
        return 0

    cdef int take_line(self, Parts *p, object value) except -1:
        """Take a value that was encoded ahead."""
        cdef const char *end = <const char *>memchr(self.line, c'\n', <size_t>(self.lines_end - self.line))
        if end == NULL:
            raise Internal("fewer values were encoded than given")
        p.value = self.line
        p.value_len = <uint64_t>(end - self.line)
        p.fixed = True
        self.line = end + 1
        if p.value_len > PSK_VALUE_BYTES_MAX:
            raise too_long(p.value_len)
        if psk_has_null(p.value, p.value_len):
            self.coder.refuse_nan(value, self.path)
        return 0

    cdef inline int take_value(self, Parts *p, object value) except -1:
        cdef list pins = self.into.pins
        if self.line != NULL and is_object(value):
            return self.take_line(p, value)
        if self.coder.encode is not None:
            value = self.coder.to_bytes(value, self.path)
        pins.append(value)
        return set_value(p, pins, value, self.copies)

    cdef int take_entry(self, Parts *p, tuple entry) except -1:
        cdef list pins = self.into.pins
        cdef object part
        self.into.alike = False
        if PyTuple_GET_SIZE(entry) != ENTRY_PARTS:
            raise WrongType(f"an Entry must have {ENTRY_PARTS} parts, got {len(entry)}")
        if not self.held:
            pins.append(entry)
        part = <object>PyTuple_GET_ITEM(entry, 0)
        if self.coder.encode is None:
            set_value(p, pins, part, self.copies)
        else:
            self.take_value(p, part)
        part = <object>PyTuple_GET_ITEM(entry, 1)
        if part is not None:
            set_key(p, pins, part)
        if p.kind == PSK_KIND_DELETE and p.key_len == PSK_NO_KEY:
            raise no_key()
        part = <object>PyTuple_GET_ITEM(entry, 2)
        if part is not None:
            set_topic(p, part)
        part = <object>PyTuple_GET_ITEM(entry, 4)
        if part is not None:
            set_time(p, part)
        headers = <object>PyTuple_GET_ITEM(entry, 3)
        tags = <object>PyTuple_GET_ITEM(entry, 5)
        not_before = <object>PyTuple_GET_ITEM(entry, 6)
        ttl = <object>PyTuple_GET_ITEM(entry, 7)
        if headers is not None or tags is not None or not_before is not None or ttl is not None:
            set_headers(
                p, pins, self.ttl if ttl is None else ttl_mark(ttl),
                self.users if headers is None else encode_headers(headers),
                self.codec + (self.due if not_before is None else due_mark(not_before))
                + (self.tags if tags is None else encode_tags(tags)))
        return 0

    cdef int take_event(self, Parts *p, Event event) except -1:
        """Take an event as it is; the caller keeps it alive."""
        cdef const char *frame = event.p
        cdef uint64_t ns
        if frame[PSK_FRAME_KIND] == PSK_KIND_DELETE:
            p.kind = PSK_KIND_DELETE
        else:
            p.value = event.value_start(&p.value_len)
            p.fixed = False  # it is in a file
            if p.value_len > PSK_VALUE_BYTES_MAX:
                raise too_long(p.value_len)
        if psk_get16(frame + PSK_FRAME_KEY_LEN) != PSK_NO_KEY:
            p.key = event.key_start()
            p.key_len = psk_get16(frame + PSK_FRAME_KEY_LEN)
        elif p.kind == PSK_KIND_DELETE and p.key_len == PSK_NO_KEY:
            raise no_key()
        if psk_get16(frame + PSK_FRAME_TOPIC_LEN):
            p.topic = frame_topic(frame)
            p.topic_len = psk_get16(frame + PSK_FRAME_TOPIC_LEN)
        if p.key_len != PSK_NO_KEY and p.key_len > PSK_KEY_BYTES_MAX or p.topic_len > PSK_TOPIC_BYTES_MAX or (
            not is_utf8(p.topic, p.topic_len)
        ):
            raise Corrupt(f"seq {event.seq}: its key or topic is not valid in a log", seq=event.seq)
        if frame[PSK_FRAME_FLAGS] & PSK_FLAG_EVENT_TIME or not p.flags & PSK_FLAG_EVENT_TIME:
            ns = frame_event_ns(frame)
            if ns > TIME_NS_MAX:
                raise Usage(f"time must be from 1970-01-01 to 2262-04-11, got {ns} ns since 1970")
            p.event_ns = ns
            p.flags |= PSK_FLAG_EVENT_TIME
        return self.take_headers(p, event)

    cdef int take_headers(self, Parts *p, Event event) except -1:
        """Take the headers of an event, and make them name the codec of its value."""
        cdef OwnHeaders own
        cdef const char *raw = frame_topic(event.p) + psk_get16(event.p + PSK_FRAME_TOPIC_LEN)
        cdef uint16_t nbytes = psk_get16(event.p + PSK_FRAME_HEADERS_LEN)
        cdef bint same
        cdef Coder coder
        if not look_at_headers(raw, nbytes, &own):
            raise Corrupt(f"seq {event.seq}: its headers are not consistent", seq=event.seq)
        if own.codec != NULL:
            name = PyBytes_FromStringAndSize(own.codec, own.codec_len).decode("utf-8", "replace")
            same = name == self.own.name
        else:
            coder = log_coder(event)
            if coder is not self.seen or self.seen_headers is None:
                name = "bytes" if coder is None else coder.name
                self.seen = coder
                self.seen_same = self.own.name == name
                self.seen_headers = (
                    self.ttl + self.users + (b"" if self.seen_same else codec_mark(name)) + self.due + self.tags)
                self.pins.append(self.seen_headers)
            same = self.seen_same
        if same and self.own.decode is not None and p.kind == PSK_KIND_DATA:
            self.own.to_bytes(PyBytes_FromStringAndSize(p.value, <Py_ssize_t>p.value_len), self.path)
        if (
            (own.users or not self.users) and (own.tags or not self.tags) and (own.due or not self.due)
            and (own.ttl or not self.ttl) and (own.codec == NULL) == same
        ):
            p.headers = raw
            p.headers_len = nbytes
            return 0
        if nbytes == 0:
            p.headers = PyBytes_AS_STRING(self.seen_headers)
            p.headers_len = <uint16_t>PyBytes_GET_SIZE(self.seen_headers)
            return 0
        ttl, users, due, tags = split_headers(raw, nbytes)
        codec = b""
        if not same:
            if own.codec == NULL:
                name = "bytes" if coder is None else coder.name
            codec = codec_mark(name)
        return set_headers(
            p, self.into.pins, ttl or self.ttl, users or self.users, codec + (due or self.due) + (tags or self.tags))


cdef tuple split_headers(const char *at, uint32_t left):
    """Time to live, the caller's headers, time to wait for and tags of an event, as they are in its frame.

    `look_at_headers` has checked them.
    """
    cdef bytearray ttl = bytearray(), users = bytearray(), due = bytearray(), tags = bytearray()
    cdef uint32_t n
    while left:
        n = header_bytes(at)
        if is_named(at, PSK_TAG_NAME, TAG_NAME_BYTES):
            tags += PyBytes_FromStringAndSize(at, n)
        elif is_mark(at, PSK_NOT_BEFORE_NAME, NOT_BEFORE_NAME_BYTES):
            due += PyBytes_FromStringAndSize(at, n)
        elif is_mark(at, PSK_TTL_NAME, TTL_NAME_BYTES):
            ttl += PyBytes_FromStringAndSize(at, n)
        elif not is_named(at, PSK_CODEC_NAME, CODEC_NAME_BYTES) or psk_get16(at + PSK_EVENT_HEADER_VALUE_LEN) == PSK_NULL_HEADER:
            users += PyBytes_FromStringAndSize(at, n)
        at += n
        left -= n
    return bytes(ttl), bytes(users), bytes(due), bytes(tags)


cdef class Gathering:
    """Iterates over the items of a load once: batches of at most ``room`` bytes, or one event."""

    cdef Gatherer gatherer
    cdef object items
    cdef uint64_t room, events_max

    def __cinit__(self, Gatherer gatherer not None, values, uint64_t room, uint64_t events_max):
        self.gatherer = gatherer
        self.items = iter(values)
        self.room = room
        self.events_max = events_max
        gatherer.copies = True
        gatherer.begin(0)

    def __reduce__(self):
        raise stays_here(self)

    def __iter__(self):
        return self

    def __next__(self):
        cdef Gatherer gatherer = self.gatherer
        cdef Gathered batch = gatherer.into
        cdef Py_ssize_t pins = 0
        for item in self.items:
            pins = PyList_GET_SIZE(batch.pins)
            gatherer.add(item)
            if batch.count > 1 and batch.nbytes > self.room or batch.count > self.events_max:
                batch.count -= 1
                gatherer.begin(batch.before + batch.count)
                move_last(batch, gatherer.into, pins)
                return batch
        if batch.count == 0:
            raise StopIteration
        gatherer.begin(batch.before + batch.count)
        return batch


cdef int move_last(Gathered batch, Gathered rest, Py_ssize_t pins) except -1:
    """Move the event after those of a batch, and the pins from ``pins`` on, to a separate batch."""
    rest.grow()
    rest.at[0] = batch.at[batch.count]
    rest.count = 1
    rest.nbytes = parts_bytes(rest.at)
    rest.alike = batch.alike
    rest.pins += batch.pins[pins:]
    batch.nbytes -= rest.nbytes
    del batch.pins[pins:]
    return 0
