"""The kubelet's PodResources API: which devices pods have, and whether its CPU manager is on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

import grpc

from nri_policy.doctor.sockets import probe_socket
from nri_policy.foundation.grpc_services import service_stub
from nri_policy.kubelet.pod_resources import manages_cpus
from nri_policy.proto.podresources_pb2 import (
    DESCRIPTOR,
    AllocatableResourcesRequest,
    ListPodResourcesRequest,
    ListPodResourcesResponse,
)
from nri_policy.workload.annotation_values import CLAIM

_PATIENCE = 2.0  # seconds

_Answer = TypeVar("_Answer")


def has_cpu_manager(socket: Path) -> bool:
    """Return whether the kubelet says that its CPU manager gives CPUs to containers."""
    return _ask(socket, _manages_cpus, False)


def assigned_resources(socket: Path) -> tuple[str, ...]:
    """Return the resources that some pod has devices of; empty where the kubelet does not say.

    Devices of claims (DRA) are named as hints are: `claim:DRIVER`.
    """
    return _ask(socket, _assigned_resources, ())


def _ask(
    socket: Path, question: Callable[[SimpleNamespace], _Answer], otherwise: _Answer
) -> _Answer:
    if probe_socket(socket).problem:  # gRPC would try again and again
        return otherwise
    options = [("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(f"unix:{socket.resolve()}", options=options) as channel:
        stub = service_stub(channel, DESCRIPTOR.services_by_name["PodResourcesLister"])
        try:
            return question(stub)
        except grpc.RpcError:
            return otherwise


def _manages_cpus(stub: SimpleNamespace) -> bool:
    request = AllocatableResourcesRequest()
    return manages_cpus(stub.GetAllocatableResources(request, timeout=_PATIENCE))


def _assigned_resources(stub: SimpleNamespace) -> tuple[str, ...]:
    answer: ListPodResourcesResponse = stub.List(ListPodResourcesRequest(), timeout=_PATIENCE)
    names = set()
    for pod in answer.pod_resources:
        for container in pod.containers:
            names |= {device.resource_name for device in container.devices}
            for claim in container.dynamic_resources:
                names |= {CLAIM + device.driver_name for device in claim.claim_resources}
    return tuple(sorted(names))
