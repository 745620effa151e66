"""Spreading by water-filling: the best balance from the top down; spec cluster.md §6.

Owns how a number of pods is split among branches and hosts. What room a host has is the counts'; which pods run where
already is the caller's.
"""

from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport int32_t, int64_t, uint8_t

from nri_policy.native._counts cimport Counts
from nri_policy.native._domains cimport Domains

MAX_WEIGHT = 1_000_000
FAILING = 5         # a host with so many recent failures gets pods only if no other host has room

cdef int cFAILING = FAILING
cdef int64_t cMAX_WEIGHT = MAX_WEIGHT


cdef struct Split:
    int64_t *have       # by domain: running pods of the spread group
    int64_t *room       # by domain: how many more fit
    int64_t *given      # by domain: the result
    int32_t *weight     # by domain; NULL: 1 for all
    int64_t *inside     # by domain: pods per weight of the branch inside it that would take the next pod
    uint8_t *unlabelled # by domain: whether its hosts lack the label; it comes last among equals
    const int32_t *every    # by leaf: all running pods
    int base            # id of the first leaf


def spread(Counts counts not None, int64_t pods, const int32_t[::1] own not None, const int32_t[::1] every not None,
           const int32_t[::1] failures not None, *, packed, list weights not None, unlabelled, int64_t most=-1):
    """Return a list of (leaf, pods) by leaf, and the number of pods that fit nowhere.

    Numbers by leaf: *own* running pods of the spread group, *every* running pod, recent *failures*. Levels above the
    last: *packed* says whether domains are filled one after the other; *weights* maps domains to weights (default 1).
    *unlabelled* are the domains whose hosts lack the label. With *most* >= 0, a leaf has at most so many pods of the
    group, running ones included.
    """
    cdef Domains domains = counts.domains
    cdef int n = domains.count + 1, leaves = domains.leaves, level, domain, last = domains.levels - 1
    cdef int64_t room
    cdef Split split
    cdef int *spare
    cdef int *ids = <int *> PyMem_Calloc(2 * n, sizeof(int))
    cdef int64_t *cells = <int64_t *> PyMem_Calloc(4 * n, sizeof(int64_t))
    cdef int32_t *weighing = <int32_t *> PyMem_Calloc(n, sizeof(int32_t))
    cdef uint8_t *lacking = <uint8_t *> PyMem_Calloc(n, sizeof(uint8_t))
    if pods < 0 or min(own.shape[0], every.shape[0], failures.shape[0]) < leaves:
        raise ValueError("pods are a number, and counts are one per leaf")
    try:
        if not (ids and cells and weighing and lacking):
            raise MemoryError
        if not leaves:
            return [], pods
        split.have, split.room, split.given, split.inside = cells, cells + n, cells + 2 * n, cells + 3 * n
        spare = ids + n
        split.every, split.base, split.weight, split.unlabelled = &every[0], domains.offset[last], weighing, lacking
        for domain in range(domains.count):
            weighing[domain] = 1
        for each in weights:
            for branch, weight in each.items():
                if not (0 <= branch < split.base and 1 <= weight <= cMAX_WEIGHT):
                    raise ValueError("weights are from 1 to 1000000, of domains above the leaves")
                weighing[<int> branch] = weight
        for branch in unlabelled:
            if not 0 <= branch < split.base:
                raise ValueError("unlabelled are domains above the leaves")
            lacking[<int> branch] = 1
        counts.refresh()
        for domain in range(leaves):
            room = counts.pods[split.base + domain]
            if most >= 0:
                room = min(room, most - own[domain])
            split.room[split.base + domain] = max(room, 0)
            split.have[split.base + domain] = own[domain]
        for domain in range(domains.count - 1, domains.offset[1] - 1, -1):
            split.room[domains.parent[domain]] += split.room[domain]
            split.have[domains.parent[domain]] += split.have[domain]
        _branches(&split, domains, 0, domains.offset[1], pods, 0 == last, last > 0 and packed[0],
                  last > 0 and not (last > 1 and packed[1]), failures, ids, spare)
        for level in range(last):
            for domain in range(domains.offset[level], domains.offset[level + 1]):
                if split.given[domain]:
                    _branches(&split, domains, domains.low[domain], domains.high[domain], split.given[domain],
                              level + 1 == last, level + 1 < last and packed[level + 1],
                              level + 1 < last and not (level + 2 < last and packed[level + 2]),
                              failures, ids, spare)
        found = []
        for domain in range(split.base, domains.count):
            if split.given[domain]:
                found.append((domain - split.base, split.given[domain]))
                pods -= split.given[domain]
        return found, pods
    finally:
        PyMem_Free(ids)
        PyMem_Free(cells)
        PyMem_Free(weighing)
        PyMem_Free(lacking)


cdef int _branches(Split *split, Domains domains, int low, int high, int64_t pods, bint hosts, bint packed,
                   bint deeper, const int32_t[::1] failures, int *ids, int *spare) except -1:
    """Split *pods* among the domains from *low* to before *high*; *deeper*: what is inside equal ones matters."""
    cdef int domain, count = 0
    cdef int64_t left = pods
    if packed:
        _pack(split, low, high, pods)
        return 0
    for domain in range(low, high):
        if split.room[domain] and (not hosts or failures[domain - split.base] < cFAILING):
            ids[count] = domain
            count += 1
    left -= _fill(split, domains, ids, count, pods, hosts, spare if deeper else NULL)
    if hosts and left:
        _pass_to_failing(split, low, high, left, failures, ids)
    return 0


