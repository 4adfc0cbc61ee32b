/* Compaction: which events of a log are dead, decided from the newest one to the oldest.
 *
 * Keys are told apart by a hash of 111 bits with a secret that is new for each compaction, so that
 * nobody can make two keys collide. A table of bounded size has a slot for each key; the events of keys
 * that find no room are spilled, and looked at later, a part of the keys at a time. */
#ifndef PENSTOCK_COMPACT_H
#define PENSTOCK_COMPACT_H

#include <stdlib.h>

#include "native.h"

enum {
    PSK_SPILL_PARTS = 64,
    PSK_SPILL_PART_BITS = 6,
    PSK_SPILL_ROOM = 2048,   /* records of a buffer */
    PSK_COUNT_BITS = 16
};

#define PSK_COUNT_MASK (((uint64_t)1 << PSK_COUNT_BITS) - 1)
#define PSK_CLOSED ((uint64_t)1 << PSK_COUNT_BITS)            /* every older event of the key is dead */
#define PSK_HASH_MASK (~((((uint64_t)1 << (PSK_COUNT_BITS + 1))) - 1))
#define PSK_ENDS_KEY ((uint64_t)1 << 63)  /* of a record: a deletion that has had its time */
#define PSK_STAYS ((uint64_t)1 << 62)     /* ... it counts, but is not in a segment that is compacted */
#define PSK_BIT_MASK (PSK_STAYS - 1)

typedef struct {
    uint64_t hash, rest;  /* rest: more of the hash above, below how many versions were seen */
} psk_slot;

typedef struct {
    uint64_t hash, rest, where;  /* where: the bit of its frame, and flags */
} psk_record;

typedef struct {
    psk_slot *slots;
    uint64_t count, used, slots_max;
    uint64_t versions;
    int depth;     /* of spilling */
    int full;      /* no more keys are added */
    int crowded;   /* a spill buffer must be emptied */
    uint64_t spilled;
    unsigned char *bits;
    uint64_t bits_count;
    psk_record *buffers;  /* PSK_SPILL_PARTS of PSK_SPILL_ROOM each */
    uint32_t filled[PSK_SPILL_PARTS];
} psk_survey;

#define PSK_SIP_ROUND                                                                                      \
    do {                                                                                                   \
        v0 += v1, v1 = v1 << 13 | v1 >> 51, v1 ^= v0, v0 = v0 << 32 | v0 >> 32;                            \
        v2 += v3, v3 = v3 << 16 | v3 >> 48, v3 ^= v2;                                                      \
        v0 += v3, v3 = v3 << 21 | v3 >> 43, v3 ^= v0;                                                      \
        v2 += v1, v1 = v1 << 17 | v1 >> 47, v1 ^= v2, v2 = v2 << 32 | v2 >> 32;                            \
    } while (0)

/* SipHash-1-3 with 128 bits: keyed, and quick for short keys. */
static inline void psk_secret_hash(const uint64_t *secret, const char *p, size_t n, uint64_t *hash, uint64_t *rest) {
    uint64_t v0 = secret[0] ^ 0x736f6d6570736575u, v1 = secret[1] ^ 0x646f72616e646f6du ^ 0xee;
    uint64_t v2 = secret[0] ^ 0x6c7967656e657261u, v3 = secret[1] ^ 0x7465646279746573u, m;
    uint64_t last = (uint64_t)n << 56;
    size_t i;
    for (; n >= 8; p += 8, n -= 8) {
        m = psk_get64(p);
        v3 ^= m;
        PSK_SIP_ROUND;
        v0 ^= m;
    }
    for (i = 0; i < n; i++)
        last |= (uint64_t)(unsigned char)p[i] << (8 * i);
    v3 ^= last;
    PSK_SIP_ROUND;
    v0 ^= last;
    v2 ^= 0xee;
    PSK_SIP_ROUND;
    PSK_SIP_ROUND;
    PSK_SIP_ROUND;
    *hash = (v0 ^ v1 ^ v2 ^ v3) | 1; /* 0: a free slot */
    v1 ^= 0xdd;
    PSK_SIP_ROUND;
    PSK_SIP_ROUND;
    PSK_SIP_ROUND;
    *rest = (v0 ^ v1 ^ v2 ^ v3) & PSK_HASH_MASK;
}

