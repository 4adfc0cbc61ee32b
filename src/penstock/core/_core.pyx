"""The compiled part: frames, the token lock, append, batch, seek, scan, wait.

It holds what Python cannot do well and nothing else. Policy (when to roll, what to create, what to
delete) lives in the Python modules above, which are called through the hooks named ``_...`` on
:class:`LogCore`. Nothing between taking and giving up the write lock allocates memory, needs the
GIL or syncs.
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
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_REFCNT, PyObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
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
    enum: PROT_READ, PROT_WRITE, MAP_SHARED, MADV_DONTFORK
    void *MAP_FAILED

cdef extern from *:
    """
    #define psk_bytes_object(start) ((PyObject *)((char *)(start) - offsetof(PyBytesObject, ob_sval)))
    #define psk_pin(o) Py_INCREF(o)
    /* isinstance() asks an object that is none for its __class__ as well, which takes longer. */
    #define psk_is_a(o, type) PyObject_TypeCheck((PyObject *)(o), (PyTypeObject *)(type))
    #define psk_unpin(o) Py_DECREF(o)
    """
    PyObject *psk_bytes_object(const char *start)
    void psk_pin(PyObject *o)
    bint psk_is_a(object o, type kind)
    void psk_unpin(PyObject *o)
    PyObject **PySequence_Fast_ITEMS(object o)

cdef extern from "native.h" nogil:
    const int PSK_IS_POLLING
    enum:
        PSK_PAGE, PSK_FORMAT_VERSION, PSK_TOPIC_BYTES_MAX, PSK_KEY_BYTES_MAX
        PSK_HEADERS_BYTES_MAX, PSK_VALUE_BYTES_MAX
        PSK_FRAME_CRC, PSK_FRAME_SEQ, PSK_FRAME_APPEND_NS, PSK_FRAME_BACK, PSK_FRAME_BATCH_LEFT
        PSK_FRAME_KEY_LEN, PSK_FRAME_HEADERS_LEN, PSK_FRAME_TOPIC_LEN, PSK_FRAME_KIND
        PSK_FRAME_FLAGS, PSK_FRAME_HEADER_BYTES, PSK_NO_KEY, PSK_NULL_HEADER
        PSK_KIND_DATA, PSK_KIND_DELETE, PSK_KIND_ROLL, PSK_KIND_SETTINGS, PSK_KIND_PRODUCER, PSK_KIND_PRODUCERS
        PSK_KIND_WRAP, PSK_KIND_PAD, PSK_KIND_MAX
        PSK_PRODUCER_ID_BYTES_MAX, PSK_PRODUCER_N, PSK_PRODUCER_COUNT, PSK_PRODUCER_PREVIOUS
        PSK_PRODUCER_BYTES
        PSK_FLAG_EVENT_TIME, PSK_FLAGS_KNOWN
        PSK_HEADER_SETTINGS_LEN, PSK_HEADER_SETTINGS
        PSK_INDEX_STEP, PSK_INDEX_ENTRY_BYTES
        PSK_INDEX_ENTRY_OFFSET, PSK_INDEX_ENTRY_TOPICS, PSK_INDEX_ENTRY_SEQ, PSK_INDEX_ENTRY_APPEND_NS
        PSK_INDEX_ENTRY_EVENT_MIN_NS, PSK_INDEX_ENTRY_EVENT_MAX_NS
        PSK_TOPICS_BYTES_MAX
        PSK_CONTROL_BYTES, PSK_C_UUID, PSK_C_LOCK, PSK_C_NEXT_TOKEN, PSK_C_SUSPECT, PSK_C_HEAD, PSK_C_RESERVED
        PSK_C_NEXT_SEQ, PSK_C_LAST_APPEND_NS, PSK_C_LAST_FRAME, PSK_C_ALLOC_END
        PSK_C_BLOCK_OFFSET, PSK_C_BLOCK_TOPICS, PSK_C_EVENT_MAX_NS, PSK_C_BLOCK_SEQ, PSK_C_BLOCK_APPEND_NS
        PSK_C_BLOCK_EVENT_MIN_NS, PSK_C_BLOCK_EVENT_MAX_NS, PSK_C_INDEX_COUNT, PSK_C_FLAGS
        PSK_C_SETTINGS_POS, PSK_C_ACTIVE_BASE, PSK_C_PRODUCER_POS
        PSK_C_NOTIFY, PSK_C_WAITING, PSK_C_POISONED, PSK_C_TAKEOVERS
        PSK_C_DURABLE_SEQ, PSK_C_SYNCING, PSK_C_SYNC_NOTIFY, PSK_C_SYNC_TURN
        PSK_CONTROL_FLAG_MONOTONE, PSK_TOKEN_MAX
        PSK_C_EPOCH, PSK_C_TAIL, PSK_C_GUARD, PSK_C_GUARD_END, PSK_C_STATE_POS, PSK_RING_STATE_REACH, PSK_C_DURABLE_POS, PSK_C_WHEN_FULL, PSK_C_LOST, PSK_C_ROOM_NOTIFY, PSK_C_ROOM_WAITING, PSK_C_HOLDS
        PSK_HOLDS_MAX, PSK_HOLD_BYTES, PSK_WHEN_FULL_DROP, PSK_WHEN_FULL_BLOCK, PSK_WHEN_FULL_ERROR
        PSK_RING_SHARE, PSK_RING_SLOT_BYTES, PSK_RING_CONTROL_OFFSET, PSK_RING_WINDOW_BYTES, PSK_RING_SCAN_BYTES
        PSK_ALLOCATE_AHEAD_BYTES, PSK_POPULATE_AHEAD_BYTES, PSK_POPULATE_CHUNK_BYTES, PSK_POPULATE_STEP_BYTES, PSK_GIL_COPY_BYTES_MAX
        PSK_WRITE_BYTES_MIN, PSK_WRITE_RUN_BYTES, PSK_WRITE_SCRATCH_BYTES, PSK_WRITE_TOGETHER_BYTES, PSK_SUM_LATER_BYTES_MAX
        PSK_LOCK_SPINS, PSK_TOKEN_TRIES, PSK_LOCK_SLICE_NS, PSK_WAIT_SLICE_NS, PSK_LOOK_NS, PSK_SCAN_WINDOW_BYTES
    const uint32_t PSK_LOCK_WAITERS
    const char *PSK_CODEC_NAME
    const char *PSK_TAG_NAME
    const uint64_t PSK_TOKEN_BYTE, PSK_HOLD_BYTE, PSK_EPOCH_MOVED
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

# The numbers that this module was compiled with; a test compares them with layout.py.
LAYOUT = {
    "PAGE": PSK_PAGE,
    "FORMAT_VERSION": PSK_FORMAT_VERSION,
    "TOPIC_BYTES_MAX": PSK_TOPIC_BYTES_MAX,
    "KEY_BYTES_MAX": PSK_KEY_BYTES_MAX,
    "HEADERS_BYTES_MAX": PSK_HEADERS_BYTES_MAX,
    "VALUE_BYTES_MAX": PSK_VALUE_BYTES_MAX,
    "FRAME_CRC": PSK_FRAME_CRC,
    "FRAME_SEQ": PSK_FRAME_SEQ,
    "FRAME_APPEND_NS": PSK_FRAME_APPEND_NS,
    "FRAME_BACK": PSK_FRAME_BACK,
    "FRAME_BATCH_LEFT": PSK_FRAME_BATCH_LEFT,
    "FRAME_KEY_LEN": PSK_FRAME_KEY_LEN,
    "FRAME_HEADERS_LEN": PSK_FRAME_HEADERS_LEN,
    "FRAME_TOPIC_LEN": PSK_FRAME_TOPIC_LEN,
    "FRAME_KIND": PSK_FRAME_KIND,
    "FRAME_FLAGS": PSK_FRAME_FLAGS,
    "FRAME_HEADER_BYTES": PSK_FRAME_HEADER_BYTES,
    "NO_KEY": PSK_NO_KEY,
    "NULL_HEADER": PSK_NULL_HEADER,
    "KIND_DATA": PSK_KIND_DATA,
    "KIND_DELETE": PSK_KIND_DELETE,
    "KIND_ROLL": PSK_KIND_ROLL,
    "KIND_SETTINGS": PSK_KIND_SETTINGS,
    "KIND_PRODUCER": PSK_KIND_PRODUCER,
    "PRODUCER_ID_BYTES_MAX": PSK_PRODUCER_ID_BYTES_MAX,
    "PRODUCER_N": PSK_PRODUCER_N,
    "PRODUCER_COUNT": PSK_PRODUCER_COUNT,
    "PRODUCER_PREVIOUS": PSK_PRODUCER_PREVIOUS,
    "PRODUCER_BYTES": PSK_PRODUCER_BYTES,
    "KIND_MAX": PSK_KIND_MAX,
    "FLAG_EVENT_TIME": PSK_FLAG_EVENT_TIME,
    "FLAGS_KNOWN": PSK_FLAGS_KNOWN,
    "HEADER_SETTINGS_LEN": PSK_HEADER_SETTINGS_LEN,
    "HEADER_SETTINGS": PSK_HEADER_SETTINGS,
    "INDEX_STEP": PSK_INDEX_STEP,
    "INDEX_ENTRY_BYTES": PSK_INDEX_ENTRY_BYTES,
    "INDEX_ENTRY_OFFSET": PSK_INDEX_ENTRY_OFFSET,
    "INDEX_ENTRY_TOPICS": PSK_INDEX_ENTRY_TOPICS,
    "INDEX_ENTRY_SEQ": PSK_INDEX_ENTRY_SEQ,
    "INDEX_ENTRY_APPEND_NS": PSK_INDEX_ENTRY_APPEND_NS,
    "INDEX_ENTRY_EVENT_MIN_NS": PSK_INDEX_ENTRY_EVENT_MIN_NS,
    "INDEX_ENTRY_EVENT_MAX_NS": PSK_INDEX_ENTRY_EVENT_MAX_NS,
    "TOPICS_BYTES_MAX": PSK_TOPICS_BYTES_MAX,
    "CONTROL_BYTES": PSK_CONTROL_BYTES,
    "C_UUID": PSK_C_UUID,
    "C_LOCK": PSK_C_LOCK,
    "C_NEXT_TOKEN": PSK_C_NEXT_TOKEN,
    "C_SUSPECT": PSK_C_SUSPECT,
    "C_HEAD": PSK_C_HEAD,
    "C_RESERVED": PSK_C_RESERVED,
    "C_NEXT_SEQ": PSK_C_NEXT_SEQ,
    "C_LAST_APPEND_NS": PSK_C_LAST_APPEND_NS,
    "C_LAST_FRAME": PSK_C_LAST_FRAME,
    "C_ALLOC_END": PSK_C_ALLOC_END,
    "C_BLOCK_OFFSET": PSK_C_BLOCK_OFFSET,
    "C_BLOCK_TOPICS": PSK_C_BLOCK_TOPICS,
    "C_EVENT_MAX_NS": PSK_C_EVENT_MAX_NS,
    "C_BLOCK_SEQ": PSK_C_BLOCK_SEQ,
    "C_BLOCK_APPEND_NS": PSK_C_BLOCK_APPEND_NS,
    "C_BLOCK_EVENT_MIN_NS": PSK_C_BLOCK_EVENT_MIN_NS,
    "C_BLOCK_EVENT_MAX_NS": PSK_C_BLOCK_EVENT_MAX_NS,
    "C_INDEX_COUNT": PSK_C_INDEX_COUNT,
    "C_FLAGS": PSK_C_FLAGS,
    "C_SETTINGS_POS": PSK_C_SETTINGS_POS,
    "C_ACTIVE_BASE": PSK_C_ACTIVE_BASE,
    "C_PRODUCER_POS": PSK_C_PRODUCER_POS,
    "C_NOTIFY": PSK_C_NOTIFY,
    "C_WAITING": PSK_C_WAITING,
    "C_POISONED": PSK_C_POISONED,
    "C_TAKEOVERS": PSK_C_TAKEOVERS,
    "C_DURABLE_SEQ": PSK_C_DURABLE_SEQ,
    "C_SYNCING": PSK_C_SYNCING,
    "C_SYNC_NOTIFY": PSK_C_SYNC_NOTIFY,
    "C_SYNC_TURN": PSK_C_SYNC_TURN,
    "CONTROL_FLAG_MONOTONE": PSK_CONTROL_FLAG_MONOTONE,
    "TOKEN_MAX": PSK_TOKEN_MAX,
    "POPULATE_AHEAD_BYTES": PSK_POPULATE_AHEAD_BYTES,
    "POPULATE_CHUNK_BYTES": PSK_POPULATE_CHUNK_BYTES,
    "GIL_COPY_BYTES_MAX": PSK_GIL_COPY_BYTES_MAX,
    "LOCK_SPINS": PSK_LOCK_SPINS,
    "TOKEN_TRIES": PSK_TOKEN_TRIES,
    "LOCK_SLICE_NS": PSK_LOCK_SLICE_NS,
    "WAIT_SLICE_NS": PSK_WAIT_SLICE_NS,
    "SCAN_WINDOW_BYTES": PSK_SCAN_WINDOW_BYTES,
    "LOCK_WAITERS": PSK_LOCK_WAITERS,
    "TOKEN_BYTE": PSK_TOKEN_BYTE,
    "HOLD_BYTE": PSK_HOLD_BYTE,
    "EPOCH_MOVED": PSK_EPOCH_MOVED,
    "KIND_PRODUCERS": PSK_KIND_PRODUCERS,
    "KIND_WRAP": PSK_KIND_WRAP,
    "KIND_PAD": PSK_KIND_PAD,
    "C_EPOCH": PSK_C_EPOCH,
    "C_TAIL": PSK_C_TAIL,
    "C_STATE_POS": PSK_C_STATE_POS,
    "C_WHEN_FULL": PSK_C_WHEN_FULL,
    "C_LOST": PSK_C_LOST,
    "C_ROOM_NOTIFY": PSK_C_ROOM_NOTIFY,
    "C_ROOM_WAITING": PSK_C_ROOM_WAITING,
    "C_HOLDS": PSK_C_HOLDS,
    "HOLDS_MAX": PSK_HOLDS_MAX,
    "HOLD_BYTES": PSK_HOLD_BYTES,
    "WHEN_FULL_DROP": PSK_WHEN_FULL_DROP,
    "WHEN_FULL_BLOCK": PSK_WHEN_FULL_BLOCK,
    "WHEN_FULL_ERROR": PSK_WHEN_FULL_ERROR,
    "RING_SHARE": PSK_RING_SHARE,
    "RING_SLOT_BYTES": PSK_RING_SLOT_BYTES,
    "RING_CONTROL_OFFSET": PSK_RING_CONTROL_OFFSET,
    "RING_WINDOW_BYTES": PSK_RING_WINDOW_BYTES,
    "RING_SCAN_BYTES": PSK_RING_SCAN_BYTES,
}

cdef enum:
    OK = 0
    REPAIR = 1       # the last holder died, or left a reservation behind
    ROOM = 2         # the segment is full, or the blocks are not allocated yet
    REMAP = 3        # the log has rolled since this handle mapped its segment
    TIMED_OUT = 4
    INTERRUPTED = 5  # look for signals, then go on waiting
    POISONED = 6
    CONFLICT = 7     # expect= does not hold
    STALE = 8        # another producer appended since the table of producers was read
    COPY = 10        # of a ring: settings or producers have to be appended again first
    TAIL = 11        # of a ring: the oldest frame is damaged
    FULL = 12        # of a ring: what would be overwritten is still wanted
    GONE = 14        # the segment that takes appends was deleted, or its directory
    UNSURE = 13      # of a ring: a checkpoint has to be made sure before the tail moves on

RING_IS_FULL = <int>FULL
RING_IS_UNSURE = <int>UNSURE

cdef uint64_t U64_MAX = <uint64_t>-1
cdef uint64_t OFFSET_MASK = 0xFFFFFFFF

# Fail-points of the compiled paths: number = position here, from 1. Those of the Python paths are
# named where they stand.
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
    FP_NAMED = 16

_FAIL_NAMES = (
    "publish.reserved", "publish.body", "publish.batch_body", "publish.written", "publish.commit",
    "publish.head", "publish.words", "lock.taken", "lock.given", "lock.waiting", "lock.took_over", "repair.zeroing",
    "publish.tail", "publish.wrap", "publish.settled",
)
_fail_name = None


def fail_arm(name, int times=1, int signal=9):
    """Arm one fail-point: passing it the ``times``-th time sends this process ``signal``."""
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
    """How many forks lie between the first process and this one, plus one."""
    return psk_fork_generation


def now_ns():
    """Wall clock, UTC nanoseconds since 1970."""
    return psk_now_ns()


def name_thread(str name):
    """Have the system show the calling thread under ``name``, of which it takes 15 characters."""
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
    """Have ``fd`` closed in children of a fork; ``close_fd`` closes it here."""
    if not psk_fd_register(fd):
        raise MemoryError


def close_fd(int fd):
    """Close a descriptor given to ``own_fd``; in a child of a fork it is closed already."""
    psk_fd_close(fd)


def file_system_magic(int fd):
    """The kernel's number for the type of the file system that holds ``fd``."""
    return psk_fs_magic(fd)


