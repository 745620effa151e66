"""Choosing domains and descending to leaves: spec cluster.md §5.

Owns who gets how many; reads counts, changes nothing. A pod set is placed in two steps: the
level and the domains that hold it are chosen, then every level below, down to the leaves, is filled from what the
domains above it were given. Units are slices down to the slice level, below it inner slices or single pods.
"""

cimport cython
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc
from libc.stdint cimport INT32_MAX, int32_t, int64_t
from libc.string cimport memcpy, memset

from nri_policy.native._balance cimport balance
from nri_policy.native._candidates cimport Candidate, Key, Order, Row, before, load, sort, sort_keys
from nri_policy.native._counts cimport Counts
from nri_policy.native._domains cimport Domains

cdef enum:
    SMALL = 1024  # domains with fewer slices are counted by their slices


class Refusal(Exception):
    """A pod set does not fit: `fits` slices or pods would, looked for at `level`."""

    def __init__(self, fits, level):
        super().__init__(fits, level)
        self.fits, self.level = fits, level


@cython.final
cdef class Places:
    """Leaves and the pods that go there, by path."""

    def __cinit__(self, int room):
        self.leaf = <int32_t *> PyMem_Malloc((<size_t> room + 1) * sizeof(int32_t))
        self.pods = <int32_t *> PyMem_Malloc((<size_t> room + 1) * sizeof(int32_t))
        if not (self.leaf and self.pods):
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self.leaf)
        PyMem_Free(self.pods)

    def __len__(self):
        return self.size

    def __iter__(self):
        return iter([(self.leaf[index], self.pods[index]) for index in range(self.size)])


def make_places(list pairs not None):
    """Return places of pairs of a leaf and its pods, which are in the order of leaves."""
    cdef Places places = Places(len(pairs))
    for leaf, pods in pairs:
        places.leaf[places.size], places.pods[places.size] = leaf, pods
        places.size += 1
    return places


@cython.final
cdef class Entries:
    """Entries of assignments, one per leaf. The last entry of a leaf is reused for the same number of pods."""

    cdef list made      # by leaf; None before
    cdef int32_t *pods  # by leaf: pods of the kept entry
    cdef object make

    def __cinit__(self, int leaves, make not None):
        """*make* returns a new one for a leaf and its pods."""
        self.made, self.make = [None] * leaves, make
        self.pods = <int32_t *> PyMem_Calloc(leaves + 1, sizeof(int32_t))
        if not self.pods:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self.pods)

    def of(self, places not None):
        """Return those of `Places`, or of pairs of a leaf and its pods."""
        cdef Places given
        cdef int index
        if type(places) is not Places:
            return [self.entry(leaf, pods) for leaf, pods in places]
        given = places
        return [self.entry(given.leaf[index], given.pods[index]) for index in range(given.size)]

    cdef entry(self, int leaf, int32_t pods):
        found = self.made[leaf]
        if found is None or self.pods[leaf] != pods:
            found = self.made[leaf] = self.make(leaf, pods)
            self.pods[leaf] = pods
        return found


