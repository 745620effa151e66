"""A simulated node: the daemon's own engine and session, in this process, for an embedded runtime.

Owns the surroundings of a daemon on a real node: a clock, hardware that changes, a kubelet with
devices, a folder for its state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from nri_policy.daemon.daemon import Daemon, Environment
from nri_policy.delivery.inputs import PhaseChanged
from nri_policy.delivery.record import Phase
from nri_policy.dra.cpu_devices import pools_by_device
from nri_policy.engine.event import Prepared, Unprepared
from nri_policy.foundation.clock import Clock
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.refusal import Refused
from nri_policy.foundation.yamltext import Marks
from nri_policy.hardware.devices import read_devices
from nri_policy.hardware.locality import Locator
from nri_policy.hardware.machine import Machine
from nri_policy.hardware.notes import Notes
from nri_policy.hardware.synthetic_devices import write_devices
from nri_policy.hardware.sysfs import FileTree
from nri_policy.kubelet.manifest_pods import pod_requirements
from nri_policy.kubelet.pod_resources import Assignments
from nri_policy.kubelet.runtime_requests import Kubelet
from nri_policy.manifests.pod import PodManifest
from nri_policy.plugin.sources import Sources
from nri_policy.pools.capacity import CapacityError
from nri_policy.report import container_report, occupied_pools
from nri_policy.settings import Settings, SettingsError, from_spec
from nri_policy.simulation.adaptation import Timeouts
from nri_policy.simulation.cgroups import SimulatedCgroups
from nri_policy.simulation.containers import CRIError
from nri_policy.simulation.device_manager import DeviceManager, PluginDevice, answering
from nri_policy.simulation.embedded import EmbeddedRuntime
from nri_policy.simulation.playback import COMES_BACK, NodeError, NodeSnapshot
from nri_policy.workload.claim import ClaimPart
from nri_policy.workload.hints import ClaimedDevice
from nri_policy.workload.pod import Pod
from nri_policy.workload.requirements import PodRequirements

RUNTIME = "2.3.1"  # containerd's: the oldest minor release with all that a daemon can ask for
# the cause of changes without an event, written by the daemon or sent at a registration
OUTSIDE = "Synchronize"


class SimulatedNode:
    """A `Node` for scenarios; `stack` ends its daemon.

    *devices* are the initial devices of its device plugins, by resource name.
    """

    def __init__(
        self,
        machine: Machine,
        settings: Settings | None,
        folder: Path,
        stack: AsyncExitStack,
        devices: Mapping[str, Sequence[PluginDevice]] = MappingProxyType({}),
    ) -> None:
        # the device manager shows these devices, and a scenario can take them away
        self._whole = replace(machine, devices=()) if devices else machine
        self._online = machine.online
        self._settings = settings
        self._folder = folder
        self._stack = stack
        self._devices = folder / "devices"  # a root of their own: the machine's may be this host's
        self._running: AsyncExitStack | None = None
        self._daemon: Daemon | None = None
        self._time = 1.7e9  # seconds since the epoch; moves only by `advance`
        self._clock = Clock(date=lambda: self._time)
        self.runtime = EmbeddedRuntime(
            folder / "nri.sock",
            online_cpus=machine.online,
            memory_nodes=CPUSet(node.id for node in machine.nodes),
            kubelet=Kubelet(memory_capacity=machine.memory),
            version=RUNTIME,
            # time is the scenario's own: no request is late because this machine is slow
            timeouts=Timeouts(registration=COMES_BACK, request=COMES_BACK),
            clock=self._clock,
        )
        self.runtime.machine.rdt_groups = None  # no tuner makes those of the settings here
        self.runtime.devices.advertise(devices)
        write_devices(self._devices, self.runtime.devices.numa_nodes, {})
        self.runtime.prepare, self.runtime.unprepare = self._prepare, self._unprepare

    async def _prepare(self, pod: PodManifest) -> None:
        """Have the daemon hold a pod's claims of its devices, as the kubelet does; CRIError."""
        claims: dict[str, list[ClaimPart]] = {}
        for part in self.runtime.devices.parts(pod):
            claims.setdefault(part.claim, []).append(part)
        if claims and (self._daemon is None or self._settings is None):
            raise CRIError(f"pod {pod.key}: the driver of its claims does not run")
        for parts in claims.values():
            assert self._daemon is not None, "there is one"
            layout = self._daemon.node.view.layout
            if not layout.settings.dra.enabled:
                raise CRIError(f"pod {pod.key}: dra.enabled is false: nobody serves its claims")
            pools = pools_by_device(layout)
            known = [replace(part, pool=pools.get(part.device, part.device)) for part in parts]
            try:
                await self._daemon.components.claims.prepare(Prepared(parts=tuple(known)))
            except Refused as error:
                raise CRIError(f"pod {pod.key}: {error}") from error

    async def _unprepare(self, pod: PodManifest) -> None:
        """Have the daemon give the claims back that only this pod has used."""
        used = {
            part.claim
            for other in self.runtime.pods
            if other.manifest.metadata.uid != pod.metadata.uid
            for part in self.runtime.devices.parts(other.manifest)
        }
        gone = dict.fromkeys(part.claim for part in self.runtime.devices.parts(pod))
        for claim in gone:
            if claim not in used and self._daemon is not None:
                await self._daemon.components.claims.unprepare(Unprepared(claim=claim))

    @property
    def daemon(self) -> Daemon | None:
        """The daemon that runs now."""
        return self._daemon

    async def restart(self) -> None:
        """Kill the daemon if it runs, and start it; raises NodeError."""
        if self._settings is None:
            raise NodeError("no settings: give them in the first step, or by --settings")
        if self._running is not None:
            await self._running.aclose()
        self._running = AsyncExitStack()
        self._stack.push_async_callback(self._running.aclose)
        machine = self._machine()
        assignments = None
        if self._settings.agent.pod_resource_api:
            socket = self._folder / "pod-resources.sock"
            await self._running.enter_async_context(answering(self.runtime.devices, socket))
            # the answer is waited for, however slow this machine is: time is the scenario's own
            assignments = Assignments(socket, clock=Clock(sleep=_forever))
            await self._running.enter_async_context(assignments)
        # the embedded runtime needs no rest between two plugins
        host = Environment(
            state_dir=self._folder,
            root=self._devices,  # without interrupts, power settings and a systemd
            cgroups=SimulatedCgroups(self.runtime),
            notes=(
                "this node is simulated: its containers have no processes",
                "its clock started in 2023, and moves only by the scenario's step `advance`",
            ),
            clock=self._clock,
            delay=lambda _failures: 0.0,
            unused=lambda: None if assignments is None else self.runtime.devices.unused(),
            sources=Sources(
                locator=Locator(self._devices, machine),
                assignments=assignments,
                claims=_Claims(self.runtime.devices),
                objects=_Objects(self.runtime),
            ),
        )
        try:
            self._daemon = Daemon(machine, self._settings, host)
        except CapacityError as error:
            raise NodeError(str(error)) from error
        self.runtime.after = self._put_in_force
        self._running.push_async_callback(self._daemon.close)
        await self._running.enter_async_context(self._daemon.serving(self.runtime.socket_path))

    async def _put_in_force(self) -> None:
        """Have the daemon see and write now what it would soon, by no clock of this machine."""
        if self._daemon is None:
            return
        executor = self._daemon.executor
        for each in [*executor.state.starting]:
            executor.apply(PhaseChanged(container_id=each, phase=Phase.RUNNING))
        await executor.look()
        await executor.settle()

    async def settings(self, spec: Mapping[str, Any], marks: Marks) -> None:
        """Set settings, of the running daemon or for its start; raises NodeError.

        The *marks* are the places of the spec's parts in its file, for errors.
        """
        try:
            settings = from_spec(dict(spec), "the settings of this step", marks)
        except SettingsError as error:
            raise NodeError(str(error)) from error
        await self._reconfigure(settings=settings)
        self._settings = settings

    async def hotplug(self, *, offline: CPUSet, online: CPUSet) -> None:
        """Take CPUs offline and online; raises NodeError."""
        if not self._online - offline | online:
            raise NodeError("no CPU would be online")
        self._online = self._online - offline | online
        await self._reconfigure(machine=self._machine())

    async def attach(self, devices: Mapping[int, int | None], disks: Mapping[str, int]) -> None:
        """Replace all devices and disks; raises NodeError."""
        there = {node.id for node in self._whole.nodes}
        for node in (*devices.values(), *disks.values()):
            if node is not None and node not in there:
                raise NodeError(f"there is not a NUMA node {node}")
        write_devices(self._devices, devices, disks)
        await self._reconfigure(machine=self._machine())

    async def advance(self, seconds: float) -> None:
        """Move the clock that daemon and runtime share, and do what falls due."""
        self._time += seconds
        if self._daemon is not None:
            self.runtime.cause = OUTSIDE
            await self._daemon.events.elapse()
            await self._settle(self._daemon)

    async def snapshot(self) -> NodeSnapshot:
        """Return the daemon's state, once it is in force; empty if no daemon runs."""
        if self._daemon is None:
            return NodeSnapshot(containers={}, pools=())
        await self._daemon.executor.settle()
        view = self._daemon.node.view
        return NodeSnapshot(
            containers={
                holding.placed.container.full_name: container_report(holding, "placed")
                for holding in view.holdings()
            },
            pools=occupied_pools(view),
        )

    def _machine(self) -> Machine:
        machine = self._whole.restricted(self._online)
        with FileTree(self._devices, Notes()) as tree:
            devices = read_devices(tree, machine.online, machine.near_cpus)
        return replace(machine, devices=(*machine.devices, *devices))

    async def _reconfigure(
        self, *, settings: Settings | None = None, machine: Machine | None = None
    ) -> None:
        """Change settings or the machine, and wait until the runtime has all updates."""
        if self._daemon is None:
            return
        self.runtime.cause = OUTSIDE
        try:
            await self._daemon.events.reconfigure(settings=settings, machine=machine)
        except Refused as error:
            raise NodeError(str(error)) from error
        await self._settle(self._daemon)

    async def _settle(self, daemon: Daemon) -> None:
        """Wait until the runtime has received and applied all updates."""
        await daemon.flush_updates()
        await self.runtime.settled()


