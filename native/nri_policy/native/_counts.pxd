from libc.stdint cimport int32_t, int64_t, uint8_t

from nri_policy.native._domains cimport Domains, Mask, Rows, Vector


cdef struct Held:  # by one domain
    int64_t pods
    int64_t slices
    int64_t pods_l
    int64_t slices_l
    int64_t leaders
    int64_t score


cdef class Counts:
    cdef readonly Domains domains
    cdef readonly Rows rows
    cdef Vector pod, leader      # leader is None without one
    cdef Mask mask, leader_mask
    cdef readonly int size, slice_level
    cdef int *inner              # level -> size of the inner layer there, 0 where none
    cdef readonly int low, high  # leaves that may be used
    cdef Counts hosts            # None where leaves are not zones
    cdef int host_level
    cdef int *host_of            # leaf -> its host's domain there; NULL where leaves are not zones
    cdef int32_t *most           # leaf -> pods that it takes at most, whatever it has; NULL without such a limit
    cdef int32_t *beside         # the same where the leader is
    cdef int cap_level           # -1 without caps
    cdef int32_t *cap            # of the domains there: pods that each takes at most, whatever it has
    cdef int64_t epoch           # of the rows when they were last read, -1 before
    cdef int seen                # changes that are in
    cdef int32_t *pods           # by domain
    cdef int32_t *slices
    cdef int32_t *pods_l         # with the leader; the same arrays where there is none
    cdef int32_t *slices_l
    cdef uint8_t *leaders        # NULL without a leader
    cdef int64_t *score          # NULL without preferred affinity
    cdef bint has_nodes(self, int domain) noexcept nogil
    cdef int level_of(self, int domain)
    cdef int _first_leaf(self, int domain) noexcept nogil
    cdef int _last_leaf(self, int domain) noexcept nogil
    cdef void count_again(self, int leaf) noexcept nogil
    cdef bint add_change(self, int domain, int level, Held *before, Held *after) noexcept nogil
    cdef void count_leaf(self, int leaf) noexcept nogil
    cdef void roll_up(self, int domain, int level) noexcept nogil
    cdef refresh(self)


cdef Held held_by(Counts counts, int domain) noexcept nogil
