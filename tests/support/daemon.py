"""A daemon with an embedded runtime and its control socket, all in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nri_policy.audit.cgroup import ContainerCgroups
from nri_policy.daemon.claim_driver import no_cpu_manager
from nri_policy.daemon.daemon import Daemon, Environment
from nri_policy.daemon.tuner_link import Ask, no_tuner
from nri_policy.delivery.inputs import PhaseChanged
from nri_policy.delivery.record import Phase
from nri_policy.foundation.clock import SYSTEM_CLOCK, Clock
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.machine import Machine
from nri_policy.kube.client import Client
from nri_policy.kube.events import ClusterEvent
from nri_policy.kubelet.runtime_requests import Kubelet
from nri_policy.manifests.pod import PodManifest
from nri_policy.plugin.sources import Sources
from nri_policy.settings import ReloadResult, Settings
from nri_policy.simulation.adaptation import Timeouts
from nri_policy.simulation.containers import CRIError
from nri_policy.simulation.embedded import EmbeddedRuntime
from tests.support import nodes
from tests.support.patience import HANGS

PATIENT = Timeouts(registration=HANGS, request=HANGS)


def make_runtime(
    machine: Machine,
    folder: Path,
    *,
    name: str = "containerd",
    version: str = "2.1.9",
    cgroup_driver: Literal["systemd", "cgroupfs"] = "systemd",
    timeouts: Timeouts = PATIENT,
) -> EmbeddedRuntime:
    """Return a runtime of *machine*, to enter, with its socket in *folder*.

    By default it waits longer for an answer than a real one, as tests may run on a busy machine.
    """
    return EmbeddedRuntime(
        folder / "nri.sock",
        online_cpus=machine.online,
        memory_nodes=CPUSet(node.id for node in machine.nodes),
        name=name,
        version=version,
        kubelet=Kubelet(memory_capacity=machine.memory, cgroup_driver=cgroup_driver),
        timeouts=timeouts,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a test can lay hands on."""

    daemon: Daemon
    runtime: EmbeddedRuntime
    socket: Path

    async def start(self, *pods: Mapping[str, Any] | PodManifest) -> list[str]:
        """Start *pods*; return the errors."""
        errors = []
        for each in pods:
            try:
                await self.runtime.start_pod(each)
            except CRIError as error:
                errors.append(str(error))
        return errors


@asynccontextmanager
async def served(
    folder: Path,
    machine: str = nodes.SMALL,
    *,
    listening: bool = True,
    load: Callable[[], Settings] | None = None,
    report: Callable[[ReloadResult], None] = lambda _: None,
    name: str = "containerd",
    version: str = "2.1.9",
    sources: Sources | None = None,
    clock: Clock = SYSTEM_CLOCK,
    before: Sequence[Mapping[str, Any]] = (),
    meanwhile: Callable[[EmbeddedRuntime], Awaitable[None]] | None = None,
    cgroups: Callable[[EmbeddedRuntime], ContainerCgroups] | None = None,
    timeouts: Timeouts = PATIENT,
    record: Callable[[ClusterEvent], None] = lambda _: None,
    client: Client | None = None,
    manages_cpus: Callable[[], Awaitable[bool | None]] = no_cpu_manager,
    ask_tuner: Ask = no_tuner,
    **spec: Any,
) -> AsyncIterator[Served]:
    """Yield a daemon that is synchronized with its runtime, one of *name* and *version*.

    *folder* is the root of its host. The pods *before* have been running for long when it comes;
    *meanwhile* is what happened to them.
    """
    hardware = nodes.machine(machine)
    runtime = make_runtime(hardware, folder, name=name, version=version, timeouts=timeouts)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(runtime)
        for each in before:
            await runtime.start_pod(each)
        if meanwhile is not None:
            await meanwhile(runtime)
        # the embedded runtime needs no rest between two plugins
        host = Environment(
            state_dir=folder,
            root=folder,
            cgroups=None if cgroups is None else cgroups(runtime),
            load=load,
            report=report,
            record=record,
            sources=sources or Sources(),
            clock=clock,
            delay=lambda _: 0.0,
            client=client,
            node_name="node-a",
            kubelet_dir=folder,
            manages_cpus=manages_cpus,
            ask_tuner=ask_tuner,
            cdi_dir=folder / "cdi",
        )
        daemon = Daemon(hardware, nodes.settings(**spec), host)

        async def end_starts() -> None:
            """Do what the next look would do in a moment."""
            for each in [*daemon.executor.state.starting]:
                daemon.executor.apply(PhaseChanged(container_id=each, phase=Phase.RUNNING))

        runtime.after = end_starts
        stack.push_async_callback(daemon.close)
        if listening:
            await stack.enter_async_context(daemon.listening(folder / "control.sock"))
        await stack.enter_async_context(daemon.serving(runtime.socket_path))
        await runtime.synchronized()
        yield Served(daemon=daemon, runtime=runtime, socket=folder / "control.sock")


def pod(
    name: str,
    cpu: str = "",
    *,
    shared: bool = False,
    namespace: str = "default",
    annotations: Mapping[str, str] | None = None,
    memory: str = "1Mi",
) -> dict[str, Any]:
    """Return the manifest of a pod of one container: BestEffort, Burstable if *shared*."""
    amounts = {"cpu": cpu, "memory": memory} if cpu else {}
    resources = {"requests": amounts} if shared else {"limits": amounts}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations or {}},
        "spec": {"containers": [{"name": "main", "resources": resources}]},
    }
