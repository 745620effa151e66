"""Hypothetical pods: turns manifests into the containers that a runtime would send to a plugin.

Owns which objects create pods, and how many. `resources` and `runtimespec` own what the kubelet and
the runtime make of a pod.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NoReturn

import msgspec
from msgspec import Struct

from nri_policy.foundation import yamltext
from nri_policy.foundation.wording import did_you_mean, printable, quoted, some
from nri_policy.kubelet import runtimespec
from nri_policy.kubelet.runtime_requests import Kubelet
from nri_policy.manifests.fields import mistyped_workload
from nri_policy.manifests.pod import ContainerManifest, PodManifest, PodSpec, read_pod
from nri_policy.manifests.resources import ManifestError, ResourceRequirements, read_part
from nri_policy.manifests.workloads import WORKLOADS, TemplatedSpec, Workload
from nri_policy.node import ClaimedParts, HypotheticalContainer, HypotheticalPod, NodeView
from nri_policy.proto import nri_pb2 as nri
from nri_policy.workload.amounts import described
from nri_policy.workload.annotations import DOMAIN
from nri_policy.workload.pod import Container
from nri_policy.workload.requirements import PodRequirements, Requirements

MAX_TEXT = 256 << 10  # characters
MAX_CONTAINERS = 1000  # of all replicas together; a node runs a few hundred
_GENERATED = "xxxxx"  # in place of the random suffix of `generateName`
_MAX_NAMED = 5  # errors in a message

CLAIMS = {"ResourceClaim", "ResourceClaimTemplate"}  # kinds
_KINDS = ("Pod", "List", *WORKLOADS, "CronJob")
Allocate = Callable[[PodManifest, str, NodeView], ClaimedParts]  # the claims of a pod of that name


class ContainerFactory(Struct, frozen=True, kw_only=True):
    """How containers are made from a pod's manifest."""

    kubelet: Kubelet
    convert: Callable[[nri.PodSandbox, nri.Container], Container]  # as for a plugin's request
    exact: bool  # whether the node would know the pod's object
    allocator: Callable[[Iterable[Mapping[str, Any]]], Allocate]  # by objects of CLAIMS


class Manifests(Struct, frozen=True, kw_only=True):
    """The pods in manifests."""

    pods: tuple[HypotheticalPod, ...]
    notes: tuple[str, ...]  # about objects that were left out, and annotations without effect


def parse_manifests(text: str, replicas: int, factory: ContainerFactory) -> Manifests:
    """Return the pods of the manifests in *text* (YAML or JSON).

    *replicas* of each; 0 means the number in the manifest. Objects of other kinds are left out if
    there are pods. Raises ValueError with the error of each object.
    """
    try:
        objects = [
            each
            for document in yamltext.read_all(text, max_size=MAX_TEXT)
            for each in _objects(document)
        ]
        allocate = factory.allocator([each for each in objects if _is_claim(each)])
        others, pods, wrong = list[Any](), list[tuple[Any, PodManifest, int]](), list[str]()
        for number, each in enumerate(objects, 1):
            if _is_claim(each):
                continue
            try:
                if _is_other(each):
                    others.append(each)
                    continue
                pods += [(each, pod, replicas or count) for pod, count in _manifests(each)]
            except ManifestError as error:
                wrong.append(f"object {number}: {error}" if len(objects) > 1 else str(error))
        if wrong:
            _refuse(wrong)
        if others and not pods:
            _refuse_kind(_kind(others[0]))
    except ManifestError as error:
        raise ValueError(str(error)) from error
    if not pods:
        raise ValueError("it has no manifest")
    total = sum(count * len(manifest.spec.every_container) for _, manifest, count in pods)
    if total > MAX_CONTAINERS:
        raise ValueError(f"{total} containers are too many to try; at most {MAX_CONTAINERS}")
    wanted = tuple(
        HypotheticalPod(
            namespace=manifest.metadata.namespace,
            name=manifest.metadata.name,
            replicas=count,
            ordinal=_first_ordinal(each),
            starts=partial(_list_starts, manifest, factory),
            devices=_devices(manifest.spec),
            claim=partial(allocate, manifest),
        )
        for each, manifest, count in pods
    )
    left_out = some({_name(each) for each in others})
    notes = (f"left out, because no pods of theirs are known here: {left_out}",) * bool(others)
    return Manifests(pods=wanted, notes=(*notes, *filter(None, map(_note_misplaced, objects))))


