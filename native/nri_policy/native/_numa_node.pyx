"""Nodes as NUMA fit sees them: a matrix of zones (rows, by id) and resources (columns, by index).

Amounts are exact, in billionths. What the documents say of policies and names is read by the callers.
"""

cimport cython
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy

from nri_policy.native._amount cimport AMOUNT_UNLISTED, amount_t, amount_whole, to_amount

MAX_ZONES = 1024

cdef enum:
    MISSING_COST = 255


@cython.final
cdef class Distances:
    """The distances between the zones of a node, by position; equal nodes share one object."""

    def __cinit__(self, costs):
        """*costs* are rows of distances, None for a missing one; values are cut to 0 .. 2^31 - 1."""
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
cdef class Columns:
    """Which resources some zone of a node lists, and what the node itself has to allocate, by index.

    Nodes that are alike share one.
    """

    def __cinit__(self, tuple resources not None, tuple host not None):
        cdef int column
        self.resources = resources
        self.width, self.host_width = len(resources), len(host)
        self.names = <int32_t *> PyMem_Calloc(max(self.width + self.host_width, 1), sizeof(int32_t))
        if not self.names:
            raise MemoryError
        self.host_names = self.names + self.width
        for column in range(self.width):
            self.names[column] = resources[column]
        for column in range(self.host_width):
            self.host_names[column] = host[column]

    def __dealloc__(self):
        PyMem_Free(self.names)


@cython.final
cdef class NumaNode:
    """The zones of one node as arrays; immutable."""

    def __cinit__(self, *, tuple zones not None, Columns columns not None, Distances distances not None, available,
                  allocatable, bint known, bint stale, bint single, bint by_pod, int max_numa):
        """*available* and *allocatable* are rows of amounts by zone, None where it does not list a resource.

        Without them (both None) the amounts are left to `less`.
        """
        cdef int row
        self.zones, self.columns, self.distances = zones, columns, distances
        self.known, self.stale, self.single, self.by_pod, self.max_numa = known, stale, single, by_pod, max_numa
        self.count, self.width = len(zones), columns.width
        if not self.count == distances.count <= MAX_ZONES:
            raise ValueError("a row of distances for each of at most 1024 zones")
        cdef size_t cells = self.count * self.width
        self.available = <amount_t *> PyMem_Calloc(max(self._bytes(), 1), 1)
        if not self.available:
            raise MemoryError
        self.allocatable = self.available + cells
        self.whole = <int64_t *> (self.allocatable + cells)
        if available is None:
            return
        if not len(available) == len(allocatable) == self.count:
            raise ValueError("a row of amounts for each zone")
        for row in range(self.count):
            self._fill(row, available[row], self.available, True)
            self._fill(row, allocatable[row], self.allocatable, False)

    def __dealloc__(self):
        PyMem_Free(self.available)

    cdef size_t _bytes(self) noexcept:
        return <size_t> (self.count * self.width) * (2 * sizeof(amount_t) + sizeof(int64_t))

    cdef int _fill(self, int row, amounts, amount_t *cells, bint whole) except -1:
        cdef int column, at
        for column in range(self.width):
            amount = amounts[column]
            at = row * self.width + column
            cells[at] = AMOUNT_UNLISTED if amount is None else to_amount(amount)
            if whole and amount is not None:
                self.whole[at] = amount_whole(cells[at])
        return 0

    def less(self, takes, above=()):
        """Return the node without promised amounts; each of *takes* is a zone and {resource: amount}.

        For the zone None, the amount is subtracted from the zone with the most: the node may choose any zone, and
        this choice leaves the least for a container. An amount that fits no zone is not subtracted. *above* lists wider
        zones: the ids of zones, and the {resource: amount} that they have left together, which can be less than
        their sum. An amount for several zones (a frozenset of ids) is subtracted only from such a common amount.
        """
        cdef NumaNode node = NumaNode.__new__(
            NumaNode, zones=self.zones, columns=self.columns, distances=self.distances, available=None,
            allocatable=None, known=self.known, stale=self.stale, single=self.single, by_pod=self.by_pod,
            max_numa=self.max_numa,
        )
        cdef int row, column
        cdef list wanted
        cdef list together = [(ids, dict(amounts)) for ids, amounts in above]
        memcpy(node.available, self.available, self._bytes())
        for zone, amounts in takes:
            wanted = [amounts.get(self.columns.names[column], 0) for column in range(self.width)]
            if isinstance(zone, frozenset):
                within = zone
            else:
                if zone is None:
                    row = node._most(wanted)
                else:
                    row = self.zones.index(zone) if zone in self.zones else -1
                if row < 0:
                    continue
                node._subtract(row, wanted)
                within = frozenset((self.zones[row],))
            for ids, left in together:
                if within <= ids:
                    node._limit(ids, wanted, left)
        return node

    def most(self, amounts):
        """Return the zone with the most free of these resources, if the {resource: amount} fits there.

        None if no zone has room, or no zone lists a requested resource.
        """
        cdef int column, row
        cdef list wanted = [amounts.get(self.columns.names[column], 0) for column in range(self.width)]
        row = self._most(wanted) if any(wanted) else -1
        return None if row < 0 else self.zones[row]

    cdef int _limit(self, ids, list taken, dict left) except -1:
        """Subtract *taken* from what the zones *ids* have *left* together; no zone then has more than that."""
        cdef int row, column, at
        for column in range(self.width):
            name = self.columns.names[column]
            if not taken[column] or name not in left:
                continue
            left[name] -= taken[column]
            for row in range(self.count):
                at = row * self.width + column
                if self.zones[row] in ids and self.available[at] != AMOUNT_UNLISTED:
                    self.available[at] = min(self.available[at], to_amount(left[name]))
                    self.whole[at] = amount_whole(self.available[at])
        return 0

    cdef int _most(self, list amounts) except -2:
        """Return the row of the roomiest zone in which *amounts* fit, compared resource by resource; -1: none."""
        cdef int row, best = -1
        for row in range(self.count):
            if self._has(row, amounts) and (best < 0 or self._has_more(row, best, amounts)):
                best = row
        return best

    cdef bint _has(self, int row, list amounts) except -1:
        cdef int column
        for column in range(self.width):
            if amounts[column] and self.available[row * self.width + column] < to_amount(amounts[column]):
                return False
        return True

    cdef bint _has_more(self, int row, int other, list amounts) except -1:
        cdef int column
        cdef amount_t one, two
        for column in range(self.width):
            if amounts[column]:
                one, two = self.available[row * self.width + column], self.available[other * self.width + column]
                if one != two:
                    return one > two
        return False

    cdef int _subtract(self, int row, list amounts) except -1:
        cdef int column, at
        for column in range(self.width):
            at = row * self.width + column
            if amounts[column] and self.available[at] != AMOUNT_UNLISTED:
                self.available[at] -= to_amount(amounts[column])
                self.whole[at] = amount_whole(self.available[at])
        return 0
