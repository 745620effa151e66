"""NUMA fit: which nodes' zones can hold a pod, and how well; spec cluster.md §8.

Owns the rules over flat arrays: a node is a matrix of zones (rows, by id) and resources (columns, by index), a request
a matrix of containers and resources. Amounts are exact, in billionths. What the documents say of policies, QoS classes
and names is read by the callers.
"""

cimport cython
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport int64_t, uint8_t, int32_t, uint64_t
from libc.string cimport memcpy

cdef extern from "amount.h" nogil:
    ctypedef long long amount_t
    amount_t AMOUNT_UNLISTED
    amount_t amount_of(int64_t high, uint64_t low)
    int64_t amount_whole(amount_t amount)
    int amount_percent(int64_t part, int64_t whole)

# Verdicts; with UNRESOLVABLE added where zones that are empty would not hold the pod either.
FITS, STALE, INIT, SIDECAR, CONTAINER, POD = range(6)
UNRESOLVABLE = 0x80

# The strategies, by index.
STRATEGIES = ("LeastAllocated", "MostAllocated", "BalancedAllocation", "LeastNUMANodes")

MAX_ZONES = 1024
NO_ZONE = -1        # nothing that is asked ties it to a zone

cdef enum:
    cFITS, cSTALE, cINIT, cSIDECAR, cCONTAINER, cPOD
    cUNRESOLVABLE = 0x80
    LEAST = 0, MOST, BALANCED, NUMA_NODES
    NONE_FITS = -2
    MISSING_COST = 255
    BUDGET = 200_000    # sets of zones looked at for one node; a search that ends there takes the best until then

cdef enum:  # of a resource, in a request
    SHARED = 1          # counts for Guaranteed pods only: cpu, memory, hugepages-*
    HOST = 2            # may be the node's alone, without zones
    ALWAYS = 4          # counts as allocatable on every node


cdef inline amount_t _amount(object value) except? -1:
    return amount_of(<int64_t> (value >> 64), <uint64_t> (value & 0xFFFFFFFFFFFFFFFF))


@cython.final
cdef class Distances:
    """The costs between the zones of a node, by position; nodes that are alike share one."""

    cdef readonly int count
    cdef int32_t *costs         # count * count
    cdef float *nearest         # by size of a set: the least mean distance of all sets; -1 until asked

    def __cinit__(self, costs):
        """*costs* are rows of distances, None where one is missing; all are taken to 0 .. 2^31 - 1."""
        cdef int row, column, size
        self.count = len(costs)
        self.costs = <int32_t *> PyMem_Calloc(max(self.count * self.count, 1), sizeof(int32_t))
        self.nearest = <float *> PyMem_Calloc(self.count + 1, sizeof(float))
        if not (self.costs and self.nearest):
            raise MemoryError
        for row in range(self.count):
            for column in range(self.count):
                cost = costs[row][column]
                self.costs[row * self.count + column] = (
                    MISSING_COST if cost is None else min(max(cost, 0), 0x7FFFFFFF)
                )
        for size in range(self.count + 1):
            self.nearest[size] = -1

    def __dealloc__(self):
        PyMem_Free(self.costs)
        PyMem_Free(self.nearest)


