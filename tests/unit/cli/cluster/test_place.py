"""`nri-policy cluster place`: where groups would go, and what is said of those that go nowhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.test_cluster_questions import job, named, run, write
from tests.unit.cluster.engine.test_preemption import RACK
from tests.unit.cluster.written import HOSTNAME, group, node, pod_set

SPEC = "rack:2 host:2 cpu:4 memory:8Gi"
ZONE, LEVEL = "topology.kubernetes.io/zone", "example.com/rack"


@pytest.mark.parametrize("command", ["place", "explain", "plan"])
def test_a_topology_that_there_is_not_is_said(tmp_path: Path, command: str) -> None:
    asked = job("j", 2)
    asked["spec"]["template"]["metadata"]["annotations"]["placement.nri/topology"] = "nope"
    file = write(tmp_path / "job.yaml", asked)
    code, text = run(command, "-f", file, "--synthetic", SPEC)
    assert (code, "there is no topology 'nope'; there are: default" in text) == (2, True)


@pytest.mark.parametrize("command", ["place", "explain", "plan"])
@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({"kueue.x-k8s.io/podset-required-topology": "example.com/blok"}, 2),
        ({"kueue.x-k8s.io/podset-required-topology": "zone/socket"}, 2),
        (
            {
                "kueue.x-k8s.io/podset-required-topology": HOSTNAME,
                "kueue.x-k8s.io/podset-slice-required-topology": "example.com/rack",
                "kueue.x-k8s.io/podset-slice-size": "2",
            },
            2,
        ),
        (
            {
                "kueue.x-k8s.io/podset-topology-spreading": json.dumps(
                    {"rules": [{"key": "example.com/blok", "maxShareAllowingPlacement": 9}]}
                )
            },
            2,
        ),
        ({"placement.nri/group-required-topology": "example.com/blok"}, 2),
        ({"placement.nri/exclusive-topology": "zone/Node"}, 2),
        ({"placement.nri/spread-over": "example.com/blok"}, 1),  # a label needs no level
        ({"kueue.x-k8s.io/podset-required-topology": "example.com/rack"}, 1),
        ({}, 1),
    ],
)
def test_a_wrong_request_and_a_full_cluster_have_different_exit_codes(
    tmp_path: Path, command: str, annotations: dict[str, str], expected: int
) -> None:
    asked = job("j", 20)
    asked["spec"]["template"]["metadata"]["annotations"] = annotations
    file = write(tmp_path / "job.yaml", asked, *[job("k", 1)] * (command == "place"))
    code, text = run(command, "-f", file, "--synthetic", SPEC, "-o", "json")
    found = json.loads(text)
    found = found[0] if command == "place" else found
    assert (code, found["malformed"]) == (expected, expected == 2)


def test_the_steps_of_a_jobset_share_a_rack(tmp_path: Path) -> None:
    """Of two racks of 8 CPUs the driver has a CPU of one, and the workers ask for 8."""
    jobs = []
    for name, pods in (("driver", 1), ("workers", 8)):
        template = job(name, pods)["spec"]
        template["template"]["metadata"]["annotations"] = {
            "placement.nri/group-required-topology": LEVEL
        }
        jobs.append({"name": name, "template": {"spec": template}})
    made = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "s"},
        "spec": {"replicatedJobs": jobs, "startupPolicy": {"startupPolicyOrder": "InOrder"}},
    }
    file = write(tmp_path / "set.yaml", made)
    code, text = run("place", "-f", file, "--synthetic", SPEC)
    assert code == 1
    assert "it shares rack rack-1 with default/s of its JobSet; there, workers finds no" in text


def test_a_group_without_pods_has_no_wrong_level(tmp_path: Path) -> None:
    asked = {
        "apiVersion": "placement.nri/v1alpha1",
        "kind": "PlacementGroup",
        "metadata": {"name": "empty"},
        "spec": {"podSets": [], "together": {"required": "example.com/rack"}},
    }
    code, _ = run("place", "-f", write(tmp_path / "empty.yaml", asked), "--synthetic", SPEC)
    assert code == 0


@pytest.mark.parametrize("form", ["svg", "html"])
@pytest.mark.parametrize("command", ["place", "explain"])
def test_nothing_is_drawn_of_a_topology_that_there_is_not(
    tmp_path: Path, command: str, form: str
) -> None:
    asked = job("j", 2)
    asked["spec"]["template"]["metadata"]["annotations"]["placement.nri/topology"] = "nope"
    file = write(tmp_path / "job.yaml", *[job("k", 1)] * (command == "place"), asked)
    code, text = run(command, "-f", file, "--synthetic", SPEC, "-o", form)
    assert (code, text) == (2, "nri-policy: there is no topology 'nope'; there are: default\n")


def test_the_topology_of_the_first_group_is_drawn(tmp_path: Path) -> None:
    topologies = [{"levels": [RACK["required"], HOSTNAME]}, {"name": "hosts", "levels": [HOSTNAME]}]
    spec = {"apiVersion": "config.nri/v1alpha1", "kind": "ClusterPlacement"}
    using = write(tmp_path / "s.yaml", spec | {"spec": {"topologies": topologies}})
    asked = job("j", 2, required=HOSTNAME)
    asked["spec"]["template"]["metadata"]["annotations"]["placement.nri/topology"] = "hosts"
    default = write(tmp_path / "default.yaml", job("k", 1))
    hosts = write(tmp_path / "job.yaml", asked)
    for files, drawn in (((hosts, default), False), ((default, hosts), True)):
        given = [each for file in files for each in ("-f", file)]
        where = ("--synthetic", SPEC, "--settings", using)
        code, text = run("place", *given, *where, "-o", "svg")
        assert (code, "rack-1" in text) == (0, drawn)


def test_a_scenario_goes_on_after_a_topology_that_there_is_not(tmp_path: Path) -> None:
    asked = job("j", 2)
    asked["spec"]["template"]["metadata"]["annotations"]["placement.nri/topology"] = "nope"
    steps = [{"apply": [asked]}, {"apply": [job("k", 2)]}]
    file = write(tmp_path / "steps.yaml", steps)
    code, text = run("simulate", file, "--synthetic", SPEC, "--steps", "-o", "json")
    assert code == 0
    states = [each["state"] for each in json.loads(text)["steps"][1]["groups"]]
    assert states == ["Unplaceable", "Placed"]


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        ({"containers": [{"name": "c", "ports": [{"hostPort": 80}]}]}, "a host port"),
        (
            {
                "affinity": {
                    "podAntiAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": [
                            {"labelSelector": {}, "topologyKey": "kubernetes.io/hostname"}
                        ]
                    }
                }
            },
            "pod anti-affinity to its own kind",
        ),
    ],
)
@pytest.mark.parametrize("kind", ["Job", "PlacementGroup"])
def test_pods_that_exclude_each_other_go_to_hosts_of_their_own(
    tmp_path: Path, kind: str, spec: Any, what: str
) -> None:
    def asked(pods: int) -> str:
        written = job("j", pods)
        if kind == "PlacementGroup":
            written = {"kind": kind} | group(pod_set(pods, RACK, cpu=1), name="j")
        holder = written["spec"]
        (holder["podSets"][0] if kind == "PlacementGroup" else holder)["template"]["spec"] |= spec
        return write(tmp_path / "asked.yaml", written)

    code, text = run("place", "-f", asked(2), "--synthetic", SPEC, "-o", "json")
    (found,) = json.loads(text)
    assert code == 0
    assert [each["pods"] for each in found["parts"]] == [2]
    assert [*found["parts"][0]["hosts"].values()] == [1, 1]
    here = "here that means at most one pod on each host, and pods of other groups are not counted"
    note = f"only kube-scheduler can judge {what}; {here}"
    assert found["notes"] == [f"default/j, pod set main: {note}"]
    for command in ("place", "explain", "plan"):
        code, text = run(command, "-f", asked(5), "--synthetic", SPEC)
        assert (code, f"can judge {what}" in " ".join(text.split())) == (1, True)
        assert "out of 5 pod(s), at most 1 on each host" in " ".join(text.split())


def test_pods_that_exclude_each_other_in_a_rack_are_noted_for_those_of_others(
    tmp_path: Path,
) -> None:
    asked = job("j", 2)
    term = {"labelSelector": {}, "topologyKey": "example.com/rack"}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    asked["spec"]["template"]["spec"]["affinity"] = apart
    file = write(tmp_path / "job.yaml", asked)
    code, text = run("place", "-f", file, "--synthetic", SPEC, "-o", "json")
    assert code == 0
    what = "pod anti-affinity to its own kind over example.com/rack"
    here = "here that means at most one pod in each example.com/rack, and pods of other groups"
    here += " are not counted"
    note = f"only kube-scheduler can judge {what}; {here}"
    assert json.loads(text)[0]["notes"] == [f"default/j, pod set main: {note}"]


def test_a_label_to_spread_over_that_no_node_has_is_noted(tmp_path: Path) -> None:
    for label, hint in (("example.com/rak", "; did you mean 'example.com/rack'?"), ("x/y", "")):
        file = write(tmp_path / "job.yaml", job("j", 4, spread=label))
        for command in ("place", "explain", "plan"):
            code, text = run(command, "-f", file, "--synthetic", SPEC, "-o", "json")
            found = json.loads(text)
            (note,) = (found[0] if command == "place" else found)["notes"]
            end = f"spread over {label!r}, a label that no node has{hint}"
            assert (code, note) == (0, f"default/j, pod set main: {end}")


def test_a_weight_of_a_value_that_no_node_has_is_noted(tmp_path: Path) -> None:
    weights = 'example.com/rack={rack-1: 2, rack2: 1, "": 1}'
    file = write(tmp_path / "job.yaml", job("j", 3, spread=weights))
    _, text = run("place", "-f", file, "--synthetic", SPEC, "-o", "json")
    spread = "default/j, pod set main: spread over 'example.com/rack': a weight is for"
    assert json.loads(text)[0]["notes"] == [
        f"{spread} '', which no node has",
        f"{spread} 'rack2', which no node has; did you mean 'rack-2'?",
    ]


def test_nodes_that_take_no_part_are_noted_where_that_may_be_the_reason(tmp_path: Path) -> None:
    nodes = [node("a", RACK="r"), node("b"), node("c", RACK="r", ready=False)]
    cluster = write(tmp_path / "cluster.json", *({"kind": "Node"} | each for each in nodes))
    where = ("--cluster", cluster, "--levels", f"example.com/rack,{HOSTNAME}", "-o", "json")
    left = [
        "1 node left out: no label example.com/rack (b)",
        "1 node left out: not ready (c)",
        f"default/j: --levels {HOSTNAME} tries without example.com/rack",
    ]
    for pods in (4, 8):
        file = write(tmp_path / "job.yaml", job("j", pods))
        (placed,) = json.loads(run("place", "-f", file, *where)[1])
        assert placed["notes"] == (left if pods == 8 else [])
        assert json.loads(run("explain", "-f", file, *where)[1])["notes"] == left
    both = write(tmp_path / "jobs.yaml", job("j", 8), job("k", 8))
    for form in ("table", "html"):
        text = run("place", "-f", both, *where[:-1], form)[1]
        assert text.count("1 node left out: not ready (c)") == 1
        assert text.count("1 node left out: no label example.com/rack (b)") == 1


def test_a_level_that_is_offered_comes_without_those_that_no_node_has(tmp_path: Path) -> None:
    """The default settings have zones, of which these nodes know nothing."""
    nodes = [{"kind": "Node"} | node(name, RACK="r", cpu=9) for name in "ab"]
    cluster = write(tmp_path / "cluster.json", *nodes)
    asked = (
        "-f",
        write(tmp_path / "job.yaml", job("j", 6, required="example.com/rack")),
        "--cluster",
        cluster,
    )
    code, text = run("place", *asked, "-o", "json")
    levels = f"--levels example.com/rack,{HOSTNAME}"
    assert (code, f"cluster place {levels}` tries it as one" in text) == (2, True)
    assert "tries without" not in text, "that would not have the rack either"
    assert run("place", *asked, *levels.split())[0] == 0


def test_pods_that_are_placed_alone_are_not_spread_and_a_note_says_so(tmp_path: Path) -> None:
    gated = job("j", 3, spread="example.com/rack", kind="Deployment")
    gated["spec"]["template"]["spec"]["schedulingGates"] = [{"name": "placement.nri/group"}]
    for made, alone in ((gated, 1), (job("j", 3, spread="example.com/rack", kind="Deployment"), 0)):
        file = write(tmp_path / "d.yaml", made)
        (placed,) = json.loads(run("place", "-f", file, "--synthetic", SPEC, "-o", "json")[1])
        assert len(placed["parts"]) == 2 - alone
        said = "default/j: a pod that is placed alone is spread over nothing; pods without a gate"
        assert [each.startswith(said) for each in placed["notes"]][1:] == [True] * alone


@pytest.mark.parametrize(
    ("required", "offer"),
    [
        ({}, True),
        ({"required": HOSTNAME}, True),
        ({"required": "topology.kubernetes.io/zone"}, False),
    ],
)
def test_the_level_whose_label_nodes_lack_is_named_and_offered_to_leave_out(
    tmp_path: Path, required: dict[str, str], offer: bool
) -> None:
    cluster = write(tmp_path / "cluster.json", {"kind": "Node"} | node("a", cpu=9))
    asked = ("-f", write(tmp_path / "job.yaml", job("j", 6, **required)), "--cluster", cluster)
    zone = "topology.kubernetes.io/zone"  # of the default settings
    for command in ("place", "explain"):
        code, text = run(command, *asked, "-o", "json")
        found = json.loads(text)
        found = found[0] if command == "place" else found
        assert (code, found["status"]["message"]) == (1, f"no topology domains at level: {zone}")
        assert found["notes"] == [
            f"1 node left out: no label {zone} (a)",
            *[f"default/j: --levels {HOSTNAME} tries without {zone}"] * offer,
        ]
        assert run(command, *asked, "--levels", HOSTNAME)[0] == (0 if offer else 2)


def test_a_resource_that_no_node_has_is_noted(tmp_path: Path) -> None:
    asked = job("j", 1)
    limits = {"nvidia.com/gpu": 1, "x/y": 0}
    asked["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": limits}
    file = write(tmp_path / "job.yaml", asked)
    for spec, hint in ((f"{SPEC} gpu:8", "; did you mean 'gpu'?"), (SPEC, "")):
        text = run("explain", "-f", file, "--synthetic", spec, "-o", "json")[1]
        end = f"asks for 'nvidia.com/gpu', a resource that no node has{hint}"
        assert json.loads(text)["notes"] == [f"default/j, pod set main: {end}"]


def test_what_only_kube_scheduler_can_judge_is_noted(tmp_path: Path) -> None:
    asked = job("j", 2)
    asked["spec"]["template"]["spec"]["resourceClaims"] = [{"name": "gpu"}]
    file = write(tmp_path / "job.yaml", asked)
    for command in ("place", "explain", "plan", "fit"):
        code, text = run(command, "-f", file, "--synthetic", SPEC)
        text = " ".join(text.split())
        assert (code, "note: " in text) == (0, True)
        assert "only kube-scheduler can judge resource claims" in text


def test_pods_on_a_host_outside_the_tree_are_shown_by_its_labels(tmp_path: Path) -> None:
    zone = {"topology.kubernetes.io/zone": "z"}
    nodes = [node("a", RACK="r", labels=zone), node("b", labels=zone)]
    cluster = write(tmp_path / "cluster.json", *({"kind": "Node"} | each for each in nodes))
    levels = "topology.kubernetes.io/zone,example.com/rack,kubernetes.io/hostname"
    asked = write(tmp_path / "job.yaml", job("j", 4, spread="topology.kubernetes.io/zone"))
    where = ("-f", asked, "--cluster", cluster, "--levels", levels)
    code, text = run("place", *where)
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert (code, rows[1:]) == (
        0,
        [
            "default/j main zone z, rack -: 2 pods on 1 host",
            "default/j main zone z, rack r: 2 pods on 1 host",
        ],
    )
    code, page = run("place", *where, "-o", "html")
    assert (code, "2 on hosts outside the tree, " in page) == (0, True)


def test_it_is_said_where_no_change_would_help(tmp_path: Path) -> None:
    file = write(tmp_path / "job.yaml", job("j", 1, cpu=5))
    text = run("explain", "-f", file, "--synthetic", SPEC)[1]
    assert text.splitlines()[-1] == "No change was found that would make it fit"


def test_slices_of_a_job_that_are_not_whole_are_said_of_its_spec(tmp_path: Path) -> None:
    asked = job("j", 5, required="example.com/rack")
    slices = {"slice-required-topology": HOSTNAME, "slice-size": "2"}
    asking = {f"kueue.x-k8s.io/podset-{name}": value for name, value in slices.items()}
    asked["spec"]["template"]["metadata"]["annotations"] |= asking
    file = write(tmp_path / "job.yaml", asked)
    code, text = run("place", "-f", file, "--synthetic", SPEC)
    assert (code, "job.yaml: spec: 5 pods are no whole number of slices of 2" in text) == (2, True)


def test_a_specification_with_commas_is_told_of_spaces(tmp_path: Path) -> None:
    file = write(tmp_path / "job.yaml", job("j", 1))
    code, text = run("place", "-f", file, "--synthetic", "zone:2,rack:4")
    assert (code, "has a comma; words are divided by spaces" in text) == (2, True)


def test_the_claims_beside_a_pod_are_no_groups(tmp_path: Path) -> None:
    asked = job("j", 1)
    claims = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
    asked["spec"]["template"]["spec"]["resourceClaims"] = claims
    template = {"metadata": {"name": "gpu"}, "spec": {"spec": {}}}
    file = write(tmp_path / "job.yaml", named("ResourceClaimTemplate", template), asked)
    for command in ("place", "explain", "fit"):
        code, text = run(command, "-f", file, "--synthetic", SPEC)
        assert (code, "can judge resource claims" in text) == (0, True), text


def test_groups_of_higher_priority_are_placed_first_and_none_leaves_for_them(
    tmp_path: Path,
) -> None:
    def asked(name: str, priority: int, status: Any = None) -> Any:
        made = group(pod_set(4), name=name, priority=priority, status=status)
        return {"kind": "PlacementGroup"} | made

    places = {"podSet": "main", "levels": [HOSTNAME], "domains": [{"values": ["a"], "count": 4}]}
    spec = {"topologies": [{"levels": [HOSTNAME]}], "groups": {"preemption": True}}
    items = [
        *({"kind": "Node"} | node(name) for name in "ab"),
        {"kind": "ClusterPlacement", "apiVersion": "config.nri/v1alpha1", "spec": spec},
        asked("there", 1, {"state": "Placed", "assignments": [places]}),
    ]
    where = write(tmp_path / "cluster.json", {"kind": "List", "items": items})
    files: list[str] = []
    for name, priority in (("low", 0), ("high", 3), ("middle", 2)):
        files += ["-f", write(tmp_path / name, asked(name, priority))]
    code, text = run("place", *files, "--cluster", where, "-o", "json")
    found = {each["name"]: each for each in json.loads(text)}
    states = {name: each["status"]["state"] for name, each in found.items()}
    assert code == 1
    assert [*states.items()] == [
        ("high", "Placed"),
        ("middle", "Unplaceable"),
        ("low", "Unplaceable"),
    ]
    note = (
        'default/middle: preemption is not tried here: "cluster explain" names the groups that'
        " would have to leave"
    )
    assert [each["notes"] for each in found.values()] == [[], [note], []]


@pytest.mark.parametrize("command", ["place", "explain", "fit", "plan"])
def test_what_makes_no_pods_of_a_group_is_left_out_of_a_file_with_a_note(
    tmp_path: Path, command: str
) -> None:
    others = [{"kind": each, "metadata": {"name": "x"}} for each in ("Service", "ConfigMap")]
    daemon = job("d", 1, kind="DaemonSet")
    file = write(tmp_path / "app.yaml", *others, daemon, job("web", 2, kind="Deployment"), *others)
    code, text = run(command, "-f", file, "--synthetic", SPEC)
    assert code == 0
    assert "left out, as they are not placed: 2 Service, 2 ConfigMap, 1 DaemonSet\n" in text
    nothing = write(tmp_path / "none.yaml", *others, daemon)
    code, text = run(command, "-f", nothing, "--synthetic", SPEC)
    assert (code, "1 Service, 1 ConfigMap, 1 DaemonSet" in text) == (2, True)


def test_what_a_step_leaves_out_is_noted(tmp_path: Path) -> None:
    scenario = tmp_path / "s.json"
    scenario.write_text(json.dumps([{"apply": [job("j", 1), {"kind": "Secret"}]}]))
    code, text = run("simulate", str(scenario), "--synthetic", SPEC)
    assert (code, "  note: left out, as they are not placed: 1 Secret\n" in text) == (0, True)


@pytest.mark.parametrize(
    ("request_", "idle"),
    [
        ({"required": LEVEL}, [ZONE, LEVEL]),
        ({"required": ZONE}, [ZONE]),
        ({"preferred": LEVEL}, []),
        ({"exclusive": LEVEL}, [ZONE, LEVEL]),
        ({}, []),
    ],
)
def test_spreading_over_what_all_pods_share_is_noted(
    tmp_path: Path, request_: dict[str, str], idle: list[str]
) -> None:
    asked = group(pod_set(2, {**request_, "spreadOver": [ZONE, LEVEL]}, cpu=1))
    file = write(tmp_path / "g.yaml", {"kind": "PlacementGroup"} | asked)
    _, text = run("place", "-f", file, "--synthetic", f"zone:2 {SPEC}", "-o", "json")
    (tried,) = json.loads(text)
    shared = next(iter(request_.values()), "")
    assert tried["notes"] == [
        f"default/g, pod set main: spread over {each!r} has no effect: all pods are in one {shared}"
        for each in idle
    ]
