cimport cython
from libc.stdint cimport int32_t, int64_t

from nri_policy.native._amount cimport amount_t


@cython.final
cdef class Distances:
    cdef readonly int count
    cdef int32_t *costs         # count * count
    cdef float *nearest         # by size of a set: the least mean distance of all sets; -1 until asked


@cython.final
cdef class Columns:
    cdef readonly tuple resources
    cdef int width, host_width
    cdef int32_t *names         # width
    cdef int32_t *host_names    # host_width


@cython.final
cdef class NumaNode:
    cdef readonly tuple zones           # ids, ascending
    cdef readonly Columns columns
    cdef readonly Distances distances
    cdef readonly bint stale, known, single, by_pod
    cdef readonly int max_numa
    cdef int count, width
    cdef amount_t *available            # count * width; AMOUNT_UNLISTED where a zone does not list it
    cdef amount_t *allocatable          # the same
    cdef int64_t *whole                 # count * width: available in whole units, 0 where not listed

    cdef size_t _bytes(self) noexcept
    cdef int _fill(self, int row, amounts, amount_t *cells, bint whole) except -1
    cdef int _limit(self, ids, list taken, dict left) except -1
    cdef int _most(self, list amounts) except -2
    cdef bint _has(self, int row, list amounts) except -1
    cdef bint _has_more(self, int row, int other, list amounts) except -1
    cdef int _subtract(self, int row, list amounts) except -1
