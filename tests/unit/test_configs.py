"""The samples in configs/ and systemd/ say what they mean to."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from nri_policy.daemon.paths import CONTAINERS_DIR
from nri_policy.settings import API_VERSION, KIND, Address, load
from tests.support import manifests as rules

PROJECT = Path(__file__).resolve().parents[2]
CONFIGS = PROJECT / "configs"
UNIT = PROJECT / "systemd" / "nri-policy.service"
TUNER_UNIT = PROJECT / "systemd" / "nri-policy-tuner.service"


@pytest.fixture
def manifests() -> dict[str, Any]:
    text = (CONFIGS / "kubernetes" / "daemonset.yaml").read_text()
    return {manifest["kind"]: manifest for manifest in yaml.safe_load_all(text)}


@pytest.fixture
def pod(manifests: dict[str, Any]) -> Any:
    return manifests["DaemonSet"]["spec"]["template"]["spec"]


def test_the_drop_ins_enable_nri() -> None:
    containerd = tomllib.loads((CONFIGS / "containerd" / "nri.toml").read_text())
    assert containerd["plugins"]["io.containerd.nri.v1.nri"] == {"disable": False}
    crio = tomllib.loads((CONFIGS / "crio" / "10-nri.conf").read_text())
    assert crio == {"crio": {"nri": {"enable_nri": True}}}


def test_the_pod_mounts_volumes_that_it_has_and_sees_the_nodes_files_read_only(pod: Any) -> None:
    (container,) = pod["containers"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert volumes.keys() == mounts.keys()
    writable = {name for name, mount in mounts.items() if not mount.get("readOnly")}
    assert writable == {"nri", "state", "control", "containers", "cgroup"}


def test_files_shown_to_containers_have_the_same_path_on_the_node_and_in_the_pod(pod: Any) -> None:
    (shown,) = (volume for volume in pod["volumes"] if volume["name"] == "containers")
    (mount,) = (m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "containers")
    assert shown["hostPath"]["path"] == mount["mountPath"] == str(CONTAINERS_DIR)


def test_the_pod_has_no_capability_and_cannot_gain_one(pod: Any) -> None:
    assert pod["containers"][0]["securityContext"] == {
        "runAsUser": 0,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def kubernetes(name: str) -> list[Any]:
    return [*yaml.safe_load_all((CONFIGS / "kubernetes" / name).read_text())]


def test_the_kind_is_the_one_that_schedulers_read() -> None:
    (crd,) = kubernetes("crd.yaml")
    spec = crd["spec"]
    assert crd["metadata"]["name"] == f"{spec['names']['plural']}.{spec['group']}"
    assert "api-approved.kubernetes.io" in crd["metadata"]["annotations"], "the API server insists"
    assert spec["scope"] == "Cluster"
    versions = {each["name"]: (each["served"], each["storage"]) for each in spec["versions"]}
    assert versions == {"v1alpha2": (True, True), "v1alpha1": (True, False)}
    old = spec["versions"][1]["schema"]["openAPIV3Schema"]
    assert (old["required"], "attributes" in old["properties"]) == (
        ["topologyPolicies", "zones"],
        False,
    )


@pytest.mark.parametrize(
    ("value", "right"),
    [
        *((value, True) for value in ("4", "1500m", "17179869184", "-1", "1e3", "2Gi", ".5", 7)),
        *((value, False) for value in ("4x", "", "m", "1 Gi", "0x4", "1GiB", 1.5, None)),
    ],
)
def test_quantities_are_those_of_kubernetes(value: object, right: bool) -> None:
    schema = rules.schemas()["v1alpha2"]["properties"]["zones"]["items"]["properties"]
    quantity = schema["resources"]["items"]["properties"]["available"]
    assert (rules.invalid(value, quantity, "") == ([], [])) == right


def test_settings_are_a_kind_whose_status_is_apart() -> None:
    (crd,) = kubernetes("settings-crd.yaml")
    spec = crd["spec"]
    assert crd["metadata"]["name"] == f"{spec['names']['plural']}.{spec['group']}"
    (version,) = spec["versions"]
    assert f"{spec['group']}/{version['name']}" == API_VERSION
    assert (spec["names"]["kind"], spec["scope"]) == (KIND, "Namespaced")
    assert version["subresources"] == {"status": {}}
    properties = version["schema"]["openAPIV3Schema"]["properties"]
    assert properties["spec"]["x-kubernetes-preserve-unknown-fields"]
    node = properties["status"]["properties"]["nodes"]["additionalProperties"]["properties"]
    assert node.keys() == {"status", "generation", "errors", "timestamp"}


def test_the_daemons_account_may_do_no_more_than_it_does(
    manifests: dict[str, Any],
) -> None:
    everywhere, bound, namespaced, bound_there = kubernetes("rbac.yaml")
    assert {
        (role["kind"], group, resource): rule["verbs"]
        for role in (everywhere, namespaced)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    } == {
        ("ClusterRole", "", "nodes"): ["get"],
        ("ClusterRole", "topology.node.k8s.io", "noderesourcetopologies"): [
            *("get", "create", "patch", "delete")
        ],
        ("ClusterRole", "", "events"): ["create"],
        ("ClusterRole", "resource.k8s.io", "resourceslices"): ["get", "list", "watch"],
        ("ClusterRole", "resource.k8s.io", "resourceclaims"): ["get"],
        ("ClusterRole", "", "pods"): ["get"],
        ("Role", "config.nri", "topologyawarepolicies"): ["list", "watch"],
        ("Role", "config.nri", "topologyawarepolicies/status"): ["patch"],
    }
    account = manifests["ServiceAccount"]["metadata"]
    for role, binding in ((everywhere, bound), (namespaced, bound_there)):
        assert binding["roleRef"]["kind"] == role["kind"]
        assert binding["roleRef"]["name"] == role["metadata"]["name"]
        assert binding["metadata"].get("namespace") == role["metadata"].get("namespace")
        assert binding["subjects"] == [{"kind": "ServiceAccount", **account}]
    pod = manifests["DaemonSet"]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == account["name"]
    environment = {each["name"]: each for each in pod["containers"][0]["env"]}
    assert environment["NODE_NAME"]["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"


def test_each_daemon_is_kept_to_its_own_node(manifests: dict[str, Any]) -> None:
    objects = kubernetes("node-restriction.yaml")
    account = manifests["ServiceAccount"]["metadata"]
    name = f"system:serviceaccount:{account['namespace']}:{account['name']}"
    ruled: dict[str, list[str]] = {}
    for policy, binding in zip(objects[::2], objects[1::2], strict=True):
        assert binding["spec"] == {
            "policyName": policy["metadata"]["name"],
            "validationActions": ["Deny"],
        }
        (condition,) = policy["spec"]["matchConditions"]
        assert condition["expression"] == f"request.userInfo.username == '{name}'"
        (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
        assert rule["scope"] == "*", "left out, it is set by the server, and reads as a change"
        ruled |= dict.fromkeys(rule["resources"], rule["operations"])
        defined = {each["name"] for each in policy["spec"]["variables"]}
        validations = policy["spec"]["validations"]
        assert {each["reason"] for each in validations} == {"Forbidden"}
        expressions = " ".join(each["expression"] for each in validations)
        assert {*re.findall(r"variables\.(\w+)", expressions)} == defined
        assert "\n" not in expressions
    assert ruled == {
        "noderesourcetopologies": ["CREATE", "UPDATE", "DELETE"],
        "topologyawarepolicies/status": ["UPDATE"],
        "events": ["CREATE"],
    }


@pytest.fixture
def systemd_analyze() -> str:
    program = shutil.which("systemd-analyze")
    if not program:
        pytest.skip("needs systemd-analyze, which this system has not")
    return program


@pytest.mark.parametrize("shipped", [UNIT, TUNER_UNIT], ids=lambda path: path.name)
def test_systemd_understands_every_line_of_a_unit(
    systemd_analyze: str, tmp_path: Path, shipped: Path
) -> None:
    unit = tmp_path / shipped.name
    unit.write_text(shipped.read_text().replace("/usr/bin/nri-policy", "/bin/true"))
    done = subprocess.run(
        [systemd_analyze, "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_is_ready_when_the_daemon_says_so_and_its_loop_is_watched() -> None:
    lines = UNIT.read_text().splitlines()
    assert {"Type=notify", "WatchdogSec=30s", "ExecReload=/bin/kill -HUP $MAINPID"} <= {*lines}


def test_what_containers_are_shown_outlives_the_daemon() -> None:
    lines = UNIT.read_text().splitlines()
    assert {"RuntimeDirectory=nri-policy", "RuntimeDirectoryPreserve=yes"} <= {*lines}


def test_the_tuners_unit_can_write_few_files_of_the_kernel_and_no_other_process_its_journal() -> (
    None
):
    lines = {*TUNER_UNIT.read_text().splitlines()}
    writable = "ReadWritePaths=/proc/irq /sys/devices/system/cpu -/sys/fs/resctrl"
    assert {"CapabilityBoundingSet=", "ReadOnlyPaths=/proc /sys", writable} <= lines
    assert "StateDirectory=nri-policy-tuner" in lines
    assert "ProtectKernelTunables=yes" in UNIT.read_text().splitlines()


@pytest.mark.parametrize(("unit", "most"), [(UNIT, 20), (TUNER_UNIT, 11)])
def test_a_unit_stays_as_tight_as_it_is(systemd_analyze: str, unit: Path, most: int) -> None:
    command = [systemd_analyze, "security", "--offline=true", f"--threshold={most}", str(unit)]
    subprocess.run(command, check=True, capture_output=True)


def test_the_probes_ask_a_port_that_no_setting_closes_and_no_scrape_fills(
    manifests: dict[str, Any], pod: Any
) -> None:
    settings = load(manifests["ConfigMap"]["data"]["config.yaml"], "the config map")
    assert settings.instrumentation.http_endpoint == Address("", 8891)
    assert settings.instrumentation.prometheus_export
    assert not settings.notices
    (container,) = pod["containers"]
    assert container["ports"] == [
        {"name": "metrics", "containerPort": 8891},
        {"name": "probes", "containerPort": 8892},
    ]
    assert "--probe-endpoint=:8892" in container["args"]
    kinds = ("startupProbe", "livenessProbe", "readinessProbe")
    probes = [container[kind]["httpGet"] for kind in kinds]
    assert {probe["port"] for probe in probes} == {"probes"}
    assert [probe["path"] for probe in probes] == ["/livez", "/livez", "/readyz"]


def test_prometheus_finds_the_port_by_annotation_and_by_pod_monitor(
    manifests: dict[str, Any],
) -> None:
    template = manifests["DaemonSet"]["spec"]["template"]
    assert template["metadata"]["annotations"] == {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": "8891",
        "prometheus.io/path": "/metrics",
    }
    monitor = yaml.safe_load((CONFIGS / "kubernetes" / "podmonitor.yaml").read_text())["spec"]
    assert monitor["selector"]["matchLabels"] == template["metadata"]["labels"]
    assert [each["port"] for each in monitor["podMetricsEndpoints"]] == ["metrics"]


def test_the_daemon_comes_before_others_where_cpus_are_short(pod: Any) -> None:
    assert pod["priorityClassName"] == "system-node-critical"
    (container,) = pod["containers"]
    assert container["resources"]["requests"]["cpu"] == "250m"
    unit = (PROJECT / "systemd" / "nri-policy.service").read_text()
    assert "\nCPUWeight=1000\n" in unit


def test_other_pods_reach_only_the_port_of_the_metrics(manifests: dict[str, Any]) -> None:
    policy = yaml.safe_load((CONFIGS / "kubernetes" / "network-policy.yaml").read_text())["spec"]
    labels = manifests["DaemonSet"]["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"] == labels
    assert policy["policyTypes"] == ["Ingress"]
    assert policy["ingress"] == [{"ports": [{"protocol": "TCP", "port": 8891}]}]
