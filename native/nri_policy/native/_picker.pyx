"""Picking CPUs by topology: spec placement.md §6.

Owns the order in which CPUs are taken from the domains chosen (`_cpu_domains`): whole idle L3 domains and clusters, then
whole idle cores, then single threads. Also finds the first thread of each core.
The caller says what may be taken: candidates and, for CPUs cut out of shared pools, a Slack.
A group is idle if all its CPUs are candidates. Every stage is greedy with a total order, ties go to the lowest id.
"""

cimport cython
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport uint64_t
from libc.string cimport memcpy, memset

from nri_policy.native._cpuset cimport CPUSet, from_words
from nri_policy.native._cpu_domains cimport L3, PACKAGE, Domains, Group
from nri_policy.native._pools cimport Slack

cdef extern from "bits.h" nogil:
    int bits_lowest(uint64_t word)


@cython.final
cdef class Picker:
    """The CPUs of a machine as groups in domains, and how to take some of them."""

    cdef readonly Domains domains
    cdef int width              # words of a mask
    cdef int count
    cdef Group *groups          # L3 domains and clusters, by lowest CPU
    cdef uint64_t *masks

    # What is under way, valid during one pick:
    cdef bint spare_cores       # single threads prefer an idle core to a core that another container uses in part
    cdef bint whole_cores       # no single threads
    cdef uint64_t *left         # candidates not taken yet, of the class and the domains under way
    cdef uint64_t *taken
    cdef uint64_t *own          # taken CPUs, and CPUs that the taker has already
    cdef uint64_t *open         # all candidates

    def __cinit__(self, Domains domains not None, groups):
        """Take *groups*, the L3 domains and clusters, as CPUSets of CPUs of the *domains*."""
        cdef int index
        cdef CPUSet cpus
        cdef list sets = sorted(set(groups), key=lambda group: group.lowest)
        self.domains, self.width, self.count = domains, domains.width, len(sets)
        self.groups = <Group *> PyMem_Calloc(self.count, sizeof(Group))
        self.masks = <uint64_t *> PyMem_Calloc(self.count * self.width, sizeof(uint64_t))
        self.left = <uint64_t *> PyMem_Calloc(4 * self.width, sizeof(uint64_t))
        if not (self.groups and self.masks and self.left):
            raise MemoryError
        self.taken, self.own = self.left + self.width, self.left + 2 * self.width
        self.open = self.left + 3 * self.width
        for index, cpus in enumerate(sets):
            self.domains.describe(&self.groups[index], self.masks + index * self.width, cpus)

    def __dealloc__(self):
        PyMem_Free(self.groups)
        PyMem_Free(self.masks)
        PyMem_Free(self.left)

    def pick(self, int n, CPUSet candidates not None, classes=(), Slack slack=None, CPUSet beside=None, *,
             bint spare_cores=False, bint whole_cores=False):
        """Return *n* of *candidates*; ValueError where there are fewer, or where *slack* allows fewer.

        *classes* are disjoint sets, the preferred one first; CPUs outside of them come last. The pick uses up *slack*.
        *beside* are CPUs that the taker has already: their domains count as chosen; CPUs that went offline do not
        count. *spare_cores* takes a single thread from an idle core before one from a busy core, as for *n* > 1.
        *whole_cores* takes only whole idle cores, so the result can have more than *n* CPUs.
        """
        cdef CPUSet rest = candidates, part
        cdef int wanted = n, cpu
        if n < 0:
            raise ValueError(f"cannot pick {n} CPUs")
        self.spare_cores, self.whole_cores = spare_cores or n > 1, whole_cores
        memset(self.left, 0, 4 * self.width * sizeof(uint64_t))
        memset(self.domains.inside, 0, self.domains.count * sizeof(int))
        memcpy(self.open, candidates.words, min(candidates.used, self.width) * sizeof(uint64_t))
        if beside is not None:
            for cpu in beside & self.domains.every:
                self._own(cpu)
        for part in classes:
            wanted -= self._pick(wanted, candidates & part, slack)
            rest = rest - part
        wanted -= self._pick(wanted, rest, slack)
        if wanted > 0:
            what = "CPUs of whole idle cores" if whole_cores else "CPUs"
            raise ValueError(f"cannot pick {n} {what} from {str(candidates)!r}: {wanted} too few")
        return from_words(self.taken, self.width)

    def first_threads(self, CPUSet cpus not None):
        """Return the lowest CPU of *cpus* in each core."""
        cdef int w, v
        cdef uint64_t word, together
        cdef Group *core
        memset(self.left, 0, 2 * self.width * sizeof(uint64_t))
        cpus = cpus & self.domains.every
        memcpy(self.left, cpus.words, cpus.used * sizeof(uint64_t))
        for w in range(cpus.used):
            word = self.left[w]
            while word:
                core = self.domains.core(( w << 6) + bits_lowest(word))
                word &= word - 1
                for v in range(core.low, core.high):
                    together = core.words[v] & self.left[v]
                    if together:
                        self.taken[v] |= together & -together
                        break
        return from_words(self.taken, self.width)

    cdef void _own(self, int cpu) noexcept nogil:
        self.own[cpu >> 6] |= <uint64_t> 1 << (cpu & 63)
        self.domains.enter(cpu)

    cdef int _pick(self, int n, CPUSet candidates, Slack slack) except -1:
        """Take *n* CPUs of one class, or as many as there are; return how many were taken."""
        cdef int wanted, index, best, d, unit = 1
        cdef Group *group
        if n <= 0:
            return 0
        memset(self.left, 0, self.width * sizeof(uint64_t))
        memcpy(self.left, candidates.words, min(candidates.used, self.width) * sizeof(uint64_t))
        if self.whole_cores:
            unit = self.domains.keep_whole_cores(self.left)
            n += (unit - n % unit) % unit
        self.domains.fill(self.left, slack, unit)
        n = wanted = self.domains.choose(n, self.left)
        while wanted > 1:
            best = -1
            for index in range(self.count):
                group = &self.groups[index]
                if group.size <= wanted and self._idle(group, slack):
                    if best < 0 or self._before(group, &self.groups[best]):
                        best = index
            if best < 0:
                break
            wanted -= self._take(&self.groups[best], slack)
        while wanted > 0:
            d = self._core_domain(wanted, slack)
            if d < 0:
                break
            for index in range(self.domains.first_core[self.domains.first[d]], self.domains.first_core[d + 1]):
                group = &self.domains.cores[index]
                if group.size <= wanted and self._idle(group, slack):
                    wanted -= self._take(group, slack)
        if self.whole_cores:
            if wanted > 0:
                wanted -= self._take_larger_core(slack)
        else:
            while wanted and self._take_thread(slack):
                wanted -= 1
        return n - wanted

    cdef bint _idle(self, Group *group, Slack slack) noexcept:
        return self.domains.idle(group) and (slack is None or slack.allows(group.words, group.low, group.high))

    cdef bint _before(self, Group *a, Group *b) noexcept nogil:
        """Order of whole groups: beside what was taken, then the tightest fit; the lowest CPU comes first by itself."""
        cdef int order = self._in(PACKAGE, a.leaf) - self._in(PACKAGE, b.leaf)
        return order > 0 if order else a.size > b.size

    cdef int _in(self, int level, int domain) noexcept nogil:
        """Return how many CPUs the taker has in the domain of the level that a domain is or lies in."""
        return self.domains.inside[self.domains.at[level * self.domains.count + domain]]

    cdef int _take(self, Group *group, Slack slack) noexcept:
        cdef int w
        cdef uint64_t word
        for w in range(group.low, group.high):
            word = group.words[w]
            self.left[w] &= ~word
            self.taken[w] |= word
            while word:
                self._own((w << 6) + bits_lowest(word))
                word &= word - 1
        if slack is not None:
            slack.use(group.words, group.low, group.high)
        return group.size

    cdef int _core_domain(self, int wanted, Slack slack) noexcept:
        """Return the L3 domain to take whole idle cores from, -1 if none has one.

        The domain beside most of the CPUs taken so far; then the tightest that can hold all *wanted* CPUs; then the
        one with the most idle CPUs.
        """
        cdef int best = -1, best_idle = 0, d, index, idle, order
        cdef Domains domains = self.domains
        cdef Group *core
        for d in range(domains.count):
            if not domains.starts(L3, d):
                continue
            idle = 0
            for index in range(domains.first_core[domains.first[d]], domains.first_core[d + 1]):
                core = &domains.cores[index]
                if core.size <= wanted and self._idle(core, slack):
                    idle += core.size
            if not idle:
                continue
            if slack is not None and domains.pool[d] >= 0:
                idle = min(idle, slack.left[domains.pool[d]])
            if best >= 0:
                order = self._beside(d, best)
                if not order:
                    order = (idle >= wanted) - (best_idle >= wanted)
                if not order:
                    order = best_idle - idle if idle >= wanted else idle - best_idle
                if order <= 0:
                    continue
            best, best_idle = d, idle
        return best

    cdef int _beside(self, int a, int b) noexcept nogil:
        """Positive if more was taken beside L3 domain *a* than beside *b*: in its package, then in itself."""
        cdef int order = self._in(PACKAGE, a) - self._in(PACKAGE, b)
        return order if order else self._in(L3, a) - self._in(L3, b)

    cdef int _take_larger_core(self, Slack slack) noexcept:
        """Take one core for the last threads, the smallest, then the lowest; return its CPUs, 0 if there is none."""
        cdef int index, best = -1
        for index in range(self.domains.first_core[self.domains.count]):
            if self._idle(&self.domains.cores[index], slack):
                if best < 0 or self.domains.cores[index].size < self.domains.cores[best].size:
                    best = index
        return self._take(&self.domains.cores[best], slack) if best >= 0 else 0

    cdef bint _take_thread(self, Slack slack) noexcept:
        """Take one thread: beside what was taken, its L3 domain first; then by the state of its core."""
        cdef int w, cpu, order, best = -1
        cdef uint64_t word
        for w in range(self.width):
            word = self.left[w]
            while word:
                cpu = (w << 6) + bits_lowest(word)
                word &= word - 1
                if slack is not None and not slack.allows_cpu(cpu):
                    continue
                if best >= 0:
                    order = self._in(L3, self.domains.leaf_of[cpu]) - self._in(L3, self.domains.leaf_of[best])
                    if not order:
                        order = self._in(PACKAGE, self.domains.leaf_of[cpu])
                        order -= self._in(PACKAGE, self.domains.leaf_of[best])
                    if not order:
                        order = self._rank(cpu) - self._rank(best)
                    if order <= 0:
                        continue
                best = cpu
        if best < 0:
            return False
        self.left[best >> 6] &= ~(<uint64_t> 1 << (best & 63))
        self.taken[best >> 6] |= <uint64_t> 1 << (best & 63)
        self._own(best)
        if slack is not None:
            slack.use_cpu(best)
        return True

    cdef int _rank(self, int cpu) noexcept nogil:
        """Return how good the core of a CPU is for one thread: own cores, then broken ones, then idle ones."""
        cdef Group *core = self.domains.core(cpu)
        cdef bint broken = False
        cdef int w
        for w in range(core.low, core.high):
            if core.words[w] & self.own[w]:
                return 2
            broken = broken or core.words[w] & ~self.open[w]
        return broken != self.spare_cores
