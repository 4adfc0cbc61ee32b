# Waiting for many logs at once: one sleep for any number of logs and waiters.

cdef extern from "waiting.h" nogil:
    int psk_futex_waitv(char **words, uint32_t *seen, int count, int64_t ns)
    int psk_has_waitv
    void psk_ring_bell(int fd)
    const int PSK_WAITV_MAX

cdef int64_t NAP_MIN_NS = 200000    # between two polls of logs without wake-ups
cdef int64_t NAP_MAX_NS = 10000000
cdef int64_t STILL_NAP_NS = 50000000  # of a log without control, whose files must be polled

cdef enum:
    BELLS_MAX = 64

cdef struct WatchedLog:
    char *words          # of its control, which is pinned; NULL: it has none
    const bint *closing  # of that control
    uint64_t head        # the state that was seen when it was armed
    uint64_t durable
    uint64_t poisoned
    uint32_t notify
    bint armed
    bint used
    bint wakes           # writers wake sleepers on its notify word
    bint hot             # its word is among those slept on


cdef inline bint is_changed(const WatchedLog *w) noexcept nogil:
    """Whether a log with control has changed since it was armed."""
    return (
        psk_load64(w.words + PSK_C_HEAD) != w.head
        or psk_load32(w.words + PSK_C_NOTIFY) != w.notify
        or psk_load64(w.words + PSK_C_DURABLE_SEQ) != w.durable
        or psk_load64(w.words + PSK_C_POISONED) != w.poisoned
        or w.closing[0])


