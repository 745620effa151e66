"""Machines, settings, pods and containers for tests of the engine and what is above it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec.structs import replace

from nri_policy.engine.engine import Engine
from nri_policy.engine.state.quota import NO_QUOTA
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware import synthetic
from nri_policy.hardware.discovery import discover
from nri_policy.hardware.machine import Cache, Distances, Machine, Package
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.settings import Settings, from_spec
from nri_policy.workload.pod import Container, ContainerState, Pod, Resources, shares_of

# 2 sockets of 2 NUMA nodes of 2 cores of 2 threads: node k has CPUs 4k..4k+3, siblings are adjacent
SMALL = "package:2 numa:2 core:2 pu:2"

_numbers = itertools.count(1)


@cache
def machine(spec: str = SMALL) -> Machine:
    """Return a synthetic machine."""
    with TemporaryDirectory() as folder:
        synthetic.write(spec, Path(folder))
        return discover(Path(folder))


@cache
def largest() -> Machine:
    """Return a machine of 4096 CPUs: 8 packages of 4 nodes of 16 L3 domains of 4 cores of 2.

    Node k has CPUs 128k..128k+127, domain d 8d..8d+7, siblings are adjacent. Made without files,
    which take seconds to write.
    """

    def parts(size: int) -> list[CPUSet]:
        return [CPUSet(range(low, low + size)) for low in range(0, 4096, size)]

    one = machine("package:1 core:1")
    return replace(
        one,
        online=CPUSet(range(4096)),
        possible=CPUSet(range(4096)),
        packages=tuple(Package(id=i, cpus=cpus) for i, cpus in enumerate(parts(512))),
        dies=(),
        cores=tuple(replace(one.cores[0], id=i, cpus=cpus) for i, cpus in enumerate(parts(2))),
        caches=tuple(Cache(level=3, type="unified", size=32 << 20, cpus=cpus) for cpus in parts(8)),
        nodes=tuple(
            replace(one.nodes[0], id=i, cpus=cpus, nearest=CPUSet([i]))
            for i, cpus in enumerate(parts(128))
        ),
        distances=Distances(
            nodes=tuple(range(32)),
            matrix=tuple(tuple(10 if i == j else 21 for j in range(32)) for i in range(32)),
        ),
        frequencies=(),
    )


def settings(**spec: Any) -> Settings:
    """Return settings of these fields, with 750m reserved and no preference for isolated CPUs."""
    defaults = {"reservedResources": {"cpu": "750m"}, "preferIsolatedCPUs": False}
    return from_spec({**defaults, **spec}, origin="test")


def engine(spec: str = SMALL) -> Engine:
    """Return an engine that holds nothing yet."""
    return Engine(machine(spec), settings())


def container(
    request: int,
    limit: int | None = None,
    *,
    qos: QoS | None = None,
    namespace: str = "default",
    pod: Pod | None = None,
    name: str = "c0",
    annotations: Mapping[str, str] | None = None,
) -> Container:
    """Return a container of a pod of its own, as the kubelet would make it.

    *request* and *limit* are milli-CPU. Without a limit it is Guaranteed, of class *qos* otherwise:
    Burstable, or BestEffort where nothing is requested.
    """
    number = next(_numbers)
    if qos is None:
        qos = QoS.GUARANTEED if limit is None else QoS.BURSTABLE
    if limit is None and qos is QoS.GUARANTEED:
        limit = request
    pod = pod or Pod(
        id=f"pod-{number:08}",  # ids are compared as text, and the numbers go on through all tests
        uid=f"uid-{number}",
        name=f"pod{number}",
        namespace=namespace,
        qos=qos,
        labels={},
        annotations=annotations or {},
    )
    return Container(
        id=f"ctr-{number:08}",
        pod=pod,
        name=name,
        state=ContainerState.CREATED,
        created=number,
        labels={},
        resources=resources(request, limit),
    )


def best_effort(**options: Any) -> Container:
    """Return a BestEffort container."""
    return container(0, qos=QoS.BEST_EFFORT, **options)


def resources(request: int, limit: int | None) -> Resources:
    """Return the cgroup settings that the kubelet makes of milli-CPU."""
    return Resources(
        cpu_shares=shares_of(request),
        cpu_quota=max(1000, 100 * limit) if limit else 0,
        cpu_period=100_000,
    )


def running(
    container: Container, cpus: CPUSet, mems: CPUSet, quota: int | None = None
) -> Container:
    """Return *container* as a runtime lists it that runs it on *cpus* and *mems*.

    With the CFS quota that the kubelet gave it, unless *quota* says that this was taken away.
    """
    resources = replace(container.resources, cpus=str(cpus), mems=str(mems))
    if quota == NO_QUOTA:
        resources = replace(resources, cpu_quota=NO_QUOTA)
    return replace(container, state=ContainerState.RUNNING, resources=resources)
