"""Requests as annotations of a pod or a pod template: Kueue's names as they are, and ours.

Ours, under `placement.nri/`, may be labels as well; the annotation decides where both are there. An
error quotes the annotation: it is what its owner searches for.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, get_args

import msgspec
from msgspec.structs import replace

from nri_policy.cluster.objects.assignment import MAX_COUNT
from nri_policy.cluster.objects.document import FALSE, TRUE, DocumentError, join
from nri_policy.cluster.objects.pod import Pod, Template
from nri_policy.cluster.objects.scheduler_constraints import exclude_each_other
from nri_policy.cluster.requests.group import (
    GROUP_LABEL,
    Algorithm,
    PlacementRequest,
    Slice,
    Together,
)
from nri_policy.cluster.requests.spread_preferences import read_preferences
from nri_policy.cluster.requests.topology_spreading import (
    TopologySpreading,
    check_topology_spreading,
)
from nri_policy.foundation.mismatch import json_problem
from nri_policy.foundation.wording import did_you_mean, quoted
from nri_policy.kube.why import WHY

_OF_KUEUE = "kueue.x-k8s.io/"
POD_GROUP = _OF_KUEUE + "pod-group-name"
POD_GROUP_TOTAL = _OF_KUEUE + "pod-group-total-count"
POD_GROUP_INDEX = _OF_KUEUE + "pod-group-pod-index"
_POD_GROUPS = (POD_GROUP, POD_GROUP_TOTAL, POD_GROUP_INDEX)

KUEUE = _OF_KUEUE + "podset-"
REQUIRED = KUEUE + "required-topology"
PREFERRED = KUEUE + "preferred-topology"
UNCONSTRAINED = KUEUE + "unconstrained-topology"
SLICE_LEVEL = KUEUE + "slice-required-topology"
SLICE_SIZE = KUEUE + "slice-size"
LAYERS = KUEUE + "slice-required-topology-constraints"
LEADER_GROUP = KUEUE + "group-name"
SPREADING = KUEUE + "topology-spreading"
_REQUESTS = (
    *(REQUIRED, PREFERRED, UNCONSTRAINED, SLICE_LEVEL, SLICE_SIZE, LAYERS, LEADER_GROUP),
    SPREADING,
)

# Kueue's other keys (August 2026) with a similar spelling, without a meaning here.
_OTHERS_OF_KUEUE = tuple(
    f"{_OF_KUEUE}pod-group-{name}"
    for name in ("fast-admission", "pod-index-label", "role", "serving", "sets")
)

OURS = "placement.nri/"
GROUP_SIZE = OURS + "group-size"
POD_SET = OURS + "pod-set"
TOPOLOGY = OURS + "topology"
ALGORITHM = OURS + "algorithm"
SPREAD_OVER = OURS + "spread-over"
MAX_PER_HOST = OURS + "max-per-host"
GROUP_REQUIRED = OURS + "group-required-topology"
GROUP_PREFERRED = OURS + "group-preferred-topology"
_TOGETHER = (GROUP_REQUIRED, GROUP_PREFERRED)
_SHARING = frozenset(_TOGETHER)
EXCLUSIVE = OURS + "exclusive-topology"
LWS_EXCLUSIVE = "leaderworkerset.sigs.k8s.io/exclusive-topology"
LWS_SUBGROUP_EXCLUSIVE = "leaderworkerset.sigs.k8s.io/subgroup-exclusive-topology"
JOBSET_EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
_OWNERS = {  # the kind on which each counts
    JOBSET_EXCLUSIVE: "JobSet",
    LWS_EXCLUSIVE: "LeaderWorkerSet",
    LWS_SUBGROUP_EXCLUSIVE: "LeaderWorkerSet",
}
_EXCLUSIVE = (EXCLUSIVE, LWS_EXCLUSIVE, LWS_SUBGROUP_EXCLUSIVE, JOBSET_EXCLUSIVE)
MOVABLE = OURS + "movable"  # whether a plan may move the pod
ZONE_ANNOTATION = OURS + "zone"  # the answer, not a part of a request
_ASKING = (TOPOLOGY, ALGORITHM, SPREAD_OVER, MAX_PER_HOST)
_GIVEN = (GROUP_LABEL, GROUP_SIZE, POD_SET, *_ASKING, EXCLUSIVE, *_TOGETHER, MOVABLE)
_KNOWN = (*_GIVEN, ZONE_ANNOTATION, WHY)  # also what nri-policy writes

MAX_LAYERS = 3
_COMMA = re.compile(r",(?![^{]*\})")  # not one between weights
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}")


class _Layer(msgspec.Struct, frozen=True):
    topology: str
    size: int


def read_request(
    annotations: Mapping[str, str], labels: Mapping[str, str], path: str
) -> PlacementRequest | None:
    """Return the request that annotations and labels make, None if they name none of it.

    *path* is that of the metadata. Raises DocumentError.
    """
    given = {key: value for key, value in labels.items() if key.startswith(OURS)} | dict(
        annotations
    )
    reading = _Reading(given, join(path, "annotations"))
    reading.check_names()
    reading.check_names_of_kueue()
    _Reading(labels, join(path, "labels")).check_names_of_kueue()
    reading.flag(MOVABLE)
    asking = (*_ASKING, *_EXCLUSIVE)
    if not any(key.startswith(KUEUE) or key in asking for key in given):
        return None
    reading.check_together()
    size = reading.number(MAX_PER_HOST, least=1)
    return PlacementRequest(
        required=reading.level(REQUIRED),
        preferred=reading.level(PREFERRED),
        unconstrained=reading.flag(UNCONSTRAINED),
        slices=reading.slices(),
        leader_group=reading.leader_group(),
        spread_over=reading.spread_over(),
        max_per_host=size,
        topology_spreading=reading.topology_spreading(),
        exclusive=next(filter(None, map(reading.level, _EXCLUSIVE)), None),
        topology=given.get(TOPOLOGY),
        algorithm=reading.algorithm(),
    )


def request_of(template: Template | Pod, path: str) -> PlacementRequest | None:
    """Return the request of pods of a template, None if they have none; *path* as above.

    Raises DocumentError.
    """
    request = read_request(template.annotations, template.labels, path)
    return with_constraints(request, template)


def with_constraints(
    request: PlacementRequest | None, template: Template | Pod
) -> PlacementRequest | None:
    """Return *request* with what pods of a template demand of each other."""
    own = template.own
    if exclude_each_other(template.constraints):
        request = replace(request or PlacementRequest(), max_per_host=1)
    if own.apart_over or own.max_skew:
        request = replace(
            request or PlacementRequest(), apart_over=[*own.apart_over], max_skew=dict(own.max_skew)
        )
    return request


def read_size(annotations: Mapping[str, str], labels: Mapping[str, str], path: str) -> int | None:
    """Return the number of pods in the pod's group, None without such an annotation."""
    given = {**labels, **annotations}
    return _Reading(given, join(path, "annotations")).number(GROUP_SIZE, least=1)


