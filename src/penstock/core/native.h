/* What Cython cannot express: atomics, CRC32C, futex, locks of open file descriptions, the fork
 * registry, and fail-points. No policy, and no Python object. */
#ifndef PENSTOCK_NATIVE_H
#define PENSTOCK_NATIVE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "layout.h"

/* Neighbouring fields of a frame's header are stored as one word; these are their places in it. */
#define PSK_CRC_SHIFT (8 * (PSK_FRAME_CRC - PSK_FRAME_COMMIT))
#define PSK_BATCH_LEFT_SHIFT (8 * (PSK_FRAME_BATCH_LEFT - PSK_FRAME_BACK))
#define PSK_HEADERS_LEN_SHIFT (8 * (PSK_FRAME_HEADERS_LEN - PSK_FRAME_KEY_LEN))
#define PSK_TOPIC_LEN_SHIFT (8 * (PSK_FRAME_TOPIC_LEN - PSK_FRAME_KEY_LEN))
#define PSK_KIND_SHIFT (8 * (PSK_FRAME_KIND - PSK_FRAME_KEY_LEN))
#define PSK_FLAGS_SHIFT (8 * (PSK_FRAME_FLAGS - PSK_FRAME_KEY_LEN))

/* psk_put_four sums those words in the order in which the checksum takes the header. */
_Static_assert(
    PSK_FRAME_COMMIT == 0 && PSK_FRAME_SEQ == 8 && PSK_FRAME_APPEND_NS == PSK_FRAME_SEQ + 8 &&
        PSK_FRAME_BACK == PSK_FRAME_APPEND_NS + 8 && PSK_FRAME_KEY_LEN == PSK_FRAME_BACK + 8 &&
        PSK_FRAME_HEADER_BYTES == PSK_FRAME_KEY_LEN + 8,
    "a frame's header is five words: commit and crc, seq, append_ns, links, shape");

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Penstock stores little-endian words and is built for little-endian machines only"
#endif

#if defined(__x86_64__)
#include <nmmintrin.h>
#define PSK_X86 1
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#define PSK_ARM 1
#endif

#ifdef PENSTOCK_POLLING
#define PSK_IS_POLLING 1
#else
#define PSK_IS_POLLING 0
#endif

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define PSK_LIKELY(x) __builtin_expect(!!(x), 1)
#define PSK_UNLIKELY(x) __builtin_expect(!!(x), 0)

/* Atomics, with the weakest memory order that each use needs. */

