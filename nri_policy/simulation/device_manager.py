"""The kubelet's device manager: the devices of a node, and the containers that have them.

Owns the choice of devices when a pod is admitted, what a container gets with them, and the
kubelet's answers over its PodResources API (nri.md §8). Device plugins, drivers of resource claims
(DRA), the scheduler and the API server are not modelled: scenarios set the devices and the
allocations.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import grpc
import msgspec

from nri_policy.foundation.grpc_services import service_handler
from nri_policy.foundation.units import parse_cpu
from nri_policy.hardware.synthetic_devices import MAJOR
from nri_policy.manifests.pod import PodManifest
from nri_policy.proto import nri_pb2 as nri
from nri_policy.proto import podresources_pb2 as pb
from nri_policy.workload.claim import DRIVER, ClaimPart, variable
from nri_policy.workload.hints import ClaimedDevice

_Context = grpc.aio.ServicerContext[Any, Any]


class AdmissionError(Exception):
    """A pod that the kubelet does not admit, for want of devices."""


class PluginDevice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device as a plugin advertises it."""

    id: str
    numa: int | None = None  # id of its NUMA node; None if unknown
    file: str = ""  # its device file, as a path in the container; empty for none

    def __post_init__(self) -> None:
        if self.numa is not None and self.numa < 0:
            raise ValueError(f"numa: {self.numa} is not a NUMA node")
        if self.file and not self.file.startswith("/"):
            raise ValueError(f"file: {self.file!r} is not a path that begins with /")


