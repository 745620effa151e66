"""Which NRI a container runtime ships, and what differs between the versions of NRI.

Owns the rules that depend on the version, as far as they are a runtime's own (spec: NRI on the
wire, 2.1-2.3); which release ships which NRI is known to `nri.versions`.
"""

from __future__ import annotations

import re
from typing import Self

from msgspec import Struct

from nri_policy.nri.versions import Version, bundled_nri
from nri_policy.proto import nri_pb2 as nri

_PLUGIN_NAME = re.compile(r"[A-Za-z0-9_.+-]+")
_PLUGIN_INDEX = re.compile(r"[0-9]{2}")

# Messages of an adjustment → their fields that older versions do not know, and so ignore.
_ADJUSTMENT_SINCE: list[tuple[str, tuple[int, int, int], tuple[str, ...]]] = [
    ("", (0, 4, 0), ("rlimits",)),
    ("", (0, 7, 0), ("CDI_devices",)),
    ("", (0, 10, 0), ("args",)),
    ("linux", (0, 7, 0), ("oom_score_adj",)),
    ("linux", (0, 10, 0), ("io_priority", "seccomp_policy", "namespaces")),
    ("linux", (0, 11, 0), ("sysctl", "net_devices", "scheduler", "rdt")),
    ("linux", (0, 12, 0), ("memory_policy",)),
    ("linux.resources", (0, 7, 0), ("pids",)),
]


class Release(Struct, frozen=True, kw_only=True):
    """A release of a container runtime."""

    name: str  # "containerd" or "cri-o"
    version: str
    number: Version
    nri_version: Version

    @classmethod
    def of(cls, name: str, version: str, nri_version: Version | None = None) -> Self:
        """Return a release by the words it uses for itself; its NRI is looked up unless given.

        Raises ValueError for an unknown release.
        """
        number = Version.parse(version)
        if number is None:
            raise ValueError(f"no runtime calls itself {name!r} {version!r}")
        nri_version = nri_version or bundled_nri(name, number)
        if nri_version is None:
            raise ValueError(f"{name} {version} has no NRI")
        return cls(name=name, version=version, number=number, nri_version=nri_version)

    @property
    def known_events(self) -> int:
        """Mask of all events that a plugin may subscribe to."""
        if self.nri_version >= (0, 10, 0):
            return 0x3FFF
        return 0x1FFF if self.nri_version >= Version(0, 9, 1, released=False) else 0x07FF

    @property
    def updates_pods(self) -> bool:
        """True if CRI's UpdatePodSandboxResources is implemented."""
        return self.number >= ((2, 3, 0) if self.name == "containerd" else (1, 33, 0))

    @property
    def makes_cgroups_early(self) -> bool:
        """True if a container has its cgroup from its creation on, not only from its start."""
        return self.name == "cri-o"

    @property
    def stops_before_start(self) -> bool:
        """True if a container can be stopped that was not started; else it can be started still."""
        return self.name == "cri-o"

    @property
    def tells_failed_creations(self) -> bool:
        """True if plugins get the end of a container whose creation fails after their answer."""
        return self.name == "containerd"

    @property
    def dedicated_calls(self) -> bool:
        """True if each event has a call of its own, with StateChange only as fallback."""
        return self.nri_version >= (0, 12, 0)

    @property
    def updates_safely(self) -> bool:
        """True if UpdateContainers takes locks in the order in which events do."""
        return self.nri_version >= (0, 12, 1)

    @property
    def splits_synchronization(self) -> bool:
        """True if Synchronize comes in parts; with that came the timeouts in Configure."""
        return self.nri_version >= (0, 7, 0)

    @property
    def shows_times(self) -> bool:
        """True if containers carry the times of their creation, start and end."""
        return self.number >= ((2, 3, 0) if self.name == "containerd" else (1, 36, 0))

    @property
    def forgets_stopped_pods(self) -> bool:
        """True if little is left of a pod in events after its stop."""
        return self.name == "containerd" and self.number < (2, 2, 0)

    @property
    def shows_ips(self) -> bool:
        """True if pods carry their IP addresses."""
        return self.number >= ((2, 1, 0) if self.name == "containerd" else (1, 32, 0))

    def refusal(self, request: nri.RegisterPluginRequest) -> str:
        """Return why a plugin may not register like this, or nothing."""
        if not _PLUGIN_INDEX.fullmatch(request.plugin_idx):
            return f"invalid plugin index {request.plugin_idx!r}, must be two digits"
        if not request.plugin_name:
            return "plugin name is empty"
        if self.nri_version >= (0, 12, 0) and not _PLUGIN_NAME.fullmatch(request.plugin_name):
            return f"invalid plugin name {request.plugin_name!r}"
        return ""

    def understood(self, adjustment: nri.ContainerAdjustment) -> nri.ContainerAdjustment:
        """Return *adjustment* without what this version does not know."""
        known = nri.ContainerAdjustment()
        known.CopyFrom(adjustment)
        for path, since, fields in _ADJUSTMENT_SINCE:
            if self.nri_version < since:
                message = known
                for part in filter(None, path.split(".")):
                    message = getattr(message, part)
                for name in fields:
                    message.ClearField(name)
        return known

    def configuration(
        self, *, registration_timeout: float, request_timeout: float
    ) -> nri.ConfigureRequest:
        """Return what plugins are configured with; times in seconds."""
        request = nri.ConfigureRequest(runtime_name=self.name, runtime_version=self.version)
        if self.splits_synchronization:
            request.registration_timeout = round(registration_timeout * 1000)
            request.request_timeout = round(request_timeout * 1000)
        if self.dedicated_calls:
            request.NRI_version = f"v{self.nri_version}"
        return request