static inline uint32_t psk_load32(const void *p) { return __atomic_load_n((const uint32_t *)p, __ATOMIC_ACQUIRE); }
static inline uint64_t psk_load64(const void *p) { return __atomic_load_n((const uint64_t *)p, __ATOMIC_ACQUIRE); }
static inline void psk_store32(void *p, uint32_t v) { __atomic_store_n((uint32_t *)p, v, __ATOMIC_RELEASE); }
static inline void psk_store64(void *p, uint64_t v) { __atomic_store_n((uint64_t *)p, v, __ATOMIC_RELEASE); }
static inline uint32_t psk_exchange32(void *p, uint32_t v) { return __atomic_exchange_n((uint32_t *)p, v, __ATOMIC_SEQ_CST); }
static inline uint32_t psk_add32(void *p, uint32_t v) { return __atomic_fetch_add((uint32_t *)p, v, __ATOMIC_SEQ_CST); }
static inline int psk_cas32(void *p, uint32_t seen, uint32_t v) {
    return __atomic_compare_exchange_n((uint32_t *)p, &seen, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
}
static inline void psk_release_fence(void) { __atomic_thread_fence(__ATOMIC_RELEASE); }
static inline void psk_acquire_fence(void) { __atomic_thread_fence(__ATOMIC_ACQUIRE); }
static inline void psk_full_fence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

/* The full fence between releasing the lock (an exchange) and reading the waiting flag: on x86
 * the exchange is a fence already. */
static inline void psk_fence_after_exchange(void) {
#ifdef PSK_X86
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
#else
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

static inline void psk_pause(void) {
#if defined(PSK_X86)
    _mm_pause();
#elif defined(PSK_ARM)
    __asm__ __volatile__("isb" ::: "memory");
#endif
}

/* Plain words of a frame or page; memcpy avoids assumptions of the compiler about alignment and aliasing. */
static inline uint16_t psk_get16(const void *p) { uint16_t v; memcpy(&v, p, 2); return v; }
static inline uint32_t psk_get32(const void *p) { uint32_t v; memcpy(&v, p, 4); return v; }
static inline uint64_t psk_get64(const void *p) { uint64_t v; memcpy(&v, p, 8); return v; }
static inline void psk_put16(void *p, uint16_t v) { memcpy(p, &v, 2); }
static inline void psk_put32(void *p, uint32_t v) { memcpy(p, &v, 4); }
static inline void psk_put64(void *p, uint64_t v) { memcpy(p, &v, 8); }

static inline uint64_t psk_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline int64_t psk_monotonic_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline void psk_sleep_ns(int64_t ns) {
    struct timespec t = {ns / 1000000000, ns % 1000000000};
    nanosleep(&t, NULL);
}

/* CRC32C (Castagnoli, reflected, polynomial 0x82f63b78).
 *
 * The state `c` below is the raw register: start with ~0, end with ~. Long inputs run three
 * registers side by side over adjacent blocks of a fixed length, because one step of the hardware
 * instruction waits three cycles for the step before it; the registers are then joined by the
 * linear map "append that many zero bytes", kept as four tables per length. Inside loops the state is 64 bits
 * wide, as the instruction leaves it: cutting it to 32 at every step would lengthen the chain by one cycle. */

static uint32_t psk_crc_table[8][256];
static uint32_t psk_zeros_long[4][256];
static uint32_t psk_zeros_short[4][256];
static int psk_crc_hardware; /* 0 = tables, 1 = instruction */

static inline uint32_t psk_crc_soft(uint32_t c, const unsigned char *p, size_t n) {
    while (n && ((uintptr_t)p & 7)) {
        c = psk_crc_table[0][(c ^ *p++) & 255] ^ (c >> 8);
        n--;
    }
    while (n >= 8) {
        uint64_t w = psk_get64(p) ^ c;
        c = psk_crc_table[7][w & 255] ^ psk_crc_table[6][(w >> 8) & 255] ^ psk_crc_table[5][(w >> 16) & 255] ^
            psk_crc_table[4][(w >> 24) & 255] ^ psk_crc_table[3][(w >> 32) & 255] ^
            psk_crc_table[2][(w >> 40) & 255] ^ psk_crc_table[1][(w >> 48) & 255] ^ psk_crc_table[0][w >> 56];
        p += 8;
        n -= 8;
    }
    while (n--) c = psk_crc_table[0][(c ^ *p++) & 255] ^ (c >> 8);
    return c;
}

static inline uint32_t psk_crc_zeros(uint32_t t[4][256], uint32_t c) {
    return t[0][c & 255] ^ t[1][(c >> 8) & 255] ^ t[2][(c >> 16) & 255] ^ t[3][c >> 24];
}

#if defined(PSK_X86)
#define PSK_CRC_TARGET __attribute__((target("sse4.2")))
#define PSK_CRC64(c, w) _mm_crc32_u64((c), (w))
#define PSK_CRC32(c, w) _mm_crc32_u32((c), (w))
#define PSK_CRC16(c, w) _mm_crc32_u16((c), (w))
#define PSK_CRC8(c, w) _mm_crc32_u8((c), (w))
#elif defined(PSK_ARM)
#define PSK_CRC_TARGET __attribute__((target("+crc")))
#define PSK_CRC64(c, w) __crc32cd((uint32_t)(c), (w))
#define PSK_CRC32(c, w) __crc32cw((c), (w))
#define PSK_CRC16(c, w) __crc32ch((c), (w))
#define PSK_CRC8(c, w) __crc32cb((c), (w))
#endif

#ifdef PSK_CRC_TARGET
PSK_CRC_TARGET static inline uint32_t psk_crc_three(uint32_t c, const unsigned char *p, size_t block,
                                                    uint32_t zeros[4][256]) {
    uint64_t c0 = c, c1 = 0, c2 = 0;
    for (size_t i = 0; i < block; i += 8) {
        c0 = PSK_CRC64(c0, psk_get64(p + i));
        c1 = PSK_CRC64(c1, psk_get64(p + block + i));
        c2 = PSK_CRC64(c2, psk_get64(p + 2 * block + i));
    }
    c = psk_crc_zeros(zeros, (uint32_t)c0) ^ (uint32_t)c1;
    return psk_crc_zeros(zeros, c) ^ (uint32_t)c2;
}

PSK_CRC_TARGET static uint32_t psk_crc_hard(uint32_t c, const unsigned char *p, size_t n) {
    while (n >= 3 * PSK_CRC_LONG_BYTES) {
        c = psk_crc_three(c, p, PSK_CRC_LONG_BYTES, psk_zeros_long);
        p += 3 * PSK_CRC_LONG_BYTES;
        n -= 3 * PSK_CRC_LONG_BYTES;
    }
    while (n >= 3 * PSK_CRC_SHORT_BYTES) {
        c = psk_crc_three(c, p, PSK_CRC_SHORT_BYTES, psk_zeros_short);
        p += 3 * PSK_CRC_SHORT_BYTES;
        n -= 3 * PSK_CRC_SHORT_BYTES;
    }
    uint64_t wide = c;
    for (; n >= 32; p += 32, n -= 32) {
        wide = PSK_CRC64(wide, psk_get64(p));
        wide = PSK_CRC64(wide, psk_get64(p + 8));
        wide = PSK_CRC64(wide, psk_get64(p + 16));
        wide = PSK_CRC64(wide, psk_get64(p + 24));
    }
    for (; n >= 8; p += 8, n -= 8) wide = PSK_CRC64(wide, psk_get64(p));
    c = (uint32_t)wide;
    if (n & 4) { c = PSK_CRC32(c, psk_get32(p)); p += 4; }
    if (n & 2) { c = PSK_CRC16(c, psk_get16(p)); p += 2; }
    if (n & 1) c = PSK_CRC8(c, *p);
    return c;
}
#endif

/* The raw register after n more bytes. */
static inline uint32_t psk_crc(uint32_t c, const void *p, size_t n) {
#ifdef PSK_CRC_TARGET
    if (PSK_LIKELY(psk_crc_hardware)) return psk_crc_hard(c, (const unsigned char *)p, n);
#endif
    return psk_crc_soft(c, (const unsigned char *)p, n);
}

/* Four registers over four inputs, each from its own start: four steps at once instead of one, up to
 * the length that all inputs have. */
#ifdef PSK_CRC_TARGET
PSK_CRC_TARGET static void psk_crc_four_hard(uint32_t c[4], const char *const p[4], const size_t n[4]) {
    uint64_t wide[4] = {c[0], c[1], c[2], c[3]};
    size_t i = 0, common = n[0];
    for (int k = 1; k < 4; k++) if (n[k] < common) common = n[k];
    for (; i + 8 <= common; i += 8) {
        wide[0] = PSK_CRC64(wide[0], psk_get64(p[0] + i));
        wide[1] = PSK_CRC64(wide[1], psk_get64(p[1] + i));
        wide[2] = PSK_CRC64(wide[2], psk_get64(p[2] + i));
        wide[3] = PSK_CRC64(wide[3], psk_get64(p[3] + i));
    }
    uint32_t a = (uint32_t)wide[0], b = (uint32_t)wide[1], d = (uint32_t)wide[2], e = (uint32_t)wide[3];
    if (n[0] == n[1] && n[0] == n[2] && n[0] == n[3]) {
        if (common & 4) {
            a = PSK_CRC32(a, psk_get32(p[0] + i));
            b = PSK_CRC32(b, psk_get32(p[1] + i));
            d = PSK_CRC32(d, psk_get32(p[2] + i));
            e = PSK_CRC32(e, psk_get32(p[3] + i));
            i += 4;
        }
        for (; i < common; i++) {
            a = PSK_CRC8(a, (unsigned char)p[0][i]);
            b = PSK_CRC8(b, (unsigned char)p[1][i]);
            d = PSK_CRC8(d, (unsigned char)p[2][i]);
            e = PSK_CRC8(e, (unsigned char)p[3][i]);
        }
        c[0] = a; c[1] = b; c[2] = d; c[3] = e;
        return;
    }
    c[0] = psk_crc_hard(a, (const unsigned char *)p[0] + i, n[0] - i);
    c[1] = psk_crc_hard(b, (const unsigned char *)p[1] + i, n[1] - i);
    c[2] = psk_crc_hard(d, (const unsigned char *)p[2] + i, n[2] - i);
    c[3] = psk_crc_hard(e, (const unsigned char *)p[3] + i, n[3] - i);
}
#endif

static inline void psk_crc_four(uint32_t c[4], const char *const p[4], const size_t n[4]) {
#ifdef PSK_CRC_TARGET
    if (PSK_LIKELY(psk_crc_hardware)) {
        psk_crc_four_hard(c, p, n);
        return;
    }
#endif
    for (int k = 0; k < 4; k++) c[k] = psk_crc_soft(c[k], (const unsigned char *)p[k], n[k]);
}

/* Build four frames of only a header and a value of `n` bytes, 8 or more, each. Bytes are summed while they are copied:
 * so the sum is that of the copy even if the source changes meanwhile, and nothing just stored is read back. `links` has
 * `back` and `batch_left` of each. 0: the processor cannot. */
#ifdef PSK_CRC_TARGET
PSK_CRC_TARGET static void psk_put_four_hard(char *const dst[4], const char *const src[4], size_t n, uint64_t seq,
                                             uint64_t append_ns, const uint64_t links[4], uint64_t shape) {
    uint64_t c[4];
    for (int k = 0; k < 4; k++) {
        char *d = dst[k];
        psk_put64(d + PSK_FRAME_SEQ, seq + (uint64_t)k);
        psk_put64(d + PSK_FRAME_APPEND_NS, append_ns);
        psk_put64(d + PSK_FRAME_BACK, links[k]);
        psk_put64(d + PSK_FRAME_KEY_LEN, shape);
        c[k] = PSK_CRC64(PSK_CRC64(0xFFFFFFFF, seq + (uint64_t)k), append_ns);
        c[k] = PSK_CRC64(PSK_CRC64(c[k], links[k]), shape);
    }
    char *d0 = dst[0] + PSK_FRAME_HEADER_BYTES, *d1 = dst[1] + PSK_FRAME_HEADER_BYTES;
    char *d2 = dst[2] + PSK_FRAME_HEADER_BYTES, *d3 = dst[3] + PSK_FRAME_HEADER_BYTES;
    const char *s0 = src[0], *s1 = src[1], *s2 = src[2], *s3 = src[3];
    uint64_t c0 = c[0], c1 = c[1], c2 = c[2], c3 = c[3], w;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        w = psk_get64(s0 + i); psk_put64(d0 + i, w); c0 = PSK_CRC64(c0, w);
        w = psk_get64(s1 + i); psk_put64(d1 + i, w); c1 = PSK_CRC64(c1, w);
        w = psk_get64(s2 + i); psk_put64(d2 + i, w); c2 = PSK_CRC64(c2, w);
        w = psk_get64(s3 + i); psk_put64(d3 + i, w); c3 = PSK_CRC64(c3, w);
    }
    c[0] = c0; c[1] = c1; c[2] = c2; c[3] = c3;
    for (int k = 0; k < 4; k++) {
        uint32_t crc = (uint32_t)c[k];
        if (n & 7) { /* the last bytes, and zeros up to the frame's end */
            w = psk_get64(src[k] + n - 8) >> (64 - 8 * (n & 7));
            psk_put64(dst[k] + PSK_FRAME_HEADER_BYTES + i, w);
            if (n & 4) { crc = PSK_CRC32(crc, (uint32_t)w); w >>= 32; }
            if (n & 2) { crc = PSK_CRC16(crc, (uint16_t)w); w >>= 16; }
            if (n & 1) crc = PSK_CRC8(crc, (uint8_t)w);
        }
        psk_put64(dst[k], (uint64_t)(n + 1) | (uint64_t)(uint32_t)~crc << PSK_CRC_SHIFT);
    }
}
#endif

static inline int psk_put_four(char *const dst[4], const char *const src[4], size_t n, uint64_t seq,
                               uint64_t append_ns, const uint64_t links[4], uint64_t shape) {
#ifdef PSK_CRC_TARGET
    if (PSK_LIKELY(psk_crc_hardware)) {
        psk_put_four_hard(dst, src, n, seq, append_ns, links, shape);
        return 1;
    }
#endif
    (void)dst; (void)src; (void)n; (void)seq; (void)append_ns; (void)links; (void)shape;
    return 0;
}

/* memcpy without a call, for mostly short copies. */
static inline void psk_copy(void *dst, const void *src, size_t n) {
    char *d = (char *)dst;
    const char *s = (const char *)src;
    if (n < 32 || n > 512) {
        memcpy(d, s, n);
        return;
    }
    for (size_t i = 0; i + 32 < n; i += 32) memcpy(d + i, s + i, 32);
    memcpy(d + n - 32, s + n - 32, 32);
}

/* Copy and sum in pieces that stay in the first-level cache. */
static inline uint32_t psk_crc_copy(uint32_t c, void *dst, const void *src, size_t n) {
    char *d = (char *)dst;
    const char *s = (const char *)src;
    while (n > 12288) {
        memcpy(d, s, 12288);
        c = psk_crc(c, d, 12288);
        d += 12288; s += 12288; n -= 12288;
    }
    memcpy(d, s, n);
    return psk_crc(c, d, n);
}

static void psk_zeros_build(uint32_t t[4][256], size_t bytes) {
    uint32_t column[32]; /* the image of each single bit of the register */
    for (int bit = 0; bit < 32; bit++) {
        uint32_t c = (uint32_t)1 << bit;
        for (size_t i = 0; i < bytes; i++) c = psk_crc_table[0][c & 255] ^ (c >> 8);
        column[bit] = c;
    }
    for (int k = 0; k < 4; k++)
        for (int v = 0; v < 256; v++) {
            uint32_t c = 0;
            for (int bit = 0; bit < 8; bit++)
                if (v >> bit & 1) c ^= column[8 * k + bit];
            t[k][v] = c;
        }
}

static void psk_crc_setup(void) {
    for (int v = 0; v < 256; v++) {
        uint32_t c = (uint32_t)v;
        for (int k = 0; k < 8; k++) c = c & 1 ? c >> 1 ^ 0x82f63b78u : c >> 1;
        psk_crc_table[0][v] = c;
    }
    for (int k = 1; k < 8; k++)
        for (int v = 0; v < 256; v++)
            psk_crc_table[k][v] = psk_crc_table[0][psk_crc_table[k - 1][v] & 255] ^ (psk_crc_table[k - 1][v] >> 8);
    psk_zeros_build(psk_zeros_long, PSK_CRC_LONG_BYTES);
    psk_zeros_build(psk_zeros_short, PSK_CRC_SHORT_BYTES);
#if defined(PSK_X86)
    psk_crc_hardware = __builtin_cpu_supports("sse4.2") != 0;
#elif defined(PSK_ARM)
    psk_crc_hardware = (getauxval(AT_HWCAP) & (1 << 7)) != 0; /* HWCAP_CRC32 */
#endif
}

/* Sleep while *word == seen, for at most ns. 0 woken or changed, else errno. */
static inline int psk_futex_wait(void *word, uint32_t seen, int64_t ns) {
    struct timespec t = {ns / 1000000000, ns % 1000000000};
    if (syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0) == 0) return 0;
    return errno == EAGAIN ? 0 : errno;
}

