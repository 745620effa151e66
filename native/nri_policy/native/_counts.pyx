"""How many pods of one kind fit into every domain: spec cluster.md §4 and the roll-up of §5.

Owns the counts of leaves, and their sums in the domains above. Counts are lazy: `refresh` counts everything once,
later only the changed leaves and the domains above them.
"""

cimport cython
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memset

from nri_policy.native._domains cimport Domains, Mask, Rows, Vector


def rank(list every not None, list wanted not None, dict sums not None, int level):
    """Return the domains of *level* with room for all kinds of pods, and the domain that holds the most of them.

    Each of *every* fits there as often as *wanted* says, with its leader if it has one. The free amounts cover *sums*,
    the requests of all pods by resource. The domain that would be fullest afterwards comes first. The second result
    is -1 if no domain holds any.
    """
    cdef Counts own = every[0]
    cdef Domains domains = own.rows.domains
    cdef Vector needed = Vector(own.rows, sums)
    cdef int first = domains.offset[level], n = domains.offset[level + 1] - first, kinds = len(every)
    cdef int count, at, number, low = 0, high, closest = -1
    cdef double most = -1
    cdef list found = []
    cdef _Ranked *ranked = <_Ranked *> PyMem_Calloc(n + 1, sizeof(_Ranked))
    if not ranked:
        raise MemoryError
    try:
        for number in range(kinds):
            own, count = <Counts> every[number], wanted[number]
            own.refresh()
            for at in range(n):
                _add(&ranked[at], own, first + at, count)
        for at in range(n):
            high = low + _leaves_below(domains, first + at)
            if ranked[at].fitting == kinds and _have_left(own.rows, low, high, needed):
                found.append((-ranked[at].score, -ranked[at].share, first + at))
            if ranked[at].held > most:
                most, closest = ranked[at].held, first + at
            low = high
    finally:
        PyMem_Free(ranked)
    found.sort()
    return [each[2] for each in found], closest


cdef struct _Ranked:
    int fitting     # kinds that fit, each by itself
    double share    # sum over the kinds: wanted pods / pods that fit
    double held     # sum over the kinds: the fraction that fits, 1 for all
    int64_t score


cdef void _add(_Ranked *ranked, Counts own, int domain, int count) noexcept:
    """Add what a domain holds of one kind."""
    if own.score:
        ranked.score += own.score[domain]
    if own.pods_l[domain] >= count and (not own.leaders or own.leaders[domain]):
        ranked.fitting += 1
        ranked.share += <double> count / own.pods_l[domain]
    ranked.held += min(<double> own.pods_l[domain] / count, 1.0)


cdef int _leaves_below(Domains domains, int domain) noexcept:
    cdef int low = domain, high = domain
    while domains.low[low] != domains.high[low]:
        low, high = domains.low[low], domains.high[high] - 1
    return high + 1 - low


def have_left(Rows rows not None, dict sums not None):
    """Whether all leaves have at least *sums* left, by resource."""
    return _have_left(rows, 0, rows.domains.leaves, Vector(rows, sums))


cdef bint _have_left(Rows rows, int low, int high, Vector needed):
    cdef int64_t left
    cdef int at, leaf
    for at in range(needed.size):
        left = 0
        for leaf in range(low, high):
            if left >= needed.amount[at]:
                break
            left += max(0, rows.free[needed.resource[at]][leaf])
        if left < needed.amount[at]:
            return False
    return True


