"""Plays scenarios: each step against the embedded runtime and a node's daemon.

Owns the effect of a step, the pod or container of a name, and the result of each step in the form
that `nri-policy simulate` documents. Must not know the daemon: a Node stands for it.

The daemon is started once its settings are known: after the first step if that sets settings,
before it otherwise. A failed step has an error in its result, and the next one is played.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, Protocol, assert_never

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.yamltext import Marks
from nri_policy.manifests.pod import PodManifest
from nri_policy.manifests.resources import ManifestError
from nri_policy.report import Containers, OccupiedPoolReport, plain, refusal_report
from nri_policy.simulation.containers import CRIError, SimulatedContainer, SimulatedPod
from nri_policy.simulation.embedded import EmbeddedRuntime, PodStartError
from nri_policy.simulation.scenario import (
    SET_FIELDS,
    Advance,
    Apply,
    ChangeSettings,
    ClaimsStep,
    Delete,
    Devices,
    Disks,
    Expect,
    HotplugStep,
    Resize,
    Restart,
    Step,
)

_NOTHING = refusal_report("", updated_by=())
COMES_BACK = 60.0  # seconds of real time; the daemon's longest wait between attempts is half of it


class NodeError(Exception):
    """The daemon refuses a step, or does not start; the text is for the user."""


class NodeSnapshot(Struct, frozen=True, kw_only=True):
    """What the daemon holds."""

    containers: Containers
    pools: Sequence[OccupiedPoolReport]


class PlayedNode(Protocol):
    """A daemon under simulation. Every method returns when its effect is complete."""

    async def restart(self) -> None:
        """Kill the daemon if it runs, and start it; raises NodeError."""

    async def settings(self, spec: Mapping[str, Any], marks: Marks) -> None:
        """Set settings, of the running daemon or for its start; raises NodeError.

        The *marks* are the places of the spec's parts in its file, for errors.
        """

    async def hotplug(self, *, offline: CPUSet, online: CPUSet) -> None:
        """Take CPUs offline and online; raises NodeError."""

    async def attach(self, devices: Mapping[int, int | None], disks: Mapping[str, int]) -> None:
        """Replace all devices and disks; raises NodeError.

        NUMA nodes, by the minor number of the device manager's files, and by mount point.
        """

    async def advance(self, seconds: float) -> None:
        """Move the clock that daemon and runtime share, and do what falls due."""

    async def snapshot(self) -> NodeSnapshot:
        """Return what the daemon holds; nothing if it does not run."""


class Mismatch(Struct, frozen=True, kw_only=True):
    """A container is not as expected."""

    container: str  # `ns/pod/ctr`; "the last step" for its error
    field: str  # empty: whether it is there
    want: Any
    got: Any

    def __str__(self) -> str:
        field = f" {self.field}" if self.field else ""
        return f"{self.container}:{field} want {self.want!r}, got {self.got!r}"


class Result(Struct, frozen=True, kw_only=True):
    """What is there after a step."""

    step: int  # the first is 1
    error: str | None
    mismatches: list[Mismatch]
    containers: Containers
    pools: Sequence[OccupiedPoolReport]


class Playback:
    """Plays one scenario; the runtime must be listening, and the daemon not be started yet.

    *patience* is how long a started daemon may take to be back, in seconds of real time.
    """

    def __init__(
        self, runtime: EmbeddedRuntime, node: PlayedNode, *, patience: float = COMES_BACK
    ) -> None:
        self._runtime = runtime
        self._node = node
        self._patience = patience
        self._present = runtime.machine.online_cpus  # CPUs that can be online
        self._started = False
        self._disks: Mapping[str, int] = {}
        self._errors: dict[str, str] = {}  # container that did not start → its error

    async def play(self, steps: Iterable[Step]) -> AsyncIterator[Result]:
        """Play *steps*; yield the result of each.

        An `expect` changes nothing: it looks at what the step before it has done, updates included.
        """
        updates: dict[str, int] = {}
        failure: str | None = None  # of the last step other than `expect`
        for number, step in enumerate(steps, start=1):
            if not isinstance(step, Expect):
                updates = {c.id: len(c.updated_by) for c in self._runtime.containers}
            error = None
            try:
                await self._take(step)
            except (CRIError, ManifestError, NodeError) as refusal:
                error = str(refusal)
            await self._runtime.settled()
            snapshot = await self._node.snapshot()
            containers = self._containers(snapshot, updates)
            mismatches = []
            if isinstance(step, Expect):
                mismatches = _mismatches(step, containers, failure)
            else:
                failure = error
            yield Result(
                step=number,
                error=error,
                mismatches=mismatches,
                containers=containers,
                pools=snapshot.pools,
            )

    async def _take(self, step: Step) -> None:  # noqa: C901 - a case for each step
        if isinstance(step, Expect):
            return
        if isinstance(step, ChangeSettings):
            await self._node.settings(step.spec, step.marks)
        await self._start()
        match step:
            case ChangeSettings():
                pass  # before the start: they may be its first
            case Apply():
                await self._apply(step.pods)
            case Delete():
                await self._delete_all(step.names)
            case Resize():
                await self._resize(step)
            case Advance():
                await self._node.advance(step.seconds)
            case Restart():
                target = self._node if step.what == "daemon" else self._runtime
                await self._comes_back(target.restart)
            case HotplugStep():
                await self._hotplug(step)
            case Devices() | Disks() | ClaimsStep():
                await self._attach(step)
            case _:
                assert_never(step)

    async def _start(self) -> None:
        """Start the daemon, unless that was done."""
        if not self._started:
            await self._comes_back(self._node.restart)
            self._started = True

    async def _comes_back(self, restart: Callable[[], Awaitable[None]]) -> None:
        """Restart something, and wait until the runtime has synchronized the daemon again."""
        before = self._runtime.synchronizations
        await restart()
        try:
            async with asyncio.timeout(self._patience):
                await self._runtime.synchronized(after=before)
        except TimeoutError as error:
            raise NodeError("the daemon did not connect to the runtime") from error

    async def _apply(self, pods: Iterable[PodManifest]) -> None:
        errors = []
        for pod in pods:
            try:
                await self._runtime.start_pod(pod)
            except PodStartError as error:
                errors.append(str(error))
                self._errors |= {f"{pod.key}/{name}": str(e) for name, e in error.errors.items()}
            except CRIError as error:
                errors.append(f"{pod.key}: {error}")
                if pod.key not in self._pods():
                    names = [container.name for container in pod.spec.every_container]
                    self._errors |= {f"{pod.key}/{name}": str(error) for name in names}
        if errors:
            raise CRIError("; ".join(errors))

    async def _delete_all(self, names: Iterable[str]) -> None:
        errors = []
        for name in names:
            try:
                await self._delete(name)
            except CRIError as error:
                errors.append(str(error))
        if errors:
            raise CRIError("; ".join(errors))

    async def _delete(self, name: str) -> None:
        """Delete what *name* means: `a/b` is pod b of namespace a, or container b of pod a."""
        pod_key = name if "/" in name else f"default/{name}"
        container_key = _key(name)
        refused_pods = {key.rpartition("/")[0] for key in self._errors}
        is_pod = pod_key in refused_pods | self._pods().keys()
        is_container = container_key in self._errors.keys() | self._containers_by_name().keys()
        if is_pod and is_container:
            raise CRIError(
                f"{name} is a pod and a container: write {container_key} for the container, "
                f"delete its pod {container_key.rpartition('/')[0]} for both"
            )
        if is_pod:
            if pod := self._pods().get(pod_key):
                await self._runtime.delete_pod(pod)
            for key in [key for key in self._errors if key.startswith(f"{pod_key}/")]:
                del self._errors[key]
        elif is_container:
            if container := self._containers_by_name().get(container_key):
                await self._runtime.delete_container(container)
            self._errors.pop(container_key, None)
        else:
            raise CRIError(f"there is no {name}")

    async def _resize(self, step: Resize) -> None:
        key = step.pod if "/" in step.pod else f"default/{step.pod}"
        if step.container is None:
            if key not in self._pods():
                raise CRIError(f"there is no {key}")
        elif f"{key}/{step.container}" not in self._containers_by_name():
            raise CRIError(f"there is no {key}/{step.container}")
        await self._runtime.resize(self._pods()[key], step.container, step.change)

    async def _hotplug(self, step: HotplugStep) -> None:
        machine = self._runtime.machine
        if absent := step.offline - machine.online_cpus:
            raise NodeError(f"CPUs that are not online: {absent}")
        if absent := step.online - (self._present - machine.online_cpus):
            raise NodeError(f"CPUs that are not offline: {absent}")
        machine.online_cpus = machine.online_cpus - step.offline | step.online
        await self._node.hotplug(offline=step.offline, online=step.online)

    async def _attach(self, step: Devices | Disks | ClaimsStep) -> None:
        if isinstance(step, ClaimsStep):
            self._runtime.devices.allocate(step.claims)
            return
        if isinstance(step, Devices):
            self._runtime.devices.advertise(step.devices)
        else:
            self._disks = step.nodes
        await self._node.attach(self._runtime.devices.numa_nodes, self._disks)

    def _pods(self) -> dict[str, SimulatedPod]:
        return {pod.key: pod for pod in self._runtime.pods}

    def _containers_by_name(self) -> dict[str, SimulatedContainer]:
        """Return the latest container of each name."""
        return {container.key: container for container in self._runtime.containers}

    def _containers(self, snapshot: NodeSnapshot, updates: Mapping[str, int]) -> Containers:
        """Return each container as it runs, with what the daemon holds of it.

        *updates*: container's id → how many there were before this step.
        """
        shown: Containers = {}
        for key, container in self._containers_by_name().items():
            news = container.updated_by[updates.get(container.id, 0) :]
            shown[key] = replace(
                snapshot.containers.get(key, _NOTHING),
                state=str(container.state),
                cpus=container.cpus,
                mems=container.mems,
                shares=container.shares,
                error=None,
                updated_by=(*dict.fromkeys(update.cause for update in news if update.changed),),
            )
        for key, error in self._errors.items():
            shown[key] = replace(shown.get(key, _NOTHING), state="error", error=error)
        return shown


def find_unexpected(steps: Sequence[Step], results: Sequence[Result]) -> list[Result]:
    """Return the results of failed steps whose errors no `expect` right after them names.

    It names an error by its `error`, or by the state or error of containers that did not start.
    """
    return [
        result
        for at, result in enumerate(results)
        if result.error is not None and not _is_expected(result, _expectations(steps[at + 1 :]))
    ]


def _expectations(steps: Iterable[Step]) -> Iterator[Expect]:
    """Yield the expectations that *steps* begin with."""
    for step in steps:
        if not isinstance(step, Expect):
            return
        yield step


def _is_expected(result: Result, expected: Iterable[Expect]) -> bool:
    names = set()
    for each in expected:
        if each.error is not None:
            return True
        names |= {*_list_not_started(each)}
    refused = _find_refused(result)
    return bool(refused) and refused <= names


def _find_refused(result: Result) -> set[str]:
    """Return the containers that the error of a step is about."""
    error = result.error or ""
    return {
        name
        for name, container in result.containers.items()
        if container.error
        and any(f"{key}: {container.error}" in error for key in (name, name.rpartition("/")[0]))
    }


def _list_not_started(step: Expect) -> Iterator[str]:
    """Yield the containers whose start is expected to fail."""
    for name, fields in step.containers.items():
        if fields is not None and (fields.get("state") == "error" or fields.get("error")):
            yield _key(name)


def _key(name: str) -> str:
    return name if name.count("/") == 2 else f"default/{name}"


def _mismatches(step: Expect, containers: Containers, failure: str | None) -> list[Mismatch]:
    found = []
    if step.error is not None and not _as_wanted("error", step.error, failure):
        found.append(
            Mismatch(container="the last step", field="error", want=step.error, got=failure)
        )
    for name, wanted in step.containers.items():
        key = _key(name)
        got = containers.get(key)
        if got is None or wanted is None:
            if (got is None) != (wanted is None):
                want, there = ("absent", "there") if wanted is None else ("there", "absent")
                found.append(Mismatch(container=key, field="", want=want, got=there))
            continue
        shown = plain(got)
        found += [
            Mismatch(container=key, field=field, want=want, got=shown.get(field))
            for field, want in wanted.items()
            if not _as_wanted(field, want, shown.get(field))
        ]
    return found


def _as_wanted(field: str, want: Any, got: Any) -> bool:
    if field in SET_FIELDS and isinstance(got, str):
        return CPUSet.parse(want) == CPUSet.parse(got)
    if field == "error" and isinstance(want, str) and isinstance(got, str):
        return want in got
    return bool(want == got)
