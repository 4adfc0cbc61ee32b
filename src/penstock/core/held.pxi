# The locks that the running thread holds, so that it never waits for itself.
#
# A signal handler, a finaliser or a callback interrupts the work of its thread. If that was work
# under the write lock of a log, and the handler appends to the same log, it would wait for ever, and
# so would every other process. So code that holds a lock while Python code runs has a note in a list
# of its thread, and code that is about to wait checks that list first. The append itself needs no
# note: no Python code runs between taking the lock and releasing it.
#
# The same list says when log messages must wait (`system/messages.py`): a logging handler may append.

cdef extern from *:
    """
    enum { PSK_HELD_WRITE = 1, PSK_HELD_SYNC = 2, PSK_HELD_OPEN = 4, PSK_HELD_GUARD = 8 };

    typedef struct psk_held {
        struct psk_held *below;
        uint64_t device, inode;
        uint32_t generation;
        int kind;
    } psk_held;

    static __thread psk_held *psk_held_top;
    static __thread int psk_held_unsaid;

    static void psk_held_push(psk_held *held, int kind) {
        held->kind = kind;
        held->generation = psk_fork_generation;
        held->below = psk_held_top;
        psk_held_top = held;
    }

    static int psk_held_pop(psk_held *held) {
        psk_held **at = &psk_held_top;
        while (*at && *at != held)
            at = &(*at)->below;
        if (!*at)
            return 0;
        *at = held->below;
        return 1;
    }

    /* A child does not hold what the parent of the fork held. */
    static int psk_held_any(void) {
        for (psk_held *held = psk_held_top; held; held = held->below)
            if (held->generation == psk_fork_generation)
                return 1;
        return 0;
    }

    static int psk_held_count(const psk_held *like, int kind) {
        int count = 0;
        for (psk_held *held = psk_held_top; held; held = held->below)
            count += held->kind == kind && held->generation == psk_fork_generation
                && held->device == like->device && held->inode == like->inode;
        return count;
    }
    """
    enum: PSK_HELD_WRITE, PSK_HELD_SYNC, PSK_HELD_OPEN, PSK_HELD_GUARD
    ctypedef struct psk_held:
        uint64_t device
        uint64_t inode
        int kind
    int psk_held_unsaid
    void psk_held_push(psk_held *held, int kind)
    bint psk_held_pop(psk_held *held)
    bint psk_held_any()
    int psk_held_count(const psk_held *like, int kind)


def holds_anything():
    """Whether this thread holds a lock that it must not wait under."""
    return psk_held_any()


def check_holds_nothing(log, bint closing=False):
    """Before waiting for a thread that may need any lock: raise Usage if this thread holds one.

    ``closing``: it is inside the call that closes the log.
    """
    if closing:
        raise own_wait_error(log, "closes this log")
    if psk_held_any():
        raise own_wait_error(log, "holds a lock of a log")


def say_later():
    """Whether a message must wait until this thread holds nothing; then it is logged."""
    global psk_held_unsaid
    if not psk_held_any():
        return False
    psk_held_unsaid = 1
    return True


cdef int say_now() except -1:
    """Write deferred messages, if nothing is held any more."""
    global psk_held_unsaid
    if psk_held_unsaid and not psk_held_any():
        psk_held_unsaid = 0
        _import_module("penstock.system.messages").make_calls()
    return 0


cdef int identify(psk_held *held, int fd) except -1:
    """Note which file ``fd`` refers to."""
    status = _os.fstat(fd)
    held.device = status.st_dev
    held.inode = status.st_ino
    return 0


cdef object own_wait_error(object log, str doing):
    """The error for a thread that would wait for itself."""
    return Usage(
        f"{log or 'control'}: this thread already {doing}; a call inside a signal handler, logging handler, "
        "finaliser or callback cannot wait for the code that it interrupted: make it in another thread, "
        "or after that code has returned"
    )


@cython.final
cdef class FlockBlock:
    """A ``with`` block in which this thread has a log exclusively, or is about to, by flock."""

    cdef psk_held held
    cdef bint entered

    def __cinit__(self, int fd):
        identify(&self.held, fd)

    def __reduce__(self):
        raise stays_here(self)

    def __enter__(self):
        if self.entered:
            raise Usage("this block has been entered already")
        self.entered = True
        Py_INCREF(self)
        psk_held_push(&self.held, PSK_HELD_OPEN)

    def __exit__(self, *_):
        if psk_held_pop(&self.held):
            self.entered = False
            Py_DECREF(self)
        say_now()


def check_not_opening(int fd, path):
    """Before waiting for a flock inside `FlockBlock`: raise Usage if the thread is in two such blocks.

    It would wait for itself.
    """
    cdef psk_held held
    identify(&held, fd)
    if psk_held_count(&held, PSK_HELD_OPEN) > 1:
        raise own_wait_error(path, "is opening, closing or repairing this log")


@cython.final
cdef class Guard:
    """A lock between the threads of a process. A thread that has it already gets Usage at once.

    With ``again`` it may enter more than once.
    """

    cdef object lock
    cdef bint again
    cdef uint32_t depth
    cdef psk_held held

    def __cinit__(self, bint again=False):
        self.lock = _threading.RLock()
        self.again = again

    def __reduce__(self):
        raise stays_here(self)

    def __enter__(self):
        self.lock.acquire()
        if self.depth and not self.again:
            self.lock.release()
            raise own_wait_error("this handle", "is inside another call of it")
        if self.depth == 0:
            Py_INCREF(self)
            psk_held_push(&self.held, PSK_HELD_GUARD)
        self.depth += 1

    def __exit__(self, *_):
        if self.depth == 0:
            raise Usage("this block has not been entered")
        self.depth -= 1
        if self.depth == 0 and psk_held_pop(&self.held):
            Py_DECREF(self)
        self.lock.release()
        say_now()
