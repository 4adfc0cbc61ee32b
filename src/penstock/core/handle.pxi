# HandleCore: the base of every part of a log handle: control, and how far the log is published.

cdef class HandleCore:
    """Control in this process, and the published end, across forks."""

    cdef Control _control
    cdef uint64_t control_turn         # how often control was set: what belongs to another turn is old
    cdef uint32_t fork_generation
    cdef public uint64_t _static_head  # last known published end, for a reader without control
    cdef public bint _closed
    cdef public str path
    cdef Calls calls
    cdef Finder finder                 # of the kind of log that it is

    def __cinit__(self, *args, **kwargs):
        self.fork_generation = psk_fork_generation
        self.calls = NO_CALLS
        self.finder = NO_FINDER
        self._closed = True  # until a log is open
        self.path = ""

    def __reduce__(self):
        raise stays_here(self)

    cdef char *words_or_null(self) noexcept:
        if self._control is None or self._control.generation != psk_fork_generation:
            return NULL
        return self._control.words

    cdef inline int follow_fork(self) except -1:
        """In a child of the process that opened the log, open it again."""
        if self.fork_generation != psk_fork_generation:
            self.calls.after_fork(self)
        return 0

    cdef inline uint64_t head(self) except? 0:
        """Published end: a `SegmentPosition` as one word; in a ring, a position."""
        cdef char *words
        self.follow_fork()
        words = self.words_or_null()
        if words != NULL:
            return psk_load64(words + PSK_C_HEAD)
        if self._closed:
            raise self.calls.closed_error(self)
        return self._static_head

    def _head(self):
        return self.head()

    @property
    def _inherited(self):
        """Whether this process was forked after the log was opened."""
        return self.fork_generation != psk_fork_generation

    @property
    def _ctl(self):
        return self._control

    @_ctl.setter
    def _ctl(self, Control control):
        self._control = control
        self.control_turn += 1
        self.fork_generation = psk_fork_generation

    def _connect(self, Calls calls not None, Finder finder not None):
        """Say, once, what is called in Python and where events are found."""
        if self.calls is not NO_CALLS:
            raise Internal(f"{self.path}: this handle has its callbacks already")
        self.calls = calls
        self.finder = finder

    cdef RingFile ring_file(self):
        if not isinstance(self.finder, RingFile):
            raise Usage(f"{self.path or 'this handle'}: is not a ring")
        return <RingFile>self.finder
