"""Choosing the domains that a pick touches: spec placement.md §6.

Owns the tree of packages, NUMA nodes and L3 domains, and the cores in it. Each domain lies in one of the level before
it; all CPUs are in leaves. The caller says what may be taken: candidates, and a Slack that limits every domain (§2).
The limits are laminar: adding up CPUs from domain to domain gives the most that a set of domains holds.

A set is chosen level by level, the largest gain first. This takes the fewest domains of the level, but can take more
domains of a finer level; then all numbers of CPUs in every domain are tried, and the cheapest set wins.
"""

cimport cython
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy, memset

from nri_policy.native._cpuset cimport CPUSet
from nri_policy.native._pools cimport Slack
from nri_policy.native._table cimport ISOLATED_FIT, L3S, NODES, PACKAGES, WIDTH, Table

cdef extern from "bits.h" nogil:
    int bits_count_and(const uint64_t *a, const uint64_t *b, int n)

cdef enum:
    MANY = 1 << 30      # CPUs: no limit
    BITS = 20           # of each level in the cost of a set: packages before nodes before L3 domains


@cython.final
cdef class Domains:
    """The domains of a machine, and the choice among them for one pick after the other."""

    def __cinit__(self, parents, pools, at, leaves, cores):
        """Take one entry per domain: the ids of its parent and its pool, and in *leaves* the CPUs of a leaf, else None.

        *at* has for each level the id of the surrounding domain; -1 means none. *cores* are all cores of the machine,
        also those outside of domains.
        """
        cdef int d, cpu, index, level, n = len(parents)
        cdef CPUSet cpus
        self.every = CPUSet.union(cores)
        self.count, self.width = n, self.every.used
        self.parent = <int *> PyMem_Calloc((5 + LEVELS) * n, sizeof(int))
        self.leaf_of = <int *> PyMem_Calloc(2 * self.width * 64, sizeof(int))
        self.masks = <uint64_t *> PyMem_Calloc(n * self.width, sizeof(uint64_t))
        self.cores = <Group *> PyMem_Calloc(len(cores), sizeof(Group))
        self.core_masks = <uint64_t *> PyMem_Calloc(len(cores) * self.width, sizeof(uint64_t))
        self.first_core = <int *> PyMem_Calloc(n + 1, sizeof(int))
        self.inside = <int *> PyMem_Calloc((5 + LEVELS) * n, sizeof(int))  # with scratch room
        self.chosen = <char *> PyMem_Calloc((LEVELS + 1) * n, 1)
        if not (self.parent and self.leaf_of and self.masks and self.cores and self.core_masks and self.first_core
                and self.inside and self.chosen):
            raise MemoryError
        self.pool = self.parent + n
        self.first, self.word, self.end = self.parent + 2 * n, self.parent + 3 * n, self.parent + 4 * n
        self.at = self.parent + 5 * n
        self.free, self.spare, self.cap = self.inside + n, self.inside + 2 * n, self.inside + 3 * n
        self.room = self.inside + 4 * n
        self.shared = self.chosen + LEVELS * n
        self.core_of = self.leaf_of + self.width * 64
        for cpu in range(self.width * 64):
            self.leaf_of[cpu] = -1
        for d in range(n):
            self.parent[d], self.pool[d], self.first[d] = parents[d], pools[d], d
            if not (d < self.parent[d] < n or (d == n - 1 and self.parent[d] == -1)):
                raise ValueError("a domain's parent must come after it")
            for level in range(LEVELS):
                self.at[level * n + d] = at[level][d]
            if leaves[d] is not None:
                cpus = leaves[d]
                if not cpus <= self.every:
                    raise ValueError(f"CPUs {cpus} are not all in cores")
                memcpy(self.masks + d * self.width, cpus.words, cpus.used * sizeof(uint64_t))
                self.word[d], self.end[d] = <int> cpus.lowest >> 6, cpus.used
                for cpu in cpus:
                    self.leaf_of[cpu] = d
        for d in range(n - 1, -1, -1):  # the first child comes last
            if self.parent[d] >= 0:
                self.first[self.parent[d]] = d
        for d in range(n):
            self.first[d] = self.first[self.first[d]]
        self._add_cores(sorted(set(cores), key=lambda core: core.lowest))

    cdef _add_cores(self, list cores):
        cdef int index, d
        cdef CPUSet cpus
        cdef Group core
        homes = []
        for cpus in cores:
            self.describe(&core, self.core_masks, cpus)
            homes.append((core.leaf if core.leaf >= 0 else self.count, cpus))
        memset(self.core_masks, 0, self.width * sizeof(uint64_t))
        homes.sort(key=lambda home: home[0])
        for index, (d, cpus) in enumerate(homes):
            self.describe(&self.cores[index], self.core_masks + index * self.width, cpus)
            if d < self.count:
                self.first_core[d + 1] = index + 1
            for cpu in cpus:
                self.core_of[cpu] = index
        for d in range(self.count):
            self.first_core[d + 1] = max(self.first_core[d], self.first_core[d + 1])

    cdef describe(self, Group *group, uint64_t *words, CPUSet cpus):
        """Fill in *group*, and *words* with its mask."""
        cdef int cpu
        if not cpus.used or not cpus <= self.every:
            raise ValueError(f"group {cpus} is empty, or not all in cores")
        memcpy(words, cpus.words, cpus.used * sizeof(uint64_t))
        group.words, group.leaf = words, -1
        group.low, group.high, group.size = <int> cpus.lowest >> 6, cpus.used, len(cpus)
        for cpu in cpus:
            if self.leaf_of[cpu] >= 0 and (group.leaf < 0 or self.leaf_of[cpu] < group.leaf):
                group.leaf = self.leaf_of[cpu]

    def __dealloc__(self):
        PyMem_Free(self.parent)
        PyMem_Free(self.leaf_of)
        PyMem_Free(self.masks)
        PyMem_Free(self.cores)
        PyMem_Free(self.core_masks)
        PyMem_Free(self.first_core)
        PyMem_Free(self.inside)
        PyMem_Free(self.chosen)

    cdef bint starts(self, int level, int domain) noexcept nogil:
        """Whether a domain is one of the level."""
        return self.at[level * self.count + domain] == domain

    cdef void enter(self, int cpu) noexcept nogil:
        """Count a CPU that the taker has."""
        cdef int d = self.leaf_of[cpu]
        while d >= 0:
            self.inside[d] += 1
            d = self.parent[d]

    cdef Group *core(self, int cpu) noexcept nogil:
        """Return the core of a CPU."""
        return &self.cores[self.core_of[cpu]]

    cdef bint idle(self, Group *group) noexcept nogil:
        """Whether all CPUs of a group are candidates not taken yet."""
        cdef int w
        for w in range(group.low, group.high):
            if group.words[w] & ~self.left[w]:
                return False
        return True

    cdef int keep_whole_cores(self, uint64_t *left) noexcept nogil:
        """Leave in *left* only whole idle cores; return the size of all of them, 1 where they differ."""
        cdef int w, c, size = 0
        cdef Group *core
        self.left = left
        for c in range(self.first_core[self.count]):
            core = &self.cores[c]
            if self.idle(core):
                size = core.size if size in (0, core.size) else 1
            else:
                for w in range(core.low, core.high):
                    left[w] &= ~core.words[w]
        return max(size, 1)

    cdef int fill(self, const uint64_t *left, Slack slack, int unit) noexcept:
        """Take the candidates and limits of a pick; return how many CPUs can be taken, in multiples of *unit*."""
        cdef int d, parent, low
        self.left, self.low, self.top = left, 0, self.count - 1
        memset(self.free, 0, 3 * self.count * sizeof(int))
        for d in range(self.count):
            if self.first[d] == d:
                low = self.word[d]
                self.free[d] = bits_count_and(left + low, self.masks + d * self.width + low, self.end[d] - low)
                self.cap[d] = self.free[d]
            self.spare[d], self.shared[d] = MANY, False
            if slack is not None and self.pool[d] >= 0:
                self.spare[d] = max(0, slack.left[self.pool[d]])
                self.shared[d] = slack.supply.requesters[self.pool[d]] > 0
            self.spare[d] -= self.spare[d] % unit
            self.cap[d] = min(self.cap[d], self.spare[d])
            parent = self.parent[d]
            if parent >= 0:
                self.free[parent] += self.free[d]
                self.cap[parent] += self.cap[d]
        return self.cap[self.top]

    cdef int choose(self, int n, uint64_t *left) except -1:
        """Leave in *left*, which `fill` was given, only the domains chosen for *n* CPUs, or for as many as there are.

        Return how many can be taken of these.
        """
        cdef int d, w
        cdef char *chosen = self.chosen + L3 * self.count
        n = min(n, self.cap[self.top])
        if n:
            self._search(n)
            for d in range(self.count):
                if self.first[d] == d and not chosen[self.at[L3 * self.count + d]]:
                    for w in range(self.word[d], self.end[d]):
                        left[w] &= ~self.masks[d * self.width + w]
        return n

    def touch(self, Table table not None, int n, CPUSet candidates not None, Slack slack, bint fit, *,
              bint whole_cores=False):
        """Fill in the criterion `domains` of pools whose `isolated_fit` is *fit*: what a pick of *n* CPUs would touch.

        Pools with fewer than *n* *candidates* are excluded. *slack* is the top's.
        """
        cdef int d, pool, parent, unit = 1
        cdef int64_t cost, mask = (1 << BITS) - 1
        cdef double *row
        cdef uint64_t *left = <uint64_t *> PyMem_Calloc(self.width, sizeof(uint64_t))
        cdef int *most = <int *> PyMem_Calloc(self.count, sizeof(int))  # CPUs that one L3 domain has
        try:
            if left == NULL or most == NULL:
                raise MemoryError
            memcpy(left, candidates.words, min(candidates.used, self.width) * sizeof(uint64_t))
            memset(self.inside, 0, self.count * sizeof(int))
            if whole_cores:
                unit = self.keep_whole_cores(left)
                n += (unit - n % unit) % unit
            self.fill(left, slack, unit)
            for d in range(self.count):
                if self.at[L3 * self.count + d] >= 0:
                    most[d] = self.cap[d]
                parent = self.parent[d]
                if parent >= 0:
                    most[parent] = max(most[parent], most[d])
                pool = self.pool[d]
                if pool < 0 or table.excluded[pool] or table.shortfall[pool]:
                    continue
                row = table.values + pool * WIDTH
                if row[<int> ISOLATED_FIT] != fit:
                    continue
                if self.cap[d] < n:
                    table.excluded[pool] = True
                    continue
                cost = (((1 << BITS) + 1) << BITS) + 1  # one of each
                if most[d] < n:
                    self.low, self.top = self.first[d], d
                    cost = self._search(n)
                row[<int> PACKAGES] = -(cost >> 2 * BITS)
                row[<int> NODES] = -(cost >> BITS & mask)
                row[<int> L3S] = -(cost & mask)
        finally:
            PyMem_Free(left)
            PyMem_Free(most)

    def in_whole_cores(self, CPUSet candidates not None, Slack slack):
        """Return by pool how many of the *candidates* a pick of whole idle cores could take there at most.

        *slack* is the top's; None means no limit.
        """
        cdef int d
        cdef uint64_t *left = <uint64_t *> PyMem_Calloc(self.width, sizeof(uint64_t))
        if left == NULL:
            raise MemoryError
        try:
            memcpy(left, candidates.words, min(candidates.used, self.width) * sizeof(uint64_t))
            self.fill(left, slack, self.keep_whole_cores(left))
            return {self.pool[d]: self.cap[d] for d in range(self.count) if self.pool[d] >= 0}
        finally:
            PyMem_Free(left)

    def touched(self, CPUSet cpus not None):
        """Return how many packages, NUMA nodes and L3 domains *cpus* touch; CPUs in no domain count for none."""
        cdef int d, w, level
        cdef int[LEVELS] found
        cdef char *chosen
        memset(self.chosen, 0, LEVELS * self.count)
        memset(found, 0, sizeof(found))
        for d in range(self.count):
            if self.first[d] != d:
                continue
            for w in range(self.word[d], min(self.end[d], cpus.used)):
                if cpus.words[w] & self.masks[d * self.width + w]:
                    for level in range(LEVELS):
                        chosen = self.chosen + level * self.count + self.at[level * self.count + d]
                        found[level] += not chosen[0]
                        chosen[0] = True
                    break
        return found[<int> PACKAGE], found[<int> NODE], found[<int> L3]

    cdef int64_t _search(self, int n) except -1:
        """Choose a set for *n* CPUs, which there are; return how many domains it adds to those that the taker is in."""
        cdef int level
        cdef int64_t cost, around = 0, fewest
        for level in range(LEVELS):
            if self._surrounded(level):
                around += <int64_t> 1 << BITS * (L3 - level)
        self.guessed, self.trying = False, 0
        cost = self._extend(PACKAGE, n)
        if self.guessed:
            fewest = self._fewest(n, cost)
            cost = min(cost, fewest)
        return around + cost

    cdef bint _surrounded(self, int level) noexcept nogil:
        """Whether one domain of the level holds the top and more than it."""
        return self.at[level * self.count + self.top] >= 0 and not self.starts(level, self.top)

    cdef int64_t _extend(self, int level, int n) noexcept nogil:
        """Choose the set of a level, inside of that of the level before, and of all finer ones; return what they add."""
        cdef int d, missing = n
        cdef int64_t cost = 0
        cdef char *chosen = self.chosen + level * self.count
        memcpy(self.room + level * self.count, self.spare, self.count * sizeof(int))
        for d in range(self.low, self.top + 1):
            chosen[d] = self.starts(level, d) and self.inside[d] > 0
            if chosen[d]:
                missing -= self._add(level, d)
        while missing > 0 and not self._surrounded(level):
            d = self._next(level, missing, n)
            chosen[d] = True
            missing -= self._add(level, d)
            cost += <int64_t> 1 << BITS * (L3 - level)
        if level < L3:
            cost += self._extend(level + 1, n)
        return cost

    cdef int _next(self, int level, int missing, int n) noexcept nogil:
        """Return the domain to add to a level's set: while no one is enough, the one that adds most.

        Else of those that are enough the one that needs fewest finer domains, then fewest threads outside of whole
        idle cores, then one that nobody shares, then the tightest.
        """
        cdef int d, gain, most = 0, best = -1, others = 0, enough = 0, outside, fewest_outside = 0
        cdef int64_t need, least = 0
        cdef char *chosen = self.chosen + level * self.count
        for d in range(self.low, self.top + 1):
            gain = self._gain(level, d) if self._open(level, d) else 0
            if gain:
                others += 1
                enough += gain >= missing
                if gain > most or (gain == most and self.free[d] > self.free[best]):
                    best, most = d, gain
        if enough < 2:
            if not enough and others > 1 and level < L3:
                self.guessed = True
            return best
        best = -1
        for d in range(self.low, self.top + 1):
            gain = self._gain(level, d) if self._open(level, d) else 0
            if gain < missing:
                continue
            chosen[d] = True
            need = outside = 0
            if level < L3:
                self.trying += 1
                need = self._extend(level + 1, n)
                self.trying -= 1
            if not self.trying and (best < 0 or need <= least):
                outside = self._outside(level, n)
            chosen[d] = False
            if best >= 0:
                if need != least:
                    if need > least:
                        continue
                elif outside != fewest_outside:
                    if outside > fewest_outside:
                        continue
                elif self.shared[d] != self.shared[best]:
                    if self.shared[d]:
                        continue
                elif gain >= most:
                    continue
            best, most, least, fewest_outside = d, gain, need, outside
        return best

    cdef bint _open(self, int level, int domain) noexcept nogil:
        """Whether a domain can be added to the set of its level."""
        cdef int coarser
        if not self.starts(level, domain) or self.chosen[level * self.count + domain]:
            return False
        if level == PACKAGE or self._surrounded(level - 1):
            return True
        coarser = self.at[(level - 1) * self.count + domain]
        return self.chosen[(level - 1) * self.count + coarser]

    cdef int _gain(self, int level, int domain) noexcept nogil:
        """Return how many CPUs a domain adds to the set of its level."""
        cdef int gain = self.cap[domain]
        cdef int *room = self.room + level * self.count
        while True:
            gain = min(gain, room[domain])
            if domain == self.top:
                return gain
            domain = self.parent[domain]

    cdef int _add(self, int level, int domain) noexcept nogil:
        """Count what a domain adds to the set of its level; return it."""
        cdef int gain = self._gain(level, domain)
        cdef int *room = self.room + level * self.count
        while True:
            room[domain] -= gain
            if domain == self.top:
                return gain
            domain = self.parent[domain]

    cdef int _outside(self, int level, int n) noexcept nogil:
        """Return how many of *n* CPUs of a level's set are not on whole idle cores, these taken in their order."""
        cdef int d, c, at
        cdef int *room = self.room + LEVELS * self.count
        cdef Group *core
        memcpy(room, self.spare, self.count * sizeof(int))
        for d in range(self.low, self.top + 1):
            if not self.chosen[level * self.count + d]:
                continue
            for c in range(self.first_core[self.first[d]], self.first_core[d + 1]):
                core = &self.cores[c]
                if core.size > n or not self.idle(core):
                    continue
                at = core.leaf
                while at >= 0 and room[at] >= core.size:
                    at = self.parent[at]
                if at >= 0:
                    continue
                n -= core.size
                at = core.leaf
                while at >= 0:
                    room[at] -= core.size
                    at = self.parent[at]
        return n

    cdef int64_t _fewest(self, int n, int64_t cost) except -1:
        """Return the least that a set for *n* CPUs adds; if that is below *cost*, choose such a set.

        For every domain, children first: what each number of CPUs of it costs at least.
        """
        cdef int d, p, c, x, had, part, size = n + 1, span = self.top - self.low + 1
        cdef int64_t least, total
        cdef int64_t *costs = <int64_t *> PyMem_Calloc(span * size, sizeof(int64_t))  # [domain][CPUs]
        cdef int *parts = <int *> PyMem_Calloc(span * size, sizeof(int))  # [domain][CPUs, also of earlier siblings]
        cdef int *most = <int *> PyMem_Calloc(span, sizeof(int))
        cdef int64_t *own
        cdef int64_t *above
        try:
            if costs == NULL or parts == NULL or most == NULL:
                raise MemoryError
            for d in range(span):
                own, most[d] = costs + d * size, min(n, self.cap[self.low + d])
                for c in range(1, most[d] + 1):
                    own[c] += self._weight(self.low + d)
                if d == span - 1:
                    break
                p = self.parent[self.low + d] - self.low
                above, had = costs + p * size, most[p]
                most[p] = min(n, had + most[d])
                for c in range(most[p], 0, -1):
                    least, part = -1, 0
                    for x in range(max(0, c - had), min(most[d], c) + 1):
                        total = above[c - x] + own[x]
                        if least < 0 or total < least:
                            least, part = total, x
                    above[c], parts[d * size + c] = least, part
            least = costs[(span - 1) * size + n]
            if least < cost:
                most[span - 1] = n  # from here on: CPUs of each domain that no child after has
                for d in range(span - 2, -1, -1):
                    p = self.parent[self.low + d] - self.low
                    most[d] = parts[d * size + most[p]]
                    most[p] -= most[d]
                    self.chosen[L3 * self.count + self.low + d] = (
                        self.starts(L3, self.low + d) and (most[d] > 0 or self.inside[self.low + d] > 0)
                    )
            return least
        finally:
            PyMem_Free(costs)
            PyMem_Free(parts)
            PyMem_Free(most)

    cdef int64_t _weight(self, int domain) noexcept nogil:
        """Return the cost of a domain in which the taker has no CPU yet."""
        cdef int level
        cdef int64_t weight = 0
        for level in range(LEVELS):
            if self.starts(level, domain) and not self.inside[domain]:
                weight += <int64_t> 1 << BITS * (L3 - level)
        return weight
