"""Which NRI a runtime speaks, and what that means for a plugin.

Owns the table of runtime releases and every question of the kind "does this runtime ...": no other
module compares versions. For an unknown version each property has its safe value.
"""

from __future__ import annotations

import re
from enum import IntFlag
from typing import NamedTuple, Self

from msgspec import Struct

from nri_policy.proto import nri_pb2


class Events(IntFlag):
    """Events that a plugin subscribes to, as bits of ConfigureResponse.events.

    0 on the wire means all of them, validation included: never send it.
    """

    RUN_POD_SANDBOX = 1 << (nri_pb2.RUN_POD_SANDBOX - 1)
    STOP_POD_SANDBOX = 1 << (nri_pb2.STOP_POD_SANDBOX - 1)
    REMOVE_POD_SANDBOX = 1 << (nri_pb2.REMOVE_POD_SANDBOX - 1)
    CREATE_CONTAINER = 1 << (nri_pb2.CREATE_CONTAINER - 1)
    POST_CREATE_CONTAINER = 1 << (nri_pb2.POST_CREATE_CONTAINER - 1)
    START_CONTAINER = 1 << (nri_pb2.START_CONTAINER - 1)
    POST_START_CONTAINER = 1 << (nri_pb2.POST_START_CONTAINER - 1)
    UPDATE_CONTAINER = 1 << (nri_pb2.UPDATE_CONTAINER - 1)
    POST_UPDATE_CONTAINER = 1 << (nri_pb2.POST_UPDATE_CONTAINER - 1)
    STOP_CONTAINER = 1 << (nri_pb2.STOP_CONTAINER - 1)
    REMOVE_CONTAINER = 1 << (nri_pb2.REMOVE_CONTAINER - 1)
    UPDATE_POD_SANDBOX = 1 << (nri_pb2.UPDATE_POD_SANDBOX - 1)
    POST_UPDATE_POD_SANDBOX = 1 << (nri_pb2.POST_UPDATE_POD_SANDBOX - 1)
    VALIDATE_CONTAINER_ADJUSTMENT = 1 << (nri_pb2.VALIDATE_CONTAINER_ADJUSTMENT - 1)


# What a plugin of resources lives on; every NRI accepts it.
LIFECYCLE = (
    Events.RUN_POD_SANDBOX
    | Events.STOP_POD_SANDBOX
    | Events.REMOVE_POD_SANDBOX
    | Events.CREATE_CONTAINER
    | Events.START_CONTAINER
    | Events.UPDATE_CONTAINER
    | Events.POST_UPDATE_CONTAINER
    | Events.STOP_CONTAINER
    | Events.REMOVE_CONTAINER
)


