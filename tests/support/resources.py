"""Pods and the kinds of resource.k8s.io on the tests' API server (DRA).

Like the real one it selects slices by few fields and refuses others, keeps a watch open until
something happens, and drops what a feature gate that is off does not know, without a word.
"""

from __future__ import annotations

import asyncio
import copy
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nri_policy.foundation.units import parse_cpu

PATH = re.compile(
    r"/(?P<root>api/v1|apis/resource\.k8s\.io/(?P<version>[^/]+))"
    r"(/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<plural>pods|resourceslices|resourceclaims|deviceclasses)(/(?P<name>[^/]+))?"
)
GROUP = "resource.k8s.io"
_KINDS = {
    "pods": "Pod",
    "resourceslices": "ResourceSlice",
    "resourceclaims": "ResourceClaim",
    "deviceclasses": "DeviceClass",
}
_SELECTED = {  # what a field selector may name
    "metadata.name": lambda found: found["metadata"]["name"],
    "spec.nodeName": lambda found: found["spec"].get("nodeName", ""),
    "spec.driver": lambda found: found["spec"]["driver"],
}
# What is dropped while a gate is off: in each device of a slice, in each result of a claim.
_DEVICES = {
    "DRAConsumableCapacity": {"allowMultipleAllocations"},
    "DRAPartitionableDevices": {"consumesCounters", "nodeName", "nodeSelector", "allNodes"},
    "DRADeviceTaints": {"taints"},
}
_RESULTS = {
    "DRAConsumableCapacity": {"shareID", "consumedCapacity"},
    "DRAAdminAccess": {"adminAccess"},
}
_CAPACITIES = {"DRAConsumableCapacity": {"requestPolicy"}}
_LISTS = {"ints", "bools", "strings", "versions"}  # of attributes, by DRAListTypeAttributes
DEFAULT_GATES = frozenset({"DRAAdminAccess"})  # on by default in 1.34


