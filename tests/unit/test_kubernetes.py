"""What is applied to a cluster: chart and manifests are one thing, and valid.

kubectl is Debian's where there is none; helm, which Debian has not, is used where it is (`make
kubernetes` gets it).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from nri_policy.settings import SchedulingFlag, from_spec
from tools import debs, settings_schema

PROJECT = Path(__file__).resolve().parents[2]
CONFIGS = PROJECT / "configs"
CHART = CONFIGS / "helm" / "nri-policy"
VARIANTS: dict[str, dict[str, Any]] = {
    "kubernetes": {},
    "kustomize/containerd-1.7": {"enableNRI": True},
    "kustomize/crio": {"seLinuxType": "spc_t"},
    "kustomize/canary": {"nodeSelector": {"nri-policy/canary": "true"}},
}
VERSIONS = ("1.30", "1.34")  # the oldest that has all that is used, and one of late


def documents(text: str) -> dict[str, Any]:
    """Return manifests by kind and name, settings read."""
    found = {}
    for document in yaml.safe_load_all(text):
        if document is None:
            continue
        if "config.yaml" in document.get("data", {}):
            document["data"] = yaml.safe_load(document["data"]["config.yaml"])
        name = f"{document['kind']} {document['metadata']['name']}"
        assert name not in found
        found[name] = document
    return found


def rendered(**values: Any) -> str:
    image = {"repository": "nri-policy", **values.pop("image", {})}
    done = templated(image=image, **values)
    assert done.returncode == 0, done.stderr
    return done.stdout


def templated(**values: Any) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    helm = shutil.which("helm", path=path) or pytest.skip("needs helm")
    options = ["--namespace", "kube-system", "--kube-version", "1.32.0", "--values", "-"]
    return subprocess.run(
        [helm, "template", "nri-policy", str(CHART), *options],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        check=False,
    )


@cache
def kubectl() -> str:
    if found := shutil.which("kubectl"):
        return found
    try:
        return str(debs.fetch("kubectl", suite="trixie") / "usr/bin/kubectl")
    except debs.DebsError as error:
        pytest.skip(f"kubectl cannot be fetched: {error}")


def built(folder: str) -> str:
    command = [kubectl(), "kustomize", str(CONFIGS / folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def with_components(folder: Path, base: str, *components: str) -> str:
    """Return what a user's kustomization makes of a base and components."""
    root = os.path.relpath(CONFIGS, folder)
    document = {
        "resources": [f"{root}/{base}"],
        "components": [f"{root}/{each}" for each in components],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(document))
    return built(str(folder))


def manifest(*names: str) -> str:
    return "---\n".join((CONFIGS / "kubernetes" / name).read_text() for name in names)


def test_what_is_generated_is_what_the_settings_say(tmp_path: Path) -> None:
    settings_schema.generate(tmp_path)
    written = [each.relative_to(tmp_path) for each in tmp_path.rglob("*") if each.is_file()]
    assert len(written) == 5
    for name in written:
        assert (tmp_path / name).read_text() == (PROJECT / name).read_text(), (
            f"{name} is old: run `make kubernetes`"
        )


def test_the_api_server_takes_every_sample_of_settings() -> None:
    (crd,) = yaml.safe_load_all(manifest("settings-crd.yaml"))
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    sample = yaml.safe_load((CONFIGS / "settings.yaml").read_text())["spec"]
    assert [*structural_faults(schema, "spec")] == []
    assert sample.keys() <= schema["properties"].keys()
    assert [*violations(sample, schema)] == []
    assert [*violations({**sample, "pinCPU": "yes"}, schema)] == ["pinCPU"]
    assert [*violations({**sample, "alignment": "numb"}, schema)] == ["alignment"]
    # what the daemon explains reaches the daemon
    assert [*violations({**sample, "pinCPUs": 7, "audit": False, "pinCPU": None}, schema)] == []


def test_the_api_server_takes_a_list_of_scheduling_flags() -> None:
    """The peer's schema has the names of flags on the list instead of its items."""
    (crd,) = yaml.safe_load_all(manifest("settings-crd.yaml"))
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    flags = schema["properties"]["schedulingClasses"]["items"]["properties"]["flags"]
    assert (flags["type"], flags.get("pattern"), flags.get("enum")) == ("array", None, None)
    taken = flags["items"]["pattern"]
    assert all(re.search(taken, flag) for flag in SchedulingFlag)
    assert not re.search(taken, "reclaimable")


