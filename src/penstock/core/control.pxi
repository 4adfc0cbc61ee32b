# Control: the shared words, the token lock, waking readers.

def has_writers(int fd):
    """Whether a handle that may append has the file of ``fd``, which has control, open."""
    return psk_ofd_held_from(fd, PSK_TOKEN_BYTE) != 0


cdef enum:
    TURN_WAIT = 0
    TURN_DONE = 1
    TURN_SYNC = 2
    TURN_POISONED = 3
    TURN_LATE = 4


_TURNS = ("wait", "done", "sync", "poisoned", "late")


cdef void guard_tail(char *words) noexcept nogil:
    """A checkpoint is about to be written: until it is on disk, the one before it must lead up to it.

    The one before is at ``durable_pos``; if it is gone already, it is not needed.
    """
    cdef uint64_t head = psk_get64(words + PSK_C_HEAD)
    cdef uint64_t durable = psk_load64(words + PSK_C_DURABLE_POS)
    if psk_get64(words + PSK_C_TAIL) >= durable:
        psk_store64(words + PSK_C_GUARD, head)
    elif psk_load64(words + PSK_C_GUARD) >= psk_load64(words + PSK_C_GUARD_END):
        psk_store64(words + PSK_C_GUARD, durable)
    psk_store64(words + PSK_C_GUARD_END, head)


cdef int word_wait(char *word, uint32_t seen, int64_t ns) noexcept nogil:
    """Sleep while a shared word is ``seen``, at most ``ns``; 0 if it changed or may have, else errno."""
    cdef int64_t nap_ns = 20000, deadline
    if not PSK_IS_POLLING:
        return psk_futex_wait(word, seen, ns)
    deadline = psk_monotonic_ns() + ns
    while psk_load32(word) == seen:
        if psk_monotonic_ns() + nap_ns > deadline:
            return ETIMEDOUT
        psk_sleep_ns(nap_ns)
        if nap_ns < 1000000:
            nap_ns *= 2
    return 0


