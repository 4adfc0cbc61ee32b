# HandleCore: what every part of a log handle stands on: control, and how far the log is published.

cdef class HandleCore:
    """Control as this process has it, and the published end, across forks."""

    cdef Control _control
    cdef uint32_t fork_generation
    cdef public uint64_t _static_head  # published end as far as known, for a reader without control
    cdef public bint _closed
    cdef public str path

    def __cinit__(self, *args, **kwargs):
        self.fork_generation = psk_fork_generation
        self._closed = True  # until somebody opened a log
        self.path = ""

    def __reduce__(self):
        raise stays_here(self)

    cdef char *words_or_null(self) noexcept:
        if self._control is None or self._control.generation != psk_fork_generation:
            return NULL
        return self._control.words

    cdef inline uint64_t head(self) except? 0:
        """Published end: number of the segment << 32 | offset in it."""
        cdef char *words
        if self.fork_generation != psk_fork_generation:
            self._after_fork()
        words = self.words_or_null()
        if words != NULL:
            return psk_load64(words + PSK_C_HEAD)
        if self._closed:
            raise self._closed_error()
        return self._static_head

    def _head(self):
        return self.head()

    @property
    def _inherited(self):
        """Whether a fork lies between opening the log and now."""
        return self.fork_generation != psk_fork_generation

    @property
    def _ctl(self):
        return self._control

    @_ctl.setter
    def _ctl(self, Control control):
        self._control = control
        self.fork_generation = psk_fork_generation
