# Rows: frames turned into the columns of Arrow batches, without the GIL and without an object per event.

cdef enum:
    RUN_FRAMES = 64       # frames whose checksums are verified before any of them is used
    PREFETCH_BYTES = 2048


cdef enum RunEnd:
    RUN_ALL = 0     # everything up to the limit, or up to an edge
    RUN_FULL        # the batch is full
    RUN_BAD         # the frame at `at` is not valid
    RUN_TURN        # a frame that ends a segment or a lap is at `at`
    RUN_STOP        # the event at `at` is beyond the requested range
    RUN_TEXT        # the event at `at` has a topic or headers that are not text
    RUN_LATE        # its time is too late for nanoseconds in 63 bits
    RUN_MEMORY


cdef uint64_t summed_right(const char **frames, uint64_t n) noexcept nogil:
    """How many of the frames, from the first on, have the right checksum. They are inside the map."""
    cdef uint64_t i = 0
    cdef int k, right
    cdef uint32_t crcs[4]
    cdef size_t sizes[4]
    cdef const char *starts[4]
    while i < n:
        if i + 4 <= n:
            for k in range(4):
                crcs[k] = 0xFFFFFFFF
                starts[k] = frames[i + <uint64_t>k] + PSK_FRAME_SEQ
                sizes[k] = PSK_FRAME_HEADER_BYTES - PSK_FRAME_SEQ + psk_get32(frames[i + <uint64_t>k]) - 1
            psk_crc_four(crcs, starts, sizes)
            right = 0
            while right < 4 and psk_get32(starts[right] - PSK_FRAME_SEQ + PSK_FRAME_CRC) == <uint32_t>~crcs[right]:
                right += 1
            i += <uint64_t>right
            if right < 4:
                return i
        else:
            if psk_get32(frames[i] + PSK_FRAME_CRC) != <uint32_t>~psk_crc(
                0xFFFFFFFF, frames[i] + PSK_FRAME_SEQ,
                PSK_FRAME_HEADER_BYTES - PSK_FRAME_SEQ + psk_get32(frames[i]) - 1,
            ):
                return i
            i += 1
    return n