cdef class Control:
    """The mapped control page, and this handle's token in it.

    The write lock, as an algorithm:

    1. The word holds 0, or the token of the handle that holds the lock; its top bit says that
       a thread sleeps on it.
    2. To take it: compare-and-swap 0 to the token. If that fails, pause and look again some 200
       times; then set the top bit and sleep on the word in slices of 10 ms.
    3. After a slice without a wake-up, ask the kernel whether the holder's byte is still locked. If
       not, the holder is dead: swap its token for the own one, and mark the log suspect.
    4. A holder that finds the log suspect, or a reservation left open, repairs first.
    5. To release it: exchange for 0; if the top bit was set, wake one sleeper.

    The polling build does the same, but polls the word instead of sleeping on it.

    A handle's token is a byte on which it holds a write lock while it lives. Only write locks count:
    a user who may only read the file can take read locks on any byte of it.
    """

    cdef char *words
    cdef public int fd
    cdef public int held_fd  # the file that openers of the log hold with flock; closed together with the rest
    cdef public int lock_fd  # the same for a file that only writers can open; -1: the log has none
    cdef int owners_fd       # that file again, or the one with the page: where tokens are locked
    cdef public uint32_t token
    cdef readonly bint writable
    cdef uint32_t generation
    cdef uint32_t pins
    cdef uint32_t thread_syncs
    cdef bint closing
    cdef public str log      # the path, for messages
    cdef psk_held writes     # notes of the thread that has the write lock, or the turn to sync,
    cdef psk_held syncs      # while Python code runs under it

    def __cinit__(
        self, int fd, bint writable, bint take_token, uint64_t offset=0, int owners_fd=-1):
        """Map the page at ``offset`` of the file ``fd``, which this object then owns.

        Tokens are locked in the file ``owners_fd``, which outlives this object, or in that file.
        """
        cdef void *at
        cdef int failed
        self.words = NULL
        self.fd = -1
        self.held_fd = -1
        self.lock_fd = -1
        self.owners_fd = -1
        if fd < 0 or (take_token and not writable):
            raise Usage(f"control must have an open file, writable for a token, got {fd}")
        self.generation = psk_fork_generation
        self.fd = fd
        self.owners_fd = owners_fd if owners_fd >= 0 else fd
        self.writable = writable
        if not psk_fd_register(fd):
            _os.close(fd)
            self.fd = -1
            raise MemoryError
        try:
            identify(&self.writes, fd)
        except BaseException:
            self.release()
            raise
        self.syncs = self.writes
        at = mmap(
            NULL, PSK_CONTROL_BYTES, PROT_READ | (PROT_WRITE if writable else 0), MAP_SHARED, fd, offset)
        if at == MAP_FAILED:
            failed = errno
            self.release()
            raise OSError(failed, _os.strerror(failed))
        self.words = <char *>at
        madvise(at, PSK_CONTROL_BYTES, MADV_DONTFORK)
        if take_token:
            self.take_token()

    cdef int take_token(self) except -1:
        """Take a new token, and a lock on its byte.

        A reader may have locked bytes of future tokens, if it can open the file.
        """
        cdef int i, failed = 0
        for i in range(PSK_TOKEN_TRIES):
            self.token = psk_add32(self.words + PSK_C_NEXT_TOKEN, 1)
            if self.token == 0 or self.token > PSK_TOKEN_MAX:
                self.release()
                raise Busy("control has run out of tokens; close the log in every process once")
            failed = psk_ofd_lock(self.owners_fd, PSK_TOKEN_BYTE + self.token)
            if failed == 0:
                if self.owners_fd != self.fd:
                    psk_ofd_lock(self.fd, PSK_TOKEN_BYTE + self.token)  # for readers: a writer is here
                return 0
            if failed != EAGAIN and failed != EACCES:
                self.release()
                raise OSError(failed, _os.strerror(failed))
        self.release()
        raise Busy(
            "a process that may only read the log has locked the bytes with which writers show that they "
            "are alive; find it by the inode of the log's file in /proc/locks, and end it"
        )

    def __dealloc__(self):
        self.release()

    def __reduce__(self):
        raise stays_here(self)

    cdef void release(self) noexcept:
        if self.generation == psk_fork_generation:
            if self.words != NULL:
                munmap(self.words, PSK_CONTROL_BYTES)
            if self.token and self.lock_fd < 0 and self.owners_fd != self.fd:
                psk_ofd_unlock(self.owners_fd, PSK_TOKEN_BYTE + self.token)  # the file stays open
            if self.fd >= 0:
                psk_fd_close(self.fd)
            if self.held_fd >= 0:
                psk_fd_close(self.held_fd)
            if self.lock_fd >= 0:
                psk_fd_close(self.lock_fd)
        self.words = NULL
        self.fd = -1
        self.held_fd = -1
        self.lock_fd = -1
        self.owners_fd = -1

    def close(self):
        """Unmap and close, at once or when the last call that uses it returns."""
        self.closing = True
        if self.pins == 0:
            self.release()
        elif self.writable and self.generation == psk_fork_generation:
            psk_store32(self.words + PSK_C_WAITING, 1)
            self.wake_readers()  # those of this handle find it closed, others check once in vain

    cdef inline void pin(self) noexcept:
        self.pins += 1

    cdef inline void unpin(self) noexcept:
        self.pins -= 1
        if self.closing and self.pins == 0:
            self.release()

    def has_writers(self):
        """Whether a handle that may append is alive, in this or another process."""
        return has_writers(self.owners_fd)

    def is_alone(self):
        """Whether no other handle that may append is alive; an error if the system cannot say."""
        cdef int held = psk_ofd_held_from(self.owners_fd, PSK_TOKEN_BYTE)
        if held < 0:
            raise from_os(OSError(-held, ""), "locking", "control")
        return held == 0

    def is_alive(self, uint32_t token):
        """Whether the handle that has ``token`` is alive."""
        return token == self.token or psk_ofd_held(self.owners_fd, PSK_TOKEN_BYTE + token) != 0

    @property
    def inherited(self):
        """Whether this process was forked after this object was made."""
        return self.generation != psk_fork_generation

    cdef char *live(self) except NULL:
        if self.words == NULL or self.generation != psk_fork_generation:
            raise Closed("the log is closed; open it again")
        return self.words

    cdef char *word_at(self, int at, int nbytes, bint to_write=False) except NULL:
        """The word at offset ``at``, which must be in the page and, to be changed, writable."""
        if at < 0 or at > PSK_CONTROL_BYTES - nbytes or at % nbytes:
            raise Internal(f"control has no word of {nbytes} bytes at offset {at}")
        return (self.live_to_write() if to_write else self.live()) + at

    cdef char *live_to_write(self) except NULL:
        if not self.writable:
            raise Internal("control is mapped for reading only")
        return self.live()

    def uuid(self):
        """The uuid of the log of this control."""
        return PyBytes_FromStringAndSize(self.live() + PSK_C_UUID, 16)

    def get(self, int at):
        """The u64 word at offset ``at``."""
        return psk_load64(self.word_at(at, 8))

    def put(self, int at, uint64_t value):
        """Store the u64 word at offset ``at``, with release."""
        psk_store64(self.word_at(at, 8, True), value)

    def get32(self, int at):
        """The u32 word at offset ``at``."""
        return psk_load32(self.word_at(at, 4))

    def put32(self, int at, uint32_t value):
        """Store the u32 word at offset ``at``, with release."""
        psk_store32(self.word_at(at, 4, True), value)

    def add(self, int at, uint64_t n=1):
        """Add to a counter; for statistics, under the write lock."""
        cdef char *word = self.word_at(at, 8, True)
        psk_store64(word, psk_load64(word) + n)

    cdef inline bint lock_try(self) noexcept nogil:
        return psk_cas32(self.words + PSK_C_LOCK, 0, self.token)

    cdef int lock_wait(self, int64_t deadline_ns) noexcept nogil:
        """Take the lock; OK, TIMED_OUT, or INTERRUPTED every so often. ``deadline_ns`` < 0: none."""
        cdef char *word = self.words + PSK_C_LOCK
        cdef uint32_t seen, holder
        cdef int64_t slice_ns, now
        cdef int i, ended
        for i in range(PSK_LOCK_SPINS):
            if psk_load32(word) == 0 and psk_cas32(word, 0, self.token):
                return OK
            psk_pause()
        slice_ns = PSK_LOCK_SLICE_NS
        if deadline_ns >= 0:
            now = psk_monotonic_ns()
            if now >= deadline_ns:
                slice_ns = 0
            elif deadline_ns - now < slice_ns:
                slice_ns = deadline_ns - now
        while True:
            seen = psk_load32(word)
            if seen == 0:
                if psk_cas32(word, 0, self.token | PSK_LOCK_WAITERS):
                    return OK
                continue
            if not seen & PSK_LOCK_WAITERS:
                if not psk_cas32(word, seen, seen | PSK_LOCK_WAITERS):
                    continue
                seen |= PSK_LOCK_WAITERS
            psk_fail(FP_WAITING)
            ended = word_wait(word, seen, slice_ns) if slice_ns else ETIMEDOUT
            if ended == 0:
                for i in range(PSK_LOCK_SPINS):
                    if psk_load32(word) == 0 and psk_cas32(word, 0, self.token | PSK_LOCK_WAITERS):
                        return OK
                    psk_pause()
                continue
            holder = seen & ~PSK_LOCK_WAITERS
            if holder != self.token and psk_ofd_held(self.owners_fd, PSK_TOKEN_BYTE + holder) == 0:
                if psk_cas32(word, seen, self.token | PSK_LOCK_WAITERS):
                    psk_store32(self.words + PSK_C_SUSPECT, 1)
                    psk_store64(self.words + PSK_C_TAKEOVERS, psk_load64(self.words + PSK_C_TAKEOVERS) + 1)
                    psk_fail(FP_TOOK_OVER)
                    return OK
                continue
            if deadline_ns >= 0 and psk_monotonic_ns() >= deadline_ns:
                return TIMED_OUT
            return INTERRUPTED

    cdef inline void unlock(self) noexcept nogil:
        cdef char *words = self.words
        cdef uint32_t seen
        seen = psk_exchange32(words + PSK_C_LOCK, 0)
        psk_fail(FP_UNLOCKED)
        if PSK_IS_POLLING:
            return  # no thread sleeps on a word there
        if seen & PSK_LOCK_WAITERS:
            psk_futex_wake(words + PSK_C_LOCK, 1)
        psk_fence_after_exchange()
        if psk_load32(words + PSK_C_WAITING):
            self.wake_readers()

    cdef void wake_readers(self) noexcept nogil:
        if psk_exchange32(self.words + PSK_C_WAITING, 0):
            psk_add32(self.words + PSK_C_NOTIFY, 1)
            psk_futex_wake(self.words + PSK_C_NOTIFY, 0x7FFFFFFF)

    cdef int note_write(self) except -1:
        """This thread has the write lock, and runs Python code under it."""
        Py_INCREF(self)
        psk_held_push(&self.writes, PSK_HELD_WRITE)
        return 0

    cdef int unlock_noted(self) except -1:
        """Release the write lock of ``note_write``; in a child of a fork it belongs to the parent."""
        if psk_held_pop(&self.writes):
            Py_DECREF(self)
        if self.generation == psk_fork_generation:
            with nogil:
                self.unlock()
        return 0

    cdef inline int check_not_own(self) except -1:
        """Before waiting for the write lock: raise Usage if this thread has it."""
        if psk_held_count(&self.writes, PSK_HELD_WRITE):
            raise own_wait_error(self.log, "holds the write lock of this log")
        return 0

    def words_when_still(self, timeout=None):
        """The page up to the words that readers wait on, copied under the write lock, for a sync.

        From now on the tail of a ring does not enter the part that recovery needs.
        """
        cdef bytes page = PyBytes_FromStringAndSize(NULL, PSK_C_NOTIFY)
        self.lock_or_raise(timeout)
        if psk_get64(self.words + PSK_C_TAIL):
            guard_tail(self.words)
        memcpy(PyBytes_AS_STRING(page), self.words, PSK_C_NOTIFY)
        self.unlock()
        return page

    def sync_turn(self, int word, uint64_t goal, timeout, run):
        """Wait until ``word`` has reached ``goal``, or until it is this handle's turn to sync.

        Returns "done"; "sync" after it was this handle's turn and ``run()`` has returned;
        "poisoned"; or "late" after ``timeout`` seconds. The call of ``run`` is compiled, so that a
        signal handler's exception cannot prevent the release of the turn. A word in control has the
        token of the handle whose turn it is. If the token shows that this handle is dead, another
        takes the turn. Threads of one handle share a token and are told apart by a flag.
        """
        cdef int64_t deadline = deadline_after(timeout), left
        cdef char *words = self.live_to_write()
        cdef uint32_t seen
        cdef bint rested = False  # slept a full slice and nothing happened
        cdef int found = TURN_WAIT
        self.word_at(word, 8)
        if self.token == 0:
            raise Usage("only a handle that may append can sync")
        self.pin()
        try:
            while found == TURN_WAIT:
                if psk_load64(words + word) < goal and psk_held_count(&self.syncs, PSK_HELD_SYNC):
                    raise own_wait_error(self.log, "syncs this log")
                with nogil:
                    seen = psk_load32(words + PSK_C_SYNC_NOTIFY)
                    if psk_load64(words + word) >= goal:
                        found = TURN_DONE
                    elif psk_load64(words + PSK_C_POISONED):
                        found = TURN_POISONED
                    elif psk_cas32(&self.thread_syncs, 0, 1):
                        if self.sync_take(rested):
                            found = TURN_SYNC
                        else:
                            psk_store32(&self.thread_syncs, 0)
                    if found == TURN_WAIT:
                        left = PSK_LOCK_SLICE_NS
                        if deadline >= 0:
                            if deadline - psk_monotonic_ns() < left:
                                left = deadline - psk_monotonic_ns()
                            if left <= 0 and rested:
                                found = TURN_LATE
                        if found == TURN_WAIT:
                            rested = left <= 0 or word_wait(words + PSK_C_SYNC_NOTIFY, seen, left) != 0
                if found == TURN_WAIT:
                    PyErr_CheckSignals()
                    if self.closing:
                        raise Closed("the log is closed; open it again")
            if found == TURN_SYNC:
                self.pin()  # until sync_end
                Py_INCREF(self)
                psk_held_push(&self.syncs, PSK_HELD_SYNC)
                try:
                    # Another thread may have synced between the look at the word and the turn.
                    if psk_load64(words + word) >= goal:
                        found = TURN_DONE
                    else:
                        run()
                finally:
                    self.sync_end()
        finally:
            self.unpin()
        return _TURNS[found]

    cdef bint sync_take(self, bint ask) noexcept nogil:
        """Take the turn to sync if it is free or, with ``ask``, a dead handle's."""
        cdef char *turn = self.words + PSK_C_SYNC_TURN
        cdef uint32_t holder = psk_load32(turn)
        if holder == 0 or holder == self.token:
            return psk_cas32(turn, holder, self.token)
        if not ask or psk_ofd_held(self.owners_fd, PSK_TOKEN_BYTE + holder) != 0:
            return False
        return psk_cas32(turn, holder, self.token)

    cdef int sync_end(self) except -1:
        """Release the turn to sync, and wake all that wait for the result."""
        psk_held_pop(&self.syncs)
        Py_DECREF(self)
        if self.generation == psk_fork_generation:  # else it is the parent's turn
            psk_store32(self.words + PSK_C_SYNC_TURN, 0)
            psk_store32(&self.thread_syncs, 0)
            psk_add32(self.words + PSK_C_SYNC_NOTIFY, 1)
            psk_futex_wake(self.words + PSK_C_SYNC_NOTIFY, 0x7FFFFFFF)
        self.unpin()
        return say_now()

    def wake(self):
        """Wake the readers that sleep, if any: their condition may have changed."""
        self.live_to_write()
        self.wake_readers()

    def wake_all(self):
        """Wake every reader, whether or not one said that it sleeps."""
        self.live_to_write()
        psk_store32(self.words + PSK_C_WAITING, 1)
        self.wake_readers()

    cdef int lock_or_raise(self, timeout) except -1:
        """Take the write lock, for work in Python. Raises Busy after ``timeout`` seconds."""
        cdef int64_t deadline = deadline_after(timeout)
        cdef int rc
        self.live_to_write()
        if self.lock_try():
            return 0
        self.check_not_own()
        self.pin()
        try:
            while True:
                with nogil:
                    rc = self.lock_wait(deadline)
                if rc == OK:
                    return 0
                if rc == TIMED_OUT:
                    raise Busy(
                        f"{self.log or 'control'}: another process held the write lock for {timeout:.3g} s; "
                        "try again"
                    )
                PyErr_CheckSignals()
        finally:
            self.unpin()

    def locked(self, timeout=None):
        """A context manager that holds the write lock.

        It is compiled, so that a signal handler's exception cannot arise between taking the lock
        and entering the block that gives it up.
        """
        return Locked(self, timeout)

    cdef int wait_change(self, uint32_t seen, int64_t ns, int64_t nap_ns) noexcept nogil:
        """Sleep until the notify word is no longer ``seen``, at most ``ns``."""
        if PSK_IS_POLLING or not self.writable:
            psk_sleep_ns(nap_ns if nap_ns < ns else ns)
            return 0
        return psk_futex_wait(self.words + PSK_C_NOTIFY, seen, ns)