static inline void psk_futex_wake(void *word, int count) {
    syscall(SYS_futex, word, FUTEX_WAKE, count, NULL, NULL, 0);
}

/* Locks of open file descriptions: the kernel drops them when the last holder dies. */

#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

static inline int psk_ofd_lock(int fd, uint64_t byte) {
    struct flock l;
    memset(&l, 0, sizeof l);
    l.l_type = F_WRLCK;
    l.l_whence = SEEK_SET;
    l.l_start = (off_t)byte;
    l.l_len = 1;
    return fcntl(fd, F_OFD_SETLK, &l) == 0 ? 0 : errno;
}

static inline void psk_ofd_unlock(int fd, uint64_t byte) {
    struct flock l;
    memset(&l, 0, sizeof l);
    l.l_type = F_UNLCK;
    l.l_whence = SEEK_SET;
    l.l_start = (off_t)byte;
    l.l_len = 1;
    fcntl(fd, F_OFD_SETLK, &l);
}

/* Does another open file description hold a write lock on one of `bytes` bytes (0 = all) from `start` on?
 * 1 yes, 0 no, -errno. Only a write lock conflicts with a read lock, and only a user who may write the file can have
 * one: a read lock, which any reader of the file can take, is no sign of life. */
static inline int psk_ofd_held_in(int fd, uint64_t start, uint64_t bytes) {
    struct flock l;
    memset(&l, 0, sizeof l);
    l.l_type = F_RDLCK;
    l.l_whence = SEEK_SET;
    l.l_start = (off_t)start;
    l.l_len = (off_t)bytes;
    if (fcntl(fd, F_OFD_GETLK, &l) != 0) return -errno;
    return l.l_type != F_UNLCK;
}

