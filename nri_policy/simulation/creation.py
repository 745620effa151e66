"""Creation: the messages of a runtime's release about a new pod or container."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import count

import msgspec

from nri_policy.foundation.clock import Clock
from nri_policy.kubelet import runtimespec
from nri_policy.kubelet.runtime_requests import Kubelet
from nri_policy.manifests.pod import ContainerManifest, PodManifest
from nri_policy.nri.release import Release
from nri_policy.proto import nri_pb2 as nri
from nri_policy.simulation.containers import SimulatedContainer, SimulatedPod


class Creation:
    """Makes pods and containers; the same calls in the same order make the same ids."""

    def __init__(self, release: Release, kubelet: Kubelet, clock: Clock) -> None:
        self._release = release
        self._kubelet = kubelet
        self._clock = clock
        self._serial = count(1)
        self._pid = count(1000)

    def pod(self, manifest: PodManifest) -> SimulatedPod:
        """Return a new pod of a manifest."""
        serial = next(self._serial)
        uid = manifest.metadata.uid or runtimespec.object_uid("uid", manifest.key, serial)
        metadata = msgspec.structs.replace(manifest.metadata, uid=uid)
        manifest = msgspec.structs.replace(manifest, metadata=metadata)
        now = datetime.fromtimestamp(self._clock.date(), UTC)
        message = self._kubelet.sandbox(manifest, seen=f"{now:%Y-%m-%dT%H:%M:%SZ}")
        message.id = runtimespec.object_id("pod", manifest.key, serial)
        if self._release.shows_ips:
            message.ips.append(f"10.244.{serial >> 8 & 255}.{serial & 255}")
        runtimespec.complete_sandbox(message, runtime=self._release.name, pid=self.process())
        return SimulatedPod(manifest=manifest, message=message)

    def container(
        self, pod: SimulatedPod, manifest: ContainerManifest, devices: Iterable[nri.LinuxDevice]
    ) -> SimulatedContainer:
        """Return a new container of a pod, not yet in the pod's list."""
        attempt = sum(container.name == manifest.name for container in pod.containers)
        message = self._kubelet.container(pod.manifest, manifest, attempt=attempt)
        message.id = runtimespec.object_id("container", pod.id, manifest.name, next(self._serial))
        for device in devices:
            message.linux.devices.append(device)
            message.linux.resources.devices.append(runtimespec.device_rule(device))
        runtimespec.complete_container(
            message, pod.message, runtime=self._release.name, image=manifest.image
        )
        return SimulatedContainer(pod=pod, name=manifest.name, message=message)

    def process(self) -> int:
        """Return the id of a new process."""
        return next(self._pid)

    def show_time(self, container: SimulatedContainer, field: str) -> None:
        """Set one of a container's times to now, where the release shows them."""
        if self._release.shows_times:
            setattr(container.message, field, int(self._clock.date() * 1e9))
