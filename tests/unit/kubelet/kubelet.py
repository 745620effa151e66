"""A kubelet's PodResources server, with the kubelet's behaviours; nri.md §8."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from nri_policy.foundation.cpuset import EMPTY
from nri_policy.foundation.grpc_services import service_handler
from nri_policy.proto.podresources_pb2 import (
    DESCRIPTOR,
    AllocatableResourcesResponse,
    ContainerDevices,
    ContainerResources,
    GetPodResourcesRequest,
    GetPodResourcesResponse,
    ListPodResourcesRequest,
    ListPodResourcesResponse,
    NUMANode,
    PodResources,
    TopologyInfo,
)

Context = grpc.aio.ServicerContext[Any, Any]


def entry(resource: str, device: str, node: int | None = None) -> ContainerDevices:
    """Return what the kubelet sends for one device on one node, or on no known one."""
    topology = None if node is None else TopologyInfo(nodes=[NUMANode(ID=node)])
    return ContainerDevices(resource_name=resource, device_ids=[device], topology=topology)


def resources(
    name: str, *devices: ContainerDevices, namespace: str = "default", container: str = "c0"
) -> PodResources:
    return PodResources(
        name=name,
        namespace=namespace,
        containers=[ContainerResources(name=container, devices=devices)],
    )


class Kubelet:
    """Answers from `pods`; `failures` are aborted with first, by method, one a call."""

    def __init__(self, pods: Iterable[PodResources] = (), *, get: bool = True) -> None:
        self.pods = [*pods]
        self.get = get
        self.calls: list[str] = []
        self.allocatable: list[ContainerDevices] = []
        self.managed = EMPTY  # CPUs, by a CPU manager whose policy is static
        self.failures: dict[str, list[tuple[grpc.StatusCode, str]]] = {
            method: [] for method in ("Get", "List", "GetAllocatableResources")
        }
        self.open = asyncio.Event()  # while it is not set, calls get no answer
        self.open.set()
        self.called = asyncio.Event()

    async def Get(self, request: GetPodResourcesRequest, context: Context) -> Any:  # noqa: N802 - the API's
        await self._enter("Get", context)
        if not self.get:
            await context.abort(grpc.StatusCode.UNKNOWN, "some words about Get")
        name = request.pod_namespace, request.pod_name
        found = next((pod for pod in self.pods if (pod.namespace, pod.name) == name), None)
        if found is None:
            await context.abort(grpc.StatusCode.UNKNOWN, f"pod {request.pod_name} not found")
        return GetPodResourcesResponse(pod_resources=found)

    async def List(self, request: ListPodResourcesRequest, context: Context) -> Any:  # noqa: N802 - the API's
        del request
        pods = [*self.pods]
        await self._enter("List", context)
        return ListPodResourcesResponse(pod_resources=pods)

    async def GetAllocatableResources(self, request: Any, context: Context) -> Any:  # noqa: N802 - the API's
        del request
        await self._enter("GetAllocatableResources", context)
        return AllocatableResourcesResponse(devices=self.allocatable, cpu_ids=self.managed)

    async def _enter(self, method: str, context: Context) -> None:
        self.calls.append(method)
        self.called.set()
        await self.open.wait()
        if self.failures[method]:
            await context.abort(*self.failures[method].pop(0))


@asynccontextmanager
async def serving(kubelet: Any, path: Path) -> AsyncIterator[None]:
    server = grpc.aio.server(options=[("grpc.max_send_message_length", -1)])
    service = DESCRIPTOR.services_by_name["PodResourcesLister"]
    methods = {each.name: getattr(kubelet, each.name) for each in service.methods}
    server.add_generic_rpc_handlers([service_handler(service, methods)])
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)
