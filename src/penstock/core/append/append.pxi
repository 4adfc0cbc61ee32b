# LogCore, the hot half of a log handle: arguments become frames, `append/publish.pxi` writes them.

cdef inline char *index_page(SegmentMap m, uint64_t offset) noexcept:
    """The page of a segment's index with the entry for the block of a frame at ``offset``."""
    cdef uint64_t block = (max(offset, m.data_offset) - m.data_offset) // PSK_INDEX_STEP
    return m.base + ((m.index_offset + block * PSK_INDEX_ENTRY_BYTES) & ~<uint64_t>(PSK_PAGE - 1))


def frame_bytes(uint64_t body):
    """The length of a frame with a body of that length."""
    return align8(PSK_FRAME_HEADER_BYTES + body)


cdef enum:
    PRODUCED_MAX = 64  # producers that a handle remembers itself


@cython.final
cdef class Produced:
    """The last append of a producer through this handle."""

    cdef bytes who
    cdef uint64_t n, seq, count
    cdef uint64_t order     # among all that were remembered

    def __reduce__(self):
        raise stays_here(self)


cdef class LogCore(HandleCore):
    """The hot half of a log handle: append, extend, ``log[seq]``. :class:`penstock.Log` is the rest."""

    cdef SegmentMap _active
    cdef psk_filler *filler
    cdef uint64_t fill_next    # check again whether to populate once appends pass this offset
    cdef uint64_t look_next    # the same for blocks and the next segment
    cdef public uint64_t _sync_next  # request a sync once appends pass this seq
    cdef psk_aide *aide        # for long appends; one thread at a time uses it
    cdef bint aide_taken
    cdef public list _recent   # maps of segments that were read recently, newest use last
    cdef uint64_t rewrites     # what control said about replaced segments when these were mapped
    cdef public Coder _coder
    cdef public bint _plain    # values are plain bytes that no codec encodes
    cdef dict produced         # by id: the last appends of producers through this handle
    cdef uint64_t produced_in      # its turn of control; a reference would keep the files open
    cdef uint64_t produced_pos     # the newest of their frames
    cdef uint64_t produced_base    # the frame after which all are remembered
    cdef uint64_t produced_order, produced_told
    cdef uint64_t ttl_known, floor_known  # the log's ttl, and the seq below which events are gone
    cdef uint64_t ttl_at               # what control said about its settings when these were read
    cdef uint64_t ttl_in               # the turn of control that said it

    def __cinit__(self, *args, **kwargs):
        self.filler = NULL
        self.aide = NULL
        self._sync_next = U64_MAX
        self._recent = []
        self._coder = Coder()
        self.ttl_at = U64_MAX
        self.produced = {}

    def __dealloc__(self):
        if self.fork_generation != psk_fork_generation:
            return  # the threads stayed in the parent
        with nogil:
            if self.filler != NULL:
                psk_filler_stop(self.filler)
                psk_filler_free(self.filler)
            if self.aide != NULL:
                psk_aide_stop(self.aide)
                psk_aide_free(self.aide)

    cdef int drop_replaced(self) except -1:
        """Forget the maps of segments that may have been replaced: readers of them keep them alive."""
        cdef char *words = self.words_or_null()
        if words != NULL and psk_load64(words + PSK_C_REWRITES) != self.rewrites:
            self.rewrites = psk_load64(words + PSK_C_REWRITES)
            self._recent.clear()
        return 0

    cdef psk_aide *take_aide(self, uint64_t nbytes) except? NULL:
        """The buffers and thread for a long append; NULL if it is short, or another thread uses them."""
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
        """Make ``m`` the map to append to."""
        cdef SegmentMap before = self._active
        self.exchange_active(m)
        self.leave_active(before)

    cdef void exchange_active(self, SegmentMap m) noexcept:
        """Under one hold of the GIL, so that a request is always about one map."""
        if self.fork_generation != psk_fork_generation:  # the threads stayed in the parent
            self.filler = NULL
            self.aide = NULL
            self.aide_taken = False
        self._active = m
        self.fill_next = self.look_next = 0
        if self.filler != NULL:
            psk_filler_forget(self.filler)

    cdef int leave_active(self, SegmentMap before) except -1:
        """Stop populating the map that was appended to."""
        cdef psk_filler *filler = self.filler
        if filler != NULL:
            with nogil:
                psk_filler_idle(filler)
        if before is not None and before is not self._active:
            before.let_go(before.data_offset, before.mapped)
        return 0

    def _stop_threads(self):
        """End its threads finally; other code may still refer to the rest of them."""
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
        """Offset up to which the pages of ``m`` are populated in this process."""
        cdef char *ready
        if self.filler == NULL or m is not self._active:
            return 0
        ready = psk_filler_ready(self.filler)
        return <uint64_t>(ready - m.base) if m.base <= ready <= m.base + m.mapped else 0

    cdef bint wants_keeper(self, SegmentMap m, uint64_t at, uint64_t allocated) noexcept:
        """Whether the keeper has work: more blocks, or the next segment. Also sets when to check again."""
        cdef uint64_t nearly_full = m.frames_end // 5 * 4
        if at >= nearly_full:
            self.look_next = at + max(<uint64_t>PSK_POPULATE_CHUNK_BYTES, (m.frames_end - at) // 2)
            return True
        self.look_next = min(at + PSK_POPULATE_CHUNK_BYTES, nearly_full)
        return allocated < min(at + PSK_ALLOCATE_AHEAD_BYTES, m.frames_end)

    cdef int fill(self, Control control, SegmentMap m, uint64_t at, uint64_t nbytes) except -1:
        """Populate pages ahead of ``at``, and allocate more if they run short.

        A long append does not use populated pages; the next short one requests them.
        Waking a thread costs as much as many events, so it is done only if there is work.
        """
        cdef uint64_t allocated = psk_load64(control.words + PSK_C_ALLOC_END)
        cdef uint64_t start = at & ~<uint64_t>(PSK_PAGE - 1)  # madvise needs whole pages
        cdef uint64_t stop = start + PSK_POPULATE_AHEAD_BYTES
        cdef char *index = NULL
        cdef char *index_end = NULL
        cdef bint fresh = self.fill_next == 0
        if m is not self._active:
            return 0
        if m.ring_bytes:
            allocated = min(allocated, <uint64_t>m.mapped)
            self.look_next = U64_MAX
        elif position_unpack(psk_load64(control.words + PSK_C_HEAD)).number != m.number:
            return 0
        elif at >= self.look_next:
            if self.wants_keeper(m, at, allocated):
                self.calls.look_ahead(self)
            if m is not self._active:
                return 0  # another thread has rolled or closed the log meanwhile
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
        if fresh:  # until the thread is ahead, each page would be waited for separately
            psk_populate(m.base + start, min(stop - start, <uint64_t>PSK_POPULATE_STEP_BYTES))
        psk_filler_ask(self.filler, m.base, m.base + start, m.base + stop, index, index_end)
        return 0

    cdef uint64_t append_parts(
        self, Terms *terms, const Parts *parts, const ByteSpan *spans, uint64_t count, uint64_t nbytes,
        object timeout,
    ) except? 0:
        """Append; returns the first seq. Slow cases are handled in Python, then tried again.

        0 means that another producer has appended since ``terms`` were made.
        """
        cdef Control control
        cdef SegmentMap m
        cdef uint64_t seq = 0, end = 0, warm_end
        cdef psk_aide *aide
        cdef int64_t deadline = -1 if timeout is None else deadline_after(timeout)
        cdef uint32_t seen = 0
        cdef int rc
        cdef bint full = False  # whether the ring was full at the last try
        while True:
            if self.fork_generation != psk_fork_generation:
                self.calls.after_fork(self)
            control = self._control
            m = self._active
            if control is None or m is None or control.words == NULL:
                self.calls.become_writer(self, seconds_until(deadline))
                continue
            if nbytes > m.append_max:
                if self.calls.roll_for(self, nbytes):
                    continue
                raise self.calls.too_large_error(nbytes, m.append_max)
            seen = psk_load32(control.words + PSK_C_ROOM_NOTIFY)  # of a ring, before it is found to be full
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
                    raise self.calls.full_error(self)
                raise Busy(
                    f"{self.path}: another process held the write lock for {timeout} s; "
                    "nothing was written; try again"
                )
            elif rc == POISONED:
                raise self.calls.poisoned_error(self)
            elif rc == CONFLICT:
                last_seq = self.calls.next_seq(self) - 1
                raise Conflict(
                    f"{self.path}: expect must be the last seq, {last_seq}, "
                    f"got {terms.last_seq}; nothing was written: read what is new and decide again",
                    path=str(self.path), expected=terms.last_seq, found=last_seq,
                )
            elif rc == STALE:
                return 0
            elif rc == GONE:
                raise self.calls.gone_error(self)
            elif rc == FULL:
                if terms != NULL and terms.configures:
                    raise self.calls.full_error(self)  # a change of settings need not wait
                full = True
                wait_for_room(self, control, deadline, seen)
            elif rc == UNSURE:
                self.calls.confirm(self, seconds_until(deadline))
            else:
                try:
                    if terms != NULL and terms.configures:
                        self.calls.make_ready_to_configure(self, nbytes, terms.when_full)
                    else:
                        full = self.calls.make_ready(self, nbytes, seconds_until(deadline))
                except Busy:
                    if full:
                        raise self.calls.full_error(self) from None
                    raise
        if end >= self.fill_next and control.words != NULL:
            self.fill(control, m, end, nbytes)
        if seq + count > self._sync_next:
            self._sync_next = U64_MAX
            self.calls.sync_due(self)
        return seq

    def _take_ring(self, RingMap m not None, Control control not None, bint appends):
        """For a ring: switch to that file and its control; no thread sees one without the other."""
        cdef SegmentMap before = self._active
        cdef RingFile file = self.ring_file()
        m.sound()
        if appends:
            self.exchange_active(m)
        file.map = m
        self._control = control
        self.control_turn += 1
        self.fork_generation = psk_fork_generation
        if appends:
            self.leave_active(before)

    cdef uint64_t append_as(
        self, object expect, object producer, const Parts *parts, const ByteSpan *spans, uint64_t count,
        uint64_t nbytes, object timeout,
    ) except 0:
        """Append if ``expect`` matches and ``producer`` has not appended this before; the first seq."""
        cdef Terms terms
        memset(&terms, 0, sizeof(terms))
        if expect is not None:
            terms.expects = True
            terms.last_seq = to_expected(expect)
        if producer is None:
            return self.append_parts(&terms, parts, spans, count, nbytes, timeout)
        return self.append_once(&terms, producer, parts, spans, count, nbytes, timeout)

    cdef uint64_t append_once(
        self, Terms *terms, object producer, const Parts *parts, const ByteSpan *spans, uint64_t count,
        uint64_t nbytes, object timeout,
    ) except 0:
        """Append, unless the producer already appended under this number; the first seq."""
        cdef Parts lead
        cdef Produced last = self.last_of(producer)
        cdef bytes who
        cdef uint64_t seq = 0, n, before
        cdef bint known = last is not None
        if known:
            who, n = last.who, <uint64_t>(<tuple>producer)[1]
        else:
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
            if known:
                before = self.produced_pos
                known = False  # if another producer appends meanwhile, the table is searched
            else:
                done, before = self.calls.produced(self, who, n)
                if done is not None:
                    if <uint64_t>len(done) != count:
                        raise Conflict(
                            f"{self.path}: producer {who.decode()!r} appended {len(done)} events under "
                            f"number {n}, got {count} now; nothing was written",
                            path=str(self.path), expected=n, found=n,
                        )
                    return done.start
            terms.producer_pos = before
            psk_put64(terms.value + PSK_PRODUCER_N, n)
            psk_put32(terms.value + PSK_PRODUCER_COUNT, <uint32_t>count)
            psk_put32(terms.value + PSK_PRODUCER_PREVIOUS, <uint32_t>position_unpack(before).offset)
            seq = self.append_parts(terms, parts, spans, count, nbytes, timeout)
        self.note_produced(producer, last, who, n, seq, count, before, terms.producer_pos)
        return seq

    cdef Produced last_of(self, object producer):
        """The last append of a producer through this handle, if known without the table.

        It is known while no other process has appended as a producer, and the number is new.
        """
        cdef Produced last
        cdef Control control = self._control
        if not self.produced or type(producer) is not tuple or len(<tuple>producer) != 2:
            return None
        if type((<tuple>producer)[0]) is not str or type((<tuple>producer)[1]) is not int:
            return None
        last = self.produced.get((<tuple>producer)[0])
        if last is None or self.control_turn != self.produced_in or self.words_or_null() == NULL or (
            psk_load64(control.words + PSK_C_PRODUCER_POS) != self.produced_pos
        ):
            return None
        if not last.n < (<tuple>producer)[1] <= U64_MAX:
            return None
        return last

    cdef int note_produced(
        self, object producer, Produced last, bytes who, uint64_t n, uint64_t seq, uint64_t count,
        uint64_t before, uint64_t newest,
    ) except -1:
        """Remember an append of a producer, at ``newest``, the next after the one at ``before``.

        It has no gaps: it contains all that producers appended from ``produced_base`` on.
        """
        if self.produced_pos != before or self.produced_in != self.control_turn or (
            len(self.produced) >= PRODUCED_MAX
        ):
            self.produced = {}
            self.produced_base = before
            self.produced_in = self.control_turn
            last = None
        elif last is not None and self.produced.get((<tuple>producer)[0]) is not last:
            last = None  # another thread has started over since the lookup
        if last is None:
            last = Produced()
            last.who = who
            self.produced[who.decode()] = last
        last.n = n
        last.seq = seq
        last.count = count
        self.produced_order += 1
        last.order = self.produced_order
        self.produced_pos = newest
        return 0

    def _produced_since(self, uint64_t base):
        """The appends of producers through this handle since the producer frame at ``base``.

        The position of the newest of their frames, and (id, number, first seq, count) of the last of
        each, the latest at the end; None if others appended as well, or it is not known.
        """
        cdef Produced last
        if not self.produced or self.produced_base != base or self.produced_in != self.control_turn or (
            self.fork_generation != psk_fork_generation
        ):
            return None
        news = sorted(
            [
                (last.order, last.who, last.n, last.seq, last.count)
                for last in self.produced.values()
                if last.order > self.produced_told
            ]
        )
        self.produced_base = self.produced_pos
        self.produced_told = self.produced_order
        return self.produced_pos, [entry[1:] for entry in news]

    cdef Coder coder_for(self, object codec):
        """The log's codec, or the one that an append names."""
        cdef Coder own = self._coder
        if own.name is None:
            own.name = self.calls.codec_name(self)
        if codec is not None and (not isinstance(codec, str) or codec != own.name):
            return own.other(codec)
        own.find()
        self._plain = own.encode is None
        return own

    def _value_now(self, value):
        """``value`` as it would be appended now: nothing that its owner may change later."""
        cdef object data = self.coder_for(None).encoded(value, self.path)
        if data is not None:
            return data
        if value is None or PyBytes_CheckExact(value) or is_item(value):
            return value
        return bytes(flat(value, "value"))

    def _check_many(self, values):
        """Refuse what cannot be the values of ``extend``."""
        self.coder_for(None)
        refuse_one(values, "extend", not self._plain)

    cdef int fill_one(
        self, Parts *p, list pins, object value, object key, object topic, object headers, object time,
        object codec, object tags, object not_before, object ttl,
    ) except -1:
        """Encode and check one event; not in ``append``, which must be short for plain bytes."""
        cdef Coder coder
        cdef bytes marks = None
        if not self._plain or codec is not None:
            coder = self.coder_for(codec)
            value = coder.to_bytes(value, self.path)
            pins.append(value)
            codec = None if coder is self._coder else coder.name
        if codec is not None or tags is not None or not_before is not None:
            marks = marks_of(codec, not_before, tags)
        return parts_fill(p, pins, value, key, topic, headers, time, marks, None if ttl is None else ttl_mark(ttl))

    append = quick_append()

    def _append_in_full(
        self, value, *, key=None, topic=None, headers=None, time=None, expect=None, producer=None,
        bint durable=False, timeout=None, codec=None, tags=None, not_before=None,
        ttl=None,
    ):
        """Append one event and return its seq.

        When it returns, the event is committed: it survives the death of any process.

        Parameters
        ----------
        value : object or None
            The value: an object for the log's codec, or bytes that it can decode. None, with a key,
            deletes that key. A `penstock.Entry`, or an event that was read from any log, keeps all
            its parts, and no argument may repeat one of them.
        key : bytes-like, optional
            At most 1 KiB. An empty key is different from no key.
        topic : str, optional
            At most 1 KiB as UTF-8.
        headers : mapping or pairs, optional
            Names are str and may repeat, values are bytes or None.
        time : int or datetime, optional
            The event's own time, nanoseconds since 1970 or a datetime (local time if naive).
        expect : int, optional
            Append only if ``last_seq`` is this; else raise `Conflict`. 0 expects an empty log.
        producer : (str, int), optional
            The name of the producer, and a number that grows from append to append. Repeating the
            producer's last number appends nothing and returns its seq; a lower one is a `Conflict`.
        durable : bool
            Return only when the event is on disk, so that it survives power loss.
        timeout : float, optional
            Raise `Busy` if other writers hold the log for that many seconds.
        codec : str, optional
            Encode this value with another codec than the log's; a header says so.
        tags : list of str, optional
            Words to select the event by; see `Log.read`.
        not_before : int, datetime, str or timedelta, optional
            Groups do not hand the event out before this time; "+10m" and a timedelta count from now.
            Every other reader gets it at once, and its place in the log stays the same.
        ttl : float or timedelta, optional
            How many seconds the event lives, counted from its append. After that no reader returns
            it, as if it were not there.

        >>> log = penstock.open(path)
        >>> log.append(b"hello", key=b"u1", topic="greetings", tags=["warm"])
        1
        >>> log[1].value
        b'hello'
        """
        cdef Parts p
        cdef list pins
        cdef uint64_t nbytes, seq
        if is_item(value):
            return self.append_item(
                value, key, topic, headers, time, expect, producer, durable, timeout, codec, tags,
                not_before, ttl)
        pins = []
        self.fill_one(&p, pins, value, key, topic, headers, time, codec, tags, not_before, ttl)
        nbytes = parts_bytes(&p)
        if expect is None and producer is None:
            seq = self.append_parts(NULL, &p, NULL, 1, nbytes, timeout)
        else:
            seq = self.append_as(expect, producer, &p, NULL, 1, nbytes, timeout)
        if durable:
            self.calls.sync(self, PSK_C_DURABLE_SEQ, seq, timeout)
        return seq

    cdef object append_item(
        self, item, key, topic, headers, time, expect, producer, bint durable, timeout, codec, tags, not_before,
        ttl,
    ):
        """Append an entry or an event of any log; an argument for a part that it has is refused."""
        cdef Gatherer gatherer
        refuse_twice(item, {
            "key": key, "topic": topic, "headers": headers, "time": time, "codec": codec, "tags": tags,
            "not_before": not_before, "ttl": ttl})
        gatherer = self.gatherer(key, topic, headers, time, codec, tags, not_before, ttl)
        gatherer.single = True
        gatherer.begin(0)
        gatherer.add(item)
        return self.extend_given(gatherer.into, expect, producer, durable, timeout).start

    cdef Gatherer gatherer(self, key, topic, headers, time, codec, tags, not_before, ttl):
        """The object that turns the items of a call into parts of frames."""
        return Gatherer(
            self.path, self.coder_for(None), self.coder_for(codec), key, topic, headers, time, tags, not_before, ttl)

    def extend(
        self, values, *, value=None, key=None, topic=None, headers=None, time=None, expect=None,
        producer=None, bint durable=False, timeout=None, codec=None, tags=None, not_before=None,
        ttl=None,
    ):
        """Append many events as one atomic batch and return their seqs as a range.

        Readers see all of them or none, even if a process dies. Each item is a value, a
        `penstock.Entry` with its own key, topic and so on, or an event that was read from any log; the keyword arguments apply to items without that part. A batch must fit one
        segment; `Log.load` takes any amount.
        The other arguments are as for `append`.

        Arrow data (a table of pyarrow, a frame of polars or pandas, or anything else with Arrow's C
        interface) is appended without an object per row. ``value``, ``key``,
        ``topic``, ``time`` and ``headers`` then name columns; the defaults are the columns
        with exactly these names, if they exist. A ``topic`` that is not a column applies to all
        rows; so do a ``key`` that is bytes, a ``time`` and ``headers``. Values are bytes or text
        that is encoded already, and each is checked if the log has a codec.

        >>> log = penstock.open(path)
        >>> log.extend([b"a", b"b", b"c"])
        range(1, 4)
        """
        cdef uint64_t count, first
        cdef Parts shared
        cdef list pins
        cdef Values batch
        cdef Gatherer gatherer
        cdef bint listed = type(values) is list or type(values) is tuple
        if not listed:
            if isinstance(values, Given):
                return self.extend_given(values, expect, producer, durable, timeout)
            if hasattr(values, "__arrow_c_stream__") or hasattr(values, "__arrow_c_array__"):
                given = self._intake(
                    values, value, key, topic, headers, time, codec, tags, not_before, ttl).all()
                return self.extend_given(given, expect, producer, durable, timeout)
        if value is not None:
            raise Usage("value= names a column of Arrow data, but the values are not Arrow data")
        if listed and self._plain and codec is None:
            pins = []
            parts_fill(
                &shared, pins, b"", key, topic, headers, time, marks_of(None, not_before, tags),
                None if ttl is None else ttl_mark(ttl))
            batch = Values.__new__(Values, INSIDE)
            if values and batch.take(values, parts_prefix(&shared)):
                count = <uint64_t>len(batch.held)
                if expect is None and producer is None:
                    first = self.append_parts(NULL, &shared, batch.spans, count, batch.nbytes, timeout)
                else:
                    first = self.append_as(
                        expect, producer, &shared, batch.spans, count, batch.nbytes, timeout)
                if durable:
                    self.calls.sync(self, PSK_C_DURABLE_SEQ, first + count - 1, timeout)
                return range(first, first + count)
        gatherer = self.gatherer(key, topic, headers, time, codec, tags, not_before, ttl)
        if not listed:
            refuse_one(values, "extend", gatherer.coder.encode is not None)
        gatherer.copies = not listed  # a generator may reuse the memory of one value for the next
        gatherer.begin(0)
        gatherer.add_all(tuple(values) if type(values) is list else values)
        return self.extend_given(gatherer.into, expect, producer, durable, timeout)

    def _gathering(
        self, values, uint64_t room, uint64_t events_max, key, topic, headers, time, codec, tags, not_before, ttl
    ):
        """Iterates over values, ready to be appended, in batches of at most ``room`` bytes or one event."""
        cdef Gatherer gatherer = self.gatherer(key, topic, headers, time, codec, tags, not_before, ttl)
        refuse_one(values, "load", gatherer.coder.encode is not None)
        return Gathering(gatherer, values, room, events_max)

    def _intake(self, source, value, key, topic, headers, time, codec, tags, not_before, ttl):
        """Arrow data, prepared to be appended."""
        cdef Coder own = self.coder_for(None), coder
        scanned = getattr(source, "_values_codec", None) if codec is None and value is None else None
        if scanned is not None and scanned != own.name:
            coder = Coder(scanned)  # from another log: its values are kept as they are
        else:
            coder = self.coder_for(codec)
        return Intake(
            source, self.path, own, coder, b"" if coder is own else codec_mark(coder.name),
            b"" if not_before is None else due_mark(not_before), b"" if tags is None else encode_tags(tags),
            b"" if ttl is None else ttl_mark(ttl), value, key, topic, headers, time)

    cdef object extend_given(self, Given given, expect, producer, bint durable, timeout):
        """Append rows of Arrow data, or gathered items, as one atomic batch."""
        cdef uint64_t count = given.count, nbytes = 0, first
        cdef const Parts *laid_out = given.laid_out(&nbytes)
        cdef Parts *parts = NULL
        cdef ByteSpan *spans = NULL
        cdef list pins = []
        if count == 0:
            first = self.calls.next_seq(self)
            return range(first, first)
        try:
            if given.plain():
                spans = <ByteSpan *>PyMem_Malloc(count * sizeof(ByteSpan))
                if spans == NULL:
                    raise MemoryError
                nbytes = given.spans(spans)
                first = self.append_as(expect, producer, given.same(), spans, count, nbytes, timeout)
            else:
                if laid_out == NULL:
                    parts = <Parts *>PyMem_Malloc(count * sizeof(Parts))
                    if parts == NULL:
                        raise MemoryError
                    nbytes = given.parts(parts, pins)
                    laid_out = parts
                first = self.append_as(expect, producer, laid_out, NULL, count, nbytes, timeout)
        finally:
            PyMem_Free(spans)
            PyMem_Free(parts)
        if durable:
            self.calls.sync(self, PSK_C_DURABLE_SEQ, first + count - 1, timeout)
        return range(first, first + count)

    def _encodes(self):
        """Whether a codec makes the values of the log, so that they are not arbitrary bytes."""
        return self.coder_for(None).encode is not None

    def _frame_bytes(self, Given rows not None):
        """The length of the frame of an event, the only one of ``rows``; checks its parts."""
        cdef Parts p
        cdef list pins = []
        rows.only(&p, pins)
        return parts_bytes(&p)

    def _write_ending(
        self, SegmentMap m not None, uint64_t offset, uint64_t last_frame, uint64_t seq, uint64_t append_ns,
        Given rows not None,
    ):
        """Write an event, the only one of ``rows``, and a roll frame after it, as one batch; under the write lock.

        The caller has reserved and allocated the room, and publishes the frames.
        """
        cdef Parts p, roll
        cdef list pins = []
        cdef uint64_t prefix, total
        rows.only(&p, pins)
        prefix = parts_prefix(&p)
        total = parts_bytes(&p)
        if not m.writable or not m.has(offset, offset + total + PSK_FRAME_HEADER_BYTES):
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

    def _append_settings(self, bytes body not None, when_full=None, at=None):
        """Append a settings frame; it takes no seq. For a ring, ``when_full`` is their value of it.

        ``at`` is what control said of the newest settings when those here were made of them. False:
        there are others by now, so nothing was appended.
        """
        cdef Parts p
        cdef Terms terms
        memset(&p, 0, sizeof(p))
        memset(&terms, 0, sizeof(terms))
        if when_full is not None:
            terms.configures = True
            terms.when_full = when_full
        p.kind = PSK_KIND_SETTINGS
        p.key_len = PSK_NO_KEY
        p.value = PyBytes_AS_STRING(body)
        p.value_len = <uint64_t>PyBytes_GET_SIZE(body)
        if at is not None:
            terms.settles = True
            terms.settings_pos = at
        return self.append_parts(&terms, &p, NULL, 1, align8(PSK_FRAME_HEADER_BYTES + p.value_len), None) != 0

    def __getitem__(self, seq):
        cdef Event event
        cdef uint64_t want
        try:
            want = to_seq(seq, "the seq in log[seq]")
        except Usage as error:
            return self.calls.other_item(self, seq, error)
        event = self.event_at(want)
        if event is None:
            raise self.calls.no_such_seq(self, want)
        if self.is_over(event):
            raise NotFound(f"{self.path}: the event with seq {want} has expired: its ttl is over")
        return event

    def __contains__(self, what):
        """Whether an event has that seq; for an `Event`, whether it is one of this log.

        It takes one look at the index. A damaged event raises `Corrupt`. What is neither a seq nor an
        event is refused: False would look as if values had been searched.
        """
        cdef Event event
        if isinstance(what, Event):
            event = self.event_at((<Event>what).seq)
            return event is not None and event == what and not self.is_over(event)
        try:
            event = self.event_at(to_seq(what, "the operand of 'in'"))
            return event is not None and not self.is_over(event)
        except WrongType:
            raise WrongType(
                f"the operand of 'in' must be a seq or an Event, got {type(what).__name__}; "
                "to look for a key or a value read the log") from None

    cdef inline bint is_over(self, Event event) except -1:
        """Whether an event of this log has expired."""
        cdef uint64_t ttl = self.ttl_ns()
        if ttl == 0 and psk_get16(event.p + PSK_FRAME_HEADERS_LEN) < TTL_MARK_BYTES:
            return False
        return frame_expired(event.p, ttl, psk_now_ns())

    cdef inline uint64_t ttl_ns(self) except? 1:
        """The log's ``ttl`` in nanoseconds, as it is now; 0 without one."""
        self.follow_settings()
        return self.ttl_known

    cdef inline uint64_t floor(self) except? 1:
        """Events below this seq are gone: retention or a trim has said so. 0: none has."""
        self.follow_settings()
        return self.floor_known

    cdef inline int follow_settings(self) except -1:
        """Learn the limits of the log again if its settings may have changed."""
        cdef char *words = self.words_or_null()
        cdef uint64_t at = psk_load64(words + PSK_C_SETTINGS_POS) if words != NULL else self._static_head
        if at != self.ttl_at or self.control_turn != self.ttl_in:
            self.learn_limits(at)
        return 0

    cdef int learn_limits(self, uint64_t at) except -1:
        """Control, or the end of the frames, says that the log's settings may have changed."""
        cdef uint64_t turn = self.control_turn
        limits = self.calls.limits(self)
        if limits is not None:  # else their frame is being overwritten, by one with the same settings
            self.ttl_known, self.floor_known = limits
            self.ttl_in = turn
            self.ttl_at = at
        return 0

    def _floor(self):
        """Events below this seq are gone, even if a file still has them."""
        return self.floor()

    cdef Event event_at(self, uint64_t want):
        """The event ``want``, expired or not; None if the log has none."""
        return self.finder.event_at(self, want) if want else None