class Version(NamedTuple):
    """A release, or something before it: a pre-release or a Go pseudo-version sorts lower."""

    major: int
    minor: int
    patch: int
    released: bool = True

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read the version that *text* begins with, or None: "v0.12.2", "1.7.24~ds1", "2.1.9+x"."""
        found = _VERSION.match(text.strip())
        if found is None:
            return None
        major, minor, patch = (int(part) for part in found.group(1, 2, 3))
        return cls(major, minor, patch, released=found[4] is None)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}" + ("" if self.released else "-pre")


# The lengths keep int() fast whatever is sent. Debian's "~ds1" marks a repacked release.
_VERSION = re.compile(r"v?([0-9]{1,6})\.([0-9]{1,6})\.([0-9]{1,6})(-)?", re.ASCII)

# The first release of a runtime with an NRI, newest first; from the runtimes' go.mod files.
_SHIPPED = {
    "containerd": [
        ((2, 4, 0), Version(0, 12, 2)),
        ((2, 3, 0), Version(0, 12, 0)),
        ((2, 2, 1), Version(0, 11, 0)),
        ((2, 2, 0), Version(0, 10, 0)),
        ((1, 7, 26), Version(0, 8, 0)),
        ((1, 7, 16), Version(0, 6, 1)),
        ((1, 7, 14), Version(0, 6, 0)),
        ((1, 7, 7), Version(0, 4, 0)),
        ((1, 7, 0), Version(0, 3, 0)),
    ],
    "cri-o": [
        ((1, 37, 0), Version(0, 12, 0)),
        ((1, 35, 0), Version(0, 11, 0)),
        ((1, 34, 0), Version(0, 10, 0)),
        ((1, 33, 0), Version(0, 9, 1, released=False)),
        ((1, 32, 0), Version(0, 9, 0)),
        ((1, 31, 0), Version(0, 6, 1)),
        ((1, 29, 2), Version(0, 6, 0)),
        ((1, 29, 0), Version(0, 5, 0)),
        ((1, 27, 1), Version(0, 3, 1, released=False)),
        ((1, 27, 0), Version(0, 3, 0)),
        ((1, 26, 4), Version(0, 3, 1, released=False)),
        ((1, 26, 2), Version(0, 3, 0)),
        ((1, 26, 0), Version(0, 2, 0)),
    ],
}

# Newer NRIs announce their version: a runtime without one is older, whatever release it names.
_MOST_UNTOLD = Version(0, 12, 0)

SPOKEN = "v0.12.2"  # the newest NRI whose messages we know

DEFAULT_REGISTRATION_TIMEOUT_MS = 5000
DEFAULT_REQUEST_TIMEOUT_MS = 2000


class Runtime(Struct, frozen=True, kw_only=True):
    """The runtime at the other end, as it presented itself in Configure."""

    name: str
    version: str
    nri: Version | None  # None: neither told nor known
    registration_timeout_ms: int
    request_timeout_ms: int

    @classmethod
    def from_request(cls, request: nri_pb2.ConfigureRequest) -> Self:
        """Take what the request says, and look up or assume what an older runtime leaves out."""
        name, version = request.runtime_name, request.runtime_version
        return cls(
            name=name,
            version=version,
            nri=Version.parse(request.NRI_version) or _assume_nri(name, version),
            registration_timeout_ms=request.registration_timeout or DEFAULT_REGISTRATION_TIMEOUT_MS,
            request_timeout_ms=request.request_timeout or DEFAULT_REQUEST_TIMEOUT_MS,
        )

    def __str__(self) -> str:
        return f"{self.name} {self.version}".strip()

    def events(self, *, hears_starts: bool) -> Events:
        """Return the events to subscribe to: an unknown bit makes a runtime drop the plugin.

        With *hears_starts*, the end of each start is an event too.
        """
        events = LIFECYCLE | Events.POST_START_CONTAINER if hears_starts else LIFECYCLE
        # 0.9.1 was never released: CRI-O 1.33 carries a snapshot of it with this event.
        if self._has(Version(0, 9, 1, released=False)):
            return events | Events.UPDATE_POD_SANDBOX
        return events

    @property
    def unsolicited_updates_safe(self) -> bool:
        """Whether UpdateContainers cannot deadlock the runtime (containerd#13733, nri#301)."""
        return self._has(Version(0, 12, 1))

    @property
    def registration_can_deadlock(self) -> bool:
        """Whether our registering can block the runtime for good (containerd#10085)."""
        return self.nri is not None and self.nri < Version(0, 6, 1)

    @property
    def closes_unsynchronized(self) -> bool:
        """Whether a plugin whose Synchronize failed is surely closed, not left deaf (nri#279)."""
        return self._has(Version(0, 12, 0))

    @property
    def no_scheduler(self) -> str:
        """Why a container's scheduling policy cannot be set, empty if it can.

        An older NRI ignores the field without a word.
        """
        return self._without(Version(0, 11, 0), "scheduling policy", "2.2.1", "1.35")

    @property
    def no_io_priority(self) -> str:
        """Why a container's I/O priority cannot be set, empty if it can."""
        return self._without(Version(0, 10, 0), "I/O priority", "2.2.0", "1.34")

    @property
    def no_unified_updates(self) -> str:
        """Why cgroup v2 files of a container that exists cannot be set, empty if they can.

        Older containerd forgets those that the kubelet has set when a plugin changes any.
        """
        release = Version.parse(self.version)
        if self.name == "containerd" and release is not None and release < (2, 1, 0):
            return f"runtime too old: {self} would lose what the kubelet has set"
        return ""

    @property
    def has_cdi_on(self) -> bool:
        """Whether containers get devices by CDI where the configuration does not say."""
        release = Version.parse(self.version)
        return not (self.name == "containerd" and release is not None and release < (2, 0, 0))

    def _without(self, since: Version, what: str, containerd: str, crio: str) -> str:
        if self._has(since):
            return ""
        newer = f"it needs containerd {containerd} or CRI-O {crio}"
        return f"runtime too old: {self} has no {what} of containers, {newer}"

    @property
    def shows_pod_processes(self) -> bool:
        """Whether a pod that runs shows the pid of its first process, and a stopped one none."""
        return self.name == "containerd"

    @property
    def hides_creations(self) -> bool:
        """Whether a creation that goes on while we register is in no list.

        It is not with CRI-O, nor where registrations do not wait for creations: before NRI 0.7, and
        in containerd 2.0 at first (nri.md §3.6).
        """
        release = Version.parse(self.version)
        left_out = release is not None and (2, 0, 0) <= release[:3] < (2, 0, 3)
        return self.name == "cri-o" or left_out or not self._has(Version(0, 7, 0))

    @property
    def forgets_creations(self) -> bool:
        """Whether a creation that is given up is in no event: CRI-O."""
        return self.name == "cri-o"

    @property
    def lists_creations(self) -> bool:
        """Whether it may list what containers were created with: CRI-O does after its restart."""
        return self.name == "cri-o"

    @property
    def serves_crio_annotations(self) -> bool:
        """Whether it does itself what the annotations of `crio.io` ask for, where a pod has them.

        CRI-O removes those that its `allowed_annotations` do not name before we see the pod.
        """
        return self.name == "cri-o"

    def _has(self, since: Version) -> bool:
        return self.nri is not None and self.nri >= since


def bundled_nri(name: str, release: Version) -> Version | None:
    """Return the NRI that a release of a runtime ships with, None if that is not known."""
    rows = _SHIPPED.get(name, [])
    return next((nri for since, nri in rows if release[:3] >= since), None)


def _assume_nri(name: str, version: str) -> Version | None:
    """Return the NRI version of a runtime that announces none."""
    release = Version.parse(version)
    nri = None if release is None else bundled_nri(name, release)
    return None if nri is None else min(nri, _MOST_UNTOLD)
