"""Clusters from files: what `kubectl get nodes,pods,noderesourcetopologies -o json` prints.

Lists of objects, single objects, and documents of the form that the `offline` entries take; JSON of
any size, YAML as far as `yamltext` goes. Objects of unused kinds are counted. The items
of a List in JSON stay texts until they are read: as dicts, those of a large cluster take most of
the time of a command.
"""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections import Counter
from typing import Any

import msgspec
from msgspec import Raw, Struct, field

from nri_policy.cluster.objects import budget, priority, settings
from nri_policy.cluster.objects.device_claims import PLURALS
from nri_policy.cluster.objects.document import DocumentError, Object
from nri_policy.cluster.requests import group
from nri_policy.cluster.workloads import kueue
from nri_policy.foundation import yamltext
from nri_policy.foundation.mismatch import JSON_ERRORS, json_problem
from nri_policy.foundation.wording import quoted
from nri_policy.native._json_fields import items_of

_PLACES = {  # kind -> where it belongs in a cluster
    "Node": "nodes",
    "Pod": "pods",
    "NodeResourceTopology": "zones",
    group.KIND: "groups",
    "JobSet": "jobsets",
    "Topology": "topologies",  # Kueue's
    budget.KIND: "budgets",
    kueue.KIND: "workloads",
    priority.PRIORITY_CLASS: "classes",
    **PLURALS,
}
_MANY = ("Node", "Pod", "NodeResourceTopology")  # kinds of which a cluster has many objects
_KEYS = {*_PLACES.values(), "failures", "stale"}
_CHUNK = 1 << 16  # bytes that are checked at once: a cache holds them


class ClusterFiles(Struct):
    """What has been read from some files."""

    cluster: Object = field(default_factory=dict)
    settings: Object | None = None  # the last ClusterPlacement
    ignored: Counter[str] = field(default_factory=Counter)  # objects of other kinds, by kind

    def add(self, text: bytes | memoryview, name: str) -> None:
        """Take in the text of the file *name*; raises DocumentError, which names it."""
        items = _items_in(text)
        if items is not None:
            for kind, item in items:
                if kind in _MANY:
                    self.cluster.setdefault(_PLACES[kind], []).append(item)
                else:
                    self._take(item, name)
            return
        documents = read_documents(text, name)
        if not documents:
            raise DocumentError(name, "it is empty")
        for document in documents:
            if "kind" in document:
                self._take(document, name)
            elif document.keys() <= _KEYS:
                self._merge(document, name)
            else:
                raise DocumentError(name, "is neither a Kubernetes object nor a cluster")

    @property
    def contents(self) -> str:
        """How many objects there are of each kind, in words."""
        kinds = {kind: len(self.cluster.get(key, ())) for kind, key in _PLACES.items()}
        found = [f"{number} {kind}" for kind, number in (kinds | self.ignored).items() if number]
        return ", ".join(found) or "nothing"

    def _take(self, document: Object, name: str) -> None:
        kind = document["kind"]
        if not isinstance(kind, str) or not kind:
            problem = f"{quoted(kind)} is no kind" if kind else "it is missing"
            raise DocumentError(f"{name}: kind", problem)
        if kind.endswith("List"):
            items = document.get("items") or []
            if not isinstance(items, list):
                raise DocumentError(f"{name}: items", f"{quoted(items)} is not a list")
            for each in items:
                # the items of a typed list may have no kind of their own
                self._take({"kind": kind.removesuffix("List"), **_object(each, name)}, name)
        elif kind == kueue.KIND and document.get("apiVersion") != "/".join(kueue.API):
            self.ignored[_other_workload(document)] += 1
        elif kind in _PLACES:
            self.cluster.setdefault(_PLACES[kind], []).append(document)
        elif kind == settings.KIND:
            self.settings = document
        else:
            self.ignored[kind] += 1

    def _merge(self, document: Object, name: str) -> None:
        for key, value in document.items():
            known = self.cluster.setdefault(key, type(value)())
            if isinstance(known, list) and isinstance(value, list):
                known += value
            elif isinstance(known, dict) and isinstance(value, dict):
                known |= value
            else:
                raise DocumentError(f"{name}: {key}", f"{quoted(value)} is of the wrong type")


def _items_in(text: bytes | memoryview) -> list[tuple[str, Any]] | None:
    """Return the items of a List in JSON, by kind: texts of those of which there are many.

    None for other texts, and for a List with a mistake.
    """
    found = items_of(text)
    if found is None:
        return None
    items, ascii_only = found
    view = memoryview(text)
    try:
        if not ascii_only:
            _check_encoding(view)
        return [
            (kind, item if kind in _MANY else msgspec.json.decode(item))
            for kind, item in ((kind, Raw(view[start:end])) for kind, start, end in items)
        ]
    except JSON_ERRORS:
        return None


def _check_encoding(view: memoryview) -> None:
    """Raise UnicodeDecodeError for invalid UTF-8, also in unused fields.

    A character that is cut off at the end is not JSON either.
    """
    decoder = getincrementaldecoder("utf-8")()
    for at in range(0, len(view), _CHUNK):  # a str of it all takes up to four times the memory
        decoder.decode(view[at : at + _CHUNK])


def _other_workload(document: Object) -> str:
    """Return what a Workload is that is not of Kueue's version: Kubernetes has the kind, too."""
    version = document.get("apiVersion")
    group, read = kueue.API
    if isinstance(version, str) and version.startswith(f"{group}/"):
        return f"{kueue.KIND} of {version} ({read} is read)"
    return kueue.KIND


def read_documents(text: bytes | memoryview, name: str) -> list[Object]:
    """Return the documents in a text of JSON or YAML; raises DocumentError with its *name*."""
    try:
        found = [msgspec.json.decode(text)]
    except RecursionError:
        raise DocumentError(name, "it is nested too deep") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        found = _read_yaml(text, name, json_problem(error))
    # `jq .items` makes a list of objects of what kubectl prints
    each_of = [each if isinstance(each, list) else [each] for each in found]
    return [_object(each, name) for given in each_of for each in given]


def _read_yaml(text: bytes | memoryview, name: str, not_json: str) -> list[Any]:
    """Return the documents in a text that is *not_json*; raises DocumentError.

    YAML may begin with a brace, too; with a quote behind it the error is JSON's.
    """
    try:
        return yamltext.read_all(str(text, "utf-8"))
    except UnicodeDecodeError as error:
        raise DocumentError(name, f"the text is not UTF-8 (at position {error.start})") from None
    except yamltext.YAMLTextError as error:
        is_json = re.match(rb'\s*\{\s*"', text) is not None
        hint = "; render the template first" if b"{{" in bytes(text[:_CHUNK]) else ""
        raise DocumentError(name, (not_json if is_json else str(error)) + hint) from None


def _object(value: Any, name: str) -> Object:
    if not isinstance(value, dict):
        table = isinstance(value, str) and value.startswith("NAME")  # or NAMESPACE
        hint = "; give the output of kubectl get … -o json" if table else ""
        raise DocumentError(name, f"{quoted(value)} is not a Kubernetes object{hint}")
    if value.get("kind") == "Status" and isinstance(value.get("message"), str):
        text = f"an error of the API server, and no object: {value['message']}"
        raise DocumentError(name, text)
    return value