def structural_faults(schema: dict[str, Any], path: str) -> list[str]:
    """Return where a schema is not structural: a type or an openness is asked for everywhere."""
    faults = []
    if "type" not in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        faults.append(path)
    for name, each in schema.get("properties", {}).items():
        faults += structural_faults(each, f"{path}.{name}")
    if "items" in schema:
        faults += structural_faults(schema["items"], f"{path}[]")
    return faults


_TYPES = {"boolean": bool, "integer": int, "string": str, "array": list, "object": dict}


def violations(value: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    """Return the fields of a map that an open schema refuses."""
    wrong = [name for name in schema.get("required", []) if name not in value]
    for name, each in value.items():
        inner = schema["properties"].get(name, {})
        if each is None and inner.get("nullable"):
            continue
        if ("type" in inner and not isinstance(each, _TYPES[inner["type"]])) or (
            "pattern" in inner and not re.search(inner["pattern"], each)
        ):
            wrong.append(name)
        elif "properties" in inner:
            wrong += [f"{name}.{field}" for field in violations(each, inner)]
    return wrong


def test_the_charts_values_are_those_of_its_schema_and_its_templates() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert schema["properties"].keys() - {"global", *settings_schema.PEER_VALUES} == values.keys()
    assert not schema["additionalProperties"]
    texts = "".join(each.read_text() for each in (CHART / "templates").iterdir())
    used = {name.split(".")[0] for name in re.findall(r"\.Values\.([A-Za-z.]+)", texts)}
    assert used == values.keys()
    assert from_spec(values["config"], "values.yaml").notices == ()


def test_the_charts_version_is_the_projects() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert {chart["version"], chart["appVersion"]} == {project["version"]}


def test_the_base_is_the_manifests_themselves() -> None:
    base = yaml.safe_load((CONFIGS / "kubernetes" / "kustomization.yaml").read_text())
    assert documents(built("kubernetes")) == documents(manifest(*base["resources"]))


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_chart_makes_what_kustomize_makes(variant: str) -> None:
    assert documents(rendered(**VARIANTS[variant])) == documents(built(variant))


def test_the_charts_kubelet_folder_is_mounted_where_the_kubelet_has_it() -> None:
    """The kubelet calls a DRA driver at the path that the driver names."""
    folder = "/var/lib/k0s/kubelet"
    made = documents(rendered(kubeletDir=folder, dra={"enabled": True}))
    pod = made["DaemonSet nri-policy"]["spec"]["template"]["spec"]
    (daemon,) = pod["containers"]
    assert f"--kubelet-dir={folder}" in daemon["args"]
    mounts = {each["name"]: each["mountPath"] for each in daemon["volumeMounts"]}
    paths = {each["name"]: each.get("hostPath", {}).get("path") for each in pod["volumes"]}
    for name, below in (
        ("pod-resources", "pod-resources"),
        ("plugins-registry", "plugins_registry"),
        ("driver", "plugins/placement.nri"),
    ):
        assert mounts[name] == paths[name] == f"{folder}/{below}"


@pytest.mark.parametrize("folder", ["", "kubelet", "/var/lib/kubelet/", "/a b", "/a}, x: {y"])
def test_the_chart_refuses_a_kubelet_folder_that_is_no_absolute_path(folder: str) -> None:
    refused = templated(image={"repository": "nri-policy"}, kubeletDir=folder)
    assert refused.returncode != 0
    assert "kubeletDir" in refused.stderr


def test_the_chart_makes_what_the_prometheus_operator_needs() -> None:
    base = documents(rendered())
    switched = documents(rendered(podMonitor={"enabled": True}, alerts={"enabled": True}))
    added = {name: each for name, each in switched.items() if name not in base}
    assert added == documents(manifest("podmonitor.yaml", "alerts.yaml"))


def test_the_chart_makes_the_cluster_side_where_it_is_asked_to() -> None:
    base, switched = documents(rendered()), documents(rendered(cluster={"enabled": True}))
    added = {name: each for name, each in switched.items() if name not in base}
    assert added == documents(built("cluster"))
    grouped = documents(rendered(cluster={"enabled": True, "groups": True}))
    added = {name: each for name, each in grouped.items() if name not in base}
    assert added == documents(built("kustomize/cluster-groups"))
    binding = documents(rendered(cluster={"enabled": True, "bind": True}))
    added = {name: each for name, each in binding.items() if name not in switched}
    assert added == documents((CONFIGS / "cluster" / "bind.yaml").read_text())


def test_the_chart_answers_kueue_where_it_is_asked_to(tmp_path: Path) -> None:
    base, switched = documents(rendered()), rendered(cluster={"enabled": True, "kueue": True})
    added = {name: each for name, each in documents(switched).items() if name not in base}
    given = with_components(tmp_path, "cluster", "kustomize/cluster-kueue")
    assert added == documents(given)


def test_the_chart_gives_the_rights_for_readiness_where_it_is_asked_to(tmp_path: Path) -> None:
    nodes, both = tmp_path / "nodes", tmp_path / "both"
    nodes.mkdir()
    both.mkdir()
    given = with_components(nodes, "kubernetes", "kustomize/readiness")
    assert documents(rendered(readiness={"enabled": True})) == documents(given)
    base = documents(built("kubernetes"))
    added = {name: each for name, each in documents(given).items() if name not in base}
    assert {**base, **added} == documents(given), "the base stays as it is"
    marking = documents(with_components(both, "cluster", "kustomize/cluster-readiness"))
    switched = documents(rendered(readiness={"enabled": True}, cluster={"enabled": True}))
    assert switched == {**documents(given), **marking}


def test_the_chart_gives_the_rights_for_explanations_where_it_is_asked_to(tmp_path: Path) -> None:
    given = with_components(tmp_path, "kubernetes", "kustomize/explanations")
    assert documents(rendered(explanations={"enabled": True})) == documents(given)
    base = documents(built("kubernetes"))
    assert not any("explanations" in name for name in base)


def test_the_chart_has_what_a_dra_driver_needs_where_it_is_asked_to(tmp_path: Path) -> None:
    given = with_components(tmp_path, "kubernetes", "kustomize/dra")
    assert documents(rendered(dra={"enabled": True})) == documents(given)


def test_the_chart_has_a_tuner_where_it_is_asked_to(tmp_path: Path) -> None:
    given = with_components(tmp_path, "kubernetes", "kustomize/tuner")
    made = documents(rendered(tuner={"enabled": True}))
    del made["DaemonSet nri-policy-restore"]
    assert made == documents(given)


def test_the_chart_gives_tunables_back_when_it_is_uninstalled() -> None:
    name = "DaemonSet nri-policy-restore"
    assert name not in documents(rendered()), "without a tuner there are none"
    hook = documents(rendered(tuner={"enabled": True}))[name]
    assert hook["metadata"].pop("annotations") == {"helm.sh/hook": "post-delete"}
    assert {name: hook} == documents(built("kustomize/restore"))


@pytest.mark.parametrize("more", [False, True])
def test_what_gives_tunables_back_may_write_what_the_tuner_may(more: bool) -> None:
    config = {"reservedResources": {"cpu": 1}, "control": {"rdt": {"enable": more}}}
    given = {"enabled": True, "singleIdleStates": more}
    made = documents(rendered(tuner=given, seLinuxType="spc_t", config=config))
    daemon, restore = (
        made[f"DaemonSet {name}"]["spec"]["template"]["spec"]
        for name in ("nri-policy", "nri-policy-restore")
    )
    (tuner,) = [each for each in daemon["containers"] if each["name"] == "tuner"]
    (command,) = restore["initContainers"]
    assert command["args"] == ["restore", *tuner["args"][1:]]
    assert command["securityContext"] == tuner["securityContext"]
    mounts = [each for each in tuner["volumeMounts"] if each["name"] != "control"]
    assert command["volumeMounts"] == mounts
    assert ("resctrl" in {each["name"] for each in mounts}) is more
    added = {"add": ["SYS_ADMIN"]} if more else {}
    assert tuner["securityContext"]["capabilities"] == {"drop": ["ALL"]} | added
    assert all(each in daemon["volumes"] for each in restore["volumes"])
    assert "volumeMounts" not in restore["containers"][0]


def test_the_tuner_has_no_capability_and_can_write_few_files_of_the_node(tmp_path: Path) -> None:
    given = documents(with_components(tmp_path, "kubernetes", "kustomize/tuner"))
    pod = given["DaemonSet nri-policy"]["spec"]["template"]["spec"]
    daemon, tuner = sorted(pod["containers"], key=lambda each: each["args"][0])
    assert tuner["securityContext"] == daemon["securityContext"]
    assert tuner["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    mounts = {each["name"]: each for each in tuner["volumeMounts"]}
    writable = {name for name, mount in mounts.items() if not mount.get("readOnly")}
    assert writable == {"interrupts", "cpus", "tuner-state", "control"}
    # the daemon cannot write the journal of original values
    assert "tuner-state" not in {each["name"] for each in daemon["volumeMounts"]}
    base = documents(built("kubernetes"))["DaemonSet nri-policy"]["spec"]["template"]["spec"]
    assert daemon == base["containers"][0], "the daemon has no new right"


def test_what_is_mounted_below_sys_and_proc_is_read_only_too(tmp_path: Path) -> None:
    given = documents(with_components(tmp_path, "kubernetes", "kustomize/tuner"))
    given |= documents(built("kustomize/restore"))
    for name in ("DaemonSet nri-policy", "DaemonSet nri-policy-restore"):
        pod = given[name]["spec"]["template"]["spec"]
        for container in (*pod["containers"], *pod.get("initContainers", [])):
            for mount in container.get("volumeMounts", []):
                if mount["mountPath"] in {"/host/sys", "/host/proc"}:
                    assert mount["readOnly"]
                    assert mount["recursiveReadOnly"] == "IfPossible"


def rules(objects: dict[str, Any]) -> list[Any]:
    return [rule["resources"] for rule in objects["ClusterRole nri-policy"]["rules"]]


def test_without_pods_the_daemon_may_read_none_and_all_else_stays(tmp_path: Path) -> None:
    base = documents(built("kubernetes"))
    without = documents(with_components(tmp_path, "kubernetes", "kustomize/without-pods"))
    assert rules(without) == [each for each in rules(base) if each != ["pods"]]
    assert len(rules(without)) == len(rules(base)) - 1
    role = {"ClusterRole nri-policy": base["ClusterRole nri-policy"]}
    assert {**without, **role} == base


@pytest.mark.parametrize(
    ("agent", "reads"),
    [
        ({}, True),
        ({"podSpecs": "auto"}, True),
        ({"podSpecs": "off"}, False),
        ({"podSpecs": False}, False),
        ({"podSpecs": "off", "podResourceAPI": True}, True),
    ],
)
def test_the_chart_grants_reading_pods_only_where_the_settings_have_pods_read(
    agent: dict[str, Any], *, reads: bool
) -> None:
    assert (["pods"] in rules(documents(rendered(config={"agent": agent})))) is reads


def test_the_chart_can_say_who_may_scrape() -> None:
    peers = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    policy = documents(rendered(metricsFrom=peers))["NetworkPolicy nri-policy"]
    (ingress,) = policy["spec"]["ingress"]
    assert ingress == {"from": peers, "ports": [{"protocol": "TCP", "port": 8891}]}


@pytest.mark.parametrize("name", ["kubernetes/daemonset.yaml", "cluster/deployment.yaml"])
def test_arguments_are_texts(name: str) -> None:
    """A plain scalar that ends with a colon is a map."""
    documents = yaml.safe_load_all((CONFIGS / name).read_text())
    (made,) = (each for each in documents if each["kind"] in ("DaemonSet", "Deployment"))
    for container in made["spec"]["template"]["spec"]["containers"]:
        assert all(isinstance(each, str) for each in container["args"]), container["args"]


def test_a_chart_without_http_has_probes_but_no_port_for_scrapes() -> None:
    made = documents(rendered(config={"instrumentation": {"httpEndpoint": ""}}))
    template = made["DaemonSet nri-policy"]["spec"]["template"]
    (container,) = template["spec"]["containers"]
    probes = {"name": "probes", "containerPort": 8892}
    assert container["ports"] == [probes]
    assert {"livenessProbe", "readinessProbe", "startupProbe"} <= container.keys()
    assert "ingress" not in made["NetworkPolicy nri-policy"]["spec"]
    other = documents(rendered(config={"instrumentation": {"httpEndpoint": "127.0.0.1:9000"}}))
    template = other["DaemonSet nri-policy"]["spec"]["template"]
    assert template["spec"]["containers"][0]["ports"] == [
        {"name": "metrics", "containerPort": 9000},
        probes,
    ]
    (ingress,) = other["NetworkPolicy nri-policy"]["spec"]["ingress"]
    assert ingress["ports"] == [{"protocol": "TCP", "port": 9000}]
    assert template["metadata"]["annotations"]["prometheus.io/port"] == "9000"


@pytest.mark.parametrize(
    "values",
    [
        {"config": {"pinCPUs": True}},
        {"config": {"audit": "sometimes"}},
        {"imagee": {}},
        {"config": {"reservedResources": None}},
    ],
)
def test_the_chart_refuses_values_that_mean_nothing(values: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match="values don't meet the specifications"):
        rendered(**values)


def test_the_canary_is_on_labelled_nodes_alone() -> None:
    canary = documents(built("kustomize/canary"))
    base = documents(built("kubernetes"))
    pods = [each["DaemonSet nri-policy"]["spec"]["template"]["spec"] for each in (canary, base)]
    assert pods[0].pop("nodeSelector") == {
        **pods[1].pop("nodeSelector"),
        "nri-policy/canary": "true",
    }
    assert canary == base


def test_openshift_gets_the_account_its_constraints() -> None:
    made = documents(built("kustomize/openshift"))
    binding = made.pop("RoleBinding nri-policy-privileged")
    assert binding["roleRef"]["name"] == "system:openshift:scc:privileged"
    account = made["ServiceAccount nri-policy"]["metadata"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", **account}]
    assert made == documents(built("kustomize/crio"))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("source", [*VARIANTS, "kustomize/openshift", "cluster", "chart"])
def test_manifests_fit_the_published_schemas(source: str, version: str) -> None:
    validate: Any = import_module("kubernetes_validate").validate
    text = (
        rendered(
            enableNRI=True,
            cluster={"enabled": True},
            readiness={"enabled": True},
            tuner={"enabled": True},
        )
        if source == "chart"
        else built(source)
    )
    crds = manifest("crd.yaml", "settings-crd.yaml")
    made = [*filter(None, yaml.safe_load_all(f"{text}\n---\n{crds}"))]
    assert len(made) > 8
    for document in made:
        validate(document, version, strict=True)
    made[0]["metadata"]["nmae"] = "x"
    errors = import_module("kubernetes_validate.utils").ValidationError
    with pytest.raises(errors):
        validate(made[0], version, strict=True)


def test_values_of_the_peers_chart_are_refused_with_what_they_are_here() -> None:
    """All at once, though the image is not named either."""
    done = templated(
        image={"name": "ghcr.io/x/y", "pullPolicy": "Always"},
        config={"reservedResources": {"cpu": "750m"}, "log": {"klog": {"skip_headers": True}}},
        nri={"plugin": {"index": 90}, "runtime": {"patchConfig": False}},
        resources={"cpu": "500m", "memory": "512Mi"},
        tolerations=[],
        affinity=[],
        nodeSelector=[],
        podPriorityClassNodeCritical=True,
    )
    assert done.returncode != 0
    refused = [line.strip() for line in done.stderr.splitlines() if ": here " in line]
    assert refused == [
        "image.name: here image.repository",
        "nri.plugin: here podAnnotations for its annotations; the index is 90",
        "nri.runtime: here enableNRI for patchConfig",
        "podPriorityClassNodeCritical: here priorityClassName",
        "resources.cpu: here resources.requests.cpu",
        "resources.memory: here resources.requests.memory",
    ]
    table = (PROJECT / "docs/migration.md").read_text()
    for old in settings_schema.PEER_VALUES:
        assert f"`{old}" in table, old
        assert f"  {old}" in templated(**{old: {"plugin": {}}}).stderr
    assert "image.repository has to be given" in templated().stderr


def test_values_of_the_peers_older_charts_are_refused_too() -> None:
    done = templated(hostPort=8891, nri={"patchRuntimeConfig": True})
    refused = [line.strip() for line in done.stderr.splitlines() if ": here " in line]
    assert [each.partition(": here ")[::2] for each in refused] == [
        (
            "hostPort",
            (
                "not available: Prometheus scrapes the address of the pod, at the port of"
                " config.instrumentation.httpEndpoint"
            ),
        ),
        ("nri.patchRuntimeConfig", "enableNRI"),
    ]


def test_empty_lists_of_the_peers_chart_and_its_label_are_taken() -> None:
    text = rendered(nodeSelector=[], affinity=[], configGroupLabel="example.com/group")
    pod = documents(text)["DaemonSet nri-policy"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"kubernetes.io/os": "linux"}
    assert "--config-group-label=example.com/group" in pod["containers"][0]["args"]
