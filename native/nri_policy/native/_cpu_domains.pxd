cimport cython
from libc.stdint cimport int64_t, uint64_t

from nri_policy.native._cpuset cimport CPUSet
from nri_policy.native._pools cimport Slack

cdef enum:  # levels of domains, the coarsest first
    PACKAGE = 0
    NODE = 1
    L3 = 2
    LEVELS = 3

cdef struct Group:
    int low, high       # words [low, high) hold all its CPUs
    int size            # CPUs
    int leaf            # the first leaf with CPUs of the group; -1: none
    uint64_t *words     # full-width mask


@cython.final
cdef class Domains:
    cdef readonly int count       # of the tree; ids are in post-order, the last is the top
    cdef int width                # words of a CPU mask
    cdef int *parent              # id of the parent, -1 for the top
    cdef int *pool                # id of the Supply's pool of the same CPUs, -1 for none
    cdef int *first               # the lowest id in the subtree
    cdef int *word                # words [word, end) hold all CPUs of a leaf
    cdef int *end
    cdef int *at                  # [level * count + d]: d's own or surrounding domain of the level; -1: d is above it
    cdef int *leaf_of             # CPU id -> its leaf; -1: none
    cdef uint64_t *masks          # count * width words: the CPUs of each leaf
    cdef CPUSet every             # the machine's CPUs, also those outside of domains
    cdef Group *cores             # by leaf, then by lowest CPU; cores without a leaf come last
    cdef uint64_t *core_masks
    cdef int *first_core          # cores of leaf d are first_core[d]..first_core[d + 1] - 1
    cdef int *core_of             # CPU id -> index of its core
    # What is under way, valid during one pick:
    cdef int *inside              # CPUs of each domain that the taker has
    cdef const uint64_t *left     # candidates not taken yet
    cdef int *free                # candidates in each domain
    cdef int *spare               # CPUs that the slack leaves in each domain
    cdef int *cap                 # CPUs that can be taken in each domain, whatever is taken elsewhere
    cdef char *shared             # whether somebody with a CPU request shares the domain
    cdef char *chosen             # [level * count + d]: whether d is in the level's set
    cdef int *room                # [level * count + d]: what the level's set leaves of `spare`
    cdef int low, top             # the subtree that is picked from: ids low..top
    cdef bint guessed             # whether a choice was made that a finer level could regret
    cdef int trying               # above 0: only what a set costs is asked

    cdef bint starts(self, int level, int domain) noexcept nogil
    cdef void enter(self, int cpu) noexcept nogil
    cdef _add_cores(self, list cores)
    cdef describe(self, Group *group, uint64_t *words, CPUSet cpus)
    cdef Group *core(self, int cpu) noexcept nogil
    cdef bint idle(self, Group *group) noexcept nogil
    cdef int keep_whole_cores(self, uint64_t *left) noexcept nogil
    cdef int fill(self, const uint64_t *left, Slack slack, int unit) noexcept
    cdef int choose(self, int n, uint64_t *left) except -1
    cdef int64_t _search(self, int n) except -1
    cdef bint _surrounded(self, int level) noexcept nogil
    cdef int64_t _extend(self, int level, int n) noexcept nogil
    cdef int _next(self, int level, int missing, int n) noexcept nogil
    cdef bint _open(self, int level, int domain) noexcept nogil
    cdef int _gain(self, int level, int domain) noexcept nogil
    cdef int _add(self, int level, int domain) noexcept nogil
    cdef int _outside(self, int level, int n) noexcept nogil
    cdef int64_t _fewest(self, int n, int64_t cost) except -1
    cdef int64_t _weight(self, int domain) noexcept nogil
