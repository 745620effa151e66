"""Groups that pods in documents or their templates name; a pod that names none is one by itself.

The document of a pod can stand for several equal pods: for those of its group without a document.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from nri_policy.cluster.objects.document import DocumentError, Object, join
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.pod import Pod, read_pod, template_of
from nri_policy.cluster.requests.annotations import (
    GROUP_SIZE,
    JOBSET_EXCLUSIVE,
    LWS_SUBGROUP_EXCLUSIVE,
    POD_GROUP,
    POD_SET,
    read_size,
    read_total,
    request_of,
)
from nri_policy.cluster.requests.group import GROUP_LABEL, MAIN, PlacementGroup, PodSet
from nri_policy.cluster.requests.request import units_of
from nri_policy.cluster.workloads.membership import (
    JOBSET,
    LWS,
    LWS_GROUP,
    LWS_SUBGROUP,
    PodGroup,
    find_owning_job,
    read_pod_group,
)
from nri_policy.cluster.workloads.pod_sets import find_named_group
from nri_policy.foundation.wording import counted, quoted
from nri_policy.manifests.fields import mistyped_workload

POD_GROUP_KIND = "PodGroup"


class GroupsOfPods:
    """The groups that pods and pod templates make, among others, by what these name."""

    def __init__(
        self, groups: dict[Key, PlacementGroup], documents: Iterable[tuple[Object, str]]
    ) -> None:
        """Put them into *groups*; *documents* have the PodGroups of Kubernetes."""
        self._groups = groups
        self._pod_groups = _read_pod_groups(documents)
        self._sizes: dict[Key, tuple[int, str]] = {}
        self._of_templates: set[Key] = set()

    def add(self, value: object, path: str) -> Key:
        """Put one more pod into its group, into the pod set that it names or that is like it.

        Return which group that is.
        """
        pod = read_pod(value, path)
        place = join(path, "metadata")
        given = {**pod.labels, **pod.annotations}
        pod_group = self._pod_groups.get((pod.namespace, pod.pod_group))
        named = _group_name(pod, given, pod_group)
        key = (pod.namespace, named or pod.name)
        template = template_of(pod)
        request = request_of(template, place)
        self._put(key, PodSet("", 1, template, request), place, named=named is not None)
        if named is None and GROUP_SIZE in given:
            raise DocumentError(
                join(join(place, "annotations"), GROUP_SIZE), f"it needs {GROUP_LABEL}"
            )
        if named is not None:
            size = read_size(pod.annotations, pod.labels, place)
            if size is None and POD_GROUP in given:
                size = read_total(pod.annotations, pod.labels, place)
            self._sizes[key] = (self._at_least(key, pod_group) if size is None else size, place)
        return key

    def add_template(self, namespace: str, pod_set: PodSet, path: str) -> Key | None:
        """Put the pods that an object at *path* makes of a template into the group that they name.

        Return the key of that group; None, and nothing changes, if the template names no group.
        """
        named = find_named_group(pod_set.template, path)
        if named is None:
            return self._add_to_pod_group(namespace, pod_set, path)
        name, size = named
        key = (namespace, name)
        self._put(key, pod_set, join(path, "metadata"), named=True)
        if self._sizes.get(key, (size,))[0] != size:
            text = (
                f"pods of group {quoted(name)} disagree on its size: {self._sizes[key][0]}, {size}"
            )
            raise DocumentError(path, text)
        self._sizes[key] = (size, path)
        self._of_templates.add(key)
        return key

    def _add_to_pod_group(self, namespace: str, pod_set: PodSet, path: str) -> Key | None:
        """Put pods into the gang, a PodGroup, that their template names; return None for none."""
        name = pod_set.template.pod_group
        pod_group = self._pod_groups.get((namespace, name))
        if not name or not _is_gang(pod_group):
            return None
        key = (namespace, name)
        self._put(key, pod_set, join(path, "metadata"), named=True)
        self._sizes[key] = (self._at_least(key, pod_group), path)
        self._of_templates.add(key)
        return key

    def _at_least(self, key: Key, pod_group: PodGroup | None) -> int:
        """Return the size of a group: its pods so far, or those that its gang needs."""
        there = sum(each.count for each in self._groups[key].pod_sets)
        return max(there, (pod_group.least if pod_group else None) or 0)

    def _put(self, key: Key, pods: PodSet, path: str, *, named: bool) -> None:
        """Add pods to the pod set of their group that they name, or that is like them.

        *path* leads to the metadata of the pod, or of the object that makes the pods.
        """
        if key in self._groups and not (named and key in self._sizes):
            raise DocumentError(join(path, "name"), f"{quoted(key[1])} names two groups")
        template = pods.template
        pod_sets = list(self._groups[key].pod_sets) if key in self._groups else []
        name = {**template.labels, **template.annotations}.get(POD_SET)
        for number, each in enumerate(pod_sets):
            alike = (each.template.spec, each.request) == (template.spec, pods.request)
            if each.name == name or (name is None and alike):
                pod_sets[number] = replace(each, count=each.count + pods.count)
                break
        else:
            name = name or (f"{MAIN}-{len(pod_sets)}" if pod_sets else MAIN)
            pod_sets.append(replace(pods, name=name))
        self._groups[key] = PlacementGroup(namespace=key[0], name=key[1], pod_sets=tuple(pod_sets))

    def fill_up(self) -> None:
        """Give each group of pods the pods of its size; a template stands for what it makes.

        Raises DocumentError for a group without all of its pods.
        """
        for key, (size, path) in self._sizes.items():
            group = self._groups[key]
            there = sum(each.count for each in group.pod_sets)
            if there != size and key in self._of_templates:
                hint = "; give all objects that make its pods" if there < size else ""
                text = (
                    f"group {quoted(group.name)} has {counted(there, 'pod')}, but a size of {size}"
                )
                raise DocumentError(path, text + hint)
            self._groups[key] = _fill_up(group, size, path)
            try:
                units_of(self._groups[key])
            except DocumentError as error:
                raise DocumentError(path, f"group {quoted(group.name)}: {error.text}") from None


def _read_pod_groups(documents: Iterable[tuple[Object, str]]) -> dict[Key, PodGroup]:
    """Return the PodGroups of Kubernetes among *documents*."""
    given = [
        read_pod_group(value, place)
        for value, place in documents
        if value.get("kind") == POD_GROUP_KIND and not mistyped_workload(value)
    ]
    return {each.key: each for each in given}


def _group_name(pod: Pod, given: Mapping[str, str], pod_group: PodGroup | None) -> str | None:
    """Return the group of a pod, None for a pod alone."""
    for name in (GROUP_LABEL, POD_GROUP):
        if name in given:
            return given[name]
    if pod.pod_group and _is_gang(pod_group):
        return pod.pod_group
    if LWS in given:
        name = f"{given[LWS]}-{given.get(LWS_GROUP, '0')}"
        apart = LWS_SUBGROUP_EXCLUSIVE in given and LWS_SUBGROUP in given
        return f"{name}-{given[LWS_SUBGROUP]}" if apart else name
    jobset = None if JOBSET_EXCLUSIVE in given else given.get(JOBSET)
    return jobset or find_owning_job(pod)


def _is_gang(pod_group: PodGroup | None) -> bool:
    """Whether a PodGroup is a gang; one outside the documents is taken for that."""
    return pod_group is None or pod_group.least is not None


def _fill_up(group: PlacementGroup, size: int, path: str) -> PlacementGroup:
    """Return a group of *size* pods: one pod in the documents stands for all equal pods.

    Raises DocumentError if the missing pods could belong to several pod sets.
    """
    there = sum(each.count for each in group.pod_sets)
    if there == size:
        return group
    if there > size or len(group.pod_sets) > 1:
        raise DocumentError(path, f"group {quoted(group.name)} has {there} of its {size} pods")
    (only,) = group.pod_sets
    return replace(group, pod_sets=(replace(only, count=size),))
