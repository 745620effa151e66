"""What containerd and CRI-O add to the kubelet's requests before plugins see them.

Owns ids, the OCI defaults, and the labels, annotations and cgroup paths that the runtimes add.
"""

from __future__ import annotations

import hashlib
import uuid

from nri_policy.proto import nri_pb2 as nri
from nri_policy.systemd.scopes import cgroup_of

_NAMESPACES = ("pid", "ipc", "uts", "mount", "network")
_SANDBOX_SHARES = 2  # of the pause container
_MOUNTS = (
    ("/proc", "proc", "proc", "nosuid noexec nodev"),
    ("/dev", "tmpfs", "tmpfs", "nosuid strictatime mode=755 size=65536k"),
    ("/dev/pts", "devpts", "devpts", "nosuid noexec newinstance ptmxmode=0666 mode=0620 gid=5"),
    ("/dev/mqueue", "mqueue", "mqueue", "nosuid noexec nodev"),
    ("/sys", "sysfs", "sysfs", "nosuid noexec nodev ro"),
    ("/sys/fs/cgroup", "cgroup", "cgroup", "nosuid noexec nodev relatime ro"),
)


def object_id(*parts: object) -> str:
    """Return the id of a pod or container: 64 hexadecimal digits, the same for the same *parts*."""
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()


def object_uid(*parts: object) -> str:
    """Return a pod's UID in the API server's form: the same for the same *parts*."""
    return str(uuid.UUID(object_id(*parts)[:32]))


def complete_sandbox(sandbox: nri.PodSandbox, *, runtime: str, pid: int) -> None:
    """Add the *runtime*'s fields to the kubelet's *sandbox*, which has its id."""
    sandbox.linux.cgroups_path = cgroup_of(sandbox.linux.cgroup_parent, sandbox.id, runtime)
    sandbox.linux.namespaces.extend(nri.LinuxNamespace(type=kind) for kind in _NAMESPACES)
    sandbox.linux.resources.cpu.shares.value = _SANDBOX_SHARES
    if runtime != "containerd":
        return
    sandbox.pid = pid
    cpu = sandbox.linux.pod_resources.cpu
    sandbox.labels["io.cri-containerd.kind"] = "sandbox"
    sandbox.annotations.update(
        _cri_annotations(sandbox, "sandbox")
        | {
            "io.kubernetes.cri.sandbox-cpu-shares": str(cpu.shares.value),
            "io.kubernetes.cri.sandbox-cpu-quota": str(cpu.quota.value),
            "io.kubernetes.cri.sandbox-cpu-period": str(cpu.period.value),
            "io.kubernetes.cri.sandbox-memory": str(sandbox.linux.pod_resources.memory.limit.value),
            "io.kubernetes.cri.sandbox-log-directory": "/var/log/pods/"
            f"{sandbox.namespace}_{sandbox.name}_{sandbox.uid}",
        }
    )


def forget_task(sandbox: nri.PodSandbox) -> None:
    """Remove from *sandbox* what an older containerd omits without a pause container."""
    for name in ("cgroups_path", "namespaces", "resources"):
        sandbox.linux.ClearField(name)
    for key in [key for key in sandbox.annotations if key.startswith("io.kubernetes.cri.")]:
        del sandbox.annotations[key]


def complete_container(
    container: nri.Container, sandbox: nri.PodSandbox, *, runtime: str, image: str
) -> None:
    """Turn the kubelet's *container*, which has its id, into what plugins see at its creation."""
    container.pod_sandbox_id = sandbox.id
    container.env.insert(0, f"HOSTNAME={sandbox.name}")
    for destination, kind, source, options in reversed(_MOUNTS):
        container.mounts.insert(
            0,
            nri.Mount(destination=destination, type=kind, source=source, options=options.split()),
        )
    container.linux.namespaces.extend(nri.LinuxNamespace(type=kind) for kind in _NAMESPACES)
    container.linux.cgroups_path = cgroup_of(sandbox.linux.cgroup_parent, container.id, runtime)
    _drop_unset(container.linux.resources)
    if runtime == "containerd":
        container.labels["io.cri-containerd.kind"] = "container"
        container.annotations.update(
            _cri_annotations(sandbox, "container")
            | {
                "io.kubernetes.cri.container-name": container.name,
                "io.kubernetes.cri.image-name": image,
            }
        )


def device_rule(device: nri.LinuxDevice) -> nri.LinuxDeviceCgroup:
    """Return the rule that lets a container use one of its devices."""
    rule = nri.LinuxDeviceCgroup(allow=True, type=device.type, access="rwm")
    rule.major.value, rule.minor.value = device.major, device.minor
    return rule


def _drop_unset(resources: nri.LinuxResources) -> None:
    """Remove fields that the kubelet leaves at 0; with a memory limit, swap is not allowed."""
    if not resources.cpu.quota.value:
        resources.cpu.ClearField("quota")
    if resources.memory.limit.value:
        resources.memory.swap.value = resources.memory.limit.value
    else:
        resources.ClearField("memory")


def _cri_annotations(sandbox: nri.PodSandbox, kind: str) -> dict[str, str]:
    return {
        "io.kubernetes.cri.container-type": kind,
        "io.kubernetes.cri.sandbox-id": sandbox.id,
        "io.kubernetes.cri.sandbox-name": sandbox.name,
        "io.kubernetes.cri.sandbox-namespace": sandbox.namespace,
        "io.kubernetes.cri.sandbox-uid": sandbox.uid,
    }