class _Objects:
    """The objects of pods, as from the API server: their manifests, without waiting."""

    readable = True

    def __init__(self, runtime: EmbeddedRuntime) -> None:
        self._runtime = runtime

    def ask(self, pod: Pod) -> None:
        """Do nothing: the manifests are here."""

    def ask_late(self, pods: Iterable[Pod]) -> None:
        """Do nothing: running pods were known when they were listed."""

    async def ready(self, pod: Pod) -> None:
        """Wait for nothing."""

    def of(self, pod: Pod) -> PodRequirements | None:
        """Return the requirements in the manifest of *pod*; None if the pod is gone."""
        manifests = (each.manifest for each in self._runtime.pods)
        found = next((each for each in manifests if each.metadata.uid == pod.uid), None)
        return None if found is None else pod_requirements(found.spec)

    def forget(self, pod_id: str) -> None:
        """Forget nothing: a resize changes the manifest."""

    def restart(self) -> None:
        """Forget nothing."""


class _Claims:
    """The claims of pods, as from the kubelet's device manager, without waiting."""

    def __init__(self, devices: DeviceManager) -> None:
        self._devices = devices

    def ask(self, pod: Pod) -> None:
        """Do nothing: the device manager is here."""

    def ask_all(self, pods: Iterable[Pod]) -> None:
        """Do nothing: the device manager is here."""

    def pending(self, pods: Iterable[Pod]) -> Collection[asyncio.Task[None]]:
        """Return nothing: there are no pending queries."""
        del pods
        return ()

    def devices(self, pod: Pod, container: str) -> tuple[ClaimedDevice, ...]:
        """Return what a container was allocated."""
        return self._devices.claimed(pod.uid, container)

    def forget(self, pod: Pod) -> None:
        """Forget nothing: the device manager does."""


async def _forever(_seconds: float) -> None:
    await asyncio.Event().wait()
