"""Merges the answers of several plugins to one event.

Owns the rules of NRI's result collection (spec: NRI on the wire, 4): who may set which field,
removal marks, and the meaning of empty values. Must not know connections or stored containers.

A plugin claims each field that it sets. A second claim is a conflict, even of the same plugin, and
fails the whole event; a removal releases the claim. Later plugins see the container, or the
requested resources, with the changes of earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from typing import Any, TypeVar

from google.protobuf.message import Message

from nri_policy.nri.errors import CallRefused
from nri_policy.proto import nri_pb2 as nri

_Value = TypeVar("_Value")
_Claim = Callable[[str], None]

_WHOLE = ("io_priority", "seccomp_policy", "scheduler", "rdt")  # taken as one


class Results:
    """The plugins' changes so far, in answer to one event about one container."""

    def __init__(self, container: nri.Container, request: nri.LinuxResources | None = None) -> None:
        """Begin with *container* as it is, and the CRI *request* if the event is an update."""
        self.container = nri.Container()
        self.container.CopyFrom(container)
        self._request = request
        self._owners: dict[tuple[str, str], str] = {}
        self._updates: dict[str, nri.ContainerUpdate] = {}

    @property
    def others(self) -> list[nri.ContainerUpdate]:
        """Updates of other containers, one per container."""
        return [update for id_, update in self._updates.items() if id_ != self.container.id]

    @property
    def requested(self) -> nri.LinuxResources:
        """The CRI request, overlaid with what plugins want."""
        update = self._updates.get(self.container.id)
        return update.linux.resources if update else self._request or nri.LinuxResources()

    def update(self, plugin: str, update: nri.ContainerUpdate) -> None:
        """Take an update; raises Refused for a conflict, unless its failure may be ignored."""
        id_ = update.container_id
        merged = nri.ContainerUpdate(container_id=id_, ignore_failure=update.ignore_failure)
        if id_ in self._updates:
            merged.linux.CopyFrom(self._updates[id_].linux)
        elif id_ == self.container.id:
            merged.linux.resources.CopyFrom(self.requested)
        try:
            overlay(merged.linux.resources, update.linux.resources, self._claim(id_, plugin))
        except CallRefused:
            if not update.ignore_failure:
                raise
        else:
            self._updates[id_] = merged

    def _claim(self, container_id: str, plugin: str) -> _Claim:
        def claim(field: str) -> None:
            owner = self._owners.get((container_id, field))
            if owner is not None:
                raise CallRefused(f"plugins {owner!r} and {plugin!r} both tried to set {field}")
            self._owners[container_id, field] = plugin

        return claim


