"""Balanced: as few domains as possible, and as much in each of them; spec cluster.md §5.

The upper domains are those of the preferred level, the lower ones their children. Among the siblings below each
parent a greedy fit tells how much every lower domain could get at least: the threshold. Where it is the highest, lower
domains that hold less are out, and the smallest sufficient set is chosen by dynamic programming.
"""

from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Realloc
from libc.math cimport log2
from libc.stdint cimport INT32_MAX, int32_t, int64_t
from libc.string cimport memcpy

from nri_policy.native._candidates cimport Candidate, Order, Row, load, sort
from nri_policy.native._counts cimport Counts
from nri_policy.native._domains cimport Domains

cdef int64_t MOST_STEPS = 20_000_000  # of one search: some 50 ms, then it is given up
cdef int64_t MOST_STATES = 8_000_000


cdef struct Fit:
    bint fits
    int used        # domains
    int least       # slices of the leader's domain, or of the last used one if that has fewer
    int last        # of the last one without the leader: its slices with leader, -1 if none is used


cdef struct State:
    int64_t left    # pods that have no place yet
    int32_t chosen  # the domain that was added last
    int32_t before  # the state before, -1 at the start


cdef int balance(Counts counts, Row into, int level, int wanted, int need, Order order) except -2:
    """Fill *into* with lower domains and what each is to get; return their level, -1 if there is no balance.

    *order* is descending: the largest first.
    """
    cdef Domains domains = counts.domains
    cdef bint both = level == domains.levels - 1  # the preferred level is the lower one as well
    cdef int low = 0, high = 1, parent, first, behind, threshold, best = 0, best_used = 0, used
    cdef Row uppers = Row(), lowers = Row(), best_uppers = Row(), best_lowers = Row()
    order.with_leader = True
    if not both and level + 1 > counts.slice_level:
        return -1
    if level:
        low, high = domains.offset[level - 1], domains.offset[level]
    for parent in range(low, high):
        first = domains.low[parent] if level else domains.offset[0]
        behind = domains.high[parent] if level else domains.offset[1]
        threshold = _threshold(counts, uppers, lowers, first, behind, both, wanted, need, order, best, &used)
        if threshold > best or (threshold == best and threshold and used < best_used):
            best, best_used = threshold, used
            uppers, best_uppers = best_uppers, uppers
            lowers, best_lowers = best_lowers, lowers
    if not best:
        return -1
    if both:
        best_lowers = best_uppers
    else:
        _sort_by_entropy(best_uppers, best_lowers, domains)
        best_uppers = _select(best_uppers, wanted, need, counts.size, order)
        if best_uppers is None:
            return -1
        best_lowers = _below(best_uppers, best_lowers, domains)
    _sort_by_path(best_lowers)
    best_lowers = _select(best_lowers, wanted, need, counts.size, order)
    if best_lowers is None or not _spread(best_lowers, into, wanted, need, best, counts.size, order):
        return -1
    return level if both else level + 1