@cython.final
cdef class NumaNode:
    """The zones of one node as arrays; immutable."""

    cdef readonly tuple zones           # ids, ascending
    cdef readonly tuple resources       # indices that some zone lists
    cdef readonly bint stale, known, single, by_pod
    cdef readonly int max_numa
    cdef readonly Distances distances
    cdef int count, width, host_width
    cdef int32_t *names                 # width: resource indices of the columns
    cdef int32_t *host_names            # host_width: resource indices of what the node has to allocate
    cdef amount_t *available            # count * width; AMOUNT_UNLISTED where a zone does not list it
    cdef amount_t *allocatable
    cdef int64_t *whole                 # count * width: available in whole units, 0 where not listed

    def __cinit__(self, *, tuple zones, tuple resources, available, allocatable, host, Distances distances,
                  bint known, bint stale, bint single, bint by_pod, int max_numa, bint copied=False):
        """*available* and *allocatable* are rows of amounts by zone, None where it does not list a resource.

        *host* has the indices of what the node itself has to allocate. *copied* leaves amounts to `less`.
        """
        cdef int row, column
        cdef list hosted = list(host)
        if not (len(zones) == len(available) == len(allocatable) == distances.count <= MAX_ZONES):
            raise ValueError("a row of amounts and of distances for each of at most 1024 zones")
        self.zones, self.resources, self.distances = zones, resources, distances
        self.known, self.stale, self.single, self.by_pod, self.max_numa = known, stale, single, by_pod, max_numa
        self.count, self.width, self.host_width = len(zones), len(resources), len(hosted)
        cells = max(self.count * self.width, 1)
        self.names = <int32_t *> PyMem_Calloc(max(self.width, 1), sizeof(int32_t))
        self.host_names = <int32_t *> PyMem_Calloc(max(self.host_width, 1), sizeof(int32_t))
        self.available = <amount_t *> PyMem_Calloc(cells, sizeof(amount_t))
        self.allocatable = <amount_t *> PyMem_Calloc(cells, sizeof(amount_t))
        self.whole = <int64_t *> PyMem_Calloc(cells, sizeof(int64_t))
        if not (self.names and self.host_names and self.available and self.allocatable and self.whole):
            raise MemoryError
        for column in range(self.width):
            self.names[column] = resources[column]
        for column in range(self.host_width):
            self.host_names[column] = hosted[column]
        for row in range(0 if copied else self.count):
            self._fill(row, available[row], self.available, True)
            self._fill(row, allocatable[row], self.allocatable, False)

    def __dealloc__(self):
        PyMem_Free(self.names)
        PyMem_Free(self.host_names)
        PyMem_Free(self.available)
        PyMem_Free(self.allocatable)
        PyMem_Free(self.whole)

    cdef int _fill(self, int row, amounts, amount_t *cells, bint whole) except -1:
        cdef int column, at
        for column in range(self.width):
            amount = amounts[column]
            at = row * self.width + column
            cells[at] = AMOUNT_UNLISTED if amount is None else _amount(amount)
            if whole and amount is not None:
                self.whole[at] = amount_whole(cells[at])
        return 0

    def less(self, takes):
        """Return the node as it is without what was promised: for each, a zone and {resource: amount}.

        Without a zone (None) it is taken from every zone that has so much: it may be any of them.
        """
        cdef NumaNode node = NumaNode.__new__(
            NumaNode, zones=self.zones, resources=self.resources, available=[()] * self.count,
            allocatable=[()] * self.count, host=self._hosted(), distances=self.distances, known=self.known,
            stale=self.stale, single=self.single, by_pod=self.by_pod, max_numa=self.max_numa, copied=True,
        )
        cdef int row, at
        cdef size_t cells = self.count * self.width
        memcpy(node.available, self.available, cells * sizeof(amount_t))
        memcpy(node.allocatable, self.allocatable, cells * sizeof(amount_t))
        memcpy(node.whole, self.whole, cells * sizeof(int64_t))
        for zone, amounts in takes:
            columns = [(at, amounts[self.names[at]]) for at in range(self.width) if self.names[at] in amounts]
            for row in range(self.count):
                if zone == self.zones[row] or (zone is None and node._has(row, columns)):
                    node._subtract(row, columns)
        return node

    cdef list _hosted(self):
        cdef int at
        return [self.host_names[at] for at in range(self.host_width)]

    cdef bint _has(self, int row, list columns) except -1:
        cdef int at
        for column, amount in columns:
            at = row * self.width + <int> column
            if self.available[at] < _amount(amount):
                return False
        return True

    cdef int _subtract(self, int row, list columns) except -1:
        cdef int at
        for column, amount in columns:
            at = row * self.width + <int> column
            if self.available[at] != AMOUNT_UNLISTED:
                self.available[at] -= _amount(amount)
                self.whole[at] = amount_whole(self.available[at])
        return 0


