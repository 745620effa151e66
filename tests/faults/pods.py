"""Random pods for a small node, and what becomes of them."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from nri_policy.foundation.units import format_cpu
from nri_policy.kubelet import runtimespec
from nri_policy.manifests.resources import Amounts, ManifestError, ResourceChange
from nri_policy.simulation.containers import CRIError, RuntimeState, SimulatedPod
from nri_policy.simulation.embedded import EmbeddedRuntime

MOST_PODS = 14
DOMAIN = "resource-policy.nri.io"
_MEMORY = ("1Mi", "64Mi", "300Mi", "1Gi")
_WISHES = (
    {f"prefer-shared-cpus.{DOMAIN}/pod": "false"},
    {f"prefer-shared-cpus.{DOMAIN}/pod": "true"},
    {f"hide-hyperthreads.{DOMAIN}/pod": "true"},
    {f"prefer-isolated-cpus.{DOMAIN}/pod": "true"},
    {f"static-cpus.{DOMAIN}/pod": "true"},
    {f"cpu.preserve.{DOMAIN}/pod": "true"},
    {f"cold-start.{DOMAIN}/pod": "duration: 60s"},
    {f"memory-type.{DOMAIN}/pod": "pmem"},
    {f"prefer-shared-cpus.{DOMAIN}/pod": "perhaps"},  # it is refused
    {f"{DOMAIN}/affinity": "c0: [c1]"},
    *({f"pod-room.{DOMAIN}/pod": "true", f"prefer-shared-cpus.{DOMAIN}/container.c1": "true"},) * 4,
)


class Kubelets:
    """Whoever starts, resizes and deletes pods on one runtime, at random."""

    def __init__(self, runtime: EmbeddedRuntime, random: Random, *, prefix: str = "pod") -> None:
        """Take the runtime; pods whose names do not begin with *prefix* are left to others."""
        self._runtime = runtime
        self._random = random
        self._prefix = prefix
        self._number = 0
        self.resized: set[str] = set()  # ids of containers, since this was cleared

    async def act(self) -> str:
        """Do something; the runtime may refuse it. Return what was done."""
        random = self._random
        own = self._own()
        full = len(self._runtime.pods) >= MOST_PODS
        acts = ("start", "start", "resize", "resize", "delete", "again", "replace")
        what = random.choice(acts)
        starts = not own or (what == "start" and not full)
        manifest = self._manifest() if starts else {}
        pod = None if starts else random.choice(own)
        done = f"starts {manifest['metadata']['name']}" if pod is None else f"{what} {pod.key}"
        try:
            if pod is None:
                await self._runtime.start_pod(manifest)
            elif what == "resize":
                await self._resize(pod)
            elif what == "again":
                await self._again(pod)
            elif what == "replace":
                await self._replace(pod)
            else:
                await self._runtime.delete_pod(pod)
        except (CRIError, ManifestError) as error:
            return f"{done}: {error}"  # no room, or less than its limit
        return done

    async def tidy(self) -> None:
        """Remove the containers that do not run, as the kubelet does."""
        for pod in self._own():
            for each in [each for each in pod.containers if each.state is not RuntimeState.RUNNING]:
                await self._runtime.delete_container(each)

    def _own(self) -> list[SimulatedPod]:
        pods = self._runtime.pods
        return [each for each in pods if each.manifest.metadata.name.startswith(self._prefix)]

    def _manifest(self) -> dict[str, Any]:
        random = self._random
        self._number += 1
        kind = random.choice(("own", "own", "own", "mixed", "burstable", "burstable", "best"))
        containers = [
            {"name": f"c{number}", "resources": self._resources(kind)}
            for number in range(random.choice((1, 1, 1, 2)))
        ]
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{self._prefix}{self._number}",
                "namespace": random.choice(("default", "default", "default", "kube-system")),
                "annotations": random.choice(_WISHES) if random.random() < 0.4 else {},
            },
            "spec": {"containers": containers},
        }

    def _resources(self, kind: str) -> dict[str, Any]:
        random = self._random
        if kind == "best":
            return {}
        memory = random.choice(_MEMORY)
        if kind == "burstable":
            request = random.choice((100, 500, 1200))
            limits = {"cpu": format_cpu(2 * request)} if random.random() < 0.5 else {}
            return {"requests": {"cpu": format_cpu(request), "memory": memory}, "limits": limits}
        cpu = random.choice((1000, 2000, 3000) if kind == "own" else (1500, 2500))
        return {"limits": {"cpu": format_cpu(cpu), "memory": memory}}

    async def _replace(self, pod: SimulatedPod) -> None:
        """Start a successor of the same name, and end the pod later: it was deleted by force."""
        manifest = self._manifest()
        old = pod.manifest.metadata
        uid = runtimespec.object_uid("successor", pod.key, self._number)
        manifest["metadata"] |= {"name": old.name, "namespace": old.namespace, "uid": uid}
        try:
            await self._runtime.start_pod(manifest)
            await asyncio.sleep(self._random.choice((0, 0, 0.1, 1)))
        finally:
            await self._runtime.delete_pod(pod)

    async def _resize(self, pod: SimulatedPod) -> None:
        running = [each for each in pod.containers if each.state is RuntimeState.RUNNING]
        if not running:
            return
        container = self._random.choice(running)
        old = pod.manifest.container(container.name).resources
        if "cpu" not in old.requests:
            return
        if "cpu" in old.limits and old.limits == old.requests:
            cpu = self._random.choice((1000, 2000, 3000, 1500))
            change = ResourceChange(requests=Amounts(cpu=cpu), limits=Amounts(cpu=cpu))
        else:
            change = ResourceChange(requests=Amounts(cpu=self._random.choice((100, 400, 900))))
        self.resized.add(container.id)
        await self._runtime.resize(pod, container.name, change)

    async def _again(self, pod: SimulatedPod) -> None:
        """Let a container end and come back, as a crash of it does."""
        if not pod.containers:
            return
        container = self._random.choice(pod.containers)
        await self._runtime.delete_container(container)
        if pod.ready:
            await self._runtime.start_container(
                await self._runtime.create_container(pod, container.name)
            )
