"""The tree of domains in flat arrays: what every leaf has left, and how many pods fit where.

Domains are numbered level by level, within a level by path, so that the children of a domain, and the leaves below it,
are a range. Owns free amounts and counts (spec cluster.md §4 and the roll-up of §5); knows neither names nor nodes.
A change is noted and costs nothing more; whoever needs counts brings his own up to date, leaf by leaf.
"""

cimport cython
from cpython.dict cimport PyDict_Next
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memset

cdef enum:
    COLUMNS = 16

MOST_AMOUNT = 2**53  # of one pod or node: more is cut, so that sums stay in 64 bits

cdef int64_t CUT = MOST_AMOUNT
cdef int64_t UNLISTED = <int64_t> 1 << 61


def arrange(nodes, tuple levels not None, dict wanted not None, dict left_out not None):
    """Return the paths that *nodes* have by their labels, sorted, the first node of each by name, and all others.

    Others come as a dict from the index of their path. A node that is not ready, cordoned, or lacks one of the *wanted*
    labels or a level takes no part: its name and why go to *left_out*.
    """
    cdef dict top = {}, at, labels
    cdef list paths = [], firsts = []
    cdef dict others = {}
    cdef int last = len(levels) - 1, index
    for node in nodes:
        if not node.ready:
            left_out[node.name] = "not ready"
            continue
        if node.unschedulable:
            left_out[node.name] = "unschedulable"
            continue
        labels = node.labels
        if wanted and any([labels.get(key) != value for key, value in wanted.items()]):
            left_out[node.name] = "nodeLabels"
            continue
        at = top
        for index in range(last + 1):
            value = labels.get(levels[index])
            if value is None:
                left_out[node.name] = f"no label {levels[index]}"
                break
            below = at.get(value)
            if index == last:
                if below is None:
                    at[value] = node
                elif type(below) is list:
                    below.append(node)
                else:
                    at[value] = [below, node]
            elif below is None:
                below = at[value] = {}
                at = below
            else:
                at = below
    _flatten(top, (), last, paths, firsts, others)
    return paths, firsts, others


cdef _flatten(dict at, tuple above, int left, list paths, list firsts, dict others):
    """Add what is below a domain, in order."""
    for value in sorted(at):
        below = at[value]
        if left:
            _flatten(below, above + (value,), left - 1, paths, firsts, others)
            continue
        if type(below) is list:
            below.sort(key=_name)
            others[len(paths)] = below[1:]
            below = below[0]
        paths.append(above + (value,))
        firsts.append(below)


def index(list nodes not None, list paths not None):
    """Return the places of *nodes* by name and by the last value of their path, those with taints, and the amounts.

    Where two have the same last value, the second dict is shorter than the first.
    """
    cdef dict by_name = {}, by_host
    cdef set tainted = set()
    cdef list amounts = []
    cdef int leaf, last = len(paths[0]) - 1 if paths else 0, n = len(nodes)
    cdef bint alike = True  # mostly, nodes have the names of their hosts
    for leaf in range(n):
        node = nodes[leaf]
        name = node.name
        place = leaf
        by_name[name] = place
        alike = alike and name == <str> (<tuple> paths[leaf])[last]
        if node.taints:
            tainted.add(place)
        amounts.append(node.allocatable)
    by_host = by_name.copy() if alike else {(<tuple> paths[leaf])[last]: leaf for leaf in range(n)}
    return by_name, by_host, tainted, amounts


def _name(node):
    return node.name