@cython.final
cdef class Request:
    """What a pod asks, as arrays; immutable.

    Row 0 is the pod in all (scope pod), a row for each container follows, init containers first.
    """

    cdef readonly bint guaranteed, best_effort
    cdef int steps, width
    cdef int32_t *names             # width: resource index, -1 for one that no node has
    cdef uint8_t *kinds             # width: SHARED, HOST, ALWAYS
    cdef int64_t *weights           # width
    cdef uint8_t *verdict           # steps: what it is called if it does not fit
    cdef uint8_t *stays             # steps: whether it holds what it takes while the next ones start
    cdef uint8_t *asked             # steps * width
    cdef amount_t *amounts          # steps * width
    cdef int64_t *whole             # steps * width

    def __cinit__(self, *, bint guaranteed, bint best_effort, resources, steps):
        """*resources* are (index, kind, weight), *steps* (verdict, stays, {place in resources: amount}).

        *best_effort* says that it is BestEffort and asks for native resources only. Weights are at least 1.
        """
        cdef int step, column, at
        self.guaranteed, self.best_effort = guaranteed, best_effort
        self.steps, self.width = len(steps), len(resources)
        if not self.steps or steps[0][0] != cPOD:
            raise ValueError("the first step is the pod in all")
        cells = max(self.steps * self.width, 1)
        self.names = <int32_t *> PyMem_Calloc(max(self.width, 1), sizeof(int32_t))
        self.kinds = <uint8_t *> PyMem_Calloc(max(self.width, 1), 1)
        self.weights = <int64_t *> PyMem_Calloc(max(self.width, 1), sizeof(int64_t))
        self.verdict = <uint8_t *> PyMem_Calloc(self.steps, 1)
        self.stays = <uint8_t *> PyMem_Calloc(self.steps, 1)
        self.asked = <uint8_t *> PyMem_Calloc(cells, 1)
        self.amounts = <amount_t *> PyMem_Calloc(cells, sizeof(amount_t))
        self.whole = <int64_t *> PyMem_Calloc(cells, sizeof(int64_t))
        if not (self.names and self.kinds and self.weights and self.verdict and self.stays and self.asked
                and self.amounts and self.whole):
            raise MemoryError
        for column in range(self.width):
            self.names[column], self.kinds[column], self.weights[column] = resources[column]
        for step in range(self.steps):
            self.verdict[step], self.stays[step], amounts = steps[step]
            for column, amount in amounts.items():
                if not (0 <= column < self.width and amount >= 0):
                    raise ValueError("an amount is of a resource of the request and not negative")
                at = step * self.width + column
                self.asked[at] = True
                self.amounts[at] = _amount(amount)
                self.whole[at] = amount_whole(self.amounts[at])

    def __dealloc__(self):
        PyMem_Free(self.names)
        PyMem_Free(self.kinds)
        PyMem_Free(self.weights)
        PyMem_Free(self.verdict)
        PyMem_Free(self.stays)
        PyMem_Free(self.asked)
        PyMem_Free(self.amounts)
        PyMem_Free(self.whole)


@cython.final
cdef class _Work:
    """Memory for one request against nodes of at most *zones* zones."""

    cdef amount_t *cells        # zones * width: what is free, by zone and resource of the request
    cdef int64_t *whole         # the same in whole units
    cdef int32_t *column        # width: column of the node, -1 if none of its zones lists it
    cdef uint8_t *hosted        # width: whether the node has it to allocate
    cdef int *candidates        # zones that list all that is asked
    cdef int *chosen
    cdef int *best
    cdef amount_t *sums         # (zones + 1) * width: of what is chosen so far
    cdef amount_t *most         # (zones + 1) * width: the largest amount of the candidates from here on
    cdef int *placed            # steps: the zone of each
    cdef double *shares         # width: of one zone, what is asked of what is free
    cdef bint gathered          # whether `cells` is what the node's zones have available
    cdef long budget

    def __cinit__(self, int zones, Request request):
        cdef size_t cells = (zones + 1) * max(request.width, 1)
        self.cells = <amount_t *> PyMem_Calloc(cells, sizeof(amount_t))
        self.whole = <int64_t *> PyMem_Calloc(cells, sizeof(int64_t))
        self.column = <int32_t *> PyMem_Calloc(max(request.width, 1), sizeof(int32_t))
        self.hosted = <uint8_t *> PyMem_Calloc(max(request.width, 1), 1)
        self.candidates = <int *> PyMem_Calloc(3 * (zones + 1), sizeof(int))
        self.sums = <amount_t *> PyMem_Calloc(2 * cells, sizeof(amount_t))
        self.placed = <int *> PyMem_Calloc(request.steps, sizeof(int))
        self.shares = <double *> PyMem_Calloc(max(request.width, 1), sizeof(double))
        if not (self.cells and self.whole and self.column and self.hosted and self.candidates and self.sums
                and self.placed and self.shares):
            raise MemoryError
        self.chosen = self.candidates + zones + 1
        self.best = self.chosen + zones + 1
        self.most = self.sums + cells

    def __dealloc__(self):
        PyMem_Free(self.cells)
        PyMem_Free(self.whole)
        PyMem_Free(self.column)
        PyMem_Free(self.hosted)
        PyMem_Free(self.candidates)
        PyMem_Free(self.sums)
        PyMem_Free(self.placed)
        PyMem_Free(self.shares)


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
    cdef _Work work = _Work(zones, request)
    for at in range(count):
        if generations[at] <= since or nodes[at] is None:
            continue
        node = <NumaNode> nodes[at]
        _resolve(node, request, work)
        verdict = _filter(node, request, work)
        scores[at] = _score(node, request, strategy, work)
        if verdict > cSTALE and _aligned(node, request, node.allocatable, work) != cFITS:
            verdict |= cUNRESOLVABLE
        verdicts[at] = verdict


