/* Exact amounts: signed 128-bit integers, in billionths. Every quantity of Kubernetes is one of them. */
#ifndef AMOUNT_H
#define AMOUNT_H

#include <stdint.h>

__extension__ typedef __int128 amount_t;

/* What a zone that does not list a resource has of it. Below every amount, and far from overflow. */
#define AMOUNT_UNLISTED (-((amount_t)1 << 110))

static inline amount_t amount_of(int64_t high, uint64_t low)
{
    return (amount_t)(((unsigned __int128)(uint64_t)high << 64) | low);
}

/* In whole units, rounded away from 0, as Kubernetes rounds, and capped at 2^63-1. */
static inline int64_t amount_whole(amount_t amount)
{
    amount_t units = ((amount < 0 ? -amount : amount) + 999999999) / 1000000000;
    int64_t capped = units > INT64_MAX ? INT64_MAX : (int64_t)units;
    return amount < 0 ? -capped : capped;
}

/* part * 100 / whole, truncated; 0 <= part <= whole, 0 < whole. Doubles divide faster, and are exact here: a quotient
 * below a whole number is 1/whole below it, which is more than doubles up to 100 are apart. */
static inline int amount_percent(int64_t part, int64_t whole)
{
    return whole < (int64_t)1 << 45 ? (int)((double)part * 100 / (double)whole) : (int)((amount_t)part * 100 / whole);
}

#endif
