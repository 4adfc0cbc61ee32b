# Holds: readers that writers of a ring wait for.

cdef bint ring_is_held(char *words, int fd, uint64_t tail, uint32_t when_full) noexcept nogil:
    """Whether frames before ``tail`` are still needed; dead readers are removed."""
    cdef char *hold
    cdef uint64_t position
    cdef int i
    cdef bint some = False
    for i in range(PSK_HOLDS_MAX):
        hold = words + PSK_C_HOLDS + i * PSK_HOLD_BYTES
        position = psk_load64(hold)
        if position == 0:
            continue
        if position < tail:
            if psk_ofd_held(fd, PSK_HOLD_BYTE + <uint64_t>i) != 0:
                return True
            psk_store64(hold, 0)
        else:
            some = True
    return not some and when_full == PSK_WHEN_FULL_ERROR


@cython.no_gc_clear  # it gives its slot back when it ends
cdef class Hold:
    """Makes writers of a ring wait for a reader, as long as this exists.

    A word in control has the reader's position. A lock on a byte of the file, by a separate
    descriptor, says that it is alive; the kernel drops that with the process.
    """

    cdef object __weakref__
    cdef Control control
    cdef int fd, slot

    def __cinit__(self, Control control not None, int fd, int slot):
        """Take over ``fd``, which holds the lock of ``slot``."""
        self.fd = -1
        if fd < 0 or not 0 <= slot < PSK_HOLDS_MAX:
            raise Internal(f"a hold needs an open file and a slot below {PSK_HOLDS_MAX}, got {fd} and {slot}")
        control.live_to_write()
        if not psk_fd_register(fd):
            _os.close(fd)
            raise MemoryError
        self.fd = fd
        self.slot = slot
        self.control = control

    def __dealloc__(self):
        self.release()

    def __reduce__(self):
        raise stays_here(self)

    def close(self):
        """Release the hold."""
        self.release()

    @property
    def position(self):
        """The position of the reader; 0 if it holds nothing."""
        cdef Control control = self.control
        if self.fd < 0 or control.words == NULL or control.generation != psk_fork_generation:
            return 0
        return psk_load64(control.words + PSK_C_HOLDS + self.slot * PSK_HOLD_BYTES)

    def move_over(self, Hold other not None):
        """Take over the hold of ``other``, which then holds nothing: the ring is another file now."""
        if other is self:
            raise Internal("a hold cannot move over to itself")
        self.release()
        self.control = other.control
        self.fd = other.fd
        self.slot = other.slot
        other.fd = -1

    cdef void move(self, uint64_t position) noexcept:
        """Tell writers the reader's current position."""
        cdef Control control = self.control
        cdef char *at
        if self.fd < 0 or control.words == NULL or control.generation != psk_fork_generation:
            return  # it was released, and its slot may belong to another reader
        at = control.words + PSK_C_HOLDS + self.slot * PSK_HOLD_BYTES
        if psk_load64(at) == position:
            return
        psk_store64(at, position)
        psk_full_fence()
        if psk_load32(control.words + PSK_C_ROOM_WAITING):
            if psk_exchange32(control.words + PSK_C_ROOM_WAITING, 0):
                psk_add32(control.words + PSK_C_ROOM_NOTIFY, 1)
                psk_futex_wake(control.words + PSK_C_ROOM_NOTIFY, 0x7FFFFFFF)

    cdef void release(self) noexcept:
        if self.fd >= 0 and self.control.generation == psk_fork_generation:
            self.move(0)
            psk_fd_close(self.fd)
        self.fd = -1


def try_lock_byte(int fd, uint64_t byte):
    """Lock a byte of a file for the open file description of ``fd``; False if it is taken."""
    cdef int failed = psk_ofd_lock(fd, byte)
    if failed == EAGAIN or failed == EACCES:
        return False
    if failed:
        raise OSError(failed, _os.strerror(failed))
    return True
