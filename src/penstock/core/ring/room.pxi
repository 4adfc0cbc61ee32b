# What an append to a ring does besides writing: it waits for room, and repeats the ring's state.

cdef int wait_for_room(HandleCore log, Control control, int64_t deadline, uint32_t seen) except -1:
    """Wait until a reader that holds a ring has moved on, or died; `Full` if time is up."""
    cdef int64_t left = PSK_LOCK_SLICE_NS
    cdef char *words = control.live()
    if psk_load32(words + PSK_C_WHEN_FULL) == PSK_WHEN_FULL_ERROR:
        raise log.calls.full_error(log)
    if deadline >= 0:
        left = min(left, deadline - psk_monotonic_ns())
        if left <= 0:
            raise log.calls.full_error(log)
    control.pin()
    with nogil:
        psk_store32(words + PSK_C_ROOM_WAITING, 1)
        psk_full_fence()
        if PSK_IS_POLLING:
            psk_sleep_ns(min(left, 500000))
        else:
            psk_futex_wait(words + PSK_C_ROOM_NOTIFY, seen, left)
    control.unpin()
    PyErr_CheckSignals()
    return 0


def await_room(HandleCore log not None, Control control not None, timeout, uint32_t seen):
    """Wait for room once in a ring that was full when ``seen`` was loaded; `Full` if time is up."""
    wait_for_room(log, control, -1 if timeout is None else deadline_after(timeout), seen)


def copy_state_due(Control control not None, RingMap m not None, uint64_t nbytes, when_full):
    """Whether its state has to be appended again before an append of ``nbytes``.

    And whether at the start of a lap; and how many bytes the append has to leave free.
    ``when_full``: what new settings say, if the append is of those. Answers as publish does, so
    that it never asks for a copy that will not be made. The caller holds the write lock.
    """
    cdef char *words = control.live()
    cdef RingPlace place
    cdef Rule rule
    cdef Terms terms
    cdef Copies due
    m.sound()
    memset(&terms, 0, sizeof(terms))
    if when_full is not None:
        terms.configures = True
        terms.when_full = when_full
    ring_put(m, nbytes, psk_get64(words + PSK_C_HEAD), NO_COPY, &place)
    rule_for(words, m, &terms, &rule)
    due = copy_due(words, m, &place, rule.reserve)
    return due != NO_COPY, due == COPY_ANEW, rule.reserve


def may_drop(Control control not None, uint64_t tail, when_full):
    """Whether the tail may move there, and why not: a code of publish. Under the write lock.

    ``when_full``: what new settings say, if it is for them.
    """
    cdef char *words = control.live()
    cdef uint32_t rule = psk_get32(words + PSK_C_WHEN_FULL)
    if when_full is not None:
        rule = min(rule, <uint32_t>when_full)
    if rule != PSK_WHEN_FULL_DROP and ring_is_held(words, control.fd, tail, rule):
        return <int>FULL
    if psk_load64(words + PSK_C_GUARD) < tail < psk_load64(words + PSK_C_GUARD_END):
        return <int>UNSURE
    return <int>OK


def copy_state(Control control not None, RingMap m not None, frames, bint new_lap, when_full):
    """Append control frames, as (kind, body) pairs, with ``new_lap`` at the start of a lap.

    ``when_full``: what new settings say, if it is to make room for them. The caller holds the
    write lock. Returns whether it was done, and why not: a code of publish.
    """
    cdef Parts parts[2]
    cdef Terms terms
    cdef uint64_t i = 0, nbytes = 0, seq = 0, end = 0
    cdef int rc
    cdef list pins = []
    m.sound()
    control.live_to_write()
    if not 0 < len(frames) <= 2:
        raise Internal(f"{m.path}: the state must be one frame or two, got {len(frames)}")
    memset(&terms, 0, sizeof(terms))
    terms.copies = COPY_ANEW if new_lap else COPY_HERE
    if when_full is not None:
        terms.clears = True
        terms.when_full = when_full
    for kind, body in frames:
        memset(&parts[i], 0, sizeof(Parts))
        raw = bytes(body)
        pins.append(raw)
        parts[i].kind = kind
        parts[i].key_len = PSK_NO_KEY
        parts[i].fixed = True
        parts[i].value = PyBytes_AS_STRING(raw)
        parts[i].value_len = <uint64_t>PyBytes_GET_SIZE(raw)
        nbytes += align8(PSK_FRAME_HEADER_BYTES + parts[i].value_len)
        i += 1
    rc = publish(
        control.live(), m, control.fd, &terms, parts, NULL, i, nbytes, NULL, 0, &seq, &end)
    return rc
