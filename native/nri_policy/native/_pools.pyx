"""Accounting and scoring of all pools of a tree in flat arrays.

Owns what every pool has left, as spec placement.md §2 defines it, and fills in the criteria of §4 that follow from
it; knows neither names nor containers. Sums over a subtree are kept, not computed: booking walks from a pool to the
top once, so that a request reads them. Pools are given by id, amounts in milli-CPU.
"""

cimport cython
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

from nri_policy.native._cpuset cimport LIMIT, CPUSet, from_words
from nri_policy.native._table cimport BURST_LEVEL, BURST_ROOM, CAPACITY, CAPACITY_SECOND, CPU_CLASS, DEPTH, ID, ISOLATED_FIT
from nri_policy.native._table cimport QUIET, UNDISTURBED_MEMORY, WIDTH, Table

cdef extern from "bits.h" nogil:
    int bits_lowest(uint64_t word)


@cython.final
cdef class Supply:
    """What every pool of a tree has left: free CPUs, shared milli-CPU, booked grants."""

    def __cinit__(self, parents, masks, CPUSet sharable not None, CPUSet isolated not None, wide=(),
                  package_milli=()):
        """Take the parent id (-1 for the top, the last) and the CPUs of each pool, and the capacities.

        *parents* and *masks* are in post-order: a parent comes after all below it. *wide* are the pools that span
        more than one NUMA node; *package_milli* has for each pool how many milli-CPU one package holds at most, or 0
        where the pool does not span several.
        """
        cdef int pool, cpu, n = len(parents)
        cdef CPUSet mask = masks[n - 1]
        cdef char *at
        self.count = n
        self.width = mask.used
        self.parent = <int *> PyMem_Calloc(n, sizeof(int))
        self.depth = <int *> PyMem_Calloc(n, sizeof(int))
        self.home = <int *> PyMem_Calloc(self.width * 64, sizeof(int))
        self.sharable = <uint64_t *> PyMem_Calloc(self.width, sizeof(uint64_t))
        self.isolated = <uint64_t *> PyMem_Calloc(self.width, sizeof(uint64_t))
        self.wide = <char *> PyMem_Calloc(n, 1)
        self.package_milli = <int64_t *> PyMem_Calloc(n, sizeof(int64_t))
        self.state_size = n * sizeof(int64_t) + 2 * self.width * sizeof(uint64_t) + 7 * n * sizeof(int)
        self.state = <char *> PyMem_Calloc(self.state_size, 1)
        if not (self.parent and self.depth and self.home and self.sharable and self.isolated and self.wide
                and self.package_milli and self.state):
            raise MemoryError
        at = self.state
        self.shared_milli = <int64_t *> at
        at += n * sizeof(int64_t)
        self.free = <uint64_t *> at
        self.free_isolated = self.free + self.width
        at += 2 * self.width * sizeof(uint64_t)
        self.sharable_left = <int *> at
        self.isolated_left = self.sharable_left + n
        self.sharers = self.sharable_left + 2 * n
        self.preemptibles = self.sharable_left + 3 * n
        self.booked = self.sharable_left + 4 * n
        self.requesters = self.sharable_left + 5 * n
        self.colocated = self.sharable_left + 6 * n
        if not (sharable <= mask and isolated <= mask and sharable.isdisjoint(isolated)):
            raise ValueError("sharable and isolated CPUs must be disjoint and in the top pool")
        memcpy(self.sharable, sharable.words, sharable.used * sizeof(uint64_t))
        memcpy(self.isolated, isolated.words, isolated.used * sizeof(uint64_t))
        for pool in range(n - 1, -1, -1):
            self.parent[pool] = parents[pool]
            if pool == n - 1:
                if self.parent[pool] != -1:
                    raise ValueError("the last pool must be the top")
            elif not pool < self.parent[pool] < n:
                raise ValueError("a pool's parent must come after it")
            else:
                self.depth[pool] = self.depth[self.parent[pool]] + 1
        for pool in wide:
            self.wide[pool] = True
        for pool, milli in enumerate(package_milli):
            self.package_milli[pool] = milli
        for cpu in range(self.width * 64):
            self.home[cpu] = -1
        for pool in range(n - 1, -1, -1):  # deeper pools come later and overwrite
            for cpu in masks[pool]:
                self.home[cpu] = pool
        self._move(sharable.words, sharable.used, self.free, self.sharable_left, 1)
        self._move(isolated.words, isolated.used, self.free_isolated, self.isolated_left, 1)

    def __dealloc__(self):
        PyMem_Free(self.parent)
        PyMem_Free(self.depth)
        PyMem_Free(self.home)
        PyMem_Free(self.sharable)
        PyMem_Free(self.isolated)
        PyMem_Free(self.wide)
        PyMem_Free(self.package_milli)
        PyMem_Free(self.state)

    cdef void _move(self, const uint64_t *words, int used, uint64_t *side, int *left, int sign) noexcept nogil:
        """Put CPUs into a free set (sign 1) or take them out (-1), and count them in every pool that holds them."""
        cdef int w, pool
        cdef uint64_t word
        for w in range(used):
            word = words[w]
            side[w] = side[w] | word if sign > 0 else side[w] & ~word
            while word:
                pool = self.home[(w << 6) + bits_lowest(word)]
                while pool >= 0:
                    left[pool] += sign
                    pool = self.parent[pool]
                word &= word - 1

    cdef int64_t need(self, int pool, int64_t more, bint shares, bint with_preemptible) noexcept nogil:
        """The milli-CPU that must stay in *pool*: need(Q) of §2, with *more* shared if *shares* is set."""
        cdef int64_t milli = self.shared_milli[pool] + more
        if milli < 1000 and (shares or self.sharers[pool] or (with_preemptible and self.preemptibles[pool])):
            return 1000
        return milli

    def take(self, CPUSet cpus not None):
        """Take *cpus* out for an exclusive grant; ValueError, and no change, unless all are free and of one sort."""
        if self.free_cpus() >= cpus:
            self._move(cpus.words, cpus.used, self.free, self.sharable_left, -1)
        elif self.free_isolated_cpus() >= cpus:
            self._move(cpus.words, cpus.used, self.free_isolated, self.isolated_left, -1)
        else:
            raise ValueError(f"CPUs {cpus} are not all free")

    def give(self, CPUSet cpus not None):
        """Give back *cpus* of an exclusive grant; ValueError, and no change, unless all were taken."""
        cdef CPUSet sharable = from_words(self.sharable, self.width), isolated = from_words(self.isolated, self.width)
        if cpus <= sharable and cpus.isdisjoint(self.free_cpus()):
            self._move(cpus.words, cpus.used, self.free, self.sharable_left, 1)
        elif cpus <= isolated and cpus.isdisjoint(self.free_isolated_cpus()):
            self._move(cpus.words, cpus.used, self.free_isolated, self.isolated_left, 1)
        else:
            raise ValueError(f"CPUs {cpus} were not all taken")

    def book(self, int pool, int64_t milli, bint shares, bint preemptible):
        """Book a grant on *pool*: *milli* shared milli-CPU if it *shares*, else none.

        A *preemptible* shares without a request and may be moved to make room.
        """
        self._book(pool, milli, shares, preemptible, 1)

    def unbook(self, int pool, int64_t milli, bint shares, bint preemptible):
        """Undo what `book` did with the same arguments; ValueError, and no change, where it cannot have been."""
        self._book(pool, milli, shares, preemptible, -1)

    cdef _book(self, int pool, int64_t milli, bint shares, bint preemptible, int sign):
        if not 0 <= pool < self.count or milli < 0 or (milli and (preemptible or not shares)):
            raise ValueError(f"cannot book {milli}m on pool {pool}")
        if sign < 0 and not self._has_booked(pool, milli, shares, preemptible):
            raise ValueError(f"{milli}m of such a grant are not booked on pool {pool}")
        self.booked[pool] += sign
        self.colocated[pool] += sign * shares
        while pool >= 0:
            self.shared_milli[pool] += sign * milli
            if preemptible:
                self.preemptibles[pool] += sign
            elif shares:
                self.sharers[pool] += sign
                self.requesters[pool] += sign * (milli > 0)
            pool = self.parent[pool]

    cdef bint _has_booked(self, int pool, int64_t milli, bint shares, bint preemptible) noexcept nogil:
        """Whether a grant like that can be booked on *pool*; sums over a subtree hold for all pools above it, too."""
        if not self.booked[pool] or self.shared_milli[pool] < milli:
            return False
        if shares and not self.colocated[pool]:
            return False
        if preemptible:
            return self.preemptibles[pool] > 0
        return not shares or (self.sharers[pool] > 0 and self.requesters[pool] >= (milli > 0))

    def free_cpus(self):
        """Return the sharable CPUs that are in no exclusive grant."""
        return from_words(self.free, self.width)

    def free_isolated_cpus(self):
        """Return the isolated CPUs that are in no exclusive grant."""
        return from_words(self.free_isolated, self.width)

    def allocatable_shared(self, int pool):
        """Return the milli-CPU that a new shared grant on *pool* can have at most (§2)."""
        if not 0 <= pool < self.count:
            raise ValueError(f"no pool {pool}")
        return self._allocatable_shared(pool)

    cdef int64_t _allocatable_shared(self, int pool) noexcept nogil:
        cdef int64_t least = 1000 * <int64_t> self.sharable_left[pool] - self.shared_milli[pool]
        while self.parent[pool] >= 0:
            pool = self.parent[pool]
            least = min(least, 1000 * <int64_t> self.sharable_left[pool] - self.shared_milli[pool])
        return least

    def shared_milli_in(self, int pool):
        """Return the milli-CPU of the shared grants booked in *pool*'s subtree."""
        if not 0 <= pool < self.count:
            raise ValueError(f"no pool {pool}")
        return self.shared_milli[pool]

    def has_preemptible(self):
        """Return whether any container is booked that may be moved to make room."""
        return self.preemptibles[self.count - 1] > 0

    def snapshot(self):
        """Return the whole state as a value that `restore` takes."""
        return self.state[:self.state_size]

    def restore(self, bytes snapshot not None):
        """Go back to the state of a *snapshot* of this very supply."""
        if <size_t> len(snapshot) != self.state_size:
            raise ValueError("the snapshot is of another tree")
        memcpy(self.state, <const char *> snapshot, self.state_size)

    def slack(self, int pool, int64_t milli, bint shares, bint with_preemptible):
        """Return how many CPUs may be cut out of each pool for a grant on *pool* that also books *milli* there."""
        cdef Slack result = Slack.__new__(Slack)
        cdef int q, at
        if not 0 <= pool < self.count:
            raise ValueError(f"no pool {pool}")
        result.supply = self
        result.pool = pool
        result.left = <int *> PyMem_Malloc(self.count * sizeof(int))
        if result.left == NULL:
            raise MemoryError
        for q in range(self.count):
            result.left[q] = _cpus_left(self, q, 0, False, with_preemptible)
        at = pool
        while at >= 0:
            result.left[at] = _cpus_left(self, at, milli, shares, with_preemptible)
            at = self.parent[at]
        return result

    def score(self, *, int exclusive=0, int64_t milli=0, bint shares=False, int isolated=0,
              bint with_preemptible=True, limit=None, burst_levels=None, CPUSet wanted_class=None, bint tight=False):
        """Return the Table of a request: which pools can hold it, and the CPU criteria of §4 for each.

        *exclusive* CPUs; *milli* shared milli-CPU, *shares* if it has a shared part at all; *isolated* 0 no, 1 if
        possible, 2 required; *with_preemptible* false to not count containers without a request (making room).
        For Burstable containers *limit* is the CPU limit in milli-CPU, or None and *burst_levels* the closeness of
        each pool to the level that is preferred without one. *wanted_class* are the CPUs of the wanted priority.
        *tight* prefers pools that have fewest CPUs left to cut, to keep the others for large requests.
        """
        cdef Table table = Table.__new__(Table, self.count)
        cdef int n = self.count, pool, at
        cdef int *cuttable = <int *> PyMem_Malloc(3 * n * sizeof(int))
        cdef int *below = cuttable + n      # CPUs that the children allow to cut, and the pool's own ones
        cdef int *in_class = cuttable + 2 * n
        cdef int64_t least, deficit, limit_milli = -1
        cdef int64_t rank
        cdef int cut
        cdef bint isolated_fit
        cdef double *row
        if cuttable == NULL:
            raise MemoryError
        if limit is not None:
            limit_milli = limit
        for pool in range(n):
            below[pool] = self.sharable_left[pool]
            in_class[pool] = 0
        for pool in range(n):  # post-order: children are done when their parent comes
            cuttable[pool] = min(max(_cpus_left(self, pool, 0, False, with_preemptible), 0), below[pool])
            if self.parent[pool] >= 0:
                below[self.parent[pool]] += cuttable[pool] - self.sharable_left[pool]
        if wanted_class is not None:
            self._count_class(wanted_class, in_class)
        for pool in range(n):
            row = table.values + pool * WIDTH
            isolated_fit = isolated > 0 and exclusive > 0 and self.isolated_left[pool] >= exclusive
            cut = 0 if isolated_fit else exclusive
            at, least = pool, 1000 * <int64_t> LIMIT
            while at >= 0:
                least = min(least, 1000 * <int64_t> self.sharable_left[at] - self.need(at, milli, shares, with_preemptible))
                at = self.parent[at]
            rank = min(_floor(least), <int64_t> below[pool])
            if isolated == 2 and not isolated_fit:
                deficit = 1000 * (<int64_t> exclusive - self.isolated_left[pool])
            elif cut:
                deficit = max(0, 1000 * (cut - rank))
            else:
                deficit = max(0, -least) if shares else 0
            table.shortfall[pool] = deficit
            row[<int> ISOLATED_FIT] = isolated_fit or not isolated
            if limit is not None:
                row[<int> BURST_ROOM] = min(0, self._allocatable_shared(pool) - limit_milli)
                row[<int> BURST_ROOM] -= width_cost(limit_milli, self.wide[pool], self.package_milli[pool])
            elif burst_levels is not None:
                row[<int> BURST_LEVEL] = burst_levels[pool]
                row[<int> BURST_ROOM] = self._allocatable_shared(pool)
            if wanted_class is not None:
                row[<int> CPU_CLASS] = in_class[pool] >= exclusive
            row[<int> UNDISTURBED_MEMORY] = 1
            row[<int> DEPTH] = self.depth[pool]
            if exclusive:
                row[<int> QUIET] = -self.requesters[pool]
            if isolated_fit:
                row[<int> CAPACITY] = self.isolated_left[pool] - exclusive
            elif exclusive:
                row[<int> CAPACITY] = cut - rank if tight else rank - cut
            else:
                row[<int> CAPACITY] = -self.colocated[pool]
                row[<int> CAPACITY_SECOND] = self._allocatable_shared(pool) - milli
            row[<int> ID] = -pool
        PyMem_Free(cuttable)
        return table

    cdef _count_class(self, CPUSet wanted, int *counts):
        """Count the free sharable CPUs of a class in every pool."""
        cdef int w, pool
        cdef uint64_t word
        for w in range(min(self.width, wanted.used)):
            word = self.free[w] & wanted.words[w]
            while word:
                pool = self.home[(w << 6) + bits_lowest(word)]
                while pool >= 0:
                    counts[pool] += 1
                    pool = self.parent[pool]
                word &= word - 1