static inline psk_slot *psk_survey_slot(const psk_survey *s, uint64_t hash) {
    return s->slots + ((hash >> 1) & (s->count - 1));
}

/* Make room for that many more keys; 0 if there is no memory. A table of its full size gets `full`. */
static inline int psk_survey_room(psk_survey *s, uint64_t more) {
    psk_slot *slots;
    uint64_t count = s->count, i;
    if (s->full || s->used + more <= s->count / 4 * 3)
        return 1;
    if (2 * count > s->slots_max) {
        s->full = 1;
        return 1;
    }
    slots = (psk_slot *)calloc(2 * count, sizeof(psk_slot));
    if (slots == NULL)
        return 0;
    s->count = 2 * count;
    for (i = 0; i < count; i++)
        if (s->slots[i].hash) {
            uint64_t at = (s->slots[i].hash >> 1) & (s->count - 1);
            while (slots[at].hash)
                at = (at + 1) & (s->count - 1);
            slots[at] = s->slots[i];
        }
    free(s->slots);
    s->slots = slots;
    return 1;
}

/* Say that a frame lives, or not. */
static inline void psk_survey_mark(psk_survey *s, uint64_t where, int lives) {
    uint64_t bit = where & PSK_BIT_MASK;
    unsigned char mask = (unsigned char)(1u << (bit & 7));
    if (where & PSK_STAYS || bit >= s->bits_count)
        return;
    if (lives)
        s->bits[bit >> 3] |= mask;
    else
        s->bits[bit >> 3] &= (unsigned char)~mask;
}

/* The first bit from `bit` to before `end` that is set; `end` if none is. */
static inline uint64_t psk_next_bit(const unsigned char *bits, uint64_t bit, uint64_t end) {
    uint64_t word;
    while (bit < end) {
        word = psk_get64((const char *)bits + (bit >> 6) * 8) >> (bit & 63);
        if (word) {
            bit += (uint64_t)__builtin_ctzll(word);
            return bit < end ? bit : end;
        }
        bit = (bit | 63) + 1;
    }
    return end;
}

/* One event with a key, the newer ones of that key before it. There is room for one more key. */
static inline void psk_survey_take(psk_survey *s, const psk_record *r) {
    psk_slot *slot = psk_survey_slot(s, r->hash);
    uint32_t part, n;
    while (slot->hash && (slot->hash != r->hash || (slot->rest & PSK_HASH_MASK) != r->rest)) {
        slot++;
        if (slot == s->slots + s->count)
            slot = s->slots;
    }
    if (!slot->hash) {
        if (s->full) {
            part = (uint32_t)(r->rest >> (64 - PSK_SPILL_PART_BITS * (s->depth + 1))) & (PSK_SPILL_PARTS - 1);
            n = s->filled[part]++;
            s->buffers[part * PSK_SPILL_ROOM + n] = *r;
            psk_survey_mark(s, r->where, 1); /* until it is known better */
            s->spilled++;
            if (n + 1 >= PSK_SPILL_ROOM - 64)
                s->crowded = 1;
            return;
        }
        slot->hash = r->hash;
        slot->rest = r->rest;
        s->used++;
    }
    if (slot->rest & PSK_CLOSED || (slot->rest & PSK_COUNT_MASK) >= s->versions) {
        psk_survey_mark(s, r->where, 0);
    } else if (r->where & PSK_ENDS_KEY) {
        psk_survey_mark(s, r->where, 0);
        slot->rest |= PSK_CLOSED;
    } else {
        psk_survey_mark(s, r->where, 1);
        slot->rest++;
    }
}

#endif