def place(NumaNode node not None, Request request not None):
    """Return the zone of each step of the filter: the pod's in all or each container's; None where none is chosen.

    An id, NO_ZONE for one that needs none. None instead of all if the pod does not fit.
    """
    cdef _Work work = _Work(node.count, request)
    cdef int step, first = 0 if node.by_pod else 1, last = 1 if node.by_pod else request.steps
    _resolve(node, request, work)
    if _filter(node, request, work) != cFITS or node.stale or not (node.known and node.single) or request.best_effort:
        return None
    return tuple([NO_ZONE if work.placed[step] < 0 else node.zones[work.placed[step]] for step in range(first, last)])


cdef void _resolve(NumaNode node, Request request, _Work work) noexcept:
    """Find the node's columns for the resources of the request."""
    cdef int column, at
    for column in range(request.width):
        work.column[column] = -1
        for at in range(node.width):
            if node.names[at] == request.names[column]:
                work.column[column] = at
                break
        work.hosted[column] = (request.kinds[column] & ALWAYS) != 0
        for at in range(node.host_width):
            if node.host_names[at] == request.names[column]:
                work.hosted[column] = True
                break


cdef void _gather(NumaNode node, Request request, const amount_t *source, _Work work) noexcept:
    """Copy what the zones have of what is asked."""
    cdef int zone, column, at
    for zone in range(node.count):
        for column in range(request.width):
            at = work.column[column]
            work.cells[zone * request.width + column] = (
                source[zone * node.width + at] if at >= 0 else AMOUNT_UNLISTED
            )
    work.gathered = source == node.available


cdef int _filter(NumaNode node, Request request, _Work work) noexcept:
    work.gathered = False
    if request.best_effort:
        return cFITS
    if node.stale:
        return cSTALE
    if not node.known or not node.single:
        return cFITS
    return _aligned(node, request, node.available, work)


cdef int _aligned(NumaNode node, Request request, const amount_t *source, _Work work) noexcept:
    """Return whether each step finds a zone, with the zones as in *source*; fills `placed`."""
    cdef int step
    _gather(node, request, source, work)
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


cdef int _zone_for(NumaNode node, Request request, int step, _Work work) noexcept:
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


cdef void _take(Request request, int step, int zone, _Work work) noexcept:
    """Subtract what a step holds from a zone."""
    cdef int column
    cdef amount_t *cells = work.cells + zone * request.width
    work.gathered = False
    for column in range(request.width):
        if cells[column] != AMOUNT_UNLISTED and (request.guaranteed or not request.kinds[column] & SHARED):
            cells[column] -= request.amounts[step * request.width + column]


cdef int _score(NumaNode node, Request request, int strategy, _Work work) noexcept:
    cdef int step, total = 0, zone, column, at
    if not request.guaranteed:
        return 100
    if not node.known or node.stale:
        return 0
    if not work.gathered:
        _gather(node, request, node.available, work)
    if strategy == NUMA_NODES:
        return _fewest_zones(node, request, work)
    if not node.single:
        return 0
    for zone in range(node.count):
        for column in range(request.width):
            at = work.column[column]
            work.whole[zone * request.width + column] = node.whole[zone * node.width + at] if at >= 0 else 0
    if node.by_pod:
        return _least_score(node, request, 0, strategy, work)
    for step in range(1, request.steps):
        total += _least_score(node, request, step, strategy, work)
    return total // (request.steps - 1) if request.steps > 1 else 0


