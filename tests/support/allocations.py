"""Random nodes, the devices that they publish for claims, and allocations of these.

A `Case` is small enough to be kept as a line of text. It lists the ordinary containers that came to
the node before, by milli-CPU: exclusive if positive, shared if negative, 0 without a request; `x2`
ends the container at index 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import yaml
from msgspec.structs import replace

from nri_policy.dra.allocation import read_allocation
from nri_policy.dra.cpu_devices import devices_of, published
from nri_policy.dra.resource_slice import CPU, NUMA_NODE, slice_of
from nri_policy.engine.event import Created, Prepared, Stopped
from nri_policy.foundation.refusal import Refused
from nri_policy.node import view_of
from nri_policy.workload.pod import Container
from tests.support import bookkeeping, nodes
from tests.support.claims import part
from tests.support.engine_driver import EngineDriver
from tests.support.manifests import MANIFESTS

MACHINES = (
    nodes.SMALL,
    "package:2 numa:1 core:4 pu:1",
    "package:1 numa:2 l3:2 core:4 pu:1",
    "package:2 numa:2 core:4 pu:2",
)
CORES = ("off", "require")  # `fullCores`
NODE = "node-a"
#: What the scheduler's allocator has allocated, a case a line; tests/cluster/test_dra_allocator.py.
RECORDED = Path(__file__).parents[1] / "unit" / "dra" / "allocations.txt"
GPU = "gpu.example.com"
_CLASS = yaml.safe_load((MANIFESTS.parent / "kustomize/dra/device-class.yaml").read_text())
_GPUS = {
    "metadata": {"name": GPU},
    "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{GPU}'"}}]},
}
_AMOUNTS = ("250m", "500m", "1", "1500m", "2", "2500m", "3", "4", "7")
_ORDINARY = (500, 1000, 2000, 3000, 2500, -100, -500, -1000, -1500, -3000, 0)

Object = dict[str, Any]
Allocated = tuple[tuple[int, int], ...]  # of one claim: devices by index, with milli-CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A node, the devices that it publishes, and their allocations."""

    machine: int
    cores: int
    ordinary: tuple[str, ...]
    values: tuple[int, ...] = ()  # CPUs of each device
    claims: tuple[Allocated, ...] = ()

    def __str__(self) -> str:
        claims = ";".join(
            ",".join(f"{device}:{milli}" for device, milli in claim) for claim in self.claims
        )
        values = " ".join(map(str, self.values))
        return f"{self.machine} {self.cores}|{' '.join(self.ordinary)}|{values}|{claims}"


def parse_case(line: str) -> Case:
    """Return the case that a line of text says."""
    shape, ordinary, values, claims = line.split("|")
    machine, cores = map(int, shape.split())
    return Case(
        machine=machine,
        cores=cores,
        ordinary=tuple(ordinary.split()),
        values=tuple(map(int, values.split())),
        claims=tuple(
            tuple(_share(each) for each in claim.split(",")) for claim in claims.split(";") if claim
        ),
    )


def _share(text: str) -> tuple[int, int]:
    device, milli = text.split(":")
    return int(device), int(milli)


def node_of(case: Case) -> EngineDriver:
    """Return a node with the ordinary containers of a case; one without room is not there.

    No container moves for a claim, so the published CPUs are free.
    """
    driver = EngineDriver(
        MACHINES[case.machine], fullCores=CORES[case.cores], dra={"makeRoom": "none"}
    )
    made: dict[int, Container] = {}
    for at, each in enumerate(case.ordinary):
        if each.startswith("x"):
            if ended := made.pop(int(each[1:]), None):
                driver.handle(Stopped(container_id=ended.id))
            continue
        container = _ordinary(int(each))
        with suppress(Refused):
            driver.handle(Created(container=container))
            made[at] = container
    return driver


def _ordinary(milli: int) -> Container:
    if milli < 0:
        return nodes.container(-milli, -2 * milli)
    return nodes.container(milli) if milli else nodes.best_effort()


def values_of(driver: EngineDriver) -> tuple[int, ...]:
    """Return what a node publishes, in CPUs of each device."""
    return tuple(each.cpus for each in published(view_of(driver.engine), {}))


