/* The key filter of a sealed segment: which keys its events may have.
 *
 * A split-block Bloom filter in pages: a key's hash names one block of 32 bytes, and one bit in each
 * of its eight words. Each page has a checksum and says whose it is, so a look-up reads one page. The
 * number of distinct keys, which gives the size, is estimated (HyperLogLog): no memory per key. */
#ifndef PENSTOCK_FILTER_H
#define PENSTOCK_FILTER_H

#include <math.h>

#include "native.h"

enum {
    PSK_BLOCK_BYTES = 32,
    PSK_BLOCK_WORDS = 8,
    PSK_PAGE_BLOCKS = PSK_FILTER_UUID / PSK_BLOCK_BYTES,
    PSK_COUNTERS_BITS = 14,
    PSK_COUNTERS = 1 << PSK_COUNTERS_BITS
};

static inline uint64_t psk_rotate(uint64_t v, int by) { return (v << by) | (v >> (64 - by)); }

/* XXH64 with seed 0, as its specification has it. */
static inline uint64_t psk_key_hash(const char *p, size_t n) {
    const uint64_t a = 0x9E3779B185EBCA87u, b = 0xC2B2AE3D27D4EB4Fu, c = 0x165667B19E3779F9u;
    const uint64_t d = 0x85EBCA77C2B2AE63u, e = 0x27D4EB2F165667C5u;
    const char *end = p + n;
    uint64_t h;
    if (n >= 32) {
        uint64_t v[4] = {a + b, b, 0, 0 - a};
        for (; end - p >= 32; p += 32)
            for (int i = 0; i < 4; i++)
                v[i] = psk_rotate(v[i] + psk_get64(p + 8 * i) * b, 31) * a;
        h = psk_rotate(v[0], 1) + psk_rotate(v[1], 7) + psk_rotate(v[2], 12) + psk_rotate(v[3], 18);
        for (int i = 0; i < 4; i++)
            h = (h ^ (psk_rotate(v[i] * b, 31) * a)) * a + d;
    } else {
        h = e;
    }
    h += n;
    for (; end - p >= 8; p += 8)
        h = psk_rotate(h ^ (psk_rotate(psk_get64(p) * b, 31) * a), 27) * a + d;
    if (end - p >= 4) {
        h = psk_rotate(h ^ (psk_get32(p) * a), 23) * b + c;
        p += 4;
    }
    for (; p < end; p++)
        h = psk_rotate(h ^ ((uint64_t)(unsigned char)*p * e), 11) * a;
    h = (h ^ (h >> 33)) * b;
    h = (h ^ (h >> 29)) * c;
    return h ^ (h >> 32);
}

/* Counters: note a hash; how many distinct ones were noted, about. */
static inline void psk_count_hash(uint8_t *counters, uint64_t hash) {
    uint64_t rest = hash >> PSK_COUNTERS_BITS;
    uint8_t rank = rest ? (uint8_t)(__builtin_ctzll(rest) + 1) : 64 - PSK_COUNTERS_BITS + 1;
    uint8_t *at = counters + (hash & (PSK_COUNTERS - 1));
    if (rank > *at)
        *at = rank;
}

static inline uint64_t psk_counted(const uint8_t *counters) {
    double sum = 0, m = PSK_COUNTERS, found;
    int zeros = 0;
    for (int i = 0; i < PSK_COUNTERS; i++) {
        sum += 1.0 / (double)((uint64_t)1 << counters[i]);
        zeros += counters[i] == 0;
    }
    found = 0.7213 / (1 + 1.079 / m) * m * m / sum;
    if (found <= 2.5 * m && zeros)
        found = m * log(m / zeros);
    return (uint64_t)(found + 0.5);
}

/* Full pages for that many distinct keys. */
static inline uint64_t psk_filter_pages(uint64_t keys) {
    uint64_t bits = PSK_PAGE_BLOCKS * (uint64_t)PSK_BLOCK_BYTES * 8;
    return (keys * PSK_KEY_FILTER_BITS + bits - 1) / bits;
}

static inline uint64_t psk_filter_page(uint64_t hash, uint64_t pages) {
    return ((hash >> 32) * (pages * PSK_PAGE_BLOCKS) >> 32) / PSK_PAGE_BLOCKS;
}

static inline size_t psk_filter_block(uint64_t hash, uint64_t pages) {
    return PSK_BLOCK_BYTES * (size_t)(((hash >> 32) * (pages * PSK_PAGE_BLOCKS) >> 32) % PSK_PAGE_BLOCKS);
}

static const uint32_t psk_salts[PSK_BLOCK_WORDS] = {
    0x47b6137bu, 0x44974d91u, 0x8824ad5bu, 0xa2b7289du, 0x705495c7u, 0x2df1424bu, 0x9efc4947u, 0x5c6bfb31u};

static inline void psk_filter_add(char *pages_at, uint64_t pages, uint64_t hash) {
    char *block = pages_at + psk_filter_page(hash, pages) * PSK_PAGE + psk_filter_block(hash, pages);
    for (int i = 0; i < PSK_BLOCK_WORDS; i++)
        psk_put32(block + 4 * i, psk_get32(block + 4 * i) | 1u << ((uint32_t)hash * psk_salts[i] >> 27));
}

static inline int psk_filter_has(const char *page, uint64_t pages, uint64_t hash) {
    const char *block = page + psk_filter_block(hash, pages);
    for (int i = 0; i < PSK_BLOCK_WORDS; i++)
        if (!(psk_get32(block + 4 * i) & 1u << ((uint32_t)hash * psk_salts[i] >> 27)))
            return 0;
    return 1;
}

static inline void psk_filter_seal(
    char *page, const char *uuid, uint64_t base_seq, uint32_t generation, uint32_t number, uint32_t pages
) {
    memcpy(page + PSK_FILTER_UUID, uuid, 8);
    psk_put64(page + PSK_FILTER_BASE_SEQ, base_seq);
    psk_put32(page + PSK_FILTER_GENERATION, generation);
    psk_put32(page + PSK_FILTER_PAGE, number);
    psk_put32(page + PSK_FILTER_PAGES, pages);
    psk_put32(page + PSK_FILTER_CRC, ~psk_crc(0xFFFFFFFFu, page, PSK_FILTER_CRC));
}

static inline int psk_filter_is_good(
    const char *page, const char *uuid, uint64_t base_seq, uint32_t generation, uint32_t number, uint32_t pages
) {
    return memcmp(page + PSK_FILTER_UUID, uuid, 8) == 0 && psk_get64(page + PSK_FILTER_BASE_SEQ) == base_seq &&
           psk_get32(page + PSK_FILTER_GENERATION) == generation && psk_get32(page + PSK_FILTER_PAGE) == number &&
           psk_get32(page + PSK_FILTER_PAGES) == pages &&
           psk_get32(page + PSK_FILTER_CRC) == (uint32_t)~psk_crc(0xFFFFFFFFu, page, PSK_FILTER_CRC);
}

#endif