cdef class RowReader(Reader):
    """A reader that returns batches of columns instead of events."""

    cdef Columns columns
    cdef uint64_t rows_max, bytes_max
    cdef bint busy
    cdef object failed        # the error to raise instead of another batch

    def shape(self, Columns columns not None, uint64_t rows_max, uint64_t bytes_max):
        """Set which columns a batch has and how large it gets."""
        self.columns = columns
        self.cursor.take_long()
        self.rows_max = rows_max
        self.bytes_max = bytes_max
        return self

    cdef inline RunEnd unfit(self, ColumnRows *r, const Pick *e) noexcept nogil:
        """Why the columns cannot take an event, if so."""
        if e.topic_len and r.wanted >> COLUMN_TOPIC & 1 and not is_short_ascii(e) and (
            not is_utf8(e.topic, e.topic_len)
        ):
            return RUN_TEXT
        if e.headers_len and r.wanted >> COLUMN_HEADERS & 1 and (
            not are_headers(e.topic + e.topic_len, e.headers_len)
        ):
            return RUN_TEXT
        if r.time_step == 1 and (
            (r.wanted >> COLUMN_TIME & 1 and frame_event_ns(e.p) >> 63)
            or (r.wanted >> COLUMN_APPEND_TIME & 1 and psk_get64(e.p + PSK_FRAME_APPEND_NS) >> 63)
        ):
            return RUN_LATE
        return RUN_ALL

    cdef RunEnd take_run(self, Cursor c, ColumnRows *r, FrameState *state) noexcept nogil:
        """Take events from ``at`` on until an exceptional one."""
        cdef const char *frames[RUN_FRAMES]
        cdef Pick picked[RUN_FRAMES]
        cdef const char *p
        cdef uint64_t n, i, good, picks, at, end, total, seq, lengths, alike = 0
        cdef uint32_t commit, alike_commit = 0
        cdef FrameState after  # state of the frame after the gathered ones
        cdef RunEnd rc = RUN_ALL
        cdef const Sieve *sieve = &self.query.sieve
        cdef uint64_t now = psk_now_ns()
        cdef bint filtered = self.query.filtered
        cdef uint64_t limit = U64_MAX if self.left < 0 else <uint64_t>self.left
        cdef uint64_t rows_max = min(self.rows_max, limit)
        end = min(c.limit, c.edge)
        while c.at < end and rc == RUN_ALL:
            n = 0
            at = c.at
            after = FRAME_GOOD
            while n < RUN_FRAMES and at < end:
                p = c.base + at
                if c.limit - at < PSK_FRAME_HEADER_BYTES:
                    after = FRAME_LENGTH
                    break
                commit = psk_load32(p)
                if commit == 0:
                    after = FRAME_ZERO
                    break
                total = align8(PSK_FRAME_HEADER_BYTES + <uint64_t>(commit - 1))
                if total > c.limit - at:
                    after = FRAME_LENGTH
                    break
                psk_prefetch(p + PREFETCH_BYTES)  # hardware does not prefetch across pages
                psk_prefetch(p + PREFETCH_BYTES + 64)
                frames[n] = p
                n += 1
                at += total
            good = summed_right(frames, n) if c.check else n
            if good < n:
                at = <uint64_t>(frames[good] - c.base)
                after = FRAME_CRC
            picks = 0
            for i in range(good):
                if c.next >= c.stop:  # what is here was not requested
                    rc = RUN_STOP
                    break
                p = frames[i]
                commit = psk_get32(p)
                total = align8(PSK_FRAME_HEADER_BYTES + <uint64_t>(commit - 1))
                lengths = psk_get64(p + PSK_FRAME_KEY_LEN)  # and kind and flags
                if lengths != alike or commit != alike_commit:
                    state[0] = frame_check(p, total, False, &total)
                    if state[0] != FRAME_GOOD:
                        rc = RUN_BAD
                        break
                    alike = lengths
                    alike_commit = commit
                seq = psk_get64(p + PSK_FRAME_SEQ)
                if not is_event(p):
                    if ends_map(p):
                        rc = RUN_TURN
                        break
                    c.at += total
                    continue
                if seq != c.next and (seq < c.next or not c.holes):
                    state[0] = FRAME_ORDER
                    rc = RUN_BAD
                    break
                if seq >= c.stop:
                    rc = RUN_STOP
                    break
                if (not filtered or matches(sieve, p)) and not (
                    psk_get16(p + PSK_FRAME_HEADERS_LEN) >= c.mark_bytes and frame_expired(p, c.log_ttl, now)
                ):
                    if r.count + picks >= rows_max or (
                        r.count + picks and r.nbytes + total > self.bytes_max
                    ):
                        rc = RUN_FULL
                        break
                    pick(&picked[picks], p, lengths, commit)
                    rc = self.unfit(r, &picked[picks])
                    if rc != RUN_ALL:
                        break
                    r.nbytes += total
                    picks += 1
                c.at += total
                c.next = seq + 1
                c.last_ns = psk_get64(p + PSK_FRAME_APPEND_NS)
            if picks and not rows_take(r, picked, picks):
                return RUN_MEMORY
            if r.count >= limit:  # what follows the last row, damaged or not, was not requested
                return RUN_STOP
            if rc == RUN_ALL and c.next >= c.stop:
                rc = RUN_STOP
            if rc == RUN_ALL and after != FRAME_GOOD:
                c.at = at
                state[0] = after
                rc = RUN_BAD
        return rc

    cdef int reserve(self, ColumnRows *r) except -1:
        """Reserve memory for what is likely to come; untouched memory costs almost nothing."""
        cdef Cursor c = self.cursor
        cdef Outlook o
        cdef uint64_t nbytes
        o.rows = min(c.stop - c.next, self.rows_max)
        if self.left >= 0:
            o.rows = min(o.rows, <uint64_t>self.left)
        c.outlook(&o)
        o.nbytes -= min(o.nbytes, o.here * PSK_FRAME_HEADER_BYTES)
        nbytes = min(<uint64_t>(<double>o.nbytes / <double>o.here * <double>o.rows) if o.here else 0, self.bytes_max)
        if (o.rows > r.room and not rows_grow(r, o.rows)) or (
            r.wanted >> COLUMN_VALUE & 1 and not text_reserve(&r.value, nbytes)
        ):
            raise MemoryError
        return 0

    cdef int fill(self, ColumnRows *r) except -1:
        """Take events until the batch is full or no more are published or requested."""
        cdef Cursor c = self.cursor
        cdef RunEnd rc
        cdef FrameState state = FRAME_GOOD
        while True:
            while c.at < c.limit and c.next < c.stop:
                if c.at >= c.edge:
                    c.at_edge()
                    if c.next >= c.stop:
                        break
                if r.count == 0 and not self.query.filtered:
                    self.reserve(r)
                with nogil:
                    rc = self.take_run(c, r, &state)
                if rc == RUN_FULL:
                    return 0
                if rc == RUN_STOP:
                    self.ended = True
                    return 0
                if rc == RUN_MEMORY:
                    raise MemoryError
                if rc == RUN_TURN:
                    c.turn()
                    c.learn_ttl()
                elif rc == RUN_BAD:
                    if c.is_cut(state):
                        break
                    if not self.query.skip:
                        raise c.damage(state)
                    c.pass_damage()
                elif rc != RUN_ALL:
                    self.pass_misfit(rc)
                PyErr_CheckSignals()
            if c.next >= c.stop:
                self.ended = True
                return 0
            if not c.more():
                return 0

    cdef int pass_misfit(self, RunEnd why) except -1:
        """Pass over the event at ``at``, which the columns cannot take, or raise."""
        cdef Cursor c = self.cursor
        cdef const char *p = c.base + c.at
        cdef uint64_t seq = psk_get64(p + PSK_FRAME_SEQ)
        if why == RUN_LATE:
            raise Usage(
                f"{self.log.path}: seq {seq} has a time after 2262-04-11, which "
                "nanoseconds in 63 bits cannot hold; scan(time_unit='us') can"
            )
        if not self.query.skip:
            raise Corrupt(
                f"{c.map.path}: seq {seq} at offset {c.at} has a topic or "
                "headers that are not text; scan(on_damage='skip') passes over it",
                path=str(c.map.path), offset=c.at, seq=seq, last_seq=seq - 1,
            )
        c.next = seq  # seqs missing before it may be a hole, which is not damage
        c.last_ns = psk_get64(p + PSK_FRAME_APPEND_NS)
        c.at += align8(PSK_FRAME_HEADER_BYTES + <uint64_t>psk_get32(p) - 1)
        c.pass_to(seq + 1)
        return 0

    def batch(self):
        """The next batch; None if there are no more."""
        cdef ColumnRows rows
        cdef ColumnBatch made
        if self.columns is None:
            raise Internal("this reader has no columns")
        if self.shut:
            raise self.shut_error()
        if self.log._closed:
            raise self.log.calls.closed_error(self.log)
        if self.busy:
            raise Usage("another thread uses this scan; give each thread a separate scan")
        if self.failed is not None:
            raise self.failed
        if self.ended:
            return None
        self.busy = True
        self.inside += 1
        memset(&rows, 0, sizeof(rows))
        rows.wanted = self.columns.wanted
        rows.time_step = self.columns.time_step
        try:
            self.fill(&rows)
        except PenstockError as error:
            self.failed = error
        except BaseException:
            self.failed = Usage(f"{self.log.path}: this scan was interrupted; run it again")
            self.busy = False
            rows_free(&rows)
            self.leave_call()
            raise
        if self.left >= 0:
            self.left -= <int64_t>rows.count
        try:
            if rows.count == 0 or self.ended:
                self.cursor.rest(self.ended)
            if rows.count == 0:
                if self.failed is not None:
                    raise self.failed
                return None
            made = ColumnBatch.__new__(ColumnBatch, INSIDE)
            made.columns = self.columns
            if not rows_export(&rows, self.columns.ids, self.columns.count, &made.array):
                raise MemoryError
        finally:
            self.busy = False
            rows_free(&rows)
            self.leave_call()
        return made


