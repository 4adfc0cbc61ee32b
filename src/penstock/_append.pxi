# LogCore, the hot half of a log handle: arguments become frames, `_publish.pxi` writes them.

cdef object _to_ns = None
cdef type _Entry = None


def set_helpers(to_ns, entry):
    """Called once by the event module, which lies above this one."""
    global _to_ns, _Entry
    _to_ns = to_ns
    _Entry = entry


cdef inline void parts_plain(Parts *p, bytes value) noexcept:
    """Note where the bytes of an event are that is nothing but a value."""
    p.value = PyBytes_AS_STRING(value)
    p.value_len = <uint64_t>PyBytes_GET_SIZE(value)
    p.topic_len = 0
    p.headers_len = 0
    p.key_len = PSK_NO_KEY
    p.kind = PSK_KIND_DATA
    p.flags = 0
    p.fixed = True


cdef int parts_fill(
    Parts *p, list pins, object value, object key, object topic, object headers, object time,
    bytes marks=None,
) except -1:
    """Check one event and note where its bytes are; ``pins`` keeps them there.

    ``marks`` are headers of Penstock's own, behind the caller's.
    """
    cdef Py_ssize_t n = 0
    cdef object raw
    memset(p, 0, sizeof(Parts))
    p.kind = PSK_KIND_DATA
    p.key_len = PSK_NO_KEY
    if PyBytes_CheckExact(value):
        p.fixed = True
        p.value = PyBytes_AS_STRING(value)
        p.value_len = <uint64_t>PyBytes_GET_SIZE(value)
    elif value is None:
        if key is None:
            raise Usage("a value of None deletes a key: give the key")
        p.kind = PSK_KIND_DELETE
    else:
        raw = flat(value, "value")
        pins.append(raw)
        p.value = <const char *>buffer_start(raw)
        p.value_len = <uint64_t>raw.nbytes
    if p.value_len > PSK_VALUE_BYTES_MAX:
        raise TooLarge(f"a value of {p.value_len} bytes; the limit is {PSK_VALUE_BYTES_MAX}")
    if key is not None:
        if PyBytes_CheckExact(key):
            p.key = PyBytes_AS_STRING(key)
            n = PyBytes_GET_SIZE(key)
        else:
            raw = bytes(flat(key, "key"))
            pins.append(raw)
            p.key = PyBytes_AS_STRING(raw)
            n = PyBytes_GET_SIZE(raw)
        if n > PSK_KEY_BYTES_MAX:
            raise TooLarge(f"a key of {n} bytes; the limit is {PSK_KEY_BYTES_MAX}")
        p.key_len = <uint16_t>n
    if topic is not None:
        if not isinstance(topic, str):
            raise WrongType(f"topic is str, not {type(topic).__name__}")
        try:
            p.topic = PyUnicode_AsUTF8AndSize(topic, &n)
        except UnicodeEncodeError as error:
            raise Usage(f"the topic cannot be written as UTF-8: {error}") from None
        if n > PSK_TOPIC_BYTES_MAX:
            raise TooLarge(f"a topic of {n} bytes; the limit is {PSK_TOPIC_BYTES_MAX}")
        p.topic_len = <uint16_t>n
    if headers is not None or marks is not None:
        raw = b"" if headers is None else encode_headers(headers)
        if marks is not None:
            raw += marks
            if len(raw) > PSK_HEADERS_BYTES_MAX:
                raise TooLarge(f"headers and tags take {len(raw)} bytes; at most {PSK_HEADERS_BYTES_MAX}")
        pins.append(raw)
        p.headers = PyBytes_AS_STRING(raw)
        p.headers_len = <uint16_t>PyBytes_GET_SIZE(raw)
    if time is not None:
        p.event_ns = _to_ns(time, "time")
        p.flags |= PSK_FLAG_EVENT_TIME
    return 0


