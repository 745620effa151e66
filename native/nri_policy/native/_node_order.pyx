"""Nodes sorted into domains by their labels: the order of the leaves of a tree, and indexes of them.

Reads node objects of Python; the tree itself is in `_domains`.
"""

from array import array

from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.object cimport PyObject
from libc.stdint cimport int32_t

from nri_policy.native._domains import Domains


def arrange(list nodes not None, tuple levels not None, dict wanted not None, dict left_out not None,
            int32_t[::1] in_order not None):
    """Return the sorted paths of *nodes* (their labels of *levels*), the first node of each by name, and further nodes.

    Further nodes are in a dict by the index of their path. *left_out* gets the name of each excluded node,
    and why: it is not ready, cordoned, or lacks a *wanted* label or a level. One that lacks none has a path all the
    same, as its pods are in these domains. Fills *in_order* with the indexes of paths, in the order of their first
    nodes in *nodes*.
    """
    cdef dict top = {}, at, labels
    cdef list paths = [], firsts = []
    cdef dict others = {}
    cdef int last = len(levels) - 1, index
    for node in nodes:
        if not node.ready:
            left_out[node.name] = "not ready"
        elif node.unschedulable:
            left_out[node.name] = "unschedulable"
        labels = node.labels
        if wanted and any([labels.get(key) != value for key, value in wanted.items()]):
            left_out.setdefault(node.name, "nodeLabels")
            continue
        at = top
        for index in range(last + 1):
            value = labels.get(levels[index])
            if value is None:
                left_out.setdefault(node.name, f"no label {levels[index]}")
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
    _find_in_order(nodes, firsts, in_order)
    return paths, firsts, others


cdef _flatten(dict at, tuple above, int left, list paths, list firsts, dict others):
    """Append the paths and nodes below a domain, in order."""
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


def _name(node):
    return node.name


cdef struct Slot:
    PyObject *node  # NULL: the slot is free
    int index


cdef _find_in_order(list nodes, list firsts, int32_t[::1] in_order):
    """Fill *in_order* with the indices of *firsts* in the order of *nodes*, by identity: a table with open addresses."""
    cdef size_t size = 2
    cdef int index, found = 0
    cdef Slot *slot
    while size < 2 * <size_t> len(firsts):
        size *= 2
    cdef Slot *slots = <Slot *> PyMem_Calloc(size, sizeof(Slot))
    if not slots:
        raise MemoryError
    for index in range(len(firsts)):
        slot = _slot(slots, size, <PyObject *> firsts[index])
        slot.node, slot.index = <PyObject *> firsts[index], index
    for node in nodes:
        slot = _slot(slots, size, <PyObject *> node)
        if slot.node:
            in_order[found] = slot.index
            found += 1
    PyMem_Free(slots)


cdef inline Slot *_slot(Slot *slots, size_t size, PyObject *node) noexcept:
    """Return the slot of a node in the table, or the empty slot for it."""
    cdef size_t at = (<size_t> node >> 4) & (size - 1)
    while slots[at].node and slots[at].node != node:
        at = (at + 1) & (size - 1)
    return &slots[at]


def arrange_by_labels(list nodes not None, const int32_t[::1] by_name not None, tuple keys not None,
                      int32_t[::1] places not None):
    """Return *nodes* sorted by the values of the labels *keys*, then by name; their indexes; the tree of these values.

    *by_name* lists the indexes of *nodes*, sorted by name; a node may be None. A missing label counts as the empty
    value. Fills *places*: index -> place in the sorted list, -1 without a node.
    """
    cdef dict top = {}, at, labels
    cdef list branches = [], firsts = [], found
    cdef int last = len(keys) - 1, level, number, branch, place, taken = 0, kinds = 0
    cdef int *next_place = <int *> PyMem_Calloc(by_name.shape[0] + 1, sizeof(int))  # branch -> where its next node goes
    cdef int32_t[::1] order, splits
    try:
        if not next_place:
            raise MemoryError
        places[:] = -1
        for number in by_name:
            node = nodes[number]
            if node is None:
                continue
            at, labels, value = top, node.labels, ""
            for level in range(last + 1):
                value = labels.get(keys[level], "")
                if level < last:
                    below = at.get(value)
                    if below is None:
                        below = at[value] = {}
                    at = below
            below = at.get(value)
            if below is None:
                below = at[value] = kinds
                kinds += 1
            branch = below
            places[number] = branch
            next_place[branch] += 1
            taken += 1
        made = array("i", bytes(4 * taken))
        order, splits, place, found = made, array("i", bytes(4 * taken)), 0, [None] * taken
        _line_up(top, 0, last, 0, branches, firsts)
        splits[:] = last + 1
        for below, first in zip(branches, firsts):
            branch = below
            splits[place] = first
            taken = next_place[branch]
            next_place[branch] = place
            place += taken
        for number in by_name:
            branch = places[number]
            if branch >= 0:
                place = next_place[branch]
                next_place[branch] += 1
                places[number], order[place], found[place] = place, number, nodes[number]
    finally:
        PyMem_Free(next_place)
    return found, made, Domains(None, len(keys) + 1, splits)


cdef _line_up(dict at, int level, int last, int split, list branches, list firsts):
    """Append the nodes below a domain, in order, and for each the first level that differs from the node before."""
    for value in sorted(at):
        below = at[value]
        if level < last:
            _line_up(below, level + 1, last, split, branches, firsts)
        else:
            branches.append(below)
            firsts.append(split)
        split = level


def index_nodes(list nodes not None, list paths not None):
    """Return indexes of *nodes* (by name, by the last value of the path, with taints), and their allocatable amounts.

    Also return whether every node's name is the last value of its path. If two paths have the same last value, the
    second dict is shorter than the first.
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
    return by_name, by_host, tainted, amounts, bool(alike)
