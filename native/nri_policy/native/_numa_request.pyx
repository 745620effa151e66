"""What a pod asks of NUMA zones, as arrays; and the memory to hold it against nodes.

A request is a matrix of containers (rows) and resources (columns). Amounts are exact, in billionths. QoS classes and
names are read by the callers.
"""

cimport cython
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport int32_t, int64_t, uint8_t

from nri_policy.native._amount cimport AMOUNT_UNLISTED, amount_t, amount_whole, to_amount
from nri_policy.native._numa_node cimport NumaNode


@cython.final
cdef class Request:
    """What a pod asks, as arrays; immutable.

    Row 0 is the pod in all (scope pod), a row for each container follows, init containers first.
    """

    def __cinit__(self, *, bint guaranteed, bint best_effort, resources, steps):
        """*resources* are (index, kind, weight), *steps* (verdict, stays, {place in resources: amount}).

        *best_effort* says that it is BestEffort and asks for native resources only. Weights are at least 1.
        """
        cdef int step, column, at
        self.guaranteed, self.best_effort = guaranteed, best_effort
        self.steps, self.width = len(steps), len(resources)
        if not self.steps:
            raise ValueError("the first step is the pod in all")
        cdef size_t cells = self.steps * self.width
        self.amounts = <amount_t *> PyMem_Calloc(1, (
            cells * (sizeof(amount_t) + sizeof(int64_t) + 1) + self.width * (sizeof(int64_t) + sizeof(int32_t) + 1)
            + self.steps * 2
        ))
        if not self.amounts:
            raise MemoryError
        self.whole = <int64_t *> (self.amounts + cells)
        self.weights = self.whole + cells
        self.names = <int32_t *> (self.weights + self.width)
        self.kinds = <uint8_t *> (self.names + self.width)
        self.verdict = self.kinds + self.width
        self.stays = self.verdict + self.steps
        self.asked = self.stays + self.steps
        for column in range(self.width):
            self.names[column], self.kinds[column], self.weights[column] = resources[column]
        for step in range(self.steps):
            self.verdict[step], self.stays[step], amounts = steps[step]
            for column, amount in amounts.items():
                if not (0 <= column < self.width and amount >= 0):
                    raise ValueError("an amount is of a resource of the request and not negative")
                at = step * self.width + column
                self.asked[at] = True
                self.amounts[at] = to_amount(amount)
                self.whole[at] = amount_whole(self.amounts[at])

    def __dealloc__(self):
        PyMem_Free(self.amounts)


@cython.final
cdef class Work:
    """Memory for one request against nodes of at most *zones* zones."""

    def __cinit__(self, int zones, Request request not None):
        cdef size_t width = request.width, cells = (zones + 1) * width
        self.request = request
        self.cells = <amount_t *> PyMem_Calloc(1, (
            3 * cells * sizeof(amount_t) + width * (sizeof(double) + sizeof(int32_t) + 1)
            + (3 * (zones + 1) + request.steps) * sizeof(int)
        ))
        if not self.cells:
            raise MemoryError
        self.sums = self.cells + cells
        self.most = self.sums + cells
        self.shares = <double *> (self.most + cells)
        self.column = <int32_t *> (self.shares + width)
        self.candidates = <int *> (self.column + width)
        self.chosen = self.candidates + zones + 1
        self.best = self.chosen + zones + 1
        self.placed = self.best + zones + 1
        self.hosted = <uint8_t *> (self.placed + request.steps)

    def __dealloc__(self):
        PyMem_Free(self.cells)

    cdef void resolve(self, NumaNode node) noexcept:
        """Find the node's columns for the resources of the request."""
        cdef int column, at
        cdef Request request = self.request
        if self.columns is node.columns:
            return
        self.columns = node.columns
        for column in range(request.width):
            self.column[column] = -1
            for at in range(node.width):
                if self.columns.names[at] == request.names[column]:
                    self.column[column] = at
                    break
            self.hosted[column] = (request.kinds[column] & ALWAYS) != 0
            for at in range(self.columns.host_width):
                if self.columns.host_names[at] == request.names[column]:
                    self.hosted[column] = True
                    break

    cdef void gather(self, NumaNode node, const amount_t *source) noexcept:
        """Copy the zones' amounts of the requested resources from *source*."""
        cdef int zone, column, at, width = self.request.width
        for column in range(width):
            at = self.column[column]
            for zone in range(node.count):
                self.cells[zone * width + column] = source[zone * node.width + at] if at >= 0 else AMOUNT_UNLISTED
        self.gathered = source == node.available
