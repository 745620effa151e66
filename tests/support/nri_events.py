"""What a runtime tells a plugin, as plain data that another node would give alike.

Ids, uids, times and hashes are replaced by what they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from nri_policy.proto import nri_pb2 as nri

Event = dict[str, Any]

_ID = re.compile(r"\b[0-9a-f]{64}\b")
_VARYING = {
    "io.kubernetes.container.hash": "HASH",
    "kubernetes.io/config.seen": "TIME",
    "io.kubernetes.cri.image-name": "IMAGE",
}
# how older runtimes name what has a call of its own in newer ones
_CALLS = {
    name: "".join(part.title() for part in name.split("_"))
    for name in nri.Event.DESCRIPTOR.values_by_name
}


def described(seen: Iterable[tuple[str, Any]], *, cgroup_root: str = "") -> list[Event]:
    """Return what a plugin was told, in order; the kubelet's cgroups are below *cgroup_root*."""
    return [
        _described(_CALLS.get(method, method), request, cgroup_root)
        for method, request in seen
        if method not in {"Configure", "Synchronize"}
    ]


def of_pod(events: Iterable[Event], name: str) -> list[Event]:
    """Return the events of a pod."""
    return [event for event in events if event["pod"] == name]


def _described(method: str, request: Any, root: str) -> Event:
    event: Event = {"event": method, "pod": request.pod.name}
    if "container" in request.DESCRIPTOR.fields_by_name and request.container.name:
        event["container"] = request.container.name
    if method == "RunPodSandbox":
        event["of the pod"] = _plain(request.pod, request.pod.uid, root)
    elif method == "CreateContainer":
        event["of the container"] = _plain(request.container, request.pod.uid, root)
    elif method in {"UpdateContainer", "UpdatePodSandbox"}:
        event["resources"] = MessageToDict(request.linux_resources)
    return event


def _plain(message: Message, uid: str, root: str) -> Mapping[str, Any]:
    text = json.dumps(MessageToDict(message)).replace(uid, "UID")
    if root:
        text = text.replace(root, "")
    found: dict[str, Any] = json.loads(_ID.sub("ID", text))
    annotations = found.get("annotations", {})
    annotations |= {key: _VARYING[key] for key in annotations.keys() & _VARYING.keys()}
    return found