def check_producer(given):
    """Id, as bytes, and number of a producer, checked."""
    try:
        who, n = given
    except (TypeError, ValueError):
        raise WrongType(f"producer is a pair (id, n), not {given!r}") from None
    if not isinstance(who, str):
        raise WrongType(f"a producer's id is str, not {type(who).__name__}")
    if isinstance(n, bool) or not isinstance(n, int):
        raise WrongType(f"a producer's number is a whole number, not {type(n).__name__}")
    if n < 0 or n >> 64:
        raise Usage(f"a producer's number is from 0 to 2**64 - 1, not {n}")
    try:
        raw = who.encode()
    except UnicodeEncodeError as error:
        raise Usage(f"the producer's id cannot be written as UTF-8: {error}") from None
    if not 0 < len(raw) <= PSK_PRODUCER_ID_BYTES_MAX:
        raise TooLarge(f"a producer's id of {len(raw)} bytes; it is 1 to {PSK_PRODUCER_ID_BYTES_MAX}")
    return raw, n


cdef tuple as_tuple(object values):
    try:
        return tuple(values)
    except TypeError:
        if hasattr(values, "__iter__"):
            raise
        raise WrongType(
            f"extend takes values one after the other, or a table, frame or stream in memory, "
            f"not {type(values).__name__}") from None


cdef int refuse_one(object values) except -1:
    """Refuse what is one value rather than many, and yet can be gone through."""
    if isinstance(values, (str, bytes, bytearray, memoryview, dict)):
        raise WrongType(
            f"extend takes values one after the other, not {type(values).__name__}; "
            "to append one use append")
    return 0


@cython.final
cdef class Values:
    """Where the values of a batch are: bytes objects, which it keeps from going away meanwhile."""

    cdef Span *spans
    cdef uint64_t nbytes  # of their frames
    cdef uint64_t pinned  # how many of a list's items it holds, one by one; a tuple holds its own

    cdef bint take(self, object items, uint64_t count, uint64_t prefix) except -1:
        """Note the items of a list or tuple; false if they are not all bytes objects."""
        cdef PyObject **at = PySequence_Fast_ITEMS(items)
        cdef bint pins = type(items) is list
        cdef uint64_t i, length
        self.spans = <Span *>PyMem_Malloc(count * sizeof(Span))
        if self.spans == NULL:
            raise MemoryError
        for i in range(count):
            if not PyBytes_CheckExact(<object>at[i]):
                return False
            length = <uint64_t>PyBytes_GET_SIZE(<object>at[i])
            if length > PSK_VALUE_BYTES_MAX:
                raise TooLarge(f"item {i}: a value of {length} bytes; the limit is {PSK_VALUE_BYTES_MAX}")
            self.spans[i].start = PyBytes_AS_STRING(<object>at[i])
            self.spans[i].length = length
            self.nbytes += align8(PSK_FRAME_HEADER_BYTES + prefix + length)
            if pins:
                psk_pin(at[i])
                self.pinned = i + 1
        return True

    def __dealloc__(self):
        cdef uint64_t i
        for i in range(self.pinned):
            psk_unpin(psk_bytes_object(self.spans[i].start))
        PyMem_Free(self.spans)


cdef inline char *index_page(SegmentMap m, uint64_t offset) noexcept:
    """The page of a segment's index that has the block of a frame at ``offset``."""
    cdef uint64_t block = (max(offset, m.data_offset) - m.data_offset) // PSK_INDEX_STEP
    return m.base + ((m.index_offset + block * PSK_INDEX_ENTRY_BYTES) & ~<uint64_t>(PSK_PAGE - 1))


cdef object flat(object data, str what):
    """A one-dimensional memoryview of bytes over ``data``."""
    if not PyObject_CheckBuffer(data):
        hint = "; encode it first" if isinstance(data, str) else ""
        if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
            hint = "; extend and load take Arrow data as a whole, not a list of it"
        raise WrongType(f"{what} is bytes or another buffer, not {type(data).__name__}{hint}")
    try:
        return memoryview(data).cast("B")
    except TypeError as error:
        raise WrongType(f"{what} must be one contiguous buffer: {error}") from None


cdef void *buffer_start(object view) except? NULL:
    cdef Py_buffer b
    cdef void *start
    PyObject_GetBuffer(view, &b, PyBUF_SIMPLE)
    start = b.buf
    PyBuffer_Release(&b)  # the memoryview itself stays pinned by the caller
    return start


def frame_bytes(uint64_t body):
    """How long a frame with so long a body is."""
    return align8(PSK_FRAME_HEADER_BYTES + body)


