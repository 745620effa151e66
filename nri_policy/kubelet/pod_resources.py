"""The kubelet's PodResources API: which devices it assigned to which container (nri.md §8).

It also says which pods have claimed devices (DRA); of whom these are, the API server knows better.

Owns when the kubelet is asked, and which of its answers are believed. Rule 1: nobody waits for the
kubelet. Questions run beside the requests of the runtime, end at a deadline, and who wants an
answer gets what is there. Rule 2: no answer is better than another pod's. Pods have no uid in this
API, so what is said of a namesake is told by the devices themselves: two pods never share one.
Rule 3: nobody connects before a question, nor stays long after it: a channel to nobody tries again
and again.

The kubelet assigns devices before it has the runtime make the pod, so an answer to a question that
is asked then is complete.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Mapping,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from nri_policy.foundation.clock import Clock
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.foundation.on_demand import OnDemand
from nri_policy.foundation.wording import quoted
from nri_policy.kubelet.errors import KubeletError
from nri_policy.workload.pod import Pod

if TYPE_CHECKING:
    from nri_policy.kubelet.pod_resources_client import Client
    from nri_policy.proto.podresources_pb2 import (
        AllocatableResourcesResponse,
        ContainerDevices,
        PodResources,
    )

log = logging.getLogger(__name__)

DEADLINE = 1.0  # seconds for a question, its second try included; a runtime waits for 2
PATIENCE = 0.1  # seconds that a request may wait for answers that are on their way
_HIGHEST_NODE = 1023  # the kernel's MAX_NUMNODES has never been above 1024

Device = tuple[str, str]  # resource and id
_Name = tuple[str, str]  # a pod's namespace and name
_Devices = Mapping[tuple[str, str, str], CPUSet]  # nodes by container, resource and device id


def pod_resources_socket(kubelet_dir: Path) -> Path:
    """Return the PodResources socket of the kubelet whose folder is *kubelet_dir*."""
    return kubelet_dir / "pod-resources" / "kubelet.sock"


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the kubelet says of a pod."""

    devices: _Devices
    claims: bool = False  # whether a container has devices of a resource claim


_NOTHING = _Answer({})
_Answers = Mapping[_Name, _Answer]
_Asking = Coroutine[Any, Any, _Answers]
_Found = TypeVar("_Found")


@dataclass(slots=True)
class _Query:
    """A question about a pod."""

    pod: Pod
    task: asyncio.Task[_Answers]
    older: _Query | None = None  # about a namesake that had not gone when this was asked

    @property
    def answer(self) -> _Answer:
        """What is known by now."""
        return self.task.result().get(_name(self.pod), _NOTHING) if self.task.done() else _NOTHING

    @property
    def stale(self) -> bool:
        """Whether the answer is the namesake's: devices belong to one pod at a time."""
        if self.older is None:
            return False
        theirs = {(resource, device) for _, resource, device in self.older.answer.devices}
        return any((resource, device) in theirs for _, resource, device in self.answer.devices)


