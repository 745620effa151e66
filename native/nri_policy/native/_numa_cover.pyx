"""LeastNUMANodes: the fewest zones of a node that together hold a pod, and how near these are to each other."""

from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy

from nri_policy.native._amount cimport AMOUNT_UNLISTED, amount_t
from nri_policy.native._numa_node cimport Distances, NumaNode
from nri_policy.native._numa_request cimport Request, Work

cdef enum:
    BUDGET = 200_000    # sets of zones looked at for one node; a search that ends there takes the best until then


cdef int fewest_zones(NumaNode node, Request request, Work work) noexcept:
    """Return the score: by the fewest zones that together hold each step, and their distance."""
    cdef int step, column, size, most = 0, unit = 100 // node.max_numa
    cdef int first = 0 if node.by_pod else 1, last = 1 if node.by_pod else request.steps
    cdef bint nearest = True, listed, unlisted
    work.budget = BUDGET
    for step in range(first, last):
        listed = unlisted = False
        for column in range(request.width):
            if request.asked[step * request.width + column]:
                if work.column[column] >= 0:
                    listed = True
                else:
                    unlisted = True
        if not listed:
            continue
        if unlisted:
            return 0
        size = _cover(node, request, step, work, &nearest)
        if not size:
            return 0
        if step + 1 < last:
            _take(request, step, size, work)
        most = max(most, size)
    if not most:
        return 100
    return max(100 - most * unit + (unit // 2 if nearest else 0), 0)


cdef int _cover(NumaNode node, Request request, int step, Work work, bint *nearest) noexcept:
    """Leave in `best` the nearest of the smallest sets of zones that hold a step; return its size, 0 if none does.

    *nearest* becomes false unless no set of that size is nearer.
    """
    cdef int zone, column, count = 0, size = 1, width = request.width
    cdef int64_t cost
    cdef float found = -1
    cdef const amount_t *asked = request.amounts + step * width
    cdef const uint8_t *wanted = request.asked + step * width
    cdef const amount_t *cells
    cdef bint alone
    for zone in range(node.count):
        cells = work.cells + zone * width
        alone = True
        for column in range(width):
            if wanted[column] and cells[column] < asked[column]:
                alone = False
                if cells[column] == AMOUNT_UNLISTED:
                    break
        else:
            work.candidates[count] = zone
            count += 1
            cost = node.distances.costs[zone * node.count + zone]
            if alone and (found < 0 or <float> cost < found):
                found = <float> cost
                work.best[0] = zone
    if found < 0:
        size, found = _several(node, request, asked, wanted, work, count)
    if size and found != _nearest(node, work, size):
        nearest[0] = False
    return size


cdef (int, float) _several(NumaNode node, Request request, const amount_t *asked, const uint8_t *wanted, Work work,
                           int count) noexcept:
    """Return size and mean distance of the best set of two or more of the *count* candidates; 0 if none holds all."""
    cdef int at, column, size, width = request.width
    cdef amount_t amount, total
    cdef float found = -1
    cdef amount_t *most = work.most
    for column in range(width):
        most[count * width + column] = AMOUNT_UNLISTED
        total = 0
        for at in range(count - 1, -1, -1):
            amount = work.cells[work.candidates[at] * width + column]
            most[at * width + column] = max(most[(at + 1) * width + column], amount)
            total += max(amount, 0)
        if wanted[column] and total < asked[column]:
            return 0, found
    for size in range(2, count + 1):
        for column in range(width):
            work.sums[column] = 0
        _search(node, request, asked, wanted, work, count, size, 0, 0, 0, &found)
        if found >= 0:
            return size, found
        if work.budget <= 0:
            break
    return 0, found


cdef void _take(Request request, int step, int size, Work work) noexcept:
    """Take a step from the zones chosen for it, in their order."""
    cdef int at, column, width = request.width
    cdef amount_t part, left
    cdef amount_t *cells
    work.gathered = False
    for column in range(width):
        left = request.amounts[step * width + column]
        for at in range(size):
            cells = work.cells + work.best[at] * width + column
            part = min(cells[0], left)
            if part > 0:
                cells[0] -= part
                left -= part


cdef void _search(NumaNode node, Request request, const amount_t *asked, const uint8_t *wanted, Work work, int count,
                  int size, int start, int depth, int64_t total, float *found) noexcept:
    """Look at all sets of *size* candidates that begin with the *depth* chosen; keep the nearest, the first of equals."""
    cdef int at, column, other, zone, width = request.width, left = size - depth
    cdef int64_t longer
    cdef amount_t *sums = work.sums + depth * width
    for column in range(width):
        if wanted[column]:
            if left == 0:
                if sums[column] < asked[column]:
                    return
            elif sums[column] + left * work.most[start * width + column] < asked[column]:
                return
    if found[0] >= 0 and _mean_distance(total, size) >= found[0]:
        return
    if left == 0:
        found[0] = _mean_distance(total, size)
        memcpy(work.best, work.chosen, size * sizeof(int))
        return
    for at in range(start, count - left + 1):
        work.budget -= 1
        if work.budget <= 0:
            return
        zone = work.candidates[at]
        work.chosen[depth] = zone
        longer = total + node.distances.costs[zone * node.count + zone]
        for other in range(depth):
            longer += node.distances.costs[zone * node.count + work.chosen[other]]
            longer += node.distances.costs[work.chosen[other] * node.count + zone]
        for column in range(width):
            if wanted[column]:
                sums[width + column] = sums[column] + work.cells[zone * width + column]
        _search(node, request, asked, wanted, work, count, size, at + 1, depth + 1, longer, found)


cdef inline float _mean_distance(int64_t total, int size) noexcept:
    return <float> total / <float> (size * size)


cdef float _nearest(NumaNode node, Work work, int size) noexcept:
    """Return the least mean distance of all sets of *size* zones."""
    cdef float *nearest = node.distances.nearest + size
    cdef long budget = BUDGET
    if nearest[0] < 0:
        _nearest_from(node.distances, work.chosen, size, 0, 0, 0, nearest, &budget)
    return nearest[0]


cdef void _nearest_from(Distances distances, int *chosen, int size, int start, int depth, int64_t total, float *nearest,
                        long *budget) noexcept:
    cdef int zone, other, count = distances.count
    cdef int64_t longer
    cdef float mean = _mean_distance(total, size)
    if nearest[0] >= 0 and mean >= nearest[0]:
        return
    if depth == size:
        nearest[0] = mean
        return
    for zone in range(start, count - (size - depth) + 1):
        budget[0] -= 1
        if budget[0] <= 0:
            return
        chosen[depth] = zone
        longer = total + distances.costs[zone * count + zone]
        for other in range(depth):
            longer += distances.costs[zone * count + chosen[other]] + distances.costs[chosen[other] * count + zone]
        _nearest_from(distances, chosen, size, zone + 1, depth + 1, longer, nearest, budget)