@cython.final
cdef class Counts:
    """How many pods of one kind, and slices of them, fit into every domain."""

    def __cinit__(self, Rows rows not None, Vector pod not None, Mask mask not None, *, int size=1, int slice_level=-1,
                  dict inner=None, Vector leader=None, Mask leader_mask=None, low=0, high=None, Counts hosts=None,
                  list host_of=None, list most=None, list beside=None, int cap_level=-1, list cap=None):
        """Take a pod and where it may go; slices of *size* at *slice_level* (-1: the last), *inner* layers by level.

        Only leaves from *low* to before *high* are used. A *leader* is one more pod that comes along. Where leaves are
        zones of hosts, *hosts* counts the same pod on those, *host_of* has the leaf there of every leaf. *most* is how many
        pods each leaf takes at most, *beside* how many where the leader is. *cap* is how many pods
        each domain of *cap_level*, above the leaves, takes at most.
        """
        cdef Domains domains = rows.domains
        cdef int n = domains.count + 1
        self.domains, self.rows, self.pod, self.mask = domains, rows, pod, mask
        self.leader, self.leader_mask = leader, leader_mask if leader_mask is not None else mask
        self.size = size
        self.slice_level = domains.levels - 1 if slice_level < 0 else slice_level
        self.low, self.high = low, domains.leaves if high is None else high
        self.epoch = -1
        if size < 1 or self.slice_level >= domains.levels or mask.leaves != domains.leaves:
            raise ValueError("slices need a size and a level, a mask one entry a leaf")
        self.inner = <int *> PyMem_Calloc(domains.levels, sizeof(int))
        self.pods = <int32_t *> PyMem_Calloc(n, sizeof(int32_t))
        plain = size == 1 and self.slice_level == domains.levels - 1
        self.slices = self.pods if plain else <int32_t *> PyMem_Calloc(n, sizeof(int32_t))
        if leader is None:
            self.pods_l, self.slices_l = self.pods, self.slices
        else:
            self.pods_l = <int32_t *> PyMem_Calloc(n, sizeof(int32_t))
            self.slices_l = self.pods_l if plain else <int32_t *> PyMem_Calloc(n, sizeof(int32_t))
            self.leaders = <uint8_t *> PyMem_Calloc(n, 1)
        if mask.score:
            self.score = <int64_t *> PyMem_Calloc(n, sizeof(int64_t))
        if not (self.inner and self.pods and self.slices and self.pods_l and self.slices_l) or (
            (leader is not None and not self.leaders) or (mask.score and not self.score)
        ):
            raise MemoryError
        for level, each in (inner or {}).items():
            self.inner[<int> level] = each
        if most is not None:
            self.most = _array(most, domains.leaves)
        if beside is not None:
            self.beside = _array(beside, domains.leaves)
        self.cap_level = -1 if cap is None else cap_level
        if cap is not None:
            self.cap = _array(cap, domains.offset[cap_level + 1] - domains.offset[cap_level])
        if hosts is not None:
            self.hosts = hosts
            self.host_level = hosts.domains.levels - 1
            self.host_of = <int *> PyMem_Calloc(domains.leaves + 1, sizeof(int))
            if not self.host_of:
                raise MemoryError
            for leaf in range(domains.leaves):
                self.host_of[<int> leaf] = hosts.domains.offset[self.host_level] + <int> host_of[leaf]

    def __dealloc__(self):
        if self.slices_l != self.pods_l and self.slices_l != self.slices:
            PyMem_Free(self.slices_l)
        if self.pods_l != self.pods:
            PyMem_Free(self.pods_l)
        if self.slices != self.pods:
            PyMem_Free(self.slices)
        PyMem_Free(self.pods)
        PyMem_Free(self.inner)
        PyMem_Free(self.leaders)
        PyMem_Free(self.score)
        PyMem_Free(self.host_of)
        PyMem_Free(self.most)
        PyMem_Free(self.beside)
        PyMem_Free(self.cap)

    def start_from(self, Counts other not None):
        """Copy the counts of *other*: the same pods, in the rows from which these rows were forked.

        Nothing is copied if the original rows have changed since the fork.
        """
        cdef Rows rows = self.rows, origin = other.rows
        cdef size_t size = self.domains.count * sizeof(int32_t)
        if rows.origin is not origin or origin.epoch != rows.origin_epoch or origin.changes != rows.origin_changes:
            return
        if (self.leaders == NULL) != (other.leaders == NULL) or (self.score == NULL) != (other.score == NULL):
            raise ValueError("the counts are of other pods")
        other.refresh()
        memcpy(self.pods, other.pods, size)
        if self.slices != self.pods:
            memcpy(self.slices, other.slices, size)
        if self.leaders:
            memcpy(self.leaders, other.leaders, self.domains.count)
            memcpy(self.pods_l, other.pods_l, size)
            if self.slices_l != self.pods_l:
                memcpy(self.slices_l, other.slices_l, size)
        if self.score:
            memcpy(self.score, other.score, self.domains.count * sizeof(int64_t))
        self.epoch, self.seen = origin.epoch, origin.changes

    def of(self, int domain):
        """Return pods, slices, both with the leader, leaders and score of a domain."""
        self.domains._check(domain)
        self.refresh()
        leaders = self.leaders[domain] if self.leaders else 0
        score = self.score[domain] if self.score else 0
        return (self.pods[domain], self.slices[domain], self.pods_l[domain], self.slices_l[domain], leaders, score)

    def below(self, int domain):
        """Return what each domain below *domain* holds with and without the leader, as bytes, to compare."""
        cdef Domains domains = self.domains
        cdef int low = domain, high = domain, n
        domains._check(domain)
        self.refresh()
        found = []
        while domains.low[low] != domains.high[low]:
            low, high = domains.low[low], domains.high[high] - 1
            n = (high + 1 - low) * sizeof(int32_t)
            found.append((<char *> &self.pods[low])[:n])
            if self.leaders:
                found += [(<char *> &self.pods_l[low])[:n], (<char *> &self.leaders[low])[:high + 1 - low]]
        return b"".join(found)

    def pods_above(self, int leaf, int level):
        """Return the pods of the domain of *level* that *leaf*, counted from 0, is in."""
        cdef int domain = self.domains.above(leaf, level)
        self.refresh()
        return self.pods[domain]

    def exclusions(self):
        """Return how many leaves take part, how many each code excludes, how many are outside, and each resource."""
        cdef int leaf, at, total = 0, outside = 0, base = self.domains.offset[self.domains.levels - 1]
        cdef int codes[256]
        cdef list lacking = [0] * self.pod.size  # leaves that lack the resource, by its place in the vector
        self.refresh()
        memset(codes, 0, sizeof(codes))
        for leaf in range(self.domains.leaves):
            if not self.rows.nodes[leaf]:
                continue
            total += 1
            if self.mask.code[leaf]:
                codes[self.mask.code[leaf]] += 1
            elif not self.low <= leaf < self.high:
                outside += 1
            elif not self.pods[base + leaf]:
                for at in range(self.pod.size):
                    if self.rows.free[self.pod.resource[at]][leaf] < self.pod.amount[at]:
                        lacking[at] += 1
                        break
        resources = {self.rows.names[self.pod.resource[at]]: number for at, number in enumerate(lacking) if number}
        return total, {code: codes[code] for code in range(1, 256) if codes[code]}, outside, resources

    def best_of_level(self, int level):
        """Return the first domain of *level*, with nodes, that holds the most slices; -1 if none has nodes."""
        cdef int domain, best = -1
        self.refresh()
        for domain in self.domains.of_level(level):
            if best < 0 or self.slices[domain] > self.slices[best]:
                if self.has_nodes(domain):
                    best = domain
        return best

    cdef bint has_nodes(self, int domain) noexcept nogil:
        """Whether nodes of a domain take part."""
        cdef int leaf
        for leaf in range(self._first_leaf(domain), self._last_leaf(domain) + 1):
            if self.rows.nodes[leaf]:
                return True
        return False

    def whole_below(self, int domain, int level, int size):
        """Return how many slices of *size* pods the domains of *level* below *domain* hold, each by itself."""
        cdef int each
        cdef int64_t total = 0
        self.refresh()
        low = high = domain
        while self.level_of(low) < level:
            low, high = self.domains.low[<int> low], self.domains.high[<int> high] - 1
        for each in range(low, high + 1):
            total += self.pods[each] // size
        return total

    cdef int level_of(self, int domain):
        cdef int level = 0
        while domain >= self.domains.offset[level + 1]:
            level += 1
        return level

    cdef refresh(self):
        """Count again the leaves that changed, or all of them the first time."""
        cdef int level, domain, leaf, at
        cdef Domains domains = self.domains
        cdef Rows rows = self.rows
        if self.hosts is not None:
            self.hosts.refresh()
        if self.epoch == rows.epoch:
            for at in range(self.seen, rows.changes):
                self.count_again(rows.changed[at])
        else:
            with nogil:
                for leaf in range(domains.leaves):
                    self.count_leaf(leaf)
                for level in range(domains.levels - 2, -1, -1):
                    for domain in range(domains.offset[level], domains.offset[level + 1]):
                        self.roll_up(domain, level)
        self.epoch, self.seen = rows.epoch, rows.changes

    cdef void count_again(self, int leaf) noexcept nogil:
        """Count a changed leaf, and the domains above it up to the first that keeps its counts."""
        cdef int level = self.domains.levels - 1, domain = self.domains.offset[level] + leaf
        cdef Held before = held_by(self, domain), after, above
        self.count_leaf(leaf)
        after = held_by(self, domain)
        while level > 0 and (self.host_of or not _equal(&before, &after)):  # hosts may have changed alone
            level, domain = level - 1, self.domains.parent[domain]
            above = held_by(self, domain)
            if not self.add_change(domain, level, &before, &after):
                self.roll_up(domain, level)
            before, after = above, held_by(self, domain)

    cdef bint add_change(self, int domain, int level, Held *before, Held *after) noexcept nogil:
        """Add what a child holds more or less than *before*; return False if all children are to be counted."""
        cdef int inner = self.inner[level + 1]
        cdef int64_t pods = self.pods[domain], slices = self.slices[domain]
        if self.leaders or self.host_of or self.cap_level >= 0 or pods == INT32_MAX or slices == INT32_MAX:
            return False
        pods += after.pods - before.pods
        if inner:
            pods -= after.pods % inner - before.pods % inner
        slices += after.slices - before.slices
        if pods >= INT32_MAX or slices >= INT32_MAX:
            return False
        self.pods[domain] = <int32_t> pods
        if self.slices != self.pods:
            self.slices[domain] = <int32_t> (pods // self.size if level == self.slice_level else slices)
        if self.score:
            self.score[domain] += after.score - before.score
        return True

    cdef void count_leaf(self, int leaf) noexcept nogil:
        cdef int domain = self.domains.offset[self.domains.levels - 1] + leaf, at
        cdef bint used = self.rows.nodes[leaf] > 0 and self.low <= leaf < self.high
        cdef bint last = self.slice_level == self.domains.levels - 1
        cdef bint led = False
        self.pods[domain] = _fit(self, leaf, False) if used and not self.mask.code[leaf] else 0
        if self.host_of:
            self.pods[domain] = min(self.pods[domain], self.hosts.pods[self.host_of[leaf]])
        if self.slices != self.pods:
            self.slices[domain] = self.pods[domain] // self.size if last else 0
        if self.score:
            self.score[domain] = self.mask.score[leaf] if used else 0
        if self.leaders:
            if used and not self.leader_mask.code[leaf]:
                led = True
                for at in range(self.leader.size):
                    if self.rows.free[self.leader.resource[at]][leaf] < self.leader.amount[at]:
                        led = False
                        break
            if self.host_of and not self.hosts.leaders[self.host_of[leaf]]:
                led = False
            self.leaders[domain] = led
            self.pods_l[domain] = _fit(self, leaf, True) if led and self.pods[domain] else self.pods[domain]
            if self.slices_l != self.pods_l:
                self.slices_l[domain] = self.pods_l[domain] // self.size if last else 0

    cdef void roll_up(self, int domain, int level) noexcept nogil:
        cdef int64_t pods = 0, slices = 0, score = 0, loss = INT32_MAX, slice_loss = INT32_MAX, own, own_l, cap
        cdef int child, inner = self.inner[level + 1]
        cdef bint led = False
        for child in range(self.domains.low[domain], self.domains.high[domain]):
            own = self.pods[child]
            if inner:
                own -= own % inner
            pods += own
            slices += self.slices[child]
            if self.score:
                score += self.score[child]
            if self.leaders and self.leaders[child]:
                led = True
                own_l = self.pods_l[child]
                if inner:
                    own_l -= own_l % inner
                loss = min(loss, own - own_l)
                slice_loss = min(slice_loss, <int64_t> self.slices[child] - self.slices_l[child])
        if self.host_of and level == self.host_level:
            cap = self.hosts.pods[self.host_of[self._first_leaf(domain)]]
            pods = min(pods, cap)
            slices = min(slices, cap // self.size)
        own = own_l = INT32_MAX
        if level == self.cap_level:
            own = self.cap[domain - self.domains.offset[level]]
            own_l = own // self.size
        self.pods[domain] = <int32_t> min(pods, own)
        if level == self.slice_level:
            slices = self.pods[domain] // self.size
        if self.slices != self.pods:
            self.slices[domain] = <int32_t> min(slices, own_l)
        if self.score:
            self.score[domain] = score
        if self.leaders:
            self.leaders[domain] = led
            pods = min(pods - loss, own) if led else 0
            self.pods_l[domain] = <int32_t> pods
            slices = min(slices - slice_loss, own_l) if led else 0
            if self.host_of and level == self.host_level:
                cap = self.hosts.pods_l[self.host_of[self._first_leaf(domain)]]
                self.pods_l[domain] = <int32_t> min(pods, cap)
                slices = min(slices, cap // self.size)
            if level == self.slice_level:
                slices = self.pods_l[domain] // self.size
            if self.slices_l != self.pods_l:
                self.slices_l[domain] = <int32_t> slices

    cdef int _first_leaf(self, int domain) noexcept nogil:
        while self.domains.low[domain] != self.domains.high[domain]:
            domain = self.domains.low[domain]
        return domain - self.domains.offset[self.domains.levels - 1]

    cdef int _last_leaf(self, int domain) noexcept nogil:
        while self.domains.low[domain] != self.domains.high[domain]:
            domain = self.domains.high[domain] - 1
        return domain - self.domains.offset[self.domains.levels - 1]


cdef Held held_by(Counts counts, int domain) noexcept nogil:
    return Held(
        counts.pods[domain], counts.slices[domain], counts.pods_l[domain], counts.slices_l[domain],
        counts.leaders[domain] if counts.leaders else 0, counts.score[domain] if counts.score else 0,
    )


cdef bint _equal(Held *one, Held *other) noexcept nogil:
    return (
        one.pods == other.pods and one.slices == other.slices and one.pods_l == other.pods_l
        and one.slices_l == other.slices_l and one.leaders == other.leaders and one.score == other.score
    )


cdef int32_t *_array(list numbers, int leaves) except NULL:
    """Return numbers of so many leaves, or other domains."""
    cdef int32_t *made = <int32_t *> PyMem_Calloc(leaves + 1, sizeof(int32_t))
    cdef int leaf
    if not made:
        raise MemoryError
    for leaf in range(leaves):
        made[leaf] = numbers[leaf]
    return made


cdef int32_t _fit(Counts counts, int leaf, bint beside_leader) noexcept nogil:
    """Return how many pods fit into a leaf, the leader taken out first if wanted."""
    cdef int64_t least = INT32_MAX, free
    cdef int at, each, resource
    if counts.most:
        least = counts.most[leaf]
    if beside_leader and counts.beside:
        least = min(least, counts.beside[leaf])
    for at in range(counts.pod.size):
        resource = counts.pod.resource[at]
        free = counts.rows.free[resource][leaf]
        if beside_leader:
            for each in range(counts.leader.size):
                if counts.leader.resource[each] == resource:
                    free -= counts.leader.amount[each]
        if free < counts.pod.amount[at]:
            return 0
        least = min(least, free // counts.pod.amount[at])
    return <int32_t> least
