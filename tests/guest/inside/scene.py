"""Pods on the guest's own hardware, and the daemon that placed them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from nri_policy.control.client import ControlClient, UnreachableError, connected
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.manifests.resources import ResourceRequirements
from nri_policy.report import AuditReport, ContainerReport, Containers, ExplanationReport
from nri_policy.workload.request import Sort
from tests.e2e.daemon import Daemon
from tests.e2e.kubelet import Container, Kubelet
from tests.e2e.runtime import Runtime
from tests.e2e.waiting import eventually
from tests.guest.inside import kernel
from tests.guest.inside.kernel import Effective

T = TypeVar("T")

SETTINGS = {"reservedResources": {"cpu": "cpuset:0"}}
AFFINITY = """\
main:
- scope: {{key: namespace, operator: Equals, values: [default]}}
  match: {{key: pod/name, operator: Equals, values: [{pod}]}}
"""


def near(pod: str) -> dict[str, str]:
    """Return annotations of a pod whose container `main` is to run near those of another pod."""
    return {"resource-policy.nri.io/affinity": AFFINITY.format(pod=pod)}


def ask(daemon: Daemon, question: Callable[[ControlClient], T]) -> T:
    """Return what the daemon answers; one that has no CPU time to answer is asked again."""

    def attempt() -> tuple[T] | UnreachableError:
        try:
            with connected(daemon.control) as client:
                return (question(client),)
        except UnreachableError as error:
            return error

    answer = eventually(attempt, lambda found: isinstance(found, tuple), every=0.5)
    if isinstance(answer, UnreachableError):
        raise answer
    return answer[0]


@contextmanager
def pods(runtime: Runtime) -> Iterator[Kubelet]:
    """Yield who runs pods, which go at the end."""
    kubelet = runtime.kubelet("runc", seconds=600)
    try:
        yield kubelet
    finally:
        kubelet.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What runs in a test."""

    kubelet: Kubelet
    daemon: Daemon

    def run(self, name: str, resources: ResourceRequirements, **pod: Any) -> Container:
        """Run a pod whose container `main` asks for *resources*."""
        return kernel.run(self.kubelet, name, resources, **pod)

    def run_all(
        self,
        pod: str,
        asked: Mapping[str, ResourceRequirements],
        annotations: Mapping[str, str] | None = None,
        *,
        touching: int = 0,
    ) -> list[Container]:
        """Run one pod of several containers; each touches so many megabytes."""
        running = self.kubelet.run_pod(pod, asked, annotations=annotations)
        command = {"command": kernel.touching(touching)} if touching else {}
        return [kernel.start(running, name, **command) for name in asked]

    def containers(self) -> Iterator[Container]:
        """Yield all that were created and not removed."""
        for pod in self.kubelet.pods:
            yield from pod.created

    def effective(self) -> dict[str, Effective]:
        """Return what the kernel gives each container now, by namespace/pod/name."""
        return {full_name(each): kernel.effective(each) for each in self.containers()}

    def settle(self) -> dict[str, Effective]:
        """Return what the kernel gives each, once that is what the policy says; assert it is so.

        That is: CPUs, memory nodes and weights are as decided, no container runs on exclusive CPUs
        of another, pages are on allowed nodes, and an audit finds nothing. A second look may find
        a difference again: systemd may carry out an older request only after the first.
        """
        # not more often: looking takes CPU time that the slow emulated machine needs for the change
        # by both at once: systemd may still set what it was asked for before a newer write
        found, here = eventually(self._observe, lambda seen: not seen[0], every=0.5)
        assert not found, found
        return here

    def _observe(self) -> tuple[list[str], dict[str, Effective]]:
        """Return what is not as the policy says, else what an audit finds, and what each has."""
        decided, here = self.holdings(), self.effective()
        if differences := [*self._differences(decided, here)]:
            return differences, here
        audit = self.audit()
        found = [str(each) for each in (*audit.unseen, *audit.threads_hidden, *audit.drifts)]
        return found, here

    def _differences(self, decided: Containers, here: Mapping[str, Effective]) -> Iterator[str]:
        for container in self.containers():
            name = full_name(container)
            yield from _differences(container, decided[name], here[name])
            own = decided[name].exclusive or EMPTY
            for other, its in here.items():
                if other != name and not own.isdisjoint(CPUSet.parse(its.cpus)):
                    yield f"{other} runs on {its.cpus}, of which {own} are {name}'s own"

    def holdings(self) -> Containers:
        """Return what the policy says of all containers, by namespace/pod/name."""
        return ask(self.daemon, lambda client: client.containers())

    def audit(self) -> AuditReport:
        """Return what an audit finds."""
        return ask(self.daemon, lambda client: client.audit())

    def explain(self, name: str) -> ExplanationReport:
        """Return what the daemon says of why a container is where it is."""
        found = ask(self.daemon, lambda client: client.explain(name))
        assert isinstance(found, ExplanationReport), "it is the name of a container"
        return found

    def pool_of(self, name: str) -> CPUSet:
        """Return the CPUs of the pool that a container is on."""
        pool = self.holdings()[name].pool
        pools = ask(self.daemon, lambda client: client.pools())
        (cpus,) = (each.cpus for each in pools if each.name == pool)
        return cpus

    def await_machine(self) -> None:
        """Wait until the policy knows which CPUs are on."""

        def known() -> CPUSet:
            return ask(self.daemon, lambda client: client.status().online_cpus)

        online = kernel.online_cpus()
        assert eventually(known, lambda now: now == online, every=0.5) == online


def _differences(container: Container, decided: ContainerReport, here: Effective) -> Iterator[str]:
    """Yield how the kernel's view of a container differs from the policy's."""
    name = full_name(container)
    if here != Effective(cpus=str(decided.cpus), mems=str(decided.mems)):
        yield f"{name} has {here}, decided is {decided}"
    if decided.sort is not Sort.PRESERVE:
        weight = kernel.weight_of(decided.shares or 0)
        if kernel.weight(container) != weight:
            yield f"{name} has weight {kernel.weight(container)}, not {weight}"
    astray = CPUSet(kernel.anonymous(container)) - CPUSet.parse(here.mems)
    if astray:
        yield f"{name} has pages on {astray}, outside of {here.mems}"


def full_name(container: Container) -> str:
    """Return the container's name as the policy says it."""
    return f"{container.pod.namespace}/{container.pod.name}/{container.name}"
