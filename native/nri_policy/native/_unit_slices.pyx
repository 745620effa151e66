"""Steps of the search for places of several units, one after the other: spec cluster.md §5.

Owns what each unit of a group still needs, and which states of what is left are alike. Reads counts; changes only
free amounts, by `take`.
"""

cimport cython
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport int64_t

from nri_policy.native._candidates cimport Key, sort_keys
from nri_policy.native._counts cimport Counts, Held, held_by
from nri_policy.native._domains cimport Rows, product
from nri_policy.native._packing cimport Places


@cython.final
cdef class UnitSlices:
    """The slices of a unit that need room."""

    cdef Counts counts
    cdef int level, slices, within
    cdef bint whole

    def __cinit__(self, Counts counts not None, int level, int slices, *, bint whole, int within=-1):
        """Take how many *slices* of the pods of *counts* need room: in one domain of *level* if they stay *whole*.

        All go *within* a domain, which is at *level* or above it, if it is none below 0.
        """
        counts.domains.of_level(level)  # raises IndexError
        if within >= 0:
            counts.domains._check(within)
        self.counts, self.level, self.slices, self.whole, self.within = counts, level, slices, whole, within

    def holders(self):
        """Return the domains of the level that hold all slices, with the leader if there is one: best fit first."""
        cdef list found = []
        cdef int top
        self.counts.refresh()
        if self.within >= 0:
            self._find_holders(self.within, self.counts.level_of(self.within), found)
        else:
            for top in range(self.counts.domains.offset[1]):
                self._find_holders(top, 0, found)
        found.sort()
        return [each[3] for each in found]

    cdef _find_holders(self, int domain, int at, list found):
        """Add to *found* the holders at or below a domain of level *at*."""
        cdef Counts counts = self.counts
        cdef int child
        if at == self.level:
            if self._is_held_by(domain):
                score = counts.score[domain] if counts.score else 0
                found.append((-score, counts.slices_l[domain], counts.pods_l[domain], domain))
        elif self._may_be_held_below(domain):
            for child in range(counts.domains.low[domain], counts.domains.high[domain]):
                self._find_holders(child, at + 1, found)

    def may_fit(self):
        """Return whether the slices fit by themselves, as far as counts tell: if they need not stay whole, in sum."""
        cdef Counts counts = self.counts
        cdef int top, low = 0, high = counts.domains.offset[1]
        cdef int64_t held = 0
        counts.refresh()
        if self.within >= 0:
            low, high = self.within, self.within + 1
        if self.whole:
            return self._is_held_in(low, high, counts.level_of(low))
        for top in range(low, high):
            held += counts.slices[top]
        return held >= self.slices

    cdef bint _is_held_in(self, int low, int high, int at) noexcept nogil:
        """Return whether one domain holds all, at or below domains of level *at*."""
        cdef int domain
        for domain in range(low, high):
            if at == self.level:
                if self._is_held_by(domain):
                    return True
            elif self._may_be_held_below(domain):
                if self._is_held_in(self.counts.domains.low[domain], self.counts.domains.high[domain], at + 1):
                    return True
        return False

    cdef bint _is_held_by(self, int domain) noexcept nogil:
        return self.counts.slices_l[domain] >= self.slices and (
            not self.counts.leaders or self.counts.leaders[domain]
        )

    cdef bint _may_be_held_below(self, int domain) noexcept nogil:
        # a cap may hide what is below
        return self.counts.pods[domain] or self.counts.cap_level >= 0 or not self.slices

    cdef bint _can_use(self, int leaf) noexcept nogil:
        """Return whether pods, or their leader, may go to a leaf: now, or once there is less elsewhere."""
        cdef int at = self.counts.domains.levels - 1, domain = self.counts.domains.offset[at] + leaf
        if not (self.counts.pods[domain] or (self.counts.leaders and self.counts.leaders[domain])):
            return False
        while at > self.level:
            at, domain = at - 1, self.counts.domains.parent[domain]
        return not self.whole or self._is_held_by(domain)