static inline int psk_ofd_held(int fd, uint64_t byte) { return psk_ofd_held_in(fd, byte, 1); }
static inline int psk_ofd_held_from(int fd, uint64_t start) { return psk_ofd_held_in(fd, start, 0); }

/* A child shares its parent's open file descriptions, and with them the locks that show
 * others whether the parent lives. So the child closes them before anything else runs in it, and every
 * handle sees from the generation that it must open the log again. */

static uint32_t psk_fork_generation = 1;
static pthread_mutex_t psk_fds_mutex = PTHREAD_MUTEX_INITIALIZER;
static int *psk_fds;
static size_t psk_fds_count, psk_fds_capacity;

static int psk_fd_register(int fd) {
    int ok = 1;
    pthread_mutex_lock(&psk_fds_mutex);
    if (psk_fds_count == psk_fds_capacity) {
        size_t capacity = psk_fds_capacity ? 2 * psk_fds_capacity : 64;
        int *grown = (int *)realloc(psk_fds, capacity * sizeof *grown);
        if (grown) {
            psk_fds = grown;
            psk_fds_capacity = capacity;
        } else {
            ok = 0;
        }
    }
    if (ok) psk_fds[psk_fds_count++] = fd;
    pthread_mutex_unlock(&psk_fds_mutex);
    return ok;
}