def read_total(annotations: Mapping[str, str], labels: Mapping[str, str], path: str) -> int | None:
    """Return the number of pods in Kueue's pod group of a pod, None without such an annotation."""
    given = {**labels, **annotations}
    return _Reading(given, join(path, "annotations")).number(POD_GROUP_TOTAL, least=1)


def read_together(annotations: Mapping[str, str], labels: Mapping[str, str], path: str) -> Together:
    """Return the level that all pod sets of the pod's group share a domain of; see `is_together`.

    *path* is that of the metadata. Raises DocumentError.
    """
    reading = _Reading({**labels, **annotations}, join(path, "annotations"))
    required, preferred = (reading.level(key) for key in _TOGETHER)
    if required and preferred:
        raise reading.error(GROUP_PREFERRED, f"may not be set when {GROUP_REQUIRED} is")
    return Together(required=required, preferred=preferred)


def read_exclusive_level(annotations: Mapping[str, str]) -> str | None:
    """Return the level of which annotations give a group a domain to itself, None without one."""
    return next((annotations[key] for key in _EXCLUSIVE if annotations.get(key)), None)


def is_together(template: Template | Pod) -> bool:
    """Return whether pods of a template name a level of which their group shares a domain."""
    return not (_SHARING.isdisjoint(template.annotations) and _SHARING.isdisjoint(template.labels))


