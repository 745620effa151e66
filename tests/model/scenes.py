"""What is explored: scenes, and the releases of runtimes that differ in what matters here."""

from __future__ import annotations

from msgspec.structs import replace

from nri_policy.nri.release import Release
from nri_policy.nri.versions import Runtime
from tests.model.world import Kind, Scene

_OWNER = Kind(name="owner", milli=1000, resized=2000)
_OTHER = Kind(name="other", milli=1000, resized=2000)
_SHARER = Kind(name="sharer", milli=0)
_SHRINKING = Kind(name="owner", milli=2000, resized=1000)

_BESIDE = Kind(name="sharer", milli=500, pod="both")  # in the pod of the next
_OWNER_BESIDE = Kind(name="owner", milli=2000, resized=1000, pod="both")

_WHERE = (
    Scene(name="a sharer and an owner to come", kinds=(_SHARER, _OWNER)),
    Scene(name="an owner comes to a sharer", kinds=(_SHARER, _OWNER), running=1),
    Scene(name="a sharer comes to an owner", kinds=(_OWNER, _SHARER), running=1),
    Scene(name="owner and sharer", kinds=(_SHARER, _OWNER), running=2),
    Scene(name="an owner that shrinks and a sharer", kinds=(_SHARER, _SHRINKING), running=2),
    Scene(
        name="owner and sharer, a CPU comes and goes",
        kinds=(_SHARER, _OWNER),
        running=2,
        plugs=2,
    ),
    Scene(
        name="a sharer of systemd's comes to an owner",
        kinds=(_OWNER, _SHARER),
        cgroups="systemd",
        running=1,
    ),
    Scene(
        name="an owner comes to a sharer of systemd's",
        kinds=(_SHARER, _OWNER),
        cgroups="systemd",
        running=1,
    ),
    Scene(
        name="owner and sharer of systemd's",
        kinds=(_SHARER, _OWNER),
        cgroups="systemd",
        running=2,
    ),
    Scene(name="two owners that move", kinds=(_OWNER, _OTHER), running=2, settings=2),
    Scene(
        name="an owner comes, cgroups are read-only",
        kinds=(_SHARER, _OWNER),
        cgroups="read-only",
        running=1,
    ),
    Scene(
        name="an owner comes, cgroups are invisible",
        kinds=(_SHARER, _OWNER),
        cgroups="invisible",
        running=1,
    ),
    Scene(
        name="an owner comes, there are files but of no container",
        kinds=(_SHARER, _OWNER),
        cgroups="hidden",
        running=1,
    ),
    Scene(
        name="an owner comes to a sharer, the kernel keeps others off",
        kinds=(_SHARER, _OWNER),
        running=1,
        partitions="root",
    ),
    Scene(
        name="owner and sharer of one pod, the kernel keeps others off",
        kinds=(_BESIDE, _OWNER_BESIDE),
        running=2,
        partitions="root",
    ),
    Scene(
        name="two owners that move, the kernel keeps others off",
        kinds=(_OWNER, _OTHER),
        running=2,
        settings=2,
        partitions="isolated",
    ),
)
# first without a fault, which leads farther, then with more that goes wrong
SCENES = tuple(
    replace(each, name=f"{each.name}{text}", faults=faults, changes=changes)
    for faults, changes, text in ((0, 3, ""), (1, 2, ", a fault"), (2, 2, ", two faults"))
    for each in _WHERE
)

# One of each kind that differs here: `differences`.
RELEASES = (
    ("containerd", "1.7.24"),
    ("containerd", "2.2.1"),
    ("containerd", "2.4.0"),
    ("cri-o", "1.36.3"),
)


def differences(name: str, version: str) -> tuple[object, ...]:
    """Return all by which a release can differ from another in a model."""
    release = Release.of(name, version)
    runtime = Runtime.from_request(
        release.configuration(registration_timeout=5.0, request_timeout=2.0)
    )
    return (
        release.makes_cgroups_early,
        release.tells_failed_creations,
        runtime.unsolicited_updates_safe,
        runtime.hides_creations,
        runtime.shows_pod_processes,
        runtime.lists_creations,
        runtime.forgets_creations,
    )
