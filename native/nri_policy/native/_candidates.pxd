from libc.stdint cimport int32_t, int64_t, uint64_t

from nri_policy.native._counts cimport Counts

cdef struct Candidate:
    int32_t domain
    int32_t pods        # that fit; once chosen: that go there
    int32_t slices
    int32_t pods_l      # with the leader
    int32_t slices_l
    int32_t leaders     # 1 if it can host the leader; once chosen: if it does
    int64_t score


cdef struct Order:
    bint with_leader    # until the leader has its domain
    bint ascending      # LeastFree
    bint scored         # preferred affinity counts


cdef struct Key:
    uint64_t value
    int32_t index


cdef class Row:
    cdef Candidate *at
    cdef int size, room
    cdef reserve(self, int room)
    cdef push(self, Candidate each)


cdef load(Counts counts, Row row, int low, int high)
cdef bint before(Candidate *one, Candidate *other, Order order) noexcept nogil
cdef sort(Row row, Order order)
cdef void sort_keys(Key *keys, int n) noexcept nogil
