"""The tree of domains in flat arrays: its shape, the free amounts of every leaf, and which leaves pods may use.

Domains are numbered level by level, within a level by path, so that the children of a domain, and the leaves below it,
are a range. Owns free amounts (spec cluster.md §4). A change only notes its leaf; the
`Counts` of these rows catch up later, leaf by leaf.
"""

from array import array

cimport cython
from cpython.dict cimport PyDict_Next
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memset

cdef enum:
    COLUMNS = 16

MOST_AMOUNT = 2**53  # of one pod or node; larger amounts are cut, so that sums fit 64 bits

cdef int64_t CUT = MOST_AMOUNT
cdef int64_t UNLISTED = <int64_t> 1 << 61


cdef int32_t[::1] _splits(list paths):
    """Return for each leaf the first level at which its path differs from the one before."""
    cdef tuple path, before = None
    cdef int32_t[::1] splits = array("i", bytes(4 * len(paths)))
    cdef int level, levels, leaf
    for leaf in range(len(paths)):
        path = paths[leaf]
        level, levels = 0, len(path) if before is not None else 0
        while level < levels and (path[level] is before[level] or path[level] == before[level]):
            level += 1
        splits[leaf] = level
        before = path
    return splits


@cython.final
cdef class Domains:
    """The shape of the tree."""

    def __cinit__(self, list paths, int levels=0, const int32_t[::1] splits=None):
        """Take the paths of the leaves, tuples of equal length, sorted and each once.

        Or *splits*: for each leaf the first of the *levels* at which it is in another domain than the leaf before.
        """
        cdef int leaf, level, n, at
        if splits is None:
            levels, splits = len(paths[0]) if paths else 1, _splits(paths)
        n = splits.shape[0]
        self.leaves, self.levels = n, levels
        self.offset = <int *> PyMem_Calloc(self.levels + 1, sizeof(int))
        cdef int *now = <int *> PyMem_Calloc(self.levels, sizeof(int))
        try:
            if not (self.offset and now):
                raise MemoryError
            for leaf in range(n):
                for at in range(splits[leaf], self.levels):
                    now[at] += 1
            for level in range(self.levels):
                self.offset[level + 1] = self.offset[level] + now[level]
            self.count = self.offset[self.levels]
            self.low = <int *> PyMem_Calloc(self.count + 1, sizeof(int))
            self.high = <int *> PyMem_Calloc(self.count + 1, sizeof(int))
            self.parent = <int *> PyMem_Calloc(self.count + 1, sizeof(int))
            if not (self.low and self.high and self.parent):
                raise MemoryError
            for level in range(self.levels):
                now[level] = self.offset[level] - 1
            for leaf in range(n):
                for level in range(splits[leaf], self.levels):
                    now[level] += 1
                    at = now[level]
                    self.parent[at] = now[level - 1] if level else -1
                    self.low[at] = self.high[at] = at if level == self.levels - 1 else now[level + 1] + 1
                    if level:
                        self.high[now[level - 1]] = at + 1
        finally:
            PyMem_Free(now)

    def __dealloc__(self):
        PyMem_Free(self.offset)
        PyMem_Free(self.low)
        PyMem_Free(self.high)
        PyMem_Free(self.parent)

    def of_level(self, int level):
        """Return the range of the domains of *level*."""
        if not 0 <= level < self.levels:
            raise IndexError(f"no level {level}")
        return range(self.offset[level], self.offset[level + 1])

    def children(self, int domain):
        """Return the range of the children of *domain*, empty for a leaf."""
        self._check(domain)
        return range(self.low[domain], self.high[domain])

    def leaves_below(self, int domain):
        """Return the range of the leaves, counted from 0, below *domain*."""
        cdef int low = domain, high = domain
        self._check(domain)
        while self.low[low] != self.high[low]:
            low, high = self.low[low], self.high[high] - 1
        return range(low - self.offset[self.levels - 1], high + 1 - self.offset[self.levels - 1])

    def above(self, int leaf, int level):
        """Return the domain of *level* that *leaf*, counted from 0, is in."""
        cdef int at, domain = self.offset[self.levels - 1] + leaf
        if not 0 <= leaf < self.leaves or not 0 <= level < self.levels:
            raise IndexError(f"no leaf {leaf}")
        for at in range(self.levels - 1 - level):
            domain = self.parent[domain]
        return domain

    cdef _check(self, int domain):
        if not 0 <= domain < self.count:
            raise IndexError(f"no domain {domain}")


