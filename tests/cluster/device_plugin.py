"""A device plugin for a real kubelet: devices that are no more than an id and a NUMA node."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from tests.support.patience import HANGS

#: Messages and stubs of device_plugin.proto, made by grpcio-tools on import, without static types.
messages: Any
services: Any
messages, services = grpc.protos_and_services("tests/cluster/device_plugin.proto")


class DevicePlugin:
    """Serves the devices of one resource; `assigned` are those that the kubelet gave containers."""

    def __init__(self, devices: Mapping[str, int]) -> None:
        """Have *devices* on NUMA nodes."""
        self.assigned: list[tuple[str, ...]] = []
        self._devices = devices
        self._ended = threading.Event()

    def GetDevicePluginOptions(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's
        """Want nothing special."""
        del request, context
        return messages.DevicePluginOptions()

    def ListAndWatch(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        """List the devices once: they stay what they are."""
        del request, context
        yield messages.ListAndWatchResponse(
            devices=[
                messages.Device(
                    ID=name,
                    health="Healthy",
                    topology=messages.TopologyInfo(nodes=[messages.NUMANode(ID=node)]),
                )
                for name, node in self._devices.items()
            ]
        )
        self._ended.wait()

    def Allocate(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Take note of who gets what."""
        del context
        self.assigned += [tuple(each.devices_ids) for each in request.container_requests]
        answers = [messages.ContainerAllocateResponse() for _ in request.container_requests]
        return messages.AllocateResponse(container_responses=answers)

    @contextmanager
    def serving(self, folder: Path, resource: str) -> Iterator[None]:
        """Serve in the kubelet's *folder* for plugins, and register with the kubelet."""
        server = grpc.server(ThreadPoolExecutor(max_workers=4))
        services.add_DevicePluginServicer_to_server(self, server)
        endpoint = "test.sock"
        server.add_insecure_port(f"unix:{folder / endpoint}")
        server.start()
        try:
            with grpc.insecure_channel(f"unix:{folder / 'kubelet.sock'}") as channel:
                registration = messages.RegisterRequest(
                    version="v1beta1", endpoint=endpoint, resource_name=resource
                )
                services.RegistrationStub(channel).Register(registration, timeout=HANGS)
            yield
        finally:
            self._ended.set()
            server.stop(None).wait()