def expand(document: Any) -> Iterator[PodManifest]:
    """Yield the pods that an object creates, or each object of a List.

    They have the names that `what-if` gives them on an empty node. Raises ManifestError.
    """
    for each in _objects(document):
        for pod, count in _manifests(each):
            if (total := count * len(pod.spec.every_container)) > MAX_CONTAINERS:
                raise ManifestError(f"{total} containers are too many; at most {MAX_CONTAINERS}")
            first = _first_ordinal(each)
            if count == 1 and first is None:
                yield pod
                continue
            for number in range(count):
                name = f"{pod.metadata.name}-{number + (1 if first is None else first)}"
                yield msgspec.structs.replace(
                    pod, metadata=msgspec.structs.replace(pod.metadata, name=name)
                )


def _refuse(wrong: list[str]) -> NoReturn:
    more = [f"and {len(wrong) - _MAX_NAMED} more"] if len(wrong) > _MAX_NAMED else []
    raise ManifestError("; ".join([*wrong[:_MAX_NAMED], *more]))


def _kind(document: Any) -> Any:
    return document.get("kind") if isinstance(document, Mapping) else "Pod"


def _is_claim(document: Any) -> bool:
    kind = _kind(document)
    return isinstance(kind, str) and kind in CLAIMS


def _is_other(document: Any) -> bool:
    """Return whether an object is of a kind that creates no pods that are known here.

    Raises ManifestError if the kind is nearly spelled like one that does.
    """
    kind = _kind(document)
    if not isinstance(kind, str) or kind in _KINDS:
        return False
    if hint := did_you_mean(kind, _KINDS):
        raise ManifestError(f"kind: {quoted(kind)} does not create pods{hint}")
    return True


