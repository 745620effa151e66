cimport cython
from libc.stdint cimport int64_t, uint64_t

from nri_policy.native._cpuset cimport CPUSet

@cython.final
cdef class Supply:
    cdef readonly int count       # pools; ids are 0..count-1 in post-order
    cdef int width                # words of a CPU mask
    cdef int *parent              # id of the parent, -1 for the top
    cdef int *depth               # links from the top
    cdef int *home                # CPU id -> its deepest pool; -1: none
    cdef uint64_t *sharable       # capacity: CPUs that are neither isolated nor reserved
    cdef uint64_t *isolated       # capacity: kernel-isolated CPUs
    cdef char *wide               # whether the pool spans more than one NUMA node
    cdef int64_t *package_milli   # pools of several packages: the largest limit that fits one package; others: 0
    # The state, one block in this order, so that a snapshot is a copy:
    cdef char *state
    cdef size_t state_size
    cdef int64_t *shared_milli    # milli-CPU of shared grants booked in the pool's subtree
    cdef uint64_t *free           # sharable CPUs in no exclusive grant
    cdef uint64_t *free_isolated  # isolated CPUs in no exclusive grant
    cdef int *sharable_left       # free sharable CPUs of the pool
    cdef int *isolated_left       # free isolated CPUs of the pool
    cdef int *sharers             # containers with a shared part that must not be moved, booked in the subtree
    cdef int *preemptibles        # containers that share without a request and may be moved, in the subtree
    cdef int *booked              # grants booked on exactly this pool
    cdef int *requesters          # containers that share with a request, booked in the subtree
    cdef int *colocated           # grants with a shared part, booked on exactly this pool

    cdef int64_t need(self, int pool, int64_t more, bint shares, bint with_preemptible) noexcept nogil
    cdef int64_t _allocatable_shared(self, int pool) noexcept nogil
    cdef _book(self, int pool, int64_t milli, bint shares, bint preemptible, int sign)
    cdef bint _has_booked(self, int pool, int64_t milli, bint shares, bint preemptible) noexcept nogil
    cdef _count_class(self, CPUSet wanted, int *counts)
    cdef void _move(self, const uint64_t *words, int used, uint64_t *side, int *left, int sign) noexcept nogil


@cython.final
cdef class Slack:
    cdef Supply supply
    cdef int pool                 # where the grant is to be booked
    cdef int *left                # CPUs that may still be cut out of each pool

    cdef bint allows(self, const uint64_t *words, int low, int high) noexcept nogil
    cdef void use(self, const uint64_t *words, int low, int high) noexcept nogil
    cdef bint allows_cpu(self, int cpu) noexcept nogil
    cdef void use_cpu(self, int cpu) noexcept nogil
    cdef void _count(self, const uint64_t *words, int low, int high, int sign) noexcept nogil
    cdef bint _within(self, const uint64_t *words, int low, int high) noexcept nogil
