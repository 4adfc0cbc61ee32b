# Checks a lite3 document before an offset in it is followed.
#
# A document is a tree of nodes of 96 bytes; docs/data.md says what is in one. The package that reads
# it trusts every offset and length, so all of them are checked here first, each byte at most once.

cdef enum:
    L3_NODE_BYTES = 96
    L3_NODE_HASHES = 4      # 7 times u32, ascending
    L3_NODE_SIZE = 32       # entries of the whole tree << 6 | entries of this node
    L3_NODE_ENTRIES = 36    # 7 offsets
    L3_NODE_CHILDREN = 64   # 8 offsets; 0: a leaf
    L3_HEIGHT_MAX = 9
    L3_NESTED_MAX = 64
    L3_NULL = 0
    L3_BOOL = 1
    L3_I64 = 2
    L3_F64 = 3
    L3_BYTES = 4
    L3_STRING = 5
    L3_OBJECT = 6
    L3_ARRAY = 7


cdef struct Lite3:
    const char *start
    uint64_t length
    uint64_t unused   # bytes that belong to no part yet; overlapping parts take too many
    uint64_t count    # entries seen in the current tree
    uint64_t hash     # of the last of them


def lite3_check(bytes data not None):
    """Raise ValueError unless all of ``data`` is a lite3 document."""
    cdef Lite3 d
    cdef uint8_t kind
    d.start = PyBytes_AS_STRING(data)
    d.length = d.unused = <uint64_t>PyBytes_GET_SIZE(data)
    if d.length < L3_NODE_BYTES or d.length > <uint64_t>0xFFFFFFFF:
        raise ValueError(f"{d.length} bytes are not a lite3 document")
    kind = <uint8_t>d.start[0]
    if kind != L3_OBJECT and kind != L3_ARRAY:
        raise ValueError("it begins with neither an object nor an array of lite3")
    lite3_tree(&d, 0, kind, 1)


cdef int lite3_claim(Lite3 *d, uint64_t at, uint64_t nbytes) except -1:
    """Count ``nbytes`` bytes at ``at`` as a part of the document."""
    if nbytes > d.length or at > d.length - nbytes:
        raise ValueError(f"a part at offset {at} runs past the end")
    if nbytes > d.unused:
        raise ValueError(f"a part at offset {at} overlaps another")
    d.unused -= nbytes
    return 0


cdef int lite3_tree(Lite3 *d, uint64_t at, uint8_t kind, int nested) except -1:
    """Check the object or array whose root is at ``at``."""
    cdef uint64_t count = d.count, last = d.hash, seen
    if nested > L3_NESTED_MAX:
        raise ValueError(f"the value must be nested at most {L3_NESTED_MAX} deep")
    d.count = 0
    lite3_node(d, at, kind, nested, 0)
    seen = d.count
    d.count = count
    d.hash = last
    if psk_get32(d.start + at + L3_NODE_SIZE) >> 6 != seen:
        raise ValueError(f"the tree at offset {at} does not have as many entries as it says")
    return 0


cdef int lite3_node(Lite3 *d, uint64_t at, uint8_t kind, int nested, int height) except -1:
    cdef const char *node = d.start + at
    cdef uint32_t count, i, child
    cdef bint leaf
    if at % 4:
        raise ValueError(f"a node at offset {at} is not aligned")
    if height > L3_HEIGHT_MAX:
        raise ValueError(f"the tree at offset {at} is too high")
    lite3_claim(d, at, L3_NODE_BYTES)
    if <uint8_t>node[0] != kind:
        raise ValueError(f"a node at offset {at} has another kind than its tree")
    count = psk_get32(node + L3_NODE_SIZE) & 7
    leaf = psk_get32(node + L3_NODE_CHILDREN) == 0
    if count == 0 and (height or not leaf):
        raise ValueError(f"a node at offset {at} is empty")
    for i in range(count + 1):
        child = psk_get32(node + L3_NODE_CHILDREN + 4 * i)
        if (child == 0) != leaf:
            raise ValueError(f"a node at offset {at} has children in some places only")
        if not leaf:
            if child > d.length - L3_NODE_BYTES:
                raise ValueError(f"a node at offset {at} has a child past the end")
            lite3_node(d, child, kind, nested, height + 1)
        if i < count:
            lite3_entry(
                d, psk_get32(node + L3_NODE_ENTRIES + 4 * i), psk_get32(node + L3_NODE_HASHES + 4 * i),
                kind, nested)
    return 0


