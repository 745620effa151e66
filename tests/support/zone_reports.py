"""NodeResourceTopology objects of nodes that align pods to one NUMA node."""

from __future__ import annotations

from typing import Any


def zone_report(
    node: str, *free: int, memory: int | str, cpus: int | None = None
) -> dict[str, Any]:
    """What a node reports that has so many *free* CPUs in its zones, of *cpus* each or no others.

    Each zone has so much *memory*, all of it free.
    """

    def resource(name: str, amount: int | str, left: int | str) -> dict[str, Any]:
        return {"name": name, "capacity": amount, "allocatable": amount, "available": left}

    return {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": node},
        "attributes": [{"name": "topologyManagerPolicy", "value": "single-numa-node"}],
        "zones": [
            {
                "name": f"node-{at}",
                "type": "Node",
                "resources": [
                    resource("cpu", each if cpus is None else cpus, each),
                    resource("memory", memory, memory),
                ],
            }
            for at, each in enumerate(free)
        ],
    }
