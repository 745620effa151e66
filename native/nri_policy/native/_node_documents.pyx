"""A fast reader of ordinary Node objects; unusual or faulty ones go to the full reader, which has the messages."""

from cpython.dict cimport PyDict_Next
from cpython.object cimport PyObject


def read_usual(value):
    """Return a node's name, labels, allocatable pairs, taints, whether it is unschedulable, and ready (None: not said).

    None for anything but a dict, for a node with taints, and for values of unusual types.
    """
    cdef dict meta, status, labels, offered
    cdef object unschedulable = False, ready = None
    if type(value) is not dict:
        return None
    meta, status = _dict_at(value, "metadata"), _dict_at(value, "status")
    if meta is None or status is None:
        return None
    labels, offered = _dict_at(meta, "labels"), _dict_at(status, "allocatable")
    if labels is None or offered is None or not _is_of_texts(labels) or not _is_of_texts(offered):
        return None
    name, conditions, spec = meta.get("name"), status.get("conditions"), (<dict> value).get("spec")
    if type(name) is not str or not name or type(conditions) is not list:
        return None
    if spec is not None:
        if type(spec) is not dict or (<dict> spec).get("taints") not in (None, []):
            return None
        unschedulable = (<dict> spec).get("unschedulable", False)
        if type(unschedulable) is not bool:
            return None
    for each in <list> conditions:
        if type(each) is not dict:
            return None
        kind, state = (<dict> each).get("type"), (<dict> each).get("status")
        if type(kind) is not str or type(state) is not str:
            return None
        if kind == "Ready":
            ready = ready is True or state == "True"
    return name, labels.copy(), tuple(offered.items()), (), unschedulable, ready


cdef dict _dict_at(dict holder, str key):
    """Return the dict at *key*, None if there is something else or nothing."""
    value = holder.get(key)
    return <dict> value if type(value) is dict else None


cdef bint _is_of_texts(dict given):
    """Whether all keys and values are texts."""
    cdef Py_ssize_t at = 0
    cdef PyObject *name
    cdef PyObject *value
    while PyDict_Next(given, &at, &name, &value):
        if type(<object> name) is not str or type(<object> value) is not str:
            return False
    return True
