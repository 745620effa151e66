"""The embedded runtime: a container runtime without containers, for tests, demo and simulation.

It speaks NRI over a real unix socket like containerd or CRI-O of a given release, has calls like
CRI, and keeps the settings of each container. `cri` has the CRI calls, and what is not modelled;
this module has the kubelet's calls for whole pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nri_policy.kubelet.resize_steps import ContainerStep, PodStep, list_resize_steps
from nri_policy.manifests.pod import ContainerManifest, PodManifest
from nri_policy.manifests.resources import ResourceChange
from nri_policy.simulation.containers import CRIError, SimulatedContainer, SimulatedPod
from nri_policy.simulation.cri import ContainerRuntime


class PodStartError(CRIError):
    """Some containers of a pod did not start. *errors*: container name → error."""

    def __init__(self, pod: SimulatedPod, errors: dict[str, CRIError]) -> None:
        text = "; ".join(f"{pod.key}/{name}: {error}" for name, error in errors.items())
        super().__init__(text, code=next(iter(errors.values())).code)
        self.errors = errors


class EmbeddedRuntime(ContainerRuntime):
    """A runtime that plugins connect to, with what a kubelet asks of it for whole pods."""

    # ---- what is there

    def pod(self, key: str) -> SimulatedPod:
        """Return the pod called `namespace/name`, or `name` in `default`. Raises KeyError."""
        key = key if "/" in key else f"default/{key}"
        for pod in self.pods:
            if pod.key == key:
                return pod
        raise KeyError(key)

    def container(self, key: str) -> SimulatedContainer:
        """Return the container called `namespace/pod/name` or `pod/name`. Raises KeyError."""
        pod, _, name = key.rpartition("/")
        return self.pod(pod).container(name)

    # ---- plugins

    @property
    def plugins(self) -> list[str]:
        """Active plugins as `NN-name`, in the order of their calls."""
        return [plugin.name for plugin in self._nri.plugins if not plugin.closed]

    @property
    def synchronizations(self) -> int:
        """How often a plugin became active, ever."""
        return self._nri.synchronizations

    async def synchronized(self, *, after: int = 0) -> None:
        """Wait until more than *after* plugins became active, ever, and nothing is under way."""
        async with self._nri.changed:
            await self._nri.changed.wait_for(lambda: self.synchronizations > after)
        await self._nri.settled()

    async def disconnected(self) -> None:
        """Wait until no plugin is active."""
        async with self._nri.changed:
            await self._nri.changed.wait_for(lambda: not self.plugins)

    async def settled(self) -> None:
        """Wait until no event, update or handshake is under way."""
        await self._nri.settled()

    # ---- like kubelet

    async def start_pod(self, manifest: Mapping[str, Any] | PodManifest) -> SimulatedPod:
        """Run a pod with all of its containers, init containers first, one after the other.

        A container that fails does not keep the next from starting, unless it is an init container.
        Raises ManifestError; PodStartError, with the pod there; CRIError, without.
        """
        pod = await self.run_pod(manifest)
        errors: dict[str, CRIError] = {}
        inits = pod.manifest.spec.init_containers
        for container in pod.manifest.spec.every_container:
            try:
                await self._run_container(pod, container, to_end=container in inits)
            except CRIError as error:
                errors[container.name] = error
                if container in inits:
                    break
        if errors:
            raise PodStartError(pod, errors)
        return pod

    async def resize(self, pod: SimulatedPod, name: str | None, change: ResourceChange) -> None:
        """Change what a container requests, in place: what *change* does not name stays.

        Without a *name* what the pod has as a whole. Raises ManifestError if the API server would
        refuse, CRIError if the runtime does, KeyError.
        """
        if name is not None:
            await self.resize_together(pod, {name: change})
            return
        after = pod.manifest.resized_as_a_whole(change)
        await self._resize(pod, list_resize_steps(self.kubelet, pod.manifest, after))
        pod.manifest = after

    async def resize_together(
        self, pod: SimulatedPod, changes: Mapping[str, ResourceChange]
    ) -> None:
        """Change the requests of several containers of a pod, as `resize` does for one."""
        after = pod.manifest
        for name, change in changes.items():  # the API server accepts all of them, or none
            after = after.resized(name, change)
        # containers whose amounts do not change get a call with them anyway
        as_before = [
            ContainerStep(
                name=name,
                change=change,
                resources=self.kubelet.resources(after, after.container(name)),
            )
            for name, change in changes.items()
        ]
        steps = [*list_resize_steps(self.kubelet, pod.manifest, after)]
        await self._resize(pod, steps or as_before)

    async def _resize(self, pod: SimulatedPod, steps: Iterable[PodStep | ContainerStep]) -> None:
        for step in steps:
            if isinstance(step, ContainerStep):
                manifest = pod.manifest.resized(step.name, step.change)
                # an ended container without a successor yet will be created with the new amounts
                if any(each.name == step.name for each in pod.containers):
                    await self.update_container(pod.container(step.name), step.resources)
                pod.manifest = manifest
            elif self.release.updates_pods:
                await self.update_pod(pod, step.resources)

    async def delete_pod(self, pod: SimulatedPod) -> None:
        """Stop and remove a pod and its containers: sidecars last, in the reverse order."""
        for container in _ending(pod):
            await self.stop_container(container)
        await self.stop_pod(pod)
        for container in _ending(pod):
            await self.remove_container(container)
        await self.remove_pod(pod)

    async def delete_container(self, container: SimulatedContainer) -> None:
        """Stop and remove a container."""
        await self.stop_container(container)
        await self.remove_container(container)

    async def _run_container(
        self, pod: SimulatedPod, manifest: ContainerManifest, *, to_end: bool
    ) -> None:
        container = await self.create_container(pod, manifest.name)
        await self.start_container(container)
        if to_end and not manifest.sidecar:
            await self.delete_container(container)


def _ending(pod: SimulatedPod) -> list[SimulatedContainer]:
    """Return a pod's containers in the order in which the kubelet ends them."""
    names = [each.name for each in pod.manifest.spec.init_containers]
    main = [each for each in pod.containers if each.name not in names]
    return [*main, *(each for each in reversed(pod.containers) if each.name in names)]
