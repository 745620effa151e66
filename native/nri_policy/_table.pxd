cimport cython
from libc.stdint cimport int64_t, uint64_t

cdef enum:  # columns of a row; those that only Python fills go by their names
    ISOLATED_FIT = 0
    BURST_LEVEL = 7
    BURST_ROOM = 8
    CPU_CLASS = 10
    UNDISTURBED_MEMORY = 11
    DEPTH = 12
    CAPACITY = 13
    CAPACITY_SECOND = 14
    ID = 15
    WIDTH = 16
    CELLS = WIDTH + 2  # of a row with all that is known of its pool


@cython.final
cdef class Table:
    cdef readonly int count
    cdef double *values           # count rows of COLUMNS values
    cdef int64_t *shortfall       # milli-CPU (or bytes) that a pool lacks; 0 where it can hold the request
    cdef char *excluded           # whether a pool is out of the comparison whatever it has

    cdef bint _higher(self, int pool, int other, int columns) noexcept
    cdef uint64_t _cell(self, int pool, int column) noexcept
    cdef void _set_cell(self, int pool, int column, uint64_t cell) noexcept
