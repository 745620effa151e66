"""Scenario files: the steps of a simulation.

Owns the format and its validation, manifests included: a scenario that exists can be played. Must
not know how it is played.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Struct

from nri_policy.foundation import yamltext
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.units import parse_duration
from nri_policy.foundation.wording import did_you_mean, quoted
from nri_policy.kubelet.manifest_pods import expand
from nri_policy.manifests.pod import PodManifest
from nri_policy.manifests.resources import ManifestError, ResourceChange, read_part
from nri_policy.simulation.device_manager import DriverDevice, PluginDevice

# What can be expected of a container: the fields of a result.
FIELDS = (
    "state",
    "pool",
    "cpus",
    "exclusive",
    "shared_milli",
    "isolated",
    "mems",
    "shares",
    "error",
    "updated_by",
    "classes",
)
SET_FIELDS = ("cpus", "mems", "exclusive")  # in the kernel's list format


_BLANK = re.compile(r"[\s\\]")


class ScenarioError(Exception):
    """A scenario that cannot be played; the text names file, line, step and field."""

    def __init__(self, text: str, *, within: tuple[object, ...] = ()) -> None:
        super().__init__(text)
        self.within = within  # the path of the culprit in its step


class ChangeSettings(Struct, frozen=True, kw_only=True):
    """New settings: the spec of a TopologyAwarePolicy, not validated here."""

    spec: dict[str, Any]
    marks: yamltext.Marks = msgspec.field(default_factory=dict)  # of the spec in its file


class Apply(Struct, frozen=True, kw_only=True):
    """Pods start, in this order."""

    pods: tuple[PodManifest, ...]


class Delete(Struct, frozen=True, kw_only=True):
    """Pods or containers go: `pod`, `ns/pod`, `pod/ctr` or `ns/pod/ctr`."""

    names: tuple[str, ...]


class Resize(Struct, frozen=True, kw_only=True):
    """A container, or the pod-level resources of its pod, are resized in place."""

    pod: str  # `pod` or `ns/pod`
    container: str | None
    change: ResourceChange


class Advance(Struct, frozen=True, kw_only=True):
    """The clock moves."""

    seconds: float


class Restart(Struct, frozen=True, kw_only=True):
    """The daemon or the runtime is killed and started again."""

    what: Literal["daemon", "runtime"]


class HotplugStep(Struct, frozen=True, kw_only=True):
    """CPUs that go offline or online."""

    offline: CPUSet
    online: CPUSet


class Devices(Struct, frozen=True, kw_only=True):
    """These are all devices that the node's device plugins offer from now on, by resource."""

    devices: dict[str, list[PluginDevice]]


class ClaimsStep(Struct, frozen=True, kw_only=True):
    """The allocated resource claims from now on, by name; all of them."""

    claims: dict[str, dict[str, list[DriverDevice]]]  # the devices of each request


class Disks(Struct, frozen=True, kw_only=True):
    """These are all disks from now on: NUMA nodes by mount point."""

    nodes: dict[str, int]


class Expect(Struct, frozen=True, kw_only=True):
    """The expected state by container; None for a container that should not exist.

    `error` is a part of the expected error of the last step other than `expect`.
    """

    containers: dict[str, dict[str, Any] | None]  # `pod/ctr` or `ns/pod/ctr` → field → value
    error: str | None = None


Step = (
    ChangeSettings
    | Apply
    | Delete
    | Resize
    | Advance
    | Restart
    | HotplugStep
    | Devices
    | ClaimsStep
    | Disks
    | Expect
)


