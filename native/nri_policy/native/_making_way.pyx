"""Who makes way so that a request can be cut out of a pool: the search of spec placement.md §2, "Making way for width".

Owns the tests, by sums alone: nobody is booked anywhere. Sharers that leave a pool's subtree for its parent take what
they need off the pools below the parent, and change nothing of the parent and above. The last resort asks the same.
"""

cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int64_t
from libc.string cimport memset

from nri_policy.native._pools cimport Supply

@cython.final
cdef class Search:
    """The containers of a supply that can move up, to search for room for exclusive CPUs; reused for many requests."""

    cdef Supply supply
    cdef int count                # movers
    cdef int *pool                # by mover, in their order
    cdef int64_t *milli
    cdef int *first               # the lowest id in each pool's subtree
    cdef int *left                # movers of the target that have left each pool's subtree
    cdef int *below               # CPUs that the children of each pool allow to cut, and its own ones
    cdef int64_t *left_milli

    def __cinit__(self, Supply supply not None, list movers not None):
        """Take the *movers* in the order in which they move: tuples of milli-CPU, two that order them, their pool."""
        cdef int i, pool, n = supply.count
        self.supply, self.count = supply, len(movers)
        self.milli = <int64_t *> PyMem_Malloc((self.count + n) * sizeof(int64_t))
        self.pool = <int *> PyMem_Malloc((self.count + 3 * n) * sizeof(int))
        if not (self.milli and self.pool):
            raise MemoryError
        self.left_milli = self.milli + self.count
        self.first, self.left, self.below = (
            self.pool + self.count, self.pool + self.count + n, self.pool + self.count + 2 * n
        )
        for i in range(self.count):
            self.milli[i], _, _, pool = movers[i]
            if not 0 <= pool < n:
                raise ValueError(f"no pool {pool}")
            self.pool[i] = pool
        memset(self.left, 0, n * sizeof(int))
        memset(self.left_milli, 0, n * sizeof(int64_t))
        for pool in range(n):
            self.first[pool] = pool
        for pool in range(n - 1):  # the first child comes first
            if self.first[supply.parent[pool]] > self.first[pool]:
                self.first[supply.parent[pool]] = self.first[pool]

    def __dealloc__(self):
        PyMem_Free(self.milli)
        PyMem_Free(self.pool)

    def who(self, int target, int pool, int n, int64_t milli, bint shares, int looked_at):
        """Return the indexes of movers that must leave *target* so that *pool* can lose *n* CPUs; None if it cannot.

        *pool* is the target or lies in it; a mover that leaves the top is booked on the top. Takes the first mover
        that suffices alone. Otherwise adds movers in order, the first *looked_at* of the target at most, then drops
        unneeded ones, the last first. *milli* shared milli-CPU are booked on the pool, if it *shares*.
        """
        cdef int i, tried = 0
        if not (0 <= target < self.supply.count and self.first[target] <= pool <= target):
            raise ValueError(f"no pool {pool} in a pool {target}")
        moved = []
        if self._holds(pool, n, milli, shares):
            return moved
        self._leave_all(target, 1)
        held = self._holds(pool, n, milli, shares)
        self._leave_all(target, -1)
        if not held:
            return None
        for i in range(self.count):
            if self._inside(i, target):
                self._leave(i, target, 1)
                held = self._holds(pool, n, milli, shares)
                self._leave(i, target, -1)
                if held:
                    return [i]
        held = False
        for i in range(self.count):
            if self._inside(i, target) and not held and tried < looked_at:
                self._leave(i, target, 1)
                moved.append(i)
                tried += 1
                held = self._holds(pool, n, milli, shares)
        needed = []
        for i in reversed(moved):
            self._leave(i, target, -1)
            if held and not self._holds(pool, n, milli, shares):
                self._leave(i, target, 1)
                needed.append(i)
        for i in needed:
            self._leave(i, target, -1)
        return needed[::-1] if held else None

    cdef bint _inside(self, int mover, int target) noexcept nogil:
        return self.first[target] <= self.pool[mover] <= target

    cdef void _leave(self, int mover, int target, int sign) noexcept nogil:
        """Count a mover as gone from the target, or as back (-1); nobody is gone from the top."""
        cdef int pool = self.pool[mover], last = min(target, self.supply.count - 2)
        while 0 <= pool <= last:
            self.left[pool] += sign
            self.left_milli[pool] += sign * self.milli[mover]
            pool = self.supply.parent[pool]

    cdef void _leave_all(self, int target, int sign) noexcept nogil:
        cdef int i
        for i in range(self.count):
            if self._inside(i, target):
                self._leave(i, target, sign)

    cdef int _spare(self, int pool, int64_t more, bint shares) noexcept nogil:
        """Return the whole CPUs that may be cut out of a pool (§2), those without a request not counted."""
        cdef int64_t need = self.supply.shared_milli[pool] - self.left_milli[pool] + more
        if need < 1000 and (shares or self.supply.sharers[pool] > self.left[pool]):
            need = 1000
        need = 1000 * <int64_t> self.supply.sharable_left[pool] - need
        return <int> (need // 1000 if need >= 0 else -((-need + 999) // 1000))

    cdef bint _holds(self, int pool, int n, int64_t milli, bint shares) noexcept nogil:
        """Whether *n* CPUs can be cut out of a pool for a grant that books *milli* there."""
        cdef int q, held
        for q in range(self.first[pool], pool + 1):
            self.below[q] = self.supply.sharable_left[q]
        for q in range(self.first[pool], pool):
            self.below[self.supply.parent[q]] -= self.supply.sharable_left[q]
            self.below[self.supply.parent[q]] += min(max(self._spare(q, 0, False), 0), self.below[q])
        held = self.below[pool]
        while pool >= 0 and held >= n:
            held = min(held, self._spare(pool, milli, shares))
            pool = self.supply.parent[pool]
        return held >= n
