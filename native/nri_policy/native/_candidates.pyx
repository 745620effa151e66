"""Candidates: domains for pods, in the order in which they are filled; spec cluster.md §5.

Owns the order. Few are sorted by insertion, many by digits, so that all leaves of a large cluster take a millisecond.
"""

cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.stdint cimport INT32_MAX, int32_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from nri_policy.native._counts cimport Counts

cdef int FEW = 24  # candidates, or keys, that are sorted by insertion


@cython.final
cdef class Row:
    """Candidates, in an order."""

    def __dealloc__(self):
        PyMem_Free(self.at)

    cdef reserve(self, int room):
        cdef Candidate *grown
        if room > self.room:
            grown = <Candidate *> PyMem_Realloc(self.at, <size_t> room * sizeof(Candidate))
            if not grown:
                raise MemoryError
            self.at, self.room = grown, room

    cdef push(self, Candidate each):
        if self.size == self.room:
            self.reserve(2 * self.room + 16)
        self.at[self.size] = each
        self.size += 1


cdef load(Counts counts, Row row, int low, int high):
    """Add the domains from *low* to before *high* to a row."""
    cdef int domain
    cdef Candidate *at
    if row.size + high - low > row.room:
        row.reserve(max(row.size + high - low, 2 * row.room))
    at = row.at + row.size
    for domain in range(low, high):
        at.domain = domain
        at.pods, at.slices = counts.pods[domain], counts.slices[domain]
        at.pods_l, at.slices_l = counts.pods_l[domain], counts.slices_l[domain]
        at.leaders = counts.leaders[domain] if counts.leaders else 0
        at.score = counts.score[domain] if counts.score else 0
        at += 1
    row.size += high - low


cdef bint before(Candidate *one, Candidate *other, Order order) noexcept nogil:
    """Return whether *one* comes before *other*."""
    cdef int32_t own, others
    if order.with_leader and one.leaders != other.leaders:
        return one.leaders > other.leaders
    if order.scored and one.score != other.score:
        return one.score > other.score
    own = one.slices_l if order.with_leader else one.slices
    others = other.slices_l if order.with_leader else other.slices
    if own != others:
        return own < others if order.ascending else own > others
    own = one.pods_l if order.with_leader else one.pods
    others = other.pods_l if order.with_leader else other.pods
    if own != others:
        return own < others
    return one.domain < other.domain


cdef sort(Row row, Order order):
    """Sort a row: leader, score, slices, pods, path."""
    cdef int index, at
    cdef Candidate moved
    if row.size > FEW:
        _sort_many(row, order)
        return
    for index in range(1, row.size):
        moved = row.at[index]
        at = index
        while at and before(&moved, &row.at[at - 1], order):
            row.at[at] = row.at[at - 1]
            at -= 1
        row.at[at] = moved


cdef _sort_many(Row row, Order order):
    """Sort by digits, the least significant key first: path, pods and slices, score, leader."""
    cdef int index, n = row.size
    cdef Candidate *each
    cdef Candidate *sorted
    cdef uint32_t slices
    cdef int part
    cdef Key *keys = <Key *> PyMem_Malloc(2 * <size_t> n * sizeof(Key))
    sorted = <Candidate *> PyMem_Malloc(<size_t> n * sizeof(Candidate))
    if not (keys and sorted):
        PyMem_Free(keys)
        PyMem_Free(sorted)
        raise MemoryError
    with nogil:
        for index in range(n):
            keys[index].index = index
        for part in range(4):
            for index in range(n):
                each = row.at + keys[index].index
                if part == 0:
                    keys[index].value = each.domain
                elif part == 1:
                    slices = each.slices_l if order.with_leader else each.slices
                    if not order.ascending:
                        slices = INT32_MAX - slices
                    keys[index].value = <uint64_t> slices << 31
                    keys[index].value |= <uint32_t> (each.pods_l if order.with_leader else each.pods)
                elif part == 2:
                    keys[index].value = ~(<uint64_t> each.score ^ (<uint64_t> 1 << 63)) if order.scored else 0
                else:
                    keys[index].value = 1 - each.leaders if order.with_leader else 0
            sort_keys(keys, n)
        for index in range(n):
            sorted[index] = row.at[keys[index].index]
        memcpy(row.at, sorted, <size_t> n * sizeof(Candidate))
    PyMem_Free(keys)
    PyMem_Free(sorted)


cdef void sort_keys(Key *keys, int n) noexcept nogil:
    """Sort by value, stable; *keys* has room for 2 · *n* keys."""
    cdef Key *source = keys
    cdef Key *target = keys + n
    cdef uint64_t differing = 0
    cdef int starts[2048]
    cdef Key moved
    cdef int index, at, shift, digit, sum, own
    cdef bint ordered = True
    if n <= FEW:
        for index in range(1, n):
            moved, at = keys[index], index
            while at and keys[at - 1].value > moved.value:
                keys[at] = keys[at - 1]
                at -= 1
            keys[at] = moved
        return
    for index in range(1, n):
        differing |= keys[index].value ^ keys[0].value
        if keys[index].value < keys[index - 1].value:
            ordered = False
    if ordered:
        return
    for shift in range(0, 64, 11):
        if not (differing >> shift) & 2047:
            continue
        memset(starts, 0, sizeof(starts))
        for index in range(n):
            starts[(source[index].value >> shift) & 2047] += 1
        sum = 0
        for digit in range(2048):
            own = starts[digit]
            starts[digit] = sum
            sum += own
        for index in range(n):
            digit = (source[index].value >> shift) & 2047
            target[starts[digit]] = source[index]
            starts[digit] += 1
        source, target = target, source
    if source != keys:
        memcpy(keys, source, <size_t> n * sizeof(Key))
