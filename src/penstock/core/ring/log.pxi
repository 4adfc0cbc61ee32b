# RingCore: what a log handle does of a ring, and segments know nothing of.

cdef class RingCore(HandleCore):
    """A ring's file and control as one: bounds, events and frames in it, waiting for room, copies."""

    cdef public bint _is_ring
    cdef public RingMap _ring  # the file; None while it is closed
    cdef public uint64_t _static_tail, _static_epoch  # as `_static_head`

    cdef int wait_for_room(self, Control control, int64_t deadline, uint32_t seen) except -1:
        """Wait until a reader that holds a ring has moved on, or is dead; `Full` if time is up."""
        cdef int64_t left = PSK_LOCK_SLICE_NS
        cdef char *words = control.live()
        if psk_load32(words + PSK_C_WHEN_FULL) == PSK_WHEN_FULL_ERROR:
            raise self._full_error()
        if deadline >= 0:
            left = min(left, deadline - psk_monotonic_ns())
            if left <= 0:
                raise self._full_error()
        control.pin()
        with nogil:
            psk_store32(words + PSK_C_ROOM_WAITING, 1)
            psk_full_fence()
            if PSK_IS_POLLING:
                psk_sleep_ns(min(left, 500000))
            else:
                psk_futex_wait(words + PSK_C_ROOM_NOTIFY, seen, left)
        control.unpin()
        PyErr_CheckSignals()
        return 0

    def _copy_due(self, Control control not None, RingMap m not None, uint64_t nbytes):
        """Whether its state has to be appended again before an append of ``nbytes``.

        And whether at the start of a lap; and how many bytes the append has to leave free. The
        caller holds the write lock. Whether the append is of settings is not known here, so a copy
        is due if it is due for any append: else publish could ask for one that is never made.
        """
        cdef char *words = control.live()
        cdef Place place
        cdef Rule rule
        cdef Copies due
        m.sound()
        ring_put(m, nbytes, psk_get64(words + PSK_C_HEAD), NO_COPY, &place)
        rule_for(words, m, NULL, &rule)
        due = copy_due(words, m, &place, m.reserve)
        return due != NO_COPY, due == COPY_ANEW, rule.reserve

    def _may_drop(self, Control control not None, uint64_t tail):
        """Whether the tail may move there, and why not: a code of publish. Under the write lock."""
        cdef char *words = control.live()
        cdef uint32_t when_full = psk_get32(words + PSK_C_WHEN_FULL)
        if when_full != PSK_WHEN_FULL_DROP and ring_is_held(words, control.fd, tail, when_full):
            return <int>FULL
        if psk_load64(words + PSK_C_GUARD) < tail < psk_load64(words + PSK_C_GUARD_END):
            return <int>UNSURE
        return <int>OK

    def _copy_state(self, Control control not None, RingMap m not None, frames, bint anew):
        """Append control frames, as (kind, body) pairs, ``anew``: at the start of a lap.

        The caller holds the write lock. Returns whether it was done, and why not: a code of publish.
        """
        cdef Parts parts[2]
        cdef Terms terms
        cdef uint64_t i = 0, nbytes = 0, seq = 0, end = 0
        cdef int rc
        cdef list pins = []
        m.sound()
        control.live_to_write()
        if not 0 < len(frames) <= 2:
            raise Internal(f"{m.path}: the state is one frame or two, got {len(frames)}")
        memset(&terms, 0, sizeof(terms))
        terms.copies = COPY_ANEW if anew else COPY_HERE
        for kind, body in frames:
            memset(&parts[i], 0, sizeof(Parts))
            raw = bytes(body)
            pins.append(raw)
            parts[i].kind = kind
            parts[i].key_len = PSK_NO_KEY
            parts[i].fixed = True
            parts[i].value = PyBytes_AS_STRING(raw)
            parts[i].value_len = <uint64_t>PyBytes_GET_SIZE(raw)
            nbytes += align8(PSK_FRAME_HEADER_BYTES + parts[i].value_len)
            i += 1
        rc = publish(
            control.live(), m, control.fd, &terms, parts, NULL, i, nbytes, NULL, 0, &seq, &end)
        return rc

    cdef RingMap ring_map(self):
        """Its file as it is now."""
        cdef RingMap m
        self.head()  # opens the log anew in a child
        m = self._ring
        if m is None:
            raise self._closed_error()
        return m

    cdef int ring_bounds(self, RingMap m, uint64_t *tail, uint64_t *head) except -1:
        """Between which positions its frames lie; both are 0 if it is another file by now.

        The tail is loaded behind the head, so it may be ahead of that, if writers are quick.
        """
        cdef char *words
        while True:
            head[0] = self.head()
            if self._ring is not m:
                head[0] = tail[0] = 0
                return 0
            words = self.words_or_null()
            if words == NULL:
                tail[0] = self._static_tail
                return 0
            tail[0] = psk_load64(words + PSK_C_TAIL)
            if is_ring_span(m, tail[0], head[0]):
                return 0
            if tail[0] <= head[0] or tail[0] > psk_load64(words + PSK_C_HEAD):
                raise m.nonsense()

    cdef bint still_there(self, RingMap m, uint64_t position) except -1:
        """Behind a copy: whether nobody had begun to overwrite what stood from ``position`` on."""
        cdef char *words
        psk_acquire_fence()
        if self._ring is not m:
            return False
        words = self.words_or_null()
        if words != NULL:
            return psk_load64(words + PSK_C_TAIL) <= position
        if psk_load64(m.base + PSK_RING_CONTROL_OFFSET + PSK_C_EPOCH) == self._static_epoch:
            return True
        self._look_again()
        return False

    cdef Event ring_item(self, uint64_t want):
        """The event ``want`` of a ring; None if it has none."""
        cdef RingMap m = None
        cdef uint64_t position = 0, total = 0
        cdef Fetched why = FETCHED
        cdef FrameState state
        cdef Window w = None
        while w is None:
            if m is not None and m is self._ring:
                return None
            m = self.ring_map()
            if m.position_of(self, want, &position) == want:
                w = m.window(self, &position, 0, None, &why)
        state = frame_check(w.base + WINDOW_START, w.mapped - WINDOW_START, True, &total)
        if state != FRAME_GOOD:
            raise m.damage(ring_offset(m, position), state, want - 1)
        if psk_get64(w.base + WINDOW_START + PSK_FRAME_SEQ) != want:
            return None
        return make_event(w, w.base + WINDOW_START)

    def _take_still(self, RingMap m not None, uint64_t tail, uint64_t head, uint64_t epoch):
        """Go on with that file, without control; no thread sees one without the other."""
        m.sound()
        self._ring = m
        self._static_tail = tail
        self._static_head = head
        self._static_epoch = epoch

    def _seq_at(self, uint64_t position):
        """Seq of the event at or behind a position; 1 if that is not known any more."""
        cdef RingMap m = self.ring_map()
        cdef Fetched why = FETCHED
        cdef uint64_t total = 0
        cdef Window w = m.window(self, &position, 0, None, &why)
        if w is None:
            return self._next_seq() if why == FETCHED_NONE else 1
        if frame_check(w.base + WINDOW_START, w.mapped - WINDOW_START, True, &total) != FRAME_GOOD:
            return 1
        return psk_get64(w.base + WINDOW_START + PSK_FRAME_SEQ)

    def _frame_at(self, uint64_t position):
        """Kind, seq, key and value of the frame at a position; None if it is gone."""
        cdef uint64_t at = position, total = 0
        cdef Fetched why = FETCHED
        cdef Window w
        cdef Event event
        cdef RingMap m = self._ring
        if m is None or position == 0 or position % 8:
            return None
        w = m.window(self, &at, 0, None, &why)
        if w is None or at != position or (
            frame_check(w.base + WINDOW_START, w.mapped - WINDOW_START, True, &total) != FRAME_GOOD
        ):
            return None
        event = make_event(w, w.base + WINDOW_START)
        return <int>w.base[WINDOW_START + PSK_FRAME_KIND], event.seq, event.key, event.value

    def _copy_events(
        self, RingMap target, uint64_t position, uint64_t stop, uint64_t start, uint64_t last_frame,
        uint64_t drop, bint apart,
    ):
        """Copy the events between two positions to another ring, which nobody else has.

        They go there from the position ``start`` on, behind the frame at ``last_frame``, without the
        first ``drop`` bytes of them. With ``apart`` none belongs to a batch any more. Damaged frames
        are left out. Returns where the copy ends, as the fields of a walk, how many bytes the events
        take, and whether some were left out; None if some were overwritten meanwhile. Without
        ``target`` nothing is copied.
        """
        cdef RingMap m = self.ring_map()
        cdef Window w = None
        cdef Fetched why = FETCHED
        cdef Walk walk
        cdef uint64_t at, total = 0, budget = 4 * m.ring_bytes, nbytes = 0, found, limit
        cdef bint lost = False
        cdef FrameState state
        cdef char *to
        if target is not None:
            target.sound()
            if not target.writable or start % 8:
                raise Internal(f"{target.path}: cannot be copied to")
        walk_start(&walk, start, 0, 0, 0, True)
        walk.last_frame = last_frame
        while position < stop:
            w = m.window(self, &position, PSK_RING_SCAN_BYTES, w, &why)
            if w is None:
                if why == FETCHED_GONE:
                    return None
                break
            if position >= stop:
                break
            at = WINDOW_START
            limit = min(w.mapped, WINDOW_START + stop - position)
            while at < limit:
                state = frame_check(w.base + at, limit - at, True, &total)
                if state == FRAME_LENGTH and at > WINDOW_START and (
                    w.cut or lap_room(m, position + at - WINDOW_START) < PSK_FRAME_HEADER_BYTES
                ):
                    break
                if state != FRAME_GOOD:
                    lost = True
                    position += at - WINDOW_START
                    w = m.window(self, &position, m.ring_bytes, None, &why)
                    if w is None:
                        return None
                    at = WINDOW_START
                    limit = min(w.mapped, WINDOW_START + stop - position)
                    found = w.next_valid(WINDOW_START, limit, 0, U64_MAX, walk.last_append_ns, True, &budget)
                    if found == 0:
                        at = lap_room(m, position) + WINDOW_START
                        break
                    at = found
                    continue
                if w.base[at + PSK_FRAME_KIND] == PSK_KIND_WRAP:
                    at += lap_room(m, position + at - WINDOW_START)
                    break
                if is_event(w.base + at):
                    nbytes += total
                    if drop:
                        drop -= min(drop, total)
                    elif target is not None:
                        if walk.offset + total > 2 * target.ring_bytes:
                            raise Internal(f"{target.path}: there is no room for the events")
                        to = target.base + ring_offset(target, walk.offset)
                        memcpy(to, w.base + at, total)
                        psk_put32(
                            to + PSK_FRAME_BACK,
                            <uint32_t>(walk.offset - walk.last_frame) if walk.last_frame else 0)
                        if apart:
                            psk_put32(to + PSK_FRAME_BATCH_LEFT, 0)
                        frame_sum(to, psk_get32(to) - 1)
                        if target.index_capacity:
                            psk_put64(
                                target.base + target.index_offset
                                + psk_get64(to + PSK_FRAME_SEQ) % target.index_capacity * PSK_RING_SLOT_BYTES,
                                walk.offset)
                        walk_accept(&walk, to, total, NULL)
                at += total
            position += at - WINDOW_START
            PyErr_CheckSignals()
        return walked(&walk), nbytes, bool(lost)

    def _await_room(self, Control control not None, timeout, uint32_t seen):
        """Wait a while for a reader that holds it; `Full` if time is up."""
        self.wait_for_room(control, -1 if timeout is None else deadline_after(timeout), seen)

    def _oldest_seq(self):
        """Seq of the oldest event; of the next one to come if there is none."""
        cdef uint64_t position = 0, seq = 0
        while seq == 0:
            seq = self.ring_map().oldest(self, &position)
        return seq

    def _ring_now(self):
        """Seq of the oldest event and of the next one to come, tail and head, of one moment.

        As long as the tail stands still, no more can be published than fits behind it. The next
        seq is stored behind the head, so it is loaded before that.
        """
        cdef uint64_t position = 0, first, after, before, tail = 0, head = 0
        cdef RingMap m
        cdef char *words
        while True:
            m = self.ring_map()
            words = self.words_or_null()
            before = psk_load64(words + PSK_C_TAIL) if words != NULL else self._static_tail
            after = psk_load64(words + PSK_C_NEXT_SEQ) if words != NULL else self._next_seq()
            self.ring_bounds(m, &tail, &head)
            first = m.oldest(self, &position)
            if first and tail and tail == before and self.still_there(m, tail):
                return first, after, tail, head

    def _position_of(self, uint64_t seq):
        """Where the first event from ``seq`` on stands."""
        cdef uint64_t position = 0
        while self.ring_map().position_of(self, seq, &position) == 0:
            pass
        return position