class ResourceAPI:
    """The objects, as drivers, the scheduler and the kubelet leave them."""

    def __init__(self, revision: Callable[[], int]) -> None:
        self.gates = DEFAULT_GATES
        self.versions = {"v1"}
        self.compacted = 1  # no watch can begin at this revision, or go on from it
        self.happened = asyncio.Condition()
        self._revision = revision
        self._objects: dict[str, dict[tuple[str, str], dict[str, Any]]] = {
            plural: {} for plural in _KINDS
        }
        self._events: list[tuple[int, str, str, dict[str, Any]]] = []

    async def put(self, plural: str, new: Mapping[str, Any]) -> None:
        """Make or change an object, as far as the gates let it."""
        kept, revision = self._stored(plural, new), self._revision()
        key = kept["metadata"].get("namespace", ""), kept["metadata"]["name"]
        old = self._objects[plural].get(key)
        marks: dict[str, Any] = {"uid": f"00000000-0000-0000-0000-{revision:012x}"}
        if plural == "resourceslices":  # of these kinds only they have generations
            marks["generation"] = old["metadata"]["generation"] + 1 if old else 1
        if old:
            marks["uid"] = old["metadata"]["uid"]
        kept["metadata"] = {**marks, **kept["metadata"], "resourceVersion": str(revision)}
        self._objects[plural][key] = kept
        await self._happen(revision, "MODIFIED" if old else "ADDED", plural, kept)

    async def apply(self, plural: str, new: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        """Apply an object that one manager owns as a whole; return it, and whether it was made.

        One that is the same is not written; ValueError for a slice that the rules refuse.
        """
        if plural == "resourceslices":
            for problem in invalid_slice(new):
                raise ValueError(problem)
        name = new["metadata"]["name"]
        old = self._objects[plural].get(("", name))
        kept = self._stored(plural, new)
        if old is not None and kept["spec"] == old["spec"]:
            return {**_head(plural), **old}, False
        if old is not None and any(
            kept["spec"].get(each) != old["spec"].get(each) for each in ("driver", "nodeName")
        ):
            raise ValueError("spec: Invalid value: field is immutable")
        await self.put(plural, new)
        return {**_head(plural), **self._objects[plural]["", name]}, old is None

    async def delete(self, plural: str, name: str, namespace: str = "") -> None:
        """Delete an object."""
        revision = self._revision()
        gone = self._objects[plural].pop((namespace, name))
        gone = {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(revision)}}
        await self._happen(revision, "DELETED", plural, gone)

    async def _happen(self, revision: int, change: str, plural: str, about: dict[str, Any]) -> None:
        async with self.happened:
            self._events.append((revision, change, plural, about))
            self.happened.notify_all()

    def one(self, plural: str, name: str, namespace: str = "") -> dict[str, Any] | None:
        """Return an object as it is served by its name."""
        found = self._objects[plural].get((namespace, name))
        return None if found is None else {**_head(plural), **found}

    def listed(self, plural: str, selector: str) -> dict[str, Any]:
        """Return a list; ValueError for a field that nothing is selected by."""
        items = [each for each in self._objects[plural].values() if _matches(each, selector)]
        head = _head(plural)
        metadata = {"resourceVersion": str(self._revision())}
        return {**head, "kind": f"{head['kind']}List", "metadata": metadata, "items": items}

    async def watched(self, plural: str, selector: str, since: int) -> list[dict[str, Any]] | None:
        """Return what happened since a revision, once something has; None: that is too long ago."""
        if since <= self.compacted:
            return None
        async with self.happened:
            await self.happened.wait_for(
                lambda: since <= self.compacted or any(self._since(plural, selector, since))
            )
        return None if since <= self.compacted else [*self._since(plural, selector, since)]

    def _since(self, plural: str, selector: str, since: int) -> Iterator[dict[str, Any]]:
        for revision, change, of, about in self._events:
            if of == plural and revision > since and _matches(about, selector):
                yield {"type": change, "object": {**_head(plural), **about}}

    def _stored(self, plural: str, new: Mapping[str, Any]) -> dict[str, Any]:
        kept = copy.deepcopy(dict(new))
        for each in ("kind", "apiVersion"):
            kept.pop(each, None)
        if plural == "resourceslices":
            for device in kept["spec"].get("devices", []):
                self._drop(device, _DEVICES)
                for capacity in device.get("capacity", {}).values():
                    self._drop(capacity, _CAPACITIES)
                for value in device.get("attributes", {}).values():
                    if "DRAListTypeAttributes" not in self.gates:
                        for each in _LISTS & value.keys():
                            del value[each]
        if plural == "resourceclaims":
            allocation = kept.get("status", {}).get("allocation", {})
            for result in allocation.get("devices", {}).get("results", []):
                self._drop(result, _RESULTS)
        return kept

    def _drop(self, part: dict[str, Any], fields: Mapping[str, set[str]]) -> None:
        for gate, names in fields.items():
            for each in names & part.keys() if gate not in self.gates else ():
                del part[each]


def _matches(found: Mapping[str, Any], selector: str) -> bool:
    for part in filter(None, selector.split(",")):
        name, _, value = part.partition("=")
        if name not in _SELECTED:
            kind = f"{GROUP}/v1, Kind=ResourceSlice"
            raise ValueError(f"field label not supported for {kind}: {name}")
        if _SELECTED[name](found) != value:
            return False
    return True


def _head(plural: str) -> dict[str, Any]:
    version = "v1" if plural == "pods" else f"{GROUP}/v1"
    return {"kind": _KINDS[plural], "apiVersion": version}