@cython.final
cdef class Waits:
    """Sleeps until one of many logs has something new.

    Waiters do this in this order, so that no wake-up is lost:

    1. ``seen = waits.look(slot)``. 2. Read the log. 3. If it has no event, ``waits.arm(slot, seen)``,
    which is False if it has changed since 1. 4. ``waits.sleep(timeout)`` returns the slots with
    news, and disarms them.

    One thread sleeps; any other may look, arm and kick meanwhile. It sleeps on the notify words of up
    to 127 logs, those with the latest news, and polls the words of the others in naps that grow while nothing
    happens. The order of loads and stores is that of a reader that waits alone.
    """

    cdef WatchedLog *all
    cdef WatchedLog *still       # the same, as the sleeping thread has it
    cdef list logs            # by slot; None: the slot is free
    cdef list controls
    cdef list leaving         # controls to unpin once no thread sleeps on them
    cdef list free
    cdef Py_ssize_t room
    cdef bint asleep
    cdef uint32_t kicks, heard
    cdef int32_t *hot         # slots whose words are slept on
    cdef int hot_count, hot_next
    cdef list bells           # eventfds that are written at once when there is news
    cdef list silenced        # those to close once no thread can write to them
    cdef int64_t nap_ns
    cdef uint32_t generation

    def __cinit__(self):
        self.bells = []
        self.silenced = []
        self.logs = []
        self.controls = []
        self.leaving = []
        self.free = []
        self.nap_ns = NAP_MIN_NS
        self.generation = psk_fork_generation
        self.hot = <int32_t *>calloc(PSK_WAITV_MAX, sizeof(int32_t))
        if self.hot == NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef Control control
        if self.controls is not None:
            for control in self.controls:
                if control is not None:
                    control.unpin()
            for control in self.leaving:
                control.unpin()
        free(self.all)
        free(self.still)
        free(self.hot)

    def __reduce__(self):
        raise stays_here(self)

    def bell(self, int fd):
        """Make the sleeping thread write to an eventfd as soon as there is news, and sleep on.

        It does so without the GIL; the receiver gets the news with ``changed``. This object then owns
        the descriptor.
        """
        if len(self.bells) >= BELLS_MAX:
            raise Busy(f"at most {BELLS_MAX} loops of a process can wait for logs, and all places are taken")
        self.bells.append(fd)
        self.kick()

    def silence(self, int fd):
        """Close the eventfd of a bell, once no thread writes to it."""
        if fd in self.bells:
            self.bells.remove(fd)
            if self.asleep:
                self.silenced.append(fd)
                self.kick()
            else:
                psk_fd_close(fd)

    def __len__(self):
        return len(self.logs) - len(self.free)

    def watch(self, HandleCore log not None):
        """A slot for that log, until ``forget``."""
        cdef Py_ssize_t slot, room
        cdef WatchedLog *grown
        if self.free:
            slot = self.free.pop()
            self.logs[slot] = log
        else:
            slot = len(self.logs)
            if slot == self.room:
                room = max(16, 2 * self.room)
                grown = <WatchedLog *>realloc(self.all, room * sizeof(WatchedLog))
                if grown == NULL:
                    raise MemoryError
                memset(grown + self.room, 0, (room - self.room) * sizeof(WatchedLog))
                self.all = grown
                self.room = room
            self.logs.append(log)
            self.controls.append(None)
        memset(&self.all[slot], 0, sizeof(WatchedLog))
        self.all[slot].used = True
        return slot

    def forget(self, Py_ssize_t slot):
        """Stop watching that log."""
        self.check(slot)
        self.let_go(slot)
        self.cool(slot)
        memset(&self.all[slot], 0, sizeof(WatchedLog))
        self.logs[slot] = None
        self.free.append(slot)

    cdef int check(self, Py_ssize_t slot) except -1:
        if not 0 <= slot < len(self.logs) or not self.all[slot].used:
            raise Internal(f"no log is watched in slot {slot}")
        return 0

    cdef int let_go(self, Py_ssize_t slot) except -1:
        cdef Control control = self.controls[slot]
        self.controls[slot] = None
        self.all[slot].words = NULL
        if control is None:
            return 0
        if self.asleep:
            self.leaving.append(control)
        else:
            control.unpin()
        return 0

    cdef int heat(self, Py_ssize_t slot) noexcept:
        """Include the word of a log in the sleep; if there are too many, drop another's."""
        cdef WatchedLog *w = &self.all[slot]
        if w.hot or not w.wakes:
            return 0
        if self.hot_count < PSK_WAITV_MAX - 1:
            self.hot[self.hot_count] = <int32_t>slot
            self.hot_count += 1
        else:
            self.all[self.hot[self.hot_next]].hot = False
            self.hot[self.hot_next] = <int32_t>slot
            self.hot_next = (self.hot_next + 1) % (PSK_WAITV_MAX - 1)
        w.hot = True
        return 0

    cdef int cool(self, Py_ssize_t slot) noexcept:
        cdef int i
        if self.all[slot].hot:
            self.all[slot].hot = False
            for i in range(self.hot_count):
                if self.hot[i] == slot:
                    self.hot_count -= 1
                    self.hot[i] = self.hot[self.hot_count]
                    break
            if self.hot_next >= self.hot_count:
                self.hot_next = 0
        return 0

    def look(self, Py_ssize_t slot):
        """The current state of that log, for ``arm``. `Closed` if it was closed."""
        cdef HandleCore log
        cdef Control control
        cdef WatchedLog *w
        self.check(slot)
        if self.generation != psk_fork_generation:
            self.after_fork()
        log = self.logs[slot]
        if log._closed:
            raise log.calls.closed_error(log)
        log.follow_fork()
        control = log._control if log.words_or_null() != NULL else None
        if control is not self.controls[slot]:
            self.let_go(slot)
            if control is not None:
                control.pin()
                self.controls[slot] = control
                self.all[slot].words = control.words
                self.all[slot].closing = &control.closing
                self.all[slot].wakes = control.writable and not PSK_IS_POLLING
                if self.hot_count < PSK_WAITV_MAX - 1:
                    self.heat(slot)
            self.all[slot].armed = False
        w = &self.all[slot]
        if control is None:
            return 0, log._static_head, 0, 0
        return (
            psk_load32(w.words + PSK_C_NOTIFY), psk_load64(w.words + PSK_C_HEAD),
            psk_load64(w.words + PSK_C_DURABLE_SEQ), psk_load64(w.words + PSK_C_POISONED))

    def arm(self, Py_ssize_t slot, tuple seen):
        """Make ``sleep`` report that log when its state is not ``seen``; False if it is not already."""
        cdef WatchedLog *w
        if self.look(slot) != seen:
            return False
        w = &self.all[slot]
        if w.armed:
            return True  # and news that was not reported yet will be
        w.notify, w.head, w.durable, w.poisoned = seen
        w.armed = True
        if self.asleep:
            self.kick()
        return True

    def kick(self):
        """End the sleep of the other thread."""
        self.kicks += 1
        if self.asleep and not PSK_IS_POLLING:
            psk_futex_wake(&self.kicks, 1)

    cdef list after_fork(self):
        """In a child: the maps of control stayed in the parent. Returns the armed slots."""
        cdef list found = []
        cdef Py_ssize_t slot
        self.generation = psk_fork_generation
        self.asleep = False
        self.leaving = []
        self.hot_count = self.hot_next = 0
        for slot in range(len(self.logs)):
            if self.all[slot].armed:
                found.append(slot)
            self.all[slot].armed = self.all[slot].hot = False
            self.all[slot].words = NULL
            self.controls[slot] = None
        return found

    cdef list news(self):
        """The armed slots whose logs have changed, disarmed."""
        cdef list found = []
        cdef Py_ssize_t slot
        cdef WatchedLog *w
        cdef HandleCore log
        cdef bint changed
        if self.generation != psk_fork_generation:
            return self.after_fork()
        for slot in range(len(self.logs)):
            w = &self.all[slot]
            if not w.armed:
                continue
            log = self.logs[slot]
            if w.words != NULL:
                changed = is_changed(w) or log._control is not self.controls[slot]
            else:
                changed = log._closed or log._static_head != w.head or log._control is not None
            if changed:
                w.armed = False
                if w.words != NULL:
                    self.heat(slot)
                found.append(slot)
        if found:
            self.nap_ns = NAP_MIN_NS
        return found

    def changed(self):
        """The armed slots with news, without a sleep."""
        return self.news()

    def sleep(self, timeout=None):
        """Sleep until an armed log has news, a kick comes, or time is up; the slots with news.

        An empty list is no error: a second may have passed, or a signal may have come.
        """
        cdef int64_t deadline = deadline_after(timeout)
        cdef uint32_t kicks = self.heard
        cdef HandleCore log
        cdef list found = self.news()
        cdef Py_ssize_t slot, count = 0
        cdef bint all_wake = True, looks = False
        cdef int bells[64]
        cdef int bell_count = 0
        cdef WatchedLog *grown
        cdef Control control
        if found or self.asleep:
            return found
        if self.room:
            grown = <WatchedLog *>realloc(self.still, self.room * sizeof(WatchedLog))
            if grown == NULL:
                raise MemoryError
            self.still = grown
        for slot in range(len(self.logs)):
            if not self.all[slot].armed:
                continue
            if self.all[slot].words == NULL:
                looks = True
                continue
            self.still[count] = self.all[slot]
            if not (self.all[slot].wakes and self.all[slot].hot):
                all_wake = False
            count += 1
        for bell_count in range(len(self.bells)):
            bells[bell_count] = self.bells[bell_count]
        bell_count = len(self.bells)
        self.asleep = True
        try:
            with nogil:
                self.rest(count, all_wake, looks, deadline, kicks, bells, bell_count)
        finally:
            self.asleep = False
            for fd in self.silenced:
                psk_fd_close(fd)
            self.silenced = []
            self.heard = self.kicks
            for control in self.leaving:
                control.unpin()
            self.leaving = []
        PyErr_CheckSignals()
        if looks:
            for slot in range(len(self.logs)):
                if self.all[slot].armed and self.all[slot].words == NULL:
                    log = self.logs[slot]
                    if not log._closed:
                        log.calls.look_again(log)
        return self.news()

    cdef int rest(
        self, Py_ssize_t count, bint all_wake, bint looks, int64_t deadline, uint32_t kicks,
        int *bells, int bell_count,
    ) noexcept nogil:
        """The sleep itself, over the ``count`` logs in ``still``, for a second at most."""
        cdef char *words[128]
        cdef uint32_t seen[128]
        cdef int n, failed
        cdef Py_ssize_t i
        cdef int64_t now = psk_monotonic_ns(), left, until = now + PSK_WAIT_SLICE_NS
        cdef bint changed
        if 0 <= deadline < until:
            until = deadline
        if looks and now + STILL_NAP_NS < until:
            until = now + STILL_NAP_NS
        n = self.spread(count, kicks, words, seen)
        while True:
            changed = False
            i = 0
            while i < count:
                if is_changed(&self.still[i]):
                    changed = True
                    count -= 1
                    self.still[i] = self.still[count]
                else:
                    i += 1
            if changed:
                if bell_count == 0:
                    return 0
                for i in range(bell_count):
                    psk_ring_bell(bells[i])
                n = self.spread(count, kicks, words, seen)
            now = psk_monotonic_ns()
            if now >= until or psk_load32(&self.kicks) != kicks:
                return 0
            left = until - now
            if not all_wake or PSK_IS_POLLING or not psk_has_waitv:
                if self.nap_ns < left:
                    left = self.nap_ns
                self.nap_ns = min(NAP_MAX_NS, self.nap_ns + self.nap_ns // 2)
            if PSK_IS_POLLING or not psk_has_waitv:
                psk_sleep_ns(left)
                continue
            failed = psk_futex_waitv(words, seen, n, left)
            if failed != 0 and failed != ETIMEDOUT and psk_has_waitv:
                return 0

    cdef int spread(self, Py_ssize_t count, uint32_t kicks, char **words, uint32_t *seen) noexcept nogil:
        """Mark in control that a thread sleeps; returns the words to sleep on, and their number."""
        cdef int n = 1
        cdef Py_ssize_t i
        cdef WatchedLog *w
        words[0] = <char *>&self.kicks
        seen[0] = kicks
        for i in range(count):
            w = &self.still[i]
            if w.wakes and w.hot and n < PSK_WAITV_MAX:
                if psk_load32(w.words + PSK_C_WAITING) == 0:
                    psk_store32(w.words + PSK_C_WAITING, 1)
                words[n] = w.words + PSK_C_NOTIFY
                seen[n] = w.notify
                n += 1
        psk_full_fence()
        return n
