# JSON: find values that are the text of one object each, so that they can be parsed as one text.

cdef bint is_json_space(char c) noexcept nogil:
    return c == b" " or c == b"\n" or c == b"\r" or c == b"\t"


cdef bint is_object_text(const char *at, const char *end) noexcept nogil:
    """Whether brackets open and close as in one JSON object, and there is nothing around it.

    A parser checks what is between them; it cannot read past the end of such a text.
    """
    cdef int64_t depth = 0
    cdef bint quoted = False
    if not is_utf8(at, <uint64_t>(end - at)):
        return False
    while at < end and is_json_space(at[0]):
        at += 1
    if at == end or at[0] != b"{":
        return False
    while at < end:
        if quoted:
            if at[0] == b"\\":
                at += 1
            elif at[0] == b'"':
                quoted = False
        elif at[0] == b'"':
            quoted = True
        elif at[0] == b"{" or at[0] == b"[":
            depth += 1
        elif at[0] == b"}" or at[0] == b"]":
            depth -= 1
            if depth == 0:
                break
        at += 1
    if at >= end:
        return False
    at += 1
    while at < end and is_json_space(at[0]):
        at += 1
    return at == end


def not_objects(offsets, data, Py_ssize_t first, Py_ssize_t count):
    """The rows, of ``count`` from ``first`` on, whose bytes are not the text of one JSON object.

    ``offsets`` are 32 bits each and point into ``data``, as in an Arrow array of binary.
    """
    cdef const int32_t[::1] at = memoryview(offsets).cast("B").cast("i")
    cdef const unsigned char[::1] text = memoryview(data).cast("B")
    cdef const char *start = NULL
    cdef Py_ssize_t i, size = text.shape[0]
    cdef list found = []
    cdef bint good
    if first < 0 or count < 0 or first + count + 1 > at.shape[0]:
        raise Internal("rows that do not exist")
    if size:
        start = <const char *>&text[0]
    for i in range(first, first + count):
        if at[i] < 0 or at[i + 1] < at[i] or at[i + 1] > size:
            raise Internal("offsets that point outside")
        with nogil:
            good = start != NULL and is_object_text(start + at[i], start + at[i + 1])
        if not good:
            found.append(i - first)
    return found