@cython.final
cdef class Domains:
    """The shape of the tree."""

    def __cinit__(self, list paths):
        """Take the paths of the leaves, tuples of equal length, sorted and each once."""
        cdef int leaf, level, n = len(paths), at
        cdef tuple path, before = None
        self.leaves = n
        self.levels = len(paths[0]) if paths else 1
        self.offset = <int *> PyMem_Calloc(self.levels + 1, sizeof(int))
        cdef int *split = <int *> PyMem_Calloc(n + 1, sizeof(int))  # leaf -> first level that differs from the leaf before
        cdef int *now = <int *> PyMem_Calloc(self.levels, sizeof(int))
        try:
            if not (self.offset and split and now):
                raise MemoryError
            for leaf in range(n):
                path = paths[leaf]
                level = 0
                if before is not None:
                    while level < self.levels and path[level] == before[level]:
                        level += 1
                split[leaf] = level
                for at in range(level, self.levels):
                    now[at] += 1
                before = path
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
                for level in range(split[leaf], self.levels):
                    now[level] += 1
                    at = now[level]
                    self.parent[at] = now[level - 1] if level else -1
                    self.low[at] = self.high[at] = at if level == self.levels - 1 else now[level + 1] + 1
                    if level:
                        self.high[now[level - 1]] = at + 1
        finally:
            PyMem_Free(split)
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
    """What one pod requests of each resource, as rows index them."""

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
    """What every leaf has left of every resource."""

    def __cinit__(self, Domains domains not None, bint unlisted=False):
        """With *unlisted*, what was never added of a resource does not limit."""
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
            self.free[<int> number][leaf] += _product(amount, times)
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

    def set(self, int leaf, dict amounts not None):
        """Set what a leaf has of the resources that it lists."""
        self._check(leaf)
        for name, value in amounts.items():
            number = self.resource(name)
            self.free[<int> number][leaf] = CUT if value > MOST_AMOUNT else <int64_t> value
        self.nodes[leaf] = 1
        self.touch(leaf)

    def use(self, list places not None, Vector pod not None, int sign):
        """Take what pods request off their leaves: *places* are leaves and pods; *sign* -1 gives it back."""
        cdef int leaf, at
        cdef int64_t count
        for leaf, count in places:
            self._check(leaf)
            for at in range(pod.size):
                self.free[pod.resource[at]][leaf] -= _product(pod.amount[at], sign * count)
            self.touch(leaf)

    def room(self, int leaf):
        """Return what a leaf has left, by name."""
        self._check(leaf)
        return {name: self.free[number][leaf] for number, name in enumerate(self.names)}

    def nodes_at(self, int leaf):
        """Return how many nodes of a leaf take part."""
        self._check(leaf)
        return self.nodes[leaf]

    def note(self, int leaf):
        """Take note that a mask has changed at *leaf*."""
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
    """Which leaves a pod may use as far as nodes' properties go, and how well it likes them."""

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


