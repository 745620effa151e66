"""How well a node's zones hold a pod, from 0 to 100: what is left of each zone, or how many zones it takes."""

from libc.stdint cimport int64_t, uint8_t

from nri_policy.native._amount cimport amount_percent, amount_t
from nri_policy.native._numa_cover cimport fewest_zones
from nri_policy.native._numa_node cimport NumaNode
from nri_policy.native._numa_request cimport Request, Work

# The strategies, by index.
STRATEGIES = ("LeastAllocated", "MostAllocated", "BalancedAllocation", "LeastNUMANodes")

cdef enum:
    LEAST, MOST, BALANCED, NUMA_NODES


cdef int score(NumaNode node, Request request, int strategy, Work work) noexcept:
    cdef int step, total = 0
    if not request.guaranteed:
        return 100
    if not node.known or node.stale:
        return 0
    if strategy != NUMA_NODES and not node.single:
        return 0
    if not work.gathered:
        work.gather(node, node.available)
    if strategy == NUMA_NODES:
        return fewest_zones(node, request, work)
    if node.by_pod:
        return _least(node, request, 0, strategy, work)
    for step in range(1, request.steps):
        total += _least(node, request, step, strategy, work)
    return total // (request.steps - 1) if request.steps > 1 else 0


cdef int _least(NumaNode node, Request request, int step, int strategy, Work work) noexcept:
    """Return the least non-zero score of a zone; 0 if all scores are 0."""
    cdef int zone, found, least = 0
    for zone in range(node.count):
        if strategy == BALANCED:
            found = _balance(request, step, node.whole + zone * node.width, work)
        else:
            found = _mean(
                request, step, strategy, work.cells + zone * request.width, node.whole + zone * node.width, work
            )
        if found and (not least or found < least):
            least = found
    return least


cdef int _mean(Request request, int step, int strategy, const amount_t *cells, const int64_t *whole,
               Work work) noexcept:
    """Return the weighted mean of the shares that are left (LeastAllocated) or taken (MostAllocated)."""
    cdef int column
    cdef int64_t part, free
    cdef double total = 0, weights = 0    # whole numbers, exact
    cdef int at = step * request.width
    for column in range(request.width):
        if not request.asked[at + column]:
            continue
        weights += request.weights[column]
        if cells[column] > 0 and request.amounts[at + column] <= cells[column]:
            part, free = request.whole[at + column], whole[work.column[column]]
            total += <double> amount_percent(free - part if strategy == LEAST else part, free) * request.weights[column]
    return <int> (total / weights) if weights else 0


cdef int _balance(Request request, int step, const int64_t *whole, Work work) noexcept:
    """Return how equal the shares are that are taken: 100 less their sample variance."""
    cdef int column, count = 0
    cdef int64_t free
    cdef const uint8_t *asked = request.asked + step * request.width
    cdef const int64_t *amounts = request.whole + step * request.width
    cdef double mean = 0, squares = 0, rest = 0, share
    for column in range(request.width):
        if not asked[column]:
            continue
        free = whole[work.column[column]] if work.column[column] >= 0 else 0
        share = <double> amounts[column] / <double> free if free else 1
        if share > 1:
            return 0
        work.shares[count] = share
        mean += share
        count += 1
    if count < 2:
        return 100 if count else 0
    mean /= count
    for column in range(count):
        share = work.shares[column] - mean
        squares += share * share
        rest += share
    share = (1 - (squares - rest * rest / count) / (count - 1)) * 100
    return <int> share if share > 0 else 0
