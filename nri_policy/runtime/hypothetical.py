"""Hypothetical pods: from manifests to the containers that a runtime would ask a plugin about.

Owns which objects make pods, and how many. What the kubelet and the runtime make of a pod is theirs
(`kubelet`, `runtimespec`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import msgspec

from nri_policy import yamltext
from nri_policy.engine.trial import Start, Wanted
from nri_policy.nri.convert import container_of
from nri_policy.runtime import runtimespec
from nri_policy.runtime.kubelet import Kubelet
from nri_policy.runtime.manifest import ManifestError, PodManifest, read_pod
from nri_policy.wording import quoted

MAX_TEXT = 256 << 10  # characters
MAX_CONTAINERS = 1000  # of all replicas together; a node has room for a few hundred

# What holds a pod template, and the field of its spec that says how many there are of it; None: one
# on each node.
_TEMPLATED: dict[str, tuple[str, str | None]] = {
    "Deployment": ("apps/v1", "replicas"),
    "ReplicaSet": ("apps/v1", "replicas"),
    "StatefulSet": ("apps/v1", "replicas"),
    "DaemonSet": ("apps/v1", None),
    "Job": ("batch/v1", "parallelism"),
}


def wanted_pods(text: str, replicas: int, *, kubelet: Kubelet) -> tuple[Wanted, ...]:
    """Return the pods that the manifests in *text* (YAML or JSON) ask for.

    *replicas* of each, or as many as it says where that is 0. ValueError names what is wrong.
    """
    try:
        pods = [
            wanted
            for document in yamltext.read_all(text, max_size=MAX_TEXT)
            for wanted in _wanted(document, replicas, kubelet)
        ]
    except ManifestError as error:
        raise ValueError(str(error)) from error
    if not pods:
        raise ValueError("there is no manifest in it")
    total = sum(each.replicas * len(each.starts(each.name)) for each in pods)
    if total > MAX_CONTAINERS:
        raise ValueError(f"{total} containers are too many to try; at most {MAX_CONTAINERS}")
    return tuple(pods)


def _wanted(document: object, replicas: int, kubelet: Kubelet) -> Iterator[Wanted]:
    kind = document.get("kind") if isinstance(document, Mapping) else None
    if isinstance(document, Mapping) and kind == "List":
        for item in _field(document, "items", list):
            yield from _wanted(item, replicas, kubelet)
    elif isinstance(document, Mapping) and kind in _TEMPLATED:
        manifest, count = _templated(document, *_TEMPLATED[str(kind)])
        yield _of(manifest, replicas or count, kubelet)
    elif kind == "Pod" or not isinstance(document, Mapping):
        yield _of(read_pod(document), replicas or 1, kubelet)
    else:
        known = ", ".join(["Pod", "List", *_TEMPLATED])
        raise ManifestError(f"kind: {quoted(kind)} makes no pods; these do: {known}")


def _templated(document: Mapping[str, Any], version: str, field: str | None) -> tuple[Any, int]:
    """Return the pod of an object with a template, by that object's name, and how many there are.

    Names that a template gives are not its pods' own.
    """
    if document.get("apiVersion") != version:
        raise ManifestError(f"apiVersion: {quoted(document.get('apiVersion'))} is not {version}")
    owner, spec = _field(document, "metadata", dict), _field(document, "spec", dict)
    template = _field(spec, "template", dict)
    names = {key: owner[key] for key in ("name", "namespace") if key in owner}
    metadata = {**(template.get("metadata") or {}), **names}
    pod = {**template, "apiVersion": "v1", "kind": "Pod", "metadata": metadata}
    count = 1 if field is None else spec.get(field, 1)
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise ManifestError(f"spec.{field}: {quoted(count)} is not a number of pods")
    return read_pod(pod), count


def _field(document: Mapping[str, Any], name: str, kind: type[Any]) -> Any:
    value = document.get(name)
    if not isinstance(value, kind):
        raise ManifestError(
            f"{document.get('kind', 'spec')}: {name}: {quoted(value)} is not a "
            f"{'list' if kind is list else 'map'}"
        )
    return value


def _of(manifest: PodManifest, replicas: int, kubelet: Kubelet) -> Wanted:
    return Wanted(
        namespace=manifest.metadata.namespace,
        name=manifest.metadata.name,
        replicas=replicas,
        starts=lambda name: tuple(_starts(manifest, name, kubelet)),
    )


def _starts(manifest: PodManifest, name: str, kubelet: Kubelet) -> Iterator[Start]:
    """Yield the containers of a pod called *name*, as a runtime tells a plugin of them."""
    made_up = partial(runtimespec.object_uid, "what-if", manifest.metadata.namespace, name)
    metadata = msgspec.structs.replace(manifest.metadata, name=name, uid=made_up())
    pod = msgspec.structs.replace(manifest, metadata=metadata)
    sandbox = kubelet.sandbox(pod, seen="")
    sandbox.id = runtimespec.object_id("what-if", pod.key)
    runtimespec.complete_sandbox(sandbox, runtime="containerd", pid=0)
    for container in pod.spec.every_container:
        message = kubelet.container(pod, container)
        message.id = runtimespec.object_id("what-if", pod.key, container.name)
        runtimespec.complete_container(
            message, sandbox, runtime="containerd", image=container.image
        )
        init = container in pod.spec.init_containers
        yield Start(
            container=container_of(sandbox, message),
            init=init,
            to_end=init and not container.sidecar,
        )
