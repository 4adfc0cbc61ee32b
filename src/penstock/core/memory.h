/* Memory of columns: the buffers of Arrow batches, which other code holds for a while and then frees.
 *
 * Short ones come from malloc. Each long one is a separate map; freed ones are kept for the next batch, up to
 * PSK_KEPT_BYTES_MAX, because fresh pages cost more than writing into them. The kernel may reclaim kept pages when
 * memory runs short (MADV_FREE), and `psk_kept_release` unmaps them at once. Nothing here needs the GIL.
 *
 *     block:  room | next | warm | 40 bytes unused | the caller's `room` bytes
 */
#ifndef PENSTOCK_MEMORY_H
#define PENSTOCK_MEMORY_H

#include "native.h"

#define PSK_LONG_BYTES ((uint64_t)1 << 20)
#define PSK_KEPT_BYTES_MAX ((uint64_t)256 << 20) /* the columns of a million events with 150 bytes fit */
#define PSK_KEPT_TRIES 100
#define PSK_KEPT_PAUSE_NS 100000

typedef struct psk_block {
    uint64_t room;
    struct psk_block *next; /* in the list of kept blocks */
    uint64_t warm;          /* of a long one: that many bytes had pages once */
    uint64_t unused[5];
} psk_block;

static psk_block *psk_kept;
static uint64_t psk_kept_bytes;
/* Never waited for: a thread that does not get it skips the list, so a fork cannot make one hang. */
static uint32_t psk_kept_lock;

static inline psk_block *psk_block_of(void *p) { return (psk_block *)p - 1; }

static inline uint64_t psk_block_bytes(uint64_t room) { /* of the map: full pages, in steps so that sizes recur */
    uint64_t step = room < 16 * PSK_LONG_BYTES ? PSK_LONG_BYTES / 4 : 2 * PSK_LONG_BYTES;
    return (room + sizeof(psk_block) + step - 1) / step * step;
}

static inline int psk_is_long(uint64_t room) {
#ifdef __SANITIZE_ADDRESS__
    (void)room; /* the sanitizer watches memory from malloc */
    return 0;
#else
    return room >= PSK_LONG_BYTES - sizeof(psk_block);
#endif
}

/* Of the kept blocks: the shortest that is long enough, if it is not much longer, else the longest that is not much
 * shorter. So there are hardly more blocks than were in use at a time, though the requested sizes vary. */
static psk_block *psk_block_kept(uint64_t room) {
    psk_block **best = NULL, *found = NULL;
    if (!psk_cas32(&psk_kept_lock, 0, 1)) return NULL;
    for (psk_block **at = &psk_kept; *at; at = &(*at)->next) {
        uint64_t has = (*at)->room, had = best ? (*best)->room : 0;
        if (has / 8 > room || has < room / 8) continue;
        if (!best || (had < room ? has > had : has >= room && has < had)) best = at;
    }
    if (best) {
        found = *best;
        *best = found->next;
        psk_kept_bytes -= found->room;
    }
    psk_store32(&psk_kept_lock, 0);
    return found;
}

static psk_block *psk_block_grow(psk_block *block, uint64_t room) {
    uint64_t bytes = psk_block_bytes(room);
    psk_block *grown = (psk_block *)mremap(block, block->room + sizeof(psk_block), bytes, MREMAP_MAYMOVE);
    if (grown == MAP_FAILED) return NULL;
    grown->room = bytes - sizeof(psk_block);
    return grown;
}

static psk_block *psk_block_map(uint64_t room) {
    psk_block *block = psk_block_kept(room);
    if (block && block->room < room) {
        psk_block *grown = psk_block_grow(block, room);
        if (!grown) munmap(block, block->room + sizeof(psk_block));
        block = grown;
    }
    if (block) return block;
    uint64_t bytes = psk_block_bytes(room);
    block = (psk_block *)mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) return NULL;
    block->room = bytes - sizeof(psk_block);
    return block;
}

static void psk_block_unmap(psk_block *block) {
    uint64_t bytes = block->room + sizeof(psk_block);
    if (bytes <= PSK_KEPT_BYTES_MAX / 2 && psk_cas32(&psk_kept_lock, 0, 1)) {
        int keep = psk_kept_bytes + bytes <= PSK_KEPT_BYTES_MAX;
        if (keep) {
            madvise((char *)block + PSK_PAGE, bytes - PSK_PAGE, MADV_FREE);
            block->next = psk_kept;
            psk_kept = block;
            psk_kept_bytes += block->room;
        }
        psk_store32(&psk_kept_lock, 0);
        if (keep) return;
    }
    munmap(block, bytes);
}

/* Unmap all kept blocks; returns how many bytes that was. Other threads hold the lock only while they search the list;
 * a longer wait means that this is the child of a fork, and that those threads stayed in the parent. */
static uint64_t psk_kept_release(void) {
    uint64_t released = 0;
    psk_block *block = NULL;
    for (int tries = PSK_KEPT_TRIES; tries; tries--) {
        if (psk_cas32(&psk_kept_lock, 0, 1)) {
            block = psk_kept;
            psk_kept = NULL;
            psk_kept_bytes = 0;
            psk_store32(&psk_kept_lock, 0);
            break;
        }
        psk_sleep_ns(PSK_KEPT_PAUSE_NS);
    }
    while (block) {
        psk_block *next = block->next;
        released += block->room + sizeof(psk_block);
        munmap(block, block->room + sizeof(psk_block));
        block = next;
    }
    return released;
}

static void psk_column_free(void *p) {
    if (!p) return;
    if (psk_is_long(psk_block_of(p)->room)) psk_block_unmap(psk_block_of(p));
    else free(psk_block_of(p));
}

/* Populate the pages from `start` to `end`, which are about to be written, all at once: a fault for each of them costs
 * several times as much. Populating existing pages again costs a tenth, and is avoided. */
static void psk_column_warm(void *p, uint64_t start, uint64_t end) {
    psk_block *block = psk_block_of(p);
    if (psk_is_long(block->room)) {
        if (end <= block->warm) return;
        if (start < block->warm) start = block->warm;
        block->warm = end;
    }
    uintptr_t from = ((uintptr_t)p + start + PSK_PAGE - 1) & ~(uintptr_t)(PSK_PAGE - 1);
    uintptr_t to = ((uintptr_t)p + end) & ~(uintptr_t)(PSK_PAGE - 1);
    if (from < to) madvise((void *)from, to - from, MADV_POPULATE_WRITE);
}

/* realloc(3) for columns: the content is kept, up to the shorter of both. */
static void *psk_column_resize(void *p, uint64_t room) {
    psk_block *before = p ? psk_block_of(p) : NULL, *after;
    if (before && psk_is_long(before->room)) {
        if (room <= before->room) return p; /* unwritten pages take no memory */
        after = psk_block_grow(before, room);
        return after ? after + 1 : NULL;
    }
    if (!psk_is_long(room)) {
        after = (psk_block *)realloc(before, sizeof(psk_block) + room);
        if (!after) return NULL;
        after->room = room;
        return after + 1;
    }
    after = psk_block_map(room);
    if (!after) return NULL;
    if (before) {
        memcpy(after + 1, p, before->room);
        free(before);
    }
    return after + 1;
}

#endif
