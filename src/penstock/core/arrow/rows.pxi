# Rows: frames turned into the columns of Arrow batches, without the GIL and without an object per event.

cdef enum:
    SWEEP_FRAMES = 64       # frames whose checksums are taken before any of them is looked at
    PREFETCH_BYTES = 2048
    WINDOW_BYTES = 4194304  # of a segment that a scan has mapped at a time


cdef enum Swept:
    SWEPT_ALL = 0     # everything up to the limit, or up to where blocks may be skipped
    SWEPT_FULL        # the batch is full
    SWEPT_BAD         # the frame at `at` is not valid
    SWEPT_ROLL        # a roll frame stands at `at`
    SWEPT_STOP        # the event at `at` is not asked for any more
    SWEPT_TEXT        # the event at `at` has a topic or headers that are no text
    SWEPT_LATE        # its time is too late for nanoseconds in 63 bits
    SWEPT_MEMORY


cdef uint64_t summed_right(const char **frames, uint64_t n) noexcept nogil:
    """How many of the frames, from the first on, have the right checksum. They lie inside the map."""
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
    """A reader that hands out batches of columns instead of events."""

    cdef Columns columns
    cdef uint64_t rows_max, bytes_max
    cdef bint busy
    cdef object failed        # what is raised instead of a further batch
    cdef SegmentMap window    # the map of which pages are held
    cdef uint64_t window_start, window_end

    def shape(self, Columns columns not None, uint64_t rows_max, uint64_t bytes_max):
        """Set which columns a batch has and how large it gets."""
        self.columns = columns
        if self.log._is_ring:
            self.window_bytes = PSK_RING_SCAN_BYTES
            self.blocks = False
        self.rows_max = rows_max
        self.bytes_max = bytes_max
        return self

    cdef inline Swept unfit(self, Rows *r, const Pick *e) noexcept nogil:
        """Why the columns cannot take an event, if they cannot."""
        if e.topic_len and r.wanted >> COLUMN_TOPIC & 1 and not is_short_ascii(e) and (
            not is_utf8(e.topic, e.topic_len)
        ):
            return SWEPT_TEXT
        if e.headers_len and r.wanted >> COLUMN_HEADERS & 1 and (
            not are_headers(e.topic + e.topic_len, e.headers_len)
        ):
            return SWEPT_TEXT
        if r.time_step == 1 and (
            (r.wanted >> COLUMN_TIME & 1 and frame_event_ns(e.p) >> 63)
            or (r.wanted >> COLUMN_APPEND_TIME & 1 and psk_get64(e.p + PSK_FRAME_APPEND_NS) >> 63)
        ):
            return SWEPT_LATE
        return SWEPT_ALL

    cdef Swept sweep(self, Rows *r, bint holes, FrameState *state) noexcept nogil:
        """Take events from ``at`` on as long as nothing out of the ordinary comes."""
        cdef const char *frames[SWEEP_FRAMES]
        cdef Pick picked[SWEEP_FRAMES]
        cdef const char *p
        cdef uint64_t n, i, good, picks, at, end, total, seq, lengths, alike = 0
        cdef uint32_t commit, alike_commit = 0
        cdef FrameState behind  # of the frame behind those that were gathered
        cdef Swept rc = SWEPT_ALL
        end = self.limit
        if self.blocks:
            if self.block_end < end:
                end = self.block_end
        elif self.ring is None and self.window_end < end:
            end = self.window_end
        while self.at < end and rc == SWEPT_ALL:
            n = 0
            at = self.at
            behind = FRAME_GOOD
            while n < SWEEP_FRAMES and at < end:
                p = self.base + at
                if self.limit - at < PSK_FRAME_HEADER_BYTES:
                    behind = FRAME_LENGTH
                    break
                commit = psk_load32(p)
                if commit == 0:
                    behind = FRAME_ZERO
                    break
                total = align8(PSK_FRAME_HEADER_BYTES + <uint64_t>(commit - 1))
                if total > self.limit - at:
                    behind = FRAME_LENGTH
                    break
                psk_prefetch(p + PREFETCH_BYTES)  # hardware does not look over the edge of a page
                psk_prefetch(p + PREFETCH_BYTES + 64)
                frames[n] = p
                n += 1
                at += total
            good = summed_right(frames, n) if self.check else n
            if good < n:
                at = <uint64_t>(frames[good] - self.base)
                behind = FRAME_CRC
            picks = 0
            for i in range(good):
                if self.next >= self.stop:  # whatever stands here is not asked for
                    rc = SWEPT_STOP
                    break
                p = frames[i]
                commit = psk_get32(p)
                total = align8(PSK_FRAME_HEADER_BYTES + <uint64_t>(commit - 1))
                lengths = psk_get64(p + PSK_FRAME_KEY_LEN)  # and kind and flags
                if lengths != alike or commit != alike_commit:
                    state[0] = frame_check(p, total, False, &total)
                    if state[0] != FRAME_GOOD:
                        rc = SWEPT_BAD
                        break
                    alike = lengths
                    alike_commit = commit
                seq = psk_get64(p + PSK_FRAME_SEQ)
                if not is_event(p):
                    if p[PSK_FRAME_KIND] == PSK_KIND_ROLL or p[PSK_FRAME_KIND] == PSK_KIND_WRAP:
                        rc = SWEPT_ROLL
                        break
                    self.at += total
                    continue
                if seq != self.next and (seq < self.next or not holes):
                    state[0] = FRAME_ORDER
                    rc = SWEPT_BAD
                    break
                if seq >= self.stop:
                    rc = SWEPT_STOP
                    break
                if not self.filtered or self.matches(p):
                    if r.count + picks >= self.rows_max or (
                        r.count + picks and r.nbytes + total > self.bytes_max
                    ):
                        rc = SWEPT_FULL
                        break
                    pick(&picked[picks], p, lengths, commit)
                    rc = self.unfit(r, &picked[picks])
                    if rc != SWEPT_ALL:
                        break
                    r.nbytes += total
                    picks += 1
                self.at += total
                self.next = seq + 1
                self.last_ns = psk_get64(p + PSK_FRAME_APPEND_NS)
            if picks and not rows_take(r, picked, picks):
                return SWEPT_MEMORY
            if rc == SWEPT_ALL and self.next >= self.stop:
                rc = SWEPT_STOP
            if rc == SWEPT_ALL and behind != FRAME_GOOD:
                self.at = at
                state[0] = behind
                rc = SWEPT_BAD
        return rc

    cdef int reserve(self, Rows *r) except -1:
        """Have memory for what is likely to come; what of it is not touched costs next to nothing.

        The index knows how long the next frames of this segment are, to a block or two; those of
        the segments behind it are taken to be alike.
        """
        cdef uint64_t ahead = self.limit - self.at
        cdef uint64_t rows, here, nbytes, end
        if self.ring is not None:
            ahead = max(ahead, self.log.head() - self.place)
        rows = here = min(self.stop - self.next, self.rows_max, ahead // 48 + 64)
        if self.ring is None:
            if self.map.next_seq > self.next:
                rows = min(self.stop - self.next, self.rows_max)
                here = min(rows, self.map.next_seq - self.next)
            end = self.map.block_about(self.log, self.next + here)
            if end != U64_MAX:
                ahead = min(ahead, max(end + 4 * PSK_INDEX_STEP, self.at) - self.at)
        ahead -= min(ahead, here * PSK_FRAME_HEADER_BYTES)
        nbytes = min(<uint64_t>(<double>ahead / <double>here * <double>rows) if here else 0, self.bytes_max)
        if (rows > r.room and not rows_grow(r, rows)) or (
            r.wanted >> COLUMN_VALUE & 1 and not text_reserve(&r.value, nbytes)
        ):
            raise MemoryError
        return 0

    cdef int move_window(self) except -1:
        """Map the pages that come next, and let go of those that were read.

        A scan of any length then has a few megabytes of a log in its memory, and the kernel maps
        them in one go instead of by a fault every few pages.
        """
        cdef uint64_t stop
        self.leave_window()
        self.window = self.map
        self.window_start = self.at & ~<uint64_t>(PSK_PAGE - 1)
        self.window_end = self.window_start + WINDOW_BYTES
        stop = min(self.window_end, (self.limit + PSK_PAGE - 1) & ~<uint64_t>(PSK_PAGE - 1))
        with nogil:
            psk_populate_read(self.base + self.window_start, stop - self.window_start)
        return 0

    cdef void drop(self) noexcept:
        self.window = None
        Reader.drop(self)

    cdef int leave_window(self) except -1:
        """Let go of the pages that were read last; others may be at other pages of the segment."""
        if self.window is not None:
            self.window.let_go(self.window_start, min(self.window_end, self.window.mapped))
            if self.window is not self.map or self.ended:
                self.window.let_go(0, self.window.data_offset)  # its index
        self.window = None
        return 0

    cdef int fill(self, Rows *r) except -1:
        """Take events until the batch is full or nothing more is published or asked for."""
        cdef Swept rc
        cdef FrameState state = FRAME_GOOD
        cdef uint64_t seq
        cdef bint holes
        while True:
            while self.at < self.limit and self.next < self.stop:
                if self.blocks and self.at >= self.block_end:
                    self.skip_blocks()
                    if self.next >= self.stop:
                        break
                elif not self.blocks and self.ring is None and (
                    self.window is not self.map or self.at >= self.window_end
                ):
                    self.move_window()
                holes = self.map.generation > 0
                if r.count == 0 and not self.filtered:
                    self.reserve(r)
                with nogil:
                    rc = self.sweep(r, holes, &state)
                if rc == SWEPT_FULL:
                    return 0
                if rc == SWEPT_STOP:
                    self.ended = True
                    return 0
                if rc == SWEPT_ROLL and self.ring is not None:
                    self.end_lap()
                elif rc == SWEPT_ROLL:
                    seq = psk_get64(self.base + self.at + PSK_FRAME_SEQ)
                    if seq == self.next or (seq > self.next and holes):
                        self.cross(seq)
                    elif not self.pass_damage():
                        raise self.damage(FRAME_ORDER)
                elif rc == SWEPT_MEMORY:
                    raise MemoryError
                elif rc == SWEPT_BAD:
                    if self.ring is not None and self.is_cut(state):
                        break
                    if not self.pass_damage():
                        raise self.damage(state)
                elif rc == SWEPT_LATE:
                    seq = psk_get64(self.base + self.at + PSK_FRAME_SEQ)
                    raise Usage(
                        f"{self.log.path}: seq {seq} has a time after 2262-04-11, which "
                        "nanoseconds in 63 bits cannot hold; scan(time_unit='us') can"
                    )
                elif rc == SWEPT_TEXT:
                    seq = psk_get64(self.base + self.at + PSK_FRAME_SEQ)
                    if not self.skip:
                        raise Corrupt(
                            f"{self.map.path}: seq {seq} at offset {self.at} has a topic or "
                            "headers that are not text; scan(on_damage='skip') passes over it",
                            path=str(self.map.path), offset=self.at, seq=seq, last_seq=seq - 1,
                        )
                    self.next = seq  # what is missing before it may be a hole, and is not damaged
                    self.last_ns = psk_get64(self.base + self.at + PSK_FRAME_APPEND_NS)
                    self.at += align8(PSK_FRAME_HEADER_BYTES + <uint64_t>psk_get32(self.base + self.at) - 1)
                    self.pass_to(seq + 1)
                PyErr_CheckSignals()
            if self.next >= self.stop:
                self.ended = True
                return 0
            if not self.refresh():
                return 0

    def batch(self):
        """The next batch; None if there is nothing more."""
        cdef Rows rows
        cdef Batch made
        if self.columns is None:
            raise Internal("this reader was not told which columns it has")
        if self.shut:
            raise self.shut_error()
        if self.log._closed:
            raise self.log._closed_error()
        if self.busy:
            raise Usage("another thread is at this scan; give each thread a scan of its own")
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
        try:
            if rows.count == 0 or self.ended:
                self.leave_window()
            if rows.count == 0:
                if self.failed is not None:
                    raise self.failed
                return None
            made = Batch.__new__(Batch, INSIDE)
            made.columns = self.columns
            if not rows_export(&rows, self.columns.ids, self.columns.count, &made.array):
                raise MemoryError
        finally:
            self.busy = False
            rows_free(&rows)
            self.leave_call()
        return made


cdef class BatchStream:
    """Batches as one Arrow stream, from anything whose ``batch()`` gives them."""

    cdef Columns columns
    cdef object source
    cdef bytes error

    def __cinit__(self, Columns columns not None, source):
        self.columns = columns
        self.source = source

    def __reduce__(self):
        raise stays_here(self)

    def capsule(self):
        """The stream; it may be given away once."""
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
        except BaseException:  # no memory for the words, and 0 would say that all went well
            self.error = b"an error that cannot be put into words"
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
    cdef Batch made
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
