from libc.stdint cimport int32_t, int64_t, uint8_t


cdef class Domains:
    cdef readonly int levels
    cdef readonly int count      # domains of all levels
    cdef readonly int leaves
    cdef int *offset             # level -> id of its first domain; [levels] is `count`
    cdef int *low                # domain -> id of its first child; of a leaf its own
    cdef int *high               # domain -> id behind its last child; of a leaf its own
    cdef int *parent             # domain -> id of its parent, -1 at the top
    cdef _check(self, int domain)


cdef class Vector:
    cdef readonly int size
    cdef int *resource           # index of each resource that is requested, by name
    cdef int64_t *amount         # what one pod requests of it, over 0


cdef class Rows:
    cdef readonly Domains domains
    cdef readonly list names     # of the resources, by index
    cdef dict index              # name -> index
    cdef int64_t **free          # resource -> leaf -> what is left, below 0 where too much is used
    cdef bint unlisted
    cdef int *nodes              # leaf -> nodes that take part
    cdef int *changed            # leaves that changed, in order
    cdef int changes             # entries of it
    cdef readonly int64_t epoch  # how often `changed` was emptied
    cdef touch(self, int leaf)
    cdef _check(self, int leaf)


cdef class Mask:
    cdef readonly int leaves
    cdef uint8_t *code           # leaf -> why it is excluded, 0 if it is not
    cdef int64_t *score          # leaf -> sum of the weights of preferred affinity; NULL if there are none


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
    cdef int64_t epoch           # of the rows when they were last read, -1 before
    cdef int seen                # changes that are in
    cdef int32_t *pods           # by domain
    cdef int32_t *slices
    cdef int32_t *pods_l         # with the leader; the same arrays where there is none
    cdef int32_t *slices_l
    cdef uint8_t *leaders        # NULL without a leader
    cdef int64_t *score          # NULL without preferred affinity
    cdef int level_of(self, int domain)
    cdef int _first_leaf(self, int domain) noexcept nogil
    cdef void count_leaf(self, int leaf) noexcept nogil
    cdef void roll_up(self, int domain, int level) noexcept nogil
    cdef refresh(self)