def grant(driver: EngineDriver, claims: Sequence[Allocated], random: Random) -> None:
    """Have all claims granted, in any order; a refusal is raised."""
    pools, devices = driver.engine.layout.tree.pools, devices_of(driver.engine.layout)
    for number in random.sample(range(len(claims)), len(claims)):
        parts = (
            replace(
                part(milli, devices[at].node, claim=f"c{number}", request=f"r{index}"),
                pool=pools[devices[at].pool].name,
            )
            for index, (at, milli) in enumerate(claims[number])
        )
        driver.handle(Prepared(parts=tuple(parts)))
        bookkeeping.check(driver.engine, driver.runtime)


# ---- what the scheduler is asked


def draw_case(random: Random) -> Case:
    """Return a node with random ordinary containers, of which nothing is allocated yet."""
    ordinary: list[str] = []
    alive: list[int] = []
    for at in range(random.randrange(9)):
        if alive and random.random() < 0.3:
            ordinary.append(f"x{alive.pop(random.randrange(len(alive)))}")
        else:
            ordinary.append(str(random.choice(_ORDINARY)))
            alive.append(at)
    return Case(
        machine=random.randrange(len(MACHINES)),
        cores=random.randrange(len(CORES)),
        ordinary=tuple(ordinary),
    )


def cluster_of(driver: EngineDriver, random: Random) -> Object:
    """Return a cluster of that node, with some GPUs, where random claims are to be allocated."""
    view = view_of(driver.engine)
    own = slice_of(view.layout, published(view, {}), NODE, {})
    gpus = [
        {"name": f"gpu{at}", "attributes": {NUMA_NODE: {"int": random.randrange(4)}}}
        for at in range(random.randrange(1, 4))
    ]
    pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    theirs = {"driver": GPU, "nodeName": NODE, "pool": pool, "devices": gpus}
    return {
        "classes": [_CLASS, _GPUS],
        "slices": [own, {"metadata": {"name": "gpus"}, "spec": theirs}],
        "claims": [
            {
                "metadata": {"name": f"c{at}", "namespace": "default", "uid": f"c{at}"},
                "spec": {"devices": _devices(random)},
            }
            for at in range(random.randrange(1, 9))
        ],
    }


def allocated_of(driver: EngineDriver, claim: Object, allocation: Object) -> Allocated:
    """Return our devices in an allocation of the scheduler, as the driver reads it."""
    reserved = [{"resource": "pods", "name": "web", "uid": "web"}]
    status = {"allocation": allocation, "reservedFor": reserved}
    layout = driver.engine.layout
    parts = read_allocation({**claim, "status": status}, claim["metadata"]["uid"], NODE, layout)
    names = [each.name for each in devices_of(layout)]
    return tuple((names.index(each.device), each.milli) for each in parts)


def _devices(random: Random) -> Object:
    """Return what a claim asks for."""
    requests = [_request(random, name) for name in "abc"[: random.randrange(1, 4)]]
    names = [each["name"] for each in requests]
    constraints: list[Object] = []
    if random.random() < 0.3:
        constraints.append({"matchAttribute": NUMA_NODE})
    elif random.random() < 0.3:
        constraints.append({"distinctAttribute": NUMA_NODE, "requests": names})
    if random.random() < 0.3:
        requests.append({"name": "gpu", "exactly": _of_class(GPU)})
    return {"requests": requests, "constraints": constraints}


def _request(random: Random, name: str) -> Object:
    if random.random() < 0.2:
        wanted = [{"name": each, **_exactly(random)} for each in ("first", "second")]
        return {"name": name, "firstAvailable": wanted}
    return {"name": name, "exactly": _exactly(random)}


def _exactly(random: Random) -> Object:
    exactly = _of_class(_CLASS["metadata"]["name"], 2 if random.random() < 0.1 else 1)
    if random.random() < 0.9:
        exactly["capacity"] = {"requests": {CPU: random.choice(_AMOUNTS)}}
    if random.random() < 0.3:
        domain, _, key = NUMA_NODE.partition("/")
        expression = f"device.attributes['{domain}'].{key} == {random.randrange(4)}"
        exactly["selectors"] = [{"cel": {"expression": expression}}]
    return exactly


def _of_class(name: str, count: int = 1) -> Object:
    """Return a request as the API server completes it."""
    return {"deviceClassName": name, "allocationMode": "ExactCount", "count": count}
