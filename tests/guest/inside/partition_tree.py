"""The kernel partitions of the guest: of which cgroups, and which CPUs those above them keep."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.e2e import cgroup
from tests.e2e.kubelet import Container
from tests.e2e.waiting import eventually
from tests.guest.inside import kernel

EXCLUSIVE, PARTITION = "cpuset.cpus.exclusive", "cpuset.cpus.partition"


def read(path: str, name: str) -> str:
    """Return the text of a cgroup's file."""
    return cgroup.text_of(kernel.CGROUPS / path.strip("/") / name).strip()


def tree() -> Mapping[str, tuple[str, str]]:
    """Return the exclusive CPUs and the partition of each cgroup that has any."""
    found = {}
    for folder, _, names in os.walk(kernel.CGROUPS):
        path = os.path.relpath(folder, kernel.CGROUPS)
        with suppress(OSError):  # systemd has removed it by now
            if EXCLUSIVE in names:
                found[path] = (read(path, EXCLUSIVE), read(path, PARTITION))
    return {path: files for path, files in found.items() if files != ("", "member")}


def above(path: str) -> list[str]:
    """Return the cgroups above one, the top first."""
    return [str(each) for each in Path(path).parents][-2::-1]


def due(owner: Container, kind: str) -> Mapping[str, tuple[str, str]]:
    """Return what the tree is where this owner is the only partition."""
    path, cpus = owner.cgroup.strip("/"), str(owner.cpus())
    return {path: (cpus, kind), **dict.fromkeys(above(path), (cpus, "member"))}


def settled(owner: Container, kind: str) -> None:
    """Wait until an owner is the only partition, and the cgroups above it keep its CPUs alone."""
    assert eventually(lambda: tree() == due(owner, kind), bool, every=0.2), tree()


def cleared() -> None:
    """Wait until there is no partition, and no cgroup keeps CPUs for any."""
    assert eventually(tree, lambda found: not found, every=0.5) == {}
