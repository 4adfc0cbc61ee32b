# Calls: the Python functions that the compiled core calls, for one handle.

@cython.final
cdef class Calls:
    """The callbacks of one handle, all set at once.

    Each is called with the handle first, where it needs that. None may be bound to the handle, which
    has this table: an unused log would not be released at once. The stub says what
    each takes and gives, and `handle/handle.py` fills the table in.
    """

    # Of the handle itself.
    cdef object after_fork, look_again, become_writer, look_ahead, sync_due, sync, produced
    cdef object codec_name, limits, next_seq, durable_seq
    cdef object closed_error, gone_error, poisoned_error, no_such_seq, other_item
    # Of its storage.
    cdef object check_there, make_ready, make_ready_to_configure, roll_for, confirm, take_hold
    cdef object too_large_error, full_error
    cdef object segment_for, segment_at, segment_before, segment_after, segment_below, lowest_base
    cdef object first_appended

    def __init__(
        self, *, after_fork, look_again, become_writer, look_ahead, sync_due, sync, produced, codec_name, limits,
        next_seq, durable_seq, closed_error, gone_error, poisoned_error, no_such_seq, other_item, check_there,
        make_ready, make_ready_to_configure, roll_for, confirm, take_hold, too_large_error, full_error, segment_for, segment_at,
        segment_before, segment_after, segment_below, lowest_base, first_appended,
    ):
        self.after_fork = after_fork
        self.look_again = look_again
        self.become_writer = become_writer
        self.look_ahead = look_ahead
        self.sync_due = sync_due
        self.sync = sync
        self.produced = produced
        self.codec_name = codec_name
        self.limits = limits
        self.next_seq = next_seq
        self.durable_seq = durable_seq
        self.closed_error = closed_error
        self.gone_error = gone_error
        self.poisoned_error = poisoned_error
        self.no_such_seq = no_such_seq
        self.other_item = other_item
        self.check_there = check_there
        self.make_ready = make_ready
        self.make_ready_to_configure = make_ready_to_configure
        self.roll_for = roll_for
        self.confirm = confirm
        self.take_hold = take_hold
        self.too_large_error = too_large_error
        self.full_error = full_error
        self.segment_for = segment_for
        self.segment_at = segment_at
        self.segment_before = segment_before
        self.segment_after = segment_after
        self.segment_below = segment_below
        self.lowest_base = lowest_base
        self.first_appended = first_appended

    def __reduce__(self):
        raise stays_here(self)


# For a handle that was never opened: each call is a TypeError.
cdef Calls NO_CALLS = Calls.__new__(Calls)
