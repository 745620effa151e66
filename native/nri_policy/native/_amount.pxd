from libc.stdint cimport int64_t, uint64_t

cdef extern from "amount.h" nogil:
    ctypedef long long amount_t
    amount_t AMOUNT_UNLISTED
    amount_t amount_of(int64_t high, uint64_t low)
    int64_t amount_whole(amount_t amount)
    int amount_percent(int64_t part, int64_t whole)


cdef inline amount_t to_amount(object value) except? -1:
    return amount_of(<int64_t> (value >> 64), <uint64_t> (value & 0xFFFFFFFFFFFFFFFF))