static void psk_fd_close(int fd) {
    pthread_mutex_lock(&psk_fds_mutex);
    for (size_t i = 0; i < psk_fds_count; i++)
        if (psk_fds[i] == fd) {
            psk_fds[i] = psk_fds[--psk_fds_count];
            close(fd);
            break;
        }
    pthread_mutex_unlock(&psk_fds_mutex);
}

static void psk_before_fork(void) { pthread_mutex_lock(&psk_fds_mutex); }
static void psk_after_fork_parent(void) { pthread_mutex_unlock(&psk_fds_mutex); }
static void psk_after_fork_child(void) {
    for (size_t i = 0; i < psk_fds_count; i++) close(psk_fds[i]);
    psk_fds_count = 0;
    psk_fork_generation++;
    pthread_mutex_unlock(&psk_fds_mutex);
}

/* Read n bytes at an offset; returns how many were read, or -errno. */
static inline int64_t psk_read_all(int fd, uint64_t offset, void *to, size_t n) {
    size_t done = 0;
    while (done < n) {
        ssize_t got = pread(fd, (char *)to + done, n - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -(int64_t)errno;
        if (got == 0) break;
        done += (size_t)got;
    }
    return (int64_t)done;
}

/* Write all of the three pieces at `offset`; 0 if the kernel did not write them all. */
static inline int psk_write_all(int fd, uint64_t offset, const void *a, size_t a_len, const void *b,
                                size_t b_len, const void *c, size_t c_len) {
    struct iovec v[3] = {{(void *)(uintptr_t)a, a_len}, {(void *)(uintptr_t)b, b_len}, {(void *)(uintptr_t)c, c_len}};
    struct iovec *at = v;
    int left = 3;
    while (left) {
        if (at->iov_len == 0) {
            at++;
            left--;
            continue;
        }
        ssize_t n = pwritev(fd, at, left, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return 0;
        offset += (uint64_t)n;
        while (left && (size_t)n >= at->iov_len) {
            n -= (ssize_t)at->iov_len;
            at++;
            left--;
        }
        if (left) {
            at->iov_base = (char *)at->iov_base + n;
            at->iov_len -= (size_t)n;
        }
    }
    return 1;
}

/* Start the write-back of bytes that a sync will wait for later. The sync reports errors. */
static inline void psk_write_behind(int fd, uint64_t offset, uint64_t nbytes) {
    sync_file_range(fd, (off_t)offset, (off_t)nbytes, SYNC_FILE_RANGE_WRITE);
}

static inline void psk_redirty(char *base, uint64_t start, uint64_t stop) {
    for (uint64_t at = start & ~(uint64_t)(PSK_PAGE - 1); at < stop; at += PSK_PAGE)
        __atomic_fetch_or((unsigned char *)base + at, 0, __ATOMIC_RELAXED);
}

/* Drop this process's page table entries for pages that are written; they stay in memory, and dirty. The kernel
 * write-protects each page that it writes back wherever it is mapped, and interrupts every processor that
 * runs the process for it: once per page. In a virtual machine that halves the speed of appends beside a sync. */
static void psk_let_go(char *start, size_t bytes) { madvise(start, bytes, MADV_DONTNEED); }

static void psk_touch_singly(char *start, size_t bytes) { madvise(start, bytes, MADV_RANDOM); }

/* Map pages that are about to be read, in one call; where that is not possible, they fault one by one. */
static void psk_populate_read(const char *start, size_t bytes) { madvise((void *)start, bytes, MADV_POPULATE_READ); }

/* Fail-points. Crash tests arm one of them by number; reaching it the n-th time sends the process a signal
 * (SIGKILL, SIGSTOP). Unarmed they cost one comparison. A signal's handler may arm the next one, hence volatile. */

static volatile int psk_fail_armed; /* 0 = none */
static volatile int psk_fail_left, psk_fail_signal;

static void psk_fail_hit(void) {
    if (__atomic_sub_fetch(&psk_fail_left, 1, __ATOMIC_SEQ_CST) != 0) return; /* two threads may reach it at once */
    psk_fail_armed = 0;
    kill(getpid(), psk_fail_signal);
}

#define psk_fail(id) do { if (PSK_UNLIKELY(psk_fail_armed == (id))) psk_fail_hit(); } while (0)

static inline int psk_fallocate(int fd, int mode, int64_t offset, int64_t bytes) {
    return fallocate(fd, mode, offset, bytes) == 0 ? 0 : errno;
}

static inline void psk_copy16(void *to, const void *from) { memcpy(to, from, 16); }

/* The size of an open file, or of the one at `path` if `fd` is negative; else -errno. */
static inline int64_t psk_file_bytes(int fd, const char *path) {
    struct stat s;
    return (fd >= 0 ? fstat(fd, &s) : stat(path, &s)) == 0 ? (int64_t)s.st_size : -errno;
}

/* Whether an open file or directory still has a name. */
static inline int psk_is_linked(int fd) {
    struct stat s;
    return fstat(fd, &s) == 0 && s.st_nlink > 0;
}

static inline void psk_prefetch(const void *p) { __builtin_prefetch(p); }

static inline uint64_t psk_fs_magic(int fd) {
    struct statfs s;
    return fstatfs(fd, &s) == 0 ? (uint64_t)(uint32_t)s.f_type : 0;
}

static void psk_setup(void) {
    psk_crc_setup();
    pthread_atfork(psk_before_fork, psk_after_fork_parent, psk_after_fork_child);
}

#endif
