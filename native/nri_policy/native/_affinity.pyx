"""The affinity score of every pool at once; spec placement.md §5.

Weights sit on containers, containers on pools; a pool's score is the sum over the pools on its path to the top and
in its subtree, each link taking a quarter away. Two passes over the tree give all of them. Weights are whole and a
path has few links, so doubles hold every sum exactly: a score depends on no order of summation, and pools that are
alike score alike to the last bit.
"""

from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport int64_t

cdef extern from "bits.h" nogil:
    int bits_lowest(unsigned long long word)

cdef double LINK = 0.75


def scores(const int[:] parents not None, const int[:] pools not None, terms):
    """Return the affinity of each pool, as a tuple by pool id.

    *parents* are the parents' ids in post-order, -1 for the top; *pools* the pool of each container by its bit;
    *terms* pairs of a weight and the set, as an integer, of the containers that have it. ValueError where a set has
    a container that is on no pool.
    """
    cdef Py_ssize_t count = parents.shape[0], size = (pools.shape[0] + 7) >> 3, pool
    cdef int64_t *booked = <int64_t *> PyMem_Calloc(count, sizeof(int64_t))   # weight on the pool itself
    cdef double *above = <double *> PyMem_Calloc(2 * count, sizeof(double))  # what the path above a pool adds
    cdef double *below = above + count                                       # the pool and its subtree
    cdef bytes members
    try:
        if booked == NULL or above == NULL:
            raise MemoryError
        for pool in range(count):
            if not (pool < parents[pool] < count or (parents[pool] == -1 and pool == count - 1)):
                raise ValueError("pools must be in post-order, the top last")
        for weight, which in terms:
            members = which.to_bytes(size, "little")
            if not _book(weight, members, size, pools, booked, count):
                raise ValueError("a container is on no pool")
        _spread(count, parents, booked, above, below)
        return tuple([above[pool] + below[pool] for pool in range(count)])
    finally:
        PyMem_Free(booked)
        PyMem_Free(above)


cdef bint _book(int64_t weight, const unsigned char *members, Py_ssize_t size, const int[:] pools,
                int64_t *booked, Py_ssize_t count) noexcept nogil:
    """Add *weight* to the pool of each member; false, half-way, if one has none."""
    cdef Py_ssize_t at, slot
    cdef unsigned char byte
    for at in range(size):
        byte = members[at]
        while byte:
            slot = (at << 3) + bits_lowest(byte)
            if slot >= pools.shape[0] or not 0 <= pools[slot] < count:
                return False
            booked[pools[slot]] += weight
            byte &= byte - 1
    return True


cdef void _spread(Py_ssize_t count, const int[:] parents, const int64_t *booked, double *above,
                  double *below) noexcept nogil:
    """Sum upwards, children before parents, then downwards."""
    cdef Py_ssize_t pool
    for pool in range(count):
        below[pool] += booked[pool]
        if parents[pool] >= 0:
            below[parents[pool]] += LINK * below[pool]
    for pool in range(count - 2, -1, -1):
        above[pool] = LINK * (booked[parents[pool]] + above[parents[pool]])