cpdef int64_t width_cost(int64_t limit, bint wide, int64_t package_milli) noexcept nogil:
    """Return the milli-CPU that a pool's width counts against a *limit* in milli-CPU (§4).

    *wide* and *package_milli* are what the Supply was told of the pool. Wider than it need be is as bad as to lack a
    quarter of the limit, or two.
    """
    return limit // 4 * (wide + (limit <= package_milli))


cdef inline int64_t _floor(int64_t milli) noexcept nogil:
    """Whole CPUs in *milli*, rounded down (C rounds towards zero)."""
    return milli // 1000 if milli >= 0 else -((-milli + 999) // 1000)


cdef inline int _cpus_left(Supply supply, int pool, int64_t more, bint shares, bint with_preemptible) noexcept nogil:
    """Whole CPUs that may be cut out of a pool (§2); negative where a shared request does not fit even so."""
    return <int> _floor(
        1000 * <int64_t> supply.sharable_left[pool] - supply.need(pool, more, shares, with_preemptible)
    )


@cython.final
cdef class Slack:
    """How many CPUs may still be cut out of each pool while exclusive CPUs are picked one after the other."""

    def __dealloc__(self):
        PyMem_Free(self.left)

    def permits(self, CPUSet cpus not None):
        """Return whether *cpus*, all free, may be cut together, and the grant booked."""
        cdef int pool = self.pool
        while pool >= 0:
            if self.left[pool] < 0:
                return False
            pool = self.supply.parent[pool]
        return self.allows(cpus.words, 0, min(cpus.used, self.supply.width))

    cdef bint allows(self, const uint64_t *words, int low, int high) noexcept nogil:
        """Whether the CPUs in words[low..high-1] may be cut together; call it before `use`."""
        cdef bint allowed
        self._count(words, low, high, -1)
        allowed = self._within(words, low, high)
        self._count(words, low, high, 1)
        return allowed

    cdef void use(self, const uint64_t *words, int low, int high) noexcept nogil:
        """Count the CPUs in words[low..high-1] as cut."""
        self._count(words, low, high, -1)

    cdef bint allows_cpu(self, int cpu) noexcept nogil:
        """Whether one more CPU may be cut."""
        cdef int pool = self.supply.home[cpu]
        while pool >= 0:
            if self.left[pool] < 1:
                return False
            pool = self.supply.parent[pool]
        return True

    cdef void use_cpu(self, int cpu) noexcept nogil:
        """Count one CPU as cut."""
        cdef int pool = self.supply.home[cpu]
        while pool >= 0:
            self.left[pool] -= 1
            pool = self.supply.parent[pool]

    cdef void _count(self, const uint64_t *words, int low, int high, int sign) noexcept nogil:
        cdef int w, pool
        cdef uint64_t word
        for w in range(low, high):
            word = words[w]
            while word:
                pool = self.supply.home[(w << 6) + bits_lowest(word)]
                while pool >= 0:
                    self.left[pool] += sign
                    pool = self.supply.parent[pool]
                word &= word - 1

    cdef bint _within(self, const uint64_t *words, int low, int high) noexcept nogil:
        cdef int w, pool
        cdef uint64_t word
        for w in range(low, high):
            word = words[w]
            while word:
                pool = self.supply.home[(w << 6) + bits_lowest(word)]
                while pool >= 0:
                    if self.left[pool] < 0:
                        return False
                    pool = self.supply.parent[pool]
                word &= word - 1
        return True
