"""The rights that the DaemonSet's manifest gives are those that the daemon needs on a real runtime.

Those of the systemd unit are tried in test_systemd.py.
"""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
import yaml

from tests.e2e import cgroup
from tests.e2e.kubelet import BEST_EFFORT, NAMESPACES, Kubelet
from tests.e2e.runtime import Runtime
from tests.e2e.waiting import eventually
from tests.support.manifests import MANIFESTS

# What a container may run on is set; anything else below /sys is not for the daemon to write.
WRITE = """
cd /host/sys/fs/cgroup/{cgroup}
echo 0 > cpuset.cpus
echo 1 > /host/sys/kernel/profiling && echo 1 > cpuset.cpus
exec sleep 1000000
"""


def confined(*volumes: str) -> dict[str, Any]:
    """Return what CRI is asked for a container with the daemon's security context and *volumes*."""
    text = (MANIFESTS / "daemonset.yaml").read_text()
    (daemon_set,) = (each for each in yaml.safe_load_all(text) if each["kind"] == "DaemonSet")
    pod = daemon_set["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    context = container["securityContext"]
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    paths = {
        each["name"]: each["hostPath"]["path"] for each in pod["volumes"] if "hostPath" in each
    }
    return {
        "mounts": [
            {
                "container_path": each["mountPath"],
                "host_path": paths[each["name"]],
                "readonly": each.get("readOnly", False),
            }
            for each in container["volumeMounts"]
            if each["name"] in volumes
        ],
        "linux": {
            "security_context": {
                "namespace_options": NAMESPACES,
                "capabilities": {"drop_capabilities": context["capabilities"]["drop"]},
                "run_as_user": {"value": context["runAsUser"]},
                "readonly_rootfs": context["readOnlyRootFilesystem"],
                "no_new_privs": not context["allowPrivilegeEscalation"],
                "seccomp": {"profile_type": "RuntimeDefault"},
            }
        },
    }


@pytest.mark.usefixtures("kubelet")
def test_the_daemon_sets_container_may_write_cpusets_and_nothing_else_below_sys(
    kubelet: Kubelet, runtime: Runtime
) -> None:
    runc = subprocess.run(
        [runtime.handlers["runc"], "--version"], capture_output=True, text=True, check=True
    )
    if "libseccomp" not in runc.stdout:
        pytest.skip("the runc that is built without a library knows no seccomp: Debian's does")
    guest = kubelet.run("guest", BEST_EFFORT)
    mount = cgroup.cpuset_hierarchy()
    assert mount is not None
    where = f"{mount.relative_to('/sys/fs/cgroup')}/{guest.cgroup.strip('/')}"
    script = WRITE.format(cgroup=where)
    daemon = kubelet.run_pod("daemon", {"main": BEST_EFFORT}).create(
        "main", command=("/bin/busybox", "sh", "-c", script), **confined("sys", "cgroup", "proc")
    )
    daemon.start()
    assert eventually(lambda: str(cgroup.cpuset(guest.cgroup).cpus), lambda cpus: cpus == "0")