cdef int _pass_to_failing(Split *split, int low, int high, int64_t left, const int32_t[::1] failures,
                          int *ids) except -1:
    """Give the remaining pods to failing hosts, those with the fewest failures first."""
    cdef int host, count
    cdef dict kinds = {}
    for host in range(low, high):
        if failures[host - split.base] >= cFAILING and split.room[host]:
            kinds.setdefault(failures[host - split.base], []).append(host)
    for kind in sorted(kinds):
        count = 0
        for each in kinds[kind]:
            ids[count] = each
            count += 1
        left -= _fill(split, None, ids, count, left, True, NULL)
    return 0


cdef int _pack(Split *split, int low, int high, int64_t left) except -1:
    """Fill the branch with the largest room first; the smallest that holds all that is left, once one does."""
    cdef int domain
    rooms = sorted([(-split.room[domain], split.unlabelled[domain], domain) for domain in range(low, high)])
    for _, _, which in rooms:
        domain = which
        if split.room[domain] >= left:
            _, _, domain = min([(-other, lacks, each) for other, lacks, each in rooms if -other >= left and not split.given[<int> each]])
            split.given[domain] = left
            return 0
        split.given[domain] = split.room[domain]
        left -= split.room[domain]
    return 0


cdef int64_t _fill(Split *split, Domains domains, int *ids, int count, int64_t pods, bint hosts, int *spare) noexcept:
    """Raise the fewest per weight first, up to their room; return how many pods found a place.

    Find the highest t at which there are enough pods to bring every branch to t pods per weight. Then give the rest
    one by one; with *spare* ids, among equal branches to the one that balances best inside.
    """
    cdef int64_t total = 0, level, taken = 0
    cdef int at
    for at in range(count):
        total += split.room[ids[at]]
    if total <= pods:
        for at in range(count):
            split.given[ids[at]] = split.room[ids[at]]
        return total
    level = _level(split, ids, count, pods)
    for at in range(count):
        split.given[ids[at]] = _brought_to(split, ids[at], level)
        taken += split.given[ids[at]]
    _give_singly(split, domains, ids, count, pods - taken, hosts, spare)
    return pods


cdef int64_t _level(Split *split, const int *ids, int count, int64_t pods) noexcept:
    """Return the highest level that takes no more than *pods*, found by halves."""
    cdef int64_t most = 0, low = 0, high, level
    cdef int at
    for at in range(count):
        most = max(most, split.have[ids[at]])
    high = most + pods + 1
    while high - low > 1:
        level = low + (high - low) // 2
        if _taken(split, ids, count, level, pods) <= pods:
            low = level
        else:
            high = level
    return low


cdef void _look_inside(Split *split, Domains domains, int domain, int *spare) noexcept:
    """Find what the next pod of a domain would meet: the level of its own branches, with what it has been given."""
    cdef int branch, count = 0
    for branch in range(domains.low[domain], domains.high[domain]):
        if split.room[branch]:
            spare[count] = branch
            count += 1
    split.inside[domain] = _level(split, spare, count, split.given[domain])


cdef inline int64_t _brought_to(Split *split, int domain, int64_t level) noexcept:
    cdef int64_t missing = level * split.weight[domain] - split.have[domain]
    return min(max(missing, 0), split.room[domain])


cdef int64_t _taken(Split *split, const int *ids, int count, int64_t level, int64_t enough) noexcept:
    """Return how many pods a level takes; it is known by then if that is more than *enough*."""
    cdef int64_t taken = 0
    cdef int at
    for at in range(count):
        taken += _brought_to(split, ids[at], level)
        if taken > enough:
            break
    return taken


cdef void _give_singly(Split *split, Domains domains, int *ids, int count, int64_t left, bint hosts,
                       int *spare) noexcept:
    """Give *left* pods one by one, each to the first branch by `_before`; *ids* becomes a heap of open branches."""
    cdef int at, size = 0
    for at in range(count):
        if split.given[ids[at]] < split.room[ids[at]]:
            ids[size] = ids[at]
            size += 1
    for at in range(size if left and spare != NULL else 0):
        _look_inside(split, domains, ids[at], spare)
    for at in range(size // 2 - 1, -1, -1):
        _sink(split, ids, size, at, hosts)
    while left:
        split.given[ids[0]] += 1
        left -= 1
        if split.given[ids[0]] == split.room[ids[0]]:
            size -= 1
            ids[0] = ids[size]
        elif left and spare != NULL:
            _look_inside(split, domains, ids[0], spare)
        _sink(split, ids, size, 0, hosts)


cdef void _sink(Split *split, int *ids, int size, int at, bint hosts) noexcept:
    cdef int child, top = ids[at]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and _before(split, ids[child + 1], ids[child], hosts):
            child += 1
        if not _before(split, ids[child], top, hosts):
            break
        ids[at] = ids[child]
        at = child
    ids[at] = top


cdef inline bint _before(Split *split, int one, int other, bint hosts) noexcept:
    """Whether *one* gets the next pod: fewest per weight, larger weight, labelled, fewest inside; hosts: fewest in all; value."""
    cdef int64_t mine = (split.have[one] + split.given[one]) * split.weight[other]
    cdef int64_t others = (split.have[other] + split.given[other]) * split.weight[one]
    if mine != others:
        return mine < others
    if split.weight[one] != split.weight[other]:
        return split.weight[one] > split.weight[other]
    if split.unlabelled[one] != split.unlabelled[other]:
        return split.unlabelled[other]
    if split.inside[one] != split.inside[other]:
        return split.inside[one] < split.inside[other]
    if hosts:
        mine = split.every[one - split.base] + split.given[one]
        others = split.every[other - split.base] + split.given[other]
        if mine != others:
            return mine < others
    return one < other
