"""The ResourceSlice of one node: makes the object, checks it, and finds dropped fields.

Owns the wire form (resource.k8s.io/v1); spec dra.md §2.1, §2.6. If one request policy does not fit
the value beside it, the API server refuses the whole slice, and the old, higher value stays. So
each policy is a function of its value, and `faults` checks every slice before it is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nri_policy.dra.cpu_devices import Published, threads_per_core
from nri_policy.engine.state.layout import Layout
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.units import parse_cpu
from nri_policy.pools.tree import Pool
from nri_policy.workload.claim import DRIVER

CPU = f"{DRIVER}/cpu"  # the capacity
NUMA_NODE = "resource.kubernetes.io/numaNode"
MAX_TEXT = 64  # bytes of an attribute

_GUARDED = ("allowMultipleAllocations",)  # of a device; a capacity has requestPolicy
_CAPACITY_POLICY = "requestPolicy"

Object = dict[str, Any]


def slice_of(
    layout: Layout, values: Sequence[Published], node: str, owner: Mapping[str, Any]
) -> Object:
    """Return the slice of a node; *owner* refers to its Node.

    A device without a CPU for claims is left out.
    """
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": slice_name(node), "ownerReferences": [dict(owner)]},
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [_device(layout, each) for each in values if each.cpus],
        },
    }


def slice_name(node: str) -> str:
    """Return the name of a node's slice."""
    return f"{node}-{DRIVER}"


def values_in(found: Mapping[str, Any]) -> dict[str, int]:
    """Return the whole CPUs of each device of a slice of ours."""
    return {
        device["name"]: int(device["capacity"][CPU]["value"])
        for device in found["spec"].get("devices", [])
    }


def _device(layout: Layout, value: Published) -> Object:
    return {
        "name": value.device.name,
        "allowMultipleAllocations": True,
        "attributes": {
            key: {"int" if isinstance(each, int) else "string": each}
            for key, each in attributes_of(layout, value).items()
        },
        "capacity": {
            CPU: {
                "value": str(value.cpus),
                _CAPACITY_POLICY: _policy(value.cpus, value.granule),
            }
        },
    }


def _policy(cpus: int, granule: int) -> Object:
    """Return the request policy for a value: the default is one CPU, or one core.

    The minimum raises a claim of 0 CPUs, which no node could prepare. There is no step for single
    CPUs: without DRAFractionalCapacityRange the API server would round fractions up to it.
    """
    if granule == 1:
        return {"default": "1", "validRange": {"min": "1m"}}
    valid = {"min": str(granule)}
    if cpus >= 2 * granule:
        valid["step"] = str(granule)
    return {"default": str(granule), "validRange": valid}


def attributes_of(layout: Layout, value: Published) -> dict[str, int | str]:
    """Return the attributes. All devices have the same keys, because selectors may read each."""
    machine, pool = layout.machine, layout.tree.pools[value.device.pool]
    kinds = {core.kind.value for core in machine.cores if not core.cpus.isdisjoint(pool.cpus)}
    packages = [each.id for each in machine.packages if not each.cpus.isdisjoint(pool.cpus)]
    own: dict[str, int | str] = {
        "kind": "cpu",
        "level": "numa",
        "socket": min(packages, default=-1),
        "nearNode": value.device.node,
        "coreKind": kinds.pop() if len(kinds) == 1 else "mixed",
        "threadsPerCore": threads_per_core(layout, pool),
        "l3Bytes": _l3_bytes(layout, pool),
        "pool": pool.name.encode()[:MAX_TEXT].decode(errors="ignore"),
        "total": len(pool.cpus & layout.capacity.sharable),
    }
    return {
        NUMA_NODE: value.device.node,
        **{f"{DRIVER}/{key}": each for key, each in own.items()},
    }


def _l3_bytes(layout: Layout, pool: Pool) -> int:
    return sum(
        cache.size
        for cache in layout.machine.caches
        if cache.level == 3 and cache.type != "instruction" and _inside(cache.cpus, pool)
    )


def _inside(cpus: CPUSet, pool: Pool) -> bool:
    return not cpus.isdisjoint(pool.cpus)


def faults(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield values that an API server would refuse, or accept although they make no sense."""
    for device in found["spec"]["devices"]:
        for key, capacity in device["capacity"].items():
            where, value = f"{device['name']}: {key}", parse_cpu(capacity["value"])
            policy = capacity.get(_CAPACITY_POLICY)
            if policy is None:
                yield f"{where} has no request policy"
                continue
            default = parse_cpu(policy["default"])
            if not 0 < default <= value:
                yield f"{where}: the default {policy['default']} is not in 1 to {capacity['value']}"
            valid = policy.get("validRange", {})
            least = parse_cpu(valid.get("min", "0"))
            step = parse_cpu(valid.get("step", "0"))
            if not least <= default <= value:
                yield f"{where}: the default {policy['default']} is below the least"
            if step and least + step > value:
                yield f"{where}: the value {capacity['value']} is below the least and one step"
            if step and (default - least) % step:
                yield f"{where}: the default {policy['default']} is no step above the least"


def dropped(sent: Mapping[str, Any], stored: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the *sent* fields that the API server has dropped: their gates are off.

    Without them one claim would own a whole NUMA node.
    """
    lost = set()
    found = {each["name"]: each for each in stored["spec"].get("devices", [])}
    for device in sent["spec"]["devices"]:
        kept = found.get(device["name"], {})
        lost |= {each for each in _GUARDED if device[each] != kept.get(each)}
        for key, capacity in device["capacity"].items():
            if _CAPACITY_POLICY not in kept.get("capacity", {}).get(key, {}):
                lost |= {_CAPACITY_POLICY} & capacity.keys()
    return tuple(sorted(lost))