class Assignments:
    """What the kubelet has assigned to the pods that it was asked about."""

    def __init__(
        self,
        socket: Path,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Take the kubelet's socket, which need not be there yet."""
        self._socket = socket
        self._sleep = sleep
        self._queries: dict[_Name, _Query] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._get = True  # whether the kubelet has Get, as far as we know
        self._listing = asyncio.Lock()
        self._lists = 0  # started so far
        self._listed: _Answers = {}
        self._kubelet = OnDemand(self._connected, Clock())
        self.answered: Callable[[], None] = lambda: None  # called when more is known

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._kubelet.close()

    def ask(self, pod: Pod) -> None:
        """Ask about a pod that is about to run."""
        name = _name(pod)
        older = self._queries.get(name)
        if older is not None:
            # asked again of the same pod, for a new sandbox: a namesake before it is still one
            older = older.older if older.pod.uid == pod.uid else replace(older, older=None)
        self._queries[name] = _Query(pod, self._start(partial(self._one, name)), older)

    def ask_all(self, pods: Iterable[Pod]) -> None:
        """Ask about pods that run already, all at once, and forget all others."""
        self._get = True  # this may be another kubelet than before
        for query in self._queries.values():  # the list answers them, or they are gone
            query.task.cancel()
        task = self._start(self._list)
        self._queries = {_name(pod): _Query(pod, task) for pod in pods}

    async def ready(
        self,
        pods: Iterable[Pod],
        others: Iterable[asyncio.Task[Any]] = (),
        *,
        seconds: float = PATIENCE,
    ) -> None:
        """Wait for the answers about *pods*, and for *others*, but no longer than *seconds*."""
        queries = [query for pod in pods if (query := self._query(pod)) is not None]
        for query in queries:
            if query.stale:
                query.task = self._start(partial(self._one, _name(query.pod)))
        tasks: set[asyncio.Task[Any]] = {query.task for query in queries} | {*others}
        if not all(task.done() for task in tasks):
            await self._done_within(seconds, tasks)

    def devices(self, pod: Pod, container: str) -> Mapping[str, Mapping[str, CPUSet]]:
        """Return by resource and id the NUMA nodes of the devices that *container* was assigned.

        Empty sets are devices of unknown place. What is not known, or not yet, is left out.
        """
        query = self._query(pod)
        if query is None or query.stale:
            return {}
        found: dict[str, dict[str, CPUSet]] = {}
        for (owner, resource, device), nodes in query.answer.devices.items():
            if owner == container:
                found.setdefault(resource, {})[device] = nodes
        return found

    def owners(self, pod: Pod) -> Collection[str]:
        """Return the names of the pod's containers that have devices, as far as that is known."""
        query = self._query(pod)
        if query is None or query.stale:
            return ()
        return dict.fromkeys(owner for owner, _, _ in query.answer.devices)

    async def has_claims(self, pod: Pod) -> bool:
        """Wait for the answer about *pod*; return whether it has devices of a resource claim."""
        query = self._query(pod)
        if query is None:
            return False
        while not query.task.done():  # it may be asked again meanwhile
            await asyncio.wait({query.task})
        return not query.task.cancelled() and query.answer.claims

    @property
    def in_use(self) -> frozenset[Device]:
        """The devices of all pods that were asked about and are not gone."""
        return frozenset(
            (resource, device)
            for query in self._queries.values()
            if not query.stale
            for _, resource, device in query.answer.devices
        )

    async def allocatable(self) -> Mapping[Device, CPUSet] | None:
        """Return the NUMA nodes of every device that can be assigned at all; None: no answer."""
        return await self._within_deadline(self._allocatable)

    async def manages_cpus(self) -> bool | None:
        """Return whether the kubelet's CPU manager gives CPUs to containers; None: no answer."""
        return await self._within_deadline(self._manages_cpus)

    def forget(self, pod: Pod) -> None:
        """Forget a pod that is gone."""
        name = _name(pod)
        query = self._queries.get(name)
        if query is None:
            return
        if query.pod.id == pod.id:
            del self._queries[name]
        elif query.older is not None and query.older.pod.id == pod.id:
            # its successor may have been told of its devices, or may have got them just now
            query.older = None
            query.task = self._start(partial(self._one, name))

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Client]:
        from nri_policy.kubelet.pod_resources_client import Client  # noqa: PLC0415 - with gRPC

        client = Client(self._socket, self._sleep)
        try:
            yield client
        finally:
            await client.close()

    def _query(self, pod: Pod) -> _Query | None:
        query = self._queries.get(_name(pod))
        return query if query is not None and query.pod.uid == pod.uid else None

    def _start(self, ask: Callable[[], _Asking]) -> asyncio.Task[_Answers]:
        task = asyncio.create_task(self._answers(ask), name="pod resources")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self.answered())
        return task

    async def _answers(self, ask: Callable[[], _Asking]) -> _Answers:
        return await self._within_deadline(ask) or {}

    async def _within_deadline(
        self, ask: Callable[[], Coroutine[Any, Any, _Found]]
    ) -> _Found | None:
        """Return what *ask* finds out, None if it fails or takes too long."""
        task = asyncio.create_task(ask())
        try:
            if await self._done_within(DEADLINE, {task}):
                return task.result()
            log.warning("no-pod-resources", extra={"reason": f"no answer within {DEADLINE:g} s"})
        except KubeletError as error:
            extra = {"code": error.code, "reason": quoted(error.reason)}
            log.warning("no-pod-resources", extra=extra)
        finally:
            task.cancel()
        return None

    async def _done_within(self, seconds: float, tasks: set[asyncio.Task[Any]]) -> bool:
        """Return whether all *tasks* are done before *seconds* are over; leaves them running."""
        timer = asyncio.ensure_future(self._sleep(seconds))
        pending: set[asyncio.Future[Any]] = {*tasks, timer}
        try:
            while timer in pending and len(pending) > 1:
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
        return all(task.done() for task in tasks)

    async def _one(self, name: _Name) -> _Answers:
        if self._get:
            async with self._kubelet.use() as kubelet:
                answer = await kubelet.get(*name)
            if answer is not None:
                return _by_pod([answer])
        answers = await self._list()
        # it does not know a pod that it lists: then it does not know Get
        self._get = self._get and name not in answers
        return answers

    async def _list(self) -> _Answers:
        """Return what a List that begins from now on says; those who wait for one share it."""
        begun = self._lists
        async with self._listing:
            if self._lists == begun:
                self._lists, self._listed = begun + 1, {}
                async with self._kubelet.use() as kubelet:
                    self._listed = _by_pod(await kubelet.list())
            return self._listed

    async def _allocatable(self) -> Mapping[Device, CPUSet]:
        devices: dict[Device, CPUSet] = {}
        async with self._kubelet.use() as kubelet:
            answer = await kubelet.allocatable()
        for entry in answer.devices:
            nodes = _nodes(entry)
            for device in entry.device_ids:
                key = entry.resource_name, device
                devices[key] = devices.get(key, EMPTY) | nodes
        return devices

    async def _manages_cpus(self) -> bool:
        async with self._kubelet.use() as kubelet:
            return manages_cpus(await kubelet.allocatable())


