# Arrow: the C data interface, for arrays that Penstock hands over and takes.
#
# The structs are fixed by Arrow's C data interface. The holder of one calls its `release` when done;
# a struct whose `release` is NULL has been released or moved elsewhere.

cdef struct ArrowSchema:
    const char *format
    const char *name
    const char *metadata
    int64_t flags
    int64_t n_children
    ArrowSchema **children
    ArrowSchema *dictionary
    void (*release)(ArrowSchema *) noexcept nogil
    void *private_data


cdef struct ArrowArray:
    int64_t length
    int64_t null_count
    int64_t offset
    int64_t n_buffers
    int64_t n_children
    const void **buffers
    ArrowArray **children
    ArrowArray *dictionary
    void (*release)(ArrowArray *) noexcept nogil
    void *private_data


cdef struct ArrowStream:
    int (*get_schema)(ArrowStream *, ArrowSchema *) noexcept nogil
    int (*get_next)(ArrowStream *, ArrowArray *) noexcept nogil
    const char *(*get_last_error)(ArrowStream *) noexcept nogil
    void (*release)(ArrowStream *) noexcept nogil
    void *private_data


cdef enum:
    ARROW_NULLABLE = 2


cdef void schema_release(ArrowSchema *s) noexcept nogil:
    cdef int64_t i
    for i in range(s.n_children):
        if s.children[i] != NULL:
            if s.children[i].release != NULL:
                s.children[i].release(s.children[i])
            free(s.children[i])
    free(s.children)
    free(<void *>s.format)
    free(<void *>s.name)
    s.release = NULL


cdef bint schema_make(
    ArrowSchema *s, const char *format, const char *name, bint nullable, int64_t n_children
) noexcept nogil:
    """Fill in a schema whose children exist, but are empty; False if there is no memory."""
    cdef int64_t i
    memset(s, 0, sizeof(ArrowSchema))
    s.format = strdup(format)
    s.name = strdup(name)
    s.flags = ARROW_NULLABLE if nullable else 0
    s.release = schema_release
    if n_children:
        s.children = <ArrowSchema **>calloc(<size_t>n_children, sizeof(ArrowSchema *))
        if s.children != NULL:
            s.n_children = n_children
            for i in range(n_children):
                s.children[i] = <ArrowSchema *>calloc(1, sizeof(ArrowSchema))
                if s.children[i] == NULL:
                    schema_release(s)
                    return False
    if s.format == NULL or s.name == NULL or s.n_children != n_children:
        schema_release(s)
        return False
    return True


cdef void array_release(ArrowArray *a) noexcept nogil:
    cdef int64_t i
    for i in range(a.n_children):
        if a.children[i] != NULL:
            if a.children[i].release != NULL:
                a.children[i].release(a.children[i])
            free(a.children[i])
    free(a.children)
    for i in range(a.n_buffers):
        psk_column_free(<void *>a.buffers[i])
    free(a.buffers)
    a.release = NULL


cdef bint array_make(
    ArrowArray *a, int64_t length, int64_t nulls, int64_t n_buffers, int64_t n_children
) noexcept nogil:
    """Fill in an array whose buffers are NULL and whose children are empty; False: no memory."""
    cdef int64_t i
    memset(a, 0, sizeof(ArrowArray))
    a.length = length
    a.null_count = nulls
    a.release = array_release
    a.buffers = <const void **>calloc(<size_t>n_buffers, sizeof(void *))
    if a.buffers == NULL:
        return False
    a.n_buffers = n_buffers
    if n_children:
        a.children = <ArrowArray **>calloc(<size_t>n_children, sizeof(ArrowArray *))
        if a.children == NULL:
            array_release(a)
            return False
        a.n_children = n_children
        for i in range(n_children):
            a.children[i] = <ArrowArray *>calloc(1, sizeof(ArrowArray))
            if a.children[i] == NULL:
                array_release(a)
                return False
    return True


cdef void schema_capsule_free(object capsule) noexcept:
    cdef ArrowSchema *s = <ArrowSchema *>PyCapsule_GetPointer(capsule, "arrow_schema")
    if s.release != NULL:
        s.release(s)
    free(s)


cdef void array_capsule_free(object capsule) noexcept:
    cdef ArrowArray *a = <ArrowArray *>PyCapsule_GetPointer(capsule, "arrow_array")
    if a.release != NULL:
        a.release(a)
    free(a)


cdef void stream_capsule_free(object capsule) noexcept:
    cdef ArrowStream *s = <ArrowStream *>PyCapsule_GetPointer(capsule, "arrow_array_stream")
    if s.release != NULL:
        s.release(s)
    free(s)
