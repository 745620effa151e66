"""The NodeResourceTopology object that a node's daemon publishes, without a daemon."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from msgspec.structs import replace

from nri_policy.engine.engine import Engine
from nri_policy.node import Node, Sandbox
from nri_policy.nrt.pending_pods import with_pending_pods
from nri_policy.nrt.reading import Reading
from nri_policy.nrt.zones import measure
from nri_policy.workload.pod import Container


def node_with(engine: Engine, coming: Collection[Container]) -> Node:
    """Return the node of *engine*, with its Guaranteed pods, each as one container."""
    node, pods = Node(engine), {}
    for whole in coming:
        pods[whole.pod.id] = Sandbox(
            namespace=whole.pod.namespace,
            name=whole.pod.name,
            folder="",
            asked=whole.resources,
            whole=whole,
            overhead=0,
        )
    node.view = replace(node.view, pods=pods)
    return node


def daemon_report(
    engine: Engine,
    *,
    name: str = "node-a",
    coming: Collection[Container] = (),
    started: Collection[tuple[str, str]] = (),
) -> dict[str, Any]:
    """Return the report of a node *name*.

    *coming* are pending Guaranteed pods, each as one container; *started* names started pods.
    """
    view, counted = with_pending_pods(node_with(engine, coming))
    reading = Reading(
        node=name,
        layout=engine.layout,
        amounts=measure(view),
        devices={},
        pods=frozenset(started),
        counted=counted,
        generation=0,
    )
    return reading.object()