def all_may_fit(list units not None):
    """Return whether each of some `UnitSlices` fits by itself, as far as counts tell."""
    cdef UnitSlices each
    for each in units:
        if not each.may_fit():
            return False
    return True


def describe_domain(list units not None, int domain):
    """Return what a domain holds of the pods of each of some `UnitSlices`, as bytes, to compare."""
    cdef UnitSlices each
    cdef int number = 0, count = len(units)
    cdef Held *held = <Held *> PyMem_Calloc(count + 1, sizeof(Held))
    if not held:
        raise MemoryError
    try:
        for each in units:
            each.counts.domains._check(domain)
            each.counts.refresh()
            held[number] = held_by(each.counts, domain)
            number += 1
        return (<char *> held)[:count * sizeof(Held)]
    finally:
        PyMem_Free(held)


def take(Counts counts not None, Places places not None, int leader, int64_t times):
    """Take pods at *places*, and their leader at a leaf or -1, off the rows of their counts, *times* times."""
    cdef Rows rows = counts.rows
    cdef int index, at
    for index in range(places.size):
        rows._check(places.leaf[index])
        for at in range(counts.pod.size):
            rows.free[counts.pod.resource[at]][places.leaf[index]] -= product(
                counts.pod.amount[at], times * places.pods[index]
            )
        rows.touch(places.leaf[index])
    if leader >= 0:
        rows._check(leader)
        for at in range(counts.leader.size):
            rows.free[counts.leader.resource[at]][leader] -= product(counts.leader.amount[at], times)
        rows.touch(leader)


def describe_left(list units not None, list taken not None):
    """Return what leaves in *taken*, pairs of `Places` and a leader's leaf, have left for some `UnitSlices`, as bytes.

    What is equal here is equal to these units, whatever else is left there: of each leaf it says which of them can use
    it, and the free amounts of what those request. Their counts are up to date and of the same rows.
    """
    cdef Rows rows = (<UnitSlices> units[0]).counts.rows
    cdef UnitSlices unit
    cdef Places places
    cdef int index, number, leaves = 0, most = 0, flags = 1 + (len(units) + 63) // 64, width = flags + len(rows.names)
    cdef Key *keys
    cdef int64_t *left
    for places, _ in taken:
        most += places.size + 1
    keys = <Key *> PyMem_Calloc(2 * <size_t> most + 1, sizeof(Key))
    left = <int64_t *> PyMem_Calloc(<size_t> most * width + 1, sizeof(int64_t))
    try:
        if not (keys and left):
            raise MemoryError
        most = 0
        for places, leader in taken:
            for index in range(places.size):
                keys[most].value = places.leaf[index]
                most += 1
            if leader >= 0:
                keys[most].value = leader
                most += 1
        sort_keys(keys, most)
        for index in range(most):
            if not index or keys[index].value != keys[index - 1].value:
                left[leaves * width] = keys[index].value
                leaves += 1
        for number in range(len(units)):
            unit = units[number]
            for index in range(leaves):
                if unit._can_use(<int> left[index * width]):
                    left[index * width + 1 + number // 64] |= <int64_t> 1 << number % 64
                    _copy_free(unit.counts, <int> left[index * width], left + index * width + flags)
        return (<char *> left)[:leaves * width * sizeof(int64_t)]
    finally:
        PyMem_Free(keys)
        PyMem_Free(left)


cdef void _copy_free(Counts counts, int leaf, int64_t *free) noexcept nogil:
    """Copy the free amounts of a leaf that pods of *counts* request, or their leader; *free* is by resource."""
    cdef int at
    for at in range(counts.pod.size):
        free[counts.pod.resource[at]] = counts.rows.free[counts.pod.resource[at]][leaf]
    for at in range(counts.leader.size if counts.leaders else 0):
        free[counts.leader.resource[at]] = counts.rows.free[counts.leader.resource[at]][leaf]
