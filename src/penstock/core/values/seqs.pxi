# Seqs and times as users give them: one rule for every call that takes one.

import operator as _operator

cdef extern from "Python.h":
    bint PyLong_CheckExact(object number)
    long long PyLong_AsLongLongAndOverflow(object number, int *overflow) except? -1

cdef uint64_t SEQ_NONE = 0xFFFFFFFFFFFFFFFFULL  # above every possible seq


cpdef uint64_t to_seq(object given, str what) except? 0:
    """A seq from a user: anything with ``__index__`` except a bool, from 0.

    A number above every possible seq becomes the greatest number, which no event has.
    """
    cdef int overflow = 0
    cdef long long plain
    if PyLong_CheckExact(given):
        plain = PyLong_AsLongLongAndOverflow(given, &overflow)
        if plain >= 0 and not overflow:
            return <uint64_t>plain
    if isinstance(given, bool) or not hasattr(type(given), "__index__"):
        raise WrongType(f"{what} must be a seq (a whole number), got {type(given).__name__}")
    try:
        number = _operator.index(given)
    except TypeError:  # every array has the method, but it fails for most
        raise WrongType(f"{what} must be a seq (a whole number), got {type(given).__name__}") from None
    if number < 0:
        raise Usage(
            f"{what} must be 0 or more, got {number}; only log[-1] and slices count from the end, "
            "and the last seq is log.last_seq"
        )
    return SEQ_NONE if number >= SEQ_NONE else <uint64_t>number


cpdef uint64_t to_count(object given, str what) except? 0:
    """A number of events from a user; one that is too large for any log becomes the greatest."""
    number = whole_number(given, what)
    if number < 0:
        raise Usage(f"{what} must be 0 or more, got {number}")
    return SEQ_NONE if number >= SEQ_NONE else <uint64_t>number


cpdef uint64_t to_expected(object given) except? 0:
    """The last seq that ``expect=`` names."""
    cdef uint64_t seq = to_seq(given, "expect")
    if seq == SEQ_NONE:
        raise Usage(f"expect must be a seq that an event can have, got {given}")
    return seq


class Ns(int):
    """A time in nanoseconds whose unit was checked already, or needs no check."""
