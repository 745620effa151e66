"""Nodes that are played: a daemon and an embedded runtime in this process, and a kubelet for them.

What a pod gets is decided by the daemon, as on a real node; the kubelet tells the API server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nri_policy.kube.client import Client
from nri_policy.kube.connection import access
from nri_policy.nrt.cluster_object import ClusterSink
from nri_policy.simulation.containers import CRIError
from tests.cluster.control_plane import ControlPlane, kubelet
from tests.cluster.installation import daemon_token, register
from tests.support import nodes
from tests.support.daemon import Served, served

MERGE = "application/merge-patch+json"
RESERVED = 1  # CPU of each node


@dataclass(slots=True, kw_only=True)
class Played:
    """A node, and what became of the pods that it was sent."""

    name: str
    node: Served
    cluster: ControlPlane
    pull: float = 0.0  # seconds between a sandbox and its containers
    running: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)  # why, by pod
    following: asyncio.Task[None] | None = None

    async def start(self, pod: Mapping[str, Any]) -> None:
        """Run a pod as its kubelet would, and say what became of it."""
        name = pod["metadata"]["name"]
        self.running[name] = None
        manifest = {key: pod[key] for key in ("apiVersion", "kind")}
        manifest["metadata"] = {"name": name, "namespace": "default", "uid": pod["metadata"]["uid"]}
        containers = [
            {key: each[key] for key in ("name", "resources")} for each in pod["spec"]["containers"]
        ]
        manifest["spec"] = {"containers": containers}
        sandbox = await self.node.runtime.run_pod(manifest)
        self.running[name] = sandbox
        if self.pull:
            await asyncio.sleep(self.pull)
        try:
            for each in containers:
                made = await self.node.runtime.create_container(sandbox, each["name"])
                await self.node.runtime.start_container(made)
        except CRIError as error:
            if name not in self.running:  # it was deleted meanwhile
                return
            self.refused[name] = str(error)
            await self.node.runtime.remove_pod(sandbox)
            await self._say(name, "Failed")
            return
        await self._say(name, "Running")

    async def _say(self, name: str, phase: str) -> None:
        path = f"/api/v1/namespaces/default/pods/{name}/status"
        patch = {"status": {"phase": phase}}
        await asyncio.to_thread(
            self.cluster.ask, "PATCH", path, patch, content=MERGE, token=kubelet(self.name)
        )

    def pause(self) -> None:
        """Ask the API server for no more pods."""
        if self.following is not None:
            self.following.cancel()

    async def stop(self, name: str) -> None:
        """End a pod that was deleted."""
        sandbox = self.running.pop(name)
        with suppress(KeyError, CRIError):
            await self.node.runtime.remove_pod(sandbox)

    async def _end(self, name: str) -> None:
        """End a pod that is to be deleted, and only then delete it."""
        if self.running.get(name) is not None:
            await self.stop(name)
            path, body = f"/api/v1/namespaces/default/pods/{name}", {"gracePeriodSeconds": 0}
            await asyncio.to_thread(self.cluster.ask, "DELETE", path, body)

    async def follow(self) -> None:
        """Start what the scheduler sends here, and end what is deleted."""
        path = f"/api/v1/namespaces/default/pods?fieldSelector=spec.nodeName%3D{self.name}"
        starting: set[asyncio.Task[None]] = set()
        while True:
            pods = (await asyncio.to_thread(self.cluster.asked, "GET", path))["items"]
            names = {pod["metadata"]["name"] for pod in pods}
            for pod in pods:
                if "deletionTimestamp" in pod["metadata"]:
                    await self._end(pod["metadata"]["name"])
                elif pod["metadata"]["name"] not in self.running:
                    starting.add(asyncio.create_task(self.start({**pod, **_POD})))
            await asyncio.sleep(0)
            for gone in self.running.keys() - names:
                if self.running[gone] is not None:
                    await self.stop(gone)
            await asyncio.sleep(0.05)


_POD = {"apiVersion": "v1", "kind": "Pod"}


@asynccontextmanager
async def played(
    cluster: ControlPlane,
    folder: Path,
    name: str,
    machine: str,
    *,
    pull: float = 0.0,
    again: bool = False,
    **spec: Any,
) -> AsyncIterator[Played]:
    """Yield a node of the cluster with a *machine*, which publishes its topology.

    It is registered, unless it exists already: *again*.
    """
    await asyncio.to_thread(folder.mkdir)
    hardware = nodes.machine(machine)
    amounts = {"memory": str(hardware.memory - (64 << 20)), "pods": "250"}
    whole = {**amounts, "cpu": str(len(hardware.online))}
    given = {**amounts, "cpu": str(len(hardware.online) - RESERVED)}
    if not again:
        await asyncio.to_thread(register, cluster, name, capacity=whole, allocatable=given)
    token = await asyncio.to_thread(daemon_token, cluster, name)
    connect = access(cluster.kubeconfig(token))
    assert connect is not None
    client = Client(connect)
    reserved = {"reservedResources": {"cpu": RESERVED}}
    async with served(folder, machine, **{**reserved, **spec}) as node:
        node.daemon.topology.feed.name = name
        here = Played(name=name, node=node, cluster=cluster, pull=pull)
        here.following = following = asyncio.create_task(here.follow())
        try:
            async with node.daemon.topology.publishing([ClusterSink(client, name)]):
                yield here
        finally:
            following.cancel()
            await asyncio.wait({following})
            await client.close()
