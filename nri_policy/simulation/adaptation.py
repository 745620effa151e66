"""The runtime's side of NRI: its plugins, and their calls for each event.

Owns the socket, the handshake (register, configure, synchronize), the order of plugins, the call
for each event, and the locks. Named after its model, NRI's pkg/adaptation. Must not know how
containers are kept: a Host lists and changes them.

There are two locks as in the original, and up to NRI 0.12.0 its bug: an event takes the runtime's
lock and then the adaptation's, a plugin's UpdateContainers takes them in the other order. A call at
the wrong moment deadlocks both for ever (containerd#13733).

Plugins are accepted one at a time: the next is not even read from before the last is active or
refused. A plugin that is gone is skipped; one that answers with an error fails the event.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Protocol

from google.protobuf.message import DecodeError, Message
from msgspec import Struct

from nri_policy.nri.errors import CallRefused, Code
from nri_policy.nri.release import Release
from nri_policy.nri.ttrpc import MAX_SENT_BODY
from nri_policy.proto import nri_pb2 as nri
from nri_policy.simulation.adjustment import CreationResult, Results
from nri_policy.simulation.link import (
    Deadline,
    FailedUpdatesError,
    PluginGoneError,
    PluginLink,
    Reply,
)

_CALL_OVERHEAD = 256  # bytes of a ttrpc request beside its payload, at most
_MIN_SPLIT = 8  # pods and containers of one Synchronize that is never split

log = logging.getLogger(__name__)


class ContainerBackend(Protocol):
    """What keeps the pods and containers."""

    def inventory(self) -> tuple[list[nri.PodSandbox], list[nri.Container]]:
        """Return the pods and containers for a new plugin."""

    def apply_updates(
        self, updates: Iterable[nri.ContainerUpdate], *, cause: str
    ) -> list[nri.ContainerUpdate]:
        """Change containers; return the failed updates whose failures matter."""


class Timeouts(Struct, frozen=True, kw_only=True):
    """How long plugins may take, in seconds; `deadline` makes the timers."""

    registration: float = 5.0
    request: float = 2.0
    deadline: Deadline = asyncio.timeout


class Adaptation:
    """The plugins of one runtime. Hold `lock`, the runtime's, around each event."""

    def __init__(
        self,
        socket_path: Path,
        release: Release,
        host: ContainerBackend,
        timeouts: Timeouts,
    ) -> None:
        self.lock = asyncio.Lock()
        self._own = asyncio.Lock()  # held while plugins handle an event
        self.plugins: list[PluginLink] = []  # active plugins in call order
        self.synchronizations = 0  # successful ones, ever
        self.changed = asyncio.Condition()  # notified when the two above change
        self._socket_path = socket_path
        self._release = release
        self._host = host
        self._timeouts = timeouts
        self._accepting = asyncio.Lock()
        self._server: asyncio.Server | None = None
        self._links: dict[PluginLink, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Listen on a new socket, as the runtimes do: whatever was there is removed."""
        self._socket_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._socket_path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._connected, self._socket_path)

    async def stop(self) -> None:
        """Close the socket and all plugins' connections."""
        if self._server is None:
            return
        self._server.close()
        self._socket_path.unlink(missing_ok=True)
        tasks = list(self._links.values())
        for link in self._links:
            link.close("runtime stops")
        await asyncio.gather(*tasks)
        await self._server.wait_closed()
        self._server = None

    async def settled(self) -> None:
        """Return when no handshake and no event is under way."""
        async with self._accepting, self.lock:
            pass

    # ---- events

    async def notify(
        self, event: nri.Event, pod: nri.PodSandbox, container: nri.Container | None = None
    ) -> None:
        """Notify plugins of an event that they only observe; raises Refused."""
        method = _method(event)
        reply = getattr(nri, f"{method}Response")
        request = getattr(nri, f"{method}Request")(pod=pod)
        if container is not None:
            request.container.CopyFrom(container)
        change = nri.StateChangeEvent(event=event, pod=pod, container=container)
        async with self._own:
            for plugin in self._subscribed(event):
                try:
                    if self._release.dedicated_calls:
                        try:
                            await self._ask(plugin, method, request, reply)
                            continue
                        except CallRefused as error:
                            if error.code != Code.UNIMPLEMENTED:
                                raise
                    await self._ask(plugin, "StateChange", change, nri.Empty)
                except PluginGoneError:
                    continue

    async def create(self, pod: nri.PodSandbox, container: nri.Container) -> CreationResult:
        """Return what plugins make of a container under creation; raises Refused."""
        results = CreationResult(container)
        async with self._own:
            async for plugin, reply in self._answers(
                nri.CREATE_CONTAINER,
                lambda: nri.CreateContainerRequest(pod=pod, container=results.container),
                nri.CreateContainerResponse,
            ):
                results.adjust(plugin, self._release.understood(reply.adjust))
                for update in reply.update:
                    results.update(plugin, update)
            await self._validate(pod, container, results)
        return results

    async def update(
        self, pod: nri.PodSandbox, container: nri.Container, resources: nri.LinuxResources
    ) -> Results:
        """Return what plugins make of a resize; raises Refused."""
        results = Results(container, resources)
        async with self._own:
            async for plugin, reply in self._answers(
                nri.UPDATE_CONTAINER,
                lambda: nri.UpdateContainerRequest(
                    pod=pod, container=container, linux_resources=results.requested
                ),
                nri.UpdateContainerResponse,
            ):
                for update in reply.update:
                    results.update(plugin, update)
        return results

    async def stop_container(self, pod: nri.PodSandbox, container: nri.Container) -> Results:
        """Return what plugins want changed when a container ends; raises Refused."""
        results = Results(container)
        async with self._own:
            async for plugin, reply in self._answers(
                nri.STOP_CONTAINER,
                lambda: nri.StopContainerRequest(pod=pod, container=container),
                nri.StopContainerResponse,
            ):
                for update in reply.update:
                    results.update(plugin, update)
        return results

    async def update_pod(
        self,
        pod: nri.PodSandbox,
        overhead: nri.LinuxResources,
        resources: nri.LinuxResources,
    ) -> None:
        """Ask plugins whether a pod's resources may change; raises Refused if not."""
        request = nri.UpdatePodSandboxRequest(
            pod=pod, overhead_linux_resources=overhead, linux_resources=resources
        )
        async with self._own:
            async for _ in self._answers(
                nri.UPDATE_POD_SANDBOX, lambda: request, nri.UpdatePodSandboxResponse
            ):
                pass

    async def _validate(
        self, pod: nri.PodSandbox, container: nri.Container, results: CreationResult
    ) -> None:
        """Let validating plugins refuse; here one that is gone or knows no such call refuses."""
        request = nri.ValidateContainerAdjustmentRequest(
            pod=pod,
            container=container,
            adjust=results.adjustment,
            update=results.others,
            plugins=[
                nri.PluginInstance(index=plugin.name[:2], name=plugin.name[3:])
                for plugin in self.plugins
            ],
        )
        for plugin in self._subscribed(nri.VALIDATE_CONTAINER_ADJUSTMENT):
            method = _method(nri.VALIDATE_CONTAINER_ADJUSTMENT)
            try:
                reply = await self._ask(
                    plugin, method, request, nri.ValidateContainerAdjustmentResponse
                )
            except PluginGoneError as error:
                raise CallRefused(f"validator {plugin.name!r} failed: {error}") from error
            if reply.reject:
                raise CallRefused(f"validator {plugin.name!r} rejected: {reply.reason}")

    async def _answers(
        self, event: nri.Event, request: Callable[[], Message], reply: type[Reply]
    ) -> AsyncIterator[tuple[str, Reply]]:
        """Yield (plugin, its answer), one after the other, each to a new *request*."""
        for plugin in self._subscribed(event):
            try:
                answer = await self._ask(plugin, _method(event), request(), reply)
            except PluginGoneError:
                continue
            yield plugin.name, answer

    async def _ask(
        self, plugin: PluginLink, method: str, request: Message, reply: type[Reply]
    ) -> Reply:
        async with plugin.within(self._timeouts.request):
            return await plugin.call(method, request, reply, budget=self._timeouts.request)

    def _subscribed(self, event: nri.Event) -> list[PluginLink]:
        return [plugin for plugin in self.plugins if plugin.subscribed(event)]

    # ---- connections of plugins

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = PluginLink(reader, writer, serve=self._serve, deadline=self._timeouts.deadline)
        self._links[link] = asyncio.ensure_future(self._attend(link))
        await self._links[link]

    async def _attend(self, link: PluginLink) -> None:
        """Accept a plugin, and read from it until it disconnects."""
        async with self._accepting:
            reading = asyncio.create_task(link.run())
            try:
                await self._shake_hands(link)
            except (CallRefused, PluginGoneError) as error:
                log.warning("not-accepted", extra={"plugin": link.name, "reason": str(error)})
                link.close(str(error))
        await reading
        del self._links[link]
        self.plugins = [plugin for plugin in self.plugins if plugin is not link]
        async with self.changed:
            self.changed.notify_all()

    async def _shake_hands(self, link: PluginLink) -> None:
        async with link.within(self._timeouts.registration):
            await link.registered
        await self._configure(link)
        async with self.lock:
            async with link.within(self._timeouts.request):
                updates = await self._synchronize(link)
            failed = self._host.apply_updates(updates, cause="Synchronize")
            if failed and self._release.name == "cri-o":
                if self._release.dedicated_calls:
                    raise CallRefused("updates of Synchronize failed")
                log.warning("left-deaf", extra={"plugin": link.name})  # nri#279
                return
            async with self._own:
                self.plugins = sorted([*self.plugins, link], key=lambda plugin: plugin.name[:2])
            self.synchronizations += 1
        async with self.changed:
            self.changed.notify_all()

    async def _configure(self, link: PluginLink) -> None:
        request = self._release.configuration(
            registration_timeout=self._timeouts.registration,
            request_timeout=self._timeouts.request,
        )
        async with link.within(self._timeouts.request):
            reply = await link.call(
                "Configure",
                request,
                nri.ConfigureResponse,
                budget=self._timeouts.request,
                from_cri=False,
            )
        known = self._release.known_events
        if reply.events & ~known:
            raise CallRefused(f"invalid plugin events: 0x{reply.events & ~known & 0xFFFFFFFF:x}")
        link.events = reply.events or known

    async def _synchronize(self, link: PluginLink) -> Iterable[nri.ContainerUpdate]:
        """Send all there is, in parts if need be; return the updates asked for."""
        started = asyncio.get_running_loop().time()
        pods, containers = self._host.inventory()
        most_pods, most_containers = len(pods), len(containers)
        while True:
            request = nri.SynchronizeRequest(
                pods=pods[:most_pods],
                containers=containers[:most_containers],
                more=len(pods) > most_pods or len(containers) > most_containers,
            )
            size = request.ByteSize() + _CALL_OVERHEAD
            splits = len(request.pods) + len(request.containers) > _MIN_SPLIT
            if size > MAX_SENT_BODY and splits and self._release.splits_synchronization:
                factor = min(0.9, MAX_SENT_BODY / size)
                most_pods = max(_MIN_SPLIT // 2, int(most_pods * factor))
                most_containers = max(_MIN_SPLIT // 2, int(most_containers * factor))
                continue
            elapsed = asyncio.get_running_loop().time() - started
            reply = await link.call(
                "Synchronize",
                request,
                nri.SynchronizeResponse,
                budget=self._timeouts.request - elapsed,
                from_cri=False,
            )
            if not request.more:
                return reply.update
            if not reply.more or reply.update:
                raise CallRefused("plugin does not handle split sync requests")
            del pods[:most_pods], containers[:most_containers]

    async def _serve(self, link: PluginLink, method: str, payload: bytes) -> Message:
        """Answer a plugin's call; raises Refused."""
        try:
            if method == "RegisterPlugin":
                return self._register(link, nri.RegisterPluginRequest.FromString(payload))
            if method == "UpdateContainers":
                return await self._update(link, nri.UpdateContainersRequest.FromString(payload))
        except DecodeError as error:
            raise CallRefused(f"unmarshal error: {error}", code=Code.INVALID_ARGUMENT) from error
        raise CallRefused(f"method {method[:60]!r}", code=Code.UNIMPLEMENTED)

    def _register(self, link: PluginLink, request: nri.RegisterPluginRequest) -> nri.Empty:
        if link.registered.done():
            raise CallRefused("plugin is registered already")
        if refusal := self._release.refusal(request):
            error = CallRefused(f"failed to register plugin: {refusal}")
            link.registered.set_exception(error)
            raise error
        link.name = f"{request.plugin_idx}-{request.plugin_name}"
        link.registered.set_result(None)
        return nri.Empty()

    async def _update(
        self, link: PluginLink, request: nri.UpdateContainersRequest
    ) -> nri.UpdateContainersResponse:
        locks = [self.lock, self._own]
        if not self._release.updates_safely:
            locks.reverse()
        async with locks[0], locks[1]:
            failed = self._host.apply_updates(request.update, cause=f"UpdateContainers {link.name}")
        response = nri.UpdateContainersResponse(failed=failed)
        if failed:
            raise FailedUpdatesError("failed to update some containers", response)
        return response


def _method(event: nri.Event) -> str:
    """Return the name of the call that carries *event*: `CreateContainer` for CREATE_CONTAINER."""
    return "".join(word.title() for word in nri.Event.Name(event).split("_"))
