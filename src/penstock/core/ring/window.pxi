# A ring's file in memory, and copies of its frames that are not overwritten.

cdef class Window(SegmentMap):
    """Frames copied from a ring, which are not overwritten. They begin at offset 8."""

    cdef size_t room
    cdef RingMap ring
    cdef bint cut   # the last frame may be partial: more of the lap follows

    def __cinit__(self, inside=None):  # more parameters would cost a tuple for each window
        if inside is not INSIDE:
            raise only_inside(self)

    def __dealloc__(self):
        free(self.base)
        self.base = NULL

    cdef char *index_for(self, LogCore log, uint64_t *count) except NULL:
        count[0] = 0
        return self.base


cdef enum:
    WINDOW_START = 8


cdef Window new_window(RingMap m, size_t nbytes, Window spare):
    """A window with room for ``nbytes``: ``spare``, which has no other user, if it is large enough."""
    cdef Window w = spare
    if w is None or w.room < nbytes + WINDOW_START:
        w = Window.__new__(Window, INSIDE)
        w.base = <char *>malloc(nbytes + WINDOW_START)
        if w.base == NULL:
            raise MemoryError
        w.room = nbytes + WINDOW_START
        w.ring = m
        w.path = m.path
        w.settings = m.settings
        w.coder = m.coder
        w.base_seq = 1
        w.generation = m.generation
    w.data_offset = WINDOW_START
    w.mapped = w.file_bytes = nbytes + WINDOW_START
    w.cut = False
    return w


cdef class RingMap(RingWalk):
    """A ring's file in memory. The checked header fields are given by the ring modules."""

    def epoch(self):
        """A word that changes before anything else in the file, except while control is live."""
        if not self.has(0, PSK_RING_CONTROL_OFFSET + PSK_CONTROL_BYTES):
            raise Internal(f"{self.path}: has no control")
        return psk_load64(self.base + PSK_RING_CONTROL_OFFSET + PSK_C_EPOCH)

    cdef uint64_t borne_out(self, uint64_t at, uint64_t head, uint64_t next_seq) noexcept:
        """Seq of the frame at a position, if the next frame agrees; else 0."""
        cdef const char *p = self.base + ring_offset(self, at)
        cdef uint64_t seq = psk_get64(p + PSK_FRAME_SEQ), after = ring_after(self, at, head), follows
        if after == 0:
            return 0
        follows = next_seq
        if after < head:
            follows = psk_get64(self.base + ring_offset(self, after) + PSK_FRAME_SEQ)
        if seq + is_event(p) == follows or (self.generation and seq + is_event(p) < follows <= next_seq):
            return seq
        return 0
