# Archived segments: private memory into which blocks are decompressed before their frames are read.
#
# A block begins with a frame, so a frame is loaded completely or not at all. Memory that was loaded
# never changes, so events point into it like into the map of a file.

cdef enum:
    BLOCK_MISSING = 0
    BLOCK_LOADED = 1
    BLOCK_LOST = 2  # it cannot be read, and its bytes are zeros: for readers that pass over damage


def archived_map(blocks, path, bytes bounds not None):
    """A map of an archived segment. ``bounds`` are where blocks begin, and the last one ends, as u64.

    ``blocks`` has ``load(number)``, which gives the bytes of a block, and ``loaded(map)``, which is
    called when there is one more.
    """
    cdef SegmentMap m = SegmentMap.__new__(SegmentMap, INSIDE)
    cdef Py_ssize_t count = PyBytes_GET_SIZE(bounds) // 8 - 1, i
    cdef const char *ends = PyBytes_AS_STRING(bounds)
    cdef uint64_t nbytes
    cdef void *at
    if not isinstance(path, str) or count < 1 or psk_get64(ends):
        raise Internal("an archived segment has a path, and blocks from 0 on")
    for i in range(count):
        if psk_get64(ends + 8 * i) >= psk_get64(ends + 8 * i + 8):
            raise Internal(f"{path}: its blocks are not in order")
    nbytes = psk_get64(ends + 8 * count)
    at = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
    if at == MAP_FAILED:
        raise from_os(OSError(errno, ""), f"making room for {nbytes} bytes of", path)
    m.base = <char *>at
    m.mapped = m.file_bytes = nbytes
    m.path = path
    m.bounds = bounds
    m.states = bytearray(count)
    m.blocks = blocks
    return m


cdef Py_ssize_t block_of(SegmentMap m, uint64_t at) noexcept:
    """The block with the byte at ``at``; the last one if it is after the end."""
    cdef const char *ends = PyBytes_AS_STRING(m.bounds)
    cdef Py_ssize_t low = 0, high = PyBytes_GET_SIZE(m.bounds) // 8 - 2, middle
    while low < high:
        middle = (low + high + 1) >> 1
        if psk_get64(ends + 8 * middle) <= at:
            low = middle
        else:
            high = middle - 1
    return low


cdef int load_block(SegmentMap m, Py_ssize_t number, bint skip) except -1:
    """Load a block, and note its place as the one that was asked for last.

    With ``skip``, one that cannot be decompressed counts as zeros.
    """
    cdef const char *ends = PyBytes_AS_STRING(m.bounds)
    cdef uint64_t start = psk_get64(ends + 8 * number), stop = psk_get64(ends + 8 * number + 8)
    cdef bytes data
    if m.states[number] == BLOCK_MISSING or (m.states[number] == BLOCK_LOST and not skip):
        try:
            data = m.blocks.load(number)
        except Corrupt:
            if not skip:
                raise
            m.states[number] = BLOCK_LOST
        else:
            if <uint64_t>PyBytes_GET_SIZE(data) != stop - start:
                raise Internal(f"{m.path}: block {number} has {len(data)} bytes, not {stop - start}")
            if m.states[number] != BLOCK_LOADED:  # another thread may have been faster
                memcpy(m.base + start, PyBytes_AS_STRING(data), <size_t>(stop - start))
                m.states[number] = BLOCK_LOADED
                m.loaded += stop - start
                m.blocks.loaded(m)
    m.have_from = start
    m.have_to = stop
    return 0


cdef int need_range(SegmentMap m, uint64_t start, uint64_t stop, bint skip) except -1:
    """Load every block with a byte from ``start`` to ``stop``."""
    cdef Py_ssize_t number
    if m.blocks is None or start >= stop:
        return 0
    for number in range(block_of(m, start), block_of(m, stop - 1) + 1):
        load_block(m, number, skip)
    return 0


cdef inline int need(SegmentMap m, uint64_t at, bint skip) except -1:
    """Load the block with the frame at ``at``."""
    if m.blocks is not None and not m.have_from <= at < m.have_to:
        load_block(m, block_of(m, at), skip)
    return 0


cdef uint64_t loaded_end(SegmentMap m, uint64_t at, uint64_t limit, bint skip) except? 0:
    """Load the block with the frame at ``at``; how far from there a cursor may go."""
    cdef Py_ssize_t number
    if m.blocks is None or at >= limit:
        return limit
    number = block_of(m, at)
    load_block(m, number, skip)
    return min(limit, m.have_to)