cdef int _threshold(Counts counts, Row uppers, Row lowers, int first, int behind, bint both, int wanted, int need,
                    Order order, int best, int *used) except -1:
    """Return the threshold among siblings, 0 if there is none as good as *best*; what holds less is emptied in the rows."""
    cdef Fit fit
    cdef int threshold, reserved
    _load_both(counts, uppers, lowers, first, behind, both)
    fit = _fit(uppers if both else lowers, wanted, need, order)
    if not fit.fits:
        return 0
    threshold = min(wanted // fit.used, fit.least)
    reserved = min(threshold, fit.last) if need and fit.last >= 0 else threshold
    if not threshold or threshold < best:
        return 0
    _prune(counts, uppers, lowers, both, threshold, need)
    fit = _fit(uppers, wanted, need, order)
    if not fit.fits and 0 < reserved < threshold and reserved >= best:  # the leader takes its room
        threshold = reserved
        _load_both(counts, uppers, lowers, first, behind, both)
        _prune(counts, uppers, lowers, both, threshold, need)
        fit = _fit(uppers, wanted, need, order)
    used[0] = fit.used
    return threshold if fit.fits else 0


cdef _load_both(Counts counts, Row uppers, Row lowers, int first, int behind, bint both):
    uppers.size = lowers.size = 0
    load(counts, uppers, first, behind)
    if not both and behind > first:
        load(counts, lowers, counts.domains.low[first], counts.domains.high[behind - 1])


cdef Fit _fit(Row row, int wanted, int need, Order order) except *:
    """Return how a greedy fit comes out: the leader's domain first, then the largest."""
    cdef Row sorted = _copy(row)
    cdef Fit fit = Fit(False, 0, INT32_MAX, -1)
    cdef int64_t left = wanted
    cdef int index, led = INT32_MAX
    cdef Candidate *each
    order.with_leader = need > 0
    sort(sorted, order)
    if need:
        if not sorted.size or not sorted.at[0].leaders:
            return fit
        fit.used, fit.least, led = 1, sorted.at[0].slices_l, sorted.at[0].slices_l
        left -= sorted.at[0].slices_l
        order.with_leader = False
        memcpy(sorted.at, sorted.at + 1, (sorted.size - 1) * sizeof(Candidate))
        sorted.size -= 1
        sort(sorted, order)
    for index in range(sorted.size):
        each = sorted.at + index
        if left <= 0 or not each.slices:
            break
        fit.used += 1
        fit.last = each.slices_l
        fit.least = min(led, each.slices)  # of the last, as Kueue has it: with scores not the smallest
        left -= each.slices
    fit.fits = left <= 0
    return fit


cdef _prune(Counts counts, Row uppers, Row lowers, bint both, int threshold, int need):
    """Empty the lower domains that hold less than the threshold, then upper ones by what is left of them."""
    cdef int index, child, below = 0
    cdef Candidate *upper
    cdef Candidate *lower
    cdef int64_t loss, slice_loss
    for index in range(lowers.size):
        _empty(&lowers.at[index], threshold, need)
    for index in range(uppers.size):
        upper = uppers.at + index
        if not both:
            upper.pods = upper.slices = upper.pods_l = upper.slices_l = upper.leaders = 0
            loss = slice_loss = INT32_MAX
            for child in range(counts.domains.low[upper.domain], counts.domains.high[upper.domain]):
                lower = lowers.at + below
                below += 1
                upper.pods = <int32_t> min(<int64_t> upper.pods + lower.pods, INT32_MAX)
                upper.slices = <int32_t> min(<int64_t> upper.slices + lower.slices, INT32_MAX)
                if not need or lower.leaders:
                    upper.leaders |= lower.leaders
                    loss = min(loss, lower.pods - lower.pods_l)
                    slice_loss = min(slice_loss, lower.slices - lower.slices_l)
            if not need or upper.leaders:
                upper.pods_l = <int32_t> (upper.pods - min(loss, upper.pods))
                upper.slices_l = <int32_t> (upper.slices - min(slice_loss, upper.slices))
        _empty(upper, threshold, need)


cdef void _empty(Candidate *each, int threshold, int need) noexcept nogil:
    if each.slices < threshold:
        each.pods = each.slices = 0
        each.pods_l = each.slices_l = each.leaders = 0
    elif need and each.leaders and each.slices_l < threshold:
        each.pods_l = each.slices_l = each.leaders = 0


cdef Row _below(Row uppers, Row lowers, Domains domains):
    """Return the *lowers* inside any of the *uppers*."""
    cdef Row row = Row()
    cdef int index, at
    for index in range(uppers.size):
        for at in range(lowers.size):
            if domains.parent[lowers.at[at].domain] == uppers.at[index].domain:
                row.push(lowers.at[at])
    return row


cdef bint _spread(Row row, Row into, int wanted, int need, int threshold, int size, Order order) except *:
    """Give every domain the threshold, the rest in order, the leader's domain first; return whether all is given."""
    cdef int64_t extra = wanted - <int64_t> row.size * threshold, more
    cdef int index
    cdef Candidate each
    if extra < 0:
        return False
    order.with_leader = True
    sort(row, order)
    into.size = 0
    for index in range(row.size):
        each = row.at[index]
        more = 0
        if need:
            more = min(each.slices_l - threshold, extra)
        elif extra > 0:
            more = min(each.slices - threshold, extra)
        each.leaders, need = need, 0
        each.slices = each.slices_l = <int32_t> (threshold + more)
        each.pods = each.slices * size
        each.pods_l = each.pods - each.leaders
        extra -= more
        into.push(each)
    return extra <= 0 and not need


cdef Row _select(Row row, int wanted, int need, int size, Order order):
    """Return the fewest domains that hold all, with the least capacity in sum, the first in order of *row* on ties."""
    cdef Fit fit = _fit(row, wanted, need, order)
    cdef int64_t total = <int64_t> wanted * size, steps = 0, room = 0, width, left, pods
    cdef int count = fit.used, index, layer, led, number, before, best = -1
    cdef int32_t at
    cdef int *sizes
    cdef int64_t *top
    cdef int64_t *base
    cdef int64_t *start
    cdef int32_t *found = NULL
    cdef int32_t *reached = NULL
    cdef State *states = NULL
    cdef int known = 1
    cdef Candidate *each
    cdef Row out = None
    if not fit.fits:
        return None
    # In layer i lie the states with i domains chosen. Left are at least total - top[i] pods, where top[i] is what the
    # largest i hold, and more than top[count - i] cannot be placed any more: a band, narrow where domains are alike.
    top = <int64_t *> PyMem_Calloc(3 * (count + 2), sizeof(int64_t))
    sizes = <int *> PyMem_Calloc(2 * (count + 1), sizeof(int))  # states of each layer, leader placed and left
    if not (top and sizes):
        PyMem_Free(top)
        PyMem_Free(sizes)
        raise MemoryError
    base, start = top + count + 2, top + 2 * (count + 2)
    try:
        _sum_largest(row, top, count)
        for layer in range(count + 1):
            base[layer] = total - top[layer]
            width = min(total, top[count - layer]) - base[layer] + 1
            start[layer] = room
            room += 2 * max(width, 0)
        start[count + 1] = room
        if room > MOST_STATES:
            return None
        found = <int32_t *> PyMem_Calloc(room, sizeof(int32_t))        # band -> 1 + its state
        states = <State *> PyMem_Calloc(room + 1, sizeof(State))
        reached = <int32_t *> PyMem_Calloc(room + 1, sizeof(int32_t))  # by layer and leader left: its states
        if not (found and states and reached):
            raise MemoryError
        states[0] = State(total, -1, -1)
        _put(found, reached, start, base, sizes, 0, need, total, 0)
        for index in range(row.size):
            each = row.at + index
            for layer in range(count, 0, -1):
                for led in range(2):
                    before = sizes[2 * (layer - 1) + led]
                    steps += before
                    for number in range(before):
                        at = reached[_slot(start, layer - 1, led) + number]
                        left = states[at].left
                        if not led and left <= 0:
                            continue
                        if led and each.leaders and _free(found, start, base, layer, 0, left - each.pods_l):
                            states[known] = State(left - each.pods_l, index, at)
                            _put(found, reached, start, base, sizes, layer, 0, left - each.pods_l, known)
                            known += 1
                        if each.slices and _free(found, start, base, layer, led, left - each.pods):
                            states[known] = State(left - each.pods, index, at)
                            _put(found, reached, start, base, sizes, layer, led, left - each.pods, known)
                            known += 1
            if steps > MOST_STEPS:
                return None
        for number in range(sizes[2 * count]):
            at = reached[_slot(start, count, 0) + number]
            if states[at].left <= 0 and (best < 0 or states[at].left > states[best].left):
                best = at
        if best < 0:
            return None
        out = Row()
        while states[best].before >= 0:
            out.push(row.at[states[best].chosen])
            best = states[best].before
        return out
    finally:
        PyMem_Free(top)
        PyMem_Free(sizes)
        PyMem_Free(found)
        PyMem_Free(states)
        PyMem_Free(reached)


cdef inline int64_t _slot(int64_t *start, int layer, int led) noexcept nogil:
    """Return where the states of a layer begin: half of its band is for each of leader placed, leader left."""
    return start[layer] + (start[layer + 1] - start[layer]) // 2 * led


cdef inline bint _free(int32_t *found, int64_t *start, int64_t *base, int layer, int led, int64_t left) noexcept nogil:
    """Return whether a state lies in its layer's band and was not reached before."""
    cdef int64_t slot = _slot(start, layer, led), at = left - base[layer]
    return 0 <= at < (start[layer + 1] - start[layer]) // 2 and not found[slot + at]


cdef inline void _put(int32_t *found, int32_t *reached, int64_t *start, int64_t *base, int *sizes, int layer, int led,
                      int64_t left, int state) noexcept nogil:
    cdef int64_t slot = _slot(start, layer, led)
    found[slot + left - base[layer]] = state + 1
    reached[slot + sizes[2 * layer + led]] = state
    sizes[2 * layer + led] += 1


cdef _sum_largest(Row row, int64_t *top, int count):
    """Set top[i] to what the i largest candidates hold."""
    cdef int index
    held = sorted([row.at[index].pods for index in range(row.size)], reverse=True)
    for index in range(count):
        top[index + 1] = top[index] + (<int64_t> held[index] if index < len(held) else 0)


cdef _sort_by_path(Row row):
    """Sort by path, which is by id within one level."""
    cdef int index
    cdef list all = [(row.at[index].domain, index) for index in range(row.size)]
    _arrange(row, [index for _, index in sorted(all)])


cdef _sort_by_entropy(Row uppers, Row lowers, Domains domains):
    """Sort by leader, slices with it, then how evenly the children's pods are spread, then by path."""
    cdef int index, child, below = 0
    cdef Candidate *each
    cdef double entropy, part
    cdef int64_t total
    keys = []
    for index in range(uppers.size):
        each = uppers.at + index
        children = domains.high[each.domain] - domains.low[each.domain]
        total = 0
        for child in range(below, below + <int> children):
            total += lowers.at[child].pods
        entropy = 0
        for child in range(below, below + <int> children):
            if lowers.at[child].pods:
                part = <double> lowers.at[child].pods / <double> total
                entropy += -part * log2(part)
        below += <int> children
        keys.append((-each.leaders, -each.slices_l, -entropy, each.domain, index))
    _arrange(uppers, [key[4] for key in sorted(keys)])


cdef _arrange(Row row, list order):
    cdef Row copy = _copy(row)
    for at, index in enumerate(order):
        row.at[<int> at] = copy.at[<int> index]


cdef Row _copy(Row row):
    cdef Row copy = Row()
    copy.reserve(row.size)
    memcpy(copy.at, row.at, row.size * sizeof(Candidate))
    copy.size = row.size
    return copy
