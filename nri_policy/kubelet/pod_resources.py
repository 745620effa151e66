"""The kubelet's PodResources API: the devices that it assigned to containers (nri.md §8).

It also says which pods have devices of resource claims (DRA); the API server has the details.

Owns when the kubelet is queried, and which of its answers count. Rule 1: no request waits long for
the kubelet. Queries run beside the requests of the runtime and end at a deadline; a caller gets the
answers that are there. Rule 2: no answer is better than another pod's. Pods have no uid in this
API, so the answer may be about an older pod of the same name. The devices show that, because two
pods never share one. Rule 3: a connection is opened for a query and closed soon after it, because
a channel without a server reconnects again and again.

The kubelet assigns devices before it has the runtime create the pod, so the answer to a query at
that time is complete.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import (
    AsyncIterator,
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

from nri_policy.foundation.clock import SYSTEM_CLOCK, Clock
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.foundation.on_demand import OnDemand
from nri_policy.foundation.wording import quoted
from nri_policy.kubelet.errors import KubeletError
from nri_policy.workload.pod import Pod

if TYPE_CHECKING:
    from nri_policy.kubelet.pod_resources_client import PodResourcesClient
    from nri_policy.proto.podresources_pb2 import (
        AllocatableResourcesResponse,
        ContainerDevices,
        PodResources,
    )

log = logging.getLogger(__name__)

DEADLINE = 1.0  # seconds for a query, with its second try; a runtime waits for 2
PATIENCE = 0.1  # seconds that a request may wait for running queries
_HIGHEST_NODE = 1023  # the kernel's MAX_NUMNODES has never been above 1024

Device = tuple[str, str]  # resource and id
_Name = tuple[str, str]  # a pod's namespace and name
_Devices = Mapping[tuple[str, str, str], CPUSet]  # nodes by container, resource and device id


def pod_resources_socket(kubelet_dir: Path) -> Path:
    """Return the PodResources socket of the kubelet whose folder is *kubelet_dir*."""
    return kubelet_dir / "pod-resources" / "kubelet.sock"


@dataclass(frozen=True, slots=True)
class _Answer:
    """The kubelet's answer about a pod."""

    devices: _Devices
    claims: bool = False  # whether a container has devices of a resource claim


_NOTHING = _Answer({})
_Answers = Mapping[_Name, _Answer]
_Asking = Coroutine[Any, Any, _Answers]
_Found = TypeVar("_Found")


@dataclass(slots=True)
class _Query:
    """A query about a pod."""

    pod: Pod
    task: asyncio.Task[_Answers]
    older: _Query | None = None  # about a pod of the same name that still existed at this query

    @property
    def answer(self) -> _Answer:
        """The answer so far."""
        return self.task.result().get(_name(self.pod), _NOTHING) if self.task.done() else _NOTHING

    @property
    def stale(self) -> bool:
        """Whether the answer is about the older pod: both never have the same device."""
        if self.older is None:
            return False
        theirs = {(resource, device) for _, resource, device in self.older.answer.devices}
        return any((resource, device) in theirs for _, resource, device in self.answer.devices)


class Assignments:
    """The devices that the kubelet has assigned to the pods that it was queried about."""

    def __init__(
        self,
        socket: Path,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Take the kubelet's socket, which need not exist yet."""
        self._socket = socket
        self._clock = clock
        self._queries: dict[_Name, _Query] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._get = True  # whether the kubelet has the call Get, as far as is known
        self._listing = asyncio.Lock()
        self._lists = 0  # started so far
        self._listed: _Answers = {}
        self._kubelet = OnDemand(self._connected, clock)
        self.answered: Callable[[], None] = lambda: None  # called after each answer

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
        """Query a pod that is about to run."""
        name = _name(pod)
        older = self._queries.get(name)
        if older is not None:
            # a new sandbox of the same pod: the older pod of the same name is still the same
            older = older.older if older.pod.uid == pod.uid else replace(older, older=None)
        self._queries[name] = _Query(pod, self._start(partial(self._one, name)), older)

    def ask_all(self, pods: Iterable[Pod]) -> None:
        """Query all pods that already run with one call, and forget all others."""
        self._get = True  # this may be another kubelet than before
        for query in self._queries.values():  # the list answers these, or their pods are gone
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
        """Wait for the answers about *pods* and for *others*, at most *seconds*."""
        queries = [query for pod in pods if (query := self._query(pod)) is not None]
        for query in queries:
            if query.stale:
                query.task = self._start(partial(self._one, _name(query.pod)))
        tasks: set[asyncio.Task[Any]] = {query.task for query in queries} | {*others}
        if not all(task.done() for task in tasks):
            await self._done_within(seconds, tasks)

    def devices(self, pod: Pod, container: str) -> Mapping[str, Mapping[str, CPUSet]]:
        """Return the NUMA nodes of the devices assigned to *container*, by resource and id.

        An empty set is an unknown place. Devices that are not known, or not yet, are left out.
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
        """Return the names of the pod's containers that have devices, as far as is known."""
        query = self._query(pod)
        if query is None or query.stale:
            return ()
        return dict.fromkeys(owner for owner, _, _ in query.answer.devices)

    async def has_claims(self, pod: Pod) -> bool:
        """Wait for the answer about *pod*; return whether it has devices of a resource claim."""
        query = self._query(pod)
        if query is None:
            return False
        while not query.task.done():  # a new query may have replaced it meanwhile
            await asyncio.wait({query.task})
        return not query.task.cancelled() and query.answer.claims

    @property
    def in_use(self) -> frozenset[Device]:
        """The devices of all queried pods that still exist."""
        return frozenset(
            (resource, device)
            for query in self._queries.values()
            if not query.stale
            for _, resource, device in query.answer.devices
        )

    async def allocatable(self) -> Mapping[Device, CPUSet] | None:
        """Return the NUMA nodes of all assignable devices; None without an answer."""
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
            # the answer about its successor may have been about it, or may just have changed
            query.older = None
            query.task = self._start(partial(self._one, name))

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[PodResourcesClient]:
        from nri_policy.kubelet.pod_resources_client import PodResourcesClient  # noqa: PLC0415 - with gRPC

        client = PodResourcesClient(self._socket, self._clock)
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
        """Return the result of *ask*; None if it fails or takes too long."""
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
        """Return whether all *tasks* are done within *seconds*; leaves them running."""
        timer = asyncio.ensure_future(self._clock.sleep(seconds))
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
        # a kubelet that lists this pod, but did not Get it, lacks the call Get
        self._get = self._get and name not in answers
        return answers

    async def _list(self) -> _Answers:
        """Return the result of a List that begins after this call; concurrent callers share it."""
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

    With the policy none there are no allocatable CPUs; kubelet, cm/cpumanager/policy_none.go.
    """
    return bool(answer.cpu_ids)


def _name(pod: Pod) -> _Name:
    return pod.namespace, pod.name


def _by_pod(resources: Iterable[PodResources]) -> _Answers:
    """Return the answer about each pod; no devices for two pods of one name that both have some."""
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
    """Return the nodes of each device: it has an entry for each of its nodes."""
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