@cython.final
cdef class Vector:
    """The requests of one pod, by resource index of its `Rows`."""

    def __cinit__(self, Rows rows not None, dict amounts not None):
        """Take *amounts* by name; zeros are left out, they limit nothing."""
        cdef int at = 0
        cdef list names = sorted([name for name, amount in amounts.items() if amount > 0])
        self.size = len(names)
        self.resource = <int *> PyMem_Calloc(self.size + 1, sizeof(int))
        self.amount = <int64_t *> PyMem_Calloc(self.size + 1, sizeof(int64_t))
        if not (self.resource and self.amount):
            raise MemoryError
        for name in names:
            self.resource[at] = rows.resource(name)
            self.amount[at] = min(amounts[name], MOST_AMOUNT)
            at += 1

    def __dealloc__(self):
        PyMem_Free(self.resource)
        PyMem_Free(self.amount)


@cython.final
cdef class Rows:
    """The free amount of every resource at every leaf."""

    def __cinit__(self, Domains domains not None, bint unlisted=False):
        """With *unlisted*, a resource that was never added does not limit."""
        self.domains = domains
        self.unlisted = unlisted
        self.names = []
        self.index = {}
        self.nodes = <int *> PyMem_Calloc(domains.leaves + 1, sizeof(int))
        self.changed = <int *> PyMem_Calloc(domains.leaves + 1, sizeof(int))
        if not (self.nodes and self.changed):
            raise MemoryError

    def __dealloc__(self):
        cdef int at
        for at in range(len(self.names) if self.names is not None else 0):
            PyMem_Free(self.free[at])
        PyMem_Free(self.free)
        PyMem_Free(self.nodes)
        PyMem_Free(self.changed)

    def resource(self, str name not None):
        """Return the index of a resource, a new one where it has none."""
        cdef int64_t **grown
        cdef int64_t *row
        found = self.index.get(name)
        if found is not None:
            return found
        number = len(self.names)
        row = <int64_t *> PyMem_Calloc(self.domains.leaves + 1, sizeof(int64_t))
        grown = <int64_t **> PyMem_Realloc(self.free, (number + 1) * sizeof(int64_t *))
        if not (row and grown):
            PyMem_Free(row)
            raise MemoryError
        self.free = grown
        self.free[number] = row
        if self.unlisted:
            for leaf in range(self.domains.leaves):
                row[<int> leaf] = UNLISTED
        self.names.append(name)
        self.index[name] = number
        return number

    def add(self, int leaf, dict amounts not None, int64_t times, int nodes=0):
        """Add *amounts* to a leaf *times* times, below 0 to take them off; *nodes* more take part there."""
        cdef int64_t amount
        self._check(leaf)
        self.nodes[leaf] += nodes
        for name, value in amounts.items():
            amount = CUT if value > MOST_AMOUNT else value
            number = self.index.get(name)
            if number is None:
                number = self.resource(name)
            self.free[<int> number][leaf] += product(amount, times)
        self.touch(leaf)

    def take(self, dict leaves not None, places not None, int at, dict amounts not None, int64_t times,
             const int32_t[::1] moved=None):
        """Subtract *amounts* from *places*, *times* times for each pod there.

        A place's label value at index *at* names its leaf in *leaves*; places without a leaf are skipped. With *moved*,
        leaf i is now at `moved[i]`; -1 means that it is gone.
        """
        cdef Vector pod = Vector(self, amounts)
        cdef int64_t count
        cdef int leaf, column
        for place in places:
            found = leaves.get(place.values[at])
            if found is None:
                continue
            leaf, count = found, times * <int64_t> place.count
            if moved is not None:
                leaf = moved[leaf]
                if leaf < 0:
                    continue
            self._check(leaf)
            for column in range(pod.size):
                self.free[pod.resource[column]][leaf] -= product(pod.amount[column], count)
            self.touch(leaf)

    def fill(self, list amounts not None):
        """Add one node with its *amounts* to every leaf, by leaf; None for a leaf without a node."""
        cdef int leaf, number, column, n = self.domains.leaves
        cdef int64_t amount
        cdef Py_ssize_t at
        cdef PyObject *name
        cdef PyObject *value
        cdef PyObject *names[COLUMNS]  # of the row before: rows mostly have the same, in the same order
        cdef int numbers[COLUMNS]
        if len(amounts) != n:
            raise ValueError(f"{len(amounts)} rows for {n} leaves")
        memset(names, 0, sizeof(names))
        for leaf in range(n):
            if amounts[leaf] is None:
                continue
            each = amounts[leaf]
            self.nodes[leaf] += 1
            at = column = 0
            while PyDict_Next(each, &at, &name, &value):
                if column < COLUMNS and names[column] == name:
                    number = numbers[column]
                else:
                    number = self.resource(<object> name)
                    if column < COLUMNS:
                        names[column], numbers[column] = name, number
                amount = <object> value
                self.free[number][leaf] += min(amount, CUT)
                column += 1
        self.changes = 0
        self.epoch += 1

    def copy(self):
        """Return an independent copy, on the same domains."""
        cdef Rows made = Rows(self.domains, self.unlisted)
        cdef int number, n = self.domains.leaves
        for number, name in enumerate(self.names):
            made.resource(name)
            memcpy(made.free[number], self.free[number], n * sizeof(int64_t))
        memcpy(made.nodes, self.nodes, n * sizeof(int))
        return made

    def arranged(self, Domains domains not None, const int32_t[::1] order not None):
        """Return rows for other *domains*: leaf i there is leaf `order[i]` here."""
        cdef Rows made = Rows(domains, self.unlisted)
        cdef int number, leaf, n = domains.leaves
        cdef int64_t *free
        cdef int64_t *own
        if order.shape[0] != n:
            raise ValueError(f"{order.shape[0]} leaves in order for {n}")
        for leaf in range(n):
            self._check(order[leaf])
            made.nodes[leaf] = self.nodes[order[leaf]]
        for name in self.names:
            number = made.resource(name)
            free, own = made.free[number], self.free[number]
            for leaf in range(n):
                free[leaf] = own[order[leaf]]
        return made

    def fork(self):
        """Return an independent copy that remembers its origin, so that `Counts.start_from` can copy counts."""
        cdef Rows made = self.copy()
        memcpy(made.changed, self.changed, self.changes * sizeof(int))
        made.epoch, made.changes, made.origin = self.epoch, self.changes, self
        made.origin_epoch, made.origin_changes = self.epoch, self.changes
        return made

    def set(self, int leaf, dict amounts not None):
        """Set the free *amounts* of a leaf; other resources stay."""
        self._check(leaf)
        for name, value in amounts.items():
            number = self.resource(name)
            self.free[<int> number][leaf] = CUT if value > MOST_AMOUNT else <int64_t> value
        self.nodes[leaf] = 1
        self.touch(leaf)

    def room(self, int leaf):
        """Return the free amounts of a leaf, by resource."""
        self._check(leaf)
        return {name: self.free[number][leaf] for number, name in enumerate(self.names)}

    def thousandths(self, leaves not None, Vector pod not None):
        """Return how many thousandths of pods fit at *leaves*, if pods were divisible; 0 for a pod without requests."""
        cdef int leaf, at
        cdef int64_t free, amount, share, least
        total = 0
        for leaf in leaves:
            self._check(leaf)
            least = -1
            for at in range(pod.size):
                free, amount = max(0, self.free[pod.resource[at]][leaf]), pod.amount[at]
                # In two parts, so that no product leaves 64 bits: amounts are below 2^53.
                share = product(1000, free // amount) + free % amount * 1000 // amount
                if least < 0 or share < least:
                    least = share
            total += max(0, least)
        return total

    def nodes_at(self, int leaf):
        """Return the number of nodes of a leaf."""
        self._check(leaf)
        return self.nodes[leaf]

    def note(self, int leaf):
        """Record that a mask has changed at *leaf*."""
        self._check(leaf)
        self.touch(leaf)

    def dump(self):
        """Return all amounts as bytes, to compare."""
        cdef int size = self.domains.leaves * sizeof(int64_t)
        return {name: (<char *> self.free[number])[:size] for number, name in enumerate(self.names)}

    cdef touch(self, int leaf):
        if self.changes == self.domains.leaves:
            self.changes = 0
            self.epoch += 1
        self.changed[self.changes] = leaf
        self.changes += 1

    cdef _check(self, int leaf):
        if not 0 <= leaf < self.domains.leaves:
            raise IndexError(f"no leaf {leaf}")


@cython.final
cdef class Mask:
    """Which leaves the properties of nodes admit for a pod, and the pod's preference for each."""

    def __cinit__(self, int leaves, bint scored):
        self.leaves = leaves
        self.code = <uint8_t *> PyMem_Calloc(leaves + 1, 1)
        if scored:
            self.score = <int64_t *> PyMem_Calloc(leaves + 1, sizeof(int64_t))
        if not self.code or (scored and not self.score):
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self.code)
        PyMem_Free(self.score)

    def set(self, int leaf, int code, int64_t score=0):
        """Exclude a leaf for the reason *code* (1 to 255), or admit it (0) with its *score*."""
        if not 0 <= leaf < self.leaves:
            raise IndexError(f"no leaf {leaf}")
        self.code[leaf] = code
        if self.score:
            self.score[leaf] = 0 if code else score

    def get(self, int leaf):
        """Return the code of a leaf."""
        if not 0 <= leaf < self.leaves:
            raise IndexError(f"no leaf {leaf}")
        return self.code[leaf]


cdef int64_t product(int64_t amount, int64_t count) noexcept nogil:
    """Return amount · count, cut where it would leave 2^60."""
    cdef int64_t most = <int64_t> 1 << 60
    if count and amount > most // (count if count > 0 else -count):
        return most if count > 0 else -most
    return amount * count