cdef inline uint64_t align8(uint64_t n) noexcept nogil:
    return (n + 7) & ~<uint64_t>7

# What makes an object that only this module may make; Python code cannot get at it.
cdef object INSIDE = object()


cdef object only_inside(object what):
    """The error for an attempt to make such an object from outside."""
    return Usage(f"a {type(what).__name__} is made by Penstock itself and cannot be made by hand")


cdef object stays_here(object what):
    """The error for an attempt to pickle or copy what refers to this process's own memory."""
    return WrongType(
        f"a {type(what).__name__} belongs to the process that made it and cannot be copied or pickled")


include "values/seqs.pxi"
include "frame.pxi"
include "values/codec.pxi"
include "held.pxi"
include "control.pxi"
include "segments/segment.pxi"
include "ring/positions.pxi"
include "ring/hold.pxi"
include "ring/walk.pxi"
include "ring/window.pxi"
include "arrow/interface.pxi"
include "append/parts.pxi"
include "arrow/intake.pxi"
include "append/gather.pxi"
include "append/sink.pxi"
include "append/batch.pxi"
include "append/publish.pxi"
include "handle.pxi"
include "ring/log.pxi"
include "append/append.pxi"
include "append/quick.pxi"
include "append/staged.pxi"
include "reader.pxi"
include "segments/verify.pxi"
include "ring/verify.pxi"
include "arrow/columns.pxi"
include "arrow/rows.pxi"
include "values/json.pxi"
include "values/lite3.pxi"