def check_owner(
    annotations: Mapping[str, str], kind: str, of_pods: Collection[str], path: str
) -> None:
    """Refuse annotations of an owner of pods that would be ignored in silence.

    These are requests, which count in pod templates alone, those of other projects on an object of
    another *kind* than theirs, and misspelt names of these. *of_pods* are the annotations of its
    pod template; *path* leads to *annotations*. Raises DocumentError.
    """
    for key in annotations:
        if key.startswith((KUEUE, OURS)):
            text = "it counts only in the metadata of the pod template"
            raise DocumentError(join(path, key), text)
        if _OWNERS.get(key, kind) != kind and key not in of_pods:
            text = f"it counts only on a {_OWNERS[key]}, or in the metadata of the pod template"
            raise DocumentError(join(path, key), text)
        domain, _, name = key.removeprefix("alpha.").rpartition("/")  # JobSet has the prefix
        known = [
            each for each in _EXCLUSIVE if each.removeprefix("alpha.").startswith(f"{domain}/")
        ]
        names = [each.rpartition("/")[2] for each in known]
        if key not in known and did_you_mean(name, names):
            raise DocumentError(join(path, key), f"no such annotation{did_you_mean(key, known)}")


def asks_only_to_spread(annotations: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Return whether pods name nothing that the extender does not do for pods without a gate.

    `gate-policy.yaml` has the same rule.
    """
    given = {*annotations, *labels}
    asking = {each for each in given if each.startswith((OURS, KUEUE)) or each in _EXCLUSIVE}
    return asking <= {SPREAD_OVER, MAX_PER_HOST, MOVABLE}


def is_movable(annotations: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Return whether a pod's owner allows a plan to move it."""
    return {**labels, **annotations}.get(MOVABLE) in TRUE


class _Reading:
    """Annotations being read."""

    def __init__(self, given: Mapping[str, str], path: str) -> None:
        self._given = given
        self._path = path

    def error(self, key: str, text: str) -> DocumentError:
        """Return the error of one annotation, which it quotes."""
        return DocumentError(join(self._path, key), f"{quoted(self._given.get(key))} {text}")

    def check_names(self) -> None:
        """Refuse unknown names: they would be ignored in silence."""
        for key in self._given:
            for prefix, known in ((OURS, _KNOWN), (KUEUE, _REQUESTS)):
                if key.startswith(prefix) and key not in known:
                    hint = did_you_mean(key, known)
                    raise DocumentError(join(self._path, key), f"no such annotation{hint}")

    def check_names_of_kueue(self) -> None:
        """Refuse misspelt names of Kueue's annotations; its many other names are accepted.

        Only the text after the common prefix is compared.
        """
        read = (*_POD_GROUPS, *_REQUESTS)
        for key in self._given:
            if key.startswith(_OF_KUEUE) and key not in (*read, *_OTHERS_OF_KUEUE):
                own = key.removeprefix(_OF_KUEUE)
                if did_you_mean(own, [each.removeprefix(_OF_KUEUE) for each in read]):
                    raise DocumentError(
                        join(self._path, key), f"no such name{did_you_mean(key, read)}"
                    )

    def check_together(self) -> None:
        """Refuse annotations that contradict each other."""
        modes = [key for key in (REQUIRED, PREFERRED, UNCONSTRAINED) if key in self._given]
        if len(modes) > 1:
            both = " and ".join(f"{key}: {quoted(self._given[key])}" for key in modes)
            raise DocumentError(
                self._path, f"must not contain more than one topology annotation: {both}"
            )
        if SLICE_LEVEL in self._given and SLICE_SIZE not in self._given:
            raise self.error(SLICE_LEVEL, f"needs {SLICE_SIZE}")
        if SLICE_SIZE in self._given and SLICE_LEVEL not in self._given:
            raise self.error(SLICE_SIZE, f"may not be set when {SLICE_LEVEL} is not")
        for key in (SLICE_LEVEL, SLICE_SIZE):
            if LAYERS in self._given and key in self._given:
                raise self.error(LAYERS, f"may not be set when {key} is")
        levels = (REQUIRED, PREFERRED)
        if LEADER_GROUP in self._given and not any(key in self._given for key in levels):
            raise self.error(
                LEADER_GROUP, f"may not be set when neither {REQUIRED} nor {PREFERRED} is"
            )

    def level(self, key: str) -> str | None:
        """Return the name of a level."""
        value = self._given.get(key)
        if value is not None and (not value or value != value.strip()):
            raise self.error(key, "is not the name of a level")
        return value

    def flag(self, key: str) -> bool:
        """Return a boolean, as Go reads them."""
        value = self._given.get(key, "false")
        if value not in (*TRUE, *FALSE):
            raise self.error(key, "must be a boolean value")
        return value in TRUE

    def number(self, key: str, *, least: int) -> int | None:
        """Return a number of pods."""
        value = self._given.get(key)
        if value is None:
            return None
        if not _NUMBER.fullmatch(value):
            raise self.error(key, "must be a numeric value")
        if not least <= int(value) <= MAX_COUNT:
            raise self.error(key, f"must be from {least} to {MAX_COUNT}")
        return int(value)

    def slices(self) -> list[Slice]:
        """Return the layers of slices, outer to inner."""
        if SLICE_LEVEL in self._given:
            size = self.number(SLICE_SIZE, least=1)
            level = self.level(SLICE_LEVEL)
            assert size is not None  # both are there: check_together
            assert level is not None
            return [Slice(level=level, size=size)]
        text = self._given.get(LAYERS)
        if text is None:
            return []
        try:
            layers = msgspec.json.decode(text, type=list[_Layer])
        except msgspec.MsgspecError as error:
            raise self.error(LAYERS, f"must be a valid JSON array: {json_problem(error)}") from None
        if not 1 <= len(layers) <= MAX_LAYERS:
            raise self.error(LAYERS, f"must have 1 to {MAX_LAYERS} layers")
        for number, layer in enumerate(layers):
            if not 1 <= layer.size <= MAX_COUNT:
                raise self.error(LAYERS, f"has the size {layer.size}; it must be 1 or more")
            if not layer.topology:
                raise self.error(LAYERS, "has a layer without a topology")
            if layer.topology in [each.topology for each in layers[:number]]:
                raise self.error(LAYERS, f"has {quoted(layer.topology)} twice")
            if number and layers[number - 1].size % layer.size:
                above = layers[number - 1].size
                raise self.error(
                    LAYERS,
                    f"has the size {layer.size}, which must evenly divide the size {above} before",
                )
        return [Slice(level=each.topology, size=each.size) for each in layers]

    def leader_group(self) -> str | None:
        """Return the name that leader and workers share."""
        value = self._given.get(LEADER_GROUP)
        if value is not None and (not value or value.isdecimal()):
            raise self.error(LEADER_GROUP, "must be a name and not a number")
        return value

    def topology_spreading(self) -> TopologySpreading | None:
        """Return the rules by which whole groups are spread."""
        text = self._given.get(SPREADING)
        if text is None:
            return None
        try:
            found = msgspec.json.decode(text, type=TopologySpreading)
        except msgspec.MsgspecError as error:
            raise self.error(
                SPREADING, f"must be a valid JSON object: {json_problem(error)}"
            ) from None
        try:
            check_topology_spreading(found, "")
        except DocumentError as error:
            raise self.error(SPREADING, f"is not taken: {error}") from None
        return found

    def spread_over(self) -> list[str]:
        """Return the levels to spread over, each as written."""
        text = self._given.get(SPREAD_OVER)
        if text is None:
            return []
        parts = [part.strip() for part in _COMMA.split(text)]
        if not all(parts):
            raise self.error(SPREAD_OVER, "must be a list of labels, coarse to fine")
        try:
            read_preferences(parts, "")
        except DocumentError as error:
            raise self.error(SPREAD_OVER, f"is not taken: {error.text}") from None
        return parts

    def algorithm(self) -> Any:
        """Return the algorithm."""
        value = self._given.get(ALGORITHM)
        known = get_args(Algorithm)
        if value is not None and value not in known:
            raise self.error(
                ALGORITHM, f"is not one of {', '.join(known)}{did_you_mean(value, known)}"
            )
        return value
