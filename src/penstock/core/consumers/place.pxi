# Consumers: the mapped file that keeps the place of one, and a reader that moves it.
#
# A commit, as an algorithm. The file has four slots: in each of its two pages, one for plain commits and
# one for durable ones.
#
# 1. Of the two slots of its kind take the one that was not written last; the other stays as it is.
# 2. Store the fields, then the checksum, which covers the next generation.
# 3. Store the generation, with release. Until then the slot has its old generation and a checksum that
#    does not fit it, so a process that reads the file, or opens it after a death here, uses another slot.
#
# A plain commit is done with that: no system call, no allocation. A durable one syncs the file. Since
# plain commits leave the slots of durable ones alone, a loss of power that tears every page during a
# store still leaves the durable slot that was synced last.

cdef extern from *:
    """
    #include <time.h>
    /* Wall clock, as precise as the kernel's tick, and no system call where the vDSO is there. */
    static inline uint64_t psk_coarse_now_ns(void) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME_COARSE, &t);
        return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    }
    """
    uint64_t psk_coarse_now_ns() nogil


def is_byte_held(int fd, uint64_t byte):
    """Whether another open file description has a write lock on a byte: 1, 0, or -errno."""
    return psk_ofd_held(fd, byte)


@cython.final
cdef class ConsumerFile:
    """The file of a consumer that this process owns, mapped for commits."""

    cdef char *base
    cdef readonly int fd
    cdef readonly str path
    cdef uint32_t fork
    cdef bytes last           # the newest slot, as it is in the file
    cdef char *slot           # in `last`
    cdef uint32_t turns[2]    # page of the slot to write next: of plain commits, of durable ones
    cdef uint32_t head_crc    # what the checksum of a slot has come to where its generation begins
    cdef uint32_t headed      # which slots have that start: bit 2 * page + durable
    cdef bint syncing, failed, closing

    def __cinit__(self, int fd, str path, bytes newest, int plain, int durable):
        """Take over ``fd``, which is registered for forks and has the owner's lock.

        ``newest`` is the slot that counts; ``plain`` and ``durable`` are the pages to write next.
        """
        cdef void *at
        self.base = NULL
        self.fd = -1
        self.fork = psk_fork_generation
        if fd < 0 or len(newest) != PSK_PLACE_BYTES or not 0 <= plain <= 1 or not 0 <= durable <= 1:
            raise Internal(f"{path}: the file of a consumer needs a descriptor and a slot, got {fd} and {newest!r}")
        if psk_file_bytes(fd, b"") < PSK_CONSUMER_BYTES:  # a store after the end is a SIGBUS
            raise Internal(f"{path}: the file of a consumer must have {PSK_CONSUMER_BYTES} bytes")
        at = mmap(NULL, PSK_CONSUMER_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
        if at == MAP_FAILED:
            raise OSError(errno, _os.strerror(errno))
        madvise(at, PSK_CONSUMER_BYTES, MADV_DONTFORK)
        self.base = <char *>at
        self.fd = fd
        self.path = path
        self.last = PyBytes_FromStringAndSize(PyBytes_AS_STRING(newest), PSK_PLACE_BYTES)  # its own: it changes
        self.slot = PyBytes_AS_STRING(self.last)
        self.set_clamped(psk_get64(self.slot + PSK_PLACE_CLAMPED))
        self.turns[0] = plain
        self.turns[1] = durable

    def __dealloc__(self):
        self.release()

    def __reduce__(self):
        raise stays_here(self)

    def close(self):
        """Unmap, and give the owner's lock up; at once, or when a sync that is under way has ended."""
        self.closing = True
        if not self.syncing:
            self.release()

    cdef void release(self) noexcept:
        if self.base != NULL and self.fork == psk_fork_generation:
            munmap(self.base, PSK_CONSUMER_BYTES)
            psk_fd_close(self.fd)
        self.base = NULL
        self.fd = -1

    @property
    def here(self):
        """Whether it is open, in this process."""
        return self.base != NULL and self.fork == psk_fork_generation

    @property
    def next(self):
        """Seq up to which, not included, everything was committed."""
        return psk_get64(self.slot + PSK_PLACE_NEXT)

    @property
    def generation(self):
        """How often the place was stored."""
        return psk_get64(self.slot + PSK_PLACE_GENERATION)

    @property
    def clamped(self):
        """The place that a loss of power made void: what the log ended before. 0: none."""
        return psk_get64(self.slot + PSK_PLACE_CLAMPED)

    cdef void store(
        self, uint64_t after, uint64_t position, uint64_t hint, uint64_t now, bint durable
    ) noexcept nogil:
        """Store a place; the file is open, in this process."""
        cdef char *last = self.slot
        cdef uint32_t turn = self.turns[durable], bit = <uint32_t>1 << (2 * turn + durable)
        cdef char *slot = self.base + turn * PSK_PAGE + durable * PSK_PLACE_DURABLE_BYTES
        cdef uint64_t generation = psk_get64(last + PSK_PLACE_GENERATION) + 1
        cdef uint32_t crc
        self.turns[durable] = turn ^ 1
        psk_put64(last + PSK_PLACE_GENERATION, generation)
        psk_put64(last + PSK_PLACE_NEXT, after)
        psk_put64(last + PSK_PLACE_POSITION, position)
        psk_put64(last + PSK_PLACE_HINT, hint)
        psk_put64(last + PSK_PLACE_HEARTBEAT_NS, now)
        crc = ~psk_crc(self.head_crc, last + PSK_PLACE_GENERATION, PSK_PLACE_CRC - PSK_PLACE_GENERATION)
        if not self.headed & bit:
            memcpy(slot, last, PSK_PLACE_GENERATION)
            self.headed |= bit
        psk_put64(slot + PSK_PLACE_NEXT, after)
        psk_put64(slot + PSK_PLACE_POSITION, position)
        psk_put64(slot + PSK_PLACE_HINT, hint)
        psk_put64(slot + PSK_PLACE_HEARTBEAT_NS, now)
        psk_fail(FP_PLACE_FIELDS)
        psk_store32(slot + PSK_PLACE_CRC, crc)
        psk_fail(FP_PLACE_SUMMED)
        psk_store64(slot + PSK_PLACE_GENERATION, generation)
        psk_fail(FP_PLACE_STORED)

    cdef void set_clamped(self, uint64_t was) noexcept:
        """Change the start of slots, which hardly ever does: each gets it with its next store."""
        psk_put64(self.slot + PSK_PLACE_CLAMPED, was)
        self.head_crc = psk_crc(<uint32_t>0xFFFFFFFF, self.slot, PSK_PLACE_GENERATION)
        self.headed = 0

    def clamp(self, uint64_t after, uint64_t was):
        """Store a place that the log still has, and the one that it has not."""
        if not self.here:
            raise Internal(f"{self.path}: the consumer is closed")
        self.set_clamped(was)
        self.store(after, after, 0, psk_coarse_now_ns(), True)


cdef class ConsumerCore:
    """What a consumer does for each event."""

    cdef readonly object log
    cdef ConsumerFile file
    cdef Reader reader
    cdef bint in_ring         # which its reader reads
    cdef Hold hold
    cdef readonly str name
    cdef uint64_t began       # the run's first position: nothing before it can be committed
    cdef uint64_t since       # the first seq that is not committed in this run
    cdef uint64_t passed      # what is before it was handed out, and the caller is done with it
    cdef bint outstanding     # events were handed out that are not committed
    cdef int64_t auto_ns      # how long passed events may wait for a commit; -1: for ever
    cdef uint32_t fork        # the process that has it; 0: it is closed
    cdef uint64_t stored_ns   # when the place was last stored
    cdef uint64_t moved_ns    # when what is committed last moved on
    cdef readonly bint _busy    # a call is under way that moves the reader
    cdef uint64_t handed      # while one is: what is before it was handed out when that began
    cdef public bint _sought    # it was told to seek, and that is not committed yet
    cdef public bint _stepping  # a step of `into` or `track` is under way, and commits when it ends
    cdef public object timeout
    cdef object owed          # what interrupted a call that had events to hand out first; or None

    def __cinit__(self, *args, **kwargs):
        self.auto_ns = -1
        self.name = ""

    def __reduce__(self):
        raise WrongType(
            f"a Consumer belongs to the process that opened it and cannot be copied or pickled; open it with "
            f"log.consumer({self.name!r}) where it is wanted, once it is closed here")

    def _own(self, object log, str name, ConsumerFile file not None, Hold hold, auto_commit):
        """Be the consumer ``name``, whose file this process owns."""
        self.log = log
        self.name = name
        self.file = file
        self.hold = hold
        if auto_commit is not None:
            self.auto_ns = <int64_t>(min(auto_commit, 1e9) * 1e9)
        self.stored_ns = self.moved_ns = psk_coarse_now_ns()

    def _go_to(self, Reader reader not None):
        """Go on where ``reader`` stands."""
        cdef Reader before = self.reader
        self.reader = reader
        self.in_ring = isinstance(reader.cursor, RingCursor)
        self.began = self.since = self.passed = reader.cursor.next
        self.outstanding = False
        if self.file is not None and self.file.here:
            self.fork = psk_fork_generation
        if before is not None and before is not reader:
            before.close()

    @property
    def _file(self):
        return self.file

    @property
    def _reader(self):
        return self.reader

    @property
    def _outstanding(self):
        return bool(self.outstanding)

    @property
    def _commits_alone(self):
        return self.auto_ns >= 0

    @property
    def _since(self):
        return self.since

    def _take_over(self, Hold hold):
        """Have writers of a ring wait for ``hold`` from now on."""
        if self.hold is not None:
            self.hold.release()
        self.hold = hold

    def _release(self, bint all_passed):
        """Give everything up; commit what was passed, if that is done without being asked for."""
        cdef ConsumerFile file = self.file
        if self.fork == psk_fork_generation and self.auto_ns >= 0:
            if all_passed:
                self.passed = self.reader.cursor.next
            if self.passed != psk_get64(file.slot + PSK_PLACE_NEXT):
                self.put(self.passed, False)
        self.fork = 0
        self.file = None
        if self.reader is not None:
            self.reader.close()
        if self.hold is not None:
            self.hold.release()
            self.hold = None
        if file is not None:
            file.close()

    cdef object busy_error(self):
        return Usage(
            f"{self.log.path}: another call of the consumer {self.name!r} is under way, in another thread or below "
            "this one; a consumer is for one thread at a time: give each its own")

    cdef inline void begin(self) noexcept:
        """A call begins that moves the reader."""
        self.handed = self.reader.cursor.next
        self._busy = True

    cdef inline int check_here(self) except -1:
        """Raise if it is closed, or if this is a child of the process that opened it."""
        if self.fork != psk_fork_generation:
            raise self._closed_error()
        return 0

    cdef int put(self, uint64_t after, bint durable) except -1:
        """Store that everything before ``after`` is done with."""
        cdef Cursor cursor = self.reader.cursor
        cdef uint64_t hint = 0, position = cursor.next
        cdef uint64_t now = psk_coarse_now_ns()
        cdef ConsumerFile file = self.file
        if file.base == NULL:
            raise self._closed_error()
        if after == position and cursor.map is not None:
            hint = (<RingCursor>cursor).position() if self.in_ring else position_pack(cursor.map.number, cursor.at)
        if after != psk_get64(file.slot + PSK_PLACE_NEXT):
            self.moved_ns = now
            if psk_get64(file.slot + PSK_PLACE_CLAMPED):
                file.set_clamped(0)
        file.store(after, position, hint, now, durable)
        self.stored_ns = now
        self.since = after
        if after >= position:
            self.outstanding = False
        if self.hold is not None and self.in_ring:
            self.move_hold(<RingCursor>cursor, after, hint)
        return 0

    cdef int move_hold(self, RingCursor ring, uint64_t after, uint64_t position) except -1:
        """Have writers of the ring wait at ``after``, which is at ``position`` if that is known."""
        if position and not ring.is_replaced():
            self.hold.move(position)
        elif after >= self.began:
            self.hold.move(ring.file.position_from(self.log, after))
        return 0

    def __iter__(self):
        return self

    def __next__(self):
        cdef Reader r = self.reader
        cdef Event event
        cdef int64_t deadline
        if self.fork != psk_fork_generation:
            raise self._closed_error()
        if self._busy:
            raise self.busy_error()
        if self.auto_ns >= 0:
            self.pass_on()
        event = r.cursor.quick_step()
        if event is None:
            deadline = -1 if self.timeout is None else deadline_after(self.timeout)
            self.begin()
            try:
                event = self.await_event(deadline)
            finally:
                self._busy = False
            if event is None:
                raise StopIteration
        self.outstanding = True
        return event

    def poll(self, n=100, timeout=0):
        """Up to ``n`` events as a list; it waits ``timeout`` seconds for the first one.

        With ``timeout=None`` it waits for as long as it takes. The list is empty if time is up. What
        was handed out before counts as passed.

        >>> log = penstock.open(path)
        >>> log.extend([b"a", b"b", b"c"])
        range(1, 4)
        >>> with log.consumer("billing") as billing:
        ...     [event.value for event in billing.poll(2)]
        ...     billing.commit()
        [b'a', b'b']
        >>> with log.consumer("billing") as billing:
        ...     [event.value for event in billing.poll()]
        [b'c']
        """
        n = whole_number(n, "n")
        if n < 1:
            raise Usage(f"n must be 1 or more, got {n}")
        return self.collect(min(n, 0x7FFFFFFFFFFFFFFF), deadline_after(timeout))

    def take(self, count):
        """Up to ``count`` events that are there now, as a list; it never waits.

        >>> log = penstock.open(path)
        >>> log.extend([b"a", b"b", b"c"])
        range(1, 4)
        >>> with log.consumer("billing") as billing:
        ...     [event.value for event in billing.take(2)]
        [b'a', b'b']
        """
        count = whole_number(count, "count")
        if count < 0:
            raise Usage(f"count must be 0 or more, got {count}")
        if count == 0:
            self.check_here()
            return []
        return self.collect(min(count, 0x7FFFFFFFFFFFFFFF), 0)

    def wait(self, timeout=None):
        """Wait until something new was published after this position; False if time is up.

        >>> log = penstock.open(path)
        >>> with log.consumer("billing") as billing:
        ...     billing.wait(0), log.append(b"a"), billing.wait(0)
        (False, 1, True)
        """
        cdef int64_t deadline = deadline_after(timeout)
        cdef Reader r
        self.check_here()
        if self._busy:
            raise self.busy_error()
        r = self.reader
        self.begin()
        try:
            while not r.wait_until(self.wake_at(deadline)):
                self.check_here()
                if 0 <= deadline <= psk_monotonic_ns():
                    return False
                self.idle()
        except Closed:
            if self.file is None:
                raise self._closed_error() from None
            raise
        finally:
            self._busy = False
        return True

    cdef list collect(self, uint64_t count, int64_t deadline):
        """Up to ``count`` events, the first of which may come until ``deadline``."""
        self.check_here()
        if self._busy:
            raise self.busy_error()
        self.begin()
        try:
            if self.auto_ns >= 0:
                self.pass_on()
            if self.owed is not None:
                self.pay()
            return self.gather(count, deadline)
        finally:
            self._busy = False

    cdef list gather(self, uint64_t count, int64_t deadline):
        """Likewise.

        What was found is handed out before an error is raised: the next call meets that again. What
        is no error, such as Ctrl-C, would not come again, so it is kept for the next call.
        """
        cdef list events = []
        cdef Event event
        cdef Reader r = self.reader
        cdef uint64_t before
        while <uint64_t>len(events) < count:
            event = r.cursor.quick_step()
            if event is None:
                before = r.cursor.next
                try:
                    event = r.step() if events else self.await_event(deadline)
                except Exception as error:
                    if isinstance(error, MemoryError) and r.cursor.next != before:
                        self._seek_to(before)
                    if not events:
                        raise
                    break
                except BaseException as interrupt:
                    if not events:
                        raise
                    self.owed = interrupt
                    break
                if event is None:
                    break
            events.append(event)
            self.outstanding = True
        if events and self.owed is None:
            try:
                PyErr_CheckSignals()  # one that came meanwhile must not take the events with it
            except BaseException as interrupt:
                self.owed = interrupt
        return events

    cdef int pay(self) except -1:
        """Raise what interrupted the last call."""
        interrupt, self.owed = self.owed, None
        raise interrupt

    cdef Event await_event(self, int64_t deadline):
        """The next event; None if none has come by then, or, with no deadline, if the reader ended."""
        cdef Reader r = self.reader
        cdef Event event
        if self.owed is not None:
            self.pay()
        try:
            event = r.step()
            while event is None and not r.ended:
                self.check_here()
                self.idle()
                if 0 <= deadline <= psk_monotonic_ns():
                    return None
                if r.wait_until(self.wake_at(deadline)):
                    event = r.step()
            if event is None:
                self.check_here()  # the reader may have ended because it was closed
            return event
        except Closed:
            if self.file is None:
                raise self._closed_error() from None
            raise

    cdef int64_t idle_ns(self) noexcept:
        """How long it may sleep before it has something to store."""
        if self.auto_ns >= 0 and self.outstanding and self.auto_ns < PSK_CONSUMER_HEARTBEAT_NS:
            return max(self.auto_ns, 1000000)
        return PSK_CONSUMER_HEARTBEAT_NS

    cdef int64_t wake_at(self, int64_t deadline) noexcept:
        """When a wait that ends at ``deadline`` is to be broken off, for `idle`."""
        cdef int64_t until = psk_monotonic_ns() + self.idle_ns()
        return deadline if 0 <= deadline < until else until

    @property
    def _idle_seconds(self):
        return self.idle_ns() / 1e9

    cdef int idle(self) except -1:
        """There is nothing to hand out: say that it lives; what matched nothing is done with."""
        cdef uint64_t next = self.reader.cursor.next
        if self.auto_ns >= 0 and (self.outstanding or self._sought):
            self.commit_if_due()
        if not self.outstanding and not self._sought:
            if next != psk_get64(self.file.slot + PSK_PLACE_NEXT) or self.is_heartbeat_due():
                self.put(next, False)
        elif self.is_heartbeat_due():
            self.put(psk_get64(self.file.slot + PSK_PLACE_NEXT), False)
        return 0

    cdef inline bint is_due(self, uint64_t since, uint64_t ns) noexcept:
        """Whether ``ns`` have gone by; also if the clock was set back meanwhile."""
        return psk_coarse_now_ns() - since >= ns

    cdef inline bint is_heartbeat_due(self) noexcept:
        return self.is_due(self.stored_ns, PSK_CONSUMER_HEARTBEAT_NS // 2)

    cdef int pass_on(self) except -1:
        """The caller asks for more: it is done with what it was handed."""
        self.passed = self.reader.cursor.next
        if self.outstanding:
            self.commit_if_due()
        return 0

    cdef int commit_if_due(self) except -1:
        if self.is_due(self.moved_ns, <uint64_t>self.auto_ns):
            self._sought = False
            if self.passed != psk_get64(self.file.slot + PSK_PLACE_NEXT):
                self.put(self.passed, False)
        return 0

    def commit(self, seq=None, *, bint durable=False):
        """Store that every event up to ``seq`` is done with; up to the last one handed out, without it.

        It takes a few stores to memory, and survives the death of any process. With ``durable`` it
        survives power loss as well, and takes a sync.

        >>> log = penstock.open(path)
        >>> log.extend([b"a", b"b", b"c"])
        range(1, 4)
        >>> with log.consumer("billing") as billing:
        ...     for event in billing.poll(3):
        ...         billing.commit(event.seq)
        >>> log.consumer("billing").committed
        4
        """
        cdef uint64_t after, handed
        self.check_here()
        if self._stepping:
            raise Usage(
                f"{self.file.path}: the step under way stores the position when it ends; commit() would store it "
                "before its results")
        # What a call under way has found, in another thread or below this one, nobody has seen yet.
        handed = self.handed if self._busy else self.reader.cursor.next
        after = handed
        if seq is not None:
            after = to_seq(seq, "seq")
            if after >= handed:
                raise Usage(
                    f"{self.file.path}: seq must be that of an event that was handed out, got {seq}; "
                    f"the next one to be handed out is {handed}")
            after += 1
            if after < self.began:
                raise Usage(
                    f"{self.file.path}: seq must be {self.began - 1} or more, got {seq}; this consumer began with "
                    f"seq {self.began}: seek() goes back")
        self._sought = False
        if not durable:
            self.put(after, False)
            return
        if self.file.syncing:
            raise Usage(f"{self.file.path}: another thread commits durably just now; a consumer is for one at a time")
        if self.file.failed:
            raise self._poisoned_error()
        self._check_file(self.file.fd, self.file.path)
        self.commit_durably(after)

    cdef int commit_durably(self, uint64_t after) except -1:
        cdef ConsumerFile file = self.file
        self.put(after, True)
        file.syncing = True
        try:
            self._sync_file(file.fd, file.path)
        except BaseException:
            file.failed = True
            raise
        finally:
            file.syncing = False
            if file.closing:
                file.release()
        return 0

    @property
    def position(self):
        """Seq of the next event to look at: everything before it was handed out, or did not match."""
        self.check_here()
        return self.reader.cursor.next

    @property
    def committed(self):
        """The position that was committed last: where the consumer goes on when it is opened again."""
        self.check_here()
        return psk_get64(self.file.slot + PSK_PLACE_NEXT)

    @property
    def skipped(self):
        """How many seqs were passed over, being damaged or gone, as it was told to do."""
        self.check_here()
        return self.reader.cursor.skipped


def count_events(Reader r not None):
    """Read on to the end: how many events that match there are, their bytes, the first one's append_ns."""
    cdef Event event
    cdef uint64_t count = 0, nbytes = 0, first_ns = 0
    while True:
        event = r.cursor.quick_step()
        if event is None:
            event = r.step()
            if event is None:
                return count, nbytes, first_ns
        if count == 0:
            first_ns = psk_get64(event.p + PSK_FRAME_APPEND_NS)
        count += 1
        nbytes += align8(PSK_FRAME_HEADER_BYTES + <uint64_t>psk_get32(event.p) - 1)
        if not count & 0xFFFF:
            PyErr_CheckSignals()
