"""Clusters that do not exist, from a short specification: for trials, tests and benchmarks.

    zone:2 rack:4 host:16 cpu:64 memory:256Gi numa:2

Words are NAME:VALUE. Up to `host` they are levels, outermost first, with so many of each in each of
the level before: `region` and `zone` stand for Kubernetes' labels, a name with a slash is a label
itself, any other name is below `example.com/`. After `host` comes what each host has: quantities of
resources, `socket:N` and `numa:N` (NUMA nodes in each socket, or in the host). A word that is
nearly a usual one is refused as a mistake.

Every host then has a NodeResourceTopology like that of a node daemon with `alignment: numa`, with a
share of the resources in each NUMA node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from math import prod
from typing import NamedTuple

from nri_policy.cluster.objects.document import (
    CPU,
    PODS,
    Amounts,
    DocumentError,
    Object,
    parse_amounts,
)
from nri_policy.cluster.objects.node import HOSTNAME
from nri_policy.cluster.objects.settings import KIND
from nri_policy.cluster.zones.numa_request import MEMORY
from nri_policy.cluster.zones.zone import MEMORY_SET
from nri_policy.foundation.units import format_cpu
from nri_policy.foundation.wording import did_you_mean, quoted
from nri_policy.settings import API_VERSION

MAX_NODES = 200_000
MAX_ZONES = 64  # of a host
_KUBERNETES = ("region", "zone")
_BELOW = {"socket": "socket", "numa": "Node"}  # word -> type of its zones
_DEFAULTS = {"cpu": "16", "memory": "64Gi", PODS: "110"}
_USUAL_LEVELS = (*_KUBERNETES, "rack", "host")
_USUAL_RESOURCES = (*_DEFAULTS, *_BELOW, "gpu", "ephemeral-storage")
_OF_MACHINES = {"package", "die", "l3", "l2", "core", "pu"}  # what `topology --synthetic` knows
_SHORT = 3  # letters that stand for the usual word that begins with them: mem
_LEAST_MEMORY = 1 << 20  # less is a number without its unit
_EXAMPLE = "zone:2 rack:4 host:16 cpu:64 memory:256Gi numa:2"


class Synthetic(NamedTuple):
    """A cluster as plain values, and settings (a ClusterPlacement) with its topology."""

    cluster: Object
    settings: Object


def make_cluster(text: str) -> Synthetic:
    """Return the cluster that *text* specifies; DocumentError says which word is wrong."""
    for word in text.split():
        if "," in word:
            raise _wrong(word, f"has a comma; words are divided by spaces: {_EXAMPLE!r}")
        if word.rpartition(":")[0] in _OF_MACHINES:
            raise _wrong(word, f"describes a machine; a cluster looks like {_EXAMPLE!r}")
    levels, resources, below = _parse(text)
    labels = [_label(each) for each in levels]
    amounts = parse_amounts(resources, "--synthetic")
    if amounts[MEMORY] < _LEAST_MEMORY:
        raise _wrong(f"memory:{resources[MEMORY]}", "is less than 1Mi; write it as memory:64Gi")
    amounts.pop(PODS)  # of the host as a whole
    parts = _zones(below, amounts)  # the same values in each host
    nodes, zones = [], []
    for place in _places(levels):
        node = dict(zip(labels, place, strict=True))
        nodes.append(_node(place[-1], node, resources))
        if below:
            zones.append(_topology(place[-1], parts))
    topology = {"name": "default", "levels": labels, "belowHost": [_BELOW[each] for each in below]}
    settings = {"apiVersion": API_VERSION, "kind": KIND, "spec": {"topologies": [topology]}}
    return Synthetic({"nodes": nodes, "zones": zones}, settings)


def _parse(text: str) -> tuple[dict[str, int], dict[str, str], dict[str, int]]:
    """Return the counts of the levels, the quantities of a host, the counts of its zones."""
    levels: dict[str, int] = {}
    resources = dict[str, str]()
    below: dict[str, int] = {}
    for word in text.split():
        name, separator, value = word.rpartition(":")
        if not separator or not name or not value:
            raise _wrong(word, "is not NAME:VALUE, such as rack:4 or memory:256Gi")
        if name in levels or name in resources or name in below:
            raise _wrong(word, f"names {name} again")
        _check_name(word, name, after_host="host" in levels)
        if "host" not in levels:
            levels[name] = _count(word, value)
        elif name in _BELOW:
            below[name] = _count(word, value)
        else:
            resources[name] = value
    if "host" not in levels:
        raise _wrong(text, "has no host:COUNT, the last of the levels")
    if prod(levels.values()) > MAX_NODES:
        raise _wrong(text, f"has more than {MAX_NODES} hosts")
    if prod(below.values()) > MAX_ZONES:
        raise _wrong(text, f"has more than {MAX_ZONES} NUMA nodes in a host")
    return levels, _DEFAULTS | resources, {each: below[each] for each in _BELOW if each in below}


def _check_name(word: str, name: str, *, after_host: bool) -> None:
    """Raise DocumentError for a name that is nearly a usual one, or of the other side of `host`."""
    usual = _USUAL_RESOURCES if after_host else _USUAL_LEVELS
    if "/" in name or name in usual:
        return
    if name in _USUAL_LEVELS:
        raise _wrong(word, "is a level; levels stand before host:COUNT")
    if name in _USUAL_RESOURCES:
        raise _wrong(word, "is of a host; what a host has stands after host:COUNT")
    short = (each for each in usual if len(name) >= _SHORT and each.startswith(name))
    near = next((f"; did you mean {each!r}?" for each in short), did_you_mean(name, usual))
    if near:
        raise _wrong(word, f"names nothing{near}")


def _count(word: str, value: str) -> int:
    if not (value.isascii() and value.isdigit()) or not 1 <= int(value[:9]) <= MAX_NODES:
        raise _wrong(word, f"needs a count from 1 to {MAX_NODES}, such as host:16")
    return int(value)


def _wrong(word: str, problem: str) -> DocumentError:
    return DocumentError("--synthetic", f"{quoted(word)} {problem}")


def _label(level: str) -> str:
    if level == "host":
        return HOSTNAME
    if "/" in level:
        return level
    return f"topology.kubernetes.io/{level}" if level in _KUBERNETES else f"example.com/{level}"


def _places(levels: Mapping[str, int]) -> Iterator[tuple[str, ...]]:
    """Yield the values of each host, ordered by host number."""
    names = [each.rpartition("/")[2] for each in levels]
    widths = [len(str(count)) for count in levels.values()]
    for numbers in product(*(range(1, count + 1) for count in levels.values())):
        written = [f"{number:0{width}}" for number, width in zip(numbers, widths, strict=True)]
        yield tuple(f"{name}-{'-'.join(written[: depth + 1])}" for depth, name in enumerate(names))


def _node(name: str, labels: dict[str, str], resources: Mapping[str, str]) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {
            "allocatable": dict(resources),
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def _topology(name: str, zones: list[Object]) -> Object:
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": name},
        "attributes": [
            {"name": "topologyManagerPolicy", "value": "single-numa-node"},
            {"name": "topologyManagerScope", "value": "container"},
        ],
        "zones": zones,
    }


def _zones(below: Mapping[str, int], amounts: Amounts) -> list[Object]:
    """Return the zones of a host, its resources split evenly over its NUMA nodes.

    Names, types and parents are those of the node daemon's reports (spec nrt.md §0): NUMA nodes
    for schedulers, which have no parents, then pools, where a pool that would have just the NUMA
    nodes of the one above it is left out.
    """
    sockets, nodes = below.get("socket", 1), below.get("numa", 1)
    count = sockets * nodes
    shares = [
        {name: _share(name, amount, number, count) for name, amount in amounts.items()}
        for number in range(count)
    ]
    zones = [_zone(f"node-{number}", "Node", share) for number, share in enumerate(shares)]

    def pool(name: str, kind: str, parent: str, numbers: range) -> None:
        own = {each: sum(shares[at][each] for at in numbers) for each in (CPU, MEMORY)}
        ids = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
        made = _zone(name, kind, own) | {"attributes": [{"name": MEMORY_SET, "value": ids}]}
        zones.append(made | ({"parent": parent} if parent else {}))

    if sockets > 1:
        pool("root", "virtual node", "", range(count))
    for socket in range(sockets):
        own = range(socket * nodes, (socket + 1) * nodes)
        pool(f"socket #{socket}", "socket", "root" if sockets > 1 else "", own)
        for at in own if nodes > 1 else ():
            pool(f"NUMA node #{at}", "numa node", f"socket #{socket}", range(at, at + 1))
    return zones


def _share(name: str, amount: int, number: int, count: int) -> int:
    """Return the part of an amount that zone *number* of *count* has; CPUs are not broken."""
    unit = 1000 if name == CPU else 1
    whole, rest = divmod(amount // unit, count)
    return unit * (whole + (number < rest))


def _zone(name: str, kind: str, amounts: Amounts) -> Object:
    resources = []
    for resource, amount in amounts.items():
        written = format_cpu(amount) if resource == CPU else str(amount)
        resources.append({"name": resource, "allocatable": written, "available": written})
    return {"name": name, "type": kind, "resources": resources}
