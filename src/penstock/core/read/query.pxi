# Query: the requested events. `penstock.reader` makes it from users' arguments, and checks those.

cdef struct TopicName:
    const char *at
    Py_ssize_t nbytes


cdef struct Sieve:
    # The properties of a requested event, besides its seq.
    bint timed
    uint64_t since_ns, until_ns  # both are inclusive
    const char *topic            # NULL: any; of several, the first
    const char *key
    const char *tags
    Py_ssize_t topic_len, key_len, tags_len
    TopicName *topics                 # several topics, in order; NULL: one, or any
    Py_ssize_t topics_count
    uint32_t topic_bits          # 0: any


cdef bint is_among(const TopicName *names, Py_ssize_t count, const char *at, uint16_t n) noexcept nogil:
    """Whether the ``n`` bytes at ``at`` are one of the names, which are in the order of `bytes`."""
    cdef Py_ssize_t low = 0, high = count, middle
    cdef int order
    while low < high:
        middle = (low + high) >> 1
        order = memcmp(at, names[middle].at, <size_t>min(<Py_ssize_t>n, names[middle].nbytes))
        if order == 0:
            if names[middle].nbytes == n:
                return True
            order = 1 if n > names[middle].nbytes else -1
        if order > 0:
            low = middle + 1
        else:
            high = middle
    return False


cdef inline bint matches(const Sieve *f, const char *p) noexcept nogil:
    """Whether the event at ``p`` is a requested one."""
    cdef uint64_t ns
    cdef uint16_t n
    cdef const char *at
    if f.timed:
        ns = frame_event_ns(p)
        if ns < f.since_ns or ns > f.until_ns:
            return False
    at = frame_topic(p)
    n = psk_get16(p + PSK_FRAME_TOPIC_LEN)
    if f.topic != NULL and (n != f.topic_len or memcmp(at, f.topic, n) != 0):
        if f.topics == NULL or not is_among(f.topics, f.topics_count, at, n):
            return False
    if f.key != NULL:
        at += n + psk_get16(p + PSK_FRAME_HEADERS_LEN)
        n = psk_get16(p + PSK_FRAME_KEY_LEN)
        if n == PSK_NO_KEY or n != f.key_len or memcmp(at, f.key, n) != 0:
            return False
    return f.tags == NULL or frame_has_tags(p, f.tags, <uint32_t>f.tags_len)


@cython.final
cdef class Query:
    """The request of a read, scan or follow, independent of the log's state. It never changes.

    ``start`` and ``stop`` are seqs, "end", or None: the oldest event, and the end of the
    log. Topics, key and tags are bytes as frames have them.
    """

    cdef readonly object start, stop, since_ns, until_ns
    cdef readonly tuple topics    # any of them will do; None: any at all
    cdef readonly bytes key, tags
    cdef readonly bint reverse
    cdef readonly bint follows    # it waits for more
    cdef readonly bint durable    # only what is on disk
    cdef readonly bint check      # the checksum of each frame
    cdef readonly bint skip       # pass over damaged events
    cdef readonly bint pass_gaps  # go on after missing events
    cdef readonly object limit    # of events; None: any number
    cdef Sieve sieve
    cdef bint filtered            # not every event passes the sieve
    cdef readonly bint by_index   # an index, which knows times and topics, can rule out frames
    cdef bint nothing             # no event can match

    def __cinit__(
        self, start=None, stop=None, since_ns=None, until_ns=None, topic=None, bytes key=None,
        bytes tags=None, bint reverse=False, bint follows=False, bint durable=False, bint check=True,
        bint skip=False, bint pass_gaps=False, limit=None,
    ):
        cdef Sieve *f = &self.sieve
        self.start = start
        self.stop = stop
        self.since_ns = since_ns
        self.until_ns = until_ns
        f.timed = since_ns is not None or until_ns is not None
        f.since_ns = 0 if since_ns is None else since_ns
        f.until_ns = U64_MAX
        if until_ns is not None:
            f.until_ns = until_ns
            self.nothing = f.until_ns == 0  # no event is older than 1970
            f.until_ns -= not self.nothing
        if topic is not None:
            self.set_topics((topic,) if isinstance(topic, bytes) else topic)
        if key is not None:
            self.key = key
            f.key = PyBytes_AS_STRING(key)
            f.key_len = PyBytes_GET_SIZE(key)
        if tags is not None:
            self.tags = tags
            f.tags = PyBytes_AS_STRING(tags)
            f.tags_len = PyBytes_GET_SIZE(tags)
        self.by_index = f.timed or topic is not None
        self.filtered = self.by_index or key is not None or tags is not None
        self.reverse = reverse
        self.follows = follows
        self.durable = durable
        self.skip = skip
        self.check = check or skip
        self.pass_gaps = pass_gaps
        self.limit = limit
        if limit == 0:
            self.nothing = True

    cdef int set_topics(self, tuple topics) except -1:
        cdef Sieve *f = &self.sieve
        cdef Py_ssize_t i
        cdef bytes topic
        self.topics = topics = tuple(sorted(set(topics)))
        if not topics:
            self.nothing = True
            return 0
        for topic in topics:
            f.topic_bits |= topic_bit(PyBytes_AS_STRING(topic), <uint16_t>PyBytes_GET_SIZE(topic))
        topic = topics[0]
        f.topic = PyBytes_AS_STRING(topic)
        f.topic_len = PyBytes_GET_SIZE(topic)
        if len(topics) > 1:
            f.topics = <TopicName *>calloc(<size_t>len(topics), sizeof(TopicName))
            if f.topics == NULL:
                raise MemoryError
            for i, topic in enumerate(topics):
                f.topics[i].at = PyBytes_AS_STRING(topic)
                f.topics[i].nbytes = PyBytes_GET_SIZE(topic)
            f.topics_count = len(topics)
        return 0

    def __dealloc__(self):
        free(self.sieve.topics)

    def __reduce__(self):
        return Query, (
            self.start, self.stop, self.since_ns, self.until_ns, self.topics, self.key, self.tags, self.reverse,
            self.follows, self.durable, self.check, self.skip, self.pass_gaps, self.limit)

    def unlimited(self):
        """The same for any number of events."""
        cdef Query other
        kind, asked = self.__reduce__()
        other = kind(*asked[:len(asked) - 1])
        return other

    def __repr__(self):
        return f"<penstock.Query from {self.start!r} to {self.stop!r}>"