def read_scenario(path: Path) -> list[Step]:
    """Return the steps of the file at *path*; manifests are looked up beside it.

    Raises ScenarioError.
    """
    marks: yamltext.Marks = {}
    use = f"a step applies manifests, `- apply: {{file: {path.name}}}`, or use what-if -f {path}"
    try:
        document = yamltext.read(_bytes(path), marks=marks)
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read: {error.strerror}") from error
    except yamltext.SeveralDocumentsError as error:
        raise ScenarioError(f"{path}: {error}, a list of steps; {use}") from error
    except ValueError as error:
        raise ScenarioError(f"{path}: {error}") from error
    if not isinstance(document, list):
        hint = (
            f"; this is a manifest: {use}"
            if isinstance(document, Mapping) and "kind" in document
            else ""
        )
        raise ScenarioError(f"{path}: a scenario is one list of steps{hint}")
    steps = []
    for number, given in enumerate(document):
        try:
            step = read_step(given, folder=path.parent)
        except ScenarioError as error:
            mark = marks.get((number, *error.within), marks[(number,)])  # none within an alias
            raise ScenarioError(f"{path}: line {mark.line}: step {number + 1}: {error}") from error
        if isinstance(step, ChangeSettings):
            above = (number, "settings")
            own = {at[2:]: mark for at, mark in marks.items() if at[:2] == above}
            step = msgspec.structs.replace(step, marks=own)
        steps.append(step)
    return steps


def read_step(step: object, *, folder: Path) -> Step:
    """Return one step; files that it names are looked up in *folder*. Raises ScenarioError."""
    if not isinstance(step, Mapping) or len(step) != 1:
        raise ScenarioError(f"a step is a map with one key, not {quoted(step)}")
    ((kind, value),) = step.items()
    if kind == "apply":
        return _apply(value, folder)
    reader = _READERS.get(kind)
    if reader is None:
        known = ["apply", *_READERS]
        raise ScenarioError(
            f"{quoted(kind)} is not a step{did_you_mean(str(kind), known)} "
            f"(there are {', '.join(known)})"
        )
    try:
        return reader(value)
    except (ValueError, ManifestError) as error:
        raise ScenarioError(f"{kind}: {error}") from error


def _bytes(path: Path) -> bytes:
    """Return the content of a file, at most one byte more than is allowed."""
    with path.open("rb") as file:
        return file.read(yamltext.MAX_SIZE + 1)


def _load(path: Path) -> list[Any]:
    """Return the documents of a YAML file, empty ones left out."""
    try:
        return yamltext.read_all(_bytes(path).decode("utf-8-sig"))
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ScenarioError(f"{path}: {error}") from error


def _apply(value: object, folder: Path) -> Apply:
    pods = list[PodManifest]()
    for number, item in enumerate(value if isinstance(value, list) else [value]):
        if isinstance(item, Mapping) and item.keys() == {"file"}:
            source = folder / str(item["file"])
            manifests = [(f"{source}: document {i}", d) for i, d in enumerate(_load(source), 1)]
        else:
            manifests = [(f"[{number}]" if isinstance(value, list) else "", item)]
        for where, manifest in manifests:
            try:
                _refuse_others(manifest)
                pods += expand(manifest)
            except ManifestError as error:
                text = ": ".join(filter(None, ["apply", where, str(error)]))
                within = ("apply", number) if isinstance(value, list) else ("apply",)
                raise ScenarioError(text, within=within) from error
    return Apply(pods=tuple(pods))


def _refuse_others(manifest: object) -> None:
    """Raise ManifestError for what is no object, or a claim: nothing here allocates."""
    if isinstance(manifest, str):
        raise ManifestError(f"{quoted(manifest)} is not a manifest; of a file write {{file: NAME}}")
    if not isinstance(manifest, Mapping):
        return
    if len(manifest) == 1 and (hint := did_you_mean(str(*manifest), ["file"])):
        raise ManifestError(f"{quoted(*manifest)} is not a field{hint}")
    kind = str(manifest.get("kind"))
    if kind in {"ResourceClaim", "ResourceClaimTemplate"}:
        raise ManifestError(
            f"a {kind} is not applied; the step `claims` lists what claims are allocated,"
            " and what-if tries claims of a file"
        )


def _settings(value: object) -> ChangeSettings:
    return ChangeSettings(spec=_map(value))


def _delete(value: object) -> Delete:
    names = value if isinstance(value, list) else [value]
    return Delete(names=tuple(_name(name, parts=(1, 2, 3)) for name in names))