@cython.final
cdef class Counts:
    """How many pods of one kind, and slices of them, fit into every domain."""

    def __cinit__(self, Rows rows not None, Vector pod not None, Mask mask not None, *, int size=1, int slice_level=-1,
                  dict inner=None, Vector leader=None, Mask leader_mask=None, low=0, high=None, Counts hosts=None,
                  list host_of=None, list most=None):
        """Take a pod and where it may go; slices of *size* at *slice_level* (-1: the last), *inner* layers by level.

        Only leaves from *low* to before *high* are used. A *leader* is one more pod that comes along. Where leaves are
        zones of hosts, *hosts* counts the same pod on those, *host_of* has the leaf there of every leaf. *most* is how many
        pods each leaf takes at most.
        """
        cdef Domains domains = rows.domains
        cdef int n = domains.count + 1
        self.domains, self.rows, self.pod, self.mask = domains, rows, pod, mask
        self.leader, self.leader_mask = leader, leader_mask if leader_mask is not None else mask
        self.size = size
        self.slice_level = domains.levels - 1 if slice_level < 0 else slice_level
        self.low, self.high = low, domains.leaves if high is None else high
        self.epoch = -1
        if size < 1 or self.slice_level >= domains.levels or mask.leaves != domains.leaves:
            raise ValueError("slices need a size and a level, a mask one entry a leaf")
        self.inner = <int *> PyMem_Calloc(domains.levels, sizeof(int))
        self.pods = <int32_t *> PyMem_Calloc(n, sizeof(int32_t))
        plain = size == 1 and self.slice_level == domains.levels - 1
        self.slices = self.pods if plain else <int32_t *> PyMem_Calloc(n, sizeof(int32_t))
        if leader is None:
            self.pods_l, self.slices_l = self.pods, self.slices
        else:
            self.pods_l = <int32_t *> PyMem_Calloc(n, sizeof(int32_t))
            self.slices_l = self.pods_l if plain else <int32_t *> PyMem_Calloc(n, sizeof(int32_t))
            self.leaders = <uint8_t *> PyMem_Calloc(n, 1)
        if mask.score:
            self.score = <int64_t *> PyMem_Calloc(n, sizeof(int64_t))
        if not (self.inner and self.pods and self.slices and self.pods_l and self.slices_l) or (
            (leader is not None and not self.leaders) or (mask.score and not self.score)
        ):
            raise MemoryError
        for level, each in (inner or {}).items():
            self.inner[<int> level] = each
        if most is not None:
            self.most = <int32_t *> PyMem_Calloc(domains.leaves + 1, sizeof(int32_t))
            if not self.most:
                raise MemoryError
            for leaf in range(domains.leaves):
                self.most[<int> leaf] = most[leaf]
        if hosts is not None:
            self.hosts = hosts
            self.host_level = hosts.domains.levels - 1
            self.host_of = <int *> PyMem_Calloc(domains.leaves + 1, sizeof(int))
            if not self.host_of:
                raise MemoryError
            for leaf in range(domains.leaves):
                self.host_of[<int> leaf] = hosts.domains.offset[self.host_level] + <int> host_of[leaf]

    def __dealloc__(self):
        if self.slices_l != self.pods_l and self.slices_l != self.slices:
            PyMem_Free(self.slices_l)
        if self.pods_l != self.pods:
            PyMem_Free(self.pods_l)
        if self.slices != self.pods:
            PyMem_Free(self.slices)
        PyMem_Free(self.pods)
        PyMem_Free(self.inner)
        PyMem_Free(self.leaders)
        PyMem_Free(self.score)
        PyMem_Free(self.host_of)
        PyMem_Free(self.most)

    def of(self, int domain):
        """Return pods, slices, both with the leader, leaders and score of a domain."""
        self.domains._check(domain)
        self.refresh()
        leaders = self.leaders[domain] if self.leaders else 0
        score = self.score[domain] if self.score else 0
        return (self.pods[domain], self.slices[domain], self.pods_l[domain], self.slices_l[domain], leaders, score)

    def of_level(self, int level):
        """Return the pods and the slices that fit into all domains of a level, in sum."""
        cdef int domain
        cdef int64_t pods = 0, slices = 0, most = 0
        self.refresh()
        for domain in self.domains.of_level(level):
            pods += self.pods[domain]
            slices += self.slices[domain]
            most = max(most, self.slices[domain])
        return pods, slices, most

    def exclusions(self):
        """Return how many leaves take part, how many each code excludes, how many are outside, and each resource."""
        cdef int leaf, at, total = 0, outside = 0, base = self.domains.offset[self.domains.levels - 1]
        cdef int codes[256]
        cdef dict resources = {}
        self.refresh()
        memset(codes, 0, sizeof(codes))
        for leaf in range(self.domains.leaves):
            if not self.rows.nodes[leaf]:
                continue
            total += 1
            if self.mask.code[leaf]:
                codes[self.mask.code[leaf]] += 1
            elif not self.low <= leaf < self.high:
                outside += 1
            elif not self.pods[base + leaf]:
                for at in range(self.pod.size):
                    if self.rows.free[self.pod.resource[at]][leaf] < self.pod.amount[at]:
                        name = self.rows.names[self.pod.resource[at]]
                        resources[name] = resources.get(name, 0) + 1
                        break
        return total, {code: codes[code] for code in range(1, 256) if codes[code]}, outside, resources

    def best_of_level(self, int level):
        """Return the first domain of *level*, with nodes, that holds the most slices; -1 if none has nodes."""
        cdef int domain, best = -1
        self.refresh()
        for domain in self.domains.of_level(level):
            if best < 0 or self.slices[domain] > self.slices[best]:
                if any([self.rows.nodes[<int> leaf] for leaf in self.domains.leaves_below(domain)]):
                    best = domain
        return best

    def whole_below(self, int domain, int level, int size):
        """Return how many slices of *size* pods the domains of *level* below *domain* hold, each by itself."""
        cdef int each
        cdef int64_t total = 0
        self.refresh()
        low = high = domain
        while self.level_of(low) < level:
            low, high = self.domains.low[<int> low], self.domains.high[<int> high] - 1
        for each in range(low, high + 1):
            total += self.pods[each] // size
        return total

    cdef int level_of(self, int domain):
        cdef int level = 0
        while domain >= self.domains.offset[level + 1]:
            level += 1
        return level

    cdef refresh(self):
        """Bring the counts up to date: all of them, or what has changed since."""
        cdef int level, domain, leaf, at
        cdef Domains domains = self.domains
        cdef Rows rows = self.rows
        if self.hosts is not None:
            self.hosts.refresh()
        if self.epoch == rows.epoch:
            for at in range(self.seen, rows.changes):
                leaf = rows.changed[at]
                self.count_leaf(leaf)
                domain = domains.parent[domains.offset[domains.levels - 1] + leaf]
                for level in range(domains.levels - 2, -1, -1):
                    self.roll_up(domain, level)
                    domain = domains.parent[domain]
        else:
            with nogil:
                for leaf in range(domains.leaves):
                    self.count_leaf(leaf)
                for level in range(domains.levels - 2, -1, -1):
                    for domain in range(domains.offset[level], domains.offset[level + 1]):
                        self.roll_up(domain, level)
        self.epoch, self.seen = rows.epoch, rows.changes

    cdef void count_leaf(self, int leaf) noexcept nogil:
        cdef int domain = self.domains.offset[self.domains.levels - 1] + leaf, at
        cdef bint used = self.rows.nodes[leaf] > 0 and self.low <= leaf < self.high
        cdef bint last = self.slice_level == self.domains.levels - 1
        cdef bint led = False
        self.pods[domain] = _fit(self, leaf, False) if used and not self.mask.code[leaf] else 0
        if self.host_of:
            self.pods[domain] = min(self.pods[domain], self.hosts.pods[self.host_of[leaf]])
        if self.slices != self.pods:
            self.slices[domain] = self.pods[domain] // self.size if last else 0
        if self.score:
            self.score[domain] = self.mask.score[leaf] if used else 0
        if self.leaders:
            if used and not self.leader_mask.code[leaf]:
                led = True
                for at in range(self.leader.size):
                    if self.rows.free[self.leader.resource[at]][leaf] < self.leader.amount[at]:
                        led = False
                        break
            if self.host_of and not self.hosts.leaders[self.host_of[leaf]]:
                led = False
            self.leaders[domain] = led
            self.pods_l[domain] = _fit(self, leaf, True) if led and self.pods[domain] else self.pods[domain]
            if self.slices_l != self.pods_l:
                self.slices_l[domain] = self.pods_l[domain] // self.size if last else 0

    cdef void roll_up(self, int domain, int level) noexcept nogil:
        cdef int64_t pods = 0, slices = 0, score = 0, loss = INT32_MAX, slice_loss = INT32_MAX, own, own_l, cap
        cdef int child, inner = self.inner[level + 1]
        cdef bint led = False
        for child in range(self.domains.low[domain], self.domains.high[domain]):
            own = self.pods[child]
            if inner:
                own -= own % inner
            pods += own
            slices += self.slices[child]
            if self.score:
                score += self.score[child]
            if self.leaders and self.leaders[child]:
                led = True
                own_l = self.pods_l[child]
                if inner:
                    own_l -= own_l % inner
                loss = min(loss, own - own_l)
                slice_loss = min(slice_loss, <int64_t> self.slices[child] - self.slices_l[child])
        if self.host_of and level == self.host_level:
            cap = self.hosts.pods[self.host_of[self._first_leaf(domain)]]
            pods = min(pods, cap)
            slices = min(slices, cap // self.size)
        self.pods[domain] = <int32_t> min(pods, INT32_MAX)
        if level == self.slice_level:
            slices = self.pods[domain] // self.size
        if self.slices != self.pods:
            self.slices[domain] = <int32_t> min(slices, INT32_MAX)
        if self.score:
            self.score[domain] = score
        if self.leaders:
            self.leaders[domain] = led
            pods = min(pods - loss, INT32_MAX) if led else 0
            self.pods_l[domain] = <int32_t> pods
            slices = min(slices - slice_loss, INT32_MAX) if led else 0
            if self.host_of and level == self.host_level:
                cap = self.hosts.pods_l[self.host_of[self._first_leaf(domain)]]
                self.pods_l[domain] = <int32_t> min(pods, cap)
                slices = min(slices, cap // self.size)
            if level == self.slice_level:
                slices = self.pods_l[domain] // self.size
            if self.slices_l != self.pods_l:
                self.slices_l[domain] = <int32_t> slices


    cdef int _first_leaf(self, int domain) noexcept nogil:
        while self.domains.low[domain] != self.domains.high[domain]:
            domain = self.domains.low[domain]
        return domain - self.domains.offset[self.domains.levels - 1]


cdef int32_t _fit(Counts counts, int leaf, bint beside_leader) noexcept nogil:
    """Return how many pods fit into a leaf, the leader taken out first if wanted."""
    cdef int64_t least = INT32_MAX, free
    cdef int at, each, resource
    if counts.most:
        least = counts.most[leaf]
    for at in range(counts.pod.size):
        resource = counts.pod.resource[at]
        free = counts.rows.free[resource][leaf]
        if beside_leader:
            for each in range(counts.leader.size):
                if counts.leader.resource[each] == resource:
                    free -= counts.leader.amount[each]
        if free < counts.pod.amount[at]:
            return 0
        least = min(least, free // counts.pod.amount[at])
    return <int32_t> least


cdef int64_t _product(int64_t amount, int64_t count) noexcept nogil:
    """Return amount · count, cut where it would leave 2^60."""
    cdef int64_t most = <int64_t> 1 << 60
    if count and amount > most // (count if count > 0 else -count):
        return most if count > 0 else -most
    return amount * count