cdef class LogCore(RingCore):
    """The hot half of a log handle: append, extend, ``log[seq]``. :class:`penstock.Log` is the rest."""

    cdef SegmentMap _active
    cdef psk_filler *filler
    cdef uint64_t fill_next    # think about populating again once appends pass this offset
    cdef uint64_t look_next    # likewise about blocks, and the next segment
    cdef public uint64_t _sync_next  # ask for a sync once appends pass this seq
    cdef psk_aide *aide        # for long appends; one thread at a time has it
    cdef bint aide_taken
    cdef public list _recent   # maps of segments that were read lately, newest use last
    cdef public Coder _coder
    cdef public bint _plain    # values are known to be bytes that nobody encodes

    def __cinit__(self, *args, **kwargs):
        self.filler = NULL
        self.aide = NULL
        self._sync_next = U64_MAX
        self._recent = []
        self._coder = Coder()

    def __dealloc__(self):
        if self.fork_generation != psk_fork_generation:
            return  # the threads stayed with the parent
        with nogil:
            if self.filler != NULL:
                psk_filler_stop(self.filler)
                psk_filler_free(self.filler)
            if self.aide != NULL:
                psk_aide_stop(self.aide)
                psk_aide_free(self.aide)

    cdef psk_aide *take_aide(self, uint64_t nbytes) except? NULL:
        """Room and help for a long append; NULL if it is short, or another thread makes one."""
        if nbytes < PSK_WRITE_BYTES_MIN or self.aide_taken:
            return NULL
        if self.aide == NULL:
            self.aide = psk_aide_new()
            if self.aide == NULL:
                raise MemoryError
        self.aide_taken = True
        return self.aide

    @property
    def _active_map(self):
        return self._active

    @_active_map.setter
    def _active_map(self, SegmentMap m):
        """Append to ``m`` from now on."""
        cdef SegmentMap before = self._active
        self.exchange_active(m)
        self.leave_active(before)

    cdef void exchange_active(self, SegmentMap m) noexcept:
        """Under one hold of the GIL: what is asked for, and not forgotten, is of one map always."""
        if self.fork_generation != psk_fork_generation:  # the threads stayed with the parent
            self.filler = NULL
            self.aide = NULL
            self.aide_taken = False
        self._active = m
        self.fill_next = self.look_next = 0
        if self.filler != NULL:
            psk_filler_forget(self.filler)

    cdef int leave_active(self, SegmentMap before) except -1:
        """Nobody populates the map any more that was appended to."""
        cdef psk_filler *filler = self.filler
        if filler != NULL:
            with nogil:
                psk_filler_idle(filler)
        if before is not None and before is not self._active:
            before.let_go(before.data_offset, before.mapped)
        return 0

    def _stop_threads(self):
        """End its threads, for good; others may still have the rest of them in hand."""
        cdef psk_filler *filler = self.filler
        cdef psk_aide *aide = self.aide
        if self.fork_generation != psk_fork_generation:
            return
        with nogil:
            if filler != NULL:
                psk_filler_stop(filler)
            if aide != NULL:
                psk_aide_stop(aide)

    cdef uint64_t warm_end(self, SegmentMap m) noexcept:
        """Offset up to which this process has the pages of ``m`` populated."""
        cdef char *ready
        if self.filler == NULL or m is not self._active:
            return 0
        ready = psk_filler_ready(self.filler)
        return <uint64_t>(ready - m.base) if m.base <= ready <= m.base + m.mapped else 0

    cdef bint wants_keeper(self, SegmentMap m, uint64_t at, uint64_t allocated) noexcept:
        """Whether the keeper has something to do: more blocks, or the next segment. And when to look again."""
        cdef uint64_t nearly_full = m.frames_end // 5 * 4
        if at >= nearly_full:
            self.look_next = at + max(<uint64_t>PSK_POPULATE_CHUNK_BYTES, (m.frames_end - at) // 2)
            return True
        self.look_next = min(at + PSK_POPULATE_CHUNK_BYTES, nearly_full)
        return allocated < min(at + PSK_ALLOCATE_AHEAD_BYTES, m.frames_end)

    cdef int fill(self, Control control, SegmentMap m, uint64_t at, uint64_t nbytes) except -1:
        """Have the pages ahead of ``at`` populated, and more of them allocated if they run short.

        A long append has no use for populated pages; whatever short one comes next asks for them.
        To wake a thread costs as much as many events, so that is done only if it has something to do.
        """
        cdef uint64_t allocated = psk_load64(control.words + PSK_C_ALLOC_END)
        cdef uint64_t start = at & ~<uint64_t>(PSK_PAGE - 1)  # a whole page, as madvise wants
        cdef uint64_t stop = start + PSK_POPULATE_AHEAD_BYTES
        cdef char *index = NULL
        cdef char *index_end = NULL
        cdef bint fresh = self.fill_next == 0
        if m is not self._active:
            return 0
        if m.ring_bytes:
            allocated = min(allocated, <uint64_t>m.mapped)
            self.look_next = U64_MAX
        elif psk_load64(control.words + PSK_C_HEAD) >> 32 != m.number:
            return 0
        elif at >= self.look_next:
            if self.wants_keeper(m, at, allocated):
                self._look_ahead()
            if m is not self._active:
                return 0  # another thread has rolled meanwhile, or closed the log
        if nbytes >= PSK_WRITE_BYTES_MIN:
            self.fill_next = at
            return 0
        if stop > allocated:
            stop = allocated & ~<uint64_t>(PSK_PAGE - 1)
        self.fill_next = min(at + PSK_POPULATE_CHUNK_BYTES, self.look_next)
        if stop <= start:
            return 0
        if self.filler == NULL:
            self.filler = psk_filler_start()
            if self.filler == NULL:
                return 0
        if not m.ring_bytes:
            index = index_page(m, start)
            index_end = index_page(m, stop) + PSK_PAGE
        if fresh:  # until the thread is ahead, every page would be waited for by itself
            psk_populate(m.base + start, min(stop - start, <uint64_t>PSK_POPULATE_STEP_BYTES))
        psk_filler_ask(self.filler, m.base, m.base + start, m.base + stop, index, index_end)
        return 0

    cdef uint64_t append_parts(
        self, Terms *terms, const Parts *parts, const Span *spans, uint64_t count, uint64_t nbytes,
        object timeout,
    ) except? 0:
        """Append; returns the first seq. Slow cases are mended in Python, then tried again.

        0 means that another producer has appended since ``terms`` were drawn up.
        """
        cdef Control control
        cdef SegmentMap m
        cdef uint64_t seq = 0, end = 0, warm_end
        cdef psk_aide *aide
        cdef int64_t deadline = -1 if timeout is None else deadline_after(timeout)
        cdef uint32_t seen = 0
        cdef int rc
        cdef bint full = False  # a ring was, the last time that we looked
        while True:
            if self.fork_generation != psk_fork_generation:
                self._after_fork()
            control = self._control
            m = self._active
            if control is None or m is None or control.words == NULL:
                self._become_writer(seconds_until(deadline))
                continue
            if nbytes > m.append_max:
                if self._roll_for(nbytes):
                    continue
                raise self._too_large(nbytes, m.append_max)
            if m.ring_bytes:
                seen = psk_load32(control.words + PSK_C_ROOM_NOTIFY)
            if nbytes <= PSK_GIL_COPY_BYTES_MAX and control.lock_try():
                rc = publish(
                    control.words, m, control.fd, terms, parts, spans, count, nbytes, NULL, 0, &seq, &end)
                control.unlock()
            else:
                control.check_not_own()
                aide = self.take_aide(nbytes)
                warm_end = self.warm_end(m)
                if aide != NULL and self.filler != NULL:
                    psk_filler_hold(self.filler)
                control.pin()
                with nogil:
                    rc = control.lock_wait(deadline)
                    if rc == OK:
                        rc = publish(
                            control.words, m, control.fd, terms, parts, spans, count, nbytes, aide,
                            warm_end, &seq, &end)
                        control.unlock()
                control.unpin()
                if aide != NULL:
                    self.aide_taken = False
            if rc == OK:
                break
            if rc == INTERRUPTED:
                PyErr_CheckSignals()
            elif rc == TIMED_OUT:
                if full:
                    raise self._full_error()
                raise Busy(
                    f"{self.path}: another process held the write lock for {timeout} s; "
                    "nothing was written, try again"
                )
            elif rc == BROKEN:
                raise control.lock_error()
            elif rc == POISONED:
                raise self._poisoned_error()
            elif rc == CONFLICT:
                last_seq = self._next_seq() - 1
                raise Conflict(
                    f"{self.path}: expected seq {terms.last_seq} to be the last one, but it is "
                    f"{last_seq}; nothing was written: read what is new and decide again",
                    path=str(self.path), expected=terms.last_seq, found=last_seq,
                )
            elif rc == STALE:
                return 0
            elif rc == FULL:
                full = True
                self.wait_for_room(control, deadline, seen)
            elif rc == UNSURE:
                self._confirm(seconds_until(deadline))
            else:
                try:
                    full = self._make_ready(nbytes, seconds_until(deadline))
                except Busy:
                    if full:
                        raise self._full_error() from None
                    raise
        if end >= self.fill_next and control.words != NULL:
            self.fill(control, m, end, nbytes)
        if seq + count > self._sync_next:
            self._sync_next = U64_MAX
            self._sync_due()
        return seq

    def _take_ring(self, RingMap m not None, Control control not None, bint appends):
        """Of a ring: go on with that file and its control; no thread sees one without the other."""
        cdef SegmentMap before = self._active
        if appends:
            self.exchange_active(m)
        self._ring = m
        self._control = control
        self.fork_generation = psk_fork_generation
        if appends:
            self.leave_active(before)

    cdef uint64_t append_as(
        self, object expect, object producer, const Parts *parts, const Span *spans, uint64_t count,
        uint64_t nbytes, object timeout,
    ) except 0:
        """Append if ``expect`` holds and ``producer`` has not done it before; the first seq."""
        cdef Terms terms
        cdef Parts lead
        cdef bytes who
        cdef uint64_t seq = 0, n
        memset(&terms, 0, sizeof(terms))
        if expect is not None:
            terms.expects = True
            terms.last_seq = to_expected(expect)
        if producer is None:
            return self.append_parts(&terms, parts, spans, count, nbytes, timeout)
        who, n = check_producer(producer)
        memset(&lead, 0, sizeof(lead))
        lead.kind = PSK_KIND_PRODUCER
        lead.fixed = True
        lead.key = PyBytes_AS_STRING(who)
        lead.key_len = <uint16_t>PyBytes_GET_SIZE(who)
        lead.value = terms.value
        lead.value_len = PSK_PRODUCER_BYTES
        terms.lead = &lead
        nbytes += align8(PSK_FRAME_HEADER_BYTES + lead.key_len + lead.value_len)
        while seq == 0:
            done, terms.producer_pos = self._produced(who, n)
            if done is not None:
                if <uint64_t>len(done) != count:
                    raise Conflict(
                        f"{self.path}: producer {who.decode()!r} appended {len(done)} events under "
                        f"number {n}, and now gives {count}; nothing was written",
                        path=str(self.path), expected=n, found=n,
                    )
                return done.start
            psk_put64(terms.value + PSK_PRODUCER_N, n)
            psk_put32(terms.value + PSK_PRODUCER_COUNT, <uint32_t>count)
            psk_put32(terms.value + PSK_PRODUCER_PREVIOUS, <uint32_t>(terms.producer_pos & OFFSET_MASK))
            seq = self.append_parts(&terms, parts, spans, count, nbytes, timeout)
        return seq

    cdef Coder coder_for(self, object codec):
        """The log's codec, or the one that an append names."""
        cdef Coder own = self._coder
        if own.name is None:
            own.name = self._codec_name()
        if codec is not None and codec != own.name:
            return own.other(codec)
        own.find()
        self._plain = own.encode is None
        return own

    cdef int fill_one(
        self, Parts *p, list pins, object value, object key, object topic, object headers, object time,
        object codec, object tags,
    ) except -1:
        """Encode and check one event; apart from ``append``, which is to be short for plain bytes."""
        cdef Coder coder
        cdef bytes marks = None
        if not self._plain or codec is not None:
            coder = self.coder_for(codec)
            value = coder.to_bytes(value, self.path)
            pins.append(value)
            codec = None if coder is self._coder else coder.name
        if codec is not None or tags is not None:
            marks = marks_of(codec, tags)
        return parts_fill(p, pins, value, key, topic, headers, time, marks)

    def append(
        self, value, *, key=None, topic=None, headers=None, time=None, expect=None, producer=None,
        bint durable=False, timeout=None, codec=None, tags=None,
    ):
        """Append one event and return its seq.

        When it returns, the event is committed: it survives the death of any process.

        Parameters
        ----------
        value : object or None
            The value: what the log's codec encodes, or bytes-like, which it must then be able to
            decode. None, with a key, deletes that key.
        key : bytes-like, optional
            At most 1 KiB. An empty key differs from no key.
        topic : str, optional
            At most 1 KiB as UTF-8.
        headers : mapping or pairs, optional
            Names are str and may repeat, values are bytes or None.
        time : int or datetime, optional
            The event's own time, nanoseconds since 1970 or a datetime (UTC if naive).
        expect : int, optional
            Append only if ``last_seq`` is this; else raise `Conflict`. 0 expects an empty log.
        producer : (str, int), optional
            Who appends, and a number that grows from append to append. To repeat the producer's
            last number appends nothing and returns the seq it got; a lower one is a `Conflict`.
        durable : bool
            Return only when the event is on the device, so that it survives power loss.
        timeout : float, optional
            Give up with `Busy` if other writers hold the log for that many seconds.
        codec : str, optional
            Encode this value with another codec than the log's; a header says so.
        tags : list of str, optional
            Words to read the event by; see `Log.read`.

        >>> log = penstock.open(path)
        >>> log.append(b"hello", key=b"u1", topic="greetings", tags=["warm"])
        1
        >>> log[1].value
        b'hello'
        """
        cdef Parts p
        cdef list pins
        cdef uint64_t nbytes, seq
        pins = []
        self.fill_one(&p, pins, value, key, topic, headers, time, codec, tags)
        nbytes = align8(PSK_FRAME_HEADER_BYTES + parts_prefix(&p) + p.value_len)
        if expect is None and producer is None:
            seq = self.append_parts(NULL, &p, NULL, 1, nbytes, timeout)
        else:
            seq = self.append_as(expect, producer, &p, NULL, 1, nbytes, timeout)
        if durable:
            self._sync(PSK_C_DURABLE_SEQ, seq, timeout)
        return seq

    def extend(
        self, values, *, value=None, key=None, topic=None, headers=None, time=None, expect=None,
        producer=None, bint durable=False, timeout=None, codec=None, tags=None,
    ):
        """Append many events as one atomic batch and return their seqs as a range.

        Readers see all of them or none, whatever dies meanwhile. Each item is a value, or a
        `penstock.Entry` with a key, topic, headers, time or tags of its own; the keyword arguments
        hold for the items that have none. A batch must fit one segment; `Log.load` takes any amount.
        ``expect``, ``producer``, ``durable``, ``timeout`` and ``codec`` are as for `append`.

        Arrow data, be it a table of pyarrow, a frame of polars or pandas, or anything else that
        offers Arrow's C interface, is taken without an object per row. ``value``, ``key``,
        ``topic``, ``time`` and ``headers`` then name columns; those not given are taken from the
        columns with just these names, if there are such. A ``topic`` that is no column is the
        topic of all rows; so are a ``key`` that is bytes, a ``time`` and ``headers``. Values are bytes
        or text that is encoded already, and each is checked if the log has a codec.

        >>> log = penstock.open(path)
        >>> log.extend([b"a", b"b", b"c"])
        range(1, 4)
        """
        cdef uint64_t count, nbytes, first
        cdef Parts shared
        cdef Parts *parts
        cdef list pins = []
        cdef Values batch
        cdef Coder coder
        cdef bytes marks = None
        if type(values) is not list and type(values) is not tuple:
            if isinstance(values, Given):
                return self.extend_given(values, expect, producer, durable, timeout)
            if hasattr(values, "__arrow_c_stream__") or hasattr(values, "__arrow_c_array__"):
                given = self._intake(values, value, key, topic, headers, time, codec, tags).all()
                return self.extend_given(given, expect, producer, durable, timeout)
        if value is not None:
            raise Usage("value= names a column of Arrow data, and these values are none")
        items = values if type(values) is list else as_tuple(values)
        if codec is ENCODED:
            codec = None
        elif not self._plain or codec is not None:
            coder = self.coder_for(codec)
            if coder.encode is not None:
                refuse_one(values)
                items = self.encode_items(as_tuple(items), coder)
            codec = None if coder is self._coder else coder.name
        if codec is not None or tags is not None:
            marks = marks_of(codec, tags)
        parts_fill(&shared, pins, b"", key, topic, headers, time, marks)
        count = <uint64_t>len(items)
        if count == 0:
            first = self._next_seq()
            return range(first, first)
        batch = Values()
        if batch.take(items, count, parts_prefix(&shared)):
            if expect is None and producer is None:
                first = self.append_parts(NULL, &shared, batch.spans, count, batch.nbytes, timeout)
            else:
                first = self.append_as(
                    expect, producer, &shared, batch.spans, count, batch.nbytes, timeout)
        else:
            items = as_tuple(items)
            parts = <Parts *>PyMem_Malloc(count * sizeof(Parts))
            if parts == NULL:
                raise MemoryError
            try:
                nbytes = self.fill_entries(items, parts, pins, key, topic, headers, time, codec, marks)
                first = self.append_as(expect, producer, parts, NULL, count, nbytes, timeout)
            finally:
                PyMem_Free(parts)
        if durable:
            self._sync(PSK_C_DURABLE_SEQ, first + count - 1, timeout)
        return range(first, first + count)

    def _intake(self, source, value, key, topic, headers, time, codec, tags):
        """Arrow data, made ready to be appended."""
        cdef Coder coder = self.coder_for(codec)
        marks = marks_of(None if coder is self._coder else coder.name, tags)
        return Intake(source, self.path, coder, marks, value, key, topic, headers, time)

    cdef object extend_given(self, Given given, expect, producer, bint durable, timeout):
        """Append rows of Arrow data as one atomic batch."""
        cdef uint64_t count = given.count, nbytes, first
        cdef Parts *parts = NULL
        cdef Span *spans = NULL
        cdef list pins = []
        if count == 0:
            first = self._next_seq()
            return range(first, first)
        try:
            if given.plain():
                spans = <Span *>PyMem_Malloc(count * sizeof(Span))
                if spans == NULL:
                    raise MemoryError
                nbytes = given.spans(spans)
                first = self.append_as(
                    expect, producer, &given.intake.shared, spans, count, nbytes, timeout)
            else:
                parts = <Parts *>PyMem_Malloc(count * sizeof(Parts))
                if parts == NULL:
                    raise MemoryError
                nbytes = given.parts(parts, pins)
                first = self.append_as(expect, producer, parts, NULL, count, nbytes, timeout)
        finally:
            PyMem_Free(spans)
            PyMem_Free(parts)
        if durable:
            self._sync(PSK_C_DURABLE_SEQ, first + count - 1, timeout)
        return range(first, first + count)

    cdef tuple encode_items(self, tuple items, Coder coder):
        """Items with their values encoded."""
        cdef list encoded = []
        for item in items:
            if type(item) is _Entry:
                encoded.append(item._replace(value=coder.to_bytes(item[0], self.path)))
            else:
                encoded.append(coder.to_bytes(item, self.path))
        return tuple(encoded)

    def _encoder(self, codec):
        """What encodes items as `extend` would, and the codec that a header has to name, if any."""
        cdef Coder coder = self.coder_for(codec)
        if coder.encode is None:
            return None, None if coder is self._coder else coder.name
        return (
            lambda item: self.encode_items((item,), coder)[0],
            None if coder is self._coder else coder.name,
        )

    def _frame_bytes(self, value, key, topic, headers, time, tags):
        """How long the frame of an event is; checks its parts."""
        cdef Parts p
        cdef list pins = []
        parts_fill(&p, pins, value, key, topic, headers, time, marks_of(None, tags))
        return align8(PSK_FRAME_HEADER_BYTES + parts_prefix(&p) + p.value_len)

    def _write_ending(
        self, SegmentMap m, uint64_t offset, uint64_t last_frame, uint64_t seq, uint64_t append_ns,
        value, key, topic, headers, time, tags,
    ):
        """Write an event and a roll frame behind it, as one batch; under the write lock.

        The caller has reserved and allocated the room, and publishes what follows.
        """
        cdef Parts p, roll
        cdef list pins = []
        cdef uint64_t prefix, total
        parts_fill(&p, pins, value, key, topic, headers, time, marks_of(None, tags))
        prefix = parts_prefix(&p)
        total = align8(PSK_FRAME_HEADER_BYTES + prefix + p.value_len)
        if not m.writable or offset + total + PSK_FRAME_HEADER_BYTES > m.mapped or (
            offset + total + PSK_FRAME_HEADER_BYTES > m.file_bytes
        ):
            raise Internal(f"{m.path}: no room for {total} bytes at {offset}")
        memset(&roll, 0, sizeof(roll))
        roll.kind = PSK_KIND_ROLL
        roll.key_len = PSK_NO_KEY
        with nogil:
            frame_write(
                m.base + offset, &p, p.value, p.value_len, prefix, seq, append_ns,
                <uint32_t>(offset - last_frame) if last_frame else 0, 1)
            frame_write(
                m.base + offset + total, &roll, NULL, 0, 0, seq + 1, append_ns, <uint32_t>total, 0)
            psk_store32(m.base + offset + total, 1)
            psk_fail(FP_BATCH_BODY)
            psk_store32(m.base + offset, <uint32_t>(prefix + p.value_len) + 1)

    def _append_settings(self, bytes body):
        """Append a settings frame; it takes no seq."""
        cdef Parts p
        memset(&p, 0, sizeof(p))
        p.kind = PSK_KIND_SETTINGS
        p.key_len = PSK_NO_KEY
        p.value = PyBytes_AS_STRING(body)
        p.value_len = <uint64_t>PyBytes_GET_SIZE(body)
        self.append_parts(NULL, &p, NULL, 1, align8(PSK_FRAME_HEADER_BYTES + p.value_len), None)

    cdef uint64_t fill_entries(
        self, tuple items, Parts *parts, list pins, key, topic, headers, time, codec, bytes marks
    ) except 0:
        cdef uint64_t nbytes = 0
        cdef Py_ssize_t i = 0
        for item in items:
            if type(item) is _Entry:
                parts_fill(
                    &parts[i], pins, item[0],
                    key if item[1] is None else item[1],
                    topic if item[2] is None else item[2],
                    headers if item[3] is None else item[3],
                    time if item[4] is None else item[4],
                    marks if item[5] is None else marks_of(codec, item[5]),
                )
            else:
                parts_fill(&parts[i], pins, item, key, topic, headers, time, marks)
            nbytes += align8(PSK_FRAME_HEADER_BYTES + parts_prefix(&parts[i]) + parts[i].value_len)
            i += 1
        return nbytes

    def __getitem__(self, seq):
        cdef uint64_t want, limit, at, head, total = 0
        cdef SegmentMap m, candidate
        cdef uint64_t active_base
        cdef char *words
        cdef Py_ssize_t i
        cdef FrameState state
        try:
            want = to_seq(seq, "the seq in log[seq]")
        except WrongType as error:
            raise WrongType(f"{error}; for a range use read()") from None
        if want == 0:
            raise self._no_such_seq(want)
        if self._is_ring:
            found = self.ring_item(want)
            if found is None:
                raise self._no_such_seq(want)
            return found
        head = self.head()
        words = self.words_or_null()
        active_base = psk_load64(words + PSK_C_ACTIVE_BASE) if words != NULL else 0
        m = None
        for i in range(PyList_GET_SIZE(self._recent) - 1, -1, -1):
            candidate = <SegmentMap>PyList_GET_ITEM(self._recent, i)
            if candidate.base_seq <= want and (
                candidate.next_seq > want
                or (candidate.base_seq == active_base and candidate.number == head >> 32)
            ):
                m = candidate
                break
        if m is None:
            m = self._segment_for(want)
            if m is None:
                raise self._no_such_seq(want)
            head = self.head()
        limit = m.published(head)
        at = m.seek(self, want, limit)
        if at < limit and is_event(m.base + at) and psk_get64(m.base + at + PSK_FRAME_SEQ) == want:
            state = frame_check(m.base + at, limit - at, True, &total)
            if state != FRAME_GOOD:
                raise m.damage(at, state, want - 1)
            return make_event(m, m.base + at)
        raise self._no_such_seq(want)
