# Merging: the next event of many ordered sources, by time, then by the number of the source.

cdef extern from *:
    """
    /* Have a subclass iterate as its base does. Python would look `__next__` up by its name for each
     * item, since the base has it as a method as well. */
    static inline void psk_inherit_next(PyObject *cls, PyObject *base) {
        ((PyTypeObject *)cls)->tp_iternext = ((PyTypeObject *)base)->tp_iternext;
    }
    """
    void psk_inherit_next(object cls, object base)


def iterates_as_base(cls):
    """Decorate a class of Python's that iterates as its compiled base does: as fast as that."""
    for one in cls.__mro__:
        if one is Merging or one is ConsumerCore:
            psk_inherit_next(cls, one)
            return cls
        if "__next__" in one.__dict__:
            break
    raise Internal(f"{cls!r} must have the __next__ of a compiled base")


cdef class Merging:
    """The events read from many sources and not returned yet, as a heap of their next events.

    ``_more(wait)`` of the class above reads the sources that ran dry. While ``held`` is above 0 no
    event is returned without calling it: one of those sources may have the next event.
    """

    cdef list lists       # by source: its events
    cdef uint64_t *ns     # time of the next event of each
    cdef uint64_t *given  # seq of the last one that was returned; 0: none
    cdef uint32_t *at     # index of the next one in its list
    cdef uint32_t *heap   # the sources that have events
    cdef Py_ssize_t size, count
    cdef bint reverse
    cdef int64_t left     # events that may still be returned; below 0: any number
    cdef public Py_ssize_t held
    cdef public list dry  # sources whose last event was returned, and that were not read since
    cdef public bint _shut
    cdef bint busy        # a call is reading the sources
    cdef object owed      # what interrupted a call that had events to return first; or None
    cdef readonly Py_ssize_t _latest  # the source of the last returned event; -1: none

    def __cinit__(self, Py_ssize_t count=0, bint reverse=False, limit=None, *_, **__):
        if count <= 0 or count > 0x7FFFFFFF:
            raise Usage("a merged reader comes from penstock.merge(a, b)")
        self.lists = [None] * count
        self.count = count
        self.reverse = reverse
        self.left = -1 if limit is None else min(limit, <int64_t>1 << 62)
        self.dry = list(range(count))
        self.held = count
        self._latest = -1
        self.ns = <uint64_t *>calloc(count, sizeof(uint64_t))
        self.given = <uint64_t *>calloc(count, sizeof(uint64_t))
        self.at = <uint32_t *>calloc(count, sizeof(uint32_t))
        self.heap = <uint32_t *>calloc(count, sizeof(uint32_t))
        if self.ns == NULL or self.given == NULL or self.at == NULL or self.heap == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.ns)
        free(self.given)
        free(self.at)
        free(self.heap)

    def __reduce__(self):
        raise WrongType(
            "a merged reader belongs to the process that made it and cannot be copied or pickled; send the "
            "logs, which can be, and merge them there")

    cdef inline bint before(self, uint32_t a, uint32_t b) noexcept:
        if self.ns[a] != self.ns[b]:
            return (self.ns[a] < self.ns[b]) != self.reverse
        return (a < b) != self.reverse

    cdef void sink(self, Py_ssize_t i) noexcept:
        """Move the source at ``i`` of the heap to its place, at ``i`` or below."""
        cdef uint32_t moved = self.heap[i]
        cdef Py_ssize_t child
        while True:
            child = 2 * i + 1
            if child >= self.size:
                break
            if child + 1 < self.size and self.before(self.heap[child + 1], self.heap[child]):
                child += 1
            if not self.before(self.heap[child], moved):
                break
            self.heap[i] = self.heap[child]
            i = child
        self.heap[i] = moved

    cdef void rise(self, Py_ssize_t i) noexcept:
        """The same, at ``i`` or above."""
        cdef uint32_t moved = self.heap[i]
        cdef Py_ssize_t parent
        while i > 0:
            parent = (i - 1) >> 1
            if not self.before(moved, self.heap[parent]):
                break
            self.heap[i] = self.heap[parent]
            i = parent
        self.heap[i] = moved

    cdef int check_source(self, Py_ssize_t source) except -1:
        if not 0 <= source < self.count:
            raise Internal(f"there is no source {source}")
        return 0

    def _put(self, Py_ssize_t source, list events):
        """Add the next events of a source, at least one."""
        self.check_source(source)
        for event in events:
            if not isinstance(event, Event):
                raise WrongType(f"a source of merge must give events, got {type(event).__name__}")
        if self.lists[source] is not None:
            (<list>self.lists[source]).extend(events)
            return
        if not events:
            raise Internal("a source gave no events")
        self.lists[source] = events
        self.at[source] = 0
        self.ns[source] = frame_event_ns((<Event>events[0]).p)
        self.heap[self.size] = <uint32_t>source
        self.size += 1
        self.rise(self.size - 1)

    def _draw(self, Py_ssize_t source, object reader, Py_ssize_t count):
        """Read up to ``count`` events of a source; returns whether there were any.

        What it gave is kept before a signal's handler can run, for an event must not be lost.
        """
        cdef list events
        interrupt = None
        if isinstance(reader, Reader):
            events, interrupt = (<Reader>reader)._take(count)
        else:
            events = list(reader.take(count))
        if not events:
            return False
        self._put(source, events)
        if interrupt is not None:
            raise interrupt
        return True

    def _is_dry(self, Py_ssize_t source):
        """Whether no event of a source is left to return."""
        self.check_source(source)
        return self.lists[source] is None

    def _given(self, Py_ssize_t source):
        """Seq of the last returned event of a source, 0 if there is none; and whether all were returned."""
        self.check_source(source)
        return self.given[source], self.lists[source] is None

    cdef inline Event pop(self):
        """The next event; None if that is not certain."""
        cdef uint32_t source
        cdef list events
        cdef Event event
        if self.held or self.size == 0 or self.left == 0:
            return None
        self._latest = source = self.heap[0]
        events = <list>self.lists[source]
        event = <Event>events[self.at[source]]
        self.at[source] += 1
        self.given[source] = psk_get64(event.p + PSK_FRAME_SEQ)
        if self.left > 0:
            self.left -= 1
        if self.at[source] < <uint32_t>PyList_GET_SIZE(events):
            self.ns[source] = frame_event_ns((<Event>events[self.at[source]]).p)
        else:
            self.lists[source] = None
            self.size -= 1
            self.heap[0] = self.heap[self.size]
            self.dry.append(source)
            self.held += 1
        if self.size > 1:
            self.sink(0)
        return event

    @property
    def _ready(self):
        """Whether the next event is certain."""
        return self.held == 0 and self.size > 0

    @property
    def _has_some(self):
        """Whether events of the sources are left to return."""
        return self.size > 0

    @property
    def _done(self):
        """Whether as many events were returned as requested."""
        return self.left == 0

    def _pop(self):
        """The next event; None if that is not certain."""
        self.check()
        return self.pop()

    cdef inline int check(self) except -1:
        if self._shut:
            raise self._closed_error()
        if self.busy:
            raise Usage(
                "another call of this merged reader is under way, in another thread or below this one; it is "
                "for one thread at a time")
        if self.owed is not None:
            interrupt, self.owed = self.owed, None
            raise interrupt
        return 0

    cdef bint more(self, bint wait) except -1:
        """Have the sources read, so that the next event is certain; False if there is none."""
        self.busy = True
        try:
            return self._more(wait)
        finally:
            self.busy = False

    def __iter__(self):
        return self

    def __next__(self):
        cdef Event event
        self.check()
        event = self.pop()
        if event is None:
            if self.left == 0 or not self.more(True):
                raise StopIteration
            event = self.pop()
            if event is None:
                raise StopIteration
        return event

    def take(self, count):
        """Up to ``count`` available events, as a list; it never waits.

        What was found is returned before an error is raised, by the next call.
        """
        cdef list events = []
        cdef Event event
        count = whole_number(count, "count")
        if count < 0:
            raise Usage(f"count must be 0 or more, got {count}")
        self.check()
        while len(events) < count:
            event = self.pop()
            if event is None:
                if self.left == 0:
                    break
                try:
                    if not self.more(False):
                        break
                except Exception:
                    if not events:
                        raise
                    break  # the next call meets it again
                except BaseException as interrupt:
                    if not events:
                        raise
                    self.owed = interrupt
                    break
                continue
            events.append(event)
        if events and self.owed is None:
            try:
                PyErr_CheckSignals()  # one that came meanwhile must not take the events with it
            except BaseException as interrupt:
                self.owed = interrupt
        return events
