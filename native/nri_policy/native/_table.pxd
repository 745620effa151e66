cimport cython
from libc.stdint cimport int64_t, uint64_t

cpdef enum Column:  # criteria in the order in which they decide; higher is better
    ISOLATED_FIT
    AFFINITY
    HINTS
    HINTS_NONZERO
    HINT_DEPTH
    MEMORY_KIND
    MEMORY_BURST
    BURST_LEVEL
    BURST_ROOM
    MEMORY_TIGHTNESS
    CPU_CLASS
    UNDISTURBED_MEMORY
    DEPTH               # the last criterion that justifies moving a container
    PACKAGES
    NODES
    L3S
    QUIET
    CAPACITY
    CAPACITY_SECOND
    ID

cdef enum:
    WIDTH = ID + 1
    CELLS = WIDTH + 2  # of a row, with its shortfall and whether it is excluded


@cython.final
cdef class Table:
    cdef readonly int count
    cdef double *values           # count rows of a value for each Column
    cdef int64_t *shortfall       # milli-CPU (or bytes) that a pool lacks; 0 where it can hold the request
    cdef char *excluded           # whether a pool takes no part in the comparison

    cdef bint _higher(self, int pool, int other, int columns) noexcept
    cdef uint64_t _cell(self, int pool, int column) noexcept
    cdef void _set_cell(self, int pool, int column, uint64_t cell) noexcept