class DriverDevice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device that a claim was allocated, as its driver publishes it."""

    driver: str
    device: str
    numa: Annotated[int, msgspec.Meta(ge=0)] | None = None  # None: not published by the driver
    cpu: int | float | str = ""  # CPUs of a device of our driver, as in 2500m; else empty

    def __post_init__(self) -> None:
        if (self.driver == DRIVER) != bool(self.cpu):
            raise ValueError(f"cpu: devices of {DRIVER} have CPUs, and no others")
        if self.cpu:
            parse_cpu(self.cpu)


def number_devices(nodes: Mapping[str, Sequence[int]]) -> dict[str, list[PluginDevice]]:
    """Return a device, such as `gpu0`, on each of these NUMA nodes, by resource."""
    return {
        resource: [
            PluginDevice(id=f"{resource.partition('/')[2]}{number}", numa=node)
            for number, node in enumerate(each)
        ]
        for resource, each in nodes.items()
    }


Requests = Mapping[str, Sequence[DriverDevice]]  # the devices of a claim, by request

_Given = list[tuple[str, PluginDevice]]  # resource, device


class DeviceManager:
    """The devices of one node."""

    def __init__(self) -> None:
        self._devices: Mapping[str, Sequence[PluginDevice]] = {}
        self.numa_nodes: dict[int, int | None] = {}  # by the minor numbers of the devices' files
        self._given: dict[str, tuple[PodManifest, dict[str, _Given]]] = {}  # by uid; by container
        self._minors: dict[tuple[str, str], int] = {}  # of device files, by resource and id
        self._claims: Mapping[str, Requests] = {}  # by name

    def advertise(self, devices: Mapping[str, Sequence[PluginDevice]]) -> None:
        """Take all devices that the node has from now on, by resource.

        A container keeps a device that is gone.
        """
        self._devices = devices
        self.numa_nodes = {
            self._minor(resource, device): device.numa
            for resource, group in devices.items()
            for device in group
        }

    def allocate(self, claims: Mapping[str, Requests]) -> None:
        """Take all claims that are allocated from now on, by name."""
        self._claims = claims

    def claimed(self, uid: str, container: str) -> tuple[ClaimedDevice, ...]:
        """Return the devices that a container of an admitted pod has by its pod's claims."""
        if uid not in self._given:
            return ()
        pod, _ = self._given[uid]
        names = {each.name: pod.claim_name(each) for each in pod.spec.resource_claims}
        found = [
            ClaimedDevice(
                claim=names[use.name],
                driver=each.driver,
                name=each.device,
                node=each.numa,
                address="",
                root="",
            )
            for use in pod.container(container).resources.claims
            for request, devices in self._claims.get(names[use.name], {}).items()
            if use.request in {"", request, request.partition("/")[0]}
            for each in devices
            if each.driver != DRIVER  # ours are no hints
        ]
        return (*dict.fromkeys(found),)

    def parts(self, pod: PodManifest) -> Iterator[ClaimPart]:
        """Yield what a pod's claims were allocated of our own devices; no pool is known yet."""
        for each in pod.spec.resource_claims:
            name = pod.claim_name(each)
            allocated = self._claims.get(name, {})
            every = (one for devices in allocated.values() for one in devices)
            others = (f"{one.driver} {one.device}" for one in every if one.driver != DRIVER)
            beside = tuple(dict.fromkeys(others))
            for request, devices in allocated.items():
                for device in devices:
                    if device.driver == DRIVER:
                        yield ClaimPart(
                            claim=f"{pod.metadata.namespace}.{name}",
                            namespace=pod.metadata.namespace,
                            name=name,
                            request=request,
                            device=device.device,
                            pool="",
                            milli=parse_cpu(device.cpu),
                            pods=(pod.metadata.uid,),
                            beside=beside,
                        )

    def variables(self, uid: str, container: str) -> Iterator[str]:
        """Yield the variables that show which claims of our own devices a container uses."""
        pod, _ = self._given[uid]
        names = {each.name: pod.claim_name(each) for each in pod.spec.resource_claims}
        parts = [*self.parts(pod)]
        for use in pod.container(container).resources.claims:
            for part in parts:
                named = use.request in {"", part.request, part.request.partition("/")[0]}
                if part.name == names[use.name] and named:
                    yield f"{variable(part)}={part.device}"

    def admit(self, pod: PodManifest) -> None:
        """Give the containers of *pod*, which has its uid, their devices; raises AdmissionError."""
        for each in pod.spec.resource_claims:
            if (name := pod.claim_name(each)) not in self._claims:
                raise AdmissionError(f"pod {pod.key}: the claim {name} is not allocated")
        taken = self._allocations()
        given: dict[str, _Given] = {}
        spare: _Given = []  # of init containers: they have ended when the others start
        for container in pod.spec.every_container:
            own = given[container.name] = []
            for resource, count in container.resources.limits.items():
                if "/" not in resource:
                    continue
                free = [each for each in spare if each[0] == resource] + [
                    (resource, device)
                    for device in self._devices.get(resource, ())
                    if (resource, device.id) not in taken
                ]
                if len(free) < count:
                    raise AdmissionError(
                        f"pod {pod.key}: container {container.name} asks for {count} {resource}, "
                        f"{len(free)} of {len(self._devices.get(resource, ()))} are free"
                    )
                own += free[:count]
                taken |= {(name, device.id) for name, device in free[:count]}
            if pod.runs_to_end(container.name):
                spare += [each for each in own if each not in spare]
            else:
                spare = [each for each in spare if each not in own]
        self._given[pod.metadata.uid] = pod, given

    def unused(self) -> dict[str, int]:
        """Return how many devices of each resource no pod was given."""
        taken = self._allocations()
        return {
            resource: sum((resource, each.id) not in taken for each in group)
            for resource, group in self._devices.items()
        }

    def forget(self, uid: str) -> None:
        """Take back what the pod of that uid was given."""
        self._given.pop(uid, None)

    def files(self, uid: str, container: str) -> Iterator[nri.LinuxDevice]:
        """Yield the device files that a container gets."""
        _, given = self._given[uid]
        for resource, device in given[container]:
            if device.file:
                minor = self._minor(resource, device)
                yield nri.LinuxDevice(path=device.file, type="c", major=MAJOR, minor=minor)

    def pod_resources(self) -> list[pb.PodResources]:
        """Return the PodResources API's answer about all pods: an entry for each device.

        Without init containers that end, as in the kubelet.
        """
        return [
            pb.PodResources(
                name=pod.metadata.name,
                namespace=pod.metadata.namespace,
                containers=[
                    pb.ContainerResources(name=name, devices=map(_entry, own))
                    for name, own in given.items()
                    if not pod.runs_to_end(name)
                ],
            )
            for pod, given in self._given.values()
        ]

    def _allocations(self) -> set[tuple[str, str]]:
        return {
            (resource, device.id)
            for _, containers in self._given.values()
            for given in containers.values()
            for resource, device in given
        }

    def _minor(self, resource: str, device: PluginDevice) -> int:
        return self._minors.setdefault((resource, device.id), len(self._minors))


def _entry(given: tuple[str, PluginDevice]) -> pb.ContainerDevices:
    resource, device = given
    topology = None
    if device.numa is not None:
        topology = pb.TopologyInfo(nodes=[pb.NUMANode(ID=device.numa)])
    return pb.ContainerDevices(resource_name=resource, device_ids=[device.id], topology=topology)


@asynccontextmanager
async def answering(manager: DeviceManager, socket: Path) -> AsyncIterator[None]:
    """Serve at *socket* the methods of the PodResources API that are called here."""

    async def list_pods(
        _request: pb.ListPodResourcesRequest, _context: _Context
    ) -> pb.ListPodResourcesResponse:
        return pb.ListPodResourcesResponse(pod_resources=manager.pod_resources())

    async def get_pod(
        request: pb.GetPodResourcesRequest, context: _Context
    ) -> pb.GetPodResourcesResponse:
        pods = {(pod.namespace, pod.name): pod for pod in manager.pod_resources()}
        found = pods.get((request.pod_namespace, request.pod_name))
        if found is None:
            await context.abort(grpc.StatusCode.UNKNOWN, f"pod {request.pod_name} not found")
        return pb.GetPodResourcesResponse(pod_resources=found)

    server = grpc.aio.server()
    service = pb.DESCRIPTOR.services_by_name["PodResourcesLister"]
    server.add_generic_rpc_handlers([service_handler(service, {"List": list_pods, "Get": get_pod})])
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)
