/* One sleep on many words: futex_waitv(2) of Linux 5.16, asked for by number where headers lack it. */
#ifndef PENSTOCK_WAITING_H
#define PENSTOCK_WAITING_H

#include "native.h"

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449 /* the same on every architecture */
#endif

#define PSK_WAITV_MAX 128 /* words in one call, says the kernel */

struct psk_waitv {
    uint64_t seen;
    uint64_t word;
    uint32_t flags;
    uint32_t zero;
};

/* 0: the kernel has no such call, or does not allow it to this process. It never changes. */
static int psk_has_waitv = 1;

/* Sleep until one of the words differs from its seen value, or is woken, at most ns; 0, or an errno.
 * Words of other processes' memory maps are among them, so none of them is private. */
static inline int psk_futex_waitv(char *const *words, const uint32_t *seen, int count, int64_t ns) {
    struct psk_waitv all[PSK_WAITV_MAX];
    struct timespec until;
    int i;
    for (i = 0; i < count; i++) {
        all[i].seen = seen[i];
        all[i].word = (uint64_t)(uintptr_t)words[i];
        all[i].flags = 2; /* a word of 32 bits */
        all[i].zero = 0;
    }
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += ns / 1000000000;
    until.tv_nsec += ns % 1000000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec += 1;
        until.tv_nsec -= 1000000000;
    }
    if (syscall(SYS_futex_waitv, all, count, 0, &until, CLOCK_MONOTONIC) >= 0) return 0;
    if (errno == ENOSYS || errno == EPERM) psk_has_waitv = 0;
    return errno == EAGAIN ? 0 : errno;
}

/* Have an eventfd be readable; it is one already if it is full. */
static inline void psk_ring_bell(int fd) {
    const uint64_t one = 1;
    ssize_t written = write(fd, &one, sizeof one);
    (void)written;
}

#endif
