"""Whether kubelet and runtime use the same cgroup driver; what cgroups allow pods; the version."""

from __future__ import annotations

from collections.abc import Iterator

from nri_policy.audit.above_pods import find_narrow, find_topmost
from nri_policy.doctor.facts import Facts, Kernel, cpuset_mount
from nri_policy.doctor.finding import Finding, Verdict
from nri_policy.doctor.sockets import Socket
from nri_policy.engine.state.layout import layout_of
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.hardware.machine import Machine
from nri_policy.pools.capacity import CapacityError
from nri_policy.settings import Settings


def check(facts: Facts) -> Iterator[Finding]:
    """Yield where they differ."""
    config, kubelet = facts.runtimes.config, facts.kubelet
    wanted = kubelet.cgroup_driver if kubelet else None
    if config is not None and config.systemd_cgroups is not None and wanted is not None:
        driver = "systemd" if config.systemd_cgroups else "cgroupfs"
        if driver == wanted:
            yield Finding("cgroups", Verdict.OK, f"{config.name} and the kubelet use {driver}")
        else:
            yield Finding(
                "cgroups",
                Verdict.ERROR,
                f"{config.name} makes cgroups by {driver}, the kubelet by {wanted}: "
                "pods do not start, or lose their limits, unless the kubelet asks the runtime (from"
                " 1.31 on with containerd 2.0, CRI-O 1.28 or newer)",
                f"cgroupDriver: {driver} for the kubelet, or {_setting(config.name, wanted)};"
                " systemd for both where it is the host's init system",
            )
    kernel = facts.kernel
    if kernel is None:
        return
    if kernel.cgroup_version is None:
        root = facts.where.host_root
        yield Finding("cgroups", Verdict.NOTE, f"no cgroups found below {root}")
    elif kernel.cgroup_version == 1:
        found = "cgroup v1: Kubernetes is about to drop it"
        yield Finding("cgroups", Verdict.NOTE, found)
    else:
        yield Finding("cgroups", Verdict.OK, "cgroup v2")
    if kernel.cgroup_version == 2 and kernel.scopes and facts.systemd is not None:
        yield _systemd(facts.systemd)
    yield from _check_above(kernel, _used_cpus(facts))
    if kernel.cgroup_version is not None and facts.user == 0:  # others may write none
        yield from _read_only(kernel)


def _used_cpus(facts: Facts) -> CPUSet:
    """Return the CPUs on which the daemon places containers, as far as that is known."""
    if not isinstance(facts.machine, Machine):
        return EMPTY
    if not isinstance(facts.settings, Settings):
        return facts.machine.online
    try:
        return layout_of(facts.machine, facts.settings).capacity.available
    except CapacityError:
        return EMPTY  # the settings' own finding


def _check_above(kernel: Kernel, used: CPUSet) -> Iterator[Finding]:
    """Yield which cgroups above containers lack CPUs that the daemon gives to containers."""
    consequence = "run without these, or on all others"
    if kernel.cgroup_version != 2:
        consequence = "do not start"
    mount = cpuset_mount(kernel.cgroup_version)
    for path, cpus in find_narrow(kernel.cpus_above, used).items():
        yield Finding(
            "cgroups",
            Verdict.ERROR,
            f"{mount}/{path}".rstrip("/")
            + f" has only CPUs {cpus}: containers that are placed on {used - cpus} {consequence}",
            f"availableResources.cpu: cpuset:{used & cpus}, or give that cgroup all CPUs"
            " (AllowedCPUs= of its unit)",
        )


def _read_only(kernel: Kernel) -> Iterator[Finding]:
    """Yield which cgroups cannot be written."""
    mount = cpuset_mount(kernel.cgroup_version)
    parts = [f"{mount}/{path} is" for path in find_topmost(kernel.unwritable)]
    for name in parts if kernel.cgroups_writable else ["cgroups are"]:
        yield Finding(
            "cgroups",
            Verdict.WARNING,
            f"{name} read-only here: if the runtime loses a container's new CPUs, the daemon"
            " needs seconds instead of milliseconds to correct it",
            "mount /sys/fs/cgroup writable, with all below it; for the systemd unit"
            " ProtectControlGroups=no",
        )


def _setting(runtime: str, driver: str) -> str:
    """Return the line of a runtime's configuration that chooses *driver*."""
    if runtime == "containerd":
        return f"SystemdCgroup = {str(driver == 'systemd').lower()} for runc"
    return f'cgroup_manager = "{driver}" for CRI-O'


def _systemd(socket: Socket) -> Finding:
    """Return whether systemd can be asked to keep a cpuset, where it makes the pods' cgroups."""
    if not socket.problem:
        return Finding("cgroups", Verdict.OK, "systemd makes the pods' cgroups, and can be reached")
    return Finding(
        "cgroups",
        Verdict.WARNING,
        f"systemd makes the pods' cgroups, but cannot be reached ({socket.path}: {socket.problem}):"
        " it undoes the CPUs that the daemon sets until the runtime has heard of them",
        "run the daemon as root, with the host's /run/systemd below --host-root",
    )
