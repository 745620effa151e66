"""Picking CPUs by topology: spec placement.md §6.

Owns the order in which CPUs of a set are taken: whole idle packages, dies, then L3 domains and clusters, then cores,
then single threads; also which threads are the first of their cores. What may be taken is the caller's: a candidate
set and, for CPUs cut out of shared pools, a Slack.
A group is idle if all its CPUs are candidates. Every stage is greedy with a total order, ties go to the lowest id.

A domain is where threads and cores of one pick should lie together: an L3 cache, or the package where there is none.
"""

cimport cython
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport uint64_t
from libc.string cimport memcpy, memset

from nri_policy._cpuset cimport CPUSet, from_words
from nri_policy._pools cimport Slack

cdef extern from "bits.h" nogil:
    int bits_lowest(uint64_t word)

cdef struct Group:
    int low, high       # words [low, high) hold all its CPUs
    int size            # CPUs
    int package         # index of the package of its lowest CPU
    int domain          # index of the domain of its lowest CPU
    uint64_t *words     # full-width mask


@cython.final
cdef class Picker:
    """The CPUs of a machine as nested groups, and how to take some of them."""

    cdef CPUSet every           # all CPUs
    cdef int width, count, packages, domains
    cdef Group *groups          # by stage; cores by domain; then by lowest CPU
    cdef int first[5]           # groups of stage s are first[s]..first[s + 1] - 1
    cdef int *first_core        # cores of domain d are groups first_core[d]..first_core[d + 1] - 1
    cdef uint64_t *masks        # count * width words: the groups' masks
    cdef uint64_t *domain_masks # domains * width words
    cdef int *package_of        # CPU id -> index of its package
    cdef int *domain_of         # CPU id -> index of its domain
    cdef int *domain_package    # domain -> index of its package
    cdef int *core_of           # CPU id -> index of its core's group

    # What is under way, valid during one pick:
    cdef uint64_t *left         # candidates not taken yet
    cdef uint64_t *taken
    cdef int *in_package        # CPUs taken (or held before) in each package
    cdef int *in_domain

    def __cinit__(self, packages, dies, caches, cores, domains):
        """Take the groups of each stage and the domains as CPUSets; *packages*, *cores* and *domains* cover all CPUs."""
        cdef int stage, index = 0, cpu
        cdef CPUSet cpus
        cdef list stages = [
            sorted(set(groups), key=lambda group: group.lowest) for groups in (packages, dies, caches, cores)
        ]
        cdef list homes = sorted(set(domains), key=lambda group: group.lowest)
        self.every = CPUSet.union(stages[0])
        self.count = sum(len(groups) for groups in stages)
        self.width = self.every.used
        self.packages, self.domains = len(stages[0]), len(homes)
        self.groups = <Group *> PyMem_Calloc(self.count, sizeof(Group))
        self.masks = <uint64_t *> PyMem_Calloc(self.count * self.width, sizeof(uint64_t))
        self.domain_masks = <uint64_t *> PyMem_Calloc(self.domains * self.width, sizeof(uint64_t))
        self.package_of = <int *> PyMem_Calloc(self.width * 64, sizeof(int))
        self.domain_of = <int *> PyMem_Calloc(self.width * 64, sizeof(int))
        self.core_of = <int *> PyMem_Calloc(self.width * 64, sizeof(int))
        self.first_core = <int *> PyMem_Calloc(self.domains + 1, sizeof(int))
        self.domain_package = <int *> PyMem_Calloc(self.domains, sizeof(int))
        self.left = <uint64_t *> PyMem_Calloc(2 * self.width, sizeof(uint64_t))
        self.in_package = <int *> PyMem_Calloc(self.packages + self.domains, sizeof(int))
        if not (self.groups and self.masks and self.domain_masks and self.package_of and self.domain_of
                and self.core_of and self.first_core and self.domain_package and self.left and self.in_package):
            raise MemoryError
        self.taken = self.left + self.width
        self.in_domain = self.in_package + self.packages
        for package, cpus in enumerate(stages[0]):
            for cpu in cpus:
                self.package_of[cpu] = package
        for domain, cpus in enumerate(homes):
            self._check(cpus)
            memcpy(self.domain_masks + <int> domain * self.width, cpus.words, cpus.used * sizeof(uint64_t))
            self.domain_package[<int> domain] = self.package_of[<int> cpus.lowest]
            for cpu in cpus:
                self.domain_of[cpu] = domain
        stages[3].sort(key=lambda core: (self.domain_of[<int> core.lowest], core.lowest))
        for stage in range(4):
            self.first[stage] = index
            for cpus in stages[stage]:
                self._check(cpus)
                self._add(index, cpus)
                index += 1
                if stage == 3:
                    for domain in range(self.groups[index - 1].domain, self.domains):
                        self.first_core[<int> domain + 1] = index
        self.first[4] = index
        self.first_core[0] = self.first[3]

    cdef _check(self, CPUSet cpus):
        if not cpus.used or cpus.used > self.width:
            raise ValueError(f"group {cpus} is empty or outside all packages")

    cdef _add(self, int index, CPUSet cpus):
        cdef Group *group = &self.groups[index]
        cdef int cpu = cpus.lowest
        group.words = self.masks + index * self.width
        memcpy(group.words, cpus.words, cpus.used * sizeof(uint64_t))
        group.low, group.high = cpu >> 6, cpus.used
        group.size = len(cpus)
        group.package, group.domain = self.package_of[cpu], self.domain_of[cpu]
        for cpu in cpus:  # cores come last and overwrite
            self.core_of[cpu] = index

    def __dealloc__(self):
        PyMem_Free(self.groups)
        PyMem_Free(self.masks)
        PyMem_Free(self.domain_masks)
        PyMem_Free(self.package_of)
        PyMem_Free(self.domain_of)
        PyMem_Free(self.core_of)
        PyMem_Free(self.first_core)
        PyMem_Free(self.domain_package)
        PyMem_Free(self.left)
        PyMem_Free(self.in_package)

    def pick(self, int n, CPUSet candidates not None, classes=(), Slack slack=None, CPUSet beside=None):
        """Return *n* of *candidates*; ValueError where there are fewer, or where *slack* allows fewer.

        *classes* are disjoint sets in the order of preference: all that can be had of the first is taken first; CPUs
        in none of them come last. *slack* is used up by what is picked. *beside* is what the taker holds already:
        packages and domains that hold most of it come first. CPUs of it that are gone since do not count.
        """
        cdef CPUSet rest = candidates, part
        cdef int wanted = n
        if n < 0:
            raise ValueError(f"cannot pick {n} CPUs")
        memset(self.taken, 0, self.width * sizeof(uint64_t))
        memset(self.in_package, 0, (self.packages + self.domains) * sizeof(int))
        if beside is not None:
            for cpu in beside & self.every:
                self._count(cpu)
        for part in classes:
            wanted -= self._pick(wanted, candidates & part, slack)
            rest = rest - part
        wanted -= self._pick(wanted, rest, slack)
        if wanted:
            raise ValueError(f"cannot pick {n} CPUs from {str(candidates)!r}: {wanted} too few")
        return from_words(self.taken, self.width)

    def first_threads(self, CPUSet cpus not None):
        """Return the lowest of *cpus* in each core that has any of them."""
        cdef int w, v
        cdef uint64_t word, together
        cdef Group *core
        memset(self.left, 0, 2 * self.width * sizeof(uint64_t))
        cpus = cpus & self.every
        memcpy(self.left, cpus.words, cpus.used * sizeof(uint64_t))
        for w in range(cpus.used):
            word = self.left[w]
            while word:
                core = &self.groups[self.core_of[(w << 6) + bits_lowest(word)]]
                word &= word - 1
                for v in range(core.low, core.high):
                    together = core.words[v] & self.left[v]
                    if together:
                        self.taken[v] |= together & -together
                        break
        return from_words(self.taken, self.width)

    cdef void _count(self, int cpu) noexcept nogil:
        self.in_package[self.package_of[cpu]] += 1
        self.in_domain[self.domain_of[cpu]] += 1

    cdef int _pick(self, int n, CPUSet candidates, Slack slack) noexcept:
        """Take up to *n* CPUs of one class; return how many were taken."""
        cdef int wanted = n, index, best, domain, stage
        cdef Group *group
        memset(self.left, 0, self.width * sizeof(uint64_t))
        memcpy(self.left, candidates.words, min(candidates.used, self.width) * sizeof(uint64_t))
        for stage in range(3):
            while wanted > 1:
                best = -1
                for index in range(self.first[stage], self.first[stage + 1]):
                    group = &self.groups[index]
                    if group.size <= wanted and self._idle(group, slack):
                        if best < 0 or self._before(group, &self.groups[best]):
                            best = index
                if best < 0:
                    break
                wanted -= self._take(&self.groups[best], slack)
        while wanted:
            domain = self._core_domain(wanted, slack)
            if domain < 0:
                break
            for index in range(self.first_core[domain], self.first_core[domain + 1]):
                group = &self.groups[index]
                if group.size <= wanted and self._idle(group, slack):
                    wanted -= self._take(group, slack)
        while wanted and self._take_thread(slack):
            wanted -= 1
        return n - wanted

    cdef bint _idle(self, Group *group, Slack slack) noexcept:
        cdef int w
        for w in range(group.low, group.high):
            if group.words[w] & ~self.left[w]:
                return False
        return slack is None or slack.allows(group.words, group.low, group.high)

    cdef bint _before(self, Group *a, Group *b) noexcept nogil:
        """Order of whole groups: beside what was taken, then the tightest fit; the lowest CPU comes first by itself."""
        if self.in_package[a.package] != self.in_package[b.package]:
            return self.in_package[a.package] > self.in_package[b.package]
        return a.size > b.size

    cdef int _take(self, Group *group, Slack slack) noexcept:
        cdef int w
        cdef uint64_t word
        for w in range(group.low, group.high):
            word = group.words[w]
            self.left[w] &= ~word
            self.taken[w] |= word
            while word:
                self._count((w << 6) + bits_lowest(word))
                word &= word - 1
        if slack is not None:
            slack.use(group.words, group.low, group.high)
        return group.size

    cdef int _core_domain(self, int wanted, Slack slack) noexcept:
        """Return the domain to take whole idle cores from, -1 if none has one.

        Beside what was taken, then the tightest that can hold all that is wanted, then the one with most idle cores.
        """
        cdef int best = -1, best_idle = 0, domain, index, idle, order
        cdef Group *group
        for domain in range(self.domains):
            idle = 0
            for index in range(self.first_core[domain], self.first_core[domain + 1]):
                group = &self.groups[index]
                if group.size <= wanted and self._idle(group, slack):
                    idle += group.size
            if not idle:
                continue
            if best >= 0:
                order = self._beside(domain, best)
                if not order:
                    order = (idle >= wanted) - (best_idle >= wanted)
                if not order:
                    order = best_idle - idle if idle >= wanted else idle - best_idle
                if order <= 0:
                    continue
            best, best_idle = domain, idle
        return best

    cdef int _beside(self, int a, int b) noexcept nogil:
        """Positive if more was taken beside domain *a* than beside *b*: in its package, then in itself."""
        cdef int order = self.in_package[self.domain_package[a]] - self.in_package[self.domain_package[b]]
        return order if order else self.in_domain[a] - self.in_domain[b]

    cdef bint _take_thread(self, Slack slack) noexcept:
        """Take one thread: of a core that is broken already, then beside what was taken, then the lowest."""
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
                    order = self._broken(cpu) - self._broken(best)
                    if not order:
                        order = self._beside(self.domain_of[cpu], self.domain_of[best])
                    if order <= 0:
                        continue
                best = cpu
        if best < 0:
            return False
        self.left[best >> 6] &= ~(<uint64_t> 1 << (best & 63))
        self.taken[best >> 6] |= <uint64_t> 1 << (best & 63)
        self._count(best)
        if slack is not None:
            slack.use_cpu(best)
        return True

    cdef bint _broken(self, int cpu) noexcept nogil:
        """Whether a thread of the CPU's core is not there to be taken."""
        cdef Group *core = &self.groups[self.core_of[cpu]]
        cdef int w
        for w in range(core.low, core.high):
            if core.words[w] & ~self.left[w]:
                return True
        return False
