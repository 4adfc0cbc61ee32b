# Reader: iterates over events with a cursor, selects the requested ones, stops, waits for more.

cdef class Reader:
    """An iterator over events, from ``log.read()`` or ``log.follow()``.

    It takes no lock and may be dropped at any time. ``close()``, or leaving a ``with`` block, releases
    its maps at once and, with ``hold=True``, its hold on the ring. It never passes ``head`` and checks
    each frame's bounds and checksum before it returns the event, so it returns only what a writer
    committed. ``take(n)`` returns available events without waiting, ``wait(timeout)`` waits for more,
    ``position`` is the seq of the next event, ``skipped`` the number of seqs passed over because
    they are damaged or gone, if the reader skips those.
    """

    cdef readonly LogCore log
    cdef Cursor cursor        # its position; of the log's kind
    cdef Query query          # what it returns
    cdef bint ended
    cdef bint durable         # it follows, and returns only what is on disk
    cdef int64_t spin_ns
    cdef int64_t left         # events that may still be returned; below 0: any number
    cdef uint32_t inside      # calls in progress, of any thread
    cdef bint shut            # it was closed; its maps are released when no call is in progress
    cdef public object timeout

    @classmethod
    def __class_getitem__(cls, data):
        """``Reader[T]``, for annotations: a reader of events whose ``data`` is a T."""
        return _GenericAlias(cls, data)

    def __cinit__(
        self, log=None, query=None, start=None, stop=None, timeout=None, spin=0.0, Hold hold=None,
        bint first=True, **others,
    ):
        """Read the events of ``query`` from seq ``start`` to before ``stop``; in reverse, the other way.

        ``first`` is false if another reader has the events before these, so that ``start`` is exact.
        """
        cdef Query asked
        cdef Cursor cursor
        if others or not isinstance(log, LogCore) or not isinstance(query, Query) or (
            start is None or stop is None
        ):
            raise Usage("a Reader comes from log.read() or log.follow(); open the log with penstock.open(path)")
        self.log = log
        self.query = asked = query
        self.cursor = cursor = self.log.finder.cursor(asked, hold)
        cursor.log = self.log
        cursor.query = asked
        cursor.next = stop if asked.reverse else start
        cursor.stop = cursor.end = start if asked.reverse else stop
        cursor.check = asked.check
        cursor.learn_ttl()
        cursor.from_oldest = first and asked.start is None
        if asked.follows:
            self.durable = asked.durable
            self.wait_for(timeout, spin)
        else:  # its stop is at the end of the durable events from the start
            cursor.to_end = asked.stop is None and asked.until_ns is None and not asked.durable
        if self.durable:
            cursor.stop = 0  # until the first read
        self.left = -1 if asked.limit is None else <int64_t>min(asked.limit, <uint64_t>1 << 62)
        cursor.plain = not (
            asked.reverse or asked.filtered or self.durable or hold is not None or self.left >= 0)
        self.ended = asked.nothing

    cdef int wait_for(self, timeout, spin) except -1:
        """Set how long and how to wait for events."""
        deadline_after(timeout)
        self.timeout = timeout
        if isinstance(spin, bool) or not isinstance(spin, (int, float)):
            raise WrongType(f"spin must be a number of seconds, got {type(spin).__name__}")
        if not spin >= 0:
            raise Usage(f"spin must be a number of seconds from 0, or math.inf, got {spin!r}")
        self.spin_ns = -1 if spin > 1e6 else <int64_t>(spin * 1e9)
        return 0

    def __reduce__(self):
        raise WrongType(
            f"a Reader belongs to the process that made it and cannot be copied or pickled; send the log, which "
            f"can be, and continue from reader.position, now {self.cursor.next}")

    def __iter__(self):
        return self

    def __repr__(self):
        return f"<penstock.Reader of {self.log.path!r} at seq {self.cursor.next}{', closed' if self.shut else ''}>"

    def __enter__(self):
        if self.shut:
            raise self.shut_error()
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Release its maps and its hold on a ring; events that it returned stay readable.

        Closing twice is fine. Iterating over it, in any thread, then raises `Closed`.

        >>> log = penstock.open(path)
        >>> log.append(b"a")
        1
        >>> with log.read() as reader:
        ...     first = next(reader)
        >>> reader.closed, first.value
        (True, b'a')
        """
        self.shut = True
        self.cursor.release()
        if self.inside == 0:
            self.drop()

    def __aiter__(self):
        """For ``async for``: the same events, by an `AsyncReader` that reads ahead of it."""
        from penstock.reading.aio import BATCH, AsyncReader
        if self.shut:
            raise self.shut_error()
        return AsyncReader(self, self.timeout, 1 if self.cursor.held else BATCH, bool(self.query.follows))

    async def __aenter__(self):
        return self.__enter__()

    async def __aexit__(self, *_):
        self.close()

    @property
    def _reverse(self):
        """Whether it returns the newest event first."""
        return bool(self.query.reverse)

    @property
    def _ended(self):
        """Whether no more events will come, even if some are appended."""
        return bool(self.ended)

    @property
    def closed(self):
        """Whether the reader was closed."""
        return bool(self.shut)

    cdef void drop(self) noexcept:
        """Release all maps; no call is in progress."""
        self.ended = True
        self.cursor.let_go()

    cdef object shut_error(self):
        return Closed(f"{self.log.path}: the reader was closed; make another one with log.read({self.cursor.next})")

    cdef void leave_call(self) noexcept:
        self.inside -= 1
        if self.shut and self.inside == 0:
            self.drop()

    @property
    def position(self):
        """Forward: seq of the next event. In reverse: one above it."""
        return self.cursor.next

    @property
    def skipped(self):
        """The number of seqs passed over because they are damaged or gone."""
        return self.cursor.skipped

    cdef Event forward(self):
        """The next event, or None if no more are published."""
        cdef Cursor c = self.cursor
        cdef const char *p
        cdef uint64_t total = 0, seq
        cdef FrameState state
        while True:
            while c.at < c.limit and c.next < c.stop:
                if c.at >= c.edge:
                    c.at_edge()
                    if c.next >= c.stop:
                        break
                p = c.base + c.at
                state = frame_check(p, c.limit - c.at, c.check, &total)
                seq = psk_get64(p + PSK_FRAME_SEQ) if state == FRAME_GOOD else 0
                if state == FRAME_GOOD and is_event(p):
                    if seq != c.next and (seq < c.next or not c.holes):
                        state = FRAME_ORDER
                if state != FRAME_GOOD:
                    if c.is_cut(state):
                        break
                    if not self.query.skip:
                        raise c.damage(state)
                    c.pass_damage()
                elif is_event(p):
                    if seq >= c.stop:
                        self.ended = seq >= c.end
                        return None
                    c.at += total
                    c.next = seq + 1
                    c.last_ns = psk_get64(p + PSK_FRAME_APPEND_NS)
                    if (not self.query.filtered or matches(&self.query.sieve, p)) and not c.is_over(p):
                        return c.event(p)
                elif ends_map(p):
                    c.turn()
                    c.learn_ttl()
                else:
                    if p[PSK_FRAME_KIND] == PSK_KIND_SETTINGS:
                        c.learn_ttl()
                    c.at += total
            if c.next >= c.stop:
                self.ended = c.next >= c.end
                return None
            if not c.more():
                return None

    cdef Event backward(self):
        """The event before the last one returned, or None at the beginning."""
        cdef Cursor c = self.cursor
        cdef const char *p
        cdef uint64_t total = 0, seq
        cdef FrameState state
        cdef Event event
        if c.map is None and not c.last():
            c.check_start()
            self.ended = True
            return None
        while True:
            while c.at == 0:
                if not c.before():
                    if self.query.skip and not c.holes:
                        c.pass_down(c.first_seq())
                    c.check_start()
                    self.ended = True
                    return None
            p = c.base + c.at
            state = frame_check(p, c.limit - c.at, c.check, &total)
            if state != FRAME_GOOD:
                if not self.query.skip:
                    raise c.damage(state)
                c.pass_damage_back()
                continue
            if is_event(p):
                seq = psk_get64(p + PSK_FRAME_SEQ)
                if seq < c.next and self.query.skip and not c.holes:
                    c.pass_down(seq + 1)
                if seq < c.floor:
                    c.check_start()
                    self.ended = True
                    return None
                if seq < c.stop:
                    self.ended = True
                    return None
                if seq < c.next:
                    c.next = seq
                    if c.log_ttl and c.is_older(p):  # and so is every event before it
                        c.check_start()
                        self.ended = True
                        return None
                    if (not self.query.filtered or matches(&self.query.sieve, p)) and not c.is_over(p):
                        event = c.event(p)
                        c.step_back()
                        return event
            c.step_back()

    cdef Event step(self):
        """The next event, or None if there is none yet; while this runs, the map stays."""
        cdef Event event
        if self.shut:
            raise self.shut_error()
        if self.log._closed:
            raise self.log.calls.closed_error(self.log)
        if self.ended:
            return None
        self.inside += 1
        try:
            event = self.step_inside()
        finally:
            self.leave_call()
        if self.left > 0 and event is not None:
            self.left -= 1
            if self.left == 0:
                self.ended = True
        return event

    cdef Event step_inside(self):
        cdef Cursor c = self.cursor
        if self.durable and c.next >= c.stop:
            c.stop = self.durable_stop()
        if self.query.reverse:
            return self.backward()
        if c.held:
            c.tell()
        return self.forward()

    def __next__(self):
        cdef Event event = self.cursor.quick_step()
        cdef int64_t deadline
        if event is not None:
            return event
        event = self.step()
        if event is None and self.query.follows and not self.ended:
            deadline = -1 if self.timeout is None else deadline_after(self.timeout)
            while event is None and not self.ended and self.wait_until(deadline):
                event = self.step()
        if event is None:
            raise StopIteration
        return event

    def take(self, count):
        """Up to ``count`` available events, as a list; it never waits.

        If a damaged event, or another error, follows some events, it returns those, and the next
        call raises.
        """
        events, interrupt = self._take(count)
        if interrupt is not None:
            raise interrupt
        return events

    def _take(self, count):
        """`take`, and what cut it short that would not come again, such as Ctrl-C, or None."""
        cdef list events = []
        cdef Event event
        cdef Py_ssize_t most
        count = whole_number(count, "count")
        if count < 0:
            raise Usage(f"count must be 0 or more, got {count}")
        most = min(count, 1 << 62)
        try:
            while PyList_GET_SIZE(events) < most:
                event = self.cursor.quick_step()
                if event is None:
                    event = self.step()
                if event is None:
                    break
                events.append(event)
        except Exception:
            if not events:
                raise
        except BaseException as interrupt:
            if not events:
                raise
            return events, interrupt
        return events, None

    def wait(self, timeout=None):
        """Wait until something new was published after this position; False if time is up."""
        return self.wait_until(deadline_after(timeout))

    cdef uint64_t durable_stop(self) except? 0:
        """The seq after the last one that may be returned now."""
        cdef char *words
        cdef uint64_t stop
        self.log.follow_fork()
        words = self.log.words_or_null()
        if words != NULL:
            stop = psk_load64(words + PSK_C_DURABLE_SEQ) + 1
        else:
            stop = self.log.calls.durable_seq(self.log) + 1
        return min(stop, self.cursor.end)

    cdef bint has_more(self) except -1:
        cdef uint64_t head = self.log.head()
        cdef Cursor c = self.cursor
        if self.durable:
            return self.durable_stop() > c.next
        if c.map is None:
            return self.log.calls.next_seq(self.log) > c.next
        return c.has_more(head)

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
                raise self.log.calls.closed_error(self.log)
            if self.log.fork_generation != psk_fork_generation:
                self.log.calls.after_fork(self.log)
            words = self.log.words_or_null()
            control = self.log._control
            if words == NULL:
                self.log.calls.look_again(self.log)
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
                    raise self.log.calls.poisoned_error(self.log)  # no more events will become durable
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
            self.log.calls.check_there(self.log)  # no writer wakes the readers of a deleted log
            if nap_ns < 5000000:
                nap_ns = nap_ns * 10 if nap_ns < 1000000 else 5000000


def newest_by_key(Reader reader not None):
    """The newest event of each key that ``reader`` returns from here on, without those that are deleted."""
    cdef dict found = {}
    cdef Event event
    cdef uint16_t n = 0
    cdef uint64_t passed = 0
    cdef const char *at
    cdef object key
    while True:
        event = reader.cursor.quick_step()
        if event is None:
            event = reader.step()
        if event is None:
            return found
        at = frame_key(event.p, &n)
        if n != PSK_NO_KEY:
            key = PyBytes_FromStringAndSize(at, n)
            if event.p[PSK_FRAME_KIND] == PSK_KIND_DELETE:
                found.pop(key, None)
            else:
                found[key] = event
        passed += 1
        if not passed & 0xFFFF:
            PyErr_CheckSignals()
