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
    cdef int *resource           # indexes of the requested resources, by name
    cdef int64_t *amount         # request of one pod, > 0


cdef class Rows:
    cdef readonly Domains domains
    cdef readonly list names     # of the resources, by index
    cdef dict index              # name -> index
    cdef int64_t **free          # resource -> leaf -> free amount; negative if overused
    cdef bint unlisted
    cdef int *nodes              # leaf -> nodes that take part
    cdef int *changed            # leaves that changed, in order
    cdef int changes             # entries of it
    cdef readonly int64_t epoch  # how often `changed` was emptied
    cdef Rows origin             # of a fork: the rows it was copied from, and their state then
    cdef int64_t origin_epoch
    cdef int origin_changes
    cdef touch(self, int leaf)
    cdef _check(self, int leaf)


cdef class Mask:
    cdef readonly int leaves
    cdef uint8_t *code           # leaf -> reason of its exclusion, 0 for none
    cdef int64_t *score          # leaf -> sum of the weights of preferred affinity; NULL if there are none


cdef int64_t product(int64_t amount, int64_t count) noexcept nogil
