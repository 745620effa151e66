"""NUMA fit: which nodes' zones can hold a pod, and how well; spec cluster.md §8.

Owns the filter and the walk over the nodes; `_numa_node` has these as arrays, `_numa_request` what is asked,
`_numa_score` how well it fits.
"""

from libc.stdint cimport uint8_t, uint64_t

from nri_policy.native._amount cimport AMOUNT_UNLISTED, amount_t
from nri_policy.native._numa_node cimport NumaNode
from nri_policy.native._numa_request cimport HOST, SHARED, Request, Work
from nri_policy.native._numa_score cimport score

# Verdicts; UNRESOLVABLE is added if the pod would not fit even into empty zones.
FITS, STALE, INIT, SIDECAR, CONTAINER, POD = range(6)
UNRESOLVABLE = 0x80
NO_ZONE = -1        # no requested resource ties the step to a zone

cdef enum:
    cFITS, cSTALE, cINIT, cSIDECAR, cCONTAINER, cPOD
    cUNRESOLVABLE = 0x80
    NONE_FITS = -2


def evaluate(list nodes not None, Request request not None, int strategy, uint8_t[::1] verdicts not None,
             uint8_t[::1] scores not None, const uint64_t[::1] generations not None, uint64_t since):
    """Filter and score the nodes that changed after generation *since*: a verdict and 0 to 100 for each, in place.

    None among the nodes is a place without one.
    """
    cdef int at, verdict, count = len(nodes), zones = 0
    cdef NumaNode node
    if not (verdicts.shape[0] >= count and scores.shape[0] >= count and generations.shape[0] >= count):
        raise ValueError("a verdict, a score and a generation for each node")
    for at in range(count):
        if generations[at] > since and nodes[at] is not None:
            zones = max(zones, (<NumaNode?> nodes[at]).count)
    cdef Work work = Work(zones, request)
    for at in range(count):
        if generations[at] <= since or nodes[at] is None:
            continue
        node = <NumaNode> nodes[at]
        work.resolve(node)
        verdict = _filter(node, request, work)
        scores[at] = score(node, request, strategy, work)
        if verdict > cSTALE and _aligned(node, request, node.allocatable, work) != cFITS:
            verdict |= cUNRESOLVABLE
        verdicts[at] = verdict


def place(NumaNode node not None, Request request not None):
    """Return the zone id of each step of the filter: one step for the pod, or one per container.

    NO_ZONE stands for a step that needs no zone. None if the pod does not fit, or the node does not choose one zone.
    """
    cdef Work work = Work(node.count, request)
    cdef int step, first = 0 if node.by_pod else 1, last = 1 if node.by_pod else request.steps
    work.resolve(node)
    if _filter(node, request, work) != cFITS or node.stale or not (node.known and node.single) or request.best_effort:
        return None
    return tuple([NO_ZONE if work.placed[step] < 0 else node.zones[work.placed[step]] for step in range(first, last)])


cdef int _filter(NumaNode node, Request request, Work work) noexcept:
    work.gathered = False
    if request.best_effort:
        return cFITS
    if node.stale:
        return cSTALE
    if not node.known or not node.single:
        return cFITS
    return _aligned(node, request, node.available, work)


cdef int _aligned(NumaNode node, Request request, const amount_t *source, Work work) noexcept:
    """Return whether each step finds a zone, with the zones as in *source*; fills `placed`."""
    cdef int step
    work.gather(node, source)
    if node.by_pod:
        work.placed[0] = _zone_for(node, request, 0, work)
        return cFITS if work.placed[0] != NONE_FITS else cPOD
    for step in range(1, request.steps):
        work.placed[step] = _zone_for(node, request, step, work)
        if work.placed[step] == NONE_FITS:
            return request.verdict[step]
        if request.stays[step] and work.placed[step] >= 0 and step + 1 < request.steps:
            _take(request, step, work.placed[step], work)
    return cFITS


cdef int _zone_for(NumaNode node, Request request, int step, Work work) noexcept:
    """Return the position of the lowest zone that holds a step, NO_ZONE if it needs none, else NONE_FITS."""
    cdef int zone, column
    cdef bint tied = False, fits
    cdef amount_t amount, free
    cdef const amount_t *asked = request.amounts + step * request.width
    for column in range(request.width):
        if asked[column] == 0:
            continue
        if not work.hosted[column]:
            return NONE_FITS
        if work.column[column] < 0:
            if not request.kinds[column] & HOST:
                return NONE_FITS
            continue
        tied = True
    if not tied:
        return -1
    for zone in range(node.count):
        fits = True
        for column in range(request.width):
            amount = asked[column]
            if amount == 0 or work.column[column] < 0:
                continue
            free = work.cells[zone * request.width + column]
            if free == AMOUNT_UNLISTED or (
                free < amount and (request.guaranteed or not request.kinds[column] & SHARED)
            ):
                fits = False
                break
        if fits:
            return zone
    return NONE_FITS


cdef void _take(Request request, int step, int zone, Work work) noexcept:
    """Subtract what a step holds from a zone."""
    cdef int column
    cdef amount_t *cells = work.cells + zone * request.width
    work.gathered = False
    for column in range(request.width):
        if cells[column] != AMOUNT_UNLISTED and (request.guaranteed or not request.kinds[column] & SHARED):
            cells[column] -= request.amounts[step * request.width + column]
