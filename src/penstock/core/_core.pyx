"""The compiled part: frames, the token lock, append, batch, seek, scan, wait.

It has only what Python cannot do well. Policy (when to roll, what to create, what to delete) is in
the Python modules above, which are called through each handle's :class:`Calls`. Nothing between
taking and releasing the write lock allocates memory, needs the GIL or syncs.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_SIMPLE,
    Py_buffer,
    PyBuffer_FillInfo,
    PyBuffer_Release,
    PyObject_CheckBuffer,
    PyObject_GetBuffer,
)
from cpython.bytes cimport (
    PyBytes_AS_STRING,
    PyBytes_Check,
    PyBytes_CheckExact,
    PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE,
)
from cpython.dict cimport PyDict_CheckExact
from cpython.exc cimport PyErr_CheckSignals
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.memoryview cimport PyMemoryView_FromObject
from cpython.number cimport PyIndex_Check, PyNumber_Index
from cpython.object cimport PyObject_GenericGetAttr
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from cpython.unicode cimport PyUnicode_CheckExact, PyUnicode_DecodeUTF8
from libc.errno cimport EACCES, EAGAIN, EINTR, EINVAL, EIO, ENOMEM, ETIMEDOUT, errno
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.math cimport isfinite
from libc.string cimport memchr, memcmp, memcpy, memmove, memset, strcmp, strdup

import datetime as _datetime
from enum import Enum as _Enum
import os as _os
import re as _re
import sys as _sys
import threading as _threading
from importlib import import_module as _import_module
from types import GenericAlias as _GenericAlias

from penstock.arguments import check_choice
from penstock.errors import (
    BadData,
    Busy,
    Closed,
    Conflict,
    Corrupt,
    Full,
    Gap,
    Internal,
    NotFound,
    PenstockError,
    Poisoned,
    TooLarge,
    UnsupportedVersion,
    Usage,
    WrongType,
    from_os,
)

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    PyObject *PyTuple_GET_ITEM(object t, Py_ssize_t i)
    Py_ssize_t PyTuple_GET_SIZE(object t)

cdef extern from *:
    """
    /* Whether a JSON text may have a null in it. For such short texts memmem(3) takes longer to get
       ready than this takes to look. */
    static inline int psk_has_null(const char *text, size_t n) {
        const char *end = text + n;
        while (n >= 4 && (text = (const char *)memchr(text, 'n', (size_t)(end - text) - 3))) {
            if (text[1] == 'u' && text[2] == 'l' && text[3] == 'l')
                return 1;
            text++;
            if (end - text < 4)
                return 0;
        }
        return 0;
    }
    """
    bint psk_has_null(const char *text, size_t n) nogil

cdef extern from "<sys/mman.h>" nogil:
    void *mmap(void *addr, size_t length, int prot, int flags, int fd, int64_t offset)
    int munmap(void *addr, size_t length)
    int madvise(void *addr, size_t length, int advice)
    enum: PROT_READ, PROT_WRITE, MAP_SHARED, MAP_PRIVATE, MAP_ANONYMOUS, MAP_NORESERVE, MADV_DONTFORK
    void *MAP_FAILED

cdef extern from *:
    """
    /* isinstance() also asks an object of another type for its __class__, which takes longer. */
    #define psk_is_a(o, type) PyObject_TypeCheck((PyObject *)(o), (PyTypeObject *)(type))
    """
    bint psk_is_a(object o, type kind)

include "layout.pxi"

cdef extern from "filter.h" nogil:
    enum:
        PSK_COUNTERS
    uint64_t psk_key_hash(const char *p, size_t n)
    void psk_count_hash(uint8_t *counters, uint64_t hash)
    uint64_t psk_counted(const uint8_t *counters)
    uint64_t psk_filter_pages(uint64_t keys)
    uint64_t psk_filter_page(uint64_t hash, uint64_t pages)
    void psk_filter_add(char *pages_at, uint64_t pages, uint64_t hash)
    bint psk_filter_has(const char *page, uint64_t pages, uint64_t hash)
    void psk_filter_seal(
        char *page, const char *uuid, uint64_t base_seq, uint32_t generation, uint32_t number, uint32_t pages)
    bint psk_filter_is_good(
        const char *page, const char *uuid, uint64_t base_seq, uint32_t generation, uint32_t number, uint32_t pages)

cdef extern from "compact.h" nogil:
    enum:
        PSK_SPILL_PARTS
        PSK_SPILL_ROOM
    const uint64_t PSK_COUNT_MASK
    const uint64_t PSK_ENDS_KEY
    const uint64_t PSK_STAYS
    ctypedef struct psk_slot:
        uint64_t hash
    ctypedef struct psk_record:
        uint64_t hash
        uint64_t rest
        uint64_t where
    ctypedef struct psk_survey:
        psk_slot *slots
        uint64_t count, used, slots_max, versions, spilled, bits_count
        int depth, full, crowded
        unsigned char *bits
        psk_record *buffers
        uint32_t *filled
    void psk_secret_hash(const uint64_t *secret, const char *p, size_t n, uint64_t *hash, uint64_t *rest)
    psk_slot *psk_survey_slot(const psk_survey *s, uint64_t hash)
    bint psk_survey_room(psk_survey *s, uint64_t more)
    void psk_survey_mark(psk_survey *s, uint64_t where, bint lives)
    uint64_t psk_next_bit(const unsigned char *bits, uint64_t bit, uint64_t end)
    void psk_survey_take(psk_survey *s, const psk_record *r)

cdef extern from "native.h" nogil:
    const int PSK_IS_POLLING
    enum:
        PSK_BATCH_LEFT_SHIFT, PSK_HEADERS_LEN_SHIFT, PSK_TOPIC_LEN_SHIFT, PSK_KIND_SHIFT, PSK_FLAGS_SHIFT
    struct psk_number:
        const char *name
        uint64_t value
    struct psk_text:
        const char *name
        const char *value
    const psk_number *psk_numbers
    const psk_text *psk_texts
    uint32_t psk_load32(const void *p)
    uint64_t psk_load64(const void *p)
    void psk_store32(void *p, uint32_t v)
    void psk_store64(void *p, uint64_t v)
    uint32_t psk_exchange32(void *p, uint32_t v)
    uint32_t psk_add32(void *p, uint32_t v)
    bint psk_cas32(void *p, uint32_t seen, uint32_t v)
    void psk_release_fence()
    void psk_acquire_fence()
    void psk_full_fence()
    void psk_fence_after_exchange()
    void psk_pause()
    uint16_t psk_get16(const void *p)
    uint32_t psk_get32(const void *p)
    uint64_t psk_get64(const void *p)
    void psk_put16(void *p, uint16_t v)
    void psk_put32(void *p, uint32_t v)
    void psk_put64(void *p, uint64_t v)
    uint64_t psk_now_ns()
    bint psk_is_linked(int fd)
    int64_t psk_monotonic_ns()
    void psk_sleep_ns(int64_t ns)
    int psk_crc_hardware
    uint32_t psk_crc(uint32_t c, const void *p, size_t n)
    uint32_t psk_crc_soft(uint32_t c, const unsigned char *p, size_t n)
    void psk_crc_four(uint32_t *c, const char **p, const size_t *n)
    bint psk_put_four(
        char **dst, const char **src, size_t n, uint64_t seq, uint64_t append_ns, const uint64_t *links,
        uint64_t shape)
    void psk_copy(void *dst, const void *src, size_t n)
    uint32_t psk_crc_copy(uint32_t c, void *dst, const void *src, size_t n)
    int psk_futex_wait(void *word, uint32_t seen, int64_t ns)
    void psk_futex_wake(void *word, int count)
    int psk_ofd_lock(int fd, uint64_t byte)
    void psk_ofd_unlock(int fd, uint64_t byte)
    int psk_ofd_held(int fd, uint64_t byte)
    int psk_ofd_held_from(int fd, uint64_t start)
    uint32_t psk_fork_generation
    bint psk_fd_register(int fd)
    void psk_fd_close(int fd)
    int psk_fail_armed, psk_fail_left, psk_fail_signal
    void psk_fail(int number)
    int64_t psk_read_all(int fd, uint64_t offset, void *to, size_t n)
    void psk_write_behind(int fd, uint64_t offset, uint64_t nbytes)
    bint psk_write_all(
        int fd, uint64_t offset, const void *a, size_t a_len, const void *b, size_t b_len,
        const void *c, size_t c_len)
    int64_t psk_file_bytes(int fd, const char *path)
    void psk_prefetch(const void *p)
    void psk_copy16(void *to, const void *from_)
    void psk_let_go(char *start, size_t nbytes)
    void psk_touch_singly(char *start, size_t nbytes)
    void psk_populate_read(const char *start, size_t nbytes)
    void psk_redirty(char *base, uint64_t start, uint64_t stop)
    int psk_fallocate(int fd, int mode, int64_t offset, int64_t nbytes)
    uint64_t psk_fs_magic(int fd)
    void psk_setup()

cdef extern from "memory.h" nogil:
    void *psk_column_resize(void *p, uint64_t room)
    void psk_column_free(void *p)
    void psk_column_warm(void *p, uint64_t start, uint64_t end)
    const uint64_t PSK_LONG_BYTES
    uint64_t psk_kept_release()

cdef extern from "threads.h" nogil:
    void psk_thread_name(const char *name)
    void psk_populate(char *start, size_t nbytes)
    ctypedef struct psk_filler:
        pass
    psk_filler *psk_filler_start()
    void psk_filler_ask(psk_filler *f, char *map, char *start, char *end, char *index, char *index_end)
    void psk_filler_hold(psk_filler *f)
    char *psk_filler_ready(psk_filler *f)
    void psk_filler_forget(psk_filler *f)
    void psk_filler_idle(psk_filler *f)
    void psk_filler_stop(psk_filler *f)
    void psk_filler_free(psk_filler *f)
    ctypedef struct psk_aide:
        char *scratch
        char *rest
    psk_aide *psk_aide_new()
    void psk_aide_share(psk_aide *a, void (*work)(void *job, char *scratch) noexcept nogil, void *job)
    void psk_aide_stop(psk_aide *a)
    void psk_aide_free(psk_aide *a)

psk_setup()

POLLING = bool(PSK_IS_POLLING)
CRC_HARDWARE = bool(psk_crc_hardware)


def layout():
    """The numbers and names that this module was compiled with; a test compares them with layout.py."""
    cdef dict found = {}
    cdef const psk_number *number = psk_numbers
    cdef const psk_text *text = psk_texts
    while number.name != NULL:
        found[number.name.decode()] = number.value
        number += 1
    while text.name != NULL:
        found[text.name.decode()] = <bytes>text.value
        text += 1
    return found


cdef enum:
    OK = 0
    REPAIR = 1       # the last holder died, or left a reservation
    ROOM = 2         # the segment is full, or the blocks are not allocated yet
    REMAP = 3        # the log has rolled since this handle mapped its segment
    TIMED_OUT = 4
    INTERRUPTED = 5  # check for signals, then wait on
    POISONED = 6
    CONFLICT = 7     # expect= does not match
    STALE = 8        # another producer appended since the table was read, or settings have changed
    COPY = 10        # of a ring: settings or producers must be appended again first
    TAIL = 11        # of a ring: the oldest frame is damaged
    FULL = 12        # of a ring: events that would be overwritten are still needed
    GONE = 14        # the segment that takes appends was deleted, or its directory
    UNSURE = 13      # of a ring: a checkpoint must be made safe before the tail moves on

RING_IS_FULL = <int>FULL
RING_IS_UNSURE = <int>UNSURE

cdef uint64_t U64_MAX = <uint64_t>-1

# Fail-points of the compiled paths: number = position here, from 1. Those of the Python paths are
# named in place.
cdef enum:
    FP_RESERVED = 1
    FP_BODY = 2
    FP_BATCH_BODY = 3
    FP_WRITTEN = 4
    FP_COMMIT = 5
    FP_HEAD = 6
    FP_WORDS = 7
    FP_LOCKED = 8
    FP_UNLOCKED = 9
    FP_WAITING = 10
    FP_TOOK_OVER = 11
    FP_ZERO = 12
    FP_TAIL = 13
    FP_WRAP = 14
    FP_SETTLED = 15
    FP_PLACE_FIELDS = 16
    FP_PLACE_SUMMED = 17
    FP_PLACE_STORED = 18
    FP_NAMED = 19

_FAIL_NAMES = (
    "publish.reserved", "publish.body", "publish.batch_body", "publish.written", "publish.commit",
    "publish.head", "publish.words", "lock.taken", "lock.given", "lock.waiting", "lock.took_over", "repair.zeroing",
    "publish.tail", "publish.wrap", "publish.settled", "consumer.fields", "consumer.summed", "consumer.stored",
)
_fail_name = None


def fail_arm(name, int times=1, int signal=9):
    """Arm one fail-point: reaching it the ``times``-th time sends this process ``signal``."""
    global psk_fail_armed, psk_fail_left, psk_fail_signal, _fail_name
    psk_fail_left = times
    psk_fail_signal = signal
    if name in _FAIL_NAMES:
        _fail_name = None
        psk_fail_armed = _FAIL_NAMES.index(name) + 1
    else:
        _fail_name = name
        psk_fail_armed = FP_NAMED


def fail_point(name):
    """A fail-point in Python code."""
    if psk_fail_armed == FP_NAMED and _fail_name == name:
        psk_fail(FP_NAMED)


def crc32c(data, uint32_t value=0, *, bint hardware=True):
    """CRC32C of ``data``, continuing from ``value``.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    >>> crc32c(b"6789", crc32c(b"12345")) == crc32c(b"123456789")
    True
    """
    cdef Py_buffer view
    cdef uint32_t c = ~value
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            if hardware:
                c = psk_crc(c, view.buf, <size_t>view.len)
            else:
                c = psk_crc_soft(c, <const unsigned char *>view.buf, <size_t>view.len)
    finally:
        PyBuffer_Release(&view)
    return <uint32_t>~c


def fork_generation():
    """One plus the number of forks between the first process and this one."""
    return psk_fork_generation


def release_memory():
    """Release the memory that is kept for the next scan to the system; return how many bytes that was.

    Buffers of tables and batches that you dropped are kept, at most 256 MiB of them in a process, as
    a scan that finds some is up to 1.7 times as fast. Those still in use stay as they are.

    >>> kept = penstock.release_memory()
    >>> penstock.release_memory()
    0
    """
    cdef uint64_t nbytes
    with nogil:
        nbytes = psk_kept_release()
    return nbytes


def now_ns():
    """Wall clock, UTC nanoseconds since 1970."""
    return psk_now_ns()


def name_thread(str name):
    """Set the name of the calling thread in the system, which takes 15 characters of ``name``."""
    psk_thread_name(name[:15].encode())


def fallocate(int fd, int mode, int64_t offset, int64_t nbytes):
    """fallocate(2); raises OSError."""
    cdef int failed
    with nogil:
        failed = psk_fallocate(fd, mode, offset, nbytes)
        while failed == EINTR:
            failed = psk_fallocate(fd, mode, offset, nbytes)
    if failed:
        raise OSError(failed, _os.strerror(failed))


def own_fd(int fd):
    """Register ``fd`` to be closed in children of a fork; ``close_fd`` closes it here."""
    if not psk_fd_register(fd):
        raise MemoryError


def close_fd(int fd):
    """Close a descriptor given to ``own_fd``; in a child of a fork it is closed already."""
    psk_fd_close(fd)


def file_system_magic(int fd):
    """The kernel's number for the type of the file system of ``fd``."""
    return psk_fs_magic(fd)


