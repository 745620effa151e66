"""Devices: which resources of device plugins the kubelet has assigned to pods."""

from __future__ import annotations

from pathlib import Path

import grpc

from nri_policy.doctor.sockets import probe_socket
from nri_policy.proto.podresources_pb2 import ListPodResourcesRequest, ListPodResourcesResponse
from nri_policy.proto.podresources_pb2_grpc import PodResourcesListerStub
from nri_policy.workload.annotation_values import CLAIM

_PATIENCE = 2.0  # seconds


def assigned_resources(socket: Path) -> tuple[str, ...]:
    """Return the resources that some pod has devices of; empty where the kubelet does not say.

    Devices of claims (DRA) are named as hints are: `claim:DRIVER`.
    """
    if probe_socket(socket).problem:  # gRPC would try again and again
        return ()
    options = [("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(f"unix:{socket.resolve()}", options=options) as channel:
        stub = PodResourcesListerStub(channel)  # type: ignore[no-untyped-call]  # generated
        try:
            answer: ListPodResourcesResponse = stub.List(
                ListPodResourcesRequest(), timeout=_PATIENCE
            )
        except grpc.RpcError:
            return ()
    names = set()
    for pod in answer.pod_resources:
        for container in pod.containers:
            names |= {device.resource_name for device in container.devices}
            for claim in container.dynamic_resources:
                names |= {CLAIM + device.driver_name for device in claim.claim_resources}
    return tuple(sorted(names))