cdef class BatchStream:
    """Batches as one Arrow stream, from any object whose ``batch()`` returns them."""

    cdef Columns columns
    cdef object source
    cdef bytes error

    def __cinit__(self, Columns columns not None, source):
        self.columns = columns
        self.source = source

    def __reduce__(self):
        raise stays_here(self)

    def capsule(self):
        """The stream; it can be handed over once."""
        cdef ArrowStream *s = <ArrowStream *>calloc(1, sizeof(ArrowStream))
        if s == NULL:
            raise MemoryError
        s.get_schema = stream_schema
        s.get_next = stream_next
        s.get_last_error = stream_error
        s.release = stream_release
        s.private_data = <void *>self
        Py_INCREF(self)
        return PyCapsule_New(s, "arrow_array_stream", stream_capsule_free)

    cdef int fail(self, object error) noexcept:
        try:
            self.error = f"{type(error).__name__}: {error}".encode(errors="replace")
        except BaseException:  # no memory for the message, and 0 would mean success
            self.error = b"an error without a message"
        if isinstance(error, MemoryError):
            return ENOMEM
        return EINVAL if isinstance(error, ValueError) else EIO


cdef int stream_schema(ArrowStream *s, ArrowSchema *out) noexcept with gil:
    cdef BatchStream self = <BatchStream>s.private_data
    try:
        self.columns.export_schema(out)
    except BaseException as error:
        return self.fail(error)
    return 0


cdef int stream_next(ArrowStream *s, ArrowArray *out) noexcept with gil:
    cdef BatchStream self = <BatchStream>s.private_data
    cdef ColumnBatch made
    out.release = NULL
    try:
        made = self.source.batch()
    except BaseException as error:
        return self.fail(error)
    if made is not None:
        out[0] = made.array
        made.array.release = NULL
    return 0


cdef const char *stream_error(ArrowStream *s) noexcept with gil:
    cdef BatchStream self = <BatchStream>s.private_data
    return PyBytes_AS_STRING(self.error) if self.error is not None else NULL


cdef void stream_release(ArrowStream *s) noexcept with gil:
    if s.release != NULL:
        s.release = NULL
        Py_DECREF(<object>s.private_data)