cdef inline uint64_t align8(uint64_t n) noexcept nogil:
    return (n + 7) & ~<uint64_t>7


cdef struct SegmentPosition:
    # A place in a log of segments, as in layout.py.
    uint64_t number
    uint64_t offset


cdef inline SegmentPosition position_unpack(uint64_t word) noexcept nogil:
    cdef SegmentPosition found
    found.number = word >> 32
    found.offset = <uint32_t>word
    return found


cdef inline uint64_t position_pack(uint64_t number, uint64_t offset) noexcept nogil:
    return number << 32 | offset


# The key for making objects that only this module may make; Python code cannot reach it.
cdef object INSIDE = object()


cdef object only_inside(object what):
    """The error for an attempt by other code to make such an object."""
    return Usage(f"a {type(what).__name__} is made by Penstock and cannot be made by other code")


cdef object stays_here(object what):
    """The error for an attempt to pickle or copy an object that refers to this process's memory."""
    return WrongType(
        f"a {type(what).__name__} belongs to the process that made it and cannot be copied or pickled")


include "values/seqs.pxi"
include "frame.pxi"
include "values/codec.pxi"
include "values/marks.pxi"
include "held.pxi"
include "control.pxi"
include "segments/segment.pxi"
include "segments/archived.pxi"
include "segments/filter.pxi"
include "ring/positions.pxi"
include "ring/hold.pxi"
include "ring/walk.pxi"
include "ring/window.pxi"
include "read/query.pxi"
include "read/cursor.pxi"
include "arrow/interface.pxi"
include "append/parts.pxi"
include "arrow/intake.pxi"
include "append/gather.pxi"
include "append/sink.pxi"
include "append/batch.pxi"
include "append/publish.pxi"
include "calls.pxi"
include "handle.pxi"
include "ring/file.pxi"
include "ring/room.pxi"
include "ring/copy.pxi"
include "append/append.pxi"
include "append/quick.pxi"
include "append/staged.pxi"
include "read/segments.pxi"
include "read/ring.pxi"
include "read/reader.pxi"
include "waiting.pxi"
include "merging.pxi"
include "consumers/place.pxi"
include "segments/verify.pxi"
include "ring/verify.pxi"
include "arrow/columns.pxi"
include "arrow/rows.pxi"
include "segments/compact.pxi"
include "values/json.pxi"
include "values/lines.pxi"
include "values/lite3.pxi"
