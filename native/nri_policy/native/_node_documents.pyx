"""Node objects as most are, read at once: what is unusual or wrong in one is left to the reader that can say so."""

from cpython.dict cimport PyDict_Next
from cpython.object cimport PyObject


def read_usual(value):
    """Return name, labels, what pods may use, taints, and whether a node is unschedulable, and ready (None: not said).

    None for what is no dict, for a node with taints, and for values that are not of the usual types.
    """
    cdef object ready = None
    if type(value) is not dict:
        return None
    meta, spec, status = value.get("metadata"), value.get("spec"), value.get("status")
    if type(meta) is not dict or type(status) is not dict or not (spec is None or type(spec) is dict):
        return None
    name, labels, offered = meta.get("name"), meta.get("labels"), status.get("allocatable")
    if type(name) is not str or not name or type(labels) is not dict or type(offered) is not dict:
        return None
    unschedulable = False if spec is None else spec.get("unschedulable", False)
    if type(unschedulable) is not bool or (spec is not None and spec.get("taints") not in (None, [])):
        return None
    if not _is_of_texts(labels) or not _is_of_texts(offered):
        return None
    conditions = status.get("conditions")
    if type(conditions) is not list:
        return None
    for each in <list> conditions:
        if type(each) is not dict:
            return None
        kind, state = each.get("type"), each.get("status")
        if type(kind) is not str or type(state) is not str:
            return None
        if kind == "Ready":
            ready = ready is True or state == "True"
    return name, (<dict> labels).copy(), offered, (), unschedulable, ready


cdef bint _is_of_texts(dict given):
    """Whether all keys and values are texts."""
    cdef Py_ssize_t at = 0
    cdef PyObject *name
    cdef PyObject *value
    while PyDict_Next(given, &at, &name, &value):
        if type(<object> name) is not str or type(<object> value) is not str:
            return False
    return True