def manages_cpus(answer: AllocatableResourcesResponse) -> bool:
    """Return whether the kubelet's CPU manager gives CPUs to containers: its policy is static.

    With the policy none it has no allocatable CPUs; kubelet, cm/cpumanager/policy_none.go.
    """
    return bool(answer.cpu_ids)


def _name(pod: Pod) -> _Name:
    return pod.namespace, pod.name


def _by_pod(resources: Iterable[PodResources]) -> _Answers:
    """Return what each pod has; of namesakes that both have devices: the devices of neither."""
    devices: dict[_Name, _Devices] = {}
    ambiguous, claiming = set(), set()
    for pod in resources:
        name, found = (pod.namespace, pod.name), _devices(pod)
        if found and devices.get(name):
            ambiguous.add(name)
        devices[name] = found or devices.get(name, {})
        if any(container.dynamic_resources for container in pod.containers):
            claiming.add(name)
    return {
        name: _Answer({} if name in ambiguous else found, claims=name in claiming)
        for name, found in devices.items()
    }


def _devices(pod: PodResources) -> _Devices:
    """Return the nodes of each device: there is an entry for each, and for each of its nodes."""
    devices: dict[tuple[str, str, str], CPUSet] = {}
    for container in pod.containers:
        for entry in container.devices:
            nodes = _nodes(entry)
            for device in entry.device_ids:
                key = container.name, entry.resource_name, device
                devices[key] = devices.get(key, EMPTY) | nodes
    return devices


def _nodes(entry: ContainerDevices) -> CPUSet:
    return CPUSet(node.ID for node in entry.topology.nodes if 0 <= node.ID <= _HIGHEST_NODE)
