"""CRI calls of the embedded runtime: the sequence of NRI events in each (spec nri.md §3.6).

Owns when a change takes effect. Unsolicited updates on NRI < 0.12.1 can deadlock it, as in the
original. Not modelled: the panic of NRI 0.11 at sysctl adjustments; a Synchronize over 4 MiB in one
message on NRI < 0.7 (refused here); a plugin without events after a slow Synchronize on NRI < 0.7
(closed here); plugins started by the runtime; the built-in validator, and the owners in validation
requests; net devices and memory policies in adjustments; containers missed for lack of a barrier
between synchronization and events.

Where the two runtimes differ:

|                                | containerd        | CRI-O                          |
|--------------------------------|-------------------|--------------------------------|
| the cgroup is made             | at StartContainer | at CreateContainer             |
| an update while it is created  | is skipped        | is skipped                     |
| an update while it starts      | changes the spec  | takes effect                   |
| a stop before the start        | sends an event    | ends the container             |
| lists after its restart        | the present state | the amounts at the creation    |
| a creation that fails later    | sends an end      | sends nothing                  |
| update of another fails        | is logged         | fails the call that carried it |
| an update of Synchronize fails | is logged         | the plugin gets no events      |
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from nri_policy.foundation.clock import SYSTEM_CLOCK, Clock
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.kubelet import runtimespec
from nri_policy.kubelet.runtime_requests import Kubelet
from nri_policy.manifests.pod import PodManifest, read_pod
from nri_policy.nri.errors import CallRefused, Code
from nri_policy.nri.release import Release
from nri_policy.nri.versions import Version
from nri_policy.proto import nri_pb2 as nri
from nri_policy.simulation.adaptation import Adaptation, Timeouts
from nri_policy.simulation.containers import (
    CRIError,
    RuntimeState,
    SimulatedContainer,
    SimulatedKernel,
    SimulatedPod,
)
from nri_policy.simulation.creation import Creation
from nri_policy.simulation.device_manager import AdmissionError, DeviceManager

_NODE = Kubelet()
_TIMEOUTS = Timeouts()
_LIVE = (RuntimeState.CREATED, RuntimeState.RUNNING)

log = logging.getLogger(__name__)

# Where: "creating" (its creation was answered), "starting" (its cgroup is made), "started" (its
# start was answered), "updating" (its update was answered).
Between = Callable[[str, SimulatedContainer], Awaitable[None]]


class ContainerRuntime:
    """What answers CRI calls, and has the plugins at *socket_path* take part; a context manager.

    Its CRI calls raise CRIError with the text that kubelet would show. The pods and containers that
    they return stay current. `machine` and `devices` may be changed at any time.
    """

    def __init__(  # noqa: PLR0913 - keywords, as many as a real runtime's settings that matter here
        self,
        socket_path: Path,
        *,
        online_cpus: CPUSet,
        memory_nodes: CPUSet,
        name: str = "containerd",
        version: str = "2.1.9",
        nri_version: Version | None = None,
        kubelet: Kubelet = _NODE,
        timeouts: Timeouts = _TIMEOUTS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.socket_path = socket_path
        self.release = Release.of(name, version, nri_version)
        self.machine = SimulatedKernel(online_cpus=online_cpus, memory_nodes=memory_nodes)
        self.kubelet = kubelet
        self.devices = DeviceManager()
        # Called where another call can come between, with the place in a container's life.
        self.between: Between = _nobody
        # The latest event: the cause of what the daemon writes to cgroups itself, by or after it.
        self.cause = ""
        # Called when it has made or set a cgroup: for what systemd does, which owns its scope.
        self.cgroup_set: Callable[[SimulatedContainer], None] = lambda _container: None
        # Called after each event that can change others: for what the daemon does then by itself.
        self.after: Callable[[], Awaitable[None]] = _nothing
        # Called as the kubelet calls the drivers of a pod's claims: before it runs, and at its end.
        self.prepare: Callable[[PodManifest], Awaitable[None]] = _no_claims
        self.unprepare: Callable[[PodManifest], Awaitable[None]] = _no_claims
        self._pods: dict[str, SimulatedPod] = {}
        self._containers: dict[str, SimulatedContainer] = {}
        self._creation = Creation(self.release, kubelet, clock)
        self._nri = Adaptation(socket_path, self.release, self, timeouts=timeouts)

    async def __aenter__(self) -> Self:
        """Start listening."""
        await self._nri.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Disconnect all plugins and remove the socket."""
        await self._nri.stop()

    async def restart(self) -> None:
        """Stop and start again: plugins see end of file and a new socket, containers run on."""
        await self._nri.stop()
        if self.release.name == "cri-o":
            for container in self.containers:
                if container.asked is not None:
                    container.message.linux.resources.CopyFrom(container.asked)
        await self._nri.start()

    def vanish(self, container: SimulatedContainer) -> None:
        """Let a container exit without an event."""
        container.enter(RuntimeState.STOPPED)
        container.in_force = None

    # ---- what is there

    @property
    def pods(self) -> list[SimulatedPod]:
        """Existing pods, in the order of their creation."""
        return list(self._pods.values())

    @property
    def containers(self) -> list[SimulatedContainer]:
        """Existing containers, in the order of their creation."""
        return list(self._containers.values())

    # ---- CRI

    async def run_pod(self, manifest: Mapping[str, Any] | PodManifest) -> SimulatedPod:
        """RunPodSandbox, if the kubelet admits the pod. Raises ManifestError for a bad manifest.

        A pod with a UID of its own may come beside an older pod of its name, deleted by force.
        """
        if not isinstance(manifest, PodManifest):
            manifest = read_pod(manifest)
        namesakes = {pod.manifest.metadata.uid for pod in self.pods if pod.key == manifest.key}
        if namesakes and manifest.metadata.uid in {"", *namesakes}:
            raise CRIError(f"pod {manifest.key} exists already")
        pod = self._creation.pod(manifest)
        async with self._call(pod):
            try:
                self.devices.admit(pod.manifest)
            except AdmissionError as error:
                raise CRIError(str(error)) from error
            try:
                await self.prepare(pod.manifest)
            except CRIError:
                self.devices.forget(pod.manifest.metadata.uid)
                raise
            try:
                async with self._nri.lock:
                    await self._nri.notify(nri.RUN_POD_SANDBOX, pod.message)
            except CallRefused:
                self.devices.forget(pod.manifest.metadata.uid)
                await self.unprepare(pod.manifest)
                await self._tell(nri.STOP_POD_SANDBOX, pod)
                await self._tell(nri.REMOVE_POD_SANDBOX, pod)
                raise
            self._pods[pod.id] = pod
            return pod

    async def create_container(
        self, pod: SimulatedPod, name: str, *, devices: Iterable[nri.LinuxDevice] = ()
    ) -> SimulatedContainer:
        """CreateContainer, with what a device plugin would add. Raises KeyError for the name."""
        manifest = pod.manifest.container(name)
        async with self._call(pod):
            if not pod.ready:
                raise CRIError(f"pod {pod.key} is not ready")
            if any(other.name == name and other.state in _LIVE for other in pod.containers):
                raise CRIError(f"container {pod.key}/{name} exists already")
            own = self.devices.files(pod.manifest.metadata.uid, name)
            container = self._creation.container(pod, manifest, (*devices, *own))
            shown = self.devices.variables(pod.manifest.metadata.uid, name)
            container.message.env.extend(shown)
            container.volumes = frozenset(each.source for each in container.message.mounts)
            self._containers[container.id] = container
            pod.containers.append(container)
            try:
                await self._adjust(container)
                await self.between("creating", container)
                if self.release.makes_cgroups_early:
                    self.machine.check(container.message.linux.resources)
                    container.mount()
                    container.make_cgroup()
                    self.cgroup_set(container)
            except CallRefused:
                if self.release.tells_failed_creations:
                    await self._stop(container)
                    await self._remove(container)
                else:
                    self._forget(container)
                raise
            container.enter(RuntimeState.CREATED)
            self._creation.show_time(container, "created_at")
            await self._tell(nri.POST_CREATE_CONTAINER, pod, container)
            return container

    async def start_container(self, container: SimulatedContainer) -> None:
        """StartContainer; one that fails is stopped."""
        async with self._call(container.pod):
            _require(container, RuntimeState.CREATED)
            try:
                self.machine.check(container.message.linux.resources)
                container.process = self.machine.first_process(
                    container.message.linux, container.cpus
                )
                if not self.release.makes_cgroups_early:
                    container.mount()
                    container.make_cgroup()
                    self.cgroup_set(container)
                container.message.pid = self._creation.process()
                await self.between("starting", container)
                async with self._nri.lock:
                    await self._nri.notify(
                        nri.START_CONTAINER, container.pod.message, container.message
                    )
            except CallRefused:
                await self._stop(container)
                raise
            await self.between("started", container)
            container.enter(RuntimeState.RUNNING)
            self._creation.show_time(container, "started_at")
            await self._tell(nri.POST_START_CONTAINER, container.pod, container)
            await self.after()

    async def update_container(
        self, container: SimulatedContainer, resources: nri.LinuxResources
    ) -> None:
        """UpdateContainerResources; fields that are unset, or 0, stay unchanged."""
        request = nri.LinuxResources()
        request.CopyFrom(resources)
        for value in (request.cpu.shares, request.cpu.quota, request.cpu.period):
            value.SetInParent()  # the runtimes always fill in these, and the limit
        request.memory.limit.SetInParent()
        async with self._call(container.pod):
            _require(container, *_LIVE, RuntimeState.STOPPED)
            async with self._nri.lock:
                self.cause = cause = f"UpdateContainer {container.key}"
                results = await self._nri.update(container.pod.message, container.message, request)
                self._update_others(results.others, cause)
            await self.between("updating", container)
            self._set(container, results.requested, cause)
            await self._tell(nri.POST_UPDATE_CONTAINER, container.pod, container)
            await self.after()

    async def update_pod(self, pod: SimulatedPod, resources: nri.LinuxResources) -> None:
        """UpdatePodSandboxResources; fails as unimplemented where the release has none."""
        async with self._call(pod):
            if not self.release.updates_pods:
                raise CRIError("not implemented", code=Code.UNIMPLEMENTED)
            overhead = pod.message.linux.pod_overhead
            async with self._nri.lock:
                await self._nri.update_pod(pod.message, overhead, resources)
            pod.resized = nri.LinuxResources()
            pod.resized.CopyFrom(resources)
            await self._tell(nri.POST_UPDATE_POD_SANDBOX, pod)
            await self.after()

    async def stop_container(self, container: SimulatedContainer) -> None:
        """StopContainer; does nothing to a stopped container."""
        async with self._call(container.pod):
            await self._stop(container, ends=self._can_end(container))

    async def remove_container(self, container: SimulatedContainer) -> None:
        """RemoveContainer; stops it first."""
        async with self._call(container.pod):
            await self._stop(container)
            await self._remove(container)

    async def stop_pod(self, pod: SimulatedPod) -> None:
        """StopPodSandbox; stops its containers first."""
        async with self._call(pod):
            await self._pod_stopped(pod)

    async def remove_pod(self, pod: SimulatedPod) -> None:
        """RemovePodSandbox; stops it first, and removes its containers."""
        async with self._call(pod):
            await self._pod_stopped(pod)
            for container in list(pod.containers):
                await self._remove(container)
            self.devices.forget(pod.manifest.metadata.uid)
            await self.unprepare(pod.manifest)
            if self._pods.pop(pod.id, None):
                await self._tell(nri.REMOVE_POD_SANDBOX, pod)

    # ---- what NRI asks

    def inventory(self) -> tuple[list[nri.PodSandbox], list[nri.Container]]:
        """Return the list for a new plugin: all pods, and containers that have not ended."""
        self.cause = "Synchronize"
        return (
            [pod.message for pod in self.pods],
            [container.message for container in self.containers if container.state in _LIVE],
        )

    def apply_updates(
        self, updates: Iterable[nri.ContainerUpdate], *, cause: str
    ) -> list[nri.ContainerUpdate]:
        """Change containers; skip unknown ones and those under creation; return what failed."""
        failed = []
        for update in updates:
            container = self._containers.get(update.container_id)
            if container is None or container.state is RuntimeState.CREATING:
                continue
            try:
                self._set(container, update.linux.resources, cause)
            except CRIError as error:
                log.warning(
                    "update-failed",
                    extra={"container": container.key, "cause": cause, "reason": str(error)},
                )
                if not update.ignore_failure:
                    failed.append(update)
        return failed

    # ---- parts of CRI calls

    @asynccontextmanager
    async def _call(self, pod: SimulatedPod) -> AsyncIterator[None]:
        """Serialize a pod's CRI calls, and turn what plugins refuse into their errors.

        Calls on other pods come between its events.
        """
        async with pod.calls:
            try:
                yield
            except CallRefused as error:
                raise CRIError(error.message, code=error.code) from error

    async def _tell(
        self, event: nri.Event, pod: SimulatedPod, container: SimulatedContainer | None = None
    ) -> None:
        """Notify plugins of an event; a failure changes nothing."""
        try:
            async with self._nri.lock:
                await self._nri.notify(event, pod.message, container.message if container else None)
        except CallRefused as error:
            log.warning(
                "ignored-error",
                extra={"pod": pod.key, "of": nri.Event.Name(event), "reason": str(error)},
            )

    async def _adjust(self, container: SimulatedContainer) -> None:
        async with self._nri.lock:
            self.cause = cause = f"CreateContainer {container.key}"
            results = await self._nri.create(container.pod.message, container.message)
            self._update_others(results.others, cause)
            await self.after()
        container.message.CopyFrom(results.container)
        container.asked = nri.LinuxResources()
        container.asked.CopyFrom(container.message.linux.resources)

    def _set(self, container: SimulatedContainer, wanted: nri.LinuxResources, cause: str) -> None:
        early = self.release.makes_cgroups_early
        into_cgroup = early or container.state is RuntimeState.RUNNING
        container.apply(wanted, machine=self.machine, cause=cause, into_cgroup=into_cgroup)
        if into_cgroup and container.in_force is not None:
            self.cgroup_set(container)

    def _update_others(self, updates: list[nri.ContainerUpdate], cause: str) -> None:
        failed = self.apply_updates(updates, cause=cause)
        if failed and self.release.name == "cri-o":
            raise CRIError(f"NRI failed to update {len(failed)} containers")

    def _can_end(self, container: SimulatedContainer) -> bool:
        """Return whether a container ends when it is stopped; one that ends so seems stopped."""
        if container.state is RuntimeState.CREATED:
            if not self.release.stops_before_start:
                return False
            container.message.state = nri.CONTAINER_STOPPED
        return True

    async def _stop(self, container: SimulatedContainer, *, ends: bool = True) -> None:
        """End a container; plugins get one event, while it still seems to run."""
        if container.state in (RuntimeState.STOPPED, RuntimeState.REMOVED):
            return
        try:
            async with self._nri.lock:
                self.cause = cause = f"StopContainer {container.key}"
                results = await self._nri.stop_container(container.pod.message, container.message)
                self._update_others(results.others, cause)
                await self.after()
        except CallRefused as error:
            log.warning(
                "ignored-error",
                extra={"container": container.key, "of": "STOP_CONTAINER", "reason": str(error)},
            )
        if ends:
            self.vanish(container)
            self._creation.show_time(container, "finished_at")

    async def _remove(self, container: SimulatedContainer) -> None:
        if container.state is RuntimeState.REMOVED:
            return
        await self._tell(nri.REMOVE_CONTAINER, container.pod, container)
        self._forget(container)

    def _forget(self, container: SimulatedContainer) -> None:
        container.enter(RuntimeState.REMOVED)
        container.pod.containers.remove(container)
        del self._containers[container.id]

    async def _pod_stopped(self, pod: SimulatedPod) -> None:
        for container in pod.containers:
            if self._can_end(container):
                await self._stop(container)
        if pod.ready:
            pod.ready = False
            await self._tell(nri.STOP_POD_SANDBOX, pod)
            pod.message.ClearField("pid")
            if self.release.forgets_stopped_pods:
                runtimespec.forget_task(pod.message)


async def _no_claims(_pod: PodManifest) -> None:
    pass


async def _nothing() -> None:
    """Let nothing follow."""


async def _nobody(where: str, container: SimulatedContainer) -> None:
    """Do nothing in between."""


def _require(container: SimulatedContainer, *states: RuntimeState) -> None:
    if container.state not in states:
        raise CRIError(f"container {container.key} is {container.state}")
