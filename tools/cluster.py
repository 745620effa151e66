"""A Kubernetes cluster of one node on this machine, with the daemon, to play with.

A real control plane, kubelet and containerd in a network of their own; nothing of the host is
changed, and nothing is left. Builds what is missing (see `tools.control_plane`). Needs root.

    python -m tools.cluster up                                   # a shell in it, until that ends
    python -m tools.cluster up --hardware "package:2 numa:2 core:8 pu:2"    # what it shall be like
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.cluster.control_plane import ADMIN
from tests.cluster.installation import install
from tests.cluster.node import PROGRAMS, one_node
from tests.e2e import image, packages
from tools.control_plane import program

SETTINGS = {"reservedResources": {"cpu": 1}}
SCHEDULER = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
}
HARDWARE = "package:2 numa:2 core:2 pu:2"
INSTANCES = 16  # of inotify, that kubelet, containerd and daemon make: without, the kubelet waits


def main() -> None:
    """Bring a cluster up, and run a shell in it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["up"])
    parser.add_argument(
        "--hardware",
        default=HARDWARE,
        help="what the node's CPUs and memory are to look like; empty: this machine's",
    )
    hardware = parser.parse_args().hardware
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    check_inotify()
    for each in (*PROGRAMS, "kube-scheduler"):
        program(each)
    folder = Path(tempfile.mkdtemp(prefix="nri-cluster-"))
    archive = folder / "busybox.tar"
    image.write(packages.busybox(), archive)
    try:
        with one_node(folder, archive, hardware=hardware) as node:
            install(node.cluster, node.name)
            node.cluster.start_scheduler(SCHEDULER)
            daemon = node.daemon(folder, SETTINGS)
            try:
                daemon.start()
                programs = f"{program('kubectl').parent}:{Path(sys.executable).parent}"
                environment = {
                    "KUBECONFIG": str(node.cluster.kubeconfig(ADMIN)),
                    "NRI_POLICY_CONTROL_SOCKET": str(daemon.control),
                    "PATH": f"{programs}:{os.environ['PATH']}",
                }
                sys.stdout.write(
                    f"kubectl and nri-policy reach the cluster from this shell; its image is\n"
                    f"{image.NAME}. It ends with the shell. In another terminal:\n"
                    f"{' '.join(node.machine.inside)}\n"
                )
                sys.stdout.flush()
                shell = os.environ.get("SHELL", "/bin/sh")
                subprocess.run(
                    [*node.machine.inside, shell], env=os.environ | environment, check=False
                )
            finally:
                node.clear()
                daemon.close()
    finally:
        shutil.rmtree(folder)


def check_inotify(instances: int = INSTANCES) -> None:
    """End where root has no inotify instances left: no node would become ready."""
    made: list[int] = []
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        while len(made) < instances:
            descriptor = libc.inotify_init1(os.O_CLOEXEC)
            if descriptor < 0:
                raise SystemExit(
                    f"a node makes {instances} inotify instances, and only {len(made)} are left"
                    f" ({os.strerror(ctypes.get_errno())}): end what uses them, or raise the limit"
                    " with sysctl fs.inotify.max_user_instances=512"
                )
            made.append(descriptor)
    finally:
        for each in made:
            os.close(each)


if __name__ == "__main__":
    main()