def pack(Counts counts not None, int count, *, int level, bint required=False, bint unconstrained=False,
         bint ascending=False, bint balanced=False, bint compact=False, int within=-1):
    """Return where *count* pods go: leaves and pods, by path, and the leader's leaf, -1 without one.

    They are looked for at *level*, and above it unless *required* or *unconstrained*; *ascending* fills the smallest
    domains first (LeastFree); *balanced* tries to give as much to every domain first, and fills like BestFit whatever
    *ascending* says; *compact* fills as few domains as it can below the slice level. With *within*,
    all pods go into that domain, which is at *level* or above it, and nothing is balanced. Raises Refusal.
    """
    cdef Order order = Order(True, ascending, counts.score is not NULL)
    cdef int need = counts.leaders is not NULL
    cdef int top = 0
    cdef Row row = Row()
    if within >= 0:
        counts.domains._check(within)
        top = counts.level_of(within)
    if not top <= level <= counts.slice_level:
        raise ValueError(f"level {level} is not one from {top} to that of the slices")
    counts.refresh()
    if balanced and within < 0:
        order.ascending = False  # below the balance, and if there is none: BestFit
        lower = balance(counts, row, level, count // counts.size, need, order)
        if lower >= 0:
            return descend(counts, row, lower, count, need, order, True, compact)
    while not choose(counts, row, level, within, count // counts.size, need, order, required,
                     unconstrained or level == top):
        level -= 1
    return descend(counts, row, level, count, need, order, False, compact)


cdef choose(Counts counts, Row row, int level, int within, int wanted, int need, Order order, bint required,
            bint gather):
    """Fill *row* with the domains of *level* that hold all; return False for none where it may be looked for above.

    Only those *within* a domain are taken, if it is none below 0.
    """
    cdef Domains domains = counts.domains
    cdef int low = domains.offset[level], high = domains.offset[level + 1], best, index
    cdef int64_t left = wanted
    cdef Row led
    cdef Candidate chosen
    if within >= 0:
        low, high = within, within + 1
        while low < domains.offset[level]:
            low, high = domains.low[low], domains.high[high - 1]
    row.size = 0
    best = _single(counts, low, high, wanted, need, order, required)
    if best >= 0:
        load(counts, row, best, best + 1)
        return True
    if required:
        raise Refusal(_fits_at_most(counts, low, high, order), level)
    if not gather:
        return False
    _load_useful(counts, row, low, high, wanted, need, order)
    sort(row, order)
    if need:
        _prioritize(row, wanted, need, True)
        if not row.size or not row.at[0].leaders:
            raise Refusal(0, level)
        index = 0
        if not order.ascending and row.at[0].slices_l >= left:
            index = _best_fit(row, 0, left, True, True, order)
        chosen = row.at[index]
        left -= chosen.slices_l
        led = Row()
        led.push(chosen)
        memcpy(row.at, row.at + 1, (row.size - 1) * sizeof(Candidate))
        row.size -= 1
        order.with_leader = False
        if left > 0:
            sort(row, order)
            left = _gather(row, led, left, order)
        row.size = 0
        row.reserve(led.size)
        memcpy(row.at, led.at, led.size * sizeof(Candidate))
        row.size = led.size
    else:
        led = Row()
        led.reserve(row.size)
        left = _gather(row, led, left, order)
        row.size = led.size
        memcpy(row.at, led.at, led.size * sizeof(Candidate))
    if left > 0:
        raise Refusal(wanted - left, level)
    return True


cdef int64_t _gather(Row row, Row into, int64_t left, Order order):
    """Take candidates in order until *left* slices are held; return what is left then."""
    cdef int index, taken
    for index in range(row.size):
        if left <= 0:
            break
        taken = index
        if not order.ascending and row.at[index].slices >= left:
            taken = _best_fit(row, index, left, False, True, order)
        into.push(row.at[taken])
        left -= row.at[taken].slices
    return left


cdef int _single(Counts counts, int low, int high, int wanted, int need, Order order, bint required) noexcept nogil:
    """Return the one domain that takes all pods, -1 if none has room.

    BestFit searches the domains that have the first one's score. A required request and LeastFree search the domains
    that have the score of the first one with room.
    """
    cdef int domain, best = -1, slices, leaders, tier_leaders = 0
    cdef int64_t tier = 0, score
    cdef bint first = True, any_tier = order.ascending or required or not order.scored
    if not any_tier:
        for domain in range(low, high):
            leaders = counts.leaders[domain] if counts.leaders else 0
            if first or leaders > tier_leaders or (leaders == tier_leaders and counts.score[domain] > tier):
                first, tier_leaders, tier = False, leaders, counts.score[domain]
    for domain in range(low, high):
        slices = counts.slices_l[domain]
        if slices < wanted or (need and not counts.leaders[domain]):
            continue
        if order.scored:
            score = counts.score[domain]
            if not any_tier and score != tier:
                continue
            if best >= 0 and score != counts.score[best]:
                if score > counts.score[best]:
                    best = domain
                continue
        if best < 0 or slices < counts.slices_l[best] or (
            slices == counts.slices_l[best] and counts.pods_l[domain] < counts.pods_l[best]
        ):
            best = domain
    return best


cdef int64_t _fits_at_most(Counts counts, int low, int high, Order order):
    """Return the number that the refusal of a required request reports: slices that fit the first domain in the order.

    With LeastFree, the pods that fit the last domain, as in Kueue. Domains that lost all nodes do not count.
    """
    cdef Row row = Row()
    cdef int index, best = -1
    load(counts, row, low, high)
    for index in range(row.size):
        if best >= 0 and before(row.at + index, row.at + best, order) == order.ascending:
            continue
        if counts.has_nodes(row.at[index].domain):
            best = index
    if best < 0:
        return 0
    return row.at[best].pods if order.ascending else row.at[best].slices


cdef _load_useful(Counts counts, Row row, int low, int high, int wanted, int need, Order order):
    """Load the domains that can be gathered: with room for a slice or the leader.

    LeastFree takes the smallest; those beyond the size at which all is held are not needed.
    """
    cdef int domain, most = INT32_MAX, quota = INT32_MAX
    cdef int64_t held = 0, smaller = 0, useful = -1  # how many domains are; -1: unknown
    cdef int64_t sizes[SMALL]
    if order.ascending and not need and not order.scored:
        memset(sizes, 0, sizeof(sizes))
        for domain in range(low, high):
            if counts.slices[domain] < SMALL:
                sizes[counts.slices[domain]] += 1
        for domain in range(SMALL):
            if held + domain * sizes[domain] >= wanted:
                most, useful = domain, smaller + sizes[domain]
                if counts.slices == counts.pods:  # equal sizes go by path
                    quota = <int> ((wanted - held + domain - 1) // domain)
                    useful = smaller + quota
                break
            held += domain * sizes[domain]
            smaller += sizes[domain] if domain else 0
    for domain in range(low, high):
        if counts.slices[domain] >= most:
            if counts.slices[domain] > most or not quota:
                continue
            quota -= 1
        if counts.slices[domain] or (need and counts.leaders[domain]):
            load(counts, row, domain, domain + 1)
            if row.size == useful:
                break


cdef _prioritize(Row row, int wanted, int need, bint in_slices):
    """Bring to the front the first candidate that can host the leader while the rest still fits in sum."""
    cdef int index
    cdef int64_t sum = 0, loss
    cdef Candidate chosen
    if not need or row.size < 2:
        return
    for index in range(row.size):
        sum += row.at[index].slices if in_slices else row.at[index].pods
    for index in range(row.size):
        chosen = row.at[index]
        if not chosen.leaders:
            continue
        loss = chosen.slices - chosen.slices_l if in_slices else chosen.pods - chosen.pods_l
        if sum - loss < wanted:
            continue
        while index > 0:
            row.at[index] = row.at[index - 1]
            index -= 1
        row.at[0] = chosen
        return


cdef int _best_fit(Row row, int start, int64_t wanted, bint with_leader, bint in_slices, Order order) noexcept nogil:
    """Return the first of the smallest that hold *wanted*, among those from *start* that share the score of the first."""
    cdef int index, best = start, own, least = INT32_MAX
    cdef Candidate *each
    for index in range(start, row.size):
        each = row.at + index
        if order.scored and each.score != row.at[start].score:
            break
        if with_leader and not each.leaders:
            continue
        own = _capacity(each, with_leader, in_slices)
        if own >= wanted and own < least:
            best, least = index, own
    return best


cdef inline int32_t _capacity(Candidate *each, bint with_leader, bint in_slices) noexcept nogil:
    if in_slices:
        return each.slices_l if with_leader else each.slices
    return each.pods_l if with_leader else each.pods


cdef bint _give(Row row, Row into, int count, int need, int unit, bint in_slices, Order order):
    """Give *count* pods in units of *unit* to the candidates of *row*, in order; return whether all found a place.

    Those with pods, or that could host the leader, go to *into*: pods, slices and leaders are what they were given.
    """
    cdef int index, taken, own
    cdef int64_t left = count // unit
    cdef Candidate chosen
    _prioritize(row, count // unit, need, in_slices)
    for index in range(row.size):
        taken = index
        own = _capacity(&row.at[taken], need > 0, in_slices)
        if not order.ascending and own >= left and row.at[taken].leaders >= need:
            taken = _best_fit(row, index, left, need > 0, in_slices, order)
            own = _capacity(&row.at[taken], need > 0, in_slices)
        chosen = row.at[taken]
        if own > left:
            own = <int> left
        chosen.leaders = 1 if need and chosen.leaders else 0
        chosen.slices, chosen.pods = own, own * unit
        left -= own
        need -= chosen.leaders
        if own or row.at[taken].leaders:  # below, the leader may yet move to where it could have been
            into.push(chosen)
        if left <= 0 and not need:
            return True
    return left <= 0 and not need


cdef bint _is_host_smaller(Counts counts, Row given, int level):
    """Return whether the domains of *level* are hosts, and one of those *given* takes fewer pods than its zones would."""
    cdef int index, child, domain, host
    cdef int64_t total, loss
    if counts.hosts is None or level != counts.host_level:
        return False
    for index in range(given.size):
        domain, total, loss = given.at[index].domain, 0, INT32_MAX
        for child in range(counts.domains.low[domain], counts.domains.high[domain]):
            total += counts.pods[child]
            if counts.leaders and counts.leaders[child]:
                loss = min(loss, counts.pods[child] - counts.pods_l[child])
        host = counts.host_of[counts._first_leaf(domain)]
        if counts.hosts.pods[host] < total:
            return True
        if given.at[index].leaders and counts.hosts.pods_l[host] < total - loss:
            return True
    return False


cdef _sort_inside(Row row, int unit, bint compact, Order order):
    """Sort candidates below the slice level: fewest pods first, or with *compact* those that hold most units.

    Units that fit a candidate count as its slices.
    """
    cdef int index
    if not compact:
        sort(row, order)
    if unit > 1 or compact:
        for index in range(row.size):
            row.at[index].slices = row.at[index].pods // unit
            row.at[index].slices_l = row.at[index].pods_l // unit
    if compact:
        sort(row, order)


cdef descend(Counts counts, Row chosen, int level, int count, int need, Order order, bint apart, bint compact):
    """Return what `pack` does, from the *chosen* domains of *level*, in their order.

    With *apart*, every domain above the slice level keeps what it was given; else all share. So does every host from
    where one takes fewer pods than its zones would: what the zones do not list, or how many pods a host may have.
    Below the slice level the smallest children are filled first; with *compact*, the fewest that hold all.
    """
    cdef Domains domains = counts.domains
    cdef Order own, inside = order  # below the slice level
    cdef Row row = Row(), given = Row(), below
    cdef int index, unit, base = domains.offset[domains.levels - 1], leader = -1
    cdef Candidate *each
    cdef bint in_slices
    order.with_leader = inside.with_leader = False
    if compact:
        inside.ascending = False
    if not _give(chosen, given, count, need, counts.size, True, order):
        raise Refusal(_sum(given), level)
    while level < domains.levels - 1:
        below = Row()
        apart = apart or _is_host_smaller(counts, given, level)
        if level < counts.slice_level and not apart:
            row.size = 0
            for index in range(given.size):
                load(counts, row, domains.low[given.at[index].domain], domains.high[given.at[index].domain])
            sort(row, order)
            if not _give(row, below, count, need, counts.size, True, order):
                raise Refusal(_sum(below), level)
        else:
            unit, in_slices, own = counts.size, True, order
            if level >= counts.slice_level:
                unit, own = counts.inner[level + 1] or 1, inside
                in_slices = unit > 1 or compact
            for index in range(given.size):
                each = given.at + index
                row.size = 0
                load(counts, row, domains.low[each.domain], domains.high[each.domain])
                if level < counts.slice_level:
                    sort(row, order)
                else:
                    _sort_inside(row, unit, compact, inside)
                if not _give(row, below, each.pods, each.leaders, unit, in_slices, own):
                    raise Refusal(_sum(below), level)
        given = below
        level += 1
    for index in range(given.size):
        if given.at[index].leaders:
            leader = given.at[index].domain - base
    return _by_path(given, base), leader


cdef Places _by_path(Row given, int base):
    """Return what domains from *base* on, which are leaves, were given."""
    cdef Places places = Places(given.size)
    cdef int index
    cdef Candidate *each
    cdef Key *keys = <Key *> PyMem_Malloc((2 * <size_t> given.size + 1) * sizeof(Key))
    if not keys:
        raise MemoryError
    for index in range(given.size):
        keys[index].value, keys[index].index = given.at[index].domain, index
    sort_keys(keys, given.size)
    for index in range(given.size):
        each = given.at + keys[index].index
        if each.pods:
            places.leaf[places.size], places.pods[places.size] = each.domain - base, each.pods
            places.size += 1
    PyMem_Free(keys)
    return places


cdef int64_t _sum(Row row):
    cdef int index
    cdef int64_t sum = 0
    for index in range(row.size):
        sum += row.at[index].slices
    return sum