cdef int _least_score(NumaNode node, Request request, int step, int strategy, _Work work) noexcept:
    """Return the least score of the zones that is not 0, 0 if all are."""
    cdef int zone, score, least = 0
    for zone in range(node.count):
        if strategy == BALANCED:
            score = _balance(request, step, work.whole + zone * request.width, work.shares)
        else:
            score = _mean(
                request, step, strategy, work.cells + zone * request.width, work.whole + zone * request.width
            )
        if score and (not least or score < least):
            least = score
    return least


cdef int _mean(Request request, int step, int strategy, const amount_t *cells, const int64_t *whole) noexcept:
    """Return the weighted mean of the shares that are left (LeastAllocated) or taken (MostAllocated)."""
    cdef int column
    cdef int64_t part
    cdef double score = 0, total = 0    # whole numbers, exact
    cdef int at = step * request.width
    for column in range(request.width):
        if not request.asked[at + column]:
            continue
        total += request.weights[column]
        if cells[column] > 0 and request.amounts[at + column] <= cells[column]:
            part = request.whole[at + column]
            if strategy == LEAST:
                part = whole[column] - part
            score += <double> amount_percent(part, whole[column]) * request.weights[column]
    return <int> (score / total) if total else 0


cdef int _balance(Request request, int step, const int64_t *whole, double *shares) noexcept:
    """Return how equal the shares are that are taken: 100 less their sample variance."""
    cdef int column, count = 0
    cdef const uint8_t *asked = request.asked + step * request.width
    cdef const int64_t *amounts = request.whole + step * request.width
    cdef double mean = 0, squares = 0, rest = 0, share
    for column in range(request.width):
        if not asked[column]:
            continue
        share = <double> amounts[column] / <double> whole[column] if whole[column] else 1
        if share > 1:
            return 0
        shares[count] = share
        mean += share
        count += 1
    if count < 2:
        return 100 if count else 0
    mean /= count
    for column in range(count):
        share = shares[column] - mean
        squares += share * share
        rest += share
    share = (1 - (squares - rest * rest / count) / (count - 1)) * 100
    return <int> share if share > 0 else 0


cdef int _fewest_zones(NumaNode node, Request request, _Work work) noexcept:
    """Return the score of LeastNUMANodes: by the fewest zones that together hold each step, and their distance."""
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
        most = max(most, size)
    if not most:
        return 100
    return max(100 - most * unit + (unit // 2 if nearest else 0), 0)


cdef int _cover(NumaNode node, Request request, int step, _Work work, bint *nearest) noexcept:
    """Take a step from the nearest of the smallest sets of zones that hold it; return the set's size, 0 if none does.

    *nearest* becomes false unless no set of that size is nearer.
    """
    cdef int zone, column, count = 0, size, at, width = request.width
    cdef float found, least
    cdef amount_t part, left
    cdef const amount_t *asked = request.amounts + step * width
    cdef const uint8_t *wanted = request.asked + step * width
    for zone in range(node.count):
        for column in range(width):
            if wanted[column] and work.cells[zone * width + column] == AMOUNT_UNLISTED:
                break
        else:
            work.candidates[count] = zone
            count += 1
    for column in range(width):
        work.most[count * width + column] = AMOUNT_UNLISTED
    for at in range(count - 1, -1, -1):
        for column in range(width):
            work.most[at * width + column] = max(
                work.most[(at + 1) * width + column], work.cells[work.candidates[at] * width + column]
            )
    for size in range(1, count + 1):
        found = -1
        for column in range(width):
            work.sums[column] = 0
        _search(node, request, asked, wanted, work, count, size, 0, 0, 0, &found)
        if found >= 0:
            break
        if work.budget <= 0:
            return 0
    else:
        return 0
    least = _nearest(node, work, size)
    if found != least:
        nearest[0] = False
    for column in range(width):
        if not wanted[column]:
            continue
        left = asked[column]
        for at in range(size):
            part = work.cells[work.best[at] * width + column]
            part = part if part < left else left
            if part > 0:
                work.cells[work.best[at] * width + column] -= part
                left -= part
    return size


cdef void _search(NumaNode node, Request request, const amount_t *asked, const uint8_t *wanted, _Work work, int count,
                  int size, int start, int depth, int64_t total, float *found) noexcept:
    """Look at all sets of *size* candidates that begin with the *depth* chosen; keep the nearest, the first of equals."""
    cdef int at, column, other, zone, width = request.width, left = size - depth
    cdef int64_t longer
    cdef amount_t *sums = work.sums + depth * width
    cdef float mean
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


cdef float _nearest(NumaNode node, _Work work, int size) noexcept:
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
