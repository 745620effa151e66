/* Bit operations on arrays of 64-bit words. On x86-64 with glibc the loader picks a POPCNT build of the
 * loops where the processor has it; -march=native would make the wheels unportable. */
#ifndef NRI_POLICY_BITS_H
#define NRI_POLICY_BITS_H

#include <stdint.h>

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) \
    && !defined(__SANITIZE_ADDRESS__)
#define BITS_CLONES __attribute__((target_clones("popcnt", "default")))
#else
#define BITS_CLONES
#endif

/* Number of bits set in words[0..n-1]. */
BITS_CLONES static int bits_count(const uint64_t *words, int n)
{
    int count = 0;
    for (int i = 0; i < n; i++)
        count += __builtin_popcountll(words[i]);
    return count;
}

/* Number of bits set in both a[0..n-1] and b[0..n-1]. */
BITS_CLONES static int bits_count_and(const uint64_t *a, const uint64_t *b, int n)
{
    int count = 0;
    for (int i = 0; i < n; i++)
        count += __builtin_popcountll(a[i] & b[i]);
    return count;
}

/* Index of the lowest bit of a non-zero word. */
static inline int bits_lowest(uint64_t word) { return __builtin_ctzll(word); }

/* Index of the highest bit of a non-zero word. */
static inline int bits_highest(uint64_t word) { return 63 - __builtin_clzll(word); }

#endif
