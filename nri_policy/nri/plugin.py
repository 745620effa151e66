"""What a plugin is to the wire: the methods behind the RPCs, and the call they run for."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from google.protobuf.message import Message
from msgspec import Struct

from nri_policy.foundation.clock import Clock
from nri_policy.nri.versions import Events, Runtime
from nri_policy.proto.nri_pb2 import (
    ConfigureRequest,
    Container,
    ContainerUpdate,
    CreateContainerResponse,
    LinuxResources,
    PodSandbox,
    StopContainerResponse,
    UpdateContainerResponse,
    UpdatePodSandboxRequest,
)

_T = TypeVar("_T")


class Plugin(Protocol):
    """Handles requests, one at a time and in the order in which the runtime sent them.

    A method fails its request by raising `Refused`; which failures fail the pod is up to the
    runtime (those of create, start and update do, the others are logged). Any other exception
    fails the request as an internal error. A method is cancelled when its connection closes before
    it is answered, not when `late` answered. `begin` and `end` enclose each request's method.

    Until a method waits for the first time it runs in no task, so `asyncio.timeout` is an error.
    """

    def begin(self, call: Call) -> None:
        """Note the request that the next method runs for."""

    def end(self) -> None:
        """Note that this method has ended."""

    def step(self, work: Callable[[], _T]) -> _T:
        """Do the first step of a request, which ends with its answer, or where it waits."""
        return work()

    async def configure(self, request: ConfigureRequest, runtime: Runtime) -> Events:
        """Take note of the runtime that a new connection leads to; return the events to hear."""

    async def synchronize(
        self, pods: Sequence[PodSandbox], containers: Sequence[Container]
    ) -> Sequence[ContainerUpdate]:
        """Take the runtime's pods and containers for the truth; return changes of the latter."""

    async def run_pod_sandbox(self, pod: PodSandbox) -> None:
        """Handle a new pod."""

    async def update_pod_sandbox(self, request: UpdatePodSandboxRequest) -> None:
        """Handle the new amounts of a resized pod, or refuse them; newer runtimes only."""

    async def stop_pod_sandbox(self, pod: PodSandbox) -> None:
        """Handle a pod's end."""

    async def remove_pod_sandbox(self, pod: PodSandbox) -> None:
        """Forget a pod."""

    async def create_container(
        self, pod: PodSandbox, container: Container
    ) -> CreateContainerResponse:
        """Return the adjustment of a container to be, and updates of others."""

    async def start_container(self, pod: PodSandbox, container: Container) -> None:
        """Handle that a container is about to start."""

    async def post_start_container(self, pod: PodSandbox, container: Container) -> None:
        """Handle that a container runs."""

    async def update_container(
        self, pod: PodSandbox, container: Container, resources: LinuxResources
    ) -> UpdateContainerResponse:
        """Answer a request to change a container's *resources* with updates of it and of others."""

    async def post_update_container(self, pod: PodSandbox, container: Container) -> None:
        """Handle that an update was applied as answered; refused updates have no such event."""

    async def stop_container(self, pod: PodSandbox, container: Container) -> StopContainerResponse:
        """Release a container; return updates of others."""

    async def remove_container(self, pod: PodSandbox, container: Container) -> None:
        """Forget a container."""

    async def disconnected(self) -> None:
        """Handle the loss of the runtime that configured us; its last request is handled."""

    def late(self, method: str, request: Message) -> Message | None:
        """Return a safe answer to a request that has used 80 % of its time, or None to go on.

        *method* is the RPC's name and *request* its message, or the `StateChangeEvent` that stands
        for it; the answer is the RPC's response message. A runtime drops a plugin that misses its
        deadline, so any answer is better than none. The method that was late goes on, in its turn,
        but its own answer is lost.
        """


class PluginIdentity(Struct, frozen=True, kw_only=True):
    """A plugin's name, and the index that orders it among the others of the node.

    Raises ValueError for what a runtime would turn away.
    """

    name: str
    index: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.+-]+", self.name):
            raise ValueError(
                f"plugin name {self.name[:64]!r}: letters, digits and the characters _.+- are valid"
            )
        if not re.fullmatch(r"[0-9]{2}", self.index):
            raise ValueError(f"plugin index {self.index[:64]!r}: two digits are valid, such as 05")


class Call(Struct, kw_only=True):
    """The request that a plugin's method is run for."""

    method: str
    came: float  # by `clock`, in seconds: the earliest time at which it can have arrived
    received: float  # by `clock`: when it was read
    deadline: float  # by `clock`; infinite if the caller set no limit
    clock: Clock
    answered: bool = False
