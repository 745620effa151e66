"""What a pod asks of NUMA zones, by cluster.md §8: its QoS class, and a step for each container.

Without `strict` it is what kube-scheduler's NodeResourceTopologyMatch counts: a sidecar is an init
container like any other, and what the pod itself requests does not count. With it, sidecars hold
what they have beside the containers after them, and the pod's own requests count.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.cluster.objects.document import CPU, Amounts
from nri_policy.cluster.objects.pod import PodSpec
from nri_policy.cluster.zones.numa_node import ResourceNumbers, policy_of
from nri_policy.cluster.zones.zone import NodeZones
from nri_policy.foundation.units import BILLIONTHS
from nri_policy.native._numa_fit import CONTAINER, INIT, POD, SIDECAR
from nri_policy.native._numa_request import Request

MEMORY = "memory"
GUARANTEED, BURSTABLE, BEST_EFFORT = "Guaranteed", "Burstable", "BestEffort"

# Kinds of resources, as in the native kernel.
_SHARED, _HOST, _ALWAYS = 1, 2, 4
ON_EVERY_NODE = (CPU, MEMORY, "pods", "ephemeral-storage")


class RequestStep(Struct, frozen=True):
    """What the pod in all or one container asks.

    *stays* says that it holds it while the next ones start.
    """

    verdict: int
    stays: bool
    amounts: tuple[tuple[str, int], ...]  # resource and billionths


class NumaRequest(Struct, frozen=True):
    """What a pod asks of NUMA zones; equal ones fit alike, so that it is a key."""

    qos: str
    native: bool  # whether it asks for native resources only
    steps: tuple[RequestStep, ...]  # the pod in all, init containers, app containers

    @property
    def aligned(self) -> bool:
        """Whether zones matter to it: beside Guaranteed pods only to those that ask for devices."""
        return self.qos == GUARANTEED or not self.native

    def aligned_steps(self, report: NodeZones) -> tuple[RequestStep, ...]:
        """Return what has to fit into one zone of a node: the pod in all, or each container."""
        return self.steps[:1] if policy_of(report)[1] == "pod" else self.steps[1:]

    def own(self, step: RequestStep) -> Amounts:
        """Return what a step has of a zone to itself."""
        return {
            name: amount
            for name, amount in step.amounts
            if amount and (self.qos == GUARANTEED or not is_shared(name))
        }

    def compile(self, resources: ResourceNumbers, weights: Mapping[str, int]) -> Request:
        """Return arrays for the kernel; weights below 1, and missing weights, count as 1."""
        names = sorted({name for step in self.steps for name, _ in step.amounts})
        column = {name: number for number, name in enumerate(names)}
        return Request(
            guaranteed=self.qos == GUARANTEED,
            best_effort=self.qos == BEST_EFFORT and self.native,
            resources=[
                (resources.find(name), _kind(name), max(weights.get(name, 1), 1)) for name in names
            ],
            steps=[
                (step.verdict, step.stays, {column[name]: amount for name, amount in step.amounts})
                for step in self.steps
            ],
        )


def make_numa_request(spec: PodSpec, *, strict: bool) -> NumaRequest:
    """Return what a pod of *spec* asks."""
    containers = [
        RequestStep(
            SIDECAR if each.sidecar else INIT, strict and each.sidecar, _exact(each.requests)
        )
        for each in spec.init_containers
    ] + [RequestStep(CONTAINER, True, _exact(each.requests)) for each in spec.containers]
    whole = RequestStep(
        POD, False, _exact(spec.effective() if strict else _upstream_effective(spec))
    )
    return NumaRequest(
        qos=qos_class(spec),
        native=not any(_foreign(name) for step in containers for name, _ in step.amounts),
        steps=(whole, *containers),
    )


def qos_class(spec: PodSpec) -> str:
    """Return the QoS class, as Kubernetes computes it."""
    if spec.requests or spec.limits:
        counted = [(replace(spec, overhead={}).effective(), spec.limits)]
    else:
        every = (*spec.init_containers, *spec.containers)
        counted = [(each.requests, each.limits) for each in every]
    requests = _totals([one for one, _ in counted])
    limits = _totals([one for _, one in counted])
    if not requests and not limits:
        return BEST_EFFORT
    limited = all(each.get(name) for _, each in counted for name in (CPU, MEMORY))
    return GUARANTEED if limited and requests == limits else BURSTABLE


def _totals(amounts: list[Amounts]) -> Amounts:
    """Return the sums of CPU and memory, of those that are asked."""
    sums = {name: sum(each.get(name, 0) for each in amounts) for name in (CPU, MEMORY)}
    return {name: amount for name, amount in sums.items() if amount}


def _upstream_effective(spec: PodSpec) -> Amounts:
    total: Amounts = {}
    for each in spec.containers:
        for name, amount in each.requests.items():
            total[name] = total.get(name, 0) + amount
    for each in spec.init_containers:
        for name, amount in each.requests.items():
            total[name] = max(total.get(name, 0), amount)
    for name, amount in spec.overhead.items():
        total[name] = total.get(name, 0) + amount
    return total


def _exact(amounts: Amounts) -> tuple[tuple[str, int], ...]:
    return tuple(
        (name, amount * (BILLIONTHS // 1000 if name == CPU else BILLIONTHS))
        for name, amount in sorted(amounts.items())
    )


def _foreign(name: str) -> bool:
    """Whether a resource is not Kubernetes' own: a device plugin's, or an extended one."""
    return "/" in name and "kubernetes.io/" not in name


def is_shared(name: str) -> bool:
    """Whether only Guaranteed pods have a resource of a zone to themselves."""
    return name in (CPU, MEMORY) or name.startswith("hugepages-")


def is_of_host(name: str) -> bool:
    """Whether a resource that no zone lists is one of the node as a whole."""
    return name in ("ephemeral-storage", "storage") or _foreign(name)


def _kind(name: str) -> int:
    kind = _SHARED if is_shared(name) else 0
    if is_of_host(name):
        kind |= _HOST
    return kind | (_ALWAYS if name in ON_EVERY_NODE else 0)