@cython.final
cdef class Locked:
    """The write lock, held for the length of a ``with`` block."""

    cdef Control control
    cdef object timeout
    cdef bint held

    def __cinit__(self, Control control not None, timeout):
        self.control = control
        self.timeout = timeout

    def __reduce__(self):
        raise stays_here(self)

    def __enter__(self):
        if self.held:
            raise Internal("the write lock is held already")
        self.control.pin()
        try:
            self.control.lock_or_raise(self.timeout)
        except BaseException:
            self.control.unpin()
            raise
        self.held = True
        self.control.note_write()

    def __exit__(self, *_):
        if not self.held:
            raise Internal("the write lock is not held")
        self.held = False
        self.control.unlock_noted()
        self.control.unpin()
        say_now()


cdef object seconds_until(int64_t deadline):
    """The time left until a deadline of ``deadline_after``, as a timeout."""
    return None if deadline < 0 else max(0.0, (deadline - psk_monotonic_ns()) / 1e9)


cdef int64_t deadline_after(object timeout) except? -2:
    cdef double seconds
    if timeout is None:
        return -1
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise WrongType(f"timeout must be a number of seconds or None, got {type(timeout).__name__}")
    if not 0 <= timeout:
        raise Usage(f"timeout must be a number of seconds from 0, or None, got {timeout!r}")
    seconds = min(timeout, 1e10)  # practically for ever; an int may be too large for a double
    if seconds > 1e9:
        return -1
    return psk_monotonic_ns() + <int64_t>(seconds * 1e9)