def invalid_slice(new: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the API server's validation of request policies says against a slice.

    By validateRequestPolicyRange of its source; values that are zero it lets pass.
    """
    for at, device in enumerate(new["spec"].get("devices", [])):
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", device["name"]):
            yield f'spec.devices[{at}].name: Invalid value: "{device["name"]}": no DNS label'
        for key, capacity in device.get("capacity", {}).items():
            where = f"spec.devices[{at}].capacity[{key}]"
            if "requestPolicy" in capacity:
                if not device.get("allowMultipleAllocations"):
                    yield f"{where}.requestPolicy: Forbidden: needs allowMultipleAllocations"
                yield from _invalid_policy(capacity, where)


def _invalid_policy(capacity: Mapping[str, Any], where: str) -> Iterator[str]:
    policy = capacity["requestPolicy"]
    value, valid = parse_cpu(capacity["value"]), policy.get("validRange")
    if valid is None:
        return
    default, least = parse_cpu(policy["default"]), parse_cpu(valid["min"])
    most = parse_cpu(valid["max"]) if "max" in valid else value
    step = parse_cpu(valid.get("step", "0"))
    if least > most or most > value:
        yield f"{where}.requestPolicy.validRange: Invalid value: min above value"
    if not least <= default <= most:
        yield f"{where}.requestPolicy.default: Invalid value: not in the range"
    if step and least + step > value:
        yield f"{where}.requestPolicy.validRange.step: Invalid value: one step is too much"
    if step and (default - least) % step:
        yield f"{where}.requestPolicy.default: Invalid value: no multiple of the step"


def lines(events: list[dict[str, Any]]) -> str:
    """Return the body of a watch."""
    return "".join(json.dumps(each) + "\n" for each in events)


# ---- objects as tests write them


def slice_(
    name: str,
    devices: Mapping[str, Mapping[str, Any]],
    *,
    node: str = "node-a",
    driver: str = "gpu.example.com",
    pool: str = "",
    generation: int = 1,
    of: int = 1,
) -> dict[str, Any]:
    """Return a ResourceSlice: the attributes of each device as numbers, texts and lists."""
    kinds = {int: "int", str: "string"}
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": pool or node, "generation": generation, "resourceSliceCount": of},
            "devices": [
                {
                    "name": device,
                    "attributes": {
                        key: {f"{kinds[type(value[0])]}s": value}
                        if isinstance(value, list)
                        else {kinds[type(value)]: value}
                        for key, value in attributes.items()
                    },
                }
                for device, attributes in devices.items()
            ],
        },
    }


def result(request: str, device: str, **more: Any) -> dict[str, Any]:
    """Return a result of an allocation."""
    own = {"request": request, "driver": "gpu.example.com", "pool": "node-a", "device": device}
    return {**own, **more}


def claim(name: str, *results: Mapping[str, Any]) -> dict[str, Any]:
    """Return a ResourceClaim that was allocated; without *results* it was not."""
    names = dict.fromkeys(each["request"].partition("/")[0] for each in results)
    exactly = {
        "deviceClassName": "gpu.example.com",
        "allocationMode": "ExactCount",
        "count": 1,
    }
    requests = [{"name": each, "exactly": exactly} for each in names or ["gpu"]]
    allocated = {"allocation": {"devices": {"results": [*results]}}} if results else {}
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": requests}},
        "status": allocated,
    }


def pod(
    name: str,
    claims: Mapping[str, str],
    containers: Mapping[str, list[dict[str, str]]],
    *,
    uid: str = "",
    **status: Any,
) -> dict[str, Any]:
    """Return a pod: the object of each of its claims, and what its containers use."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": uid or f"uid-{name}"},
        "spec": {
            "containers": [
                {"name": each, "image": "x", "resources": {"claims": uses}}
                for each, uses in containers.items()
            ],
            "resourceClaims": [
                {"name": own, "resourceClaimName": object_} for own, object_ in claims.items()
            ],
        },
        "status": status,
    }


# ---- those that a real API server is asked about, too (`exchanges`)


def exchanged_slice(generation: int) -> dict[str, Any]:
    """Return a slice with fields that a server without some gates drops."""
    numa_node: dict[str, Any] = {"resource.kubernetes.io/numaNode": 1, "dra.net/nodes": [1, 0]}
    made = slice_("node-a-gpus", {"gpu-0": numa_node}, generation=generation)
    (device,) = made["spec"]["devices"]
    device["attributes"]["dra.net/nodes"] |= {"string": "1,0"}
    device["allowMultipleAllocations"] = True
    device["taints"] = [{"key": "example.com/off", "effect": "NoSchedule"}]
    return made


def exchanged_claim() -> dict[str, Any]:
    """Return a claim with a field that a server without a gate drops."""
    return claim("gpus", result("gpu", "gpu-0", consumedCapacity={"memory": "1Gi"}))