def _name(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return printable(" ".join(each for each in (document["kind"], name) if isinstance(each, str)))


def _note_misplaced(document: Mapping[str, Any]) -> str:
    """Return a note on annotations of ours in an object's own metadata; empty without any.

    Pods get the annotations of the template alone.
    """
    if (kind := document["kind"]) != "CronJob" and kind not in WORKLOADS:
        return ""
    given = document["metadata"].get("annotations")
    keys = given if isinstance(given, Mapping) else ()
    ours = some({str(each) for each in keys if str(each).partition("/")[0].endswith(DOMAIN)})
    place = f"spec.{'jobTemplate.spec.' * (kind == 'CronJob')}template.metadata.annotations"
    what = (
        f"annotations of its own metadata have no effect: {printable(ours)}; they belong in {place}"
    )
    return f"{_name(document)}: {what}" if ours else ""


def _first_ordinal(document: Any) -> int | None:
    """Return the number of the first pod of a StatefulSet; None for objects of other kinds."""
    if _kind(document) != "StatefulSet":
        return None
    ordinals = document["spec"].get("ordinals")
    start = ordinals.get("start") if isinstance(ordinals, Mapping) else None
    return start if type(start) is int and start >= 0 else 0


def _refuse_kind(kind: Any) -> NoReturn:
    if kind is None:
        raise ManifestError("add apiVersion and kind: of a pod, `apiVersion: v1` and `kind: Pod`")
    raise ManifestError(f"kind: {quoted(kind)} does not create pods; these do: {', '.join(_KINDS)}")


def _objects(document: Any) -> Iterator[Any]:
    """Yield a document's object, or all of a List, with names as by the API server."""
    if isinstance(document, list):
        raise ManifestError(
            "a manifest is a map, not a list; a list of steps is a scenario, which `nri-policy"
            " simulate` plays"
        )
    if _kind(document) != "List":
        yield _with_name(document)
        return
    for item in _field(document, "items", list):
        yield from _objects(item)


def _with_name(document: Any) -> Any:
    """Return an object; with a generated name if it has `generateName` and no name."""
    metadata = document.get("metadata") if isinstance(document, Mapping) else None
    if not isinstance(metadata, Mapping) or metadata.get("name") not in (None, ""):
        return document
    stem = metadata.get("generateName")
    if not isinstance(stem, str) or not stem:
        return document
    return {**document, "metadata": {**metadata, "name": f"{stem}{_GENERATED}"}}


def _manifests(document: Any) -> Iterator[tuple[PodManifest, int]]:
    """Yield the pods that an object creates, and their number."""
    kind = _kind(document)
    if kind == "CronJob":
        yield _expand_cron_job(document)
    elif isinstance(kind, str) and kind in WORKLOADS:
        yield _expand_template(document, WORKLOADS[kind])
    elif kind != "Pod":
        _refuse_kind(kind)
    else:
        yield read_pod(document), 1


def _expand_cron_job(document: Mapping[str, Any]) -> tuple[PodManifest, int]:
    """Return the pod of a CronJob's Job, and the number of such pods in a Job."""
    template = _field(_field(document, "spec", dict), "jobTemplate", dict)
    heading = {key: document[key] for key in ("apiVersion", "metadata") if key in document}
    try:
        return _expand_template({**template, **heading, "kind": "Job"}, WORKLOADS["Job"])
    except ManifestError as error:
        within = str(error).startswith("spec.")
        raise ManifestError(f"{'spec.jobTemplate.' * within}{error}") from error


def _expand_template(document: Mapping[str, Any], workload: Workload) -> tuple[PodManifest, int]:
    """Return the pod of an object with a template, and the number of such pods.

    The pod has the object's name, because a name in the template has no effect.
    """
    if document.get("apiVersion") != workload.version:
        version = quoted(document.get("apiVersion"))
        raise ManifestError(f"apiVersion: {version} is not {workload.version}")
    if problem := mistyped_workload(document):
        raise ManifestError(problem)
    owner, spec = _field(document, "metadata", dict), _field(document, "spec", dict)
    template = _field(spec, "template", dict)
    own = template.get("metadata") or {}
    if not isinstance(own, dict):
        raise ManifestError(f"spec.template.metadata: {quoted(own)} is not a map")
    names = {key: owner[key] for key in ("name", "namespace") if key in owner}
    pod = {**template, "apiVersion": "v1", "kind": "Pod", "metadata": {**own, **names}}
    for field in ("replicas", "parallelism", "completions"):
        count = spec.get(field)
        if count is not None and (type(count) is not int or count < 0):
            raise ManifestError(f"spec.{field}: {quoted(count)} is not a number of pods")
    counted = read_part(spec, TemplatedSpec)
    return read_pod(pod), 1 if workload.count is None else workload.count(counted)


def pod_requirements(spec: PodSpec) -> PodRequirements:
    """Return the requirements of a pod's containers as its object states them."""

    def amounts(resources: ResourceRequirements) -> Requirements:
        return Requirements(
            cpu_request=resources.requests.get("cpu"),
            cpu_limit=resources.limits.get("cpu"),
            memory_request=resources.requests.get("memory"),
            memory_limit=resources.limits.get("memory"),
        )

    whole = spec.resources
    return PodRequirements(
        containers={each.name: amounts(each.resources) for each in spec.every_container},
        pod_level=whole is not None and bool(whole.requests or whole.limits),
    )


def _devices(spec: PodSpec) -> dict[str, int]:
    """Return the number of devices of each resource that a pod takes.

    Init containers that end leave their devices to later containers; sidecars keep theirs.
    """
    lasting = [each for each in spec.every_container if each in spec.containers or each.sidecar]
    ending = [each for each in spec.init_containers if not each.sidecar]
    counts: Counter[str] = Counter()
    for container in lasting:
        counts.update(_resources_of_plugins(container))
    for container in ending:
        counts |= Counter(_resources_of_plugins(container))
    return dict(counts)


def _resources_of_plugins(container: ContainerManifest) -> dict[str, int]:
    return {
        name: amount
        for name, amount in container.resources.requests.items()
        if "/" in name and not name.partition("/")[0].endswith("kubernetes.io") and amount
    }


def _field(document: Mapping[str, Any], name: str, kind: type[Any]) -> Any:
    value = document.get(name)
    if not isinstance(value, kind):
        wanted = "list" if kind is list else "map"
        raise ManifestError(f"{name}: {quoted(value)} is not a {wanted}")
    return value


def _list_starts(
    manifest: PodManifest, factory: ContainerFactory, name: str
) -> tuple[HypotheticalContainer, ...]:
    """Return the containers of a pod called *name*, as a runtime sends them to a plugin."""
    uid = runtimespec.object_uid("what-if", manifest.metadata.namespace, name)
    metadata = msgspec.structs.replace(manifest.metadata, name=name, uid=uid)
    pod = msgspec.structs.replace(manifest, metadata=metadata)
    sandbox = factory.kubelet.sandbox(pod, seen="")
    sandbox.id = runtimespec.object_id("what-if", pod.key)
    runtimespec.complete_sandbox(sandbox, runtime="containerd", pid=0)
    said = pod_requirements(pod.spec)
    starts = []
    for container in pod.spec.every_container:
        message = factory.kubelet.container(pod, container)
        message.id = runtimespec.object_id("what-if", pod.key, container.name)
        runtimespec.complete_container(
            message, sandbox, runtime="containerd", image=container.image
        )
        init = container in pod.spec.init_containers
        made = factory.convert(sandbox, message)
        if factory.exact:
            made = described(made, said)
        starts.append(
            HypotheticalContainer(
                container=made,
                init=init,
                to_end=init and not container.sidecar,
            )
        )
    return tuple(starts)
