"""Hosts as distributions make them: the kubelet is found, and its runtime is the one judged."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from msgspec.structs import replace

from nri_policy.doctor.checks import examine
from nri_policy.doctor.checks.runtime.nri import is_on
from nri_policy.doctor.facts import Facts, Where, gather
from nri_policy.doctor.finding import Finding, Verdict

SHARED = Path(os.environ.get("NRI_POLICY_SHARED", Path(__file__).parents[4] / "shared"))
CASES = SHARED / "cases/doctor-roots.json"
Root = Mapping[str, str | Sequence[str]]  # a file's text, or a process's arguments

SUFFIXES = ("config.yaml", "1.yaml", "0.conf")
STATIC = json.dumps({"policyName": "static", "defaultCpuSet": "0-3"})
NRI = '[plugins."io.containerd.nri.v1.nri"]\n'
K3S_CONTAINERD = ("containerd", "-c", "/var/lib/rancher/k3s/agent/etc/containerd/config.toml")
ROOTS: dict[str, Root] = {
    "k3s": {
        "/proc/20": ("/usr/local/bin/k3s", "server", "--kubelet-arg", "reserved-cpus=0-1"),
        "/proc/21": K3S_CONTAINERD,
        "/etc/rancher/k3s/config.yaml": "kubelet-arg: [cpu-manager-policy=none]\nv: 1\n",
        "/etc/rancher/k3s/config.yaml.d/1.yaml": "kubelet-arg+: [cpu-manager-policy=static]\n",
        "/etc/rancher/k3s/config.yaml.d/2.txt": "kubelet-arg: [cpu-manager-policy=none]\n",
        "/var/lib/rancher/k3s/agent/etc/kubelet.conf.d/0.conf": "cgroupDriver: systemd\n",
    },
    "k3s-elsewhere": {
        "/proc/20": ("k3s", "agent", "-c", "/etc/k3s.yaml"),
        "/proc/21": ("containerd",),
        "/etc/k3s.yaml": "data-dir: /data/k3s\n",
        "/data/k3s/agent/etc/kubelet.conf.d/9.conf": "cpuManagerPolicy: static\n",
    },
    "k3s-of-flags": {"/proc/20": ("k3s", "server", "--kubelet-arg=cpu-manager-policy=static")},
    "kubectl-of-k3s": {
        "/proc/20": ("k3s", "kubectl", "--kubelet-arg=cpu-manager-policy=static"),
    },
    "microk8s": {
        "/proc/20": (
            "/snap/microk8s/7/kubelite",
            "--kubelet-args-file=/var/snap/microk8s/7/args/kubelet",
        ),
        "/proc/21": ("/snap/microk8s/7/bin/containerd", "--config", "/m.toml", "--address", "/m"),
        "/proc/22": ("/usr/bin/containerd",),
        "/m.toml": f"version = 3\n{NRI}disable = true\n",
        "/var/snap/microk8s/7/args/kubelet": (
            "# ours\n--root-dir=${SNAP_COMMON}/var/lib/kubelet\n"
            '--container-runtime-endpoint=/m\n--reserved-cpus="0"\n'
        ),
        "/var/snap/microk8s/common/var/lib/kubelet/cpu_manager_state": STATIC,
    },
    "checkpoint-alone": {"/var/lib/kubelet/cpu_manager_state": STATIC},
    "unread": {
        "/proc/20": ("kubelet", "--config=/not/here"),
        "/var/lib/kubelet/memory_manager_state": json.dumps({"policyName": "Static"}),
    },
    "capitals": {
        "/proc/20": ("kubelet", "--container-runtime-endpoint=unix:///var/run/k/c.sock"),
        "/proc/21": ("containerd",),
        "/proc/22": ("containerd", "--config=/k.toml", "--address=/run/k/c.sock"),
        "/k.toml": f"Version = 3\n[Plugins]\n{NRI.replace('plugins', 'Plugins')}disable = true\n",
    },
}


def facts_of(root: Root, **where: Any) -> Facts:
    with TemporaryDirectory(prefix="host-") as folder:
        host = Path(folder)
        (host / "proc").mkdir()
        for name, content in root.items():
            process = name.startswith("/proc/")
            path = host / name[1:] / ("cmdline" if process else "")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\0".join([*content, ""]) if process else str(content))
        return gather(
            Where(
                host_root=host,
                config=host / "etc/nri-policy/config.yaml",
                nri_socket=Path("/none/nri.sock"),
                state_dir=host / "none",
                control_socket=host / "none",
                **where,
            )
        )


def findings_of(facts: Facts, check: str) -> list[Finding]:
    return [each for each in examine(facts) if each.check == check]


@pytest.mark.parametrize("name", ["k3s", "k3s-elsewhere", "k3s-of-flags", "checkpoint-alone"])
def test_a_static_cpu_manager_is_an_error_wherever_it_is_set(name: str) -> None:
    found = findings_of(facts_of(ROOTS[name]), "kubelet")
    assert [each.found for each in found if each.verdict is Verdict.ERROR] == [
        "its CPU manager is static: it sets the CPUs of containers too"
    ]


def test_the_flags_of_k3s_come_from_its_files_and_its_command_line() -> None:
    kubelet = facts_of(ROOTS["k3s"]).kubelet
    assert kubelet is not None
    assert (kubelet.reserved_cpus, kubelet.whole) == ("0-1", True)
    assert kubelet.endpoint == "/run/k3s/containerd/containerd.sock"
    assert kubelet.origin.split(", ") == [name for name in ROOTS["k3s"] if name.endswith(SUFFIXES)]


def test_other_commands_of_k3s_are_no_kubelet() -> None:
    assert facts_of(ROOTS["kubectl-of-k3s"]).kubelet is None


def test_microk8s_names_a_file_with_its_kubelets_flags() -> None:
    facts = facts_of(ROOTS["microk8s"])
    assert facts.kubelet is not None
    assert facts.kubelet.folder == "/var/snap/microk8s/common/var/lib/kubelet"
    assert facts.kubelet.reserved_cpus == "0"
    assert facts.runtimes.config is not None
    assert facts.runtimes.config.process == 21
    assert any(
        f"{facts.kubelet.folder}/cpu_manager_state is of the CPU manager static" in each.found
        for each in findings_of(facts, "kubelet")
    )


def test_a_configuration_that_cannot_be_read_is_completed_by_the_checkpoints() -> None:
    found = findings_of(facts_of(ROOTS["unread"]), "kubelet")
    assert any("its memory manager is Static" in each.found for each in found)
    (remedy,) = [each.remedy for each in found if each.verdict is Verdict.ERROR]
    assert "/var/lib/kubelet/memory_manager_state" in remedy


@pytest.mark.parametrize(
    "arguments", [("k3s", "server"), ("kubelet", "--config-dir=/d"), ("kubelite",)]
)
def test_a_kubelet_whose_files_are_out_of_sight_is_not_called_good(
    arguments: tuple[str, ...],
) -> None:
    (finding,) = findings_of(facts_of({"/proc/20": arguments}), "kubelet")
    assert finding.verdict is Verdict.NOTE
    assert "its configuration file was not read" in finding.found


def test_the_runtime_at_the_kubelets_endpoint_is_judged() -> None:
    facts = facts_of(ROOTS["capitals"])
    assert facts.runtimes.config is not None
    assert (facts.runtimes.config.process, facts.runtimes.config.nri) == (22, False)


@pytest.mark.parametrize("wanted", ["agent: {podResourceAPI: true}", "dra: {enabled: true}"])
def test_another_folder_of_the_kubelet_has_to_be_given_to_the_daemon(wanted: str) -> None:
    settings = (
        "apiVersion: config.nri/v1alpha1\nkind: TopologyAwarePolicy\n"
        "spec:\n  reservedResources: {cpu: 750m}\n  "
    )
    root = {**ROOTS["microk8s"], "/etc/nri-policy/config.yaml": settings + wanted}
    folder = Path("/var/snap/microk8s/common/var/lib/kubelet")

    def found(root: Root, **where: Any) -> list[str]:
        return [e.remedy for e in findings_of(facts_of(root, **where), "kubelet")]

    assert any(f"--kubelet-dir {folder}" in each for each in found(root))
    assert not any("--kubelet-dir" in each for each in found(root, kubelet_dir=folder))
    root["/etc/nri-policy/config.yaml"] = settings + "pinCPU: true"
    assert not any("--kubelet-dir" in each for each in found(root))


@pytest.mark.parametrize(
    "section", ["[grpc]", '[plugins."io.containerd.server.v1.grpc"]'], ids=["until 3", "from 4 on"]
)
def test_the_address_of_containerd_is_read_from_every_version_of_its_configuration(
    section: str,
) -> None:
    root = {
        "/proc/20": ("containerd", "--config=/a.toml"),
        "/proc/21": ("containerd", "--config=/b.toml"),
        "/proc/22": ("kubelet", "--container-runtime-endpoint=/b.sock"),
        "/a.toml": "version = 2\n",
        "/b.toml": f'{section}\naddress = "/b.sock"\n',
    }
    config = facts_of(root).runtimes.config
    assert config is not None
    assert config.process == 21


def test_another_runtime_at_the_nri_socket_is_an_error() -> None:
    facts = facts_of(ROOTS["capitals"])
    assert facts.nri_socket is not None
    for peer, verdict in ((21, Verdict.ERROR), (22, Verdict.OK), (0, Verdict.OK)):
        listening = replace(facts.nri_socket, problem="", there=True, peer=peer)
        found = findings_of(replace(facts, nri_socket=listening), "nri")
        assert found[-1].verdict is verdict, found[-1].found


LARGER = json.loads(CASES.read_text()) if CASES.exists() else {}
NRI_IS = {
    "talos": (1800, False),
    "bottlerocket": (1600, True),
    "two-off": (200, False),
    "two-off-reversed": (100, False),
    "two-off-crio": (200, False),
    "koordinator-1993": (1500, True),
}


@pytest.mark.parametrize("name", LARGER)
def test_hosts_of_the_larger_set_are_judged_as_their_administrators_would(name: str) -> None:
    facts = facts_of(LARGER[name])
    config = facts.runtimes.config
    assert config is not None
    if name in NRI_IS:
        assert (config.process, is_on(config, None)) == NRI_IS[name]
        found = [each.found for each in findings_of(facts, "nri")]
        refused = any("does not let plugins connect" in each for each in found)
        assert refused == (name == "koordinator-1993")
        assert not any(each.verdict is Verdict.ERROR for each in findings_of(facts, "cgroups"))
    else:
        found = [each.found for each in findings_of(facts, "kubelet")]
        assert any("CPU manager" in each and "static" in each for each in found)
