# Reading: Reader, a lock-free position that moves over events and can wait for more.

cdef class Reader:
    """An iterator over events, from ``log.read()`` or ``log.follow()``.

    It takes no lock and may be left at any time. ``close()``, or leaving a ``with`` block, gives up at
    once what it holds: its maps and, with ``hold=True``, the events that writers of a ring wait with. It never passes ``head`` and checks each frame's
    bounds and checksum before it hands the event out, so it returns only what a writer committed.
    ``take(n)`` returns what is there without waiting, ``wait(timeout)`` waits for more,
    ``position`` tells where it stands, ``skipped`` how many seqs it passed over because they are
    damaged or gone, if it was told to.

    Of a ring it copies a window of frames at a time, and looks at them once it is sure that none of
    them was being overwritten.
    """

    cdef readonly LogCore log
    cdef SegmentMap map
    cdef const char *base
    cdef uint64_t at          # forward: the next frame; reverse: the frame to hand out next, 0 none
    cdef uint64_t limit       # forward: end of what is known to be published in this segment
    cdef uint64_t next        # seq of the event expected next; reverse: one above it
    cdef uint64_t stop        # forward: seq that is not handed out any more; reverse: lowest one that is
    cdef uint64_t since_ns, until_ns  # both belong to what is asked for
    cdef bytes topic, key, tags
    cdef const char *topic_at  # in `topic`; NULL: any
    cdef const char *key_at
    cdef const char *tags_at
    cdef Py_ssize_t topic_len, key_len, tags_len
    cdef uint32_t topic_bit   # 0: any
    cdef uint64_t block_end   # where the index block that `at` stands in ends, for skipping by time
    cdef bint blocks          # whether index blocks may be skipped
    cdef bint reverse, check, filtered, timed, ended, follows, crossing
    cdef bint plain           # forward, everything that is published: most steps need no further look
    cdef bint durable         # hand out only what is on the device
    cdef uint64_t end         # then: the stop that was asked for
    cdef bint skip            # pass over what is damaged
    cdef bint rejoin          # what was published behind `at` is lost; the next frame begins anew
    cdef uint64_t last_ns     # append_ns of the last frame handed out in this segment
    cdef uint64_t budget      # bytes of checksums that looking for valid frames may still cost here
    cdef readonly uint64_t skipped
    cdef RingMap ring         # that `place` is a position in
    cdef uint64_t place       # of a ring: position of what stands at the start of `map`, a window
    cdef uint64_t window_bytes
    cdef bint pass_gaps       # go on behind what is gone
    cdef bint from_oldest     # nothing was read yet: begin with what is there, if the first events are gone
    cdef bint to_end          # likewise: end where the log does, if all that was asked for is gone
    cdef Hold hold            # what has writers of a ring wait for this reader
    cdef int64_t spin_ns
    cdef uint32_t inside      # calls under way, of whatever thread
    cdef bint shut            # it was closed; what it has mapped goes when nobody is inside
    cdef public object timeout

    @classmethod
    def __class_getitem__(cls, data):
        """``Reader[T]``, for annotations: a reader of events whose ``data`` is a T."""
        return _GenericAlias(cls, data)

    def __cinit__(
        self, log=None, start=None, stop=None, *, bint reverse=False, bint check=True,
        bytes topic=None, bytes key=None, since_ns=None, until_ns=None, bint follows=False, bint durable=False,
        timeout=None, spin=0.0, on_damage="raise", bytes tags=None, on_gap="raise", bint from_oldest=True,
        bint to_end=False, Hold hold=None, **others,
    ):
        if others or not isinstance(log, LogCore) or start is None or stop is None:
            raise Usage("a Reader comes from log.read() or log.follow(); open the log with penstock.open(path)")
        self.log = log
        self.next = start
        self.stop = stop
        self.reverse = reverse
        self.topic = topic
        if topic is not None:
            self.topic_at = PyBytes_AS_STRING(topic)
            self.topic_len = PyBytes_GET_SIZE(topic)
            self.topic_bit = topic_bit(self.topic_at, <uint16_t>self.topic_len)
        self.key = key
        if key is not None:
            self.key_at = PyBytes_AS_STRING(key)
            self.key_len = PyBytes_GET_SIZE(key)
        self.since_ns = since_ns or 0
        self.until_ns = U64_MAX if until_ns is None else until_ns - 1 if until_ns else 0
        if until_ns == 0:
            self.ended = True  # no event is older than 1970
        self.timed = since_ns is not None or until_ns is not None
        self.tags = tags
        if tags is not None:
            self.tags_at = PyBytes_AS_STRING(tags)
            self.tags_len = PyBytes_GET_SIZE(tags)
        self.blocks = not self.log._is_ring and (self.timed or topic is not None)
        self.filtered = self.timed or topic is not None or key is not None or tags is not None
        self.follows = follows
        self.durable = durable and follows  # a read that ends has its stop below that from the start
        self.end = stop
        if self.durable:
            self.stop = 0  # until somebody looks
        check_choice(on_damage, "on_damage", "raise", "skip")
        check_choice(on_gap, "on_gap", "raise", "skip")
        self.skip = on_damage == "skip"
        self.pass_gaps = on_gap == "skip"
        self.from_oldest = from_oldest
        self.to_end = to_end
        self.hold = hold
        self.window_bytes = PSK_RING_WINDOW_BYTES
        self.check = check or self.skip
        self.plain = not (reverse or self.filtered or self.durable or hold is not None)
        self.timeout = timeout
        if isinstance(spin, bool) or not isinstance(spin, (int, float)):
            raise WrongType(f"spin must be a number of seconds, got {type(spin).__name__}")
        if not spin >= 0:
            raise Usage(f"spin must be a number of seconds from 0, or math.inf, got {spin!r}")
        self.spin_ns = -1 if spin > 1e6 else <int64_t>(spin * 1e9)
        deadline_after(timeout)

    def __reduce__(self):
        raise WrongType(
            f"a Reader belongs to the process that made it and cannot be copied or pickled; send the log, which "
            f"can be, and read on from reader.position, now {self.next}")

    def __iter__(self):
        return self

    def __repr__(self):
        return f"<penstock.Reader of {self.log.path!r} at seq {self.next}{', closed' if self.shut else ''}>"

    def __enter__(self):
        if self.shut:
            raise self.shut_error()
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Give up its maps and its hold on a ring; events that it handed out stay readable.

        Closing twice is fine. Whoever iterates over it, in another thread as well, gets `Closed`.

        >>> log = penstock.open(path)
        >>> log.append(b"a")
        1
        >>> with log.read() as reader:
        ...     first = next(reader)
        >>> reader.closed, first.value
        (True, b'a')
        """
        self.shut = True
        if self.hold is not None:
            self.hold.release()
        if self.inside == 0:
            self.drop()

    @property
    def closed(self):
        """Whether the reader was closed."""
        return bool(self.shut)

    cdef void drop(self) noexcept:
        """Let go of everything mapped; nobody is inside."""
        self.plain = False
        self.ended = True
        self.at = self.limit = 0
        self.base = NULL
        self.map = None
        self.ring = None
        self.hold = None

    cdef object shut_error(self):
        return Closed(f"{self.log.path}: the reader was closed; make another one with log.read({self.next})")

    cdef void leave_call(self) noexcept:
        self.inside -= 1
        if self.shut and self.inside == 0:
            self.drop()

    @property
    def position(self):
        """Forward: seq of the event that comes next. In reverse: one above it."""
        return self.next

    cdef bint matches(self, const char *p) noexcept nogil:
        cdef uint64_t ns
        cdef uint16_t n
        cdef const char *at
        if self.timed:
            ns = frame_event_ns(p)
            if ns < self.since_ns or ns > self.until_ns:
                return False
        at = frame_topic(p)
        n = psk_get16(p + PSK_FRAME_TOPIC_LEN)
        if self.topic_at != NULL and (n != self.topic_len or memcmp(at, self.topic_at, n) != 0):
            return False
        if self.key_at != NULL:
            at += n + psk_get16(p + PSK_FRAME_HEADERS_LEN)
            n = psk_get16(p + PSK_FRAME_KEY_LEN)
            if n == PSK_NO_KEY or n != self.key_len or memcmp(at, self.key_at, n) != 0:
                return False
        return self.tags_at == NULL or frame_has_tags(p, self.tags_at, <uint32_t>self.tags_len)

    cdef int enter(self, SegmentMap m, uint64_t at, uint64_t limit) except -1:
        self.map = m
        self.base = m.base
        self.at = at
        self.limit = limit
        self.crossing = self.rejoin = False
        self.block_end = 0
        self.last_ns = m.prior_append_ns
        self.budget = 4 * m.file_bytes
        return 0

    cdef bint locate(self) except -1:
        """Find the place of the first event to hand out; False if there is none (yet)."""
        cdef SegmentMap m
        cdef uint64_t limit, head, at
        if self.log._is_ring:
            return self.find_place() and self.next_window()
        try:
            m = self.log._segment_for(self.next)
        except Corrupt:
            m = self.log._segment_after(self.next) if self.skip else None
            if m is None:
                raise
            self.pass_to(m.base_seq)
        if m is None:
            return False
        if m.base_seq > self.next:
            if not self.from_oldest:
                self.fall_behind(m.base_seq)
            self.next = m.base_seq
        head = self.log.head()
        limit = m.published(head)
        at = m.seek(self.log, self.next, limit, self.skip)
        self.enter(m, at, limit)
        if self.skip and at < limit and is_event(m.base + at):
            if psk_get64(m.base + at + PSK_FRAME_SEQ) > self.next and not m.generation:
                self.pass_to(psk_get64(m.base + at + PSK_FRAME_SEQ))
        self.rejoin = at == limit
        if self.rejoin and self.skip and not self.follows and head >> 32 == m.number:
            self.pass_to(self.stop)  # nothing that was published behind it can be read
        return True

    cdef int fall_behind(self, uint64_t first) except -1:
        """The events before ``first`` are gone: pass over them, if told to."""
        if not self.pass_gaps:
            raise Gap(
                f"{self.log.path}: the events from seq {self.next} on are gone; "
                f"the first one still there is {first}",
                first_seq=first,
            )
        self.pass_to(first)
        return 0

    cdef int begin_at(self, uint64_t first) except -1:
        """Nothing was read yet, and the log begins at ``first`` now: so does this."""
        self.next = first
        if self.to_end and first >= self.stop:
            self.stop = self.end = self.log._next_seq()
        return 0

    cdef int check_start(self, uint64_t first) except -1:
        """In reverse, at the oldest event: the first ones that were asked for may be gone."""
        if self.from_oldest or self.next <= self.stop or first <= self.stop:
            return 0
        if not self.pass_gaps:
            raise Gap(
                f"{self.log.path}: the events from seq {self.stop} on are gone; "
                f"the first one still there is {first}",
                first_seq=first,
            )
        self.skipped += min(self.next, first) - self.stop
        self.next = self.stop
        return 0

    cdef bint find_place(self) except -1:
        """Of a ring: find where the event that comes next stands; False if there is none yet."""
        cdef uint64_t found = 0, position = 0, seq
        cdef RingMap ring
        while found == 0:
            if self.next >= self.log._next_seq():
                return False
            ring = self.log.ring_map()
            seq = self.next
            if self.follows and self.from_oldest and seq <= <uint64_t>self.log._oldest_seq():
                seq = 1  # wherever the ring begins, be it with damage
            found = ring.position_of(self.log, seq, &position)
        if found > self.next:
            if self.from_oldest:
                self.begin_at(found)
            elif not ring.generation or self.next < <uint64_t>self.log._oldest_seq():
                self.fall_behind(found)
            self.next = found
        if self.hold is not None and not self.shut and self.hold.control is not self.log._control:  # in a child
            self.hold = self.log._take_hold(self.next)
        self.ring = ring
        self.place = position
        self.at = self.limit = WINDOW_START
        return True

    cdef bint next_window(self) except -1:
        """Of a ring: copy what comes next; False if nothing more is published."""
        cdef uint64_t position = self.place + self.at - WINDOW_START, first
        cdef Window w, spare = None
        cdef Fetched why = FETCHED
        if isinstance(self.map, Window) and Py_REFCNT(self.map) == 1:
            spare = <Window>self.map  # no event points into it
            self.map = None
        while True:
            w = self.ring.window(self.log, &position, self.window_bytes, spare, &why)
            if w is not None:
                self.enter(w, WINDOW_START, w.mapped)
                self.place = position
                self.from_oldest = False
                return True
            if self.ring is not self.log._ring:  # the ring has another size now
                self.map = spare = None
                if not self.find_place():
                    return False
                position = self.place
                continue
            if why == FETCHED_NONE:
                self.place = position
                self.at = self.limit = WINDOW_START
                if self.map is None:
                    self.map = spare if spare is not None else self.ring
                return False
            first = self.ring.oldest(self.log, &position)
            if first > self.next:
                if self.from_oldest:
                    self.begin_at(first)
                else:
                    self.fall_behind(first)
                if self.next >= self.stop:
                    self.place = position
                    self.at = self.limit = WINDOW_START
                    self.map = self.ring
                    return False

    cdef int pass_lapse(self) except -1:
        """Of a ring, told to skip: go on at the next valid frame behind the damaged one at ``at``."""
        cdef uint64_t position = self.place + self.at - WINDOW_START, at, tail = 0, head = 0
        cdef uint64_t budget = 4 * self.ring.ring_bytes
        cdef Fetched why = FETCHED
        cdef Window w
        if self.is_valid(self.at) and psk_get64(self.base + self.at + PSK_FRAME_SEQ) > self.next:
            self.pass_to(psk_get64(self.base + self.at + PSK_FRAME_SEQ))  # what was before it is lost
            return 0
        w = self.ring.window(self.log, &position, self.ring.ring_bytes, None, &why)
        if w is None:
            self.at = self.limit  # overwritten by now: the next window says so
            return 0
        self.enter(w, WINDOW_START, w.mapped)
        self.place = position
        at = w.next_valid(
            WINDOW_START, self.limit, self.next, U64_MAX, self.last_ns, self.ring.generation > 0, &budget)
        if at:
            self.at = at
            self.pass_to(psk_get64(self.base + at + PSK_FRAME_SEQ))
            return 0
        self.log.ring_bounds(self.ring, &tail, &head)
        if self.ring is not self.log._ring:
            self.at = self.limit
            return 0
        self.place = min(head, position + lap_room(self.ring, position))
        self.at = self.limit = WINDOW_START
        if self.place == head and not self.follows:
            self.pass_to(self.stop)
        return 0

    cdef bint is_cut(self, FrameState state) noexcept:
        """Of a ring: whether the window ends here, in a frame that the next one has, or with the lap."""
        if state != FRAME_LENGTH or self.at == WINDOW_START:
            return False
        if not (<Window>self.map).cut and (
            lap_room(self.ring, self.place + self.at - WINDOW_START) >= PSK_FRAME_HEADER_BYTES
        ):
            return False
        self.limit = self.at
        return True

    cdef void end_lap(self) noexcept:
        """Of a ring, at a wrap frame: stand at the start of the next lap."""
        self.at += lap_room(self.ring, self.place + self.at - WINDOW_START)
        self.limit = self.at

    cdef Event found(self, const char *p):
        """The event at ``p``; a copy of its own, where it would keep a whole window in memory."""
        cdef Window w
        cdef uint64_t total
        if self.ring is None or not self.filtered:
            return make_event(self.map, p)
        total = align8(PSK_FRAME_HEADER_BYTES + <uint64_t>psk_get32(p) - 1)
        w = new_window(self.ring, total, None)
        memcpy(w.base + WINDOW_START, p, total)
        return make_event(w, w.base + WINDOW_START)

    cdef int pass_to(self, uint64_t seq) except -1:
        """Count the seqs up to ``seq`` as skipped, and expect that one next."""
        if seq > self.next:
            self.skipped += (seq if seq < self.stop else max(self.stop, self.next)) - self.next
            self.next = seq
        return 0

    cdef bint pass_damage(self) except -1:
        """Go on at the next valid frame behind the damaged one at ``at``, if told to skip."""
        cdef uint64_t at, seq
        if not self.skip:
            return False
        if self.ring is not None:
            self.pass_lapse()
            return True
        if self.rejoin:  # the frame that stands here follows others that are lost
            self.rejoin = False
            if self.is_valid(self.at) and psk_get64(self.base + self.at + PSK_FRAME_SEQ) >= self.next:
                self.pass_to(psk_get64(self.base + self.at + PSK_FRAME_SEQ))
                return True
        at = self.map.next_valid(
            self.at, self.limit, self.next, U64_MAX, self.last_ns, self.map.generation > 0, &self.budget)
        if at:
            self.at = at
            self.pass_to(psk_get64(self.base + at + PSK_FRAME_SEQ))
        elif self.log.head() >> 32 != self.map.number:
            self.leave()
        else:
            self.at = self.limit
            self.rejoin = True
            if not self.follows:
                self.pass_to(self.stop)
        return True

    cdef bint is_valid(self, uint64_t at) noexcept:
        cdef uint64_t total = 0
        return at < self.limit and (
            frame_check(self.base + at, self.limit - at, True, &total) == FRAME_GOOD)

    cdef int leave(self) except -1:
        """Go on in the next segment that there is: the rest of this one is lost."""
        cdef SegmentMap m = self.log._segment_after(max(self.map.base_seq, self.next - 1))
        if m is None:
            raise self.damage(FRAME_ORDER)
        self.pass_to(m.base_seq)
        self.enter(m, m.data_offset, m.data_offset)
        return 0

    cdef object damage(self, FrameState state):
        """The error for the frame at ``at``."""
        cdef SegmentMap m = self.map
        cdef uint64_t offset = self.at
        if self.ring is not None:
            m = self.ring
            offset = ring_offset(self.ring, self.place + self.at - WINDOW_START)
        if self.reverse:
            return m.damage(offset, state, None, self.next - 1)
        return m.damage(offset, state, self.next - 1)

    cdef bint refresh(self) except -1:
        """Look whether more was published behind ``limit``."""
        cdef uint64_t head = self.log.head()
        cdef uint64_t number = head >> 32, end
        if self.map is None:
            return self.locate()
        if self.ring is not None:
            return self.next_window()
        if number == self.map.number:
            end = self.map.published(head)
            if end > self.limit:
                self.limit = end
                return True
            return False
        if number < self.map.number:
            return False
        if not self.crossing:
            self.crossing = True
            end = self.map.grown()
            if end > self.limit:
                self.limit = end
                return True
        if self.skip:
            self.leave()
            return True
        raise Corrupt(
            f"{self.map.path}: ends at offset {self.at} without leading to the next segment, "
            f"after seq {self.next - 1}; run verify",
            path=str(self.map.path), offset=self.at, seq=self.next, last_seq=self.next - 1,
        )

    cdef int cross(self, uint64_t base_seq) except -1:
        """Go on in the segment that begins with ``base_seq``."""
        cdef SegmentMap m
        if base_seq <= self.map.base_seq:
            raise self.damage(FRAME_ORDER)
        self.next = base_seq
        m = self.segment_at(base_seq)
        base_seq = m.base_seq
        while self.filtered and base_seq < self.stop and self.log._has_none(
            m, self.topic, self.since_ns, self.until_ns
        ):
            if m.next_seq <= base_seq:
                raise m.damage(m.data_offset, FRAME_ORDER, self.next - 1)
            self.next = m.next_seq
            m = self.segment_at(self.next)
            base_seq = m.base_seq
        self.next = base_seq
        self.enter(m, m.data_offset, m.data_offset)
        return 0

    cdef SegmentMap segment_at(self, uint64_t base_seq):
        """The segment that begins with ``base_seq``, or the next one if that cannot be read."""
        cdef SegmentMap m
        try:
            return self.log._segment_at(base_seq)
        except Gap as gap:
            self.fall_behind(gap.first_seq)
            return self.segment_at(gap.first_seq)
        except Corrupt:
            m = self.log._segment_after(base_seq) if self.skip else None
            if m is None:
                raise
        self.pass_to(m.base_seq)
        return m

    cdef int skip_blocks(self) except -1:
        """At a block's edge: jump over index blocks without an event of the time and topic asked for."""
        cdef uint64_t count = 0, low = 0, high, middle, to = self.at
        cdef char *index = self.map.index_for(self.log, &count)
        cdef char *entry
        cdef uint32_t topics
        high = count
        while low < high:  # the last block that begins at or before `at`
            middle = (low + high) >> 1
            if psk_get32(index + middle * PSK_INDEX_ENTRY_BYTES + PSK_INDEX_ENTRY_OFFSET) <= self.at:
                low = middle + 1
            else:
                high = middle
        self.block_end = self.limit
        while 0 < low < count:  # block low - 1 ends where block low begins
            entry = index + (low - 1) * PSK_INDEX_ENTRY_BYTES
            self.block_end = psk_get32(entry + PSK_INDEX_ENTRY_BYTES + PSK_INDEX_ENTRY_OFFSET)
            if self.block_end >= self.limit:
                self.block_end = self.limit
                break
            topics = psk_get32(entry + PSK_INDEX_ENTRY_TOPICS)
            if (
                psk_get64(entry + PSK_INDEX_ENTRY_EVENT_MAX_NS) >= self.since_ns
                and psk_get64(entry + PSK_INDEX_ENTRY_EVENT_MIN_NS) <= self.until_ns
                and (topics == 0 or self.topic_bit == 0 or topics & self.topic_bit)
            ):
                break
            to = self.block_end
            low += 1
            self.block_end = self.limit
        if to > self.at:
            if to % 8 or to < self.map.data_offset:
                raise self.map.damage(to, FRAME_LENGTH)
            self.at = to
            self.next = psk_get64(
                index + (low - 1) * PSK_INDEX_ENTRY_BYTES + PSK_INDEX_ENTRY_SEQ)
        return 0

    cdef Event forward(self):
        """The next event, or None where nothing more is published."""
        cdef const char *p
        cdef uint64_t total = 0, seq
        cdef FrameState state
        while True:
            while self.at < self.limit and self.next < self.stop:
                if self.blocks and self.at >= self.block_end:
                    self.skip_blocks()
                    if self.next >= self.stop:
                        break
                p = self.base + self.at
                state = frame_check(p, self.limit - self.at, self.check, &total)
                if state != FRAME_GOOD:
                    if self.ring is not None and self.is_cut(state):
                        break
                    if self.pass_damage():
                        continue
                    raise self.damage(state)
                seq = psk_get64(p + PSK_FRAME_SEQ)
                if is_event(p):
                    if seq != self.next and (seq < self.next or not self.map.generation):
                        if self.pass_damage():
                            continue
                        raise self.damage(FRAME_ORDER)
                    if seq >= self.stop:
                        self.ended = seq >= self.end
                        return None
                    self.at += total
                    self.next = seq + 1
                    self.last_ns = psk_get64(p + PSK_FRAME_APPEND_NS)
                    if not self.filtered or self.matches(p):
                        return self.found(p)
                elif p[PSK_FRAME_KIND] == PSK_KIND_ROLL:
                    if seq < self.next or (seq > self.next and not self.map.generation):
                        if self.pass_damage():
                            continue
                        raise self.damage(FRAME_ORDER)
                    self.cross(seq)
                elif self.ring is not None and p[PSK_FRAME_KIND] == PSK_KIND_WRAP:
                    self.end_lap()
                else:
                    self.at += total
            if self.next >= self.stop:
                self.ended = self.next >= self.end
                return None
            if not self.refresh():
                return None

    cdef bint locate_last(self) except -1:
        """Find the place of the last event to hand out; False if there is none."""
        cdef SegmentMap m
        cdef uint64_t limit, head
        if self.next <= self.stop:
            return False
        try:
            m = self.log._segment_for(self.next - 1)
        except Corrupt:
            if not self.skip:
                raise
            m = self.log._segment_below(self.next - 1)
        if m is None:
            return False
        head = self.log.head()
        limit = m.published(head)
        self.enter(m, m.seek(self.log, self.next, limit, self.skip), limit)
        if self.skip:
            self.at = self.prior(self.at)
        else:
            self.at = m.last_offset(self.log, limit) if self.at == limit else m.step_back(self.at)
        return True

    cdef uint64_t prior(self, uint64_t at) except? 0:
        """Offset of the frame before the one at ``at``, or, if told to skip, of the last valid one."""
        cdef uint64_t back, total = 0
        if not self.skip:
            return self.map.step_back(at)
        if self.is_valid(at):
            back = psk_get32(self.base + at + PSK_FRAME_BACK)
            if back == 0:
                return 0
            if back % 8 == 0 and back <= at - self.map.data_offset and (
                frame_check(self.base + at - back, back, True, &total) == FRAME_GOOD and total == back
            ):
                return at - back
        return self.map.last_valid(self.log, at, self.next - 1, &self.budget)

    cdef bint enter_before(self) except -1:
        """Go on at the end of the segment before this one; False if there is none."""
        cdef SegmentMap m
        if self.next <= self.stop:
            return False
        try:
            m = self.log._segment_before(self.map)
        except Corrupt:
            if not self.skip:
                raise
            m = self.log._segment_below(self.map.base_seq - 1)
        if m is None:
            return False
        self.enter(m, 0, m.grown())
        if self.skip:
            self.at = m.last_valid(self.log, self.limit, self.next, &self.budget)
        else:
            self.at = m.last_offset(self.log, self.limit)
        return True

    cdef bint window_before(self, uint64_t frame) except -1:
        """Of a ring: have the frame at a position in the window, and what lies before it."""
        cdef uint64_t start = 0
        cdef Window w = self.ring.window_up_to(self.log, frame, self.window_bytes, &start)
        self.at = 0
        if w is None:
            return self.ring is not self.log._ring and self.find_last()
        self.enter(w, WINDOW_START + frame - start, w.mapped)
        self.place = start
        return True

    cdef bint find_last(self) except -1:
        """Of a ring: find the last event to hand out; False if there is none."""
        cdef uint64_t position = 0, found = 0
        cdef Fetched why = FETCHED
        cdef Window w
        while found == 0:
            if self.next <= self.stop or self.next <= 1:
                return False
            self.ring = self.log.ring_map()
            found = self.ring.position_of(self.log, self.next - 1, &position)
        if found >= self.next:  # gone, damaged, or in a hole: what is before it, if anything
            return self.find_before(position)
        return self.window_before(position)

    cdef bint find_before(self, uint64_t position) except -1:
        """Of a ring: find the last frame before a position; False if there is none."""
        cdef uint64_t total = 0, end
        cdef const char *p
        self.place = position
        self.at = WINDOW_START
        if not self.pass_back():
            return False
        if self.skip or self.ring is not self.log._ring:
            return True
        p = self.base + self.at
        frame_check(p, self.limit - self.at, False, &total)
        end = self.place + self.at - WINDOW_START
        end += lap_room(self.ring, end) if p[PSK_FRAME_KIND] == PSK_KIND_WRAP else total
        if past_slack(self.ring, end) < past_slack(self.ring, position):
            self.at += total
            raise self.damage(FRAME_LENGTH)
        return True

    cdef bint step_back(self) except -1:
        """Of a ring: go to the frame before the one at ``at``; False if there is none."""
        cdef uint64_t back = psk_get32(self.base + self.at + PSK_FRAME_BACK), total = 0
        cdef uint64_t position = self.place + self.at - WINDOW_START
        if back == 0:
            self.at = 0
            return False
        if back % 8 == 0 and back <= self.at - WINDOW_START:
            if frame_check(self.base + self.at - back, back, False, &total) == FRAME_GOOD and total == back:
                self.at -= back
                return True
        elif back % 8 == 0 and back <= position:
            return self.window_before(position - back)
        if not self.skip:
            raise self.damage(FRAME_LENGTH)
        return self.pass_back()

    cdef bint pass_back(self) except -1:
        """Of a ring, told to skip: go to the last valid frame before the damaged one at ``at``."""
        cdef uint64_t end = self.place + self.at - WINDOW_START, tail = 0, head = 0, start, room
        cdef uint64_t budget
        cdef Window w
        self.at = 0
        while True:
            if self.ring is not self.log._ring:
                return self.find_last()
            self.log.ring_bounds(self.ring, &tail, &head)
            if end <= tail:
                return False
            start = max(tail, (end - 1) - (end - 1) % self.ring.ring_bytes)
            w = new_window(self.ring, end - start, None)
            with nogil:
                memcpy(w.base + WINDOW_START, self.ring.base + ring_offset(self.ring, start), end - start)
            if not self.log.still_there(self.ring, start):
                continue
            budget = 4 * self.ring.ring_bytes
            self.enter(w, 0, w.mapped)
            self.place = start
            self.at = w.last_valid(self.log, w.mapped, self.next - 1, &budget)
            if self.at:
                return True
            end = start

    cdef Event ring_backward(self):
        """Of a ring: the event before the last one handed out, or None at the beginning."""
        cdef const char *p
        cdef uint64_t total = 0, seq
        cdef FrameState state
        cdef Event event
        if self.map is None and not self.find_last():
            self.check_start(self.log._oldest_seq())
            self.ended = True
            return None
        while self.at:
            p = self.base + self.at
            state = frame_check(p, self.limit - self.at, self.check, &total)
            if state != FRAME_GOOD:
                if not self.skip:
                    raise self.damage(state)
                self.pass_back()
                continue
            event = None
            if is_event(p):
                seq = psk_get64(p + PSK_FRAME_SEQ)
                if seq < self.next and self.skip and not self.ring.generation:
                    self.pass_down(seq + 1)
                if seq < self.stop:
                    break
                if seq < self.next:
                    self.next = seq
                    if not self.filtered or self.matches(p):
                        event = self.found(p)
            self.step_back()
            if event is not None:
                return event
        if self.skip and not self.ring.generation:
            self.pass_down(self.log._oldest_seq())
        self.check_start(self.log._oldest_seq())
        self.ended = True
        return None

    cdef Event backward(self):
        """The event before the last one handed out, or None at the beginning."""
        cdef const char *p
        cdef uint64_t total = 0, seq
        cdef FrameState state
        if self.map is None and not self.locate_last():
            self.ended = True
            return None
        while True:
            while self.at == 0:
                if not self.enter_before():
                    if self.skip and not self.map.generation:
                        self.pass_down(self.log._lowest_base())
                    self.check_start(self.log._lowest_base())
                    self.ended = True
                    return None
            p = self.base + self.at
            state = frame_check(p, self.limit - self.at, self.check, &total)
            if state != FRAME_GOOD:
                if not self.skip:
                    raise self.damage(state)
                self.at = self.map.last_valid(self.log, self.at, self.next - 1, &self.budget)
                continue
            if is_event(p):
                seq = psk_get64(p + PSK_FRAME_SEQ)
                if seq < self.next and self.skip and not self.map.generation:
                    self.pass_down(seq + 1)
                if seq < self.stop:
                    self.ended = True
                    return None
                if seq < self.next:
                    self.next = seq
                    self.at = self.prior(self.at)
                    if not self.filtered or self.matches(p):
                        return make_event(self.map, p)
                    continue
            self.at = self.prior(self.at)

    cdef int pass_down(self, uint64_t seq) except -1:
        """Count the seqs down to ``seq`` as skipped."""
        if seq < self.stop:
            seq = self.stop
        if seq < self.next:
            self.skipped += self.next - seq
            self.next = seq
        return 0

    cdef Event step(self):
        """The next event, or None if there is none yet; while this runs, nobody takes the map away."""
        if self.shut:
            raise self.shut_error()
        if self.log._closed:
            raise self.log._closed_error()
        if self.ended:
            return None
        self.inside += 1
        try:
            return self.step_inside()
        finally:
            self.leave_call()

    cdef Event step_inside(self):
        if self.durable and self.next >= self.stop:
            self.stop = self.durable_stop()
        if self.reverse:
            return self.ring_backward() if self.log._is_ring else self.backward()
        if self.hold is not None and self.map is not None and self.ring is self.log._ring:
            self.hold.move(self.place + self.at - WINDOW_START)
        return self.forward()

    cdef inline Event quick_step(self):
        """The next event, if it stands where it is looked for and is whole; else None, and `step` says more."""
        cdef const char *p = self.base + self.at
        cdef uint64_t total = 0
        if not self.plain or self.at >= self.limit or self.next >= self.stop or self.log._closed:
            return None
        if frame_check(p, self.limit - self.at, self.check, &total) != FRAME_GOOD or not is_event(p) or (
            psk_get64(p + PSK_FRAME_SEQ) != self.next
        ):
            return None
        self.at += total
        self.next += 1
        self.last_ns = psk_get64(p + PSK_FRAME_APPEND_NS)
        return make_event(self.map, p)

    def __next__(self):
        cdef Event event = self.quick_step()
        cdef int64_t deadline
        if event is not None:
            return event
        event = self.step()
        if event is None and self.follows and not self.ended:
            deadline = -1 if self.timeout is None else deadline_after(self.timeout)
            while event is None and not self.ended and self.wait_until(deadline):
                event = self.step()
        if event is None:
            raise StopIteration
        return event

    def take(self, count):
        """Up to ``count`` events that are there now, as a list; it never waits."""
        cdef list events = []
        cdef Event event
        count = whole_number(count, "count")
        if count < 0:
            raise Usage(f"count must be 0 or more, got {count}")
        while len(events) < count:
            event = self.quick_step()
            if event is None:
                event = self.step()
            if event is None:
                break
            events.append(event)
        return events

    def wait(self, timeout=None):
        """Wait until something new was published behind this position; False if time is up."""
        return self.wait_until(deadline_after(timeout))

    cdef uint64_t durable_stop(self) except? 0:
        """The seq behind the last one that may be handed out as things stand."""
        cdef char *words
        cdef uint64_t stop
        self.log.head()
        words = self.log.words_or_null()
        if words != NULL:
            stop = psk_load64(words + PSK_C_DURABLE_SEQ) + 1
        else:
            stop = self.log._durable_seq() + 1
        return stop if stop < self.end else self.end

    cdef bint has_more(self) except -1:
        cdef uint64_t head = self.log.head()
        if self.durable:
            return self.durable_stop() > self.next
        if self.map is None:
            return self.log._next_seq() > self.next
        if self.ring is not None:
            return self.ring is not self.log._ring or head > self.place + self.at - WINDOW_START
        return head >> 32 > self.map.number or (
            head >> 32 == self.map.number and (head & OFFSET_MASK) > self.at)

    cdef bint wait_until(self, int64_t deadline) except -1:
        """Sleep until there is more to read. The order of loads and stores is the point:

        1. Load the notify word. 2. Look for data. 3. Set ``waiting``. 4. Full fence. 5. Look again.
        6. Sleep while the notify word is what it was in 1.
        """
        cdef Control control
        cdef char *words
        cdef uint32_t seen
        cdef uint64_t head
        cdef int watched = PSK_C_DURABLE_SEQ if self.durable else PSK_C_HEAD
        cdef int64_t left, began, nap_ns = 100000
        cdef int i
        while True:
            if self.shut:
                raise self.shut_error()
            if self.log._closed:
                raise self.log._closed_error()
            if self.log.fork_generation != psk_fork_generation:
                self.log._after_fork()
            words = self.log.words_or_null()
            control = self.log._control
            if words == NULL:
                self.log._look_again()
                if self.has_more():
                    return True
                if deadline >= 0 and psk_monotonic_ns() >= deadline:
                    return False
                with nogil:
                    psk_sleep_ns(nap_ns)
            else:
                seen = psk_load32(words + PSK_C_NOTIFY)
                if self.has_more():
                    return True
                if self.durable and psk_load64(words + PSK_C_POISONED):
                    raise self.log._poisoned_error()  # nothing more will become durable
                head = psk_load64(words + watched)
                control.pin()
                try:
                    with nogil:
                        if self.spin_ns:
                            began = psk_monotonic_ns()
                            while psk_load64(words + watched) == head:
                                for i in range(32):
                                    psk_pause()
                                left = psk_monotonic_ns()
                                if (0 <= self.spin_ns < left - began) or (0 <= deadline <= left) or (
                                    left - began > 50000000
                                ):
                                    break
                        if self.spin_ns >= 0 and psk_load64(words + watched) == head:
                            if control.writable:
                                psk_store32(words + PSK_C_WAITING, 1)
                                psk_full_fence()
                            left = PSK_WAIT_SLICE_NS
                            if deadline >= 0 and deadline - psk_monotonic_ns() < left:
                                left = deadline - psk_monotonic_ns()
                            if left > 0 and psk_load64(words + watched) == head:
                                control.wait_change(seen, left, nap_ns)
                finally:
                    control.unpin()
                if deadline >= 0 and psk_monotonic_ns() >= deadline:
                    PyErr_CheckSignals()
                    return self.has_more()
            PyErr_CheckSignals()
            self.log._check_there()  # nobody wakes the readers of a log that was deleted
            if nap_ns < 5000000:
                nap_ns = nap_ns * 10 if nap_ns < 1000000 else 5000000
