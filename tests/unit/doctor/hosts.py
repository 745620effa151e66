"""Made-up hosts: a folder that has the files of a node, one change away from a healthy one."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from nri_policy.doctor.checks import examine
from nri_policy.doctor.facts import Facts, Where, gather
from nri_policy.doctor.finding import Finding, Verdict
from nri_policy.doctor.sockets import Socket, runtime
from nri_policy.dra.registration import registration_socket
from nri_policy.hardware import synthetic
from nri_policy.kubelet.pod_resources import pod_resources_socket

CONTAINERD = """\
version = 2
[plugins."io.containerd.nri.v1.nri"]
disable = false
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = true
"""
KUBELET = {"kind": "KubeletConfiguration", "cgroupDriver": "systemd"}
SETTINGS = {"reservedResources": {"cpu": "cpuset:0,1"}}


class Made:
    """A healthy node of containerd 1.7; tests change it, and look at what is found."""

    def __init__(self, root: Path, spec: str = "package:2 numa:2 core:2 pu:2") -> None:
        self.root = root
        synthetic.write(spec, root)
        self.write("etc/containerd/config.toml", CONTAINERD)
        self.write("var/lib/kubelet/config.yaml", json.dumps(KUBELET))
        self.write("sys/fs/cgroup/cgroup.controllers", "cpu cpuset memory\n")
        self.write("proc/swaps", "Filename Type Size Used Priority\n")
        self.write("proc/sys/kernel/numa_balancing", "0\n")
        self.process(100, "/usr/bin/containerd")
        self.kubelet_process("--config", "/var/lib/kubelet/config.yaml")
        self.settings()
        (root / "state").mkdir(mode=0o700)

    @property
    def where(self) -> Where:
        return Where(
            host_root=self.root,
            config=self.root / "settings.yaml",
            state_dir=self.root / "state",
            control_socket=self.root / "control.sock",
            kubelet_dir=self.kubelet_dir,
            node_name="node-a",
        )

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def process(self, number: int, *arguments: str) -> None:
        self.write(f"proc/{number}/cmdline", "\0".join(arguments) + "\0")

    @property
    def kubelet_dir(self) -> Path:
        """Return the kubelet's folder, which has sockets too, so its path has to be short."""
        return self.root / "kubelet"

    @property
    def pod_resources(self) -> Path:
        return _below_folder(pod_resources_socket(self.kubelet_dir))

    @property
    def registration(self) -> Path:
        return _below_folder(registration_socket(self.kubelet_dir))

    def checkpoint(self, text: str) -> None:
        """Write the CPU manager's: the host's path of the kubelet's folder is that of ours."""
        self.write(f"{str(self.kubelet_dir)[1:]}/cpu_manager_state", text)

    def kubelet_process(self, *flags: str) -> None:
        self.process(200, "/usr/bin/kubelet", "--root-dir", str(self.kubelet_dir), *flags)

    def settings(self, **spec: Any) -> None:
        document = {
            "apiVersion": "config.nri/v1alpha1",
            "kind": "TopologyAwarePolicy",
            "spec": {**SETTINGS, **spec},
        }
        self.write("settings.yaml", json.dumps(document))

    def kubelet(self, **config: Any) -> None:
        self.write("var/lib/kubelet/config.yaml", json.dumps({**KUBELET, **config}))

    def facts(self, version: str = "v1.7.27") -> Facts:
        """Return what is read, with a runtime that answers, and a daemon that is not judged."""
        facts = gather(self.where)
        assert not facts.unknown
        served = Socket(path=self.where.nri_socket, there=True)
        answered = runtime("containerd", version) if version else None
        return replace(
            facts,
            user=0,
            daemon=None,
            nri_socket=served,
            runtimes=replace(facts.runtimes, answered=answered),
        )

    def found(self, check: str, version: str = "v1.7.27") -> Mapping[str, Verdict]:
        """Return the verdicts of one check by what it found."""
        return verdicts(examine(self.facts(version)), check)


def _below_folder(socket: Path) -> Path:
    socket.parent.mkdir(parents=True, exist_ok=True)
    return socket


def verdicts(findings: list[Finding], check: str) -> Mapping[str, Verdict]:
    return {each.found: each.verdict for each in findings if each.check == check}


def worst(found: Mapping[str, Verdict], text: str) -> Verdict:
    """Return the verdict of the one finding that has a text."""
    (verdict,) = (verdict for each, verdict in found.items() if text in each)
    return verdict


@contextmanager
def served(path: Path) -> Iterator[None]:
    """Listen at a socket."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        yield
