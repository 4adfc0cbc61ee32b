/* Memory of columns: the buffers of Arrow batches, which somebody else holds for a while and then gives back.
 *
 * Short ones come from malloc. Long ones are maps of their own; those given back are kept for the next batch, up to
 * PSK_KEPT_BYTES_MAX, because fresh pages cost more than what is written into them. The kernel may take kept pages
 * away whenever memory runs short (MADV_FREE). Nothing here needs the GIL.
 *
 *     block:  room | next | warm | 40 bytes unused | what the caller gets, `room` bytes of it
 */
#ifndef PENSTOCK_MEMORY_H
#define PENSTOCK_MEMORY_H

#include "native.h"

#define PSK_LONG_BYTES ((uint64_t)1 << 20)
#define PSK_KEPT_BYTES_MAX ((uint64_t)256 << 20)

typedef struct psk_block {
    uint64_t room;
    struct psk_block *next; /* among those that are kept */
    uint64_t warm;          /* of a long one: so many bytes have had their pages once */
    uint64_t unused[5];
} psk_block;

static psk_block *psk_kept;
static uint64_t psk_kept_bytes;
static uint32_t psk_kept_lock; /* whoever does not get it at once does without; so a fork cannot hang anybody */

static inline psk_block *psk_block_of(void *p) { return (psk_block *)p - 1; }

static inline uint64_t psk_block_bytes(uint64_t room) { /* of the map: whole pages, in steps that let sizes recur */
    uint64_t step = room < 16 * PSK_LONG_BYTES ? PSK_LONG_BYTES / 4 : 2 * PSK_LONG_BYTES;
    return (room + sizeof(psk_block) + step - 1) / step * step;
}

static inline int psk_is_long(uint64_t room) {
#ifdef __SANITIZE_ADDRESS__
    (void)room; /* the sanitizer watches what malloc gives */
    return 0;
#else
    return room >= PSK_LONG_BYTES - sizeof(psk_block);
#endif
}

/* Of those that are kept: the shortest that has the room, if it has not very much more, else the longest that has not
 * very much less. So there are hardly more of them than were in use at a time, though what is asked for varies. */
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

static void psk_column_free(void *p) {
    if (!p) return;
    if (psk_is_long(psk_block_of(p)->room)) psk_block_unmap(psk_block_of(p));
    else free(psk_block_of(p));
}

/* Have pages for the bytes from `start` to `end`, which are about to be written, all at once: a fault for each of them
 * costs several times as much. To ask again for those that are there costs a tenth, and is spared. */
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

/* realloc(3) for columns: what was there stays, up to the shorter of both. */
static void *psk_column_resize(void *p, uint64_t room) {
    psk_block *before = p ? psk_block_of(p) : NULL, *after;
    if (before && psk_is_long(before->room)) {
        if (room <= before->room) return p; /* what nobody writes takes no memory */
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