cdef int lite3_entry(Lite3 *d, uint64_t at, uint32_t given, uint8_t kind, int nested) except -1:
    """Check a key, if it is an object's, and the value after it."""
    cdef uint64_t tag_bytes, nbytes, i
    cdef uint32_t tag = 0, hash = 5381
    cdef uint8_t type
    cdef const unsigned char *key
    if kind == L3_ARRAY:
        if given != d.count:
            raise ValueError(f"an element at offset {at} is in the wrong place")
    else:
        if d.count and given <= d.hash:
            raise ValueError(f"a key at offset {at} is in the wrong place")
        lite3_claim(d, at, 1)
        tag_bytes = (<uint8_t>d.start[at] & 3) + 1
        lite3_claim(d, at, tag_bytes - 1)
        if at + 4 > d.length or at + tag_bytes > d.length:
            raise ValueError(f"a key at offset {at} runs past the end")
        memcpy(&tag, d.start + at, tag_bytes)
        nbytes = tag >> 2
        if tag_bytes == 3 or tag_bytes != (1 if nbytes < 64 else 2 if nbytes < 16384 else 4):
            raise ValueError(f"a key at offset {at} has a malformed length")
        at += tag_bytes
        lite3_claim(d, at, nbytes)
        key = <const unsigned char *>d.start + at
        if nbytes == 0 or key[nbytes - 1]:
            raise ValueError(f"a key at offset {at} does not end in a zero")
        for i in range(nbytes - 1):
            if key[i] == 0:
                raise ValueError(f"a key at offset {at} has a zero inside")
            hash = hash * 33 + key[i]
        if hash != given:
            raise ValueError(f"a key at offset {at} does not have the hash that its node says")
        check_text(<const char *>key, nbytes - 1, at)
        at += nbytes
    d.count += 1
    d.hash = given
    lite3_claim(d, at, 1)
    type = <uint8_t>d.start[at]
    if type == L3_OBJECT or type == L3_ARRAY:
        d.unused += 1  # the type is the node's first byte
        if d.length < L3_NODE_BYTES or at > d.length - L3_NODE_BYTES:
            raise ValueError(f"a node at offset {at} runs past the end")
        return lite3_tree(d, at, type, nested + 1)
    at += 1
    if type == L3_STRING or type == L3_BYTES:
        lite3_claim(d, at, 4)
        nbytes = psk_get32(d.start + at)
        at += 4
        lite3_claim(d, at, nbytes)
        if type == L3_STRING:
            if nbytes == 0 or d.start[at + nbytes - 1]:
                raise ValueError(f"text at offset {at} does not end in a zero")
            check_text(d.start + at, nbytes - 1, at)
    elif type == L3_I64 or type == L3_F64:
        lite3_claim(d, at, 8)
    elif type == L3_BOOL:
        lite3_claim(d, at, 1)
    elif type != L3_NULL:
        raise ValueError(f"a value at offset {at - 1} has the unknown type {type}")
    return 0


cdef int check_text(const char *start, uint64_t nbytes, uint64_t at) except -1:
    cdef uint64_t i
    cdef uint8_t bits = 0
    for i in range(nbytes):
        bits |= <uint8_t>start[i]
    if bits & 0x80:
        try:
            PyUnicode_DecodeUTF8(start, <Py_ssize_t>nbytes, NULL)
        except UnicodeDecodeError as error:
            raise ValueError(f"text at offset {at} is not UTF-8: {error}") from None
    return 0