def _resize(value: object) -> Resize:
    fields = _map(value)
    wanted = {"pod", "container", "resources"}
    if fields.keys() | {"container"} != wanted:
        raise ValueError(
            f"needs {', '.join(sorted(wanted))}, and nothing else; without a container what the pod"
            " has as a whole is resized"
        )
    try:
        change = read_part(fields["resources"], ResourceChange)
    except ManifestError as error:
        raise ValueError(f"resources: {error}") from error
    return Resize(
        pod=_name(fields["pod"], parts=(1, 2)),
        container=_name(fields["container"], parts=(1,)) if "container" in fields else None,
        change=change,
    )


def _advance(value: object) -> Advance:
    return Advance(seconds=parse_duration(value if isinstance(value, str) else quoted(value)))


def _restart(value: object) -> Restart:
    if value == "daemon":
        return Restart(what="daemon")
    if value == "runtime":
        return Restart(what="runtime")
    raise ValueError(f"{quoted(value)} is neither daemon nor runtime")


def _offline(value: object) -> HotplugStep:
    return HotplugStep(offline=_cpus(value), online=CPUSet())


def _online(value: object) -> HotplugStep:
    return HotplugStep(offline=CPUSet(), online=_cpus(value))


def _devices(value: object) -> Devices:
    devices = read_part(_map(value), dict[str, list[PluginDevice]])
    for resource, group in devices.items():
        if resource.count("/") != 1 or not all(resource.split("/")):
            raise ValueError(f"{quoted(resource)} is not a resource such as vendor.com/nic")
        ids = [device.id for device in group]
        for each in ids:
            if ids.count(each) > 1:
                raise ValueError(f"{resource}: two devices have the id {quoted(each)}")
    return Devices(devices=devices)


def _claims(value: object) -> ClaimsStep:
    return ClaimsStep(claims=read_part(_map(value), dict[str, dict[str, list[DriverDevice]]]))


def _disks(value: object) -> Disks:
    nodes = read_part(_map(value), dict[str, Annotated[int, msgspec.Meta(ge=0)]])
    for path in nodes:
        if not path.startswith("/") or path != posixpath.normpath(path) or _BLANK.search(path):
            raise ValueError(
                f"{quoted(path)} is not a mount point: a plain path that begins with /"
            )
    return Disks(nodes=nodes)


def _expect(value: object) -> Expect:
    containers: dict[str, dict[str, Any] | None] = {}
    expected = dict(_map(value))
    failure = expected.pop("error", None)
    if failure is not None and not isinstance(failure, str):
        raise ValueError(f"error: {quoted(failure)} is not a string")
    for name, fields in expected.items():
        try:
            _name(name, parts=(2, 3))
            containers[name] = None if fields is None else _parse_expect(_map(fields))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return Expect(containers=containers, error=failure)


def _parse_expect(fields: dict[str, Any]) -> dict[str, Any]:
    expected = {}
    for field, value in fields.items():
        if field not in FIELDS:
            raise ValueError(f"{quoted(field)} is not a field{did_you_mean(field, FIELDS)}")
        expected[field] = value
        if field in SET_FIELDS:
            expected[field] = str(_cpus(value))
    return expected


def _cpus(value: object) -> CPUSet:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise ValueError(f"{quoted(value)} is not a list such as '0-3,8'")  # noqa: TRY004 - one kind
    return CPUSet.parse(value)


def _name(value: object, *, parts: tuple[int, ...]) -> str:
    if (
        not isinstance(value, str)
        or len(value.split("/")) not in parts
        or not all(value.split("/"))
    ):
        forms = {1: "name", 2: "name/name", 3: "name/name/name"}
        raise ValueError(f"{quoted(value)} is not {' or '.join(forms[n] for n in parts)}")
    return value


def _map(value: object) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{quoted(value)} is not a map with names as keys")
    return value


_READERS: dict[str, Callable[[object], Step]] = {
    "settings": _settings,
    "delete": _delete,
    "resize": _resize,
    "advance": _advance,
    "restart": _restart,
    "offline": _offline,
    "online": _online,
    "devices": _devices,
    "claims": _claims,
    "disks": _disks,
    "expect": _expect,
}