class CreationResult(Results):
    """The results of CreateContainer: the container is adjusted, others are updated."""

    def __init__(self, container: nri.Container) -> None:
        super().__init__(container)
        self.adjustment = nri.ContainerAdjustment()  # all of them, for validating plugins

    def update(self, plugin: str, update: nri.ContainerUpdate) -> None:
        """Take an update of another container; raises Refused."""
        if update.container_id == self.container.id:
            raise CallRefused(
                f"plugin {plugin!r} asked update of {update.container_id!r} during creation"
            )
        super().update(plugin, update)

    def adjust(self, plugin: str, adjustment: nri.ContainerAdjustment) -> None:
        """Change the container as *plugin* asks; raises Refused for a conflict."""
        self.adjustment.MergeFrom(adjustment)
        claim = self._claim(self.container.id, plugin)
        self._adjust_process(adjustment, claim)
        self._adjust_linux(adjustment.linux, claim)

    def _adjust_process(self, wanted: nri.ContainerAdjustment, claim: _Claim) -> None:
        container = self.container
        annotations = wanted.annotations.items()
        self._replace_map("annotation", container.annotations, annotations, claim)
        env = self._merge(
            "env",
            dict(_key_value(variable) for variable in container.env),
            [(variable.key, variable.value) for variable in wanted.env],
            claim,
        )
        container.env[:] = [f"{key}={value}" for key, value in env.items()]
        self._replace_list("mount", "destination", container.mounts, wanted.mounts, claim)
        if wanted.HasField("hooks"):
            container.hooks.MergeFrom(wanted.hooks)
        for limit in wanted.rlimits:
            claim(f"rlimit {limit.type}")
            container.rlimits.append(limit)
        for device in wanted.CDI_devices:
            claim(f"CDI device {device.name}")
            container.CDI_devices.append(device)
        if wanted.args:
            override = wanted.args[0] == ""
            if override:
                self._release("args")
            claim("args")
            container.args[:] = wanted.args[override:]

    def _adjust_linux(self, wanted: nri.LinuxContainerAdjustment, claim: _Claim) -> None:
        linux = self.container.linux
        self._replace_list("device", "path", linux.devices, wanted.devices, claim)
        self._replace_list("namespace", "type", linux.namespaces, wanted.namespaces, claim)
        self._replace_map("sysctl", linux.sysctl, wanted.sysctl.items(), claim)
        if wanted.cgroups_path:
            claim("cgroups path")
            linux.cgroups_path = wanted.cgroups_path
        for name in ("oom_score_adj", *_WHOLE):
            if wanted.HasField(name):
                claim(name)
                getattr(linux, name).CopyFrom(getattr(wanted, name))
        overlay(linux.resources, _generate(wanted.resources), claim)

    def _replace_map(
        self,
        what: str,
        target: MutableMapping[str, str],
        wanted: Iterable[tuple[str, str]],
        claim: _Claim,
    ) -> None:
        merged = self._merge(what, dict(target), list(wanted), claim)
        target.clear()
        target.update(merged)

    def _replace_list(
        self, what: str, key: str, target: Any, wanted: Iterable[Message], claim: _Claim
    ) -> None:
        """Merge a list of messages in which *key* names each."""
        merged = self._merge(
            what,
            {getattr(item, key): item for item in target},
            [(getattr(item, key), item) for item in wanted],
            claim,
        )
        del target[:]
        target.extend(merged.values())

    def _merge(
        self,
        what: str,
        old: dict[str, _Value],
        wanted: list[tuple[str, _Value]],
        claim: _Claim,
    ) -> dict[str, _Value]:
        """Return *old* with what is *wanted*; a key marked with "-" removes, before any is set."""
        merged = old.copy()
        for key, _ in wanted:
            if key.startswith("-"):
                self._release(f"{what} {key[1:]}")
                merged.pop(key[1:], None)
        for key, value in wanted:
            if not key.startswith("-"):
                claim(f"{what} {key}")
                merged[key] = value
        return merged

    def _release(self, field: str) -> None:
        self._owners.pop((self.container.id, field), None)


def overlay(
    target: nri.LinuxResources,
    wanted: nri.LinuxResources,
    claim: _Claim = lambda _: None,
) -> None:
    """Set in *target* all fields that are set in *wanted*: wrapped values even if 0, but no "".

    Calls *claim* with the name of each field before that is set, and raises what it raises.
    """
    for part in ("cpu", "memory"):
        for field, value in getattr(wanted, part).ListFields():
            claim(f"{part}.{field.name}")
            if isinstance(value, Message):
                getattr(getattr(target, part), field.name).CopyFrom(value)
            else:
                setattr(getattr(target, part), field.name, value)
    for name in ("blockio_class", "rdt_class", "pids"):
        if wanted.HasField(name):
            claim(name)
            getattr(target, name).CopyFrom(getattr(wanted, name))
    for key, value in wanted.unified.items():
        claim(f"unified {key}")
        target.unified[key] = value
    limits = {limit.page_size: limit for limit in target.hugepage_limits}
    for limit in wanted.hugepage_limits:
        claim(f"hugepage limit {limit.page_size}")
        limits[limit.page_size] = limit
    merged = [nri.HugepageLimit(page_size=size, limit=x.limit) for size, x in limits.items()]
    del target.hugepage_limits[:]
    target.hugepage_limits.extend(merged)
    target.devices.extend(wanted.devices)


def _generate(wanted: nri.LinuxResources) -> nri.LinuxResources:
    """Return what of an adjustment's resources reaches the container's OCI spec.

    The generator that the runtimes share takes only the limit of memory, and none of 0; it allows
    no swap on top of it.
    """
    resources = nri.LinuxResources()
    resources.CopyFrom(wanted)
    resources.ClearField("memory")
    if limit := wanted.memory.limit.value:
        resources.memory.limit.value = resources.memory.swap.value = limit
    return resources


def _key_value(variable: str) -> tuple[str, str]:
    key, _, value = variable.partition("=")
    return key, value
